/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: answers to queries, from a class's declarations and its predicates. */
#include "plugins/python/python.h"

#include <stdlib.h>

/* ---- Ranges ---------------------------------------------------------------------------------- */

/* Is `value` in a list such as "64, 128, 16..256/16"? */
static bool is_accepted(const char *list, int64_t value)
{
    while (*list) {
        char *end;
        long long low = strtoll(list, &end, 10), high = low, step = 1;
        if (strncmp(end, "..", 2) == 0)
            high = strtoll(end + 2, &end, 10);
        if (*end == '/')
            step = strtoll(end + 1, &end, 10);
        if (value >= low && value <= high && step > 0 && (value - low) % step == 0)
            return true;
        if (end == list)
            return false;
        list = end + strspn(end, ", ");
    }
    return false;
}

/* Numbers that have a range, each with the reason's code, its default, and where it applies. */
struct number {
    uint32_t field, code;
    const char *accepted;
    int64_t value;
    bool counts;
};

enum { NUM_NUMBERS = 17 };

static void list_numbers(const attn_util_question *ask, struct number numbers[NUM_NUMBERS])
{
    const attn_layer_group *g = &ask->group;
    const attn_bounds *b = &ask->bounds;
    attn_mla_dims mla = {.struct_size = sizeof mla};
    bool latent = g->kind == ATTN_KIND_MLA && g->mla, cuda = ask->device.type == ATTN_DEVICE_CUDA;
    if (latent)
        ATTN_UTIL_READ(&mla, g->mla);
    int64_t ratio = g->num_kv_heads > 0 ? g->num_q_heads / g->num_kv_heads : 0;
    const char *any = "0..2147483647", *some = "1..2147483647", *window = "-1..2147483647";
    const struct number list[NUM_NUMBERS] = {
        {ATTN_FIELD_DEVICE_SM, ATTN_REASON_ARCH, any, ask->device.sm, cuda},
        {ATTN_FIELD_NUM_Q_HEADS, ATTN_REASON_HEADS, any, g->num_q_heads, true},
        {ATTN_FIELD_NUM_KV_HEADS, ATTN_REASON_HEADS, any, g->num_kv_heads, true},
        {ATTN_FIELD_GQA_RATIO, ATTN_REASON_HEADS, any, ratio, true},
        {ATTN_FIELD_HEAD_DIM, ATTN_REASON_HEAD_DIM, "1..65536", g->head_dim, !latent},
        {ATTN_FIELD_V_HEAD_DIM, ATTN_REASON_HEAD_DIM, "1..65536", g->v_head_dim, true},
        {ATTN_FIELD_PAGE_SIZE, ATTN_REASON_PAGE_SIZE, some, ask->problem.page_size, true},
        {ATTN_FIELD_WINDOW_LEFT, ATTN_REASON_WINDOW, window, g->window_left, true},
        {ATTN_FIELD_WINDOW_RIGHT, ATTN_REASON_WINDOW, window, g->window_right, true},
        {ATTN_FIELD_KV_LORA_RANK, ATTN_REASON_MLA_FORM, some, mla.kv_lora_rank, latent},
        {ATTN_FIELD_ROPE_DIM, ATTN_REASON_MLA_FORM, any, mla.rope_dim, latent},
        {ATTN_FIELD_NOPE_DIM, ATTN_REASON_MLA_FORM, any, mla.nope_dim, latent},
        {ATTN_FIELD_MAX_SEQS, ATTN_REASON_BOUNDS, any, b->max_seqs, true},
        {ATTN_FIELD_MAX_TOKENS, ATTN_REASON_BOUNDS, any, b->max_tokens, true},
        {ATTN_FIELD_MAX_Q_LEN, ATTN_REASON_BOUNDS, any, b->max_q_len, true},
        {ATTN_FIELD_MAX_KV_LEN, ATTN_REASON_BOUNDS, any, b->max_kv_len, true},
        {ATTN_FIELD_NUM_LAYERS, ATTN_REASON_OTHER, any, g->num_layers, true},
    };
    memcpy(numbers, list, sizeof list);
}

/* A layer that is served without a cache has neither layout nor pages. */
static bool has_cache(const struct python_kind *kind, const attn_util_question *ask)
{
    return ask->group.attn_type != ATTN_TYPE_ENCODER_ONLY ||
           !(kind->limits.attn_types >> ATTN_TYPE_ENCODER_ONLY & 1u);
}

/* "v_head_dim": "head_dim" is about softmax layers: a latent layer's head_dim is not declared. */
static bool is_of_other_kind(const attn_util_question *ask, const struct python_range *range)
{
    return ask->group.kind == ATTN_KIND_MLA && range->field == ATTN_FIELD_V_HEAD_DIM &&
           python_field(range->accepted) != 0;
}

/* The class's own ranges, and where numbers do not count. */
static void list_declared(const struct python_kind *kind, const attn_util_question *ask,
                          struct number numbers[NUM_NUMBERS])
{
    list_numbers(ask, numbers);
    for (int n = 0; n < NUM_NUMBERS; n++) {
        struct number *number = &numbers[n];
        for (uint32_t r = 0; r < kind->num_ranges; r++)
            if (kind->ranges[r].field == number->field && !is_of_other_kind(ask, &kind->ranges[r]))
                number->accepted = kind->ranges[r].accepted;
        number->counts &= number->field != ATTN_FIELD_PAGE_SIZE || has_cache(kind, ask);
        /* If the device must become a GPU, its properties must be right, too. */
        number->counts |=
            number->field == ATTN_FIELD_DEVICE_SM && !(kind->devices >> ATTN_DEVICE_CPU & 1u);
    }
}

/* The number whose value `number` must have; NULL = it has a list of its own. */
static const struct number *find_twin(const struct number numbers[NUM_NUMBERS],
                                      const struct number *number)
{
    uint32_t field = python_field(number->accepted);
    for (int n = 0; n < NUM_NUMBERS && field; n++)
        if (numbers[n].field == field)
            return &numbers[n];
    return NULL;
}

/* The number that must have the value of this one, and has one that this may have; NULL = none. */
static const struct number *find_follower(const struct number numbers[NUM_NUMBERS],
                                          const struct number *number)
{
    for (int n = 0; n < NUM_NUMBERS; n++)
        if (numbers[n].counts && find_twin(numbers, &numbers[n]) == number &&
            is_accepted(number->accepted, numbers[n].value))
            return &numbers[n];
    return NULL;
}

/* The list, or, if another number must agree, the only value that does. */
static void refuse_number(attn_util_question *ask, const struct number numbers[NUM_NUMBERS],
                          const struct number *number)
{
    const struct number *follower = find_follower(numbers, number);
    char one[24];
    if (follower)
        snprintf(one, sizeof one, "%lld", (long long)follower->value);
    attn_util_refuse(&ask->verdict, number->code, number->field, follower ? one : number->accepted,
                     "%lld", (long long)number->value);
}

/* The reason with which the answer becomes yes: the twin's value if that is accepted; else the
 * twin's list, unless the value is in it, and the twin has to change alone. */
static void check_twin(attn_util_question *ask, const struct number *number,
                       const struct number *twin)
{
    long long value = number->value;
    if (!is_accepted(twin->accepted, twin->value)) {
        if (!is_accepted(twin->accepted, value))
            attn_util_refuse(&ask->verdict, number->code, number->field, twin->accepted, "%lld",
                             value);
        return;
    }
    char accepted[24];
    snprintf(accepted, sizeof accepted, "%lld", (long long)twin->value);
    if (value != twin->value)
        attn_util_refuse_with(&ask->verdict, number->field, twin->field, accepted, "%lld", value);
}

static void check_numbers(const struct python_kind *kind, attn_util_question *ask)
{
    struct number numbers[NUM_NUMBERS];
    list_declared(kind, ask, numbers);
    for (int n = 0; n < NUM_NUMBERS; n++) {
        const struct number *number = &numbers[n], *twin = find_twin(numbers, number);
        if (number->counts && twin)
            check_twin(ask, number, twin);
        else if (number->counts && !is_accepted(number->accepted, number->value))
            refuse_number(ask, numbers, number);
    }
}

/* ---- Sets ------------------------------------------------------------------------------------ */

static const char *device_name(uint32_t value)
{
    return attn_device_name((int32_t)value);
}

static void check_layout(const struct python_kind *kind, attn_util_question *ask)
{
    const char *layout = ask->problem.kv_layout;
    char accepted[160] = "";
    if (!has_cache(kind, ask) && !layout)
        return;
    for (uint32_t l = 0; l < kind->num_layouts; l++) {
        bool latent = strcmp(kind->layouts[l], ATTN_LAYOUT_MLA_LATENT) == 0;
        if (latent != (ask->group.kind == ATTN_KIND_MLA))
            continue;
        if (layout && strcmp(layout, kind->layouts[l]) == 0)
            return;
        size_t length = strlen(accepted);
        snprintf(accepted + length, sizeof accepted - length, "%s%s", length ? ", " : "",
                 kind->layouts[l]);
    }
    attn_util_refuse(&ask->verdict, ATTN_REASON_KV_LAYOUT, ATTN_FIELD_KV_LAYOUT,
                     accepted[0] ? accepted : "nothing", "%s", layout ? layout : "absent");
}

/* Nothing is captured on a processor. */
static uint32_t graph_level(const struct python_kind *kind, const attn_util_question *ask)
{
    return ask->device.type == ATTN_DEVICE_CPU ? ATTN_GRAPH_NEVER : kind->limits.graph_level;
}

static void check_declaration(const struct python_kind *kind, attn_util_question *ask)
{
    attn_verdict *verdict = &ask->verdict;
    const attn_layer_group *group = &ask->group;
    attn_util_limits limits = kind->limits;
    limits.graph_level = graph_level(kind, ask);
    attn_util_check_member(kind->devices, (uint32_t)ask->device.type, ATTN_DEVICE_COUNT,
                           device_name, ATTN_REASON_ARCH, ATTN_FIELD_DEVICE_TYPE, verdict);
    check_layout(kind, ask);
    check_numbers(kind, ask);
    if (group->attention_chunk > 0 && !kind->limits.chunks)
        attn_util_refuse(verdict, ATTN_REASON_CHUNK, ATTN_FIELD_ATTENTION_CHUNK, "0", "%d",
                         group->attention_chunk);
    if (group->logit_cap > 0 && !kind->caps_logits)
        attn_util_refuse(verdict, ATTN_REASON_LOGIT_CAP, ATTN_FIELD_LOGIT_CAP, "0", "%s",
                         attn_util_number((double)group->logit_cap).text);
    attn_util_check_group(&limits, group, verdict);
    attn_util_check_one_dtype(&limits, &ask->problem, group, verdict);
    attn_util_check_layers(&limits, group, verdict);
    attn_util_check_bounds(&limits, &ask->bounds, verdict);
    attn_util_check_needs(&limits, &ask->problem, verdict);
    attn_util_refuse_excess(verdict, ATTN_REASON_MLA_FORM, ATTN_FIELD_MLA_EXPANDED, 0,
                            ask->problem.mla_expanded);
}

/* ---- The class's own predicate --------------------------------------------------------------- */

/* The fields that the declaration refuses, whatever room for reasons the caller has. */
static void list_refused(const struct python_kind *kind, const attn_util_question *ask,
                         bool refused[ATTN_FIELD_COUNT])
{
    attn_reason reasons[ATTN_FIELD_COUNT];
    attn_util_question again = *ask;
    ATTN_UTIL_INIT(&again.verdict);
    for (uint32_t r = 0; r < ATTN_FIELD_COUNT; r++)
        ATTN_UTIL_INIT(&reasons[r]);
    again.verdict.reasons = reasons;
    again.verdict.reasons_capacity = ATTN_FIELD_COUNT;
    check_declaration(kind, &again);
    memset(refused, 0, ATTN_FIELD_COUNT * sizeof *refused);
    for (uint32_t r = 0; r < again.verdict.num_reasons && r < ATTN_FIELD_COUNT; r++)
        refused[reasons[r].field] = true;
}

/* (field, with_field, got, accepted). A reason is left out where the declaration refuses one of its
 * fields: that field has to change, and may take the reason along. */
static void add_reason(attn_verdict *verdict, const bool refused[ATTN_FIELD_COUNT],
                       py_object *reason)
{
    uint32_t field = python_field(python_utf8(py.PyTuple_GetItem(reason, 0)));
    uint32_t with = python_field(python_utf8(py.PyTuple_GetItem(reason, 1)));
    const char *got = python_utf8(py.PyTuple_GetItem(reason, 2));
    const char *accepted = python_utf8(py.PyTuple_GetItem(reason, 3));
    if (refused[field] || refused[with])
        return;
    if (with)
        attn_util_refuse_with(verdict, field, with, accepted, "%s", got);
    else
        attn_util_refuse(verdict, ATTN_REASON_OTHER, field, accepted, "%s", got);
}

/* Reasons of the class beside those of its declaration: a tuple of them in a tuple. */
static attn_status ask_class(const struct python_kind *kind, const attn_options *options,
                             attn_util_question *ask, attn_error *error)
{
    bool refused[ATTN_FIELD_COUNT];
    list_refused(kind, ask, refused);
    struct python_lock lock = python_lock();
    py_object *method = py.PyObject_GetAttrString(kind->object, "supports");
    py_object *arguments = py.PyTuple_New(2);
    python_put(arguments, 0, python_problem(ask));
    python_put(arguments, 1, python_options(options));
    py_object *answer = python_call(method, arguments, error);
    py.Py_DecRef(method);
    attn_status status = ATTN_OK;
    if (answer && py.PyTuple_Size(answer) == 1) {
        py_object *reasons = py.PyTuple_GetItem(answer, 0);
        for (ptrdiff_t r = 0; r < py.PyTuple_Size(reasons); r++)
            add_reason(&ask->verdict, refused, py.PyTuple_GetItem(reasons, r));
        py.Py_DecRef(answer);
    } else {
        status = python_status(answer, error);
    }
    python_unlock(&lock);
    return status;
}

attn_status python_query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *answer, attn_error *error)
{
    const struct python_kind *kind = (const struct python_kind *)(const void *)type;
    attn_util_question ask;
    (void)services;
    attn_status status = attn_util_read_question(problem, answer, &ask, error);
    if (status == ATTN_OK && ask.group.kind == ATTN_KIND_MLA)
        status = attn_util_require_softmax(&ask.group, error);
    if (status != ATTN_OK)
        return status;
    check_declaration(kind, &ask);
    if (kind->asks)
        status = ask_class(kind, options, &ask, error);
    if (status != ATTN_OK)
        return status;
    ask.verdict.graph_level = graph_level(kind, &ask);
    ask.verdict.traits = kind->limits.traits;
    ask.verdict.host_arrays = kind->host_arrays;
    ask.verdict.cost_hint = kind->cost_hint;
    attn_util_verdict_end(&ask.verdict, answer);
    return ATTN_OK;
}

/* ---- Problems and options as Python sees them ------------------------------------------------ */

py_object *python_problem(const attn_util_question *ask)
{
    struct number numbers[NUM_NUMBERS];
    list_numbers(ask, numbers);
    py_object *problem = py.PyTuple_New(NUM_NUMBERS + 7);
    for (int n = 0; n < NUM_NUMBERS; n++)
        python_put(problem, n, python_int(numbers[n].value));
    const attn_layer_group *g = &ask->group;
    python_put(problem, NUM_NUMBERS, python_text(attn_device_name(ask->device.type)));
    python_put(problem, NUM_NUMBERS + 1, python_text(attn_util_dtype_name(ask->problem.q_dtype)));
    python_put(problem, NUM_NUMBERS + 2, python_text(attn_util_kind_name(g->kind)));
    python_put(problem, NUM_NUMBERS + 3, python_text(ask->problem.kv_layout));
    python_put(problem, NUM_NUMBERS + 4, python_int(g->flags));
    python_put(problem, NUM_NUMBERS + 5, python_int(g->attention_chunk));
    python_put(problem, NUM_NUMBERS + 6, py.PyFloat_FromDouble((double)g->logit_cap));
    return problem;
}

py_object *python_options(const attn_options *options)
{
    uint32_t count = options ? options->num_values : 0;
    py_object *list = py.PyTuple_New(count);
    for (uint32_t v = 0; v < count; v++) {
        const attn_option_value *value = (const attn_option_value *)attn_at(options->values, v);
        py_object *pair = py.PyTuple_New(2);
        py_object *it = python_text(value->text);
        if (value->type == ATTN_OPTION_BOOL || value->type == ATTN_OPTION_INT ||
            value->type == ATTN_OPTION_SIZE) {
            py.Py_DecRef(it);
            it = python_int(value->integer);
        } else if (value->type == ATTN_OPTION_FLOAT) {
            py.Py_DecRef(it);
            it = py.PyFloat_FromDouble(value->real);
        }
        python_put(pair, 0, python_text(value->key));
        python_put(pair, 1, it);
        python_put(list, (int)v, pair);
    }
    return list;
}
