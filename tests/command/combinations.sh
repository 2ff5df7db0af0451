#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# combinations.sh: drafts, pools of windows and chunks, encoders, cross attention, vision towers, recurrent and
# sparse layers, each with retraction, chunked prefill, mixed steps, and prefixes that are shared: a run of every pair
# verifies all its sampled rows and leaks nothing, and did what the pair is about; or `run` and `explain` refuse it
# by the same sentence. A commit that changes nothing of what runs them runs each sixth pair (case_part.sh).
set -u
top=${ATTNHOST_TEST_SRCDIR:-$(dirname "$0")/../..}
. "$top/tests/tools/tap.sh"

umask 022
tap_folder folder
unset ATTNHOST_PLUGIN_PATH
cd / || exit 1

# Six requests of 40 tokens, of which 32 are shared by all, and 40 outputs: together more than the small pool has.
for i in 1 2 3 4 5 6; do
    echo "{\"timestamp\": $i, \"input_length\": 1280, \"output_length\": 1280, \"hash_ids\": [90, 91, $i]}"
done >"$folder/trace.jsonl"
mkdir "$folder/plugins"
for name in cpu_native cpu_linear hybrid; do
    cp "$ATTNHOST_TEST_PLUGIN_DIR/$name.so" "$folder/plugins" || exit 1
done
cat >"$folder/run.ini" <<END
[plugins]
path = $folder/plugins
[attention]
attention_backend = cpu_native
[workload]
trace = $folder/trace.jsonl
length_scale = 0.03125
max_running_requests = 3
num_threads = 1
[kv_cache]
page_size = 4
[verify]
rate = 0.1
END

layers="model.num_q_heads=4 model.num_kv_heads=2 model.head_dim=8 model.num_layers=2 model.max_context_len=128"
window="$layers model.layer_types=sliding,full model.sliding_window=9 kv_cache.hybrid_swa_memory=yes"
# Backends one and two by phase, in a section that is written by hand.
by_hand="$layers speculative.draft_tokens=5 attention.attention_backend=h backend.h.type=hybrid_phase backend.h.prefill=one
    backend.h.decode=two backend.one.type=cpu_native backend.two.type=cpu_native"
recurrent="model.config=$top/examples/models/falcon_h1.json attention.linear_attn_backend=cpu_linear"
# Recurrent layers alone: what else is in a row, such as the needles of queries, goes by the size of chunks.
delta="model.num_layers=2 model.max_context_len=128 model.linear_family=gdn model.layer_types=linear model.linear.num_q_heads=4
    model.linear.num_kv_heads=2 model.linear.head_dim=32 attention.attention_backend=auto
    attention.linear_attn_backend=cpu_linear kv_cache.prefix_cache=no verify.rate=1"
sparse="model.num_q_heads=4 model.kv_lora_rank=16 model.qk_nope_head_dim=8 model.qk_rope_head_dim=4 model.v_head_dim=8
    model.num_layers=2 model.max_context_len=128 model.layer_types=sparse model.index_topk=12 model.index_head_dim=8
    model.index_n_heads=4"

# settings KIND: what makes it.
settings()
{
    case $1 in
    chains) echo "$layers speculative.draft_tokens=4" ;;
    trees) echo "$layers $(settings branches)" ;;
    windows) echo "$window" ;;
    chunks) echo "$layers model.layer_types=chunked,full model.attention_chunk=16 kv_cache.hybrid_swa_memory=yes" ;;
    encoder) echo "$layers model.attn_type=encoder_only" ;;
    cross) echo "$layers model.num_layers=3 model.layer_types=full,cross,encoder" ;;
    vision) echo "model.config=$top/examples/models/gemma3_vl.json kv_cache.hybrid_swa_memory=yes" ;;
    recurrent) echo "$recurrent" ;;
    delta) echo "$delta" ;;
    invariant) echo "attention.batch_invariant=yes" ;;
    sparse) echo "$sparse" ;;
    sparse_chains) echo "$sparse speculative.draft_tokens=4" ;;
    sparse_trees) echo "$sparse $(settings branches)" ;;
    labels_trees) echo "$(settings sparse_trees) $(settings labels)" ;;
    labels) echo "kv_cache.label_dtype=fp8_e4m3" ;;
    windows_chains) echo "$window speculative.draft_tokens=4" ;;
    recurrent_chains) echo "$recurrent speculative.draft_tokens=4" ;;
    by_hand) echo "$by_hand" ;;
    hand_decode) echo "$(settings by_hand) backend.h.speculative_attention_mode=decode" ;;
    pair) echo "$(settings by_hand) attention.prefill_attention_backend=one attention.decode_attention_backend=two" ;;
    attention_decode) echo "attention.speculative_attention_mode=decode" ;;
    retraction) echo "workload.max_running_requests=6 kv_cache.max_total_tokens=140 kv_cache.swa_full_tokens_ratio=1" ;;
    short) echo "workload.length_scale=0.125" ;;
    refusing) echo "workload.too_long=refuse" ;;
    plain) echo "$layers" ;;
    cross_windows) echo "$(settings cross) model.layer_types=sliding,cross,encoder model.sliding_window=9" ;;
    topk | acceptance | seed) echo "speculative.$1=1" ;;
    ratio) echo "kv_cache.swa_full_tokens_ratio=0.5" ;;
    wide_pages) echo "kv_cache.page_size=128" ;;
    apart) echo "kv_cache.hybrid_swa_memory=yes" ;;
    keys) echo "kv_cache.max_encoder_tokens=4096" ;;
    decode_name) echo "attention.decode_attention_backend=cpu_native" ;;
    verifies) echo "attention.route.1=phase=verify@->@other backend.other.type=cpu_native" ;;
    either) echo "attention.route.1=phase=verify%decode@->@other backend.other.type=cpu_native" ;;
    decodes) echo "attention.route.1=phase=decode@->@other backend.other.type=cpu_native" ;;
    table) echo "attention.attention_backend=mine backend.mine.type=route backend.mine.when=phase=decode
        backend.mine.then=other backend.mine.otherwise=cpu_native backend.other.type=cpu_native" ;;
    no_such_type) echo "model.chunked.num_kv_heads=1" ;;
    no_such_cache) echo "kv_cache.cross.dtype=f16" ;;
    no_linear) echo "model.linear_family=gdn" ;;
    misspelt) echo "backend.cpu_natve.isa=generic" ;;
    options) echo "backend.cpu_native.isa=generic" ;;
    called_auto) echo "backend.auto.type=cpu_native attention.attention_backend=auto" ;;
    draft_shape) echo "speculative.head_dim=16" ;;
    draft_keys) echo "speculative.head_dim=16 speculative.num_kv_heads=1 speculative.kv_dtype=fp8_e4m3" ;;
    two_drafts) echo "speculative.num_layers=2" ;;
    ranks) echo "model.tp_size=2" ;;
    dropped) echo "attention.attention_backend=nsa" ;;
    fp8) echo "kv_cache.dtype=fp8_e4m3" ;;
    no_page) echo "kv_cache.max_total_tokens=3" ;;
    few_pages) echo "kv_cache.max_total_tokens=72" ;;
    few_windows) echo "kv_cache.max_total_tokens=140 kv_cache.swa_full_tokens_ratio=0.001" ;;
    few_keys) echo "kv_cache.max_encoder_tokens=100" ;;
    branches) echo "speculative.draft_tokens=6 speculative.topk=2" ;;
    chunked) echo "workload.chunked_prefill_size=7" ;;
    mixed) echo "workload.chunked_prefill_size=16 workload.mixed=yes" ;;
    sharing) echo "workload.chunked_prefill_size=64" ;;
    esac
}

quiet=--quiet

# command_of WORD KIND...: its exit code; what it said is in $folder/WORD, a report of run in $folder/report.
command_of()
{
    word=$1 options=
    shift
    for part in "$@"; do
        for setting in $(settings "$part"); do
            options="$options --set $(echo "$setting" | tr , ' ' | sed 's/ /@/g; s/%/,/g')"
        done
    done
    set -- "$folder/run.ini"
    for option in $options; do
        set -- "$@" "$(echo "$option" | tr @ ' ')"
    done
    test "$word" != run || set -- "$@" $quiet --json "$folder/report"
    rm -f "$folder/report"
    "$ATTNHOST_TEST_COMMAND" "$word" "$@" >"$folder/out" 2>"$folder/$word"
    code=$?
    sed -i "s/^attnhost $word: //" "$folder/$word"
    return $code
}

# number KEY: the first in the report of this name.
number()
{
    sed -n "s/.*\"$1\":[^0-9]*\([0-9]*\).*/\1/p" "$folder/report" | head -n 1
}

pairs=$(sh "$top/tests/tools/case_part.sh" combinations host/cache host/kinds host/run host/schedule host/verify host/workload \
    plugins/cpu_linear plugins/cpu_native plugins/hybrid tests/command) || exit 1
seen=0

# runs KIND FEATURE CONDITION...
runs()
{
    name="$1 and $2"
    seen=$((seen + 1))
    if test -n "$pairs" && test $(((seen - 1) % ${pairs#*/})) -ne "${pairs%/*}"; then
        tap_skip "$name" "not in cases $pairs, which this commit runs; ATTNHOST_TEST_ALL=1 runs all"
        return
    fi
    command_of run "$1" "$2"
    code=$?
    shift 2
    if test $code -eq 0 && test "$(number rows_checked)" -gt 20 && test "$(number rows_failed)" -eq 0 &&
        test "$(number leaked)" -eq 0 && test "$(number requests)" -eq 6 && test "$(number "$1")" "$2" "$3"; then
        tap_ok "$name"
    else
        tap_not_ok "$name: exit $code, $*" \
            "$(cat "$folder/run"; grep -E '"(rows_.*|leaked|requests|steps|prefix_hit|recomputed)":' "$folder/report")"
    fi
}

# verified BACKEND WORDS KIND...: of backends one and two, which prefill and decode, this one verifies and has the draft
# model's rows, of two target layers; explain has WORDS for that.
verified()
{
    backend=$1 words=$2
    shift 2
    command_of run "$@"
    ran=$? rows=$(number two) verifications=$(number verifications) drafted=$(number draft_extend)
    test "$backend" = two && expected=$((2 * 5 * verifications + drafted)) || expected=0
    command_of explain "$@"
    explained=$?
    if test $ran -eq 0 && test $explained -eq 0 && test "$verifications" -gt 20 && test "$rows" -eq "$expected" &&
        line out | grep -q "in chains, $words; layer 2 "; then
        tap_ok "$*: verified $words"
    else
        tap_not_ok "$*: verified $words: exit $ran, $explained; $rows rows of two, not $expected" \
            "$(cat "$folder/run" "$folder/explain" "$folder/out")"
    fi
}

# line FILE: as one line.
line()
{
    tr '\n' ' ' <"$folder/$1" | tr -s ' '
}

# answers WORDS: the last answer has them.
answers()
{
    line out | grep -qF "$1"
}

# warned WORDS KIND...: run and explain obey, and say once that a setting or a route is idle; with WORDS
# "" they say nothing of that.
warned()
{
    words=$1 quiet=
    shift
    command_of run "$@"
    ran=$?
    command_of explain "$@"
    explained=$?
    quiet=--quiet once=$(test -z "$words" || echo 1)
    if test $ran -eq 0 && test $explained -eq 0 && line run | grep -q "$words" && line out | grep -q "$words" &&
        test "$(grep -c -E ': no effect|matches nothing' "$folder/run")" -eq "${once:-0}" &&
        test "$(grep -c -E ': no effect|matches nothing' "$folder/out")" -eq "${once:-0}"; then
        tap_ok "$*: ${words:-nothing is idle}"
    else
        tap_not_ok "$*: ${words:-nothing is idle}: exit $ran, $explained" \
            "$(cat "$folder/run" "$folder/explain" "$folder/out")"
    fi
}

# refused SENTENCE KIND...: by run and by explain, with this exit code.
refusal=2
refused()
{
    sentence=$1
    shift
    command_of run "$@"
    ran=$?
    command_of explain "$@"
    explained=$?
    if test $ran -eq $refusal && test $explained -eq $refusal && grep -q "$sentence" "$folder/run" &&
        cmp -s "$folder/run" "$folder/explain"; then
        tap_ok "$* are refused"
    else
        tap_not_ok "$* are refused: exit $ran, $explained" "$(cat "$folder/run" "$folder/explain")"
    fi
}

# fails FAULT WORDS: a run of sparse layers by a stand-in that is wrong in this way says so, and what it saw.
fails()
{
    options=
    for setting in $(settings sparse) attention.attention_backend=wrong backend.wrong.type="$1" \
        backend.wrong.child=cpu_native plugins.path="$folder/wrong"; do
        options="$options --set $setting"
    done
    # shellcheck disable=SC2086 # words
    "$ATTNHOST_TEST_COMMAND" run "$folder/run.ini" $options >"$folder/out" 2>"$folder/run"
    code=$?
    if test $code -eq 1 && grep -q "$2" "$folder/run"; then
        tap_ok "a run sees what is wrong: $1"
    else
        tap_not_ok "a run sees what is wrong: $1: exit $code" "$(cat "$folder/run" "$folder/out")"
    fi
}

# digest_of KIND...: of the outputs of a run.
digest_of()
{
    command_of run "$@"
    sed -n 's/.*"digest":[^"]*"\([0-9a-f]*\)".*/\1/p' "$folder/report" | head -n 1
}

# Recurrent layers by chunks add in another order where a prompt is cut elsewhere, unless they are asked not to.
whole=$(digest_of delta) cut=$(digest_of delta chunked) # of 40 tokens, into pieces of 7
tap_try "prompts that are cut elsewhere have other bits" test -n "$whole" -a -n "$cut" -a "$whole" != "$cut"
whole=$(digest_of delta invariant) cut=$(digest_of delta invariant chunked)
tap_try "the same bits with attention.batch_invariant" test -n "$whole" -a "$whole" = "$cut"

for kind in chains trees windows chunks vision recurrent windows_chains recurrent_chains sparse sparse_chains \
    sparse_trees labels_trees; do
    runs $kind retraction recomputed -gt 0
    runs $kind chunked steps -gt 40
    runs $kind sharing prefix_hit -gt 0
    case $kind in
    *chains | *trees) refused "drafts are verified in steps of their own" $kind mixed ;;
    *) runs $kind mixed steps -gt 40 ;;
    esac
done
mkdir "$folder/wrong"
cp "$folder/plugins/cpu_native.so" "$ATTNHOST_TEST_FIXTURE_DIR/zoo.so" "$folder/wrong" || exit 1
fails wrap_chosen_fewer "keys are chosen; accepted: "
fails wrap_chosen_later "but the query does not see it"
fails wrap_labels_unsaved "is not; accepted error:"
runs cross retraction recomputed -gt 0
runs cross chunked steps -gt 40
runs cross mixed steps -gt 40
runs cross sharing prefix_hit -eq 0
runs encoder sharing prefix_hit -eq 0
refused "the recurrent layers .* has one history and no branches" recurrent branches
refused "trace.jsonl:1: request 0: input of 40 tokens, which is not cut: accepted up to chunked_prefill_size = 7" encoder chunked
refused "got 160 input + 160 output tokens at length_scale 0.125, accepted: max_context_len = 128" windows short refusing
for kind in chains windows cross recurrent; do
    refused "kv_cache.max_total_tokens: 3 tokens: accepted 4..2147483640, in pages of 4" $kind no_page
    refused "trace.jsonl:1: request 0: .* pages of 4 tokens; the KV cache has 18 (72 tokens), so it could never finish" \
        $kind few_pages
done
refused "the KV cache of windows has 1 (4 tokens), so it could never finish" windows few_windows
refused "the KV cache of windows has 1 (4 tokens), so it could never finish" chunks few_windows
refused "kv_cache.max_encoder_tokens: 100 tokens: accepted 128.." cross few_keys
verified one "by h" by_hand
verified two "by h" hand_decode
verified two "by h" hand_decode attention_decode
verified one "by the backend of prefill" pair
verified two "by the backend of decode" pair attention_decode
refused "_mode: decode, while h, a hybrid_phase that serves both phases, has prefill: accepted prefill, or backend.h.spec" \
    by_hand attention_decode
warned "" plain
warned "" cross keys
warned "" chains acceptance
warned "" windows ratio
warned "" chains verifies
warned "" plain decodes
warned "" plain either
warned "" chains either
warned "speculative.topk (--set): no effect, without speculative.draft_tokens" plain topk
warned "speculative.acceptance (--set): no effect, without speculative.draft_tokens" plain acceptance
warned "speculative.seed (--set): no effect, without speculative.draft_tokens" plain seed
warned "kv_cache.hybrid_swa_memory (--set): no effect, as no layer with a KV cache has a window or chunks" plain apart
warned "kv_cache.prefix_cache (default): no effect, as kv_cache.page_size 128 is not below max_context_len 128" plain wide_pages
warned "kv_cache.swa_full_tokens_ratio (--set): no effect, without kv_cache.hybrid_swa_memory" plain ratio
warned "model.chunked.num_kv_heads (--set): no effect, as no layer is chunked" windows no_such_type
warned "kv_cache.cross.dtype (--set): no effect, as no KV cache is of that type" plain no_such_cache
warned "model.linear_family (--set): no effect, as no layer is linear" plain no_linear
warned "kv_cache.label_dtype (--set): no effect, as no layer has an indexer" plain labels
warned "" sparse labels
warned "" plain options
warned "" by_hand
warned "backend.cpu_natve. (--set): no effect, as no backend of that name is asked for" plain misspelt
warned "backend.auto. (--set): no effect, as auto stands for the choice by the rules" plain called_auto
warned "speculative.head_dim (--set): no effect, without speculative.draft_tokens" plain draft_shape
warned "" chains draft_keys
warned "" plain ranks
warned "kv_cache.max_encoder_tokens (--set): no effect, without cross attention" plain keys
warned "attention.decode_attention_backend (--set): no effect, as all layers are encoders" encoder decode_name
warned "the row 'phase=verify' (--set: attention.route.1) matches nothing: without .*draft_tokens the phases are prefill, decode" \
    plain verifies
warned "the row 'phase=decode' (--set: attention.route.1) matches nothing: with .*draft_tokens the phases are prefill, verify, draft" \
    chains decodes
warned "the row 'phase=decode' (--set) matches nothing: with speculative.draft_tokens the phases are prefill, verify, draft" chains table
warned "the row 'phase=decode' (--set: attention.route.1) matches nothing: of encoders the phases are prefill" encoder decodes
refusal=4
refused "a sliding window and cross attention in one model are not served" cross_windows
command_of explain chains two_drafts
tap_try "all layers of a draft model are named" answers "layers 2-3 are the draft model's"
command_of explain plain dropped
tap_try "a name that SGLang has dropped is said to be one" \
    answers "attention.attention_backend (--set): SGLang has dropped the name nsa; here it stands for dsa_like"
command_of explain plain fp8
tap_try "scales that an fp8 cache is not given are said to be 1" \
    answers "kv_cache.k_scale and v_scale: 1.0, as none is given for the fp8 cache"
refusal=2
refused "cross layers, which cannot verify drafts" chains cross
refused "encoder_only layers, which cannot verify drafts" chains encoder
tap_end
