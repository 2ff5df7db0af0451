/* SPDX-License-Identifier: Apache-2.0
 *
 * rules_file.c: the file that the rules are read from.
 */
#include "host/select/rules.h"

#include <stdlib.h>

#include "host/base/data_files.h"
#include "host/config/ini.h"
#include "host/base/configured.h"

/* The bytes of selection.ini, for where it is not installed: a library alone, a program that was
 * built and not installed. */
static const char built_in[] = {
#include "host/select/selection.inc"
};

static attn_status create_from_file(const char *path, struct rules **rules, attn_error *error)
{
    char *text = NULL;
    size_t length = 0;
    attn_status status = config_ini_read_file(path, &text, &length, error);
    if (!status)
        status = rules_create_text(text, length, path, rules, error);
    free(text);
    return status;
}

attn_status rules_create(const struct config *config, struct rules **rules, attn_error *error)
{
    static const char *const places[] = {"../share/attnhost/selection.ini",
                                         ATTNHOST_DATA_DIR "/selection.ini"};
    char path[PATH_MAX];
    if (config && config->attention.rules)
        return create_from_file(config->attention.rules, rules, error);
    if (data_file_find(places, sizeof places / sizeof *places, path))
        return create_from_file(path, rules, error);
    return rules_create_text(built_in, sizeof built_in, "selection.ini (built in)", rules, error);
}
