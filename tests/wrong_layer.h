/* SPDX-License-Identifier: Apache-2.0
 *
 * wrong_layer.h: a layer before a good backend that does one thing wrong, so that the checks of
 * `attnhost check` are seen to fail.
 */
#ifndef WRONG_LAYER_H
#define WRONG_LAYER_H

#include "attn_plugin.h"

/* X(what it does, rule, check, result) */
#define WRONGS(X)                                                                                  \
    X(EXTENSION_PREFIX, "NEGO-04", "instance_extensions", CHECK_FAIL)                              \
    X(NEEDS_TRACE, "NEGO-05", "services", CHECK_FAIL)                                              \
    X(LEAVES_SPAN_OPEN, "NEGO-05", "services", CHECK_FAIL)                                         \
    X(NO_EXTEND, "NEGO-05", "phases", CHECK_FAIL)                                                  \
    X(FILLS_WHOLE_VERDICT, "STRUCT-02", "sizes", CHECK_CRASH)                                      \
    X(FILLS_BEHIND_VERDICT, "STRUCT-02", "sizes", CHECK_FAIL)                                      \
    X(READS_WHOLE_BATCH, "STRUCT-02", "sizes", CHECK_CRASH)                                        \
    X(WALKS_BY_SIZEOF, "STRUCT-05", "arrays", CHECK_CRASH)                                         \
    X(RESERVED, "STRUCT-06", "reserved", CHECK_FAIL)                                               \
    X(DESTROYS_NULL, "LIFE-03", "destroy_null", CHECK_CRASH)                                       \
    X(LEAVES_A_BLOCK, "LIFE-04", "create_without_memory", CHECK_FAIL)                              \
    X(SETS_INSTANCE, "LIFE-04", "create_unsupported", CHECK_FAIL)                                  \
    X(SETS_METADATA, "LIFE-04", "metadata_without_memory", CHECK_FAIL)                             \
    X(LAST_PLAN_FOR_ALL, "LIFE-05", "two_instances", CHECK_FAIL)                                   \
    X(LAST_PLAN_FOR_ALL, "LIFE-05", "two_metadata", CHECK_FAIL)                                    \
    X(DESTROY_SPOILS_OTHERS, "LIFE-05", "orders", CHECK_FAIL)                                      \
    X(KEEPS_PROBLEM, "LIFE-05", "arguments", CHECK_FAIL)                                           \
    X(OTHER_STATE, "LIFE-06", "states", CHECK_FAIL)                                                \
    X(PLANS_ONCE, "LIFE-06", "replan", CHECK_FAIL)                                                 \
    X(LEAKS_INSTANCE, "LIFE-07", "instances", CHECK_FAIL)                                          \
    X(MAPS_INSTANCE, "LIFE-07", "instances", CHECK_FAIL)                                           \
    X(LEAKS_METADATA, "LIFE-07", "metadata", CHECK_FAIL)                                           \
    X(STARTS_THREAD, "LIFE-08", "threads", CHECK_FAIL)                                             \
    X(DECLARES_TWICE, "CONF-01", "declared", CHECK_FAIL)                                           \
    X(REFUSES_OPTION, "CONF-06", "single", CHECK_FAIL)                                             \
    X(REFUSES_PAIR, "CONF-06", "pairs", CHECK_FAIL)                                                \
    X(SIZE_VARIES, "WORK-02", "sizes", CHECK_FAIL)                                                 \
    X(SIZE_SHRINKS, "WORK-02", "growth", CHECK_FAIL)                                               \
    X(WRITES_PAST_REGION, "WORK-03", "exact", CHECK_FAIL)                                          \
    X(WRITES_BEFORE_REGION, "WORK-03", "exact", CHECK_FAIL)                                        \
    X(TAKES_LESS, "WORK-03", "too_small", CHECK_FAIL)                                              \
    X(NEEDED_UNTOLD, "WORK-03", "too_small", CHECK_FAIL)                                           \
    X(TAKES_MISALIGNED, "WORK-03", "misaligned", CHECK_FAIL)                                       \
    X(TAKES_ANY_KIND, "WORK-03", "kinds", CHECK_FAIL)                                              \
    X(PLAN_IN_SCRATCH, "WORK-04", "scratch", CHECK_FAIL)                                           \
    X(DIRTY_COUNTERS, "WORK-05", "zeroed", CHECK_FAIL)                                             \
    X(BOUND_UNNAMED, "WORK-06", "bounds", CHECK_FAIL)                                              \
    X(TAKES_ANY_PART, "WORK-06", "parts", CHECK_FAIL)                                              \
    X(ALLOCATES, "PURE-01", "calls", CHECK_FAIL)                                                   \
    X(OPENS_A_FILE, "PURE-01", "calls", CHECK_FAIL)                                                \
    X(WRITES_Q, "PURE-02", "inputs", CHECK_FAIL)                                                   \
    X(WRITES_FOREIGN_SLOT, "PURE-02", "inputs", CHECK_FAIL)                                        \
    X(READS_HOST_LATE, "PURE-06", "host_arrays", CHECK_FAIL)                                       \
    X(ANSWERS_ONE_THREAD, "THRD-01", "query", CHECK_FAIL)                                          \
    X(ONE_THREAD, "THRD-02", "instances", CHECK_FAIL)                                              \
    X(OTHER_CODE, "ERR-01", "codes", CHECK_FAIL)                                                   \
    X(CODE_UNTOLD, "ERR-01", "codes", CHECK_FAIL)                                                  \
    X(NO_MESSAGE, "ERR-02", "messages", CHECK_FAIL)                                                \
    X(CUTS_CHARACTERS, "ERR-02", "messages", CHECK_FAIL)                                           \
    X(IGNORES_CAPACITY, "ERR-02", "messages", CHECK_FAIL)                                          \
    X(SAYS_SUCCESS, "ERR-02", "success", CHECK_FAIL)                                               \
    X(NO_NAMES, "ERR-05", "roles", CHECK_FAIL)                                                     \
    X(NO_NAMES, "ERR-05", "head_roles", CHECK_FAIL)                                                \
    X(OWN_NAME, "ERR-06", "prefix", CHECK_WARN)                                                    \
    X(SLOW_PLAN, "PERF-01", "overhead", CHECK_WARN)

/* The same before a composite. */
#define WRONG_COMPOSITES(X)                                                                        \
    X(ALWAYS_YES, "COMP-02", "verdict", CHECK_FAIL)                                                \
    X(CHILD_UNNAMED, "COMP-02", "verdict", CHECK_FAIL)                                             \
    X(ALWAYS_GRAPHS, "COMP-02", "verdict", CHECK_FAIL)                                             \
    X(ONE_FORM, "COMP-03", "needs", CHECK_FAIL)                                                    \
    X(OWN_SIZE, "COMP-03", "needs", CHECK_FAIL)                                                    \
    X(NO_NAMES, "COMP-04", "failures", CHECK_FAIL)                                                 \
    X(LEAVES_A_BLOCK, "COMP-04", "failures", CHECK_FAIL)                                           \
    X(LEAVES_CHILD, "COMP-04", "failures", CHECK_FAIL)                                             \
    X(SPOILS_OUT, "COMP-06", "equal", CHECK_FAIL)                                                  \
    X(SPOILS_OUT, "COMP-06", "deep", CHECK_FAIL)                                                   \
    X(NO_NAMES, "COMP-06", "deep", CHECK_FAIL)

enum wrong {
    NOTHING_WRONG,
    EXTENSION_PREFIX,
    NEEDS_TRACE,
    LEAVES_SPAN_OPEN,
    NO_EXTEND,
    FILLS_WHOLE_VERDICT,
    FILLS_BEHIND_VERDICT,
    READS_WHOLE_BATCH,
    WALKS_BY_SIZEOF,
    RESERVED,
    DESTROYS_NULL,
    LEAVES_A_BLOCK,
    SETS_INSTANCE,
    SETS_METADATA,
    LAST_PLAN_FOR_ALL,
    DESTROY_SPOILS_OTHERS,
    KEEPS_PROBLEM,
    OTHER_STATE,
    PLANS_ONCE,
    LEAKS_INSTANCE,
    MAPS_INSTANCE,
    LEAKS_METADATA,
    STARTS_THREAD,
    DECLARES_TWICE,
    REFUSES_OPTION,
    REFUSES_PAIR,
    SIZE_VARIES,
    SIZE_SHRINKS,
    WRITES_PAST_REGION,
    WRITES_BEFORE_REGION,
    TAKES_LESS,
    NEEDED_UNTOLD,
    TAKES_MISALIGNED,
    TAKES_ANY_KIND,
    PLAN_IN_SCRATCH,
    DIRTY_COUNTERS,
    BOUND_UNNAMED,
    TAKES_ANY_PART,
    ALLOCATES,
    OPENS_A_FILE,
    WRITES_Q,
    WRITES_FOREIGN_SLOT,
    READS_HOST_LATE,
    ANSWERS_ONE_THREAD,
    ONE_THREAD,
    OTHER_CODE,
    CODE_UNTOLD,
    NO_MESSAGE,
    CUTS_CHARACTERS,
    IGNORES_CAPACITY,
    SAYS_SUCCESS,
    NO_NAMES,
    OWN_NAME,
    SLOW_PLAN,
    ALWAYS_YES,
    CHILD_UNNAMED,
    ALWAYS_GRAPHS,
    ONE_FORM,
    OWN_SIZE,
    LEAVES_CHILD,
    SPOILS_OUT,
    LEAVES_CONTEXT
};

/* The table of a layer before `real` that does this wrong. There is one at a time. */
const attn_backend_type *wrong_layer(const attn_backend_type *real, enum wrong what);

/* For LEAVES_CONTEXT: what it calls in create. */
void wrong_layer_leaves(void (*leave)(void));

#endif /* WRONG_LAYER_H */
