/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost scan: the process of plugin/scan.c, which starts it: opens a plugin's file like every
 * command, queries each of its backends for a plain problem, and reports success. If the process
 * dies, the warden has reported the reason.
 */
#include <signal.h>
#include <dlfcn.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "attnhost.h"
#include "host/cmd/arguments.h"
#include "host/cmd/commands.h"
#include "host/cmd/exit_codes.h"
#include "host/plugin/scan.h"
#include "host/select/probe.h"

static const struct option_row options[] = {OPTION_END};

static void ask(const attnhost *host)
{
    char why[320];
    for (uint32_t t = 0; t < attnhost_num_types(host); t++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        if (attnhost_type(host, t, &info, NULL) == ATTN_OK &&
            !(info.type->flags & ATTN_BACKEND_COMPOSITE))
            probe_here(host, info.type, why, sizeof why);
    }
}

static int run(struct arguments *arguments)
{
    const struct rlimit none = {0, 0};
    attnhost *host = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &none);
    scan_configure(NULL);                               /* this is the process of its own */
    for (size_t t = 1; t < arguments->num_targets; t++) /* as the process that asks has done */
        dlopen(arguments->targets[t], RTLD_NOW | RTLD_LOCAL);
    if (attnhost_create(NULL, &host, NULL) != ATTN_OK)
        return EXIT_RUN_TIME;
    if (attnhost_load_plugin(host, arguments->targets[0], NULL) == ATTN_OK)
        ask(host);
    attnhost_destroy(host);
    puts(SCAN_SURVIVED);
    return EXIT_GOOD;
}

const struct command command_scan = {
    .name = "scan",
    .usage = "PLUGIN.so [OPENED-BEFORE.so]...",
    .names = "plugin file",
    .target = TARGET_MANY,
    .calls_plugins = true,
    .about = "Opens a plugin and reports to the process that started it whether that succeeded.\n",
    .options = options,
    .ending = "",
    .run = run,
};
