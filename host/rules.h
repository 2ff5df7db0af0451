/* SPDX-License-Identifier: Apache-2.0
 *
 * rules.h: what `auto` prefers where, and what SGLang's names stand for. Tables, no decisions:
 * whether a backend can serve is for the backend to say.
 */
#ifndef HOST_RULES_H
#define HOST_RULES_H

#include "attn_plugin.h"

enum { RULE_MAX_NAMES = 6 };

/* A preference on one platform for one kind of layer. The first rule that matches holds. */
struct rule {
    int32_t device_type;               /* ATTN_DEVICE_* */
    uint32_t min_sm;                   /* CUDA: compute capability, inclusive */
    uint32_t max_sm;                   /* inclusive */
    uint32_t kinds;                    /* 1 << ATTN_KIND_* set */
    uint32_t attn_types;               /* 1 << ATTN_TYPE_* set */
    uint32_t needs;                    /* RULE_* set: the layer must have all of them */
    const char *text;                  /* for people: "sm90, softmax" */
    const char *names[RULE_MAX_NAMES]; /* backend types, best first, NULL-terminated if shorter */
};

enum { RULE_SINKS = 1 << 0, RULE_CHUNK = 1 << 1 };

/* The rule for a layer group on a device, or NULL. */
const struct rule *rule_find(const attn_device *device, const attn_layer_group *group);

/* The backend type that another system's name stands for, or NULL if it is no alias. */
const char *rule_alias(const char *name);

/* Is this a backend type that some rule or alias names, installed or not? */
int rule_knows(const char *name);

/* The alias at `index`, NULL at the end; for lists of accepted names. */
const char *rule_alias_at(size_t index);

#endif /* HOST_RULES_H */
