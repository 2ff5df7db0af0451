/* SPDX-License-Identifier: Apache-2.0
 *
 * caps_problem.h: problems for the checks of query: random ones, and the same with single fields
 * set to a value that a reason accepts.
 */
#ifndef HOST_CHECK_CASES_CAPS_PROBLEM_H
#define HOST_CHECK_CASES_CAPS_PROBLEM_H

#include <stdbool.h>

#include "attn_problem.h"
#include "host/check/cases/grid.h"

/* A problem with all that it points to but strings. Initialised in place; caps_problem_copy() makes
 * another. */
struct caps_problem {
    attn_device device;
    attn_layer layers[2];
    attn_layer_group group;
    attn_mla_dims mla;
    attn_linear_dims linear;
    attn_sparse_dims sparse;
    attn_bounds bounds;
    const char *features[2];
    attn_problem problem;
    bool elsewhere; /* its device is not the one that is here */
};

/* The problem of a spec on a device. */
void caps_problem_init(struct caps_problem *p, const struct case_spec *spec,
                       const attn_device *device);
void caps_problem_copy(struct caps_problem *to, const struct caps_problem *from);

/* A random problem: a point of the grid, accepted or not, with up to five fields set to anything,
 * unlisted values included. A function of the seed. */
void caps_problem_random(struct caps_problem *p, const struct grid *grid, uint64_t seed);

/* The same of latent or linear layers (kind: ATTN_KIND_MLA, ATTN_KIND_LINEAR), whose own numbers
 * are among the fields (caps_kinds.c); and a plain one, with listed values only. */
void caps_problem_random_kind(struct caps_problem *p, const struct grid *grid, uint32_t kind,
                              uint64_t seed);
void caps_problem_plain_kind(struct caps_problem *p, const struct grid *grid, uint32_t kind,
                             uint64_t seed);

/* The values of a field; unlisted ones are mixed with listed ones. */
struct caps_values {
    uint32_t field;
    int32_t count;
    double values[12];
};
void caps_set_value(struct caps_problem *p, const struct caps_values *of, uint64_t seed);

/* Types of elements, including those that no operand has. */
enum { CAPS_DTYPES = 8 };
extern const attn_dtype caps_dtypes[CAPS_DTYPES];

/* Set one field that every kind of layer has to anything. */
void caps_set_anything(struct caps_problem *p, uint64_t seed);

/* The same for several fields that depend on each other: types, heads, dimensions, windows ... */
void caps_set_related(struct caps_problem *p, uint64_t seed);

/* One line that describes the problem, for messages. */
void caps_problem_describe(const struct caps_problem *p, char *text, size_t size);

/* A small batch within the bounds, for a problem of the device that is here: the spec of a case.
 * False: no case can be made (no mode, another kind of layer, zero bounds). */
bool caps_problem_spec(const struct caps_problem *p, uint64_t seed, struct case_spec *spec);

/* ---- The language of `accepted` -------------------------------------------------------------- */

/* One item of a list: a number, a range, or a word. */
struct caps_item {
    bool is_number; /* from, to, step hold; a number is a range of one */
    double from, to, step;
    char word[160];
};

/* Read the next item of *text, which moves past it. 1 = there is one, 0 = the list has ended, -1
 * = this is none. "nothing" is an empty list. */
int caps_next_item(const char **text, struct caps_item *item);

/* Can this field be set? A reason with another field cannot be tested. */
bool caps_can_set(uint32_t field);

/* Set a field to a number or a word. False: the field has no such word. */
bool caps_set_number(struct caps_problem *p, uint32_t field, double value);
bool caps_set_word(struct caps_problem *p, uint32_t field, const char *word);

/* Is it a field of the bounds, which metadata_size refuses, too? */
bool caps_is_bound(uint32_t field);

/* Is the word a data type's name, as CAPS-06 wants it? */
bool caps_is_dtype_field(uint32_t field);

#endif /* HOST_CHECK_CASES_CAPS_PROBLEM_H */
