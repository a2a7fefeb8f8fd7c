"""Rows of several warps: blocks that read their next row, and blocks that share a long row."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.codegen import row_plan
from symdnn.gpu.kernels.fused_rows import FusedRowsKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.lowered.fused_rows import (
    FusedRows,
    layer_norm_rows,
    softmax_grad_rows,
    softmax_rows,
)
from symdnn.ops.nn.batchnorm import LayerNorm
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

KERNEL = FusedRowsKernel()
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3, "float64": 1e-12}
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def macros(call: Any) -> dict[str, int]:
    """The numbers that a kernel's text begins with."""
    (text,) = KERNEL.sources(call)
    return {name: int(n) for name, n in re.findall(r"#define (\w+) (\d+)\n", text)}


def given(op: FusedRows, rows: int, length: int) -> list[Any]:
    """Rows, and parameters of a norm."""
    rng, found = new_rng(), []
    for i, dtype in enumerate(op.input_dtypes):
        shape = (rows if i < op.early else 1, length)
        array = rng.standard_normal(shape).astype(numpy_dtype(dtype))
        found.append(emulator.device_copy(array)[1])
    return found


def ops(dtype: str) -> list[FusedRows]:
    """With one and with two operands that are rows, and with parameters."""
    return [
        softmax_rows(Softmax(1), dtype), softmax_grad_rows(LogSoftmaxGrad(1), dtype),
        layer_norm_rows(LayerNorm((1,), 1e-5), dtype),
    ]  # fmt: skip


@needs_gpp
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("length", [1111, 1207], ids=str)
def test_a_block_reads_its_next_row(dtype, length, monkeypatch):
    monkeypatch.setattr(row_plan, "MULTIPROCESSORS", 1)
    monkeypatch.setattr(row_plan, "_FILLING_THREADS", 64)
    monkeypatch.setattr(row_plan, "most_shared_bytes", lambda: 224 << 10)
    for op in ops(dtype):
        arrays = given(op, 50, length)
        call = concrete(op, arrays)
        plan = macros(call)
        found, env = emulator.run(KERNEL, call, arrays)
        assert env.launched == ["fused_rows"]
        with monkeypatch.context() as apart:
            apart.setattr(row_plan, "_ROWS_AHEAD", 1)
            assert macros(call)["AHEAD"] == min(1, plan["AHEAD"])
            alone = emulator.run(KERNEL, call, arrays)[0]
        tol = TOLERANCE[dtype]
        for got, one, wanted in zip(found, alone, op.compute(*arrays), strict=True):
            assert got.tobytes() == one.tobytes()
            np.testing.assert_allclose(np.float64(got), np.float64(wanted), 5 * tol, 5 * tol)
        several = len(op.stages) > 1 and plan["LANES"] > 32
        assert plan["AHEAD"] or not several or dtype.endswith(("32", "64"))


def test_early_blocks_have_several_rows_and_all_rows_are_had(monkeypatch):
    monkeypatch.setattr(row_plan, "most_shared_bytes", lambda: 224 << 10)
    for rows in (1056, 1057, 4096, 10_034, 99_999):
        found = row_plan._ahead(row_plan.Share(256, 4, 256, rows, 4), 836, 16, rows)
        assert (found.ahead > 0, found.lanes, found.block) == (True, 224, 224), rows
        assert found.early * found.ahead + found.blocks - found.early == rows
        assert found.blocks - found.early >= 4 * row_plan.MULTIPROCESSORS
    for share, vectors, nbytes, rows in (
        (row_plan.Share(256, 4, 256, 600, 4), 836, 16, 600),
        (row_plan.Share(32, 4, 128, 9999, 4), 100, 16, 99_999),
        (row_plan.Share(256, 4, 256, 9999, 4), 836, 64, 9999),  # no room
    ):
        assert row_plan._ahead(share, vectors, nbytes, rows) == share


@pytest.mark.parametrize(
    ("dtype", "length", "blocks"),
    [
        ("float32", 20_000, 1), ("float32", 50_257, 1), ("float32", 128_256, 8),
        ("bfloat16", 50_257, 1), ("bfloat16", 128_256, 4), ("float16", 151_937, 4),
    ],
)  # fmt: skip
def test_a_long_row_is_shared_by_a_cluster(dtype, length, blocks, monkeypatch):
    x = np.ones((100, length), numpy_dtype(dtype))
    call = concrete(softmax_rows(LogSoftmax(1), dtype), [x])
    assert macros(call)["CLUSTER"] == 1  # without a device
    monkeypatch.setattr(row_plan, "most_shared_bytes", lambda: 224 << 10)
    monkeypatch.setattr(row_plan, "most_cluster_blocks", lambda: 8)
    plan = macros(call)
    assert (plan["CLUSTER"], plan["STAGED"]) == (blocks, 1)
    (text,) = KERNEL.sources(call)
    assert compile_cubin(text, (9, 0))
