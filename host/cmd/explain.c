/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost explain: shows the backend chosen for each phase and layer group, and why not the
 * others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/cmd/arguments.h"
#include "host/cmd/commands.h"
#include "host/config/config.h"
#include "host/embed/embed.h"
#include "host/base/error.h"
#include "host/base/json_add.h"
#include "host/base/message.h"
#include "host/base/text.h"
#include "host/cmd/exit_codes.h"
#include "host/run/requests.h"
#include "host/select/open_host.h"
#include "host/select/routes.h"
#include "host/select/select.h"
#include "host/select/selection_api.h"

struct values {
    bool json, would;
};

#define AT(member) offsetof(struct values, member)

static const struct option_row options[] = {
    OPTION_ROW_SET,
    OPTION_ROW_SWITCH("json", AT(json), "the same as JSON"),
    OPTION_ROW_SWITCH(
        "would", AT(would),
        "exit with 0 if the rules choose a backend, even if no such plugin exists yet"),
    OPTION_END,
};

/* The notes as an array "notes", which is absent if there are none. */
static bool add_notes(const char *notes, cJSON *tree)
{
    cJSON *array = *notes ? cJSON_AddArrayToObject(tree, "notes") : NULL;
    bool good = array || !*notes;
    while (*notes && good) {
        size_t length = strcspn(notes, "\n");
        char *line = strndup(notes, length);
        good = line && cJSON_AddItemToArray(array, cJSON_CreateString(line));
        free(line);
        notes += length + (notes[length] == '\n');
    }
    return good;
}

/* Would each phase have a backend if there were plugins of all that the rules name? */
static bool would_be_served(const attnhost_selection *selected)
{
    for (uint32_t g = 0; g < selected->num_groups; g++) {
        const attnhost_group *group = attn_at(selected->groups, g);
        for (uint32_t p = 0; group->unit < 0 && p < group->num_phases; p++)
            if (((const attnhost_phase *)attn_at(group->phases, p))->preferred < 0)
                return false;
    }
    return true;
}

/* Backends that are chosen, as on a simulated platform they are, although their kernels are not in
 * this build; "" = none. */
static void append_without_kernels(const attnhost *host, const attnhost_selection *selected,
                                   strbuf *names)
{
    for (uint32_t t = 0; t < host->registry.num_types; t++) {
        const attn_backend_type *type = host->registry.types[t].type;
        bool chosen = false;
        for (uint32_t g = 0; g < selected->num_groups; g++) {
            const attnhost_group *group = attn_at(selected->groups, g);
            for (uint32_t p = 0; p < group->num_phases; p++) {
                const attnhost_phase *phase = attn_at(group->phases, p);
                const attnhost_candidate *candidate =
                    phase->chosen < 0 ? NULL : attn_at(phase->candidates, (uint32_t)phase->chosen);
                chosen |= candidate && strcmp(candidate->name, type->name) == 0;
            }
        }
        if (chosen && type->flags & ATTN_BACKEND_WITHOUT_KERNELS)
            strbuf_appendf(names, "%s%s", *strbuf_text(names) ? ", " : "", type->name);
    }
}

static int show_json(const struct config *config, const attnhost_selection *selected,
                     const char *without_kernels)
{
    cJSON *tree = selection_api_to_json(selected);
    bool good = tree && routes_add_json(config, tree) && add_notes(selected->notes, tree) &&
                (!*without_kernels || json_add_text(tree, "without_kernels", without_kernels));
    char *text = json_take_text(tree, good);
    fputs(text ? text : "attnhost explain: no memory for the answer\n", text ? stdout : stderr);
    free(text);
    return text ? EXIT_GOOD : EXIT_RUN_TIME;
}

static int show(const attnhost *host, const struct config *config,
                const attnhost_selection *selected, const struct values *values)
{
    int code = EXIT_GOOD;
    strbuf without;
    strbuf_init(&without);
    append_without_kernels(host, selected, &without);
    if (values->json) {
        code = show_json(config, selected, strbuf_text(&without));
    } else {
        routes_print(config, stdout);
        text_wrap_lines(stdout, selected->notes);
        selection_api_print(selected, stdout);
        if (*strbuf_text(&without))
            text_wrap_line(stdout, 0, 2, "built without kernels: %s; to run, build with nvcc",
                           strbuf_text(&without));
    }
    strbuf_finish(&without);
    if (selected->status == ATTN_OK || (values->would && would_be_served(selected)))
        return code;
    fputs("attnhost explain: ", stderr);
    message_print(stderr, selected->message);
    return exit_code_of(selected->status);
}

/* Model, platform and selection of a configuration whose host is open; the configuration's owner
 * from now on. */
static int explain(attnhost *host, struct config *config, const struct values *values)
{
    host_error error;
    struct model *model = NULL;
    const attnhost_selection *selected = NULL;
    host_error_init(&error);
    attn_status status = model_create(config, &model, &error.base);
    if (!status)
        status = requests_check(config, model, &error.base);
    if (!status)
        status = select_settle_form(host, config, model, &error.base);
    if (status) {
        model_destroy(model);
        config_destroy(config);
    } else {
        status = selection_api_select(host, config, model, &selected, &error.base);
    }
    if (status)
        fprintf(stderr, "attnhost explain: %s\n", host_error_text(&error));
    int code = status ? exit_code_of(status) : show(host, config, selected, values);
    attnhost_selection_destroy(selected);
    return code;
}

static int open_and_explain(const struct arguments *arguments, struct config *config)
{
    const struct values *values = arguments->values;
    host_error error;
    attnhost *host = NULL;
    host_error_init(&error);
    int code = exit_code_of(open_host(config, &host, &error.base));
    if (code != EXIT_GOOD) {
        arguments_complain(arguments, "%s", host_error_text(&error));
        config_destroy(config);
    } else {
        code = explain(host, config, values);
    }
    attnhost_destroy(host);
    return code;
}

/* A model's config.json by itself, with nothing else configured? */
static bool is_model(const char *target)
{
    size_t length = strlen(target);
    return length > 5 && strcmp(target + length - 5, ".json") == 0;
}

static int run(struct arguments *arguments)
{
    struct config *config = NULL;
    bool bare = is_model(arguments->target);
    if (bare && !arguments_set(arguments, "model.config", arguments->target)) {
        arguments_complain(arguments, "no memory");
        return EXIT_RUN_TIME;
    }
    int code = arguments_load_config(arguments, bare ? NULL : arguments->target, &config);
    if (code == EXIT_GOOD)
        return open_and_explain(arguments, config);
    return code;
}

const struct command command_explain = {
    .name = "explain",
    .summary = "show the backend chosen for each phase and layer group, and why",
    .usage = "CONFIG.ini|config.json [OPTION]...",
    .names = "CONFIG.ini or config.json",
    .calls_plugins = true,
    .about =
        "Shows the backend that a run of this configuration would choose for each phase and layer\n"
        "group, and for each other candidate all reasons why it cannot serve. Computes nothing "
        "and\n"
        "needs no GPU: platform.simulate = sm90 (or gfx942, npu, xpu, cpu_amx ...) selects for "
        "that\n"
        "platform, from all known backends, installed or not. A model's config.json stands for an\n"
        "ini that sets only model.config.\n"
        "\n"
        "If workload.trace is set, explain reads its lengths and refuses the same requests as "
        "`run`:\n"
        "those longer than max_context_len, longer than a step of an encoder, or too long for the\n"
        "pools of [kv_cache]. Pages from mem_fraction depend on the device's memory; only `run`\n"
        "checks them.\n",
    .options = options,
    .ending =
        "The answer goes to stdout, wrapped at 80 columns even in a pipe; use --json in scripts.\n"
        "Everything else goes to stderr. Exit codes: 0 every layer is served (simulated: would be, "
        "by\n"
        "a plugin that exists); 2 usage or configuration; 3 a critical plugin is refused; 4 no\n"
        "backend, or not the named one, can serve some layer.\n"
        "\n"
        "examples:\n"
        "  attnhost explain examples/quickstart.ini\n"
        "  attnhost explain examples/models/qwen3_next.json\n"
        "  attnhost explain examples/quickstart.ini --set platform.simulate=sm90 --json\n",
    .size = sizeof(struct values),
    .run = run,
};
