/* SPDX-License-Identifier: Apache-2.0
 *
 * open_host.h: what every command does first: a host with the plugins and backends of a
 * configuration.
 */
#ifndef HOST_SELECT_OPEN_HOST_H
#define HOST_SELECT_OPEN_HOST_H

#include <stdio.h>

#include "attnhost.h"
#include "host/config/config.h"

/* The exit code that stands for a failure while loading, selecting or running. */
int exit_code_of(attn_status status);

/* Load the plugins of [plugins], then those that are installed. Define the [backend.NAME] sections.
 * EXIT_GOOD and *host, the caller's; else EXIT_PLUGIN for a critical plugin that is refused,
 * EXIT_USAGE for a configuration error, EXIT_RUN_TIME. */
int open_host(const struct config *config, attnhost **host, attn_error *error);

/* A line for each plugin file that was refused: "attnhost COMMAND: refused FILE: reason". */
void open_host_print_refused(const attnhost *host, const char *command, FILE *file);

#endif /* HOST_SELECT_OPEN_HOST_H */
