/* SPDX-License-Identifier: Apache-2.0
 *
 * meddler.h: a tally before the services of a composite that changes what one of its children
 * answers, so that it shows whether the composite listens to it.
 */
#ifndef HOST_CHECK_COMPOSITES_MEDDLER_H
#define HOST_CHECK_COMPOSITES_MEDDLER_H

#include <stdbool.h>

#include "attn_plugin.h"
#include "host/check/cases/tally.h"

/* What is done to the child. */
enum meddle {
    MEDDLE_NOT,
    MEDDLE_REFUSE,      /* its query says no */
    MEDDLE_GRAPH_LEVEL, /* its query says `value` at most */
    MEDDLE_NOTES,       /* its query lacks the notes `value` */
    MEDDLE_INDEX_FORMS, /* it asks for the forms `value` */
    MEDDLE_SIZE,        /* it asks for `value` bytes of HOST METADATA at least */
    MEDDLE_CREATE,      /* these calls fail, from here on */
    MEDDLE_METADATA_SIZE,
    MEDDLE_METADATA_CREATE,
    MEDDLE_PLAN,
    MEDDLE_FORWARD
};

/* What a call that fails says, after the child's name where the host puts that. */
#define MEDDLER_WORDS "planted by the check"

/* Initialised in place and never copied; outlives the instances that were given its table. */
struct meddler {
    struct tally tally; /* whose table a composite is given, and which counts what it takes */
    const char *child;  /* the name of the one that is meddled with */
    enum meddle what;
    uint64_t value;
    int hits; /* times that it was done */
    int live; /* instances of all children that were not destroyed */
    int live_metadata;
    int64_t rows; /* of sequences, in all forwards of all children */
};

void meddler_init(struct meddler *meddler, const attn_services *inner, const char *child,
                  enum meddle what, uint64_t value);

#endif /* HOST_CHECK_COMPOSITES_MEDDLER_H */
