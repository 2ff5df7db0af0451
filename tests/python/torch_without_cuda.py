#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_without_cuda.py LIB_DIR: make a PyTorch wheel usable without the 2 GB of CUDA libraries.

The wheels of PyPI link CUDA's libraries, and importing torch fails where they are missing, even if
no GPU is ever used. For each of those libraries this writes one into LIB_DIR (torch/lib), where
the wheel looks first, whose functions all answer "no device": 100, in the runtime and the driver.
For tests on machines without a GPU; a wheel built for the CPU needs nothing of this.
"""
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

SYSTEM = re.compile(r"(libc|libquadmath|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libz|ld-linux.*)\.so.*")
NO_DEVICE = 100


def readelf(*arguments):
    return subprocess.run(("readelf", "-W") + arguments, check=True, capture_output=True,
                          text=True).stdout


def needs(library):
    """Names of the libraries that it links, {version: library} of what it wants of them, and the
    undefined symbols as (name, version or "")."""
    linked = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library))
    versions, file = {}, ""
    for line in readelf("-V", library).splitlines():
        found = re.search(r"\bFile: (\S+)", line)
        file = found.group(1) if found else file
        found = re.search(r"\bName: (\S+)\s+Flags", line)
        if found and file:
            versions[found.group(1)] = file
    symbols = re.findall(r"\bUND (\w+)(?:@(\S+))?", readelf("--dyn-syms", library))
    return linked, versions, symbols


def write_library(folder, name, symbols):
    """A library with these functions: {version or "": {symbol, ...}}."""
    with tempfile.TemporaryDirectory() as scratch:
        source, script = os.path.join(scratch, "none.c"), os.path.join(scratch, "none.map")
        with open(source, "w", encoding="utf-8") as file:
            for symbol in sorted(set().union(*symbols.values())):
                if re.search(r"(String|Name)$", symbol):
                    file.write(f'const char *{symbol}(void) {{ return "no device"; }}\n')
                else:
                    file.write(f"int {symbol}(void) {{ return {NO_DEVICE}; }}\n")
        with open(script, "w", encoding="utf-8") as file:
            for version in sorted(filter(None, symbols)):
                file.write(f"{version} {{ {''.join(s + '; ' for s in sorted(symbols[version]))}}};\n")
        command = os.environ.get("CC", "cc").split() + [
            "-shared", "-fPIC", "-fno-builtin", "-w", "-o", os.path.join(folder, name), source,
            f"-Wl,-soname,{name}"]
        if any(symbols):
            command.append(f"-Wl,--version-script,{script}")
        subprocess.run(command, check=True)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: torch_without_cuda.py LIB_DIR")
    folder = sys.argv[1]
    present = set(os.listdir(folder))
    missing, plain = defaultdict(lambda: defaultdict(set)), set()
    for library in sorted(name for name in present if re.search(r"\.so(\.|$)", name)):
        linked, versions, symbols = needs(os.path.join(folder, library))
        for name in linked:
            if name not in present and not SYSTEM.fullmatch(name):
                missing[name]  # made even if nothing of it is named
        for symbol, version in symbols:
            if versions.get(version) in missing:
                missing[versions[version]][version].add(symbol)
            elif not version and re.match(r"cu|nv|nccl", symbol):
                plain.add(symbol)
    for index, (name, symbols) in enumerate(sorted(missing.items())):
        if index == 0:
            symbols[""] |= plain  # symbols without a version may come from any of them
        write_library(folder, name, symbols)


if __name__ == "__main__":
    main()
