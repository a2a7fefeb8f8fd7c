"""Conversion of Python values to cuDNN's C values and back: numbers, enums, handles, structures.

Each type can be used in ctypes' ``argtypes`` by its ``from_param``. ``holder`` allocates an output,
and ``read`` converts what C wrote there to a Python value.
"""

from __future__ import annotations

import ctypes
import enum
import operator
from typing import Any, Protocol, Self


class CType(Protocol):
    """The type of a parameter of a C function."""

    def from_param(self, value: Any) -> Any:
        """The value in a form that ctypes passes on."""

    def holder(self) -> Any:
        """Room for one value that C writes."""

    def read(self, holder: Any) -> Any:
        """The value that C wrote, as a Python value."""

    def c_name(self) -> str:
        """The type's name in C."""


class Size(ctypes.c_size_t):
    """A size in bytes: a ``ctypes.c_size_t``, read by ``.value``, that is also an integer."""

    def __index__(self) -> int:
        return self.value

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        try:
            return self.value == operator.index(_plain(other))
        except TypeError:
            return NotImplemented

    def __lt__(self, other: Any) -> bool:
        return self.value < operator.index(_plain(other))

    def __gt__(self, other: Any) -> bool:
        return self.value > operator.index(_plain(other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return self.value != 0

    def __repr__(self) -> str:
        return f"c_size_t({self.value})"


def _plain(value: object) -> Any:
    """The number in a ctypes instance; anything else as it is."""
    return value.value if isinstance(value, ctypes._SimpleCData) else value


class Integer:
    """A C integer with a range check: ctypes alone would drop the bits that do not fit."""

    def __init__(self, name: str, ctype: Any, result: Any = None) -> None:
        bits = 8 * ctypes.sizeof(ctype)
        signed = ctype(-1).value < 0
        self._name, self.ctype, self._result = name, ctype, result
        self._low = -(1 << bits - 1) if signed else 0
        self._high = (1 << bits - 1) - 1 if signed else (1 << bits) - 1

    def from_param(self, value: Any) -> Any:
        """The integer ``value`` (also NumPy's or a ctypes instance) for C."""
        if type(value) is not int:
            value = operator.index(_plain(value))
        if not self._low <= value <= self._high:
            raise ValueError(f"{value} does not fit a C {self._name}")
        return self.ctype(value)

    def holder(self) -> Any:
        """Room for one value."""
        return (self._result or self.ctype)()

    def read(self, holder: Any) -> Any:
        """A Python integer; a size stays a ``ctypes.c_size_t``."""
        return holder if self._result else holder.value

    def c_name(self) -> str:
        """The type's name in C."""
        return self._name


class Real:
    """``float`` or ``double``."""

    def __init__(self, name: str, ctype: Any) -> None:
        self._name, self.ctype = name, ctype

    def from_param(self, value: Any) -> Any:
        """The number ``value`` (also NumPy's or a ctypes instance) for C."""
        return self.ctype(float(_plain(value)))

    def holder(self) -> Any:
        """Room for one value."""
        return self.ctype()

    def read(self, holder: Any) -> float:
        """A Python float."""
        return float(holder.value)

    def c_name(self) -> str:
        """The type's name in C."""
        return self._name


class Pointer:
    """Any address: an integer, None, a ctypes pointer, array or ``byref``, or ``__int__``."""

    ctype: Any = ctypes.c_void_p

    def __init__(self, name: str = "void *") -> None:
        self._name = name

    def from_param(self, value: Any) -> Any:
        """``value`` as an address for C."""
        if value is None or isinstance(value, int):
            return ctypes.c_void_p(value)
        if isinstance(value, str | bytes | float):  # c_void_p takes the first two: surely a slip
            raise TypeError(f"wanted an address, got {value!r}")
        try:
            return ctypes.c_void_p.from_param(value)
        except TypeError:
            if isinstance(value, ctypes._SimpleCData) or not hasattr(value, "__int__"):
                raise TypeError(
                    f"wanted an address (an integer, None, a ctypes pointer or what int() takes), "
                    f"got {type(value).__name__}"
                ) from None
            return ctypes.c_void_p(int(value))  # PyCUDA's DeviceAllocation, an int

    def holder(self) -> Any:
        """Room for one address."""
        return ctypes.c_void_p()

    def read(self, holder: Any) -> int:
        """The address as an integer, 0 for NULL."""
        return holder.value or 0

    def c_name(self) -> str:
        """The type's name in C."""
        return self._name


INT, INT32 = Integer("int", ctypes.c_int), Integer("int32_t", ctypes.c_int32)
UINT, UINT32 = Integer("unsigned", ctypes.c_uint), Integer("uint32_t", ctypes.c_uint32)
INT64 = Integer("int64_t", ctypes.c_int64)
UINT64 = Integer("unsigned long long", ctypes.c_ulonglong)
SIZE = Integer("size_t", ctypes.c_size_t, result=Size)
FLOAT, DOUBLE = Real("float", ctypes.c_float), Real("double", ctypes.c_double)
POINTER, CONST_POINTER = Pointer(), Pointer("const void *")


class Handle(ctypes.c_void_p):
    """An opaque object of cuDNN or CUDA. A class for each kind, so that they can't be mixed up."""

    @classmethod
    def from_param(cls, value: Any) -> Any:
        """A handle of this kind, or its address; a handle of another kind is refused."""
        if type(value) is cls:
            return value
        if isinstance(value, Handle):
            raise TypeError(f"wanted a {cls.__name__}, got a {type(value).__name__}")
        return POINTER.from_param(value)

    @classmethod
    def holder(cls) -> Self:
        """A handle yet to be filled in."""
        return cls()

    @classmethod
    def read(cls, holder: Self) -> Self:
        """The handle itself."""
        return holder

    @classmethod
    def c_name(cls) -> str:
        """The type's name in C."""
        return cls.__name__

    def __index__(self) -> int:
        return self.value or 0

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Handle):
            return type(self) is type(other) and self.value == other.value
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self):#x})"


class CudnnEnum(enum.IntEnum):
    """An enum of cuDNN. Functions take a member, its name or its number."""

    @classmethod
    def as_dict(cls) -> dict[str, Self]:
        """Name to member, with every name that C has."""
        return dict(cls.__members__)

    @classmethod
    def from_param(cls, value: Any) -> Any:
        """A member, its name or number for C; a member of another enum is refused."""
        if isinstance(value, str):
            return ctypes.c_int(cls._named(value))
        if isinstance(value, enum.Enum) and not isinstance(value, cls):
            raise TypeError(f"wanted a {cls.c_name()}, got {type(value).__name__}.{value.name}")
        return ctypes.c_int(operator.index(_plain(value)))

    @classmethod
    def number(cls, value: Any) -> int:
        """The number of ``value``, which is a member, its name or its number."""
        return int(cls.from_param(value).value)

    @classmethod
    def _named(cls, name: str) -> Self:
        try:
            return cls.__members__[name]
        except KeyError:
            names = ", ".join(cls.__members__)
            raise ValueError(f"{cls.c_name()} has no {name!r}; it has {names}") from None

    @classmethod
    def holder(cls) -> Any:
        """Room for one value."""
        return ctypes.c_int()

    @classmethod
    def read(cls, holder: Any) -> int:
        """The member; the bare number where a newer cuDNN has one that the table lacks."""
        return cls.of(holder.value)

    @classmethod
    def of(cls, number: int) -> int:
        """The member with this number, or the number where there is none."""
        try:
            return cls(number)
        except ValueError:
            return number

    @classmethod
    def c_name(cls) -> str:
        """The type's name in C."""
        return cls.__name__


class CudnnStructure(ctypes.Structure):
    """A structure of cuDNN; it prints its fields."""

    def __repr__(self) -> str:
        names = [name.lstrip("_") for name, *_ in self._fields_]
        shown = ", ".join(f"{n}={getattr(self, n)!r}" for n in names if n != "reserved")
        return f"{type(self).__name__}({shown})"

    @classmethod
    def from_param(cls, value: object) -> Any:
        """A structure of this kind, by value."""
        if not isinstance(value, cls):
            raise TypeError(f"wanted a {cls.__name__}, got a {type(value).__name__}")
        return value

    @classmethod
    def c_name(cls) -> str:
        """The type's name in C."""
        return cls.__name__

    @classmethod
    def holder(cls) -> Self:
        """Room for one structure."""
        return cls()

    @classmethod
    def read(cls, holder: Self) -> Self:
        """The structure itself."""
        return holder


def enum_field(stored: str, kind: type[CudnnEnum]) -> property:
    """A field of a structure that is kept as a number and read as a member of ``kind``."""

    def read(self: CudnnStructure) -> int:
        return kind.of(getattr(self, stored))

    def write(self: CudnnStructure, value: Any) -> None:
        setattr(self, stored, kind.from_param(value).value)

    return property(read, write)


class StructPointer:
    """A pointer to a structure that cuDNN reads: the structure itself, its address or None."""

    ctype: Any = ctypes.c_void_p

    def __init__(self, kind: type[CudnnStructure]) -> None:
        self._kind = kind

    def from_param(self, value: Any) -> Any:
        """The structure's address for C."""
        if isinstance(value, CudnnStructure):
            if not isinstance(value, self._kind):
                raise TypeError(f"wanted a {self._kind.__name__}, got a {type(value).__name__}")
            return ctypes.byref(value)
        return POINTER.from_param(value)

    def holder(self) -> Any:
        """Room for one structure."""
        return self._kind()

    def read(self, holder: object) -> Any:
        """The structure itself."""
        return holder

    def c_name(self) -> str:
        """The type's name in C."""
        return f"const {self._kind.__name__} *"


class Callback:
    """A pointer to a function of the caller's, which ``kind``, a ``CFUNCTYPE``, describes."""

    def __init__(self, name: str, kind: Any) -> None:
        self._name, self.ctype = name, kind

    def from_param(self, value: Any) -> Any:
        """A Python function wrapped by calling this, its address, or None."""
        if isinstance(value, self.ctype):
            return value
        if value is None or isinstance(value, int):
            return ctypes.cast(ctypes.c_void_p(value), self.ctype)
        raise TypeError(f"wanted {self._name}(function), kept as long as cuDNN may call it")

    def __call__(self, function: Any) -> Any:
        """``function`` as C can call it. Keep the result as long as C may."""
        return self.ctype(function)

    def holder(self) -> Any:
        """Room for one."""
        return self.ctype()

    def read(self, holder: object) -> Any:
        """The function, callable from Python; false where there is none."""
        return holder

    def c_name(self) -> str:
        """The type's name in C."""
        return self._name
