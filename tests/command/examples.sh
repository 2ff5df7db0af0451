#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# examples.sh: the examples' inis of models with recurrent and latent layers, drafts, pools of windows and chunks, encoders,
# cross attention and vision towers, run as they stand: prefixes are shared, nothing leaks, every sampled row is
# right, each backend that is named does its part. The same without a prefix cache computes what was shared. Of the
# latter kinds a script derives the counts from the trace.
set -u
top=${ATTNHOST_TEST_SRCDIR:-$(dirname "$0")/..}
. "$top/tests/tools/tap.sh"

umask 022
tap_folder folder
unset ATTNHOST_PLUGIN_PATH # the command in the build folder finds what was built with it
cd / || exit 1
python=${PYTHON3:-python3}
command -v "$python" >/dev/null || python=no
export PYTHONDONTWRITEBYTECODE=1

# value REPORT SECTION KEY: a number of the report; without SECTION it is "".
value()
{
    awk -v section="\"$2\":" -v key="\"$3\":" '
        $2 == "{" || $2 == "[{" { inside = $1 }
        $1 ~ /^}/ { inside = "" }
        $1 == key && (section == "\"\":" || inside == section) { print $2 + 0; exit }' "$1"
}

# holds NAME REPORT CONDITION...: test CONDITION, with the report in view if it fails.
holds()
{
    what=$1 shown=$2
    shift 2
    if test "$@"; then tap_ok "$what"; else tap_not_ok "$what: $*" "$(cat "$shown")"; fi
}

# good LABEL REPORT [OPTION...]: the command's own word (0: no row failed, no token leaked) and its
# report's.
good()
{
    label=$1 report=$2
    shift 2
    tap_try "$label runs" "$ATTNHOST_TEST_COMMAND" run "$ini" --json "$report" "$@"
    test -s "$report" || return 1
    holds "$label: rows were checked" "$report" "$(value "$report" verify rows_checked)" -gt 100
    holds "$label: none failed" "$report" "$(value "$report" verify rows_failed)" -eq 0
    holds "$label: no token leaked" "$report" "$(value "$report" kv leaked)" -eq 0
    holds "$label: no token was computed twice" "$report" \
        "$(value "$report" tokens recomputed)" -eq 0
    case $backends in
    *linear*)
        holds "$label: no state leaked" "$report" "$(value "$report" states leaked)" -eq 0 ;;
    esac
    for backend in $backends; do
        holds "$label: rows of $backend" "$report" "$(value "$report" paths "$backend")" -gt 0
    done
}

# derived LABEL REPORT [SETTING...]: a script that knows only ini and trace computes the same
# numbers.
derived()
{
    label=$1 report=$2
    shift 2
    if test "$python" = no; then
        tap_skip "$label: counts from the trace" "python3 is not installed"
    elif problems=$("$python" "$top/tests/independent/example_counts.py" "$ini" "$report" "$@" 2>&1); then
        tap_ok "$label: counts from the trace"
    else
        tap_not_ok "$label: counts from the trace" "$problems"
    fi
}

# alone NAME RATE [SETTING]: one request at a time, where more follows from the trace.
alone()
{
    label="$1, one at a time, $2 of the rows${3:+, $3}" report=$folder/$1.alone.json
    one=workload.max_running_requests=1 rate=verify.rate=$2
    good "$label" "$report" --set $one --set "$rate" ${3:+--set "$3"} || return
    derived "$label" "$report" $one "$rate" ${3:+"$3"}
}

# counted NAME: the example as it was run, and one request at a time.
counted()
{
    derived "$1" "$folder/$1.json"
    alone "$1" 0.01
}

# example NAME BACKEND...
example()
{
    name=$1 ini=$top/examples/$1.ini
    shift
    backends=$*
    with=$folder/$name.json without=$folder/$name.none.json
    good "$name" "$with" || return
    good "$name without a prefix cache" "$without" --set kv_cache.prefix_cache=no || return
    hits=$(value "$with" tokens prefix_hit)
    holds "$name: prefixes were shared" "$with" "$hits" -gt 0
    holds "$name without a prefix cache: none was" "$without" \
        "$(value "$without" tokens prefix_hit)" -eq 0
    holds "$name: what is shared is what is not computed" "$with" \
        $(($(value "$with" tokens prefill) + hits)) -eq "$(value "$without" tokens prefill)"
    holds "$name: outputs are as long" "$with" "$(value "$with" tokens decode)" -eq \
        "$(value "$without" tokens decode)"
}

# taken NAME: does the commit run this example? All if it changes what serves them, else each sixth (case_part.sh);
# installcheck runs each once, in every commit.
part=$(sh "$top/tests/tools/case_part.sh" examples examples host/cache host/run host/schedule host/workload tests/command \
    tests/independent) || exit 1
seen=0
taken()
{
    seen=$((seen + 1))
    if test -z "$part" || test $(((seen - 1) % ${part#*/})) -eq "${part%/*}"; then
        return 0
    fi
    tap_skip "$1" "not in cases $part, which this commit runs; ATTNHOST_TEST_ALL=1 runs all"
    return 1
}

taken qwen3_next && example qwen3_next cpu_linear cpu_native portable
taken falcon_h1 && example falcon_h1 cpu_linear cpu_native portable
taken minimax && example minimax cpu_linear cpu_native portable
taken lfm2 && example lfm2 cpu_linear cpu_native portable
taken deepseek_v3 && example deepseek_v3 cpu_native second
taken deepseek_v32 && example deepseek_v32 cpu_native
if taken speculative; then
    example speculative cpu_native
    counted speculative
fi
if taken speculative_route; then
    example speculative_route cpu_native verifier drafter
    counted speculative_route
fi
if taken "speculative, all rows"; then
    ini=$top/examples/speculative.ini backends=cpu_native
    alone speculative 1
    alone speculative 1 speculative.acceptance=0
fi
if taken window_pool; then
    example window_pool cpu_native
    counted window_pool
fi
if taken chunk_pool; then
    example chunk_pool cpu_native
    counted chunk_pool
fi
if taken multimodal; then
    example multimodal cpu_native tower
    counted multimodal
fi

# What a decoder's keys are depends on what its encoder read, so no prefix is shared.
if taken cross; then
    ini=$top/examples/cross.ini backends="cpu_native ears"
    good cross "$folder/cross.json"
    counted cross
fi

# What run does not do with such a model, explain says as well; a GPU serves it as the processor does.
said=$("$ATTNHOST_TEST_COMMAND" explain "$top/tests/models/whisper.json" \
    --set platform.simulate=sm90 --set attention.attention_backend=flashinfer_like 2>&1)
case $said in
*"processor alone"*)
    tap_not_ok "explain says what run does not share" "$said" ;;
*"prefix cache: none, as keys depend on"*)
    tap_ok "explain says what run does not share" ;;
*)
    tap_not_ok "explain says what run does not share" "$said" ;;
esac

# Recurrent layers on a GPU: two backends, joined, each by the first of its order.
said=$("$ATTNHOST_TEST_COMMAND" explain "$top/examples/qwen3_next_cuda.ini" --set platform.simulate=sm90 2>&1)
case $said in
*"served by fa3_like-with-linear_like (hybrid_linear)"*"prefill, decode: linear_like (auto:"*"prefill, decode: fa3_like (auto:"*)
    tap_ok "on Hopper linear_like and fa3_like share a model" ;;
*)
    tap_not_ok "on Hopper linear_like and fa3_like share a model" "$said" ;;
esac

# Latents, prompts in the expanded form: one pool, two backends.
explain_latents() { # SETTING...
    "$ATTNHOST_TEST_COMMAND" explain "$top/examples/deepseek_v3_cuda.ini" --set platform.simulate=sm90 "$@" 2>&1
}
served=0
said=$(explain_latents --set attention.mla_prefill=expanded) || served=$?
case $said in
*"served by fa3_like-flashmla_like (hybrid_phase), layout mla.latent/1"*"prefill: fa3_like (auto:"*"decode: flashmla_like (auto:"*)
    tap_ok "on Hopper fa3_like and flashmla_like share a pool of latents" ;;
*)
    tap_not_ok "on Hopper fa3_like and flashmla_like share a pool of latents" "$said" ;;
esac

# That is what auto takes where kernels are built; elsewhere, and where a backend is named that has no
# expanded form, it takes the absorbed one.
same_choices() { # "NAME" "EXPLAINED" SETTING...
    name=$1 expected=$2
    shift 2
    got=$(explain_latents "$@") || :
    if [ "$got" = "$expected" ]; then
        tap_ok "$name"
    else
        tap_not_ok "$name" "expected: $expected
got: $got"
    fi
}
absorbed=$(explain_latents --set attention.mla_prefill=absorbed) || :
if [ $served -eq 0 ]; then
    same_choices "mla_prefill = auto: expanded where it is served" "$said"
else
    same_choices "mla_prefill = auto: absorbed where the expanded form is not served" "$absorbed"
fi
named=$(explain_latents --set attention.attention_backend=flashmla_like --set attention.mla_prefill=absorbed) || :
same_choices "mla_prefill = auto: absorbed where a backend is named that has no other form" "$named" \
    --set attention.attention_backend=flashmla_like

# An encoder caches nothing, so there are no prefixes to share.
if taken encoder; then
    ini=$top/examples/encoder.ini backends=cpu_native
    good encoder "$folder/encoder.json"
    counted encoder
fi

# embed.c and mla_prefix.c check every row, or some, by themselves.
for program in embed mla_prefix; do
    tap_try "$program" "$ATTNHOST_TEST_BUILDDIR/tests/command/$program" "$ATTNHOST_TEST_PLUGIN_DIR"
done

# select.c: what it makes is what run takes.
made=$("$ATTNHOST_TEST_BUILDDIR/tests/command/select" "$top/examples/models/qwen3_next.json" \
    "$ATTNHOST_TEST_PLUGIN_DIR" platform.device=cpu model.max_context_len=512 2>&1)
case $made in
*"not cpu_linear: kind softmax: accepted linear [LAYER_KIND]"*"made cpu_native-with-cpu_linear for 2 groups: "*)
    tap_ok "select chooses for qwen3_next" ;;
*)
    tap_not_ok "select chooses for qwen3_next" "$made" ;;
esac
tap_end
