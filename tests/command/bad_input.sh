#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bad_input.sh: what the command says to wrong input. Each case has the exit code, and the place,
# what was got and what is accepted on stderr; nothing on stdout, nothing left behind, no crash.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

command=$ATTNHOST_TEST_COMMAND
plugins=$ATTNHOST_TEST_PLUGIN_DIR
fixtures=$ATTNHOST_TEST_FIXTURE_DIR

# Trusted folders alone may hold plugins, whatever the user's umask.
umask 022
tap_folder folder
mkdir "$folder/work" "$folder/p"

# ---- Cases ---------------------------------------------------------------------------------------

# refused CODE NAME TEXT... -- ARGUMENT...: the command with these arguments ends with CODE and says
# each TEXT on stderr. It runs in an empty folder, which must stay empty.
refused()
{
    code=$1 name=$2
    shift 2
    : >"$folder/texts"
    while test "$1" != --; do
        printf '%s\n' "$1" >>"$folder/texts"
        shift
    done
    shift
    (cd "$folder/work" && exec "$command" "$@") >"$folder/out" 2>"$folder/err" </dev/null
    got=$?
    {
        test $got -eq "$code" || echo "exit code $got, expected $code"
        test ! -s "$folder/out" || { echo "on stdout:" && head -5 "$folder/out"; }
        grep -q '^attnhost' "$folder/err" || echo "no line of attnhost's on stderr"
        while IFS= read -r text; do
            grep -qF -e "$text" "$folder/err" || echo "stderr lacks: $text"
        done <"$folder/texts"
        left=$(ls -A "$folder/work")
        test -z "$left" || echo "left behind: $left"
    } >"$folder/wrong"
    if test -s "$folder/wrong"; then
        tap_not_ok "$name" "$(cat "$folder/wrong" "$folder/err")"
    else
        tap_ok "$name"
    fi
    rm -rf "$folder/work"
    mkdir "$folder/work"
    if test -n "${SHOW-}"; then
        sed 's/^/    # /' "$folder/err"
    fi
}

# The ini that runs, line by line; cases change it by `edit`.
write_good()
{
    cat >"$folder/good.ini" <<EOF
[plugins]
path = $plugins
[model]
num_layers = 2
num_q_heads = 4
num_kv_heads = 2
head_dim = 16
max_context_len = 512
[attention]
attention_backend = cpu_native
[kv_cache]
page_size = 4
[workload]
trace = trace.jsonl
[verify]
rate = 1
EOF
}

# edit SCRIPT: bad.ini is the good one after this sed script.
edit()
{
    sed "$1" "$folder/good.ini" >"$folder/bad.ini"
}

# edited NAME SCRIPT LINE TEXT...: bad.ini is a usage error at this line ("" = elsewhere).
edited()
{
    edit "$2"
    case_name=$1 place=${3:+"$folder/bad.ini:$3: "}
    shift 3
    refused 2 "$case_name" "$place" "$@" -- run "$folder/bad.ini"
}

# set_refused CODE NAME SETTING TEXT...: the good ini with one --set.
set_refused()
{
    case_code=$1 case_name=$2 setting=$3
    shift 3
    refused "$case_code" "$case_name" "$@" -- run "$folder/good.ini" --set "$setting"
}

# traced NAME FILE TEXT...: standard input is the trace of this name; a usage error in it.
traced()
{
    case_name=$1 trace=$folder/$2
    shift 2
    cat >"$trace"
    refused 2 "$case_name" "$trace" "$@" -- run "$folder/good.ini" --trace "$trace" --set workload.too_long=refuse
}

row='{"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [1]}'
printf '%s\n' "$row" >"$folder/trace.jsonl"
write_good

tap_try "the ini that all cases are made of runs" "$command" run "$folder/good.ini"

# ---- The command line ----------------------------------------------------------------------------

refused 2 "no command" "usage: attnhost COMMAND" --
refused 2 "an unknown command" "unknown command 'rum'" "did you mean 'run'?" \
    "accepted: run list inspect explain" -- rum
refused 2 "no ini" "accepted one CONFIG.ini" -- run
refused 2 "two inis" "accepted one CONFIG.ini" -- run "$folder/good.ini" "$folder/good.ini"
refused 2 "an unknown option" "--frob" "attnhost run --help" -- run "$folder/good.ini" --frob
refused 2 "an option without its value" "--set" "attnhost run --help" \
    -- run "$folder/good.ini" --set
set_refused 2 "--set without a value" page_size "--set: " "'page_size'" "section.key=value"
set_refused 2 "--set without a section" page_size=4 "--set: " "'page_size'" "section.key=value"
set_refused 2 "--set of an unknown key" kv_cache.page_sise=4 "--set: " "'page_sise'" \
    "did you mean 'page_size'?" "accepted: page_size, dtype"
set_refused 2 "--set of a wrong value" kv_cache.page_size=four "--set: kv_cache.page_size" \
    "'four'" "accepted: an integer from 1 to 65536"
refused 2 "an unknown backend on the command line" "--set: attention.attention_backend" \
    "'cpu_nativ'" "did you mean 'cpu_native'?" "accepted: auto, cpu_linear" \
    -- run "$folder/good.ini" --attention-backend cpu_nativ
refused 2 "a report that cannot be written" "--json /nowhere/report.json" "No such file" \
    "accepted: a regular file, or a new name" \
    -- run "$folder/good.ini" --json /nowhere/report.json

# ---- The ini -------------------------------------------------------------------------------------

refused 2 "no such ini" "$folder/none.ini: " "No such file" -- run "$folder/none.ini"
refused 2 "a folder as ini" "$folder/p: " "accepted: " -- run "$folder/p"
: >"$folder/bad.ini"
refused 2 "an empty ini" "$folder/bad.ini" "num_layers" "is missing" "accepted 1 to" \
    -- run "$folder/bad.ini"
edited "an unknown section" 's/^\[kv_cache\]/[kv_cahce]/' 11 "[kv_cahce]" \
    "did you mean [kv_cache]?" "accepted: plugins, platform, model"
edited "an unknown key" 's/^page_size/pagesize/' 12 "'pagesize'" "did you mean 'page_size'?" \
    "accepted: page_size, dtype"
edited "a key of another section" 's/^page_size = 4/rate = 1/' 12 "it belongs to [verify]"
edited "a wrong type" 's/^page_size = 4/page_size = many/' 12 "kv_cache.page_size = 'many'" \
    "is not an integer" "accepted: an integer from 1 to 65536"
edited "out of range" 's/^rate = 1/rate = 1.5/' 16 "verify.rate = '1.5'" "out of range" \
    "accepted: a number from 0 to 1"
edited "NaN" 's/^rate = 1/rate = nan/' 16 "verify.rate = 'nan'" "accepted: a number from 0 to 1"
edited "an infinity" 's/^rate = 1/rate = inf/' 16 "verify.rate = 'inf'" "accepted: a number"
edited "a word that is no choice" 's/^page_size = 4/dtype = int4/' 12 "kv_cache.dtype = 'int4'" \
    "accepted: auto, f32"
edited "an empty value" 's/^page_size = 4/page_size =/' 12 "kv_cache.page_size" "is empty" \
    "accepted: an integer"
edited "page_size 0" 's/^page_size = 4/page_size = 0/' 12 "kv_cache.page_size = '0'" \
    "accepted: an integer from 1 to 65536"
edited "head_dim 0" 's/^head_dim = 16/head_dim = 0/' 7 "model.head_dim = '0'" \
    "accepted: an integer from 1 to 4096"
edited "heads that do not divide" 's/^num_kv_heads = 2/num_kv_heads = 3/' 6 "num_kv_heads" "3" \
    "accepted"
edited "no number of layers" '/^num_layers/d' "" "num_layers" "accepted"
edited "a line without a meaning" 's/^page_size = 4/page_size 4/' 12 "'page_size 4'" \
    "accepted: [section], key = value"
edited "a key before the first section" '1i page_size = 4' 1 "'page_size'" "accepted: [section]"
edited "a key twice" 's/^page_size = 4/&\n&/' 13 "kv_cache.page_size is given twice" \
    "first at $folder/bad.ini:12" "accepted: once"
edited "an over-long line" "s/^page_size = 4/page_size = $(printf '%070000d' 4)/" 12 \
    "the line has 70012 bytes" "accepted: up to 65536"
edited "an over-long section" "s/^.kv_cache./[$(printf 'k%.0s' $(seq 60))]/" 11 \
    "the section's name has 60 bytes" "accepted: up to "
edited "a control character" 's/^page_size = 4/page_size = \x01/' 12 "control character (0x01)" \
    "accepted: text"
edited "an unknown backend" 's/^attention_backend = .*/attention_backend = cpu_nativ/' 10 \
    "'cpu_nativ'" "did you mean 'cpu_native'?" "accepted: auto, cpu_linear"
edited "no trace" '/^trace/d' "" "workload.trace" "is missing" "accepted: a Mooncake .jsonl"
edited "a pool without a page" 's/^page_size = 4/&\nmax_total_tokens = 3/' 13 \
    "kv_cache.max_total_tokens" "3 tokens" "accepted 4.."
edited "a pool smaller than a request" 's/^page_size = 4/&\nmax_total_tokens = 40/' "" \
    "$folder/trace.jsonl:1: " "input of 40 and output of 5" "11 pages" "has 10 (40 tokens)"

# ---- Backend sections ----------------------------------------------------------------------------

hybrid='s/^attention_backend = .*/attention_backend = mine/
$a [backend.mine]\ntype = hybrid_phase\n'
good=fixture_good.so
one="s/^attention_backend = .*/attention_backend = mine/;2a path = $fixtures/$good
\$a [backend.mine]\ntype = fixture_one\n"

edited "an unknown option of a backend" "${one}blok = 3" 20 "backend.mine.blok" \
    "did you mean block?" "accepted: enabled, block, ratio"
edited "an option of a wrong type" "${one}block = three" 20 "backend.mine.block = 'three'" \
    "accepted: 1..1024 tokens"
edited "an option out of range" "${one}block = 4096" 20 "backend.mine.block = '4096'" \
    "accepted: 1..1024 tokens"
edited "an option that is NaN" "${one}ratio = nan" 20 "backend.mine.ratio = 'nan'" "accepted: 0..1"
edited "an option that is no choice" "${one}policy = slow" 20 "backend.mine.policy = 'slow'" \
    "accepted: fast, exact"
edited "an option twice" "${one}block = 3\nblock = 4" 21 "backend.mine.block is given twice" \
    "first at $folder/bad.ini:20" "accepted: once"
edited "a section without a backend's name" '$a [backend.]' 17 "accepted: [backend.NAME]"
edited "a section of an unknown type" 's/^attention_backend = .*/attention_backend = mine/
$a [backend.mine]\ntype = cpu_nativ' "" "$folder/bad.ini:18" \
    "no backend type is called 'cpu_nativ'" "did you mean 'cpu_native'?" \
    "accepted: cpu_linear, cpu_native, dsa_like, fa3_like, flashinfer_like, flashmla_like, hybrid_phase"
edited "a child that is not given" "${hybrid}prefill = cpu_native" 18 "backend.mine.decode" \
    "is missing" "accepted: the name of a backend"
edited "a missing child" "${hybrid}prefill = cpu_native\ndecode = nobody" 20 "'nobody'"
routes='s/^attention_backend = .*/&\nroute.3 = batch=1-8 -> cpu_native'
edited "a route that never matches" "$routes\nroute.7 = phase=decode batch=2 -> cpu_native/" 12 \
    "attention.route.7: row 2 'phase=decode batch=2 -> cpu_native' can never match" \
    "row 1 'batch=1-8 -> cpu_native'"
edited "a gap between routes" \
    's/^attention_backend = .*/attention_backend = auto\nroute.3 = batch=1-8 -> cpu_native/' 11 \
    "attention.route.3 = 'batch=1-8 -> cpu_native' is the last route" "accepted: a last route '-> NAME'"
edited "a cycle of backends" "${hybrid}prefill = cpu_native\ndecode = mine" 20 "mine"

# ---- Model ---------------------------------------------------------------------------------------

# config_json NAME TEXT...: the folder's config.json is the model; a usage error in it.
config_json()
{
    case_name=$1
    shift
    refused 2 "$case_name" "$folder/config.json" "$@" "accepted" -- run "$folder/model.ini"
}

edit '/^num_/d;/^head_dim/d;s/^\[model\]/&\nconfig = config.json/'
mv "$folder/bad.ini" "$folder/model.ini"
llama=$top/tests/models/llama.json
sed 's/LlamaForCausalLM/LlamaForCasualLM/' "$llama" >"$folder/config.json"
config_json "a misspelt architecture" "LlamaForCasualLM" "did you mean LlamaForCausalLM?"
sed 's/LlamaForCausalLM/Llama9ForCausalLM/; s/^{/{"attention_magic": 3, /' "$llama" >"$folder/config.json"
config_json "an unknown architecture with an unknown key" "attention_magic: got 3" "Llama9ForCausalLM" "docs/MODELS.md" \
    "the keys of [model]"
sed 's/^{/{"sliding_window": 4096, /' "$llama" >"$folder/config.json"
config_json "a key that the family does not read" ": sliding_window: got 4096" "accepted null"
head -c 200 "$llama" >"$folder/config.json"
config_json "a truncated config.json" "the file ends before its object does"
echo '[1, 2]' >"$folder/config.json"
config_json "a config.json that is no object" ":1:1: got an array"
: >"$folder/config.json"
config_json "an empty config.json" ":1:1: not valid JSON"
sed 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": "two"/' "$llama" >"$folder/config.json"
config_json "a config.json with a text for a number" "num_hidden_layers: got \"two\""
sed 's/"num_attention_heads": *[0-9]*/"num_attention_heads": 0/' "$llama" >"$folder/config.json"
config_json "a config.json without heads" "num_attention_heads: got 0"
sed '/"num_hidden_layers"/d' "$llama" >"$folder/config.json"
config_json "a config.json without layers" "num_hidden_layers"
set_refused 2 "no such config.json" "model.config=$folder/none.json" "--set: model.config: $folder/none.json: " \
    "No such file" "accepted: a readable file"

# ---- Traces --------------------------------------------------------------------------------------

set_refused 2 "no such trace" "workload.trace=$folder/none.jsonl" "--set: workload.trace: $folder/none.jsonl: " \
    "No such file" "accepted: a readable file"
set_refused 2 "a folder as trace" "workload.trace=$folder/p" "$folder/p: " "Is a directory" \
    "accepted: a readable file"
traced "an empty trace" a.jsonl "got no request" "accepted: at least one" </dev/null
traced "a JSON array as trace" a.json ":1: got a JSON array" "accepted: JSON lines" <<EOF
[{"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [1]}]
EOF
traced "a key that a line has twice" a.jsonl ':1: key "input_length" is given twice' <<EOF
{"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [1], "input_length": 41}
EOF
mkfifo "$folder/pipe"
set_refused 2 "a pipe without a writer" "workload.trace=$folder/pipe" "a pipe without a writer" \
    "accepted: a readable file"
traced "a broken JSON line" a.jsonl ":2: column " "broken JSON" "accepted: one complete" <<EOF
$row
{"timestamp": 1, "input_length": 40,
EOF
traced "length 0" a.jsonl ":1: input_length: got 0" "accepted: an integer from 1 to " <<EOF
{"timestamp": 0, "input_length": 0, "output_length": 5, "hash_ids": []}
EOF
traced "a length that is no integer" a.jsonl ":1: input_length: got 1.5" "accepted: an int" <<EOF
{"timestamp": 0, "input_length": 1.5, "output_length": 5, "hash_ids": [1]}
EOF
traced "a missing member" a.jsonl ":1: output_length: got nothing" "accepted: an integer" <<EOF
{"timestamp": 0, "input_length": 1, "hash_ids": [1]}
EOF
traced "too few hash ids" a.jsonl ":2: hash_ids: got 0 ids for input_length 400" "accepted: 1, one per block of 512" <<EOF
$row
{"timestamp": 0, "input_length": 400, "output_length": 5, "hash_ids": []}
EOF
traced "a length over max_context_len" a.jsonl ":2: " "got 510 input + 3 output" \
    "accepted: max_context_len = 512" <<EOF
$row
{"timestamp": 0, "input_length": 510, "output_length": 3, "hash_ids": [1]}
EOF
# The default leaves it out, and says so.
tap_try "a length over max_context_len by default: left out, with a warning and a count" sh -c '
    "$1" run "$2/good.ini" --quiet --trace "$2/a.jsonl" >"$2/out" 2>"$2/err" &&
        grep -qxF "attnhost: warning: $2/a.jsonl:2: the first of 1 request longer than max_context_len = 512: left out \
(workload.too_long = skip; accepted too: cut, refuse)" "$2/err" &&
        grep -qx "too long  *1 left out, 0 cut to the model.s context" "$2/out" || { cat "$2/err" "$2/out"; false; }' \
    sh "$command" "$folder"
traced "a CSV without a column" a.csv ":1: " "GeneratedTokens" "accepted: " <<EOF
TIMESTAMP,ContextTokens
2023-11-16 18:15:46,40
EOF
traced "a CSV with a short row" a.csv ":3: got 2 fields" "accepted: 3" <<EOF
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46,40,5
2023-11-16 18:15:46,40
EOF
traced "a CSV with length 0" a.csv ":2: ContextTokens: got 0" "accepted: an integer from 1" <<EOF
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46,0,5
EOF
traced "a CSV with a wrong moment" a.csv ":2: TIMESTAMP: got yesterday" "accepted: YYYY-MM-DD" <<EOF
TIMESTAMP,ContextTokens,GeneratedTokens
yesterday,40,5
EOF

# ---- Plugins -------------------------------------------------------------------------------------

# plugin CODE NAME FILE TEXT...: the good ini with this plugin and a backend that it should have.
plugin()
{
    case_code=$1 case_name=$2 file=$3
    shift 3
    refused "$case_code" "$case_name" "$file" "$@" \
        -- run "$folder/good.ini" --set "plugins.path=$file" --set "plugins.path=$plugins" \
        --set attention.attention_backend="$backend"
}

# critical NAME FILE TEXT...: the same, marked critical.
critical()
{
    case_name=$1 file=$2
    shift 2
    edit "2a path = $file
2a critical = $(basename "$file" .so)"
    refused 3 "$case_name" "$file" "$@" -- run "$folder/bad.ini"
}

# Both ways: as a file beside the good ones, and as a critical one.
bad_file()
{
    case_title=$1 case_file=$2
    shift 2
    plugin 2 "$case_title" "$case_file" "refused" "$@"
    critical "$case_title, critical" "$case_file" "$@"
}

backend=nobody
echo "not a plugin" >"$folder/p/text.so"
head -c 1000 "$plugins/cpu_native.so" >"$folder/p/cut.so"
: >"$folder/p/empty.so"
mkdir "$folder/p/folder.so"
cp "$plugins/hybrid.so" "$folder/p/open.so"
chmod o+w "$folder/p/open.so"
mkdir "$folder/shared"
cp "$plugins/hybrid.so" "$folder/shared/hybrid.so"
chmod go+w "$folder/shared"
ln -s none.so "$folder/p/dangling.so"

set_refused 2 "no such plugin" "plugins.path=$folder/p/none.so" "--set: plugins.path" \
    "$folder/p/none.so: No such file or directory" "accepted: a folder of plugins, or a plugin's file"
ln -s loop "$folder/p/loop"
set_refused 2 "a plugin behind a loop of links" "plugins.path=$folder/p/loop" "--set: plugins.path" \
    "$folder/p/loop: Too many levels of symbolic links"
rm "$folder/p/loop"
bad_file "not an ELF file" "$folder/p/text.so" "begins with 6e 6f 74 20" "accepted: a shared object"
bad_file "half a plugin" "$folder/p/cut.so" "cut off" "accepted: a whole shared object"
bad_file "an empty plugin" "$folder/p/empty.so" "has less than 4 bytes" "accepted: a shared object"
bad_file "no symbol" "$fixtures/fixture_no_entry.so" "no symbol attn_plugin_entry" \
    "accepted: a shared object that exports it"
bad_file "another ABI major" "$fixtures/fixture_other_major.so" "ABI major 4242" "accepted: "
bad_file "an ABI major out of range" "$fixtures/fixture_forced_major.so" "ABI major 4242" \
    "accepted: "
bad_file "describe fails" "$fixtures/fixture_describe_fails.so" "describe"
bad_file "an option whose default is out of range" "$fixtures/fixture_bad_option.so" \
    "option block" "default"
bad_file "two backends of one name" "$fixtures/fixture_same_name.so" "both named fixture_same" \
    "accepted: one backend type per name"
bad_file "a plugin writable by others" "$folder/p/open.so" "writable by others (mode 0757)" \
    "accepted: writable by its owner alone"
set_refused 2 "a folder writable by others" "plugins.path=$folder/shared" "$folder/shared" \
    "writable by others" "accepted: writable by its owner alone"
plugin 2 "a plugin in a folder writable by others" "$folder/shared/hybrid.so" \
    "writable by others" "accepted: writable by its owner alone"
mkdir -p "$folder/above/below" && cp "$plugins/hybrid.so" "$folder/above/below"
chmod 777 "$folder/above"
plugin 2 "a plugin below a folder writable by others" "$folder/above/below/hybrid.so" \
    "$folder/above: this folder above the plugin is writable by others (mode 0777)"

sum=$(sha256sum <"$plugins/hybrid.so" | cut -d' ' -f1)
wrong=$(printf '%s' "$sum" | tr 0-9a-f 1-9a-f0)
edited "a pin that does not match" "s/^attention_backend = .*/attention_backend = nobody/
2a pin.1 = $plugins/hybrid.so $wrong" 11 "hybrid.so: SHA-256 is $sum" "its pin accepts $wrong"
edited "a pin that is no digest" "s/^path = .*/pin.1 = hybrid.so 12ab\n&/" 2 "plugins.pin" "12ab" \
    "accepted: "
edited "a pin of no file" "s/^path = .*/pin.1 = none.so $sum\n&/" 2 "plugins.pin.1" "none.so" \
    "No such file" "accepted: a plugin's file"
edit "s/^path = .*/&\ncritical = nobody/"
refused 3 "a missing critical plugin" "$folder/bad.ini:3: " "'nobody'" \
    "accepted: the name of a plugin" -- run "$folder/bad.ini"
refused 3 "inspect of a bad file" "$folder/p/text.so" "accepted: " -- inspect "$folder/p/text.so"
refused 2 "inspect of an unknown backend" "'nobody'" -- inspect nobody
ATTNHOST_PLUGIN_PATH=$folder/none
export ATTNHOST_PLUGIN_PATH
refused 2 "a folder of the environment that is not there" "ATTNHOST_PLUGIN_PATH: $folder/none: No such file" -- list
unset ATTNHOST_PLUGIN_PATH

cp "$fixtures/fixture_good.so" "$folder/p/a.so"
cp "$fixtures/fixture_taken_name.so" "$folder/p/b.so"
refused 3 "a name that another plugin has" "b.so" "fixture_two is already provided by $folder/p/a.so" \
    "accepted: one backend type per name" \
    -- run "$folder/good.ini" --set "plugins.path=$folder/p" --set plugins.critical=b

# What the ini names wins over a search path, without a complaint.
mkdir "$folder/q"
cp "$plugins/cpu_native.so" "$folder/q/cpu_native.so"
ATTNHOST_PLUGIN_PATH=$folder/q "$command" run "$folder/good.ini" >"$folder/out" 2>"$folder/err"
code=$?
if test $code -eq 0 && ! grep -q refused "$folder/err"; then
    tap_ok "a plugin that is shadowed is not mentioned"
else
    tap_not_ok "a plugin that is shadowed is not mentioned" "exit code $code: $(cat "$folder/err")"
fi
if "$command" list "$plugins/cpu_native.so" >"$folder/out" 2>&1 && grep -q '^    cpu_native' "$folder/out"; then
    tap_ok "list takes the file of a plugin"
else
    tap_not_ok "list takes the file of a plugin" "$(cat "$folder/out")"
fi
ATTNHOST_PLUGIN_PATH=$folder/q "$command" list "$folder/good.ini" >"$folder/out" 2>&1
if grep -qF "not used: $(cd "$plugins" && pwd -P)/cpu_native.so already provides it" "$folder/out"; then
    tap_ok "list shows what shadows it"
else
    tap_not_ok "list shows what shadows it" "$(cat "$folder/out")"
fi

# ---- Backends ------------------------------------------------------------------------------------

plugin_file=$fixtures/fixture_create_fails.so
refused 4 "create fails" "fixture_fails" "libunobtainium.so.1 is not here" \
    -- run "$folder/good.ini" --set "plugins.path=$plugin_file" \
    --set attention.attention_backend=fixture_fails
refused 4 "create fails, and no empty report is left" "libunobtainium.so.1 is not here" \
    -- run "$folder/good.ini" --set "plugins.path=$plugin_file" \
    --set attention.attention_backend=fixture_fails --json report.json
set_refused 4 "an alias without its plugin" attention.attention_backend=trtllm_mha "trtllm_mha" "trtllm_mha_like" \
    "no such plugin exists yet" "--set"
set_refused 4 "a backend that no plugin has yet" attention.attention_backend=trtllm_mha_like \
    "trtllm_mha_like" "no such plugin exists yet"
set_refused 4 "a backend that refuses the problem" model.head_dim=513 "head_dim" "513" \
    "accepted 1..512"
set_refused 4 "no CUDA device" platform.device=cuda "cuda"
set_refused 2 "a simulated device" platform.simulate=sm90 "--set: platform.simulate" \
    "cannot run"
set_refused 2 "drafts" attention.speculative_eagle_topk=1 "--set" "without speculative.draft_tokens" "accepted: 0"
refused 2 "an unknown platform" "--set: platform.simulate" "'sm9'" "did you mean" "gfx942" \
    -- explain "$folder/good.ini" --set platform.simulate=sm9
# elsewhere CODE NAME BACKEND TEXT [OPTION]: what `explain` says of BACKEND on a platform that is not this one.
elsewhere()
{
    "$command" explain "$folder/good.ini" --set platform.simulate=gfx942 ${5-} \
        --set "attention.attention_backend=$3" >"$folder/out" 2>&1
    code=$?
    if test $code -eq "$1" && grep -q "$4" "$folder/out"; then
        tap_ok "$2"
    else
        tap_not_ok "$2" "exit code $code: $(cat "$folder/out")"
    fi
}
elsewhere 4 "a named backend that no plugin has yet, elsewhere" aiter \
    "aiter stands for aiter_like: no such plugin exists yet (.*); installed: cpu_linear, cpu_native"
elsewhere 4 "what no plugin serves elsewhere is no answer" auto "aiter_like: no such plugin exists yet"
elsewhere 0 "what would be chosen elsewhere is an answer to --would" auto \
    "aiter_like: would be chosen; no such plugin exists yet" --would
printf '[order.mine]\nplatfrom = any\n' >"$folder/rules.ini"
refused 2 "rules with a mistake" "$folder/rules.ini:2: unknown key 'platfrom' in [order.mine]" \
    "did you mean 'platform'?" -- explain "$folder/good.ini" \
    --set "attention.rules=$folder/rules.ini"
refused 2 "rules that are not there" "nowhere.ini" "accepted: a readable ini file" \
    -- explain "$folder/good.ini" --set attention.rules=nowhere.ini
for key in linear_attn_backend mm_attention_backend; do # there is no layer for them
    set_refused 2 "an unknown name in $key" attention.$key=cpu_nativ "attention.$key: no backend is" \
        "did you mean 'cpu_native'?"
done
printf '{"model_type": "llama", "hidden_size": 64, "hidden_size": 64}\n' >"$folder/twice.json"
refused 2 "a key that config.json has twice" "twice.json: key \"hidden_size\" is given twice" \
    "accepted: once" -- explain "$folder/twice.json"
# Without the option a sanitizer's allocator ends the process, as no program asks for so much.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}allocator_may_return_null=1
export ASAN_OPTIONS
refused 5 "a KV pool that is too large" "accepted: at most " \
    "--set: kv_cache.max_total_tokens: 2147483640 tokens of 4096 bytes" -- run "$folder/good.ini" \
    --set model.head_dim=256 --set kv_cache.max_total_tokens=2147483640
refused 2 "a scale of 0" "kv_cache.k_scale = '0'" "each from 1.2e-38 to 3.4e+38" \
    -- run "$folder/good.ini" --set kv_cache.dtype=fp8_e4m3 --set kv_cache.k_scale=0 \
    --set kv_cache.v_scale=1
set_refused 2 "a route of an unknown condition" "attention.route.1=layer=0 -> cpu_native" \
    "--set: attention.route.1: row 1 'layer=0 -> cpu_native'" "not a condition" "accepted: layers, kind"
set_refused 2 "a route to an unknown backend" "attention.route.1=layers=0 -> cpu_nativ" \
    "--set: attention.route.1: backend.routes.then = 'cpu_nativ'" "did you mean cpu_native?"

# ---- Files of other kinds ------------------------------------------------------------------------

tap_try "check of a device without an end ends, and says what is wrong" sh -c '
    timeout 30 "$1" check /dev/zero >"$2/out" 2>"$2/err"
    test $? -eq 3 && grep -qF "/dev/zero: not a regular file; accepted: a plugin" "$2/err"' sh "$command" "$folder"
refused 2 "a report without an end" "/dev/zero: has more than 16777216 bytes; accepted: a file of up to that" -- report /dev/zero
refused 2 "a pipe without a writer as waivers" "$folder/pipe: a pipe without a writer; accepted: a file of waivers" \
    -- check "$plugins/cpu_native.so" --waivers "$folder/pipe"
tap_try "a page that does not fit: its file, the reason, and no page" sh -c '
    "$1" run "$2/good.ini" --json "$2/report.json" >"$2/out" 2>&1 || exit 1
    (ulimit -f 16 && "$1" report "$2/report.json" --output "$2/page.html"; echo "exit $?") 2>&1 | cat >"$2/err"
    test ! -e "$2/page.html" && test "$(wc -l <"$2/err")" -eq 2 && grep -qx "exit 5" "$2/err" &&
        grep -qF -e "--output $2/page.html: cannot be written: File too large" "$2/err"' sh "$command" "$folder"
red=$folder/$(printf '\033[31mred')
mkdir "$red" && cp "$folder/good.ini" "$folder/trace.jsonl" "$red"
tap_try "a folder whose name is a control sequence: none reaches the terminal" sh -c '
    "$1" run "$2/good.ini" >"$3/out" 2>&1 && grep -qF "?[31mred" "$3/out" && ! grep -q "$(printf "\033")" "$3/out"' \
    sh "$command" "$red" "$folder"

tap_end
