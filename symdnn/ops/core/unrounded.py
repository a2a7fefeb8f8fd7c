"""Floats that are made of integer scalars and Python numbers, as ``0.15 / n`` is.

Such a float has the dtype ``floatX``, by which it is rounded. Beside float64 it is computed once
more from what it was made of, with all digits: as a Python number would be, and as in JAX.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symdnn.config import config
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable, constant
from symdnn.ops.core.dtype import promote

_cast_policy = config.reader("cast_policy")

_WIDE = {"float64", "complex128"}


def note_unrounded(node: Apply, given: Sequence[Variable]) -> None:
    """Note at a float scalar what it was made of, if that is integers and Python numbers."""
    out = node.outputs[0]
    if not _is_number(out.type) or out.type.is_discrete or out.type.dtype in _WIDE:
        return
    if all(_keeps_digits(v) for v in given):
        out.unrounded = (node.op, tuple(given))


def note_padded(padded: Variable, v: Variable) -> None:
    """Note what ``padded`` was made of, as ``v`` with more dimensions."""
    if v.unrounded is not None and padded.owner is not None:
        padded.unrounded = (padded.owner.op, (v,))


def _is_number(t: TensorType) -> bool:
    """Whether all dimensions are statically 1."""
    return isinstance(t, TensorType) and t.shape.count(1) == t.ndim


def _keeps_digits(v: Variable) -> bool:
    if v.unrounded is not None or v.number_kind is not None:
        return True
    return isinstance(v.type, TensorType) and v.type.is_integer and _is_number(v.type)


def with_digits(variables: Sequence[Variable]) -> Sequence[Variable]:
    """Operands of one op: beside float64 those that ``floatX`` has rounded have all digits."""
    if not any([v.unrounded for v in variables]) or _cast_policy() != "numpy2":
        return variables
    others = [v for v in variables if v.unrounded is None and v.number_kind is None]
    if _WIDE.isdisjoint(getattr(v.type, "dtype", "") for v in others):
        return variables
    return [v if v.unrounded is None else unrounded(v) for v in variables]


def with_floats(variables: Sequence[Variable]) -> Sequence[Variable]:
    """Operands of one op: integers beside such floats alone are as wide as these, not float64.

    So ``arange(n) * (0.5 / n)`` is ``floatX``, as ``arange(n) * 0.5`` is.
    """
    floats = [v.type.dtype for v in variables if v.unrounded is not None]
    if not floats or _cast_policy() != "numpy2":
        return variables
    rest = [v for v in variables if v.unrounded is None and v.number_kind is None]
    if not all([isinstance(v.type, TensorType) and v.type.is_discrete for v in rest]):
        return variables
    cast, dtype = operator("cast"), promote(*floats)
    return [cast(v, dtype) if v in rest else v for v in variables]


def unrounded(v: Variable) -> Variable:
    """``v``, computed in float64 from the integers and numbers that it is made of."""
    found: dict[Variable, Variable] = {}
    pending = [v]
    while pending:
        u = pending[-1]
        op, given = u.unrounded or (None, ())
        missing = [g for g in given if g not in found]
        if missing:
            pending += missing
            continue
        pending.pop()
        if u not in found:
            found[u] = _widened(u) if op is None else op(*(found[g] for g in given))
    return found[v]


def _widened(v: Variable) -> Variable:
    """An integer or a number in float64 or complex128."""
    if isinstance(v, Constant) and isinstance(v.number, int | float | complex):
        wide = "complex128" if isinstance(v.number, complex) else "float64"
        return constant(np.asarray(v.number, wide).reshape(v.data.shape))
    return v if v.type.dtype in _WIDE else operator("cast")(v, "float64")
