/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c: the group CONF: options at the ends of their ranges and between them, one by one and
 * in pairs; and the host's refusal of values outside. */
#include "host/check/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "host/check/cases/caps_visit.h"
#include "host/check/cases/refusal.h"
#include "host/check/cases/rig.h"
#include "host/check/cases/setting.h"

enum { MAX_PAIRS = 60 };

/* ---- CONF-06 --------------------------------------------------------------------------------- */

/* No plain problem is accepted with these options. Then a reason must refuse the option: an error
 * would mean that the value is invalid, but it is declared as valid. */
static void judge_refusal(struct check_run *run, const struct check_subject *with, const char *what)
{
    struct rig_question question;
    struct caps_answer answer;
    char why[256];
    if (!rig_find(&question, run->subject, why, sizeof why)) {
        check_skip(run, "query accepts no plain softmax problem on this device: %s", why);
        return;
    }
    caps_ask(with, &question.problems[0], &answer);
    CHECK_THAT(run, answer.status == ATTN_OK,
               "%s: query: %s: accepted a verdict, as the value is declared", what,
               host_error_text(&answer.error));
    CHECK_THAT(run, caps_names_field(&answer, ATTN_FIELD_OPTION),
               "%s: query refuses every plain problem, and no reason has the field option", what);
}

static void judge_settings(struct check_run *run, const struct setting *settings, int count)
{
    char what[3 * SETTING_TEXT], *results[RIG_BATCHES];
    struct options *options = setting_open(run, settings, count, what);
    struct check_subject with = *run->subject;
    struct check_run inner = *run;
    struct rig rig;
    if (!options)
        return;
    with.options = &options->view;
    inner.subject = &with;
    if (rig_open(&rig, &inner, run->seed)) {
        if (rig_life(&rig, results))
            rig_free(results);
        rig_close(&rig);
        if (inner.code == CHECK_FAIL)
            check_fail(run, "%s: %s", what, inner.text);
        /* Otherwise it works, or this machine lacks something that it needs. */
    } else if (inner.code == CHECK_SKIP)
        judge_refusal(run, &with, what);
    else
        check_fail(run, "%s: %s", what, inner.text);
    options_destroy(options);
}

static void run_single(struct check_run *run)
{
    struct setting setting;
    setting_find(run->subject, run->index, &setting);
    judge_settings(run, &setting, 1);
}

static int32_t count_all_pairs(const struct check_subject *subject)
{
    int32_t count = 0;
    for (uint32_t a = 0; a < subject->type->num_options; a++)
        for (uint32_t b = a + 1; b < subject->type->num_options; b++)
            count += setting_count(setting_option(subject, a)) *
                     setting_count(setting_option(subject, b));
    return count;
}

static int32_t count_pairs(const struct check_subject *subject)
{
    int32_t count = count_all_pairs(subject);
    return count > MAX_PAIRS && !subject->exhaustive ? MAX_PAIRS : count;
}

/* Pair `index` of all. */
static void find_pair(const struct check_subject *subject, int64_t index, struct setting pair[2])
{
    for (uint32_t a = 0; a < subject->type->num_options; a++)
        for (uint32_t b = a + 1; b < subject->type->num_options; b++) {
            const attn_option *first = setting_option(subject, a),
                              *second = setting_option(subject, b);
            int64_t count = (int64_t)setting_count(first) * setting_count(second);
            if (index >= count) {
                index -= count;
                continue;
            }
            pair[0].option = a;
            pair[1].option = b;
            setting_value(first, (int32_t)(index / setting_count(second)), pair[0].text);
            setting_value(second, (int32_t)(index % setting_count(second)), pair[1].text);
            return;
        }
}

static void run_pairs(struct check_run *run)
{
    struct setting pair[2] = {{.option = 0}, {.option = 0}};
    int64_t all = count_all_pairs(run->subject), some = count_pairs(run->subject);
    find_pair(run->subject, run->index * all / some, pair);
    judge_settings(run, pair, 2);
}

/* ---- What the host refuses ------------------------------------------------------------------- */

static void expect_refused(struct check_run *run, uint32_t option, const char *text)
{
    struct setting setting = {.option = option};
    struct options *options = NULL;
    char what[3 * SETTING_TEXT];
    snprintf(setting.text, sizeof setting.text, "%s", text);
    setting_describe(run->subject, &setting, 1, what);
    attn_status status = setting_parse(run, &setting, 1, &options);
    if (status == ATTN_OK)
        options_destroy(options);
    if (refusal_is(run, status, ATTN_CONFIG_ERROR, what) &&
        !strstr(check_error_text(run), setting_option(run->subject, option)->key))
        check_fail(run, "%s: '%s' does not name the option", what, check_error_text(run));
}

static void run_outside(struct check_run *run)
{
    static const char *const not_numbers[] = {"nan", "inf", "", "1x", "0x10", "1,5", " 1"};
    char text[SETTING_TEXT];
    for (uint32_t o = 0; o < run->subject->type->num_options; o++) {
        const attn_option *option = setting_option(run->subject, o);
        double step = option->type == ATTN_OPTION_FLOAT ? 0.5 : 1;
        for (size_t n = 0;
             setting_is_number(option) && n < sizeof not_numbers / sizeof not_numbers[0]; n++)
            expect_refused(run, o, not_numbers[n]);
        /* Beyond 2^53 a double has no neighbour one apart. */
        if (setting_has_range(option) && fabs(option->min) < 0x1p52) {
            setting_print_number(option, option->min - step, text);
            expect_refused(run, o, text);
        }
        if (setting_has_range(option) && fabs(option->max) < 0x1p52) {
            setting_print_number(option, option->max + step, text);
            expect_refused(run, o, text);
        }
        if (option->type == ATTN_OPTION_BOOL)
            expect_refused(run, o, "maybe");
        if (option->type == ATTN_OPTION_ENUM) {
            expect_refused(run, o, "no_such_choice_of_any");
            expect_refused(run, o, "");
        }
    }
}

static bool find_option(const struct check_subject *subject, const char *key)
{
    bool found = false;
    for (uint32_t o = 0; o < subject->type->num_options && strlen(key) < SETTING_TEXT - 2; o++) {
        const attn_option *option = setting_option(subject, o);
        found |= strcmp(option->key, key) == 0 ||
                 (option->deprecated_alias && strcmp(option->deprecated_alias, key) == 0);
    }
    return found;
}

/* A key with a slip in it: an error that names the right one. */
static void run_unknown(struct check_run *run)
{
    const struct check_subject *subject = run->subject;
    for (uint32_t o = 0; o < subject->type->num_options; o++) {
        const char *key = setting_option(subject, o)->key;
        char slip[SETTING_TEXT];
        struct options *options = NULL;
        snprintf(slip, sizeof slip, "%.100sx", key);
        while (find_option(subject, slip))
            strcat(slip, "x");
        struct options_text text = {slip, "1", "attnhost check", "/"};
        attn_status status = options_create(subject->type, subject->type->name, NULL, &text, 1,
                                            &options, check_error(run));
        if (status == ATTN_OK)
            options_destroy(options);
        if (!refusal_is(run, status, ATTN_CONFIG_ERROR, slip))
            return;
        CHECK_THAT(run, strlen(key) < 3 || strstr(check_error_text(run), key),
                   "%s: '%s' does not name '%s'", slip, check_error_text(run), key);
    }
}

static void run_declared(struct check_run *run)
{
    attn_status status = options_check_type(run->subject->type, check_error(run));
    CHECK_THAT(run, status == ATTN_OK, "%s", check_error_text(run));
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_conf[] = {
    CHECK_ROW("CONF-01", declared, NULL, 0, "the declarations of options are well formed"),
    CHECK_ROW("CONF-02", unknown, NULL, 0, "an unknown key is refused with the nearest one"),
    CHECK_ROW("CONF-03", outside, NULL, 0,
              "a value just outside an option's declared range is refused with the option's name"),
    CHECK_ROW("CONF-06", single, setting_count_all, 0,
              "an option works at both ends of its range, at its default and at each choice, or "
              "query refuses it with the field option"),
    CHECK_ROW("CONF-06", pairs, count_pairs, 0,
              "two options at ends, defaults or choices work together, or query refuses them with "
              "the field option"),
    {.rule = NULL},
};
