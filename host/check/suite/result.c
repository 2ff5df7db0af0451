/* SPDX-License-Identifier: Apache-2.0
 *
 * result.c: building of the list of results.
 */
#include "host/check/suite/result.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/plugin/loader.h"
#include "host/base/text.h"

/* ---- Texts ----------------------------------------------------------------------------------- */

char *check_report_clean(const char *text)
{
    size_t size = (text ? strlen(text) : 0) + 1, done = 0;
    unsigned char *copy = malloc(size);
    const unsigned char *c = (const unsigned char *)(text ? text : "");
    while (copy && *c) {
        size_t length = text_utf8_length((const char *)c);
        bool control = (*c < 0x20 && *c != '\t' && *c != '\n') || *c == 0x7f;
        /* U+FFFE and U+FFFF, which XML cannot hold. */
        bool is_nonchar = length == 3 && c[0] == 0xef && c[1] == 0xbf && c[2] >= 0xbe;
        if (length == 0 || control || is_nonchar) {
            copy[done++] = '?';
            c++;
            continue;
        }
        memcpy(copy + done, c, length);
        done += length;
        c += length;
    }
    if (copy)
        copy[done] = '\0';
    return (char *)copy;
}

void check_report_set(struct check_report *report, char **text, const char *value)
{
    free(*text);
    *text = check_report_clean(value);
    report->failed |= !*text;
}

/* ---- Report ---------------------------------------------------------------------------------- */

static void hash_file(const char *file, char hex[65])
{
    uint8_t sha256[32];
    struct stat info;
    int descriptor = file ? open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    /* A device may have no end. */
    bool good = descriptor >= 0 && fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) &&
                loader_hash(descriptor, sha256) == 0;
    if (descriptor >= 0)
        close(descriptor);
    hex[0] = '\0';
    if (good)
        text_hex(sha256, sizeof sha256, hex);
}

/* What the plugin is called until it says: its file's name without what follows the dot, cut and
 * changed to what an id can hold. */
static void name_after_file(struct check_report *report, const char *file)
{
    static const char accepted[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const char *slash = strrchr(file, '/');
    char name[64];
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : file);
    name[strcspn(name, ".")] = '\0';
    for (char *c = name; *(c += strspn(c, accepted));)
        *c = '_';
    check_report_set(report, &report->name, name);
}

void check_report_init(struct check_report *report, const struct check_params *params)
{
    memset(report, 0, sizeof *report);
    report->params = params;
    report->started = time(NULL);
    check_report_set(report, &report->file, params->plugin);
    check_report_set(report, &report->version, "");
    check_report_set(report, &report->vendor, "");
    check_report_set(report, &report->build, "");
    name_after_file(report, params->plugin);
    hash_file(params->plugin, report->sha256);
}

void check_report_finish(struct check_report *report)
{
    for (size_t r = 0; r < report->num_results; r++) {
        free(report->results[r].backend);
        free(report->results[r].text);
        free(report->results[r].trail);
        free(report->results[r].output);
    }
    for (size_t b = 0; b < report->num_backends; b++) {
        free(report->backends[b].name);
        free(report->backends[b].device);
        free(report->backends[b].about);
        free(report->backends[b].missing);
        cJSON_Delete(report->backends[b].matrix);
    }
    free(report->results);
    free(report->backends);
    free(report->file);
    free(report->name);
    free(report->version);
    free(report->vendor);
    free(report->build);
    free(report->refused);
    memset(report, 0, sizeof *report);
}

static void waive(struct check_report *report, struct check_result *result)
{
    const struct waiver *waiver =
        report->waivers && check_code_fails(result->code)
            ? waivers_find(report->waivers, result->id, report->name, report->version)
            : NULL;
    if (!waiver)
        return;
    strbuf text;
    strbuf_init(&text);
    strbuf_appendf(&text, "waived until %s: %s; it is %s: %s", waiver->expiry, waiver->reason,
                   check_code_name(result->code), result->text);
    result->waived = result->code;
    result->code = CHECK_WAIVED;
    check_report_set(report, &result->text, strbuf_text(&text));
    strbuf_finish(&text);
}

void check_report_add(struct check_report *report, const struct check_result *result)
{
    struct check_result *results =
        realloc(report->results, (report->num_results + 1) * sizeof *results);
    if (!results) {
        report->failed = true;
        return;
    }
    report->results = results;
    struct check_result *made = &results[report->num_results++];
    *made = *result;
    made->backend = made->text = made->trail = made->output = NULL;
    check_report_set(report, &made->backend, result->backend);
    check_report_set(report, &made->text, result->text);
    check_report_set(report, &made->trail, result->trail);
    check_report_set(report, &made->output, result->output);
    if (report->failed)
        return;
    waive(report, made);
    report->counts[made->code]++;
    if (report->tap)
        write_tap_result(made, report->num_results, report->tap);
    if (report->added)
        report->added(report->added_ctx, made);
}

struct check_backend *check_report_add_backend(struct check_report *report, const char *name)
{
    struct check_backend *backends =
        realloc(report->backends, (report->num_backends + 1) * sizeof *backends);
    if (!backends) {
        report->failed = true;
        return NULL;
    }
    report->backends = backends;
    struct check_backend *made = &backends[report->num_backends++];
    memset(made, 0, sizeof *made);
    check_report_set(report, &made->name, name);
    check_report_set(report, &made->device, "");
    check_report_set(report, &made->about, "");
    check_report_set(report, &made->missing, "");
    return made;
}

enum check_outcome check_report_outcome(const struct check_report *report)
{
    size_t failures = 0;
    for (int code = 0; code < CHECK_CODES; code++)
        failures += check_code_fails((enum check_code)code) ? report->counts[code] : 0;
    if (report->failed)
        return CHECK_BROKEN;
    if (report->refused)
        return CHECK_REFUSED;
    if (failures > 0)
        return CHECK_FAILURES;
    return report->counts[CHECK_SKIP] == report->num_results ? CHECK_NOTHING : CHECK_GOOD;
}
