/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/fa3_like/kernels/shapes.h"

FA3_KERNEL(d256, f16, true)
