/* SPDX-License-Identifier: Apache-2.0
 *
 * check_autotune: who is chosen, dropped, remembered and forgotten by autotune, with candidates
 * whose options set how slow and how wrong they are (fixtures/tunable.c). Delays are far above
 * what a busy machine adds to both.
 */
#include "plugins/hybrid/autotune/autotune.h"
#include "tests/host/embed/attnhost_fixture.h"

#include <unistd.h>

/* ---- A tuned backend ------------------------------------------------------------------------- */

static char folder[64];
static char store[96];

static void open_all(void)
{
    const char *built = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    char path[1024];
    setup();
    ck_assert_int_eq(load("tunable"), ATTN_OK);
    snprintf(path, sizeof path, "%s/hybrid.so", built ? built : "plugins/.libs");
    attn_status status = attnhost_load_plugin(host, path, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    snprintf(folder, sizeof folder, "/tmp/check_autotune.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(store, sizeof store, "%s/decisions", folder);
}

static void close_all(void)
{
    teardown();
    unlink(store);
    rmdir(folder);
}

static void define_tunable(const char *name, const char *slow_us, const char *slow_rows_us,
                           const char *fault)
{
    const char *pairs[] = {"slow_us", slow_us, "slow_rows_us", slow_rows_us, "fault", fault};
    ck_assert_int_eq(attnhost_define_backend(host, name, "tunable", pairs, 3, &error.base),
                     ATTN_OK);
}

/* Candidates in order, and more options after them. */
static void define_autotune(const char *name, const char *const *candidates, uint32_t count,
                            const char *key, const char *value)
{
    const char *pairs[16];
    uint32_t n = 0;
    for (uint32_t c = 0; c < count; c++) {
        pairs[n++] = "candidate";
        pairs[n++] = candidates[c];
    }
    pairs[n++] = "seconds";
    pairs[n++] = "60";
    if (key) {
        pairs[n++] = key;
        pairs[n++] = value;
    }
    attn_status status = attnhost_define_backend(host, name, "autotune", pairs, n / 2, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
}

enum { FEW_TOKENS = 9 };

/* So small that computing it takes next to no time. */
static attnhost_backend *compose_small(const char *name, int32_t max_tokens)
{
    attnhost_backend *backend = NULL;
    make_problems();
    bounds.max_tokens = max_tokens;
    bounds.max_q_len = 5;
    bounds.max_kv_len = 40;
    for (int p = 0; p < 2; p++)
        groups[p].head_dim = groups[p].v_head_dim = 16;
    attn_status status = attnhost_compose(host, name, problems, 2, &backend, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return backend;
}

static attnhost_backend *prepare_with(const char *name, int32_t max_tokens)
{
    attnhost_backend *backend = compose_small(name, max_tokens);
    attn_status status = attnhost_backend_prepare(backend, NULL, NULL, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return backend;
}

static attnhost_backend *prepare(const char *name)
{
    return prepare_with(name, FEW_TOKENS);
}

/* The line of a class, "layers 0, decode, 1 sequence, 1-512 keys: ...". */
static const char *line_of(const attnhost_backend *backend, const char *class_text)
{
    static char line[512];
    const char *at = strstr(embed_explanation(backend), class_text);
    ck_assert_msg(at != NULL, "%s is not in: %s", class_text, embed_explanation(backend));
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    return line;
}

static bool is_chosen(const attnhost_backend *backend, const char *class_text, const char *name,
                      const char *from)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, ": %s (%s", name, from);
    return strstr(line_of(backend, class_text), wanted) != NULL;
}

static void assert_chosen(const attnhost_backend *backend, const char *class_text, const char *name,
                          const char *from)
{
    ck_assert_msg(is_chosen(backend, class_text, name, from), "%s (%s) is not chosen: %s", name,
                  from, line_of(backend, class_text));
}

static const char *const classes[] = {
    "layers 0, decode, 1 sequence, 1-512 keys",     "layers 0, decode, 2-4 sequences, 1-512 keys",
    "layers 0, decode, 5-16 sequences, 1-512 keys", "layers 0, prefill, 1 sequence, 1-512 keys",
    "layers 0, prefill, 2-4 sequences, 1-512 keys", "layers 0, prefill, 5-16 sequences, 1-512 keys",
    "layers 1, decode, 1 sequence, 1-512 keys",     "layers 1, prefill, 5-16 sequences, 1-512 keys",
};
enum { NUM_CLASSES = sizeof classes / sizeof classes[0] };

/* On a busy machine the fast one can lose a class: it is measured again then, three times in all. */
static attnhost_backend *prepare_until(const char *name, const char *fast)
{
    for (int tries = 3;; tries--) {
        attnhost_backend *backend = prepare(name);
        int chosen = 0;
        for (int c = 0; c < NUM_CLASSES; c++)
            chosen += is_chosen(backend, classes[c], fast, "measured");
        if (chosen == NUM_CLASSES || tries == 1)
            return backend;
        attnhost_backend_destroy(backend);
    }
}

/* ---- Choosing -------------------------------------------------------------------------------- */

/* One is fast alone and slow in company, the other the same everywhere: each class has its own. */
TEST_OF(choosing, each_class_has_its_fastest)
{
    static const char *const candidates[] = {"steady", "alone"};
    open_all();
    define_tunable("steady", "4000", "0", "none");
    define_tunable("alone", "0", "20000", "none");
    define_autotune("best", candidates, 2, NULL, NULL);
    attnhost_backend *backend = prepare("best");
    for (int c = 0; c < NUM_CLASSES; c++)
        assert_chosen(backend, classes[c], strstr(classes[c], " 1 sequence,") ? "alone" : "steady",
                      "measured");
    /* What was computed to measure is not a request's. */
    for (uint32_t n = 0; n < compose_num_nodes(backend->root); n++)
        ck_assert_int_eq(compose_node_at(backend->root, n)->rows.all, 0);
    attnhost_backend_destroy(backend);
    close_all();
}

/* Equal ones: the first stays. */
TEST_OF(choosing, equal_candidates_change_nothing)
{
    static const char *const candidates[] = {"first", "second"};
    open_all();
    define_tunable("first", "500", "0", "none");
    define_tunable("second", "500", "0", "none");
    define_autotune("best", candidates, 2, "margin", "0.5");
    attnhost_backend *backend = prepare("best");
    for (int c = 0; c < NUM_CLASSES; c++)
        assert_chosen(backend, classes[c], "first", "measured");
    attnhost_backend_destroy(backend);
    close_all();
}

/* A challenger needs both the margin and most rounds. */
LOOP_OF(choosing, noise_does_not_flip, 0, 8)
{
    static const struct {
        int64_t challenger[5], holder[5];
        int faster;
    } cases[] = {
        {{90, 90, 90, 90, 90}, {100, 100, 100, 100, 100}, 1},
        {{96, 96, 96, 96, 96}, {100, 100, 100, 100, 100}, 0},        /* below the margin */
        {{50, 50, 50, 200, 200}, {100, 100, 100, 100, 100}, 0},      /* three rounds of five */
        {{50, 50, 50, 50, 9000}, {100, 100, 100, 100, 100}, 1},      /* one outlier of its own */
        {{90, 190, 290, 90, 90}, {100, 200, 300, 100, 100}, 1},      /* noise that hits both */
        {{100, 100, 100, 100, 100}, {100, 100, 9000, 9000, 100}, 0}, /* the holder's bad luck */
        {{99, 99, 99, 99, 99}, {100, 9000, 9000, 9000, 9000}, 0},    /* nearly always */
        {{100, 100, 100, 100, 100}, {90, 90, 90, 90, 90}, 0},
    };
    ck_assert_int_lt(_i, (int)(sizeof cases / sizeof cases[0]));
    ck_assert_int_eq(tune_is_faster(cases[_i].challenger, cases[_i].holder, 5, 0.05),
                     cases[_i].faster);
}

/* ---- Dropping -------------------------------------------------------------------------------- */

/* One key left out, a row not written, a failure: dropped with its name, however fast. */
LOOP_OF(choosing, a_wrong_candidate_is_dropped, 0, 7)
{
    static const struct {
        const char *fault, *says;
    } cases[] = {
        {"last", "times what the pass rule allows"},
        {"first", "times what the pass rule allows"},
        {"before", "times what the pass rule allows"},
        {"unwritten", "is not written, or not finite"},
        {"fails", "it fails: child wrong: set to fail"},
        {"drifts", "times what the pass rule allows"},
        {"little", "is off by 2."},
    };
    static const char *const candidates[] = {"right", "wrong", "also_right"};
    open_all();
    define_tunable("right", "6000", "0", "none");
    define_tunable("wrong", "0", "0", cases[_i].fault);
    define_tunable("also_right", "0", "0", "none");
    define_autotune("best", candidates, 3, NULL, NULL);
    attnhost_backend *backend = prepare_until("best", "also_right");
    for (int c = 0; c < NUM_CLASSES; c++)
        assert_chosen(backend, classes[c], "also_right", "measured");
    ck_assert_msg(strstr(logged, "autotune: wrong is dropped: layers 0, ") != NULL, "%s", logged);
    ck_assert_msg(strstr(logged, cases[_i].says) != NULL, "%s", logged);
    ck_assert_ptr_null(strstr(logged, "right is dropped"));
    /* The same for people, and the times of the others. */
    ck_assert_ptr_nonnull(strstr(line_of(backend, "wrong is dropped: layers 0, "), cases[_i].says));
    ck_assert_ptr_null(strstr(line_of(backend, classes[0]), "wrong"));
    ck_assert_ptr_nonnull(strstr(line_of(backend, classes[0]), "(measured, right "));
    ck_assert_ptr_nonnull(strstr(line_of(backend, classes[0]), " us, also_right "));
    attnhost_backend_destroy(backend);
    close_all();
}

/* One row of many, which no sample need meet: it is where the outputs are farthest apart. */
LOOP_OF(choosing, a_rare_fault_is_found, 0, 2)
{
    const char *const candidates[] = {_i ? "wrong" : "right", _i ? "right" : "wrong"};
    open_all();
    define_tunable("right", "0", "0", "none");
    define_tunable("wrong", "0", "0", "rare");
    define_autotune("best", candidates, 2, NULL, NULL);
    attnhost_backend *backend = prepare_with("best", 64);
    const char *line = line_of(backend, "wrong is dropped: ");
    ck_assert_msg(strstr(line, ": row 5 of query head 1 is off by ") != NULL, "%s", line);
    ck_assert_ptr_nonnull(strstr(line_of(backend, classes[0]), ": right ("));
    attnhost_backend_destroy(backend);
    close_all();
}

/* The first candidate is judged like the others. */
LOOP_OF(choosing, a_wrong_first_does_not_serve, 0, 2)
{
    static const char *const candidates[] = {"wrong", "right"};
    open_all();
    define_tunable("wrong", "0", "0", _i ? "last" : "fails");
    define_tunable("right", "0", "0", "none");
    define_autotune("best", candidates, 2, NULL, NULL);
    attnhost_backend *backend = prepare("best");
    assert_chosen(backend, classes[0], "right", "not measured");
    ck_assert_ptr_nonnull(strstr(logged, "wrong is dropped"));
    attnhost_backend_destroy(backend);
    close_all();
}

/* ---- Time ------------------------------------------------------------------------------------ */

TEST_OF(choosing, no_time_is_told)
{
    static const char *const candidates[] = {"first", "second"};
    open_all();
    define_tunable("first", "1000", "0", "none");
    define_tunable("second", "0", "0", "none");
    const char *pairs[] = {"candidate", candidates[0], "candidate", candidates[1], "seconds", "0"};
    ck_assert_int_eq(attnhost_define_backend(host, "best", "autotune", pairs, 3, &error.base),
                     ATTN_OK);
    attnhost_backend *backend = prepare("best");
    for (int c = 0; c < NUM_CLASSES; c++)
        assert_chosen(backend, classes[c], "first", "not measured");
    ck_assert_msg(strstr(logged, "6 classes were not reached in 0 s and go to first") != NULL, "%s",
                  logged);
    attnhost_backend_destroy(backend);
    close_all();
}

/* ---- The store ------------------------------------------------------------------------------- */

static char *read_store(void)
{
    static char text[16384];
    FILE *file = fopen(store, "r");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    text[length] = '\0';
    fclose(file);
    return text;
}

static void write_store(const char *text)
{
    FILE *file = fopen(store, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

/* A file that a first run left, of "slow" and "fast". */
static void leave_decisions(void)
{
    static const char *const candidates[] = {"slow", "fast"};
    open_all();
    define_tunable("slow", "6000", "0", "none");
    define_tunable("fast", "0", "0", "none");
    define_autotune("best", candidates, 2, "store", store);
    attnhost_backend *backend = prepare("best");
    assert_chosen(backend, classes[0], "fast", "measured");
    attnhost_backend_destroy(backend);
    logged[0] = '\0';
}

/* Replace `from` by `to` of the same length in the last line of the file. */
static void edit_last(const char *from, const char *to)
{
    char *text = read_store(), *found = NULL;
    ck_assert_uint_eq(strlen(from), strlen(to));
    for (char *at = text; (at = strstr(at, from)); at++)
        found = at;
    ck_assert_ptr_nonnull(found);
    memcpy(found, to, strlen(to));
    write_store(text);
}

/* Decisions are taken as they are: one that was changed by hand is followed. */
TEST_OF(store, stored_decisions_are_reused)
{
    leave_decisions();
    edit_last("\tfast\t", "\tslow\t");
    attnhost_backend *backend = prepare("best");
    for (int c = 0; c < NUM_CLASSES; c++)
        assert_chosen(backend, classes[c], strstr(classes[c], "prefill, 5-16") ? "slow" : "fast",
                      "stored");
    ck_assert_ptr_null(strstr(logged, "left out"));
    ck_assert_ptr_nonnull(strstr(read_store(), "\tslow\tstored\n"));
    attnhost_backend_destroy(backend);
    close_all();
}

/* What is not for this composition is left out with a reason, and measured again. */
LOOP_OF(store, stale_decisions_are_left_out, 0, 4)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\tfast\t", "\tfist\t", ":7 is left out: its choice is not a candidate"},
        {"5-16 sequences, 1-512", "5-17 sequences, 1-512",
         ":7 is left out: there is no such class"},
        {"slow (tunable.so, ", "slow (tunable.so; ",
         ":7 is left out: the candidates, or the files they come from, have changed"},
        {"keys\tfast", "keys fast", ":7 is left out: it is not a decision"},
    };
    leave_decisions();
    edit_last(cases[_i].from, cases[_i].to);
    attnhost_backend *backend = prepare("best");
    ck_assert_msg(strstr(logged, cases[_i].says) != NULL, "%s", logged);
    assert_chosen(backend, classes[5], "fast", "measured");
    assert_chosen(backend, classes[0], "fast", "stored");
    ck_assert_ptr_null(strstr(read_store(), cases[_i].to)); /* and it is gone */
    attnhost_backend_destroy(backend);
    close_all();
}

/* Another device's or model's do not matter here, and stay. */
TEST_OF(store, decisions_of_others_stay)
{
    static const char foreign[] = "a device\ta group\tx; y\tdecode\tx\t1.0 us; x 1.0 us\n";
    char text[16384];
    leave_decisions();
    snprintf(text, sizeof text, "%s%s", read_store(), foreign);
    write_store(text);
    attnhost_backend *backend = prepare("best");
    ck_assert_ptr_null(strstr(logged, "left out"));
    ck_assert_ptr_nonnull(strstr(read_store(), foreign));
    assert_chosen(backend, classes[0], "fast", "stored");
    attnhost_backend_destroy(backend);
    close_all();
}

/* A file that autotune did not write is not written over. */
TEST_OF(store, another_file_is_refused)
{
    leave_decisions();
    write_store("dear diary\n");
    attnhost_backend *backend = compose_small("best", FEW_TOKENS);
    ck_assert_int_eq(attnhost_backend_prepare(backend, NULL, NULL, &error.base), ATTN_CONFIG_ERROR);
    assert_says("line 1 is 'dear diary'; accepted: a file that autotune wrote, or none");
    ck_assert_str_eq(read_store(), "dear diary\n");
    attnhost_backend_destroy(backend);
    close_all();
}

TEST_OF(store, a_store_that_cannot_be_written_is_told)
{
    static const char *const candidates[] = {"one", "two"};
    open_all();
    define_tunable("one", "0", "0", "none");
    define_tunable("two", "0", "0", "none");
    define_autotune("best", candidates, 2, "store", "/nonexistent/folder/decisions");
    attnhost_backend *backend = prepare("best");
    ck_assert_msg(strstr(logged, "/nonexistent/folder/decisions does not exist yet") != NULL, "%s",
                  logged);
    ck_assert_msg(strstr(logged, "/nonexistent/folder/decisions cannot be written: ") != NULL, "%s",
                  logged);
    attnhost_backend_destroy(backend);
    close_all();
}

/* ---- Who else -------------------------------------------------------------------------------- */

/* Before prepare() the first candidate serves, and one alone is never measured. */
TEST_OF(choosing, one_candidate_is_enough)
{
    static const char *const candidates[] = {"only", "only"};
    open_all();
    define_tunable("only", "0", "0", "none");
    define_autotune("best", candidates, 2, NULL, NULL);
    attnhost_backend *backend = compose_small("best", FEW_TOKENS);
    ck_assert_str_eq(embed_explanation(backend), "");
    ck_assert_int_eq(attnhost_backend_prepare(backend, NULL, NULL, &error.base), ATTN_OK);
    assert_chosen(backend, classes[0], "only", "not measured");
    attnhost_backend_destroy(backend);
    close_all();
}

TEST_OF(choosing, a_no_of_any_candidate_is_a_no)
{
    static const char *const candidates[] = {"fine", "other"};
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    open_all();
    define_tunable("fine", "0", "0", "none");
    define("other", "tunable", NULL, NULL, NULL, NULL);
    define_autotune("best", candidates, 2, NULL, NULL);
    make_problems();
    ck_assert_int_eq(attnhost_query(host, "best", &problems[0], &verdict, &error.base), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    problems[0].q_dtype = ATTN_BF16;
    ck_assert_int_eq(attnhost_query(host, "best", &problems[0], &verdict, &error.base), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(verdict.num_reasons, 2);
    ck_assert_str_eq(reason.child, "fine");
    close_all();
}

TESTS("autotune");
