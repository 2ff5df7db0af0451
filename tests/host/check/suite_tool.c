/* SPDX-License-Identifier: Apache-2.0
 *
 * suite_tool.c: `attnhost check` and `attnhost fuzz` with checks of its own, for the tests of what
 * is around checks: processes, limits, reports. What it says of the fixtures does not change when a
 * group of checks does.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/check/suite/groups.h"
#include "host/cmd/commands.h"
#include "host/base/error.h"
#include "host/select/probe.h"
#include "tests/fixtures/fake_cuda.h"

/* ---- Checks that call the plugin ------------------------------------------------------------- */

static void pose(const struct check_run *run, struct probe *probe)
{
    const struct check_subject *subject = run->subject;
    probe_init(probe, &subject->device->info, ATTN_F32, subject->type->layouts[0]);
    probe->asked.bounds.max_seqs = probe->asked.bounds.max_tokens = 4;
}

static void run_query(struct check_run *run)
{
    const struct check_subject *subject = run->subject;
    struct probe probe;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    pose(run, &probe);
    check_note(run, "question %d", run->index);
    attn_status status = subject->type->query(subject->type, subject->options, subject->services,
                                              &probe.asked.problem, &verdict, NULL);
    CHECK_THAT(run, status == ATTN_OK && verdict.supported, "query: status %d", status);
}

static int32_t three(const struct check_subject *subject)
{
    (void)subject;
    return 3;
}

static attn_instance *create(struct check_run *run)
{
    const struct check_subject *subject = run->subject;
    struct probe probe;
    attn_instance *instance = NULL;
    pose(run, &probe);
    check_note(run, "before create");
    if (subject->type->create(subject->type, &probe.asked.problem, 1, subject->options,
                              subject->services, &instance, NULL))
        check_fail(run, "create failed");
    return instance;
}

static void run_create(struct check_run *run)
{
    attn_instance *instance = create(run);
    if (instance)
        run->subject->type->ops->destroy(instance);
}

/* One forward; the backend's memory is large enough, whatever it asks for. */
static void forward(struct check_run *run, const attn_backend_ops *ops, attn_instance *instance)
{
    static uint64_t memory[ATTN_REGION_COUNT][1024];
    const attn_bounds bounds = {.struct_size = sizeof bounds, .max_seqs = 4, .max_tokens = 4};
    attn_memory given = {.struct_size = sizeof given};
    attn_batch batch = {.struct_size = sizeof batch, .num_seqs = 1};
    attn_forward_args args = {.struct_size = sizeof args};
    attn_metadata *metadata = NULL;
    memset(memory, 0, sizeof memory);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        given.base[region] = memory[region];
        given.size[region] = sizeof memory[region];
    }
    CHECK_THAT(
        run, !ops->metadata_create(instance, ATTN_METADATA_EAGER, &bounds, &given, &metadata, NULL),
        "metadata_create failed");
    check_note(run, "before the forward");
    if (ops->init_forward_metadata(metadata, &batch, NULL, NULL) ||
        ops->forward_extend(metadata, 0, &args, NULL, NULL))
        check_fail(run, "the forward failed");
    ops->metadata_destroy(metadata);
}

static void run_forward(struct check_run *run)
{
    const attn_backend_ops *ops = run->subject->type->ops;
    attn_instance *instance = create(run);
    if (!instance)
        return;
    forward(run, ops, instance);
    ops->destroy(instance);
}

/* ---- Checks that say things ------------------------------------------------------------------ */

/* What the index names. */
static void run_codes(struct check_run *run)
{
    if (run->index == CHECK_FAIL)
        check_fail(run, "got <1> & \"2\", accepted 3\nseed %llu", (unsigned long long)run->seed);
    else if (run->index == CHECK_SKIP)
        check_skip(run, "declared # unsupported");
    else if (run->index == CHECK_WARN)
        check_warn(run, "slow");
    else if (run->index == CHECK_CRASH)
        abort();
    else if (run->index == CHECK_WAIVED)
        check_fail(run, "bytes \xff\x01\xef\xbf\xbf that no format holds");
    else if (run->index == CHECK_DEVICE_LOST)
        check_skip(run, "%s", "");
}

static int32_t all_codes(const struct check_subject *subject)
{
    (void)subject;
    return CHECK_CODES;
}

/* The second case of a process ends it. */
static void run_inherits(struct check_run *run)
{
    static int runs;
    check_note(run, "run %d of this process", runs + 1);
    if (++runs == 2)
        abort();
}

/* Alive, and longer at work than a case may be silent. */
static void run_slow(struct check_run *run)
{
    const struct timespec pause = {0, 100000000};
    for (int i = 0; i < 25; i++) {
        check_note(run, "step %d", i);
        nanosleep(&pause, NULL);
    }
}

/* Every 40th seed fails, unless complications 3 and 5 are left out both. */
static void run_chunk(struct check_run *run)
{
    const uint32_t culprits = 1u << 3 | 1u << 5;
    if (run->seed % 40 == 0 && (run->without & culprits) != culprits)
        check_fail(run, "seed %llu", (unsigned long long)run->seed);
}

/* The first case loses the fake device, and finds out when it asks it something. */
static void run_loses(struct check_run *run)
{
    const struct device *device = run->subject->device;
    struct fake_cuda fake;
    CHECK_THAT(run, fake_cuda_load(getenv("ATTNHOST_LIBCUDA"), &fake) == 0, "no fake driver");
    if (run->index == 0)
        fake.lose(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_THAT(run, !device_synchronize(device, NULL, NULL), "the device does not answer");
}

static void run_nothing(struct check_run *run)
{
    (void)run;
}

static const struct check plain[] = {
    {"CAPS-01", "query", "query answers", 0, three, run_query, NULL, NULL, NULL},
    {"LIFE-04", "create", "create and destroy", 0, NULL, run_create, NULL, NULL, NULL},
    {"CAPS-02", "forward", "one forward", 0, NULL, run_forward, NULL, NULL, NULL},
    {"LOAD-01", "once", "about the file", CHECK_ONCE, NULL, run_nothing, NULL, NULL, NULL},
    {"CAPT-01", "needs_cuda", "needs a device", CHECK_NEEDS_CUDA, NULL, run_nothing, NULL, NULL,
     NULL},
    {"COMP-01", "needs_child", "needs a child", CHECK_NEEDS_CHILD, NULL, run_nothing, NULL, NULL,
     NULL},
    {.rule = NULL},
};

static const struct check odd[] = {
    {"ODD-01", "codes", "each case says another word", 0, all_codes, run_codes, NULL, NULL, NULL},
    {"ODD-02", "inherits", "a case is broken by the one before it", 0, three, run_inherits, NULL,
     NULL, NULL},
    {"ODD-03", "slow", "a note is a sign of life", 0, NULL, run_slow, NULL, NULL, NULL},
    {"ODD-04", "chunk", "some seeds fail", CHECK_FUZZABLE, NULL, run_chunk, NULL, NULL, NULL},
    {"ODD-05", "loses", "a device is lost", CHECK_NEEDS_CUDA, three, run_loses, NULL, NULL, NULL},
    {"ODD-06", "computes", "what only kernels can do", CHECK_NEEDS_COMPUTE, NULL, run_nothing, NULL,
     NULL, NULL},
    {.rule = NULL},
};

/* The odd ones where they are asked for. */
const struct check *const *check_groups(void)
{
    static const struct check *const without_odd[] = {check_load, plain, NULL};
    static const struct check *const with_odd[] = {check_load, plain, odd, NULL};
    return getenv("SUITE_TOOL_ODD") ? with_odd : without_odd;
}

bool check_group_is_large(const struct check *group)
{
    (void)group;
    return false;
}

const struct check *const *check_groups_quick_first(void)
{
    static const struct check *const plain_first[] = {plain, check_load, NULL};
    return plain_first;
}

/* None, unless a test names one. */
const char *check_groups_minimum(void)
{
    return getenv("SUITE_TOOL_MINIMUM");
}

/* ---- Commands -------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const struct command *const commands[] = {&command_check, &command_fuzz,
                                                     &command_check_child, &command_check_load};
    for (size_t c = 0; argc > 1 && c < sizeof commands / sizeof *commands; c++)
        if (strcmp(argv[1], commands[c]->name) == 0)
            return arguments_run(commands[c], argc - 1, argv + 1);
    return 2;
}
