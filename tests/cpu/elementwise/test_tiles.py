"""Elementwise kernels and copies of operands that lie along two axes, against NumPy."""

import itertools
import warnings

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.elementwise.elementwise import ElementwiseKernel, elementwise_launch
from symdnn.cpu.elementwise.tiles_ir import tiled
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.core.scalar import Builder, identity_program
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.elementwise.complex_meaning import complex_copy
from symdnn.ops.lowered.fused import FusedElemwise
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled

SHAPES = [(8, 8), (64, 64), (100, 37), (37, 100), (3, 301), (301, 3), (65, 129), (2, 5000), (70, 1)]


def agree(program, *arrays):
    """The kernel's results are NumPy's, with one thread and with three."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    wanted = program.evaluate(*(np.broadcast_to(a, shape) for a in arrays))
    call = call_of(
        FusedElemwise(program), arrays, *(TensorType(w.dtype.name, shape) for w in wanted)
    )
    for count in (1, 3):
        with config.change_flags(**{"openmp.threads": count}):
            for found, right in zip(launched(ElementwiseKernel(), call, arrays), wanted):
                np.testing.assert_array_equal(found, right)


def sum_and_difference(dtype):
    b = Builder([dtype, dtype])
    return b.program([b.input(0) + b.input(1), b.input(0) - b.input(1)])


def plan(program, *arrays):
    """The plan of tiles for operands and a result in C order."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    out = np.empty(shape, numpy_dtype(program.output_dtypes[0]))
    every = [*(np.broadcast_to(a, shape) for a in arrays), out]
    sizes, steps = merged(shape, [a.strides for a in every])
    return tiled(program, sizes, [(a.dtype.name, s) for a, s in zip(every, steps)])


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float32", "float64", "int64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_two_operands(rng, dtype, shape):
    x, y = ((rng.normal(size=s) * 50).astype(dtype) for s in (shape, shape[::-1]))
    agree(sum_and_difference(dtype), x, y.T)
    agree(sum_and_difference(dtype), y.T, y.T)
    agree(identity_program(dtype), y.T)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("shape", SHAPES)
def test_operands_that_lie_backwards_across_the_lanes(rng, dtype, shape):
    x, y = ((rng.normal(size=s) * 50).astype(dtype) for s in (shape, shape[::-1]))
    for back in (y[:, ::-1].T, y[::-1, ::-1].T, np.repeat(y, 2, 1)[:, ::-2].T):
        got = np.empty(shape, dtype)
        elementwise_launch(complex_copy(dtype), shape)([back], [got])
        np.testing.assert_array_equal(got, back)
        call = call_of(Add(), [x, back], TensorType(dtype, shape))
        np.testing.assert_array_equal(launched(ElementwiseKernel(), call, [x, back])[0], x + back)


@pytest.mark.parametrize("dtype", ["float16", "bool", "float32"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_every_order_of_axes(rng, dtype, order):
    x = (rng.normal(size=(9, 2, 17, 12)) > 0).astype(dtype)
    agree(identity_program(dtype), x.transpose(order))
    agree(identity_program(dtype), x[::-1, :, ::2].transpose(order))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(300, 70), (65, 700)], ids=str)
def test_a_row_that_repeats_is_gathered_once(rng, dtype, shape):
    x = (rng.normal(size=shape) * 50).astype(dtype)
    copy = x.T.copy().T
    for a, b in ((copy, copy[:1]), (copy, x[::-1, ::2][:1, :1])):
        op = Add()
        out = TensorType(dtype, shape)
        call = call_of(op, [a, b], out)
        (got,) = launched(ElementwiseKernel(), call, [a, b])
        np.testing.assert_array_equal(got, a + b)
    program = sum_and_difference("float32")
    whole = np.zeros(shape, "float32").T.copy().T
    found, _ = plan(program, whole, whole[:1])
    assert [name for name, _ in found.repeated] == ["x1"]


def test_broadcasts_gaps_and_steps_back(rng):
    x, y = rng.normal(size=(70, 90)), rng.normal(size=(90, 70))
    for a, b in (
        (x, y[:1].T), (x[:, :1], y.T), (x[:1], y.T), (x[:, ::-1], y.T), (x, y[::-1].T),
        (x[:, :50], y[20:70].T), (x[::2], y.T[::2]), (x[:, ::3], y.T[:, ::3]),
        (y.T, y.T[:1]), (y[::-1].T, x.T.copy().T[4:5]),
    ):  # fmt: skip
        agree(sum_and_difference("float64"), a, b)


def test_what_is_turned(rng):
    x, y = rng.normal(size=(70, 90)), rng.normal(size=(90, 70))
    two = sum_and_difference("float64")
    assert plan(two, x, x) is None
    assert plan(two, x, y[:1].T) is None
    assert [n for n, _ in plan(two, x, y.T)[0].turned] == ["x1"]
    assert [o.inner for _, o in plan(two, x, y[:, ::-1].T)[0].turned] == ["turned back"]
    assert plan(identity_program("float64"), y[:, ::-1].T)[0].is_copy
    assert plan(two, x, x[:, ::-1]) is None
    copy, words = plan(identity_program("float64"), y.T)
    assert copy.is_copy
    assert (words["L"], words["M"]) == (90, 70)
    few, words = plan(identity_program("float64"), rng.normal(size=(500, 3)).T)
    assert (few.few, words["L"]) == (3, 500)
    narrow, words = plan(identity_program("float64"), rng.normal(size=(3, 500)).T)
    assert (narrow.few, words["L"], narrow.turned[0][0]) == (3, 500, "y0")


def test_a_number_of_an_outer_axis_turns_nothing(rng):
    """It lasts for many rows: pixels of three channels stay rows, though a mask is of images."""
    x, of_image = rng.normal(size=(20, 30, 40, 3)), rng.normal(size=(20, 1, 1, 1))
    two = sum_and_difference("float64")
    assert plan(two, x[:, :, ::-1], of_image) is None
    assert plan(two, x, rng.normal(size=(20, 30, 40, 1)))[0].few == 3
    agree(two, x[:, :, ::-1], of_image)
    agree(two, of_image, x[:, ::-1])


def test_functions_copy_by_it(rng):
    x = T.ftensor3("x")
    turned = x.dimshuffle(2, 0, 1)
    outs = [turned.reshape((-1,)), turned, T.join(0, turned, turned), x[:, ::-1]]
    f = symdnn.function([x], outs, mode=symdnn.Mode(target="cpu"))
    data = rng.normal(size=(30, 40, 50)).astype("float32")
    wanted = data.transpose(2, 0, 1)
    for _ in range(3):
        flat, whole, twice, back = f(data)
    np.testing.assert_array_equal(flat, wanted.reshape(-1))
    np.testing.assert_array_equal(whole, wanted)
    np.testing.assert_array_equal(twice, np.concatenate([wanted, wanted]))
    np.testing.assert_array_equal(back, data[:, ::-1])
    assert "llvm.copy" in str(f.lowering_report())
    assert f(data[:0])[0].shape == (0,)


@pytest.mark.parametrize("over", [None, 0, 1])
@pytest.mark.parametrize(
    "dtypes", list(itertools.combinations(("int8", "int16", "float32", "float64"), 2))
)
def test_operands_of_two_widths(rng, dtypes, over):
    """Each width is turned by a function of its own: they are one module, alone and in sums."""
    x, y = ((rng.normal(size=(60, 50)) * 20).astype(d) for d in dtypes)
    z = rng.normal(size=(50, 60))
    vs = [T.tensor(str(v.dtype), v.shape) for v in (x, y, z)]
    term = vs[0].T * vs[1].T + vs[2]
    f = symdnn.function(vs, term if over is None else term.sum(over))
    wanted = x.T * y.T + z
    with config.change_flags(**{"cpu.compile": "always"}), warnings.catch_warnings():
        warnings.simplefilter("error")  # a refused module is one
        found = f(x, y, z)
    np.testing.assert_allclose(found, wanted if over is None else wanted.sum(over), 1e-5, 1e-3)
