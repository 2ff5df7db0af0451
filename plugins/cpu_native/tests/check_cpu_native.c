/* SPDX-License-Identifier: Apache-2.0
 *
 * check_cpu_native.c: the plugin's .so, through its entry, against the oracle.
 *
 * The .so is $ATTNHOST_CPU_NATIVE, else cpu_native.so in $ATTNHOST_TEST_PLUGIN_DIR.
 * $ATTNHOST_TEST_CASES is how many random cases are tried, 72 if it is not set: enough for every
 * pair of values of the axes of random_cases_cover_pairs. More of them: ATTNHOST_TEST_CASES=2000.
 */
#include "tests/tools/test_main.h"
#include "tests/tools/cpu_native_case.h"
#include "tests/tools/plugin_test.h"

#include "host/base/error.h"
#include "host/reference/reference.h"

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const attn_backend_type *type;
static char message[512];
static attn_error error = {
    .struct_size = sizeof error, .capacity = sizeof message, .message = message};

/* ---- Services -------------------------------------------------------------------------------- */

typedef struct test_pool {
    uint32_t num_workers;
    int threads; /* 1 = real ones; 0 = workers take turns, last task first */
    int64_t next, count;
    attn_task task;
    void *arg;
    attn_status status;
    uint64_t allocations;
} test_pool;

static void test_log(void *ctx, uint32_t level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

typedef struct test_worker {
    test_pool *pool;
    uint32_t worker;
} test_worker;

static void *work(void *arg)
{
    test_worker *worker = arg;
    test_pool *pool = worker->pool;
    for (;;) {
        int64_t task = __atomic_fetch_add(&pool->next, 1, __ATOMIC_RELAXED);
        if (task >= pool->count)
            return NULL;
        attn_status status = pool->task(pool->arg, task, worker->worker);
        if (status != ATTN_OK)
            __atomic_store_n(&pool->status, status, __ATOMIC_RELAXED);
    }
}

static attn_status test_parallel_for(void *ctx, int64_t count, attn_task task, void *arg)
{
    test_pool *pool = ctx;
    attn_status first = ATTN_OK;
    for (int64_t i = 0; i < count && !pool->threads; i++) {
        int64_t at = count - 1 - i;
        attn_status status = task(arg, at, (uint32_t)(at * 5 % pool->num_workers));
        first = first == ATTN_OK ? status : first;
    }
    if (!pool->threads)
        return first;
    pthread_t threads[16];
    test_worker workers[16];
    pool->next = 0;
    pool->count = count;
    pool->task = task;
    pool->arg = arg;
    pool->status = ATTN_OK;
    for (uint32_t w = 0; w < pool->num_workers; w++) {
        workers[w] = (test_worker){pool, w};
        ck_assert_int_eq(pthread_create(&threads[w], NULL, work, &workers[w]), 0);
    }
    for (uint32_t w = 0; w < pool->num_workers; w++)
        pthread_join(threads[w], NULL);
    return pool->status;
}

static attn_services make_services(test_pool *pool)
{
    return (attn_services){.struct_size = sizeof(attn_services),
                           .num_workers = pool->num_workers,
                           .ctx = pool,
                           .log = test_log,
                           .allocate = test_allocate,
                           .release = test_release,
                           .parallel_for = test_parallel_for};
}

/* ---- A plugin at work ------------------------------------------------------------------------ */

static void open_plugin(void)
{
    attn_plugin plugin;
    open_plugin_file("ATTNHOST_CPU_NATIVE", "cpu_native.so", &plugin, &error);
    ck_assert_int_eq(plugin.describe(0, &type, &error), ATTN_OK);
    ck_assert_int_eq(plugin.describe(1, &type, &error), ATTN_INVALID_ARGUMENT);
}

/* An instance and metadata for a case. */
typedef struct setup {
    test_pool pool;
    attn_services services;
    attn_instance *instance;
    attn_metadata *metadata;
    attn_memory_size size;
    attn_memory memory;
    attn_options options;
    attn_option_value values[3];
} setup;

static void set_option(setup *u, const char *key, int64_t value)
{
    u->options.struct_size = sizeof u->options;
    u->options.values = u->values;
    u->values[u->options.num_values++] = (attn_option_value){.struct_size = sizeof u->values[0],
                                                             .key = key,
                                                             .integer = value,
                                                             .text = "",
                                                             .place = "test"};
}

static void setup_create(setup *u, const attn_case *c, uint32_t workers, int threads)
{
    u->pool.num_workers = workers;
    u->pool.threads = threads;
    u->services = make_services(&u->pool);
    u->size = (attn_memory_size){.struct_size = sizeof u->size};
    u->memory = (attn_memory){.struct_size = sizeof u->memory};
    /* Ask for the form that the case has; now and then for all, of which it has one. */
    uint32_t form = c->kv.index_forms;
    int64_t all = 3, choice = form && c->seed % 4 ? __builtin_ctz(form) : all;
    set_option(u, "kv_index", choice);
    ck_assert_msg(type->create(type, &c->problem, 1, &u->options, &u->services, &u->instance,
                               &error) == ATTN_OK,
                  "%s", message);
    ck_assert_uint_eq(type->ops->index_forms(u->instance), choice == all ? 7 : form);
    ck_assert_msg(type->ops->metadata_size(u->instance, ATTN_METADATA_EAGER, &c->bounds, &u->size,
                                           &error) == ATTN_OK,
                  "%s", message);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        uint64_t alignment = u->size.alignment[region] ? u->size.alignment[region] : 1;
        uint64_t bytes = u->size.size[region];
        u->memory.size[region] = bytes;
        if (bytes == 0)
            continue;
        char *base = aligned_alloc(64, (bytes + 64 + 63) / 64 * 64);
        ck_assert(base && alignment <= 64);
        memset(base, 0xFF, bytes + 64); /* NaN, whatever reads it */
        u->memory.base[region] = base;
    }
    ck_assert_msg(type->ops->metadata_create(u->instance, ATTN_METADATA_EAGER, &c->bounds,
                                             &u->memory, &u->metadata, &error) == ATTN_OK,
                  "%s", message);
}

/* Nothing after a region was written to. */
static void check_memory(const setup *u)
{
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        const uint8_t *end = (const uint8_t *)u->memory.base[region] + u->memory.size[region];
        for (int i = 0; u->memory.base[region] && i < 64; i++)
            ck_assert_msg(end[i] == 0xFF, "region %u was overrun", region);
    }
}

static void setup_destroy(setup *u)
{
    type->ops->metadata_destroy(u->metadata);
    type->ops->destroy(u->instance);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
        free(u->memory.base[region]);
}

static attn_status forward(setup *u, const attn_case *c)
{
    if (c->batch.mode == ATTN_MODE_DECODE)
        return type->ops->forward_decode(u->metadata, c->layer.layer_id, &c->args, NULL, &error);
    return type->ops->forward_extend(u->metadata, c->layer.layer_id, &c->args, NULL, &error);
}

static void run_case(setup *u, attn_case *c, const char *what)
{
    uint32_t scratch = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH);
    case_poison(c);
    ck_assert_msg(type->ops->init_forward_metadata(u->metadata, &c->batch, NULL, &error) == ATTN_OK,
                  "%s: %s", what, message);
    memset(u->memory.base[scratch], 0xFF, u->memory.size[scratch]);
    uint64_t allocations = u->pool.allocations;
    size_t in_use = mallinfo2().uordblks;
    attn_status status = forward(u, c);
    size_t then_in_use = mallinfo2().uordblks; /* before Check, which allocates, too, is called */
    ck_assert_msg(status == ATTN_OK, "%s: %s", what, message);
    ck_assert_uint_eq(u->pool.allocations, allocations);
    if (!u->pool.threads)
        ck_assert_msg(then_in_use == in_use, "%s: forward allocates", what);
    ck_assert_msg(case_red_zone(c) == 0, "%s: bytes around the output were written", what);
    check_memory(u);
}

/* ---- Against the oracle ---------------------------------------------------------------------- */

static char *copy_bytes(const case_tensor *t)
{
    char *copy = malloc(t->bytes ? t->bytes : 1);
    memcpy(copy, t->memory ? t->memory : "", t->bytes);
    return copy;
}

static void check_cache(const attn_case *c, char *k_before, char *v_before, const char *what)
{
    int64_t place[2] = {0};
    int64_t wrong = c->problem.kv_layout ? case_wrong_keys(c, k_before, v_before, place) : 0;
    ck_assert_msg(wrong == 0, "%s: %lld bytes of the cache differ, page %lld, offset %lld", what,
                  (long long)wrong, (long long)place[0], (long long)place[1]);
}

static void check_outputs(const attn_case *c, const reference_result *result, const char *what)
{
    reference_report report = {0};
    const attn_tensor *lse = c->operands[ATTN_ROLE_LSE];
    ck_assert_msg(reference_compare(result, &c->out.tensor, lse, &report, &error) == ATTN_OK,
                  "%s: %s", what, message);
    ck_assert_msg(report.rows_failed + report.lse_failed + report.padding_failed == 0,
                  "%s: %lld of %lld rows, %lld LSE, %lld of padding failed: %s", what,
                  (long long)report.rows_failed, (long long)report.rows_checked,
                  (long long)report.lse_failed, (long long)report.padding_failed, report.message);
}

static void check_case(uint64_t seed, const case_wishes *wishes, int64_t split)
{
    char what[640], line[512];
    attn_case *c = case_create(seed, wishes);
    reference_result result = {0};
    reference_options options = {0};
    case_describe(c, line, sizeof line);
    snprintf(what, sizeof what, "seed %llu: %s", (unsigned long long)seed, line);

    attn_verdict verdict = {.struct_size = sizeof verdict};
    ck_assert_int_eq(type->query(type, NULL, NULL, &c->problem, &verdict, &error), ATTN_OK);
    ck_assert_msg(verdict.supported, "%s: refused", what);
    options.reads_new_unquantised = verdict.reads_new_kv_unquantised;
    ck_assert_msg(reference_forward(&c->problem, &c->batch, c->layer.layer_id, &c->args, &options,
                                    &result, &error) == ATTN_OK,
                  "%s: oracle: %s", what, message);

    char *first = NULL, *k_before = copy_bytes(&c->k_cache), *v_before = copy_bytes(&c->v_cache);
    static const uint32_t workers[] = {1, 2, 7};
    for (int i = 0; i < 3; i++) {
        setup u = {0};
        set_option(&u, "kv_split_tokens", split);
        set_option(&u, "isa", seed % 4 == 3 ? 1 : 0); /* generic; the widest there is */
        setup_create(&u, c, workers[i], i == 1 && seed % 16 == 0);
        run_case(&u, c, what);
        setup_destroy(&u);
        if (!first) {
            check_outputs(c, &result, what);
            check_cache(c, k_before, v_before, what);
            first = copy_bytes(&c->out);
        }
        ck_assert_msg(memcmp(first, c->out.memory, c->out.bytes) == 0,
                      "%s: the output depends on the number of workers", what);
    }
    free(first);
    free(k_before);
    free(v_before);
    reference_result_finish(&result);
    case_destroy(c);
}

/* Random cases, in LOOPS tests, of seeds from FIRST_SEED on. */
enum { LOOPS = 8, FIRST_SEED = 1152, DEFAULT_CASES = 72 };

START_TEST(any_case)
{
    for (int n = _i; n < random_cases(DEFAULT_CASES); n += LOOPS)
        check_case(FIRST_SEED + (uint64_t)n, &CASE_ANYTHING, n / LOOPS % 2 ? 512 : 64);
}
END_TEST

/* Where a case lies on the axes. */
enum { AXES = 6 };
static const int axis_values[AXES] = {3, 3, 2, 3, 4, 4};

static void find_on_axes(const attn_case *c, int at[AXES])
{
    const attn_problem *p = &c->problem;
    at[0] = p->q_dtype == ATTN_F32 ? 0 : p->q_dtype == ATTN_F16 ? 1 : 2;
    at[1] = p->kv_dtype == ATTN_FP8_E4M3 ? 0 : p->kv_dtype == ATTN_FP8_E5M2 ? 1 : 2;
    at[2] = strcmp(p->kv_layout, ATTN_LAYOUT_KV_NHD) == 0;
    at[3] = __builtin_ctz(c->kv.index_forms);
    at[4] = p->page_size == 1 ? 0 : p->page_size == 3 ? 1 : p->page_size == 16 ? 2 : 3;
    at[5] = c->batch.mode == ATTN_MODE_EXTEND          ? 0
            : c->batch.mode == ATTN_MODE_DECODE        ? 1
            : c->batch.mode == ATTN_MODE_TARGET_VERIFY ? 2
                                                       : 3;
}

/* The cases that are run by default have every pair: dtype of q, quantisation,
 * layout, form of indices, page size, mode. */
TEST_OF(oracle, random_cases_cover_pairs)
{
    uint8_t seen[AXES][4][AXES][4] = {0};
    for (int n = 0; n < DEFAULT_CASES; n++) {
        attn_case *c = case_create(FIRST_SEED + (uint64_t)n, &CASE_ANYTHING);
        int at[AXES];
        if (c->problem.kv_layout && c->kv.index_forms) {
            find_on_axes(c, at);
            for (int a = 0; a < AXES; a++)
                for (int b = 0; b < AXES; b++)
                    seen[a][at[a]][b][at[b]] = 1;
        }
        case_destroy(c);
    }
    for (int a = 0; a < AXES; a++)
        for (int b = 0; b < a; b++)
            for (int i = 0; i < axis_values[a]; i++)
                for (int j = 0; j < axis_values[b]; j++)
                    ck_assert_msg(seen[a][i][b][j],
                                  "no case has value %d of axis %d and value %d of axis %d", i, a,
                                  j, b);
}
END_TEST

TEST_OF(oracle, each_meaning)
{
    /* Every attention type, mode and mask kind that go together. */
    static const int32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_MIXED,
                                    ATTN_MODE_TARGET_VERIFY, ATTN_MODE_DRAFT_EXTEND};
    for (int32_t type_of = 0; type_of < ATTN_TYPE_COUNT; type_of++)
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++)
            for (int32_t mask = 0; mask < ATTN_MASK_COUNT; mask++) {
                case_wishes wishes = {type_of, modes[m], mask, 1 << (m % 3), 0, 80};
                check_case(500000 + m * 100 + (uint64_t)(mask * 10 + type_of), &wishes, 64);
            }
}
END_TEST

TEST_OF(oracle, long_and_growing)
{
    /* Several splits of each sequence; decoding takes the oracle less time. */
    static const int32_t max_len[] = {500, 900}, split[] = {128, 512};
    for (int32_t mode = 0; mode < 2; mode++)
        for (int32_t growing = 0; growing < 2; growing++) {
            case_wishes wishes = {ATTN_TYPE_DECODER, mode,         ATTN_MASK_LAYER, -1,
                                  growing,           max_len[mode]};
            check_case(600000 + (uint64_t)(10 * growing + mode), &wishes, split[mode]);
        }
}
END_TEST

/* ---- A row's bits ---------------------------------------------------------------------------- */

/* Run queries [t, t + count) of the case's one sequence, all earlier ones being in the cache. */
static void run_part(attn_case *c, int32_t t, int32_t count, uint32_t mode)
{
    setup u = {0};
    attn_batch whole = c->batch;
    int32_t seq_len = t + count, prefix = t, indptr[] = {t, t + count}, kv_len = seq_len;
    c->batch.mode = mode;
    c->batch.num_tokens = c->batch.num_real_tokens = c->batch.max_q_len = count;
    c->batch.seq_lens = (attn_i32_array){&seq_len, &seq_len};
    c->batch.prefix_lens = (attn_i32_array){&prefix, &prefix};
    c->batch.q_indptr = (attn_i32_array){indptr, indptr};
    c->kv.kv_lens = (attn_i32_array){&kv_len, &kv_len};
    c->bounds.modes |= ATTN_MODE_BIT(mode);
    const attn_tensor q = c->q.tensor, k = c->k.tensor, v = c->v.tensor, out = c->out.tensor;
    int64_t *slots = c->out_cache_loc;
    if (mode == ATTN_MODE_DECODE) { /* its row is row 0 */
        case_tensor *all[] = {&c->q, &c->k, &c->v, &c->out};
        for (int i = 0; i < 4; i++)
            all[i]->tensor.byte_offset +=
                (uint64_t)(t * all[i]->tensor.strides[0]) * attn_dtype_size(all[i]->tensor.dtype);
        c->kv.out_cache_loc = (attn_i64_array){slots + t, slots + t};
    }
    setup_create(&u, c, 3, 0);
    ck_assert_msg(type->ops->init_forward_metadata(u.metadata, &c->batch, NULL, &error) == ATTN_OK,
                  "%s", message);
    ck_assert_msg(forward(&u, c) == ATTN_OK, "%s", message);
    setup_destroy(&u);
    c->q.tensor = q;
    c->k.tensor = k;
    c->v.tensor = v;
    c->out.tensor = out;
    c->batch = whole;
    c->kv.out_cache_loc = (attn_i64_array){slots, slots};
}

/* A sequence of some hundred tokens prefilled at once, in chunks, and token by token. */
START_TEST(bits_do_not_depend_on_batching)
{
    case_wishes wishes = {
        ATTN_TYPE_DECODER, ATTN_MODE_EXTEND, ATTN_MASK_LAYER, ATTN_INDEX_BLOCK_TABLE, 0, 400};
    static const uint64_t first_wanted[] = {700576, 710052, 720322}; /* found by this loop */
    attn_case *c = NULL;
    for (uint64_t seed = first_wanted[_i];; seed++) {
        c = case_create(seed, &wishes);
        int wanted = c->batch.num_seqs == 1 && c->prefix[0] < 20 && c->q_len[0] > 130 &&
                     c->q_indptr[0] == 0 && c->args.flags & ATTN_FORWARD_SAVE_KV &&
                     !c->batch.multi_item && c->group.window_right == 0;
        if (wanted)
            break;
        case_destroy(c);
    }
    for (int32_t j = 0, page = c->problem.page_size; j < c->q_len[0]; j++) /* all are saved */
        c->out_cache_loc[j] = (int64_t)c->block_table[j / page] * page + j % page;
    c->operands[ATTN_ROLE_LSE] = NULL;
    int32_t len = c->q_len[0];
    run_part(c, 0, len, ATTN_MODE_EXTEND);
    char *once = copy_bytes(&c->out);
    case_poison(c);
    for (int32_t t = 0, step; t < len; t += step) {
        step = 1 + case_draw(c, 150);
        step = step < len - t ? step : len - t;
        run_part(c, t, step, ATTN_MODE_EXTEND);
    }
    ck_assert(memcmp(once, c->out.memory, c->out.bytes) == 0);
    case_poison(c);
    for (int32_t t = 0; t < len; t++)
        run_part(c, t, 1, ATTN_MODE_DECODE);
    ck_assert(memcmp(once, c->out.memory, c->out.bytes) == 0);
    free(once);
    case_destroy(c);
}
END_TEST

/* A NaN in a value is in the rows that see it, and in no other. */
TEST_OF(oracle, nan_stays_where_it_is_seen)
{
    case_wishes wishes = {ATTN_TYPE_ENCODER_ONLY, ATTN_MODE_EXTEND, ATTN_MASK_LAYER, -1, 0, 200};
    int checked = 0;
    for (uint64_t seed = 800000; checked < 5; seed++) {
        attn_case *c = case_create(seed, &wishes);
        reference_result result = {0};
        setup u = {0};
        int32_t rows = c->q_indptr[c->batch.num_seqs] - c->q_indptr[0];
        if (c->problem.q_dtype == ATTN_F32 && rows > 20 && c->group.window_right == 0) {
            int64_t row = c->q_indptr[0] + rows / 2;
            ((float *)(c->v.memory + 64))[row * c->v.tensor.strides[0]] = NAN;
            ck_assert_int_eq(reference_forward(&c->problem, &c->batch, c->layer.layer_id, &c->args,
                                               NULL, &result, &error),
                             ATTN_OK);
            setup_create(&u, c, 2, 0);
            run_case(&u, c, "NaN");
            check_outputs(c, &result, "NaN");
            setup_destroy(&u);
            reference_result_finish(&result);
            checked++;
        }
        case_destroy(c);
    }
}
END_TEST

/* ---- What is refused ------------------------------------------------------------------------- */

static attn_case *plain_case(void)
{
    case_wishes wishes = {
        ATTN_TYPE_DECODER, ATTN_MODE_EXTEND, ATTN_MASK_LAYER, ATTN_INDEX_REQ_TO_TOKEN, 0, 100};
    for (uint64_t seed = 900000;; seed++) {
        attn_case *c = case_create(seed, &wishes);
        if (c->problem.kv_dtype == ATTN_FP8_E4M3 && !c->from_cache && c->q_len[0] > 1 &&
            c->prefix[0] > 1 && c->group.flags == 3 && !c->batch.multi_item &&
            c->args.flags == ATTN_FORWARD_SAVE_KV)
            return c;
        case_destroy(c);
    }
}

TEST_OF(refused, memory_one_byte_short)
{
    attn_case *c = plain_case();
    setup u = {0};
    setup_create(&u, c, 2, 0);
    int refused = 0;
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        attn_metadata *metadata = NULL;
        if (u.memory.size[region] == 0)
            continue;
        u.memory.size[region]--;
        ck_assert_int_eq(type->ops->metadata_create(u.instance, ATTN_METADATA_EAGER, &c->bounds,
                                                    &u.memory, &metadata, &error),
                         ATTN_BUFFER_TOO_SMALL);
        ck_assert_uint_eq(error.needed, u.memory.size[region] + 1);
        u.memory.size[region]++;
        u.memory.base[region] = (char *)u.memory.base[region] + 8;
        ck_assert_int_eq(type->ops->metadata_create(u.instance, ATTN_METADATA_EAGER, &c->bounds,
                                                    &u.memory, &metadata, &error),
                         ATTN_INVALID_ARGUMENT);
        u.memory.base[region] = (char *)u.memory.base[region] - 8;
        ck_assert_ptr_null(metadata);
        refused++;
    }
    ck_assert_int_eq(refused, 2);
    ck_assert_int_eq(
        type->ops->metadata_size(u.instance, ATTN_METADATA_GRAPH, &c->bounds, &u.size, &error),
        ATTN_CAPTURE_UNSUPPORTED);
    ck_assert_int_eq(type->ops->metadata_size(u.instance, 7, &c->bounds, &u.size, &error),
                     ATTN_INVALID_ARGUMENT);
    setup_destroy(&u);
    case_destroy(c);
}
END_TEST

static void expect_refused(setup *u, attn_case *c, const char *word)
{
    ck_assert_int_eq(type->ops->init_forward_metadata(u->metadata, &c->batch, NULL, &error),
                     ATTN_OK);
    ck_assert_msg(forward(u, c) == ATTN_INVALID_ARGUMENT, "accepted in spite of %s", word);
    ck_assert_msg(strstr(message, word), "\"%s\" does not name %s", message, word);
}

TEST_OF(refused, operands_that_are_wrong)
{
    attn_case *c = plain_case();
    setup u = {0};
    setup_create(&u, c, 2, 0);
    static const uint32_t needed[] = {ATTN_ROLE_Q,     ATTN_ROLE_K,           ATTN_ROLE_V,
                                      ATTN_ROLE_OUT,   ATTN_ROLE_K_CACHE,     ATTN_ROLE_V_CACHE,
                                      ATTN_ROLE_SINKS, ATTN_ROLE_ALIBI_SLOPES};
    static const char *const names[] = {"operand q",     "operand k",           "operand v",
                                        "operand out",   "operand k_cache",     "operand v_cache",
                                        "operand sinks", "operand alibi_slopes"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        const attn_tensor *good = c->operands[needed[i]];
        attn_tensor bad = *good;
        c->operands[needed[i]] = NULL;
        expect_refused(&u, c, names[i]);
        c->operands[needed[i]] = &bad;
        bad.dtype = ATTN_I32;
        expect_refused(&u, c, names[i]);
        bad = *good;
        bad.shape[bad.ndim - 1]++;
        expect_refused(&u, c, names[i]);
        bad = *good;
        bad.strides[bad.ndim - 1] = 2;
        expect_refused(&u, c, names[i]);
        bad = *good;
        bad.ndim--;
        expect_refused(&u, c, names[i]);
        bad = *good;
        bad.device_type = ATTN_DEVICE_CUDA;
        expect_refused(&u, c, names[i]);
        c->operands[needed[i]] = good;
    }
    for (uint32_t role = ATTN_ROLE_K_CACHE; role <= ATTN_ROLE_V_CACHE; role++) {
        const attn_scale *good = c->scales[role];
        attn_scale bad = *good;
        c->scales[role] = NULL;
        expect_refused(&u, c, "scale of");
        c->scales[role] = &bad;
        bad.granularity = 3 - bad.granularity;
        expect_refused(&u, c, "scale of");
        bad = *good;
        bad.count++;
        expect_refused(&u, c, "scale of");
        c->scales[role] = good;
    }
    int64_t slot = c->out_cache_loc[c->q_indptr[0]];
    c->out_cache_loc[c->q_indptr[0]] = (int64_t)c->num_pages * c->problem.page_size;
    expect_refused(&u, c, "out_cache_loc");
    c->out_cache_loc[c->q_indptr[0]] = slot;
    int32_t *index =
        &c->req_to_token[c->requests[0] * c->kv.req_to_token_stride + c->prefix[0] - 1];
    *index = 0x7ffffff0;
    expect_refused(&u, c, "slot 2147483632");
    ck_assert_int_eq(
        type->ops->forward_decode(u.metadata, c->layer.layer_id, &c->args, NULL, &error),
        ATTN_BAD_STATE);
    c->layer.layer_id++;
    expect_refused(&u, c, "layer_id");
    setup_destroy(&u);
    case_destroy(c);
}
END_TEST

static void expect_unplanned(setup *u, attn_case *c, const char *word)
{
    ck_assert_msg(type->ops->init_forward_metadata(u->metadata, &c->batch, NULL, &error) ==
                      ATTN_INVALID_ARGUMENT,
                  "planned in spite of %s", word);
    ck_assert_msg(strstr(message, word), "\"%s\" does not name %s", message, word);
    ck_assert_int_eq(forward(u, c), ATTN_BAD_STATE);
}

/* Rows of a table that are one entry too short for the longest sequence, then just long enough. */
static void expect_short_table(setup *u, attn_case *c)
{
    const attn_kv_batch good = c->kv;
    int32_t longest = 0, page = c->problem.page_size;
    for (int32_t s = 0; s < c->batch.num_seqs; s++)
        longest = c->kv_lens[s] > longest ? c->kv_lens[s] : longest;
    c->kv.req_to_token_stride = longest - 1;
    expect_unplanned(u, c, "req_to_token_stride");
    c->kv.req_to_token_stride = longest;
    ck_assert_int_eq(type->ops->init_forward_metadata(u->metadata, &c->batch, NULL, &error),
                     ATTN_OK);
    c->kv = good;
    c->kv.index_forms = ATTN_INDEX_BLOCK_TABLE;
    c->kv.block_table = c->kv.req_to_token; /* which planning does not read */
    c->kv.block_table_stride = (longest + page - 1) / page - 1;
    expect_unplanned(u, c, "block_table_stride");
    c->kv.block_table_stride++;
    ck_assert_int_eq(type->ops->init_forward_metadata(u->metadata, &c->batch, NULL, &error),
                     ATTN_OK);
    c->kv = good;
}

TEST_OF(refused, batches_beyond_the_bounds)
{
    attn_case *c = plain_case();
    setup u = {0};
    setup_create(&u, c, 2, 0);
    ck_assert_int_eq(forward(&u, c), ATTN_BAD_STATE);
    attn_batch good = c->batch;
    c->batch.num_seqs++;
    expect_unplanned(&u, c, "num_seqs");
    c->batch = good;
    c->batch.num_tokens++;
    expect_unplanned(&u, c, "num_tokens");
    c->batch = good;
    c->batch.mode = ATTN_MODE_MIXED;
    expect_unplanned(&u, c, "mode");
    c->batch = good;
    c->mask.kind = ATTN_MASK_NONE;
    expect_unplanned(&u, c, "mask");
    c->mask.kind = ATTN_MASK_LAYER;
    c->batch.positions = c->batch.seq_lens;
    expect_unplanned(&u, c, "positions");
    c->batch = good;
    c->batch.q_indptr = (attn_i32_array){NULL, NULL};
    expect_unplanned(&u, c, "q_indptr");
    c->batch = good;
    c->batch.num_kv_groups = 0;
    expect_unplanned(&u, c, "kv_group");
    c->batch = good;
    c->kv_lens[0] += c->bounds.max_kv_len;
    expect_unplanned(&u, c, "keys");
    c->kv_lens[0] -= c->bounds.max_kv_len;
    c->kv.index_forms = 0;
    expect_unplanned(&u, c, "index_forms");
    c->kv.index_forms = ATTN_INDEX_REQ_TO_TOKEN;
    expect_short_table(&u, c);
    c->batch.mode = ATTN_MODE_IDLE;
    ck_assert_int_eq(type->ops->init_forward_metadata(u.metadata, &c->batch, NULL, &error),
                     ATTN_OK);
    ck_assert_int_eq(forward(&u, c), ATTN_OK);
    setup_destroy(&u);
    case_destroy(c);
}
END_TEST

static int has_reason(const attn_verdict *verdict, uint32_t code, uint32_t field)
{
    for (uint32_t i = 0; i < verdict->num_reasons && i < verdict->reasons_capacity; i++)
        if (verdict->reasons[i].code == code && verdict->reasons[i].field == field)
            return 1;
    return 0;
}

TEST_OF(refused, all_reasons_at_once)
{
    attn_case *c = plain_case();
    attn_reason reasons[32];
    for (int i = 0; i < 32; i++)
        reasons[i].struct_size = sizeof reasons[i];
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 32, .reasons = reasons};
    const char *feature = "attn.unheard_of/1";
    c->group.head_dim = 513;
    c->group.kind = ATTN_KIND_SPARSE;
    c->problem.q_dtype = ATTN_I32;
    c->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT;
    c->problem.graph_level = ATTN_GRAPH_SINGLE_TOKEN;
    c->problem.num_features = 1;
    c->problem.features = &feature;
    c->bounds.modes = 1u << 31;
    c->device.type = ATTN_DEVICE_CUDA;
    ck_assert_int_eq(type->query(type, NULL, NULL, &c->problem, &verdict, &error), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(verdict.num_reasons, 8);
    ck_assert(has_reason(&verdict, ATTN_REASON_HEAD_DIM, ATTN_FIELD_HEAD_DIM));
    ck_assert(has_reason(&verdict, ATTN_REASON_LAYER_KIND, ATTN_FIELD_KIND));
    ck_assert(has_reason(&verdict, ATTN_REASON_DTYPE, ATTN_FIELD_Q_DTYPE));
    ck_assert(has_reason(&verdict, ATTN_REASON_KV_LAYOUT, ATTN_FIELD_KV_LAYOUT));
    ck_assert(has_reason(&verdict, ATTN_REASON_GRAPH_LEVEL, ATTN_FIELD_GRAPH_LEVEL));
    ck_assert(has_reason(&verdict, ATTN_REASON_UNKNOWN_FEATURE, ATTN_FIELD_FEATURE));
    ck_assert(has_reason(&verdict, ATTN_REASON_MODE, ATTN_FIELD_MODES));
    ck_assert(has_reason(&verdict, ATTN_REASON_ARCH, ATTN_FIELD_DEVICE_TYPE));
    setup u = {.pool = {.num_workers = 1}};
    u.services = make_services(&u.pool);
    ck_assert_int_eq(type->create(type, &c->problem, 1, NULL, &u.services, &u.instance, &error),
                     ATTN_UNSUPPORTED);
    ck_assert_ptr_null(u.instance);
    ck_assert_msg(strstr(message, "device.type cuda: accepted cpu"), "%s", message);
    case_destroy(c);
}
END_TEST

TEST_OF(refused, one_form_of_indices_is_asked_for)
{
    attn_case *c = plain_case();
    setup u = {.pool = {.num_workers = 1}};
    u.services = make_services(&u.pool);
    ck_assert_int_eq(type->create(type, &c->problem, 1, NULL, &u.services, &u.instance, &error),
                     ATTN_OK);
    ck_assert_uint_eq(type->ops->index_forms(u.instance), ATTN_INDEX_BLOCK_TABLE);
    type->ops->destroy(u.instance);
    case_destroy(c);
}
END_TEST

TEST_OF(refused, cross_attention_without_a_position)
{
    attn_case *c = plain_case();
    attn_verdict verdict = {.struct_size = sizeof verdict};
    c->group.attn_type = ATTN_TYPE_CROSS;
    c->group.flags = 0;
    c->group.window_left = c->group.window_right = -1;
    c->group.attention_chunk = 0;
    ck_assert_int_eq(type->query(type, NULL, NULL, &c->problem, &verdict, &error), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    c->group.window_right = 0;
    ck_assert_int_eq(type->query(type, NULL, NULL, &c->problem, &verdict, &error),
                     ATTN_INVALID_ARGUMENT);
    c->group.window_right = -1;
    c->group.flags = ATTN_GROUP_HAS_ALIBI;
    ck_assert_int_eq(type->query(type, NULL, NULL, &c->problem, &verdict, &error),
                     ATTN_INVALID_ARGUMENT);
    case_destroy(c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cpu_native");
    TCase *oracle = tcase_create("oracle"), *refused = tcase_create("refused");
    tcase_add_unchecked_fixture(oracle, open_plugin, NULL);
    tcase_add_unchecked_fixture(refused, open_plugin, NULL);
    tcase_set_timeout(oracle, 300);
    tcase_add_loop_test(oracle, any_case, 0, LOOPS);
    tcase_add_loop_test(oracle, bits_do_not_depend_on_batching, 0, 3);
    suite_add_tcase(s, oracle);
    suite_add_tcase(s, refused);
    return s;
}

int main(void)
{
    return test_main(suite());
}
