/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_config.c: any bytes as an ini. What is accepted is printed as --print-config prints it and
 * read again, which must give the same print; and it is asked for its [model].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/config/config.h"
#include "host/model/model.h"
#include "tests/fuzz/fuzz.h"

static const char file_name[] = "fuzz.ini";

const char fuzz_name[] = "config";

static struct config *load(const char *text, size_t size, host_error *error)
{
    struct config *config = NULL;
    host_error_init(error);
    attn_status status =
        config_load_text(text, size, file_name, "/fuzz", NULL, 0, &config, &error->base);
    if (status == ATTN_OK && !config)
        fuzz_fail("accepted, and there is no config");
    if (status != ATTN_OK)
        fuzz_check_refusal(status, error, file_name);
    return status == ATTN_OK ? config : NULL;
}

/* To be freed. */
static char *print(const struct config *config)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        fuzz_fail("no memory for a print");
    config_print(config, file);
    fclose(file);
    return text;
}

/* The next line that is not "# Set at PLACE": where a value stands differs. NULL at the end. */
static const char *next_line(const char **rest, size_t *length)
{
    static const char place[] = "# Set at ";
    while (**rest) {
        const char *line = *rest;
        *length = strcspn(line, "\n");
        *rest = line + *length + (line[*length] == '\n');
        if (strncmp(line, place, strlen(place)) != 0)
            return line;
    }
    return NULL;
}

static void compare(const char *first, const char *second)
{
    const char *x, *y;
    size_t length_x = 0, length_y = 0;
    do {
        x = next_line(&first, &length_x);
        y = next_line(&second, &length_y);
        if (!x != !y || (x && (length_x != length_y || memcmp(x, y, length_x) != 0)))
            fuzz_fail("printed '%.*s', read and printed again '%.*s'", (int)length_x, x ? x : "",
                      (int)length_y, y ? y : "");
    } while (x);
}

/* A value that no line of an ini can hold is printed as a comment, which is not read back. */
static void check_print(const struct config *config)
{
    char *text = print(config);
    if (!strstr(text, "\n# Too long for a line")) {
        host_error error;
        struct config *again = load(text, strlen(text), &error);
        if (!again)
            fuzz_fail("its own print is refused: %s", host_error_text(&error));
        char *second = print(again);
        compare(text, second);
        free(second);
        config_destroy(again);
    }
    free(text);
}

static void check_model(const struct config *config)
{
    struct model *model = NULL;
    HOST_ERROR(error);
    attn_status status = model_create_ini(config, &model, &error.base);
    if (status != ATTN_OK)
        fuzz_check_refusal(status, &error, file_name);
    else if (model->num_layers == 0 || model->num_groups == 0 || model->max_context_len <= 0)
        fuzz_fail("a model of %u layers, %u groups, %d tokens", model->num_layers,
                  model->num_groups, model->max_context_len);
    model_destroy(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    host_error error;
    struct config *config = load((const char *)data, size, &error);
    if (config) {
        check_print(config);
        check_model(config);
        config_destroy(config);
    }
    return 0;
}
