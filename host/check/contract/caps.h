/* SPDX-License-Identifier: Apache-2.0
 *
 * caps.h: the checks of query for any kind of layer: caps.c and caps_reasons.c have them, and
 * caps_kinds.c runs them on each. */
#ifndef HOST_CHECK_CONTRACT_CAPS_H
#define HOST_CHECK_CONTRACT_CAPS_H

#include "host/check/cases/caps_visit.h"

/* caps.c: CAPS-01, CAPS-03, CAPS-12; caps_reasons.c: CAPS-04, CAPS-06, CAPS-07. */
caps_visitor caps_look_same, caps_look_create, caps_look_bounds, caps_look_promises;
caps_visitor caps_look_reasons, caps_look_listed, caps_look_language, caps_look_capacity;

/* A value that query must refuse, and the field that it must name (0 = any). */
enum { CAPS_CHANGES = 3 };
struct caps_unknown {
    const char *what;
    uint32_t field;
    struct caps_change {
        size_t member; /* of a caps_problem, of 32 bits; 0 = no change */
        uint32_t value;
        bool is_added; /* to the bits that are there */
    } changes[CAPS_CHANGES];
    const char
        *layout; /* of the state if that is the field, else of the KV cache; NULL = as it is */
    bool of_any; /* it is in problems of all kinds */
};
#define CAPS_CHANGE(member, number, is_added)                                                      \
    {                                                                                              \
        offsetof(struct caps_problem, member), number, is_added                                    \
    }
#define CAPS_VALUE(what, field, of_any, member, number)                                            \
    {                                                                                              \
        what, field, {CAPS_CHANGE(member, number, false)}, NULL, of_any                            \
    }
#define CAPS_BITS(what, field, of_any, member, bits)                                               \
    {                                                                                              \
        what, field, {CAPS_CHANGE(member, bits, true)}, NULL, of_any                               \
    }

/* Number `n` of those that are in problems of all kinds; NULL: there are fewer. */
const struct caps_unknown *caps_unknown_of_any(int32_t n);

/* Query an accepted problem with that value in it. */
void caps_must_refuse(struct check_run *run, struct caps_problem *p,
                      const struct caps_unknown *unknown);

#endif /* HOST_CHECK_CONTRACT_CAPS_H */
