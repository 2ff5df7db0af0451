/* SPDX-License-Identifier: Apache-2.0
 *
 * setting.c: values to try for each option.
 */
#include "host/check/cases/setting.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Values of an option --------------------------------------------------------------------- */

const attn_option *setting_option(const struct check_subject *subject, uint32_t index)
{
    return attn_at(subject->type->options, index);
}

bool setting_is_number(const attn_option *option)
{
    return option->type == ATTN_OPTION_INT || option->type == ATTN_OPTION_FLOAT ||
           option->type == ATTN_OPTION_SIZE;
}

bool setting_has_range(const attn_option *option)
{
    return setting_is_number(option) && option->min <= option->max;
}

int32_t setting_count(const attn_option *option)
{
    if (option->type == ATTN_OPTION_BOOL)
        return 2;
    if (option->type == ATTN_OPTION_ENUM)
        return (int32_t)option->num_choices;
    if (!setting_is_number(option))
        return 0;
    return (setting_has_range(option) ? 2 : 3) + (option->default_text != NULL);
}

void setting_print_number(const attn_option *option, double number, char text[SETTING_TEXT])
{
    snprintf(text, SETTING_TEXT, option->type == ATTN_OPTION_FLOAT ? "%.17g" : "%.0f", number);
}

void setting_value(const attn_option *option, int32_t which, char text[SETTING_TEXT])
{
    static const char *const free_numbers[] = {"0", "1", "1000000"};
    if (option->type == ATTN_OPTION_BOOL)
        snprintf(text, SETTING_TEXT, "%s", which ? "yes" : "no");
    else if (option->type == ATTN_OPTION_ENUM)
        snprintf(text, SETTING_TEXT, "%s", option->choices[which]);
    else if (setting_has_range(option) && which < 2)
        setting_print_number(option, which ? option->max : option->min, text);
    else if (!setting_has_range(option) && which < 3)
        snprintf(text, SETTING_TEXT, "%s", free_numbers[which]);
    else
        snprintf(text, SETTING_TEXT, "%s", option->default_text);
}

/* Any value that is declared: a number of the range, small ones as often as large ones. */
static void draw_value(const attn_option *option, struct draw *draw, char text[SETTING_TEXT])
{
    double share = (draw_below(draw, 1 << 20) + 0.5) * 0x1p-20;
    bool is_whole = option->type != ATTN_OPTION_FLOAT;
    if (!setting_has_range(option)) {
        setting_value(option, draw_below(draw, setting_count(option)), text);
        return;
    }
    double above = exp(share * log1p(option->max - option->min)) - 1; /* 0 .. max - min */
    setting_print_number(option, option->min + (is_whole ? floor(above) : above), text);
}

/* ---- All of a backend ------------------------------------------------------------------------ */

int32_t setting_count_all(const struct check_subject *subject)
{
    int32_t count = 0;
    for (uint32_t o = 0; o < subject->type->num_options; o++)
        count += setting_count(setting_option(subject, o));
    return count;
}

void setting_find(const struct check_subject *subject, int32_t index, struct setting *setting)
{
    setting->option = 0;
    while (index >= setting_count(setting_option(subject, setting->option)))
        index -= setting_count(setting_option(subject, setting->option++));
    setting_value(setting_option(subject, setting->option), index, setting->text);
}

/* ---- Parse ----------------------------------------------------------------------------------- */

attn_status setting_parse(struct check_run *run, const struct setting *settings, int count,
                          struct options **options)
{
    const struct check_subject *subject = run->subject;
    attn_error *error = check_error(run);
    const attn_options *given = subject->options;
    uint32_t most = given->num_values + (uint32_t)count, used = 0;
    struct options_text *texts = calloc(most + 1, sizeof *texts);
    if (!texts)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for options");
    for (uint32_t v = 0; v < given->num_values; v++) {
        const attn_option_value *value = attn_at(given->values, v);
        bool replaced = strcmp(value->place, "default") == 0;
        for (int s = 0; s < count; s++)
            replaced |= strcmp(value->key, setting_option(subject, settings[s].option)->key) == 0;
        if (!replaced)
            texts[used++] = (struct options_text){value->key, value->text, value->place, "/"};
    }
    for (int s = 0; s < count; s++)
        texts[used++] = (struct options_text){setting_option(subject, settings[s].option)->key,
                                              settings[s].text, "attnhost check", "/"};
    attn_status status =
        options_create(subject->type, subject->type->name, NULL, texts, used, options, error);
    free(texts);
    return status;
}

void setting_describe(const struct check_subject *subject, const struct setting *settings,
                      int count, char text[3 * SETTING_TEXT])
{
    size_t length = 0;
    for (int s = 0; s < count; s++)
        length += (size_t)snprintf(text + length, 3 * SETTING_TEXT - length, "%s%.60s = %.60s",
                                   s ? ", " : "", setting_option(subject, settings[s].option)->key,
                                   settings[s].text);
}

struct options *setting_open(struct check_run *run, const struct setting *settings, int count,
                             char what[3 * SETTING_TEXT])
{
    struct options *options = NULL;
    setting_describe(run->subject, settings, count, what);
    check_note(run, "with %s", what);
    if (setting_parse(run, settings, count, &options) != ATTN_OK)
        check_fail(run, "%s: the host refuses a declared value: %s", what, check_error_text(run));
    return options;
}

/* More often than not it is a number, at an end or between them: work is cut by these. */
static void draw_setting(const struct check_run *run, int32_t count, struct setting *setting)
{
    struct draw draw = {.seed = mix_absorb(run->seed, 4)};
    const attn_option *option;
    int tries = 0;
    do {
        setting_find(run->subject, draw_below(&draw, count), setting);
        option = setting_option(run->subject, setting->option);
    } while (!setting_has_range(option) && !draw_one_in(&draw, 8) && ++tries < 20);
    if (setting_has_range(option) && draw_coin(&draw))
        draw_value(option, &draw, setting->text);
}

/* One of the choices of another option: mostly which kernels compute. */
static bool draw_choice(const struct check_run *run, uint32_t taken, struct setting *setting)
{
    enum { TRIES = 8 };
    struct draw draw = {.seed = mix_absorb(run->seed, 60)};
    for (int try = 0; try < TRIES; try++) {
        setting->option = (uint32_t)draw_below(&draw, (int32_t)run->subject->type->num_options);
        const attn_option *option = setting_option(run->subject, setting->option);
        if (setting->option == taken || setting_is_number(option) || setting_count(option) == 0)
            continue;
        setting_value(option, draw_below(&draw, setting_count(option)), setting->text);
        return !draw_one_in(&draw, 4);
    }
    return false;
}

struct options *setting_draw_options(struct check_run *run, setting_test *accepts, void *ctx,
                                     char what[3 * SETTING_TEXT])
{
    int32_t count = setting_count_all(run->subject);
    struct setting settings[2];
    what[0] = '\0';
    if (count == 0 || mix_stream(run->seed, 3) % 4 == 0)
        return NULL;
    draw_setting(run, count, &settings[0]);
    for (int n = draw_choice(run, settings[0].option, &settings[1]) ? 2 : 1; n > 0; n--) {
        struct options *options = NULL;
        setting_describe(run->subject, settings, n, what);
        if (setting_parse(run, settings, n, &options) == ATTN_OK && accepts(ctx, &options->view))
            return options;
        options_destroy(options);
    }
    what[0] = '\0';
    return NULL;
}

void setting_tell(struct check_run *run, const char *what)
{
    size_t length = strlen(run->text);
    if (run->code == CHECK_FAIL && what[0])
        snprintf(run->text + length, sizeof run->text - length, "; with %s", what);
}
