"""Makes Theano's modules when they are imported, from the table of :mod:`.paths`."""

from __future__ import annotations

import dis
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from symdnn.compat.theano.absent import advice
from symdnn.compat.theano.paths import FUNCTIONS_FIRST, MODULES
from symdnn.graph.values.numpy_functions import numpy_calls
from symdnn.graph.variable import Constant, Shared, Variable

__all__ = ["CLASS_NAMES", "TheanoModule", "install", "is_installed"]

_OWN = "symdnn.compat.theano.names."


class _NotOffered(ModuleNotFoundError):
    """A module of Theano that is not there, with what to use instead."""


class TheanoModule(ModuleType):
    """A module of Theano's, whose names are looked up in modules of symdnn when they are read."""

    def __init__(self, name: str, sources: Sequence[str]) -> None:
        super().__init__(name, f"``{name}`` of Theano, by symdnn.")
        self._sources = tuple(sources)
        self.__path__: list[str] = []  # every module may have submodules
        self.__file__ = f"<{name} by symdnn.compat.theano>"

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [n for n in dir(self) if not n.startswith("_")]
        if name.startswith("__") and name not in ("__version__", "__api_version__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in MODULES and full not in FUNCTIONS_FIRST:
            return importlib.import_module(full)
        for source in self._modules():
            found = vars(source).get(name, source)
            if _is_imported(source, name, found):
                continue
            keeps = found is not source
            if not keeps and hasattr(source, "__getattr__"):
                found = getattr(source, name, source)
            if found is not source:
                if keeps:
                    vars(self)[name] = found
                return found
        if full in MODULES:
            return importlib.import_module(full)
        if _imports_a_name(sys._getframe(1)):
            # Python's own error would replace an AttributeError, and its advice.
            raise ImportError(f"cannot import {name!r} from {self.__name__!r}: {advice(full)}")
        raise AttributeError(f"module {self.__name__!r} has no {name!r}: {advice(full)}")

    def __setattr__(self, name: str, value: object) -> None:
        full = f"{self.__name__}.{name}"
        if isinstance(value, TheanoModule) and full in FUNCTIONS_FIRST:
            return  # what import does; the function of that name is what Theano has there
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        names = set(super().__dir__())
        for source in self._modules():
            names |= set(getattr(source, "__all__", ()) or dir(source))
            names -= {n for n in vars(source) if _is_imported(source, n, vars(source)[n])}
        names |= {m.removeprefix(f"{self.__name__}.").partition(".")[0] for m in MODULES
                  if m.startswith(f"{self.__name__}.")}  # fmt: skip
        return sorted(n for n in names if n not in ("annotations",))

    def _modules(self) -> list[ModuleType]:
        found = []
        for source in self._sources:
            own = source.partition(".")[0] != "symdnn"
            try:
                found.append(importlib.import_module(_OWN + source if own else source))
            except ModuleNotFoundError as error:
                # A part of symdnn that this version lacks; its names are then not offered.
                if own or error.name is None or not error.name.startswith("symdnn."):
                    raise
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


def _imports_a_name(frame: FrameType) -> bool:
    """Whether what runs in a frame is ``from module import name``."""
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]


def _is_imported(source: ModuleType, name: str, value: object) -> bool:
    """Whether ``name`` is a part of symdnn or of typing that ``source`` imports for itself."""
    if name in getattr(source, "__all__", ()) or not source.__name__.startswith(_OWN[:-1]):
        return False
    if isinstance(value, ModuleType):
        return value.__name__.startswith("symdnn.") and not value.__name__.startswith(_OWN)
    return name in ("Any", "Callable", "ClassVar", "Mapping", "Sequence", "annotations")


class _Finder(MetaPathFinder, Loader):
    """Finds and loads the modules of the table."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "theano":
            return None
        if fullname in MODULES:
            return ModuleSpec(fullname, self, is_package=True)
        raise _NotOffered(f"no module named {fullname!r}: {advice(fullname)}", name=fullname)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return TheanoModule(spec.name, MODULES[spec.name].split())

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: names are looked up when they are read."""


_FINDER = _Finder()


def is_installed() -> bool:
    """Whether ``import theano`` finds the modules of the table."""
    return _FINDER in sys.meta_path


#: NumPy's functions that work on Theano's variables, since they call the methods of these names.
_NUMPY_CALLS = """
    absolute arccos arccosh arcsin arcsinh arctan arctanh argmax argmin argsort ceil clip conjugate
    cos cosh cumprod cumsum deg2rad diagonal exp exp2 expm1 floor log log10 log1p log2 max mean min
    negative prod ptp rad2deg ravel repeat reshape round sin sinh sort sqrt squeeze std sum
    swapaxes tan tanh trace transpose trunc var
"""


#: Theano's names of the classes of variables, by which programs tell them apart. Pickles go by
#: ``__qualname__``, which stays.
CLASS_NAMES: dict[type, str] = {
    Variable: "TensorVariable", Constant: "TensorConstant", Shared: "TensorSharedVariable",
}  # fmt: skip


def install() -> None:
    """Put the finder before all others, so that an installed Theano is not found.

    NumPy's functions of variables then call their methods, as they do with Theano's, and
    ``type(v).__name__`` is Theano's.
    """
    sys.meta_path.insert(0, _FINDER)
    for of_variables, name in CLASS_NAMES.items():
        of_variables.__name__ = name
    numpy_calls.update(_NUMPY_CALLS.split())
