/* SPDX-License-Identifier: Apache-2.0
 *
 * check_trace.c: the trace readers on small files of their own making, good and broken.
 */
#include "host/workload/trace.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>
#include <unistd.h>

#include "host/base/error.h"
#include "tests/tools/test_main.h"

static char path[64];
static struct trace trace;
static host_error failure;

/* One file for all tests of a case, made and removed by the process that forks them: one that fails
 * or is killed takes nothing away. */
static void make_file(void)
{
    strcpy(path, "/tmp/check_trace_XXXXXX");
    int descriptor = mkstemp(path);
    ck_assert_int_ge(descriptor, 0);
    close(descriptor);
}

static void remove_file(void)
{
    unlink(path);
}

static void set_up(void)
{
    memset(&trace, 0, sizeof trace);
    host_error_init(&failure);
}

static void tear_down(void)
{
    trace_finish(&trace);
}

static void write_bytes(const char *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
}

static void read_good(const char *text, trace_format format)
{
    write_bytes(text, strlen(text));
    attn_status status = trace_init(&trace, path, format, 0, &failure.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&failure));
}

/* Reading fails with CONFIG_ERROR; the message has "PATH<place>" and all of `words`. */
static void expect_error(trace_format format, const char *place, const char *words[])
{
    char start[128];
    ck_assert_int_eq(trace_init(&trace, path, format, 0, &failure.base), ATTN_CONFIG_ERROR);
    const char *message = host_error_text(&failure);
    snprintf(start, sizeof start, "%s%s", path, place);
    ck_assert_msg(strncmp(message, start, strlen(start)) == 0, "%s: no %s", message, start);
    for (int i = 0; words[i]; i++)
        ck_assert_msg(strstr(message, words[i]), "\"%s\" lacks \"%s\"", message, words[i]);
    ck_assert_ptr_null(trace.requests);
    ck_assert_ptr_null(trace.hash_ids);
    ck_assert_ptr_null(trace.path);
}

#define EXPECT_ERROR(text, format, place, ...)                                                     \
    do {                                                                                           \
        write_bytes(text, strlen(text));                                                           \
        expect_error(format, place, (const char *[]){__VA_ARGS__, NULL});                          \
    } while (0)

/* ---- Mooncake -------------------------------------------------------------------------------- */

#define ROW_1                                                                                      \
    "{\"timestamp\": 100, \"input_length\": 1025, \"output_length\": 7, \"hash_ids\": [4, 0, "     \
    "9]}\n"
#define ROW_2                                                                                      \
    "{\"hash_ids\": [5], \"output_length\": 0, \"input_length\": 512, \"timestamp\": 103.5}\n"

TEST_OF(good, mooncake_rows)
{
    read_good(ROW_1 "\n  \t\r\n" ROW_2, TRACE_FORMAT_MOONCAKE);
    ck_assert_str_eq(trace.path, path);
    ck_assert_int_eq(trace.format, TRACE_FORMAT_MOONCAKE);
    ck_assert_int_eq(trace.num_requests, 2);
    const trace_request *first = &trace.requests[0], *second = &trace.requests[1];
    ck_assert_int_eq(first->arrival_us, 0);
    ck_assert_int_eq(first->input_length, 1025);
    ck_assert_int_eq(first->output_length, 7);
    ck_assert_int_eq(first->num_hash_ids, 3);
    ck_assert_int_eq(first->hash_ids[0], 4);
    ck_assert_int_eq(first->hash_ids[1], 0);
    ck_assert_int_eq(first->hash_ids[2], 9);
    ck_assert_int_eq(first->line, 1);
    ck_assert_int_eq(second->arrival_us, 3500);
    ck_assert_int_eq(second->input_length, 512);
    ck_assert_int_eq(second->output_length, 0);
    ck_assert_int_eq(second->num_hash_ids, 1);
    ck_assert_int_eq(second->hash_ids[0], 5);
    ck_assert_int_eq(second->line, 4);
}

TEST_OF(good, order_is_arrival_then_file)
{
    read_good("{\"timestamp\":9,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n"
              "{\"timestamp\":2,\"input_length\":2,\"output_length\":1,\"hash_ids\":[2]}\n"
              "{\"timestamp\":9,\"input_length\":3,\"output_length\":1,\"hash_ids\":[3]}\n"
              "{\"timestamp\":2,\"input_length\":4,\"output_length\":1,\"hash_ids\":[4]}",
              TRACE_FORMAT_AUTO);
    static const int64_t lengths[] = {2, 4, 1, 3}, arrivals[] = {0, 0, 7000, 7000};
    ck_assert_int_eq(trace.num_requests, 4);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(trace.requests[i].input_length, lengths[i]);
        ck_assert_int_eq(trace.requests[i].hash_ids[0], lengths[i]);
        ck_assert_int_eq(trace.requests[i].arrival_us, arrivals[i]);
    }
}

TEST_OF(good, mooncake_limits)
{
    read_good("{\"timestamp\":1e15,\"input_length\":1,\"output_length\":2147483647,"
              "\"hash_ids\":[9007199254740991]}",
              TRACE_FORMAT_AUTO);
    ck_assert_int_eq(trace.requests[0].output_length, 2147483647);
    ck_assert_int_eq(trace.requests[0].hash_ids[0], 9007199254740991);
}

/* More rows and ids than the arrays start with, so that they move while they grow. */
TEST_OF(good, mooncake_many_rows)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (int row = 0; row < 1001; row++) {
        fprintf(file, "{\"timestamp\":%d,\"input_length\":%d,\"output_length\":1,\"hash_ids\":[",
                row / 3, 512 * (row % 7 + 1));
        for (int i = 0; i <= row % 7; i++)
            fprintf(file, "%s%d", i ? "," : "", row * 10 + i);
        fputs("]}\r\n", file);
    }
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(trace_init(&trace, path, TRACE_FORMAT_AUTO, 0, &failure.base), ATTN_OK);
    ck_assert_int_eq(trace.num_requests, 1001);
    for (int row = 0; row < 1001; row++) {
        const trace_request *request = &trace.requests[row];
        ck_assert_int_eq(request->arrival_us, row / 3 * 1000);
        ck_assert_int_eq(request->num_hash_ids, row % 7 + 1);
        for (int i = 0; i <= row % 7; i++)
            ck_assert_int_eq(request->hash_ids[i], row * 10 + i);
    }
}

static const struct {
    const char *name, *line, *field, *got, *accepted;
} broken_mooncake[] = {
    {"cut off", "{\"timestamp\": 0, \"input_length\": 5", "column", "broken JSON", "object"},
    {"two objects", "{} {}", "column 4", "broken JSON", "object"},
    {"no object", "[1, 2]", "line", "[1,2]", "object"},
    {"no timestamp", "{\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}", "timestamp",
     "nothing", "milliseconds"},
    {"timestamp below 0",
     "{\"timestamp\":-1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}", "timestamp",
     "-1", "from 0"},
    {"timestamp too large",
     "{\"timestamp\":1e300,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}", "timestamp",
     "1.0000000000000001e+300", "1e15"},
    {"no input_length", "{\"timestamp\":0,\"output_length\":1,\"hash_ids\":[1]}", "input_length",
     "nothing", "from 1"},
    {"input_length a string",
     "{\"timestamp\":0,\"input_length\":\"12\",\"output_length\":1,\"hash_ids\":[1]}",
     "input_length", "\"12\"", "an integer from 1 to 2147483647"},
    {"input_length 0", "{\"timestamp\":0,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}",
     "input_length", "got 0", "from 1"},
    {"input_length negative",
     "{\"timestamp\":0,\"input_length\":-7,\"output_length\":1,\"hash_ids\":[1]}", "input_length",
     "-7", "from 1"},
    {"input_length a fraction",
     "{\"timestamp\":0,\"input_length\":1.5,\"output_length\":1,\"hash_ids\":[1]}", "input_length",
     "1.5", "an integer"},
    {"input_length too large",
     "{\"timestamp\":0,\"input_length\":2147483648,\"output_length\":1,\"hash_ids\":[1]}",
     "input_length", "2147483648", "to 2147483647"},
    {"output_length negative",
     "{\"timestamp\":0,\"input_length\":1,\"output_length\":-1,\"hash_ids\":[1]}", "output_length",
     "-1", "from 0"},
    {"output_length null",
     "{\"timestamp\":0,\"input_length\":1,\"output_length\":null,\"hash_ids\":[1]}",
     "output_length", "null", "an integer"},
    {"hash_ids of no list",
     "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":null}", "hash_ids",
     "got null", "array"},
    {"too few hash_ids",
     "{\"timestamp\":0,\"input_length\":513,\"output_length\":1,\"hash_ids\":[1]}", "hash_ids",
     "got 1 ids", "accepted: 2"},
    {"too many hash_ids",
     "{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1,2]}", "hash_ids",
     "got 2 ids", "accepted: 1"},
    {"hash id negative",
     "{\"timestamp\":0,\"input_length\":600,\"output_length\":1,\"hash_ids\":[1,-2]}", "hash_ids",
     "-2", "from 0"},
    {"hash id not exact",
     "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[9007199254740992]}",
     "hash_ids", "9007199254740992", "9007199254740991"},
};

LOOP_OF(bad, mooncake_errors, 0, COUNT(broken_mooncake))
{
    char text[512];
    snprintf(text, sizeof text, "%s%s\n", ROW_1, broken_mooncake[_i].line);
    EXPECT_ERROR(text, TRACE_FORMAT_MOONCAKE, ":2: ", broken_mooncake[_i].field,
                 broken_mooncake[_i].got, broken_mooncake[_i].accepted);
}

/* ---- What lines of JSON may say -------------------------------------------------------------- */

#define LINE(rest) "{\"input_length\": 40, \"output_length\": 3, " rest "}\n"

TEST_OF(good, hash_ids_may_be_left_out)
{
    read_good(LINE("\"timestamp\": 5") LINE("\"timestamp\": 6, \"hash_ids\": [3]"),
              TRACE_FORMAT_AUTO);
    ck_assert_int_eq(trace.num_requests, 2);
    ck_assert_int_eq(trace.requests[0].num_hash_ids, 0);
    ck_assert_ptr_null(trace.requests[0].hash_ids);
    ck_assert_int_eq(trace.requests[1].hash_ids[0], 3);
    ck_assert_int_eq(trace.block_tokens, 512);
}

/* The number of ids says how long a block is, as far as it does. */
static const struct {
    const char *lines;
    int64_t given, block_tokens;
} block_sizes[] = {
    {LINE("\"timestamp\": 0, \"hash_ids\": [1]"), 0, 512},
    {LINE("\"timestamp\": 0, \"hash_ids\": [1, 2, 3]"), 0, 16},
    {LINE("\"timestamp\": 0, \"hash_ids\": [1, 2]"), 0, 32},
    {LINE("\"timestamp\": 0, \"hash_ids\": [1, 2]"), 30, 30},
    {LINE("\"timestamp\": 0, \"hash_ids\": [1]") ROW_1, 0, 512},
    {LINE("\"timestamp\": 0, \"chat_id\": 0"), 0, 16},
    {LINE("\"timestamp\": 0, \"chat_id\": 0, \"hash_ids\": [1]"), 0, 512},
};

LOOP_OF(good, block_size_is_found, 0, COUNT(block_sizes))
{
    write_bytes(block_sizes[_i].lines, strlen(block_sizes[_i].lines));
    attn_status status =
        trace_init(&trace, path, TRACE_FORMAT_AUTO, block_sizes[_i].given, &failure.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&failure));
    ck_assert_int_eq(trace.block_tokens, block_sizes[_i].block_tokens);
}

TEST_OF(bad, block_sizes_that_disagree)
{
    EXPECT_ERROR(LINE("\"timestamp\": 0, \"hash_ids\": [1, 2, 3]") ROW_1, TRACE_FORMAT_AUTO,
                 ":2: ", "hash_ids: got 3 ids for input_length 1025, accepted: 65",
                 "per block of 16 tokens", "workload.block_tokens");
    write_bytes(ROW_1, strlen(ROW_1));
    ck_assert_int_eq(trace_init(&trace, path, TRACE_FORMAT_AUTO, 100, &failure.base),
                     ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "accepted: 11, one per block of 100 "));
}

TEST_OF(good, bailian_has_seconds)
{
    read_good(LINE("\"timestamp\": 61.5, \"chat_id\": 0") LINE("\"timestamp\": 62"),
              TRACE_FORMAT_AUTO);
    ck_assert_int_eq(trace.format, TRACE_FORMAT_BAILIAN);
    ck_assert_int_eq(trace.requests[1].arrival_us, 500000);
    trace_finish(&trace);
    read_good(LINE("\"timestamp\": 61.5, \"chat_id\": 0") LINE("\"timestamp\": 62"),
              TRACE_FORMAT_MOONCAKE);
    ck_assert_int_eq(trace.requests[1].arrival_us, 500);
}

TEST_OF(good, turns_of_a_session)
{
    read_good(LINE("\"timestamp\": 10, \"session_id\": \"a\"")
                  LINE("\"timestamp\": 20, \"session_id\": \"b\"")
                      LINE("\"delay\": 30, \"session_id\": \"a\"")
                          LINE("\"delay\": 5, \"session_id\": \"a\"")
                              LINE("\"delay\": 1, \"session_id\": \"b\""),
              TRACE_FORMAT_AUTO);
    static const int64_t lines[] = {1, 2, 5, 3, 4}, arrivals[] = {0, 10, 11, 30, 35};
    ck_assert_int_eq(trace.num_requests, 5);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(trace.requests[i].line, lines[i]);
        ck_assert_int_eq(trace.requests[i].arrival_us, arrivals[i] * 1000);
    }
}

TEST_OF(bad, turns_without_a_beginning)
{
    EXPECT_ERROR(LINE("\"delay\": 5"), TRACE_FORMAT_AUTO, ":1: ", "delay: got no session_id");
    EXPECT_ERROR(LINE("\"delay\": 5, \"session_id\": \"a\""), TRACE_FORMAT_AUTO,
                 ":1: ", "session_id: got \"a\", accepted: a session of an earlier line");
    EXPECT_ERROR(LINE("\"timestamp\": 5, \"session_id\": [1]"), TRACE_FORMAT_AUTO,
                 ":1: ", "session_id: got [1], accepted: a text or a number");
    EXPECT_ERROR(LINE("\"timestamp\": 5, \"session_id\": 1")
                     LINE("\"delay\": -5, \"session_id\": 1"),
                 TRACE_FORMAT_AUTO, ":2: ", "delay: got -5, accepted: milliseconds");
}

/* Files of texts: the message says what a line needs, at the first try. */
TEST_OF(bad, texts_are_no_trace)
{
    static const char *const texts[] = {
        "[{\"id\": \"c0\", \"conversations\": [{\"from\": \"human\", \"value\": \"a b c\"}]}]\n",
        "{\"id\": \"c0\", \"conversations\": [{\"from\": \"human\", \"value\": \"a b c\"}]}\n",
        "{}\n", "Tell me a story.\n", "prompt,answer\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        EXPECT_ERROR(texts[i], TRACE_FORMAT_AUTO, ":1: ",
                     "{\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens}",
                     "texts have no token counts");
}

/* ---- BurstGPT -------------------------------------------------------------------------------- */

#define BURST "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"

TEST_OF(good, burstgpt_rows)
{
    read_good(BURST "5,ChatGPT,472,18,490,Conversation log\n"
                    "45.25,GPT-4,1087,0,1087,API log\n",
              TRACE_FORMAT_AUTO);
    ck_assert_int_eq(trace.format, TRACE_FORMAT_BURSTGPT);
    ck_assert_int_eq(trace.num_requests, 2);
    ck_assert_int_eq(trace.requests[0].input_length, 472);
    ck_assert_int_eq(trace.requests[0].output_length, 18);
    ck_assert_int_eq(trace.requests[1].arrival_us, 40250000);
    ck_assert_int_eq(trace.requests[1].output_length, 0);
}

TEST_OF(bad, burstgpt_errors)
{
    EXPECT_ERROR("Timestamp,Request tokens\n", TRACE_FORMAT_AUTO, ":1: ", "Response tokens",
                 "no such column");
    EXPECT_ERROR(BURST "x,a,1,1,2,b\n", TRACE_FORMAT_AUTO, ":2: ", "Timestamp: got x",
                 "accepted: seconds");
    EXPECT_ERROR(BURST "-1,a,1,1,2,b\n", TRACE_FORMAT_BURSTGPT, ":2: ", "Timestamp: got -1");
    EXPECT_ERROR(BURST "1,a,0,1,1,b\n", TRACE_FORMAT_AUTO, ":2: ", "Request tokens: got 0");
}

/* ---- Azure ----------------------------------------------------------------------------------- */

#define HEADER "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"

TEST_OF(good, azure_rows)
{
    read_good(HEADER "2023-11-16 18:15:46.6805900,374,44\r\n"
                     "2023-11-16 18:15:50.9951690,396,0\r\n\r\n"
                     "2023-11-17 00:00:00,1,1",
              TRACE_FORMAT_AUTO);
    ck_assert_int_eq(trace.format, TRACE_FORMAT_AZURE);
    ck_assert_int_eq(trace.num_requests, 3);
    ck_assert_int_eq(trace.requests[0].arrival_us, 0);
    ck_assert_int_eq(trace.requests[0].input_length, 374);
    ck_assert_int_eq(trace.requests[0].output_length, 44);
    ck_assert_int_eq(trace.requests[0].num_hash_ids, 0);
    ck_assert_ptr_null(trace.requests[0].hash_ids);
    ck_assert_int_eq(trace.requests[0].line, 2);
    ck_assert_int_eq(trace.requests[1].arrival_us, 4314579);
    ck_assert_int_eq(trace.requests[1].output_length, 0);
    ck_assert_int_eq(trace.requests[2].arrival_us, INT64_C(20653319410));
    ck_assert_int_eq(trace.requests[2].line, 5);
}

TEST_OF(good, azure_columns_by_name)
{
    read_good("\xef\xbb\xbfGeneratedTokens, extra ,TIMESTAMP,ContextTokens\n"
              "3,,2024-05-10T00:00:00.25+00:00, 17\n",
              TRACE_FORMAT_AUTO);
    ck_assert_int_eq(trace.requests[0].input_length, 17);
    ck_assert_int_eq(trace.requests[0].output_length, 3);
}

/* Two moments and how far apart they are: days, leap years, zones, all digits of a fraction. */
static const struct {
    const char *from, *to;
    int64_t microseconds;
} spans[] = {
    {"2023-11-16 18:15:46.6805909", "2023-11-16 18:15:46.6805919", 1},
    {"2023-12-31 23:59:59.999999", "2024-01-01 00:00:00", 1},
    {"2024-02-28 00:00:00", "2024-03-01 00:00:00", INT64_C(2) * 86400000000},
    {"2023-02-28 00:00:00", "2023-03-01 00:00:00", INT64_C(1) * 86400000000},
    {"1999-01-01 00:00:00", "2001-01-01 00:00:00", INT64_C(731) * 86400000000},
    {"2024-05-10 01:30:00+02:00", "2024-05-09 23:30:00Z", 0},
    {"2024-05-10 00:00:00Z", "2024-05-10 00:00:00-01:30", INT64_C(5400000000)},
};

LOOP_OF(good, azure_timestamps, 0, COUNT(spans))
{
    char text[256];
    snprintf(text, sizeof text, HEADER "%s,1,1\n%s,2,1\n", spans[_i].from, spans[_i].to);
    read_good(text, TRACE_FORMAT_AZURE);
    ck_assert_int_eq(trace.requests[0].input_length, 1);
    ck_assert_int_eq(trace.requests[1].arrival_us, spans[_i].microseconds);
}

TEST_OF(bad, azure_header_errors)
{
    EXPECT_ERROR("TIMESTAMP,ContextTokens\n", TRACE_FORMAT_AUTO, ":1: ", "GeneratedTokens",
                 "no such column", "TIMESTAMP, ContextTokens, GeneratedTokens");
    EXPECT_ERROR("TIMESTAMP,ContextTokens,GeneratedTokens,TIMESTAMP\n", TRACE_FORMAT_AUTO,
                 ":1: ", "TIMESTAMP", "two columns");
    EXPECT_ERROR(ROW_1, TRACE_FORMAT_AZURE, ":1: ", "TIMESTAMP", "no such column");
    EXPECT_ERROR(HEADER, TRACE_FORMAT_MOONCAKE, ":1: ", "column 1", "broken JSON");
}

static const struct {
    const char *line, *field, *got;
} broken_azure[] = {
    {"2023-11-16 18:15:46,374", "got 2 fields", "accepted: 3"},
    {"2023-11-16 18:15:46,374,44,1", "got 4 fields", "accepted: 3"},
    {"2023-11-16 18:15:46,abc,44", "ContextTokens", "got abc"},
    {"2023-11-16 18:15:46,,44", "ContextTokens", "got nothing"},
    {"2023-11-16 18:15:46,12.0,44", "ContextTokens", "got 12.0"},
    {"2023-11-16 18:15:46,0,44", "ContextTokens", "got 0, accepted: an integer from 1"},
    {"2023-11-16 18:15:46,-3,44", "ContextTokens", "got -3"},
    {"2023-11-16 18:15:46,2147483648,44", "ContextTokens", "to 2147483647"},
    {"2023-11-16 18:15:46,99999999999999999999,44", "ContextTokens", "to 2147483647"},
    {"2023-11-16 18:15:46,5,-1", "GeneratedTokens", "got -1, accepted: an integer from 0"},
    {"2023-11-16 18:15:46,5,4x", "GeneratedTokens", "got 4x"},
    {",5,4", "TIMESTAMP", "got nothing, accepted: YYYY-MM-DD"},
    {"yesterday,5,4", "TIMESTAMP", "got yesterday"},
    {"2023-02-29 18:15:46,5,4", "TIMESTAMP", "2023-02-29"},
    {"2023-13-01 18:15:46,5,4", "TIMESTAMP", "2023-13-01"},
    {"2023-11-16 24:15:46,5,4", "TIMESTAMP", "24:15:46"},
    {"2023-11-16 18:15:46.,5,4", "TIMESTAMP", "46."},
    {"2023-11-16 18:15:46 PM,5,4", "TIMESTAMP", "PM"},
    {"2023-11-16 18:15,5,4", "TIMESTAMP", "18:15"},
};

LOOP_OF(bad, azure_errors, 0, COUNT(broken_azure))
{
    char text[256];
    snprintf(text, sizeof text, HEADER "2023-11-16 18:15:46,1,1\r\n%s\r\n", broken_azure[_i].line);
    EXPECT_ERROR(text, TRACE_FORMAT_AUTO, ":3: ", broken_azure[_i].field, broken_azure[_i].got);
}

/* ---- Files ----------------------------------------------------------------------------------- */

/* ---- Compressed ------------------------------------------------------------------------------ */

static void write_gzip(const char *text)
{
    gzFile file = gzopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(gzputs(file, text), (int)strlen(text));
    ck_assert_int_eq(gzclose(file), Z_OK);
}

TEST_OF(bad, gzip_is_read)
{
    static const char azure[] = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                "2023-11-16 18:15:46.6805900,374,44\n";
    write_gzip(ROW_1 ROW_2);
    ck_assert_int_eq(trace_init(&trace, path, TRACE_FORMAT_AUTO, 0, &failure.base), ATTN_OK);
    ck_assert_int_eq(trace.format, TRACE_FORMAT_MOONCAKE);
    ck_assert_int_eq(trace.num_requests, 2);
    ck_assert_int_eq(trace.requests[0].hash_ids[2], 9);
    ck_assert_int_eq(trace.requests[1].line, 2);
    trace_finish(&trace);
    write_gzip(azure);
    ck_assert_int_eq(trace_init(&trace, path, TRACE_FORMAT_AUTO, 0, &failure.base), ATTN_OK);
    ck_assert_int_eq(trace.format, TRACE_FORMAT_AZURE);
    ck_assert_int_eq(trace.requests[0].output_length, 44);
}

/* Small files that unpack to much: empty lines by the million, then long ones. */
TEST_OF(bad, gzip_that_unpacks_to_much)
{
    enum { LINE = 1 << 20 };
    char *line = malloc(LINE + 1);
    for (int long_lines = 0; long_lines < 2; long_lines++) {
        gzFile file = gzopen(path, "wb");
        memset(line, long_lines ? ' ' : '\n', LINE);
        line[LINE - 1] = '\n';
        line[LINE] = '\0';
        for (int l = 0; l < 80; l++)
            ck_assert_int_eq(gzputs(file, line), LINE);
        ck_assert_int_eq(gzputs(file, ROW_1), (int)strlen(ROW_1));
        ck_assert_int_eq(gzclose(file), Z_OK);
        host_error_init(&failure);
        ck_assert_int_eq(trace_init(&trace, path, TRACE_FORMAT_AUTO, 0, &failure.base),
                         ATTN_CONFIG_ERROR);
        ck_assert_ptr_nonnull(strstr(host_error_text(&failure),
                                     long_lines ? ":64: got data that unpack to more than 200 times"
                                                : ":100001: got more than 100000 empty lines"));
    }
    free(line);
}

/* Cut anywhere, or with any byte changed: an error, never another trace. */
TEST_OF(bad, gzip_that_is_damaged)
{
    unsigned char bytes[512];
    write_gzip(ROW_1 ROW_2);
    FILE *file = fopen(path, "rb");
    size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    ck_assert_uint_lt(length, sizeof bytes);
    for (size_t cut = 3; cut < length; cut++) {
        write_bytes((const char *)bytes, cut);
        expect_error(TRACE_FORMAT_MOONCAKE, "", (const char *[]){NULL});
    }
    for (size_t at = 10; at < length; at++) { /* the header's bytes say little */
        bytes[at] ^= 0x41;
        write_bytes((const char *)bytes, length);
        expect_error(TRACE_FORMAT_MOONCAKE, "", (const char *[]){NULL});
        bytes[at] ^= 0x41;
    }
}

TEST_OF(bad, no_file)
{
    unlink(path);
    expect_error(TRACE_FORMAT_AUTO, ": ", (const char *[]){"No such file", NULL});
    ck_assert_int_eq(trace_init(&trace, "/", TRACE_FORMAT_AUTO, 0, NULL), ATTN_CONFIG_ERROR);
}

#define MOONCAKE_LINE(time, length)                                                                \
    "{\"timestamp\": " #time ", \"input_length\": " #length ", \"output_length\": 1}\n"

static bool is_short(const void *ctx, const trace_request *request)
{
    return request->input_length <= *(const int64_t *)ctx;
}

/* Nothing is read beyond the last request that counts: what is broken there is not seen. */
LOOP_OF(bad, beginning_of_a_file, 0, 4)
{
    static const char lines[] =
        MOONCAKE_LINE(30, 10) MOONCAKE_LINE(10, 2000) MOONCAKE_LINE(20, 11) "broken\n";
    static const int64_t most = 100;
    static const struct {
        struct trace_limit limit;
        int64_t requests, last_line;
    } cases[] = {
        {{1, NULL, NULL}, 1, 1},
        {{2, NULL, NULL}, 2, 1},
        {{3, NULL, NULL}, 3, 1},
        {{2, is_short, &most}, 3, 1}, /* line 2 is read, and counts as none */
    };
    write_bytes(lines, strlen(lines));
    ck_assert_int_eq(
        trace_init_limited(&trace, path, TRACE_FORMAT_AUTO, 0, &cases[_i].limit, &failure.base),
        ATTN_OK);
    ck_assert_int_eq(trace.num_requests, cases[_i].requests);
    ck_assert_int_eq(trace.requests[trace.num_requests - 1].line, cases[_i].last_line);
}

TEST_OF(bad, more_than_a_file_has)
{
    const struct trace_limit four = {4, NULL, NULL};
    write_bytes(MOONCAKE_LINE(30, 10) "broken\n", strlen(MOONCAKE_LINE(30, 10) "broken\n"));
    ck_assert_int_eq(trace_init_limited(&trace, path, TRACE_FORMAT_AUTO, 0, &four, &failure.base),
                     ATTN_CONFIG_ERROR);
}

TEST_OF(bad, no_requests)
{
    EXPECT_ERROR("", TRACE_FORMAT_AUTO, ": ", "no request");
    EXPECT_ERROR("\n \n", TRACE_FORMAT_MOONCAKE, ": ", "no request");
    EXPECT_ERROR(HEADER, TRACE_FORMAT_AUTO, ": ", "no request");
    EXPECT_ERROR("\xef\xbb\xbf", TRACE_FORMAT_AUTO, ": ", "no request");
}

TEST_OF(bad, nul_byte)
{
    static const char bytes[] = ROW_1 "{\"timestamp\"\0: 1}\n";
    write_bytes(bytes, sizeof bytes - 1);
    expect_error(TRACE_FORMAT_AUTO, ":2: ", (const char *[]){"NUL byte", NULL});
}

TEST_OF(bad, endless_line)
{
    size_t length = (size_t)17 << 20;
    char *bytes = malloc(length);
    ck_assert_ptr_nonnull(bytes);
    memset(bytes, ' ', length);
    write_bytes(bytes, length);
    free(bytes);
    expect_error(TRACE_FORMAT_AUTO, ":1: ", (const char *[]){"16777216 bytes", NULL});
}

TESTS("trace", .set_up_once = make_file, .tear_down_once = remove_file, .set_up = set_up,
      .tear_down = tear_down);
