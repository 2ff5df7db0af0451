/* SPDX-License-Identifier: Apache-2.0
 *
 * check_linear_shim.c: bench/linear_shim.c on a GPU, by the fake CUDA driver and linear_like with
 * host functions for kernels: lightning attention of a prompt and of a decode, eagerly and captured,
 * again and again from the same states. On the CPU, through ctypes, it is tested by
 * tests/independent/bench_shim.py.
 */
#include "bench/linear_shim.h"
#include "tests/bench/shim_test.h"

#include <math.h>

enum { SEQS = 3, HEADS = 2, DIM = 8, ROW = 3 * HEADS * DIM, MOST = 5, STATE = HEADS * DIM * DIM };

#define RIGHT(s, call) ck_assert_msg((call) == ATTN_OK, "%s", shim_message(s))

static void set_up(void)
{
    use_fake_cuda_in_plugins();
    fixture_define("fake_linear_kernels.so", "fake_linear_define");
    open_device();
}

/* Lightning attention of a sequence's rows, from this state; into the outputs. */
static void recur(const float *rows, int num_rows, const float *rates, double state[STATE],
                  double *out)
{
    for (int t = 0; t < num_rows; t++)
        for (int h = 0; h < HEADS; h++)
            for (int v = 0; v < DIM; v++) {
                const float *row = rows + t * ROW + h * DIM;
                double sum = 0;
                for (int k = 0; k < DIM; k++) {
                    double *at = &state[(h * DIM + k) * DIM + v];
                    *at = exp((double)rates[h]) * *at +
                          (double)row[HEADS * DIM + k] * (double)row[2 * HEADS * DIM + v];
                    sum += (double)row[k] * *at;
                }
                out[(t * HEADS + h) * DIM + v] = sum;
            }
}

struct tensors {
    float mixed[SEQS * MOST * ROW], pool[(2 * SEQS + 1) * STATE], out[SEQS * MOST * HEADS * DIM];
    float rates[HEADS];
};

static void make(struct tensors *t)
{
    unsigned int seed = 1;
    float *all = t->mixed;
    for (size_t i = 0; i < sizeof *t / sizeof *all; i++)
        all[i] = (float)(rand_r(&seed) % 201 - 100) / 100;
    t->rates[0] = -0.3f;
    t->rates[1] = -0.05f;
}

static void check(const struct tensors *t, int decode, int tokens)
{
    for (int s = 0; s < SEQS; s++) {
        double state[STATE] = {0}, right[MOST * HEADS * DIM];
        for (int i = 0; i < STATE && decode; i++)
            state[i] = (double)t->pool[(s + 1) * STATE + i];
        recur(t->mixed + s * tokens * ROW, tokens, t->rates, state, right);
        for (int i = 0; i < tokens * HEADS * DIM; i++)
            ck_assert_double_eq_tol((double)t->out[s * tokens * HEADS * DIM + i], right[i], 1e-4);
    }
}

static shim *open_shim(int decode, int tokens, int graph)
{
    char path[4096];
    attn_status status;
    fixture_path("linear_fixture.so", path);
    const linear_setup setup = {
        .struct_size = sizeof setup,
        .family = ATTN_LINEAR_LIGHTNING,
        .dtype = ATTN_F32,
        .state_dtype = ATTN_F32,
        .device_type = ATTN_DEVICE_CUDA,
        .graph = graph,
        .apart = decode,
        .decode = decode,
        .num_seqs = SEQS,
        .num_tokens = tokens,
        .k_heads = HEADS,
        .v_heads = HEADS,
        .k_dim = DIM,
        .v_dim = DIM,
        .num_layers = 1,
        .num_threads = 1,
        .sm_scale = 1,
        .plugin = path,
        .backend = "linear_like",
    };
    shim *s = shim_create(&setup, &status);
    ck_assert_ptr_nonnull(s);
    RIGHT(s, status);
    return s;
}

static void run(shim *s, int graph)
{
    struct device_graph *made = NULL;
    RIGHT(s, shim_plan(s, stream));
    if (graph) {
        GOOD(device_capture_begin(device, stream, &error.base));
        RIGHT(s, shim_forward(s, 0, ATTN_FORWARD_CAPTURING, stream));
        GOOD(device_capture_end(device, stream, &made, &error.base));
    }
    for (int again = 0; again < 2; again++) {
        RIGHT(s, shim_plan(s, stream));
        if (graph)
            GOOD(device_graph_launch(device, made, stream, &error.base));
        else
            RIGHT(s, shim_forward(s, 0, 0, stream));
    }
    GOOD(device_synchronize(device, stream, &error.base));
    device_graph_destroy(device, made);
}

LOOP_OF(shim, prompts_and_decodes, 0, 4)
{
    static struct tensors t;
    int decode = _i & 1, graph = _i >> 1 & 1, tokens = decode ? 1 : MOST;
    int64_t bytes = 0, rows = SEQS * tokens;
    shim *s = open_shim(decode, tokens, graph);
    make(&t);
    ck_assert_int_eq(shim_plan(s, stream), ATTN_BAD_STATE);
    const void *index = shim_index(s, &bytes);
    void *placed = upload(index, (size_t)bytes), *mixed = upload(t.mixed, sizeof t.mixed);
    void *pool = upload(t.pool, sizeof t.pool), *rates = upload(t.rates, sizeof t.rates);
    void *out = upload(t.out, sizeof t.out);
    shim_place_index(s, placed);
    RIGHT(s, shim_bind(s, 0, ATTN_ROLE_MIXED_QKV, mixed, ATTN_F32, 2, (int64_t[]){rows, ROW}));
    RIGHT(s, shim_bind(s, 0, ATTN_ROLE_A_LOG, rates, ATTN_F32, 1, (int64_t[]){HEADS}));
    RIGHT(s, shim_bind(s, 0, ATTN_ROLE_OUT, out, ATTN_F32, 3, (int64_t[]){rows, HEADS, DIM}));
    RIGHT(s, shim_bind(s, 0, ATTN_ROLE_STATE, pool, ATTN_F32, 4,
                       (int64_t[]){2 * SEQS + 1, HEADS, DIM, DIM}));
    run(s, graph);
    download(t.out, out, sizeof t.out);
    check(&t, decode, tokens);
    shim_destroy(s);
    void *const memory[] = {placed, mixed, pool, rates, out};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_release(device, ATTN_SPACE_DEVICE, memory[i]);
}

GROUP(shim, .set_up = set_up, .tear_down = tear_down);
TESTS("linear_shim");
