/* SPDX-License-Identifier: Apache-2.0
 *
 * shards.c: forking of shards, and merging of their results.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* memfd_create */
#endif
#include "host/check/suite/shards.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/check/suite/json.h"

enum { MAX_DEFAULT = 8 };

/* ---- In a shard ------------------------------------------------------------------------------ */

static cJSON *result_object(const struct check_result *result)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "id", result->id);
    cJSON_AddNumberToObject(object, "code", result->code);
    cJSON_AddNumberToObject(object, "ns", (double)result->ns);
    cJSON_AddStringToObject(object, "text", result->text);
    cJSON_AddStringToObject(object, "trail", result->trail);
    cJSON_AddStringToObject(object, "output", result->output);
    return object;
}

static void write_all(int file, const char *text)
{
    size_t length = strlen(text);
    for (size_t done = 0; done < length;) {
        ssize_t count = write(file, text + done, length - done);
        if (count <= 0)
            return; /* what is cut cannot be read, and is run by the suite */
        done += (size_t)count;
    }
}

/* A separate process; it does not come back. */
static void be_shard(const struct check_params *params, size_t index, size_t count, int memory,
                     pid_t parent)
{
    struct check_params own = *params;
    struct check_report report;
    struct suite suite = {.shard = {.index = index, .count = count}};
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    own.jobs = 1;
    check_report_init(&report, &own);
    suite_run_shard(&suite, &own, &report);
    /* The end of the time for all is no result of the case that it cut short: others had theirs. */
    if (suite.late && report.num_results)
        report.num_results--;
    cJSON *found = cJSON_CreateObject();
    cJSON *results = cJSON_AddArrayToObject(found, "results");
    for (size_t r = 0; r < report.num_results; r++)
        cJSON_AddItemToArray(results, result_object(&report.results[r]));
    cJSON_AddItemToObject(found, "surroundings", surroundings_object(&suite));
    char *text = cJSON_PrintUnformatted(found);
    if (text && !report.failed)
        write_all(memory, text);
    _exit(0);
}

/* ---- Around them ----------------------------------------------------------------------------- */

size_t shards_default(void)
{
    long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;
    return half < 1 ? 1 : half > MAX_DEFAULT ? MAX_DEFAULT : (size_t)half;
}

void shards_start(struct shards *shards, const struct check_params *params, size_t count)
{
    *shards = (struct shards){.count = count};
    shards->items = calloc(shards->count, sizeof *shards->items);
    shards->count = shards->items ? shards->count : 0;
    fflush(NULL); /* or it would be written twice */
    for (size_t s = 0; s < shards->count; s++) {
        struct shard *shard = &shards->items[s];
        pid_t parent = getpid();
        shard->memory = memfd_create("attnhost-shard", MFD_CLOEXEC);
        shard->process = shard->memory < 0 ? 0 : fork();
        if (shard->process == 0 && shard->memory >= 0)
            be_shard(params, s, shards->count, shard->memory, parent);
        if (shard->process < 0)
            shard->process = 0;
    }
}

static void read_found(struct shard *shard)
{
    struct stat about;
    if (shard->memory < 0 || fstat(shard->memory, &about) != 0 || about.st_size == 0)
        return;
    size_t size = (size_t)about.st_size;
    char *text = mmap(NULL, size, PROT_READ, MAP_PRIVATE, shard->memory, 0);
    if (text == MAP_FAILED)
        return;
    shard->found = cJSON_ParseWithLength(text, size);
    munmap(text, size);
}

static int compare_ids(const void *a, const void *b)
{
    const struct shard_result *x = a, *y = b;
    return strcmp(x->id, y->id);
}

static size_t count_results(const struct shards *shards)
{
    size_t count = 0;
    for (size_t s = 0; s < shards->count; s++)
        count += (size_t)cJSON_GetArraySize(
            cJSON_GetObjectItemCaseSensitive(shards->items[s].found, "results"));
    return count;
}

static void collect(struct shards *shards)
{
    shards->results = calloc(count_results(shards) + 1, sizeof *shards->results);
    for (size_t s = 0; s < shards->count && shards->results; s++) {
        const cJSON *item;
        cJSON_ArrayForEach(item,
                           cJSON_GetObjectItemCaseSensitive(shards->items[s].found, "results"))
            shards->results[shards->num_results++] =
            (struct shard_result){.id = json_text(item, "id"),
                                  .code = (enum check_code)json_number(item, "code"),
                                  .ns = (int64_t)json_number(item, "ns"),
                                  .text = json_text(item, "text"),
                                  .trail = json_text(item, "trail"),
                                  .output = json_text(item, "output")};
    }
    if (shards->results)
        qsort(shards->results, shards->num_results, sizeof *shards->results, compare_ids);
}

/* How many are still at work; those that ended are reaped. */
static size_t count_working(struct shards *shards)
{
    size_t working = 0;
    for (size_t s = 0; s < shards->count; s++) {
        struct shard *shard = &shards->items[s];
        if (shard->process && waitpid(shard->process, NULL, WNOHANG) == shard->process)
            shard->process = 0;
        working += shard->process != 0;
    }
    return working;
}

void shards_wait(struct shards *shards, struct suite *suite)
{
    bool signalled = false;
    size_t working;
    while ((working = count_working(shards))) {
        char note[64];
        snprintf(note, sizeof note, "%zu of %zu processes at work", working, shards->count);
        progress_update(&suite->progress, 0, note);
        sandbox_pause(&suite->sandbox, 100);
        for (size_t s = 0; s < shards->count && suite->sandbox.interrupted && !signalled; s++)
            if (shards->items[s].process)
                kill(shards->items[s].process, SIGTERM);
        signalled = suite->sandbox.interrupted != 0;
    }
    for (size_t s = 0; s < shards->count; s++) {
        read_found(&shards->items[s]);
        surroundings_merge(
            suite, cJSON_GetObjectItemCaseSensitive(shards->items[s].found, "surroundings"));
    }
    collect(shards);
}

struct shard_result *shards_find(const struct shards *shards, const char *id)
{
    const struct shard_result wanted = {.id = id};
    return shards->num_results ? bsearch(&wanted, shards->results, shards->num_results,
                                         sizeof *shards->results, compare_ids)
                               : NULL;
}

void shards_finish(struct shards *shards)
{
    for (size_t s = 0; s < shards->count; s++) {
        cJSON_Delete(shards->items[s].found);
        if (shards->items[s].memory >= 0)
            close(shards->items[s].memory);
    }
    free(shards->items);
    free(shards->results);
}
