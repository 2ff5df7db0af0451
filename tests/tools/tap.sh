# SPDX-License-Identifier: Apache-2.0
# tap.sh: TAP for the tests written in shell. Source it; end with tap_end.

tap_count=0
tap_failed=0

# tap_ok NAME / tap_not_ok NAME [TEXT] / tap_skip NAME REASON: one result.
tap_ok()
{
    tap_count=$((tap_count + 1))
    echo "ok $tap_count - $1"
}

tap_not_ok()
{
    tap_count=$((tap_count + 1))
    tap_failed=$((tap_failed + 1))
    echo "not ok $tap_count - $1"
    if test -n "${2-}"; then
        printf '%s\n' "$2" | sed 's/^/# /'
    fi
}

tap_skip()
{
    tap_count=$((tap_count + 1))
    echo "ok $tap_count - $1 # SKIP $2"
}

# tap_try NAME COMMAND...: ok iff the command ends 0; what it printed is shown otherwise.
tap_try()
{
    tap_name=$1
    shift
    if tap_output=$("$@" 2>&1 </dev/null); then
        tap_ok "$tap_name"
    else
        tap_not_ok "$tap_name" "$tap_output"
    fi
}

# tap_folder NAME: the variable NAME is a new folder, which goes with the test.
tap_folder()
{
    tap_made=$(mktemp -d) || exit 1
    eval "$1=\$tap_made"
    trap 'rm -rf "$tap_made"' EXIT
}

# tap_python NAME: $python, or all is skipped.
tap_python()
{
    python=${PYTHON3:-python3}
    export PYTHONDONTWRITEBYTECODE=1
    if test "$python" = no || ! command -v "$python" >/dev/null; then
        tap_skip "$1" "python3 is not installed"
        tap_end
    fi
}

tap_end()
{
    echo "1..$tap_count"
    test "$tap_failed" -eq 0
    exit
}
