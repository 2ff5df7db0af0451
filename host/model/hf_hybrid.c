/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_hybrid.c: decoders that mix full attention with other layers, by a list: MiniMax with
 * lightning attention, LFM2 with short convolutions.
 */
#include "host/model/hf.h"

/* ---- Lists of layers ------------------------------------------------------------------------- */

/* Is the layer full attention? layer_types has names: full_attention, or `other`. */
static bool named_full(const struct hf_source *source, const cJSON *list, int32_t index,
                       const char *other)
{
    const struct hf_layer_name names[] = {{"full_attention", 1}, {other, 0}, {NULL, 0}};
    return hf_layer_type(source, "layer_types", list, index, names) == 1;
}

/* Both kinds of layers, in the order of the blocks. */
static void add_layers(struct hf_source *source, int32_t num_layers, const bool *full,
                       const struct model_spec *attention, const struct model_spec *other)
{
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++)
        hf_add(source, full[i] ? attention : other, "decoder", i);
}

/* ---- MiniMax --------------------------------------------------------------------------------- */

/* The authors' files have numbers, those of Transformers names. */
static void read_minimax_layers(const struct hf_source *source, int32_t num_layers, bool *full)
{
    static const char types[] = "attn_type_list";
    const cJSON *numbers = json_array(&source->text, types, num_layers);
    const cJSON *names = json_array(&source->text, "layer_types", num_layers);
    if (!numbers && !names)
        json_fail(&source->text, types,
                  "is missing: accepted 0 (lightning attention) or 1 (full) for each layer, or "
                  "names in layer_types");
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++) {
        const cJSON *item = cJSON_GetArrayItem(numbers, i);
        if (!numbers)
            full[i] = named_full(source, names, i, "linear_attention");
        else if (hf_is_index(item, 1))
            full[i] = item->valueint == 1;
        else
            hf_fail_item(source, types, i, item, "0 (lightning attention), 1 (full)");
    }
}

void hf_build_minimax(struct hf_source *source)
{
    bool full[MODEL_MAX_LAYERS] = {0};
    struct model_spec attention, lightning;
    int32_t num_layers = hf_num_layers(source);
    struct hf_heads heads = hf_read_heads(source);
    /* Heads are shared by full layers alone. Convolution and gates there are none; the decays are
     * constants. */
    attn_linear_dims dims = {.family = ATTN_LINEAR_LIGHTNING,
                             .num_k_heads = heads.num_heads,
                             .num_v_heads = heads.num_heads,
                             .head_k_dim = heads.head_dim,
                             .head_v_dim = heads.head_dim,
                             .chunk = hf_int(source, "block_size|block", 256, 1 << 20),
                             .state_dtype = hf_state_dtype(source)};
    int64_t window = json_int(&source->text, "sliding_window", 0, 1, INT32_MAX);
    model_spec_softmax(&attention, heads.num_heads, heads.num_kv_heads, heads.head_dim,
                       heads.head_dim);
    if (window > 0)
        attention.group.window_left = (int32_t)window - 1;
    model_spec_linear(&lightning, &dims);
    read_minimax_layers(source, num_layers, full);
    add_layers(source, num_layers, full, &attention, &lightning);
}

/* ---- LFM2 ------------------------------------------------------------------------------------ */

/* The first files list which layers are full, later ones name all. Without either all are full. */
static void read_lfm2_layers(const struct hf_source *source, int32_t num_layers, bool *full)
{
    const cJSON *names = json_array(&source->text, "layer_types", num_layers);
    const cJSON *indices = json_array(&source->text, "full_attn_idxs", -1);
    for (int32_t i = 0; hf_ok(source) && i < num_layers; i++)
        full[i] = names ? named_full(source, names, i, "conv") : !indices;
    const cJSON *item = !names && indices ? indices->child : NULL;
    for (int32_t n = 0; item; item = item->next, n++) {
        if (hf_is_index(item, num_layers - 1))
            full[item->valueint] = true;
        else
            hf_fail_item(source, "full_attn_idxs", n, item, "the number of a layer, from 0");
    }
}

void hf_build_lfm2(struct hf_source *source)
{
    bool full[MODEL_MAX_LAYERS] = {0};
    struct model_spec attention, convolution;
    int32_t num_layers = hf_num_layers(source);
    struct hf_heads heads = hf_read_heads(source);
    /* A channel for each element of the hidden state, here in as many parts as there are heads. The
     * gates before and after it are the model's. */
    attn_linear_dims dims = {.family = ATTN_LINEAR_SHORT_CONV,
                             .flags = ATTN_LINEAR_CONV_IDENTITY,
                             .num_v_heads = heads.num_heads,
                             .head_v_dim =
                                 hf_split_heads(&source->text, "hidden_size", heads.num_heads),
                             .conv_width = hf_int(source, "conv_L_cache", 3, 64),
                             .state_dtype = ATTN_F32,
                             .conv_dtype = source->model->dtype};
    model_spec_softmax(&attention, heads.num_heads, heads.num_kv_heads, heads.head_dim,
                       heads.head_dim);
    model_spec_linear(&convolution, &dims);
    source->model->conv_bias = json_bool(&source->text, "conv_bias", false);
    read_lfm2_layers(source, num_layers, full);
    add_layers(source, num_layers, full, &attention, &convolution);
}
