/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: launches of a layer: new keys, then logits and choices wave by wave, then attention.
 */
#include "plugins/dsa_like/dsa_like.h"

#include "attn_plugin_util.h"
#include "plugins/flashmla_like/type.h"

enum {
    CHOOSE_BLOCKS = 1,      /* of a multiprocessor: with more, rows take longer */
    LEAST_PART = 4096,      /* keys of a block */
    ROOM_ALONE = 70000,     /* bytes of shared memory, of which a multiprocessor has no two */
    SHARED_OF_BLOCK = 1024, /* bytes, the system's */
};

/* ---- Launches -------------------------------------------------------------------------------- */

static int64_t num_sms(const attn_metadata *metadata)
{
    return cuda_plan_num_sms(&metadata->plan, metadata->instance->facts.num_sms);
}

static attn_status run(const attn_metadata *metadata, cuda_launch launch, void *params,
                       attn_stream stream, attn_error *error)
{
    launch.grid[1] = launch.grid[2] = 1;
    launch.programmatic = 1;
    return cuda_launch_run(metadata->instance->cuda, &launch, &params, stream, error);
}

static int64_t savers_of(const attn_metadata *metadata)
{
    const int64_t rows = cuda_plan_extent(&metadata->plan).tokens, most = 8 * num_sms(metadata);
    return rows < most ? rows : most;
}

static attn_status launch_save(const attn_metadata *metadata, dsa_save_call *call,
                               attn_stream stream, attn_error *error)
{
    return run(metadata,
               (cuda_launch){.function = metadata->instance->save,
                             .name = "dsa_save",
                             .grid = {savers_of(metadata)},
                             .block = {DSA_SAVE_THREADS}},
               call, stream, error);
}

/* As many blocks as run at once. */
static attn_status launch_label(const attn_metadata *metadata, const dsa_layers *group,
                                dsa_label_call *call, attn_stream stream, attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const int codes = dsa_multiplies_codes(group), queries = call->planned.queries;
    const int width = codes ? 1 : 2;
    const uint32_t shared = (uint32_t)DSA_LABEL_SHARED(width, queries);
    const uint32_t room =
        (instance->facts.shared_memory + SHARED_OF_BLOCK) / (shared + SHARED_OF_BLOCK);
    const uint32_t most = DSA_LABEL_BLOCKS(width, queries > 1);
    return run(metadata,
               (cuda_launch){.function = instance->label[codes][queries > 1],
                             .name = "dsa_label",
                             .grid = {num_sms(metadata) * (room > most ? most : room)},
                             .block = {DSA_LABEL_THREADS(width, queries > 1)},
                             .shared = shared},
               call, stream, error);
}

/* Blocks of a row: as many as there is room for where each has enough keys. */
static uint32_t blocks_of_row(const attn_metadata *metadata, int64_t rows, int64_t longest)
{
    const int64_t most = CHOOSE_BLOCKS * num_sms(metadata);
    uint32_t blocks = DSA_MOST_BLOCKS;
    while (blocks > 1 && (blocks * rows > most || longest / blocks < LEAST_PART))
        blocks /= 2;
    return blocks;
}

/* Shared memory of a block, of which `cached` logits are a part. Blocks begin where those of labels end: two of them
 * would share the first multiprocessor while others had none. */
static uint32_t room_of_block(const attn_metadata *metadata, int64_t num_blocks, int cached)
{
    const uint32_t room = (uint32_t)DSA_CHOOSE_SHARED(cached);
    return num_blocks <= num_sms(metadata) && room < ROOM_ALONE ? ROOM_ALONE : room;
}

/* Where a sieve may be used there is room for it, however many blocks a row has; longer parts than shared memory has
 * room for are read again for each pass. */
static attn_status launch_choose(const attn_metadata *metadata, dsa_choose_call *call,
                                 attn_stream stream, attn_error *error)
{
    const int64_t room =
        ((int64_t)metadata->instance->facts.shared_memory - DSA_CHOOSE_SHARED(0)) / 4;
    const int64_t longest = metadata->plan.kind == ATTN_METADATA_GRAPH
                                ? metadata->plan.bounds.max_kv_len
                                : metadata->plan.batch.max_kv_len;
    const int64_t rows = call->end - call->first;
    const uint32_t blocks = blocks_of_row(metadata, rows, longest);
    const int64_t part = DSA_CHOOSE_PART(longest, blocks);
    const int64_t sieve = DSA_SIEVE_ROOM(longest < DSA_SIEVE_KEYS ? longest : DSA_SIEVE_KEYS);
    const int64_t wanted = longest < DSA_SIEVE_LEAST ? part : sieve;
    call->cached = (int)(wanted < room ? wanted : room);
    return run(metadata,
               (cuda_launch){.function = metadata->instance->choose,
                             .name = "dsa_choose",
                             .grid = {rows * blocks},
                             .block = {DSA_CHOOSE_THREADS},
                             .cluster = {blocks},
                             .shared = room_of_block(metadata, rows * blocks, call->cached)},
               call, stream, error);
}

static attn_status launch_take(const attn_metadata *metadata, dsa_take_call *call,
                               attn_stream stream, attn_error *error)
{
    return run(metadata,
               (cuda_launch){.function = metadata->instance->take,
                             .name = "dsa_take",
                             .grid = {call->savers + cuda_plan_extent(&metadata->plan).tokens},
                             .block = {DSA_TAKE_THREADS}},
               call, stream, error);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static attn_status index_rows(const attn_metadata *metadata, const dsa_layers *group,
                              dsa_call *call, attn_stream stream, attn_error *error)
{
    const int64_t rows = cuda_plan_extent(&metadata->plan).tokens;
    const int wave = call->label.planned.wave;
    attn_status status = ATTN_OK;
    for (int64_t first = 0; first < rows && status == ATTN_OK; first += wave) {
        call->label.first = call->choose.first = (int)first;
        call->label.end = call->choose.end = (int)(first + wave < rows ? first + wave : rows);
        if (call->labels)
            status = launch_label(metadata, group, &call->label, stream, error);
        if (status == ATTN_OK && call->chooses)
            status = launch_choose(metadata, &call->choose, stream, error);
    }
    return status;
}

/* Attention to the lists; the caches have all new keys by now. */
static attn_status attend(const attn_metadata *metadata, int32_t layer_id,
                          const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        operands[role] = attn_operand(args, role);
    operands[ATTN_ROLE_C_KV] = operands[ATTN_ROLE_K_PE] = NULL;
    attn_forward_args given = *args;
    given.flags &= ~(uint32_t)ATTN_FORWARD_SAVE_KV;
    given.num_operands = ATTN_ROLE_COUNT;
    given.operands = operands;
    return flashmla_like_type.ops->forward_extend(metadata->attend, layer_id, &given, stream,
                                                  error);
}

static void describe_all(const attn_metadata *metadata, uint32_t index, dsa_call *call)
{
    dsa_batch planned;
    dsa_describe(metadata, index, &planned);
    call->save.batch = planned.batch;
    call->label.planned = call->choose.planned = call->take.planned = planned;
    call->choose.lists = call->take.lists = dsa_lists(metadata);
    call->choose.list_row = call->take.list_row = metadata->rows[index].req_to_token_stride;
}

static attn_status forward(attn_metadata *metadata, int decode, int32_t layer_id,
                           const attn_forward_args *given, attn_stream stream, attn_error *error)
{
    dsa_call call = {.saves = 0};
    attn_forward_args args;
    uint32_t index = 0;
    const attn_util_layer *layer = NULL;
    if (!metadata || !given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or args is NULL");
    attn_status status = cuda_plan_check_forward(&metadata->plan, decode, error);
    if (status != ATTN_OK || !cuda_plan_has_rows(&metadata->plan))
        return status;
    status = cuda_find_layer(metadata->instance->groups, sizeof *metadata->instance->groups,
                             metadata->instance->num_groups, layer_id, &index, &layer, error);
    if (status != ATTN_OK)
        return status;
    ATTN_UTIL_READ(&args, given);
    status = dsa_take_operands(metadata, index, layer, &args, &call, error);
    if (status != ATTN_OK)
        return status;
    describe_all(metadata, index, &call);
    const int takes = call.attends && !call.chooses;
    if (takes && call.saves) {
        call.take.save = call.save;
        call.take.savers = (int)savers_of(metadata);
    } else if (call.saves) {
        status = launch_save(metadata, &call.save, stream, error);
    }
    if (status == ATTN_OK && (call.labels || call.chooses))
        status = index_rows(metadata, &metadata->instance->groups[index], &call, stream, error);
    if (status == ATTN_OK && takes)
        status = launch_take(metadata, &call.take, stream, error);
    if (status == ATTN_OK && call.attends)
        status = attend(metadata, layer_id, &args, stream, error);
    return status;
}

attn_status dsa_forward_extend(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    return forward(metadata, 0, layer_id, args, stream, error);
}

attn_status dsa_forward_decode(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    return forward(metadata, 1, layer_id, args, stream, error);
}
