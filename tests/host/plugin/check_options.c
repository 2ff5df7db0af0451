/* SPDX-License-Identifier: Apache-2.0
 *
 * check_options.c: options of backends from text: values, defaults, errors.
 */
#include "host/plugin/options.h"

#include "host/base/error.h"
#include "tests/tools/test_main.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const policies[] = {"fast", "exact"};

#define OPTION(option_type, option_key, text)                                                      \
    .struct_size = sizeof(attn_option), .type = option_type, .key = option_key,                    \
    .default_text = text, .doc = "an option"

static const attn_option declared[] = {
    {OPTION(ATTN_OPTION_BOOL, "enabled", "yes"), .min = 1},
    {OPTION(ATTN_OPTION_INT, "block", "64"), .min = 1, .max = 1024, .unit = "tokens",
     .deprecated_alias = "blk"},
    {OPTION(ATTN_OPTION_FLOAT, "ratio", "0.5"), .min = 0, .max = 1},
    {OPTION(ATTN_OPTION_STRING, "label", "none"), .min = 1},
    {OPTION(ATTN_OPTION_ENUM, "policy", "exact"), .min = 1, .num_choices = 2, .choices = policies},
    {OPTION(ATTN_OPTION_SIZE, "limit", "64K"), .min = 4096, .max = 1073741824},
    {OPTION(ATTN_OPTION_PATH, "cache", ""), .min = 1},
    {OPTION(ATTN_OPTION_BACKEND_REF, "child", ""), .min = 1},
    {OPTION(ATTN_OPTION_INT, "step", NULL), .min = 1, .flags = ATTN_OPTION_REPEATED},
};

enum { NUM_DECLARED = sizeof declared / sizeof *declared };

static const attn_backend_type type = {
    .struct_size = sizeof type, .name = "sample", .num_options = NUM_DECLARED, .options = declared};

static host_error error;
static struct options *options;

static attn_status parse(const struct options_text *texts, size_t count)
{
    host_error_init(&error);
    options = NULL;
    return options_create(&type, "mine", "sample.ini:5", texts, count, &options, &error.base);
}

/* One text at sample.ini:7. */
static attn_status parse_one(const char *key, const char *value)
{
    struct options_text text = {key, value, "sample.ini:7", "/etc/attn"};
    return parse(&text, 1);
}

static const attn_option_value *find(const char *key)
{
    for (uint32_t v = 0; v < options->view.num_values; v++)
        if (strcmp(options->view.values[v].key, key) == 0)
            return &options->view.values[v];
    return NULL;
}

static void assert_says(const char *part)
{
    ck_assert_msg(strstr(host_error_text(&error), part) != NULL, "'%s' is not in '%s'", part,
                  host_error_text(&error));
}

TEST_OF(options, defaults)
{
    ck_assert_int_eq(parse(NULL, 0), ATTN_OK);
    ck_assert_uint_eq(options->view.struct_size, sizeof(attn_options));
    ck_assert_uint_eq(options->view.num_values, NUM_DECLARED - 1); /* step has none */
    ck_assert_int_eq(find("enabled")->integer, 1);
    ck_assert_int_eq(find("block")->integer, 64);
    ck_assert_double_eq(find("ratio")->real, 0.5);
    ck_assert_str_eq(find("label")->text, "none");
    ck_assert_str_eq(find("policy")->text, "exact");
    ck_assert_int_eq(find("policy")->integer, 1);
    ck_assert_int_eq(find("limit")->integer, 65536);
    ck_assert_str_eq(find("limit")->text, "64K");
    ck_assert_str_eq(find("cache")->text, "");
    ck_assert_str_eq(find("child")->text, "");
    ck_assert_ptr_null(find("step"));
    for (uint32_t v = 0; v < options->view.num_values; v++)
        ck_assert_str_eq(options->view.values[v].place, "default");
    ck_assert_uint_eq(options->num_warnings, 0);
    options_destroy(options);
    options_destroy(NULL);
}

TEST_OF(options, values)
{
    const struct {
        const char *key, *value, *text;
        int64_t integer;
    } rows[] = {
        {"enabled", "off", "off", 0},
        {"block", "1", "1", 1},
        {"block", "1024", "1024", 1024},
        {"policy", "fast", "fast", 0},
        {"limit", "1G", "1G", 1073741824},
        {"limit", "4096", "4096", 4096},
        {"cache", "here/x", "/etc/attn/here/x", 0},
        {"cache", "/there", "/there", 0},
        {"label", "", "", 0},
        {"label", "a b", "a b", 0},
        {"child", "my-Backend_2", "my-Backend_2", 0},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        ck_assert_int_eq(parse_one(rows[r].key, rows[r].value), ATTN_OK);
        ck_assert_str_eq(find(rows[r].key)->text, rows[r].text);
        ck_assert_int_eq(find(rows[r].key)->integer, rows[r].integer);
        ck_assert_str_eq(find(rows[r].key)->place, "sample.ini:7");
        ck_assert_uint_eq(options->view.num_values, NUM_DECLARED - 1);
        options_destroy(options);
    }
    ck_assert_int_eq(parse_one("ratio", "1e-2"), ATTN_OK);
    ck_assert_double_eq(find("ratio")->real, 0.01);
    options_destroy(options);
}

TEST_OF(options, bad_values)
{
    const struct {
        const char *key, *value, *wrong, *accepted;
    } rows[] = {
        {"enabled", "maybe", "is not a yes or no", "yes, no"},
        {"block", "abc", "is not an integer", "1..1024 tokens"},
        {"block", "6.5", "is not an integer", "1..1024 tokens"},
        {"block", "", "is not an integer", "1..1024 tokens"},
        {"block", "0", "is out of range", "1..1024 tokens"},
        {"block", "1025", "is out of range", "1..1024 tokens"},
        {"block", "99999999999999999999", "is not an integer", "1..1024 tokens"},
        {"ratio", "nan", "is not a finite number", "0..1"},
        {"ratio", "-nan", "is not a finite number", "0..1"},
        {"ratio", "inf", "is not a finite number", "0..1"},
        {"ratio", "1.0000001", "is out of range", "0..1"},
        {"policy", "Fast", "is not among the choices", "fast, exact"},
        {"limit", "64X", "is not a number of bytes", "4096..1073741824"},
        {"limit", "4095", "is out of range", "4096..1073741824"},
        {"limit", "16777216T", "is not a number of bytes", "4096..1073741824"},
        {"limit", "8388608T", "is out of range", "4096..1073741824"},
        {"child", "a.b", "is not a backend's name", "[backend.NAME]"},
        {"child", "a b", "is not a backend's name", "[backend.NAME]"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        char place[160];
        ck_assert_int_eq(parse_one(rows[r].key, rows[r].value), ATTN_CONFIG_ERROR);
        ck_assert_ptr_null(options);
        snprintf(place, sizeof place, "sample.ini:7: backend.mine.%s = '%s' ", rows[r].key,
                 rows[r].value);
        assert_says(place);
        assert_says(rows[r].wrong);
        assert_says(rows[r].accepted);
        ck_assert_int_eq(error.base.code, ATTN_CONFIG_ERROR);
        ck_assert_uint_eq(error.base.field, ATTN_FIELD_OPTION);
    }
}

TEST_OF(options, unknown_keys)
{
    ck_assert_int_eq(parse_one("blok", "3"), ATTN_CONFIG_ERROR);
    assert_says("sample.ini:7: backend.mine.blok is not an option of backend type sample");
    assert_says("did you mean block?");
    ck_assert_int_eq(parse_one("qqqqqqq", "3"), ATTN_CONFIG_ERROR);
    assert_says("accepted: enabled, block, ratio");
    ck_assert_ptr_null(strstr(host_error_text(&error), "did you mean"));
}

TEST_OF(options, given_twice)
{
    const struct options_text texts[] = {{"block", "3", "a.ini:1", "/"},
                                         {"label", "x", "a.ini:2", "/"},
                                         {"block", "4", "a.ini:3", "/"}};
    ck_assert_int_eq(parse(texts, 3), ATTN_CONFIG_ERROR);
    assert_says("a.ini:3: backend.mine.block is given twice, first at a.ini:1");
    const struct options_text alias[] = {{"blk", "3", "a.ini:1", "/"},
                                         {"block", "4", "a.ini:3", "/"}};
    ck_assert_int_eq(parse(alias, 2), ATTN_CONFIG_ERROR);
    assert_says("given twice");
}

TEST_OF(options, alias_is_accepted_with_a_warning)
{
    ck_assert_int_eq(parse_one("blk", "32"), ATTN_OK);
    ck_assert_int_eq(find("block")->integer, 32);
    ck_assert_ptr_null(find("blk"));
    ck_assert_uint_eq(options->num_warnings, 1);
    ck_assert_str_eq(options->warnings[0],
                     "sample.ini:7: backend.mine.blk is deprecated; write block");
    options_destroy(options);
}

TEST_OF(options, repeated_keeps_order)
{
    const struct options_text texts[] = {{"step", "30", "a.ini:1", "/"},
                                         {"label", "x", "a.ini:2", "/"},
                                         {"step", "-10", "a.ini:3", "/"},
                                         {"step", "20", "a.ini:4", "/"}};
    static const int64_t expected[] = {30, -10, 20};
    ck_assert_int_eq(parse(texts, 4), ATTN_OK);
    ck_assert_uint_eq(options->view.num_values, NUM_DECLARED - 1 + 3);
    uint32_t seen = 0;
    for (uint32_t v = 0; v < options->view.num_values; v++) {
        const attn_option_value *value = attn_at(options->view.values, v);
        if (strcmp(value->key, "step") == 0)
            ck_assert_int_eq(value->integer, expected[seen++]);
    }
    ck_assert_uint_eq(seen, 3);
    options_destroy(options);
}

TEST_OF(options, required)
{
    const attn_option needed[] = {
        {OPTION(ATTN_OPTION_BACKEND_REF, "first", NULL), .flags = ATTN_OPTION_REQUIRED, .min = 1}};
    const attn_backend_type strict = {
        .struct_size = sizeof strict, .name = "strict", .num_options = 1, .options = needed};
    ck_assert_int_eq(options_check_type(&strict, NULL), ATTN_OK);
    host_error_init(&error);
    ck_assert_int_eq(options_create(&strict, "mine", "a.ini:3", NULL, 0, &options, &error.base),
                     ATTN_CONFIG_ERROR);
    assert_says("a.ini:3: backend.mine.first is missing");
    struct options_text empty = {"first", "", "a.ini:1", "/"};
    ck_assert_int_eq(options_create(&strict, "mine", NULL, &empty, 1, &options, &error.base),
                     ATTN_CONFIG_ERROR);
    assert_says("is not a backend's name");
}

/* ---- Declarations ---------------------------------------------------------------------------- */

static void assert_refused(const attn_option *bad, uint32_t count, const char *part)
{
    const attn_backend_type wrong = {
        .struct_size = sizeof wrong, .name = "wrong", .num_options = count, .options = bad};
    host_error_init(&error);
    ck_assert_int_eq(options_check_type(&wrong, &error.base), ATTN_INTERNAL);
    assert_says("backend type wrong: option ");
    assert_says(part);
}

#define ASSERT_REFUSED(part, ...)                                                                  \
    do {                                                                                           \
        const attn_option bad[] = {__VA_ARGS__};                                                   \
        assert_refused(bad, sizeof bad / sizeof *bad, part);                                       \
    } while (0)

TEST_OF(options, declarations)
{
    static const char *const twice[] = {"a", "b", "a"};
    ck_assert_int_eq(options_check_type(&type, NULL), ATTN_OK);
    ASSERT_REFUSED("is declared twice", {OPTION(ATTN_OPTION_STRING, "x", ""), .min = 1},
                   {OPTION(ATTN_OPTION_STRING, "x", ""), .min = 1});
    ASSERT_REFUSED("alias that is malformed or taken",
                   {OPTION(ATTN_OPTION_STRING, "x", ""), .min = 1},
                   {OPTION(ATTN_OPTION_STRING, "y", ""), .min = 1, .deprecated_alias = "x"});
    const attn_option renamed = {OPTION(ATTN_OPTION_STRING, "x", ""), .min = 1,
                                 .deprecated_alias = "old"};
    ASSERT_REFUSED("is declared twice", renamed, {OPTION(ATTN_OPTION_STRING, "old", ""), .min = 1});
    ASSERT_REFUSED("alias that is malformed or taken", renamed,
                   {OPTION(ATTN_OPTION_STRING, "y", ""), .min = 1, .deprecated_alias = "old"});
    ASSERT_REFUSED("not [a-z]", {OPTION(ATTN_OPTION_STRING, "Block", ""), .min = 1});
    ASSERT_REFUSED("not [a-z]", {OPTION(ATTN_OPTION_STRING, "", ""), .min = 1});
    ASSERT_REFUSED("has no key", {OPTION(ATTN_OPTION_STRING, NULL, ""), .min = 1});
    ASSERT_REFUSED("backend type", {OPTION(ATTN_OPTION_STRING, "type", ""), .min = 1});
    ASSERT_REFUSED("unknown type", {OPTION(ATTN_OPTION_COUNT, "x", ""), .min = 1});
    ASSERT_REFUSED("unknown flags", {OPTION(ATTN_OPTION_STRING, "x", ""), .min = 1, .flags = 64});
    ASSERT_REFUSED("NaN", {OPTION(ATTN_OPTION_FLOAT, "x", "1"), .min = (double)NAN});
    ASSERT_REFUSED("default that is not accepted", {OPTION(ATTN_OPTION_INT, "x", "5"), .max = 4});
    ASSERT_REFUSED("default that is not accepted",
                   {OPTION(ATTN_OPTION_FLOAT, "x", "nan"), .min = 1});
    ASSERT_REFUSED("has no default", {OPTION(ATTN_OPTION_INT, "x", NULL), .min = 1});
    ASSERT_REFUSED("is required, but",
                   {OPTION(ATTN_OPTION_INT, "x", "1"), .flags = ATTN_OPTION_REQUIRED, .min = 2});
    ASSERT_REFUSED("relative path", {OPTION(ATTN_OPTION_PATH, "x", "a/b"), .min = 1});
    ASSERT_REFUSED("without choices", {OPTION(ATTN_OPTION_ENUM, "x", "a"), .min = 1});
    ASSERT_REFUSED("choice twice", {OPTION(ATTN_OPTION_ENUM, "x", "a"), .min = 1, .num_choices = 3,
                                    .choices = twice});
    ASSERT_REFUSED("is not an enum", {OPTION(ATTN_OPTION_STRING, "x", "a"), .min = 1,
                                      .num_choices = 2, .choices = twice});
    ASSERT_REFUSED("struct_size is 8", {.struct_size = 8, .key = "x", .default_text = ""});
    attn_option undocumented = {OPTION(ATTN_OPTION_STRING, "x", ""), .min = 1};
    undocumented.doc = NULL;
    ASSERT_REFUSED("no doc", undocumented);
}

TEST_OF(options, larger_declarations_are_walked_by_their_size)
{
    struct newer {
        attn_option known;
        uint64_t appended[3];
    } newer[2] = {{{OPTION(ATTN_OPTION_INT, "x", "1"), .max = 9}, {7, 7, 7}},
                  {{OPTION(ATTN_OPTION_INT, "y", "2"), .max = 9}, {7, 7, 7}}};
    newer[0].known.struct_size = newer[1].known.struct_size = sizeof *newer;
    const attn_backend_type later = {
        .struct_size = sizeof later, .name = "later", .num_options = 2, .options = &newer[0].known};
    ck_assert_int_eq(options_check_type(&later, NULL), ATTN_OK);
    ck_assert_int_eq(options_create(&later, "mine", NULL, NULL, 0, &options, NULL), ATTN_OK);
    ck_assert_int_eq(find("x")->integer, 1);
    ck_assert_int_eq(find("y")->integer, 2);
    options_destroy(options);
}

TEST_OF(options, names)
{
    char text[8];
    ck_assert(options_is_name("a"));
    ck_assert(options_is_name("cpu_native2"));
    ck_assert(!options_is_name(""));
    ck_assert(!options_is_name("2a"));
    ck_assert(!options_is_name("_a"));
    ck_assert(!options_is_name("a-b"));
    ck_assert(!options_is_name("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
    ck_assert(options_is_backend_name("2-B_c"));
    ck_assert(!options_is_backend_name("a.b"));
    ck_assert_str_eq(options_type_name(ATTN_OPTION_BACKEND_REF), "backend-ref");
    ck_assert_str_eq(options_type_name(99), "?");
    options_accepted(&declared[1], text, sizeof text);
    ck_assert_str_eq(text, "1..1024");
}

TESTS("options");
