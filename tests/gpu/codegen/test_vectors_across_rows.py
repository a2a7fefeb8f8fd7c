"""Elementwise loops over rows of odd lengths: vectors reach from a row into the next."""

from __future__ import annotations

from math import prod
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
    """The sum of arrays, into one like the first."""
    kinds = [a.dtype.name for a in arrays]
    b = Builder(kinds)
    total = b.input(0).cast("float64")
    for i in range(1, len(arrays)):
        total = total + b.input(i).cast("float64")
    views = [view(i, a) for i, a in enumerate(arrays)]
    program = b.program([total.cast(kinds[0])])
    (launch,) = elementwise(program, views, [view(len(arrays), arrays[0])])
    return launch


def vectors(launch: KernelLaunch, arrays: int) -> int:
    return int(launch.parameters[arrays + 1])


@needs_gpp
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_constant_along_rows(shape, dtype):
    rng = new_rng()
    kind = numpy_dtype(dtype)
    small = [n if d % 2 == 1 else 1 for d, n in enumerate(shape)]
    small[-1] = 1
    arrays = [
        emulator.device_copy((rng.standard_normal(s) * 9).astype(kind))[1] for s in (shape, small)
    ]
    for given in (arrays, arrays[::-1]):
        results, env = emulator.run(ElementwiseKernel(), concrete(Add(), given), given)
        assert env.launched == ["elementwise"]
        assert_close(results[0], Add().compute(*given)[0])


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("float16", 8), ("float64", 2)])
def test_their_vectors_have_16_bytes(dtype, width):
    x, c = np.zeros((20, 30, 7, 7), dtype), np.zeros((1, 30, 1, 1), dtype)
    assert vectors(launch_of(x, c), 2) == x.size // width
    assert compile_cubin(launch_of(x, c).source, (9, 0))


def test_others_stay_in_their_rows():
    x, c = np.zeros((20, 30, 49), np.float32), np.zeros((1, 30, 1), np.float32)
    row, column = np.zeros((1, 1, 49), np.float32), np.zeros((20, 30, 50), np.float32)[..., :49]
    assert vectors(launch_of(x, c, row), 3) == x.size  # elements of the row lie apart in a vector
    assert vectors(launch_of(x, c, column), 3) == x.size
    even = np.zeros((20, 30, 48), np.float32)
    launch = launch_of(even, c)
    assert vectors(launch, 2) == prod(even.shape) // 4
    assert ".v[k] = p.x1" not in launch.source
