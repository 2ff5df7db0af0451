/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_find.c: from a family to a spec that is accepted.
 */
#include "host/check/cases/linear_find.h"

#include "host/check/cases/numerics.h"
#include "host/check/trail.h"
#include "host/base/error.h"
#include "host/base/mix.h"

#include <stdlib.h>
#include <string.h>

enum { TRIES = 80 };

bool linear_accepts(const struct check_subject *subject, const struct case_spec *spec, char *reason)
{
    const struct case_backend backend = numerics_backend(subject, NULL);
    struct spec_problem posed;
    attn_verdict verdict;
    linear_pose(&posed, spec, &subject->device->info);
    attn_status status = case_query(&backend, &posed.problem, &verdict, reason, LINEAR_TEXT);
    check_trail_live(subject->trail);
    return status == ATTN_OK && verdict.supported;
}

bool linear_find(const struct check_subject *subject, uint32_t family, uint64_t seed,
                 spec_change change, int32_t index, struct case_spec *spec, char *reason)
{
    for (uint64_t n = 0; n < TRIES; n++) {
        char last[LINEAR_TEXT];
        linear_spec_draw(spec, family, mix_absorb(seed, n));
        if (change)
            change(spec, index);
        if (linear_accepts(subject, spec, n == 0 ? reason : last))
            return true;
    }
    return false;
}

static uint32_t ask_families(const struct check_subject *subject)
{
    uint32_t set = 0;
    struct case_spec spec;
    char reason[LINEAR_TEXT];
    for (uint32_t family = 0; family < ATTN_LINEAR_COUNT; family++)
        if (linear_find(subject, family, 1, NULL, 0, &spec, reason))
            set |= 1u << family;
    return set;
}

uint32_t linear_families(const struct check_subject *subject)
{
    uint32_t *kept = subject->linear_families;
    uint32_t set = kept && *kept != LINEAR_UNASKED ? *kept : ask_families(subject);
    if (kept)
        *kept = set;
    return set;
}

int32_t linear_count_families(const struct check_subject *subject)
{
    int32_t count = __builtin_popcount(linear_families(subject));
    return count > 0 ? count : 1;
}

uint32_t linear_family_at(uint32_t set, int32_t index)
{
    for (uint32_t family = 0; family < ATTN_LINEAR_COUNT; family++)
        if (set >> family & 1 && index-- == 0)
            return family;
    return ATTN_LINEAR_COUNT;
}

bool linear_find_case(struct check_run *run, spec_change change, struct case_spec *spec)
{
    uint32_t set = linear_families(run->subject);
    char reason[LINEAR_TEXT] = "";
    int32_t count = __builtin_popcount(set);
    uint32_t family = count > 0 ? linear_family_at(set, run->index % count) : ATTN_LINEAR_GDN;
    if (linear_find(run->subject, family, run->seed, change, count > 0 ? run->index / count : 0,
                    spec, reason))
        return true;
    check_skip(run, "%s", reason);
    return false;
}

void linear_set_extend(struct case_spec *spec, const char *sequences)
{
    spec->mode = ATTN_MODE_EXTEND;
    spec->linear.snapshots = false;
    spec->linear.absent = 0;
    spec->linear.sparse = spec->linear.cuts = 0;
    spec->num_sequences = 0;
    while (*sequences) {
        struct case_sequence *sequence = &spec->sequences[spec->num_sequences++];
        char *end;
        *sequence = (struct case_sequence){.num_new = (int32_t)strtol(sequences, &end, 10)};
        for (; *end && *end != ' '; end++) {
            sequence->has_initial |= *end == 'i';
            sequence->in_place |= *end == 'p';
            sequence->dropped |= *end == 'd';
        }
        sequences = end + strspn(end, " ");
    }
}

void linear_set_mode(struct case_spec *spec, uint32_t mode)
{
    spec->mode = mode;
    if (mode == ATTN_MODE_MIXED)
        linear_spec_mix(spec);
    if (mode != ATTN_MODE_DECODE)
        return;
    spec->first_row = 0;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        spec->sequences[s].num_new = 1;
}

void linear_set_many(struct case_spec *spec, int32_t index)
{
    (void)index;
    linear_set_extend(spec, "5ip 67i 0i 1i 20 1");
}
