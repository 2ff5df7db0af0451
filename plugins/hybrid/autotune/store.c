/* SPDX-License-Identifier: Apache-2.0
 *
 * store.c: decisions as a file that people can read.
 *
 *   line 1       "attnhost autotune decisions 1"
 *   each other   device, layer group, candidates, class, choice, times, with tabs between them
 *
 * A decision is taken if its device, group, class and candidates, with the files they come from,
 * are those at hand. Lines of other devices or groups belong to other runs and stay. */
#include "autotune.h"

#include "attn_plugin_util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char header[] = "attnhost autotune decisions 1";

enum { DEVICE, GROUP, CANDIDATES, CLASS, CHOICE, TIMES, NUM_FIELDS };

enum { MAX_STORE = 16 << 20 }; /* bytes */

/* ---- Keys ------------------------------------------------------------------------------------ */

static void candidates_text(const attn_instance *instance, char *text, size_t size)
{
    const tuning *own = instance->own;
    size_t length = 0;
    text[0] = '\0';
    for (uint32_t c = 0; c < instance->children.num_children && length < size; c++)
        length +=
            (size_t)snprintf(text + length, size - length, "%s%s", c ? "; " : "", own->versions[c]);
}

static tune_group *find_group(tuning *own, const char *text)
{
    for (uint32_t g = 0; g < own->num_groups; g++)
        if (strcmp(own->groups[g].text, text) == 0)
            return &own->groups[g];
    return NULL;
}

static tune_class *find_class(tune_group *group, const char *text)
{
    for (uint32_t i = 0; i < TUNE_CLASSES; i++) {
        char what[128];
        tune_class_text(i, what, sizeof what);
        if (strcmp(what, text) == 0)
            return &group->classes[i];
    }
    return NULL;
}

/* Cut a line at its tabs; 0 = it has another number of fields. */
static int cut(char *line, char *fields[NUM_FIELDS])
{
    int count = 0;
    for (char *at = line; at && count < NUM_FIELDS; count++) {
        fields[count] = at;
        at = strchr(at, '\t');
        if (at && count + 1 == NUM_FIELDS)
            return 0;
        if (at)
            *at++ = '\0';
    }
    return count == NUM_FIELDS;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* Take one decision; NULL, or why not. *ours = it speaks of this device and one of these groups. */
static const char *take(attn_instance *instance, char *fields[NUM_FIELDS], int *ours)
{
    tuning *own = instance->own;
    char candidates[4096];
    uint32_t choice = 0;
    tune_group *group = find_group(own, fields[GROUP]);
    *ours = strcmp(fields[DEVICE], own->device_text) == 0 && group;
    if (!*ours)
        return NULL;
    candidates_text(instance, candidates, sizeof candidates);
    if (strcmp(fields[CANDIDATES], candidates) != 0)
        return "the candidates, or the files they come from, have changed";
    tune_class *at = find_class(group, fields[CLASS]);
    while (choice < instance->children.num_children &&
           strcmp(instance->child[choice].name, fields[CHOICE]) != 0)
        choice++;
    if (!at)
        return "there is no such class";
    if (choice == instance->children.num_children)
        return "its choice is not a candidate";
    *at = (tune_class){.choice = (uint8_t)choice, .from = TUNE_STORED};
    return NULL;
}

static attn_status read_lines(attn_instance *instance, FILE *file, attn_error *error)
{
    const char *path = ((const tuning *)instance->own)->options.store;
    char *line = NULL, *fields[NUM_FIELDS];
    size_t size = 0;
    attn_status status = ATTN_OK;
    for (long number = 1; status == ATTN_OK && getline(&line, &size, file) >= 0; number++) {
        int ours;
        line[strcspn(line, "\n")] = '\0';
        const char *why = NULL;
        if (number == 1 && strcmp(line, header) != 0)
            status = attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                          "store = %s: line 1 is '%.40s'; accepted: a file that "
                                          "autotune wrote, or none",
                                          path, line);
        else if (number > 1)
            why = cut(line, fields) ? take(instance, fields, &ours) : "it is not a decision";
        if (why)
            tune_log(instance, ATTN_LOG_WARNING, "%s:%ld is left out: %s", path, number, why);
    }
    free(line);
    return status;
}

/* The store, if it is a regular file of a size that a store has: a device, a pipe or a link is not
 * ours. NULL and errno. */
static FILE *open_store(const char *path)
{
    struct stat info;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0)
        return NULL;
    FILE *file = NULL;
    if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode))
        errno = EINVAL;
    else if (info.st_size > MAX_STORE)
        errno = EFBIG;
    else
        file = fdopen(descriptor, "r");
    if (!file) {
        int why = errno;
        close(descriptor);
        errno = why;
    }
    return file;
}

static const char *store_defect(int why)
{
    return why == EINVAL  ? "it is not a regular file"
           : why == ELOOP ? "it is a symbolic link"
                          : strerror(why);
}

attn_status tune_store_read(attn_instance *instance, attn_error *error)
{
    const char *path = ((const tuning *)instance->own)->options.store;
    FILE *file = open_store(path);
    if (!file && errno == ENOENT) {
        tune_log(instance, ATTN_LOG_INFO, "%s does not exist yet", path);
        return ATTN_OK;
    }
    if (!file)
        return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                    "store = %s cannot be read: %s; accepted: a regular file of at "
                                    "most %d bytes, or a new name",
                                    path, store_defect(errno), MAX_STORE);
    attn_status status = read_lines(instance, file, error);
    if (status == ATTN_OK && ferror(file))
        status = attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                      "store = %s cannot be read: %s", path, strerror(errno));
    fclose(file);
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Groups that are alike are written once: the store knows them by their text. */
static int is_first(const tuning *own, uint32_t g)
{
    for (uint32_t before = 0; before < g; before++)
        if (strcmp(own->groups[before].text, own->groups[g].text) == 0)
            return 0;
    return 1;
}

static void write_ours(const attn_instance *instance, FILE *file)
{
    const tuning *own = instance->own;
    char candidates[4096], what[128], times[PICK_MAX_CHILDREN * 96];
    candidates_text(instance, candidates, sizeof candidates);
    for (uint32_t g = 0; g < own->num_groups; g++)
        for (uint32_t i = 0; i < TUNE_CLASSES && is_first(own, g); i++) {
            const tune_class *at = &own->groups[g].classes[i];
            if (at->from == TUNE_UNDECIDED)
                continue;
            tune_class_text(i, what, sizeof what);
            tune_times_text(instance, at, times, sizeof times);
            fprintf(file, "%s\t%s\t%s\t%s\t%s\t%s\n", own->device_text, own->groups[g].text,
                    candidates, what, instance->child[at->choice].name,
                    at->from == TUNE_MEASURED ? times : "stored");
        }
}

/* Lines of other devices and groups, as they are. */
static void copy_others(const attn_instance *instance, FILE *from, FILE *to)
{
    tuning *own = instance->own;
    char *line = NULL;
    size_t size = 0;
    for (long number = 1; getline(&line, &size, from) >= 0; number++) {
        char *copy = strdup(line), *fields[NUM_FIELDS];
        if (copy && number > 1 && cut(copy, fields) &&
            (strcmp(fields[DEVICE], own->device_text) != 0 || !find_group(own, fields[GROUP])))
            fputs(line, to);
        free(copy);
    }
    free(line);
}

/* A new file beside the store, which takes its place when it is whole. */
static FILE *open_new(const char *path)
{
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (!file && descriptor >= 0)
        close(descriptor);
    return file;
}

/* A file that is not a store, or could not be read completely, is not overwritten. */
void tune_store_write(attn_instance *instance)
{
    const tuning *own = instance->own;
    char path[sizeof own->options.store + 32];
    snprintf(path, sizeof path, "%s.%ld.new", own->options.store, (long)getpid());
    FILE *old = open_store(own->options.store);
    FILE *file = old || errno == ENOENT ? open_new(path) : NULL;
    int good = file != NULL;
    if (file) {
        fprintf(file, "%s\n", header);
        if (old)
            copy_others(instance, old, file);
        write_ours(instance, file);
        good = !ferror(file) && !(old && ferror(old));
        good = fclose(file) == 0 && good && rename(path, own->options.store) == 0;
    }
    int why = errno;
    if (old)
        fclose(old);
    if (good)
        return;
    tune_log(instance, ATTN_LOG_WARNING, "store = %s cannot be written: %s", own->options.store,
             store_defect(why));
    if (file)
        unlink(path);
}
