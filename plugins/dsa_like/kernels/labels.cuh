/* SPDX-License-Identifier: Apache-2.0
 *
 * labels.cuh: loads a sequence's labels from global memory into the operand registers of products.
 */
#ifndef DSA_LIKE_LABELS_CUH
#define DSA_LIKE_LABELS_CUH

#include "plugins/dsa_like/kernels/rows.cuh"

#include "plugins/common/cuda/warpgroup.cuh"

/* ---- Elements -------------------------------------------------------------------------------- */

/* Widens two fp8 values to bf16. */
DEVICE unsigned widen_pair(unsigned codes)
{
    unsigned halves;
    float first, second;
    asm("{\n.reg .b16 c, l, h;\ncvt.u16.u32 c, %3;\ncvt.rn.f16x2.e4m3x2 %0, c;\n"
        "mov.b32 {l, h}, %0;\ncvt.f32.f16 %1, l;\ncvt.f32.f16 %2, h;\n}"
        : "=r"(halves), "=f"(first), "=f"(second)
        : "r"(codes));
    return pack_pair<false>(first, second);
}

DEVICE uint4 widen(unsigned low, unsigned high)
{
    return make_uint4(widen_pair(low & 0xffff), widen_pair(low >> 16), widen_pair(high & 0xffff),
                      widen_pair(high >> 16));
}

/* Loads 16 bytes from any address. */
DEVICE uint4 load_bytes(const char *from)
{
    u32 words[4] = {0, 0, 0, 0};
    for (int i = 0; i < 16; i++)
        words[i / 4] |= (u32)(u8)from[i] << i % 4 * 8;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Loads 16 bytes that are read once. Not through the non-coherent path (.nc), as the previous
 * kernel may write new labels after this one has started. */
DEVICE uint4 load_once(const char *from)
{
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

/* ---- Labels ---------------------------------------------------------------------------------- */

/* A lane's part of a tile: of row warp * 16 + lane / 4 and of the row 8 further, pieces lane % 4,
 * lane % 4 + 4 ...; and the scale of the row whose logit it writes. */
template <int width> struct label_part {
    uint4 pieces[2][2 * width];
    float scale;
};

/* Key `offset` of table entry `index`; entries have `unit` keys each. */
struct label_place {
    int index, offset;
};

DEVICE label_place label_move(label_place at, label_place by, int unit)
{
    at.index += by.index;
    at.offset += by.offset;
    if (at.offset >= unit) {
        at.offset -= unit;
        at.index++;
    }
    return at;
}

/* A lane's iteration over a sequence's labels, a tile at a time. Table entries are read one tile
 * ahead of labels; outside the keys that the group sees, the nearest entry is read instead. `runs`:
 * 16 rows from a multiple of 16 on are contiguous and aligned for 16-byte loads. */
template <bool runs, int ahead> struct label_walk {
    static constexpr int rows = runs ? 1 : 2;
    const int *table;
    const char *cache; /* the lane's first piece of a page's first label */
    i64 page;          /* bytes */
    int unit;
    int first, last; /* entries */
    label_place tile, places[rows];
    int entries[ahead][rows], offsets[ahead][rows]; /* of the next tiles to load */
};

/* Reads the table entries of the next tile, tile `i` of those in flight. */
template <bool runs, int ahead> DEVICE void label_look(label_walk<runs, ahead> &walk, int i)
{
#pragma unroll
    for (int r = 0; r < walk.rows; r++) {
        const label_place at = walk.places[r];
        walk.entries[i][r] = walk.table[int_min(int_max(at.index, walk.first), walk.last)];
        walk.offsets[i][r] = at.offset;
        walk.places[r] = label_move(at, walk.tile, walk.unit);
    }
}

template <bool runs, int ahead>
DEVICE void label_begin(const dsa_label_call &c, const index_sequence &q, int lo, int hi, int row,
                        label_walk<runs, ahead> &walk)
{
    const int unit = c.planned.batch.req_to_token ? 1 : c.planned.page_size;
    walk.table = q.table;
    walk.cache = (const char *)c.operands.k_cache;
    walk.page = c.operands.k_page;
    walk.unit = unit;
    walk.first = lo / unit;
    walk.last = int_max(hi - 1, 0) / unit;
    walk.tile = {DSA_TILE / unit, DSA_TILE % unit};
#pragma unroll
    for (int r = 0; r < walk.rows; r++)
        walk.places[r] = {(row + 8 * r) / unit, (row + 8 * r) % unit};
#pragma unroll
    for (int i = 0; i < ahead; i++)
        label_look(walk, i);
}

/* Piece `piece` of a label: 16 bytes after widening. */
template <int width, bool runs>
DEVICE uint4 label_piece(const dsa_label_call &c, const char *label, int piece)
{
    if (width == 2 && c.label_codes) {
        const any32 *codes = (const any32 *)(label + piece * 8);
        return widen(codes[0], codes[1]);
    }
    if (runs || c.operands.aligned & CALL_ALIGNED_CACHE)
        return load_once(label + piece * 16);
    if (width == 2)
        return load_bytes(label + piece * 16);
    const any32 *codes = (const any32 *)(label + piece * 16);
    return make_uint4(codes[0], codes[1], codes[2], codes[3]);
}

/* `second`: load the scale of the second row. */
template <int width, bool runs, int ahead>
DEVICE void label_load(const dsa_label_call &c, label_walk<runs, ahead> &walk, int i, int second,
                       label_part<width> &to)
{
    const int lane = (int)threadIdx.x % 32, page_size = c.planned.page_size;
    const i64 token = runs ? DSA_LABEL : c.operands.k_token;
    to.scale = 1.0f;
#pragma unroll
    for (int r = 0; r < walk.rows; r++) {
        i64 page = walk.entries[i][r];
        int offset = walk.offsets[i][r];
        if (!runs && walk.unit != page_size) {
            offset = walk.entries[i][r] % page_size;
            page = walk.entries[i][r] / page_size;
        }
        const char *first = walk.cache + page * walk.page;
        const char *label = first + offset * token;
#pragma unroll
        for (int n = r; n <= r + runs; n++)
#pragma unroll
            for (int p = 0; p < 2 * width; p++)
                to.pieces[n][p] =
                    label_piece<width, runs>(c, label + (n - r) * 8 * token, lane % 4 + 4 * p);
        const any32 *scales = (const any32 *)(first + (i64)page_size * DSA_LABEL);
        if (runs)
            to.scale = __uint_as_float(scales[offset + 8 * second]);
        else if (c.label_codes && r == second)
            to.scale = __uint_as_float(scales[offset]);
    }
    label_look(walk, i);
}

/* Arranges operand registers: for k-step i, words 2 i of both rows, then words 2 i + 1. */
template <int width> DEVICE void label_take(const label_part<width> &from, u32 (&a)[4 * width][4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int p = 0; p < 2 * width; p++) {
            a[2 * p][r] = from.pieces[r][p].x;
            a[2 * p][2 + r] = from.pieces[r][p].y;
            a[2 * p + 1][r] = from.pieces[r][p].z;
            a[2 * p + 1][2 + r] = from.pieces[r][p].w;
        }
    }
}

/* No instruction: keeps the operand registers alive up to here. */
template <int steps> DEVICE void label_keep(const u32 (&a)[steps][4])
{
#pragma unroll
    for (int i = 0; i < steps; i++)
        asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]));
}

#endif /* DSA_LIKE_LABELS_CUH */
