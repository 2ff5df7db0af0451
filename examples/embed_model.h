/* SPDX-License-Identifier: Apache-2.0
 *
 * embed_model.h: what the examples embed.c and embed_cuda.c serve, and how they check it. An engine
 * has its own instead of all this, but for the way in which a model is described to the library.
 *
 * The model has no weights: q, k and v are a hash of where they belong, so that every output row
 * can be compared with a softmax in fp64 over keys that are made anew. The values are multiples of
 * 1/64, which fp32 and bf16 both hold exactly.
 */
#ifndef EMBED_MODEL_H
#define EMBED_MODEL_H

#include <attnhost.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 4, /* even ones have a window, odd ones see everything */
    GROUPS = 2, /* of layers, and of their keys: a layer's group is its number modulo 2 */
    Q_HEADS = 4,
    KV_HEADS = 2,
    DIM = 32,
    PAGE = 4,
    SLIDING_WINDOW = 12, /* as a model's config counts: the query is one of the 12 */
    MAX_LEN = 64
};

static const int window_left[GROUPS] = {SLIDING_WINDOW - 1, -1};

/* ---- Errors, tensors ------------------------------------------------------------------------- */

static char message[512];
static attn_error error = {
    .struct_size = sizeof error, .capacity = sizeof message, .message = message};

static inline void check(attn_status status, const char *what)
{
    if (status == ATTN_OK)
        return;
    fprintf(stderr, "embed: %s: %s: %s\n", what, attnhost_status_name(status), message);
    exit(1);
}

static inline void require(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "embed: %s\n", what);
    exit(1);
}

/* A tensor of the engine's as the library is shown it; strides in elements, NULL = dense. */
static inline attn_tensor view(const attn_device *device, void *data, attn_dtype dtype,
                               uint32_t ndim, const int64_t *shape, const int64_t *strides)
{
    attn_tensor made;
    check(attnhost_tensor_init(&made, data, device->type, device->id, dtype, ndim, shape, strides,
                               &error),
          "tensor");
    return made;
}

/* ---- The model as the library sees it -------------------------------------------------------- */

/* A layer group for each kind of layer, each with its KV group, and a problem for each of them. */
typedef struct model {
    attn_device device;
    attn_bounds bounds;
    attn_layer layers[GROUPS][LAYERS / GROUPS];
    attn_layer_group groups[GROUPS];
    attn_problem problems[GROUPS];
} model;

static inline void describe_group(model *m, int g, attn_dtype dtype, uint32_t graph_level)
{
    for (int l = 0; l < LAYERS / GROUPS; l++) {
        int32_t id = l * GROUPS + g;
        m->layers[g][l] =
            (attn_layer){.struct_size = sizeof(attn_layer), .layer_id = id, .kv_buffer = id};
    }
    m->groups[g] = (attn_layer_group){.struct_size = sizeof(attn_layer_group),
                                      .kind = ATTN_KIND_SOFTMAX,
                                      .attn_type = ATTN_TYPE_DECODER,
                                      .kv_group = g,
                                      .num_q_heads = Q_HEADS,
                                      .num_kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .v_head_dim = DIM,
                                      .window_left = window_left[g],
                                      .window_right = 0, /* causal */
                                      .sm_scale = 1,
                                      .num_layers = LAYERS / GROUPS,
                                      .layers = m->layers[g]};
    m->problems[g] = (attn_problem){.struct_size = sizeof(attn_problem),
                                    .graph_level = graph_level,
                                    .device = &m->device,
                                    .group = &m->groups[g],
                                    .bounds = &m->bounds,
                                    .kv_layout = ATTN_LAYOUT_KV_NHD,
                                    .q_dtype = dtype,
                                    .kv_dtype = dtype,
                                    .out_dtype = ATTN_F32,
                                    .page_size = PAGE,
                                    .tp_size = 1};
}

/* m->device is there already. */
static inline void describe_model(model *m, attn_dtype dtype, uint32_t graph_level, int max_seqs,
                                  int max_tokens, int max_q_len)
{
    m->bounds =
        (attn_bounds){.struct_size = sizeof(attn_bounds),
                      .modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE),
                      .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                      .max_seqs = max_seqs,
                      .max_tokens = max_tokens,
                      .max_q_len = max_q_len,
                      .max_kv_len = MAX_LEN,
                      .max_kv_tokens = (int64_t)max_seqs * MAX_LEN};
    for (int g = 0; g < GROUPS; g++)
        describe_group(m, g, dtype, graph_level);
}

/* ---- Plugins, and what one can do ------------------------------------------------------------ */

/* A host with the plugins of a file (*.so) or a folder; NULL = the installed ones. */
static inline attnhost *load_plugins(const char *path)
{
    attnhost *host = NULL;
    attnhost_params params = {.struct_size = sizeof params, .log_level = ATTN_LOG_WARNING};
    check(attnhost_create(&params, &host, &error), "host");
    size_t length = path ? strlen(path) : 0;
    if (!path)
        check(attnhost_load_installed(host, &error), "installed plugins");
    else if (length > 3 && strcmp(path + length - 3, ".so") == 0)
        check(attnhost_load_plugin(host, path, &error), path);
    else
        check(attnhost_load_directory(host, path, &error), path);
    return host;
}

/* Ask before anything is allocated, and print what is in the way. Returns the length that padding
 * has in a graph. */
static inline int32_t ask(const attnhost *host, const char *name, const model *m)
{
    int32_t fill = 0;
    for (int g = 0; g < GROUPS; g++) {
        attn_reason reasons[8];
        attn_verdict verdict = {
            .struct_size = sizeof verdict, .reasons_capacity = 8, .reasons = reasons};
        for (int r = 0; r < 8; r++)
            reasons[r] = (attn_reason){.struct_size = sizeof(attn_reason)};
        check(attnhost_query(host, name, &m->problems[g], &verdict, &error), "query");
        for (uint32_t r = 0; !verdict.supported && r < verdict.num_reasons && r < 8; r++)
            fprintf(stderr, "embed: %s %s: %s: accepted %s\n", name, reasons[r].child,
                    reasons[r].got, reasons[r].accepted);
        require(verdict.supported != 0, "the backend cannot serve this model");
        if (verdict.graph_seq_len_fill > fill)
            fill = verdict.graph_seq_len_fill;
    }
    return fill;
}

/* ---- Vectors, and what attention over them is ------------------------------------------------ */

enum { QUERY = 0, KEY = 1, VALUE = 2 };

/* An element of a vector, in [-1, 1). */
static inline float element(int kind, int layer, int request, int position, int head, int d)
{
    uint64_t x = (uint64_t)kind << 60 | (uint64_t)layer << 52 | (uint64_t)request << 44 |
                 (uint64_t)position << 24 | (uint64_t)head << 16 | (uint64_t)d;
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return (float)((int64_t)(x ^ x >> 33) >> 57) / 64;
}

/* A token's vector for all heads. */
static inline void make_row(int kind, int layer, int request, int position, int heads, float *row)
{
    for (int i = 0; i < heads * DIM; i++)
        row[i] = element(kind, layer, request, position, i / DIM, i % DIM);
}

/* Row `position` of `request` in fp64, over the keys that it sees. */
static inline void attend(int layer, int request, int position, int head, double *out)
{
    int left = window_left[layer % GROUPS], kv_head = head / (Q_HEADS / KV_HEADS);
    int first = left >= 0 && position > left ? position - left : 0;
    double score[MAX_LEN], max = -INFINITY, total = 0;
    for (int j = first; j <= position; j++) {
        score[j] = 0;
        for (int d = 0; d < DIM; d++)
            score[j] += (double)element(QUERY, layer, request, position, head, d) *
                        element(KEY, layer, request, j, kv_head, d);
        max = fmax(max, score[j]);
    }
    memset(out, 0, DIM * sizeof *out);
    for (int j = first; j <= position; j++) {
        double p = exp(score[j] - max);
        total += p;
        for (int d = 0; d < DIM; d++)
            out[d] += p * element(VALUE, layer, request, j, kv_head, d);
    }
    for (int d = 0; d < DIM; d++)
        out[d] /= total;
}

/* Values are up to 1, so the tolerance is one of their size, too. */
static inline void check_row(const float *row, int layer, int request, int position,
                             double tolerance)
{
    for (int head = 0; head < Q_HEADS; head++) {
        double expected[DIM];
        attend(layer, request, position, head, expected);
        for (int d = 0; d < DIM; d++) {
            double got = row[head * DIM + d];
            if (fabs(got - expected[d]) <= tolerance) /* NaN fails, too */
                continue;
            fprintf(stderr,
                    "embed: layer %d request %d position %d head %d element %d: "
                    "got %.9g, expected %.9g\n",
                    layer, request, position, head, d, got, expected[d]);
            exit(1);
        }
    }
}

#endif /* EMBED_MODEL_H */
