/* SPDX-License-Identifier: Apache-2.0
 *
 * check_check.c: the parts of `attnhost check` that need no process: ids, patterns, seeds, what a
 * case says, surroundings, ELF files, waivers, profiles, replay files, the list of results and its
 * writers. tests/command/check_command.sh has the rest.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/plugin/process_state.h"
#include "host/plugin/elf_file.h"
#include "host/check/suite/groups.h"
#include "host/check/suite/profile.h"
#include "host/check/suite/replay.h"
#include "host/check/suite/result.h"
#include "host/check/suite/silence.h"
#include "host/check/trail.h"
#include "host/base/error.h"
#include "tests/tools/test_main.h"

static host_error error;

static void setup(void)
{
    host_error_init(&error);
}

static const struct check fake = {.rule = "FAKE-01", .name = "thing", .sentence = "it <holds>"};

/* ---- Ids, patterns, seeds -------------------------------------------------------------------- */

TEST_OF(parts, ids)
{
    char id[CASE_ID_SIZE], backend[CASE_ID_SIZE];
    const struct check *check;
    int32_t index;
    case_id_write(id, "b", &check_load[0], -1);
    ck_assert_str_eq(id, "b/LOAD-01.exports");
    ck_assert(case_id_parse(id, backend, &check, &index));
    ck_assert_str_eq(backend, "b");
    ck_assert_ptr_eq(check, &check_load[0]);
    ck_assert_int_eq(index, -1);
    case_id_write(id, "back_end", &check_load[0], 17);
    ck_assert(case_id_parse(id, backend, &check, &index));
    ck_assert_str_eq(id, "back_end/LOAD-01.exports/17");
    ck_assert_int_eq(index, 17);
    static const char *const wrong[] = {"",
                                        "b",
                                        "LOAD-01.exports",
                                        "b/LOAD-01.export",
                                        "b/LOAD-01.exportss",
                                        "b/LOAD-01",
                                        "b/LOAD-01.exports/",
                                        "b/LOAD-01.exports/-1",
                                        "b/LOAD-01.exports/x",
                                        "b/LOAD-01.exports/1/2",
                                        "b/LOAD-01.exports/2147483648"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_msg(!case_id_parse(wrong[i], backend, &check, &index), "'%s'", wrong[i]);
}

TEST_OF(parts, patterns)
{
    static const char id[] = "cpu_native/NUM-01.grid/17";
    static const char *const right[] = {"*",           "NUM-*",
                                        "NUM-01.grid", "NUM-01.grid/17",
                                        "cpu_*",       "cpu_native/NUM-01.grid",
                                        "*/17",        "cpu_native/NUM-01.*/1[0-9]",
                                        "*.grid/1?",   "cpu_native/NUM-01.grid/17"};
    static const char *const wrong[] = {"",       "NUM-01", "grid", "NUM-01.grid/1", "cpu_native",
                                        "NUM-2*", "17",     "/17",  "num-*",         "b/NUM-*"};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        ck_assert_msg(case_id_matches(right[i], id), "'%s'", right[i]);
        ck_assert_msg(case_id_may_match(right[i], "cpu_native/NUM-01.grid"), "'%s'", right[i]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_msg(!case_id_matches(wrong[i], id), "'%s'", wrong[i]);
    ck_assert(case_id_matches("b/A-01.x", "b/A-01.x"));
    ck_assert(!case_id_matches("b", "b/A-01.x"));
    ck_assert(!case_id_may_match("LOAD-*", "cpu_native/NUM-01.grid"));
    ck_assert(!case_id_may_match("other/*", "cpu_native/NUM-01.grid"));
}

/* The numbers are the same on every machine: `--seed` means something. */
TEST_OF(parts, seeds)
{
    ck_assert_uint_eq(case_seed(0, &check_load[0], -1), UINT64_C(0x426176910e570878));
    ck_assert_uint_eq(case_seed(0, &check_load[0], 0), UINT64_C(0x426176910e570878));
    ck_assert_uint_ne(case_seed(1, &check_load[0], 0), case_seed(0, &check_load[0], 0));
    ck_assert_uint_ne(case_seed(0, &check_load[0], 1), case_seed(0, &check_load[0], 0));
    ck_assert_uint_ne(case_seed(0, &check_load[1], 0), case_seed(0, &check_load[0], 0));
}

TEST_OF(parts, codes)
{
    for (int code = 0; code < CHECK_CODES; code++)
        ck_assert_int_eq(check_code_of(check_code_name((enum check_code)code)), code);
    ck_assert_int_eq(check_code_of("pass"), CHECK_CODES);
    ck_assert(check_code_fails(CHECK_FAIL) && check_code_fails(CHECK_CRASH));
    ck_assert(check_code_fails(CHECK_TIMEOUT) && check_code_fails(CHECK_DEVICE_LOST));
    ck_assert(!check_code_fails(CHECK_PASS) && !check_code_fails(CHECK_SKIP));
    ck_assert(!check_code_fails(CHECK_WARN) && !check_code_fails(CHECK_WAIVED));
}

/* Reports print a sentence without the ones before it. */
static bool stands_alone(const char *sentence)
{
    static const char *const links[] = {"so ", "nor ", "and ", "the same for ", "the same three "};
    bool alone = sentence[0] != '\0';
    for (size_t l = 0; l < sizeof links / sizeof links[0]; l++)
        alone &= strncmp(sentence, links[l], strlen(links[l])) != 0;
    return alone;
}

/* What is shipped has ids that patterns can mean, and rules that are written down. */
TEST_OF(parts, tables)
{
    static char abi[1 << 17];
    char path[4096], row[64];
    snprintf(path, sizeof path, "%s/docs/ABI.md", getenv("ATTNHOST_TEST_SRCDIR"));
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    abi[fread(abi, 1, sizeof abi - 1, file)] = '\0';
    fclose(file);
    for (const struct check *const *group = check_groups(); *group; group++)
        for (const struct check *check = *group; check->rule; check++) {
            snprintf(row, sizeof row, "| %s |", check->rule);
            ck_assert_msg(strstr(abi, row) != NULL, "%s.%s: no such rule", check->rule,
                          check->name);
            ck_assert_msg(
                check->name[strspn(check->name, "abcdefghijklmnopqrstuvwxyz0123456789_")] == '\0',
                "%s.%s: accepted [a-z0-9_]+", check->rule, check->name);
            ck_assert(check->run != NULL);
            ck_assert_msg(stands_alone(check->sentence), "%s.%s: '%s' needs the one before it",
                          check->rule, check->name, check->sentence);
            for (const struct check *other = *group; other < check; other++)
                ck_assert_msg(strcmp(other->rule, check->rule) != 0 ||
                                  strcmp(other->name, check->name) != 0,
                              "%s.%s is there twice", check->rule, check->name);
        }
    for (int core = 0; core < CORE_WAIVER; core++) {
        snprintf(row, sizeof row, "| %s |", check_core[core].rule);
        ck_assert_msg(strstr(abi, row) != NULL, "%s: no such rule", check_core[core].rule);
    }
}

/* --fail-fast leaves no group out. */
TEST_OF(parts, orders)
{
    size_t count = 0, quick = 0;
    for (const struct check *const *group = check_groups(); *group; group++, count++) {
        size_t times = 0;
        for (const struct check *const *other = check_groups_quick_first(); *other; other++)
            times += *other == *group;
        ck_assert_msg(times == 1, "the group of %s is there %zu times", (*group)->rule, times);
    }
    while (check_groups_quick_first()[quick])
        quick++;
    ck_assert_uint_eq(quick, count);
}

/* ---- What a case says ------------------------------------------------------------------------ */

TEST_OF(parts, first_word_stays)
{
    struct check_trail trail = {.text = ""};
    struct check_run run = {.trail = &trail};
    check_note(&run, "step %d", 3);
    ck_assert_str_eq(trail.text, "step 3");
    ck_assert_uint_eq(atomic_load(&trail.count), 1);
    check_warn(&run, "slow");
    check_fail(&run, "wrong");
    ck_assert_int_eq(run.code, CHECK_WARN);
    ck_assert_str_eq(run.text, "slow");
    struct check_run other = {.trail = NULL};
    check_note(&other, "to nobody");
    check_fail(&other, "%01200d\xc3\xa4", 0);
    check_skip(&other, "later");
    ck_assert_int_eq(other.code, CHECK_FAIL);
    ck_assert_uint_eq(strlen(other.text), sizeof other.text - 1);
    struct check_run cut = {.trail = NULL};
    check_fail(&cut, "%01022d\xc3\xa4", 0);
    ck_assert_uint_eq(strlen(cut.text), 1022); /* not half a character */
}

/* ---- Surroundings ---------------------------------------------------------------------------- */

static void nothing(int number)
{
    (void)number;
}

TEST_OF(parts, surroundings)
{
    char changes[PROCESS_STATE_KINDS][256];
    struct process_state before, after;
    process_state_take(&before);
    process_state_restore(&before, changes);
    for (int kind = 0; kind < PROCESS_STATE_KINDS; kind++)
        ck_assert_str_eq(changes[kind], "");
    fesetround(FE_DOWNWARD);
    ck_assert_int_eq(chdir("/"), 0);
    umask(0123);
    signal(SIGUSR2, nothing);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    uselocale(own);
    process_state_restore(&before, changes);
    ck_assert_ptr_nonnull(strstr(changes[PROCESS_STATE_FPU], "downward"));
    ck_assert_ptr_nonnull(strstr(changes[PROCESS_STATE_LOCALE], "uselocale"));
    ck_assert_ptr_nonnull(strstr(changes[PROCESS_STATE_SIGNALS], "handler"));
    ck_assert_ptr_nonnull(strstr(changes[PROCESS_STATE_CWD], "umask is 123"));
    freelocale(own);
    process_state_take(&after);
    process_state_restore(&before, changes);
    for (int kind = 0; kind < PROCESS_STATE_KINDS; kind++)
        ck_assert_str_eq(changes[kind], "");
    ck_assert_int_eq(fegetround(), FE_TONEAREST);
    ck_assert_str_eq(after.directory, before.directory);
}

/* A handler that signal() set aside and brought back is the handler that it was, and has its flags
 * again; one that was set anew with other flags is another. */
TEST_OF(parts, handler_set_aside)
{
    char changes[PROCESS_STATE_KINDS][256];
    struct process_state before;
    struct sigaction own = {.sa_handler = nothing, .sa_flags = SA_NODEFER | SA_ONSTACK}, now;
    sigaction(SIGXFSZ, &own, NULL);
    process_state_take(&before);
    signal(SIGXFSZ, signal(SIGXFSZ, SIG_IGN));
    process_state_restore(&before, changes);
    ck_assert_str_eq(changes[PROCESS_STATE_SIGNALS], "");
    sigaction(SIGXFSZ, NULL, &now);
    ck_assert_int_eq(now.sa_flags & (SA_NODEFER | SA_ONSTACK | SA_RESTART),
                     SA_NODEFER | SA_ONSTACK);

    own.sa_flags = SA_NODEFER;
    sigaction(SIGXFSZ, &own, NULL);
    process_state_restore(&before, changes);
    ck_assert_ptr_nonnull(strstr(changes[PROCESS_STATE_SIGNALS], "signal 25 has another handler"));
    signal(SIGXFSZ, SIG_DFL);
}

/* ---- Silence --------------------------------------------------------------------------------- */

/* A process that others keep from the processor is charged for what it ran; one that waits, for all
 * of it. Threads together are charged no more than the clock. */
TEST_OF(parts, silence_of_a_child)
{
    ck_assert_int_eq(silence_own(1000, 0, true), 0);
    ck_assert_int_eq(silence_own(1000, 50, true), 50);
    ck_assert_int_eq(silence_own(1000, 50, false), 50);
    ck_assert_int_eq(silence_own(1000, 0, false), 1000);
    ck_assert_int_eq(silence_own(1000, 4000, true), 1000);

    struct silence silence = {.began = 0, .seen = 2000, .own = 40};
    ck_assert_int_eq(silence_left(&silence, 300), 260);
    silence.seen = SILENCE_WALL * 300 - 7;
    ck_assert_int_eq(silence_left(&silence, 300), 7);
    silence.own = 300;
    ck_assert_int_le(silence_left(&silence, 300), 0);
}

TEST_OF(parts, silence_of_one_that_waits)
{
    struct silence silence;
    pid_t child = fork();
    if (child == 0) {
        for (;;)
            pause();
    }
    ck_assert_int_gt(child, 0);
    silence_begin(&silence, child);
    do {
        usleep(20000);
        silence_update(&silence, child);
    } while (silence.own == 0); /* it may be kept from its pause() for a while */
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert_int_le(silence.own, silence.seen - silence.began);
}

#ifdef __x86_64__
/* Denormals as zero is no matter of rounding. */
TEST_OF(parts, denormals)
{
    char changes[PROCESS_STATE_KINDS][256];
    struct process_state before;
    process_state_take(&before);
    uint32_t control;
    __asm__ volatile("stmxcsr %0" : "=m"(control));
    control |= 1u << 6;
    __asm__ volatile("ldmxcsr %0" : : "m"(control));
    process_state_restore(&before, changes);
    ck_assert_ptr_nonnull(strstr(changes[PROCESS_STATE_FPU], "control word"));
    process_state_restore(&before, changes);
    ck_assert_str_eq(changes[PROCESS_STATE_FPU], "");
}
#endif

/* ---- ELF ------------------------------------------------------------------------------------- */

static void fixture(const char *name, char path[4096])
{
    snprintf(path, 4096, "%s/%s", getenv("ATTNHOST_TEST_FIXTURE_DIR"), name);
}

/* Defined symbols that are visible. */
static size_t count_exports(const struct elf_file *elf, const char *name)
{
    size_t count = 0;
    for (size_t s = 0; s < elf->num_symbols; s++)
        count += elf->symbols[s].st_shndx != SHN_UNDEF &&
                 strcmp(elf_string(elf, elf->symbols[s].st_name), name) == 0;
    return count;
}

/* The sanitizers' libraries define most of what fixtures call, and then these need no libc; pause()
 * is libc's own everywhere. */
TEST_OF(parts, elf_needs)
{
    char path[4096];
    struct elf_file elf;
    bool needs_libc = false;
    const char *name;
    fixture("bad_create_hangs.so", path);
    ck_assert_msg(elf_open(path, &elf, &error.base) == ATTN_OK, "%s", host_error_text(&error));
    for (size_t n = 0; (name = elf_needed(&elf, n)); n++)
        needs_libc |= strncmp(name, "libc.so", 7) == 0;
    ck_assert(needs_libc);
    elf_close(&elf);
}

TEST_OF(parts, elf_files)
{
    char path[4096];
    struct elf_file elf;
    fixture("bad_exports.so", path);
    ck_assert_msg(elf_open(path, &elf, &error.base) == ATTN_OK, "%s", host_error_text(&error));
    ck_assert_uint_eq(count_exports(&elf, "attn_plugin_entry"), 1);
    ck_assert_uint_eq(count_exports(&elf, "bad_exports_this"), 1);
    ck_assert_uint_eq(count_exports(&elf, "fixture_query"), 0);
    ck_assert_ptr_nonnull(elf_segment(&elf, PT_GNU_STACK));
    ck_assert_str_eq(elf_string(&elf, UINT64_MAX), "");
    elf_close(&elf);
    fixture("bad_nothing.so", path);
    ck_assert_int_eq(elf_open(path, &elf, &error.base), ATTN_OK);
    ck_assert_uint_eq(count_exports(&elf, "bad_exports_this"), 0);
    elf_close(&elf);
    ck_assert_int_eq(elf_open("/dev/null", &elf, &error.base), ATTN_INVALID_ARGUMENT);
}

/* ---- Files ----------------------------------------------------------------------------------- */

/* A file with this text; the caller unlinks it. */
static void write_file(char path[64], const char *text)
{
    snprintf(path, 64, "/tmp/check_check-XXXXXX");
    int descriptor = mkstemp(path);
    ck_assert_int_ge(descriptor, 0);
    ck_assert_int_eq(write(descriptor, text, strlen(text)), (ssize_t)strlen(text));
    close(descriptor);
}

TEST_OF(parts, waivers_file)
{
    char path[64];
    struct waivers waivers;
    write_file(path, "# comment\n\n  NUM-* plug 0.* 2026-03-31   issue  #12  \n"
                     "LOAD-01.* plug * 2026-04-01 later");
    ck_assert_int_eq(waivers_load(path, "2026-03-31", &waivers, &error.base), ATTN_OK);
    ck_assert_uint_eq(waivers.count, 2);
    ck_assert_int_eq(waivers.items[0].line, 3);
    ck_assert_str_eq(waivers.items[0].reason, "issue  #12");
    ck_assert(!waiver_has_expired(&waivers, &waivers.items[0]));
    ck_assert_ptr_null(waivers_find(&waivers, "b/NUM-01.x/1", "other", "0.1"));
    ck_assert_ptr_null(waivers_find(&waivers, "b/NUM-01.x/1", "plug", "1.0"));
    ck_assert_ptr_null(waivers_find(&waivers, "b/CAPS-01.x", "plug", "0.1"));
    ck_assert(!waivers.items[0].used);
    ck_assert_ptr_eq(waivers_find(&waivers, "b/NUM-01.x/1", "plug", "0.1"), &waivers.items[0]);
    ck_assert(waivers.items[0].used && !waivers.items[1].used);
    waivers_finish(&waivers);
    ck_assert_int_eq(waivers_load(path, "2026-04-01", &waivers, &error.base), ATTN_OK);
    ck_assert(waiver_has_expired(&waivers, &waivers.items[0]));
    ck_assert_ptr_null(waivers_find(&waivers, "b/NUM-01.x/1", "plug", "0.1"));
    waivers_finish(&waivers);
    unlink(path);
    ck_assert_int_eq(waivers_load(path, "2026-04-01", &waivers, &error.base), ATTN_CONFIG_ERROR);
}

TEST_OF(parts, malformed_waivers)
{
    static const char *const lines[] = {
        "NUM-* plug 0.* 2026-03-31", "NUM-*", "NUM-* plug 0.* 2026-13-31 why",
        "NUM-* plug 0.* 31.3.2026 why", "NUM-* plug 0.* 2026-03-311 why"};
    char path[64], text[128], place[80];
    struct waivers waivers;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        snprintf(text, sizeof text, "\n%s\n", lines[i]);
        write_file(path, text);
        snprintf(place, sizeof place, "%s:2: ", path);
        ck_assert_msg(waivers_load(path, "2026-01-01", &waivers, &error.base) == ATTN_CONFIG_ERROR,
                      "'%s'", lines[i]);
        ck_assert_msg(strstr(host_error_text(&error), place) == host_error_text(&error), "%s",
                      host_error_text(&error));
        unlink(path);
    }
}

/* Of all that is read line by line: nothing after a NUL is lost, and no endless file is kept. */
TEST_OF(parts, files_that_are_no_text)
{
    char path[64], place[96];
    struct waivers waivers;
    write_file(path, "# a\n# b\n");
    FILE *file = fopen(path, "a");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite("\0 not a waiver\n", 1, 15, file), 15);
    fclose(file);
    ck_assert_int_eq(waivers_load(path, "2026-01-01", &waivers, &error.base), ATTN_CONFIG_ERROR);
    snprintf(place, sizeof place, "%s:3: got a NUL byte", path);
    ck_assert_msg(strstr(host_error_text(&error), place) == host_error_text(&error), "%s",
                  host_error_text(&error));
    unlink(path);
    ck_assert_int_eq(waivers_load("/dev/zero", "2026-01-01", &waivers, &error.base),
                     ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "/dev/zero: File too large"));
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "waivers of up to 1048576 bytes"));
}

TEST_OF(parts, replay_file)
{
    char path[64];
    const char *with[] = {"/dev/null"}, *options[] = {"a=b = c"};
    struct check_params params = {
        .plugin = "/dev/zero", .seed = UINT64_MAX, .with = {with, 1}, .options = {options, 1}};
    struct check_params read = {.replay = path, .device = "cpu"};
    struct replay replay;
    write_file(path, "");
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    replay_write(&params, "b/LOAD-01.exports/7", 5, 9, "cuda:1", file);
    fclose(file);
    ck_assert_msg(replay_load(&read, &replay, &error.base) == ATTN_OK, "%s",
                  host_error_text(&error));
    ck_assert_str_eq(read.plugin, "/dev/zero");
    ck_assert_str_eq(read.device, "cpu"); /* the command line's */
    ck_assert_uint_eq(read.seed, UINT64_MAX);
    ck_assert_str_eq(read.with.items[0], "/dev/null");
    ck_assert_str_eq(read.options.items[0], "a=b = c");
    ck_assert_str_eq(replay.backend, "b");
    ck_assert_ptr_eq(replay.check, &check_load[0]);
    ck_assert_int_eq(replay.index, 7);
    ck_assert_uint_eq(replay.seed, 5);
    ck_assert_uint_eq(replay.without, 9);
    params_finish(&read);
    replay_finish(&replay);
    unlink(path);
}

TEST_OF(parts, malformed_replay)
{
    static const char *const texts[] = {"",
                                        "attnhost-replay = 1\nplugin = x\n",
                                        "plugin = x\ncase = b/LOAD-01.exports\n",
                                        "attnhost-replay = 2\n",
                                        "nonsense\n",
                                        "attnhost-replay = 1\nplugin = x\ncase = b/NO-01.such\n",
                                        "attnhost-replay = 1\nwithout = 4294967296\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char path[64];
        struct check_params params = {.replay = path};
        struct replay replay;
        write_file(path, texts[i]);
        ck_assert_msg(replay_load(&params, &replay, &error.base) == ATTN_CONFIG_ERROR, "'%s'",
                      texts[i]);
        ck_assert_ptr_nonnull(strstr(host_error_text(&error), path));
        params_finish(&params);
        unlink(path);
    }
}

/* ---- Results --------------------------------------------------------------------------------- */

static struct check_params params;
static struct check_report report;

static void add(const char *backend, int32_t index, enum check_code code, const char *text)
{
    struct check_result result = {.check = &fake,
                                  .backend = (char *)(size_t)backend,
                                  .code = code,
                                  .text = (char *)(size_t)text,
                                  .trail = (char *)(size_t)(code == CHECK_CRASH ? "at <5>" : NULL),
                                  .output = (char *)(size_t)(code == CHECK_CRASH ? "a\nb" : NULL),
                                  .seed = UINT64_MAX - (uint64_t)index,
                                  .ns = 1500000};
    case_id_write(result.id, backend, &fake, index);
    check_report_add(&report, &result);
}

static void setup_report(void)
{
    host_error_init(&error);
    params = (struct check_params){.plugin = "/no/such/plug.in.so", .seed = 3};
    check_report_init(&report, &params);
}

static void teardown_report(void)
{
    ck_assert(!report.failed);
    check_report_finish(&report);
}

/* One of each code, for two backends. */
static void fill(void)
{
    ck_assert_ptr_nonnull(check_report_add_backend(&report, "b"));
    add("b", 0, CHECK_PASS, NULL);
    add("b", 1, CHECK_FAIL, "got \"<1>\" & more\naccepted 2");
    add("b", 2, CHECK_CRASH, "signal 11");
    add("b", 3, CHECK_TIMEOUT, "30 s");
    add("b", 4, CHECK_SKIP, "declared # so");
    add("other", 5, CHECK_WARN, "slow | late");
    add("other", 6, CHECK_DEVICE_LOST, "gone");
    add("other", 7, CHECK_FAIL, "\xff\x1b\xc3\xa4\xed\xa0\x80\xf0\x9f\x98\x80");
}

static char *written(bool (*write)(const struct check_report *report, FILE *file))
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(file);
    ck_assert(write(&report, file));
    fclose(file);
    return text;
}

static bool write_tap(const struct check_report *of, FILE *file)
{
    for (size_t r = 0; r < of->num_results; r++)
        write_tap_result(&of->results[r], r + 1, file);
    write_tap_end(of, file);
    return true;
}

TEST_OF(reports, results)
{
    ck_assert_str_eq(report.name, "plug");
    ck_assert_str_eq(report.sha256, "");
    ck_assert_int_eq(check_report_outcome(&report), CHECK_NOTHING);
    add("b", 0, CHECK_SKIP, "no");
    ck_assert_int_eq(check_report_outcome(&report), CHECK_NOTHING);
    add("b", 1, CHECK_PASS, "");
    add("b", 2, CHECK_WARN, "slow");
    ck_assert_int_eq(check_report_outcome(&report), CHECK_GOOD);
    fill();
    ck_assert_int_eq(check_report_outcome(&report), CHECK_FAILURES);
    ck_assert_uint_eq(report.counts[CHECK_FAIL], 2);
    ck_assert_str_eq(report.results[report.num_results - 1].text,
                     "??\xc3\xa4???\xf0\x9f\x98\x80"); /* a surrogate is no character */
    check_report_set(&report, &report.refused, "bad file");
    ck_assert_int_eq(check_report_outcome(&report), CHECK_REFUSED);
}

TEST_OF(reports, file_hash)
{
    char path[64];
    write_file(path, "abc");
    struct check_params other = {.plugin = path};
    struct check_report hashed;
    check_report_init(&hashed, &other);
    /* FIPS 180-2, appendix B.1. */
    ck_assert_str_eq(hashed.sha256,
                     "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_report_finish(&hashed);
    unlink(path);
}

TEST_OF(reports, tap)
{
    fill();
    char *text = written(write_tap);
    ck_assert_str_eq(text, "TAP version 13\n"
                           "ok 1 - b/FAKE-01.thing/0\n"
                           "not ok 2 - b/FAKE-01.thing/1\n"
                           "# FAIL: got \"<1>\" & more\n"
                           "# FAIL: accepted 2\n"
                           "# rule FAKE-01: it <holds>\n"
                           "not ok 3 - b/FAKE-01.thing/2\n"
                           "# CRASH: signal 11\n"
                           "# where: at <5>\n"
                           "# printed: a\n"
                           "# printed: b\n"
                           "# rule FAKE-01: it <holds>\n"
                           "not ok 4 - b/FAKE-01.thing/3\n"
                           "# TIMEOUT: 30 s\n"
                           "# rule FAKE-01: it <holds>\n"
                           "ok 5 - b/FAKE-01.thing/4 # SKIP declared # so\n"
                           "ok 6 - other/FAKE-01.thing/5\n"
                           "# WARN: slow | late\n"
                           "# rule FAKE-01: it <holds>\n"
                           "not ok 7 - other/FAKE-01.thing/6\n"
                           "# DEVICE_LOST: gone\n"
                           "# rule FAKE-01: it <holds>\n"
                           "not ok 8 - other/FAKE-01.thing/7\n"
                           "# FAIL: ??\xc3\xa4???\xf0\x9f\x98\x80\n"
                           "# rule FAKE-01: it <holds>\n"
                           "1..8\n");
    free(text);
}

TEST_OF(reports, json)
{
    fill();
    char *text = written(write_json);
    cJSON *root = cJSON_Parse(text);
    ck_assert_ptr_nonnull(root);
    const cJSON *list = cJSON_GetObjectItem(root, "results");
    ck_assert_int_eq(cJSON_GetArraySize(list), 8);
    for (int r = 0; r < 8; r++) {
        const cJSON *object = cJSON_GetArrayItem(list, r);
        const struct check_result *result = &report.results[r];
        ck_assert_str_eq(cJSON_GetObjectItem(object, "id")->valuestring, result->id);
        ck_assert_str_eq(cJSON_GetObjectItem(object, "code")->valuestring,
                         check_code_name(result->code));
        ck_assert_str_eq(cJSON_GetObjectItem(object, "reason")->valuestring, result->text);
        ck_assert_str_eq(cJSON_GetObjectItem(object, "sentence")->valuestring, "it <holds>");
    }
    ck_assert_str_eq(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 2), "trail")->valuestring,
                     "at <5>");
    const cJSON *counts = cJSON_GetObjectItem(root, "counts");
    ck_assert_int_eq((int)cJSON_GetObjectItem(counts, "FAIL")->valuedouble, 2);
    ck_assert_ptr_nonnull(strstr(text, "18446744073709551613")); /* no digit of a seed is lost */
    cJSON_Delete(root);
    free(text);
}

TEST_OF(reports, junit)
{
    fill();
    char *text = written(write_junit);
    ck_assert_ptr_nonnull(strstr(text, "name=\"b\""));
    ck_assert_ptr_nonnull(
        strstr(text, "tests=\"5\" failures=\"1\" errors=\"2\" skipped=\"1\" time=\"0.007500\""));
    ck_assert_ptr_nonnull(
        strstr(text, "tests=\"3\" failures=\"1\" errors=\"1\" skipped=\"0\" time=\"0.004500\""));
    ck_assert_ptr_nonnull(strstr(text, "<failure type=\"FAIL\" message=\"got &quot;&lt;1&gt;&quot; "
                                       "&amp; more&#10;accepted 2\">it &lt;holds&gt;</failure>"));
    ck_assert_ptr_nonnull(strstr(text, "<error type=\"CRASH\" message=\"signal 11\">it "
                                       "&lt;holds&gt;&#10;where: at &lt;5&gt;&#10;printed: a&#10;b"
                                       "</error>"));
    ck_assert_ptr_nonnull(strstr(text, "<skipped message=\"declared # so\"/>"));
    ck_assert_ptr_nonnull(strstr(text, "<system-out>other/FAKE-01.thing/5: slow | late&#10;"));
    free(text);
}

TEST_OF(reports, markdown)
{
    fill();
    report.backends[0].matrix =
        cJSON_Parse("[{\"matter\":\"head_dim\",\"values\":[\"64\",\"128\"]},"
                    "{\"matter\":\"graphs\",\"values\":[]}]");
    ck_assert_ptr_nonnull(check_report_add_backend(&report, "other"));
    char *text = written(write_markdown);
    ck_assert_ptr_nonnull(strstr(text, "| FAIL | 2 |\n"));
    ck_assert_ptr_nonnull(strstr(text, "| `other/FAKE-01.thing/5` | WARN | slow \\| late |\n"));
    ck_assert_ptr_nonnull(
        strstr(text, "| `b/FAKE-01.thing` | it <holds> | 1 | 1 | 3 | declared # so |\n"));
    ck_assert_ptr_nonnull(strstr(text, "| head_dim | 64, 128 | - |\n"));
    ck_assert_ptr_nonnull(strstr(text, "| graphs | none | - |\n"));
    free(text);
}

TEST_OF(reports, profiles)
{
    char path[64];
    struct profile profile;
    ck_assert_ptr_nonnull(check_report_add_backend(&report, "b"));
    ck_assert_ptr_nonnull(check_report_add_backend(&report, "other"));
    add("b", 0, CHECK_PASS, "");
    add("b", 1, CHECK_SKIP, "no");
    add("other", 0, CHECK_PASS, "");
    write_file(path, "FAKE-01.*/0\n# all\nFAKE-01.thing or-skip # comment\n");
    ck_assert_int_eq(profile_load(path, &profile, &error.base), ATTN_OK);
    profile_judge(&profile, &report);
    ck_assert_uint_eq(report.num_results, 5);
    ck_assert_str_eq(report.results[3].id, "b/PROFILE.met");
    ck_assert_int_eq(report.results[3].code, CHECK_PASS);
    ck_assert_int_eq(report.results[4].code, CHECK_PASS);
    profile.lines[1].some = true;
    profile_judge(&profile, &report);
    ck_assert_int_eq(report.results[5].code, CHECK_PASS);
    profile.lines[0].pattern = "FAKE-01.*/1";
    profile.lines[0].some = profile.lines[0].or_skip = true;
    profile_judge(&profile, &report);
    ck_assert_int_eq(report.results[7].code, CHECK_FAIL);
    ck_assert_ptr_nonnull(strstr(report.results[7].text, ":1: every case of 'FAKE-01.*/1'"));
    ck_assert_ptr_nonnull(strstr(report.results[8].text, ":1: no case of 'FAKE-01.*/1' was run"));
    profile.lines[0].pattern = "FAKE-01.*/0";
    profile.lines[1].or_skip = false;
    profile_judge(&profile, &report);
    ck_assert_int_eq(report.results[9].code, CHECK_FAIL);
    ck_assert_ptr_nonnull(
        strstr(report.results[9].text, ":3: b/FAKE-01.thing/1 is SKIP, accepted: PASS"));
    ck_assert_int_eq(report.results[10].code, CHECK_PASS);
    profile_finish(&profile);
    unlink(path);
    write_file(path, "FAKE-01.* or-skip what\n");
    ck_assert_int_eq(profile_load(path, &profile, &error.base), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), ":1: 'what'"));
    unlink(path);
    write_file(path, "# nothing\n");
    ck_assert_int_eq(profile_load(path, &profile, &error.base), ATTN_CONFIG_ERROR);
    unlink(path);
}

/* By its name a profile is what its file says: another file, or the text of it in the program. */
static void compare_with_file(const char *name)
{
    char path[4096];
    struct profile profile, file;
    snprintf(path, sizeof path, "%s/host/check/profiles/%s.txt", getenv("ATTNHOST_TEST_SRCDIR"),
             name);
    ck_assert_msg(profile_load(path, &file, &error.base) == ATTN_OK, "%s", host_error_text(&error));
    ck_assert_msg(profile_load(name, &profile, &error.base) == ATTN_OK, "%s",
                  host_error_text(&error));
    if (strstr(profile.file, "(built in)")) { /* what is installed may be of another version */
        ck_assert_uint_eq(profile.count, file.count);
        for (size_t l = 0; l < file.count; l++) {
            ck_assert_str_eq(profile.lines[l].pattern, file.lines[l].pattern);
            ck_assert_int_eq(profile.lines[l].line, file.lines[l].line);
            ck_assert_int_eq(profile.lines[l].or_skip, file.lines[l].or_skip);
            ck_assert_int_eq(profile.lines[l].some, file.lines[l].some);
        }
    }
    profile_finish(&profile);
    profile_finish(&file);
}

TEST_OF(parts, shipped_profiles)
{
    static const char *const names[] = {"core",   "paged-kv", "mla",       "mla-absorbed",
                                        "sparse", "linear",   "quant-fp8", "capture"};
    struct profile profile;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        compare_with_file(names[n]);
    ck_assert_str_eq(check_groups_minimum(), "core");
    ck_assert_int_eq(profile_load("cores", &profile, &error.base), ATTN_CONFIG_ERROR);
}

/* What has no device here is not judged by the minimum, but by a profile that is asked for. */
TEST_OF(reports, missing_devices)
{
    char path[64];
    struct profile profile;
    ck_assert_ptr_nonnull(check_report_add_backend(&report, "b"));
    check_report_set(&report, &report.backends[0].missing, "no driver");
    add("b", 0, CHECK_SKIP, "no device");
    write_file(path, "FAKE-01.* some\n");
    ck_assert_int_eq(profile_load(path, &profile, &error.base), ATTN_OK);
    profile_judge(&profile, &report);
    ck_assert_int_eq(report.results[1].code, CHECK_FAIL);
    ck_assert_str_eq(report.profile, path);
    profile.is_minimum = true;
    profile_judge(&profile, &report);
    ck_assert_int_eq(report.results[2].code, CHECK_SKIP);
    ck_assert_str_eq(report.results[2].text, "its requirement is missing here: no driver");
    check_report_set(&report, &report.backends[0].missing, "");
    profile_judge(&profile, &report);
    ck_assert_int_eq(report.results[3].code, CHECK_FAIL);
    profile_finish(&profile);
    unlink(path);
}

/* A rule that is no more than a SHOULD is in no line of the minimum: a warning is no failure. */
TEST_OF(parts, minimum_is_of_musts)
{
    char path[4096], line[4096], id[64];
    struct profile core;
    int rules = 0;
    snprintf(path, sizeof path, "%s/docs/ABI.md", getenv("ATTNHOST_TEST_SRCDIR"));
    ck_assert_int_eq(profile_load("core", &core, &error.base), ATTN_OK);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        char rule[16], word[16];
        if (sscanf(line, "| %15s | %15s |", rule, word) != 2 || strcmp(word, "SHOULD") != 0)
            continue;
        snprintf(id, sizeof id, "b/%s.thing", rule);
        for (size_t l = 0; l < core.count; l++)
            ck_assert_msg(!case_id_matches(core.lines[l].pattern, id), "%s is in line %d", rule,
                          core.lines[l].line);
        rules++;
    }
    ck_assert_int_gt(rules, 2);
    fclose(file);
    profile_finish(&core);
}

GROUP(parts, .set_up = setup);
GROUP(reports, .set_up = setup_report, .tear_down = teardown_report);
TESTS("check");
