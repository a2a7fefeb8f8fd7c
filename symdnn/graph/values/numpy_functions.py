"""NumPy's and PyTorch's functions on variables: those that call methods, errors for the others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from symdnn.errors import SymbolicValueError
from symdnn.graph.names.elsewhere import advice, of_a_variable

#: NumPy's functions that have another name in ``symdnn.tensor``.
_OTHER_NAMES = {
    "absolute": "abs", "amax": "max", "amin": "min", "around": "round", "add.reduce": "sum",
    "multiply.reduce": "prod", "maximum.reduce": "max", "minimum.reduce": "min",
    "add.accumulate": "cumsum", "multiply.accumulate": "cumprod", "multiply.outer": "outer",
    "maximum.accumulate": "cummax", "minimum.accumulate": "cummin",
    "logical_and.reduce": "all", "logical_or.reduce": "any",
}  # fmt: skip

#: Modules whose functions have PyTorch's names that begin so.
_ROOMS = ("linalg_", "fft_", "special_")

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
    """The error of NumPy's or PyTorch's function of a variable, which names that of symdnn.

    ``module`` is theirs: ``numpy.linalg.inv`` is ``T.linalg.inv``, where ``T.inv`` is Theano's
    ``1 / x``. PyTorch calls that ``linalg_inv``.
    """
    package, _, room = module.partition(".")
    if package == "torch" and name.startswith(_ROOMS):
        room, _, name = name.partition("_")
    theirs = ".".join(filter(None, [{"numpy": "np"}.get(package, package), room, name]))
    rooms = ["", "nnet"] if room in ("", "special") else [room]
    ours = _OTHER_NAMES.get(name, name) if not room else name
    paths = [".".join(filter(None, [r, ours])) for r in rooms]
    known = next((p for p in paths if callable(_found(p))), None)
    do = f"use T.{known} of symdnn.tensor" if known else "symdnn.tensor has no such"
    if known is None and not room:
        do = {**advice("TENSOR"), **advice("NNET")}.get(name) or of_a_variable(name) or do
    kind = "tensors" if package == "torch" else "arrays"
    return SymbolicValueError(f"{theirs} takes {kind}, and a variable is a symbol: {do}")


def _found(path: str) -> Any:
    ours: Any = sys.modules.get("symdnn.tensor")
    for part in path.split("."):
        ours = getattr(ours, part, None)
    return ours
