/* SPDX-License-Identifier: Apache-2.0
 *
 * step_kernels_case.h: random work for the host's kernels, done by the processor and by another
 * device on equal memory, and compared to the bit.
 *
 * A case is a workload, layers and a generator. Each of the functions below makes random arguments,
 * with all arrays of exactly their size or with poison around them, has both devices do the work,
 * and asserts that all of the arrays are equal afterwards, with what should not be touched.
 */
#ifndef STEP_KERNELS_CASE_H
#define STEP_KERNELS_CASE_H

#include "host/base/error.h"
#include "host/run/step_kernels.h"

enum { CASE_REQUESTS = 5, CASE_LAYERS = 4, CASE_HASH_IDS = 8, CASE_TWINS = 9 };
enum { CASE_CPU, CASE_DEVICE };

/* An array in the memory of both. */
struct twin {
    size_t bytes, guard; /* guard: bytes of poison on each side */
    size_t device_bytes; /* of the whole allocation there */
    char *memory[2];
};

struct step_case {
    uint64_t seed, num_random;
    int64_t hash_ids[CASE_REQUESTS][CASE_HASH_IDS];
    trace_request requests[CASE_REQUESTS];
    generator_layer layers[CASE_LAYERS];
    struct workload workload;
    struct generator generator;
    struct threads *threads;
    struct device *devices[2]; /* the second one is borrowed */
    attn_stream streams[2];
    struct step_kernels *kernels[2];
    struct twin twins[CASE_TWINS]; /* of the work at hand */
    int num_twins;
    int with_graph; /* the device replays a graph that was captured before the arrays had contents
                     */
    int too_small;  /* this one of the arrays, from 1, has one byte on the device, which may be lost
                     */
    host_error error;
};

/* Make a case; its kernels are on the processor and on `device`. */
void step_case_create(struct step_case *c, struct device *device, uint64_t seed);
void step_case_destroy(struct step_case *c);

/* The case without kernels, device and stream, which are left 0. */
void step_case_init(struct step_case *c, uint64_t seed);
void step_case_finish(struct step_case *c);

/* In [0, count). */
uint64_t step_case_random(struct step_case *c, uint64_t count);

/* The operands of a softmax layer in this memory; k = v = NULL: q alone. Returns how many. */
uint32_t step_case_vectors(const generator_layer *layer, attn_dtype dtype, void *q, void *k,
                           void *v, struct step_vectors *list);

void step_case_generate(struct step_case *c, int32_t layer, attn_dtype dtype);
void step_case_generate_linear(struct step_case *c, attn_dtype dtype);
void step_case_generate_indexed(struct step_case *c, int32_t layer, attn_dtype dtype);
void step_case_update_table(struct step_case *c);
void step_case_index_pages(struct step_case *c);
void step_case_watch(struct step_case *c, attn_dtype dtype);
void step_case_gather(struct step_case *c, attn_dtype dtype);
void step_case_keys(struct step_case *c);
void step_case_move(struct step_case *c);

/* All of these, for each layer and type. */
void step_case_everything(struct step_case *c);

#endif /* STEP_KERNELS_CASE_H */
