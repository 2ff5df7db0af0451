/* SPDX-License-Identifier: Apache-2.0
 *
 * rules.h: preferences of `auto`, exclusions by model, and the meaning of SGLang's names.
 *
 * All of it is data: host/select/selection.ini, whose head describes the format. It is read from
 * the file that attention.rules names, else from the installed one, else from the copy in the
 * program, which is made of the same file; so a host without its files chooses as one with them.
 * Only the backend decides whether it can serve: an order decides which one is asked first. */
#ifndef HOST_SELECT_RULES_H
#define HOST_SELECT_RULES_H

#include <stdbool.h>

#include "attn_plugin.h"
#include "host/config/config.h"
#include "host/model/model.h"

/* rule.has: what a layer has. */
enum {
    RULE_HAS_SINKS,
    RULE_HAS_CHUNK,
    RULE_HAS_WINDOW,
    RULE_HAS_CAP,
    RULE_HAS_ALIBI,
    RULE_HAS_UNEQUAL_V,
    RULE_HAS_COUNT
};

/* rule.models: what all layers of a model are together. */
enum {
    RULE_MODEL_DECODER,
    RULE_MODEL_ENCODER,
    RULE_MODEL_ENCODER_DECODER, /* has cross attention */
    RULE_MODEL_MULTIMODAL       /* encoders next to a decoder that does not look at them */
};

/* rule.model_has: what some layer of the model is. */
enum {
    RULE_SOME_WINDOW,
    RULE_SOME_RECURRENCE,
    RULE_SOME_FAMILY /* + ATTN_LINEAR_* */
};

enum { RULE_DRAFTS_OFF, RULE_DRAFTS_CHAIN, RULE_DRAFTS_TREE };

/* Devices of a type; of CUDA those with min_sm <= sm <= max_sm, of processors those with `isa`. */
struct rule_platform {
    int32_t type; /* ATTN_DEVICE_*; 0 = any */
    uint32_t min_sm, max_sm;
    uint32_t isa; /* ATTN_CPU_* set */
};

struct rule_platforms {
    struct rule_platform *items;
    size_t count;
    char *text; /* as it was written */
};

enum { RULE_BACKEND, RULE_ORDER, RULE_EXCLUDE, RULE_KINDS };

/* One section. Empty lists match everything. */
struct rule {
    char *name;  /* of [order.NAME] NAME, of [backend.TYPE] the type */
    char *place; /* "file:line" */
    char *text;
    char *accepted;              /* exclude */
    struct config_texts aliases; /* backend */
    struct config_texts former;  /* backend: aliases that SGLang has dropped */
    struct config_ints plugin;   /* backend: not empty = no such plugin exists yet */
    struct config_texts backends;
    bool all; /* exclude: `backends = all` */
    struct rule_platforms platforms;
    struct config_ints kinds, attn_types; /* ATTN_KIND_*, ATTN_TYPE_* */
    struct config_ints has, models, model_has;
    struct config_texts architectures;
    struct config_ints num_q_heads;
    struct config_ints kv_dtypes; /* attn_dtype */
    struct config_ints drafts;    /* RULE_DRAFTS_* */
};

struct rule_list {
    struct rule *items; /* in the file's order */
    size_t count;
};

struct rules {
    struct rule_list lists[RULE_KINDS];
};

/* The subject of conditions: a layer group of a model on a device. */
struct rule_facts {
    const attn_device *device;
    const struct model *model;
    const attn_layer_group *group;
    attn_dtype kv_dtype;
    int64_t draft_topk; /* 0 = no drafts, 1 = a chain, more = a tree */
};

/* ---- Life ------------------------------------------------------------------------------------ */

/* The rules of a configuration; NULL = the installed ones. CONFIG_ERROR with "file:line: ..." for
 * the first thing that is wrong. */
attn_status rules_create(const struct config *config, struct rules **rules, attn_error *error);

/* From `length` bytes of text, called `name` in messages. */
attn_status rules_create_text(const char *text, size_t length, const char *name,
                              struct rules **rules, attn_error *error);

/* NULL is accepted. */
void rules_destroy(struct rules *rules);

/* ---- Questions ------------------------------------------------------------------------------- */

/* The candidates of `auto`: the first order that holds, or NULL. */
const struct rule *rules_order(const struct rules *rules, const struct rule_facts *facts);

/* The first exclusion of a backend type that applies, or NULL. */
const struct rule *rules_exclusion(const struct rules *rules, const struct rule_facts *facts,
                                   const char *type);

/* The cause of an exclusion that applies: the name of a field (static) of the layers, the model or
 * the configuration, and its value, cut to `size`. */
const char *rules_blame(const struct rule *exclusion, const struct rule_facts *facts, char *got,
                        size_t size);

/* The section of a backend type, or of an alias; NULL = unknown. */
const struct rule *rules_backend(const struct rules *rules, const char *type);
const struct rule *rules_alias(const struct rules *rules, const char *alias);

/* The same, if SGLang has dropped this name; else NULL. */
const struct rule *rules_former(const struct rules *rules, const char *alias);

/* Is the device one of these? An empty list is all. */
bool rules_runs_on(const struct rule_platforms *platforms, const attn_device *device);

#endif /* HOST_SELECT_RULES_H */
