# SPDX-License-Identifier: Apache-2.0
#
# v1.sed: today's headers as those of a 1.0 that has yet to be: whoever reads its structs by today's
# reads other members. What changed "from 1.0 to 2.0": the order of two arrays in attn_batch and of
# two bounds, and the number of a flag. tests/host/plugin/pretended_v1.c adapts it.
s/^#define ATTN_ABI_MAJOR .*/#define ATTN_ABI_MAJOR 1u/
s/^#define ATTN_ABI_MINOR .*/#define ATTN_ABI_MINOR 0u/
/^typedef struct attn_batch {/,/^} attn_batch;/ {
    s/ attn_i32_array seq_lens;/ attn_i32_array SWAPPED;/
    s/ attn_i32_array prefix_lens;/ attn_i32_array seq_lens;/
    s/ attn_i32_array SWAPPED;/ attn_i32_array prefix_lens;/
}
/^typedef struct attn_bounds {/,/^} attn_bounds;/ {
    s/ int32_t max_seqs;/ int32_t SWAPPED;/
    s/ int32_t max_tokens;/ int32_t max_seqs;/
    s/ int32_t SWAPPED;/ int32_t max_tokens;/
}
s/ATTN_FORWARD_SAVE_KV = 1 << 0,/ATTN_FORWARD_SAVE_KV = 1 << 7,/
