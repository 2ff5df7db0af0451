/* SPDX-License-Identifier: Apache-2.0
 *
 * pretended_v1.h: what an adapter_v1.c of a host of ABI 2 would be, for the pretended 1.0 of
 * tests/abi/pretended/v1.sed.
 */
#ifndef TESTS_HOST_PLUGIN_PRETENDED_V1_H
#define TESTS_HOST_PLUGIN_PRETENDED_V1_H

#include "attn_plugin.h"

attn_status pretended_v1_adapt(const attn_backend_type *given, const attn_backend_type **adapted,
                               attn_error *error);
void pretended_v1_release(const attn_backend_type *adapted);

#endif /* TESTS_HOST_PLUGIN_PRETENDED_V1_H */
