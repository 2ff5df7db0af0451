/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.h: a case written down so that it can be run again anywhere. A file of lines:
 *
 *   attnhost-replay = 1
 *   plugin  = /absolute/path.so          unless one is named on the command line
 *   with    = /absolute/path.so          any number
 *   option  = KEY=VALUE                  any number
 *   device  = cuda:0                     unless --device is given
 *   seed    = 1                          of the suite
 *   case    = BACKEND/RULE.name[/INDEX]
 *   case-seed = 1234                     of the case
 *   without = 5                          complications to leave out; 0 = none
 */
#ifndef HOST_CHECK_SUITE_REPLAY_H
#define HOST_CHECK_SUITE_REPLAY_H

#include <stdio.h>

#include "host/check/suite/case_id.h"
#include "host/check/suite/params.h"

struct replay {
    char *text; /* of the file, in which the other texts lie */
    char backend[CASE_ID_SIZE];
    const struct check *check;
    int32_t index;
    uint64_t seed; /* of the case */
    uint32_t without;
};

/* Read params->replay; what it says of the plugin and its options goes into the params, which must
 * not outlive the replay. CONFIG_ERROR with "file:line". On failure there is nothing to finish. */
attn_status replay_load(struct check_params *params, struct replay *replay, attn_error *error);
void replay_finish(struct replay *replay);

/* Write a case of the run that the params describe. Paths become absolute. */
void replay_write(const struct check_params *params, const char *id, uint64_t seed,
                  uint32_t without, const char *device, FILE *file);

#endif /* HOST_CHECK_SUITE_REPLAY_H */
