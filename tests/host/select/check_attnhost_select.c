/* SPDX-License-Identifier: Apache-2.0
 *
 * check_attnhost_select: attnhost_select(), by an engine's own path: models as text and as groups,
 * real plugins, and what is chosen composed and planned.
 */
#include <stdio.h>
#include <string.h>

#include "attnhost.h"
#include "host/base/error.h"
#include "tests/tools/test_main.h"

static attnhost *host;
static host_error error;
static char text[8192];

static void load(const char *variable, const char *file)
{
    char path[1024];
    const char *from = getenv(variable);
    snprintf(path, sizeof path, "%s/%s", from ? from : ".", file);
    ck_assert_msg(attnhost_load_plugin(host, path, &error.base) == ATTN_OK, "%s",
                  host_error_text(&error));
}

static void setup(void)
{
    host_error_init(&error);
    ck_assert_int_eq(attnhost_create(NULL, &host, NULL), ATTN_OK);
    load("ATTNHOST_TEST_PLUGIN_DIR", "cpu_native.so");
    load("ATTNHOST_TEST_PLUGIN_DIR", "cpu_linear.so");
    load("ATTNHOST_TEST_PLUGIN_DIR", "hybrid.so");
}

static void teardown(void)
{
    attnhost_destroy(host);
}

static void assert_says(const char *part)
{
    ck_assert_msg(strstr(host_error_text(&error), part) != NULL, "'%s' is not in '%s'", part,
                  host_error_text(&error));
}

static attnhost_model read_model(const char *name)
{
    char path[1024];
    const char *top = getenv("ATTNHOST_TEST_SRCDIR");
    snprintf(path, sizeof path, "%s/tests/models/%s.json", top ? top : ".", name);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s cannot be opened", path);
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    return (attnhost_model){.struct_size = sizeof(attnhost_model),
                            .config = text,
                            .config_length = length,
                            .name = name};
}

static const attnhost_selection *choose(const attnhost_model *model, const char *const *settings,
                                        uint32_t count)
{
    const attnhost_selection *selection = NULL;
    attn_status status = attnhost_select(host, model, settings, count, &selection, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return selection;
}

static attn_status refuse(const attnhost_model *model, const char *const *settings, uint32_t count)
{
    const attnhost_selection *selection = NULL;
    attn_status status = attnhost_select(host, model, settings, count, &selection, &error.base);
    ck_assert_ptr_null(selection);
    return status;
}

static const attnhost_phase *phase_of(const attnhost_selection *selection, uint32_t group,
                                      uint32_t phase)
{
    return attn_at(((const attnhost_group *)attn_at(selection->groups, group))->phases, phase);
}

static const attnhost_candidate *candidate_of(const attnhost_phase *phase, const char *name)
{
    for (uint32_t c = 0; c < phase->num_candidates; c++) {
        const attnhost_candidate *candidate = attn_at(phase->candidates, c);
        if (strcmp(candidate->name, name) == 0)
            return candidate;
    }
    ck_abort_msg("%s is no candidate", name);
    return NULL;
}

/* Each unit is composed as it stands, and takes metadata for its bounds. */
static void compose_all(const attnhost_selection *selection)
{
    for (uint32_t u = 0; u < selection->num_units; u++) {
        const attnhost_unit *unit = attn_at(selection->units, u);
        attnhost_backend *backend = NULL;
        attnhost_metadata *metadata = NULL;
        attn_status status = attnhost_compose(host, unit->backend, unit->problems,
                                              unit->num_problems, &backend, &error.base);
        if (status == ATTN_OK)
            status = attnhost_metadata_create(backend, ATTN_METADATA_EAGER, unit->problems->bounds,
                                              NULL, &metadata, &error.base);
        ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
        attnhost_metadata_destroy(metadata);
        attnhost_backend_destroy(backend);
    }
}

/* ---- Models ---------------------------------------------------------------------------------- */

static const char *const on_cpu[] = {"platform.device=cpu", "model.max_context_len=512",
                                     "workload.max_running_requests=4",
                                     "workload.chunked_prefill_size=64"};

TEST_OF(models, a_config_json)
{
    attnhost_model model = read_model("gpt_oss");
    const attnhost_selection *selection = choose(&model, on_cpu, 4);
    ck_assert_int_eq(selection->status, ATTN_OK);
    ck_assert_str_eq(selection->message, "");
    ck_assert_str_eq(selection->architecture, "GptOssForCausalLM");
    ck_assert_str_eq(selection->model, "gpt_oss");
    ck_assert_str_eq(selection->device_name, "cpu");
    ck_assert_int_eq(selection->max_context_len, 512);
    ck_assert_uint_eq(selection->num_groups, 2); /* with a window, without */
    for (uint32_t g = 0; g < 2; g++) {
        const attnhost_group *group = attn_at(selection->groups, g);
        ck_assert_uint_eq(group->num_phases, 2);
        ck_assert_int_eq(group->unit, 0);
        ck_assert_str_eq(group->kv_layout, ATTN_LAYOUT_KV_NHD);
        const attnhost_phase *decode = phase_of(selection, g, 1);
        ck_assert_str_eq(decode->name, "decode");
        const attnhost_candidate *chosen = attn_at(decode->candidates, (uint32_t)decode->chosen);
        ck_assert_str_eq(chosen->name, "cpu_native");
        ck_assert_uint_eq(chosen->state, ATTNHOST_CAN_SERVE);
        ck_assert_ptr_nonnull(chosen->verdict);
        ck_assert_uint_eq(chosen->verdict->supported, 1);
        ck_assert_uint_eq(chosen->num_reasons, 0);
    }
    const attnhost_unit *unit = selection->units;
    ck_assert_uint_eq(unit->num_problems, 2);
    ck_assert_int_eq(unit->problems->bounds->max_seqs, 4);
    ck_assert_int_eq(unit->problems->bounds->max_kv_len, 512);
    compose_all(selection);
    attnhost_selection_destroy(selection);
    attnhost_selection_destroy(NULL);
}

/* Both kinds of layers of a hybrid become one unit, by a composite that was defined for them. */
TEST_OF(models, a_hybrid_model)
{
    attnhost_model model = read_model("qwen3_next");
    const attnhost_selection *selection = choose(&model, on_cpu, 4);
    ck_assert_int_eq(selection->status, ATTN_OK);
    ck_assert_uint_eq(selection->num_units, 1);
    const attnhost_unit *unit = selection->units;
    ck_assert_str_eq(unit->type, "hybrid_linear");
    ck_assert_str_eq(unit->backend, "cpu_native-with-cpu_linear");
    ck_assert_uint_eq(unit->groups[0], 0);
    ck_assert_uint_eq(unit->groups[1], 1);
    compose_all(selection);
    /* Again, in a host that knows the composite by now. */
    const attnhost_selection *again = choose(&model, on_cpu, 4);
    ck_assert_str_eq(again->units->backend, unit->backend);
    attnhost_selection_destroy(selection);
    attnhost_selection_destroy(again);
}

static attn_layer layers[3];
static attn_layer_group groups[2];

/* Layers 0 and 2 with a window, layer 1 without. */
static attnhost_model make_groups(void)
{
    static const int32_t ids[] = {0, 2, 1};
    for (int l = 0; l < 3; l++)
        layers[l] = (attn_layer){
            .struct_size = sizeof *layers, .layer_id = ids[l], .kv_buffer = 10 + ids[l]};
    for (int g = 0; g < 2; g++)
        groups[g] = (attn_layer_group){.struct_size = sizeof *groups,
                                       .kv_group = g,
                                       .num_q_heads = 8,
                                       .num_kv_heads = 2,
                                       .head_dim = 64,
                                       .v_head_dim = 64,
                                       .window_left = g ? -1 : 127,
                                       .sm_scale = 0.125f,
                                       .num_layers = g ? 1 : 2,
                                       .layers = &layers[2 * g]};
    return (attnhost_model){
        .struct_size = sizeof(attnhost_model), .num_groups = 2, .groups = groups};
}

/* The engine's ids, buffers and KV groups come back, from copies. */
TEST_OF(models, own_groups)
{
    attnhost_model model = make_groups();
    const attnhost_selection *selection = choose(&model, on_cpu, 4);
    memset(layers, 0x55, sizeof layers);
    memset(groups, 0x55, sizeof groups);
    ck_assert_int_eq(selection->status, ATTN_OK);
    ck_assert_str_eq(selection->architecture, "groups");
    ck_assert_uint_eq(selection->num_layers, 3);
    const attnhost_group *first = selection->groups, *second = attn_at(selection->groups, 1);
    ck_assert_str_eq(first->layers, "0,2");
    ck_assert_ptr_nonnull(strstr(first->what, "window_left 127"));
    ck_assert_int_eq(second->group->kv_group, 1);
    ck_assert_int_eq(second->group->layers->kv_buffer, 11);
    const attn_problem *problem = selection->units->problems;
    ck_assert_int_eq(problem->q_dtype, ATTN_BF16); /* the ini's default */
    compose_all(selection);
    attnhost_selection_destroy(selection);
}

/* ---- Reasons --------------------------------------------------------------------------------- */

/* A no is an answer: every reason of every candidate, as fields and as text. */
TEST_OF(reasons, all_reasons_of_a_no)
{
    attnhost_model model = make_groups();
    const char *const settings[] = {"platform.device=cpu",
                                    "attention.attention_backend=cpu_linear"};
    const attnhost_selection *selection = choose(&model, settings, 2);
    ck_assert_int_eq(selection->status, ATTN_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(selection->message, "no backend serves layers 0,2 in prefill"));
    ck_assert_uint_eq(selection->num_units, 0);
    const attnhost_group *group = selection->groups;
    ck_assert_int_eq(group->unit, -1);
    const attnhost_phase *prefill = phase_of(selection, 0, 0);
    ck_assert_str_eq(prefill->wanted, "cpu_linear");
    ck_assert_ptr_nonnull(strstr(prefill->why, "attention.attention_backend = cpu_linear"));
    ck_assert_int_eq(prefill->chosen, -1);
    const attnhost_candidate *asked = candidate_of(prefill, "cpu_linear");
    ck_assert_uint_eq(asked->state, ATTNHOST_CANNOT_SERVE);
    ck_assert_ptr_null(asked->verdict);
    ck_assert_uint_ge(asked->num_reasons, 1);
    const attnhost_reason *reason = asked->reasons;
    ck_assert_uint_eq(reason->code, ATTN_REASON_LAYER_KIND);
    ck_assert_str_eq(reason->code_name, "LAYER_KIND");
    ck_assert_str_eq(reason->field, "kind");
    ck_assert_ptr_nonnull(strstr(reason->text, reason->accepted));
    ck_assert_str_eq(reason->rule, "");
    attnhost_selection_destroy(selection);
}

/* On a platform that is not here: what a rule excludes, what is not installed, what a composite is.
 */
TEST_OF(reasons, not_asked)
{
    attnhost_model model = read_model("olmo2");
    const char *const settings[] = {"platform.simulate=sm90"};
    const attnhost_selection *selection = choose(&model, settings, 1);
    const attnhost_phase *phase = phase_of(selection, 0, 0);
    ck_assert_str_eq(selection->simulated, "sm90");
    ck_assert_int_eq(selection->status, ATTN_OK); /* it would be served */
    ck_assert_int_ge(phase->preferred, 0);
    ck_assert_int_eq(phase->chosen, -1);
    const attnhost_candidate *excluded = candidate_of(phase, "flashinfer_like");
    ck_assert_uint_eq(excluded->state, ATTNHOST_EXCLUDED);
    ck_assert_str_eq(excluded->reasons->code_name, "RULE");
    ck_assert_str_ne(excluded->reasons->rule, "");
    const attnhost_candidate *absent = candidate_of(phase, "fa3_like");
    ck_assert_uint_eq(absent->state, ATTNHOST_ABSENT);
    ck_assert_str_eq(absent->reasons->code_name, "NOT_INSTALLED");
    ck_assert_str_eq(absent->aliases, "fa3");
    ck_assert_str_ne(absent->what, "");
    ck_assert_str_eq(candidate_of(phase, "hybrid_phase")->reasons->code_name, "COMPOSITE");
    attnhost_selection_destroy(selection);
}

/* A backend that the engine has defined can be named, with its options. */
TEST_OF(reasons, a_defined_backend)
{
    const char *const pairs[] = {"prefill", "cpu_native", "decode", "cpu_native"};
    const char *const settings[] = {"platform.device=cpu", "attention.attention_backend=mine"};
    attnhost_model model = make_groups();
    ck_assert_int_eq(attnhost_define_backend(host, "mine", "hybrid_phase", pairs, 2, &error.base),
                     ATTN_OK);
    const attnhost_selection *selection = choose(&model, settings, 2);
    ck_assert_int_eq(selection->status, ATTN_OK);
    ck_assert_str_eq(selection->units->backend, "mine");
    compose_all(selection);
    attnhost_selection_destroy(selection);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

TEST_OF(errors, wrong_settings)
{
    static const struct {
        const char *setting;
        const char *says;
    } cases[] = {
        {"attention.attention_backend=cpu_nativ", "did you mean 'cpu_native'?"},
        {"kv_cache.page_sise=16", "page_size"},
        {"model.head_dim=64", "setting 'model.head_dim=64': accepted: KEY=VALUE of the sections"},
        {"plugins.path=/tmp", "setting 'plugins.path=/tmp'"},
        {"attention.route.1=-> cpu_native", "attnhost_configure_text()"},
        {"kv_cache.k_scale=0", "kv_cache.k_scale = '0' has a number out of range"},
    };
    attnhost_model model = make_groups();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        host_error_init(&error);
        ck_assert_int_eq(refuse(&model, &cases[c].setting, 1), ATTN_CONFIG_ERROR);
        assert_says(cases[c].says);
    }
    const char *const none[] = {NULL};
    ck_assert_int_eq(refuse(&model, none, 1), ATTN_INVALID_ARGUMENT);
}

static void refuse_model(const attnhost_model *model, attn_status status, const char *says)
{
    host_error_init(&error);
    ck_assert_int_eq(refuse(model, NULL, 0), status);
    assert_says(says);
}

TEST_OF(errors, wrong_models)
{
    attnhost_model model = make_groups();
    groups[1].struct_size = 8;
    groups[0].kind = ATTN_KIND_MLA;
    refuse_model(&model, ATTN_INVALID_ARGUMENT, "model: group 0: kind 1 without its dimensions");
    make_groups();
    groups[0].kind = ATTN_KIND_COUNT;
    refuse_model(&model, ATTN_INVALID_ARGUMENT, "model: group 0: kind 4");
    make_groups();
    groups[1].attn_type = 3;
    refuse_model(&model, ATTN_INVALID_ARGUMENT, "model: group 1: attn_type 3");
    make_groups();
    groups[1].num_layers = 0;
    refuse_model(&model, ATTN_INVALID_ARGUMENT, "model: group 1: no layers; accepted: 1 or more");
    make_groups();
    groups[0].struct_size = 8;
    refuse_model(&model, ATTN_INVALID_ARGUMENT, "struct_size is 8");
    make_groups();
    model.num_groups = 0;
    refuse_model(&model, ATTN_INVALID_ARGUMENT, "num_groups 0");
    model.config = "{}";
    refuse_model(&model, ATTN_INVALID_ARGUMENT, "both given");
    model.groups = NULL;
    model.config_length = 2;
    refuse_model(&model, ATTN_CONFIG_ERROR, "model: architectures");
    model.config = NULL;
    refuse_model(&model, ATTN_INVALID_ARGUMENT, "both NULL");
    model.struct_size = 0;
    refuse_model(&model, ATTN_INVALID_ARGUMENT, "model: struct_size is 0");
}

TESTS("attnhost_select", .set_up = setup, .tear_down = teardown);
