/* SPDX-License-Identifier: Apache-2.0
 *
 * generator_linear.h: operands of linear layers from counters.
 *
 * As in generator.h everything is a function of (seed, token, layer, role) and small integers are
 * made exact elements, so that a shared prefix has equal states wherever it is computed, any part
 * of a row can be made alone, and the oracle can make a run's rows again. A row is one stream, that
 * of head 0 and role GENERATOR_OPERAND + ATTN_ROLE_*: element d of the row is element d of the
 * stream, an integer n in -127 .. 127, and its value is
 *
 *   mixed_qkv        n * 2^-6               q and k that are not normalised: n * 2^(-6-e), 2^e >=
 *                                           2 sqrt(head_k_dim), e <= 8: with keys longer than 1 a
 *                                           delta rule grows without bound
 *   a, raw           n * 2^-7               b, raw       n * 2^-5
 *   a, computed      -(128 + n) * 2^(f-7)   b, computed  (128 + n) * 2^-8; Mamba2's dt: * 2^-11
 *   z                n * 2^-6
 *
 * with at most 8 significant bits each: exact in fp32, fp16 and bf16 (computed a: in the first and
 * the last). Constants are the streams of token {0, 0}:
 *
 *   conv_weight      n * 2^-7               conv_bias    n * 2^-8 (q, k as above: * 2^-e)
 *   D                n * 2^-6               A_log, dt_bias  below
 *
 * What a state forgets per token is spread evenly, as a logarithm, over the heads: the mean log
 * decay is -generator_linear_rate(), from 1e-4 to 0.69 (the state halves at each token), so that a
 * wrong initial state, a wrong slot or a lost prefix shows thousands of tokens later in some heads,
 * while others have forgotten it. 2^f is the power of two next to the rate; raw gates get a dt_bias
 * of -4 .. -2 and the A_log that makes the rate of it (KDA's bounded form: A_log 1/4 and the
 * dt_bias that makes it). Lightning attention has the rates of its models instead, and A_log is
 * -rate: MiniMax's slopes of `heads` heads in layer `l` of L,
 *
 *   2^-(8 (h + 1) / p) for h < p, the largest power of two up to heads; 2^-(8 (2 (h - p) + 1) / 2p)
 *   for the others; times 1 - l / (L - 1) + 1e-5
 *
 * so that the last layers forget next to nothing.
 */
#ifndef HOST_WORKLOAD_GENERATOR_LINEAR_H
#define HOST_WORKLOAD_GENERATOR_LINEAR_H

#include <stdbool.h>

#include "attn_batch.h"
#include "host/workload/generator.h"

/* The operands that a run gives to a linear layer, bits 1 << ATTN_ROLE_*: mixed_qkv, the gates and
 * constants that the family needs, D to Mamba2, whose models have it, and a bias to convolutions if
 * those of the model have one. z is none of them: models have a norm between the recurrence and its
 * gate. */
uint32_t generator_linear_given(const attn_layer_group *group, bool conv_bias);

/* Dimensions of an operand, for row operands those of one row, into shape[0 .. 2]; returns how many
 * these are. 0 = layers of this family have no such operand. */
uint32_t generator_linear_shape(const attn_layer_group *group, uint32_t role, int64_t *shape);

/* Their product: elements of a row, or of the constant; 0 = as above. */
int64_t generator_linear_elements(const attn_layer_group *group, uint32_t role);

/* The dtype that the ABI wants of an operand in a layer whose activations are of `dtype`: theirs,
 * or ATTN_F32 for computed gates, A_log, dt_bias and D. */
attn_dtype generator_linear_dtype(const attn_layer_group *group, uint32_t role, attn_dtype dtype);

/* The mean log decay of a head of `layer` per token, without its sign. */
double generator_linear_rate(const struct generator *generator, const attn_layer_group *group,
                             int32_t layer, int32_t head);

/* How an operand's row, or a constant but A_LOG and DT_BIAS, comes from its stream: what vectors.h
 * says, and the exponent of factor `index`. */
struct vectors_factors;
void generator_linear_factors(const attn_layer_group *group, uint32_t role,
                              struct vectors_factors *factors);
int32_t generator_linear_exponent(const struct generator *generator, const attn_layer_group *group,
                                  int32_t layer, uint32_t role, int32_t index);

/* Elements [first, first + count) of the token's row of MIXED_QKV, GATE_A, GATE_B or GATE_Z, packed
 * at `out` as `dtype`: ATTN_F64, F32, F16 or BF16. */
void generator_linear_part(const struct generator *generator, const attn_layer_group *group,
                           int32_t layer, token_key key, uint32_t role, attn_dtype dtype,
                           int64_t first, int64_t count, void *out);

/* All of the row. */
void generator_linear_row(const struct generator *generator, const attn_layer_group *group,
                          int32_t layer, token_key key, uint32_t role, attn_dtype dtype, void *out);

/* All elements of A_LOG, DT_BIAS, D_SKIP, CONV_WEIGHT or CONV_BIAS. They are exact in any dtype
 * that generator_linear_dtype() gives. */
void generator_linear_constant(const struct generator *generator, const attn_layer_group *group,
                               int32_t layer, uint32_t role, float *out);

#endif /* HOST_WORKLOAD_GENERATOR_LINEAR_H */
