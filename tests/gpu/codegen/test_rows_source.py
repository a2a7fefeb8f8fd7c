"""The text of rows that are read once: what it computes once, and how short rows are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.codegen import row_plan
from symdnn.gpu.codegen.rows_source import RowOperand, tile_places
from symdnn.gpu.kernels.fused_rows import FusedRowsKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.lowered.fused_rows import (
    FusedRows,
    Stage,
    program,
    softmax_grad_rows,
    softmax_rows,
)
from symdnn.ops.nest.kept_terms import hoisted
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

KERNEL = FusedRowsKernel()
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def drawn(dtype: str, *shape: int) -> Any:
    return emulator.device_copy(new_rng().standard_normal(shape).astype(numpy_dtype(dtype)))[1]


def compared(op: FusedRows, arrays: list[Any]) -> str:
    """The text, whose results are the op's."""
    call = concrete(op, arrays)
    found, env = emulator.run(KERNEL, call, arrays)
    assert env.launched == ["fused_rows"]
    tol = TOLERANCE[arrays[0].dtype.name]
    for got, wanted in zip(found, op.compute(*arrays), strict=True):
        np.testing.assert_allclose(np.float64(got), np.float64(wanted), tol, tol)
    (text,) = KERNEL.sources(call)
    return text


def written_norm(dtype: str) -> FusedRows:
    """x / sqrt(mean(x * x)), where the mean is rounded to the dtype of x."""
    w = "float32"
    squares = Stage(program((w,), lambda x: x * x), program((w, w), lambda total, n: total / n))
    after = program((w, w), lambda x, m: x * (1 / m.cast(dtype).cast(w).call("sqrt")), dtype)
    return FusedRows((1,), program((dtype,), lambda x: x.cast(w)), (squares,), after)


def test_what_follows_from_rows_alone_is_apart():
    w = "float32"
    p = program((w, w, w), lambda x, a, b: ((x - a * b) * (a.call("sqrt") + 1), a.call("sqrt") + 1))
    once, rest = hoisted(p, range(1, 3))
    assert sorted(s.name for q in once for s in q.body) == ["add", "const", "mul", "sqrt"]
    assert "sqrt" not in rest.names
    x, a, b = np.float32([[1, 2], [3, 4]]), np.float32([[4], [9]]), np.float32([[2], [3]])
    rows = [q.evaluate(a, b)[0] for q in once]
    for got, wanted in zip(rest.evaluate(x, a, b, *rows), p.evaluate(x, a, b), strict=True):
        np.testing.assert_array_equal(np.broadcast_to(got, wanted.shape), wanted)


def test_what_reads_elements_or_nothing_stays():
    w = "float32"
    for compute in (lambda x, a: x * a, lambda x, a: x + 2, lambda x, a: x.call("sqrt") - a):
        p = program((w, w), compute)
        assert hoisted(p, range(1, 2)) == ([], p)


@needs_gpp
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_root_of_a_rounded_mean_is_taken_once_for_each_row(dtype):
    text = compared(written_norm(dtype), [drawn(dtype, 5, 323)])
    results = text[text.index("void results(") :].partition("}")[0]
    assert "s_sqrt" not in results
    assert "s_sqrt" in text


@needs_gpp
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(131, 10), (256, 21), (130, 3)], ids=str)
def test_short_rows_go_through_shared_memory(shape, dtype):
    for kind in (Softmax, LogSoftmax):
        text = compared(softmax_rows(kind(1), dtype), [drawn(dtype, *shape)])
        assert f"#define TILED {shape[1]}\n" in text
    op = softmax_grad_rows(SoftmaxGrad(1), dtype)
    assert f"#define TILED {shape[1]}\n" in compared(
        op, [drawn(dtype, *shape), drawn(dtype, *shape)]
    )


@needs_gpp
@pytest.mark.parametrize("length", [7, 33])
def test_several_threads_share_a_short_row(length, monkeypatch):
    monkeypatch.setattr(row_plan, "_TILE_WORDS", 10)
    for dtype in ("float32", "bfloat16"):
        arrays = [drawn(dtype, 131, length) for _ in range(2)]
        text = compared(softmax_grad_rows(SoftmaxGrad(1), dtype), arrays)
        assert f"#define TILED {length}\n" in text
        assert f"#define LANES {2 if length == 7 else 8}\n" in text


def test_a_result_takes_the_place_of_an_operand_in_registers():
    wide, narrow = (RowOperand(d, "tiled") for d in ("float32", "bfloat16"))
    one = RowOperand("float32", "one")
    assert tile_places((wide, narrow), (narrow, narrow), 2, 16) == (
        {"x0": 0, "x1": 64, "y0": 64, "y1": 96}, 128,
    )  # fmt: skip
    assert tile_places((one, narrow), (narrow,), 1, 16) == ({"x1": 0, "y0": 32}, 64)  # a late one


@needs_gpp
def test_short_rows_in_vectors_and_longer_ones_do_not():
    op = softmax_rows(Softmax(1), "float32")
    for x in (drawn("float32", 70, 12), drawn("float32", 70, 41)):
        assert "#define TILED 0" in compared(op, [x])
    compared(op, [drawn("float32", 70 * 10 + 1)[1:].reshape(70, 10)])  # at an odd address


@needs_gpp
def test_short_rows_of_float64():
    for shape in ((131, 10), (256, 21), (129, 9)):
        compared(softmax_rows(Softmax(1), "float64"), [drawn("float64", *shape)])


@needs_gpp
@pytest.mark.parametrize("kind", [Softmax, LogSoftmaxGrad])
@pytest.mark.parametrize("length", [323, 100])
def test_rows_that_fill_the_device_have_few_lanes(kind, length, monkeypatch):
    monkeypatch.setattr(row_plan, "_FILLING_THREADS", 1)
    one = kind is Softmax
    for dtype in ("float32", "bfloat16"):
        op = (softmax_rows if one else softmax_grad_rows)(kind(1), dtype)
        text = compared(op, [drawn(dtype, 37, length) for _ in range(1 if one else 2)])
        assert "#define LANES 64" not in text


def test_the_text_of_short_rows_compiles():
    for dtype in ("float32", "bfloat16"):
        x = np.ones((1000, 10), numpy_dtype(dtype))
        for op, arrays in (
            (softmax_rows(Softmax(1), dtype), [x]),
            (softmax_grad_rows(LogSoftmaxGrad(1), dtype), [x, x]),
            (written_norm(dtype), [x]),
        ):
            for text in KERNEL.sources(concrete(op, arrays)):
                assert "#define TILED 10\n" in text
                assert compile_cubin(text, (9, 0))
