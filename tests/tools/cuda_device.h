/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_device.h: a GPU for tests that print TAP themselves: opened, its memory with red zones.
 *
 * What the driver refuses ends the program with "Bail out!", but for cuda_device_open() and
 * cuda_try_take().
 */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

#include "plugins/common/cuda/cuda_api.h"

#include "attn_problem.h"

enum { RED_ZONE = 1 << 16, RED = 0xA5, POISON = 0xFF };

typedef struct cuda_device {
    const cuda_api *api;
    attn_device device; /* as a problem names it */
    char why[512];      /* there is none */
} cuda_device;

/* Memory between two red zones; its bytes are POISON, NaN in every floating-point type. */
typedef struct red_buffer {
    cuda_address at;
    size_t bytes;
} red_buffer;

/* The first device, its primary context current. 0 = there is none, and why. */
int cuda_device_open(cuda_device *cuda);

void test_bail_out(const char *what, const char *why);
void cuda_must(const cuda_device *cuda, int result, const char *what);

red_buffer cuda_take(const cuda_device *cuda, size_t bytes);
/* The same; 0 if there is not enough memory. */
int cuda_try_take(const cuda_device *cuda, size_t bytes, red_buffer *buffer);
void cuda_give(const cuda_device *cuda, red_buffer *buffer);
/* Bytes of the red zones that were written to. */
size_t cuda_red_zones_hit(const cuda_device *cuda, const red_buffer *buffer);

void cuda_poison(const cuda_device *cuda, const red_buffer *buffer);
void cuda_upload(const cuda_device *cuda, const red_buffer *to, size_t at, const void *from,
                 size_t bytes);
void cuda_download(const cuda_device *cuda, const red_buffer *from, size_t at, void *to,
                   size_t bytes);

static inline void *red_pointer(const red_buffer *buffer)
{
    return (void *)(uintptr_t)buffer->at;
}

#endif /* CUDA_DEVICE_H */
