/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle of linear layers against the authors' own code in float64 (tests/golden/linear.txt):
 * each case as a whole forward, split into several, and token by token, in both layouts.
 */
#include "tests/tools/golden_file.h"
#include "tests/tools/test_main.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/reference/linear.h"

#include <math.h>
#include <string.h>

#define TOLERANCE 1e-12

enum { MAX_SEQS = 8, MAX_ROWS = 128, FIRST_SLOT = 2, NUM_SLOTS = 2 * MAX_SEQS + 3 };

/* A case as batch: sequence s reads slot FIRST_SLOT + s, and writes it or the one MAX_SEQS on. */
struct golden_linear {
    attn_layer layer;
    attn_linear_dims dims;
    attn_layer_group group;
    attn_problem problem;
    attn_state_batch state_batch;
    attn_batch batch;
    attn_forward_args args;
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    host_error error;
    int32_t num_seqs;
    int32_t num_rows;
    int32_t channels;
    int32_t q_indptr[MAX_SEQS + 1];
    int32_t slot[MAX_SEQS], dst_slot[MAX_SEQS], has_initial[MAX_SEQS];
};

/* ---- Tensors --------------------------------------------------------------------------------- */

static attn_tensor *add_tensor(struct golden_linear *g, uint32_t role, attn_dtype dtype,
                               uint32_t ndim, const int64_t *shape)
{
    attn_tensor *tensor = &g->tensors[role];
    int64_t count = 1;
    *tensor = (attn_tensor){.struct_size = sizeof *tensor, .dtype = dtype, .ndim = ndim};
    for (uint32_t d = ndim; d-- > 0;) {
        tensor->shape[d] = shape[d];
        tensor->strides[d] = count;
        count *= shape[d] > 0 ? shape[d] : 1;
    }
    tensor->data = calloc((size_t)count, attn_dtype_size(dtype));
    g->operands[role] = tensor;
    return tensor;
}

#define ADD(g, role, dtype, ...)                                                                   \
    add_tensor(g, ATTN_ROLE_##role, dtype,                                                         \
               (uint32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                     \
               (int64_t[]){__VA_ARGS__})

/* Fill a tensor with a field in units of 1/64, if the record has it; else the tensor is not there.
 */
static void fill(struct golden_linear *g, uint32_t role, const golden_case *record, const char *key)
{
    int64_t count;
    const double *values = golden_find(record, key, &count);
    attn_tensor *tensor = &g->tensors[role];
    if (!values) {
        g->operands[role] = NULL;
        return;
    }
    for (int64_t n = 0; n < count; n++)
        dtype_store(tensor->dtype, tensor->data, n, values[n] / 64);
}

static void add_operands(struct golden_linear *g, const golden_case *record, attn_dtype dtype)
{
    const attn_linear_dims *d = &g->dims;
    int64_t rows = g->num_rows, heads = d->num_v_heads, values = d->head_v_dim;
    attn_dtype gate = d->flags & ATTN_LINEAR_RAW_GATES ? dtype : ATTN_F32;
    int64_t skips;
    golden_find(record, "D", &skips);
    ADD(g, MIXED_QKV, dtype, rows, g->channels);
    if (d->family == ATTN_LINEAR_KDA) {
        ADD(g, GATE_A, gate, rows, heads, d->head_k_dim);
        ADD(g, DT_BIAS, ATTN_F32, heads * d->head_k_dim);
    } else {
        ADD(g, GATE_A, gate, rows, heads);
        ADD(g, DT_BIAS, ATTN_F32, heads);
    }
    ADD(g, GATE_B, gate, rows, heads);
    ADD(g, GATE_Z, dtype, rows, heads, values);
    ADD(g, A_LOG, ATTN_F32, heads);
    if (skips > heads)
        ADD(g, D_SKIP, ATTN_F32, heads, values);
    else
        ADD(g, D_SKIP, ATTN_F32, heads);
    ADD(g, CONV_WEIGHT, dtype, g->channels, d->conv_width);
    ADD(g, CONV_BIAS, dtype, g->channels);
    fill(g, ATTN_ROLE_MIXED_QKV, record, "mixed");
    fill(g, ATTN_ROLE_GATE_A, record, "a");
    fill(g, ATTN_ROLE_GATE_B, record, "b");
    fill(g, ATTN_ROLE_GATE_Z, record, "z");
    fill(g, ATTN_ROLE_A_LOG, record, "A_log");
    fill(g, ATTN_ROLE_DT_BIAS, record, "dt_bias");
    fill(g, ATTN_ROLE_D_SKIP, record, "D");
    fill(g, ATTN_ROLE_CONV_WEIGHT, record, "conv_weight");
    fill(g, ATTN_ROLE_CONV_BIAS, record, "conv_bias");
}

static double *state_at(const struct golden_linear *g, int32_t slot, int64_t h, int64_t i,
                        int64_t j)
{
    const attn_tensor *pool = &g->tensors[ATTN_ROLE_STATE];
    int vk = strcmp(g->problem.state_layout, ATTN_LAYOUT_STATE_SSM_VK) == 0;
    return (double *)pool->data + slot * pool->strides[0] + h * pool->strides[1] +
           (vk ? j : i) * pool->strides[2] + (vk ? i : j);
}

/* The pools, of float64, so that passing a state on rounds nothing. Other slots are NaN. */
static void add_pools(struct golden_linear *g, const golden_case *record)
{
    const attn_linear_dims *d = &g->dims;
    int vk = strcmp(g->problem.state_layout, ATTN_LAYOUT_STATE_SSM_VK) == 0;
    const double *state = golden_find(record, "state", NULL);
    const double *conv = golden_find(record, "conv_state", NULL);
    int64_t taps = d->conv_width > 0 ? d->conv_width - 1 : 0, inputs = g->channels * taps;
    attn_tensor *states =
        ADD(g, STATE, ATTN_F64, NUM_SLOTS, d->num_v_heads, vk ? d->head_v_dim : d->head_k_dim,
            vk ? d->head_k_dim : d->head_v_dim);
    attn_tensor *convs = ADD(g, CONV_STATE, ATTN_F64, NUM_SLOTS, g->channels, taps);
    for (int64_t n = 0; state && n < NUM_SLOTS * states->strides[0]; n++)
        ((double *)states->data)[n] = NAN;
    for (int64_t n = 0; n < NUM_SLOTS * inputs; n++)
        ((double *)convs->data)[n] = NAN;
    for (int32_t s = 0; s < g->num_seqs; s++) {
        for (int64_t n = 0; g->has_initial[s] && n < inputs; n++)
            ((double *)convs->data)[(FIRST_SLOT + s) * inputs + n] = conv[s * inputs + n] / 64;
        for (int64_t h = 0; g->has_initial[s] && state && h < d->num_v_heads; h++)
            for (int64_t i = 0; i < d->head_k_dim; i++)
                for (int64_t j = 0; j < d->head_v_dim; j++)
                    *state_at(g, FIRST_SLOT + s, h, i, j) =
                        state[((s * d->num_v_heads + h) * d->head_k_dim + i) * d->head_v_dim + j] /
                        64;
    }
}

/* ---- The case -------------------------------------------------------------------------------- */

static void set_dims(struct golden_linear *g, const golden_case *record)
{
    g->dims = (attn_linear_dims){
        .struct_size = sizeof g->dims,
        .family = (uint32_t)golden_number(record, "family"),
        .flags = (uint32_t)golden_number(record, "flags"),
        .num_k_heads = (int32_t)golden_number(record, "k_heads"),
        .num_v_heads = (int32_t)golden_number(record, "v_heads"),
        .head_k_dim = (int32_t)golden_number(record, "k_dim"),
        .head_v_dim = (int32_t)golden_number(record, "v_dim"),
        .conv_width = (int32_t)golden_number(record, "width"),
        .state_dtype = ATTN_F64,
        .conv_dtype = ATTN_F64,
        .dt_min = (float)golden_number(record, "dt_min"),
        .dt_max = (float)golden_number(record, "dt_max"),
        .lower_bound = (float)golden_number(record, "lower_bound"),
    };
    if (g->dims.family == ATTN_LINEAR_MAMBA2)
        g->dims.num_groups = g->dims.num_k_heads;
    g->channels =
        2 * g->dims.num_k_heads * g->dims.head_k_dim + g->dims.num_v_heads * g->dims.head_v_dim;
}

static void set_sequences(struct golden_linear *g, const golden_case *record)
{
    int64_t count;
    const double *lens = golden_get(record, "lens", &count);
    const double *initial = golden_get(record, "initial", NULL);
    ck_assert_int_le(count, MAX_SEQS);
    g->num_seqs = (int32_t)count;
    for (int32_t s = 0; s < g->num_seqs; s++) {
        g->q_indptr[s + 1] = g->q_indptr[s] + (int32_t)lens[s];
        g->has_initial[s] = (int32_t)initial[s];
        g->slot[s] = FIRST_SLOT + s;
        g->dst_slot[s] = FIRST_SLOT + (s % 2 ? s : s + MAX_SEQS);
    }
    g->num_rows = g->q_indptr[count];
    ck_assert_int_le(g->num_rows, MAX_ROWS);
}

static struct golden_linear *golden_create(const golden_case *record, const char *layout,
                                           attn_dtype dtype)
{
    struct golden_linear *g = calloc(1, sizeof *g);
    host_error_init(&g->error);
    set_dims(g, record);
    set_sequences(g, record);
    g->layer = (attn_layer){.struct_size = sizeof g->layer, .layer_id = 3};
    g->group = (attn_layer_group){.struct_size = sizeof g->group,
                                  .kind = ATTN_KIND_LINEAR,
                                  .sm_scale = (float)golden_number(record, "sm_scale"),
                                  .num_layers = 1,
                                  .layers = &g->layer,
                                  .linear = &g->dims};
    g->problem = (attn_problem){.struct_size = sizeof g->problem,
                                .group = &g->group,
                                .state_layout = layout,
                                .q_dtype = dtype,
                                .out_dtype = ATTN_F32};
    g->state_batch = (attn_state_batch){.struct_size = sizeof g->state_batch,
                                        .slot = {.device = g->slot},
                                        .dst_slot = {.device = g->dst_slot},
                                        .has_initial = {.device = g->has_initial}};
    g->batch = (attn_batch){.struct_size = sizeof g->batch,
                            .mode = ATTN_MODE_EXTEND,
                            .num_seqs = g->num_seqs,
                            .num_tokens = g->num_rows,
                            .num_real_seqs = g->num_seqs,
                            .num_real_tokens = g->num_rows,
                            .q_indptr = {.device = g->q_indptr},
                            .num_state_groups = 1,
                            .state_groups = &g->state_batch};
    add_operands(g, record, dtype);
    add_pools(g, record);
    g->args = (attn_forward_args){
        .struct_size = sizeof g->args, .num_operands = ATTN_ROLE_COUNT, .operands = g->operands};
    return g;
}

static void golden_destroy(struct golden_linear *g)
{
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        free(g->tensors[role].data);
    free(g);
}

static void assert_near(const golden_case *record, const char *what, int64_t n, double actual,
                        double expected)
{
    ck_assert_msg(fabs(actual - expected) <= TOLERANCE * fmax(1, fabs(expected)),
                  "%s: %s[%lld] is %.17g, not %.17g", record->name, what, (long long)n, actual,
                  expected);
}

static void forward(struct golden_linear *g, reference_result *result, reference_states *states)
{
    attn_status status = reference_linear_forward(&g->problem, &g->batch, 3, &g->args, result,
                                                  states, &g->error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&g->error));
}

/* ---- Whole ----------------------------------------------------------------------------------- */

static const reference_state *find_state(const reference_states *states, int32_t slot)
{
    for (int64_t n = 0; n < states->count; n++)
        if (states->entries[n].slot == slot)
            return &states->entries[n];
    ck_abort_msg("slot %d is not written", slot);
    return NULL;
}

static void check_states(const struct golden_linear *g, const golden_case *record,
                         const reference_states *states)
{
    int64_t size = 0, inputs = 0;
    const double *state = golden_find(record, "final_state", &size);
    const double *conv = golden_find(record, "final_conv", &inputs);
    size /= g->num_seqs;
    inputs /= g->num_seqs;
    ck_assert_int_eq(states->count, g->num_seqs);
    for (int32_t s = 0; s < g->num_seqs; s++) {
        const reference_state *entry = find_state(states, g->dst_slot[s]);
        for (int64_t n = 0; state && n < size; n++)
            assert_near(record, "final_state", s * size + n, entry->state[n], state[s * size + n]);
        for (int64_t n = 0; conv && n < inputs; n++)
            ck_assert_double_eq(entry->conv[n], conv[s * inputs + n] / 64);
    }
}

static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16};
static const char *const layouts[] = {ATTN_LAYOUT_STATE_SSM_KV, ATTN_LAYOUT_STATE_SSM_VK};

LOOP_OF(golden, whole_cases, 0, 4)
{
    golden_case record;
    FILE *file = golden_open("linear.txt");
    int cases = 0;
    while (golden_next(file, &record)) {
        int64_t count;
        const double *out = golden_get(&record, "out", &count);
        struct golden_linear *g = golden_create(&record, layouts[_i & 1], dtypes[_i >> 1]);
        reference_result result;
        reference_states states;
        forward(g, &result, &states);
        ck_assert_int_eq(result.num_rows * result.num_heads * result.v_head_dim, count);
        for (int64_t n = 0; n < count; n++)
            assert_near(&record, "out", n, result.out[n], out[n]);
        check_states(g, &record, &states);
        reference_result_finish(&result);
        reference_states_finish(&states);
        golden_destroy(g);
        golden_finish(&record);
        cases++;
    }
    fclose(file);
    ck_assert_int_eq(cases, 19);
}

/* ---- In parts -------------------------------------------------------------------------------- */

/* Write what the slots must hold into the pools. */
static void hand_over(struct golden_linear *g, const reference_states *states)
{
    for (int64_t n = 0; n < states->count; n++) {
        const reference_state *entry = &states->entries[n];
        const double *next = entry->state;
        for (int64_t h = 0; next && h < states->num_heads; h++)
            for (int64_t i = 0; i < states->k_dim; i++)
                for (int64_t j = 0; j < states->v_dim; j++)
                    *state_at(g, entry->slot, h, i, j) = *next++;
        int64_t inputs = (int64_t)states->num_channels * states->num_taps;
        if (entry->conv)
            memcpy((double *)g->tensors[ATTN_ROLE_CONV_STATE].data + entry->slot * inputs,
                   entry->conv, (size_t)inputs * sizeof(double));
    }
}

/* Rows [first, first + rows) of each sequence that has them, of all those that began with the same
 * slot. Rows of others are of no sequence. */
static void check_part(struct golden_linear *g, const golden_case *record, int32_t s, int32_t first,
                       int32_t rows, int decode)
{
    const double *out = golden_get(record, "out", NULL);
    int32_t whole[MAX_SEQS + 1],
        indptr[2] = {g->q_indptr[s] + first, g->q_indptr[s] + first + rows};
    int64_t width = (int64_t)g->dims.num_v_heads * g->dims.head_v_dim;
    reference_result result;
    reference_states states;
    memcpy(whole, g->q_indptr, sizeof whole);
    memcpy(g->q_indptr, indptr, sizeof indptr);
    g->batch.num_seqs = g->batch.num_real_seqs = 1;
    g->batch.mode = decode ? ATTN_MODE_DECODE : ATTN_MODE_EXTEND;
    g->state_batch.slot.device = g->state_batch.dst_slot.device = &g->slot[s];
    g->state_batch.has_initial.device = &g->has_initial[s];
    /* DECODE takes row 0: the operands of each row begin there. */
    for (uint32_t role = 0; decode && role < ATTN_ROLE_COUNT; role++)
        if (role == ATTN_ROLE_MIXED_QKV || role == ATTN_ROLE_GATE_A || role == ATTN_ROLE_GATE_B ||
            role == ATTN_ROLE_GATE_Z)
            g->tensors[role].byte_offset = (uint64_t)(indptr[0] * g->tensors[role].strides[0] *
                                                      attn_dtype_size(g->tensors[role].dtype));
    forward(g, &result, &states);
    for (int64_t n = 0; n < rows * width; n++)
        assert_near(record, "out", indptr[0] * width + n,
                    result.out[(decode ? 0 : indptr[0]) * width + n], out[indptr[0] * width + n]);
    hand_over(g, &states);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        g->tensors[role].byte_offset = 0;
    reference_result_finish(&result);
    reference_states_finish(&states);
    memcpy(g->q_indptr, whole, sizeof whole);
    g->has_initial[s] = 1;
}

/* _i rows at a time; 0 = single rows as DECODE. */
LOOP_OF(golden, in_parts, 0, 6)
{
    golden_case record;
    FILE *file = golden_open("linear.txt");
    int32_t step = _i > 0 ? _i : 1;
    while (golden_next(file, &record)) {
        struct golden_linear *g = golden_create(&record, layouts[0], ATTN_F32);
        int64_t size = 0;
        const double *state = golden_find(&record, "final_state", &size);
        for (int32_t s = 0; s < g->num_seqs; s++) {
            int32_t rows = g->q_indptr[s + 1] - g->q_indptr[s];
            for (int32_t t = 0; t < rows; t += step)
                check_part(g, &record, s, t, t + step < rows ? step : rows - t, _i == 0);
            for (int64_t n = 0; state && rows > 0 && n < size / g->num_seqs; n++)
                assert_near(&record, "final_state", n, *(state_at(g, g->slot[s], 0, 0, 0) + n),
                            state[s * (size / g->num_seqs) + n]);
        }
        golden_destroy(g);
        golden_finish(&record);
    }
    fclose(file);
}

/* ---- Slots ----------------------------------------------------------------------------------- */

/* The state after each row, as snapshots, is what the rows in parts begin with; slot 0 is dropped.
 */
TEST_OF(golden, snapshots)
{
    golden_case record;
    FILE *file = golden_open("linear.txt");
    while (golden_next(file, &record)) {
        struct golden_linear *g = golden_create(&record, layouts[1], ATTN_F32);
        int32_t snapshot[MAX_ROWS];
        reference_result result;
        reference_states whole, part;
        for (int32_t t = 0; t < g->num_rows; t++)
            snapshot[t] = -(t % 2); /* 0 and -1: none */
        int32_t last = g->num_seqs - 1, row = g->q_indptr[last];
        snapshot[row] = NUM_SLOTS - 1;
        g->state_batch.snapshots.device = snapshot;
        g->dst_slot[0] = 0;
        forward(g, &result, &whole);
        reference_result_finish(&result);
        ck_assert_int_eq(whole.count, g->num_seqs);
        g->q_indptr[last + 1] = row + 1;
        g->state_batch.snapshots.device = NULL;
        forward(g, &result, &part);
        reference_result_finish(&result);
        const reference_state *after = find_state(&whole, NUM_SLOTS - 1);
        const reference_state *same = find_state(&part, g->dst_slot[last]);
        int64_t size = (int64_t)whole.num_heads * whole.k_dim * whole.v_dim;
        for (int64_t n = 0; after->state && n < size; n++)
            ck_assert_double_eq(after->state[n], same->state[n]);
        for (int64_t n = 0; after->conv && n < (int64_t)whole.num_channels * whole.num_taps; n++)
            ck_assert_double_eq(after->conv[n], same->conv[n]);
        reference_states_finish(&whole);
        reference_states_finish(&part);
        golden_destroy(g);
        golden_finish(&record);
    }
    fclose(file);
}

/* A pool is judged by what it must hold: equal passes, one element next to it does not. */
LOOP_OF(golden, comparison, 0, 2)
{
    golden_case record;
    FILE *file = golden_open("linear.txt");
    ck_assert(golden_next(file, &record));
    fclose(file);
    struct golden_linear *g = golden_create(&record, layouts[_i], ATTN_F32);
    const attn_tensor *state = &g->tensors[ATTN_ROLE_STATE];
    const attn_tensor *conv = &g->tensors[ATTN_ROLE_CONV_STATE];
    reference_result result;
    reference_states states;
    forward(g, &result, &states);
    hand_over(g, &states);
    reference_report good = {0}, bad = {0}, worse = {0};
    ck_assert_int_eq(reference_compare_states(&states, state, conv, &good, NULL), ATTN_OK);
    ck_assert_msg(reference_report_passed(&good), "%s", good.message);
    ck_assert_int_eq(good.rows_checked, g->num_seqs * (g->dims.num_v_heads + g->channels));
    double *element = state_at(g, g->dst_slot[1], 2, 1, 3), kept = *element;
    *element += 1e-3;
    ck_assert_int_eq(reference_compare_states(&states, state, conv, &bad, NULL), ATTN_OK);
    ck_assert_int_eq(bad.rows_failed, 1);
    *element = kept;
    double *input = (double *)conv->data + g->dst_slot[0] * conv->strides[0] + 5;
    *input = nextafter(*input, 100);
    ck_assert_int_eq(reference_compare_states(&states, state, conv, &worse, NULL), ATTN_OK);
    ck_assert_int_eq(worse.rows_failed, 1);
    reference_result_finish(&result);
    reference_states_finish(&states);
    golden_destroy(g);
    golden_finish(&record);
}

/* What is missing or malformed is named. */
TEST_OF(golden, refusals)
{
    static const struct {
        uint32_t role;
        const char *text;
    } needed[] = {{ATTN_ROLE_MIXED_QKV, "mixed_qkv"},     {ATTN_ROLE_GATE_A, "operand a "},
                  {ATTN_ROLE_GATE_B, "operand b "},       {ATTN_ROLE_A_LOG, "A_log"},
                  {ATTN_ROLE_DT_BIAS, "dt_bias"},         {ATTN_ROLE_STATE, "state"},
                  {ATTN_ROLE_CONV_WEIGHT, "conv_weight"}, {ATTN_ROLE_CONV_STATE, "conv_state"}};
    golden_case record;
    FILE *file = golden_open("linear.txt");
    ck_assert(golden_next(file, &record));
    fclose(file);
    struct golden_linear *g = golden_create(&record, layouts[0], ATTN_F32);
    reference_result result;
    for (size_t n = 0; n < sizeof needed / sizeof needed[0]; n++) {
        const attn_tensor *kept = g->operands[needed[n].role];
        g->operands[needed[n].role] = NULL;
        ck_assert_int_eq(reference_linear_forward(&g->problem, &g->batch, 3, &g->args, &result,
                                                  NULL, &g->error.base),
                         ATTN_INVALID_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(host_error_text(&g->error), needed[n].text));
        g->operands[needed[n].role] = kept;
    }
    g->dst_slot[0] = g->dst_slot[1];
    reference_states states;
    ck_assert_int_eq(reference_linear_forward(&g->problem, &g->batch, 3, &g->args, &result, &states,
                                              &g->error.base),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&g->error), "written twice"));
    g->slot[0] = NUM_SLOTS;
    ck_assert_int_eq(reference_linear_forward(&g->problem, &g->batch, 3, &g->args, &result, NULL,
                                              &g->error.base),
                     ATTN_INVALID_ARGUMENT);
    golden_destroy(g);
    golden_finish(&record);
}

TESTS("linear_golden");
