"""``x[...]`` by NumPy's rules, and ``set_subtensor`` / ``inc_subtensor`` of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import IndexOutOfRange, NdimMismatch, ShapeMismatch, TypeMismatch
from symdnn.graph.op import Host, MultiOp, Shapes, Types
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Apply, Constant, Variable, as_variable, constant
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.index import IncSubtensor, Subtensor, encode, subtensor
from symdnn.ops.array.scatter_reduce import ScatterReduce
from symdnn.ops.array.view import SpecifyShape, addbroadcast, specify_shape
from symdnn.ops.core.make_vector import make_vector
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.shape import (
    DimShuffle,
    Reshape,
    ShapeVector,
    alloc,
    as_dim,
    dims_of,
    dimshuffle,
    reshape,
    shape_i,
)
from symdnn.ops.core.short_axes import with_short_axes_declared
from symdnn.ops.elemwise import kind_of, pad_left

__all__ = [
    "Nonzero", "getitem", "inc_subtensor", "nonzero", "reduce_subtensor", "set_subtensor",
]  # fmt: skip


#: Elements from which on NumPy finds their numbers faster than their indices along several axes.
_MIN_FLAT = 1 << 12


@dataclass(frozen=True)
class Nonzero(MultiOp):
    """Indices of the elements that are not zero: one int64 vector for each dimension.

    Their length depends on the data.
    """

    no_gradients: ClassVar[bool] = True

    def infer(self, x: TensorType) -> tuple[Type, ...]:
        if x.ndim == 0:
            raise NdimMismatch(self, "a tensor with dimensions", x)
        return tuple(TensorType("int64", (None,)) for _ in range(x.ndim))

    def reference(self, x: Array) -> tuple[Array, ...]:
        if x.ndim > 1 and x.size >= _MIN_FLAT:
            return _places(x)
        return tuple(i.astype(np.int64, copy=False) for i in np.nonzero(x))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> None:
        return None


def _places(x: Array) -> tuple[Array, ...]:
    """The indices of elements that are not zero, by their numbers in C order."""
    rest, found = np.flatnonzero(x).astype(np.int64, copy=False), list[Array]()
    for n in x.shape[:0:-1]:
        before = rest // n
        found.insert(0, rest - before * n)
        rest = before
    return (rest, *found)


def nonzero(a: TensorLike, return_matrix: bool = False, as_tuple: bool = True) -> Any:
    """Indices of the elements that are not zero: a tuple of int64 vectors, one per dimension.

    With ``return_matrix`` they are the rows of one matrix, with ``as_tuple=False``, which is
    PyTorch's default, its columns.
    """
    found = Nonzero()(as_variable(a))
    if not as_tuple:
        return operator("stack")(list(found), axis=1)
    return operator("stack")(list(found)) if return_matrix else tuple(found)


# -- reading --------------------------------------------------------------------------------------


def getitem(x: TensorLike, index: Any) -> Variable:
    """``x[index]``: ints, slices, Ellipsis, None, integer arrays, boolean masks and bools.

    A bool, also a symbolic one, is a mask of no dimension: ``x[True]`` has a new axis of 1,
    ``x[False]`` one of 0. Ints and bounds may be integer scalars, arrays and masks symbolic. With
    ints, slices and None alone the result is a view; arrays follow NumPy's rules for advanced
    indexing.
    """
    v = as_variable(x)
    if isinstance(index, list) and any(isinstance(i, slice) for i in index):
        index = tuple(index)  # as Theano does, and NumPy did
    v, index = _bools_as_arrays(v, index if isinstance(index, tuple) else (index,))
    items, gap, v = _items(v, index)
    if (size := _of_shape(v, items)) is not None:
        return size
    if any(_is_array(i) for i in items):
        return _apart(_advanced(v, items), items, gap)
    taken = subtensor(v, [i for i in items if i is not None])
    if None not in items:
        return taken
    pattern: list[int | str] = []
    axes = iter(range(taken.type.ndim))
    for i in items:
        if i is None:
            pattern.append("x")
        elif isinstance(i, slice):
            pattern.append(next(axes))
    return dimshuffle(taken, [*pattern, *axes])


#: What a bool of an index, False or True, selects on an axis of its own.
_SELECTED = tuple(constant(np.zeros(n, np.int64)) for n in (0, 1))

#: The name of an array with an axis for each bool of an index.
_WITH_AXES = "with axes for bools"


def _bools_as_arrays(v: Variable, index: tuple[Any, ...]) -> tuple[Variable, tuple[Any, ...]]:
    """``v`` with an axis of 1 for each bool, and the index with arrays in their place.

    One True without ints and arrays is None.
    """
    bools = [k for k, i in enumerate(index) if _is_bool(i)]
    if not bools:
        return v, index
    index = tuple(_python_bool(i) if k in bools else i for k, i in enumerate(index))
    plain = [i is None or i is Ellipsis or isinstance(i, slice) for i in index]
    if len(bools) == 1 and index[bools[0]] is True and plain.count(False) == 1:
        return v, (*index[: bools[0]], None, *index[bools[0] + 1 :])
    taken = [0 if k in bools else _consumed(_classify(i)) for k, i in enumerate(index)]
    if sum(taken) > v.type.ndim:
        raise _too_many(v, sum(taken))
    if Ellipsis in [i for i in index if not isinstance(i, Variable | np.ndarray)]:
        taken[next(k for k, i in enumerate(index) if i is Ellipsis)] = v.type.ndim - sum(taken)
    axes = iter(range(v.type.ndim))
    pattern: list[int | str] = []
    for k, count in enumerate(taken):
        pattern += ["x"] if k in bools else [next(axes) for _ in range(count)]
    entries = list(index)
    for k, selected in zip(bools, _selected([index[k] for k in bools]), strict=True):
        entries[k] = selected
    v = dimshuffle(v, [*pattern, *axes])
    v.name = _WITH_AXES
    return v, tuple(entries)


def _is_bool(item: object) -> bool:
    if isinstance(item, Variable):
        return isinstance(item.type, TensorType) and item.type.ndim == 0 and _is_mask(item)
    return isinstance(item, bool | np.bool_) or (
        isinstance(item, np.ndarray) and item.ndim == 0 and item.dtype == bool
    )


def _python_bool(item: Any) -> bool | Variable:
    """A bool of an index, as Python's where its value is known."""
    if isinstance(item, Constant):
        item = item.data
    return item if isinstance(item, Variable) else bool(item)


def _selected(bools: Sequence[bool | Variable]) -> list[Variable]:
    """What each of the bools of an index selects on its axis.

    The first stands for all, if one is symbolic: only a size that is known to be 1 broadcasts.
    """
    if not any(isinstance(i, Variable) for i in bools):
        return [_SELECTED[int(i)] for i in bools]
    every = reduce(operator("and_"), bools)
    return [nonzero(dimshuffle(every, ["x"]))[0], *[_SELECTED[1]] * (len(bools) - 1)]


def _of_shape(v: Variable, items: Sequence[Any]) -> Variable | None:
    """An entry (or a static part) of a shape, without building the vector."""
    if v.owner is None or not isinstance(v.owner.op, ShapeVector) or len(items) != 1:
        return None
    (x,), (item,) = v.owner.inputs, items
    if isinstance(item, int):
        return shape_i(x, item)
    bounds = (item.start, item.stop, item.step) if isinstance(item, slice) else ("?",)
    if not all(b is None or isinstance(b, int) for b in bounds):
        return None
    chosen = [as_dim(d) for d in dims_of(x)[item]]
    return make_vector(chosen) if chosen else constant(np.zeros(0, np.int64))


def _is_array(item: object) -> bool:
    return isinstance(item, Variable) and item.type.ndim > 0


def _advanced(v: Variable, items: Sequence[Any]) -> Variable:
    left = v.type.ndim - sum(i is not None for i in items)
    if left < 0:
        raise _too_many(v, v.type.ndim - left)
    entries: list[Any] = ["x" if i is None else i for i in items] + [slice(None)] * left
    # With an array in the index, an integer counts as an array, too.
    arrays = [as_variable(e) for e in entries if isinstance(e, int | Variable)]
    ndim = max(a.type.ndim for a in arrays)
    pattern, bounds = encode(["a" if isinstance(e, int | Variable) else e for e in entries])
    aligned = [pad_left(a, ndim) for a in arrays]
    return AdvancedSubtensor(pattern)(v, *aligned, *bounds)


def _apart(taken: Variable, items: Sequence[Any], gap: int | None) -> Variable:
    """Moves dimensions of index arrays to the front if an empty Ellipsis separates the arrays.

    ``taken`` is the result of the same index without the Ellipsis, which stands for no dimension.
    """
    at = [k for k, i in enumerate(items) if isinstance(i, int | Variable)]
    beside = at[-1] - at[0] == len(at) - 1
    if gap is None or not beside or not at[0] < gap <= at[-1]:
        return taken
    depth = max(i.type.ndim for i in items if isinstance(i, Variable))
    arrays = range(at[0], at[0] + depth)  # only slices and None are before them
    rest = [d for d in range(taken.type.ndim) if d not in arrays]
    return dimshuffle(taken, [*arrays, *rest])


def _items(v: Variable, index: tuple[Any, ...]) -> tuple[list[Any], int | None, Variable]:
    """The index with Ellipsis and masks expanded: None, ints, slices and integer variables.

    The second result is the position of an Ellipsis that stands for no dimension, the third ``v``
    with the sizes that constant masks have, which are checked.
    """
    classified = [_classify(i) for i in index]
    dots = [k for k, i in enumerate(classified) if i is Ellipsis]
    if len(dots) > 1:
        raise IndexOutOfRange("an index can have only one Ellipsis ('...')")
    consumed = sum(_consumed(i) for i in classified)
    if consumed > v.type.ndim:
        raise _too_many(v, consumed)
    items: list[Any] = []
    axis, gap, sizes = 0, None, list(dims_of(v))
    for i in classified:
        if i is Ellipsis:
            missing = v.type.ndim - consumed
            gap = None if missing else len(items)
            items += [slice(None)] * missing
            axis += missing
        else:
            items += _mask(v, i, axis) if _is_mask(i) else [i]
            if isinstance(i, Constant) and _is_mask(i):
                sizes[axis : axis + i.type.ndim] = i.data.shape
            axis += _consumed(i)
    known = [isinstance(n, int) for n in sizes]
    if known != [n is not None for n in v.type.shape]:
        v = specify_shape(v, sizes)
    return items, gap, v


def _too_many(v: Variable, count: int) -> IndexOutOfRange:
    return IndexOutOfRange(f"{count} indices for {v}, which has {v.type.ndim} dimension(s)")


def _classify(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, int | np.integer):
        return int(item)
    if isinstance(item, list | tuple) and len(item) == 0:
        return constant(np.zeros(0, np.int64))
    i = as_variable(item)
    if not isinstance(i.type, TensorType) or not i.type.is_discrete:
        raise TypeMismatch("an index", "an integer or boolean tensor", i.type)
    return int(i.data) if i.type.ndim == 0 and isinstance(i, Constant) else i


def _is_mask(item: object) -> bool:
    return isinstance(item, Variable) and item.type.dtype == "bool"


def _consumed(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.type.ndim if _is_mask(item) else 1


def _mask(v: Variable, mask: Variable, axis: int) -> list[Variable]:
    wanted = dims_of(v)[axis : axis + mask.type.ndim]
    if isinstance(mask, Constant):
        for d, n in zip(wanted, mask.data.shape, strict=True):
            if isinstance(d, int) and d != n:
                raise ShapeMismatch("a mask", f"the shape {wanted}", mask.data.shape)
        return [constant(i.astype(np.int64)) for i in np.nonzero(mask.data)]
    return list(nonzero(specify_shape(mask, wanted)))


# -- writing --------------------------------------------------------------------------------------


def set_subtensor(
    x: TensorLike, y: TensorLike, inplace: bool = False, tolerate_inplace_aliasing: bool = False
) -> Variable:
    """The tensor of which ``x`` is an indexed part, with ``y`` assigned to that part.

    ``set_subtensor(r[10:], 5)``; ``x`` may also be a dimshuffle or reshape of an indexed part.
    ``y`` broadcasts by its static 1s, and where it is computed of a slice of at most one element;
    its dtype must fit that of ``x``. The last two arguments are Theano's and have no effect: the
    compiler decides what is computed in place.
    """
    return _written(as_variable(x), y, set_instead_of_inc=True)


def inc_subtensor(
    x: TensorLike,
    y: TensorLike,
    inplace: bool = False,
    set_instead_of_inc: bool = False,
    tolerate_inplace_aliasing: bool = False,
    ignore_duplicates: bool = False,
) -> Variable:
    """The tensor of which ``x`` is an indexed part, with ``y`` added to that part.

    An element that occurs twice in an index array gets both increments (``ignore_duplicates`` would
    permit to lose one, and has no effect). Otherwise as :func:`set_subtensor`.
    """
    return _written(as_variable(x), y, set_instead_of_inc)


def _written(x: Variable, y: TensorLike, set_instead_of_inc: bool) -> Variable:
    value = _value_for(x, y)
    node = x.owner
    op = node.op if node is not None else None
    if node is not None and isinstance(op, Subtensor):
        put = IncSubtensor(op.index, set_instead_of_inc)
        return put(node.inputs[0], value, *node.inputs[1:])
    if node is not None and isinstance(op, AdvancedSubtensor):
        place = AdvancedIncSubtensor(op.index, set_instead_of_inc)
        return _without_bools(node, place(node.inputs[0], value, *node.inputs[1:]))
    if node is not None and isinstance(op, DimShuffle):
        inner = node.inputs[0]
        return _written(inner, _shuffled_back(inner, op.pattern, value), set_instead_of_inc)
    if node is not None and isinstance(op, Reshape):
        inner = node.inputs[0]
        full = reshape(alloc(value, *dims_of(x)), dims_of(inner))
        return _written(inner, full, set_instead_of_inc)
    raise TypeMismatch(
        "set_subtensor / inc_subtensor",
        "an indexed tensor such as x[1:3] or x[rows]",
        f"{x} of type {x.type}",
        "Index the tensor that is to change: T.set_subtensor(x[index], y)",
    )


def _shuffled_back(x: Variable, pattern: Sequence[int | str], value: Variable) -> Variable:
    """What ``pattern`` makes ``value`` of, for ``x``: its new axes have size 1."""
    value = addbroadcast(value, *(k for k, d in enumerate(pattern) if d == "x"))
    at = {d: k for k, d in enumerate(pattern)}
    return dimshuffle(value, [at.get(d, "x") for d in range(x.type.ndim)])


def _without_bools(node: Apply, written: Variable) -> Variable:
    """What was written to an indexed part, without the axes that bools of the index made.

    They are known by the array's name, which copies of a graph keep.
    """
    made = node.inputs[0]
    if made.owner is not None and isinstance(made.owner.op, SpecifyShape):
        made = made.owner.inputs[0]  # masks say sizes
    if made.name != _WITH_AXES:
        return written
    assert made.owner is not None
    assert isinstance(made.owner.op, DimShuffle)
    return dimshuffle(written, [k for k, d in enumerate(made.owner.op.pattern) if d != "x"])


def reduce_subtensor(x: TensorLike, y: TensorLike, reduce: str) -> Variable:
    """The tensor of which ``x`` is an indexed part, with ``y`` combined with that part.

    ``reduce`` is ``"max"``, ``"min"`` or ``"mul"``. An element that occurs twice in an index array
    is combined with both values. Otherwise as :func:`set_subtensor`.
    """
    part = as_variable(x)
    node, value = part.owner, _value_for(part, y)
    op = node.op if node is not None else None
    if node is not None and isinstance(op, AdvancedSubtensor):
        found = ScatterReduce(op.index, reduce=reduce)
        return _without_bools(node, found(node.inputs[0], value, *node.inputs[1:]))
    if node is not None and isinstance(op, DimShuffle) and made_by_arrays(node.inputs[0]):
        inner = node.inputs[0]
        return reduce_subtensor(inner, _shuffled_back(inner, op.pattern, value), reduce)
    # Without index arrays no element occurs twice.
    combine = {"max": "maximum", "min": "minimum", "mul": "mul"}[reduce]
    return _written(part, operator(combine)(part, value), True)


def made_by_arrays(x: Variable) -> bool:
    """Whether ``x`` is a part that index arrays select, or one with its axes in another order."""
    op = None if x.owner is None else x.owner.op
    if isinstance(op, DimShuffle) and x.owner is not None:
        return made_by_arrays(x.owner.inputs[0])
    return isinstance(op, AdvancedSubtensor)


def _value_for(x: Variable, y: TensorLike) -> Variable:
    """``y`` in the dtype and ndim of ``x``: a cast may round, but not change the kind."""
    if isinstance(y, int | float) and not isinstance(y, bool) and not x.type.is_discrete:
        y = constant(y, dtype=x.type.dtype)
    _, value = settled([x, as_variable(y)])
    if "bifc".index(kind_of(value.type.dtype)) > "bifc".index(kind_of(x.type.dtype)):
        raise TypeMismatch(
            "set_subtensor / inc_subtensor",
            f"a value of the kind of {x.type.dtype}, or of a lower one (bool, int, float, complex)",
            value.type,
            f"Cast it: y.astype({x.type.dtype!r})",
        )
    if value.type.ndim > x.type.ndim:
        raise NdimMismatch(
            "set_subtensor / inc_subtensor", f"at most {x.type.ndim} dimension(s)", value.type
        )
    if value.type.dtype != x.type.dtype:
        value = operator("cast")(value, x.type.dtype)
    return with_short_axes_declared([x, pad_left(value, x.type.ndim)])[1]


OPERATORS = {
    "getitem": getitem,
    "inc_subtensor": inc_subtensor,
    "nonzero": nonzero,
    "set_subtensor": set_subtensor,
}
