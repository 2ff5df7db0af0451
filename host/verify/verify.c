/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c: each layer's rows go to the method of its kind; what is found comes together here.
 */
#include "host/verify/verify.h"

#include <stdlib.h>

#include "host/base/error.h"
#include "host/kinds/kinds.h"
#include "host/verify/method.h"

static const struct verify_method *const methods[KIND_JUDGED_COUNT] = {
    [KIND_JUDGED_AS_ATTENTION] = &verify_attention,
    [KIND_JUDGED_AS_RECURRENCE] = &verify_linear,
};

struct verifier {
    const struct model *model;
    void *made[KIND_JUDGED_COUNT]; /* by the methods; NULL = no layer of the model needs it */
    struct verify_result result;
};

attn_status verifier_create(const struct verify_params *params, struct verifier **verifier,
                            attn_error *error)
{
    const struct model *model = params->model;
    struct verifier *made = calloc(1, sizeof *made);
    attn_status status = ATTN_OK;
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for verification");
    made->model = model;
    for (uint32_t g = 0; g < model->num_groups && status == ATTN_OK; g++) {
        uint32_t judged = kind_of(&model->groups[g])->judged;
        if (!made->made[judged])
            status = methods[judged]->create(params, &made->made[judged], error);
    }
    if (status != ATTN_OK)
        verifier_destroy(made);
    else
        *verifier = made;
    return status;
}

void verifier_destroy(struct verifier *verifier)
{
    if (!verifier)
        return;
    for (uint32_t m = 0; m < KIND_JUDGED_COUNT; m++)
        if (verifier->made[m])
            methods[m]->destroy(verifier->made[m]);
    free(verifier);
}

static bool has_samples(const struct verify_step *step)
{
    for (int64_t s = 0; s < step->num_sequences; s++)
        if (step->sequences[s].num_sampled > 0)
            return true;
    return false;
}

attn_status verifier_check(struct verifier *verifier, const struct verify_step *step, int32_t layer,
                           const attn_tensor *out, attn_error *error)
{
    const struct model *model = verifier->model;
    uint32_t judged = kind_of(&model->groups[model->layers[layer].group])->judged;
    if (!has_samples(step))
        return ATTN_OK;
    return methods[judged]->check(verifier->made[judged], step, layer, out, &verifier->result,
                                  error);
}

void verifier_result(const struct verifier *verifier, struct verify_result *result)
{
    *result = verifier->result;
}
