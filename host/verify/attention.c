/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.c: rows that attend to keys, each judged alone.
 *
 * The work is cut into (sequence, KV head) pieces: the keys of one KV head are made once, a block
 * at a time, and serve all sampled rows of all query heads that read it.
 */
#include "host/verify/method.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/interrupt.h"
#include "host/kinds/kinds.h"
#include "host/reference/reference.h"
#include "host/reference/sparse.h"
#include "host/verify/row.h"

#define DEFAULT_MAX_KEPT_BYTES (UINT64_C(64) << 20)

/* Rows whose truth is computed together, at most: more make a key no cheaper. */
enum { MOST_ROWS = 32 };

/* What one thread computes in. */
struct worker_memory {
    reference_scratch scratch;
    reference_row rows[MOST_ROWS];
    reference_row_to to[MOST_ROWS];
    double *vectors;      /* queries, truths and bars of as many rows */
    uint64_t num_vectors; /* doubles */
    double actual[GENERATOR_MAX_DIM];
};

struct attention_verifier {
    struct verify_params params;
    uint32_t num_workers;
    struct worker_memory *workers; /* [num_workers] */
    pthread_mutex_t mutex;         /* guards the result of a check */
};

/* An entry of a call of verify_attention.check, as its tasks see it. */
struct check {
    struct attention_verifier *verifier;
    int64_t first_task; /* of the call's */
    struct verify_result *result;
    const struct verify_step *step;
    const attn_layer_group *group;
    const generator_layer *geometry; /* heads and dimensions as they are attended to */
    const struct verify_scales *scales;
    const attn_tensor *out;
    int32_t layer;
    int32_t form; /* the generator's layer */
    int reads_unquantised;
    attn_dtype operand_dtype;
    uint8_t *failed;       /* [sampled rows] a row fails if one of its heads does */
    int64_t first_sampled; /* the first failure in order of rows, then heads, whatever the */
    int32_t first_head;    /* order in which threads found it; */
    char first_failure[VERIFY_FAILURE_TEXT]; /* "" if none */
};

static attn_status create(const struct verify_params *params, void **self, attn_error *error)
{
    struct attention_verifier *made = calloc(1, sizeof *made);
    uint32_t num_workers = threads_num_workers(params->threads);
    if (made)
        made->workers = calloc(num_workers, sizeof *made->workers);
    if (!made || !made->workers) {
        free(made);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "verification for %u threads",
                         num_workers);
    }
    made->params = *params;
    if (made->params.max_kept_bytes == 0)
        made->params.max_kept_bytes = DEFAULT_MAX_KEPT_BYTES;
    made->num_workers = num_workers;
    for (uint32_t w = 0; w < num_workers; w++)
        reference_scratch_init(&made->workers[w].scratch);
    pthread_mutex_init(&made->mutex, NULL);
    *self = made;
    return ATTN_OK;
}

static void destroy(void *self)
{
    struct attention_verifier *verifier = self;
    for (uint32_t w = 0; w < verifier->num_workers; w++) {
        reference_scratch_finish(&verifier->workers[w].scratch);
        free(verifier->workers[w].vectors);
    }
    pthread_mutex_destroy(&verifier->mutex);
    free(verifier->workers);
    free(verifier);
}

/* ---- Keys and values as a backend reads them ------------------------------------------------- */

struct key_source {
    const struct check *check;
    const struct verify_sequence *sequence;
    struct request_tokens tokens;
    int32_t kv_head;
    int64_t first_new; /* keys from here on are new in this step, or given for it */
};

/* Keys of a verification that are new in it are those of its rows, in their order. */
static token_key key_at(const struct key_source *source, int64_t j)
{
    const struct workload *workload = source->check->verifier->params.workload;
    if (!verify_has_tree(source->sequence))
        return token_key_at(&source->tokens, j);
    struct verify_token token =
        verify_token_of(workload, source->sequence, j - source->sequence->prefix_len);
    struct request_tokens tokens = request_tokens_as(source->tokens, token.request);
    return token_key_at(&tokens, token.position);
}

/* A latent as a packed row holds it; a value is its first part. */
static void read_packed(const struct key_source *source, int64_t j, int32_t dim, double *vector)
{
    const struct check *check = source->check;
    const struct verify_params *params = &check->verifier->params;
    const attn_mla_dims *mla = check->group->mla;
    int8_t raw[GENERATOR_MAX_DIM];
    float given[GENERATOR_MAX_DIM];
    char row[2 * GENERATOR_MAX_DIM]; /* no element takes more than the two bytes of bf16 */
    generator_kv(params->generator, key_at(source, j), check->form, source->kv_head, GENERATOR_KEY,
                 raw);
    for (int32_t d = 0; d < check->geometry->head_dim; d++)
        given[d] = (float)raw[d] / GENERATOR_UNITS;
    reference_mla_pack(mla, ATTN_F32, given, given + mla->kv_lora_rank, row);
    reference_mla_unpack(mla, row, dim, vector);
}

/* A key or a value, rounded to the cache and back unless read as given. */
static void read_vector(const struct key_source *source, int64_t j, int role, int32_t dim,
                        const float *scales, double *vector)
{
    const struct check *check = source->check;
    const struct verify_scales *stored = check->scales;
    int as_given = check->reads_unquantised && j >= source->first_new;
    if (stored->packed && !as_given) {
        read_packed(source, j, dim, vector);
        return;
    }
    generator_kv_numbers(check->verifier->params.generator, key_at(source, j), check->form,
                         source->kv_head, role, vector);
    if (as_given || !dtype_is_fp8(stored->kv_dtype))
        return; /* exact in every wider type: generator.h */
    float scale = scales[stored->count > 1 ? source->kv_head : 0];
    for (int32_t d = 0; d < dim; d++) {
        uint8_t code;
        dtype_quantise(stored->kv_dtype, &code, 0, (float)vector[d], scale);
        vector[d] = dtype_dequantise(stored->kv_dtype, &code, 0, scale);
    }
}

static void read_kv(void *ctx, int64_t j, double *key, double *value)
{
    const struct key_source *source = ctx;
    const struct check *check = source->check;
    const generator_layer *geometry = check->geometry;
    const float *of_values = geometry->latent ? check->scales->k : check->scales->v;
    if (key)
        read_vector(source, j, GENERATOR_KEY, geometry->head_dim, check->scales->k, key);
    if (value)
        read_vector(source, j, GENERATOR_VALUE, geometry->v_head_dim, of_values, value);
}

/* ---- Which keys a row sees ------------------------------------------------------------------- */

/* For a tree whose rows have other positions than their order: their positions, and the rows that
 * each one sees. */
struct tree_view {
    int32_t positions[DRAFTS_MAX_TOKENS];
    uint8_t seen[DRAFTS_MAX_TOKENS][DRAFTS_MAX_TOKENS / 8]; /* bits */
};

/* A row of a chain sees what any other row sees. */
static bool is_chain(const struct verify_sequence *sequence)
{
    for (int64_t t = 0; verify_has_tree(sequence) && t < sequence->num_rows; t++)
        if (sequence->tree.depth[t] != t)
            return false;
    return true;
}

static void view_tree(const struct verify_sequence *sequence, struct tree_view *view)
{
    const struct draft_tree *tree = &sequence->tree;
    for (int64_t t = 0; t < sequence->num_rows; t++) {
        if (t == 0)
            memset(view->seen[t], 0, sizeof view->seen[t]);
        else
            memcpy(view->seen[t], view->seen[tree->parent[t]], sizeof view->seen[t]);
        view->seen[t][t / 8] |= (uint8_t)(1u << t % 8);
        view->positions[t] = (int32_t)sequence->prefix_len + tree->depth[t];
    }
}

/* The first key before the step that a row may see: the oracle looks at each key from there on. */
static int64_t first_seen(const reference_sight *sight)
{
    int64_t first = 0;
    if (sight->window_left >= 0)
        first = sight->position - sight->window_left;
    if (sight->attention_chunk > 0) {
        int64_t chunk = sight->position / sight->attention_chunk * sight->attention_chunk;
        first = chunk > first ? chunk : first;
    }
    return first < sight->prefix_len ? first : sight->prefix_len;
}

static void see_tree(const struct verify_sequence *sequence, const struct tree_view *view,
                     int64_t t, reference_sight *sight)
{
    sight->mask_kind = ATTN_MASK_QLEN;
    sight->prefix_len = sequence->prefix_len;
    sight->mask_bits = view->seen[t];
    sight->mask_columns = sequence->num_rows;
    sight->key_positions = view->positions;
    sight->first_key = first_seen(sight);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static void describe_row(const struct check *check, int64_t kv_len, int64_t position, int32_t head,
                         reference_row *row)
{
    const attn_layer_group *group = check->group;
    *row = reference_row_of(group);
    row->head_dim = check->geometry->head_dim;
    row->v_head_dim = check->geometry->v_head_dim;
    row->kv_len = kv_len;
    if (group->flags & ATTN_GROUP_HAS_ALIBI)
        row->alibi_slope =
            generator_rank_slope(check->verifier->params.generator, head, group->num_q_heads);
    row->has_sink = (group->flags & ATTN_GROUP_HAS_SINKS) != 0;
    if (row->has_sink)
        row->sink = generator_sink(check->verifier->params.generator, check->layer, head);
    row->operand_dtype = check->operand_dtype;
    row->values_are_codes = check->scales->packed || dtype_is_fp8(check->scales->kv_dtype);
    row->out_dtype = check->out->dtype;
    row->sight.has_position = group->attn_type != ATTN_TYPE_CROSS;
    row->sight.position = position;
    row->sight.window_left = group->window_left;
    row->sight.window_right = group->window_right;
    row->sight.attention_chunk = group->attention_chunk;
}

/* Is this failure before the one that is noted? */
static int is_first(const struct check *check, int64_t sampled, int32_t head)
{
    return !check->first_failure[0] || sampled < check->first_sampled ||
           (sampled == check->first_sampled && head < check->first_head);
}

/* Add one head's verdict to the result; the row fails if one of its heads does. */
static void record(struct check *check, const struct verify_sequence *sequence, int64_t sampled,
                   int32_t head, const struct row_verdict *found)
{
    struct attention_verifier *verifier = check->verifier;
    pthread_mutex_lock(&verifier->mutex);
    row_verdict_add_error(found, check->result);
    if (found->verdict.code != REFERENCE_PASS) {
        check->failed[sampled] = 1;
        if (is_first(check, sampled, head)) {
            check->first_sampled = sampled;
            check->first_head = head;
            row_verdict_text(found, sequence, check->step->sampled[sampled], check->layer, head,
                             check->first_failure);
        }
    }
    pthread_mutex_unlock(&verifier->mutex);
}

/* The keys that the layer's rows of a sequence see at most: its own, or those of its encoder. */
static int64_t count_keys(const struct check *check, const struct verify_sequence *sequence)
{
    return check->group->attn_type == ATTN_TYPE_CROSS ? sequence->encoder_len
                                                      : sequence->prefix_len + sequence->num_rows;
}

/* Of these the first that is new in this step, or given for it. */
static int64_t first_new_key(const struct check *check, const struct verify_sequence *sequence)
{
    if (check->group->attn_type == ATTN_TYPE_CROSS)
        return sequence->encoder_len - sequence->encoder_new;
    return check->form == check->layer ? sequence->prefix_len : 0;
}

/* Rows of one KV head's keys: row n is sampled row n / heads, query head first_head + n % heads. */
struct head_rows {
    struct check *check;
    const struct verify_sequence *sequence;
    const struct tree_view *view; /* NULL = its rows are no tree, or a chain */
    int32_t first_head, heads;
    int64_t count;
    const uint8_t *chosen; /* a sparse layer's: the keys of its one sampled row; NULL = all */
};

static int64_t sampled_of(const struct head_rows *rows, int64_t n)
{
    return rows->sequence->first_sampled + n / rows->heads;
}

static int32_t head_of(const struct head_rows *rows, int64_t n)
{
    return rows->first_head + (int32_t)(n % rows->heads);
}

/* Index in its sequence. */
static int64_t row_of(const struct head_rows *rows, int64_t n)
{
    return rows->check->step->sampled[sampled_of(rows, n)];
}

/* How many of them at once: what a row keeps of each key is bounded. */
static int64_t choose_together(const struct head_rows *rows)
{
    uint64_t bytes = reference_row_scratch(count_keys(rows->check, rows->sequence)) + 1;
    uint64_t most = rows->check->verifier->params.max_kept_bytes / bytes;
    most = most < 1 ? 1 : most > MOST_ROWS ? MOST_ROWS : most;
    return (int64_t)most < rows->count ? (int64_t)most : rows->count;
}

static attn_status make_room(const struct head_rows *rows, int64_t together,
                             struct worker_memory *memory)
{
    const generator_layer *geometry = rows->check->geometry;
    uint64_t of_row = (uint64_t)geometry->head_dim + 2 * (uint64_t)geometry->v_head_dim;
    uint64_t needed = of_row * (uint64_t)together;
    if (needed <= memory->num_vectors)
        return ATTN_OK;
    free(memory->vectors);
    memory->vectors = malloc(needed * sizeof *memory->vectors);
    memory->num_vectors = memory->vectors ? needed : 0;
    return memory->vectors ? ATTN_OK : ATTN_OUT_OF_HOST_MEMORY;
}

/* Describe row `n`, make its query, say where its truth goes: to place `i` of the memory. */
static void set_row(const struct head_rows *rows, int64_t n, int64_t i,
                    struct worker_memory *memory)
{
    const struct check *check = rows->check;
    const struct verify_params *params = &check->verifier->params;
    int32_t dim = check->geometry->head_dim, v_dim = check->geometry->v_head_dim;
    double *query = memory->vectors + i * (dim + 2 * (int64_t)v_dim);
    int16_t raw[GENERATOR_MAX_DIM];
    struct verify_token token = verify_token_of(params->workload, rows->sequence, row_of(rows, n));
    generator_query(params->generator, params->workload, token.request, token.position, check->form,
                    head_of(rows, n), raw);
    for (int32_t d = 0; d < dim; d++)
        query[d] = (double)raw[d] / GENERATOR_UNITS;
    describe_row(check, count_keys(check, rows->sequence), token.position, head_of(rows, n),
                 &memory->rows[i]);
    if (rows->view)
        see_tree(rows->sequence, rows->view, row_of(rows, n), &memory->rows[i].sight);
    if (rows->chosen) {
        memory->rows[i].sight = reference_sight_all();
        memory->rows[i].sight.position = token.position;
        memory->rows[i].sight.chosen = rows->chosen;
    }
    memory->rows[i].query = query;
    memory->to[i].out = query + dim;
    memory->to[i].bars = query + dim + v_dim;
}

static void judge_row(const struct head_rows *rows, int64_t n, int64_t i,
                      struct worker_memory *memory)
{
    struct check *check = rows->check;
    const struct verify_sequence *sequence = rows->sequence;
    const reference_row_to *to = &memory->to[i];
    int64_t sampled = sampled_of(rows, n), t = check->step->sampled[sampled];
    struct row_verdict found;
    row_verdict_make(check->out, check->step->compact ? sampled : sequence->first_row + t,
                     head_of(rows, n), to->out, to->bars, check->geometry->v_head_dim, &to->result,
                     memory->actual, &found);
    record(check, sequence, sampled, head_of(rows, n), &found);
}

static attn_status check_head_rows(const struct head_rows *rows, const reference_kv *kv,
                                   struct worker_memory *memory)
{
    int64_t together = choose_together(rows);
    attn_status status = make_room(rows, together, memory);
    for (int64_t n = 0; n < rows->count && status == ATTN_OK && !interrupt_seen(); n += together) {
        int64_t count = rows->count - n < together ? rows->count - n : together;
        for (int64_t i = 0; i < count; i++)
            set_row(rows, n + i, i, memory);
        status = reference_rows_compute(memory->rows, (int32_t)count, kv, &memory->scratch,
                                        memory->to, NULL);
        for (int64_t i = 0; i < count && status == ATTN_OK; i++)
            judge_row(rows, n + i, i, memory);
    }
    return status;
}

/* ---- Keys that are chosen -------------------------------------------------------------------- */

/* Memory for judging choices, for one row after the other. */
struct choice_memory {
    double *q, *weights, *label; /* of the indexer */
    double *logits, *bars;       /* [kv_len] */
    int64_t *keys;               /* [most_chosen] */
    uint8_t *chosen;             /* [kv_len] */
};

static attn_status choice_memory_init(struct choice_memory *made, const struct check *check,
                                      int64_t kv_len)
{
    const attn_sparse_dims *sparse = check->group->sparse;
    size_t heads = (size_t)sparse->index_heads, dim = (size_t)sparse->label_dim;
    size_t len = (size_t)kv_len + 1;
    *made = (struct choice_memory){
        .q = calloc(heads * dim + 1, sizeof(double)),
        .weights = calloc(heads + 1, sizeof(double)),
        .label = calloc(dim + 1, sizeof(double)),
        .logits = calloc(len, sizeof(double)),
        .bars = calloc(len, sizeof(double)),
        .keys = calloc((size_t)check->step->most_chosen + 1, sizeof(int64_t)),
        .chosen = calloc(len, 1),
    };
    return made->q && made->weights && made->label && made->logits && made->bars && made->keys &&
                   made->chosen
               ? ATTN_OK
               : ATTN_OUT_OF_HOST_MEMORY;
}

static void choice_memory_finish(struct choice_memory *made)
{
    free(made->q);
    free(made->weights);
    free(made->label);
    free(made->logits);
    free(made->bars);
    free(made->keys);
    free(made->chosen);
}

static void make_index(const struct check *check, token_key key, int32_t head, uint32_t role,
                       int32_t dim, double *to)
{
    int16_t raw[GENERATOR_MAX_DIM];
    sparse_index_raw(check->verifier->params.generator, key, check->form, head, role, dim, raw);
    for (int32_t d = 0; d < dim; d++)
        to[d] = (double)raw[d] / GENERATOR_UNITS;
}

/* A head of an index query, which its type may have rounded (e4m3). */
static void make_index_query(const struct check *check, token_key key, int32_t head, double *to)
{
    const attn_sparse_dims *sparse = check->group->sparse;
    make_index(check, key, head, ATTN_ROLE_INDEX_Q, sparse->label_dim, to);
    for (int32_t d = 0; d < sparse->label_dim; d++)
        to[d] = dtype_round(sparse->index_dtype, to[d]);
}

/* A label as it is read from the cache. */
static void read_label(void *ctx, int64_t j, double *label)
{
    const struct key_source *source = ctx;
    const attn_sparse_dims *sparse = source->check->group->sparse;
    make_index(source->check, key_at(source, j), 0, ATTN_ROLE_INDEX_K, sparse->label_dim, label);
    reference_label_round(sparse, label);
}

/* The logit of each key for a row's indexer, and its bar: memory->logits and bars. */
static void compute_logits(const struct head_rows *rows, struct key_source *source, int64_t t,
                           struct choice_memory *memory)
{
    const struct check *check = rows->check;
    const attn_sparse_dims *sparse = check->group->sparse;
    const struct verify_params *params = &check->verifier->params;
    struct verify_token token = verify_token_of(params->workload, rows->sequence, t);
    struct request_tokens tokens = request_tokens_as(source->tokens, token.request);
    token_key key = token_key_at(&tokens, token.position);
    reference_row row;
    describe_row(check, count_keys(check, rows->sequence), token.position, 0, &row);
    if (rows->view)
        see_tree(rows->sequence, rows->view, t, &row.sight);
    for (int32_t h = 0; h < sparse->index_heads; h++)
        make_index_query(check, key, h, memory->q + (int64_t)h * sparse->label_dim);
    make_index(check, key, 0, ATTN_ROLE_INDEX_WEIGHTS, sparse->index_heads, memory->weights);
    const reference_index index = {
        .heads = sparse->index_heads,
        .dim = sparse->label_dim,
        .top_k = sparse->top_k,
        .multiplies_codes = dtype_is_fp8(sparse->index_dtype) && dtype_is_fp8(sparse->label_dtype),
        .kv_len = row.kv_len,
        .q = memory->q,
        .weights = memory->weights,
        .sight = row.sight,
    };
    const reference_labels labels = {.read = read_label, .ctx = source};
    reference_index_logits(&index, &labels, memory->label, memory->logits, memory->bars);
}

/* A choice that is wrong fails its row, before any head. */
static void record_choice(struct check *check, const struct verify_sequence *sequence,
                          int64_t sampled, const reference_choice *choice)
{
    struct attention_verifier *verifier = check->verifier;
    char place[VERIFY_PLACE_TEXT], text[REFERENCE_CHOICE_TEXT];
    if (choice->code == REFERENCE_CHOICE_RIGHT)
        return;
    verify_place_text(sequence, check->step->sampled[sampled], place);
    reference_choice_text(choice, text);
    pthread_mutex_lock(&verifier->mutex);
    check->failed[sampled] = 1;
    if (is_first(check, sampled, -1)) {
        check->first_sampled = sampled;
        check->first_head = -1;
        snprintf(check->first_failure, sizeof check->first_failure, "%s, layer %d: %.130s", place,
                 check->layer, text);
    }
    pthread_mutex_unlock(&verifier->mutex);
}

/* The keys of a sampled row, judged by its logits where the layer chooses itself. */
static void judge_choice(const struct head_rows *rows, struct key_source *source,
                         struct choice_memory *memory)
{
    struct check *check = rows->check;
    const struct verify_step *step = check->step;
    const int64_t sampled = rows->sequence->first_sampled;
    const int64_t kv_len = count_keys(check, rows->sequence);
    const int32_t *entries = step->chosen + sampled * step->most_chosen;
    int32_t count = 0;
    for (int32_t n = 0; n < step->most_chosen; n++)
        if (entries[n] != VERIFY_NO_ENTRY)
            memory->keys[count++] = entries[n];
    if (check->group->sparse->index_heads > 0)
        compute_logits(rows, source, step->sampled[sampled], memory);
    reference_choice choice =
        reference_judge_choice(memory->logits, memory->bars, kv_len, step->most_chosen,
                               memory->keys, count, memory->chosen);
    if (check->group->sparse->index_heads > 0)
        record_choice(check, rows->sequence, sampled, &choice);
}

/* Sampled rows one by one, each with its own keys. */
static attn_status check_chosen_rows(const struct head_rows *all, struct key_source *source,
                                     const reference_kv *kv, struct worker_memory *worker)
{
    struct choice_memory memory;
    struct verify_sequence one = *all->sequence;
    struct head_rows rows = *all;
    attn_status status =
        choice_memory_init(&memory, all->check, count_keys(all->check, all->sequence));
    rows.sequence = &one;
    rows.count = all->heads;
    rows.chosen = memory.chosen;
    for (int64_t n = 0; n < all->sequence->num_sampled && status == ATTN_OK && !interrupt_seen();
         n++) {
        one.first_sampled = all->sequence->first_sampled + n;
        judge_choice(&rows, source, &memory);
        status = check_head_rows(&rows, kv, worker);
    }
    choice_memory_finish(&memory);
    return status;
}

/* Tasks of an entry: sequence * num_kv_heads + KV head. */
static int64_t count_tasks(const struct check *check)
{
    return check->step->num_sequences * check->geometry->num_kv_heads;
}

static attn_status check_entry_task(struct check *check, int64_t task, uint32_t worker)
{
    const generator_layer *geometry = check->geometry;
    const struct verify_sequence *sequence = &check->step->sequences[task / geometry->num_kv_heads];
    int32_t kv_head = (int32_t)(task % geometry->num_kv_heads);
    int32_t heads = geometry->num_q_heads / geometry->num_kv_heads;
    struct tree_view view;
    struct head_rows rows = {
        .check = check,
        .sequence = sequence,
        .first_head = kv_head * heads,
        .heads = heads,
        .count = sequence->num_sampled * heads,
    };
    struct key_source source = {
        .check = check,
        .sequence = sequence,
        .tokens = workload_tokens(check->verifier->params.workload, sequence->request),
        .kv_head = kv_head,
        .first_new = first_new_key(check, sequence),
    };
    const reference_kv kv = {.read = read_kv, .ctx = &source};
    if (rows.count == 0)
        return ATTN_OK;
    if (!is_chain(sequence)) {
        view_tree(sequence, &view);
        rows.view = &view;
    }
    if (check->step->chosen)
        return check_chosen_rows(&rows, &source, &kv, &check->verifier->workers[worker]);
    return check_head_rows(&rows, &kv, &check->verifier->workers[worker]);
}

/* Does the backend read the new keys of this step as given, not as stored? Without a cache there is
 * nothing stored; a layer that only reads the cache of another is given no keys. */
static int reads_unquantised(const struct verify_params *params, int32_t layer, uint32_t mode)
{
    uint32_t g = params->model->layers[layer].group;
    if (!model_group_has_kv(&params->model->groups[g]))
        return 1;
    return operands_write_kv(params->model, layer) &&
           (params->reads_new_unquantised[g] & ATTN_MODE_BIT(mode)) != 0;
}

static int64_t count_sampled(const struct verify_step *step)
{
    int64_t count = 0;
    for (int64_t s = 0; s < step->num_sequences; s++)
        count += step->sequences[s].num_sampled;
    return count;
}

/* All entries of a call. */
struct call {
    struct check *checks;
    int64_t count;
};

static attn_status check_task(void *arg, int64_t task, uint32_t worker)
{
    const struct call *call = arg;
    int64_t e = 0;
    while (e + 1 < call->count && call->checks[e + 1].first_task <= task)
        e++;
    return check_entry_task(&call->checks[e], task - call->checks[e].first_task, worker);
}

static attn_status begin_check(struct attention_verifier *verifier, struct verify_entry *entry,
                               struct check *check, attn_error *error)
{
    const struct verify_params *params = &verifier->params;
    int32_t layer = entry->layer;
    uint32_t g = params->model->layers[layer].group;
    int32_t form = operands_form(params->model, layer, entry->step.mode);
    int64_t num_sampled = count_sampled(&entry->step);
    *check = (struct check){
        .verifier = verifier,
        .first_task = check->first_task,
        .result = &entry->result,
        .step = &entry->step,
        .group = &params->model->groups[g],
        .geometry = &params->generator->layers[form],
        .scales = &params->scales[g],
        .out = &entry->out,
        .layer = layer,
        .form = form,
        .reads_unquantised = form != layer || reads_unquantised(params, layer, entry->step.mode),
        .failed = calloc((size_t)num_sampled + 1, 1),
        .operand_dtype = params->model->dtype,
    };
    return check->failed ? ATTN_OK
                         : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "verification of %lld rows",
                                     (long long)num_sampled);
}

static void end_check(struct check *check)
{
    int64_t num_sampled = check->failed ? count_sampled(check->step) : 0;
    for (int64_t s = 0; s < num_sampled; s++)
        check->result->rows_failed += check->failed[s];
    if (check->failed)
        memcpy(check->result->first_failure, check->first_failure, sizeof check->first_failure);
    free(check->failed);
}

static attn_status check_entries(void *self, struct verify_entry *entries, int64_t count,
                                 attn_error *error)
{
    struct attention_verifier *verifier = self;
    struct call call = {calloc((size_t)count, sizeof *call.checks), count};
    attn_status status = ATTN_OK;
    int64_t tasks = 0;
    if (!call.checks)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "verification of %lld layers",
                         (long long)count);
    for (int64_t e = 0; e < count && status == ATTN_OK; e++) {
        call.checks[e].first_task = tasks;
        status = begin_check(verifier, &entries[e], &call.checks[e], error);
        if (status == ATTN_OK)
            tasks += count_tasks(&call.checks[e]);
    }
    if (status == ATTN_OK) {
        status = threads_for(verifier->params.threads, tasks, check_task, &call);
        if (status != ATTN_OK)
            host_fail(error, status, "verification of layers %d to %d: %s", entries[0].layer,
                      entries[count - 1].layer, host_status_name(status));
    }
    for (int64_t e = 0; e < count; e++)
        end_check(&call.checks[e]);
    free(call.checks);
    return status;
}

const struct verify_method verify_attention = {create, destroy, check_entries};
