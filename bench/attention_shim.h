/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_shim.h: what the scripts here call through ctypes; attnhost_ctypes.py is the twin.
 *
 * A bench is a backend driven through attnhost.h as an engine does it: a paged NHD cache whose
 * pages are shuffled, all layers of a step planned once, then forwarded one by one. Tensors belong
 * to the caller, on the CPU or on a GPU. The batch's index arrays are one block, made here in host
 * memory; for a GPU the caller copies it to the device and says where it is.
 *
 *     bench_create, bench_index, bench_place_index (GPU), bench_bind each layer
 *     bench_plan, bench_forward each layer                     or bench_steps, or bench_step_times
 *     bench_destroy
 */
#ifndef ATTENTION_SHIM_H
#define ATTENTION_SHIM_H

#include <attnhost.h>

#include <time.h>

/* What is measured; the twin of the class Setup. */
typedef struct bench_setup {
    uint32_t struct_size;
    int32_t device_type; /* ATTN_DEVICE_*, the first of its kind */
    int32_t mode;        /* ATTN_MODE_DECODE, _EXTEND, or _TARGET_VERIFY of a chain of drafts */
    int32_t num_seqs;    /* of the batch */
    int32_t num_tokens;  /* keys of each sequence */
    int32_t num_new;     /* of them the last, which are its queries; DECODE: 1 */
    int32_t num_shared; /* of them the first, whole pages, that all sequences have in common, as the
                           batch says; DECODE */
    int32_t num_q_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t num_layers;
    int32_t page_size;
    int32_t num_threads;  /* of the host's pool */
    int32_t graph;        /* 1: GRAPH metadata, 0: EAGER */
    int32_t save_kv;      /* 1: new keys and values are written to the cache within the forward */
    uint32_t dtype;       /* of q, k, v and the output, attn_dtype */
    uint32_t kv_dtype;    /* of the cache; another one than dtype is scaled, per tensor */
    float sm_scale;       /* of q.k */
    float kv_scale;       /* of keys and of values in the cache */
    uint32_t num_options; /* of the backend */
    const char *plugin;   /* a file, a folder if it ends with a slash; NULL = the installed ones */
    const char *backend;  /* its type */
    const char *const *options; /* num_options times key, value */
} bench_setup;

/* Where a layer's tensors lie; the twin of the class Tensors. q, out: [rows, q_heads, dim]; k, v:
 * [rows, kv_heads, dim], NULL = the cache has them; caches: [pages, page_size, kv_heads, dim], page
 * 0 is padding. */
typedef struct bench_tensors {
    void *q, *k, *v, *out, *k_cache, *v_cache;
} bench_tensors;

typedef struct bench bench;

/* Make a backend for the setup. NULL only without memory; else *status says so, and bench_message
 * why. */
bench *bench_create(const bench_setup *setup, attn_status *status);
void bench_destroy(bench *b);

/* Why the last call failed. Lives as long as the bench. */
const char *bench_message(const bench *b);

/* Pages of a cache, page 0 included. */
int32_t bench_num_pages(const bench *b);

/* Pages of the sequences, [num_seqs][*stride], on the host. */
const int32_t *bench_pages(const bench *b, int32_t *stride);

/* The index arrays, as one block of host memory. */
const void *bench_index(const bench *b, int64_t *bytes);

/* Where a copy of that block lies on the GPU; it stays there as long as the bench is used. */
void bench_place_index(bench *b, void *device);

/* Give a layer its tensors. */
attn_status bench_bind(bench *b, int32_t layer, const bench_tensors *tensors);

/* Plan the batch; `stream` as in attnhost.h. */
attn_status bench_plan(bench *b, void *stream);

/* One layer of the planned batch. */
attn_status bench_forward(bench *b, int32_t layer, void *stream, int32_t capturing);

/* `count` times a step on the CPU: plan the batch, forward every layer. */
attn_status bench_steps(bench *b, int32_t count);

/* cuGraphLaunch of the CUDA driver, which is not linked. */
typedef int (*bench_graph_launch)(void *graph, void *stream);

/* Seconds that the host spends on one step of a captured graph: seconds[0] in planning, seconds[1]
 * in launching. */
attn_status bench_step_times(bench *b, bench_graph_launch launch, void *graph, void *stream,
                             double seconds[2]);

static inline double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif /* ATTENTION_SHIM_H */
