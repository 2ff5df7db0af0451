/* SPDX-License-Identifier: Apache-2.0
 *
 * scan.h: a plugin's file is opened in another process first, so that a plugin which crashes, hangs
 * or ends the process is refused with that reason, and the host survives.
 *
 * The scanner is the command itself (cmd/scan.c): it repeats the steps of the loader, and queries
 * each backend once. The verdict is kept (scan_cache.h) until the file changes. */
#ifndef HOST_PLUGIN_SCAN_H
#define HOST_PLUGIN_SCAN_H

#include "host/base/error.h"

/* From now on files are scanned: by `program`, called as `program scan FILE BEFORE...`,
 * which opens what this process has opened before, then the file, and prints SCAN_SURVIVED on
 * stdout in the end; static. */
void scan_configure(const char *program);

/* How long a scan may take; 10 unless set. */
void scan_set_limit(double seconds);

#define SCAN_SURVIVED "survived"

/* Can this file be opened? ATTN_OK also without a scanner, or if it cannot be started; INTERNAL
 * with the cause. */
attn_status scan_file(const char *file, attn_error *error);

#endif /* HOST_PLUGIN_SCAN_H */
