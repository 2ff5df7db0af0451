/* SPDX-License-Identifier: Apache-2.0
 *
 * hybrid_mock.h: children of a composite that do what a test sets and record the arguments they
 * get. Two of them, "pre" and "dec", are reached through `mock_services`, as a host would do it.
 * Every object that a composite makes through them is counted, so that leaks are seen.
 */
#ifndef TESTS_HYBRID_MOCK_H
#define TESTS_HYBRID_MOCK_H

#include "attn_plugin.h"

enum { MOCK_PRE = 0, MOCK_DEC = 1, MOCK_CHILDREN = 2, MOCK_MAX_REASONS = 3 };

/* What verdicts add to the bytes of each child: gaps before its regions. */
enum { MOCK_GAPS = 2 * 4095 };

/* Slots of attn_backend_ops, in its order; calls are counted and failures are planned by them. */
enum {
    MOCK_DESTROY,
    MOCK_PREPARE,
    MOCK_INDEX_FORMS,
    MOCK_METADATA_SIZE,
    MOCK_METADATA_CREATE,
    MOCK_INIT,
    MOCK_METADATA_DESTROY,
    MOCK_FORWARD_EXTEND,
    MOCK_FORWARD_DECODE,
    MOCK_GET_EXTENSION,
    MOCK_SLOTS
};

typedef struct mock_child {
    const char *name;
    attn_backend_ops ops;
    attn_backend_type type;

    /* What it answers. */
    attn_verdict verdict; /* supported, and all that follows from num_reasons */
    attn_reason reasons[MOCK_MAX_REASONS];
    uint32_t refused_modes; /* a problem with one of these is refused for MODE */
    uint32_t index_forms;
    attn_memory_size size;
    const void *extension;                   /* NULL = the id itself */
    attn_status query_status, create_status; /* other than ATTN_OK: fails with it */
    attn_status slot_status[MOCK_SLOTS];

    /* What it received. */
    int calls[MOCK_SLOTS];
    int queries, live, live_metadata;
    attn_problem problem;  /* the last asked about or created for */
    attn_bounds bounds;    /* of that problem, or of the last metadata */
    int32_t layer_ids[16]; /* of all problems of the last query or create */
    uint32_t num_layers;
    attn_stream stream;
    int32_t layer_id;
    attn_forward_args args;
} mock_child;

extern mock_child mock_children[MOCK_CHILDREN];
extern attn_services mock_services;
extern int mock_allocated;     /* blocks not yet released */
extern int mock_allocate_left; /* allocations that succeed from now on; -1 = all */
extern int mock_ordered;       /* forwards of both */

/* Both children willing, nothing recorded. */
void mock_reset(void);

#endif /* TESTS_HYBRID_MOCK_H */
