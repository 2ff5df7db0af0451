/* SPDX-License-Identifier: Apache-2.0
 *
 * scheduler_fixture.c: a scheduler, its requests and a cache of token keys.
 */
#include "tests/host/schedule/scheduler_fixture.h"

#include <string.h>

#include "attn_problem.h"
#include "host/base/mix.h"
#include "host/base/text.h"

struct source source;
struct model model;
struct scheduler_params params;
struct scheduler *scheduler;
host_error failure;
bool passes_late;

static token_key key_of(int64_t request, int64_t position)
{
    int64_t block = position / source.block_size;
    if (block < source.requests[request].num_whole)
        return token_key_of_block(source.requests[request].hash_ids[block],
                                  position % source.block_size);
    return token_key_of_request(request, position);
}

static void get_keys(void *context, int64_t request, int64_t position, int64_t count,
                     token_key *keys)
{
    require(context == &source, "context", request);
    for (int64_t i = 0; i < count; i++)
        keys[i] = key_of(request, position + i);
}

void set_up(void)
{
    memset(&source, 0, sizeof source);
    memset(&model, 0, sizeof model);
    passes_late = false;
    source.block_size = 1;
    params = (struct scheduler_params){
        .page_size = 1,
        .num_pages = 1025,
        .max_running_requests = 4,
        .max_context_len = MAX_CONTEXT,
        .prefix_cache = true,
        .keys = get_keys,
        .keys_context = &source,
    };
    host_error_init(&failure);
}

void tear_down(void)
{
    scheduler_destroy(scheduler);
    scheduler = NULL;
}

void add_to_source(int64_t input, int64_t output, const char *blocks)
{
    int64_t request = source.num_requests++;
    source.requests[request].input = input;
    source.requests[request].output = output;
    for (; *blocks; blocks++)
        source.requests[request].hash_ids[source.requests[request].num_whole++] = *blocks;
}

void add_requests(const char *words)
{
    long long input, output;
    char blocks[MAX_BLOCKS + 1];
    for (int end = 0; sscanf(words, " %lld+%lld%n", &input, &output, &end) == 2; words += end) {
        int length = 0;
        blocks[0] = '\0';
        if (words[end] == ':' && sscanf(words + end, ":%8s%n", blocks, &length) == 1)
            end += length;
        add_to_source(input, output, blocks);
    }
    ck_assert_str_eq(words, "");
}

attn_status add(int64_t request)
{
    struct scheduler_request added = {
        .input_length = source.requests[request].input,
        .output_length = source.requests[request].output,
        .shareable_length = source.requests[request].num_whole * source.block_size,
        .arrival_us = source.requests[request].arrival_us,
    };
    return scheduler_add(scheduler, &added, &failure.base);
}

void create_empty(void)
{
    params.share_unit = source.block_size;
    attn_status status = scheduler_create(&params, &scheduler, &failure.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&failure));
}

void create_with(const char *requests)
{
    add_requests(requests);
    create();
}

void create(void)
{
    create_empty();
    for (int64_t i = 0; i < source.num_requests; i++)
        ck_assert_msg(add(i) == ATTN_OK, "%s", host_error_text(&failure));
}

int64_t rows_of(int64_t request)
{
    int64_t output = source.requests[request].output;
    return source.requests[request].input + (output > 0 ? output - 1 : 0);
}

/* ---- Random workloads ------------------------------------------------------------------------ */

uint64_t draws;

int64_t draw(int64_t below)
{
    return (int64_t)(mix_stream(23, draws++) % (uint64_t)below);
}

void draw_source(int64_t num_requests, int64_t most_output)
{
    for (int64_t i = 0; i < num_requests; i++) {
        char blocks[MAX_BLOCKS + 1] = "";
        int64_t input = 1 + draw(90), most = input / source.block_size;
        int64_t num_whole = most < MAX_BLOCKS ? most : MAX_BLOCKS;
        for (int64_t j = 0; j < num_whole; j++)
            blocks[j] = (char)('a' + j * 3 + (draw(3) == 0 ? draw(3) : 0));
        add_to_source(input, draw(4) ? draw(most_output) : draw(2), blocks);
    }
}

const int32_t page_sizes[3] = {1, 3, 16};
const int32_t chunk_sizes[4] = {0, 1, 7, 64};

int64_t first_seen(int64_t position)
{
    int64_t first = position;
    while (first > 0 &&
           ((params.window.left >= 0 && position - (first - 1) <= params.window.left) ||
            (params.window.chunk > 0 &&
             (first - 1) / params.window.chunk == position / params.window.chunk)))
        first--;
    return first;
}

void set_window(int variant)
{
    static const struct scheduler_window windows[] = {{0, 0, 0}, {0, 7, 0}, {0, 0, 0},  {0, -1, 16},
                                                      {0, 0, 0}, {0, 0, 0}, {0, 30, 5}, {0, 1, 0}};
    params.window = windows[(variant + variant / 8 + variant / 64) % 8];
    if (params.window.left == 0 && variant % 5 > 0)
        return;
    params.window.num_pages =
        scheduler_window_pages(&params, 12) + 1 + (80 + variant % 7 * 20) / params.page_size;
}

void set_variant(int variant)
{
    params.page_size = page_sizes[variant % 3];
    params.chunked_prefill_size = chunk_sizes[variant / 3 % 4];
    params.mixed = variant / 12 % 2;
    params.max_running_requests = variant / 24 % 2 ? 3 : MAX_ROWS - 1;
    params.num_pages = 200 / params.page_size + 1;
    params.has_state = variant / 48 > 0;
    params.num_cached_states = variant / 48 == 1 ? 40 : 3;
    params.await_prefix = (variant + variant / 3 + variant / 12) % 2;
    source.block_size = variant % 2 ? 11 : 5;
    set_window(variant);
    draws = (uint64_t)variant << 32 | 5;
    draw_source(MAX_REQUESTS / 2, 100);
}

void set_cross_variant(int variant)
{
    static const int32_t lengths[] = {1, 30, 16, 7, 100};
    set_variant(variant);
    params.prefix_cache = false;
    params.cross_len = lengths[variant % 7 % 5];
    int32_t pages = (params.cross_len + params.page_size - 1) / params.page_size;
    params.num_encoder_pages = 1 + pages * (1 + variant % 4) + variant % 2;
}

void set_drafted_variant(int variant)
{
    static const double rates[] = {0.5, 0, 0.8, 1, 0.9};
    set_variant(variant % 12 + variant / 12 % 2 * 24 + variant / 24 * 48);
    params.num_pages++; /* drafts are beyond the end of the longest */
    params.drafts = (struct drafts){
        .tokens = 2 + variant % 5, .top_k = 1, .rate = rates[variant % 7 % 5], .seed = 3};
    if (!params.has_state && variant % 4 > 0 && params.drafts.tokens > variant % 4)
        params.drafts.top_k = variant % 4;
    params.draft_model = variant % 3 > 0;
}

/* ---- Running steps --------------------------------------------------------------------------- */

static void absorb(int64_t word)
{
    model.hash = mix_absorb(model.hash, (uint64_t)word);
}

/* A sequence whose prefix is not what it had computed has started (again). */
static void note_start(struct tally *tally, const struct scheduler_seq *seq)
{
    int64_t request = seq->request;
    if (seq->prefix_len == tally->computed[request])
        return;
    for (int pool = 0; pool < SCHEDULER_POOLS; pool++)
        require(seq->table_changed[pool] == 0, "starts with a stale row", request);
    require(seq->prefix_len % params.page_size == 0, "hit in the middle of a page", request);
    if (seq->prefix_len > tally->mark[request]) {
        tally->prefix_hit += seq->prefix_len - tally->mark[request];
        tally->mark[request] = seq->prefix_len;
    }
}

int32_t committed_of(const struct scheduler_step *step, int32_t seq)
{
    if (step->mode == ATTN_MODE_DRAFT_EXTEND)
        return TALLY_DRAFT_EXTEND;
    if (step->trees)
        return step->trees[seq].committed;
    return seq < step->num_seqs - step->num_decode_seqs ? TALLY_PROMPT : 1;
}

/* Rows of a request that decodes, in one step. */
static int32_t decode_rows(void)
{
    return params.drafts.tokens > 0 ? params.drafts.tokens : 1;
}

void tally_seq(struct tally *tally, const struct scheduler_seq *seq, int32_t committed)
{
    int64_t request = seq->request;
    int32_t input = (int32_t)source.requests[request].input, mark = tally->mark[request];
    int32_t target = mark > input ? mark : input, length = seq->prefix_len + seq->num_new;
    require(seq->num_new >= 1, "no row", request);
    if (committed == TALLY_DRAFT_EXTEND) {
        require(length == tally->computed[request], "rows that are not the last ones", request);
        return;
    }
    note_start(tally, seq);
    if (committed > 0) {
        require(seq->num_new == decode_rows() && seq->prefix_len >= input, "not decode rows",
                request);
        require(seq->prefix_len == mark, "a decode row that it had already", request);
        length = seq->prefix_len + committed;
        require(committed <= seq->num_new && length <= rows_of(request), "too many stay", request);
        tally->decode += committed;
    } else {
        require(length <= target, "prefill beyond the rows it had", request);
        for (int32_t position = seq->prefix_len; position < length; position++) {
            tally->prefill++;
            tally->recomputed += position < mark;
        }
    }
    tally->mark[request] = mark > length ? mark : length;
    tally->computed[request] = length;
}

/* The keys that a sequence's rows write: of a verification those of its path alone are real. */
static void write_keys(int pool, const struct scheduler_seq *seq, const struct draft_tree *tree,
                       const int64_t *out_cache_loc)
{
    for (int32_t i = 0; i < seq->num_new; i++)
        model.kv[pool][out_cache_loc[i]] =
            tree ? (token_key){UINT64_MAX, (uint64_t)i} : key_of(seq->request, seq->prefix_len + i);
    for (int32_t d = 0; tree && d < tree->committed; d++) {
        require(
            tree->path[d] < seq->num_new && tree->depth[tree->path[d]] == d &&
                (d == 0 ? tree->path[d] == 0 : tree->parent[tree->path[d]] == tree->path[d - 1]),
            "no path", seq->request);
        model.kv[pool][out_cache_loc[tree->path[d]]] = key_of(seq->request, seq->prefix_len + d);
    }
}

static const int32_t *row_of(int pool, const struct scheduler_seq *seq)
{
    return request_table_row(scheduler_request_table(scheduler, pool), seq->row);
}

static void write_rows(int pool, const struct scheduler_seq *seq, const int64_t *out_cache_loc)
{
    const int32_t *row = row_of(pool, seq);
    int64_t num_pages = pool == SCHEDULER_ALL ? params.num_pages : params.window.num_pages;
    int32_t length = seq->prefix_len + seq->num_new, changed = seq->table_changed[pool];
    require(seq->row >= 1 && seq->row <= params.max_running_requests, "no such row", seq->request);
    require(changed <= seq->prefix_len, "new slots not announced", seq->request);
    for (int32_t position = changed; position < length; position++) {
        model.table[pool][seq->row][position] = row[position];
        absorb(row[position]);
    }
    for (int32_t i = 0; i < seq->num_new; i++) {
        int64_t slot = out_cache_loc[i];
        require(slot >= params.page_size && slot < num_pages * params.page_size,
                "slot in the padding page or outside", seq->request);
        require(slot == row[seq->prefix_len + i], "out_cache_loc and table differ", seq->request);
    }
}

/* What is accepted moves; where the other rows were, and what they came from, is of no more use. */
static void move_rows(int pool, const struct scheduler_step *step, int32_t s)
{
    const struct scheduler_seq *seq = &step->seqs[s];
    const struct scheduler_move *moves = step->pools[pool].moves;
    for (int32_t m = step->moves_indptr[s]; m < step->moves_indptr[s + 1]; m++)
        model.kv[pool][moves[m].to] = model.kv[pool][moves[m].from];
    for (int32_t i = step->trees[s].committed; i < seq->num_new; i++)
        memset(&model.kv[pool][row_of(pool, seq)[seq->prefix_len + i]], 0xff, sizeof **model.kv);
}

/* The draft model is given what stayed, once. */
static void note_drafts(const struct scheduler_step *step, int32_t s)
{
    const struct scheduler_seq *seq = &step->seqs[s];
    int64_t request = seq->request;
    if (step->mode == ATTN_MODE_DRAFT_EXTEND) {
        require(seq->num_new == model.undrafted[request], "rows of the draft model", request);
        model.draft_rows += seq->num_new;
    }
    bool through = step->trees && model.rows.mark[request] == rows_of(request);
    model.undrafted[request] = step->trees && !through ? step->trees[s].committed : 0;
}

/* What no row of the sequence sees has no page any more, if it fills one. */
static void read_rows(int pool, const struct scheduler_seq *seq, const struct draft_tree *tree)
{
    int32_t length = seq->prefix_len + seq->num_new;
    const int32_t *row = row_of(pool, seq), *seen = model.table[pool][seq->row];
    int64_t first = pool == SCHEDULER_ALL ? 0 : first_seen(seq->prefix_len);
    first -= first % params.page_size;
    for (int32_t position = 0; position < length; position++) {
        require(seen[position] == row[position], "table changed unseen", seq->request);
        require(position >= first || row[position] == 0 || passes_late, "a page that was passed",
                seq->request);
        if (position >= first && (!tree || position < seq->prefix_len))
            require(token_key_equal(model.kv[pool][seen[position]], key_of(seq->request, position)),
                    "another token's KV", seq->request);
    }
    for (int32_t position = length; position < MAX_CONTEXT; position++)
        require(row[position] == 0, "slot beyond the end", seq->request);
}

/* What the state is after the first `rows` rows of a request. */
static uint64_t state_after(int64_t request, int32_t rows)
{
    uint64_t state = 0;
    for (int32_t i = 0; i < rows; i++) {
        token_key key = key_of(request, i);
        state = mix_absorb(mix_absorb(state, key.a), key.b);
    }
    return state;
}

static void write_state(int32_t slot, uint64_t state, bool *written, int64_t request)
{
    require(slot >= 1 && slot <= scheduler_row_states(&params) + params.num_cached_states &&
                slot < MAX_STATES,
            "no such state slot", request);
    require(!written[slot], "state slot written twice", request);
    written[slot] = true;
    model.state[slot] = state;
}

/* One of the slots of the sequence's row: with drafts there is one more than a verification has
 * rows. */
static bool is_own(const struct scheduler_seq *seq, int32_t slot)
{
    int32_t slots = params.drafts.tokens + 1, first = 1 + (seq->row - 1) * slots;
    return slot >= first && slot < first + slots;
}

/* All states that a step reads lie in slots that it does not write, but for each sequence's own. */
static void check_reads(const struct scheduler_step *step)
{
    for (int32_t i = 0; i < step->num_seqs; i++) {
        const struct scheduler_seq *seq = &step->seqs[i];
        int32_t slot = seq->state_slot;
        absorb(slot);
        require(params.has_state ? is_own(seq, seq->state_dst) : seq->state_dst == 0, "state_dst",
                seq->request);
        absorb(seq->state_dst);
        require(params.has_state || slot == 0, "a state where there are none", seq->request);
        require(slot == 0 || is_own(seq, slot) || slot > scheduler_row_states(&params),
                "another's state", seq->request);
        if (step->mode == ATTN_MODE_DRAFT_EXTEND) {
            require(slot == seq->state_dst, "a state that moves", seq->request);
            continue; /* no recurrent layer runs */
        }
        for (int32_t n = 0; n < step->num_snapshots; n++)
            require(step->snapshots[n].slot != slot, "a snapshot over a state that is read",
                    seq->request);
        if (params.has_state)
            require(slot == 0 ? seq->prefix_len == 0
                              : model.state[slot] == state_after(seq->request, seq->prefix_len),
                    "not the state of its prefix", seq->request);
    }
}

static void run_states(const struct scheduler_step *step)
{
    bool written[MAX_STATES] = {false};
    int32_t row = 0, n = 0;
    check_reads(step);
    if (step->mode == ATTN_MODE_DRAFT_EXTEND)
        return;
    for (int32_t i = 0; i < step->num_seqs && params.has_state; i++) {
        const struct scheduler_seq *seq = &step->seqs[i];
        int32_t real = seq->prefix_len + (step->trees ? step->trees[i].committed : seq->num_new);
        for (; n < step->num_snapshots && step->snapshots[n].row < row + seq->num_new; n++) {
            int32_t rows = seq->prefix_len + step->snapshots[n].row - row + 1;
            require(step->snapshots[n].row >= row &&
                        (n == 0 || step->snapshots[n].row > step->snapshots[n - 1].row),
                    "snapshots out of order", seq->request);
            require(step->trees || rows % params.page_size == 0, "a snapshot within a page",
                    seq->request);
            absorb(step->snapshots[n].slot);
            write_state(step->snapshots[n].slot,
                        rows <= real ? state_after(seq->request, rows) : UINT64_MAX, written,
                        seq->request);
        }
        row += seq->num_new;
        int32_t rows = seq->prefix_len + seq->num_new;
        write_state(seq->state_dst, rows <= real ? state_after(seq->request, rows) : UINT64_MAX,
                    written, seq->request);
    }
    require(n == step->num_snapshots, "a snapshot of no row", -1);
}

static void check_shape(const struct scheduler_step *step)
{
    int32_t tokens = 0, q_len = 0, kv_len = 0;
    for (int32_t i = 0; i < step->num_seqs; i++) {
        const struct scheduler_seq *seq = &step->seqs[i];
        int32_t length = seq->prefix_len + seq->num_new;
        tokens += seq->num_new;
        q_len = seq->num_new > q_len ? seq->num_new : q_len;
        kv_len = length > kv_len ? length : kv_len;
    }
    int32_t extends = step->num_seqs - step->num_decode_seqs;
    bool drafts = params.drafts.tokens > 0;
    uint32_t mode = extends == 0                 ? ATTN_MODE_DECODE
                    : step->num_decode_seqs == 0 ? ATTN_MODE_EXTEND
                                                 : ATTN_MODE_MIXED;
    int64_t first = step->seqs[0].request;
    if (mode == ATTN_MODE_DECODE && drafts)
        mode = ATTN_MODE_TARGET_VERIFY;
    if (model.undrafted[first] > 0 && params.draft_model)
        mode = ATTN_MODE_DRAFT_EXTEND;
    require((step->trees != NULL) == (mode == ATTN_MODE_TARGET_VERIFY), "trees", first);
    require(step->mode == mode && (params.mixed || mode != ATTN_MODE_MIXED), "mode", first);
    require(step->num_tokens == tokens && tokens <= scheduler_max_tokens(scheduler), "num_tokens",
            first);
    require(step->max_q_len == q_len && step->max_kv_len == kv_len, "longest", first);
    require(step->num_seqs <= params.max_running_requests, "num_seqs", first);
    require(params.chunked_prefill_size <= 0 || mode == ATTN_MODE_TARGET_VERIFY ||
                mode == ATTN_MODE_DRAFT_EXTEND ||
                tokens - step->num_decode_seqs <= params.chunked_prefill_size,
            "chunk", first);
    model.mixed_steps += mode == ATTN_MODE_MIXED;
}

/* A pool's part of a step: all rows are written, then all are read. */
static void run_pool(int pool, const struct scheduler_step *step)
{
    const int64_t *out_cache_loc = step->pools[pool].out_cache_loc;
    const int32_t *padding = request_table_row(scheduler_request_table(scheduler, pool), 0);
    for (int32_t i = 0; i < step->num_seqs; i++) {
        const struct scheduler_seq *seq = &step->seqs[i];
        absorb(seq->table_changed[pool]);
        write_rows(pool, seq, out_cache_loc);
        if (step->mode != ATTN_MODE_DRAFT_EXTEND)
            write_keys(pool, seq, step->trees ? &step->trees[i] : NULL, out_cache_loc);
        out_cache_loc += seq->num_new;
    }
    for (int32_t i = 0; i < step->num_seqs; i++)
        read_rows(pool, &step->seqs[i], step->trees ? &step->trees[i] : NULL);
    for (int32_t i = 0; step->trees && i < step->num_seqs; i++)
        move_rows(pool, step, i);
    for (int32_t j = 0; j < MAX_CONTEXT; j++)
        require(padding[j] == 0, "row 0", -1);
}

/* The key at a position of a request's encoder. */
static token_key encoder_key_of(int64_t request, int32_t position)
{
    return (token_key){UINT64_MAX - 1 - (uint64_t)request, (uint64_t)position};
}

/* Returns where the next sequence's slots are. */
static const int64_t *write_encoder(const struct scheduler_seq *seq, const int64_t *out_cache_loc)
{
    const int32_t *row = row_of(SCHEDULER_ENCODER, seq);
    require(seq->encoder_len == params.cross_len, "keys of the encoder", seq->request);
    require(seq->encoder_new == (seq->prefix_len == 0 ? params.cross_len : 0),
            "new keys of the encoder", seq->request);
    for (int32_t j = 0; j < seq->encoder_new; j++) {
        int64_t slot = out_cache_loc[j];
        require(slot >= params.page_size && slot < params.num_encoder_pages * params.page_size &&
                    slot == row[j],
                "slot of the encoder", seq->request);
        absorb(slot);
        model.kv[SCHEDULER_ENCODER][slot] = encoder_key_of(seq->request, j);
    }
    return out_cache_loc + seq->encoder_new;
}

static void read_encoder(const struct scheduler_seq *seq)
{
    const int32_t *row = row_of(SCHEDULER_ENCODER, seq);
    for (int32_t j = 0; j < params.cross_len; j++)
        require(
            token_key_equal(model.kv[SCHEDULER_ENCODER][row[j]], encoder_key_of(seq->request, j)),
            "another encoder's key", seq->request);
    for (int32_t j = params.cross_len; j < MAX_CONTEXT; j++)
        require(row[j] == 0, "slot beyond the encoder's keys", seq->request);
}

/* The part of a step that is the encoder's pool's. */
static void run_encoder(const struct scheduler_step *step)
{
    const int64_t *first = step->pools[SCHEDULER_ENCODER].out_cache_loc, *end = first;
    int32_t chunk = params.chunked_prefill_size, longest = params.cross_len;
    for (int32_t i = 0; i < step->num_seqs; i++)
        end = write_encoder(&step->seqs[i], end);
    for (int32_t i = 0; i < step->num_seqs; i++)
        read_encoder(&step->seqs[i]);
    require(step->num_encoder_new == end - first, "num_encoder_new", -1);
    require(step->num_encoder_new <= (chunk > longest ? chunk : longest),
            "more keys of encoders than a step of theirs has", -1);
}

/* First tokens of whole pages, of those that both sequences had before the step, whose KV is the
 * same. */
static int32_t common_len(const struct scheduler_seq *a, const struct scheduler_seq *b)
{
    const struct request_table *table = scheduler_request_table(scheduler, SCHEDULER_ALL);
    const int32_t *x = request_table_row(table, a->row), *y = request_table_row(table, b->row);
    int32_t most = a->prefix_len < b->prefix_len ? a->prefix_len : b->prefix_len, page = 0;
    while ((page + 1) * params.page_size <= most &&
           x[page * params.page_size] == y[page * params.page_size])
        page++;
    return page * params.page_size;
}

/* Each sequence that decodes says what it shares with the one before it, and shares no more with
 * those before that one. */
static void check_neighbours(const struct scheduler_step *step)
{
    int32_t first = step->num_seqs - step->num_decode_seqs;
    for (int32_t i = 0; i < step->num_seqs; i++) {
        int32_t least = step->seqs[i].shared_len;
        if (i <= first)
            require(least == 0, "shares a prefix with no sequence", step->seqs[i].request);
        for (int32_t j = i; j-- > first;) {
            require(common_len(&step->seqs[i], &step->seqs[j]) == least, "shared prefix",
                    step->seqs[i].request);
            if (least > step->seqs[j].shared_len)
                least = step->seqs[j].shared_len;
        }
    }
}

void run_step(const struct scheduler_step *step)
{
    check_shape(step);
    absorb(step->number);
    absorb(step->mode);
    require(scheduler_num_pools(scheduler) == 1 + (params.window.num_pages > 0), "pools", -1);
    for (int32_t i = 0; i < step->num_seqs; i++) {
        const struct scheduler_seq *seq = &step->seqs[i];
        absorb(seq->request);
        absorb(seq->row);
        absorb(seq->prefix_len);
        absorb(seq->num_new);
        tally_seq(&model.rows, seq, committed_of(step, i));
    }
    for (int pool = 0; pool < scheduler_num_pools(scheduler); pool++)
        run_pool(pool, step);
    require(scheduler_has_pool(scheduler, SCHEDULER_ENCODER) == (params.cross_len > 0), "pools",
            -1);
    if (params.cross_len > 0)
        run_encoder(step);
    run_states(step);
    check_neighbours(step);
    for (int32_t i = 0; i < step->num_seqs; i++)
        note_drafts(step, i);
}

const struct scheduler_step *next(void)
{
    const struct scheduler_step *step = NULL;
    int64_t wake_us;
    require(scheduler_next(scheduler, &step, &wake_us) == SCHEDULER_STEP, "no step", -1);
    return step;
}

const struct scheduler_step *next_run(void)
{
    const struct scheduler_step *step = next();
    run_step(step);
    return step;
}

void schedule(const char *words)
{
#define MODE_TEXT(name, value, text) [value] = text,
    static const char *const modes[] = {ATTN_MODE_MAP(MODE_TEXT)};
    const struct scheduler_step *step = next_run();
    strbuf got;
    strbuf_init(&got);
    strbuf_append(&got, modes[step->mode]);
    for (int32_t i = 0; i < step->num_seqs; i++)
        strbuf_appendf(&got, " %lld:%d+%d", (long long)step->seqs[i].request,
                       step->seqs[i].prefix_len, step->seqs[i].num_new);
    if (words)
        ck_assert_str_eq(strbuf_text(&got), words);
    strbuf_finish(&got);
    scheduler_complete(scheduler);
}

void run_all(void)
{
    const struct scheduler_step *step;
    int64_t wake_us;
    enum scheduler_state state;
    int64_t steps = 0;
    while ((state = scheduler_next(scheduler, &step, &wake_us)) == SCHEDULER_STEP) {
        run_step(step);
        scheduler_complete(scheduler);
        require(++steps < MAX_STEPS, "does not end", -1);
    }
    ck_assert_int_eq(state, SCHEDULER_DONE);
}

void poison_slots(int pool, const int64_t *slots, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        memset(&model.kv[pool][slots[i]], 0xff, sizeof **model.kv);
}

void poison_states(const struct scheduler_seq *seqs, int32_t num_seqs,
                   const struct scheduler_snapshot *snapshots, int32_t num_snapshots)
{
    for (int32_t i = 0; i < num_seqs; i++)
        model.state[seqs[i].state_dst] = UINT64_MAX;
    for (int32_t n = 0; n < num_snapshots; n++)
        model.state[snapshots[n].slot] = UINT64_MAX;
}

void lose_model(const struct tally *kept)
{
    memset(model.state, 0xff, sizeof model.state);
    memset(model.kv, 0xff, sizeof model.kv);
    memset(model.table, 0xff, sizeof model.table);
    memset(model.undrafted, 0, sizeof model.undrafted);
    model.rows = *kept;
    for (int64_t i = 0; i < source.num_requests; i++)
        if (!model.dropped[i] && model.rows.mark[i] < rows_of(i))
            model.rows.computed[i] = -1; /* it is not where it was */
}

int64_t read_clock(void *context)
{
    return *(int64_t *)context;
}

/* ---- Expectations ---------------------------------------------------------------------------- */

void expect_seq(const struct scheduler_step *step, int32_t index, int64_t request,
                int32_t prefix_len, int32_t num_new)
{
    ck_assert_int_lt(index, step->num_seqs);
    ck_assert_int_eq(step->seqs[index].request, request);
    ck_assert_int_eq(step->seqs[index].prefix_len, prefix_len);
    ck_assert_int_eq(step->seqs[index].num_new, num_new);
}

void expect_done(void)
{
    const struct scheduler_step *step = NULL;
    int64_t wake_us;
    ck_assert_int_eq(scheduler_next(scheduler, &step, &wake_us), SCHEDULER_DONE);
    ck_assert_ptr_null(step);
}

const struct scheduler_counts *expect_counts(void)
{
    static struct scheduler_counts counts;
    int64_t input = 0, decode = 0;
    for (int64_t i = 0; i < source.num_requests; i++) {
        int64_t rows = rows_of(i);
        if (model.dropped[i])
            continue;
        input += source.requests[i].input;
        decode += rows - source.requests[i].input;
        require(model.rows.mark[i] == rows && model.rows.computed[i] == rows,
                "has not all its rows", i);
    }
    scheduler_count(scheduler, &counts);
    ck_assert_int_eq(counts.finished + counts.dropped, source.num_requests);
    ck_assert_int_eq(counts.prefill, model.rows.prefill);
    ck_assert_int_eq(counts.decode, model.rows.decode);
    ck_assert_int_eq(counts.accepted + counts.verifications,
                     params.drafts.tokens > 0 ? model.rows.decode : 0);
    ck_assert_int_eq(counts.drafted, counts.verifications * (decode_rows() - 1));
    ck_assert_int_eq(counts.prefix_hit, model.rows.prefix_hit);
    ck_assert_int_eq(counts.recomputed, model.rows.recomputed);
    if (counts.dropped == 0) {
        ck_assert_int_eq(counts.prefill + counts.prefix_hit - counts.recomputed, input);
        ck_assert_int_eq(counts.decode, decode);
    }
    for (int pool = 0; pool < SCHEDULER_POOLS; pool++) {
        const int64_t sizes[] = {params.num_pages, params.window.num_pages,
                                 params.num_encoder_pages};
        int64_t num_pages = sizes[pool];
        if (!scheduler_has_pool(scheduler, pool))
            continue;
        const struct scheduler_pool_counts *of = &counts.pools[pool];
        ck_assert_int_eq(of->capacity, (num_pages - 1) * params.page_size);
        ck_assert_int_le(of->peak, of->capacity);
        ck_assert_int_le(of->held, of->peak);
        ck_assert_int_gt(of->held, 0);
        ck_assert_int_eq(scheduler_leaked(scheduler, pool), 0);
    }
    ck_assert_int_eq(scheduler_leaked_states(scheduler), 0);
    return &counts;
}

const struct scheduler_counts *run_out(void)
{
    run_all();
    return expect_counts();
}
