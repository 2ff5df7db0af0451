/* SPDX-License-Identifier: Apache-2.0
 *
 * select.h: the backend of each layer group and phase, and the reasons against the others.
 *
 *   selection
 *     groups[]            one for each layer group of the model: how it is served
 *       phases[2]         prefill and decode: the candidates in order, the chosen one
 *         candidates[]    a backend and its verdict, with all reasons
 *     units[]             what has to be composed: a backend name and the groups it serves
 *
 * An explicit name is used or refused, never replaced. `auto` walks the order for the platform and
 * the kind of layer (rules.h), then every other backend that is loaded, and takes the first one
 * that serves both phases; if none does, the first one for each phase. A rule excludes a backend
 * even if it is named: it is not queried. Two names for the two phases are joined by a hybrid_phase
 * backend that is defined here; a backend for linear layers and one for all others by a
 * hybrid_linear one. */
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

/* A backend and its answer. */
struct select_candidate {
    char *name;                  /* as the host knows it */
    const struct rule *known;    /* the rules' section of its type; NULL = none */
    const struct rule *excluded; /* the rule that excludes it, so that it is not queried; or NULL */
    const char *blamed;          /* static: the field that this rule is about */
    char got[64];                /* its value */
    char *absent;                /* why it was not queried; NULL = it was, or a rule excludes it */
    uint32_t absence;            /* SELECT_NOT_INSTALLED ... */
    uint32_t layouts;            /* bit i: accepts with the i-th of kind_layouts() */
    attn_verdict verdict; /* with the first accepted layout; if none, with the first one asked */
    attn_reason *reasons; /* verdict.num_reasons of them */
};

struct select_phase {
    const char *wanted; /* the user's setting: "auto" or a name; owned by the config */
    const char *key;    /* static: where: "attention.attention_backend"; */
    char *why;          /* rule or key that led to the candidates; for people */
    struct select_candidate *candidates;
    uint32_t num_candidates;
    int32_t chosen;    /* index of a candidate; -1 = none, or the phase does not exist */
    int32_t preferred; /* with `auto`: the choice if all of its order were installed; -1 = none */
    bool exists;       /* encoders have no decode phase */
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
    int32_t max_sms;       /* that launches may use; 0 = all (platform.max_sms) */
    char *device_note;     /* why `auto` took this device and not the one before; or NULL */
    char *installed;       /* "cpu_native, hybrid_phase": backend types that are loaded */
    struct rules *rules;
    uint32_t num_groups;
    struct select_group *groups;
    uint32_t num_units;
    struct select_unit *units;
};

/* Select for all groups of the model on the device. *selection is the caller's on ATTN_OK, and on
 * UNSUPPORTED and DEPENDENCY_MISSING, too, if some group has no backend: then `error` concerns the
 * first such group, the selection all groups. CONFIG_ERROR: an unknown name (nearest and list),
 * wrong options, missing scales. May define hybrid_phase backends in the host. Host, config and
 * model outlive the selection. */
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

/* attention.mla_prefill = auto, for a caller that may choose the form of its calls: prompts' latent
 * layers are called in the expanded form on a CUDA device if backends serve that form, which takes
 * less than half of the time (docs/PERFORMANCE.md); everywhere else in the absorbed one. Before
 * select_create_here(). */
attn_status select_settle_form(attnhost *host, const struct config *config, struct model *model,
                               attn_error *error);

/* NULL is accepted. */
void select_destroy(struct selection *selection);

/* The backend that serves a phase of a group, or NULL. */
const char *select_backend(const struct selection *selection, uint32_t group, uint32_t phase);

/* Does each group have a backend, or one that would be chosen if it were installed? A backend that
 * no plugin provides yet does not count. */
bool select_is_settled(const struct selection *selection);

/* Can decode batches of a group be captured: the graph level (ATTN_GRAPH_*) of the backend that
 * serves its decode phase; ATTN_GRAPH_NEVER if none does. */
uint32_t select_decode_graph_level(const struct selection *selection, uint32_t group);

/* The first backend that cannot be captured in decode steps: DECODE batches, or verifications if
 * the configuration has drafts; NULL = all can be. */
const char *select_uncapturable(const struct selection *selection, const struct config *config);

/* The phase whose backend verifies drafts. */
uint32_t select_verify_phase(const struct config *config);

/* "prefill", "decode". */
const char *select_phase_name(uint32_t phase);

/* "head_dim" and "HEAD_DIM" of ATTN_FIELD_* and ATTN_REASON_*; "?" for unknown ones. */
const char *select_field_name(uint32_t field);
const char *select_code_name(uint32_t code);

/* "head_dim 192: accepted 64, 128", with the child's name in front if it comes from a child. Cut to
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
