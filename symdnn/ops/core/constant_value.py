"""Static values of variables: a number, or the length of a vector."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from symdnn.errors import NdimMismatch, NotScalarConstantError, OptionError, SymbolicValueError
from symdnn.graph.evaluate import evaluate
from symdnn.graph.tracing import traced_number
from symdnn.graph.traverse import leaves
from symdnn.graph.type import TensorType
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.make_vector import MakeVector
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, ShapeI, SpecifyType

_KEEP_THE_ELEMENTS = (Alloc, DimShuffle, Reshape, SpecifyType)


def get_scalar_constant_value(v: TensorLike) -> Any:
    """The number that all elements of ``v`` are known to equal, as a 0-d array.

    Raises :class:`~symdnn.errors.NotScalarConstantError` if they are not known to.

    >>> get_scalar_constant_value(as_variable(2) + 3)
    array(5)
    """
    found = as_variable(v)
    while True:
        picked = _picked(found)
        if picked is not None:
            found = picked
        elif found.owner is not None and isinstance(found.owner.op, _KEEP_THE_ELEMENTS):
            found = found.owner.inputs[0]
        else:
            break
    size = _static_size(found)
    if size is not None:
        return np.array(size, found.dtype)
    if not all(isinstance(leaf, Constant) for leaf in leaves([found])):
        raise NotScalarConstantError(f"{v} is not known before it runs")
    (value,) = evaluate([found], {})
    array = np.asarray(value)
    if array.size == 0 or (array != array.flat[0]).any():
        raise NotScalarConstantError(f"{v} is not a single number but {array}")
    return array.reshape(-1)[0].reshape(())[...]


def _picked(v: Variable) -> Variable | None:
    """The scalar that ``v`` picks from a vector made of scalars."""
    if v.owner is None or v.type.ndim or len(v.owner.inputs) != 1:
        return None
    made = v.owner.inputs[0].owner
    index: tuple[Any, ...] = getattr(v.owner.op, "index", ())  # of a Subtensor
    if made is None or not isinstance(made.op, MakeVector) or len(index) != 1:
        return None
    (at,) = index
    inside = isinstance(at, int) and -len(made.inputs) <= at < len(made.inputs)
    return made.inputs[at] if inside else None


def _static_size(v: Variable) -> int | None:
    """The static value of a size that ``v`` reads, if a type has it."""
    if v.owner is None or not isinstance(v.owner.op, ShapeI):
        return None
    size = v.owner.inputs[0].type.shape[v.owner.op.axis]
    return None if size is None else int(size)


def get_vector_length(v: TensorLike) -> int:
    """The number of elements of a vector of static length, such as ``x.shape``."""
    vector = as_variable(v)
    if vector.type.ndim != 1:
        raise NdimMismatch("get_vector_length", "a vector", vector.type)
    (length,) = vector.type.shape
    if length is None:
        raise OptionError(f"get_vector_length: wanted a vector of static length, got {vector.type}")
    return int(length)


def known_number(v: Variable, wanted: str | None = None) -> Any:
    """The number that a scalar of constants and static sizes is, as of NumPy.

    If it is not known, None, or the error that Python's ``wanted`` raises.

    >>> known_number(as_variable(6) // 2)
    np.int64(3)
    """
    if isinstance(v.type, TensorType) and v.type.ndim == 0:
        with suppress(NotScalarConstantError):
            return get_scalar_constant_value(v)[()]
    if wanted is not None:
        raise SymbolicValueError(traced_number(v, wanted))
    return None


OPERATORS = {
    "get_scalar_constant_value": get_scalar_constant_value,
    "known_number": known_number,
}
