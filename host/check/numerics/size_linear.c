/* SPDX-License-Identifier: Apache-2.0
 *
 * size_linear.c: linear layers that are large in one thing and small in all others: many sequences,
 * heads and rows, pools of many slots and of many bytes, rows after the last sequence.
 */
#include "host/check/cases/kind.h"

enum {
    MANY_SEQUENCES = 300,
    FILLING_SEQUENCES = 24,
    MODES = 4,
    LONG = 3,
    CHUNKED = 4,
    SINGLE = 10
};

/* ---- Making specs large ---------------------------------------------------------------------- */

/* Small, and no row like the one before. */
static void make_small(struct case_spec *spec)
{
    struct linear_spec *linear = &spec->linear;
    bool short_conv = linear->family == ATTN_LINEAR_SHORT_CONV;
    linear->k_heads = short_conv ? 0 : 1;
    linear->v_heads = 2;
    linear->k_dim = short_conv ? 0 : 16;
    linear->v_dim = 16;
    spec->first_row = linear->padded = 0;
    linear->gap = 0;
}

static void set_sequences(struct case_spec *spec, uint32_t mode, const char *sequences)
{
    linear_set_extend(spec, sequences);
    make_small(spec);
    linear_set_mode(spec, mode);
    spec->linear.snapshots = mode == ATTN_MODE_TARGET_VERIFY;
}

static void make_many_sequences(struct case_spec *spec, int32_t index)
{
    static const uint32_t modes[MODES] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE,
                                          ATTN_MODE_TARGET_VERIFY, ATTN_MODE_DRAFT_EXTEND};
    set_sequences(spec, modes[index % MODES], "1ip 3i 2 5ip 1p 4id 1i 1");
    spec->num_sequences = MANY_SEQUENCES;
    spec->linear.padded = spec->mode == ATTN_MODE_DECODE ? 20 : 0;
}

/* More than 1,024 rows, and more than 16 chunks of 128; snapshots far within. */
static void make_long(struct case_spec *spec, int32_t index)
{
    static const char *const sequences[LONG] = {"1031i 3p", "2i 2100ip", "1100ip 1030"};
    set_sequences(spec, ATTN_MODE_EXTEND, sequences[index % LONG]);
    spec->linear.snapshots = index % LONG == 2;
    spec->linear.sparse = spec->linear.snapshots ? 257 : 0;
}

/* Cases that a GPU backend may compute by chunks on tensor cores, and by segments of chunks: bf16,
 * heads of 64 to 128, five chunks of 64 and many more; three in four without a convolution. Decays
 * are weak, so that far chunks count, or steep. */
static void make_chunked(struct case_spec *spec, int32_t index)
{
    struct linear_spec *linear = &spec->linear;
    static const char *const sequences[CHUNKED] = {"300i 2113ip", "1300ip 330", "321 1601i",
                                                   "4230i 2p"};
    static const int32_t dims[CHUNKED][2] = {{128, 128}, {64, 128}, {128, 64}, {112, 96}};
    const int32_t n = index % CHUNKED;
    const bool delta = linear->family == ATTN_LINEAR_GDN || linear->family == ATTN_LINEAR_KDA;
    set_sequences(spec, ATTN_MODE_EXTEND, sequences[n]);
    spec->q_dtype = spec->out_dtype = linear->conv_dtype = ATTN_BF16;
    linear->state_dtype = n == 2 ? ATTN_BF16 : ATTN_F32;
    linear->v_dim = dims[n][1];
    linear->steep = n == 1;
    linear->snapshots = n > 0;
    linear->sparse = n == 1 ? 500 : n == 3 ? 1999 : 0;
    linear->cuts = n == 2 ? 3 : 0;
    linear->most_kept = 6;
    if (linear->family == ATTN_LINEAR_SHORT_CONV)
        return;
    linear->k_dim = dims[n][0];
    linear->width = n == 1 ? 4 : 0;
    linear->flags &= ~(uint32_t)ATTN_LINEAR_QK_L2NORM;
    if (delta && n != 2)
        linear->flags |= ATTN_LINEAR_QK_L2NORM;
}

/* Sequences times heads that fill a GPU, so that a block has several of them, one after the other: 24 sequences
 * of up to three chunks, four heads; eight of delta rules, whose blocks have whole heads. */
static void make_filling(struct case_spec *spec, int32_t index)
{
    struct linear_spec *linear = &spec->linear;
    make_chunked(spec, index % 2);
    linear_set_extend(spec, "150i 64ip 131 33ip 20i 129p 96id 1");
    spec->num_sequences = FILLING_SEQUENCES;
    linear->snapshots = index % 2 == 1;
    linear->sparse = 0;
    linear->cuts = 2 * (index % 2);
    linear->most_kept = linear->snapshots ? 2 * FILLING_SEQUENCES : 0;
    linear->z = false;
    const bool kda = linear->family == ATTN_LINEAR_KDA;
    linear->k_heads = linear->family == ATTN_LINEAR_SHORT_CONV ? 0 : kda ? 8 : 4;
    linear->v_heads = linear->family == ATTN_LINEAR_GDN || kda ? 8 : 4;
}

/* Single rows of layers as models have them, for which a backend may have kernels of their own: bf16, heads
 * of 128 keys, four taps or none; heads are few or many. EXTEND has sequences without a row, and snapshots. */
static void make_single_rows(struct case_spec *spec, int32_t index)
{
    struct linear_spec *linear = &spec->linear;
    static const struct {
        attn_dtype state;
        int32_t vk, k_heads, v_heads, v_dim, width, sequences, padded, extend;
    } layers[SINGLE] = {
        {ATTN_F32, 0, 2, 4, 128, 4, 2, 0, 0},   {ATTN_F32, 1, 1, 3, 128, 0, 7, 3, 0},
        {ATTN_BF16, 0, 2, 2, 128, 4, 7, 3, 0},  {ATTN_BF16, 1, 1, 2, 256, 4, 3, 1, 0},
        {ATTN_F32, 0, 1, 4, 64, 4, 7, 0, 1},    {ATTN_F32, 0, 20, 40, 128, 4, 7, 0, 0},
        {ATTN_F32, 1, 20, 40, 128, 4, 7, 2, 0}, {ATTN_BF16, 0, 20, 40, 128, 0, 7, 0, 0},
        {ATTN_BF16, 1, 5, 40, 128, 4, 7, 0, 1}, {ATTN_F32, 0, 4, 80, 64, 4, 7, 0, 0}};
    const int32_t n = index % SINGLE;
    const bool short_conv = linear->family == ATTN_LINEAR_SHORT_CONV;
    set_sequences(spec, layers[n].extend ? ATTN_MODE_EXTEND : ATTN_MODE_DECODE,
                  "1ip 1i 0i 1 1id 1p 1ip");
    spec->num_sequences = layers[n].sequences;
    spec->q_dtype = spec->out_dtype = linear->conv_dtype = ATTN_BF16;
    linear->state_dtype = layers[n].state;
    linear->vk = layers[n].vk;
    linear->k_heads = short_conv ? 0 : layers[n].k_heads;
    linear->v_heads = layers[n].v_heads;
    linear->k_dim = short_conv ? 0 : 128;
    linear->v_dim = layers[n].v_dim;
    linear->width = short_conv ? 4 : layers[n].width;
    linear->padded = layers[n].padded;
    linear->snapshots = layers[n].extend;
    linear->sparse = 0;
}

/* Rows of a sequence, and numbers of rows, beyond 65,536. */
static void make_longest(struct case_spec *spec, int32_t index)
{
    (void)index;
    set_sequences(spec, ATTN_MODE_EXTEND, "66005i 3ip");
    spec->linear.v_heads = 1;
}

static void make_late_rows(struct case_spec *spec, int32_t index)
{
    (void)index;
    set_sequences(spec, ATTN_MODE_EXTEND, "3i 40 2i");
    spec->first_row = 65530;
}

static void make_many_heads(struct case_spec *spec, int32_t index)
{
    static const int32_t heads[LONG][2] = {{16, 48}, {40, 40}, {64, 128}};
    set_sequences(spec, ATTN_MODE_EXTEND, "9i 1p");
    spec->linear.k_heads =
        spec->linear.family == ATTN_LINEAR_SHORT_CONV ? 0 : heads[index % LONG][0];
    spec->linear.v_heads = heads[index % LONG][1];
}

/* One channel more than whole blocks of 2048 or 1024, as work on the inputs of a convolution is cut. */
static void make_odd_channels(struct case_spec *spec, int32_t index)
{
    static const int32_t shapes[][4] = {
        {3, 9, 256, 57}, {17, 17, 96, 49}, {0, 17, 0, 241}, {0, 5, 0, 205}};
    const int32_t *shape =
        shapes[index % 2 + (spec->linear.family == ATTN_LINEAR_SHORT_CONV ? 2 : 0)];
    set_sequences(spec, ATTN_MODE_EXTEND, "2i 1ip 5");
    spec->linear.k_heads = shape[0];
    spec->linear.v_heads = shape[1];
    spec->linear.k_dim = shape[2];
    spec->linear.v_dim = shape[3];
    spec->linear.width = 4;
    spec->linear.snapshots = index % 2;
}

/* Slots read, written and left snapshots in, with numbers beyond 16 bits or 4 GiB apart. */
static void make_pool(struct case_spec *spec, int32_t index, enum page_spread spread)
{
    static const uint32_t modes[MODES] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE,
                                          ATTN_MODE_TARGET_VERIFY, ATTN_MODE_EXTEND};
    set_sequences(spec, modes[index % MODES], "3i 2ip 4 1i 70i");
    spec->spread = spread;
    spec->linear.vk = index / 2 % 2;
}

static void make_many_slots(struct case_spec *spec, int32_t index)
{
    make_pool(spec, index, SPREAD_PAGES);
}

static void make_far_slots(struct case_spec *spec, int32_t index)
{
    make_pool(spec, index, SPREAD_BYTES);
}

static void make_spare_rows(struct case_spec *spec, int32_t index)
{
    static const uint32_t modes[2] = {ATTN_MODE_EXTEND, ATTN_MODE_TARGET_VERIFY};
    set_sequences(spec, modes[index % 2], "3i 1 0i");
    spec->spare = 1 + 8 * (index % 2);
}

static void judge_far_slots(struct kind_case *k)
{
    if (k->run->subject->fake_device)
        check_skip(k->run, "the fake driver fills its memory: no pools of some GiB");
    else
        kind_run(k);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_size_linear[] = {
    ROW("INVAR-01", linear_many_sequences,
        "each of 300 sequences in one batch follows its recurrence",
        LINEAR(make_many_sequences, MODES)),
    ROW("MEAN-18", linear_long, "a sequence of more than 1024 rows follows its recurrence",
        LINEAR(make_long, LONG)),
    ROW("MEAN-18", linear_chunked,
        "sequences of 300 to 4230 rows in bf16, with head dimensions of 64 to 128, follow "
        "their recurrence, with and without a convolution",
        LINEAR(make_chunked, CHUNKED)),
    ROW("MEAN-18", linear_filling,
        "24 sequences of 1 to 150 rows in bf16, with four or eight heads of 64 to 128, follow "
        "their recurrence, with and without a convolution",
        LINEAR(make_filling, 2)),
    ROW("MEAN-18", linear_single_rows,
        "single rows in bf16, with a head_k_dim of 128, follow their recurrence, with and "
        "without a convolution",
        LINEAR(make_single_rows, SINGLE)),
    ROW("MEAN-18", linear_many_heads, "each of 48 to 128 v heads reads its own k head",
        LINEAR(make_many_heads, LONG)),
    ROW("MEAN-18", linear_odd_channels,
        "convolutions of 1025, 2049 and 4097 channels follow their recurrence",
        LINEAR(make_odd_channels, 2)),
    ROW("KV-09", linear_many_slots, "numbers of state slots may be above 65536 and 131072",
        LINEAR(make_many_slots, MODES)),
    OWN_ROW("KV-09", linear_far_slots, judge_far_slots, "state slots may be more than 4 GiB apart",
            LINEAR(make_far_slots, MODES)),
    ROW("KV-09", linear_spare_rows,
        "rows after q_indptr[S] are padding: they are finite and change nothing else",
        LINEAR(make_spare_rows, 2)),
    ROW("MEAN-18", linear_longest, "a sequence of more than 65536 rows follows its recurrence",
        LINEAR(make_longest, 1)),
    ROW("MEAN-03", linear_late_rows, "row numbers of linear layers may be above 65536",
        LINEAR(make_late_rows, 1)),
    {.rule = NULL},
};
