"""Joins and splits of many pieces are one kernel, other bits a copy: their text on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu.kernels.concat_pad import JoinKernel
from symdnn.gpu.kernels.copy import CopyKernel, SplitKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.join import Join, Split
from symdnn.ops.elementwise.storage import BitCast, bitcast
from tests.gpu import emulator
from tests.gpu.table import concrete

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")

#: Shapes of pieces, and the axis along which they are joined.
PIECES = [
    ([(3,), (1,), (40_000,), (0,), (7,)], 0),
    ([(4, 1), (4, 3), (4, 8), (4, 0), (4, 5)], 1),
    ([(6, 4), (6, 8), (6, 4), (6, 16)], 1),
    ([(2, 3, 5), (2, 1, 5), (2, 2, 5)], 1),
    ([(1,)] * 150, 0),
    ([(300, 16), (300, 32), (300, 80)], 1),
]
DTYPES = ["float32", "uint8", "bool", "bfloat16", "int64", "complex64", "complex128"]


def arrays_of(shapes, dtype):
    rng = np.random.default_rng(len(shapes))
    return [rng.integers(0, 99, s).astype(numpy_dtype(dtype)) for s in shapes]


def dense(array):
    return emulator.device_copy(array)[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shapes", "axis"), PIECES)
def test_a_join_is_one_kernel(shapes, axis, dtype):
    pieces = arrays_of(shapes, dtype)
    call = concrete(Join(axis), pieces)
    (got,), env = emulator.run(JoinKernel(), call, [dense(p) for p in pieces])
    np.testing.assert_array_equal(got, np.concatenate(pieces, axis))
    assert env.launched == ["copy_rows"] * -(-len(pieces) // 73)


@pytest.mark.parametrize("shapes", [[(4, 3), (4, 5)], [(3, 4), (5, 4), (2, 4), (7, 4)]])
def test_two_pieces_and_transposed_ones_have_kernels_of_their_own(shapes):
    pieces = [a.T if len(shapes) > 2 else a for a in arrays_of(shapes, "float32")]
    strided = [dense(a.T).T if len(shapes) > 2 else dense(a) for a in pieces]
    (got,), env = emulator.run(JoinKernel(), concrete(Join(1), pieces), strided)
    np.testing.assert_array_equal(got, np.concatenate(pieces, 1))
    assert len(env.launched) == len(shapes)
    assert "copy_rows" not in env.launched


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128"])
@pytest.mark.parametrize(("shapes", "axis"), PIECES[:4])
def test_a_split_is_one_kernel(shapes, axis, dtype):
    pieces = arrays_of(shapes, dtype)
    whole = np.concatenate(pieces, axis)
    sizes = [np.int64(s[axis]) for s in shapes]
    call = concrete(Split(axis, (None,) * len(shapes)), [whole, *map(np.asarray, sizes)])
    got, env = emulator.run(SplitKernel(), call, [dense(whole), *sizes])
    for piece, value in zip(pieces, got, strict=True):
        np.testing.assert_array_equal(value, piece)
    assert env.launched == ["copy_rows"]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [("float32", "int32"), ("uint16", "bfloat16"), ("float64", "uint64"), ("int8", "uint8"),
     ("bfloat16", "float16"), ("complex64", "int64")],
)  # fmt: skip
def test_other_bits_are_a_copy(dtype, wanted, transposed):
    (x,) = arrays_of([(40, 70)], dtype)
    x = (x - x.mean().astype(x.dtype)).astype(x.dtype)
    given, want = (dense(x.T).T, x) if transposed else (dense(x), x)
    (got,), env = emulator.run(CopyKernel(), concrete(BitCast(wanted), [x]), [given])
    assert got.dtype == numpy_dtype(wanted)
    np.testing.assert_array_equal(got.view(x.dtype), want)
    assert len(env.launched) == 1


def test_other_bits_are_made_on_the_device():
    x = T.fmatrix()
    mode = symdnn.Mode(target="cuda:sm_90")
    with config.change_flags(assert_lowered="raise"):
        f = symdnn.function([x], bitcast(x.T, "int32"), mode=mode)
    assert any(isinstance(n.op, BitCast) for n in f.fgraph.apply_nodes)
