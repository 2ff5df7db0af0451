/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_judge.c: runs a case and judges the result.
 *
 * After a run the device's copy of the arena must be, to the bit, what it was before, but for the
 * rows of the outputs, which the oracle judges, and for the cache's slots that were to be written,
 * whose contents the oracle gives. A repetition is judged by what the first run left, where that is
 * promised, or by the oracle, whose answers stay what they were.
 */
#include "host/check/cases/linear_case.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One run and its judgement. */
struct run {
    struct case_session *session;
    struct forward_case *c;
    struct case_verdict *verdict;
    host_error error;
    char *expected; /* a copy of the arena as it should be */
    char *left;     /* a copy of the arena as the first run left it; NULL = not wanted */
    /* What the oracle says of each layer, once it was asked. */
    reference_result results[2];
    bool has_result[2];
    reference_states states; /* of a linear layer; with the first result */
    char *before;            /* the arena before the part that is judged alone; NULL = `image` */
};

static bool bad(struct run *run, attn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool bad(struct run *run, attn_status status, const char *format, ...)
{
    va_list args;
    if (!run->verdict->good)
        return false;
    run->verdict->good = false;
    run->verdict->status = status;
    va_start(args, format);
    vsnprintf(run->verdict->text, sizeof run->verdict->text, format, args);
    va_end(args);
    return false;
}

/* `status` of a call, or the run is bad: "what: what it said". */
static bool good(struct run *run, attn_status status, const char *what)
{
    if (status == ATTN_OK)
        return true;
    return bad(run, status, "%s: %s: %s", what, host_status_name(status),
               host_error_text(&run->error));
}

/* ---- Running --------------------------------------------------------------------------------- */

void session_place(const struct case_session *session, const struct forward_case *c, bool second,
                   struct case_place *place)
{
    /* A backend that splits a MIXED batch has to know where its rows are. */
    bool needs_rows =
        c->spec.mode == ATTN_MODE_MIXED && (c->lengths.first_row[0] != 0 || c->lengths.spare > 0);
    *place = (struct case_place){
        .arena = c->memory,
        .planning = c->planning,
        .host_arrays = session->host_arrays | (needs_rows ? (uint32_t)ATTN_HOST_Q_INDPTR : 0u),
        .device_type = session->device->type,
        .device_id = session->device->id,
        .index_forms = session->index_forms ? session->index_forms : c->spec.index_form,
        .graph = session->kind == ATTN_METADATA_GRAPH,
        .second = second,
    };
}

attn_status session_plan(const struct case_session *session, struct forward_case *c,
                         const struct case_lengths *lengths, uint32_t host_arrays,
                         attn_error *error)
{
    struct case_place place;
    session_place(session, c, false, &place);
    place.host_arrays |= host_arrays;
    case_view_init(c->planned, c, lengths, &place);
    case_guard(c, true);
    attn_status status = session->backend.type->ops->init_forward_metadata(
        session->metadata, &c->planned->batch, session->stream, error);
    case_guard(c, false);
    case_forget_plan(c);
    return status;
}

attn_status session_bring(const struct case_session *session, struct forward_case *c,
                          const char *arena, attn_error *error)
{
    case_bring_plan(c, arena);
    attn_status status = device_copy(c->device, c->memory, arena, c->bytes, session->stream, error);
    return status == ATTN_OK ? case_pool_send(c, arena, session->stream, error) : status;
}

/* Bring it, and plan its batch. */
static bool plan(struct run *run, const char *arena, const struct case_lengths *lengths)
{
    attn_error *error = &run->error.base;
    return good(run, session_bring(run->session, run->c, arena, error), "copy to the device") &&
           good(run, session_plan(run->session, run->c, lengths, 0, error),
                "init_forward_metadata");
}

attn_status session_call(const struct case_session *session, const struct forward_case *c,
                         const struct case_lengths *lengths, const struct case_call *call,
                         attn_error *error)
{
    const attn_backend_ops *ops = session->backend.type->ops;
    struct case_view view;
    struct case_place place;
    session_place(session, c, call->second, &place);
    case_view_init(&view, c, lengths, &place);
    attn_status (*forward)(attn_metadata *, int32_t, const attn_forward_args *, attn_stream,
                           attn_error *) =
        view.batch.mode == ATTN_MODE_DECODE ? ops->forward_decode : ops->forward_extend;
    view.args.flags |= call->flags;
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT && call->roles; role++)
        view.operands[role] = call->roles >> role & 1 ? view.operands[role] : NULL;
    if (call->change)
        call->change(call->ctx, &view.args, view.operands, view.scales);
    if (!forward)
        return host_fail(error, ATTN_UNSUPPORTED, "query accepts the mode, but the slot is NULL");
    case_guard(c, true);
    attn_status status = forward(session->metadata, c->posed.layers[call->second].layer_id,
                                 &view.args, session->stream, error);
    case_guard(c, false);
    return status;
}

attn_status session_call_all(const struct case_session *session, const struct forward_case *c,
                             const struct case_lengths *lengths, uint32_t flags, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int second = 0; second <= c->spec.read_only_layer; second++)
        for (int32_t step = 0; step < case_num_steps(&c->spec) && status == ATTN_OK; step++)
            status = session_call(session, c, lengths,
                                  &(struct case_call){.second = second,
                                                      .flags = flags,
                                                      .roles = case_roles_of(&c->spec, step)},
                                  error);
    return status;
}

static const char *name_of_forward(const struct run *run)
{
    return run->c->spec.mode == ATTN_MODE_DECODE ? "forward_decode" : "forward_extend";
}

static bool forward_all(struct run *run, const struct case_lengths *lengths, uint32_t flags)
{
    return good(run, session_call_all(run->session, run->c, lengths, flags, &run->error.base),
                name_of_forward(run));
}

/* Batches of several queries for each sequence, where they are all that can be captured. */
static bool is_uniform(const struct run *run)
{
    const struct case_lengths *l = &run->c->lengths;
    return run->session->verdict.graph_level == ATTN_GRAPH_UNIFORM && l->max_q_len > 1;
}

/* What is captured: as many sequences, all padding (or as long ones), with zero q, k and v. */
static void make_padding(struct run *run, char *arena, struct case_lengths *lengths)
{
    struct forward_case *c = run->c;
    *lengths = c->lengths;
    memcpy(arena, c->image, c->bytes);
    if (!is_uniform(run))
        case_lengths_pad(lengths, &c->spec, c->seed);
    case_write_padding(c, lengths, arena);
}

/* As the host does: padding is planned, run once to warm up, and captured. */
static bool capture(struct run *run)
{
    struct case_session *session = run->session;
    struct case_lengths lengths;
    make_padding(run, run->expected, &lengths);
    if (!plan(run, run->expected, &lengths) || !forward_all(run, &lengths, 0))
        return false;
    attn_status status = device_synchronize(session->device, session->stream, &run->error.base);
    if (status == ATTN_OK)
        status = device_capture_begin(session->device, session->stream, &run->error.base);
    if (!good(run, status, "begin of a capture"))
        return false;
    if (!forward_all(run, &lengths, ATTN_FORWARD_CAPTURING)) {
        device_capture_end(session->device, session->stream, NULL, NULL);
        return false;
    }
    session->captured = run->c;
    status =
        device_capture_end(session->device, session->stream, &session->graph, &run->error.base);
    return good(run, status, "end of a capture");
}

static bool execute(struct run *run)
{
    struct case_session *session = run->session;
    bool graph = session->kind == ATTN_METADATA_GRAPH;
    if (graph && session->captured && session->captured != run->c)
        return bad(run, ATTN_INVALID_ARGUMENT,
                   "a graph serves only the case that it was captured for");
    if (graph && !session->graph && !capture(run))
        return false;
    if (!plan(run, run->c->image, &run->c->lengths))
        return false;
    attn_status status = session_spoil_scratch(session, &run->error.base);
    if (!good(run, status, "filling the scratch"))
        return false;
    if (!graph)
        return forward_all(run, &run->c->lengths, 0);
    status =
        device_graph_launch(session->device, session->graph, session->stream, &run->error.base);
    return good(run, status, "launch of the graph");
}

attn_status session_fetch(const struct case_session *session, struct forward_case *c,
                          attn_error *error)
{
    attn_status status = device_synchronize(c->device, session->stream, error);
    if (status == ATTN_OK)
        status = device_copy(c->device, c->actual, c->memory, c->bytes, session->stream, error);
    if (status == ATTN_OK)
        status = case_pool_fetch(c, session->stream, error);
    return status == ATTN_OK ? device_synchronize(c->device, session->stream, error) : status;
}

static bool fetch(struct run *run)
{
    return good(run, session_fetch(run->session, run->c, &run->error.base),
                "the forward's work, or its copy from the device");
}

/* ---- Outputs --------------------------------------------------------------------------------- */

/* The oracle's view of a copy of the arena. */
static void oracle_view(struct case_view *view, const struct run *run, char *arena, bool second)
{
    struct case_place place = {.arena = arena,
                               .device_type = ATTN_DEVICE_CPU,
                               .index_forms = ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE |
                                              ATTN_INDEX_CSR,
                               .second = second};
    case_view_init(view, run->c, &run->c->lengths, &place);
}

/* The last row sees the values at the limits; those that are not finite may reach all rows of the
 * sequence (KV-06). */
static void excuse_special_rows(const struct forward_case *c, reference_result *result)
{
    for (int32_t s = 0; s < c->lengths.num_real_seqs; s++)
        for (int32_t r = c->lengths.first_row[s]; r < c->lengths.first_row[s + 1]; r++)
            if (case_is_infinite(c, s) ||
                (case_is_special(c, s) && r == c->lengths.first_row[s + 1] - 1))
                result->kind[r] = REFERENCE_ROW_ABSENT;
}

/* A NaN that some rows of a sequence see may reach its others, too (KV-06). */
static void excuse_rows_beside_nan(const struct forward_case *c, reference_result *result)
{
    for (int32_t s = 0; s < c->lengths.num_real_seqs; s++) {
        const int32_t key = case_nan_key(c, s);
        for (int32_t t = 0; t < c->lengths.q_len[s] && key >= 0; t++) {
            const reference_sight sight = case_sight(c, s, t);
            if (!reference_sees(&sight, key))
                result->kind[c->lengths.first_row[s] + t] = REFERENCE_ROW_ABSENT;
        }
    }
}

/* A value that is not finite, of a key with weight 0, beside keys that have weights. */
static void excuse_rows_beside_lost(const struct forward_case *c, reference_result *result)
{
    for (int32_t s = 0; s < c->lengths.num_real_seqs && c->spec.lost_values; s++)
        for (int32_t t = 0; t < c->lengths.q_len[s]; t++) {
            const reference_sight sight = case_sight(c, s, t);
            for (int32_t j = c->spec.lost_keys; j < c->lengths.kv_len[s]; j++)
                if (reference_sees(&sight, j))
                    result->kind[c->lengths.first_row[s] + t] = REFERENCE_ROW_ABSENT;
        }
}

/* Rows of padding that no sequence has: finite, no more is asked. */
static void ask_for_spare_rows(const struct forward_case *c, reference_result *result)
{
    int32_t end = c->lengths.first_row[c->lengths.num_seqs];
    for (int32_t r = end; r < end + c->lengths.spare; r++)
        result->kind[r] = REFERENCE_ROW_PADDING;
}

/* Heads that have chosen other blocks than the oracle knows of: as it would have them. */
static void excuse_other_heads(struct forward_case *c, const reference_result *result,
                               const struct case_view *got)
{
    const attn_tensor *out = got->operands[ATTN_ROLE_OUT], *lse = got->operands[ATTN_ROLE_LSE];
    if (!case_has_blocks(&c->spec) || c->spec.index_kind != ATTN_SPARSE_PER_HEAD)
        return;
    const int32_t group = c->spec.num_q_heads / c->spec.num_kv_heads;
    for (int64_t r = 0; r < result->num_rows; r++)
        for (int32_t h = 0; h < result->num_heads; h++) {
            int64_t at = r * result->num_heads + h;
            if (h / group == c->spec.chosen_head || result->kind[r] != REFERENCE_ROW_REAL)
                continue;
            for (int32_t d = 0; d < result->v_head_dim; d++)
                dtype_store(out->dtype, case_vector(c, c->actual, PART_OUT, r, h, 0), d,
                            result->out[at * result->v_head_dim + d]);
            if (lse)
                dtype_store(ATTN_F32, case_vector(c, c->actual, PART_LSE, r, h, 0), 0,
                            result->rows[at].lse);
        }
}

/* The questions whether the needles are needles: NULL for none, or no memory. */
static reference_probe *probe_needles(const struct forward_case *c)
{
    reference_probe *probes = calloc((size_t)c->num_needles + 1, sizeof *probes);
    for (int32_t n = 0; probes && n < c->num_needles; n++) {
        const struct case_needle *needle = &c->needles[n];
        probes[n] = (reference_probe){.row = c->lengths.first_row[needle->s] + needle->t,
                                      .head = needle->head,
                                      .key = needle->key};
    }
    return probes;
}

/* Each needle must move its row by this many bars, or the case could not tell a wrong border. Where
 * probabilities or outputs may be rounded to fp8 a bar is some part of the row itself, which it
 * cannot leave by ten of them. */
static double least_move(const struct case_spec *spec)
{
    const attn_dtype dtypes[] = {spec->q_dtype, spec->out_dtype};
    double least = 10;
    for (int n = 0; n < 2; n++)
        if (dtype_is_fp8(dtypes[n]))
            least = fmin(least, 0.1 / dtype_half_unit(dtypes[n], 1));
    return least;
}

static bool needles_stand_out(struct run *run, const reference_probe *probes)
{
    const struct forward_case *c = run->c;
    const double least = least_move(&c->spec);
    for (int32_t n = 0; probes && n < c->num_needles; n++) {
        const struct case_needle *needle = &c->needles[n];
        if (probes[n].moves < least && !case_is_special(c, needle->s))
            return bad(run, ATTN_INTERNAL,
                       "the suite is wrong: needle %d of sequence %d moves query %d, head %d, by "
                       "%.3g bars: accepted %g and more",
                       needle->key, needle->s, needle->t, needle->head, probes[n].moves, least);
    }
    return true;
}

/* A part reads what the parts before it left. */
static bool ask_linear_oracle(struct run *run)
{
    struct forward_case *c = run->c;
    struct case_view truth;
    oracle_view(&truth, run, run->before ? run->before : c->image, false);
    attn_status status =
        reference_linear_forward(&c->posed.problem, &truth.batch, c->posed.layers[0].layer_id,
                                 &truth.args, &run->results[0], &run->states, &run->error.base);
    run->has_result[0] = status == ATTN_OK;
    if (!good(run, status, "the oracle"))
        return false;
    if (!c->part)
        ask_for_spare_rows(c, &run->results[0]);
    return true;
}

/* What an indexer chose, which a view of the truth has afterwards. */
static bool judge_choice(struct run *run, struct case_view *truth)
{
    reference_choice_report report = {0};
    case_indexer_take(run->c, truth);
    attn_status status = case_indexer_judge(run->c, truth, &report, &run->error.base);
    return good(run, status, "the oracle of the choice") &&
           (!report.message[0] || bad(run, ATTN_OK, "%s", report.message));
}

/* The oracle's answer: the same in each run of a case, but of an indexer. */
static bool ask_oracle(struct run *run, bool second)
{
    struct forward_case *c = run->c;
    struct case_view truth;
    reference_result *result = &run->results[second];
    if (run->has_result[second] && case_has_indexer(&c->spec)) /* which of equal keys is free */
        reference_result_finish(result);
    else if (run->has_result[second])
        return true;
    run->has_result[second] = false;
    if (c->spec.kind == ATTN_KIND_LINEAR)
        return ask_linear_oracle(run);
    reference_options options = {.reads_new_unquantised =
                                     session_reads_new(run->session, &c->posed.problem),
                                 .probes = probe_needles(run->c),
                                 .num_probes = run->c->num_needles};
    /* Keys that others bring are read as they are stored. */
    bool stored = second || c->posed.bounds.uses & ATTN_USES_SHARED_NEW_KV;
    oracle_view(&truth, run, stored ? run->expected : c->image, second);
    if (case_has_indexer(&c->spec) && !judge_choice(run, &truth))
        return false;
    attn_status status =
        reference_forward(&c->posed.problem, &truth.batch, c->posed.layers[second].layer_id,
                          &truth.args, &options, result, &run->error.base);
    run->has_result[second] = status == ATTN_OK;
    bool stand_out = status != ATTN_OK || needles_stand_out(run, options.probes);
    free(options.probes);
    if (!stand_out || !good(run, status, "the oracle"))
        return false;
    excuse_special_rows(c, result);
    excuse_rows_beside_nan(c, result);
    excuse_rows_beside_lost(c, result);
    ask_for_spare_rows(c, result);
    return true;
}

static bool judge_outputs(struct run *run, bool second)
{
    struct forward_case *c = run->c;
    struct case_view got;
    reference_result *result = &run->results[second];
    reference_report report = {0};
    if (!ask_oracle(run, second))
        return false;
    oracle_view(&got, run, c->actual, second);
    excuse_other_heads(c, result, &got);
    attn_status status = reference_compare(result, got.operands[ATTN_ROLE_OUT],
                                           got.operands[ATTN_ROLE_LSE], &report, &run->error.base);
    if (status == ATTN_OK && c->spec.kind == ATTN_KIND_LINEAR)
        status =
            reference_compare_states(&run->states, got.operands[ATTN_ROLE_STATE],
                                     got.operands[ATTN_ROLE_CONV_STATE], &report, &run->error.base);
    reference_report_add(&c->judged, &report);
    if (!good(run, status, "the oracle's comparison"))
        return false;
    if (report.rows_failed + report.lse_failed + report.padding_failed == 0)
        return true;
    return bad(run, ATTN_OK, "%s%lld of %lld rows, %lld of %lld LSE, %lld of %lld padding: %s",
               second ? "layer that reads another's cache: " : "", (long long)report.rows_failed,
               (long long)report.rows_checked, (long long)report.lse_failed,
               (long long)report.lse_checked, (long long)report.padding_failed,
               (long long)report.padding_checked, report.message);
}

/* ---- Everything else ------------------------------------------------------------------------- */

/* What the caches must hold. */
static bool expect_cache(struct run *run)
{
    struct forward_case *c = run->c;
    struct case_view before, after;
    if (!c->spec.kv_layout)
        return true;
    oracle_view(&before, run, c->image, false);
    oracle_view(&after, run, run->expected, false);
    bool latent = c->spec.latent.kv_lora_rank > 0;
    attn_status status = reference_expected_kv(
        &c->posed.problem, &before.batch, c->posed.layers[0].layer_id, &before.args,
        after.operands[latent ? ATTN_ROLE_LATENT_CACHE : ATTN_ROLE_K_CACHE],
        after.operands[ATTN_ROLE_V_CACHE], &run->error.base);
    if (status == ATTN_OK && case_has_indexer(&c->spec))
        status = reference_expected_labels(&c->posed.problem, &before.batch,
                                           c->posed.layers[0].layer_id, &before.args,
                                           after.operands[ATTN_ROLE_LABEL_CACHE], &run->error.base);
    return good(run, status, "the oracle of the cache");
}

/* A NaN is a NaN, whatever its bits. */
static void allow_nan(struct run *run, enum case_part_id cache, int64_t slot)
{
    struct forward_case *c = run->c;
    const int32_t count = (int32_t)c->shapes[cache].shape[3];
    if (cache == PART_LATENT_CACHE)
        case_latent_allow_nan(&c->spec, case_slot_vector(c, run->expected, cache, slot, 0),
                              case_slot_vector(c, c->actual, cache, slot, 0));
    for (int32_t h = 0; h < c->spec.num_kv_heads && cache != PART_LATENT_CACHE; h++)
        case_allow_nan(c->spec.kv_dtype, 0, count,
                       case_slot_vector(c, run->expected, cache, slot, h),
                       case_slot_vector(c, c->actual, cache, slot, h));
}

/* Rows of padding may go to slot 0, unless it holds a key. */
static void allow_slot_0(struct run *run, enum case_part_id cache)
{
    struct forward_case *c = run->c;
    bool padded = c->lengths.num_seqs > c->lengths.num_real_seqs || c->lengths.spare > 0;
    if (!padded || c->spec.keys_in_page_0)
        return;
    case_allow_slot(c, cache, 0, run->expected, c->actual);
    if (case_has_indexer(&c->spec))
        case_indexer_allow_slot_0(c, run->expected, c->actual);
}

static void allow_all(struct run *run)
{
    struct forward_case *c = run->c;
    case_allow_rows(c, c->lengths.first_row[0], run->expected, c->actual);
    if (c->spec.kind == ATTN_KIND_LINEAR)
        linear_allow_slots(c, run->expected, c->actual);
    for (enum case_part_id part = 0; part < CASE_PARTS; part++) {
        if (!case_is_cache(c, part))
            continue;
        allow_slot_0(run, part);
        for (int32_t s = 0; s < c->lengths.num_real_seqs; s++)
            for (int32_t j = c->lengths.kv_len[s] - c->lengths.num_new[s];
                 c->spec.flags & ATTN_FORWARD_SAVE_KV && j < c->lengths.kv_len[s]; j++)
                allow_nan(run, part, case_slot(c, s, j));
    }
}

/* Where in a cache the first difference is, for people: "... bytes differ from WHAT". */
static bool tell_cache(struct run *run, enum case_part_id part, const char *what)
{
    struct case_view expected, got;
    const uint32_t role = case_part_kinds[part].number;
    int64_t place[4] = {0};
    oracle_view(&expected, run, run->expected, false);
    oracle_view(&got, run, run->c->actual, false);
    if (!got.operands[role]) /* it was not given */
        return false;
    int64_t bytes = reference_compare_kv(&run->c->posed.problem, got.operands[role],
                                         expected.operands[role], place);
    if (bytes == 0)
        return false;
    bad(run, ATTN_OK,
        "%s: %lld bytes differ from %s, the first one in page %lld, offset %lld, head %lld, "
        "element "
        "%lld",
        case_part_name(part), (long long)bytes, what, (long long)place[0], (long long)place[1],
        (long long)place[2], (long long)place[3]);
    return true;
}

/* All bytes against what is expected, which of a cache is `of_cache`. */
static bool judge_bytes(struct run *run, const char *of_cache)
{
    struct forward_case *c = run->c;
    if (memcmp(run->expected, c->actual, c->bytes) == 0)
        return true;
    uint64_t at = 0;
    while (run->expected[at] == c->actual[at])
        at++;
    enum case_part_id part = case_part_at(c, at);
    if (case_part_is(part, CASE_CACHE) && tell_cache(run, part, of_cache))
        return false;
    return bad(run, ATTN_OK,
               "%s: byte %lld of %llu is 0x%02x: it was 0x%02x, and must not be written",
               case_part_name(part), (long long)(at - c->parts[part].offset),
               (unsigned long long)c->parts[part].bytes, (uint8_t)c->actual[at],
               (uint8_t)run->expected[at]);
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

static void judge_left(struct run *run)
{
    struct forward_case *c = run->c;
    if (!fetch(run))
        return;
    if (run->left)
        memcpy(run->left, c->actual, c->bytes);
    memcpy(run->expected, c->image, c->bytes);
    if (!expect_cache(run))
        return;
    for (int second = 0; second <= c->spec.read_only_layer; second++)
        if (!judge_outputs(run, second))
            return;
    allow_all(run);
    if (!judge_bytes(run, "the bytes before the run, new keys included"))
        return;
    attn_status status = session_check_memory(run->session, &run->error.base);
    good(run, status, "the memory around the metadata");
}

static bool run_init(struct run *run, struct case_session *session, struct forward_case *c,
                     struct case_verdict *verdict)
{
    *run = (struct run){.session = session, .c = c, .verdict = verdict};
    *verdict = (struct case_verdict){.good = true};
    host_error_init(&run->error);
    if (c->spec.padded > 0 && c->spec.fill != session->verdict.graph_seq_len_fill)
        return bad(run, ATTN_INVALID_ARGUMENT,
                   "the case has padding of %d tokens: query reports %d", c->spec.fill,
                   session->verdict.graph_seq_len_fill);
    run->expected = malloc(c->bytes);
    return run->expected || bad(run, ATTN_OUT_OF_HOST_MEMORY,
                                "no memory for the expected bytes of a case, %llu bytes",
                                (unsigned long long)c->bytes);
}

static void run_finish(struct run *run)
{
    for (int second = 0; second < 2; second++)
        if (run->has_result[second])
            reference_result_finish(&run->results[second]);
    reference_states_finish(&run->states);
    free(run->expected);
    free(run->left);
}

/* A whole run, in the end of which `judge` looks at what it has left. */
static void run_once(struct run *run, void (*judge)(struct run *run))
{
    struct case_session *session = run->session;
    if (!good(run, device_enter(session->device, &run->error.base), "entering the device"))
        return;
    bool ran = execute(run);
    device_leave(session->device);
    session->num_runs++;
    if (ran)
        judge(run);
    else
        session_begin_anew(session);
}

void session_forward(struct case_session *session, struct forward_case *c,
                     struct case_verdict *verdict)
{
    struct run run = {.session = session, .c = c, .verdict = verdict};
    *verdict = (struct case_verdict){.good = true};
    host_error_init(&run.error);
    forward_all(&run, &c->lengths, 0);
}

void session_judge_left(struct case_session *session, struct forward_case *c,
                        struct case_verdict *verdict)
{
    struct run run;
    if (run_init(&run, session, c, verdict))
        judge_left(&run);
    run_finish(&run);
}

void session_judge_part(struct case_session *session, struct forward_case *c,
                        const struct linear_part *part, char *before, struct case_verdict *verdict)
{
    struct run run;
    if (run_init(&run, session, c, verdict) && fetch(&run)) {
        c->part = part;
        run.before = before;
        attn_status status = session_check_memory(session, &run.error.base);
        if (good(&run, status, "the memory around the metadata"))
            judge_outputs(&run, false);
        c->part = NULL;
    }
    run_finish(&run);
}

attn_status case_session_try(struct case_session *session, struct forward_case *c,
                             case_change change, void *ctx, attn_error *error)
{
    struct case_verdict verdict = {.good = true};
    struct run run = {.session = session, .c = c, .verdict = &verdict};
    const struct case_call call = {.change = change, .ctx = ctx};
    host_error_init(&run.error);
    if (!good(&run, device_enter(session->device, &run.error.base), "entering the device"))
        return host_fail(error, verdict.status, "%s", verdict.text);
    if (plan(&run, c->image, &c->lengths))
        good(&run, session_call(session, c, &c->lengths, &call, &run.error.base),
             name_of_forward(&run));
    device_leave(session->device);
    attn_status status = device_synchronize(session->device, session->stream, &run.error.base);
    good(&run, status, "the forward's work");
    if (!verdict.good)
        session_begin_anew(session);
    return verdict.good ? ATTN_OK : host_fail(error, verdict.status, "%s", verdict.text);
}

/* ---- Repetitions ----------------------------------------------------------------------------- */

/* Padding has no bits of its own: finite is all that is asked of its outputs. */
static bool padding_is_finite(struct run *run, enum case_part_id part)
{
    struct forward_case *c = run->c;
    const struct case_lengths *l = &c->lengths;
    const struct case_shape *shape = &c->shapes[part];
    for (int64_t row = l->first_row[l->num_real_seqs];
         c->parts[part].bytes && row < l->first_row[l->num_seqs] + l->spare; row++)
        for (int64_t head = 0; head < shape->shape[1]; head++)
            for (int64_t d = 0; d < shape->shape[2]; d++)
                if (!isfinite(
                        dtype_load(shape->dtype, case_vector(c, c->actual, part, row, head, 0), d)))
                    return bad(run, ATTN_OK,
                               "%s, row %lld, head %lld, element %lld is padding and not finite",
                               case_part_name(part), (long long)row, (long long)head, (long long)d);
    return true;
}

/* The first element of a vector that has other bits than the first run's. */
static bool tell_element(struct run *run, enum case_part_id part, int64_t row, int64_t head)
{
    struct forward_case *c = run->c;
    attn_dtype dtype = c->shapes[part].dtype;
    size_t size = attn_dtype_size(dtype), d = 0;
    const char *first = case_vector(c, run->expected, part, row, head, 0);
    const char *now = case_vector(c, c->actual, part, row, head, 0);
    while (memcmp(first + d * size, now + d * size, size) == 0)
        d++;
    uint32_t bits[2] = {0};
    memcpy(&bits[0], now + d * size, size);
    memcpy(&bits[1], first + d * size, size);
    const int32_t s = case_sequence_of(c, row);
    return bad(run, ATTN_OK,
               "%s, row %lld (query %lld of sequence %d), head %lld, element %zu: got %.9g (0x%x), "
               "the first run %.9g (0x%x), though DETERMINISTIC is declared",
               case_part_name(part), (long long)row, (long long)(row - c->lengths.first_row[s]), s,
               (long long)head, d, dtype_load(dtype, now, (int64_t)d), bits[0],
               dtype_load(dtype, first, (int64_t)d), bits[1]);
}

static bool same_rows(struct run *run, enum case_part_id part)
{
    struct forward_case *c = run->c;
    const struct case_lengths *l = &c->lengths;
    for (int64_t row = l->first_row[0]; row < l->first_row[l->num_real_seqs]; row++)
        for (int64_t head = 0; head < case_num_vectors(c, part, row); head++)
            if (memcmp(case_vector(c, run->expected, part, row, head, 0),
                       case_vector(c, c->actual, part, row, head, 0),
                       case_vector_bytes(c, part)) != 0)
                return tell_element(run, part, row, head);
    return true;
}

/* What the first run left, to the bit. */
static void judge_same(struct run *run)
{
    struct forward_case *c = run->c;
    if (!fetch(run))
        return;
    memcpy(run->expected, run->left, c->bytes);
    for (enum case_part_id part = 0; part < CASE_PARTS; part++)
        if (!same_rows(run, part))
            return;
    case_allow_rows(c, c->lengths.first_row[c->lengths.num_real_seqs], run->expected, c->actual);
    for (enum case_part_id part = 0; part < CASE_PARTS; part++)
        if (case_is_cache(c, part))
            allow_slot_0(run, part);
    if (!padding_is_finite(run, PART_OUT) || !padding_is_finite(run, PART_OUT_SECOND) ||
        !judge_bytes(run, "the bytes after the first run, though DETERMINISTIC is declared"))
        return;
    attn_status status = session_check_memory(run->session, &run->error.base);
    good(run, status, "the memory around the metadata");
}

/* The verdict is about run `n`. */
static void tell_repetition(struct case_verdict *verdict, const char *rule, int32_t n,
                            int32_t count)
{
    char text[sizeof verdict->text];
    snprintf(text, sizeof text, "%srepetition %d of %d: ", rule, n, count);
    size_t length = strlen(text);
    snprintf(text + length, sizeof text - length, "%s", verdict->text);
    memcpy(verdict->text, text, sizeof text);
}

/* Runs from the second on. */
static void repeat(struct run *run, const struct case_run *how, bool same)
{
    for (int32_t n = 2; n <= how->repeat && run->verdict->good; n++) {
        if (how->note)
            how->note(how->ctx, n);
        run_once(run, same ? judge_same : judge_left);
        if (!run->verdict->good)
            tell_repetition(run->verdict, same ? "INVAR-02: " : "", n, how->repeat);
    }
}

void case_session_repeat(struct case_session *session, struct forward_case *c,
                         const struct case_run *how, struct case_verdict *verdict)
{
    bool same = how->repeat > 1 && session->verdict.traits & ATTN_TRAIT_DETERMINISTIC;
    struct run run;
    if (run_init(&run, session, c, verdict)) {
        run.left = same ? malloc(c->bytes) : NULL;
        if (same && !run.left)
            bad(&run, ATTN_OUT_OF_HOST_MEMORY, "no memory for the results of a run");
        else
            run_once(&run, judge_left);
        repeat(&run, how, same);
    }
    run_finish(&run);
}

void forward_case_judge(struct forward_case *c, const struct case_backend *backend,
                        const struct case_run *how, struct case_verdict *verdict)
{
    struct case_session *session = NULL;
    struct case_setup setup = {.kind = ATTN_METADATA_EAGER, .exact_memory = how->exact_memory};
    HOST_ERROR(error);
    attn_status status = case_session_create(backend, c, &setup, &session, &error.base);
    if (status != ATTN_OK) {
        *verdict = (struct case_verdict){.status = status};
        snprintf(verdict->text, sizeof verdict->text, "%s: %.450s", host_status_name(status),
                 host_error_text(&error));
        return;
    }
    /* A recurrence runs twice at least where its bits are promised. */
    struct case_run times = *how;
    bool twice =
        c->spec.kind == ATTN_KIND_LINEAR && session->verdict.traits & ATTN_TRAIT_DETERMINISTIC;
    if (twice && times.repeat < 2)
        times.repeat = 2;
    case_session_repeat(session, c, &times, verdict);
    case_session_destroy(session);
}
