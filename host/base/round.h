/* SPDX-License-Identifier: Apache-2.0
 *
 * round.h: amounts in whole units: tokens in pages, bytes in alignments. Amounts are not negative,
 * units positive, and both far from the end of the type.
 */
#ifndef HOST_BASE_ROUND_H
#define HOST_BASE_ROUND_H

#include <stdint.h>

/* Units that hold the amount: 5 in units of 4 are 2. */
static inline int64_t units_for(int64_t amount, int64_t unit)
{
    return (amount + unit - 1) / unit;
}

/* The amount in whole units: 5 in units of 4 is 8. */
static inline int64_t round_up(int64_t amount, int64_t unit)
{
    return units_for(amount, unit) * unit;
}

#endif /* HOST_BASE_ROUND_H */
