#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fa3_like_shared.sh: cases of the suite on fa3_like with tiles = shared: tiles go by low ones, their keys in parts that
# are joined, and what tiles cannot read is gathered first.
set -u
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/fa3_like_fake.sh"
for filter in 'MEAN-0*' 'KV-0[1-4]*'; do
    pass_on_fake "$filter" --quick --option tiles=shared --filter "$filter"
done
for name in fa3_gather fa3_join fa3_forward_d64_low_bf16; do
    launched 5 "$name"
done
tap_end
