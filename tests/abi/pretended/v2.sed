# SPDX-License-Identifier: Apache-2.0
#
# v2.sed: today's headers as those of a 2.0 that has yet to be.
s/^#define ATTN_ABI_MAJOR .*/#define ATTN_ABI_MAJOR 2u/
s/^#define ATTN_ABI_MINOR .*/#define ATTN_ABI_MINOR 0u/
