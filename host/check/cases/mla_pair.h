/* SPDX-License-Identifier: Apache-2.0
 *
 * mla_pair.h: one batch of latent attention in both of its forms: random weights W_UK and W_UV, the
 * queries of the absorbed case times W_UK, the keys and values of the expanded one its latents
 * times W_UK and W_UV. The expanded output is W_UV times the absorbed output.
 */
#ifndef HOST_CHECK_CASES_MLA_PAIR_H
#define HOST_CHECK_CASES_MLA_PAIR_H

#include "host/check/cases/numerics.h"

struct mla_pair {
    struct check_run *run;
    const attn_options *options;
    struct case_spec spec, expanded_spec; /* spec: of the absorbed case */
    struct forward_case *absorbed, *expanded;
    float *w_uk; /* [heads, nope_dim, kv_lora_rank] */
    float *w_uv; /* [heads, v_dim, kv_lora_rank] */
};

/* The pair of an absorbed spec. False: it was reported. Finish it in either case. */
bool mla_pair_init(struct mla_pair *pair, struct check_run *run, const struct case_spec *spec,
                   const attn_options *options);
void mla_pair_finish(struct mla_pair *pair);

/* Run both, each in its own instance, and judge them. False: it was reported. */
bool mla_pair_judge(struct mla_pair *pair);

/* Of cases that were run: are their outputs the same but for W_UV, and their LSE? */
void mla_pair_compare(struct mla_pair *pair);

/* Copy the keys that `writer` has saved in the cache to the sequences of `reader`, a variant of the
 * absorbed case, which has the same keys. */
void mla_pair_hand_over(const struct forward_case *writer, struct forward_case *reader);

#endif /* HOST_CHECK_CASES_MLA_PAIR_H */
