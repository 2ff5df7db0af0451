/* SPDX-License-Identifier: Apache-2.0
 *
 * check_cpu_native_sparse.c: attention to chosen latents of the plugin's .so against the oracle:
 * random cases, in one call and in a call for each step, chosen by the plugin and given; and what
 * it refuses.
 *
 * The .so is $ATTNHOST_CPU_NATIVE, else cpu_native.so in $ATTNHOST_TEST_PLUGIN_DIR.
 */
#include "host/reference/sparse.h"
#include "tests/tools/mla_fixture.h"
#include "tests/tools/plugin_test.h"
#include "tests/tools/test_main.h"

#include <stdio.h>

enum { CASES = 120, MOST_LEN = 180 };

static const attn_backend_type *type;
static host_error error;

static void open_plugin(void)
{
    attn_plugin plugin;
    host_error_init(&error);
    open_plugin_file("ATTNHOST_CPU_NATIVE", "cpu_native.so", &plugin, &error.base);
    ck_assert_int_eq(plugin.describe(0, &type, &error.base), ATTN_OK);
}

/* Workers take turns, the last task first. */
static attn_status test_parallel_for(void *ctx, int64_t count, attn_task task, void *arg)
{
    uint32_t workers = *(const uint32_t *)ctx;
    attn_status first = ATTN_OK;
    for (int64_t i = count - 1; i >= 0; i--) {
        attn_status status = task(arg, i, (uint32_t)(i * 5 % workers));
        first = first == ATTN_OK ? status : first;
    }
    return first;
}

/* ---- A random case --------------------------------------------------------------------------- */

struct sparse_case {
    fixture f;
    attn_mla_dims dims;
    attn_sparse_dims sparse;
    attn_sparse_batch most;
    attn_device device;
    attn_bounds bounds;
    attn_mask mask;
    uint8_t bits[FIXTURE_SEQS * 16 * 32];
    int64_t bits_indptr[FIXTURE_SEQS + 1];
    int64_t split;
    uint32_t form;
    double *arrays[FIXTURE_SEQS * 4];
    mla_sequence sequences[FIXTURE_SEQS];
    uint64_t random;
    char what[256];
};

static int32_t pick(struct sparse_case *c, int32_t count)
{
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((c->random >> 33) % (uint64_t)count);
}

#define CHOOSE(c, values) values[pick(c, (int32_t)(sizeof values / sizeof values[0]))]

static const double *numbers(struct sparse_case *c, int n, int64_t count)
{
    double *made = malloc((size_t)(count + 1) * sizeof *made);
    for (int64_t i = 0; i < count; i++)
        made[i] = fixture_random(&c->random, 128) / 64;
    return c->arrays[n] = made;
}

static void fill_random(struct sparse_case *c, const attn_tensor *tensor, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dtype_store(tensor->dtype, tensor->data, i, fixture_random(&c->random, 100) / 64);
}

static void choose_group(struct sparse_case *c)
{
    static const int32_t heads[] = {1, 2, 5, 16, 140}, loras[] = {1, 8, 33, 130},
                         ropes[] = {0, 1, 7, 16}, pages[] = {1, 16, 64},
                         top_ks[] = {1, 3, 16, 64, 70, 300}, index_heads[] = {1, 4, 7, 32},
                         labels[] = {4, 20, 64, 128};
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16, ATTN_F16},
                            label_dtypes[] = {ATTN_F32, ATTN_BF16, ATTN_FP8_E4M3},
                            index_dtypes[] = {ATTN_F32, ATTN_BF16, ATTN_FP8_E4M3};
    fixture *f = &c->f;
    c->dims = (attn_mla_dims){sizeof c->dims, CHOOSE(c, loras), CHOOSE(c, ropes), 3};
    c->sparse = (attn_sparse_dims){.struct_size = sizeof c->sparse,
                                   .index_kind = ATTN_SPARSE_TOKEN,
                                   .top_k = CHOOSE(c, top_ks),
                                   .block_size = 1,
                                   .label_dim = CHOOSE(c, labels),
                                   .label_dtype = CHOOSE(c, label_dtypes),
                                   .index_heads = CHOOSE(c, index_heads),
                                   .index_dtype = CHOOSE(c, index_dtypes)};
    mla_init(f, CHOOSE(c, heads), &c->dims, 2);
    f->group.kind = ATTN_KIND_SPARSE;
    f->group.sparse = &c->sparse;
    f->problem.page_size = CHOOSE(c, pages);
    f->problem.q_dtype = f->problem.kv_dtype = CHOOSE(c, dtypes);
    f->problem.out_dtype = CHOOSE(c, dtypes);
    f->group.window_left = pick(c, 5) == 0 ? pick(c, 90) : -1;
    f->group.flags = pick(c, 4) == 0 ? ATTN_GROUP_HAS_SINKS : 0;
}

static void choose_sequences(struct sparse_case *c)
{
    static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_TARGET_VERIFY};
    fixture *f = &c->f;
    int64_t heads = f->group.num_q_heads;
    f->batch.mode = CHOOSE(c, modes);
    f->with_new_indptr = pick(c, 2);
    for (int32_t s = 0, count = 1 + pick(c, 3); s < count; s++) {
        int32_t queries = f->batch.mode == ATTN_MODE_DECODE ? 1 : 1 + pick(c, 9);
        int32_t prefix = pick(c, 4) ? pick(c, MOST_LEN) : 0, kv_len = prefix + queries;
        fixture_sequence *sequence = mla_add(f, queries, kv_len);
        sequence->prefix_len = prefix;
        c->sequences[s] =
            (mla_sequence){numbers(c, s * 4, queries * heads * c->dims.kv_lora_rank),
                           numbers(c, s * 4 + 1, queries * heads * c->dims.rope_dim),
                           numbers(c, s * 4 + 2, (int64_t)kv_len * c->dims.kv_lora_rank),
                           numbers(c, s * 4 + 3, (int64_t)kv_len * c->dims.rope_dim),
                           NULL,
                           NULL,
                           NULL};
    }
}

/* A tree's mask over new tokens, of which each sees itself and some before it. */
static void choose_mask(struct sparse_case *c)
{
    fixture *f = &c->f;
    f->batch.mask = NULL;
    if (f->batch.mode != ATTN_MODE_TARGET_VERIFY || pick(c, 2))
        return;
    c->mask = (attn_mask){.struct_size = sizeof c->mask,
                          .kind = ATTN_MASK_QLEN,
                          .bits = c->bits,
                          .indptr = {.device = c->bits_indptr}};
    for (int32_t s = 0; s < f->batch.num_seqs; s++) {
        int32_t n = f->sequences[s].num_queries;
        for (int32_t t = 0; t < n; t++)
            for (int32_t j = 0; j <= t; j++)
                if (j == t || pick(c, 2))
                    c->bits[c->bits_indptr[s] + (t * n + j) / 8] |=
                        (uint8_t)(1u << (t * n + j) % 8);
        c->bits_indptr[s + 1] = c->bits_indptr[s] + (n * n + 7) / 8;
    }
    f->batch.mask = &c->mask;
}

/* Labels of the prefix are in the cache, those of unused slots are NaN. */
static void add_labels(struct sparse_case *c)
{
    fixture *f = &c->f;
    int64_t page = f->problem.page_size, pages = f->tensors[ATTN_ROLE_LATENT_CACHE].shape[0];
    int64_t dim = c->sparse.label_dim;
    int has_codes = c->sparse.label_dtype == ATTN_FP8_E4M3;
    attn_tensor *cache = fixture_tensor(
        f, ATTN_ROLE_LABEL_CACHE, has_codes ? ATTN_U8 : c->sparse.label_dtype, has_codes ? 2 : 3,
        has_codes ? (int64_t[]){pages, page * (dim + 4)} : (int64_t[]){pages, page, dim});
    memset(cache->data, 0xff, (size_t)(pages * cache->strides[0]) * attn_dtype_size(cache->dtype));
    for (int32_t s = 0; s < f->batch.num_seqs; s++)
        for (int32_t j = 0; j < f->sequences[s].kv_len - f->sequences[s].num_new; j++) {
            double label[128];
            int64_t slot = f->req_to_token[f->requests[s]][j];
            for (int64_t d = 0; d < dim; d++)
                label[d] = fixture_random(&c->random, 100) / 64;
            reference_label_store(&c->sparse, page, label, fixture_at(cache, slot / page, 0, 0),
                                  slot % page);
        }
}

static void add_index(struct sparse_case *c)
{
    fixture *f = &c->f;
    int64_t rows = f->q_indptr[f->batch.num_seqs], heads = c->sparse.index_heads;
    int64_t dim = c->sparse.label_dim, new_rows = f->new_indptr[f->batch.num_seqs];
    fill_random(c,
                fixture_tensor(f, ATTN_ROLE_INDEX_Q, c->sparse.index_dtype, 3,
                               (int64_t[]){rows, heads, dim}),
                rows * heads * dim);
    fill_random(c,
                fixture_tensor(f, ATTN_ROLE_INDEX_WEIGHTS, ATTN_F32, 2, (int64_t[]){rows, heads}),
                rows * heads);
    fill_random(
        c, fixture_tensor(f, ATTN_ROLE_INDEX_K, f->problem.q_dtype, 2, (int64_t[]){new_rows, dim}),
        new_rows * dim);
    fixture_tensor(f, ATTN_ROLE_INDEX_LOGITS, ATTN_F32, 2, (int64_t[]){rows, FIXTURE_KEYS});
    fixture_tensor(f, ATTN_ROLE_SPARSE_INDICES, ATTN_I32, 2, (int64_t[]){rows, c->sparse.top_k});
    fixture_tensor(f, ATTN_ROLE_SPARSE_COUNT, ATTN_I32, 1, (int64_t[]){rows});
}

static void set_problem(struct sparse_case *c)
{
    fixture *f = &c->f;
    c->device = (attn_device){.struct_size = sizeof c->device, .type = ATTN_DEVICE_CPU};
    c->bounds = (attn_bounds){.struct_size = sizeof c->bounds,
                              .modes = (1u << ATTN_MODE_COUNT) - 1,
                              .mask_kinds = (1u << ATTN_MASK_COUNT) - 1,
                              .uses = ATTN_USES_LSE,
                              .max_seqs = f->batch.num_seqs,
                              .max_tokens = f->batch.num_tokens,
                              .max_q_len = 16,
                              .max_kv_len = FIXTURE_KEYS};
    f->problem.device = &c->device;
    f->problem.bounds = &c->bounds;
    c->most = (attn_sparse_batch){.struct_size = sizeof c->most, .max_count = c->sparse.top_k};
    f->batch.sparse = &c->most;
}

static struct sparse_case *case_of(uint64_t seed)
{
    static const int64_t splits[] = {64, 128, 512};
    struct sparse_case *c = calloc(1, sizeof *c);
    c->random = seed * 977 + 13;
    choose_group(c);
    choose_sequences(c);
    choose_mask(c);
    mla_build(&c->f, c->sequences);
    add_labels(c);
    add_index(c);
    set_problem(c);
    c->split = CHOOSE(c, splits);
    c->form = (uint32_t)pick(c, 3);
    snprintf(c->what, sizeof c->what,
             "seed %llu: mode %u, %d heads, %d + %d, page %d, dtypes %u %u, top %d, %d x %d, %u %u",
             (unsigned long long)seed, c->f.batch.mode, c->f.group.num_q_heads,
             c->dims.kv_lora_rank, c->dims.rope_dim, c->f.problem.page_size, c->f.problem.q_dtype,
             c->f.problem.kv_dtype, c->sparse.top_k, c->sparse.index_heads, c->sparse.label_dim,
             c->sparse.index_dtype, c->sparse.label_dtype);
    return c;
}

static void case_free(struct sparse_case *c)
{
    fixture_finish(&c->f);
    for (size_t n = 0; n < sizeof c->arrays / sizeof c->arrays[0]; n++)
        free(c->arrays[n]);
    free(c);
}

static size_t tensor_bytes(const attn_tensor *tensor)
{
    return (size_t)(tensor->shape[0] * tensor->strides[0]) * attn_dtype_size(tensor->dtype);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Calls with these roles out of all that there are, one after the other. */
struct step_roles {
    const uint32_t *left_out;
    int count;
};

static attn_status forward_one(struct sparse_case *c, attn_metadata *metadata,
                               const struct step_roles *roles)
{
    fixture *f = &c->f;
    const attn_tensor *given[ATTN_ROLE_COUNT];
    attn_forward_args args = f->args;
    memcpy(given, f->operands, sizeof given);
    for (int n = 0; n < roles->count; n++)
        given[roles->left_out[n]] = NULL;
    args.operands = given;
    return f->batch.mode == ATTN_MODE_DECODE
               ? type->ops->forward_decode(metadata, 3, &args, NULL, &error.base)
               : type->ops->forward_extend(metadata, 3, &args, NULL, &error.base);
}

static attn_status run(struct sparse_case *c, uint32_t workers, const struct step_roles *steps,
                       int num_steps)
{
    fixture *f = &c->f;
    attn_services services = {.struct_size = sizeof services,
                              .num_workers = workers,
                              .ctx = &workers,
                              .allocate = test_allocate,
                              .release = test_release,
                              .parallel_for = test_parallel_for};
    attn_option_value values[] = {
        {sizeof values[0], .key = "kv_split_tokens", .integer = c->split, .text = ""},
        {sizeof values[0], .key = "kv_index", .integer = c->form, .text = ""},
        {sizeof values[0], .key = "isa", .integer = workers == 2, .text = ""},
        {sizeof values[0], .key = "round_probabilities", .integer = 0, .text = ""}};
    attn_options options = {.struct_size = sizeof options, .num_values = 4, .values = values};
    attn_instance *instance;
    attn_metadata *metadata;
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory memory = {.struct_size = sizeof memory};
    attn_status status = ATTN_OK;
#define MUST(call) ck_assert_msg((call) == ATTN_OK, "%s: %s", c->what, host_error_text(&error))
    MUST(type->create(type, &f->problem, 1, &options, &services, &instance, &error.base));
    MUST(type->ops->metadata_size(instance, ATTN_METADATA_EAGER, &c->bounds, &size, &error.base));
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        memory.size[region] = size.size[region];
        memory.base[region] = test_allocate(NULL, 0, size.size[region] + 64, 64);
        memset(memory.base[region], 0xff, size.size[region] + 64);
    }
    MUST(type->ops->metadata_create(instance, ATTN_METADATA_EAGER, &c->bounds, &memory, &metadata,
                                    &error.base));
    MUST(type->ops->init_forward_metadata(metadata, &f->batch, NULL, &error.base));
#undef MUST
    for (int n = 0; n < num_steps && status == ATTN_OK; n++)
        status = forward_one(c, metadata, &steps[n]);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        const uint8_t *end = (const uint8_t *)memory.base[region] + size.size[region];
        for (int i = 0; i < 64; i++)
            ck_assert_msg(end[i] == 0xff, "%s: region %u was overrun", c->what, region);
        free(memory.base[region]);
    }
    type->ops->destroy(instance);
    return status;
}

/* All at once; all but what is written of the choice; one call for each step, which save no more
 * than what is theirs. */
#define LOGITS  ATTN_ROLE_INDEX_LOGITS
#define INDICES ATTN_ROLE_SPARSE_INDICES
#define CHOSEN  ATTN_ROLE_SPARSE_COUNT
static const uint32_t nothing_written[] = {LOGITS, INDICES, CHOSEN};
static const uint32_t label_step[] = {
    INDICES,        CHOSEN,         ATTN_ROLE_OUT,  ATTN_ROLE_Q_NOPE,
    ATTN_ROLE_Q_PE, ATTN_ROLE_C_KV, ATTN_ROLE_K_PE, ATTN_ROLE_LATENT_CACHE};
static const uint32_t choose_step[] = {
    ATTN_ROLE_INDEX_Q, ATTN_ROLE_INDEX_WEIGHTS, ATTN_ROLE_INDEX_K, ATTN_ROLE_LABEL_CACHE,
    ATTN_ROLE_OUT,     ATTN_ROLE_Q_NOPE,        ATTN_ROLE_Q_PE,    ATTN_ROLE_C_KV,
    ATTN_ROLE_K_PE,    ATTN_ROLE_LATENT_CACHE};
static const uint32_t attend_step[] = {ATTN_ROLE_INDEX_Q, ATTN_ROLE_INDEX_WEIGHTS,
                                       ATTN_ROLE_INDEX_K, ATTN_ROLE_LABEL_CACHE, LOGITS};
#define ROLES(list)                                                                                \
    {                                                                                              \
        list, (int)(sizeof list / sizeof list[0])                                                  \
    }
static const struct step_roles at_once[] = {{NULL, 0}}, silent[] = {ROLES(nothing_written)},
                               apart[] = {ROLES(label_step), ROLES(choose_step),
                                          ROLES(attend_step)};

static void poison_outputs(fixture *f)
{
    static const uint32_t roles[] = {ATTN_ROLE_OUT, ATTN_ROLE_LSE, LOGITS, INDICES, CHOSEN};
    for (size_t n = 0; n < sizeof roles / sizeof roles[0]; n++)
        if (f->tensors[roles[n]].data) /* the layer has that output */
            memset(f->tensors[roles[n]].data, 0xfb, tensor_bytes(&f->tensors[roles[n]]));
}

static void *copy_of(const attn_tensor *tensor)
{
    void *copy = malloc(tensor_bytes(tensor) + 1);
    return memcpy(copy, tensor->data, tensor_bytes(tensor));
}

/* The plugin's choice, output, LSE and caches against the oracle's. */
static void judge(struct sparse_case *c)
{
    fixture *f = &c->f;
    reference_choice_report choice = {0};
    reference_report report = {0};
    ck_assert_msg(reference_check_choice(&f->problem, &f->batch, 3, &f->args, &choice,
                                         &error.base) == ATTN_OK,
                  "%s: %s", c->what, host_error_text(&error));
    ck_assert_msg(choice.message[0] == 0, "%s: %s", c->what, choice.message);
    ck_assert_int_eq(choice.rows_checked, f->batch.num_tokens);
    ck_assert_int_gt(choice.logits_checked, 0);
    reference_result result = fixture_forward(f, NULL);
    ck_assert_int_eq(reference_compare(&result, &f->tensors[ATTN_ROLE_OUT],
                                       &f->tensors[ATTN_ROLE_LSE], &report, &error.base),
                     ATTN_OK);
    ck_assert_msg(reference_report_passed(&report), "%s: %s", c->what, report.message);
    reference_result_finish(&result);
}

static void check_case(uint64_t seed)
{
    struct sparse_case *c = case_of(seed);
    fixture *f = &c->f;
    attn_tensor *out = &f->tensors[ATTN_ROLE_OUT];
    attn_tensor latents = f->tensors[ATTN_ROLE_LATENT_CACHE],
                labels = f->tensors[ATTN_ROLE_LABEL_CACHE];
    latents.data = copy_of(&latents);
    labels.data = copy_of(&labels);
    f->operands[INDICES] = NULL; /* not read yet */
    ck_assert_int_eq(
        reference_expected_kv(&f->problem, &f->batch, 3, &f->args, &latents, NULL, &error.base),
        ATTN_OK);
    ck_assert_int_eq(
        reference_expected_labels(&f->problem, &f->batch, 3, &f->args, &labels, &error.base),
        ATTN_OK);
    f->operands[INDICES] = &f->tensors[INDICES];
    poison_outputs(f);
    ck_assert_msg(run(c, 1, at_once, 1) == ATTN_OK, "%s: %s", c->what, host_error_text(&error));
    judge(c);
    ck_assert_msg(
        reference_compare_kv(&f->problem, &f->tensors[ATTN_ROLE_LATENT_CACHE], &latents, NULL) == 0,
        "%s: latents", c->what);
    ck_assert_msg(
        reference_compare_kv(&f->problem, &f->tensors[ATTN_ROLE_LABEL_CACHE], &labels, NULL) == 0,
        "%s: labels", c->what);
    char *first = copy_of(out);
    for (int way = 0; way < 2; way++) {
        poison_outputs(f);
        ck_assert_msg(run(c, 3, way ? apart : silent, way ? 3 : 1) == ATTN_OK, "%s: %s", c->what,
                      host_error_text(&error));
        ck_assert_msg(memcmp(first, out->data, tensor_bytes(out)) == 0, "%s: %s", c->what,
                      way ? "apart" : "nothing written");
    }
    ck_assert_msg(run(c, 2, at_once, 1) == ATTN_OK, "%s", host_error_text(&error)); /* generic */
    judge(c);
    free(first);
    free(latents.data);
    free(labels.data);
    case_free(c);
}

LOOP_OF(cases, any_case, 0, 8)
{
    for (int n = _i, count = random_cases(CASES); n < count; n += 8)
        check_case((uint64_t)n);
}

/* ---- Lists that are given -------------------------------------------------------------------- */

/* Holes in a list, entries after its count, and no count at all. */
LOOP_OF(cases, given_lists, 0, 3)
{
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct sparse_case *c = case_of(seed);
        fixture *f = &c->f;
        int32_t top_k = c->sparse.top_k;
        ck_assert_int_eq(run(c, 1, at_once, 1), ATTN_OK);
        int32_t *indices = f->tensors[INDICES].data, *counts = f->tensors[CHOSEN].data;
        for (int32_t row = 0; row < f->batch.num_tokens; row++) {
            int32_t *list = indices + (int64_t)row * top_k;
            if (counts[row] > 2 && _i == 0)
                list[1] = -1;
            if (counts[row] > 1 && _i == 1)
                counts[row]--;
        }
        if (_i != 1)
            f->operands[CHOSEN] = NULL;
        for (uint32_t role = ATTN_ROLE_INDEX_Q; role <= LOGITS; role++)
            f->operands[role] = NULL;
        f->operands[ATTN_ROLE_LABEL_CACHE] = NULL;
        poison_outputs(&(fixture){.tensors = {[ATTN_ROLE_OUT] = f->tensors[ATTN_ROLE_OUT]}});
        ck_assert_msg(run(c, 2, at_once, 1) == ATTN_OK, "%s", host_error_text(&error));
        reference_report report = {0};
        reference_result result = fixture_forward(f, NULL);
        ck_assert_int_eq(
            reference_compare(&result, &f->tensors[ATTN_ROLE_OUT], NULL, &report, &error.base),
            ATTN_OK);
        ck_assert_msg(reference_report_passed(&report), "%s: %s", c->what, report.message);
        reference_result_finish(&result);
        case_free(c);
    }
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static const struct {
    uint32_t role;
    const char *word;
} missing[] = {{ATTN_ROLE_INDEX_WEIGHTS, "index_weights"},
               {ATTN_ROLE_LABEL_CACHE, "label_cache"},
               {ATTN_ROLE_Q_PE, "q_pe"},
               {ATTN_ROLE_LATENT_CACHE, "latent_cache"}};

LOOP_OF(refusals, missing_operands, 0, COUNT(missing))
{
    struct sparse_case *c = case_of(1);
    const struct step_roles without = {&missing[_i].role, 1};
    ck_assert_int_eq(run(c, 1, &without, 1), ATTN_INVALID_ARGUMENT);
    ck_assert_msg(strstr(host_error_text(&error), missing[_i].word), "%s", host_error_text(&error));
    case_free(c);
}

/* Without indices, of a layer whose engine chooses; slots outside; new keys that are not saved. */
TEST_OF(refusals, senseless_calls)
{
    static const uint32_t no_index[] = {ATTN_ROLE_INDEX_Q, LOGITS, INDICES};
    const struct step_roles without = ROLES(no_index);
    struct sparse_case *c = case_of(1);
    fixture *f = &c->f;
    ck_assert_int_eq(run(c, 1, &without, 1), ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "sparse_indices"));
    ck_assert_int_eq(run(c, 1, at_once, 1), ATTN_OK);
    ((int32_t *)f->tensors[INDICES].data)[0] = 1 << 30;
    const struct step_roles given = ROLES(attend_step);
    ck_assert_int_eq(run(c, 1, &given, 1), ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "in slot 1073741824"));
    f->args.flags = 0;
    ck_assert_int_eq(run(c, 1, at_once, 1), ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "without SAVE_KV"));
    case_free(c);
}

GROUP(cases, .timeout = 120, .set_up_once = open_plugin);
GROUP(refusals, .set_up_once = open_plugin);
TESTS("cpu_native: sparse");
