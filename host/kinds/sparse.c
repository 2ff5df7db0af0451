/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse.c: attention to the keys that an index picks. Those of models that there are (DeepSeek
 * V3.2) pick latents, so the cache is that of latent attention. A run does not serve them.
 */
#include "host/kinds/mla.h"

const struct kind_ops kind_sparse = {
    .layouts = MLA_LAYOUTS,
    .allows = mla_allows,
    .check_layout = mla_check_layout,
    .is_scaled = mla_is_scaled,
    .one_scale = MLA_ONE_SCALE,
    .refused = "`run` serves softmax, latent and linear layers",
};
