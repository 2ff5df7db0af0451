/* SPDX-License-Identifier: Apache-2.0
 *
 * check_check_groups.c: the groups of `attnhost check` that are about the contract. Good backends
 * pass them, and each check is seen to fail on a backend that does one thing wrong, but for CONF-02
 * and CONF-03, which only a defect of the host's parser (check_options.c) could make fail.
 */
#include "host/check/watch.h"
#include "tests/check_subject_fixture.h"
#include "tests/fake_cuda_test.h"
#include "tests/fixtures/cuda_fixture_kernels.h"
#include "tests/fixtures/wrong_entry.h"
#include "tests/wrong_layer.h"

#include <dlfcn.h>

static const struct check *const tables[] = {check_nego, check_life, check_conf,
                                             check_work, check_pure, check_comp,
                                             check_thrd, check_err,  check_perf};
enum { NUM_TABLES = sizeof tables / sizeof tables[0] };

static char plugin_file[4096];

static const struct check *find_check(const char *rule, const char *name)
{
    for (int t = 0; t < NUM_TABLES; t++)
        for (const struct check *check = tables[t]; check->rule; check++)
            if (strcmp(check->rule, rule) == 0 && strcmp(check->name, name) == 0)
                return check;
    ck_abort_msg("there is no check %s.%s", rule, name);
    return NULL;
}

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

static void open_wrong_entry(void)
{
    open_host();
    load_plugin("ATTNHOST_TEST_FIXTURE_DIR", "wrong_entry.so", plugin_file);
    open_subject("wrong_entry_one", plugin_file, ATTN_DEVICE_CPU);
}

/* ---- Good backends --------------------------------------------------------------------------- */

/* Skips that are right for this subject. */
static bool may_skip(const struct check *check)
{
    if (strcmp(check->rule, "PURE-01") == 0)
        return subject.device->type != ATTN_DEVICE_CPU || !is_preloaded();
    return strcmp(check->name, "head_roles") == 0 && strcmp(subject.backend, "example_rows") == 0;
}

static void pass_check(const struct check *check)
{
    if ((check->needs & CHECK_NEEDS_CUDA && subject.device->type != ATTN_DEVICE_CUDA) ||
        (check->needs & CHECK_NEEDS_CHILD && !(subject.type->flags & ATTN_TYPE_COMPOSITE)))
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

START_TEST(test_good_backends)
{
    void (*const openers[])(void) = {open_cpu_native, open_example, open_hybrid, open_cuda_fixture};
    openers[_i / NUM_TABLES]();
    for (const struct check *check = tables[_i % NUM_TABLES]; check->rule; check++)
        pass_check(check);
    close_subject();
}
END_TEST

/* Equal seeds, equal words. */
START_TEST(test_cases_repeat)
{
    const struct check *check = find_check("ERR-01", "codes");
    open_cpu_native();
    subject.type = wrong_layer(subject.type, OTHER_CODE);
    for (int32_t index = 0; index < count_cases(check); index++) {
        struct check_run first = run_case(check, index), again = run_case(check, index);
        ck_assert_int_eq(first.code, again.code);
        ck_assert_str_eq(first.text, again.text);
    }
    close_subject();
}
END_TEST

/* ---- Wrong ones ------------------------------------------------------------------------------ */

struct case_of_wrong {
    enum wrong what;
    const char *rule, *name;
    enum check_code code;
};

#define WRONG_ROW(what, rule, name, code) {what, rule, name, code},
static const struct case_of_wrong wrongs[] = {WRONGS(WRONG_ROW)};
static const struct case_of_wrong wrong_composites[] = {WRONG_COMPOSITES(WRONG_ROW)};
enum {
    NUM_WRONGS = sizeof wrongs / sizeof wrongs[0],
    NUM_WRONG_COMPOSITES = sizeof wrong_composites / sizeof wrong_composites[0]
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

static enum check_code run_alone(const struct check *check)
{
    return strncmp(check->rule, "THRD", 4) == 0 ? run_here(check) : run_apart(check);
}

static void expect(const struct case_of_wrong *wrong)
{
    const struct check *check = find_check(wrong->rule, wrong->name);
    subject.type = wrong_layer(subject.type, wrong->what);
    enum check_code code = run_alone(check);
    /* A sanitizer ends a process that crashes with an exit code of its own. */
    bool same = code == wrong->code || (wrong->code == CHECK_CRASH && code == CHECK_FAIL);
    ck_assert_msg(same, "%s.%s with wrong %d: code %d: accepted %d", wrong->rule, wrong->name,
                  (int)wrong->what, (int)code, (int)wrong->code);
}

START_TEST(test_wrong_layers)
{
    const struct case_of_wrong *wrong = &wrongs[_i];
    bool counts_heap = strcmp(wrong->rule, "LIFE-07") == 0;
    if ((strcmp(wrong->rule, "PURE-01") == 0 && !is_preloaded()) || (counts_heap && IS_SANITIZED)) {
        printf("# %s.%s: skipped: the allocator is a sanitizer's\n", wrong->rule, wrong->name);
        return;
    }
    open_cpu_native();
    expect(wrong);
    subject.type = subject.node->type->type;
    close_subject();
}
END_TEST

START_TEST(test_wrong_composites)
{
    open_hybrid();
    expect(&wrong_composites[_i]);
    subject.type = subject.node->type->type;
    close_subject();
}
END_TEST

static void leave_device(void)
{
    device_leave(subject.device);
}

START_TEST(test_wrong_context)
{
    static const struct case_of_wrong wrong = {LEAVES_CONTEXT, "LIFE-09", "context", CHECK_FAIL};
    open_cuda_fixture();
    wrong_layer_leaves(leave_device);
    subject.type = wrong_layer(subject.type, wrong.what);
    struct check_run run = run_case(find_check(wrong.rule, wrong.name), 0);
    ck_assert_msg(run.code == CHECK_FAIL, "code %d", (int)run.code);
}
END_TEST

/* A plugin that cannot be initialised twice, one that has init alone. */
static attn_status refuse_init(const attn_services *services, attn_error *said)
{
    (void)services;
    return host_fail(said, ATTN_BAD_STATE, "once is enough");
}

static void do_nothing(void)
{
}

START_TEST(test_wrong_pairs)
{
    open_cpu_native();
    struct loader_plugin record = *subject.node->type->plugin;
    struct registry_type type = *subject.node->type;
    const struct registry_type *kept = subject.node->type;
    record.table.init = refuse_init;
    record.table.fini = _i == 0 ? do_nothing : NULL;
    type.plugin = &record;
    subject.node->type = &type;
    if (_i == 1)
        record.table.init = NULL, record.table.fini = do_nothing;
    ck_assert_int_eq(run_apart(find_check("LIFE-02", "pairs")), CHECK_FAIL);
    subject.node->type = kept;
    close_subject();
}
END_TEST

static const struct {
    int what;
    const char *rule, *name;
} wrong_entries[] = {
    {ENTRY_TAKES_ANY_MAJOR, "NEGO-01", "majors"},
    {ENTRY_GATES_ON_MINOR, "NEGO-02", "minors"},
    {ENTRY_ANSWERS_ANEW, "NEGO-03", "again"},
    {ENTRY_KNOWS_PREFIXES, "NEGO-04", "plugin_extensions"},
    {ENTRY_FILLS_TOO_MUCH, "STRUCT-02", "entry"},
    {DESCRIBE_STARTS_A_THREAD, "LIFE-01", "describe"},
    {DESCRIBE_OPENS_A_FILE, "LIFE-01", "describe"},
    {DESCRIBE_IS_SLOW, "LIFE-01", "describe"},
    {DESCRIBE_SETS_OUTPUT, "LIFE-01", "describe_beyond"},
    {DESCRIBE_CHANGES, "THRD-01", "describe"},
};
enum { NUM_WRONG_ENTRIES = sizeof wrong_entries / sizeof wrong_entries[0] };

START_TEST(test_wrong_entries)
{
    open_wrong_entry();
    const struct check *check = find_check(wrong_entries[_i].rule, wrong_entries[_i].name);
    int *does = dlsym(host->registry.plugins[0]->handle, "wrong_entry_does");
    ck_assert_ptr_nonnull(does);
    ck_assert_int_eq(run_alone(check), CHECK_PASS);
    *does = wrong_entries[_i].what;
    enum check_code code = run_alone(check);
    ck_assert_msg(code == CHECK_FAIL || code == CHECK_CRASH, "%s.%s: code %d",
                  wrong_entries[_i].rule, wrong_entries[_i].name, (int)code);
    *does = ENTRY_IS_GOOD;
    close_subject();
}
END_TEST

/* ---- Suite ----------------------------------------------------------------------------------- */

static Suite *suite(void)
{
    Suite *s = suite_create("check_groups");
    TCase *tc = tcase_create("groups");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_good_backends, 0, 4 * NUM_TABLES);
    tcase_add_test(tc, test_cases_repeat);
    tcase_add_loop_test(tc, test_wrong_layers, 0, NUM_WRONGS);
    tcase_add_loop_test(tc, test_wrong_composites, 0, NUM_WRONG_COMPOSITES);
    tcase_add_test(tc, test_wrong_context);
    tcase_add_loop_test(tc, test_wrong_pairs, 0, 2);
    tcase_add_loop_test(tc, test_wrong_entries, 0, NUM_WRONG_ENTRIES);
    suite_add_tcase(s, tc);
    return s;
}

/* Once more with the library that watches forwards, which a sanitizer does not suffer. */
static void preload_watch(char **argv)
{
    char path[4200];
    const char *build = getenv("ATTNHOST_TEST_BUILDDIR");
    if (IS_SANITIZED || is_preloaded() || !build || getenv("LD_PRELOAD"))
        return;
    snprintf(path, sizeof path, "%s/.libs/%s", build, WATCH_FILE);
    setenv("LD_PRELOAD", path, 1);
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    (void)argc;
    preload_watch(argv);
    return test_main(suite());
}
