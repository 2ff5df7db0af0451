/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/linear_like/kernels/steps.cuh"

STEPS_KERNELS(false, true)
