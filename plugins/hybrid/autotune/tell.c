/* SPDX-License-Identifier: Apache-2.0
 *
 * tell.c: results for people: a line for each class with the times of all candidates, and a line
 * for each dropped candidate.
 *
 *   layers 0-31, decode, 1 sequence, 1-512 keys: fast (measured, slow 20.1 us, fast 4.0 us)
 *   wrong is dropped: layers 0-31, decode, 1 sequence, 1-512 keys: its output ...
 */
#include "autotune.h"

#include "attn_plugin_util.h"

#include <stdarg.h>
#include <stdio.h>

/* Text that is written, or only measured where there is no room. */
struct sink {
    char *text;
    size_t size, length;
};

static void put(struct sink *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct sink *to, const char *format, ...)
{
    size_t left = to->size > to->length ? to->size - to->length : 0;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(left ? to->text + to->length : NULL, left, format, args);
    va_end(args);
    to->length += length > 0 ? (size_t)length : 0;
}

size_t tune_times_text(const attn_instance *instance, const tune_class *at, char *text, size_t size)
{
    struct sink to = {text, size, 0};
    put(&to, "%s", "");
    for (uint32_t c = 0; c < instance->children.num_children; c++)
        if (at->us[c] > 0)
            put(&to, "%s%s %.1f us", to.length ? ", " : "", instance->child[c].name,
                (double)at->us[c]);
    return to.length;
}

static void put_class(struct sink *to, const attn_instance *instance, const tune_group *group,
                      uint32_t index)
{
    static const char *const from[] = {"not measured", "stored", "measured"};
    const tune_class *at = &group->classes[index];
    char what[128], times[PICK_MAX_CHILDREN * 96];
    uint32_t choice = at->from == TUNE_UNDECIDED ? tune_first_left(instance->own) : at->choice;
    tune_class_text(index, what, sizeof what);
    size_t length = tune_times_text(instance, at, times, sizeof times);
    put(to, "%slayers %s, %s: %s (%s%s%s)", to->length ? "\n" : "", group->layers, what,
        instance->child[choice].name, from[at->from], length ? ", " : "", times);
}

static void put_all(struct sink *to, const attn_instance *instance)
{
    const tuning *own = instance->own;
    for (uint32_t i = 0; i < own->num_groups * TUNE_CLASSES; i++) {
        const tune_group *group = &own->groups[i / TUNE_CLASSES];
        int32_t seqs, keys;
        if (tune_class_exists(group, i % TUNE_CLASSES, &seqs, &keys))
            put_class(to, instance, group, i % TUNE_CLASSES);
    }
    for (uint32_t c = 0; c < instance->children.num_children; c++)
        if (own->dropped >> c & 1u)
            put(to, "%s%s is dropped: %s", to->length ? "\n" : "", instance->child[c].name,
                own->why[c]);
}

attn_status tune_tell(attn_instance *instance, attn_error *error)
{
    tuning *own = instance->own;
    const attn_services *services = instance->children.services;
    struct sink measured = {NULL, 0, 0};
    put_all(&measured, instance);
    struct sink to = {.size = measured.length + 1};
    to.text = services->allocate(services->ctx, ATTN_SPACE_HOST, to.size, 1);
    if (!to.text)
        return attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%zu bytes", to.size);
    put(&to, "%s", "");
    put_all(&to, instance);
    services->release(services->ctx, ATTN_SPACE_HOST, own->report);
    own->report = to.text;
    return ATTN_OK;
}
