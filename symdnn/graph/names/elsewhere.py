"""Advice for names of other libraries that symdnn does not have: what to write instead.

Users arrive with the names of NumPy, PyTorch, JAX and TensorFlow. A module or a class without such
a name raises ``AttributeError`` all the same, with the advice of its table. (For a name that is
only misspelled Python itself asks whether another one was meant.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from symdnn.flag_types import nearest

__all__ = ["advice", "no_attribute", "of_a_variable", "refusing"]

#: Python asks "Did you mean" of objects with fewer names than this.
_SEARCHED_BY_PYTHON = 750

#: Where a function or a class of another module is looked for, and how messages call it.
_ROOMS = (
    "symdnn.tensor", "symdnn", "symdnn.nn", "symdnn.tensor.nnet", "symdnn.control",
    "symdnn.tensor.linalg", "symdnn.nn.functional", "symdnn.nn.optim", "symdnn.nn.utils",
    "symdnn.nn.models", "symdnn.nn.metrics", "symdnn.tensor.fft", "symdnn.distributions",
)  # fmt: skip
#: Those whose functions take a variable.
_OF_VARIABLES = ("symdnn.tensor", "symdnn.tensor.linalg", "symdnn.nn.functional")


def advice(table: str) -> Mapping[str, str]:
    """A table of :mod:`symdnn.graph.names.advice`, which is loaded for errors only."""
    return getattr(import_module("symdnn.graph.names.advice"), table, {})


def no_attribute(owner: object, what: str, name: str, table: str) -> AttributeError:
    """The error of an attribute that ``owner``, which messages call ``what``, does not have."""
    words = f"{what} has no attribute {name!r}"
    hint = advice(table).get(name) or _in_place(owner, name, table)
    hint = hint or _in_another_room(owner, name, table) or _likely(owner, name)
    return AttributeError(f"{words}; {hint}" if hint else words, name=name, obj=owner)


def _in_place(owner: object, name: str, table: str) -> str:
    """Of PyTorch's methods that change a tensor: the one that makes a new variable."""
    other = name[:-1]
    there = table == "VARIABLE" and name.endswith("_") and not name.startswith("_")
    there = there and hasattr(owner, other)
    return f"a variable is not changed: y = x.{other}(...) is a new one" if there else ""


def _in_another_room(owner: object, name: str, table: str) -> str:
    """The function or class of this name that a module of symdnn has."""
    of_variable = table in ("VARIABLE", "SHARED")
    if name.startswith("_") or not (of_variable or isinstance(owner, ModuleType)):
        return ""
    return of_a_variable(name) if of_variable else _found(name, _ROOMS)


def of_a_variable(name: str) -> str:
    """The function of this name that takes a variable."""
    return _found(name, _OF_VARIABLES, "(x, ...)")


def _found(name: str, rooms: Iterable[str], call: str = "") -> str:
    for room in rooms:
        found = getattr(_module(room), "__dict__", {}).get(name)
        if callable(found) and not (call and isinstance(found, type)):
            return f"{room}.{name}{call} does that"
    return ""


def _module(name: str) -> object:
    """A module that is loaded; an attribute such as ``symdnn.nn.metrics`` may be another's name."""
    above, _, own = name.rpartition(".")
    return sys.modules.get(name) or vars(sys.modules.get(above, sys)).get(own)


def _likely(owner: object, name: str) -> str:
    """A name that looks like this one, where Python's own traceback looks for none."""
    if name.startswith("_") or not isinstance(owner, ModuleType):
        return ""
    found = nearest(name, names) if len(names := dir(owner)) >= _SEARCHED_BY_PYTHON else ""
    return f"did you mean {found!r}?" if found else ""


def refusing(
    module: str, table: str = "", submodules: Collection[str] = ()
) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module, with the advice of such a table.

    ``submodules`` are imported when they are first asked for.
    """

    def get(name: str) -> Any:
        if name in submodules:
            return import_module(f"{module}.{name}")
        raise no_attribute(sys.modules[module], f"module {module!r}", name, table)

    return get
