/* SPDX-License-Identifier: Apache-2.0
 *
 * autotune.h: shared by the files of autotune.
 *
 *   autotune.c options, rules, query, create, prepare; the type
 *   measure.c  correctness and speed of the candidates, class by class
 *   judge.c    the rows that the host's judge checks
 *   samples.c  statistics of samples
 *   case.c     a batch of random numbers for a class, run through one candidate
 *   tell.c     the results, as text for people
 *   store.c    the file of decisions
 *
 * A class is a layer group, a phase (prefill, decode), a range of sequences and a range of keys.
 * Its candidate is chosen in prepare(), on made-up batches, so forwards measure nothing and always
 * use the same candidate. Before prepare(), and for classes that are not measured, the first
 * candidate that was not found wrong serves. */
#ifndef HYBRID_AUTOTUNE_H
#define HYBRID_AUTOTUNE_H

#include "attn_plugin.h"
#include "plugins/hybrid/core/pick.h"

enum { TUNE_DECODE = 0, TUNE_PREFILL = 1, TUNE_PHASES = 2 };
enum {
    TUNE_BATCHES = 5,
    TUNE_LENGTHS = 4,
    TUNE_CLASSES = TUNE_PHASES * TUNE_BATCHES * TUNE_LENGTHS
};
enum { TUNE_MAX_ROUNDS = 31 };

/* Last value of each range; the last range is open. */
extern const int32_t tune_batch_ends[TUNE_BATCHES];
extern const int32_t tune_length_ends[TUNE_LENGTHS];

enum { TUNE_ALIGNMENT = 256 /* of the made-up cache, in bytes */ };

/* Source of a decision. */
enum { TUNE_UNDECIDED = 0, TUNE_STORED = 1, TUNE_MEASURED = 2 };

/* A decision. */
typedef struct tune_class {
    uint8_t choice;              /* candidate */
    uint8_t from;                /* TUNE_* */
    float us[PICK_MAX_CHILDREN]; /* of a forward of each candidate; 0 = not measured here */
} tune_class;

/* A layer group, as far as it is needed after create. */
typedef struct tune_group {
    uint32_t part;   /* as pick.h names it */
    char text[192];  /* its description: the store's key */
    char layers[32]; /* "0-31", for people */
    attn_problem
        problem; /* without pointers but `device`, `group` and `bounds`, which are these: */
    attn_layer_group group;
    attn_bounds bounds;
    int is_hnd;
    int splits;                       /* MIXED: its rows are those of EXTEND and of DECODE */
    int32_t layer_id;                 /* of its first layer */
    tune_class classes[TUNE_CLASSES]; /* as tune_class_index() counts them */
} tune_group;

typedef struct tune_options {
    char store[1024]; /* "" = decisions are not kept */
    double margin, seconds;
    int64_t rounds;
    uint64_t memory; /* bytes of made-up cache */
} tune_options;

/* Members of an instance of autotune. */
typedef struct tuning {
    pick_rules rules;
    tune_options options;
    attn_device device;
    char device_text[64];
    char versions[PICK_MAX_CHILDREN][96]; /* of the candidates: a stored decision was for these */
    uint32_t dropped;                     /* candidates that were found wrong, as a mask, */
    char why[PICK_MAX_CHILDREN][512];     /* and why */
    uint32_t num_groups;
    char *report; /* decisions, for people; memory of the services, NULL before prepare() */
    tune_group groups[];
} tuning;

/* The index of a class, and back. */
static inline uint32_t tune_class_index(uint32_t phase, uint32_t batch, uint32_t length)
{
    return (phase * TUNE_BATCHES + batch) * TUNE_LENGTHS + length;
}

static inline void tune_class_of(uint32_t index, uint32_t *phase, uint32_t *batch, uint32_t *length)
{
    *length = index % TUNE_LENGTHS;
    *batch = index / TUNE_LENGTHS % TUNE_BATCHES;
    *phase = index / TUNE_LENGTHS / TUNE_BATCHES;
}

/* ---- Classes --------------------------------------------------------------------------------- */

/* Is there a batch of this class within the group's bounds? Then the largest. */
int tune_class_exists(const tune_group *group, uint32_t index, int32_t *num_seqs, int32_t *kv_len);

/* "decode, 2-4 sequences, 513-4096 keys" */
void tune_class_text(uint32_t index, char *text, size_t size);

/* Why nothing can be measured for this group, or NULL. */
const char *tune_why_not(const tune_group *group);

/* The candidate for undecided classes: the first that was not found wrong; 0 if all were. */
uint32_t tune_first_left(const tuning *own);

/* ---- A case ---------------------------------------------------------------------------------- */

typedef struct tune_case tune_case;

/* A batch of random numbers for a class. */
attn_status tune_case_create(attn_instance *instance, const tune_group *group, uint32_t phase,
                             int32_t num_seqs, int32_t kv_len, uint64_t memory, tune_case **made,
                             attn_error *error);
void tune_case_destroy(tune_case *tune);

/* Plan it for a candidate. One is planned at a time for each candidate; the next plan or the end of
 * the case frees its memory. */
attn_status tune_case_plan(tune_case *tune, uint32_t candidate, attn_error *error);

/* Plan the batch again, as each step does. */
attn_status tune_case_replan(tune_case *tune, uint32_t candidate, attn_error *error);

/* One forward of the candidate, which on a GPU is under way then; and the end of all. */
attn_status tune_case_run(tune_case *tune, uint32_t candidate, attn_error *error);
attn_status tune_case_wait(tune_case *tune, attn_error *error);

/* Fill the output with what is not a number, so that it is seen where nothing is written; bring it
 * to the host when it has been computed; keep it for tune_case_find_farthest(). */
void tune_case_poison(tune_case *tune);
attn_status tune_case_fetch(tune_case *tune, attn_error *error);
void tune_case_keep_output(tune_case *tune);

/* ---- Who is right ---------------------------------------------------------------------------- */

/* One head of one row of the output, and by how many bars it is off: above 1 is wrong. */
typedef struct tune_row {
    int64_t row;
    int32_t head;
    double off;
} tune_row;

enum { TUNE_MAX_SAMPLED = 64, TUNE_FARTHEST = 4 };

/* Rows from the first to the last, with all heads by turns; fewer where keys are many. Returns how
 * many. */
uint32_t tune_sample_rows(const tune_case *tune, tune_row rows[TUNE_MAX_SAMPLED]);

/* The rows in which the output is farthest from the one that was kept. Returns how many. */
uint32_t tune_find_farthest(const tune_case *tune, tune_row rows[TUNE_FARTHEST]);

/* Ask the host's judge about these rows of the candidate's output, which was fetched, or of the one
 * that was kept, which is its own then. *worst = one of them. */
attn_status tune_judge(tune_case *tune, uint32_t candidate, int kept, tune_row *rows,
                       uint32_t count, const tune_row **worst, attn_error *error);

/* The host's judge, or NULL: then nothing is measured. */
const attn_judge *tune_find_judge(const attn_instance *instance);

/* A case as a judge receives it: all of it in host memory. */
typedef struct tune_view {
    attn_problem problem; /* of this batch alone */
    attn_bounds bounds;
    attn_layer_group group;
    attn_layer layer;
    attn_batch batch;
    attn_forward_args args;
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    const void *out, *kept; /* outputs, of the shape of operand OUT */
    const attn_instance *instance;
} tune_view;

/* It lives as long as the case. */
const tune_view *tune_case_view(const tune_case *tune);

/* The number at an index of an array of that type, which is not 8-byte wide. */
double tune_number(const void *from, uint64_t index, attn_dtype dtype);

/* ---- Measuring ------------------------------------------------------------------------------- */

/* Decide all classes that no stored decision decides, within the options' time. */
attn_status tune_measure(attn_instance *instance, attn_progress progress, void *progress_ctx,
                         attn_error *error);

double tune_median(const int64_t *ns, int count);

/* Is a challenger faster than the holder of a class, by the margin and in most rounds? */
int tune_is_faster(const int64_t *challenger, const int64_t *holder, int count, double margin);

/* ---- The store ------------------------------------------------------------------------------- */

/* Take decisions from the file, if there is one. CONFIG_ERROR if it is not a file of autotune;
 * entries that do not apply are skipped, with a message. */
attn_status tune_store_read(attn_instance *instance, attn_error *error);

/* Write the decisions; entries of other devices and layers stay. A failure only logs a message. */
void tune_store_write(attn_instance *instance);

/* ---- For people ------------------------------------------------------------------------------ */

/* Write all decisions to `report`: a line for each class, one for each candidate that was dropped.
 * */
attn_status tune_tell(attn_instance *instance, attn_error *error);

/* "steady 12.3 us, alone 4.5 us", of those that were measured; "" = none. Returns its length. */
size_t tune_times_text(const attn_instance *instance, const tune_class *at, char *text,
                       size_t size);

/* "message" to the user, printf's. */
void tune_log(const attn_instance *instance, uint32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif /* HYBRID_AUTOTUNE_H */
