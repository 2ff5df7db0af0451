/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_roof.c: what this processor can do at most: fused multiply-adds, reading memory, and reading
 * it and writing it back.
 * cpu_attention.py compiles it when it runs, for the processor that it runs on.
 */
#include "attention_shim.h"

#include <pthread.h>
#include <stdlib.h>

/* fp32 operations a second of all threads, an addition and a multiplication each count. */
double roof_flops(int32_t num_threads);

/* Bytes a second that all threads read from `data`, 64-byte aligned. */
double roof_bandwidth(int32_t num_threads, const void *data, int64_t bytes);

/* The same of memory that is changed in place: each byte counts as read and as written. */
double roof_update(int32_t num_threads, void *data, int64_t bytes);

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));

enum {
    SUMS = 12,
    MAX_THREADS = 256
}; /* sums: more than latency times pipes, fewer than registers */

typedef struct roof {
    pthread_barrier_t *start;
    int64_t iterations;
    char *data; /* NULL: multiply-adds; else `iterations` groups of SUMS vectors are read */
    int writes; /* and written */
    double seconds;
} roof;

static void multiply_add(int64_t iterations)
{
    volatile float factors[2] = {0.999f, 0.001f}; /* volatile: nothing may be known of them */
    const vf a = (vf){0} + factors[0], c = (vf){0} + factors[1];
    vf sum[SUMS];
    for (int i = 0; i < SUMS; i++)
        sum[i] = (vf){0} + (float)i;
    for (int64_t n = 0; n < iterations; n++)
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            sum[i] = sum[i] * a + c;
    for (int i = 1; i < SUMS; i++)
        sum[0] += sum[i];
    factors[0] = sum[0][0];
}

static void read_memory(const char *data, int64_t iterations)
{
    volatile int32_t sink;
    vi seen[SUMS] = {{0}};
    for (int64_t n = 0; n < iterations; n++, data += SUMS * sizeof(vi))
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            seen[i] |= ((const vi *)(const void *)data)[i];
    for (int i = 1; i < SUMS; i++)
        seen[0] |= seen[i];
    sink = seen[0][0];
    (void)sink;
}

/* A bit of each element is turned over. */
static void update_memory(char *data, int64_t iterations)
{
    volatile int32_t factor = 1;
    const vi flip = (vi){0} + factor;
    for (int64_t n = 0; n < iterations; n++, data += SUMS * sizeof(vi))
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            ((vi *)(void *)data)[i] ^= flip;
}

static void *roof_thread(void *arg)
{
    roof *r = arg;
    pthread_barrier_wait(r->start);
    double start = bench_now();
    if (r->data && r->writes)
        update_memory(r->data, r->iterations);
    else if (r->data)
        read_memory(r->data, r->iterations);
    else
        multiply_add(r->iterations);
    r->seconds = bench_now() - start;
    return NULL;
}

/* Seconds of the slowest thread; < 0 if threads cannot be made. The caller is one of them. */
static double roof_run(int32_t num_threads, int64_t iterations, char *data, int writes)
{
    roof roofs[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    pthread_barrier_t start;
    double seconds = 0;
    if (num_threads > MAX_THREADS || pthread_barrier_init(&start, NULL, (unsigned)num_threads))
        return -1;
    for (int32_t i = 0; i < num_threads; i++) {
        char *part = data ? data + (size_t)(i * iterations) * SUMS * sizeof(vi) : NULL;
        roofs[i] =
            (roof){.start = &start, .iterations = iterations, .data = part, .writes = writes};
        if (i > 0 && pthread_create(&threads[i], NULL, roof_thread, &roofs[i]) != 0)
            abort(); /* the others wait at the barrier for ever */
    }
    roof_thread(&roofs[0]);
    for (int32_t i = 0; i < num_threads; i++) {
        if (i > 0)
            pthread_join(threads[i], NULL);
        seconds = roofs[i].seconds > seconds ? roofs[i].seconds : seconds;
    }
    pthread_barrier_destroy(&start);
    return seconds;
}

double roof_flops(int32_t num_threads)
{
    const int64_t iterations = 1000000;
    double seconds = roof_run(num_threads, iterations, NULL, 0);
    return 2.0 * SUMS * LANES * (double)iterations * num_threads / seconds;
}

static double over_memory(int32_t num_threads, char *data, int64_t bytes, int writes)
{
    int64_t iterations = bytes / num_threads / (int64_t)(SUMS * sizeof(vi));
    double seconds = roof_run(num_threads, iterations, data, writes);
    return (double)(iterations * num_threads) * SUMS * sizeof(vi) * (1 + writes) / seconds;
}

double roof_bandwidth(int32_t num_threads, const void *data, int64_t bytes)
{
    return over_memory(num_threads, (char *)(uintptr_t)data, bytes, 0);
}

double roof_update(int32_t num_threads, void *data, int64_t bytes)
{
    return over_memory(num_threads, data, bytes, 1);
}
