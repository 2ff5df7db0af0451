/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashmla_like/kernels/attend_coded.cuh"
#include "plugins/flashmla_like/kernels/attend_packed_rows.cuh"
#include "plugins/flashmla_like/kernels/merge.cuh"

MLA_ATTEND(8)
MLA_ATTEND(16)
MLA_ATTEND(32)
MLA_ATTEND_ROWS(mla_attend_64, false)

MLA_ATTEND_CODES(8)
MLA_ATTEND_CODES(16)
MLA_ATTEND_CODES(32)
MLA_ATTEND_ROWS(mla_attend_codes_64, true)

MLA_ATTEND_CODED_FEW(8)
MLA_ATTEND_CODED_FEW(16)
MLA_ATTEND_CODED(mla_attend_coded_64)

MLA_ATTEND_PACKED(8)
MLA_ATTEND_TOKENS(16)
MLA_ATTEND_TOKENS(32)
MLA_ATTEND_TOKENS(64)
