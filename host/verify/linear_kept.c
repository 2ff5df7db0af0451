/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_kept.c: the kept states, and their removal when memory is short.
 */
#include "host/verify/linear_kept.h"

#include <stdlib.h>

#include "host/base/error.h"

/* ---- Parts ----------------------------------------------------------------------------------- */

/* The heads that share a k head, so that its channels are convolved once; but at least 4, which is
 * work enough for a task, and at most 8, so that there are several. */
int32_t kept_part_heads(const attn_linear_dims *dims)
{
    int32_t shared = dims->num_k_heads > 0 ? dims->num_v_heads / dims->num_k_heads : 1;
    return shared < 4 ? 4 : shared > 8 ? 8 : shared;
}

int32_t kept_num_parts(const attn_linear_dims *dims)
{
    int32_t heads = kept_part_heads(dims);
    return (dims->num_v_heads + heads - 1) / heads;
}

static int32_t heads_of_part(const attn_linear_dims *dims, int32_t part)
{
    int32_t heads = kept_part_heads(dims), left = dims->num_v_heads - part * heads;
    return left < heads ? left : heads;
}

/* ---- One replay ------------------------------------------------------------------------------ */

static void destroy(struct kept_replay *replay)
{
    for (int32_t part = 0; replay->parts && part < replay->num_parts; part++)
        reference_linear_replay_finish(&replay->parts[part]);
    free(replay->parts);
    free(replay);
}

static uint64_t bytes_of(const reference_linear_layer *layer)
{
    uint64_t bytes = sizeof(struct kept_replay);
    for (int32_t part = 0; part < kept_num_parts(&layer->dims); part++)
        bytes += sizeof(reference_linear_replay) +
                 reference_linear_replay_bytes(layer, part * kept_part_heads(&layer->dims),
                                               heads_of_part(&layer->dims, part));
    return bytes;
}

static attn_status create(const reference_linear_layer *layer, struct kept_replay **created,
                          attn_error *error)
{
    struct kept_replay *made = calloc(1, sizeof *made);
    attn_status status = ATTN_OK;
    if (made) {
        made->num_parts = kept_num_parts(&layer->dims);
        made->parts = calloc((size_t)made->num_parts, sizeof *made->parts);
        made->bytes = bytes_of(layer);
    }
    if (!made || !made->parts) {
        free(made);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "verification: no memory for states");
    }
    for (int32_t part = 0; part < made->num_parts && status == ATTN_OK; part++)
        status = reference_linear_replay_init(&made->parts[part], layer,
                                              part * kept_part_heads(&layer->dims),
                                              heads_of_part(&layer->dims, part), error);
    if (status != ATTN_OK)
        destroy(made);
    else
        *created = made;
    return status;
}

/* ---- All of them ----------------------------------------------------------------------------- */

void kept_begin(struct kept_replays *kept)
{
    kept->round++;
}

static void drop(struct kept_replays *kept, struct kept_replay **link)
{
    struct kept_replay *dropped = *link;
    *link = dropped->next;
    kept->bytes -= dropped->bytes;
    destroy(dropped);
}

/* Drop the oldest ones until `more` bytes fit; those in use stay. */
static void make_room(struct kept_replays *kept, uint64_t more)
{
    while (kept->bytes + more > kept->max_bytes) {
        struct kept_replay **oldest = NULL;
        for (struct kept_replay **link = &kept->latest; *link; link = &(*link)->next)
            oldest = (*link)->round == kept->round ? oldest : link;
        if (!oldest)
            return;
        drop(kept, oldest);
    }
}

static struct kept_replay **link_of(struct kept_replays *kept, int64_t request, int32_t layer)
{
    struct kept_replay **link = &kept->latest;
    while (*link && ((*link)->request != request || (*link)->layer != layer))
        link = &(*link)->next;
    return link;
}

attn_status kept_find(struct kept_replays *kept, int64_t request, int32_t layer_id,
                      const reference_linear_layer *layer, struct kept_replay **found,
                      attn_error *error)
{
    struct kept_replay **link = link_of(kept, request, layer_id), *replay = *link;
    *found = NULL;
    if (replay && replay->round == kept->round)
        return ATTN_OK;
    if (replay) {
        *link = replay->next;
    } else {
        uint64_t bytes = bytes_of(layer);
        make_room(kept, bytes);
        if (kept->latest && kept->latest->round == kept->round &&
            kept->bytes + bytes > kept->max_bytes)
            return ATTN_OK;
        attn_status status = create(layer, &replay, error);
        if (status != ATTN_OK)
            return status;
        replay->request = request;
        replay->layer = layer_id;
        kept->bytes += bytes;
        if (kept->bytes > kept->most_bytes)
            kept->most_bytes = kept->bytes;
    }
    replay->round = kept->round;
    replay->next = kept->latest;
    kept->latest = replay;
    *found = replay;
    return ATTN_OK;
}

void kept_end(struct kept_replays *kept)
{
    kept->round++;
    make_room(kept, 0);
}

void kept_drop_round(struct kept_replays *kept)
{
    while (kept->latest && kept->latest->round == kept->round)
        drop(kept, &kept->latest);
}

void kept_finish(struct kept_replays *kept)
{
    while (kept->latest)
        drop(kept, &kept->latest);
}
