/* SPDX-License-Identifier: Apache-2.0
 *
 * provenance.h: provenance of a report, for comparisons: this program, the command line, the
 * device, the plugins.
 */
#ifndef HOST_EMBED_PROVENANCE_H
#define HOST_EMBED_PROVENANCE_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "attnhost.h"
#include "host/device/device.h"

/* A plugin that is loaded. Its file is kept open, so that a hash taken when a report is written is
 * of what was loaded, even if another file lies there by then. */
struct provenance_plugin {
    char *file;
    char *name, *version; /* as it says */
    int descriptor;       /* -1 = the file cannot be read */
};

struct provenance {
    char *command;      /* "" = not started by a command line */
    attn_device device; /* type 0 = not known yet */
    struct device_names names;
    uint32_t num_threads; /* of the host */
    struct provenance_plugin *plugins;
    uint32_t num_plugins;
};

/* The commit that this was built from, with "-dirty" if its files had been changed; "unknown" where
 * no git repository was there. */
const char *provenance_commit(void);

/* Note the host's plugins, while their files are what was loaded. `command` (NULL = none) is
 * copied. OUT_OF_HOST_MEMORY. */
attn_status provenance_take(struct provenance *provenance, const attnhost *host,
                            const char *command, attn_error *error);

/* Note the device. */
void provenance_take_device(struct provenance *provenance, const attn_device *device);

/* Release what it holds; a zeroed one is fine. */
void provenance_finish(struct provenance *provenance);

/* "attnhost", "commit", "command" (if there is one) and "plugins" with the SHA-256 of their files,
 * "" of one that cannot be read. False when memory ran out. */
bool provenance_add_json(cJSON *root, const struct provenance *provenance);

/* "device", to which the caller may add; NULL when memory ran out. */
cJSON *provenance_add_device(cJSON *root, const struct provenance *provenance);

#endif /* HOST_EMBED_PROVENANCE_H */
