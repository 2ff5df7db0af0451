#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# second_prefix.sh: a build folder that is configured again, for another prefix, as README's install after
# its quickstart does: what is installed there looks for plugins, data and kernels there. It takes a minute: where the
# commit changes how attnhost is configured, or what knows the prefix, and in its turn (turn.sh).
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tools/tap.sh"
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs this
unset LD_LIBRARY_PATH ATTNHOST_PLUGIN_PATH
tap_folder scratch
umask 022

name="a second prefix of the same build"
case $build/ in
"$top"/)
    tap_skip "$name" "the build folder is the source's"
    tap_end
    ;;
esac
if ! turn=$(sh "$top/tests/tools/turn.sh" second_prefix configure.ac m4 Makefile.am attnhost.pc.in attnhost-plugin.pc.in \
    plugins/Makefile.am.inc plugins/triton_like/plugin.c host/select/rules_file.c host/select/open_host.c \
    host/plugin/loader_source.c host/embed/attnhost.c host/check/suite/profile.c host/check/suite/sandbox_start.c \
    tests/command/second_prefix.sh); then
    tap_skip "$name" "$turn"
    tap_end
fi

# The build folder is others' at the same time, so a copy is configured: of objects and libraries, in a
# folder from which the sources are where they are from the build folder.
source=$(sed -n 's/^srcdir = //p' "$build/Makefile")
copy=$scratch/tree/build prefix=$scratch/prefix
mkdir -p "$copy" && ln -s "$top"/* "$scratch/tree" 2>/dev/null
(cd "$build" && tar -cf - --exclude=./tests --exclude='./installed*' .) | (cd "$copy" && tar -xf -)
configured_again()
{
    cd "$copy" || return
    # Each argument of configure is quoted for a shell.
    eval "\"\$source/configure\" -q $(./config.status --config) --prefix='$prefix'"
}
tap_try "configure, for another prefix" configured_again
touch "$scratch/before"
tap_try "make install" make -C "$copy" -s install
compiled=$(find "$copy" -name '*.o' -newer "$scratch/before" | wc -l)
tap_try "it compiled what knows the prefix, and little else: $compiled objects" \
    test "$compiled" -ge 3 -a "$compiled" -le 60

stale()
{
    old=$(sed -n 's/^prefix = //p' "$build/Makefile")
    find "$prefix" -type f \( -name '*.so*' -o -path '*/bin/*' -o -name '*.pc' \) -exec grep -lE -- "$old/(bin|etc|include|lib|libexec|share)/" {} +
}
found=$(stale)
if test -z "$found"; then
    tap_ok "no installed file knows the first prefix"
else
    tap_not_ok "no installed file knows the first prefix" "$found"
fi
PKG_CONFIG_PATH=$prefix/lib/pkgconfig
export PKG_CONFIG_PATH
cp "$top"/examples/embed.c "$top"/examples/embed_model.h "$scratch" && cd "$scratch" || exit 1
# shellcheck disable=SC2046,SC2086
tap_try "embed.c builds" ${CC:-cc} -o embed embed.c $(pkg-config --cflags --libs attnhost) -lm
tap_try "embed runs on the plugins there" ./embed
tap_try "the command lists them" sh -c '"$0" list | grep -F "$1/lib/attnhost/plugins/cpu_native.so"' \
    "$prefix/bin/attnhost" "$prefix"

# Python there: by ctypes what attnhost.Host() does, so that nothing has to be downloaded.
if test "${PYTHON3:-python3}" != no && command -v "${PYTHON3:-python3}" >/dev/null; then
    tap_try "a program in Python finds them" "${PYTHON3:-python3}" -c '
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
host = ctypes.c_void_p()
assert library.attnhost_create(None, ctypes.byref(host), None) == 0
assert library.attnhost_load_installed(host, None) == 0
assert library.attnhost_num_plugins(host) > 3, library.attnhost_num_plugins(host)
' "$prefix/lib/libattnhost.so"
else
    tap_skip "a program in Python finds them" "python3 is not installed"
fi
tap_end
