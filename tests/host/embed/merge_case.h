/* SPDX-License-Identifier: Apache-2.0
 *
 * merge_case.h: random partial results in the memory of a backend's device, merged there and
 * compared with the definition in fp64. Each test program has its own copy.
 */
#ifndef MERGE_CASE_H
#define MERGE_CASE_H

#include "attnhost.h"
#include "tests/tools/plain_problem.h"
#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/device/device.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct merge_scene {
    attnhost *host;
    attnhost_backend *backend;
    struct device *device;
    attn_stream stream;
    host_error error;
};

#define MERGE_GOOD(scene, call)                                                                    \
    ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&(scene)->error))

/* A backend for one layer on the device, of a plugin's file. */
static inline void merge_scene_open(struct merge_scene *s, const char *file, const char *name,
                                    int32_t type)
{
    struct plain_problem plain;
    plain_problem_init(&plain, 0, ATTN_BF16);
    plain_problem_decodes(&plain);
    *s = (struct merge_scene){.host = NULL};
    host_error_init(&s->error);
    MERGE_GOOD(s, device_open(type, 0, &s->device, &s->error.base));
    MERGE_GOOD(s, device_stream_create(s->device, &s->stream, &s->error.base));
    plain.problem.device = &s->device->info;
    plain.problem.out_dtype = ATTN_F32;
    MERGE_GOOD(s, attnhost_create(NULL, &s->host, &s->error.base));
    MERGE_GOOD(s, attnhost_load_plugin(s->host, file, &s->error.base));
    MERGE_GOOD(s, attnhost_compose(s->host, name, &plain.problem, 1, &s->backend, &s->error.base));
}

static inline void merge_scene_close(struct merge_scene *s)
{
    attnhost_backend_destroy(s->backend);
    attnhost_destroy(s->host);
    device_stream_destroy(s->device, s->stream);
    device_close(s->device);
}

/* ---- A case ---------------------------------------------------------------------------------- */

enum { MERGE_PARTS = 16, MERGE_TENSORS = 2 * MERGE_PARTS + 2 };

struct merge_case {
    int64_t tokens, heads, dim;
    uint32_t num_parts, num_tensors;
    attn_tensor outs[MERGE_PARTS], lses[MERGE_PARTS], out, lse;
    int with_lse;
    char *host[MERGE_TENSORS]; /* contents, as they were before the call */
    void *memory[MERGE_TENSORS];
    size_t bytes[MERGE_TENSORS];
    uint64_t seed;
};

static inline uint64_t merge_random(struct merge_case *c, uint64_t count)
{
    return mix_word(c->seed += 0x9e3779b97f4a7c15u) % count;
}

/* A tensor whose rows and heads lie apart, where `apart`; poison in between. */
static inline void merge_tensor_make(struct merge_scene *s, struct merge_case *c, attn_tensor *t,
                                     attn_dtype dtype, uint32_t ndim, int apart)
{
    const int64_t shape[] = {c->tokens, c->heads, c->dim};
    int64_t inner = ndim == 3 ? c->dim + (apart ? 3 : 0) : 1;
    const int64_t strides[] = {c->heads * inner + (apart ? 5 : 0), inner, 1};
    uint32_t n = c->num_tensors++;
    c->bytes[n] = (size_t)(c->tokens * strides[0] + 1) * attn_dtype_size(dtype);
    c->host[n] = malloc(c->bytes[n]);
    ck_assert_ptr_nonnull(c->host[n]);
    memset(c->host[n], 0x5a, c->bytes[n]);
    c->memory[n] = device_allocate(s->device, ATTN_SPACE_DEVICE, c->bytes[n], 64);
    ck_assert_ptr_nonnull(c->memory[n]);
    MERGE_GOOD(s, attnhost_tensor_init(t, c->memory[n], s->device->type, 0, dtype, ndim, shape,
                                       strides, &s->error.base));
}

static inline int64_t merge_place(const attn_tensor *t, int64_t token, int64_t head, int64_t d)
{
    return token * t->strides[0] + head * t->strides[1] + (t->ndim == 3 ? d * t->strides[2] : 0);
}

/* The LSE of a part of a row: mostly near others', at times empty, far away, or NaN. */
static inline double merge_some_lse(struct merge_case *c)
{
    uint64_t kind = merge_random(c, 40);
    if (kind < 8)
        return -(double)INFINITY;
    if (kind == 8)
        return (double)NAN;
    if (kind == 9)
        return 3e4 * (kind & 1 ? 1 : -1);
    return ((double)merge_random(c, 4001) - 2000) / 200;
}

static inline void merge_fill_part(struct merge_case *c, uint32_t p)
{
    char *out = c->host[2 * p], *lse = c->host[2 * p + 1];
    for (int64_t t = 0; t < c->tokens; t++)
        for (int64_t h = 0; h < c->heads; h++) {
            double value = merge_some_lse(c);
            int rubbish = value < 0 && isinf(value);
            dtype_store(ATTN_F32, lse, merge_place(&c->lses[p], t, h, 0), value);
            for (int64_t d = 0; d < c->dim; d++)
                dtype_store(c->outs[p].dtype, out, merge_place(&c->outs[p], t, h, d),
                            rubbish ? (double)NAN : ((double)merge_random(c, 2001) - 1000) / 250);
        }
}

static inline void merge_upload(struct merge_scene *s, struct merge_case *c)
{
    for (uint32_t n = 0; n < c->num_tensors; n++)
        MERGE_GOOD(s, device_copy(s->device, c->memory[n], c->host[n], c->bytes[n], s->stream,
                                  &s->error.base));
}

/* Parts at 2p and 2p + 1 of the memory, then the results. Every second case is merged in place. */
static inline void merge_case_make(struct merge_scene *s, struct merge_case *c, uint64_t seed)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    *c = (struct merge_case){.seed = seed};
    c->tokens = (int64_t)merge_random(c, 9) + (seed == 3 ? 0 : 1);
    c->heads = (int64_t)merge_random(c, 5) + 1;
    c->dim = (int64_t)merge_random(c, seed % 5 ? 70 : 300) + 1;
    c->num_parts = (uint32_t)merge_random(c, seed % 4 ? 4 : MERGE_PARTS) + 1;
    c->with_lse = seed % 7 != 6;
    attn_dtype dtype = seed < 3 ? ATTN_F32 : dtypes[merge_random(c, 3)];
    for (uint32_t p = 0; p < c->num_parts || p < 2; p++) {
        merge_tensor_make(s, c, &c->outs[p], dtype, 3, seed % 3 == 0);
        merge_tensor_make(s, c, &c->lses[p], ATTN_F32, 2, seed % 3 == 1);
        merge_fill_part(c, p);
    }
    merge_tensor_make(s, c, &c->out, seed % 2 ? dtype : ATTN_F32, 3, seed % 3 == 2);
    merge_tensor_make(s, c, &c->lse, ATTN_F32, 2, seed % 3 == 2);
    merge_upload(s, c);
}

static inline void merge_case_finish(struct merge_scene *s, struct merge_case *c)
{
    MERGE_GOOD(s, device_synchronize(s->device, s->stream, &s->error.base));
    for (uint32_t n = 0; n < c->num_tensors; n++) {
        device_release(s->device, ATTN_SPACE_DEVICE, c->memory[n]);
        free(c->host[n]);
    }
}

static inline attn_status merge_case_call(struct merge_scene *s, const struct merge_case *c)
{
    const attn_tensor *outs[MERGE_PARTS + 1], *lses[MERGE_PARTS + 1];
    for (uint32_t p = 0; p < MERGE_PARTS; p++) {
        outs[p] = &c->outs[p];
        lses[p] = &c->lses[p];
    }
    return attnhost_merge(s->backend, outs, lses, c->num_parts, &c->out,
                          c->with_lse ? &c->lse : NULL, s->stream, &s->error.base);
}

static inline void merge_case_refused(struct merge_scene *s, const struct merge_case *c,
                                      const char *says)
{
    host_error_init(&s->error);
    ck_assert_int_eq(merge_case_call(s, c), ATTN_INVALID_ARGUMENT);
    ck_assert_msg(strstr(host_error_text(&s->error), says) != NULL, "'%s' is not in '%s'", says,
                  host_error_text(&s->error));
}

/* ---- Judgement ------------------------------------------------------------------------------- */

static inline void merge_judge(const struct merge_case *c, double got, double expected,
                               attn_dtype dtype, double tolerance, const char *what)
{
    if (isnan(expected) || isinf(expected))
        ck_assert_msg(isnan(expected) ? isnan(got) : got == expected, "%s: %g, expected %g", what,
                      got, expected);
    else
        ck_assert_msg(fabs(got - expected) <=
                          tolerance + 2 * dtype_half_unit(dtype, fabs(expected)),
                      "%s: %.9g, expected %.9g (%lld tokens, %u parts)", what, got, expected,
                      (long long)c->tokens, c->num_parts);
}

/* One row by the definition. */
static inline void merge_judge_row(const struct merge_case *c, const char *out, const char *lse,
                                   int64_t t, int64_t h)
{
    double parts[MERGE_PARTS], total = 0, largest = -(double)INFINITY, unseen = 0;
    for (uint32_t p = 0; p < c->num_parts; p++) {
        parts[p] = dtype_load(ATTN_F32, c->host[2 * p + 1], merge_place(&c->lses[p], t, h, 0));
        largest = fmax(largest, parts[p]);
        unseen += isnan(parts[p]) ? parts[p] : 0;
    }
    for (uint32_t p = 0; p < c->num_parts; p++)
        total += isinf(largest) ? 0 : exp(parts[p] - largest);
    double expected_lse = isnan(unseen) ? unseen : largest + (total > 0 ? log(total) : 0);
    if (c->with_lse)
        merge_judge(c, dtype_load(ATTN_F32, lse, merge_place(&c->lse, t, h, 0)), expected_lse,
                    ATTN_F32, 1e-6 + 1e-6 * fabs(largest), "lse");
    for (int64_t d = 0; d < c->dim; d++) {
        double sum = isnan(unseen) ? unseen : 0;
        for (uint32_t p = 0; p < c->num_parts && !isnan(unseen) && total > 0; p++) {
            double weight = exp(parts[p] - largest) / total;
            sum += weight == 0 ? 0
                               : weight * dtype_load(c->outs[p].dtype, c->host[2 * p],
                                                     merge_place(&c->outs[p], t, h, d));
        }
        merge_judge(c, dtype_load(c->out.dtype, out, merge_place(&c->out, t, h, d)), sum,
                    c->out.dtype, 1e-5, "out");
    }
}

/* What is where no element is stays as it was. */
static inline void merge_judge_rest(const attn_tensor *tensor, char *got, size_t bytes)
{
    int64_t size = (int64_t)attn_dtype_size(tensor->dtype);
    for (int64_t t = 0; t < tensor->shape[0]; t++)
        for (int64_t h = 0; h < tensor->shape[1]; h++)
            for (int64_t d = 0; d < (tensor->ndim == 3 ? tensor->shape[2] : 1); d++)
                memset(got + merge_place(tensor, t, h, d) * size, 0x5a, (size_t)size);
    for (size_t b = 0; b < bytes; b++)
        ck_assert_int_eq(got[b], 0x5a);
}

static inline void merge_case_judge(struct merge_scene *s, struct merge_case *c)
{
    char *got[2];
    const void *from[2] = {c->out.data, c->with_lse ? c->lse.data : NULL};
    for (uint32_t r = 0; r < 2; r++) {
        size_t bytes = 0;
        for (uint32_t n = 0; n < c->num_tensors; n++)
            bytes = c->memory[n] == from[r] ? c->bytes[n] : bytes;
        got[r] = malloc(bytes + 1);
        ck_assert_ptr_nonnull(got[r]);
        MERGE_GOOD(s, device_copy(s->device, got[r], from[r], bytes, s->stream, &s->error.base));
        MERGE_GOOD(s, device_synchronize(s->device, s->stream, &s->error.base));
    }
    for (int64_t t = 0; t < c->tokens; t++)
        for (int64_t h = 0; h < c->heads; h++)
            merge_judge_row(c, got[0], got[1], t, h);
    merge_judge_rest(&c->out, got[0], c->bytes[c->num_tensors - 2]);
    free(got[0]);
    free(got[1]);
}

/* Cases of all kinds, every fourth in the place of its first or second part. */
static inline void merge_everything(struct merge_scene *s, uint64_t count)
{
    for (uint64_t seed = 0; seed < count; seed++) {
        struct merge_case c;
        merge_case_make(s, &c, seed);
        if (seed % 4 == 1) {
            c.out = c.outs[c.num_parts > 1];
            c.lse = c.lses[c.num_parts > 1];
        }
        host_error_init(&s->error);
        MERGE_GOOD(s, merge_case_call(s, &c));
        if (seed % 4 != 1) {
            merge_case_judge(s, &c);
        } else { /* the rest of its memory is the part's */
            struct merge_case in_place = c;
            in_place.bytes[c.num_tensors - 2] = 0;
            merge_case_judge(s, &in_place);
        }
        merge_case_finish(s, &c);
    }
}

/* A graph of the engine's, replayed over other contents. */
static inline void merge_captured(struct merge_scene *s)
{
    struct merge_case c;
    struct device_graph *graph = NULL;
    merge_case_make(s, &c, 10);
    MERGE_GOOD(s, merge_case_call(s, &c)); /* loads the kernels */
    MERGE_GOOD(s, device_synchronize(s->device, s->stream, &s->error.base));
    MERGE_GOOD(s, device_capture_begin(s->device, s->stream, &s->error.base));
    MERGE_GOOD(s, merge_case_call(s, &c));
    MERGE_GOOD(s, device_capture_end(s->device, s->stream, &graph, &s->error.base));
    for (int i = 0; i < 3; i++) {
        for (uint32_t p = 0; p < c.num_parts; p++)
            merge_fill_part(&c, p);
        merge_upload(s, &c);
        MERGE_GOOD(s, device_graph_launch(s->device, graph, s->stream, &s->error.base));
        merge_case_judge(s, &c);
    }
    device_graph_destroy(s->device, graph);
    merge_case_finish(s, &c);
}

#endif /* MERGE_CASE_H */
