/* SPDX-License-Identifier: Apache-2.0
 *
 * host_arrays.h: the host arrays of a case's batch. Those that the verdict names are present; of
 * the others all, none or some are, so a backend must test before it reads one.
 */
#ifndef HOST_CHECK_CASES_HOST_ARRAYS_H
#define HOST_CHECK_CASES_HOST_ARRAYS_H

#include "host/base/mix.h"

#include <stdbool.h>

enum case_host {
    HOST_DRAWN,  /* by the seed, one of the others */
    HOST_NEEDED, /* those of the verdict alone */
    HOST_SOME,   /* each of the others or not, by the seed */
    HOST_ALL
};

/* Is array number `part`, which the verdict does not name, on the host? */
static inline bool case_host_has(enum case_host host, uint64_t seed, uint32_t part)
{
    static const enum case_host drawn[] = {HOST_NEEDED, HOST_SOME, HOST_SOME, HOST_ALL};
    if (host == HOST_DRAWN)
        host = drawn[mix_stream(seed, 0) >> 62];
    return host == HOST_ALL || (host == HOST_SOME && mix_stream(seed, 1 + (uint64_t)part) >> 63);
}

#endif /* HOST_CHECK_CASES_HOST_ARRAYS_H */
