/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c: each layer's rows go to the method of its kind; what is found comes together here.
 */
#include "host/verify/verify.h"

#include <math.h>
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
    double (*of_bar)[2]; /* [num_layers], the second of decode steps; negative = none judged */
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
    made->of_bar = calloc(model->num_layers + 1u, sizeof *made->of_bar);
    if (!made->of_bar)
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for verification");
    for (uint32_t l = 0; made->of_bar && l < model->num_layers; l++)
        made->of_bar[l][0] = made->of_bar[l][1] = -1;
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
    free(verifier->of_bar);
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
    double before = verifier->result.max_of_bar;
    double *worst = &verifier->of_bar[layer][model_mode_decodes(step->mode)];
    verifier->result.max_of_bar = 0;
    attn_status status =
        methods[judged]->check(verifier->made[judged], step, layer, out, &verifier->result, error);
    *worst = fmax(*worst, verifier->result.max_of_bar);
    verifier->result.max_of_bar = fmax(before, *worst);
    return status;
}

double verifier_of_bar(const struct verifier *verifier, int32_t layer, bool decode)
{
    return verifier->of_bar[layer][decode];
}

void verifier_result(const struct verifier *verifier, struct verify_result *result)
{
    *result = verifier->result;
}
