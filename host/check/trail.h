/* SPDX-License-Identifier: Apache-2.0
 *
 * trail.h: where a case is, in memory that the parent shares with its child: a note costs no system
 * call and survives a crash.
 */
#ifndef HOST_CHECK_TRAIL_H
#define HOST_CHECK_TRAIL_H

#include <stdatomic.h>
#include <stdint.h>

enum { CHECK_TRAIL_TEXT = 504 };

struct check_trail {
    _Atomic uint64_t count; /* grows with each note: a sign of life */
    char text[CHECK_TRAIL_TEXT];
};

#endif /* HOST_CHECK_TRAIL_H */
