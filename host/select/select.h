/* SPDX-License-Identifier: Apache-2.0
 *
 * select.h: the backend of each layer group and phase, and the reasons against the others.
 *
 *   selection
 *     groups[]            one for each layer group of the model: what is served how
 *       phases[2]         prefill and decode: the candidates in order, the chosen one
 *         candidates[]    a backend and its verdict, with all reasons
 *     units[]             what has to be composed: a backend name and the groups it serves
 *
 * An explicit name is taken or refused, never replaced. `auto` walks the order for the platform and
 * the kind of layer (rules.h), then every other backend that is loaded, and takes the first one
 * that serves both phases; if none does, the first one for each phase. What a rule excludes is
 * neither asked nor taken, named or not. Two names for the two phases are joined by a hybrid_phase
 * backend that is defined here; a backend for linear layers and one for all others by a
 * hybrid_linear one.
 */
#ifndef HOST_SELECT_SELECT_H
#define HOST_SELECT_SELECT_H

#include <stdbool.h>
#include <stdio.h>

#include "attnhost.h"
#include "host/config/config.h"
#include "host/model/model.h"
#include "host/select/rules.h"

enum { SELECT_PREFILL = 0, SELECT_DECODE = 1, SELECT_PHASES = 2 };

/* select_candidate.absence */
enum {
    SELECT_PRESENT,
    SELECT_NOT_INSTALLED,
    SELECT_NO_PLUGIN,       /* no such plugin exists yet */
    SELECT_WITHOUT_KERNELS, /* its kernels are not in this build */
    SELECT_COMPOSITE,
    SELECT_NO_ANSWER
};

/* A backend and what it answered. */
struct select_candidate {
    char *name;                  /* as the host knows it */
    const struct rule *known;    /* what the rules know of its type; NULL = nothing */
    const struct rule *excluded; /* the rule that takes it out, so that it is not asked; or NULL */
    const char *blamed;          /* static: the field that this rule is about */
    char got[64];                /* its value */
    char *absent;                /* why it was not asked; NULL = it was, or a rule takes it out */
    uint32_t absence;            /* SELECT_NOT_INSTALLED ... */
    uint32_t layouts;            /* bit i: accepts with the i-th of kind_layouts() */
    attn_verdict verdict; /* with the first accepted layout; if none, with the first one asked */
    attn_reason *reasons; /* verdict.num_reasons of them */
};

struct select_phase {
    const char *wanted; /* what the user said: "auto" or a name; the config's */
    const char *key;    /* static: where: "attention.attention_backend"; */
    char *why;          /* rule or key that led to the candidates; for people */
    struct select_candidate *candidates;
    uint32_t num_candidates;
    int32_t chosen; /* index of a candidate; -1 = none, or the phase does not exist */
    int32_t
        preferred; /* of `auto`: what it would be if all of its order were installed; -1 = none */
    bool exists;   /* encoders have no decode phase */
};

struct select_group {
    struct select_phase phases[SELECT_PHASES];
    const char *kv_layout;    /* static layout id; NULL = no cache, or nothing was chosen */
    const char *state_layout; /* static layout id; NULL = no state, or nothing was chosen */
    int32_t unit;             /* index into units; -1 = nothing serves this group */
    attn_verdict verdict;     /* of the unit's backend on both phases; `reasons` is NULL */
};

struct select_unit {
    char *backend;    /* name for attnhost_compose() */
    char *type;       /* "hybrid_phase", "hybrid_linear" where two are joined, else its own name */
    uint32_t modes;   /* ATTN_MODE_BIT set its groups were asked for */
    uint32_t *groups; /* ascending indices into model.groups */
    uint32_t num_groups;
};

struct selection {
    const struct model *model; /* borrowed */
    attn_device device;
    const char *simulated; /* the platform in the place of the real one, the config's; or NULL */
    int32_t max_sms;       /* that launches may count on; 0 = all (platform.max_sms) */
    char *device_note;     /* why `auto` took this device and not the one before; or NULL */
    char *installed;       /* "cpu_native, hybrid_phase": backend types that are loaded */
    struct rules *rules;
    uint32_t num_groups;
    struct select_group *groups;
    uint32_t num_units;
    struct select_unit *units;
};

/* Select for all groups of the model on the device. *selection is the caller's on ATTN_OK, and on
 * UNSUPPORTED and DEPENDENCY_MISSING too, where some group has no backend: then `error` speaks of
 * the first one, the selection of all. CONFIG_ERROR: an unknown name (nearest and list), wrong
 * options, missing scales. May define hybrid_phase backends in the host. Host, config and model
 * outlive the selection. */
attn_status select_create(attnhost *host, const struct config *config, const struct model *model,
                          const attn_device *device, struct selection **selection,
                          attn_error *error);

/* The same on the device that [platform] asks for, described in *device: a simulated one, a named
 * one, or with `auto` the first CUDA device if there is one and the model can be served on it, else
 * the processor; but backends that are named are tried on the processor first, and a CUDA device is
 * looked for only if they do not serve there. selection->device_note says why it was not the first
 * of the two. */
attn_status select_create_here(attnhost *host, const struct config *config,
                               const struct model *model, attn_device *device,
                               struct selection **selection, attn_error *error);

/* attention.mla_prefill = auto, for who makes the calls and so may choose their form: prompts' latent
 * layers are called in the expanded form on a CUDA device where backends serve them so, which takes
 * less than half of the time (docs/PERFORMANCE.md); everywhere else in the absorbed one. Before
 * select_create_here(). */
attn_status select_settle_form(attnhost *host, const struct config *config, struct model *model,
                               attn_error *error);

/* NULL is accepted. */
void select_destroy(struct selection *selection);

/* The backend that serves a phase of a group, or NULL. */
const char *select_backend(const struct selection *selection, uint32_t group, uint32_t phase);

/* Does each group have a backend, or one that would be chosen if it were installed? One that no
 * plugin has yet is no answer. */
bool select_is_settled(const struct selection *selection);

/* Can decode batches of a group be captured: the graph level (ATTN_GRAPH_*) of the backend that
 * serves its decode phase; ATTN_GRAPH_NEVER if none does. */
uint32_t select_decode_graph_level(const struct selection *selection, uint32_t group);

/* The first backend that cannot be captured in what decodes: DECODE batches, or verifications where
 * the configuration has drafts; NULL = all can be. */
const char *select_uncapturable(const struct selection *selection, const struct config *config);

/* The phase whose backend verifies drafts. */
uint32_t select_verify_phase(const struct config *config);

/* "prefill", "decode". */
const char *select_phase_name(uint32_t phase);

/* "head_dim" and "HEAD_DIM" of ATTN_FIELD_* and ATTN_REASON_*; "?" for unknown ones. */
const char *select_field_name(uint32_t field);
const char *select_code_name(uint32_t code);

/* "head_dim 192: accepted 64, 128", with the child's name in front where it is a child's. Cut to
 * `size`. */
void select_reason_text(const attn_reason *reason, char *text, size_t size);

/* "architecture Olmo2ForCausalLM: accepted other architectures (OLMo 2 is not served by
 * FlashInfer)" of a candidate that a rule excludes. Cut to `size`. */
void select_exclusion_text(const struct select_candidate *candidate, char *text, size_t size);

/* One line for each choice: "layers 0-3 prefill, decode: cpu_native (cpu)". For `run`. */
void select_print_choices(const struct selection *selection, FILE *file);

/* Why requests share no prefixes, though kv_cache.prefix_cache = yes; NULL = they may. */
const char *select_shares_none(const struct config *config, const struct model *model);

#endif /* HOST_SELECT_SELECT_H */
