"""Elementwise loops over rows of odd lengths: vectors reach from a row into the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.codegen.launches import KernelLaunch, View
from symdnn.gpu.kernels import elementwise as kernels
from symdnn.gpu.kernels.elementwise import ElementwiseKernel, elementwise
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.lowered.fused import FusedElemwise
from tests.gpu import emulator
from tests.gpu.table import assert_close, concrete
from tests.seeded import new_rng

needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
SHAPES = [(5, 3, 7, 7), (4, 9), (3, 5, 3), (2, 3, 5, 2, 3), (7, 1, 15), (2, 3)]
DTYPES = ["float32", "bfloat16", "float64", "int8"]


def view(slot: int, array: Any) -> View:
    return View(slot, array.dtype.name, array.shape, array.strides)


def sum_of(*arrays: Any) -> ScalarProgram:
    """The sum of arrays, in the dtype of the first one."""
    kinds = [a.dtype.name for a in arrays]
    b = Builder(kinds)
    total = b.input(0).cast("float64")
    for i in range(1, len(arrays)):
        total = total + b.input(i).cast("float64")
    return b.program([total.cast(kinds[0])])


def launch_of(*arrays: Any) -> KernelLaunch:
    """The sum of arrays, into a new one."""
    out = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), arrays[0].dtype)
    views = [view(i, a) for i, a in enumerate([*arrays, out])]
    (launch,) = elementwise(sum_of(*arrays), views[:-1], views[-1:])
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


def test_those_beside_a_row_or_a_whole_array_have_16_bytes():
    x, y = np.zeros((20, 1, 1), np.float32), np.zeros((1, 30, 1), np.float32)
    for n in (49, 50, 48):
        row, full = np.zeros((1, 1, n), np.float32), np.zeros((20, 30, n), np.float32)
        for operand in (row, full):
            assert vectors(launch_of(x, y, operand), 3) == 20 * 30 * n // 4
    even = launch_of(np.broadcast_to(x, (20, 1, 48)), y)
    assert vectors(even, 2) == 20 * 30 * 48 // 4
    assert ".v[k] = p.x1" not in even.source


#: Shapes of operands beside a contiguous one; the last is that of the result.
BESIDE = {
    "a row": [[(1, 7), (400, 7)], [(1, 3), (9, 3)], [(1, 2), (301, 2)], [(1, 51), (1000, 51)],
              [(1, 1001), (3, 1001)], [(1, 255), (70, 255)], [(1, 9999), (2, 9999)]],
    "rows": [[(1, 7), (1, 7), (1, 1), (400, 7)], [(1, 51), (1, 51), (1, 1), (303, 51)]],
    "a row and a column": [[(1, 7), (400, 1), (400, 7)], [(1, 33), (31, 1), (31, 33)]],
    "rows of a stack": [[(5, 1, 7), (5, 9, 7)], [(3, 1, 51), (3, 11, 51)]],
    "rows of two axes": [[(4, 1, 3, 5), (4, 6, 3, 5)], [(1, 6, 1, 5), (4, 6, 3, 5)]],
}  # fmt: skip


def operands(shapes: Any, dtype: str) -> list[Any]:
    """A contiguous array, and those beside it."""
    rng = new_rng()
    arrays = [rng.integers(-9, 9, s).astype(numpy_dtype(dtype)) for s in (shapes[-1], *shapes[:-1])]
    return [emulator.device_copy(a)[1] for a in arrays]


@needs_gpp
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", BESIDE)
def test_contiguous_operands_and_rows(kind, dtype):
    for shapes in BESIDE[kind]:
        arrays = operands(shapes, dtype)
        op = FusedElemwise(sum_of(*arrays))
        results, _ = emulator.run(ElementwiseKernel(), concrete(op, arrays), arrays)
        np.testing.assert_array_equal(results[0], op.compute(*arrays)[0])


@needs_gpp
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_go_down_and_read_several_vectors_first(dtype, monkeypatch):
    monkeypatch.setattr(kernels, "_MAX_COLUMN_BLOCKS", 1)
    monkeypatch.setattr(kernels, "_COLUMN_BATCH_MIN_VECTORS", 1)
    monkeypatch.setattr(kernels, "_INDEXED_BATCH_MIN_VECTORS", 1)
    for kind in ("a row", "rows of a stack"):
        for shapes in BESIDE[kind]:
            arrays = operands(shapes, dtype)
            op = FusedElemwise(sum_of(*arrays))
            results, _ = emulator.run(ElementwiseKernel(), concrete(op, arrays), arrays)
            np.testing.assert_array_equal(results[0], op.compute(*arrays)[0])


@needs_gpp
def test_strided_and_wider_rows():
    wide = operands([(1, 22), (60, 11)], "float64")
    given = [wide[0].astype("float32"), wide[1][:, ::2]]
    for arrays in (given, [given[0].astype("int8"), given[1].astype("float32")]):
        arrays[0] = emulator.device_copy(arrays[0])[1]
        op = FusedElemwise(sum_of(*arrays))
        results, _ = emulator.run(ElementwiseKernel(), concrete(op, arrays), arrays)
        np.testing.assert_array_equal(results[0], op.compute(*arrays)[0])


@pytest.mark.parametrize(
    ("dtype", "width"), [("float32", 4), ("float16", 8), ("int8", 8), ("float64", 2)]
)
def test_vectors_of_arrays_with_odd_rows(dtype, width):
    full, row = np.zeros((64, 6689), dtype), np.zeros((1, 6689), dtype)
    launch = launch_of(full, row)
    assert vectors(launch, 2) == full.size // width
    loop = launch.source[launch.source.index("for (Count i") :]
    assert "%" not in loop.split("  if (first <")[0]  # threads stay in their columns
    assert ("load<4>" in launch.source) == (width == 4)
    stack = np.zeros((8, 8, 6689), dtype)
    assert vectors(launch_of(stack, np.zeros((8, 1, 6689), dtype)), 2) == full.size // width
    for made in (launch, launch_of(stack, np.zeros((8, 1, 6689), dtype))):
        assert compile_cubin(made.source, (9, 0))


def test_vectors_of_rows_with_8_bytes_and_unaligned_arrays():
    for dtype, n, width in (("float32", 6690, 4), ("float16", 6692, 8), ("float16", 6690, 8),
                            ("int8", 6696, 8), ("int8", 6692, 8)):  # fmt: skip
        full, row = np.zeros((64, n), dtype), np.zeros((1, n), dtype)
        assert vectors(launch_of(full, row), 2) == full.size // width
    full, row = np.zeros((64, 6689), np.float32), np.zeros((1, 6689), np.float32)
    views = [view(i, a) for i, a in enumerate((full, row, full))]
    moved = replace(views[0], offset=4)
    (launch,) = elementwise(sum_of(full, row), [moved, views[1]], [views[2]])
    assert vectors(launch, 2) == full.size
    # An operand that is neither contiguous nor repeated is read by rows.
    apart = np.zeros((64, 6700), np.float32)[:, :6689]
    assert vectors(launch_of(full, row, apart), 3) == full.size


def test_places_beyond_32_bits_are_counted_in_64():
    rows = 2**31 // 6689 + 2
    full = View(0, "float32", (rows, 6689), (6689 * 4, 4))
    row = View(1, "float32", (1, 6689), (6689 * 4, 4))
    program = sum_of(np.zeros(1, np.float32), np.zeros(1, np.float32))
    (launch,) = elementwise(program, [full, row], [replace(full, slot=2)])
    assert vectors(launch, 2) == rows * 6689 // 4
    assert "typedef u64 Count;" in launch.source
    assert "typedef i64 Offset;" in launch.source
    assert compile_cubin(launch.source, (9, 0))
