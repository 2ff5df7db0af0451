/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost check-load: the process of LOAD-04, started by check/contract/load_watch.c: opens a
 * shared object and reports the effects of its constructors.
 */
#include "host/check/contract/load_watch.h"
#include "host/cmd/commands.h"

static const struct option_row options[] = {OPTION_END};

static int run(struct arguments *arguments)
{
    load_watch_open(arguments->target);
}

const struct command command_check_load = {
    .name = "check-load",
    .usage = "OBJECT.so",
    .names = "shared object",
    .about = "Opens a shared object and reports to `attnhost check`, which starts it.\n",
    .options = options,
    .ending = "",
    .run = run,
};
