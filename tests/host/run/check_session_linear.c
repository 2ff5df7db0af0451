/* SPDX-License-Identifier: Apache-2.0
 *
 * check_session_linear.c: whole runs of models with recurrent layers: states in slots, prefixes
 * that are shared with their states, rows judged by replay.
 */
#include "tests/host/run/session_run.h"

#include <math.h>

#include "host/base/dtype.h"

/* ---- Models ---------------------------------------------------------------------------------- */

/* The families' shapes in miniature: delta net with attention, Mamba2 and attention in each block,
 * Kimi's delta attention with latent attention, Mamba2 alone. */
static const char *const models[] = {
    QWEN3_NEXT_MODEL,
    FALCON_H1_MODEL,
    "{\"architectures\": [\"KimiLinearForCausalLM\"], \"num_attention_heads\": 2,\n"
    " \"num_hidden_layers\": 3, \"kv_lora_rank\": 128, \"qk_nope_head_dim\": 24,\n"
    " \"qk_rope_head_dim\": 12, \"v_head_dim\": 20, \"linear_attn_config\":\n"
    " {\"full_attn_layers\": [2], \"kda_layers\": [1, 3], \"head_dim\": 16, \"num_heads\": 2,\n"
    "  \"short_conv_kernel_size\": 4}, \"model_max_length\": 4096, \"dtype\": \"bfloat16\"}\n",
    MAMBA2_MODEL,
};
enum { QWEN3_NEXT, FALCON_H1, KIMI_LINEAR, MAMBA2, NUM_MODELS };

/* Of each the same with states in bf16, and with keys of 128 elements, as published models have. */
static char paths[NUM_MODELS][64], bf16_paths[NUM_MODELS][64], large_paths[NUM_MODELS][64];

static void write_bf16_models(int m)
{
    static const char *const keys[] = {"linear_key_head_dim", "mamba_d_state", "head_dim",
                                       "state_size"};
    char text[2048], large[2048];
    snprintf(text, sizeof text, "{\"mamba_ssm_dtype\": \"bfloat16\", %s", models[m] + 1);
    write_model(text, bf16_paths[m]);
    /* Kimi's is the last of its kind in the file. */
    char *at = strstr(m == KIMI_LINEAR ? strstr(text, "kda_layers") : text, keys[m]);
    char *value = strchr(at, ':') + 1;
    snprintf(large, sizeof large, "%.*s128%s", (int)(value - text), text, strchr(value, ','));
    write_model(large, large_paths[m]);
}

static void write_models(void)
{
    for (int m = 0; m < NUM_MODELS; m++) {
        write_model(models[m], paths[m]);
        write_bf16_models(m);
    }
}

static void remove_models(void)
{
    for (int m = 0; m < NUM_MODELS; m++) {
        unlink(paths[m]);
        unlink(bf16_paths[m]);
        unlink(large_paths[m]);
    }
}

/* The recurrent layers by one configuration of `cpu_linear`; the others by two backends. */
static void begin_model(struct run *run, int model)
{
    begin_trace(run);
    set(run, "model.config=%s", paths[model]);
    set(run, "attention.linear_attn_backend=recurrent");
    set(run, "backend.recurrent.type=cpu_linear");
    if (model == MAMBA2)
        return;
    set(run, "attention.prefill_attention_backend=cpu_native");
    set(run, "attention.decode_attention_backend=other");
    set(run, "backend.other.type=cpu_native");
}

/* ---- Identities ------------------------------------------------------------------------------ */

static const char *const variants[][4] = {
    {"workload.seed=7"},
    {"workload.mixed=yes"},
    {"model.dtype=f32", "workload.chunked_prefill_size=0"},
    {"model.dtype=f16", "workload.chunked_prefill_size=7", "workload.mixed=yes"},
    {"kv_cache.page_size=1", "kv_cache.cached_states=3"},
    {"kv_cache.page_size=16", "workload.chunked_prefill_size=100"},
    {"kv_cache.prefix_cache=no"},
    {"kv_cache.cached_states=0", "workload.mixed=yes"},
    {"kv_cache.max_total_tokens=288", "workload.max_running_requests=8"},
    {"workload.max_running_requests=1", "backend.recurrent.recurrent_tokens=1"},
};
enum { NUM_VARIANTS = sizeof variants / sizeof *variants };

LOOP_OF(runs, identities_hold, 0, (NUM_MODELS * NUM_VARIANTS))
{
    RUN(run);
    int variant = _i % NUM_VARIANTS;
    begin_model(&run, _i / NUM_VARIANTS);
    set_list(&run, variants[variant], 4);
    keep_identities(&run);
    ck_assert(run.report.states.present);
    ck_assert_int_eq(run.report.states.peak > 0, variant != 6 && variant != 7);
    ck_assert_int_eq(run.report.tokens.prefix_hit > 0, run.report.states.peak > 0);
}

/* States in bf16, which are rounded at every chunk, snapshot and decoded token, wherever the
 * scheduler puts these. */
LOOP_OF(runs, identities_hold_with_bf16_states, 0, (NUM_MODELS * NUM_VARIANTS))
{
    RUN(run);
    int model = _i / NUM_VARIANTS;
    begin_model(&run, model);
    set(&run, "model.config=%s", bf16_paths[model]);
    set_list(&run, variants[_i % NUM_VARIANTS], 4);
    keep_identities(&run);
}

/* Prompts of hundreds of tokens, some of which share beginnings, and states of published size. */
static void begin_large(struct run *run, int model)
{
    begin_model(run, model);
    set(run, "model.config=%s", large_paths[model]);
    set(run, "workload.length_scale=0.1");
    set(run, "workload.max_requests=8");
    set(run, "kv_cache.page_size=16");
}

static const char *const large_variants[][3] = {
    {"workload.seed=1", "workload.chunked_prefill_size=512"},
    {"workload.seed=2", "workload.mixed=yes"},
    {"workload.seed=3", "kv_cache.prefix_cache=no", "workload.chunked_prefill_size=100"},
};
enum { NUM_LARGE_VARIANTS = sizeof large_variants / sizeof *large_variants };

LOOP_OF(runs, large_bf16_states, 0, (NUM_MODELS * NUM_LARGE_VARIANTS))
{
    RUN(run);
    begin_large(&run, _i / NUM_LARGE_VARIANTS);
    set_list(&run, large_variants[_i % NUM_LARGE_VARIANTS], 3);
    go(&run);
    ck_assert_msg(run.code == EXIT_GOOD, "exit %d: %s %s", run.code, host_error_text(&run.error),
                  run.report.verify.first_failure);
    ck_assert_int_gt(run.report.tokens.decode, 80);
}

LOOP_OF(runs, digest_does_not_depend_on_threads, 0, NUM_MODELS)
{
    struct run runs[2];
    for (int i = 0; i < 2; i++) {
        begin_model(&runs[i], _i);
        set(&runs[i], "workload.num_threads=%d", 1 + 2 * i);
        go(&runs[i]);
        ck_assert_int_eq(runs[i].code, EXIT_GOOD);
        ck_assert_str_eq(runs[i].report.digest, runs[0].report.digest);
    }
    finish_all(runs, 2);
}

/* A bias of the convolutions is the file's: with it other rows come out, and they are judged by the
 * same bias. */
LOOP_OF(runs, convolutions_with_and_without_bias, 0, 2)
{
    static const char short_conv[] =
        "{\"architectures\": [\"Lfm2ForCausalLM\"], \"hidden_size\": 68,\n"
        " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16,\n"
        " \"num_hidden_layers\": 3, \"layer_types\": [\"conv\", \"full_attention\", \"conv\"],\n"
        " \"max_position_embeddings\": 4096, \"torch_dtype\": \"bfloat16\"}\n";
    const char *text = _i ? models[MAMBA2] : short_conv;
    struct run runs[2];
    char path[64], biased[2048];
    for (int i = 0; i < 2; i++) {
        snprintf(biased, sizeof biased, "{\"%s\": %s, %s", _i ? "use_conv_bias" : "conv_bias",
                 i ? "true" : "false", text + 1);
        write_model(biased, path);
        begin_model(&runs[i], _i ? MAMBA2 : QWEN3_NEXT);
        set(&runs[i], "model.config=%s", path);
        go(&runs[i]);
        unlink(path);
        ck_assert_msg(runs[i].code == EXIT_GOOD, "exit %d: %s %s", runs[i].code,
                      host_error_text(&runs[i].error), runs[i].report.verify.first_failure);
        ck_assert_int_gt(runs[i].report.verify.rows_checked, 500);
    }
    ck_assert_str_ne(runs[0].report.digest, runs[1].report.digest);
    finish_all(runs, 2);
}

/* States that one backend wrote in chunks and another one goes on from, token by token. */
LOOP_OF(runs, prefill_and_decode_are_two_backends, 0, NUM_MODELS)
{
    RUN(run);
    begin_model(&run, _i);
    set(&run, "attention.linear_attn_backend=pair");
    set(&run, "backend.pair.type=hybrid_phase");
    set(&run, "backend.pair.prefill=recurrent");
    set(&run, "backend.pair.decode=stepwise");
    set(&run, "backend.stepwise.type=cpu_linear");
    set(&run, "backend.stepwise.recurrent_tokens=1000");
    set(&run, "workload.mixed=%s", _i % 2 ? "yes" : "no");
    keep_identities(&run);
    ck_assert_int_gt(run.report.tokens.prefix_hit, 0);
    ck_assert_int_gt(rows_of(&run.report, "stepwise"), 0);
}

/* ---- Latent layers among them ---------------------------------------------------------------- */

/* Expanded calls and packed latents with recurrent layers; the last by one backend for all. */
static const char *const latent_variants[][7] = {
    {"attention.mla_prefill=expanded"},
    {"attention.mla_prefill=expanded", "model.dtype=f32", "workload.mixed=yes",
     "kv_cache.page_size=1"},
    {"attention.mla_prefill=expanded", "workload.chunked_prefill_size=7", "model.dtype=f16"},
    {"attention.mla_prefill=expanded", "kv_cache.max_total_tokens=288",
     "workload.max_running_requests=8"},
    {"attention.mla_prefill=expanded", "kv_cache.dtype=fp8_e4m3",
     "kv_cache.latent_layout=latent_fp8", "workload.chunked_prefill_size=0"},
    {"kv_cache.dtype=fp8_e4m3", "kv_cache.latent_layout=latent_fp8"},
    {"kv_cache.dtype=fp8_e4m3", "kv_cache.k_scale=0.02", "workload.mixed=yes"},
    {"attention.mla_prefill=expanded", "attention.prefill_attention_backend=all",
     "attention.decode_attention_backend=all", "attention.linear_attn_backend=all",
     "backend.all.type=hybrid_linear", "backend.all.full=other", "backend.all.linear=recurrent"},
};
enum { NUM_LATENT_VARIANTS = sizeof latent_variants / sizeof *latent_variants };

LOOP_OF(runs, latents_beside_recurrent_layers, 0, NUM_LATENT_VARIANTS)
{
    RUN(run);
    begin_model(&run, KIMI_LINEAR);
    set_list(&run, latent_variants[_i], 7);
    keep_identities(&run);
    ck_assert_int_gt(run.report.tokens.prefix_hit, 0);
    ck_assert_int_eq(run.report.verify.rows_checked,
                     3 * (run.report.tokens.prefill + run.report.tokens.decode));
}

/* ---- Drafts ---------------------------------------------------------------------------------- */

static const char *const drafted[][4] = {
    {"speculative.draft_tokens=4", "speculative.acceptance=0.6"},
    {"speculative.draft_tokens=5", "speculative.acceptance=0", "kv_cache.prefix_cache=no"},
    {"speculative.draft_tokens=64", "speculative.acceptance=0.9", "workload.max_running_requests=1",
     "kv_cache.prefix_cache=no"},
    {"speculative.draft_tokens=7", "kv_cache.max_total_tokens=288",
     "workload.max_running_requests=8"},
};
enum { NUM_DRAFTED = sizeof drafted / sizeof *drafted };

static void begin_drafted(struct run *run, int model, int way, bool bf16)
{
    begin_model(run, model);
    if (bf16)
        set(run, "model.config=%s", bf16_paths[model]);
    set_list(run, drafted[way], 4);
}

/* Every row of a verification is judged, those after the first wrong draft too: rows of all layers
 * of the target, and of the draft model's one, where it has one. */
LOOP_OF(drafts, all_rows_of_verifications_are_judged, 0, 2 * NUM_MODELS * NUM_DRAFTED)
{
    static const int layers[NUM_MODELS] = {4, 4, 3, 2};
    int model = _i % NUM_MODELS, way = _i / NUM_MODELS % NUM_DRAFTED;
    RUN(run);
    begin_drafted(&run, model, way, _i >= NUM_MODELS * NUM_DRAFTED);
    keep_identities(&run);
    const struct report *r = &run.report;
    int64_t prompts = r->tokens.prefill - r->tokens.recomputed;
    int64_t wasted = r->drafts.drafted - r->drafts.accepted;
    int64_t drafts = model == MAMBA2 ? 0 : prompts + r->drafts.draft_extend;
    ck_assert_int_gt(wasted, 0);
    ck_assert_int_eq(r->verify.rows_checked,
                     layers[model] * (prompts + r->tokens.decode + wasted) + drafts);
}

/* The last row of the first sequence that turns it down: other inputs of its recurrent layers. */
static void falsify_last_draft(void *ctx, const struct batch_step *step, int32_t layer,
                               const attn_tensor *const *operands)
{
    const attn_tensor *mixed = operands[ATTN_ROLE_MIXED_QKV];
    int *done = ctx;
    (void)layer;
    if (step->mode != ATTN_MODE_TARGET_VERIFY || !mixed || *done > 0 ||
        step->trees[0].committed == step->sequences[0].num_new)
        return;
    size_t row = (size_t)mixed->strides[0] * attn_dtype_size(mixed->dtype);
    char *last =
        (char *)mixed->data + mixed->byte_offset + row * (size_t)(step->sequences[0].num_new - 1);
    memmove(last, last - row, row);
    (*done)++;
}

LOOP_OF(drafts, a_falsified_draft_fails, 0, 2 * NUM_MODELS)
{
    int done = 0;
    RUN(run);
    begin_drafted(&run, _i % NUM_MODELS, 1, _i >= NUM_MODELS);
    set(&run, "workload.max_requests=2");
    go_wrong(&run, falsify_last_draft, &done, ", rejected draft 4, layer ");
    ck_assert_int_eq(done, 1);
    ck_assert_int_eq(run.report.verify.rows_failed, 1);
}

/* ---- States that are shared ------------------------------------------------------------------ */

enum { MAX_ROWS = 40000 };

static bool is_recurrent(int model, int32_t layer)
{
    return model == KIMI_LINEAR ? layer != 1 : model == MAMBA2 || layer % 2 == 0;
}

/* Rows of a run: where each was computed first, as doubles. */
struct rows {
    int model;
    bool recurrent_alone; /* rows of other layers are not kept */
    int64_t count;
    struct row {
        int64_t request, position;
        int32_t layer, width;
        double *values;
    } rows[MAX_ROWS];
};

static void keep_row(void *ctx, int64_t request, int64_t position, int32_t layer, const void *row,
                     uint64_t bytes)
{
    struct rows *rows = ctx;
    if (rows->recurrent_alone && !is_recurrent(rows->model, layer))
        return;
    int32_t width = (int32_t)(bytes / sizeof(float));
    ck_assert_int_lt(rows->count, MAX_ROWS);
    struct row *kept = &rows->rows[rows->count++];
    *kept = (struct row){request, position, layer, width, calloc((size_t)width, sizeof(double))};
    dtype_to_double(ATTN_F32, row, width, kept->values);
}

static int compare_rows(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    int64_t differences[] = {x->request - y->request, x->position - y->position,
                             x->layer - y->layer};
    for (int i = 0; i < 3; i++)
        if (differences[i] != 0)
            return differences[i] < 0 ? -1 : 1;
    return 0;
}

static struct rows *run_and_keep(int model, bool recurrent_alone, const char *const *settings,
                                 struct run *run)
{
    struct rows *rows = calloc(1, sizeof *rows);
    rows->model = model;
    rows->recurrent_alone = recurrent_alone;
    begin_model(run, model);
    set(run, "model.dtype=f32");
    for (; *settings; settings++)
        set(run, "%s", *settings);
    run->listener = keep_row;
    run->listener_ctx = rows;
    go(run);
    ck_assert_msg(run->code == EXIT_GOOD, "%s", host_error_text(&run->error));
    qsort(rows->rows, (size_t)rows->count, sizeof *rows->rows, compare_rows);
    return rows;
}

static void free_rows(struct rows *rows)
{
    for (int64_t r = 0; r < rows->count; r++)
        free(rows->rows[r].values);
    free(rows);
}

/* The largest difference, in units of the largest value of the row; every row of `some` must be
 * among `all`. */
static double largest_difference(const struct rows *some, const struct rows *all)
{
    double most = 0;
    for (int64_t r = 0; r < some->count; r++) {
        const struct row *mine = &some->rows[r];
        const struct row *theirs =
            bsearch(mine, all->rows, (size_t)all->count, sizeof *mine, compare_rows);
        double largest = 0, difference = 0;
        ck_assert_msg(theirs != NULL, "request %lld, position %lld, layer %d: in one run alone",
                      (long long)mine->request, (long long)mine->position, mine->layer);
        for (int32_t d = 0; d < mine->width; d++) {
            difference = fmax(difference, fabs(mine->values[d] - theirs->values[d]));
            largest = fmax(largest, fabs(theirs->values[d]));
        }
        most = fmax(most, difference / (largest + 1e-30));
    }
    return most;
}

/* `more` and `most`: settings, or NULL. */
static void compare_with_no_cache(int model, const char *more, const char *most, double accepted)
{
    const char *shared[] = {"kv_cache.page_size=1", more, most, NULL};
    const char *alone[] = {"kv_cache.page_size=1", "kv_cache.prefix_cache=no", more, most, NULL};
    struct run runs[2];
    struct rows *some = run_and_keep(model, accepted == 0, shared, &runs[0]);
    struct rows *all = run_and_keep(model, accepted == 0, alone, &runs[1]);
    ck_assert_int_gt(runs[0].report.tokens.prefix_hit, 0);
    ck_assert_int_gt(runs[0].report.states.peak, 0);
    ck_assert_int_eq(runs[1].report.tokens.prefix_hit, 0);
    ck_assert_int_eq(runs[0].report.tokens.prefill + runs[0].report.tokens.prefix_hit,
                     runs[1].report.tokens.prefill);
    ck_assert_int_lt(some->count, all->count);
    ck_assert_double_le(largest_difference(some, all), accepted);
    finish_all(runs, 2);
    free_rows(some);
    free_rows(all);
}

/* Chunks as products begin elsewhere, and round otherwise. */
LOOP_OF(states, hits_equal_runs_without, 0, NUM_MODELS)
{
    compare_with_no_cache(_i, "workload.seed=3", NULL, 1e-4);
}

/* Token by token nothing of a recurrent layer depends on where a step begins. */
LOOP_OF(states, hits_equal_runs_without_to_the_bit, 0, NUM_MODELS)
{
    compare_with_no_cache(_i, "backend.recurrent.recurrent_tokens=1000000", NULL, 0);
}

/* A prefix in the cache is read packed, and one that was computed, too; expanded, neither is. */
LOOP_OF(states, hits_of_latents_equal_runs_without, 0, 2)
{
    static const char *const settings[][2] = {
        {"kv_cache.dtype=fp8_e4m3", "kv_cache.latent_layout=latent_fp8"},
        {"attention.mla_prefill=expanded", NULL},
    };
    compare_with_no_cache(KIMI_LINEAR, settings[_i][0], settings[_i][1], 1e-4);
}

/* ---- Verification ---------------------------------------------------------------------------- */

/* One element of an operand, in the first recurrent layer, at request 0's fourth token alone: at
 * the first there is no state yet that a gate could change. */
struct falsified {
    uint32_t role;
    float by;
    int done;
};

static void falsify(void *ctx, const struct batch_step *step, int32_t layer,
                    const attn_tensor *const *operands)
{
    struct falsified *falsified = ctx;
    const attn_tensor *operand = operands[falsified->role];
    int64_t row = 0;
    if (layer != 0 || !operand || find_first_rows(step, &row) <= 3)
        return;
    *((float *)operand->data + (row + 3) * operand->strides[0]) += falsified->by;
    falsified->done++;
}

/* Whatever a layer is given for one token; and that token's rows are not the only ones to fail, as
 * the state carries on what was done to it. */
LOOP_OF(verification, a_falsified_operand_fails, 0, 3)
{
    static const struct {
        uint32_t role;
        float by;
    } operands[] = {{ATTN_ROLE_MIXED_QKV, 2}, {ATTN_ROLE_GATE_A, 8}, {ATTN_ROLE_GATE_B, 8}};
    struct falsified falsified = {.role = operands[_i].role, .by = operands[_i].by};
    RUN(run);
    begin_model(&run, QWEN3_NEXT);
    set(&run, "model.dtype=f32");
    go_wrong(&run, falsify, &falsified, "layer 0");
    ck_assert_int_eq(falsified.done, 1);
    ck_assert_int_gt(run.report.verify.rows_failed, _i == 0 ? 1 : 0);
    ck_assert_ptr_nonnull(strstr(run.report.verify.first_failure, "request 0, "));
}

/* One element of a key in the latent layer's expanded form. */
struct falsified_key {
    bool of_prefix; /* of a chunk of a prefix, not of the new rows */
    int done;
};

static void falsify_key(void *ctx, const struct batch_step *step, int32_t layer,
                        const attn_tensor *const *operands)
{
    struct falsified_key *falsified = ctx;
    bool of_prefix = operands[ATTN_ROLE_C_KV] == NULL;
    if (layer != 1 || step->mode != ATTN_MODE_EXTEND || of_prefix != falsified->of_prefix ||
        falsified->done)
        return;
    *(float *)operands[ATTN_ROLE_K]->data += 4;
    falsified->done = 1;
}

LOOP_OF(verification, a_falsified_expanded_key_fails, 0, 2)
{
    struct falsified_key falsified = {.of_prefix = _i != 0};
    RUN(run);
    begin_model(&run, KIMI_LINEAR);
    set(&run, "model.dtype=f32");
    set(&run, "attention.mla_prefill=expanded");
    go_wrong(&run, falsify_key, &falsified, "layer 1");
    ck_assert_int_eq(falsified.done, 1);
}

/* A state that is not the prefix's: the first sequence of the first step that starts after a
 * cached prefix. */
static void take_another_state(void *ctx, const struct batch_step *step, int32_t layer,
                               const attn_tensor *const *operands)
{
    int *done = ctx;
    const attn_tensor *state = operands[ATTN_ROLE_STATE];
    for (int32_t s = 0; s < step->num_sequences && *done == 0 && layer == 0; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        if (sequence->state_slot == 0 || sequence->state_slot == sequence->state_dst)
            continue;
        uint64_t bytes = (uint64_t)state->strides[0] * attn_dtype_size(state->dtype);
        memset((char *)state->data + (uint64_t)sequence->state_slot * bytes, 0, bytes);
        (*done)++;
    }
}

LOOP_OF(verification, a_lost_state_fails, 0, NUM_MODELS)
{
    int done = 0;
    RUN(run);
    begin_model(&run, _i);
    go_wrong(&run, take_another_state, &done, "layer 0");
    ck_assert_int_eq(done, 1);
}

/* What is wrong with the state of one request in layer 0, when its third token is decoded. */
struct wrong_state {
    bool lost; /* the token before is not in it; else it is another request's */
    char *before;
    int decoded, done;
};

static char *state_at(const attn_tensor *state, int32_t slot, size_t *bytes)
{
    *bytes = (size_t)state->strides[0] * attn_dtype_size(state->dtype);
    return (char *)state->data + (size_t)slot * *bytes;
}

static void make_wrong(void *ctx, const struct batch_step *step, int32_t layer,
                       const attn_tensor *const *operands)
{
    struct wrong_state *wrong = ctx;
    for (int32_t s = 0; s < step->num_sequences && layer == 0; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        size_t bytes;
        if (sequence->request != 1 || step->mode != ATTN_MODE_DECODE)
            continue;
        const attn_tensor *state = operands[ATTN_ROLE_STATE];
        char *mine = state_at(state, sequence->state_slot, &bytes);
        wrong->decoded++;
        if (wrong->decoded == 2 && wrong->lost) {
            wrong->before = malloc(bytes);
            memcpy(wrong->before, mine, bytes);
        }
        if (wrong->decoded != 3)
            continue;
        ck_assert_int_gt(step->num_sequences, 1);
        int32_t other = step->sequences[s > 0 ? s - 1 : s + 1].state_slot;
        memcpy(mine, wrong->lost ? wrong->before : state_at(state, other, &bytes), bytes);
        wrong->done++;
    }
}

/* Among all the roundings of a bf16 state a token that is not in it shows, and another slot's state
 * shows all the more. */
LOOP_OF(verification, a_wrong_bf16_state_fails, 0, 2 * NUM_MODELS)
{
    struct wrong_state wrong = {.lost = _i % 2};
    RUN(run);
    begin_large(&run, _i / 2);
    go_wrong(&run, make_wrong, &wrong, "layer 0");
    ck_assert_int_eq(wrong.done, 1);
    ck_assert_int_ge(run.report.verify.rows_failed, wrong.lost ? 4 : 8);
    ck_assert_ptr_nonnull(strstr(run.report.verify.first_failure, "request 1, position "));
    free(wrong.before);
}

/* ---- Suite ----------------------------------------------------------------------------------- */

TESTS("session_linear", .set_up_once = write_models, .tear_down_once = remove_models,
      .timeout = 120);
