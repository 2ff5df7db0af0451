/* SPDX-License-Identifier: Apache-2.0
 *
 * stand_ins.h: checks of hybrid's composites over children that the tests bring. They compute nothing: each looks at
 * what it is asked about, made for, planned with and called with, and writes down what every row of
 * its calls is, whatever index form describes it. So it shows whether each row of a batch has
 * reached the one child that the composite's options name, with its own lengths, slots, masks and
 * operands.
 *
 *   - tree.c: composites over stand-ins, one to three levels deep, by options that are drawn;
 *     who serves what by these options
 *   - batch.c: layers, and batches of any mode with any parts, whose contents nothing reads
 *   - row.c: what a row is
 *   - children.c: the children
 *   - checks.c: the checks; measured.c: those of composites that measure
 *
 * All of it is drawn from the case's seed. It all lies on the processor, whatever the subject's
 * device is.
 */
#ifndef HYBRID_STAND_INS_H
#define HYBRID_STAND_INS_H

#include "host/check/check.h"
#include "host/base/error.h"
#include "host/check/cases/draw.h"
#include "host/check/cases/service_counter.h"
#include "host/plugin/options.h"

enum {
    STAND_NODES = 6,
    STAND_LEAVES = STAND_NODES * 3, /* of nodes that are not measured, three each */
    STAND_CHILDREN = 4,             /* of a composite */
    STAND_RULES = 5,                /* of a table of routes, the default included */
    STAND_GROUPS = 3,
    STAND_LAYERS = 6,
    STAND_SEQS = 10, /* bounds */
    STAND_Q_LEN = 6,
    STAND_TOKENS = STAND_SEQS * STAND_Q_LEN,
    STAND_KEYS = 40,
    STAND_LONG = 520, /* keys where candidates are measured */
    STAND_RED = 64,
    STAND_LOG = STAND_TOKENS + 16,
    STAND_FIRST_ROW = 4, /* q_indptr[0] at most */
    STAND_SCALED = 5,    /* roles that may have scales */
    STAND_CLASSES = 12,  /* of autotune, as far as bounds go: stand_class() */
    STAND_SLOW_NS = 2500000,
    STAND_FAST_NS = 100000
};

/* ---- Rows ------------------------------------------------------------------------------------ */

/* What a row is, apart from its operands. X(NAME, "name in texts") */
#define STAND_FIELD_MAP(X)                                                                         \
    X(MODE, "mode")                                                                                \
    X(REAL_SEQ, "its sequence is no padding")                                                      \
    X(REAL_ROW, "it is no padding")                                                                \
    X(SEQ_LEN, "seq_len")                                                                          \
    X(PREFIX, "prefix_len")                                                                        \
    X(QUERIES, "queries of its sequence")                                                          \
    X(EXPLICIT, "explicit position")                                                               \
    X(REQUEST, "row of req_to_token")                                                              \
    X(HOST, "arrays that the host has")                                                            \
    X(KV_LEN, "kv_len")                                                                            \
    X(PAGE_SIZE, "page_size")                                                                      \
    X(SLOTS, "slots of its keys")                                                                  \
    X(NUM_NEW, "new keys")                                                                         \
    X(NEW_SLOTS, "slots of the new keys")                                                          \
    X(MASK, "kind of mask")                                                                        \
    X(MASK_BITS, "bits of its mask")                                                               \
    X(ITEM_PREFIX, "prefix of its items")                                                          \
    X(ITEM_POSITION, "position in its item")                                                       \
    X(ITEM_LENGTH, "longest item")                                                                 \
    X(DRAFT, "draft")                                                                              \
    X(STATE_SLOT, "slot of its state")                                                             \
    X(STATE_DST, "slot its state goes to")                                                         \
    X(STATE_INITIAL, "initial state")                                                              \
    X(SNAPSHOT, "slot of its snapshot")                                                            \
    X(SPARSE, "most chosen keys")                                                                  \
    X(FLAGS, "flags")                                                                              \
    X(SCALES, "scales")

enum stand_field {
#define STAND_FIELD_ENUM(name, text) STAND_##name,
    STAND_FIELD_MAP(STAND_FIELD_ENUM)
#undef STAND_FIELD_ENUM
        STAND_PLAIN_FIELDS,
    STAND_ADDRESS = STAND_PLAIN_FIELDS,           /* of each role's operand in this row */
    STAND_FORM = STAND_ADDRESS + ATTN_ROLE_COUNT, /* its type, shape and strides */
    STAND_FIELDS = STAND_FORM + ATTN_ROLE_COUNT
};

struct stand_row {
    int32_t leaf; /* who has computed it */
    int64_t field[STAND_FIELDS];
};

/* A row that a child has as padding of no sequence, by its address in OUT: it may write there. */
struct stand_spare {
    int32_t leaf;
    int32_t before; /* rows of sequences that were computed before, in this call */
    int64_t address;
};

/* Which row of which batch. */
struct stand_place {
    const attn_batch *batch;
    const attn_forward_args *args;
    const attn_layer_group *group;
    uint32_t forms; /* of indices that are read */
    bool as_decode; /* a row that is alone, of a batch that gives all rows */
};

/* First query row of a sequence, and how many it has; row numbers are those of the tensors. */
int32_t stand_first_row(const struct stand_place *place, int32_t seq, int32_t *count);

/* Rows of no sequence: how many, after those of all sequences; below 0 = sequences have more rows
 * than the batch. `first` gets the number of the first one. */
int32_t stand_spare_rows(const struct stand_place *place, int32_t *first);

/* The address of a row of operand OUT. */
int64_t stand_out_address(const struct stand_place *place, int32_t row);

/* What query `t` of sequence `seq` is. */
void stand_read_row(const struct stand_place *place, int32_t seq, int32_t t, struct stand_row *row);

/* NULL, or the first thing in which two rows differ: then in *field. */
const char *stand_difference(const struct stand_row *a, const struct stand_row *b,
                             enum stand_field *field);

/* NULL, or what contradicts itself in an operand, or what the problem promises of all of them. */
const char *stand_operand_defect(const attn_forward_args *args, const attn_problem *problem);

/* ---- Shares ---------------------------------------------------------------------------------- */

/* The part of a layer group (or of all groups) that is routed to one child. */
struct stand_share {
    uint32_t modes;
    uint32_t layers; /* by their number in the scene; 0 = nothing comes */
    uint32_t expanded;
    int32_t max_seqs, max_kv_len;
};

/* Classes of batches that autotune decides for, by its README: of those here. One sequence, two to
 * four and more; up to 512 keys and more. */
static inline int32_t stand_class(bool decode, int32_t seqs, int32_t kv_len)
{
    return 6 * decode + 2 * (seqs > 4 ? 2 : seqs > 1) + (kv_len > 512);
}

/* ---- The children ---------------------------------------------------------------------------- */

struct stand_scene;

/* What a wrong candidate does to one row of one head, any one. */
enum stand_wrong { STAND_RIGHT, STAND_OTHER_NUMBER, STAND_UNWRITTEN };

/* In which call a leaf fails. */
enum stand_call { STAND_NO_CALL, STAND_CREATE, STAND_METADATA, STAND_PLAN };

struct stand_leaf {
    char name[16];
    struct stand_scene *scene;
    int32_t index;
    struct stand_share share[STAND_GROUPS]; /* the part of each group routed to it */
    struct stand_share split[STAND_GROUPS]; /* the same if MIXED were split: it may be asked */

    /* What it answers. */
    uint32_t forms;
    uint32_t graph_level, traits, reads;
    int32_t fill;
    uint32_t host_arrays;
    double cost;
    uint64_t bytes[ATTN_SPACE_COUNT]; /* device, pinned, host */
    uint64_t sizes[ATTN_REGION_COUNT], alignments[ATTN_REGION_COUNT];
    const void *extension;  /* of STAND_EXTENSION; NULL = it has none */
    bool refuses;           /* its query, with STAND_WORDS */
    enum stand_call fails;  /* with STAND_WORDS */
    uint32_t slow_classes;  /* of batches, as stand_class() counts them, */
    long slow_ns;           /* so slow */
    uint32_t wrong_classes; /* those that it computes wrong, */
    int32_t wrong_group;    /* of this group's layers, */
    enum stand_wrong wrong; /* in this way. Not 0: it is the fastest of all in all else */

    /* What calls have done to it. */
    bool refused; /* its last plan, as `fails` wants it */
    int32_t made, prepared, live, live_metadata;
    int32_t samples[STAND_CLASSES]; /* how many samples of its speed were taken */
    int64_t shortest_ns[STAND_CLASSES], longest_ns[STAND_CLASSES]; /* of these */
    uint32_t asked; /* groups that it was asked about, as a mask */
    attn_backend_type type;
};

#define STAND_EXTENSION "attn.stand_in/1"

#define STAND_WORDS "this is not for me"
enum { STAND_REASONS = 3 }; /* of a refusal */

enum stand_type { STAND_PHASE, STAND_LINEAR, STAND_ROUTE, STAND_AUTOTUNE, STAND_TYPES };

struct stand_rule {
    uint32_t layers, kinds, phases; /* masks */
    int32_t batch[2], kv[2];
    int32_t child;
};

/* A composite. */
struct stand_node {
    char name[16];
    struct stand_scene *scene;
    enum stand_type type;
    const attn_backend_type *backend;
    struct options *options;
    attn_services services;
    int32_t num_children;
    int32_t child[STAND_CHILDREN]; /* >= 0: a leaf; else -1 - node */
    bool splits;                   /* MIXED */
    bool spec_decode;              /* phase: drafts go to `decode` */
    bool by_kind;                  /* linear: else by layers */
    uint32_t full_layers;
    struct stand_rule rules[STAND_RULES];
    int32_t num_rules;
    int32_t choice[STAND_CLASSES]; /* autotune */
};

/* ---- Scene ----------------------------------------------------------------------------------- */

struct stand_layer {
    int32_t id, group;
};

struct stand_arrays; /* batch.c */

struct stand_batch {
    attn_batch batch;
    attn_kv_batch kv[STAND_GROUPS];
    attn_mask mask;
    attn_multi_item items;
    attn_speculation spec;
    attn_shared_prefix shared;
    attn_state_batch states[STAND_GROUPS];
    attn_sparse_batch sparse;
    struct stand_arrays *host, *device;
};

struct stand_args {
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_scale scale[STAND_SCALED];
    const attn_scale *scales[ATTN_ROLE_COUNT];
    attn_forward_args args;
};

/* Initialised in place and never copied. */
struct stand_scene {
    struct check_run *run;
    struct draw draw;
    struct service_counter counter; /* of the composites' own memory */
    const attn_backend_type *types[STAND_TYPES];

    attn_layer group_layers[STAND_GROUPS][STAND_LAYERS];
    attn_layer_group groups[STAND_GROUPS];
    attn_mla_dims mla;
    attn_linear_dims linear;
    attn_sparse_dims sparse;
    attn_bounds bounds;
    attn_problem problems[STAND_GROUPS];
    int32_t num_groups;
    struct stand_layer layers[STAND_LAYERS];
    int32_t num_layers;

    struct stand_node nodes[STAND_NODES]; /* the first is the root */
    int32_t num_nodes;
    struct stand_leaf leaves[STAND_LEAVES];
    int32_t num_leaves;

    int32_t batch_number; /* of batches that the root was given */

    /* The metadata that the root was given. */
    bool graph;
    bool measured;      /* the root has to find out whom to choose, */
    bool at_border;     /* by keys alone, of which there is one beyond the border, */
    bool many_heads;    /* where one leaves a row unwritten, of more than are sampled, */
    bool large_pages;   /* in a cache of pages that are larger than its least memory, */
    int32_t other;      /* scenes of one store are of other layers each, */
    const char *store;  /* or reads it in this file; NULL = there is none */
    int32_t first_left; /* the first candidate that is not wrong */
    bool reading;       /* the children read new tokens differently */
    attn_bounds given;
    char *regions[ATTN_REGION_COUNT]; /* between red zones */
    attn_memory_size size;

    struct stand_row *log; /* [STAND_LOG] rows of the call under way */
    int32_t logged;
    struct stand_spare
        *spare; /* [STAND_LOG] its rows that the child has as padding of no sequence */
    int32_t num_spare;
    int32_t decode_q_len; /* of the MIXED batch at hand */
    bool recording;
    char *heap;                /* what operands point to */
    struct stand_truth *truth; /* truth.c */
    char wrong[512];           /* the first thing that a child has seen; "" = none */
    int32_t placed, right;     /* leaves: `wrong` is that a row reached the first, not the second;
                                  the same number: it is another fault */
};

/* A child has seen something that is not right. The first one stays. */
void stand_object(struct stand_scene *scene, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Do the samples that the root took leave open whether `right` is faster than `other`, in a class
 * where it should be, at least? Then the machine had other work to do, and either choice is right.
 * A leaf whose output is wrong is never one. */
bool stand_is_undecided(const struct stand_scene *scene, const struct stand_leaf *right,
                        const struct stand_leaf *other);

/* ---- truth.c --------------------------------------------------------------------------------- */

/* Write what attention gives into operand OUT; `reads` is the verdict's reads_new_kv_unquantised.
 * What the oracle says of a call that makes no sense to it. */
attn_status stand_give_truth(struct stand_scene *scene, const attn_problem *problem,
                             const attn_batch *batch, int32_t layer_id,
                             const attn_forward_args *args, uint32_t reads);
void stand_free_truth(struct stand_scene *scene);

/* ---- batch.c --------------------------------------------------------------------------------- */

enum { STAND_HEAP = 1 << 20 };

/* Draw layer groups and bounds. */
void stand_draw_question(struct stand_scene *scene);

/* Draw a batch of this mode within scene->given. false: no memory. */
bool stand_draw_batch(struct stand_scene *scene, uint32_t mode, uint32_t forms,
                      struct stand_batch *made);
void stand_free_batch(struct stand_batch *batch);

/* Draw the operands of a layer. */
void stand_draw_args(struct stand_scene *scene, const struct stand_batch *batch, int32_t layer,
                     struct stand_args *args);

/* ---- tree.c ---------------------------------------------------------------------------------- */

/* The types of composites whose options these checks know; false: this subject is none. */
bool stand_find_types(struct stand_scene *scene, const struct check_subject *subject);

/* Draw a tree of this depth at most under the subject; the case has failed if options are refused
 * that should not be. */
bool stand_grow(struct stand_scene *scene, int32_t depth);
void stand_fell(struct stand_scene *scene);

/* All of a group, or with -1 of all groups, within bounds. */
struct stand_share stand_whole(const struct stand_scene *scene, int32_t group,
                               const attn_bounds *bounds);

/* What is to be merged of the verdicts on a layer group; bytes are the least that will do. */
void stand_merge(const struct stand_node *node, const struct stand_share *share,
                 attn_verdict *verdict);

/* "node_1/leaf_2": the names on the way from the root. */
void stand_path(const struct stand_scene *scene, int32_t leaf, const char *between, char text[96]);

/* Is a mode of a rounded cache read in two ways by the root's children? Then it is refused. */
bool stand_reads_apart(const struct stand_scene *scene);

/* Set for every leaf what is routed to it, and for every node whether it splits MIXED. */
void stand_deal(struct stand_scene *scene);

/* Who serves sequences first .. first + count - 1 of a batch in a layer, and called in which mode:
 * leaf[s], mode[s]. `bounds` are those of the node's metadata. */
struct stand_part {
    uint32_t mode;
    int32_t first, count, max_kv_len;
    int32_t num_decode, first_decode; /* MIXED: of its sequences */
    int32_t spare;                    /* rows of no sequence */
    int32_t layer;
};
void stand_assign(const struct stand_node *node, const struct stand_part *part,
                  const struct stand_share *bounds, int32_t leaf[STAND_SEQS],
                  uint32_t mode[STAND_SEQS]);

/* ---- children.c ------------------------------------------------------------------------------ */

/* The services through which a node reaches its children. */
void stand_serve(struct stand_node *node);

/* Draw what a leaf answers. */
void stand_draw_leaf(struct stand_scene *scene, struct stand_leaf *leaf);

/* ---- checks.c -------------------------------------------------------------------------------- */

enum { STAND_BATCHES = 3 /* of a life, where nothing is said */ };

/* What a scene is to be. */
struct stand_wishes {
    bool graph, measured;
    const char *store; /* NULL = none */
    uint64_t other;    /* not 0: another scene of the same case */
};

/* NULL: the case has failed or is skipped. */
struct stand_scene *stand_make_scene(struct check_run *run, const struct stand_wishes *wishes);

/* Reports what a child has objected to. */
void stand_close_scene(struct stand_scene *scene);

/* An instance and a metadata of the scene's composite, so many batches, and the end of all. */
void stand_run_life(struct stand_scene *scene, int batches);

/* ---- measured.c ------------------------------------------------------------------------------ */

int32_t stand_count_measured(const struct check_subject *subject);
int32_t stand_count_measured_size(const struct check_subject *subject);
int32_t stand_count_stored(const struct check_subject *subject);
void stand_run_measured(struct check_run *run);
void stand_run_measured_size(struct check_run *run);
void stand_run_stored(struct check_run *run);

/* The table, at the end of checks.c. */
extern const struct check stand_checks[];

#endif /* HYBRID_STAND_INS_H */
