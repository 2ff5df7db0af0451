/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_checks_fixture.h: tests of the checks that need a CUDA device begin with this: the fake
 * driver, the spy before it, and a plugin that opens the driver as any other does.
 */
#ifndef CUDA_CHECKS_FIXTURE_H
#define CUDA_CHECKS_FIXTURE_H

#include "host/check/cases/gpu_case.h"
#include "host/check/cases/kind.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/host/check/subject_fixture.h"

#include <unistd.h>

/* The spy, where it was built or staged. `path` has room for 4096 bytes. */
static inline void spy_path(char *path)
{
    static const char *const places[] = {"host/check/spy/.libs", "lib/attnhost/spy"};
    const char *folder = getenv("ATTNHOST_TEST_BUILDDIR");
    ck_assert_msg(folder != NULL, "ATTNHOST_TEST_BUILDDIR is not set");
    for (int i = 0; i < 2; i++) {
        snprintf(path, 4096, "%s/%s/libcuda.so.1", folder, places[i]);
        if (access(path, R_OK) == 0)
            return;
    }
    ck_abort_msg("no spy in %s", folder);
}

/* The spy on the fake. */
static inline void use_spy_on_fake(void)
{
    char path[4096];
    spy_path(path);
    use_fake_cuda();
    host_error_init(&failure);
    GOOD(spy_install(path, &failure.base));
}

/* What came of all cases of a check. */
struct tally {
    int32_t passed, skipped, failed;
    char text[1024]; /* of the first that failed, or else was skipped */
};

/* Run a check as `attnhost check` does, the device's context being current: all of its cases, or
 * those of one point (-1 = all points). */
static inline void run_check(const struct check_subject *subject, const struct check *check,
                             int32_t point, struct tally *tally)
{
    int32_t numbered = kind_count(check, subject), count = numbered < 0 ? 1 : numbered;
    int32_t for_each = numbered < 0 ? 1 : count / gpu_num_points(subject);
    memset(tally, 0, sizeof *tally);
    for (int32_t index = 0; index < count; index++) {
        if (numbered >= 0 && point >= 0 && index / for_each != point)
            continue;
        struct check_run run = {.subject = subject, .check = check, .index = index};
        run.seed = mix_absorb(subject->seed, (uint64_t)index);
        GOOD(device_enter(subject->device, &failure.base));
        check->run(&run);
        device_leave(subject->device);
        tally->passed += run.code == CHECK_PASS;
        tally->skipped += run.code == CHECK_SKIP;
        ck_assert_msg(run.code == CHECK_PASS || run.text[0], "a verdict without a reason");
        if (run.code == CHECK_FAIL && tally->failed++ == 0)
            snprintf(tally->text, sizeof tally->text, "%s", run.text);
        if (run.code == CHECK_SKIP && !tally->text[0])
            snprintf(tally->text, sizeof tally->text, "%s", run.text);
    }
}

#endif /* CUDA_CHECKS_FIXTURE_H */
