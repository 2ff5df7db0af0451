/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_rows: how many rows of a plugin's random cases fail the pass rule: what
 * docs/CONFORMANCE.md tells of millions of rows. Softmax, latent and recurrent layers, whatever the
 * backend accepts.
 *
 *   tests/host/check/plugin_rows PLUGIN.so BACKEND ROWS SEED [KEY VALUE]...
 */
#include "host/check/check.h"
#include "host/check/cases/forward_case_private.h"
#include "host/check/cases/grid.h"
#include "host/check/cases/linear_find.h"
#include "host/base/error.h"
#include "host/base/mix.h"

#include <stdio.h>
#include <stdlib.h>

enum { KINDS = 3, MAX_OPTIONS = 8, PATIENCE = 2000 };
static const char *const kinds[KINDS] = {"softmax", "latent", "recurrent"};

struct evidence {
    attnhost *host;
    struct device *device;
    struct compose_node *node;
    struct check_subject subject;
    struct case_backend backend;
    struct grid *grid;
    uint64_t seed;
    int64_t cases[KINDS], failed[KINDS];
    reference_report judged[KINDS];
    host_error error;
};

/* ---- Cases ----------------------------------------------------------------------------------- */

/* More rows than the suite's cases have, which are to be quick. */
static void grow(struct case_spec *spec, uint64_t words)
{
    if (spec->mode != ATTN_MODE_EXTEND || spec->attn_type == ATTN_TYPE_CROSS || spec->partial ||
        spec->padded || spec->latent.expanded)
        return;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        spec->sequences[s].num_new += (int32_t)(mix_word(words + (uint64_t)s) % 48);
}

static void judge(struct evidence *e, int kind, const struct case_spec *spec, uint64_t n,
                  const attn_options *options)
{
    struct forward_case *c = NULL;
    struct case_verdict verdict;
    struct case_backend backend = e->backend;
    const struct case_run how = {0};
    char what[LINEAR_TEXT];
    backend.options = options;
    if (forward_case_create(spec, mix_absorb(e->seed, n), e->device, &c, &e->error.base) != ATTN_OK)
        return;
    forward_case_judge(c, &backend, &how, &verdict);
    reference_report_add(&e->judged[kind], &c->judged);
    e->cases[kind]++;
    e->failed[kind] += !verdict.good;
    case_spec_describe(spec, what, sizeof what);
    if (!verdict.good)
        printf("# case %llu: %s; %s\n", (unsigned long long)n, verdict.text, what);
    forward_case_destroy(c);
}

static void judge_forward(struct evidence *e, int kind, struct case_spec *spec, uint64_t n,
                          const attn_options *options)
{
    grow(spec, mix_absorb(e->seed, n));
    if (grid_accepts_spec(e->grid, options, spec, NULL, 0))
        judge(e, kind, spec, n, options);
}

static void judge_softmax(struct evidence *e, uint64_t n)
{
    struct grid_point point = grid_random(e->grid, e->seed, n);
    struct case_spec spec;
    if (e->grid->num_points > 0 && grid_accepts(e->grid, &point, &spec, NULL, 0))
        judge_forward(e, 0, &spec, n, grid_options(e->grid, &point));
}

static void judge_latent(struct evidence *e, uint64_t n)
{
    struct grid_point point = grid_random_latent(e->grid, e->seed, n, 0);
    struct case_spec spec;
    if (grid_accepts(e->grid, &point, &spec, NULL, 0))
        judge_forward(e, 1, &spec, n, grid_options(e->grid, &point));
}

static void judge_recurrent(struct evidence *e, uint64_t n)
{
    struct case_spec spec = {.kind = ATTN_KIND_LINEAR};
    char reason[LINEAR_TEXT];
    linear_spec_draw(&spec, (uint32_t)(n % ATTN_LINEAR_COUNT), mix_absorb(e->seed, n));
    if (linear_accepts(&e->subject, &spec, reason))
        judge(e, 2, &spec, n, e->subject.options);
}

static int64_t rows_of(const struct evidence *e)
{
    int64_t rows = 0;
    for (int kind = 0; kind < KINDS; kind++)
        rows += e->judged[kind].rows_checked;
    return rows;
}

/* Until there are rows enough, or nothing is accepted any more. */
static void judge_all(struct evidence *e, int64_t rows)
{
    int64_t before = -1, idle = 0;
    for (uint64_t n = 0; rows_of(e) < rows && idle < PATIENCE; n++) {
        judge_softmax(e, n);
        judge_latent(e, n);
        judge_recurrent(e, n);
        idle = rows_of(e) == before ? idle + 1 : 0;
        before = rows_of(e);
    }
}

/* ---- The plugin ------------------------------------------------------------------------------ */

static attn_status open_plugin(struct evidence *e, const char *path, const char *name,
                               const char *const *options, uint32_t num_options)
{
    attnhost_params params = {.struct_size = sizeof params, .num_threads = 1};
    attn_error *error = &e->error.base;
    attn_status status = attnhost_create(&params, &e->host, error);
    if (status == ATTN_OK)
        status = attnhost_load_plugin(e->host, path, error);
    if (status == ATTN_OK)
        status = attnhost_define_backend(e->host, "subject", name,
                                         (const char **)(uintptr_t)options, num_options, error);
    if (status == ATTN_OK)
        status = device_open(ATTN_DEVICE_CPU, 0, &e->device, error);
    if (status == ATTN_OK)
        status = compose_resolve(&e->host->composer, "subject", e->device, &e->node, error);
    if (status == ATTN_OK)
        status = loader_acquire(e->node->type->plugin, error);
    if (status != ATTN_OK)
        return status;
    e->node->acquired = 1;
    e->backend = (struct case_backend){.type = e->node->type->type,
                                       .options = &e->node->options->view,
                                       .services = &e->node->services};
    e->subject = (struct check_subject){.host = e->host,
                                        .type = e->backend.type,
                                        .backend = name,
                                        .node = e->node,
                                        .options = e->backend.options,
                                        .services = e->backend.services,
                                        .device = e->device,
                                        .cpu = e->device,
                                        .seed = e->seed};
    const struct grid_backend asked = {e->backend.type, e->backend.options, e->backend.services,
                                       e->device, NULL};
    return grid_create(&asked, e->seed, false, &e->grid, error);
}

static void close_plugin(struct evidence *e)
{
    grid_destroy(e->grid);
    compose_destroy(e->node);
    device_close(e->device);
    attnhost_destroy(e->host);
}

int main(int argc, char **argv)
{
    struct evidence e = {0};
    int bad = 0;
    if (argc < 5 || argc % 2 == 0 || argc > 5 + 2 * MAX_OPTIONS) {
        fprintf(stderr, "usage: plugin_rows PLUGIN.so BACKEND ROWS SEED [KEY VALUE]...\n");
        return 2;
    }
    host_error_init(&e.error);
    e.seed = strtoull(argv[4], NULL, 10);
    if (open_plugin(&e, argv[1], argv[2], (const char *const *)argv + 5,
                    (uint32_t)(argc - 5) / 2) != ATTN_OK) {
        fprintf(stderr, "plugin_rows: %s\n", host_error_text(&e.error));
        return 1;
    }
    judge_all(&e, atoll(argv[3]));
    for (int kind = 0; kind < KINDS; kind++) {
        const reference_report *r = &e.judged[kind];
        printf("%s: %lld cases, %lld failed; %lld rows, %lld failed; %lld LSE, %lld failed; worst "
               "%.3f bars\n",
               kinds[kind], (long long)e.cases[kind], (long long)e.failed[kind],
               (long long)r->rows_checked, (long long)r->rows_failed, (long long)r->lse_checked,
               (long long)r->lse_failed, r->worst_ratio);
        bad += e.failed[kind] > 0;
    }
    close_plugin(&e);
    return bad > 0;
}
