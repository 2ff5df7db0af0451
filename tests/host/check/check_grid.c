/* SPDX-License-Identifier: Apache-2.0
 *
 * check_grid.c: the grid of cases: every pair of values that query accepts is in one of them, none
 * that it refuses is, and equal seeds give equal grids.
 */
#include "tests/host/check/subject_fixture.h"

#include "host/check/cases/forward_case_private.h"
#include "host/check/cases/grid.h"
#include "host/check/cases/numerics.h"
#include "host/base/mix.h"
#include "host/base/text.h"

#include <nettle/sha2.h>

static struct subject_fixture f;
static attn_backend_type choosy;

static void open_native(void)
{
    subject_create_host(&f, 1);
    subject_load(&f, "ATTNHOST_TEST_PLUGIN_DIR", "cpu_native");
    subject_resolve(&f, "cpu_native", ATTN_DEVICE_CPU);
}

static void close_native(void)
{
    subject_destroy(&f);
}

static struct grid *make_grid(const attn_backend_type *type, uint64_t seed, bool exhaustive)
{
    struct grid *grid = NULL;
    struct grid_backend backend = {type, f.subject.options, f.subject.services, f.device, NULL};
    GOOD(grid_create(&backend, seed, exhaustive, &grid, &failure.base));
    return grid;
}

static void end_grid(struct grid **grid)
{
    grid_destroy(*grid);
}

/* One that ends with its block. */
#define GRID(name) struct grid *name __attribute__((cleanup(end_grid)))

/* ---- A backend that accepts less ------------------------------------------------------------- */

static attn_status refuse(attn_verdict *verdict, const char *what)
{
    verdict->supported = 0;
    verdict->num_reasons = 1;
    if (verdict->reasons_capacity > 0) {
        verdict->reasons[0].code = ATTN_REASON_OTHER;
        verdict->reasons[0].field = ATTN_FIELD_HEAD_DIM;
        snprintf(verdict->reasons[0].got, sizeof verdict->reasons[0].got, "%s", what);
        snprintf(verdict->reasons[0].accepted, sizeof verdict->reasons[0].accepted, "nothing");
    }
    return ATTN_OK;
}

/* Pages of 64 in HND alone, windows not with a cap, fp8 in decode alone, no f32, no encoder. */
static attn_status choosy_query(const attn_backend_type *type, const attn_options *options,
                                const attn_services *services, const attn_problem *problem,
                                attn_verdict *verdict, attn_error *error)
{
    (void)type;
    const attn_layer_group *group = problem->group;
    bool fp8 = attn_dtype_size(problem->kv_dtype) == 1;
    attn_status status =
        f.subject.type->query(f.subject.type, options, services, problem, verdict, error);
    if (status != ATTN_OK || !verdict->supported)
        return status;
    if (problem->q_dtype == ATTN_F32 || group->attn_type == ATTN_TYPE_ENCODER_ONLY ||
        problem->page_size != 64 || strcmp(problem->kv_layout, ATTN_LAYOUT_KV_HND) != 0 ||
        (group->window_left >= 0 && group->logit_cap > 0) ||
        (fp8 && problem->bounds->modes != ATTN_MODE_BIT(ATTN_MODE_DECODE)) ||
        (group->num_q_heads == 26 && group->head_dim == 256))
        return refuse(verdict, "not this one");
    return ATTN_OK;
}

static int32_t num_queries;

/* f32 alone, no LSE, no window of the causal kind: plain points differ from what it takes in three ways. */
static attn_status narrow_query(const attn_backend_type *type, const attn_options *options,
                                const attn_services *services, const attn_problem *problem,
                                attn_verdict *verdict, attn_error *error)
{
    (void)type;
    num_queries++;
    attn_status status =
        f.subject.type->query(f.subject.type, options, services, problem, verdict, error);
    uint32_t more = (problem->q_dtype != ATTN_F32) +
                    (problem->bounds->uses & ATTN_USES_LSE ? 1u : 0u) +
                    (problem->group->head_dim != 128);
    verdict->supported = status == ATTN_OK && verdict->supported && more == 0;
    verdict->num_reasons += more;
    return status;
}

static attn_status no_query(const attn_backend_type *type, const attn_options *options,
                            const attn_services *services, const attn_problem *problem,
                            attn_verdict *verdict, attn_error *error)
{
    (void)type, (void)options, (void)services, (void)problem, (void)error;
    return refuse(verdict, "any");
}

static const attn_backend_type *with_query(
    attn_status (*query)(const attn_backend_type *, const attn_options *, const attn_services *,
                         const attn_problem *, attn_verdict *, attn_error *))
{
    choosy = *f.subject.type;
    choosy.query = query;
    return &choosy;
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

static bool has_pair(const struct grid *grid, const struct grid_point *point, enum grid_axis a,
                     enum grid_axis b)
{
    for (int32_t n = 0; n < grid->num_points; n++)
        if (grid->points[n].value[a] == point->value[a] &&
            grid->points[n].value[b] == point->value[b])
            return true;
    return false;
}

/* Whatever is accepted, found at random and by changing what was found before: its pairs are in the
 * grid. */
static int32_t check_pairs(const struct grid *grid, uint64_t seed)
{
    struct grid_point point = grid->base;
    int32_t accepted = 0;
    for (uint64_t n = 0; n < 6000; n++) {
        struct grid_point drawn = grid_random(grid, mix_word(seed), n), tried = point;
        for (enum grid_axis axis = 0; axis < GRID_AXES; axis++)
            if (n % 3 == 0 || mix_stream(seed, n * GRID_AXES + axis) % 8 == 0)
                tried.value[axis] = drawn.value[axis];
        if (!grid_accepts(grid, &tried, NULL, NULL, 0))
            continue;
        point = tried;
        accepted++;
        for (enum grid_axis a = 0; a < GRID_AXES; a++)
            for (enum grid_axis b = a + 1; b < GRID_AXES; b++)
                ck_assert_msg(has_pair(grid, &point, a, b),
                              "axis %d: %d with axis %d: %d is accepted, and in no case", (int)a,
                              point.value[a], (int)b, point.value[b]);
    }
    return accepted;
}

TEST_OF(grid, accepted_pairs_are_covered)
{
    const attn_backend_type *types[] = {f.subject.type, with_query(choosy_query)};
    for (int t = 0; t < 2; t++) {
        struct grid *grid = make_grid(types[t], (uint64_t)t + 1, false);
        int32_t accepted = check_pairs(grid, 77);
        printf("# %d cases, %d accepted points looked at\n", grid->num_points, accepted);
        ck_assert_int_gt(accepted, 300);
        ck_assert_int_lt(grid->num_points, 250);
        grid_destroy(grid);
    }
}

TEST_OF(grid, refused_points_are_left_out)
{
    GRID(grid) = make_grid(with_query(choosy_query), 4, false);
    struct case_spec spec;
    ck_assert_int_gt(grid->num_points, 50);
    for (int32_t n = 0; n < grid->num_points; n++) {
        ck_assert(grid_accepts(grid, &grid->points[n], &spec, NULL, 0));
        ck_assert_int_eq(spec.page_size, 64);
        ck_assert_str_eq(spec.kv_layout, ATTN_LAYOUT_KV_HND);
        ck_assert(!(spec.window_left >= 0 && spec.logit_cap > 0));
        ck_assert_ptr_null(case_spec_defect(&spec));
    }
}

TEST_OF(grid, equal_seeds_give_equal_grids)
{
    struct grid *a = make_grid(f.subject.type, 8, false), *b = make_grid(f.subject.type, 8, false);
    struct grid *other = make_grid(f.subject.type, 9, false);
    ck_assert_int_eq(a->num_points, b->num_points);
    ck_assert_mem_eq(a->points, b->points, (size_t)a->num_points * sizeof *a->points);
    ck_assert_str_eq(a->digest, b->digest);
    ck_assert_str_ne(a->digest, other->digest);
    ck_assert(other->num_points != a->num_points ||
              memcmp(a->points, other->points, (size_t)a->num_points * sizeof *a->points) != 0);
    grid_destroy(a);
    grid_destroy(b);
    grid_destroy(other);
}

/* The grid of seed 7, made once and written down: on another machine, by another compiler, with
 * other instructions it is the same. It changes with the axes and with what cpu_native accepts, and
 * then the message has what to write here. */
LOOP_OF(grid, it_is_the_same_on_every_machine, 0, 3)
{
    static const char golden[] = "31db8939e75dcae4b960af820a1332e4a772486230b4f37636862c00cb2ac211";
    static const uint32_t isas[] = {0, ATTN_CPU_AVX2, UINT32_MAX};
    attn_device *device = &f.device->info;
    ck_assert_ptr_eq(f.subject.device, f.device);
    device->cpu_isa = isas[_i];
    device->memory_bytes = UINT64_C(1) << (30 + _i);
    device->l2_bytes = UINT64_C(1) << (20 + _i);
    GRID(grid) = make_grid(f.subject.type, 7, false);
    ck_assert_str_eq(grid->digest, golden);
}

TEST_OF(grid, exhaustive_has_more)
{
    struct grid *few = make_grid(f.subject.type, 8, false);
    struct grid *many = make_grid(f.subject.type, 8, true);
    ck_assert_int_gt(many->num_points, 10 * few->num_points);
    ck_assert_mem_eq(few->points, many->points, (size_t)few->num_points * sizeof *few->points);
    grid_destroy(few);
    grid_destroy(many);
}

/* Which forms of indices can be asked for is found out by the options that decide it. */
TEST_OF(grid, index_forms_are_found)
{
    GRID(grid) = make_grid(f.subject.type, 1, false);
    uint32_t found = 0;
    for (int32_t n = 0; n < grid->num_forms; n++)
        found |= 1u << grid->forms[n].forms;
    ck_assert_uint_eq(found, 1u << 1 | 1u << 2 | 1u << 4 | 1u << 7);
}

/* ---- Products -------------------------------------------------------------------------------- */

TEST_OF(grid, products_are_of_what_is_accepted)
{
    static const struct grid_choice choices[] = {
        {AXIS_WINDOW, 0xff}, {AXIS_CAP, 7}, {AXIS_MODE, 3}, {0, 0}};
    static const struct grid_choice none[] = {{AXIS_PAGE, 1u << 1}, {0, 0}};
    GRID(grid) = make_grid(with_query(choosy_query), 1, false);
    struct grid_point point, last = {{0}};
    char reason[512] = "";
    /* 8 windows without a cap, 3 of them with two caps, both modes. */
    int32_t count = grid_product(grid, choices, 0, &point, NULL, 0);
    ck_assert_int_eq(count, (8 + 3 * 2) * 2);
    for (int32_t n = 0; n < count; n++) {
        ck_assert_int_eq(grid_product(grid, choices, n, &point, NULL, 0), count);
        ck_assert(n == 0 || memcmp(&point, &last, sizeof point) != 0);
        last = point;
    }
    ck_assert_int_eq(grid_product(grid, none, 0, &point, reason, sizeof reason), 0);
    ck_assert_str_eq(reason, "head_dim not this one: accepted nothing");
}

/* What differs from the plain points in several ways at once is found by its reasons. */
TEST_OF(grid, a_base_is_found_by_reasons)
{
    struct case_spec spec;
    GRID(grid) = make_grid(with_query(narrow_query), 1, false);
    ck_assert_str_eq(grid->refusal, "");
    ck_assert_int_gt(grid->num_points, 20);
    ck_assert(grid_accepts(grid, &grid->base, &spec, NULL, 0));
    ck_assert_int_eq(spec.head_dim, 128);
}

/* A query may be slow: to choose and to count cases each question is posed once. */
TEST_OF(grid, no_question_is_posed_twice)
{
    static const struct grid_choice choices[] = {{AXIS_PAGE, 7}, {AXIS_WINDOW, 0xff}, {0, 0}};
    GRID(grid) = make_grid(with_query(narrow_query), 1, false);
    struct check_subject subject = f.subject;
    subject.grid = &grid;
    int32_t count = numerics_count(&subject, choices), before = num_queries;
    ck_assert_int_gt(count, 1);
    ck_assert_int_eq(numerics_count(&subject, choices), count);
    ck_assert_int_eq(num_queries, before);
    ck_assert(grid_accepts(grid, &grid->base, NULL, NULL, 0)); /* as a case does */
    ck_assert_int_eq(num_queries, before + 1);
}

TEST_OF(grid, nothing_accepted_is_an_empty_grid)
{
    GRID(grid) = make_grid(with_query(no_query), 1, true);
    ck_assert_int_eq(grid->num_points, 0);
    ck_assert_str_eq(grid->refusal, "head_dim any: accepted nothing");
}

/* Of every rule that the numerics are about there are cases. */
TEST_OF(grid, every_rule_is_exercised)
{
    static const char *const rules[] = {
        "MEAN-02", "MEAN-03", "MEAN-04", "MEAN-05", "MEAN-06", "MEAN-07", "MEAN-08", "MEAN-09",
        "MEAN-10", "MEAN-11", "MEAN-12", "MEAN-13", "MEAN-14", "MEAN-15", "MEAN-16", "MEAN-17",
        "KV-01",   "KV-02",   "KV-03",   "KV-04",   "KV-06",   "KV-08",   "CAPT-04"};
    GRID(grid) = make_grid(f.subject.type, 1, false);
    char text[400];
    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++) {
        int32_t count = 0;
        for (int32_t n = 0; n < grid->num_points; n++) {
            grid_rules(&grid->points[n], text, sizeof text);
            count += strstr(text, rules[r]) != NULL;
        }
        ck_assert_msg(count >= 10, "%s has %d cases", rules[r], count);
        ck_assert_msg(count < grid->num_points || strcmp(rules[r], "KV-06") == 0, "%s", rules[r]);
    }
}

/* ---- Latent layers --------------------------------------------------------------------------- */

/* Latent layers alone, with q of bf16, in pages of more than 16. */
static attn_status latent_query(const attn_backend_type *type, const attn_options *options,
                                const attn_services *services, const attn_problem *problem,
                                attn_verdict *verdict, attn_error *error)
{
    (void)type, (void)options, (void)services, (void)error;
    verdict->supported = problem->group->kind == ATTN_KIND_MLA && problem->q_dtype == ATTN_BF16 &&
                         problem->page_size > 16;
    verdict->graph_seq_len_fill = 3;
    return verdict->supported ? ATTN_OK : refuse(verdict, "another layer");
}

static const struct grid_choice latents[GRID_MAX_CHOICES + 1] = {
    OF_LATENTS(MLA_ABSORBED | MLA_EXPANDED, MLA_LATENT | MLA_PACKED, ALL_LATENTS, {AXIS_MODE, 31},
               {AXIS_SOURCE, 63}, {AXIS_MASK, BIT(MASK_LAYER) | BIT(MASK_NONE)})};

/* Of a product, and at random: what is taken is what query accepts, of every form and layout. */
TEST_OF(grid, latent_points_are_the_same_on_every_machine)
{
    static const char golden[] = "15e26c69c8825734e162631c24751ca677f471f7384b0722fcf21882d78a9775";
    struct sha256_ctx sha256;
    uint8_t digest[SHA256_DIGEST_SIZE];
    char text[600], hex[2 * SHA256_DIGEST_SIZE + 1];
    int32_t expanded = 0, packed = 0, taken = 0;
    GRID(grid) = make_grid(with_query(latent_query), 3, false);
    sha256_init(&sha256);
    for (uint64_t n = 0; n < 900; n++) {
        struct grid_point point;
        struct case_spec spec;
        if (n < 300)
            ck_assert_int_gt(grid_product(grid, latents, (int32_t)n, &point, NULL, 0), 300);
        else
            point = grid_random_latent(grid, 8, n, 0);
        if (!grid_accepts(grid, &point, &spec, NULL, 0)) {
            ck_assert_uint_ge(n, 300);
            continue;
        }
        case_spec_describe(&spec, text, sizeof text);
        sha256_update(&sha256, strlen(text) + 1, (const uint8_t *)text);
        ck_assert_int_eq(spec.fill, 3);
        ck_assert_int_gt(spec.page_size, 16);
        ck_assert_uint_eq(spec.index_form, ATTN_INDEX_BLOCK_TABLE);
        expanded += spec.latent.expanded;
        packed += case_is_packed(&spec);
        taken++;
    }
    sha256_digest(&sha256, sizeof digest, digest);
    text_hex(digest, sizeof digest, hex);
    ck_assert_int_gt(taken, 320);
    ck_assert_int_gt(expanded, 50);
    ck_assert_int_gt(packed, 50);
    ck_assert_str_eq(hex, golden);
}

TEST_OF(grid, chunks_lie_in_their_prefix)
{
    static const struct grid_choice chunks[GRID_MAX_CHOICES + 1] = {
        OF_LATENTS(MLA_EXPANDED, MLA_LATENT, BIT(MLA_SMALL), {AXIS_LENGTHS, 63},
                   {AXIS_SOURCE, BIT(SOURCE_PREFIX)}, {AXIS_MASK, BIT(MASK_NONE)})};
    GRID(grid) = make_grid(f.subject.type, 3, false);
    int32_t count = grid_product(grid, chunks, -1, NULL, NULL, 0), whole = 0, part = 0, none = 0;
    ck_assert_int_eq(count, 6);
    for (int32_t n = 0; n < count; n++) {
        struct grid_point point;
        struct case_spec spec;
        grid_product(grid, chunks, n, &point, NULL, 0);
        ck_assert(grid_accepts(grid, &point, &spec, NULL, 0));
        for (int32_t s = 0; s < spec.num_sequences; s++) {
            const struct case_sequence *sequence = &spec.sequences[s];
            ck_assert_int_le(sequence->chunk_end, sequence->prefix_len);
            ck_assert_int_le(sequence->num_new_keys, sequence->chunk_end);
            none += sequence->num_new_keys == 0;
            whole += sequence->num_new_keys == sequence->prefix_len && sequence->prefix_len > 0;
            part += sequence->num_new_keys > 0 && sequence->num_new_keys < sequence->prefix_len;
        }
    }
    ck_assert_int_ge(whole, 3);
    ck_assert_int_ge(part, 3);
    ck_assert_int_ge(none, 3);
}

TEST_OF(grid, no_latent_layers_has_a_reason)
{
    struct grid_point point;
    char reason[256] = "";
    GRID(grid) = make_grid(with_query(no_query), 3, false);
    ck_assert_int_eq(grid_product(grid, latents, 0, &point, reason, sizeof reason), 0);
    ck_assert_msg(strstr(reason, "accepted nothing"), "%s", reason);
}

GROUP(grid, .set_up = open_native, .tear_down = close_native, .timeout = 100);
TESTS("grid");
