/* SPDX-License-Identifier: Apache-2.0
 *
 * Composition and everything behind attnhost.h, with fixture plugins that count and misbehave.
 */
#include "attnhost.h"
#include "host/embed.h"

#include "host/error.h"
#include "tests/fixtures/fixture.h"
#include "tests/test_main.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char fixtures[4096];
static attnhost *host;
static host_error error;
static char logged[8192];

static void take_message(void *ctx, uint32_t level, const char *message)
{
    size_t length = strlen(logged);
    (void)ctx;
    snprintf(logged + length, sizeof logged - length, "%u %s\n", level, message);
}

static attn_status load(const char *name)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s.so", fixtures, name);
    return attnhost_load_plugin(host, path, &error.base);
}

static void setup(void)
{
    const char *built = getenv("ATTNHOST_TEST_FIXTURE_DIR");
    ck_assert_msg(built && realpath(built, fixtures), "ATTNHOST_TEST_FIXTURE_DIR is not set");
    attnhost_params params = {.struct_size = sizeof params,
                              .num_threads = 2,
                              .log_level = ATTN_LOG_DEBUG,
                              .log = take_message};
    host_error_init(&error);
    logged[0] = '\0';
    ck_assert_int_eq(attnhost_create(&params, &host, NULL), ATTN_OK);
    ck_assert_int_eq(load("fixture_good"), ATTN_OK);
    ck_assert_int_eq(load("fixture_pair"), ATTN_OK);
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

static const struct fixture_counters *counters_of(const char *plugin)
{
    const struct loader_plugin *found = registry_find_plugin(&host->registry, plugin);
    ck_assert_ptr_nonnull(found);
    return found->table.get_extension(FIXTURE_COUNTERS);
}

static void define(const char *name, const char *type, const char *key, const char *value,
                   const char *key2, const char *value2)
{
    const char *pairs[] = {key, value, key2, value2};
    uint32_t count = key2 ? 2 : key ? 1 : 0;
    ck_assert_int_eq(attnhost_define_backend(host, name, type, pairs, count, &error.base), ATTN_OK);
}

/* ---- A problem ------------------------------------------------------------------------------- */

static attn_device device;
static attn_layer layers[2];
static attn_layer_group groups[2];
static attn_bounds bounds;
static attn_problem problems[2];

/* Two KV groups of one layer each. */
static void make_problems(void)
{
    memset(&bounds, 0, sizeof bounds);
    device.struct_size = sizeof device;
    ck_assert_int_eq(attnhost_device_init(&device, ATTN_DEVICE_CPU, 0, NULL), ATTN_OK);
    bounds = (attn_bounds){.struct_size = sizeof bounds,
                           .modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND) |
                                    ATTN_MODE_BIT(ATTN_MODE_DECODE) |
                                    ATTN_MODE_BIT(ATTN_MODE_MIXED),
                           .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                           .max_seqs = 8,
                           .max_tokens = 33,
                           .max_q_len = 17,
                           .max_kv_len = 100,
                           .max_kv_tokens = 800};
    for (int p = 0; p < 2; p++) {
        layers[p] = (attn_layer){.struct_size = sizeof layers[p], .layer_id = p, .kv_buffer = p};
        groups[p] = (attn_layer_group){.struct_size = sizeof groups[p],
                                       .kv_group = p,
                                       .num_q_heads = 4,
                                       .num_kv_heads = 2,
                                       .head_dim = 64,
                                       .v_head_dim = 64,
                                       .window_left = -1,
                                       .sm_scale = 0.125f,
                                       .num_layers = 1,
                                       .layers = &layers[p]};
        problems[p] = (attn_problem){.struct_size = sizeof problems[p],
                                     .device = &device,
                                     .group = &groups[p],
                                     .bounds = &bounds,
                                     .kv_layout = ATTN_LAYOUT_KV_NHD,
                                     .q_dtype = ATTN_F32,
                                     .kv_dtype = ATTN_F32,
                                     .out_dtype = ATTN_F32,
                                     .page_size = 16,
                                     .tp_size = 1};
    }
}

static attnhost_backend *compose(const char *name)
{
    attnhost_backend *backend = NULL;
    make_problems();
    attn_status status = attnhost_compose(host, name, problems, 2, &backend, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return backend;
}

static attn_status fail_compose(const char *name)
{
    attnhost_backend *backend = NULL;
    host_error_init(&error);
    attn_status status = attnhost_compose(host, name, problems, 2, &backend, &error.base);
    ck_assert_ptr_null(backend);
    ck_assert_int_eq(host->num_backends, 0);
    return status;
}

/* ---- Names and trees ------------------------------------------------------------------------- */

START_TEST(plugins_and_types_are_listed)
{
    attnhost_plugin_info plugin = {.struct_size = sizeof plugin};
    attnhost_type_info type = {.struct_size = sizeof type};
    ck_assert_int_eq(load("fixture_other_major"), ATTN_INCOMPATIBLE_VERSION);
    ck_assert_int_eq(load("fixture_create_fails"), ATTN_OK);
    ck_assert_uint_eq(attnhost_num_plugins(host), 4);
    ck_assert_uint_eq(attnhost_num_types(host), 4);
    ck_assert_int_eq(attnhost_plugin(host, 0, &plugin, NULL), ATTN_OK);
    ck_assert_str_eq(plugin.name, "fixture_good");
    ck_assert_str_eq(plugin.build, "by hand");
    ck_assert_uint_eq(plugin.num_backends, 2);
    ck_assert_int_eq(attnhost_plugin(host, 2, &plugin, NULL), ATTN_OK);
    ck_assert_int_eq(plugin.status, ATTN_INCOMPATIBLE_VERSION);
    ck_assert_ptr_nonnull(strstr(plugin.reason, "fixture_other_major.so"));
    ck_assert_str_eq(plugin.name, "");
    ck_assert_uint_eq(plugin.num_backends, 0);
    ck_assert_int_eq(attnhost_plugin(host, 3, &plugin, NULL), ATTN_OK);
    ck_assert_uint_eq(plugin.first_backend, 3);
    ck_assert_int_eq(attnhost_type(host, plugin.first_backend, &type, NULL), ATTN_OK);
    ck_assert_str_eq(type.type->name, "fixture_fails");
    ck_assert_uint_eq(type.plugin, 3);
    ck_assert_int_eq(attnhost_plugin(host, 4, &plugin, NULL), ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(attnhost_type(host, 4, &type, NULL), ATTN_INVALID_ARGUMENT);
    ck_assert_str_eq(attnhost_status_name(ATTN_TIMEOUT), "TIMEOUT");
}
END_TEST

START_TEST(smaller_structs_are_filled_as_far_as_they_go)
{
    attnhost_plugin_info plugin;
    memset(&plugin, 0x5A, sizeof plugin);
    plugin.struct_size = offsetof(attnhost_plugin_info, file);
    ck_assert_int_eq(attnhost_plugin(host, 0, &plugin, NULL), ATTN_OK);
    ck_assert_str_eq(plugin.reason, "");
    ck_assert_uint_eq(plugin.struct_size, offsetof(attnhost_plugin_info, file));
    for (size_t b = plugin.struct_size; b < sizeof plugin; b++)
        ck_assert_uint_eq(((unsigned char *)&plugin)[b], 0x5A);
}
END_TEST

START_TEST(unknown_names)
{
    make_problems();
    ck_assert_int_eq(fail_compose("fixture_onee"), ATTN_CONFIG_ERROR);
    assert_says("'fixture_onee' is no backend that is there (did you mean fixture_one?)");
    ck_assert_int_eq(fail_compose("zzz"), ATTN_CONFIG_ERROR);
    assert_says("accepted: fixture_one, fixture_two, fixture_pair");
    define("mine", "fixture_tw0", NULL, NULL, NULL, NULL);
    ck_assert_int_eq(fail_compose("mine"), ATTN_CONFIG_ERROR);
    assert_says("backend.mine.type = 'fixture_tw0' is no backend type that is there");
    assert_says("did you mean fixture_two?");
    define("tree", "fixture_pair", "first", "nobody", NULL, NULL);
    ck_assert_int_eq(fail_compose("tree"), ATTN_CONFIG_ERROR);
    assert_says("backend.tree.first = 'nobody' is no backend");
    ck_assert_int_eq(fail_compose("fixture_pair"), ATTN_CONFIG_ERROR);
    assert_says("backend.fixture_pair.first is missing");
}
END_TEST

START_TEST(definitions)
{
    define("mine", "fixture_one", NULL, NULL, NULL, NULL);
    ck_assert_int_eq(attnhost_define_backend(host, "mine", "fixture_two", NULL, 0, &error.base),
                     ATTN_CONFIG_ERROR);
    assert_says("backend mine is defined twice");
    ck_assert_int_eq(attnhost_define_backend(host, "a.b", NULL, NULL, 0, &error.base),
                     ATTN_CONFIG_ERROR);
    assert_says("'a.b' is not a backend's name");
    const char *half[] = {"block", NULL};
    ck_assert_int_eq(attnhost_define_backend(host, "half", NULL, half, 1, &error.base),
                     ATTN_INVALID_ARGUMENT);
    /* A section may configure the type of its own name. */
    define("fixture_one", NULL, "block", "77", NULL, NULL);
    attnhost_backend *backend = compose("fixture_one");
    ck_assert_int_eq(counters_of("fixture_good")->block, 77);
    attnhost_backend_destroy(backend);
    backend = compose("mine");
    ck_assert_int_eq(counters_of("fixture_good")->block, 64);
    attnhost_backend_destroy(backend);
}
END_TEST

START_TEST(cycles)
{
    make_problems();
    define("self", "fixture_pair", "first", "self", NULL, NULL);
    ck_assert_int_eq(fail_compose("self"), ATTN_CONFIG_ERROR);
    assert_says("self -> self");
    define("a", "fixture_pair", "first", "fixture_one", "second", "b");
    define("b", "fixture_pair", "first", "c", NULL, NULL);
    define("c", "fixture_pair", "first", "a", NULL, NULL);
    ck_assert_int_eq(fail_compose("a"), ATTN_CONFIG_ERROR);
    assert_says("backends contain each other: a -> b -> c -> a");
    attn_verdict verdict = {.struct_size = sizeof verdict};
    ck_assert_int_eq(attnhost_query(host, "b", problems, &verdict, &error.base),
                     ATTN_CONFIG_ERROR);
    assert_says("b -> c -> a -> b");
}
END_TEST

START_TEST(depth)
{
    char name[16], child[16];
    make_problems();
    for (int d = 0; d < COMPOSE_MAX_DEPTH; d++) {
        snprintf(name, sizeof name, "d%d", d);
        snprintf(child, sizeof child, "d%d", d + 1);
        bool last = d == COMPOSE_MAX_DEPTH - 1;
        define(name, "fixture_pair", "first", last ? "fixture_one" : child, NULL, NULL);
    }
    ck_assert_int_eq(fail_compose("d0"), ATTN_CONFIG_ERROR);
    assert_says("nested too deeply: d0 -> d1");
    attnhost_backend *backend = compose("d1");
    ck_assert_uint_eq(attnhost_backend_num_nodes(backend), COMPOSE_MAX_DEPTH);
    attnhost_backend_destroy(backend);
}
END_TEST

START_TEST(tree_is_told)
{
    define("outer", "fixture_pair", "first", "inner", "second", "fixture_two");
    define("inner", "fixture_pair", "first", "small", "second", "small");
    define("small", "fixture_one", "block", "8", NULL, NULL);
    attnhost_backend *backend = compose("outer");
    static const char *const names[] = {"outer", "inner", "small", "fixture_two"};
    static const char *const types[] = {"fixture_pair", "fixture_pair", "fixture_one",
                                        "fixture_two"};
    static const uint32_t depths[] = {0, 1, 2, 1};
    attnhost_node_info info = {.struct_size = sizeof info};
    ck_assert_uint_eq(attnhost_backend_num_nodes(backend), 4);
    for (uint32_t n = 0; n < 4; n++) {
        ck_assert_int_eq(attnhost_backend_node(backend, n, &info, NULL), ATTN_OK);
        ck_assert_str_eq(info.name, names[n]);
        ck_assert_str_eq(info.type, types[n]);
        ck_assert_uint_eq(info.depth, depths[n]);
    }
    ck_assert_ptr_nonnull(strstr(info.plugin_file, "/fixture_good.so"));
    ck_assert_int_eq(attnhost_backend_node(backend, 4, &info, NULL), ATTN_INVALID_ARGUMENT);
    ck_assert_uint_eq(attnhost_backend_needs_host_lens(backend), 1); /* fixture_two's */
    ck_assert_uint_eq(attnhost_backend_index_forms(backend), ATTN_INDEX_BLOCK_TABLE);
    strbuf text;
    strbuf_init(&text);
    compose_print(backend->root, &text);
    ck_assert_ptr_nonnull(strstr(strbuf_text(&text), "outer (fixture_pair)  /"));
    ck_assert_ptr_nonnull(strstr(strbuf_text(&text), "\n    small (fixture_one)  /"));
    ck_assert_ptr_nonnull(strstr(strbuf_text(&text), "\n  fixture_two  /"));
    strbuf_finish(&text);
    /* small was made twice by inner, fixture_two once. */
    ck_assert_int_eq(counters_of("fixture_good")->instances, 3);
    ck_assert_int_eq(counters_of("fixture_good")->num_problems, 2);
    ck_assert_ptr_nonnull(strstr(logged, "2 small: made an instance\n"));
    attnhost_backend_destroy(backend);
    ck_assert_int_eq(counters_of("fixture_good")->instances, 0);
    ck_assert_int_eq(counters_of("fixture_good")->inits, 1);
    ck_assert_int_eq(counters_of("fixture_good")->finis, 1);
    ck_assert_ptr_nonnull(strstr(logged, "3 fixture_good is down\n"));
}
END_TEST

/* ---- Failures leave nothing behind ------------------------------------------------------------ */

START_TEST(failing_child)
{
    make_problems();
    ck_assert_int_eq(load("fixture_create_fails"), ATTN_OK);
    define("tree", "fixture_pair", "first", "fixture_one", "second", "broken");
    define("broken", "fixture_fails", NULL, NULL, NULL, NULL);
    ck_assert_int_eq(fail_compose("broken"), ATTN_DEPENDENCY_MISSING);
    ck_assert_str_eq(host_error_text(&error), "broken: libunobtainium.so.1 is not here");
    ck_assert_int_eq(fail_compose("tree"), ATTN_CHILD_FAILED);
    ck_assert_str_eq(host_error_text(&error), "tree: broken: libunobtainium.so.1 is not here");
    ck_assert_int_eq(error.base.code, ATTN_CHILD_FAILED);
    ck_assert_int_eq(counters_of("fixture_good")->instances, 0);
    ck_assert_int_eq(counters_of("fixture_pair")->instances, 0);
    ck_assert_int_eq(counters_of("fixture_good")->inits, counters_of("fixture_good")->finis);
}
END_TEST

START_TEST(defects_of_answers)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    make_problems();
    problems[0].page_size = problems[1].page_size = 13;
    ck_assert_int_eq(attnhost_query(host, "fixture_one", problems, &verdict, &error.base),
                     ATTN_INTERNAL);
    assert_says("fixture_one: defect of the plugin: in query's verdict it refuses without a reason");
    define("tree", "fixture_pair", "first", "fixture_one", NULL, NULL);
    ck_assert_int_eq(attnhost_query(host, "tree", problems, &verdict, &error.base),
                     ATTN_CHILD_FAILED);
    assert_says("tree: fixture_one: defect of the plugin");
    problems[0].page_size = 14;
    ck_assert_int_eq(attnhost_query(host, "fixture_one", problems, &verdict, &error.base),
                     ATTN_INTERNAL);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: INTERNAL");
    problems[0].page_size = 15;
    ck_assert_int_eq(fail_compose("fixture_one"), ATTN_INTERNAL);
    assert_says("create succeeded without an instance");
}
END_TEST

START_TEST(refusals)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    make_problems();
    ck_assert_int_eq(attnhost_query(host, "fixture_one", problems, &verdict, &error.base), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    groups[0].head_dim = 512;
    ck_assert_int_eq(attnhost_query(host, "fixture_one", problems, &verdict, &error.base), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(verdict.num_reasons, 1);
    ck_assert_str_eq(reason.accepted, "1..256");
    ck_assert_int_eq(fail_compose("fixture_one"), ATTN_UNSUPPORTED);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: head_dim 512: accepted 1..256");
    define("odd", "fixture_one", "block", "nan", NULL, NULL);
    ck_assert_int_eq(attnhost_query(host, "odd", problems, &verdict, &error.base),
                     ATTN_CONFIG_ERROR);
    assert_says("backend.odd.block = 'nan' is not an integer");
}
END_TEST

START_TEST(bad_problems)
{
    attnhost_backend *backend = NULL;
    make_problems();
    ck_assert_int_eq(attnhost_compose(host, "fixture_one", problems, 0, &backend, &error.base),
                     ATTN_INVALID_ARGUMENT);
    problems[1].bounds = NULL;
    ck_assert_int_eq(fail_compose("fixture_one"), ATTN_INVALID_ARGUMENT);
    assert_says("problem 1: bounds is NULL");
    make_problems();
    layers[1].layer_id = 0;
    ck_assert_int_eq(fail_compose("fixture_one"), ATTN_INVALID_ARGUMENT);
    assert_says("layer_id 0 stands in two layers");
    make_problems();
    attn_device other = device;
    other.id = 1;
    problems[1].device = &other;
    ck_assert_int_eq(fail_compose("fixture_one"), ATTN_INVALID_ARGUMENT);
    assert_says("another device");
    make_problems();
    device.type = 99;
    ck_assert_int_eq(fail_compose("fixture_one"), ATTN_DEPENDENCY_MISSING);
}
END_TEST

/* ---- Metadata -------------------------------------------------------------------------------- */

static attnhost_metadata *make_metadata(attnhost_backend *backend, const attn_memory *memory)
{
    attnhost_metadata *metadata = NULL;
    attn_status status = attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, memory,
                                                  &metadata, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return metadata;
}

#define SCRATCH ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH)
#define ZEROED  ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_ZEROED)

START_TEST(memory_is_given_or_allocated)
{
    static _Alignas(256) char scratch[33 * 64 + 256];
    static _Alignas(16) char zeroed[16];
    attnhost_backend *backend = compose("fixture_one");
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory memory = {.struct_size = sizeof memory};
    attnhost_metadata *none = NULL;
    ck_assert_int_eq(attnhost_metadata_size(backend, ATTN_METADATA_EAGER, &bounds, &size, NULL),
                     ATTN_OK);
    ck_assert_uint_eq(size.size[SCRATCH], 33 * 64);
    ck_assert_uint_eq(size.alignment[SCRATCH], 256);
    ck_assert_uint_eq(size.alignment[5], 1);
    ck_assert_int_eq(attnhost_metadata_size(backend, 2, &bounds, &size, &error.base),
                     ATTN_INVALID_ARGUMENT);

    memory.base[SCRATCH] = scratch;
    memory.size[SCRATCH] = 33 * 64 - 1;
    ck_assert_int_eq(attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, &memory, &none,
                                              &error.base),
                     ATTN_BUFFER_TOO_SMALL);
    ck_assert_uint_eq(error.base.needed, 33 * 64);
    assert_says("device scratch memory has 2111 bytes; accepted: 2112 or more");
    memory.base[SCRATCH] = scratch + 128;
    memory.size[SCRATCH] = 33 * 64;
    ck_assert_int_eq(attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, &memory, &none,
                                              &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says("multiple of 256");
    ck_assert_ptr_null(none);
    ck_assert_uint_eq(backend->num_metadata, 0);

    memset(scratch, 0, sizeof scratch);
    memset(zeroed, 0x11, sizeof zeroed);
    memory.base[SCRATCH] = scratch;
    memory.base[ZEROED] = zeroed;
    memory.size[ZEROED] = sizeof zeroed;
    attnhost_metadata *metadata = make_metadata(backend, &memory);
    ck_assert_uint_eq((unsigned char)scratch[33 * 64 - 1], 0xCD); /* the plugin wrote in it */
    ck_assert_int_eq(scratch[33 * 64], 0);
    for (size_t b = 0; b < sizeof zeroed; b++)
        ck_assert_int_eq(zeroed[b], 0);
    ck_assert_ptr_null(backend->scratch[ATTN_SPACE_DEVICE]); /* none of its own was needed */
    attnhost_metadata_destroy(metadata);
    attnhost_metadata_destroy(NULL);
    attnhost_backend_destroy(backend);
    attnhost_backend_destroy(NULL);
}
END_TEST

START_TEST(scratch_is_shared_and_never_moves)
{
    attnhost_backend *backend = compose("fixture_one");
    attnhost_metadata *first = make_metadata(backend, NULL);
    struct embed_scratch *small = backend->scratch[ATTN_SPACE_DEVICE];
    ck_assert_uint_eq(small->users, 2);
    bounds.max_tokens = 5;
    attnhost_metadata *second = make_metadata(backend, NULL);
    ck_assert_ptr_eq(backend->scratch[ATTN_SPACE_DEVICE], small);
    ck_assert_uint_eq(small->users, 3);
    bounds.max_tokens = 1000;
    attnhost_metadata *third = make_metadata(backend, NULL);
    struct embed_scratch *large = backend->scratch[ATTN_SPACE_DEVICE];
    ck_assert_ptr_ne(large, small);
    ck_assert_uint_ge(large->size, 64000);
    ck_assert_uint_eq(large->users, 2);
    ck_assert_uint_eq(small->users, 2);
    memset(small->base, 1, small->size); /* still there */
    attnhost_metadata_destroy(first);
    attnhost_metadata_destroy(second);
    attnhost_metadata_destroy(third);
    ck_assert_uint_eq(large->users, 1);
    ck_assert_int_eq(counters_of("fixture_good")->metadata, 0);
    bounds.max_seqs = 77;
    attnhost_metadata *none = NULL;
    ck_assert_int_eq(attnhost_metadata_create(backend, ATTN_METADATA_GRAPH, &bounds, NULL, &none,
                                              &error.base),
                     ATTN_UNSUPPORTED);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: 77 sequences are too odd");
    ck_assert_uint_eq(large->users, 1);
    attnhost_backend_destroy(backend);
}
END_TEST

/* ---- Batches and forward ---------------------------------------------------------------------- */

static const int32_t lens[3] = {1, 9, 4}, prefixes[3] = {0, 5, 4}, indptr[4] = {0, 1, 5, 5};
static const int32_t table[3 * 7];
static attn_kv_batch kv[2];
static attn_batch batch;
static const attn_forward_args args = {.struct_size = sizeof args};

static void make_batch(uint32_t mode)
{
    for (int g = 0; g < 2; g++)
        kv[g] = (attn_kv_batch){.struct_size = sizeof kv[g],
                                .index_forms = ATTN_INDEX_BLOCK_TABLE,
                                .page_size = 16,
                                .block_table_stride = 7,
                                .block_table = {NULL, table}};
    int32_t tokens = mode == ATTN_MODE_DECODE ? 3 : 5;
    batch = (attn_batch){.struct_size = sizeof batch,
                         .mode = mode,
                         .num_seqs = 3,
                         .num_tokens = tokens,
                         .num_real_seqs = 3,
                         .num_real_tokens = tokens,
                         .max_q_len = 4,
                         .max_kv_len = 9,
                         .num_kv_groups = 2,
                         .seq_lens = {NULL, lens},
                         .prefix_lens = {NULL, prefixes},
                         .q_indptr = {NULL, indptr},
                         .kv_groups = kv};
}

static attn_status plan(attnhost_metadata *metadata, uint32_t mode)
{
    make_batch(mode);
    return attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base);
}

static attn_status forward(attnhost_metadata *metadata, int32_t layer_id)
{
    host_error_init(&error);
    return attnhost_forward(metadata, layer_id, &args, NULL, &error.base);
}

START_TEST(dispatch_by_mode)
{
    attnhost_backend *backend = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    const struct fixture_counters *counters = counters_of("fixture_good");
    ck_assert_int_eq(forward(metadata, 0), ATTN_BAD_STATE);
    assert_says("fixture_one: layer 0: forward before attnhost_init_forward_metadata");
    const struct {
        uint32_t mode;
        int extends, decodes;
    } steps[] = {{ATTN_MODE_EXTEND, 1, 0},
                 {ATTN_MODE_DECODE, 1, 1},
                 {ATTN_MODE_IDLE, 1, 1},
                 {ATTN_MODE_MIXED, 2, 1}};
    int extends = counters->extends, decodes = counters->decodes;
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        ck_assert_int_eq(plan(metadata, steps[s].mode), ATTN_OK);
        ck_assert_int_eq(forward(metadata, 0), ATTN_OK);
        ck_assert_int_eq(counters->extends - extends, steps[s].extends);
        ck_assert_int_eq(counters->decodes - decodes, steps[s].decodes);
    }
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}
END_TEST

START_TEST(one_phase_alone)
{
    attnhost_backend *backend = compose("fixture_two");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_EXTEND), ATTN_INVALID_ARGUMENT);
    assert_says("batch.seq_lens.host, which this backend needs, is absent");
    batch.seq_lens.host = lens;
    batch.q_indptr.host = indptr;
    batch.prefix_lens.host = prefixes;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    ck_assert_int_eq(forward(metadata, 1), ATTN_UNSUPPORTED);
    assert_says("fixture_two: layer 1: batch.mode is 0, and the backend serves DECODE alone");
    make_batch(ATTN_MODE_DECODE);
    batch.seq_lens.host = lens;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    ck_assert_int_eq(forward(metadata, 1), ATTN_OK);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}
END_TEST

START_TEST(counters_are_zeroed_after_a_failure)
{
    attnhost_backend *backend = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_DECODE), ATTN_OK);
    ck_assert_int_eq(forward(metadata, FIXTURE_LAYER_FAILS), ATTN_INVALID_ARGUMENT);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: layer 99: q is missing");
    ck_assert_int_eq(forward(metadata, 0), ATTN_OK);
    ck_assert_int_eq(forward(metadata, FIXTURE_LAYER_SILENT), ATTN_TIMEOUT);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: layer 98: TIMEOUT");
    ck_assert_int_eq(forward(metadata, FIXTURE_LAYER_NONSENSE), ATTN_INTERNAL);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: layer 97: INTERNAL");
    ck_assert_int_eq(attnhost_forward(metadata, FIXTURE_LAYER_FAILS, &args, NULL, NULL),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(forward(metadata, 0), ATTN_OK);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}
END_TEST

/* Spoil one member of a good EXTEND batch at a time. */
#define ASSERT_BAD_BATCH(part, spoil)                                                              \
    do {                                                                                           \
        make_batch(ATTN_MODE_EXTEND);                                                              \
        spoil;                                                                                     \
        host_error_init(&error);                                                                   \
        ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),      \
                         ATTN_INVALID_ARGUMENT);                                                   \
        assert_says(part);                                                                         \
        ck_assert_int_eq(forward(metadata, 0), ATTN_BAD_STATE);                                    \
    } while (0)

START_TEST(bad_batches)
{
    attnhost_backend *backend = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_EXTEND), ATTN_OK);
    ASSERT_BAD_BATCH("batch.mode is 6; accepted: 0..5", batch.mode = 6);
    ASSERT_BAD_BATCH("the modes of the bounds", batch.mode = ATTN_MODE_TARGET_VERIFY);
    ASSERT_BAD_BATCH("num_seqs is 9; accepted: 0..8", batch.num_seqs = 9);
    ASSERT_BAD_BATCH("num_seqs is -1", batch.num_seqs = -1);
    ASSERT_BAD_BATCH("num_tokens is 34; accepted: 0..33", batch.num_tokens = 34);
    ASSERT_BAD_BATCH("num_real_seqs is 4", batch.num_real_seqs = 4);
    ASSERT_BAD_BATCH("num_real_tokens is 6", batch.num_real_tokens = 6);
    ASSERT_BAD_BATCH("max_kv_len is 101", batch.max_kv_len = 101);
    ASSERT_BAD_BATCH("max_q_len is 18", batch.max_q_len = 18);
    ASSERT_BAD_BATCH("num_tokens is 5; accepted: num_seqs in DECODE, which is 3",
                     batch.mode = ATTN_MODE_DECODE);
    ASSERT_BAD_BATCH("seq_lens.device is absent", batch.seq_lens.device = NULL);
    ASSERT_BAD_BATCH("q_indptr.device is absent", batch.q_indptr.device = NULL);
    ASSERT_BAD_BATCH("prefix_lens.device is absent", batch.prefix_lens.device = NULL);
    ASSERT_BAD_BATCH("a layer is of group 1", batch.num_kv_groups = 1);
    ASSERT_BAD_BATCH("kv_groups[1].page_size is 0", kv[1].page_size = 0);
    ASSERT_BAD_BATCH("kv_groups[1].block_table is absent", kv[1].index_forms = ATTN_INDEX_CSR);
    ASSERT_BAD_BATCH("kv_groups[0].block_table is absent", kv[0].block_table.device = NULL);
    make_batch(ATTN_MODE_EXTEND);
    batch.num_seqs = 7;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),
                     ATTN_INTERNAL);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: seven sequences");
    ck_assert_int_eq(forward(metadata, 0), ATTN_BAD_STATE);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}
END_TEST

/* ---- Configuration --------------------------------------------------------------------------- */

static attn_status configure(const char *format, const char *argument)
{
    char text[8192];
    host_error_init(&error);
    snprintf(text, sizeof text, format, argument);
    return attnhost_configure_text(host, text, strlen(text), "t.ini", "/etc/attn", &error.base);
}

START_TEST(ini)
{
    ck_assert_int_eq(configure("[plugins]\n"
                               "path = %s/fixture_create_fails.so\n"
                               "critical = fixture_good\n"
                               "[backend.tree]\n"
                               "type = fixture_pair\n"
                               "first = quick\n"
                               "[backend.quick]\n"
                               "type = fixture_one\n"
                               "blk = 24\n"
                               "cache = here\n",
                               fixtures),
                     ATTN_OK);
    ck_assert_uint_eq(attnhost_num_plugins(host), 3);
    attnhost_backend *backend = compose("tree");
    ck_assert_int_eq(counters_of("fixture_good")->block, 24);
    ck_assert_ptr_nonnull(strstr(logged, "t.ini:9: backend.quick.blk is deprecated; write block"));
    attnhost_backend_destroy(backend);
}
END_TEST

START_TEST(bad_ini)
{
    make_problems();
    ck_assert_int_eq(configure("[plugins]\npath = %s/nothing\n", fixtures), ATTN_CONFIG_ERROR);
    assert_says("t.ini:2");
    assert_says("does not exist");
    ck_assert_int_eq(configure("[plugins]\npath = %s/fixture_no_entry.so\n"
                               "critical = fixture_no_entry\n",
                               fixtures),
                     ATTN_INVALID_ARGUMENT);
    assert_says("critical plugin: ");
    assert_says("no symbol attn_plugin_entry");
    ck_assert_int_eq(configure("[plugins]\ncritical = %s\n", "ghost"), ATTN_DEPENDENCY_MISSING);
    assert_says("critical plugin 'ghost'");
    ck_assert_int_eq(configure("[backend.x]\ntype = fixture_one\nratio = %s\n", "nan"), ATTN_OK);
    ck_assert_int_eq(fail_compose("x"), ATTN_CONFIG_ERROR);
    assert_says("t.ini:3: backend.x.ratio = 'nan' is not a finite number; accepted: 0..1");
    ck_assert_int_eq(configure("[backend.%s]\nblok = 3\n", "fixture_one"), ATTN_OK);
    ck_assert_int_eq(fail_compose("fixture_one"), ATTN_CONFIG_ERROR);
    assert_says("t.ini:2: backend.fixture_one.blok is no option of backend type fixture_one (did "
                "you mean block?)");
}
END_TEST

START_TEST(two_hosts_in_one_process)
{
    attnhost *first = host, *second;
    attnhost_backend *one = compose("fixture_one");
    ck_assert_int_eq(attnhost_create(NULL, &second, NULL), ATTN_OK);
    host = second;
    ck_assert_int_eq(load("fixture_good"), ATTN_OK);
    attnhost_backend *two = compose("fixture_one");
    ck_assert_int_eq(counters_of("fixture_good")->inits, 1);
    ck_assert_int_eq(counters_of("fixture_good")->instances, 2);
    attnhost_backend_destroy(one);
    attnhost_destroy(first);
    ck_assert_int_eq(counters_of("fixture_good")->finis, 0);
    attnhost_backend_destroy(two);
    ck_assert_int_eq(counters_of("fixture_good")->finis, 1);
}
END_TEST

/* ---- Helpers --------------------------------------------------------------------------------- */

START_TEST(tensors)
{
    static _Alignas(64) float data[2 * 3 * 5];
    const int64_t shape[] = {2, 3, 5}, strides[] = {15, 1, 3}, negative[] = {15, -1, 3};
    attn_tensor tensor;
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data, ATTN_DEVICE_CPU, 0, ATTN_F32, 3, shape,
                                          NULL, NULL),
                     ATTN_OK);
    ck_assert_int_eq(tensor.strides[0], 15);
    ck_assert_int_eq(tensor.strides[1], 5);
    ck_assert_int_eq(tensor.strides[2], 1);
    ck_assert_uint_ge(tensor.alignment, 64);
    ck_assert_uint_eq((uintptr_t)data % tensor.alignment, 0);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data + 1, ATTN_DEVICE_CPU, 0, ATTN_F32, 3, shape,
                                          strides, NULL),
                     ATTN_OK);
    ck_assert_uint_eq(tensor.alignment, 4);
    ck_assert_int_eq(tensor.strides[2], 3);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data, 1, 0, ATTN_F32, 3, shape, negative, NULL),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data, 1, 0, ATTN_F32, 0, shape, NULL, NULL),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data, 1, 0, ATTN_F32, 7, shape, NULL, NULL),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, NULL, 1, 0, ATTN_F32, 3, shape, NULL, NULL),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data, 1, 0, ATTN_DTYPE_NONE, 3, shape, NULL,
                                          NULL),
                     ATTN_INVALID_ARGUMENT);
}
END_TEST

/* A view of [1, 3, 2] outputs or [1, 3] LSEs. */
static attn_tensor view(float *data, uint32_t ndim)
{
    static const int64_t shape[] = {1, 3, 2};
    attn_tensor tensor;
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data, ATTN_DEVICE_CPU, 0, ATTN_F32, ndim, shape,
                                          NULL, NULL),
                     ATTN_OK);
    return tensor;
}

START_TEST(merge)
{
    /* Head 0: weights 1/4 and 3/4. Head 1: b is empty and holds rubbish. Head 2: both empty. */
    float inf = (float)INFINITY, not_a_number = (float)NAN;
    float oa[6] = {4, 8, 1, 2, 0, 0}, la[3] = {0, -1e4f, -inf};
    float ob[6] = {8, 0, not_a_number, inf, 5, 5}, lb[3] = {logf(3), -inf, -inf};
    float oc[6], lc[3];
    attn_tensor out_a = view(oa, 3), lse_a = view(la, 2), out_b = view(ob, 3), lse_b = view(lb, 2);
    attn_tensor out = view(oc, 3), lse = view(lc, 2);
    ck_assert_int_eq(attnhost_merge_states(&out_a, &lse_a, &out_b, &lse_b, &out, &lse, NULL),
                     ATTN_OK);
    static const float expected[6] = {7, 2, 1, 2, 0, 0};
    for (int i = 0; i < 6; i++)
        ck_assert_float_eq_tol(oc[i], expected[i], 1e-6f);
    ck_assert_float_eq_tol(lc[0], logf(4), 1e-6f);
    ck_assert_float_eq(lc[1], -1e4f);
    ck_assert(isinf(lc[2]) && lc[2] < 0);
    /* In place gives the same. */
    ck_assert_int_eq(attnhost_merge_states(&out_a, &lse_a, &out_b, &lse_b, &out_b, &lse_b, NULL),
                     ATTN_OK);
    ck_assert_mem_eq(ob, oc, sizeof oc);
    ck_assert_mem_eq(lb, lc, sizeof lc);
    lse.shape[1] = 2;
    ck_assert_int_eq(attnhost_merge_states(&out_a, &lse_a, &out_b, &lse_b, &out, &lse, &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says("merge: lse is of another shape");
}
END_TEST

static Suite *suite(void)
{
    Suite *made = suite_create("compose");
    TCase *tests = tcase_create("compose");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, plugins_and_types_are_listed);
    tcase_add_test(tests, smaller_structs_are_filled_as_far_as_they_go);
    tcase_add_test(tests, unknown_names);
    tcase_add_test(tests, definitions);
    tcase_add_test(tests, cycles);
    tcase_add_test(tests, depth);
    tcase_add_test(tests, tree_is_told);
    tcase_add_test(tests, failing_child);
    tcase_add_test(tests, defects_of_answers);
    tcase_add_test(tests, refusals);
    tcase_add_test(tests, bad_problems);
    tcase_add_test(tests, memory_is_given_or_allocated);
    tcase_add_test(tests, scratch_is_shared_and_never_moves);
    tcase_add_test(tests, dispatch_by_mode);
    tcase_add_test(tests, one_phase_alone);
    tcase_add_test(tests, counters_are_zeroed_after_a_failure);
    tcase_add_test(tests, bad_batches);
    tcase_add_test(tests, ini);
    tcase_add_test(tests, bad_ini);
    tcase_add_test(tests, two_hosts_in_one_process);
    tcase_add_test(tests, tensors);
    tcase_add_test(tests, merge);
    suite_add_tcase(made, tests);
    return made;
}

int main(void)
{
    return test_main(suite());
}
