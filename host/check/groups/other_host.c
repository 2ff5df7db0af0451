/* SPDX-License-Identifier: Apache-2.0 */
#include "host/check/groups/other_host.h"

attn_status other_host_init(struct other_host *other, const struct check_subject *subject,
                            uint32_t num_threads, attn_error *error)
{
    *other = (struct other_host){0};
    attn_status status = threads_create(num_threads, &other->threads, error);
    if (status != ATTN_OK)
        return status;
    other->composer = subject->host->composer;
    other->composer.threads = other->threads;
    return compose_resolve(&other->composer, subject->backend, subject->device, &other->node,
                           error);
}

void other_host_finish(struct other_host *other)
{
    compose_destroy(other->node);
    threads_destroy(other->threads);
}
