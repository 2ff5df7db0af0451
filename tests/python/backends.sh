#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# backends.sh: backends that are written in Python, through the installed command. Sourced by python.sh, once
# the environment has numpy (backends_numpy), and once it has PyTorch (backends_torch).

attnhost=$(pkg-config --variable=prefix attnhost)/bin/attnhost
fixtures=$ATTNHOST_TEST_FIXTURE_DIR
. "$top/tests/command/documented.sh"

# Can the command open this Python?
can_embed()
{
    ATTNHOST_PYTHON=$venv/bin/python
    export ATTNHOST_PYTHON
    embed_output=$("$attnhost" inspect "$top/examples/python/rows.py" 2>&1) && return
    case $embed_output in
    *"no shared libpython"*) return 1 ;;
    esac
}

# missing FILE TEXT: an example whose package is not there says how to get it.
missing()
{
    if output=$("$attnhost" inspect "$top/examples/python/$1" 2>&1); then
        tap_skip "$1 says what is missing" "its package is installed"
        return
    fi
    case $output in
    *": no module $2 ("*) tap_ok "$1 says what is missing" ;;
    *) tap_not_ok "$1 says what is missing" "$output" ;;
    esac
}

# misdeclared LINE TEXT: a class with this line is refused, and TEXT says why.
misdeclared()
{
    cat >"$scratch/misdeclared.py" <<EOT
from attnhost.backend import Backend


class Mine(Backend):
    name, tensors = "mine", "numpy"
    $1

    def forward(self, q, out):
        pass
EOT
    output=$("$attnhost" inspect "$scratch/misdeclared.py" 2>&1)
    case $? in
    3) tap_try "a class with $1 is refused" test -z "${output##*class mine: $2*}" ;;
    *) tap_not_ok "a class with $1 is refused" "$output" ;;
    esac
}

backends_numpy()
{
    if ! can_embed; then
        tap_skip "backends in Python" "$embed_output"
        return
    fi
    missing flash_attn_3.py 'flash_attn_interface: pip install "git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper" (or fa3-fwd, without pages)'
    missing tilelang_decode.py 'tilelang: pip install tilelang'
    missing cute_decode.py 'cutlass: pip install nvidia-cutlass-dsl[cu13]'
    missing flashinfer.py 'flashinfer: pip install flashinfer-python'
    missing flashmla.py 'flash_mla: pip install sgl-flash-mla'
    missing sdpa.py 'torch: pip install torch'
    misdeclared 'dtypes = "f64, f3"' "dtypes: 'f3': accepted "
    misdeclared 'flags = ["sinks"]' "flags = \['sinks'\]: accepted a text"
    misdeclared 'traits = "deterministic",' "traits = ('deterministic',): accepted a text"
    misdeclared 'saves_kv = "no"' "saves_kv = 'no': accepted True or False"
    misdeclared 'dtype = "f32"' "dtype: did you mean dtypes?"
    tap_try "examples have 120 lines at most" sh -c '
        test "$(cat "$0"/*.py | wc -l)" -gt 0 &&
            wc -l "$0"/*.py | awk '"'"'$2 != "total" && $1 > 120 { print; long = 1 } END { exit long }'"'"'' \
        "$top/examples/python"
    if in_turn wrong_backends "backends in Python that are wrong on purpose" plugins/python python tests/python \
        examples/python host/check host/bench; then
        . "$top/tests/python/wrong_backends.sh"
    fi
    OLD_PATH=$PATH
    PATH=$(dirname "$attnhost"):$PATH
    documented "$top/docs/PYTHON_BACKENDS.md" "$scratch/blocks" "$scratch/guide"
    PATH=$OLD_PATH
}

# passes FILE PATTERN...: a sample of these cases, less than a minute of processor time.
passes()
{
    file=$top/$1
    shift
    for pattern; do
        set -- "$@" --filter "$pattern"
        shift
    done
    tap_try "${file##*/} passes a sample of the suite" "$attnhost" check --quick --jobs 1 --inactivity 120 "$@" "$file"
}

backends_torch()
{
    if ! can_embed; then
        tap_skip "backends on PyTorch" "$embed_output"
        return
    fi
    passes examples/python/sdpa.py 'CAPS-*' 'MEAN-*' 'KV-0*' 'LIFE-06*' 'INVAR-01.*random/*' 'PURE-*'
    passes examples/python/flex.py 'MEAN-06.windows/*' 'MEAN-09*' 'MEAN-13*' 'PURE-02*'
    passes tests/python/copies.py 'KV-01*' 'KV-02*' 'KV-04*'
}
