"""The sum of many arrays on a GPU: sizes around chunks, layouts, many arrays, equal bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
from symdnn import nn
from symdnn.gpu.kernels import totals as kernels
from symdnn.graph.type import TensorType
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.totals import Totals
from tests.gpu import emulator
from tests.gpu.table import assert_close, concrete

KERNEL = kernels.TotalsKernel()


def op_of(arrays: list[Any], result: str = "float32") -> Totals:
    """The sum of squares, computed in the dtype of the result."""
    programs = []
    for a in arrays:
        builder = Builder([a.dtype.name])
        x = builder.input(0).cast(result)
        programs.append(builder.program([x * x]))
    return Totals(tuple(programs))


@pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")
@pytest.mark.parametrize("result", ["float32", "float64"])
def test_sizes_around_chunks_and_layouts(result: str) -> None:
    rng = np.random.default_rng(3)
    chunk = kernels.CHUNK_ELEMENTS
    arrays = [rng.standard_normal(n) for n in (1, 7, chunk - 1, chunk, chunk + 3)]
    arrays = [a.astype(result) for a in arrays]
    arrays += [rng.standard_normal((5, 6)).astype("float16"), np.zeros((0, 3), result)]
    arrays.append(rng.standard_normal((4, 3, 5)).astype(result).transpose(2, 0, 1))
    arrays.append(rng.standard_normal(9).astype(result)[1:])
    call = concrete(op_of(arrays, result), arrays)
    (found,), env = emulator.run(KERNEL, call, arrays)
    (want,) = call.op.compute(*arrays)
    assert_close(found, want, 1e-5 if result == "float32" else 1e-12)
    assert env.launched.count("merge") == 1
    assert env.launched.count("totals") == 3 if result == "float32" else 2


@pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")
def test_more_arrays_than_a_table_has(monkeypatch: Any) -> None:
    arrays = [np.full(3, i, "float32") for i in range(2 * kernels._MAX_ARRAYS + 1)]
    call = concrete(op_of(arrays), arrays)
    (found,), env = emulator.run(KERNEL, call, arrays)
    assert env.launched == ["totals"] * 3 + ["merge"]
    assert_close(found, np.float32(3 * sum(i * i for i in range(len(arrays)))), 1e-6)


def test_only_strided_arrays_are_copied() -> None:
    for strides, dense in [((4, 12), True), ((12, 4), True), ((32, 4), False), ((0, 4), False)]:
        assert kernels._is_dense((3, 3), strides, 4) is dense
    assert kernels._is_dense((3, 1), (4, 400), 4)


@pytest.mark.gpu
def test_the_norm_of_many_arrays_on_a_device(cuda: Any) -> None:
    """Beside NumPy's in double precision, with equal bits in each call."""
    rng = np.random.default_rng(4)
    shapes = [(300, 70), (64, 3, 3, 64), (1,), (100003,), (5, 1)] * 40
    vs = [TensorType("float32", s)(f"v{i}") for i, s in enumerate(shapes)]
    values = [rng.standard_normal(s).astype("float32") for s in shapes]
    f = symdnn.function(vs, nn.global_norm(vs), mode=symdnn.Mode(target="cuda"))
    found = [np.asarray(f(*values)) for _ in range(3)]
    want = np.sqrt(sum((v.astype("float64") ** 2).sum() for v in values))
    np.testing.assert_allclose(found[0], want, rtol=2e-6)
    assert found[0] == found[1] == found[2]
