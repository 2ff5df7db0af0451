#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# trust.sh: what a plugin that misbehaves can do to the command: it is named, and no run looks good
# because of it. tests/fixtures/villain.c does what VILLAIN says.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

command=$ATTNHOST_TEST_COMMAND
plugins=$ATTNHOST_TEST_PLUGIN_DIR
fixtures=$ATTNHOST_TEST_FIXTURE_DIR
villain=$fixtures/villain.so

umask 022
tap_folder folder
mkdir "$folder/work"
mkfifo "$folder/said"
cd "$folder/work" || exit 1
ulimit -c 0
XDG_CACHE_HOME=/dev/null VILLAIN_SLY=yes # nothing is remembered of scans, in which it behaves
export XDG_CACHE_HOME VILLAIN_SLY

cat >run.ini <<END
[plugins]
path = $villain
path = $plugins/cpu_native.so
[model]
num_layers = 2
num_q_heads = 4
num_kv_heads = 2
head_dim = 16
max_context_len = 512
[attention]
attention_backend = villain
[kv_cache]
page_size = 4
[workload]
trace = trace.jsonl
num_threads = 2
[verify]
rate = 1
END
sed 's/^attention_backend = .*/attention_backend = cpu_native/' run.ini >bystander.ini
cat >trace.jsonl <<END
{"timestamp": 0, "input_length": 20, "output_length": 4, "hash_ids": [1]}
{"timestamp": 5, "input_length": 33, "output_length": 3, "hash_ids": [2]}
END

# ends CODE NAME DEED TEXT... -- COMMAND...: with VILLAIN=DEED the command ends with CODE and says each
# TEXT on stderr; "!TEXT" must be absent. What it printed stays in ../out and ../err.
ends()
{
    expected=$1 name=$2 villainy=$3
    shift 3
    : >../texts
    while test "$1" != --; do
        printf '%s\n' "$1" >>../texts
        shift
    done
    shift
    cat ../said >../err & # to the end of the last who may write to it, a child that was forked, too
    (VILLAIN=$villainy exec "$@") >../out 2>../said </dev/null
    got=$?
    wait $!
    {
        test $got -eq "$expected" || echo "exit code $got, expected $expected"
        while IFS= read -r text; do
            case $text in
            !*) ! grep -qF -e "${text#!}" ../err || echo "stderr has: ${text#!}" ;;
            *) grep -qF -e "$text" ../err || echo "stderr lacks: $text" ;;
            esac
        done <../texts
    } >../wrong
    if test -s ../wrong; then
        tap_not_ok "$name" "$(cat ../wrong ../err)"
    else
        tap_ok "$name"
    fi
}

run() { ends "$@" -- "$command" run run.ini; }

# ---- exit() --------------------------------------------------------------------------------------

run 0 "the villain behaves" nowhere:exit
for where in dlopen:dlopen entry:attn_plugin_entry describe:describe query:query \
    create:create metadata:metadata_create init:init_forward_metadata \
    "forward:forward_extend of layer 0" "task:forward_extend of layer 0" destroy:destroy; do
    call=${where%%:*} said=${where#*:}
    case $call in
    dlopen | entry | describe) said="exit() in $said ($villain)" ;;
    *) said="exit() in villain: $said ($villain)" ;;
    esac
    run 5 "exit in $call ends with 5" "$call:exit" "attnhost run: the process was ended by $said"
done
run 5 "_exit ends with 5" forward:exit_at_once "_exit() in villain: forward_extend of layer 0"
run 5 "_exit that dlsym finds ends with 5" forward:exit_by_name "_exit() in villain: forward_extend of layer 0"
run 5 "the system call that exits ends with 5" forward:exit_by_hand "syscall(SYS_exit_group) in villain: forward_extend of layer 0"
run 5 "quick_exit ends with 5" forward:quick_exit "quick_exit() in villain: forward_extend"
run 5 "exit in a thread of the plugin's ends with 5" forward:exit_in_thread "exit() in $villain"
run 5 "another program in its place ends with 5" forward:exec "execl() in villain: forward_extend of layer 0"
for call in query forward; do
    run 5 "a report that cannot be written fails the run: $call closes all files" $call:close
done
for where in query:query create:create forward:forward_extend task:forward_extend; do
    call=${where%%:*}
    run 0 "a child that $call forks does not come back" "$call:fork" \
        "a process that was forked in villain: ${where#*:}" "returned from it, and was ended"
    tap_try "there is one report: $call" test "$(grep -c '^digest' ../out)" -eq 1
done
for call in query forward; do
    run 0 "a child of _Fork in $call does not come back" $call:fork_bare "a process that was forked in villain: $call" \
        "returned from it, and was ended"
    tap_try "there is one report: $call" test "$(grep -c '^digest' ../out)" -eq 1
done
ends 0 "a child whose parent is gone does not come back" query:fork "returned from it, and was ended" -- \
    env LD_PRELOAD="$fixtures/orphaned.so" "$command" run run.ini
tap_try "there is one report at the end" test "$(grep -c '^digest' ../out)" -eq 1
for call in forward task; do
    run 5 "the end of the thread in $call ends with 5" $call:end_thread \
        "pthread_exit() in villain: forward_extend of layer 0"
    run 5 "thrd_exit in $call ends with 5" $call:end_thread_c11 "thrd_exit() in villain: forward_extend of layer 0"
    run 5 "pthread_cancel in $call ends with 5" $call:cancel "pthread_cancel() in villain: forward_extend of layer 0"
    run 5 "the system call that ends the thread in $call ends with 5" $call:end_thread_by_hand "syscall(SYS_exit) in villain: forward_extend of layer 0"
done
# System calls that the kernel hands over. A sanitizer makes such calls all the time.
oldest=$(printf '5.11\n%s\n' "$(uname -r)" | sort -V | head -n 1)
if test "$(uname -m)" != x86_64 || test "$oldest" != 5.11; then
    tap_skip "system calls without the C library" "it takes Linux 5.11 on x86-64"
elif grep -q -e __asan_init -e __tsan_init "$command"; then
    tap_skip "system calls without the C library" "a sanitizer makes such calls itself"
else
    for where in describe:describe query:query "forward:forward_extend of layer 0" "task:forward_extend of layer 0"; do
        call=${where%%:*} said=${where#*:}
        run 5 "the end of the process in $call without the C library" $call:exit_inline \
            "a system call that ends the process in " "$said"
        run 5 "the end of the thread in $call without the C library" $call:end_thread_inline \
            "a system call that ends a thread in " "$said"
    done
    for call in forward task; do
        run 0 "another system call without the C library is made in a $call" $call:call_inline
    done
    run 0 "a check of alignment that is left on is named, and put back" describe:check_alignment \
        "describe ($villain): defect of the plugin (ERR-03): the processor's check of alignment" "it was put back"
fi
for other in list explain; do
    ends 5 "$other does not hang when its thread ends" describe:end_thread_c11 "thrd_exit() in" -- \
        "$command" $other bystander.ini
done
run 137 "kill(getpid(), SIGKILL) is named" forward:kill "ended by SIGKILL in villain: forward_extend of layer 0"
run 138 "and raise(SIGUSR1)" query:raise "ended by SIGUSR1 in villain: query ($villain)"
run 137 "a system call that kills fails the run" forward:kill_by_hand
run 0 "an exit handler that calls _exit changes nothing of a good run" create:exit_later
ends 5 "nor of a failed one" "forward:fail_exit_later" -- "$command" run run.ini
for deed in entry:exit describe:exit; do
    ends 5 "a bystander's $deed ends run with 5" $deed "exit() in" -- "$command" run bystander.ini
    for other in list explain inspect bench; do
        case $other in
        inspect) set -- inspect cpu_native --set "plugins.path=$villain" ;;
        bench) set -- bench --backend cpu_native --set "plugins.path=$villain" --shape kv_len=16 ;;
        *) set -- $other bystander.ini ;;
        esac
        test $deed = entry:exit || continue
        ends 5 "and $other" $deed "attnhost $other: the process was ended by exit() in" -- \
            "$command" "$@"
    done
done

# ---- Crashes -------------------------------------------------------------------------------------

for where in entry:attn_plugin_entry query:query create:create destroy:destroy \
    "forward:forward_extend of layer 0" "task:forward_extend of layer 0"; do
    call=${where%%:*} said=${where#*:}
    run 139 "a crash in $call is named" "$call:segv" "ended by SIGSEGV in" "$said ($villain)"
    run 134 "and abort" "$call:abort" "ended by SIGABRT in" "$said ($villain)"
    run 139 "and a stack that overflows" "$call:overflow" "ended by SIGSEGV in" "$said ($villain)"
done

for where in query:query "forward:forward_extend of layer 0" "task:forward_extend of layer 0"; do
    call=${where%%:*} said=${where#*:}
    run 5 "munmap of the stack in $call ends with 5" $call:unmap_stack \
        "the process was ended by munmap() of the stack it runs on in villain: $said"
    run 139 "and by a system call it is named" $call:unmap_stack_by_hand "ended by SIGSEGV in villain: $said"
done

run 134 "abort in a thread of the plugin's names its file" forward:abort_in_thread "ended by SIGABRT in $villain"

# ---- Scans ---------------------------------------------------------------------------------------

unset VILLAIN_SLY
for deed in dlopen:exit entry:exit_at_once describe:quick_exit query:exit entry:segv query:abort \
    describe:overflow entry:data entry:hang entry:kill query:kill_by_hand \
    describe:garbage; do
    others="run list"
    test $deed != entry:segv || others="run list explain inspect bench"
    for other in $others; do
        case $other in
        inspect) set -- inspect cpu_native ;;
        bench) set -- bench --backend cpu_native --shape kv_len=16 --seconds 0.1 ;;
        *) set -- $other bystander.ini ;;
        esac
        ends 0 "$other survives a bystander's $deed" $deed -- \
            "$command" "$@" --set "plugins.path=$villain" --set plugins.scan_seconds=0.5
        case $other in
        run | bench) report=../err ;;
        list) report=../out ;;
        *) continue ;;
        esac
        tap_try "$other reports a bystander's $deed" grep -F -e "$villain: opened in a process of its own, it" $report
    done
done
for way in "kill:SIGKILL in attn_plugin_entry ($villain)" "kill_by_hand:SIGKILL"; do
    ends 3 "a scanner that is killed says how: ${way%%:*}" "entry:${way%%:*}" \
        "it ended the process by ${way#*:}" -- "$command" inspect "$villain"
done
ends 3 "inspect FILE keeps to plugins.scan_seconds" entry:hang "it did not end within 0.5 s" -- \
    "$command" inspect "$villain" --set plugins.scan_seconds=0.5
ends 0 "a scan does not make the home" nowhere:exit -- env -u XDG_CACHE_HOME HOME="$folder/no_home" \
    "$command" list bystander.ini
tap_try "there is no home after a scan" test ! -e ../no_home
ends 3 "inspect of such a file says it" entry:segv "SIGSEGV in attn_plugin_entry" -- \
    "$command" inspect "$villain"
ends 2 "and so does a run that needs it" entry:segv "SIGSEGV in attn_plugin_entry" -- \
    "$command" run run.ini

mkdir ../corrupt
size=$(wc -c <"$villain")
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    cp "$villain" ../corrupt/$i.so
    for j in 1 2 3 4 5 6 7 8; do
        printf '\377' | dd of=../corrupt/$i.so bs=1 conv=notrunc \
            seek=$(((i * 7919 * j * j + 64 * i) % size)) 2>/dev/null
    done
done
ends 0 "corrupt files harm no command" nowhere:exit -- "$command" list --set plugins.path="$folder/corrupt"
tap_try "each is listed" test "$(grep -c '^/.*/corrupt/[0-9]*\.so$' ../out)" -eq 12

XDG_CACHE_HOME=$folder/cache
export XDG_CACHE_HOME
cp "$villain" ../copy.so
# listed DEED FILE: what `list` says about a file.
listed()
{
    VILLAIN=$1 "$command" list --set "plugins.path=$2" 2>&1 | grep -F -A 1 -e "$2"
}
listed entry:segv "$folder/copy.so" >../first
listed nowhere:exit "$folder/copy.so" >../second
tap_try "a verdict is kept" grep -F -e "(remembered in $folder/cache/attnhost/scanned)" ../second
cp ../copy.so ../copy2.so
listed nowhere:exit "$folder/copy2.so" >../second
tap_try "a kept verdict holds for a copy of the file" grep -F -e "(remembered in" ../second
echo >>../copy.so
listed nowhere:exit "$folder/copy.so" >../second
tap_try "until the file changes" sh -c '! grep -F -e "refused" ../second'
listed entry:segv "$folder/copy.so" >../second
tap_try "a good one is kept, too: the command itself is ended" grep -q "attnhost list: the process" ../second
rm -r ../cache/attnhost && mkdir ../cache/attnhost
ln -s ../../target ../cache/attnhost/scanned
listed nowhere:exit "$folder/copy.so" >/dev/null
tap_try "a link in the cache's place is neither followed nor replaced" \
    test -L ../cache/attnhost/scanned -a ! -e ../target
XDG_CACHE_HOME=/dev/null

VILLAIN_SLY=yes
export VILLAIN_SLY
run 139 "an extension that is no address is named" extension:garbage \
    "ended by SIGSEGV in villain: get_extension ($villain)"
for call in entry describe; do
    run 139 "a table that is no address is named: $call" $call:garbage "ended by SIGSEGV in its tables ($villain)"
done
run 0 "an extension that is no text is not there" extension:garble "![2J"
run 5 "more reasons than there is room for are a defect" query:reasons \
    "villain: defect of the plugin: in query's verdict num_reasons is above 1024"
ends 0 "a text that is no line of UTF-8 is refused" entry:garble -- "$command" list bystander.ini
tap_try "a refused text is printed on one line" grep -qF -e "a text is '?[2J " ../out
unset VILLAIN_SLY

# ---- Surroundings --------------------------------------------------------------------------------

"$command" run bystander.ini >../good 2>/dev/null
digest=$(grep '^digest' ../good)

# alike NAME: the bystander's run, whose output is in ../out, has the digest of the good one.
alike()
{
    tap_try "$1" grep -F -e "$digest" ../out
}

for change in "round:the FPU's control word" "flush_denormals:the FPU's control word" \
    "locale:locale is C.UTF-8" "signal:has another handler" "move:working directory is /" \
    "umask:umask is 000" "limit_files:RLIMIT_FSIZE is 1, before: "; do
    deed=${change%%:*} said=${change#*:}
    for call in entry query forward task; do
        run 0 "$deed in $call is undone" $call:"$deed" "$said" "it was put back"
        tap_try "$deed in $call is reported once" test "$(grep -c 'put back' ../err)" -eq 1
    done
    ends 0 "$deed of a bystander is undone" "entry:$deed" "$said" -- "$command" run bystander.ini
    alike "$deed of a bystander changes no output"
done

ends 0 "limit_memory of a bystander is undone" entry:limit_memory "RLIMIT_AS is 1, before: " -- \
    "$command" run bystander.ini
alike "limit_memory of a bystander changes no output"

for call in query forward; do
    run 0 "fclose(stdout) in $call closes nothing of the command's" $call:close_stdout
    tap_try "the report is whole after fclose(stdout) in $call" grep -q '^digest' ../out
done
if test "$(id -u)" -ne 0; then # root may raise it again
    run 0 "a hard limit that is lowered is said" query:limit_files_for_good "it cannot be put back"
    tap_try "a hard limit is not said to be put back" sh -c '! grep -q "it was put back" ../err'
fi

for call in dlopen query forward task; do
    ends 0 "what is printed in $call goes to stderr" $call:print villain \
        -- "$command" run run.ini --json -
    tap_try "a plugin's output does not enter the report: $call" sh -c \
        'test "$(head -c 1 ../out)" = "{" && ! grep -q villain, ../out && tail -n 1 ../out | grep -q "^}"'
    tap_try "the report has no line of the plugin: $call" sh -c '! grep -qx -e villain ../out'
done
ends 5 "a full disk is an error" nowhere:exit "stdout cannot be written: No space left" -- \
    sh -c '"$1" list bystander.ini >/dev/full' sh "$command"
for option in -V --help; do
    ends 5 "a full disk is an error of $option" nowhere:exit "attnhost: stdout cannot be written: No space left" -- \
        sh -c '"$1" "$2" >/dev/full' sh "$command" $option
done
for arguments in -V "list bystander.ini" "check --help"; do
    # shellcheck disable=SC2086 # words
    ends 5 "a limit of file sizes is an error of $arguments" nowhere:exit "stdout cannot be written: File too large" -- \
        sh -c 'ulimit -f 0; "$@" >limited' sh "$command" $arguments
done

# ---- Failures of verification --------------------------------------------------------------------

ends 1 "the first failure is said at once" forward:wrong "verification failed: request 0, " -- \
    "$command" run run.ini --json ../all.json
tap_try "the first failure is said once" test "$(grep -c 'verification failed' ../err)" -eq 1
ends 1 "verify.fail_fast ends a run there" forward:wrong "verification failed: request 0, " -- \
    "$command" run run.ini --set verify.fail_fast=yes --json ../fast.json
tap_try "the report says that verify.fail_fast ended the run" grep -q '^ended by *the first failed verification' ../out
failed()
{
    sed -n 's/.*"rows_failed":[^0-9]*\([0-9]*\).*/\1/p' "$1"
}
tap_try "verify.fail_fast ends a run after fewer failures" test "$(failed ../fast.json)" -lt "$(failed ../all.json)"
ends 0 "verify.fail_fast does not end a good run" nowhere:exit -- "$command" run run.ini --set verify.fail_fast=yes
ends 0 "what a sample cannot see is said" nowhere:exit -- "$command" run run.ini --set verify.rate=0.5 \
    --json ../sample.json
tap_try "it is said as 1 row in so many" grep -q 'a fault of 1 row in [0-9]* would have been seen with' ../out
tap_try "detectable_share keeps to the rule of three" awk '/"rows_checked"/ { n = $2 + 0 } /"detectable_share"/ { s = $2 + 0 }
    END { exit !(n > 0 && s * n > 2.5 && s * n < 3.1) }' ../sample.json

# ---- Writes beside the output --------------------------------------------------------------------

for change in "past_out:after the last row of operand out" "into_q:into operand q" \
    "into_v:into operand v"; do
    deed=${change%%:*} said=${change#*:}
    run 1 "$deed fails a run that verifies" "forward:$deed"
    tr -s ' \n' ' ' <../out >../flat # lines are folded
    tap_try "a write outside the output is named: $deed" grep -qF -e "first failure: layer 0: villain wrote $said" ../flat
    ends 0 "without verification nothing is looked at: $deed" "forward:$deed" -- \
        "$command" run run.ini --set verify.rate=0
done

# ---- Times of what is not computed ---------------------------------------------------------------

measure()
{
    ends "$@" -- "$command" bench --backend villain,cpu_native --set plugins.path="$villain" \
        --set workload.num_threads=1 --shape mode=decode,q_heads=$heads,kv_heads=1,head_dim=64,kv_len=4096 --seconds 1 --json ../bench.json
}
heads=1
measure 1 "bench ranks no backend that computes nothing" forward:nothing
tap_try "bench says which row is wrong" grep -q \
    'villain *wrong: before it was timed, row 0 of query head [0-9]* is not written' ../out
tap_try "bench gives no time of a wrong backend" sh -c '! grep -A 3 "\"wrong\"" ../bench.json | grep -q _us'
tap_try "bench compares with the next backend" grep -q 'cpu_native .* 1.000$' ../out
VILLAIN_AFTER=8
export VILLAIN_AFTER
measure 1 "bench ranks no backend that computes nothing after a while" forward:nothing
unset VILLAIN_AFTER
tap_try "bench says that it was wrong after it was timed" grep -q 'wrong: after it was timed' ../out
measure 0 "a backend beyond the ceiling is marked" forward:cheat
tap_try "it is marked as impossible" grep -q 'villain .* impossible ' ../out
tap_try "bench says why it is impossible" grep -q 'villain: .* times as fast as the .* ceiling allows' ../out
tap_try "the report of bench marks it, too" grep -q '"impossible":	true' ../bench.json
heads=32 # the plugin computes 32 rows of what it reads once
measure 0 "a slow backend is not marked" nowhere:exit
tap_try "a slow backend has its share of the ceiling" grep -q 'villain .*% \(memory\|compute\) ' ../out

# ---- What the suite sees -------------------------------------------------------------------------

mkdir gone && (cd gone && rmdir ../gone &&
    exec "$command" check "$plugins/cpu_native.so" --filter 'LOAD-02*') >../out 2>&1
tap_try "check in a folder that was removed" grep -q '^1..2' ../out

unset VILLAIN_SLY
for deed in dlopen:segv entry:segv describe:exit query:segv; do
    ends 1 "check with a filter does not hide $deed" $deed -- \
        "$command" check "$villain" --filter 'villain/LIFE-08.threads'
done
VILLAIN_SLY=yes
for call in entry create; do
    ends 1 "check sees a thread that is started in $call" $call:thread -- \
        "$command" check "$villain" --filter 'villain/LIFE-08.threads'
    tap_try "the time at which a thread started is named: $call" grep -q 'after .* there is a thread that was' ../out
done
ends 0 "check sees no thread where there is none" nowhere:exit -- \
    "$command" check "$villain" --filter 'villain/LIFE-08.threads'

# ---- Files that are written ----------------------------------------------------------------------

mkfifo ../pipe
echo kept >../target
ln -s target ../link
cp "$villain" ../checked.so
for what in "pipe:is not a regular file" "link:is a symbolic link"; do
    place=${what%%:*} said=${what#*:}
    ends 2 "--json $place is refused" nowhere:exit "--json ../$place: $said" "accepted: a regular file" -- \
        "$command" run run.ini --json ../$place
    ends 2 "check --output $place, too" nowhere:exit "--output ../$place: $said" -- \
        "$command" check "$villain" --output ../$place --filter 'LOAD-02*'
    sed "s|^attention_backend = .*|attention_backend = tuned|; \$a [backend.tuned]\ntype = autotune\ncandidate = cpu_native\ncandidate = villain\nstore = $folder/$place" \
        run.ini >store.ini
    ends 2 "autotune's store at $place is refused" nowhere:exit "store = $folder/$place cannot be read: it is" -- \
        timeout 20 "$command" run store.ini
done
tap_try "the pipe and the link are still there" test -p ../pipe -a -L ../link
tap_try "the target of the link is unchanged" grep -qx kept ../target
ends 2 "check does not write its report over the plugin" nowhere:exit "is the plugin, which is read" -- \
    "$command" check ../checked.so --output ../checked.so
tap_try "the plugin's file is unchanged" cmp ../checked.so "$villain"

ln ../checked.so ../other_name.so
ends 2 "check does not write its report over the plugin by another name" nowhere:exit "is the plugin, which is read" -- \
    "$command" check ../checked.so --output ../other_name.so
cp run.ini kept.ini
ln run.ini link.ini
ln trace.jsonl link.jsonl
for file in link.ini link.jsonl ../checked.so; do
    ends 2 "run does not write its report over $file" nowhere:exit "--json $file: is " "accepted: another file" -- \
        "$command" run run.ini --json $file
done
tap_try "which are as they were" sh -c 'cmp run.ini kept.ini && cmp ../checked.so "$1"' sh "$villain"
"$command" run run.ini --json ../old.json >/dev/null 2>&1
cp ../old.json ../kept.json
ends 2 "report does not write over what it reads" nowhere:exit "is a report, which is read" -- \
    "$command" report ../old.json --output ../old.json
ends 5 "a disk that is full after the work keeps the old report" nowhere:exit "old.json: cannot be written" -- \
    sh -c 'ulimit -f 1 && exec "$1" run run.ini --json ../old.json' sh "$command"
tap_try "the plugin's file is unchanged" cmp ../old.json ../kept.json
tap_try "with nothing beside it" sh -c '! ls .. | grep -q "old.json\..*new"'
ends 5 "a plugin's file in the place of stdout gets no report" forward:take_files "stdout cannot be written" -- \
    "$command" run run.ini
tap_try "nothing at all" test ! -s villain.took
ends 0 "a plugin does not write into the report" forward:write_files -- "$command" run run.ini --json ../report.json
tap_try "which begins as it should" test "$(head -c 1 ../report.json)" = "{"
ends 2 "without stderr" nowhere:exit -- sh -c 'exec "$1" run nowhere.ini --json ../gone.json 2>&-' sh "$command"
ends 0 "messages to a closed stderr do not overwrite a report" forward:print -- \
    sh -c 'exec "$1" run run.ini --json ../report.json 2>&-' sh "$command"
tap_try "it is whole" sh -c 'head -c 1 ../report.json | grep -q "{" && ! grep -qx villain ../report.json'

# ---- Runs that do not come to their end ----------------------------------------------------------

ends 5 "a failed step keeps the report of the rest" forward:fail_once "1 step failed" \
    "the villain does not feel like it" -- \
    "$command" run run.ini --json - --set workload.max_running_requests=1
tap_try "with the steps that did not fail" sh -c \
    'grep -qx "	\"requests\":	1," ../out && grep -q "\"failed_steps\":	1" ../out'
run 5 "a plugin's own words about a loss survive" forward:lose "the villain has lost it"

# survived: the report so far is printed and written, and says what ended the run, "$1".
survived()
{
    tap_try "its report is printed: $1" grep -q '^digest' ../out
    tap_try "the report is written: $1" sh -c 'tail -n 1 ../survived.json | grep -q "^}" && grep -q "\"ended_by\":.*$1" ../survived.json' \
        sh "$1"
    rm -f ../survived.json
}
for end in 139:segv:SIGSEGV 134:abort:SIGABRT 5:exit:'exit()' 137:kill:SIGKILL 139:overflow:SIGSEGV; do
    code=${end%%:*} deed=${end#*:}
    said=${deed#*:} deed=${deed%:*}
    for call in forward task; do
        VILLAIN_AFTER=9
        export VILLAIN_AFTER
        ends "$code" "$deed in $call in the midst of a run" $call:"$deed" "ended by $said in villain: forward_" -- \
            "$command" run run.ini --json ../survived.json --set workload.max_running_requests=1
        unset VILLAIN_AFTER
        test $call:$deed != forward:segv ||
            tap_try "what was done counts" grep -q '^tokens *prefill [1-9]' ../out
        survived "$said"
    done
done
ends 5 "a lost device keeps the report of what was done" forward:lose "the villain has lost it" -- \
    "$command" run run.ini --json ../survived.json
survived "lost it"
for end in 139:segv 134:abort 5:exit; do
    ends "${end%:*}" "${end#*:} in destroy loses no report" "destroy:${end#*:}" "in villain: destroy" -- \
        "$command" run run.ini --json ../survived.json
    tap_try "it is printed" grep -q '^digest' ../out
    tap_try "the report of a good run is written: $end" sh -c \
        'tail -n 1 ../survived.json | grep -q "^}" && ! grep -q ended_by ../survived.json'
done
rm ../survived.json
(VILLAIN=destroy:hang exec "$command" run run.ini --json ../survived.json) >../out 2>../err </dev/null &
process=$!
tries=0
until grep -q '^}' ../survived.json 2>/dev/null || ! kill -0 $process || test $tries -gt 600; do
    tries=$((tries + 1))
    sleep 0.1
done
tap_try "a destroy that hangs loses no report" grep -q '^}' ../survived.json
tap_try "a report is printed before a destroy that hangs" grep -q '^digest' ../out
kill -KILL $process
wait $process
ends 153 "a file that grows past its limit is named" forward:write_too_much \
    "ended by SIGXFSZ in villain: forward_extend of layer 0" -- "$command" run run.ini
cp "$fixtures/bad_leaves_thread.so" ../leaves.so
ends 0 "a thread of a bystander that is refused survives it" nowhere:exit -- \
    "$command" run bystander.ini --set "plugins.path=$folder/leaves.so"
tap_try "the run with this bystander has a report" grep -q '^digest' ../out

i=0
while test $i -lt 2000; do
    echo '{"timestamp": 0, "input_length": 200, "output_length": 100, "hash_ids": ['$i']}'
    i=$((i + 1))
done >long.jsonl
# begun SIGNAL COMMAND...: the command gets the signal half a second after it has said which backend has which layers.
# timeout passes it on, and makes it one that ends: a shell in the background has its commands ignore SIGINT, nohup SIGHUP.
cat >../begun <<'END'
signal=$1
shift
: >../process
(
    until grep -q '^layers' ../err; do
        ! test -s ../process || kill -0 "$(cat ../process)" || exit
        sleep 0.1
    done
    sleep 0.5
    kill -s "$signal" "$(cat ../process)"
) 2>/dev/null >&2 &
exec sh -c 'echo $$ >../process && exec timeout --preserve-status 200 "$@"' sh "$@"
END
for signal in INT:130 TERM:143 HUP:129; do
    number=${signal#*:} signal=${signal%:*}
    ends "$number" "SIG$signal ends a run with $number" nowhere:exit -- sh ../begun "$signal" \
        "$command" run run.ini --trace long.jsonl --json ../report.json
    tap_try "its report so far is printed" grep -q '^interrupted' ../out
    tap_try "the report of an interrupted run is written" grep -q '"interrupted":	true' ../report.json
    ends "$number" "SIG$signal ends bench with $number" nowhere:exit -- timeout --preserve-status \
        -s $signal 2 "$command" bench --backend cpu_native --set plugins.path="$plugins" \
        --shape mode=decode,kv_len=512-4096x2 --seconds 9 --json ../report.json
    tap_try "its report is written, too" grep -q '"interrupted":	true' ../report.json
done

(VILLAIN=forward:hang exec "$command" run run.ini --json ../survived.json) >../out 2>../err </dev/null &
process=$!
until grep -q '^layers' ../err; do sleep 0.1; done
sleep 0.5
kill -TERM $process
sleep 0.6
kill -0 $process 2>/dev/null || echo "# it did not wait for the step"
kill -TERM $process 2>/dev/null
wait $process
tap_try "a second signal ends it at once" test $? -eq 143
tap_try "the call that hung is named" grep -qF \
    "ended by a second SIGTERM in villain: forward_extend of layer 0 ($villain)" ../err
survived "a second SIGTERM"

tap_end
