"""Reductions of which each thread has several outputs: of a short axis, or of pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.codegen import several_outputs
from symdnn.gpu.kernels.reduce import ReductionKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array import argreduce
from symdnn.ops.array import reduce as red
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedReduce
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

KERNEL = ReductionKernel()
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
OPS: dict[str, Any] = {
    "sum": lambda axes: red.Sum(axes, False, "float32", "float32"), "max": red.Max,
    "kept": lambda axes: red.Sum(axes, True, "float32", "float32"),
    "argmin": argreduce.ArgMin, "logsumexp": red.LogSumExp,
}  # fmt: skip
#: Shapes of two operands, and axes; the last has few outputs of many elements.
CASES = [
    ((50, 64, 1), (50, 64, 3), (1,)), ((50, 1, 3), (50, 17, 3), (1,)), ((40, 3), (40, 3), (0,)),
    ((50, 7, 1), (50, 7, 3), (1,)),
    ((4, 9, 1, 3), (4, 1, 30, 3), (1,)), ((2, 30, 40, 1), (2, 1, 40, 3), (2,)),
    ((2, 9001, 1), (2, 9001, 3), (1,)),
]  # fmt: skip


def terms(dtype: str, count: int = 1) -> Any:
    """The program of ``a * b``, and of ``a``."""
    b = Builder((dtype, dtype))
    x, y = (b.input(i).cast("float32") for i in range(2))
    return b.program([x * y, x][:count])


@needs_gpp
@pytest.mark.parametrize(("first", "second", "axes"), CASES, ids=str)
@pytest.mark.parametrize("name", [*OPS])
def test_sums_beside_a_short_axis(first, second, axes, name):
    dtype = "bfloat16" if name == "max" else "float32"
    rng, op = new_rng(), OPS[name](axes)
    arrays = [rng.standard_normal(s).astype(numpy_dtype(dtype)) for s in (first, second)]
    wide = [a.astype("float32") for a in arrays]
    wanted = op.compute(wide[0] * wide[1])[0]
    fused = FusedReduce(terms(dtype), (op,))
    call = concrete(fused, arrays)
    (got,), env = emulator.run(KERNEL, call, [emulator.device_copy(a)[1] for a in arrays])
    assert env.launched == ["reduce"]
    weighted = first[-1] == 1 and np.broadcast_shapes(first, second)[axes[0]] >= 8
    assert all(("s.s2.result()" in text) == weighted for text in KERNEL.sources(call))
    np.testing.assert_allclose(got, wanted, 2e-5, 2e-5)


@needs_gpp
def test_two_sums_beside_two_columns():
    """Of columns that have no vectors, since they are a part of longer lines."""
    rng = new_rng()
    x, y = (rng.standard_normal(s).astype("float32") for s in ((40, 33, 3), (40, 33, 1)))
    ops = tuple(red.Sum((1,), False, "float32", "float32") for _ in range(2))
    call = concrete(FusedReduce(terms("float32", 2), ops), [x[..., 1:], y])
    memory = [emulator.device_copy(x)[1][..., 1:], emulator.device_copy(y)[1]]
    got, env = emulator.run(KERNEL, call, memory)
    assert env.launched == ["reduce"]
    for a, b in zip(got, ((x[..., 1:] * y).sum(1), x[..., 1:].sum(1)), strict=True):
        np.testing.assert_allclose(a, b, 2e-5, 2e-5)


@needs_gpp
@pytest.mark.parametrize("length", [3, 5, 7, 9])
def test_rows_of_a_few_elements_are_read_by_a_thread_each(length):
    x = new_rng().standard_normal((100_000, length)).astype("float32")
    call = concrete(OPS["sum"]((1,)), [x])
    (got,), _ = emulator.run(KERNEL, call, [emulator.device_copy(x)[1]])
    np.testing.assert_allclose(got, x.sum(1), 2e-5, 2e-5)


#: Operands of pairs, batched or not, with rows of vectors and of single elements.
PAIRS = [
    ((16, 1, 16), (1, 37, 16), (2,)), ((2, 12, 1, 8), (2, 1, 20, 8), (3,)),
    ((8, 1, 7), (1, 99, 7), (2,)), ((30, 1, 64), (1, 3, 64), (2,)),
]  # fmt: skip


@needs_gpp
@pytest.mark.parametrize(("first", "second", "axes"), PAIRS, ids=str)
@pytest.mark.parametrize("name", ["sum", "argmin"])
def test_a_thread_has_several_pairs(first, second, axes, name, monkeypatch):
    monkeypatch.setattr(several_outputs, "_LEAST_WORK", 0)
    rng, op = new_rng(), OPS[name](axes)
    arrays = [rng.standard_normal(s).astype("float32") for s in (first, second)]
    call = concrete(FusedReduce(terms("float32"), (op,)), arrays)
    (got,), env = emulator.run(KERNEL, call, [emulator.device_copy(a)[1] for a in arrays])
    assert env.launched == ["reduce"]
    assert all("s.s1.result()" in text for text in KERNEL.sources(call))
    np.testing.assert_allclose(got, op.compute(arrays[0] * arrays[1])[0], 2e-5, 2e-5)


def test_few_pairs_are_divided_among_all_threads():
    arrays = [np.zeros(s, "float32") for s in ((16, 1, 64), (1, 16, 64))]
    call = concrete(FusedReduce(terms("float32"), (OPS["sum"]((2,)),)), arrays)
    assert not any("s.s1." in text for text in KERNEL.sources(call))


def test_sources_compile():
    larger = ((600, 1, 16), (1, 700, 16), (2,))
    for first, second, axes in (*CASES, larger):
        arrays = [np.zeros(s, "float32") for s in (first, second)]
        for text in KERNEL.sources(
            concrete(FusedReduce(terms("float32"), (OPS["sum"](axes),)), arrays)
        ):
            assert compile_cubin(text, (9, 0))
