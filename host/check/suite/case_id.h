/* SPDX-License-Identifier: Apache-2.0
 *
 * case_id.h: ids of cases, patterns that match them, and their seeds.
 *
 * An id is BACKEND/RULE.name or BACKEND/RULE.name/INDEX. A pattern is a shell's (* also matches a
 * slash) and may leave out the backend, the index, or both: "KV-*", "cpu_native/KV-06.pages",
 * "KV-06.pages/17".
 */
#ifndef HOST_CHECK_SUITE_CASE_ID_H
#define HOST_CHECK_SUITE_CASE_ID_H

#include "host/check/check.h"

/* Room for any id. */
enum { CASE_ID_SIZE = 192 };

/* Write an id; index < 0 = the check has one case. */
void case_id_write(char id[CASE_ID_SIZE], const char *backend, const struct check *check,
                   int32_t index);

/* Take an id apart: `backend` gets the part before the slash, the check is looked up in the groups.
 * false if it is malformed or there is no such check. */
bool case_id_parse(const char *id, char backend[CASE_ID_SIZE], const struct check **check,
                   int32_t *index);

/* Does the pattern match this case? */
bool case_id_matches(const char *pattern, const char *id);

/* Can it match a case of this check, whose id without index is given? False is certain. */
bool case_id_may_match(const char *pattern, const char *check_id);

/* The seed of a case: a function of these alone, equal on all machines. */
uint64_t case_seed(uint64_t seed, const struct check *check, int32_t index);

/* "PASS", "DEVICE_LOST" ... and back; CHECK_CODES for a name that is none. */
const char *check_code_name(enum check_code code);
enum check_code check_code_of(const char *name);

/* FAIL, CRASH, TIMEOUT, DEVICE_LOST. */
bool check_code_fails(enum check_code code);

#endif /* HOST_CHECK_SUITE_CASE_ID_H */
