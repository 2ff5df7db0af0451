/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.c: drawing of the progress line.
 */
#include "host/base/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "host/base/clock.h"

#define BAR_WIDTH  24
#define REDRAW_NS  100000000
#define LINE_NS    30000000000
#define CLEAR_LINE "\r\033[K"

enum { WIDTH = 80, MAX_LINE = 512 };

void progress_begin(struct progress *progress, const char *what, int64_t total)
{
    memset(progress, 0, sizeof *progress);
    progress->what = what;
    progress->total = total > 0 ? total : 0;
    progress->start_ns = clock_now_ns();
    progress->terminal = isatty(STDERR_FILENO) == 1;
    progress->next_ns = progress->terminal ? 0 : progress->start_ns + LINE_NS;
}

/* Columns of the terminal; it may change its size at any time. */
static size_t terminal_width(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : WIDTH;
}

/* "12.3 s, 40 s left": by the pace so far, once there is one. */
static void write_times(const struct progress *progress, int64_t done, int64_t now, char *text,
                        size_t size)
{
    double elapsed = (double)(now - progress->start_ns) * 1e-9;
    int length = snprintf(text, size, "%.*f s", progress->terminal ? 1 : 0, elapsed);
    if (done > 0 && done < progress->total && elapsed >= 1)
        snprintf(text + length, size - (size_t)length, ", %.0f s left",
                 elapsed / (double)done * (double)(progress->total - done));
}

static void draw(const struct progress *progress, int64_t done, const char *times, const char *note)
{
    char line[MAX_LINE], bar[BAR_WIDTH + 1], count[64] = "";
    size_t width = terminal_width();
    int filled = progress->total ? (int)(BAR_WIDTH * done / progress->total) : 0;
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', (size_t)(filled < 0 ? 0 : filled > BAR_WIDTH ? BAR_WIDTH : filled));
    bar[BAR_WIDTH] = '\0';
    if (progress->total)
        snprintf(count, sizeof count, " [%s] %lld/%lld", bar, (long long)done,
                 (long long)progress->total);
    snprintf(line, sizeof line, "%s%s  %s  %s", progress->what, count, times, note);
    /* The last column stays free: a line that fills it wraps on some terminals. */
    fprintf(stderr, CLEAR_LINE "%.*s", (int)(width > 1 ? width - 1 : 1), line);
    fflush(stderr);
}

static void print(const struct progress *progress, int64_t done, const char *times,
                  const char *note)
{
    fprintf(stderr, "attnhost: %s", progress->what);
    if (progress->total)
        fprintf(stderr, " %lld/%lld", (long long)done, (long long)progress->total);
    fprintf(stderr, ", %s%s%s\n", times, *note ? ": " : "", note);
}

void progress_update(struct progress *progress, int64_t done, const char *note)
{
    char times[64];
    int64_t now = clock_now_ns();
    if (!progress->what || now < progress->next_ns)
        return;
    progress->next_ns = now + (progress->terminal ? REDRAW_NS : LINE_NS);
    write_times(progress, done, now, times, sizeof times);
    (progress->terminal ? draw : print)(progress, done, times, note ? note : "");
    progress->shown = progress->terminal;
}

void progress_end(struct progress *progress)
{
    if (progress->shown)
        fputs(CLEAR_LINE, stderr);
    progress->shown = false;
}
