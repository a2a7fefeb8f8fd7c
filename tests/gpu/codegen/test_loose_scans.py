"""Scans along rows that begin anywhere in memory, and along short rows, some of them a block's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.kernels import scan
from symdnn.gpu.kernels.scan import ScanKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.cumulative import CumMax, CumSum, ForwardFill, LinearRecurrence
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

KERNEL = ScanKernel()
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float64": 1e-12, "int8": 0, "int64": 0}
#: Part of a tile, and chunks of several.
SHAPES = [(6, 301), (2, 20_001)]
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def compared(op: Any, *arrays: Any, form: str = "LOOSE 1") -> None:
    arrays = tuple(emulator.device_copy(a)[1] for a in arrays)
    call = concrete(op, list(arrays))
    assert all(f"#define {form}\n" in text for text in KERNEL.sources(call))
    (got,), _ = emulator.run(KERNEL, call, list(arrays))
    wanted = op.compute(*arrays)[0]
    tol = TOLERANCE[arrays[0].dtype.name]
    np.testing.assert_allclose(np.float64(got), np.float64(wanted), tol, 30 * tol)


@needs_gpp
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_running_sums_and_extremes(dtype, reverse):
    for shape in SHAPES:
        x = (new_rng().standard_normal(shape) * 3).astype(numpy_dtype(dtype))
        compared(CumSum(1, reverse), x)
        compared(CumMax(1, reverse), x)


@needs_gpp
@pytest.mark.parametrize("reverse", [False, True])
def test_a_forward_fill_and_a_recurrence_of_two_operands(reverse):
    rng = new_rng()
    for shape in SHAPES:
        x = rng.standard_normal(shape).astype("float32")
        decay = rng.uniform(0.2, 0.9, shape).astype("float32")
        compared(LinearRecurrence(1, reverse), decay, x)
        x[rng.random(shape) < 0.5] = np.nan
        compared(ForwardFill(1, reverse), x)


@needs_gpp
def test_operands_that_begin_differently_are_read_by_elements():
    x = emulator.device_copy(np.ones(3 * 4097 + 1, "float32"))[1][1:].reshape(3, 4097)
    (got,), _ = emulator.run(KERNEL, concrete(CumSum(1, False), [x]), [x])
    np.testing.assert_array_equal(got, np.arange(1, 4098, dtype="float32")[None].repeat(3, 0))


#: Shapes, the threads of a row, and elements of a vector of float32.
SHORT = [((50, 64), 16, 4), ((9, 3), 4, 1), ((3, 5, 33), 32, 1), ((2, 252), 32, 4), ((1, 2), 2, 1)]


@needs_gpp
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "threads", "width"), SHORT)
def test_short_rows_have_a_group_of_threads_each(shape, threads, width, reverse):
    rng, axis = new_rng(), len(shape) - 1
    x = rng.standard_normal(shape).astype("float32")
    decay = rng.uniform(0.2, 0.9, shape).astype("float32")
    form = f"GROUP {threads}"
    assert all(f"#define VEC {width}\n" in t for t in KERNEL.sources(concrete(CumSum(axis), [x])))
    compared(CumSum(axis, reverse), x, form=form)
    compared(LinearRecurrence(axis, reverse), decay, x, form=form)
    compared(ForwardFill(axis, reverse), np.where(rng.random(shape) < 0.5, x, np.nan), form=form)


@needs_gpp
def test_a_block_has_several_lots_of_short_rows(monkeypatch):
    monkeypatch.setattr(scan, "_MANY_BLOCKS", 2)
    for dtype, limit in (("int64", 0), ("bfloat16", 2e-2)):
        x = (new_rng().standard_normal((301, 24)) * 3).astype(numpy_dtype(dtype))
        x = emulator.device_copy(x)[1]
        (got,), env = emulator.run(KERNEL, concrete(CumSum(1), [x]), [x])
        wanted = np.float64(CumSum(1).compute(x)[0])
        np.testing.assert_allclose(np.float64(got), wanted, limit, 30 * limit)
        assert env.launched == ["results"]


def test_the_text_compiles():
    for dtype in TOLERANCE:
        for reverse in (False, True):
            x = np.ones((3, 50_257), numpy_dtype(dtype))
            for text in KERNEL.sources(concrete(CumSum(1, reverse), [x])):
                assert "#define LOOSE 1" in text
                assert compile_cubin(text, (9, 0))
        for text in KERNEL.sources(concrete(CumSum(1), [np.ones((3, 64), numpy_dtype(dtype))])):
            assert compile_cubin(text, (9, 0))
