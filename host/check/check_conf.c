/* SPDX-License-Identifier: Apache-2.0
 *
 * check_conf.c: the group CONF: options at the ends of what they declare, one by one and in pairs;
 * and that the host refuses what lies beside.
 */
#include "host/check/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/refusal.h"
#include "host/check/rig.h"
#include "host/options.h"

enum { MOST_PAIRS = 60, TEXT = 128 };

/* ---- Values of an option --------------------------------------------------------------------- */

static const attn_option *option_at(const struct check_subject *subject, uint32_t index)
{
    return attn_at(subject->type->options, index);
}

static bool is_number(const attn_option *option)
{
    return option->type == ATTN_OPTION_INT || option->type == ATTN_OPTION_FLOAT ||
           option->type == ATTN_OPTION_SIZE;
}

static bool has_range(const attn_option *option)
{
    return is_number(option) && option->min <= option->max;
}

/* How many values are tried of an option; 0 = what it may be, nobody but a user knows. */
static int32_t count_values(const attn_option *option)
{
    if (option->type == ATTN_OPTION_BOOL)
        return 2;
    if (option->type == ATTN_OPTION_ENUM)
        return (int32_t)option->num_choices;
    if (!is_number(option))
        return 0;
    return (has_range(option) ? 2 : 3) + (option->default_text != NULL);
}

static void print_number(const attn_option *option, double number, char text[TEXT])
{
    snprintf(text, TEXT, option->type == ATTN_OPTION_FLOAT ? "%.17g" : "%.0f", number);
}

static void value_text(const attn_option *option, int32_t which, char text[TEXT])
{
    static const char *const free_numbers[] = {"0", "1", "1000000"};
    if (option->type == ATTN_OPTION_BOOL)
        snprintf(text, TEXT, "%s", which ? "yes" : "no");
    else if (option->type == ATTN_OPTION_ENUM)
        snprintf(text, TEXT, "%s", option->choices[which]);
    else if (has_range(option) && which < 2)
        print_number(option, which ? option->max : option->min, text);
    else if (!has_range(option) && which < 3)
        snprintf(text, TEXT, "%s", free_numbers[which]);
    else
        snprintf(text, TEXT, "%s", option->default_text);
}

/* ---- Parse ----------------------------------------------------------------------------------- */

struct setting {
    uint32_t option;
    char text[TEXT];
};

/* What the user gave, but for the options of `settings`, and these. */
static attn_status parse(const struct check_subject *subject, const struct setting *settings,
                         int count, struct options **options, host_error *error)
{
    const attn_options *given = subject->options;
    uint32_t most = given->num_values + (uint32_t)count, used = 0;
    struct options_text *texts = calloc(most + 1, sizeof *texts);
    if (!texts)
        return host_fail(&error->base, ATTN_OUT_OF_HOST_MEMORY, "no memory for options");
    for (uint32_t v = 0; v < given->num_values; v++) {
        const attn_option_value *value = attn_at(given->values, v);
        bool replaced = strcmp(value->place, "default") == 0;
        for (int s = 0; s < count; s++)
            replaced |= strcmp(value->key, option_at(subject, settings[s].option)->key) == 0;
        if (!replaced)
            texts[used++] = (struct options_text){value->key, value->text, value->place, "/"};
    }
    for (int s = 0; s < count; s++)
        texts[used++] = (struct options_text){option_at(subject, settings[s].option)->key,
                                              settings[s].text, "attnhost check", "/"};
    host_error_init(error);
    attn_status status = options_create(subject->type, subject->type->name, NULL, texts, used,
                                        options, &error->base);
    free(texts);
    return status;
}

static void describe_settings(const struct check_subject *subject, const struct setting *settings,
                              int count, char text[3 * TEXT])
{
    size_t length = 0;
    for (int s = 0; s < count; s++)
        length +=
            (size_t)snprintf(text + length, 3 * TEXT - length, "%s%.60s = %.60s", s ? ", " : "",
                             option_at(subject, settings[s].option)->key, settings[s].text);
}

/* ---- CONF-06 --------------------------------------------------------------------------------- */

/* No plain problem is accepted with these options: it has to be they that are refused. */
static void judge_refusal(struct check_run *run, const struct check_subject *with, const char *what)
{
    struct rig_question question;
    attn_reason reasons[8];
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 8, .reasons = reasons};
    char why[256];
    host_error error;
    if (!rig_find(&question, run->subject, why, sizeof why)) {
        check_skip(run, "query accepts no plain softmax problem on this device: %s", why);
        return;
    }
    for (int r = 0; r < 8; r++)
        reasons[r] = (attn_reason){.struct_size = sizeof reasons[r]};
    host_error_init(&error);
    attn_status status = with->type->query(with->type, with->options, with->services,
                                           &question.problems[0], &verdict, &error.base);
    if (status != ATTN_OK) {
        if (refusal_is(run, status, ATTN_CONFIG_ERROR, &error, what) &&
            error.base.field != ATTN_FIELD_OPTION)
            check_fail(run, "%s: query: %s: error.field is %u: accepted ATTN_FIELD_OPTION", what,
                       host_error_text(&error), error.base.field);
        return;
    }
    bool named = false;
    for (uint32_t r = 0; r < verdict.num_reasons && r < 8; r++)
        named |= reasons[r].field == ATTN_FIELD_OPTION;
    CHECK_THAT(run, named,
               "%s: query refuses every plain problem, and no reason has the field "
               "option",
               what);
}

static void judge_settings(struct check_run *run, const struct setting *settings, int count)
{
    char what[3 * TEXT], *results[RIG_BATCHES];
    struct options *options = NULL;
    struct check_subject with = *run->subject;
    struct check_run inner = *run;
    struct rig rig;
    host_error error;
    describe_settings(run->subject, settings, count, what);
    check_note(run, "%s", what);
    attn_status status = parse(run->subject, settings, count, &options, &error);
    CHECK_THAT(run, status == ATTN_OK, "%s: the host refuses what is declared: %s", what,
               host_error_text(&error));
    with.options = &options->view;
    inner.subject = &with;
    if (rig_open(&rig, &inner, run->seed)) {
        if (rig_life(&rig, &inner, results))
            rig_free(results);
        rig_close(&rig);
        if (inner.code == CHECK_FAIL)
            check_fail(run, "%s: %s", what, inner.text);
        /* Else it works, or what it takes is not on this machine. */
    } else if (inner.code == CHECK_SKIP)
        judge_refusal(run, &with, what);
    else
        check_fail(run, "%s: %s", what, inner.text);
    options_destroy(options);
}

static int32_t count_single(const struct check_subject *subject)
{
    int32_t count = 0;
    for (uint32_t o = 0; o < subject->type->num_options; o++)
        count += count_values(option_at(subject, o));
    return count;
}

static void run_single(struct check_run *run)
{
    int32_t index = run->index;
    struct setting setting = {.option = 0};
    while (index >= count_values(option_at(run->subject, setting.option)))
        index -= count_values(option_at(run->subject, setting.option++));
    value_text(option_at(run->subject, setting.option), index, setting.text);
    judge_settings(run, &setting, 1);
}

static int32_t count_all_pairs(const struct check_subject *subject)
{
    int32_t count = 0;
    for (uint32_t a = 0; a < subject->type->num_options; a++)
        for (uint32_t b = a + 1; b < subject->type->num_options; b++)
            count += count_values(option_at(subject, a)) * count_values(option_at(subject, b));
    return count;
}

static int32_t count_pairs(const struct check_subject *subject)
{
    int32_t count = count_all_pairs(subject);
    return count > MOST_PAIRS && !subject->exhaustive ? MOST_PAIRS : count;
}

/* Pair `index` of all. */
static void find_pair(const struct check_subject *subject, int64_t index, struct setting pair[2])
{
    for (uint32_t a = 0; a < subject->type->num_options; a++)
        for (uint32_t b = a + 1; b < subject->type->num_options; b++) {
            const attn_option *first = option_at(subject, a), *second = option_at(subject, b);
            int64_t count = (int64_t)count_values(first) * count_values(second);
            if (index >= count) {
                index -= count;
                continue;
            }
            pair[0].option = a;
            pair[1].option = b;
            value_text(first, (int32_t)(index / count_values(second)), pair[0].text);
            value_text(second, (int32_t)(index % count_values(second)), pair[1].text);
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
    host_error error;
    char what[3 * TEXT];
    snprintf(setting.text, sizeof setting.text, "%s", text);
    describe_settings(run->subject, &setting, 1, what);
    attn_status status = parse(run->subject, &setting, 1, &options, &error);
    if (status == ATTN_OK)
        options_destroy(options);
    if (refusal_is(run, status, ATTN_CONFIG_ERROR, &error, what) &&
        !strstr(host_error_text(&error), option_at(run->subject, option)->key))
        check_fail(run, "%s: '%s' does not name the option", what, host_error_text(&error));
}

static void run_outside(struct check_run *run)
{
    static const char *const not_numbers[] = {"nan", "inf", "", "1x", "0x10", "1,5", " 1"};
    char text[TEXT];
    for (uint32_t o = 0; o < run->subject->type->num_options; o++) {
        const attn_option *option = option_at(run->subject, o);
        double step = option->type == ATTN_OPTION_FLOAT ? 0.5 : 1;
        for (size_t n = 0; is_number(option) && n < sizeof not_numbers / sizeof not_numbers[0]; n++)
            expect_refused(run, o, not_numbers[n]);
        /* Beyond 2^53 a double has no neighbour one apart. */
        if (has_range(option) && fabs(option->min) < 0x1p52) {
            print_number(option, option->min - step, text);
            expect_refused(run, o, text);
        }
        if (has_range(option) && fabs(option->max) < 0x1p52) {
            print_number(option, option->max + step, text);
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
    for (uint32_t o = 0; o < subject->type->num_options && strlen(key) < TEXT - 2; o++) {
        const attn_option *option = option_at(subject, o);
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
        const char *key = option_at(subject, o)->key;
        char slip[TEXT];
        struct options *options = NULL;
        host_error error;
        snprintf(slip, sizeof slip, "%.100sx", key);
        while (find_option(subject, slip))
            strcat(slip, "x");
        struct options_text text = {slip, "1", "attnhost check", "/"};
        host_error_init(&error);
        attn_status status = options_create(subject->type, subject->type->name, NULL, &text, 1,
                                            &options, &error.base);
        if (status == ATTN_OK)
            options_destroy(options);
        if (!refusal_is(run, status, ATTN_CONFIG_ERROR, &error, slip))
            return;
        CHECK_THAT(run, strlen(key) < 3 || strstr(host_error_text(&error), key),
                   "%s: '%s' does not name '%s'", slip, host_error_text(&error), key);
    }
}

static void run_declared(struct check_run *run)
{
    host_error error;
    host_error_init(&error);
    attn_status status = options_check_type(run->subject->type, &error.base);
    CHECK_THAT(run, status == ATTN_OK, "%s", host_error_text(&error));
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_conf[] = {
    {.rule = "CONF-01",
     .name = "declared",
     .sentence = "the declarations of options are well formed",
     .run = run_declared},
    {.rule = "CONF-02",
     .name = "unknown",
     .sentence = "an unknown key is refused with the nearest one",
     .run = run_unknown},
    {.rule = "CONF-03",
     .name = "outside",
     .sentence = "a value just outside what is declared is refused with the option's name",
     .run = run_outside},
    {.rule = "CONF-06",
     .name = "single",
     .sentence = "an option at an end of its range, at its default, or at each choice works, or "
                 "query refuses it with the field option",
     .count = count_single,
     .run = run_single},
    {.rule = "CONF-06",
     .name = "pairs",
     .sentence = "two options at such values work together, or query refuses them with the field "
                 "option",
     .count = count_pairs,
     .run = run_pairs},
    {.rule = NULL},
};
