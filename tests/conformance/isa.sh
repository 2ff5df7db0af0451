#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# isa.sh: kernels that `isa = auto` does not take on a machine that has better ones: what softmax layers,
# linear layers and absorbed latent attention mean, and the reasons of a no, with each isa that is named.
set -u
. "$ATTNHOST_TEST_SRCDIR/tests/tools/tap.sh"

# The reason why this plugin has no such kernels here, if it says so to the first case.
lacks()
{
    printf '%s\n' "$output" | sed -n "s/^ok 1 .*# SKIP \(.*isa.*\)/\1/p"
}

for isa in generic avx2; do
    for what in cpu_linear/MEAN-18 'cpu_native/MEAN-0*' cpu_native/MEAN-19; do
        plugin=${what%/*} rule=${what#*/} name="$what with isa = $isa"
        output=$("$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/$plugin.so" \
            --option "isa=$isa" --filter "$rule.*" 2>&1 </dev/null)
        code=$?
        reason=$(lacks)
        if test $code -ne 0; then
            tap_not_ok "$name" "$output"
        elif test -n "$reason"; then
            tap_skip "$name" "$reason"
        elif ! printf '%s\n' "$output" | grep -v '# SKIP' | grep -q "^ok .*$rule"; then
            tap_not_ok "$name" "no case was run"
        else
            tap_ok "$name"
        fi
    done
    for plugin in cpu_linear cpu_native; do
        tap_try "reasons of $plugin with isa = $isa" "$ATTNHOST_TEST_COMMAND" check \
            "$ATTNHOST_TEST_PLUGIN_DIR/$plugin.so" --option "isa=$isa" --filter 'CAPS-04.*'
    done
done
tap_end
