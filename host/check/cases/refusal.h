/* SPDX-License-Identifier: Apache-2.0
 *
 * refusal.h: checks of every call that must fail: a status of ATTN_STATUS_MAP, the expected one,
 * the same code in the error, and a message.
 */
#ifndef HOST_CHECK_CASES_REFUSAL_H
#define HOST_CHECK_CASES_REFUSAL_H

#include "host/check/check.h"

/* Is it this status? For a composite, CHILD_FAILED is accepted, too, as a child may have found the
 * fault. */
bool refusal_gives(const struct check_subject *subject, attn_status status, attn_status wanted);

/* Did a call fail with this status, and does the run's error (check_error()) say why? Else the case fails; `what` is the call. */
bool refusal_is(struct check_run *run, attn_status status, attn_status wanted, const char *what);

/* The same for any failure. */
bool refusal_is_told(struct check_run *run, attn_status status, const char *what);

/* Does the message name one of these words (ended by NULL)? */
bool refusal_names(const struct check_run *run, const char *const *words);

#endif /* HOST_CHECK_CASES_REFUSAL_H */
