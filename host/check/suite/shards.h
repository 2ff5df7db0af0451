/* SPDX-License-Identifier: Apache-2.0
 *
 * shards.h: cases side by side. Copies of this process, made before it opens a sandbox, each have a
 * sandbox of their own and take every n-th case; what they found comes back in shared memory. The
 * suite then goes through all cases in their order, and takes a shard's result instead of running a
 * case. It runs those that no shard answered, and those that are CHECK_ALONE.
 */
#ifndef HOST_CHECK_SUITE_SHARDS_H
#define HOST_CHECK_SUITE_SHARDS_H

#include "host/check/suite/suite.h"

/* Outcome of a case in a shard; the shard owns the texts. */
struct shard_result {
    const char *id;
    enum check_code code;
    int64_t ns;
    const char *text, *trail, *output;
    bool is_taken; /* it is in the suite's report */
};

struct shards {
    size_t count; /* processes */
    struct shard {
        pid_t process; /* 0 = ended, or never started */
        int memory;    /* what it writes to */
        cJSON *found;
    } * items;
    struct shard_result *results; /* by id */
    size_t num_results;
};

/* One process for two processors, within reason: backends compute with threads of their own. */
size_t shards_default(void);

/* Start so many processes. Fewer are no error: what they do not do is done without them. */
void shards_start(struct shards *shards, const struct check_params *params, size_t count);

/* Wait for them, with the suite's sandbox open: an interruption is handed on. What they saw around
 * their cases is added to the suite's. */
void shards_wait(struct shards *shards, struct suite *suite);

/* The result of a case, or NULL. */
struct shard_result *shards_find(const struct shards *shards, const char *id);

void shards_finish(struct shards *shards);

#endif /* HOST_CHECK_SUITE_SHARDS_H */
