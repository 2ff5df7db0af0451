/* SPDX-License-Identifier: Apache-2.0
 *
 * check_bench.c: how `attnhost bench` measures: blocks of samples and their figures, the ceilings,
 * and backends side by side, on the processor and on the fake CUDA driver with its fixture backend:
 * who is replayed from a graph, who is refused or fails, and that nothing is left behind.
 */
#include "host/bench/bench.h"

#include "host/base/clock.h"
#include "host/embed/embed.h"
#include "host/base/error.h"
#include "host/base/configured.h"
#include "host/base/interrupt.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/fixtures/cuda_fixture_kernels.h"
#include "tests/tools/test_main.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>

static host_error error;
static struct device *device;
static attnhost *host;
static struct threads *threads;
static struct bench_timer timer;
static struct bench_report report;

#define GOOD(call) ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))

static void assert_says(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "'%s' is not in '%s'", part, text);
}

static void open_all(int32_t type)
{
    attnhost_params params = {.struct_size = sizeof params, .num_threads = 2};
    host_error_init(&error);
    GOOD(device_open(type, 0, &device, &error.base));
    GOOD(attnhost_create(&params, &host, &error.base));
    threads = host->threads;
    report = (struct bench_report){.seconds = 0.001, .seed = 3};
}

static void set_up_cpu(void)
{
    open_all(ATTN_DEVICE_CPU);
    device->info.l2_bytes = 1 << 16;
}

static void set_up_gpu(void)
{
    use_fake_cuda_in_plugins();
    cuda_fixture_define(&fake);
    fake.set_attribute(0, CUDA_ATTRIBUTE_L2_BYTES, 4096);
    fake.set_memory(0, 64 << 20);
    open_all(ATTN_DEVICE_CUDA);
}

static void tear_down(void)
{
    bench_report_finish(&report);
    attnhost_destroy(host);
    device_close(device);
}

static void tear_down_gpu(void)
{
    tear_down();
    assert_nothing_left();
    fake.reset();
}

/* ---- Samples --------------------------------------------------------------------------------- */

TEST_OF(cpu, test_quantiles)
{
    const double values[] = {7, 1, 4, 10, 3, 9, 2, 8, 6, 5};
    struct bench_samples samples = {0};
    struct bench_summary summary;
    host_error_init(&error);
    for (int i = 0; i < 10; i++)
        GOOD(bench_samples_add(&samples, &values[i], 1, &error.base));
    GOOD(bench_samples_summary(&samples, &summary, &error.base));
    ck_assert_double_eq(summary.median, 5);
    ck_assert_double_eq(summary.p10, 1);
    ck_assert_double_eq(summary.p90, 9);
    ck_assert_double_eq(summary.best, 1);
    ck_assert_mem_eq(samples.us, values, sizeof values);
    bench_samples_finish(&samples);
    GOOD(bench_samples_add(&samples, values, 3, &error.base));
    GOOD(bench_samples_summary(&samples, &summary, &error.base));
    ck_assert_double_eq(summary.median, 4);
    ck_assert_double_eq(summary.p90, 7);
    bench_samples_finish(&samples);
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* Work that lasts two milliseconds and counts; the nth time fails. */
struct counted {
    int count, fails_at;
    uint32_t ms; /* of a fake stream; 0 = the calling thread sleeps */
};

static attn_status count_work(void *ctx, attn_stream stream, attn_error *said)
{
    struct counted *counted = ctx;
    const struct timespec pause = {.tv_nsec = 2000000};
    if (++counted->count == counted->fails_at)
        return host_fail(said, ATTN_INTERNAL, "failed as the test set it");
    if (counted->ms)
        fake.delay(stream, counted->ms);
    else
        nanosleep(&pause, NULL);
    return ATTN_OK;
}

TEST_OF(cpu, test_block_on_cpu)
{
    struct counted counted = {0};
    const struct bench_work work = {count_work, &counted};
    double us[BENCH_BLOCK] = {0};
    GOOD(bench_timer_init(&timer, device, 0, &error.base));
    ck_assert_double_eq(timer.rest, 0);
    GOOD(bench_timer_block(&timer, &work, us, &error.base));
    ck_assert_int_eq(counted.count, 1);
    ck_assert_double_ge(us[0], 2000);
    GOOD(bench_timer_estimate(&timer, &work, 1e9, us, &error.base));
    ck_assert_int_eq(counted.count, 3);
    ck_assert_double_ge(us[0], 2000);
    counted.fails_at = 4;
    ck_assert_int_eq(bench_timer_block(&timer, &work, us, &error.base), ATTN_INTERNAL);
    assert_says(host_error_text(&error), "failed as the test set it");
    bench_timer_finish(&timer);
}

/* A cool device rests four times as long as it worked, a kept-up one not at all. */
TEST_OF(gpu, test_block_on_gpu)
{
    double us[BENCH_BLOCK];
    for (int kept_up = 0; kept_up < 2; kept_up++) {
        struct counted counted = {.ms = 5};
        const struct bench_work work = {count_work, &counted};
        GOOD(bench_timer_init(&timer, device, kept_up, &error.base));
        int64_t begin_ns = clock_now_ns();
        GOOD(bench_timer_block(&timer, &work, us, &error.base));
        double ms = (double)(clock_now_ns() - begin_ns) / 1e6;
        ck_assert_int_eq(counted.count, 1 + BENCH_BLOCK);
        for (int i = 0; i < BENCH_BLOCK; i++)
            ck_assert_double_ge(us[i], 4900);
        ck_assert_double_ge(ms, kept_up ? 20 : 100);
        if (kept_up)
            ck_assert_double_eq(timer.rest, 0);
        bench_timer_finish(&timer);
    }
}

TEST_OF(cpu, test_sustain)
{
    struct counted a = {0}, b = {0};
    const struct bench_work works[] = {{count_work, &a}, {count_work, &b}};
    GOOD(bench_timer_init(&timer, device, 1, &error.base));
    int64_t begin_ns = clock_now_ns();
    GOOD(bench_timer_sustain(&timer, works, 2, 0.05, &error.base));
    ck_assert_double_ge((double)(clock_now_ns() - begin_ns) / 1e9, 0.05);
    ck_assert_int_ge(a.count, 2);
    ck_assert_int_le(abs(a.count - b.count), 1);
    a.count = 0;
    GOOD(bench_timer_sustain(&timer, works, 2, 0, &error.base));
    ck_assert_int_eq(a.count, 0);
    bench_timer_finish(&timer);
}

/* ---- Ceilings -------------------------------------------------------------------------------- */

static void assert_measured(const struct bench_ceiling *ceiling)
{
    struct bench_summary summary;
    ck_assert_str_eq(ceiling->why, "");
    ck_assert_uint_ge(ceiling->samples.count, 5);
    GOOD(bench_samples_summary(&ceiling->samples, &summary, &error.base));
    ck_assert_double_gt(ceiling->amount, 0);
    ck_assert_double_eq(ceiling->rate, ceiling->amount / (summary.median * 1e-6));
}

TEST_OF(cpu, test_ceilings_of_cpu)
{
    struct bench_ceilings ceilings = {0};
    GOOD(bench_timer_init(&timer, device, 0, &error.base));
    GOOD(bench_ceilings_measure(&timer, threads, 0.01, 0, &ceilings, &error.base));
    assert_measured(&ceilings.copy);
    assert_measured(&ceilings.read);
    assert_measured(&ceilings.matrix);
    bench_ceilings_finish(&ceilings);
    bench_timer_finish(&timer);
}

#ifdef HAVE_NVCC

static int reads, products;

/* Kernels with the parameters of kernels/ceilings.cu. */
static void fake_read(const struct fake_cuda_launch *launch)
{
    cuda_pointer from = *(cuda_pointer *)launch->arguments[0];
    uint64_t words = *(uint64_t *)launch->arguments[1];
    if (fake.access(from, words * 16) && *(int *)launch->arguments[2] == 0)
        reads += words % (launch->block[0] * 8u) == 0 && launch->grid[0] == 4 * 132;
}

static void fake_matrix(const struct fake_cuda_launch *launch)
{
    int iterations = *(int *)launch->arguments[0], never = *(int *)launch->arguments[1];
    products += iterations > 0 && never == 0 && launch->grid[0] == 132 && launch->block[0] == 256;
}

static void define_ceilings(void)
{
    const size_t read_sizes[] = {8, 8, 4, 8}, matrix_sizes[] = {4, 4, 8};
    reads = products = 0;
    fake.define_kernel("ceiling_read", fake_read, read_sizes, 4, NULL);
    fake.define_kernel("ceiling_matrix", fake_matrix, matrix_sizes, 3, NULL);
}

TEST_OF(gpu, test_ceilings_of_gpu)
{
    struct bench_ceilings ceilings = {0};
    define_ceilings();
    GOOD(bench_timer_init(&timer, device, 0, &error.base));
    GOOD(bench_ceilings_measure(&timer, threads, 0.001, 0, &ceilings, &error.base));
    assert_measured(&ceilings.copy);
    assert_measured(&ceilings.read);
    assert_measured(&ceilings.matrix);
    ck_assert_double_eq(ceilings.read.amount, 16 << 20);
    ck_assert_uint_ge((uint64_t)reads, ceilings.read.samples.count);
    ck_assert_uint_ge((uint64_t)products, ceilings.matrix.samples.count);
    bench_ceilings_finish(&ceilings);
    bench_timer_finish(&timer);
    assert_clean();
}

/* Kernels for another GPU: what is left is copying. */
TEST_OF(gpu, test_no_kernels)
{
    struct bench_ceilings ceilings = {0};
    fake.inject("cuModuleLoadDataEx", 1, CUDA_ERROR_NO_BINARY_FOR_GPU);
    GOOD(bench_timer_init(&timer, device, 0, &error.base));
    GOOD(bench_ceilings_measure(&timer, threads, 0.001, 0, &ceilings, &error.base));
    assert_measured(&ceilings.copy);
    ck_assert_double_eq(ceilings.read.rate, 0);
    ck_assert_double_eq(ceilings.matrix.rate, 0);
    assert_says(ceilings.read.why, "NO_BINARY_FOR_GPU");
    assert_says(ceilings.matrix.why, "NO_BINARY_FOR_GPU");
    bench_ceilings_finish(&ceilings);
    bench_timer_finish(&timer);
}

#endif

TEST_OF(gpu, test_no_memory_for_ceilings)
{
    struct bench_ceilings ceilings = {0};
    fake.inject("cuMemAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
    GOOD(bench_timer_init(&timer, device, 0, &error.base));
    GOOD(bench_ceilings_measure(&timer, threads, 0.001, 0, &ceilings, &error.base));
    assert_says(ceilings.copy.why, "no memory for 16 MiB");
    assert_says(ceilings.read.why, "no memory");
    assert_says(ceilings.matrix.why, "no memory");
    bench_ceilings_finish(&ceilings);
    bench_timer_finish(&timer);
}

/* ---- Side by side ---------------------------------------------------------------------------- */

static void load(const char *file)
{
    GOOD(attnhost_load_plugin(host, file, &error.base));
}

/* On the fake GPU: backends of several graph levels. */
static void load_fixture(void)
{
    static const char *const levels[] = {"never", "single_token", "uniform", "always"};
    char path[4096];
    fixture_path("cuda_fixture.so", path);
    load(path);
    for (int l = 0; l < 4; l++) {
        const char *const pairs[] = {"graph_level", levels[l]};
        GOOD(attnhost_define_backend(host, levels[l], "cuda_fixture", pairs, 1, &error.base));
    }
}

static void add(const char *text, const char *const *names)
{
    struct bench_shapes shapes = {0};
    struct bench_shape base;
    uint32_t count = 0;
    while (names[count])
        count++;
    bench_shape_init(&base);
    GOOD(bench_shapes_add(&shapes, text, &base, &error.base));
    for (size_t s = 0; s < shapes.count; s++) {
        struct bench_entry *entry = bench_add_entry(&report, &shapes.items[s], count);
        for (uint32_t n = 0; n < count; n++)
            GOOD(bench_set_backend(entry, n, names[n], strlen(names[n]), &error.base));
    }
    bench_shapes_finish(&shapes);
}

static attn_status measure_by(int eager)
{
    const struct bench_params params = {
        .host = host, .device = device, .threads = threads, .eager = eager};
    return bench_measure(&params, &report, &error.base);
}

static attn_status measure(void)
{
    return measure_by(0);
}

static void assert_ran(const struct bench_run *run)
{
    ck_assert_msg(run->outcome == BENCH_RAN, "%s: %s", run->backend, strbuf_text(&run->why));
    ck_assert_uint_ge(run->samples.count, 5 * run->per_round);
    ck_assert_double_gt(run->us.best, 0);
    ck_assert_double_le(run->us.p10, run->us.median);
    ck_assert_double_le(run->us.median, run->us.p90);
    ck_assert_double_gt(run->ratio, 0);
}

#define SMALL "q_heads=2,kv_heads=1,head_dim=8,dtype=f32,page_size=4,"

TEST_OF(gpu, test_graphs)
{
    static const char *const names[] = {"never", "single_token", "uniform", "always", NULL};
    static const char *const shapes[] = {SMALL "batch=2,kv_len=9+4",
                                         SMALL "mode=extend,batch=2,q_len=3,kv_len=9+4",
                                         SMALL "mode=extend,batch=2,kv_len=9+4"};
    load_fixture();
    for (int s = 0; s < 3; s++)
        add(shapes[s], names);
    GOOD(measure());
    for (int s = 0; s < 3; s++)
        for (int n = 0; n < 4; n++) {
            const struct bench_run *run = &report.entries[s].runs[n];
            assert_ran(run);
            ck_assert_int_eq(run->graph, n > s);
            ck_assert(!run->graph || run->calls % report.entries[s].copies == 0);
        }
    ck_assert_double_eq(report.entries[0].runs[0].ratio, 1);
    struct fake_cuda_counters counters;
    fake.get_counters(&counters);
    ck_assert_uint_ge(counters.graph_launches, 6 * (1 + 5 * 4));
    assert_clean();
}

/* What could be captured is called where that is asked for. */
TEST_OF(gpu, test_eager)
{
    static const char *const names[] = {"always", NULL};
    load_fixture();
    add(SMALL "kv_len=9", names);
    GOOD(measure_by(1));
    assert_ran(&report.entries[0].runs[0]);
    ck_assert(!report.entries[0].runs[0].graph);
    struct fake_cuda_counters counters;
    fake.get_counters(&counters);
    ck_assert_uint_eq(counters.graph_launches, 0);
    assert_clean();
}

TEST_OF(gpu, test_refused_beside_served)
{
    static const char *const names[] = {"always", "never", NULL};
    load_fixture();
    add(SMALL "kv_len=9,alibi=no:yes", names);
    GOOD(measure());
    assert_ran(&report.entries[0].runs[0]);
    for (int n = 0; n < 2; n++) {
        const struct bench_run *run = &report.entries[1].runs[n];
        ck_assert_uint_eq(run->outcome, BENCH_REFUSED);
        ck_assert_str_eq(strbuf_text(&run->why), "has_alibi 1: accepted 0");
    }
    ck_assert_uint_eq(report.entries[1].copies, 0);
    assert_clean();
}

TEST_OF(gpu, test_unknown_backend)
{
    static const char *const names[] = {"always", "alway", NULL};
    load_fixture();
    add(SMALL "kv_len=9", names);
    ck_assert_int_eq(measure(), ATTN_CONFIG_ERROR);
    assert_says(host_error_text(&error), "did you mean always?");
    ck_assert_uint_eq(fake.num_calls("cuLaunchKernel"), 0);
}

/* A backend that fails is reported; the others are measured. */
TEST_OF(gpu, test_failure_beside_others)
{
    static const char *const names[] = {"never", "always", NULL};
    load_fixture();
    add(SMALL "kv_len=9", names);
    fake.inject("cuLaunchKernel", 1, CUDA_ERROR_INVALID_VALUE);
    GOOD(measure());
    ck_assert_int_eq(fake.injected(), 1);
    ck_assert_uint_eq(report.entries[0].runs[0].outcome, BENCH_FAILED);
    assert_says(strbuf_text(&report.entries[0].runs[0].why), "never: layer 0");
    assert_ran(&report.entries[0].runs[1]);
    ck_assert_double_eq(report.entries[0].runs[1].ratio, 1);
    assert_clean();
}

TEST_OF(gpu, test_failed_capture)
{
    static const char *const names[] = {"always", "never", NULL};
    load_fixture();
    add(SMALL "kv_len=9", names);
    fake.inject("cuGraphInstantiate", 1, CUDA_ERROR_OUT_OF_MEMORY);
    GOOD(measure());
    ck_assert_int_eq(fake.injected(), 1);
    ck_assert_uint_eq(report.entries[0].runs[0].outcome, BENCH_FAILED);
    assert_ran(&report.entries[0].runs[1]);
    assert_clean();
}

TEST_OF(gpu, test_no_room_for_a_shape)
{
    static const char *const names[] = {"always", NULL};
    load_fixture();
    add(SMALL "kv_len=9:4000000", names);
    GOOD(measure());
    assert_ran(&report.entries[0].runs[0]);
    ck_assert_uint_eq(report.entries[1].runs[0].outcome, BENCH_FAILED);
    assert_says(strbuf_text(&report.entries[1].runs[0].why), "no memory for");
    assert_clean();
}

/* A loss ends all of it, early and late. */
LOOP_OF(gpu, test_lost_device, 0, 4)
{
    static const char *const calls[] = {"cuMemcpyAsync", "cuLaunchKernel", "cuGraphLaunch",
                                        "cuEventRecord"};
    static const char *const names[] = {"never", "always", NULL};
    load_fixture();
    add(SMALL "kv_len=9", names);
    fake.inject(calls[_i], 17, CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_int_eq(measure(), ATTN_DEVICE_LOST);
    ck_assert_int_eq(fake.injected(), 1);
    assert_says(host_error_text(&error), "ILLEGAL_ADDRESS");
}

TEST_OF(cpu, test_figures_on_cpu)
{
    static const char *const names[] = {"cpu_native", "cpu_native", NULL};
    char path[4200];
    const char *built = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    ck_assert_msg(built && realpath(built, path), "ATTNHOST_TEST_PLUGIN_DIR is not set");
    load(strcat(path, "/cpu_native.so"));
    add(SMALL "batch=2,kv_len=50", names);
    int64_t begin_ns = clock_now_ns();
    GOOD(measure());
    double wall_us = (double)(clock_now_ns() - begin_ns) / 1e3, sampled_us = 0;
    const struct bench_entry *entry = &report.entries[0];
    const struct bench_ceilings *c = &report.ceilings;
    double memory = c->read.rate > c->copy.rate ? c->read.rate : c->copy.rate;
    double floor_s = fmax(entry->count.bytes / memory, entry->count.flop / c->matrix.rate);
    for (int r = 0; r < 2; r++) {
        const struct bench_run *run = &entry->runs[r];
        assert_ran(run);
        ck_assert(!run->graph);
        ck_assert_str_eq(run->layout, ATTN_LAYOUT_KV_NHD);
        ck_assert_double_eq(run->flops, entry->count.flop / (run->us.median * 1e-6));
        ck_assert_double_eq_tol(run->fraction, floor_s / (run->us.median * 1e-6), 1e-12);
        ck_assert_uint_ge(run->calls, 1); /* one where a call takes as long as a sample */
        for (size_t s = 0; s < run->samples.count; s++)
            sampled_us += run->samples.us[s] * run->calls; /* a sample is the mean of its calls */
    }
    ck_assert_double_lt(sampled_us, wall_us);
    ck_assert_double_gt(sampled_us, 1000);
    ck_assert_double_eq(entry->runs[0].ratio_p90, 1);
    ck_assert_double_gt(entry->runs[1].ratio_p90, 0);
}

/* ---- The nearer ceiling ---------------------------------------------------------------------- */

/* Reading 1e12 bytes and multiplying 1e15 times a second. */
static const struct bench_entry *with_ceilings(const char *text, int32_t type)
{
    static const char *const names[] = {"a", NULL};
    report.from.device.type = type;
    report.ceilings.read.rate = 1e12;
    report.ceilings.matrix.rate = 1e15;
    add(text, names);
    return &report.entries[report.num_entries - 1];
}

/* A decode waits for memory even if it multiplied in bf16; a prefill of fp8 may be faster than
 * products of bf16 are, so nothing is known of it but on a processor, which has none of them. */
TEST_OF(cpu, test_floor)
{
    static const struct {
        const char *text;
        int32_t type;
        uint32_t bound;
        int known;
        double products; /* of the matrix ceiling's in the same time */
    } rows[] = {
        {"mode=prefill,kv_len=8192", ATTN_DEVICE_CUDA, BENCH_BOUND_COMPUTE, 1, 1},
        {"mode=prefill,kv_len=8192,kv_dtype=fp8_e4m3", ATTN_DEVICE_CUDA, BENCH_BOUND_COMPUTE, 1, 1},
        {"mode=prefill,kv_len=8192,dtype=fp8_e4m3,kv_dtype=bf16", ATTN_DEVICE_CUDA,
         BENCH_BOUND_COMPUTE, 1, 1},
        {"mode=prefill,kv_len=8192,dtype=fp8_e4m3", ATTN_DEVICE_CUDA, BENCH_BOUND_NONE, 0, 2},
        {"mode=prefill,kv_len=8192,dtype=fp8_e4m3", ATTN_DEVICE_CPU, BENCH_BOUND_COMPUTE, 1, 1},
        {"batch=8,kv_len=8192,dtype=fp8_e4m3", ATTN_DEVICE_CUDA, BENCH_BOUND_MEMORY, 0, 2},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        uint32_t bound = 99;
        const struct bench_entry *entry = with_ceilings(rows[r].text, rows[r].type);
        double us = bench_floor_us(&report, entry, &bound);
        ck_assert_uint_eq(bound, rows[r].bound);
        ck_assert_int_eq(bench_compute_is_known(&report, entry), rows[r].known);
        ck_assert_double_eq_tol(us,
                                bound == BENCH_BOUND_MEMORY
                                    ? entry->count.bytes / 1e6
                                    : entry->count.flop / 1e9 / rows[r].products,
                                1e-9 * us);
    }
}

/* ---- JSON and table -------------------------------------------------------------------------- */

static void make_report(void)
{
    static const char *const names[] = {"a", "b", "c", NULL};
    const double us[] = {1.0 / 3, 2.0 / 3, 1e-7, 123456.78901234567};
    add("batch=2,kv_len=5+7", names);
    struct bench_entry *entry = &report.entries[0];
    struct bench_run *run = &entry->runs[0];
    report.from.device = (attn_device){.type = ATTN_DEVICE_CUDA, .sm = 90, .driver_version = 13000};
    report.seed = UINT64_MAX;
    run->outcome = BENCH_RAN;
    run->layout = ATTN_LAYOUT_KV_HND;
    run->graph = true;
    GOOD(bench_samples_add(&run->samples, us, 4, &error.base));
    run->us = (struct bench_summary){us[0], us[2], us[3], us[2]};
    run->fraction = 0.5;
    run->bound = BENCH_BOUND_MEMORY;
    run->ratio = 1;
    strbuf_append(&entry->runs[1].why, "head_dim 1024: accepted \"64\"");
    entry->runs[2].outcome = BENCH_FAILED;
    strbuf_append(&entry->runs[2].why, "broke");
    snprintf(report.ceilings.read.why, sizeof report.ceilings.read.why, "no nvcc");
}

TEST_OF(cpu, test_json_without_loss)
{
    make_report();
    char *text = bench_json(&report);
    ck_assert_ptr_nonnull(text);
    ck_assert_int_eq(text[strlen(text) - 1], '\n');
    assert_says(text, "\"seed\":\t18446744073709551615");
    cJSON *root = cJSON_Parse(text);
    ck_assert_ptr_nonnull(root);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetObjectItem(root, "ceilings"), "read")));
    const cJSON *entry = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "results"), 0);
    const cJSON *runs = cJSON_GetObjectItem(entry, "backends");
    const cJSON *samples = cJSON_GetObjectItem(cJSON_GetArrayItem(runs, 0), "samples_us");
    ck_assert_int_eq(cJSON_GetArraySize(samples), 4);
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq(cJSON_GetArrayItem(samples, i)->valuedouble,
                            report.entries[0].runs[0].samples.us[i]);
    ck_assert_str_eq(cJSON_GetObjectItem(cJSON_GetArrayItem(runs, 1), "outcome")->valuestring,
                     "refused");
    ck_assert_str_eq(cJSON_GetObjectItem(cJSON_GetArrayItem(runs, 1), "why")->valuestring,
                     "head_dim 1024: accepted \"64\"");
    ck_assert_str_eq(cJSON_GetObjectItem(cJSON_GetArrayItem(runs, 2), "outcome")->valuestring,
                     "failed");
    cJSON_Delete(root);
    free(text);
}

TEST_OF(cpu, test_table)
{
    char *text = NULL;
    size_t size = 0;
    make_report();
    FILE *file = open_memstream(&text, &size);
    bench_print(&report, file);
    fclose(file);
    assert_says(text, "sm_90");
    assert_says(text, "ceilings  copy -  read -  matrix -");
    assert_says(text,
                "decode B2 kv5+7 H32/8 D128 bf16\n"
                "  a       graph     0.333   0.000  123457   0.000 0.000 50% memory  1.000 hnd\n");
    assert_says(text, "  b       refused: head_dim 1024: accepted \"64\"\n");
    assert_says(text, "  c       failed: broke\n");
    free(text);
}

/* Where a share is missing, the table and the JSON say why; a share of what memory takes is none
 * of these. */
TEST_OF(cpu, test_unknown_ceiling)
{
    char *text = NULL;
    size_t size = 0;
    const double us[] = {5};
    const char why[] =
        "  of ceiling: unknown, as fp8 products are faster than matrix, which is bf16\n";
    with_ceilings("mode=prefill,kv_len=8192,dtype=fp8_e4m3", ATTN_DEVICE_CUDA);
    struct bench_run *run = &report.entries[0].runs[0];
    run->outcome = BENCH_RAN;
    run->layout = ATTN_LAYOUT_KV_NHD;
    GOOD(bench_samples_add(&run->samples, us, 1, &error.base));
    for (int memory = 0; memory < 2; memory++) {
        run->bound = memory ? BENCH_BOUND_MEMORY : BENCH_BOUND_NONE;
        run->fraction = memory ? 0.25 : 0;
        FILE *file = open_memstream(&text, &size);
        bench_print(&report, file);
        fclose(file);
        ck_assert_msg((strstr(text, why) != NULL) == !memory, "%s", text);
        free(text);
    }
    text = bench_json(&report);
    assert_says(text, "\"matrix_dtype\":\t\"bf16\"");
    assert_says(text, "\"compute_ceiling\":\tnull");
    assert_says(text, "\"new_kv_dtype\":\t\"fp8_e4m3\"");
    assert_says(text, "\"out_dtype\":\t\"bf16\"");
    assert_says(text, "\"input_scales\":\t\"tensor\"");
    free(text);
}

static void end_soon(void *ctx, size_t done, size_t total, const char *what)
{
    int *calls = ctx;
    (void)done, (void)total;
    if (strncmp(what, "decode", 6) == 0 && ++*calls == 2) /* when the first is composed */
        raise(SIGTERM);
}

/* An interrupt before a shape's first block leaves it out, and all shapes that follow. The last test: a signal stays seen,
 * where tests do not fork. */
TEST_OF(interrupted, test_interrupted)
{
    static const char *const names[] = {"always", "never", NULL};
    int calls = 0;
    const struct bench_params params = {.host = host,
                                        .device = device,
                                        .threads = threads,
                                        .progress = end_soon,
                                        .progress_ctx = &calls};
    interrupt_take();
    load_fixture();
    add(SMALL "kv_len=9+4", names);
    GOOD(bench_measure(&params, &report, &error.base));
    for (int n = 0; n < 2; n++) {
        const struct bench_run *run = &report.entries[0].runs[n];
        ck_assert_uint_eq(run->outcome, BENCH_LEFT_OUT);
        ck_assert_str_eq(strbuf_text(&run->why), "interrupted");
    }
    ck_assert_int_eq(report.interrupted, 1);
}

GROUP(cpu, .set_up = set_up_cpu, .tear_down = tear_down);
TESTS("bench", .set_up = set_up_gpu, .tear_down = tear_down_gpu);
