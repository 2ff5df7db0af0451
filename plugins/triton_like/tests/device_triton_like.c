/* SPDX-License-Identifier: Apache-2.0
 *
 * device_triton_like.c: the plugin's .so on a GPU, against the oracle; and how fast it is.
 *
 *   device_triton_like                     splits, and a few cases (make check)
 *   device_triton_like check FIRST COUNT   cases of seeds FIRST and following
 *   device_triton_like splits              how the device splits keys, against the host
 *   device_triton_like time                prefill and decode, medians over device events
 *
 * Cases are those of cpu_native_case.h: caches poisoned with NaN, indices that must not be read,
 * needles at the borders, red zones around outputs; the ones that query refuses are passed over.
 * And every cached key that no query sees, whatever hides it, is NaN (KV-06); FULL masks hide many.
 * Each case is run eagerly, then captured and replayed with other queries and fewer sequences: to
 * the bit what an eager run gives.
 *
 * The .so is $ATTNHOST_TEST_PLUGIN_DIR/triton_like.so, the kernels are those of
 * $ATTNHOST_TEST_SRCDIR/plugins/triton_like/kernels. Prints TAP.
 */
#include "tests/tools/cpu_native_case.h"
#include "plugins/triton_like/tests/device_triton_like.h"

#include "host/base/dtype.h"
#include "host/reference/reference.h"
#include "plugins/triton_like/kernels/splits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t hidden; /* keys that were made NaN */

/* ---- A case on the device -------------------------------------------------------------------- */

/* The case with every pointer into device memory. */
typedef struct twin {
    buffers memory;
    attn_problem problem;
    attn_batch batch;
    attn_kv_batch kv;
    attn_mask mask;
    attn_tensor q, k, v, k_cache, v_cache, out, lse, sinks, slopes;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_forward_args args;
} twin;

static attn_tensor upload_tensor(twin *t, const case_tensor *from)
{
    attn_tensor tensor = from->tensor;
    tensor.device_type = ATTN_DEVICE_CUDA;
    tensor.data = upload(&t->memory, from->memory, from->bytes);
    return tensor;
}

static attn_tensor upload_values(twin *t, attn_tensor tensor)
{
    tensor.device_type = ATTN_DEVICE_CUDA;
    tensor.data = upload(&t->memory, tensor.data, (size_t)tensor.shape[0] * sizeof(float));
    return tensor;
}

static attn_i32_array upload_ints(twin *t, attn_i32_array array, int64_t count)
{
    array.device = upload(&t->memory, array.device, (size_t)count * sizeof(int32_t));
    array.host = NULL;
    return array;
}

static void upload_batch(twin *t, const attn_case *c)
{
    int64_t seqs = c->batch.num_seqs, rows = c->q_indptr[seqs];
    t->batch = c->batch;
    t->kv = c->kv;
    t->mask = c->mask;
    t->batch.seq_lens = upload_ints(t, c->batch.seq_lens, seqs);
    t->batch.prefix_lens = upload_ints(t, c->batch.prefix_lens, seqs);
    t->batch.q_indptr = upload_ints(t, c->batch.q_indptr, seqs + 1);
    t->batch.positions = upload_ints(t, c->batch.positions, rows);
    t->batch.req_pool_indices = upload_ints(t, c->batch.req_pool_indices, seqs);
    t->batch.mask = c->batch.mask ? &t->mask : NULL;
    t->batch.kv_groups = &t->kv;
    t->kv.kv_lens = upload_ints(t, c->kv.kv_lens, seqs);
    t->kv.block_table = upload_ints(t, c->kv.block_table, seqs * c->kv.block_table_stride);
    t->kv.req_to_token = upload_ints(t, c->kv.req_to_token, (seqs + 3) * c->kv.req_to_token_stride);
    t->kv.out_cache_loc.device =
        upload(&t->memory, c->kv.out_cache_loc.device, (size_t)rows * sizeof(int64_t));
    t->mask.indptr.device =
        upload(&t->memory, c->mask.indptr.device, (size_t)(seqs + 1) * sizeof(int64_t));
    if (c->mask.bits)
        t->mask.bits = upload(&t->memory, c->mask.bits, (size_t)c->mask_indptr[seqs]);
}

static void twin_create(twin *t, const attn_case *c)
{
    memset(t, 0, sizeof *t);
    t->problem = c->problem;
    t->problem.device = &gpu.device;
    t->problem.graph_level = ATTN_GRAPH_ALWAYS;
    upload_batch(t, c);
    t->q = upload_tensor(t, &c->q);
    t->k = upload_tensor(t, &c->k);
    t->v = upload_tensor(t, &c->v);
    t->out = upload_tensor(t, &c->out);
    t->lse = upload_tensor(t, &c->lse);
    t->sinks = upload_values(t, c->sinks_tensor);
    t->slopes = upload_values(t, c->slopes_tensor);
    if (c->problem.kv_layout) {
        t->k_cache = upload_tensor(t, &c->k_cache);
        t->v_cache = upload_tensor(t, &c->v_cache);
    }
    const attn_tensor *const twins[ATTN_ROLE_COUNT] = {[ATTN_ROLE_Q] = &t->q,
                                                       [ATTN_ROLE_K] = &t->k,
                                                       [ATTN_ROLE_V] = &t->v,
                                                       [ATTN_ROLE_OUT] = &t->out,
                                                       [ATTN_ROLE_LSE] = &t->lse,
                                                       [ATTN_ROLE_K_CACHE] = &t->k_cache,
                                                       [ATTN_ROLE_V_CACHE] = &t->v_cache,
                                                       [ATTN_ROLE_SINKS] = &t->sinks,
                                                       [ATTN_ROLE_ALIBI_SLOPES] = &t->slopes};
    for (int role = 0; role < ATTN_ROLE_COUNT; role++)
        t->operands[role] = c->operands[role] ? twins[role] : NULL;
    t->args = c->args;
    t->args.operands = t->operands;
}

static void download(case_tensor *to, const attn_tensor *from)
{
    if (to->bytes && from->data)
        must(cuda->cuMemcpyDtoH_v2(to->memory, (cuda_address)(uintptr_t)from->data, to->bytes),
             "cuMemcpyDtoH");
}

static void refresh(const case_tensor *from, const attn_tensor *to)
{
    must(cuda->cuMemcpyHtoD_v2((cuda_address)(uintptr_t)to->data, from->memory, from->bytes),
         "cuMemcpyHtoD");
}

/* Outputs poisoned here and there. */
static void poison(attn_case *c, twin *t)
{
    case_poison(c);
    refresh(&c->out, &t->out);
    refresh(&c->lse, &t->lse);
}

static void fetch_outputs(setup *u, attn_case *c, twin *t)
{
    must(cuda->cuStreamSynchronize(u->stream), "the kernels");
    download(&c->out, &t->out);
    download(&c->lse, &t->lse);
}

/* ---- Keys that no query sees ----------------------------------------------------------------- */

/* What query t of a sequence sees. */
static reference_sight sight_of(const attn_case *c, int32_t s, int32_t t)
{
    reference_sight sight = reference_sight_all();
    int32_t row = c->q_indptr[s] + t;
    sight.mask_kind = c->mask.kind;
    sight.position = c->positions ? c->positions[row] : c->prefix[s] + t;
    sight.prefix_len = c->prefix[s];
    sight.window_left = c->group.window_left;
    sight.window_right = c->group.window_right;
    sight.attention_chunk = c->group.attention_chunk;
    sight.key_positions = c->positions ? c->positions + c->q_indptr[s] : NULL;
    if (c->mask_bits) {
        sight.mask_columns = c->mask.kind == ATTN_MASK_FULL ? c->kv_len[s] : c->q_len[s];
        sight.mask_bits = c->mask_bits;
        sight.mask_first_bit = c->mask_indptr[s] * 8 + t * sight.mask_columns;
    }
    return sight;
}

static int is_seen(const attn_case *c, int32_t s, int32_t j)
{
    for (int32_t t = 0; t < c->q_len[s]; t++) {
        reference_sight sight = sight_of(c, s, t);
        if (reference_sees(&sight, j))
            return 1;
    }
    return 0;
}

/* Hide key j from all queries of the sequence. */
static void clear_bits(attn_case *c, int32_t s, int32_t j)
{
    for (int32_t t = 0; t < c->q_len[s]; t++) {
        int64_t bit = c->mask_indptr[s] * 8 + (int64_t)t * c->kv_len[s] + j;
        c->mask_bits[bit / 8] &= (uint8_t) ~(1 << bit % 8);
    }
}

static void fill_key(const attn_case *c, case_tensor *cache, int32_t s, int32_t j, double value)
{
    const attn_tensor *tensor = &cache->tensor;
    int32_t page_size = c->problem.page_size;
    int hnd = strcmp(c->problem.kv_layout, ATTN_LAYOUT_KV_HND) == 0;
    int64_t page = c->pages[s * c->pages_of_seq + j / page_size], offset = j % page_size;
    for (int64_t head = 0; head < c->group.num_kv_heads; head++) {
        int64_t at = page * tensor->strides[0] + (hnd ? head : offset) * tensor->strides[1] +
                     (hnd ? offset : head) * tensor->strides[2];
        for (int64_t d = 0; d < tensor->shape[3]; d++)
            dtype_store(tensor->dtype, cache->memory + tensor->byte_offset, at + d, value);
    }
}

/* NaN wherever no query looks; a FULL mask is made to hide a third of the cached keys. */
static void poison_unseen(attn_case *c)
{
    for (int32_t s = 0; s < c->batch.num_real_seqs && c->problem.kv_layout; s++) {
        int32_t cached = c->kv_len[s] - (c->from_cache ? 0 : c->num_new[s]);
        for (int32_t j = 0; j < cached; j++) {
            if (c->mask.kind == ATTN_MASK_FULL && case_draw(c, 3) == 0)
                clear_bits(c, s, j);
            if (is_seen(c, s, j))
                continue;
            fill_key(c, &c->k_cache, s, j, (double)NAN);
            fill_key(c, &c->v_cache, s, j, (double)NAN);
            hidden++;
        }
    }
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static int failures, checked, few_queries, mixed;
static double worst;

static void fail(const char *what, const char *why)
{
    failures++;
    printf("# %s: %s\n", what, why);
}

static char *copy_bytes(const case_tensor *t)
{
    char *copy = malloc(t->bytes ? t->bytes : 1);
    memcpy(copy, t->memory ? t->memory : "", t->bytes);
    return copy;
}

static void check_outputs(const attn_case *c, const reference_result *result, const char *what)
{
    reference_report report = {0};
    char text[512];
    triton_need(reference_compare(result, &c->out.tensor, c->operands[ATTN_ROLE_LSE], &report,
                                  &triton_error),
                what);
    snprintf(text, sizeof text, "%lld of %lld rows, %lld LSE, %lld of padding: %s",
             (long long)report.rows_failed, (long long)report.rows_checked,
             (long long)report.lse_failed, (long long)report.padding_failed, report.message);
    if (report.rows_failed + report.lse_failed + report.padding_failed > 0)
        fail(what, text);
    if (report.worst_ratio > worst)
        worst = report.worst_ratio;
    if (case_red_zone(c) != 0)
        fail(what, "bytes around the output were written");
}

static void check_cache(const attn_case *c, char *k_before, char *v_before, const char *what)
{
    int64_t place[2] = {0};
    int64_t wrong = c->problem.kv_layout ? case_wrong_keys(c, k_before, v_before, place) : 0;
    if (wrong) {
        char text[160];
        snprintf(text, sizeof text, "%lld bytes of the cache differ; page %lld, offset %lld",
                 (long long)wrong, (long long)place[0], (long long)place[1]);
        fail(what, text);
    }
}

static void eager(setup *u, attn_case *c, twin *t)
{
    poison(c, t);
    triton_need(
        type->ops->init_forward_metadata(u->metadata[0], &t->batch, u->stream, &triton_error),
        "init");
    triton_need(forward(u, 0, t->batch.mode, c->layer.layer_id, &t->args), "forward");
    fetch_outputs(u, c, t);
}

/* Other queries: the same ones of the other sign. */
static void negate_queries(attn_case *c, twin *t)
{
    uint16_t *bits = (uint16_t *)(void *)c->q.memory;
    for (uint64_t i = 0; i < c->q.bytes / 2; i++)
        bits[i] ^= 0x8000;
    refresh(&c->q, &t->q);
}

static void compare_bits(const attn_case *c, const char *out, const char *lse, const char *what)
{
    if (memcmp(out, c->out.memory, c->out.bytes) != 0)
        fail(what, "the replayed output differs from the eager one");
    if (memcmp(lse, c->lse.memory, c->lse.bytes) != 0)
        fail(what, "the replayed LSE differs from the eager one");
}

static void replay(setup *u, attn_case *c, twin *t, cuda_graph_exec exec, const char *what)
{
    eager(u, c, t);
    char *out = copy_bytes(&c->out), *lse = copy_bytes(&c->lse);
    poison(c, t);
    triton_need(
        type->ops->init_forward_metadata(u->metadata[1], &t->batch, u->stream, &triton_error),
        "init");
    must(cuda->cuGraphLaunch(exec, u->stream), "cuGraphLaunch");
    fetch_outputs(u, c, t);
    compare_bits(c, out, lse, what);
    free(out);
    free(lse);
}

static void check_graph(setup *u, attn_case *c, twin *t, const char *what)
{
    cuda_graph graph;
    cuda_graph_exec exec;
    triton_need(
        type->ops->init_forward_metadata(u->metadata[1], &t->batch, u->stream, &triton_error),
        "init");
    t->args.flags |= ATTN_FORWARD_CAPTURING;
    must(cuda->cuStreamBeginCapture_v2(u->stream, CUDA_CAPTURE_RELAXED), "begin capture");
    triton_need(forward(u, 1, t->batch.mode, c->layer.layer_id, &t->args), "captured forward");
    must(cuda->cuStreamEndCapture(u->stream, &graph), "end capture");
    t->args.flags &= ~(uint32_t)ATTN_FORWARD_CAPTURING;
    must(cuda->cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
    replay(u, c, t, exec, what);
    negate_queries(c, t);
    replay(u, c, t, exec, what);
    int32_t last = t->batch.num_seqs - 1;
    if (last > 0) {
        t->batch.num_seqs = last;
        t->batch.num_tokens -= c->q_len[last];
        if (t->batch.num_decode_seqs > 0)
            t->batch.num_decode_seqs--;
        if (t->batch.num_real_seqs > last)
            t->batch.num_real_seqs = last;
        replay(u, c, t, exec, what);
    }
    cuda->cuGraphExecDestroy(exec);
    cuda->cuGraphDestroy(graph);
}

static int is_supported(const twin *t, uint32_t *unquantised)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    triton_need(type->query(type, NULL, NULL, &t->problem, &verdict, &triton_error), "query");
    *unquantised = verdict.reads_new_kv_unquantised;
    return verdict.supported != 0;
}

/* 0 = passed over. */
static int check_case(uint64_t seed, const case_wishes *wishes, int32_t dim, int32_t ratio)
{
    static const int64_t splits[] = {8, 1, 0, 16, 5}, tiles[] = {0, 64, 100, 16};
    char what[640], line[512];
    attn_case *c = case_create_shaped(seed, wishes, dim, ratio);
    twin t = {.problem = c->problem};
    reference_result result = {0};
    reference_options options = {0};
    t.problem.device = &gpu.device;
    c->bounds.uses &= ~(uint32_t)ATTN_USES_MULTI_ITEM;
    if (!is_supported(&t, &options.reads_new_unquantised) || c->batch.multi_item) {
        case_destroy(c);
        return 0;
    }
    int several =
        c->batch.mode == ATTN_MODE_TARGET_VERIFY || c->batch.mode == ATTN_MODE_DRAFT_EXTEND;
    int few = c->batch.max_q_len * (c->group.num_q_heads / c->group.num_kv_heads) <= 64;
    poison_unseen(c);
    case_describe(c, line, sizeof line);
    snprintf(what, sizeof what, "seed %llu: %s", (unsigned long long)seed, line);
    triton_need(reference_forward(&c->problem, &c->batch, c->layer.layer_id, &c->args, &options,
                                  &result, &triton_error),
                what);
    char *k_before = copy_bytes(&c->k_cache), *v_before = copy_bytes(&c->v_cache);
    setup u;
    twin_create(&t, c);
    setup_create(&u, &t.problem, splits[seed / 2 % 5], tiles[seed / 4 % 4],
                 (int64_t)(seed / 8 % 2)); /* probabilities in one part and in two */
    eager(&u, c, &t);
    download(&c->k_cache, &t.k_cache);
    download(&c->v_cache, &t.v_cache);
    check_outputs(c, &result, what);
    check_cache(c, k_before, v_before, what);
    check_graph(&u, c, &t, what);
    setup_destroy(&u);
    release_all(&t.memory);
    free(k_before);
    free(v_before);
    reference_result_finish(&result);
    checked++;
    few_queries += several && few;
    mixed += c->batch.num_decode_seqs > 0;
    case_destroy(c);
    return 1;
}

static void check_many(uint64_t first, int count)
{
    static const int32_t dims[] = {0, 0, 64, 128, 128, 96, 256, 192, 40, 0, 512, 320};
    static const int32_t ratios[] = {0, 0, 0, 4, 8, 16, 0};
    for (uint64_t seed = first * 1000; count > 0; seed++) {
        case_wishes wishes = CASE_ANYTHING;
        wishes.attn_type = seed % 9 == 8 ? ATTN_TYPE_ENCODER_ONLY : ATTN_TYPE_DECODER;
        wishes.index_form = seed % 2 ? ATTN_INDEX_BLOCK_TABLE : ATTN_INDEX_REQ_TO_TOKEN;
        wishes.mode = seed % 5 == 0 ? ATTN_MODE_DECODE : -1;
        wishes.max_len = seed % 13 == 0 ? 1500 : 0;
        if (seed % 4 == 1) { /* few drafted tokens, whose keys are split among blocks */
            wishes.mode = ATTN_MODE_TARGET_VERIFY;
            wishes.max_len = 12;
        }
        if (seed % 6 == 2) /* whose decode rows are */
            wishes.mode = ATTN_MODE_MIXED;
        if (seed % 7 == 3)
            wishes.mask_kind = ATTN_MASK_FULL;
        count -= check_case(seed, &wishes, dims[seed % 12], ratios[seed % 7]);
    }
}

/* ---- Splits ---------------------------------------------------------------------------------- */

/* A kernel that says how it would split, by the header that the plugin's kernels include. */
static const char probe_source[] =
    "#include \"splits.h\"\n"
    "struct probe { const int *asked; int *answered; int count; };\n"
    "extern \"C\" __global__ void probe_splits(const __grid_constant__ probe p)\n"
    "{\n"
    "    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);\n"
    "    if (i >= p.count)\n"
    "        return;\n"
    "    const int *ask = p.asked + i * 4;\n"
    "    int *tell = p.answered + i * 4;\n"
    "    tell[0] = splits_count(ask[0], ask[1], ask[2]);\n"
    "    tell[1] = splits_used(ask[0], tell[0]);\n"
    "    splits_range(ask[0], tell[0], ask[3], tell + 2, tell + 3);\n"
    "}\n";

enum { QUESTIONS = 200000 };

/* length, tile, most, split; every length up to some pages, then random ones of all sizes */
static void ask(int32_t i, int32_t *question)
{
    static const int32_t tiles[] = {1, 16, 64, 100, 256, 512, 4096, 1 << 20};
    static const int32_t most[] = {1, 2, 5, 8, 33, 64, MAX_SPLITS};
    uint32_t bits = (uint32_t)i * 2654435761u ^ (uint32_t)i >> 7;
    question[0] = i < 20000 ? i / 2 : (int32_t)((bits & 0x7fffffff) >> i % 31);
    question[1] = tiles[i % 8];
    question[2] = most[i % 7];
    question[3] = (int32_t)(bits >> 9) % question[2];
}

static cuda_module compile_probe(cuda_function *function)
{
    const nvrtc_api *nvrtc = NULL;
    const char *top = getenv("ATTNHOST_TEST_SRCDIR"), *name = "splits.h";
    char path[4096], header[16384], architecture[48], *cubin, log[2048] = "";
    const char *headers[] = {header}, *options[] = {architecture, "-std=c++17"};
    size_t size = 0;
    nvrtc_program program;
    cuda_module module;
    triton_need(nvrtc_api_get(&nvrtc, &triton_error), "NVRTC");
    snprintf(path, sizeof path, "%s/plugins/triton_like/kernels/splits.h", top ? top : ".");
    FILE *file = fopen(path, "r");
    if (!file)
        test_bail_out("cannot open", path);
    header[fread(header, 1, sizeof header - 1, file)] = '\0';
    fclose(file);
    snprintf(architecture, sizeof architecture, "--gpu-architecture=sm_%u", gpu.device.sm);
    if (nvrtc->nvrtcCreateProgram(&program, probe_source, "probe.cu", 1, headers, &name) != 0)
        test_bail_out("nvrtcCreateProgram", "the probe");
    int result = nvrtc->nvrtcCompileProgram(program, 2, options);
    if (nvrtc->nvrtcGetProgramLogSize(program, &size) == 0 && size <= sizeof log)
        nvrtc->nvrtcGetProgramLog(program, log);
    if (result != 0 || nvrtc->nvrtcGetCUBINSize(program, &size) != 0)
        test_bail_out("compiling the probe", log);
    cubin = malloc(size);
    nvrtc->nvrtcGetCUBIN(program, cubin);
    nvrtc->nvrtcDestroyProgram(&program);
    must(cuda->cuModuleLoadData(&module, cubin), "cuModuleLoadData");
    must(cuda->cuModuleGetFunction(function, module, "probe_splits"), "cuModuleGetFunction");
    free(cubin);
    return module;
}

/* What the device makes of the questions is what the host makes of them. */
static void check_splits(void)
{
    static int32_t asked[QUESTIONS][4], answered[QUESTIONS][4];
    struct {
        const void *asked, *answered;
        int32_t count;
    } argument = {.count = QUESTIONS};
    void *params[] = {&argument};
    buffers memory = {.count = 0};
    cuda_function function;
    cuda_module module = compile_probe(&function);
    int wrong = 0;
    for (int32_t i = 0; i < QUESTIONS; i++)
        ask(i, asked[i]);
    argument.asked = upload(&memory, asked, sizeof asked);
    argument.answered = upload(&memory, answered, sizeof answered);
    must(cuda->cuLaunchKernel(function, (QUESTIONS + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, params,
                              NULL),
         "probe_splits");
    must(cuda->cuMemcpyDtoH_v2(answered, memory.address[1], sizeof answered), "cuMemcpyDtoH");
    for (int32_t i = 0; i < QUESTIONS; i++) {
        const int32_t *a = asked[i], *t = answered[i];
        int begin, end, count = splits_count(a[0], a[1], a[2]), used = splits_used(a[0], count);
        splits_range(a[0], count, a[3], &begin, &end);
        if (t[0] == count && t[1] == used && t[2] == begin && t[3] == end)
            continue;
        if (wrong++ < 5)
            printf("# %d keys, tile %d, at most %d: %d splits, %d used, %d: %d..%d on the device, "
                   "%d, %d, %d..%d on the host\n",
                   a[0], a[1], a[2], t[0], t[1], a[3], t[2], t[3], count, used, begin, end);
    }
    release_all(&memory);
    cuda->cuModuleUnload(module);
    failures += wrong > 0;
    printf("# %d of %d lengths are split otherwise on the device than on the host\n", wrong,
           QUESTIONS);
}

/* ---------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    int timing = argc > 1 && strcmp(argv[1], "time") == 0;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int count = argc > 3 ? atoi(argv[3]) : 12;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!setup_open()) {
        printf("1..0 # SKIP %s\n", gpu.why);
        return 0;
    }
    if (timing) {
        time_all();
        printf("ok 1 - timed\n1..1\n");
        return 0;
    }
    check_splits();
    printf("%sok 1 - the device splits keys as the host does\n", failures ? "not " : "");
    if (argc > 1 && strcmp(argv[1], "splits") == 0) {
        printf("1..1\n");
        return failures ? EXIT_FAILURE : EXIT_SUCCESS;
    }
    int before = failures;
    check_many(first, count);
    printf("# %d cases, %d of few drafted tokens, %d with decode rows among others, %lld keys NaN, "
           "%d failures, worst error %.3f of what is allowed\n",
           checked, few_queries, mixed, (long long)hidden, failures, worst);
    printf("%sok 2 - forwards, eager and replayed, agree with the oracle\n1..2\n",
           failures > before ? "not " : "");
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
