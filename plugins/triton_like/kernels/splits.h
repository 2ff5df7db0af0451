/* SPDX-License-Identifier: Apache-2.0
 *
 * splits.h: how the keys of a row tile are shared out to blocks. Included by the plugin and by its
 * kernels, so that both say the same.
 */
#ifndef TRITON_LIKE_SPLITS_H
#define TRITON_LIKE_SPLITS_H

#ifdef __CUDACC__
#define SPLITS_INLINE static __device__ __forceinline__
#else
#define SPLITS_INLINE static inline
#endif

/* Keys between two places where a split may begin. */
#define SPLIT_ALIGN 64

/* Splits of `len` keys: one up to `tile` keys, then one for each tile, at most `max`. */
SPLITS_INLINE int splits_count(int len, int tile, int max)
{
    if (len <= tile)
        return 1;
    int tiles = (int)(((long long)len + tile - 1) / tile);
    return tiles < max ? tiles : max;
}

/* Keys of each of `count` splits but the last, which may have fewer or none. */
SPLITS_INLINE int splits_stride(int len, int count)
{
    long long each = ((long long)len + count - 1) / count;
    return (int)((each + SPLIT_ALIGN - 1) / SPLIT_ALIGN * SPLIT_ALIGN);
}

/* The keys [*begin, *end) of split `index` of `count`. */
SPLITS_INLINE void splits_range(int len, int count, int index, int *begin, int *end)
{
    long long stride = splits_stride(len, count);
    long long from = stride * index, to = from + stride;
    *begin = from < len ? (int)from : len;
    *end = to < len ? (int)to : len;
}

#endif /* TRITON_LIKE_SPLITS_H */
