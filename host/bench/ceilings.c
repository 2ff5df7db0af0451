/* SPDX-License-Identifier: Apache-2.0
 *
 * ceilings.c: see ceilings.h. Each load is a bench_work whose ctx is struct load.
 */
#include "host/bench/ceilings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/clock.h"
#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/base/configured.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LEAST_BLOCKS = 5, MAX_BLOCKS = 50 };

/* Memory shared by all loads of a device. */
struct load {
    const struct device *device;
    struct threads *threads;
    char *memory; /* of the device, random */
    uint64_t bytes;
    uint64_t *sink; /* [tasks] of the host: what keeps results alive */
    int64_t tasks;
    attn_status (*multiply)(void *arg, int64_t task, uint32_t worker);
    struct device_module *module;
    struct device_function *read, *matrix; /* NULL = not for this GPU */
    char why[256];                         /* the module is not there */
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- The processor --------------------------------------------------------------------------- */

enum { CPU_TASKS_EACH = 4, CPU_LOOPS = 1 << 16 };

static attn_status copy_part(void *arg, int64_t task, uint32_t worker)
{
    const struct load *load = arg;
    uint64_t part = load->bytes / 2 / (uint64_t)load->tasks, at = part * (uint64_t)task;
    (void)worker;
    memcpy(load->memory + load->bytes / 2 + at, load->memory + at, part);
    return ATTN_OK;
}

static attn_status read_part(void *arg, int64_t task, uint32_t worker)
{
    const struct load *load = arg;
    uint64_t words = load->bytes / (uint64_t)load->tasks / sizeof(uint64_t);
    const uint64_t *from = (const uint64_t *)(const void *)load->memory + words * (uint64_t)task;
    uint64_t sums[8] = {0};
    (void)worker;
    for (uint64_t i = 0; i + 8 <= words; i += 8)
        _Pragma("GCC unroll 8") for (int lane = 0; lane < 8; lane++) sums[lane] +=
            from[i + (uint64_t)lane];
    for (int lane = 1; lane < 8; lane++)
        sums[0] += sums[lane];
    load->sink[task] = sums[0];
    return ATTN_OK;
}

/* Twelve independent chains hide the latency of a multiply-add; unrolled, they stay in registers.
 * Values stay between 0 and 2. `all` makes a vector of equal elements, `fused` multiplies and adds,
 * `first` takes an element. */
#define UNROLLED _Pragma("GCC unroll 12") for (int c = 0; c < 12; c++)
#define MULTIPLY_ADDS(vector, all, fused, first)                                                   \
    vector sums[12], x = all(0.999999f), y = all(0.000001f);                                       \
    UNROLLED sums[c] = all((float)(c + 1) / 12);                                                   \
    for (int i = 0; i < CPU_LOOPS; i++)                                                            \
        UNROLLED sums[c] = fused(sums[c], x, y);                                                   \
    UNROLLED x = fused(x, x, sums[c]);                                                             \
    *(float *)(void *)&((struct load *)arg)->sink[task] = first(x)

#define PLAIN_SAME(value)    (value)
#define PLAIN_FUSED(a, b, c) ((a) * (b) + (c))

static attn_status multiply_plain(void *arg, int64_t task, uint32_t worker)
{
    (void)worker;
    MULTIPLY_ADDS(float, PLAIN_SAME, PLAIN_FUSED, PLAIN_SAME);
    return ATTN_OK;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static attn_status multiply_avx2(void *arg, int64_t task,
                                                                     uint32_t worker)
{
    (void)worker;
    MULTIPLY_ADDS(__m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_cvtss_f32);
    return ATTN_OK;
}

__attribute__((target("avx512f"))) static attn_status multiply_avx512(void *arg, int64_t task,
                                                                      uint32_t worker)
{
    (void)worker;
    MULTIPLY_ADDS(__m512, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_cvtss_f32);
    return ATTN_OK;
}
#endif

/* Sets load->multiply; operations of all tasks. */
static double choose_multiply(struct load *load)
{
    int lanes = 1;
    load->multiply = multiply_plain;
#if defined(__x86_64__)
    if (load->device->info.cpu_isa & ATTN_CPU_AVX512) {
        load->multiply = multiply_avx512;
        lanes = 16;
    } else if (load->device->info.cpu_isa & ATTN_CPU_AVX2) {
        load->multiply = multiply_avx2;
        lanes = 8;
    }
#endif
    return 2.0 * 12 * CPU_LOOPS * lanes * (double)load->tasks;
}

static attn_status run_tasks(struct load *load, attn_task task, attn_error *error)
{
    attn_status status = threads_for(load->threads, load->tasks, task, load);
    return status == ATTN_OK ? status
                             : host_fail(error, status, "ceilings: the thread pool failed");
}

static attn_status cpu_copy(void *ctx, attn_stream stream, attn_error *error)
{
    (void)stream;
    return run_tasks(ctx, copy_part, error);
}

static attn_status cpu_read(void *ctx, attn_stream stream, attn_error *error)
{
    (void)stream;
    return run_tasks(ctx, read_part, error);
}

static attn_status cpu_multiply(void *ctx, attn_stream stream, attn_error *error)
{
    (void)stream;
    return run_tasks(ctx, ((struct load *)ctx)->multiply, error);
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

/* As kernels/ceilings.cu has them. */
enum {
    READ_THREADS = 512,
    READ_TILE = READ_THREADS * 8 * 16, /* bytes */
    MATRIX_THREADS = 256,
    MATRIX_GROUPS = 2,
    MATRIX_PRODUCTS = 16, /* of an iteration */
    MATRIX_ITERATIONS = 512
};

#ifdef HAVE_NVCC
extern const unsigned char ceilings_fatbin[];
extern const uint64_t ceilings_fatbin_size;

/* load->why says what is missing afterwards. */
static void load_kernels(struct load *load)
{
    host_error error;
    host_error_init(&error);
    attn_status status = device_module_load(load->device, ceilings_fatbin, ceilings_fatbin_size,
                                            "ceilings", &load->module, &error.base);
    if (status == ATTN_OK)
        status =
            device_function(load->device, load->module, "ceiling_read", &load->read, &error.base);
    if (status == ATTN_OK)
        status = device_function(load->device, load->module, "ceiling_matrix", &load->matrix,
                                 &error.base);
    if (status != ATTN_OK)
        snprintf(load->why, sizeof load->why, "%.250s", host_error_text(&error));
}
#else
static void load_kernels(struct load *load)
{
    snprintf(load->why, sizeof load->why, "this attnhost was built without nvcc");
}
#endif

static attn_status cuda_copy(void *ctx, attn_stream stream, attn_error *error)
{
    const struct load *load = ctx;
    return device_copy(load->device, load->memory + load->bytes / 2, load->memory, load->bytes / 2,
                       stream, error);
}

static attn_status cuda_read(void *ctx, attn_stream stream, attn_error *error)
{
    const struct load *load = ctx;
    const uint32_t grid[3] = {4 * load->device->info.num_sms, 1, 1};
    const uint32_t block[3] = {READ_THREADS, 1, 1};
    char *memory = load->memory;
    uint64_t words = load->bytes / 16;
    int never = 0;
    void *arguments[] = {&memory, &words, &never, &memory};
    return device_launch(load->device, load->read, grid, block, arguments, stream, error);
}

static attn_status cuda_matrix(void *ctx, attn_stream stream, attn_error *error)
{
    const struct load *load = ctx;
    const uint32_t grid[3] = {load->device->info.num_sms, 1, 1};
    const uint32_t block[3] = {MATRIX_THREADS, 1, 1};
    char *memory = load->memory;
    int iterations = MATRIX_ITERATIONS, never = 0;
    void *arguments[] = {&iterations, &never, &memory};
    return device_launch(load->device, load->matrix, grid, block, arguments, stream, error);
}

static double matrix_flop(const struct load *load)
{
    return 2.0 * 64 * 256 * 16 * MATRIX_PRODUCTS * MATRIX_ITERATIONS * MATRIX_GROUPS *
           load->device->info.num_sms;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Far beyond the last-level cache, and no more than a quarter of what is free. */
static uint64_t choose_bytes(const struct device *device)
{
    int cpu = device->type == ATTN_DEVICE_CPU;
    uint64_t wanted = cpu ? bench_beyond_cache(device) : (uint64_t)4 << 30;
    uint64_t available = 0, total = 0;
    if (device_memory(device, &available, &total, NULL) == ATTN_OK && !cpu)
        wanted = least(wanted, available / 4);
    return wanted / READ_TILE * READ_TILE;
}

/* Random bytes: a block from here, doubled until the memory is full. */
static attn_status fill_random(const struct load *load, attn_error *error)
{
    uint64_t block[READ_TILE / sizeof(uint64_t)], filled = sizeof block;
    for (size_t i = 0; i < sizeof block / sizeof block[0]; i++)
        block[i] = mix_word(i + 1);
    attn_status status = device_copy(load->device, load->memory, block, sizeof block, NULL, error);
    while (filled < load->bytes && status == ATTN_OK) {
        uint64_t more = least(filled, load->bytes - filled);
        status = device_copy(load->device, load->memory + filled, load->memory, more, NULL, error);
        filled += more;
    }
    return status == ATTN_OK ? device_synchronize(load->device, NULL, error) : status;
}

static attn_status load_init(struct load *load, const struct device *device,
                             struct threads *threads, attn_error *error)
{
    *load = (struct load){.device = device, .threads = threads, .bytes = choose_bytes(device)};
    load->tasks = CPU_TASKS_EACH * (int64_t)threads_num_workers(threads);
    load->sink = calloc((size_t)load->tasks, sizeof *load->sink);
    load->memory = device_allocate(device, ATTN_SPACE_DEVICE, load->bytes, 4096);
    if (!load->sink || !load->memory)
        return device_no_memory(device, ATTN_SPACE_DEVICE, error,
                                "ceilings: no memory for %llu MiB",
                                (unsigned long long)(load->bytes >> 20));
    if (device->type == ATTN_DEVICE_CUDA)
        load_kernels(load);
    return fill_random(load, error);
}

static void load_finish(struct load *load)
{
    device_synchronize(load->device, NULL, NULL); /* copies that were enqueued before a failure */
    if (load->module)
        device_module_unload(load->device, load->module);
    device_release(load->device, ATTN_SPACE_DEVICE, load->memory);
    free(load->sink);
}

/* ---- Measuring ------------------------------------------------------------------------------- */

static attn_status measure(const struct bench_timer *timer, const struct bench_work *work,
                           double seconds, double sustain, struct bench_ceiling *ceiling,
                           attn_error *error)
{
    struct bench_summary summary;
    double us[BENCH_BLOCK];
    attn_status status = bench_timer_estimate(timer, work, INFINITY, us, error);
    if (status == ATTN_OK)
        status = bench_timer_sustain(timer, work, 1, sustain, error);
    int64_t end_ns = clock_now_ns() + (int64_t)(seconds * 1e9);
    for (int b = 0; status == ATTN_OK && b < MAX_BLOCKS; b++) {
        if (b >= LEAST_BLOCKS && clock_now_ns() > end_ns)
            break;
        status = bench_timer_block(timer, work, us, error);
        if (status == ATTN_OK)
            status = bench_samples_add(&ceiling->samples, us, timer->samples, error);
    }
    if (status == ATTN_OK)
        status = bench_samples_summary(&ceiling->samples, &summary, error);
    if (status == ATTN_OK && summary.median <= 0)
        return host_fail(error, ATTN_INTERNAL, "the device's events give no time");
    if (status == ATTN_OK)
        ceiling->rate = ceiling->amount / (summary.median * 1e-6);
    return status;
}

/* A ceiling that failed is one that cannot be measured, unless the device is gone. */
static attn_status note_failure(const struct device *device, attn_status status,
                                const host_error *said, struct bench_ceiling *ceiling,
                                attn_error *error)
{
    snprintf(ceiling->why, sizeof ceiling->why, "%.250s", host_error_text(said));
    return device_is_lost(device) ? host_fail(error, status, "ceilings: %s", ceiling->why)
                                  : ATTN_OK;
}

static attn_status try_measure(const struct bench_timer *timer, struct load *load,
                               attn_status (*enqueue)(void *, attn_stream, attn_error *),
                               double seconds, double sustain, struct bench_ceiling *ceiling,
                               attn_error *error)
{
    const struct bench_work work = {.enqueue = enqueue, .ctx = load};
    host_error said;
    host_error_init(&said);
    attn_status status = measure(timer, &work, seconds, sustain, ceiling, &said.base);
    return status == ATTN_OK ? status : note_failure(load->device, status, &said, ceiling, error);
}

static attn_status measure_all(const struct bench_timer *timer, struct load *load, double seconds,
                               double sustain, struct bench_ceilings *c, attn_error *error)
{
    int cpu = load->device->type == ATTN_DEVICE_CPU;
    c->copy.amount = c->read.amount = (double)load->bytes;
    c->matrix.amount = cpu ? choose_multiply(load) : matrix_flop(load);
    if (!cpu && !load->read)
        snprintf(c->read.why, sizeof c->read.why, "%s", load->why);
    if (!cpu && !load->matrix)
        snprintf(c->matrix.why, sizeof c->matrix.why, "%s", load->why);
    attn_status status =
        try_measure(timer, load, cpu ? cpu_copy : cuda_copy, seconds, sustain, &c->copy, error);
    if (status == ATTN_OK && (cpu || load->read))
        status =
            try_measure(timer, load, cpu ? cpu_read : cuda_read, seconds, sustain, &c->read, error);
    if (status == ATTN_OK && (cpu || load->matrix))
        status = try_measure(timer, load, cpu ? cpu_multiply : cuda_matrix, seconds, sustain,
                             &c->matrix, error);
    return status;
}

attn_status bench_ceilings_measure(const struct bench_timer *timer, struct threads *threads,
                                   double seconds, double sustain, struct bench_ceilings *ceilings,
                                   attn_error *error)
{
    struct bench_ceiling *all[] = {&ceilings->copy, &ceilings->read, &ceilings->matrix};
    struct load load;
    host_error said;
    host_error_init(&said);
    attn_status status = load_init(&load, timer->device, threads, &said.base);
    if (status == ATTN_OK) {
        status = measure_all(timer, &load, seconds, sustain, ceilings, error);
    } else {
        attn_status failed = status;
        for (int c = 0; c < 3; c++)
            status = note_failure(timer->device, failed, &said, all[c], error);
    }
    load_finish(&load);
    return status;
}

void bench_ceilings_finish(struct bench_ceilings *ceilings)
{
    bench_samples_finish(&ceilings->copy.samples);
    bench_samples_finish(&ceilings->read.samples);
    bench_samples_finish(&ceilings->matrix.samples);
    memset(ceilings, 0, sizeof *ceilings);
}
