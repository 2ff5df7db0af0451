/* SPDX-License-Identifier: Apache-2.0
 *
 * altered_child.h: services of a composite that change the answers of one of its children, to check
 * whether the composite passes them on. */
#ifndef HOST_CHECK_COMPOSITES_ALTERED_CHILD_H
#define HOST_CHECK_COMPOSITES_ALTERED_CHILD_H

#include "attn_plugin.h"
#include "host/check/cases/service_counter.h"

/* The change. */
enum alteration {
    ALTER_NOT,
    ALTER_REFUSE,      /* its query refuses */
    ALTER_GRAPH_LEVEL, /* its query reports a graph level of `value` at most */
    ALTER_TRAITS,      /* its query lacks the traits `value` */
    ALTER_INDEX_FORMS, /* it asks for the forms `value` */
    ALTER_SIZE,        /* it asks for `value` bytes of HOST METADATA at least */
    ALTER_CREATE,      /* these calls fail, from here on */
    ALTER_METADATA_SIZE,
    ALTER_METADATA_CREATE,
    ALTER_PLAN,
    ALTER_FORWARD
};

/* Message of a failing call, after the child's name if the host adds it. */
#define ALTERED_WORDS "planted by the check"

/* Initialised in place and never copied; outlives the instances that were given its table. */
struct altered_child {
    struct service_counter
        counter;       /* whose table the composite gets, and which counts its allocations */
    const char *child; /* the name of the one that is altered */
    enum alteration what;
    uint64_t value;
    int hits; /* times that the change was made */
    int live; /* instances of all children that were not destroyed */
    int live_metadata;
    int64_t rows; /* of sequences, in all forwards of all children */
};

void altered_child_init(struct altered_child *altered, const attn_services *inner,
                        const char *child, enum alteration what, uint64_t value);

#endif /* HOST_CHECK_COMPOSITES_ALTERED_CHILD_H */
