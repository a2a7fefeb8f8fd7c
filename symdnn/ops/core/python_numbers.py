"""The dtypes of Python numbers in ops with arrays: NumPy 2's rule (flag ``cast_policy``).

A Python number has no dtype. In an op with arrays it takes theirs. If its kind does not fit (a
float with ints), it takes the dtype of its kind by the flag ``floatX``. Arrays and NumPy scalars
keep their dtype.

Sizes, as ``x.shape[0]``, are Python ints in NumPy: with float32 they are float32, with float16 the
result is float16. A float of integer scalars and numbers keeps its digits beside float64
(:mod:`symdnn.ops.core.unrounded`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import NumberOutOfRange
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, tensor_type
from symdnn.graph.typing import Array
from symdnn.graph.values.value import number_array
from symdnn.graph.variable import Constant, Variable, constant
from symdnn.ops.core.dtype import upcast
from symdnn.ops.core.unrounded import with_digits, with_floats

_cast_policy, _floatx = config.reader("cast_policy"), config.reader("floatX")


def settled(
    variables: Sequence[Variable], first: int = 0, compared: bool = False
) -> list[Variable]:
    """Operands with each Python number as a constant of the dtype that it takes.

    The operands from ``first`` on share a dtype. If they are ``compared``, an int may be out of the
    dtype's range; else :class:`~symdnn.errors.NumberOutOfRange` is raised for it.
    """
    variables = with_digits(variables)
    rest = variables[first:]
    if len({getattr(v.type, "dtype", None) for v in rest}) > 1 and not compared:
        variables = [*variables[:first], *with_floats(rest)]
        variables = _with_sizes(variables, first)
        rest = variables[first:]
    kinds = {v.number_kind for v in rest if v.number_kind is not None}
    if not kinds:
        return list(variables)
    dtypes = [v.type.dtype for v in rest if v.number_kind is None]
    if _cast_policy() != "numpy2":
        _warn_of_lost_digits([v for v in rest if isinstance(v, Constant)], dtypes)
        return list(variables)
    wanted = target(dtypes, kinds)
    if not dtypes and is_number(rest):  # their own arithmetic is Python's
        wanted = upcast(*(_OWN[k] for k in kinds))
    if compared and float in kinds and dtypes and tensor_type(upcast(*dtypes)).is_discrete:
        wanted = "float64"  # as NumPy, exactly: the result is bool
    made = [_as(v, wanted, kinds, compared) for v in rest]
    return [*variables[:first], *made]


def _with_sizes(variables: Sequence[Variable], first: int) -> Sequence[Variable]:
    """Operands with the sizes among them in float32, where arrays have that precision at most."""
    rest = variables[first:]
    dtypes = {getattr(v.type, "dtype", None) for v in rest}
    if "int64" not in dtypes or not dtypes & _NARROW:
        return variables
    sizes = [v.number_kind is None and is_size(v) for v in rest]
    others = {v.type.dtype for v, size in zip(rest, sizes) if not size and v.number_kind is None}
    if not any(sizes) or not others <= _NARROW or _cast_policy() != "numpy2":
        return variables
    cast = operator("cast")
    made = [cast(v, "float32") if size else v for v, size in zip(rest, sizes)]
    return [*variables[:first], *made]


def narrowed(y: Variable, operands: Sequence[Variable]) -> Variable:
    """``y`` in float16 where it is float32 because of sizes alone, which float16 may not hold.

    bfloat16 needs nothing like it: it is the dtype of a result with integers, too.
    """
    if getattr(y.type, "dtype", "") != "float32" or _cast_policy() != "numpy2":
        return y
    sizes = [v.number_kind is None and is_size(v) for v in operands]
    others = {
        v.type.dtype for v, size in zip(operands, sizes) if not size and v.number_kind is None
    }
    return operator("cast")(y, "float16") if any(sizes) and others == {"float16"} else y


#: The dtypes of arrays beside which sizes are no float64.
_NARROW = frozenset({"float16", "float32", "complex64"})
#: Levels of arithmetic in which sizes are looked for, and its ops.
_SIZE_DEPTH = 8
_SIZE_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "IntDiv", "Maximum", "Minimum", "Neg"})


def is_size(v: Variable, depth: int = _SIZE_DEPTH) -> bool:
    """Whether this is the size of a dimension, or arithmetic of sizes and integers."""
    if isinstance(v, Constant):
        return v.read_of is not None
    node = v.owner
    if node is None or v.type.dtype != "int64" or depth == 0:
        return False
    kind = type(node.op).__name__
    if kind == "ShapeI":
        return True
    if kind == "DimShuffle":
        return bool(node.inputs[0].type.ndim == 0) and is_size(node.inputs[0], depth - 1)
    if kind not in _SIZE_ARITHMETIC:
        return False
    sizes = [is_size(i, depth - 1) for i in node.inputs]
    others = [i for i, size in zip(node.inputs, sizes) if not size]
    return any(sizes) and all(isinstance(i, Constant) and i.data.ndim == 0 for i in others)


#: The dtypes of Python's numbers.
_OWN = {int: "int64", float: "float64", complex: "complex128"}


def is_number(variables: Sequence[Variable]) -> bool:
    """Whether these stand for Python numbers, and one of them is known in a call only."""
    given = [v for v in variables if v.number_kind is not None]
    if len(given) != len(variables):
        return False
    return any(not isinstance(v, Constant) for v in given)


def kind_of_number(dtype: str) -> type | None:
    """The class of Python's numbers of this dtype; None for others."""
    return next((k for k, own in _OWN.items() if own == dtype), None)


def with_own_dtype(v: Variable) -> Variable:
    """A Python number as a constant of the dtype of its own arithmetic; others as they are.

    A constant alone has a float as ``floatX``. Variables that stand for numbers have it in full.
    """
    own = _OWN.get(v.number_kind) if v.number_kind is not None else None
    if not isinstance(v, Constant) or own in (None, v.type.dtype):
        return v
    if _cast_policy() != "numpy2":
        return v
    return Constant(np.full(v.data.shape, v.number, own), v.name, number=v.number)


def alike(variables: Sequence[Variable]) -> list[Variable]:
    """Variables in their common dtype, for joining and stacking; numbers as in :func:`settled`."""
    vs = settled(variables)
    dtype = upcast(*(v.type.dtype for v in vs))
    return [v if v.type.dtype == dtype else operator("cast")(v, dtype) for v in vs]


def target(dtypes: Sequence[str], kinds: set[type]) -> str:
    """The dtype that Python numbers of some kinds take in ops with arrays of these dtypes."""
    floating = str(_floatx())
    wide = "complex128" if floating == "float64" else "complex64"
    if not dtypes:
        return wide if complex in kinds else floating if float in kinds else "int64"
    common = upcast(*dtypes)
    t = tensor_type(common)
    if complex in kinds and not t.is_complex:
        return wide if t.is_discrete else upcast(common, "complex64")
    if float in kinds and t.is_discrete:
        return floating
    return "int64" if common == "bool" else common


def _as(v: Variable, dtype: str, kinds: set[type], compared: bool) -> Variable:
    """A number as a constant of a dtype; ints and bools in ops with floats become floats."""
    if not isinstance(v, Constant) or v.number is None:
        if v.number_kind is not None:
            return v if v.type.dtype == dtype else operator("cast")(v, dtype)
        ints = v.type.is_discrete and kinds != {int} and not compared
        return operator("cast")(v, dtype) if ints and v.type.dtype != dtype else v
    if v.name is None and type(v.number) in (int, float):
        return _settled(type(v.number) is int, repr(v.number), dtype, compared, v.data.shape)
    data = _data(v.number, dtype, compared).reshape(v.data.shape)
    exact = float(v.number) if isinstance(v.number, int | float) else None
    return Constant(data, v.name, exact)


#: How many constants of numbers are kept. Programs repeat few of them: 0, 1, 0.5, 1e-5.
_KEPT_NUMBERS = 2048


def number_constant(number: float, ndim: int) -> Constant:
    """The constant of an int or a float as an operand of ``ndim`` dimensions of size 1."""
    return _number(type(number) is int, repr(number), ndim, _floatx(), _cast_policy())


@lru_cache(_KEPT_NUMBERS)
def _number(is_int: bool, text: str, ndim: int, *flags: str) -> Constant:
    # By its text, since 0.0 equals -0.0.
    return constant(_read(is_int, text)).reshaped((1,) * ndim)


def _read(is_int: bool, text: str) -> float:
    return int(text) if is_int else float(text)


@lru_cache(_KEPT_NUMBERS)
def _settled(
    is_int: bool, text: str, dtype: str, compared: bool, shape: tuple[int, ...]
) -> Constant:
    number = _read(is_int, text)
    return Constant(_data(number, dtype, compared).reshape(shape), None, float(number))


def _data(number: Any, dtype: str, compared: bool) -> Array:
    t = TensorType(dtype)
    if not isinstance(number, int) or not t.is_integer:
        try:
            with np.errstate(all="ignore"):
                return np.asarray(number).astype(t.numpy)
        except TypeError:  # an int that no NumPy dtype can hold
            return np.asarray(float(number)).astype(t.numpy)
    info = np.iinfo(t.numpy)
    if info.min <= number <= info.max:
        return np.asarray(number, t.numpy)
    if compared:
        return number_array(number) if -(2**63) <= number < 2**64 else _beyond(number)
    raise NumberOutOfRange(
        f"the Python int {number} is out of the range of {dtype}; "
        f"cast the array, or pass a NumPy scalar such as np.int64({number})"
    )


def _beyond(number: int) -> Array:
    """A stand-in for an int that no integer dtype can hold, in comparisons with integers."""
    return np.asarray(np.inf if number > 0 else -np.inf)


_warned: list[str] = []


def _warn_of_lost_digits(numbers: Sequence[Constant], dtypes: Sequence[str]) -> None:
    """Warn once of a Python float in an op with float64 that ``floatX`` has rounded."""
    if _warned or config.cast_policy != "custom" or not {"float64", "complex128"} & set(dtypes):
        return
    for v in numbers:
        if isinstance(v.number, float) and float(v.data.reshape(-1)[0]) != v.number == v.number:
            _warned.append(str(v.number))
            warnings.warn(
                f"the Python float {v.number} in an op with float64 is rounded to {v.type.dtype}, "
                "since cast_policy=custom gives Python floats the dtype floatX. Set floatX=float64 "
                "or cast_policy=numpy2, or write np.float64(...). This warning is given once",
                UserWarning,
                stacklevel=2,
            )
            return
