from __future__ import annotations

import numpy as np

from symdnn.ops.array import advanced_index as A
from symdnn.ops.array import getitem as G
from symdnn.ops.array import index as I
from symdnn.ops.array import scatter_reduce as S
from symdnn.ops.array import sort as O
from symdnn.ops.array import take as E
from symdnn.ops.array.order_statistics import ArgPartition, OrderStatistics, Partition
from symdnn.ops.array.sets import IsIn
from tests.op_table.record import Draw, OpCase, distinct, integers, normal, uniform


def put(part, value, add=False):
    return (G.inc_subtensor if add else G.set_subtensor)(part, value)


def changed(x, index, y, add=False):
    out = x.copy()
    if add:
        np.add.at(out, index, y)
    else:
        out[index] = y
    return out


def parted(x):
    """A partition along axis 1 around place 2, and its indices."""
    kinds = np.sign(x - np.sort(x, 1)[:, 2:3])
    order = np.argsort(kinds, 1, kind="stable")
    return [np.take_along_axis(x, order, 1), order]


def combined(x, index, y, reduce):
    out = x.copy()
    S.REDUCTIONS[reduce].at(out, index, y)
    return out


def mask(*shape: int) -> Draw:
    return lambda rng: np.asarray(rng.uniform(size=shape) < 0.5)


CASES = [
    # -- ints and slices
    OpCase(
        "subtensor",
        (I.Subtensor, I.IncSubtensor),
        lambda x: x[1, 4:1:-1],
        (normal(3, 6),),
        lambda x: x[1, 4:1:-1],
    ),
    OpCase(
        "subtensor_symbolic",
        (I.Subtensor,),
        lambda x, i, b: x[i * b : (i + 1) * b, i],
        (normal(10, 4), integers(2, 4), integers(3, 4)),
        lambda x, i, b: x[i * b : (i + 1) * b, i],
    ),
    OpCase(
        "subtensor_negative",
        (I.Subtensor,),
        lambda x, i, s: x[-i::s, :-i, None],
        (normal(9, 9), integers(2, 6), integers(-3, 0)),
        lambda x, i, s: x[-i::s, :-i, None],
    ),
    OpCase(
        "subtensor_ellipsis",
        (I.Subtensor,),
        lambda x: x[None, ..., -1, None],
        (normal(2, 3, 4),),
        lambda x: x[None, ..., -1, None],
    ),
    OpCase(
        "subtensor_empty",
        (I.Subtensor,),
        lambda x: x[5:2, ::3],
        (integers(0, 9, 4, 7, dtype="int8"),),
        lambda x: x[5:2, ::3],
        grad=False,
    ),
    OpCase(
        "inc_subtensor",
        (I.IncSubtensor,),
        lambda x, y, i: put(x[i:, 1::2], y, add=True),
        (normal(4, 5), normal(1, 2), integers(1, 3)),
        lambda x, y, i: changed(x, np.s_[i:, 1::2], y, add=True),
    ),
    OpCase(
        "set_subtensor",
        (I.IncSubtensor,),
        lambda x, y: put(x[1:3], y),
        (normal(4, 5), normal(5)),
        lambda x, y: changed(x, np.s_[1:3], y),
    ),
    OpCase(
        "set_subtensor_scalar_part",
        (I.IncSubtensor,),
        lambda x, y: put(x[1, 2], y),
        (normal(4, 5), normal()),
        lambda x, y: changed(x, (1, 2), y),
    ),
    OpCase(
        "set_subtensor_of_transposed",
        (I.IncSubtensor,),
        lambda x, y: put(x[1:, :2].T, y),
        (normal(4, 5), normal(2, 3)),
        lambda x, y: changed(x, np.s_[1:, :2], y.T),
    ),
    OpCase(
        "set_subtensor_of_reshaped",
        (I.IncSubtensor,),
        lambda x, y: put(x[1:3].reshape((5, 2)), y),
        (normal(4, 5), normal(5, 1)),
        lambda x, y: changed(x, np.s_[1:3], np.repeat(y, 2, 1).reshape(2, 5)),
    ),
    OpCase(
        "set_subtensor_int",
        (I.IncSubtensor,),
        lambda x: put(x[::-2], 7),
        (integers(0, 9, 5, dtype="int32"),),
        lambda x: changed(x, np.s_[::-2], 7),
        grad=False,
    ),
    # -- index arrays
    OpCase(
        "in_bounds",
        (A.InBounds,),
        lambda i: A.InBounds()(i, 5),
        (integers(-5, 5, 4, 3),),
        lambda i: i,
        grad=False,
    ),
    OpCase(
        "advanced_in_bounds",
        (A.AdvancedSubtensor, A.AdvancedIncSubtensor),
        lambda x, i: A.AdvancedSubtensor(((None, None, None), "a"), in_bounds=True)(x, i),
        (normal(3, 5), integers(-5, 5, 2, 4)),
        lambda x, i: x[:, i],
    ),
    OpCase(
        "advanced",
        (A.AdvancedSubtensor, A.AdvancedIncSubtensor),
        lambda x, i: x[i],
        (normal(5, 3), integers(-5, 5, 4)),
        lambda x, i: x[i],
    ),
    OpCase(
        "advanced_pairs",
        (A.AdvancedSubtensor,),
        lambda x, i, j: x[i, j],
        (normal(5, 3), integers(0, 5, 4), integers(-3, 3, 4, dtype="int8")),
        lambda x, i, j: x[i, j],
    ),
    OpCase(
        "advanced_outer",
        (A.AdvancedSubtensor,),
        lambda x, i, j: x[:, i, j, 1:],
        (normal(2, 5, 3, 4), integers(0, 5, 4, 1, dtype="uint8"), integers(0, 3, 2)),
        lambda x, i, j: x[:, i, j, 1:],
    ),
    OpCase(
        "advanced_apart",
        (A.AdvancedSubtensor,),
        lambda x, i, j: x[i, :, j],
        (normal(5, 2, 3), integers(0, 5, 4), integers(0, 3, 4)),
        lambda x, i, j: x[i, :, j],
    ),
    OpCase(
        "advanced_with_int_and_slices",
        (A.AdvancedSubtensor,),
        lambda x, i, k: x[k, ::-1, None, i, k:],
        (normal(3, 2, 5, 4), integers(0, 5, 3, 2), integers(0, 3)),
        lambda x, i, k: x[k, ::-1, None, i, k:],
    ),
    OpCase(
        "advanced_list",
        (A.AdvancedSubtensor,),
        lambda x: x[[0, 2], :, [[1], [0]]],
        (normal(3, 2, 2),),
        lambda x: x[[0, 2], :, [[1], [0]]],
    ),
    OpCase(
        "advanced_empty",
        (A.AdvancedSubtensor,),
        lambda x, i: x[i],
        (normal(0, 3), integers(0, 1, 0)),
        lambda x, i: x[i],
        grad=False,
    ),
    OpCase(
        "advanced_half",
        (A.AdvancedIncSubtensor,),
        lambda x, i: put(x[i], 1, add=True),
        (integers(0, 4, 6, dtype="float16"), integers(0, 6, 20)),
        lambda x, i: changed(x, i, 1, add=True),
        grad=False,
    ),
    OpCase(
        "mask",
        (G.Nonzero, A.AdvancedSubtensor),
        lambda x, m: x[m],
        (normal(4, 5), mask(4, 5)),
        lambda x, m: x[m],
    ),
    OpCase(
        "mask_rows",
        (G.Nonzero, A.AdvancedSubtensor),
        lambda x, m: x[:, m, 0],
        (normal(2, 4, 5), mask(4)),
        lambda x, m: x[:, m, 0],
    ),
    OpCase(
        "inc_advanced",
        (A.AdvancedIncSubtensor,),
        lambda x, y, i: put(x[i, 1:], y, add=True),
        (normal(3, 4), normal(7, 3), integers(-3, 3, 7)),
        lambda x, y, i: changed(x, np.s_[i, 1:], y, add=True),
    ),
    *(
        OpCase(
            f"{reduce}_advanced",
            (S.ScatterReduce,),
            lambda x, y, i, reduce=reduce: G.reduce_subtensor(x[i, 1:], y, reduce),
            (distinct(3, 4), distinct(7, 3), integers(-3, 3, 7)),
            lambda x, y, i, reduce=reduce: combined(x, np.s_[i, 1:], y, reduce),
        )
        for reduce in S.REDUCTIONS
    ),
    OpCase(
        "max_advanced_apart",
        (S.ScatterReduce,),
        lambda x, y, i, j: G.reduce_subtensor(x[i, None, :, j], y, "max"),
        (distinct(3, 4, 2), distinct(5, 1, 4), integers(0, 3, 5), integers(0, 2, 5)),
        lambda x, y, i, j: combined(x, np.s_[i, None, :, j], y, "max"),
    ),
    OpCase(
        "min_advanced_ints",
        (S.ScatterReduce,),
        lambda x, y, i: G.reduce_subtensor(x[:, i], y, "min"),
        (
            integers(0, 9, 3, 4, dtype="uint8"),
            integers(0, 9, 3, 1, dtype="uint8"),
            integers(0, 4, 6),
        ),
        lambda x, y, i: combined(x, np.s_[:, i], y, "min"),
        grad=False,
    ),
    OpCase(
        "inc_advanced_row",
        (A.AdvancedIncSubtensor,),
        lambda x, y, i: put(x[:, i], y, add=True),
        (normal(3, 4), normal(3, 1), integers(0, 4, 6)),
        lambda x, y, i: changed(x, np.s_[:, i], y, add=True),
    ),
    OpCase(
        "inc_advanced_apart",
        (A.AdvancedIncSubtensor,),
        lambda x, y, i, j: put(x[i, None, :, j], y, add=True),
        (normal(3, 4, 2), normal(5, 1, 4), integers(0, 3, 5), integers(0, 2, 5)),
        lambda x, y, i, j: changed(x, np.s_[i, None, :, j], y, add=True),
    ),
    OpCase(
        "set_advanced",
        (A.AdvancedIncSubtensor,),
        lambda x, y: put(x[[2, 0], ::2], y),
        (normal(3, 4), normal(2, 1)),
        lambda x, y: changed(x, np.s_[[2, 0], ::2], y),
    ),
    OpCase(
        "set_mask",
        (A.AdvancedIncSubtensor,),
        lambda x, m: put(x[m], 0.5),
        (normal(4, 5), mask(4, 5)),
        lambda x, m: np.where(m, 0.5, x),
    ),
    # -- picking
    OpCase(
        "take",
        (),
        lambda x, i: E.take(x, i, 1),
        (normal(2, 4), integers(-4, 4, 3, 2)),
        lambda x, i: np.take(x, i, 1),
    ),
    OpCase("take_flat", (), E.take, (normal(2, 4), integers(0, 8, 3)), np.take),
    OpCase(
        "take_scalar",
        (),
        lambda x, i: E.take(x, i, -1),
        (normal(2, 4), integers(0, 4)),
        lambda x, i: np.take(x, i, -1),
    ),
    OpCase(
        "take_wrap",
        (),
        lambda x, i: E.take(x, i, 0, "wrap"),
        (normal(3, 4), integers(-9, 9, 5)),
        lambda x, i: np.take(x, i, 0, mode="wrap"),
    ),
    OpCase(
        "take_clip",
        (),
        lambda x, i: E.take(x, i, 0, "clip"),
        (normal(3, 4), integers(-9, 9, 5)),
        lambda x, i: np.take(x, i, 0, mode="clip"),
    ),
    OpCase(
        "take_along_axis",
        (),
        lambda x, i: E.take_along_axis(x, i, 1),
        (normal(3, 4), integers(0, 4, 3, 2)),
        lambda x, i: np.take_along_axis(x, i, 1),
    ),
    OpCase(
        "choose",
        (),
        lambda i, x, y: E.choose(i, [x, y]),
        (integers(0, 2, 3, 4), normal(3, 4), normal(1, 4)),
        lambda i, x, y: np.choose(i, [x, y]),
    ),
    OpCase(
        "choose_tensor",
        (),
        lambda i, x: E.choose(i, x, "wrap"),
        (integers(-3, 7, 4), normal(3, 2, 4)),
        lambda i, x: np.choose(i, x, mode="wrap"),
    ),
    OpCase(
        "compress",
        (G.Nonzero,),
        lambda m, x: E.compress(m, x, 1),
        (mask(4), normal(3, 4)),
        lambda m, x: np.compress(m, x, 1),
    ),
    OpCase(
        "nonzero",
        (G.Nonzero,),
        lambda x: G.nonzero(x),
        (integers(0, 2, 3, 4),),
        np.nonzero,
        grad=False,
    ),
    OpCase(
        "nonzero_matrix",
        (G.Nonzero,),
        lambda x: G.nonzero(x, return_matrix=True),
        (integers(0, 2, 3, 4),),
        lambda x: np.array(np.nonzero(x)),
        grad=False,
    ),
    OpCase(
        "nonzero_values",
        (G.Nonzero,),
        E.nonzero_values,
        (uniform(0.5, 1, 3, 2),),
        lambda x: x[np.nonzero(x)],
    ),
    OpCase(
        "one_hot",
        (E.OneHot,),
        lambda y, n: E.to_one_hot(y, n, "float32"),
        (integers(0, 4, 5), integers(4, 6)),
        lambda y, n: np.eye(n)[y],
        grad=False,
    ),
    OpCase(
        "one_hot_matrix",
        (E.OneHot,),
        lambda y: E.to_one_hot(y, 4, "int8"),
        (integers(0, 4, 5, 2, dtype="uint8"),),
        lambda y: np.eye(4)[y],
        grad=False,
    ),
    OpCase(
        "bincount", (E.BincountLength,), E.bincount, (integers(0, 6, 9),), np.bincount, grad=False
    ),
    OpCase(
        "bincount_weights",
        (),
        lambda x, w: E.bincount(x, w, 9),
        (integers(0, 6, 9), normal(9)),
        lambda x, w: np.bincount(x, w, 9),
    ),
    OpCase("bincount_empty", (), E.bincount, (integers(0, 6, 0),), np.bincount, grad=False),
    OpCase("diff", (), lambda x: E.diff(x, 2, 0), (normal(5, 2),), lambda x: np.diff(x, 2, 0)),
    OpCase(
        "fill_diagonal",
        (),
        lambda x, v: E.fill_diagonal(x, v, 1),
        (normal(3, 4), normal()),
        lambda x, v: np.where(np.eye(3, 4, 1), v, x),
    ),
    # -- order
    OpCase(
        "sort",
        (O.Sort,),
        lambda x: O.sort(x, 0),
        (distinct(4, 3),),
        lambda x: np.sort(x, 0),
    ),
    OpCase(
        "order_statistics",
        (OrderStatistics,),
        lambda x: OrderStatistics(1)(x, np.array([3, 0, 1, 3, 4])),
        (distinct(2, 5, 3),),
        lambda x: np.sort(x, 1)[:, [3, 0, 1, 3, 4]],
    ),
    OpCase(
        "partition",
        (Partition, ArgPartition),
        lambda x: [op(1)(x, np.array([2])) for op in (Partition, ArgPartition)],
        (distinct(2, 5, 3),),
        parted,
    ),
    OpCase(
        "is_in",
        (IsIn,),
        lambda x, y: IsIn()(x, y),
        (integers(0, 9, 3, 4), integers(0, 9, 5)),
        np.isin,
    ),
    OpCase(
        "sort_flat",
        (O.Sort,),
        lambda x: O.sort(x, None),
        (distinct(4, 3),),
        lambda x: np.sort(x, None),
    ),
    OpCase(
        "sort_int_empty",
        (O.Sort,),
        O.sort,
        (integers(0, 9, 3, 0, dtype="int8"),),
        np.sort,
        grad=False,
    ),
    OpCase(
        "argsort",
        (O.ArgSort,),
        lambda x: O.argsort(x, 0),
        (integers(0, 3, 9, 2),),
        lambda x: np.argsort(x, 0, kind="stable"),
        grad=False,
    ),
    OpCase(
        "topk",
        (O.TopK,),
        lambda x: O.topk(x, 2, 0),
        (distinct(5, 3),),
        lambda x: -np.sort(-x, 0)[:2],
    ),
    OpCase(
        "topk_smallest",
        (O.TopK,),
        lambda x, k: O.topk_and_argtopk(x, k, idx_dtype="int32"),
        (distinct(3, 5), integers(-3, 0)),
        lambda x, k: (np.sort(x)[:, :-k], np.argsort(x, kind="stable")[:, :-k]),
    ),
    OpCase(
        "argtopk_ties",
        (O.TopK,),
        lambda x: O.argtopk(x, 3),
        (integers(0, 2, 4, 9, dtype="uint8"),),
        lambda x: np.argsort(-x.astype(int), kind="stable")[:, :3],
        grad=False,
    ),
    OpCase(
        "searchsorted",
        (O.SearchSorted,),
        lambda x, v: O.searchsorted(O.sort(x), v, "right"),
        (normal(6), normal(2, 3)),
        lambda x, v: np.searchsorted(np.sort(x), v, "right"),
        grad=False,
    ),
    OpCase(
        "unique",
        (O.Unique,),
        lambda x: O.unique(x, True, True, True),
        (integers(0, 4, 3, 3),),
        lambda x: [np.ravel(r) for r in np.unique(x, True, True, True)],
        grad=False,
    ),
    OpCase("unique_values", (O.Unique,), O.unique, (distinct(5),), np.unique),
]
