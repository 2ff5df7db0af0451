/* SPDX-License-Identifier: Apache-2.0
 *
 * select: which backends an engine should use for a model, and why no others; then it makes them.
 *
 *   cc -O2 -o select select.c $(pkg-config --cflags --libs attnhost)
 *   ./select CONFIG.json [PLUGIN_FILE_OR_FOLDER] [SECTION.KEY=VALUE]...
 *
 * CONFIG.json is the model's from Hugging Face; models/ has some. Settings are those of the ini, as
 * platform.device=cpu, platform.simulate=sm90, attention.attention_backend=cpu_native,
 * kv_cache.page_size=64, workload.max_running_requests=8. Without a plugin the installed ones are
 * taken. Exit code 1 if some layer is not served.
 */
#include <attnhost.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char message[4096];
static attn_error error = {
    .struct_size = sizeof error, .capacity = sizeof message, .message = message};

static void check(attn_status status, const char *what)
{
    if (status == ATTN_OK)
        return;
    fprintf(stderr, "select: %s: %s: %s\n", what, attnhost_status_name(status), message);
    exit(1);
}

/* A whole file; the caller frees it. */
static char *read_file(const char *path, uint64_t *length)
{
    enum { MOST = 1 << 20 };
    FILE *file = fopen(path, "r");
    char *text = malloc(MOST);
    if (!file || !text) {
        perror(path);
        exit(1);
    }
    *length = fread(text, 1, MOST, file);
    fclose(file);
    return text;
}

static attnhost *open_host(const char *path)
{
    attnhost *host = NULL;
    size_t length = path ? strlen(path) : 0;
    check(attnhost_create(NULL, &host, &error), "host");
    if (!path)
        check(attnhost_load_installed(host, &error), "installed plugins");
    else if (length > 3 && strcmp(path + length - 3, ".so") == 0)
        check(attnhost_load_plugin(host, path, &error), path);
    else
        check(attnhost_load_directory(host, path, &error), path);
    return host;
}

/* A candidate that could not be taken, with every reason. */
static void print_candidate(const attnhost_candidate *candidate)
{
    for (uint32_t r = 0; r < candidate->num_reasons; r++) {
        const attnhost_reason *reason = attn_at(candidate->reasons, r);
        printf("    not %s: %s [%s]\n", candidate->name, reason->text, reason->code_name);
    }
}

static void print_group(const attnhost_group *group)
{
    printf("layers %s: %s\n", group->layers, group->what);
    for (uint32_t p = 0; p < group->num_phases; p++) {
        const attnhost_phase *phase = attn_at(group->phases, p);
        const attnhost_candidate *chosen =
            phase->chosen < 0 ? NULL : attn_at(phase->candidates, (uint32_t)phase->chosen);
        printf("  %s: %s (%s)\n", phase->name, chosen ? chosen->name : "none", phase->why);
        for (uint32_t c = 0; c < phase->num_candidates; c++)
            print_candidate(attn_at(phase->candidates, c));
    }
}

/* What an engine does next: a backend for each unit, and metadata for its largest batch. The KV
 * cache is the engine's, in the layout that the group's problem names. */
static void make_unit(attnhost *host, const attnhost_unit *unit)
{
    attnhost_backend *backend = NULL;
    attnhost_metadata *metadata = NULL;
    const attn_bounds *bounds = unit->problems->bounds;
    check(
        attnhost_compose(host, unit->backend, unit->problems, unit->num_problems, &backend, &error),
        "compose");
    check(attnhost_metadata_create(backend, ATTN_METADATA_EAGER, bounds, NULL, &metadata, &error),
          "metadata");
    printf("made %s for %u groups: %d sequences, %d tokens, %d keys each\n", unit->backend,
           unit->num_problems, bounds->max_seqs, bounds->max_tokens, bounds->max_kv_len);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: select CONFIG.json [PLUGIN_FILE_OR_FOLDER] [KEY=VALUE]...\n");
        return 2;
    }
    int has_path = argc > 2 && !strchr(argv[2], '='), first = has_path ? 3 : 2;
    attnhost *host = open_host(has_path ? argv[2] : NULL);
    attnhost_model model = {.struct_size = sizeof model, .name = argv[1]};
    char *text = read_file(argv[1], &model.config_length);
    model.config = text;
    const attnhost_selection *chosen = NULL;
    check(attnhost_select(host, &model, (const char *const *)argv + first, (uint32_t)(argc - first),
                          &chosen, &error),
          "select");
    free(text);
    printf("%s on %s\n", chosen->architecture, chosen->device_name);
    for (uint32_t g = 0; g < chosen->num_groups; g++)
        print_group(attn_at(chosen->groups, g));
    for (uint32_t u = 0; !chosen->simulated && u < chosen->num_units; u++)
        make_unit(host, attn_at(chosen->units, u));
    int served = chosen->status == ATTN_OK;
    if (!served)
        fprintf(stderr, "select: %s: %s\n", attnhost_status_name(chosen->status), chosen->message);
    attnhost_selection_destroy(chosen);
    attnhost_destroy(host);
    return served ? 0 : 1;
}
