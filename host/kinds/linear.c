/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.c: recurrences (GDN, Mamba2, KDA, lightning, short convolutions). Their rows and constants
 * are those of generator_linear.h; in the place of a cache they have a state and the last inputs of
 * a convolution.
 */
#include <string.h>

#include "host/kinds/kinds.h"
#include "host/workload/generator_linear.h"

/* ---- Rows and constants ---------------------------------------------------------------------- */

/* Operands of a layer that have a row for each row of a step. */
static const uint32_t row_roles[] = {ATTN_ROLE_MIXED_QKV, ATTN_ROLE_GATE_A, ATTN_ROLE_GATE_B};
enum { ROW_ROLES = sizeof row_roles / sizeof *row_roles };

/* Channels of all of q, k and v (Mamba2: x, B and C), and the gates that the family has. */
static uint32_t list_rows(const struct model *model, const attn_layer_group *group,
                          struct row_operand *list)
{
    uint32_t given = generator_linear_given(group, model->conv_bias), count = 0;
    for (size_t r = 0; r < ROW_ROLES; r++) {
        int64_t shape[2] = {0, 0};
        if (!(given & 1u << row_roles[r]))
            continue;
        uint32_t ndim = generator_linear_shape(group, row_roles[r], shape);
        list[count++] = (struct row_operand){
            .role = row_roles[r],
            .heads = ndim == 2 ? (int32_t)shape[0] : 0,
            .dim = (int32_t)shape[ndim - 1],
            .dtype = generator_linear_dtype(group, row_roles[r], model->dtype),
            .stream = GENERATOR_OPERAND + (int32_t)row_roles[r],
        };
    }
    return count;
}

static void describe_output(const attn_layer_group *group, struct row_operand *out)
{
    out->heads = group->linear->num_v_heads;
    out->dim = group->linear->head_v_dim;
}

static const struct kind_form recurrence = {list_rows, describe_output, NULL};

static void make_row(const struct kind_row *row, const struct row_operand *operand, void *to)
{
    token_key key = workload_token_key(row->workload, row->request, row->position);
    generator_linear_row(row->generator, row->group, row->layer, key, operand->role, operand->dtype,
                         to);
}

static uint32_t constants(const struct model *model, const attn_layer_group *group)
{
    uint32_t given = generator_linear_given(group, model->conv_bias);
    for (size_t r = 0; r < ROW_ROLES; r++)
        given &= ~(1u << row_roles[r]);
    return given;
}

static void describe_constant(const struct model *model, const attn_layer_group *group,
                              uint32_t role, attn_tensor *tensor)
{
    tensor->dtype = generator_linear_dtype(group, role, model->dtype);
    tensor->ndim = generator_linear_shape(group, role, tensor->shape);
}

/* ---- States ---------------------------------------------------------------------------------- */

static uint32_t list_tensors(const attn_layer_group *group, const struct kind_pool *pool,
                             struct kind_tensor *list)
{
    const attn_linear_dims *dims = group->linear;
    bool is_vk = strcmp(pool->layout, ATTN_LAYOUT_STATE_SSM_VK) == 0;
    int64_t k = dims->head_k_dim, v = dims->head_v_dim;
    uint32_t count = 0;
    if (dims->family != ATTN_LINEAR_SHORT_CONV)
        list[count++] = (struct kind_tensor){
            .role = ATTN_ROLE_STATE,
            .dtype = dims->state_dtype,
            .ndim = 4,
            .shape = {pool->num_slots, dims->num_v_heads, is_vk ? v : k, is_vk ? k : v},
        };
    if (dims->conv_width > 1 && dims->conv_dtype != ATTN_DTYPE_NONE)
        list[count++] = (struct kind_tensor){
            .role = ATTN_ROLE_CONV_STATE,
            .dtype = dims->conv_dtype,
            .ndim = 3,
            .shape = {pool->num_slots, generator_linear_elements(group, ATTN_ROLE_MIXED_QKV),
                      dims->conv_width - 1},
        };
    return count;
}

/* ---- The row --------------------------------------------------------------------------------- */

static const char *backend(const struct config_attention *attention)
{
    return attention->linear_attn_backend;
}

const struct kind_ops kind_linear = {
    .form = &recurrence,
    .make_row = make_row,
    .constants = constants,
    .describe_constant = describe_constant,
    .make_constant = generator_linear_constant,
    .layouts = {ATTN_LAYOUT_STATE_SSM_KV, ATTN_LAYOUT_STATE_SSM_VK},
    .tensors = list_tensors,
    .backend_key = "attention.linear_attn_backend",
    .backend = backend,
    .judged = KIND_JUDGED_AS_RECURRENCE,
};
