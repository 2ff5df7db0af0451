/* SPDX-License-Identifier: Apache-2.0
 *
 * routes.c: parsing of routes.
 */
#include "host/select/routes.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/select/rules.h"

/* ---- One route ------------------------------------------------------------------------------- */

/* Both sides of "CONDITIONS -> NAME", without spaces around them. */
struct route {
    char *conditions;
    char *name;
};

static char *trimmed(const char *text, size_t length)
{
    while (length > 0 && text_is_space(*text))
        text++, length--;
    while (length > 0 && text_is_space(text[length - 1]))
        length--;
    return strndup(text, length);
}

/* The type of the key has checked that there is an arrow. */
static bool read_route(const struct config_route *given, struct route *route)
{
    const char *arrow = strstr(given->text, "->");
    route->conditions = trimmed(given->text, (size_t)(arrow - given->text));
    route->name = trimmed(arrow + 2, strlen(arrow + 2));
    return route->conditions && route->name;
}

static void finish_route(struct route *route)
{
    free(route->conditions);
    free(route->name);
}

static const struct config_route *last_route(const struct config *config)
{
    const struct config_routes *routes = &config->attention.routes;
    return &routes->items[routes->count - 1];
}

/* Has the last route no condition? Then it is the default. */
static bool last_is_default(const struct config *config)
{
    const char *text = last_route(config)->text;
    while (text_is_space(*text))
        text++;
    return text[0] == '-' && text[1] == '>';
}

/* ---- The backend ----------------------------------------------------------------------------- */

static attn_status no_memory(attn_error *error)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for routes");
}

static attn_status fail_route(const struct config_route *route, attn_error *error, const char *text)
{
    return host_fail(error, ATTN_CONFIG_ERROR, "%s: attention.route.%lld = '%s' %s", route->place,
                     (long long)route->number, route->text, text);
}

/* Other keys that would set the backend of a phase. */
static attn_status check_keys(const struct config *config, attn_error *error)
{
    const struct config_attention *keys = &config->attention;
    static const char text[] = "sets the backend of a phase, and attention.route.<n> does too; "
                               "accepted: a route such as phase=decode -> NAME";
    if (keys->prefill_attention_backend)
        return config_fail(config, "attention.prefill_attention_backend", error, "%s", text);
    if (keys->decode_attention_backend)
        return config_fail(config, "attention.decode_attention_backend", error, "%s", text);
    if (!last_is_default(config) && strcmp(keys->attention_backend, "auto") == 0)
        return fail_route(last_route(config), error,
                          "is the last route and has conditions, so that some batches have no "
                          "backend; accepted: a last route '-> NAME', or a name as "
                          "attention.attention_backend");
    return ATTN_OK;
}

/* The texts of the backend's options while they are collected. */
struct texts {
    const struct composer *composer;
    struct rules *rules; /* what aliases stand for */
    struct options_text *items;
    size_t count;
    bool good; /* memory did not run out */
};

static void add_text(struct texts *texts, const char *key, const char *value, const char *place)
{
    char *copies[] = {strdup(value), strdup(place)};
    texts->items[texts->count++] = (struct options_text){key, copies[0], copies[1], "/"};
    texts->good = texts->good && copies[0] && copies[1];
}

/* A backend, or what an alias stands for. */
static void add_backend(struct texts *texts, const char *key, const char *name, const char *place)
{
    const struct rule *alias =
        composer_has(texts->composer, name) ? NULL : rules_alias(texts->rules, name);
    add_text(texts, key, alias ? alias->name : name, place);
}

static attn_status add_route(struct texts *texts, const struct config_route *given,
                             const struct config_route *last, attn_error *error)
{
    struct route route = {NULL, NULL};
    strbuf place;
    strbuf_init(&place);
    strbuf_appendf(&place, "%s: attention.route.%lld", given->place, (long long)given->number);
    attn_status status = ATTN_OK;
    if (!read_route(given, &route)) {
        texts->good = false;
    } else if (!*route.name) {
        status = fail_route(given, error, "names no backend; accepted: CONDITIONS -> NAME");
    } else if (*route.conditions) {
        add_text(texts, "when", route.conditions, strbuf_text(&place));
        add_backend(texts, "then", route.name, strbuf_text(&place));
    } else if (given != last) {
        status = fail_route(given, error,
                            "has no conditions, so that no later route can ever match; accepted: "
                            "this as the last route");
    } else {
        add_backend(texts, "otherwise", route.name, strbuf_text(&place));
    }
    finish_route(&route);
    strbuf_finish(&place);
    return status;
}

static attn_status collect(const struct config *config, struct texts *texts, attn_error *error)
{
    const struct config_routes *routes = &config->attention.routes;
    attn_status status = ATTN_OK;
    for (size_t r = 0; r < routes->count && status == ATTN_OK; r++)
        status = add_route(texts, &routes->items[r], last_route(config), error);
    if (status == ATTN_OK && !last_is_default(config))
        add_backend(texts, "otherwise", config->attention.attention_backend,
                    config_place(config, "attention.attention_backend"));
    return status == ATTN_OK && !texts->good ? no_memory(error) : status;
}

attn_status routes_define(struct composer *composer, const struct config *config, attn_error *error)
{
    const struct config_routes *routes = &config->attention.routes;
    if (routes->count == 0)
        return ATTN_OK;
    attn_status status = check_keys(config, error);
    if (status != ATTN_OK)
        return status;
    struct texts texts = {.composer = composer, .good = true};
    status = rules_create(config, &texts.rules, error);
    if (status != ATTN_OK)
        return status;
    texts.items = calloc(2 * routes->count + 1, sizeof *texts.items);
    if (!texts.items) {
        rules_destroy(texts.rules);
        return no_memory(error);
    }
    status = collect(config, &texts, error);
    if (status == ATTN_OK)
        status = composer_define(composer, ROUTES_NAME, "route", routes->items[0].place,
                                 texts.items, texts.count, error);
    for (size_t t = 0; t < texts.count; t++) {
        free((char *)(uintptr_t)texts.items[t].value);
        free((char *)(uintptr_t)texts.items[t].place);
    }
    free(texts.items);
    rules_destroy(texts.rules);
    return status;
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* The value of `key` in conditions, cut to `size`; false = it is not there. */
static bool find_condition(const char *conditions, const char *key, char *value, size_t size)
{
    size_t length = strlen(key);
    for (const char *at = conditions; *at;) {
        while (text_is_space(*at))
            at++;
        size_t word = strcspn(at, " \t");
        if (word > length && strncmp(at, key, length) == 0 && at[length] == '=') {
            snprintf(value, size, "%.*s", (int)(word - length - 1), at + length + 1);
            return true;
        }
        at += word;
    }
    return false;
}

/* Is `number` in a range: "3", "0-3" or "4-"? */
static bool is_in(int32_t number, const char *range)
{
    char *end = NULL;
    long long first = strtoll(range, &end, 10);
    long long last = *end != '-' ? first : end[1] ? strtoll(end + 1, NULL, 10) : INT64_MAX;
    return first <= number && number <= last;
}

/* Does the row accept other decode steps, but not those of `longest` keys? */
static bool is_beyond(const char *conditions, int32_t longest)
{
    char phases[64], keys[64];
    if (find_condition(conditions, "phase", phases, sizeof phases) && !strstr(phases, "decode"))
        return false;
    return find_condition(conditions, "kv", keys, sizeof keys) && !is_in(longest, keys);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Messages about rows, and the definitions that have been visited. */
struct search {
    const struct composer *composer;
    /* Append a line about a row with these conditions, if needed. */
    void (*look)(const struct search *search, const struct options_text *row);
    int32_t longest;    /* for look_beyond_graphs() */
    const char *whose;  /* likewise */
    const char *phases; /* for look_never() */
    const char *when;   /* likewise */
    bool *visited;      /* [num_definitions] */
    strbuf *text;
};

static void look_beyond_graphs(const struct search *search, const struct options_text *row)
{
    if (is_beyond(row->value, search->longest))
        strbuf_appendf(
            search->text,
            "graphs: the row '%s' (%s) matches none: they are captured for %d keys, %s\n",
            row->value, row->place, search->longest, search->whose);
}

static void look_never(const struct search *search, const struct options_text *row)
{
    char asked[64], *rest = asked;
    if (!find_condition(row->value, "phase", asked, sizeof asked))
        return;
    while (rest) {
        const char *phase = strsep(&rest, ",");
        if (strstr(search->phases, phase)) /* none is a part of another's name */
            return;
    }
    strbuf_appendf(search->text,
                   "routes: the row '%s' (%s) matches nothing: %s the phases are %s\n", row->value,
                   row->place, search->when, search->phases);
}

/* In the tables of a backend and of its children; no deeper than there are definitions. */
static void search_tables(struct search *search, const char *name)
{
    const struct compose_definition *found = composer_find(search->composer, name);
    size_t index = found ? (size_t)(found - search->composer->definitions) : 0;
    if (!found || search->visited[index])
        return;
    search->visited[index] = true;
    for (size_t t = 0; t < found->num_texts; t++) {
        const struct options_text *option = &found->texts[t];
        bool row = strcmp(found->type, "route") == 0 && strcmp(option->key, "when") == 0;
        if (row)
            search->look(search, option);
        else
            search_tables(search, option->value);
    }
}

/* In the tables of the backends that serve a phase. */
static void search_phase(struct search *search, const struct selection *selection, uint32_t phase)
{
    for (uint32_t g = 0; g < selection->num_groups && search->visited; g++) {
        const char *backend = select_backend(selection, g, phase);
        if (backend)
            search_tables(search, backend);
    }
}

void routes_beyond_graphs(const struct composer *composer, const struct config *config,
                          const struct selection *selection, int32_t longest, const char *whose,
                          strbuf *text)
{
    bool captures = selection->device.type != ATTN_DEVICE_CPU && config->cuda_graph.enable &&
                    config->cuda_graph.bs.count > 0 && !select_uncapturable(selection, config);
    if (!captures || composer->num_definitions == 0)
        return;
    struct search search = {
        .composer = composer,
        .look = look_beyond_graphs,
        .longest = longest,
        .whose = whose,
        .visited = calloc(composer->num_definitions, sizeof *search.visited),
        .text = text,
    };
    search_phase(&search, selection, SELECT_DECODE);
    free(search.visited);
}

void routes_never(const struct composer *composer, const struct selection *selection,
                  const char *phases, const char *when, strbuf *text)
{
    if (composer->num_definitions == 0)
        return;
    struct search search = {
        .composer = composer,
        .look = look_never,
        .phases = phases,
        .when = when,
        .visited = calloc(composer->num_definitions, sizeof *search.visited),
        .text = text,
    };
    for (uint32_t phase = 0; phase < SELECT_PHASES; phase++)
        search_phase(&search, selection, phase);
    free(search.visited);
}

/* ---- Look ------------------------------------------------------------------------------------ */

void routes_where(const struct config *config, strbuf *text)
{
    const struct config_routes *routes = &config->attention.routes;
    strbuf_appendf(text, "attention.route.%lld", (long long)routes->items[0].number);
    if (routes->count > 1)
        strbuf_appendf(text, "..%lld", (long long)last_route(config)->number);
    strbuf_appendf(text, " (%s)", routes->items[0].place);
}

/* Is the name the first of a path of children, which was cut to fit a reason? */
static bool leads_to(const char *name, const char *path)
{
    const size_t most = sizeof((attn_reason *)NULL)->child - 1;
    size_t length = strcspn(path, "/");
    return length > 0 && strncmp(name, path, length) == 0 &&
           (name[length] == '\0' || length == most);
}

void routes_to_child(const struct config *config, const attn_reason *reason, strbuf *text)
{
    char child[sizeof reason->child];
    const struct config_routes *routes = &config->attention.routes;
    const char *before = " (";
    snprintf(child, sizeof child, "%.*s", (int)sizeof child - 1, reason->child);
    for (size_t r = 0; r < routes->count; r++) {
        struct route route = {NULL, NULL};
        if (read_route(&routes->items[r], &route) && leads_to(route.name, child)) {
            strbuf_appendf(text, "%sattention.route.%lld, %s", before,
                           (long long)routes->items[r].number, routes->items[r].place);
            before = "; ";
        }
        finish_route(&route);
    }
    if (before[0] == ';')
        strbuf_append(text, ")");
}

void routes_print(const struct config *config, FILE *file)
{
    const struct config_routes *routes = &config->attention.routes;
    if (routes->count == 0)
        return;
    fprintf(file, "routes, the first that matches:\n");
    for (size_t r = 0; r < routes->count; r++)
        fprintf(file, "  route.%-5lld %s (%s)\n", (long long)routes->items[r].number,
                routes->items[r].text, routes->items[r].place);
    if (!last_is_default(config))
        fprintf(file, "  %-11s -> %s (%s)\n", "otherwise", config->attention.attention_backend,
                config_place(config, "attention.attention_backend"));
}

static cJSON *route_json(double number, const char *text, const char *place)
{
    cJSON *object = cJSON_CreateObject();
    bool good = object && (number < 0 || cJSON_AddNumberToObject(object, "number", number)) &&
                cJSON_AddStringToObject(object, "route", text) &&
                cJSON_AddStringToObject(object, "place", place);
    if (good)
        return object;
    cJSON_Delete(object);
    return NULL;
}

static bool append(cJSON *array, cJSON *item)
{
    if (item && cJSON_AddItemToArray(array, item))
        return true;
    cJSON_Delete(item);
    return false;
}

int routes_add_json(const struct config *config, cJSON *object)
{
    const struct config_routes *routes = &config->attention.routes;
    if (routes->count == 0)
        return 1;
    cJSON *array = cJSON_AddArrayToObject(object, "routes");
    bool good = array != NULL;
    for (size_t r = 0; r < routes->count && good; r++)
        good = append(array, route_json((double)routes->items[r].number, routes->items[r].text,
                                        routes->items[r].place));
    if (good && !last_is_default(config)) {
        char text[96];
        snprintf(text, sizeof text, "-> %s", config->attention.attention_backend);
        good = append(array,
                      route_json(-1, text, config_place(config, "attention.attention_backend")));
    }
    return good;
}
