/* SPDX-License-Identifier: Apache-2.0
 *
 * check_session_latent_cuda.c: whole runs of latent layers on a GPU, without one: the fake CUDA
 * driver, the host's own kernels as host functions, and the backend cuda_oracle. Prompts go by the
 * expanded form, whose prefixes come in chunks that are merged, or by the absorbed one; the tokens
 * must be those of the processor.
 */
#include "tests/tools/fake_cuda_test.h"
#include "tests/fixtures/cuda_oracle_kernel.h"
#include "tests/fixtures/host_kernels.h"
#include "tests/host/run/session_run.h"

enum { SETTINGS = 4 };

static const char model[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"hidden_size\": 64,\n"
    " \"num_attention_heads\": 3, \"num_hidden_layers\": 2, \"num_key_value_heads\": 3,\n"
    " \"kv_lora_rank\": 40, \"q_lora_rank\": 96, \"qk_nope_head_dim\": 24,\n"
    " \"qk_rope_head_dim\": 12, \"v_head_dim\": 20,\n"
    " \"max_position_embeddings\": 4096, \"torch_dtype\": \"bfloat16\"}\n";

static char model_path[64];

static void prepare_device(void)
{
    fake.reset();
    host_kernels_define(&fake);
    cuda_oracle_define(&fake);
}

static void set_up(void)
{
    use_fake_cuda_in_plugins();
    write_model(model, model_path);
}

static void tear_down(void)
{
    fake.reset();
    unlink(model_path);
}

/* A run on a fresh device, or on the processor; it must be good, and leave nothing there. */
static void go_on(struct run *run, const char *device, const char *const settings[SETTINGS])
{
    char fixture[4096];
    bool cuda = strcmp(device, "cpu") != 0;
    prepare_device();
    begin_trace(run);
    fixture_path("cuda_oracle.so", fixture);
    set(run, "plugins.path=%s", fixture);
    set(run, "platform.device=%s", device);
    set(run, "attention.attention_backend=%s", cuda ? "cuda_oracle" : "cpu_native");
    set(run, "model.config=%s", model_path);
    set(run, "cuda_graph.enable=no");
    set_list(run, settings, SETTINGS);
    go(run);
    check_good(run, fake.first_fault());
    assert_nothing_left();
    assert_clean();
}

static const char *const variants[][SETTINGS] = {
    {"attention.mla_prefill=expanded"},
    {"attention.mla_prefill=absorbed"},
    {"attention.mla_prefill=expanded", "workload.chunked_prefill_size=7",
     "workload.max_running_requests=7", "kv_cache.page_size=64"},
    {"attention.mla_prefill=expanded", "workload.mixed=yes", "kv_cache.page_size=1"},
    {"attention.mla_prefill=expanded", "kv_cache.dtype=fp8_e4m3", "kv_cache.k_scale=0.02"},
    {"attention.mla_prefill=expanded", "kv_cache.max_total_tokens=288",
     "workload.max_running_requests=8"},
    {"attention.mla_prefill=expanded", "speculative.draft_tokens=2", "model.dtype=f16"},
    {"attention.mla_prefill=expanded", "kv_cache.prefix_cache=no",
     "workload.chunked_prefill_size=0"},
};

LOOP_OF(latent, tokens_are_those_of_the_processor, 0, COUNT(variants))
{
    struct run cuda, cpu;
    go_on(&cuda, "cuda:0", variants[_i]);
    go_on(&cpu, "cpu", variants[_i]);
    check_equal_counts(&cuda.report, &cpu.report);
    finish(&cuda);
    finish(&cpu);
}

/* `auto` is the expanded form where a CUDA backend serves it, and the absorbed one on the processor:
 * the same digest. */
LOOP_OF(latent, auto_is_the_form_of_the_device, 0, 2)
{
    static const char *const automatic[SETTINGS] = {NULL};
    static const char *const named[2][SETTINGS] = {{"attention.mla_prefill=absorbed"},
                                                   {"attention.mla_prefill=expanded"}};
    struct run runs[3];
    for (int form = 0; form < 2; form++)
        go_on(&runs[form], _i ? "cuda:0" : "cpu", named[form]);
    go_on(&runs[2], _i ? "cuda:0" : "cpu", automatic);
    ck_assert_str_eq(runs[2].report.digest, runs[_i].report.digest);
    ck_assert_str_ne(runs[2].report.digest, runs[1 - _i].report.digest);
    finish_all(runs, 3);
}

GROUP(latent, .timeout = 120, .set_up = set_up, .tear_down = tear_down);
TESTS("session_latent_cuda");
