/* SPDX-License-Identifier: Apache-2.0
 *
 * hf.c: a model from a Hugging Face config.json: the code that all families share.
 *
 * The table of architectures is in model/hf_table.c; a family's layers are in the file named after
 * it: model/hf_dense.c, model/hf_mla.c, model/hf_state.c, model/hf_hybrid.c, model/hf_encoder.c.
 * model/hf_keys.c judges the keys that no family has read. */
#include "host/model/hf.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/log.h"
#include "host/base/text.h"

/* ---- What families share --------------------------------------------------------------------- */

bool hf_ok(const struct hf_source *source)
{
    return *source->root.status == ATTN_OK;
}

void hf_add(struct hf_source *source, const struct model_spec *spec, const char *stack,
            int32_t block)
{
    if (hf_ok(source))
        *source->root.status =
            model_add_layer(source->model, spec, stack, block, source->root.error);
}

void hf_add_shared(struct hf_source *source, const struct model_spec *spec, const char *stack,
                   int32_t block, int32_t owner)
{
    if (hf_ok(source))
        *source->root.status =
            model_add_shared_layer(source->model, spec, stack, block, owner, source->root.error);
}

void hf_leave_out(struct hf_source *source, const char *what)
{
    source->model->left_out = what;
    source->model->num_left_out++;
}

void hf_no_matter(const struct json_reader *reader, const char *keys)
{
    json_get(reader, keys);
}

/* ---- Lists of layers ------------------------------------------------------------------------- */

void hf_fail_item(const struct hf_source *source, const char *list, int32_t index,
                  const cJSON *item, const char *accepted)
{
    char key[48], got[64];
    snprintf(key, sizeof key, "%s[%d]", list, index);
    json_describe(item, got, sizeof got);
    json_fail(&source->text, key, "got %s: accepted %s", got, accepted);
}

int hf_layer_type(const struct hf_source *source, const char *key, const cJSON *list, int32_t index,
                  const struct hf_layer_name *names)
{
    const cJSON *item = cJSON_GetArrayItem(list, index);
    strbuf accepted;
    for (const struct hf_layer_name *n = names; n->name && cJSON_IsString(item); n++)
        if (strcmp(item->valuestring, n->name) == 0)
            return n->type;
    strbuf_init(&accepted);
    for (const struct hf_layer_name *n = names; n->name; n++)
        strbuf_appendf(&accepted, "%s%s", n > names ? ", " : "", n->name);
    hf_fail_item(source, key, index, item, strbuf_text(&accepted));
    strbuf_finish(&accepted);
    return names->type;
}

bool hf_is_index(const cJSON *item, int32_t most)
{
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= most &&
           !(item->valuedouble < item->valueint) && !(item->valuedouble > item->valueint);
}

/* ---- Numbers --------------------------------------------------------------------------------- */

int32_t hf_int(const struct hf_source *source, const char *keys, int32_t otherwise, int32_t max)
{
    return (int32_t)json_int(&source->text, keys, otherwise ? otherwise : JSON_REQUIRED, 1, max);
}

int32_t hf_num_layers(const struct hf_source *source)
{
    if (source->defaults->flags & HF_TWO_IN_ONE && json_has(&source->text, "num_layers"))
        return 2 * hf_int(source, "num_layers", 0, MODEL_MAX_LAYERS / 2);
    return hf_int(source, "num_hidden_layers|n_layers|n_layer|num_layers",
                  source->defaults->num_layers, MODEL_MAX_LAYERS);
}

int32_t hf_split_heads(const struct json_reader *reader, const char *hidden_keys, int32_t num_heads)
{
    int64_t hidden = json_int(reader, hidden_keys, JSON_REQUIRED, 1, INT32_MAX);
    if (hidden % num_heads != 0 || hidden / num_heads > MODEL_MAX_DIM) {
        json_fail(reader, hidden_keys,
                  "got %lld: accepted a multiple of the %d heads, of at most %d elements each",
                  (long long)hidden, num_heads, MODEL_MAX_DIM);
        return 1;
    }
    return (int32_t)(hidden / num_heads);
}

static int32_t read_nested_kv_heads(const struct hf_source *source, int32_t otherwise)
{
    struct json_reader own;
    hf_no_matter(&source->text, "num_key_value_heads"); /* Transformers repeats it there */
    if (!json_object(&source->text, "attn_config", "attn_config.", &own))
        return otherwise;
    return (int32_t)json_int(&own, "kv_n_heads", otherwise, 1, MODEL_MAX_HEADS);
}

/* Falcon's and BigCode's query heads share one KV head unless the file says otherwise. */
static int32_t read_kv_heads(const struct hf_source *source, int32_t heads)
{
    const struct json_reader *text = &source->text;
    int32_t otherwise = source->defaults->num_kv_heads ? source->defaults->num_kv_heads : heads;
    if (source->defaults->flags & HF_ATTN_CONFIG)
        return read_nested_kv_heads(source, otherwise);
    if (!(source->defaults->flags & HF_MULTI_QUERY))
        return hf_int(source, "num_key_value_heads", otherwise, MODEL_MAX_HEADS);
    bool grouped = json_bool(text, "new_decoder_architecture", false);
    bool single = json_bool(text, "multi_query", true);
    hf_no_matter(text, "num_key_value_heads|num_kv_heads"); /* unless one of these asks for it */
    return single && !grouped
               ? 1
               : hf_int(source, "num_kv_heads|num_key_value_heads", heads, MODEL_MAX_HEADS);
}

/* Classes that project to heads of hidden_size // heads elements, whatever is left. */
static int32_t floor_heads(const struct json_reader *text, int32_t num_heads)
{
    int64_t hidden = json_int(text, "hidden_size", JSON_REQUIRED, num_heads, MODEL_MAX_DIM);
    return hidden < num_heads ? 1 : (int32_t)(hidden / num_heads);
}

struct hf_heads hf_read_heads(const struct hf_source *source)
{
    const struct hf_defaults *defaults = source->defaults;
    struct hf_heads heads;
    heads.num_heads =
        hf_int(source, "num_attention_heads|n_head|n_heads", defaults->num_heads, MODEL_MAX_HEADS);
    heads.num_kv_heads = read_kv_heads(source, heads.num_heads);
    if (heads.num_heads % heads.num_kv_heads != 0)
        json_fail(&source->text, "num_attention_heads",
                  "got %d: accepted a multiple of num_key_value_heads = %d", heads.num_heads,
                  heads.num_kv_heads);
    /* head_dim: null asks for the heads to share hidden_size, whatever the family's default is. */
    bool shared = json_stated(&source->text, "head_dim") && !json_has(&source->text, "head_dim");
    if (json_has(&source->text, "head_dim|attention_head_dim") || (defaults->head_dim && !shared))
        heads.head_dim =
            hf_int(source, "head_dim|attention_head_dim", defaults->head_dim, MODEL_MAX_DIM);
    else if (defaults->flags & HF_FLOOR_DIM)
        heads.head_dim = floor_heads(&source->text, heads.num_heads);
    else
        heads.head_dim =
            hf_split_heads(&source->text, "hidden_size|n_embed|n_embd|d_model", heads.num_heads);
    return heads;
}

/* Transformers writes an infinite bound as Infinity or as {"__float__": "Infinity"}. */
static double upper_bound(const cJSON *high)
{
    const cJSON *word = cJSON_GetObjectItemCaseSensitive(high, "__float__");
    if (cJSON_IsNumber(high))
        return high->valuedouble;
    bool none =
        cJSON_IsNull(high) || (cJSON_IsString(word) && strcmp(word->valuestring, "Infinity") == 0);
    return none ? HUGE_VAL : 0;
}

/* [lowest, highest]. Families with a minimum of its own key have set it before. */
static void read_bounds(const struct hf_source *source, attn_linear_dims *dims)
{
    const cJSON *limit = json_array(&source->text, "time_step_limit", -1);
    if (!limit)
        return;
    const cJSON *low = cJSON_GetArrayItem(limit, 0);
    double least = cJSON_IsNumber(low) ? low->valuedouble : -1;
    double most = upper_bound(cJSON_GetArrayItem(limit, 1));
    bool lost = least > 0 && least < (double)FLT_MIN; /* in fp32 */
    if (cJSON_GetArraySize(limit) != 2 || least < 0 || least >= most || least > (double)FLT_MAX ||
        lost)
        json_fail(
            &source->text, "time_step_limit",
            "accepted [lowest, highest], two numbers in that order, each 0 or from 1.2e-38 on");
    if (dims->dt_min == 0)
        dims->dt_min = (float)least;
    if (most < (double)FLT_MAX)
        dims->dt_max = (float)most;
}

void hf_mamba2_dims(const struct hf_source *source, const char *key, attn_linear_dims *dims)
{
    if (dims->num_v_heads % dims->num_groups != 0)
        json_fail(&source->text, key, "got %d: accepted a multiple of the %d groups",
                  dims->num_v_heads, dims->num_groups);
    dims->struct_size = sizeof *dims;
    dims->family = ATTN_LINEAR_MAMBA2;
    dims->flags = ATTN_LINEAR_RAW_GATES;
    dims->num_k_heads = dims->num_groups;
    dims->state_dtype = hf_state_dtype(source);
    dims->conv_dtype = source->model->dtype;
    source->model->conv_bias = json_bool(&source->text, "use_conv_bias|mamba_conv_bias", true);
    read_bounds(source, dims);
}

attn_dtype hf_dtype(const struct json_reader *reader, const char *keys, attn_dtype otherwise)
{
    static const struct {
        const char *name;
        attn_dtype dtype;
    } names[] = {{"bfloat16", ATTN_BF16},
                 {"float16", ATTN_F16},
                 {"half", ATTN_F16},
                 {"float32", ATTN_F32},
                 {"float", ATTN_F32}};
    const char *name = json_string(reader, keys, NULL);
    if (!name)
        return otherwise;
    const char *bare = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(bare, names[i].name) == 0)
            return names[i].dtype;
    json_fail(reader, keys, "got \"%.40s\": accepted bfloat16, float16, float32", name);
    return otherwise;
}

attn_dtype hf_state_dtype(const struct hf_source *source)
{
    static const char keys[] = "mamba_ssm_dtype|mamba_ssm_cache_dtype";
    attn_dtype dtype = hf_dtype(&source->text, keys, ATTN_F32);
    if (dtype != ATTN_F32 && dtype != ATTN_BF16)
        json_fail(&source->text, keys, "accepted float32, bfloat16");
    return dtype;
}

/* ---- Which architecture ---------------------------------------------------------------------- */

/* Endings that a class adds to its family's name for a task; attention is the same in all of them.
 */
static const char *const tasks[] = {"ForCausalLM",
                                    "ForConditionalGeneration",
                                    "ForSequenceClassification",
                                    "ForTokenClassification",
                                    "ForQuestionAnswering",
                                    "ForMaskedLM",
                                    "ForMultipleChoice",
                                    "ForPreTraining",
                                    "LMHeadModel",
                                    "Model"};

/* Length of the task at the end of a class's name; 0 = none that is known. */
static size_t task_length(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        size_t cut = strlen(tasks[i]);
        if (length > cut && strcmp(name + length - cut, tasks[i]) == 0)
            return cut;
    }
    return 0;
}

/* Length of a name without its task, which may be spelt wrongly: 5 of LlamaForCasualLM. */
static size_t family_length(const char *name)
{
    size_t cut = task_length(name);
    const char *task = cut ? name + strlen(name) - cut : strstr(name, "For");
    return task ? (size_t)(task - name) : strlen(name);
}

/* The row of the same family by `compare`. A family that is only spelt alike is another model:
 * Gemma is not Gemma 2. */
static const struct hf_architecture *same_family(const char *got,
                                                 int (*compare)(const char *, const char *, size_t))
{
    size_t length = family_length(got);
    for (size_t i = 0; i < hf_num_architectures; i++) {
        const char *name = hf_architectures[i].name;
        if (family_length(name) == length && compare(name, got, length) == 0)
            return &hf_architectures[i];
    }
    return NULL;
}

static const char *reason_beyond(const char *got)
{
    for (size_t i = 0; i < hf_num_beyond; i++)
        if (strcmp(got, hf_beyond[i].name) == 0)
            return hf_beyond[i].why;
    return NULL;
}

static void fail_unknown(const struct json_reader *root, const char *got)
{
    static const char keys[] = "the keys of [model] describe layers by type (layer_types, "
                               "num_q_heads, sliding.num_kv_heads, sliding.sinks ...)";
    const struct hf_architecture *family = same_family(got, strncasecmp);
    const char *same = family ? family->name : NULL, *beyond = reason_beyond(got);
    if (beyond)
        json_fail(root, "architectures[0]", "%s cannot be described: %s", got, beyond);
    else
        json_fail(
            root, "architectures[0]",
            "unknown architecture \"%.60s\"%s%s%s: accepted are the %zu of docs/MODELS.md; %s", got,
            same ? " (did you mean " : "", same ? same : "", same ? "?)" : "", hf_num_architectures,
            keys);
}

static const struct hf_architecture *find_row(const char *name)
{
    for (size_t i = 0; i < hf_num_architectures; i++)
        if (strcmp(name, hf_architectures[i].name) == 0)
            return &hf_architectures[i];
    return NULL;
}

/* Another task's class of a known family. Alone, a decoder that reads an encoder is another model.
 */
static const struct hf_architecture *find_family(const char *name)
{
    const struct hf_architecture *row = task_length(name) ? same_family(name, strncmp) : NULL;
    bool alone = row && row->build == hf_build_whisper && strstr(name, "ForCausalLM");
    return alone ? NULL : row;
}

/* A wrapper's text model, by the model_type of its text_config. */
static const struct hf_architecture *find_text_type(const struct json_reader *text)
{
    const char *type = json_string(text, "model_type", "");
    for (size_t i = 0; i < hf_num_text_types; i++)
        if (strcmp(type, hf_text_types[i].model_type) == 0)
            return find_row(hf_text_types[i].architecture);
    return NULL;
}

/* A decoder that is not known but says its layers and heads. */
static const struct hf_architecture *find_by_keys(const struct json_reader *text, const char *name)
{
    static const struct hf_defaults none = {.flags = HF_BY_KEYS};
    static const struct hf_architecture softmax = {"", hf_build_dense, &none};
    static const struct hf_architecture latent = {"", hf_build_mla, &none};
    bool decodes = strstr(name, "ForCausalLM") || strstr(name, "LMHeadModel") ||
                   strstr(name, "ForConditionalGeneration");
    if (!decodes || !json_has(text, "num_hidden_layers|n_layer") ||
        !json_has(text, "num_attention_heads|n_head"))
        return NULL;
    return json_has(text, "kv_lora_rank") ? &latent : &softmax;
}

/* The text model's object, or the whole file. An omni model's text model is its thinker's. */
static void find_text(struct hf_source *source)
{
    struct json_reader thinker;
    source->text = source->root;
    if (json_object(&source->root, "thinker_config", "thinker_config.", &thinker))
        json_object(&thinker, "text_config", "thinker_config.text_config.", &source->text);
    else if (!json_object(&source->root, "text_config", "text_config.", &source->text) &&
             !json_object(&source->root, "llm_config", "llm_config.", &source->text))
        json_object(&source->root, "language_config", "language_config.", &source->text);
}

/* The row of the file's class: its own, its family's, or by what the file holds. */
static const struct hf_architecture *find_architecture(struct hf_source *source, const char **name)
{
    const struct json_reader *root = &source->root;
    const cJSON *list = json_array(root, "architectures", -1);
    const cJSON *first = list ? cJSON_GetArrayItem(list, 0) : NULL;
    if (!cJSON_IsString(first)) {
        json_fail(root, "architectures",
                  "is missing or not a list of names: accepted as [\"LlamaForCausalLM\"]");
        return NULL;
    }
    *name = first->valuestring;
    const struct hf_architecture *row = find_row(*name);
    if (!row)
        row = find_family(*name);
    if (!row && !reason_beyond(*name)) {
        source->is_wrapper = source->text.object != root->object;
        row = source->is_wrapper ? find_text_type(&source->text) : NULL;
        if (!row)
            row = find_by_keys(&source->text, *name);
    }
    if (!row)
        fail_unknown(root, *name);
    return row;
}

/* ---- What the user may say too --------------------------------------------------------------- */

/* A config.json is the model: other keys of [model] would be ignored, so they are refused. */
static attn_status check_overrides(const struct config *config, attn_error *error)
{
    static const char *const others[] = {"model.config",  "model.dtype",   "model.max_context_len",
                                         "model.tp_size", "model.tp_rank", NULL};
    const char *key = config ? config_find_set(config, "model", others) : NULL;
    if (key)
        return config_fail(config, key, error,
                           "the model comes from model.config: accepted with it are model.dtype, "
                           "max_context_len, tp_size and tp_rank");
    return ATTN_OK;
}

static void read_dtype(struct hf_source *source, const struct config *config)
{
    attn_dtype otherwise = source->defaults->dtype ? source->defaults->dtype : ATTN_F32;
    attn_dtype outer = hf_dtype(&source->root, "dtype|torch_dtype", otherwise);
    source->model->dtype = hf_dtype(&source->text, "dtype|torch_dtype", outer);
    if (config && config_is_set(config, "model.dtype"))
        source->model->dtype = config->model.dtype;
}

static void read_context(struct hf_source *source, const struct config *config)
{
    static const char keys[] = "max_position_embeddings|max_target_positions|model_max_length|"
                               "n_positions|max_seq_len";
    const struct hf_defaults *defaults = source->defaults;
    int64_t stated = json_int(&source->text, keys, defaults->max_positions, 1, MODEL_MAX_CONTEXT);
    if (defaults->flags & HF_PADDED_POSITIONS && stated > 2)
        stated -= 2;
    int64_t wanted = config ? config->model.max_context_len : 0;
    if (stated > 0 && wanted > stated && !*source->root.status)
        *source->root.status = config_fail(config, "model.max_context_len", source->root.error,
                                           "%lld: accepted 1 to %lld, the positions of %s",
                                           (long long)wanted, (long long)stated, source->root.file);
    source->model->max_context_len = (int32_t)(wanted   ? wanted
                                               : stated ? stated
                                                        : MODEL_DEFAULT_CONTEXT);
}

/* ---- Vision towers --------------------------------------------------------------------------- */

/* Patches of a square image, and a class token; a default where the file does not say. */
static int32_t image_tokens(const struct json_reader *vision)
{
    const cJSON *image = json_get(vision, "image_size");
    const cJSON *patch = json_get(vision, "patch_size");
    if (!cJSON_IsNumber(image) || !cJSON_IsNumber(patch) || patch->valuedouble < 1 ||
        image->valuedouble < patch->valuedouble || image->valuedouble > 32768)
        return MODEL_DEFAULT_ENCODER;
    int32_t side = (int32_t)(image->valuedouble / patch->valuedouble);
    return side * side + 1;
}

static const char towers[] = "its towers, which are not read";

/* The audio towers of Gemma 3n and 4 attend in blocks, with a learned distance bias. */
static void leave_out_towers(struct hf_source *source)
{
    uint32_t deaf = HF_UNIT_SCALE | HF_NO_TOWER;
    if (source->defaults->flags & HF_NO_TOWER && json_has(&source->root, "vision_config"))
        hf_leave_out(source, towers);
    if (source->defaults->flags & deaf && json_has(&source->root, "audio_config"))
        hf_leave_out(source, towers);
}

/* Only the text model of a wrapper is read; its towers are left out. */
static void leave_out_wrapped(struct hf_source *source)
{
    static const char *const keys[] = {"vision_config", "audio_config", "encoder_config"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_has(&source->root, keys[i]))
            hf_leave_out(source, towers);
    if (json_has(&source->root, "thinker_config"))
        hf_leave_out(source, "its towers and its speech output, which are not read");
}

static void add_vision_tower(struct hf_source *source)
{
    struct json_reader vision;
    struct model_spec spec;
    if (source->is_wrapper) {
        leave_out_wrapped(source);
        return;
    }
    leave_out_towers(source);
    if (source->defaults->flags & HF_NO_TOWER ||
        !json_object(&source->root, "vision_config", "vision_config.", &vision))
        return;
    int32_t layers =
        (int32_t)json_int(&vision, "num_hidden_layers|depth|num_layers|vt_num_hidden_layers",
                          JSON_REQUIRED, 1, MODEL_MAX_LAYERS);
    int32_t heads =
        (int32_t)json_int(&vision, "num_attention_heads|num_heads|vt_num_attention_heads",
                          JSON_REQUIRED, 1, MODEL_MAX_HEADS);
    int32_t head_dim = json_has(&vision, "head_dim")
                           ? (int32_t)json_int(&vision, "head_dim", JSON_REQUIRED, 1, MODEL_MAX_DIM)
                           : hf_split_heads(&vision, "embed_dim|hidden_size|vt_hidden_size", heads);
    if (!hf_ok(source))
        return;
    model_spec_encoder(&spec, heads, head_dim);
    if (source->defaults->flags & HF_UNIT_SCALE)
        spec.group.sm_scale = 1;
    spec.group.num_kv_heads =
        (int32_t)json_int(&vision, "num_key_value_heads", heads, 1, MODEL_MAX_HEADS);
    if (heads % spec.group.num_kv_heads != 0)
        json_fail(&vision, "num_key_value_heads", "got %d: accepted a divisor of the %d heads",
                  spec.group.num_kv_heads, heads);
    for (int32_t i = 0; i < layers; i++)
        hf_add(source, &spec, "vision", i);
    source->model->max_encoder_len = image_tokens(&vision);
    /* Qwen2.5-VL cuts an image into windows; each is a sequence of its own. */
    hf_no_matter(&vision, "window_size|fullatt_block_indexes");
    hf_check_unread(source, &vision);
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* Nothing may be left that could be about attention; then the user should know what was assumed. */
static void check_by_keys(const struct hf_source *source)
{
    char message[512];
    if (json_bool(&source->text, "is_encoder_decoder", false))
        json_fail(&source->text, "is_encoder_decoder", "got true: accepted false of %s",
                  source->model->architecture);
    hf_check_unknown(source, &source->root);
    if (source->text.object != source->root.object)
        hf_check_unknown(source, &source->text);
    if (!hf_ok(source))
        return;
    snprintf(message, sizeof message,
             "%s: %.60s is not a known architecture (docs/MODELS.md): read by its keys, as causal "
             "attention with a scale of 1 / sqrt(head_dim) and without sinks",
             source->root.file, source->model->architecture);
    host_log_write_newest(ATTN_LOG_WARNING, message);
}

/* Weights that were made for a cache of fewer bits have its scales among them, which are not read. */
static void tell_cache_scheme(const struct hf_source *source, const struct config *config)
{
    struct json_reader of;
    char message[512];
    const struct json_reader *reader =
        json_has(&source->text, "quantization_config") ? &source->text : &source->root;
    if ((config && config->kv_cache.dtype) || !json_has(reader, "quantization_config") ||
        !json_object(reader, "quantization_config", "quantization_config.", &of) ||
        !json_has(&of, "kv_cache_scheme|kv_cache_quant_algo"))
        return;
    snprintf(message, sizeof message,
             "%s: quantization_config.%s is ignored: the cache has the model's type, %s; "
             "accepted: [kv_cache] dtype with k_scale and v_scale, or dtype = %s",
             source->root.file,
             json_has(&of, "kv_cache_scheme") ? "kv_cache_scheme" : "kv_cache_quant_algo",
             dtype_name(source->model->dtype), dtype_name(source->model->dtype));
    host_log_write_newest(ATTN_LOG_WARNING, message);
}

static void build(struct hf_source *source, const struct hf_architecture *architecture,
                  const struct config *config)
{
    source->defaults = architecture->defaults;
    read_dtype(source, config);
    read_context(source, config);
    if (hf_ok(source))
        architecture->build(source);
    if (hf_ok(source))
        add_vision_tower(source);
    hf_check_unread(source, &source->root);
    if (source->text.object != source->root.object)
        hf_check_unread(source, &source->text);
    if (source->defaults->flags & HF_BY_KEYS)
        check_by_keys(source);
    if (hf_ok(source))
        tell_cache_scheme(source, config);
    if (hf_ok(source) && source->model->num_layers == 0)
        json_fail(&source->text, "", "has no attention layer");
}

static attn_status create(const cJSON *tree, const char *name, const struct config *config,
                          struct model **out, attn_error *error)
{
    attn_status status = check_overrides(config, error);
    if (status)
        return status;
    struct hf_source source = {
        .root = {.file = name, .object = tree, .path = "", .status = &status, .error = error}};
    const char *class_name = "";
    find_text(&source);
    const struct hf_architecture *architecture = find_architecture(&source, &class_name);
    if (!architecture)
        return status;
    source.model = model_new(name, class_name, config);
    if (!source.model)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s: no memory for a model", name);
    build(&source, architecture, config);
    if (status) {
        model_destroy(source.model);
        return status;
    }
    model_settle(source.model);
    *out = source.model;
    return ATTN_OK;
}

attn_status model_create_hf_text(const char *text, size_t length, const char *name,
                                 const struct config *config, struct model **model,
                                 attn_error *error)
{
    host_error own;
    host_error_init(&own);
    cJSON *tree = json_parse(text, length, name, &own.base);
    if (!tree)
        return host_fail(error, own.base.code, "%s", host_error_text(&own));
    attn_status status = create(tree, name, config, model, error);
    cJSON_Delete(tree);
    return status;
}

attn_status model_create_hf(const char *path, const struct config *config, struct model **model,
                            attn_error *error)
{
    host_error own;
    host_error_init(&own);
    cJSON *tree = json_parse_file(path, &own.base);
    if (!tree)
        return host_fail(error, own.base.code, "%s", host_error_text(&own));
    attn_status status = create(tree, path, config, model, error);
    cJSON_Delete(tree);
    return status;
}
