# SPDX-License-Identifier: Apache-2.0
"""Packages that are imported where they are not used: sglang's kernels and servers. Their names exist, nothing works."""
import importlib.abc
import importlib.machinery
import sys
import types


class _Name:
    """Any member of such a package: a class, a decorator, a constant."""

    __args__ = ()

    def __init__(self, *_, **__):
        pass

    def __call__(self, *arguments, **__):
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name()

    def __getitem__(self, _):
        return self

    def __mro_entries__(self, _):
        return ()

    def __or__(self, _):
        return self

    __ror__ = __or__


class _Kind(type):
    """A class that has any member."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name()


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (), {}) if name[:1].isupper() else _Name()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, importer, packages):
        self.importer, self.packages = importer, packages

    def find_spec(self, name, path=None, target=None):
        above = isinstance(sys.modules.get(name.rpartition(".")[0]), _Module)
        if not above and (name.split(".")[0] not in self.packages or not self._wanted()):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _wanted(self):
        """Does the importer's own code ask? Others look whether a package is there, and go without."""
        frame = sys._getframe(2)
        while frame and frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        return bool(frame) and frame.f_globals.get("__name__", "").split(".")[0] == self.importer

    def create_module(self, spec):
        made = _Module(spec.name)
        made.__version__ = "3.0.0"
        return made

    def exec_module(self, module):
        pass


def stub(importer, *packages):
    """Those of these packages that are not installed are stubs, from now on, where `importer` imports them."""
    sys.meta_path.append(_Finder(importer, packages))
