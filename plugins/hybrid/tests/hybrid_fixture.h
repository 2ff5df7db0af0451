/* SPDX-License-Identifier: Apache-2.0
 *
 * hybrid_fixture.h: what the tests of composites start from. All of it is a global that a test may
 * change after start(), before it is used.
 *
 *   start()    hybrid_phase over two layer groups (layers 4 and 5 of KV group 0, layer 9 of KV
 * group 1), all modes, children "pre" and "dec" that are willing start_linear()  hybrid_linear over
 * the same, "pre" for full attention and "dec" for layer 9, which is a linear one ready() instance
 * and metadata, in memory of exactly the size that was asked for finish()   destroys them; nothing
 * may be left and nothing beyond the memory written
 */
#ifndef TESTS_HYBRID_FIXTURE_H
#define TESTS_HYBRID_FIXTURE_H

#include "plugins/hybrid/core/hybrid.h"
#include "plugins/hybrid/tests/hybrid_mock.h"
#include "tests/tools/test_main.h"

#define PRE       (&mock_children[MOCK_PRE])
#define DEC       (&mock_children[MOCK_DEC])
#define BIT(mode) ATTN_MODE_BIT(ATTN_MODE_##mode)
#define ALL_MODES                                                                                  \
    (BIT(EXTEND) | BIT(DECODE) | BIT(MIXED) | BIT(IDLE) | BIT(TARGET_VERIFY) | BIT(DRAFT_EXTEND))
#define OPS (composite->ops)

extern const attn_backend_type *composite; /* under test */
extern attn_device device;
extern attn_layer layers[3];
extern attn_layer_group groups[2];
extern attn_bounds bounds;
extern attn_problem problems[2];
extern attn_option_value values[3];
extern attn_options options;
extern char message[256];
extern attn_error error;
extern attn_instance *instance;
extern attn_metadata *metadata;
extern attn_memory_size size;
extern attn_memory memory;

void start(void);
void start_linear(void);
void start_route(void);    /* route: decodes to "dec", all else to "pre" */
void start_autotune(void); /* autotune of both, which nothing can be measured of */
void ready(void);
void finish(void);

/* Calls of the composite with the globals above. */
attn_status query(attn_verdict *verdict);
attn_status create(void);
attn_status create_metadata(void);
void give_memory(void); /* as `size` says, exactly */
attn_status plan(const attn_batch *batch);

void check_nothing_left(void); /* every child, metadata and allocation is gone */

/* A MIXED batch: sequences of 2, 1 and 4 queries, then two of one query. Each pointer of it leads
 * to its own array or to the same array as few others, so that a shift tells which it was. */
enum { SEQS = 5, DECODES = 2, ROWS = 9 };

extern attn_kv_batch kv[3];
extern attn_batch mixed;

void make_mixed(int32_t base); /* rows start at `base`; KV group 1 has new rows of its own */
attn_batch plain_batch(uint32_t mode); /* the same in another mode */

/* Every role, each with another stride, dtype and offset. */
extern attn_tensor tensors[ATTN_ROLE_COUNT];
extern const attn_tensor *operands[ATTN_ROLE_COUNT];
extern attn_forward_args args;

void make_args(void);

#endif /* TESTS_HYBRID_FIXTURE_H */
