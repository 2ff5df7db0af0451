/* SPDX-License-Identifier: Apache-2.0
 *
 * device_common_kernels.c: the kernels that plugins share on a GPU: to the bit what the same source
 * gives compiled as C, which check_common_kernels.c holds to the oracle. All values of fp16 and
 * bf16, both fp8 types, all scales of common_kernels_case.h, both layouts; merging of one to nine
 * states. Prints TAP.
 */
#include "plugins/common/tests/common_kernels_case.h"
#include "plugins/common/configured.h"
#include "tests/tools/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_NVCC

extern const unsigned char common_kernels_fatbin[];

static cuda_device cuda;
static cuda_stream stream;
static cuda_function save_function, many_function, two_function, narrow_function;
static int tests, failures;

static void launch(cuda_function function, unsigned x, unsigned y, unsigned threads, void **params)
{
    cuda_must(&cuda,
              cuda.api->cuLaunchKernel(function, x, y, 1, threads, 1, 1, 0, stream, params, NULL),
              "cuLaunchKernel");
    cuda_must(&cuda, cuda.api->cuStreamSynchronize(stream), "the kernel");
}

static void result(long wrong, const char *what, long count)
{
    tests++;
    failures += wrong != 0;
    if (wrong)
        printf("# %ld of %ld differ\n", wrong, count);
    printf("%sok %d - %s\n", wrong ? "not " : "", tests, what);
}

/* Does a buffer hold these bytes, and its red zones theirs? */
static int holds(const red_buffer *buffer, const void *bytes)
{
    char *copy = malloc(buffer->bytes);
    cuda_download(&cuda, buffer, 0, copy, buffer->bytes);
    int same = memcmp(copy, bytes, buffer->bytes) == 0 && cuda_red_zones_hit(&cuda, buffer) == 0;
    free(copy);
    return same;
}

static red_buffer take_copy(const void *from, size_t bytes)
{
    red_buffer buffer = cuda_take(&cuda, bytes);
    cuda_upload(&cuda, &buffer, 0, from, bytes);
    return buffer;
}

/* ---- Saving ---------------------------------------------------------------------------------- */

/* Returns whether a case comes out otherwise. */
static int save_differs(save_case *c)
{
    save_kv_call call = c->call;
    i64 rows = SAVE_ROWS;
    red_buffer buffers[6], *from = buffers, *to = buffers + 2;
    for (int side = 0; side < 2; side++) {
        from[side] = take_copy(c->from[side], c->from_bytes);
        to[side] = take_copy(c->to[side], c->to_bytes);
    }
    buffers[4] = take_copy(c->scales, SAVE_HEADS * sizeof *c->scales);
    buffers[5] = take_copy(c->slots, SAVE_ROWS * sizeof *c->slots);
    call.k.from = red_pointer(&from[0]);
    call.v.from = red_pointer(&from[1]);
    call.k.to = red_pointer(&to[0]);
    call.v.to = red_pointer(&to[1]);
    call.k.scales = call.v.scales = red_pointer(&buffers[4]);
    call.slots = red_pointer(&buffers[5]);
    void *params[] = {&call, &rows};
    launch(save_function, 100, SAVE_HEADS, 64, params);
    save_case_run(c);
    int differs = !holds(&to[0], c->to[0]) || !holds(&to[1], c->to[1]);
    for (int i = 0; i < 6; i++)
        cuda_give(&cuda, &buffers[i]);
    return differs;
}

static void check_saving(void)
{
    long wrong = 0, count = 0;
    for (int from = ELEMENT_F32; from <= ELEMENT_BF16; from++)
        for (int to = ELEMENT_F32; to <= ELEMENT_E5M2; to++)
            for (int i = 0; i < CASE_SCALES && (to == from || element_is_fp8(to)); i++) {
                save_case c;
                save_case_init(&c, (unsigned)i, from, to, case_scales[i], i % 4 < 2);
                wrong += save_differs(&c);
                count++;
                save_case_finish(&c);
            }
    result(wrong, "saved KV has the bits of the C function", count);
}

/* ---- Merging --------------------------------------------------------------------------------- */

static int merge_differs(merge_case *c, int two)
{
    merge_states states = c->states, b;
    merge_result merged = c->result;
    red_buffer out_in = take_copy(c->out_in, c->out_in_bytes);
    red_buffer lse_in = take_copy(c->lse_in, c->lse_in_bytes);
    red_buffer out = take_copy(c->out, c->out_bytes), lse = take_copy(c->lse, c->lse_bytes);
    states.out = red_pointer(&out_in);
    states.lse = red_pointer(&lse_in);
    merged.out = red_pointer(&out);
    merged.lse = red_pointer(&lse);
    b = states;
    b.out = (const char *)b.out + b.out_state;
    b.lse = (const char *)b.lse + b.lse_state;
    void *params_many[] = {&states, &c->sink, &merged}, *params_two[] = {&states, &b, &merged};
    launch(two ? two_function : many_function, MERGE_ROWS, MERGE_HEADS, 32,
           two ? params_two : params_many);
    merge_case_run(c, two, 1);
    int differs = !holds(&out, c->out) || !holds(&lse, c->lse);
    cuda_give(&cuda, &out_in);
    cuda_give(&cuda, &lse_in);
    cuda_give(&cuda, &out);
    cuda_give(&cuda, &lse);
    return differs;
}

static void check_merging(int two)
{
    long wrong = 0, count = 0;
    for (int states = two ? 2 : 1; states <= (two ? 2 : MERGE_MAX_STATES); states++)
        for (int kind = 0; kind < MERGE_KINDS; kind++)
            for (unsigned seed = 0; seed < 20; seed++) {
                merge_case c;
                merge_case_init(&c, seed, kind, states, (int)seed % 3, (int)(seed / 3) % 3);
                wrong += merge_differs(&c, two);
                count++;
                merge_case_finish(&c);
            }
    result(wrong,
           two ? "two merged states have the bits of the C function"
               : "many merged states have the bits of the C function",
           count);
}

/* ---- Conversions ----------------------------------------------------------------------------- */

/* As the kernel test_narrow. */
static void narrow_sums(u32 high, u32 sums[4])
{
    memset(sums, 0, 4 * sizeof *sums);
    for (u32 low = 0; low < 0x10000; low++) {
        float x = bits_f32(high << 16 | low);
        u32 weight = low * 2 + 1;
        sums[0] += weight * element_to_f16(x);
        sums[1] += weight * element_to_bf16(x);
        sums[2] += weight * element_to_fp8(ELEMENT_E4M3, x);
        sums[3] += weight * element_to_fp8(ELEMENT_E5M2, x);
    }
}

static void check_narrowing(void)
{
    enum { BLOCKS = 0x10000, STEP = 61 };
    size_t bytes = (size_t)BLOCKS * 4 * sizeof(u32);
    u32 *sums = calloc(1, bytes), first = 0;
    red_buffer buffer = take_copy(sums, bytes);
    void *at = red_pointer(&buffer), *params[] = {&first, &at};
    long wrong = 0, count = 0;
    launch(narrow_function, BLOCKS, 1, 256, params);
    cuda_download(&cuda, &buffer, 0, sums, bytes);
    for (u32 high = 0; high < BLOCKS; high += STEP, count++) {
        u32 mine[4];
        narrow_sums(high, mine);
        wrong += memcmp(mine, sums + (size_t)high * 4, sizeof mine) != 0;
    }
    cuda_give(&cuda, &buffer);
    free(sums);
    result(wrong, "fp32 becomes the same fp16, bf16, e4m3 and e5m2", count);
}

/* ---------------------------------------------------------------------------------------------- */

static void find_function(cuda_module module, const char *name, cuda_function *function)
{
    cuda_must(&cuda, cuda.api->cuModuleGetFunction(function, module, name), name);
}

int main(void)
{
    cuda_module module;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!cuda_device_open(&cuda)) {
        printf("1..0 # SKIP %s\n", cuda.why);
        return EXIT_SUCCESS;
    }
    if (cuda.api->cuModuleLoadData(&module, common_kernels_fatbin) != CUDA_OK) {
        printf("1..0 # SKIP the embedded kernels are not for sm_%u\n", cuda.device.sm);
        return EXIT_SUCCESS;
    }
    cuda_must(&cuda, cuda.api->cuStreamCreate(&stream, 0), "cuStreamCreate");
    find_function(module, "test_save_kv", &save_function);
    find_function(module, "test_merge_many", &many_function);
    find_function(module, "test_merge_two", &two_function);
    find_function(module, "test_narrow", &narrow_function);
    check_saving();
    check_merging(0);
    check_merging(1);
    check_narrowing();
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
