/* SPDX-License-Identifier: Apache-2.0
 *
 * front.c: questions and instances of the wrapped backend. */
#include "host/check/cases/front.h"

static attn_status query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error)
{
    const attn_backend_type *inner = ((const struct front *)(const void *)type)->inner;
    return inner->query(inner, options, services, problem, verdict, error);
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    const attn_backend_type *inner = ((const struct front *)(const void *)type)->inner;
    return inner->create(inner, problems, num_problems, options, services, instance, error);
}

void front_init(struct front *front, const attn_backend_type *inner)
{
    *front = (struct front){.type = *inner, .ops = *inner->ops, .inner = inner};
    front->type.ops = &front->ops;
    front->type.query = query;
    front->type.create = create;
}
