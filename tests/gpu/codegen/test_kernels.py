"""Kernels with device text of our own at awkward layouts, sizes and values, run on a CPU."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from symdnn.config import config
from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.indexing import index as index_kernels
from symdnn.gpu.kernels import elementwise as elementwise_kernels
from symdnn.gpu.kernels import parts as part_kernels
from symdnn.gpu.kernels import random as random_kernels
from symdnn.gpu.kernels import reduce as reduce_kernels
from symdnn.gpu.kernels import rows as rows_kernels
from symdnn.gpu.kernels import scan as scan_kernels
from symdnn.gpu.kernels import sort as sort_kernels
from symdnn.gpu.kernels.concat_pad import AssertKernel, ListedSumsKernel
from symdnn.gpu.kernels.copy import CopyKernel, guarded_copy, strided_copy
from symdnn.gpu.kernels.labels import LabelKernel, OneHotKernel
from symdnn.gpu.norm import batchnorm as batchnorm_kernels
from symdnn.gpu.norm import norm as norm_kernels
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array import reduce as red
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.argreduce import ArgMax, ArgMin
from symdnn.ops.array.cumulative import (
    CumMax,
    CumMin,
    CumProd,
    CumSum,
    ForwardFill,
    LinearRecurrence,
)
from symdnn.ops.array.filters import LinearFilter
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.array.scatter_reduce import ScatterReduce
from symdnn.ops.array.slices import FULL
from symdnn.ops.array.sort import ArgSort, Sort, TopK
from symdnn.ops.array.take import OneHot
from symdnn.ops.array.view import Copy
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.elementwise import arithmetic as ar
from symdnn.ops.elementwise import comparison as cmp
from symdnn.ops.elementwise.bessel import Iv, Jv
from symdnn.ops.lowered.gathered import ListedSums
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from symdnn.ops.nn.crossentropy import PickLabel, PlaceLabel, SoftmaxCrossentropy
from symdnn.ops.nn.softmax import LogSoftmax, Softmax
from symdnn.ops.random import random as rnd
from symdnn.ops.random.mrg import MrgUniform, spaced
from tests.gpu import emulator
from tests.gpu.emulator import HostEnv, device_copy, on_device
from tests.gpu.recorder import recorded
from tests.gpu.table import assert_close, concrete
from tests.seeded import sampled

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")

ELEMENTWISE = elementwise_kernels.ElementwiseKernel()
REDUCE = reduce_kernels.ReductionKernel()
SCAN = scan_kernels.ScanKernel()
SORT = sort_kernels.SortKernel()
rng = np.random.default_rng(5)


def dense(a: Any) -> Any:
    return device_copy(np.asarray(a))[1]


def compare(kernel: Any, op: Any, *arrays: Any, rtol: float | None = None) -> list[str]:
    """Run a kernel where the arrays lie; the names of what it launched."""
    call = concrete(op, list(arrays))
    assert kernel.refuses(call) is None
    results, env = emulator.run(kernel, call, list(arrays))
    with np.errstate(all="ignore"):
        expected = op.compute(*arrays)
    assert env.error[0] == 0
    for got, want in zip(results, expected, strict=True):
        assert_close(got, want, rtol)
    return env.launched


def draws(*shape: int, dtype: str = "float32") -> Any:
    values = rng.standard_normal(shape) * 10
    return dense(np.abs(values) if dtype.startswith("u") else values).astype(numpy_dtype(dtype))


# -- elementwise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "bool"])
@pytest.mark.parametrize("n", [1, 5, 1003])
def test_flat_arrays_with_a_tail(dtype, n):
    op = cmp.Or() if dtype == "bool" else ar.Add()
    compare(ELEMENTWISE, op, dense(draws(n, dtype=dtype)), dense(draws(n, dtype=dtype)))


LAYOUTS = {
    "row": lambda: (draws(6, 8), draws(1, 8)),
    "column": lambda: (draws(6, 8), draws(6, 1)),
    "one": lambda: (draws(6, 8), draws(1, 1)),
    "channels": lambda: (draws(2, 3, 4, 8), draws(1, 3, 1, 1)),
    "odd inner size": lambda: (draws(6, 7), draws(1, 7)),
    "transposed": lambda: (draws(8, 6).T, draws(6, 8)),
    "permuted": lambda: (draws(2, 3, 4).transpose(2, 0, 1), draws(4, 2, 3)),
    "backwards": lambda: (draws(6, 8)[::-1, ::-1], draws(6, 8)),
    "every second": lambda: (draws(6, 16)[:, ::2], draws(6, 8)),
    "not aligned": lambda: (dense(draws(49))[1:].reshape(6, 8), draws(6, 8)),
    "padded rows": lambda: (draws(6, 12)[:, :8], draws(6, 12)[:, 4:]),
    "scalars": lambda: (np.array(2, np.float32), np.array(3, np.float32)),
    "nothing": lambda: (draws(0, 8), draws(1, 8)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    compare(ELEMENTWISE, ar.Sub(), *LAYOUTS[layout]())


def test_wide_counters(monkeypatch):
    monkeypatch.setattr(elementwise_kernels, "_max_index", lambda *a: 2**40)
    for layout in ("row", "backwards", "transposed"):
        compare(ELEMENTWISE, ar.Mul(), *LAYOUTS[layout]())


def test_in_place():
    x, y = dense(draws(1003)), dense(draws(1003))
    want = x + y
    call = concrete(ar.Add(), [x, y])
    emulator.run(ELEMENTWISE, call, [x, y], out=[x])
    assert_close(x, want)


INTEGERS = {
    ar.IntDiv: [(-7, 2), (7, -2), (5, 0), (-128, -1)],
    ar.Mod: [(-7, 2), (7, -2), (5, 0), (-128, -1)],
    cmp.LeftShift: [(1, 3), (1, 8), (-1, 7), (3, 100)],
    cmp.RightShift: [(-8, 1), (-8, 100), (8, 100), (-1, 7)],
    ar.Mul: [(100, 100), (-128, -1), (16, 8), (1, 1)],
}


@pytest.mark.parametrize("op", INTEGERS, ids=lambda c: c.__name__)
def test_integers_wrap_divide_and_shift_as_numpys(op):
    a, b = (dense(np.array(column, np.int8)) for column in zip(*INTEGERS[op]))
    compare(ELEMENTWISE, op(), a, b)


def test_floats_divide_as_numpys():
    specials = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -7.3, np.inf, -np.inf, np.nan, 1e30])
    a, b = (dense(g.reshape(-1)) for g in np.meshgrid(specials, specials))
    for op in (ar.IntDiv(), ar.Mod(), ar.Maximum(), ar.Minimum(), ar.Pow()):
        compare(ELEMENTWISE, op, a, b)
    compare(ELEMENTWISE, ar.Sgn(), dense(specials))


def test_bessel_functions_near_the_largest_numbers():
    """Far below order 0, and where the series is above all numbers but its first term is small."""
    of_j = [(-195.2, 11.9), (-185.5, 4.25), (-178.6, 7.5), (-60.5, 3.0)]
    of_i = [(-51.17, 708.0), (-28.25, 678.0), (-181.3, 836.0), (40.5, 700.0)]
    for op, pairs in ((Jv(), of_j), (Iv(), of_i)):
        v, x = (dense(np.array(p)) for p in zip(*pairs))
        compare(ELEMENTWISE, op, v, x)


def test_int64_and_uint64_compare_exactly():
    a = dense(np.array([-1, 2**62, 5, 0], np.int64))
    b = dense(np.array([2**64 - 1, 2**62, 4, 0], np.uint64))
    for op in (cmp.Lt(), cmp.Ge(), cmp.Eq(), cmp.Neq()):
        compare(ELEMENTWISE, op, a, b)
        compare(ELEMENTWISE, op, b, a)


def test_halves_round_once():
    x = dense(np.array([1 + 2.0**-11 + 2.0**-40, 65519.99, 65520.0, 1e-8, np.nan]))
    compare(ELEMENTWISE, ar.Cast("float16"), x)
    compare(ELEMENTWISE, ar.Cast("bfloat16"), x.astype(np.float32))


# -- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "complex64", "complex128"])
def test_copy_of_any_dtype(dtype):
    compare(CopyKernel(), Copy(), dense(draws(5, 6).astype(dtype)).T)


TRANSPOSED = {
    "matrix": lambda: draws(50, 70).T,
    "channels last": lambda: draws(2, 33, 5, 7).transpose(0, 2, 3, 1),
    "channels first": lambda: draws(2, 5, 7, 33).transpose(0, 3, 1, 2),
    "inner two of four": lambda: draws(2, 3, 40, 20).transpose(1, 0, 3, 2),
    "wide elements": lambda: draws(17, 40).astype("float64").T,
    "narrow elements": lambda: draws(17, 40).astype("int8").T,
    "by fours": lambda: draws(2, 64, 72).astype("float16").transpose(0, 2, 1),
    "16 bits, odd": lambda: draws(3, 33, 71).astype("float16").transpose(0, 2, 1),
    "read by fours": lambda: draws(70, 68).astype("float16").T,
    "written by fours": lambda: draws(68, 70).astype("float16").T,
    "few rows": lambda: draws(80, 18).T,
    "few columns": lambda: draws(18, 300).T,
    "fewer rows": lambda: draws(80, 16).astype("float16").T,
    "fewer columns": lambda: draws(16, 300).astype("float64").T,
}


@pytest.mark.parametrize("layout", TRANSPOSED)
def test_transposed_copies_go_by_tiles(layout):
    x = TRANSPOSED[layout]()
    x = np.lib.stride_tricks.as_strided(dense(base_of(x)), x.shape, x.strides)
    assert compare(CopyKernel(), Copy(), x) == ["tiles"]


def base_of(x: Any) -> Any:
    """The dense array of which ``x`` is a permuted view."""
    order = sorted(range(x.ndim), key=lambda d: -x.strides[d])
    return x.transpose(order)


def test_small_or_broadcast_sources_are_copied_plainly():
    for x in (draws(50, 4).T, np.broadcast_to(draws(1, 40), (40, 40)), draws(40, 40)[:, ::-1]):
        assert compare(CopyKernel(), Copy(), x) == ["elementwise"]


def test_guarded_copy_writes_nothing_after_an_error():
    x, y = dense(draws(7)), dense(np.zeros(7, np.float32))
    env = HostEnv()
    env._word[0] = 1
    guarded_copy(env, on_device(x), on_device(y))
    assert not y.any()
    env._word[0] = 0
    guarded_copy(env, on_device(x), on_device(y))
    assert_close(y, x)
    strided_copy(env, on_device(x[::-1]), on_device(y))
    assert_close(y, x[::-1])


# -- reductions -----------------------------------------------------------------------------------


def reduced():
    """A sum that is cut into chunks."""
    x = dense(draws(70_000))
    return REDUCE, concrete(red.Sum((0,), False, "float32", "float32"), [x]), [x]


def scanned():
    """A running sum of long lines."""
    x = dense(draws(2, 9000, dtype="float64"))
    return SCAN, concrete(CumSum(1), [x]), [x]


def test_long_sums_are_cut_into_chunks():
    kernel, call, arrays = reduced()
    assert compare(kernel, call.op, *arrays, rtol=1e-5) == ["reduce"]


AXES = [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["dense", "permuted"])
def test_reductions_over_axes(axes, order):
    x = dense(draws(5, 40, 6)).transpose(order)
    compare(REDUCE, red.Sum(axes, False, "float32", "float32"), x, rtol=5e-5)
    compare(REDUCE, red.Max(axes, True), x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint16", "bool"])
def test_accumulators(dtype):
    x = dense(draws(300, dtype=dtype))
    out = {"bool": "int64", "int8": "int64", "uint16": "uint64"}.get(dtype, dtype)
    acc = out if out.endswith("64") else "float32"
    compare(REDUCE, red.Sum((0,), False, out, acc), x)


def test_nan_ties_and_infinities():
    x = dense(np.array([[1, 3, 3, 2], [1, np.nan, 5, np.nan], [-np.inf] * 4, [np.inf] * 4]))
    for op in (ArgMax, ArgMin, red.Max, red.Min, red.LogSumExp):
        compare(REDUCE, op((1,)), x)
    long = dense(np.zeros(20_000))
    long[[7000, 19_000]] = 1
    compare(REDUCE, ArgMax((0,)), long)
    compare(REDUCE, red.LogSumExp((0,)), long)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)], ids=str)
def test_nothing_to_reduce(shape):
    x = draws(*shape)
    for op in (red.Sum((1,), False, "float32", "float32"), red.LogSumExp((1,)), red.AllTrue((1,))):
        compare(REDUCE, op, x)


# -- scans ----------------------------------------------------------------------------------------


def test_long_lines_are_cut_into_chunks():
    kernel, call, arrays = scanned()
    names = compare(kernel, call.op, *arrays, rtol=1e-9)  # sums pass near zero
    assert names == ["totals", "starts", "results"]


@pytest.mark.parametrize("op", [CumSum(1), CumSum(1, True), CumProd(1, False, True),
                                CumProd(1, True, True)], ids=str)  # fmt: skip
@pytest.mark.parametrize("shape", [(3, 1100), (2500, 3), (2, 70, 2)], ids=str)
def test_running_sums_and_products(op, shape):
    x = dense(1 + draws(*shape, dtype="float64") / 5000)
    compare(SCAN, op, x)


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("dtype", sampled(["float32", "bfloat16", "float64", "int8"], every=2))
def test_running_sums_in_vectors_and_without(dtype, reverse):
    """Vectors along lines and of lines, chunks of both; short lines; lines that no vector fits."""
    x = dense(rng.integers(-2, 3, (3, 2560)).astype(numpy_dtype(dtype)))
    compare(SCAN, CumSum(1, reverse), x)
    compare(SCAN, CumSum(1, reverse), x[:, 1:])
    assert len(compare(SCAN, CumSum(0, reverse), dense(x.reshape(240, 32)))) == 1
    assert len(compare(SCAN, CumSum(0, reverse), dense(x.reshape(-1)[:7200].reshape(900, 8)))) == 3
    compare(SCAN, CumSum(1, reverse), dense(x.reshape(2, 15, 256)))
    compare(SCAN, CumSum(1, reverse), dense(x.reshape(768, 10)))


@pytest.mark.parametrize("op", [CumMax(0), CumMin(0, True)], ids=str)
@pytest.mark.parametrize("dtype", sampled(["float32", "float16", "int8", "uint8", "bool"], 2))
def test_running_extremes(op, dtype):
    compare(SCAN, op, draws(9000, dtype=dtype))
    compare(SCAN, op, draws(70, 2500, dtype=dtype)[::2])


@pytest.mark.parametrize("op", [ForwardFill(0), ForwardFill(0, True)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gaps_have_the_last_number(op, dtype):
    x = draws(9000, dtype=dtype)
    x[rng.random(9000) < 0.9] = np.nan
    compare(SCAN, op, x)
    compare(SCAN, op, x.reshape(90, 100))


@pytest.mark.parametrize(
    "op", [ForwardFill(0), ForwardFill(0, True), CumMax(0), CumProd(0)], ids=str
)
@pytest.mark.parametrize("shape", [(90, 300), (20, 9000)], ids=str)
def test_an_operand_across_the_result_is_turned_first(op, shape, monkeypatch):
    monkeypatch.setattr(scan_kernels, "_LEAST_TURNED", 1 << 14)
    x = dense(rng.integers(-1, 2, shape).astype("float32"))
    x[rng.random(shape) < 0.5] = np.nan if isinstance(op, ForwardFill) else 1
    names = compare(SCAN, op, x.T)
    assert names[0] == "tiles"
    assert names[-1] == "results"
    assert compare(SCAN, op, x.T[:50]) == ["results"]


def test_running_extremes_keep_nan_and_begin_with_infinities():
    x = dense(np.full((3, 1100), -np.inf))
    x[1, 500], x[2, 1000] = np.nan, 1
    compare(SCAN, CumMax(1), x)
    compare(SCAN, CumMin(1, True), x)


def test_linear_recurrence_over_chunks():
    a, b = dense(draws(9000, dtype="float64") / 20), dense(draws(9000, dtype="float64"))
    compare(SCAN, LinearRecurrence(0), a, b)
    compare(SCAN, LinearRecurrence(0, True), a, b)


@pytest.mark.parametrize("counts", [(1, 0), (1, 1), (3, 2), (4, 8)])
def test_filters_of_several_coefficients(counts):
    forward, backward = (dense(draws(n, dtype="float64") / 9) for n in counts)
    kernel = scan_kernels.LinearFilterKernel()
    for axis, reverse in ((0, False), (1, True), (2, False)):
        x = dense(draws(3, 70, 5, dtype="float32"))[:, ::-1]
        b, a = forward.astype("float32"), backward.astype("float32")
        compare(kernel, LinearFilter(axis, reverse), x, b, a)


# -- sorting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 33, 1024, 1025, 5000])
def test_sort_is_stable(n):
    x = dense(rng.integers(0, 40, n).astype(np.float32))
    x[:: max(n // 5, 1)] = np.nan
    compare(SORT, Sort(0), x)
    compare(SORT, ArgSort(0), x)


@pytest.mark.parametrize(
    "dtype",
    sampled(
        ["float32", "float16", "bfloat16", "float64", "int8", "uint16", "int32", "int64", "bool"], 3
    ),
)
@pytest.mark.parametrize("held", [False, True])
def test_sorts_by_keys_are_stable(dtype, held, monkeypatch):
    """By digits, and of lines that a block holds; values alone keep all of their bits, too: -0 is
    before 0 there."""
    if held and dtype in ("float64", "int64"):
        pytest.skip("their places do not go with them in 64 bits")
    monkeypatch.setattr(sort_kernels, "_MOST_HELD", 4096 if held else 0)
    monkeypatch.setattr(sort_kernels, "_MIN_RADIX_ELEMENTS", 0)
    monkeypatch.setattr(sort_kernels, "_MERGE_BYTES", 8)
    monkeypatch.setattr(sort_kernels, "_TILES_AHEAD", 2)
    shapes = [((5000,), 0), ((2, 2050), 1), ((4097, 2), 0), ((21_000,), 0)]
    shapes = [((300,), 0), ((2, 2050), 1), ((4096, 2), 0), ((70, 3), 1)] if held else shapes
    for shape, axis in shapes if dtype == "float32" else shapes[:1]:
        x = (rng.standard_normal(shape) * 40).astype(numpy_dtype(dtype))
        flat = x.reshape(-1)
        if dtype.startswith(("f", "b")) and dtype != "bool":
            flat[7::31], flat[9::31] = np.nan, -np.nan
            flat[1::17], flat[2::17], flat[3::400], flat[4::400] = 0.0, -0.0, -np.inf, np.inf
        assert ("sort_rows" if held else "scatter") in compare(SORT, ArgSort(axis), dense(x))
        compare(SORT, Sort(axis), dense(x)[::-1])
        (found,), _ = emulator.run(SORT, concrete(Sort(axis), [x]), [dense(x)])
        assert _rows_of_bits(found, axis) == _rows_of_bits(x, axis)
        zeros = np.signbit(found.astype(np.float64))[(found == 0).nonzero()]
        assert axis or x.ndim > 1 or (np.diff(zeros.astype(int)) <= 0).all()
        if dtype == "float32":
            most = min(2000, shape[axis])
            compare(SORT, TopK(axis, "int64"), dense(x), np.int64(most))
            compare(SORT, TopK(axis, "int64"), dense(x), np.int64(-most))


def _rows_of_bits(x, axis):
    """The sorted bits of each line."""
    bits = np.ascontiguousarray(x).view(f"u{x.itemsize}")
    return np.sort(bits, axis).tobytes()


def test_radix_sort_looks_back_past_tiles_that_are_not_done(monkeypatch):
    """Whatever order blocks begin in, tiles find what is before them."""
    monkeypatch.setattr(sort_kernels, "_TILES_AHEAD", 3)
    monkeypatch.setattr(sort_kernels, "_MIN_RADIX_ELEMENTS", 0)
    whole = rng.integers(-9, 9, 40_000).astype("int16")
    for op, x in itertools.product((Sort(0), ArgSort(0)), (whole, abs(whole))):  # alike bytes
        assert "scatter" in compare(SORT, op, dense(x))
        ((found,), _) = emulator.run(SORT, concrete(op, [x]), [dense(x)])
        env = emulator.HostEnv(SORT.workspace_bytes(concrete(op, [x])), backwards=True)
        again = emulator.device_copy(np.zeros_like(found))
        SORT.bind(concrete(op, [x]))(env, [emulator.on_device(dense(x))], [again[0]])
        assert np.array_equal(found, again[1])


@pytest.mark.parametrize(("length", "dtype"), [
    (2, "int8"), (3, "uint64"), (7, "float64"), (33, "float32"), (100, "uint64"), (129, "bool"),
    (400, "float32"), (1024, "uint64"), (2300, "float32"),
])  # fmt: skip
def test_tiles_of_all_sizes_are_sorted(length, dtype):
    """In a thread, a warp and shared memory, with several pieces in a block."""
    x = rng.integers(0, 30, (9, length)).astype(dtype)
    if dtype.startswith("float"):
        x.reshape(-1)[3::11] = np.nan
    compare(SORT, ArgSort(1), dense(x))
    compare(SORT, Sort(1), dense(x))


def test_sort_of_lines():
    x = dense(rng.integers(-4, 4, (7, 50, 3)).astype(np.int8))
    compare(SORT, ArgSort(1), x)
    compare(SORT, ArgSort(0), x.transpose(1, 2, 0)[::-1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8", "uint16", "int64"])
@pytest.mark.parametrize("k", sampled([1, 50, -50, 256], every=2))
def test_topk_of_long_lines(k, dtype):
    x = dense(rng.standard_normal((2, 5000)) * 40).astype(numpy_dtype(dtype))
    if dtype.startswith(("f", "b")):
        x[0, [7, 4000]], x[1, ::9], x[0, 1], x[0, 9] = np.nan, 0.0, -0.0, -np.inf
    assert compare(SORT, TopK(1, "int64"), dense(x), np.int64(k))[0] == "top_k"
    compare(SORT, TopK(0, "int32"), dense(x).T[::-1], np.int64(k))


def test_topk_of_lines_in_order_and_of_chunks():
    """All that comes is better than what is kept; candidates of chunks meet."""
    x = dense(np.arange(40_000, dtype="float32").reshape(1, -1))
    assert compare(SORT, TopK(1), x, np.int64(20)) == ["top_k", "second"]
    compare(SORT, TopK(1), x, np.int64(-20))
    compare(SORT, TopK(1), dense(np.zeros((1, 3001), "float16")), np.int64(200))


@pytest.mark.parametrize("k", [1, 7, -7])
def test_topk_of_ties_and_nan(k):
    x = dense(rng.integers(0, 5, (3, 1500)).astype(np.float16))
    x[:, 11] = np.nan
    compare(SORT, TopK(1, "int32"), x, np.int64(k))


# -- indices --------------------------------------------------------------------------------------

SCATTERS = [index_kernels.ScatterKernel(), index_kernels.OrderedScatterKernel()]
COMBINE = index_kernels.ReduceKernel()
ROWS, PART = ("a", FULL), (FULL, "a", ("?", None, None))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("kernel", SCATTERS, ids=lambda k: k.name)
def test_repeated_places_add_up(kernel, dtype):
    x, y = (dense((draws(n, 5) / 4).astype(numpy_dtype(dtype))) for n in (6, 40))
    places = dense(rng.integers(-6, 6, 40))
    compare(kernel, AdvancedIncSubtensor(ROWS), x, y, places, rtol=1e-2 if "16" in dtype else None)


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("kernel", SCATTERS, ids=lambda k: k.name)
def test_guarded_sums_write_nothing_after_an_error(kernel, failed):
    """In the memory of the variable; one row's sum goes on over several segments."""
    x, y, places = dense(draws(6, 5)), dense(draws(80, 5)), dense(rng.integers(0, 2, 80))
    op = AdvancedIncSubtensor(ROWS, in_bounds=True, same_bits=isinstance(kernel, type(SCATTERS[1])))
    call = concrete(op, [x, y, places])
    assert kernel.writes_updates(call)
    env = HostEnv(kernel.workspace_bytes(call))
    env._word[0] = failed
    before, want = x.copy(), op.reference(x, y, places)
    inputs = [on_device(a) for a in (x, y, places)]
    kernel.bind_guarded(call)(env, inputs, [inputs[0]])
    assert_close(x, before if failed else want)


@pytest.mark.parametrize("kernel", SCATTERS, ids=lambda k: k.name)
def test_increments_beside_slices(kernel):
    x, y = dense(draws(3, 6, 9, dtype="float64")), dense(draws(3, 2, 4, 7, dtype="float64"))
    places = dense(rng.integers(-6, 6, (2, 4)).astype(np.int16))
    compare(kernel, AdvancedIncSubtensor(PART), x, y, places, np.int64(2))


def lists(size, terms, places):
    """Rows of up to ``terms`` places below ``places``, -1 behind them."""
    rows = np.full((size, terms), -1, np.int32)
    for i in range(size):
        some = rng.integers(0, places, int(rng.integers(0, terms + 1)))
        rows[i, : len(some)] = some
    return dense(rows)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "uint8"])
@pytest.mark.parametrize(
    ("shape", "axes", "sizes"),
    [
        ((2, 6, 7, 8), (1, 2), (4, 5)), ((2, 3, 6, 7), (2, 3), (4, 9)), ((6, 16), (0,), (9,)),
        ((5,), (0,), (7,)), ((3, 4, 5, 2, 6), (1, 2, 3), (2, 3, 4)), ((2, 6, 3), (1,), (0,)),
        ((2, 6, 5), (1,), (4,)),
    ],
)  # fmt: skip
def test_sums_of_listed_elements(dtype, shape, axes, sizes):
    x = dense((draws(*shape) * 3).astype(numpy_dtype(dtype)))
    rows = [lists(n, 3, shape[a]) for a, n in zip(axes, sizes)]
    compare(ListedSumsKernel(), ListedSums(axes), x, *rows, rtol=1e-2 if "16" in dtype else None)


def test_of_values_set_the_last_one_stays():
    x, y = dense(draws(6, 8)), dense(draws(40, 8))
    places = dense(rng.integers(0, 6, 40))
    compare(SCATTERS[0], AdvancedIncSubtensor(ROWS, True), x, y, places)


SETS = {
    "rows": (ROWS, (6, 8), [(40,)]),
    "rows by a matrix": (ROWS, (6, 8), [(5, 8)]),
    "beside slices": (PART, (3, 6, 9), [(2, 4), np.int64(2)]),
    "two arrays": (("a", "a"), (6, 8), [(40,), (40,)]),
    "two arrays that broadcast": (("a", FULL, "a"), (6, 3, 8), [(7, 1), (1, 9)]),
    "arrays with slices between": ((FULL, "a", FULL, "a"), (2, 6, 3, 8), [(20,), (20,)]),
    "one position": ((FULL, FULL, "a", FULL), (2, 3, 7, 4), [(1,)]),
    "a range": ((FULL, FULL, "a", FULL), (2, 3, 7, 4), [np.arange(2, 6)]),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex128", "int8"])
@pytest.mark.parametrize("form", SETS)
def test_sets_of_any_form(form, dtype):
    """The last of several stays, and memory is taken for targets of the index arrays alone."""
    index, shape, given = SETS[form]
    sizes = [n for n, e in zip(shape, index) if e == "a"]
    rest = [
        dense(rng.integers(-sizes[i], sizes[i], g)) if isinstance(g, tuple) else g
        for i, g in enumerate(given)
    ]
    op, x = AdvancedIncSubtensor(index, True), dense(draws(*shape).astype(numpy_dtype(dtype)))
    like = op.getter().reference(x, *rest)
    y = dense((draws(*np.shape(like)) * 9).astype(numpy_dtype(dtype)))
    compare(SCATTERS[0], op, x, y, *rest)
    call = concrete(op, [x, y, *rest])
    assert SCATTERS[0].workspace_bytes(call) == (0 if "one" in form else 8 * np.prod(sizes))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "uint32"])
@pytest.mark.parametrize("reduce", ["max", "min", "mul"])
def test_repeated_places_are_all_combined(reduce, dtype):
    x, y = (dense((draws(n, 8) / 9).astype(numpy_dtype(dtype))) for n in (6, 30))
    places = dense(rng.integers(-6, 6, 30))
    near = 0.1 if dtype == "bfloat16" else 1e-2 if dtype == "float16" else 1e-4
    if "float" in dtype and reduce != "mul":
        y[3, 2] = np.nan
    compare(COMBINE, ScatterReduce(ROWS, reduce=reduce), x, y, places, rtol=near)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_exchanges_are_device_code(dtype):
    x, y = (dense(np.ones((n, 8), dtype)) for n in (6, 30))
    call = concrete(ScatterReduce(ROWS, reduce="min"), [x, y, np.zeros(30, "int64")])
    assert all(compile_cubin(source, (7, 5)) for source in COMBINE.sources(call))


def test_extremes_beside_slices_and_what_has_no_exchange():
    x, y = dense(draws(3, 6, 9, dtype="float64")), dense(draws(3, 2, 4, 7, dtype="float64"))
    places = dense(rng.integers(-6, 6, (2, 4)).astype(np.int16))
    compare(COMBINE, ScatterReduce(PART, reduce="max"), x, y, places, np.int64(2))
    call = concrete(ScatterReduce(ROWS), [np.ones((2, 2), "int8")] * 2 + [np.array([0, 1])])
    assert "no code for int8" in COMBINE.refuses(call)


def test_deterministic_more_orders_float_increments():
    x, y, i = dense(draws(6, 8)), dense(draws(4, 8)), dense(np.array([1, 1, 2, 5]))
    call = concrete(AdvancedIncSubtensor(ROWS), [x, y, i])
    assert SCATTERS[0].refuses(call) is None
    with config.change_flags(deterministic="more"):
        assert "deterministic" in SCATTERS[0].refuses(call)
        assert SCATTERS[1].refuses(call) is None


def test_rows_move_in_16_bytes():
    x, i = dense(draws(9, 8)), dense(np.array([[3, -1], [0, 3]]))
    kernel = index_kernels.GatherKernel()
    compare(kernel, AdvancedSubtensor(ROWS), x, i)
    call = concrete(AdvancedSubtensor(ROWS), [x, i])
    (source, _), *_ = recorded(kernel, call, [x, i], call.op.compute(x, i)).modules
    assert "Vec<u32, 4> x0 = load<4>" in source
    compare(kernel, AdvancedSubtensor(ROWS), dense(draws(9, 7)), i)


def test_an_increment_in_place_does_not_copy():
    x, y = dense(draws(5, 6)), dense(draws(2, 6))
    op = IncSubtensor(((1, 3, None), FULL))
    call = concrete(op, [x, y])
    want = op.reference(x, y)
    kernel = part_kernels.PartKernel()
    assert compare(kernel, op, x, y) == ["elementwise"] * 2
    _, env = emulator.run(kernel, call, [x, y], out=[x])
    assert env.launched == ["elementwise"]
    assert_close(x, want)


# -- errors on data -------------------------------------------------------------------------------


def faulty(kernel: Any, op: Any, arrays: list[Any], good: list[Any]) -> list[int]:
    """The error word after ``arrays``; ``good`` are arrays of the same shapes that are right."""
    call = concrete(op, good)
    _, env = emulator.run(kernel, call, arrays)
    return env.error


@pytest.mark.parametrize("kernel", SCATTERS, ids=lambda k: k.name)
def test_an_index_out_of_range_is_reported(kernel):
    x, y = dense(draws(6, 5)), dense(draws(3, 5))
    bad, good = dense(np.array([1, 6, 2])), dense(np.array([1, 5, 2]))
    op = AdvancedIncSubtensor(ROWS)
    assert faulty(kernel, op, [x, y, bad], [x, y, good]) == [1, 7, 6, 6]
    get = AdvancedSubtensor(ROWS)
    assert faulty(index_kernels.GatherKernel(), get, [x, dense(np.array([-7]))], [x, good[:1]]) == [
        1, 7, -7, 6,
    ]  # fmt: skip


def test_a_label_that_is_no_class_is_reported():
    x, bad, good = dense(draws(3, 4)), dense(np.array([0, 4, 1])), dense(np.array([0, 3, 1]))
    value, four = dense(draws(3)), np.int64(4)
    labels = LabelKernel()
    assert faulty(labels, PickLabel(1), [x, bad], [x, good]) == [3, 7, 4, 4]
    place = PlaceLabel(1, 4)
    assert faulty(labels, place, [value, bad, four], [value, good, four])[0] == 3
    loss = SoftmaxCrossentropy(1)
    assert faulty(rows_kernels.RowKernel(), loss, [x, bad], [x, good]) == [3, 7, 4, 4]
    hot = OneHot("float32", 4)
    assert faulty(OneHotKernel(), hot, [dense(-good), four], [good, four])[:2] == [3, 7]


def test_an_assertion_is_reported():
    x, good = dense(draws(3)), dense(np.ones((2, 2), bool))
    bad = dense(np.array([[True, False], [True, True]])).T
    assert faulty(AssertKernel(), Assert("no"), [x, good, bad], [x, good, good]) == [2, 7, 1, 0]


def test_bad_weights_and_bounds_are_reported():
    state, dims = dense(np.array([3, 4], np.uint64)), np.int64(2)
    good, bad = dense(np.array([[1.0, 2], [1, 1]])), dense(np.array([[1.0, 2], [0, 0]]))
    op = rnd.RandomCategorical("int64", (None,))
    assert faulty(random_kernels.ClassKernel(), op, [state, bad, dims], [state, good, dims])[0] == 5
    low, high = dense(np.array([1, 5])), dense(np.array([4, 9]))
    op = rnd.RandomIntegers("int64", (None,))
    kernel = random_kernels.IntegersKernel()
    assert faulty(kernel, op, [state, high, low, dims], [state, low, high, dims])[0] == 4


# -- random ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("counter", [0, 1, 2, 3, 2**32 - 1, 2**63 + 5, 2**64 - 3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_draws_from_any_counter(counter, dtype):
    state, n = dense(np.array([2**63 + 17, counter], np.uint64)), np.int64(23)
    for op in (
        rnd.RandomUniform(dtype, (None,)),
        rnd.RandomNormal(dtype, (None,)),
        rnd.RandomNormal(dtype, (None,), True),
    ):
        exact = isinstance(op, rnd.RandomUniform)
        compare(random_kernels.DrawKernel(), op, state, n, rtol=0 if exact else None)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("count", [0, 3, 700, 1500])
def test_streams_that_are_drawn_in_turn(count, dtype):
    state = dense(spaced(np.array([1, 2, 3, 4, 5, 6], np.int32), 700, 72))
    op = MrgUniform(dtype, (None,))
    compare(random_kernels.MrgKernel(), op, state, np.int64(count), rtol=0)


def test_permutations_of_rows():
    state = dense(np.array([5, 9], np.uint64))
    op = rnd.RandomPermutation("int32", (None, None))
    compare(random_kernels.OrderKernel(), op, state, np.int64(3), np.int64(1030))


# -- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [Softmax, LogSoftmax])
@pytest.mark.parametrize(("shape", "axis"), [((3, 3000), 1), ((70, 40), 0), ((5, 1), 1)])
def test_softmax_of_long_and_of_strided_rows(op, shape, axis):
    x = dense(draws(*shape))
    x[0, 0] = -np.inf
    compare(rows_kernels.RowKernel(), op(axis), x, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_norms_of_large_groups(dtype):
    x, dy = dense(draws(3, 20_000, dtype=dtype)), dense(draws(3, 20_000, dtype=dtype))
    work = "float32" if dtype == "float16" else dtype
    gamma, beta = dense(draws(1, 20_000, dtype=work)), dense(draws(1, 20_000, dtype=work))
    rtol = 4e-3 if dtype == "float16" else 1e-10
    names = compare(
        batchnorm_kernels.BatchNormKernel(), LayerNorm((1,), 1e-5), x, gamma, beta, rtol=rtol
    )
    assert names[0] == "reduce"
    _, mean, invstd = (dense(a) for a in LayerNorm((1,), 1e-5).reference(x, gamma, beta))
    kernel, op = norm_kernels.NormGradKernel(), LayerNormGrad((1,), 1e-5)
    compare(kernel, op, x, dy, gamma, mean, invstd, rtol=rtol)


# -- launches -------------------------------------------------------------------------------------


def test_what_is_enqueued_is_made_once_for_each_layout(monkeypatch):
    x, y, z = (dense(draws(8)) for _ in range(3))
    call = concrete(ar.Add(), [x, y])
    launch = ELEMENTWISE.bind(call)
    env = HostEnv()
    made = []
    monkeypatch.setattr(
        ELEMENTWISE,
        "program",
        lambda c: (made.append(c), elementwise_kernels.meaning(c.op, ("float32",) * 2))[1],
    )
    arrays = [on_device(a) for a in (x, y, z)]
    for _ in range(3):
        launch(env, arrays[:2], arrays[2:])
    launch(env, [on_device(y), on_device(y)], [on_device(z)])  # other addresses, another alias
    assert_close(z, y + y)
    assert len(made) == 2
    launch(env, arrays[:2], arrays[2:])
    assert_close(z, x + y)
    assert len(made) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(
    ("rows", "kinds"), [(31, 5), (32, 1), (33, 1), (500, 1), (500, 3), (200, 90)]
)
def test_runs_of_equal_rows_across_segments(rows, kinds, dtype):
    x, y = (dense((draws(n, 24) / 8).astype(numpy_dtype(dtype))) for n in (90, rows))
    places = dense(rng.integers(0, kinds, rows) * (89 // kinds))
    found = compare(
        SCATTERS[1], AdvancedIncSubtensor(ROWS), x, y, places, rtol=2e-2 if "16" in dtype else 1e-4
    )
    assert ("joined_runs" in found) == (rows > 32)


def test_large_tables_of_16_bits_are_added_in_order():
    kinds = ("float32", "bfloat16")
    shapes = (20_000, 768), (64, 768)
    places = np.zeros(64, np.int64)
    calls = {
        d: concrete(
            AdvancedIncSubtensor(ROWS), [*(np.zeros(s, numpy_dtype(d)) for s in shapes), places]
        )
        for d in kinds
    }
    assert SCATTERS[0].refuses(calls["float32"]) is None
    assert "sort" in SCATTERS[0].refuses(calls["bfloat16"])
    assert SCATTERS[1].refuses(calls["bfloat16"]) is None
