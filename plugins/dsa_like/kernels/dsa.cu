/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/cuda/ptx.cuh"
#include "plugins/dsa_like/kernels/label.cuh"
#include "plugins/dsa_like/kernels/choose.cuh"
