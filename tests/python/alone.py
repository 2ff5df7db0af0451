# SPDX-License-Identifier: Apache-2.0
"""alone.py FOLDER LIBDIR: the package that lies in FOLDER needs nothing of LIBDIR: neither files that are
open nor plugins."""
import os
import sys

import attnhost

folder, libdir = (os.path.realpath(path) for path in sys.argv[1:])
host = attnhost.Host(platform={"device": "cpu"})
assert os.path.realpath(attnhost.__file__).startswith(folder), attnhost.__file__
assert all(os.path.realpath(plugin.file).startswith(folder) for plugin in host.plugins)
chosen = host.explain([attnhost.layer_group([0], num_q_heads=4, num_kv_heads=2, head_dim=16)])
assert chosen.require().units[0].backend == "cpu_native"
host.compose(chosen.units[0]).close()
with open("/proc/self/maps", encoding="utf-8") as maps:
    foreign = {line.split()[-1] for line in maps if libdir in line}
assert not foreign, foreign
