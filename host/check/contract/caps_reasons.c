/* SPDX-License-Identifier: Apache-2.0
 *
 * caps_reasons.c: the reasons of a refusal: are they complete, is `accepted` well formed, and are
 * as many written as fit into the array? */
#include "host/check/contract/caps.h"

#include "host/base/dtype.h"
#include "host/base/bit_names.h"
#include "host/select/select.h"

#include <stdio.h>
#include <string.h>

enum { MAX_VALUES = 10 /* that are tried of a field's list */, MAX_ASSIGNMENTS = 10000 };

/* ---- CAPS-04: all reasons -------------------------------------------------------------------- */

/* A field that reasons name, and values that they accept. */
struct remedy {
    uint32_t field;
    int32_t count;
    struct {
        bool is_number;
        double number;
        char word[64];
    } values[MAX_VALUES];
};

static void add_number(struct remedy *remedy, double number)
{
    if (remedy->count == MAX_VALUES)
        return;
    remedy->values[remedy->count].is_number = true;
    remedy->values[remedy->count++].number = number;
}

static void add_item(struct remedy *remedy, const struct caps_item *item)
{
    if (!item->is_number && remedy->count < MAX_VALUES && strlen(item->word) < 64) {
        remedy->values[remedy->count].is_number = false;
        strcpy(remedy->values[remedy->count++].word, item->word);
    }
    if (!item->is_number)
        return;
    /* The largest first: the smallest may mean "not used". */
    double steps = (double)(int64_t)((item->to - item->from) / item->step);
    if (steps >= 1)
        add_number(remedy, item->from + steps * item->step);
    add_number(remedy, item->from);
    if (steps >= 2)
        add_number(remedy, item->from + (double)(int64_t)(steps / 2) * item->step);
}

/* A set that is listed: all of it first, since none asks for nothing, then none. False: a word is
 * no member. */
static bool add_set(struct remedy *remedy, uint32_t field, const char *text)
{
    struct caps_item item;
    uint32_t set = 0;
    while (caps_next_item(&text, &item) == 1)
        if (item.is_number || !bit_names_add(field, item.word, &set))
            return false;
    add_number(remedy, set);
    if (set)
        add_number(remedy, 0);
    if (set & (set - 1))
        add_number(remedy, set & (0u - set));
    return true;
}

/* One remedy for each field; 0 = there is a reason that cannot be tried. */
static int32_t find_remedies(const struct caps_answer *answer, struct remedy *remedies)
{
    int32_t count = 0;
    if (answer->verdict.num_reasons > CAPS_MAX_REASONS)
        return 0;
    for (uint32_t r = 0; r < caps_num_reasons(answer); r++) {
        const attn_reason *reason = &answer->reasons[r];
        const char *text = reason->accepted;
        struct caps_item item;
        int32_t n = 0;
        if (!caps_can_set(reason->field) || strcmp(text, "nothing") == 0)
            return 0;
        while (n < count && remedies[n].field != reason->field)
            n++;
        if (n == count)
            remedies[count++] = (struct remedy){.field = reason->field};
        if (bit_names_is_field(reason->field)) {
            if (!add_set(&remedies[n], reason->field, text))
                return 0;
            continue;
        }
        while (caps_next_item(&text, &item) == 1)
            add_item(&remedies[n], &item);
    }
    return count;
}

static bool apply(struct caps_problem *p, const struct remedy *remedy, int32_t value)
{
    return remedy->values[value].is_number
               ? caps_set_number(p, remedy->field, remedy->values[value].number)
               : caps_set_word(p, remedy->field, remedy->values[value].word);
}

/* Value `chosen[n]` of each remedy but `without`. False: one cannot be set. */
static bool apply_all(const struct caps_problem *p, const struct remedy *remedies, int32_t count,
                      const int32_t *chosen, int32_t without, struct caps_problem *changed)
{
    caps_problem_copy(changed, p);
    for (int32_t n = 0; n < count; n++)
        if (n != without && !apply(changed, &remedies[n], chosen[n]))
            return false;
    return true;
}

/* Count in the digits that the numbers of values are. */
static bool next_choice(const struct remedy *remedies, int32_t count, int32_t *chosen)
{
    for (int32_t n = 0; n < count; n++) {
        if (++chosen[n] < remedies[n].count)
            return true;
        chosen[n] = 0;
    }
    return false;
}

/* Values with which the answer is yes. *tried = any could be asked about and made sense. */
static bool find_cure(const struct check_subject *subject, const struct caps_problem *p,
                      const struct remedy *remedies, int32_t count, int32_t *chosen, bool *tried)
{
    *tried = false;
    memset(chosen, 0, (size_t)count * sizeof *chosen);
    for (int32_t n = 0; n < count; n++)
        if (remedies[n].count == 0)
            return false;
    for (int32_t n = 0; n < MAX_ASSIGNMENTS; n++) {
        struct caps_problem changed;
        struct caps_answer answer;
        if (apply_all(p, remedies, count, chosen, -1, &changed)) {
            caps_ask(subject, &changed.problem, &answer);
            *tried = *tried || answer.status == ATTN_OK;
            if (answer.status == ATTN_OK && answer.verdict.supported)
                return true;
        }
        if (!next_choice(remedies, count, chosen))
            break;
    }
    return false;
}

static void list_reasons(const struct caps_answer *answer, char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (uint32_t r = 0; r < caps_num_reasons(answer) && length < size; r++) {
        char reason[300];
        select_reason_text(&answer->reasons[r], reason, sizeof reason);
        int count = snprintf(text + length, size - length, "%s%s", r ? "; " : "", reason);
        length += count > 0 ? (size_t)count : 0;
    }
}

bool caps_look_reasons(struct caps_visit *visit, const struct caps_problem *p,
                       const struct caps_answer *answer)
{
    const struct check_subject *subject = visit->run->subject;
    struct remedy remedies[CAPS_MAX_REASONS] = {0};
    int32_t chosen[CAPS_MAX_REASONS], count = find_remedies(answer, remedies);
    struct caps_problem changed;
    char reasons[500];
    bool tried;
    if (answer->status != ATTN_OK || answer->verdict.supported)
        return true;
    list_reasons(answer, reasons, sizeof reasons);
    if (answer->verdict.num_reasons == 0)
        return caps_tell(visit, p, "query refuses without a reason");
    if (count == 0)
        return true;
    if (!find_cure(subject, p, remedies, count, chosen, &tried))
        return !tried ||
               caps_tell(visit, p,
                         "query refuses even if every named field has an accepted value: %s",
                         reasons);
    for (int32_t n = 0; n < count; n++)
        if (apply_all(p, remedies, count, chosen, n, &changed) && caps_accepts(subject, &changed))
            return caps_tell(visit, p, "the field of reason %d is named, but need not change: %s",
                             n + 1, reasons);
    return true;
}

/* How many reasons of an answer name the field. */
static int32_t times_named(const struct caps_answer *answer, uint32_t field)
{
    int32_t times = 0;
    for (uint32_t r = 0; r < caps_num_reasons(answer); r++)
        times += answer->reasons[r].field == field;
    return times;
}

/* A value that a reason lists as accepted is not refused for the same field again. */
bool caps_look_listed(struct caps_visit *visit, const struct caps_problem *p,
                      const struct caps_answer *answer)
{
    const struct check_subject *subject = visit->run->subject;
    struct remedy remedies[CAPS_MAX_REASONS] = {0};
    int32_t count = answer->status == ATTN_OK ? find_remedies(answer, remedies) : 0;
    for (int32_t n = 0; n < count; n++)
        for (int32_t value = 0; value < remedies[n].count; value++) {
            struct caps_problem changed;
            struct caps_answer again;
            caps_problem_copy(&changed, p);
            if (times_named(answer, remedies[n].field) > 1 || !apply(&changed, &remedies[n], value))
                continue;
            caps_ask(subject, &changed.problem, &again);
            if (again.status != ATTN_OK || times_named(&again, remedies[n].field) == 0)
                continue;
            char reasons[500];
            list_reasons(&again, reasons, sizeof reasons);
            return caps_tell(visit, &changed,
                             "a value that a reason accepts is refused for the same field: %s",
                             reasons);
        }
    return true;
}

/* ---- CAPS-06: the language of reasons -------------------------------------------------------- */

/* A data type's one name. */
static bool is_dtype_name(const char *word)
{
    attn_dtype dtype;
    return strcmp(word, "absent") == 0 || strcmp(word, "nothing") == 0 ||
           (dtype_parse(word, &dtype) == 0 && strcmp(dtype_name(dtype), word) == 0);
}

bool caps_look_language(struct caps_visit *visit, const struct caps_problem *p,
                        const struct caps_answer *answer)
{
    for (uint32_t r = 0; r < caps_num_reasons(answer); r++) {
        const attn_reason *reason = &answer->reasons[r];
        const char *text = reason->accepted;
        char reason_text[400];
        struct caps_item item;
        uint32_t set = 0;
        int more, bad_dtype = 0, bad_set = 0;
        while ((more = caps_next_item(&text, &item)) == 1) {
            bad_dtype |=
                caps_is_dtype_field(reason->field) && (item.is_number || !is_dtype_name(item.word));
            bad_set |= bit_names_is_field(reason->field) &&
                       (item.is_number || !bit_names_add(reason->field, item.word, &set));
        }
        bool known = reason->field > 0 && reason->field < ATTN_FIELD_COUNT && reason->code > 0 &&
                     reason->code < ATTN_REASON_COUNT;
        if (more == 0 && !bad_dtype && !bad_set && known && reason->accepted[0])
            continue;
        select_reason_text(reason, reason_text, sizeof reason_text);
        return caps_tell(visit, p, "%s: \"%s\"",
                         !known    ? "a reason has a code or field that does not exist"
                         : bad_set ? "a set is not given as the names of its members"
                         : bad_dtype
                             ? "a data type is not named f32, f16, bf16, fp8_e4m3 or fp8_e5m2"
                             : "`accepted` is not a list of numbers, ranges and words",
                         reason_text);
    }
    return true;
}

/* ---- CAPS-07: as many reasons as there is room ----------------------------------------------- */

/* Reasons with members of a later version, and the bytes after them. */
struct wide_reason {
    attn_reason reason;
    unsigned char more[24];
};
enum { UNTOUCHED = 0x6b };

static bool is_untouched(const void *from, size_t size)
{
    const unsigned char *bytes = from;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != UNTOUCHED)
            return false;
    return true;
}

static bool check_room(struct caps_visit *visit, const struct caps_problem *p,
                       const struct caps_answer *answer, uint32_t capacity)
{
    struct wide_reason reasons[CAPS_MAX_REASONS];
    const struct check_subject *subject = visit->run->subject;
    memset(reasons, UNTOUCHED, sizeof reasons);
    for (int r = 0; r < CAPS_MAX_REASONS; r++)
        reasons[r].reason.struct_size = sizeof reasons[r];
    attn_verdict verdict = {.struct_size = sizeof verdict,
                            .reasons_capacity = capacity,
                            .reasons = capacity ? &reasons[0].reason : NULL};
    subject->type->query(subject->type, subject->options, subject->services, &p->problem, &verdict,
                         NULL);
    if (verdict.num_reasons != answer->verdict.num_reasons)
        return caps_tell(
            visit, p, "query counts %u reasons with room for %u, but %u with room for %d",
            verdict.num_reasons, capacity, answer->verdict.num_reasons, CAPS_MAX_REASONS);
    for (uint32_t r = 0; r < CAPS_MAX_REASONS; r++) {
        bool written = r < capacity && r < verdict.num_reasons;
        const unsigned char *body = (const unsigned char *)&reasons[r];
        if (reasons[r].reason.struct_size != sizeof reasons[r] ||
            !is_untouched(reasons[r].more, sizeof reasons[r].more) ||
            (!written && !is_untouched(body + 4, sizeof(attn_reason) - 4)))
            return caps_tell(
                visit, p,
                "with room for %u of %u reasons, query writes beyond the array, at reason %u",
                capacity, verdict.num_reasons, r);
        if (written && !caps_same_reason(&reasons[r].reason, &answer->reasons[r]))
            return caps_tell(visit, p,
                             "with room for %u of %u reasons in larger elements, reason %u differs",
                             capacity, verdict.num_reasons, r);
    }
    return true;
}

/* A verdict of a version that had no more than the reasons. */
static bool check_short(struct caps_visit *visit, const struct caps_problem *p,
                        const struct caps_answer *answer)
{
    const struct check_subject *subject = visit->run->subject;
    attn_verdict verdict;
    const size_t size = offsetof(attn_verdict, graph_level);
    memset(&verdict, UNTOUCHED, sizeof verdict);
    verdict.struct_size = (uint32_t)size;
    verdict.reasons_capacity = 0;
    verdict.reasons = NULL;
    subject->type->query(subject->type, subject->options, subject->services, &p->problem, &verdict,
                         NULL);
    const unsigned char *body = (const unsigned char *)&verdict;
    if (verdict.supported == answer->verdict.supported && verdict.struct_size == size &&
        verdict.num_reasons == answer->verdict.num_reasons &&
        is_untouched(body + size, sizeof verdict - size))
        return true;
    return caps_tell(
        visit, p, "a verdict that ends before graph_level differs, or is written beyond its end");
}

bool caps_look_capacity(struct caps_visit *visit, const struct caps_problem *p,
                        const struct caps_answer *answer)
{
    if (answer->status != ATTN_OK || answer->verdict.num_reasons > CAPS_MAX_REASONS)
        return true;
    for (uint32_t room = 0; room <= answer->verdict.num_reasons + 1 && room < CAPS_MAX_REASONS;
         room++)
        if (!check_room(visit, p, answer, room))
            return false;
    return check_short(visit, p, answer);
}
