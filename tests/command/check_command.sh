#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# check_command.sh: `attnhost check` and `attnhost fuzz` as commands: reports on plugins that hang,
# crash, exit, print and leave processes or files, the limits, and the clean-up. That --jobs changes
# no result is shown on LOAD, ERR, LIFE-01 to LIFE-04 and, of the numeric checks, MEAN-02 alone.
# shellcheck disable=SC2016,SC2086
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

attnhost=$ATTNHOST_TEST_COMMAND
tool=$ATTNHOST_TEST_BUILDDIR/tests/host/check/suite_tool
plugins=$ATTNHOST_TEST_PLUGIN_DIR
built=$ATTNHOST_TEST_FIXTURE_DIR

umask 022
tap_folder folder

# The fixtures under a path of ours, by which their processes are found.
fixtures=$folder/fixtures
mkdir "$fixtures"
cp "$built"/bad_*.so "$fixtures" || exit 1
cp "$built/example_rows.so" "$folder" || exit 1

# left: processes that have to do with the fixtures.
left()
{
    echo "$fixtures" >"$folder/pattern" # not an argument: grep would find itself
    grep -laF -f "$folder/pattern" /proc/[0-9]*/cmdline 2>/dev/null
}

# says CODE NAME LINE... -- COMMAND...: the command ends with CODE, each LINE begins some line of
# what it says, and no process is left.
says()
{
    code=$1 name=$2
    shift 2
    : >"$folder/lines"
    while test "$1" != --; do
        printf '%s\n' "$1" >>"$folder/lines"
        shift
    done
    shift
    "$@" >"$folder/out" 2>"$folder/err" </dev/null
    got=$?
    {
        test $got -eq "$code" || echo "exit code $got, expected $code"
        while IFS= read -r line; do
            awk -v line="$line" 'index($0, line) == 1 { found = 1 } END { exit !found }' \
                "$folder/out" "$folder/err" || echo "no line begins with: $line"
        done <"$folder/lines"
        left
    } >"$folder/wrong"
    if test -s "$folder/wrong"; then
        tap_not_ok "$name" "$(cat "$folder/wrong" "$folder/out" "$folder/err")"
    else
        tap_ok "$name"
    fi
}

# said OK PATTERN NAME: what the last command said of the case whose id, and reason, ends so.
said()
{
    if grep -Eq "^$1 [0-9]+ - [a-z_]+/$2( |\$)" "$folder/out"; then
        tap_ok "$3"
    else
        tap_not_ok "$3" "$(cat "$folder/out")"
    fi
}

# only_fails NAME: no other case failed.
only_fails()
{
    others=$(grep '^not ok' "$folder/out" | grep -v -- "/$1")
    if test -z "$others"; then
        tap_ok "$1 alone fails"
    else
        tap_not_ok "$1 alone fails" "$others"
    fi
}

# ---- A good plugin -------------------------------------------------------------------------------

says 0 "a good plugin passes" "TAP version 13" "1..27" "ok 1 - bad_plugin/LOAD-02.opens" \
    -- "$tool" check "$fixtures/bad_nothing.so"
said ok 'CAPT-01\.needs_cuda # SKIP the backend is checked on the CPU;' "what cannot be is skipped"
said ok 'COMP-01\.needs_child # SKIP the backend is not a composite' "with its reason"
says 0 "the same in one process" "ok" -- "$tool" check --in-process "$fixtures/bad_nothing.so"
said ok 'ERR-03\.silent # SKIP cannot be seen in one process' "which does not see everything"
for plugin in cpu_native hybrid triton_like; do
    says 0 "$plugin passes" "ok 1 - $plugin/LOAD-02.opens" \
        -- "$attnhost" check --filter 'LOAD-*' --filter 'ERR-03.*' "$plugins/$plugin.so"
done
says 0 "a composite with its children" "ok" -- "$attnhost" check --filter 'LOAD-*' --filter \
    'CAPS-01.device' --with "$plugins/cpu_native.so" --option prefill=cpu_native \
    --option decode=cpu_native "$plugins/hybrid.so"
said ok 'CAPS-01\.device' "is asked about them"

# ---- Bad ones ------------------------------------------------------------------------------------

says 1 "exit() in query" "# CRASH: exit(0)" "# where: question 0" \
    -- "$tool" check "$fixtures/bad_query_exits.so"
said 'not ok' 'CAPS-01\.query/2' "is a crash of each case that asks"
said ok 'LIFE-04\.create' "and the rest is run"
says 1 "or nothing after the first" "# cut short" "1..8" \
    -- "$tool" check --fail-fast "$fixtures/bad_query_exits.so"
tap_try "of which there is one" test "$(grep -c '^not ok' "$folder/out")" -eq 1
says 0 "where nothing fails nothing is cut short" "1..27" \
    -- "$tool" check --fail-fast "$fixtures/bad_nothing.so"

says 0 "of many cases a few" "# a sample of the cases: --quick" "1..3" \
    -- "$attnhost" check --quick --filter 'INVAR-01.grid' "$folder/example_rows.so"
said ok 'INVAR-01\.grid/0' "the first"
said ok 'INVAR-01\.grid/[0-9][0-9]' "and others"
# One call in ten gives another bit, which is well within the bar.
late="$built/zoo.so --backend bits_late --filter MEAN-0[67]*"
says 0 "a forward that seldom gives other bits passes once" "ok" -- "$attnhost" check $late
says 1 "a forward that seldom gives other bits fails when it is repeated" "# FAIL: INVAR-02: repetition 10 of 12: lse, row " \
    "# numeric cases were run 12 times: --repeat" -- "$attnhost" check --repeat 12 $late
tap_try "with the values" grep -q 'head 0, element 0: got .* (0x.*), the first run .* (0x.*)' "$folder/out"
says 0 "what gives the same bits passes" "ok" \
    -- "$attnhost" check --repeat 1000 --filter 'MEAN-0[67]*/0' "$plugins/cpu_native.so"
says 0 "a linear layer with equal bits passes when it is repeated" "ok" \
    -- "$attnhost" check --repeat 12 --filter 'MEAN-18*/0' "$plugins/cpu_linear.so"
says 2 "not at all is no number of times" "attnhost check: --repeat '0': accepted 1..1000000" \
    -- "$attnhost" check --repeat 0 "$plugins/cpu_native.so"

says 1 "a segmentation fault in a forward" "# CRASH: signal 11 " "# where: before the forward" \
    -- "$tool" check "$fixtures/bad_forward_crashes.so"
only_fails CAPS-02.forward

start=$(date +%s)
says 1 "create hangs" "# TIMEOUT: no sign of life for 1 s" "# where: before create" \
    -- "$tool" check --inactivity 1 "$fixtures/bad_create_hangs.so"
took=$(($(date +%s) - start))
tap_try "within its limit, which is not the usual 30 s: $took s" test "$took" -lt 30
said 'not ok' 'LIFE-04\.create' "create is a timeout"
said ok 'CAPS-01\.query/2' "and the rest is run"

says 1 "the time for all" "# TIMEOUT: the time limit of all cases, 1 s, was reached" \
    "# cut short as the time limit was reached (--timeout); cases that are not listed were not run" \
    -- "$tool" check --timeout 1 "$fixtures/bad_create_hangs.so"
tap_try "ends it, with one result" test "$(grep -c '^# TIMEOUT' "$folder/out")" -eq 1
says 1 "the time for all, side by side" "# TIMEOUT: " "# cut short as the time limit was reached" \
    -- "$tool" check --jobs 2 --timeout 6 "$fixtures/bad_create_hangs.so"
tap_try "what other processes found is listed" test "$(grep -c '^ok.*CAPS-01\.query/[012]$' "$folder/out")" -eq 3
tap_try "a run that times out ends with one result" test "$(grep -c '^# TIMEOUT' "$folder/out")" -eq 1
says 1 "the constructor hangs" "not ok 1 - bad_constructor_hangs/LOAD-02.opens" "1..1" \
    -- "$tool" check --inactivity 0.5 "$fixtures/bad_constructor_hangs.so"

says 1 "query prints" "# FAIL: in " -- "$tool" check "$fixtures/bad_query_prints.so"
only_fails ERR-03.silent
asked="# FAIL: in the question for a device:"
around="--filter CAPS-01.query --filter ERR-03.*"
says 1 "query rounds upward" "$asked rounds upward, before: to nearest" \
    -- "$tool" check $around "$fixtures/bad_query_rounds.so"
only_fails ERR-03.fpu
says 1 "query changes the directory" "$asked working directory is /" \
    -- "$tool" check $around "$fixtures/bad_query_moves.so"
only_fails ERR-03.cwd
says 1 "query installs a handler" "$asked signal 10 has another handler" \
    -- "$tool" check $around "$fixtures/bad_query_catches.so"
only_fails ERR-03.signals
says 1 "query changes the locale" "$asked uselocale() was called" \
    -- "$tool" check $around "$fixtures/bad_query_translates.so"
only_fails ERR-03.locale
says 1 "query leaves a process" "# FAIL: in the end of the process: other processes are left" \
    -- "$tool" check "$fixtures/bad_query_forks.so"
only_fails ERR-03.ends

says 1 "a file that exports more" "# FAIL: exports 1 other symbols: bad_exports_this" \
    -- "$attnhost" check --filter 'LOAD-*' "$fixtures/bad_exports.so"
only_fails LOAD-01.exports
says 1 "a file that leaves a symbol to chance" "# FAIL: zlibVersion is in none of the libraries" \
    -- "$attnhost" check --filter 'LOAD-*' "$fixtures/bad_closure.so"
only_fails LOAD-02.closure
says 1 "a constructor that opens a file" "# FAIL: when opened, it left an open file" \
    -- "$attnhost" check --filter 'LOAD-*' "$fixtures/bad_constructor_opens.so"
only_fails LOAD-04.constructors
says 0 "a file that needs the driver" "# WARN: needs libcuda.so.1" \
    -- env LD_LIBRARY_PATH="$built" "$attnhost" check --filter 'LOAD-*' "$fixtures/bad_driver.so"
"$attnhost" check --filter 'LOAD-*' "$fixtures/bad_stack.so" >"$folder/out" 2>"$folder/err"
if test $? -eq 3; then
    tap_skip "a file with an executable stack" "this system does not open it: $(cat "$folder/err")"
else
    said 'not ok' 'LOAD-08\.text' "a file with an executable stack"
    only_fails LOAD-08.text
fi

# ---- The end of the parent -----------------------------------------------------------------------

# begun SIGNAL COMMAND...: the command gets the signal as soon as it has printed its first result to $folder/out.
begun()
{
    signal=$1
    shift
    : >"$folder/process"
    (
        until grep -q '^ok 1 ' "$folder/out"; do
            ! test -s "$folder/process" || kill -0 "$(cat "$folder/process")" || exit
            sleep 0.1
        done
        kill -s "$signal" "$(cat "$folder/process")"
    ) 2>/dev/null &
    sh -c 'echo $$ >"$0" && exec "$@"' "$folder/process" "$@"
}

says 130 "SIGINT" "Bail out! interrupted by signal 2" "ok 1 - bad_plugin/LOAD-02.opens" \
    -- begun INT "$tool" check "$fixtures/bad_create_hangs.so"
says 143 "SIGTERM" "Bail out! interrupted by signal 15" \
    -- begun TERM "$tool" check "$fixtures/bad_create_hangs.so"
begun KILL "$tool" check "$fixtures/bad_create_hangs.so" >"$folder/out" 2>&1
tries=0
while test -n "$(left)" && test $tries -lt 300; do
    tries=$((tries + 1))
    sleep 0.1
done
tap_try "SIGKILL leaves no process" test -z "$(left)"

says 143 "SIGTERM, side by side" "Bail out! interrupted by signal 15" \
    -- begun TERM "$tool" check --jobs 3 "$fixtures/bad_create_hangs.so"

# ---- Side by side --------------------------------------------------------------------------------

"$tool" check --jobs 2 "$fixtures/bad_create_hangs.so" >"$folder/out" 2>/dev/null &
process=$!
tries=0
until grep -q 'CAPS-01\.query/2' "$folder/out" || test $tries -ge 1000; do
    tries=$((tries + 1))
    sleep 0.1
done
kill -s KILL $process
wait $process 2>/dev/null
tap_try "results are written as they come" grep -q '^ok.*CAPS-01\.query/2$' "$folder/out"

# report JOBS NAME: the cases and their outcomes, in order; not how long they took, nor what a slow
# machine says on the way. Of the numeric checks one: each of its cases that crashes costs a
# process.
report()
{
    "$attnhost" check --jobs "$1" --filter 'LOAD-*' --filter 'MEAN-02.*' --filter 'ERR-*' \
        --filter 'LIFE-0[1-4]*' --format json "$fixtures/$2.so" 2>&1 |
        grep -vE '"(seconds|started)":|^attnhost: checking, ' | sed 's/ (and [0-9]* more times)//' >"$folder/jobs$1"
}
for plugin in bad_query_prints bad_forward_crashes bad_query_rounds; do
    report 1 $plugin
    report 3 $plugin
    tap_try "$plugin: three processes find what one finds" cmp "$folder/jobs1" "$folder/jobs3"
    tap_try "$plugin: something was found" grep -q '"code":.*"\(FAIL\|CRASH\)"' "$folder/jobs3"
done
says 2 "no processes" "attnhost check: --jobs '0': accepted 1..64" -- "$attnhost" check --jobs 0 x.so

# ---- Crashes of one's own, and others' -----------------------------------------------------------

SUITE_TOOL_ODD=1
export SUITE_TOOL_ODD
says 1 "a crash that another case caused is not counted as the case's own" \
    "# CRASH: signal 6 (Aborted); run alone, it is PASS" \
    -- "$tool" check --filter 'ODD-02.*' "$fixtures/bad_nothing.so"
said ok 'ODD-02\.inherits/0' "the one before it passed"
said ok 'ODD-02\.inherits/2' "the one after it too"
says 0 "notes are signs of life" "ok 1 - bad/ODD-03.slow" \
    -- "$tool" check --inactivity 1 --filter 'ODD-03.*' "$fixtures/bad_nothing.so"

# ---- A device ------------------------------------------------------------------------------------

# on_fake COMMAND...: with the fake CUDA driver in the place of the real one.
on_fake()
{
    env LD_LIBRARY_PATH="$built" ATTNHOST_LIBCUDA="$built/libcuda.so.1" "$@"
}
says 1 "a lost device" "# DEVICE_LOST: the device does not answer" \
    -- on_fake "$tool" check --device cuda --filter 'ODD-05.*' "$fixtures/bad_nothing.so"
said ok 'ODD-05\.loses/2' "the cases after it have one again"
says 77 "what the fake cannot compute" \
    "ok 1 - bad/ODD-06.computes # SKIP the CUDA driver is the tests'" \
    -- on_fake "$tool" check --device cuda --filter 'ODD-06.*' "$fixtures/bad_nothing.so"
says 0 "unless its kernels are there" "ok 1 - bad/ODD-06.computes" \
    -- on_fake env ATTNHOST_FAKE_KERNELS="other bad" \
    "$tool" check --device cuda:0 --filter 'ODD-06.*' "$fixtures/bad_nothing.so"
says 0 "processes that the device has no memory for leave their cases to the first one" \
    "ok 1 - bad/ODD-06.computes" \
    -- on_fake env ATTNHOST_FAKE_KERNELS=bad ATTNHOST_FAKE_FULL=1 \
    "$tool" check --jobs 2 --device cuda:0 --filter 'ODD-06.*' "$fixtures/bad_nothing.so"
says 77 "a missing device" "ok 1 - bad/CAPS-01.device # SKIP cuda:7: " \
    -- on_fake "$tool" check --device cuda:7 --filter 'CAPS-01.device' "$fixtures/bad_nothing.so"

# ---- Formats -------------------------------------------------------------------------------------

python=${PYTHON3-no}
odd="--filter ODD-01.*"
says 1 "all codes" 'ok 1 - bad/ODD-01.codes/0' 'not ok 2 - bad/ODD-01.codes/1' \
    '# FAIL: got <1> & "2", accepted 3' '# FAIL: seed 5209727687529087548' \
    '# CRASH: signal 6 (Aborted)' \
    'ok 5 - bad/ODD-01.codes/4 # SKIP declared # unsupported' '# WARN: slow' \
    '# FAIL: bytes ????? that no format holds' '# FAIL: the check was skipped without a reason' \
    -- "$tool" check $odd "$fixtures/bad_nothing.so"

# reports COUNTS NAME COMMAND...: one run in each format, to a file. Each is valid, they say the
# same, and these are the counts.
reports()
{
    counts=$1 name=$2
    shift 2
    for format in tap junit json markdown; do
        "$@" --format $format --output "$folder/report.$format" >"$folder/out" 2>"$folder/err"
        echo "$?" >"$folder/code.$format"
    done
    tap_try "$name: the exit code is of the run, not of the format" \
        cmp "$folder/code.tap" "$folder/code.junit"
    tap_try "$name: stdout is left alone" test ! -s "$folder/out"
    if test "$python" = no; then
        tap_skip "$name: reports" "no python3"
        return
    fi
    got=$("$python" "$top/tests/independent/check_reports.py" "$folder/report.tap" \
        "$folder/report.junit" "$folder/report.json" "$folder/report.markdown" 2>&1)
    if test "$got" = "$counts"; then
        tap_ok "$name: valid JUnit and JSON, counts equal in all formats"
    else
        tap_not_ok "$name: valid JUnit and JSON, counts equal in all formats" "$got"
    fi
}

plain="env -u SUITE_TOOL_ODD"
reports "PASS 2 FAIL 3 CRASH 1 SKIP 1 WARN 1" "all codes" \
    "$tool" check $odd "$fixtures/bad_nothing.so"
reports "PASS 21 CRASH 4 SKIP 2" "query exits" $plain "$tool" check "$fixtures/bad_query_exits.so"
reports "PASS 24 CRASH 1 SKIP 2" "a forward crashes" \
    $plain "$tool" check "$fixtures/bad_forward_crashes.so"
reports "PASS 23 TIMEOUT 2 SKIP 2" "create hangs" \
    $plain "$tool" check --inactivity 0.5 "$fixtures/bad_create_hangs.so"
reports "PASS 24 FAIL 1 SKIP 2" "query prints" $plain "$tool" check "$fixtures/bad_query_prints.so"
echo 'ODD-01.codes/[12] bad_plugin 1.* 9999-12-31 <known> & "borne" # so' >"$folder/waivers"
reports "PASS 2 FAIL 2 SKIP 1 WARN 1 WAIVED 2" "waived ones" \
    "$tool" check $odd --waivers "$folder/waivers" "$fixtures/bad_nothing.so"

# Before a plugin has given its name, its file's stands for it: it must not pass for a directive of
# TAP or break a line, and no bytes that a format cannot hold may get through.
strange=$folder/$(printf 'a & <"\303\251\377\357\277\277>')
mkdir "$strange"
strange=$strange/$(printf 'x # SKIP &\n<"\303\251\377\357\277\277\001>.so')
cp "$fixtures/bad_constructor_hangs.so" "$strange"
reports "TIMEOUT 1" "a file with a strange name" \
    "$tool" check --inactivity 0.5 --filter "*" --filter "$(printf '\377')" "$strange"
long=$folder/$(printf '%0200d' 0).so
cp "$fixtures/bad_constructor_hangs.so" "$long"
reports "TIMEOUT 1" "a file with a long name" "$tool" check --inactivity 0.5 "$long"
rm "$strange" "$long"

# volatile: JSON without what differs from run to run.
volatile()
{
    grep -v -e '"seconds":' -e '"started":' "$1"
}
for run in 1 2 3; do
    says 1 "JSON, run $run" -- "$tool" check $odd --seed $((run / 2)) --format json \
        --output "$folder/$run.json" "$fixtures/bad_nothing.so"
    volatile "$folder/$run.json" >"$folder/$run.stable"
    "$tool" check --seed $((run / 2)) --list "$fixtures/bad_nothing.so" >"$folder/$run.list"
done
tap_try "another seed gives other cases" sh -c '! cmp -s "$0/1.list" "$0/2.list"' "$folder"
tap_try "equal seeds give equal lists" cmp "$folder/2.list" "$folder/3.list"
tap_try "equal seeds give equal JSON" cmp "$folder/2.stable" "$folder/3.stable"
tap_try "another seed does not" sh -c '! cmp -s "$0/1.stable" "$0/2.stable"' "$folder"

# A digest identifies the set of cases: of the ids, the seeds, and the grid that query decides.
# It does not depend on where the file lies, on the locale, or on the processor's instructions.
mkdir "$folder/elsewhere"
cp "$plugins/cpu_native.so" "$folder/elsewhere/renamed.so"
digests()
{
    grep '^# ' "$1"
}
"$attnhost" check --list --seed 7 "$plugins/cpu_native.so" >"$folder/here"
(cd / && LC_ALL=C.UTF-8 TZ=Asia/Tokyo "$attnhost" check --list --seed 7 --option isa=generic \
    "$folder/elsewhere/renamed.so") >"$folder/there"
tap_try "equal seeds give equal cases elsewhere" cmp "$folder/here" "$folder/there"
tap_try "the list has two digests" test "$(digests "$folder/here" | grep -c ', SHA-256 [0-9a-f]\{64\}$')" = 2
"$attnhost" check --list --seed 8 "$plugins/cpu_native.so" >"$folder/there"
digests "$folder/here" >"$folder/here.digests"
digests "$folder/there" >"$folder/there.digests"
tap_try "another seed has others" test "$(cat "$folder/here.digests" "$folder/there.digests" |
    sed 's/.*SHA-256 //' | sort -u | wc -l)" = 4

# The reference has the table that the suite prints, and of stand-ins those that hybrid's own program has.
reference=$ATTNHOST_TEST_SRCDIR/docs/CONFORMANCE.md
"$attnhost" check --list --format markdown >"$folder/checks.md"
tap_try "the suite prints all its checks" test "$(wc -l <"$folder/checks.md")" -gt 120
tap_try "CONFORMANCE.md has what check --list --format markdown prints" \
    sh -c 'sed -n "/^| rule | checks/,/^$/{/^|/p;}" "$1" | cmp - "$2"' - "$reference" "$folder/checks.md"
tap_try "the reference has at most 300 lines" test "$(wc -l <"$reference")" -le 300
"$ATTNHOST_TEST_BUILDDIR/plugins/hybrid/tests/hybrid_check" check --list "$plugins/hybrid.so" |
    sed -n 's|^[a-z_]*/\([A-Z]*-[0-9]*\.[a-z_]*\).*|\1|p' | sort -u >"$folder/checks"
sed -n 's/^| `\([A-Z]*-[0-9]*\.[a-z_]*\)` |.*/\1/p' "$reference" | sort -u >"$folder/named"
tap_try "CONFORMANCE.md names checks of stand-ins" test -s "$folder/named"
tap_try "the reference names only checks that exist" test -z "$(comm -23 "$folder/named" "$folder/checks")"

some="--filter KV-08.* --filter LOAD-01.* --seed 7"
"$attnhost" check $some --list "$plugins/cpu_native.so" | sed -n 's/^# .*SHA-256 //p' | sort \
    >"$folder/listed"
"$attnhost" check $some --format json "$plugins/cpu_native.so" |
    sed -n 's/.*"\(grid_\)\{0,1\}sha256":[^"]*"\([0-9a-f]*\)".*/\2/p' | sed 1d | sort >"$folder/run"
tap_try "a run has the digests of its list" cmp "$folder/listed" "$folder/run"

says 0 "Markdown" '# bad_plugin 1.2.3' '| head_dim | 1, 16, 32,' '| PASS | 3 |' \
    -- "$tool" check --filter CAPS-01.query --format markdown "$fixtures/bad_nothing.so"

# ---- Waivers and profiles ------------------------------------------------------------------------

cat >"$folder/waivers" <<EOF
# known
ODD-01.codes/1 bad_plugin 1.* 9999-12-31 issue #12
ODD-01.codes/2 bad_plugin * 9999-12-31 https://example.org/13
bad/ODD-01.codes/[67] bad_plugin 1.2.3 9999-12-31 still open
ODD-01.codes/0 other_plugin 1.* 2000-01-01 of another plugin
EOF
says 0 "waived" \
    "not ok 2 - bad/ODD-01.codes/1 # TODO waived until 9999-12-31: issue #12; it is FAIL" \
    -- "$tool" check $odd --waivers "$folder/waivers" "$fixtures/bad_nothing.so"
echo "ODD-01.codes/1 bad_plugin 2.* 9999-12-31 fixed in 2" >"$folder/waivers"
says 1 "another version is not waived" "not ok 2 - bad/ODD-01.codes/1" \
    -- "$tool" check $odd --waivers "$folder/waivers" "$fixtures/bad_nothing.so"
says 1 "a waiver that waives nothing" \
    "# FAIL: $folder/waivers:1: ODD-01.codes/1 waives nothing that fails in version 1.2.3" \
    -- env -u SUITE_TOOL_ODD "$tool" check --waivers "$folder/waivers" "$fixtures/bad_nothing.so"
echo "ODD-01.codes/[1267] bad_plugin * 2000-01-01 forgotten" >"$folder/waivers"
says 1 "a waiver that has expired" "# FAIL: got <1>" \
    "# FAIL: $folder/waivers:1: ODD-01.codes/[1267] expired on 2000-01-01" \
    -- "$tool" check $odd --waivers "$folder/waivers" "$fixtures/bad_nothing.so"
printf '\nODD-01.codes/1 bad_plugin * 2000-1-01 malformed\n' >"$folder/waivers"
says 2 "a malformed waiver" \
    "attnhost check: $folder/waivers:2: expiry '2000-1-01': accepted YYYY-MM-DD" \
    -- "$tool" check --waivers "$folder/waivers" "$fixtures/bad_nothing.so"

cat >"$folder/profile" <<EOF
# comment
LOAD-*
CAPS-02.* # runs
CAPT-01.needs_cuda or-skip # where there is a GPU
EOF
says 0 "a profile that is met" "ok " \
    -- env -u SUITE_TOOL_ODD "$tool" check --profile "$folder/profile" "$fixtures/bad_nothing.so"
said ok 'PROFILE\.met' "is a result"
echo "COMP-01.*" >>"$folder/profile"
says 1 "what is skipped does not meet a profile" \
    "# FAIL: $folder/profile:5: bad/COMP-01.needs_child is SKIP, accepted: PASS" \
    -- env -u SUITE_TOOL_ODD "$tool" check --profile "$folder/profile" "$fixtures/bad_nothing.so"
echo "CAPS-99.*" >"$folder/profile"
says 1 "what was not run neither" "# FAIL: $folder/profile:1: no case of 'CAPS-99.*' was run" \
    -- env -u SUITE_TOOL_ODD "$tool" check --profile "$folder/profile" "$fixtures/bad_nothing.so"
says 2 "a profile that is not there" "attnhost check: " \
    -- "$tool" check --profile nonesuch "$fixtures/bad_nothing.so"

# Without one a run of all cases is judged by the minimum.
minimum="env -u SUITE_TOOL_ODD SUITE_TOOL_MINIMUM=$folder/profile"
says 1 "the minimum is asked of every plugin" \
    "# FAIL: $folder/profile:1: no case of 'CAPS-99.*' was run" \
    "# judged by profile $folder/profile" -- $minimum "$tool" check "$fixtures/bad_nothing.so"
echo "CAPS-02.*" >"$folder/profile"
says 0 "a minimum that is met" "# judged by profile $folder/profile" \
    -- $minimum "$tool" check "$fixtures/bad_nothing.so"
said ok 'PROFILE\.met' "which is a result"
reports "PASS 26 SKIP 2" "judged by the minimum" $minimum "$tool" check "$fixtures/bad_nothing.so"
echo "CAPS-99.*" >"$folder/profile"
for left_out in '--filter CAPS-02.*' --in-process; do
    says 0 "with $left_out nothing is judged" "ok " \
        -- $minimum "$tool" check $left_out "$fixtures/bad_nothing.so"
    tap_try "with $left_out the report mentions no profile" sh -c '! grep -e PROFILE -e judged "$0/out"' "$folder"
done
says 0 "no device, no judgement" \
    "ok 26 - bad/PROFILE.met # SKIP its requirement is missing here: cuda:7: " \
    -- on_fake $minimum "$tool" check --device cuda:7 "$fixtures/bad_nothing.so"
says 1 "a named profile is judged without a device" \
    "# FAIL: $folder/profile:1: no case of 'CAPS-99.*' was run" -- on_fake $minimum \
    "$tool" check --profile "$folder/profile" --device cuda:7 "$fixtures/bad_nothing.so"

# What nothing can be run of: no case fails, and it is not good.
cp "$built/bad_layout.so" "$fixtures" # if it was built later than the others
says 1 "a plugin that the suite can make no case for" \
    "# judged by profile " -- "$attnhost" check "$fixtures/bad_layout.so"
tap_try "for that alone" test "$(grep '^not ok' "$folder/out" | sed 's/.* //')" = \
    example_rows/PROFILE.met
tap_try "the message names the line of the profile" grep -q "every case of 'LIFE-04.\*' was skipped" "$folder/out"
says 0 "no profile is required where cases are chosen" "1.." \
    -- "$attnhost" check --filter 'LIFE-*' "$fixtures/bad_layout.so"

# ---- Fuzz and replay -----------------------------------------------------------------------------

says 1 "fuzz finds seeds that fail" "bad/ODD-04.chunk seed " \
    "  attnhost check --replay $folder/fuzz-" \
    -- "$tool" fuzz --time 5 --output "$folder" "$fixtures/bad_nothing.so"
replay=$(find "$folder" -name 'fuzz-bad-ODD-04.chunk-*.replay' | head -1)
if grep -q '^without = 4294967263$' "$replay"; then
    tap_ok "all but one culprit is left out"
else
    tap_not_ok "all but one culprit is left out" "$(cat "$replay")"
fi
says 1 "the file is replayed" "not ok 3 - bad/ODD-04.chunk" "1..3" \
    -- "$tool" check --replay "$replay"
sed -i 's/^without = .*/without = 4294967295/' "$replay"
says 0 "exactly" "ok 3 - bad/ODD-04.chunk" -- "$tool" check --replay "$replay"
sed 's/^plugin = .*/plugin = nowhere.so/' "$replay" >"$folder/moved.replay"
says 2 "a replay file whose plugin is elsewhere" \
    "attnhost check: $folder/moved.replay: plugin = nowhere.so: No such file or directory; accepted: a plugin's file, there or on" \
    -- "$tool" check --replay "$folder/moved.replay"
sed -i 's/^without = .*/without = many/' "$replay"
says 2 "a malformed replay file" "attnhost check: $replay:" -- "$tool" check --replay "$replay"
says 77 "nothing to fuzz" "attnhost fuzz: no check of this plugin can be fuzzed here" \
    -- env -u SUITE_TOOL_ODD "$tool" fuzz --time 1 "$fixtures/bad_nothing.so"
unset SUITE_TOOL_ODD

# A plugin that forgets the soft cap, with the checks that everybody runs: what is found is made as
# small as it goes, a plain problem with a cap; replayed from its file it fails again, and passes in
# a plugin that has the cap.
mkdir "$folder/found"
says 1 "fuzz finds what a plugin computes wrong" "example_rows/INVAR-01.random seed " \
    "  attnhost check --replay $folder/found/fuzz-" \
    -- "$attnhost" fuzz --seed 3 --time 1 --output "$folder/found" "$fixtures/bad_cap.so"
replay=$(find "$folder/found" -name 'fuzz-example_rows-INVAR-01.random-*.replay' | head -1)
says 1 "it is replayed from its file" "not ok 3 - example_rows/INVAR-01.random" "1..3" \
    -- "$attnhost" check --replay "$replay"
plain_but_cap='; decoder extend, q [a-z0-9]* out [a-z0-9]* lse, heads 4/2, dim 64/64, '
plain_but_cap=$plain_but_cap'kv.nhd/1 [a-z0-9]* unscaled page 16 contiguous, k, v saved, '
plain_but_cap=$plain_but_cap'window -1, 0, cap [0-9]*, prefix+new [0-9+ ]*; \([a-z_]* \[[0-9, ]*\] strides \[[0-9, ]*\]; \)*rules:'
tap_try "all but the cap was left out" grep -q -- "$plain_but_cap" "$folder/out"
says 0 "a plugin that has the cap passes it" "ok 3 - example_rows/INVAR-01.random" "1..3" \
    -- "$attnhost" check --replay "$replay" "$folder/example_rows.so"
sed -i 's/^without = .*/without = 4294967295/' "$replay"
says 0 "the replayed case passes without the cap" "ok 3 - example_rows/INVAR-01.random" \
    -- "$attnhost" check --replay "$replay"

# ---- Wrong command lines -------------------------------------------------------------------------

says 3 "a backend's name for a file" "attnhost check: cpu_native: No such file" \
    "attnhost check: did you mean $plugins/cpu_native.so?" -- "$attnhost" check cpu_native
says 3 "no such file" "attnhost check: $fixtures/none.so: No such file" \
    "Bail out! $fixtures/none.so" \
    -- "$attnhost" check "$fixtures/none.so"
says 2 "no plugin is named" "attnhost check: 0 names given: accepted one plugin file" \
    -- "$attnhost" check
says 2 "no such backend" \
    "attnhost check: --backend none: $fixtures/bad_nothing.so has none of that" \
    -- "$attnhost" check --backend none "$fixtures/bad_nothing.so"
says 2 "no such device" "attnhost check: --device 'gpu': accepted cpu, cuda, cuda:N" \
    -- "$attnhost" check --device gpu "$fixtures/bad_nothing.so"
says 2 "no such format" "attnhost check: --format 'xml': accepted tap, junit, json, markdown" \
    -- "$attnhost" check --format xml "$fixtures/bad_nothing.so"
says 2 "a filter that means nothing" "attnhost check: --filter matches no case" \
    -- "$attnhost" check --filter 'LAOD-*' "$fixtures/bad_nothing.so"
says 2 "an option that does not exist" "attnhost check: --option: backend.bad.x is not an option" \
    -- "$attnhost" check --option x=1 "$fixtures/bad_nothing.so"
says 2 "an option without a value" "attnhost check: --option 'x': accepted KEY=VALUE" \
    -- "$attnhost" check --option x "$fixtures/bad_nothing.so"
says 2 "an option that a child does not have" \
    "attnhost check: --option: backend.mine.x is not an option of backend type cpu_native" \
    -- "$attnhost" check --with "$plugins/cpu_native.so" --option mine.type=cpu_native \
    --option mine.x=1 "$plugins/hybrid.so"
says 2 "an option of a child that there is not" \
    "attnhost check: --option: backend.none.type = 'none' is not a known backend type" \
    -- "$attnhost" check --with "$plugins/cpu_native.so" --option none.isa=generic \
    "$plugins/hybrid.so"
says 0 "options of children" "ok 2 - hybrid_phase/COMP-06.equal/1" \
    -- "$attnhost" check --with "$plugins/cpu_native.so" --backend hybrid_phase \
    --filter 'COMP-06.equal*' --option mine.type=cpu_native --option mine.isa=generic \
    --option prefill=mine --option stand_in_1.isa=generic "$plugins/hybrid.so"
says 2 "a report that cannot be written" "attnhost check: --output /none/x: " \
    -- "$attnhost" check --output /none/x "$fixtures/bad_nothing.so"
says 77 "nothing that could be checked" "ok 1 - bad/COMP-01.needs_child # SKIP" \
    -- "$tool" check --filter 'COMP-01.*' "$fixtures/bad_nothing.so"
tap_end
