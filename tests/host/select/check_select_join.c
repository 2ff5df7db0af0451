/* SPDX-License-Identifier: Apache-2.0
 *
 * check_select_join: models with linear layers among others: who is joined by hybrid_linear, and
 * when two units stay two. The backends are those of fixtures/choosy.c, of which one
 * serves linear layers.
 */

#include "tests/host/select/scene.h"

/* A model of tests/models with these lines under [attention], on a platform. */
static void try_to_select(struct scene *scene, const char *model, const char *platform,
                          const char *attention)
{
    char ini[8192];
    snprintf(ini, sizeof ini,
             "[model]\nconfig = %s/tests/models/%s\n[platform]\n%s\n[attention]\n%s\n",
             environment("ATTNHOST_TEST_SRCDIR", "."), model, platform, attention);
    attn_status status = scene_define(scene, ini, NULL, 0);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&scene->error));
    scene_choose(scene);
}

static void select_for(struct scene *scene, const char *model, const char *platform,
                       const char *attention)
{
    try_to_select(scene, model, platform, attention);
    ck_assert_msg(scene->status == ATTN_OK, "%s", host_error_text(&scene->error));
}

/* Qwen3-Next: three linear layers to a full one. */
static void begin(struct scene *scene, const char *attention, int with_hybrid)
{
    scene_create(scene);
    load_plugin(scene->host, "ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs", "choosy.so");
    if (with_hybrid)
        load_plugin(scene->host, "ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", "hybrid.so");
    select_for(scene, "qwen3_next.json", "simulate = sm90", attention);
}

#define TWO "attention_backend = triton_like\nlinear_attn_backend = state_like"

static void check_joined(const struct scene *scene, const char *name)
{
    const struct selection *s = scene->selection;
    ck_assert_uint_eq(s->num_units, 1);
    ck_assert_str_eq(s->units[0].backend, name);
    ck_assert_str_eq(s->units[0].type, "hybrid_linear");
    ck_assert_uint_eq(s->units[0].num_groups, s->num_groups);
    for (uint32_t g = 0; g < s->num_groups; g++) {
        ck_assert_uint_eq(s->units[0].groups[g], g);
        ck_assert_int_eq(s->groups[g].unit, 0);
        ck_assert_uint_eq(s->groups[g].verdict.supported, 1);
        ck_assert_ptr_null(s->groups[g].verdict.reasons);
        /* What serves a phase is reported as before. */
        int linear = scene->model->groups[g].kind == ATTN_KIND_LINEAR;
        ck_assert_str_eq(select_backend(s, g, SELECT_DECODE),
                         linear ? "state_like" : "triton_like");
        ck_assert_ptr_nonnull(linear ? s->groups[g].state_layout : s->groups[g].kv_layout);
    }
}

TEST_OF(join, two_kinds_become_one_unit)
{
    SCENE(scene);
    begin(&scene, TWO, 1);
    ck_assert_uint_ge(scene.model->num_groups, 2);
    check_joined(&scene, "triton_like-with-state_like");
    struct compose_node *node = NULL;
    ck_assert_int_eq(compose_resolve(&scene.host->composer, "triton_like-with-state_like", NULL,
                                     &node, &scene.error.base),
                     ATTN_OK);
    ck_assert_uint_eq(node->num_children, 2);
    compose_destroy(node);
    select_destroy(scene.selection); /* again: what is defined is found */
    scene_choose(&scene);
    check_joined(&scene, "triton_like-with-state_like");
}

/* A composite may be a child: the full-attention layers by two backends. */
TEST_OF(join, a_pair_is_a_child)
{
    SCENE(scene);
    begin(&scene,
          "prefill_attention_backend = triton_like\ndecode_attention_backend = decode_only\n"
          "linear_attn_backend = state_like",
          1);
    ck_assert_uint_eq(scene.selection->num_units, 1);
    ck_assert_str_eq(scene.selection->units[0].type, "hybrid_linear");
    ck_assert_str_eq(scene.selection->units[0].backend, "triton_like-decode_only-with-state_like");
}

/* A backend that has the name of the pair is used if it is the pair, else it is in the way. */
LOOP_OF(join, a_pair_that_is_defined, 0, 2)
{
    static const char *const decode[] = {"decode_only", "extend_only"};
    char attention[512];
    SCENE(scene);
    scene_create(&scene);
    load_plugin(scene.host, "ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs", "choosy.so");
    load_plugin(scene.host, "ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", "hybrid.so");
    snprintf(attention, sizeof attention,
             "prefill_attention_backend = triton_like\ndecode_attention_backend = decode_only\n"
             "linear_attn_backend = state_like\n[backend.triton_like-decode_only]\n"
             "type = hybrid_phase\nprefill = triton_like\ndecode = %s\n"
             "speculative_attention_mode = prefill",
             decode[_i]);
    try_to_select(&scene, "qwen3_next.json", "simulate = sm90", attention);
    ck_assert_msg(scene.status == (_i ? ATTN_CONFIG_ERROR : ATTN_OK), "%s",
                  host_error_text(&scene.error));
    ck_assert(!_i || strstr(host_error_text(&scene.error), "this name is needed"));
}

/* One backend for both kinds; no composite; its name is taken; its name would be too long. */
LOOP_OF(join, what_cannot_be_joined_stays_as_it_was, 0, 4)
{
    static const struct {
        const char *attention;
        int with_hybrid;
        uint32_t units;
    } cases[] = {
        {"attention_backend = both\nlinear_attn_backend = both\n[backend.both]\n"
         "type = hybrid_linear\nfull = triton_like\nlinear = state_like",
         1, 1},
        {TWO, 0, 2},
        {TWO "\n[backend.triton_like-with-state_like]\ntype = triton_like", 1, 2},
        {"prefill_attention_backend = triton_like\ndecode_attention_backend = decode_only\n"
         "linear_attn_backend = "
         "as_long_a_name_as_a_section_may_have_here\n[backend.as_long_a_name_as_a_section_may_have_"
         "here]\ntype = state_like",
         1, 2},
    };
    SCENE(scene);
    begin(&scene, cases[_i].attention, cases[_i].with_hybrid);
    ck_assert_uint_eq(scene.selection->num_units, cases[_i].units);
    uint32_t groups = 0;
    for (uint32_t u = 0; u < scene.selection->num_units; u++) {
        ck_assert_ptr_null(strstr(scene.selection->units[u].backend, "-with-"));
        groups += scene.selection->units[u].num_groups;
    }
    ck_assert_uint_eq(groups, scene.selection->num_groups);
}

/* Kimi Linear: latent layers among linear ones, which are joined while nothing is expanded. */
LOOP_OF(join, expanded_layers_stay_apart, 0, 2)
{
    static const char *const files[] = {"hybrid.so", "cpu_native.so", "cpu_linear.so"};
    static const struct {
        const char *attention;
        const char *joined, *latent, *linear;
    } cases[] = {
        {"attention_backend = cpu_native\nlinear_attn_backend = cpu_linear",
         "cpu_native-with-cpu_linear", "cpu_native", "cpu_linear"},
        {"attention_backend = both\nlinear_attn_backend = both\n[backend.both]\n"
         "type = hybrid_linear\nfull = cpu_native\nlinear = cpu_linear",
         "both", "both", "both"},
    };
    for (int expanded = 0; expanded < 2; expanded++) {
        struct scene scene;
        char attention[512];
        snprintf(attention, sizeof attention, "mla_prefill = %s\n%s",
                 expanded ? "expanded" : "absorbed", cases[_i].attention);
        scene_create(&scene);
        for (size_t f = 0; f < sizeof files / sizeof *files; f++)
            load_plugin(scene.host, "ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", files[f]);
        select_for(&scene, "kimi_linear.json", "device = cpu", attention);
        const struct selection *s = scene.selection;
        ck_assert_uint_eq(s->num_units, expanded ? 2 : 1);
        for (uint32_t g = 0; g < s->num_groups; g++) {
            const struct select_unit *unit = &s->units[s->groups[g].unit];
            bool linear = scene.model->groups[g].kind == ATTN_KIND_LINEAR;
            ck_assert_str_eq(unit->backend, !expanded ? cases[_i].joined
                                            : linear  ? cases[_i].linear
                                                      : cases[_i].latent);
            ck_assert(!expanded || unit->num_groups == 1);
        }
        scene_end(&scene);
    }
}

TESTS("select_join");
