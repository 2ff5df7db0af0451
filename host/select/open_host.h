/* SPDX-License-Identifier: Apache-2.0
 *
 * open_host.h: from a configuration to a host with its plugins and backends; the first step of
 * every command, and of attnhost_configure_file() and attnhost_configure_text() in attnhost.h.
 */
#ifndef HOST_SELECT_OPEN_HOST_H
#define HOST_SELECT_OPEN_HOST_H

#include <limits.h>
#include <stdio.h>

#include "attnhost.h"
#include "host/config/config.h"

/* A status of the host's own, next to the ABI's: a critical plugin is refused or was not found. The
 * error has the status of the refusal itself, which may be any. */
enum { OPEN_HOST_REFUSED = ATTN_STATUS_COUNT };

/* Load the plugins of [plugins], then those that are installed, or lie in the build folder of the
 * running command. Define the backends. ATTN_OK and *host, the caller's; OPEN_HOST_REFUSED;
 * CONFIG_ERROR; errors of attnhost_create() and of loading. */
attn_status open_host(const struct config *config, attnhost **host, attn_error *error);

/* A line for each plugin file that was refused: "attnhost COMMAND: refused FILE: reason". */
void open_host_print_refused(const attnhost *host, const char *command, FILE *file);

/* The folder of this command's plugins. */
void open_host_plugin_folder(char folder[PATH_MAX]);

/* ---- Parts ----------------------------------------------------------------------------------- */

/* Load the [plugins] section: pins, then paths in their order. CONFIG_ERROR for a path that does
 * not exist or a folder that cannot be searched; refused files stay on record. */
attn_status open_host_load_plugins(attnhost *host, const struct config *config, attn_error *error);

/* Define the [backend.NAME] sections, and the backend of the routes. */
attn_status open_host_define_backends(attnhost *host, const struct config *config,
                                      attn_error *error);

#endif /* HOST_SELECT_OPEN_HOST_H */
