/* SPDX-License-Identifier: Apache-2.0
 *
 * profile.cuh: built with -DFI_PROFILE, a kernel prints for its 20th launch the cycles that a warp
 * of each kind spent in each section:
 *
 *   PROFILE_BEGIN;
 *   loop: PROFILE_UNIT; PROFILE(0); ... PROFILE(1); ... PROFILE(2); ...
 *   PROFILE_END("producers");
 *
 * PROFILE(n) adds the cycles since the last PROFILE to sum n of five.
 */
#ifndef FI_PROFILE_CUH
#define FI_PROFILE_CUH

#ifdef FI_PROFILE
#include <stdio.h>
static __device__ int fi_launches;
#define PROFILE_BEGIN                                                                              \
    long long profile[6] = {}, profile_last = clock64(), profile_first = profile_last;             \
    int profile_units = 0
#define PROFILE(n)                                                                                 \
    {                                                                                              \
        long long now = clock64();                                                                 \
        profile[n] += now - profile_last;                                                          \
        profile_last = now;                                                                        \
    }
#define PROFILE_END(name)                                                                          \
    if (threadIdx.x % 128 == 0 && blockIdx.x == 3 && blockIdx.y % 4 == 1 && fi_launches == 20)     \
    printf("%s block %d: %d units, %lld cycles a unit: %lld %lld %lld %lld %lld\n", name,          \
           (int)blockIdx.y, profile_units, (clock64() - profile_first) / profile_units,            \
           profile[0] / profile_units, profile[1] / profile_units, profile[2] / profile_units,     \
           profile[3] / profile_units, profile[4] / profile_units)
#define PROFILE_UNIT profile_units++
#define PROFILE_LAUNCH                                                                             \
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)                                    \
    fi_launches++
#else
#define PROFILE_BEGIN
#define PROFILE(n)
#define PROFILE_END(name)
#define PROFILE_UNIT
#define PROFILE_LAUNCH
#endif

#endif /* FI_PROFILE_CUH */
