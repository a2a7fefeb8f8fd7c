"""What Theano's types know of values: :class:`TypeValues` gives ``TensorType`` these methods."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class FiltersValues:
    """A type that says by :meth:`filter` which values it takes."""

    def filter(
        self, data: Any, strict: bool = False, allow_downcast: bool | None = None
    ) -> Any:  # fmt: skip
        """``data`` as a value of this type."""
        raise NotImplementedError

    def is_valid_value(self, a: object) -> bool:
        """Whether ``filter(a, strict=True)`` takes it."""
        try:
            self.filter(a, strict=True)
        except (TypeError, ValueError):
            return False
        return True


class TypeValues(FiltersValues):
    """Theano's methods of a tensor type that take or make values and variables.

    >>> import symdnn.tensor as T
    >>> T.vector("x").type.filter([1, 2]).dtype
    dtype('float32')
    """

    def filter(
        self, data: object, strict: bool = False, allow_downcast: bool | None = None
    ) -> Array:  # fmt: skip
        """``data`` as an array of this type, without loss of precision.

        ``strict`` refuses every conversion, ``allow_downcast=True`` permits loss (``None``: of a
        Python float for ``floatX``). An array that fits is returned itself.

        Raises :class:`~symdnn.errors.InputError` (dtype) or
        :class:`~symdnn.errors.ArgumentShapeMismatch` (ndim, static shape).
        """
        from symdnn.graph.values.value import as_numpy

        type_: Any = self
        return as_numpy(
            data, type_, f"filter of {self}", strict=strict, allow_downcast=allow_downcast
        )

    def filter_variable(self, other: object, allow_convert: bool = True) -> Any:
        """``other`` as a variable of this type: a constant of a value, or a variable that fits.

        With ``allow_convert`` dimensions that are 1 by this type are checked when it runs.

        Raises :class:`~symdnn.errors.InputError` for a variable that does not fit.
        """
        from symdnn.errors import InputError
        from symdnn.graph.operators import operator
        from symdnn.graph.variable import Constant, Variable

        type_: Any = self
        if not isinstance(other, Variable):
            return Constant(self.filter(other))
        if not type_.accepts(other.type):
            fits = (other.type.dtype, other.ndim) == (type_.dtype, type_.ndim)
            if not (allow_convert and fits):
                raise InputError(f"filter_variable: wanted {self}, got {other} of {other.type}")
        return operator("specify_type")(other, type_)

    convert_variable = filter_variable

    def make_variable(self, name: str | None = None) -> Any:
        """A new variable of this type, as calling it makes one."""
        type_: Any = self
        return type_(name)

    def make_constant(self, value: object, name: str | None = None) -> Any:
        """A constant of this type."""
        from symdnn.graph.variable import Constant

        return Constant(self.filter(value), name)

    def clone(self, dtype: object = None, broadcastable: Any = None) -> Any:
        """The type with another dtype or other broadcast flags."""
        type_: Any = self
        shape = type_.shape if broadcastable is None else tuple(broadcastable)
        return type(type_)(dtype or type_.dtype, shape)

    def value_zeros(self, shape: object) -> Array:
        """Zeros of ``shape`` in this type's dtype."""
        type_: Any = self
        return np.zeros(shape, type_.numpy)

    def in_same_class(self, other: object) -> bool:
        """Whether ``other`` has this dtype and these broadcast flags."""
        type_: Any = self
        mine = (type_.dtype, type_.broadcastable)
        return mine == (getattr(other, "dtype", None), getattr(other, "broadcastable", None))

    @staticmethod
    def values_eq(a: object, b: object) -> bool:
        """Whether arrays are equal in dtype, shape and elements; NaNs are equal."""
        x, y = np.asarray(a), np.asarray(b)
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            return False
        return bool(np.all((x == y) | ((x != x) & (y != y))))

    @staticmethod
    def values_eq_approx(
        a: object, b: object, allow_remove_inf: bool = False, allow_remove_nan: bool = False,
        rtol: float | None = None, atol: float | None = None,
    ) -> bool:  # fmt: skip
        """Whether arrays agree but for rounding: by 1e-5 (float16: 5e-3), unless told.

        NaNs and infinities must be at the same places; where they are in ``a`` alone they count as
        equal with ``allow_remove_nan`` and ``allow_remove_inf``.
        """
        x, y = np.asarray(a), np.asarray(b)
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            return False
        usual = 5e-3 if x.dtype == np.float16 else 1e-5
        bounds = usual if rtol is None else rtol, usual * 1e-3 if atol is None else atol
        near = np.isclose(x, y, *bounds, equal_nan=True)
        if x.dtype.kind in "fc":
            near |= (np.isnan(x) & allow_remove_nan) | (np.isinf(x) & allow_remove_inf)
        return bool(np.all(near))
