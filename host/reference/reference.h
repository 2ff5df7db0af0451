/* SPDX-License-Identifier: Apache-2.0
 *
 * reference.h: attention in slow and plain fp64, and the rule that judges a backend.
 *
 * The oracle of the softmax family and of latent attention. It is written from docs/ABI.md (group
 * MEAN), includes no file of any plugin and shares no code with one; tests/golden holds it to
 * vectors made by PyTorch in float64. Two levels:
 *
 *   row    one (query, head): reference_row_compute() and reference_check_row(). Keys and values
 *          come through a callback, so that they can be generated instead of stored.
 *   batch  a whole forward: reference_forward() reads the ABI's structs in host memory and makes a
 *          reference_result; reference_compare() judges tensors by it; reference_expected_kv() and
 *          reference_compare_kv() do the same for what is written to the KV cache.
 *
 * The pass rule, for each element of each (token, head) row and for each LSE entry:
 *
 *   |actual - truth| <= bar
 *
 * and non-finite places must agree first: where the truth is NaN the output must be NaN, where it
 * is infinite in the output's dtype the output must be that infinity, else it must be finite. A bar
 * is what roundings of the admitted kinds may do there: scores in fp32, each probability rounded
 * once to the operand dtype, sums in fp32, the output rounded once. It follows from the row's own
 * scores, probabilities and values; docs/ABI.md derives it ("The pass rule"). A row in which only
 * such roundings happen fails with a chance below 1e-9.
 *
 * Verdicts only get worse: nothing here turns a failed row into a good one, and a report is never
 * reset but by its maker.
 *
 * Files: score.c (which keys are seen; fp64 scores), row.c (rows), row_kernels.c (their inner
 * loops), rounding.c (their bars), verdict.c (the pass rule), operand.c (tensors and scales of the
 * ABI), slots.c (where keys lie), mla.c (latent attention), sparse.c,
 * sparse_call.c (choices of keys: sparse.h), batch.c (a whole forward), kv.c (what
 * the cache must hold), compare.c (whole tensors), merge.c. Build with -ffp-contract=off: the
 * quantiser is an exact statement about rounding.
 */
#ifndef HOST_REFERENCE_REFERENCE_H
#define HOST_REFERENCE_REFERENCE_H

#include "attn_batch.h"

#include <stdint.h>

/* ---- One row: which keys it sees ------------------------------------------------------------- */

/* The rules that decide which keys a query sees. Start with reference_sight_all() and set those of
 * the row. Positions are absolute. */
typedef struct reference_sight {
    uint32_t mask_kind;       /* ATTN_MASK_* */
    int32_t has_position;     /* 0 = cross attention: no i, so window, chunk and ALiBi are off */
    int64_t position;         /* i, of the query */
    int64_t first_key;        /* keys before it are not seen (partials: not among this call's) */
    int64_t prefix_len;       /* keys before the first new token (QLEN, key_positions) */
    int64_t window_left;      /* i - window_left <= j; -1 = no limit */
    int64_t window_right;     /* j <= i + window_right; -1 = no limit, 0 = causal */
    int64_t attention_chunk;  /* floor(j / c) == floor(i / c), and j <= i; 0 = off */
    const uint8_t *mask_bits; /* FULL, QLEN: the request's bits, else NULL */
    int64_t mask_first_bit;   /* the bit of this query's column 0 */
    int64_t mask_columns;     /* columns of the mask */
    const int32_t *key_positions; /* position of key j at [j - prefix_len], for j >= prefix_len; */
                                  /* NULL = j */
    int32_t has_items;            /* multi-item scoring: the two below hold */
    int32_t token_pos_in_item;    /* p of this query; not read if its position < items_prefix_len */
    int64_t items_prefix_len;     /* tokens before the first delimiter */
    const uint8_t *chosen; /* [kv_len] 1 = key j is among those of a sparse layer's row; NULL = */
                           /* all are */
} reference_sight;

/* A sight that sees every key: no mask, no window. */
reference_sight reference_sight_all(void);

/* Does the query see key `j`? */
int reference_sees(const reference_sight *sight, int64_t j);

/* ---- One row: computing it ------------------------------------------------------------------- */

/* One query of one head. */
typedef struct reference_row {
    int32_t head_dim;   /* elements of the query and of a key */
    int32_t v_head_dim; /* elements of a value and of the output */
    int64_t kv_len;     /* keys, seen or not */
    double sm_scale;
    double logit_cap;   /* 0 = off */
    double alibi_slope; /* 0 = off */
    double sink;        /* one more logit; read if has_sink (a sink that is omitted: 0 there) */
    int32_t has_sink;
    attn_dtype operand_dtype; /* what probabilities may be rounded to; read if bars are wanted */
    int32_t multiplies_codes; /* keys or values are fp8, as the query is; likewise */
    int32_t values_are_codes; /* values are fp8, whatever the query is; likewise */
    attn_dtype out_dtype;     /* what the output is rounded to; likewise */
    double out_scale;         /* of an fp8 output, which stands for code * scale; 0 = 1 */
    const double *query;      /* [head_dim] */
    reference_sight sight;
} reference_row;

/* A row of a layer of this group, with the group's parameters of scores. */
reference_row reference_row_of(const attn_layer_group *group);

/* Where keys and values come from: write key j to key[head_dim] and value j to value[v_head_dim] as
 * a backend reads them (after quantisation). Either may be NULL: not wanted. Called once each for
 * keys that are seen, keys first in increasing j, then values in increasing j. */
typedef struct reference_kv {
    void (*read)(void *ctx, int64_t j, double *key, double *value);
    void *ctx;
} reference_kv;

/* Keys and values in arrays, as the ctx of reference_kv_array(). */
typedef struct reference_kv_arrays {
    const double *keys;   /* key j at keys + j * key_stride */
    const double *values; /* value j at values + j * value_stride */
    int64_t key_stride;   /* elements */
    int64_t value_stride; /* elements */
    int32_t head_dim;
    int32_t v_head_dim;
} reference_kv_arrays;

/* A reader of the arrays, which are borrowed. */
reference_kv reference_kv_array(reference_kv_arrays *arrays);

/* Memory that rows are computed in; grows as needed and is used again. One for each thread. */
typedef struct reference_scratch {
    void *memory;
    uint64_t size; /* bytes */
} reference_scratch;

void reference_scratch_init(reference_scratch *scratch);
void reference_scratch_finish(reference_scratch *scratch);

/* Results of a row other than its output and its bars. */
typedef struct reference_row_result {
    double lse;       /* natural logarithm; -INFINITY if there is no key and no sink */
    double lse_bar;   /* 0 without bars */
    double bar;       /* of all elements, where there is none for each (linear layers) */
    double terms;     /* linear layers: the largest sum of absolute terms of an element */
    int64_t num_seen; /* keys */
} reference_row_result;

/* Compute the row: `out` gets v_head_dim values, `bars` (NULL = not wanted) the bar of each. A row
 * that sees no key gives zeros. Two passes over the keys (scores, then values), fp64.
 * OUT_OF_HOST_MEMORY; INVALID_ARGUMENT for dimensions below 1 or a negative kv_len. */
attn_status reference_row_compute(const reference_row *row, const reference_kv *kv,
                                  reference_scratch *scratch, double *out, double *bars,
                                  reference_row_result *result, attn_error *error);

/* One row of several: its results, and where they go. */
typedef struct reference_row_to {
    double *out;  /* [v_head_dim] */
    double *bars; /* [v_head_dim]; NULL = not wanted */
    reference_row_result result;
} reference_row_to;

/* The same of rows [0, count) over the same keys and values, which have head_dim, v_head_dim and
 * kv_len in common: each key and value that one of them sees is read once, and each row has the
 * bits that reference_row_compute() gives it. INVALID_ARGUMENT as well if these lengths differ. */
attn_status reference_rows_compute(const reference_row *rows, int32_t count, const reference_kv *kv,
                                   reference_scratch *scratch, reference_row_to *to,
                                   attn_error *error);

/* Bytes of scratch that grow with a row's kv_len keys. */
uint64_t reference_row_scratch(int64_t kv_len);

/* ---- The pass rule --------------------------------------------------------------------------- */

/* Verdict on an output. */
enum {
    REFERENCE_PASS = 0,
    REFERENCE_ERROR_TOO_LARGE = 1,
    REFERENCE_NOT_FINITE_HERE = 2, /* NaN or infinite where the truth is finite, or another */
    REFERENCE_FINITE_HERE = 3      /* finite where the truth is not */
};

/* The verdict of one row or one LSE entry. */
typedef struct reference_verdict {
    int32_t code;      /* REFERENCE_PASS ... */
    int32_t dimension; /* the worst place: the largest error / bar, or the first that disagrees */
    double error;      /* |actual - truth| there; INFINITY where finiteness disagrees */
    double bar;        /* what it may be */
} reference_verdict;

/* Judge actual[0 .. v_head_dim), converted exactly from out_dtype, by the truth and its bars, both
 * from reference_row_compute(). `bars` NULL: it is row->bar everywhere. */
reference_verdict reference_check_row(const double *actual, const double *truth, const double *bars,
                                      int32_t v_head_dim, attn_dtype out_dtype,
                                      const reference_row_result *row);

/* The chance that a row in which only admitted roundings happen fails, by the model: at most. */
double reference_false_alarm(void);

/* error / bar; INFINITY where finiteness disagrees. */
double reference_verdict_ratio(const reference_verdict *verdict);

/* Judge one LSE entry (an fp32 value). */
reference_verdict reference_check_lse(double actual, const reference_row_result *row);

/* ---- A whole forward ------------------------------------------------------------------------- */

/* An additional question about a row: by how many bars does its worst element move without this
 * key, or with it if the row does not see it? INFINITY: it becomes NaN or infinite. */
typedef struct reference_probe {
    int64_t row;
    int32_t head;
    int64_t key;
    double moves; /* the answer; 0 if the row is not computed */
} reference_probe;

/* Choices for reference_forward() that the ABI leaves open. Zero is the default. */
typedef struct reference_options {
    uint32_t index_form;            /* one ATTN_INDEX_*; 0 = the first there is of req_to_token, */
                                    /* block_table, csr */
    uint32_t reads_new_unquantised; /* ATTN_MODE_BIT set: modes that read new keys as given, not */
                                    /* as stored (the verdict's reads_new_kv_unquantised) */
    uint32_t without_bars;          /* 1 = no bars: the result can not be compared with */
    int32_t num_probes;
    reference_probe *probes; /* answered, if there are bars */
} reference_options;

/* The role of a row of the query tensor. */
enum {
    REFERENCE_ROW_ABSENT = 0, /* of no sequence of the batch: nothing is said about it */
    REFERENCE_ROW_REAL = 1,
    REFERENCE_ROW_PADDING = 2 /* its output must be finite, no more (an LSE may also be -inf) */
};

/* The outcome of a forward. Rows are those of the query tensor; entry (row, head) is at
 * row * num_heads + head. */
typedef struct reference_result {
    int64_t num_rows;
    int32_t num_heads;
    int32_t v_head_dim;
    attn_dtype out_dtype;
    double out_scale; /* of fp8; 0 = 1 */
    int32_t has_bars;
    uint8_t *kind;              /* [num_rows] REFERENCE_ROW_* */
    double *out;                /* [num_rows, num_heads, v_head_dim]; 0 in absent rows */
    double *bars;               /* of the same shape; NULL without, and where rows have one each */
    reference_row_result *rows; /* [num_rows, num_heads] */
} reference_result;

/* Compute the expected output of forward_extend or forward_decode for `layer_id` of problem->group.
 *
 * All pointers of the batch, its `device` ones too, are host memory; of a pair of pointers the
 * device one is read if there is one. Nothing of the caller's is written, the KV cache neither: new
 * keys are taken from k and v, saved or not, rounded as they would be stored unless options say
 * otherwise (NULL = defaults). IDLE gives an empty result.
 *
 * *result is the caller's struct, filled on success alone, released by reference_result_finish().
 * INVALID_ARGUMENT: an operand, a scale or an array is missing or has the wrong shape, by name; a
 * slot lies outside the cache; cross attention with what needs an i; k and v saved to another slot
 * than the index form says. UNSUPPORTED: a layer kind without an oracle. */
attn_status reference_forward(const attn_problem *problem, const attn_batch *batch,
                              int32_t layer_id, const attn_forward_args *args,
                              const reference_options *options, reference_result *result,
                              attn_error *error);

/* Judge the output of one head in one row of a forward alone: operand OUT of `args`, by the same
 * reading of everything. INVALID_ARGUMENT as above, and for a row that is no real one. */
attn_status reference_judge_row(const attn_problem *problem, const attn_batch *batch,
                                int32_t layer_id, const attn_forward_args *args,
                                const reference_options *options, int64_t row, int32_t head,
                                reference_verdict *verdict, attn_error *error);

/* Release what a result holds. NULL, zeroed and finished ones are fine. */
void reference_result_finish(reference_result *result);

/* ---- What the KV cache must hold ------------------------------------------------------------- */

/* Write into the images what forward writes into the caches (a latent cache has one, k_image): with
 * SAVE_KV, each new key and value at its slot of out_cache_loc, to the bit; nothing else, so that
 * images that were copies of the caches before the forward are what the caches must be after it.
 * The images have the shape of the caches and strides of their own.
 * INVALID_ARGUMENT as in reference_forward(). */
attn_status reference_expected_kv(const attn_problem *problem, const attn_batch *batch,
                                  int32_t layer_id, const attn_forward_args *args,
                                  const attn_tensor *k_image, const attn_tensor *v_image,
                                  attn_error *error);

/* Bytes that differ between a cache and its image, both of one shape, in the problem's layout.
 * `place` (may be NULL) gets where the first difference is: page, offset, head, dimension. */
int64_t reference_compare_kv(const attn_problem *problem, const attn_tensor *cache,
                             const attn_tensor *image, int64_t place[4]);

/* Can latents of these dimensions be packed as mla.latent_fp8/1 has them? INVALID_ARGUMENT tells
 * what is accepted. */
attn_status reference_mla_check_packed(const attn_mla_dims *mla, attn_dtype kv_dtype,
                                       attn_error *error);

/* Elements of c_kv that share a scale in such a row. */
enum { REFERENCE_MLA_SCALED = 128 };

/* Bytes of such a row. */
int32_t reference_mla_packed_bytes(const attn_mla_dims *mla);

/* Write such a row: c_kv[kv_lora_rank] and k_pe[rope_dim] of `dtype`, as KV-11 of docs/ABI.md has
 * them. */
void reference_mla_pack(const attn_mla_dims *mla, attn_dtype dtype, const void *c_kv,
                        const void *k_pe, void *row);

/* The first `count` elements of c_kv | k_pe that it holds, kv_lora_rank of them at least. */
void reference_mla_unpack(const attn_mla_dims *mla, const void *row, int32_t count, double *x);

/* ---- Whole tensors against a result ---------------------------------------------------------- */

/* Counts and the worst error, over any number of calls. Zero it once. */
typedef struct reference_report {
    int64_t rows_checked; /* (row, head) pairs of outputs */
    int64_t rows_failed;
    int64_t lse_checked;
    int64_t lse_failed;
    int64_t padding_checked; /* rows, not pairs: only finiteness was checked */
    int64_t padding_failed;
    double max_abs_error; /* over finite outputs of real rows */
    double max_rel_error; /* of the same, over the row's max |truth| */
    double worst_ratio;   /* error / bar of the worst row or LSE entry; INFINITY = not finite */
    char message[256];    /* the worst one for people; "" if nothing was compared */
} reference_report;

/* Compare an output tensor [rows, heads, v_head_dim] in any strides, and an LSE tensor [rows,
 * heads] (NULL = not wanted), with the result; the counts are added to *report.
 * INVALID_ARGUMENT: a shape or dtype that is not the result's, or a result without bars. */
attn_status reference_compare(const reference_result *result, const attn_tensor *out,
                              const attn_tensor *lse, reference_report *report, attn_error *error);

/* Add one report to another. */
void reference_report_add(reference_report *report, const reference_report *more);

/* 1 if something was compared and nothing failed. */
int reference_report_passed(const reference_report *report);

/* ---- Merging --------------------------------------------------------------------------------- */

/* Merge two partial results of disjoint key sets by log-sum-exp: out[v_head_dim], *lse. A partial
 * with LSE -inf is empty, and whatever its output is (NaN too) does not count; both empty: 0, -inf.
 * `out` may be one of the inputs. */
void reference_merge(int32_t v_head_dim, const double *out1, double lse1, const double *out2,
                     double lse2, double *out, double *lse);

#endif /* HOST_REFERENCE_REFERENCE_H */
