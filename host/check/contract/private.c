/* SPDX-License-Identifier: Apache-2.0
 *
 * private.c: the group PRIV: operands and layouts of one vendor. Only the vendor knows what such an
 * operand means; the suite checks that results do not depend on where it lies.
 */
#include "host/check/cases/numerics.h"
#include "host/check/cases/operand_text.h"
#include "host/check/cases/layout_converter.h"
#include "host/check/cases/rig.h"

#include "host/base/dtype.h"
#include "host/base/mix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RED = 0xA5, RED_ZONE = 64 };

static const attn_backend_type *own_type(const struct check_subject *subject)
{
    return subject->converter ? subject->converter->front.inner : subject->type;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* Strides of a tensor whose shape is set: dimension `first` is the innermost but one, then the
 * others, each with a gap. Returns how many elements it spans. */
static int64_t lay_out(attn_tensor *tensor, bool turned, int64_t gap)
{
    uint32_t last = tensor->ndim - 1;
    int64_t stride = tensor->shape[last] + gap;
    tensor->strides[last] = 1;
    for (uint32_t n = 0; n < last; n++) {
        uint32_t d = turned ? n : last - 1 - n;
        tensor->strides[d] = stride;
        stride = stride * tensor->shape[d] + gap;
    }
    return (int64_t)operand_span(tensor) / attn_dtype_size(tensor->dtype);
}

static int64_t num_elements(const attn_tensor *tensor)
{
    int64_t count = 1;
    for (uint32_t d = 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    return count;
}

/* The address of element `number`, counted as in a dense tensor. */
static char *element(const attn_tensor *tensor, int64_t number)
{
    int64_t at = 0;
    for (uint32_t d = tensor->ndim; d-- > 0; number /= tensor->shape[d])
        at += number % tensor->shape[d] * tensor->strides[d];
    return (char *)tensor->data + tensor->byte_offset + at * attn_dtype_size(tensor->dtype);
}

/* ---- Private operands ------------------------------------------------------------------------ */

/* One operand of all forwards, in two forms of the same values. */
struct bearer {
    const attn_private_operand *wanted;
    attn_tensor tensor;
    attn_named_operand named;
    char *memory; /* on the host */
    void *device;
    uint64_t bytes;
};

/* 0 = it is any that the vendor says, or unknown. */
static int64_t extent_of(const struct rig *rig, int64_t extent)
{
    switch (extent) {
    case ATTN_EXTENT_TOKENS:
        return rig->batches[0].layers[0].operands[ATTN_ROLE_OUT]->shape[0];
    case ATTN_EXTENT_Q_HEADS:
        return rig->question.groups[0].num_q_heads;
    case ATTN_EXTENT_KV_HEADS:
        return rig->question.groups[0].num_kv_heads;
    case ATTN_EXTENT_KEYS:
        return rig->question.bounds.max_kv_len;
    default:
        return extent > 0 ? extent : 0;
    }
}

static bool has_any_extent(const attn_private_operand *wanted)
{
    for (uint32_t d = 0; d < wanted->ndim; d++)
        if (wanted->shape[d] == ATTN_EXTENT_ANY)
            return true;
    return false;
}

/* Values of -1 .. 1, zeros of what is no floating-point type; NaN, or ones, in the gaps. */
static void fill(struct bearer *bearer, uint64_t seed)
{
    attn_dtype dtype = bearer->tensor.dtype;
    memset(bearer->memory, 0xFF, bearer->bytes);
    for (int64_t n = 0; n < num_elements(&bearer->tensor); n++) {
        double value = (double)(mix_stream(seed, (uint64_t)n) >> 40) / (1 << 23) - 1;
        memset(element(&bearer->tensor, n), 0, attn_dtype_size(dtype));
        if (dtype_is_float(dtype))
            dtype_store(dtype, element(&bearer->tensor, n), 0, value);
    }
}

static void drop(struct bearer *bearer, const struct rig *rig)
{
    free(bearer->memory);
    device_release(rig->device, ATTN_SPACE_DEVICE, bearer->device);
}

/* `moved`: with other strides, and not where the memory begins. */
static bool bear(struct bearer *bearer, struct rig *rig, bool moved, uint64_t seed)
{
    const attn_private_operand *wanted = bearer->wanted;
    attn_dtype dtype = wanted->dtype ? wanted->dtype : rig->question.problems[0].q_dtype;
    uint32_t unit = rig->device->type == ATTN_DEVICE_CPU ? 1 : 16 / attn_dtype_size(dtype);
    attn_tensor *tensor = &bearer->tensor;
    *tensor = (attn_tensor){.struct_size = sizeof *tensor,
                            .device_type = rig->device->type,
                            .device_id = rig->device->id,
                            .dtype = dtype,
                            .ndim = wanted->ndim,
                            .alignment = attn_dtype_size(dtype)};
    for (uint32_t d = 0; d < wanted->ndim; d++)
        tensor->shape[d] = extent_of(rig, wanted->shape[d]);
    lay_out(tensor, moved, moved ? 3 * (int64_t)unit : 0);
    tensor->byte_offset = moved ? unit * attn_dtype_size(dtype) : 0;
    bearer->bytes = tensor->byte_offset + operand_span(tensor);
    bearer->memory = malloc(bearer->bytes);
    bearer->device = device_allocate(rig->device, ATTN_SPACE_DEVICE, bearer->bytes, 256);
    if (!bearer->memory || !bearer->device)
        return false;
    tensor->data = bearer->memory;
    fill(bearer, seed);
    tensor->data = bearer->device;
    bearer->named = (attn_named_operand){
        .struct_size = sizeof bearer->named, .name = wanted->name, .tensor = tensor};
    for (int n = 0; n < rig->num_batches * RIG_LAYERS; n++) {
        attn_forward_args *args = &rig->batches[n / RIG_LAYERS].layers[n % RIG_LAYERS].args;
        args->num_named = 1;
        args->named = &bearer->named;
    }
    return device_copy_wait(rig->device, bearer->device, bearer->memory, bearer->bytes, rig->stream,
                            NULL) == ATTN_OK;
}

static bool is_whole(const struct bearer *bearer, const struct rig *rig)
{
    char *now = malloc(bearer->bytes);
    bool whole = now &&
                 device_copy_wait(rig->device, now, bearer->device, bearer->bytes, rig->stream,
                                  NULL) == ATTN_OK &&
                 memcmp(now, bearer->memory, bearer->bytes) == 0;
    free(now);
    return whole;
}

/* All batches with the operand in one form. */
static bool run_form(struct rig *rig, const attn_private_operand *wanted, bool moved,
                     char *results[RIG_BATCHES])
{
    struct bearer bearer = {.wanted = wanted};
    bool good = bear(&bearer, rig, moved, rig->run->seed);
    if (!good)
        check_fail(rig->run, "no memory for %s", wanted->name);
    else
        good = rig_life(rig, results);
    if (good && !is_whole(&bearer, rig))
        check_fail(rig->run, "%s was written to", wanted->name);
    drop(&bearer, rig);
    return good;
}

static void compare_forms(struct rig *rig, const attn_private_operand *wanted)
{
    char *dense[RIG_BATCHES] = {NULL}, *moved[RIG_BATCHES] = {NULL};
    if (run_form(rig, wanted, false, dense) && run_form(rig, wanted, true, moved))
        for (int b = 0; b < rig->num_batches; b++) {
            const char *what = rig_difference(rig, b, dense[b], moved[b]);
            if (what)
                check_fail(rig->run,
                           "%s batch: %s differs where %s has other strides and an offset",
                           rig_a_batch(rig, b), what, wanted->name);
        }
    rig_free(dense);
    rig_free(moved);
}

static int32_t count_operands(const struct check_subject *subject)
{
    const attn_backend_type *type = own_type(subject);
    uint32_t count = ATTN_HAS(type, attn_backend_type, operands) ? type->num_operands : 0;
    return count > 0 ? (int32_t)count : 1;
}

static void run_places(struct check_run *run)
{
    const attn_backend_type *type = own_type(run->subject);
    struct rig rig;
    if (!ATTN_HAS(type, attn_backend_type, operands) || type->num_operands == 0) {
        check_skip(run, "it declares no private operand");
        return;
    }
    const attn_private_operand *wanted = attn_at(type->operands, (uint32_t)run->index);
    if (has_any_extent(wanted)) {
        check_skip(run, "%s has an extent of any size, which only its vendor knows", wanted->name);
        return;
    }
    if (!rig_open(&rig, run, run->seed))
        return;
    bool accepted = true;
    for (int g = 0; g < RIG_GROUPS; g++) {
        rig.question.problems[g].num_features = 1;
        rig.question.problems[g].features = &wanted->name;
        accepted = accepted && rig_accepts(run->subject, &rig.question.problems[g]);
    }
    if (accepted)
        compare_forms(&rig, wanted);
    else
        check_skip(run, "query refuses %s in a plain problem", wanted->name);
    rig_close(&rig);
}

/* ---- Private layouts: whether they can be converted ------------------------------------------ */

static const attn_layouts *conversions(const struct check_subject *subject)
{
    return layout_converter_layouts(subject->node->type->plugin);
}

/* False: there is nothing to check, and the case was skipped. */
static bool has_layout(struct check_run *run, uint32_t index)
{
    const char *layout = layout_converter_layout(own_type(run->subject), index);
    if (!layout)
        check_skip(run, "it has no vendor layout");
    else if (!conversions(run->subject))
        check_skip(run, "%s cannot be converted", layout);
    return run->code == CHECK_PASS;
}

static void run_extension(struct check_run *run)
{
    const char *layout = layout_converter_layout(own_type(run->subject), 0);
    if (!layout)
        check_skip(run, "it has no vendor layout");
    else if (!conversions(run->subject))
        check_warn(run, "the plugin has no extension %s: the suite cannot judge the contents of %s",
                   ATTN_EXTENSION_LAYOUTS, layout);
}

/* A subject that is called in kv.nhd/1 and works in one of its own layouts. */
struct view {
    struct layout_converter converter, *before;
    struct check_subject subject;
    struct grid *grid;
};

static void view_open(struct view *view, const struct check_subject *subject, uint32_t layout)
{
    view->subject = *subject;
    view->grid = NULL;
    view->before = layout_converter_use(NULL);
    layout_converter_use(view->before);
    if (subject->converter && layout == 0)
        return;
    layout_converter_init(&view->converter, own_type(subject), subject->device,
                          conversions(subject), layout_converter_layout(own_type(subject), layout));
    layout_converter_use(&view->converter);
    view->subject.type = &view->converter.front.type;
    view->subject.converter = &view->converter;
    view->subject.grid = &view->grid;
}

static void view_close(struct view *view)
{
    grid_destroy(view->grid);
    layout_converter_use(view->before);
}

/* Cases of a product over all layouts; *layout is that of case `index`, whose number among those of
 * its layout is returned. */
static int32_t count_in_layouts(const struct check_subject *subject,
                                const struct grid_choice *choices, int32_t index, uint32_t *layout)
{
    int32_t all = 0;
    for (uint32_t l = 0; layout_converter_layout(own_type(subject), l) && conversions(subject);
         l++) {
        struct view view;
        view_open(&view, subject, l);
        int32_t count = numerics_count(&view.subject, choices);
        view_close(&view);
        if (layout && index < all + count) {
            *layout = l;
            return index - all;
        }
        all += count;
    }
    return all > 0 ? all : 1;
}

/* ---- What is converted ----------------------------------------------------------------------- */

/* A tensor in memory between red zones. */
struct zoned {
    attn_tensor tensor;
    unsigned char *memory, *before;
    uint64_t bytes;
};

static bool zoned_init(struct zoned *z, int byte)
{
    z->bytes = operand_span(&z->tensor) + 2 * RED_ZONE;
    z->memory = malloc(z->bytes);
    z->before = malloc(z->bytes);
    if (!z->memory || !z->before)
        return false;
    memset(z->memory, byte, z->bytes);
    z->tensor.data = z->memory;
    z->tensor.byte_offset = RED_ZONE;
    return true;
}

static void zoned_finish(struct zoned *z)
{
    free(z->memory);
    free(z->before);
}

static void zoned_keep(struct zoned *z)
{
    memcpy(z->before, z->memory, z->bytes);
}

static bool zoned_is_kept(const struct zoned *z)
{
    return memcmp(z->before, z->memory, z->bytes) == 0;
}

struct round_trip {
    struct check_run *run;
    const attn_layouts *layouts;
    const char *layout;
    uint32_t role;
    struct zoned from, own, to;
};

static bool good(struct round_trip *trip, attn_status status, const char *what)
{
    return check_good(trip->run, status, "%s of %s", what, trip->layout);
}

/* Three pages of a cache. */
static void set_cache(attn_tensor *tensor, const struct case_spec *spec, uint32_t role, bool turned,
                      int64_t gap)
{
    int32_t dim = role == ATTN_ROLE_K_CACHE ? spec->head_dim : spec->v_head_dim;
    *tensor = (attn_tensor){.struct_size = sizeof *tensor,
                            .device_type = ATTN_DEVICE_CPU,
                            .dtype = spec->kv_dtype,
                            .ndim = 4,
                            .shape = {3, spec->page_size, spec->num_kv_heads, dim},
                            .alignment = attn_dtype_size(spec->kv_dtype)};
    lay_out(tensor, turned, gap);
}

static bool shape_own(struct round_trip *trip)
{
    attn_tensor *own = &trip->own.tensor;
    *own = trip->from.tensor;
    if (!good(trip,
              trip->layouts->shape(trip->layout, trip->role, &trip->from.tensor, own,
                                   check_error(trip->run)),
              "shape"))
        return false;
    bool sane = own->ndim >= 1 && own->ndim <= ATTN_MAX_DIMS && attn_dtype_size(own->dtype) > 0;
    for (uint32_t d = 0; sane && d < own->ndim; d++)
        sane = own->shape[d] > 0 && own->strides[d] > 0;
    if (!sane)
        check_fail(trip->run, "shape of %s: ndim %u, or an extent or a stride that is not positive",
                   trip->layout, own->ndim);
    return sane;
}

/* A layout is the plugin's, or it is refused. */
static void refuse_others(struct round_trip *trip)
{
    attn_tensor own = trip->from.tensor;
    attn_status status = trip->layouts->shape("unheard.of/1", trip->role, &trip->from.tensor, &own,
                                              check_error(trip->run));
    if (status != ATTN_UNSUPPORTED)
        check_fail(trip->run, "shape of unheard.of/1: %s; accepted: UNSUPPORTED",
                   host_status_name(status));
}

static void convert(struct round_trip *trip)
{
    struct zoned *from = &trip->from, *own = &trip->own, *to = &trip->to;
    for (int64_t n = 0; n < num_elements(&from->tensor); n++) {
        uint64_t bits = mix_stream(trip->run->seed, (uint64_t)n);
        memcpy(element(&from->tensor, n), &bits, attn_dtype_size(from->tensor.dtype));
    }
    zoned_keep(from);
    attn_status status = trip->layouts->from_nhd(trip->layout, trip->role, &from->tensor,
                                                 &own->tensor, check_error(trip->run));
    if (!good(trip, status, "from_nhd"))
        return;
    zoned_keep(own);
    status = trip->layouts->to_nhd(trip->layout, trip->role, &own->tensor, &to->tensor,
                                   check_error(trip->run));
    if (!good(trip, status, "to_nhd"))
        return;
    CHECK_THAT(trip->run, zoned_is_kept(from) && zoned_is_kept(own),
               "a conversion of %s changes its source", trip->layout);
    zoned_keep(to);
    for (int64_t n = 0; n < num_elements(&to->tensor); n++) {
        size_t size = attn_dtype_size(to->tensor.dtype);
        CHECK_THAT(trip->run, memcmp(element(&to->tensor, n), element(&from->tensor, n), size) == 0,
                   "%s of %s: element %lld of [%lld, %lld, %lld, %lld] changes in the round trip",
                   trip->role == ATTN_ROLE_K_CACHE ? "k_cache" : "v_cache", trip->layout,
                   (long long)n, (long long)to->tensor.shape[0], (long long)to->tensor.shape[1],
                   (long long)to->tensor.shape[2], (long long)to->tensor.shape[3]);
        memset(element(&to->tensor, n), RED, size);
    }
    for (uint64_t i = 0; i < to->bytes; i++)
        CHECK_THAT(trip->run, to->memory[i] == RED, "to_nhd of %s writes between elements",
                   trip->layout);
    for (uint64_t i = 0; i < own->bytes; i++)
        CHECK_THAT(trip->run, own->memory[i] == RED || (i >= RED_ZONE && i < own->bytes - RED_ZONE),
                   "from_nhd of %s writes beyond the shape", trip->layout);
}

static void convert_role(struct check_run *run, const struct case_spec *spec, const char *layout,
                         uint32_t role)
{
    struct round_trip trip = {
        .run = run, .layouts = conversions(run->subject), .layout = layout, .role = role};
    set_cache(&trip.from.tensor, spec, role, true, 3);
    set_cache(&trip.to.tensor, spec, role, false, 5);
    if (shape_own(&trip)) {
        if (zoned_init(&trip.from, RED) && zoned_init(&trip.own, RED) && zoned_init(&trip.to, RED))
            convert(&trip);
        else
            check_fail(run, "no memory for caches");
        refuse_others(&trip);
    }
    zoned_finish(&trip.from);
    zoned_finish(&trip.own);
    zoned_finish(&trip.to);
}

static const struct grid_choice shapes[GRID_MAX_CHOICES + 1] = {
    EACH(KV), FIRST(DIM, 3), FIRST(V_DIM, 2), FIRST(HEADS, 2), FIRST(PAGE, 3)};

/* All shapes in one case: a conversion takes no time. */
static void run_round_trip(struct check_run *run)
{
    if (!has_layout(run, 0))
        return;
    int32_t count = count_in_layouts(run->subject, shapes, 0, NULL);
    for (int32_t n = 0; n < count && run->code == CHECK_PASS; n++) {
        struct view view;
        struct check_run each = *run;
        struct case_spec spec;
        const attn_options *options;
        uint32_t l = 0;
        each.index = count_in_layouts(run->subject, shapes, n, &l);
        view_open(&view, run->subject, l);
        each.subject = &view.subject;
        struct grid *grid = grid_of(&view.subject);
        if (numerics_spec(&each, grid, shapes, &spec, &options) && spec.kv_layout)
            for (uint32_t role = ATTN_ROLE_K_CACHE; role <= ATTN_ROLE_V_CACHE; role++)
                convert_role(&each, &spec, layout_converter_layout(own_type(run->subject), l),
                             role);
        view_close(&view);
        run->code = each.code;
        memcpy(run->text, each.text, sizeof run->text);
    }
}

/* ---- What is computed ------------------------------------------------------------------------ */

static const struct grid_choice computed[GRID_MAX_CHOICES + 1] = {
    THREE_MODES, OF(SOURCE, SAVED, UNSAVED, CACHE), OF(KV, AS_Q, E4M3_PER_HEAD), FIRST(PAGE, 2)};

CHECK_COUNT(numerics, count_in_layouts(subject, computed, 0, NULL))

static void run_numerics(struct check_run *run)
{
    struct view view;
    struct check_run each = *run;
    struct case_spec spec;
    const attn_options *options;
    uint32_t l = 0;
    if (!has_layout(run, 0))
        return;
    each.index = count_in_layouts(run->subject, computed, run->index, &l);
    view_open(&view, run->subject, l);
    each.subject = &view.subject;
    struct grid *grid = grid_of(&view.subject);
    if (numerics_spec(&each, grid, computed, &spec, &options))
        numerics_run(&each, &spec, options);
    view_close(&view);
    run->code = each.code;
    memcpy(run->text, each.text, sizeof run->text);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_private[] = {
    CHECK_ROW("PRIV-02", places, count_operands, CHECK_NEEDS_COMPUTE,
              "a private operand means the same at any address and strides, and is not written"),
    {"PRIV-05", "layouts", "a vendor's own layouts can be converted from and to kv.nhd/1", 0, NULL,
     run_extension, NULL, NULL, NULL},
    CHECK_ROW("PRIV-06", round_trip, NULL, 0,
              "layout conversions copy every element and nothing else"),
    CHECK_CASES("PRIV-07", numerics,
                "results and the converted cache are right for a cache in a vendor's own layout"),
    {.rule = NULL},
};
