/* SPDX-License-Identifier: Apache-2.0
 *
 * rig.c: batches, each of as many cases as there are layers.
 */
#include "host/check/cases/rig.h"

#include <string.h>

/* ---- Batches --------------------------------------------------------------------------------- */

static int32_t below(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Of linear layers: states of every other sequence are updated in place. Those that decode come last. */
static void draw_sequences(struct case_spec *spec, uint32_t mode, struct draw *draw)
{
    int32_t count = mode == ATTN_MODE_EXTEND ? 2 + draw_below(draw, 2) : RIG_SEQS, row = 0;
    int32_t decodes = mode == ATTN_MODE_DECODE ? count : mode == ATTN_MODE_MIXED ? 2 : 0;
    spec->mode = mode;
    spec->num_sequences = count;
    spec->linear.decodes = decodes;
    spec->decode_q_len = 1;
    for (int32_t s = 0; s < count; s++) {
        int32_t most = below(RIG_TOKENS - row - (count - s - 1), RIG_Q_LEN);
        int32_t queries = s >= count - decodes ? 1 : 1 + draw_below(draw, most);
        int32_t prefix =
            s == 0 ? 5 + draw_below(draw, 20) : draw_below(draw, RIG_KV_LEN - queries + 1);
        spec->sequences[s] = (struct case_sequence){
            .prefix_len = prefix, .num_new = queries, .has_initial = true, .in_place = s % 2};
        row += queries;
    }
}

/* One that draws none of the forms that are free to an engine: layers of a batch agree on them. */
static uint64_t plain_seed(uint64_t seed)
{
    while (case_coin(seed, DRAW_NEW_ROWS) || case_coin(seed, DRAW_LENS) ||
           case_coin(seed, DRAW_MASK) || case_coin(seed, DRAW_CHOSEN))
        seed = mix_word(seed + MIX_INCREMENT);
    return seed;
}

/* Layers of one group have the same pages, and operands of their own. */
static attn_status make_layer(struct rig *rig, struct rig_batch *b, struct case_spec *spec, int l,
                              uint64_t seed)
{
    const int group = l == RIG_LAYERS - 1;
    attn_error *error = &rig->run->error.base;
    spec->linear.layer = l - group;
    spec->linear.state_group = group;
    uint64_t own = spec->kind == ATTN_KIND_LINEAR ? mix_absorb(seed, (uint64_t)group)
                                                  : plain_seed(mix_absorb(seed, (uint64_t)l));
    attn_status status = forward_case_create_seeded(spec, own, mix_absorb(seed, (uint64_t)group),
                                                    rig->device, &b->cases[l], error);
    if (status != ATTN_OK)
        return status;
    struct forward_case *c = b->cases[l];
    c->posed.group.kv_group = 0; /* of its own view */
    case_bring_plan(c, c->image);
    return device_copy(rig->device, c->memory, c->image, c->bytes, rig->stream, error);
}

static void view_layer(const struct rig *rig, const struct forward_case *c, struct case_view *view)
{
    const struct case_place place = {.arena = c->memory,
                                     .planning = c->planning,
                                     .host_arrays = ATTN_HOST_ALL,
                                     .device_type = rig->device->type,
                                     .device_id = rig->device->id,
                                     .index_forms = rig->index_forms};
    case_view_init(view, c, &c->lengths, &place);
}

/* The batch, with the forms that an instance asks for. */
static void view_batch(const struct rig *rig, struct rig_batch *b)
{
    for (int g = 0; g < RIG_GROUPS; g++) {
        struct case_view view;
        view_layer(rig, b->cases[g == 0 ? 0 : RIG_LAYERS - 1], &view);
        if (g == 0) {
            b->batch = view.batch;
            memcpy(b->states, view.states, sizeof b->states);
        }
        b->kv[g] = view.kv_groups[0];
        b->states[g] = view.states[g];
    }
    b->batch.kv_groups = b->batch.num_kv_groups > 0 ? b->kv : NULL;
    b->batch.num_kv_groups = b->batch.kv_groups ? RIG_GROUPS : 0;
    b->batch.state_groups = b->batch.state_groups ? b->states : NULL;
    b->batch.sparse = b->batch.sparse ? &b->layers[0].sparse : NULL;
}

static attn_status make_batches(struct rig *rig, uint64_t seed)
{
    static const uint32_t modes[RIG_BATCHES] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE,
                                                ATTN_MODE_MIXED};
    attn_status status = ATTN_OK;
    for (int m = 0; m < RIG_BATCHES && status == ATTN_OK; m++) {
        int number = rig->num_batches;
        struct rig_batch *b = &rig->batches[number];
        struct case_spec spec = rig->question.spec;
        struct draw draw = {.seed = mix_absorb(seed, modes[m])};
        if (!(rig->question.bounds.modes & ATTN_MODE_BIT(modes[m])))
            continue;
        rig->num_batches++;
        draw_sequences(&spec, modes[m], &draw);
        for (int l = 0; l < RIG_LAYERS && status == ATTN_OK; l++) {
            status = make_layer(rig, b, &spec, l, draw.seed);
            if (status == ATTN_OK)
                view_layer(rig, b->cases[l], &b->layers[l]);
            rig->given_args[number][l] = &b->layers[l].args;
        }
        if (status == ATTN_OK)
            view_batch(rig, b);
        rig->given_batches[number] = &b->batch;
    }
    return status == ATTN_OK ? device_synchronize(rig->device, rig->stream, check_error(rig->run))
                             : status;
}

void rig_spoil_batch(struct rig *rig, int batch)
{
    struct rig_batch *b = &rig->batches[batch];
    memset(&b->batch, 0x7F, sizeof b->batch);
    memset(b->kv, 0x7F, sizeof b->kv);
    memset(b->states, 0x7F, sizeof b->states);
    for (int l = 0; l < RIG_LAYERS; l++)
        case_forget_plan(b->cases[l]);
}

void rig_restore_batch(struct rig *rig, int batch)
{
    struct rig_batch *b = &rig->batches[batch];
    for (int l = 0; l < RIG_LAYERS; l++)
        case_bring_plan(b->cases[l], b->cases[l]->image);
    view_batch(rig, b);
}

const char *rig_batch_name(const struct rig *rig, int batch)
{
    return strchr(rig_a_batch(rig, batch), ' ') + 1;
}

const char *rig_a_batch(const struct rig *rig, int batch)
{
    uint32_t mode = rig->batches[batch].cases[0]->spec.mode;
    return mode == ATTN_MODE_EXTEND   ? "an extend"
           : mode == ATTN_MODE_DECODE ? "a decode"
                                      : "a mixed";
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void set_given(struct rig *rig)
{
    const struct check_subject *subject = rig->run->subject;
    rig->type = subject->type;
    rig->options = subject->options;
    rig->services = subject->services;
    rig->problems = rig->question.problems;
    rig->bounds = &rig->question.bounds;
    rig->given_error = &rig->run->error.base;
}

/* Cases with seeds of their own go through the kinds that the subject serves. */
static int seeds_of_kind(const struct check_subject *subject)
{
    return subject->exhaustive ? 50 : 4;
}

static int rank_of(const struct check_run *run)
{
    return run->check->count == rig_count_seeds ? run->index / seeds_of_kind(run->subject) : 0;
}

static bool rig_open_with(struct rig *rig, struct check_run *run, uint64_t seed,
                          struct compose_node *child)
{
    char why[512];
    const struct check_subject *subject = run->subject;
    memset(rig, 0, sizeof *rig);
    rig->run = run;
    rig->device = subject->device;
    rig->ops = subject->type->ops;
    set_given(rig);
    if (!(child && rig_find_for(&rig->question, subject, rank_of(run), child, &rig->verdict, why,
                                sizeof why)) &&
        !rig_find_for(&rig->question, subject, rank_of(run), NULL, &rig->verdict, why,
                      sizeof why)) {
        check_skip(run, "query accepts no plain problem on this device: %s", why);
        return false;
    }
    attn_status status = device_stream_create(rig->device, &rig->stream, check_error(rig->run));
    if (status == ATTN_OK)
        status = make_batches(rig, seed);
    if (status == ATTN_OK)
        return true;
    check_fail(run, "making operands: %s", check_error_text(rig->run));
    rig_close(rig);
    return false;
}

bool rig_open(struct rig *rig, struct check_run *run, uint64_t seed)
{
    return rig_open_with(rig, run, seed, NULL);
}

bool rig_open_for_child(struct rig *rig, struct check_run *run, uint64_t seed, uint32_t child)
{
    const struct compose_node *node = run->subject->node;
    return rig_open_with(rig, run, seed, child < node->num_children ? node->children[child] : NULL);
}

void rig_close(struct rig *rig)
{
    device_stream_destroy(rig->device, rig->stream);
    for (int b = 0; b < rig->num_batches; b++)
        for (int l = 0; l < RIG_LAYERS; l++)
            forward_case_destroy(rig->batches[b].cases[l]);
}

int32_t rig_count_seeds(const struct check_subject *subject)
{
    return seeds_of_kind(subject) * rig_count_kinds(subject);
}

/* All but the number of keys that are chosen. */
int rig_needed_roles(const struct rig *rig, uint32_t roles[ATTN_ROLE_COUNT])
{
    int count = 0;
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (rig->batches[0].layers[0].operands[role] && role != ATTN_ROLE_SPARSE_COUNT)
            roles[count++] = role;
    return count;
}

/* ---- What depends on an instance ------------------------------------------------------------- */

attn_status rig_create(struct rig *rig, attn_instance **instance)
{
    attn_status status = rig->type->create(rig->type, rig->problems, RIG_GROUPS, rig->options,
                                           rig->services, instance, rig_error(rig));
    if (status != ATTN_OK || !*instance)
        return status;
    rig->index_forms = rig->ops->index_forms(*instance);
    for (int b = 0; b < rig->num_batches; b++)
        view_batch(rig, &rig->batches[b]);
    return status;
}
