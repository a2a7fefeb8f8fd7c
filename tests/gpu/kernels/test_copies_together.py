"""Joins and splits of many pieces: one kernel, whose text runs on a CPU, beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.gpu.kernels.concat_pad import JoinKernel
from symdnn.gpu.kernels.copy import SplitKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.join import Join, Split
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
