/* SPDX-License-Identifier: Apache-2.0
 *
 * device_common_cuda.c: images, launches with attributes and descriptors of tensors on a GPU: that
 * what check_common_cuda.c tests on the fake driver is so. Prints TAP.
 */
#include "tests/tools/cuda_device.h"

#include "plugins/common/cuda/image.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/tensor_map.h"
#include "plugins/common/configured.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_NVCC

CUDA_IMAGE_DECLARE(seam_kernels)
static const cuda_image images[] = {CUDA_IMAGE(seam_kernels)};

static cuda_device cuda;
static cuda_facts facts;
static cuda_module module;
static char message[512];
static attn_error error = {
    .struct_size = sizeof error, .capacity = sizeof message, .message = message};
static int tests, failures;

static void result(int good, const char *what)
{
    tests++;
    failures += !good;
    printf("%sok %d - %s\n", good ? "" : "not ", tests, what);
    if (!good && *message)
        printf("# %s\n", message);
    *message = '\0';
}

static void skip(const char *what)
{
    printf("ok %d - %s # SKIP sm_%u has none\n", ++tests, what, facts.sm);
}

static cuda_launch kernel(const char *name, uint32_t shared)
{
    const cuda_wants wants = {.shared = shared, .large_clusters = facts.sm >= 90};
    cuda_launch made = {.name = name, .grid = {1, 1, 1}, .block = {32}, .shared = shared};
    if (cuda_function_find(cuda.api, &facts, module, name, &wants, &made.function, &error) !=
        ATTN_OK)
        test_bail_out(name, message);
    return made;
}

static int run(const cuda_launch *launch, void **params)
{
    return cuda_launch_run(cuda.api, launch, params, NULL, &error) == ATTN_OK;
}

static uint32_t word_at(const red_buffer *buffer, size_t index)
{
    uint32_t word = 0;
    cuda_download(&cuda, buffer, index * sizeof word, &word, sizeof word);
    return word;
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Clusters of `cluster` blocks, with all the shared memory that a block may have. */
static int runs_in_clusters(uint32_t cluster, uint32_t shared)
{
    enum { BLOCKS = 32 };
    red_buffer to = cuda_take(&cuda, 2 * BLOCKS * sizeof(uint32_t));
    void *address = red_pointer(&to);
    int words = (int)(shared / 4), good;
    void *params[] = {&address, &words};
    cuda_launch launch = kernel("seam_launched", shared);
    launch.grid[0] = BLOCKS;
    launch.cluster[0] = cluster;
    good = run(&launch, params);
    for (uint32_t i = 0; i < BLOCKS && good; i++)
        good =
            word_at(&to, 2 * i) == (cluster ? cluster : 1) && word_at(&to, 2 * i + 1) == 1000 + i;
    cuda_give(&cuda, &to);
    return good;
}

static void check_launches(void)
{
    result(runs_in_clusters(0, 4096), "a plain launch");
    result(runs_in_clusters(0, facts.shared_memory), "all the shared memory of a block");
    if (facts.sm < 90) {
        skip("clusters of 4");
        skip("clusters of 16");
    } else {
        result(runs_in_clusters(4, 4096), "clusters of 4");
        result(runs_in_clusters(16, 4096), "clusters of 16");
    }
}

/* Ten times, each value another: what comes after has waited. */
static void check_programmatic(void)
{
    red_buffer from = cuda_take(&cuda, 4), to = cuda_take(&cuda, 4);
    void *from_address = red_pointer(&from), *to_address = red_pointer(&to);
    uint32_t value = 0;
    void *slow_params[] = {&from_address, &value}, *after_params[] = {&from_address, &to_address};
    cuda_launch slow = kernel("seam_slow", 0), after = kernel("seam_after", 0);
    int good = 1;
    after.programmatic = 1;
    for (value = 1; value <= 10 && good; value++)
        good = run(&slow, slow_params) && run(&after, after_params) && word_at(&to, 0) == value;
    cuda_give(&cuda, &from);
    cuda_give(&cuda, &to);
    result(good, "a programmatic launch waits for what it has to");
}

static void check_cooperative(void)
{
    red_buffer count = cuda_take(&cuda, 4);
    const uint32_t zero = 0;
    void *address = red_pointer(&count), *params[] = {&address};
    cuda_launch launch = kernel("seam_together", 0);
    cuda_upload(&cuda, &count, 0, &zero, sizeof zero);
    launch.grid[0] = facts.num_sms;
    launch.cooperative = 1;
    int good = run(&launch, params) && word_at(&count, 0) == facts.num_sms;
    result(good, "blocks of a cooperative launch run together");
    launch.grid[0] = (int64_t)facts.num_sms * 2048;
    result(!run(&launch, params), "one that is too large is refused");
    *message = '\0';
    cuda_give(&cuda, &count);
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

enum { PAGES = 3, TOKENS = 6, HEADS = 2, DIM = 64, BOX_TOKENS = 8 };

/* Tokens [0, BOX_TOKENS) of a head of a page [pages, tokens, heads, dim], as kernels see them:
 * dimensions dim, head, token, page. */
static int box_arrives(int page, int head, const uint16_t *cache, const red_buffer *memory)
{
    uint16_t rows[BOX_TOKENS][DIM];
    red_buffer to = cuda_take(&cuda, sizeof rows);
    void *address = red_pointer(&to);
    int bytes = sizeof rows, good = 1;
    cuda_tensor_map map;
    const cuda_tensor_box box = {.name = "cache",
                                 .data = red_pointer(memory),
                                 .dtype = ATTN_BF16,
                                 .rank = 4,
                                 .shape = {DIM, HEADS, TOKENS, PAGES},
                                 .strides = {0, DIM * 2, HEADS * DIM * 2, TOKENS * HEADS * DIM * 2},
                                 .box = {DIM, 1, BOX_TOKENS, 1},
                                 .l2 = 128};
    void *params[] = {&map, &address, &bytes, &head, &page};
    cuda_launch launch = kernel("seam_box", sizeof rows);
    good = cuda_tensor_map_make(cuda.api, &box, &map, &error) == ATTN_OK && run(&launch, params);
    cuda_download(&cuda, &to, 0, rows, sizeof rows);
    for (int t = 0; t < BOX_TOKENS && good; t++)
        for (int d = 0; d < DIM && good; d++)
            good = rows[t][d] ==
                   (t < TOKENS ? cache[((page * TOKENS + t) * HEADS + head) * DIM + d] : 0);
    cuda_give(&cuda, &to);
    return good;
}

static void check_boxes(void)
{
    uint16_t cache[PAGES * TOKENS * HEADS * DIM];
    for (size_t i = 0; i < sizeof cache / sizeof cache[0]; i++)
        cache[i] = (uint16_t)(i + 1);
    if (facts.sm < 90) {
        skip("boxes of a tensor");
        return;
    }
    red_buffer memory = cuda_take(&cuda, sizeof cache);
    cuda_upload(&cuda, &memory, 0, cache, sizeof cache);
    int good = 1;
    for (int page = 0; page < PAGES; page++)
        for (int head = 0; head < HEADS; head++)
            good = good && box_arrives(page, head, cache, &memory);
    cuda_give(&cuda, &memory);
    result(good, "boxes of a tensor, zeros beyond it");
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!cuda_device_open(&cuda)) {
        printf("1..0 # SKIP %s\n", cuda.why);
        return EXIT_SUCCESS;
    }
    if (cuda_facts_find(cuda.api, &cuda.device, &facts, &error) != ATTN_OK ||
        cuda_image_load(cuda.api, &facts, images, 1, &module, NULL, &error) != ATTN_OK) {
        printf("1..0 # SKIP %s\n", message);
        return EXIT_SUCCESS;
    }
    check_launches();
    check_programmatic();
    check_cooperative();
    check_boxes();
    printf("1..%d\n", tests);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

#else

int main(void)
{
    puts("1..0 # SKIP no nvcc at configure time: no kernel is embedded");
    return EXIT_SUCCESS;
}

#endif
