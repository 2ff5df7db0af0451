/* SPDX-License-Identifier: Apache-2.0
 *
 * constants.c: a layer group as compile-time constants of its kernels, and tile sizes for the
 * device.
 */
#include "triton_like.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int32_t triton_team(const triton_group *group)
{
    return group->base.dim > MAX_WARP_DIM || group->base.v_dim > MAX_WARP_DIM ? 2 : 1;
}

int32_t triton_pad(const triton_group *group, int32_t dim)
{
    int32_t unit = 16 * triton_team(group);
    return (dim + unit - 1) / unit * unit;
}

uint32_t triton_variants(uint32_t mask_kinds)
{
    uint32_t custom = ATTN_MASK_BIT(ATTN_MASK_FULL) | ATTN_MASK_BIT(ATTN_MASK_QLEN);
    uint32_t variants = 0;
    if (mask_kinds == 0 || mask_kinds & ~custom)
        variants |= 1u << VARIANT_PLAIN;
    if (mask_kinds == 0 || mask_kinds & custom)
        variants |= 1u << VARIANT_CUSTOM;
    return variants;
}

uint32_t triton_files(const triton_group *group, uint32_t modes)
{
    uint32_t split = ATTN_MODE_BIT(ATTN_MODE_DECODE) | ATTN_MODE_BIT(ATTN_MODE_MIXED) |
                     ATTN_MODE_BIT(ATTN_MODE_TARGET_VERIFY) | ATTN_MODE_BIT(ATTN_MODE_DRAFT_EXTEND);
    uint32_t whole = ~(ATTN_MODE_BIT(ATTN_MODE_DECODE) | ATTN_MODE_BIT(ATTN_MODE_IDLE));
    uint32_t files = 0;
    if (modes == 0 || modes & whole)
        files |= 1u << FILE_EXTEND;
    if (modes == 0 || modes & split)
        files |= 1u << FILE_DECODE;
    if (cuda_group_has_cache(&group->base))
        files |= 1u << FILE_SAVE_KV;
    return files;
}

void triton_group_init(triton_group *group, const attn_problem *problem)
{
    const attn_device *device = problem->device;
    *group = (triton_group){
        .num_sms = device && device->num_sms ? device->num_sms : (uint32_t)DEFAULT_SMS,
        .variants = triton_variants(problem->bounds->mask_kinds),
    };
    cuda_group_init(&group->base, problem);
    group->files = triton_files(group, problem->bounds->modes);
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* Rows in shared memory, as common.cuh has them: of 16-bit elements, and of fp8 codes. */
static int32_t row_bytes(const triton_group *group, int32_t dim)
{
    return (triton_pad(group, dim) + 8) * 2;
}

static int32_t code_bytes(const triton_group *group, int32_t dim)
{
    return (triton_pad(group, dim) / 16 | 1) * 16;
}

/* A key and its value of 16-bit elements; the same as they come from the cache. */
static int32_t pair_bytes(const triton_group *group)
{
    return row_bytes(group, group->base.dim) + row_bytes(group, group->base.v_dim);
}

static int32_t cached_bytes(const triton_group *group)
{
    return cuda_is_fp8(group->base.kv_dtype)
               ? code_bytes(group, group->base.dim) + code_bytes(group, group->base.v_dim)
               : pair_bytes(group);
}

static int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* As extend.cu lays out: queries; two stages, or two of codes and a widened tile; places of two
 * tiles, index entries of one; scores that teams add up. */
static int32_t extend_bytes(const triton_group *group, int32_t warps, int32_t row_tiles,
                            int32_t key_tile)
{
    int32_t team = triton_team(group), shared = team > 1 ? warps * row_tiles * key_tile * 64 : 0;
    int32_t coded =
        cuda_is_fp8(group->base.kv_dtype) ? 2 * cached_bytes(group) + pair_bytes(group) : 0;
    return warps / team * 16 * row_tiles * row_bytes(group, group->base.dim) +
           key_tile * (most(2 * pair_bytes(group), coded) + 2 * 16 + 4) + shared;
}

/* As decode.cu lays out: queries, then for each team its stages, which have room for a group of new
 * tokens, and scores that teams add up; or what the teams leave to be merged. */
static int32_t decode_bytes(const triton_group *group, int32_t warps, int32_t stages)
{
    int32_t team = triton_team(group), teams = warps / team;
    int32_t each = most(stages * cached_bytes(group), pair_bytes(group)) * 16;
    return most(16 * row_bytes(group, group->base.dim) + teams * each +
                    (team > 1 ? warps * 16 * 64 : 0),
                teams * 16 * (triton_pad(group, group->base.v_dim) + 6) * 4);
}

/* Rows of two warps: as many teams as there is room for, then as many keys. One team and 16 keys
 * fit into the least device. */
static void choose_wide_extend(const triton_group *group, int32_t limit, kernel_shape *shape)
{
    static const int32_t candidates[][2] = {{8, 32}, {4, 32}, {4, 16}, {2, 16}};
    shape->row_tiles = 1;
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        shape->extend_warps = candidates[i][0];
        shape->key_tile = candidates[i][1];
        shape->extend_shared = extend_bytes(group, shape->extend_warps, 1, shape->key_tile);
        if (shape->extend_shared <= limit)
            return;
    }
}

/* Two 16-row tiles of a warp halve the traffic of keys in shared memory, as long as the sums stay
 * in registers. */
static void choose_extend(const triton_group *group, int variant, int32_t limit,
                          kernel_shape *shape)
{
    static const int32_t candidates[][2] = {{2, 64}, {2, 32}, {1, 64}, {1, 32}, {1, 16}};
    int crowded = variant == VARIANT_CUSTOM || group->base.flags & ATTN_GROUP_HAS_ALIBI ||
                  group->base.logit_cap > 0;
    shape->extend_warps = 4;
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        int32_t rows = candidates[i][0], keys = candidates[i][1];
        shape->row_tiles = rows;
        shape->key_tile = keys;
        shape->extend_shared = extend_bytes(group, shape->extend_warps, rows, keys);
        int sums = rows * triton_pad(group, group->base.v_dim) <= MAX_WARP_DIM;
        int scores = rows * keys <= (crowded ? 64 : 128) || group->base.v_dim <= 64;
        if (sums && scores && (group->base.dim <= 128 || keys <= 32) &&
            shape->extend_shared <= limit)
            return;
    }
}

/* Enough groups in flight, several blocks of a multiprocessor if that can be had: while one looks
 * for its keys or merges, the others read. As many as registers allow, too. */
static void choose_decode(const triton_group *group, int32_t limit, kernel_shape *shape)
{
    static const int32_t candidates[][2] = {{4, 4}, {4, 3}, {4, 2}, {2, 3}, {2, 2}, {1, 2}};
    int32_t team = triton_team(group);
    int32_t dims = triton_pad(group, group->base.dim) + triton_pad(group, group->base.v_dim);
    for (int32_t blocks = dims <= 256 ? 3 : 2; blocks > 0; blocks--)
        for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
            if (blocks > 1 && candidates[i][1] < 3)
                continue;
            if (blocks > 2 && candidates[i][0] < 4)
                continue;
            shape->warps = candidates[i][0] * team;
            shape->stages = candidates[i][1];
            shape->decode_blocks = blocks;
            shape->decode_shared = decode_bytes(group, shape->warps, shape->stages);
            if (shape->decode_shared <= limit / blocks - (blocks - 1) * 1024)
                return;
        }
}

kernel_shape triton_shape(const triton_group *group, int variant, uint32_t shared_memory)
{
    /* 99 KiB is what a block may opt in to on sm_86 and sm_89, the least of all from sm_80 on. */
    int32_t limit = shared_memory ? (int32_t)shared_memory : 99 * 1024;
    kernel_shape shape = {.team = triton_team(group)};
    if (shape.team > 1)
        choose_wide_extend(group, limit, &shape);
    else
        choose_extend(group, variant, limit, &shape);
    choose_decode(group, limit, &shape);
    return shape;
}

/* ---- Constants ------------------------------------------------------------------------------- */

static void define(kernel_constants *constants, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void define(kernel_constants *constants, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(constants->text[constants->count++], CONSTANT_SIZE, format, args);
    va_end(args);
}

/* A float as its bits: what printf makes of a float depends on the locale. */
static void define_float(kernel_constants *constants, const char *name, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    define(constants, "-D%s=0x%08x", name, bits);
}

void triton_constants(const triton_group *group, int variant, const kernel_shape *shape,
                      const triton_options *options, kernel_constants *constants)
{
    constants->count = 0;
    define(constants, "-DQ_DTYPE=%d", cuda_element(group->base.q_dtype));
    define(constants, "-DKV_DTYPE=%d", cuda_element(group->base.kv_dtype));
    define(constants, "-DOUT_DTYPE=%d", cuda_element(group->base.out_dtype));
    define(constants, "-DPARTIAL_DTYPE=%d",
           options->reduce_in_fp32 ? 0 : cuda_element(group->base.q_dtype));
    define(constants, "-DHEAD_DIM=%d", group->base.dim);
    define(constants, "-DV_DIM=%d", group->base.v_dim);
    define(constants, "-DHEAD_PAD=%d", triton_pad(group, group->base.dim));
    define(constants, "-DV_PAD=%d", triton_pad(group, group->base.v_dim));
    define(constants, "-DGQA=%d", group->base.ratio);
    define(constants, "-DKV_HEADS=%d", group->base.kv_heads);
    define(constants, "-DWINDOW_LEFT=%d", group->base.window_left);
    define(constants, "-DCHUNK=%d", group->base.chunk);
    define_float(constants, "SM_SCALE_BITS", group->base.sm_scale);
    define_float(constants, "LOGIT_CAP_BITS",
                 group->base.logit_cap > 0 ? group->base.logit_cap : 0);
    define(constants, "-DHAS_ALIBI=%d", (group->base.flags & ATTN_GROUP_HAS_ALIBI) != 0);
    define(constants, "-DHAS_SINKS=%d", (group->base.flags & ATTN_GROUP_HAS_SINKS) != 0);
    define(constants, "-DCUSTOM_MASK=%d", variant == VARIANT_CUSTOM);
    define(constants, "-DSCALE_PER_HEAD=%d", group->base.scale_granularity == ATTN_SCALE_PER_HEAD);
    define(constants, "-DSPLIT_PROBABILITIES=%d", options->split_probabilities);
    define(constants, "-DPAGE_SIZE=%d", group->base.page_size);
    define(constants, "-DTEAM=%d", shape->team);
    define(constants, "-DEXTEND_WARPS=%d", shape->extend_warps);
    define(constants, "-DROW_TILES=%d", shape->row_tiles);
    define(constants, "-DKEY_TILE=%d", shape->key_tile);
    define(constants, "-DWARPS=%d", shape->warps);
    define(constants, "-DSTAGES=%d", shape->stages);
    define(constants, "-DEXTEND_SHARED=%d", shape->extend_shared);
    define(constants, "-DDECODE_SHARED=%d", shape->decode_shared);
    define(constants, "-DDECODE_BLOCKS=%d", shape->decode_blocks);
}
