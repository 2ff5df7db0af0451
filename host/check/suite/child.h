/* SPDX-License-Identifier: Apache-2.0
 *
 * child.h: the process that opens the plugin. It answers questions, one at a time; each question
 * and each answer is a JSON object.
 *
 *   ask       with                            answer, all with "outcome" (outcome.h)
 *   open                                      the plugin: file, name, version ..., backends
 *   subject   backend, device                 the device that the backend is checked on
 *   count     id of a check                   count of its cases (-1: one without an index); skip
 *   run       id of a case, seed, without     code, text, ns; is the device lost
 *   matrix    backend                         its capabilities, by property
 *   quit                                      the plugin was closed; processes it left
 *
 * Each answer also lists changes of the process state (process_state.h). All but open and quit name
 * the device, as the answer to `subject` reported it. */
#ifndef HOST_CHECK_SUITE_CHILD_H
#define HOST_CHECK_SUITE_CHILD_H

#include <cjson/cJSON.h>

#include "host/check/suite/outcome.h"
#include "host/check/suite/params.h"
#include "host/check/trail.h"

struct check_child;

/* File descriptors of a child that was started by sandbox.c. */
enum { CHILD_FD_ANSWERS = 3, CHILD_FD_QUESTIONS = 4, CHILD_FD_TRAIL = 5 };

/* `params` (borrowed) are of the command line. `trail` (borrowed) takes notes; with NULL there is
 * no reader for them, and plugins log to stderr. NULL when memory ran out. */
struct check_child *check_child_create(const struct check_params *params,
                                       struct check_trail *trail);
void check_child_destroy(struct check_child *child);

/* NULL when memory ran out. */
cJSON *check_child_answer(struct check_child *child, const cJSON *question);

#endif /* HOST_CHECK_SUITE_CHILD_H */
