"""Sums and products of rows, some of them at a time, against NumPy; programs as vectors."""

import numpy as np
import pytest

from symdnn.config import config
from symdnn.cpu.ir.vector_printer_ir import has_vectors
from symdnn.cpu.nest.kernels import reduction_block
from symdnn.cpu.nest.schedule import BUNDLE, scheduled
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.reduce import Max, Prod, Sum
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.nest.of_ops import reduction_fold, reduction_nest
from tests.cpu.harness import compiled

pytestmark = compiled

DTYPES = ["float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"]


def acc_of(dtype):
    return dtype if dtype.startswith("float") else "int64"


def folded(op, shape, axes, arrays, counts=(1, 2, 5)):
    """The results of an op on arrays that broadcast, the same for any number of threads."""
    fold = reduction_fold(op, tuple(a.dtype.name for a in arrays), "int32", True)
    kept = [n for d, n in enumerate(shape) if d not in axes]
    found = set()
    for count in counts:
        outs = [np.full(kept, 7, d) for d in fold.result_dtypes]
        with config.change_flags(**{"openmp.threads": count}):
            reduction_block(fold, shape, axes, arrays, outs).run([*arrays, *outs])
        found.add(b"".join(o.tobytes() for o in outs))
    assert len(found) == 1
    return outs


def schedule_of(op, x, axes):
    fold = reduction_fold(op, (x.dtype.name,), "int32", True)
    y = np.empty([n for d, n in enumerate(x.shape) if d not in axes], fold.result_dtypes[0])
    reads, writes = ([(a.dtype.name, a.strides)] for a in (x, y))
    return scheduled(reduction_nest(fold, x.shape, axes, reads, writes).merged(), 1)[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [8, 9, 15, 16, 17, 31, 33, 100, 2048, 2049, 3079])
def test_rows(rng, dtype, length):
    """Rows of any length, dense or some bytes apart, backwards; bundles that share rows."""
    acc = acc_of(dtype)
    x = (rng.normal(size=(BUNDLE + 3, length + 5)) * 9).astype(dtype)
    for some in (x[:, :length], x[::-1, 2 : length + 2], np.ascontiguousarray(x[:4, :length])):
        brief = acc == "int64" and dtype not in ("int32", "int64") and length >= 128
        shape = schedule_of(Sum((1,), False, acc, acc), some, (1,)).shape
        assert shape == ("rows" if brief else "bundles")
        (total,) = folded(Sum((1,), False, acc, acc), some.shape, (1,), [some])
        wide = some.astype("float64" if acc != "int64" else acc)
        np.testing.assert_allclose(total, wide.sum(1), rtol=1e-6, atol=1e-5)
        ones = np.where(some > 9, some, numpy_dtype(dtype).type(1))
        (product,) = folded(Prod((1,), False, acc, acc), some.shape, (1,), [ones])
        with np.errstate(all="ignore"):
            wanted = ones.astype(wide.dtype).prod(1).astype(acc)
        np.testing.assert_allclose(product, wanted, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 11])
def test_few_rows_and_short_ones(rng, rows, length):
    x = rng.normal(size=(rows, length)).astype("float64")
    fits = rows >= BUNDLE and length >= 8
    if length:
        op = Sum((1,), False, "float64", "float64")
        assert (schedule_of(op, x, (1,)).shape == "bundles") == fits
        np.testing.assert_allclose(folded(op, x.shape, (1,), [x])[0], x.sum(1), rtol=1e-12)


@pytest.mark.parametrize("columns", [2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
@pytest.mark.parametrize("length", [4, 5, 10, 33, 1500])
def test_columns_beside_each_other(rng, columns, dtype, length):
    acc = acc_of(dtype)
    x = (rng.normal(size=(7, length, columns)) * 9).astype(dtype)
    (total,) = folded(Sum((1,), False, acc, acc), x.shape, (1,), [x])
    wide = x.astype("float64" if acc != "int64" else acc).sum(1)
    np.testing.assert_allclose(total, wide, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("axes", [(0, 2), (2,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("shape", [(3, 6, 11), (5, 4, 8), (2, 9, 130), (11, 5, 2051)], ids=str)
def test_lines_of_several_axes(rng, axes, shape):
    x = rng.normal(size=(*shape[:2], shape[2] + 3)).astype("float32")[..., : shape[2]]
    (total,) = folded(Sum(axes, False, "float32", "float32"), shape, axes, [x])
    wide = x.astype("float64")
    limit = np.abs(wide).sum(axes) * 1.2e-7
    assert np.all(np.abs(total - wide.sum(axes)) <= limit)


@pytest.mark.parametrize("length", [8, 13, 40])
def test_what_is_no_number_stays_in_its_row(length):
    """Also at places that are read twice, of rows before and behind."""
    for value in (np.nan, np.inf, -np.inf):
        for at in range(length):
            x = np.ones((6, length), "float32")
            x[::2, at] = value
            (total,) = folded(Sum((1,), False, "float32", "float32"), x.shape, (1,), [x], (1,))
            np.testing.assert_array_equal(total, x.sum(1))


@pytest.mark.parametrize("length", [8, 21, 64, 1000])
def test_the_order_of_additions_follows_from_the_length_alone(rng, length):
    """So bits are those of any processor: the last elements first, then eight at a time."""
    x = rng.normal(size=(5, length)) * 10.0 ** rng.integers(-8, 8, (5, length))
    (total,) = folded(Sum((1,), False, "float64", "float64"), x.shape, (1,), [x])
    whole = (length - 1) // 8 * 8
    lanes = np.full((5, 8), -0.0)
    lanes[:, 8 - (length - whole) :] = x[:, whole:]
    for i in range(0, whole, 8):
        lanes = lanes + x[:, i : i + 8]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    np.testing.assert_array_equal(total, lanes[:, 0])


@pytest.mark.parametrize(
    "shape", [(7, 8), (5, 33), (6, 4, 1027), (9, 3000), (4, 512), (5, 3, 700)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_rows_that_are_outside_of_the_caches_have_the_same_bits(rng, monkeypatch, dtype, shape):
    """Those that are read in order, and long ones, of which the next are fetched meanwhile."""
    x = (rng.normal(size=shape) * 9).astype(numpy_dtype(dtype))
    axes, acc = tuple(range(1, x.ndim)), "float64" if dtype == "float64" else "float32"
    op = Sum(axes, False, acc, acc)
    (together,) = folded(op, shape, axes, [x])
    assert not schedule_of(op, x, axes).in_turn
    assert not schedule_of(op, x, axes).fetches
    monkeypatch.setattr("symdnn.cpu.nest.schedule._UNCACHED_BYTES", 1)
    found, long = schedule_of(op, x, axes), dtype != "float64" and x[0].size >= 512
    assert (found.shape, found.in_turn, found.fetches) == ("bundles", not long, long)
    np.testing.assert_array_equal(folded(op, shape, axes, [x])[0], together)


@pytest.mark.parametrize("shape", [(5, 127), (5, 128), (3, 300), (4, 8192), (2, 8193), (1, 20001)])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16"])
def test_parts_of_rows_are_added_in_fewer_bits(rng, dtype, shape):
    """Which hold the sum of as many of the least and of the largest numbers, to the last bit."""
    limits = (False, True)
    if dtype != "bool":
        limits = (np.iinfo(dtype).min, np.iinfo(dtype).max)
    wide = "uint64" if dtype[0] == "u" else "int64"
    for low, high in (limits, limits[:1] * 2, limits[1:] * 2):
        x = np.where(rng.random(shape) > 0.5, low, high).astype(dtype)
        op = Sum((1,), False, wide, wide)
        (total,) = folded(op, shape, (1,), [x])
        np.testing.assert_array_equal(total, x.sum(1, dtype=wide), strict=True)
    assert schedule_of(op, x, (1,)).shape == ("rows" if shape[1] >= 128 else "bundles")


def test_programs_several_sums_and_what_all_of_a_row_have(rng):
    b = Builder(["float32", "float32", "bool"])
    x, y, chosen = (b.input(i) for i in range(3))
    apart = x - y
    program = b.program([apart * apart, b.select(chosen, x, 0), b.cast(chosen, "float32") * y])
    op = FusedReduce(program, (Sum((1,), False, "float32", "float32"),) * 3)
    arrays = [
        rng.normal(size=(11, 45)).astype("float32"), rng.normal(size=(11, 1)).astype("float32"),
        rng.random((11, 45)) > 0.5,
    ]  # fmt: skip
    arrays[0][~arrays[2]] = np.where(rng.random((~arrays[2]).sum()) > 0.5, 1e30, 2)
    given = [np.broadcast_to(a, (11, 45)) for a in arrays]
    wide = [a.astype("float64") if a.dtype == "f" else a for a in arrays]
    apart = wide[0] - wide[1]
    wanted = [
        (apart * apart).sum(1),
        np.where(wide[2], wide[0], 0).sum(1),
        (wide[2] * wide[1]).sum(1),
    ]
    with np.errstate(over="ignore"):
        found = folded(op, (11, 45), (1,), given)
        for total, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(total, want.astype("float32"), rtol=1e-5, atol=1e-5)


PROGRAMS = {
    "neg": lambda b, x: b.call("neg", x), "abs": lambda b, x: b.call("abs", x),
    "min, max": lambda b, x: b.call("max", b.call("min", x, 2), -1),
    "mul, sub, add": lambda b, x: x * x - x + 3,
    "lt": lambda b, x: b.select(b.call("lt", x, 1), x, 2),
    "le": lambda b, x: b.select(b.call("le", x, 1), 0, x),
    "eq, ne": lambda b, x: b.select(
        b.call("or", b.call("eq", x, 0), b.call("ne", x, x)), 1, x),
    "and, not": lambda b, x: b.select(
        b.call("and", b.call("not", b.call("lt", x, 0)), b.call("le", x, 3)), x, 1),
    "xor": lambda b, x: b.select(b.call("xor", b.call("lt", x, 0), b.call("le", x, 3)), x, -1),
    "to bool": lambda b, x: b.cast(b.cast(x, "bool"), x.dtype),
    "div, sqrt": lambda b, x: b.call("sqrt", b.call("abs", x) / 3),
    "tests": lambda b, x: b.select(
        b.call("isnan", x), 1, b.select(b.call("isinf", x), 2, b.select(
            b.call("isfinite", x), x, 9))),
}  # fmt: skip


OF_FLOATS = {"div, sqrt"}
WHOLE = ["int8", "uint8", "int32", "int64"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in PROGRAMS for d in ["float32", "float64", *WHOLE * (n not in OF_FLOATS)]],
)
def test_each_operation_on_vectors(rng, name, dtype):
    b = Builder([dtype])
    program = b.program([PROGRAMS[name](b, b.input(0))])
    assert has_vectors(program)
    x = (rng.normal(size=(5, 27)) * 3).astype(dtype)
    if dtype[0] == "f":
        x[0, 3], x[1, 4], x[2, 26] = np.nan, np.inf, -np.inf
    op = FusedReduce(program, (Sum((1,), False, acc_of(dtype), acc_of(dtype)),))
    (total,) = folded(op, x.shape, (1,), [x], (1,))
    with np.errstate(all="ignore"):
        wanted = program.evaluate(x)[0].astype("float64" if dtype[0] == "f" else "int64").sum(1)
    np.testing.assert_allclose(total, wanted, rtol=1e-5)


def test_what_has_no_vectors_is_left_to_loops_of_scalars():
    b = Builder(["float32"])
    assert not has_vectors(b.program([b.call("exp", b.input(0))]))
    assert not has_vectors(b.program([b.cast(b.input(0), "int32")]))
    n = Builder(["int32"])
    assert not has_vectors(n.program([n.call("mod", n.input(0), n.input(0))]))
    h = Builder(["float16"])
    assert not has_vectors(h.program([h.call("exp", h.cast(h.input(0), "float32"))]))
    assert has_vectors(h.program([h.cast(h.input(0), "float32")]))
    assert has_vectors(b.program([b.cast(b.input(0), "float64") + 1]))
    x = np.zeros((9, 40), "float32")
    assert schedule_of(Max((1,)), x, (1,)).shape == "rows"
    assert schedule_of(Sum((1,), False, "float32", "float32"), x[:, ::2], (1,)).shape == "rows"
    long = np.zeros((9, 1 << 16), "float32")
    assert schedule_of(Sum((1,), False, "float32", "float32"), long, (1,)).shape == "rows"
