/* SPDX-License-Identifier: Apache-2.0
 *
 * check_check_groups.c: the groups of `attnhost check` that are about the contract, on good
 * backends of all sorts, in this process, where a sanitizer sees them. That they fail is seen in
 * the zoo (tests/conformance/zoo.txt), but for CONF-02 and CONF-03, which only a defect of the
 * host's parser (check_options.c) could make fail.
 */
#include "host/base/sanitizers.h"
#include "host/check/spy/watch.h"
#include "tests/host/check/check_subject_fixture.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/fixtures/cuda_fixture_kernels.h"

#include <dlfcn.h>
#include <unistd.h>

static const struct check *const tables[] = {check_nego, check_structs, check_life, check_conf,
                                             check_work, check_pure,    check_comp, check_thrd,
                                             check_err,  check_perf};
enum { NUM_TABLES = sizeof tables / sizeof tables[0] };

static char plugin_file[4096];

static bool is_preloaded(void)
{
    return dlsym(RTLD_DEFAULT, WATCH_BEGIN) != NULL;
}

/* ---- Subjects -------------------------------------------------------------------------------- */

static void open_cpu_native(void)
{
    open_host();
    load_plugin("ATTNHOST_TEST_PLUGIN_DIR", "cpu_native.so", plugin_file);
    open_subject("cpu_native", plugin_file, ATTN_DEVICE_CPU);
}

static void open_example(void)
{
    open_host();
    load_plugin("ATTNHOST_TEST_FIXTURE_DIR", "example_rows.so", plugin_file);
    open_subject("example_rows", plugin_file, ATTN_DEVICE_CPU);
}

/* Children with different forms of indices. */
static void open_hybrid(void)
{
    const char *const form[] = {"kv_index", "csr"};
    const char *const children[] = {"prefill", "cpu_native", "decode", "other"};
    open_host();
    load_plugin("ATTNHOST_TEST_PLUGIN_DIR", "cpu_native.so", plugin_file);
    load_plugin("ATTNHOST_TEST_PLUGIN_DIR", "hybrid.so", plugin_file);
    GOOD(attnhost_define_backend(host, "other", "cpu_native", (const char **)(uintptr_t)form, 1,
                                 &error.base));
    GOOD(attnhost_define_backend(host, "both", "hybrid_phase", (const char **)(uintptr_t)children,
                                 2, &error.base));
    open_subject("both", plugin_file, ATTN_DEVICE_CPU);
}

static void open_cuda_fixture(void)
{
    use_fake_cuda_in_plugins();
    cuda_fixture_define(&fake);
    open_host();
    load_plugin("ATTNHOST_TEST_FIXTURE_DIR", "cuda_fixture.so", plugin_file);
    open_subject("cuda_fixture", plugin_file, ATTN_DEVICE_CUDA);
}

/* ---- Good backends --------------------------------------------------------------------------- */

/* Skips that are right for this subject. */
static bool may_skip(const struct check *check)
{
    if (strcmp(check->rule, "PURE-01") == 0)
        return subject.device->type != ATTN_DEVICE_CPU || !is_preloaded();
    if (strcmp(check->rule, "NEGO-08") == 0) /* they tell of no paths */
        return !(subject.type->flags & ATTN_BACKEND_COMPOSITE);
    if (strcmp(check->name, "measured") == 0 || strcmp(check->name, "stored") == 0)
        return strcmp(subject.backend, "autotune") != 0;
    return strcmp(check->name, "head_roles") == 0 && strcmp(subject.backend, "example_rows") == 0;
}

static void pass_check(const struct check *check)
{
    if ((check->needs & CHECK_NEEDS_CUDA && subject.device->type != ATTN_DEVICE_CUDA) ||
        (check->needs & CHECK_NEEDS_CHILD && !(subject.type->flags & ATTN_BACKEND_COMPOSITE)))
        return;
    for (int32_t index = 0; index < count_cases(check); index++) {
        struct check_run run = run_case(check, index);
        if (run.code == CHECK_SKIP && may_skip(check))
            printf("# %s %s.%s: skipped: %s\n", subject.backend, check->rule, check->name,
                   run.text);
        else if (run.code == CHECK_WARN && check->rule[0] == 'P')
            printf("# %s %s.%s: %s\n", subject.backend, check->rule, check->name, run.text);
        else
            ck_assert_msg(run.code == CHECK_PASS, "%s %s.%s/%d: %s", subject.backend, check->rule,
                          check->name, index, run.text);
    }
}

LOOP_OF(groups, test_good_backends, 0, 4 * NUM_TABLES)
{
    void (*const openers[])(void) = {open_cpu_native, open_example, open_hybrid, open_cuda_fixture};
    openers[_i / NUM_TABLES]();
    for (const struct check *check = tables[_i % NUM_TABLES]; check->rule; check++)
        pass_check(check);
    close_subject();
}

/* ---- Suite ----------------------------------------------------------------------------------- */

GROUP(groups, .timeout = 120);

/* Once more with the library that watches forwards, which a sanitizer does not suffer. */
static void preload_watch(char **argv)
{
    char path[4200];
    const char *build = getenv("ATTNHOST_TEST_BUILDDIR");
    if (HAS_SANITIZER || is_preloaded() || !build || getenv("LD_PRELOAD"))
        return;
    snprintf(path, sizeof path, "%s/.libs/%s", build, WATCH_FILE);
    setenv("LD_PRELOAD", path, 1);
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    (void)argc;
    preload_watch(argv);
    return test_main("check_groups");
}
