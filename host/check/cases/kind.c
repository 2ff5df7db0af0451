/* SPDX-License-Identifier: Apache-2.0
 *
 * kind.c: a case of any kind of layer, from the row of a check to its verdict.
 */
#include "host/check/cases/kind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

int32_t kind_count(const struct check *check, const struct check_subject *subject)
{
    if (check->cases)
        return check->cases->kind->count(subject, check->cases);
    return check->count ? check->count(subject) : -1;
}

void kind_close(struct kind_case *k)
{
    case_session_destroy(k->session);
    forward_case_destroy(k->c);
}

bool kind_declares(struct kind_case *k, uint32_t traits)
{
    const struct check_subject *subject = k->run->subject;
    const attn_options *options = k->at.options ? k->at.options : subject->options;
    attn_problem *problem = &k->c->posed.problem;
    for (int asked = 0; asked < 2; asked++) {
        attn_verdict verdict;
        problem->required_traits = asked ? traits : 0;
        if (numerics_query(subject, options, problem, &verdict) &&
            (verdict.traits & traits) == traits)
            return true;
    }
    check_skip(k->run, "the backend does not declare %s here",
               traits & ATTN_TRAIT_CUT_INVARIANT     ? "CUT_INVARIANT"
               : traits & ATTN_TRAIT_BATCH_INVARIANT ? "BATCH_INVARIANT"
                                                     : "DETERMINISTIC");
    return false;
}

bool kind_make(struct kind_case *k)
{
    k->c = numerics_case(k->run, &k->at.spec, NULL);
    return k->c;
}

void kind_run(struct kind_case *k)
{
    numerics_run(k->run, &k->at.spec, k->at.options);
}

struct case_session *kind_session(const struct kind_case *k, const struct check_subject *subject,
                                  const struct case_setup *setup)
{
    return numerics_session(k->run, subject, k->c, k->at.options, setup);
}

bool kind_judge(struct kind_case *k)
{
    return numerics_judge(k->run, k->session, k->c);
}

void kind_report(const struct kind_case *k, attn_status status, const char *text)
{
    numerics_report(k->run, &k->at.spec, status, text);
}

bool kind_good(const struct kind_case *k, attn_status status)
{
    return numerics_good(k->run, &k->at.spec, status);
}

void *kind_keep(const struct kind_case *k)
{
    void *copy = malloc(k->c->bytes);
    if (copy)
        memcpy(copy, k->c->actual, k->c->bytes);
    else
        kind_report(k, ATTN_OUT_OF_HOST_MEMORY, "no memory for the results of a call");
    return copy;
}

const struct relation by_itself = {.judge = kind_run};

void kind_run_row(struct check_run *run)
{
    struct kind_case k = {.run = run, .kind = run->check->cases->kind};
    if (k.kind->find(&k, run->check->cases))
        run->check->relation->judge(&k);
    kind_close(&k);
}

int32_t kind_variants(const struct kind_cases *cases)
{
    return cases->variants > 0 ? cases->variants : 1;
}

/* ---- Softmax and latent layers, sparse ones among them ---------------------------------------- */

static bool accepts_forward(struct kind_case *k)
{
    return grid_accepts_spec(k->at.grid, k->at.options, &k->at.spec, NULL, 0);
}

/* Compare the data that a forward writes: outputs, states, and caches from page 1 on. `where` gets
 * the first difference. */
static bool same_results(const struct forward_case *c, const char *first, char *where, size_t size)
{
    for (enum case_part_id p = 0; p < CASE_PARTS; p++) {
        const struct case_part *part = &c->parts[p];
        const bool is_cache = case_part_is(p, CASE_CACHE);
        if (!part->bytes || !(is_cache || case_part_is(p, CASE_OUTPUT | CASE_POOL)) ||
            c->shapes[p].shape[0] <= is_cache)
            continue;
        uint64_t at = (uint64_t)(case_vector(c, c->actual, p, is_cache, 0, 0) - c->actual);
        if (memcmp(first + at, c->actual + at, part->offset + part->bytes - at) == 0)
            continue;
        while (first[at] == c->actual[at])
            at++;
        snprintf(where, size, "%s, byte %llu: got 0x%02x, before 0x%02x", case_part_name(p),
                 (unsigned long long)(at - part->offset), (uint8_t)c->actual[at],
                 (uint8_t)first[at]);
        return false;
    }
    return true;
}

bool kind_left(struct kind_case *k, const void *first, const char *what)
{
    char where[200], text[700];
    if (same_results(k->c, first, where, sizeof where))
        return true;
    snprintf(text, sizeof text, "%s: %s", what, where);
    kind_report(k, ATTN_OK, text);
    return false;
}

/* If equal bits are promised, the oracle is not needed again. */
bool kind_same(struct kind_case *k, const void *first, const char *what)
{
    char text[700];
    attn_status status = session_spoil_scratch(k->session, check_error(k->run));
    if (status == ATTN_OK)
        status = case_session_try(k->session, k->c, NULL, NULL, check_error(k->run));
    k->session->num_runs++;
    if (status == ATTN_OK)
        status = session_fetch(k->session, k->c, check_error(k->run));
    if (status == ATTN_OK)
        status = session_check_memory(k->session, check_error(k->run));
    if (status == ATTN_OK)
        return kind_left(k, first, what);
    snprintf(text, sizeof text, "%s: %s", what, check_error_text(k->run));
    kind_report(k, status, text);
    return false;
}

uint32_t kind_operand(const struct kind_case *k, uint32_t role)
{
    const struct case_spec *spec = &k->c->spec;
    const uint64_t of_steps = ROLE(INDEX_Q) | ROLE(INDEX_K) | ROLE(INDEX_LOGITS) |
                              ROLE(SPARSE_INDICES) | ROLE(OUT); /* which others may do without */
    const uint64_t optional = ROLE(LSE) | ROLE(SPARSE_COUNT) | ROLE(GATE_Z) | ROLE(D_SKIP) |
                              ROLE(CONV_BIAS) | (case_has_indexer(spec) ? of_steps : 0);
    const uint64_t written = case_written_roles(spec, spec->flags & ATTN_FORWARD_SAVE_KV);
    struct case_view view;
    struct case_place place;
    session_place(k->session, k->c, false, &place);
    case_view_init(&view, k->c, &k->c->lengths, &place);
    if (!view.operands[role])
        return 0;
    return (optional >> role & 1 ? 0 : KIND_NEEDED) | (written >> role & 1 ? KIND_WRITTEN : 0) |
           (view.scales[role] ? KIND_SCALED : 0) | (role == ATTN_ROLE_INDEX_K ? KIND_SAVED : 0) |
           (role == ATTN_ROLE_INDEX_LOGITS ? KIND_KEYED : 0);
}

/* Equal except for the window, if windows are accepted, and the scale of scores. */
static bool forward_beside(struct kind_case *k, struct kind_beside *other)
{
    attn_verdict verdict;
    attn_layer_group *group = &other->posed.group;
    other->posed.layers[0] = (attn_layer){.struct_size = sizeof other->posed.layers[0],
                                          .layer_id = k->c->posed.layers[0].layer_id + 3};
    *group = k->c->posed.group;
    group->layers = other->posed.layers;
    group->window_left = group->window_left == 3 ? 4 : 3;
    group->sm_scale *= 2;
    other->problem = k->c->posed.problem;
    other->problem.group = group;
    if (group->sparse) {
        other->sparse = *group->sparse;
        other->sparse.top_k = (other->sparse.top_k + 1) / 2;
        group->sparse = &other->sparse;
    }
    for (int window = 1; window >= 0; window--) {
        if (!window) {
            group->window_left = k->c->posed.group.window_left;
            group->sparse = k->c->posed.group.sparse;
        }
        if (numerics_query(k->run->subject, k->at.options, &other->problem, &verdict))
            return true;
    }
    check_skip(k->run, "query refuses the same layers with another scale");
    return false;
}

static int32_t count_forward(const struct check_subject *subject, const struct kind_cases *cases)
{
    int32_t points = numerics_points(subject, cases->choices),
            least = cases->vary ? 1 : kind_variants(cases);
    if (cases->drawn && points > 1)
        return numerics_few(subject, cases->drawn);
    return points > 0 ? kind_variants(cases) * points : least;
}

void case_read_lengths(struct case_spec *spec, const char *lengths)
{
    int used;
    struct case_sequence s = {0};
    spec->num_sequences = 0;
    for (; sscanf(lengths, "%d+%d%n", &s.prefix_len, &s.num_new, &used) == 2; lengths += used)
        spec->sequences[spec->num_sequences++] = s;
}

void case_set_lengths(struct case_spec *spec, const char *lengths)
{
    case_read_lengths(spec, lengths);
    const int32_t count = spec->num_sequences;
    for (int32_t s = 0; s < count; s++) {
        struct case_sequence *sequence = &spec->sequences[s];
        if (spec->mode == ATTN_MODE_TARGET_VERIFY)
            sequence->num_new = 4;
        if (spec->mode == ATTN_MODE_MIXED && s > 0 && s == count - 1)
            sequence->num_new = 1;
        if (spec->attn_type == ATTN_TYPE_ENCODER_ONLY)
            sequence->prefix_len = 0;
        if (spec->attn_type == ATTN_TYPE_CROSS)
            sequence->num_new_keys = s % 2 ? 0 : 11;
        if (spec->partial && spec->latent.expanded) {
            sequence->chunk_end = sequence->prefix_len;
            sequence->num_new_keys = sequence->prefix_len;
        }
    }
}

/* With two heads, or one, as the backend has it. */
static void make_small(struct numerics_point *at)
{
    enum { SMALL_DIM = 16 };
    bool taken = false;
    for (int32_t q_heads = 2; q_heads > 0 && !taken; q_heads--) {
        struct case_spec small = at->spec;
        small.num_q_heads = q_heads;
        small.num_kv_heads = 1;
        if (small.latent.kv_lora_rank > 0) {
            small.latent = (struct case_latent){33, 7, 11, 5, small.latent.expanded};
            case_spec_set_form(&small, small.latent.expanded);
        } else {
            small.head_dim = small.v_head_dim = SMALL_DIM;
        }
        taken = grid_take(at->grid, at->options, &small, &at->spec);
    }
}

/* Too much for a driver that fills its allocations: more than 64 MiB. */
static bool is_vast(const struct case_spec *spec)
{
    int64_t slots = (int64_t)70000 * spec->page_size;
    int64_t bytes = slots * spec->num_kv_heads * (spec->head_dim + spec->v_head_dim) * 2;
    return spec->spread == SPREAD_BYTES || (spec->spread == SPREAD_PAGES && bytes > 64 << 20);
}

/* False: skipped, or failed. */
static bool vary(struct kind_case *k, const struct kind_cases *cases)
{
    struct case_spec *spec = &k->at.spec;
    if (cases->small)
        make_small(&k->at);
    cases->vary(spec, k->variant);
    const char *defect = case_spec_defect(spec);
    if (defect)
        check_fail(k->run, "the suite is wrong: %s of a case", defect);
    else if (k->run->subject->fake_device && is_vast(spec))
        check_skip(k->run, "the fake driver fills its memory: no pools of more than 64 MiB");
    else
        return numerics_accepts(&k->at, spec);
    return false;
}

/* Variants of a point follow each other. */
static bool find_forward(struct kind_case *k, const struct kind_cases *cases)
{
    int32_t index = k->run->index;
    int32_t drawn_from = cases->drawn ? numerics_points(k->run->subject, cases->choices) : 0;
    k->variant = index % kind_variants(cases);
    k->run->index = drawn_from > 0 ? index % drawn_from : index / kind_variants(cases);
    bool found = numerics_open(&k->at, k->run, cases->choices);
    k->run->index = index;
    return found && (!cases->vary || vary(k, cases));
}

const struct check_kind softmax_layers = {count_forward, find_forward, accepts_forward,
                                          forward_beside};
const struct check_kind latent_layers = {count_forward, find_forward, accepts_forward,
                                         forward_beside};
