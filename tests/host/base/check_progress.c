/* SPDX-License-Identifier: Apache-2.0
 *
 * check_progress.c: a line every 30 s where stderr is no terminal; on one, a line that fits it and
 * is wiped again.
 */
#define _GNU_SOURCE /* posix_openpt() */
#include "host/base/progress.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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

/* A pseudo-terminal of so many columns as stderr (0: it does not say); false where the system has
 * none. */
static int redirect_to_terminal(unsigned short columns)
{
    int controller = posix_openpt(O_RDWR | O_NOCTTY);
    if (controller < 0 || grantpt(controller) != 0 || unlockpt(controller) != 0)
        return 0;
    int terminal = open(ptsname(controller), O_RDWR | O_NOCTTY);
    const struct winsize size = {.ws_row = 24, .ws_col = columns};
    if (terminal < 0 || ioctl(terminal, TIOCSWINSZ, &size) != 0)
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

/* As if the job had begun so many seconds ago. */
static void set_back(struct progress *progress, int64_t seconds)
{
    progress->start_ns -= seconds * 1000000000;
    progress->next_ns -= seconds * 1000000000;
}

TEST_OF(line, a_line_every_30_s_in_a_pipe)
{
    int ends[2];
    struct progress progress;
    ck_assert_int_eq(pipe(ends), 0);
    redirect(ends[1], ends[0]);
    progress_begin(&progress, "tokens", 10);
    for (int i = 0; i <= 10; i++)
        progress_update(&progress, i, "note");
    char *soon = strdup(written());
    set_back(&progress, 29);
    progress_update(&progress, 1, "note");
    char *later = strdup(written());
    set_back(&progress, 1);
    progress_update(&progress, 1, "decode");
    progress_update(&progress, 2, "decode");
    char *first = strdup(written());
    set_back(&progress, 30);
    progress_update(&progress, 9, NULL);
    progress_end(&progress);
    char *second = strdup(written());
    restore();
    ck_assert_str_eq(soon, "");
    ck_assert_str_eq(later, "");
    ck_assert_str_eq(first, "attnhost: tokens 1/10, 30 s, 270 s left: decode\n");
    ck_assert_str_eq(second, "attnhost: tokens 9/10, 60 s, 7 s left\n");
    free(soon);
    free(later);
    free(first);
    free(second);
}

TEST_OF(line, no_line_is_wider_than_the_terminal)
{
    static const unsigned short widths[] = {0, 1, 2, 20, 40, 79, 80, 200};
    char note[400];
    memset(note, 'n', sizeof note - 1);
    note[sizeof note - 1] = '\0';
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        struct progress progress;
        if (!redirect_to_terminal(widths[w]))
            return;
        size_t most = widths[w] == 0 ? 79 : widths[w] == 1 ? 1 : widths[w] - 1u;
        progress_begin(&progress, "work", 8);
        update(&progress, 4, note);
        char *line = strdup(written());
        restore();
        ck_assert_msg(strlen(line) == strlen("\r\033[K") + most, "%u columns: %s", widths[w], line);
        free(line);
    }
}

TEST_OF(line, what_is_left)
{
    struct progress progress;
    if (!redirect_to_terminal(80))
        return;
    progress_begin(&progress, "work", 8);
    set_back(&progress, 20);
    update(&progress, 2, NULL);
    char *line = strdup(written());
    progress_begin(&progress, "checking", 0);
    update(&progress, 7, "a");
    char *unknown = strdup(written());
    restore();
    ck_assert_str_eq(line, "\r\033[Kwork [######..................] 2/8  20.0 s, 60 s left  ");
    ck_assert_str_eq(unknown, "\r\033[Kchecking  0.0 s  a");
    free(line);
    free(unknown);
}

TEST_OF(line, a_line_on_a_terminal)
{
    struct progress progress;
    if (!redirect_to_terminal(80)) {
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

TEST_OF(line, drawn_ten_times_a_second_at_most)
{
    struct progress progress;
    if (!redirect_to_terminal(80))
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

TESTS("progress");
