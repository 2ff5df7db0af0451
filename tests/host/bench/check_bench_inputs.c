/* SPDX-License-Identifier: Apache-2.0
 *
 * check_bench_inputs.c: what `attnhost bench` feeds to backends is a valid batch with values that
 * mean something: cpu_native computes on it what the oracle computes, and a GPU (the fake one) gets
 * the same bytes.
 */
#include "host/bench/inputs.h"
#include "host/bench/judge.h"

#include "host/base/dtype.h"
#include "host/reference/reference.h"
#include "tests/host/embed/attnhost_fixture.h"
#include "tests/tools/fake_cuda_test.h"

#include <math.h>

static struct device *cpu;
static struct bench_inputs *inputs;

static void set_up(void)
{
    setup();
    ck_assert_int_eq(device_open(ATTN_DEVICE_CPU, 0, &cpu, &error.base), ATTN_OK);
    inputs = NULL;
}

static void tear_down(void)
{
    bench_inputs_destroy(inputs);
    device_close(cpu);
    teardown();
}

static struct bench_shape shape_of(const char *text)
{
    struct bench_shapes shapes = {0};
    struct bench_shape base, made;
    bench_shape_init(&base);
    attn_status status = bench_shapes_add(&shapes, text, &base, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    made = shapes.items[0];
    bench_shapes_finish(&shapes);
    return made;
}

/* Few bytes beyond a cache: tests need no more copies than that. */
static void make(const char *text, uint64_t seed, struct device *on)
{
    struct bench_shape shape = shape_of(text);
    on->info.l2_bytes = 100000;
    bench_inputs_destroy(inputs);
    inputs = NULL;
    attn_status status = bench_inputs_create(on, &shape, seed, &inputs, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
}

/* ---- Against the oracle ---------------------------------------------------------------------- */

static const char *const cases[] = {
    "batch=3,kv_len=37+80+5,q_heads=4,kv_heads=2,head_dim=24,v_head_dim=40,page_size=8",
    "batch=2,kv_len=64,q_heads=4,kv_heads=4,head_dim=16,dtype=f32,layout=hnd,new_kv=args",
    "batch=2,kv_len=33,q_heads=4,kv_heads=2,head_dim=16,kv_dtype=fp8_e4m3,scales=head,window=9",
    "batch=2,kv_len=33,q_heads=4,kv_heads=2,head_dim=16,kv_dtype=fp8_e5m2,layout=hnd,sinks=yes",
    "mode=extend,batch=3,q_len=4+9,kv_len=21+9,q_heads=4,kv_heads=1,head_dim=32,dtype=f16,"
    "page_size=1",
    "mode=extend,kv_len=50,q_heads=2,kv_heads=2,head_dim=16,causal=no,logit_cap=2,dtype=f32",
    "mode=extend,batch=2,q_len=30,kv_len=40,q_heads=4,kv_heads=2,head_dim=16,chunk=16,alibi=yes",
    "mode=extend,batch=2,q_len=7,kv_len=40,q_heads=4,kv_heads=2,head_dim=16,new_kv=cached,"
    "sm_scale=0.5,kv_dtype=f32,dtype=f32",
    "mode=mixed,batch=5,decodes=3,q_len=6,kv_len=19+7+64,q_heads=6,kv_heads=3,head_dim=16",
    "batch=3,kv_len=33+7,q_heads=4,kv_heads=2,head_dim=16,dtype=fp8_e4m3",
    "batch=2,kv_len=1,q_heads=4,kv_heads=2,head_dim=16,dtype=fp8_e4m3,out_dtype=fp8_e4m3,"
    "scales=head,input_scales=head",
    "mode=extend,batch=3,q_len=5+9,kv_len=40+9,q_heads=6,kv_heads=3,head_dim=16,v_head_dim=24,"
    "dtype=fp8_e4m3,input_scales=seq_head,out_dtype=f16",
    "mode=extend,batch=2,q_len=9,kv_len=30,q_heads=4,kv_heads=2,head_dim=16,dtype=fp8_e5m2,"
    "kv_dtype=fp8_e4m3,new_kv_dtype=bf16,input_scales=seq_head,layout=hnd",
    "mode=extend,batch=2,q_len=9,kv_len=30,q_heads=4,kv_heads=2,head_dim=16,new_kv=args,"
    "kv_dtype=fp8_e5m2,new_kv_dtype=fp8_e4m3,input_scales=head,out_dtype=fp8_e4m3",
    "mode=mixed,batch=3,q_len=9,kv_len=30,q_heads=4,kv_heads=2,head_dim=16,new_kv=cached,"
    "dtype=fp8_e4m3,input_scales=head,window=7",
    "batch=2,kv_len=20,q_heads=4,kv_heads=2,head_dim=16,dtype=fp8_e4m3,new_kv_dtype=bf16,"
    "kv_dtype=bf16,out_dtype=f32",
};

/* Outputs that are mostly 0, or saturated, would tell nothing. */
static void assert_sensible(const attn_tensor *out, float scale)
{
    int64_t zeros = 0, largest = 0, count = out->shape[0] * out->strides[0];
    for (int64_t i = 0; i < count; i++) {
        double x = fabs(dtype_load(out->dtype, out->data, i));
        ck_assert(isfinite(x));
        zeros += x * (double)scale < 0.001;
        largest += dtype_is_fp8(out->dtype) && x >= dtype_largest(out->dtype);
    }
    ck_assert_int_lt(zeros, count / 10);
    ck_assert_int_eq(largest, 0);
}

static void load_built(const char *name)
{
    char path[4400];
    const char *built = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    ck_assert_msg(built && realpath(built, path), "ATTNHOST_TEST_PLUGIN_DIR is not set");
    snprintf(path + strlen(path), 64, "/%s.so", name);
    attn_status status = attnhost_load_plugin(host, path, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
}

/* Outputs of copy `copy` as cpu_native computes them, judged by the oracle's, which is computed
 * first: with k and v saved a forward changes the cache. */
static void judge(const struct bench_problem *problem, attnhost_metadata *metadata, uint32_t copy,
                  const reference_options *options)
{
    struct bench_call call;
    reference_result result = {0};
    reference_report report = {0};
    bench_inputs_call(inputs, copy, problem->problem.kv_layout, &call);
    attn_tensor out = *call.operands[ATTN_ROLE_OUT];
    memset(out.data, 0xFF,
           (size_t)out.shape[0] * (size_t)out.strides[0] * attn_dtype_size(out.dtype));
    attn_status status = reference_forward(&problem->problem, &inputs->batch, 0, &call.args,
                                           options, &result, &error.base);
    if (status == ATTN_OK)
        status = attnhost_forward(metadata, 0, &call.args, NULL, &error.base);
    if (status == ATTN_OK)
        status = reference_compare(&result, &out, NULL, &report, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    ck_assert_msg(reference_report_passed(&report), "%s", report.message);
    ck_assert_int_eq(report.rows_checked, inputs->count.tokens * inputs->shape.q_heads);
    assert_sensible(&out, dtype_is_fp8(out.dtype) ? *inputs->arrays.out_scale : 1);
    reference_result_finish(&result);
}

LOOP_OF(inputs, test_oracle, 0, COUNT(cases))
{
    struct bench_problem problem;
    attnhost_backend *backend = NULL;
    attnhost_metadata *metadata = NULL;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    load_built("cpu_native");
    make(cases[_i], 7 + (uint64_t)_i, cpu);
    const char *layout =
        inputs->shape.layout == BENCH_LAYOUT_HND ? ATTN_LAYOUT_KV_HND : ATTN_LAYOUT_KV_NHD;
    bench_problem_init(&problem, &inputs->shape, &cpu->info, layout, ATTN_GRAPH_NEVER);
    attn_status status =
        attnhost_query(host, "cpu_native", &problem.problem, &verdict, &error.base);
    ck_assert_msg(status == ATTN_OK && verdict.supported, "%s", host_error_text(&error));
    status = attnhost_compose(host, "cpu_native", &problem.problem, 1, &backend, &error.base);
    if (status == ATTN_OK)
        status = attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &problem.bounds, NULL,
                                          &metadata, &error.base);
    if (status == ATTN_OK)
        status = attnhost_init_forward_metadata(metadata, &inputs->batch, NULL, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    const uint32_t forms[] = {ATTN_INDEX_REQ_TO_TOKEN, ATTN_INDEX_BLOCK_TABLE, ATTN_INDEX_CSR};
    for (uint32_t f = 0; f < 3; f++) {
        const reference_options options = {
            .index_form = forms[f], .reads_new_unquantised = verdict.reads_new_kv_unquantised};
        judge(&problem, metadata, f % inputs->copies, &options);
    }
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}

/* ---- The judge ------------------------------------------------------------------------------- */

static const struct {
    const char *backend, *shape;
} judged[] = {
    {"cpu_native", "kind=mla,heads=2,kv_lora_rank=32,rope_dim=8,nope_dim=16,batch=3,kv_len=40"},
    {"cpu_native", "kind=mla,heads=2,kv_lora_rank=128,rope_dim=8,nope_dim=16,kv_len=40,"
                   "kv_dtype=fp8_e4m3,layout=latent_fp8"},
    {"cpu_native", "kind=mla,mode=extend,heads=2,kv_lora_rank=32,rope_dim=8,nope_dim=16,batch=2,"
                   "kv_len=9+20,form=expanded"},
    {"cpu_native", "kind=sparse,batch=2,heads=2,kv_lora_rank=32,rope_dim=8,nope_dim=16,kv_len=90+7,"
                   "top_k=20,index_heads=3,label_dim=16"},
    {"cpu_native", "kind=sparse,mode=extend,batch=2,heads=2,kv_lora_rank=128,rope_dim=8,"
                   "nope_dim=16,q_len=9,kv_len=90+30,page_size=16,kv_dtype=fp8_e4m3,"
                   "layout=latent_fp8,top_k=20,index_heads=3,label_dim=16,label_dtype=bf16"},
    {"cpu_native", "kind=sparse,mode=extend,batch=2,heads=2,kv_lora_rank=32,rope_dim=8,"
                   "nope_dim=16,q_len=9,kv_len=90+30,top_k=20,choice=given"},
    {"cpu_native", "kind=sparse,batch=2,heads=2,kv_lora_rank=32,rope_dim=8,nope_dim=16,kv_len=90+7,"
                   "top_k=20,index_heads=3,label_dim=16,choice=alone"},
    {"cpu_linear", "kind=gdn,batch=2,k_heads=1,v_heads=2,head_k_dim=8,head_v_dim=16"},
    {"cpu_linear", "kind=kda,mode=extend,kv_len=90,k_heads=2,v_heads=2,head_k_dim=8,head_v_dim=16,"
                   "state_dtype=bf16"},
    {"cpu_linear", "kind=mamba2,mode=extend,batch=2,q_len=9,kv_len=90,k_heads=1,v_heads=2,"
                   "head_k_dim=8,head_v_dim=16,layout=vk"},
    {"cpu_linear", "kind=lightning,batch=2,k_heads=2,v_heads=2,head_k_dim=8,head_v_dim=16"},
    {"cpu_linear", "kind=short_conv,batch=2,v_heads=2,head_v_dim=8"},
};
enum { NUM_JUDGED = sizeof judged / sizeof *judged };

static uint32_t reads_new_unquantised; /* of the backend, as its verdict says */

/* One forward of the backend over the first copy. */
static void forward(const char *backend, const char *layout)
{
    struct bench_problem problem;
    struct bench_call call;
    attnhost_backend *made = NULL;
    attnhost_metadata *metadata = NULL;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    bench_problem_init(&problem, &inputs->shape, &cpu->info, layout, ATTN_GRAPH_NEVER);
    bench_inputs_call(inputs, 0, layout, &call);
    attn_status status = attnhost_query(host, backend, &problem.problem, &verdict, &error.base);
    ck_assert_msg(status == ATTN_OK && verdict.supported, "%s", host_error_text(&error));
    reads_new_unquantised = verdict.reads_new_kv_unquantised;
    status = attnhost_compose(host, backend, &problem.problem, 1, &made, &error.base);
    if (status == ATTN_OK)
        status = attnhost_metadata_create(made, ATTN_METADATA_EAGER, &problem.bounds, NULL,
                                          &metadata, &error.base);
    if (status == ATTN_OK)
        status = attnhost_init_forward_metadata(metadata, &inputs->batch, NULL, &error.base);
    if (status == ATTN_OK)
        status = attnhost_forward(metadata, 0, &call.args, NULL, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(made);
}

/* What the judge says; "" = all is well. */
static const char *judgement(const char *layout)
{
    static char said[256];
    strbuf why;
    strbuf_init(&why);
    attn_status status = bench_judge_rows(inputs, layout, reads_new_unquantised, &why, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    snprintf(said, sizeof said, "%s", strbuf_text(&why));
    strbuf_finish(&why);
    return said;
}

/* Spoil an operand's unit: all of its elements. */
static void spoil(uint32_t o, int64_t unit, int byte)
{
    struct bench_region at = bench_inputs_units(inputs, o, unit, 1);
    memset(inputs->operands + at.at, byte, at.bytes);
}

/* Whatever a backend writes wrong, or not at all, the judge names. */
LOOP_OF(inputs, test_judge, 0, NUM_JUDGED)
{
    const char *layouts[2];
    load_built(judged[_i].backend);
    make(judged[_i].shape, 7, cpu);
    bench_layouts(&inputs->shape, layouts);
    for (uint32_t o = 0; o < inputs->num_operands; o++) {
        const struct bench_operand *operand = &inputs->list[o];
        bool is_choice =
            operand->role == ATTN_ROLE_SPARSE_INDICES || operand->role == ATTN_ROLE_SPARSE_COUNT;
        bool is_out = operand->role == ATTN_ROLE_OUT ||
                      (is_choice && inputs->shape.choice != BENCH_CHOICE_GIVEN);
        if (!is_out && operand->unit != BENCH_PER_SLOT)
            continue;
        int64_t unit =
            is_out ? operand->units - 1 : inputs->arrays.state_slots[inputs->shape.batch];
        for (int byte = 0x44; byte <= 0xff; byte += 0xff - 0x44) {
            ck_assert_int_eq(bench_judge_poison(inputs, NULL, &error.base), ATTN_OK);
            ck_assert_str_ne(judgement(layouts[0]), "");
            forward(judged[_i].backend, layouts[0]);
            ck_assert_str_eq(judgement(layouts[0]), "");
            spoil(o, unit, byte);
            const char *part = is_out                             ? "row "
                               : operand->role == ATTN_ROLE_STATE ? "the state of head"
                                                                  : "the convolution's state";
            ck_assert_msg(strstr(judgement(layouts[0]), part), "%s: '%s'", part,
                          judgement(layouts[0]));
        }
    }
}

/* ---- Arrays and values ----------------------------------------------------------------------- */

/* Every page but page 0 belongs to one sequence, once, and not in order. */
TEST_OF(inputs, test_pages)
{
    make("batch=7,kv_len=100+333,q_heads=1,kv_heads=1,head_dim=8,page_size=4", 3, cpu);
    int64_t pages = inputs->count.pages, in_place = 0;
    ck_assert_int_eq(pages, 4 * 25 + 3 * 84);
    char *met = calloc(1, (size_t)pages + 1);
    for (int64_t p = 0; p < pages; p++) {
        int32_t page = inputs->arrays.kv_indices[p];
        ck_assert_msg(page >= 1 && page <= pages && !met[page], "page %d of %lld", page,
                      (long long)p);
        met[page] = 1;
        in_place += page == p + 1;
    }
    ck_assert_int_lt(in_place, pages / 10);
    free(met);
    struct bench_inputs *first = inputs;
    inputs = NULL;
    make("batch=7,kv_len=100+333,q_heads=1,kv_heads=1,head_dim=8,page_size=4", 4, cpu);
    ck_assert_mem_ne(first->arrays.kv_indices, inputs->arrays.kv_indices,
                     (size_t)pages * sizeof(int32_t));
    bench_inputs_destroy(first);
}

/* Mean and variance of a tensor's elements, all of which are finite. */
static void measure(const attn_tensor *tensor, float scale, double *mean, double *variance)
{
    int64_t count = tensor->shape[0] * tensor->strides[0];
    double sum = 0, squares = 0; /* not finite if an element is not */
    for (int64_t i = 0; i < count; i++) {
        double x = dtype_load(tensor->dtype, tensor->data, i) * (double)scale;
        sum += x;
        squares += x * x;
    }
    ck_assert(isfinite(squares));
    *mean = sum / (double)count;
    *variance = squares / (double)count - *mean * *mean;
}

LOOP_OF(inputs, test_values, 0, 5)
{
    static const char *const types[] = {"bf16", "f32", "f16", "fp8_e4m3", "fp8_e5m2"};
    char text[128];
    snprintf(text, sizeof text, "batch=8,kv_len=900,q_heads=32,kv_heads=4,head_dim=64,kv_dtype=%s",
             types[_i]);
    make(text, 11, cpu);
    struct bench_call call, other;
    bench_inputs_call(inputs, 0, ATTN_LAYOUT_KV_NHD, &call);
    const attn_tensor *const tensors[] = {call.operands[ATTN_ROLE_Q],
                                          call.operands[ATTN_ROLE_K_CACHE],
                                          call.operands[ATTN_ROLE_V_CACHE]};
    for (int t = 0; t < 3; t++) {
        double mean, variance;
        float scale = _i >= 3 && t > 0 ? inputs->arrays.k_scale[0] : 1;
        measure(tensors[t], scale, &mean, &variance);
        ck_assert_double_le(fabs(mean), 0.05);
        ck_assert_double_le(fabs(variance - 1), 0.05);
    }
    ck_assert_uint_ge(inputs->copies, 2);
    bench_inputs_call(inputs, 1, ATTN_LAYOUT_KV_NHD, &other);
    const void *again = other.operands[ATTN_ROLE_K_CACHE]->data;
    ck_assert_ptr_ne(tensors[1]->data, again);
    ck_assert_mem_ne(tensors[1]->data, again, 4096);
    ck_assert_mem_ne(tensors[0]->data, other.operands[ATTN_ROLE_Q]->data, 4096);
    ck_assert_mem_ne(tensors[1]->data, tensors[2]->data, 4096);
}

/* What is fp8 has about unit variance by each of its scales, which differ from head to head, from
 * sequence to sequence, and between q, k and v. */
LOOP_OF(inputs, test_fp8_values, 0, 2)
{
    static const char *const types[] = {"fp8_e4m3", "fp8_e5m2"};
    char text[160];
    snprintf(text, sizeof text,
             "mode=extend,batch=4,kv_len=200,q_heads=16,kv_heads=4,head_dim=64,dtype=%s,"
             "input_scales=seq_head",
             types[_i]);
    make(text, 11, cpu);
    struct bench_call call;
    bench_inputs_call(inputs, 0, ATTN_LAYOUT_KV_NHD, &call);
    const attn_tensor *const tensors[] = {call.operands[ATTN_ROLE_Q], call.operands[ATTN_ROLE_K],
                                          call.operands[ATTN_ROLE_V]};
    const uint32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V};
    for (int t = 0; t < 3; t++) {
        const attn_scale *scale = call.scales[roles[t]];
        ck_assert_ptr_nonnull(scale);
        ck_assert_uint_eq(scale->granularity, ATTN_SCALE_PER_SEQ_HEAD);
        ck_assert_uint_eq(scale->count, 4 * 4);
        for (uint32_t n = 0; n < scale->count; n++) {
            double mean, variance;
            measure(tensors[t], scale->host[n], &mean, &variance);
            ck_assert_double_le(fabs(mean), 0.05);
            ck_assert_double_ge(variance, 0.4);
            ck_assert_double_le(variance, 2.5);
        }
        ck_assert_float_ne(scale->host[0], scale->host[1]);
        ck_assert_float_ne(scale->host[0], scale->host[4]);
        ck_assert_float_ne(scale->host[0], call.scales[roles[(t + 1) % 3]]->host[0]);
    }
    ck_assert_ptr_null(call.scales[ATTN_ROLE_OUT]);
}

/* Scales in rows of packed latents: of any size, or powers of two. */
LOOP_OF(inputs, test_row_scales, 0, 2)
{
    enum { LORA = 384, SCALES = 3, ROW = LORA + SCALES * 4 + 8 * 2 };
    static const char *const words[] = {"any", "powers_of_two"};
    char text[192];
    snprintf(text, sizeof text,
             "kind=mla,heads=2,kv_lora_rank=384,rope_dim=8,nope_dim=16,kv_len=40,"
             "kv_dtype=fp8_e4m3,layout=latent_fp8,row_scales=%s",
             words[_i]);
    make(text, 3, cpu);
    struct bench_call call;
    const char *layouts[2];
    bench_layouts(&inputs->shape, layouts);
    bench_inputs_call(inputs, 0, layouts[0], &call);
    const char *rows = call.operands[ATTN_ROLE_LATENT_CACHE]->data;
    int32_t powers = 0;
    for (int32_t r = 0; r < 40; r++) {
        float scales[SCALES];
        memcpy(scales, rows + r * ROW + LORA, sizeof scales);
        for (int32_t n = 0; n < SCALES; n++) {
            int exponent;
            powers += frexpf(scales[n], &exponent) == 0.5f;
        }
    }
    ck_assert_int_eq(powers == 40 * SCALES, _i);
}

/* Copies go beyond the cache: four times a small one, and no fewer than two. */
TEST_OF(inputs, test_copies)
{
    make("batch=4,kv_len=100,q_heads=2,kv_heads=1,head_dim=16,dtype=f32", 1, cpu);
    ck_assert_double_ge(inputs->copies * inputs->count.bytes, 400000);
    ck_assert_double_lt((inputs->copies - 1) * inputs->count.bytes, 400000);
    make("batch=4,kv_len=10000,q_heads=2,kv_heads=1,head_dim=16,dtype=f32", 1, cpu);
    ck_assert_uint_eq(inputs->copies, 2);
}

TEST_OF(inputs, test_graph_levels)
{
    struct bench_shape shape = shape_of("batch=3,kv_len=5+6");
    ck_assert_uint_eq(bench_graph_level(&shape), ATTN_GRAPH_SINGLE_TOKEN);
    shape = shape_of("mode=extend,batch=3,q_len=4,kv_len=5+6");
    ck_assert_uint_eq(bench_graph_level(&shape), ATTN_GRAPH_UNIFORM);
    shape = shape_of("mode=extend,batch=3,kv_len=5+6");
    ck_assert_uint_eq(bench_graph_level(&shape), ATTN_GRAPH_ALWAYS);
    shape = shape_of("mode=mixed,batch=3,q_len=4,kv_len=5");
    ck_assert_uint_eq(bench_graph_level(&shape), ATTN_GRAPH_ALWAYS);
}

/* ---- On a GPU -------------------------------------------------------------------------------- */

static void assert_fetched(const struct device *gpu, const void *from, const void *expected,
                           uint64_t bytes)
{
    char *fetched = malloc(bytes);
    ck_assert_int_eq(device_copy(gpu, fetched, from, bytes, NULL, NULL), ATTN_OK);
    ck_assert_int_eq(device_synchronize(gpu, NULL, NULL), ATTN_OK);
    ck_assert_mem_eq(fetched, expected, bytes);
    free(fetched);
}

static void assert_same_operands(const struct device *gpu, const struct bench_inputs *here,
                                 uint32_t copy)
{
    struct bench_call ours, theirs;
    const char *layouts[2];
    bench_layouts(&here->shape, layouts);
    bench_inputs_call(here, copy, layouts[0], &ours);
    bench_inputs_call(inputs, copy, layouts[0], &theirs);
    for (uint32_t r = 0; r < ATTN_ROLE_COUNT; r++) {
        const attn_tensor *a = ours.operands[r], *b = theirs.operands[r];
        ck_assert_int_eq(a != NULL, b != NULL);
        if (!a)
            continue;
        uint64_t bytes = (uint64_t)(a->shape[0] * a->strides[0]) * attn_dtype_size(a->dtype);
        ck_assert_int_eq(b->device_type, ATTN_DEVICE_CUDA);
        assert_fetched(gpu, b->data, a->data, bytes);
    }
}

LOOP_OF(inputs, test_same_bytes_on_a_gpu, 0, 4)
{
    static const char *const texts[] = {
        "mode=mixed,batch=5,q_len=6,kv_len=19+64,head_dim=16,kv_dtype=fp8_e4m3",
        "mode=mixed,batch=5,q_len=6,kv_len=19+64,head_dim=16,dtype=fp8_e4m3,new_kv_dtype=bf16,"
        "input_scales=seq_head",
        "kind=mla,heads=2,kv_lora_rank=128,batch=2,kv_len=40,kv_dtype=fp8_e4m3,layout=latent_fp8",
        "kind=kda,mode=mixed,batch=3,q_len=6,kv_len=9,k_heads=2,v_heads=2,state_dtype=bf16"};
    const char *text = texts[_i];
    struct device *gpu = NULL;
    use_fake_cuda();
    ck_assert_int_eq(device_open(ATTN_DEVICE_CUDA, 0, &gpu, &error.base), ATTN_OK);
    make(text, 5, cpu);
    struct bench_inputs *here = inputs;
    inputs = NULL;
    make(text, 5, gpu);
    ck_assert_ptr_ne(inputs->block, inputs->device_block);
    ck_assert_mem_eq(inputs->block, here->block, here->block_bytes);
    assert_fetched(gpu, inputs->device_block, here->block, here->block_bytes);
    ck_assert_uint_eq(inputs->copies, here->copies);
    for (uint32_t c = 0; c < here->copies; c++)
        assert_same_operands(gpu, here, c);
    const attn_batch *batch = &inputs->batch;
    ck_assert_ptr_eq(batch->seq_lens.host, inputs->arrays.seq_lens);
    ck_assert_int_eq((const char *)batch->seq_lens.device - inputs->device_block,
                     (const char *)batch->seq_lens.host - inputs->block);
    bench_inputs_destroy(here);
    bench_inputs_destroy(inputs);
    inputs = NULL;
    device_close(gpu);
    assert_nothing_left();
    assert_clean();
}

TEST_OF(inputs, test_no_memory_on_a_gpu)
{
    struct bench_shape shape = shape_of("batch=8,kv_len=4096");
    struct device *gpu = NULL;
    use_fake_cuda();
    fake.set_memory(0, 1 << 20);
    ck_assert_int_eq(device_open(ATTN_DEVICE_CUDA, 0, &gpu, &error.base), ATTN_OK);
    ck_assert_int_eq(bench_inputs_create(gpu, &shape, 1, &inputs, &error.base),
                     ATTN_OUT_OF_DEVICE_MEMORY);
    ck_assert_ptr_null(inputs);
    assert_says("no memory for 128 MiB of operands");
    device_close(gpu);
    assert_nothing_left();
}

GROUP(inputs, .set_up = set_up, .tear_down = tear_down);
TESTS("bench_inputs");
