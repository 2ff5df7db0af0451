/* SPDX-License-Identifier: Apache-2.0
 *
 * setting.h: test values for declared options: both ends of a range, the default, each choice; and
 * any number between the ends.
 */
#ifndef HOST_CHECK_CASES_SETTING_H
#define HOST_CHECK_CASES_SETTING_H

#include "host/check/check.h"
#include "host/base/error.h"
#include "host/check/cases/draw.h"
#include "host/plugin/options.h"

enum { SETTING_TEXT = 128 };

/* An option, by its index in the backend's declarations, and a value. */
struct setting {
    uint32_t option;
    char text[SETTING_TEXT];
};

const attn_option *setting_option(const struct check_subject *subject, uint32_t index);

bool setting_is_number(const attn_option *option);
bool setting_has_range(const attn_option *option);
void setting_print_number(const attn_option *option, double number, char text[SETTING_TEXT]);

/* The number of values that are tried for an option; 0 = only a user knows its values. And value
 * `which` of them. */
int32_t setting_count(const attn_option *option);
void setting_value(const attn_option *option, int32_t which, char text[SETTING_TEXT]);

/* The values that are tried, for all options of a backend, one after the other. */
int32_t setting_count_all(const struct check_subject *subject);
void setting_find(const struct check_subject *subject, int32_t index, struct setting *setting);

/* The user's options, overridden by those of `settings`. The run has the error. */
attn_status setting_parse(struct check_run *run, const struct setting *settings, int count,
                          struct options **options);

/* "key = value, key = value" of one or two. */
void setting_describe(const struct check_subject *subject, const struct setting *settings,
                      int count, char text[3 * SETTING_TEXT]);

/* Both, with a note. NULL: the host refuses a declared value, and the case has failed. */
struct options *setting_open(struct check_run *run, const struct setting *settings, int count,
                             char what[3 * SETTING_TEXT]);

/* The user's options with one that is drawn from the run's seed, mostly a number, and mostly a choice of a second one;
 * with the first alone where both are not accepted. `what` says which. NULL, for some seeds and for backends without
 * such options: as the user gave them. */
typedef bool setting_test(void *ctx, const attn_options *options);
struct options *setting_draw_options(struct check_run *run, setting_test *accepts, void *ctx,
                                     char what[3 * SETTING_TEXT]);

/* A failure says which options there were; "" = none. */
void setting_tell(struct check_run *run, const char *what);

#endif /* HOST_CHECK_CASES_SETTING_H */
