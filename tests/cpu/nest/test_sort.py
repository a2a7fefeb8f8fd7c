"""Sorts of lines by compiled loops around NumPy's sort, against the references."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.nest import line_kernels, numpy_sort
from symdnn.cpu.nest.line_kernels import SortKernel
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.sort import ArgSort, Sort
from tests.cpu.harness import call_of, compiled, launched

pytestmark = [
    *compiled, pytest.mark.skipif(bool(numpy_sort.problem()), reason=str(numpy_sort.problem()))
]  # fmt: skip

KERNEL = SortKernel()
DTYPES = [
    "float32", "float64", "float16", "bfloat16", "bool", "int8", "uint8", "int16", "uint16",
    "int32", "uint32", "int64", "uint64",
]  # fmt: skip


def agree(x, axis):
    """Values and indices are the references', with one thread and with three."""
    for op in (Sort(axis), ArgSort(axis)):
        wanted = op.reference(x)
        for count in (1, 3):
            with config.change_flags(**{"openmp.threads": count}):
                result = TensorType(wanted.dtype.name, wanted.shape)
                (found,) = launched(KERNEL, call_of(op, (x,), result), (x,))
            narrow = x.dtype.name == "bfloat16" and isinstance(op, Sort)  # NumPy knows no NaN of it
            pair = [v.astype("float32") if narrow else v for v in (found, wanted)]
            np.testing.assert_array_equal(*pair)


def drawn(rng, dtype, shape):
    """Numbers with ties, NaN, infinities and zeros of both signs where there are such."""
    x = rng.normal(size=shape) * 20
    if TensorType(dtype).is_float:
        x = np.where(rng.random(shape) < 0.1, np.nan, x)
        x = np.where(rng.random(shape) < 0.1, rng.choice([0.0, -0.0, np.inf, -np.inf], shape), x)
        return x.astype(numpy_dtype(dtype))
    info = np.iinfo(dtype) if dtype != "bool" else np.iinfo("int8")
    some = rng.integers(info.min, info.max, shape, numpy_dtype(dtype) if dtype != "bool" else "i1")
    return np.where(rng.random(shape) < 0.5, some, some[..., :1]).astype(numpy_dtype(dtype))


@pytest.mark.parametrize(
    ("dtype", "length"),
    [*(("float32", n) for n in range(2, 17)), *((d, n) for d in DTYPES for n in (3, 8, 9))],
)
def test_short_lines(rng, dtype, length):
    """Those of up to 8 elements that follow one another, and of up to 16 side by side."""
    x = drawn(rng, dtype, (2500, length))
    agree(x, 1)
    agree(np.ascontiguousarray(x.T), 0)
    agree(np.asfortranarray(x[:99]), 1)
    agree(x[::2], 1)
    agree(x[:, ::-1], 1)
    if dtype == "float32":
        every = np.array(np.meshgrid(*[[0.0, 1.0]] * length)).reshape(length, -1).astype(dtype)
        agree(every, 0)  # a network that sorts these sorts all
        agree(np.where(every == 1, np.float32(np.nan), every), 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_strides(rng, dtype):
    x = drawn(rng, dtype, (9, 5, 70))
    for axis in range(3):
        agree(x, axis)
    agree(np.asfortranarray(x), 2)
    agree(np.asfortranarray(x), 0)
    agree(x[::-2, :, ::-3], 2)
    agree(np.broadcast_to(x[:, :1], x.shape), 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(70, 3, 37), (8, 9), (800, 17), (3, 65, 8)])
def test_neighbouring_lines_are_turned(rng, dtype, shape):
    x, axis = drawn(rng, dtype, shape), len(shape) - 2 if len(shape) == 2 else 0
    agree(x, axis)
    agree(np.swapaxes(x, 0, 1), 1 - axis)
    plans = []
    real = line_kernels.threads.kernel
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_kernels.threads, "kernel", lambda *a: plans.append(a[1]) or real(*a))
        agree(np.ascontiguousarray(x), 1)
    assert any(p.band for p in plans) == (len(shape) == 3 and shape[1] >= 8)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16"])
def test_narrow_integers_are_counted(rng, dtype):
    assert numpy_sort.counts(dtype, 192)
    assert numpy_sort.sort_address(dtype, 5000) != numpy_sort.sort_address(dtype, 5)
    assert numpy_sort.argsort_address(dtype, 5000) != numpy_sort.argsort_address(dtype, 5)
    for n in (191, 192, 767, 768, 5000):
        agree(drawn(rng, dtype, (4, n)), 1)
        agree(drawn(rng, dtype, (4, 2 * n))[:, ::2], 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint32"])
@pytest.mark.parametrize("n", [1, 2, 16, 257, 20000])
def test_lengths(rng, dtype, n):
    agree(drawn(rng, dtype, (3, n)), 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint64"])
def test_one_value_and_order(dtype):
    for x in (np.full(5000, 3), np.arange(5000) % 7, np.arange(5000)[::-1], np.arange(5000)):
        agree(x.astype(dtype), 0)
    agree(np.full((2, 3000), np.nan).astype("float64"), 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("n", [40, 191, 192, 1024])
def test_lines_whose_places_span_few_bits_have_few_digits(rng, dtype, n):
    """Also where all places share low bits, as those of whole numbers in floats do."""
    number = numpy_dtype(dtype)
    spans = [1, 3, 255, 256, 65535, 65536, 65537, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 62]
    for low in (-7, 0, 12345):
        for span in spans[: None if number.itemsize == 8 else 7]:
            x = rng.integers(0, span + 1, (2, n)) + (low if dtype != "uint64" else 50)
            x[:, 0] += span - x[0, 1]
            agree(x.astype(number), 1)
            agree((x // 64 * 64).astype(number)[:, ::-1], 1)
    if TensorType(dtype).is_float:
        x = np.maximum(rng.normal(size=(2, n)), 0)
        x[1, 3:9] = np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0
        agree(x.astype(number), 1)
        agree(np.sort(x, 1).astype(number), 1)


@pytest.mark.parametrize(("dtype", "n", "span"), [
    ("int64", 191, 0), ("float32", 192, 65535), ("float64", 1024, -1),
])  # fmt: skip
def test_long_lines_are_counted_by_digits(rng, monkeypatch, dtype, n, span):
    """The plan of such a line has NumPy's stable sort of 16 bits, whatever its dtype."""
    plans = []
    real = line_kernels.threads.kernel
    monkeypatch.setattr(line_kernels.threads, "kernel", lambda *a: plans.append(a[1]) or real(*a))
    agree(drawn(rng, dtype, (3, n)), 1)
    assert {p.digits for p in plans if p.how == "indices"} == {n >= 192}
    assert numpy_sort.span_by_digits(n) == span


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint32", "int64", "uint64"])
def test_values_of_long_lines_are_sorted_by_digits(rng, monkeypatch, dtype):
    """Also in lines that are turned, in order, of one value, and of few bits: short ones here."""
    plans = []
    monkeypatch.setattr(numpy_sort, "sorts_slowly", lambda: True)
    real = line_kernels.threads.kernel
    monkeypatch.setattr(line_kernels.threads, "kernel", lambda *a: plans.append(a[1]) or real(*a))
    agree(drawn(rng, dtype, (1024,)), 0)
    agree(drawn(rng, dtype, (1023,)), 0)
    assert {p.how for p in plans} == {"values", "radix", "indices"}
    plans.clear()
    monkeypatch.setattr(numpy_sort, "sorts_slowly", lambda: False)
    agree(drawn(rng, dtype, (1024,)), 0)
    assert {p.how for p in plans} == {"values", "indices"}
    monkeypatch.setattr(numpy_sort, "sorts_slowly", lambda: True)
    monkeypatch.setattr(line_kernels, "_RADIX_LENGTHS", range(1, 1 << 24))
    x = drawn(rng, dtype, (9, 5, 70))
    for axis in range(3):
        agree(x, axis)
        agree(np.asfortranarray(x)[::-2, :, ::-3], axis)
    agree(np.sort(x, 2), 2)
    agree(np.sort(x, 2)[:, :, ::-1], 2)
    for n in (1, 2, 255, 256, 257, 3001):
        agree(drawn(rng, dtype, (3, n)), 1)
        agree(np.full((2, n), 7, dtype), 1)
        agree((rng.integers(0, 3, (2, n)) << 30 >> rng.integers(0, 31)).astype(dtype), 1)
        agree(np.arange(n).astype(dtype) * 64, 0)


def test_zeros_keep_their_signs_and_nan_is_last(rng, monkeypatch):
    monkeypatch.setattr(numpy_sort, "sorts_slowly", lambda: True)
    x = rng.permutation([0.0] * 700 + [-0.0] * 800 + [np.nan] * 5 + [-np.nan] * 6 + [-1, 1])
    for dtype in ("float32", "float64"):
        (got,) = launched(KERNEL, call_of(Sort(0), (x.astype(dtype),)), (x.astype(dtype),))
        assert np.isnan(got[-11:]).all()
        assert (np.signbit(got[:-11]).sum(), got[-12]) == (801, 1)


def test_no_elements_and_other_dtypes_are_refused():
    for x in (np.zeros((0, 4)), np.zeros((4, 0)), np.zeros((40, 400), "complex64")):
        call = call_of(Sort(1), (x,))
        assert KERNEL.refuses(call)


def test_a_function_runs_it_and_its_gradient(rng):
    x, w = T.fmatrix("x"), T.fmatrix("w")
    y = T.sort(x, 0)
    outs = [y, T.argsort(x, 1), symdnn.grad((y * w).sum(), x)]
    f = symdnn.function([x, w], outs, mode=symdnn.Mode(target="cpu"))
    data, weights = rng.normal(size=(2, 100, 60)).astype("float32")
    for _ in range(3):
        values, indices, gradient = f(data, weights)
    np.testing.assert_array_equal(values, np.sort(data, 0))
    np.testing.assert_array_equal(indices, np.argsort(data, 1))
    rank = np.argsort(np.argsort(data, 0), 0)
    np.testing.assert_array_equal(gradient, np.take_along_axis(weights, rank, 0))
    assert "llvm.sort" in str(f.lowering_report())
