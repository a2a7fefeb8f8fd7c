"""How exact sums are: float32 is added up in float64 on a CPU, by pairs in float32 on a GPU."""

import re

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.nest.nest_ir import nest_ir
from symdnn.cpu.nest.schedule import scheduled
from symdnn.gpu.kernels import reduce as reduce_kernels
from symdnn.ops.array.reduce import Prod, Sum
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.nest.of_ops import reduction_fold, reduction_nest
from tests.gpu import emulator
from tests.gpu.table import concrete

CPU = symdnn.Mode(target="cpu")
EPS32, EPS64 = 2.0**-24, 2.0**-53


def hard(rng, shape):
    """Numbers of very different sizes that nearly cancel."""
    a = rng.normal(size=shape) * 10.0 ** rng.integers(-6, 7, shape)
    a = np.concatenate([a, -a * (1 + 1e-6 * rng.normal(size=shape))], axis=-1)
    return rng.permuted(a, axis=-1).astype("f4")


def assert_bounded(found, a, axis):
    """|error| <= half a unit of the result + n eps64 sum |x|, the bound that docs/cpu.md gives."""
    wide = a.astype(np.longdouble)
    exact, size = wide.sum(axis), np.abs(wide).sum(axis)
    n = a.size // max(np.asarray(exact).size, 1)
    assert (np.abs(found - exact) <= EPS32 * np.abs(exact) * 1.01 + n * EPS64 * size).all()


@pytest.mark.parametrize("compiled", ["always", "never", "auto"])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("shape", [(1, 2), (3, 7), (40, 3000), (2500, 30), (2, 70001)])
def test_sums_of_float32_are_added_up_in_float64(shape, axis, compiled, rng):
    x = T.fmatrix("x")
    a = hard(rng, shape)
    if axis == 0:
        a = np.ascontiguousarray(a.T)
    for v in (a, np.asfortranarray(a)):
        with config.change_flags({"cpu.compile": compiled}):
            f = symdnn.function([x], [x.sum(axis), (x * np.float32(0.5)).sum(axis)], mode=CPU)
            whole, scaled = f(v)
        assert whole.dtype == "float32"
        assert_bounded(whole, v, axis)
        assert_bounded(scaled, v * np.float32(0.5), axis)


WHOLE = [
    ((1,), 0), ((63,), 0), ((100_003,), 0), ((3, 37), 1), ((40, 1001), 1), ((1001, 40), 0),
    ((5, 2), 0), ((9, 31, 33), (0, 2)), ((9, 31, 33), 1), ((700, 3), 0), ((20_000, 7), 0),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), WHOLE, ids=str)
def test_sums_that_float64_holds_are_exact(rng, shape, axis):
    """However operands lie, and whatever the number of threads: also of complex numbers."""
    a = rng.integers(-(2**24), 2**24, (*shape[:-1], 2 * shape[-1])).astype("f4")
    others = (a[..., ::2], a[..., ::-2], np.asfortranarray(a[..., 1::2]))
    for x in (*others, others[0] + 1j * others[1]):
        v = T.TensorType(x.dtype.name, (None,) * x.ndim)()
        wide = x.astype("c16" if x.dtype.kind == "c" else "f8")
        wanted = [wide.sum(axis), (wide + 1).sum(axis)]
        for count in (1, 2):
            with config.change_flags({"openmp.threads": count, "cpu.compile": "always"}):
                f = symdnn.function([v], [v.sum(axis), (v + 1).sum(axis)], mode=CPU)
                for found, want in zip(f(x), wanted, strict=True):
                    np.testing.assert_array_equal(found, want.astype(x.dtype))


def test_sums_of_what_is_no_number(rng):
    x = T.fmatrix("x")
    a = rng.normal(size=(6, 333)).astype("f4")
    a[0, 5], a[1, 7], a[2, 9], a[3, [1, 2]] = np.nan, np.inf, -np.inf, [np.inf, -np.inf]
    a[4] = -0.0
    with config.change_flags({"cpu.compile": "always"}), np.errstate(invalid="ignore"):
        for axis, v in ((1, a), (0, np.ascontiguousarray(a.T))):
            found = symdnn.function([x], x.sum(axis), mode=CPU)(v)
            np.testing.assert_array_equal(found[:4], [np.nan, np.inf, -np.inf, np.nan])
            assert np.signbit(found[4])
            assert_bounded(found[5:], a[5:], 1)


@pytest.mark.parametrize("compiled", ["always", "never"])
def test_theanos_example(compiled):
    x = T.fvector("x")
    a = np.array([1e8, 1, -1e8], "f4")
    with config.change_flags({"cpu.compile": compiled}):
        f = symdnn.function([x], [x.sum(), x.sum(acc_dtype="float32"), x.sum(dtype="float64")])
        assert [float(v) for v in f(a)] == [1, 1, 1]
        assert f(a)[2].dtype == np.float64
        assert float(symdnn.function([x], x.mean(acc_dtype="float64") * 3)(a)) == pytest.approx(1)
    assert float(x.sum().eval({x: a})) == 1


def test_products_and_ints(rng):
    x, n = T.fvector("x"), T.TensorType("int8", (None,))("n")
    near = (1 + rng.normal(size=3000) * 1e-3).astype("f4")
    whole = rng.integers(-128, 128, 10000).astype("int8")
    f = symdnn.function([x, n], [x.prod(), n.sum()], mode=CPU)
    found, total = f(near, whole)
    assert abs(found / near.astype("f8").prod() - 1) < 1e-7
    assert total.dtype == "int64"
    assert total == whole.astype(int).sum()


@pytest.mark.parametrize(
    ("dtype", "program", "fused"),
    [("float32", None, True), ("float32", "exp", False), ("float64", None, False)],
)
def test_sums_of_converted_numbers_are_multiply_adds(dtype, program, fused):
    """Of numbers that are converted, beside little else: conversions take the adders' time."""
    b = Builder([dtype])
    element = b.input(0).call(program) if program else b.input(0)
    op = FusedReduce(b.program([element]), (Sum((1,), False, dtype, dtype),))
    fold = reduction_fold(op, (dtype,), "int32", True)
    size = int(dtype[-2:]) // 8
    for steps in ((1000, 1), (1, 1000), (2000, 2)):
        reads = [(dtype, tuple(size * n for n in steps))]
        nest = reduction_nest(fold, (300, 1000), (1,), reads, [(dtype, (size,))]).merged()
        text = nest_ir(nest.fold, scheduled(nest, 1)[0])
        assert bool(re.search(r"@llvm\.fmuladd\.(v\d+)?f64", text)) == fused


@pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")
@pytest.mark.parametrize("shape", [(7, 3000), (2, 100003)])
@pytest.mark.parametrize("axes", [(1,), (0, 1)])
def test_a_gpu_adds_by_pairs(shape, axes, rng):
    """|error| <= (64 + log2 n) eps32 sum |x|: a thread adds a few in turn, the rest is a tree."""
    a = hard(rng, shape)
    op = Sum(axes, False, "float32", "float32")
    (found,), env = emulator.run(reduce_kernels.ReductionKernel(), concrete(op, [a]), [a])
    wide = a.astype(np.longdouble)
    exact, size = wide.sum(axes), np.abs(wide).sum(axes)
    bound = (64 + np.log2(a.size)) * EPS32 * size
    assert env.error[0] == 0
    assert (np.abs(np.asarray(found) - exact) <= bound).all()


def test_what_partial_results_are_of():
    assert Sum((0,), False, "float32", "float32").added_in == np.float64
    assert Sum((0,), False, "float16", "float32").added_in == np.float64
    assert Prod((0,), False, "int64", "int64").added_in == np.int64
    assert Sum((0,), False, "complex64", "complex64").added_in == np.complex64
