/* SPDX-License-Identifier: Apache-2.0 */
#include "host/check/profile.h"

#include <stdlib.h>
#include <string.h>

#include "host/beside.h"
#include "host/check/groups.h"
#include "host/check/lines.h"
#include "host/error.h"
#include "host/text.h"

/* ---- Read ------------------------------------------------------------------------------------ */

static attn_status take_line(void *ctx, const char *place, int number, char *line,
                             attn_error *error)
{
    struct profile *profile = ctx;
    struct profile_line taken = {.pattern = lines_word(&line), .line = number};
    const char *word = *line == '#' ? "" : lines_word(&line);
    taken.some = strcmp(word, "some") == 0;
    taken.or_skip = taken.some || strcmp(word, "or-skip") == 0;
    if ((*word && !taken.or_skip) || (*line && *line != '#'))
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: '%.60s': accepted ID-PATTERN [or-skip | some] [# COMMENT]", place,
                         *word && !taken.or_skip ? word : line);
    struct profile_line *lines = realloc(profile->lines, (profile->count + 1) * sizeof *lines);
    if (!lines)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "out of memory");
    profile->lines = lines;
    lines[profile->count++] = taken;
    return ATTN_OK;
}

/* The file of a profile, to be freed; NULL when memory ran out. */
static char *find(const char *name)
{
    char beside[128], installed[PATH_MAX], path[PATH_MAX];
    const char *const places[] = {beside, installed};
    if (strchr(name, '/'))
        return strdup(name);
    snprintf(beside, sizeof beside, "../share/attnhost/profiles/%.64s.txt", name);
    snprintf(installed, sizeof installed, ATTNHOST_PROFILE_DIR "/%.64s.txt", name);
    beside_find(places, 2, path);
    return strdup(path);
}

attn_status profile_load(const char *name, struct profile *profile, attn_error *error)
{
    memset(profile, 0, sizeof *profile);
    profile->file = find(name);
    attn_status status = profile->file
                             ? lines_read(profile->file, "the name or the file of a profile",
                                          take_line, profile, &profile->text, error)
                             : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "out of memory");
    if (status == ATTN_OK && profile->count == 0)
        status = host_fail(error, ATTN_CONFIG_ERROR,
                           "%s: nothing is in it; accepted: lines of "
                           "ID-PATTERN [or-skip | some]",
                           profile->file);
    if (status)
        profile_finish(profile);
    return status;
}

void profile_finish(struct profile *profile)
{
    free(profile->lines);
    free(profile->text);
    free(profile->file);
    memset(profile, 0, sizeof *profile);
}

/* ---- Judge ----------------------------------------------------------------------------------- */

static bool holds(const struct profile_line *line, enum check_code code)
{
    return code == CHECK_PASS || code == CHECK_WAIVED || (line->or_skip && code == CHECK_SKIP);
}

/* Cases of the backend, and those about the file, which have the plugin's name. */
static bool is_of(const struct check_report *report, const struct check_result *result,
                  const char *backend)
{
    return strcmp(result->backend, backend) == 0 ||
           (result->check->needs & CHECK_ONCE && strcmp(result->backend, report->name) == 0);
}

/* false and `text` if the line does not hold. */
static bool judge_line(const struct profile *profile, const struct profile_line *line,
                       const struct check_report *report, size_t num_results, const char *backend,
                       strbuf *text)
{
    size_t meant = 0, skipped = 0;
    for (size_t r = 0; r < num_results; r++) {
        const struct check_result *result = &report->results[r];
        if (!is_of(report, result, backend) || !case_id_matches(line->pattern, result->id))
            continue;
        meant++;
        skipped += result->code == CHECK_SKIP;
        if (holds(line, result->code))
            continue;
        strbuf_appendf(text, "%s:%d: %s is %s, accepted: PASS%s", profile->file, line->line,
                       result->id, check_code_name(result->code), line->or_skip ? ", SKIP" : "");
        return false;
    }
    if (!meant)
        strbuf_appendf(text, "%s:%d: no case of '%s' was run", profile->file, line->line,
                       line->pattern);
    else if (line->some && skipped == meant)
        strbuf_appendf(text, "%s:%d: every case of '%s' was skipped; accepted: some are PASS",
                       profile->file, line->line, line->pattern);
    return text->length == 0;
}

void profile_judge(const struct profile *profile, struct check_report *report)
{
    size_t num_results = report->num_results;
    for (size_t b = 0; b < report->num_backends; b++) {
        strbuf text;
        bool good = true;
        struct check_result result = {.check = &check_core[CORE_PROFILE],
                                      .backend = report->backends[b].name};
        strbuf_init(&text);
        for (size_t l = 0; l < profile->count && good; l++)
            good =
                judge_line(profile, &profile->lines[l], report, num_results, result.backend, &text);
        result.code = good ? CHECK_PASS : CHECK_FAIL;
        result.text = text.data;
        case_id_write(result.id, result.backend, result.check, -1);
        check_report_add(report, &result);
        strbuf_finish(&text);
    }
}
