/* SPDX-License-Identifier: Apache-2.0
 *
 * surroundings.c: collecting changes of the process, by backend.
 */
#include "host/check/suite/suite.h"

#include <stdlib.h>
#include <string.h>

#include "host/check/suite/json.h"

static struct suite_surroundings *require_surroundings(struct suite *suite, const char *backend)
{
    for (size_t t = 0; t < suite->num_surroundings; t++)
        if (strcmp(suite->surroundings[t].backend, backend) == 0)
            return &suite->surroundings[t];
    struct suite_surroundings *list =
        realloc(suite->surroundings, (suite->num_surroundings + 1) * sizeof *list);
    char *name = strdup(backend);
    if (list)
        suite->surroundings = list;
    if (!list || !name) {
        free(name);
        suite->report->failed = true;
        return NULL;
    }
    struct suite_surroundings *made = &list[suite->num_surroundings++];
    *made = (struct suite_surroundings){.backend = name};
    return made;
}

/* `core` is CORE_SILENT or one that follows. */
static void see(struct suite_surroundings *around, int core, const char *where, const char *format,
                const char *what)
{
    struct suite_sight *sight = &around->sights[core - CORE_SILENT];
    if (sight->times++ > 0)
        return;
    strbuf text;
    strbuf_init(&text);
    strbuf_appendf(&text, "in %s: ", where);
    strbuf_appendf(&text, format, what);
    sight->text = strbuf_steal(&text);
}

void surroundings_case(struct suite *suite, const char *backend, const char *id,
                       const struct sandbox_reply *reply)
{
    char printed[256];
    const cJSON *changes = cJSON_GetObjectItemCaseSensitive(reply->answer, "changes");
    struct suite_surroundings *around = require_surroundings(suite, backend);
    if (!around)
        return;
    around->cases++;
    if (reply->output.length) {
        snprintf(printed, sizeof printed, "%s", strbuf_text(&reply->output));
        text_cut_incomplete(printed);
        see(around, CORE_SILENT, id, "'%s' was printed", printed);
    }
    for (int core = CORE_FPU; core <= CORE_CWD; core++) {
        const cJSON *change = cJSON_GetArrayItem(changes, core - CORE_FPU);
        if (cJSON_IsString(change) && *change->valuestring)
            see(around, core, id, "%s", change->valuestring);
    }
}

void surroundings_end(struct suite *suite, const char *backend, const struct sandbox_reply *reply)
{
    struct suite_surroundings *around = require_surroundings(suite, backend);
    if (!around)
        return;
    around->cases++;
    if (reply->end != SANDBOX_ANSWERED) {
        around->end = reply->end;
        see(around, CORE_ENDS, "the end of the process", "%s", reply->text);
    } else if (json_true(reply->answer, "processes")) {
        see(around, CORE_ENDS, "the end of the process", "%s", "other processes are left");
    }
    if (reply->output.length)
        see(around, CORE_SILENT, "the end of the process", "'%s' was printed",
            strbuf_text(&reply->output));
}

/* ---- Shards ---------------------------------------------------------------------------------- */

cJSON *surroundings_object(const struct suite *suite)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t t = 0; t < suite->num_surroundings; t++) {
        const struct suite_surroundings *around = &suite->surroundings[t];
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "backend", around->backend);
        cJSON_AddNumberToObject(object, "cases", (double)around->cases);
        cJSON_AddNumberToObject(object, "end", around->end);
        cJSON *sights = cJSON_AddArrayToObject(object, "sights");
        for (int core = CORE_SILENT; core <= CORE_ENDS; core++) {
            const struct suite_sight *sight = &around->sights[core - CORE_SILENT];
            cJSON *seen = cJSON_CreateObject();
            cJSON_AddNumberToObject(seen, "times", (double)sight->times);
            cJSON_AddStringToObject(seen, "text", sight->text ? sight->text : "");
            cJSON_AddItemToArray(sights, seen);
        }
        cJSON_AddItemToArray(list, object);
    }
    return list;
}

void surroundings_merge(struct suite *suite, const cJSON *object)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        const cJSON *sights = cJSON_GetObjectItemCaseSensitive(item, "sights");
        struct suite_surroundings *around = require_surroundings(suite, json_text(item, "backend"));
        enum sandbox_end end = (enum sandbox_end)json_number(item, "end");
        for (int core = CORE_SILENT; core <= CORE_ENDS && around; core++) {
            const cJSON *seen = cJSON_GetArrayItem(sights, core - CORE_SILENT);
            struct suite_sight *sight = &around->sights[core - CORE_SILENT];
            if (sight->times == 0 && json_number(seen, "times") > 0)
                sight->text = strdup(json_text(seen, "text"));
            sight->times += (size_t)json_number(seen, "times");
        }
        if (!around)
            return;
        around->cases += (size_t)json_number(item, "cases");
        around->end = end > around->end ? end : around->end;
    }
}

/* ---- Report ---------------------------------------------------------------------------------- */

/* Observations that only another process can make. */
static bool is_hidden(const struct suite *suite, int core)
{
    return suite->params->in_process && (core == CORE_SILENT || core == CORE_ENDS);
}

static void report_one(struct suite *suite, const struct suite_surroundings *around, int core)
{
    const struct suite_sight *sight = &around->sights[core - CORE_SILENT];
    struct check_result result = {.check = &check_core[core], .backend = around->backend};
    strbuf text;
    case_id_write(result.id, around->backend, result.check, -1);
    if (!suite_wants(suite, result.id))
        return;
    if (suite->list) {
        suite_list(suite, &result);
        return;
    }
    strbuf_init(&text);
    if (sight->times) {
        result.code = core == CORE_ENDS && around->end ? suite_code_of(around->end) : CHECK_FAIL;
        strbuf_append(&text, sight->text ? sight->text : "");
        if (sight->times > 1)
            strbuf_appendf(&text, " (and %zu more times)", sight->times - 1);
    }
    if (is_hidden(suite, core)) {
        result.code = CHECK_SKIP;
        strbuf_append(&text, "cannot be seen in one process");
    }
    result.text = text.data;
    check_report_add(suite->report, &result);
    strbuf_finish(&text);
}

void surroundings_report(struct suite *suite)
{
    for (size_t t = 0; t < suite->num_surroundings; t++)
        for (int core = CORE_SILENT; core <= CORE_ENDS && suite->surroundings[t].cases; core++)
            report_one(suite, &suite->surroundings[t], core);
}

void surroundings_finish(struct suite *suite)
{
    for (size_t t = 0; t < suite->num_surroundings; t++) {
        for (int core = CORE_SILENT; core <= CORE_ENDS; core++)
            free(suite->surroundings[t].sights[core - CORE_SILENT].text);
        free(suite->surroundings[t].backend);
    }
    free(suite->surroundings);
    suite->surroundings = NULL;
    suite->num_surroundings = 0;
}
