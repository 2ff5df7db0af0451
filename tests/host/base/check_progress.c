/* SPDX-License-Identifier: Apache-2.0
 *
 * check_progress.c: silence where stderr is no terminal; on one, a line that is wiped again.
 */
#define _GNU_SOURCE /* posix_openpt() */
#include "host/base/progress.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/base/clock.h"
#include "tests/tools/test_main.h"

static int saved_stderr, reader;
static char shown[4096];

/* Put `writer` in the place of stderr; what goes there comes out of `from`. */
static void redirect(int writer, int from)
{
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    ck_assert_int_ge(saved_stderr, 0);
    ck_assert_int_eq(dup2(writer, STDERR_FILENO), STDERR_FILENO);
    close(writer);
    reader = from;
    ck_assert_int_eq(fcntl(reader, F_SETFL, O_NONBLOCK), 0);
}

static void restore(void)
{
    fflush(stderr);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    close(reader);
}

/* What was written since the last call. */
static const char *written(void)
{
    size_t length = 0;
    ssize_t got;
    fflush(stderr);
    while ((got = read(reader, shown + length, sizeof shown - 1 - length)) > 0)
        length += (size_t)got;
    shown[length] = '\0';
    return shown;
}

/* A pseudo-terminal as stderr; false where the system has none. */
static int redirect_to_terminal(void)
{
    int controller = posix_openpt(O_RDWR | O_NOCTTY);
    if (controller < 0 || grantpt(controller) != 0 || unlockpt(controller) != 0)
        return 0;
    int terminal = open(ptsname(controller), O_RDWR | O_NOCTTY);
    if (terminal < 0)
        return 0;
    redirect(terminal, controller);
    return 1;
}

/* Let a line be drawn now, however short ago the last one was. */
static void update(struct progress *progress, int64_t done, const char *note)
{
    progress->next_ns = 0;
    progress_update(progress, done, note);
}

START_TEST(silent_in_a_pipe)
{
    int ends[2];
    struct progress progress;
    ck_assert_int_eq(pipe(ends), 0);
    redirect(ends[1], ends[0]);
    progress_begin(&progress, "work", 10);
    for (int i = 0; i <= 10; i++)
        update(&progress, i, "note");
    progress_end(&progress);
    const char *got = written();
    restore();
    ck_assert_str_eq(got, "");
    ck_assert(!progress.shown);
}
END_TEST

START_TEST(a_line_on_a_terminal)
{
    struct progress progress;
    if (!redirect_to_terminal()) {
        puts("# a_line_on_a_terminal: skipped, this system gives no pseudo-terminal");
        return;
    }
    progress_begin(&progress, "work", 8);
    char *lines[5];
    static const int64_t done[] = {0, 3, 8, 9, -1};
    for (int i = 0; i < 5; i++) {
        update(&progress, done[i], i == 1 ? "step 3" : NULL);
        lines[i] = strdup(written());
    }
    progress_end(&progress);
    char *end = strdup(written());
    progress_end(&progress);
    char *again = strdup(written());
    restore();
    static const char *const bars[] = {
        "\r\033[Kwork [........................] 0/8  0.0 s  ",
        "\r\033[Kwork [#########...............] 3/8  0.0 s  step 3",
        "\r\033[Kwork [########################] 8/8  0.0 s  ",
        "\r\033[Kwork [########################] 9/8  0.0 s  ",
        "\r\033[Kwork [........................] -1/8  0.0 s  ",
    };
    for (int i = 0; i < 5; i++) {
        char *seconds = strstr(lines[i], "  0.");
        ck_assert_ptr_nonnull(seconds);
        seconds[4] = '0'; /* tenths: the machine may be slow */
        ck_assert_str_eq(lines[i], bars[i]);
        free(lines[i]);
    }
    ck_assert_str_eq(end, "\r\033[K");
    ck_assert_str_eq(again, "");
    free(end);
    free(again);
}
END_TEST

START_TEST(drawn_ten_times_a_second_at_most)
{
    struct progress progress;
    if (!redirect_to_terminal())
        return;
    int64_t begin = clock_now_ns();
    progress_begin(&progress, "work", 1000);
    for (int i = 0; i < 1000; i++)
        progress_update(&progress, i, NULL);
    int64_t most = (clock_now_ns() - begin) / 100000000 + 1;
    int64_t lines = 0;
    for (const char *at = written(); (at = strchr(at, '\r')); at++)
        lines++;
    progress_end(&progress);
    restore();
    ck_assert_int_ge(lines, 1);
    ck_assert_int_le(lines, most);
}
END_TEST

START_TEST(nothing_to_do)
{
    struct progress progress;
    if (!redirect_to_terminal())
        return;
    progress_begin(&progress, "work", 0);
    progress_update(&progress, 0, NULL);
    const char *got = written();
    restore();
    ck_assert_ptr_nonnull(strstr(got, "work [........................] 0/1"));
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("progress");
    TCase *line = tcase_create("line");
    tcase_add_test(line, silent_in_a_pipe);
    tcase_add_test(line, a_line_on_a_terminal);
    tcase_add_test(line, drawn_ten_times_a_second_at_most);
    tcase_add_test(line, nothing_to_do);
    suite_add_tcase(suite, line);
    return suite;
}

int main(void)
{
    return test_main(suite());
}
