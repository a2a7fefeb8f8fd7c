from __future__ import annotations

import numpy as np

from symdnn.graph.variable import constant
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.cumulative import cumsum
from symdnn.ops.array.reduce import AnyTrue, Max, Sum
from symdnn.ops.array.slices import FULL
from symdnn.ops.core.scalar import Builder, identity_program
from symdnn.ops.elementwise.complex_meaning import part_dtypes
from symdnn.ops.elementwise.complexes import complex as cplx
from symdnn.ops.elementwise.complexes import imag, real
from symdnn.ops.lowered import stencil
from symdnn.ops.lowered.fused import (
    FusedComplex,
    FusedElemwise,
    FusedElemwiseReduce,
    FusedReduce,
    fused_elementwise,
)
from symdnn.ops.lowered.fused_rows import FusedRows, Stage, layer_norm_rows
from symdnn.ops.lowered.gathered import (
    FusedIndexed,
    FusedPlacedSums,
    ListedSums,
    PlacedSums,
    Selection,
)
from symdnn.ops.lowered.of_values import (
    ChosenCounts,
    ChosenPlaces,
    Compressed,
    Counted,
    SomeChosen,
)
from symdnn.ops.lowered.totals import Totals
from symdnn.ops.nn.batchnorm import LayerNorm
from tests.op_table.record import OpCase, integers, normal


def two_results(dtype):
    """(exp(a) * b, a < b)."""
    p = Builder((dtype, dtype))
    a, b = p.input(0), p.input(1)
    return p.program([a.call("exp") * b, a < b])


def fused(a, b):
    return FusedElemwise(two_results(a.type.dtype))(a, b)


def complex_parts(a, x):
    """The parts of z * x + z, and |z|^2, for z = a + 2ai."""
    z = cplx(a, 2 * a)
    reads = [z.type.dtype, x.type.dtype]
    part = part_dtypes(reads[0])[0]
    p = Builder((part, part, reads[1]))
    re, im, by = (p.input(i) for i in range(3))
    program = p.program([re * by + re, im * by + im, re * re + im * im])
    made, square = fused_elementwise(program, reads, [reads[0], part])(z, x)
    return real(made), imag(made), square


def rows(a, b):
    dtype = a.type.dtype
    reductions = (Sum((1,), False, dtype, dtype), AnyTrue((1,)))
    return FusedReduce(two_results(dtype), reductions)(a, b)


def total_beside(a, b):
    """The sum of the first result, and the second one."""
    dtype = a.type.dtype
    reductions = (Sum((0, 1), False, dtype, dtype),)
    return FusedElemwiseReduce(two_results(dtype), reductions)(a, b)


def planes(a, b):
    reductions = (Max((0, 2), True), AnyTrue((0, 2), True))
    return FusedReduce(two_results(a.type.dtype), reductions)(a, b)


def mixed():
    """float16 a and float32 b: a * b as float16, in float32 as the ops themselves."""
    p = Builder(("float16", "float32"))
    return p.program([(p.input(0).cast("float32") * p.input(1)).cast("float16")])


def scaled_rows(dtype):
    """x * a / sqrt(mean(x^2) + 1) with its root and the sums of x over the rows."""
    p, q = Builder((dtype,)), Builder((dtype, dtype))
    terms, rest = Builder((dtype, dtype)), Builder((dtype,) * 3)
    x, r, a = (rest.input(i) for i in range(3))
    stage = Stage(
        terms.program([terms.input(0) * terms.input(0)]),
        q.program([(q.input(0) / q.input(1) + 1).call("sqrt")]),
    )
    before, after = p.program([p.input(0)]), rest.program([x / r * a])
    return FusedRows((1,), before, (stage,), after, (0,), rest.program([x]))


def by_numpy(x, a):
    root = np.sqrt((x * x).mean(1, keepdims=True) + 1)
    return x / root * a, root, x.sum(0, keepdims=True)


def total(*arrays):
    """The sum of all squares of the first array and all elements of the others."""
    programs = []
    for i, x in enumerate(arrays):
        p = Builder((x.type.dtype,))
        v = p.input(0)
        programs.append(p.program([v * v if i == 0 else v]))
    return Totals(tuple(programs))(*arrays)


def listed(rows):
    return lambda rng: np.array(rows, np.int32)


ROWS = AdvancedSubtensor(("a", FULL))


def gathered(x, source, i, j):
    """Rows ``i`` of the source added to rows ``j``."""
    program = identity_program(source.type.dtype)
    op = FusedIndexed(program, (Selection(ROWS, (0, 1)),), (), (AdvancedIncSubtensor(ROWS.index),))
    return op(x, source, i, j)


def added_twice(x, y, i, j):
    """The rows ``y`` added to rows ``i``, and their squares to rows ``j``."""
    p = Builder((y.type.dtype,))
    program = p.program([p.input(0), p.input(0) * p.input(0)])
    return FusedIndexed(program, (None,), (), (AdvancedIncSubtensor(ROWS.index),) * 2)(x, y, i, j)


def added_twice_numpy(x, y, i, j):
    out = x.copy()
    np.add.at(out, i, y)
    np.add.at(out, j, y * y)
    return out


def gathered_products(reductions=()):
    """Rows of a table times a number each."""

    def products(table, weights, i):
        p = Builder((table.type.dtype, weights.type.dtype))
        reads = (Selection(ROWS, (0, 1, 2)), None)
        op = FusedIndexed(p.program([p.input(0) * p.input(1)]), reads, reductions)
        return op(table, weights, i)

    return products


def smoothed(x):
    """Differences of squares from their neighbours, below an array that is 2 around."""
    p, q = Builder((x.type.dtype,)), Builder((x.type.dtype,) * 2)
    v = p.input(0)
    read = stencil.Shifted(0, (0, -1), ("", ""), (None, (0, 5)), (2.0).hex())
    down = stencil.Shifted(1, (-1, 0), ("wrap", ""), (None, None))
    there = stencil.Shifted(1, (0, 0), ("", ""), (None, None))
    stages = (
        stencil.StencilStage(p.program([v * v]), (read,), (4, 7)),
        stencil.StencilStage(q.program([q.input(0) - q.input(1)]), (there, down), (4, 7)),
    )
    return (
        stencil.FusedStencil(1, stages, (stencil.StencilResult(2, (0, 3)),)).make_node(x).outputs[0]
    )


def smoothed_numpy(x):
    squares = np.pad(x, ((0, 0), (1, 1)), constant_values=2) ** 2
    return np.roll(squares - np.roll(squares, 1, 0), 3, 1)


def _placed_parts():
    slices = ((slice(1, 4), FULL, FULL), (slice(None, None, 2), slice(1, -1), FULL))
    return tuple(
        tuple(e if e == FULL else (e.start, e.stop, e.step) for e in part)
        for part in (*slices, (FULL, slice(1, None), slice(0, 7, 2)))
    )


def placed(*ys):
    op = PlacedSums((4, 5, 7), _placed_parts(), (1.0, -2.0, 3.0))
    return op(*ys, *map(constant, (4, 5, 7)))


def placed_products(*ys):
    """What is added are products with one number, which is an operand of each program."""
    one, *rest = ys
    programs = []
    for factor, y in zip((1.0, -2.0, 3.0), rest, strict=True):
        p = Builder((one.type.dtype, y.type.dtype))
        programs.append(p.program([p.input(0) * p.input(1) * factor]))
    operands = [v for y in rest for v in (one, y)]
    square = Builder((one.type.dtype, rest[0].type.dtype))
    a, b = square.input(0), square.input(1)
    fold = Sum((0, 1, 2), False, one.type.dtype, one.type.dtype)
    op = FusedPlacedSums(
        (4, 5, 7), _placed_parts(), tuple(programs), ((1, square.program([a * b * b]), fold),)
    )
    return op(*operands, *map(constant, (4, 5, 7)))


def placed_numpy(x, y, z):
    out = np.zeros((4, 5, 7))
    out[1:4] += x
    out[::2, 1:-1] -= 2 * y
    out[:, 1:, :7:2] += 3 * z
    return out


def gathered_numpy(x, source, i, j):
    out = x.copy()
    np.add.at(out, j, source[i])
    return out


CASES = [
    OpCase("add_gathered", (FusedIndexed,), gathered,
           (normal(4, 3), normal(5, 3), integers(-5, 5, 7), integers(-4, 4, 7)), gathered_numpy,
           grad=False),
    OpCase("added_twice", (FusedIndexed,), added_twice,
           (normal(4, 3), normal(7, 3), integers(-4, 4, 7), integers(-4, 4, 7)), added_twice_numpy,
           grad=False),
    OpCase("gathered_products", (FusedIndexed,), gathered_products(),
           (normal(5, 3), normal(7, 2, 1), integers(-5, 5, 7, 2)),
           lambda table, w, i: table[i] * w, grad=False),
    OpCase("sums_of_gathered_products", (FusedIndexed,), gathered_products((Sum((1,)),)),
           (normal(5, 3), normal(7, 2, 1), integers(-5, 5, 7, 2)),
           lambda table, w, i: (table[i] * w).sum(1), grad=False),
    OpCase("smoothed", (stencil.FusedStencil,), smoothed, (normal(4, 5),), smoothed_numpy,
           grad=False),
    OpCase("compressed", (Compressed,), Compressed(1),
           (normal(3, 7), lambda rng: rng.random(7) < 0.5), lambda x, m: x[:, m], grad=False),
    OpCase("chosen_counts", (ChosenCounts,), lambda m: ChosenCounts()(m),
           (lambda rng: rng.random(9000) < 0.3,),
           lambda m: np.array([0, *(m[k : k + 4096].sum() for k in (0, 4096, 8192))]), grad=False),
    OpCase("chosen_places", (ChosenPlaces,),
           lambda m: ChosenPlaces()(m, before := cumsum(ChosenCounts()(m), axis=0), before[-1]),
           (lambda rng: rng.random(9000) < 0.3,), np.flatnonzero, grad=False),
    OpCase("some_chosen", (SomeChosen,), SomeChosen(Max((0,))),
           (normal(3), lambda rng: np.array(True)), lambda x, some: x, grad=False),
    OpCase("counted", (Counted,), lambda x, least: Counted()(x, least),
           (integers(0, 6, 9), lambda rng: np.array(8)),
           lambda x, n: np.bincount(x, minlength=n), grad=False),
    OpCase("counted_weights", (Counted,), lambda x, least, w: Counted()(x, least, w),
           (integers(0, 6, 9), lambda rng: np.array(2), normal(9)),
           lambda x, n, w: np.bincount(x, w, n), grad=False),
    OpCase("listed_sums", (ListedSums,), ListedSums((1,)),
           (normal(3, 5, 2), listed([[0, 2], [4, -1], [-1, -1], [3, 1]])),
           lambda x, rows: np.stack(
               [x[:, 0] + x[:, 2], x[:, 4], 0 * x[:, 0], x[:, 3] + x[:, 1]], 1),
           grad=False),
    OpCase("listed_sums_of_two_axes", (ListedSums,), ListedSums((0, 2)),
           (normal(2, 3, 3, dtype="float16"), listed([[1], [0]]), listed([[2, 1], [0, -1]])),
           lambda x, i, j: np.stack([x[::-1, :, 2] + x[::-1, :, 1], x[::-1, :, 0]], 2),
           grad=False, rtol=1e-3),
    OpCase("placed_sums", (PlacedSums,), placed,
           (normal(3, 5, 7), normal(2, 3, 7), normal(1, 4, 4)), placed_numpy, grad=False),
    OpCase("fused_placed_sums", (FusedPlacedSums,), placed_products,
           (normal(1, 1, 1), normal(3, 5, 7), normal(2, 3, 7), normal(1, 4, 4)),
           lambda one, *ys: (one * placed_numpy(*ys), (one * ys[1] ** 2).sum()), grad=False),
    OpCase("totals", (Totals,), total, (normal(3, 4), normal(7), normal(2, 0), normal(5, 1, 2)),
           lambda a, b, c, d: np.asarray((a * a).sum() + b.sum() + c.sum() + d.sum()), grad=False),
    OpCase("fused_elementwise", (FusedElemwise,), fused,
           (normal(3, 4), normal(3, 4)), lambda a, b: (np.exp(a) * b, a < b), grad=False),
    OpCase("fused_elementwise_broadcast", (FusedElemwise,), fused,
           (normal(3, 1, 4), normal(1, 5, 4)), lambda a, b: (np.exp(a) * b, a < b), grad=False),
    OpCase("fused_complex", (FusedComplex,), complex_parts,
           (normal(3, 4), normal(1, 4)),
           lambda a, x: (a * x + a, 2 * (a * x + a), 5 * a * a), grad=False),
    OpCase("fused_elementwise_float16", (FusedElemwise,), FusedElemwise(mixed()),
           (normal(7, dtype="float16"), normal(7, dtype="float32")),
           lambda a, b: (a.astype("float32") * b).astype("float16"), grad=False, rtol=1e-3),
    OpCase("fused_reduce", (FusedReduce,), rows,
           (normal(3, 4), normal(3, 4)),
           lambda a, b: ((np.exp(a) * b).sum(1), (a < b).any(1)), grad=False),
    OpCase("fused_reduce_broadcast", (FusedReduce,), planes,
           (normal(3, 1, 4), normal(1, 5, 4)),
           lambda a, b: ((np.exp(a) * b).max((0, 2), keepdims=True),
                         (a < b).any((0, 2), keepdims=True)), grad=False),
    OpCase("fused_elementwise_reduce", (FusedElemwiseReduce,), total_beside,
           (normal(3, 7), normal(3, 7)),
           lambda a, b: ((np.exp(a) * b).sum(), a < b), grad=False, rtol=1e-3),
    OpCase("fused_rows", (FusedRows,), lambda x, a: scaled_rows(x.type.dtype)(x, a),
           (normal(3, 4), normal(1, 4)), by_numpy, grad=False),
    OpCase("fused_rows_layer_norm", (FusedRows,),
           lambda x, g, b: layer_norm_rows(LayerNorm((1, 2), 1e-3), x.type.dtype)(x, g, b),
           (normal(3, 4, 5), normal(1, 4, 5), normal(1, 4, 5)),
           lambda x, g, b: LayerNorm((1, 2), 1e-3).reference(x, g, b), grad=False, rtol=1e-5),
]  # fmt: skip
