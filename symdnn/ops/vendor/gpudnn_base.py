"""The base of cuDNN's ops."""

from __future__ import annotations

from typing import Any, ClassVar

from symdnn.errors import ArgumentError
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.lowered.lowered import Lowered

__all__ = ["DnnBase", "constant_number"]


class DnnBase(Lowered):
    """Base of cuDNN's ops, under Theano's name."""

    abstract: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "float32", "float64")


def constant_number(what: str, value: Any) -> float:
    """``value`` as a Python float; raises ArgumentError for a symbolic one."""
    v = value if isinstance(value, Variable) else as_variable(value)
    if not isinstance(v, Constant) or v.data.size != 1:
        raise ArgumentError(f"{what}: wanted a number known when the graph is built, got {value!r}")
    return float(v.data.reshape(()))
