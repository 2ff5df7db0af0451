/* SPDX-License-Identifier: Apache-2.0
 *
 * check_rules: the file of rules: what it says, how mistakes in one are reported, where it is
 * found.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/config/ini.h"
#include "host/base/error.h"
#include "host/select/platform.h"
#include "host/select/rules.h"
#include "tests/tools/test_main.h"

static struct rules *rules;
static host_error error;

static const char *file_of_rules(void)
{
    static char path[1024];
    const char *source = getenv("ATTNHOST_TEST_SRCDIR");
    snprintf(path, sizeof path, "%s/host/select/selection.ini", source ? source : ".");
    return path;
}

static struct rules *read_file(void)
{
    char *text;
    size_t length;
    struct rules *read = NULL;
    host_error_init(&error);
    attn_status status = config_ini_read_file(file_of_rules(), &text, &length, &error.base);
    if (!status)
        status = rules_create_text(text, length, "selection.ini", &read, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    free(text);
    return read;
}

static void setup(void)
{
    rules = read_file();
}

static void teardown(void)
{
    rules_destroy(rules);
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* Every name that SGLang's documents list, and what it stands for. */
TEST_OF(rules, all_names_of_sglang_are_known)
{
    static const struct {
        const char *alias, *type;
    } names[] = {
        {"flashinfer", "flashinfer_like"},
        {"flashinfer_mla", "flashinfer_like"},
        {"fa3", "fa3_like"},
        {"fa4", "fa4_like"},
        {"triton", "triton_like"},
        {"aiter", "aiter_like"},
        {"wave", "wave_like"},
        {"flashmla", "flashmla_like"},
        {"trtllm_mla", "trtllm_mla_like"},
        {"trtllm_mha", "trtllm_mha_like"},
        {"cutlass_mla", "cutlass_mla_like"},
        {"tokenspeed_mla", "cutedsl_mla_like"},
        {"qsa", "qsa_like"},
        {"minicpm_flashattn", "minicpm_like"},
        {"minicpm_flashinfer", "minicpm_like"},
        {"cutedsl_mla", "cutedsl_mla_like"},
        {"nsa", "dsa_like"},
        {"dsa", "dsa_like"},
        {"dsv4", "dsv4_like"},
        {"compressed", "dsv4_like"},
        {"hpc_ops", "hpc_ops_like"},
        {"torch_native", "cpu_native"},
        {"flex_attention", "flex_attention_like"},
        {"intel_amx", "intel_amx_like"},
        {"intel_xpu", "intel_xpu_like"},
        {"ascend", "ascend_like"},
        {"dual_chunk_flash_attn", "dual_chunk_like"},
        {"hybrid_linear_attn", "hybrid_linear"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct rule *backend = rules_alias(rules, names[i].alias);
        ck_assert_msg(backend != NULL, "%s", names[i].alias);
        ck_assert_str_eq(backend->name, names[i].type);
        ck_assert_ptr_eq(rules_backend(rules, names[i].type), backend);
        ck_assert_ptr_nonnull(backend->text);
    }
    static const char *const dropped[] = {"tokenspeed_mla", "cutlass_mla", "nsa", "compressed",
                                          "dual_chunk_flash_attn"};
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        ck_assert_ptr_eq(rules_former(rules, dropped[i]), rules_alias(rules, dropped[i]));
    ck_assert_ptr_null(rules_former(rules, "dsa"));
    ck_assert_ptr_null(rules_former(rules, "nowhere"));
    ck_assert_ptr_null(rules_alias(rules, "auto"));
    ck_assert_ptr_null(rules_alias(rules, "fa3_like"));
    ck_assert_ptr_null(rules_backend(rules, "fa3"));
}

/* ---- Conditions ------------------------------------------------------------------------------ */

static struct rule_facts facts;
static attn_device device;
static attn_layer_group group;
static struct model model;
static char architecture[32];

/* A plain decoder layer on a platform. */
static void describe(const char *platform)
{
    ck_assert_int_eq(platform_simulate(platform, &device), 0);
    group = (attn_layer_group){.kind = ATTN_KIND_SOFTMAX,
                               .attn_type = ATTN_TYPE_DECODER,
                               .num_q_heads = 32,
                               .head_dim = 128,
                               .v_head_dim = 128,
                               .window_left = -1};
    snprintf(architecture, sizeof architecture, "SomeForCausalLM");
    model = (struct model){.architecture = architecture, .num_groups = 1, .groups = &group};
    facts = (struct rule_facts){
        .device = &device, .model = &model, .group = &group, .kv_dtype = ATTN_BF16};
}

static const char *first(void)
{
    const struct rule *order = rules_order(rules, &facts);
    ck_assert_ptr_nonnull(order);
    return order->backends.items[0];
}

TEST_OF(rules, orders_look_at_all_that_matters)
{
    describe("sm90");
    ck_assert_str_eq(first(), "fa3_like");
    facts.draft_topk = 1;
    ck_assert_str_eq(first(), "fa3_like");
    facts.draft_topk = 2;
    ck_assert_str_eq(first(), "flashinfer_like");
    group.flags = ATTN_GROUP_HAS_SINKS;
    ck_assert_str_eq(first(), "triton_like");
    describe("sm103");
    ck_assert_str_eq(first(), "trtllm_mha_like");
    group.v_head_dim = 64;
    ck_assert_str_eq(first(), "fa4_like");
    describe("sm120");
    ck_assert_str_eq(first(), "flashinfer_like");
    describe("gfx942");
    group.kind = ATTN_KIND_MLA;
    ck_assert_str_eq(first(), "triton_like");
    group.num_q_heads = 16;
    ck_assert_str_eq(first(), "aiter_like");
    describe("cpu");
    ck_assert_str_eq(first(), "cpu_native");
    describe("cpu_amx");
    ck_assert_str_eq(first(), "intel_amx_like");
}

static void assert_excluded(const char *type, const char *rule, const char *field,
                            const char *wanted)
{
    char got[64];
    const struct rule *excluded = rules_exclusion(rules, &facts, type);
    ck_assert_ptr_nonnull(excluded);
    ck_assert_str_eq(excluded->name, rule);
    ck_assert_str_eq(rules_blame(excluded, &facts, got, sizeof got), field);
    ck_assert_str_eq(got, wanted);
    ck_assert_ptr_nonnull(excluded->accepted);
}

TEST_OF(rules, models_exclude_backends)
{
    describe("sm90");
    ck_assert_ptr_null(rules_exclusion(rules, &facts, "flashinfer_like"));
    snprintf(architecture, sizeof architecture, "LlamaForCausalLM");
    ck_assert_ptr_null(rules_exclusion(rules, &facts, "flashinfer_like"));
    snprintf(architecture, sizeof architecture, "Llama4ForCausalLM");
    assert_excluded("flashinfer_like", "llama4", "architecture", "Llama4ForCausalLM");
    ck_assert_ptr_null(rules_exclusion(rules, &facts, "triton_like"));
    snprintf(architecture, sizeof architecture, "FalconH1ForCausalLM");
    assert_excluded("flashinfer_like", "falcon-h", "architecture", "FalconH1ForCausalLM");
    describe("sm90");
    group.logit_cap = 30;
    assert_excluded("trtllm_mha_like", "cap", "logit_cap", "30");
    describe("sm90");
    group.window_left = 127;
    assert_excluded("wave_like", "window", "window_left", "127");
    describe("sm90");
    facts.draft_topk = 4;
    assert_excluded("ascend_like", "trees", "speculative", "tree");
    facts.draft_topk = 1;
    ck_assert_ptr_null(rules_exclusion(rules, &facts, "ascend_like"));
    facts.kv_dtype = ATTN_FP8_E4M3;
    assert_excluded("ascend_like", "fp8", "kv_dtype", "fp8_e4m3");
    describe("sm90");
    assert_excluded("flashmla_like", "softmax", "kind", "softmax");
}

TEST_OF(rules, an_encoder_decoder_excludes_triton_and_windows)
{
    attn_layer_group groups[2];
    describe("sm90");
    groups[0] = groups[1] = group;
    groups[1].attn_type = ATTN_TYPE_CROSS;
    model.groups = groups;
    model.num_groups = 2;
    assert_excluded("triton_like", "encoder-decoder", "model", "encoder_decoder");
    ck_assert_ptr_null(rules_exclusion(rules, &facts, "cpu_native"));
    ck_assert_str_eq(first(), "flashinfer_like");
    groups[0].window_left = 99;
    assert_excluded("cpu_native", "encoder-decoder-window", "model_has", "window");
    assert_excluded("anything", "encoder-decoder-window", "model_has", "window");
}

/* ---- Mistakes -------------------------------------------------------------------------------- */

#define BACKEND "[backend.b]\ntext = x\n"

static const struct {
    const char *text, *words[4];
} mistakes[] = {
    {"text = x\n", {"r.ini:1", "'text' comes before the first section"}},
    {"[ordr.x]\n", {"r.ini:1", "unknown section [ordr.x]", "did you mean [order.NAME]?"}},
    {"[order]\n", {"r.ini:1", "unknown section [order]", "accepted: [backend.TYPE], [order.NAME]"}},
    {"[order.a b]\n", {"r.ini:1", "accepted: [backend.TYPE]"}},
    {BACKEND "[backend.b]\n", {"r.ini:3", "[backend.b] is given twice, first at r.ini:1"}},
    {BACKEND "[order.o]\nplatfrom = any\n", {"r.ini:4", "'platfrom'", "did you mean 'platform'?"}},
    {BACKEND "[order.o]\naliases = x\n", {"r.ini:4", "unknown key 'aliases' in [order.o]"}},
    {BACKEND "[order.o]\naccepted = x\n", {"r.ini:4", "unknown key 'accepted'"}},
    {BACKEND "[order.o]\nplatform = sm9x\n",
     {"r.ini:4", "order.o.platform = 'sm9x' has a word that is not a platform",
      "accepted: any of any", "sm75+"}},
    {BACKEND "[order.o]\nplatform = sm90-sm80\n", {"r.ini:4", "sm90-sm80"}},
    {BACKEND "[order.o]\nkind = softmix\n",
     {"r.ini:4", "order.o.kind = 'softmix'", "accepted: any of softmax, mla, linear, sparse"}},
    {BACKEND "[order.o]\nhas = cap cap\n", {"r.ini:4", "has a word twice"}},
    {BACKEND "[order.o]\nnum_q_heads = 0\n", {"r.ini:4", "out of range"}},
    {BACKEND "[order.o]\nspeculative = \n", {"r.ini:4", "order.o.speculative = '' is empty"}},
    {BACKEND "[order.o]\nbackends = b/c\n", {"r.ini:4", "has a word that is not a name"}},
    {BACKEND "[order.o]\ntext = x\ntext = y\n", {"r.ini:5", "order.o.text is given twice"}},
    {BACKEND "[order.o]\ntext = x\n", {"r.ini:3", "[order.o] has no key 'backends'"}},
    {BACKEND "[order.o]\nbackends = b\n" BACKEND, {"r.ini:3", "[order.o] has no key 'text'"}},
    {BACKEND "[exclude.o]\nbackends = b\ntext = x\n", {"r.ini:3", "has no key 'accepted'"}},
    {"[backend.fa3_like]\ntext = x\n[order.o]\nbackends = fa_like\ntext = x\n",
     {"r.ini:3", "'fa_like' has no section [backend.fa_like]", "did you mean 'fa3_like'?"}},
    {BACKEND "[order.o]\nbackends = all\ntext = x\n", {"r.ini:3", "'all' has no section"}},
    {BACKEND "aliases = c\n[backend.d]\ntext = x\naliases = c\n",
     {"r.ini:4", "backend.d: the name 'c' is taken at r.ini:1"}},
    {BACKEND "aliases = d\n[backend.d]\ntext = x\n", {"r.ini:1", "'d' is taken at r.ini:4"}},
    {"[backend.b]\ntext\n", {"r.ini:2", "'text' is not understood"}},
};

LOOP_OF(rules, a_mistake_is_told_with_its_place, 0, COUNT(mistakes))
{
    struct rules *read = NULL;
    host_error_init(&error);
    const char *text = mistakes[_i].text;
    ck_assert_int_eq(rules_create_text(text, strlen(text), "r.ini", &read, &error.base),
                     ATTN_CONFIG_ERROR);
    for (int w = 0; w < 4 && mistakes[_i].words[w]; w++)
        ck_assert_msg(strstr(host_error_text(&error), mistakes[_i].words[w]), "'%s' is not in: %s",
                      mistakes[_i].words[w], host_error_text(&error));
    ck_assert_ptr_null(read);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static attn_status create(const char *set, struct rules **read)
{
    struct config *config;
    host_error_init(&error);
    attn_status status = config_load_text("", 0, "t.ini", NULL, &set, 1, &config, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    status = rules_create(config, read, &error.base);
    config_destroy(config);
    return status;
}

/* A host without its files chooses as one with them. */
TEST_OF(rules, the_copy_in_the_program_is_the_file)
{
    struct rules *built_in = NULL;
    host_error_init(&error);
    ck_assert_int_eq(rules_create(NULL, &built_in, &error.base), ATTN_OK);
    for (int kind = 0; kind < RULE_KINDS; kind++) {
        ck_assert_uint_eq(built_in->lists[kind].count, rules->lists[kind].count);
        for (size_t i = 0; i < rules->lists[kind].count; i++) {
            ck_assert_str_eq(built_in->lists[kind].items[i].name, rules->lists[kind].items[i].name);
            ck_assert_str_eq(built_in->lists[kind].items[i].text, rules->lists[kind].items[i].text);
        }
    }
    rules_destroy(built_in);
}

TEST_OF(rules, the_user_may_name_a_file)
{
    char path[] = "/tmp/attnhost-rules-XXXXXX", set[64];
    struct rules *read = NULL;
    int descriptor = mkstemp(path);
    ck_assert_int_ge(descriptor, 0);
    FILE *file = fdopen(descriptor, "w");
    fputs("[backend.mine]\naliases = my\ntext = mine\n"
          "[order.all]\nbackends = mine\ntext = mine first\n",
          file);
    fclose(file);
    snprintf(set, sizeof set, "attention.rules=%s", path);
    ck_assert_msg(create(set, &read) == ATTN_OK, "%s", host_error_text(&error));
    ck_assert_ptr_nonnull(rules_alias(read, "my"));
    ck_assert_ptr_null(rules_alias(read, "fa3"));
    rules_destroy(read);
    unlink(path);
    read = NULL;
    ck_assert_int_eq(create(set, &read), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), path));
    ck_assert_ptr_null(read);
}

GROUP(rules, .set_up_once = setup, .tear_down_once = teardown);
TESTS("rules");
