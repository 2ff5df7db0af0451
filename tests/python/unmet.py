# SPDX-License-Identifier: Apache-2.0
"""unmet.py PACKAGE: what the installed package requires and the environment has in no such version, for pip. Local versions
(2.13.0+cpu) are left out: no package index has them. What is not there at all is left out, too, as a run does not import it."""
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.specifiers import SpecifierSet

for line in requires(sys.argv[1]) or []:
    needed = Requirement(line)
    if needed.marker and not needed.marker.evaluate({"extra": ""}):
        continue
    wanted = SpecifierSet(",".join(str(one).split("+")[0] for one in needed.specifier))
    try:
        if not wanted.contains(version(needed.name).split("+")[0], prereleases=True):
            print(f"{needed.name}{wanted}")
    except PackageNotFoundError:
        pass
