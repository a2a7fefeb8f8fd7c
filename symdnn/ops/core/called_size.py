"""``x.size`` and ``x.shape`` with the ways of NumPy's and PyTorch's.

The size is a number, as in NumPy, and a method, as in PyTorch. The shape is a vector, as in Theano,
and has what tuples have beyond that: a length, ``+`` with a tuple, and ``==`` with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

from symdnn.errors import ShapeMismatch, SymbolicValueError
from symdnn.graph.dims import is_size
from symdnn.graph.origin import by_user
from symdnn.graph.same import is_same_graph
from symdnn.graph.tracing import is_tracing
from symdnn.graph.typing import TensorLike
from symdnn.graph.values.numpy_functions import numpy_calls
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.ops.core.constant_value import known_number
from symdnn.ops.core.make_vector import make_vector
from symdnn.ops.core.shape import ShapeVector, as_dim, dims_of, shape_entries, size, static_dim
from symdnn.options import is_int


class _Called:
    """A number of elements that is called in PyTorch's way, ``x.size(0)``, too."""

    __slots__ = ()

    def __call__(self, dim: int | None = None) -> Variable:
        x: Variable = self.__dict__["whole"]
        return shape(x) if dim is None else as_dim(dims_of(x)[dim])


class _Size(_Called, Variable):
    __slots__ = ()


class _ConstantSize(_Called, Constant):
    __slots__ = ()


class _Shape(Variable):
    """A shape, or a slice of one, to which ``+`` joins a tuple, as it does to a tuple of sizes."""

    __slots__ = ()

    def __add__(self, other: Any) -> Variable:
        if _joins(other):
            return _joined(self, other)
        if isinstance(other, _Shape) and len(self) != len(other):
            do = "+ adds the sizes of two shapes. Write (*a, *b) to join them"
            raise ShapeMismatch("+", "two shapes of one length", [len(self), len(other)], do)
        return super().__add__(other)

    def __radd__(self, other: Any) -> Variable:
        return _joined(other, self) if _joins(other) else super().__radd__(other)

    def __getitem__(self, index: object) -> Variable:
        found = super().__getitem__(index)
        return _as_tuple(found) if isinstance(index, slice) else found

    def __eq__(self, other: object) -> bool:
        """Whether this is the same variable; of a tuple or a shape, whether its sizes are these."""
        return _equal_shapes(self, other)

    def __ne__(self, other: object) -> bool:
        return not _equal_shapes(self, other)

    __hash__ = Variable.__hash__

    def __str__(self) -> str:
        sizes = [_known(d) for d in shape_entries(self)]
        known = self.name is None and all(isinstance(n, int) for n in sizes)
        return str(tuple(sizes)) if known else super().__str__()

    def __len__(self) -> int:
        return len(shape_entries(self))


class _ConstantShape(_Shape, Constant):
    __slots__ = ()


def _equal_shapes(shape: _Shape, other: object) -> bool:
    entries: Sequence[Any] | None = other if isinstance(other, tuple) else None
    if isinstance(other, _Shape) and by_user(2):
        entries = shape_entries(other)
    if shape is other or numpy_calls or entries is None or len(shape) != len(entries):
        return shape is other
    pairs = list(zip(map(_known, shape_entries(shape)), map(_known, entries)))
    if any([isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs]):
        return False
    if all([_is_one_size(a, b) for a, b in pairs]):
        return True
    raise SymbolicValueError(
        f"{_shown(shape)} == {_shown(other)}: the sizes are known in a call only. "
        "T.specify_shape(x, shape) checks them there; x.type.shape has those that are known before"
    )


def _is_one_size(a: Any, b: Any) -> bool:
    if isinstance(a, Variable) and isinstance(b, Variable):
        return a is b or is_same_graph(a, b)
    return isinstance(a, int) and isinstance(b, int) and a == b


def _joins(other: Any) -> bool:
    """Whether ``+`` with this joins. In Theano's programs (:mod:`symdnn.compat.theano`) it adds."""
    return isinstance(other, tuple) and not numpy_calls


def _known(size: Any) -> Any:
    """A size as an int, where it is known."""
    if isinstance(size, Constant):
        return static_dim(size)
    return int(size) if is_int(size) else size


def _joined(*shapes: Any) -> Variable:
    entries = [as_dim(d) for s in shapes for d in shape_entries(s)]
    return _as_tuple(make_vector(entries) if entries else constant([], dtype="int64"))


def _of_kind(v: Variable, kinds: dict[type, type]) -> Variable:
    if type(v) in kinds:
        v.__class__ = kinds[type(v)]
    return v


def _as_tuple(vector: Variable) -> Variable:
    return _of_kind(vector, {Variable: _Shape, Constant: _ConstantShape})


def shape(x: TensorLike) -> Variable:
    """The shape of ``x`` as an int64 vector; an entry of it is the size of one dimension.

    ``+`` with a tuple joins, ``x.shape[:-1] + (2, 3)``, and ``len`` is the number of dimensions.
    """
    return _as_tuple(ShapeVector()(as_variable(x)))


def callable_size(x: TensorLike) -> Variable:
    """:func:`size` as the attribute of a variable: ``x.size``, ``x.size()``, ``x.size(0)``."""
    v = as_variable(x)
    number = _of_kind(size(v), {Variable: _Size, Constant: _ConstantSize})
    if isinstance(number, _Called):
        number.__dict__["whole"] = v
    return number


def equal_sizes(v: Variable, other: object) -> bool:
    """Whether Python's ``v == other`` compares sizes as numbers, and they are equal.

    So it does in a user's program, ``x.shape[1] == 8`` or ``x.shape[1] % 2 == 0``. The compiler,
    and Theano's programs, compare objects. A size that is known in a call only raises
    :class:`~symdnn.errors.SymbolicValueError`, and so does ``v == 8`` in a traced function.
    """
    whole = v.type.is_integer_scalar
    if numpy_calls or not (whole or is_tracing()) or not by_user(_TO_THE_OPERATOR):
        return False
    size = whole and is_size(v)
    if isinstance(other, Variable):
        if not size or not other.type.is_integer_scalar or not is_size(other):
            return False
        if is_same_graph(v, other):
            return True
    elif not isinstance(other, Number):
        return False
    numbers = [known_number(n) if isinstance(n, Variable) else n for n in (v, other)]
    if None not in numbers:
        return bool(numbers[0] == numbers[1])
    if size or is_tracing():
        raise SymbolicValueError(
            f"{_shown(v)} == {_shown(other)}: a number that is known in a call only. Declare "
            "sizes, as in T.tensor('float32', (None, 8)); T.specify_shape(x, shape) checks them in "
            "a call, and T.eq(x, y) is an expression"
        )
    return False


def _shown(v: object) -> str:
    """A number or a shape as a program writes it, ``x.shape[0]`` for a size that is read."""
    node = v.owner if isinstance(v, Variable) else None
    if node is None or not (node.op.size_of is not None or isinstance(node.op, ShapeVector)):
        return str(v)
    axis = "" if node.op.size_of is None else f"[{node.op.size_of}]"
    return f"{node.inputs[0]}.shape{axis}"


#: The calls between ``v == other`` and :func:`equal_sizes`.
_TO_THE_OPERATOR = 3

OPERATORS = {
    "callable_size": callable_size,
    "equal_sizes": equal_sizes,
    "tuple_shape": shape,
}
