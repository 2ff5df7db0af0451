/* SPDX-License-Identifier: Apache-2.0
 *
 * check_fa3_like_plan.c: what fa3_like asks of the driver: launches, kernel arguments, tensor
 * maps, memory.
 */
#include "plugins/common/cuda/elements.cuh"
#include "plugins/fa3_like/tests/fa3_fixture.h"
#include "tests/tools/test_main.h"

#include <stdio.h>
#include <string.h>

/* Extents, and strides in elements. */
static void expect_map(const struct fa3_tensor_map *map, const void *data, const uint64_t shape[4],
                       const uint64_t strides[3], uint32_t box_rows)
{
    seen_map seen = read_map(map);
    const uint32_t box[4] = {64, box_rows, 1, 1};
    ck_assert_ptr_eq(seen.data, data);
    ck_assert_uint_eq(seen.type, CUDA_TENSOR_BFLOAT16);
    ck_assert_uint_eq(seen.swizzle, CUDA_TENSOR_SWIZZLE_128);
    for (int d = 0; d < 4; d++) {
        ck_assert_uint_eq(seen.shape[d], shape[d]);
        ck_assert_uint_eq(seen.box[d], box[d]);
        if (d > 0 && shape[d] > 1)
            ck_assert_uint_eq(seen.strides[d - 1], 2 * strides[d - 1]);
    }
}

enum { ROW = TEST_Q_HEADS * TEST_DIM, NEW_ROW = TEST_KV_HEADS * TEST_DIM };

static const struct fa3_forward_params *forward_params(void)
{
    return &launches[num_launches - 1].params->forward;
}

static const uint64_t ragged_shape[4] = {TEST_DIM, TEST_ROWS, TEST_Q_HEADS, 1};
static const uint64_t ragged_strides[3] = {ROW, TEST_DIM, 0};

/* ---- Extend ---------------------------------------------------------------------------------- */

TEST_OF(launches, extend_reads_pages)
{
    test_run t;
    const uint64_t pages[4] = {TEST_DIM, TEST_PAGE, TEST_KV_HEADS, TEST_PAGES};
    const uint64_t strides[3] = {NEW_ROW, TEST_DIM, TEST_PAGE * NEW_ROW};
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    const fa3_own *own = t.metadata->own;
    const fa3_metadata *view = &own->groups[0];
    const fa3_tile *tile = t.own->group.tile;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan rows fa3_forward_d128");
    const struct fa3_forward_params *p = forward_params();
    expect_map(&p->q, t.q.data, ragged_shape, ragged_strides, 64);
    expect_map(&p->o, t.out.data, ragged_shape, ragged_strides, 64);
    expect_map(&p->k, t.k_cache.data, pages, strides, 16); /* of 48 and 128 */
    expect_map(&p->v, t.v_cache.data, pages, strides, 16);
    ck_assert_uint_eq(p->q_starts, (uintptr_t)q_indptr);
    ck_assert_uint_eq(p->k_starts, 0);
    ck_assert_uint_eq(p->k_lengths, (uintptr_t)kv_lens);
    ck_assert_uint_eq(p->block_table, (uintptr_t)block_table);
    ck_assert_int_eq(p->table_stride, 90);
    ck_assert_int_eq(p->page_size, TEST_PAGE);
    ck_assert_int_eq(p->box_rows, 16);
    ck_assert_uint_eq(p->tiles, (uintptr_t)view->tiles);
    ck_assert_uint_eq(p->tile_count, (uintptr_t)&view->plan->tile_count);
    ck_assert_uint_eq(p->counter, own->counter);
    ck_assert_int_eq(p->heads_q, TEST_Q_HEADS);
    ck_assert_int_eq(p->heads_per_kv, TEST_Q_HEADS / TEST_KV_HEADS);
    ck_assert_int_eq(p->out_token, ROW);
    ck_assert_int_eq(p->out_head, TEST_DIM);
    ck_assert_int_eq(p->window_left, FA3_UNBOUNDED);
    ck_assert_int_eq(p->window_right, 0);
    ck_assert_float_eq_tol(p->score_log2, 0.125f * 1.442695f, 1e-6f);
    ck_assert_float_eq(p->score_cap, 0);
    ck_assert_uint_eq(launches[2].blocks, TEST_SMS);
    ck_assert_uint_eq(launches[2].threads, tile->threads);
    ck_assert_uint_eq(launches[2].shared, tile->shared);
    ck_assert_int_eq(launches[0].params->plan.tile_queries, tile->queries);
    ck_assert_ptr_eq(launches[0].params->plan.tiles, view->tiles);
    ck_assert_int_eq(launches[1].params->rows.operands.save, 1);
    ck_assert_int_eq(launches[1].params->rows.all_slow, 0);
    run_end(&t);
}

static void expect_new_rows(int has_new, int is_early, int saves)
{
    ck_assert_int_eq(forward_params()->has_new, has_new);
    ck_assert_int_eq(forward_params()->is_early, is_early);
    ck_assert_int_eq(launches[num_launches - 2].params->rows.saves_rest, saves);
    ck_assert_int_eq(forward_params()->slots != 0, saves);
}

/* Tiles of prompts save their keys, which they read from k and v, if new rows are the queries'. */
TEST_OF(launches, tiles_save_new_rows)
{
    static const int32_t new_rows[4] = {0, 192, 384, 576};
    const uint64_t shape[4] = {TEST_DIM, TEST_ROWS, TEST_KV_HEADS, 1};
    const uint64_t strides[3] = {NEW_ROW, TEST_DIM, 0};
    test_problem of;
    test_run t;
    make_problem(&of);
    of.bounds.max_q_len = SAVE_LONG;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    const fa3_tile *tile = t.own->group.tile;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, SAVE_LONG - 1));
    expect_new_rows(1, 1, 0);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, SAVE_LONG));
    expect_new_rows(1, 1, 1);
    const struct fa3_forward_params *p = forward_params();
    expect_map(&p->k_new, t.k.data, shape, strides, (uint32_t)tile->keys);
    expect_map(&p->v_new, t.v.data, shape, strides, (uint32_t)tile->keys);
    ck_assert_uint_eq(p->slots, (uintptr_t)out_cache_loc);
    ck_assert_uint_eq(p->k_save.from, (uintptr_t)t.k.data);
    ck_assert_uint_eq(p->k_save.from_row, NEW_ROW / 8);
    ck_assert_uint_eq(p->v_save.from_head, TEST_DIM / 8);
    ck_assert_uint_eq(p->k_save.to, (uintptr_t)t.k_cache.data);
    ck_assert_uint_eq(p->v_save.to, (uintptr_t)t.v_cache.data);
    ck_assert_uint_eq(p->k_save.page, TEST_PAGE * NEW_ROW / 8);
    ck_assert_uint_eq(p->v_save.token, NEW_ROW / 8);
    ck_assert_uint_eq(p->k_save.head, TEST_DIM / 8);
    ck_assert_uint_eq(p->k_save.page_size, TEST_PAGE);
    t.kv.kv_new_indptr.device = new_rows;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_new_rows(0, 0, 0);
    t.kv.kv_new_indptr.device = NULL;
    t.k.strides[0] += 4;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_new_rows(0, 0, 0);
    t.k.strides[0] -= 4;
    t.operands[ATTN_ROLE_K] = t.operands[ATTN_ROLE_V] = NULL; /* all keys are in the cache */
    t.args.flags = 0;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_new_rows(0, 0, 0);
    run_end(&t);
}

/* The smaller of max_sms and what the device has. */
LOOP_OF(launches, launches_keep_to_max_sms, 0, 4)
{
    static const int32_t budgets[] = {1, 7, TEST_SMS, TEST_SMS + 1};
    const uint32_t sms[] = {1, 7, TEST_SMS, TEST_SMS};
    test_problem of;
    test_run t;
    make_problem(&of);
    of.bounds.max_sms = budgets[_i];
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    ck_assert_uint_ge(launches[1].blocks, sms[_i]); /* 36 are enough for these rows */
    ck_assert_uint_le(launches[1].blocks, sms[_i] * ROWS_BLOCKS);
    ck_assert_uint_eq(launches[2].blocks, sms[_i]);
    run_end(&t);
}

TEST_OF(launches, layouts_differ_in_strides)
{
    test_problem of;
    test_run t;
    const uint64_t pages[4] = {TEST_DIM, TEST_PAGE, TEST_KV_HEADS, TEST_PAGES};
    const uint64_t strides[3] = {TEST_DIM, TEST_PAGE * TEST_DIM, TEST_PAGE * NEW_ROW};
    make_problem(&of);
    of.problem.kv_layout = ATTN_LAYOUT_KV_HND;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_MIXED, 3, 576, 192));
    expect_map(&forward_params()->k, t.k_cache.data, pages, strides, 16);
    ck_assert_int_eq(launches[1].params->rows.operands.k_token, 2 * TEST_DIM);
    run_end(&t);
}

/* One sequence has its tiles by arithmetic, in sections whose keys stay in the L2 cache. */
TEST_OF(launches, one_sequence_needs_no_list)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 1, 384, 384));
    const struct fa3_forward_params *p = forward_params();
    const fa3_tile *tile = ((fa3_own *)t.metadata->own)->groups[0].tile;
    ck_assert_uint_eq(p->tiles, 0);
    ck_assert_uint_eq(p->q_starts, (uintptr_t)((fa3_own *)t.metadata->own)->groups[0].plan->starts);
    ck_assert_int_eq(p->batch, 1);
    ck_assert_int_eq(p->q_length, 384);
    ck_assert_int_eq(p->q_tiles, (384 + tile->queries - 1) / tile->queries);
    ck_assert_int_gt(p->section, 0);
    ck_assert_int_eq(p->section % p->heads_per_kv, 0);
    run_end(&t);
}

/* Of a list, too: all heads at once where the keys of all sequences fit, or tiles are few, else
 * fewer. */
LOOP_OF(launches, lists_go_by_sections, 0, 4)
{
    static const int32_t keys[] = {2000, 100000, 100000, 100000}, sms[] = {1, TEST_SMS, 1, 1};
    const int32_t heads[] = {TEST_Q_HEADS, TEST_Q_HEADS, TEST_Q_HEADS / TEST_KV_HEADS,
                             TEST_Q_HEADS / TEST_KV_HEADS};
    test_problem of;
    test_run t;
    make_problem(&of);
    of.bounds.max_kv_len = keys[_i];
    of.bounds.max_sms = sms[_i];
    run_begin(&t, &of, _i == 3 ? ATTN_METADATA_GRAPH : ATTN_METADATA_EAGER);
    t.max_kv_len = keys[_i];
    t.own->fa3.option = TILES_ALWAYS;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    ck_assert_uint_ne(forward_params()->tiles, 0);
    ck_assert_int_eq(forward_params()->section, heads[_i]);
    run_end(&t);
}

TEST_OF(launches, masks_and_caps)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.group.window_right = 7;
    of.group.logit_cap = 30;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    const struct fa3_forward_params *p = forward_params();
    ck_assert_int_eq(p->window_right, 7);
    ck_assert_float_eq_tol(p->score_log2, 30 * 1.442695f, 1e-4f);
    ck_assert_float_eq_tol(p->score_cap, 0.125f / 30, 1e-7f);
    ck_assert_int_eq(launches[0].params->plan.batch.window_right, 7);
    t.mask = (attn_mask){.struct_size = sizeof t.mask, .kind = ATTN_MASK_NONE};
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    ck_assert_int_eq(forward_params()->window_right, FA3_UNBOUNDED);
    ck_assert_int_eq(launches[0].params->plan.batch.window_right, -1);
    run_end(&t);
}

TEST_OF(launches, windows_to_the_left)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.group.window_left = 100;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    ck_assert_int_eq(launches[0].params->plan.window_left, 100);
    ck_assert_int_eq(launches[1].params->rows.window_left, 100);
    ck_assert_int_eq(launches[1].params->rows.all_slow, 0);
    ck_assert_int_eq(forward_params()->window_left, 100);
    run_end(&t);
}

TEST_OF(launches, lse_of_ragged_queries)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    t.operands[ATTN_ROLE_LSE] = &t.lse;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    ck_assert_ptr_eq(launches[1].params->rows.operands.lse, t.lse.data);
    ck_assert_int_eq(launches[1].params->rows.all_slow, 0);
    ck_assert_int_eq(forward_params()->lse_token, TEST_Q_HEADS);
    ck_assert_int_eq(forward_params()->lse_head, 1);
    run_end(&t);
}

/* Where the host tells that there is no prefix, keys are read from where they come. */
TEST_OF(launches, prompts_read_rows)
{
    static const int32_t none[3] = {0}, rows[4] = {0, 192, 384, 576}, keys[3] = {192, 192, 192},
                         more[3] = {192, 192, 193};
    const uint64_t shape[4] = {TEST_DIM, TEST_ROWS, TEST_KV_HEADS, 1};
    const uint64_t strides[3] = {NEW_ROW, TEST_DIM, 0};
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    t.batch.prefix_lens.host = none;
    t.batch.q_indptr.host = rows;
    t.kv.kv_lens.host = keys;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    const struct fa3_forward_params *p = forward_params();
    expect_map(&p->k, t.k.data, shape, strides, (uint32_t)t.own->group.tile->keys);
    expect_map(&p->v, t.v.data, shape, strides, (uint32_t)t.own->group.tile->keys);
    ck_assert_uint_eq(p->k_starts, (uintptr_t)q_indptr);
    ck_assert_uint_eq(p->block_table, 0);
    ck_assert_int_eq(p->page_size, FA3_UNBOUNDED);
    ck_assert_int_eq(launches[0].params->plan.only_new, 1);
    ck_assert_int_eq(launches[1].params->rows.operands.save, 1);
    expect_new_rows(1, 1, 0);
    t.kv.kv_lens.host = more;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    ck_assert_uint_eq(forward_params()->block_table, (uintptr_t)block_table);
    ck_assert_int_eq(launches[0].params->plan.only_new, 0);
    t.kv.kv_lens.host = keys;
    t.operands[ATTN_ROLE_K] = t.operands[ATTN_ROLE_V] = NULL; /* all keys are in the cache */
    t.args.flags = 0;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    ck_assert_uint_eq(forward_params()->block_table, (uintptr_t)block_table);
    run_end(&t);
}

TEST_OF(launches, encoders_have_no_cache)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.group.attn_type = ATTN_TYPE_ENCODER_ONLY;
    of.group.window_right = -1;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    t.args.flags = 0;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan rows fa3_forward_d128");
    const struct fa3_forward_params *p = forward_params();
    ck_assert_uint_eq(p->k_starts, (uintptr_t)q_indptr);
    ck_assert_uint_eq(p->k_lengths, 0);
    ck_assert_int_eq(p->window_right, FA3_UNBOUNDED);
    ck_assert_int_eq(launches[1].params->rows.operands.save, 0);
    run_end(&t);
}

/* ---- The choice ------------------------------------------------------------------------------ */

static const char by_tiles[] = "plan rows fa3_forward_d128",
                  by_attend[] = "fi_plan fi_attend_many_d128",
                  by_prefill[] = "fi_plan fi_save fi_prefill_d128",
                  by_prefill_alone[] = "fi_plan fi_prefill_d128"; /* which saves few rows */

TEST_OF(launches, decode_is_the_librarys)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_DECODE, 5, 5, 1));
    expect_launches(by_attend);
    ck_assert_int_eq(launches[1].params->fi_call.save, 1);
    run_end(&t);
    run_begin(&t, NULL, ATTN_METADATA_GRAPH);
    need(run_batch(&t, ATTN_MODE_DECODE, 5, 5, 1));
    expect_launches(by_attend);
    run_end(&t);
}

/* Many rows to tiles that they fill, and of which there are enough; else the library's. */
TEST_OF(launches, rows_decide)
{
    static const struct {
        int32_t seqs, tokens, q_len;
        const char *launches;
    } batches[] = {
        {3, 576, 192, by_tiles},
        {1, 512, 500, by_tiles},
        {3, 12, 4, "fi_plan fi_save fi_attend_many_d128"}, /* 16 rows a KV head */
        {6, 54, 9, "fi_plan fi_prefill_half_d128"},        /* 36 */
        {6, 384, 64, by_prefill_alone} /* a third of a tile; four of these heads fill two */
    };
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        need(run_batch(&t, ATTN_MODE_EXTEND, batches[i].seqs, batches[i].tokens, batches[i].q_len));
        expect_launches(batches[i].launches);
    }
    t.own->fa3.option = TILES_ALWAYS;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 24, 8));
    expect_launches("plan rows fa3_forward_d128_low");
    need(run_batch(&t, ATTN_MODE_DECODE, 3, 3, 1));
    expect_launches(by_attend);
    ck_assert_ptr_null(fa3_group_of(&t.of.problem, TILES_NEVER).tile);
    run_end(&t);
}

/* What the forward kernels have not. */
TEST_OF(launches, problems_decide)
{
    test_problem of[7];
    for (int i = 0; i < 7; i++)
        make_problem(&of[i]);
    of[0].group.flags = ATTN_GROUP_HAS_ALIBI;
    of[1].group.attention_chunk = 63;
    of[2].problem.out_dtype = ATTN_F32;
    of[3].group.sm_scale = -1;
    of[4].problem.required_traits = ATTN_TRAIT_DETERMINISTIC;
    of[5].group.attention_chunk = 64;
    of[5].group.head_dim = of[5].group.v_head_dim = 256;
    make_codes_problem(&of[6], ATTN_SCALE_PER_HEAD);
    of[6].group.attention_chunk = 64;
    for (int i = 0; i < 7; i++) {
        fa3_group group = fa3_group_of(&of[i].problem, TILES_AUTO);
        ck_assert_msg(group.tile == NULL, "%d", i);
        ck_assert_uint_eq(fa3_layout_plan(&group, &of[i].bounds).size, 0);
    }
    test_run t;
    run_begin(&t, &of[1], ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches(by_prefill);
    ck_assert_int_eq(launches[2].params->fi_call.chunk, 63);
    run_end(&t);
}

/* Keys of a chunk are causal, whatever the window to the right. */
TEST_OF(launches, chunks_of_a_warpgroup_or_more)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.group.attention_chunk = 64;
    of.group.window_right = -1;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches(by_tiles);
    ck_assert_int_eq(launches[0].params->plan.chunk, 64);
    ck_assert_int_eq(launches[1].params->rows.chunk, 64);
    ck_assert_int_eq(forward_params()->chunk, 64);
    ck_assert_int_eq(forward_params()->window_right, 0);
    run_end(&t);
}

/* What counts as no window in the kernels is one to so many keys. */
TEST_OF(launches, most_keys_decide)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.bounds.max_kv_len = INT32_MAX;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    t.own->fa3.option = TILES_ALWAYS;
    t.max_kv_len = FA3_UNBOUNDED;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches(by_tiles);
    t.max_kv_len = FA3_UNBOUNDED + 1;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches(by_prefill);
    run_end(&t);
}

/* ---- Gathered keys --------------------------------------------------------------------------- */

/* Codes under queries of 16 bits are made to rows, which tiles read with the cache's scales; new
 * ones are saved on the way, and rows that are not for tiles find them in k and v. */
TEST_OF(launches, codes_are_gathered)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.problem.kv_dtype = ATTN_FP8_E4M3;
    of.group.kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    const fa3_own *own = t.metadata->own;
    const fa3_metadata *view = &own->groups[0];
    fa3_gather_layout layout = fa3_layout_gather(&t.own->group, &t.own->base.base, &t.of.bounds);
    t.args.num_scales = ATTN_ROLE_COUNT;
    t.args.scales = t.scale_list;
    const uint64_t shape[4] = {TEST_DIM, layout.rows, TEST_KV_HEADS, 1};
    const uint64_t strides[3] = {NEW_ROW, TEST_DIM, 0};
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan rows gather fa3_forward_d128");
    ck_assert_uint_eq(layout.rows, 6 * 4000);
    const struct fa3_forward_params *p = forward_params();
    expect_map(&p->k, own->scratch, shape, strides, (uint32_t)view->tile->keys);
    expect_map(&p->v, own->scratch + layout.v_at, shape, strides, (uint32_t)view->tile->keys);
    ck_assert_uint_eq(p->block_table, 0);
    ck_assert_uint_eq(p->k_starts, (uintptr_t)view->ahead_first);
    ck_assert_uint_eq(p->k_lengths, (uintptr_t)kv_lens);
    ck_assert_uint_eq(p->kv_scales, (uintptr_t)own->scratch + layout.scales_at);
    const fa3_plan_call *plan = &launches[0].params->plan;
    ck_assert_ptr_eq(plan->ahead_first, view->ahead_first);
    ck_assert_int_eq(plan->ahead_keys, 1);
    ck_assert_int_eq(plan->only_new, 1);
    const fa3_rows_call *rows = &launches[1].params->rows;
    ck_assert_int_eq(rows->operands.save, 0);
    ck_assert_int_eq(rows->has_codes, 1);
    ck_assert_int_eq(rows->dtype, ELEMENT_BF16);
    ck_assert_uint_eq((uintptr_t)rows->cache_scales, p->kv_scales);
    const fa3_gather_call *gather = &launches[2].params->gather;
    ck_assert_int_eq(gather->operands.save, 1);
    ck_assert_int_eq(gather->kv_dtype, ELEMENT_E4M3);
    ck_assert_int_eq(gather->dtype, ELEMENT_BF16);
    ck_assert_int_eq(gather->most_rows, 6 * 4000);
    ck_assert_ptr_eq(gather->k, own->scratch);
    t.args.flags = 0; /* in no page, and read from where they are given */
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan rows gather fa3_forward_d128");
    ck_assert_int_eq(launches[2].params->gather.operands.save, 0);
    ck_assert_ptr_eq(launches[2].params->gather.operands.k, t.k.data);
    run_end(&t);
}

/* Of keys that there is no room for a batch is the library's, and no graph is for tiles whose
 * batches may have as many. */
TEST_OF(launches, gathered_keys_have_room)
{
    static const int32_t few[3] = {1000, 200, 200}, many[3] = {400000, 200000, 2000};
    static const char by_codes[] = "fi_plan fi_save fi_prefill_d128";
    test_problem of;
    test_run t;
    make_problem(&of);
    of.problem.kv_dtype = ATTN_FP8_E4M3;
    of.group.kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    of.bounds.max_kv_len = 400000;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    t.args.num_scales = ATTN_ROLE_COUNT;
    t.args.scales = t.scale_list;
    uint64_t rows = fa3_layout_gather(&t.own->group, &t.own->base.base, &t.of.bounds).rows;
    ck_assert_uint_eq(rows, ((uint64_t)512 << 20) / (2 * 2 * TEST_KV_HEADS * TEST_DIM));
    t.own->fa3.option = TILES_ALWAYS;
    t.max_kv_len = 400000;
    t.kv.kv_lens.host = few;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan rows gather fa3_forward_d128");
    t.kv.kv_lens.host = many;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches(by_codes);
    t.kv.kv_lens.host = NULL; /* as many as there may be */
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches(by_codes);
    run_end(&t);
    run_begin(&t, &of, ATTN_METADATA_GRAPH);
    t.args.num_scales = ATTN_ROLE_COUNT;
    t.args.scales = t.scale_list;
    t.own->fa3.option = TILES_ALWAYS;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches(by_codes);
    run_end(&t);
}

/* Keys in pages too small for boxes are gathered, unless all are new: then no page is read. */
TEST_OF(launches, small_pages_are_gathered)
{
    static const int32_t none[3] = {0}, rows[4] = {0, 192, 384, 576}, keys[3] = {192, 192, 192};
    test_problem of;
    test_run t;
    make_problem(&of);
    of.problem.page_size = 4;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan rows gather fa3_forward_d128");
    ck_assert_uint_eq(forward_params()->kv_scales, 0);
    ck_assert_int_eq(launches[1].params->rows.has_codes, 0);
    ck_assert_int_eq(launches[2].params->gather.kv_dtype, ELEMENT_BF16);
    t.batch.prefix_lens.host = none;
    t.batch.q_indptr.host = rows;
    t.kv.kv_lens.host = keys;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan rows fa3_forward_d128");
    ck_assert_uint_eq(forward_params()->block_table, 0);
    ck_assert_uint_eq(forward_params()->k_lengths, 0);
    t.operands[ATTN_ROLE_K] = t.operands[ATTN_ROLE_V] = NULL; /* all keys are in the cache */
    t.args.flags = 0;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan rows gather fa3_forward_d128");
    run_end(&t);
}

/* Such batches are split as others are: of those who decode no key is gathered. */
TEST_OF(launches, small_pages_are_split)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.problem.page_size = 4;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    t.own->fa3.option = TILES_ALWAYS;
    t.num_decodes = 1;
    need(run_batch(&t, ATTN_MODE_MIXED, 3, 577, 288));
    expect_launches("plan fi_plan rows gather fa3_forward_d128_low fi_attend_d128");
    ck_assert_int_eq(launches[0].params->plan.others_first, 2);
    ck_assert_int_eq(launches[0].params->plan.others_end, 3);
    run_end(&t);
}

/* Low tiles where others would leave multiprocessors without one; few of these are cut by keys, into
 * parts that are joined, unless rows of others lie between theirs. */
TEST_OF(launches, few_tiles_are_shared_out)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    const fa3_own *own = t.metadata->own;
    const fa3_metadata *view = &own->groups[0];
    fa3_join_layout layout = fa3_layout_join(&t.own->group, &t.own->base.base, &t.of.bounds);
    t.max_kv_len = 4000;
    t.own->fa3.option = TILES_ALWAYS;
    need(run_batch(&t, ATTN_MODE_EXTEND, 1, 128, 128)); /* 8 tiles for 24 multiprocessors */
    expect_launches("plan rows fa3_forward_d128_low join");
    ck_assert_ptr_eq(view->tile, t.own->group.low);
    ck_assert_int_eq(view->splits, TEST_SMS / TEST_Q_HEADS);
    const struct fa3_forward_params *p = &launches[2].params->forward;
    ck_assert_int_eq(p->splits, view->splits);
    ck_assert_int_eq(p->out_f32, 1);
    ck_assert_uint_eq(p->out, (uintptr_t)own->scratch + layout.at);
    ck_assert_uint_eq(p->lse, (uintptr_t)own->scratch + layout.lse_at);
    ck_assert_int_eq(p->out_token, ROW);
    ck_assert_int_eq(p->out_split, 128 * ROW);
    ck_assert_int_eq(p->lse_split, 128 * TEST_Q_HEADS);
    ck_assert_uint_eq(p->sinks, 0);
    ck_assert_uint_eq(launches[2].blocks, TEST_SMS);
    const fa3_join_call *join = &launches[3].params->join;
    ck_assert_int_eq(join->splits, view->splits);
    ck_assert_int_eq(join->rows, 128);
    ck_assert_uint_eq((uintptr_t)join->values, p->out);
    ck_assert_uint_eq((uintptr_t)join->lse, p->lse);
    ck_assert_ptr_eq(join->operands.out, t.out.data);
    t.max_kv_len = 600; /* not twice as many keys as a part has at least */
    need(run_batch(&t, ATTN_MODE_EXTEND, 1, 128, 128));
    expect_launches("plan rows fa3_forward_d128_low");
    t.max_kv_len = 4000;
    t.num_decodes = 1;
    need(run_batch(&t, ATTN_MODE_MIXED, 2, 129, 128));
    expect_launches("plan fi_plan rows fa3_forward_d128_low fi_attend_d128");
    ck_assert_int_eq(view->splits, 1);
    run_end(&t);
}

TEST_OF(launches, masks_decide)
{
    static const uint8_t bits[1] = {0};
    static const int64_t indptr[4] = {0};
    test_problem of;
    test_run t;
    make_problem(&of);
    of.bounds.mask_kinds = (1 << ATTN_MASK_COUNT) - 1;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    t.mask = (attn_mask){.struct_size = sizeof t.mask,
                         .kind = ATTN_MASK_FULL,
                         .bits = bits,
                         .indptr = {NULL, indptr}};
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches(by_prefill);
    t.mask.kind = ATTN_MASK_NONE;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches(by_tiles);
    run_end(&t);
}

/* Sequences that decode are the library's, the others are tiles, if they are worth it. */
TEST_OF(launches, mixed_batches_are_split)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    t.num_decodes = 2;
    need(run_batch(&t, ATTN_MODE_MIXED, 5, 576, 192));
    expect_launches("plan fi_plan rows fa3_forward_d128 fi_attend_d128");
    ck_assert_int_eq(launches[0].params->plan.others_first, 3);
    ck_assert_int_eq(launches[0].params->plan.others_end, 5);
    ck_assert_int_eq(launches[2].params->rows.operands.save, 1);
    const fi_call *call = &launches[4].params->fi_call;
    ck_assert_ptr_eq(call->plan, launches[1].params->fi_plan.plan);
    ck_assert_int_eq(call->batch.num_seqs, 2);
    ck_assert_int_eq(call->batch.num_tokens, 0);
    ck_assert_ptr_eq(call->batch.q_indptr, q_indptr + 3);
    ck_assert_ptr_eq(call->batch.prefix_lens, prefix_lens + 3);
    ck_assert_ptr_eq(call->batch.kv_lens, kv_lens + 3);
    ck_assert_ptr_eq(call->batch.block_table, block_table + (ptrdiff_t)3 * 90);
    ck_assert_ptr_eq(call->batch.out_cache_loc, (const long long *)out_cache_loc);
    ck_assert_int_eq(call->saved, 1);
    ck_assert_int_eq(call->save, 0);
    ck_assert_ptr_eq(launches[1].params->fi_plan.batch.q_indptr, q_indptr + 3);
    t.max_kv_len = 4000; /* few rows of many keys */
    need(run_batch(&t, ATTN_MODE_MIXED, 5, 30, 10));
    expect_launches("fi_plan fi_prefill_half_d128");
    t.max_kv_len = 0;
    ck_assert_int_eq(launches[1].params->fi_call.batch.num_seqs, 5);
    t.num_decodes = 0;
    need(run_batch(&t, ATTN_MODE_MIXED, 3, 576, 192));
    expect_launches(by_tiles);
    ck_assert_int_eq(launches[0].params->plan.others_end, 0);
    run_end(&t);
}

/* Where a layer may leave keys unsaved, both are planned, and the call decides. */
TEST_OF(launches, unsaved_keys_decide)
{
    static const int32_t none[3] = {0}, rows[4] = {0, 192, 384, 576}, keys[3] = {192, 192, 192};
    test_problem of;
    test_run t;
    make_problem(&of);
    of.bounds.uses |= ATTN_USES_UNSAVED_KV;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan fi_plan rows fa3_forward_d128");
    t.args.flags = 0;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan fi_plan fi_prefill_d128");
    t.batch.prefix_lens.host = none; /* all keys are new, and in no page */
    t.batch.q_indptr.host = rows;
    t.kv.kv_lens.host = keys;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches(by_tiles);
    ck_assert_int_eq(launches[1].params->rows.operands.save, 0);
    run_end(&t);
}

/* ---- What is not for tiles ------------------------------------------------------------------- */

/* Operands that a tensor map cannot tell of are served row by row. */
TEST_OF(launches, unaligned_operands)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    attn_tensor *operands[] = {&t.q, &t.out, &t.k_cache, &t.v_cache};
    for (int i = 0; i < 4; i++)
        for (int stride = 0; stride < 2; stride++) {
            attn_tensor aligned = *operands[i];
            operands[i]->byte_offset = stride ? 0 : 2;
            operands[i]->strides[0] += stride ? 4 : 0;
            need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
            expect_launches("plan rows");
            ck_assert_int_eq(launches[1].params->rows.all_slow, 1);
            *operands[i] = aligned;
        }
    /* Of one row there is no next one, whatever its stride. */
    attn_tensor *rows[] = {&t.q, &t.out, &t.k, &t.v};
    for (int i = 0; i < 4; i++) {
        rows[i]->shape[0] = 1;
        rows[i]->strides[0] = 1;
    }
    t.own->fa3.option = TILES_ALWAYS;
    t.max_kv_len = 1;
    need(run_batch(&t, ATTN_MODE_EXTEND, 1, 1, 1));
    expect_launches("plan rows fa3_forward_d128_low");
    run_end(&t);
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    t.k.strides[0] += 4; /* is copied */
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan rows fa3_forward_d128");
    ck_assert_int_eq(launches[1].params->rows.operands.aligned & CALL_ALIGNED_NEW, 0);
    run_end(&t);
}

TEST_OF(launches, refusals)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 7, 30, 20), ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 2, 601, 20), ATTN_INVALID_ARGUMENT);
    t.mask = (attn_mask){.struct_size = sizeof t.mask, .kind = ATTN_MASK_FULL};
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192), ATTN_INVALID_ARGUMENT);
    t.mask.struct_size = 0;
    t.operands[ATTN_ROLE_Q] = NULL;
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192), ATTN_INVALID_ARGUMENT);
    ck_assert_msg(strstr(test_message, "operand q"), "%s", test_message);
    run_end(&t);
}

/* ---- Graphs and memory ----------------------------------------------------------------------- */

TEST_OF(launches, graphs_go_by_bounds)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_GRAPH);
    t.own->fa3.option = TILES_ALWAYS;
    const struct {
        int32_t seqs, tokens, q_len;
    } batches[] = {{6, 600, 500}, {1, 1, 1}, {3, 40, 30}};
    for (int i = 0; i < 3; i++) {
        num_fills = 0;
        need(run_batch(&t, ATTN_MODE_EXTEND, batches[i].seqs, batches[i].tokens, batches[i].q_len));
        expect_launches("plan rows fa3_forward_d128");
        ck_assert_int_eq(launches[0].params->plan.batch.num_seqs, batches[i].seqs);
        ck_assert_ptr_nonnull(launches[1].params->rows.batch.counts);
        ck_assert_int_eq(launches[1].params->rows.batch.counts[CALL_COUNT_TOKENS],
                         batches[i].tokens);
        ck_assert_uint_eq(launches[1].blocks, 600 * NEW_ROW * 2 * 2 / ROWS_BLOCK_BYTES);
        ck_assert_uint_eq(launches[2].blocks, TEST_SMS);
        ck_assert_uint_ne(forward_params()->tiles, 0);
        ck_assert_int_gt(num_fills, 0);
    }
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_DECODE, 2, 2, 1), ATTN_INVALID_ARGUMENT);
    run_end(&t);
}

TEST_OF(launches, empty_batches)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 0, 0, 0));
    expect_launches("");
    need(run_batch(&t, ATTN_MODE_IDLE, 0, 0, 0));
    expect_launches("");
    run_end(&t);
    run_begin(&t, NULL, ATTN_METADATA_GRAPH);
    need(run_batch(&t, ATTN_MODE_DECODE, 6, 6, 1));
    t.kv.kv_lens.host = NULL;
    need(run_batch(&t, ATTN_MODE_DECODE, 0, 0, 1));
    expect_launches("fi_plan"); /* which a replay reads */
    run_end(&t);
}

/* ---- Codes ----------------------------------------------------------------------------------- */

static void begin_codes(test_run *t, uint32_t granularity)
{
    test_problem of;
    make_codes_problem(&of, granularity);
    run_begin(t, &of, ATTN_METADATA_EAGER);
    t->args.num_scales = ATTN_ROLE_COUNT;
    t->args.scales = t->scale_list;
}

/* Scales of the host come first, values are turned, tiles read these. */
TEST_OF(launches, codes_in_tiles)
{
    test_run t;
    begin_codes(&t, ATTN_SCALE_PER_TENSOR);
    const fa3_own *own = t.metadata->own;
    fa3_codes_layout layout = fa3_layout_codes(&t.own->group, &t.own->base.base, &t.of.bounds);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 600, 500));
    expect_launches("plan scales scales scales rows turn fa3_forward_codes_d128");
    const struct fa3_codes_params *p = &launches[6].params->codes;
    const struct fa3_turn_params *turn = &launches[5].params->turn;
    const fa3_rows_call *rows = &launches[4].params->rows;
    seen_map q = read_map(&p->forward.q), k = read_map(&p->forward.k);
    ck_assert_uint_eq(q.box[0], 128);
    ck_assert_uint_eq(q.type, CUDA_TENSOR_UINT8);
    ck_assert_uint_eq(k.strides[0], NEW_ROW);
    ck_assert_uint_eq(k.box[1], 16);
    ck_assert_uint_eq(read_map(&p->forward.o).type, CUDA_TENSOR_BFLOAT16);
    ck_assert_uint_eq(p->turned, (uintptr_t)own->scratch + layout.turned_at);
    ck_assert_uint_eq(turn->turned, p->turned);
    ck_assert_uint_eq(turn->turned_first, p->turned_first);
    ck_assert_uint_eq(p->turned_first, (uintptr_t)launches[0].params->plan.ahead_first);
    ck_assert_uint_ne(p->turned_first, 0);
    ck_assert_uint_eq(turn->v, (uintptr_t)t.v_cache.data);
    ck_assert_int_eq(turn->v_token, NEW_ROW);
    ck_assert_uint_eq(launches[5].grid[0], 16); /* of 2000 keys */
    ck_assert_uint_eq(launches[5].grid[1], TEST_KV_HEADS);
    ck_assert_uint_eq(launches[5].grid[2], 3);
    ck_assert_uint_eq(p->q_scale.at, (uintptr_t)launches[1].params->scales.to);
    ck_assert_int_eq(p->q_scale.head + p->q_scale.sequence, 0);
    ck_assert_uint_eq(p->k_scale.at, (uintptr_t)rows->cache_scales);
    ck_assert_uint_eq(p->v_scale.at, (uintptr_t)(rows->cache_scales + TEST_KV_HEADS));
    ck_assert_int_eq(rows->has_codes, 1);
    ck_assert_int_eq(rows->out_dtype, ELEMENT_BF16);
    ck_assert_int_eq(rows->new_dtype, ELEMENT_E4M3);
    ck_assert_uint_le(layout.turned_at + 3 * 16 * TEST_KV_HEADS * 128 * 128, layout.size);
    run_end(&t);
}

/* A graph's values are turned for any batch within the bounds. */
TEST_OF(launches, graphs_turn_by_bounds)
{
    test_run t;
    test_problem of;
    make_codes_problem(&of, ATTN_SCALE_PER_TENSOR);
    run_begin(&t, &of, ATTN_METADATA_GRAPH);
    t.args.num_scales = ATTN_ROLE_COUNT;
    t.args.scales = t.scale_list;
    t.own->fa3.option = TILES_ALWAYS;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 600, 500));
    const seen_launch *turn = &launches[num_launches - 2];
    ck_assert_str_eq(turn->name, "turn");
    ck_assert_uint_eq(turn->grid[0], 32); /* of 4000 keys */
    ck_assert_uint_eq(turn->grid[2], 6);
    ck_assert_uint_eq(turn->params->turn.seqs, t.metadata->plan.counts);
    ck_assert_uint_ne(turn->params->turn.seqs, 0);
    run_end(&t);
}

/* Few queries, and what is not saved, are the library's, as bf16. */
TEST_OF(launches, codes_for_the_library)
{
    test_run t;
    begin_codes(&t, ATTN_SCALE_PER_SEQ_HEAD);
    fa3_codes_layout layout = fa3_layout_codes(&t.own->group, &t.own->base.base, &t.of.bounds);
    char *scratch = ((const fa3_own *)t.metadata->own)->scratch;
    t.scales[ATTN_ROLE_Q].count = t.scales[ATTN_ROLE_K].count = t.scales[ATTN_ROLE_V].count =
        3 * TEST_KV_HEADS;
    t.scales[ATTN_ROLE_Q].device = (const float *)(uintptr_t)4096;
    need(run_batch(&t, ATTN_MODE_DECODE, 3, 3, 1));
    expect_launches("fi_plan scales scales widen fi_attend_d128");
    const fa3_widen_call *widen = &launches[3].params->widen;
    const fi_call *call = &launches[4].params->fi_call;
    ck_assert_ptr_eq(widen->q_input.scale, (const void *)4096);
    ck_assert_int_eq(widen->q_input.sequence, TEST_KV_HEADS);
    ck_assert_int_eq(widen->q_input.head, 1);
    ck_assert_ptr_eq(widen->operands.q, t.q.data);
    ck_assert_ptr_eq(call->operands.q, scratch);
    ck_assert_ptr_eq(call->operands.k, scratch + layout.k_at);
    ck_assert_ptr_eq(call->operands.v, scratch + layout.v_at);
    ck_assert_ptr_eq(widen->k, call->operands.k);
    ck_assert_int_eq(call->operands.q_head, 2 * TEST_DIM);
    ck_assert_int_eq(call->dtype, ELEMENT_BF16);
    run_end(&t);
}

/* The library's rows are within what there is room for: 2 * 600 + 64. Where host arrays tell, it is
 * when the batch is planned: afterwards they are gone. */
TEST_OF(launches, rows_are_told_when_planned)
{
    int32_t rows[4] = {1200, 1208, 1216, 1264};
    test_run t;
    begin_codes(&t, ATTN_SCALE_PER_TENSOR);
    t.q.shape[0] = t.k.shape[0] = t.v.shape[0] = t.out.shape[0] = 2000;
    need(run_batch(&t, ATTN_MODE_DECODE, 3, 3, 1)); /* which reads no q_indptr */
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 3, 24, 8), ATTN_INVALID_ARGUMENT);
    t.batch.q_indptr.host = rows;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 24, 8));
    rows[3] = INT32_MAX;
    num_launches = 0;
    need(fa3_forward_extend(t.metadata, TEST_LAYER, &t.args, NULL, &test_error));
    rows[3] = 1265;
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 3, 24, 8), ATTN_INVALID_ARGUMENT);
    ck_assert_msg(strstr(test_message, "1265"), "%s", test_message);
    run_end(&t);
}

TEST_OF(launches, codes_need_scales)
{
    test_run t;
    begin_codes(&t, ATTN_SCALE_PER_TENSOR);
    t.scale_list[ATTN_ROLE_V] = NULL;
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 3, 600, 500), ATTN_INVALID_ARGUMENT);
    t.scale_list[ATTN_ROLE_V] = &t.scales[ATTN_ROLE_V];
    t.scales[ATTN_ROLE_K].count = 2;
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_DECODE, 3, 3, 1), ATTN_INVALID_ARGUMENT);
    t.scales[ATTN_ROLE_K].count = 1;
    t.kv.kv_new_indptr.host = NULL;
    need(run_batch(&t, ATTN_MODE_DECODE, 3, 3, 1));
    run_end(&t);
}

/* All that is asked for is enough for the parts of a plan, none of which overlap. */
TEST_OF(launches, memory_of_a_plan)
{
    test_run t;
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    const attn_bounds *bounds = &t.of.bounds;
    fa3_plan_layout layout = fa3_layout_plan(&t.own->group, bounds);
    uint64_t seqs = (uint64_t)bounds->max_seqs * sizeof(int32_t);
    ck_assert_uint_ge(layout.tiles_at, sizeof(fa3_plan));
    ck_assert_uint_ge(layout.slow_at,
                      layout.tiles_at + (uint64_t)layout.most_tiles * sizeof(struct fa3_entry));
    ck_assert_uint_ge(layout.first_tile_at, layout.slow_at + seqs);
    ck_assert_uint_ge(layout.marks_at, layout.first_tile_at + seqs + 4);
    ck_assert_uint_ge(layout.size, layout.marks_at + seqs);
    /* The most tiles that lengths within the bounds can make. */
    int64_t queries = t.own->group.tile->queries, most = 0, left = bounds->max_tokens;
    for (int32_t s = 0; s < bounds->max_seqs; s++) {
        int64_t rows = s + 1 < bounds->max_seqs ? 1 : left;
        most += (rows + queries - 1) / queries;
        left -= rows;
    }
    ck_assert_int_ge(layout.most_tiles, most);
    expect_memory_needed(&t, ATTN_METADATA_EAGER);
    run_end(&t);
}

/* ---- Paths ----------------------------------------------------------------------------------- */

/* What the host tells of: three sequences without a prefix. */
static void tell_of_new_keys(test_run *t)
{
    static const int32_t none[3] = {0}, rows[4] = {0, 192, 384, 576}, keys[3] = {192, 192, 192};
    t->batch.prefix_lens.host = none;
    t->batch.q_indptr.host = rows;
    t->kv.kv_lens.host = keys;
}

TEST_OF(launches, rows_go_by_tiles)
{
    const attn_code_paths *paths = fa3_get_extension(NULL, ATTN_EXTENSION_CODE_PATHS);
    int64_t none[FA3_NUM_PATHS];
    test_run t;
    ck_assert_ptr_null(fa3_get_extension(NULL, ATTN_EXTENSION_EXPLAIN));
    ck_assert_uint_eq(paths->num_paths, FA3_NUM_PATHS);
    run_begin(&t, NULL, ATTN_METADATA_EAGER);
    ck_assert_int_eq(paths->rows(t.metadata, TEST_LAYER, none, &test_error), ATTN_BAD_STATE);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    EXPECT_ROWS(&t, FA3_PATH_PAGED, 576);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 12, 4));
    EXPECT_ROWS(&t, FI_PATH_FEW, 12);
    need(run_batch(&t, ATTN_MODE_EXTEND, 6, 384, 64));
    EXPECT_ROWS(&t, FI_PATH_UNTOLD, 384);
    need(run_batch(&t, ATTN_MODE_DECODE, 3, 3, 1));
    EXPECT_ROWS(&t, FI_PATH_DECODE, 3);
    t.num_decodes = 2;
    need(run_batch(&t, ATTN_MODE_MIXED, 5, 576, 192));
    EXPECT_ROWS(&t, FA3_PATH_PAGED, 574, FI_PATH_FEW, 2);
    t.batch.num_real_seqs = 4; /* and one of padding */
    t.batch.num_real_tokens = 575;
    need(fa3_init_forward_metadata(t.metadata, &t.batch, NULL, &test_error));
    EXPECT_ROWS(&t, FA3_PATH_PAGED, 574, FI_PATH_FEW, 1);
    t.num_decodes = 0;
    tell_of_new_keys(&t);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    EXPECT_ROWS(&t, FA3_PATH_RAGGED, 576);
    t.layer.kv_read_only = 1; /* called without k and v */
    EXPECT_ROWS(&t, FA3_PATH_RAGGED, 0, FA3_PATH_PAGED, 576);
    run_end(&t);
}

/* Tiles that go by the call, by small pages, or by codes. */
TEST_OF(launches, rows_go_by_problems)
{
    test_problem of;
    test_run t;
    make_problem(&of);
    of.bounds.uses |= ATTN_USES_UNSAVED_KV;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    EXPECT_ROWS(&t, FA3_PATH_IF_SAVED, 576);
    tell_of_new_keys(&t);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    EXPECT_ROWS(&t, FA3_PATH_RAGGED, 576);
    run_end(&t);
    make_problem(&of);
    of.problem.page_size = 4;
    run_begin(&t, &of, ATTN_METADATA_EAGER);
    tell_of_new_keys(&t);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    EXPECT_ROWS(&t, FA3_PATH_RAGGED, 576);
    t.layer.kv_read_only = 1; /* finds them in pages */
    EXPECT_ROWS(&t, FA3_PATH_RAGGED, 0, FA3_PATH_GATHERED, 576);
    run_end(&t);
    begin_codes(&t, ATTN_SCALE_PER_TENSOR);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 600, 500));
    EXPECT_ROWS(&t, FA3_PATH_CODES, 600);
    run_end(&t);
}

/* ---- Latent attention in the expanded form --------------------------------------------------- */

static void begin_expanded(test_run *t, test_problem *of, uint32_t kind)
{
    make_expanded_problem(of);
    run_begin(t, of, kind);
}

/* Keys as they came, at places that the plan tells; latents go to their cache as one head's. */
LOOP_OF(launches, expanded_reads_given_keys, 0, 2)
{
    const uint64_t keys[4] = {192, TEST_ROWS, TEST_Q_HEADS, 1};
    const uint64_t key_strides[3] = {(uint64_t)TEST_Q_HEADS * 192, 192, 0};
    const uint64_t values[4] = {128, TEST_ROWS, TEST_Q_HEADS, 1};
    const uint64_t value_strides[3] = {(uint64_t)TEST_Q_HEADS * 128, 128, 0};
    test_problem of;
    test_run t;
    begin_expanded(&t, &of, _i ? ATTN_METADATA_GRAPH : ATTN_METADATA_EAGER);
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan fi_save rows fa3_forward_d192_v128");
    const fa3_given *given = &((fa3_own *)t.metadata->own)->groups[0].given;
    const struct fa3_forward_params *p = forward_params();
    expect_map(&p->q, t.q.data, keys, key_strides, 64);
    expect_map(&p->k, t.k.data, keys, key_strides, 64);
    expect_map(&p->v, t.v.data, values, value_strides, 64);
    ck_assert_uint_eq(p->k_starts, (uintptr_t)given->rows);
    ck_assert_uint_eq(p->k_lengths, (uintptr_t)given->keys);
    ck_assert_uint_eq(p->positions, (uintptr_t)given->positions);
    ck_assert_uint_eq(p->block_table, 0);
    ck_assert_int_eq(p->window_right, 0);
    ck_assert_int_eq(p->out_f32, 1);
    ck_assert_int_eq(p->out_token, TEST_Q_HEADS * 128);
    const fa3_plan_call *plan = &launches[0].params->plan;
    ck_assert_ptr_eq(plan->given.kv_lens, kv_lens);
    ck_assert_ptr_eq(plan->given.prefix_lens, prefix_lens);
    ck_assert_ptr_eq(plan->batch.kv_lens, given->keys);
    ck_assert_ptr_eq(plan->batch.prefix_lens, given->positions);
    const fi_call *save = &launches[1].params->fi_call;
    ck_assert_ptr_eq(save->operands.k, t.c_kv.data);
    ck_assert_ptr_eq(save->operands.v, t.k_pe.data);
    ck_assert_ptr_eq(save->operands.v_cache, (char *)t.latents.data + 2 * 512);
    ck_assert_int_eq(save->operands.k_token, 2 * 576);
    ck_assert_int_eq(save->kv_heads, 1);
    ck_assert_ptr_eq(save->batch.out_cache_loc, out_cache_loc);
    const fa3_rows_call *slow = &launches[2].params->rows;
    ck_assert_int_eq(slow->operands.save, 0);
    ck_assert_int_eq(slow->all_slow, 0);
    ck_assert_ptr_eq(slow->batch.kv_lens, given->keys);
    ck_assert_int_eq(slow->out_dtype, ELEMENT_F32);
    run_end(&t);
}

/* Without SAVE_KV there are no latents; layers that read another's may not save any. */
TEST_OF(launches, expanded_saves_if_asked)
{
    test_problem of;
    test_run t;
    begin_expanded(&t, &of, ATTN_METADATA_EAGER);
    t.args.flags = 0;
    t.operands[ATTN_ROLE_LATENT_CACHE] = t.operands[ATTN_ROLE_C_KV] = NULL;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    expect_launches("plan rows fa3_forward_d192_v128");
    t.args.flags = ATTN_FORWARD_SAVE_KV;
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192), ATTN_INVALID_ARGUMENT);
    ck_assert_str_eq(test_message, "SAVE_KV of expanded latents without c_kv and k_pe");
    t.operands[ATTN_ROLE_C_KV] = &t.c_kv;
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192), ATTN_INVALID_ARGUMENT);
    t.layer.kv_read_only = 1;
    ck_assert_int_eq(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192), ATTN_INVALID_ARGUMENT);
    t.args.flags = 0;
    need(run_batch(&t, ATTN_MODE_EXTEND, 3, 576, 192));
    run_end(&t);
}

/* Row by row: what the copy engine cannot read, and scales that the tiles cannot multiply by. */
TEST_OF(launches, expanded_goes_row_by_row)
{
    test_problem of;
    test_run t;
    begin_expanded(&t, &of, ATTN_METADATA_EAGER);
    t.args.flags = 0;
    t.k.strides[0] += 1;
    need(run_batch(&t, ATTN_MODE_MIXED, 3, 576, 192));
    expect_launches("plan rows");
    ck_assert_int_eq(launches[1].params->rows.all_slow, 1);
    t.k.strides[0] -= 1;
    t.own->base.base.sm_scale = -1;
    need(run_batch(&t, ATTN_MODE_MIXED, 3, 576, 192));
    expect_launches("plan rows");
    run_end(&t);
}

TESTS("fa3_like_plan");
