/* SPDX-License-Identifier: Apache-2.0
 *
 * profile.c: parsing and judging of profiles.
 */
#include "host/check/suite/profile.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/data_files.h"
#include "host/check/suite/groups.h"
#include "host/check/suite/lines.h"
#include "host/base/error.h"
#include "host/base/text.h"
#include "host/base/configured.h"

/* All that come with the program, for where they are not installed. */
static const struct built_in {
    const char *name, *text;
} built_in[] = {
#include "host/check/profiles/built_in.inc"
};

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

/* Which file a profile is read from; false = none is there. */
static bool find(const char *name, char path[PATH_MAX])
{
    char beside[128], installed[PATH_MAX];
    const char *const places[] = {beside, installed};
    snprintf(beside, sizeof beside, "../share/attnhost/profiles/%.64s.txt", name);
    snprintf(installed, sizeof installed, ATTNHOST_PROFILE_DIR "/%.64s.txt", name);
    return data_file_find(places, 2, path);
}

static const struct built_in *find_built_in(const char *name)
{
    for (size_t n = 0; n < sizeof built_in / sizeof *built_in; n++)
        if (strcmp(built_in[n].name, name) == 0)
            return &built_in[n];
    return NULL;
}

static attn_status read_profile(const char *name, struct profile *profile, attn_error *error)
{
    char path[PATH_MAX];
    bool is_name = !strchr(name, '/'), found = is_name && find(name, path);
    const struct built_in *own = is_name && !found ? find_built_in(name) : NULL;
    if (own)
        snprintf(path, sizeof path, "%s.txt (built in)", name);
    profile->file = strdup(is_name ? path : name);
    if (profile->file && !own)
        return lines_read(profile->file, "the name or the file of a profile", take_line, profile,
                          &profile->text, error);
    profile->text = profile->file ? strdup(own->text) : NULL;
    return profile->text ? lines_read_text(profile->file, profile->text, strlen(profile->text),
                                           take_line, profile, error)
                         : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "out of memory");
}

attn_status profile_load(const char *name, struct profile *profile, attn_error *error)
{
    memset(profile, 0, sizeof *profile);
    attn_status status = read_profile(name, profile, error);
    if (status == ATTN_OK && profile->count == 0)
        status = host_fail(error, ATTN_CONFIG_ERROR,
                           "%s: is empty; accepted: lines of "
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

static enum check_code judge_backend(const struct profile *profile,
                                     const struct check_report *report, size_t num_results,
                                     const struct check_backend *backend, strbuf *text)
{
    if (profile->is_minimum && backend->missing[0]) {
        strbuf_appendf(text, "its requirement is missing here: %s", backend->missing);
        return CHECK_SKIP;
    }
    for (size_t l = 0; l < profile->count; l++)
        if (!judge_line(profile, &profile->lines[l], report, num_results, backend->name, text))
            return CHECK_FAIL;
    return CHECK_PASS;
}

void profile_judge(const struct profile *profile, struct check_report *report)
{
    size_t num_results = report->num_results;
    report->profile = profile->file;
    for (size_t b = 0; b < report->num_backends; b++) {
        strbuf text;
        struct check_result result = {.check = &check_core[CORE_PROFILE],
                                      .backend = report->backends[b].name};
        strbuf_init(&text);
        result.code = judge_backend(profile, report, num_results, &report->backends[b], &text);
        result.text = text.data;
        case_id_write(result.id, result.backend, result.check, -1);
        check_report_add(report, &result);
        strbuf_finish(&text);
    }
}
