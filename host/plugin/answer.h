/* SPDX-License-Identifier: Apache-2.0
 *
 * answer.h: checks of plugins' answers, which are never trusted.
 *
 * Plugins are called with a host_error of our own. What they say is checked and handed on with the
 * name of who said it, so a plugin that returns a number that is no status, or no message, does not
 * leave the user without a word.
 */
#ifndef HOST_PLUGIN_ANSWER_H
#define HOST_PLUGIN_ANSWER_H

#include "attn_problem.h"
#include "host/base/error.h"

/* The status itself, or ATTN_INTERNAL for a number that is none. */
attn_status answer_status(attn_status status);

/* Hand on the failure `status` that a plugin explained in `said`: "PREFIX: what it said" (or the
 * name of the status, if it said nothing), with its field and needed bytes. Returns the status as
 * answer_status() gives it. */
attn_status answer_fail(attn_status status, const host_error *said, attn_error *error,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Does a verdict make sense? Texts of reasons are terminated, so that they can be printed.
 * INTERNAL, in the name of the backend `name`, for a no without a reason, a yes with one, values
 * that are none. */
attn_status answer_check_verdict(const char *name, attn_verdict *verdict, attn_error *error);

#endif /* HOST_PLUGIN_ANSWER_H */
