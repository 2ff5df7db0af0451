/* SPDX-License-Identifier: Apache-2.0 */
#include "host/base/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/base/clock.h"

#define BAR_WIDTH  24
#define REDRAW_NS  100000000
#define CLEAR_LINE "\r\033[K"

void progress_begin(struct progress *progress, const char *what, int64_t total)
{
    memset(progress, 0, sizeof *progress);
    progress->what = what;
    progress->total = total > 0 ? total : 1;
    progress->start_ns = clock_now_ns();
    progress->enabled = isatty(STDERR_FILENO) == 1;
}

void progress_update(struct progress *progress, int64_t done, const char *note)
{
    if (!progress->enabled)
        return;
    int64_t now = clock_now_ns();
    if (now < progress->next_ns)
        return;
    progress->next_ns = now + REDRAW_NS;
    int filled = (int)(BAR_WIDTH * done / progress->total);
    char bar[BAR_WIDTH + 1];
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', (size_t)(filled < 0 ? 0 : filled > BAR_WIDTH ? BAR_WIDTH : filled));
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, CLEAR_LINE "%s [%s] %lld/%lld  %.1f s  %s", progress->what, bar,
            (long long)done, (long long)progress->total, (double)(now - progress->start_ns) * 1e-9,
            note ? note : "");
    fflush(stderr);
    progress->shown = true;
}

void progress_end(struct progress *progress)
{
    if (progress->shown)
        fputs(CLEAR_LINE, stderr);
    progress->shown = false;
}
