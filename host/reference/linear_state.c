/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_state.c: pools of states, compared with their expected contents.
 */
#include "host/reference/linear_call.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <math.h>
#include <stdio.h>

static const double state_factor = 2, state_floor = 1e-5;

/* Keep the worst in words. */
static void remember(reference_report *report, const char *what, int32_t slot, int64_t head,
                     int64_t element, double actual, double truth, double bar)
{
    double error = isfinite(actual) ? fabs(actual - truth) : INFINITY;
    double ratio = error == 0 ? 0 : bar > 0 ? error / bar : INFINITY;
    if (report->message[0] && ratio <= report->worst_ratio)
        return;
    report->worst_ratio = ratio;
    snprintf(report->message, sizeof report->message,
             "%s of slot %d, %lld, element %lld: got %.9g, expected %.9g, error %.3g, bar %.3g",
             what, slot, (long long)head, (long long)element, actual, truth, error, bar);
}

static void compare_head(const reference_states *states, const reference_state *entry, int32_t head,
                         const attn_tensor *pool, reference_report *report)
{
    const double *truth = entry->state + (int64_t)head * states->k_dim * states->v_dim;
    double bar = state_factor * entry->error[head] + state_floor * entry->largest[head];
    double worst = -1, got = 0;
    int64_t at = 0;
    for (int32_t i = 0; i < states->k_dim; i++)
        for (int32_t j = 0; j < states->v_dim; j++) {
            int64_t index[] = {entry->slot, head, states->vk ? j : i, states->vk ? i : j};
            double actual = dtype_load(pool->dtype, reference_element(pool, index, 4), 0);
            int64_t n = (int64_t)i * states->v_dim + j;
            double error = isfinite(actual) ? fabs(actual - truth[n]) : INFINITY;
            if (error > worst) {
                worst = error;
                got = actual;
                at = n;
            }
        }
    report->rows_checked++;
    report->rows_failed += !(worst <= bar);
    remember(report, "state", entry->slot, head, at, got, truth[at], bar);
}

static void compare_inputs(const reference_states *states, const reference_state *entry,
                           int32_t channel, const attn_tensor *pool, reference_report *report)
{
    int failed = 0;
    for (int32_t n = 0; n < states->num_taps; n++) {
        int64_t index[] = {entry->slot, channel, n};
        double actual = dtype_load(pool->dtype, reference_element(pool, index, 3), 0);
        double truth = entry->conv[(int64_t)channel * states->num_taps + n];
        failed |= !(actual == truth);
        remember(report, "convolution state", entry->slot, channel, n, actual, truth, 0);
    }
    report->rows_checked++;
    report->rows_failed += failed;
}

attn_status reference_compare_states(const reference_states *states, const attn_tensor *state,
                                     const attn_tensor *conv_state, reference_report *report,
                                     attn_error *error)
{
    for (int64_t n = 0; n < states->count; n++) {
        const reference_state *entry = &states->entries[n];
        if ((entry->state && (!state || entry->slot >= state->shape[0])) ||
            (entry->conv && (!conv_state || entry->slot >= conv_state->shape[0])))
            return host_fail(error, ATTN_INVALID_ARGUMENT, "slot %d lies outside a pool",
                             entry->slot);
        for (int32_t h = 0; entry->state && h < states->num_heads; h++)
            compare_head(states, entry, h, state, report);
        for (int32_t c = 0; entry->conv && c < states->num_channels; c++)
            compare_inputs(states, entry, c, conv_state, report);
    }
    return ATTN_OK;
}
