"""Types of variables: dtype and static shape, in which any dimension may be unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

from symdnn.config import config
from symdnn.errors import DimensionMismatch, DtypeError, InputError, ShapeMismatch
from symdnn.graph.names.dim import Dim, SizeOrName
from symdnn.graph.typing import DtypeLike
from symdnn.graph.values.type_values import TypeValues

__all__ = [
    "DTYPES", "OpaqueType", "TensorType", "Type", "dtype_name", "elements", "float_limits",
    "numpy_dtype", "tensor_type",
]  # fmt: skip

_INTS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *_INTS, *_FLOATS, *_COMPLEX)

_NUMPY = {name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in DTYPES}


_NAMES = {dtype: name for name, dtype in _NUMPY.items()}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """``dtype.name``, from a table, since NumPy builds the string at each access."""
    return _NAMES.get(dtype) or dtype.name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype object for one of :data:`DTYPES` (bfloat16 comes from ``ml_dtypes``)."""
    return _NUMPY[name]


def float_limits(dtype: Any) -> Any:
    """``numpy.finfo`` of a float dtype, also of bfloat16 and the types of ``ml_dtypes``."""
    known = _NUMPY.get(dtype) or np.dtype(getattr(ml_dtypes, str(dtype), dtype))
    return ml_dtypes.finfo(known)  # type: ignore[no-untyped-call]


class _ComputedOnce:
    """A property that is computed once, since its object never changes."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        if owner is None:
            return self
        # The instance's own entry hides this property from now on.
        value = owner.__dict__[self.name] = self.compute(owner)
        return value


if TYPE_CHECKING:
    kept = property
else:
    kept = _ComputedOnce


class Type:
    """The static knowledge about a variable, before any value exists."""

    #: Whether it is an integer or bool scalar, such as a size, bound, count or condition. These
    #: stay on the host, whatever the device.
    is_integer_scalar: Any = False
    #: Names of the sizes; None if there are none.
    names: Any = None

    def accepts(self, other: Type) -> bool:
        """Whether a variable of type ``other`` may be used for one of this type."""
        return self == other

    def agrees_in_names(self, other: Type) -> bool:
        """Whether no size has one name here and another one in ``other``."""
        return True


@dataclass(frozen=True)
class OpaqueType(Type):
    """Bytes that belong to a kernel (an RNN's reserve space, a dropout mask).

    It has no dtype and no shape. The chosen kernel gives its size when a plan is made, and the
    value never leaves its device. ``tag`` identifies the forward and the backward op that share it.
    """

    tag: str

    def __str__(self) -> str:
        return f"Opaque({self.tag})"


@dataclass(frozen=True, init=False)
class TensorType(TypeValues, Type):
    """A dense array: ``dtype`` (one of :data:`DTYPES`) and ``shape`` (``None`` where unknown).

    As in Theano, ``TensorType("float32", (False, True))`` has broadcast flags instead of sizes
    (``True`` is a static 1), and calling a type makes a variable of it. ``name`` is accepted for
    compatibility with Theano; ``dtype="floatX"`` is the value of that flag.

    An unknown size may have a name, a string or a :class:`~symdnn.Dim`: ``("batch", 784)`` has the
    ``shape`` ``(None, 784)`` and the ``names`` ``(Dim("batch"), None)``. Names do not count in
    comparisons.
    """

    dtype: str
    shape: tuple[int | None, ...]
    names: tuple[Dim | None, ...] | None = field(default=None, compare=False)

    def __init__(
        self,
        dtype: DtypeLike,
        shape: Sequence[SizeOrName] | None = None,
        *,
        broadcastable: Iterable[bool] | None = None,
        name: str | None = None,
    ) -> None:
        name = _dtype_name(dtype)
        if shape is None:
            shape = tuple(broadcastable) if broadcastable is not None else ()
        if isinstance(shape, Dim | str | int):
            raise InputError(f"TensorType: wanted a sequence of sizes, got {shape!r}: ({shape!r},)")
        object.__setattr__(self, "dtype", name)
        dims = tuple(
            [d if d is None or (type(d) is int and d >= 0) else _dimension(d) for d in shape]
        )
        if Dim in map(type, dims):
            names = tuple([d if type(d) is Dim else None for d in dims])
            object.__setattr__(self, "names", names)
            dims = tuple([None if type(d) is Dim else d for d in dims])
        object.__setattr__(self, "shape", dims)

    @kept
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @kept
    def is_integer_scalar(self) -> bool:
        """Whether it is an integer or bool scalar: such values stay on the host."""
        return not self.shape and self.is_discrete

    @kept
    def broadcastable(self) -> tuple[bool, ...]:
        """Theano's pattern: ``True`` where a dimension is statically 1."""
        return tuple([d == 1 for d in self.shape])

    @property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's dtype object."""
        return _NUMPY[self.dtype]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """:attr:`numpy`, under Theano's name."""
        return self.numpy

    @kept
    def is_float(self) -> bool:
        """Whether the dtype is a real floating-point one."""
        return self.dtype in _FLOATS

    @kept
    def is_complex(self) -> bool:
        """Whether the dtype is complex."""
        return self.dtype in _COMPLEX

    @kept
    def is_integer(self) -> bool:
        """Whether the dtype is an integer one (bool is not)."""
        return self.dtype in _INTS

    @kept
    def is_discrete(self) -> bool:
        """Whether the dtype is bool or integer."""
        return self.dtype == "bool" or self.dtype in _INTS

    @kept
    def is_differentiable(self) -> bool:
        """Whether gradients with respect to such a variable exist."""
        return not self.is_discrete

    @kept
    def is_static(self) -> bool:
        """Whether every dimension is known."""
        return None not in self.shape

    def with_shape(self, shape: Iterable[int | None]) -> TensorType:
        """The same dtype with another static shape, without names."""
        sizes = tuple(shape)
        if sizes == self.shape and self.names is None:
            return self
        return tensor_type(self.dtype, sizes)

    def with_dtype(self, dtype: str) -> TensorType:
        """The same static shape, and names, with another dtype."""
        return tensor_type(dtype, self.shape).with_names(self.names)

    def with_names(self, names: Iterable[Dim | None] | None) -> TensorType:
        """The same dtype and shape with these names, or none; known sizes lose theirs."""
        if names is None and self.names is None:
            return self
        pairs = zip(self.shape, names or self.shape)
        return TensorType(self.dtype, [n if d is None else d for d, n in pairs])

    def entry(self) -> TensorType:
        """The type of an entry along the first dimension."""
        names = None if self.names is None else self.names[1:]
        return self.with_shape(self.shape[1:]).with_names(names)

    def accepts(self, other: Type) -> bool:
        """Equal dtype and ndim, and equal sizes wherever both are known."""
        return (
            isinstance(other, TensorType)
            and self.dtype == other.dtype
            and self.ndim == other.ndim
            and all(a == b or a is None or b is None for a, b in zip(self.shape, other.shape))
        )

    def agrees_in_names(self, other: Type) -> bool:
        """Whether no size has one name here and another one in ``other``."""
        pairs = zip(self.names or (), other.names or ())
        return all(a is None or b is None or a.agrees(b) for a, b in pairs)

    def takes_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether a value of ``shape`` may be of this type."""
        own = self.shape
        if len(shape) != len(own):
            return False
        return shape == own or all([d is None or d == n for d, n in zip(own, shape)])

    def check_value_shape(self, shape: tuple[int, ...], what: str) -> None:
        """Raise :class:`DimensionMismatch` unless a value of ``shape`` is of this type."""
        if not self.takes_shape(shape):
            raise DimensionMismatch(f"{what}: wanted shape {self.shape_text()}, got {shape}")

    def shape_text(self) -> str:
        """The static shape as printed: ``(?, 3, 1)``, or ``(batch, 3, 1)``."""
        names = self.names or (None,) * self.ndim
        inner = ", ".join(str(n or "?") if d is None else str(d) for d, n in zip(self.shape, names))
        return f"({inner},)" if self.ndim == 1 else f"({inner})"

    def __getstate__(self) -> dict[str, Any]:
        # Without the values of computed properties.
        return {"dtype": self.dtype, "shape": self.shape, "names": self.names}

    def __call__(self, name: Any = None) -> Any:
        """A new variable of this type; raises :class:`~symdnn.errors.InputError` unless its name
        is a string or None."""
        from symdnn.graph.variable import Variable  # variable.py needs this module first

        if name is not None and not isinstance(name, str):
            what = f"wanted a string as its name, got {type(name).__name__}"
            raise InputError(f"a new variable of type {self}: {what}")
        if self.dtype == "float64" and config.warn_float64 != "ignore":
            from symdnn.graph.values.float64 import report_float64_input

            report_float64_input(name)
        return Variable(self, name)

    def __str__(self) -> str:
        return f"{self.dtype}{self.shape_text()}"

    def __repr__(self) -> str:
        shape = tuple(n or d for d, n in zip(self.shape, self.names or self.shape))
        return f"TensorType(dtype={self.dtype!r}, shape={shape!r})"


@lru_cache(maxsize=8192)
def tensor_type(dtype: str, shape: tuple[int | None, ...] = ()) -> TensorType:
    """The type of these: one object for equal ones, which keeps what it has computed."""
    return TensorType(dtype, shape)


def elements(t: Type) -> float:
    """The number of elements of a static type, with unknown sizes as 1; 0 of opaque data."""
    return float(prod(1 if d is None else d for d in t.shape)) if isinstance(t, TensorType) else 0.0


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, str) and dtype in _NUMPY:
        return dtype
    if isinstance(dtype, str) and dtype == "floatX":
        return str(config.floatX)
    try:
        name = "" if hasattr(dtype, "owner") else cast(str, np.dtype(dtype).name)
    except (TypeError, ValueError):
        name = ""
    if name not in _NUMPY:
        text = f"dtype {dtype!r} is not one of {', '.join(DTYPES)}, floatX"
        is_size = isinstance(dtype, int) and not isinstance(dtype, bool)
        raise DtypeError(f"{text}. Sizes are one argument: ((2, 3))" if is_size else text)
    return name


def _dimension(d: Any) -> int | Dim | None:
    if isinstance(d, bool | np.bool_):
        return 1 if d else None
    if isinstance(d, Dim | str):
        return d if isinstance(d, Dim) else Dim(d)
    if d is None:
        return None
    size = int(d)
    if size < 0:
        raise ShapeMismatch("a type", "dimensions of at least 0", size)
    return size
