/* SPDX-License-Identifier: Apache-2.0
 *
 * own_parsers: an engine that carries an ini reader and a JSON parser under the names of inih and
 * cJSON, of other versions. The library calls its own.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "attnhost.h"

static int calls; /* of the engine's parsers */

int ini_parse_stream(void *reader, void *stream, void *handler, void *user);
void *cJSON_Parse(const char *text);
void *cJSON_ParseWithLength(const char *text, size_t length);
void *cJSON_ParseWithLengthOpts(const char *text, size_t length, const char **end, int terminated);
void *cJSON_CreateObject(void);
void cJSON_Delete(void *item);

int ini_parse_stream(void *reader, void *stream, void *handler, void *user)
{
    (void)reader, (void)stream, (void)handler, (void)user;
    calls++;
    return 0;
}

void *cJSON_Parse(const char *text)
{
    (void)text;
    calls++;
    return NULL;
}

void *cJSON_ParseWithLength(const char *text, size_t length)
{
    (void)length;
    return cJSON_Parse(text);
}

void *cJSON_ParseWithLengthOpts(const char *text, size_t length, const char **end, int terminated)
{
    (void)length, (void)end, (void)terminated;
    return cJSON_Parse(text);
}

void *cJSON_CreateObject(void)
{
    return cJSON_Parse("");
}

void cJSON_Delete(void *item)
{
    (void)item;
    calls++;
}

static int number;
static bool all_good = true;

static void report(bool good, const char *what, const char *message)
{
    printf("%s %d - %s\n", good ? "ok" : "not ok", ++number, what);
    if (!good)
        printf("# %s; calls of the engine's parsers: %d\n", message, calls);
    all_good = all_good && good;
}

static const char model_text[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 2, \"hidden_size\": 64, "
    "\"num_attention_heads\": 4, \"max_position_embeddings\": 128, \"torch_dtype\": "
    "\"bfloat16\"}";
static const char ini_text[] = "[backend.mine]\ntype = cpu_native\n";

int main(void)
{
    char text[512] = "";
    const char *const settings[] = {"platform.device=cpu"};
    attn_error error = {.struct_size = sizeof error, .capacity = sizeof text, .message = text};
    attnhost *host = NULL;
    const attnhost_selection *selection = NULL;
    attnhost_model model = {
        .struct_size = sizeof model, .config = model_text, .config_length = strlen(model_text)};
    attn_status status = attnhost_create(NULL, &host, &error);
    printf("1..2\n");
    if (status == ATTN_OK)
        status = attnhost_configure_text(host, ini_text, strlen(ini_text), "t.ini", NULL, &error);
    report(status == ATTN_OK && calls == 0, "an ini is read by the library's own inih", text);
    if (status == ATTN_OK)
        status = attnhost_select(host, &model, settings, 1, &selection, &error);
    report(status == ATTN_OK && calls == 0 && selection && selection->num_layers == 2,
           "a config.json is read by the library's own cJSON", text);
    attnhost_selection_destroy(selection);
    attnhost_destroy(host);
    return all_good ? 0 : 1;
}
