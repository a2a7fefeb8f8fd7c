"""How ops become statements on small arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from symdnn.graph.op import Op
from symdnn.graph.operators import operator
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.strides import reshaped
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.create import ARange
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Split
from symdnn.ops.array.reduce import LogSumExp, Reduce, Sum
from symdnn.ops.array.slices import is_slice
from symdnn.ops.array.view import Copy
from symdnn.ops.control.checkpoint import After
from symdnn.ops.control.scan import Scan
from symdnn.ops.core.gradient_control import Assert, Print
from symdnn.ops.core.make_vector import MakeVector
from symdnn.ops.core.scalar import Builder
from symdnn.ops.core.shape import Alloc, Reshape, ShapeI, ShapeVector
from symdnn.ops.elementwise.comparison import isfinite, switch
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise, like
from symdnn.ops.linalg.products import BatchedDot, Dot
from symdnn.ops.lowered.fused import FusedComplex, FusedElemwise, FusedReduce
from symdnn.ops.lowered.fused_rows import FusedRows
from symdnn.ops.lowered.transfer import GpuFromHost, HostFromGpu
from symdnn.ops.nest.monoid import total
from symdnn.ops.nest.nest import Fold
from symdnn.ops.nest.of_ops import CUMULATIVE, number_dtype, reduction_fold, scan_fold
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.ops.steps.block import Block, Rule
from symdnn.ops.steps.code import NotLowered, same
from symdnn.ops.steps.complex_numbers import complex_meaning, complex_sum, part_dtypes, parts
from symdnn.ops.steps.loops import scan_statements
from symdnn.ops.steps.matrices import MATRICES
from symdnn.ops.steps.moves import MOVES, added
from symdnn.ops.steps.orders import ORDERS
from symdnn.ops.steps.rows import rows_statements
from symdnn.ops.steps.statements import Check, Folding, Index, Map, Product, Statement, View

#: Numbers of float32 whose sum is as exact as NumPy's without float64.
_FEW = 64
#: Exponentials that are kept until they are added, at most.
_MOST_EXPONENTIALS = 1 << 14


# -- elementwise ops, reductions ------------------------------------------------------------------


def _elementwise(block: Block, node: Apply) -> list[Statement] | None:
    op = node.op
    if isinstance(op, FusedElemwise | FusedComplex):
        program = op.program
    else:
        assert isinstance(op, Elemwise)
        dtypes = tuple(v.type.dtype for v in node.inputs)
        found = meaning(op, dtypes) or complex_meaning(op, dtypes)
        if found is None:
            return None
        program = found
    if program.output_dtypes != tuple(d for v in node.outputs for d in part_dtypes(v.type.dtype)):
        return None
    (shape, *_) = block.shapes(node)
    reads = tuple(block.view(v).spread(shape) for v in node.inputs)
    over = {} if shape == () else _overwritten(block, node, shape)
    for v, view in over.items():
        block.set(v, view)
    writes = [over.get(v) or block.make(v, shape) for v in node.outputs]
    return [Map(program, shape, parts(reads), parts(writes))]


def _overwritten(block: Block, node: Apply, shape: tuple[int, ...]) -> dict[Variable, View]:
    """The memory of inputs that results overwrite, element by element.

    The next value of a state is made where the state is, or in the memory of no state.
    """
    found = [block.overwrites(v) for v in node.inputs]
    free = [f for f in found if f is not None and f.shape == shape]
    chosen: dict[Variable, View] = {}
    outputs = [v for v in node.outputs if v not in block.targets]
    for v in sorted(outputs, key=lambda v: v not in block.states):
        own, others = block.states.get(v), block.states.values()
        fits = [f for f in free if f.dtype == v.type.dtype]
        if own is not None:
            fits = [f for f in fits if f == own or f not in others]
        if fits:
            chosen[v] = own if own in fits else fits[0]
            free.remove(chosen[v])
    return chosen


def _reduction(block: Block, node: Apply) -> list[Statement] | None:
    op = node.op
    shapes = [block.shape(v) for v in node.inputs]
    sizes = tuple(int(n) for n in np.broadcast_shapes(*shapes))
    axes = (op.reductions[0] if isinstance(op, FusedReduce) else op).axes  # type: ignore[attr-defined]
    along = tuple(range(len(sizes))) if axes is None else tuple(a % len(sizes) for a in axes)
    dtypes = tuple(v.type.dtype for v in node.inputs)
    count = prod(sizes[a] for a in along)
    (first, *_), whole = dtypes, isinstance(op, Sum)
    if whole and node.outputs[0].type.dtype == first and len(part_dtypes(first)) > 1:
        fold: Fold | None = complex_sum(first)
    else:
        fold = reduction_fold(op, dtypes, number_dtype(count), count > _FEW)
    results = tuple(d for v in node.outputs for d in part_dtypes(v.type.dtype))
    if fold is None or fold.result_dtypes != results:
        return None
    writes = []
    for v, shape in zip(node.outputs, block.shapes(node), strict=True):
        writes.append(_along(block.make(v, shape), sizes, along))
    reads = tuple(block.view(v).spread(sizes) for v in node.inputs)
    return [Folding(fold, sizes, along, parts(reads), parts(writes))]


def _along(view: View, sizes: Sequence[int], along: Sequence[int]) -> View:
    """A result of a fold, with steps of 0 along the folded axes, which it may lack."""
    steps = iter(view.steps)
    kept = len(view.shape) == len(sizes)
    found = []
    for d in range(len(sizes)):
        step = next(steps) if kept or d not in along else 0
        found.append(0 if d in along else step)
    return replace(view, shape=tuple(sizes), steps=tuple(found))


def _cumulative(block: Block, node: Apply) -> list[Statement] | None:
    op: Any = node.op
    if node.inputs[0].type.is_complex:
        return None
    fold = scan_fold(op, node.inputs[0].type.dtype, True).stepwise()
    if fold.result_dtypes != tuple(v.type.dtype for v in node.outputs):
        return None
    (shape,) = block.shapes(node)
    reads = [block.view(v).spread(shape) for v in node.inputs]
    writes = [block.make(node.outputs[0], shape)]
    if op.reverse:
        reads, writes = ([_turned(w, op.axis) for w in group] for group in (reads, writes))
    return [Folding(fold, shape, (op.axis % len(shape),), tuple(reads), tuple(writes))]


def _turned(view: View, axis: int) -> View:
    """From the last entry along an axis to the first."""
    steps = list(view.steps)
    far = steps[axis] * (view.shape[axis] - 1)
    steps[axis] = -steps[axis]
    return replace(view, steps=tuple(steps), offset=view.offset + far)


def _softmax(block: Block, node: Apply) -> list[Statement] | None:
    """Softmax, its logarithm, and the gradients of both, in reductions and elementwise ops."""
    op: Any = node.op
    if node.outputs[0].type.dtype not in ("float32", "float64"):
        return None

    def summed(v: Variable) -> Variable:
        return v.sum(axis=op.axis, keepdims=True)

    if isinstance(op, SoftmaxGrad | LogSoftmaxGrad):
        y, dy = node.inputs
        of_log = isinstance(op, LogSoftmaxGrad)
        weighed = dy - operator("exp")(y) * summed(dy) if of_log else y * (dy - summed(y * dy))
        return block.expression(node, [weighed])
    (x,) = node.inputs
    centred = x - x.max(axis=op.axis, keepdims=True)
    weights = operator("exp")(centred)
    if isinstance(op, LogSoftmax):
        return block.expression(node, [centred - operator("log")(summed(weights))])
    # One division for each row, whose sum is at least 1.
    return block.expression(node, [weights * (like(1, x) / summed(weights))])


def _log_sum_exp(block: Block, node: Apply) -> list[Statement] | None:
    """By way of the largest elements: exponentials of all elements at once, in vectors."""
    op: Any = node.op
    (own, *more) = op.reductions if isinstance(op, FusedReduce) else (op,)
    dtype = node.outputs[0].type.dtype
    sizes = np.broadcast_shapes(*(block.shape(v) for v in node.inputs))
    if not isinstance(own, LogSumExp) or more or dtype not in ("float32", "float64"):
        return None
    if prod(sizes) > _MOST_EXPONENTIALS:
        return None
    (x,) = node.inputs if op is own else FusedElemwise(op.program).make_node(*node.inputs).outputs
    if x.type.dtype != dtype:
        return None
    top = x.max(axis=own.axes, keepdims=True)
    # inf - inf would be NaN
    base = switch(isfinite(top), top, 0).astype(dtype)
    total = operator("exp")(x - base).sum(axis=own.axes, keepdims=True)
    found = operator("log")(total) + base
    if not own.keepdims:
        kept = [d for d in range(len(sizes)) if d not in {a % len(sizes) for a in own.axes}]
        found = found.dimshuffle(kept)
    return block.expression(node, [found])


# -- views and copies -----------------------------------------------------------------------------


def _shape(block: Block, node: Apply) -> list[Statement]:
    shape = block.shape(node.inputs[0])
    value = shape[node.op.axis] if isinstance(node.op, ShapeI) else shape
    block.set(node.outputs[0], np.asarray(value, np.int64))
    return []


def _view(block: Block, node: Apply) -> list[Statement] | None:
    """Any op whose result is a view, by its reference on an array with the same steps."""
    op = node.op
    if op.views.get(0) != 0 or len(node.outputs) != 1 or isinstance(op, Print):
        return None
    statements = _conditions(block, node) if isinstance(op, Assert) else []
    view, rest = block.view(node.inputs[0]), node.inputs[1:]
    known = [] if isinstance(op, Assert | After) else [block.known(v) for v in rest]
    if isinstance(op, Assert | After):
        found: Any = view
    elif isinstance(op, Reshape):
        (shape,) = block.shapes(node)
        return statements + _reshaped(block, node.outputs[0], view, shape)
    elif any(k is None for k in known):
        raise NotLowered(f"a size of {op} is not known")
    else:
        block.shapes(node)  # its errors
        found = _referred(op, view, known)
    block.set(node.outputs[0], found)
    return statements


def _conditions(block: Block, node: Apply) -> list[Statement]:
    found: list[Statement] = []
    for v in node.inputs[1:]:
        if block.shape(v) != ():
            raise NotLowered("a condition of an assertion is no scalar")
        found.append(Check(block.view(v)))
    return found


def _referred(op: Any, view: View, known: Sequence[Any]) -> View:
    size = view.itemsize
    low = sum(min(0, s * (n - 1)) for s, n in zip(view.steps, view.shape))
    high = sum(max(0, s * (n - 1)) for s, n in zip(view.steps, view.shape))
    memory = np.zeros(high - low + size, np.uint8)
    first = np.ndarray((), numpy_dtype(view.dtype), memory, -low)
    dummy = as_strided(first, view.shape, view.steps)
    made = op.reference(dummy, *known)
    if not isinstance(made, np.ndarray):  # NumPy gives the number itself, not where it is
        places = np.zeros(view.shape, np.int64)
        for d, (n, s) in enumerate(zip(view.shape, view.steps)):
            places += (np.arange(n) * s).reshape([-1 if k == d else 1 for k in range(places.ndim)])
        at = int(op.reference(places, *known))
        return replace(view, shape=(), steps=(), offset=view.offset + at)
    moved = made.__array_interface__["data"][0] - dummy.__array_interface__["data"][0]
    return replace(view, shape=made.shape, steps=made.strides, offset=view.offset + moved)


def _reshaped(block: Block, v: Variable, view: View, shape: tuple[int, ...]) -> list[Statement]:
    steps = reshaped(view.shape, view.steps, shape)
    if steps is not None:
        block.set(v, replace(view, shape=shape, steps=steps))
        return []
    there = block.code.buffer(view.dtype, view.shape)
    block.owned.add(there.base)
    made = reshaped(there.shape, there.steps, shape)
    assert made is not None, "C order has every shape"
    block.set(v, replace(there, shape=shape, steps=made))
    return same(there, view)


def _copy(block: Block, node: Apply) -> list[Statement]:
    view = block.view(node.inputs[0])
    return same(block.make(node.outputs[0], view.shape), view)


def _transfer(block: Block, node: Apply) -> list[Statement]:
    """Nothing: a loop's values are where the loop runs."""
    block.set(node.outputs[0], block.env_value(node.inputs[0]))
    return []


def _alloc(block: Block, node: Apply) -> list[Statement]:
    (shape,) = block.shapes(node)
    view, out = block.view(node.inputs[0]).spread(shape), node.outputs[0]
    if out in block.targets:
        return same(block.make(out, shape), view)
    block.set(out, view)
    return []


def _range(block: Block, node: Apply[ARange]) -> list[Statement]:
    bounds = [block.known(v) for v in node.inputs]
    if any(b is None for b in bounds):
        raise NotLowered(f"a size of {node.op} is not known")
    (made,) = node.op.compute(*bounds)
    block.set(node.outputs[0], made)
    return []


def _vector(block: Block, node: Apply) -> list[Statement]:
    n = len(node.inputs)
    views = [block.view(v) for v in node.inputs]
    return _joined(block, node, (n,), 0, [replace(v, shape=(1,), steps=(0,)) for v in views])


def _join(block: Block, node: Apply[Join]) -> list[Statement]:
    (shape,) = block.shapes(node)
    views = [block.view(v) for v in node.inputs]
    return _joined(block, node, shape, node.op.axis, views)


def _joined(
    block: Block, node: Apply, shape: Sequence[int], axis: int, pieces: Sequence[View]
) -> list[Statement]:
    out = block.make(node.outputs[0], shape)
    found: list[Statement] = []
    at = 0
    for p in pieces:
        place = replace(out, shape=p.shape, offset=out.offset + at * out.steps[axis])
        found += same(place, p)
        at += p.shape[axis]
    return found


def _split(block: Block, node: Apply[Split]) -> list[Statement]:
    axis = node.op.axis
    view, at = block.view(node.inputs[0]), 0
    for v, shape in zip(node.outputs, block.shapes(node), strict=True):
        place = replace(view, shape=shape, offset=view.offset + at * view.steps[axis])
        block.set(v, place)
        at += shape[axis]
    return []


# -- indices --------------------------------------------------------------------------------------


def _part(
    block: Block, index: Sequence[Any], view: View, bounds: Sequence[Variable]
) -> tuple[list[Statement], View]:
    """The statements that read an index's numbers, and the part that it selects."""
    rest, found = list(bounds), list[Statement]()
    entries: list[Any] = []
    known: list[Any] = []
    for axis, e in enumerate(index):
        if not is_slice(e) and e == "?":
            v = rest.pop(0)
            if block.is_known(v):
                known.append(block.known(v))
                entries.append("?")
                continue
            name = block.code.name("index")
            found.append(Index(name, block.view(v), view.shape[axis]))
            view = view.moved(name, view.steps[axis])
            entries.append(0)
            continue
        for b in e if is_slice(e) else ():
            if b == "?":
                number = block.known(rest.pop(0))
                if number is None:
                    raise NotLowered("a bound of a slice is not known")
                known.append(number)
        entries.append(e)
    return found, _referred(Subtensor(tuple(entries)), view, known)


def _subtensor(block: Block, node: Apply) -> list[Statement]:
    op: Any = node.op
    found, part = _part(block, op.index, block.view(node.inputs[0]), node.inputs[1:])
    block.set(node.outputs[0], part)
    return found


def _increment(block: Block, node: Apply) -> list[Statement]:
    op: Any = node.op
    (x, y, *bounds), (out,) = node.inputs, node.outputs
    view, value = block.view(x), block.view(y)
    there = None if out in block.targets else block.overwrites(x)
    if there is None:
        made = block.make(out, view.shape)
        copies = same(made, view)
    else:
        made, copies = there, []
        block.set(out, there)
    found, part = _part(block, op.index, made, bounds)
    if 0 in part.shape:
        return [*found, *copies]
    value = value.spread(part.shape)
    if op.set_instead_of_inc:
        return [*found, *copies, *same(part, value)]
    return [*found, *copies, added(part, value)]


# -- products -------------------------------------------------------------------------------------


def _product(block: Block, node: Apply) -> list[Statement] | None:
    dtype = node.outputs[0].type.dtype
    if dtype not in ("float32", "float64"):
        return None
    if any(v.type.dtype != dtype for v in node.inputs):
        return None
    x, y = (block.view(v) for v in node.inputs)
    (shape,) = block.shapes(node)
    out = block.make(node.outputs[0], shape)
    if isinstance(node.op, Dot):
        x, y, out = _as_stacks(x, y, out)
    n = out.shape[0]
    x, y = (replace(v, shape=(n, *v.shape[1:]), steps=(0 if v.shape[0] == 1 else v.steps[0],
            *v.steps[1:])) for v in (x, y))  # fmt: skip
    if y.shape[2] == 1 and x.shape[1] > 1:  # a matrix times a vector: the rows are the columns
        x, y, out = (v.order((0, 2, 1)) for v in (y, x, out))
    return _of_stacks(block, x, y, out)


def _as_stacks(x: View, y: View, out: View) -> tuple[View, View, View]:
    if len(x.shape) == 1:
        x = replace(x, shape=(1, *x.shape), steps=(0, *x.steps))
        out = replace(out, shape=(1, *out.shape), steps=(0, *out.steps))
    if len(y.shape) == 1:
        y = replace(y, shape=(*y.shape, 1), steps=(*y.steps, 0))
        out = replace(out, shape=(*out.shape, 1), steps=(*out.steps, 0))
    return tuple(replace(v, shape=(1, *v.shape), steps=(0, *v.steps)) for v in (x, y, out))  # type: ignore[return-value]


def _of_stacks(block: Block, x: View, y: View, out: View) -> list[Statement]:
    if _lies_along(out) and _lies_along(y):
        return [Product(x, y, out)]
    if _lies_along(out) and _never_written(block, y):
        return [Product(x, block.code.before_all(y, (0, 1, 2)), out)]
    if _lies_along(x.order((0, 2, 1))) and _lies_along(out.order((0, 2, 1))):
        return [Product(*(v.order((0, 2, 1)) for v in (y, x, out)))]
    (s, m, k), n = x.shape, y.shape[2]
    b = Builder([x.dtype, x.dtype])
    fold = Fold(b.program([b.input(0) * b.input(1)]), (_sum(x.dtype),))
    sizes = (s, m, n, k)
    wide = [
        replace(x, shape=sizes, steps=(x.steps[0], x.steps[1], 0, x.steps[2])),
        replace(y, shape=sizes, steps=(y.steps[0], 0, y.steps[2], y.steps[1])),
        replace(out, shape=sizes, steps=(*out.steps, 0)),
    ]
    return [Folding(fold, sizes, (3,), (wide[0], wide[1]), (wide[2],))]


def _sum(dtype: str) -> Any:
    return total("add", dtype, dtype, dtype)


def _lies_along(view: View) -> bool:
    """Whether its last dimension is along the memory."""
    return view.shape[-1] == 1 or view.steps[-1] == view.itemsize


def _never_written(block: Block, view: View) -> bool:
    """Whether it is a part of an array that the program only reads, the same in each step."""
    if not view.base.startswith("a") or view.moves:
        return False
    return block.code.roles[int(view.base[1:])].kind in ("input", "constant")


RULES: dict[type, Rule] = {
    Op: _view,
    Elemwise: _elementwise, FusedElemwise: _elementwise, FusedComplex: _elementwise,
    Reduce: _reduction, FusedReduce: _reduction, **dict.fromkeys(CUMULATIVE, _cumulative),
    **dict.fromkeys((Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad), _softmax),
    ShapeI: _shape, ShapeVector: _shape,
    GpuFromHost: _transfer, HostFromGpu: _transfer,
    Copy: _copy, Alloc: _alloc, ARange: _range, MakeVector: _vector, Join: _join, Split: _split,
    Subtensor: _subtensor, IncSubtensor: _increment, **MOVES, **MATRICES, **ORDERS,
    Dot: _product, BatchedDot: _product, Scan: scan_statements, FusedRows: rows_statements,
}  # fmt: skip


def _reduction_in_vectors(block: Block, node: Apply) -> list[Statement] | None:
    return _log_sum_exp(block, node) or _reduction(block, node)


#: For a device whose vectors are of neighbouring elements.
RULES_IN_VECTORS: dict[type, Rule] = {
    **RULES, Reduce: _reduction_in_vectors, FusedReduce: _reduction_in_vectors,
}  # fmt: skip
