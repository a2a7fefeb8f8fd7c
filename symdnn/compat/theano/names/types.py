"""Types of Theano that are no tensors, and the base class of a program's own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from symdnn.graph.fgraph import FunctionGraph as _FunctionGraph
from symdnn.graph.type import TensorType, Type
from symdnn.graph.values.storage import Storage
from symdnn.graph.values.type_values import FiltersValues
from symdnn.graph.variable import Constant, Shared, Variable

__all__ = [
    "DisconnectedType", "FunctionGraph", "Generic", "NullType", "OwnType", "ScalarSharedVariable",
    "SharedObject", "SharedVariable", "TensorConstant", "TensorSharedVariable", "TensorVariable",
    "disconnected_type", "generic", "grad_not_implemented", "grad_undefined", "null_type",
]  # fmt: skip


class Instances(type):
    """A class with instances made by symdnn: those for which ``holds`` is true.

    It equals the class of symdnn for which it stands, since programs compare ``type(v)``.
    """

    holds: Callable[[Any], bool]
    stands_for: type | None

    def __eq__(cls, other: object) -> bool:
        return cls is other or (other is not None and vars(cls).get("stands_for") is other)

    def __hash__(cls) -> int:
        return hash(vars(cls).get("stands_for") or id(cls))

    def __instancecheck__(cls, value: object) -> bool:
        return cls.holds(value) if "holds" in vars(cls) else type.__instancecheck__(cls, value)


class _Marker(Type):
    """A type without values."""

    def __call__(self, name: str | None = None) -> Variable:
        """A variable of this type."""
        return Variable(self, name)

    make_variable = __call__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __str__(self) -> str:
        return type(self).__name__


class DisconnectedType(_Marker):
    """The type of a gradient that does not exist, since the input has no influence."""


class NullType(_Marker):
    """The type of a gradient that is undefined; ``why_null`` says why."""

    def __init__(self, why_null: str = "(no explanation given)") -> None:
        self.why_null = why_null


class Generic(_Marker):
    """The type of any Python object (``theano.generic``)."""


disconnected_type, null_type, generic = DisconnectedType(), NullType(), Generic()


class OwnType(_Marker, FiltersValues, metaclass=Instances):
    """``theano.gof.Type``: every type of symdnn is an instance, and programs derive their own.

    A graph may have variables of these; a compiled function computes arrays and refuses them.
    """

    stands_for = Type

    @staticmethod
    def holds(v: object) -> bool:
        """Whether ``v`` is a type."""
        return isinstance(v, Type)

    def filter(self, x: Any, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        """The value itself, where the program's class has no ``filter`` of its own."""
        return x

    def values_eq(self, a: object, b: object) -> bool:
        """Whether two values are equal."""
        return bool(a == b)

    def values_eq_approx(self, a: object, b: object) -> bool:
        """Whether two values are nearly equal."""
        return self.values_eq(a, b)


def grad_undefined(op: object, x_pos: int, x: object, comment: str = "") -> Variable:
    """What ``grad`` of an op returns for an input whose gradient does not exist."""
    return NullType(f"{op}: the gradient of input {x_pos} ({x}) is undefined. {comment}")()


def grad_not_implemented(op: object, x_pos: int, x: object, comment: str = "") -> Variable:
    """What ``grad`` of an op returns for an input whose gradient is not written."""
    return NullType(f"{op}: the gradient of input {x_pos} ({x}) is not implemented. {comment}")()


class SharedObject(Variable):
    """What ``theano.shared`` makes of an object that is no array: a holder of a Python object.

    Programs keep such objects in it; a compiled function can't read it.
    """

    def __init__(self, value: Any, name: str | None = None) -> None:
        super().__init__(generic, name)
        self.object = value

    def get_value(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        """The object: a deep copy unless ``borrow``."""
        return self.object if borrow else copy.deepcopy(self.object)

    def set_value(self, new_value: object, borrow: bool = False) -> None:
        """Replace the object."""
        self.object = new_value if borrow else copy.deepcopy(new_value)


def _is_plain(v: object) -> bool:
    return isinstance(v, Variable) and isinstance(v.type, TensorType)


class TensorVariable(Variable, metaclass=Instances):
    """Theano's class of variables. Every tensor variable of symdnn is an instance.

    A subclass is made by Theano's arguments ``(type, owner, index, name)``.
    """

    stands_for = Variable

    @staticmethod
    def holds(v: object) -> bool:
        """Whether ``v`` is a tensor variable, and neither constant nor shared."""
        return _is_plain(v) and not isinstance(v, Constant | Shared)

    def __init__(
        self, type: Any, owner: Any = None, index: int | None = None, name: str | None = None
    ) -> None:
        super().__init__(type, name, owner, index)


class TensorConstant(Constant, metaclass=Instances):
    """Theano's class of constants. Every constant of symdnn is an instance."""

    stands_for = Constant

    @staticmethod
    def holds(v: object) -> bool:
        """Whether ``v`` is a constant."""
        return isinstance(v, Constant)

    def __new__(cls, type: Any, data: Any, name: str | None = None) -> Any:
        return Constant(type.filter(data), name)


class SharedVariable(Shared, metaclass=Instances):
    """Theano's class of shared variables. Every one of symdnn is an instance.

    It and subclasses are made by Theano's arguments: a ``value`` of ``type``, or the ``container``
    of another shared variable, whose value is then shared. ``strict`` refuses a value of another
    dtype, ``allow_downcast`` takes one whose digits would be lost.
    """

    @staticmethod
    def holds(v: object) -> bool:
        """Whether ``v`` is a shared variable."""
        return isinstance(v, Shared)

    def __init__(
        self, name: str | None, type: Any, value: Any = None, strict: bool | None = False,
        allow_downcast: bool | None = None, container: Storage | None = None,
    ) -> None:  # fmt: skip
        if container is not None and (value is not None or strict is not None):
            raise TypeError("SharedVariable: give a container, or a value and strict, not both")
        if container is None:
            array = type.filter(value, strict=bool(strict), allow_downcast=allow_downcast)
            container = Storage(array, borrow=array is value)
        super().__init__(type, container, name)


class TensorSharedVariable(SharedVariable):
    """Theano's class of shared tensors. Every shared variable of symdnn is an instance."""

    stands_for = Shared

    @staticmethod
    def holds(v: object) -> bool:
        """Whether ``v`` is a shared variable of an array."""
        return isinstance(v, Shared)


class ScalarSharedVariable(TensorSharedVariable):
    """Theano's class of shared variables of numbers, those without dimensions."""

    @staticmethod
    def holds(v: object) -> bool:
        """Whether ``v`` is a shared variable of a number."""
        return isinstance(v, Shared) and isinstance(v.type, TensorType) and v.type.ndim == 0


class FunctionGraph(_FunctionGraph, metaclass=Instances):
    """Theano's class of graphs of functions. Every one of symdnn is an instance.

    The graph is always a copy, so ``clone`` changes nothing; ``features`` are not called.
    """

    stands_for = _FunctionGraph

    @staticmethod
    def holds(v: object) -> bool:
        """Whether ``v`` is a graph."""
        return isinstance(v, _FunctionGraph)

    def __init__(
        self, inputs: Any, outputs: Any, features: Any = None, clone: bool = True, **words: Any
    ) -> None:
        super().__init__(inputs, outputs)
