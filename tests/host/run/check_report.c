/* SPDX-License-Identifier: Apache-2.0
 *
 * check_report.c: the JSON of a run, key by key and type by type, its quantiles, and what happens
 * when memory runs out on the way.
 */
#include "host/run/report.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "host/base/error.h"
#include "tests/tools/test_main.h"

/* One that ends with its block. */
#define REPORT(name) struct report name __attribute__((cleanup(report_finish)))

/* ---- Quantiles ------------------------------------------------------------------------------- */

static struct report_times times;

static void add_times(const int64_t *ns, size_t count)
{
    memset(&times, 0, sizeof times);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(report_add_time(&times, ns[i], NULL), ATTN_OK);
}

/* Nearest rank: the smallest value that at least a share p of all is not above. */
TEST_OF(gather, quantiles)
{
    static const int64_t five[] = {50000, 15000, 40000, 20000, 35000};
    add_times(five, 5);
    ck_assert_double_eq(report_quantile_us(&times, 0.0), 15);
    ck_assert_double_eq(report_quantile_us(&times, 0.2), 15);
    ck_assert_double_eq(report_quantile_us(&times, 0.21), 20);
    ck_assert_double_eq(report_quantile_us(&times, 0.3), 20);
    ck_assert_double_eq(report_quantile_us(&times, 0.4), 20);
    ck_assert_double_eq(report_quantile_us(&times, 0.5), 35);
    ck_assert_double_eq(report_quantile_us(&times, 0.99), 50);
    ck_assert_double_eq(report_quantile_us(&times, 1.0), 50);
    ck_assert_mem_eq(times.ns, five, sizeof five); /* the order of the steps is kept */
    report_times_finish(&times);
}

TEST_OF(gather, quantiles_of_few)
{
    static const int64_t two[] = {2500, 1500};
    add_times(two, 0);
    ck_assert_double_eq(report_quantile_us(&times, 0.5), 0);
    add_times(two, 1);
    ck_assert_double_eq(report_quantile_us(&times, 0.01), 2.5);
    ck_assert_double_eq(report_quantile_us(&times, 0.99), 2.5);
    report_times_finish(&times);
    add_times(two, 2);
    ck_assert_double_eq(report_quantile_us(&times, 0.5), 1.5);
    ck_assert_double_eq(report_quantile_us(&times, 0.51), 2.5);
    report_times_finish(&times);
}

/* 1 to 3000 us, shuffled: more than the array has at first. */
TEST_OF(gather, quantiles_of_many)
{
    memset(&times, 0, sizeof times);
    for (int64_t i = 0; i < 3000; i++)
        ck_assert_int_eq(report_add_time(&times, (i * 1747 % 3000 + 1) * 1000, NULL), ATTN_OK);
    ck_assert_uint_eq(times.count, 3000);
    ck_assert_double_eq(report_quantile_us(&times, 0.5), 1500);
    ck_assert_double_eq(report_quantile_us(&times, 0.99), 2970);
    ck_assert_double_eq(report_quantile_us(&times, 1), 3000);
    report_times_finish(&times);
}

/* 1 to 1,000,000 us, shuffled: memory is bounded, and a quantile is off by 0.2 % at most. */
TEST_OF(gather, quantiles_in_bounded_memory)
{
    enum { COUNT = 1000000 };
    double sum = 0;
    memset(&times, 0, sizeof times);
    for (int64_t i = 0; i < COUNT; i++) {
        int64_t ns = (i * 174763 % COUNT + 1) * 1000;
        ck_assert_int_eq(report_add_time(&times, ns, NULL), ATTN_OK);
        sum += (double)ns;
    }
    ck_assert_uint_eq(times.count, COUNT);
    ck_assert_double_eq(times.sum_ns, sum);
    ck_assert_ptr_null(times.ns);
    ck_assert_double_eq(report_quantile_us(&times, 0), 1);
    ck_assert_double_eq(report_quantile_us(&times, 1), COUNT);
    for (int percent = 1; percent < 100; percent++)
        ck_assert_double_eq_tol(report_quantile_us(&times, percent / 100.0), percent * COUNT / 100,
                                0.002 * percent * COUNT / 100);
    report_times_finish(&times);
}

/* Below 512 ns each duration has a bucket; the longest that there is has one, too. */
TEST_OF(gather, quantiles_of_extremes)
{
    memset(&times, 0, sizeof times);
    for (int64_t i = 0; i <= REPORT_TIMES_EXACT; i++)
        ck_assert_int_eq(report_add_time(&times, i % 512, NULL), ATTN_OK);
    ck_assert_double_eq_tol(report_quantile_us(&times, 0.5), 0.255, 1e-9);
    ck_assert_int_eq(report_add_time(&times, INT64_MAX, NULL), ATTN_OK);
    ck_assert_int_eq(report_add_time(&times, -1, NULL), ATTN_OK);
    ck_assert_double_eq(report_quantile_us(&times, 1), (double)INT64_MAX * 1e-3);
    ck_assert_double_eq(report_quantile_us(&times, 0), 0);
    report_times_finish(&times);
}

/* ---- Paths ----------------------------------------------------------------------------------- */

TEST_OF(gather, paths_add_up)
{
    REPORT(report);
    char a[101], b[101];
    memset(a, 'x', 100);
    memset(b, 'x', 100);
    a[100] = b[100] = '\0';
    b[99] = 'y'; /* equal but for their ends */
    report_init(&report);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(report_add_rows(&report, a, 10, NULL), ATTN_OK);
        ck_assert_int_eq(report_add_rows(&report, b, 1, NULL), ATTN_OK);
    }
    ck_assert_uint_eq(report.num_paths, 2);
    ck_assert_str_eq(report.paths[0].name, a);
    ck_assert_int_eq(report.paths[0].rows, 30);
    ck_assert_str_eq(report.paths[1].name, b);
    ck_assert_int_eq(report.paths[1].rows, 3);
    report_finish(&report);
    ck_assert_ptr_null(report.paths);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* A report in which every number is another one. */
static void make_report(struct report *report)
{
    report_init(report);
    report->requests = 3;
    report->steps = 41;
    report->tokens.prefill = (INT64_C(1) << 53) - 1;
    report->tokens.decode = 1000003;
    report->tokens.prefix_hit = 32;
    report->tokens.recomputed = 7;
    report->wall_s = 0.1;
    ck_assert_int_eq(report_add_choice(report, "0-3,5", "prefill", "cpu_native", NULL), ATTN_OK);
    ck_assert_int_eq(report_add_choice(report, "0-3,5", "decode", "say \"hi\"", NULL), ATTN_OK);
    ck_assert_int_eq(report_add_rows(report, "cpu_native", 12, NULL), ATTN_OK);
    ck_assert_int_eq(report_add_rows(report, "hybrid/decode", 13, NULL), ATTN_OK);
    report->verify.rows_checked = 25;
    report->verify.max_abs_err = 0.333;
    report->verify.max_rel_err = 2e-300;
    report->kv.capacity = 4096;
    report->kv.peak = 4095;
    report->kv.num_pools = 1;
    report->kv.pools[0] = (struct report_pool){"all", 4, 64, 4096, 4095, 4000, 0};
    report->kv.pools[1] = (struct report_pool){"window", 5, 32, 512, 511, 500, 16};
    ck_assert_int_eq(report_add_time(&report->prefill, 2500, NULL), ATTN_OK);
    ck_assert_int_eq(report_add_time(&report->prefill, 7500, NULL), ATTN_OK);
    ck_assert_int_eq(report_add_time(&report->decode, 1250, NULL), ATTN_OK);
    memset(report->digest, 'd', 64);
    report->seed = UINT64_MAX - 4;
}

/* Of two requests on the wall clock, and of one on the virtual one. */
static void add_waits(struct report *report)
{
    ck_assert_int_eq(report_add_time(&report->ttft[REPORT_WALL], 1500000, NULL), ATTN_OK);
    ck_assert_int_eq(report_add_time(&report->ttft[REPORT_WALL], 2500000, NULL), ATTN_OK);
    ck_assert_int_eq(report_add_time(&report->ttft[REPORT_VIRTUAL], 1000000, NULL), ATTN_OK);
}

/* Without a row that was checked in layer 1. */
static void add_bars(struct report *report)
{
    report->verify.num_layers = 2;
    for (int phase = 0; phase < REPORT_PHASES; phase++) {
        report->verify.of_bar[phase] = calloc(2, sizeof(double));
        ck_assert_ptr_nonnull(report->verify.of_bar[phase]);
        report->verify.of_bar[phase][0] = 0.25 + phase;
        report->verify.of_bar[phase][1] = -1;
    }
}

static const cJSON *get(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    ck_assert_msg(item != NULL, "no key %s", key);
    return item;
}

static double number(const cJSON *object, const char *key)
{
    const cJSON *item = get(object, key);
    ck_assert_msg(cJSON_IsNumber(item), "%s is no number", key);
    return cJSON_GetNumberValue(item);
}

static const char *text(const cJSON *object, const char *key)
{
    const cJSON *item = get(object, key);
    ck_assert_msg(cJSON_IsString(item), "%s is no text", key);
    return cJSON_GetStringValue(item);
}

/* The object has these keys, in this order, and no other. */
static const cJSON *keys_are(const cJSON *object, const char *keys)
{
    char got[256] = "";
    ck_assert(cJSON_IsObject(object));
    for (const cJSON *item = object->child; item; item = item->next) {
        strcat(got, item->string);
        strcat(got, item->next ? " " : "");
    }
    ck_assert_str_eq(got, keys);
    return object;
}

static cJSON *parse(const struct report *report)
{
    char *json = report_json(report);
    ck_assert_ptr_nonnull(json);
    size_t length = strlen(json);
    ck_assert_int_eq(json[length - 1], '\n');
    ck_assert_int_ne(json[length - 2], '\n');
    cJSON *root = cJSON_Parse(json);
    ck_assert_msg(root != NULL, "%s", json);
    free(json);
    return root;
}

TEST_OF(json, json_has_every_key)
{
    REPORT(report);
    make_report(&report);
    cJSON *root = parse(&report);
    keys_are(root, "attnhost commit plugins device seed requests steps tokens wall_s "
                   "virtual_s tokens_per_s ttft_ms tpot_ms latency_us composition paths verify kv "
                   "digest series");
    ck_assert_double_eq(number(root, "requests"), 3);
    ck_assert_double_eq(number(root, "steps"), 41);
    const cJSON *tokens = keys_are(get(root, "tokens"), "prefill decode prefix_hit recomputed");
    ck_assert_double_eq(number(tokens, "prefill"), 9007199254740991.0);
    ck_assert_double_eq(number(tokens, "decode"), 1000003);
    ck_assert_double_eq(number(tokens, "prefix_hit"), 32);
    ck_assert_double_eq(number(tokens, "recomputed"), 7);
    ck_assert_double_eq(number(root, "wall_s"), 0.1);
    const cJSON *rates = keys_are(get(root, "tokens_per_s"), "virtual wall");
    const cJSON *wall = keys_are(get(rates, "wall"), "prefill decode");
    ck_assert_double_eq_tol(number(wall, "prefill"), 90071992547409910.0, 100);
    ck_assert_double_eq_tol(number(wall, "decode"), 10000030, 1e-6);
    ck_assert_double_eq_tol(number(root, "virtual_s"), 11250e-9, 1e-15);
    ck_assert_double_eq_tol(number(get(rates, "virtual"), "decode"), 1000003 / 11250e-9, 1e-3);
    const cJSON *verify = keys_are(
        get(root, "verify"), "rows_checked rows_failed detectable_share max_abs_err max_rel_err");
    ck_assert_double_eq(number(verify, "rows_checked"), 25);
    ck_assert_double_eq(number(verify, "rows_failed"), 0);
    ck_assert_double_eq(number(verify, "max_abs_err"), 0.333);
    ck_assert_double_eq(number(verify, "max_rel_err"), 2e-300);
    const cJSON *kv = keys_are(get(root, "kv"), "capacity peak leaked pools");
    const cJSON *of_pool = keys_are(cJSON_GetArrayItem(get(kv, "pools"), 0),
                                    "holds layers bytes_per_token capacity peak held leaked");
    ck_assert_int_eq(cJSON_GetArraySize(get(kv, "pools")), 1);
    ck_assert_str_eq(get(of_pool, "holds")->valuestring, "all");
    ck_assert_double_eq(number(of_pool, "bytes_per_token"), 64);
    ck_assert_double_eq(number(of_pool, "held"), 4000);
    ck_assert_double_eq(number(kv, "capacity"), 4096);
    ck_assert_double_eq(number(kv, "peak"), 4095);
    ck_assert_double_eq(number(kv, "leaked"), 0);
    const cJSON *latency = keys_are(get(root, "latency_us"), "prefill decode");
    const cJSON *prefill = keys_are(get(latency, "prefill"), "count p50 p90 p99 percentiles");
    const cJSON *decode = get(latency, "decode");
    ck_assert_double_eq(number(prefill, "count"), 2);
    ck_assert_int_eq(cJSON_GetArraySize(get(prefill, "percentiles")), 101);
    ck_assert_double_eq(cJSON_GetArrayItem(get(prefill, "percentiles"), 50)->valuedouble, 2.5);
    ck_assert_double_eq(cJSON_GetArrayItem(get(prefill, "percentiles"), 51)->valuedouble, 7.5);
    ck_assert_double_eq(number(prefill, "p50"), 2.5);
    ck_assert_double_eq(number(prefill, "p99"), 7.5);
    ck_assert_double_eq(number(decode, "p50"), 1.25);
    ck_assert_double_eq(number(decode, "p99"), 1.25);
    ck_assert_str_eq(text(root, "digest"), report.digest);
    ck_assert_uint_eq(strlen(text(root, "digest")), 64);
    ck_assert(cJSON_IsNumber(get(root, "seed")));
    cJSON_Delete(root);
}

TEST_OF(json, json_tells_the_composition)
{
    REPORT(report);
    make_report(&report);
    cJSON *root = parse(&report);
    const cJSON *list = get(root, "composition");
    ck_assert(cJSON_IsArray(list));
    ck_assert_int_eq(cJSON_GetArraySize(list), 2);
    for (int c = 0; c < 2; c++) {
        const cJSON *choice = keys_are(cJSON_GetArrayItem(list, c), "layers phase backend");
        ck_assert_str_eq(text(choice, "layers"), "0-3,5");
        ck_assert_str_eq(text(choice, "phase"), c == 0 ? "prefill" : "decode");
        ck_assert_str_eq(text(choice, "backend"), c == 0 ? "cpu_native" : "say \"hi\"");
    }
    const cJSON *paths = keys_are(get(root, "paths"), "cpu_native hybrid/decode");
    ck_assert_double_eq(number(paths, "cpu_native"), 12);
    ck_assert_double_eq(number(paths, "hybrid/decode"), 13);
    cJSON_Delete(root);
}

TEST_OF(json, json_of_an_empty_run)
{
    REPORT(report);
    report_init(&report);
    cJSON *root = parse(&report);
    keys_are(root, "attnhost commit plugins device seed requests steps tokens wall_s "
                   "virtual_s tokens_per_s ttft_ms tpot_ms latency_us composition paths verify kv "
                   "digest series");
    ck_assert(cJSON_IsArray(get(root, "composition")));
    ck_assert_int_eq(cJSON_GetArraySize(get(root, "composition")), 0);
    keys_are(get(root, "paths"), "");
    ck_assert_double_eq(number(get(get(root, "latency_us"), "decode"), "p99"), 0);
    ck_assert_double_eq(number(get(get(root, "tokens_per_s"), "wall"), "decode"), 0);
    ck_assert_double_eq(number(get(get(root, "ttft_ms"), "wall"), "count"), 0);
    ck_assert_int_eq(cJSON_GetArraySize(get(get(get(root, "ttft_ms"), "wall"), "percentiles")), 0);
    cJSON_Delete(root);
}

/* A double would make 18446744073709551616 of it. */
TEST_OF(json, seed_is_exact)
{
    static const struct {
        uint64_t seed;
        const char *line;
    } rows[] = {
        {0, "\"seed\":\t0,\n"},
        {(UINT64_C(1) << 53) + 1, "\"seed\":\t9007199254740993,\n"},
        {UINT64_MAX, "\"seed\":\t18446744073709551615,\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct report report;
        report_init(&report);
        report.seed = rows[i].seed;
        char *json = report_json(&report);
        ck_assert_ptr_nonnull(json);
        ck_assert_msg(strstr(json, rows[i].line) != NULL, "%s", json);
        free(json);
        report_finish(&report);
    }
}

TEST_OF(json, every_number_is_a_number)
{
    static const double odd[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        struct report report;
        report_init(&report);
        report.verify.sampled = true;
        report.verify.rows_checked = 100;
        report.verify.max_abs_err = odd[i];
        report.verify.max_rel_err = odd[i];
        char *json = report_json(&report);
        ck_assert_ptr_nonnull(json);
        ck_assert_ptr_null(strstr(json, "null"));
        ck_assert_ptr_null(strstr(json, "nan"));
        ck_assert_ptr_null(strstr(json, "inf"));
        cJSON *root = cJSON_Parse(json);
        ck_assert_double_eq(number(get(root, "verify"), "max_abs_err"), 1e308);
        ck_assert_double_eq(number(get(root, "verify"), "max_rel_err"), 1e308);
        cJSON_Delete(root);
        free(json);
        report_finish(&report);
    }
}

TEST_OF(json, first_failure_only_if_there_is_one)
{
    REPORT(report);
    make_report(&report);
    report.verify.rows_failed = 1;
    strcpy(report.verify.first_failure, "request 1, position 2");
    cJSON *root = parse(&report);
    const cJSON *verify =
        keys_are(get(root, "verify"),
                 "rows_checked rows_failed detectable_share max_abs_err max_rel_err first_failure");
    ck_assert_str_eq(text(verify, "first_failure"), "request 1, position 2");
    ck_assert_double_eq(number(verify, "rows_failed"), 1);
    cJSON_Delete(root);
}

TEST_OF(json, bars_by_layer)
{
    REPORT(report);
    make_report(&report);
    add_bars(&report);
    cJSON *root = parse(&report);
    const cJSON *bars = keys_are(get(get(root, "verify"), "of_bar"), "prefill decode");
    const cJSON *decode = get(bars, "decode");
    ck_assert_int_eq(cJSON_GetArraySize(decode), 2);
    ck_assert_double_eq(cJSON_GetArrayItem(decode, 0)->valuedouble, 1.25);
    ck_assert(cJSON_IsNull(cJSON_GetArrayItem(decode, 1)));
    cJSON_Delete(root);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static int until_failure;

/* The n-th allocation fails, and no other. */
static void *scarce(size_t size)
{
    return --until_failure == 0 ? NULL : malloc(size);
}

/* Whichever of cJSON's allocations fails, there is no half of a report; nor of an empty one. */
LOOP_OF(json, json_is_whole_or_null, 0, 2)
{
    REPORT(report);
    report_init(&report);
    if (_i == 0) {
        const struct report_bin step = {.prefill = 1};
        make_report(&report);
        add_bars(&report);
        add_waits(&report);
        report_add_step(&report.series, &step);
        strcpy(report.verify.first_failure, "there");
    }
    char *whole = report_json(&report);
    ck_assert_ptr_nonnull(whole);
    cJSON_Hooks hooks = {scarce, free};
    cJSON_InitHooks(&hooks);
    int failures = 0;
    for (;; failures++) {
        until_failure = failures + 1;
        char *json = report_json(&report);
        if (until_failure > 0) { /* there were no more allocations */
            ck_assert_str_eq(json, whole);
            free(json);
            break;
        }
        ck_assert_ptr_null(json);
    }
    ck_assert_int_gt(failures, 50);
    cJSON_InitHooks(NULL);
    free(whole);
}

/* ---- A run over time ------------------------------------------------------------------------- */

/* Whatever the number of steps: sums and maxima hold, and only the last bin is not full. */
LOOP_OF(gather, series_stay_bounded, 0, 10)
{
    static struct report_series series;
    static const int64_t counts[] = {1, 255, 256, 257, 512, 513, 1000, 4096, 4097, 10000};
    int64_t steps = counts[_i];
    memset(&series, 0, sizeof series);
    for (int64_t i = 0; i < steps; i++) {
        const struct report_bin step = {.end_ns = {10 * (i + 1), 30 * (i + 1)},
                                        .prefill = i % 7,
                                        .decode = 3,
                                        .kv_tokens = i == steps / 2 ? 999 : 5,
                                        .running = i % 11};
        report_add_step(&series, &step);
    }
    int64_t prefill = 0, decode = 0, most = 0, wanted = 0;
    for (int64_t i = 0; i < steps; i++)
        wanted += i % 7;
    for (size_t b = 0; b < series.count; b++) {
        const struct report_bin *bin = &series.bins[b];
        bool last = b + 1 == series.count;
        int64_t end = last ? steps : (int64_t)(b + 1) * series.steps_per_bin;
        ck_assert_int_eq(bin->end_ns[REPORT_VIRTUAL], 10 * end);
        ck_assert_int_eq(bin->end_ns[REPORT_WALL], 30 * end);
        prefill += bin->prefill;
        decode += bin->decode;
        most = bin->kv_tokens > most ? bin->kv_tokens : most;
    }
    ck_assert_int_eq(prefill, wanted);
    ck_assert_int_eq(decode, 3 * steps);
    ck_assert_int_eq(most, 999);
    ck_assert_uint_le(series.count, REPORT_BINS);
    ck_assert_int_eq((int64_t)series.count,
                     (steps + series.steps_per_bin - 1) / series.steps_per_bin);
    if (steps > REPORT_BINS)
        ck_assert_uint_gt(series.count, REPORT_BINS / 2);
    else
        ck_assert_int_eq(series.steps_per_bin, 1);
}

/* ---- Text ------------------------------------------------------------------------------------ */

TEST_OF(json, lines_for_people)
{
    REPORT(report);
    char *got = NULL;
    size_t size;
    make_report(&report);
    report.tokens.prefill = 99;
    report.verify.rows_failed = 2;
    add_waits(&report);
    report.states.present = true;
    report.states.capacity = 32;
    report.states.peak = 5;
    report.has_shared = true;
    report.shared = (struct report_shared){.rows = 12, .saved_keys = 3400, .keys = 56000};
    strcpy(report.verify.first_failure, "request 1");
    FILE *file = open_memstream(&got, &size);
    ck_assert_ptr_nonnull(file);
    report_print(&report, file);
    fclose(file);
    static const char *const parts[] = {
        "requests     3 in 41 steps, 0.100 s\n",
        "tokens       prefill 99  decode 1000003  prefix hit 32  recomputed 7\n",
        "prefix       shared rows 12  saved keys 3400 of 56000\n"
        "tokens/s     prefill 990.0  decode 10000030.0  (wall clock)\n"
        "             prefill 8800000.0  decode 88889155555.6  (virtual clock)\n"
        "TTFT         p50 1.500 ms  p90 2.500 ms  p99 2.500 ms  (wall clock)\n"
        "             p50 1.000 ms  p90 1.000 ms  p99 1.000 ms  (virtual clock)\n"
        "paths ",
        "paths        cpu_native: 12 rows\n",
        "             hybrid/decode: 13 rows\n",
        "verify       25 rows checked, 2 failed, max abs error 0.333, relative 2e-300\n",
        "first failure: request 1\n",
        "kv tokens    capacity 4096  peak 4095  leaked 0\n",
        "states kept  capacity 32  peak 5  leaked 0\n",
        "step         prefill p50 2.5 us  p99 7.5 us\n"
        "             decode  p50 1.2 us  p99 1.2 us\n",
        "digest       dddd",
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        ck_assert_msg(strstr(got, parts[i]) != NULL, "no \"%s\" in:\n%s", parts[i], got);
    free(got);
}

/* Several pools are reported one by one. */
TEST_OF(json, pools_are_reported_one_by_one)
{
    REPORT(report);
    char *got = NULL;
    size_t size;
    make_report(&report);
    report.kv.num_pools = 2;
    FILE *file = open_memstream(&got, &size);
    ck_assert_ptr_nonnull(file);
    report_print(&report, file);
    fclose(file);
    ck_assert_ptr_nonnull(strstr(
        got, "kv tokens    all: 4 layers, capacity 4096  peak 4095  held 4000  leaked 0\n"
             "             window: 5 layers, capacity 512  peak 511  held 500  leaked 16\n"));
    free(got);
}

TESTS("report");
