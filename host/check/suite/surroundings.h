/* SPDX-License-Identifier: Apache-2.0
 *
 * surroundings.h: changes of process state that cases left behind, collected by backend.
 */
#ifndef HOST_CHECK_SUITE_SURROUNDINGS_H
#define HOST_CHECK_SUITE_SURROUNDINGS_H

#include "host/check/suite/suite.h"

/* Note what was printed and changed during a case, or while the plugin was opened for it. */
void surroundings_case(struct suite *suite, const char *backend, const char *id,
                       const struct sandbox_reply *reply);

/* Note how the child ended in which the backend's cases ran. */
void surroundings_end(struct suite *suite, const char *backend, const struct sandbox_reply *reply);

/* What was noted, to be merged into another suite's in another process. */
cJSON *surroundings_object(const struct suite *suite);
void surroundings_merge(struct suite *suite, const cJSON *object);

/* Add a result for each matter that the filters let through, of each backend. */
void surroundings_report(struct suite *suite);

void surroundings_finish(struct suite *suite);

#endif /* HOST_CHECK_SUITE_SURROUNDINGS_H */
