/* SPDX-License-Identifier: Apache-2.0
 *
 * child_subject.c: from a plugin's file to backends that can be called.
 */
#include "host/check/cases/grid.h"
#include "host/check/cases/linear_find.h"
#include "host/check/suite/child_private.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/select/probe.h"
#include "host/base/text.h"

enum { MAX_REASONS = 64 };

/* The outcome of a question for a status of the host. */
static enum check_outcome outcome_of(attn_status status)
{
    switch (status) {
    case ATTN_OK:
        return CHECK_GOOD;
    case ATTN_CONFIG_ERROR:
        return CHECK_USAGE;
    case ATTN_UNSUPPORTED:
    case ATTN_DEPENDENCY_MISSING:
        return CHECK_NO_BACKEND;
    default:
        return CHECK_BROKEN;
    }
}

/* ---- The plugin ------------------------------------------------------------------------------ */

static const struct loader_plugin *found_plugin(const struct check_child *child)
{
    return child->host->registry.plugins[child->plugin];
}

static bool is_wanted(const struct check_child *child, const attn_backend_type *type)
{
    return !child->params->backend || strcmp(child->params->backend, type->name) == 0;
}

static enum check_outcome refuse_backend(const struct check_child *child, host_error *error)
{
    const struct loader_plugin *plugin = found_plugin(child);
    strbuf names;
    strbuf_init(&names);
    for (uint32_t t = 0; t < plugin->num_types; t++)
        strbuf_appendf(&names, "%s%s", t ? ", " : "", plugin->types[t]->name);
    host_fail(&error->base, ATTN_CONFIG_ERROR,
              "--backend %.100s: %s has none of that name; "
              "accepted: %s",
              child->params->backend, child->file, strbuf_text(&names));
    strbuf_finish(&names);
    return CHECK_USAGE;
}

static enum check_outcome list_subjects(struct check_child *child, host_error *error)
{
    const struct loader_plugin *plugin = found_plugin(child);
    child->subjects = calloc(plugin->num_types + 1u, sizeof *child->subjects);
    if (!child->subjects)
        return CHECK_BROKEN;
    for (uint32_t t = 0; t < plugin->num_types; t++)
        if (is_wanted(child, plugin->types[t]))
            child->subjects[child->num_subjects++].type = plugin->types[t];
    return child->num_subjects ? CHECK_GOOD : refuse_backend(child, error);
}

/* Load it first, so that its backends' names are free. */
static enum check_outcome load(struct check_child *child, host_error *error)
{
    const struct check_params *params = child->params;
    process_take(&child->unloaded);
    attn_status status = attnhost_load_plugin(child->host, params->plugin, &error->base);
    process_take(&child->loaded);
    for (size_t w = 0; w < params->with.count && !status; w++)
        status = attnhost_load_plugin(child->host, params->with.items[w], &error->base);
    if (status)
        return status == ATTN_OUT_OF_HOST_MEMORY ? CHECK_BROKEN : CHECK_REFUSED;
    const struct registry *registry = &child->host->registry;
    const struct loader_plugin *found = registry_find_file(registry, params->plugin);
    while (registry->plugins[child->plugin] != found)
        child->plugin++;
    child->file = strdup(found->file);
    return child->file ? CHECK_GOOD : CHECK_BROKEN;
}

/* ---- Options --------------------------------------------------------------------------------- */

static bool declares(const attn_backend_type *type, const char *key, size_t length)
{
    for (uint32_t o = 0; o < type->num_options; o++) {
        const attn_option *option = attn_at(type->options, o);
        const char *names[] = {option->key, option->deprecated_alias};
        for (int n = 0; n < 2; n++)
            if (names[n] && strlen(names[n]) == length && strncmp(names[n], key, length) == 0)
                return true;
    }
    return false;
}

static bool somebody_declares(const struct check_child *child, const char *key, size_t length)
{
    bool found = false;
    for (uint32_t s = 0; s < child->num_subjects && !found; s++)
        found = declares(child->subjects[s].type, key, length);
    return found;
}

/* The options for this backend. An option that no backend declares goes to all, and is refused with
 * the nearest key. Keys are cut off in `copies`. false when memory ran out. */
static bool choose_options(const struct check_child *child, const attn_backend_type *type,
                           char **copies, struct options_text *texts, size_t *count)
{
    for (size_t o = 0; o < child->params->options.count; o++) {
        const char *option = child->params->options.items[o];
        size_t length = strcspn(option, "=");
        if (child_option_is_named(option))
            continue;
        if (!declares(type, option, length) && somebody_declares(child, option, length))
            continue;
        char *copy = strdup(option);
        if (!copy)
            return false;
        copy[length] = '\0';
        copies[*count] = copy;
        texts[(*count)++] =
            (struct options_text){.key = copy, .value = copy + length + 1, .place = "--option"};
    }
    return true;
}

/* Children that a composite needs and that were not named: backends of --with, or of the plugin
 * itself, under names of their own, so that no two of them are one. They do not depend on what was
 * loaded first: the first in the order of the command line that is no composite. */

static const attn_backend_type *find_stand_in(const struct check_child *child)
{
    const struct registry *registry = &child->host->registry;
    const attn_backend_type *own = NULL;
    for (uint32_t t = 0; t < registry->num_types; t++) {
        const struct registry_type *known = &registry->types[t];
        if (known->type->flags & ATTN_BACKEND_COMPOSITE)
            continue;
        if (known->plugin != registry->plugins[child->plugin])
            return known->type;
        own = own ? own : known->type;
    }
    return own;
}

static bool is_given(const struct options_text *texts, size_t count, const attn_option *option)
{
    for (size_t t = 0; t < count; t++)
        if (strcmp(texts[t].key, option->key) == 0 ||
            (option->deprecated_alias && strcmp(texts[t].key, option->deprecated_alias) == 0))
            return true;
    return false;
}

/* One for each REQUIRED backend-ref that is not given. */
static attn_status add_stand_ins(struct check_child *child, const attn_backend_type *type,
                                 char **copies, struct options_text *texts, size_t *count,
                                 attn_error *error)
{
    const attn_backend_type *stand_in = find_stand_in(child);
    attn_status status = ATTN_OK;
    int number = 0;
    for (uint32_t o = 0; stand_in && o < type->num_options && status == ATTN_OK; o++) {
        const attn_option *option = attn_at(type->options, o);
        char name[32];
        if (option->type != ATTN_OPTION_BACKEND_REF || !(option->flags & ATTN_OPTION_REQUIRED) ||
            is_given(texts, *count, option))
            continue;
        snprintf(name, sizeof name, "stand_in_%d", ++number);
        char *copy = strdup(name);
        if (!copy)
            return ATTN_OUT_OF_HOST_MEMORY;
        copies[*count] = copy;
        texts[(*count)++] =
            (struct options_text){.key = option->key, .value = copy, .place = "attnhost check"};
        if (!composer_find(&child->host->composer, name))
            status = composer_define(&child->host->composer, name, stand_in->name, "attnhost check",
                                     NULL, 0, error);
    }
    return status;
}

/* Under the name of its type, so that it is the same in ids, messages and questions. */
static enum check_outcome define(struct check_child *child, struct child_subject *subject,
                                 host_error *error)
{
    const attn_backend_type *type = subject->type;
    size_t most = child->params->options.count + type->num_options + 1, count = 0;
    struct options_text *texts = calloc(most, sizeof *texts);
    char **copies = calloc(most, sizeof *copies), *base = text_working_folder();
    attn_status status = ATTN_OUT_OF_HOST_MEMORY;
    if (texts && copies && base && choose_options(child, type, copies, texts, &count))
        status = add_stand_ins(child, type, copies, texts, &count, &error->base);
    if (status == ATTN_OK) {
        for (size_t o = 0; o < count; o++)
            texts[o].base = base;
        status = count ? composer_define(&child->host->composer, type->name, NULL, "--option",
                                         texts, count, &error->base)
                       : ATTN_OK;
    }
    for (size_t o = 0; o < count; o++)
        free(copies[o]);
    free(texts);
    free(copies);
    free(base);
    subject->num_options = count;
    return outcome_of(status);
}

/* Are the options that were given good? Without any, required ones may be missing, which is no
 * error: that backend is not checked. */
static enum check_outcome try_options(const struct check_child *child,
                                      const struct child_subject *subject, host_error *error)
{
    struct compose_node *trial = NULL;
    if (subject->num_options == 0)
        return CHECK_GOOD;
    attn_status status =
        compose_resolve(&child->host->composer, subject->type->name, NULL, &trial, &error->base);
    compose_destroy(trial);
    return outcome_of(status);
}

enum check_outcome child_open(struct check_child *child, host_error *error)
{
    const struct text_list *options = &child->params->options;
    enum check_outcome outcome = load(child, error);
    if (outcome == CHECK_GOOD)
        outcome = list_subjects(child, error);
    for (size_t o = 0; o < options->count && outcome == CHECK_GOOD; o++)
        if (!strchr(options->items[o], '=')) {
            host_fail(&error->base, ATTN_CONFIG_ERROR, "--option '%.100s': accepted KEY=VALUE",
                      options->items[o]);
            outcome = CHECK_USAGE;
        }
    if (outcome == CHECK_GOOD) {
        const attn_backend_type *stand_in = find_stand_in(child);
        outcome =
            outcome_of(child_define_named(child, stand_in ? stand_in->name : NULL, &error->base));
    }
    for (uint32_t s = 0; s < child->num_subjects && outcome == CHECK_GOOD; s++) {
        outcome = define(child, &child->subjects[s], error);
        if (outcome == CHECK_GOOD)
            outcome = try_options(child, &child->subjects[s], error);
    }
    if (outcome == CHECK_BROKEN)
        host_fail(&error->base, ATTN_OUT_OF_HOST_MEMORY, "out of memory");
    if (outcome != CHECK_GOOD)
        return outcome;
    child->file_view = (struct check_subject){.host = child->host,
                                              .file = child->file,
                                              .object = found_plugin(child)->object,
                                              .source = loader_source(found_plugin(child)),
                                              .plugin = child->plugin,
                                              .seed = child->params->seed,
                                              .exhaustive = child->params->exhaustive,
                                              .repeat = (int32_t)child->params->repeat,
                                              .unloaded = &child->unloaded,
                                              .loaded = &child->loaded};
    return outcome;
}

/* ---- Devices --------------------------------------------------------------------------------- */

void child_device_text(const struct device *device, char text[16])
{
    if (device->type == ATTN_DEVICE_CUDA)
        snprintf(text, 16, "cuda:%d", device->id);
    else
        snprintf(text, 16, "cpu");
}

/* Does it refuse a plain problem on the processor because of the processor? Other reasons do not
 * matter: they are reasons everywhere. */
static bool refuses_cpu(const struct check_child *child, const struct child_subject *subject)
{
    const attn_backend_type *type = subject->type;
    struct probe probe;
    attn_verdict verdict;
    attn_reason reasons[MAX_REASONS];
    probe_init(&probe, &subject->cpu->info, ATTN_BF16, type->num_layouts ? type->layouts[0] : NULL);
    if (probe_ask(child->host, type->name, &probe, &verdict, reasons, MAX_REASONS) != 0)
        return false;
    for (uint32_t r = 0; r < verdict.num_reasons && r < MAX_REASONS; r++)
        if (reasons[r].field == ATTN_FIELD_DEVICE_TYPE)
            return true;
    return false;
}

static attn_status open_device(struct check_child *child, struct child_subject *subject,
                               const char *device)
{
    attn_error *error = &subject->error.base;
    bool choose = strcmp(device, "auto") == 0;
    attn_status status = device_open(ATTN_DEVICE_CPU, 0, &subject->cpu, error);
    subject->device = subject->cpu;
    if (status || strcmp(device, "cpu") == 0 || (choose && !refuses_cpu(child, subject)))
        return status;
    struct device *cuda = NULL;
    const char *ordinal = strchr(device, ':');
    status = device_open(ATTN_DEVICE_CUDA, ordinal ? atoi(ordinal + 1) : 0, &cuda,
                         choose ? &subject->missing.base : error);
    if (status == ATTN_OK)
        subject->device = cuda;
    process_state_take(&child->before); /* changes by the driver are not the plugin's */
    return choose ? ATTN_OK : status;
}

/* The driver of the tests, under whatever name it was opened, has controls. */
static bool is_fake(const struct device *device)
{
    const char *driver = getenv("ATTNHOST_LIBCUDA");
    if (device->type != ATTN_DEVICE_CUDA || !driver)
        return false;
    void *library = dlopen(driver, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    bool fake = library && dlsym(library, "fake_cuda_reset");
    if (library)
        dlclose(library);
    return fake;
}

/* ---- Subjects -------------------------------------------------------------------------------- */

/* The given options are good, so a failure means that some are missing. */
static enum check_outcome resolve(struct check_child *child, struct child_subject *subject,
                                  const char *device)
{
    const struct composer *composer = &child->host->composer;
    attn_error *error = &subject->error.base;
    struct compose_node *trial = NULL;
    attn_status status = compose_resolve(composer, subject->type->name, NULL, &trial, error);
    compose_destroy(trial);
    if (status == ATTN_CONFIG_ERROR)
        return CHECK_NOTHING;
    if (!status)
        status = open_device(child, subject, device);
    if (status == ATTN_DEPENDENCY_MISSING)
        return CHECK_NOTHING;
    if (!status)
        status =
            compose_resolve(composer, subject->type->name, subject->device, &subject->node, error);
    return outcome_of(status);
}

/* As before the first create; compose_destroy() undoes it. */
static enum check_outcome initialise(struct child_subject *subject)
{
    attn_status status = device_enter(subject->device, &subject->error.base);
    if (status)
        return CHECK_NOTHING;
    status = loader_acquire(subject->node->type->plugin, &subject->error.base);
    device_leave(subject->device);
    subject->node->acquired = status == ATTN_OK;
    if (status == ATTN_OK)
        return CHECK_GOOD;
    return status == ATTN_DEPENDENCY_MISSING ? CHECK_NOTHING : CHECK_BROKEN;
}

/* A backend that has KV layouts of a vendor's own alone is checked in the first of them, where the
 * plugin converts it. Graphs leave no room for that: on other devices the group PRIV does so. */
static void convert_layouts(struct child_subject *subject)
{
    const attn_backend_type *type = subject->type;
    const char *own = layout_converter_layout(type, 0);
    if (!own || layout_converter_is_public(type) || subject->device->type != ATTN_DEVICE_CPU)
        return;
    const attn_layouts *layouts = layout_converter_layouts(subject->node->type->plugin);
    if (!layouts)
        return;
    layout_converter_init(&subject->converter, type, subject->device, layouts, own);
    subject->view.type = &subject->converter.front.type;
    subject->view.converter = &subject->converter;
}

static void make(struct check_child *child, struct child_subject *subject, const char *device)
{
    host_error_init(&subject->error);
    host_error_init(&subject->missing);
    subject->made = true;
    subject->outcome = resolve(child, subject, device);
    if (subject->outcome == CHECK_GOOD)
        subject->outcome = initialise(subject);
    if (subject->outcome != CHECK_GOOD)
        return;
    struct compose_node *node = subject->node;
    subject->view = child->file_view;
    subject->view.type = subject->type;
    subject->view.backend = node->name;
    subject->view.node = node;
    subject->view.options = &node->options->view;
    subject->view.services = &node->services;
    subject->view.device = subject->device;
    subject->view.cpu = subject->cpu;
    subject->view.fake_device = is_fake(subject->device);
    subject->view.trail = child->trail;
    subject->view.grid = &subject->grid;
    subject->linear_families = LINEAR_UNASKED;
    subject->view.linear_families = &subject->linear_families;
    convert_layouts(subject);
}

struct child_subject *child_subject(struct check_child *child, const char *backend,
                                    const char *device)
{
    for (uint32_t s = 0; s < child->num_subjects; s++) {
        struct child_subject *subject = &child->subjects[s];
        if (strcmp(subject->type->name, backend) != 0)
            continue;
        if (!subject->made)
            make(child, subject, device);
        layout_converter_use(subject->view.converter ? &subject->converter : NULL);
        return subject;
    }
    return NULL;
}

void child_close(struct check_child *child)
{
    for (uint32_t s = 0; s < child->num_subjects; s++) {
        struct child_subject *subject = &child->subjects[s];
        grid_destroy(subject->grid);
        compose_destroy(subject->node);
        if (subject->device != subject->cpu)
            device_close(subject->device);
        device_close(subject->cpu);
    }
    child->num_subjects = 0;
    attnhost_destroy(child->host);
    child->host = NULL;
}
