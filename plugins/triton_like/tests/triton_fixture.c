/* SPDX-License-Identifier: Apache-2.0
 *
 * triton_fixture.c: a driver, an NVRTC and a folder of kernels for triton_like's tests.
 */
#include "plugins/triton_like/tests/triton_fixture.h"
#include "tests/tools/plugin_test.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

test_doubles doubles = {.nvrtc_major = 13, .nvrtc_minor = 0};

void make_decode_problem(test_problem *t)
{
    make_problem(t);
    t->device.num_sms = 132;
    t->layer.layer_id = 0;
    t->bounds =
        (attn_bounds){.struct_size = sizeof t->bounds,
                      .modes = ATTN_MODE_BIT(ATTN_MODE_DECODE) | ATTN_MODE_BIT(ATTN_MODE_MIXED),
                      .mask_kinds = 1,
                      .max_seqs = 8,
                      .max_tokens = 8,
                      .max_q_len = 1,
                      .max_kv_len = 1000};
    t->group.num_q_heads = 32;
    t->group.num_kv_heads = 8;
    t->group.sm_scale = 0.09f;
    t->problem.page_size = 16;
}

/* ---- Binaries -------------------------------------------------------------------------------- */

typedef struct test_binary {
    char magic[8];
    uint64_t hash; /* of the rest */
    unsigned char rest[TEST_BINARY - 16];
} test_binary;

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return hash_bytes(hash, text, strlen(text) + 1);
}

static void make_binary(test_binary *binary, uint64_t seed)
{
    memcpy(binary->magic, "TESTCUBN", 8);
    for (size_t i = 0; i < sizeof binary->rest; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        binary->rest[i] = (unsigned char)(seed >> 56);
    }
    binary->hash = hash_bytes(0, binary->rest, sizeof binary->rest);
}

/* ---- NVRTC ----------------------------------------------------------------------------------- */

/* A program: what identifies it, and the log. */
typedef struct test_program {
    uint64_t hash;
    char log[512];
} test_program;

static int nvrtc_version(int *major, int *minor)
{
    *major = doubles.nvrtc_major;
    *minor = doubles.nvrtc_minor;
    return 0;
}

static const char *nvrtc_error_string(int result)
{
    return result ? "NVRTC_ERROR_COMPILATION" : "NVRTC_SUCCESS";
}

static void find_error(test_program *program, const char *name, const char *text)
{
    const char *at = strstr(text, "#error");
    int line = 1;
    for (const char *c = text; at && c < at; c++)
        line += *c == '\n';
    if (at && !*program->log)
        snprintf(program->log, sizeof program->log,
                 "%s(1): warning #177-D: no error yet\n\n%s(%d): error: #error directive\n", name,
                 name, line);
}

static int nvrtc_create(nvrtc_program *made, const char *source, const char *name, int num_headers,
                        const char *const *headers, const char *const *header_names)
{
    test_program *program = calloc(1, sizeof *program);
    program->hash = hash_text(hash_text(UINT64_C(0xcbf29ce484222325), name), source);
    find_error(program, name, source);
    for (int i = 0; i < num_headers; i++) {
        program->hash = hash_text(hash_text(program->hash, header_names[i]), headers[i]);
        find_error(program, header_names[i], headers[i]);
    }
    *made = program;
    return 0;
}

static int nvrtc_destroy(nvrtc_program *program)
{
    free(*program);
    *program = NULL;
    return 0;
}

static int nvrtc_compile(nvrtc_program given, int num_options, const char *const *options)
{
    test_program *program = given;
    doubles.compiled++;
    if (doubles.delay)
        usleep((unsigned)rand() % doubles.delay);
    for (int i = 0; i < num_options; i++)
        program->hash = hash_text(program->hash, options[i]);
    return *program->log ? 6 : 0;
}

static int nvrtc_log_size(nvrtc_program program, size_t *size)
{
    *size = strlen(((test_program *)program)->log) + 1;
    return 0;
}

static int nvrtc_log(nvrtc_program program, char *log)
{
    memcpy(log, ((test_program *)program)->log, strlen(((test_program *)program)->log) + 1);
    return 0;
}

static int nvrtc_cubin_size(nvrtc_program program, size_t *size)
{
    (void)program;
    *size = sizeof(test_binary);
    return 0;
}

static int nvrtc_cubin(nvrtc_program program, char *cubin)
{
    test_binary *binary = malloc(sizeof *binary);
    make_binary(binary, ((test_program *)program)->hash);
    memcpy(cubin, binary, sizeof *binary);
    free(binary);
    return 0;
}

const nvrtc_api test_nvrtc = {.nvrtcVersion = nvrtc_version,
                              .nvrtcGetErrorString = nvrtc_error_string,
                              .nvrtcCreateProgram = nvrtc_create,
                              .nvrtcDestroyProgram = nvrtc_destroy,
                              .nvrtcCompileProgram = nvrtc_compile,
                              .nvrtcGetProgramLogSize = nvrtc_log_size,
                              .nvrtcGetProgramLog = nvrtc_log,
                              .nvrtcGetCUBINSize = nvrtc_cubin_size,
                              .nvrtcGetCUBIN = nvrtc_cubin};

/* ---- Driver ---------------------------------------------------------------------------------- */

enum { INVALID_IMAGE = 200 };

static int driver_load(cuda_module *module, const void *image)
{
    const test_binary *binary = image;
    uint64_t hash = 0;
    if (memcmp(image, "TESTCUBN", 8) == 0) {
        hash = hash_bytes(0, binary->rest, sizeof binary->rest);
        if (hash != binary->hash)
            return INVALID_IMAGE;
    } else if (memcmp(image, "\177ELF", 4) != 0) {
        return INVALID_IMAGE;
    }
    if (doubles.loads < TEST_MAX_LOADS)
        doubles.loaded[doubles.loads] = hash;
    doubles.loads++;
    *module = malloc(1);
    return CUDA_OK;
}

static int driver_unload(cuda_module module)
{
    doubles.unloads++;
    free(module);
    return CUDA_OK;
}

static int driver_function(cuda_function *function, cuda_module module, const char *name)
{
    (void)name;
    *function = module;
    return CUDA_OK;
}

static int driver_attribute(cuda_function function, unsigned attribute, int value)
{
    (void)function;
    (void)attribute;
    (void)value;
    return CUDA_OK;
}

static int driver_launch(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                         cuda_stream stream, void **params, void **extra)
{
    (void)shared;
    (void)stream;
    (void)extra;
    ck_assert(function && params && params[0]);
    ck_assert(grid_x && grid_y && grid_z && block_x && block_y && block_z);
    doubles.launches++;
    return CUDA_OK;
}

static int driver_memset(cuda_address to, unsigned value, size_t count, cuda_stream stream)
{
    (void)stream;
    for (size_t i = 0; i < count; i++)
        ((unsigned *)(uintptr_t)to)[i] = value;
    return CUDA_OK;
}

static int driver_error_name(unsigned result, const char **name)
{
    *name = result == INVALID_IMAGE ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR";
    return CUDA_OK;
}

const cuda_api test_driver = {.cuGetErrorName = driver_error_name,
                              .cuModuleLoadData = driver_load,
                              .cuModuleUnload = driver_unload,
                              .cuModuleGetFunction = driver_function,
                              .cuFuncSetAttribute = driver_attribute,
                              .cuMemsetD32Async = driver_memset,
                              .cuLaunchKernel = driver_launch};

/* ---- Instances ------------------------------------------------------------------------------- */

static void test_log(void *ctx, uint32_t level, const char *text)
{
    (void)ctx;
    if (level > ATTN_LOG_WARNING)
        return;
    if (doubles.warnings++ == 0)
        snprintf(doubles.warning, sizeof doubles.warning, "%s", text);
}

const attn_services test_services = {.struct_size = sizeof test_services,
                                     .num_workers = 1,
                                     .log = test_log,
                                     .allocate = test_allocate,
                                     .release = test_release};

attn_instance *make_instance(const test_problem *t, const nvrtc_api *nvrtc, const char *kernel_dir,
                             const char *cache_dir)
{
    size_t size = sizeof(attn_instance) + sizeof(triton_group) + sizeof(attn_util_layer);
    attn_instance *made = test_allocate(NULL, ATTN_SPACE_HOST, size, 64);
    *made = (attn_instance){.services = &test_services,
                            .cuda = &test_driver,
                            .nvrtc = nvrtc,
                            .device = {.sm = t->device.sm,
                                       .num_sms = t->device.num_sms,
                                       .shared_memory = t->device.shared_memory},
                            .num_groups = 1,
                            .counter = {.struct_size = sizeof(compile_counter)},
                            .groups = (triton_group *)(made + 1)};
    triton_options_read(NULL, &made->options, NULL);
    snprintf(made->options.kernel_dir, MAX_PATH, "%s", kernel_dir);
    snprintf(made->options.cache_dir, MAX_PATH, "%s", cache_dir);
    triton_group_init(made->groups, &t->problem);
    made->groups->base.layers = (attn_util_layer *)(made->groups + 1);
    made->groups->base.layers[0] = (attn_util_layer){.layer_id = t->layer.layer_id};
    return made;
}

attn_status prepare_instance(attn_instance *instance, attn_error *error)
{
    return triton_like_type.ops->prepare(instance, NULL, NULL, error);
}

/* ---- Folders --------------------------------------------------------------------------------- */

void make_folder(char *path)
{
    strcpy(path, "/tmp/triton_like.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(path));
}

static void join(char *path, const char *folder, const char *name)
{
    ck_assert_int_lt(snprintf(path, 2 * MAX_PATH, "%s/%s", folder, name), 2 * MAX_PATH);
}

void remove_folder(const char *path)
{
    char below[2 * MAX_PATH];
    DIR *entries = opendir(path);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        join(below, path, entry->d_name);
        if (unlink(below) != 0)
            remove_folder(below);
    }
    if (entries)
        closedir(entries);
    rmdir(path);
}

static void write_file(const char *folder, const char *name, const char *mode, const char *text)
{
    char path[2 * MAX_PATH];
    join(path, folder, name);
    FILE *file = fopen(path, mode);
    ck_assert_msg(file != NULL, "%s", path);
    ck_assert_uint_eq(fwrite(text, 1, strlen(text), file), strlen(text));
    ck_assert_int_eq(fclose(file), 0);
}

void write_text(const char *folder, const char *name, const char *text)
{
    write_file(folder, name, "w", text);
}

void append_text(const char *folder, const char *name, const char *more)
{
    write_file(folder, name, "a", more);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

int list_folder(const char *folder, const char *ending, char names[][256], int most)
{
    int count = 0;
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        size_t length = strlen(entry->d_name), tail = strlen(ending);
        if (*entry->d_name == '.' || length < tail ||
            strcmp(entry->d_name + length - tail, ending) != 0)
            continue;
        ck_assert_int_lt(count, most);
        snprintf(names[count++], 256, "%s", entry->d_name);
    }
    if (entries)
        closedir(entries);
    qsort(names, (size_t)count, 256, compare_names);
    return count;
}

void copy_kernels(const char *to)
{
    static const struct {
        const char *folder, *ending;
    } sources[] = {{"plugins/triton_like/kernels", ""},
                   {"plugins/common/cuda", ".cuh"},
                   {"plugins/common/cuda", "call.h"},
                   {"plugins/common/cuda", "portable.h"}};
    const char *top = getenv("ATTNHOST_TEST_SRCDIR");
    char names[32][256], folder[MAX_PATH], path[2 * MAX_PATH];
    for (int i = 0; i < 4; i++) {
        snprintf(folder, sizeof folder, "%s/%s", top ? top : ".", sources[i].folder);
        int count = list_folder(folder, sources[i].ending, names, 32);
        ck_assert_msg(count > 0 || i > 0, "%s", folder);
        for (int n = 0; n < count; n++) {
            size_t size;
            join(path, folder, names[n]);
            char *text = read_file(path, &size);
            ck_assert_msg(text != NULL, "%s", path);
            write_text(to, names[n], text);
            free(text);
        }
    }
}
