# SPDX-License-Identifier: Apache-2.0
#
# fa3_like_fake.sh: cases of the suite on fa3_like, on the fake driver, where host functions stand in for its kernels.
# To be sourced. Without nvcc there is nothing to stand in for.
. "$ATTNHOST_TEST_SRCDIR/tests/tools/tap.sh"
tap_folder folder

# pass_on_fake NAME ARGUMENT...: these cases pass. What is launched is added to $folder/launches.
pass_on_fake()
{
    name=$1
    shift
    ATTNHOST_FAKE_LAUNCHES=$folder/launches ATTNHOST_FAKE_KERNELS=fa3_like \
        ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_fa3_kernels.so \
        "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/fa3_like.so" --device cuda "$@" \
        >"$folder/report" 2>"$folder/err"
    code=$?
    if test $code -eq 0; then
        tap_ok "$name on the fake driver"
    else
        tap_not_ok "$name on the fake driver" "exit code $code
$(grep -A 2 '^not ok' "$folder/report" | head -20)
$(head -5 "$folder/err")"
    fi
}

count_launches()
{
    grep -c "^$1\$" "$folder/launches" 2>/dev/null
}

# launched LEAST NAME: so many times at least.
launched()
{
    times=$(count_launches "$2")
    tap_try "$2 is launched $1 times or more: ${times:-0}" test "${times:-0}" -ge "$1"
}
