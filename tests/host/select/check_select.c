/* SPDX-License-Identifier: Apache-2.0
 *
 * check_select: names, rules, layouts and refusals, with the backends of fixtures/choosy.c and the
 * real hybrid_phase.
 */

#include "host/select/problem.h"
#include "host/select/selection_api.h"
#include "tests/host/select/scene.h"

/* ---- One selection --------------------------------------------------------------------------- */

#define MODEL "[model]\nnum_layers = 2\nnum_q_heads = 4\nnum_kv_heads = 2\nhead_dim = 64\n"

/* Select for the model of `ini` on the platform it names. */
static void begin(struct scene *scene, const char *ini)
{
    scene_create(scene);
    load_plugin(scene->host, "ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs", "choosy.so");
    load_plugin(scene->host, "ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", "hybrid.so");
    /* The tree's own rules, not installed ones. */
    char rules[1024];
    const char *const set = rules;
    snprintf(rules, sizeof rules, "attention.rules=%s/host/select/selection.ini",
             environment("ATTNHOST_TEST_SRCDIR", "."));
    attn_status status = scene_define(scene, ini, &set, 1);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&scene->error));
    scene_choose(scene);
}

static void assert_says(const struct scene *scene, const char *word)
{
    ck_assert_msg(strstr(host_error_text(&scene->error), word), "'%s' is not in: %s", word,
                  host_error_text(&scene->error));
}

static void assert_backend(const struct scene *scene, uint32_t phase, const char *name)
{
    ck_assert_msg(scene->status == ATTN_OK, "%s", host_error_text(&scene->error));
    const char *got = select_backend(scene->selection, 0, phase);
    ck_assert_ptr_nonnull(got);
    ck_assert_str_eq(got, name);
}

static const struct select_candidate *find(const struct scene *scene, uint32_t phase,
                                           const char *name)
{
    const struct select_phase *in = &scene->selection->groups[0].phases[phase];
    for (uint32_t i = 0; i < in->num_candidates; i++)
        if (strcmp(in->candidates[i].name, name) == 0)
            return &in->candidates[i];
    return NULL;
}

/* ---- auto ------------------------------------------------------------------------------------ */

TEST_OF(choice, auto_takes_the_first_of_its_rule)
{
    SCENE(scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\n");
    assert_backend(&scene, SELECT_PREFILL, "fa3_like");
    assert_backend(&scene, SELECT_DECODE, "fa3_like");
    ck_assert_str_eq(scene.selection->groups[0].kv_layout, ATTN_LAYOUT_KV_NHD);
    ck_assert_uint_eq(scene.selection->num_units, 1);
    ck_assert_str_eq(scene.selection->units[0].backend, "fa3_like");
    ck_assert_uint_eq(scene.selection->units[0].num_groups, 1);
    ck_assert_ptr_nonnull(find(&scene, SELECT_PREFILL, "flashinfer_like")->absent);
}

TEST_OF(choice, auto_falls_through_and_keeps_all_reasons)
{
    SCENE(scene);
    begin(&scene, "[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 192\n"
                  "[platform]\nsimulate = sm89\n");
    assert_backend(&scene, SELECT_PREFILL, "triton_like");
    /* The backend's own first layout, not the host's. */
    ck_assert_str_eq(scene.selection->groups[0].kv_layout, ATTN_LAYOUT_KV_HND);
    /* The verdict is that of the host's first layout that is accepted. */
    ck_assert(find(&scene, SELECT_PREFILL, "triton_like")->verdict.cost_hint == 1);
    const struct select_candidate *fa3 = find(&scene, SELECT_PREFILL, "fa3_like");
    ck_assert_uint_eq(fa3->layouts, 0);
    ck_assert_uint_eq(fa3->verdict.num_reasons, 2);
    char text[200];
    select_reason_text(&fa3->reasons[1], text, sizeof text);
    ck_assert_str_eq(text, "head_dim 192: accepted 64, 128");
    /* What is an error when named is only passed over here. */
    ck_assert_ptr_nonnull(find(&scene, SELECT_PREFILL, "flaky")->absent);
    ck_assert_ptr_nonnull(find(&scene, SELECT_PREFILL, "hybrid_phase")->absent);
}

TEST_OF(choice, auto_joins_two_backends_where_none_serves_both)
{
    SCENE(scene);
    begin(&scene, MODEL "[workload]\nmixed = no\n");
    assert_backend(&scene, SELECT_PREFILL, "extend_only");
    assert_backend(&scene, SELECT_DECODE, "decode_only");
    ck_assert_uint_eq(scene.selection->num_units, 1);
    ck_assert_str_eq(scene.selection->units[0].type, "hybrid_phase");
    ck_assert_str_eq(scene.selection->units[0].backend, "extend_only-decode_only");
    ck_assert_str_eq(scene.selection->groups[0].kv_layout, ATTN_LAYOUT_KV_NHD);
}

TEST_OF(choice, auto_without_any_backend)
{
    SCENE(scene);
    begin(&scene, "[model]\nnum_layers = 1\nnum_q_heads = 4\nkv_lora_rank = 512\n"
                  "qk_rope_head_dim = 64\nqk_nope_head_dim = 128\n");
    ck_assert_int_eq(scene.status, ATTN_UNSUPPORTED);
    assert_says(&scene, "layers 0");
    assert_says(&scene, "kind other: accepted softmax");
    assert_says(&scene, "cpu_native: not installed");
    ck_assert_ptr_nonnull(scene.selection); /* for explain */
    ck_assert_int_eq(scene.selection->groups[0].unit, -1);
}

/* ---- Names ----------------------------------------------------------------------------------- */

TEST_OF(choice, a_named_backend_is_taken_or_refused)
{
    SCENE(scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\n[attention]\nattention_backend = "
                        "triton_like\n");
    assert_backend(&scene, SELECT_PREFILL, "triton_like");
    ck_assert_uint_eq(scene.selection->groups[0].phases[0].num_candidates, 1);
    scene_end(&scene);

    begin(&scene, "[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 96\n"
                  "[platform]\nsimulate = sm80\n[attention]\nattention_backend = fa3_like\n");
    ck_assert_int_eq(scene.status, ATTN_UNSUPPORTED);
    assert_says(&scene, "device.sm 80: accepted 90; head_dim 96: accepted 64, 128");
}

TEST_OF(choice, an_alias_is_a_name)
{
    SCENE(scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\n[attention]\nattention_backend = fa3\n");
    assert_backend(&scene, SELECT_PREFILL, "fa3_like");
    scene_end(&scene);

    begin(&scene, MODEL "[attention]\nattention_backend = torch_native\n");
    ck_assert_int_eq(scene.status, ATTN_UNSUPPORTED); /* known, not installed */
    assert_says(&scene, "torch_native stands for cpu_native, which is not installed");
    assert_says(&scene, "installed: flaky, triton_like, fa3_like, extend_only");
    scene_end(&scene);

    /* Elsewhere, too: what is named is not there. */
    begin(&scene, MODEL "[platform]\nsimulate = npu\n[attention]\nattention_backend = ascend\n");
    ck_assert_int_eq(scene.status, ATTN_UNSUPPORTED);
    ck_assert(!select_is_settled(scene.selection));
}

/* ---- Rules ----------------------------------------------------------------------------------- */

TEST_OF(choice, what_a_model_excludes_is_out_even_if_it_is_named)
{
    SCENE(scene);
    begin(&scene, "[model]\nnum_layers = 4\nnum_q_heads = 4\nhead_dim = 64\nsliding_window = 9\n"
                  "layer_types = sliding cross\n[platform]\nsimulate = sm90\n"
                  "[attention]\nattention_backend = fa3_like\n");
    ck_assert_int_eq(scene.status, ATTN_UNSUPPORTED);
    assert_says(&scene, "fa3_like: model_has window: accepted no window with cross attention");
    ck_assert_ptr_nonnull(find(&scene, SELECT_PREFILL, "fa3_like")->excluded);
}

TEST_OF(choice, elsewhere_the_rules_choice_is_an_answer)
{
    SCENE(scene);
    begin(&scene, MODEL "[platform]\nsimulate = gfx942\n");
    ck_assert_int_eq(scene.status, ATTN_UNSUPPORTED);
    ck_assert(!select_is_settled(scene.selection)); /* there is no such plugin yet */
    assert_says(&scene, "aiter_like: no such plugin exists yet");
    const struct select_phase *phase = &scene.selection->groups[0].phases[SELECT_DECODE];
    ck_assert_str_eq(phase->candidates[phase->preferred].name, "aiter_like");
    /* No backend is asked about a device that the ABI has no type for. */
    const struct select_candidate *any = find(&scene, SELECT_DECODE, "decode_only");
    ck_assert_uint_eq(any->layouts, 0);
    ck_assert_str_eq(any->reasons[0].got, "rocm");
    scene_end(&scene);

    /* What comes first is not here, what is here serves: it is chosen, and both are reported. */
    begin(&scene, MODEL "[platform]\nsimulate = sm89\n");
    assert_backend(&scene, SELECT_PREFILL, "triton_like");
    phase = &scene.selection->groups[0].phases[SELECT_PREFILL];
    ck_assert_str_eq(phase->candidates[phase->preferred].name, "flashinfer_like");
}

TEST_OF(choice, trees_of_drafts_are_asked_about)
{
    SCENE(scene);
    struct problem problem;
    begin(&scene, MODEL "[platform]\nsimulate = sm90\n[attention]\nspeculative_eagle_topk = 4\n");
    ck_assert_int_eq(scene.status, ATTN_OK);
    problem_init(&problem, scene.config, scene.model, 0, &scene.selection->device,
                 problem_prefill_modes(scene.config), ATTN_LAYOUT_KV_NHD);
    ck_assert(problem.bounds.modes & ATTN_MODE_BIT(ATTN_MODE_TARGET_VERIFY));
    ck_assert(problem.bounds.mask_kinds & ATTN_MASK_BIT(ATTN_MASK_QLEN));
    ck_assert_uint_eq(problem_decode_modes(scene.config), ATTN_MODE_BIT(ATTN_MODE_DECODE));
    scene_end(&scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\n[attention]\nspeculative_eagle_topk = 1\n"
                        "speculative_attention_mode = decode\n");
    ck_assert(problem_decode_modes(scene.config) & ATTN_MODE_BIT(ATTN_MODE_DRAFT_EXTEND));
    ck_assert_uint_eq(problem_prefill_modes(scene.config), ATTN_MODE_BIT(ATTN_MODE_EXTEND));
}

TEST_OF(choice, an_unknown_name_is_a_mistake)
{
    SCENE(scene);
    begin(&scene, MODEL "[attention]\nattention_backend = tritn_like\n");
    ck_assert_int_eq(scene.status, ATTN_CONFIG_ERROR);
    assert_says(&scene, "t.ini:7");
    assert_says(&scene, "did you mean 'triton_like'?");
    assert_says(&scene, "extend_only");
    ck_assert_ptr_null(scene.selection);
}

TEST_OF(choice, a_section_is_a_name)
{
    SCENE(scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\n[attention]\nattention_backend = mine\n"
                        "[backend.mine]\ntype = triton_like\n");
    assert_backend(&scene, SELECT_DECODE, "mine");
    ck_assert_str_eq(scene.selection->groups[0].kv_layout, ATTN_LAYOUT_KV_HND);
    scene_end(&scene);

    begin(&scene, MODEL "[attention]\nattention_backend = mine\n"
                        "[backend.mine]\ntype = flashinfer_like\n");
    ck_assert_int_eq(scene.status, ATTN_UNSUPPORTED);
    assert_says(&scene, "flashinfer_like is not installed");
}

TEST_OF(choice, an_error_of_a_named_backend_is_an_error)
{
    SCENE(scene);
    begin(&scene, MODEL "[attention]\nattention_backend = flaky\n");
    ck_assert_int_ne(scene.status, ATTN_OK);
    ck_assert_int_ne(scene.status, ATTN_UNSUPPORTED);
    ck_assert_ptr_null(scene.selection);
}

/* ---- Two names ------------------------------------------------------------------------------- */

TEST_OF(choice, two_names_are_joined)
{
    SCENE(scene);
    begin(&scene, MODEL "[attention]\nprefill_attention_backend = extend_only\n"
                        "decode_attention_backend = decode_hnd\n");
    assert_backend(&scene, SELECT_PREFILL, "extend_only");
    assert_backend(&scene, SELECT_DECODE, "decode_hnd");
    ck_assert_str_eq(scene.selection->groups[0].kv_layout, ATTN_LAYOUT_KV_HND);
    ck_assert_str_eq(scene.selection->units[0].backend, "extend_only-decode_hnd");
}

TEST_OF(choice, layouts_that_do_not_meet_are_refused)
{
    SCENE(scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\n[attention]\n"
                        "prefill_attention_backend = fa3_like\n"
                        "decode_attention_backend = decode_hnd\n");
    ck_assert_int_eq(scene.status, ATTN_UNSUPPORTED);
    assert_says(&scene, "kv_layout");
}

TEST_OF(choice, a_given_layout_is_kept)
{
    SCENE(scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\n[kv_cache]\nlayout = hnd\n");
    assert_backend(&scene, SELECT_PREFILL, "triton_like"); /* fa3_like reads NHD alone */
    ck_assert_str_eq(scene.selection->groups[0].kv_layout, ATTN_LAYOUT_KV_HND);
    const struct select_candidate *fa3 = find(&scene, SELECT_PREFILL, "fa3_like");
    ck_assert_uint_eq(fa3->reasons[0].field, ATTN_FIELD_KV_LAYOUT);
}

/* ---- Groups ---------------------------------------------------------------------------------- */

TEST_OF(choice, groups_of_one_backend_are_one_unit)
{
    SCENE(scene);
    begin(&scene, "[model]\nnum_layers = 4\nnum_q_heads = 4\nhead_dim = 64\nsliding_window = 9\n"
                  "layer_types = sliding full\n[platform]\nsimulate = sm90\n");
    ck_assert_int_eq(scene.status, ATTN_OK);
    ck_assert_uint_eq(scene.selection->num_groups, 2);
    ck_assert_uint_eq(scene.selection->num_units, 1);
    ck_assert_uint_eq(scene.selection->units[0].num_groups, 2);
    ck_assert_uint_eq(scene.selection->units[0].groups[1], 1);
}

/* A vision tower sees other batches than the decoder next to it. */
TEST_OF(choice, a_tower_is_a_unit_of_its_own)
{
    SCENE(scene);
    begin(&scene, "[model]\nnum_layers = 4\nnum_q_heads = 4\nhead_dim = 64\n"
                  "layer_types = full encoder\n[platform]\nsimulate = sm90\n");
    ck_assert_int_eq(scene.status, ATTN_OK);
    ck_assert_uint_eq(scene.selection->num_units, 2);
    for (uint32_t g = 0; g < 2; g++) {
        ck_assert_int_eq(scene.selection->groups[g].unit, (int32_t)g);
        ck_assert_str_eq(scene.selection->units[g].backend, scene.selection->units[0].backend);
    }
}

TEST_OF(choice, an_encoder_has_no_decode_phase)
{
    SCENE(scene);
    begin(&scene, "[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 64\n"
                  "attn_type = encoder_only\n[attention]\nattention_backend = extend_only\n");
    assert_backend(&scene, SELECT_PREFILL, "extend_only");
    ck_assert(!scene.selection->groups[0].phases[SELECT_DECODE].exists);
    ck_assert_ptr_null(scene.selection->groups[0].kv_layout);
}

/* ---- Scales, platforms, problems, text ------------------------------------------------------- */

TEST_OF(parts, scales_of_fp8_caches)
{
    SCENE(scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\n[kv_cache]\ndtype = fp8_e4m3\n"
                        "v_scale = 1 2\n");
    ck_assert_int_eq(scene.status, ATTN_OK);
    ck_assert_str_eq(problem_scales_taken(scene.config, scene.model), "kv_cache.k_scale");
    ck_assert_uint_eq(problem_num_scales(scene.config), 2);
    ck_assert(problem_scale(&scene.config->kv_cache.k_scale, 1) >= 1 &&
              problem_scale(&scene.config->kv_cache.k_scale, 1) <= 1);
    ck_assert(problem_scale(&scene.config->kv_cache.v_scale, 1) >= 2);
    scene_end(&scene);
    begin(&scene, MODEL "[kv_cache]\ndtype = fp8_e4m3\nk_scale = 1 2 3\nv_scale = 1 2 3\n");
    ck_assert_int_eq(scene.status, ATTN_CONFIG_ERROR);
    assert_says(&scene, "3 numbers: accepted 1, or 2");
    scene_end(&scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\n[kv_cache]\ndtype = fp8_e4m3\n"
                        "k_scale = 1 2\nv_scale = 1 2\n");
    ck_assert_int_eq(scene.status, ATTN_OK);
    struct problem problem;
    problem_init(&problem, scene.config, scene.model, 0, &scene.selection->device,
                 problem_decode_modes(scene.config), ATTN_LAYOUT_KV_NHD);
    ck_assert_uint_eq(problem.group.kv_scale_granularity, ATTN_SCALE_PER_HEAD);
    ck_assert_uint_eq(problem.problem.kv_dtype, ATTN_FP8_E4M3);
    ck_assert_uint_eq(problem.problem.q_dtype, ATTN_BF16);
}

TEST_OF(parts, cache_types_by_layer_type)
{
    SCENE(scene);
    begin(&scene, MODEL "layer_types = sliding full\nsliding_window = 8\n"
                        "[platform]\nsimulate = sm90\n"
                        "[kv_cache]\ndtype = fp8_e4m3\nsliding.dtype = bf16\n");
    ck_assert_int_eq(scene.status, ATTN_OK);
    for (uint32_t g = 0; g < 2; g++) {
        struct problem problem;
        bool sliding = scene.model->groups[g].window_left >= 0;
        problem_init(&problem, scene.config, scene.model, g, &scene.selection->device,
                     problem_decode_modes(scene.config), ATTN_LAYOUT_KV_NHD);
        ck_assert_uint_eq(problem.problem.kv_dtype, sliding ? ATTN_BF16 : ATTN_FP8_E4M3);
        ck_assert_uint_eq(problem.group.kv_scale_granularity,
                          sliding ? ATTN_SCALE_NONE : ATTN_SCALE_PER_TENSOR);
    }
    ck_assert_str_eq(problem_scales_taken(scene.config, scene.model),
                     "kv_cache.k_scale and v_scale");
}

TEST_OF(parts, bounds_follow_the_workload)
{
    SCENE(scene);
    attn_bounds bounds;
    begin(&scene, MODEL "max_context_len = 33\n[platform]\nsimulate = sm90\n"
                        "[kv_cache]\npage_size = 16\n"
                        "[workload]\nmax_running_requests = 3\nchunked_prefill_size = 10\n");
    problem_bounds(&bounds, scene.config, scene.model, problem_decode_modes(scene.config));
    ck_assert_int_eq(bounds.max_seqs, 3);
    ck_assert_int_eq(bounds.max_tokens, 3);
    ck_assert_int_eq(bounds.max_q_len, 1);
    ck_assert_int_eq(bounds.max_kv_len, 33);
    ck_assert_int_eq(bounds.max_kv_tokens, 3 * 48);
    problem_bounds(&bounds, scene.config, scene.model,
                   ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_MIXED));
    ck_assert_int_eq(bounds.max_tokens, 13);
    ck_assert_int_eq(bounds.max_q_len, 10);
}

TEST_OF(parts, platforms)
{
    attn_device device;
    char text[32];
    ck_assert_int_eq(platform_simulate("sm90", &device), 0);
    ck_assert_uint_eq(device.num_sms, 132);
    ck_assert_uint_eq(device.shared_memory, 232448);
    platform_text(&device, text, sizeof text);
    ck_assert_str_eq(text, "cuda sm90");
    ck_assert_int_eq(platform_simulate("sm91", &device), -1);
    ck_assert(!platform_is_foreign(&device));
    ck_assert_int_eq(platform_simulate("gfx942", &device), 0);
    ck_assert(platform_is_foreign(&device));
    platform_text(&device, text, sizeof text);
    ck_assert_str_eq(text, "rocm");
    ck_assert_int_eq(platform_simulate("cpu_amx", &device), 0);
    ck_assert(device.cpu_isa & ATTN_CPU_AMX_BF16);

    struct config *config;
    HOST_ERROR(error);
    static const char ini[] = "[platform]\nsimulate = sm91\n";
    ck_assert_int_eq(
        config_load_text(ini, sizeof ini - 1, "t.ini", NULL, NULL, 0, &config, &error.base),
        ATTN_OK);
    ck_assert_int_eq(platform_describe(config, &device, &error.base), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "t.ini:2"));
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "sm90"));
    config_destroy(config);
}

TEST_OF(parts, json_tells_all)
{
    SCENE(scene);
    begin(&scene, "[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 192\n"
                  "[platform]\nsimulate = sm90\n");
    const attnhost_selection *selected = NULL;
    ck_assert_int_eq(selection_api_create(scene.host, scene.config, scene.selection, scene.status,
                                          "", &selected, &scene.error.base),
                     ATTN_OK);
    cJSON *json = selection_api_to_json(selected);
    char *text = cJSON_PrintUnformatted(json);
    ck_assert_ptr_nonnull(strstr(text, "\"code\":\"HEAD_DIM\""));
    ck_assert_ptr_nonnull(strstr(text, "\"accepted\":\"64, 128\""));
    ck_assert_ptr_nonnull(strstr(text, "\"backend\":\"triton_like\""));
    cJSON_free(text);
    cJSON_Delete(json);

    char *printed = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&printed, &size);
    selection_api_print(selected, file);
    attnhost_selection_destroy(selected);
    select_print_choices(scene.selection, file);
    fclose(file);
    ck_assert_ptr_nonnull(strstr(printed, "fa3_like: cannot serve\n"));
    ck_assert_ptr_nonnull(strstr(printed, "  head_dim 192: accepted 64, 128 [HEAD_DIM]\n"));
    ck_assert_ptr_nonnull(strstr(printed, "layers 0 prefill, decode: triton_like (auto: rule"));
    free(printed);
}

/* Everything that is said of the selection: explain's text, run's lines, explain's JSON. */
static char *say_all(struct scene *scene)
{
    const attnhost_selection *selected = NULL;
    char *text = NULL;
    size_t size = 0;
    ck_assert_int_eq(selection_api_create(scene->host, scene->config, scene->selection,
                                          scene->status, "", &selected, &scene->error.base),
                     ATTN_OK);
    FILE *file = open_memstream(&text, &size);
    cJSON *json = selection_api_to_json(selected);
    char *printed = cJSON_PrintUnformatted(json);
    selection_api_print(selected, file);
    select_print_choices(scene->selection, file);
    fputs(printed, file);
    fclose(file);
    cJSON_free(printed);
    cJSON_Delete(json);
    attnhost_selection_destroy(selected);
    return text;
}

static void assert_part(const char *text, const char *part, bool there)
{
    ck_assert_msg((strstr(text, part) != NULL) == there, "'%s' is%s in: %.2000s", part,
                  there ? " not" : "", text);
}

/* A phase each for triton_like, as its traits differ; one for fa3_like. */
TEST_OF(choice, who_keeps_to_a_budget_of_multiprocessors_is_shown)
{
    SCENE(scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\nmax_sms = 20\n");
    char *text = say_all(&scene);
    assert_part(text, "multiprocessors: launches may use 20 of 132\n", true);
    assert_part(text, "  * fa3_like: can serve, launches keep to 20 multiprocessors\n", true);
    assert_part(text, "triton_like: can serve, launches keep to 20 multiprocessors\n", true);
    assert_part(text, "triton_like: can serve, launches may take all 132 multiprocessors\n", true);
    assert_part(text, "layers 0-1 prefill, decode: fa3_like (auto: rule ", true);
    assert_part(text, "), launches keep to 20 multiprocessors\n", true);
    assert_part(text, "\"traits\":[\"sm_budget\"]", true);
    free(text);
}

TEST_OF(choice, who_does_not_keep_to_a_budget_is_named)
{
    SCENE(scene);
    begin(&scene, MODEL "[platform]\nsimulate = sm90\nmax_sms = 20\n"
                        "[attention]\nattention_backend = triton_like\n");
    char *text = say_all(&scene);
    assert_part(text,
                "layers 0-1 prefill: triton_like (attention.attention_backend = triton_like\n"
                "  (t.ini:10)), launches may take all 132 multiprocessors\n",
                true);
    assert_part(text,
                "  decode: triton_like (attention.attention_backend = triton_like (t.ini:10)),\n"
                "    launches keep to 20 multiprocessors\n",
                true);
    free(text);
}

/* All multiprocessors, more than there are, and a processor: nothing is said. */
LOOP_OF(choice, without_a_budget_nothing_is_said_of_multiprocessors, 0, 3)
{
    static const char *const settings[] = {"simulate = sm90\n", "simulate = sm90\nmax_sms = 132\n",
                                           "simulate = cpu_amx\nmax_sms = 20\n"};
    SCENE(scene);
    char ini[256];
    snprintf(ini, sizeof ini, MODEL "[platform]\n%s[attention]\nprefill_attention_backend = %s\n",
             settings[_i], "extend_only");
    begin(&scene, ini);
    char *text = say_all(&scene);
    assert_part(text, ": can serve\n", true);
    assert_part(text, "can serve, launches", false);
    assert_part(text, "), launches", false);
    free(text);
}

TESTS("select");
