/* SPDX-License-Identifier: Apache-2.0
 *
 * check_explain: what is chosen for models of many architectures on many platforms, and whether it
 * is explained.
 *
 * The choices are compared with tests/models/expected_choice.txt, which is written by hand; the
 * texts of tests/golden/explain are for people to read, and follow the program:
 * `make explain-update`.
 */

#include "host/base/text.h"
#include "host/select/selection_api.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/host/select/scene.h"

static const char *const platforms[] = {"sm80",   "sm90", "sm100", "sm120",
                                        "gfx942", "xpu",  "npu",   "cpu_amx"};
enum { NUM_PLATFORMS = sizeof platforms / sizeof *platforms };

static const char *const models[] = {
    "bert",       "deepseek_v2", "deepseek_v3",  "deepseek_v32", "falcon_h1",   "gemma2",
    "gemma3",     "glm_5",       "gpt_oss",      "kimi_k25",     "kimi_linear", "lfm2",
    "llama",      "llama4",      "mamba2",       "minimax",      "mistral",     "mixtral",
    "modernbert", "nemotron_h",  "olmo2",        "qwen2",        "qwen3",       "qwen3_moe",
    "qwen3_next", "qwen3_vl",    "qwen3_vl_moe", "roberta",      "whisper",
};
enum { NUM_MODELS = sizeof models / sizeof *models };

/* ---- One selection --------------------------------------------------------------------------- */

/* The model of a file, under a name that does not depend on where the tests lie. */
static struct model *read_model(const char *name, const struct config *config)
{
    char path[1024], text[4096];
    HOST_ERROR(error);
    struct model *model = NULL;
    snprintf(path, sizeof path, "%s/tests/models/%s.json", environment("ATTNHOST_TEST_SRCDIR", "."),
             name);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s cannot be opened", path);
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    snprintf(path, sizeof path, "%s.json", name);
    attn_status status = model_create_hf_text(text, length, path, config, &model, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s: %s", name, host_error_text(&error));
    return model;
}

static void set_up(struct scene *scene, const char *const *sets, size_t num_sets)
{
    scene_create(scene);
    attn_status status =
        config_load_text("", 0, "t.ini", NULL, sets, num_sets, &scene->config, &scene->error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&scene->error));
}

/* Select for a model as on `platform`; the scene's host is set up. */
static void choose(struct scene *scene, const char *model, const char *platform)
{
    attn_device device;
    ck_assert_int_eq(platform_simulate(platform, &device), 0);
    scene->model = read_model(model, scene->config);
    scene->status = select_create(scene->host, scene->config, scene->model, &device,
                                  &scene->selection, &scene->error.base);
    ck_assert_msg(scene->selection != NULL, "%s on %s: %s", model, platform,
                  host_error_text(&scene->error));
}

/* The scene's selection in the words of attnhost.h. */
static const attnhost_selection *tell(struct scene *scene)
{
    const attnhost_selection *selected = NULL;
    attn_status status =
        selection_api_create(scene->host, scene->config, scene->selection, scene->status,
                             host_error_text(&scene->error), &selected, &scene->error.base);
    ck_assert_int_eq(status, ATTN_OK);
    return selected;
}

static void end_choice(struct scene *scene)
{
    select_destroy(scene->selection);
    model_destroy(scene->model);
    scene->selection = NULL;
    scene->model = NULL;
}

static void tear_down(struct scene *scene)
{
    end_choice(scene);
    config_destroy(scene->config);
    attnhost_destroy(scene->host);
}

/* Settings that every selection here has: the tree's own rules, not installed ones. */
enum { MAX_SETS = 8 };

struct sets {
    char texts[MAX_SETS][512];
    const char *list[MAX_SETS];
    size_t count;
};

static void add_set(struct sets *sets, const char *key, const char *value)
{
    ck_assert_uint_lt(sets->count, MAX_SETS);
    snprintf(sets->texts[sets->count], sizeof sets->texts[0], "%s=%s", key, value);
    sets->list[sets->count] = sets->texts[sets->count];
    sets->count++;
}

static void begin_sets(struct sets *sets, const char *platform)
{
    char path[480];
    sets->count = 0;
    snprintf(path, sizeof path, "%s/host/select/selection.ini",
             environment("ATTNHOST_TEST_SRCDIR", "."));
    add_set(sets, "attention.rules", path);
    add_set(sets, "platform.simulate", platform);
}

/* ---- The table that is written by hand ------------------------------------------------------- */

struct expectation {
    char model[32], part[16], setting[16];
    char names[NUM_PLATFORMS][32];
};

static FILE *open_table(void)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/tests/models/expected_choice.txt",
             environment("ATTNHOST_TEST_SRCDIR", "."));
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s cannot be opened", path);
    return file;
}

/* The next line of the table; a line without a source fails. */
static bool next_expectation(FILE *file, struct expectation *line)
{
    char text[512], *source = NULL;
    while (fgets(text, sizeof text, file)) {
        if (text[0] == '#' || text[0] == '\n')
            continue;
        source = strchr(text, '#');
        ck_assert_msg(source && strlen(source) > 4, "no source: %s", text);
        char(*n)[32] = line->names;
        ck_assert_msg(sscanf(text, "%31s %15s %15s %31s %31s %31s %31s %31s %31s %31s %31s #",
                             line->model, line->part, line->setting, n[0], n[1], n[2], n[3], n[4],
                             n[5], n[6], n[7]) == 3 + NUM_PLATFORMS,
                      "%s", text);
        return true;
    }
    return false;
}

static void add_setting(struct sets *sets, const char *setting)
{
    if (strcmp(setting, "chain") == 0)
        add_set(sets, "attention.speculative_eagle_topk", "1");
    else if (strcmp(setting, "tree") == 0)
        add_set(sets, "attention.speculative_eagle_topk", "4");
    else if (strcmp(setting, "-") != 0) {
        add_set(sets, "kv_cache.dtype", setting);
        add_set(sets, "kv_cache.k_scale", "1");
        add_set(sets, "kv_cache.v_scale", "1");
    }
}

static bool is_part(const attn_layer_group *group, const char *part)
{
    if (strcmp(part, "all") == 0)
        return true;
    if (strcmp(part, "linear") == 0)
        return group->kind == ATTN_KIND_LINEAR;
    if (strcmp(part, "text") == 0)
        return group->kind != ATTN_KIND_LINEAR && group->attn_type == ATTN_TYPE_DECODER;
    return group->attn_type == ATTN_TYPE_ENCODER_ONLY;
}

/* The backend type that one of the table's names stands for. */
static const char *type_of(const struct selection *selection, const char *name)
{
    const struct rule *alias = rules_alias(selection->rules, name);
    ck_assert_msg(alias || rules_backend(selection->rules, name), "%s is unknown", name);
    return alias ? alias->name : name;
}

/* Compare one cell of the table. With all backends installed the real choice is meant, with none
 * what would be chosen. */
static void check_cell(const struct expectation *line, size_t platform, bool installed)
{
    struct scene scene;
    struct sets sets;
    uint32_t compared = 0;
    const char *wanted = line->names[platform];
    if (strcmp(wanted, "-") == 0)
        return;
    begin_sets(&sets, platforms[platform]);
    add_setting(&sets, line->setting);
    set_up(&scene, sets.list, sets.count);
    if (installed)
        load_plugin(scene.host, "ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs",
                    "all_backends.so");
    choose(&scene, line->model, platforms[platform]);
    for (uint32_t g = 0; g < scene.selection->num_groups; g++) {
        if (!is_part(&scene.model->groups[g], line->part))
            continue;
        for (uint32_t p = 0; p < SELECT_PHASES; p++) {
            const struct select_phase *phase = &scene.selection->groups[g].phases[p];
            if (!phase->exists)
                continue;
            int32_t index = installed ? phase->chosen : phase->preferred;
            const char *got = index < 0 ? "none" : phase->candidates[index].name;
            ck_assert_msg(strcmp(got, type_of(scene.selection, wanted)) == 0,
                          "%s %s %s on %s, group %u: got %s (%s), expected %s", line->model,
                          line->part, line->setting, platforms[platform], g, got, phase->why,
                          wanted);
            compared++;
        }
    }
    ck_assert_msg(compared > 0, "%s has no part %s", line->model, line->part);
    tear_down(&scene);
}

TEST_OF(choice, what_would_be_chosen_is_what_the_table_says)
{
    struct expectation line;
    FILE *file = open_table();
    int lines = 0;
    for (; next_expectation(file, &line); lines++)
        for (size_t p = 0; p < NUM_PLATFORMS; p++)
            check_cell(&line, p, false);
    fclose(file);
    ck_assert_int_ge(lines, 30);
}

/* Of devices that the ABI has no type for nothing can be installed. */
TEST_OF(choice, what_is_chosen_where_all_is_installed_is_the_same)
{
    struct expectation line;
    FILE *file = open_table();
    while (next_expectation(file, &line))
        for (size_t p = 0; p < NUM_PLATFORMS; p++) {
            attn_device device;
            ck_assert_int_eq(platform_simulate(platforms[p], &device), 0);
            if (!platform_is_foreign(&device))
                check_cell(&line, p, true);
        }
    fclose(file);
}

TEST_OF(choice, every_architecture_has_an_expectation)
{
    for (size_t m = 0; m < NUM_MODELS; m++) {
        struct expectation line;
        bool found = false;
        FILE *file = open_table();
        while (next_expectation(file, &line))
            found = found || strcmp(line.model, models[m]) == 0;
        fclose(file);
        ck_assert_msg(found, "%s", models[m]);
    }
}

/* ---- Every rejection is explained ------------------------------------------------------------ */

static void load_real(attnhost *host)
{
    load_plugin(host, "ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", "cpu_native.so");
    load_plugin(host, "ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", "triton_like.so");
}

static void assert_text(const cJSON *object, const char *key, const char *where)
{
    const cJSON *item = cJSON_GetObjectItem(object, key);
    ck_assert_msg(cJSON_IsString(item) && item->valuestring[0], "%s: a reason without %s", where,
                  key);
}

/* Returns the number of reasons seen. */
static int check_candidates(const cJSON *phase, const char *where)
{
    const cJSON *candidate, *reason;
    int seen = 0;
    cJSON_ArrayForEach(candidate, cJSON_GetObjectItem(phase, "candidates"))
    {
        const cJSON *reasons = cJSON_GetObjectItem(candidate, "reasons");
        bool supported = cJSON_IsTrue(cJSON_GetObjectItem(candidate, "supported"));
        ck_assert_msg(supported == (cJSON_GetArraySize(reasons) == 0), "%s: %s", where,
                      cJSON_GetObjectItem(candidate, "name")->valuestring);
        cJSON_ArrayForEach(reason, reasons)
        {
            assert_text(reason, "code", where);
            assert_text(reason, "field", where);
            assert_text(reason, "got", where);
            assert_text(reason, "accepted", where);
            assert_text(reason, "text", where);
            seen++;
        }
    }
    return seen;
}

TEST_OF(choice, every_rejection_has_code_got_and_accepted)
{
    int seen = 0;
    for (size_t m = 0; m < NUM_MODELS; m++)
        for (size_t p = 0; p < NUM_PLATFORMS; p++) {
            struct scene scene;
            struct sets sets;
            char where[64];
            const cJSON *group, *phase;
            begin_sets(&sets, platforms[p]);
            set_up(&scene, sets.list, sets.count);
            load_real(scene.host);
            choose(&scene, models[m], platforms[p]);
            snprintf(where, sizeof where, "%s on %s", models[m], platforms[p]);
            const attnhost_selection *selected = tell(&scene);
            cJSON *json = selection_api_to_json(selected);
            cJSON_ArrayForEach(group, cJSON_GetObjectItem(json, "groups"))
                cJSON_ArrayForEach(phase, cJSON_GetObjectItem(group, "phases")) seen +=
                check_candidates(phase, where);
            cJSON_Delete(json);
            attnhost_selection_destroy(selected);
            tear_down(&scene);
        }
    ck_assert_int_gt(seen, 1000);
}

/* ---- Texts for people ------------------------------------------------------------------------ */

/* What a platform's file holds: each distinct passage once, after the models and layers it is said of. */
enum { MAX_PASSAGES = 64 };

struct passages {
    char *texts[MAX_PASSAGES];
    strbuf of[MAX_PASSAGES];
    int count;
};

static void add_passage(struct passages *passages, const char *text, const char *of)
{
    int i = 0;
    while (i < passages->count && strcmp(passages->texts[i], text) != 0)
        i++;
    if (i == passages->count) {
        ck_assert_int_lt(passages->count++, MAX_PASSAGES);
        passages->texts[i] = strdup(text);
    }
    strbuf_appendf(&passages->of[i], "%s%s", passages->of[i].length ? "; " : "", of);
}

static char *print_passages(struct passages *passages)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    for (int i = 0; i < passages->count; i++) {
        if (i > 0)
            putc('\n', file);
        text_wrap_line(file, 0, 2, "%s", strbuf_text(&passages->of[i]));
        fprintf(file, "%s\n", passages->texts[i]);
        free(passages->texts[i]);
        strbuf_finish(&passages->of[i]);
    }
    fclose(file);
    return text;
}

/* The scene is to be torn down. */
static const attnhost_selection *select_on(struct scene *scene, const char *model,
                                           const char *platform)
{
    struct sets sets;
    begin_sets(&sets, platform);
    set_up(scene, sets.list, sets.count);
    load_real(scene->host);
    choose(scene, model, platform);
    return tell(scene);
}

/* To be freed. */
static void explain(const char *model, const char *platform, char **text)
{
    size_t size = 0;
    FILE *file = open_memstream(text, &size);
    struct scene scene;
    const attnhost_selection *selected = select_on(&scene, model, platform);
    selection_api_print(selected, file);
    attnhost_selection_destroy(selected);
    tear_down(&scene);
    fclose(file);
}

/* Where the description of a group's layers ends and what is chosen for them begins. */
static char *end_of_layers(char *paragraph)
{
    static const char *const next[] = {"\n  served by", "\n  prefill", "\n  candidates"};
    char *end = NULL;
    for (size_t i = 0; i < sizeof next / sizeof *next; i++) {
        char *found = strstr(paragraph, next[i]);
        if (found && (!end || found < end))
            end = found;
    }
    ck_assert_msg(end != NULL, "what is chosen is missing in '%s'", paragraph);
    return end;
}

/* What is said of a model: the parts that no platform changes go to `described`. */
static void sort_out(const char *model, char *text, FILE *described, struct passages *passages)
{
    char *next = strstr(text, "\nmodel:"), of[128];
    ck_assert_ptr_nonnull(next);
    *next++ = '\0';
    add_passage(passages, text, model);
    for (text = next; text; text = next) {
        next = strstr(text, "\n\n");
        if (next) {
            *next = '\0';
            next += 2;
        } else
            text[strlen(text) - 1] = '\0';
        if (strncmp(text, "layer", 5) == 0) {
            char *end = end_of_layers(text);
            *end = '\0';
            snprintf(of, sizeof of, "%s %.*s", model, (int)strcspn(strchr(text, ' ') + 1, ":"),
                     strchr(text, ' ') + 1);
            add_passage(passages, end + 1, of);
        }
        fprintf(described, "%s\n%s", text, next ? "" : "\n");
    }
}

/* "-> BACKEND (auto: rule NAME): CANDIDATE CODE ..., CANDIDATE": the candidates in the order in which they are tried, and
 * the codes of what is against each. */
static void append_candidates(strbuf *text, const attnhost_phase *phase)
{
    const attnhost_candidate *c = phase->candidates;
    const char *rule = strstr(phase->why, "rule "), *none = "none";
    size_t length = (size_t)(rule ? rule - phase->why : 0) + strcspn(rule ? rule : phase->why, ":");
    if (phase->chosen >= 0)
        none = ((const attnhost_candidate *)attn_at(c, (uint32_t)phase->chosen))->name;
    strbuf_appendf(text, " -> %s (%.*s):", none, (int)length, phase->why);
    for (uint32_t i = 0; i < phase->num_candidates; i++) {
        c = attn_at(phase->candidates, i);
        strbuf_appendf(text, "%s %s", i ? "," : "", c->name);
        for (uint32_t r = 0; r < c->num_reasons; r++) {
            const attnhost_reason *reason = attn_at(c->reasons, r);
            strbuf_appendf(text, " %s", reason->code_name);
            if (reason->rule[0])
                strbuf_appendf(text, " %s", reason->rule);
        }
    }
}

/* For each group of a model's layers, a passage with a line for its phases, or two where they differ. */
static void add_candidates(const char *model, const char *platform, struct passages *passages)
{
    struct scene scene;
    const attnhost_selection *selected = select_on(&scene, model, platform);
    for (uint32_t g = 0; g < selected->num_groups; g++) {
        const attnhost_group *group = attn_at(selected->groups, g);
        char of[128], *text = NULL;
        size_t size = 0;
        strbuf lines[SELECT_PHASES];
        FILE *file = open_memstream(&text, &size);
        for (uint32_t p = 0; p < SELECT_PHASES; p++) {
            strbuf_init(&lines[p]);
            if (p < group->num_phases)
                append_candidates(&lines[p], attn_at(group->phases, p));
        }
        bool alike = strcmp(strbuf_text(&lines[0]), strbuf_text(&lines[1])) == 0;
        text_wrap_line(file, 2, 6, "prefill%s%s", alike ? ", decode" : "", strbuf_text(&lines[0]));
        if (group->num_phases > 1 && !alike)
            text_wrap_line(file, 2, 6, "decode%s", strbuf_text(&lines[1]));
        for (uint32_t p = 0; p < SELECT_PHASES; p++)
            strbuf_finish(&lines[p]);
        fclose(file);
        text[size - 1] = '\0';
        snprintf(of, sizeof of, "%s %s", model, group->layers);
        add_passage(passages, text, of);
        free(text);
    }
    attnhost_selection_destroy(selected);
    tear_down(&scene);
}

/* Line by line, so that a failure shows the line. */
static void compare(const char *text, FILE *file, const char *path)
{
    char wanted[1024];
    int number = 0;
    while (fgets(wanted, sizeof wanted, file)) {
        size_t length = strlen(wanted);
        number++;
        ck_assert_msg(length <= TEXT_WIDTH + 1, "%s:%d: wider than %d columns", path, number,
                      TEXT_WIDTH);
        ck_assert_msg(strncmp(text, wanted, length) == 0,
                      "%s:%d: got '%.*s', the file has '%.*s' (make explain-update)", path, number,
                      (int)strcspn(text, "\n"), text, (int)strcspn(wanted, "\n"), wanted);
        text += length;
    }
    ck_assert_msg(!*text, "%s ends before '%.*s'", path, (int)strcspn(text, "\n"), text);
}

/* Compare with a file of tests/golden/explain, or write it. */
static void compare_file(char *text, const char *name)
{
    char path[1024];
    bool update = getenv("ATTNHOST_UPDATE_GOLDEN") != NULL;
    snprintf(path, sizeof path, "%s/tests/golden/explain/%s.txt",
             environment("ATTNHOST_TEST_SRCDIR", "."), name);
    FILE *file = fopen(path, update ? "w" : "r");
    ck_assert_msg(file != NULL, "%s cannot be opened", path);
    if (update)
        fputs(text, file);
    else
        compare(text, file, path);
    ck_assert_int_eq(fclose(file), 0);
    free(text);
}

/* One GPU and one processor have the texts of explain, the others the candidates. */
LOOP_OF(texts, explain_reads_as_it_did, 0, NUM_PLATFORMS)
{
    struct passages passages = {.count = 0};
    const char *platform = platforms[_i];
    if (strcmp(platform, "sm90") != 0 && strcmp(platform, "cpu_amx") != 0) {
        for (size_t m = 0; m < NUM_MODELS; m++)
            add_candidates(models[m], platform, &passages);
        compare_file(print_passages(&passages), platform);
        return;
    }
    char *models_text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&models_text, &size);
    for (size_t m = 0; m < NUM_MODELS; m++) {
        char *text = NULL;
        explain(models[m], platform, &text);
        sort_out(models[m], text, file, &passages);
        free(text);
    }
    fclose(file);
    compare_file(models_text, "models");
    compare_file(print_passages(&passages), platform);
}

/* ---- Device memory --------------------------------------------------------------------------- */

/* What metadata takes, as the chosen backend tells it: of both phases together, of each alone, and
 * of a graph; more sequences take more. */
static double expect_memory(const char *platform, const char *most, int has_memory)
{
    struct scene scene;
    struct sets sets;
    char *text = NULL;
    size_t size = 0;
    begin_sets(&sets, platform);
    add_set(&sets, "workload.max_running_requests", most);
    set_up(&scene, sets.list, sets.count);
    load_real(scene.host);
    choose(&scene, "llama", platform);
    const attnhost_selection *selected = tell(&scene);
    const attnhost_group *group = selected->groups;
    for (uint32_t p = 0; p < group->num_phases; p++) {
        const attnhost_phase *phase = attn_at(group->phases, p);
        const attnhost_candidate *chosen = attn_at(phase->candidates, (uint32_t)phase->chosen);
        ck_assert_uint_ge(group->device_bytes, chosen->verdict->device_bytes);
        if (p == SELECT_DECODE)
            ck_assert_uint_eq(group->graph_device_bytes,
                              has_memory ? chosen->verdict->device_bytes : 0);
    }
    FILE *file = open_memstream(&text, &size);
    selection_api_print(selected, file);
    fclose(file);
    ck_assert_int_eq(strstr(text, "\n  workspace: at most ") != NULL, has_memory);
    cJSON *json = selection_api_to_json(selected);
    const cJSON *first = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "groups"), 0);
    double bytes = cJSON_GetObjectItem(first, "device_bytes")->valuedouble;
    ck_assert_double_eq(bytes, (double)group->device_bytes);
    ck_assert_double_eq(cJSON_GetObjectItem(first, "graph_device_bytes")->valuedouble,
                        (double)group->graph_device_bytes);
    cJSON_Delete(json);
    free(text);
    attnhost_selection_destroy(selected);
    tear_down(&scene);
    return bytes;
}

TEST_OF(choice, device_memory_is_told)
{
    double few = expect_memory("sm90", "2", 1);
    ck_assert_double_gt(few, 0);
    ck_assert_double_gt(expect_memory("sm90", "500", 1), few);
    expect_memory("cpu_amx", "2", 0);
}

/* ---- No context ------------------------------------------------------------------------------ */

/* What `explain` does for a device of this machine looks at it and takes nothing of it: the first
 * call that makes a context would fail, and it is never made. */
TEST_OF(choice, no_context_is_made)
{
    static const char *const chosen[] = {"triton_like", "auto"};
    use_fake_cuda_in_plugins();
    fake.inject("cuDevicePrimaryCtxRetain", 1, CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < 2; i++) {
        struct scene scene;
        struct sets sets;
        attn_device device;
        struct fake_cuda_live live;
        begin_sets(&sets, "sm90");
        sets.count--; /* the real device, as far as the fake is one */
        add_set(&sets, "platform.device", "cuda:0");
        add_set(&sets, "attention.attention_backend", chosen[i]);
        set_up(&scene, sets.list, sets.count);
        load_real(scene.host);
        scene.model = read_model("llama", scene.config);
        ck_assert_int_eq(platform_describe(scene.config, &device, &scene.error.base), ATTN_OK);
        ck_assert_int_eq(device.type, ATTN_DEVICE_CUDA);
        scene.status = select_create(scene.host, scene.config, scene.model, &device,
                                     &scene.selection, &scene.error.base);
        ck_assert_msg(scene.status == ATTN_OK, "%s", host_error_text(&scene.error));
        ck_assert_str_eq(select_backend(scene.selection, 0, SELECT_DECODE), "triton_like");
        attnhost_selection_destroy(tell(&scene));
        tear_down(&scene);
        fake.get_live(&live);
        ck_assert_uint_eq(live.contexts, 0);
        ck_assert_uint_eq(live.allocations, 0);
    }
    ck_assert(!fake.injected());
    assert_clean();
}

TESTS("explain");
