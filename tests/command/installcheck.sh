#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# installcheck.sh: the installed package by itself. The command finds its plugins; an author's plugin
# and the programs that embed the host are built from the installed examples with what pkg-config says,
# and run.
# shellcheck disable=SC2086,SC2046,SC2016
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"
. "$top/tests/command/documented.sh"

attnhost=$ATTNHOST_TEST_BINDIR/attnhost
compiler=${CC:-cc}
tap_folder scratch
umask 022
PKG_CONFIG_PATH=$ATTNHOST_TEST_LIBDIR/pkgconfig
export PKG_CONFIG_PATH
unset LD_LIBRARY_PATH # what is linked with attnhost.pc starts without it
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs this

if test -n "$ATTNHOST_TEST_DESTDIR"; then
    tap_skip "installed package" "pkg-config's paths do not know DESTDIR"
    tap_end
fi

variable()
{
    pkg-config --variable="$1" attnhost-plugin
}

tap_try "attnhost-plugin.pc: the map file is installed" test -f "$(variable mapfile)"
tap_try "attnhost-plugin.pc: plugindir" test "$(variable plugindir)" = "$ATTNHOST_TEST_INSTALLED_PLUGINS"
tap_try "attnhost-plugin.pc: no libraries" test -z "$(pkg-config --libs attnhost-plugin)"
tap_try "attnhost-plugin.pc: the conformance tool" test -x "$(variable conformance_tool)"
cat >"$scratch/version.c" <<EOF
#include <attn_plugin.h>
_Static_assert(ATTN_ABI_MAJOR == $(variable abi_major), "major");
_Static_assert(ATTN_ABI_MINOR == $(variable abi_minor), "minor");
EOF
tap_try "attnhost-plugin.pc: the version is the headers'" \
    $compiler $(pkg-config --cflags attnhost-plugin) -c -o "$scratch/version.o" "$scratch/version.c"

tap_try "attnhost list" "$attnhost" list
tap_try "attnhost list names cpu_native" sh -c '"$0" list | grep -q cpu_native' "$attnhost"
tap_try "attnhost inspect cpu_native" "$attnhost" inspect cpu_native

tap_try "man pages and completion are installed" sh -c 'for file in "$@"; do test -s "$file" || exit 1; done' sh \
    "$ATTNHOST_TEST_MAN/attnhost.1" "$ATTNHOST_TEST_MAN/attnhost-run.1" \
    "$ATTNHOST_TEST_DATA/bash-completion/completions/attnhost" \
    "$ATTNHOST_TEST_DATA/zsh/site-functions/_attnhost" \
    "$ATTNHOST_TEST_DATA/fish/vendor_completions.d/attnhost.fish"

# The examples as a user has them: a copy, elsewhere, writable.
cp -R "$ATTNHOST_TEST_EXAMPLES" "$scratch/examples"
chmod -R u+w "$scratch/examples"
cd "$scratch/examples" || exit 1
for example in *.ini; do
    case $example in
    cuda.ini | deepseek_v3_cuda.ini | hopper.ini | qwen3_next_cuda.ini)
        tap_try "attnhost explain $example" "$attnhost" explain "$example" --set platform.simulate=sm90 ;;
    *)
        tap_try "attnhost run $example" sh -c '"$0" run "$1" >"$1.out"' "$attnhost" "$example" ;;
    esac
done
# counts FILE: of the first report in it what is the same on every machine.
counts()
{
    awk '/^(requests|tokens|paths|verify|kv tokens) / {
             sub(/, [0-9.]+ s$|, max abs.*/, ""); print; if (/^kv/) exit }' "$1"
}
counts quickstart.ini.out >counted
tap_try "a report has its counts" test "$(wc -l <counted)" -eq 5
for page in README.md docs/FIRST_HOUR.md; do
    counts "$ATTNHOST_TEST_DOCS/$page" >printed
    tap_try "$page shows the results of quickstart.ini" diff counted printed
done

# The rules of selection: installed, and read where the program lies, wherever that is.
tap_try "the rules are installed" test -r "$(dirname "$(variable mapfile)")/selection.ini"
mkdir -p moved/bin moved/share/attnhost
cp "$attnhost" moved/bin/
sed 's/^text = processors$/text = these very rules/' "$top/host/select/selection.ini" \
    >moved/share/attnhost/selection.ini
tap_try "a program reads the rules next to it" sh -c '
    moved/bin/attnhost explain quickstart.ini --set attention.attention_backend=auto \
        --set platform.simulate=cpu | grep -q "these very rules"'
echo '[ordr.x]' >>moved/share/attnhost/selection.ini
tap_try "a fault in the rules is named" sh -c '
    moved/bin/attnhost explain quickstart.ini 2>&1 | grep -q "selection.ini:[0-9]*: unknown section"'

# Another backend by one line, and the folder in which its file lies. Of the suite some cases, whether it is built and
# linked as it must be: README's command below runs a sample, `make check` all of them on the same sources, and, where
# the commit changes them, the commands of the guide. Of runs with two backends the first requests.
few="--quick --filter LOAD-* --filter NEGO-* --filter MEAN-*"
tap_try "make in examples/plugin" make -C plugin CC="$compiler"
tap_try "attnhost inspect example.so" "$attnhost" inspect plugin/example.so
tap_try "attnhost check example.so" "$attnhost" check $few plugin/example.so
for example in hybrid qwen3_next falcon_h1 minimax lfm2; do
    tap_try "attnhost run $example.ini, decode by the example plugin" \
        "$attnhost" run "$example.ini" --max-requests 12 --set plugins.path=plugin/example.so \
        --decode-attention-backend example_rows
done
if command -v cmake >/dev/null; then
    tap_try "cmake in examples/plugin" cmake -S plugin -B plugin/build
    tap_try "cmake --build" cmake --build plugin/build
    tap_try "attnhost check of what CMake built" "$attnhost" check $few plugin/build/example.so
else
    tap_skip "examples/plugin by CMake" "cmake is not installed"
fi
# The same in C++.
if command -v "${CXX:-c++}" >/dev/null; then
    tap_try "make in examples/plugin_cpp" make -C plugin_cpp CXX="${CXX:-c++}"
    tap_try "attnhost check example_cpp.so" "$attnhost" check $few plugin_cpp/example_cpp.so
    tap_try "it exports attn_plugin_entry alone" sh -c '
        test "$(nm -D --defined-only plugin_cpp/example_cpp.so | cut -d " " -f 3)" = attn_plugin_entry'
else
    tap_skip "examples/plugin_cpp" "no C++ compiler here"
fi
# A CUDA plugin with kernels of its own, where nvcc is, for one of the architectures (the guide's command below takes
# them all); without a GPU it is listed and asked.
tap_try "make in examples/plugin_cuda" make -C plugin_cuda CC="$compiler" CODES=sm_90
tap_try "attnhost inspect example_cuda.so" "$attnhost" inspect plugin_cuda/example_cuda.so
tap_try "it exports attn_plugin_entry alone" sh -c '
    test "$(nm -D --defined-only plugin_cuda/example_cuda.so | cut -d " " -f 3)" = attn_plugin_entry'
tap_try "attnhost check example_cuda.so, what needs no GPU" \
    "$attnhost" check --quick --filter 'LOAD-*' --filter 'NEGO-*' --filter 'CAPS-*' plugin_cuda/example_cuda.so
if command -v cmake >/dev/null; then
    tap_try "cmake in examples/plugin_cuda" cmake -S plugin_cuda -B plugin_cuda/build -DCODES=sm_90
    tap_try "cmake --build" cmake --build plugin_cuda/build
    tap_try "attnhost inspect of what CMake built" \
        "$attnhost" inspect plugin_cuda/build/example_cuda.so
else
    tap_skip "examples/plugin_cuda by CMake" "cmake is not installed"
fi
tap_try "profiles are installed" "$attnhost" check --profile paged-kv --list plugin/example.so
sed 's/^attention_backend *=.*/attention_backend = example_rows/' quickstart.ini >example.ini
tap_try "one line of quickstart.ini names the backend" grep -q example_rows example.ini
tap_try "attnhost run with attention_backend = example_rows" \
    "$attnhost" run example.ini --max-requests 12 --set plugins.path="$scratch/examples/plugin" --json result.json
tap_try "example_rows did the work" grep -q '"example_rows' result.json

tap_try "embed.c builds" $compiler -O2 -o embed embed.c $(pkg-config --cflags --libs attnhost) -lm
tap_try "embed runs" ./embed
tap_try "mla_prefix.c builds" \
    $compiler -O2 -o mla_prefix mla_prefix.c $(pkg-config --cflags --libs attnhost) -lm
tap_try "mla_prefix runs" ./mla_prefix
tap_try "select.c builds" $compiler -O2 -o select select.c $(pkg-config --cflags --libs attnhost)
tap_try "select chooses" ./select models/deepseek_v3.json platform.device=cpu
tap_try "embed_cuda.c builds" \
    $compiler -O2 -o embed_cuda embed_cuda.c $(pkg-config --cflags --libs attnhost) -lm -ldl
output=$(./embed_cuda 2>&1 </dev/null)
case $? in
0) tap_ok "embed_cuda runs" ;;
77) tap_skip "embed_cuda runs" "$output" ;;
*) tap_not_ok "embed_cuda runs" "$output" ;;
esac
# The pages are tried in this order in one clone. Their blocks that install attnhost are skipped: the clone
# links to the prefix that is tested, and README's line for PATH is run.
unset PREFIX
cd "$scratch" || exit 1
mkdir build && ln -s "$(variable prefix)" build/installed
eval "$(grep '^export PATH=\$PWD/build/installed' "$ATTNHOST_TEST_DOCS/README.md")"
tap_try "attnhost is found after README's export" \
    test "$(command -v attnhost)" = "$PWD/build/installed/bin/attnhost"
for file in README.md docs/FIRST_HOUR.md docs/PLUGIN_GUIDE.md docs/RUN.md; do
    documented "$ATTNHOST_TEST_DOCS/$file" "$scratch/blocks.$(basename "$file")" "$scratch"
done
tap_try "README has 120 lines at most" test "$(wc -l <"$ATTNHOST_TEST_DOCS/README.md")" -le 120
# Pages that are read one after the other in one clone install it into one prefix.
for file in README.md docs/FIRST_HOUR.md docs/PLUGIN_GUIDE.md; do
    tap_try "$file: the prefix is build/installed" sh -c '
        grep -q "PWD/build/installed" "$1" && ! grep -n -e "--prefix=" -e "HOME/attnhost" "$1"' sh "$ATTNHOST_TEST_DOCS/$file"
done
# All other pages: what is on them is marked, too.
(cd "$ATTNHOST_TEST_DOCS" && find . -name '*.md') | sort >"$scratch/pages"
tap_try "the docs are installed" test "$(wc -l <"$scratch/pages")" -ge 20
while read -r file; do
    case $file in
    ./README.md | ./docs/FIRST_HOUR.md | ./docs/RUN.md | ./docs/PLUGIN_GUIDE.md) continue ;;
    ./docs/PYTHON_BACKENDS.md) continue ;; # by tests/python/backends.sh
    esac
    documented "$ATTNHOST_TEST_DOCS/$file" "$scratch/blocks/$file" "$scratch"
done <"$scratch/pages"
# Links between pages, and to pictures.
while read -r file; do
    sed -n 's/](\([^)#]*\)[^)]*)/\n&\n/gp' "$ATTNHOST_TEST_DOCS/$file" |
        sed -n 's/^](\([^):#]*\.\(md\|png\)\)[^)]*)$/\1/p' | sort -u | while read -r link; do
        test -e "$ATTNHOST_TEST_DOCS/$(dirname "$file")/$link" || echo "$file: $link"
    done
done <"$scratch/pages" >"$scratch/broken"
tap_try "links of the installed docs lead somewhere" sh -c '! grep . "$1"' sh "$scratch/broken"
tap_end
