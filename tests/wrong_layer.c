/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/wrong_layer.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct {
    enum wrong what;
    const attn_backend_type *real;
    attn_backend_type type;
    attn_backend_ops ops;
    attn_option options[8];
    void (*leave)(void);
    pthread_t maker;
    const attn_layer_group *group; /* KEEPS_PROBLEM */
    attn_metadata *planned;        /* the last one */
    attn_metadata *planned_once[8];
    int spoilt, sizes;
    char *scratch; /* PLAN_IN_SCRATCH */
    char *counter; /* DIRTY_COUNTERS */
    const int32_t *host_lens;
    int32_t first_len;
} layer;

enum {
    HOST_METADATA = ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA),
    SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH),
    ZEROED = ATTN_REGION(ATTN_SPACE_PINNED, ATTN_USE_ZEROED)
};

static void *volatile kept; /* what leaks is not optimised away */

/* ---- Errors ---------------------------------------------------------------------------------- */

static attn_status fail(attn_error *error, attn_status code, const char *text)
{
    if (error) {
        error->code = code;
        if (error->message && error->capacity > 0)
            snprintf(error->message, error->capacity, "%s", text);
    }
    return code;
}

/* A message that is cut anywhere, or not at all; `whole` is what the real backend says. */
static void say_wrong(attn_error *error, const char *whole)
{
    size_t room = error->capacity ? error->capacity - 1 : 0;
    if (!error->message || error->capacity == 0)
        return;
    if (layer.what == IGNORES_CAPACITY)
        strcpy(error->message, whole);
    else
        snprintf(error->message, error->capacity, "%.*s", (int)room, whole);
}

/* Spoil what a call that failed has said. */
static attn_status spoil(attn_status status, attn_error *error)
{
    char text[512];
    if (status == ATTN_OK || !error)
        return status;
    if (layer.what == NO_MESSAGE && error->message)
        error->message[0] = '\0';
    if (layer.what == CODE_UNTOLD)
        error->code = ATTN_OK;
    if (layer.what == NEEDED_UNTOLD)
        error->needed = 1;
    if ((layer.what == NO_NAMES || layer.what == BOUND_UNNAMED) && error->message)
        snprintf(error->message, error->capacity, "something is wrong");
    if (layer.what == BOUND_UNNAMED)
        error->field = ATTN_FIELD_NONE;
    if (layer.what == OWN_NAME && error->message) {
        snprintf(text, sizeof text, "%s: %s", layer.real->name, error->message);
        snprintf(error->message, error->capacity, "%s", text);
    }
    return status;
}

/* ---- Query and create ------------------------------------------------------------------------ */

static void spoil_verdict(attn_verdict *verdict)
{
    if (layer.what == FILLS_WHOLE_VERDICT)
        verdict->host_bytes = 0;
    if (layer.what == FILLS_BEHIND_VERDICT && verdict->struct_size > sizeof *verdict)
        ((char *)verdict)[sizeof *verdict] = 1;
    if (layer.what == ANSWERS_ONE_THREAD && !pthread_equal(pthread_self(), layer.maker))
        verdict->supported = !verdict->supported;
    if (layer.what == ALWAYS_YES) {
        verdict->supported = 1;
        verdict->num_reasons = 0;
    }
    if (layer.what == CHILD_UNNAMED)
        for (uint32_t r = 0; r < verdict->num_reasons && r < verdict->reasons_capacity; r++)
            verdict->reasons[r].child[0] = '\0';
    if (layer.what == ALWAYS_GRAPHS && verdict->supported)
        verdict->graph_level = ATTN_GRAPH_ALWAYS;
}

static attn_status query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error)
{
    (void)type;
    attn_status status = layer.real->query(layer.real, options, services, problem, verdict, error);
    if (status == ATTN_OK)
        spoil_verdict(verdict);
    return spoil(status, error);
}

static const attn_option_value *find_value(const attn_options *options, const char *key)
{
    for (uint32_t v = 0; v < options->num_values; v++) {
        const attn_option_value *value = attn_at(options->values, v);
        if (strcmp(value->key, key) == 0)
            return value;
    }
    return NULL;
}

static int refuses(const attn_options *options)
{
    const attn_option_value *split = find_value(options, "kv_split_tokens");
    const attn_option_value *form = find_value(options, "kv_index");
    if (!split || !form)
        return 0;
    if (layer.what == REFUSES_OPTION)
        return split->integer == 1 << 20;
    return layer.what == REFUSES_PAIR && split->integer == 64 && strcmp(form->text, "csr") == 0;
}

static void *sleep_for_ever(void *arg)
{
    for (;;)
        pause();
    return arg;
}

/* What is done in a create that succeeds. */
static void spoil_create(const attn_problem *problems)
{
    pthread_t thread;
    layer.group = problems->group;
    layer.maker = pthread_self();
    if (layer.what == LEAKS_INSTANCE)
        kept = malloc(32);
    if (layer.what == MAPS_INSTANCE)
        kept = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (layer.what == STARTS_THREAD && pthread_create(&thread, NULL, sleep_for_ever, NULL) != 0)
        abort();
    if (layer.what == LEAVES_CONTEXT)
        layer.leave();
}

/* A child beside the composite's own, which a create that fails forgets. */
static attn_child make_child(const attn_problem *problems, uint32_t num_problems,
                             const attn_options *options, const attn_services *services)
{
    attn_child child = {.struct_size = sizeof child};
    if (layer.what != LEAVES_CHILD || options->values->type != ATTN_OPTION_BACKEND_REF ||
        services->child_create(services->ctx, options->values->text, problems, num_problems, &child,
                               NULL) != ATTN_OK)
        child.type = NULL;
    return child;
}

static attn_status create_spoilt(const attn_problem *problems, uint32_t num_problems,
                                 const attn_options *options, const attn_services *services,
                                 attn_instance **instance, attn_error *error)
{
    attn_problem walked[2];
    void *block = NULL;
    if (layer.what == WALKS_BY_SIZEOF && num_problems == 2) {
        memcpy(walked, problems, sizeof walked);
        walked[0].struct_size = walked[1].struct_size = sizeof walked[0];
        problems = walked;
    }
    if (layer.what == NEEDS_TRACE && !services->trace_begin)
        return fail(error, ATTN_INTERNAL, "no trace");
    if (layer.what == LEAVES_SPAN_OPEN && services->trace_begin)
        services->trace_begin(services->ctx, "create");
    if (layer.what == LEAVES_A_BLOCK) {
        block = services->allocate(services->ctx, ATTN_SPACE_HOST, 64, 8);
        if (!block)
            return fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory");
    }
    if (refuses(options))
        return fail(error, ATTN_UNSUPPORTED, "not with these options");
    attn_child child = make_child(problems, num_problems, options, services);
    attn_status status =
        layer.real->create(layer.real, problems, num_problems, options, services, instance, error);
    if (status == ATTN_OK)
        services->release(services->ctx, ATTN_SPACE_HOST, block);
    if (status == ATTN_OK && child.type)
        child.type->ops->destroy(child.instance);
    return status;
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    char whole[512] = "";
    attn_error own = {.struct_size = sizeof own, .capacity = sizeof whole, .message = whole};
    int speaks = layer.what == CUTS_CHARACTERS || layer.what == IGNORES_CAPACITY;
    (void)type;
    attn_status status = create_spoilt(problems, num_problems, options, services, instance,
                                       speaks && error ? &own : error);
    if (status == ATTN_OK)
        spoil_create(problems);
    else if (layer.what == SETS_INSTANCE)
        *instance = NULL;
    if (status != ATTN_OK && speaks && error) {
        error->code = status;
        say_wrong(error, whole);
    }
    return spoil(status, error);
}

static void destroy(attn_instance *instance)
{
    if (layer.what == DESTROYS_NULL)
        kept = *(void *volatile *)instance;
    layer.spoilt |= layer.what == DESTROY_SPOILS_OTHERS && layer.planned;
    layer.real->ops->destroy(instance);
}

static uint32_t index_forms(attn_instance *instance)
{
    uint32_t forms = layer.real->ops->index_forms(instance);
    return layer.what == ONE_FORM ? forms & ATTN_INDEX_BLOCK_TABLE : forms;
}

static const void *get_extension(attn_instance *instance, const char *id)
{
    (void)instance;
    return layer.what == EXTENSION_PREFIX && strncmp(id, "attn.", 5) == 0 ? id : NULL;
}

/* ---- Metadata -------------------------------------------------------------------------------- */

static void spoil_size(const attn_bounds *bounds, attn_memory_size *size)
{
    if (layer.what == SIZE_VARIES)
        size->size[HOST_METADATA] += 64 * (uint64_t)(layer.sizes++ % 3);
    if (layer.what == SIZE_SHRINKS && bounds->max_kv_len > 100)
        size->size[HOST_METADATA] = 64;
    if (layer.what == OWN_SIZE)
        size->size[HOST_METADATA] = 4096;
    if (layer.what == DIRTY_COUNTERS) {
        size->size[ZEROED] = 64;
        size->alignment[ZEROED] = 8;
    }
}

static attn_status metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error)
{
    if (layer.what == TAKES_ANY_KIND)
        kind = ATTN_METADATA_EAGER;
    if (layer.what == OTHER_CODE && kind > ATTN_METADATA_GRAPH)
        return fail(error, ATTN_UNSUPPORTED, "this kind is not supported");
    attn_status status = layer.real->ops->metadata_size(instance, kind, bounds, size, error);
    if (status == ATTN_OK)
        spoil_size(bounds, size);
    return spoil(status, error);
}

/* Other memory than was given. */
static attn_memory spoil_memory(const attn_memory *given)
{
    attn_memory memory = *given;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT && memory.base[r]; r++)
        if (layer.what == TAKES_LESS)
            memory.size[r] += 1;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        if (layer.what == TAKES_MISALIGNED)
            memory.base[r] = (char *)memory.base[r] + (-(uintptr_t)memory.base[r] & 63);
    return memory;
}

static void spoil_metadata(const attn_memory *memory)
{
    layer.scratch = memory->base[SCRATCH];
    layer.counter = memory->base[ZEROED];
    layer.planned = NULL;
    if (layer.what == WRITES_PAST_REGION)
        ((char *)memory->base[HOST_METADATA])[memory->size[HOST_METADATA]] = 1;
    if (layer.what == WRITES_BEFORE_REGION)
        ((char *)memory->base[HOST_METADATA])[-1] = 1;
    if (layer.what == LEAKS_METADATA)
        kept = malloc(16);
}

static attn_status metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *given,
                                   attn_metadata **metadata, attn_error *error)
{
    attn_memory memory = spoil_memory(given);
    if (layer.what == TAKES_ANY_KIND)
        kind = ATTN_METADATA_EAGER;
    attn_status status =
        layer.real->ops->metadata_create(instance, kind, bounds, &memory, metadata, error);
    if (status == ATTN_OK)
        spoil_metadata(given);
    else if (layer.what == SETS_METADATA)
        *metadata = NULL;
    return spoil(status, error);
}

/* ---- Batches --------------------------------------------------------------------------------- */

/* PLANS_ONCE: was this metadata planned before? */
static int is_planned(attn_metadata *metadata)
{
    for (int i = 0; i < 8; i++) {
        if (layer.planned_once[i] == metadata)
            return 1;
        if (!layer.planned_once[i]) {
            layer.planned_once[i] = metadata;
            return 0;
        }
    }
    return 1;
}

static attn_status plan(attn_metadata *metadata, const attn_batch *given, attn_stream stream,
                        attn_error *error)
{
    attn_batch batch;
    const struct timespec long_time = {.tv_nsec = 2000000};
    if (layer.what == READS_WHOLE_BATCH)
        kept = (void *)(uintptr_t)((const volatile attn_batch *)given)->sparse;
    memset(&batch, 0, sizeof batch);
    memcpy(&batch, given, given->struct_size < sizeof batch ? given->struct_size : sizeof batch);
    batch.struct_size = sizeof batch;
    if (layer.what == TAKES_ANY_PART) {
        batch.mask = NULL;
        batch.multi_item = NULL;
    }
    if (layer.what == PLANS_ONCE && is_planned(metadata))
        return ATTN_OK;
    if (layer.what == SLOW_PLAN)
        nanosleep(&long_time, NULL);
    attn_status status = layer.real->ops->init_forward_metadata(metadata, &batch, stream, error);
    if (status == ATTN_OK) {
        layer.planned = metadata;
        layer.host_lens = batch.seq_lens.host;
        layer.first_len = *batch.seq_lens.host;
        if (layer.what == PLAN_IN_SCRATCH)
            *layer.scratch = 77;
        if (layer.what == SAYS_SUCCESS && error)
            error->code = ATTN_OK;
    }
    return spoil(status, error);
}

static void metadata_destroy(attn_metadata *metadata)
{
    layer.real->ops->metadata_destroy(metadata);
}

static char *first_byte(const attn_forward_args *args, uint32_t role)
{
    const attn_tensor *tensor = attn_operand(args, role);
    return (char *)tensor->data + tensor->byte_offset;
}

/* Things that are wrong with a forward and make it fail. */
static const char *find_fault(void)
{
    if (layer.what == DESTROY_SPOILS_OTHERS && layer.spoilt)
        return "spoilt";
    if (layer.what == KEEPS_PROBLEM && layer.group->num_q_heads != 4)
        return "the problem is gone";
    if (layer.what == ONE_THREAD && !pthread_equal(pthread_self(), layer.maker))
        return "another thread";
    if (layer.what == PLAN_IN_SCRATCH && *layer.scratch != 77)
        return "the scratch has changed";
    if (layer.what == DIRTY_COUNTERS && layer.counter && *layer.counter)
        return "the counters are not zero";
    if (layer.what == READS_HOST_LATE && *layer.host_lens != layer.first_len)
        return "lengths have changed";
    return NULL;
}

static void spoil_forward(const attn_forward_args *args)
{
    if (layer.what == DIRTY_COUNTERS && layer.counter)
        *layer.counter = 1;
    if (layer.what == ALLOCATES) {
        kept = malloc(10);
        free(kept);
    }
    if (layer.what == OPENS_A_FILE)
        close(open("/dev/null", O_RDONLY));
    if (layer.what == WRITES_Q)
        *first_byte(args, ATTN_ROLE_Q) ^= 1;
    if (layer.what == SPOILS_OUT)
        first_byte(args, ATTN_ROLE_OUT)[1] ^= 0x40; /* in the exponent */
    if (layer.what == WRITES_FOREIGN_SLOT)
        *first_byte(args, ATTN_ROLE_V_CACHE) ^= 1; /* page 0 is nobody's */
}

static attn_status forward(attn_status (*real)(attn_metadata *, int32_t, const attn_forward_args *,
                                               attn_stream, attn_error *),
                           attn_metadata *metadata, int32_t layer_id, const attn_forward_args *args,
                           attn_stream stream, attn_error *error)
{
    const char *fault = find_fault();
    if (fault)
        return fail(error, ATTN_INTERNAL, fault);
    if (layer.what == LAST_PLAN_FOR_ALL && layer.planned)
        metadata = layer.planned;
    attn_status status = real(metadata, layer_id, args, stream, error);
    if (status == ATTN_OK)
        spoil_forward(args);
    if (status == ATTN_BAD_STATE && layer.what == OTHER_STATE)
        return fail(error, ATTN_INVALID_ARGUMENT, "not now");
    return spoil(status, error);
}

static attn_status forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(layer.real->ops->forward_extend, metadata, layer_id, args, stream, error);
}

static attn_status forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(layer.real->ops->forward_decode, metadata, layer_id, args, stream, error);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

void wrong_layer_leaves(void (*leave)(void))
{
    layer.leave = leave;
}

const attn_backend_type *wrong_layer(const attn_backend_type *real, enum wrong what)
{
    void (*leave)(void) = layer.leave;
    memset(&layer, 0, sizeof layer);
    layer.what = what;
    layer.real = real;
    layer.leave = leave;
    layer.maker = pthread_self();
    layer.ops = (attn_backend_ops){
        .struct_size = sizeof layer.ops,
        .reserved = what == RESERVED,
        .destroy = destroy,
        .prepare = real->ops->prepare,
        .index_forms = index_forms,
        .metadata_size = metadata_size,
        .metadata_create = metadata_create,
        .init_forward_metadata = plan,
        .metadata_destroy = metadata_destroy,
        .forward_extend = what == NO_EXTEND ? NULL : forward_extend,
        .forward_decode = forward_decode,
        .get_extension = get_extension,
    };
    layer.type = *real;
    layer.type.ops = &layer.ops;
    layer.type.query = query;
    layer.type.create = create;
    if (what == DECLARES_TWICE) {
        memcpy(layer.options, real->options, 2 * sizeof layer.options[0]);
        layer.options[1].key = layer.options[0].key;
        layer.type.options = layer.options;
        layer.type.num_options = 2;
    }
    return &layer.type;
}
