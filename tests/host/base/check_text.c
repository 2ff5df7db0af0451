/* SPDX-License-Identifier: Apache-2.0
 *
 * check_text.c: host/base/text.c.
 */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/message.h"
#include "host/base/text.h"

#include "attn_batch.h"
#include "attn_plugin_util.h"
#include "host/base/operand_roles.h"
#include "tests/tools/test_main.h"

TEST_OF(parsers, int64_takes_the_whole_range_and_nothing_more)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"-0", 0},
                {"+7", 7},
                {"007", 7},
                {"-1", -1},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN}};
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "1.0",
                                      "0x10",
                                      "--1",
                                      "+-1",
                                      "-",
                                      "1e3",
                                      "1k",
                                      "9223372036854775808",
                                      "nan",
                                      "+",
                                      "1,0",
                                      "-9223372036854775809",
                                      "99999999999999999999999"};
    int64_t value;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ck_assert_msg(text_parse_int64(good[i].text, &value), "%s", good[i].text);
        ck_assert_int_eq(value, good[i].value);
    }
    value = 42;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!text_parse_int64(bad[i], &value), "'%s'", bad[i]);
    ck_assert_int_eq(value, 42);
}

TEST_OF(parsers, uint64_has_no_sign)
{
    uint64_t value = 42;
    ck_assert(!text_parse_uint64("-1", &value));
    ck_assert(!text_parse_uint64("+1", &value));
    ck_assert(!text_parse_uint64("18446744073709551616", &value));
    ck_assert(!text_parse_uint64("", &value));
    ck_assert_uint_eq(value, 42);
    ck_assert(text_parse_uint64("18446744073709551615", &value));
    ck_assert_uint_eq(value, UINT64_MAX);
}

TEST_OF(parsers, random_integers_survive_printing)
{
    uint64_t state = 12345;
    for (int i = 0; i < 20000; i++) {
        char text[32];
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t number = state >> (state >> 58);
        int64_t sign_value, expected = (int64_t)number;
        uint64_t value;
        snprintf(text, sizeof text, "%llu", (unsigned long long)number);
        ck_assert(text_parse_uint64(text, &value));
        ck_assert_uint_eq(value, number);
        snprintf(text, sizeof text, "%lld", (long long)expected);
        ck_assert(text_parse_int64(text, &sign_value));
        ck_assert_int_eq(sign_value, expected);
    }
}

TEST_OF(parsers, double_is_finite_and_decimal)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0},        {"-0.5", -0.5}, {".5", 0.5},  {"5.", 5},       {"1e-3", 1e-3},
                {"+1E+3", 1000}, {"1e-999", 0},  {"0.1", 0.1}, {"1e308", 1e308}};
    static const char *const bad[] = {"",      " 1",  "1 ",    "nan",      "inf",   "-inf", "0x1p3",
                                      "1e999", "1,5", "1.2.3", "e5",       "1e",    "-",    ".",
                                      "1f",    "--1", "NaN",   "infinity", "nan(1)"};
    double value = 42;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!text_parse_double(bad[i], &value), "'%s'", bad[i]);
    ck_assert(value == 42);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ck_assert_msg(text_parse_double(good[i].text, &value), "%s", good[i].text);
        ck_assert_msg(value == good[i].value, "%s -> %g", good[i].text, value);
    }
}

/* A locale whose decimal sign is a comma, if the machine has one. */
TEST_OF(parsers, locale_changes_nothing)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (setlocale(LC_ALL, names[i]))
            break;
    double value = 0;
    ck_assert(text_parse_double("1.5", &value));
    ck_assert(value == 1.5);
    ck_assert(!text_parse_double("1,5", &value));
    char text[32];
    ck_assert_int_eq(text_format(text, sizeof text, "%g, %.2f", 0.125, 30.5), 12);
    ck_assert_str_eq(text, "0.125, 30.50");
    strbuf buffer;
    strbuf_init(&buffer);
    strbuf_appendf(&buffer, "%g", -0.5);
    ck_assert_str_eq(strbuf_text(&buffer), "-0.5");
    strbuf_finish(&buffer);
    static const double numbers[] = {0.125, -30.5, 1e300, (double)INFINITY, 7};
    static const char *const texts[] = {"0.125", "-30.5", "1e+300", "inf", "7"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        ck_assert_str_eq(attn_util_number(numbers[i]).text, texts[i]);
    setlocale(LC_ALL, "C");
}

TEST_OF(parsers, bool_words)
{
    static const char *const yes[] = {"yes", "true", "on", "1", "YES", "True"};
    static const char *const no[] = {"no", "false", "off", "0", "Off"};
    static const char *const bad[] = {"", "y", "2", "yess", "ye", " yes", "truefalse"};
    bool value;
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        ck_assert(text_parse_bool(yes[i], &value) && value);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        ck_assert(text_parse_bool(no[i], &value) && !value);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!text_parse_bool(bad[i], &value), "'%s'", bad[i]);
}

TEST_OF(parsers, sizes_are_multiples_of_1024)
{
    static const char *const bad[] = {"", "K", "1KB", "-1", "1.5K", "1 K", "16777216T", "1P"};
    uint64_t bytes;
    ck_assert(text_parse_size("17", &bytes) && bytes == 17);
    ck_assert(text_parse_size("3K", &bytes) && bytes == 3072);
    ck_assert(text_parse_size("2m", &bytes) && bytes == 2097152);
    ck_assert(text_parse_size("5G", &bytes) && bytes == 5368709120u);
    ck_assert(text_parse_size("16777215T", &bytes) && bytes == 16777215ull << 40);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!text_parse_size(bad[i], &bytes), "'%s'", bad[i]);
}

static void assert_range_list(const char *text, size_t count, const int64_t *expected)
{
    int64_t *values = NULL;
    size_t got = 0;
    const char *problem = text_parse_range_list(text, 0, 100, 20, &values, &got);
    ck_assert_msg(!problem, "'%s': %s", text, problem ? problem : "");
    ck_assert_uint_eq(got, count);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(values[i], expected[i]);
    free(values);
}

TEST_OF(parsers, range_lists_are_written_out)
{
    assert_range_list("1 2 4 8-24/8", 6, (int64_t[]){1, 2, 4, 8, 16, 24});
    assert_range_list("0,  3 ,5-7", 5, (int64_t[]){0, 3, 5, 6, 7});
    assert_range_list("  100 ", 1, (int64_t[]){100});
    assert_range_list("9-9/4", 1, (int64_t[]){9});
    assert_range_list("1-20", 20, (int64_t[]){1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                              11, 12, 13, 14, 15, 16, 17, 18, 19, 20});
}

TEST_OF(parsers, range_lists_are_checked_strictly)
{
    static const char *const bad[] = {"",
                                      "  ",
                                      ",",
                                      "1,,2",
                                      "1,",
                                      ",1",
                                      "1 1",
                                      "2 1",
                                      "8-24/7",
                                      "8-24/0",
                                      "9-8",
                                      "101",
                                      "-1",
                                      "1-",
                                      "1/2",
                                      "1-2-3",
                                      "a",
                                      "1-2/",
                                      "1.5",
                                      "1 ; 2",
                                      "0-100",
                                      "0-99999999999999999999",
                                      "1-9223372036854775807",
                                      "18446744073709551615",
                                      "5-18446744073709551615/9",
                                      "1 2 x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t *values = NULL;
        size_t count = 77;
        const char *problem = text_parse_range_list(bad[i], 0, 100, 20, &values, &count);
        ck_assert_msg(problem != NULL && *problem, "'%s'", bad[i]);
        ck_assert_ptr_null(values);
        ck_assert_uint_eq(count, 77);
    }
}

TEST_OF(words, nearest_name)
{
    static const char *const names[] = {"page_size", "dtype",        NULL, "k_scale",
                                        "v_scale",   "mem_fraction", "bs", "sinks"};
    const size_t count = sizeof names / sizeof *names;
    ck_assert_str_eq(text_nearest("pagesize", names, count), "page_size");
    ck_assert_str_eq(text_nearest("page_sise", names, count), "page_size");
    ck_assert_str_eq(text_nearest("PAGE-SIZE", names, count), "page_size");
    ck_assert_str_eq(text_nearest("dytpe", names, count), "dtype");
    ck_assert_str_eq(text_nearest("w_scale", names, count), "k_scale");
    ck_assert_str_eq(text_nearest("vscale", names, count), "v_scale");
    ck_assert_str_eq(text_nearest("b", names, count), "bs");
    ck_assert_str_eq(text_nearest("sink", names, count), "sinks");
    ck_assert_ptr_null(text_nearest("banana", names, count));
    ck_assert_ptr_null(text_nearest("", names, count));
    ck_assert_ptr_null(text_nearest("xy", names, count));
    ck_assert_ptr_null(text_nearest("page_size", names, 0));
    ck_assert_ptr_null(text_nearest(
        "page_size_page_size_page_size_page_size_page_size_page_size_page_size", names, count));
}

TEST_OF(words, roles_have_names)
{
    ck_assert_str_eq(role_name(ATTN_ROLE_LATENT_CACHE), "latent_cache");
    ck_assert_str_eq(role_name(ATTN_ROLE_GATE_A), "a");
    ck_assert_str_eq(role_name(ATTN_ROLE_COUNT), "?");
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        ck_assert_ptr_nonnull(role_name(role));
}

TEST_OF(words, hex_has_two_digits_a_byte)
{
    const uint8_t bytes[] = {0x00, 0x0f, 0xa0, 0xff};
    char hex[10] = "xxxxxxxxx";
    text_hex(bytes, sizeof bytes, hex);
    ck_assert_str_eq(hex, "000fa0ff");
    ck_assert_int_eq(hex[9], '\0');
    text_hex(bytes, 0, hex);
    ck_assert_str_eq(hex, "");
}

TEST_OF(words, words_ignore_case)
{
    ck_assert(text_equal_ignoring_case("", ""));
    ck_assert(text_equal_ignoring_case("AbC", "aBc"));
    ck_assert(!text_equal_ignoring_case("ab", "abc"));
    ck_assert(!text_equal_ignoring_case("abc", "ab"));
    ck_assert(!text_equal_ignoring_case("[", "{")); /* 0x20 apart, as letters are */
}

TEST_OF(strbuf, strbuf_grows)
{
    strbuf buffer;
    strbuf_init(&buffer);
    ck_assert_str_eq(strbuf_text(&buffer), "");
    for (int i = 0; i < 1000; i++) {
        strbuf_append(&buffer, "ab");
        strbuf_appendf(&buffer, "%03d", i);
        strbuf_append_bytes(&buffer, "xyz", 1);
    }
    ck_assert_uint_eq(buffer.length, 6000);
    ck_assert_uint_eq(strlen(strbuf_text(&buffer)), 6000);
    char *text = strbuf_steal(&buffer);
    ck_assert(memcmp(text + 6 * 789, "ab789x", 6) == 0);
    free(text);
    ck_assert_str_eq(strbuf_text(&buffer), "");
    text = strbuf_steal(&buffer);
    ck_assert_str_eq(text, "");
    free(text);
}

TEST_OF(strbuf, strbuf_remembers_failure)
{
    strbuf buffer;
    strbuf_init(&buffer);
    strbuf_append(&buffer, "kept");
    strbuf_append_bytes(&buffer, "", SIZE_MAX / 2); /* refused before a byte is read */
    ck_assert(buffer.failed);
    strbuf_append(&buffer, "more");
    ck_assert_str_eq(strbuf_text(&buffer), "kept");
    ck_assert_ptr_null(strbuf_steal(&buffer));
    strbuf_append(&buffer, "again");
    ck_assert_str_eq(strbuf_text(&buffer), "again");
    strbuf_finish(&buffer);
}

static void assert_wrapped(const char *words, size_t column, size_t indent, const char *wanted)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    text_wrap(file, words, column, indent);
    fclose(file);
    ck_assert_str_eq(text, wanted);
    free(text);
}

TEST_OF(strbuf, paragraphs_of_a_message)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    message_print(file,
                  "none serves (why)" MESSAGE_PARAGRAPH "a: no" MESSAGE_PARAGRAPH "b: no; on x");
    message_print(file, "plain");
    fclose(file);
    ck_assert_str_eq(text, "none serves (why)\n  a: no\n  b: no; on x\nplain\n");
    free(text);
}

TEST_OF(strbuf, lines_of_utf8)
{
    ck_assert(text_is_line("") && text_is_line("a b~") && text_is_line("\xc3\xa9 \xe2\x82\xac"));
    ck_assert(!text_is_line("a\nb") && !text_is_line("\033[2J") && !text_is_line("\x7f"));
    ck_assert(text_is_lines("") && text_is_lines("a\n\n\xc3\xa9\n"));
    ck_assert(!text_is_lines("a\n\033[2J") && !text_is_lines("a\n\xff\n"));
    ck_assert(!text_is_line("a\xff") && !text_is_line("\xc3") && !text_is_line("\xe2\x82"));
    char text[] = "a\xc3\xa9\xc3 \xff\xe2\x82\xac\xe2\x82";
    text_hide_invalid(text);
    ck_assert_str_eq(text, "a\xc3\xa9? ?\xe2\x82\xac??");
}

/* 79 and 80 columns are taken, 81 are not; a word that fits nowhere has a line of its own. */
TEST_OF(strbuf, lines_are_folded)
{
    char word[101];
    memset(word, 'w', 100);
    word[100] = '\0';
    assert_wrapped("", 0, 0, "");
    assert_wrapped("a  b", 0, 0, "a  b");
    assert_wrapped("a  b", 77, 2, "a\n  b");
    assert_wrapped("a b", 76, 2, "a b");
    assert_wrapped("a b", 77, 2, "a b");
    assert_wrapped("a b", 78, 2, "a\n  b");
    assert_wrapped("a b c", 78, 0, "a\nb c");
    char text[256], wanted[256];
    snprintf(text, sizeof text, "a %s b", word);
    snprintf(wanted, sizeof wanted, "a\n  %s\n  b", word);
    assert_wrapped(text, 0, 2, wanted);
}

TESTS("text");
