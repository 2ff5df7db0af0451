/* SPDX-License-Identifier: Apache-2.0
 *
 * restrided.c: a wrapper that moves a forward's operands to other strides.
 */
#include "host/check/cases/restrided.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/base/operand_roles.h"
#include "host/check/cases/draw.h"
#include "host/check/cases/far_memory.h"
#include "host/check/cases/operand_text.h"

enum { LEAD = 256, TAIL = 256, POISON = 0xFF };

static struct restrided *current;

/* An operand that was copied elsewhere. */
struct moved {
    const attn_tensor *from;
    attn_tensor to;
    uint64_t span;  /* bytes that the original covers */
    uint64_t bytes; /* of the copy, with what surrounds it */
    char *original; /* on the host: the original's bytes */
    char *image;    /* on the host: the copy's */
    char *memory;   /* on the device: the copy */
    bool is_far;    /* it has no image */
};

const char *restrided_name(const struct restrided *restrided)
{
    uint32_t roles = restrided->roles;
    if (roles == 0)
        return "no operand";
    return roles & (roles - 1) ? "all operands" : role_name(__builtin_ctz(roles));
}

/* ---- Where it lies --------------------------------------------------------------------------- */

static int64_t below(const struct restrided *restrided, uint32_t role, uint32_t what, int32_t count)
{
    return draw_at(mix_absorb(restrided->seed, role), what, count);
}

/* Any number of elements on a CPU; on a GPU what engines have, whole 16 bytes. */
static int64_t gap_of(const struct restrided *restrided, uint32_t role, uint32_t d, uint32_t size)
{
    int64_t unit = restrided->device->type == ATTN_DEVICE_CPU ? 1 : 16 / size;
    return unit * (1 + below(restrided, role, d, 7));
}

/* The innermost dimension stays so. */
static void set_strides(const struct restrided *restrided, uint32_t role, attn_tensor *tensor)
{
    uint32_t last = tensor->ndim - 1, size = attn_dtype_size(tensor->dtype);
    int64_t stride = tensor->shape[last];
    tensor->strides[last] = 1;
    for (uint32_t n = 0; n < last; n++) {
        uint32_t d = restrided->form == RESTRIDED_TURNED ? n : last - 1 - n;
        stride += gap_of(restrided, role, d, size);
        tensor->strides[d] = stride;
        stride *= tensor->shape[d] > 0 ? tensor->shape[d] : 1;
    }
}

/* Dense, but that the last vector of one dimension lies farther from the first than 32 bits count.
 */
static void set_far_strides(const struct restrided *restrided, attn_tensor *tensor)
{
    const uint32_t d = restrided->far_dim;
    int64_t stride = 1, distance = far_distance(restrided->device, attn_dtype_size(tensor->dtype));
    for (uint32_t n = tensor->ndim; n-- > 0;)
        if (n != d) {
            tensor->strides[n] = stride;
            stride *= tensor->shape[n] > 0 ? tensor->shape[n] : 1;
        }
    int64_t least = (distance / (tensor->shape[d] - 1) + 63) / 64 * 64;
    tensor->strides[d] = least > stride ? least : (stride + 63) / 64 * 64;
}

/* On a CPU an operand is aligned to its element, and `data` alone has no alignment. */
static void set_address(const struct restrided *restrided, uint32_t role, struct moved *m)
{
    uint32_t size = attn_dtype_size(m->to.dtype);
    bool cpu = restrided->device->type == ATTN_DEVICE_CPU;
    uint64_t lead = cpu ? LEAD + size * (uint64_t)(1 + below(restrided, role, 9, 15)) : LEAD;
    uint64_t odd = cpu ? 1 + (uint64_t)below(restrided, role, 10, 60) : 64;
    m->to.data = m->memory + odd;
    m->to.byte_offset = lead - odd;
    m->to.alignment = cpu ? size : 64;
}

static char *place(const struct moved *m, char *base, const attn_tensor *tensor, int64_t index)
{
    uint64_t at = (uint64_t)index * attn_dtype_size(tensor->dtype);
    if (tensor == &m->to)
        at += (uint64_t)((const char *)tensor->data - m->memory) + tensor->byte_offset;
    return base + at;
}

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Each vector from the original to the copy, or back; then poison is left in the copy. A copy that is far has no image:
 * it is in the device's own memory. */
static attn_status copy_vectors(const struct restrided *restrided, struct moved *m, bool back,
                                attn_stream stream, attn_error *error)
{
    const attn_tensor *from = m->from;
    uint32_t last = from->ndim - 1;
    int64_t index[ATTN_MAX_DIMS] = {0}, count = 1;
    size_t bytes = (size_t)from->shape[last] * attn_dtype_size(from->dtype);
    attn_status status = ATTN_OK;
    for (uint32_t d = 0; d < last; d++)
        count *= from->shape[d];
    for (int64_t n = 0; n < count && bytes > 0 && status == ATTN_OK; n++) {
        int64_t old = 0, new = 0;
        for (uint32_t d = 0; d < last; d++) {
            old += index[d] * from->strides[d];
            new += index[d] * m->to.strides[d];
        }
        char *original = place(m, m->original, from, old);
        char *copy = place(m, m->is_far ? m->memory : m->image, &m->to, new);
        if (m->is_far)
            status = device_copy(restrided->device, back ? original : copy, back ? copy : original,
                                 bytes, stream, error);
        else
            memcpy(back ? original : copy, back ? copy : original, bytes);
        if (back && !m->is_far)
            memset(copy, POISON, bytes);
        for (uint32_t d = last; d-- > 0 && ++index[d] == from->shape[d];)
            index[d] = 0;
    }
    return status;
}

static char *first_byte(const attn_tensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

static void release(const struct restrided *restrided, struct moved *m)
{
    free(m->original);
    free(m->image);
    if (m->is_far)
        far_unmap(restrided->device, m->memory, m->bytes);
    else
        device_release(restrided->device, ATTN_SPACE_DEVICE, m->memory);
    memset(m, 0, sizeof *m);
}

static attn_status allocate(const struct restrided *restrided, uint32_t role, struct moved *m,
                            attn_error *error)
{
    m->original = malloc(m->span + 1);
    m->image = m->is_far ? NULL : malloc(m->bytes);
    m->memory = m->is_far ? far_map(restrided->device, m->bytes, FAR_ALIGNMENT)
                          : device_allocate(restrided->device, ATTN_SPACE_DEVICE, m->bytes, 256);
    if (m->original && (m->image || m->is_far) && m->memory)
        return ATTN_OK;
    attn_status status = m->is_far && restrided->device->type != ATTN_DEVICE_CPU
                             ? device_exhausted(restrided->device, ATTN_SPACE_DEVICE)
                             : ATTN_OUT_OF_HOST_MEMORY;
    uint64_t bytes = m->bytes;
    release(restrided, m);
    return host_fail(error, status, "no memory for a copy of operand %s, of %llu bytes",
                     role_name(role), (unsigned long long)bytes);
}

static attn_status move(const struct restrided *restrided, uint32_t role, const attn_tensor *from,
                        struct moved *m, attn_stream stream, attn_error *error)
{
    *m = (struct moved){.from = from, .to = *from, .is_far = restrided->form == RESTRIDED_FAR};
    if (m->is_far)
        set_far_strides(restrided, &m->to);
    else
        set_strides(restrided, role, &m->to);
    m->span = operand_span(from);
    m->bytes = 2 * LEAD + operand_span(&m->to) + TAIL;
    attn_status status = allocate(restrided, role, m, error);
    if (status != ATTN_OK)
        return status;
    set_address(restrided, role, m);
    status =
        device_copy_wait(restrided->device, m->original, first_byte(from), m->span, stream, error);
    if (status != ATTN_OK)
        return status;
    if (m->is_far)
        return copy_vectors(restrided, m, false, stream, error);
    memset(m->image, POISON, m->bytes);
    copy_vectors(restrided, m, false, stream, error);
    return device_copy_wait(restrided->device, m->memory, m->image, m->bytes, stream, error);
}

/* Copy written vectors to the original; the gaps between them must still hold poison. */
static attn_status move_back(const struct restrided *restrided, uint32_t role, struct moved *m,
                             attn_stream stream, attn_error *error)
{
    attn_status status = m->is_far ? device_synchronize(restrided->device, stream, error)
                                   : device_copy_wait(restrided->device, m->image, m->memory,
                                                      m->bytes, stream, error);
    if (status != ATTN_OK)
        return status;
    status = copy_vectors(restrided, m, true, stream, error);
    if (m->is_far && status == ATTN_OK)
        status = device_synchronize(restrided->device, stream, error);
    for (uint64_t i = 0; status == ATTN_OK && m->image && i < m->bytes; i++)
        if ((uint8_t)m->image[i] != POISON)
            return host_fail(error, ATTN_INTERNAL,
                             "operand %s: byte %lld after its first element is outside its "
                             "vectors, and was written",
                             role_name(role),
                             (long long)((int64_t)i - (first_byte(&m->to) - m->memory)));
    return status == ATTN_OK ? device_copy_wait(restrided->device, first_byte(m->from), m->original,
                                                m->span, stream, error)
                             : status;
}

/* ---- The backend ----------------------------------------------------------------------------- */

/* Note of which outer dimensions the operand has several. */
static void note_dims(struct restrided *restrided, uint32_t role, const attn_tensor *tensor)
{
    restrided->given |= 1u << role;
    for (uint32_t d = 0; d + 1 < tensor->ndim; d++)
        restrided->dims[role] |= tensor->shape[d] > 1 ? 1u << d : 0;
}

static bool is_moved(const struct restrided *restrided, uint32_t role, const attn_tensor *tensor)
{
    bool several = restrided->far_dim + 1 < tensor->ndim && tensor->shape[restrided->far_dim] > 1;
    return restrided->roles >> role & 1 && (restrided->form != RESTRIDED_FAR || several);
}

static attn_status forward(bool decode, attn_metadata *metadata, int32_t layer_id,
                           const attn_forward_args *given, attn_stream stream, attn_error *error)
{
    struct restrided *restrided = current;
    struct moved moved[ATTN_ROLE_COUNT] = {{0}};
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_forward_args args = *given;
    attn_status status = ATTN_OK;
    args.operands = operands;
    args.num_operands = ATTN_ROLE_COUNT;
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        operands[role] = attn_operand(given, role);
        if (operands[role])
            note_dims(restrided, role, operands[role]);
        if (status != ATTN_OK || !operands[role] || !is_moved(restrided, role, operands[role]))
            continue;
        status = move(restrided, role, operands[role], &moved[role], stream, error);
        operands[role] = &moved[role].to;
    }
    if (status == ATTN_OK)
        status = front_forward(restrided->front.inner->ops, decode, metadata, layer_id, &args,
                               stream, error);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (status == ATTN_OK && moved[role].from)
            status = move_back(restrided, role, &moved[role], stream, error);
        release(restrided, &moved[role]);
    }
    return status;
}

FRONT_FORWARDS

void restrided_init(struct restrided *restrided, const attn_backend_type *inner,
                    const struct device *device, uint64_t seed)
{
    *restrided = (struct restrided){.device = device, .seed = mix_absorb(seed, LEAD)};
    front_init(&restrided->front, inner);
    FRONT_SET_FORWARDS(restrided->front.ops, inner->ops);
    current = restrided;
}

void restrided_finish(struct restrided *restrided)
{
    if (current == restrided)
        current = NULL;
}
