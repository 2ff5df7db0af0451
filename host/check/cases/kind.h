/* SPDX-License-Identifier: Apache-2.0
 *
 * kind.h: the kinds of layers as one table, so that a check about several of them is one function,
 * and a row for each.
 *
 *   cases      the cases of a row: a product of axes of the grid, of latent layers, or of families
 *              and variants
 *   relation   the calls of each case, and the expected result
 *   kind       how a case of a kind is found, made, called and judged, for every check */
#ifndef HOST_CHECK_CASES_KIND_H
#define HOST_CHECK_CASES_KIND_H

#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/linear_find.h"
#include "host/check/cases/numerics.h"

/* ---- Cases of a row -------------------------------------------------------------------------- */

struct check_kind;
struct kind_case;

/* A spec_change that is the same in all variants. */
#define SPEC_CHANGE(name, statement)                                                               \
    static void name(struct case_spec *spec, int32_t variant)                                      \
    {                                                                                              \
        (void)variant;                                                                             \
        statement;                                                                                 \
    }

/* Members of other kinds are not read. */
struct kind_cases {
    const struct check_kind *kind;
    struct grid_choice choices[GRID_MAX_CHOICES + 1]; /* of all but linear layers */
    /* Changes the spec of a point (skipped if query refuses the result) or of a family. NULL = no
     * change. */
    spec_change vary;
    bool small;       /* before: as few heads and dimensions as query accepts */
    int32_t variants; /* of each point, or of each family; 0 = 1 */
    int32_t drawn;    /* so many cases, of points or families in turn; 0 = each variant once */
    /* Linear layers: so many times as many in an exhaustive run, and one case without families; 0 = 1. */
    int32_t exhaustive;
};

/* clang-format off */
#define CASES_OF(...) (&(const struct kind_cases){__VA_ARGS__})
#define SOFTMAX(...) CASES_OF(.kind = &softmax_layers, .choices = {__VA_ARGS__})
#define SOFTMAX_VARIED(function, number, ...)                                                      \
    CASES_OF(.kind = &softmax_layers, .vary = function, .variants = number, .choices = {__VA_ARGS__})
#define SOFTMAX_SMALL(function, number, ...)                                                       \
    CASES_OF(.kind = &softmax_layers, .vary = function, .variants = number, .small = true, .choices = {__VA_ARGS__})
#define LATENT(...) CASES_OF(.kind = &latent_layers, .choices = {OF_LATENTS(__VA_ARGS__)})
#define LATENT_VARIED(function, number, ...)                                                       \
    CASES_OF(.kind = &latent_layers, .vary = function, .variants = number, .choices = {OF_LATENTS(__VA_ARGS__)})
#define LATENT_SMALL(function, number, ...)                                                        \
    CASES_OF(.kind = &latent_layers, .vary = function, .variants = number, .small = true,             \
          .choices = {OF_LATENTS(__VA_ARGS__)})
#define SMALL_LATENTS BIT(MLA_SMALL)
#define SMALL_VARIED(function, number, ...)                                                        \
    LATENT_SMALL(function, number, BOTH_FORMS, MLA_LATENT, SMALL_LATENTS, __VA_ARGS__)
/* Sparse layers, whose rows choose keys in one of the ways of AXIS_CHOICE; and over latents: keys of lists, and of an
 * indexer. */
#define SPARSE(choice, ...) SOFTMAX(OF(CHOICE, choice), __VA_ARGS__)
#define SPARSE_LATENT(...)                                                                         \
    LATENT(MLA_ABSORBED, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK), OF(CHOICE, GIVEN, E4M3), __VA_ARGS__)
#define LINEAR(function, number) CASES_OF(.kind = &linear_layers, .vary = function, .variants = number)
#define LINEAR_MORE(function, number, times)                                                       \
    CASES_OF(.kind = &linear_layers, .vary = function, .variants = number, .exhaustive = times)
/* clang-format on */

/* The relation between the calls of a case, and the expected result. The other members are for
 * judges that several rows share. */
struct relation {
    /* Judges the case whose spec was found. It knows the expected result, except for the following
     * members. */
    void (*judge)(struct kind_case *k);
    /* Other batches of the same tokens, each judged by the oracle: the n-th of them, of a base with these lengths
     * (case_read_lengths()). False: there is none. */
    bool (*vary)(struct case_spec *other, const struct kind_case *base, int32_t n);
    const char *lengths;
    uint32_t traits; /* ATTN_TRAIT_*: where they are declared, the same bits are expected */
    int32_t first_fault, last_fault; /* a status is expected, and the name of the operand */
    bool has_tiles;                  /* sequences share several tiles of keys */
};
extern const struct relation by_itself; /* the case by itself, against the oracle */

/* `run` of a row with cases. */
void kind_run_row(struct check_run *run);

/* A row with such cases, of this relation; CHECK_NEEDS_* where they are not these. */
#define ROW_NEEDS(rule, name, relation, needs, sentence, cases)                                    \
    {                                                                                              \
        rule, #name, sentence, needs, NULL, kind_run_row, cases, &relation, NULL                   \
    }
#define ROW_AS(rule, name, relation, sentence, cases)                                              \
    ROW_NEEDS(rule, name, relation, CHECK_NEEDS_COMPUTE, sentence, cases)

/* A row whose cases are judged alone, each in a session of its own; and one whose cases a function judges. */
#define ROW(rule, name, sentence, cases) ROW_AS(rule, name, by_itself, sentence, cases)
#define OWN_ROW(rule, name, judge_it, sentence, cases)                                             \
    ROW_AS(rule, name, ((const struct relation){.judge = judge_it}), sentence, cases)

/* The same for several kinds of layers: NAME of softmax layers, mla_NAME of latent ones; and linear_NAME. */
#define ROWS_NEED(rule, name, relation, needs, sentence, softmax, latent)                          \
    ROW_NEEDS(rule, name, relation, needs, sentence, softmax),                                     \
        ROW_NEEDS(rule, mla_##name, relation, needs, sentence " (latent layers)", latent)
#define ROWS_AS(rule, name, relation, sentence, softmax, latent)                                   \
    ROWS_NEED(rule, name, relation, CHECK_NEEDS_COMPUTE, sentence, softmax, latent)
#define ROWS(rule, name, sentence, softmax, latent)                                                \
    ROWS_AS(rule, name, by_itself, sentence, softmax, latent)
#define ALL_ROWS(rule, name, relation, needs, sentence, ...)                                       \
    ALL_ROWS_OF(rule, name, relation, needs, sentence, __VA_ARGS__)
#define ALL_ROWS_OF(rule, name, relation, needs, sentence, softmax, latent, linear)                \
    ROWS_NEED(rule, name, relation, needs, sentence, softmax, latent),                             \
        ROW_NEEDS(rule, linear_##name, relation, needs, sentence " (linear layers)", linear)

/* Sequences of these prefixes and new tokens: "17+3 0+20" are two. A mode or type may add rules
 * about lengths. */
void case_read_lengths(struct case_spec *spec, const char *lengths);
void case_set_lengths(struct case_spec *spec, const char *lengths);

/* How many cases a check has for a subject; -1 = one, which has no number. */
int32_t kind_count(const struct check *check, const struct check_subject *subject);

/* ---- A case ---------------------------------------------------------------------------------- */

/* Its spec, the case, and a session for it. */
struct kind_case {
    struct check_run *run;
    const struct check_kind *kind;
    struct numerics_point at; /* of linear layers without a grid */
    struct forward_case *c;
    struct case_session *session; /* in which it is called and judged */
    int32_t variant;              /* of its point or family */
};

/* The role of an operand in a case: a set of bits. */
enum {
    KIND_NEEDED = 1,  /* a forward without it fails */
    KIND_WRITTEN = 2, /* the forward writes to it */
    KIND_SCALED = 4,  /* it has a scale */
    KIND_SAVED = 8,   /* the forward saves it, and reads it nowhere else: new labels */
    KIND_KEYED = 16   /* it has a column for each key of the longest sequence: logits */
};

/* Another layer group for an instance that has the case's own: one that chooses fewer keys, if any. */
struct kind_beside {
    struct spec_problem posed;
    attn_sparse_dims sparse;
    attn_problem problem; /* points into the struct */
};

struct check_kind {
    int32_t (*count)(const struct check_subject *subject, const struct kind_cases *cases);
    /* The spec of case run->index. False: skipped, or failed. */
    bool (*find)(struct kind_case *k, const struct kind_cases *cases);
    /* Does query accept its spec as it is now? Sets its padding's length from the verdict. */
    bool (*accepts)(struct kind_case *k);
    /* False: skipped. */
    bool (*beside)(struct kind_case *k, struct kind_beside *other);
};
extern const struct check_kind softmax_layers, latent_layers, linear_layers;

/* Destroy its case and its session. */
void kind_close(struct kind_case *k);

/* Make the case of its spec. False: reported. Make it, judge it in a session of its own, and destroy it. */
bool kind_make(struct kind_case *k);
void kind_run(struct kind_case *k);

/* Does the backend declare these traits for the problem, by itself or if required_traits asks for
 * them? Traits that must be required stay in the problem. False: skipped. */
bool kind_declares(struct kind_case *k, uint32_t traits);

/* A session for the case, of this subject. NULL: reported. */
struct case_session *kind_session(const struct kind_case *k, const struct check_subject *subject,
                                  const struct case_setup *setup);

/* Plan and forward it, and compare with the oracle. False: reported. */
bool kind_judge(struct kind_case *k);

/* Report a failure of it; or check the status of a call, whose message is in the run's error. */
void kind_report(const struct kind_case *k, attn_status status, const char *text);
bool kind_good(const struct kind_case *k, attn_status status);

/* A copy of the results of the last call. NULL: reported. */
void *kind_keep(const struct kind_case *k);

/* Do the outputs, caches and states that were fetched last equal those in `first`, bit for bit? And
 * those of another plan and forward? False: reported. */
bool kind_left(struct kind_case *k, const void *first, const char *what);
bool kind_same(struct kind_case *k, const void *first, const char *what);

uint32_t kind_operand(const struct kind_case *k, uint32_t role); /* KIND_* */

/* Of each point or family. */
int32_t kind_variants(const struct kind_cases *cases);

/* ---- Linear layers (kind_linear.c) ------------------------------------------------------------ */

/* Prepare its case, a session, and the initial contents. False: reported. */
bool linear_begin(struct kind_case *k);
bool linear_reset(struct kind_case *k);

/* Run one of the parts that a case is cut into, and judge them together. An fp32 state is judged at
 * the end, by one recurrence over all parts. A state that is rounded when stored is judged part by
 * part, each from the state that the part found. */
bool linear_part(struct kind_case *k, const struct linear_part *part);
bool linear_judge_parts(struct kind_case *k);

#endif /* HOST_CHECK_CASES_KIND_H */
