/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * example_rows: a whole attention backend in one file, to be copied. One query and one head at a
 * time, as plain as it gets: paged prefill and decode of decoder layers, f32 and bf16, in the
 * layout kv.nhd/1, through block tables, with causal masks, windows and soft caps.
 *
 * The functions stand in the order in which a host calls them; the tables and the exported function
 * stand last. What begins with attn_util_ is from attn_plugin_util.h.
 */
#include <attn_plugin_util.h>

/* ---- Query: what it can do ------------------------------------------------------------------- */

/* One row is computed by one task, always in the same order: both traits hold. */
enum { TRAITS = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT };

static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16};

/* Each excess is a reason of its own: a refusal says all that is in the way. */
static const attn_util_limits limits = {
    .device_type = ATTN_DEVICE_CPU,
    .num_dtypes = sizeof dtypes / sizeof dtypes[0],
    .dtypes = dtypes,
    .kv_layout = ATTN_LAYOUT_KV_NHD,
    .max_head_dim = 65536,
    .kinds = 1 << ATTN_KIND_SOFTMAX,
    .attn_types = 1 << ATTN_TYPE_DECODER,
    .granularities = 1 << ATTN_SCALE_NONE,
    .layer_flags = ATTN_LAYER_KV_READ_ONLY,
    .modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE) |
             ATTN_MODE_BIT(ATTN_MODE_MIXED) | ATTN_MODE_BIT(ATTN_MODE_IDLE),
    .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER) | ATTN_MASK_BIT(ATTN_MASK_NONE),
    .uses = ATTN_USES_LSE | ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV | ATTN_USES_OMIT_SINK |
            ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS | ATTN_USES_SHARED_NEW_KV,
    .graph_level = ATTN_GRAPH_NEVER,
    .traits = TRAITS,
};

static attn_status query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *answer, attn_error *error)
{
    (void)type, (void)options, (void)services;
    attn_util_question ask;
    attn_status status = attn_util_read_question(problem, answer, &ask, error);
    if (status != ATTN_OK)
        return status;
    attn_util_check_question(&limits, &ask);
    ask.verdict.traits = TRAITS; /* read for a yes alone, like all that follows the reasons */
    ask.verdict.cost_hint = 4;
    attn_util_verdict_end(&ask.verdict, answer);
    return ATTN_OK;
}

/* ---- Instance: the layers -------------------------------------------------------------------- */

struct attn_instance {
    attn_util_model model;
};

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **made, attn_error *error)
{
    return attn_util_create_model(type, problems, num_problems, options, services,
                                  sizeof(attn_instance), made, error);
}

/* ---- Metadata: memory for batches within bounds, and the batch ------------------------------- */

struct attn_metadata {
    attn_util_plan plan; /* its scratch: [num_workers, max_v_head_dim] sums */
};

static attn_status metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error)
{
    const attn_util_model *model = &instance->model;
    return attn_util_size_plan(&limits, model, kind, bounds, sizeof(attn_metadata),
                               (uint64_t)model->max_v_head_dim * sizeof(float), size, error);
}

static attn_status metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error)
{
    const attn_util_model *model = &instance->model;
    return attn_util_create_plan(&limits, model, kind, bounds, sizeof(attn_metadata),
                                 (uint64_t)model->max_v_head_dim * sizeof(float), memory, metadata,
                                 error);
}

/* ---- Forward: one layer ---------------------------------------------------------------------- */

/* One call, as its tasks see it. */
typedef struct work {
    const attn_util_plan *plan;
    const attn_util_model_layer *layer;
    const attn_kv_batch *kv;
    attn_util_operands of;
} work;

static float load(const void *base, attn_dtype dtype, int64_t index)
{
    if (dtype == ATTN_F32)
        return ((const float *)base)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)base)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* bf16: to nearest, ties to even; NaN stays NaN. */
static void store(void *base, attn_dtype dtype, int64_t index, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = value != value ? bits | 0x00400000u : bits + 0x7FFFu + (bits >> 16 & 1u);
    if (dtype == ATTN_F32)
        ((float *)base)[index] = value;
    else
        ((uint16_t *)base)[index] = (uint16_t)(bits >> 16);
}

/* Key or value j. New ones are read where they are given, for not all of them need be saved. */
static const void *find(const work *w, int32_t seq, attn_util_keys keys, const attn_tensor *given,
                        const attn_tensor *cache, int64_t j, int64_t head)
{
    if (given && j >= keys.first_new)
        return attn_util_at(given, keys.new_row + j - keys.first_new, head);
    return attn_util_at4(cache, attn_util_find_page(w->kv, seq, j), j % w->kv->page_size, head);
}

/* One row, one head: task = row * heads + head. An online softmax. */
static attn_status attend(void *arg, int64_t task, uint32_t worker)
{
    const work *w = arg;
    const attn_layer_group *g = &w->layer->group;
    int64_t t = task / g->num_q_heads, head = task % g->num_q_heads;
    int64_t kv_head = head / (g->num_q_heads / g->num_kv_heads);
    attn_util_row row = w->plan->rows[t];
    attn_util_keys keys = {0, 0, 0}; /* a row of padding sees none */
    if (row.seq >= 0)
        keys = attn_util_find_keys(&w->plan->batch, w->kv, row.seq);
    int64_t q_row = attn_util_first_row(&w->plan->batch) + t, first = 0, end = keys.count;
    if (g->window_left >= 0 && row.position - g->window_left > first)
        first = row.position - g->window_left;
    if (w->plan->mask_kind == ATTN_MASK_LAYER && g->window_right >= 0 &&
        (int64_t)row.position + g->window_right + 1 < end)
        end = (int64_t)row.position + g->window_right + 1;

    const void *q = attn_util_at(w->of.q, q_row, head);
    float *sums = (float *)(void *)(w->plan->scratch + worker * w->plan->worker_bytes);
    float max = -INFINITY, total = 0;
    memset(sums, 0, (size_t)g->v_head_dim * sizeof *sums);
    for (int64_t j = first; j < end; j++) {
        const void *key = find(w, row.seq, keys, w->of.k, w->of.k_cache, j, kv_head);
        const void *value = find(w, row.seq, keys, w->of.v, w->of.v_cache, j, kv_head);
        float s = 0;
        for (int32_t d = 0; d < g->head_dim; d++)
            s += load(q, w->layer->dtype, d) * load(key, w->layer->dtype, d);
        s *= g->sm_scale;
        if (g->logit_cap > 0)
            s = g->logit_cap * tanhf(s / g->logit_cap);
        if (s == -INFINITY) /* weighs nothing; and -inf - -inf is no number */
            continue;
        float now = s > max ? s : max, kept = expf(max - now), p = expf(s - now);
        total = total * kept + p;
        for (int32_t d = 0; d < g->v_head_dim; d++)
            sums[d] = sums[d] * kept + p * load(value, w->layer->dtype, d);
        max = now;
    }
    /* A row that sees no key is 0, with an LSE of -inf. */
    for (int32_t d = 0; d < g->v_head_dim; d++)
        store(attn_util_at(w->of.out, q_row, head), w->layer->dtype, d,
              total != 0 ? sums[d] / total : 0);
    if (w->of.lse)
        *(float *)attn_util_at(w->of.lse, q_row, head) = max + logf(total);
    return ATTN_OK;
}

static attn_status forward(attn_metadata *metadata, int32_t layer_id, const attn_forward_args *args,
                           attn_stream stream, attn_error *error)
{
    (void)stream;
    const attn_util_plan *plan = &metadata->plan;
    work w = {.plan = plan, .layer = attn_util_find_layer(plan->model, layer_id)};
    if (!plan->planned)
        return attn_util_fail(error, ATTN_BAD_STATE, "no batch is planned");
    if (!w.layer)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                    "layer_id %d is unknown", layer_id);
    w.kv = &plan->kv[w.layer->group.kv_group];
    attn_status status =
        attn_util_read_operands(args, &w.layer->group, w.layer->dtype, &w.of, error);
    if (status != ATTN_OK)
        return status;
    attn_util_save_kv(&w.of, &plan->batch, w.kv, &w.layer->group);
    int64_t tasks = (int64_t)plan->batch.num_tokens * w.layer->group.num_q_heads;
    return attn_util_run_tasks(plan->model->services, tasks, attend, &w, error);
}

/* ---- Tables and the entry -------------------------------------------------------------------- */

static const char *const layouts[] = {ATTN_LAYOUT_KV_NHD};

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = attn_util_destroy_model,
    .index_forms = attn_util_block_tables,
    .metadata_size = metadata_size,
    .metadata_create = metadata_create,
    .init_forward_metadata = attn_util_init_plan,
    .metadata_destroy = attn_util_destroy_plan,
    .forward_extend = forward,
    .forward_decode = forward,
};

static const attn_backend_type type = {
    .struct_size = sizeof type,
    .name = "example_rows",
    .doc = "paged attention one row at a time, as plain as it gets; an example to copy",
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .layouts = layouts,
    .ops = &ops,
    .query = query,
    .create = create,
};

static attn_status describe(uint32_t index, const attn_backend_type **described, attn_error *error)
{
    static const attn_backend_type *const types[] = {&type};
    return attn_util_describe(types, 1, index, described, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "example",
        .version = "1.0",
        .vendor = "you",
        .doc = "a plugin built against the installed headers alone",
        .describe = describe,
    };
    return attn_util_entry(host, &mine, plugin, error);
}
