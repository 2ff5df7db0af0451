/* SPDX-License-Identifier: Apache-2.0
 *
 * check_bench_shape.c: shapes of `attnhost bench`: what a text means, what is refused and in which
 * words, and how many pairs, operations and bytes there are, by hand and by the oracle's masks.
 */
#include "host/bench/shape.h"

#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/reference/reference.h"
#include "tests/tools/test_main.h"

#include <string.h>

static struct bench_shapes shapes;
static struct bench_shape base;
static host_error error;

static void set_up(void)
{
    host_error_init(&error);
    bench_shape_init(&base);
    shapes = (struct bench_shapes){0};
}

static void tear_down(void)
{
    bench_shapes_finish(&shapes);
}

static void add(const char *text)
{
    attn_status status = bench_shapes_add(&shapes, text, &base, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
}

static const struct bench_shape *one(const char *text)
{
    bench_shapes_finish(&shapes);
    add(text);
    ck_assert_uint_eq(shapes.count, 1);
    return &shapes.items[0];
}

/* ---- Grammar --------------------------------------------------------------------------------- */

TEST_OF(grammar, test_defaults)
{
    const struct bench_shape *s = one("batch=3");
    ck_assert_int_eq(s->mode, ATTN_MODE_DECODE);
    ck_assert_int_eq(s->batch, 3);
    ck_assert_int_eq(s->decodes, 0);
    ck_assert_int_eq(bench_shape_q_len(s, 2), 1);
    ck_assert_int_eq(bench_shape_kv_len(s, 2), 1024);
    ck_assert_int_eq(s->v_head_dim, 128);
    ck_assert_uint_eq(s->kv_dtype, ATTN_BF16);
    ck_assert_int_eq(s->causal, 1);
    ck_assert_int_eq(s->new_kv, BENCH_NEW_KV_SAVED);
    s = one("mode=prefill,kv_len=77,head_dim=40,dtype=float16");
    ck_assert_int_eq(s->mode, ATTN_MODE_EXTEND);
    ck_assert_int_eq(bench_shape_q_len(s, 0), 77);
    ck_assert_int_eq(s->v_head_dim, 40);
    ck_assert_uint_eq(s->kv_dtype, ATTN_F16);
    s = one("mode=mixed,batch=5,q_len=9,kv_len=20");
    ck_assert_int_eq(s->decodes, 2);
    ck_assert_int_eq(bench_shape_q_len(s, 2), 9);
    ck_assert_int_eq(bench_shape_q_len(s, 3), 1);
    ck_assert_int_eq(bench_shape_kv_len(s, 3), 20);
}

/* Of the base's type are outputs beside fp8 queries alone. */
TEST_OF(grammar, test_dtypes)
{
    const struct bench_shape *s = one("dtype=e4m3");
    ck_assert_uint_eq(s->dtype, ATTN_FP8_E4M3);
    ck_assert_uint_eq(s->new_kv_dtype, ATTN_FP8_E4M3);
    ck_assert_uint_eq(s->kv_dtype, ATTN_FP8_E4M3);
    ck_assert_uint_eq(s->out_dtype, ATTN_BF16);
    ck_assert_int_eq(s->input_scales, ATTN_SCALE_PER_TENSOR);
    s = one("dtype=f16");
    ck_assert_uint_eq(s->new_kv_dtype, ATTN_F16);
    ck_assert_uint_eq(s->out_dtype, ATTN_F16);
    s = one("dtype=fp8_e5m2,new_kv_dtype=f16,kv_dtype=fp8_e4m3,out_dtype=fp8_e4m3");
    ck_assert_uint_eq(s->dtype, ATTN_FP8_E5M2);
    ck_assert_uint_eq(s->new_kv_dtype, ATTN_F16);
    ck_assert_uint_eq(s->kv_dtype, ATTN_FP8_E4M3);
    ck_assert_uint_eq(s->out_dtype, ATTN_FP8_E4M3);
    base.dtype = ATTN_F16;
    ck_assert_uint_eq(one("dtype=fp8_e4m3")->out_dtype, ATTN_F16);
    ck_assert_uint_eq(one("dtype=f32")->out_dtype, ATTN_F32);
}

/* Products may be of codes where queries and the cache are. */
TEST_OF(grammar, test_codes)
{
    ck_assert(bench_shape_has_codes(one("dtype=fp8_e4m3")));
    ck_assert(bench_shape_has_codes(one("dtype=fp8_e4m3,kv_dtype=fp8_e5m2,new_kv_dtype=bf16")));
    ck_assert(!bench_shape_has_codes(one("dtype=fp8_e4m3,kv_dtype=bf16")));
    ck_assert(!bench_shape_has_codes(one("kv_dtype=fp8_e4m3,new_kv_dtype=fp8_e4m3")));
}

TEST_OF(grammar, test_every_key)
{
    const struct bench_shape *s =
        one("mode=Extend,batch=2,q_len=3,kv_len=9,q_heads=6,kv_heads=3,head_dim=24,v_head_dim=16,"
            "dtype=f32,kv_dtype=fp8_e5m2,page_size=4,window=5,causal=no,chunk=8,logit_cap=1.5,"
            "sm_scale=0.25,sinks=yes,alibi=yes,layout=hnd,new_kv=cached,scales=head,"
            "new_kv_dtype=fp8_e4m3,out_dtype=bf16,input_scales=seq_head");
    ck_assert_int_eq(s->mode, ATTN_MODE_EXTEND);
    ck_assert_int_eq(s->q_heads, 6);
    ck_assert_int_eq(s->kv_heads, 3);
    ck_assert_int_eq(s->head_dim, 24);
    ck_assert_int_eq(s->v_head_dim, 16);
    ck_assert_uint_eq(s->dtype, ATTN_F32);
    ck_assert_uint_eq(s->kv_dtype, ATTN_FP8_E5M2);
    ck_assert_int_eq(s->page_size, 4);
    ck_assert_int_eq(s->window, 5);
    ck_assert_int_eq(s->causal, 0);
    ck_assert_int_eq(s->chunk, 8);
    ck_assert_double_eq(s->logit_cap, 1.5);
    ck_assert_double_eq(s->sm_scale, 0.25);
    ck_assert_int_eq(s->sinks, 1);
    ck_assert_int_eq(s->alibi, 1);
    ck_assert_int_eq(s->layout, BENCH_LAYOUT_HND);
    ck_assert_int_eq(s->new_kv, BENCH_NEW_KV_CACHED);
    ck_assert_int_eq(s->scales, ATTN_SCALE_PER_HEAD);
    ck_assert_uint_eq(s->new_kv_dtype, ATTN_FP8_E4M3);
    ck_assert_uint_eq(s->out_dtype, ATTN_BF16);
    ck_assert_int_eq(s->input_scales, ATTN_SCALE_PER_SEQ_HEAD);
}

TEST_OF(grammar, test_combinations)
{
    static const int32_t batches[] = {2, 2, 2, 4, 4, 4}, lens[] = {16, 32, 64, 16, 32, 64};
    add("batch=2:4,kv_len=16-64x2");
    ck_assert_uint_eq(shapes.count, 6);
    for (size_t i = 0; i < 6; i++) {
        ck_assert_int_eq(shapes.items[i].batch, batches[i]);
        ck_assert_int_eq(bench_shape_kv_len(&shapes.items[i], 0), lens[i]);
    }
    add("kv_len=8-24/8:100");
    ck_assert_uint_eq(shapes.count, 10);
    for (size_t i = 6; i < 9; i++)
        ck_assert_int_eq(bench_shape_kv_len(&shapes.items[i], 0), 8 * (int32_t)(i - 5));
    ck_assert_int_eq(bench_shape_kv_len(&shapes.items[9], 0), 100);
    ck_assert_int_eq(shapes.items[9].batch, 1);
}

TEST_OF(grammar, test_lengths_in_turn)
{
    const struct bench_shape *s = one("mode=extend,batch=5,q_len=2+3,kv_len=7+11+13");
    for (int32_t i = 0; i < 5; i++) {
        ck_assert_int_eq(bench_shape_q_len(s, i), i % 2 ? 3 : 2);
        ck_assert_int_eq(bench_shape_kv_len(s, i), i % 3 == 0 ? 7 : i % 3 == 1 ? 11 : 13);
    }
    bench_shapes_finish(&shapes);
    add("batch=2,kv_len=5+6:7");
    ck_assert_uint_eq(shapes.count, 2);
    ck_assert_int_eq(bench_shape_kv_len(&shapes.items[0], 1), 6);
    ck_assert_int_eq(bench_shape_kv_len(&shapes.items[1], 1), 7);
}

TEST_OF(grammar, test_base)
{
    base.head_dim = 96;
    base.v_head_dim = 64;
    base.window = 128;
    const struct bench_shape *s = one("kv_len=50");
    ck_assert_int_eq(s->head_dim, 96);
    ck_assert_int_eq(s->v_head_dim, 64);
    ck_assert_int_eq(s->window, 128);
    ck_assert_int_eq(one("window=0")->window, 0);
}

TEST_OF(grammar, test_text)
{
    char text[256];
    bench_shape_text(one("batch=32,kv_len=4096"), text, sizeof text);
    ck_assert_str_eq(text, "decode B32 kv4096 H32/8 D128 bf16");
    bench_shape_text(one("mode=mixed,batch=4,q_len=7,kv_len=9+10,v_head_dim=64,kv_dtype=e4m3,"
                         "page_size=1,window=6,chunk=4,causal=no,logit_cap=30,sinks=yes,alibi=yes,"
                         "layout=nhd,new_kv=args"),
                     text, sizeof text);
    ck_assert_str_eq(text, "mixed B4 (2 decodes) q7 kv9+10 H32/8 D128/64 bf16/fp8_e4m3 page1 "
                           "window6 chunk4 full cap30 sinks alibi nhd kv-args");
    bench_shape_text(&shapes.items[0], text, 8);
    ck_assert_str_eq(text, "mixed B");
    bench_shape_text(one("dtype=fp8_e4m3"), text, sizeof text);
    ck_assert_str_eq(text, "decode B1 kv1024 H32/8 D128 fp8_e4m3");
    bench_shape_text(one("dtype=fp8_e4m3,new_kv_dtype=bf16,kv_dtype=fp8_e5m2,out_dtype=f16,"
                         "input_scales=seq_head,page_size=64"),
                     text, sizeof text);
    ck_assert_str_eq(text, "decode B1 kv1024 H32/8 D128 fp8_e4m3/fp8_e5m2 new-bf16 out-f16 "
                           "inputs-seq_head page64");
    bench_shape_text(one("kind=mla,kv_dtype=fp8_e4m3,layout=latent_fp8,row_scales=any"), text,
                     sizeof text);
    ck_assert_str_eq(text, "mla decode B1 kv1024 H128 D512+64 bf16/fp8_e4m3 latent_fp8 "
                           "scales-any");
    bench_shape_text(one("out_dtype=fp8_e4m3,input_scales=head"), text, sizeof text);
    ck_assert_str_eq(text, "decode B1 kv1024 H32/8 D128 bf16 out-fp8_e4m3");
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static const struct refusal {
    const char *text;
    const char *says[3];
} refusals[] = {
    {"", {"'' has no '='", "accepted: KEY=VALUE"}},
    {"kv_len", {"'kv_len' has no '='"}},
    {"kv_len=5,", {"'' has no '='"}},
    {"kv_ln=5",
     {"--shape kv_ln=5: 'kv_ln' is not a key", "did you mean 'kv_len'?",
      "accepted: kind, mode, batch"}},
    {"=5", {"'' is not a key", "accepted: kind, mode"}},
    {"batch=2,batch=3", {"batch is given twice", "accepted: once", "batch=A:B"}},
    {"batch=", {"batch = '' is not a number in range", "accepted: 1 to 65536"}},
    {"batch=0", {"batch = '0'", "accepted: 1 to 65536"}},
    {"batch=65537", {"batch = '65537'"}},
    {"batch=2:", {"batch = ''"}},
    {"batch=+2", {"batch = '+2'"}},
    {"batch=2.5", {"batch = '2.5'"}},
    {"batch=1+2", {"batch = '1+2'"}},
    {"batch=99999999999999999999999999", {"batch = '9999"}},
    {"kv_len=5+", {"kv_len = '5+' has a number out of range", "N+N"}},
    {"kv_len=5+0", {"kv_len = '5+0' has a number out of range"}},
    {"kv_len=8-4/2", {"is a range without an end"}},
    {"kv_len=8-16x1", {"is a range without an end"}},
    {"kv_len=8-16/0", {"is not a range"}},
    {"kv_len=8-16", {"is not a range", "A-BxF"}},
    {"kv_len=8-20x2", {"does not reach its end by its step"}},
    {"kv_len=8-20/5", {"does not reach its end by its step"}},
    {"window=0-8x2", {"is a range without an end"}},
    {"kv_len=1-100000/1", {"has too many values"}},
    {"batch=1-100/1,q_heads=8-4096/8", {"more than 4096 shapes", "accepted: up to 4096"}},
    {"mode=decod",
     {"mode = 'decod' is not a choice", "did you mean 'decode'?",
      "accepted: decode, extend, prefill, mixed"}},
    {"sinks=maybe", {"sinks = 'maybe'", "accepted: yes, no"}},
    {"dtype=f64",
     {"dtype = 'f64' is not a data type here", "accepted: f32, f16, bf16, fp8_e4m3, fp8_e5m2"}},
    {"new_kv_dtype=none", {"new_kv_dtype = 'none'", "accepted: f32, f16"}},
    {"out_dtype=fp8", {"out_dtype = 'fp8'", "accepted: f32, f16"}},
    {"input_scales=token_head",
     {"input_scales = 'token_head' is not a choice", "accepted: tensor, head, seq_head"}},
    {"scales=seq_head", {"scales = 'seq_head' is not a choice", "accepted: tensor, head"}},
    {"kv_dtype=int32", {"kv_dtype = 'int32'", "accepted: f32, f16, bf16, fp8_e4m3, fp8_e5m2"}},
    {"logit_cap=-1", {"logit_cap = '-1'", "accepted: 0, or a number from 1.2e-38 to 1000000"}},
    {"logit_cap=1e-300", {"logit_cap = '1e-300'", "from 1.2e-38"}},
    {"sm_scale=1e-300", {"sm_scale = '1e-300'", "from 1.2e-38"}},
    {"sm_scale=nan", {"sm_scale = 'nan'"}},
    {"q_heads=12", {"q_heads = 12: accepted multiples of kv_heads, 8"}},
    {"q_len=2", {"q_len = 2 of a decode: accepted 1"}},
    {"mode=extend,q_len=9,kv_len=8", {"q_len = 9 of sequence 0: accepted 1 to its kv_len, 8"}},
    {"mode=extend,batch=2,q_len=4,kv_len=8+3", {"q_len = 4 of sequence 1"}},
    {"decodes=1", {"decodes = 1: accepted only with mode=mixed"}},
    {"mode=mixed", {"decodes = 0 of a mixed batch of 1", "accepted 1 and more"}},
    {"mode=mixed,batch=2,decodes=2", {"decodes = 2 of a mixed batch of 2"}},
    {"kind=mamba",
     {"kind = 'mamba' is not a choice", "did you mean 'mamba2'?",
      "accepted: softmax, mla, sparse, gdn"}},
    {"kind=sparse,label_dtype=fp8_e5m2", {"label_dtype = fp8_e5m2", "accepted f32, f16, bf16"}},
    {"kind=sparse,label_dim=6", {"label_dim = 6", "fp8_e4m3 with a multiple of 4"}},
    {"kind=sparse,choice=given,new_kv=args", {"choice = given with new_kv = args"}},
    {"kind=sparse,choice=alone,new_kv=args", {"choice = alone with new_kv = args"}},
    {"kind=sparse,form=expanded", {"form is not a key of kind=sparse"}},
    {"kind=mla,top_k=4", {"top_k is not a key of kind=mla"}},
    {"kind=mla,kv_heads=1", {"kv_heads is not a key of kind=mla", "accepted: kind, mode, batch"}},
    {"kind=softmax:mla,head_dim=64", {"head_dim is not a key of kind=mla"}},
    {"kind=gdn,heads=4", {"q_heads is not a key of kind=gdn"}},
    {"kind=lightning,gates=raw", {"gates is not a key of kind=lightning"}},
    {"v_heads=4", {"v_heads is not a key of kind=softmax"}},
    {"heads=4,q_heads=8", {"q_heads is given twice"}},
    {"kind=mla,layout=hnd", {"layout = hnd of kind=mla: accepted any, latent_fp8"}},
    {"layout=vk", {"layout = vk of kind=softmax: accepted any, nhd, hnd"}},
    {"kind=mla,layout=latent_fp8", {"kv_dtype bf16 in mla.latent_fp8/1: accepted fp8_e4m3"}},
    {"kind=mla,layout=latent_fp8,kv_dtype=fp8_e4m3,kv_lora_rank=100", {"kv_lora_rank 100"}},
    {"kind=mla,row_scales=any", {"row_scales = any: accepted only with layout=latent_fp8"}},
    {"kind=mla,dtype=fp8_e4m3", {"fp8 new latents", "accepted f32, f16, bf16"}},
    {"kind=mla,dtype=fp8_e4m3,new_kv_dtype=bf16,mode=prefill,form=expanded",
     {"fp8 queries", "accepted kind=mla, form=absorbed"}},
    {"kind=mla,mode=extend,q_len=3,kv_len=4,form=expanded", {"form = expanded with a prefix"}},
    {"kind=gdn,k_heads=3,v_heads=4", {"v_heads = 4: accepted multiples of k_heads, 3"}},
    {"kind=kda,state_dtype=f16", {"state_dtype = f16: accepted f32, bf16"}},
    {"kind=gdn,dtype=fp8_e4m3", {"of a recurrence: accepted f32, f16, bf16"}},
    {"kind=gdn,out_dtype=f32", {"dtype = bf16, out_dtype = f32 of a recurrence"}},
    {"kind=short_conv,conv_width=0", {"conv_width = 0 of kind=short_conv"}},
    {"batch=65536,kv_len=134217728", {"slots of the cache: accepted up to"}},
    {"mode=extend,batch=65536,kv_len=65536,page_size=1", {"new tokens: accepted up to"}},
};

LOOP_OF(grammar, test_refusals, 0, COUNT(refusals))
{
    const struct refusal *refusal = &refusals[_i];
    attn_status status = bench_shapes_add(&shapes, refusal->text, &base, &error.base);
    ck_assert_msg(status == ATTN_CONFIG_ERROR, "'%s' gives %d", refusal->text, status);
    for (int i = 0; i < 3 && refusal->says[i]; i++)
        ck_assert_msg(strstr(host_error_text(&error), refusal->says[i]), "'%s' is not in '%s'",
                      refusal->says[i], host_error_text(&error));
}

TEST_OF(grammar, test_too_many_lengths)
{
    char text[4 * BENCH_MAX_LENS + 32] = "kv_len=1";
    for (int i = 0; i < BENCH_MAX_LENS; i++)
        strcat(text, "+1");
    ck_assert_int_eq(bench_shapes_add(&shapes, text, &base, &error.base), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "more than 64 lengths"));
    text[strlen(text) - 2] = '\0';
    add(text);
}

/* ---- Counts ---------------------------------------------------------------------------------- */

static struct bench_count count_of(const char *text)
{
    struct bench_count count;
    bench_shape_count(one(text), &count);
    return count;
}

/* Two sequences of 5 and 7 keys; 4 query heads, 2 KV heads, 8 and 6 elements. */
TEST_OF(counts, test_decode_by_hand)
{
    struct bench_count c =
        count_of("batch=2,kv_len=5+7,q_heads=4,kv_heads=2,head_dim=8,v_head_dim=6,dtype=bf16,"
                 "kv_dtype=fp8_e4m3,page_size=4");
    ck_assert_int_eq(c.tokens, 2);
    ck_assert_int_eq(c.keys, 12);
    ck_assert_int_eq(c.pages, 4);
    ck_assert_int_eq(c.pairs, 12);
    ck_assert_int_eq(c.seen_keys, 12);
    ck_assert_double_eq(c.flop, 2 * (8 + 6) * 4 * 12);
    /* 10 keys of the cache of 1 byte, 2 new ones of 2 read and of 1 written; 2 queries, 2 outputs
     */
    ck_assert_double_eq(c.bytes, (8 + 6) * 2 * (10 * 1 + 2 * 2 + 2 * 1) + (8 + 6) * 4 * 2 * 2);
    c = count_of("batch=2,kv_len=5+7,q_heads=4,kv_heads=2,head_dim=8,v_head_dim=6,dtype=bf16,"
                 "kv_dtype=fp8_e4m3,new_kv=args");
    ck_assert_double_eq(c.bytes, (8 + 6) * 2 * (10 * 1 + 2 * 2) + (8 + 6) * 4 * 2 * 2);
    c = count_of("batch=2,kv_len=5+7,q_heads=4,kv_heads=2,head_dim=8,v_head_dim=6,dtype=bf16,"
                 "kv_dtype=fp8_e4m3,new_kv=cached");
    ck_assert_double_eq(c.bytes, (8 + 6) * 2 * (12 * 1) + (8 + 6) * 4 * 2 * 2);
}

/* The same sequences: each operand has elements of its own size. */
TEST_OF(counts, test_bytes_of_fp8)
{
#define TWO "batch=2,kv_len=5+7,q_heads=4,kv_heads=2,head_dim=8,v_head_dim=6,dtype=fp8_e4m3"
    struct bench_count c = count_of(TWO);
    ck_assert_double_eq(c.flop, 2 * (8 + 6) * 4 * 12);
    /* 2 queries of 8 bytes in a head, 2 outputs of 6 elements of 2 bytes */
    ck_assert_double_eq(c.bytes, (8 + 6) * 2 * (10 + 2 + 2) + 4 * 2 * (8 * 1 + 6 * 2));
    c = count_of(TWO ",new_kv_dtype=bf16,out_dtype=fp8_e4m3");
    ck_assert_double_eq(c.bytes, (8 + 6) * 2 * (10 + 2 * 2 + 2) + 4 * 2 * (8 * 1 + 6 * 1));
    c = count_of(TWO ",new_kv=args,new_kv_dtype=bf16,kv_dtype=bf16,out_dtype=f32");
    ck_assert_double_eq(c.bytes, (8 + 6) * 2 * (10 * 2 + 2 * 2) + 4 * 2 * (8 * 1 + 6 * 4));
#undef TWO
}

TEST_OF(counts, test_masks_by_hand)
{
    /* 4 queries after a prefix of 6: they see 7, 8, 9, 10 keys */
    ck_assert_int_eq(count_of("mode=extend,q_len=4,kv_len=10").pairs, 34);
    ck_assert_int_eq(count_of("mode=extend,q_len=4,kv_len=10,causal=no").pairs, 40);
    /* a window of 3 keys: 3 each, of keys 4 to 9 */
    struct bench_count c = count_of("mode=extend,q_len=4,kv_len=10,window=3");
    ck_assert_int_eq(c.pairs, 12);
    ck_assert_int_eq(c.seen_keys, 6);
    /* without causality the window opens to the right: 6, 5, 4, 3 */
    ck_assert_int_eq(count_of("mode=extend,q_len=4,kv_len=10,window=3,causal=no").pairs, 18);
    /* chunks of 4: positions 6, 7 see 3, 4 keys; 8, 9 see 1, 2 */
    c = count_of("mode=extend,q_len=4,kv_len=10,chunk=4");
    ck_assert_int_eq(c.pairs, 10);
    ck_assert_int_eq(c.seen_keys, 6);
    /* 5 tokens without a prefix */
    ck_assert_int_eq(count_of("mode=extend,kv_len=5").pairs, 15);
    /* 2 extends of 2 of 5 keys (4 + 5 pairs each), a decode of 5 */
    c = count_of("mode=mixed,batch=3,decodes=1,q_len=2,kv_len=5");
    ck_assert_int_eq(c.tokens, 5);
    ck_assert_int_eq(c.pairs, 9 + 9 + 5);
    /* a decode far behind its window */
    c = count_of("kv_len=1000,window=16,q_heads=1,kv_heads=1,head_dim=1,v_head_dim=1,dtype=f32");
    ck_assert_int_eq(c.pairs, 16);
    ck_assert_double_eq(c.bytes, 2 * 4 * (15 + 1 + 1) + 2 * 4);
}

/* Pairs and seen keys as the oracle's masks have them. */
static void count_by_oracle(const struct bench_shape *s, int64_t *pairs, int64_t *seen_keys)
{
    *pairs = *seen_keys = 0;
    for (int32_t q = 0; q < s->batch; q++) {
        char seen[256] = {0};
        int32_t q_len = bench_shape_q_len(s, q), kv_len = bench_shape_kv_len(s, q);
        for (int32_t t = 0; t < q_len; t++) {
            reference_sight sight = reference_sight_all();
            sight.mask_kind = ATTN_MASK_LAYER;
            sight.has_position = 1;
            sight.position = kv_len - q_len + t;
            sight.prefix_len = kv_len - q_len;
            sight.window_left = s->window ? s->window - 1 : -1;
            sight.window_right = s->causal ? 0 : -1;
            sight.attention_chunk = s->chunk;
            for (int32_t j = 0; j < kv_len; j++)
                if (reference_sees(&sight, j)) {
                    ++*pairs;
                    seen[j] = 1;
                }
        }
        for (int32_t j = 0; j < kv_len; j++)
            *seen_keys += seen[j];
    }
}

TEST_OF(counts, test_masks_by_oracle)
{
    for (uint64_t seed = 0; seed < 400; seed++) {
        char text[256];
        uint64_t bits = mix_word(seed + 1);
        int kv1 = 1 + (int)(bits % 200), kv2 = 1 + (int)((bits >> 8) % 200);
        int least = kv1 < kv2 ? kv1 : kv2, q_len = 1 + (int)(bits >> 16 & 0xff) % least;
        snprintf(text, sizeof text,
                 "mode=%s,batch=3,q_len=%d,kv_len=%d+%d,window=%d,chunk=%d,causal=%s",
                 bits >> 24 & 1 ? "extend" : "mixed", q_len, kv1, kv2,
                 bits >> 25 & 1 ? 1 + (int)(bits >> 32 & 0x7f) : 0,
                 bits >> 26 & 1 ? 1 + (int)(bits >> 40 & 0x3f) : 0, bits >> 27 & 1 ? "yes" : "no");
        struct bench_count count = count_of(text);
        int64_t pairs, seen_keys;
        count_by_oracle(&shapes.items[0], &pairs, &seen_keys);
        ck_assert_msg(count.pairs == pairs && count.seen_keys == seen_keys,
                      "%s: %lld pairs, %lld keys; the oracle has %lld, %lld", text,
                      (long long)count.pairs, (long long)count.seen_keys, (long long)pairs,
                      (long long)seen_keys);
    }
}

TESTS("bench_shape", .set_up = set_up, .tear_down = tear_down);
