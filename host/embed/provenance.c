/* SPDX-License-Identifier: Apache-2.0
 *
 * provenance.c: provenance of a report: command, device, files, versions.
 */
#include "host/embed/provenance.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/base/json_add.h"
#include "host/base/text.h"
#include "host/base/threads.h"
#include "host/embed/commit.h" /* made by make */
#include "host/embed/embed.h"
#include "host/plugin/loader.h"

const char *provenance_commit(void)
{
    return ATTNHOST_COMMIT;
}

/* ---- Taking ---------------------------------------------------------------------------------- */

/* False when memory ran out. */
static bool open_file(const char *file, int *descriptor)
{
    attn_status status = loader_check_file(file, descriptor, NULL);
    if (status != ATTN_OK)
        *descriptor = -1;
    return status != ATTN_OUT_OF_HOST_MEMORY;
}

static bool take_plugin(struct provenance *provenance, const struct loader_plugin *plugin)
{
    struct provenance_plugin *taken = &provenance->plugins[provenance->num_plugins++];
    taken->file = strdup(plugin->file);
    taken->name = strdup(plugin->table.name);
    taken->version = strdup(plugin->table.version ? plugin->table.version : "");
    return open_file(plugin->file, &taken->descriptor) && taken->file && taken->name &&
           taken->version;
}

attn_status provenance_take(struct provenance *provenance, const attnhost *host,
                            const char *command, attn_error *error)
{
    const struct registry *registry = &host->registry;
    provenance->num_threads = threads_num_workers(host->threads);
    provenance->command = strdup(command ? command : "");
    provenance->plugins = calloc(registry->num_plugins + 1u, sizeof *provenance->plugins);
    bool good = provenance->command && provenance->plugins;
    for (uint32_t p = 0; good && p < registry->num_plugins; p++)
        if (registry->plugins[p]->status == ATTN_OK)
            good = take_plugin(provenance, registry->plugins[p]);
    return good ? ATTN_OK
                : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a list of %u plugins",
                            registry->num_plugins);
}

void provenance_take_device(struct provenance *provenance, const attn_device *device)
{
    provenance->device = *device;
    device_identify(device, &provenance->names);
}

void provenance_finish(struct provenance *provenance)
{
    for (uint32_t p = 0; p < provenance->num_plugins; p++) {
        free(provenance->plugins[p].file);
        free(provenance->plugins[p].name);
        free(provenance->plugins[p].version);
        if (provenance->plugins[p].descriptor >= 0)
            close(provenance->plugins[p].descriptor);
    }
    free(provenance->plugins);
    free(provenance->command);
    memset(provenance, 0, sizeof *provenance);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool add_plugin(cJSON *list, const struct provenance_plugin *plugin)
{
    uint8_t sha256[32];
    char hex[65] = "";
    if (plugin->descriptor >= 0 && loader_hash(plugin->descriptor, sha256) == 0)
        text_hex(sha256, sizeof sha256, hex);
    cJSON *object = cJSON_CreateObject();
    return json_add_item(list, object) && json_add_text(object, "file", plugin->file) &&
           json_add_text(object, "name", plugin->name) &&
           json_add_text(object, "version", plugin->version) &&
           json_add_text(object, "sha256", hex);
}

bool provenance_add_json(cJSON *root, const struct provenance *provenance)
{
    const char *command = provenance->command;
    bool good = json_add_text(root, "attnhost", attnhost_version()) &&
                json_add_text(root, "commit", provenance_commit()) &&
                (!command || !command[0] || json_add_text(root, "command", command));
    cJSON *plugins = good ? cJSON_AddArrayToObject(root, "plugins") : NULL;
    good = plugins != NULL;
    for (uint32_t p = 0; good && p < provenance->num_plugins; p++)
        good = add_plugin(plugins, &provenance->plugins[p]);
    return good;
}

cJSON *provenance_add_device(cJSON *root, const struct provenance *provenance)
{
    const attn_device *device = &provenance->device;
    cJSON *object = cJSON_AddObjectToObject(root, "device");
    bool good = json_add_text(object, "name", provenance->names.name) &&
                json_add_text(object, "type", attn_device_name(device->type)) &&
                json_add_int(object, "id", device->id) && json_add_uint(object, "sm", device->sm) &&
                json_add_uint(object, "num_sms", device->num_sms) &&
                json_add_text(object, "driver", provenance->names.driver) &&
                json_add_uint(object, "driver_version", device->driver_version) &&
                json_add_uint(object, "cpu_isa", device->cpu_isa) &&
                json_add_uint(object, "memory_bytes", device->memory_bytes) &&
                json_add_uint(object, "l2_bytes", device->l2_bytes) &&
                json_add_uint(object, "threads", provenance->num_threads);
    return good ? object : NULL;
}
