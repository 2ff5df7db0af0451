/* SPDX-License-Identifier: Apache-2.0
 *
 * check_error.c: messages in buffers of every size, with characters of several bytes.
 */
#include "host/base/error.h"

#include <stdio.h>
#include <string.h>

#include "host/base/text.h"
#include "tests/tools/test_main.h"

/* A buffer of a chosen capacity between bytes that must not be touched. */
static struct {
    char before[8], text[64], after[8];
    attn_error error;
} guarded;

static void guard(uint32_t capacity)
{
    memset(&guarded, '#', sizeof guarded);
    guarded.error = (attn_error){.struct_size = sizeof guarded.error,
                                 .field = 7,
                                 .capacity = capacity,
                                 .message = guarded.text,
                                 .needed = 9};
}

/* The text is what is expected, and nothing beyond its buffer was written. */
static void expect(const char *text)
{
    uint32_t capacity = guarded.error.capacity;
    ck_assert_str_eq(guarded.text, text);
    for (size_t i = 0; i < sizeof guarded.before; i++)
        ck_assert_int_eq(guarded.before[i], '#');
    for (size_t i = capacity; i < sizeof guarded.text; i++)
        ck_assert_int_eq(guarded.text[i], '#');
    for (size_t i = 0; i < sizeof guarded.after; i++)
        ck_assert_int_eq(guarded.after[i], '#');
}

TEST_OF(fail, writes_code_and_text)
{
    HOST_ERROR(error);
    ck_assert_uint_eq(error.base.struct_size, sizeof error.base);
    ck_assert_uint_eq(error.base.capacity, sizeof error.text);
    ck_assert_ptr_eq(error.base.message, error.text);
    ck_assert_int_eq(error.base.code, ATTN_OK);
    ck_assert_str_eq(host_error_text(&error), "");
    ck_assert_int_eq(host_fail(&error.base, ATTN_TIMEOUT, "%s after %d s", "nothing", 3),
                     ATTN_TIMEOUT);
    ck_assert_int_eq(error.base.code, ATTN_TIMEOUT);
    ck_assert_str_eq(host_error_text(&error), "nothing after 3 s");
}

/* What a message quotes may come from a file: no line end in it, no escape for a terminal. */
TEST_OF(fail, is_one_line_without_controls)
{
    HOST_ERROR(error);
    host_fail(&error.base, ATTN_CONFIG_ERROR, "got '%s'", "a\nb\t\x1b[2J\x7f\xc3\xa9");
    ck_assert_str_eq(host_error_text(&error), "got 'a?b??[2J?\xc3\xa9'");
    host_fail_prefix(&error.base, "x\r%d", 5);
    ck_assert_str_eq(host_error_text(&error), "x?5: got 'a?b??[2J?\xc3\xa9'");
    snprintf(error.text, sizeof error.text, "a callee's\n"); /* not by host_fail() */
    host_fail_prefix(&error.base, "outer");
    ck_assert_str_eq(host_error_text(&error), "outer: a callee's?");
}

TEST_OF(fail, null_is_accepted)
{
    ck_assert_int_eq(host_fail(NULL, ATTN_BAD_STATE, "%d", 1), ATTN_BAD_STATE);
    ck_assert_int_eq(host_fail_prefix(NULL, "%d", 1), ATTN_INTERNAL);
}

TEST_OF(fail, no_text_is_wanted)
{
    guard(0);
    ck_assert_int_eq(host_fail(&guarded.error, ATTN_UNSUPPORTED, "text"), ATTN_UNSUPPORTED);
    ck_assert_int_eq(host_fail_prefix(&guarded.error, "before"), ATTN_UNSUPPORTED);
    ck_assert_int_eq(guarded.error.code, ATTN_UNSUPPORTED);
    ck_assert_int_eq(guarded.text[0], '#');
    attn_error error = {.struct_size = sizeof error, .capacity = 100};
    ck_assert_int_eq(host_fail(&error, ATTN_INTERNAL, "text"), ATTN_INTERNAL);
    ck_assert_int_eq(host_fail_prefix(&error, "before"), ATTN_INTERNAL);
    ck_assert_int_eq(error.code, ATTN_INTERNAL);
}

/* Every capacity: what fits is there, up to a character's border, and the rest of the struct is
 * left alone. Characters of 1, 2, 3 and 4 bytes. */
TEST_OF(fail, cuts_at_characters)
{
    static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    static const size_t borders[] = {0, 1, 3, 6, 10};
    for (uint32_t capacity = 1; capacity <= sizeof text + 2; capacity++) {
        size_t kept = 0;
        for (size_t b = 0; b < sizeof borders / sizeof *borders; b++)
            if (borders[b] < capacity)
                kept = borders[b];
        char wanted[sizeof text] = "";
        memcpy(wanted, text, kept);
        guard(capacity);
        host_fail(&guarded.error, ATTN_INTERNAL, "%s", text);
        expect(wanted);
        ck_assert_uint_eq(guarded.error.field, 7);
        ck_assert_uint_eq(guarded.error.needed, 9);
        ck_assert_uint_eq(guarded.error.capacity, capacity);
    }
}

TEST_OF(prefix, prefixes)
{
    HOST_ERROR(error);
    host_fail(&error.base, ATTN_CONFIG_ERROR, "inner %d", 1);
    ck_assert_int_eq(host_fail_prefix(&error.base, "layer %d", 5), ATTN_CONFIG_ERROR);
    ck_assert_int_eq(host_fail_prefix(&error.base, "outer"), ATTN_CONFIG_ERROR);
    ck_assert_str_eq(host_error_text(&error), "outer: layer 5: inner 1");
}

/* Every capacity again: the prefix goes first, the message's end is what is lost. */
TEST_OF(prefix, prefixes_cut_at_characters)
{
    static const char whole[] = "\xc3\xa9 8: b\xe2\x82\xac"
                                "c";
    static const size_t borders[] = {0, 2, 3, 4, 5, 6, 7, 10, 11};
    for (uint32_t capacity = 5; capacity <= sizeof whole + 3; capacity++) {
        size_t kept = 0;
        for (size_t b = 0; b < sizeof borders / sizeof *borders; b++)
            if (borders[b] < capacity)
                kept = borders[b];
        if (capacity <= 6)
            kept = 4; /* "prefix: " with nothing after it is no better than "prefix" */
        char wanted[sizeof whole] = "";
        memcpy(wanted, whole, kept);
        guard(capacity);
        memset(guarded.text, '\0', capacity);
        memcpy(guarded.text,
               "b\xe2\x82\xac"
               "c",
               capacity - 1 < 5 ? capacity - 1 : 5);
        guarded.error.code = ATTN_TIMEOUT;
        ck_assert_int_eq(host_fail_prefix(&guarded.error, "\xc3\xa9 %d", 8), ATTN_TIMEOUT);
        expect(wanted);
    }
}

TEST_OF(prefix, prefix_longer_than_the_buffer)
{
    guard(4);
    memcpy(guarded.text, "abc", 4);
    host_fail_prefix(&guarded.error, "12\xc3\xa9%s", "345");
    expect("12");
}

/* A callee that fails without writing a text may leave bytes without an end. */
TEST_OF(prefix, prefix_of_a_text_without_end)
{
    guard(12);
    host_fail_prefix(&guarded.error, "p");
    expect("p: ########");
}

/* Neither part is cut before the buffer is full. */
TEST_OF(prefix, long_prefix_and_message)
{
    char prefix[900], wanted[1024];
    memset(prefix, 'p', sizeof prefix - 1);
    prefix[sizeof prefix - 1] = '\0';
    HOST_ERROR(error);
    host_fail(&error.base, ATTN_INTERNAL, "%0100d", 0);
    host_fail_prefix(&error.base, "%s", prefix);
    snprintf(wanted, sizeof wanted, "%s: %0100d", prefix, 0);
    ck_assert_str_eq(host_error_text(&error), wanted);
    host_fail_prefix(&error.base, "%s", prefix);
    ck_assert_uint_eq(strlen(host_error_text(&error)), sizeof error.text - 1);
}

/* Bytes that are no UTF-8 are not removed beyond the last character. */
TEST_OF(fail, cut_of_anything)
{
    static const struct {
        const char *text, *wanted;
    } rows[] = {
        {"", ""},
        {"a", "a"},
        {"\xc3", ""},
        {"a\xe2\x82", "a"},
        {"a\xf0\x9f\x98", "a"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\x80\x80\x80\x80\x80", "\x80\x80\x80\x80\x80"},
        {"\xa9", "\xa9"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[16];
        strcpy(text, rows[i].text);
        text_cut_incomplete(text);
        ck_assert_str_eq(text, rows[i].wanted);
    }
}

TEST_OF(fail, status_names)
{
    ck_assert_str_eq(host_status_name(ATTN_OK), "OK");
    ck_assert_str_eq(host_status_name(ATTN_BUFFER_TOO_SMALL), "BUFFER_TOO_SMALL");
    ck_assert_str_eq(host_status_name(ATTN_INTERNAL), "INTERNAL");
    ck_assert_str_eq(host_status_name(ATTN_STATUS_COUNT), "?");
    ck_assert_str_eq(host_status_name(-1), "?");
}

TESTS("error");
