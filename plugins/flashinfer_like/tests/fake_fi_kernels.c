/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_fi_kernels.c: the fake CUDA driver with flashinfer_like's kernels in it, as host functions,
 * so that all of the plugin but its device code is judged without a GPU: what it plans, the
 * launches, what blocks leave for each other, by what comes of them.
 *
 * The plan and the way of a block through it are the plugin's own sources (plan.cuh, walk.cuh),
 * which are C as well; attention is what kernels/plan.h says of it, in fp64, block after block, the
 * last one first.
 */
#include "tests/fixtures/fake_cuda_look_up.h"

#include "attn_types.h"
#include "host/base/dtype.h"
#include "plugins/common/cuda/save_kv.cuh"
#include "plugins/common/cuda/softmax.cuh"
#include "plugins/flashinfer_like/kernels/shapes.h"
#include "plugins/flashinfer_like/kernels/plan.cuh"
#include "plugins/flashinfer_like/kernels/walk.cuh"

#include <math.h>
#include <stdlib.h>

enum { MAX_DIM = 512 };

static attn_dtype dtype_of(int element)
{
    static const attn_dtype dtypes[] = {[ELEMENT_F32] = ATTN_F32,
                                        [ELEMENT_F16] = ATTN_F16,
                                        [ELEMENT_BF16] = ATTN_BF16,
                                        [ELEMENT_E4M3] = ATTN_FP8_E4M3,
                                        [ELEMENT_E5M2] = ATTN_FP8_E5M2};
    return dtypes[element];
}

/* A scale of an fp8 cache; 1 of another. */
static float scale_of(const fi_call *c, const float *device, const float *host, int head)
{
    if (!element_is_fp8(c->kv_dtype))
        return 1;
    int at = head * c->scale_stride;
    return device ? *PORTABLE_AT(device + at) : host[at];
}

static float k_scale_of(const fi_call *c, int head)
{
    return scale_of(c, c->operands.k_scale_device, c->operands.k_scales, head);
}

static float v_scale_of(const fi_call *c, int head)
{
    return scale_of(c, c->operands.v_scale_device, c->operands.v_scales, head);
}

/* ---- The plan -------------------------------------------------------------------------------- */

static void plan_batch(const struct fake_cuda_launch *launch)
{
    fi_plan_all(launch->arguments[0]);
}

/* ---- New keys and values --------------------------------------------------------------------- */

/* Row `row` of k and v, one head of it, into its slot. */
static void save_head(const fi_call *c, i64 row, int head, int dim, int v_dim)
{
    const call_operands *o = &c->operands;
    i64 slot = *PORTABLE_AT(c->batch.out_cache_loc + row);
    if (slot < 0)
        return;
    i64 page = slot / c->page_size, at = slot % c->page_size;
    save_kv_vector(c->dtype, c->kv_dtype, (const char *)o->k + row * o->k_row + head * o->k_head,
                   (char *)o->k_cache + page * o->k_page + at * o->k_token + head * o->k_cache_head,
                   dim, k_scale_of(c, head), 0, 1);
    save_kv_vector(c->dtype, c->kv_dtype, (const char *)o->v + row * o->v_row + head * o->v_head,
                   (char *)o->v_cache + page * o->v_page + at * o->v_token + head * o->v_cache_head,
                   v_dim, v_scale_of(c, head), 0, 1);
}

static void save_rows(const fi_call *c, int dim, int v_dim)
{
    const int *rows = c->batch.new_indptr ? c->batch.new_indptr : c->batch.q_indptr;
    int seqs = index_num_seqs(&c->batch);
    int first = rows ? index_int(rows, 0) : 0, end = rows ? index_int(rows, seqs) : seqs;
    for (int row = first; row < end; row++)
        for (int head = 0; head < c->kv_heads; head++)
            save_head(c, row, head, dim, v_dim);
}

static void save(const struct fake_cuda_launch *launch)
{
    const int *dim = launch->arguments[1], *v_dim = launch->arguments[2];
    save_rows(launch->arguments[0], *dim, *v_dim);
}

/* ---- Rows of an item ------------------------------------------------------------------------- */

/* Sums of a row so far; logits are in units of log 2, as they are in partial_row. */
struct sums {
    double top, total, values[MAX_DIM];
};

/* A block, and what it is at. */
struct block {
    const fi_call *c;
    const fi_shape *shape;
    const fi_kernel *kernel;
    int number;
    walk_block place;
    fi_start start;
    cursor at;
    int is_first; /* its first item */
    index_sequence q;
    struct sums sums[FI_PREFILL_ROWS];
};

static mask_rule rule_of(const fi_call *c)
{
    return (mask_rule){c->window_left, c->batch.window_right, c->chunk, c->custom, 1};
}

static int num_rows(const struct block *b)
{
    return int_min(b->kernel->rows, b->q.q_len * b->c->ratio - b->at.tile.row0);
}

/* Row r as a row of q and out, and its query head. */
static i64 find_row(const struct block *b, int r, int *head)
{
    int n = b->at.tile.row0 + r, ratio = b->c->ratio;
    *head = (b->at.head) * ratio + n % ratio;
    return (i64)b->q.first_row + n / ratio;
}

/* More of a row: `total` and `values` are relative to `top`. No values: a sink. Of a part whose logits are all NaN the
 * largest is -inf, and the sum NaN. */
static void sums_add(struct sums *x, double top, double total, const double *values, int dim)
{
    if (top == -(double)INFINITY && !isnan(total))
        return;
    double higher = fmax(x->top, top), share = exp2(top - higher);
    double shrink = x->top == -(double)INFINITY ? 0 : exp2(x->top - higher);
    x->top = higher;
    x->total = x->total * shrink + share * total;
    for (int d = 0; d < dim; d++)
        x->values[d] = x->values[d] * shrink + (values ? share * values[d] : 0);
}

static void item_begin(struct block *b)
{
    index_find_sequence(&b->c->batch, b->c->operands.k != NULL, b->at.tile.seq, &b->q);
    for (int r = 0; r < b->kernel->rows; r++)
        b->sums[r] = (struct sums){.top = -(double)INFINITY};
}

/* ---- Keys ------------------------------------------------------------------------------------ */

/* Is key j read from k and v? */
static int is_given(const struct block *b, int j)
{
    const fi_call *c = b->c;
    if (j < b->q.first_new)
        return 0;
    /* What is quantised is read as it is stored, if it is. */
    return !(element_is_fp8(c->kv_dtype) && c->saved &&
             *PORTABLE_AT(c->batch.out_cache_loc + b->q.new_row + (j - b->q.new_key)) >= 0);
}

/* A key or a value. `given`: as k and v have it; for a quantised cache it is rounded first. */
static void read_vector(const fi_call *c, const char *from, int given, float scale, int dim,
                        double *to)
{
    attn_dtype dtype = dtype_of(given ? c->dtype : c->kv_dtype);
    int rounds = given && element_is_fp8(c->kv_dtype);
    from = look_up(from, (size_t)dim * attn_dtype_size(dtype));
    for (int d = 0; d < dim; d++) {
        double x = dtype_load(dtype, from, d);
        u8 code = rounds ? save_kv_quantise(c->kv_dtype, (float)x, scale) : 0;
        to[d] = (double)scale * (rounds ? dtype_load(dtype_of(c->kv_dtype), &code, 0) : x);
    }
}

static double score(const struct block *b, const char *q, const double *k)
{
    attn_dtype dtype = dtype_of(b->c->dtype);
    double sum = 0;
    for (int d = 0; d < b->shape->dim; d++)
        sum += dtype_load(dtype, q, d) * k[d];
    return sum;
}

static double logit(const struct block *b, int head, const mask_view *view, int j, double score)
{
    const fi_call *c = b->c;
    mask_rule rule = rule_of(c);
    const float *slopes = c->operands.slopes;
    float slope = slopes ? *PORTABLE_AT(slopes + head) : 0;
    int position = mask_key_position(&rule, &c->batch, &b->q, j);
    return (double)softmax_logit((float)score * c->scale, c->cap, slopes != NULL, slope,
                                 fabsf((float)(view->position - position)));
}

static void attend_key(struct block *b, int j)
{
    const fi_call *c = b->c;
    index_sequence place = b->q;
    int given = is_given(b, j);
    place.first_new = given ? j : j + 1;
    const int *entry = index_entry(&c->batch, &place, c->page_size, j);
    mask_rule rule = rule_of(c);
    index_place at = index_find_key(&c->operands, &c->batch, &place, c->page_size, b->at.head, j,
                                    entry ? index_int(entry, 0) : 0);
    double k[MAX_DIM], v[MAX_DIM];
    read_vector(c, at.k, given, k_scale_of(c, b->at.head), b->shape->dim, k);
    read_vector(c, at.v, given, v_scale_of(c, b->at.head), b->shape->dim_v, v);
    for (int r = 0; r < num_rows(b); r++) {
        mask_view view;
        int head;
        i64 row = find_row(b, r, &head);
        mask_find_view(&rule, &c->batch, &b->q, b->at.tile.seq, (b->at.tile.row0 + r) / c->ratio,
                       &view);
        if (!mask_sees(&rule, &c->batch, &b->q, &view, j, b->at.tile.hi))
            continue;
        const char *q =
            (const char *)c->operands.q + row * c->operands.q_row + head * c->operands.q_head;
        double x = score(b, look_up(q, 2 * (size_t)b->shape->dim), k);
        sums_add(&b->sums[r], logit(b, head, &view, j, x), 1, v, b->shape->dim_v);
    }
}

static void attend_unit(struct block *b)
{
    const fi_call *c = b->c;
    int from = plan_unit_key(&b->at.tile, b->kernel->keys, b->at.unit);
    for (int j = from; j < int_min(from + b->kernel->keys, b->at.tile.hi); j++) {
        if (c->save && j == b->q.kv_len - 1 && b->at.tile.row0 == 0)
            save_head(c, b->q.new_row, b->at.head, b->shape->dim, b->shape->dim_v);
        attend_key(b, j);
    }
}

/* ---- Results --------------------------------------------------------------------------------- */

static void store_row(const fi_call *c, const fi_shape *shape, i64 row, int head,
                      const struct sums *x)
{
    const call_operands *o = &c->operands;
    attn_dtype dtype = dtype_of(c->out_dtype);
    char *out = (char *)o->out + row * o->out_row + head * o->out_head;
    out = look_up(out, (size_t)shape->dim_v * attn_dtype_size(dtype));
    for (int d = 0; d < shape->dim_v; d++)
        dtype_store(dtype, out, d, x->total == 0 ? 0 : x->values[d] / x->total);
    if (o->lse)
        *PORTABLE_AT((float *)((char *)o->lse + row * o->lse_row + head * o->lse_head)) =
            x->total == 0 ? -INFINITY : (float)((x->top + log2(x->total)) * (double)SOFTMAX_LN2);
}

/* Row `row` of what runs of a level left. */
static float *prior_of(const struct block *b, int level, i64 row, int head, float **numbers)
{
    const fi_call *c = b->c;
    i64 slot = ((i64)level * c->prior_rows + row) * (c->kv_heads * c->ratio) + head;
    *numbers = look_up(c->prior_row + slot * 2, 2 * sizeof(float));
    return look_up(c->prior + slot * b->shape->dim_v, (size_t)b->shape->dim_v * sizeof(float));
}

static void leave_sums(const struct sums *x, int dim, float *values, float *numbers)
{
    for (int d = 0; d < dim; d++)
        values[d] = (float)x->values[d];
    numbers[0] = (float)x->top;
    numbers[1] = (float)x->total;
}

static void take_sums(struct sums *x, const float *left, const float *numbers, int dim)
{
    double values[MAX_DIM];
    for (int d = 0; d < dim; d++)
        values[d] = (double)left[d];
    sums_add(x, (double)numbers[0], (double)numbers[1], values, dim);
}

static void finish_row(const struct block *b, int r, struct sums *x)
{
    int head, dim = b->shape->dim_v;
    i64 row = find_row(b, r, &head);
    float *numbers;
    if (b->c->level >= 0) {
        float *values = prior_of(b, b->c->level, row, head, &numbers);
        leave_sums(x, dim, values, numbers);
        return;
    }
    for (int l = 0; b->at.tile.levels >> l; l++)
        if (b->at.tile.levels >> l & 1) {
            const float *values = prior_of(b, l, row, head, &numbers);
            take_sums(x, values, numbers, dim);
        }
    const float *sinks = b->c->operands.sinks;
    if (sinks)
        sums_add(x, (double)(*PORTABLE_AT(sinks + head) * SOFTMAX_LOG2E), 1, NULL, b->shape->dim_v);
    store_row(b->c, b->shape, row, head, x);
}

/* Row r of a part, in device memory: its sums, and its largest logit and denominator. */
static float *part_of(const struct block *b, i64 slot, int r, float **numbers)
{
    i64 row = slot * b->kernel->rows + r;
    *numbers = look_up(b->c->partial_row + row * 2, 2 * sizeof(float));
    return look_up(b->c->partial + row * b->shape->dim_v, (size_t)b->shape->dim_v * sizeof(float));
}

/* gcc 12 at -O2 leaves out (double)(float) of neighbours that it converts together. */
static double as_float(double x)
{
    volatile float rounded = (float)x;
    return rounded;
}

/* To what device memory holds: splits are to add up to the same bits whoever adds them. */
static void sums_round(struct sums *x, int dim)
{
    x->top = as_float(x->top);
    x->total = as_float(x->total);
    for (int d = 0; d < dim; d++)
        x->values[d] = as_float(x->values[d]);
}

static void leave_row(struct block *b, parts p, int r)
{
    int dim = b->shape->dim_v;
    float *numbers, *values = part_of(b, p.mine, r, &numbers);
    struct sums x = {.top = -(double)INFINITY};
    if (p.is_added)
        take_sums(&x, values, numbers, dim);
    sums_round(&b->sums[r], dim);
    sums_add(&x, b->sums[r].top, b->sums[r].total, b->sums[r].values, dim);
    leave_sums(&x, dim, values, numbers);
}

static void merge_row(struct block *b, parts p, int r)
{
    struct sums x = {.top = -(double)INFINITY};
    for (int i = 0; i < p.count; i++) {
        float *numbers, *part = part_of(b, part_slot(p, i), r, &numbers);
        take_sums(&x, part, numbers, b->shape->dim_v);
        if (b->c->split > 0)
            sums_round(&x, b->shape->dim_v);
    }
    finish_row(b, r, &x);
}

static void item_end(struct block *b)
{
    int whole = walk_has_whole(b->c->split, &b->at, &b->start, b->is_first), is_last = 0;
    parts p = walk_parts(b->c, b->place, &b->at, &b->start, b->is_first);
    if (!whole && p.ends && p.arriving == p.all) {
        is_last = 1;
    } else if (!whole && p.ends) {
        int *counter = PORTABLE_AT(p.counter);
        *counter += p.arriving;
        is_last = *counter == p.all;
        *counter = is_last ? 0 : *counter;
    }
    for (int r = 0; r < num_rows(b); r++) {
        if (whole)
            finish_row(b, r, &b->sums[r]);
        else
            leave_row(b, p, r);
        if (is_last)
            merge_row(b, p, r);
    }
    b->is_first = b->is_first && b->at.unit < b->at.units - 1;
}

static void run_block(struct block *b)
{
    b->place = walk_find_block(b->c, b->number);
    b->start = *PORTABLE_AT(b->c->starts + b->place.column);
    b->at = walk_begin(b->c, b->place, &b->start, b->kernel->keys);
    b->is_first = 1;
    for (int begins = 1; b->at.left > 0; walk_next(b->c, b->place, &b->at, b->kernel->keys)) {
        if (begins)
            item_begin(b);
        attend_unit(b);
        begins = walk_ends_part(b->c->split, &b->at);
        if (begins)
            item_end(b);
    }
}

/* Rows of no sequence. */
static void clear_padding(const fi_call *c, const fi_shape *shape)
{
    const struct sums nothing = {.top = -(double)INFINITY};
    const int *rows = c->batch.q_indptr;
    int seqs = index_num_seqs(&c->batch), first = rows ? index_int(rows, seqs) : seqs;
    int end = (rows ? index_int(rows, 0) : 0) + index_num_tokens(&c->batch);
    for (int row = first; row < end; row++)
        for (int head = 0; head < c->kv_heads * c->ratio; head++)
            store_row(c, shape, row, head, &nothing);
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* The device is one before Hopper: it has neither its kernels nor its copy engine. */
static int is_earlier;

static const fi_shape *find_shape(const fi_shape *shape, const fi_call *c)
{
#define SHAPE(...)    FI_SHAPE_SM80(__VA_ARGS__),
#define SHAPE_16(...) FI_SHAPE_SM80_16(__VA_ARGS__),
    static const fi_shape earlier[] = {FI_SHAPES(SHAPE, SHAPE_16)};
#undef SHAPE
#undef SHAPE_16
    const fi_shape *found = NULL;
    for (size_t i = 0; i < sizeof earlier / sizeof earlier[0]; i++)
        if (earlier[i].dim == shape->dim && earlier[i].dim_v == shape->dim_v)
            found = &earlier[i];
    if (!is_earlier)
        return shape;
    return c->has_maps || c->has_new_maps || c->has_out_map ? NULL : found;
}

/* Groups with slopes have kernels of their own, up to FI_SLOPES_DIM on Hopper. */
static int is_sloped(const fi_call *c, const fi_shape *shape, int kernel)
{
    return kernel == KERNEL_PREFILL && shape->has_hopper && shape->dim <= FI_SLOPES_DIM &&
           c->operands.slopes;
}

/* A launch that is not of the table does nothing. */
static void attend(const struct fake_cuda_launch *launch, const fi_shape *hopper, int kernel,
                   attn_dtype kv_dtype)
{
    const fi_call *c = launch->arguments[0];
    const fi_shape *shape = find_shape(hopper, c);
    if (!shape)
        return;
    const fi_kernel *wanted = &shape->kernels[kernel];
    struct block *b = calloc(1, sizeof *b);
    unsigned shared =
        wanted->shared + (is_sloped(c, shape, kernel) ? FI_SLOPES_BYTES(wanted->keys) : 0);
    if (b && launch->block[0] == wanted->threads && launch->shared_bytes == shared &&
        launch->grid[fi_is_prefill(kernel) ? 2 : 0] ==
            (unsigned)(fi_is_prefill(kernel) ? 1 : c->lanes) &&
        dtype_of(c->kv_dtype) == kv_dtype) {
        b->c = c;
        b->shape = shape;
        b->kernel = wanted;
        for (b->number = (int)(launch->grid[0] * launch->grid[1]) - 1; b->number >= 0; b->number--)
            run_block(b);
        if (c->saves)
            save_rows(c, shape->dim, shape->dim_v);
        clear_padding(c, shape);
    }
    free(b);
}

static void prefill(const struct fake_cuda_launch *launch, const fi_shape *hopper, int sloped,
                    attn_dtype dtype)
{
    const fi_call *c = launch->arguments[0];
    const fi_shape *shape = find_shape(hopper, c);
    if (shape && sloped == is_sloped(c, shape, KERNEL_PREFILL))
        attend(launch, hopper, KERNEL_PREFILL, dtype);
}

#define KERNELS_PREFILL(name)                                                                      \
    static void prefill_##name##_bf16(const struct fake_cuda_launch *launch)                       \
    {                                                                                              \
        prefill(launch, &name##_shape, 0, ATTN_BF16);                                              \
    }                                                                                              \
    static void prefill_##name##_f16(const struct fake_cuda_launch *launch)                        \
    {                                                                                              \
        prefill(launch, &name##_shape, 0, ATTN_F16);                                               \
    }
#define KERNELS_SLOPES(name)                                                                       \
    static void slopes_##name##_bf16(const struct fake_cuda_launch *launch)                        \
    {                                                                                              \
        prefill(launch, &name##_shape, 1, ATTN_BF16);                                              \
    }                                                                                              \
    static void slopes_##name##_f16(const struct fake_cuda_launch *launch)                         \
    {                                                                                              \
        prefill(launch, &name##_shape, 1, ATTN_F16);                                               \
    }
#define KERNELS_16(name)                                                                           \
    static void attend_##name##_bf16(const struct fake_cuda_launch *launch)                        \
    {                                                                                              \
        attend(launch, &name##_shape, KERNEL_ATTEND, ATTN_BF16);                                   \
    }                                                                                              \
    static void attend_##name##_f16(const struct fake_cuda_launch *launch)                         \
    {                                                                                              \
        attend(launch, &name##_shape, KERNEL_ATTEND, ATTN_F16);                                    \
    }                                                                                              \
    static void many_##name##_bf16(const struct fake_cuda_launch *launch)                          \
    {                                                                                              \
        attend(launch, &name##_shape, KERNEL_ATTEND_MANY, ATTN_BF16);                              \
    }                                                                                              \
    static void many_##name##_f16(const struct fake_cuda_launch *launch)                           \
    {                                                                                              \
        attend(launch, &name##_shape, KERNEL_ATTEND_MANY, ATTN_F16);                               \
    }                                                                                              \
    KERNELS_PREFILL(name)                                                                          \
    KERNELS_SLOPES(name)                                                                           \
    static void half_##name##_bf16(const struct fake_cuda_launch *launch)                          \
    {                                                                                              \
        attend(launch, &name##_shape, KERNEL_PREFILL_HALF, ATTN_BF16);                             \
    }                                                                                              \
    static void half_##name##_f16(const struct fake_cuda_launch *launch)                           \
    {                                                                                              \
        attend(launch, &name##_shape, KERNEL_PREFILL_HALF, ATTN_F16);                              \
    }
#define KERNELS_CODES(name, codes, dtype)                                                          \
    static void many_##name##_##codes(const struct fake_cuda_launch *launch)                       \
    {                                                                                              \
        attend(launch, &name##_shape, KERNEL_CODES_MANY, dtype);                                   \
    }                                                                                              \
    static void attend_##name##_##codes(const struct fake_cuda_launch *launch)                     \
    {                                                                                              \
        attend(launch, &name##_shape, KERNEL_CODES, dtype);                                        \
    }                                                                                              \
    static void prefill_##name##_##codes(const struct fake_cuda_launch *launch)                    \
    {                                                                                              \
        attend(launch, &name##_shape, KERNEL_PREFILL_CODES, dtype);                                \
    }                                                                                              \
    static void half_##name##_##codes(const struct fake_cuda_launch *launch)                       \
    {                                                                                              \
        attend(launch, &name##_shape, KERNEL_PREFILL_HALF_CODES, dtype);                           \
    }
#define KERNELS(name, ...)                                                                         \
    static const fi_shape name##_shape = FI_SHAPE(name, __VA_ARGS__);                              \
    KERNELS_16(name)                                                                               \
    KERNELS_CODES(name, e4m3, ATTN_FP8_E4M3)                                                       \
    KERNELS_CODES(name, e5m2, ATTN_FP8_E5M2)
#define ONLY_KERNELS_16(name, ...)                                                                 \
    static const fi_shape name##_shape = FI_SHAPE_16(name, __VA_ARGS__);                           \
    KERNELS_16(name)
#define KERNELS_WIDE(name, ...)                                                                    \
    static const fi_shape name##_shape = FI_SHAPE_WIDE(name, __VA_ARGS__);                         \
    KERNELS_PREFILL(name)
FI_SHAPES(KERNELS, ONLY_KERNELS_16)
FI_WIDE_SHAPES(KERNELS_WIDE)
#undef KERNELS
#undef KERNELS_PREFILL
#undef KERNELS_SLOPES
#undef KERNELS_WIDE
#undef KERNELS_CODES
#undef ONLY_KERNELS_16
#undef KERNELS_16

/* ---- Definition ------------------------------------------------------------------------------ */

__attribute__((constructor)) static void define(void)
{
    static const size_t plan_size[] = {sizeof(fi_plan_call)}, attend_size[] = {sizeof(fi_call)};
    static const size_t save_sizes[] = {sizeof(fi_call), sizeof(int), sizeof(int)};
    const char *sm = getenv("ATTNHOST_FAKE_SM");
    if (fake_cuda_load("fake_cuda.so", &fake) != 0)
        return;
    is_earlier = sm && atoi(sm) < 90;
    if (sm) {
        fake.set_attribute(0, CUDA_ATTRIBUTE_CC_MAJOR, atoi(sm) / 10);
        fake.set_attribute(0, CUDA_ATTRIBUTE_CC_MINOR, atoi(sm) % 10);
    }
    if (is_earlier)
        fake.set_attribute(0, CUDA_ATTRIBUTE_SHARED_OPTIN,
                           atoi(sm) % 10 == 0 || atoi(sm) % 10 == 7 ? 166912 : 101376);
    fake.define_kernel("fi_plan_batch", plan_batch, plan_size, 1, NULL);
    fake.define_kernel("fi_save", save, save_sizes, 3, NULL);
#define DEFINE_ONE(name, function) fake.define_kernel(name, function, attend_size, 1, NULL);
#define DEFINE_ATTEND(name, function)                                                              \
    DEFINE_ONE("fi_attend_" name, function)                                                        \
    DEFINE_ONE("fi_attend_" name "_splits", function)
#define DEFINE_WIDE(name, ...)                                                                     \
    DEFINE_ONE("fi_prefill_" #name "_bf16", prefill_##name##_bf16)                                 \
    DEFINE_ONE("fi_prefill_" #name "_f16", prefill_##name##_f16)
#define DEFINE_16(name, ...)                                                                       \
    DEFINE_ATTEND(#name "_bf16", attend_##name##_bf16)                                             \
    DEFINE_ATTEND(#name "_f16", attend_##name##_f16)                                               \
    DEFINE_ONE("fi_attend_many_" #name "_bf16", many_##name##_bf16)                                \
    DEFINE_ONE("fi_attend_many_" #name "_f16", many_##name##_f16)                                  \
    DEFINE_WIDE(name)                                                                              \
    DEFINE_ONE("fi_prefill_" #name "_bf16_slopes", slopes_##name##_bf16)                           \
    DEFINE_ONE("fi_prefill_" #name "_f16_slopes", slopes_##name##_f16)                             \
    DEFINE_ONE("fi_prefill_half_" #name "_bf16", half_##name##_bf16)                               \
    DEFINE_ONE("fi_prefill_half_" #name "_f16", half_##name##_f16)
#define DEFINE_CODES(name, codes)                                                                  \
    DEFINE_ATTEND(#name "_bf16_" #codes, attend_##name##_##codes)                                  \
    DEFINE_ATTEND(#name "_f16_" #codes, attend_##name##_##codes)                                   \
    DEFINE_ONE("fi_attend_many_" #name "_bf16_" #codes, many_##name##_##codes)                     \
    DEFINE_ONE("fi_attend_many_" #name "_f16_" #codes, many_##name##_##codes)                      \
    DEFINE_ONE("fi_prefill_" #name "_bf16_" #codes, prefill_##name##_##codes)                      \
    DEFINE_ONE("fi_prefill_" #name "_f16_" #codes, prefill_##name##_##codes)                       \
    DEFINE_ONE("fi_prefill_half_" #name "_bf16_" #codes, half_##name##_##codes)                    \
    DEFINE_ONE("fi_prefill_half_" #name "_f16_" #codes, half_##name##_##codes)
#define DEFINE(name, ...)                                                                          \
    DEFINE_16(name)                                                                                \
    DEFINE_CODES(name, e4m3)                                                                       \
    DEFINE_CODES(name, e5m2)
    FI_SHAPES(DEFINE, DEFINE_16)
    FI_WIDE_SHAPES(DEFINE_WIDE)
#undef DEFINE
#undef DEFINE_CODES
#undef DEFINE_16
#undef DEFINE_WIDE
#undef DEFINE_ATTEND
#undef DEFINE_ONE
}
