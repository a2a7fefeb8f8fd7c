"""Elementwise loops whose results are wider than what they read: no result has half vectors."""

from __future__ import annotations

import pytest

from symdnn.gpu.codegen.launches import View
from symdnn.gpu.kernels.elementwise import ElementwiseKernel, elementwise
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import Builder
from symdnn.ops.elementwise.arithmetic import Cast
from tests.gpu import emulator
from tests.gpu.table import assert_close, concrete
from tests.seeded import new_rng

PAIRS = [
    ("uint8", "float32", 4), ("bfloat16", "float32", 4), ("float32", "float64", 2),
    ("int8", "float64", 2), ("float32", "bfloat16", 8), ("float64", "float32", 4),
    ("float32", "uint8", 8), ("bfloat16", "float16", 8),
]  # fmt: skip


@pytest.mark.parametrize(("have", "want", "width"), PAIRS)
def test_a_vector_of_the_result_has_16_bytes_at_most(have: str, want: str, width: int) -> None:
    b = Builder([have])
    sizes = [numpy_dtype(d).itemsize for d in (have, want)]
    views = [View(i, d, (1 << 16,), (n,)) for i, (d, n) in enumerate(zip((have, want), sizes))]
    (launch,) = elementwise(b.program([b.input(0).cast(want)]), views[:1], views[1:])
    assert (1 << 16) // int(launch.parameters[2]) == width


@pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
@pytest.mark.parametrize(("have", "want", "width"), PAIRS)
@pytest.mark.parametrize("shape", [(1003,), (6, 64), (5, 33), (3, 4, 16)], ids=str)
def test_casts_of_all_widths(have: str, want: str, width: int, shape: tuple[int, ...]) -> None:
    x = emulator.device_copy((new_rng().random(shape) * 99).astype(numpy_dtype(have)))[1]
    op = Cast(want)
    (got,), _ = emulator.run(ElementwiseKernel(), concrete(op, [x]), [x])
    assert_close(got, op.compute(x)[0])
