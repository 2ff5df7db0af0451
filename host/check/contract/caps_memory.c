/* SPDX-License-Identifier: Apache-2.0
 *
 * caps_memory.c: does metadata need as little as the verdict has said? Of random problems of each
 * kind of layer that query accepts, in all forms and modes together: a verdict speaks of the whole
 * problem, and so it has to add up all that an instance keeps for it.
 */
#include "host/check/cases/caps_visit.h"

#include <stdio.h>

enum { MEASURED = 4 }; /* one in so many of those that are accepted */

static bool are_known(const attn_bounds *bounds)
{
    return bounds->max_seqs > 0 && bounds->max_tokens > 0 && bounds->max_q_len > 0 &&
           bounds->max_kv_len > 0;
}

static uint64_t bytes_of_space(const attn_memory_size *size, uint32_t space)
{
    uint64_t bytes = 0;
    for (uint32_t use = 0; use < ATTN_MEMORY_COUNT; use++)
        bytes += size->size[ATTN_REGION(space, use)];
    return bytes;
}

/* "" or what is needed beyond the verdict, where 0 says nothing. */
static void compare(const attn_verdict *verdict, const attn_memory_size *size, char *what,
                    size_t room)
{
    const struct {
        const char *name;
        uint64_t most, needed;
    } spaces[] = {{"device_bytes", verdict->device_bytes, bytes_of_space(size, ATTN_SPACE_DEVICE)},
                  {"pinned_bytes", verdict->pinned_bytes, bytes_of_space(size, ATTN_SPACE_PINNED)},
                  {"host_bytes", verdict->host_bytes, bytes_of_space(size, ATTN_SPACE_HOST)}};
    what[0] = '\0';
    for (size_t s = 0; s < sizeof spaces / sizeof spaces[0] && !what[0]; s++)
        if (spaces[s].most > 0 && spaces[s].needed > spaces[s].most)
            snprintf(what, room, "metadata_size asks for %llu bytes: the verdict's %s are %llu",
                     (unsigned long long)spaces[s].needed, spaces[s].name,
                     (unsigned long long)spaces[s].most);
}

static bool look_promised(struct caps_visit *visit, const struct caps_problem *p,
                          const struct caps_answer *answer)
{
    const struct check_subject *subject = visit->run->subject;
    attn_memory_size size = {.struct_size = sizeof size};
    attn_instance *instance = NULL;
    char what[200] = "";
    if (answer->status != ATTN_OK || !answer->verdict.supported || p->elsewhere ||
        !are_known(&p->bounds) || visit->accepted % MEASURED != 0)
        return true;
    /* What else may be wrong with these two calls is for other checks. */
    if (subject->type->create(subject->type, &p->problem, 1, subject->options, subject->services,
                              &instance, NULL) != ATTN_OK)
        return true;
    if (subject->type->ops->metadata_size(instance, ATTN_METADATA_EAGER, &p->bounds, &size, NULL) ==
        ATTN_OK)
        compare(&answer->verdict, &size, what, sizeof what);
    subject->type->ops->destroy(instance);
    return !what[0] || caps_tell(visit, p, "%s", what);
}

CHECK_COUNT(mla, caps_count_kind_cases(subject, ATTN_KIND_MLA))
CHECK_COUNT(linear, caps_count_kind_cases(subject, ATTN_KIND_LINEAR))
CHECK_RUN(promised, caps_visit_problems(run, look_promised))
CHECK_RUN(mla_promised, caps_visit_kind(run, ATTN_KIND_MLA, look_promised))
CHECK_RUN(linear_promised, caps_visit_kind(run, ATTN_KIND_LINEAR, look_promised))

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_caps_memory[] = {
    CHECK_ROW("WORK-02", promised, caps_count_cases, 0,
              "metadata needs no more memory than the verdict says"),
    CHECK_ROW("WORK-02", mla_promised, count_mla, 0,
              "metadata of latent layers needs no more memory than the verdict says"),
    CHECK_ROW("WORK-02", linear_promised, count_linear, 0,
              "metadata of linear layers needs no more memory than the verdict says"),
    {.rule = NULL},
};
