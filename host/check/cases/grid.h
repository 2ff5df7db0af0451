/* SPDX-License-Identifier: Apache-2.0
 *
 * grid.h: the choice of cases for a backend.
 *
 *   axis   one thing that varies, with a fixed list of values (grid_axes.c)
 *   point  a value for each axis; a point is a case's spec. Of a latent layer it has four more: the
 *          latent's dimensions, its form, how its cache is packed, who chooses its keys. AXIS_TYPE, AXIS_DIM, AXIS_V_DIM
 *          and AXIS_LAYOUT mean nothing there and stay at 0; of SOURCE_PREFIX in the expanded form
 *          keys are a chunk of the prefix
 *   grid   the points that a backend's own query accepts: a base, and a list that has every pair of
 *          values of two axes that any accepted point has
 *
 * The list is built greedily and depends on the seed alone, so the list and its digest are the same
 * on every machine. Combinations that query refuses are left out; the checks of group CAPS judge
 * its refusals. */
#ifndef HOST_CHECK_CASES_GRID_H
#define HOST_CHECK_CASES_GRID_H

#include "host/check/check.h"
#include "host/check/cases/forward_case.h"

enum grid_axis {
    AXIS_TYPE,
    AXIS_MODE,
    AXIS_DTYPE,  /* of q, or of what is not fp8 of the next two */
    AXIS_INPUTS, /* which of q, new k and v are fp8, and granularity of their scales */
    AXIS_OUT,
    AXIS_KV, /* dtype of the cache and granularity of its scales */
    AXIS_DIM,
    AXIS_V_DIM,
    AXIS_HEADS,
    AXIS_PAGE,
    AXIS_LAYOUT,
    AXIS_FORM, /* of the KV indices: option values that make an instance ask for others */
    AXIS_SLOTS,
    AXIS_MASK,
    AXIS_WINDOW,
    AXIS_CHUNK,
    AXIS_CAP,
    AXIS_SCALE,
    AXIS_ALIBI,
    AXIS_SINK,
    AXIS_SOURCE, /* where keys come from and go to */
    AXIS_LENGTHS,
    AXIS_LSE,
    AXIS_SCORES,
    AXIS_PADDING,
    AXIS_BOUNDS,
    AXIS_ROW,
    AXIS_DECODES,            /* of MIXED batches: where they lie, how many queries they have */
    AXIS_PLACE,              /* what is promised of where operands lie */
    GRID_AXES,               /* which the grid's own points vary */
    AXIS_LATENT = GRID_AXES, /* dimensions of a latent layer; 0 = it is none */
    AXIS_LATENT_FORM,
    AXIS_LATENT_CACHE,
    AXIS_CHOICE, /* of a sparse layer: where the keys of a row come from */
    POINT_AXES
};

/* Values of some axes, by name; the others are counted. */
enum { TYPE_DECODER, TYPE_ENCODER_ONLY, TYPE_CROSS };
enum { MODE_EXTEND, MODE_DECODE, MODE_MIXED, MODE_VERIFY, MODE_DRAFT };
enum { DTYPE_BF16, DTYPE_F16, DTYPE_F32 };
enum {
    INPUTS_PLAIN,
    INPUTS_E4M3,
    INPUTS_E4M3_PER_SEQ_HEAD,
    INPUTS_Q_E4M3, /* new k, v are not fp8 */
    INPUTS_Q_E4M3_PER_HEAD,
    INPUTS_Q_E4M3_PER_SEQ_HEAD,
    INPUTS_NEW_KV_E4M3_PER_HEAD /* and q is not */
};
enum { OUT_AS_Q, OUT_F32, OUT_BF16, OUT_F16, OUT_E4M3 };
enum {
    KV_AS_Q,
    KV_E4M3,
    KV_E4M3_PER_HEAD,
    KV_E5M2,
    KV_E5M2_PER_HEAD,
    KV_E4M3_PER_SEQ_HEAD,
    KV_E4M3_PER_TOKEN_HEAD
};
enum {
    MASK_LAYER,
    MASK_NONE,
    MASK_FULL,
    MASK_QLEN,
    MASK_FULL_POSITIONS,
    MASK_QLEN_POSITIONS,
    MASK_ITEMS
};
enum {
    WINDOW_CAUSAL,
    WINDOW_NONE,
    WINDOW_SELF,  /* 0, 0 */
    WINDOW_15,    /* 15, 0 */
    WINDOW_63,    /* 63, 0 */
    WINDOW_100,   /* 100, 0 */
    WINDOW_BOTH,  /* 7, 3 */
    WINDOW_RIGHT, /* -1, 3 */
};
enum { SINK_NONE, SINK_GIVEN, SINK_OMITTED };
enum {
    SOURCE_SAVED,
    SOURCE_UNSAVED,
    SOURCE_CACHE,
    SOURCE_SOME_SAVED, /* some slots are -1 */
    SOURCE_PREFIX,     /* the cache's prefix alone, with MASK_NONE */
    SOURCE_SHARED      /* a second layer reads the first one's buffer */
};
enum {
    LENGTHS_PAGES, /* at and next to borders of pages */
    LENGTHS_EMPTY, /* some without queries, some without keys */
    LENGTHS_SPLITS,
    LENGTHS_SHORT,
    LENGTHS_ROWS, /* many queries */
    LENGTHS_SINGLE
};

enum { DECODES_LAST, DECODES_FIRST, DECODES_DRAFTS, DECODES_FIRST_DRAFTS };

enum { PLACE_ANY, PLACE_KV_EQUAL, PLACE_ALIGNED };

/* Dimensions by name; the others are counted. */
enum { MLA_NONE, MLA_SMALL, MLA_DEEPSEEK, MLA_ONE_BLOCK, MLA_DIMS = 8 };
enum { ALL_LATENTS = (1 << MLA_DIMS) - 2 };
/* Sets of values of AXIS_LATENT_FORM and of AXIS_LATENT_CACHE. */
enum { MLA_ABSORBED = 1 << 0, MLA_EXPANDED = 1 << 1, MLA_LATENT = 1 << 0, MLA_PACKED = 1 << 1 };

/* All keys; those of a list of slots, or of blocks for all heads or for each; those that an indexer with labels of this
 * dtype chooses, whose queries are f32 as well where labels are. */
enum {
    CHOICE_NONE,
    CHOICE_GIVEN,
    CHOICE_E4M3,
    CHOICE_BF16,
    CHOICE_F32,
    CHOICE_BLOCKS,
    CHOICE_BLOCKS_OF_HEADS
};

enum { GRID_MAX_VALUES = 16, GRID_MAX_FORMS = 8 };

struct grid_point {
    uint8_t value[POINT_AXES];
};

/* The backend under query. */
struct grid_backend {
    const attn_backend_type *type;
    const attn_options *options;
    const attn_services *services;
    const struct device *device;
    struct check_trail *trail; /* of the subject */
};

/* A set of options by which the backend asks for certain index forms. */
struct grid_form {
    attn_options options;
    attn_option_value *values; /* NULL = the backend's own options */
    uint32_t forms; /* that an instance asks for; one of them where it leaves the choice */
    char name[64];  /* "" or "key = value" */
};

struct grid {
    struct grid_backend backend;
    uint64_t seed;
    struct grid_form forms[GRID_MAX_FORMS];
    int32_t num_forms;
    struct grid_point base; /* as plain as the backend allows */
    struct grid_point *points;
    int32_t num_points, room;
    char digest[65];         /* SHA-256 of the points, as grid_spec() reads them */
    uint32_t traits;         /* ATTN_TRAIT_* of the base */
    char refusal[512];       /* why there is no base; "" = there is one */
    struct answers *answers; /* of query, by problem (grid.c) */
    bool remembers; /* while points are chosen and counted; a case queries by itself, so that
                     * effects of queries do not depend on earlier cases */
};

/* Ask the backend; *grid is the caller's. With a backend that accepts nothing the grid is empty.
 * OUT_OF_HOST_MEMORY, or the error of an invalid answer. */
attn_status grid_create(const struct grid_backend *backend, uint64_t seed, bool exhaustive,
                        struct grid **grid, attn_error *error);
void grid_destroy(struct grid *grid);

/* The grid of a subject, made once, in the place that it has for it (check_subject.grid). Without memory the process
 * ends, which is reported as a crash of the case. */
struct grid *grid_of(const struct check_subject *subject);

/* ---- Axes (grid_axes.c) ---------------------------------------------------------------------- */

/* Values of an axis; of AXIS_FORM the grid's forms are fewer. */
int32_t grid_num_values(const struct grid *grid, enum grid_axis axis);

/* The spec of a point. False: the point contradicts itself. */
bool grid_spec(const struct grid *grid, const struct grid_point *point, struct case_spec *spec);

/* The options of a point's backend. */
const attn_options *grid_options(const struct grid *grid, const struct grid_point *point);

/* The rules of docs/ABI.md that a point's case exercises: "MEAN-04, MEAN-06, KV-01". */
void grid_rules(const struct grid_point *point, char *text, size_t size);

/* ---- Questions (grid.c) ---------------------------------------------------------------------- */

/* Does query accept the point? *spec (may be NULL) gets its spec, padding's length included. If
 * not, the first reason stands in `reason` (may be NULL): "head_dim 7: accepted 64, 128". */
bool grid_accepts(const struct grid *grid, const struct grid_point *point, struct case_spec *spec,
                  char *reason, size_t size);

/* *spec becomes `changed`, if that makes sense and query accepts it. */
bool grid_take(const struct grid *grid, const attn_options *options, struct case_spec *changed,
               struct case_spec *spec);

/* The same for a spec that was made of a point and changed; its padding's length is set. */
bool grid_accepts_spec(const struct grid *grid, const attn_options *options, struct case_spec *spec,
                       char *reason, size_t size);

/* Point n of a stream of random ones, accepted or not; of latent layers with axes of the set `without` plain. */
struct grid_point grid_random(const struct grid *grid, uint64_t seed, uint64_t n);
struct grid_point grid_random_latent(const struct grid *grid, uint64_t seed, uint64_t n,
                                     uint32_t without);

/* For a tenth of all seeds the point becomes one of cross attention or of an encoder. These exclude
 * windows, chunks and more, so that hardly any point drawn axis by axis is one. Backends may refuse
 * both. */
void grid_draw_type(struct grid_point *point, uint64_t seed);

/* Values of some axes, as sets of bits; every point that has one of each, and is as the base else.
 */
struct grid_choice {
    enum grid_axis axis;
    uint32_t values;
};
enum { GRID_MAX_CHOICES = 9, ALL = (1 << GRID_MAX_VALUES) - 1 };
/* clang-format off */
#define BIT(value) (1u << (value))
/* A choice of AXIS_x: of values x_a, x_b ..., up to five by name; of all; of all but one; of the first n; of number n. */
#define OF(axis, ...) {AXIS_##axis, OF_COUNT(__VA_ARGS__, OF_5, OF_4, OF_3, OF_2, OF_1, OF_0)(axis, __VA_ARGS__)}
#define EACH(axis) {AXIS_##axis, ALL}
#define BUT(axis, value) {AXIS_##axis, ALL & ~BIT(axis##_##value)}
#define FIRST(axis, count) {AXIS_##axis, BIT(count) - 1}
#define NTH(axis, number) {AXIS_##axis, BIT(number)}
#define OF_COUNT(a, b, c, d, e, of, ...) of
#define OF_1(axis, a) BIT(axis##_##a)
#define OF_2(axis, a, ...) BIT(axis##_##a) | OF_1(axis, __VA_ARGS__)
#define OF_3(axis, a, ...) BIT(axis##_##a) | OF_2(axis, __VA_ARGS__)
#define OF_4(axis, a, ...) BIT(axis##_##a) | OF_3(axis, __VA_ARGS__)
#define OF_5(axis, a, ...) BIT(axis##_##a) | OF_4(axis, __VA_ARGS__)
/* clang-format on */
#define BOTH_PHASES         OF(MODE, EXTEND, DECODE)
#define SAVED_OR_NOT        OF(SOURCE, SAVED, CACHE)
#define QUANTISED           BUT(KV, AS_Q)
#define SCALED              OF(KV, E4M3, E5M2)
#define PLAIN_AND_QUANTISED OF(KV, AS_Q, E4M3)
#define THREE_MODES         OF(MODE, EXTEND, DECODE, MIXED)
#define INDEXERS            OF(CHOICE, E4M3, BF16, F32)

/* Of latent layers: sets of forms, caches and dimensions, then choices of the grid's axes. */
#define OF_LATENTS(forms, caches, dims, ...)                                                       \
    {AXIS_LATENT_FORM, forms}, {AXIS_LATENT_CACHE, caches}, {AXIS_LATENT, dims}, __VA_ARGS__

#define BOTH_FORMS (MLA_ABSORBED | MLA_EXPANDED)

/* Are they of latent layers? */
bool grid_chooses_latents(const struct grid_choice *choices);

/* Point `index` of those, counted over accepted ones, and how many there are; a choice without
 * values ends the list. Latent layers have a base of their own, as plain as the backend allows, and
 * its dimensions where none of the chosen ones is accepted: kernels of 512 + 64 alone are checked
 * for all that others are. The reason of the first that is refused is in `reason` if none is
 * accepted. */
int32_t grid_product(const struct grid *grid, const struct grid_choice *choices, int32_t index,
                     struct grid_point *point, char *reason, size_t size);

#endif /* HOST_CHECK_CASES_GRID_H */
