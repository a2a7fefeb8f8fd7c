"""Elementwise loops over rows of odd lengths: vectors reach from a row into the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.codegen.launches import KernelLaunch, View
from symdnn.gpu.kernels.elementwise import ElementwiseKernel, elementwise
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import Builder
from symdnn.ops.elementwise.arithmetic import Add
from tests.gpu import emulator
from tests.gpu.table import assert_close, concrete
from tests.seeded import new_rng

needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
SHAPES = [(5, 3, 7, 7), (4, 9), (3, 5, 3), (2, 3, 5, 2, 3), (7, 1, 15), (2, 3)]
DTYPES = ["float32", "bfloat16", "float64", "int8"]


def view(slot: int, array: Any) -> View:
    return View(slot, array.dtype.name, array.shape, array.strides)


def launch_of(*arrays: Any) -> KernelLaunch:
    """The sum of arrays."""
    kinds = [a.dtype.name for a in arrays]
    b = Builder(kinds)
    total = b.input(0).cast("float64")
    for i in range(1, len(arrays)):
        total = total + b.input(i).cast("float64")
    program = b.program([total.cast(kinds[0])])
    out = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), arrays[0].dtype)
    views = [view(i, a) for i, a in enumerate([*arrays, out])]
    (launch,) = elementwise(program, views[:-1], views[-1:])
    return launch


def vectors(launch: KernelLaunch, arrays: int) -> int:
    return int(launch.parameters[arrays + 1])


@needs_gpp
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_constant_along_rows(shape, dtype):
    rng = new_rng()
    kind = numpy_dtype(dtype)
    small = [[n if d % 2 == k and d < len(shape) - 1 else 1 for d, n in enumerate(shape)]
             for k in (0, 1)]  # fmt: skip
    x, y = ((rng.standard_normal(s) * 9).astype(kind) for s in small)
    x = np.broadcast_to(emulator.device_copy(x)[1], (*x.shape[:-1], shape[-1]))
    y = emulator.device_copy(y)[1]
    for given in ([x, y], [y, x]):
        results, env = emulator.run(ElementwiseKernel(), concrete(Add(), given), given)
        assert env.launched == ["elementwise"]
        assert_close(results[0], Add().compute(*given)[0])


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("float16", 8), ("float64", 2)])
def test_their_vectors_have_16_bytes(dtype, width):
    x, y = np.zeros((20, 1, 1), dtype), np.zeros((1, 30, 1), dtype)
    x = np.broadcast_to(x, (20, 1, 49))
    assert vectors(launch_of(x, y), 2) == 20 * 30 * 49 // width
    assert compile_cubin(launch_of(x, y).source, (9, 0))


def test_others_stay_in_their_rows():
    x, y = np.zeros((20, 1, 1), np.float32), np.zeros((1, 30, 1), np.float32)
    for n, width in ((49, 1), (50, 2), (48, 4)):
        row, full = np.zeros((1, 1, n), np.float32), np.zeros((20, 30, n), np.float32)
        for operand in (row, full):
            assert vectors(launch_of(x, y, operand), 3) == 20 * 30 * n // width
    even = launch_of(np.broadcast_to(x, (20, 1, 48)), y)
    assert vectors(even, 2) == 20 * 30 * 48 // 4
    assert ".v[k] = p.x1" not in even.source
