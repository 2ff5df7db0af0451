/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_units.cuh: what planner and kernels must compute alike: the units of a tile, and how many
 * blocks merge an item's parts. C and CUDA alike.
 */
#ifndef FI_PLAN_UNITS_CUH
#define FI_PLAN_UNITS_CUH

#include "plugins/common/cuda/mask.cuh"
#include "plugins/common/cuda/work.cuh"
#include "plugins/flashinfer_like/kernels/plan.h"

PORTABLE int plan_tile_units(const fi_tile *tile, int unit)
{
    return int_max(1, (tile->hi - tile->lo - tile->skip + unit - 1) / unit);
}

/* The first key of unit u. */
PORTABLE int plan_unit_key(const fi_tile *tile, int unit, int u)
{
    return tile->lo + u * unit + (u >= tile->gap ? tile->skip : 0);
}

/* With at least so many parts of an item of `rows` rows, several blocks merge them. Of few rows, one
 * block merges fast enough. */
PORTABLE int plan_several(int rows)
{
    return rows > FI_ROWS ? FI_SEVERAL_MANY : FI_SEVERAL;
}

#endif /* FI_PLAN_UNITS_CUH */
