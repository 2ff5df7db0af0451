/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_runner.c: decode steps, or verifications where there are drafts, as graphs.
 *
 * One graph for each padded batch size holds all layers: their vectors, forwards, watch and
 * gathering. Before serving, largest size first (so that shared scratch never grows under a graph
 * that has its address): GRAPH metadata for each unit, an empty padded batch, one warm-up through
 * all layers, the capture. A step then is: upload, init_forward_metadata on the metadata that was
 * captured, one launch. Graphs read a batch on the device at addresses that never change.
 *
 * A graph contains a backend's launches for shared prefixes, one or more for each level, whether a
 * batch has any or not. So if backends get these hints, each size has two graphs, and steps that
 * share little use the one without.
 *
 * Source of the sizes: cuda_graph.bs, clamped as SGLang does it: to workload.max_running_requests,
 * and to the rows of a step, which are at most the slots of the pool. */
#include "host/run/executor_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/embed/embed.h"
#include "host/base/error.h"
#include "host/base/round.h"
#include "host/select/problem.h"
#include "host/select/routes.h"

enum { SHARED_PART = 8 }; /* of a step's keys, that have to be saved: an eighth */

/* The mode of all that is captured. */
static uint32_t captured_mode(const struct executor *executor)
{
    return executor->params.drafts.tokens > 0 ? ATTN_MODE_TARGET_VERIFY : ATTN_MODE_DECODE;
}

/* ---- Which sizes ----------------------------------------------------------------------------- */

/* The seq_len of padding: the backends' graph_seq_len_fill; 1 if they differ, which all accept. */
static int32_t find_fill(const struct executor *executor)
{
    const struct selection *selection = executor->params.selection;
    int32_t fill = 0;
    for (uint32_t g = 0; g < selection->num_groups; g++)
        if (selection->groups[g].verdict.graph_seq_len_fill > fill)
            fill = selection->groups[g].verdict.graph_seq_len_fill;
    return fill;
}

int32_t graph_runner_most(const struct executor *executor)
{
    const attn_bounds *bounds = &executor->params.bounds;
    int32_t fit = bounds->max_tokens / drafts_rows(&executor->params.drafts);
    return fit < bounds->max_seqs ? fit : bounds->max_seqs;
}

static attn_status choose_sizes(struct executor *executor, attn_error *error)
{
    const struct config_ints *wanted = &executor->params.config->cuda_graph.bs;
    struct graph_runner *graphs = &executor->graphs;
    bool twice = executor->batch.params.tells_shared;
    graphs->entries = calloc(2 * wanted->count + 1, sizeof *graphs->entries);
    if (!graphs->entries)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for graphs");
    int32_t last = 0, most = graph_runner_most(executor);
    for (size_t i = 0; i < wanted->count && last < most; i++) {
        last = wanted->items[i] < most ? (int32_t)wanted->items[i] : most;
        graphs->entries[graphs->count++].size = last;
        if (twice)
            graphs->entries[graphs->count++] =
                (struct graph_entry){.size = last, .tells_shared = true};
    }
    return ATTN_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static attn_bounds bounds_of(const struct executor *executor, uint32_t unit,
                             const struct graph_entry *entry)
{
    int32_t size = entry->size;
    attn_bounds bounds = executor->params.bounds;
    int64_t page = executor->params.config->kv_cache.page_size;
    int64_t most = size * round_up(bounds.max_kv_len, page);
    bounds.modes = ATTN_MODE_BIT(captured_mode(executor));
    bounds.max_seqs = size;
    bounds.max_q_len = drafts_rows(&executor->params.drafts);
    bounds.max_tokens = size * bounds.max_q_len;
    problem_bounds_drafts(&bounds, executor->params.config, executor->params.model);
    if (entry->tells_shared && executor->units[unit].takes_shared)
        executor_bounds_shared(&bounds);
    bounds.max_kv_tokens = most < bounds.max_kv_tokens ? most : bounds.max_kv_tokens;
    return bounds;
}

/* Device memory that the metadata of all sizes takes: each its own, and the largest scratch. */
static attn_status compute_memory(struct executor *executor, uint64_t *bytes, attn_error *error)
{
    const struct graph_runner *graphs = &executor->graphs;
    attn_status status = ATTN_OK;
    *bytes = 0;
    for (uint32_t u = 0; u < executor->num_units; u++) {
        uint64_t scratch = 0;
        for (uint32_t e = 0; e < graphs->count && status == ATTN_OK; e++) {
            attn_bounds bounds = bounds_of(executor, u, &graphs->entries[e]);
            attn_memory_size size = {.struct_size = sizeof size};
            status = attnhost_metadata_size(executor->units[u].backend, ATTN_METADATA_GRAPH,
                                            &bounds, &size, error);
            uint64_t own = size.size[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH)];
            scratch = own > scratch ? own : scratch;
            *bytes += size.size[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA)] +
                      size.size[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_ZEROED)];
        }
        *bytes += scratch;
    }
    return status;
}

static attn_status check_memory(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    const struct graph_runner *graphs = &executor->graphs;
    uint64_t needed, free_bytes, total_bytes;
    attn_status status = compute_memory(executor, &needed, error);
    if (status == ATTN_OK)
        status = device_memory(p->device, &free_bytes, &total_bytes, error);
    if (status != ATTN_OK)
        return status;
    p->report->graphs.metadata_bytes = (int64_t)needed;
    if (p->notes)
        fprintf(p->notes,
                "graphs: %u %s batches of %" PRId32 " to %" PRId32
                " sequences%s, %.1f MiB of metadata\n",
                graphs->count, p->drafts.tokens > 0 ? "verification" : "decode",
                graphs->entries[0].size, graphs->entries[graphs->count - 1].size,
                executor->batch.params.tells_shared ? ", with shared prefixes and without" : "",
                (double)needed / (1 << 20));
    if (needed <= free_bytes)
        return ATTN_OK;
    return host_fail(error, ATTN_OUT_OF_DEVICE_MEMORY,
                     "%s: cuda_graph.bs: %u graphs need %" PRIu64 " bytes of metadata, and %" PRIu64
                     " are free; accepted: fewer or smaller sizes, or a smaller "
                     "kv_cache.mem_fraction",
                     config_place(p->config, "cuda_graph.bs"), graphs->count, needed, free_bytes);
}

/* ---- Capture --------------------------------------------------------------------------------- */

static attn_status make_metadata(struct executor *executor, struct graph_entry *entry,
                                 attn_error *error)
{
    entry->metadata = calloc(executor->num_units, sizeof *entry->metadata);
    attn_status status = entry->metadata
                             ? ATTN_OK
                             : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for graphs");
    for (uint32_t u = 0; u < executor->num_units && status == ATTN_OK; u++) {
        attn_bounds bounds = bounds_of(executor, u, entry);
        status = attnhost_metadata_create(executor->units[u].backend, ATTN_METADATA_GRAPH, &bounds,
                                          NULL, &entry->metadata[u], error);
    }
    return status;
}

/* A batch of nothing but padding, planned on the entry's metadata. */
static attn_status plan_padding(struct executor *executor, const struct graph_entry *entry,
                                attn_error *error)
{
    struct batch_step step = {
        .mode = captured_mode(executor),
        .req_to_token_stride = executor->params.table_columns,
        .padded = entry->size,
        .tells_shared = entry->tells_shared,
        .seq_len_fill = executor->graphs.seq_len_fill,
    };
    attn_status status = forward_batch_fill(&executor->batch, 0, &step, error);
    if (status == ATTN_OK)
        status =
            forward_batch_upload(&executor->batch, 0, executor->kernels, executor->stream, error);
    return status == ATTN_OK ? executor_plan(executor, entry->metadata, error) : status;
}

static attn_status warm_up(struct executor *executor, const struct graph_entry *entry,
                           attn_error *error)
{
    struct layers_run run = {.metadata = entry->metadata};
    attn_status status = executor_run_layers(executor, &run, error);
    return status == ATTN_OK ? device_synchronize(executor->params.device, executor->stream, error)
                             : status;
}

/* A capture is always ended, even after an error in it. */
static attn_status record(struct executor *executor, struct graph_entry *entry, attn_error *error)
{
    const struct device *device = executor->params.device;
    struct layers_run run = {.metadata = entry->metadata, .flags = ATTN_FORWARD_CAPTURING};
    attn_status status = device_capture_begin(device, executor->stream, error);
    if (status != ATTN_OK)
        return status;
    status = executor_run_layers(executor, &run, error);
    if (status == ATTN_OK)
        return device_capture_end(device, executor->stream, &entry->graph, error);
    device_capture_end(device, executor->stream, NULL, NULL);
    return status;
}

static attn_status capture(struct executor *executor, struct graph_entry *entry, attn_error *error)
{
    attn_status status = make_metadata(executor, entry, error);
    if (status == ATTN_OK)
        status = plan_padding(executor, entry, error);
    if (status == ATTN_OK)
        status = warm_up(executor, entry, error);
    if (status == ATTN_OK)
        status = record(executor, entry, error);
    if (status == ATTN_OK)
        return ATTN_OK;
    return host_fail_prefix(error, "%s: cuda_graph.bs: graph of %d sequences",
                            config_place(executor->params.config, "cuda_graph.bs"), entry->size);
}

static attn_status capture_all(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    struct graph_runner *graphs = &executor->graphs;
    uint64_t before, after, total;
    attn_status status = device_memory(p->device, &before, &total, error);
    for (uint32_t e = graphs->count; e-- > 0 && status == ATTN_OK;)
        status = capture(executor, &graphs->entries[e], error);
    if (status == ATTN_OK)
        status = device_memory(p->device, &after, &total, error);
    if (status != ATTN_OK)
        return status;
    p->report->graphs.count = graphs->count;
    p->report->graphs.bytes = before > after ? (int64_t)(before - after) : 0;
    return ATTN_OK;
}

/* Rows of routes that match no graph (routes.h). */
static void note_routes(const struct executor *executor)
{
    const struct executor_params *p = &executor->params;
    strbuf text;
    strbuf_init(&text);
    routes_beyond_graphs(&p->host->composer, p->config, p->selection, p->bounds.max_kv_len,
                         "the longest request's", &text);
    if (p->notes)
        fputs(strbuf_text(&text), p->notes);
    strbuf_finish(&text);
}

attn_status graph_runner_create(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    if (executor_on_cpu(executor) || !p->config->cuda_graph.enable || model_encodes(p->model))
        return ATTN_OK;
    const char *backend = select_uncapturable(p->selection, p->config);
    if (backend) {
        if (p->notes)
            fprintf(p->notes, "graphs: none, as %s cannot be captured in %s batches\n", backend,
                    p->drafts.tokens > 0 ? "verification" : "decode");
        return ATTN_OK;
    }
    executor->graphs.seq_len_fill = find_fill(executor);
    attn_status status = choose_sizes(executor, error);
    if (status != ATTN_OK || executor->graphs.count == 0)
        return status;
    status = check_memory(executor, error);
    note_routes(executor);
    return status == ATTN_OK ? capture_all(executor, error) : status;
}

void graph_runner_destroy(struct executor *executor)
{
    struct graph_runner *graphs = &executor->graphs;
    for (uint32_t e = 0; e < graphs->count; e++) {
        struct graph_entry *entry = &graphs->entries[e];
        device_graph_destroy(executor->params.device, entry->graph);
        for (uint32_t u = 0; entry->metadata && u < executor->num_units; u++)
            attnhost_metadata_destroy(entry->metadata[u]);
        free(entry->metadata);
    }
    free(graphs->entries);
}

/* ---- Replay ---------------------------------------------------------------------------------- */

/* Do the step's sequences share so many of their keys that it is worth a launch for each level? */
static bool tells_shared(struct executor *executor, const struct batch_step *step)
{
    struct shared_prefix *shared = &executor->batch.shared;
    int64_t keys = 0;
    if (!executor->batch.params.tells_shared || step->mode != ATTN_MODE_DECODE)
        return false;
    shared_prefix_plan(shared, step->sequences, step->num_sequences);
    for (int32_t s = 0; s < step->num_sequences; s++)
        keys += step->sequences[s].prefix_len + step->sequences[s].num_new;
    return shared->num_levels > 0 && shared->saved_keys >= keys / SHARED_PART;
}

const struct graph_entry *graph_runner_find(struct executor *executor,
                                            const struct batch_step *step)
{
    const struct graph_runner *graphs = &executor->graphs;
    if (step->mode != captured_mode(executor) || graphs->count == 0)
        return NULL;
    bool wanted = tells_shared(executor, step);
    for (uint32_t e = 0; e < graphs->count; e++)
        if (graphs->entries[e].size >= step->num_sequences &&
            graphs->entries[e].tells_shared == wanted)
            return &graphs->entries[e];
    return NULL;
}
