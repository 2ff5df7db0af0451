#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# wrong_backends.sh: backends in Python that are wrong on purpose are each caught by the rule that names it,
# and the right one, rows.py, passes the same cases. Sourced by backends.sh, with $attnhost, $top, $scratch
# and $fixtures, and ATTNHOST_PYTHON, a Python that has numpy. 40 s of processor time.

wrong=$scratch/wrong
mkdir "$wrong"
cp "$top/tests/python/wrong_backends.py" "$top/examples/python/rows.py" "$wrong"

# caught NAME RULE TEXT [OPTION...]: a case of the rule fails, and TEXT is in what it says.
caught()
{
    name=$1 rule=$2 text=$3
    shift 3
    # What a scan found depends on WRONG.
    WRONG=$name XDG_CACHE_HOME=$wrong/cache.$name "$attnhost" check --jobs 1 --fail-fast --filter "$rule" "$@" \
        "$wrong/wrong_backends.py" >"$wrong/report" 2>"$wrong/errors"
    if grep -q "^not ok .*${rule%%[.*]*}" "$wrong/report" && grep -q -e "$text" "$wrong/report"; then
        tap_ok "$name is caught by $rule"
    else
        tap_not_ok "$name is caught by $rule" "$(tail -n 12 "$wrong/report" "$wrong/errors")"
    fi
}

# Its questions are answered slowly, so that the cases of a check take longer to choose than --inactivity.
cat >"$wrong/slow.py" <<'EOT'
import itertools
import time
import rows

asked = itertools.count()


class Slow(rows.Rows):
    name = "slow"

    @classmethod
    def supports(cls, problem, options):
        if 200 <= next(asked) < 300:
            time.sleep(0.03)
        return ()
EOT
tap_try "a backend that is slow to answer is checked" \
    "$attnhost" check --jobs 1 --inactivity 1 --filter 'MEAN-06.windows/0' "$wrong/slow.py"

# A start imports packages, which can take long: each process side by side has one, that of cases that run alone, too,
# and the suite's own a second one, while the others work.
cat >"$wrong/counted.py" <<'EOT'
import os
import rows

with open(os.environ["COUNTED"], "a") as counted:
    counted.write("started\n")


class Counted(rows.Rows):
    name = "counted"
EOT
COUNTED=$wrong/counted "$attnhost" check --jobs 3 --filter 'LOAD-*' --filter 'MEAN-06.windows/[0-3]' "$wrong/counted.py" \
    >"$wrong/counted.tap"
tap_try "three processes side by side start six times: $(wc -l <"$wrong/counted")" \
    test "$(wc -l <"$wrong/counted")" -eq 6
tap_try "the counted backend runs every case" test "$(grep -c '^ok .*counted/MEAN-06' "$wrong/counted.tap")" -eq 4

# Plans lie in cycles of references, as those of flex_attention do: they are freed with the metadata, though nothing
# else collects them.
cat >"$wrong/cycles.py" <<'EOT'
import gc
import rows

gc.disable()


class Cycles(rows.Rows):
    name = "cycles"

    def plan(self, batch):
        kept = {"plan": super().plan(batch), "more": bytes(4096)}
        kept["itself"] = kept
        return kept["plan"]
EOT
tap_try "what a plan leaves in a cycle is freed with its metadata" \
    "$attnhost" check --jobs 1 --filter 'LIFE-07.metadata' "$wrong/cycles.py"

# Of a no each reason can be cured: a range of sizes that two fields share, and the GPU that is missing.
cat >"$wrong/sizes.py" <<'EOT'
from attnhost.backend import Backend


class Sizes(Backend):
    name = "sizes"
    devices = "cuda"
    dtypes = "bf16"
    tensors = "dlpack"
    saves_kv = True
    accepts = {"device.sm": "90", "head_dim": "8..256/8", "v_head_dim": "head_dim"}

    def forward(self, layer, out):
        pass
EOT
tap_try "reasons of sizes that have to be alike are complete" env ATTNHOST_LIBCUDA="$fixtures/fake_cuda_kernels.so" \
    "$attnhost" check --jobs 1 --device cuda --filter 'CAPS-04.reasons/[036]' "$wrong/sizes.py"

# Its first call takes a second, as one that compiles: bench times the others.
cat >"$wrong/lazy.py" <<'EOT'
import itertools
import time
import rows

calls = itertools.count()


class Lazy(rows.Rows):
    name = "lazy"

    def forward(self, layer, plan, batch, keys, q, k, v, k_cache, v_cache, out, lse, sinks):
        time.sleep(0 if next(calls) else 1)
        super().forward(layer, plan, batch, keys, q, k, v, k_cache, v_cache, out, lse, sinks)
EOT
tap_try "what is compiled in the first call is not timed" sh -c '
    "$0" bench --backend lazy --set plugins.path="$1" --seconds 1 \
        --shape mode=decode,batch=1,kv_len=16,q_heads=1,kv_heads=1,head_dim=64,dtype=f32 | grep "lazy *eager"' \
    "$attnhost" "$wrong/lazy.py"
# With the trait first_call_slow two calls may compile, the first for longer than others may take.
sed -e 's/"lazy"/"compiled"\n    traits = "first_call_slow"/' -e 's/sleep(.*/sleep({0: 3.2, 1: 0.8}.get(next(calls), 0))/' \
    "$wrong/lazy.py" >"$wrong/compiled.py"
sed -e 's/"compiled"/"slow"/' -e 's/sleep(.*/sleep(0.3)/' "$wrong/compiled.py" >"$wrong/slow.py"
bench_of()
{
    "$attnhost" bench --backend "$1" --set plugins.path="$wrong/$1.py" --seconds 1 \
        --shape mode=decode,batch=1,kv_len=16,q_heads=1,kv_heads=1,head_dim=64,dtype=f32 | tr -s ' \n' ' ' >"$wrong/$1.bench"
}
bench_of compiled
tap_try "what is compiled in two calls is not timed" grep -q 'compiled eager' "$wrong/compiled.bench"
bench_of slow
tap_try "a slow call is shown with the time that it had to compile in" \
    grep -q 'slow 1 call 3.* slow: it compiles in its first calls, .* for 120 s at most; .* after 0.6' "$wrong/slow.bench"
tap_try "rows.py passes the cases that catch the others" \
    "$attnhost" check --jobs 1 --filter 'MEAN-06.windows/*' --filter 'LIFE-06.contents/*' \
    --filter 'MEAN-12.sinks/*' --filter 'MEAN-13.*' --filter 'LIFE-07.instances' "$wrong/rows.py"
caught window 'MEAN-06.windows/*' 'output row'
caught stale_table 'LIFE-06.contents/*' 'at the same addresses as before'
caught sink 'MEAN-12.sinks/*' 'output row'
caught lse_base_2 'MEAN-13.*' 'LSE row'
ATTNHOST_LIBCUDA=$fixtures/fake_cuda_kernels.so \
    caught unsynchronised 'PURE-03.*' 'enqueues without an event from the given stream before' --device cuda
caught keeps_out 'MEAN-06.windows/*' 'keeps a reference to out'
caught exception 'MEAN-06.windows/*' 'ValueError: no such head (wrong_backends.py:'
caught exits 'MEAN-06.windows/*' 'CRASH: .*exit'
caught hangs 'MEAN-06.windows/*' 'no sign of life' --inactivity 5
caught leaks 'LIFE-07.*' 'leak'
