"""Reductions over all elements beside values that are stored, as one kernel of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.gpu.binding import nvrtc
from symdnn.gpu.kernels.reduce import ElementwiseReductionKernel
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.reduce import AllTrue, Max, Min, Reduce, Sum
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedElemwiseReduce
from tests.gpu import emulator
from tests.gpu.emulator import device_copy
from tests.gpu.fake_device import fake_device  # noqa: F401
from tests.gpu.table import assert_close, concrete

by_emulator = pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")
DTYPES = ["float32", "float16", "bfloat16", "float64"]
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5}


def huber(dtype: str, ndim: int = 2) -> FusedElemwiseReduce:
    """Of (x, t, mask, scale): the sum of a loss and its largest term; its gradient, where it is
    not zero, and whether x is above t."""
    work = "float64" if dtype == "float64" else "float32"
    b = Builder((dtype, dtype, "bool", work))
    x, t, mask, scale = (b.input(i) for i in range(4))
    d = x.cast(work) - t.cast(work)
    size = d.call("abs")
    loss = b.select(mask, b.select(size < 0.5, d * d, size - 0.25), 0.0)
    slope = b.select(mask, d * scale, 0.0)
    axes = tuple(range(ndim))
    reductions: tuple[Reduce, ...] = (
        Sum(axes, False, work, work), Max(axes), AllTrue(axes), Min(axes),
    )  # fmt: skip
    results = [loss, loss, mask, size, slope.cast(dtype), d > 0]
    return FusedElemwiseReduce(b.program(results), reductions)


def drawn(rng: Any, dtype: str, shape: tuple[int, ...]) -> list[Any]:
    whole = [rng.normal(size=shape).astype(numpy_dtype(dtype)) for _ in range(2)]
    scale = rng.normal(size=(1,) * len(shape))
    scale = scale.astype("float64" if dtype == "float64" else "float32")
    return [device_copy(a)[1] for a in (*whole, rng.random(shape) < 0.7, scale)]


def compare(op: FusedElemwiseReduce, arrays: list[Any], dtype: str, out: Any = None) -> list[str]:
    """Beside the reference; the names of the kernels."""
    call = concrete(op, arrays)
    wanted = [np.array(v) for v in op.compute(*arrays)]
    results, env = emulator.run(ElementwiseReductionKernel(), call, arrays, out)
    for got, want in zip(results, wanted, strict=True):
        assert_close(got, want, TOLERANCE.get(dtype))
    return env.launched


@by_emulator
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6, 32), (9, 77), (3, 4, 16), (2000, 24)])
def test_one_kernel_for_contiguous_arrays(rng: Any, dtype: str, shape: tuple[int, ...]) -> None:
    """The last vector may be a part of one; a long array is cut into chunks."""
    assert compare(huber(dtype, len(shape)), drawn(rng, dtype, shape), dtype) == ["reduce"]


@by_emulator
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_strides(rng: Any, dtype: str) -> None:
    """Rows with gaps, and rows that repeat, are one kernel; transposed arrays are two."""
    op, (x, t, mask, scale) = huber(dtype), drawn(rng, dtype, (12, 64))
    assert compare(op, [x, t[:1], mask, scale], dtype) == ["reduce"]
    gaps = device_copy(np.repeat(t, 2, 0))[1][::2]
    assert compare(op, [x, gaps, mask, scale], dtype) == ["reduce"]
    across = device_copy(t.T)[1].T
    assert compare(op, [x, across, mask, scale], dtype) == ["reduce", "elementwise"]
    assert compare(op, [x[:, 1:], t[:, 1:], mask[:, 1:], scale], dtype)


@by_emulator
def test_results_may_overwrite_operands(rng: Any) -> None:
    """By one kernel, and by two: the reductions are first."""
    op = huber("float32")
    for shape in ((12, 64), (5, 3)):
        arrays = drawn(rng, "float32", shape)
        zeros = [np.zeros_like(np.asarray(v)) for v in op.compute(*arrays)]
        out = [device_copy(v)[1] for v in zeros]
        out[4] = arrays[0]
        launched = compare(op, arrays, "float32", out)
        assert launched == (["reduce"] if shape == (12, 64) else ["reduce", "elementwise"])


@by_emulator
def test_no_elements(rng: Any) -> None:
    (total, *_) = huber("float32").reductions
    program = huber("float32").program
    b = Builder(program.inputs)
    results = b.inline(program, [b.input(i) for i in range(4)])
    op = FusedElemwiseReduce(b.program([results[0], results[4]]), (total,))
    compare(op, drawn(rng, "float32", (0, 8)), "float32")


def test_the_source_compiles(rng: Any) -> None:
    call = concrete(huber("bfloat16"), drawn(rng, "bfloat16", (33, 77)))
    for source in ElementwiseReductionKernel().sources(call):
        nvrtc.compile_cubin(source, (9, 0))


# -- functions ------------------------------------------------------------------------------------


def masked(v: Any, y: Any, m: Any) -> Any:
    return T.switch(m, T.sqr(v - y), 0).sum() / m.astype("float32").sum()


LOSSES: dict[str, Callable[..., Any]] = {
    "squares": lambda v, y, m: T.sqr(v - y).mean(),
    "logistic": lambda v, y, m: (T.softplus(v) - y * v).sum(),
    "masked": masked,
    "a penalty": lambda v, y, m: T.sqr(v).sum() + T.abs(v - y).mean(),
    "its largest": lambda v, y, m: T.sqr(v - y).mean() + 0 * T.abs(v).max(),
}


def compiled(name: str, dtype: str, target: str) -> Any:
    x, y = (TensorType(dtype, (None, None))(n) for n in "xy")
    m = T.bmatrix("m")
    loss = LOSSES[name](x, y, m.astype("bool"))
    mode = symdnn.Mode(target=target)
    slope = symdnn.grad(loss, x)
    return symdnn.function([x, y, m], [loss, slope], mode=mode, on_unused_input="ignore")


def given(rng: Any, dtype: str, shape: tuple[int, int]) -> list[Any]:
    x, y = (rng.normal(size=shape).astype(numpy_dtype(dtype)) for _ in range(2))
    return [x, y, (rng.random(shape) < 0.5).astype("int8")]


CASES = [(name, "float32") for name in LOSSES] + [("squares", "bfloat16"), ("masked", "float64")]


@by_emulator
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_loss_beside_its_gradient(
    fake_device: Any,  # noqa: F811
    rng: Any,
    name: str,
    dtype: str,
) -> None:
    f, on_cpu = compiled(name, dtype, "cuda:sm_90"), compiled(name, dtype, "cpu")
    assert any(isinstance(n.op, FusedElemwiseReduce) for n in f.fgraph.toposort())
    for shape in ((12, 64), (7, 33)):
        arrays = given(rng, dtype, shape)
        for got, want in zip(f(*arrays), on_cpu(*arrays), strict=True):
            assert_close(np.asarray(got), np.asarray(want), TOLERANCE.get(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_loss_beside_its_gradient_on_a_device(cuda: Any, rng: Any, name: str, dtype: str) -> None:
    """Each call has the same bits, also as a graph of the device."""
    f, on_cpu = compiled(name, dtype, "cuda"), compiled(name, dtype, "cpu")
    for shape in ((1000, 512), (777, 333), (3, 5)):
        arrays = given(rng, dtype, shape)
        found = [[np.asarray(v) for v in f(*arrays)] for _ in range(4)]
        for got, want in zip(found[0], on_cpu(*arrays), strict=True):
            assert_close(got, np.asarray(want), TOLERANCE.get(dtype))
        for again in found[1:]:
            for a, b in zip(found[0], again, strict=True):
                assert a.tobytes() == b.tobytes()
