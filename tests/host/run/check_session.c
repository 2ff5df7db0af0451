/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole runs: a trace through the plugins that were built, under the identities that a report has
 * to keep whatever the scheduling.
 */
#include "tests/host/run/session_run.h"

/* A small model and the first requests of the example trace. */
static void begin(struct run *run)
{
    begin_trace(run);
    set(run, "attention.attention_backend=cpu_native");
    set(run, "model.num_layers=2");
    set(run, "model.num_q_heads=4");
    set(run, "model.num_kv_heads=2");
    set(run, "model.head_dim=16");
    set(run, "model.dtype=f32");
    set(run, "model.max_context_len=4096");
}

static char latent_path[64]; /* a config.json, while its tests run */

/* ---- Identities ------------------------------------------------------------------------------ */

/* Settings that change how the trace is run, and nothing of what must hold. */
static const char *const variants[][4] = {
    {"workload.seed=7"},
    {"workload.mixed=yes"},
    {"workload.chunked_prefill_size=0"},
    {"workload.chunked_prefill_size=7", "workload.mixed=yes"},
    {"kv_cache.page_size=1"},
    {"kv_cache.page_size=16", "kv_cache.layout=hnd"},
    {"kv_cache.prefix_cache=no"},
    {"kv_cache.max_total_tokens=288", "workload.max_running_requests=8"},
    {"workload.max_running_requests=1"},
    {"workload.clock=wall", "workload.max_requests=12"},
    {"model.layer_types=sliding full", "model.sliding_window=9"},
    {"model.layer_types=chunked full", "model.attention_chunk=16"},
    {"model.sinks=yes", "model.logit_cap=20"},
    {"model.alibi=yes", "model.v_head_dim=24"},
    {"model.dtype=bf16"},
    {"model.dtype=f16", "kv_cache.dtype=fp8_e4m3", "kv_cache.k_scale=0.02 0.03",
     "kv_cache.v_scale=0.05 0.01"},
    {"kv_cache.dtype=fp8_e5m2", "kv_cache.k_scale=1.5", "kv_cache.v_scale=0.7"},
    {"kv_cache.dtype=fp8_e4m3", "kv_cache.v_scale=0.05 0.01"},
    {"model.layer_types=sliding full", "model.sliding_window=9", "kv_cache.sliding.dtype=fp8_e4m3",
     "kv_cache.v_scale=0.05"},
    {"model.layer_types=sliding full", "model.sliding_window=9", "model.sliding.num_kv_heads=4",
     "model.sliding.sinks=yes"},
    {"model.layer_types=full sliding", "model.sliding_window=9", "model.num_layers=4",
     "model.num_kv_shared_layers=2"},
    {"model.tp_size=2", "model.tp_rank=1", "model.alibi=yes"},
    {"model.tp_size=4", "model.sinks=yes"},
    {"speculative.draft_tokens=3", "speculative.head_dim=48", "speculative.num_kv_heads=1",
     "speculative.kv_dtype=fp8_e4m3"},
    {"speculative.draft_tokens=4", "speculative.num_q_heads=2", "speculative.num_layers=2",
     "speculative.sliding_window=9"},
    {"attention.prefill_attention_backend=cpu_native", "attention.decode_attention_backend=other",
     "backend.other.type=cpu_native", "workload.mixed=yes"},
    {"attention.prefill_attention_backend=cpu_native", "attention.decode_attention_backend=other",
     "backend.other.type=cpu_native", "speculative.draft_tokens=3"},
};

/* The groups `first` and `first_latent` are what valgrind sees of the runs. */
LOOP_OF(first, identities_hold, 0, 2)
{
    RUN(run);
    begin(&run);
    set_list(&run, variants[_i], 4);
    keep_identities(&run);
}

/* With room for everything nothing is computed twice; with a pool that is too small for that the
 * same tokens come from prefill instead of the cache, and the identity holds. */
TEST_OF(runs, eviction_turns_hits_into_prefill)
{
    static const char *const pools[] = {"kv_cache.max_total_tokens=4000",
                                        "kv_cache.max_total_tokens=160"};
    struct run runs[2];
    for (int i = 0; i < 2; i++) {
        begin(&runs[i]);
        set(&runs[i], "workload.max_requests=30");
        set(&runs[i], "workload.max_running_requests=1");
        set(&runs[i], "kv_cache.page_size=1");
        set(&runs[i], "%s", pools[i]);
        go(&runs[i]);
        ck_assert_msg(runs[i].code == EXIT_GOOD, "%s", host_error_text(&runs[i].error));
        ck_assert_int_eq(runs[i].report.tokens.recomputed, 0);
        ck_assert_int_eq(runs[i].report.kv.leaked, 0);
    }
    int64_t fewer = runs[0].report.tokens.prefix_hit - runs[1].report.tokens.prefix_hit;
    ck_assert_int_gt(runs[1].report.tokens.prefix_hit, 0);
    ck_assert_int_gt(fewer, 0);
    ck_assert_int_eq(runs[1].report.tokens.prefill - runs[0].report.tokens.prefill, fewer);
    finish_all(runs, 2);
}

/* Some of the growing requests are thrown out, and compute again exactly the rows they had. */
TEST_OF(runs, retraction_is_counted)
{
    char path[64];
    RUN(run);
    begin(&run);
    write_growing(&run, path);
    set(&run, "kv_cache.max_total_tokens=300");
    set(&run, "kv_cache.page_size=1");
    set(&run, "workload.max_running_requests=8");
    go(&run);
    unlink(path);
    check_identities(&run, 6 * 20, 6 * 60);
    ck_assert_int_gt(run.report.tokens.recomputed, 20);
    ck_assert_int_eq(run.report.verify.rows_checked, 2 * 6 * (20 + 60));
}

/* Twelve requests that decode together: all have a prompt of two blocks; of three documents, which
 * four of them ask about each, the first two take two more blocks and the third one none. So of the
 * keys of a step the prompt is read once instead of twelve times, and each of two documents once
 * instead of four times. */
enum { ASKING = 12, OUTPUT = 9, BLOCK = 512, SCALED = 51 /* by 0.1 */ };

static void write_questions(char path[64])
{
    snprintf(path, 64, "check_session_XXXXXX");
    int descriptor = mkstemp(path);
    ck_assert_int_ge(descriptor, 0);
    FILE *file = fdopen(descriptor, "w");
    for (int i = 0; i < ASKING; i++) {
        int document = i % 3;
        fprintf(file, "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": %d, ", i,
                (document < 2 ? 4 : 2) * BLOCK + 100, OUTPUT * 10);
        if (document < 2)
            fprintf(file, "\"hash_ids\": [0, 1, %d, %d, %d]}\n", 10 + document, 20 + document,
                    100 + i);
        else
            fprintf(file, "\"hash_ids\": [0, 1, %d]}\n", 100 + i);
    }
    fclose(file);
}

/* Settings with which backends get hints of shared prefixes, or none. */
static const struct {
    const char *settings[3];
    bool hinted;
} hints[] = {
    {{NULL}, true},
    {{"workload.chunked_prefill_size=100"}, true},
    {{"model.layer_types=sliding full", "model.sliding_window=30"}, true},
    {{"model.layer_types=sliding full", "model.sliding_window=30",
      "kv_cache.hybrid_swa_memory=yes"},
     false},
    {{"kv_cache.prefix_cache=no"}, false},
    {{"speculative.draft_tokens=2"}, false},
};

LOOP_OF(runs, shared_prefixes_are_counted, 0, COUNT(hints))
{
    char path[64];
    RUN(run);
    write_questions(path);
    begin(&run);
    set(&run, "workload.trace=%s", path);
    set(&run, "workload.length_scale=0.1");
    set(&run, "workload.chunked_prefill_size=0");
    set(&run, "workload.max_running_requests=%d", ASKING);
    set(&run, "kv_cache.page_size=1");
    set(&run, "verify.rate=0.1");
    set_list(&run, hints[_i].settings, 3);
    go(&run);
    unlink(path);
    ck_assert_msg(run.code == EXIT_GOOD, "%s", host_error_text(&run.error));
    const struct report *r = &run.report;
    int64_t steps = OUTPUT - 1, prompt = 2 * SCALED, document = 2 * SCALED;
    ck_assert_int_eq(r->has_shared, hints[_i].hinted);
    ck_assert_int_eq(r->shared.rows, r->has_shared ? ASKING * steps : 0);
    ck_assert_int_eq(r->shared.saved_keys,
                     r->has_shared ? steps * (11 * prompt + 2 * 3 * document) : 0);
}

/* ---- Digest ---------------------------------------------------------------------------------- */

TEST_OF(runs, digest_does_not_depend_on_threads)
{
    static const int threads[] = {1, 2, 7};
    struct run runs[3];
    for (int i = 0; i < 3; i++) {
        begin(&runs[i]);
        set(&runs[i], "workload.num_threads=%d", threads[i]);
        go(&runs[i]);
        ck_assert_int_eq(runs[i].code, EXIT_GOOD);
        ck_assert_str_eq(runs[i].report.digest, runs[0].report.digest);
    }
    finish_all(runs, 3);
}

TEST_OF(runs, digest_depends_on_the_seed)
{
    struct run a, b;
    begin(&a);
    go(&a);
    begin(&b);
    set(&b, "workload.seed=2");
    go(&b);
    ck_assert_str_ne(a.report.digest, b.report.digest);
    finish(&a);
    finish(&b);
}

/* ---- Verification ---------------------------------------------------------------------------- */

/* One element of one value. A query at position 0 sees key 0 alone, so that row moves by the whole
 * change: 0.25, hundreds of bars in fp32, whatever the other rows do. */
struct tamper {
    int64_t request;
    int32_t layer;
    int done;
};

static void change_one_value(void *ctx, const struct batch_step *step, int32_t layer,
                             const attn_tensor *const *operands)
{
    const attn_tensor *v = operands[ATTN_ROLE_V];
    struct tamper *tamper = ctx;
    int64_t row = 0;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        if (layer == tamper->layer && sequence->request == tamper->request &&
            sequence->prefix_len == 0) {
            ((float *)v->data)[row * v->strides[0] + v->strides[1] + 3] += 0.25f;
            tamper->done++;
        }
        row += sequence->num_new;
    }
}

TEST_OF(runs, one_changed_value_fails)
{
    struct tamper tamper = {.request = 0, .layer = 1};
    RUN(run);
    begin(&run);
    go_wrong(&run, change_one_value, &tamper, "layer 1");
    ck_assert_int_eq(tamper.done, 1);
    ck_assert_double_ge(run.report.verify.max_abs_err, 0.2);
    ck_assert_ptr_nonnull(strstr(run.report.verify.first_failure, "request 0"));
}

TEST_OF(runs, nothing_is_checked_at_rate_0)
{
    RUN(run);
    begin(&run);
    set(&run, "verify.rate=0");
    go(&run);
    ck_assert_int_eq(run.code, EXIT_GOOD);
    ck_assert_int_eq(run.report.verify.rows_checked, 0);
}

/* The same through the embedding API. */
TEST_OF(runs, one_call_runs_it_all)
{
    RUN(run);
    uint32_t passed = 0;
    char *json = NULL;
    begin(&run);
    attn_status status = attnhost_run(NULL, (const char *const *)run.sets, (uint32_t)run.num_sets,
                                      &passed, &json, &run.error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&run.error));
    ck_assert_uint_eq(passed, 1);
    ck_assert_ptr_nonnull(strstr(json, "\"rows_failed\":\t0"));
    attnhost_free_text(json);
    set(&run, "attention.attention_backend=fa3");
    status = attnhost_run(NULL, (const char *const *)run.sets, (uint32_t)run.num_sets, &passed,
                          &json, &run.error.base);
    ck_assert_int_eq(status, ATTN_UNSUPPORTED);
}

/* ---- Latent attention ------------------------------------------------------------------------ */

/* DeepSeek's shape, narrow and with few heads. */
static const char latent_model[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"hidden_size\": 64,\n"
    " \"num_attention_heads\": 3, \"num_hidden_layers\": 2, \"num_key_value_heads\": 3,\n"
    " \"kv_lora_rank\": 40, \"q_lora_rank\": 96, \"qk_nope_head_dim\": 24,\n"
    " \"qk_rope_head_dim\": 12, \"v_head_dim\": 20,\n"
    " \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"mscale_all_dim\": 1.0,\n"
    "                  \"original_max_position_embeddings\": 64},\n"
    " \"max_position_embeddings\": 4096, \"torch_dtype\": \"bfloat16\"}\n";

/* The same trace with that model, from its config.json. */
static void begin_latent(struct run *run)
{
    begin_trace(run);
    set(run, "attention.attention_backend=cpu_native");
    set(run, "model.config=%s", latent_path);
}

static void write_latent_model(void)
{
    write_model(latent_model, latent_path);
}

static void remove_latent_model(void)
{
    unlink(latent_path);
}

static const char *const latent_variants[][5] = {
    {"model.dtype=bf16"},
    {"model.dtype=f32", "kv_cache.page_size=1", "workload.mixed=yes"},
    {"model.dtype=f16", "kv_cache.page_size=64", "workload.chunked_prefill_size=7"},
    {"model.dtype=f32", "kv_cache.dtype=fp8_e4m3", "kv_cache.k_scale=0.02",
     "workload.chunked_prefill_size=0"},
    {"kv_cache.dtype=fp8_e5m2", "kv_cache.k_scale=1.5", "kv_cache.v_scale=0.7",
     "kv_cache.page_size=64", "workload.mixed=yes"},
    {"kv_cache.prefix_cache=no", "workload.seed=7"},
    {"kv_cache.max_total_tokens=288", "workload.max_running_requests=8", "kv_cache.page_size=1"},
    {"attention.prefill_attention_backend=cpu_native", "attention.decode_attention_backend=other",
     "backend.other.type=cpu_native", "workload.mixed=yes"},
    {"attention.route.1=phase=decode batch=1-2 -> other", "backend.other.type=cpu_native",
     "attention.route.2=layers=1 phase=prefill -> other", "kv_cache.dtype=fp8_e4m3",
     "kv_cache.k_scale=0.03"},
    {"attention.mla_prefill=expanded", "model.dtype=bf16"},
    {"attention.mla_prefill=expanded", "model.dtype=f32", "kv_cache.page_size=1",
     "workload.mixed=yes"},
    {"attention.mla_prefill=expanded", "model.dtype=f16", "kv_cache.page_size=64",
     "workload.chunked_prefill_size=7", "workload.max_running_requests=7"},
    {"attention.mla_prefill=expanded", "kv_cache.dtype=fp8_e4m3", "kv_cache.k_scale=0.02",
     "workload.max_running_requests=1"},
    {"attention.mla_prefill=expanded", "attention.prefill_attention_backend=cpu_native",
     "attention.decode_attention_backend=other", "backend.other.type=cpu_native",
     "kv_cache.max_total_tokens=288"},
    {"attention.mla_prefill=expanded", "attention.route.1=phase=decode batch=1-2 -> other",
     "backend.other.type=cpu_native", "attention.route.2=layers=1 phase=prefill -> other",
     "workload.chunked_prefill_size=0"},
};

TEST_OF(first_latent, latents_keep_the_identities)
{
    RUN(run);
    begin_latent(&run);
    set_list(&run, latent_variants[_i], 5);
    keep_identities(&run);
}

/* Kimi K3, GLM-5.3: no head has a part with a position. */
LOOP_OF(quantised, latents_without_positions_keep_the_identities, 0, 3)
{
    static const int variants_of[] = {0, 3, 12}; /* plain, in fp8, expanded over fp8 */
    char text[sizeof latent_model];
    RUN(run);
    memcpy(text, latent_model, sizeof text);
    char *rope = strstr(text, "\"qk_rope_head_dim\": ");
    ck_assert_ptr_nonnull(rope);
    for (rope += strlen("\"qk_rope_head_dim\": "); *rope != ','; rope++)
        *rope = rope[1] == ',' ? '0' : ' ';
    remove_latent_model(); /* the fixture's */
    write_model(text, latent_path);
    begin_latent(&run);
    set_list(&run, latent_variants[variants_of[_i]], 5);
    keep_identities(&run);
}

LOOP_OF(latent, digest_of_latents_does_not_depend_on_threads, 0, 2)
{
    struct run runs[2];
    for (int i = 0; i < 2; i++) {
        begin_latent(&runs[i]);
        set(&runs[i], "attention.mla_prefill=%s", _i ? "expanded" : "absorbed");
        set(&runs[i], "workload.num_threads=%d", i + 1);
        set(&runs[i], "verify.rate=0.5");
        go(&runs[i]);
        ck_assert_int_eq(runs[i].code, EXIT_GOOD);
        ck_assert_int_gt(runs[i].report.tokens.prefix_hit, 0);
        ck_assert_str_eq(runs[i].report.digest, runs[0].report.digest);
    }
    finish_all(runs, 2);
}

/* One element of an operand's rows, in layer 1 of the step that has request 0's first ones. */
struct falsified {
    uint32_t role;
    int32_t element; /* of the row */
    int done;
};

static void falsify(void *ctx, const struct batch_step *step, int32_t layer,
                    const attn_tensor *const *operands)
{
    struct falsified *falsified = ctx;
    const attn_tensor *operand = operands[falsified->role];
    int64_t row = 0;
    int32_t count = layer == 1 ? find_first_rows(step, &row) : 0;
    for (int32_t t = 0; t < count; t++) {
        float *x = (float *)operand->data + (row + t) * operand->strides[0];
        x[falsified->element] += 2;
        falsified->done++;
    }
}

/* Any of what a layer is given, first and last element: rows of that layer fail. */
LOOP_OF(latent, a_falsified_latent_operand_fails, 0, 8)
{
    static const struct {
        uint32_t role;
        int32_t width; /* of a row */
    } operands[] = {{ATTN_ROLE_Q_NOPE, 3 * 40},
                    {ATTN_ROLE_Q_PE, 3 * 12},
                    {ATTN_ROLE_C_KV, 40},
                    {ATTN_ROLE_K_PE, 12}};
    struct falsified falsified = {
        .role = operands[_i / 2].role,
        .element = _i % 2 == 0 ? 0 : operands[_i / 2].width - 1,
    };
    RUN(run);
    begin_latent(&run);
    set(&run, "model.dtype=f32");
    go_wrong(&run, falsify, &falsified, "layer 1");
    ck_assert_int_gt(falsified.done, 4);
}

/* An expanded operand of a forward over new rows, or of one over a chunk of a prefix; or a latent
 * that such a prefill saves and a decode reads. */
struct expanded_falsified {
    uint32_t role;
    int of_prefix;
    int done;
};

static void falsify_expanded(void *ctx, const struct batch_step *step, int32_t layer,
                             const attn_tensor *const *operands)
{
    struct expanded_falsified *falsified = ctx;
    const attn_tensor *operand = operands[falsified->role];
    int of_prefix = operands[ATTN_ROLE_C_KV] == NULL;
    if (layer != 1 || step->mode != ATTN_MODE_EXTEND || of_prefix != falsified->of_prefix)
        return;
    for (int64_t row = 0; row < operand->shape[0]; row++)
        ((float *)operand->data)[row * operand->strides[0]] += 4;
    falsified->done++;
}

LOOP_OF(latent, a_falsified_expanded_operand_fails, 0, 6)
{
    static const uint32_t roles[] = {ATTN_ROLE_Q,    ATTN_ROLE_K, ATTN_ROLE_V,
                                     ATTN_ROLE_C_KV, ATTN_ROLE_K, ATTN_ROLE_V};
    struct expanded_falsified falsified = {.role = roles[_i], .of_prefix = _i > 3};
    RUN(run);
    begin_latent(&run);
    set(&run, "model.dtype=f32");
    set(&run, "attention.mla_prefill=expanded");
    go_wrong(&run, falsify_expanded, &falsified, "layer 1");
    ck_assert_int_gt(falsified.done, 0);
}

/* Element of a cache in pages of 4 where the last latent of the step's first prefix begins. */
static int64_t last_latent(const struct batch_step *step, const attn_tensor *cache)
{
    const struct scheduler_seq *sequence = &step->sequences[0];
    int32_t slot =
        step->pools[SCHEDULER_ALL].req_to_token[(int64_t)sequence->row * step->req_to_token_stride +
                                                sequence->prefix_len - 1];
    return slot / 4 * cache->strides[0] + slot % 4 * cache->strides[1];
}

/* A cache that holds something else than what was given: the latents of all later rows. */
static void spoil_the_cache(void *ctx, const struct batch_step *step, int32_t layer,
                            const attn_tensor *const *operands)
{
    const attn_tensor *cache = operands[ATTN_ROLE_LATENT_CACHE];
    int *done = ctx;
    if (layer != 0 || step->mode != ATTN_MODE_DECODE || *done)
        return;
    float *latent = (float *)cache->data + last_latent(step, cache);
    for (int d = 0; d < 40 + 12; d++)
        latent[d] = -latent[d];
    *done = 1;
}

TEST_OF(latent, a_wrong_latent_in_the_cache_fails)
{
    RUN(run);
    int done = 0;
    begin_latent(&run);
    set(&run, "model.dtype=f32");
    go_wrong(&run, spoil_the_cache, &done, "layer 0");
    ck_assert_int_eq(done, 1);
}

/* Rows of prefills wider than those of decodes, not the other way round. */
TEST_OF(latent, latents_narrower_than_values)
{
    RUN(run);
    begin(&run);
    set(&run, "attention.mla_prefill=expanded");
    set(&run, "model.num_kv_heads=4");
    set(&run, "model.kv_lora_rank=9");
    set(&run, "model.qk_rope_head_dim=6");
    set(&run, "model.qk_nope_head_dim=10");
    set(&run, "model.v_head_dim=24");
    keep_identities(&run);
}

static const struct {
    const char *sets[2];
    int code;
    const char *message;
} latent_refusals[] = {
    {{"kv_cache.dtype=fp8_e4m3", "kv_cache.k_scale=0.1 0.2 0.3"}, EXIT_USAGE, "no heads"},
    {{"kv_cache.dtype=fp8_e4m3", "kv_cache.latent_layout=latent_fp8"},
     EXIT_USAGE,
     "kv_cache.latent_layout: kv_lora_rank 40 in mla.latent_fp8/1: accepted multiples of 128"},
    {{"attention.attention_backend=example_rows"}, EXIT_USAGE, "example_rows"},
    {{"attention.attention_backend=triton_like"}, EXIT_NO_BACKEND, "triton_like"},
};

LOOP_OF(latent, latents_are_refused_with_a_reason, 0, COUNT(latent_refusals))
{
    RUN(run);
    begin_latent(&run);
    set_list(&run, latent_refusals[_i].sets, 2);
    go_refused(&run, latent_refusals[_i].code, latent_refusals[_i].message);
}

/* ---- Quantised latents ----------------------------------------------------------------------- */

enum { FP8_LORA = 256, FP8_ROPE = 12 };

/* The same model with a latent of two blocks that can be packed: codes, two scales, rope. */
static void write_packed_model(void)
{
    const char *rank = strstr(latent_model, "40,");
    char text[1024];
    snprintf(text, sizeof text, "%.*s%d%s", (int)(rank - latent_model), latent_model, FP8_LORA,
             rank + 2);
    write_model(text, latent_path);
}

static void begin_packed(struct run *run)
{
    begin_latent(run);
    set(run, "kv_cache.dtype=fp8_e4m3");
    set(run, "kv_cache.latent_layout=latent_fp8");
}

static const char *const packed_variants[][4] = {
    {"model.dtype=f32", "kv_cache.page_size=1", "workload.mixed=yes", "workload.seed=7"},
    {"model.dtype=f16", "kv_cache.page_size=64", "workload.chunked_prefill_size=7"},
    {"kv_cache.max_total_tokens=288", "workload.max_running_requests=8", "kv_cache.page_size=1"},
    {"attention.prefill_attention_backend=cpu_native", "attention.decode_attention_backend=other",
     "backend.other.type=cpu_native", "kv_cache.prefix_cache=no"},
    {"attention.route.1=phase=decode batch=1-2 -> other", "backend.other.type=cpu_native",
     "attention.route.2=layers=1 phase=prefill -> other"},
    {"attention.mla_prefill=expanded", "model.dtype=f32", "workload.chunked_prefill_size=0"},
};

LOOP_OF(quantised, packed_latents_keep_the_identities, 0, COUNT(packed_variants))
{
    RUN(run);
    begin_packed(&run);
    set(&run, "verify.rate=0.2");
    set_list(&run, packed_variants[_i], 4);
    keep_identities(&run);
}

/* Scales of the configuration are not theirs. */
TEST_OF(quantised, packed_latents_have_their_own_scales)
{
    struct run runs[3];
    for (int i = 0; i < 3; i++) {
        begin_packed(&runs[i]);
        set(&runs[i], "verify.rate=0.2");
        if (i > 0)
            set(&runs[i], "kv_cache.k_scale=0.7");
        if (i > 1)
            set(&runs[i], "kv_cache.latent_layout=latent");
        go(&runs[i]);
        ck_assert_msg(runs[i].code == EXIT_GOOD, "%s", host_error_text(&runs[i].error));
    }
    ck_assert_str_eq(runs[0].report.digest, runs[1].report.digest);
    ck_assert_str_ne(runs[0].report.digest, runs[2].report.digest);
    finish_all(runs, 3);
}

/* One bit of a row of the cache, in layer 0, before the first decode: a sign, or of a scale the
 * largest bit after the point. */
static const struct fp8_bit {
    const char *layout;
    int32_t width; /* bytes of a row */
    int32_t byte;
    uint8_t mask;
    uint8_t least; /* of the other bits: 2^-3 in e4m3, 2^-5 in bf16 */
} fp8_bits[] = {
    {"latent", 268, 0, 0x80, 0x20},       {"latent", 268, 267, 0x80, 0x20},
    {"latent_fp8", 288, 255, 0x80, 0x20}, {"latent_fp8", 288, 258, 0x40, 0},
    {"latent_fp8", 288, 262, 0x40, 0},    {"latent_fp8", 288, 287, 0x80, 0x3d},
};

struct flipped {
    const struct fp8_bit *bit;
    int done;
};

static void flip(void *ctx, const struct batch_step *step, int32_t layer,
                 const attn_tensor *const *operands)
{
    const attn_tensor *cache = operands[ATTN_ROLE_LATENT_CACHE];
    struct flipped *flipped = ctx;
    if (layer != 0 || step->mode != ATTN_MODE_DECODE || flipped->done)
        return;
    ck_assert_uint_eq(attn_dtype_size(cache->dtype), 1);
    ck_assert_int_eq(cache->shape[2], flipped->bit->width);
    uint8_t *byte = (uint8_t *)cache->data + last_latent(step, cache) + flipped->bit->byte;
    /* The sign of an element near 0 would be within the row's bar. */
    ck_assert_msg((*byte & ~flipped->bit->mask) >= flipped->bit->least,
                  "byte 0x%02x: workload.seed is to be one of a larger element", *byte);
    *byte ^= flipped->bit->mask;
    flipped->done = 1;
}

LOOP_OF(quantised, one_bit_of_a_quantised_latent_fails, 0, COUNT(fp8_bits))
{
    struct flipped flipped = {.bit = &fp8_bits[_i]};
    RUN(run);
    begin_packed(&run);
    set(&run, "kv_cache.latent_layout=%s", flipped.bit->layout);
    set(&run, "kv_cache.k_scale=0.02");
    set(&run, "model.dtype=f32");
    set(&run, "workload.max_requests=2");
    set(&run, "workload.seed=3"); /* flip() asserts that its elements are not near 0 */
    go_wrong(&run, flip, &flipped, "layer 0");
    ck_assert_int_eq(flipped.done, 1);
}

/* The last element of what rows are packed from. */
LOOP_OF(quantised, a_falsified_packed_operand_fails, 0, 2)
{
    static const struct falsified operands[] = {{ATTN_ROLE_C_KV, FP8_LORA - 1, 0},
                                                {ATTN_ROLE_K_PE, FP8_ROPE - 1, 0}};
    struct falsified falsified = operands[_i];
    RUN(run);
    begin_packed(&run);
    set(&run, "model.dtype=f32");
    set(&run, "workload.max_requests=2");
    go_wrong(&run, falsify, &falsified, "layer 1");
    ck_assert_int_gt(falsified.done, 4);
}

LOOP_OF(quantised, packed_latents_are_fp8_e4m3, 0, 2)
{
    RUN(run);
    begin_packed(&run);
    set(&run, "kv_cache.dtype=%s", _i ? "fp8_e5m2" : "auto");
    go_refused(&run, EXIT_USAGE, _i ? "kv_dtype fp8_e5m2" : "kv_dtype bf16");
    ck_assert_ptr_nonnull(strstr(host_error_text(&run.error), "kv_cache.latent_layout"));
}

/* ---- Drafts ---------------------------------------------------------------------------------- */

/* Chains and trees, in pages of one slot and of more, where heads come first and where not, with
 * windows and distances that depend on where a row stands, in a pool that is too small. */
static const char *const drafted[][4] = {
    {"speculative.draft_tokens=4", "speculative.acceptance=0.6"},
    {"speculative.draft_tokens=5", "speculative.acceptance=1", "kv_cache.page_size=1"},
    {"speculative.draft_tokens=7", "speculative.topk=3", "kv_cache.layout=hnd"},
    {"speculative.draft_tokens=9", "speculative.topk=2", "model.sliding_window=5",
     "model.layer_types=sliding full"},
    {"speculative.draft_tokens=12", "speculative.topk=4", "model.alibi=yes", "speculative.seed=9"},
    {"speculative.draft_tokens=8", "speculative.topk=7", "model.layer_types=chunked full",
     "model.attention_chunk=16"},
    {"speculative.draft_tokens=6", "speculative.topk=2", "kv_cache.max_total_tokens=288",
     "workload.max_running_requests=8"},
    {"speculative.draft_tokens=4", "speculative.acceptance=0", "workload.chunked_prefill_size=0"},
};

/* With verify.rate 1: those of the prompts and those that decode computed in each of two layers,
 * the drafts that were turned down among them; those of the draft model's one. */
static void all_rows_are_checked(const struct report *r)
{
    int64_t prompts = r->tokens.prefill - r->tokens.recomputed;
    int64_t wasted = r->drafts.drafted - r->drafts.accepted;
    ck_assert_int_eq(r->verify.rows_checked,
                     2 * (prompts + r->tokens.decode + wasted) + prompts + r->drafts.draft_extend);
}

/* What was generated is what a run without drafts generates: of chains to the bit, on a backend
 * whose rows do not depend on their batch. The keys of a tree's row have others between them, so
 * that sums may be in another order. */
LOOP_OF(drafts, drafts_change_nothing_that_is_generated, 0, COUNT(drafted))
{
    const char *const *sets = drafted[_i];
    struct run runs[2];
    for (int i = 0; i < 2; i++) {
        begin(&runs[i]);
        set(&runs[i], "workload.length_scale=0.05");
        set(&runs[i], "kv_cache.prefix_cache=no");
        for (int s = 0; s < 4 && sets[s]; s++)
            if (i == 1 || strncmp(sets[s], "speculative", strlen("speculative")) != 0)
                set(&runs[i], "%s", sets[s]);
        go(&runs[i]);
        ck_assert_msg(runs[i].code == EXIT_GOOD, "%s %s", host_error_text(&runs[i].error),
                      runs[i].report.verify.first_failure);
    }
    const struct report *plain = &runs[0].report, *r = &runs[1].report;
    bool chain = sets[1] == NULL || strncmp(sets[1], "speculative.topk", 16) != 0;
    ck_assert_msg(!chain || strcmp(plain->digest, r->digest) == 0, "%s", r->digest);
    ck_assert_int_eq(plain->tokens.decode, r->tokens.decode);
    ck_assert_int_eq(r->drafts.verifications + r->drafts.accepted, r->tokens.decode);
    ck_assert_int_gt(r->drafts.draft_extend, 0);
    ck_assert_int_eq(r->kv.leaked, 0);
    all_rows_are_checked(r);
    finish_all(runs, 2);
}

/* By phase, as speculative_attention_mode says, or by routes: the other backend has all rows of
 * verifications and of the draft model, or none, or each of two has its own. */
LOOP_OF(drafts, drafts_come_to_the_backend_that_is_named, 0, 3)
{
    static const char *const sets[][4] = {
        {"attention.prefill_attention_backend=cpu_native", "attention.decode_attention_backend=one",
         "attention.speculative_attention_mode=decode"},
        {"attention.prefill_attention_backend=cpu_native",
         "attention.decode_attention_backend=one"},
        {"attention.attention_backend=cpu_native", "attention.route.1=phase=verify -> one",
         "attention.route.2=phase=draft -> two"},
    };
    RUN(run);
    begin(&run);
    set(&run, "workload.length_scale=0.05");
    set(&run, "speculative.draft_tokens=5");
    set(&run, "speculative.topk=2");
    set(&run, "backend.one.type=cpu_native");
    set(&run, "backend.two.type=cpu_native");
    set_list(&run, sets[_i], 4);
    go(&run);
    const struct report *r = &run.report;
    ck_assert_msg(run.code == EXIT_GOOD, "%s", host_error_text(&run.error));
    int64_t verified = 2 * 5 * r->drafts.verifications, extended = r->drafts.draft_extend;
    ck_assert_int_gt(extended, 0);
    ck_assert_int_eq(rows_of(r, "one"), _i == 0 ? verified + extended : _i == 1 ? 0 : verified);
    ck_assert_int_eq(rows_of(r, "two"), _i == 2 ? extended : -1);
}

/* A wrong draft that is read later on fails the run: here all keys of a verification are one row
 * too low. */
static void shift_keys(void *ctx, const struct batch_step *step, int32_t layer,
                       const attn_tensor *const *operands)
{
    const attn_tensor *k = operands[ATTN_ROLE_K];
    (void)ctx, (void)layer;
    if (step->mode != ATTN_MODE_TARGET_VERIFY || !k)
        return;
    size_t row = (size_t)k->strides[0] * attn_dtype_size(k->dtype);
    memmove((char *)k->data + row, k->data, row * (size_t)(k->shape[0] - 1));
}

LOOP_OF(drafts, a_wrong_key_of_a_draft_fails, 0, 2)
{
    RUN(run);
    begin(&run);
    set(&run, "speculative.draft_tokens=6");
    set(&run, "speculative.topk=%d", 1 + _i);
    go_wrong(&run, shift_keys, NULL, "request ");
}

/* Where every draft is turned down nothing that stays shows what they see: they are judged
 * themselves. In a chain all that are before a draft are above it. */
LOOP_OF(drafts, a_draft_that_sees_its_siblings_fails, 0, 4)
{
    static const char *const backends[] = {"good", "siblings_seen"};
    bool wrong = _i / 2, tree = _i % 2;
    RUN(run);
    begin(&run);
    set(&run, "plugins.path=%s/zoo.so",
        environment("ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs"));
    set(&run, "attention.attention_backend=%s", backends[wrong]);
    set(&run, "speculative.draft_tokens=7");
    set(&run, "speculative.topk=%d", 1 + tree);
    set(&run, "speculative.acceptance=0");
    set(&run, "workload.max_requests=6");
    go(&run);
    const struct report *r = &run.report;
    ck_assert_msg(run.code == (wrong && tree ? EXIT_CHECK_FAILED : EXIT_GOOD), "exit %d: %s %s",
                  run.code, host_error_text(&run.error), r->verify.first_failure);
    ck_assert_int_eq(r->drafts.accepted, 0);
    ck_assert_int_gt(r->drafts.drafted, 0);
    all_rows_are_checked(r);
    if (wrong && tree) {
        ck_assert_int_gt(r->verify.rows_failed, r->drafts.drafted / 4);
        ck_assert_ptr_nonnull(strstr(r->verify.first_failure, ", rejected draft "));
    }
}

/* What is generated and its digest are not those of the drafts that were turned down, nor is the
 * sample of other rows. */
TEST_OF(drafts, rejected_drafts_are_in_no_digest)
{
    static const char *const rates[] = {"0", "1"};
    struct run runs[2];
    for (int i = 0; i < 2; i++) {
        begin(&runs[i]);
        set(&runs[i], "verify.rate=0.3");
        set(&runs[i], "kv_cache.prefix_cache=no");
        set(&runs[i], "speculative.draft_tokens=5");
        set(&runs[i], "speculative.acceptance=%s", rates[i]);
        go(&runs[i]);
        ck_assert_int_eq(runs[i].code, EXIT_GOOD);
    }
    ck_assert_str_eq(runs[0].report.digest, runs[1].report.digest);
    ck_assert_str_eq(runs[0].report.drafts.digest, runs[1].report.drafts.digest);
    ck_assert_int_gt(runs[0].report.verify.rows_checked, runs[1].report.verify.rows_checked);
    finish_all(runs, 2);
}

/* ---- Cross attention ------------------------------------------------------------------------- */

enum { HEARD = 200 }; /* keys of an encoder, as long as a context */

/* Settings next to which a decoder reads an encoder; how many layers of each there are. */
static const struct {
    const char *sets[4];
    int32_t decoders, crossing, encoders; /* layers; of the decoder's those that read */
    int32_t room, together; /* requests that the pool has room for, and that run together */
} crossings[] = {
    {{"model.layer_types=full cross encoder"}, 2, 1, 1, 4, 4},
    {{"model.layer_types=full cross encoder", "workload.mixed=yes",
      "workload.chunked_prefill_size=7"},
     2,
     1,
     1,
     4,
     2},
    {{"model.layer_types=cross full encoder", "kv_cache.page_size=16", "kv_cache.layout=hnd"},
     2,
     1,
     1,
     4,
     4},
    {{"model.layer_types=full cross cross", "kv_cache.max_encoder_tokens=403",
      "workload.chunked_prefill_size=0"},
     3,
     2,
     0,
     2,
     2},
    {{"model.layer_types=chunked full cross", "model.attention_chunk=16",
      "kv_cache.hybrid_swa_memory=yes"},
     3,
     1,
     0,
     4,
     4},
    {{"model.layer_types=full cross encoder", "model.dtype=f16", "kv_cache.dtype=fp8_e4m3",
      "kv_cache.k_scale=0.02 0.03"},
     2,
     1,
     1,
     4,
     4},
};

static void begin_crossing(struct run *run)
{
    begin(run);
    set(run, "model.num_layers=3");
    set(run, "model.max_context_len=%d", HEARD);
    set(run, "kv_cache.v_scale=0.05 0.01");
    set(run, "verify.rate=0.5");
}

/* Each encoder runs once, and its keys are there from its request's start to its end. */
LOOP_OF(cross, encoders_are_read_by_decoders, 0, COUNT(crossings))
{
    RUN(run);
    begin_crossing(&run);
    set_list(&run, crossings[_i].sets, 4);
    keep_identities(&run);
    const struct report *r = &run.report;
    const struct report_pool *pool = &r->kv.pools[r->kv.num_pools - 1];
    int32_t page_size = strstr(run.sets[run.num_sets - 1], "hnd") ? 16 : 4;
    int64_t each = (HEARD + page_size - 1) / page_size * page_size;
    int64_t rows = (r->tokens.prefill + r->tokens.decode) * crossings[_i].decoders +
                   r->tokens.encoded * crossings[_i].encoders;
    ck_assert_int_eq(r->tokens.prefix_hit, 0);
    ck_assert_int_eq(r->tokens.encoded, crossings[_i].encoders > 0 ? 12 * HEARD : 0);
    ck_assert_int_eq(r->paths[0].rows, rows);
    ck_assert_str_eq(pool->holds, "encoder");
    ck_assert_int_eq(pool->capacity, crossings[_i].room * each);
    ck_assert_int_eq(pool->peak, crossings[_i].together * each);
    ck_assert_int_eq(pool->held, pool->peak);
    ck_assert_int_eq(pool->layers, crossings[_i].crossing);
}

/* Six requests of which some are thrown out are encoded once more, and end all the same. */
TEST_OF(cross, retracted_requests_are_encoded_again)
{
    char path[64];
    RUN(run);
    begin_crossing(&run);
    set(&run, "model.layer_types=full cross encoder");
    write_growing(&run, path);
    set(&run, "kv_cache.max_total_tokens=300");
    set(&run, "workload.max_running_requests=8");
    go(&run);
    unlink(path);
    check_identities(&run, 6 * 20, 6 * 60);
    ck_assert_int_gt(run.report.tokens.recomputed, 20);
    ck_assert_int_gt(run.report.tokens.encoded, 6 * HEARD);
    ck_assert_int_eq(run.report.tokens.encoded % HEARD, 0);
}

/* The first value of the first encoder, in a layer of cross attention. */
static void change_encoded_value(void *ctx, const struct batch_step *step, int32_t layer,
                                 const attn_tensor *const *operands)
{
    const attn_tensor *v = operands[ATTN_ROLE_V];
    int *done = ctx;
    (void)step;
    if (layer != 1 || !v || *done)
        return;
    for (int64_t d = 0; d < v->strides[0]; d++)
        ((float *)v->data)[d] += 8;
    *done = 1;
}

TEST_OF(cross, a_changed_value_of_an_encoder_fails)
{
    RUN(run);
    int done = 0;
    begin_crossing(&run);
    set(&run, "model.layer_types=full cross encoder");
    go_wrong(&run, change_encoded_value, &done, "layer 1");
    ck_assert_int_eq(done, 1);
    ck_assert_ptr_nonnull(strstr(run.report.verify.first_failure, "request 0"));
}

/* ---- Refusals -------------------------------------------------------------------------------- */

/* What is asked for, the exit code, and a part of the message. */
static const struct {
    const char *sets[3];
    int code;
    const char *message;
} refusals[] = {
    {{"workload.trace="}, EXIT_USAGE, "workload.trace"},
    {{"workload.trace=/nonexistent/trace.jsonl"}, EXIT_USAGE, "/nonexistent/trace.jsonl"},
    {{"kv_cache.max_total_tokens=16"}, EXIT_USAGE, "16"},
    {{"kv_cache.max_total_tokens=3"}, EXIT_USAGE, "kv_cache.max_total_tokens"},
    {{"kv_cache.max_total_tokens=8589934592"}, EXIT_USAGE, "kv_cache.max_total_tokens"},
    {{"kv_cache.mem_fraction=1e-15"}, EXIT_USAGE, "kv_cache.mem_fraction"},
    {{"model.max_context_len=8"}, EXIT_USAGE, "8"},
    {{"attention.attention_backend=cpu_natve"}, EXIT_USAGE, "cpu_native"},
    {{"attention.attention_backend=fa3"}, EXIT_NO_BACKEND, "fa3"},
    {{"kv_cache.dtype=fp8_e4m3", "kv_cache.k_scale=1 2 3"}, EXIT_USAGE, "kv_cache.k_scale"},
    {{"plugins.critical=nowhere"}, EXIT_PLUGIN, "nowhere"},
    {{"platform.simulate=sm90"}, EXIT_USAGE, "platform.simulate"},
    {{"platform.device=cuda:15"}, EXIT_NO_BACKEND, "platform.device"},
    {{"model.attn_type=encoder_only", "workload.chunked_prefill_size=16"},
     EXIT_USAGE,
     "which is not cut: accepted up to chunked_prefill_size = 16"},
    {{"model.attn_type=encoder_only", "workload.chunked_prefill_size=0",
      "speculative.draft_tokens=4"},
     EXIT_USAGE,
     "encoder_only layers, which cannot verify drafts"},
    {{"model.layer_types=full cross", "kv_cache.max_encoder_tokens=4095"},
     EXIT_USAGE,
     "4095 tokens: accepted 4096.."},
    {{"model.layer_types=sliding cross", "model.sliding_window=9"},
     EXIT_NO_BACKEND,
     "a sliding window and cross attention in one model are not served"},
    {{"model.layer_types=full cross", "speculative.draft_tokens=4"},
     EXIT_USAGE,
     "cross layers, which cannot verify drafts"},
    {{"speculative.draft_tokens=1"}, EXIT_USAGE, "accepted 0 for no drafts, or 2..64"},
    {{"speculative.draft_tokens=4", "speculative.topk=4"}, EXIT_USAGE, "accepted 1..3"},
    {{"speculative.draft_tokens=4", "workload.mixed=yes"}, EXIT_USAGE, "steps of their own"},
    {{"speculative.draft_tokens=4", "attention.speculative_eagle_topk=2"},
     EXIT_USAGE,
     "2 next to speculative.topk = 1"},
    {{"attention.speculative_eagle_topk=2"}, EXIT_USAGE, "without speculative.draft_tokens"},
};

LOOP_OF(refused, refused_with_a_reason, 0, COUNT(refusals))
{
    RUN(run);
    begin(&run);
    set_list(&run, refusals[_i].sets, 3);
    go_refused(&run, refusals[_i].code, refusals[_i].message);
}

ENTER_TEST(runs, identities_hold, 2, COUNT(variants));
ENTER_TEST(latent, latents_keep_the_identities, 1, COUNT(latent_variants));
GROUP(first_latent, .set_up = write_latent_model, .tear_down = remove_latent_model);
GROUP(runs, .tags = "long");
GROUP(latent, .tags = "long", .set_up = write_latent_model, .tear_down = remove_latent_model);
GROUP(quantised, .tags = "long", .set_up = write_packed_model, .tear_down = remove_latent_model);
GROUP(drafts, .tags = "long");
TESTS("session");
