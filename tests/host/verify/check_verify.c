/* SPDX-License-Identifier: Apache-2.0
 *
 * check_verify.c: verification against outputs that a loop of this file computes.
 *
 * What is right must pass, whatever the layer has; what is wrong in one place must fail in the row
 * of that place and no other.
 */
#include "host/verify/verify.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/interrupt.h"
#include "host/base/mix.h"
#include "host/kinds/operands.h"
#include "tests/tools/test_main.h"

/* ---- A model, a workload, a step ------------------------------------------------------------- */

static const char trace_text[] =
    "{\"timestamp\": 0, \"input_length\": 37, \"output_length\": 4, \"hash_ids\": [1]}\n"
    "{\"timestamp\": 1, \"input_length\": 20, \"output_length\": 2, \"hash_ids\": [2]}\n"
    "{\"timestamp\": 2, \"input_length\": 5, \"output_length\": 9, \"hash_ids\": [3]}\n";

#define MODEL "[model]\nmax_context_len = 64\nnum_layers = 2\n"

/* What a layer may have, alone and together. */
static const char *const models[] = {
    /* MHA */
    MODEL "num_q_heads = 3\nnum_kv_heads = 3\nhead_dim = 17\ndtype = f32\n",
    /* GQA, values of another width */
    MODEL "num_q_heads = 6\nnum_kv_heads = 2\nhead_dim = 24\nv_head_dim = 10\ndtype = f32\n",
    /* MQA, wide outputs */
    MODEL "num_q_heads = 4\nnum_kv_heads = 1\nhead_dim = 8\nv_head_dim = 40\ndtype = bf16\n",
    MODEL "num_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 16\nsliding_window = 6\ndtype = f32\n",
    MODEL "num_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 16\nattention_chunk = 7\ndtype = f32\n",
    MODEL "num_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 16\nsinks = yes\ndtype = f32\n",
    MODEL "num_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 16\nalibi = yes\ndtype = f32\n",
    MODEL "num_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 16\nlogit_cap = 3\ndtype = f32\n",
    MODEL
    "num_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 16\nlogit_cap = 5\nalibi = yes\nsinks = yes\n"
    "sliding_window = 9\ndtype = bf16\nsm_scale = 0.4\n",
    MODEL "num_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 16\nlayer_types = full, sliding\n"
          "sliding_window = 4\ndtype = f16\n",
    MODEL "num_q_heads = 4\nhead_dim = 16\nattn_type = encoder_only\ndtype = f32\n",
    MODEL "num_q_heads = 4\nhead_dim = 16\nattn_type = encoder_only\nsliding_window = 3\n"
          "dtype = f32\n",
    MODEL "num_q_heads = 5\nkv_lora_rank = 21\nqk_rope_head_dim = 6\nqk_nope_head_dim = 12\n"
          "v_head_dim = 9\ndtype = f32\n",
    /* two blocks that are packed each by its own scale */
    MODEL "num_q_heads = 1\nkv_lora_rank = 256\nqk_rope_head_dim = 6\nqk_nope_head_dim = 12\n"
          "v_head_dim = 9\ndtype = f32\n",
};

enum {
    NUM_MODELS = sizeof models / sizeof *models,
    PLAIN = 0,
    GROUPED = 1,
    WINDOW = 3,
    TWO_GROUPS = 9,
    ENCODER = 10,
    LATENT = 12,
    BLOCKS = 13
};

/* The step of a test: extend rows after prefixes, request 1 first. */
static const struct verify_sequence extend_sequences[] = {
    {.request = 1, .prefix_len = 8, .num_rows = 12, .first_row = 0},
    {.request = 0, .prefix_len = 0, .num_rows = 37, .first_row = 12},
    {.request = 2, .prefix_len = 0, .num_rows = 5, .first_row = 49},
};
static const struct verify_sequence decode_sequences[] = {
    {.request = 2, .prefix_len = 12, .num_rows = 1, .first_row = 0},
    {.request = 0, .prefix_len = 37, .num_rows = 1, .first_row = 1},
    {.request = 1, .prefix_len = 20, .num_rows = 1, .first_row = 2},
};

/* Verifications: a tree in which all drafts are turned down, one of which some are accepted, and a
 * chain. */
#define TREE                                                                                       \
    .parent = {0, 0, 0, 2, 1, 3, 4, 5, 6, 7, 8, 9}, .depth = {0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6}
static const struct verify_sequence drafted_sequences[] = {
    {.request = 1,
     .prefix_len = 20,
     .num_rows = 8,
     .first_row = 0,
     .tree = {.committed = 1, .path = {0}, TREE}},
    {.request = 0,
     .prefix_len = 38,
     .num_rows = 12,
     .first_row = 8,
     .tree = {.committed = 3, .path = {0, 2, 3}, TREE}},
    {.request = 2,
     .prefix_len = 6,
     .num_rows = 5,
     .first_row = 20,
     .tree = {.committed = 2, .path = {0, 1}, .parent = {0, 0, 1, 2, 3}, .depth = {0, 1, 2, 3, 4}}},
};

enum { NUM_SEQUENCES = 3, MAX_ROWS = 64, MAX_HEADS = 6, MAX_WIDTH = 256, MAX_KEYS = 64 };

static struct config *config;
static struct model *model;
static struct trace trace;
static struct workload workload;
static generator_layer layers[4];
static struct generator generator;
static struct threads *threads;
static struct verify_params params;
static struct verify_scales scales[2];
static uint32_t reads_new_unquantised[2];
static struct verify_sequence sequences[NUM_SEQUENCES];
static int32_t sampled[MAX_ROWS];
static struct verify_step step;

static void read_trace(void)
{
    char path[] = "/tmp/check_verify.XXXXXX";
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(write(file, trace_text, sizeof trace_text - 1), (int)sizeof trace_text - 1);
    close(file);
    attn_status status = trace_init(&trace, path, TRACE_FORMAT_MOONCAKE, 0, NULL);
    unlink(path);
    ck_assert_int_eq(status, ATTN_OK);
    ck_assert_int_eq(workload_init(&workload, &trace,
                                   &(workload_params){.length_scale = 1, .max_context_len = 64},
                                   NULL),
                     ATTN_OK);
}

static void describe_layers(void)
{
    for (int32_t l = 0; l < operands_num_forms(model); l++)
        layers[l] = operands_geometry(model, l);
    ck_assert_int_eq(generator_init(&generator, 5, layers, operands_num_forms(model), 4, 8, NULL),
                     ATTN_OK);
}

/* All rows of these sequences are sampled. */
static void set_step(uint32_t mode, const struct verify_sequence *rows)
{
    int32_t count = 0;
    for (int s = 0; s < NUM_SEQUENCES; s++) {
        sequences[s] = rows[s];
        sequences[s].first_sampled = count;
        sequences[s].num_sampled = rows[s].num_rows;
        for (int32_t t = 0; t < rows[s].num_rows; t++)
            sampled[count++] = t;
    }
    step = (struct verify_step){
        .mode = mode, .num_sequences = NUM_SEQUENCES, .sequences = sequences, .sampled = sampled};
}

static void set_up_model(const char *ini, uint32_t num_threads)
{
    HOST_ERROR(error);
    ck_assert_msg(config_load_text(ini, strlen(ini), "test.ini", NULL, NULL, 0, &config,
                                   &error.base) == ATTN_OK &&
                      model_create(config, &model, &error.base) == ATTN_OK,
                  "%s", host_error_text(&error));
    read_trace();
    describe_layers();
    ck_assert_int_eq(threads_create(num_threads, &threads, NULL), ATTN_OK);
    for (uint32_t g = 0; g < 2; g++)
        scales[g] = (struct verify_scales){.kv_dtype = model->dtype};
    memset(reads_new_unquantised, 0, sizeof reads_new_unquantised);
    params = (struct verify_params){.model = model,
                                    .workload = &workload,
                                    .generator = &generator,
                                    .scales = scales,
                                    .reads_new_unquantised = reads_new_unquantised,
                                    .threads = threads};
    set_step(ATTN_MODE_EXTEND, extend_sequences);
    /* A bidirectional encoder has all its tokens in one step. */
    if (!model_group_has_kv(&model->groups[0])) {
        sequences[0].prefix_len = 0;
        sequences[0].num_rows = sequences[0].num_sampled = 12;
    }
}

static void tear_down_model(void)
{
    threads_destroy(threads);
    workload_finish(&workload);
    trace_finish(&trace);
    model_destroy(model);
    config_destroy(config);
}

/* ---- Another way to the same outputs --------------------------------------------------------- */

/* What is done wrong, for one query head of one row. */
enum {
    RIGHT,
    CHANGE_VALUE,
    WINDOW_TOO_WIDE,
    WINDOW_TOO_NARROW,
    DROP_KEY,
    WRONG_KV_HEAD,
    ONE_MORE_ROW, /* of a tree: the row sees it as if it were above */
    OWN_TOKENS    /* drafts are taken for what is generated */
};

struct mistake {
    int kind;
    int64_t request, position; /* -1 = all */
    int32_t head;              /* -1 = all */
    int64_t key;               /* CHANGE_VALUE, DROP_KEY; ONE_MORE_ROW: of the tree */
    int32_t dimension;         /* CHANGE_VALUE */
};

/* The cache is quantised, but new keys are read as they were given. */
static bool new_as_given;

/* One element of the cache holds `value` more than it should. */
static struct {
    double value;
    int64_t request, key;
    int32_t kv_head, dimension;
} changed;

static int makes(const struct mistake *mistake, int kind, int64_t request, int64_t i, int32_t head)
{
    return mistake->kind == kind && (mistake->request < 0 || mistake->request == request) &&
           (mistake->position < 0 || mistake->position == i) &&
           (mistake->head < 0 || mistake->head == head);
}

/* Is the step called in the absorbed form: one key for all heads, whose first part is the value? */
static bool is_absorbed(const attn_layer_group *group)
{
    return group->mla && !(model->mla_expanded & ATTN_MODE_BIT(step.mode));
}

/* The layer that the generator has for the step. */
static int32_t generated(int32_t layer)
{
    return model->mla_expanded & ATTN_MODE_BIT(step.mode) ? 2 + layer : layer;
}

static int32_t kv_heads(const attn_layer_group *group)
{
    return is_absorbed(group) ? 1 : group->num_kv_heads;
}

static int32_t key_dim(const attn_layer_group *group)
{
    return is_absorbed(group) ? group->mla->kv_lora_rank + group->mla->rope_dim : group->head_dim;
}

static int32_t out_dim(const attn_layer_group *group)
{
    return is_absorbed(group) ? group->mla->kv_lora_rank : group->v_head_dim;
}

/* The largest of 128 elements of a latent becomes more than 224, at most 448; k_pe is exact in bf16. */
static double read_packed(const attn_mla_dims *mla, const int8_t *raw, int32_t d)
{
    int32_t largest = 0, first = d / 128 * 128;
    uint8_t byte;
    if (d >= mla->kv_lora_rank)
        return raw[d] / 64.0;
    for (int32_t i = first; i < first + 128; i++)
        largest = abs(raw[i]) > largest ? abs(raw[i]) : largest;
    float scale = exp2f(ceilf(log2f((float)largest / 64 / 448)));
    dtype_quantise(ATTN_FP8_E4M3, &byte, 0, (float)raw[d] / 64, scale);
    return dtype_dequantise(ATTN_FP8_E4M3, &byte, 0, scale);
}

static double read_right(int32_t layer, int64_t request, int64_t j, int32_t kv_head, int role,
                         int32_t d, int is_new)
{
    int8_t raw[GENERATOR_MAX_DIM];
    const struct verify_scales *scale = &scales[model->layers[layer].group];
    bool of_latent = is_absorbed(&model->groups[model->layers[layer].group]);
    generator_kv(&generator, workload_token_key(&workload, request, j), generated(layer), kv_head,
                 of_latent ? GENERATOR_KEY : role, raw);
    float x = (float)raw[d] / 64;
    if (!dtype_is_fp8(scale->kv_dtype) || (is_new && new_as_given) || generated(layer) != layer)
        return x;
    if (scale->packed)
        return read_packed(model->groups[model->layers[layer].group].mla, raw, d);
    const float *values = role == GENERATOR_KEY || of_latent ? scale->k : scale->v;
    float of_head = values[scale->count == 1 ? 0 : kv_head];
    uint8_t byte;
    dtype_quantise(scale->kv_dtype, &byte, 0, x, of_head);
    return dtype_dequantise(scale->kv_dtype, &byte, 0, of_head);
}

static double read_element(int32_t layer, int64_t request, int64_t j, int32_t kv_head, int role,
                           int32_t d, int is_new)
{
    double x = read_right(layer, request, j, kv_head, role, d, is_new);
    int here = role == GENERATOR_VALUE && request == changed.request && j == changed.key &&
               kv_head == changed.kv_head && d == changed.dimension;
    return here ? x + changed.value : x;
}

static int sees(const attn_layer_group *group, int64_t left, int64_t i, int64_t j)
{
    if (left >= 0 && j < i - left)
        return 0;
    if (group->window_right >= 0 && j > i + group->window_right)
        return 0;
    return group->attention_chunk == 0 ||
           (j <= i && j / group->attention_chunk == i / group->attention_chunk);
}

/* Row `t` of a verification: does its token stay, is it one of another number; where it stands; is
 * row `u` it or above it? Rows before the step are no drafts. */
static bool is_draft(const struct verify_sequence *sequence, int64_t t)
{
    for (int32_t d = 0; d < sequence->tree.committed; d++)
        if (sequence->tree.path[d] == t)
            return false;
    return sequence->tree.committed > 0 && t >= 0;
}

static int64_t stands_at(const struct verify_sequence *sequence, int64_t t)
{
    bool in_tree = sequence->tree.committed > 0 && t >= 0;
    return sequence->prefix_len + (in_tree ? sequence->tree.depth[t] : t);
}

static bool is_above(const struct verify_sequence *sequence, int64_t t, int64_t u)
{
    if (sequence->tree.committed == 0 || u < 0 || t == u)
        return true;
    return t > 0 && is_above(sequence, sequence->tree.parent[t], u);
}

/* Output `t` of a sequence: [v_head_dim]. */
static void attend(int32_t layer, const struct verify_sequence *sequence, int64_t t, int32_t head,
                   const struct mistake *mistake, double *out)
{
    int64_t i = stands_at(sequence, t), num_requests = workload.num_requests;
    const attn_layer_group *group = &model->groups[model->layers[layer].group];
    int64_t request = sequence->request, left = group->window_left;
    int64_t keys = sequence->prefix_len + sequence->num_rows, first_new = sequence->prefix_len;
    int32_t kv_head = head / (group->num_q_heads / kv_heads(group));
    int16_t query[GENERATOR_MAX_DIM];
    double weight[MAX_KEYS], sum = 0;
    if (group->attn_type == ATTN_TYPE_CROSS) {
        keys = sequence->encoder_len;
        first_new = keys - sequence->encoder_new;
    }
    if (makes(mistake, WRONG_KV_HEAD, request, i, head))
        kv_head = (kv_head + 1) % kv_heads(group);
    if (makes(mistake, WINDOW_TOO_WIDE, request, i, head))
        left++;
    if (makes(mistake, WINDOW_TOO_NARROW, request, i, head))
        left--;
    bool drafts = mistake->kind != OWN_TOKENS;
    int64_t number = request + (drafts && is_draft(sequence, t) ? num_requests * (1 + t) : 0);
    int64_t numbers_of[MAX_KEYS], stand[MAX_KEYS];
    for (int64_t j = 0; j < keys; j++) {
        int64_t u = j - sequence->prefix_len;
        numbers_of[j] = request + (drafts && is_draft(sequence, u) ? num_requests * (1 + u) : 0);
        stand[j] = stands_at(sequence, u);
    }
    generator_query(&generator, &workload, number, i, generated(layer), head, query);
    for (int64_t j = 0; j < keys; j++) {
        double score = 0;
        for (int32_t d = 0; d < key_dim(group); d++)
            score += query[d] / 64.0 *
                     read_element(layer, numbers_of[j], stand[j], kv_head, GENERATOR_KEY, d,
                                  j >= first_new);
        score *= group->sm_scale;
        if (group->flags & ATTN_GROUP_HAS_ALIBI)
            score -= generator_alibi_slope(head, group->num_q_heads) * fabs((double)(i - stand[j]));
        if (group->logit_cap > 0)
            score = group->logit_cap * tanh(score / group->logit_cap);
        bool above = is_above(sequence, t, j - sequence->prefix_len) ||
                     (mistake->kind == ONE_MORE_ROW && j - sequence->prefix_len == mistake->key);
        int seen = sees(group, left, i, stand[j]) && above &&
                   !(makes(mistake, DROP_KEY, request, i, head) && j == mistake->key);
        weight[j] = seen ? exp(score) : 0;
        sum += weight[j];
    }
    if (group->flags & ATTN_GROUP_HAS_SINKS)
        sum += exp(generator_sink(&generator, layer, head));
    for (int32_t d = 0; d < out_dim(group); d++) {
        out[d] = 0;
        for (int64_t j = 0; j < keys; j++)
            if (weight[j] > 0)
                out[d] += weight[j] / sum *
                          read_element(layer, numbers_of[j], stand[j], kv_head, GENERATOR_VALUE, d,
                                       j >= first_new);
        /* By one over the key's probability: this output moves by 1, more than 10 bars. */
        if (makes(mistake, CHANGE_VALUE, request, i, head) && d == mistake->dimension &&
            weight[mistake->key] > 0)
            out[d] += 1;
    }
}

/* The output tensor, with its own strides and offset; NaN between the rows. */
static double numbers[MAX_ROWS][MAX_HEADS][MAX_WIDTH];
static unsigned char memory[MAX_ROWS * (MAX_HEADS + 1) * (MAX_WIDTH + 3) * 4 + 16];
static attn_tensor out;

static void store_all(int32_t layer, attn_dtype dtype)
{
    const attn_layer_group *group = &model->groups[model->layers[layer].group];
    int64_t head_stride = out_dim(group) + 3;
    memset(memory, 0xFF, sizeof memory);
    out = (attn_tensor){.struct_size = sizeof out,
                        .data = memory,
                        .byte_offset = 16,
                        .device_type = ATTN_DEVICE_CPU,
                        .dtype = dtype,
                        .ndim = 3,
                        .alignment = 16,
                        .shape = {MAX_ROWS, group->num_q_heads, out_dim(group)},
                        .strides = {(group->num_q_heads + 1) * head_stride, head_stride, 1}};
    for (int s = 0; s < NUM_SEQUENCES; s++)
        for (int64_t t = 0; t < sequences[s].num_rows; t++)
            for (int32_t h = 0; h < group->num_q_heads; h++) {
                int64_t row = sequences[s].first_row + t;
                int64_t at = row * out.strides[0] + h * out.strides[1];
                dtype_from_double(dtype, numbers[row][h], out_dim(group),
                                  memory + 16 + at * attn_dtype_size(dtype));
            }
}

static void compute_all(int32_t layer, const struct mistake *mistake)
{
    const attn_layer_group *group = &model->groups[model->layers[layer].group];
    for (int s = 0; s < NUM_SEQUENCES; s++)
        for (int64_t t = 0; t < sequences[s].num_rows; t++)
            for (int32_t h = 0; h < group->num_q_heads; h++)
                attend(layer, &sequences[s], t, h, mistake, numbers[sequences[s].first_row + t][h]);
    store_all(layer, model->dtype);
}

static struct verify_result judge(int32_t layer)
{
    struct verifier *verifier;
    struct verify_result result;
    HOST_ERROR(error);
    ck_assert_int_eq(verifier_create(&params, &verifier, NULL), ATTN_OK);
    attn_status status = verifier_add(verifier, &step, layer, &out, &error.base);
    if (status == ATTN_OK)
        status = verifier_judge(verifier, &error.base);
    if (status == ATTN_OK)
        status = verifier_wait(verifier, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    verifier_result(verifier, &result);
    verifier_destroy(verifier);
    return result;
}

static const struct mistake none = {.kind = RIGHT};

static void passes(int32_t layer)
{
    struct verify_result result = judge(layer);
    ck_assert_msg(result.rows_failed == 0, "%lld rows: %s", (long long)result.rows_failed,
                  result.first_failure);
    ck_assert_str_eq(result.first_failure, "");
    ck_assert_double_ge(result.max_abs_error, 0);
    ck_assert_double_lt(result.max_abs_error, 0.02);
    ck_assert_double_finite(result.max_rel_error);
}

/* Exactly this row failed, by at least 10 bars, and it is named. Returns the dimension. */
static int fails_at(int32_t layer, int64_t request, int64_t position, int32_t head)
{
    struct verify_result result = judge(layer);
    long long named_request, named_position;
    int named_layer, named_head, dimension;
    char error[32], bar[32];
    ck_assert_msg(result.rows_failed == 1, "%lld rows for request %lld, position %lld",
                  (long long)result.rows_failed, (long long)request, (long long)position);
    ck_assert_int_eq(sscanf(result.first_failure,
                            "request %lld, position %lld, layer %d, head %d, dimension %d: error "
                            "%31[^,], accepted up to %31s",
                            &named_request, &named_position, &named_layer, &named_head, &dimension,
                            error, bar),
                     7);
    ck_assert_int_eq(named_request, request);
    ck_assert_int_eq(named_position, position);
    ck_assert_int_eq(named_layer, layer);
    ck_assert_int_eq(named_head, head);
    ck_assert_double_ge(strtod(error, NULL), 10 * strtod(bar, NULL));
    return dimension;
}

/* ---- Right ----------------------------------------------------------------------------------- */

LOOP_OF(right, right_outputs_pass, 0, NUM_MODELS)
{
    set_up_model(models[_i], 1);
    for (int32_t layer = 0; layer < 2; layer++) {
        compute_all(layer, &none);
        passes(layer);
    }
    if (model_group_has_kv(&model->groups[0])) {
        set_step(ATTN_MODE_DECODE, decode_sequences);
        compute_all(1, &none);
        passes(1);
    }
    tear_down_model();
}

/* An output may be of another type than the operands. */
TEST_OF(right, output_dtypes)
{
    set_up_model(models[8], 1);
    compute_all(0, &none);
    store_all(0, ATTN_F32);
    passes(0);
    tear_down_model();
    set_up_model(models[PLAIN], 1);
    compute_all(0, &none);
    store_all(0, ATTN_F16);
    passes(0); /* their own rounding is part of the naive form */
    tear_down_model();
}

/* ---- Wrong in one place ---------------------------------------------------------------------- */

/* The sequence of row `n` of all rows, and its position. */
static const struct verify_sequence *nth_row(int n, int64_t *position)
{
    int s = n < 12 ? 0 : n < 49 ? 1 : 2;
    *position = sequences[s].prefix_len + n - sequences[s].first_row;
    return &sequences[s];
}

/* Make the mistake in this one place. */
static int mistake_fails(int kind, int32_t layer, const struct verify_sequence *sequence, int64_t i,
                         int32_t head, int64_t key, int32_t dimension)
{
    struct mistake mistake = {kind, sequence->request, i, head, key, dimension};
    int64_t row = sequence->first_row + i - sequence->prefix_len;
    compute_all(layer, &none);
    attend(layer, sequence, i - sequence->prefix_len, head, &mistake, numbers[row][head]);
    store_all(layer, model->dtype);
    return fails_at(layer, sequence->request, i, head);
}

/* One V element of a key that the row sees, any row, any head, any dimension. */
LOOP_OF(wrong, one_value_changed, 0, 5)
{
    static const int which[] = {PLAIN, GROUPED, WINDOW, 8, LATENT};
    set_up_model(models[which[_i]], 2);
    const attn_layer_group *group = &model->groups[0];
    for (int n = 0; n < 12; n++) {
        int64_t i;
        const struct verify_sequence *sequence = nth_row(n * 53 / 12, &i);
        int64_t key = i - (n % 3 < i ? n % 3 : 0);
        int32_t head = n % group->num_q_heads, dimension = n * 5 % out_dim(group);
        ck_assert_int_eq(mistake_fails(CHANGE_VALUE, 0, sequence, i, head, key, dimension),
                         dimension);
    }
    tear_down_model();
}

/* Rows whose query looks for the key at `offset` after it, and which lies in the prompt. */
static int mistakes_at_needles(int kind, int64_t offset)
{
    const attn_layer_group *group = &model->groups[0];
    int found = 0;
    for (int n = 0; n < 54; n++)
        for (int32_t head = 0; head < group->num_q_heads; head++) {
            int64_t i, target;
            const struct verify_sequence *sequence = nth_row(n, &i);
            target = generator_needle(&generator, &workload, sequence->request, i, 0, head);
            if (target < 0 || i - offset != target || i == 0 || found == 4)
                continue;
            mistake_fails(kind, 0, sequence, i, head, target, 0);
            found++;
        }
    return found;
}

TEST_OF(wrong, window_off_by_one)
{
    set_up_model(models[WINDOW], 1);
    ck_assert_int_ge(mistakes_at_needles(WINDOW_TOO_WIDE, 6), 1);
    ck_assert_int_ge(mistakes_at_needles(WINDOW_TOO_NARROW, 5), 1);
    tear_down_model();
}

TEST_OF(wrong, dropped_key)
{
    set_up_model(models[GROUPED], 1);
    ck_assert_int_ge(mistakes_at_needles(DROP_KEY, 0), 1);
    ck_assert_int_ge(mistakes_at_needles(DROP_KEY, 1), 1);
    tear_down_model();
}

TEST_OF(wrong, wrong_kv_head)
{
    set_up_model(models[GROUPED], 1);
    for (int n = 0; n < 54; n += 11) {
        int64_t i;
        const struct verify_sequence *sequence = nth_row(n, &i);
        mistake_fails(WRONG_KV_HEAD, 0, sequence, i, n % 6, 0, 0);
    }
    tear_down_model();
}

static double before[MAX_ROWS][MAX_HEADS][MAX_WIDTH];

/* Rows whose outputs moved far since `before` fail, rows whose outputs did not move pass; rows that
 * moved a little may do either. At least this many moved far, at least this many did not move. */
static void moved_rows_fail(int32_t layer, int least_far, int least_still)
{
    const attn_layer_group *group = &model->groups[model->layers[layer].group];
    int moved = 0, moved_far = 0;
    for (int row = 0; row < 54; row++) {
        double most = 0;
        for (int32_t h = 0; h < group->num_q_heads; h++)
            for (int32_t d = 0; d < out_dim(group); d++)
                most = fmax(most, fabs(before[row][h][d] - numbers[row][h][d]));
        moved += most > 0;
        moved_far += most > 1e-2;
    }
    struct verify_result result = judge(layer);
    ck_assert_int_ge(moved_far, least_far);
    ck_assert_int_ge(54 - moved, least_still);
    ck_assert_int_ge(result.rows_failed, moved_far);
    ck_assert_int_le(result.rows_failed, moved);
}

/* The first rows see all keys with either window. */
TEST_OF(wrong, all_windows_off_by_one)
{
    struct mistake mistake = {WINDOW_TOO_WIDE, -1, -1, -1, 0, 0};
    set_up_model(models[WINDOW], 1);
    compute_all(0, &none);
    memcpy(before, numbers, sizeof before);
    compute_all(0, &mistake);
    moved_rows_fail(0, 10, 6);
    tear_down_model();
}

/* One element of the cache itself: of a key that all later rows see, and of a request's last key,
 * which one row alone sees. */
TEST_OF(wrong, one_element_of_the_cache)
{
    set_up_model(models[GROUPED], 1);
    compute_all(0, &none);
    memcpy(before, numbers, sizeof before);
    changed.value = 1000;
    changed.request = 0;
    changed.key = 17;
    changed.kv_head = 1;
    changed.dimension = 3;
    compute_all(0, &none);
    moved_rows_fail(0, 3, 54 - (37 - 17));
    changed.key = 36;
    compute_all(0, &none);
    moved_rows_fail(0, 1, 53);
    changed.value = 0;
    tear_down_model();
}

TEST_OF(wrong, not_finite)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    set_up_model(models[GROUPED], 1);
    compute_all(1, &none);
    for (size_t n = 0; n < sizeof odd / sizeof *odd; n++) {
        double kept = numbers[20][4][7];
        numbers[20][4][7] = odd[n];
        store_all(1, ATTN_F32);
        ck_assert_int_eq(fails_at(1, 0, 8, 4), 7);
        struct verify_result result = judge(1);
        ck_assert_double_lt(result.max_abs_error, 0.02);
        ck_assert_double_finite(result.max_rel_error);
        numbers[20][4][7] = kept;
    }
    tear_down_model();
}

/* How far is reported as it is, and relative to the row's largest value. */
TEST_OF(wrong, size_of_errors)
{
    set_up_model(models[PLAIN], 1);
    compute_all(0, &none);
    double largest = 0;
    for (int d = 0; d < 17; d++)
        largest = fmax(largest, fabs(numbers[30][2][d]));
    numbers[30][2][16] += 3;
    store_all(0, ATTN_F32);
    struct verify_result result = judge(0);
    ck_assert_int_eq(result.rows_failed, 1);
    ck_assert_double_eq_tol(result.max_abs_error, 3, 1e-5);
    ck_assert_double_eq_tol(result.max_rel_error, 3 / largest, 1e-4);
    tear_down_model();
}

/* ---- Which rows ------------------------------------------------------------------------------ */

/* Rows that are not sampled are not looked at; a row fails once, whichever heads do. */
TEST_OF(rows, only_sampled_rows)
{
    static const int32_t rows[] = {3, 11, 0, 4};
    set_up_model(models[GROUPED], 3);
    compute_all(0, &none);
    for (int row = 0; row < 54; row++)
        if (row != 3 && row != 11 && row != 49 && row != 53)
            numbers[row][0][0] = NAN;
    store_all(0, ATTN_F32);
    sequences[0].first_sampled = 0;
    sequences[0].num_sampled = 2;
    sequences[1].first_sampled = 2;
    sequences[1].num_sampled = 0;
    sequences[2].first_sampled = 2;
    sequences[2].num_sampled = 2;
    step.sampled = rows;
    passes(0);
    for (int h = 0; h < 6; h++)
        numbers[53][h][h] += 1;
    store_all(0, ATTN_F32);
    fails_at(0, 2, 4, 0);
    for (int s = 0; s < NUM_SEQUENCES; s++)
        sequences[s].num_sampled = 0;
    out.data = NULL;
    passes(0);
    step.num_sequences = 0;
    passes(0);
    tear_down_model();
}

/* Checks add up, and the first failure stays: each by itself, both judged together, and by a thread
 * beside this one, which has copies of what it reads. */
enum { BY_ITSELF, TOGETHER, CONCURRENT, CONCURRENT_TOGETHER, WAYS };

LOOP_OF(rows, several_checks, 0, WAYS)
{
    static char kept[2][sizeof memory];
    struct verifier *verifier;
    struct verify_result result;
    set_up_model(models[TWO_GROUPS], 2);
    params.concurrent = _i >= CONCURRENT;
    ck_assert_int_eq(verifier_create(&params, &verifier, NULL), ATTN_OK);
    for (int32_t layer = 1; layer >= 0; layer--) {
        compute_all(layer, &none);
        numbers[7][1][0] += 1 + layer;
        store_all(layer, ATTN_F16);
        if (_i == TOGETHER)
            out.data = memcpy(kept[layer], memory, sizeof memory);
        ck_assert_int_eq(verifier_add(verifier, &step, layer, &out, NULL), ATTN_OK);
        if (_i == BY_ITSELF || _i == CONCURRENT)
            ck_assert_int_eq(verifier_judge(verifier, NULL), ATTN_OK);
        memset(memory, 0xFF, sizeof memory);
    }
    ck_assert_int_eq(verifier_judge(verifier, NULL), ATTN_OK);
    ck_assert_int_eq(verifier_wait(verifier, NULL), ATTN_OK);
    verifier_result(verifier, &result);
    ck_assert_int_eq(result.rows_failed, 2);
    ck_assert_double_ge(result.max_abs_error, 1.9);
    ck_assert_ptr_nonnull(
        strstr(result.first_failure, "request 1, position 15, layer 1, head 1, "));
    for (int32_t layer = 0; layer < 2; layer++)
        ck_assert_double_gt(verifier_of_bar(verifier, layer, false), 10);
    verifier_destroy(verifier);
    verifier_destroy(NULL);
    params.concurrent = false;
    tear_down_model();
}

/* What was added, or handed over, and not waited for goes with the verifier. */
LOOP_OF(rows, not_all_is_judged, 0, 3)
{
    struct verifier *verifier;
    set_up_model(models[TWO_GROUPS], 2);
    params.concurrent = _i > 0;
    ck_assert_int_eq(verifier_create(&params, &verifier, NULL), ATTN_OK);
    for (int32_t layer = 0; layer < 2; layer++) {
        compute_all(layer, &none);
        store_all(layer, ATTN_F16);
        ck_assert_int_eq(verifier_add(verifier, &step, layer, &out, NULL), ATTN_OK);
        if (_i == 2)
            ck_assert_int_eq(verifier_judge(verifier, NULL), ATTN_OK);
    }
    verifier_destroy(verifier);
    params.concurrent = false;
    tear_down_model();
}

/* ---- Verifications --------------------------------------------------------------------------- */

/* Every row of a tree or a chain, those that stay and those that are turned down. */
LOOP_OF(drafts, all_rows_of_a_verification, 0, ENCODER)
{
    set_up_model(models[_i], 2);
    set_step(ATTN_MODE_TARGET_VERIFY, drafted_sequences);
    for (int32_t layer = 0; layer < 2; layer++) {
        compute_all(layer, &none);
        passes(layer);
    }
    tear_down_model();
}

/* This row, and no other, failed; it is named. */
static void fails_in_tree(int s, int32_t t)
{
    struct verify_result result = judge(0);
    char place[128];
    int length = snprintf(place, sizeof place, "request %lld, position %lld",
                          (long long)sequences[s].request, (long long)stands_at(&sequences[s], t));
    if (is_draft(&sequences[s], t))
        length += snprintf(place + length, sizeof place - (size_t)length, ", rejected draft %d", t);
    snprintf(place + length, sizeof place - (size_t)length, ", layer 0, head ");
    ck_assert_msg(result.rows_failed == 1, "%lld rows for %s", (long long)result.rows_failed,
                  place);
    ck_assert_msg(strncmp(result.first_failure, place, strlen(place)) == 0, "%s, not %s",
                  result.first_failure, place);
}

/* All heads of this row, and nothing else. */
static void do_wrong_in_tree(int s, int32_t t, const struct mistake *mistake)
{
    compute_all(0, &none);
    for (int32_t head = 0; head < model->groups[0].num_q_heads; head++)
        attend(0, &sequences[s], t, head, mistake, numbers[sequences[s].first_row + t][head]);
    store_all(0, ATTN_F32);
}

/* A row that sees one that is not above it, be it of its own depth or of another; or that is taken
 * for a token of its request. */
LOOP_OF(drafts, a_wrong_row_of_a_verification, 0, 2)
{
    set_up_model(models[_i ? 6 : GROUPED], 1); /* with distances in scores, and without */
    set_step(ATTN_MODE_TARGET_VERIFY, drafted_sequences);
    for (int s = 0; s < NUM_SEQUENCES; s++)
        for (int32_t t = 0; t < sequences[s].num_rows; t++) {
            for (int32_t u = 0; u < sequences[s].num_rows; u++) {
                const struct mistake more = {.kind = ONE_MORE_ROW, .key = u};
                if (is_above(&sequences[s], t, u) ||
                    sequences[s].tree.depth[u] > sequences[s].tree.depth[t])
                    continue;
                do_wrong_in_tree(s, t, &more);
                fails_in_tree(s, t);
            }
            const struct mistake own = {.kind = OWN_TOKENS};
            do_wrong_in_tree(s, t, &own);
            if (is_draft(&sequences[s], t))
                fails_in_tree(s, t);
            else
                passes(0);
        }
    tear_down_model();
}

/* Sampled rows alone, of which some are turned down, by a thread beside this one: the tree is
 * copied with the rest. */
TEST_OF(drafts, some_rows_of_a_verification)
{
    static const int32_t rows[] = {1, 6, 5, 4};
    struct verifier *verifier;
    struct verify_result result;
    set_up_model(models[GROUPED], 2);
    set_step(ATTN_MODE_TARGET_VERIFY, drafted_sequences);
    compute_all(0, &none);
    for (int n = 0; n < 4; n++)
        memmove(numbers[n], numbers[(n < 2 ? 0 : n < 3 ? 8 : 20) + rows[n]], sizeof numbers[n]);
    numbers[2][1][0] += 1;
    store_all(0, ATTN_F32);
    for (int s = 0; s < NUM_SEQUENCES; s++) {
        sequences[s].first_sampled = s > 0 ? s + 1 : 0;
        sequences[s].num_sampled = s > 0 ? 1 : 2;
    }
    step.sampled = rows;
    step.compact = 1;
    out.shape[0] = 4;
    out.data = memory + 16;
    out.byte_offset = 0;
    params.concurrent = true;
    ck_assert_int_eq(verifier_create(&params, &verifier, NULL), ATTN_OK);
    ck_assert_int_eq(verifier_add(verifier, &step, 0, &out, NULL), ATTN_OK);
    memset(memory, 0xFF, sizeof memory);
    memset(sequences, 0xFF, sizeof sequences);
    ck_assert_int_eq(verifier_judge(verifier, NULL), ATTN_OK);
    ck_assert_int_eq(verifier_wait(verifier, NULL), ATTN_OK);
    verifier_result(verifier, &result);
    verifier_destroy(verifier);
    params.concurrent = false;
    ck_assert_int_eq(result.rows_failed, 1);
    ck_assert_ptr_nonnull(strstr(result.first_failure,
                                 "request 0, position 41, rejected draft 5, layer 0, head 1, "));
    tear_down_model();
}

/* ---- Quantised caches ------------------------------------------------------------------------ */

static const float k_scales[] = {0.01f, 0.37f}, v_scales[] = {0.02f, 0.11f};

static void quantise(attn_dtype dtype, uint32_t count)
{
    scales[0] = (struct verify_scales){dtype, k_scales, v_scales, count, false};
}

TEST_OF(quantised, quantised)
{
    static const attn_dtype dtypes[] = {ATTN_FP8_E4M3, ATTN_FP8_E5M2};
    set_up_model(models[GROUPED], 1);
    for (int n = 0; n < 4; n++) {
        quantise(dtypes[n / 2], n % 2 == 0 ? 2 : 1);
        compute_all(0, &none);
        passes(0);
        scales[0].count = 3 - scales[0].count; /* the other granularity */
        ck_assert_int_gt(judge(0).rows_failed, 40);
        scales[0].kv_dtype = ATTN_F32;
        ck_assert_int_gt(judge(0).rows_failed, 40);
    }
    quantise(ATTN_FP8_E4M3, 2);
    compute_all(0, &none);
    scales[0].v = k_scales;
    ck_assert_int_gt(judge(0).rows_failed, 40);
    tear_down_model();
}

/* What a backend says of a mode holds for the new keys of steps of that mode alone. */
TEST_OF(quantised, new_keys_as_given)
{
    set_up_model(models[GROUPED], 1);
    quantise(ATTN_FP8_E4M3, 2);
    reads_new_unquantised[0] = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    new_as_given = true;
    compute_all(0, &none);
    passes(0);
    step.mode = ATTN_MODE_DECODE;
    ck_assert_int_gt(judge(0).rows_failed, 40);
    new_as_given = false;
    compute_all(0, &none);
    passes(0);
    step.mode = ATTN_MODE_EXTEND;
    ck_assert_int_gt(judge(0).rows_failed, 40);
    tear_down_model();
}

/* A layer that reads another's cache gets no keys: it reads what is stored, new ones too. */
TEST_OF(quantised, layer_that_only_reads)
{
    set_up_model(models[GROUPED], 1);
    quantise(ATTN_FP8_E4M3, 2);
    layers[1].kv_layer = 0;
    reads_new_unquantised[0] = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    ((attn_layer *)(uintptr_t)model->groups[0].layers)[1].flags |= ATTN_LAYER_KV_READ_ONLY;
    compute_all(1, &none);
    passes(1);
    new_as_given = true;
    compute_all(0, &none);
    passes(0);
    new_as_given = false;
    tear_down_model();
}

/* A latent has one scale, that of keys, for its value too; where new ones are read as given, so are
 * their values. */
TEST_OF(quantised, latents)
{
    set_up_model(models[LATENT], 2);
    scales[0] = (struct verify_scales){ATTN_FP8_E4M3, k_scales, k_scales + 1, 1, false};
    compute_all(1, &none);
    passes(1);
    scales[0].k = k_scales + 1;
    ck_assert_int_gt(judge(1).rows_failed, 40);
    scales[0].k = k_scales;
    reads_new_unquantised[0] = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    ck_assert_int_gt(judge(1).rows_failed, 40);
    new_as_given = true;
    compute_all(1, &none);
    passes(1);
    new_as_given = false;
    params.max_kept_bytes = 1; /* they are made again for each row */
    passes(1);
    tear_down_model();
}

/* Packed latents need no scale: each block of theirs has one. */
TEST_OF(quantised, packed_latents)
{
    set_up_model(models[BLOCKS], 2);
    scales[0] = (struct verify_scales){.kv_dtype = ATTN_FP8_E4M3, .packed = true};
    compute_all(1, &none);
    passes(1);
    params.max_kept_bytes = 1; /* they are made again for each row */
    passes(1);
    changed.value = 1000;
    changed.request = 2;
    changed.key = 0;
    changed.kv_head = 0;
    changed.dimension = 255;
    memcpy(before, numbers, sizeof before);
    compute_all(1, &none);
    moved_rows_fail(1, 3, 54 - 5);
    changed.value = 0;
    scales[0] = (struct verify_scales){ATTN_FP8_E4M3, k_scales, NULL, 1, false};
    compute_all(1, &none);
    scales[0] = (struct verify_scales){.kv_dtype = ATTN_FP8_E4M3, .packed = true};
    ck_assert_int_gt(judge(1).rows_failed, 40);
    reads_new_unquantised[0] = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    new_as_given = true;
    compute_all(1, &none);
    passes(1);
    new_as_given = false;
    compute_all(1, &none);
    ck_assert_int_gt(judge(1).rows_failed, 40);
    tear_down_model();
}

/* Extend steps of the expanded form have keys and values of every head, read as given, prefixes
 * too; decodes read latents, and those are quantised. */
TEST_OF(quantised, expanded_latents)
{
    char ini[512];
    snprintf(ini, sizeof ini, "%s[attention]\nmla_prefill = expanded\n", models[LATENT]);
    set_up_model(ini, 2);
    scales[0] = (struct verify_scales){ATTN_FP8_E4M3, k_scales, k_scales + 1, 1, false};
    for (int32_t layer = 0; layer < 2; layer++) {
        compute_all(layer, &none);
        passes(layer);
        ck_assert_int_eq(out.shape[2], 9);
    }
    model->mla_expanded = 0;
    compute_all(1, &none);
    passes(1);
    model->mla_expanded = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    ck_assert_int_gt(judge(1).rows_failed, 40);
    set_step(ATTN_MODE_DECODE, decode_sequences);
    compute_all(1, &none);
    passes(1);
    scales[0].k = k_scales + 1;
    ck_assert_int_gt(judge(1).rows_failed, 0);
    tear_down_model();
}

/* An encoder has no cache: nothing is quantised, whatever the decoder's cache is. */
TEST_OF(quantised, encoder_without_cache)
{
    set_up_model(models[ENCODER], 1);
    compute_all(0, &none);
    quantise(ATTN_FP8_E4M3, 1);
    passes(0);
    tear_down_model();
}

/* Cross attention: every row sees all keys of an encoder, those that its step brings and those
 * that are cached. A key too few, or one that is read as what it is not, shows. */
TEST_OF(quantised, cross_attention_reads_an_encoder)
{
    enum { CROSS = 1, KEYS = 64 };
    set_up_model(MODEL "num_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 16\ndtype = f32\n"
                       "layer_types = full, cross\n",
                 1);
    for (int s = 0; s < NUM_SEQUENCES; s++) {
        sequences[s].encoder_len = KEYS;
        sequences[s].encoder_new = sequences[s].prefix_len == 0 ? KEYS : 0;
    }
    compute_all(CROSS, &none);
    passes(CROSS);
    for (int s = 0; s < NUM_SEQUENCES; s++)
        sequences[s].encoder_len--;
    ck_assert_int_gt(judge(CROSS).rows_failed, 0);
    for (int s = 0; s < NUM_SEQUENCES; s++)
        sequences[s].encoder_len++;
    quantise(ATTN_FP8_E4M3, 1);
    scales[1] = scales[0];
    new_as_given = true;
    reads_new_unquantised[1] = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    compute_all(CROSS, &none);
    passes(CROSS);
    for (int s = 0; s < NUM_SEQUENCES; s++)
        sequences[s].encoder_new = KEYS - sequences[s].encoder_new;
    ck_assert_int_gt(judge(CROSS).rows_failed, 0);
    new_as_given = false;
    tear_down_model();
}

/* ---- Same result, however it is computed ----------------------------------------------------- */

static void same(const struct verify_result *a, const struct verify_result *b)
{
    ck_assert_int_eq(a->rows_failed, b->rows_failed);
    ck_assert_double_eq(a->max_abs_error, b->max_abs_error);
    ck_assert_double_eq(a->max_rel_error, b->max_rel_error);
    ck_assert_str_eq(a->first_failure, b->first_failure);
}

/* Everything from row 5 on is wrong, so that threads race for the first failure. */
static void spoil(void)
{
    compute_all(0, &none);
    for (int row = 5; row < 54; row++)
        for (int h = 0; h < MAX_HEADS; h++)
            numbers[row][h][h] += 1 + row + h;
    store_all(0, ATTN_F32);
}

TEST_OF(same, any_number_of_threads)
{
    set_up_model(models[GROUPED], 1);
    spoil();
    struct verify_result one = judge(0);
    ck_assert_int_eq(one.rows_failed, 49);
    ck_assert_ptr_nonnull(strstr(one.first_failure, "request 1, position 13, layer 0, head 0, "));
    threads_destroy(threads);
    ck_assert_int_eq(threads_create(3, &threads, NULL), ATTN_OK);
    params.threads = threads;
    for (int n = 0; n < 20; n++) {
        struct verify_result three = judge(0);
        same(&one, &three);
    }
    tear_down_model();
}

/* Keys made again for each row, and made for several rows: a row keeps three numbers of each of up
 * to 37 keys. */
TEST_OF(same, rows_together_or_not)
{
    set_up_model(models[GROUPED], 2);
    compute_all(0, &none);
    struct verify_result kept = judge(0);
    static const uint64_t limits[] = {1, 2 * 37 * 24 + 2, 5 * 37 * 24 + 5, 37 * 37 * 24};
    for (size_t n = 0; n < sizeof limits / sizeof *limits; n++) {
        params.max_kept_bytes = limits[n];
        passes(0);
        struct verify_result again = judge(0);
        same(&kept, &again);
    }
    quantise(ATTN_FP8_E4M3, 2);
    compute_all(0, &none);
    params.max_kept_bytes = 1;
    passes(0);
    tear_down_model();
}

/* After a signal no row is judged, and none counts as such. The last test: a signal stays seen, where tests do not
 * fork. */
TEST_OF(interrupted, rows_after_a_signal)
{
    set_up_model(models[GROUPED], 2);
    spoil();
    ck_assert_int_eq(judge(0).rows_unjudged, 0);
    interrupt_take();
    raise(SIGTERM);
    for (int concurrent = 0; concurrent < 2; concurrent++) {
        params.concurrent = concurrent;
        struct verify_result result = judge(0);
        ck_assert_int_eq(result.rows_failed, 0);
        ck_assert_int_eq(result.rows_unjudged, 54);
    }
    params.concurrent = false;
    tear_down_model();
}

ENTER_TEST(drafts, all_rows_of_a_verification, LATENT, NUM_MODELS);
GROUP(wrong, .tags = "long");
GROUP(same, .tags = "long");
GROUP(interrupted);
TESTS("verify");
