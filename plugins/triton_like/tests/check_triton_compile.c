/* SPDX-License-Identifier: Apache-2.0
 *
 * check_triton_compile.c: when triton_like compiles, and when it need not: the cache's key covers
 * all that goes in, processes share the cache, prepare compiles and no step does, an error names
 * file and line. The driver is the test's; NVRTC is the test's too, and the true one where there is
 * one.
 */
#include "tests/tools/test_main.h"
#include "plugins/triton_like/tests/triton_fixture.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILES = 3, PROCESSES = 8 };

static char kernels[MAX_PATH], cache[MAX_PATH];

static void set_up(void)
{
    make_folder(kernels);
    make_folder(cache);
    copy_kernels(kernels);
}

static void tear_down(void)
{
    remove_folder(kernels);
    remove_folder(cache);
}

/* What a plugin's user reads: the extension, by the description in its README. */
static const compile_counter *counter_of(attn_instance *instance)
{
    const compile_counter *counter =
        triton_like_type.ops->get_extension(instance, "attn.compile_counter/1");
    ck_assert_ptr_nonnull(counter);
    ck_assert_uint_ge(counter->struct_size, 24);
    return counter;
}

/* Prepare for a problem; returns how many files were compiled, by either count. */
static long prepare_with(const test_problem *t, const triton_options *options)
{
    attn_instance *instance = make_instance(t, &test_nvrtc, kernels, cache);
    if (options)
        instance->options = *options;
    long before = doubles.compiled;
    ck_assert_msg(prepare_instance(instance, &test_error) == ATTN_OK, "%s", test_message);
    long compiled = (long)counter_of(instance)->compiled;
    int variants = __builtin_popcount(instance->groups->variants);
    int files = __builtin_popcount(instance->groups->files);
    ck_assert_int_eq(doubles.compiled - before, compiled);
    ck_assert_int_eq(compiled + (long)counter_of(instance)->cached, files * variants);
    triton_like_type.ops->destroy(instance);
    ck_assert_int_eq(doubles.loads, doubles.unloads);
    return compiled;
}

static long prepare_plain(void)
{
    test_problem t;
    make_decode_problem(&t);
    return prepare_with(&t, NULL);
}

static int count_files(const char *ending)
{
    char names[64][256];
    return list_folder(cache, ending, names, 64);
}

/* ---- The key --------------------------------------------------------------------------------- */

/* Headers that no kernel of this plugin has to include. */
static int is_left_out(const char *name)
{
    static const char *const names[] = {"merge_states.cuh", "ptx.cuh",
                                        "save_packed.cuh",  "save_rows.cuh",
                                        "warpgroup.cuh",    "warpgroup_softmax.cuh"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return 1;
    return 0;
}

/* A byte more or less in a source or a header. */
TEST_OF(key, key_covers_the_sources)
{
    char names[32][256];
    int count = list_folder(kernels, "", names, 32);
    ck_assert_int_ge(count, 9);
    ck_assert_int_eq(prepare_plain(), FILES);
    ck_assert_int_eq(prepare_plain(), 0);
    for (int i = 0; i < count; i++) {
        const char *ending = strrchr(names[i], '.');
        append_text(kernels, names[i], "\n");
        long compiled = prepare_plain();
        if (is_left_out(names[i]))
            continue;
        if (strcmp(ending, ".cu") == 0)
            ck_assert_msg(compiled == 1, "%s: %ld compiled", names[i], compiled);
        else
            ck_assert_msg(compiled >= 1, "%s is not in the key", names[i]);
        ck_assert_int_eq(prepare_plain(), 0);
    }
}

/* Headers that are added are found by their #include lines, those in headers too; what only
 * looks like one is passed over. */
TEST_OF(key, key_covers_new_headers)
{
    char deep[MAX_PATH + 16];
    append_text(kernels, "decode.cu", "  #  include \"mine.cuh\" // of mine\n");
    write_text(kernels, "mine.cuh",
               "#include \"below/deep.h\"\n#include <stdint.h>\n#include \"absent.h\"\n"
               "#include \"mine.cuh\"\n#include \"unfinished\n#include MINE\n// no end of line");
    snprintf(deep, sizeof deep, "%s/below", kernels);
    ck_assert_int_eq(mkdir(deep, 0700), 0);
    write_text(deep, "deep.h", "// 1\n");
    ck_assert_int_eq(prepare_plain(), FILES);
    append_text(kernels, "mine.cuh", "\n");
    ck_assert_int_eq(prepare_plain(), 1);
    write_text(deep, "deep.h", "// 2\n");
    ck_assert_int_eq(prepare_plain(), 1);
    write_text(deep, "deep.h", "// 1\n");
    ck_assert_int_eq(prepare_plain(), 0); /* what was compiled before it was 2 */
    write_text(kernels, "absent.h", "// now there\n");
    ck_assert_int_eq(prepare_plain(), 1);
}

/* A change of a problem that must not find the binaries of the plain one. */
static void expect_new(const char *what, const test_problem *t)
{
    ck_assert_msg(prepare_with(t, NULL) == FILES, "%s is not in the key", what);
    ck_assert_msg(prepare_with(t, NULL) == 0, "%s: compiled again", what);
}

#define CHANGE(field, value)                                                                       \
    do {                                                                                           \
        make_decode_problem(&t);                                                                   \
        t.field = (value);                                                                         \
        expect_new(#field, &t);                                                                    \
    } while (0)

TEST_OF(key, key_covers_the_constants)
{
    test_problem t;
    ck_assert_int_eq(prepare_plain(), FILES);
    CHANGE(group.head_dim, 64);
    CHANGE(group.v_head_dim, 64);
    CHANGE(group.num_q_heads, 64);
    CHANGE(group.num_kv_heads, 4);
    CHANGE(group.window_left, 100);
    CHANGE(group.attention_chunk, 64);
    CHANGE(group.sm_scale, 0.0900001f);
    CHANGE(group.logit_cap, 30.0f);
    CHANGE(group.flags, ATTN_GROUP_HAS_ALIBI);
    CHANGE(group.flags, ATTN_GROUP_HAS_SINKS);
    CHANGE(group.kv_scale_granularity, ATTN_SCALE_PER_HEAD);
    CHANGE(bounds.mask_kinds, ATTN_MASK_BIT(ATTN_MASK_FULL));
    CHANGE(problem.q_dtype, ATTN_F16);
    CHANGE(problem.kv_dtype, ATTN_FP8_E4M3);
    CHANGE(problem.kv_dtype, ATTN_FP8_E5M2);
    CHANGE(problem.out_dtype, ATTN_F32);
    CHANGE(problem.page_size, 1);
    CHANGE(device.shared_memory, 99 * 1024);
    ck_assert_int_eq(prepare_plain(), 0);
}

TEST_OF(key, key_covers_compiler_options_and_device)
{
    test_problem t;
    triton_options options;
    ck_assert_int_eq(prepare_plain(), FILES);
    CHANGE(device.sm, 80);
    make_decode_problem(&t);
    doubles.nvrtc_minor++;
    expect_new("NVRTC's minor version", &t);
    doubles.nvrtc_major++;
    expect_new("NVRTC's major version", &t);
    ck_assert_int_eq(triton_options_read(NULL, &options, &test_error), ATTN_OK);
    strcpy(options.kernel_dir, kernels);
    strcpy(options.cache_dir, cache);
    ck_assert_int_eq(prepare_with(&t, &options), 0);
    options.split_probabilities = 1;
    ck_assert_int_eq(prepare_with(&t, &options), FILES);
    options.reduce_in_fp32 = 0;
    ck_assert_int_eq(prepare_with(&t, &options), FILES);
    options.num_kv_splits = 3; /* parameters of a launch, not of a kernel */
    options.split_tile = 100;
    ck_assert_int_eq(prepare_with(&t, &options), 0);
}

/* Line tables name the file, so the folder is in the key; the cache's own folder is not. */
TEST_OF(key, key_covers_the_place)
{
    char first[MAX_PATH];
    ck_assert_int_eq(prepare_plain(), FILES);
    strcpy(first, kernels);
    make_folder(kernels);
    copy_kernels(kernels);
    ck_assert_int_eq(prepare_plain(), FILES);
    remove_folder(first);
}

/* ---- The cache ------------------------------------------------------------------------------- */

/* Behind TEST_BINARY bytes stands a seal. */
static void damage(const char *name, const char *other, int kind)
{
    char path[2 * MAX_PATH], from[2 * MAX_PATH];
    size_t size;
    snprintf(path, sizeof path, "%s/%s", cache, name);
    snprintf(from, sizeof from, "%s/%s", cache, kind == 3 ? other : name);
    char *data = read_file(from, &size);
    ck_assert_ptr_nonnull(data);
    if (kind == 0)
        size = TEST_BINARY / 2;
    if (kind == 1)
        data[TEST_BINARY / 3] ^= 4;
    if (kind == 2)
        size = TEST_BINARY; /* the binary alone */
    if (kind == 4)
        memset(data, 0, size);
    FILE *file = fopen(path, "w");
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    fclose(file);
    free(data);
}

TEST_OF(cache, damaged_files_are_compiled_anew)
{
    char names[8][256];
    uint64_t good[FILES];
    ck_assert_int_eq(prepare_plain(), FILES);
    memcpy(good, doubles.loaded, sizeof good);
    ck_assert_int_eq(list_folder(cache, ".cubin", names, 8), FILES);
    for (int kind = 0; kind < 5; kind++)
        for (int i = 0; i < FILES; i++) {
            damage(names[i], names[(i + 1) % FILES], kind);
            doubles.loads = doubles.unloads = doubles.warnings = 0;
            ck_assert_int_eq(prepare_plain(), 1);
            ck_assert_int_eq(memcmp(good, doubles.loaded, sizeof good), 0);
            ck_assert_int_eq(doubles.warnings, 1);
            ck_assert_msg(strstr(doubles.warning, names[i]) != NULL, "%s", doubles.warning);
            ck_assert_int_eq(prepare_plain(), 0);
        }
    ck_assert_int_eq(count_files(""), FILES);
}

/* A process that prepares; it sends the hashes of what it loaded. */
static void prepare_in_child(int to)
{
    test_problem t;
    make_decode_problem(&t);
    srand((unsigned)getpid());
    usleep((unsigned)rand() % 4000);
    doubles = (test_doubles){.nvrtc_major = 13, .delay = 8000};
    attn_instance *instance = make_instance(&t, &test_nvrtc, kernels, cache);
    int good = prepare_instance(instance, &test_error) == ATTN_OK && doubles.loads == FILES &&
               doubles.warnings == 0;
    triton_like_type.ops->destroy(instance);
    _exit(!good || write(to, doubles.loaded, FILES * 8) != FILES * 8);
}

/* Fill an empty cache by eight processes at once, `killed` of which are killed on the way; those
 * that end have all loaded `good`. */
static void fill_together(int killed, const uint64_t good[FILES])
{
    int pipes[2], status;
    pid_t children[PROCESSES];
    ck_assert_int_eq(pipe(pipes), 0);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        ck_assert_int_ge(children[i], 0);
        if (children[i] == 0)
            prepare_in_child(pipes[1]);
    }
    close(pipes[1]);
    for (int i = 0; i < killed; i++) {
        usleep((unsigned)rand() % 4000);
        kill(children[i], SIGKILL);
    }
    for (int i = 0; i < PROCESSES; i++) {
        uint64_t loaded[FILES];
        ck_assert_int_eq(waitpid(children[i], &status, 0), children[i]);
        ck_assert_msg(i < killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0),
                      "process %d: %#x", i, (unsigned)status);
        if (WIFEXITED(status)) {
            ck_assert_int_eq(read(pipes[0], loaded, sizeof loaded), sizeof loaded);
            ck_assert_int_eq(memcmp(loaded, good, sizeof loaded), 0);
        }
    }
    close(pipes[0]);
}

TEST_OF(cache, processes_fill_one_cache)
{
    uint64_t good[FILES];
    ck_assert_int_eq(prepare_plain(), FILES);
    memcpy(good, doubles.loaded, sizeof good);
    for (int round = 0; round < 20; round++) {
        remove_folder(cache);
        fill_together(round % 4, good);
        ck_assert_int_eq(count_files(".cubin"), FILES);
        if (round % 4 == 0)
            ck_assert_int_eq(count_files(""), FILES);
        ck_assert_int_eq(prepare_plain(), 0);
    }
}

/* Nothing can be kept: it works as well, and one warning says why. */
static void check_without_cache(const char *why)
{
    for (int i = 0; i < 2; i++) {
        doubles.loads = doubles.unloads = doubles.warnings = 0;
        ck_assert_int_eq(prepare_plain(), FILES);
        ck_assert_int_eq(doubles.loads, FILES);
        ck_assert_int_eq(doubles.warnings, 1);
        ck_assert_msg(strstr(doubles.warning, why) != NULL, "%s", doubles.warning);
    }
}

TEST_OF(cache, no_cache_is_no_error)
{
    const struct rlimit limit = {TEST_BINARY / 2, RLIM_INFINITY};
    char folder[MAX_PATH];
    strcpy(folder, cache);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    check_without_cache("cannot be written: File too large");
    ck_assert_int_eq(count_files(""), 0);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
    write_text(folder, "file", "");
    ck_assert_int_lt(snprintf(cache, sizeof cache, "%.*s/file", MAX_PATH - 8, folder), MAX_PATH);
    check_without_cache("it is not a folder");
    strcpy(cache, folder);
    ck_assert_int_eq(chmod(cache, 0702), 0);
    check_without_cache("others could write to it");
    ck_assert_int_eq(chmod(cache, 0700), 0);
    doubles.warnings = 0;
    ck_assert_int_eq(prepare_plain(), FILES);
    ck_assert_int_eq(doubles.warnings, 0);
}

/* ---- Compiled in prepare, never in a step ---------------------------------------------------- */

enum {
    SEQS = 4,
    Q_LEN = 6,
    TOKENS = SEQS * Q_LEN,
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 16,
    PAGE = 4,
    PAGES = 40,
    STEPS = 300
};

/* A batch and the operands of a layer; what is in them does not matter, nothing is computed. */
typedef struct trace {
    int32_t lens[SEQS], prefix[SEQS], indptr[SEQS + 1], table[SEQS * PAGES];
    int64_t slots[TOKENS], mask_indptr[SEQS + 1];
    uint8_t bits[1024];
    attn_kv_batch kv;
    attn_mask mask;
    attn_batch batch;
    char memory[PAGES * PAGE * KV_HEADS * DIM * 4];
    attn_tensor q, k, v, out, lse, cache;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_forward_args args;
} trace;

static attn_tensor trace_tensor(trace *t, attn_dtype dtype, const int64_t shape[4])
{
    attn_tensor tensor = {.struct_size = sizeof tensor,
                          .data = t->memory,
                          .device_type = ATTN_DEVICE_CUDA,
                          .dtype = dtype};
    for (; tensor.ndim < 4 && shape[tensor.ndim]; tensor.ndim++)
        tensor.shape[tensor.ndim] = shape[tensor.ndim];
    int64_t stride = 1;
    for (uint32_t d = tensor.ndim; d-- > 0; stride *= shape[d])
        tensor.strides[d] = stride;
    return tensor;
}

static void trace_init(trace *t)
{
    memset(t, 0, sizeof *t);
    t->kv = (attn_kv_batch){.struct_size = sizeof t->kv,
                            .index_forms = ATTN_INDEX_BLOCK_TABLE,
                            .page_size = PAGE,
                            .block_table_stride = PAGES,
                            .block_table = {.device = t->table},
                            .out_cache_loc = {.device = t->slots}};
    t->mask = (attn_mask){
        .struct_size = sizeof t->mask, .bits = t->bits, .indptr = {.device = t->mask_indptr}};
    t->q = t->out = trace_tensor(t, ATTN_BF16, (int64_t[]){TOKENS, HEADS, DIM, 0});
    t->k = t->v = trace_tensor(t, ATTN_BF16, (int64_t[]){TOKENS, KV_HEADS, DIM, 0});
    t->lse = trace_tensor(t, ATTN_F32, (int64_t[]){TOKENS, HEADS, 0, 0});
    t->cache = trace_tensor(t, ATTN_BF16, (int64_t[]){PAGES, PAGE, KV_HEADS, DIM});
    t->operands[ATTN_ROLE_Q] = &t->q;
    t->operands[ATTN_ROLE_K] = &t->k;
    t->operands[ATTN_ROLE_V] = &t->v;
    t->operands[ATTN_ROLE_OUT] = &t->out;
    t->operands[ATTN_ROLE_LSE] = &t->lse;
    t->operands[ATTN_ROLE_K_CACHE] = t->operands[ATTN_ROLE_V_CACHE] = &t->cache;
    t->args = (attn_forward_args){
        .struct_size = sizeof t->args, .num_operands = ATTN_ROLE_COUNT, .operands = t->operands};
}

/* Batch `step`: all modes, plain and custom masks, with and without new keys. */
static void trace_batch(trace *t, int step)
{
    static const uint32_t masks[] = {ATTN_MASK_LAYER, ATTN_MASK_NONE, ATTN_MASK_FULL,
                                     ATTN_MASK_QLEN};
    uint32_t mode = (uint32_t)(step % ATTN_MODE_COUNT);
    int32_t seqs = 1 + step / 7 % SEQS, q_len = mode == ATTN_MODE_DECODE ? 1 : 1 + step % Q_LEN;
    t->mask.kind = masks[step / ATTN_MODE_COUNT % 4];
    t->batch = (attn_batch){.struct_size = sizeof t->batch,
                            .mode = mode,
                            .num_seqs = seqs,
                            .num_tokens = seqs * q_len,
                            .num_real_seqs = seqs,
                            .num_real_tokens = seqs * q_len,
                            .max_q_len = q_len,
                            .max_kv_len = 50 + step % 50,
                            .num_kv_groups = 1,
                            .seq_lens = {.device = t->lens},
                            .prefix_lens = {.device = t->prefix},
                            .q_indptr = {.device = t->indptr},
                            .kv_groups = &t->kv,
                            .mask = &t->mask};
    int saved = step % 3 != 0;
    t->operands[ATTN_ROLE_K] = saved ? &t->k : NULL;
    t->operands[ATTN_ROLE_V] = saved ? &t->v : NULL;
    t->args.flags = saved ? ATTN_FORWARD_SAVE_KV : 0;
}

static void trace_problem(test_problem *t)
{
    make_decode_problem(t);
    t->group.num_q_heads = HEADS;
    t->group.num_kv_heads = KV_HEADS;
    t->group.head_dim = t->group.v_head_dim = DIM;
    t->problem.page_size = PAGE;
    t->bounds.modes = (1u << ATTN_MODE_COUNT) - 1;
    t->bounds.mask_kinds = (1u << ATTN_MASK_COUNT) - 1;
    t->bounds.max_seqs = SEQS;
    t->bounds.max_tokens = TOKENS;
    t->bounds.max_q_len = Q_LEN;
    t->bounds.max_kv_len = PAGES * PAGE;
}

static attn_metadata *make_metadata(attn_instance *instance, uint32_t kind,
                                    const attn_bounds *bounds, attn_memory *memory)
{
    attn_memory_size size = {.struct_size = sizeof size};
    attn_metadata *metadata = NULL;
    const attn_backend_ops *ops = triton_like_type.ops;
    ck_assert_msg(ops->metadata_size(instance, kind, bounds, &size, &test_error) == ATTN_OK, "%s",
                  test_message);
    *memory = (attn_memory){.struct_size = sizeof *memory};
    for (uint32_t i = 0; i < ATTN_REGION_COUNT; i++) {
        memory->size[i] = size.size[i];
        memory->base[i] = aligned_alloc(4096, (size.size[i] + 4095) / 4096 * 4096);
    }
    ck_assert_msg(ops->metadata_create(instance, kind, bounds, memory, &metadata, &test_error) ==
                      ATTN_OK,
                  "%s", test_message);
    return metadata;
}

static void run_batch(attn_metadata *metadata, trace *t)
{
    const attn_backend_ops *ops = triton_like_type.ops;
    ck_assert_msg(ops->init_forward_metadata(metadata, &t->batch, NULL, &test_error) == ATTN_OK,
                  "%s", test_message);
    attn_status status = t->batch.mode == ATTN_MODE_DECODE
                             ? ops->forward_decode(metadata, 0, &t->args, NULL, &test_error)
                             : ops->forward_extend(metadata, 0, &t->args, NULL, &test_error);
    ck_assert_msg(status == ATTN_OK, "mode %u: %s", t->batch.mode, test_message);
}

/* What no mode needs is not compiled, and metadata for such a mode is refused. */
TEST_OF(steps, modes_decide_the_files)
{
    static const struct {
        uint32_t modes, refused;
        long files;
    } cases[] = {{ATTN_MODE_BIT(ATTN_MODE_DECODE), ATTN_MODE_BIT(ATTN_MODE_EXTEND), 2},
                 {ATTN_MODE_BIT(ATTN_MODE_EXTEND), ATTN_MODE_BIT(ATTN_MODE_DECODE), 2},
                 {ATTN_MODE_BIT(ATTN_MODE_TARGET_VERIFY), 0, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_problem t;
        attn_memory_size size = {.struct_size = sizeof size};
        make_decode_problem(&t);
        t.bounds.modes = cases[i].modes;
        t.group.head_dim = 64 + 16 * (int32_t)i; /* none of them is in the cache yet */
        ck_assert_int_eq(prepare_with(&t, NULL), cases[i].files);
        attn_instance *instance = make_instance(&t, &test_nvrtc, kernels, cache);
        t.bounds.modes = cases[i].refused;
        if (cases[i].refused)
            ck_assert_int_eq(triton_like_type.ops->metadata_size(instance, ATTN_METADATA_EAGER,
                                                                 &t.bounds, &size, &test_error),
                             ATTN_UNSUPPORTED);
        triton_like_type.ops->destroy(instance);
    }
}

TEST_OF(steps, steps_compile_nothing)
{
    static trace t;
    test_problem problem;
    attn_memory memory[2];
    trace_problem(&problem);
    trace_init(&t);
    attn_instance *instance = make_instance(&problem, &test_nvrtc, kernels, cache);
    const compile_counter *counter = counter_of(instance);
    ck_assert_uint_eq(counter->compiled, 0);
    ck_assert_msg(prepare_instance(instance, &test_error) == ATTN_OK, "%s", test_message);
    ck_assert_uint_eq(counter->compiled, 2 * FILES); /* plain masks, and custom ones */
    ck_assert_int_eq(doubles.loads, 2 * FILES);
    attn_metadata *eager = make_metadata(instance, 0, &problem.bounds, &memory[0]);
    attn_metadata *graph = make_metadata(instance, 1, &problem.bounds, &memory[1]);
    for (int step = 0; step < STEPS; step++) {
        trace_batch(&t, step);
        run_batch(eager, &t);
        if (t.batch.mode == ATTN_MODE_DECODE && t.mask.kind == ATTN_MASK_LAYER)
            run_batch(graph, &t);
        ck_assert_uint_eq(counter->compiled, 2 * FILES);
        ck_assert_uint_eq(counter->cached, 0);
        ck_assert_int_eq(doubles.compiled, 2 * FILES);
        ck_assert_int_eq(doubles.loads, 2 * FILES);
    }
    ck_assert_int_gt(doubles.launches, STEPS);
    ck_assert_int_eq(prepare_instance(instance, &test_error), ATTN_OK);
    ck_assert_uint_eq(counter->compiled, 2 * FILES);
    triton_like_type.ops->destroy(instance);
    ck_assert_int_eq(doubles.unloads, 2 * FILES);
    for (uint32_t i = 0; i < ATTN_REGION_COUNT; i++) {
        free(memory[0].base[i]);
        free(memory[1].base[i]);
    }
}

TEST_OF(steps, extensions_by_their_whole_name)
{
    test_problem t;
    make_decode_problem(&t);
    attn_instance *instance = make_instance(&t, &test_nvrtc, kernels, cache);
    ck_assert_ptr_nonnull(counter_of(instance));
    ck_assert_ptr_null(triton_like_type.ops->get_extension(instance, "attn.compile_counter/2"));
    ck_assert_ptr_null(triton_like_type.ops->get_extension(instance, "attn.compile_counter"));
    triton_like_type.ops->destroy(instance);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static int count_lines(const char *folder, const char *name)
{
    char path[2 * MAX_PATH];
    size_t size;
    int lines = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    char *text = read_file(path, &size);
    ck_assert_ptr_nonnull(text);
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    free(text);
    return lines;
}

/* `text` after the last line of a file: the error names the file, by `shown`, and that line. */
static void expect_error(const nvrtc_api *nvrtc, const char *name, const char *shown,
                         const char *text)
{
    char place[2 * MAX_PATH];
    test_problem t;
    make_decode_problem(&t);
    snprintf(place, sizeof place, "%s(%d)", shown, count_lines(kernels, name) + 1);
    append_text(kernels, name, text);
    attn_instance *instance = make_instance(&t, nvrtc, kernels, cache);
    ck_assert_int_eq(prepare_instance(instance, &test_error), ATTN_DEPENDENCY_MISSING);
    ck_assert_msg(strstr(test_message, place) != NULL, "no '%s' in: %s", place, test_message);
    ck_assert_msg(strstr(test_message, kernels) != NULL, "no '%s' in: %s", kernels, test_message);
    ck_assert_msg(strstr(test_message, "warning") == NULL, "%s", test_message);
    triton_like_type.ops->destroy(instance);
    ck_assert_int_eq(doubles.loads, doubles.unloads);
    copy_kernels(kernels);
}

TEST_OF(errors, errors_name_file_and_line)
{
    char path[2 * MAX_PATH];
    snprintf(path, sizeof path, "%s/extend.cu", kernels);
    expect_error(&test_nvrtc, "extend.cu", path, "#error\n");
    snprintf(path, sizeof path, "%s/save_kv.cu", kernels);
    expect_error(&test_nvrtc, "save_kv.cu", path, "#error\n");
    expect_error(&test_nvrtc, "common.cuh", "common.cuh", "#error\n");
    expect_error(&test_nvrtc, "save_kv.cuh", "plugins/common/cuda/save_kv.cuh", "#error\n");
    ck_assert_int_eq(count_files(""), 2); /* extend.cu and decode.cu of the second and the last */
    ck_assert_int_eq(prepare_plain(), 1);
}

TEST_OF(errors, missing_files_are_named)
{
    char path[2 * MAX_PATH];
    test_problem t;
    make_decode_problem(&t);
    snprintf(path, sizeof path, "%s/decode.cu", kernels);
    ck_assert_int_eq(unlink(path), 0);
    attn_instance *instance = make_instance(&t, &test_nvrtc, kernels, cache);
    ck_assert_int_eq(prepare_instance(instance, &test_error), ATTN_DEPENDENCY_MISSING);
    ck_assert_msg(strstr(test_message, path) != NULL, "%s", test_message);
    ck_assert_msg(strstr(test_message, "kernel_dir") != NULL, "%s", test_message);
    copy_kernels(kernels); /* put right, the same instance goes on */
    ck_assert_msg(prepare_instance(instance, &test_error) == ATTN_OK, "%s", test_message);
    triton_like_type.ops->destroy(instance);
    ck_assert_int_eq(doubles.loads, doubles.unloads);
}

/* ---- The true NVRTC -------------------------------------------------------------------------- */

/* NULL, after saying why, if there is none. The large kernels are made small, for time's sake. */
static const nvrtc_api *find_nvrtc(const char *test)
{
    const nvrtc_api *nvrtc = NULL;
    if (nvrtc_api_get(&nvrtc, &test_error) != ATTN_OK) {
        printf("# SKIP %s: %s\n", test, test_message);
        return NULL;
    }
    write_text(kernels, "extend.cu",
               "#include \"params.h\"\nextern \"C\" __global__ void attn_extend(kernel_params p)\n"
               "{\n    *p.operands.lse = SM_SCALE_BITS;\n}\n");
    write_text(kernels, "decode.cu",
               "extern \"C\" __global__ void attn_decode(float *x) { *x = HEAD_DIM; }\n"
               "extern \"C\" __global__ void attn_reduce(float *x) { *x = V_DIM; }\n");
    return nvrtc;
}

TEST_OF(nvrtc, true_errors_name_file_and_line)
{
    char path[2 * MAX_PATH];
    const nvrtc_api *nvrtc = find_nvrtc("true_errors_name_file_and_line");
    if (!nvrtc)
        return;
    snprintf(path, sizeof path, "%s/extend.cu", kernels);
    expect_error(nvrtc, "extend.cu", path, "int unused = undeclared;\n");
    find_nvrtc("");
    expect_error(nvrtc, "extend.cu", path, "#include \"nowhere.h\"\n");
    find_nvrtc("");
    int major = 0;
    nvrtc->nvrtcVersion(&major, &(int){0});
    if (major >= 13) { /* no header comes in that is not in the key */
        write_text(kernels, "hidden.h", "\n");
        append_text(kernels, "extend.cu", "#define HIDDEN \"hidden.h\"\n");
        expect_error(nvrtc, "extend.cu", path, "#include HIDDEN\n");
        find_nvrtc("");
    }
    expect_error(nvrtc, "params.h", "params.h", "int unused = undeclared;\n");
    find_nvrtc("");
    expect_error(nvrtc, "save_kv.cuh", "plugins/common/cuda/save_kv.cuh",
                 "int unused = undeclared;\n");
}

/* Two processes, two empty caches: the same names and the same bytes. */
TEST_OF(nvrtc, true_binaries_repeat)
{
    char caches[2][MAX_PATH], names[2][8][256], path[8 * MAX_PATH];
    const nvrtc_api *nvrtc = find_nvrtc("true_binaries_repeat");
    test_problem t;
    int status;
    make_decode_problem(&t);
    t.problem.kv_dtype = ATTN_FP8_E4M3;
    t.group.kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    for (int i = 0; i < 2 && nvrtc; i++) {
        make_folder(caches[i]);
        pid_t child = fork();
        if (child == 0) {
            attn_instance *instance = make_instance(&t, nvrtc, kernels, caches[i]);
            int good = prepare_instance(instance, &test_error) == ATTN_OK &&
                       counter_of(instance)->compiled == FILES;
            triton_like_type.ops->destroy(instance);
            _exit(!good);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_eq(status, 0);
        ck_assert_int_eq(list_folder(caches[i], "", names[i], 8), FILES);
    }
    for (int n = 0; n < FILES && nvrtc; n++) {
        size_t sizes[2];
        char *files[2];
        ck_assert_str_eq(names[0][n], names[1][n]);
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof path, "%s/%s", caches[i], names[i][n]);
            files[i] = read_file(path, &sizes[i]);
        }
        ck_assert_uint_eq(sizes[0], sizes[1]);
        ck_assert_uint_gt(sizes[0], 1000);
        ck_assert_int_eq(memcmp(files[0], files[1], sizes[0]), 0);
        free(files[0]);
        free(files[1]);
    }
    for (int i = 0; i < 2 && nvrtc; i++)
        remove_folder(caches[i]);
}

GROUP(key, .set_up = set_up, .tear_down = tear_down);
GROUP(cache, .set_up = set_up, .tear_down = tear_down);
GROUP(steps, .set_up = set_up, .tear_down = tear_down);
GROUP(errors, .set_up = set_up, .tear_down = tear_down);
GROUP(nvrtc, .set_up = set_up, .tear_down = tear_down);
TESTS("triton_compile");
