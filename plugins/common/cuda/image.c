/* SPDX-License-Identifier: Apache-2.0
 *
 * image.c: the choice of an embedded image for a device.
 */
#include "plugins/common/cuda/image.h"
#include "attn_plugin_util.h"

#include <stdio.h>
#include <string.h>

enum { LEAST_SM = 10, MAX_SM = 999, TEXT_SIZE = 160 };

/* ---- Architectures --------------------------------------------------------------------------- */

/* Does a device run this one, "sm_90a" or "compute_80"? */
static int code_runs(const char *code, uint32_t sm)
{
    static const char cubin[] = "sm_", ptx[] = "compute_";
    int is_cubin = strncmp(code, cubin, sizeof cubin - 1) == 0;
    if (!is_cubin && strncmp(code, ptx, sizeof ptx - 1) != 0)
        return 0;
    const char *digit = code + (is_cubin ? sizeof cubin : sizeof ptx) - 1;
    uint32_t of = 0;
    for (; *digit >= '0' && *digit <= '9' && of <= MAX_SM; digit++)
        of = of * 10 + (uint32_t)(*digit - '0');
    if (*digit == 'a')
        return sm == of;
    return sm >= of && (!is_cubin || sm / 10 == of / 10);
}

int cuda_codes_run(const char *codes, uint32_t sm)
{
    for (const char *code = codes; code; code = strchr(code, ' ')) {
        code += strspn(code, " ");
        if (*code && code_runs(code, sm))
            return 1;
    }
    return 0;
}

/* The devices that run them, as attn_reason's `accepted` writes numbers. */
static void list_devices(const char *codes, char text[TEXT_SIZE])
{
    size_t length = 0;
    *text = '\0';
    for (uint32_t sm = LEAST_SM, end; sm <= MAX_SM && length < TEXT_SIZE; sm = end + 1) {
        for (end = sm; end <= MAX_SM && cuda_codes_run(codes, end);)
            end++;
        if (end == sm)
            continue;
        int wrote = snprintf(text + length, TEXT_SIZE - length, end - sm > 1 ? "%s%u..%u" : "%s%u",
                             length ? ", " : "", sm, end - 1);
        length += (size_t)wrote;
    }
}

void cuda_codes_check(const char *codes, const attn_device *device, attn_verdict *verdict)
{
    char accepted[TEXT_SIZE];
    if (device->type != ATTN_DEVICE_CUDA)
        attn_util_refuse(verdict, ATTN_REASON_ARCH, ATTN_FIELD_DEVICE_TYPE, "cuda", "%s",
                         attn_device_name(device->type));
    if (cuda_codes_run(codes, device->sm))
        return;
    list_devices(codes, accepted);
    attn_util_refuse(verdict, ATTN_REASON_ARCH, ATTN_FIELD_DEVICE_SM, accepted, "%u", device->sm);
}

/* ---- Images ---------------------------------------------------------------------------------- */

static attn_status refuse(const cuda_facts *facts, const cuda_image *images, uint32_t count,
                          attn_error *error)
{
    char built[TEXT_SIZE] = "";
    size_t length = 0;
    for (uint32_t i = 0; i < count && length < sizeof built; i++)
        if (images[i].data)
            length += (size_t)snprintf(built + length, sizeof built - length, "%s%s: %s",
                                       length ? "; " : "", images[i].name, images[i].codes);
    if (length == 0)
        return attn_util_fail(error, ATTN_DEPENDENCY_MISSING,
                              "kernels %s: not in this build, as configure found no nvcc",
                              count ? images[0].name : "");
    return attn_util_fail_field(error, ATTN_DEPENDENCY_MISSING, ATTN_FIELD_DEVICE_SM,
                                "the device is sm_%u; kernels of this build are %s", facts->sm,
                                built);
}

attn_status cuda_image_load(const cuda_api *cuda, const cuda_facts *facts, const cuda_image *images,
                            uint32_t count, cuda_module *module, uint32_t *picked,
                            attn_error *error)
{
    uint32_t at = 0;
    while (at < count && !(images[at].data && cuda_codes_run(images[at].codes, facts->sm)))
        at++;
    if (at == count)
        return refuse(facts, images, count, error);
    cuda_module loaded = NULL;
    int result = cuda->cuModuleLoadData(&loaded, images[at].data);
    if (result != CUDA_OK)
        return cuda_fail(cuda, result, images[at].name, "cuModuleLoadData", error);
    *module = loaded;
    if (picked)
        *picked = at;
    return ATTN_OK;
}

attn_status cuda_image_find(const cuda_api *cuda, const cuda_facts *facts, const cuda_image *image,
                            const char *name, const cuda_wants *wants, cuda_module *module,
                            cuda_function *function, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (!*module)
        status = cuda_image_load(cuda, facts, image, 1, module, NULL, error);
    return status == ATTN_OK
               ? cuda_function_find(cuda, facts, *module, name, wants, function, error)
               : status;
}

void cuda_images_unload(const cuda_api *cuda, const cuda_module *modules, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (modules[i])
            cuda->cuModuleUnload(modules[i]);
}
