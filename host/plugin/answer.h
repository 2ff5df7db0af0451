/* SPDX-License-Identifier: Apache-2.0
 *
 * answer.h: checks of plugins' answers, which are never trusted.
 *
 * Plugins are called with a host_error of our own. Their messages are checked and passed on with
 * the plugin's name, so the user gets a message even if a plugin returns an invalid status or no
 * message. */
#ifndef HOST_PLUGIN_ANSWER_H
#define HOST_PLUGIN_ANSWER_H

#include "attn_problem.h"
#include "host/base/error.h"

/* The status itself, or ATTN_INTERNAL for a number that is none. */
attn_status answer_status(attn_status status);

/* Pass on the failure `status` of a plugin, with its message `said`: "PREFIX: message" (or the name
 * of the status without a message), with its field and needed bytes. Returns the status as
 * answer_status() gives it. */
attn_status answer_fail(attn_status status, const host_error *said, attn_error *error,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Is a verdict consistent? Terminates the texts of its reasons, so that they can be printed.
 * INTERNAL, with the backend's `name`, for a refusal without a reason, an acceptance with one, and
 * invalid values. */
attn_status answer_check_verdict(const char *name, attn_verdict *verdict, attn_error *error);

#endif /* HOST_PLUGIN_ANSWER_H */
