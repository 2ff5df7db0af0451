/* SPDX-License-Identifier: Apache-2.0
 *
 * arrays_forgotten.c: the host data of a batch, in every mode, type of layer, kind of mask and
 * form. All of its arrays are on the host. After planning, they and the structs are overwritten, as
 * in every case (case_forget_plan()), so a forward that reads them is wrong. */
#include "host/check/cases/kind.h"

SPEC_CHANGE(keep_on_host, spec->host = HOST_ALL)

static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_MIXED,
                                 ATTN_MODE_TARGET_VERIFY};
enum { MODES = sizeof modes / sizeof modes[0] };

/* Every array of a state group. */
static void keep_slots_on_host(struct case_spec *spec, int32_t index)
{
    linear_set_extend(spec, "3i 1 1i");
    spec->host = HOST_ALL;
    spec->linear.snapshots = true;
    spec->linear.absent = 0;
    spec->first_row = 2;
    linear_set_mode(spec, modes[index % MODES]);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_arrays_forgotten[] = {
    ROW("PURE-06", types_forgotten,
        "no forward, in any mode, reads the host arrays that its batch was planned from",
        SOFTMAX_SMALL(keep_on_host, 1, EACH(TYPE), EACH(MODE), SAVED_OR_NOT)),
    ROW("PURE-06", masks_forgotten,
        "no forward, under any mask or with items, reads the host arrays that its batch "
        "was planned from",
        SOFTMAX_SMALL(keep_on_host, 1, OF(MODE, EXTEND, VERIFY), EACH(MASK))),
    ROW("PURE-06", mla_forgotten,
        "no forward of a latent layer reads the host arrays that its batch was planned from",
        SMALL_VARIED(keep_on_host, 1, EACH(MODE), OF(MASK, LAYER, QLEN))),
    ROW("PURE-06", linear_forgotten,
        "no forward of a linear layer reads the host arrays that its batch was planned from",
        LINEAR_MORE(keep_slots_on_host, MODES, 1)),
    {.rule = NULL},
};
