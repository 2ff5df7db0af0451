/* SPDX-License-Identifier: Apache-2.0
 *
 * check_session_linear_cuda.c: whole runs of models with recurrent layers on a GPU, without one: the
 * fake CUDA driver, the host's own kernels and linear_like's as host functions, cuda_fixture for the
 * other layers. States, their slots and snapshots are the device's; steps are in flight and in
 * graphs; rows are judged by replay as on the processor.
 */
#include "tests/tools/fake_cuda_test.h"
#include "tests/fixtures/cuda_fixture_kernels.h"
#include "tests/fixtures/host_kernels.h"
#include "tests/host/run/session_run.h"

enum { SETTINGS = 5 };

/* ---- Models ---------------------------------------------------------------------------------- */

/* Delta net with attention, Mamba2 and attention in each block, Mamba2 alone, short convolutions
 * with attention, lightning attention with attention. */
static const char *const models[] = {
    QWEN3_NEXT_MODEL,
    FALCON_H1_MODEL,
    MAMBA2_MODEL,
    "{\"architectures\": [\"Lfm2ForCausalLM\"], \"hidden_size\": 68,\n"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16,\n"
    " \"num_hidden_layers\": 3, \"layer_types\": [\"conv\", \"full_attention\", \"conv\"],\n"
    " \"max_position_embeddings\": 4096, \"torch_dtype\": \"bfloat16\"}\n",
};
enum { QWEN3_NEXT, FALCON_H1, MAMBA2, LFM2, NUM_MODELS };

static char path[64];

/* ---- A run ----------------------------------------------------------------------------------- */

/* A fake driver with all kernels; again before each run, so that its counters are that run's. */
static void prepare_device(void)
{
    fake.reset();
    host_kernels_define(&fake);
    cuda_fixture_define(&fake);
    fixture_define("fake_linear_kernels.so", "fake_linear_define");
}

static void set_up(int model)
{
    use_fake_cuda_in_plugins();
    write_model(models[model], path);
}

static void tear_down(void)
{
    fake.reset();
    unlink(path);
}

/* The recurrent layers by linear_like on a GPU, by cpu_linear without; the others likewise. */
static void begin_on(struct run *run, int model, const char *device)
{
    bool on_gpu = strcmp(device, "cpu") != 0;
    const char *fixtures = environment("ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs");
    if (on_gpu) {
        begin_requests(run);
        set(run, "plugins.path=%s/cuda_fixture.so", fixtures);
        set(run, "plugins.path=%s/linear_fixture.so", fixtures);
    } else {
        begin_trace(run);
    }
    set(run, "platform.device=%s", device);
    set(run, "model.config=%s", path);
    set(run, "workload.num_threads=1");
    set(run, "cuda_graph.bs=1 2 4");
    set(run, "attention.linear_attn_backend=%s", on_gpu ? "linear_like" : "cpu_linear");
    if (model != MAMBA2)
        set(run, "attention.attention_backend=%s", on_gpu ? "cuda_fixture" : "cpu_native");
}

/* ---- Equal results --------------------------------------------------------------------------- */

static const char *const variants[][SETTINGS] = {
    {NULL},
    {"workload.mixed=yes", "kv_cache.page_size=1", "kv_cache.cached_states=3"},
    {"workload.chunked_prefill_size=7", "cuda_graph.bs=3", "model.dtype=f16"},
    {"kv_cache.prefix_cache=no", "model.dtype=f32", "workload.chunked_prefill_size=0"},
    {"kv_cache.max_total_tokens=288", "workload.max_running_requests=8"},
    {"speculative.draft_tokens=4", "speculative.acceptance=0.6"},
    {"speculative.draft_tokens=7", "speculative.acceptance=0", "cuda_graph.bs=3"},
    {"speculative.draft_tokens=3", "kv_cache.max_total_tokens=288", "cuda_graph.bs=1-4",
     "workload.max_running_requests=8"},
    {"verify.rate=0.1", "workload.seed=7"},
};
enum { NUM_VARIANTS = sizeof variants / sizeof *variants };

/* On the processor, on the device eagerly, and from graphs: the same tokens and the same hits, and
 * on the device the same bits. */
LOOP_OF(runs, results_are_equal, 0, (NUM_MODELS * NUM_VARIANTS))
{
    const char *const *settings = variants[_i / NUM_MODELS];
    struct run runs[3];
    set_up(_i % NUM_MODELS);
    for (int i = 0; i < 3; i++) {
        struct fake_cuda_counters counters;
        prepare_device();
        begin_on(&runs[i], _i % NUM_MODELS, i ? "cuda:0" : "cpu");
        set_list(&runs[i], settings, SETTINGS);
        set(&runs[i], "cuda_graph.enable=%s", i == 2 ? "yes" : "no");
        go(&runs[i]);
        fake.get_counters(&counters);
        check_good(&runs[i], fake.first_fault());
        ck_assert(runs[i].report.states.present);
        check_equal_counts(&runs[i].report, &runs[0].report);
        ck_assert_int_eq(counters.graph_launches > 0, i == 2);
        assert_nothing_left();
        assert_clean();
    }
    ck_assert_str_eq(runs[1].report.digest, runs[2].report.digest);
    finish_all(runs, 3);
    tear_down();
}

/* Prefixes are found again with their states, which lie on the device. */
LOOP_OF(runs, prefixes_are_hit, 0, NUM_MODELS)
{
    struct run run;
    set_up(_i);
    prepare_device();
    begin_on(&run, _i, "cuda:0");
    go(&run);
    check_good(&run, fake.first_fault());
    ck_assert(run.report.states.present);
    ck_assert_int_gt(run.report.tokens.prefix_hit, 0);
    ck_assert_int_gt(run.report.states.peak, 0);
    finish(&run);
    tear_down();
}

/* ---- What is wrong is seen ------------------------------------------------------------------- */

/* An element of an operand of the first recurrent layer. */
struct wrong {
    uint32_t role;
    int done;
};

static size_t row_bytes(const attn_tensor *tensor)
{
    return (size_t)tensor->strides[0] * attn_dtype_size(tensor->dtype);
}

/* A call of the driver that returns when it is done. */
static void *driver_call(const char *name)
{
    void *library = dlopen(getenv("ATTNHOST_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, name) : NULL;
    ck_assert_msg(symbol != NULL, "%s", name);
    return symbol;
}

/* Row `to` of a tensor on the device becomes row `from`, once all that was enqueued before is done;
 * from < 0: zeros. */
static void overwrite_row(const attn_tensor *tensor, int64_t to, int64_t from)
{
    int (*synchronize)(void), (*fetch)(void *, cuda_pointer, size_t);
    int (*store)(cuda_pointer, const void *, size_t);
    void *calls[] = {driver_call("cuCtxSynchronize"), driver_call("cuMemcpyDtoH_v2"),
                     driver_call("cuMemcpyHtoD_v2")};
    size_t size = row_bytes(tensor);
    cuda_pointer at = (cuda_pointer)(uintptr_t)tensor->data;
    char *row = calloc(1, size);
    memcpy(&synchronize, &calls[0], sizeof synchronize);
    memcpy(&fetch, &calls[1], sizeof fetch);
    memcpy(&store, &calls[2], sizeof store);
    ck_assert_int_eq(synchronize(), 0);
    if (from >= 0)
        ck_assert_int_eq(fetch(row, at + (size_t)from * size, size), 0);
    ck_assert_int_eq(store(at + (size_t)to * size, row, size), 0);
    free(row);
}

/* The state of a cached prefix is lost before the first request that goes on from it. */
static void lose_state(void *ctx, const struct batch_step *step, int32_t layer,
                       const attn_tensor *const *operands)
{
    struct wrong *wrong = ctx;
    const attn_tensor *state = operands[wrong->role];
    for (int32_t s = 0; s < step->num_sequences && state && layer == 0 && !wrong->done; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        if (sequence->state_slot == 0 || sequence->state_slot == sequence->state_dst)
            continue;
        overwrite_row(state, sequence->state_slot, -1);
        wrong->done++;
    }
}

/* Another token's inputs, in the first prompt. */
static void mix_up_rows(void *ctx, const struct batch_step *step, int32_t layer,
                        const attn_tensor *const *operands)
{
    struct wrong *wrong = ctx;
    const attn_tensor *mixed = operands[wrong->role];
    int64_t row = 0;
    if (layer != 0 || !mixed || wrong->done || find_first_rows(step, &row) <= 3)
        return;
    overwrite_row(mixed, row + 2, row + 3);
    wrong->done++;
}

LOOP_OF(faults, wrong_states_and_inputs_fail, 0, 6)
{
    static const struct {
        int model;
        uint32_t role;
        executor_probe probe;
    } cases[] = {
        {QWEN3_NEXT, ATTN_ROLE_STATE, lose_state},      {FALCON_H1, ATTN_ROLE_STATE, lose_state},
        {QWEN3_NEXT, ATTN_ROLE_CONV_STATE, lose_state}, {LFM2, ATTN_ROLE_CONV_STATE, lose_state},
        {QWEN3_NEXT, ATTN_ROLE_MIXED_QKV, mix_up_rows}, {MAMBA2, ATTN_ROLE_MIXED_QKV, mix_up_rows},
    };
    struct wrong wrong = {.role = cases[_i].role};
    struct run run;
    set_up(cases[_i].model);
    prepare_device();
    begin_on(&run, cases[_i].model, "cuda:0");
    go_wrong(&run, cases[_i].probe, &wrong, "layer 0");
    ck_assert_int_eq(wrong.done, 1);
    finish(&run);
    tear_down();
}

/* The device is lost in mid-run: all states with it, and every request begins again. */
LOOP_OF(faults, a_lost_device_is_made_again, 0, 2)
{
    struct run run;
    set_up(_i);
    prepare_device();
    begin_on(&run, _i, "cuda:0");
    fake.inject("cuLaunchKernel", 150, CUDA_ERROR_ILLEGAL_ADDRESS);
    go(&run);
    ck_assert(fake.injected());
    check_good(&run, fake.first_fault());
    ck_assert(run.report.states.present);
    ck_assert_int_eq(run.report.device_losses, 1);
    finish(&run);
    tear_down();
}

/* ---- Suite ----------------------------------------------------------------------------------- */

TESTS("session_linear_cuda", .timeout = 120);
