/* SPDX-License-Identifier: Apache-2.0
 *
 * joint.c: planning of several cases as one batch.
 */
#include "host/check/cases/joint.h"

#include "host/base/error.h"

#include <stdio.h>
#include <string.h>

/* Ids of unlike layers have the lower 16 bits in common. */
enum { FIRST_LAYER_ID = 2, LAYER_ID_STEP = 3 << 16 };

/* ---- Problems -------------------------------------------------------------------------------- */

static void widen(int32_t *bound, int32_t other)
{
    if (other > *bound)
        *bound = other;
}

void joint_widen(attn_bounds *bounds, const attn_bounds *other)
{
    bounds->modes |= other->modes;
    bounds->mask_kinds |= other->mask_kinds;
    bounds->uses |= other->uses;
    widen(&bounds->max_seqs, other->max_seqs);
    widen(&bounds->max_tokens, other->max_tokens);
    widen(&bounds->max_q_len, other->max_q_len);
    widen(&bounds->max_kv_len, other->max_kv_len);
    if (other->max_kv_tokens > bounds->max_kv_tokens)
        bounds->max_kv_tokens = other->max_kv_tokens;
}

/* The number of the KV group of layer group g, each of which has one. */
static uint32_t kv_number(const struct joint *joint, uint32_t g)
{
    uint32_t groups = 0;
    for (int32_t n = 0; n < joint->count; n++)
        groups += joint->with[n] == n;
    return joint->turned ? groups - 1 - g : g;
}

/* The group of case n, and of those after it that are in it. */
static void pose_group(struct joint *joint, int32_t n)
{
    uint32_t g = joint->num_problems++;
    attn_layer_group *group = &joint->groups[g];
    *group = joint->cases[n]->posed.group;
    if (joint->cases[n]->spec.kind != ATTN_KIND_LINEAR)
        group->kv_group = (int32_t)kv_number(joint, g);
    group->num_layers = 0;
    group->layers = joint->layers[g];
    for (int32_t other = n; other < joint->count; other++) {
        attn_layer *layers = joint->cases[other]->posed.layers;
        for (int second = 0; joint->with[other] == n && second < 2; second++) {
            layers[second].layer_id = FIRST_LAYER_ID + LAYER_ID_STEP * other + second;
            if (second == 0)
                joint->layers[g][group->num_layers++] = layers[second];
        }
    }
    joint->problems[g] = joint->cases[n]->posed.problem;
    joint->problems[g].group = group;
    joint->problems[g].bounds = &joint->bounds;
}

void joint_pose(struct joint *joint)
{
    joint->num_problems = 0;
    joint->bounds = joint->cases[0]->posed.bounds;
    for (int32_t n = 0; n < joint->count; n++) {
        joint_widen(&joint->bounds, &joint->cases[n]->posed.bounds);
        if (joint->with[n] == n)
            pose_group(joint, n);
    }
}

void joint_destroy(struct joint *joint)
{
    for (int32_t n = 0; n < joint->count; n++)
        forward_case_destroy(joint->cases[n]);
    joint->count = 0;
}

/* ---- Running --------------------------------------------------------------------------------- */

static bool good(struct case_verdict *verdict, attn_status status, const host_error *error,
                 const char *what)
{
    if (status == ATTN_OK)
        return true;
    *verdict = (struct case_verdict){.status = status};
    snprintf(verdict->text, sizeof verdict->text, "%s: %s: %.400s", what, host_status_name(status),
             host_error_text(error));
    return false;
}

/* The planned data is overwritten afterwards, and is at the same addresses as the time before. */
static attn_status plan(struct case_session *session, struct joint *joint, attn_error *error)
{
    static _Thread_local attn_batch batch;
    static _Thread_local attn_kv_batch kv_groups[JOINT_MAX];
    static _Thread_local attn_state_batch states[LINEAR_STATE_GROUPS];
    attn_status status = ATTN_OK;
    uint32_t count = 0;
    for (int32_t n = 0; n < joint->count && status == ATTN_OK; n++) {
        struct forward_case *c = joint->cases[n];
        struct case_place place;
        session_place(session, c, false, &place);
        status = session_bring(session, c, c->image, error);
        case_view_init(c->planned, c, &c->lengths, &place);
        if (n == 0) {
            batch = c->planned->batch;
            memcpy(states, c->planned->states, sizeof states);
        }
        widen(&batch.max_kv_len, c->lengths.max_kv_len);
        widen(&joint->cases[0]->planned->sparse.max_count, c->planned->sparse.max_count);
        if (joint->with[n] == n && c->spec.kv_layout)
            kv_groups[kv_number(joint, count++)] = c->planned->kv_groups[c->posed.group.kv_group];
        if (c->spec.kind == ATTN_KIND_LINEAR)
            states[c->posed.group.state_group] = c->planned->states[c->posed.group.state_group];
    }
    batch.state_groups = batch.num_state_groups > 0 ? states : NULL;
    batch.kv_groups = count > 0 ? kv_groups : NULL;
    batch.num_kv_groups = count;
    if (status == ATTN_OK)
        status = session->backend.type->ops->init_forward_metadata(session->metadata, &batch,
                                                                   session->stream, error);
    for (int32_t n = 0; n < joint->count; n++)
        case_forget_plan(joint->cases[n]);
    memset(&batch, CASE_RED, sizeof batch);
    memset(kv_groups, CASE_RED, sizeof kv_groups);
    memset(states, CASE_RED, sizeof states);
    return status;
}

static bool execute(struct case_session *session, struct joint *joint, struct case_verdict *verdict)
{
    HOST_ERROR(error);
    for (int32_t n = 0; n < joint->count && verdict->good; n++) {
        if (!good(verdict, session_spoil_scratch(session, &error.base), &error, "the scratch"))
            return false;
        joint->at = n;
        session_forward(session, joint->cases[n], verdict);
    }
    return verdict->good;
}

bool joint_plan(struct case_session *session, struct joint *joint, struct case_verdict *verdict)
{
    HOST_ERROR(error);
    *verdict = (struct case_verdict){.good = true};
    if (!good(verdict, device_enter(session->device, &error.base), &error, "entering the device"))
        return false;
    bool planned =
        good(verdict, plan(session, joint, &error.base), &error, "init_forward_metadata");
    device_leave(session->device);
    return planned;
}

void joint_judge_planned(struct case_session *session, struct joint *joint,
                         struct case_verdict *verdict)
{
    HOST_ERROR(error);
    *verdict = (struct case_verdict){.good = true};
    if (!good(verdict, device_enter(session->device, &error.base), &error, "entering the device"))
        return;
    bool ran = execute(session, joint, verdict);
    device_leave(session->device);
    session->num_runs++;
    if (!ran)
        session_begin_anew(session);
    for (int32_t n = 0; n < joint->count && verdict->good; n++) {
        joint->at = n;
        session_judge_left(session, joint->cases[n], verdict);
    }
}

void joint_judge(struct case_session *session, struct joint *joint, struct case_verdict *verdict)
{
    if (joint_plan(session, joint, verdict))
        joint_judge_planned(session, joint, verdict);
}
