"""Products with vectors, and of matrices of integers, as nests, against NumPy's."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.execute.targets import load_kernels
from symdnn.config import config
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.nest.kernels import NestProductKernel, NestReduceKernel
from symdnn.graph.kernel import kernels_for
from symdnn.graph.target import Target
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.linalg.products import BatchedDot, Dot
from tests.cpu.harness import call_of, compiled, launched, type_of
from tests.seeded import new_rng

pytestmark = compiled


def drawn(shape, dtype, turned):
    shape = shape[::-1] if turned else shape
    if np.dtype(dtype).kind in "iu":
        x = new_rng().integers(0, 120, shape).astype(dtype)
    else:
        x = new_rng().normal(size=shape).astype(dtype)
    return x.T if turned else x


SHAPES = [
    (Dot(), (130, 70), (70,)), (Dot(), (70,), (70, 130)), (Dot(), (9000,), (9000,)),
    (Dot(), (3, 5000), (5000,)), (Dot(), (5000,), (5000, 3)),
]  # fmt: skip
MATRICES = [
    (Dot(), (33, 41), (41, 50)), (BatchedDot(), (4, 20, 30), (4, 30, 17)),
    (BatchedDot(), (1, 20, 30), (4, 30, 17)),
]  # fmt: skip


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float32", "float64"])
def test_products(dtype, turned):
    real = dtype.startswith("float")
    for op, a, b in SHAPES + ([] if real else MATRICES):
        turn = turned and op == Dot()
        x, y = drawn(a, dtype, turn), drawn(b, dtype, turn)
        (out,) = op.output_types([type_of(x), type_of(y)])
        call = call_of(op, (x, y), out)
        assert NestProductKernel().refuses(call) is None
        (found,) = launched(NestProductKernel(), call, (x, y))
        if real:
            wide = np.matmul(x.astype("float64"), y.astype("float64"))
            scale = np.matmul(abs(x).astype("float64"), abs(y).astype("float64"))
            assert (abs(found - wide) <= 8 * np.finfo(dtype).eps * scale).all()
        else:
            np.testing.assert_array_equal(found, np.matmul(x, y))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64"])
def test_rows_by_rows_in_a_program_with_any_number_of_threads(dtype):
    a, b = drawn((150, 90), dtype, False), drawn((70, 90), dtype, False)
    x, y = T.matrix("x", dtype=dtype), T.matrix("y", dtype=dtype)
    mode = symdnn.Mode(target="cpu")
    f = symdnn.function([x, y], [T.dot(x, y.T), T.dot(x, y[::-1].T)], mode=mode)
    for count in (1, 3):
        with config.change_flags(**{"openmp.threads": count}):
            for found, wanted in zip(f(a, b), (a @ b.T, a @ b[::-1].T), strict=True):
                np.testing.assert_array_equal(found, wanted)
    launches = [s.launch for s in f.plans()[0].bound.steps if isinstance(s.launch, CpuLaunch)]
    assert launches
    assert all(launch.native is not None for launch in launches)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_added_in_float32(dtype):
    import ml_dtypes  # noqa: F401

    assert is_narrow_float(dtype)
    x, y = drawn((40, 500), dtype, False), drawn((500,), dtype, False)
    (out,) = Dot().output_types([type_of(x), type_of(y)])
    (found,) = launched(NestProductKernel(), call_of(Dot(), (x, y), out), (x, y))
    wanted = Dot().reference(x, y).astype("float32")
    np.testing.assert_allclose(found.astype("float32"), wanted, rtol=1e-2, atol=1e-3)


def test_matrices_of_floats_are_left_to_libraries():
    x = drawn((40, 50), "float32", False)
    call = call_of(Dot(), (x, x.T), *Dot().output_types([type_of(x), type_of(x.T)]))
    assert NestProductKernel().refuses(call)


@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_logsumexp_over_several_axes(axes):
    x = new_rng().normal(size=(20, 30, 40)).astype("float32") * 30
    x[:, 3], x[2, 4], x[5, 5, 5] = -np.inf, np.inf, np.nan
    x[:, :, 7] = -np.inf
    op = LogSumExp(axes, True)
    load_kernels(Target("cpu"))
    call = call_of(op, (x,), *op.output_types([type_of(x)]))
    assert next(k for k in kernels_for(LogSumExp, "cpu") if k.refuses(call) is None).traits.compiled
    (found,) = launched(NestReduceKernel(), call, (x,))
    with np.errstate(over="ignore", divide="ignore"):  # of infinity
        wanted = op.reference(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
