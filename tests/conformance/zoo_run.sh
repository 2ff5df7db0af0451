# SPDX-License-Identifier: Apache-2.0
#
# zoo_run.sh: one section of zoo.txt: `attnhost check` on each plugin finds those rules broken that
# stand there, and no other. `. zoo_run.sh SECTION`; a commit runs a part of the section (part.sh).
# shellcheck disable=SC2086
set -uf
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

umask 022
tap_folder folder
point='--filter PURE-0[134].*/1 --filter PURE-07.waits*/1 --filter PURE-07.staging/2
    --filter CAPT-01.captures/2 --filter CAPT-01.beyond* --filter CAPT-02.*/1
    --filter CAPT-03.*/1 --filter CAPT-04.padding/1 --filter CAPT-05.bits/1
    --filter LIFE-09.* --filter ERR-04.* --filter WORK-07.*/1 --filter WORK-08.*/[01]'
names=$(sed -n 's/^\([a-z_0-9]*\) | cuda |.*/\1/p' "$top/tests/conformance/zoo.txt" | tr '\n' ' ')

# check PLUGIN FAULT OPTION...: the report, in TAP, is $folder/out.
check()
{
    plugin=$1 fault=$2
    shift 2
    set -- --jobs 1 "$@" # what cases of a process do to each other is always the same
    case $plugin in
    zoo) set -- "$ATTNHOST_TEST_FIXTURE_DIR/zoo.so" --backend "$fault" "$@" ;;
    wrap) set -- "$ATTNHOST_TEST_FIXTURE_DIR/zoo.so" --backend "$fault" --option child=good "$@" ;;
    mla)
        set -- "$ATTNHOST_TEST_FIXTURE_DIR/zoo.so" --backend "$fault" --option child=cpu_native \
            --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" "$@"
        ;;
    cuda) set -- "$ATTNHOST_TEST_FIXTURE_DIR/zoo_cuda.so" --backend "$fault" --device cuda "$@" ;;
    writable)
        cp "$ATTNHOST_TEST_FIXTURE_DIR/bad_nothing.so" "$folder/writable.so"
        chmod 666 "$folder/writable.so"
        set -- "$folder/writable.so" "$@"
        ;;
    *) set -- "$ATTNHOST_TEST_FIXTURE_DIR/$plugin.so" "$@" ;;
    esac
    if test "$plugin" = cuda; then
        ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_cuda_kernels.so \
            ATTNHOST_FAKE_KERNELS=$names "$ATTNHOST_TEST_COMMAND" check "$@"
    elif test "$plugin" = bad_driver; then
        LD_LIBRARY_PATH=$ATTNHOST_TEST_FIXTURE_DIR "$ATTNHOST_TEST_COMMAND" check "$@"
    else
        "$ATTNHOST_TEST_COMMAND" check "$@"
    fi >"$folder/out" 2>"$folder/err" </dev/null
}

# options RULES FILTERS: what `attnhost check` is given for them.
options()
{
    if test "$2" = -; then
        for rule in $1; do
            echo "--filter ${rule%%-*}-*"
        done | sort -u
        echo "--filter ERR-03.[!e]* --filter ERR-03.ends"
        return
    fi
    is_value=no
    for word in $2; do
        case $is_value$word in
        yes*) echo "$word" && is_value=no ;;
        no--*) echo "$word" && is_value=yes ;;
        no@point) echo "$point" ;;
        *) echo "--filter $word" ;;
        esac
    done
}

# found CODE: "RULE=CODE ..." of what the last check found, once each and in order.
found()
{
    if test "$1" -eq 3; then
        echo REFUSED
        return
    fi
    awk '/^(not )?ok / {
             id = $1 == "not" ? $5 : $4
             sub(/^[^\/]*\//, "", id)
             sub(/\..*/, "", id)
         }
         /^# (FAIL|CRASH|TIMEOUT|WARN|DEVICE_LOST):/ {
             print id "=" substr($2, 1, length($2) - 1)
         }' "$folder/out" | sort -u | tr '\n' ' ' | sed 's/ $//'
}

# wanted RULES: the same of what stands in zoo.txt.
wanted()
{
    case $1 in
    -) ;;
    *=REFUSED) echo REFUSED ;;
    *) printf '%s\n' $1 | sort | tr '\n' ' ' | sed 's/ $//' ;;
    esac
}

judge()
{
    fault=$1 plugin=$2 rules=$3 filters=$4 what=$5
    check "$plugin" "$fault" $(options "$rules" "$filters")
    code=$?
    expected=$(wanted "$rules")
    got=$(found $code)
    if test "$fault" = bad_stack && test "$got" = REFUSED; then
        tap_skip "$fault" "this system does not open it: $(head -1 "$folder/err")"
    elif test "$got" = "$expected" && { test $code -lt 2 || test $code -eq 3; }; then
        tap_ok "$fault: ${expected:-passes}"
    else
        tap_not_ok "$fault: $what" "got '$got', exit code $code; accepted '$expected'
$(grep -A 1 -e '^not ok' -e '^# WARN' "$folder/out" | head -40)
$(head -5 "$folder/err")"
    fi
}

section=$1
sed -n "/^\[$section]/,/^\[/s/ | /|/gp" "$top/tests/conformance/zoo.txt" | grep '|' |
    sh "$top/tests/tools/part.sh" 6 "section $section of the zoo" \
        host/check tests/fixtures tests/conformance 2>&1 >"$folder/list"
while IFS='|' read -r fault plugin rules filters what; do
    judge "$fault" "$plugin" "$rules" "$filters" "$what"
done <"$folder/list"
tap_end
