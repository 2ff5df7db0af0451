/* SPDX-License-Identifier: Apache-2.0
 *
 * write_json.c: everything about a run. Two runs with one seed differ only in "started",
 * "environment" and members named "seconds".
 */
#include "host/check/suite/result.h"

#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "attn_plugin.h"
#include "host/base/json_add.h"
#include "host/base/configured.h"
#include "host/device/device.h"

/* Each of these is false when memory ran out; cJSON accepts the NULL that an earlier call gave. */

static bool add_text(cJSON *object, const char *name, const char *text)
{
    char *clean = check_report_clean(text);
    bool good = clean && cJSON_AddStringToObject(object, name, clean);
    free(clean);
    return good;
}

static bool add_number(cJSON *object, const char *name, double value)
{
    return cJSON_AddNumberToObject(object, name, value) != NULL;
}

/* As digits: cJSON's own numbers are doubles. */
static bool add_seed(cJSON *object, const char *name, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    return cJSON_AddRawToObject(object, name, digits) != NULL;
}

static bool add_list(cJSON *object, const char *name, const struct text_list *list)
{
    cJSON *array = cJSON_AddArrayToObject(object, name);
    bool good = array != NULL;
    for (size_t i = 0; i < list->count && good; i++) {
        char *clean = check_report_clean(list->items[i]);
        good = clean && cJSON_AddItemToArray(array, cJSON_CreateString(clean));
        free(clean);
    }
    return good;
}

static bool add_tool(cJSON *root)
{
    char abi[32];
    cJSON *tool = cJSON_AddObjectToObject(root, "tool");
    snprintf(abi, sizeof abi, "%u.%u", ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
    return add_text(tool, "name", "attnhost") && add_text(tool, "version", ATTNHOST_VERSION) &&
           add_text(tool, "abi", abi);
}

static bool add_plugin(cJSON *root, const struct check_report *report)
{
    char abi[32];
    cJSON *plugin = cJSON_AddObjectToObject(root, "plugin");
    snprintf(abi, sizeof abi, "%u.%u", report->abi_major, report->abi_minor);
    return add_text(plugin, "file", report->file) && add_text(plugin, "sha256", report->sha256) &&
           add_text(plugin, "name", report->name) && add_text(plugin, "version", report->version) &&
           add_text(plugin, "vendor", report->vendor) && add_text(plugin, "build", report->build) &&
           add_text(plugin, "abi", abi) &&
           (!report->refused || add_text(plugin, "refused", report->refused));
}

static bool add_run(cJSON *root, const struct check_report *report)
{
    const struct check_params *params = report->params;
    cJSON *run = cJSON_AddObjectToObject(root, "run");
    return add_seed(run, "seed", params->seed) &&
           cJSON_AddBoolToObject(run, "exhaustive", params->exhaustive) &&
           cJSON_AddBoolToObject(run, "in_process", params->in_process) &&
           cJSON_AddBoolToObject(run, "fail_fast", params->fail_fast) &&
           cJSON_AddBoolToObject(run, "quick", params->quick) &&
           add_number(run, "repeat", params->repeat > 0 ? params->repeat : 1) &&
           add_list(run, "filters", &params->filters) && add_list(run, "with", &params->with) &&
           add_list(run, "options", &params->options) &&
           add_text(run, "profile", report->profile) && add_text(run, "waivers", params->waivers) &&
           add_number(run, "interrupted", report->interrupted);
}

/* The list of cases, for a comparison of two runs. */
static bool add_cases(cJSON *root, const struct check_report *report)
{
    if (!report->cases_sha256[0])
        return true;
    cJSON *cases = cJSON_AddObjectToObject(root, "cases");
    return add_number(cases, "number", (double)report->num_cases) &&
           add_text(cases, "sha256", report->cases_sha256);
}

/* The machine: "" for unknown properties. */
static bool add_environment(cJSON *root)
{
    const attn_device processor = {.struct_size = sizeof processor, .type = ATTN_DEVICE_CPU};
    struct device_names names;
    struct utsname system;
    char text[256] = ""; /* "Linux 6.1.0 x86_64" */
    if (uname(&system) == 0)
        snprintf(text, sizeof text, "%.64s %.64s %.64s", system.sysname, system.release,
                 system.machine);
    device_identify(&processor, &names);
    cJSON *object = cJSON_AddObjectToObject(root, "environment");
    return add_text(object, "system", text) && add_text(object, "cpu", names.name) &&
           add_number(object, "cpus", (double)sysconf(_SC_NPROCESSORS_ONLN));
}

static bool add_backends(cJSON *root, const struct check_report *report)
{
    cJSON *array = cJSON_AddArrayToObject(root, "backends");
    bool good = array != NULL;
    for (size_t b = 0; b < report->num_backends && good; b++) {
        const struct check_backend *backend = &report->backends[b];
        cJSON *object = cJSON_CreateObject();
        good =
            cJSON_AddItemToArray(array, object) && add_text(object, "name", backend->name) &&
            add_text(object, "device", backend->device) &&
            add_text(object, "about", backend->about) &&
            (!backend->grid_sha256[0] || (add_number(object, "grid_points", backend->grid_points) &&
                                          add_text(object, "grid_sha256", backend->grid_sha256))) &&
            (!backend->matrix ||
             cJSON_AddItemToObject(object, "capabilities", cJSON_Duplicate(backend->matrix, true)));
    }
    return good;
}

static bool add_result(cJSON *array, const struct check_result *result)
{
    cJSON *object = cJSON_CreateObject();
    return cJSON_AddItemToArray(array, object) && add_text(object, "id", result->id) &&
           add_text(object, "backend", result->backend) &&
           add_text(object, "rule", result->check->rule) &&
           add_text(object, "check", result->check->name) &&
           add_text(object, "sentence", result->check->sentence) &&
           add_text(object, "code", check_code_name(result->code)) &&
           (result->code != CHECK_WAIVED ||
            add_text(object, "waived", check_code_name(result->waived))) &&
           add_text(object, "reason", result->text) &&
           (!result->trail[0] || add_text(object, "trail", result->trail)) &&
           (!result->output[0] || add_text(object, "output", result->output)) &&
           add_seed(object, "seed", result->seed) &&
           add_number(object, "seconds", (double)result->ns * 1e-9);
}

static bool add_results(cJSON *root, const struct check_report *report)
{
    cJSON *counts = cJSON_AddObjectToObject(root, "counts");
    bool good = counts != NULL;
    for (int code = 0; code < CHECK_CODES && good; code++)
        good = add_number(counts, check_code_name((enum check_code)code),
                          (double)report->counts[code]);
    cJSON *array = good ? cJSON_AddArrayToObject(root, "results") : NULL;
    good = array != NULL;
    for (size_t r = 0; r < report->num_results && good; r++)
        good = add_result(array, &report->results[r]);
    return good;
}

bool write_json(const struct check_report *report, FILE *file)
{
    char started[32] = "";
    struct tm utc;
    if (gmtime_r(&report->started, &utc))
        strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &utc);
    cJSON *root = cJSON_CreateObject();
    bool good = add_tool(root) && add_plugin(root, report) && add_run(root, report) &&
                add_environment(root) && add_text(root, "started", started) &&
                add_number(root, "seconds", (double)report->ns * 1e-9) && add_cases(root, report) &&
                add_backends(root, report) && add_results(root, report);
    char *text = json_take_text(root, good);
    good = text && fputs(text, file) != EOF;
    free(text);
    return good;
}
