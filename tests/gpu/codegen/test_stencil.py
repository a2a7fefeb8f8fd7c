"""Kernels of stencils, compared with NumPy on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.gpu.codegen.stencil_source import tile_of
from symdnn.gpu.kernels.stencil import StencilKernel
from symdnn.ops.core.dtype import is_narrow_float, wide_float
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.stencil import (
    BORDERS,
    FusedStencil,
    Shifted,
    StencilResult,
    StencilStage,
    needs_of,
)
from tests.gpu import emulator
from tests.gpu.codegen.test_kernels import compare, dense, draws
from tests.gpu.stencils import PROGRAMS
from tests.gpu.table import concrete

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")

KERNEL = StencilKernel()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    program, arrays = PROGRAMS[name]
    inputs = [T.TensorType(a.dtype.name, a.shape)() for a in arrays]
    f = symdnn.function(inputs, list(program(*inputs)), mode=symdnn.Mode(target="cuda:sm_90"))
    (node,) = [n for n in f.fgraph.toposort() if isinstance(n.op, FusedStencil)]
    rng = np.random.default_rng(3)
    values = [
        dense((rng.integers(-8, 9, v.type.shape) / 4).astype(v.type.dtype)) for v in node.inputs
    ]
    compare(KERNEL, node.op, *values)


def doubled(dtype: str) -> Any:
    """Twice the operand."""
    b, work = Builder([dtype]), wide_float(dtype) if is_narrow_float(dtype) else dtype
    value = b.input(0).cast(work)
    return b.program([(value + value).cast(dtype)])


def shifted(array: int, begin: tuple[int, ...], *border: str) -> Shifted:
    return Shifted(array, begin, border or ("",) * len(begin), (None,) * len(begin))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "uint64"])
def test_numbers_of_all_dtypes(dtype: str) -> None:
    fill = "7" if "int" in dtype else (1.5).hex()
    read = Shifted(0, (-1, 2), ("", ""), ((0, 5), (0, 9)), fill)
    first = StencilStage(doubled(dtype), (read,), (6, 9))
    second = StencilStage(doubled(dtype), (shifted(1, (1, 0)),), (5, 9))
    op = FusedStencil(1, (first, second), (StencilResult(2, (0, 4)), StencilResult(1, (0, 0))))
    compare(KERNEL, op, draws(5, 9, dtype=dtype))


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize(
    ("n", "begin", "size"), [(5, -3, 11), (70, -30, 150), (3, 2, 1), (8, -8, 8)]
)
def test_borders_of_inputs_and_of_stages(border: str, n: int, begin: int, size: int) -> None:
    if border == "reflect" and begin == -n:
        begin += 1
    for source in (0, 1):
        stages = [StencilStage(doubled("float32"), (shifted(0, (0, 0)),), (n, 4))]
        stages.append(
            StencilStage(doubled("float32"), (shifted(source, (begin, 0), border, ""),), (size, 4))
        )
        op = FusedStencil(1, tuple(stages), (StencilResult(2, (0, 0)), StencilResult(1, (0, 0))))
        compare(KERNEL, op, draws(n, 4))


def test_operands_lie_in_any_order_and_repeat() -> None:
    b = Builder(["float32", "float32"])
    total = b.program([b.input(0) + b.input(1)])
    reads = (shifted(0, (1, 0, 2)), shifted(1, (0, 0, 0)))
    op = FusedStencil(2, (StencilStage(total, reads, (5, 6, 40)),), (StencilResult(2, (0, 3, 0)),))
    compare(KERNEL, op, draws(42, 6, 6).transpose(2, 1, 0)[:6], draws(1, 6, 1))


def test_what_no_block_can_compute_is_refused() -> None:
    def chain(*begins: int) -> FusedStencil:
        stages = [StencilStage(doubled("float64"), (shifted(0, (0,)),), (9000,))]
        stages += [
            StencilStage(
                doubled("float64"), (shifted(k + 1, (n,)),), (9000 - sum(begins[: k + 1]),)
            )
            for k, n in enumerate(begins)
        ]
        both = Builder(["float64", "float64"])
        program = both.program([both.input(0) + both.input(1)])
        reads = (shifted(1, (0,)), shifted(len(begins) + 1, (0,)))
        stages.append(StencilStage(program, reads, stages[-1].shape))
        return FusedStencil(1, tuple(stages), (StencilResult(len(begins) + 2, (0,)),))

    near, far = chain(2), chain(8000)
    assert tile_of(near) is not None
    assert KERNEL.refuses(concrete(far, [draws(9000, dtype="float64")])) is not None
    compare(KERNEL, near, draws(9000, dtype="float64"))
    cut = StencilStage(doubled("float32"), (shifted(1, (1,)),), (8,))
    wrapped = StencilStage(doubled("float32"), (shifted(2, (-3,), "wrap"),), (8,))
    first = StencilStage(doubled("float32"), (shifted(0, (0,)),), (9,))
    op = FusedStencil(1, (first, cut, wrapped), (StencilResult(3, (0,)),))
    assert needs_of(op) is None
    assert KERNEL.refuses(concrete(op, [draws(9)])) is not None
