/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * example_cpp: the backend of examples/plugin in C++17, which has no designated initialisers:
 * tables are filled by functions at compile time, and elements are a template's parameter. It links
 * no C++ library, and nothing in it throws: an exception must not leave a plugin.
 *
 * The functions stand in the order in which a host calls them; the tables and the exported function
 * stand last. What begins with attn_util_ is from attn_plugin_util.h.
 */
#include <attn_plugin_util.h>

#include <cmath>

/* Opaque to the host; the util's functions know what they begin with. */
struct attn_instance {
    attn_util_model model;
};

struct attn_metadata {
    attn_util_plan plan; /* its scratch: [num_workers, max_v_head_dim] sums */
};

namespace
{

/* ---- What it can do -------------------------------------------------------------------------- */

constexpr attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16};
constexpr uint32_t traits = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT;

/* Each excess is a reason of its own: a refusal says all that is in the way. */
constexpr attn_util_limits limits = [] {
    attn_util_limits l{};
    l.device_type = ATTN_DEVICE_CPU;
    l.num_dtypes = sizeof dtypes / sizeof dtypes[0];
    l.dtypes = dtypes;
    l.kv_layout = ATTN_LAYOUT_KV_NHD;
    l.max_head_dim = 65536;
    l.kinds = 1 << ATTN_KIND_SOFTMAX;
    l.attn_types = 1 << ATTN_TYPE_DECODER;
    l.granularities = 1 << ATTN_SCALE_NONE;
    l.layer_flags = ATTN_LAYER_KV_READ_ONLY;
    l.modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE) |
              ATTN_MODE_BIT(ATTN_MODE_MIXED) | ATTN_MODE_BIT(ATTN_MODE_IDLE);
    l.mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER) | ATTN_MASK_BIT(ATTN_MASK_NONE);
    l.uses = ATTN_USES_LSE | ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV | ATTN_USES_OMIT_SINK |
             ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS | ATTN_USES_SHARED_NEW_KV;
    l.graph_level = ATTN_GRAPH_NEVER;
    l.traits = traits;
    return l;
}();

/* ---- One row of one head --------------------------------------------------------------------- */

/* bf16 in memory: rounded to nearest, ties to even; NaN stays NaN. */
struct bf16 {
    uint16_t high;

    operator float() const
    {
        const uint32_t bits = static_cast<uint32_t>(high) << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }

    void operator=(float value)
    {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits = std::isnan(value) ? bits | 0x00400000u : bits + 0x7FFFu + (bits >> 16 & 1u);
        high = static_cast<uint16_t>(bits >> 16);
    }
};

/* One call of forward, as its tasks see it. */
struct work {
    const attn_util_plan &plan;
    const attn_util_model_layer &layer;
    const attn_kv_batch &kv;
    attn_util_operands of;
};

/* What a row sees of its sequence: keys [first, end). */
struct view {
    attn_util_row row;
    attn_util_keys keys;
    int64_t first, end;

    view(const work &w, int64_t t) : row(w.plan.rows[t]), keys{}, first(0), end(0)
    {
        const attn_layer_group &g = w.layer.group;
        if (row.seq < 0)
            return; /* padding */
        keys = attn_util_find_keys(&w.plan.batch, &w.kv, row.seq);
        end = keys.count;
        const int64_t last = static_cast<int64_t>(row.position) + g.window_right;
        if (g.window_left >= 0 && row.position > g.window_left)
            first = row.position - g.window_left;
        if (w.plan.mask_kind == ATTN_MASK_LAYER && g.window_right >= 0 && last < end)
            end = last + 1;
    }

    /* Key or value j. New ones are read where they are given: not all of them need be saved. */
    template <typename Element>
    const Element *find(const work &w, const attn_tensor *given, const attn_tensor *cache,
                        int64_t j, int64_t head) const
    {
        const void *at = given && j >= keys.first_new
                             ? attn_util_at(given, keys.new_row + j - keys.first_new, head)
                             : attn_util_at4(cache, attn_util_find_page(&w.kv, row.seq, j),
                                             j % w.kv.page_size, head);
        return static_cast<const Element *>(at);
    }
};

/* An online softmax of row t and head h, with sums in `sums`. */
template <typename Element> void attend_row(const work &w, int64_t t, int64_t h, float *sums)
{
    const attn_layer_group &g = w.layer.group;
    const int64_t kv_head = h / (g.num_q_heads / g.num_kv_heads);
    const int64_t row = attn_util_first_row(&w.plan.batch) + t;
    const view seen(w, t);
    const auto *q = static_cast<const Element *>(attn_util_at(w.of.q, row, h));
    auto *out = static_cast<Element *>(attn_util_at(w.of.out, row, h));
    float max = -INFINITY, total = 0;
    for (int32_t d = 0; d < g.v_head_dim; d++)
        sums[d] = 0;
    for (int64_t j = seen.first; j < seen.end; j++) {
        const auto *key = seen.find<Element>(w, w.of.k, w.of.k_cache, j, kv_head);
        const auto *value = seen.find<Element>(w, w.of.v, w.of.v_cache, j, kv_head);
        float s = 0;
        for (int32_t d = 0; d < g.head_dim; d++)
            s += q[d] * key[d];
        s *= g.sm_scale;
        if (g.logit_cap > 0)
            s = g.logit_cap * std::tanh(s / g.logit_cap);
        if (s == -INFINITY) // weighs nothing
            continue;
        const float now = s > max ? s : max, kept = std::exp(max - now), p = std::exp(s - now);
        total = total * kept + p;
        for (int32_t d = 0; d < g.v_head_dim; d++)
            sums[d] = sums[d] * kept + p * value[d];
        max = now;
    }
    /* A row that sees no key is 0, with an LSE of -inf. */
    for (int32_t d = 0; d < g.v_head_dim; d++)
        out[d] = total != 0 ? sums[d] / total : 0.0f;
    if (w.of.lse)
        *static_cast<float *>(attn_util_at(w.of.lse, row, h)) = max + std::log(total);
}

} // namespace

/* ---- What the host calls --------------------------------------------------------------------- */

extern "C" {

static attn_status query(const attn_backend_type *, const attn_options *, const attn_services *,
                         const attn_problem *problem, attn_verdict *answer, attn_error *error)
{
    attn_util_question ask;
    const attn_status status = attn_util_read_question(problem, answer, &ask, error);
    if (status != ATTN_OK)
        return status;
    attn_util_check_question(&limits, &ask);
    ask.verdict.traits = traits; /* read for a yes alone, like all that follows the reasons */
    ask.verdict.cost_hint = 4;
    attn_util_verdict_end(&ask.verdict, answer);
    return ATTN_OK;
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **made, attn_error *error)
{
    return attn_util_create_model(type, problems, num_problems, options, services,
                                  sizeof(attn_instance), made, error);
}

static uint64_t worker_bytes(const attn_instance *instance)
{
    return static_cast<uint64_t>(instance->model.max_v_head_dim) * sizeof(float);
}

static attn_status metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error)
{
    return attn_util_size_plan(&limits, &instance->model, kind, bounds, sizeof(attn_metadata),
                               worker_bytes(instance), size, error);
}

static attn_status metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error)
{
    return attn_util_create_plan(&limits, &instance->model, kind, bounds, sizeof(attn_metadata),
                                 worker_bytes(instance), memory, metadata, error);
}

/* One task is one row and head. */
static attn_status attend(void *arg, int64_t task, uint32_t worker)
{
    const work &w = *static_cast<const work *>(arg);
    const int64_t heads = w.layer.group.num_q_heads;
    void *sums = w.plan.scratch + worker * w.plan.worker_bytes;
    const auto row = w.layer.dtype == ATTN_F32 ? attend_row<float> : attend_row<bf16>;
    row(w, task / heads, task % heads, static_cast<float *>(sums));
    return ATTN_OK;
}

static attn_status forward(attn_metadata *metadata, int32_t layer_id, const attn_forward_args *args,
                           attn_stream, attn_error *error)
{
    const attn_util_plan &plan = metadata->plan;
    const attn_util_model_layer *layer = attn_util_find_layer(plan.model, layer_id);
    if (!plan.planned)
        return attn_util_fail(error, ATTN_BAD_STATE, "no batch is planned");
    if (!layer)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                    "layer_id %d is unknown", layer_id);
    work w{plan, *layer, plan.kv[layer->group.kv_group], {}};
    const attn_status status =
        attn_util_read_operands(args, &layer->group, layer->dtype, &w.of, error);
    if (status != ATTN_OK)
        return status;
    attn_util_save_kv(&w.of, &plan.batch, &w.kv, &layer->group);
    const int64_t tasks = static_cast<int64_t>(plan.batch.num_tokens) * layer->group.num_q_heads;
    return attn_util_run_tasks(plan.model->services, tasks, attend, &w, error);
}

/* ---- Tables and the entry -------------------------------------------------------------------- */

static constexpr attn_backend_ops ops = [] {
    attn_backend_ops o{};
    o.struct_size = sizeof o;
    o.destroy = attn_util_destroy_model;
    o.index_forms = attn_util_block_tables;
    o.metadata_size = metadata_size;
    o.metadata_create = metadata_create;
    o.init_forward_metadata = attn_util_init_plan;
    o.metadata_destroy = attn_util_destroy_plan;
    o.forward_extend = forward;
    o.forward_decode = forward;
    return o;
}();

static constexpr const char *layouts[] = {ATTN_LAYOUT_KV_NHD};

static constexpr attn_backend_type type = [] {
    attn_backend_type t{};
    t.struct_size = sizeof t;
    t.name = "example_cpp";
    t.doc = "paged attention one row at a time, in C++; an example to copy";
    t.num_layouts = 1;
    t.layouts = layouts;
    t.ops = &ops;
    t.query = query;
    t.create = create;
    return t;
}();

static attn_status describe(uint32_t index, const attn_backend_type **described, attn_error *error)
{
    static constexpr const attn_backend_type *types[] = {&type};
    return attn_util_describe(types, 1, index, described, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    attn_plugin mine{};
    mine.num_backends = 1;
    mine.name = "example_in_cpp";
    mine.version = "1.0";
    mine.vendor = "you";
    mine.doc = "a C++ plugin built against the installed headers alone";
    mine.describe = describe;
    return attn_util_entry(host, &mine, plugin, error);
}

} // extern "C"
