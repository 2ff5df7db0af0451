# SPDX-License-Identifier: Apache-2.0
"""Builds the extension against an installed libattnhost, which pkg-config finds as `attnhost`
(PKG_CONFIG_PATH=PREFIX/lib/pkgconfig for a prefix that it does not search)."""
import os
import shlex
import subprocess
import sys

from setuptools import Extension, setup

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import generate  # noqa: E402


def pkg_config(*arguments):
    try:
        return subprocess.run(("pkg-config",) + arguments + ("attnhost",), check=True,
                              capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        sys.exit("attnhost: pkg-config is not installed")
    except subprocess.CalledProcessError:
        sys.exit("attnhost: pkg-config finds no attnhost; accepted: the library installed, and "
                 "PKG_CONFIG_PATH=PREFIX/lib/pkgconfig where its PREFIX is not a usual one")


INCLUDE = pkg_config("--variable=includedir") + "/attnhost"
LIBRARIES = pkg_config("--variable=libdir")
generate.generate(INCLUDE, os.path.join(HERE, "attnhost"))

setup(
    version=pkg_config("--modversion"),
    ext_modules=[Extension(
        "attnhost._call", ["src/call.c", "src/layout.c"], py_limited_api=True,
        depends=["src/dlpack_min.h", "attnhost/_layout.h"], include_dirs=[INCLUDE, "attnhost"],
        extra_compile_args=["-std=gnu11", "-O2"] + shlex.split(os.environ.get("ATTNHOST_CFLAGS", "")),
        library_dirs=[LIBRARIES], libraries=["attnhost"], runtime_library_dirs=[LIBRARIES])],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
