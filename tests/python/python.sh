#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# python.sh: the Python package as a user installs it: pip install, against the installed library, in an
# environment of its own. What cannot be had here (no network, no Python headers) is skipped, with the
# reason; ATTNHOST_NO_PYTHON=1 skips it all.
#
# The environment stays in the build folder, $ATTNHOST_TEST_VENV, and is made anew when what is asked of
# it changes. pip keeps what it downloads in its own cache.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

python=${PYTHON3:-python3}
venv=$ATTNHOST_TEST_VENV
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
umask 022
PKG_CONFIG_PATH=$ATTNHOST_TEST_LIBDIR/pkgconfig
PYTHONDONTWRITEBYTECODE=1
PIP_DISABLE_PIP_VERSION_CHECK=1
export PKG_CONFIG_PATH PYTHONDONTWRITEBYTECODE PIP_DISABLE_PIP_VERSION_CHECK
unset MAKEFLAGS MFLAGS MAKELEVEL PYTHONPATH

# skip_all REASON: nothing more can be tested here.
skip_all()
{
    tap_skip "$1" "$2"
    tap_end
}

# has PACKAGES...: pip installs them, if they are not there yet.
has()
{
    "$venv/bin/pip" install -q --no-compile "$@" >"$scratch/pip" 2>&1
}

# run MODULE...: the tests of these modules, numbered on from here.
run()
{
    "${run_python:-$venv/bin/python}" "$top/tests/python/run.py" "$tap_count" "$@" >"$scratch/run" 2>"$scratch/errors" </dev/null
    grep -v '^# last ' "$scratch/run"
    last=$(sed -n 's/^# last //p' "$scratch/run")
    if test -z "$last"; then
        tap_count=$(grep -c '^\(not \)\?ok ' "$scratch/run" | awk -v n="$tap_count" '{ print n + $1 }')
        tap_not_ok "$*: ran to its end" "$(tail -n 20 "$scratch/errors")"
        return
    fi
    tap_count=${last% *}
    tap_failed=$((tap_failed + ${last#* }))
}

# ---- Can it be tested here? ----------------------------------------------------------------------

test -z "${ATTNHOST_NO_PYTHON-}" || skip_all "the Python package" "ATTNHOST_NO_PYTHON is set"
test -z "$ATTNHOST_TEST_DESTDIR" || skip_all "the Python package" "pkg-config's paths do not know DESTDIR"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    skip_all "the Python package" "no Python 3.10 or newer here"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    skip_all "the Python package" "this Python has no venv module (Debian: python3-venv)"
"$python" -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    skip_all "the Python package" "no Python.h here (Debian: python3-dev)"

wanted="$("$python" -VV) $(cat "$top/tests/python/requirements.txt")"
if ! test -f "$venv/wanted" || test "$(cat "$venv/wanted")" != "$wanted"; then
    rm -rf "$venv"
    "$python" -m venv "$venv" || skip_all "the Python package" "python3 -m venv failed"
    has "setuptools>=77" numpy || skip_all "the Python package" "pip installs nothing here: $(tail -n 1 "$scratch/pip")"
    printf '%s' "$wanted" >"$venv/wanted"
fi

# ---- The binding ---------------------------------------------------------------------------------

cp -R "$top/python" "$scratch/python"
rm -rf "$scratch/python/build" # of an earlier installation: as old as all other files now
chmod -R u+w "$scratch/python"
tap_try "pip install ./python" \
    "$venv/bin/pip" install -q --no-deps --no-build-isolation --force-reinstall "$scratch/python"
run test_generate test_binding test_docs

# ---- The wheel -------------------------------------------------------------------------------------

# Where the library was installed is not asked again: from a folder that has the wheel alone.
if has auditwheel patchelf; then
    tap_try "a wheel that brings library and plugins along" \
        "$top/python/wheel.sh" "$venv/bin/python" "$ATTNHOST_TEST_LIBDIR" \
        "$ATTNHOST_TEST_DATADIR" "$scratch/wheel"
    tap_try "its name says which glibc it needs" sh -c 'ls "$0"/attnhost-*-abi3-manylinux_*.whl' "$scratch/wheel"
    tap_try "it is installed" \
        "$venv/bin/pip" install -q --no-deps --target "$scratch/alone" "$scratch"/wheel/attnhost-*.whl
    tap_try "it asks nobody else" env PYTHONPATH="$scratch/alone" \
        "$venv/bin/python" "$top/tests/python/alone.py" "$scratch/alone" "$ATTNHOST_TEST_LIBDIR"
    tap_try "kernels' sources lie beside the plugins" \
        diff -r "$ATTNHOST_TEST_DATADIR/attnhost/kernels" "$scratch/alone/attnhost/plugins/kernels"
else
    tap_skip "a wheel that brings library and plugins along" "pip installs no auditwheel here: $(tail -n 1 "$scratch/pip")"
fi

# ---- Models ----------------------------------------------------------------------------------------

# PyTorch and Transformers, 600 MB to download and a minute to install. The wheel of PyPI is built with
# CUDA; its libraries, 2 GB more, are replaced by ones that answer that there is no device. Elsewhere
# pip may find a wheel for the CPU (PIP_EXTRA_INDEX_URL), which needs nothing of that.
if ! test -f "$venv/models"; then
    # shellcheck disable=SC2046
    has --no-deps $(sed -n 's/^torch==/torch==/p' "$top/tests/python/requirements.txt") &&
        has $(grep -v -e '^#' -e '^torch==' "$top/tests/python/requirements.txt") &&
        lib=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch/lib &&
        "$python" "$top/tests/python/torch_without_cuda.py" "$lib" ||
        skip_all "models of Transformers" "pip installs no PyTorch here: $(tail -n 1 "$scratch/pip")"
    : >"$venv/models"
fi
OMP_NUM_THREADS=1 # of PyTorch: the models are tiny, and tests run beside others
export OMP_NUM_THREADS
run test_step test_models test_docs_models

# The same tutorial with the newest Transformers, in an environment that sees the packages of the first: a
# release that breaks the package fails here, by its number.
newest=$venv/newest
if "$venv/bin/python" -m venv --without-pip "$newest" &&
    "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$scratch/packages" &&
    run_python=$newest/bin/python &&
    cp "$scratch/packages" "$("$run_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pinned.pth" &&
    "$venv/bin/pip" --python "$run_python" install -q --no-compile --upgrade transformers >"$scratch/pip" 2>&1; then
    version=$("$run_python" -c 'import transformers; print(transformers.__version__)' 2>&1 | tail -n 1)
    before=$tap_failed
    echo "# Transformers $version, the newest"
    run test_docs_models
    tap_try "the package works with Transformers $version, the newest release" test "$tap_failed" -eq "$before"
else
    tap_skip "the newest Transformers" "pip installs it not here: $(tail -n 1 "$scratch/pip")"
fi
run_python=

# What the README's commands for Python end with, word by word: in a folder in which their paths are right.
sed -n '/^## My backend under Transformers/,/^## Where/{/^```sh/,/^```$/{/^```/!p;};}' "$top/README.md" >"$scratch/commands"
tap_try "README: to text in less than ten commands" sh -c '
    test "$(grep -c . "$0")" -lt 10 && ! grep -q "&&\|;" "$0" && grep -q "^python3 -m venv" "$0"' "$scratch/commands"
mkdir -p "$scratch/here/examples/plugin"
cp "$top/examples/generate.py" "$scratch/here/examples"
cp "$ATTNHOST_TEST_FIXTURE_DIR/example_rows.so" "$scratch/here/examples/plugin/example.so"
ln -s "$venv" "$scratch/here/venv"
for backend in cpu_native example_rows; do
    grep "examples/generate.py.*=$backend" "$scratch/commands" >"$scratch/command.$backend"
    tap_try "README: text through $backend" sh -c '
        cd "$0" && sh -e "$1" >"$2" 2>"$2.rows" && grep -q "$3" "$2.rows"' \
        "$scratch/here" "$scratch/command.$backend" "$scratch/$backend" "$backend"
done
tap_try "the same text" cmp "$scratch/cpu_native" "$scratch/example_rows"
tap_end
