"""Programs of ops that a GPU has through other ops, or by kernels for all dtypes: a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.boxes import non_max_suppression
from symdnn.ops.array.cumulative import CumProd, LinearRecurrence
from symdnn.ops.array.filters import LinearFilter
from symdnn.ops.array.join import RepeatIndex
from symdnn.ops.array.reduce import AllTrue, AnyTrue, Prod
from symdnn.ops.array.scatter_reduce import ScatterReduce
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.elementwise.storage import NARROW_FLOATS, Narrow
from symdnn.ops.nn.ctc import CTCLoss
from symdnn.ops.nn.lrn import LRN, LRNGrad
from symdnn.ops.nn.pool import MaxPoolGrad, MaxPoolGradGrad, Pool
from symdnn.ops.nn.softmax import LogSoftmaxGradOfLogits
from symdnn.ops.nn.spatial_transformer import TransformerSamplerTangent
from symdnn.ops.sparse.products import SampledDot, SparseDot

__all__ = ["PROGRAMS", "Program"]

NARROW = ("float16", "bfloat16")
FLOATS = (*NARROW, "float32", "float64")
INTS = ("int8", "uint8", "int32", "uint16", "int64", "uint64")
COMPLEX = ("complex64", "complex128")
Rng = np.random.Generator


@dataclass(frozen=True)
class Program:
    """``build`` of variables for the arrays that ``draw(rng, size, dtype)`` makes of each size."""

    name: str
    build: Callable[..., Any]
    draw: Callable[[Rng, Any, Any], list[Any]]
    dtypes: tuple[str, ...]
    sizes: tuple[Any, ...]
    rtol: float = 0.0

    def arrays(self, size: Any, dtype: str) -> list[Any]:
        """The operands, the same in each run."""
        return self.draw(np.random.default_rng(7), size, numpy_dtype(dtype))

    def variables(self, arrays: list[Any]) -> list[Any]:
        """A variable of unknown sizes for each array."""
        return [TensorType(a.dtype.name, (None,) * a.ndim)(f"v{i}") for i, a in enumerate(arrays)]


def numbers(count: int = 1) -> Callable[[Rng, Any, Any], list[Any]]:
    """``count`` arrays of one shape: integers of few digits, unit complex numbers, floats."""

    def draw(rng: Rng, size: Any, dtype: Any) -> list[Any]:
        return [one(rng, size, dtype) for _ in range(count)]

    return draw


def one(rng: Rng, size: Any, dtype: Any) -> Any:
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -9, 9, size).astype(dtype)
    if dtype.kind == "b":
        return rng.random(size) < 0.3
    if dtype.kind == "c":
        return (rng.uniform(0.9, 1.1, size) * np.exp(6j * rng.random(size))).astype(dtype)
    return rng.standard_normal(size).astype(dtype)


# -- layers ---------------------------------------------------------------------------------------

WINDOWS = {"ws": (3, 2), "stride": (2, 1), "pad": (0, 0)}
PADDED = {"ws": (3, 2), "stride": (2, 2), "pad": (1, 1)}


def pooled(kind: str, options: dict[str, Any]) -> Callable[..., Any]:
    pool = Pool(**options, mode=kind)
    return lambda x: pool(x)


def at_maxima(x: Any, v: Any) -> Any:
    return MaxPoolGradGrad(**WINDOWS)(x, Pool(**WINDOWS)(x), v)


def of_maxima(x: Any) -> Any:
    y = Pool(**PADDED)(x)
    return MaxPoolGrad(**PADDED)(x, y, y)


def sequences(rng: Rng, size: Any, dtype: Any) -> list[Any]:
    steps, batch, classes, width = size
    labels = rng.integers(1, classes, (batch, width))
    labels[rng.random(labels.shape) < 0.3] = -1
    lengths = rng.integers(0, steps + 1, batch)
    return [one(rng, (steps, batch, classes), dtype), labels, lengths]


def images_and_grids(rng: Rng, size: Any, dtype: Any) -> list[Any]:
    grid = rng.uniform(-1.2, 1.2, (size[0], 3, 5, 2)).astype(dtype)
    return [one(rng, size, dtype), grid, one(rng, grid.shape, dtype)]


IMAGES = ((2, 3, 5, 7), (1, 1, 3, 2), (0, 2, 4, 4), (3, 2, 9, 33))
LINES = ((3, 7), (1, 1), (4, 0), (0, 5), (2, 33, 5))
LAYERS = [
    Program("lrn_last_axis", lambda x: LRN(5, 0.5, 0.75, 1.5, axis=x.ndim - 1)(x), numbers(),
            FLOATS, LINES, 1e-5),
    Program("lrn_even", lambda x: LRN(4, 0.5, 0.75, 1.5)(x), numbers(), FLOATS, LINES, 1e-5),
    Program("lrn_grad", lambda x, y, dy: LRNGrad(4, 0.5, 0.75, 1.5)(x, y, dy), numbers(3),
            FLOATS, LINES, 1e-5),
    Program("log_softmax_grad", lambda x, dy: LogSoftmaxGradOfLogits(0)(x, dy), numbers(2),
            FLOATS, ((3, 7), (1, 1), (4, 0), (33, 5)), 1e-5),
    Program("max_pool_grad_grad", at_maxima, numbers(2), (*FLOATS, *INTS), IMAGES),
    Program("max_pool_grad_int", of_maxima, numbers(), INTS, IMAGES),
    *(Program(f"pool_{kind}_{i}", pooled(kind, options), numbers(), INTS, IMAGES)
      for kind in ("max", "sum") for i, options in enumerate((WINDOWS, PADDED))),
    Program("pool_cut", Pool((2, 2), (2, 2), (0, 0), "max", False), numbers(), INTS, IMAGES),
    Program("pool_4d", Pool((2, 1, 2, 2), (1, 1, 2, 1), (0, 0, 1, 0), "average_exc_pad"),
            numbers(), FLOATS, IMAGES, 1e-6),
    Program("pool_4d_grad", lambda x: T.grad(Pool((2, 1, 2, 2), (1, 1, 2, 1), (0, 0, 1, 0),
            "average_inc_pad")(x).sum(), x), numbers(), FLOATS, IMAGES, 1e-6),
    Program("ctc", CTCLoss(), sequences, (*NARROW, "float64"),
            ((5, 3, 4, 2), (1, 1, 2, 1), (9, 2, 5, 4), (3, 2, 3, 0)), 1e-5),
    Program("ctc_costs", lambda *v: CTCLoss()(*v)[0], sequences, FLOATS, ((5, 3, 4, 2),), 1e-5),
    Program("sampler_tangent", TransformerSamplerTangent(), images_and_grids, FLOATS,
            ((2, 3, 5, 7), (1, 1, 2, 2)), 1e-4),
]  # fmt: skip


# -- places that follow from data -----------------------------------------------------------------


def counts(rng: Rng, size: Any, dtype: Any) -> list[Any]:
    return [(rng.random((size, 3))), rng.integers(0, 4, size).astype(dtype)]


def boxes(rng: Rng, size: Any, dtype: Any) -> list[Any]:
    n, classes, count = size
    corners = rng.integers(0, 12, (n, count, 4)).astype(dtype)  # no overlap is near the limit
    return [corners, rng.random((n, classes, count)).astype(dtype)]


PLACES = [
    Program("repeat", lambda x, n: [T.repeat(x, n, axis=0), RepeatIndex()(n, x.shape[0])], counts,
            INTS, (7, 1, 0, 300)),
    *(Program(f"nms_{most}_{centred}", lambda b, s, most=most, centred=centred:
              non_max_suppression(b, s, most, 0.37, 0.2, centred), boxes, FLOATS,
              ((2, 3, 33), (1, 1, 1), (1, 2, 0), (0, 1, 4)))
      for most, centred in ((2, False), (100, False), (100, True))),
]  # fmt: skip


# -- integers, complex numbers, storage -----------------------------------------------------------


def sparse(rng: Rng, size: Any, dtype: Any) -> list[Any]:
    rows, columns, width = size
    mask = rng.random((rows, columns)) < 0.3
    indptr = np.concatenate([[0], np.cumsum(mask.sum(1))]).astype(np.int32)
    indices = np.nonzero(mask)[1].astype(np.int32)
    data, x = one(rng, len(indices), dtype), one(rng, (columns, width), dtype)
    return [data, indices, indptr, x, one(rng, (rows, width), dtype)]


def sparse_products(data: Any, indices: Any, indptr: Any, x: Any, rows: Any) -> list[Any]:
    minor = x.shape[0]
    return [
        SparseDot()(data, indices, indptr, x, minor),
        SparseDot()(data, indices, indptr, x[:, 0], minor),
        SparseDot(transposed=True)(data, indices, indptr, rows, minor),
        SampledDot()(indices, indptr, rows, x),
        SampledDot()(indices, indptr, rows[:, 0], x[:, 0]),
    ]


def powers(rng: Rng, size: Any, dtype: Any) -> list[Any]:
    return [one(rng, size, dtype), rng.integers(0, 9, size).astype(dtype)]


def scattered(rng: Rng, size: Any, dtype: Any) -> list[Any]:
    return [one(rng, size, dtype), one(rng, (9,), dtype), rng.integers(0, size[0], 9)]


def orders(rng: Rng, size: Any, dtype: Any) -> list[Any]:
    return [rng.uniform(-3, 9, size).astype(dtype), rng.uniform(0.1, 60, size).astype(dtype)]


def filters(rng: Rng, size: Any, dtype: Any) -> list[Any]:
    nb, na, *shape = size
    a = np.poly(rng.uniform(-0.7, 0.7, na))[1:] if na else np.zeros(0)
    return [one(rng, tuple(shape), dtype), one(rng, nb, dtype), a.astype(dtype)]


def filtered(x: Any, b: Any, a: Any) -> list[Any]:
    return [LinearFilter(x.ndim - 1)(x, b, a), LinearFilter(0, reverse=True)(x, b, a)]


FILTERS = ((3, 2, 5000), (6, 5, 3, 700), (1, 1, 0), (2, 0, 2, 9), (30, 0, 999), (20, 4, 3, 65),
           (2, 1, 1), (1, 2, 5, 3, 300))  # fmt: skip
DTYPES = [
    Program("power", lambda x, y: x**y, powers, ("int8", "int32", "int64"), LINES),
    Program("power_of_constant", lambda x: [x ** np.int8(3), x ** np.int64(5)], numbers(),
            ("int8", "uint8", "int32", "int64"), LINES),
    *(Program(f"scatter_{kind}", lambda x, y, i, kind=kind: ScatterReduce(("a",), reduce=kind)(
        x, y, i), scattered, ("int8", "uint8", *(["bool"] * (kind != "mul"))), ((7,), (1,)))
      for kind in ("max", "min", "mul")),
    Program("bool_product", lambda x, y: [T.dot(x, y.T), T.batched_dot(x[None], y.T[None])],
            numbers(2), ("bool",), ((3, 7), (1, 1), (4, 0), (33, 5))),
    Program("complex_folds", lambda x: [Prod((0,), False, x.dtype, x.dtype)(x), CumProd(0)(x),
            CumProd(0, True, True)(x), T.cumsum(x, axis=0)], numbers(), COMPLEX,
            ((3, 7), (1, 1), (4, 0), (0, 3), (600, 3), (5000,)), 2e-5),
    Program("complex_recurrence", lambda x, y: [LinearRecurrence(0)(x * 0.9, y),
            LinearRecurrence(x.ndim - 1, True)(x * 0.9, y)], numbers(2), COMPLEX,
            ((3, 7), (1, 1), (4, 0), (600, 3), (5000,)), 2e-5),
    Program("complex_truth", lambda x: [AllTrue((0,))(x), AnyTrue((0,))(x), Cast("int32")(9 * x),
            Cast("bfloat16")(x), Cast("float64")(x)], numbers(), COMPLEX, ((3, 7), (1, 1), (4, 0)),
            1e-6),
    Program("sparse", sparse_products, sparse, (*INTS, "bool", *COMPLEX),
            ((5, 7, 3), (1, 1, 1), (33, 4, 40), (0, 2, 1)), 2e-5),
    *(Program(f"narrow_{kind}", lambda x, kind=kind: [Narrow(kind, s, p)(20 * x) for s in (True,
      False) for p in (("up", "down", "nearest") if "e8m0" in kind else ("up",))], numbers(),
      FLOATS, ((33,), (1, 1), (0,), (5, 300))) for kind in NARROW_FLOATS),
    Program("bessel", lambda v, x: [T.jv(v, x), T.iv(v, x), T.j0(x), T.i1(x)], orders,
            ("float32", "float64"), ((700,), (1, 1), (0, 3), (33, 5)), 1e-5),
    Program("linear_filter", filtered, filters, FLOATS, FILTERS, 2e-5),
]  # fmt: skip

PROGRAMS = [*LAYERS, *PLACES, *DTYPES]
