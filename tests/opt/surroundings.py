"""The op table's graphs in the surroundings that rules look for.

Each input is made in other ways (transposed, repeated, cast, cut out of something larger, joined,
computed, constant), each output is read in other ways, so that a rule meets every op that it takes
beside everything that may stand next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from symdnn.autodiff import grad
from symdnn.graph.traverse import clone_graph
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable, constant
from symdnn.ops.array.getitem import inc_subtensor, set_subtensor
from symdnn.ops.array.index import subtensor
from symdnn.ops.array.join import join
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.control.control import ifelse
from symdnn.ops.core.make_vector import MakeVector
from symdnn.ops.core.shape import alloc, dims_of, dimshuffle, reshape
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, maximum, neg, sqr
from symdnn.ops.elemwise import Elemwise
from tests.op_table.record import OpCase
from tests.opt.instances import Graph

Made = tuple[list[Variable], list[np.ndarray], Variable]
Producer = Callable[[np.ndarray, np.random.Generator], Made | None]
Consumer = Callable[[Variable, np.random.Generator], Variable | None]


def variable(a: np.ndarray, name: str = "v", static: bool = False) -> Variable:
    """An input for ``a``: sizes 1 are known, or all are."""
    shape = tuple(a.shape) if static else tuple(1 if n == 1 else None for n in a.shape)
    return TensorType(a.dtype.name, shape)(name)


# -- how an input may be made ----------------------------------------------------------------------


def plain(a: np.ndarray, rng: np.random.Generator) -> Made:
    v = variable(a)
    return [v], [a], v


def of_known_shape(a: np.ndarray, rng: np.random.Generator) -> Made:
    v = variable(a, static=True)
    return [v], [a], v


def transposed(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if a.ndim < 2:
        return None
    order = rng.permutation(a.ndim)
    while (order == np.arange(a.ndim)).all():
        order = rng.permutation(a.ndim)
    v = variable(a.transpose(order))
    return [v], [a.transpose(order)], dimshuffle(v, [int(i) for i in np.argsort(order)])


def without_ones(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    kept = [i for i, n in enumerate(a.shape) if n != 1]
    if len(kept) == a.ndim:
        return None
    small = a.reshape([a.shape[i] for i in kept])
    v = variable(small)
    return [v], [small], dimshuffle(v, [kept.index(i) if i in kept else "x" for i in range(a.ndim)])


def with_one_more(a: np.ndarray, rng: np.random.Generator) -> Made:
    wide = a[np.newaxis]
    v = variable(wide)
    return [v], [wide], dimshuffle(v, range(1, wide.ndim))


def repeated(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if not a.ndim or not a.size:
        return None
    axis = int(rng.integers(a.ndim))
    part = np.take(a, [0], axis)
    v = variable(part)
    return [v], [part], alloc(v, *a.shape)


def repeated_number(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if not a.ndim or not a.size:
        return None
    one = np.asarray(a.flat[0])
    v = variable(one)
    sizes = variable(a)
    return [v, sizes], [one, a], alloc(v, *dims_of(sizes))


def spread_number(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if not a.ndim or not a.size:
        return None
    one = np.asarray(a.flat[0])
    v = variable(one)
    return [v], [one], alloc(v, *a.shape)


def one_element(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if not a.size:
        return None
    one = np.asarray(a.flat[0]).reshape((1,) * a.ndim)
    v = variable(one)
    return [v], [one], v


def backwards_in_memory(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if a.ndim < 2:
        return None
    v = variable(a.T)
    return [v], [a.T], dimshuffle(v, range(a.ndim - 1, -1, -1))


def constants(a: np.ndarray, rng: np.random.Generator) -> Made:
    return [], [], Constant(a)


def filled_with(number: float) -> Producer:
    def make(a: np.ndarray, rng: np.random.Generator) -> Made | None:
        if a.dtype.kind == "b" or (a.dtype.kind == "u" and number < 0):
            return None
        v = variable(a)
        return [v], [a], constant(np.full((1,) * a.ndim, number).astype(a.dtype)) + (v - v)

    return make


def one_constant(number: float) -> Producer:
    def make(a: np.ndarray, rng: np.random.Generator) -> Made | None:
        if a.dtype.kind == "u" and number < 0:
            return None
        return [], [], Constant(np.full(a.shape, number).astype(a.dtype))

    return make


def narrow_constant(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    """Small whole numbers in a narrower dtype than the operand's."""
    if a.dtype.name in ("bool", "int8"):
        return None
    return [], [], Constant(rng.integers(1, 4, a.shape).astype("int8"))


def widened(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    for narrow in ("int8", "uint8", "float32", "int32"):
        if narrow != a.dtype.name and a.dtype.name != "bool":
            small = a.astype(narrow)
            if np.array_equal(small.astype(a.dtype), a):
                v = variable(small)
                return [v], [small], cast(v, a.dtype.name)
    return None


def cast_twice(a: np.ndarray, rng: np.random.Generator) -> Made:
    v = variable(a)
    through = "complex128" if a.dtype.kind == "c" else "float64"
    return [v], [a], cast(cast(v, through), a.dtype.name)


def reshaped(a: np.ndarray, rng: np.random.Generator) -> Made:
    v = variable(a.reshape(-1))
    return [v], [a.reshape(-1)], reshape(v, a.shape)


def reshaped_twice(a: np.ndarray, rng: np.random.Generator) -> Made:
    v = variable(a)
    return [v], [a], reshape(reshape(v, (-1,)), dims_of(v))


def cut_out(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if not a.ndim:
        return None
    more = np.concatenate([a[:1], a]) if a.shape[0] else a
    v = variable(more)
    found = subtensor(v, [slice(1, None)] if a.shape[0] else [slice(None)])
    if found.type.broadcastable != variable(a).type.broadcastable:
        return None
    return [v], [more], found


def one_of_several(a: np.ndarray, rng: np.random.Generator) -> Made:
    more = np.stack([a, a])
    v = variable(more)
    return [v], [more], subtensor(v, [1])


def backwards(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if not a.ndim or a.shape[0] == 1:
        return None
    v = variable(a[::-1])
    return [v], [a[::-1]], subtensor(v, [slice(None, None, -1)])


def joined(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if not a.ndim or a.shape[0] < 2:
        return None
    v, w = variable(a[:1], static=True), variable(a[1:], static=True)
    return [v, w], [a[:1], a[1:]], join(0, v, w)


def negated(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if a.dtype.kind in "bu":
        return None
    v = variable(-a)
    return [v], [-a], neg(v)


def doubled(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if a.dtype.kind not in "fc":
        return None
    v, one = variable(a / 2), variable(np.ones((1,) * a.ndim, a.dtype))
    return [v, one], [(a / 2).astype(a.dtype), np.full((1,) * a.ndim, 2, a.dtype)], one * v


def divided(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if a.dtype.kind not in "fc" or a.dtype.name == "bfloat16":
        return None
    v, one = variable(a * 2), variable(np.ones((1,) * a.ndim, a.dtype))
    return [v, one], [a * 2, np.full((1,) * a.ndim, 2, a.dtype)], v / one


def squared(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if a.dtype.kind != "f" or not (a >= 0).all():
        return None
    root = np.sqrt(a).astype(a.dtype)
    v = variable(root)
    return [v], [root], sqr(v)


def of_two(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if a.dtype.kind == "c":
        return None
    v, w = variable(a), variable(a)
    return [v, w], [a, a], maximum(v, w)


def magnitudes(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if a.dtype.kind not in "if" or not (a >= 0).all():
        return None
    v = variable(a)
    return [v], [a], absolute(v)


def summed(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if a.dtype.kind not in "fc" or a.dtype.itemsize < 4:
        return None
    axis = int(rng.integers(a.ndim + 1))
    parts = np.stack([a * 0.5, a * 0.5], axis)
    v = variable(parts)
    return [v], [parts], v.sum(axis)


def partly_set(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if not a.ndim or a.shape[0] < 2:
        return None
    v, w = variable(a, static=True), variable(a[:1], static=True)
    return [v, w], [a, a[:1]], set_subtensor(v[:1], w)


def into_zeros(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if not a.ndim or a.dtype.kind == "b" or a.shape[0] == 1:
        return None
    v = variable(a)
    return [v], [a], inc_subtensor(v.zeros_like()[:], v)


def of_scalars(a: np.ndarray, rng: np.random.Generator) -> Made | None:
    if a.ndim != 1 or not 1 < a.size < 8:
        return None
    vs = [variable(np.asarray(n)) for n in a]
    return vs, [np.asarray(n) for n in a], MakeVector(a.dtype.name)(*vs)


def chosen(a: np.ndarray, rng: np.random.Generator) -> Made:
    v, w = variable(a), variable(a)
    return [v, w], [a, a], ifelse(constant(1), v, w)


PRODUCERS: tuple[Producer, ...] = (
    plain, of_known_shape, transposed, without_ones, with_one_more, repeated, repeated_number,
    spread_number, one_element, backwards_in_memory, constants, filled_with(0), one_constant(0),
    one_constant(1), one_constant(2), narrow_constant, widened, cast_twice, reshaped,
    reshaped_twice, cut_out, one_of_several, backwards, joined, negated, doubled, divided,
    squared, of_two, magnitudes, summed, partly_set, into_zeros, of_scalars, chosen,
)  # fmt: skip


# -- how an output may be read ---------------------------------------------------------------------


def first_row(y: Variable, rng: np.random.Generator) -> Variable | None:
    return subtensor(y, [0]) if y.type.ndim else None


def from_second(y: Variable, rng: np.random.Generator) -> Variable | None:
    return subtensor(y, [slice(1, None)]) if y.type.ndim else None


def last_axis_backwards(y: Variable, rng: np.random.Generator) -> Variable | None:
    everything = [slice(None)] * (y.type.ndim - 1)
    return subtensor(y, [*everything, slice(None, None, -1)]) if y.type.ndim else None


def everything(y: Variable, rng: np.random.Generator) -> Variable | None:
    return subtensor(y, [slice(0, dims_of(y)[0])]) if y.type.ndim else None


def moved(y: Variable, rng: np.random.Generator) -> Variable:
    order: list[Any] = [int(i) for i in rng.permutation(y.type.ndim)]
    order.insert(int(rng.integers(len(order) + 1)), "x")
    return dimshuffle(y, order)


def turned(y: Variable, rng: np.random.Generator) -> Variable:
    return dimshuffle(y, list(reversed(range(y.type.ndim))))


def in_own_shape(y: Variable, rng: np.random.Generator) -> Variable:
    return reshape(y, dims_of(y))


def in_a_row(y: Variable, rng: np.random.Generator) -> Variable:
    return reshape(y, (-1,))


def total(y: Variable, rng: np.random.Generator) -> Variable:
    return y.sum()


def totals(y: Variable, rng: np.random.Generator) -> Variable | None:
    return y.sum(0) if y.type.ndim else None


def times_number(y: Variable, rng: np.random.Generator) -> Variable:
    return y * variable_number(y)


def variable_number(y: Variable) -> Variable:
    """A number that belongs to ``y`` and is no constant."""
    return cast(dims_of(y)[0], y.type.dtype) if y.type.ndim else y


def minus(y: Variable, rng: np.random.Generator) -> Variable | None:
    return None if y.type.dtype == "bool" else neg(y)


def to_float(y: Variable, rng: np.random.Generator) -> Variable:
    return cast(y, "complex128" if y.type.is_complex else "float64")


def size(y: Variable, rng: np.random.Generator) -> Variable | None:
    return dims_of(y)[-1] if y.type.ndim and not isinstance(dims_of(y)[-1], int) else None


def again(y: Variable, rng: np.random.Generator) -> Variable | None:
    """The op that made ``y`` once more, of ``y``: over other axes where it has axes."""
    node = y.owner
    if node is None or len(node.inputs) != 1 or len(node.outputs) != 1:
        return None
    op: Any = node.op
    if isinstance(op, Reduce):
        from dataclasses import replace

        axes = (int(rng.integers(y.type.ndim)),) if y.type.ndim else ()
        op = replace(op, axes=axes)
    made = op(y)
    return made if isinstance(made, Variable) else None


def with_itself(y: Variable, rng: np.random.Generator) -> Variable | None:
    node = y.owner
    if node is None or not isinstance(node.op, Elemwise) or node.op.arity != 2:
        return None
    return node.op(y, y)  # type: ignore[no-any-return]


CONSUMERS: tuple[Consumer, ...] = (
    first_row, from_second, last_axis_backwards, everything, moved, turned, in_own_shape, in_a_row,
    total, totals, times_number, minus, to_float, size, again, with_itself,
)  # fmt: skip


# -- graphs ----------------------------------------------------------------------------------------


def name_of(f: Any) -> str:
    return str(getattr(f, "__name__", f))


def build(
    case: OpCase, arrays: Sequence[np.ndarray], producers: Sequence[Producer],
    rng: np.random.Generator,
) -> Graph | None:  # fmt: skip
    """The graph of a case whose inputs are made in these ways; None where that can't be."""
    inputs: list[Variable] = []
    values: list[np.ndarray] = []
    operands = []
    try:
        for a, produce in zip(arrays, producers, strict=True):
            made = produce(a, rng)
            if made is None:
                return None
            inputs += made[0]
            values += [np.asarray(x) for x in made[1]]
            operands.append(made[2])
        out = case.build(*operands)
    except Exception:
        return None  # the op wants something else, such as an input whose shape is known
    outs = list(out) if isinstance(out, list | tuple) else [out]
    text = f"{case.id} ({', '.join(map(name_of, producers))})"
    return Graph(inputs, outs, values, text)


#: What every case is tried with: what the rules for whole families of ops look for.
CORE: tuple[Producer, ...] = (
    plain, constants, transposed, backwards_in_memory, repeated_number, spread_number,
    one_element, without_ones, narrow_constant,
)  # fmt: skip
READ: tuple[Consumer, ...] = (first_row, again, turned)


def in_single_precision(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same values, float32 in place of float64."""
    return [a.astype("float32") if a.dtype == np.float64 else a for a in arrays]


def graphs(
    case: OpCase, rng: np.random.Generator, fraction: float = 1.0, first: bool = True
) -> Iterator[Graph]:
    """A case in all of its surroundings, or in a random part of them.

    The ``first`` case of an op always gets the core of them, and its gradient.
    """
    arrays = [np.asarray(d(rng)) for d in case.draws]
    single = in_single_precision(arrays) if case.options.get("single", True) else arrays
    for producers in _choices(len(arrays)):
        core = first and all(p in CORE for p in producers)
        if core or rng.uniform() < fraction:
            found = build(case, arrays if rng.uniform() < 0.5 else single, producers, rng)
            if found is not None:
                yield found
    ways = ((arrays, plain), (single, plain), (arrays, of_known_shape))
    for given, produce in ways if first else ways[:1]:
        base = build(case, given, [produce] * len(arrays), rng)
        if base is not None:
            yield base
            yield from readers(base, rng, fraction if given is arrays else 0, first)
    if first or fraction >= 1:
        yield from beside(case, arrays)
        yield from _gradient(build(case, single, [plain] * len(arrays), rng))


def _choices(count: int) -> Iterator[list[Producer]]:
    yield [plain] * count
    for produce in PRODUCERS[1:]:
        yield [produce] * count
        if count > 1:
            for i in range(count):
                yield [produce if k == i else plain for k in range(count)]
    for i in range(count if count > 1 else 0):
        yield [repeated_number if k == i else one_element for k in range(count)]


def beside(case: OpCase, arrays: Sequence[np.ndarray]) -> Iterator[Graph]:
    """Each input a number, repeated to the shape of another input."""
    for i, a in enumerate(arrays):
        others = [k for k, b in enumerate(arrays) if k != i and b.shape == a.shape]
        if not others or not a.size:
            continue
        inputs = [variable(b) for b in arrays]
        number = np.asarray(a.flat[0])
        inputs[i] = variable(number)
        operands = list(inputs)
        operands[i] = alloc(inputs[i], *dims_of(inputs[others[0]]))
        values = [number if k == i else b for k, b in enumerate(arrays)]
        try:
            out = case.build(*operands)
        except Exception:
            continue  # the op does not take this type
        outs = list(out) if isinstance(out, list | tuple) else [out]
        yield Graph(inputs, outs, values, f"{case.id} (number beside {others[0]})")


def readers(
    base: Graph, rng: np.random.Generator, fraction: float, core: bool = True
) -> Iterator[Graph]:
    """Graphs in which the outputs of ``base`` are read, in each way or in some."""
    for i, y in enumerate(base.outputs):
        if len(base.outputs) > 1:
            yield Graph(base.inputs, [y], base.arrays, f"{base.text}[{i}]")
        if not isinstance(y.type, TensorType):
            continue
        for consume in CONSUMERS:
            if (core and consume in READ) or rng.uniform() < fraction:
                try:
                    read = consume(y, rng)
                except Exception:
                    continue  # the reader does not take this type
                if read is not None:
                    text = f"{name_of(consume)} of {base.text}[{i}]"
                    yield Graph(base.inputs, [read], base.arrays, text)


def _gradient(base: Graph | None) -> Iterator[Graph]:
    """Gradients of the sum of squares."""
    if base is None:
        return
    floats = [y for y in base.outputs if isinstance(y.type, TensorType) and y.type.is_float]
    wrt = [v for v in base.inputs if isinstance(v.type, TensorType) and v.type.is_float]
    if floats and wrt:
        try:
            cost = sum(((y * y).sum() for y in floats[1:]), (floats[0] * floats[0]).sum())
            grads = grad(cost, wrt, disconnected_inputs="ignore")
        except Exception:
            return  # there is none
        yield Graph(base.inputs, grads, base.arrays, f"gradient of {base.text}")
        values = {v: Constant(a) for v, a in zip(base.inputs, base.arrays)}
        fixed = clone_graph(grads, values)
        text = f"gradient at constants of {base.text}"
        yield Graph([], [fixed[g] for g in grads], [], text)
