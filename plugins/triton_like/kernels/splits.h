/* SPDX-License-Identifier: Apache-2.0
 *
 * splits.h: how the keys of a row tile are divided among blocks. Included by the plugin and by its
 * kernels, so that both agree. A function of the number of keys and two options alone, so that a
 * row's result does not depend on its batch.
 */
#ifndef TRITON_LIKE_SPLITS_H
#define TRITON_LIKE_SPLITS_H

#ifdef __CUDACC__
#define SPLITS_INLINE static __device__ __forceinline__
#else
#define SPLITS_INLINE static inline
#endif

/* A split begins at a multiple of this many keys. */
#define SPLIT_ALIGN 64
/* The upper limit of the option. */
#define MAX_SPLITS 128

/* Splits of `len` keys: one up to `tile` keys, then one for each tile, at most `max`. */
SPLITS_INLINE int splits_count(int len, int tile, int max)
{
    if (len <= tile)
        return 1;
    int tiles = (int)(((unsigned)len - 1) / (unsigned)tile + 1);
    return tiles < max ? tiles : max;
}

/* Keys of each of `count` splits but the last, which may have fewer or none. */
SPLITS_INLINE unsigned splits_stride(int len, int count)
{
    unsigned each = ((unsigned)len + (unsigned)count - 1) / (unsigned)count;
    return (each + SPLIT_ALIGN - 1) / SPLIT_ALIGN * SPLIT_ALIGN;
}

/* How many of `count` splits have keys; without any key there is one. */
SPLITS_INLINE int splits_used(int len, int count)
{
    unsigned stride = splits_stride(len, count);
    return (unsigned)len <= stride ? 1 : (int)(((unsigned)len - 1) / stride + 1);
}

/* The keys [*begin, *end) of split `index` of `count`. */
SPLITS_INLINE void splits_range(int len, int count, int index, int *begin, int *end)
{
    unsigned long long stride = splits_stride(len, count);
    unsigned long long from = stride * (unsigned)index, to = from + stride;
    *begin = from < (unsigned)len ? (int)from : len;
    *end = to < (unsigned)len ? (int)to : len;
}

#endif /* TRITON_LIKE_SPLITS_H */
