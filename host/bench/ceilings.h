/* SPDX-License-Identifier: Apache-2.0
 *
 * ceilings.h: peak rates of this device, measured in the same run as the backends: copying memory,
 * reading memory, multiplying matrices.
 *
 * On CUDA the driver copies, and our kernels read and multiply (kernels/ceilings.cu; bf16 on tensor
 * cores, only on sm_90a). On the CPU all threads of the pool copy, read and do fp32 multiply-adds
 * in registers, in the widest vectors that the processor has.
 */
#ifndef HOST_BENCH_CEILINGS_H
#define HOST_BENCH_CEILINGS_H

#include "host/bench/timer.h"
#include "host/base/threads.h"

/* One ceiling. */
struct bench_ceiling {
    double amount; /* bytes (a copy's are read and written) or operations of a sample */
    struct bench_samples samples;
    double rate;   /* amount a second, by the median; 0 = not measured */
    char why[256]; /* it was not */
};

struct bench_ceilings {
    struct bench_ceiling copy, read, matrix;
};

/* Measure all three in at most this many seconds each, after `sustain` seconds of the same load.
 * What cannot be measured here is no error; a device that is lost is. */
attn_status bench_ceilings_measure(const struct bench_timer *timer, struct threads *threads,
                                   double seconds, double sustain, struct bench_ceilings *ceilings,
                                   attn_error *error);

void bench_ceilings_finish(struct bench_ceilings *ceilings);

#endif /* HOST_BENCH_CEILINGS_H */
