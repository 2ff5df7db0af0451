/* SPDX-License-Identifier: Apache-2.0
 *
 * answers.c: a hash table from problems to query's answers.
 */
#include "host/check/cases/answers.h"

#include "host/base/mix.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct answer {
    struct question {
        struct spec_problem posed;   /* without pointers into itself, and without the device */
        const attn_options *options; /* NULL = without values */
    } question;
    attn_verdict verdict;
    uint64_t hash; /* 0 = the slot is free */
};

enum { FIRST_ROOM = 1024 };

/* Compared as bytes: padding that differs costs one more question. */
static void set_question(struct question *question, const struct spec_problem *posed,
                         const attn_options *options)
{
    memset(question, 0, sizeof *question);
    memcpy(&question->posed, posed, sizeof *posed);
    question->posed.group.layers = NULL;
    question->posed.group.mla = NULL;
    question->posed.group.sparse = NULL;
    question->posed.problem.device = NULL;
    question->posed.problem.group = NULL;
    question->posed.problem.bounds = NULL;
    question->options = options && options->num_values ? options : NULL;
}

static uint64_t hash_of(const struct question *question)
{
    const unsigned char *bytes = (const unsigned char *)question;
    uint64_t hash = 0, word = 0;
    for (size_t n = 0; n < sizeof *question; n += sizeof word) {
        size_t left = sizeof *question - n;
        memcpy(&word, bytes + n, left < sizeof word ? left : sizeof word);
        hash = mix_absorb(hash, word);
    }
    return hash | 1;
}

/* Where the question is, or would be. */
static struct answer *find_slot(const struct answers *answers, const struct question *question,
                                uint64_t hash)
{
    size_t at = (size_t)hash & (answers->room - 1);
    for (;; at = (at + 1) & (answers->room - 1)) {
        struct answer *slot = &answers->slots[at];
        if (slot->hash == 0 ||
            (slot->hash == hash && memcmp(&slot->question, question, sizeof *question) == 0))
            return slot;
    }
}

const attn_verdict *answers_find(const struct answers *answers, const struct spec_problem *posed,
                                 const attn_options *options)
{
    struct question question;
    if (!answers->slots)
        return NULL;
    set_question(&question, posed, options);
    const struct answer *slot = find_slot(answers, &question, hash_of(&question));
    return slot->hash ? &slot->verdict : NULL;
}

/* Half of the slots stay free. */
static bool make_room(struct answers *answers)
{
    struct answers larger = {.room = answers->room ? 2 * answers->room : FIRST_ROOM,
                             .count = answers->count};
    if (2 * answers->count < answers->room)
        return true;
    larger.slots = calloc(larger.room, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (size_t n = 0; n < answers->room; n++) {
        const struct answer *slot = &answers->slots[n];
        if (slot->hash)
            *find_slot(&larger, &slot->question, slot->hash) = *slot;
    }
    free(answers->slots);
    *answers = larger;
    return true;
}

void answers_keep(struct answers *answers, const struct spec_problem *posed,
                  const attn_options *options, const attn_verdict *verdict)
{
    struct question question;
    if (!make_room(answers))
        return;
    set_question(&question, posed, options);
    uint64_t hash = hash_of(&question);
    struct answer *slot = find_slot(answers, &question, hash);
    answers->count += slot->hash == 0;
    slot->question = question;
    slot->verdict = *verdict;
    slot->verdict.reasons = NULL;
    slot->hash = hash;
}

void answers_finish(struct answers *answers)
{
    free(answers->slots);
    *answers = (struct answers){.slots = NULL};
}
