/* SPDX-License-Identifier: Apache-2.0
 *
 * Composition and configuration: names, trees, cycles, failures, with plugins that misbehave.
 */
#include "tests/host/embed/attnhost_fixture.h"

#include <fcntl.h>
#include <unistd.h>

/* ---- Names and trees ------------------------------------------------------------------------- */

TEST_OF(compose, plugins_and_types_are_listed)
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

TEST_OF(compose, smaller_structs_are_filled_as_far_as_they_go)
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

TEST_OF(compose, unknown_names)
{
    make_problems();
    ck_assert_int_eq(fail_compose("fixture_onee"), ATTN_CONFIG_ERROR);
    assert_says("'fixture_onee' is not a known backend (did you mean fixture_one?)");
    ck_assert_int_eq(fail_compose("zzz"), ATTN_CONFIG_ERROR);
    assert_says("accepted: fixture_one, fixture_two, fixture_pair");
    define("mine", "fixture_tw0", NULL, NULL, NULL, NULL);
    ck_assert_int_eq(fail_compose("mine"), ATTN_CONFIG_ERROR);
    assert_says("backend.mine.type = 'fixture_tw0' is not a known backend type");
    assert_says("did you mean fixture_two?");
    define("tree", "fixture_pair", "first", "nobody", NULL, NULL);
    ck_assert_int_eq(fail_compose("tree"), ATTN_CONFIG_ERROR);
    assert_says("backend.tree.first = 'nobody' is not a known backend");
    ck_assert_int_eq(fail_compose("fixture_pair"), ATTN_CONFIG_ERROR);
    assert_says("backend.fixture_pair.first is missing");
}

TEST_OF(compose, definitions)
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
    BACKEND(backend) = compose("fixture_one");
    ck_assert_int_eq(counters_of("fixture_good")->block, 77);
    attnhost_backend_destroy(backend);
    backend = compose("mine");
    ck_assert_int_eq(counters_of("fixture_good")->block, 64);
}

/* Relative paths in options begin at the working folder: without options it is not needed. */
TEST_OF(compose, working_folder_is_gone)
{
    char folder[] = "/tmp/check_compose.XXXXXX";
    int before = open(".", O_RDONLY | O_DIRECTORY);
    const char *pairs[] = {"cache", "here"};
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(rmdir(folder), 0);
    attn_status status =
        attnhost_define_backend(host, "gone", "fixture_one", pairs, 1, &error.base);
    define("still", "fixture_one", NULL, NULL, NULL, NULL);
    ck_assert_int_eq(fchdir(before), 0);
    close(before);
    ck_assert_int_eq(status, ATTN_BAD_STATE);
    assert_says("No such file");
}

TEST_OF(compose, cycles)
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
    ck_assert_int_eq(attnhost_query(host, "b", problems, &verdict, &error.base), ATTN_CONFIG_ERROR);
    assert_says("b -> c -> a -> b");
}

TEST_OF(compose, depth)
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
    BACKEND(backend) = compose("d1");
    ck_assert_uint_eq(attnhost_backend_num_nodes(backend), COMPOSE_MAX_DEPTH);
}

TEST_OF(compose, tree_is_told)
{
    define("outer", "fixture_pair", "first", "inner", "second", "fixture_two");
    define("inner", "fixture_pair", "first", "small", "second", "small");
    define("small", "fixture_one", "block", "8", NULL, NULL);
    int inits = counters_of("fixture_good")->inits, finis = counters_of("fixture_good")->finis;
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
    attnhost_code_path_info path = {.struct_size = sizeof path};
    ck_assert_uint_eq(info.num_paths, 0);
    ck_assert_int_eq(attnhost_backend_code_path(backend, 3, 0, &path, NULL), ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(attnhost_backend_code_path(backend, 4, 0, &path, NULL), ATTN_INVALID_ARGUMENT);
    ck_assert_uint_eq(attnhost_backend_host_arrays(backend),
                      ATTN_HOST_SEQ_LENS | ATTN_HOST_Q_INDPTR); /* fixture_two's */
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
    ck_assert_int_eq(counters_of("fixture_good")->inits, inits + 1);
    ck_assert_int_eq(counters_of("fixture_good")->finis, finis + 1);
    ck_assert_ptr_nonnull(strstr(logged, "3 fixture_good is down\n"));
}

/* fixture_two plans softmax layers with host arrays, and no others. */
TEST_OF(compose, host_arrays_by_kind)
{
    static const uint32_t kinds[][2] = {{ATTN_KIND_LINEAR, ATTN_KIND_LINEAR},
                                        {ATTN_KIND_LINEAR, ATTN_KIND_SOFTMAX}};
    for (int n = 0; n < 2; n++) {
        attnhost_backend *backend = NULL;
        make_problems();
        groups[0].kind = kinds[n][0];
        groups[1].kind = kinds[n][1];
        ck_assert_int_eq(attnhost_compose(host, "fixture_two", problems, 2, &backend, &error.base),
                         ATTN_OK);
        ck_assert_uint_eq(attnhost_backend_host_arrays(backend),
                          n == 0 ? 0 : ATTN_HOST_SEQ_LENS | ATTN_HOST_Q_INDPTR);
        attnhost_backend_destroy(backend);
    }
}

/* ---- Failures -------------------------------------------------------------------------------- */

TEST_OF(compose, failing_child)
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

TEST_OF(compose, defects_of_answers)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    make_problems();
    problems[0].page_size = problems[1].page_size = 13;
    ck_assert_int_eq(attnhost_query(host, "fixture_one", problems, &verdict, &error.base),
                     ATTN_INTERNAL);
    assert_says(
        "fixture_one: defect of the plugin: in query's verdict it refuses without a reason");
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

TEST_OF(compose, refusals)
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

TEST_OF(compose, bad_problems)
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
    assert_says("two layers have layer_id 0");
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

/* ---- Configuration --------------------------------------------------------------------------- */

static attn_status configure(const char *format, const char *argument)
{
    char text[8192];
    host_error_init(&error);
    snprintf(text, sizeof text, format, argument);
    return attnhost_configure_text(host, text, strlen(text), "t.ini", "/etc/attn", &error.base);
}

TEST_OF(compose, ini)
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
    BACKEND(backend) = compose("tree");
    ck_assert_int_eq(counters_of("fixture_good")->block, 24);
    ck_assert_ptr_nonnull(strstr(logged, "t.ini:9: backend.quick.blk is deprecated; write block"));
}

TEST_OF(compose, bad_ini)
{
    make_problems();
    ck_assert_int_eq(configure("[plugins]\npath = %s/nothing\n", fixtures), ATTN_CONFIG_ERROR);
    assert_says("t.ini:2");
    assert_says("No such file or directory");
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
    assert_says(
        "t.ini:2: backend.fixture_one.blok is not an option of backend type fixture_one (did "
        "you mean block?)");
}

TEST_OF(compose, loading_while_a_backend_lives)
{
    define("tree", "fixture_pair", "first", "fixture_one", NULL, NULL);
    attnhost_backend *backend = compose("tree");
    attnhost_node_info info = {.struct_size = sizeof info};
    ck_assert_int_eq(load("fixture_create_fails"), ATTN_OK); /* the lists grow, and move */
    for (int d = 0; d < 20; d++) {
        char name[16];
        snprintf(name, sizeof name, "more%d", d);
        define(name, "fixture_one", NULL, NULL, NULL, NULL);
    }
    ck_assert_int_eq(attnhost_backend_node(backend, 1, &info, NULL), ATTN_OK);
    ck_assert_str_eq(info.type, "fixture_one");
    attnhost_backend_destroy(backend);
    ck_assert_int_eq(counters_of("fixture_good")->instances, 0);
}

TEST_OF(compose, two_hosts_in_one_process)
{
    attnhost *first = host, *second;
    int inits = counters_of("fixture_good")->inits, finis = counters_of("fixture_good")->finis;
    attnhost_backend *one = compose("fixture_one");
    ck_assert_int_eq(attnhost_create(NULL, &second, NULL), ATTN_OK);
    host = second;
    ck_assert_int_eq(load("fixture_good"), ATTN_OK);
    attnhost_backend *two = compose("fixture_one");
    ck_assert_int_eq(counters_of("fixture_good")->inits, inits + 1);
    ck_assert_int_eq(counters_of("fixture_good")->instances, 2);
    attnhost_backend_destroy(one);
    attnhost_destroy(first);
    ck_assert_int_eq(counters_of("fixture_good")->finis, finis);
    attnhost_backend_destroy(two);
    ck_assert_int_eq(counters_of("fixture_good")->finis, finis + 1);
}

GROUP(compose, .set_up = setup, .tear_down = teardown);
TESTS("compose");
