/* SPDX-License-Identifier: Apache-2.0
 *
 * fp8.c: every code of a quantised type, read through the cache; scales in all places in which they
 * may be; scores that are scaled by 0.
 *
 * All keys of a sequence are equal, like all values: so an output is that value for any
 * probabilities, and the LSE is the common score plus the logarithm of the number of keys. So each
 * code that is read as another number shows, in the value by itself and in the key by a part of the
 * score that is as large as that of any other code. */
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/kind.h"

#include "host/base/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_CODES = 256, PACKED_BLOCK = 128 };

static const struct case_setup exactly = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};

/* ---- Rows of codes --------------------------------------------------------------------------- */

/* The use of a row of codes. A code that is not finite would make the whole row of a key or latent
 * NaN, so only values have such codes, and only if a sequence has one query: with several queries,
 * one may be changed by keys that another one sees (KV-06). */
enum coded { CODED_KEYS, CODED_VALUES, CODED_ANY_VALUES, CODED_KINDS };

/* A case that is being filled: which code is the next of each kind; which there are of keys, and of
 * values. */
struct coding {
    struct forward_case *c;
    int32_t next[CODED_KINDS];
    bool has[2][NUM_CODES];
};

static uint8_t next_code(struct coding *coding, enum coded kind)
{
    attn_dtype dtype = coding->c->spec.kv_dtype;
    bool value = kind != CODED_KEYS;
    uint8_t code = (uint8_t)coding->next[kind]++;
    while (kind != CODED_ANY_VALUES && !isfinite(dtype_load(dtype, &code, 0)))
        code = (uint8_t)coding->next[kind]++;
    coding->has[value][code] = true;
    if (coding->c->spec.latent.kv_lora_rank > 0)
        coding->has[!value][code] = true;
    return code;
}

static void fill_codes(struct coding *coding, enum coded kind, int32_t count, char *row)
{
    for (int32_t d = 0; d < count; d++)
        row[d] = (char)next_code(coding, kind);
}

static float scale_at(const struct forward_case *c, enum case_part_id part, int32_t s, int32_t j,
                      int32_t head)
{
    const float *scales = case_part(c, part);
    return scales ? scales[case_scale_place(c, part, s, j, head)] : 1;
}

/* An element of a query, so that its product with this one of the key adds `share` to the score; as
 * near to that as the query's type has numbers. */
static void set_query(struct forward_case *c, enum case_part_id part, int32_t s, int32_t head,
                      int32_t d, double key, double share)
{
    double largest = c->spec.q_dtype == ATTN_F16 ? 3e4 : 1e30;
    double q = key == 0 ? 1 : share / ((double)c->posed.group.sm_scale * key);
    q = fmin(fmax(q, -largest), largest);
    for (int32_t t = 0; t < c->lengths.q_len[s]; t++)
        dtype_store(c->spec.q_dtype,
                    case_vector(c, c->image, part, c->lengths.first_row[s] + t, head, 0), d, q);
}

static void set_queries(struct forward_case *c, int32_t s, int32_t kv_head, const char *row)
{
    int32_t ratio = c->spec.num_q_heads / c->spec.num_kv_heads, dim = c->spec.head_dim;
    double scale = (double)scale_at(c, PART_K_SCALE, s, 0, kv_head);
    for (int32_t n = 0; n < ratio; n++)
        for (int32_t d = 0; d < dim; d++)
            set_query(c, PART_Q, s, kv_head * ratio + n, d,
                      dtype_load(c->spec.kv_dtype, row, d) * scale, 4.0 / dim);
}

/* The same row for all keys of a sequence. */
static void set_rows(struct forward_case *c, enum case_part_id cache, int32_t s, int32_t kv_head,
                     const char *row, int32_t bytes)
{
    for (int32_t j = 0; j < c->lengths.kv_len[s]; j++)
        memcpy(case_slot_vector(c, c->image, cache, case_slot(c, s, j), kv_head), row,
               (size_t)bytes);
}

static void code_sequence(struct coding *coding, int32_t s, char *row)
{
    struct forward_case *c = coding->c;
    enum coded values = c->lengths.q_len[s] == 1 ? CODED_ANY_VALUES : CODED_VALUES;
    for (int32_t h = 0; h < c->spec.num_kv_heads; h++) {
        fill_codes(coding, CODED_KEYS, c->spec.head_dim, row);
        set_rows(c, PART_K_CACHE, s, h, row, c->spec.head_dim);
        set_queries(c, s, h, row);
        fill_codes(coding, values, c->spec.v_head_dim, row);
        set_rows(c, PART_V_CACHE, s, h, row, c->spec.v_head_dim);
    }
}

/* ---- Latent rows ----------------------------------------------------------------------------- */

/* Element d of a latent row, as it is read. */
static double latent_at(const struct forward_case *c, const char *row, int32_t d)
{
    int32_t lora = c->spec.latent.kv_lora_rank;
    if (!case_is_packed(&c->spec))
        return dtype_load(c->spec.kv_dtype, row, d) *
               (double)scale_at(c, PART_LATENT_SCALE, 0, 0, 0);
    if (d >= lora)
        return dtype_load(ATTN_BF16, row + lora + lora / PACKED_BLOCK * 4, d - lora);
    return dtype_load(ATTN_FP8_E4M3, row, d) * dtype_load(ATTN_F32, row + lora, d / PACKED_BLOCK);
}

/* A packed row keeps the rope part that it has. */
static void code_latent(struct coding *coding, int32_t s, char *row)
{
    struct forward_case *c = coding->c;
    int32_t lora = c->spec.latent.kv_lora_rank, dim = c->spec.head_dim;
    int32_t width = case_latent_width(&c->spec);
    memcpy(row, case_slot_vector(c, c->image, PART_LATENT_CACHE, case_slot(c, s, 0), 0),
           (size_t)width);
    fill_codes(coding, CODED_VALUES, case_is_packed(&c->spec) ? lora : dim, row);
    set_rows(c, PART_LATENT_CACHE, s, 0, row, width);
    for (int32_t head = 0; head < c->spec.num_q_heads; head++)
        for (int32_t d = 0; d < dim; d++)
            set_query(c, d < lora ? PART_Q : PART_Q_PE, s, head, d < lora ? d : d - lora,
                      latent_at(c, row, d), 4.0 / dim);
}

/* ---- Cases of codes -------------------------------------------------------------------------- */

/* False: a code is missing in keys or in values. */
static bool has_all(const struct coding *coding)
{
    for (int code = 0; code < NUM_CODES; code++) {
        uint8_t byte = (uint8_t)code;
        bool finite = isfinite(dtype_load(coding->c->spec.kv_dtype, &byte, 0));
        bool latent = coding->c->spec.latent.kv_lora_rank > 0;
        if ((finite && !coding->has[0][code]) || (!latent && !coding->has[1][code]))
            return false;
    }
    return true;
}

/* The case has no needles, as all keys are equal. */
static void code_case(struct coding *coding, char *row)
{
    struct forward_case *c = coding->c;
    c->num_needles = 0;
    for (int32_t s = 0; s < c->lengths.num_real_seqs; s++)
        if (c->spec.latent.kv_lora_rank > 0)
            code_latent(coding, s, row);
        else
            code_sequence(coding, s, row);
}

static void judge_codes(struct kind_case *k)
{
    struct check_run *run = k->run;
    const struct case_spec *spec = &k->at.spec;
    struct coding coding = {.c = numerics_case(run, spec, NULL)};
    struct case_session *session =
        coding.c ? numerics_session(run, run->subject, coding.c, k->at.options, &exactly) : NULL;
    char *row = malloc((size_t)(spec->head_dim + spec->v_head_dim) * 4 + 64);
    bool good = session && row;
    for (int round = 0; good && round < NUM_CODES && !(round > 0 && has_all(&coding)); round++) {
        code_case(&coding, row);
        good = numerics_judge(run, session, coding.c);
    }
    if (good && !has_all(&coding))
        check_fail(run, "the suite is wrong: there is a code that no row of the case has");
    free(row);
    case_session_destroy(session);
    forward_case_destroy(coding.c);
}

/* So many queries of one sequence that a kernel of its own may be for them. */
static void set_lengths(struct case_spec *spec, int32_t variant)
{
    static const int32_t lengths[][2] = {{0, 1}, {16, 40}, {77, 3}, {4, 1}};
    (void)variant;
    spec->num_sequences = 4;
    for (int32_t s = 0; s < 4; s++)
        spec->sequences[s] =
            (struct case_sequence){.prefix_len = lengths[s][0],
                                   .num_new = spec->mode == ATTN_MODE_DECODE ? 1 : lengths[s][1],
                                   .tokens_of = s};
    spec->wants_lse = true;
}

/* ---- Where scales are ------------------------------------------------------------------------ */

SPEC_CHANGE(scale_on_device, (set_lengths(spec, 0), spec->device_scales = true))

/* ---- Scores of 0 ----------------------------------------------------------------------------- */

/* A scale of 0 is 0, not a scale that was left out. Needles do not apply. */
static void judge_unscaled(struct kind_case *k)
{
    struct forward_case *c = numerics_case(k->run, &k->at.spec, NULL);
    attn_verdict verdict = {.struct_size = sizeof verdict};
    const struct check_subject *subject = k->run->subject;
    if (c) {
        c->posed.group.sm_scale = 0;
        c->num_needles = 0;
        attn_status status = subject->type->query(subject->type, k->at.options, subject->services,
                                                  &c->posed.problem, &verdict, NULL);
        if (status == ATTN_OK && !verdict.supported)
            check_skip(k->run, "query refuses sm_scale 0");
        else
            numerics_judge_alone(k->run, c, k->at.options);
    }
    forward_case_destroy(c);
}

/* ---- Table ----------------------------------------------------------------------------------- */

#define CACHED     OF(SOURCE, CACHE)
#define CODED(...) SOFTMAX_VARIED(set_lengths, 1, __VA_ARGS__)
#define CODED_LATENT(layout, ...)                                                                  \
    LATENT_VARIED(set_lengths, 1, MLA_ABSORBED, layout, BIT(MLA_ONE_BLOCK), __VA_ARGS__)

const struct check check_codes[] = {
    OWN_ROW("MEAN-09", scale_zero, judge_unscaled, "with sm_scale 0 all keys have equal weight",
            CODED(FIRST(CAP, 2), EACH(ALIBI), OF(SINK, NONE, GIVEN), BOTH_PHASES)),
    OWN_ROW("MEAN-19", mla_scale_zero, judge_unscaled,
            "with sm_scale 0 all latents have equal weight",
            CODED_LATENT(MLA_LATENT, FIRST(CAP, 2), BOTH_PHASES)),
    OWN_ROW("KV-04", codes, judge_codes,
            "every fp8 encoding is read as its value, in keys and in values",
            CODED(QUANTISED, EACH(DTYPE), BOTH_PHASES, CACHED)),
    OWN_ROW("KV-04", mla_codes, judge_codes,
            "every fp8 encoding in a latent cache is read as its value",
            CODED_LATENT(MLA_LATENT, SCALED, EACH(DTYPE), BOTH_PHASES, CACHED)),
    OWN_ROW("KV-11", mla_packed_codes, judge_codes,
            "every fp8 encoding in a packed latent is read as its value",
            CODED_LATENT(MLA_PACKED, EACH(DTYPE), BOTH_PHASES, CACHED)),
    ROW("KV-04", device_scales, "scales may be only on the device",
        SOFTMAX_VARIED(scale_on_device, 1, QUANTISED, BOTH_PHASES, SAVED_OR_NOT)),
    ROW("KV-04", device_input_scales, "scales of q, k, v and the output may be only on the device",
        SOFTMAX_VARIED(scale_on_device, 1, EACH(INPUTS), OF(OUT, E4M3), PLAIN_AND_QUANTISED,
                       BOTH_PHASES)),
    ROW("KV-04", mla_device_scales, "the scale of latents may be only on the device",
        LATENT_VARIED(scale_on_device, 1, MLA_ABSORBED, MLA_LATENT, BIT(MLA_ONE_BLOCK), SCALED,
                      BOTH_PHASES, SAVED_OR_NOT)),
    {.rule = NULL},
};
