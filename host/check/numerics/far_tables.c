/* SPDX-License-Identifier: Apache-2.0
 *
 * far_tables.c: tables of a batch whose extent exceeds 32 bits. A backend in front of the one under
 * test moves them: rows of req_to_token, block_table and token_pos, entries of kv_indices and bytes
 * of a mask lie so far apart, or so far from the beginning, that no 32 bits count what lies
 * between, in bytes or, where the ABI's own numbers allow it, in entries.
 *
 * As in restrided.h for operands, the case and its judge do not notice. */
#include "host/check/cases/far_memory.h"
#include "host/check/cases/front.h"
#include "host/check/cases/kind.h"

#include <stdlib.h>

#include "host/base/error.h"

enum { FAR_BATCH_BLOCKS = 24, FAR_BATCH_GROUPS = 2 };

/* There is one at a time in a process: slots of a backend have no context. */
struct far_batch {
    struct front front;
    const struct device *device;
    int32_t tables; /* that were moved, in all */
    int32_t num_blocks;
    struct far_block {
        void *memory;
        uint64_t bytes; /* 0 = on the host */
    } blocks[FAR_BATCH_BLOCKS];
};

static struct far_batch *current;

/* ---- Memory ---------------------------------------------------------------------------------- */

/* What is under way, until something fails. */
struct moving {
    struct far_batch *far;
    attn_stream stream;
    attn_status status;
    attn_error *error;
};

static void release_all(struct far_batch *far)
{
    for (int32_t n = 0; n < far->num_blocks; n++)
        if (far->blocks[n].bytes > 0)
            far_unmap(far->device, far->blocks[n].memory, far->blocks[n].bytes);
        else
            free(far->blocks[n].memory);
    far->num_blocks = 0;
}

/* Kept until the next batch is planned. NULL: the status says so. */
static void *keep(struct moving *m, void *memory, uint64_t bytes)
{
    struct far_batch *far = m->far;
    if (memory && far->num_blocks < FAR_BATCH_BLOCKS) {
        far->blocks[far->num_blocks++] = (struct far_block){memory, bytes};
        return memory;
    }
    m->status = far->device->type == ATTN_DEVICE_CPU
                    ? ATTN_OUT_OF_HOST_MEMORY
                    : device_exhausted(far->device, ATTN_SPACE_DEVICE);
    host_fail(m->error, m->status, "no room for a table of %llu bytes", (unsigned long long)bytes);
    return NULL;
}

/* `size`: of its elements. */
static char *on_device(struct moving *m, uint64_t bytes, uint64_t size)
{
    return m->status == ATTN_OK ? keep(m, far_map(m->far->device, bytes, size), bytes) : NULL;
}

static void *on_host(struct moving *m, size_t bytes)
{
    return m->status == ATTN_OK ? keep(m, malloc(bytes + 1), 0) : NULL;
}

static void copy(struct moving *m, void *to, const void *from, uint64_t bytes)
{
    if (m->status == ATTN_OK)
        m->status = device_copy_wait(m->far->device, to, from, bytes, m->stream, m->error);
}

/* What the device has in an array, on the host. */
static void *fetch(struct moving *m, const void *device, size_t bytes)
{
    void *host = on_host(m, bytes);
    if (host)
        copy(m, host, device, bytes);
    return host;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

/* A table of rows, row rows[s] of which is that of sequence s; NULL = row s. Rows get as far apart
 * as a stride of 32 bits has it. */
static const void *move_rows(struct moving *m, const void *table, uint32_t size, int32_t *stride,
                             const int32_t *rows, int32_t num_seqs)
{
    int64_t most = 0, apart = far_distance(m->far->device, size);
    for (int32_t s = 0; s < num_seqs; s++)
        if ((rows ? rows[s] : s) > most)
            most = rows ? rows[s] : s;
    if (m->status != ATTN_OK || most == 0)
        return table;
    apart = apart / most / 64 * 64;
    apart = apart < INT32_MAX / 64 * 64 ? apart : INT32_MAX / 64 * 64;
    apart = apart > *stride ? apart : *stride;
    char *moved = on_device(m, (uint64_t)(most * apart + *stride) * size, size);
    for (int32_t s = 0; moved && s < num_seqs; s++) {
        int64_t row = rows ? rows[s] : s;
        copy(m, moved + row * apart * size, (const char *)table + row * *stride * size,
             (uint64_t)*stride * size);
    }
    *stride = (int32_t)apart;
    m->far->tables++;
    return moved;
}

/* indptr[n] of an array, wherever it is. */
static const int32_t *ints_of(struct moving *m, const attn_i32_array *array, int32_t count)
{
    return array->host ? array->host : fetch(m, array->device, (size_t)count * sizeof *array->host);
}

/* Entries of kv_indices at the end of the range of kv_indptr. */
static void move_csr(struct moving *m, attn_kv_batch *kv, int32_t num_seqs)
{
    const size_t bytes = ((size_t)num_seqs + 1) * sizeof(int32_t);
    const int32_t *from = ints_of(m, &kv->kv_indptr, num_seqs + 1);
    int32_t *to = on_host(m, bytes), *device = (int32_t *)(void *)on_device(m, bytes, 4);
    if (m->status != ATTN_OK)
        return;
    int32_t shift = INT32_MAX - 64 - from[num_seqs];
    char *entries = on_device(m, (uint64_t)(from[num_seqs] + shift) * 4, 4);
    if (!entries)
        return;
    for (int32_t s = 0; s <= num_seqs; s++)
        to[s] = from[s] + shift;
    copy(m, device, to, bytes);
    copy(m, entries + (int64_t)to[0] * 4, kv->kv_indices.device + from[0],
         (uint64_t)(from[num_seqs] - from[0]) * 4);
    kv->kv_indptr = (attn_i32_array){kv->kv_indptr.host ? to : NULL, device};
    kv->kv_indices = (attn_i32_array){NULL, (const int32_t *)(const void *)entries};
    m->far->tables++;
}

static void move_kv(struct moving *m, const attn_batch *batch, attn_kv_batch *kv)
{
    if (kv->req_to_token.device && batch->req_pool_indices.device) {
        const int32_t *rows = ints_of(m, &batch->req_pool_indices, batch->num_seqs);
        kv->req_to_token =
            (attn_i32_array){NULL, move_rows(m, kv->req_to_token.device, 4,
                                             &kv->req_to_token_stride, rows, batch->num_seqs)};
    }
    if (kv->block_table.device)
        kv->block_table =
            (attn_i32_array){NULL, move_rows(m, kv->block_table.device, 4, &kv->block_table_stride,
                                             NULL, batch->num_seqs)};
    if (kv->kv_indptr.device && kv->kv_indices.device)
        move_csr(m, kv, batch->num_seqs);
}

/* Bytes of a mask: each request's far from those before. */
static void move_mask(struct moving *m, attn_mask *mask, int32_t num_seqs)
{
    const size_t bytes = ((size_t)num_seqs + 1) * sizeof(int64_t);
    const int64_t apart = far_distance(m->far->device, 1) / num_seqs;
    const int64_t *from =
        mask->indptr.host ? mask->indptr.host : fetch(m, mask->indptr.device, bytes);
    int64_t *to = on_host(m, bytes), *device = (int64_t *)(void *)on_device(m, bytes, 8);
    if (m->status != ATTN_OK)
        return;
    for (int32_t s = 0; s <= num_seqs; s++) /* the last one ends where the memory does */
        to[s] = (s < num_seqs ? s + 1 : s) * apart + from[s] - from[0];
    char *bits = on_device(m, (uint64_t)to[num_seqs], 1);
    for (int32_t s = 0; bits && s < num_seqs; s++)
        copy(m, bits + to[s], mask->bits + from[s], (uint64_t)(from[s + 1] - from[s]));
    copy(m, device, to, bytes);
    mask->bits = (const uint8_t *)bits;
    mask->indptr = (attn_i64_array){mask->indptr.host ? to : NULL, device};
    m->far->tables++;
}

/* ---- The backend ----------------------------------------------------------------------------- */

static attn_status plan(attn_metadata *metadata, const attn_batch *given, attn_stream stream,
                        attn_error *error)
{
    struct moving m = {current, stream, ATTN_OK, error};
    attn_batch batch = *given;
    attn_kv_batch kv[FAR_BATCH_GROUPS];
    attn_mask mask;
    attn_multi_item items;
    release_all(current);
    for (uint32_t g = 0; g < batch.num_kv_groups && g < FAR_BATCH_GROUPS; g++) {
        kv[g] = batch.kv_groups[g];
        move_kv(&m, &batch, &kv[g]);
    }
    if (batch.num_kv_groups <= FAR_BATCH_GROUPS)
        batch.kv_groups = kv;
    if (batch.mask && batch.mask->bits && batch.num_seqs > 0) {
        mask = *batch.mask;
        move_mask(&m, &mask, batch.num_seqs);
        batch.mask = &mask;
    }
    if (batch.multi_item) {
        items = *batch.multi_item;
        items.token_pos =
            move_rows(&m, items.token_pos, 2, &items.token_pos_stride, NULL, batch.num_seqs);
        batch.multi_item = &items;
    }
    return m.status == ATTN_OK
               ? current->front.inner->ops->init_forward_metadata(metadata, &batch, stream, error)
               : m.status;
}

static void far_batch_init(struct far_batch *far, const attn_backend_type *inner,
                           const struct device *device)
{
    *far = (struct far_batch){.device = device};
    front_init(&far->front, inner);
    far->front.ops.init_forward_metadata = plan;
    current = far;
}

static void far_batch_finish(struct far_batch *far)
{
    release_all(far);
    current = NULL;
}

/* ---- Cases ----------------------------------------------------------------------------------- */

static void judge_far(struct kind_case *k)
{
    struct check_run *run = k->run;
    const struct check_subject *given = run->subject;
    struct check_subject subject = *given;
    struct far_batch far;
    if (given->fake_device) {
        check_skip(run, "the fake driver fills its memory: no tables of some GiB");
        return;
    }
    far_batch_init(&far, subject.type, subject.device);
    subject.type = &far.front.type;
    run->subject = &subject;
    kind_run(k);
    run->subject = given;
    if (run->code == CHECK_PASS && far.tables == 0)
        check_fail(run, "the suite is wrong: no table of this case was moved");
    far_batch_finish(&far);
}

static const struct relation far = {.judge = judge_far};

const struct check check_far_tables[] = {
    ROWS_AS("KV-08", far_tables, far, "rows of an index table may be more than 2^31 entries apart",
            SOFTMAX(EACH(FORM), BOTH_PHASES, FIRST(PAGE, 2)),
            LATENT(MLA_ABSORBED, MLA_LATENT, BIT(MLA_SMALL), EACH(FORM), BOTH_PHASES)),
    ROW_AS("KV-08", far_cross_tables, far,
           "rows of an encoder's index table may be more than 2^31 entries apart",
           SOFTMAX(OF(TYPE, CROSS), OF(WINDOW, NONE), EACH(FORM), BOTH_PHASES)),
    ROW_AS("MEAN-10", far_masks, far, "masks and items may be more than 2^32 bytes apart",
           SOFTMAX(OF(MASK, FULL, QLEN, QLEN_POSITIONS, ITEMS), OF(MODE, EXTEND, DECODE, VERIFY))),
    {.rule = NULL},
};
