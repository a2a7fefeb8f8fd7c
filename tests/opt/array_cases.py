"""Records of folding, shapes, views, allocs and reductions."""

from __future__ import annotations

import numpy as np

from symdnn.graph.variable import constant
from symdnn.ops.array import reduce as R
from symdnn.ops.array.argreduce import argmax
from symdnn.ops.array.getitem import inc_subtensor
from symdnn.ops.array.view import Copy, copy, flatten, specify_shape
from symdnn.ops.core.gradient_control import Assert, GradClip, disconnected_grad, grad_clip
from symdnn.ops.core.make_vector import MakeVector
from symdnn.ops.core.shape import (
    Alloc,
    Reshape,
    ShapeI,
    ShapeVector,
    SpecifyType,
    alloc,
    dimshuffle,
    reshape,
    shape,
    shape_i,
)  # fmt: skip
from symdnn.ops.elementwise import arithmetic as A
from symdnn.ops.elementwise.comparison import eq
from symdnn.ops.elementwise.math import exp, log
from symdnn.ops.linalg.dot import dot
from tests.opt.harness import MAT, TWO, RuleCase, f32, f64, i64

CUBE = (f64("n", "m", "k"),)
SHAPES = ("size_of_result",)


def C(value: float) -> object:
    return constant(value, dtype="float64")


def spread(v, like):
    return alloc(v, shape_i(like, 0), shape_i(like, 1))


def down(row, like):
    return alloc(row, shape_i(like, 0), shape_i(row, 1))


FOLDING = [
    RuleCase("constant_folding", MAT, lambda x: x + (C(1) + C(2)), lambda x: x + C(3),
             lambda x: x + C(3)),
    RuleCase("constant_folding", MAT, lambda x: x + exp(np.zeros((3, 4))), None,
             lambda x: exp(alloc(0.0, 300, 400)) + x, gone=(type(exp(C(1)).owner.op),),
             id="constant_folding_of_arrays", miss_args=(f64(300, 400),)),
    RuleCase("constant_folding", (f64(70, 70),), lambda x: x + exp(np.zeros((70, 70))), None,
             lambda x: x + (np.zeros((70, 1)) + np.zeros((1, 70))),
             gone=(type(exp(C(1)).owner.op),), id="constant_folding_keeps_constants_small"),
    RuleCase("sizes_known_by_now", (f64(12),),
             lambda x: Reshape((None, 4))(
                 x, constant(3, dtype="int64"), constant(4, dtype="int64")),
             lambda x: reshape(x, (3, 4)),
             lambda x: reshape(x, (shape_i(x, 0), 1))),
    RuleCase("sizes_known_by_now", (f64(),),
             lambda x: Alloc((None, 4))(x, constant(3, dtype="int64"), constant(4, dtype="int64")),
             lambda x: alloc(x, 3, 4), lambda x: alloc(x, 3, 4),
             id="sizes_known_by_now_of_alloc"),
]  # fmt: skip

SIZES = [
    RuleCase("size_of_result", TWO, lambda x, y: shape_i(dot(x, y.T), 1),
             lambda x, y: shape_i(y, 0), lambda x, y: shape_i(x, 0), checks=False),
    RuleCase("size_of_result", (f64("n", "m"),), lambda x: ShapeI(0)(exp(x)[1:]), None,
             lambda x: shape_i(x, 0), gone=(type(exp(C(1)).owner.op),), id="size_of_part",
             sizes={"n": 4}),
    RuleCase("shape_to_sizes", MAT, lambda x: shape(x.T), None, lambda x: x.T,
             gone=(ShapeVector,), made=(MakeVector,)),
    RuleCase("type_known_already", (f64(3),), lambda x: SpecifyType((3,))(x), lambda x: x,
             lambda x: SpecifyType((3,))(x), miss_args=(f64("n"),)),
    RuleCase("shape_known_already", MAT, lambda x: specify_shape(exp(x), x.shape), exp,
             lambda x: specify_shape(x, (shape_i(x, 1), 4))),
    RuleCase("copy_removed", MAT, copy, lambda x: x, lambda x: -x, gone=(Copy,)),
    RuleCase("gradient_control_removed", MAT, disconnected_grad, lambda x: x,
             lambda x: Assert("message")(x, True)),
    RuleCase("gradient_control_removed", MAT, lambda x: grad_clip(x, -1, 1), lambda x: x,
             lambda x: -x, gone=(GradClip,), id="grad_clip_removed"),
]  # fmt: skip

VIEWS = [
    RuleCase("dimshuffle_of_dimshuffle", MAT, lambda x: dimshuffle(x.T, (1, 0)), lambda x: x,
             lambda x: x.T),
    RuleCase("dimshuffle_of_dimshuffle", MAT, lambda x: dimshuffle(x.T, (1, "x", 0)),
             lambda x: dimshuffle(x, (0, "x", 1)), lambda x: exp(x.T), id="dimshuffles_compose"),
    RuleCase("dimshuffle_of_dimshuffle", (f64(1, "n"),), lambda x: dimshuffle(x, ("x", 1)),
             lambda x: x, lambda x: dimshuffle(x, (1,)), id="a_kept_one"),
    RuleCase("dimshuffle_of_dimshuffle", (f64(1, "n"),), lambda x: dimshuffle(x, (1, "x", "x")),
             lambda x: dimshuffle(x, (1, 0, "x")), lambda x: dimshuffle(x, (1,)),
             id="a_moved_one"),
    RuleCase("transposed_product", (f64("n", "m"), f64("m", "k")), lambda x, y: dot(x, y).T,
             lambda x, y: dot(y.T, x.T), lambda x, y: [dot(x, y).T, dot(x, y)]),
    RuleCase("transposed_product", (f64(3, "m"), f64(3, "k")), lambda x, y: dot(x.T, y).T,
             lambda x, y: dot(y.T, x), lambda x, y: dimshuffle(dot(x.T, y), (1, "x", 0)),
             beside=("dimshuffle_of_dimshuffle",), id="transposed_product_of_transposed"),
    RuleCase("elemwise_of_dimshuffles", TWO, lambda x, y: x.T + y.T, lambda x, y: (x + y).T,
             lambda x, y: x.T + y, miss_args=(f64("m", "n"), f64("n", "m"))),
    RuleCase("elemwise_of_dimshuffles", (f64("n"),), lambda x: dimshuffle(x, (0, "x")) * 3,
             lambda x: dimshuffle(x * 3, (0, "x")), lambda x: exp(x),
             id="elemwise_of_dimshuffle_and_scalar"),
    RuleCase("elemwise_of_dimshuffles", (f64(),), lambda x: dimshuffle(x, ("x", "x")) * 3,
             lambda x: dimshuffle(x * 3, ("x", "x")), lambda x: x * 3,
             beside=("dimshuffle_of_dimshuffle",), id="elemwise_of_single_elements"),
    RuleCase("keepdims_after", MAT, lambda x: x.sum(axis=1, keepdims=True),
             lambda x: dimshuffle(x.sum(axis=1), (0, "x")), lambda x: x.sum(axis=1)),
    RuleCase("reshape_to_own_shape", MAT, lambda x: reshape(x, x.shape), lambda x: x,
             lambda x: reshape(x, (shape_i(x, 1), shape_i(x, 0))), beside=SHAPES),
    RuleCase("reshape_to_own_shape", (f64("n"),), lambda x: reshape(x, (-1,)), lambda x: x,
             lambda x: reshape(x, (3,)), id="flatten_of_vector"),
    RuleCase("reshape_of_reshape", CUBE, lambda x: reshape(flatten(x, 2), x.shape),
             lambda x: reshape(x, x.shape), lambda x: reshape(reshape(x, (4, -1)), (-1,))),
    RuleCase("reshape_of_reshape", (f64(4, 6),), lambda x: reshape(reshape(x, (2, 12)), (3, 8)),
             lambda x: reshape(x, (3, 8)), lambda x: reshape(x, (3, 8)), id="static_reshapes"),
    RuleCase("reshape_back_of_elemwise", CUBE, lambda x: reshape(exp(flatten(x, 2)), x.shape),
             lambda x: exp(x), lambda x: reshape(exp(reshape(x, (4, -1))), (-1,))),
    RuleCase("reshape_back_of_elemwise", CUBE, lambda x: reshape(3 * flatten(x, 2), x.shape),
             None, lambda x: reshape(3 * flatten(x, 2), (-1,)),
             gone=(Reshape,), id="reshape_back_of_product"),
    RuleCase("reshape_to_dimshuffle", MAT, lambda x: reshape(x, (shape_i(x, 0), 1, shape_i(x, 1))),
             lambda x: dimshuffle(x, (0, "x", 1)),
             lambda x: reshape(x, (shape_i(x, 1), 1, shape_i(x, 0)))),
    RuleCase("reshape_of_transposed", (f64(2, 3, "n", "m"),),
             lambda x: reshape(dimshuffle(x, (0, 1, 3, 2)), (6, shape_i(x, 3), shape_i(x, 2))),
             lambda x: dimshuffle(reshape(x, (6, shape_i(x, 2), shape_i(x, 3))), (0, 2, 1)),
             lambda x: reshape(dimshuffle(x, (0, 1, 3, 2)), (6, shape_i(x, 2), shape_i(x, 3))),
             beside=("dimshuffle_of_dimshuffle",)),
    RuleCase("reshape_of_alloc", (f64("n", "m"), f64()),
             lambda x, s: reshape(spread(s, x), (shape_i(x, 1), shape_i(x, 0))),
             lambda x, s: alloc(s, shape_i(x, 1), shape_i(x, 0)),
             lambda x, s: reshape(spread(s, x), (-1, 2))),
]  # fmt: skip

ALLOCS = [
    RuleCase("alloc_of_own_shape", MAT, lambda x: spread(exp(x), x), exp,
             lambda x: alloc(x, shape_i(x, 0), 4)),
    RuleCase("alloc_of_alloc", (f64("n", "m"), f64()),
             lambda x, s: alloc(alloc(s, shape_i(x, 1)), shape_i(x, 0), shape_i(x, 1)),
             lambda x, s: spread(s, x),
             lambda x, s: alloc(alloc(s, shape_i(x, 1)), shape_i(x, 0), 4)),
    RuleCase("alloc_of_padded", (f64("n", "m"), f64("m")),
             lambda x, v: spread(dimshuffle(v, ("x", 0)), x), lambda x, v: spread(v, x),
             lambda x, v: alloc(dimshuffle(v, (0, "x")), shape_i(v, 0), 2)),
    RuleCase("dimshuffle_of_alloc", (f64("n", "m"), f64()), lambda x, s: spread(s, x).T,
             lambda x, s: alloc(dimshuffle(s, ("x", "x")), shape_i(x, 1), shape_i(x, 0)),
             lambda x, s: exp(spread(s, x)).T, beside=("dimshuffle_of_dimshuffle",)),
    RuleCase("alloc_beside_operand", (f64("n", "m"), f64()), lambda x, s: x * spread(s, x),
             lambda x, s: x * s, lambda x, s: x * alloc(s, 3, 4)),
    RuleCase("alloc_beside_operand", (f64("n", "m"), f64(3, 4)),
             lambda x, y: x.T * spread(C(2), x).T, None, lambda x, y: y * spread(C(2), x),
             beside=("dimshuffle_of_alloc",), gone=(Alloc,), id="alloc_beside_transposed"),
    RuleCase("alloc_in_product", (f64("n", "m"), f64("n", "m"), f64()),
             lambda x, y, s: (spread(s, x) * y) * x, lambda x, y, s: (s * y) * x,
             lambda x, y, s: (spread(s, x) * y) * y),
    RuleCase("alloc_in_product", (f64("n", "m"), f64("n", "m"), f64()),
             lambda x, y, s: x * ((spread(s, x) * y) * y), lambda x, y, s: x * ((s * y) * y),
             lambda x, y, s: x * ((spread(s, y) * y) + y), id="alloc_deep_in_product"),
    RuleCase("alloc_after_elemwise", (f64("n", "m"), f64(1, "m")),
             lambda x, v: exp(alloc(v, shape_i(x, 0), shape_i(v, 1))),
             lambda x, v: alloc(exp(v), shape_i(x, 0), shape_i(v, 1)),
             lambda x, v: alloc(v, shape_i(x, 0), shape_i(v, 1)) + x, beside=SHAPES),
    RuleCase("alloc_after_elemwise", (f64("n", "m"), f64(1, "m"), f64()),
             lambda x, v, s: spread(s, x) + v,
             lambda x, v, s: down(alloc(dimshuffle(s, ("x", "x")), 1, shape_i(x, 1)) + v, x),
             lambda x, v, s: alloc(s, 3, shape_i(x, 1)) + x, id="alloc_after_row"),
    RuleCase("alloc_into_part", (f64("n", "m"), f64()),
             lambda x, s: inc_subtensor(x[1:], alloc(s, shape_i(x[1:], 0), shape_i(x, 1))),
             lambda x, s: inc_subtensor(x[1:], s),
             lambda x, s: inc_subtensor(x[1:], alloc(s, shape_i(x, 0) - 1, shape_i(x, 1)))),
    RuleCase("alloc_into_part", (f64("n", "m"), f64()),
             lambda x, s: inc_subtensor(x[[2, 0, 2]], alloc(s, 3, shape_i(x, 1))),
             lambda x, s: inc_subtensor(x[[2, 0, 2]], s),
             lambda x, s: inc_subtensor(x[[2, 0, 2]], alloc(s, 3, shape_i(x, 0))),
             id="alloc_into_selected"),
    RuleCase("sum_of_alloc", (f64("n", "m"), f64()), lambda x, s: spread(s, x).sum(), None,
             lambda x, s: spread(x, x).sum(), gone=(Alloc,),
             beside=("reduce_over_ones", "alloc_of_own_shape", "dimshuffle_of_dimshuffle",
                     "size_of_result", "reshape_to_dimshuffle")),
    RuleCase("sum_of_alloc", (f64("n", "m"), f64("m")), lambda x, v: spread(v, x).sum(axis=0),
             None, lambda x, v: spread(v, x).sum(axis=1), made=(A.Mul, R.Sum),
             id="sum_of_alloc_over_rows"),
    RuleCase("extreme_of_alloc", (f64(),), lambda s: R.max(alloc(s, 3, 4), axis=0), None,
             lambda x, s: R.max(spread(s, x)), miss_args=(f64("n", "m"), f64()), gone=(R.Max,),
             beside=("reduce_over_ones",)),
]  # fmt: skip

REDUCTIONS = [
    RuleCase("reduce_over_ones", (f64("n", 1, "m"),), lambda x: x.sum(axis=(0, 1)),
             lambda x: dimshuffle(x, (0, 2)).sum(axis=0), lambda x: x.sum(axis=0)),
    RuleCase("reduce_over_ones", (f32("n", 1),), lambda x: x.sum(axis=1, dtype="float64"),
             lambda x: dimshuffle(x, (0,)).astype("float64"),
             lambda x: R.logsumexp(x, axis=1, keepdims=True), id="sum_over_one"),
    RuleCase("reduce_of_dimshuffle", CUBE, lambda x: dimshuffle(x, (2, "x", 0, 1)).sum(axis=(0, 1)),
             lambda x: x.sum(axis=2), lambda x: x.sum(axis=2)),
    RuleCase("reduce_of_dimshuffle", MAT, lambda x: R.any(dimshuffle(x, (1, 0)), axis=0),
             lambda x: R.any(x, axis=1), lambda x: argmax(dimshuffle(x, (1, 0)), axis=(0, 1)),
             id="any_of_dimshuffle"),
    RuleCase("reduce_of_reduce", CUBE, lambda x: x.sum(axis=1).sum(axis=1),
             lambda x: x.sum(axis=(1, 2)), lambda x: x.max(axis=1).sum(axis=1)),
    RuleCase("reduce_of_reduce", (i64("n", "m"),), lambda x: R.max(R.max(x, axis=0), axis=0),
             lambda x: R.max(x), lambda x: R.max(R.min(x, axis=0), axis=0), id="max_of_reduced"),
    RuleCase("sum_of_multiple", (f64("n", "m"), f64()), lambda x, s: (x * s).sum(axis=1),
             lambda x, s: x.sum(axis=1) * s, lambda x, s: (x * s).sum(axis=1),
             beside=("dimshuffle_of_dimshuffle",), miss_args=(f64("n", "m"), f64("n", "m"))),
    RuleCase("sum_of_multiple", (f64("n", "m"), f64(low=1)), lambda x, s: (x / s).sum(),
             lambda x, s: x.sum() / s, lambda x, s: (s / x).sum(), id="sum_of_quotient",
             beside=("dimshuffle_of_dimshuffle",)),
    RuleCase("no_exponential_is_asked", (f64("n", "m", low=0, high=0),),
             lambda x: eq(R.logsumexp(log(x), axis=1), -np.inf),
             lambda x: R.all(eq(log(x), -np.inf), axis=1),
             lambda x: eq(R.logsumexp(log(x), axis=1), 0.0), gone=(R.LogSumExp,)),
    RuleCase("sum_of_neg", MAT, lambda x: (-x).sum(), lambda x: -(x.sum()), lambda x: x.sum()),
]  # fmt: skip

CASES = [*FOLDING, *SIZES, *VIEWS, *ALLOCS, *REDUCTIONS]
