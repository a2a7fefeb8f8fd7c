"""``install``: from then on ``import theano`` finds the modules of :mod:`.paths`.

Reading a name of Theano from this package, or importing a module below it by a path of Theano's
(``symdnn.compat.theano.tensor``), installs the paths too and gives what ``theano`` has there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from symdnn.compat.theano import finder, settings
from symdnn.compat.theano.absent import advice
from symdnn.compat.theano.paths import MODULES

__all__ = ["install", "name_of_theano"]

_HERE = "symdnn.compat.theano"


def install(environment: Mapping[str, str] | None = None) -> None:
    """Let ``import theano`` and its submodules find symdnn, in this process.

    Unset flags get Theano's defaults: ``floatX=float64``, ``cast_policy=custom``, ``device=cpu``.
    ``.theanorc`` (or the files of ``THEANORC``) and ``THEANO_FLAGS`` are read as by Theano; the
    default of ``environment`` is ``os.environ``. A second call does nothing.

    Raises ``ImportError`` where another ``theano`` is imported already, and
    :class:`~symdnn.errors.ConfigError` for a value that a flag does not take.
    """
    module = sys.modules.get("theano")
    if finder.is_installed():
        return
    if module is not None:
        where = getattr(module, "__file__", None) or "no file"
        raise ImportError(
            f"symdnn.compat.theano.install: theano is imported already (from {where}), and modules "
            "that were imported from it would stay. Call install() above the first `import "
            "theano`, or run the program by `python -m symdnn.compat.theano script.py`"
        )
    settings.config.start(os.environ if environment is None else environment)
    finder.install()


def name_of_theano(name: str) -> Any:
    """``theano.name``, where Theano has it; the paths are installed. The package's ``__getattr__``.

    Raises ``AttributeError`` for other names, with what to use instead.
    """
    top = finder.TheanoModule("theano", MODULES["theano"].split())
    if name == "__version__":
        return top.__version__
    if name.startswith("__") or (f"theano.{name}" not in MODULES and name not in dir(top)):
        raise AttributeError(f"module {_HERE!r} has no {name!r}: {advice(f'theano.{name}')}")
    install()
    return getattr(import_module("theano"), name)


class _BelowPackage(MetaPathFinder, Loader):
    """Finds the modules of the table below this package: they are those of ``theano``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = fullname.startswith(f"{_HERE}.") and fullname.removeprefix("symdnn.compat.")
        return ModuleSpec(fullname, self, is_package=True) if found in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        install()
        module = import_module(spec.name.removeprefix("symdnn.compat."))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module back its own ``__spec__``, which the import replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.append(_BelowPackage())
