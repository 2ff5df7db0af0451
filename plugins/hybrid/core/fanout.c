/* SPDX-License-Identifier: Apache-2.0
 *
 * fanout.c: children of a composite: their bounds, limits, instances and calls.
 */
#include "fanout.h"

#include "attn_plugin_util.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

const char *const fanout_layouts[FANOUT_NUM_LAYOUTS] = {
    ATTN_LAYOUT_KV_NHD,         ATTN_LAYOUT_KV_HND,       ATTN_LAYOUT_MLA_LATENT,
    ATTN_LAYOUT_MLA_LATENT_FP8, ATTN_LAYOUT_STATE_SSM_KV, ATTN_LAYOUT_STATE_SSM_VK,
    ATTN_LAYOUT_STATE_CONV,
};

/* ---- Problems -------------------------------------------------------------------------------- */

void fanout_narrow_bounds(const attn_bounds *bounds, uint32_t modes, attn_bounds *narrowed)
{
    ATTN_UTIL_READ(narrowed, bounds);
    narrowed->modes = modes;
    if (!(modes & ATTN_MODE_BIT(ATTN_MODE_MIXED)))
        narrowed->uses &= ~(uint32_t)(ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS);
    if (modes != ATTN_MODE_BIT(ATTN_MODE_DECODE))
        return;
    narrowed->max_q_len = 1;
    if (narrowed->max_seqs > 0 &&
        (narrowed->max_tokens == 0 || narrowed->max_tokens > narrowed->max_seqs))
        narrowed->max_tokens = narrowed->max_seqs;
}

static int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

fanout_limits fanout_limits_of(const attn_bounds *bounds)
{
    return (fanout_limits){
        .modes = bounds->modes,
        .max_seqs = bounds->max_seqs > 0 ? bounds->max_seqs : INT32_MAX,
        .max_kv_len = bounds->max_kv_len > 0 ? bounds->max_kv_len : INT32_MAX,
    };
}

void fanout_limits_add(fanout_limits *limits, const fanout_limits *other)
{
    limits->modes |= other->modes;
    limits->max_seqs = most(limits->max_seqs, other->max_seqs);
    limits->max_kv_len = most(limits->max_kv_len, other->max_kv_len);
}

int fanout_limit_bounds(const fanout_limits *limits, const fanout_limits *all,
                        const attn_bounds *bounds, attn_bounds *limited)
{
    ATTN_UTIL_READ(limited, bounds);
    limited->modes &= limits->modes | ~all->modes;
    if (limited->max_seqs > limits->max_seqs && limited->max_seqs <= all->max_seqs)
        limited->max_seqs = limits->max_seqs;
    if (limited->max_kv_len > limits->max_kv_len && limited->max_kv_len <= all->max_kv_len)
        limited->max_kv_len = limits->max_kv_len;
    return limited->modes != 0 || bounds->modes == 0;
}

int fanout_is_within(const fanout_limits *limits, uint32_t mode, const attn_batch *batch)
{
    return limits->modes & ATTN_MODE_BIT(mode) && batch->num_seqs <= limits->max_seqs &&
           batch->max_kv_len <= limits->max_kv_len;
}

void fanout_narrow_problem(const attn_problem *problem, uint32_t modes, child_problem *narrowed)
{
    ATTN_UTIL_READ(&narrowed->problem, problem);
    fanout_narrow_bounds(problem->bounds, modes, &narrowed->bounds);
    narrowed->problem.bounds = &narrowed->bounds;
    /* Bits that this version does not know are the child's to refuse. */
    narrowed->problem.mla_expanded &= modes | ~(ATTN_MODE_BIT(ATTN_MODE_COUNT) - 1u);
    narrowed->layers = NULL;
}

static uint32_t count_served(const attn_layer_group *group, fanout_serves serves, const void *ctx,
                             uint32_t c)
{
    uint32_t count = 0;
    for (uint32_t l = 0; l < group->num_layers; l++)
        count += serves(ctx, c, group, attn_at(group->layers, l)) != 0;
    return count;
}

attn_status fanout_narrow_layers(const attn_services *services, child_problem *narrowed,
                                 fanout_serves serves, const void *ctx, uint32_t c, uint32_t *count,
                                 attn_error *error)
{
    const attn_layer_group *group = narrowed->problem.group;
    *count = count_served(group, serves, ctx, c);
    if (*count == 0 || *count == group->num_layers)
        return ATTN_OK;
    narrowed->layers =
        services->allocate(services->ctx, ATTN_SPACE_HOST, *count * sizeof *narrowed->layers, 16);
    if (!narrowed->layers)
        return attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%u layers", *count);
    uint32_t kept = 0;
    for (uint32_t l = 0; l < group->num_layers; l++) {
        const attn_layer *layer = attn_at(group->layers, l);
        if (serves(ctx, c, group, layer))
            ATTN_UTIL_READ(&narrowed->layers[kept++], layer);
    }
    ATTN_UTIL_READ(&narrowed->group, group);
    narrowed->group.layers = narrowed->layers;
    narrowed->group.num_layers = *count;
    narrowed->problem.group = &narrowed->group;
    return ATTN_OK;
}

void fanout_problem_finish(const attn_services *services, child_problem *narrowed)
{
    services->release(services->ctx, ATTN_SPACE_HOST, narrowed->layers);
    narrowed->layers = NULL;
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

void fanout_verdict_begin(const attn_verdict *given, attn_verdict *verdict)
{
    attn_util_verdict_begin(given, verdict);
    verdict->graph_level = ATTN_GRAPH_ALWAYS;
    verdict->traits = ATTN_TRAIT_PROMISES;
}

static attn_reason *reason_at(const attn_verdict *verdict, uint32_t index)
{
    return (attn_reason *)((char *)verdict->reasons +
                           (size_t)index * verdict->reasons->struct_size);
}

/* Prepend "child" to the name that the child may have set for its own child: "child/inner". */
static void name_reasons(attn_verdict *verdict, uint32_t first, uint32_t count, const char *name)
{
    for (uint32_t r = first; r < first + count && r < verdict->reasons_capacity; r++) {
        attn_reason *reason = reason_at(verdict, r);
        char path[2 * sizeof reason->child];
        if (!ATTN_HAS(reason, attn_reason, child))
            continue;
        int length = snprintf(path, sizeof reason->child, "%s", name);
        if (reason->child[0] && length >= 0 && (size_t)length < sizeof reason->child)
            snprintf(path + length, sizeof path - (size_t)length, "/%.*s",
                     (int)sizeof reason->child - 1, reason->child);
        snprintf(reason->child, sizeof reason->child, "%.*s", (int)sizeof reason->child - 1, path);
    }
}

/* Alignment of a region that a verdict allows for; no backend has asked for more. */
enum { MOST_ALIGNMENT = 4096 };

/* Bytes that a child's regions of a space may take in the composite's, if other regions precede
 * them: the two that are not shared begin at their alignment, which a verdict does not have. */
static uint64_t with_gaps(uint64_t bytes)
{
    return bytes > 0 ? bytes + 2 * (uint64_t)(MOST_ALIGNMENT - 1) : 0;
}

/* `modes`: those that the child serves; all are IDLE. */
static void merge_yes(const attn_verdict *child, uint32_t modes, attn_verdict *verdict)
{
    if (child->graph_level < verdict->graph_level)
        verdict->graph_level = child->graph_level;
    uint32_t kept = verdict->traits & child->traits & ATTN_TRAIT_PROMISES;
    verdict->traits = kept | ((verdict->traits | child->traits) & ~(uint32_t)ATTN_TRAIT_PROMISES);
    verdict->reads_new_kv_unquantised |=
        child->reads_new_kv_unquantised & (modes | ATTN_MODE_BIT(ATTN_MODE_IDLE));
    if (child->graph_seq_len_fill > verdict->graph_seq_len_fill)
        verdict->graph_seq_len_fill = child->graph_seq_len_fill;
    verdict->host_arrays |= child->host_arrays;
    if (child->cost_hint > verdict->cost_hint)
        verdict->cost_hint = child->cost_hint;
    verdict->device_bytes += with_gaps(child->device_bytes);
    verdict->pinned_bytes += with_gaps(child->pinned_bytes);
    verdict->host_bytes += with_gaps(child->host_bytes);
}

attn_status fanout_verdict_add(const attn_services *services, const char *name,
                               const attn_problem *problem, attn_verdict *verdict,
                               attn_error *error)
{
    attn_verdict child = {.struct_size = sizeof child};
    uint32_t written = verdict->num_reasons;
    if (written < verdict->reasons_capacity) {
        child.reasons = reason_at(verdict, written);
        child.reasons_capacity = verdict->reasons_capacity - written;
    }
    attn_status status = services->child_query(services->ctx, name, problem, &child, error);
    if (status != ATTN_OK)
        return status;
    if (child.supported) {
        merge_yes(&child, problem->bounds ? problem->bounds->modes : 0, verdict);
        return ATTN_OK;
    }
    verdict->supported = 0;
    verdict->num_reasons += child.num_reasons;
    name_reasons(verdict, written, child.num_reasons, name);
    return ATTN_OK;
}

attn_status fanout_check_services(const attn_services *services, attn_error *error)
{
    if (services && services->child_query && services->child_create)
        return ATTN_OK;
    return attn_util_fail(error, ATTN_INVALID_ARGUMENT,
                          "services lack child_query or child_create");
}

static attn_status check_problem(const attn_backend_type *type, const attn_options *options,
                                 const attn_services *services, const attn_problem *problem,
                                 attn_error *error)
{
    attn_reason reason;
    attn_verdict verdict;
    attn_status status = attn_util_ask(type, options, services, problem, &verdict, &reason, error);
    if (status != ATTN_OK || verdict.supported)
        return status;
    return attn_util_fail_field(error, ATTN_UNSUPPORTED, reason.field, "%s%s%s %s: accepted %s",
                                reason.child, reason.child[0] ? ": " : "",
                                attn_util_field_name(reason.field), reason.got, reason.accepted);
}

attn_status fanout_check_problems(const attn_backend_type *type, const attn_options *options,
                                  const attn_services *services, const attn_problem *problems,
                                  uint32_t num_problems, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (num_problems == 0)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "no layer group");
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++)
        status = check_problem(type, options, services, attn_at(problems, p), error);
    return status;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static uint64_t align_up(uint64_t offset, uint64_t alignment)
{
    return alignment > 1 ? (offset + alignment - 1) / alignment * alignment : offset;
}

static int is_shared(uint32_t region)
{
    return region % ATTN_MEMORY_COUNT == ATTN_MEMORY_SCRATCH;
}

void fanout_memory_add(const attn_memory_size *child, attn_memory_size *total)
{
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        if (child->size[r] == 0)
            continue;
        if (child->alignment[r] > total->alignment[r])
            total->alignment[r] = child->alignment[r];
        if (!is_shared(r))
            total->size[r] = align_up(total->size[r], child->alignment[r]) + child->size[r];
        else if (child->size[r] > total->size[r])
            total->size[r] = child->size[r];
    }
}

void fanout_memory_carve(const attn_memory *memory, const attn_memory_size *child,
                         attn_memory_size *used, attn_memory *part)
{
    memset(part, 0, sizeof *part);
    part->struct_size = sizeof *part;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        if (child->size[r] == 0)
            continue;
        uint64_t offset = align_up(used->size[r], child->alignment[r]);
        part->base[r] = (char *)memory->base[r] + offset;
        part->size[r] = child->size[r];
        if (!is_shared(r)) /* of a shared one nothing is ever used up */
            used->size[r] = offset + child->size[r];
    }
}

attn_status fanout_memory_check(const attn_memory_size *size, const attn_memory *memory,
                                attn_error *error)
{
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        if (size->size[r] == 0)
            continue;
        if (!memory->base[r] || memory->size[r] < size->size[r]) {
            if (error && ATTN_HAS(error, attn_error, needed))
                error->needed = size->size[r];
            return attn_util_fail_field(error, ATTN_BUFFER_TOO_SMALL, ATTN_FIELD_MEMORY,
                                        "memory region %u has %llu bytes: needed %llu", r,
                                        (unsigned long long)memory->size[r],
                                        (unsigned long long)size->size[r]);
        }
        if (size->alignment[r] > 1 && (uintptr_t)memory->base[r] % size->alignment[r] != 0)
            return attn_util_fail_field(
                error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_MEMORY,
                "memory region %u is misaligned: accepted multiples of %llu", r,
                (unsigned long long)size->alignment[r]);
    }
    return ATTN_OK;
}
