#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# out_of_memory.sh: one allocation after the other is refused, over a whole `attnhost run` and over
# the example of embedding. Neither dies of a signal, and who reports success has the whole answer:
# the same one as with all its memory.
#
# The one runs a backend by itself, the other a composed one. A commit takes a sixth of the allocations, and a quarter
# of that where it changes no code that makes them (part.sh).
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

preload=$ATTNHOST_TEST_FIXTURE_DIR/fail_malloc.so

if nm -D "$ATTNHOST_TEST_COMMAND" | grep -q -e __asan_ -e __tsan_; then
    tap_skip "allocations that fail" "the sanitizer has an allocator of its own"
    tap_end
fi
umask 022
tap_folder folder
unset ATTNHOST_PLUGIN_PATH

# The backend, and two bystanders: each run reads them all.
plugins=$folder/plugins
mkdir "$plugins"
for name in cpu_native cpu_linear hybrid; do
    cp "$ATTNHOST_TEST_PLUGIN_DIR/$name.so" "$plugins" || exit 1
done

for i in 1 2 3; do
    echo "{\"timestamp\": $i, \"input_length\": 3$i, \"output_length\": 3, \"hash_ids\": [$i]}"
done >"$folder/trace.jsonl"
cat >"$folder/run.ini" <<END
[plugins]
path = $plugins
[model]
num_layers = 2
num_q_heads = 2
num_kv_heads = 1
head_dim = 8
max_context_len = 64
[attention]
attention_backend = cpu_native
[kv_cache]
page_size = 4
[workload]
trace = trace.jsonl
num_threads = 1
[verify]
rate = 0.2
END

# ---- Commands: the answer, without what the clock says, goes to $folder/answer -----------------------

run_command()
{
    rm -f "$folder/report.json"
    env LD_PRELOAD="$preload" FAIL_MALLOC_AT="$1" FAIL_MALLOC_COUNT="$folder/count" \
        "$ATTNHOST_TEST_COMMAND" run "$folder/run.ini" --json "$folder/report.json" \
        >/dev/null 2>"$folder/err" </dev/null
    result=$?
    cp "$folder/report.json" "$folder/answer" 2>/dev/null || : >"$folder/answer"
    return $result
}

run_embed()
{
    env LD_PRELOAD="$preload" FAIL_MALLOC_AT="$1" FAIL_MALLOC_COUNT="$folder/count" \
        "$ATTNHOST_TEST_BUILDDIR/tests/command/embed" "$plugins" cpu_native cpu_native \
        >"$folder/answer" 2>"$folder/err" </dev/null
}

run_select()
{
    env LD_PRELOAD="$preload" FAIL_MALLOC_AT="$1" FAIL_MALLOC_COUNT="$folder/count" \
        "$ATTNHOST_TEST_BUILDDIR/tests/command/select" "$top/examples/models/deepseek_v3.json" \
        "$plugins/cpu_native.so" platform.device=cpu model.max_context_len=64 workload.num_threads=1 \
        >"$folder/answer" 2>"$folder/err" </dev/null
}

# What of an answer is the same in each run; the digest of all outputs among it. What has the clock's
# figures is an object of the first level, or a line; each level is indented by a tab. A bystander for
# which there was no memory is refused, and missing among the plugins.
essence()
{
    awk '/^\t"(plugins|tokens_per_s|ttft_ms|tpot_ms|latency_us)":/ { skipped = 1 }
        !skipped
        /^\t}|^\t\t}\]/ { skipped = 0 }' "$1" | grep -vE '"(wall_s|virtual_s)":'
}

# refuse_each NAME COMMAND: COMMAND's allocations are refused, one in each run.
refuse_each()
{
    if ! "$2" 0; then
        tap_not_ok "$1: with all memory" "$(cat "$folder/err")"
        return
    fi
    tap_ok "$1: with all memory"
    essence "$folder/answer" >"$folder/expected"
    count=$(cat "$folder/count")
    seq "$count" | sh "$top/tests/tools/part.sh" 6 "the allocations of $1" examples host include plugins \
        tests/command 2>&1 >"$folder/chosen"
    failed=0
    : >"$folder/wrong"
    while read -r at; do
        "$2" "$at"
        code=$?
        if test $code -ge 128; then
            echo "allocation $at of $count: exit code $code: $(tail -1 "$folder/err")"
        elif test $code -ne 0; then
            failed=$((failed + 1))
            test -s "$folder/err" || echo "allocation $at of $count: exit code $code, no message"
        elif ! essence "$folder/answer" | cmp -s - "$folder/expected"; then
            echo "allocation $at of $count: success with another answer"
        fi >>"$folder/wrong"
    done <"$folder/chosen"
    if test -s "$folder/wrong"; then
        tap_not_ok "$1: an allocation of $count is refused" "$(head -20 "$folder/wrong")"
    elif test "$failed" -eq 0; then
        tap_not_ok "$1: an allocation of $count is refused" "no run failed: was any refused?"
    else
        tap_ok "$1: an allocation of $count is refused"
    fi
}

refuse_each "attnhost run" run_command
refuse_each "examples/embed" run_embed
refuse_each "examples/select" run_select
tap_end
