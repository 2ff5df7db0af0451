/* SPDX-License-Identifier: Apache-2.0
 *
 * check_routes: [attention] route.<n> from the ini to a run: what is refused and with which words,
 * what is chosen and printed, and that the rows of a trace go where the table says and come out
 * right.
 */
#include "host/select/routes.h"

#include <stdarg.h>
#include <unistd.h>

#include "host/run/session.h"
#include "tests/host/select/scene.h"

/* ---- A selection ----------------------------------------------------------------------------- */

#define MODEL                                                                                      \
    "[model]\nnum_layers = 4\nnum_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 64\n"                  \
    "[attention]\n" /* line 6 */

/* Define and select; `status` is that of the first step that fails. */
static void begin(struct scene *scene, const char *keys, const char *const *sets, size_t num_sets)
{
    char ini[2048];
    scene_create(scene);
    load_plugin(scene->host, "ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs", "choosy.so");
    load_plugin(scene->host, "ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", "hybrid.so");
    snprintf(ini, sizeof ini, MODEL "%s", keys);
    scene->status = scene_define(scene, ini, sets, num_sets);
    if (scene->status == ATTN_OK)
        scene_choose(scene);
}

#define SM90 "[platform]\nsimulate = sm90\n"

/* What is refused at load, with its status and a part of the message. */
static const struct {
    const char *keys;
    attn_status status;
    const char *says;
} refusals[] = {
    {"route.1 = phase=decode -> fa3_like\n", ATTN_CONFIG_ERROR,
     "t.ini:7: attention.route.1 = 'phase=decode -> fa3_like' is the last route and has "
     "conditions, so that some batches have no backend"},
    {"route.1 = -> fa3_like\nroute.2 = phase=decode -> fa3_like\nattention_backend = fa3_like\n",
     ATTN_CONFIG_ERROR,
     "t.ini:7: attention.route.1 = '-> fa3_like' has no conditions, so that no later route"},
    {"route.1 = phase=decode ->\nroute.2 = -> fa3_like\n", ATTN_CONFIG_ERROR,
     "t.ini:7: attention.route.1 = 'phase=decode ->' names no backend"},
    {"route.1 = -> fa3_like\nprefill_attention_backend = fa3_like\n", ATTN_CONFIG_ERROR,
     "t.ini:8: attention.prefill_attention_backend"},
    {"route.1 = -> fa3_like\ndecode_attention_backend = fa3_like\n", ATTN_CONFIG_ERROR,
     "t.ini:8: attention.decode_attention_backend"},
    {"route.1 = -> fa3_like\n[backend.routes]\ntype = fa3_like\n", ATTN_CONFIG_ERROR,
     "backend routes is defined twice"},
    {"route.1 = phase=decode -> fa3_likee\nroute.2 = -> fa3_like\n", ATTN_CONFIG_ERROR,
     "t.ini:7: attention.route.1: backend.routes.then = 'fa3_likee' is not a known backend "
     "(did you mean fa3_like?)"},
    {"route.1 = phase=decode -> routes\nroute.2 = -> fa3_like\n", ATTN_CONFIG_ERROR,
     "backends contain each other: routes -> routes"},
    {"route.4 = phase=decoding -> triton_like\nroute.5 = -> fa3_like\n" SM90, ATTN_CONFIG_ERROR,
     "t.ini:7: attention.route.4: row 1 'phase=decoding -> triton_like': 'phase=decoding' is not a "
     "list of phases"},
    {"route.4 = batch=1-8 -> triton_like\nroute.9 = batch=3 kv=7 -> fa3_like\n"
     "attention_backend = fa3_like\n" SM90,
     ATTN_CONFIG_ERROR,
     "t.ini:8: attention.route.9: row 2 'batch=3 kv=7 -> fa3_like' can never match: row 1 "
     "'batch=1-8 -> triton_like' (t.ini:7: attention.route.4)"},
    /* a layout that no two of them share */
    {"route.2 = phase=decode kv=0-64 -> decode_hnd\nroute.5 = -> fa3_like\n" SM90, ATTN_UNSUPPORTED,
     "decode_hnd: kv_layout kv.nhd/1: accepted kv.hnd/1 (attention.route.2, t.ini:7)"},
    /* what a child cannot do at all */
    {"route.2 = phase=prefill -> decode_only\nroute.5 = -> fa3_like\n" SM90, ATTN_UNSUPPORTED,
     "(attention.route.2, t.ini:7)"},
};

LOOP_OF(load, refused_at_load, 0, COUNT(refusals))
{
    SCENE(scene);
    begin(&scene, refusals[_i].keys, NULL, 0);
    const char *text = host_error_text(&scene.error);
    ck_assert_msg(scene.status == refusals[_i].status, "status %d: %s", (int)scene.status, text);
    ck_assert_msg(strstr(text, refusals[_i].says), "'%s' is not in: %s", refusals[_i].says, text);
}

/* Each child is asked about what can reach it: backends of one phase do, together. */
TEST_OF(load, capabilities_unite)
{
    SCENE(scene);
    begin(&scene,
          "route.1 = phase=decode batch=1-8 -> decode_hnd\nroute.2 = phase=decode -> decode_only\n"
          "route.7 = -> extend_only\n",
          NULL, 0);
    ck_assert_msg(scene.status == ATTN_OK, "%s", host_error_text(&scene.error));
    for (uint32_t phase = 0; phase < SELECT_PHASES; phase++) {
        ck_assert_str_eq(select_backend(scene.selection, 0, phase), "routes");
        ck_assert_str_eq(scene.selection->groups[0].phases[phase].why,
                         "attention.route.1..7 (t.ini:7)");
    }
    ck_assert_str_eq(scene.selection->groups[0].kv_layout, ATTN_LAYOUT_KV_HND);
    ck_assert_uint_eq(scene.selection->num_units, 1);
}

/* Aliases are names here too; the default may be attention_backend; --set gives a row as well. */
TEST_OF(load, names_are_found_as_elsewhere)
{
    static const char *const sets[] = {"attention.route.3=layers=1 -> mine"};
    SCENE(scene);
    begin(&scene,
          "attention_backend = triton\nroute.1 = batch=2- -> triton\n"
          "[backend.mine]\ntype = triton_like\n" SM90,
          sets, 1);
    ck_assert_msg(scene.status == ATTN_OK, "%s", host_error_text(&scene.error));
    const struct compose_definition *routes = composer_find(&scene.host->composer, ROUTES_NAME);
    static const char *const texts[][2] = {{"when", "batch=2-"},
                                           {"then", "triton_like"},
                                           {"when", "layers=1"},
                                           {"then", "mine"},
                                           {"otherwise", "triton_like"}};
    ck_assert_uint_eq(routes->num_texts, 5);
    for (size_t t = 0; t < 5; t++) {
        ck_assert_str_eq(routes->texts[t].key, texts[t][0]);
        ck_assert_str_eq(routes->texts[t].value, texts[t][1]);
    }
    ck_assert_str_eq(routes->texts[4].place, "t.ini:7");
}

/* ---- What `explain` prints ------------------------------------------------------------------- */

TEST_OF(load, explain_prints_the_table)
{
    SCENE(scene);
    char *text = NULL;
    size_t size = 0;
    begin(&scene,
          "attention_backend = triton_like\nroute.1 = batch=2-   -> triton_like\n"
          "route.20 = kv=5 -> triton_like\n" SM90,
          NULL, 0);
    FILE *file = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(file);
    routes_print(scene.config, file);
    fclose(file);
    ck_assert_str_eq(text, "routes, the first that matches:\n"
                           "  route.1     batch=2-   -> triton_like (t.ini:8)\n"
                           "  route.20    kv=5 -> triton_like (t.ini:9)\n"
                           "  otherwise   -> triton_like (t.ini:7)\n");
    free(text);
    cJSON *object = cJSON_CreateObject();
    ck_assert_int_eq(routes_add_json(scene.config, object), 1);
    cJSON *array = cJSON_GetObjectItem(object, "routes");
    ck_assert_int_eq(cJSON_GetArraySize(array), 3);
    cJSON *second = cJSON_GetArrayItem(array, 1);
    ck_assert_int_eq(cJSON_GetObjectItem(second, "number")->valueint, 20);
    ck_assert_str_eq(cJSON_GetObjectItem(second, "route")->valuestring, "kv=5 -> triton_like");
    ck_assert_str_eq(cJSON_GetObjectItem(second, "place")->valuestring, "t.ini:9");
    ck_assert_str_eq(cJSON_GetObjectItem(cJSON_GetArrayItem(array, 2), "route")->valuestring,
                     "-> triton_like");
    cJSON_Delete(object);
}

/* The command shows what the keys make. */
TEST_OF(load, inspect_shows_the_backend)
{
    char command[2048], line[512];
    int found = 0;
    snprintf(command, sizeof command,
             "%s inspect routes --config %s/examples/route.ini --set plugins.path=%s",
             environment("ATTNHOST_TEST_COMMAND", "./attnhost"),
             environment("ATTNHOST_TEST_SRCDIR", "."),
             environment("ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs"));
    FILE *output = popen(command, "r");
    ck_assert_ptr_nonnull(output);
    while (fgets(line, sizeof line, output)) {
        found |=
            strncmp(line, "backend routes (", 16) == 0 && strstr(line, "of type route") ? 1 : 0;
        found |= strstr(line, "  when         layers=0 phase=decode (") ? 2 : 0;
        found |= strstr(line, "attention.route.2)") ? 4 : 0;
        found |= strstr(line, "  otherwise    cpu_native (") ? 8 : 0;
        found |= strncmp(line, "route: ", 7) == 0 ? 16 : 0;
    }
    ck_assert_int_eq(pclose(output), 0);
    ck_assert_int_eq(found, 31);
}

#define VAIN  "graphs: the row '"
#define BOUND "they are captured for 8192 keys, the model's context"

/* What explain says of graphs with these options, line by line; the exit code. It folds lines for
 * readers: what goes on, two columns further in, is joined again. */
static int explain_graphs(const char *ini, const char *options, char *text, size_t size)
{
    char command[2048], line[2048];
    size_t length = 0;
    snprintf(command, sizeof command, "%s explain %s --set plugins.path=%s %s",
             environment("ATTNHOST_TEST_COMMAND", "./attnhost"), ini,
             environment("ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs"), options);
    FILE *output = popen(command, "r");
    ck_assert_ptr_nonnull(output);
    text[0] = '\0';
    bool inside = false;
    while (fgets(line, sizeof line, output)) {
        bool goes_on = inside && strncmp(line, "  ", 2) == 0;
        inside = goes_on || strstr(line, "graphs: the row");
        if (goes_on)
            text[length - 1] = ' ';
        if (inside && length < size)
            length +=
                (size_t)snprintf(text + length, size - length, "%s", line + (goes_on ? 2 : 0));
    }
    return pclose(output);
}

/* Rows whose length no graph has are named: those of the keys, and of a table below them; not those
 * of prefill, and not those that the bound is in. */
TEST_OF(load, rows_that_no_graph_takes)
{
    static const char keys[] =
        MODEL "attention_backend = mine\nroute.1 = kv=0-1024 phase=verify,decode -> short\n"
              "route.2 = phase=prefill kv=0-64 -> triton_like\n"
              "route.3 = batch=2 kv=4096- -> short\nroute.4 = batch=3 kv=8192 -> short\n"
              "[backend.short]\ntype = triton_like\n[backend.mine]\ntype = route\n"
              "when = layers=0 kv=9000-\nthen = short\nwhen = batch=1-8\nthen = short\n"
              "otherwise = triton_like\n";
    char path[] = "/tmp/check_routes.XXXXXX", text[4096];
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(write(file, keys, strlen(keys)), (ssize_t)strlen(keys));
    close(file);
    const char *sm90 = "--set platform.simulate=sm90 --set model.max_context_len=8192";
    ck_assert_int_eq(explain_graphs(path, sm90, text, sizeof text), 0);
    const char *first = strstr(text, VAIN "kv=0-1024 phase=verify,decode' (");
    const char *second = strstr(text, VAIN "layers=0 kv=9000-' (");
    ck_assert_msg(first && second, "%s", text);
    ck_assert_msg(strstr(first, ":8: attention.route.1) matches none: " BOUND) != NULL, "%s", text);
    ck_assert_msg(strstr(second, ":16) matches none: " BOUND) != NULL, "%s", text);
    first = strstr(first + 1, VAIN);
    ck_assert_ptr_eq(first, second);
    ck_assert_ptr_null(strstr(second + 1, VAIN));
    snprintf(text, sizeof text, "%s --json", sm90);
    char json[4096];
    ck_assert_int_eq(explain_graphs(path, text, json, sizeof json), 0);
    ck_assert_msg(strstr(json, "\"" VAIN) != NULL, "%s", json);
    snprintf(text, sizeof text, "%s --set cuda_graph.enable=no", sm90);
    ck_assert_int_eq(explain_graphs(path, text, json, sizeof json), 0);
    ck_assert_str_eq(json, "");
    snprintf(text, sizeof text, "%s --set backend.short.type=cpu_native 2>&1", sm90);
    explain_graphs(path, text, json, sizeof json); /* where no backend serves, none is captured */
    ck_assert_str_eq(json, "");
    unlink(path);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

enum { MAX_SETS = 48 };

struct run {
    char *sets[MAX_SETS];
    size_t num_sets;
    struct report report;
    host_error error;
};

__attribute__((format(printf, 2, 3))) static void set(struct run *run, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ck_assert_uint_lt(run->num_sets, MAX_SETS);
    run->sets[run->num_sets++] = strdup(text);
}

/* A small model and the first requests of the example trace. */
static void prepare_run(struct run *run)
{
    memset(run, 0, sizeof *run);
    report_init(&run->report);
    host_error_init(&run->error);
    set(run, "plugins.path=%s", environment("ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs"));
    set(run, "plugins.path=%s/example_rows.so",
        environment("ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs"));
    set(run, "workload.trace=%s/examples/traces/mini_mooncake.jsonl",
        environment("ATTNHOST_TEST_SRCDIR", "."));
    set(run, "model.num_layers=4");
    set(run, "model.num_q_heads=4");
    set(run, "model.num_kv_heads=2");
    set(run, "model.head_dim=16");
    set(run, "model.dtype=f32");
    set(run, "model.max_context_len=4096");
    set(run, "workload.length_scale=0.02");
    set(run, "workload.max_requests=16");
    set(run, "workload.chunked_prefill_size=32");
    set(run, "workload.max_running_requests=6");
    set(run, "kv_cache.page_size=4");
    set(run, "verify.rate=1");
}

static void go(struct run *run)
{
    struct config *config = NULL;
    attn_status status =
        config_load(NULL, (const char *const *)run->sets, run->num_sets, &config, &run->error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&run->error));
    struct session_params params = {.config = config};
    struct session_result result;
    status = session_run(&params, &run->report, &result, &run->error.base);
    config_destroy(config);
    ck_assert_msg(status == ATTN_OK && result.passed, "%s %s", host_error_text(&run->error),
                  run->report.verify.first_failure);
    ck_assert_int_eq(run->report.verify.rows_failed, 0);
    ck_assert_int_gt(run->report.verify.rows_checked, 1000);
    ck_assert_int_eq(run->report.kv.leaked, 0);
}

static void finish_run(struct run *run)
{
    report_finish(&run->report);
    for (size_t s = 0; s < run->num_sets; s++)
        free(run->sets[s]);
}

static int64_t rows_of(const struct run *run, const char *name)
{
    for (uint32_t p = 0; p < run->report.num_paths; p++)
        if (strcmp(run->report.paths[p].name, name) == 0)
            return run->report.paths[p].rows;
    return -1;
}

/* Two independent codes by phase: every row is served by the child of its phase. */
static void check_phases(int mixed)
{
    struct run run;
    prepare_run(&run);
    set(&run, "workload.mixed=%s", mixed ? "yes" : "no");
    set(&run, "attention.prefill_attention_backend=cpu_native");
    set(&run, "attention.decode_attention_backend=example_rows");
    go(&run);
    const struct report *r = &run.report;
    ck_assert_int_eq(rows_of(&run, "cpu_native"), 4 * r->tokens.prefill);
    ck_assert_int_eq(rows_of(&run, "example_rows"), 4 * r->tokens.decode);
    finish_run(&run);
}

LOOP_OF(runs, a_trace_under_hybrid_phase, 0, 2)
{
    check_phases(_i);
}

/* The same by length: each row of the table is met, none fails, and all rows are counted. */
LOOP_OF(runs, a_trace_under_routes_by_length, 0, 2)
{
    static const char *const names[] = {"short", "long_first", "many", "example_rows",
                                        "cpu_native"};
    struct run run;
    int64_t rows = 0;
    prepare_run(&run);
    set(&run, "workload.mixed=%s", _i ? "yes" : "no");
    set(&run, "attention.route.1=phase=decode kv=0-64 -> short");
    set(&run, "attention.route.2=phase=decode layers=0-1 -> long_first");
    set(&run, "attention.route.3=phase=prefill batch=2- kv=0-64 -> many");
    set(&run, "attention.route.4=phase=prefill kv=65- -> example_rows");
    set(&run, "attention.attention_backend=cpu_native");
    set(&run, "backend.short.type=example_rows");
    set(&run, "backend.long_first.type=example_rows");
    set(&run, "backend.many.type=cpu_native");
    go(&run);
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        ck_assert_msg(rows_of(&run, names[n]) > 0, "%s: %lld rows", names[n],
                      (long long)rows_of(&run, names[n]));
        rows += rows_of(&run, names[n]);
    }
    ck_assert_int_eq(rows, 4 * (run.report.tokens.prefill + run.report.tokens.decode));
    ck_assert_str_eq(run.report.choices[0].backend, "routes");
    finish_run(&run);
}

/* Between two names of one backend nothing changes but the paths. */
TEST_OF(runs, routes_do_not_change_bits)
{
    struct run alone, routed;
    prepare_run(&alone);
    set(&alone, "attention.attention_backend=cpu_native");
    go(&alone);
    prepare_run(&routed);
    set(&routed, "attention.route.1=phase=decode batch=2-3 -> other");
    set(&routed, "attention.route.2=layers=1,3 kv=20- -> other");
    set(&routed, "attention.route.3=-> cpu_native");
    set(&routed, "backend.other.type=cpu_native");
    go(&routed);
    ck_assert_int_gt(rows_of(&routed, "other"), 0);
    ck_assert_int_gt(rows_of(&routed, "cpu_native"), 0);
    ck_assert_str_eq(routed.report.digest, alone.report.digest);
    finish_run(&alone);
    finish_run(&routed);
}

TESTS("routes");
