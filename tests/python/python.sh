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
. "$top/tests/python/venv.sh"
need_python "the Python package"
need_venv "the Python package" "$top/tests/python/requirements.txt"

# ---- The binding ---------------------------------------------------------------------------------

copied "$top/python" python
tap_try "pip install ./python" \
    "$venv/bin/pip" install -q --no-deps --no-build-isolation --force-reinstall "$scratch/python"
run test_generate test_binding test_docs

# ---- Backends in Python: in 60 s of processor time -------------------------------------------------

. "$top/tests/python/backends.sh"
backends_numpy

# ---- The wheel -------------------------------------------------------------------------------------

# Where the library was installed is not asked again: from a folder that has the wheel alone.
if has auditwheel patchelf; then
    tap_try "a wheel that brings library and plugins along" \
        "$top/python/wheel.sh" "$venv/bin/python" "$ATTNHOST_TEST_LIBDIR" \
        "$ATTNHOST_TEST_DATADIR" "$scratch/wheel"
    tap_try "its name says which glibc it needs" sh -c 'ls "$0"/attnhost-*-abi3-manylinux_*.whl' "$scratch/wheel"
    tap_try "it is installed" \
        "$venv/bin/pip" install -q --no-deps --target "$scratch/alone" "$scratch"/wheel/attnhost-*.whl
    tap_try "it needs no other package" env PYTHONPATH="$scratch/alone" \
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
need_torch()
{
    OMP_NUM_THREADS=1 # the models are tiny, and tests run beside others
    export OMP_NUM_THREADS
    test ! -f "$venv/models" || return 0
    # shellcheck disable=SC2046
    has --no-deps $(sed -n 's/^torch==/torch==/p' "$top/tests/python/requirements.txt") &&
        has $(grep -v -e '^#' -e '^torch==' "$top/tests/python/requirements.txt") &&
        torch_without_cuda ||
        skip_all "models of Transformers" "pip installs no PyTorch here: $(tail -n 1 "$scratch/pip")"
    : >"$venv/models"
}

# All of it takes five minutes of a processor, and tests the package, not the library, which the tests above do: each
# part where the commit changes what it sees, and by turns (turn.sh).
# shellcheck disable=SC2086
if in_turn models "models of Transformers" python tests/python include host/embed $no_engine_files; then
    need_torch
    run test_step test_flash_attn test_continuous test_models
fi
if in_turn torch_backends "backends on PyTorch" python/attnhost/backend.py python/src plugins/python examples/python \
    tests/python/backends.sh tests/python/copies.py; then
    need_torch
    backends_torch
fi

# What the README's commands for Python end with, word by word: in a folder in which their paths are right.
if in_turn models "the pages on models" examples/generate.py docs/PYTHON.md README.md python/attnhost \
    tests/python/test_docs_models.py; then
    need_torch
    run test_docs_models
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
fi

# The same tutorial with the newest Transformers, in an environment that sees the packages of the first: a
# release that breaks the package fails here, by its number.
newest=$venv/newest
# shellcheck disable=SC2086
in_turn newest "the newest Transformers" python tests/python $no_engine_files || tap_end
need_torch
if "$venv/bin/python" -m venv --without-pip "$newest" &&
    "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$scratch/packages" &&
    run_python=$newest/bin/python &&
    cp "$scratch/packages" "$("$run_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pinned.pth" &&
    "$venv/bin/pip" --python "$run_python" install -q --no-compile --upgrade transformers >"$scratch/pip" 2>&1; then
    version=$("$run_python" -c 'import transformers; print(transformers.__version__)' 2>&1 | tail -n 1)
    before=$tap_failed
    echo "# Transformers $version, the newest"
    run test_docs_models test_continuous
    tap_try "the package works with Transformers $version, the newest release" test "$tap_failed" -eq "$before"
else
    tap_skip "the newest Transformers" "pip does not install it here: $(tail -n 1 "$scratch/pip")"
fi
tap_end
