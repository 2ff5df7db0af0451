/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_spec.h: all variables of a linear layer's case, as plain numbers.
 */
#ifndef HOST_CHECK_CASES_LINEAR_SPEC_H
#define HOST_CHECK_CASES_LINEAR_SPEC_H

#include "attn_plugin.h"
#include "host/check/cases/far_memory.h"

#include "host/base/mix.h"

#include <stdbool.h>

/* Host arrays of a batch. Those that the verdict names are present; of the others all, none or some are, so a backend
 * must test before it reads one. */
enum case_host {
    HOST_DRAWN,  /* by the seed, one of the others */
    HOST_NEEDED, /* those of the verdict alone */
    HOST_SOME,   /* each of the others or not, by the seed */
    HOST_ALL
};

/* Is array number `part`, which the verdict does not name, on the host? */
static inline bool case_host_has(enum case_host host, uint64_t seed, uint32_t part)
{
    static const enum case_host drawn[] = {HOST_NEEDED, HOST_SOME, HOST_SOME, HOST_ALL};
    if (host == HOST_DRAWN)
        host = drawn[mix_stream(seed, 0) >> 62];
    return host == HOST_ALL || (host == HOST_SOME && mix_stream(seed, 1 + (uint64_t)part) >> 63);
}

/* Sequences that a spec lists; beyond them the first LINEAR_CASE_REPEATED come again. */
enum { LINEAR_CASE_MAX_SEQS = 8, LINEAR_CASE_REPEATED = 7 };

struct linear_case_sequence {
    int32_t rows;
    bool has_initial;
    bool in_place; /* dst_slot = slot */
    bool dropped;  /* dst_slot = 0 */
};

enum { LINEAR_STATE_GROUPS = 4, LINEAR_WITHOUT_DST = 1, LINEAR_WITHOUT_INITIAL = 2 };

struct linear_spec {
    uint32_t family; /* ATTN_LINEAR_* */
    uint32_t flags;  /* ATTN_LINEAR_* flags */
    uint32_t mode;   /* ATTN_MODE_* */
    uint32_t modes;  /* ATTN_MODE_BIT set: others that parts of the case have */
    attn_dtype q_dtype, out_dtype, state_dtype, conv_dtype;
    bool bare;            /* what means nothing for such a layer is 0 or absent, else any number */
    bool decodes_first;   /* MIXED: the first sequences decode, not the last ones */
    int32_t decodes;      /* MIXED: so many do */
    int32_t decode_q_len; /* MIXED: rows of each, 1 or more */
    bool vk;              /* state.ssm.vk/1 */
    int32_t k_heads, v_heads, k_dim, v_dim, width;
    bool bias, z;
    int32_t skip; /* D: 0 = none, 1 = one for a head, 2 = one for an element */
    float dt_min, dt_max, lower_bound;
    bool steep;             /* decays of many orders of magnitude */
    bool snapshots;         /* of two rows in three, or */
    int32_t sparse;         /* not 0: of every `sparse`-th, or */
    int32_t cuts;           /* not 0: of so many of each sequence, at its ends and at any place */
    int32_t most_kept;      /* not 0: slots for so many snapshots, where one for a row is much */
    uint32_t absent;        /* set of LINEAR_WITHOUT_*: arrays that would say nothing */
    enum case_host host;    /* which arrays the host has */
    int32_t gap;            /* elements between outermost rows; more where alignment wants it */
    uint32_t min_alignment; /* what the problem promises of operands; */
    bool exactly_aligned;   /* they lie no better than that. A whole batch alone, no parts of it */
    bool guarded; /* on the CPU: each array or tensor ends where the next page may not be read */
    int32_t first_row;
    int32_t padded; /* sequences of padding */
    int32_t spare;  /* rows of padding after those of all sequences */
    /* How far apart the slots of the pools lie; a whole batch alone, no parts of it. */
    enum page_spread spread;
    int32_t turn; /* in the batch, sequence s is that which stands at s + turn here; slots differ */
    int32_t layer;       /* of those that one batch is for: its values are others */
    int32_t state_group; /* below LINEAR_STATE_GROUPS; slots of the others are other slots */
    int32_t num_sequences;
    struct linear_case_sequence sequences[LINEAR_CASE_MAX_SEQS];
};

static inline const struct linear_case_sequence *linear_sequence(const struct linear_spec *spec,
                                                                 int32_t s)
{
    bool repeats = spec->num_sequences > LINEAR_CASE_MAX_SEQS;
    return &spec->sequences[repeats ? s % LINEAR_CASE_REPEATED : s];
}

/* A spec of this family drawn from the seed, whether a backend accepts it or not. */
void linear_spec_draw(struct linear_spec *spec, uint32_t family, uint64_t seed);

/* MIXED, with what the spec says of the sequences that decode. */
void linear_spec_mix(struct linear_spec *spec);
void linear_spec_describe(const struct linear_spec *spec, char *text, size_t size);

#endif /* HOST_CHECK_CASES_LINEAR_SPEC_H */
