/* SPDX-License-Identifier: Apache-2.0
 *
 * rig.h: the plainest whole use of a backend, step by step and through its raw tables, for checks
 * of the contract: each step can be left out, repeated or changed.
 *
 *   question   two layer groups that the backend accepts, found by asking
 *   batches    one of each mode within its bounds, drawn from a seed; each layer of one is a case
 *              (forward_case.h), which has its operands and the arrays of the batch
 *   memory     regions for a metadata, exactly as large and as aligned as asked for
 *   result     all that the cases of a batch have on the device after a run
 *
 * The expected result is unknown here: a result is compared with that of another run.
 * forward_case.h judges whether it is attention. */
#ifndef HOST_CHECK_CASES_RIG_H
#define HOST_CHECK_CASES_RIG_H

#include "host/check/check.h"
#include "host/check/cases/forward_case_private.h"
#include "host/check/cases/regions.h"

enum {
    RIG_GROUPS = 2,
    RIG_LAYERS = 3, /* two of the first group, one of the second */
    RIG_BATCHES = 3,
    RIG_SEQS = 4, /* bounds */
    RIG_TOKENS = 24,
    RIG_Q_LEN = 12,
    RIG_KV_LEN = 48
};

/* Two layer groups, equal but for their layers and KV groups, of the first kind that a backend
 * serves: softmax; linear, whose gates are given computed and which have no convolution; latent,
 * absorbed; sparse over latents, of which the engine chooses the keys. */
struct rig_question {
    struct case_spec spec;     /* of its layers; without a mode and sequences */
    struct spec_problem posed; /* what groups and problems are copies of */
    attn_layer layers[RIG_LAYERS];
    attn_layer_group groups[RIG_GROUPS];
    attn_bounds bounds;
    attn_problem problems[RIG_GROUPS];
};

/* The arguments of calls with a batch, and their memory. */
struct rig_batch {
    struct forward_case *cases[RIG_LAYERS];
    attn_batch batch;
    attn_kv_batch kv[RIG_GROUPS];
    attn_state_batch states[LINEAR_STATE_GROUPS];
    struct case_view layers[RIG_LAYERS]; /* operands and arguments */
};

/* Initialised in place and never copied. */
struct rig {
    struct check_run *run;
    const struct device *device;
    const attn_backend_ops *ops;
    struct rig_question question;
    attn_verdict verdict; /* on the first group */
    attn_stream stream;
    uint32_t index_forms; /* of the instances made here; which the batches have */
    struct rig_batch batches[RIG_BATCHES];
    int num_batches; /* 1..RIG_BATCHES */

    /* The arguments of calls. They point to the members above, or to a check's own structs. */
    const attn_backend_type *type;
    const attn_options *options;
    const attn_services *services;
    const attn_problem *problems;
    const attn_bounds *bounds;
    const attn_batch *given_batches[RIG_BATCHES];
    const attn_forward_args *given_args[RIG_BATCHES][RIG_LAYERS];
    attn_error *given_error; /* at first that of the run, which is emptied before each call */
};

/* ---- Life ------------------------------------------------------------------------------------ */

/* Find a question and make batches. false: the case was skipped, with query's answer to the plain
 * question, or has failed; then there is nothing to close. */
bool rig_open(struct rig *rig, struct check_run *run, uint64_t seed);

/* The same with a question that child number `child` of the subject accepts by itself too, where
 * there is one. */
bool rig_open_for_child(struct rig *rig, struct check_run *run, uint64_t seed, uint32_t child);

void rig_close(struct rig *rig);

/* The question of a subject, without memory. false and a reason in `why`. */
bool rig_find(struct rig_question *question, const struct check_subject *subject, char *why,
              size_t size);

/* The first question that the subject accepts, and that `child` (or NULL) accepts too, of the kind
 * of this rank among those that have one. false: `why` is what was said to the first question. */
bool rig_find_for(struct rig_question *question, const struct check_subject *subject, int rank,
                  struct compose_node *child, attn_verdict *verdict, char *why, size_t size);

/* The kinds of which the subject accepts a question; 1 if there is none. */
int rig_count_kinds(const struct check_subject *subject);

/* Give a problem a layout of the KV cache, or of the state, that there is not. */
void rig_spoil_layout(attn_problem *problem);

/* The operands that a forward needs; how many. */
int rig_needed_roles(const struct rig *rig, uint32_t roles[ATTN_ROLE_COUNT]);

/* Does query accept it? */
bool rig_accepts(const struct check_subject *subject, const attn_problem *problem);

/* For checks whose cases are batches of other seeds: so many of each kind that the subject serves,
 * kind after kind. */
int32_t rig_count_seeds(const struct check_subject *subject);

/* ---- Calls, as a host makes them ------------------------------------------------------------- */

/* The error argument of the next call. */
static inline attn_error *rig_error(const struct rig *rig)
{
    check_error(rig->run);
    return rig->given_error;
}

attn_status rig_create(struct rig *rig, attn_instance **instance);

/* As a host prepares what it created (LIFE-10); good where there is nothing to prepare. */
attn_status rig_prepare(struct rig *rig, attn_instance *instance);
void rig_destroy(struct rig *rig, attn_instance *instance);

/* rig_create() that has to succeed. false: the case has failed, or was skipped if a dependency is
 * missing. */
bool rig_create_for(struct rig *rig, attn_instance **instance);

attn_status rig_metadata_size(struct rig *rig, attn_instance *instance, attn_memory_size *size);

/* Regions of a metadata, aligned no better than asked for, with `extra` bytes more than `size` says. */
attn_status rig_memory_init(struct regions *memory, struct rig *rig, const attn_memory_size *size,
                            uint64_t extra);

attn_status rig_metadata_create(struct rig *rig, attn_instance *instance,
                                const struct regions *memory, attn_metadata **metadata);

attn_status rig_plan(struct rig *rig, attn_metadata *metadata, int batch);
attn_status rig_forward(struct rig *rig, attn_metadata *metadata, int batch, int layer);

/* Every layer of the batch, until one fails. */
attn_status rig_forward_all(struct rig *rig, attn_metadata *metadata, int batch);

/* Overwrite the structs that rig_plan() passes for a batch, and its host arrays; restore them. */
void rig_spoil_batch(struct rig *rig, int batch);
void rig_restore_batch(struct rig *rig, int batch);

/* An instance with metadata. */
struct rig_session {
    attn_instance *instance;
    struct regions memory;
    attn_metadata *metadata;
};

/* On failure the case has failed, or was skipped if a dependency is missing; nothing is left. */
bool rig_session_open(struct rig_session *session, struct rig *rig);

/* The same for checks without a forward: if prepare() finds no compiler or kernels, memory and
 * plans can still be checked. */
bool rig_session_open_without(struct rig_session *session, struct rig *rig);

void rig_session_close(struct rig_session *session, struct rig *rig);

/* The function of a row, with a rig of the run's seed and a session: called once, or for each batch
 * until the case fails. */
struct rig_check {
    void (*body)(struct rig *rig, struct rig_session *session);
    void (*each)(struct rig *rig, struct rig_session *session, int batch);
    bool plans_alone; /* it needs no forward (rig_session_open_without()) */
};
void rig_run_check(struct check_run *run, const struct rig_check *check);

/* A row whose members of struct rig_check follow the sentence. */
void rig_run_row(struct check_run *run);
#define RIG_ROW(rule, name, count, needs, sentence, ...)                                           \
    {                                                                                              \
        rule, #name, sentence, needs, count, rig_run_row, NULL, NULL, &(const struct rig_check)    \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

/* Another metadata of an instance, within the rig's bounds. False: the case has failed. */
bool rig_metadata_open(struct rig_session *more, struct rig *rig, attn_instance *instance);
void rig_metadata_close(struct rig_session *more, struct rig *rig);

/* ---- Results --------------------------------------------------------------------------------- */

/* Restore the initial contents of a batch on the device. */
attn_status rig_reset(struct rig *rig, int batch);

/* Its contents on the device once the stream's work is done. The caller frees them; NULL: it
 * failed. */
char *rig_result(struct rig *rig, int batch);

/* From rig_reset() to rig_result() with a batch. NULL: the case has failed. */
char *rig_run(struct rig *rig, attn_metadata *metadata, int batch);

/* A whole life, from create to destroy, with every batch. On success results[] has num_batches
 * results, which the caller frees; false: the case has failed or was skipped, nothing is there. */
bool rig_life(struct rig *rig, char *results[RIG_BATCHES]);
void rig_free(char *results[RIG_BATCHES]);

/* Are two results of a batch the same: to the bit if the backend says that it is deterministic,
 * else outputs within a hundredth of the largest one? NULL, or the difference. */
const char *rig_difference(const struct rig *rig, int batch, char *a, char *b);

/* Is the result (NULL: that was reported) what was expected of this batch, as rig_difference() compares them? The case
 * fails with "WHEN, the output of the extend batch differs". Both are freed. */
void rig_expect(const struct rig *rig, int batch, char *expected, char *result, const char *when);

/* Has anything changed in a result but the outputs and the slots of this batch? NULL, or what. */
const char *rig_trespass(const struct rig *rig, int batch, char *result);

/* ATTN_OK, or the case fails. */
static inline bool rig_good(const struct rig *rig, attn_status status, const char *what)
{
    return check_good(rig->run, status, "%s", what);
}

/* "extend", "decode" ...; with its article. */
const char *rig_batch_name(const struct rig *rig, int batch);
const char *rig_a_batch(const struct rig *rig, int batch);

#endif /* HOST_CHECK_CASES_RIG_H */
