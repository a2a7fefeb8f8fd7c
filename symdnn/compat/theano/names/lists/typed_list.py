"""Names of ``theano.typed_list``: expressions of Python lists of arrays of one type.

A list has several vectors in the graph: the elements of its arrays one after another, the shapes
of the arrays, and for lists of lists how many items each list has. What is done to lists is done by
ops of tensors, so it runs on every target and has gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from symdnn import tensor as T
from symdnn.compat.theano.names.lists.slices import SliceVariable
from symdnn.config import config
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.type import TensorType, Type
from symdnn.graph.values.structured import Form, Structured
from symdnn.graph.variable import Variable, as_variable

__all__ = [
    "Append", "Count", "Extend", "GetItem", "Index", "Insert", "Length", "MakeList", "Remove",
    "Reverse", "TypedListConstant", "TypedListType", "TypedListVariable", "append", "count",
    "extend", "getitem", "index_", "insert", "length", "make_list", "remove", "reverse",
]  # fmt: skip

Parts = tuple[Variable, ...]


class TypedListType(Type):
    """The type of a list whose items have the type ``ttype``: a tensor's, or another list's.

    ``depth`` makes a list of lists, that many times. Calling it makes a variable. Raises
    ``TypeError`` for what is no type, and for types of items other than these two.
    """

    ttype: TensorType | TypedListType

    def __init__(self, ttype: object, depth: int = 0) -> None:
        if depth < 0:
            raise ValueError(f"TypedListType: depth={depth}, wanted 0 or more")
        if not isinstance(ttype, TensorType | TypedListType):
            raise TypeError(
                f"TypedListType: wanted the type of a tensor or of a list, got {ttype!r}. A list "
                "of other variables can be a Python list while the graph is built"
            )
        self.ttype = ttype if depth == 0 else TypedListType(ttype, depth - 1)

    def __call__(self, name: str | None = None) -> TypedListVariable:
        """A list as an input."""
        return TypedListVariable(self, _inputs(self, name), name)

    make_variable = __call__

    @property
    def element(self) -> TensorType:
        """The type of the arrays in the innermost lists."""
        return self.ttype.element if isinstance(self.ttype, TypedListType) else self.ttype

    def get_depth(self) -> int:
        """How many lists are around a list of arrays: 0 for a list of arrays."""
        return 1 + self.ttype.get_depth() if isinstance(self.ttype, TypedListType) else 0

    def filter(self, x: object, strict: bool = False, allow_downcast: bool | None = None) -> Any:
        """The list with each item as ``ttype`` takes it. Raises ``TypeError`` for other values."""
        if not isinstance(x, list | tuple) or (strict and not isinstance(x, list)):
            raise InputError(f"{self}: wanted a list, got {x!r:.60}")
        return [self.ttype.filter(y, allow_downcast=allow_downcast) for y in x]

    def is_valid_value(self, a: object) -> bool:
        """Whether ``filter`` takes it."""
        try:
            self.filter(a)
        except (TypeError, ValueError):
            return False
        return True

    def values_eq(self, a: Sequence[object], b: Sequence[object]) -> bool:
        """Whether two lists are equal, item by item."""
        if isinstance(self.ttype, TypedListType):
            same: Callable[[Any, Any], bool] = self.ttype.values_eq
        else:
            same = np.array_equal
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypedListType) and self.ttype == other.ttype

    def __hash__(self) -> int:
        return hash((TypedListType, self.ttype))

    def __str__(self) -> str:
        return f"TypedList <{self.ttype}>"


def _inputs(type_: TypedListType, name: str | None) -> Parts:
    made = [
        TensorType(type_.element.dtype, (None,)), TensorType("int64", (None, type_.element.ndim)),
        *[TensorType("int64", (None,))] * type_.get_depth(),
    ]  # fmt: skip
    labels = ListForm(type_).labels
    return tuple(Variable(t, f"{name}.{n}" if name else None) for t, n in zip(made, labels))


@dataclass(frozen=True)
class ListForm(Form):
    """How lists become arrays."""

    type: TypedListType

    @property
    def labels(self) -> tuple[str, ...]:
        return ("data", "shapes", *(f"counts{i}" for i in range(self.type.get_depth())))

    def split(self, value: object, what: str) -> Sequence[Any]:
        try:
            found = self.type.filter(value)
        except (TypeError, ValueError) as error:
            raise InputError(f"{what}: {error}") from None
        return _packed(self.type, found)

    def join(self, parts: Sequence[Any]) -> Any:
        data, shapes, *counts = (np.asarray(p) for p in parts)
        stops = np.cumsum(shapes.prod(1), dtype=int)
        found: list[Any] = [
            data[stop - int(np.prod(shape)) : stop].reshape(shape).copy()
            for stop, shape in zip(stops, shapes)
        ]
        for sizes in counts:
            found = [found[i - n : i] for i, n in zip(np.cumsum(sizes), sizes)]
        return found


def _packed(type_: TypedListType, values: list[Any]) -> list[Any]:
    if isinstance(type_.ttype, TypedListType):
        inner = _packed(type_.ttype, [x for v in values for x in v])
        return [*inner, np.array([len(v) for v in values], "int64")]
    empty = np.zeros(0, type_.element.numpy)
    shapes = np.array([np.shape(v) for v in values], "int64")
    return [
        np.concatenate([empty, *(np.ravel(v) for v in values)]),
        shapes.reshape(len(values), type_.element.ndim),
    ]


class TypedListVariable(Structured):
    """A list in an expression; the functions of this module are its methods."""

    def __init__(self, type: TypedListType, parts: Parts, name: str | None = None) -> None:
        self.type, self._parts, self.name = type, parts, name

    # -- as a structured value --------------------------------------------------------------------

    @property
    def form(self) -> ListForm:
        return ListForm(self.type)

    @property
    def parts(self) -> Parts:
        return self._parts

    @property
    def differentiable(self) -> Variable:
        return self._parts[0]

    def with_gradient(self, gradient: Variable) -> Self:
        made: Any = TypedListVariable(self.type, (gradient, *self._parts[1:]))
        return made  # type: ignore[no-any-return]

    def fitting(self, new: object, what: str) -> TypedListVariable:
        found = TypedListConstant(self.type, new) if isinstance(new, list) else new
        if not isinstance(found, TypedListVariable) or found.type != self.type:
            raise TypeMismatch(f"{what} of {self}", str(self.type), new)
        return found

    # -- what it is -------------------------------------------------------------------------------

    ttype = property(lambda self: self.type.ttype)
    dtype = property(lambda self: self.type.element.dtype)
    ndim = property(lambda self: self.type.element.ndim + self.type.get_depth() + 1)

    def __str__(self) -> str:
        return self.name or str(self.type)

    def __repr__(self) -> str:
        return str(self)

    def eval(self, inputs_to_values: Any = None) -> list[Any]:
        """The list, given the values of inputs."""
        from symdnn.compat.theano.names.compile_names import function

        given = dict(inputs_to_values or {})
        found: list[Any] = function(list(given), self)(*given.values())
        return found

    def __getitem__(self, index: object) -> Any:
        return getitem(self, index)

    def __len__(self) -> Any:
        return length(self)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        raise TypeError("the length of a list is known when it runs: index it, or use length(list)")

    def append(self, toAppend: object) -> TypedListVariable:
        """The list with another item at its end."""
        return append(self, toAppend)

    def extend(self, toAppend: object) -> TypedListVariable:
        """The list with the items of another one at its end."""
        return extend(self, toAppend)

    def insert(self, index: object, toInsert: object) -> TypedListVariable:
        """The list with another item at a place."""
        return insert(self, index, toInsert)

    def remove(self, toRemove: object) -> TypedListVariable:
        """The list without the first item that equals ``toRemove``."""
        return remove(self, toRemove)

    def reverse(self) -> TypedListVariable:
        """The items in the opposite order."""
        return reverse(self)

    def count(self, elem: object) -> Variable:
        """How many items equal ``elem``."""
        return count(self, elem)

    def ind(self, elem: object) -> Variable:
        """The place of the first item that equals ``elem``."""
        return index_(self, elem)


def TypedListConstant(
    type: TypedListType, data: object, name: str | None = None
) -> TypedListVariable:
    """A list whose value is known."""
    parts = ListForm(type).split(data, "TypedListConstant")
    return TypedListVariable(type, tuple(map(T.constant, parts)), name)


# -- lists by their parts -------------------------------------------------------------------------


def _before(sizes: Variable) -> Variable:
    """Where each of consecutive runs of ``sizes`` begins."""
    return T.cumsum(sizes) - sizes


def _summed(values: Variable, sizes: Variable) -> Variable:
    """The sums of consecutive runs of ``values``, which have these sizes."""
    sums = T.concatenate([T.zeros((1,), "int64"), T.cumsum(values)])
    start = _before(sizes)
    return sums[start + sizes] - sums[start]


def _places(sizes: Variable) -> tuple[Variable, Variable]:
    """For each entry of consecutive runs: the run it is in, and its place there."""
    at = T.arange(sizes.sum())
    run = T.searchsorted(T.cumsum(sizes), at, side="right")
    return run, at - _before(sizes)[run]


def _sizes(parts: Parts) -> list[Variable]:
    """How many rows of each part belong to each item."""
    shapes, counts = parts[1], parts[2:]
    runs = [T.ones_like(parts[-1]) if counts else T.ones((shapes.shape[0],), "int64")]
    for inner in (*reversed(counts), T.prod(shapes, 1)):
        runs.append(_summed(inner, runs[-1]))
    return runs[::-1]


def _chosen(x: TypedListVariable, order: Variable) -> TypedListVariable:
    """The items at these places."""
    found = []
    for part, sizes in zip(x.parts, _sizes(x.parts)):
        run, place = _places(sizes[order])
        found.append(part[_before(sizes)[order][run] + place])
    return TypedListVariable(x.type, tuple(found))


def _joined(x: TypedListVariable, y: TypedListVariable) -> TypedListVariable:
    pairs = zip(x.parts, y.parts)
    return TypedListVariable(x.type, tuple(T.concatenate([a, b]) for a, b in pairs))


def _length(x: TypedListVariable) -> Variable:
    return x.parts[-1].shape[0]


def _listed(x: TypedListVariable, item: object, what: str) -> TypedListVariable:
    """``item`` as a list of its own, of the type of ``x``."""
    _checked(x, what)
    if isinstance(x.ttype, TypedListType):
        found = x.ttype().fitting(item, what)
        count = T.stack([_length(found)])
        return TypedListVariable(x.type, (*found.parts, T.cast(count, "int64")))
    v = as_variable(item)
    if v.type != x.ttype:
        raise TypeMismatch(what, f"an item of {x.ttype}", v.type)
    sizes = [T.cast(v.shape[i], "int64") for i in range(v.ndim)]
    shapes = T.stack(sizes).reshape((1, v.ndim)) if sizes else T.zeros((1, 0), "int64")
    return TypedListVariable(x.type, (v.flatten(), shapes))


def _checked(x: object, what: str) -> TypedListVariable:
    if not isinstance(x, TypedListVariable):
        raise TypeMismatch(what, "a variable of a TypedListType", x)
    return x


def _place(index: object, what: str) -> Variable:
    found = as_variable(index)
    if not found.type.is_integer_scalar:
        raise TypeMismatch(what, "an integer scalar or a slice", found.type)
    return found


def _equal(x: TypedListVariable, item: object, what: str) -> Variable:
    """For each item of ``x``, whether it equals ``item``."""
    other = _listed(x, item, what)
    found = T.ones((_length(x),), "bool")
    for part, wanted, sizes in zip(x.parts, other.parts, _sizes(x.parts)):
        _, place = _places(sizes)
        n = wanted.shape[0]
        padded = T.concatenate([wanted, T.zeros_like(part[:1]), T.zeros_like(wanted[:1])])
        same = T.eq(part, padded[T.minimum(place, n)])
        rows = same if same.ndim == 1 else T.all(same, 1)
        agreeing = _summed(T.cast(rows, "int64"), sizes)
        found = found & T.eq(sizes, n) & T.eq(agreeing, sizes)
    return found


# -- the ops --------------------------------------------------------------------------------------


class _ListOp:
    """An op of lists, by Theano's class; ``inplace`` is accepted, since the compiler decides it."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __str__(self) -> str:
        return type(self).__name__


class GetItem(_ListOp):
    """The item at an index, or with a slice a list."""

    def __call__(self, x: TypedListVariable, index: object) -> Variable | TypedListVariable:
        """Apply to a list."""
        _checked(x, "getitem")
        if isinstance(index, SliceVariable):
            return _chosen(x, index.of(_length(x)))
        if isinstance(index, slice):
            return _chosen(x, T.arange(_length(x))[index])
        at = _place(index, "getitem")
        if isinstance(x.ttype, TypedListType):
            one = _chosen(x, T.arange(_length(x))[at].dimshuffle("x"))
            return TypedListVariable(x.ttype, one.parts[:-1])
        data, shapes = x.parts
        sizes = T.prod(shapes, 1)
        start = _before(sizes)[at]
        shape = shapes[at]
        found = data[start : start + sizes[at]].reshape(
            [shape[i] for i in range(x.ttype.ndim)], ndim=x.ttype.ndim
        )
        item: Variable = x.ttype.filter_variable(found)
        return item


class Append(_ListOp):
    """The list with another item at its end."""

    def __call__(self, x: TypedListVariable, toAppend: object) -> TypedListVariable:
        """Apply to a list."""
        return _joined(x, _listed(x, toAppend, "append"))


class Extend(_ListOp):
    """The list with the items of another one at its end."""

    def __call__(self, x: TypedListVariable, toAppend: object) -> TypedListVariable:
        """Apply to a list."""
        return _joined(x, _checked(x, "extend").fitting(toAppend, "extend"))


class Insert(_ListOp):
    """The list with another item at a place, which is bounded as ``list.insert`` bounds it."""

    def __call__(self, x: TypedListVariable, index: object, toInsert: object) -> TypedListVariable:
        """Apply to a list."""
        longer, n = _joined(x, _listed(x, toInsert, "insert")), _length(x)
        at = _place(index, "insert")
        at = T.clip(T.switch(at < 0, at + n, at), 0, n)
        k = T.arange(n + 1)
        order = T.switch(k < at, k, T.switch(T.eq(k, at), n, k - 1))
        return _chosen(longer, T.cast(order, "int64"))


class Remove(_ListOp):
    """The list without the first item that equals ``toRemove``; the list where there is none."""

    def __call__(self, x: TypedListVariable, toRemove: object) -> TypedListVariable:
        """Apply to a list."""
        same = T.cast(_equal(x, toRemove, "remove"), "int64")
        first = T.eq(same, 1) & T.eq(T.cumsum(same), 1)
        return _chosen(x, T.invert(first).nonzero()[0])


class Reverse(_ListOp):
    """The items in the opposite order."""

    def __call__(self, x: TypedListVariable) -> TypedListVariable:
        """Apply to a list."""
        return _chosen(_checked(x, "reverse"), T.arange(_length(x))[::-1])


class Index(_ListOp):
    """The place of the first equal item as a ``floatX`` scalar; ``AssertionError`` if none."""

    def __call__(self, x: TypedListVariable, elem: object) -> Variable:
        """Apply to a list."""
        same = _equal(x, elem, "index")
        found = T.argmax(T.concatenate([same, T.ones((1,), "bool")]))
        held = T.opt.Assert("index: no item of the list is equal")(found, T.any(same))
        return T.cast(held, config.floatX)


class Count(_ListOp):
    """How many items are equal, as a ``floatX`` scalar."""

    def __call__(self, x: TypedListVariable, elem: object) -> Variable:
        """Apply to a list."""
        return T.cast(_equal(x, elem, "count").sum(), config.floatX)


class Length(_ListOp):
    """The number of items, an int64 scalar."""

    def __call__(self, x: TypedListVariable) -> Variable:
        """Apply to a list."""
        return T.cast(_length(_checked(x, "length")), "int64")


class MakeList(_ListOp):
    """A list of variables of one type; raises ``TypeError`` where they have several."""

    def __call__(self, a: object) -> TypedListVariable:
        """Apply to Python's list or tuple of variables."""
        if not isinstance(a, list | tuple) or not a:
            raise TypeMismatch("make_list", "a list of variables, at least one", a)
        items = [v if isinstance(v, TypedListVariable) else as_variable(v) for v in a]
        if any(v.type != items[0].type for v in items):
            raise TypeMismatch("make_list", f"items of {items[0].type}", [v.type for v in items])
        empty = TypedListConstant(TypedListType(items[0].type), [])
        first, *rest = (_listed(empty, v, "make_list") for v in items)
        for other in rest:
            first = _joined(first, other)
        return first


getitem, append, extend, insert, remove = GetItem(), Append(), Extend(), Insert(), Remove()
reverse, index_, count, length, make_list = Reverse(), Index(), Count(), Length(), MakeList()
