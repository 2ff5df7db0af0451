/* SPDX-License-Identifier: Apache-2.0
 *
 * check_code_paths: what a backend tells of its paths is looked at, and counted by its wrapper.
 */
#include "host/plugin/wrapper.h"

#include <string.h>

#include "host/base/error.h"
#include "tests/tools/test_main.h"

/* ---- A backend of the test ------------------------------------------------------------------- */

struct attn_instance {
    const attn_code_paths *paths;
};

/* One metadata: how its rows go is what the test says. */
struct attn_metadata {
    int64_t rows[2];
    int32_t layer; /* that it was asked about last */
    attn_status status;
};

static attn_instance instance;
static attn_metadata planned;

static attn_status tell(const attn_metadata *metadata, int32_t layer_id, int64_t *rows,
                        attn_error *error)
{
    ck_assert_ptr_eq(metadata, &planned);
    planned.layer = layer_id;
    memcpy(rows, metadata->rows, 2 * sizeof *rows);
    return metadata->status == ATTN_OK ? ATTN_OK : host_fail(error, metadata->status, "refused");
}

static const attn_code_path named[] = {
    {.struct_size = sizeof named[0], .name = "long_way", .doc = "with all its bends"},
    {.struct_size = sizeof named[0], .name = "short_way", .doc = "straight on"}};
static const attn_code_paths good = {
    .struct_size = sizeof good, .num_paths = 2, .paths = named, .rows = tell};

static void destroy(attn_instance *given)
{
    ck_assert_ptr_eq(given, &instance);
}

static attn_status create_metadata(attn_instance *given, uint32_t kind, const attn_bounds *bounds,
                                   const attn_memory *memory, attn_metadata **metadata,
                                   attn_error *error)
{
    (void)given, (void)kind, (void)bounds, (void)memory, (void)error;
    *metadata = &planned;
    return ATTN_OK;
}

static void destroy_metadata(attn_metadata *metadata)
{
    ck_assert_ptr_eq(metadata, &planned);
}

static attn_status plan(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                        attn_error *error)
{
    (void)metadata, (void)batch, (void)stream, (void)error;
    return ATTN_OK;
}

static attn_status forward(attn_metadata *metadata, int32_t layer_id, const attn_forward_args *args,
                           attn_stream stream, attn_error *error)
{
    (void)metadata, (void)layer_id, (void)args, (void)stream, (void)error;
    return ATTN_OK;
}

static const void *get_extension(attn_instance *given, const char *id)
{
    return strcmp(id, ATTN_EXTENSION_CODE_PATHS) == 0 ? given->paths : NULL;
}

static const attn_backend_ops ops = {.struct_size = sizeof ops,
                                     .destroy = destroy,
                                     .metadata_create = create_metadata,
                                     .init_forward_metadata = plan,
                                     .metadata_destroy = destroy_metadata,
                                     .forward_extend = forward,
                                     .get_extension = get_extension};
static const attn_backend_type type = {.struct_size = sizeof type, .name = "ways", .ops = &ops};
static const struct guard_party party = {"/p/ways.so", "ways"};

/* It, wrapped, with metadata. */
static attn_child child;
static attn_metadata *metadata;
static struct code_path_rows rows;

static void begin(const attn_code_paths *paths, struct code_path_rows *counted)
{
    instance.paths = paths;
    memset(&planned, 0, sizeof planned);
    memset(&rows, 0, sizeof rows);
    child = (attn_child){.struct_size = sizeof child, .type = &type, .instance = &instance};
    ck_assert_int_eq(wrapper_put(&child, &party, counted, NULL), ATTN_OK);
    ck_assert_int_eq(
        child.type->ops->metadata_create(child.instance, 0, NULL, NULL, &metadata, NULL), ATTN_OK);
}

static void end(void)
{
    child.type->ops->metadata_destroy(metadata);
    child.type->ops->destroy(child.instance);
}

static void run_batch(int32_t real_tokens, int64_t first, int64_t second)
{
    attn_batch batch = {.struct_size = sizeof batch, .num_real_tokens = real_tokens};
    planned.rows[0] = first;
    planned.rows[1] = second;
    ck_assert_int_eq(child.type->ops->init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
}

static void run_layer(int32_t layer, uint32_t flags)
{
    attn_forward_args args = {.struct_size = sizeof args, .flags = flags};
    ck_assert_int_eq(child.type->ops->forward_extend(metadata, layer, &args, NULL, NULL), ATTN_OK);
}

static void expect(int64_t all, int64_t first, int64_t second)
{
    ck_assert_int_eq(rows.all, all);
    ck_assert_int_eq(rows.by_path[0], first);
    ck_assert_int_eq(rows.by_path[1], second);
}

/* ---- Counting -------------------------------------------------------------------------------- */

TEST_OF(all, forwards_count)
{
    begin(&good, &rows);
    ck_assert_ptr_eq(rows.paths, &good);
    run_batch(10, 7, 3);
    expect(0, 0, 0);
    run_layer(4, 0);
    ck_assert_int_eq(planned.layer, 4);
    run_layer(5, 0);
    expect(20, 14, 6);
    run_batch(1, 0, 1);
    run_layer(5, 0);
    expect(21, 14, 7);
    end();
}

/* What was captured counts with each later batch, layer by layer. */
TEST_OF(all, replays_count)
{
    begin(&good, &rows);
    run_batch(10, 7, 3);
    for (int32_t layer = 0; layer < 40; layer++)
        run_layer(layer, ATTN_FORWARD_CAPTURING);
    expect(0, 0, 0);
    run_batch(5, 5, 0);
    ck_assert_int_eq(planned.layer, 39);
    run_batch(2, 0, 2);
    expect(40 * 7, 40 * 5, 40 * 2);
    end();
}

/* Rows of an impossible answer count for no path. */
TEST_OF(all, nonsense_is_not_counted)
{
    static const int64_t answer[][2] = {{7, 4}, {7, 2}, {-1, 11}, {11, -1}};
    begin(&good, &rows);
    for (size_t n = 0; n < sizeof answer / sizeof answer[0]; n++) {
        run_batch(10, answer[n][0], answer[n][1]);
        run_layer(0, 0);
        expect(10 * (int64_t)(n + 1), 0, 0);
    }
    run_batch(10, 7, 3);
    planned.status = ATTN_INTERNAL;
    run_layer(0, 0);
    expect(50, 0, 0);
    end();
}

/* The wrapper tells of them by its own metadata; where rows are not counted, in a composite, of
 * none. */
TEST_OF(all, the_wrapper_tells)
{
    int64_t answer[2];
    begin(&good, &rows);
    const attn_code_paths *paths =
        child.type->ops->get_extension(child.instance, ATTN_EXTENSION_CODE_PATHS);
    run_batch(10, 7, 3);
    ck_assert_uint_eq(paths->num_paths, 2);
    ck_assert_ptr_eq(paths->paths, named);
    ck_assert_int_eq(paths->rows(metadata, 4, answer, NULL), ATTN_OK);
    ck_assert_int_eq(answer[0], 7);
    ck_assert_int_eq(planned.layer, 4);
    end();
    begin(&good, NULL);
    ck_assert_ptr_null(child.type->ops->get_extension(child.instance, ATTN_EXTENSION_CODE_PATHS));
    run_batch(10, 7, 3);
    run_layer(0, 0);
    end();
    begin(NULL, &rows);
    ck_assert_ptr_null(rows.paths);
    run_batch(10, 7, 3);
    run_layer(0, 0);
    expect(10, 0, 0);
    end();
}

/* ---- Tables ---------------------------------------------------------------------------------- */

TEST_OF(all, tables_are_looked_at)
{
    const attn_code_path twice[] = {named[0], named[0]};
    static const attn_code_path short_path[] = {{.struct_size = 16, .name = "a", .doc = "b"}};
    static const attn_code_path no_name[] = {{.struct_size = sizeof named[0], .doc = "b"}};
    static const attn_code_path no_doc[] = {{.struct_size = sizeof named[0], .name = "a"}};
    static const attn_code_path bad_name[] = {
        {.struct_size = sizeof named[0], .name = "a/b", .doc = "b"}};
    static const attn_code_path lines[] = {
        {.struct_size = sizeof named[0], .name = "a", .doc = "b\n"}};
    static const attn_code_path reserved[] = {
        {.struct_size = sizeof named[0], .reserved = 1, .name = "a", .doc = "b"}};
    const struct {
        attn_code_paths table;
        const char *message;
    } cases[] = {
        {{16, 1, named, tell}, "struct_size 16: accepted 24 and more"},
        {{sizeof good, 1, NULL, tell}, "paths is NULL"},
        {{sizeof good, 1, named, NULL}, "rows is NULL"},
        {{sizeof good, 0, named, tell}, "num_paths 0: accepted 1..16"},
        {{sizeof good, 17, named, tell}, "num_paths 17: accepted 1..16"},
        {{sizeof good, 2, twice, tell}, "path long_way is there twice"},
        {{sizeof good, 1, short_path, tell}, "path 0: struct_size 16: accepted 24 and more"},
        {{sizeof good, 1, no_name, tell}, "path 0: name '': accepted [a-z][a-z0-9_]*"},
        {{sizeof good, 1, bad_name, tell}, "path 0: name 'a/b': accepted [a-z][a-z0-9_]*"},
        {{sizeof good, 1, no_doc, tell}, "path a: its doc is not one line of text"},
        {{sizeof good, 1, lines, tell}, "path a: its doc is not one line of text"},
        {{sizeof good, 1, reserved, tell}, "path 0: reserved is 1: accepted 0"},
    };
    host_error error;
    ck_assert_int_eq(code_paths_check(&good, NULL), ATTN_OK);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        host_error_init(&error);
        ck_assert_int_eq(code_paths_check(&cases[c].table, &error.base), ATTN_INTERNAL);
        ck_assert_str_eq(host_error_text(&error), cases[c].message);
        begin(&cases[c].table, &rows);
        ck_assert_ptr_null(rows.paths);
        end();
    }
}

TESTS("paths");
