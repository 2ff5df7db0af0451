/* SPDX-License-Identifier: Apache-2.0
 *
 * spec_pairs.c: `attnhost check` that also writes each case's values to the file $SPEC_PAIRS, a line a case, of which
 * tests/conformance/pairs.sh counts pairs. Values are those that serving has, and all data types. The linker puts
 * __wrap_forward_case_create() in place of forward_case_create().
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/base/dtype.h"
#include "host/base/text.h"
#include "host/check/cases/forward_case_private.h"
#include "host/cmd/commands.h"

attn_status __real_forward_case_create(const struct case_spec *spec, uint64_t seed,
                                       const struct device *device, struct forward_case **c,
                                       attn_error *error);
attn_status __wrap_forward_case_create(const struct case_spec *spec, uint64_t seed,
                                       const struct device *device, struct forward_case **c,
                                       attn_error *error);

/* ---- Values ---------------------------------------------------------------------------------- */

static void say(strbuf *line, const char *axis, const char *value)
{
    if (value)
        strbuf_appendf(line, "%s%s=%s", line->length ? "\t" : "", axis, value);
}

/* The name of the first range that holds the number. */
struct range {
    int64_t most;
    const char *name;
};

static void say_range(strbuf *line, const char *axis, int64_t number, const struct range *ranges)
{
    while (ranges->most < number)
        ranges++;
    say(line, axis, ranges->name);
}
#define RANGE(line, axis, number, ...)                                                             \
    say_range(line, axis, number, (const struct range[]){__VA_ARGS__})

static bool has_usual_dim(const struct case_spec *spec)
{
    const int32_t dim = spec->head_dim;
    return dim == 64 || dim == 128 || dim == 192 || dim == 256 || dim == 512;
}

static void say_layer(strbuf *line, const struct case_spec *spec)
{
    const bool has_latent = spec->latent.kv_lora_rank > 0;
    say(line, "layer",
        case_has_indexer(spec)   ? spec->indexer.by_steps ? "indexers in steps" : "indexers"
        : spec->top_k > 0        ? "chosen lists"
        : case_is_expanded(spec) ? "expanded latents"
        : case_is_packed(spec)   ? "packed latents"
        : has_latent             ? "absorbed latents"
        : spec->attn_type == ATTN_TYPE_CROSS   ? "cross attention"
        : spec->attn_type == ATTN_TYPE_DECODER ? "softmax"
                                               : NULL);
    RANGE(line, "queries of a head", spec->num_q_heads / spec->num_kv_heads, {1, "1"},
          {4, "2 to 4"}, {8, "5 to 8"}, {16, "9 to 16"}, {INT64_MAX, "more than 16"});
    if (has_latent)
        return;
    RANGE(line, "KV heads", spec->num_kv_heads, {1, "1"}, {8, "2 to 8"},
          {INT64_MAX, "more than 8"});
    if (has_usual_dim(spec))
        RANGE(line, "dimension", spec->head_dim, {64, "64"}, {128, "128"}, {192, "192"},
              {256, "256"}, {512, "512"});
}

static void say_dtypes(strbuf *line, const struct case_spec *spec)
{
    static const char *const scales[ATTN_SCALE_COUNT] = {NULL, "per tensor", "per head",
                                                         "per sequence", "per token"};
    say(line, "q", dtype_name(spec->q_dtype));
    say(line, "output", dtype_name(spec->out_dtype));
    if (spec->new_kv_dtype)
        say(line, "new k and v", dtype_name(spec->new_kv_dtype));
    say(line, "input scales", scales[spec->input_granularity]);
    if (!spec->kv_layout || case_is_packed(spec))
        return;
    say(line, "cache", dtype_name(spec->kv_dtype));
    say(line, "cache scales", scales[spec->scale_granularity]);
    say(line, "scales", spec->device_scales ? "on the device" : NULL);
}

static void say_rules(strbuf *line, const struct case_spec *spec)
{
    RANGE(line, "window", spec->window_left, {0, NULL}, {63, "1 to 63"}, {1999, "64 to 1999"},
          {INT64_MAX, "2000 or more"});
    say(line, "chunk", spec->attention_chunk > 63 ? "64 or more" : NULL);
    say(line, "mask",
        spec->mask_kind == ATTN_MASK_FULL   ? "full"
        : spec->mask_kind == ATTN_MASK_QLEN ? "new"
                                            : NULL);
    say(line, "scores", spec->logit_cap > 0 ? "capped" : NULL);
    say(line, "positions", spec->alibi ? "ALiBi" : NULL);
    say(line, "sinks", spec->sinks ? "given" : NULL);
    say(line, "LSE", spec->wants_lse ? "wanted" : "not wanted");
}

/* ---- Batch ----------------------------------------------------------------------------------- */

static const char *name_of_mode(const struct case_spec *spec)
{
#define MODE_NAME(name, value, text) text,
    static const char *const names[] = {ATTN_MODE_MAP(MODE_NAME)};
    return spec->mode != ATTN_MODE_MIXED ? names[spec->mode]
           : spec->decodes_first         ? "mixed, decodes first"
           : spec->decode_q_len > 1      ? "mixed with drafts"
                                         : "mixed";
}

static void say_keys(strbuf *line, const struct case_spec *spec)
{
    static const char *const hints[CASE_HINTS] = {NULL, "all", "some", "shorter", "levels"},
                             *const forms[] = {NULL, "req_to_token", "block_table", NULL, "csr"};
    bool shared = false;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        shared |= case_sequence_at(spec, s)->shared > 0;
    say(line, "prefix", shared ? "shared" : NULL);
    say(line, "hint", hints[spec->hint]);
    if (!spec->kv_layout)
        return;
    RANGE(line, "page", spec->page_size, {1, "1"}, {15, NULL}, {16, "16"}, {31, NULL}, {32, "32"},
          {63, NULL}, {64, "64"}, {127, NULL}, {128, "128"}, {INT64_MAX, NULL});
    say(line, "indices",
        spec->index_form < sizeof forms / sizeof *forms ? forms[spec->index_form] : NULL);
    say(line, "keys",
        spec->read_only_layer                ? "another layer's"
        : spec->from_cache                   ? "in the cache"
        : spec->flags & ATTN_FORWARD_SAVE_KV ? "saved"
                                             : "not saved");
}

static void say_batch(strbuf *line, const struct case_spec *spec)
{
    int64_t queries = 0, keys = 0;
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        const struct case_sequence *sequence = case_sequence_at(spec, s);
        const int32_t new = spec->mode == ATTN_MODE_DECODE ? 1 : sequence->num_new;
        queries = new > queries ? new : queries;
        keys = sequence->prefix_len + new > keys ? sequence->prefix_len + new : keys;
    }
    say(line, "mode", name_of_mode(spec));
    RANGE(line, "sequences", spec->num_sequences, {0, NULL}, {1, "1"}, {8, "2 to 8"},
          {64, "9 to 64"}, {INT64_MAX, "more than 64"});
    RANGE(line, "new tokens", queries, {0, NULL}, {8, "1 to 8"}, {64, "9 to 64"},
          {1023, "65 to 1023"}, {INT64_MAX, "1024 or more"});
    RANGE(line, "tokens", keys, {0, NULL}, {512, "1 to 512"}, {8192, "513 to 8192"},
          {INT64_MAX, "more than 8192"});
    RANGE(line, "padding", spec->padded > 0 ? spec->padded - spec->num_sequences : 0, {0, NULL},
          {16, "few sequences"}, {INT64_MAX, "many sequences"});
    say(line, "bounds", spec->loose_bounds ? "loose" : NULL);
}

/* ---- The command ----------------------------------------------------------------------------- */

/* Cases run in processes of their own: each line is one write. */
static void note(const struct case_spec *spec)
{
    const char *path = getenv("SPEC_PAIRS");
    strbuf line;
    if (!path || spec->kind == ATTN_KIND_LINEAR)
        return;
    strbuf_init(&line);
    say_layer(&line, spec);
    say_dtypes(&line, spec);
    say_rules(&line, spec);
    say_keys(&line, spec);
    say_batch(&line, spec);
    strbuf_appendf(&line, "\n");
    const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || write(file, strbuf_text(&line), line.length) != (ssize_t)line.length)
        abort();
    close(file);
    strbuf_finish(&line);
}

attn_status __wrap_forward_case_create(const struct case_spec *spec, uint64_t seed,
                                       const struct device *device, struct forward_case **c,
                                       attn_error *error)
{
    note(spec);
    return __real_forward_case_create(spec, seed, device, c, error);
}

int main(int argc, char **argv)
{
    static const struct command *const commands[] = {&command_check, &command_check_child,
                                                     &command_check_load};
    for (size_t c = 0; argc > 1 && c < sizeof commands / sizeof *commands; c++)
        if (strcmp(argv[1], commands[c]->name) == 0)
            return arguments_run(commands[c], argc - 1, argv + 1);
    return 2;
}
