"""Records of indexing, increments, joins and splits."""

from __future__ import annotations

import numpy as np

from symdnn.graph.variable import constant
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.create import arange
from symdnn.ops.array.cumulative import CumMax, CumMin, CumProd, CumSum, LinearRecurrence
from symdnn.ops.array.getitem import inc_subtensor, reduce_subtensor, set_subtensor
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Split, join, roll, split
from symdnn.ops.array.pad import Pad, pad
from symdnn.ops.array.reduce import all, any, logsumexp, max, min, prod, sum
from symdnn.ops.array.take import bincount
from symdnn.ops.core.make_vector import make_vector
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, alloc, dimshuffle, shape_i
from symdnn.ops.elementwise.arithmetic import Add, Cast, Mul, cast
from symdnn.ops.elementwise.comparison import Switch, switch
from symdnn.ops.elementwise.incomplete import gammainc
from symdnn.ops.elementwise.math import exp, sin
from symdnn.ops.linalg.dot import dot
from symdnn.ops.lowered.gathered import PlacedSums
from symdnn.ops.lowered.of_values import Compressed, Counted, SomeChosen
from tests.opt.harness import MAT, TWO, Arg, RuleCase, boolean, f32, f64, i64

PLAIN = ("index_in_plain_form",)
ROWS = (f64("n", "m"), f64("h", "m"))
SCALARS = (i64(), i64(), i64())


def spread(v, like):
    return alloc(v, shape_i(like, 0), shape_i(like, 1))


def whole(x):
    return Subtensor(((None, None, None),) * x.ndim)(x)


#: A table of known sizes, what is added to its rows, and to one row by all.
TABLE, ADDED, ALL = f64(5, "m"), f64(3, "m"), f64(2, 3, "m")


def rows_of(x, *rows):
    return x[np.array(rows)]


def added_to(x, y, *rows):
    return inc_subtensor(x[np.array(rows)], y)


def _slopes(x):
    """The gradient of the squared differences of rows."""
    d = exp(x[1:]) - exp(x[:-1])
    return inc_subtensor(inc_subtensor(x.zeros_like()[:-1], -2.0 * d)[1:], 2.0 * d)


#: Columns of a table, in no order.
SOME = (6, 1, 2, 5, -1, 9, 9, 0)
#: The same of a matrix of 2 by 5, by two numbers.
PAIRS = tuple(divmod(k % 10, 5) for k in SOME)
#: Each once: what is added to one column is added up before.
ONCE = (6, 1, 2, 5, -1, 8, 7, 0)
PAIRS_ONCE = tuple(divmod(k % 10, 5) for k in ONCE)


def stacked(x, *at, axis=1):
    """``x[:, k]`` for all numbers, beside each other; ``at`` may have two for each."""
    parts = [x[(slice(None), *(k if isinstance(k, tuple) else (k,)))] for k in at]
    kept = [*range(parts[0].ndim)]
    return join(axis, *(dimshuffle(v, [*kept[:axis], "x", *kept[axis:]]) for v in parts))


def added_one_by_one(x, y, *at):
    """The columns of ``y`` added to columns of ``x``."""
    for k, piece in zip(at, split(y, [1] * len(at), len(at), axis=1), strict=True):
        place = (slice(None), *(k if isinstance(k, tuple) else (k,)))
        x = inc_subtensor(x[place], dimshuffle(piece, (0,)))
    return x


def stacked_apart(x, *at):
    """Columns by two numbers with a whole dimension between them."""
    return join(1, *(dimshuffle(x[k % 5, :, k % 2], (0, "x")) for k in at))


INDEX_ARRAYS = [
    RuleCase("join_of_numbered", (f64("n", 10),), lambda x: stacked(x, *SOME),
             lambda x: AdvancedSubtensor(((None, None, None), "a"), True)(
                 x, constant(np.array(SOME) % 10, dtype="int64")),
             lambda x: stacked(x, *SOME[:7])),
    RuleCase("join_of_numbered", (f64("n", 10),), lambda x: stacked(x, *SOME, axis=0), None,
             lambda x: stacked(x, *SOME[1:], axis=0), gone=(Join, Subtensor), id="as_rows"),
    RuleCase("join_of_numbered", (f64("n", 2, 5),), lambda x: stacked(x, *PAIRS), None,
             lambda x: stacked(x, *PAIRS[:7]),
             gone=(Join, Subtensor), id="by_two_numbers"),
    RuleCase("join_of_numbered", (f64(5, "m", 2),),
             lambda x: stacked_apart(x, *SOME), None, lambda x: stacked_apart(x, *SOME[:7]),
             gone=(Join, Subtensor), id="by_two_numbers_apart"),
    RuleCase("join_of_numbered", (f64("n", 10),),
             lambda x: join(1, exp(x), stacked(x, *SOME), x), None,
             lambda x: stacked(x, *SOME), miss_args=(f64("n", "m"),), gone=(Subtensor,),
             id="between_others"),
    RuleCase("increments_of_numbered", (f64("n", 10), f64("n", 8)),
             lambda x, y: added_one_by_one(x, y, *ONCE), None,
             lambda x, y: inc_subtensor(added_one_by_one(x, y, *ONCE[:7])[:, :2], y[:, :2]),
             miss_args=(f64("n", 10), f64("n", 7)),
             gone=(Split, IncSubtensor), made=(AdvancedIncSubtensor,)),
    RuleCase("increments_of_numbered", (f64("n", 2, 5), f64("n", 8)),
             lambda x, y: added_one_by_one(x, y, *PAIRS_ONCE), None,
             lambda x, y: added_one_by_one(x, y, *PAIRS_ONCE[:7]),
             miss_args=(f64("n", 2, 5), f64("n", 7)),
             gone=(Split, IncSubtensor), made=(AdvancedIncSubtensor,), id="in_matrices"),
    RuleCase("gather_of_known_rows", (TABLE,), lambda x: rows_of(x, 1, 2, 3), lambda x: x[1:4],
             lambda x: rows_of(x, 1, 2, 4)),
    RuleCase("gather_of_known_rows", (TABLE,), lambda x: rows_of(x, 4, 2, 0), None,
             lambda x: rows_of(x, 4, 2, 1), gone=(AdvancedSubtensor,), id="backwards"),
    RuleCase("gather_of_known_rows", (f64("n", 5),), lambda x: x[:, np.array([-2, -1])],
             lambda x: x[:, 3:5], lambda x: x[:, np.array([-1, 0, 1])], id="columns_from_the_end"),
    RuleCase("gather_of_known_rows", (TABLE,), lambda x: rows_of(x, [2, 2], [2, 2]), None,
             lambda x: rows_of(x, [2, 2], [2, 1]), gone=(AdvancedSubtensor,), id="one_row"),
    RuleCase("gather_of_known_rows", (TABLE,),
             lambda x: x[alloc(constant(1, dtype="int64"), 2, 2)], None,
             lambda x: rows_of(x, [0, 1], [1, 1]), gone=(AdvancedSubtensor,), id="a_filled_index"),
    RuleCase("scatter_to_known_rows", (TABLE, ADDED), lambda x, y: added_to(x, y, 1, 2, 3),
             lambda x, y: inc_subtensor(x[1:4], y), lambda x, y: added_to(x, y, 1, 2, 4)),
    RuleCase("scatter_to_known_rows", (TABLE, ADDED),
             lambda x, y: set_subtensor(x[np.array([3, 2, 1])], y),
             lambda x, y: set_subtensor(x[3:0:-1], y),
             lambda x, y: set_subtensor(x[np.array([2, 2, 2])], y), id="assigned"),
    RuleCase("scatter_to_known_rows", (TABLE, ALL),
             lambda x, y: added_to(x, y, [4, 4, 4], [4, 4, 4]),
             lambda x, y: inc_subtensor(
                 x[4:5], dimshuffle(y.sum((0, 1), keepdims=True), (0, 2))),
             lambda x, y: added_to(x, y, [4, 4, 4], [4, 4, 3]), id="added_to_one_row"),
]  # fmt: skip

#: A matrix, a volume, and the numbers of some rows.
GATHERED, VOLUME, NUMBERS = f64("n", "m"), f64("n", 4, "m"), i64("k", low=-3, high=2)


def numbers_along(x, axis, *pattern):
    return dimshuffle(arange(shape_i(x, axis)), pattern)


def repeated(i, x):
    """Row numbers, once for each element of a row of ``x``."""
    return alloc(dimshuffle(i, (0, "x")), shape_i(i, 0), shape_i(x, 1))


def counted(*args, **options):
    beside = ("dimshuffle_of_dimshuffle", "alloc_of_own_shape")
    return RuleCase(*args, beside=beside, **options)


COUNTED = [
    counted("gather_along_whole_axis", (GATHERED, NUMBERS),
             lambda x, i: x[repeated(i, x), numbers_along(x, 1, "x", 0)],
             lambda x, i: x[i],
             lambda x, i: x[repeated(i, x), numbers_along(x, 1, "x", 0)[:, ::-1]]),
    counted("gather_along_whole_axis", (GATHERED, NUMBERS),
             lambda x, i: x.T[numbers_along(x, 1, 0, "x"), dimshuffle(i, ("x", 0))],
             lambda x, i: x.T[:, i],
             lambda x, i: x.T[numbers_along(x, 1, 0, "x")[1:], dimshuffle(i, ("x", 0))],
             id="along_the_first"),
    counted("gather_along_whole_axis", (GATHERED, NUMBERS),
             lambda x, i: x[dimshuffle(i, ("x", 0)), numbers_along(x, 1, 0, "x")], None,
             lambda x, i: x[dimshuffle(i, ("x", 0)), numbers_along(x, 1, 0, "x") // 1],
             made=(DimShuffle,), id="turned"),
    counted("gather_along_whole_axis", (VOLUME, NUMBERS),
             lambda x, i: x[dimshuffle(i, (0, "x", "x")), np.arange(4)[:, None],
                            numbers_along(x, 2, "x", "x", 0)],
             lambda x, i: x[i],
             lambda x, i: x[dimshuffle(i, (0, "x", "x")), np.array([0, 1, 3])[:, None],
                            numbers_along(x, 2, "x", "x", 0) // 1],
             id="two_axes_of_three"),
    counted("scatter_along_whole_axis", (GATHERED, NUMBERS, f64("k", "m")),
             lambda x, i, y: inc_subtensor(x[repeated(i, x), numbers_along(x, 1, "x", 0)], y),
             lambda x, i, y: inc_subtensor(x[i], y),
             lambda x, i, y: inc_subtensor(x[repeated(i, x), numbers_along(x, 1, "x", 0) // 1], y)),
    counted("scatter_along_whole_axis", (GATHERED, NUMBERS, f64("m", "k")),
             lambda x, i, y: set_subtensor(
                 x[dimshuffle(i, ("x", 0)), numbers_along(x, 1, 0, "x")], y), None,
             lambda x, i, y: set_subtensor(
                 x[dimshuffle(i, ("x", 0)), numbers_along(x, 1, 0, "x") // 1], y),
             made=(DimShuffle,), id="set_turned"),
    counted("scatter_along_whole_axis", (GATHERED, NUMBERS, f64("k", "m")),
             lambda x, i, y: reduce_subtensor(
                x[repeated(i, x), numbers_along(x, 1, "x", 0)], y, "max"),
             lambda x, i, y: reduce_subtensor(x[i], y, "max"),
             lambda x, i, y: reduce_subtensor(
                 x[repeated(i, x), numbers_along(x, 1, "x", 0) // 1], y, "max"),
             id="largest"),
]  # fmt: skip

#: A mask for the first two of three dimensions, and one for the last two.
MASKED = (f64("n", "m", "h"), boolean("n", "m"))
MASKED_LAST = (f64("n", "m", "h"), boolean("m", "h"))


MASKS = [
    RuleCase("gather_by_flat_mask", MASKED, lambda x, k: x[k], None,
             lambda x, k: x[k.nonzero()], made=(Reshape,)),
    RuleCase("gather_by_flat_mask", MASKED_LAST, lambda x, k: x[:, k], None,
             lambda x, k: x[:, k.nonzero()[0]], made=(Reshape,), id="last"),
    RuleCase("scatter_by_flat_mask", MASKED, lambda x, k: set_subtensor(x[k], 2.0), None,
             lambda x, k: set_subtensor(x[k.nonzero()], 2.0), made=(Reshape,)),
    RuleCase("scatter_by_flat_mask", MASKED_LAST, lambda x, k: inc_subtensor(x[:, k], 2.0), None,
             lambda x, k: inc_subtensor(x[:, k.nonzero()[0]], 2.0), made=(Reshape,), id="added"),
]  # fmt: skip

OF_VALUES = [
    RuleCase("elements_by_mask", (f64("n", "m"), boolean("n")), lambda x, k: x[k], None,
             lambda x, k: x[k.nonzero()[0][::2]], made=(Compressed,)),
    RuleCase("elements_by_mask", TWO, lambda x, y: x[:, (x > y)[0]], None,
             lambda x, y: set_subtensor(x[:, (x > y)[0]], 2.0), made=(Compressed,), id="columns"),
    RuleCase("elements_by_mask", (f64("n"), boolean("n")), lambda x, k: x[k], None,
             lambda x, k: x[k.nonzero()[0] // 2], made=(Compressed,), id="of_a_vector"),
    RuleCase("counts_of_values", (i64("n", low=0),), bincount, None,
             lambda x: inc_subtensor(alloc(constant(0, dtype="int64"), 9)[x], 1),
             made=(Counted,)),
    RuleCase("counts_of_values", (i64("n", low=0), f32("n")), bincount, None,
             lambda x, w: bincount(x, cast(w, "int32")), made=(Counted,), id="of_weights"),
]  # fmt: skip


def by_mask(x, k, axis=0):
    return Compressed(axis)(x, k)


CHOSEN = (f64("n"), boolean("n"))
CHOSEN_ROWS = (f64("n", 2), boolean("n"))
WIDE_ROWS = (f64("n", "m"), boolean("n"))

BEFORE_MASKS = [
    RuleCase("elementwise_before_mask", CHOSEN, lambda x, k: exp(by_mask(x, k)),
             lambda x, k: by_mask(exp(x), k), lambda x, k: gammainc(by_mask(x, k), by_mask(x, k))),
    RuleCase("elementwise_before_mask", CHOSEN_ROWS,
             lambda x, k: by_mask(x, k) * by_mask(x[::-1], k),
             lambda x, k: by_mask(x * x[::-1], k),
             lambda x, k: by_mask(x, k) * by_mask(x[::-1], k[::-1]), id="of_two"),
    RuleCase("elementwise_before_mask", CHOSEN_ROWS,
             lambda x, k: by_mask(x, k) - dimshuffle(x[0], ("x", 0)),
             lambda x, k: by_mask(x - dimshuffle(x[0], ("x", 0)), k),
             lambda x, k: exp(by_mask(x, k)), miss_args=WIDE_ROWS, id="of_rows"),
    RuleCase("dimshuffle_before_mask", CHOSEN_ROWS, lambda x, k: by_mask(x, k).T,
             lambda x, k: by_mask(x.T, k, 1),
             lambda x, k: dimshuffle(by_mask(x, k), (0, 2, 1)),
             miss_args=(f64("n", "m", "h"), boolean("n"))),
    *[RuleCase("reduction_by_mask", CHOSEN, lambda x, k, f=f: f(by_mask(x, k), 0),
               lambda x, k, f=f, fill=fill: f(switch(k, x, fill), 0),
               lambda x, k, f=f: f(by_mask(x, k), 0), miss_args=WIDE_ROWS, id=f.__name__)
      for f, fill in ((sum, 0.0), (prod, 1.0), (any, 0.0), (all, 1.0), (logsumexp, -np.inf))],
    *[RuleCase("reduction_by_mask", CHOSEN, lambda x, k, f=f: f(by_mask(x, k), 0), None,
               lambda x, k, f=f: f(by_mask(x, k), 0), miss_args=WIDE_ROWS, made=(SomeChosen,),
               id=f.__name__)
      for f in (max, min)],
    RuleCase("reduction_by_mask", CHOSEN_ROWS, lambda x, k: sum(by_mask(x, k), 1),
             lambda x, k: by_mask(sum(x, 1), k), lambda x, k: sum(by_mask(x, k), 1),
             miss_args=WIDE_ROWS, id="beside_the_mask"),
    RuleCase("dot_by_mask", CHOSEN, lambda x, k: dot(by_mask(x, k), by_mask(x[::-1], k)),
             lambda x, k: sum(switch(k, x * x[::-1], 0.0)),
             lambda x, k: dot(by_mask(x, k), by_mask(x, k)), miss_args=(f64("n", 2), boolean("n"))),
    RuleCase("increment_by_mask", CHOSEN, lambda x, k: inc_subtensor(x[k], by_mask(x * 2.0, k)),
             None, lambda x, k: inc_subtensor(x[k], by_mask(x, k[::-1])), made=(Switch, Add),
             gone=(AdvancedIncSubtensor,)),
    RuleCase("increment_by_mask", CHOSEN, lambda x, k: set_subtensor(x[k], by_mask(x * 2.0, k)),
             None, lambda x, k: set_subtensor(x[k.nonzero()[0] // 2], 2.0), made=(Switch,),
             gone=(AdvancedIncSubtensor,), id="set"),
]  # fmt: skip

INDEXING = [
    RuleCase("index_in_plain_form", MAT, lambda x: x[0 : shape_i(x, 0), 1:],
             lambda x: x[:, 1:], lambda x: x[1 : shape_i(x, 1)]),
    RuleCase("index_in_plain_form", (f64(3, "m"),),
             lambda x: Subtensor((("?", 7, None), "?"))(
                 x, constant(0, dtype="int64"), constant(1, dtype="int64")),
             lambda x: x[:, 1], lambda x: x[1:], id="constant_bounds"),
    RuleCase("index_in_plain_form", TWO[:1],
             lambda x: inc_subtensor(x[0 : shape_i(x, 0)], 1.0),
             lambda x: IncSubtensor(((None, None, None),) * 2)(
                 x, constant(np.ones((1, 1)))), lambda x: inc_subtensor(x[1:], 1.0),
             id="increment_in_plain_form"),
    RuleCase("index_of_size_one", (f64("n", 1, "m"),), lambda x: x[:, 0],
             lambda x: x.dimshuffle(0, 2),
             lambda x: x[0], beside=("index_of_everything",)),
    RuleCase("index_of_size_one", (f64("n", 1, "m"),), lambda x: x[:, -1],
             lambda x: x.dimshuffle(0, 2), lambda x: x[:, :1], id="index_of_last_of_size_one"),
    RuleCase("increment_of_size_one", (f64("n", 1), f64("n")),
             lambda x, y: inc_subtensor(x[:, 0], y),
             lambda x, y: inc_subtensor(whole(x.dimshuffle(0)), y).dimshuffle(0, "x"),
             lambda x, y: inc_subtensor(x[0], y[:1])),
    RuleCase("increment_of_size_one", (f64("n", 1), f64("n")),
             lambda x, y: set_subtensor(x[:, 0], y),
             lambda x, y: set_subtensor(whole(x.dimshuffle(0)), y).dimshuffle(0, "x"),
             lambda x, y: set_subtensor(x[0], y[:1]), id="set_of_size_one"),
    RuleCase("index_of_everything", MAT, whole, lambda x: x, lambda x: x[1:]),
    RuleCase("index_of_index", MAT, lambda x: x[1:][1:, 2], lambda x: x[2:, 2],
             lambda x: x[-2:][1:]),
    RuleCase("index_of_index", (f64("h"),), lambda x: x[1:5:2][1], lambda x: x[3],
             lambda x: x[1:3][2], id="index_of_slice"),
    RuleCase("index_of_index", (f64("h"),), lambda x: x[1:5][::2], lambda x: x[1:5:2],
             lambda x: x[::-1][1:], id="slice_of_slice"),
    RuleCase("index_of_index", MAT, lambda x: x[:, 1][1:], lambda x: x[1:, 1],
             lambda x: x[1:], id="slice_of_column"),
    RuleCase("index_of_make_vector", SCALARS, lambda a, b, c: make_vector([a, b, c])[1],
             lambda a, b, c: b, lambda a, b, c: make_vector([a, b, c])[a]),
    RuleCase("index_of_make_vector", SCALARS, lambda a, b, c: make_vector([a, b, c])[1:],
             lambda a, b, c: make_vector([b, c]), lambda a, b, c: make_vector([a, b, c])[a:],
             id="part_of_make_vector"),
    RuleCase("index_of_alloc", (f64("n", "m"), f64()), lambda x, s: spread(s, x)[1:],
             None, lambda x, s: spread(s, x)[1], gone=(Subtensor,),
             beside=("index_of_everything", "index_in_plain_form")),
    RuleCase("index_of_alloc", (f64(4),), lambda v: alloc(v, 3, 4)[2], None,
             lambda v: alloc(v, 3, 4).sum(), beside=("index_of_everything", "alloc_of_own_shape"),
             gone=(Alloc,), id="row_of_alloc"),
    RuleCase("index_of_dimshuffle", MAT, lambda x: x.T[1], lambda x: x[:, 1],
             lambda x: dimshuffle(x, (0, "x", 1))[:, shape_i(x, 0)]),
    RuleCase("index_of_dimshuffle", MAT, lambda x: dimshuffle(x, (1, "x", 0))[1:, 0, :2],
             lambda x: x[:2, 1:].T, lambda x: dimshuffle(x, (0, "x", 1))[:, :0],
             id="index_of_new_dimension"),
    RuleCase("index_of_elemwise", MAT, lambda x: exp(x)[1:], lambda x: exp(x[1:]),
             lambda x: exp(x)[1:].sum() + exp(x).sum()),
    RuleCase("index_of_elemwise", (f64("n", 5),),
             lambda x: exp(x)[:, 0] * exp(x)[:, -1] + exp(x)[:, 1:4].sum(axis=1),
             lambda x: exp(x[:, 0]) * exp(x[:, -1]) + exp(x[:, 1:4]).sum(axis=1),
             lambda x: exp(x)[:, 0] * exp(x)[:, -1] + exp(x)[:, 1:].sum(axis=1),
             id="index_of_elemwise_in_parts"),
    RuleCase("index_of_elemwise", (f64("n", "m"), f64(1, "m")), lambda x, y: (x * y)[1],
             lambda x, y: x[1] * y[0], lambda x, y: (x * y)[:, 1:], miss_args=TWO,
             id="row_of_product"),
    RuleCase("index_of_elemwise", (i64("n"),),
             lambda x: cast(x, "float64")[1:] - cast(x, "float64")[:-1],
             lambda x: cast(x[1:], "float64") - cast(x[:-1], "float64"),
             lambda x: cast(x, "float32")[1:] - cast(x, "float32")[:-1],
             id="slices_of_a_cast"),
    RuleCase("rows_of_product", (f64("n", "m"), f64("m", "k")), lambda x, w: dot(x, w)[1],
             lambda x, w: dot(x[1], w), lambda x, w: dot(x, w)[:, 1]),
    RuleCase("rows_of_product", (f64(6, "m"), f64("m", "k")),
             lambda x, w: dot(x, w).reshape((2, 3, shape_i(w, 1)))[:, -1],
             lambda x, w: dot(x.reshape((2, 3, shape_i(x, 1)))[:, -1], w),
             lambda x, w: dot(x, w)[1:], id="last_rows_of_products"),
    RuleCase("rows_of_product", (f64("n", "m"), f64("m", 3)),
             lambda x, w: dot(x, w).reshape((1, shape_i(x, 0), 3))[:, -1],
             lambda x, w: dot(x.reshape((1, shape_i(x, 0), shape_i(x, 1)))[:, -1], w),
             lambda x, w: dot(x, w).reshape((1, shape_i(x, 0) + 1, 0))[:, -1],
             miss_args=(f64("n", "m"), f64("m", 0)), id="rows_of_no_columns"),
    RuleCase("flipped_scan_of_flipped", MAT, lambda x: CumSum(1)(x[:, ::-1])[:, ::-1],
             lambda x: CumSum(1, True)(x), lambda x: CumSum(1)(x[:, ::-1])[::-1]),
    RuleCase("flipped_scan_of_flipped", TWO,
             lambda a, b: LinearRecurrence(0, True)(a[::-1], b[::-1])[::-1],
             LinearRecurrence(0), lambda a, b: LinearRecurrence(0)(a[::-1], b)[::-1],
             id="flipped_recurrence"),
    RuleCase("last_of_scan", (f64("n", 4),), lambda x: CumSum(1)(x)[:, -1],
             lambda x: sum(x, axis=1), lambda x: CumSum(0)(x)[-1],
             beside=("index_of_everything",)),
    RuleCase("last_of_scan", (f64("n", 4),), lambda x: CumProd(1, True)(x)[1:, 0],
             lambda x: prod(x, axis=1)[1:], lambda x: CumProd(1, False, True)(x)[:, -1],
             id="last_of_product"),
    RuleCase("last_of_scan", (i64(3, "m"),), lambda x: CumMax(0)(x)[2, 1:],
             lambda x: max(x, axis=0)[1:], lambda x: CumMax(0)(x)[1, 1:], id="last_of_maxima"),
    RuleCase("last_of_scan", (f64(3),), lambda x: CumMin(0)(x)[-1], lambda x: min(x, axis=0),
             lambda x: [CumMin(0)(x)[-1], CumMin(0)(x)], id="last_of_minima",
             beside=("index_of_everything",)),
]  # fmt: skip

INCREMENTS = [
    RuleCase("increment_of_zeros_is_set", (f64("n", "m"),),
             lambda x: inc_subtensor(x.zeros_like()[1:], exp(x)[1:]),
             lambda x: set_subtensor(x.zeros_like()[1:], exp(x)[1:]),
             lambda x: inc_subtensor(x[1:], exp(x)[1:])),
    RuleCase("narrow_increments_in_float32", (Arg("bfloat16", ("n", "m")), i64(4, high=2)),
             lambda x, i: inc_subtensor(x[i], exp(x)[i]), None,
             lambda x, i: set_subtensor(x[i], exp(x)[i]), made=(Cast,)),
    RuleCase("narrow_increments_in_float32", (Arg("float16", ("n", "m")), i64(4, high=2)),
             lambda x, i: inc_subtensor(x.zeros_like()[:, i], exp(x)[:, i]), None,
             lambda x, i: inc_subtensor(cast(x, "float32")[i], 1.0), made=(Cast,),
             id="narrow_increments_of_zeros"),
    *(RuleCase("narrow_increments_in_float32", (Arg(dtype, ("n", "m")), i64(4, high=2)),
               lambda x, i, r=reduce: reduce_subtensor(x[i], exp(x)[i], r), None,
               lambda x, i, r=reduce: reduce_subtensor(
                   cast(x, "float32")[i], cast(exp(x)[i], "float32"), r),
               made=(Cast,), id=f"narrow_{reduce}_{dtype}")
      for reduce, dtype in (("max", "bfloat16"), ("min", "float16"), ("mul", "float16"))),
    RuleCase("increment_by_zero", MAT, lambda x: inc_subtensor(x[1:], 0.0), lambda x: x,
             lambda x: inc_subtensor(x[1], 0.0)),
    RuleCase("increment_of_everything", TWO, lambda x, y: inc_subtensor(whole(x), y),
             lambda x, y: x + y, lambda x, y: inc_subtensor(x[1:], y[1:])),
    RuleCase("increment_of_everything", TWO,
             lambda x, y: inc_subtensor(x.zeros_like()[::-1], exp(y)) * x,
             lambda x, y: (x.zeros_like() + exp(y)[::-1]) * x,
             lambda x, y: inc_subtensor(x[::-1], y), id="increment_of_flipped"),
    RuleCase("increment_of_everything", (f64("n", "m"), f64(1, "m")),
             lambda x, y: set_subtensor(x[::-1, ::-1], y),
             lambda x, y: alloc(y[:, ::-1], shape_i(x, 0), shape_i(x, 1)),
             lambda x, y: set_subtensor(x[::-1, 1:], y[:, 1:]), id="set_of_flipped"),
    RuleCase("increment_of_everything", (f64("n", "m"), f64()),
             lambda x, s: set_subtensor(whole(x), s), None, lambda x, s: set_subtensor(x[1:], s),
             gone=(IncSubtensor,), id="set_everything"),
    RuleCase("read_what_was_set", TWO, lambda x, y: set_subtensor(x[1:], exp(x)[1:])[1:] + y[1:],
             lambda x, y: exp(x)[1:] + y[1:], lambda x, y: set_subtensor(x[1:], y[1:])[1:]),
    RuleCase("read_what_was_set", (f64("n", "m"),),
             lambda x: inc_subtensor(x.zeros_like()[1:], exp(x)[1:])[1:],
             lambda x: exp(x)[1:], lambda x: inc_subtensor(x[1:], exp(x)[1:])[1:],
             beside=("size_of_result",), id="read_what_was_added_to_zeros"),
    RuleCase("add_to_increment_of_zeros", (f64("n", "m"), f64("m")),
             lambda x, y: exp(x) + inc_subtensor(x.zeros_like()[1], y),
             lambda x, y: inc_subtensor(exp(x)[1], y),
             lambda x, y: exp(x) + inc_subtensor(x[1], y), gone=(Add,)),
    RuleCase("inside_of_a_pad", (f64("n", "m"),),
             lambda x: exp(pad(x, ((0, 2), (3, 1)))[:-2, 3:-1]), exp,
             lambda x: exp(pad(x, ((0, 2), (3, 1)))[:-2, 2:-1]), gone=(Pad, Subtensor)),
    RuleCase("inside_of_a_pad", (f64(4, 5),), lambda x: exp(pad(x, 2)[2:6, 2:7]), exp,
             lambda x: exp(pad(x, 2)[2:5, 2:7]), id="inside_of_a_pad_of_known_size"),
    RuleCase("increments_of_zeros_are_one_pass", (f64("n", "m"),), _slopes, None,
             lambda x: inc_subtensor(x[1:], -2.0 * x[1:]), gone=(IncSubtensor, Alloc, Mul),
             made=(PlacedSums,)),
    RuleCase("increments_of_zeros_are_one_pass", (f64("n", "m"), i64()),
             lambda x, k: inc_subtensor(x.zeros_like()[1:, ::2], exp(x)[1:, ::2]), None,
             lambda x, k: inc_subtensor(x.zeros_like()[:k], exp(x)[:k]), gone=(IncSubtensor,),
             made=(PlacedSums,), id="a_slice_of_zeros_is_one_pass"),
    RuleCase("increments_of_one_part", TWO,
             lambda x, y: inc_subtensor(inc_subtensor(x.zeros_like()[1:], y[1:])[1:], x[1:]),
             lambda x, y: inc_subtensor(x.zeros_like()[1:], y[1:] + x[1:]),
             lambda x, y: inc_subtensor(inc_subtensor(x.zeros_like()[1:], y[1:])[:-1], x[1:])),
    RuleCase("increments_of_one_part", TWO,
             lambda x, y: inc_subtensor(
                 inc_subtensor(inc_subtensor(x[1:], y[1:])[:, 2:], y[:, 2:])[1:], x[1:]),
             lambda x, y: inc_subtensor(inc_subtensor(x[1:], y[1:] + x[1:])[:, 2:], y[:, 2:]),
             lambda x, y: inc_subtensor(
                 inc_subtensor(set_subtensor(x[1:], y[1:])[:, 2:], y[:, 2:])[1:], x[1:]),
             id="increments_of_one_part_around_others"),
    RuleCase("increment_of_joined", (f64("n", 2), f64("n", 1), f64("n")),
             lambda x, y, z: inc_subtensor(join(1, x, y, exp(x))[:, 2], z),
             None,
             lambda x, y, z: inc_subtensor(join(1, x, y, exp(x))[:, 1], z), gone=(IncSubtensor,),
             made=(Join,)),
    RuleCase("read_beside_what_was_put", TWO,
             lambda x, y: exp(set_subtensor(x[1::2], 0.0)[2::2]) + y[2::2],
             lambda x, y: exp(x[2::2]) + y[2::2],
             lambda x, y: exp(set_subtensor(x[1::2], 0.0)[1::3]) + y[1::3]),
    RuleCase("read_beside_what_was_put", TWO,
             lambda x, y: exp(inc_subtensor(x[:, 2:], 1.0)[1:, :2]) + y[1:, :2],
             lambda x, y: exp(x[1:, :2]) + y[1:, :2],
             lambda x, y: exp(inc_subtensor(x[:, 2:], 1.0)[1:, :-1]) + y[1:, :-1],
             id="read_beside_what_was_added"),
    RuleCase("increment_of_what_was_zeroed", TWO,
             lambda x, y: inc_subtensor(
                 inc_subtensor(set_subtensor(x[1::2], 0.0)[2::2], y[2::2])[1::2], y[1::2]),
             lambda x, y: inc_subtensor(set_subtensor(x[1::2], y[1::2])[2::2], y[2::2]),
             lambda x, y: inc_subtensor(
                 inc_subtensor(set_subtensor(x[1::2], 0.0)[:-1], y[:-1])[1::2], y[1::2])),
]  # fmt: skip


def _three_parts(x, last):
    y = inc_subtensor(x.zeros_like()[:, last], exp(x[:, last]))
    return inc_subtensor(inc_subtensor(y[:, 2:4], x[:, 2:4])[:, :2], sin(x[:, :2]))


JOINS = [
    RuleCase("join_of_one", MAT, lambda x: Join(0)(x), lambda x: x, lambda x: join(0, x, x)),
    RuleCase("roll_by_zero", MAT, lambda x: roll(x, 0, 1), lambda x: x, lambda x: roll(x, 1, 1)),
    RuleCase("join_without_empty", (f64("n", "m"),),
             lambda x: join(0, x, alloc(1.0, 0, shape_i(x, 1))), lambda x: x,
             lambda x: join(0, x, alloc(1.0, 0, 4))),
    RuleCase("join_of_join", ROWS, lambda x, y: join(0, join(0, x, y), x),
             lambda x, y: join(0, x, y, x), lambda x, y: join(0, join(1, x, x), join(1, y, y))),
    RuleCase("join_of_increments", (f64(6, "m"),),
             lambda x: inc_subtensor(inc_subtensor(x.zeros_like()[2:], x[2:])[:2], exp(x[:2])),
             lambda x: join(0, exp(x[:2]), x[2:]),
             lambda x: inc_subtensor(inc_subtensor(x.zeros_like()[1:], x[1:])[:2], exp(x[:2])),
             gone=(IncSubtensor,)),
    RuleCase("join_of_increments", (f64(2, "m"),),
             lambda x: inc_subtensor(set_subtensor(x.zeros_like()[1], x[1])[0], exp(x[0])),
             None, lambda x: inc_subtensor(set_subtensor(x.zeros_like()[1], x[1])[1], exp(x[0])),
             gone=(IncSubtensor,), id="joined_rows"),
    RuleCase("join_of_increments", (f64("n", "m"), i64()),
             lambda x, k: inc_subtensor(inc_subtensor(x.zeros_like()[:, :k], x[:, :k])[:, k:],
                                        exp(x[:, k:])),
             lambda x, k: join(1, x[:, :k], exp(x[:, k:])),
             lambda x, k: inc_subtensor(inc_subtensor(x.zeros_like()[:, :k], x[:, :k])[:, k + 1:],
                                        exp(x[:, k + 1:])),
             gone=(IncSubtensor,), id="joined_at_a_bound"),
    RuleCase("join_of_increments", (f64("n", "m"),),
             lambda x: _three_parts(x, slice(4, None)),
             lambda x: join(1, sin(x[:, :2]), x[:, 2:4], exp(x[:, 4:])),
             lambda x: _three_parts(x, slice(4, -1)),
             gone=(IncSubtensor,), id="joined_of_unknown_size"),
    RuleCase("join_of_increments", (f64("n", "m"),),
             lambda x: _three_parts(x, slice(4, 6)), None,
             lambda x: _three_parts(x, slice(5, 6)),
             gone=(IncSubtensor,), id="joined_up_to_a_bound"),
    RuleCase("join_of_increments", (f64(6, "m"),),
             lambda x: inc_subtensor(inc_subtensor(x.zeros_like()[::2], x[::2])[1::2],
                                     exp(x[1::2])),
             None,
             lambda x: inc_subtensor(inc_subtensor(x.zeros_like()[::3], x[::3])[1::3],
                                     exp(x[1::3])),
             gone=(IncSubtensor,), id="interleaved"),
    RuleCase("join_of_split", (f64(6, "m"),), lambda x: join(0, *split(x, [2, 4], 2)),
             lambda x: x, lambda x: join(0, *split(x, [2, 4], 2)[::-1])),
    RuleCase("split_into_one", MAT, lambda x: split(exp(x), [shape_i(exp(x), 0)], 1)[0],
             exp, lambda x: split(x, [3], 1)[0]),
    RuleCase("split_of_join", (f64("n", 3), f64("h", 3)),
             lambda x, y: split(join(0, x, y), [shape_i(x, 0), shape_i(y, 0)], 2)[1],
             lambda x, y: y, lambda x, y: split(join(0, x, y), [shape_i(y, 0), shape_i(x, 0)], 2),
             gone=(Split,)),
    RuleCase("split_of_join", (f64("n", 3), f64("h", 3)),
             lambda x, y: split(2 * join(0, x, y), [shape_i(x, 0), shape_i(y, 0)], 2)[1],
             lambda x, y: 2 * y,
             lambda x, y: split(x * join(0, x, y)[:1], [shape_i(y, 0), shape_i(x, 0)], 2),
             gone=(Split,), id="split_of_product_of_join"),
    RuleCase("split_of_join", (f64("n", 3), f64("h", 3), f64(1, 3)),
             lambda x, y, z: split(exp(join(0, x, y)) * z, [shape_i(x, 0), shape_i(y, 0)], 2)[1],
             lambda x, y, z: exp(y) * z,
             lambda x, y, z: split(exp(join(0, x, y)) * x[:1].sum() + join(0, y, x),
                                   [shape_i(x, 0), shape_i(y, 0)], 2),
             gone=(Split,), id="split_of_tree_of_join"),
    RuleCase("index_of_join", (f64(2, 4), f64(3, 4), f64("n", 4)),
             lambda x, y, z: join(0, x, y, z)[3], lambda x, y, z: y[1],
             lambda x, y, z: join(0, x, y, z)[5]),
    RuleCase("index_of_join", (f64(2, 4), f64(3, 4), f64("n", 4)),
             lambda x, y, z: join(0, x, y, z)[2:5, 1], lambda x, y, z: y[:, 1],
             lambda x, y, z: join(0, x, y, z)[1:3], beside=PLAIN, id="part_of_join"),
]  # fmt: skip

CASES = [*INDEX_ARRAYS, *COUNTED, *MASKS, *OF_VALUES, *BEFORE_MASKS, *INDEXING, *INCREMENTS, *JOINS]
