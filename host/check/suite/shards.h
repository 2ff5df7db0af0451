/* SPDX-License-Identifier: Apache-2.0
 *
 * shards.h: cases side by side. Copies of this process, made before it opens a sandbox, each have a
 * sandbox of their own and take every n-th case; results come back in shared memory, one line per
 * case. The suite goes through all cases in order and waits for a shard's result instead of running
 * a case. One more copy runs the CHECK_ALONE cases before the others begin. When all have ended,
 * the suite itself runs the cases that no shard answered. */
#ifndef HOST_CHECK_SUITE_SHARDS_H
#define HOST_CHECK_SUITE_SHARDS_H

#include "host/check/suite/suite.h"

/* Outcome of a case in a shard; the shard owns the texts. */
struct shard_result {
    const char *id;
    enum check_code code;
    int64_t ns;
    const char *text, *trail, *output;
    cJSON *line;
    bool is_taken; /* it is in the suite's report */
};

struct shards {
    size_t count; /* processes */
    struct shard {
        pid_t process;                /* 0 = ended, or never started */
        int memory;                   /* what it writes to */
        uint64_t read;                /* bytes of it */
        struct shard_result *results; /* in its order */
        size_t num_results, room;
        size_t next; /* the first that is not taken */
        cJSON *surroundings;
    } * items;
    bool is_signalled; /* an interruption was passed on */
};

/* One process for two processors, within reason: backends compute with threads of their own. */
size_t shards_default(void);

/* Start so many processes, and the one for CHECK_ALONE. Fewer are no error: the suite runs the
 * remaining cases. */
void shards_start(struct shards *shards, const struct check_params *params, size_t count);

/* Wait for the one that has what runs alone, and for all, with the suite's sandbox open: an
 * interruption is handed on. What they saw around their cases is added to the suite's. */
void shards_wait_alone(struct shards *shards, struct suite *suite);
void shards_wait(struct shards *shards, struct suite *suite);

/* The result of a case, which is taken; NULL if none of them has it and all have ended, or if an
 * interruption stopped the suite. */
struct shard_result *shards_take(struct shards *shards, struct suite *suite, const char *id);

/* One that was not taken yet, or NULL. */
struct shard_result *shards_take_any(struct shards *shards);

void shards_finish(struct shards *shards);

#endif /* HOST_CHECK_SUITE_SHARDS_H */
