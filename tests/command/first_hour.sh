#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# first_hour.sh: what a newcomer types first, from another folder and with nothing set up: it answers,
# it fits 80 columns, and where something is missing it says where to look.
set -u
top=${ATTNHOST_TEST_SRCDIR:-$(dirname "$0")/..}
. "$top/tests/tools/tap.sh"

attnhost=$ATTNHOST_TEST_COMMAND
tap_folder folder
unset ATTNHOST_PLUGIN_PATH
cd "$folder" || exit 1
cp "$top/examples/models/qwen3_next.json" config.json

# says CODE NAME TEXT -- COMMAND...: the exit code, and a text on stdout or stderr.
says()
{
    code=$1 what=$2 text=$3
    shift 4
    "$@" >output 2>&1 </dev/null
    got=$?
    if test $got -eq "$code" && tr -s '\n ' ' ' <output | grep -qF -- "$text"; then
        tap_ok "$what"
    else
        tap_not_ok "$what" "exit code $got: $(cat output)"
    fi
}

# narrow NAME COMMAND...: no line of what it says is wider than 80 columns; a path, which has no spaces,
# may be.
narrow()
{
    what=$1
    shift
    "$@" >output 2>&1 </dev/null
    wide=$(awk 'length($0) > 80 && NF > 1' output)
    if test -s output && test -z "$wide"; then
        tap_ok "$what fits 80 columns"
    else
        tap_not_ok "$what fits 80 columns" "$wide"
    fi
}

says 0 "list finds what was built" "usable, serves linear layers" -- "$attnhost" list
says 0 "explain takes a bare config.json" "served by cpu_native-with-cpu_linear" \
    -- "$attnhost" explain config.json --set platform.device=cpu
says 2 "a config.json that is not there" "none.json" -- "$attnhost" explain none.json
says 4 "explain hints at model.dtype" "it could serve with model.dtype = f16, bf16" \
    -- "$attnhost" explain "$top/examples/quickstart.ini" --set platform.simulate=sm90 \
    --set model.dtype=f32 --set attention.attention_backend=auto
if "$attnhost" explain "$top/examples/cuda.ini" >/dev/null 2>&1; then
    tap_skip "explain cuda.ini without a GPU" "there is one"
else
    says 4 "explain cuda.ini without a GPU says how to ask all the same" "--set platform.simulate=sm90" \
        -- "$attnhost" explain "$top/examples/cuda.ini"
fi
says 0 "explain cuda.ini answers for a simulated platform" "served by triton_like" \
    -- "$attnhost" explain "$top/examples/cuda.ini" --set platform.simulate=sm90
says 0 "for an H100 or H200, both phases" "served by fa3_like-flashinfer_like" \
    -- "$attnhost" explain "$top/examples/hopper.ini" --set platform.simulate=sm90
says 4 "an error that lacks a plugin says that there is none" "no such plugin exists yet" \
    -- "$attnhost" run "$top/examples/quickstart.ini" --attention-backend trtllm_mha_like
says 4 "inspect says where to look" "plugins.path names other folders" -- "$attnhost" inspect trtllm_mha
says 4 "a backend that no plugin has yet" "no such plugin exists yet" \
    -- "$attnhost" explain "$top/examples/quickstart.ini" --set platform.simulate=gfx942 \
    --set attention.attention_backend=auto
says 0 "--would accepts a backend without a plugin" "aiter_like: would be chosen; no such plugin exists yet" \
    -- "$attnhost" explain "$top/examples/quickstart.ini" --set platform.simulate=gfx942 \
    --set attention.attention_backend=auto --would
says 0 "whose kernels fa3_like's are" "this project's own kernels for Hopper" \
    -- "$attnhost" explain "$top/examples/quickstart.ini" --set platform.simulate=sm90 \
    --set attention.attention_backend=auto --json

# A build without nvcc: what needs kernels is marked, and is not served on a real GPU.
if grep -q '^#define HAVE_NVCC' "$ATTNHOST_TEST_BUILDDIR/host/base/configured.h"; then
    without=0
else
    without=1
fi
# kernels NAME COMMAND...: "built without kernels" is said exactly where they are missing.
kernels()
{
    what=$1
    shift
    "$@" >output 2>&1 </dev/null
    said=$(tr -s '\n ' ' ' <output | grep -c -i -e 'built without kernels' -e '"without_kernels":.*true' -e '"without_kernels":.*fa3_like')
    if test "$said" -eq $without; then
        tap_ok "$what: whether its kernels are in this build"
    else
        tap_not_ok "$what: whether its kernels are in this build" "$(cat output)"
    fi
}
kernels list "$attnhost" list
kernels "list --matrix" "$attnhost" list --matrix
kernels "list --matrix --json" "$attnhost" list --matrix --json
kernels inspect "$attnhost" inspect fa3_like
kernels "inspect --json" "$attnhost" inspect fa3_like --json
kernels "explain, simulated" "$attnhost" explain "$top/examples/hopper.ini" --set platform.simulate=sm90
ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_cuda_kernels.so
export ATTNHOST_LIBCUDA
kernels "explain on a GPU" "$attnhost" explain "$top/examples/hopper.ini"
if test $without -eq 1; then
    says 4 "explain on a GPU does not take it for served" "fa3_like: built without kernels" \
        -- "$attnhost" explain "$top/examples/hopper.ini"
fi
unset ATTNHOST_LIBCUDA
for command in run list inspect explain bench check fuzz report; do
    says 0 "help $command" "usage: attnhost $command " -- "$attnhost" help "$command"
    narrow "$command --help" "$attnhost" "$command" --help
done
says 2 "help of a command that is none" "did you mean 'explain'?" -- "$attnhost" help explan
says 0 "-V" "$("$attnhost" --version)" -- "$attnhost" -V
narrow "help" "$attnhost" help
narrow "list" "$attnhost" list
for backend in cpu_native cpu_linear triton_like hybrid_phase route autotune; do
    narrow "inspect $backend" "$attnhost" inspect $backend
done
narrow "explain config.json" "$attnhost" explain config.json
narrow "explain speculative.ini" "$attnhost" explain "$top/examples/speculative.ini"
ln -s "$top/examples" examples
narrow "run" "$attnhost" run examples/quickstart.ini --max-requests 2
narrow "bench, what it leaves out too" "$attnhost" bench --backend cpu_native --seconds 0.001 \
    --shape mode=prefill,kv_len=64:1000000

# What JSON says is what the text says. No test depends on jq; python3 is that of other tests.
if test "${PYTHON3:-python3}" != no && command -v "${PYTHON3:-python3}" >/dev/null; then
    "$attnhost" inspect cpu_native >inspect.txt && "$attnhost" inspect cpu_native --json >inspect.json
    "$attnhost" list --matrix >matrix.txt && "$attnhost" list --matrix --json >matrix.json
    tap_try "inspect --json and list --matrix --json say what the texts say" "${PYTHON3:-python3}" -c '
import json
inspect, matrix = json.load(open("inspect.json")), json.load(open("matrix.json"))
text = " ".join(open("inspect.txt").read().split())
(backend,) = inspect["backends"]
assert text.startswith(inspect["file"]) and backend["name"] + ": " + backend["doc"] in text
assert "layouts: " + " ".join(backend["layouts"]) in text
for option in backend["options"]:
    assert " ".join([option["key"], option["doc"], option["type"]]) in text, option
    assert option["accepted"] in text and "default %s" % option["default"] in text, option
rows = [[cell.strip() for cell in line.strip("|\n").split("|")]
        for line in open("matrix.txt") if line.startswith("| ")]
names = [name.strip("`") for name in rows[0][1:]]
assert names == list(matrix["backends"])
for matter, *cells in rows[1:]:
    for name, cell in zip(names, cells):
        values = matrix["backends"][name].get(matter)
        assert cell == ("-" if values is None else ", ".join(values) or "none"), (name, matter)
assert matrix["backends"]["cpu_native"] == backend["accepts"]
assert "hybrid_phase" in matrix["composites"] and "cpu_linear" in matrix["others"]'
else
    tap_skip "inspect --json and list --matrix --json" "python3 is not installed"
fi
tap_end
