"""Rows that are read once and begin anywhere in memory: aligned vectors with elements of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.kernels.fused_rows import FusedRowsKernel
from symdnn.gpu.kernels.softmax import SoftmaxKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.lowered.fused_rows import layer_norm_rows, softmax_grad_rows, softmax_rows
from symdnn.ops.nn.batchnorm import LayerNorm
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

KERNEL = FusedRowsKernel()
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}
#: Rows in registers of parts of a warp, of a block; in shared memory; read again.
SHAPES = [(37, 67), (5, 2049), (64, 33_001), (65, 60_001)]
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def drawn(dtype: str, *shape: int) -> Any:
    return new_rng().standard_normal(shape).astype(numpy_dtype(dtype))


def compared(op: Any, arrays: list[Any], kernel: Any = KERNEL) -> None:
    call = concrete(op, arrays)
    found, env = emulator.run(kernel, call, arrays)
    assert env.launched == ["fused_rows"]
    (text,) = kernel.sources(call)
    assert "#define LOOSE 1" in text
    tol = TOLERANCE[arrays[0].dtype.name]
    for got, wanted in zip(found, op.compute(*arrays), strict=True):
        np.testing.assert_allclose(np.float64(got), np.float64(wanted), tol, tol)


@needs_gpp
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES[1:3], ids=str)
def test_a_norm_with_parameters_of_columns(shape, dtype):
    op = layer_norm_rows(LayerNorm((1,), 1e-5), dtype)
    x = emulator.device_copy(drawn(dtype, *shape))[1]
    parameters = [emulator.device_copy(drawn("float32", 1, shape[1]))[1] for _ in range(2)]
    given = [a.astype(numpy_dtype(d)) for a, d in zip(parameters, op.input_dtypes[1:])]
    compared(op, [x, *(emulator.device_copy(a)[1] for a in given)])


@needs_gpp
@pytest.mark.parametrize("kind", [Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_softmax_of_rows_and_its_gradient(shape, dtype, kind):
    one = kind in (Softmax, LogSoftmax)
    arrays = [emulator.device_copy(drawn(dtype, *shape))[1] for _ in range(1 if one else 2)]
    compared((softmax_rows if one else softmax_grad_rows)(kind(1), dtype), arrays)
    compared(kind(1), arrays, SoftmaxKernel())


@needs_gpp
@pytest.mark.parametrize("shape", SHAPES[2:], ids=str)
def test_long_rows(shape):
    for dtype in ("float32", "bfloat16"):
        compared(softmax_rows(Softmax(1), dtype), [emulator.device_copy(drawn(dtype, *shape))[1]])


@needs_gpp
def test_other_rows_are_not_read_as_elements():
    x = drawn("float32", 64, 33_001)
    x[::2] = np.nan
    found, _ = emulator.run(KERNEL, concrete(softmax_rows(Softmax(1), "float32"), [x]), [x])
    assert np.isnan(found[0][::2]).all()
    np.testing.assert_allclose(found[0][1::2], Softmax(1).compute(x[1::2])[0], 2e-5)


@needs_gpp
def test_arrays_that_begin_elsewhere_are_read_by_elements():
    memory = emulator.device_copy(drawn("float32", 64 * 33_001 + 1))[1]
    x = memory[1:].reshape(64, 33_001)
    op = softmax_rows(Softmax(1), "float32")
    found, _ = emulator.run(KERNEL, concrete(op, [x]), [x])
    np.testing.assert_allclose(found[0], op.compute(x)[0], 2e-5)


def test_the_text_compiles():
    for dtype in TOLERANCE:
        for op in (softmax_rows(Softmax(1), dtype), softmax_grad_rows(SoftmaxGrad(1), dtype)):
            arrays = [np.ones((64, 50_257), numpy_dtype(dtype))] * op.early
            for text in KERNEL.sources(concrete(op, arrays)):
                assert "#define LOOSE 1" in text
                assert compile_cubin(text, (9, 0))
