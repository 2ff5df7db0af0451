/* SPDX-License-Identifier: Apache-2.0
 *
 * check_session_sparse_cuda.c: whole runs of a model with sparse attention (DeepSeek-V3.2) on a GPU,
 * without one: the fake CUDA driver, the host's own kernels and those of dsa_like as host functions.
 * The operands of the indexer are made on the device, choices and outputs are judged.
 */
#include "tests/tools/fake_cuda_test.h"
#include "tests/fixtures/host_kernels.h"
#include "tests/host/run/session_run.h"

enum { SETTINGS = 4 };

/* What dsa_like takes: latents of 512 + 64, labels of 128. */
static const char model[] =
    "{\"architectures\": [\"DeepseekV32ForCausalLM\"], \"hidden_size\": 896,\n"
    " \"num_attention_heads\": 2, \"num_hidden_layers\": 2, \"num_key_value_heads\": 2,\n"
    " \"kv_lora_rank\": 512, \"q_lora_rank\": 384, \"qk_nope_head_dim\": 32,\n"
    " \"qk_rope_head_dim\": 64, \"v_head_dim\": 32, \"index_topk\": 24, \"index_head_dim\": 128,\n"
    " \"index_n_heads\": 3, \"max_position_embeddings\": 4096, \"torch_dtype\": \"bfloat16\"}\n";

static char path[64];

/* A fake driver with all kernels; again before each run, so that its counters are that run's. */
static void prepare_device(void)
{
    fake.reset();
    host_kernels_define(&fake);
    fixture_define("fake_dsa_kernels.so", "fake_dsa_define");
}

static void begin_on(struct run *run, const char *device, const char *const settings[SETTINGS])
{
    if (strcmp(device, "cpu") != 0) {
        begin_requests(run);
        set(run, "plugins.path=%s/dsa_fixture.so",
            environment("ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs"));
        set(run, "attention.attention_backend=dsa_like");
    } else {
        begin_trace(run);
        set(run, "attention.attention_backend=cpu_native");
    }
    set(run, "platform.device=%s", device);
    set(run, "model.config=%s", path);
    set(run, "workload.num_threads=1");
    set(run, "workload.length_scale=0.012");
    set(run, "workload.max_requests=6");
    set(run, "cuda_graph.bs=1 2 4");
    set_list(run, settings, SETTINGS);
}

static const char *const variants[][SETTINGS] = {
    {NULL},
    {"workload.mixed=yes", "kv_cache.page_size=1"},
    {"workload.chunked_prefill_size=7", "cuda_graph.bs=3"},
    {"speculative.draft_tokens=3", "speculative.acceptance=0.6"},
    {"kv_cache.max_total_tokens=288"},
    {"kv_cache.dtype=fp8_e4m3", "kv_cache.latent_layout=latent_fp8"},
    {"kv_cache.label_dtype=fp8_e4m3", "workload.mixed=yes"},
    {"kv_cache.label_dtype=fp8_e4m3", "speculative.draft_tokens=3", "speculative.acceptance=0.6"},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* On the processor, on the device eagerly, and from graphs: the same tokens, and on the device the same
 * bits. */
LOOP_OF(runs, results_are_equal, 0, VARIANTS)
{
    struct run runs[3];
    use_fake_cuda_in_plugins();
    write_model(model, path);
    for (int i = 0; i < 3; i++) {
        struct fake_cuda_counters counters;
        prepare_device();
        begin_on(&runs[i], i ? "cuda:0" : "cpu", variants[_i]);
        set(&runs[i], "cuda_graph.enable=%s", i == 2 ? "yes" : "no");
        go(&runs[i]);
        fake.get_counters(&counters);
        check_good(&runs[i], fake.first_fault());
        check_equal_counts(&runs[i].report, &runs[0].report);
        ck_assert_msg((counters.graph_launches > 0) == (i == 2), "%d: %s", i, runs[i].notes);
        assert_nothing_left();
        assert_clean();
    }
    ck_assert_str_eq(runs[1].report.digest, runs[2].report.digest);
    finish_all(runs, 3);
    fake.reset();
    unlink(path);
}

/* Sequences that are thrown out, with their labels, and computed again have the bits that they have where all
 * fit, as no row depends on the others of its batch. */
TEST_OF(runs, retraction_changes_no_bit)
{
    static const char *const pools[] = {"kv_cache.max_total_tokens=300",
                                        "kv_cache.max_total_tokens=600"};
    char trace[64];
    struct run runs[2];
    use_fake_cuda_in_plugins();
    write_model(model, path);
    for (int i = 0; i < 2; i++) {
        prepare_device();
        begin_on(&runs[i], "cuda:0", variants[0]);
        write_growing(&runs[i], trace);
        set(&runs[i], "attention.batch_invariant=yes");
        set(&runs[i], "%s", pools[i]);
        go(&runs[i]);
        unlink(trace);
        check_good(&runs[i], fake.first_fault());
    }
    ck_assert_int_gt(runs[0].report.tokens.recomputed, 20);
    ck_assert_int_eq(runs[1].report.tokens.recomputed, 0);
    ck_assert_str_eq(runs[0].report.digest, runs[1].report.digest);
    finish_all(runs, 2);
    fake.reset();
    unlink(path);
}

GROUP(runs, .timeout = 120);
TESTS("session_sparse_cuda");
