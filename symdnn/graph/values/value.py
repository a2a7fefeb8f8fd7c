"""Converts a user's values to arrays: constants by Theano's casting rules, inputs by type."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np

from symdnn.config import config
from symdnn.errors import ArgumentShapeMismatch, InputError, NumberOutOfRange, SymbolicValueError
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import DtypeLike
from symdnn.graph.values.dlpack import as_numpy_view

Array = np.ndarray[Any, Any]


def is_python_number(value: object) -> TypeGuard[int | float | complex]:
    """Whether it is a number of Python's own: no bool, and no NumPy scalar that is a ``float``."""
    return isinstance(value, int | float | complex) and not isinstance(value, bool | np.generic)


def constant_array(value: object, dtype: DtypeLike | None = None) -> Array:
    """The array of a constant: of a Python number :func:`number_array`, an array as it is."""
    if dtype is not None:
        return _array(value, numpy_dtype(TensorType(dtype).dtype))
    if isinstance(value, bool | np.bool_):
        return np.asarray(value, dtype=np.bool_)
    if is_python_number(value):
        return number_array(value)
    array = _array(value)
    if array.dtype == object or (array.dtype.kind in "USV" and array.dtype.name != "bfloat16"):
        raise InputError(f"cannot make a constant of {value!r} (a {type(value).__name__})")
    return array


def _array(value: Any, dtype: Any = None) -> Array:
    try:
        if type(value) in (int, float) and dtype is not None and dtype.kind in "fV":
            with np.errstate(all="ignore"):
                return np.asarray(float(value)).astype(dtype)
        if isinstance(value, _PYTHON_TYPES) and not _holds_masked(value):
            return np.asarray(value, dtype)  # it checks whether the numbers fit
        return np.asarray(array_from(value, "constant"), dtype)
    except OverflowError as error:
        raise NumberOutOfRange(f"{value} is out of the range of {dtype}") from error
    except SymbolicValueError:
        raise
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise InputError(f"cannot make a constant of {value!r:.80} (a {kind}): {error}") from error


def array_from(value: object, what: str) -> Array:
    """The array of a list, or of an object with NumPy's protocol, DLPack or the buffer protocol;
    also of a PyTorch tensor that has a gradient or is bfloat16.

    Raises :class:`~symdnn.errors.InputError`, which names ``what``, for other objects, and for
    masked arrays, since their mask would be lost.
    """
    if _is_masked(value) or _holds_masked(value):
        raise InputError(f"{what}: a masked array would lose its mask; pass x.filled(number)")
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # a matrix of NumPy has two dimensions in all its parts
    try:
        value = _of_torch(value)
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return as_numpy_view(value, what)
        return np.asarray(value)
    except (InputError, SymbolicValueError):
        raise
    except Exception as error:  # the protocols are code of other libraries
        kind = type(value).__name__
        raise InputError(f"{what}: no array can be made of this {kind}: {error}") from error


def _is_masked(value: object) -> bool:
    """Whether it is a masked array; NumPy imports what defines them where it is first named."""
    return "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray)


def _holds_masked(value: object) -> bool:
    """Whether a list has a masked array somewhere inside."""
    if not isinstance(value, list | tuple) or (value and isinstance(value[0], float | int)):
        return False
    return any(_is_masked(v) or _holds_masked(v) for v in value)


def _of_torch(value: Any) -> Any:
    """A PyTorch tensor as one that NumPy can read; any other value unchanged."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, getattr(torch, "Tensor", ())):
        return value
    plain: Any = value.detach()  # type: ignore[union-attr]
    if plain.is_conj():
        plain = plain.resolve_conj()
    if plain.is_neg():
        plain = plain.resolve_neg()
    if plain.dtype is not torch.bfloat16:
        return plain
    return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


#: Python's numbers and lists of them, whose types do not express a wish for a dtype.
_PYTHON_TYPES = (bool, int, float, complex, list, tuple, range)


def number_array(value: complex) -> Array:
    """The array of a Python number by itself.

    With ``cast_policy=numpy2`` ints are int64 and floats ``floatX``; else ints are as small as
    fits (Theano's rule), and floats ``floatX`` (float32 where that is exact).
    """
    weak = config.cast_policy == "numpy2"
    if isinstance(value, int):
        if weak and not -(2**63) <= value < 2**64:
            return np.asarray(float(value))  # with floats it is a number like others
        return np.asarray(value, _int_dtype(value)) if weak else _smallest_int(value)
    if isinstance(value, float):
        return np.asarray(value, config.floatX) if weak else _autocast_float(value)
    narrow = weak and config.floatX != "float64"
    return np.asarray(value, np.complex64 if narrow else np.complex128)


def _int_dtype(value: int) -> str:
    if not -(2**63) <= value < 2**64:
        raise NumberOutOfRange(f"the Python int {value} is out of the range of int64 and uint64")
    return "int64" if value < 2**63 else "uint64"


def _smallest_int(value: int) -> Array:
    for name in ("int8", "int16", "int32", "int64"):
        info = np.iinfo(name)
        if info.min <= value <= info.max:
            return np.asarray(value, dtype=name)
    return np.asarray(value, dtype=_int_dtype(value))


def _autocast_float(value: float) -> Array:
    if config.floatX != "float64":
        return np.asarray(value, dtype=config.floatX)
    single = np.asarray(value, dtype=np.float32) if abs(value) < 3e38 else None
    if single is not None and float(single) == value:
        return single
    return np.asarray(value, dtype=np.float64)


def as_numpy(
    value: object,
    type_: TensorType,
    what: str,
    *,
    strict: bool = False,
    allow_downcast: bool | None = None,
) -> Array:
    """``value`` as an array of ``type_``, without loss of precision.

    Python numbers and lists are converted. An array of any library is converted if no information
    is lost (int8 to float32, float32 to float64). ``allow_downcast=True`` permits loss, ``None``
    permits a Python float (not an array) for ``floatX``, ``strict=True`` refuses every conversion.

    Raises :class:`~symdnn.errors.InputError` (dtype) or
    :class:`~symdnn.errors.ArgumentShapeMismatch` (ndim, static shape); both name ``what``.
    """
    wanted = type_.numpy
    if isinstance(value, np.ndarray) and value.dtype == wanted and not _is_masked(value):
        array = np.asarray(value)
    elif strict:
        raise InputError(f"{what}: strict, wanted {type_}, got {_describe(value)}")
    else:
        array = _convert(value, type_, what, allow_downcast)
    check_shape(array, type_, what)
    return array


#: The largest floats that surely fit, and how many bits ints may have to be exact.
_FITTING = {"float32": (3e38, 24), "float64": (float("inf"), 53)}


def number_taker(type_: TensorType, allow_downcast: bool | None) -> Callable[[Any], Any]:
    """A function that makes arrays of most numbers as :func:`as_numpy` does, in less time.

    Other values, such as those that would be refused, it returns as they are.
    """
    dtype, name, array = type_.numpy, type_.dtype, np.array
    any_float = bool(allow_downcast) or name == "float64"

    def ints(value: Any) -> Any:
        if type(value) is int and low <= value <= high:
            return array(value, dtype)
        return array(value) if isinstance(value, np.generic) and value.dtype is dtype else value

    def floats(value: Any) -> Any:
        if type(value) is not float:
            return ints(value)
        if not -largest < value < largest:
            return value
        made = array(value, dtype)
        if any_float or made.item() == value or (allow_downcast is None and config.floatX == name):
            return made
        return value

    low, high = 0, -1
    if dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if name not in _FITTING:
        return ints
    largest, bits = _FITTING[name]
    low, high = -(2**bits), 2**bits
    return floats


def check_shape(array: Any, type_: TensorType, what: str) -> None:
    """Raise :class:`~symdnn.errors.ArgumentShapeMismatch` for an array of another ndim or shape."""
    if len(array.shape) != type_.ndim:
        raise ArgumentShapeMismatch(
            f"{what}: wanted {type_.ndim} dimension(s) ({type_}), got "
            f"{array.dtype}{tuple(array.shape)}"
        )
    for axis, (known, size) in enumerate(zip(type_.shape, array.shape)):
        if known is not None and known != size:
            note = " (it broadcasts, so it must be 1)" if known == 1 else ""
            raise ArgumentShapeMismatch(
                f"{what}: dimension {axis} is {known}{note} in {type_}, got shape {array.shape}"
            )


def _convert(value: object, type_: TensorType, what: str, allow_downcast: bool | None) -> Array:
    if hasattr(value, "type") and hasattr(value, "owner"):
        raise InputError(f"{what}: wanted a value of {type_}, got the symbolic variable {value}")
    array = array_from(value, f"{what}: wanted {type_}")
    if array.dtype.kind in "OUSmM":
        raise InputError(f"{what}: wanted {type_}, got {_describe(value)}")
    if not isinstance(value, _PYTHON_TYPES):
        value = array  # its dtype was chosen by the library that made it
    if type_.is_discrete and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(
            f"{what}: wanted {type_}, got {_describe(value)} with NaN or infinities, which no "
            "integer can hold"
        )
    if allow_downcast or _keeps_values(value, array, type_, allow_downcast):
        return array.astype(type_.numpy)
    raise InputError(
        f"{what}: wanted {type_}, got {_describe(value)}, which would lose precision. "
        f"Convert it yourself (x.astype({type_.dtype!r})) or allow it with allow_downcast "
        "(function: allow_input_downcast=True)"
    )


def _keeps_values(value: object, array: Array, type_: TensorType, allow: bool | None) -> bool:
    wanted = type_.numpy
    if array.dtype == wanted or np.can_cast(array.dtype, wanted, "safe"):
        return True
    if array.size == 0 and not isinstance(value, np.ndarray):
        return True
    if isinstance(value, np.ndarray | np.generic):
        return False
    if type_.is_float and allow is None and array.dtype.kind in "fiub":
        # Python floats are float64 by accident, not by the user's choice.
        return array.dtype.kind != "f" or type_.dtype == config.floatX or _exact(array, wanted)
    return _exact(array, wanted)


def _exact(array: Array, wanted: np.dtype[Any]) -> bool:
    with np.errstate(all="ignore"):
        cast = array.astype(wanted)
    if array.dtype.kind in "fc" and wanted.kind not in "fcV":
        return False
    if not np.array_equal(cast < 0, array < 0):  # an integer that has wrapped around
        return False
    return bool(np.array_equal(cast.astype(array.dtype), array, equal_nan=array.dtype.kind == "f"))


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{tuple(value.shape)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
