/* SPDX-License-Identifier: Apache-2.0
 *
 * scene.h: a composite on a rig, one of whose children is altered, for the checks of the group
 * COMP.
 */
#ifndef HOST_CHECK_COMPOSITES_SCENE_H
#define HOST_CHECK_COMPOSITES_SCENE_H

#include "host/check/check.h"
#include "host/check/composites/altered_child.h"
#include "host/check/cases/rig.h"

enum { SCENE_MAX_PATH = 4 };

/* Initialised in place and never copied. */
struct scene {
    struct rig rig;
    struct altered_child altered;     /* whose counter is that of the composite's own memory */
    const char *child;                /* the one that is altered */
    const char *path[SCENE_MAX_PATH]; /* the names in its failures, the child's last */
    int num_path;
    int reached; /* answers altered so far */
};

/* Let the child fail in each call of its life: the message has the names on the way to it, then its
 * message; nothing is left of its siblings or of the composite's memory. */
void scene_check_failures(struct scene *scene);

/* A case for each child. */
int32_t scene_count_children(const struct check_subject *subject);

#endif /* HOST_CHECK_COMPOSITES_SCENE_H */
