/* SPDX-License-Identifier: Apache-2.0
 *
 * image.h: kernels compiled ahead of time: the devices that run them, and the choice for a device.
 *
 * A .cu file of a plugin is embedded (plugins/Makefile.am.inc) with the architectures that it was
 * compiled for, "sm_80 sm_90a compute_90", as nvcc calls them:
 *
 *   sm_86       a cubin: devices of the same major number from that minor one on, 86..89
 *   sm_90a      a cubin with features of this device only: 90
 *   sm_100f     a cubin of a family: like sm_100
 *   compute_80  PTX, which the driver compiles: every device from sm_80 on
 *
 *   CUDA_IMAGE_DECLARE(decode_sm90a)
 *   CUDA_IMAGE_DECLARE(decode)
 *   static const cuda_image images[] = {CUDA_IMAGE(decode_sm90a), CUDA_IMAGE(decode)};
 *
 * is a table; the first image that the device can run is used. In a build without nvcc the images
 * are empty, and create returns an error. query answers by the architectures that the plugin would
 * be compiled for, so it can be inspected on any machine.
 */
#ifndef PLUGINS_CUDA_IMAGE_H
#define PLUGINS_CUDA_IMAGE_H

#include "plugins/common/cuda/launch.h"
/* Results of configure. A plugin outside of this tree has no such file, and defines HAVE_NVCC
 * itself. */
#if defined __has_include
#if __has_include("plugins/common/configured.h")
#include "plugins/common/configured.h"
#endif
#endif

typedef struct cuda_image {
    const char *name;  /* of the .cu file, for messages */
    const char *codes; /* architectures, one space between two; NULL = not built */
    const void *data;  /* a fatbin; NULL = not built */
} cuda_image;

#ifdef HAVE_NVCC
#define CUDA_IMAGE_BACKEND_FLAGS 0 /* for a backend type whose kernels are images */
#define CUDA_IMAGE_DECLARE(name)                                                                   \
    extern const unsigned char name##_fatbin[];                                                    \
    extern const char name##_fatbin_codes[];
#define CUDA_IMAGE(name)                                                                           \
    {                                                                                              \
#name, name##_fatbin_codes, name##_fatbin                                                  \
    }
#else
#define CUDA_IMAGE_BACKEND_FLAGS ATTN_BACKEND_WITHOUT_KERNELS
#define CUDA_IMAGE_DECLARE(name)
#define CUDA_IMAGE(name)                                                                           \
    {                                                                                              \
#name, NULL, NULL                                                                          \
    }
#endif

/* Does a device of compute capability `sm` run one of these? [any-thread] */
int cuda_codes_run(const char *codes, uint32_t sm);

/* Adds the reasons why a device cannot run kernels compiled for `codes`: it is not a CUDA device,
 * or its architecture is not supported; accepted: "80..89, 90". Calls no driver. [any-thread] */
void cuda_codes_check(const char *codes, const attn_device *device, attn_verdict *verdict);

/* Loads the first of `count` images that the device can run into the current context; the caller
 * unloads the module. `picked` (may be NULL) is its index in the table. DEPENDENCY_MISSING if no
 * image was built or none fits the device, with its architecture and those of the images; otherwise
 * a failure of the driver. *module is set only on success. */
attn_status cuda_image_load(const cuda_api *cuda, const cuda_facts *facts, const cuda_image *images,
                            uint32_t count, cuda_module *module, uint32_t *picked,
                            attn_error *error);

/* Finds kernel `name` of an image, like cuda_function_find(). Loads the image into *module if that
 * is NULL. */
attn_status cuda_image_find(const cuda_api *cuda, const cuda_facts *facts, const cuda_image *image,
                            const char *name, const cuda_wants *wants, cuda_module *module,
                            cuda_function *function, attn_error *error);

/* Unloads those of `count` modules that are not NULL. */
void cuda_images_unload(const cuda_api *cuda, const cuda_module *modules, uint32_t count);

#endif /* PLUGINS_CUDA_IMAGE_H */
