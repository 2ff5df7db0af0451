/* SPDX-License-Identifier: Apache-2.0
 *
 * check_log.c: levels, control characters, and hosts that callbacks make.
 */
#include "host/base/log.h"

#include "tests/tools/test_main.h"

#include <stdio.h>
#include <string.h>

static char said[256];

static void keep(void *ctx, uint32_t level, const char *message)
{
    size_t length = strlen(said);
    snprintf(said + length, sizeof said - length, "%s%u %s;", (const char *)ctx, level, message);
}

TEST_OF(log, levels_and_control_characters)
{
    struct host_log log;
    said[0] = '\0';
    host_log_init(&log, keep, "", ATTN_LOG_WARNING);
    host_log_write(&log, ATTN_LOG_WARNING, "two\nlines %d\x7f", 7);
    host_log_write(&log, ATTN_LOG_INFO, "too much");
    host_log_finish(&log);
    ck_assert_str_eq(said, "1 two lines 7 ;");
}

TEST_OF(log, newest)
{
    struct host_log logs[3];
    static char names[3][2] = {"a", "b", "c"};
    said[0] = '\0';
    host_log_write_newest(ATTN_LOG_ERROR, "to nobody");
    for (int i = 0; i < 3; i++)
        host_log_init(&logs[i], keep, names[i], ATTN_LOG_DEBUG);
    host_log_write_newest(ATTN_LOG_ERROR, "1");
    host_log_finish(&logs[2]);
    host_log_finish(&logs[0]);
    host_log_write_newest(ATTN_LOG_ERROR, "2");
    host_log_finish(&logs[1]);
    host_log_write_newest(ATTN_LOG_ERROR, "3");
    ck_assert_str_eq(said, "c0 1;b0 2;");
}

/* What a program may do in its log callback: make another host. */
static void make_another(void *ctx, uint32_t level, const char *message)
{
    host_log_init(ctx, keep, "", ATTN_LOG_DEBUG);
    host_log_write_newest(level, message);
    host_log_finish(ctx);
}

TEST_OF(log, callback_makes_a_host)
{
    struct host_log log, another;
    said[0] = '\0';
    host_log_init(&log, make_another, &another, ATTN_LOG_DEBUG);
    host_log_write_newest(ATTN_LOG_INFO, "handed on");
    host_log_finish(&log);
    ck_assert_str_eq(said, "2 handed on;");
}

TESTS("log");
