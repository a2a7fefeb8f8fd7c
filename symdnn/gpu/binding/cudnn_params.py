"""The kinds of parameters of cuDNN's functions: inputs of the caller, and outputs that C writes.

``given`` parameters come from the caller; others are allocated here and returned. ``hold`` makes
the C value; ``result`` reads it after the call. A function knows the names of its parameters.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from symdnn.gpu.binding.cudnn_types import POINTER, CType, CudnnStructure

Values = Mapping[str, Any]
DataTypeOf = Callable[[Any], int]

# cudnnDataType_t to NumPy dtypes; vectorised and 4-bit types have none.
_DATA_TYPES: dict[int, Any] = {
    0: np.float32, 1: np.float64, 2: np.float16, 3: np.int8, 4: np.int32, 6: np.uint8,
    9: ml_dtypes.bfloat16, 10: np.int64, 11: np.bool_, 12: ml_dtypes.float8_e4m3fn,
    13: ml_dtypes.float8_e5m2,
}  # fmt: skip
_DOUBLE = 1


@dataclass(frozen=True)
class Parameter:
    """A parameter of a C function."""

    given: ClassVar[bool] = True
    # Whether ``argtype`` is the only conversion of the caller's value.
    plain: ClassVar[bool] = False

    @property
    def argtype(self) -> Any:
        """The entry in ctypes' ``argtypes``."""
        return POINTER

    def hold(self, name: str, values: Values) -> Any:
        """The C value of the parameter ``name``, made from the caller's ``values`` by name."""
        return values[name]

    def result(self, held: Any, all_held: Values, values: Values) -> Any:
        """The Python value of the C value ``held``."""
        raise NotImplementedError("the caller gives it")  # pragma: no cover

    def prototype(self, name: str) -> str:
        """The parameter ``name`` as C declares it."""
        raise NotImplementedError  # pragma: no cover


@dataclass(frozen=True)
class Argument(Parameter):
    """A value or an address from the caller."""

    type: CType
    plain: ClassVar[bool] = True

    @property
    def argtype(self) -> Any:
        return self.type

    def prototype(self, name: str) -> str:
        return _declaration(self.type.c_name(), name)


@dataclass(frozen=True)
class Scale(Parameter):
    """A scaling factor: a number, passed as float or double.

    ``data_type_of`` gives the data type of the argument named ``descriptor``, which decides.
    """

    descriptor: str
    data_type_of: DataTypeOf
    declared: str = "const void *"

    def hold(self, name: str, values: Values) -> Any:
        value = values[name]
        number = _number(value)
        if number is None:
            return value
        double = self.data_type_of(values[self.descriptor]) == _DOUBLE
        return ctypes.byref((ctypes.c_double if double else ctypes.c_float)(number))

    def prototype(self, name: str) -> str:
        return _declaration(self.declared, name)


class Element(Scale):
    """One element of a tensor: a number, converted to a data type.

    ``data_type_of`` gives the ``cudnnDataType_t`` of the argument named ``descriptor``.
    """

    def hold(self, name: str, values: Values) -> Any:
        value = values[name]
        number = _number(value)
        if number is None:
            return value
        kind = self.data_type_of(values[self.descriptor])
        if kind not in _DATA_TYPES:
            raise TypeError(f"no number of Python's is a {kind}: give the address of an element")
        raw = np.asarray(number).astype(_DATA_TYPES[kind]).tobytes()
        return ctypes.create_string_buffer(raw, len(raw))


@dataclass(frozen=True)
class GivenArray(Parameter):
    """An array in host memory that C reads: a sequence, or its address.

    Its length is the parameter named ``count`` minus ``less``; an empty name leaves it open.
    """

    type: CType
    count: str = ""
    less: int = 0

    def hold(self, name: str, values: Values) -> Any:
        value = values[name]
        if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
            return value
        if self.count:
            wanted = operator.index(values[self.count]) - self.less
            if len(value) != wanted:
                less = f" - {self.less}" if self.less else ""
                raise ValueError(f"{self.count}{less} is {wanted}, but it has {len(value)} values")
        ctype = type(self.type.holder())
        return (ctype * len(value))(*(self.type.from_param(v) for v in value))

    def prototype(self, name: str) -> str:
        return f"const {self.type.c_name()} {name}[]"


@dataclass(frozen=True)
class Output(Parameter):
    """One value that C writes. It is returned, unless it is only the length of a returned list."""

    type: CType
    returned: bool = True
    given: ClassVar[bool] = False

    def hold(self, name: str, values: Values) -> Any:
        return self.type.holder()

    def result(self, held: Any, all_held: Values, values: Values) -> Any:
        return self.type.read(held)

    def prototype(self, name: str) -> str:
        return _declaration(f"{self.type.c_name()} *", name)


@dataclass(frozen=True)
class OutputArray(Output):
    """An array that C writes: a tuple of numbers, or a list of structures.

    The parameter named ``requested``, minus ``less``, is the number of elements to allocate. The
    parameter named ``actual``, an input or an output, is the number that C wrote.
    """

    requested: str = ""
    actual: str = ""
    less: int = 0

    def hold(self, name: str, values: Values) -> Any:
        count = max(operator.index(values[self.requested]) - self.less, 0)
        return (self._element * count)()

    @cached_property
    def _element(self) -> Any:
        return type(self.type.holder())

    def result(self, held: Any, all_held: Values, values: Values) -> Any:
        count = len(held)
        if self.actual:
            actual = all_held[self.actual]
            count = min(count, max(actual.value - self.less, 0))
        if issubclass(self._element, CudnnStructure):
            return list(held[:count])
        return tuple(self.type.read(self._element(number)) for number in held[:count])

    def prototype(self, name: str) -> str:
        return f"{self.type.c_name()} {name}[]"


@dataclass(frozen=True)
class OutputText(Parameter):
    """Text that C writes into ``size`` bytes."""

    size: str = ""
    given: ClassVar[bool] = False
    returned: ClassVar[bool] = True

    def hold(self, name: str, values: Values) -> Any:
        return ctypes.create_string_buffer(operator.index(values[self.size]))

    def result(self, held: Any, all_held: Values, values: Values) -> str:
        return str(held.value.decode("utf-8", "replace"))

    def prototype(self, name: str) -> str:
        return f"char *{name}"


def _declaration(kind: str, name: str) -> str:
    return f"{kind}{name}" if kind.endswith("*") else f"{kind} {name}"


def _number(value: Any) -> Any:
    """``value`` as a number, or None if it is an address.

    An int below 4096 counts as a number: 0 and 1 are common factors, and no address is so small.
    """
    if isinstance(value, bool | float | np.floating | np.integer):
        return value
    if isinstance(value, int) and abs(value) < 4096:
        return value
    if isinstance(value, ctypes.c_float | ctypes.c_double):
        return value.value
    return None
