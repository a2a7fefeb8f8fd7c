"""NumPy's functions on variables: those that call methods, and errors for the others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from symdnn.errors import SymbolicValueError

#: NumPy's functions that have another name in ``symdnn.tensor``.
_OTHER_NAMES = {
    "absolute": "abs", "amax": "max", "amin": "min", "around": "round", "add.reduce": "sum",
    "multiply.reduce": "prod", "maximum.reduce": "max", "minimum.reduce": "min",
    "add.accumulate": "cumsum", "multiply.accumulate": "cumprod", "multiply.outer": "outer",
    "maximum.accumulate": "cummax", "minimum.accumulate": "cummin",
    "logical_and.reduce": "all", "logical_or.reduce": "any",
}  # fmt: skip

#: What NumPy's functions do on variables. By default they raise an error.
#: :mod:`symdnn.compat.theano` lets them call the variables' methods, as in Theano.
numpy_calls: set[str] = set()

_NAMES_OF_METHODS = {"absolute": "__abs__", "negative": "__neg__", "conjugate": "conj"}


def by_method(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Call the first argument's method of that name with the others."""
    method = getattr(args[0], _NAMES_OF_METHODS.get(name, name))
    given = {k: v for k, v in options.items() if k != "out" or v is not None}
    return method(*args[1:], **given)


def refusal(name: str, module: str = "numpy") -> SymbolicValueError:
    """The error of NumPy's function of a variable, which names that of ``symdnn.tensor``.

    ``module`` is NumPy's: ``numpy.linalg.inv`` is ``T.linalg.inv``, where ``T.inv`` is Theano's
    ``1 / x``.
    """
    room = module.partition(".")[2]
    theirs = ".".join(filter(None, ["np", room, name]))
    ours = ".".join(filter(None, [room, name])) if room else _OTHER_NAMES.get(name, name)
    known: Any = sys.modules.get("symdnn.tensor")
    for part in ours.split("."):
        known = getattr(known, part, None)
    do = f"use T.{ours} of symdnn.tensor" if callable(known) else "symdnn.tensor has no such"
    return SymbolicValueError(f"{theirs} takes arrays, and a variable is a symbol: {do}")
