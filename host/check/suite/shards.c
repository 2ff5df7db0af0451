/* SPDX-License-Identifier: Apache-2.0
 *
 * shards.c: forking of shards, and merging of their results.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* memfd_create */
#endif
#include "host/check/suite/shards.h"

#include <fcntl.h>
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

static void write_all(int file, const char *text, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t count = write(file, text + done, length - done);
        if (count <= 0)
            return; /* what is cut cannot be read, and is run by the suite */
        done += (size_t)count;
    }
}

static void send_line(int memory, cJSON *object)
{
    char *text = object ? cJSON_PrintUnformatted(object) : NULL;
    size_t length = text ? strlen(text) : 0;
    if (text) {
        text[length] = '\n'; /* in the place of the 0 */
        write_all(memory, text, length + 1);
    }
    cJSON_free(text);
    cJSON_Delete(object);
}

/* The sender and its destination. */
struct sending {
    const struct suite *suite;
    int memory;
};

/* A result without a seed belongs to a check that has no cases here: the suite finds it out itself.
 * If the time for the whole run ends, the case that it cuts short has no result. */
static void send_result(void *ctx, const struct check_result *result)
{
    const struct sending *sending = ctx;
    if (result->seed != 0 && !sending->suite->late)
        send_line(sending->memory, result_object(result));
}

/* A separate process; it does not come back. */
static void be_shard(const struct check_params *params, const struct suite_shard *shard, int memory,
                     pid_t parent)
{
    struct check_params own = *params;
    struct check_report report;
    struct suite suite = {.shard = *shard};
    struct sending sending = {&suite, memory};
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    own.jobs = 1;
    check_report_init(&report, &own);
    report.added = send_result;
    report.added_ctx = &sending;
    suite_run_shard(&suite, &own, &report);
    cJSON *end = cJSON_CreateObject();
    cJSON_AddItemToObject(end, "surroundings", surroundings_object(&suite));
    send_line(memory, end);
    _exit(0);
}

/* ---- Around them ----------------------------------------------------------------------------- */

size_t shards_default(void)
{
    long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;
    return half < 1 ? 1 : half > MAX_DEFAULT ? MAX_DEFAULT : (size_t)half;
}

static void start_one(struct shard *shard, const struct check_params *params,
                      const struct suite_shard *which)
{
    const pid_t parent = getpid();
    shard->memory = memfd_create("attnhost-shard", MFD_CLOEXEC);
    shard->process = shard->memory < 0 ? 0 : fork();
    if (shard->process == 0 && shard->memory >= 0)
        be_shard(params, which, shard->memory, parent);
    if (shard->process < 0)
        shard->process = 0;
}

/* The last one holds the gate's other end until it ends. */
void shards_start(struct shards *shards, const struct check_params *params, size_t count)
{
    int gate[2] = {-1, -1};
    *shards = (struct shards){.count = count + 1};
    shards->items = calloc(shards->count, sizeof *shards->items);
    shards->count = shards->items && pipe2(gate, O_CLOEXEC) == 0 ? shards->count : 0;
    fflush(NULL); /* or it would be written twice */
    for (size_t s = shards->count; s-- > 0;) {
        const bool is_alone = s + 1 == shards->count;
        start_one(&shards->items[s], params,
                  &(struct suite_shard){
                      .index = s, .count = shards->count, .gate = is_alone ? -1 : gate[0]});
        if (is_alone)
            close(gate[1]);
    }
    if (gate[0] >= 0)
        close(gate[0]);
}

/* ---- What they find -------------------------------------------------------------------------- */

static void keep_line(struct shard *shard, cJSON *line)
{
    cJSON *surroundings = cJSON_DetachItemFromObjectCaseSensitive(line, "surroundings");
    if (surroundings) {
        cJSON_Delete(shard->surroundings);
        shard->surroundings = surroundings;
        cJSON_Delete(line);
        return;
    }
    if (shard->num_results == shard->room) {
        size_t room = 2 * shard->room + 64;
        struct shard_result *grown = realloc(shard->results, room * sizeof *grown);
        if (!grown) { /* the suite runs the case */
            cJSON_Delete(line);
            return;
        }
        shard->results = grown;
        shard->room = room;
    }
    shard->results[shard->num_results++] =
        (struct shard_result){.id = json_text(line, "id"),
                              .code = (enum check_code)json_number(line, "code"),
                              .ns = (int64_t)json_number(line, "ns"),
                              .text = json_text(line, "text"),
                              .trail = json_text(line, "trail"),
                              .output = json_text(line, "output"),
                              .line = line};
}

/* The lines that are whole by now. */
static void read_found(struct shard *shard)
{
    struct stat about;
    if (shard->memory < 0 || fstat(shard->memory, &about) != 0 ||
        (uint64_t)about.st_size <= shard->read)
        return;
    size_t size = (size_t)about.st_size;
    char *text = mmap(NULL, size, PROT_READ, MAP_PRIVATE, shard->memory, 0);
    if (text == MAP_FAILED)
        return;
    for (char *end; (end = memchr(text + shard->read, '\n', size - shard->read));
         shard->read = (uint64_t)(end + 1 - text)) {
        cJSON *line = cJSON_ParseWithLength(text + shard->read, (size_t)(end - text) - shard->read);
        if (line)
            keep_line(shard, line);
    }
    munmap(text, size);
}

/* How many are still at work; those that ended are reaped, and then read to the end. */
static size_t count_working(struct shards *shards)
{
    size_t working = 0;
    for (size_t s = 0; s < shards->count; s++) {
        struct shard *shard = &shards->items[s];
        if (shard->process && waitpid(shard->process, NULL, WNOHANG) == shard->process)
            shard->process = 0;
        working += shard->process != 0;
        read_found(shard);
    }
    return working;
}

/* Wait a moment. An interruption ends the suite; shards send their results so far. */
static void pause_for(struct shards *shards, struct suite *suite, size_t working)
{
    char note[64];
    snprintf(note, sizeof note, "%zu of %zu processes at work", working, shards->count);
    progress_update(&suite->progress, 0, note);
    sandbox_pause(&suite->sandbox, 20);
    for (size_t s = 0; s < shards->count && suite->sandbox.interrupted && !shards->is_signalled;
         s++)
        if (shards->items[s].process)
            kill(shards->items[s].process, SIGTERM);
    shards->is_signalled = suite->sandbox.interrupted != 0;
    suite->stopped |= shards->is_signalled;
}

void shards_wait_alone(struct shards *shards, struct suite *suite)
{
    while (shards->count > 0 && !suite->stopped) {
        size_t working = count_working(shards);
        if (!shards->items[shards->count - 1].process)
            return;
        pause_for(shards, suite, working);
    }
}

void shards_wait(struct shards *shards, struct suite *suite)
{
    size_t working;
    while ((working = count_working(shards)))
        pause_for(shards, suite, working);
    for (size_t s = 0; s < shards->count; s++)
        surroundings_merge(suite, shards->items[s].surroundings);
}

/* Mostly it is the next one of a shard: their orders are the suite's. */
static struct shard_result *find(struct shard *shard, const char *id)
{
    for (size_t r = shard->next; r < shard->num_results; r++) {
        struct shard_result *result = &shard->results[r];
        if (result->is_taken || strcmp(result->id, id) != 0)
            continue;
        result->is_taken = true;
        while (shard->next < shard->num_results && shard->results[shard->next].is_taken)
            shard->next++;
        return result;
    }
    return NULL;
}

struct shard_result *shards_take(struct shards *shards, struct suite *suite, const char *id)
{
    for (size_t working = 1;; working = count_working(shards)) {
        struct shard_result *found = NULL;
        for (size_t s = 0; s < shards->count && !found; s++)
            found = find(&shards->items[s], id);
        if (found || working == 0 || suite->stopped)
            return found;
        pause_for(shards, suite, working);
    }
}

struct shard_result *shards_take_any(struct shards *shards)
{
    for (size_t s = 0; s < shards->count; s++) {
        struct shard *shard = &shards->items[s];
        if (shard->next < shard->num_results)
            return find(shard, shard->results[shard->next].id);
    }
    return NULL;
}

void shards_finish(struct shards *shards)
{
    for (size_t s = 0; s < shards->count; s++) {
        struct shard *shard = &shards->items[s];
        for (size_t r = 0; r < shard->num_results; r++)
            cJSON_Delete(shard->results[r].line);
        free(shard->results);
        cJSON_Delete(shard->surroundings);
        if (shard->memory >= 0)
            close(shard->memory);
    }
    free(shards->items);
}
