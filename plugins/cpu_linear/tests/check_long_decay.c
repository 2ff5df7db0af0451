/* SPDX-License-Identifier: Apache-2.0
 *
 * check_long_decay: lightning attention over a long prompt. Its decay is one number for all rows,
 * so a rounding of it would not average out. And over a prompt that is cut where chunks do not end:
 * with BATCH_INVARIANT the cut may not show.
 */
#include "attnhost.h"
#include "host/base/error.h"
#include "host/base/mix.h"
#include "tests/tools/test_main.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 16, CHANNELS = 3 * DIM, TOKENS = 32768, SLOTS = 2 };

static float rows[TOKENS][CHANNELS], out[TOKENS][DIM], state[SLOTS][DIM][DIM];
static double expected[DIM][DIM];

/* Keys and values whose products have a mean, so that old ones count, and noise. */
static void make_rows(void)
{
    uint64_t seed = 7;
    for (int t = 0; t < TOKENS; t++)
        for (int c = 0; c < CHANNELS; c++) {
            seed = mix_absorb(seed, (uint64_t)(t * CHANNELS + c));
            rows[t][c] = 0.25f + (float)(seed >> 40) / (1 << 24);
        }
}

/* S <- e^a S + k v', in fp64. */
static void expect_state(float log_decay)
{
    const double decay = exp(log_decay);
    memset(expected, 0, sizeof expected);
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < DIM; i++)
            for (int j = 0; j < DIM; j++)
                expected[i][j] = decay * expected[i][j] +
                                 (double)rows[t][DIM + i] * (double)rows[t][2 * DIM + j];
}

/* ---- One layer, one head, one sequence ------------------------------------------------------- */

static const attn_linear_dims dims = {.struct_size = sizeof dims,
                                      .family = ATTN_LINEAR_LIGHTNING,
                                      .num_k_heads = 1,
                                      .num_v_heads = 1,
                                      .head_k_dim = DIM,
                                      .head_v_dim = DIM,
                                      .state_dtype = ATTN_F32};
static const attn_layer layer = {.struct_size = sizeof layer};
static const attn_layer_group group = {.struct_size = sizeof group,
                                       .kind = ATTN_KIND_LINEAR,
                                       .window_left = -1,
                                       .sm_scale = 1,
                                       .num_layers = 1,
                                       .layers = &layer,
                                       .linear = &dims};
static const attn_bounds bounds = {.struct_size = sizeof bounds,
                                   .modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND),
                                   .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                                   .max_seqs = 1,
                                   .max_tokens = TOKENS,
                                   .max_q_len = TOKENS,
                                   .max_kv_len = TOKENS,
                                   .max_kv_tokens = TOKENS};

static host_error error;

#define GOOD(call) ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))

static void view(attn_tensor *tensor, void *data, uint32_t ndim, const int64_t *shape)
{
    GOOD(attnhost_tensor_init(tensor, data, ATTN_DEVICE_CPU, 0, ATTN_F32, ndim, shape, NULL,
                              &error.base));
}

static void forward(attnhost_metadata *metadata, float log_decay, int32_t first, int32_t count)
{
    attn_tensor mixed_qkv, written, slots, a_log;
    view(&mixed_qkv, rows[first], 2, (const int64_t[]){count, CHANNELS});
    view(&written, out[first], 3, (const int64_t[]){count, 1, DIM});
    view(&slots, state, 4, (const int64_t[]){SLOTS, 1, DIM, DIM});
    view(&a_log, &log_decay, 1, (const int64_t[]){1});
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {[ATTN_ROLE_MIXED_QKV] = &mixed_qkv,
                                                    [ATTN_ROLE_OUT] = &written,
                                                    [ATTN_ROLE_STATE] = &slots,
                                                    [ATTN_ROLE_A_LOG] = &a_log};
    const attn_forward_args args = {
        .struct_size = sizeof args, .num_operands = ATTN_ROLE_COUNT, .operands = operands};
    GOOD(attnhost_forward(metadata, 0, &args, NULL, &error.base));
}

static void plan(attnhost_metadata *metadata, int32_t first, int32_t count)
{
    const int32_t lens[] = {first + count}, prefixes[] = {first}, indptr[] = {0, count};
    const int32_t slot[] = {1}, initial[] = {first > 0};
    const attn_state_batch states = {
        .struct_size = sizeof states, .slot = {slot, slot}, .has_initial = {initial, initial}};
    const attn_batch batch = {.struct_size = sizeof batch,
                              .mode = ATTN_MODE_EXTEND,
                              .num_seqs = 1,
                              .num_tokens = count,
                              .num_real_seqs = 1,
                              .num_real_tokens = count,
                              .max_q_len = count,
                              .max_kv_len = first + count,
                              .seq_lens = {lens, lens},
                              .prefix_lens = {prefixes, prefixes},
                              .q_indptr = {indptr, indptr},
                              .num_state_groups = 1,
                              .state_groups = &states};
    GOOD(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base));
}

static attnhost *open_host(const char *isa)
{
    const attnhost_params params = {.struct_size = sizeof params, .num_threads = 1};
    const char *const pairs[] = {"isa", isa};
    const char *folder = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    char path[4096];
    attnhost *host;
    host_error_init(&error);
    ck_assert_msg(folder != NULL, "ATTNHOST_TEST_PLUGIN_DIR is not set");
    snprintf(path, sizeof path, "%s/cpu_linear.so", folder);
    GOOD(attnhost_create(&params, &host, &error.base));
    GOOD(attnhost_load_plugin(host, path, &error.base));
    GOOD(attnhost_define_backend(host, "linear", "cpu_linear", pairs, 1, &error.base));
    return host;
}

/* Prompt rows up to each of `ends`, ascending, in batches of their own. */
static void run(const char *isa, float log_decay, uint32_t needs, const int32_t *ends, int num_ends)
{
    attn_device device = {.struct_size = sizeof device};
    attnhost *host = open_host(isa);
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    GOOD(attnhost_device_init(&device, ATTN_DEVICE_CPU, 0, &error.base));
    const attn_problem problem = {.struct_size = sizeof problem,
                                  .device = &device,
                                  .group = &group,
                                  .bounds = &bounds,
                                  .state_layout = ATTN_LAYOUT_STATE_SSM_KV,
                                  .q_dtype = ATTN_F32,
                                  .kv_dtype = ATTN_F32,
                                  .out_dtype = ATTN_F32,
                                  .required_traits = needs,
                                  .tp_size = 1};
    GOOD(attnhost_compose(host, "linear", &problem, 1, &backend, &error.base));
    GOOD(attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, NULL, &metadata,
                                  &error.base));
    for (int e = 0; e < num_ends; e++) {
        int32_t first = e > 0 ? ends[e - 1] : 0;
        plan(metadata, first, ends[e] - first);
        forward(metadata, log_decay, first, ends[e] - first);
    }
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
    attnhost_destroy(host);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static const char *const isas[] = {"generic", "auto"};

/* The first rounds to a neighbour of 1 that is 1.5 times as far, the second to 1: decays of single
 * rows, multiplied, are off by 3e-4 of the state at the end. The third forgets within the prompt.
 */
static const float log_decays[] = {-4e-8f, -2e-8f, -1e-3f};

enum { ISAS = sizeof isas / sizeof isas[0], DECAYS = sizeof log_decays / sizeof log_decays[0] };

LOOP_OF(long_decay, the_state_of_a_long_prompt, 0, (ISAS * DECAYS))
{
    const float log_decay = log_decays[_i % DECAYS];
    double worst = 0;
    make_rows();
    expect_state(log_decay);
    run(isas[_i / DECAYS], log_decay, 0, (const int32_t[]){TOKENS}, 1);
    for (int i = 0; i < DIM; i++)
        for (int j = 0; j < DIM; j++)
            worst = fmax(worst, fabs(state[1][i][j] / expected[i][j] - 1));
    ck_assert_msg(worst < 2e-6, "log decay %g: the state is off by %g of itself", (double)log_decay,
                  worst);
}

/* A row alone, too, as decode has them. */
LOOP_OF(long_decay, the_cut_of_a_prompt_does_not_show, 0, ISAS)
{
    static const int32_t whole[] = {300}, cut[] = {40, 41, 105, 206, 300};
    static float out_of_whole[300][DIM], state_of_whole[DIM][DIM];
    make_rows();
    run(isas[_i], -1e-3f, ATTN_TRAIT_BATCH_INVARIANT, whole, 1);
    memcpy(out_of_whole, out, sizeof out_of_whole);
    memcpy(state_of_whole, state[1], sizeof state_of_whole);
    memset(out, 0, sizeof out);
    run(isas[_i], -1e-3f, ATTN_TRAIT_BATCH_INVARIANT, cut, 5);
    ck_assert_mem_eq(out, out_of_whole, sizeof out_of_whole);
    ck_assert_mem_eq(state[1], state_of_whole, sizeof state_of_whole);
}

TESTS("long_decay");
