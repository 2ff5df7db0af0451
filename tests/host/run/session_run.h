/* SPDX-License-Identifier: Apache-2.0
 *
 * session_run.h: a whole run as tests make it: settings, a probe, what came out, and what has to
 * hold of it whatever the scheduling.
 */
#ifndef TESTS_SESSION_RUN_H
#define TESTS_SESSION_RUN_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/base/error.h"
#include "host/cmd/exit_codes.h"
#include "host/run/session.h"
#include "tests/tools/test_main.h"

#define MAX_SETS 40

/* A run: settings in the form "section.key=value", a probe, and what came out. */
struct run {
    char *sets[MAX_SETS];
    size_t num_sets;
    executor_probe probe;
    void *probe_ctx;
    row_check_listener listener;
    void *listener_ctx;
    char *notes; /* what was said before the first step */
    struct report report;
    host_error error;
    int code; /* that the command would end with */
};

__attribute__((format(printf, 2, 3))) static inline void set(struct run *run, const char *format,
                                                             ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ck_assert_uint_lt(run->num_sets, MAX_SETS);
    run->sets[run->num_sets++] = strdup(text);
}

/* Up to `most` settings, which a NULL ends. */
static inline void set_list(struct run *run, const char *const *settings, size_t most)
{
    for (size_t s = 0; s < most && settings[s]; s++)
        set(run, "%s", settings[s]);
}

static inline const char *environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value ? value : otherwise;
}

/* The first requests of the example trace, in small pages and chunks; plugins and model are to
 * come. */
static inline void begin_requests(struct run *run)
{
    memset(run, 0, sizeof *run);
    report_init(&run->report);
    host_error_init(&run->error);
    set(run, "workload.trace=%s/examples/traces/mini_mooncake.jsonl",
        environment("ATTNHOST_TEST_SRCDIR", "."));
    set(run, "workload.length_scale=0.02");
    set(run, "workload.max_requests=12");
    set(run, "workload.chunked_prefill_size=32");
    set(run, "workload.max_running_requests=4");
    set(run, "kv_cache.page_size=4");
    set(run, "verify.rate=1");
}

/* The same with the plugins of this build. */
static inline void begin_trace(struct run *run)
{
    begin_requests(run);
    set(run, "plugins.path=%s", environment("ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs"));
}

static inline void finish(struct run *run)
{
    report_finish(&run->report);
    free(run->notes);
    for (size_t s = 0; s < run->num_sets; s++)
        free(run->sets[s]);
}

/* One that is finished at the end of its block. */
#define RUN(name) struct run name __attribute__((cleanup(finish)))

static inline void finish_all(struct run *runs, int count)
{
    for (int i = 0; i < count; i++)
        finish(&runs[i]);
}

static inline void go(struct run *run)
{
    struct config *config = NULL;
    attn_status status =
        config_load(NULL, (const char *const *)run->sets, run->num_sets, &config, &run->error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&run->error));
    size_t length;
    FILE *notes = open_memstream(&run->notes, &length);
    struct session_params params = {
        .config = config,
        .choices = notes,
        .probe = run->probe,
        .probe_ctx = run->probe_ctx,
        .listener = run->listener,
        .listener_ctx = run->listener_ctx,
    };
    struct session_result result;
    status = session_run(&params, &run->report, &result, &run->error.base);
    run->code = exit_code_of_run(status, &result, 0);
    fclose(notes);
    config_destroy(config);
}

/* The identities of a run in which every request ended. */
static inline void check_identities(const struct run *run, int64_t input_tokens,
                                    int64_t decode_tokens)
{
    const struct report *r = &run->report;
    ck_assert_msg(run->code == EXIT_GOOD, "exit %d: %s %s", run->code, host_error_text(&run->error),
                  r->verify.first_failure);
    ck_assert_int_eq(r->tokens.prefill + r->tokens.prefix_hit - r->tokens.recomputed, input_tokens);
    ck_assert_int_eq(r->tokens.decode, decode_tokens);
    ck_assert_int_eq(r->verify.rows_failed, 0);
    ck_assert_int_gt(r->verify.rows_checked, 0);
    ck_assert_int_eq(r->kv.leaked, 0);
    ck_assert_int_eq(r->states.leaked, 0);
    ck_assert_uint_eq(strlen(r->digest), 64);
}

/* The lengths of what begin_trace() asks for, from the trace itself. */
static inline void expected_tokens(int64_t *input_tokens, int64_t *decode_tokens)
{
    struct trace trace;
    struct workload workload;
    char path[1024];
    snprintf(path, sizeof path, "%s/examples/traces/mini_mooncake.jsonl",
             environment("ATTNHOST_TEST_SRCDIR", "."));
    ck_assert_int_eq(trace_init(&trace, path, TRACE_FORMAT_AUTO, 0, NULL), ATTN_OK);
    ck_assert_int_eq(
        workload_init(
            &workload, &trace,
            &(workload_params){.length_scale = 0.02, .max_requests = 12, .max_context_len = 4096},
            NULL),
        ATTN_OK);
    *input_tokens = workload.input_tokens;
    *decode_tokens = workload.decode_tokens;
    workload_finish(&workload);
    trace_finish(&trace);
}

/* The whole of a run of what begin_trace() asks for. */
static inline void keep_identities(struct run *run)
{
    int64_t input_tokens, decode_tokens;
    expected_tokens(&input_tokens, &decode_tokens);
    go(run);
    check_identities(run, input_tokens, decode_tokens);
}

/* A run whose operands `probe` changes: verification finds that, and says `where`. */
static inline void go_wrong(struct run *run, executor_probe probe, void *ctx, const char *where)
{
    run->probe = probe;
    run->probe_ctx = ctx;
    go(run);
    ck_assert_int_eq(run->code, EXIT_CHECK_FAILED);
    ck_assert_int_gt(run->report.verify.rows_failed, 0);
    ck_assert_msg(strstr(run->report.verify.first_failure, where) != NULL, "%s: accepted '%s'",
                  run->report.verify.first_failure, where);
}

/* A run that ends with this code, before its first step, and with this in its message. */
static inline void go_refused(struct run *run, int code, const char *message)
{
    go(run);
    const char *got = host_error_text(&run->error);
    ck_assert_msg(run->code == code, "exit %d: %s", run->code, got);
    ck_assert_msg(strstr(got, message) != NULL, "%s", got);
    ck_assert_int_eq(run->report.steps, 0);
}

/* Rows of a step that are the first ones of request 0: how many, and where they begin. */
static inline int32_t find_first_rows(const struct batch_step *step, int64_t *row)
{
    *row = 0;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        if (sequence->request == 0 && sequence->prefix_len == 0)
            return sequence->num_new;
        *row += sequence->num_new;
    }
    return 0;
}

/* What must be so after every good run; `fault` is what a fake driver says. */
static inline void check_good(const struct run *run, const char *fault)
{
    const struct report *r = &run->report;
    ck_assert_msg(run->code == EXIT_GOOD, "exit %d: %s %s %s", run->code,
                  host_error_text(&run->error), r->verify.first_failure, fault);
    ck_assert_int_gt(r->verify.rows_checked, 0);
    ck_assert_int_eq(r->verify.rows_failed, 0);
    ck_assert_int_eq(r->verify.steps_not_finite, 0);
    ck_assert_int_eq(r->verify.trespasses, 0);
    ck_assert_int_eq(r->kv.leaked, 0);
    ck_assert_int_eq(r->states.leaked, 0);
    ck_assert_uint_eq(strlen(r->digest), 64);
}

/* The same tokens, however they were scheduled. */
static inline void check_equal_counts(const struct report *a, const struct report *b)
{
    ck_assert_int_eq(a->requests, b->requests);
    ck_assert_int_eq(a->tokens.prefill, b->tokens.prefill);
    ck_assert_int_eq(a->tokens.decode, b->tokens.decode);
    ck_assert_int_eq(a->tokens.prefix_hit, b->tokens.prefix_hit);
    ck_assert_int_eq(a->tokens.recomputed, b->tokens.recomputed);
    ck_assert_int_eq(a->tokens.encoded, b->tokens.encoded);
    ck_assert_int_eq(a->verify.rows_checked, b->verify.rows_checked);
    ck_assert_int_eq(a->states.peak, b->states.peak);
}

/* Rows that a backend computed, or a path of it; -1 if it is not in the report. */
static inline int64_t rows_of(const struct report *report, const char *name)
{
    for (uint32_t p = 0; p < report->num_paths; p++)
        if (strcmp(report->paths[p].name, name) == 0)
            return report->paths[p].rows;
    return -1;
}

/* Models with recurrent layers, small: delta net with attention, Mamba2 and attention in each block, Mamba2 alone. */
#define QWEN3_NEXT_MODEL                                                                           \
    "{\"architectures\": [\"Qwen3NextForCausalLM\"], \"hidden_size\": 64,\n"                       \
    " \"num_attention_heads\": 4, \"num_hidden_layers\": 4, \"num_key_value_heads\": 2,\n"         \
    " \"head_dim\": 16, \"full_attention_interval\": 2, \"linear_conv_kernel_dim\": 4,\n"          \
    " \"linear_key_head_dim\": 16, \"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4,\n"  \
    " \"linear_value_head_dim\": 24, \"max_position_embeddings\": 4096,\n"                         \
    " \"torch_dtype\": \"bfloat16\"}\n"
#define FALCON_H1_MODEL                                                                            \
    "{\"architectures\": [\"FalconH1ForCausalLM\"], \"hidden_size\": 48,\n"                        \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16,\n"                 \
    " \"num_hidden_layers\": 2, \"mamba_d_conv\": 4, \"mamba_d_head\": 16, \"mamba_d_ssm\": 96,\n" \
    " \"mamba_d_state\": 32, \"mamba_n_groups\": 2, \"mamba_n_heads\": 6,\n"                       \
    " \"mamba_chunk_size\": 32, \"max_position_embeddings\": 4096,\n"                              \
    " \"torch_dtype\": \"bfloat16\"}\n"
#define MAMBA2_MODEL                                                                               \
    "{\"architectures\": [\"Mamba2ForCausalLM\"], \"hidden_size\": 32, \"expand\": 2,\n"           \
    " \"num_heads\": 4, \"head_dim\": 16, \"num_hidden_layers\": 2, \"n_groups\": 2,\n"            \
    " \"state_size\": 16, \"conv_kernel\": 4, \"chunk_size\": 32,\n"                               \
    " \"max_position_embeddings\": 4096, \"torch_dtype\": \"bfloat16\"}\n"

/* A config.json of its own for a test file, in the working directory; removed by its caller. */
static inline void write_model(const char *text, char path[64])
{
    snprintf(path, 64, "check_session_XXXXXX.json");
    int file = mkstemps(path, 5);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(write(file, text, strlen(text)), (int64_t)strlen(text));
    close(file);
}

/* A trace of six requests of 20 tokens that grow by 60, for a pool of fewer tokens than that; removed by its caller. */
static inline void write_growing(struct run *run, char path[64])
{
    snprintf(path, 64, "check_session_XXXXXX");
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    FILE *trace = fdopen(file, "w");
    for (int i = 0; i < 6; i++)
        fprintf(trace,
                "{\"timestamp\": %d, \"input_length\": 20, \"output_length\": 61, "
                "\"hash_ids\": [%d]}\n",
                i, i);
    fclose(trace);
    set(run, "workload.trace=%s", path);
    set(run, "workload.length_scale=1");
}

#endif /* TESTS_SESSION_RUN_H */
