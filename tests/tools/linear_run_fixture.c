/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_run_fixture.c: a model of one recurrent family, three requests, forwards of the oracle.
 */
#include "tests/tools/linear_run_fixture.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/model/build.h"
#include "tests/tools/test_main.h"

/* ---- A model, a workload --------------------------------------------------------------------- */

#define DIMS(family_, flags_, k_heads, v_heads, k_dim, v_dim, width, state, conv, least)           \
    {                                                                                              \
        .family = ATTN_LINEAR_##family_, .flags = flags_, .num_k_heads = k_heads,                  \
        .num_v_heads = v_heads, .head_k_dim = k_dim, .head_v_dim = v_dim, .conv_width = width,     \
        .num_groups = ATTN_LINEAR_##family_ == ATTN_LINEAR_MAMBA2 ? k_heads : 0,                   \
        .state_dtype = ATTN_##state, .conv_dtype = ATTN_##conv, .dt_min = least                    \
    }
#define RAW  ATTN_LINEAR_RAW_GATES
#define NORM ATTN_LINEAR_QK_L2NORM

static const attn_linear_dims models[RUN_ALL_MODELS] = {
    DIMS(GDN, RAW | NORM, 3, 6, 16, 12, 4, F32, BF16, 0),
    DIMS(GDN, 0, 2, 2, 9, 8, 2, BF16, F32, 0),
    DIMS(MAMBA2, RAW, 1, 11, 24, 5, 4, F32, BF16, 0.01f),
    DIMS(MAMBA2, 0, 2, 12, 8, 16, 3, BF16, BF16, 0),
    DIMS(KDA, RAW | NORM, 5, 5, 16, 16, 4, F32, BF16, 0),
    DIMS(KDA, NORM, 2, 4, 7, 10, 0, F32, DTYPE_NONE, 0),
    DIMS(LIGHTNING, 0, 6, 6, 16, 16, 0, F32, DTYPE_NONE, 0),
    DIMS(SHORT_CONV, 0, 0, 5, 0, 13, 4, F32, BF16, 0),
    DIMS(MAMBA2, RAW, 1, 4, 128, 24, 4, BF16, BF16, 0),
    DIMS(GDN, RAW | NORM, 1, 4, 128, 24, 4, BF16, BF16, 0),
};

static const int64_t hash_ids[RUN_REQUESTS][2] = {{1, 2}, {3, 4}, {1, 5}};
static const int64_t input_lengths[RUN_REQUESTS] = {37, 20, 5};
static trace_request requests[RUN_REQUESTS];
static generator_layer layers[RUN_LAYERS];
struct linear_run run;

void linear_run_seed(uint64_t seed)
{
    ck_assert_int_eq(generator_init(&run.generator, seed, layers, RUN_LAYERS, 4, RUN_CHUNK, NULL),
                     ATTN_OK);
}

void linear_run_init(int number, uint32_t num_threads)
{
    struct model_spec spec;
    int64_t max_len = number < RUN_MODELS ? RUN_MAX_LEN : RUN_LONG_LEN;
    run.model = model_new("test", "test", NULL);
    run.root = run.accepted = 0;
    run.model->dtype = ATTN_BF16;
    run.model->conv_bias = models[number].family == ATTN_LINEAR_MAMBA2 ||
                           models[number].family == ATTN_LINEAR_SHORT_CONV;
    model_spec_linear(&spec, &models[number]);
    for (int l = 0; l < RUN_LAYERS; l++)
        ck_assert_int_eq(model_add_layer(run.model, &spec, "decoder", l, NULL), ATTN_OK);
    model_settle(run.model);
    ck_assert_int_eq(run.model->num_groups, 1);
    run.group = &run.model->groups[0];
    for (int r = 0; r < RUN_REQUESTS; r++)
        requests[r] = (trace_request){.input_length = input_lengths[r],
                                      .output_length = max_len - input_lengths[r],
                                      .num_hash_ids = 2,
                                      .hash_ids = hash_ids[r]};
    struct trace trace = {.path = "some.trace",
                          .block_tokens = 512,
                          .num_requests = RUN_REQUESTS,
                          .requests = requests};
    ck_assert_int_eq(
        workload_init(&run.workload, &trace,
                      &(workload_params){.length_scale = 1, .max_context_len = 2 * max_len}, NULL),
        ATTN_OK);
    linear_run_seed(5);
    ck_assert_int_eq(threads_create(num_threads, &run.threads, NULL), ATTN_OK);
}

void linear_run_finish(void)
{
    threads_destroy(run.threads);
    workload_finish(&run.workload);
    model_destroy(run.model);
}

/* ---- A whole forward of the oracle ----------------------------------------------------------- */

static attn_tensor *add_tensor(struct forward *f, uint32_t role, attn_dtype dtype, int64_t rows,
                               uint32_t ndim, const int64_t *shape)
{
    attn_tensor *tensor = &f->tensors[role];
    int64_t count = 1;
    *tensor = (attn_tensor){.struct_size = sizeof *tensor, .dtype = dtype};
    if (rows >= 0)
        tensor->shape[tensor->ndim++] = rows;
    for (uint32_t d = 0; d < ndim; d++)
        tensor->shape[tensor->ndim++] = shape[d];
    for (uint32_t d = tensor->ndim; d-- > 0;) {
        tensor->strides[d] = count;
        count *= tensor->shape[d];
    }
    tensor->data = calloc((size_t)count + 1, attn_dtype_size(dtype));
    f->operands[role] = tensor;
    return tensor;
}

/* The number whose token at `position` a forward of the request has. */
static int64_t number_at(int64_t request, int64_t position)
{
    if (run.root == 0 || position < run.root + run.accepted)
        return request;
    return request + RUN_REQUESTS * (1 + position - run.root);
}

static void add_operands(struct forward *f, int64_t request, int32_t layer, int64_t first,
                         int64_t count, bool with_z)
{
    static float floats[RUN_MAX_CHANNELS * 4];
    uint32_t given = generator_linear_given(run.group, run.model->conv_bias) |
                     (with_z ? 1u << ATTN_ROLE_GATE_Z : 0);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        bool is_row = role >= ATTN_ROLE_MIXED_QKV && role <= ATTN_ROLE_GATE_Z;
        int64_t shape[2], elements = generator_linear_elements(run.group, role);
        attn_dtype dtype = generator_linear_dtype(run.group, role, run.model->dtype);
        uint32_t ndim = generator_linear_shape(run.group, role, shape);
        if (!(given & 1u << role))
            continue;
        attn_tensor *tensor = add_tensor(f, role, dtype, is_row ? count : -1, ndim, shape);
        ck_assert_int_le(elements, RUN_MAX_CHANNELS * 4);
        for (int64_t t = 0; is_row && t < count; t++)
            generator_linear_row(
                &run.generator, run.group, layer,
                workload_token_key(&run.workload, number_at(request, first + t), first + t), role,
                dtype, (char *)tensor->data + (size_t)(t * elements) * attn_dtype_size(dtype));
        if (is_row)
            continue;
        generator_linear_constant(&run.generator, run.group, layer, role, floats);
        dtype_from_float(dtype, floats, elements, tensor->data);
    }
}

static void add_pools(struct forward *f)
{
    const attn_linear_dims *dims = run.group->linear;
    int64_t channels = generator_linear_elements(run.group, ATTN_ROLE_MIXED_QKV);
    if (dims->family != ATTN_LINEAR_SHORT_CONV)
        add_tensor(f, ATTN_ROLE_STATE, dims->state_dtype, 3, 3,
                   (int64_t[]){dims->num_v_heads, dims->head_k_dim, dims->head_v_dim});
    if (dims->conv_width > 1)
        add_tensor(f, ATTN_ROLE_CONV_STATE, dims->conv_dtype, 3, 2,
                   (int64_t[]){channels, dims->conv_width - 1});
}

/* Slot 1 holds the results of an earlier forward, in the pools' dtypes. */
static void load_pools(struct forward *f, const reference_states *states)
{
    const reference_state *entry = &states->entries[0];
    int64_t size = (int64_t)states->num_heads * states->k_dim * states->v_dim;
    int64_t inputs = (int64_t)states->num_channels * states->num_taps;
    for (int64_t n = 0; entry->state && n < size; n++)
        dtype_store(run.group->linear->state_dtype, f->tensors[ATTN_ROLE_STATE].data, size + n,
                    entry->state[n]);
    for (int64_t n = 0; entry->conv && n < inputs; n++)
        dtype_store(run.group->linear->conv_dtype, f->tensors[ATTN_ROLE_CONV_STATE].data,
                    inputs + n, entry->conv[n]);
}

struct forward *forward_create(int64_t request, int32_t layer, int64_t first, int64_t count,
                               const reference_states *before, bool with_z)
{
    HOST_ERROR(error);
    struct forward *f = calloc(1, sizeof *f);
    *f = (struct forward){.indptr = {0, (int32_t)count}, .slot = 1, .dst = 2, .initial = !!before};
    f->state_batch = (attn_state_batch){.struct_size = sizeof f->state_batch,
                                        .slot = {.device = &f->slot},
                                        .dst_slot = {.device = &f->dst},
                                        .has_initial = {.device = &f->initial}};
    f->batch = (attn_batch){.struct_size = sizeof f->batch,
                            .mode = ATTN_MODE_EXTEND,
                            .num_seqs = 1,
                            .num_real_seqs = 1,
                            .num_tokens = (int32_t)count,
                            .num_real_tokens = (int32_t)count,
                            .q_indptr = {.device = f->indptr},
                            .num_state_groups = 1,
                            .state_groups = &f->state_batch};
    f->problem = (attn_problem){.struct_size = sizeof f->problem,
                                .group = run.group,
                                .state_layout = ATTN_LAYOUT_STATE_SSM_KV,
                                .q_dtype = run.model->dtype,
                                .out_dtype = run.model->dtype};
    f->args = (attn_forward_args){
        .struct_size = sizeof f->args, .num_operands = ATTN_ROLE_COUNT, .operands = f->operands};
    add_operands(f, request, layer, first, count, with_z);
    add_pools(f);
    if (before)
        load_pools(f, before);
    attn_status status = reference_linear_forward(&f->problem, &f->batch, layer, &f->args,
                                                  &f->result, &f->states, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return f;
}

void forward_destroy(struct forward *f)
{
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        free(f->tensors[role].data);
    reference_result_finish(&f->result);
    reference_states_finish(&f->states);
    free(f);
}
