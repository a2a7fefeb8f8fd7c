"""Elementwise loops whose operands lie across each other: tiles run on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.codegen.launches import View
from symdnn.gpu.kernels.complex import ComplexKernel, complex_program
from symdnn.gpu.kernels.elementwise import ElementwiseKernel, elementwise
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import Builder, identity_program
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elementwise.special import Psi
from tests.gpu import emulator
from tests.gpu.table import assert_close, concrete
from tests.seeded import new_rng

needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
DTYPES = ["float32", "bfloat16", "float64", "int8", "complex64", "complex128"]


def laid(rng: Any, shape: Any, order: Any, dtype: str = "float32") -> Any:
    """An array of this shape whose axes lie in memory in this order."""
    memory = emulator.device_copy(
        (rng.standard_normal([shape[d] for d in order]) * 9).astype(numpy_dtype(dtype))
    )[1]
    return memory.transpose(np.argsort(order))


def added(*arrays: Any, out: Any = None) -> list[str]:
    """Run the sum of two arrays; the names of what was launched."""
    call = concrete(Add(), list(arrays))
    kernel = ComplexKernel() if call.outputs[0].is_complex else ElementwiseKernel()
    results, env = emulator.run(kernel, call, list(arrays), None if out is None else [out])
    assert_close(results[0], Add().compute(*arrays)[0])
    return env.launched


@needs_gpp
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 64), (128, 136), (33, 70), (16, 300), (300, 20)], ids=str)
def test_a_transposed_operand(shape, dtype):
    rng = new_rng()
    for orders in (((0, 1), (1, 0)), ((1, 0), (0, 1))):
        assert added(*(laid(rng, shape, o, dtype) for o in orders)) == ["tiles"]


@needs_gpp
def test_both_transposed_into_a_transposed_result_is_flat():
    rng = new_rng()
    x, y, out = (laid(rng, (40, 48), (1, 0)) for _ in range(3))
    assert added(x, y, out=out) == ["elementwise"]


@needs_gpp
@pytest.mark.parametrize("number", range(12))
def test_drawn_permutations(number):
    rng = np.random.default_rng(number)
    ndim = int(rng.integers(2, 5))
    shape = [int(rng.choice([1, 3, 16, 20, 33])) for _ in range(ndim)]
    dtype = str(rng.choice(DTYPES))
    arrays = [laid(rng, shape, rng.permutation(ndim), dtype) for _ in range(3)]
    if rng.random() < 0.5:
        arrays[0] = arrays[0][tuple(slice(None, 1 if rng.random() < 0.3 else None) for _ in shape)]
    if rng.random() < 0.5:
        arrays[1] = arrays[1][..., ::-1]
    added(arrays[0], arrays[1], out=arrays[2])


@needs_gpp
def test_numbers_columns_and_several_outputs():
    """A number, a column of the rows, two turned operands and a strided one."""
    rng = new_rng()
    shape, kinds = (40, 72), ["float32", "float32", "bfloat16", "float64", "float32"]
    b = Builder(kinds)
    number, column, x, y, odd = (b.input(i).cast("float64") for i in range(5))
    program = b.program([number * column + x, (y - odd).cast("float32")])
    arrays = [
        laid(rng, shape, (0, 1))[:, :1], laid(rng, shape, (1, 0), "bfloat16"),
        laid(rng, shape, (1, 0), "float64"), laid(rng, (40, 144), (0, 1))[:, ::2],
    ]  # fmt: skip
    outs = [np.zeros(shape), np.zeros(shape, np.float32)]
    held = [*arrays, *outs]
    views = [View(i, a.dtype.name, a.shape, a.strides) for i, a in enumerate(held)]
    (launch,) = elementwise(program, [2.5, *views[:4]], views[4:])
    assert launch.name == "tiles"
    env = emulator.HostEnv()
    addresses = np.array([a.ctypes.data for a in held] + [0, 0, 0], np.int64)
    function = env.module(launch.source, launch.name)
    env.launch(function, launch.grid, launch.block, 0, (launch.link(addresses),))
    wide = [a.astype(np.float64) for a in arrays]
    np.testing.assert_array_equal(outs[0], 2.5 * wide[0] + wide[1])
    np.testing.assert_array_equal(outs[1], (wide[2] - wide[3]).astype(np.float32))


def placed(shape: Any, order: Any, dtype: str, first: int) -> Any:
    """An array whose axes lie in this order, ``first`` elements behind an aligned address."""
    count = int(np.prod(shape))
    memory = emulator.device_copy(np.zeros(count + 32, numpy_dtype(dtype)))[1]
    memory = memory[(-memory.ctypes.data) % 16 // memory.itemsize :][first : first + count]
    return memory.reshape([shape[d] for d in order]).transpose(np.argsort(order))


def tiled(program: Any, arrays: list[Any], outs: list[Any]) -> str:
    """Run a program's tiles; the text."""
    held = [*arrays, *outs]
    views = [
        View(i, a.dtype.name, a.shape, a.strides, 0, min(16, a.ctypes.data & -a.ctypes.data))
        for i, a in enumerate(held)
    ]
    (launch,) = elementwise(program, views[: len(arrays)], views[len(arrays) :])
    assert launch.name == "tiles"
    env = emulator.HostEnv()
    addresses = np.array([a.ctypes.data for a in held] + [0, 0, 0], np.int64)
    function = env.module(launch.source, launch.name)
    env.launch(function, launch.grid, launch.block, 0, (launch.link(addresses),))
    return str(launch.source)


#: Several tiles, narrow ones, part of one.
ODD_SHAPES = [(131, 77), (33, 333), (300, 21), (257, 130), (16, 17), (129, 263)]


@needs_gpp
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16"])
def test_narrow_copies_that_begin_anywhere(dtype):
    rng = new_rng()
    for number, shape in enumerate(ODD_SHAPES):
        x, y = placed(shape, (1, 0), dtype, number % 4), placed(shape, (0, 1), dtype, number % 3)
        x[...] = (rng.integers(0, 100, shape) % (2 if dtype == "bool" else 100)).astype(x.dtype)
        assert "SHIFTED = 1" in tiled(identity_program(dtype), [x], [y])
        assert x.tobytes() == y.tobytes()


@needs_gpp
@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_narrow_operands_of_all_kinds_that_begin_anywhere(dtype):
    """A turned, a dense and a strided operand, and those of rows and of columns."""
    rng, work = new_rng(), "int32" if dtype == "int8" else "float32"
    b = Builder([dtype] * 5)
    v = [b.input(i).cast(work) for i in range(5)]
    program = b.program([(v[0] + v[1] + v[2] + v[3] + v[4]).cast(dtype)])
    for number, shape in enumerate(ODD_SHAPES):
        arrays = [
            placed(shape, (1, 0), dtype, number % 4), placed(shape, (0, 1), dtype, number % 5),
            placed((shape[0], 1), (0, 1), dtype, 0), placed((1, shape[1]), (0, 1), dtype, 3),
            placed((shape[0], 2 * shape[1]), (0, 1), dtype, 1)[:, ::2],
        ]  # fmt: skip
        for a in arrays:
            a[...] = rng.integers(0, 20, a.shape).astype(a.dtype)
        out = placed(shape, (0, 1), dtype, number % 3)
        assert "SHIFTED = 1" in tiled(program, arrays, [out])
        np.testing.assert_array_equal(np.float64(out), sum(np.float64(a) for a in arrays))


@needs_gpp
def test_narrow_results_that_begin_differently_are_written_by_elements():
    x, shape = placed((70, 45), (1, 0), "int8", 0), (70, 45)
    x[...] = new_rng().integers(-50, 50, shape)
    b = Builder(["int8"])
    program = b.program([b.input(0), b.input(0).cast("bool")])
    for first, shifted in ((0, 1), (1, 0)):
        outs = [placed(shape, (0, 1), "int8", 0), placed(shape, (0, 1), "bool", first)]
        assert f"SHIFTED = {shifted}" in tiled(program, [x], outs)
        np.testing.assert_array_equal(outs[0], x)
        np.testing.assert_array_equal(outs[1], x != 0)


def test_a_function_that_iterates_is_not_tiled():
    across, flat = (
        View(0, "float32", (512, 512), (4, 2048)),
        View(1, "float32", (512, 512), (2048, 4)),
    )
    program = meaning(Psi(), ("float32",))
    assert [launch.name for launch in elementwise(program, [across], [flat])] == ["elementwise"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_text_compiles(dtype):
    n = numpy_dtype(dtype).itemsize
    flat = View(0, dtype, (8192, 8192), (8192 * n, n))
    across = View(1, dtype, (8192, 8192), (n, 8192 * n))
    of = complex_program if dtype.startswith("complex") else meaning
    program = of(Add(), (dtype, dtype))
    (launch,) = elementwise(program, [flat, across], [flat])
    assert launch.name == "tiles"
    assert compile_cubin(launch.source, (9, 0))
