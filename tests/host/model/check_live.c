/* SPDX-License-Identifier: Apache-2.0
 *
 * check_live: layers as attnhost reads them from a config.json, and as the living models of
 * Transformers have them.
 *
 * tests/models/live has for each model a small config.json that Transformers saved, and a text with
 * a line for each attention layer, taken from the model while it ran: tests/models/live/live.py.
 * ATTNHOST_TEST_LIVE names another folder; tests/command/live.sh has one made on the spot.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/text.h"
#include "host/model/hf.h"
#include "host/model/model.h"
#include "tests/tools/test_main.h"

enum { MAX_TEXT = 64 << 10, MIN_MODELS = 112 };

static const char *top(void)
{
    const char *source = getenv("ATTNHOST_TEST_SRCDIR");
    return source ? source : ".";
}

static void folder(char path[1024])
{
    const char *given = getenv("ATTNHOST_TEST_LIVE");
    if (given)
        snprintf(path, 1024, "%s", given);
    else
        snprintf(path, 1024, "%s/tests/models/live", top());
}

static void read_text(const char *path, char text[MAX_TEXT])
{
    FILE *file = fopen(path, "r");
    ck_assert_msg(file, "%s cannot be opened", path);
    size_t length = fread(text, 1, MAX_TEXT - 1, file);
    ck_assert_msg(feof(file), "%s is too long", path);
    text[length] = '\0';
    fclose(file);
}

/* ---- The lines of live.py -------------------------------------------------------------------- */

static void append_linear(strbuf *text, const struct model *model, const attn_layer_group *group)
{
    const attn_linear_dims *dims = group->linear;
    const char *bias = model->conv_bias && dims->conv_width ? " bias" : "";
    if (dims->family == ATTN_LINEAR_SHORT_CONV) {
        strbuf_appendf(text, "short_conv channels %d width %d%s",
                       dims->num_v_heads * dims->head_v_dim, dims->conv_width, bias);
        return;
    }
    strbuf_appendf(text, "%s k %dx%d v %dx%d width %d%s scale %.6g",
                   model_linear_name(dims->family), dims->num_k_heads, dims->head_k_dim,
                   dims->num_v_heads, dims->head_v_dim, dims->conv_width, bias,
                   (double)group->sm_scale);
    if (dims->dt_min > 0 || dims->dt_max > 0)
        strbuf_appendf(text, " dt %.6g/%.6g", (double)dims->dt_min, (double)dims->dt_max);
    if (dims->family == ATTN_LINEAR_GDN && !(dims->flags & ATTN_LINEAR_RAW_GATES))
        strbuf_append(text, " gates");
}

/* The layer whose cache this one reads, or -1. */
static int32_t owner_of(const struct model *model, const struct model_layer *layer)
{
    int32_t owner = layer->kv_buffer < 0 ? -1 : model->buffers[layer->kv_buffer].layer_id;
    return owner == layer->layer_id ? -1 : owner;
}

static void append_softmax(strbuf *text, const struct model *model, const struct model_layer *layer)
{
    const attn_layer_group *group = &model->groups[layer->group];
    int32_t kv_heads = group->mla ? group->num_q_heads : group->num_kv_heads;
    strbuf_appendf(text, "heads %d/%d dims %d/%d", group->num_q_heads, kv_heads, group->head_dim,
                   group->v_head_dim);
    if (group->mla)
        strbuf_appendf(text, " latent %d+%d", group->mla->kv_lora_rank, group->mla->rope_dim);
    if (group->sparse)
        strbuf_appendf(text, " top_k %d", group->sparse->top_k);
    strbuf_appendf(text, " scale %.6g window %d/%d", (double)group->sm_scale, group->window_left,
                   group->window_right);
    if (group->attention_chunk)
        strbuf_appendf(text, " chunk %d", group->attention_chunk);
    if (group->logit_cap > 0)
        strbuf_appendf(text, " cap %.6g", (double)group->logit_cap);
    strbuf_append(text, group->flags & ATTN_GROUP_HAS_SINKS ? " sinks" : "");
    strbuf_append(text, group->flags & ATTN_GROUP_HAS_ALIBI ? " alibi" : "");
    if (owner_of(model, layer) >= 0)
        strbuf_appendf(text, " reads %d", owner_of(model, layer));
}

static void append_lines(strbuf *text, const struct model *model)
{
    for (uint32_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        const attn_layer_group *group = &model->groups[layer->group];
        strbuf_appendf(text, "%s block %d: ",
                       group->linear ? "linear" : model_attn_type_name(group->attn_type),
                       layer->block);
        if (group->linear)
            append_linear(text, model, group);
        else
            append_softmax(text, model, layer);
        strbuf_append(text, "\n");
    }
    if (model->left_out)
        strbuf_appendf(text, "left out: %u layers\n", model->num_left_out);
}

/* ---- Comparison ------------------------------------------------------------------------------ */

/* What is wrong with one model, appended to `problems`. */
static void compare(const char *place, const char *name, strbuf *problems)
{
    static char wanted[MAX_TEXT];
    char path[1536];
    struct model *model = NULL;
    HOST_ERROR(error);
    strbuf got;
    snprintf(path, sizeof path, "%s/%s.json", place, name);
    if (model_create_hf(path, NULL, &model, &error.base)) {
        strbuf_appendf(problems, "%s\n", host_error_text(&error));
        return;
    }
    snprintf(path, sizeof path, "%s/%s.txt", place, name);
    read_text(path, wanted);
    strbuf_init(&got);
    append_lines(&got, model);
    if (strcmp(strbuf_text(&got), wanted) != 0)
        strbuf_appendf(problems, "%s: the model has\n%sattnhost reads\n%s", name, wanted,
                       strbuf_text(&got));
    strbuf_finish(&got);
    model_destroy(model);
}

TEST_OF(live, layers_are_the_models_own)
{
    char place[1024], name[256];
    int count = 0;
    strbuf problems;
    strbuf_init(&problems);
    folder(place);
    DIR *files = opendir(place);
    ck_assert_msg(files, "%s cannot be opened", place);
    for (struct dirent *entry; (entry = readdir(files));) {
        const char *end = strstr(entry->d_name, ".json");
        if (!end || end[5])
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(end - entry->d_name), entry->d_name);
        compare(place, name, &problems);
        count++;
    }
    closedir(files);
    ck_assert_msg(!*strbuf_text(&problems), "%s", strbuf_text(&problems));
    ck_assert_int_ge(count, MIN_MODELS);
    strbuf_finish(&problems);
}

/* ---- Whether each architecture has a model --------------------------------------------------- */

/* The row of the table that reads a model's file, or NULL. */
static const struct hf_architecture *reader_of(const char *place, const char *file)
{
    static char text[MAX_TEXT];
    char path[1536], quoted[128];
    snprintf(path, sizeof path, "%s/%s", place, file);
    read_text(path, text);
    const char *at = strstr(text, "\"architectures\"");
    size_t length = at ? strcspn(at, "]") : 0;
    for (size_t i = 0; i < hf_num_architectures; i++) {
        snprintf(quoted, sizeof quoted, "\"%s\"", hf_architectures[i].name);
        const char *found = at ? strstr(at, quoted) : NULL;
        if (found && (size_t)(found - at) < length)
            return &hf_architectures[i];
    }
    return NULL;
}

/* Falcon computes its scores itself and calls no attention function that could be watched; what is
 * read of it is in check_model. */
static const char unseen[] = "FalconForCausalLM";

/* Each is compared with its model, or is read with the functions and defaults of one that is. */
TEST_OF(live, each_architecture_has_a_model)
{
    const struct hf_architecture *held[256];
    size_t num_held = 0;
    char place[1024];
    folder(place);
    DIR *files = opendir(place);
    ck_assert_msg(files, "%s cannot be opened", place);
    for (struct dirent *entry; (entry = readdir(files)) && num_held < 256;) {
        const char *end = strstr(entry->d_name, ".json");
        if (end && !end[5] && (held[num_held] = reader_of(place, entry->d_name)))
            num_held++;
    }
    closedir(files);
    for (size_t i = 0; i < hf_num_architectures; i++) {
        const struct hf_architecture *row = &hf_architectures[i];
        size_t h = 0;
        while (h < num_held && (held[h]->build != row->build || held[h]->defaults != row->defaults))
            h++;
        ck_assert_msg(h < num_held || strcmp(row->name, unseen) == 0, "no model holds %s",
                      row->name);
    }
}

/* ---- The table of docs/MODELS.md ------------------------------------------------------------- */

static bool is_known(const char *name, size_t length)
{
    for (size_t i = 0; i < hf_num_architectures; i++)
        if (strlen(hf_architectures[i].name) == length &&
            strncmp(hf_architectures[i].name, name, length) == 0)
            return true;
    return false;
}

/* Every architecture is in the page between backquotes, and no other is. */
TEST_OF(page, the_page_lists_what_is_read)
{
    static char page[MAX_TEXT];
    char path[1024], quoted[128];
    size_t listed = 0;
    snprintf(path, sizeof path, "%s/docs/MODELS.md", top());
    read_text(path, page);
    for (size_t i = 0; i < hf_num_architectures; i++) {
        snprintf(quoted, sizeof quoted, "`%s`", hf_architectures[i].name);
        ck_assert_msg(strstr(page, quoted), "docs/MODELS.md lacks %s", hf_architectures[i].name);
    }
    char *table = strstr(page, "\n| family |"), *end = table ? strstr(table, "\n\n") : NULL;
    ck_assert_msg(end, "docs/MODELS.md has no table of families");
    *end = '\0';
    for (char *at = strchr(table, '`'); at; at = strchr(at, '`')) {
        size_t length = strcspn(++at, "`");
        ck_assert_msg(is_known(at, length), "docs/MODELS.md has %.*s, which is not read",
                      (int)length, at);
        at += length + 1;
        listed++;
    }
    ck_assert_uint_eq(listed, hf_num_architectures);
}

TESTS("live");
