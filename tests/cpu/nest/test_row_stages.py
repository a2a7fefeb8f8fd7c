"""Stages of rows: stored values, strides of rows, against the op's reference."""

from dataclasses import replace

import numpy as np
import pytest

from symdnn.config import config
from symdnn.cpu.compiler import elf_loader, jit
from symdnn.cpu.nest.row_plan import LINE
from symdnn.cpu.nest.row_stages import RowLaunch, _planned, lies_in_bands
from symdnn.cpu.nest.row_stages_ir import row_stages_ir
from symdnn.graph.type import numpy_dtype
from symdnn.ops.lowered.fused_rows import FusedRows, Stage, program, softmax_rows
from symdnn.ops.nest.kept_terms import kept_term
from symdnn.ops.nn.softmax import LogSoftmax, Softmax
from tests.cpu.harness import compiled

pytestmark = compiled


def test_the_exponentials_of_a_softmax_are_kept():
    stage, term, after = kept_term(softmax_rows(Softmax(1), "float32"), "float32")
    assert (stage, term) == (1, 0)
    assert "exp" not in after.names
    e, r = np.float32([[1, 2, 4]]), np.float32([[0.5]])
    (found,) = after.evaluate(np.float32(7), np.float32(9), r, e)  # of x, top, 1 / sum and the term
    np.testing.assert_array_equal(found, e * r)


def test_near_misses_keep_nothing():
    assert kept_term(softmax_rows(LogSoftmax(1), "float32"), "float32") is None  # no exp behind
    narrow = softmax_rows(Softmax(1), "float16")
    assert kept_term(narrow, "float32") is None  # it would be rounded
    assert kept_term(narrow, "float32", True)[:2] == (1, 0)  # not beside the result
    w = "float64"
    powers = program((w,), lambda x: x.call("exp"))
    stage = Stage(powers, program((w, w), lambda s, n: s))
    after = program((w, w), lambda x, s: x.call("exp") * s + x)
    reads_first = FusedRows((1,), program((w,), lambda x: x), (stage,), after)
    assert kept_term(reads_first, w) is None  # the result may be where x was


def _drawn(op, arrays, work, adds, threads, names):
    outs = [np.full(a.shape, np.nan, a.dtype) for a in op.reference(*arrays)]
    given = [*arrays, *outs]
    operands = [(n, a.dtype.name, a.shape) for n, a in zip(names.split(), given, strict=True)]
    with config.change_flags(**{"openmp.threads": threads}):
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        RowLaunch(op, shape, operands, len(arrays), work, adds)(arrays, outs)
    return outs


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(40, 9, 30), (300, 1, 7), (64, 2, 129), (3, 5, 700)])
@pytest.mark.parametrize("axes", [(1, 2), (2,), (1,), (0,), (0, 1), (0, 2)])
def test_folds_of_two_stages_with_parameters(rng, shape, axes, dtype):
    """A maximum and a minimum, then sums of two terms; late inputs by columns, by rows, one."""
    w = dtype
    x, y = (rng.normal(size=shape).astype(w) for _ in range(2))
    column = tuple(n if d in axes else 1 for d, n in enumerate(shape))
    row = tuple(1 if d in axes else n for d, n in enumerate(shape))
    a, b, c = (rng.normal(size=s).astype(w) for s in (column, row, (1, 1, 1)))
    ends = Stage(
        program((w,) * 5, lambda x, y, *late: (x, y)),
        program((w,) * 3, lambda top, low, n: (top, low)), ("max", "min"),
    )  # fmt: skip
    sums = Stage(
        program((w,) * 7, lambda x, y, top, low, a, b, c: ((x - top) * a, (y - low) * c)),
        program((w,) * 5, lambda top, low, s, t, n: (s / n, t + top)),
    )  # fmt: skip
    after = program((w,) * 9, lambda x, y, top, low, s, t, a, b, c: (x * s + b, y - t * a))
    before = program((w, w), lambda x, y: (x, y))
    op = FusedRows(axes, before, (ends, sums), after, (0, 3))
    found = [
        _drawn(op, [x, y, a, b, c], w, "float64", k, "x0 x1 x2 x3 x4 y0 y1 r0 r3") for k in (1, 3)
    ]
    for one, three, wanted in zip(*found, op.reference(x, y, a, b, c), strict=True):
        assert one.tobytes() == three.tobytes()
        bound = 1e-12 if w == "float64" else 2e-4
        np.testing.assert_allclose(one, wanted, rtol=bound, atol=bound)


def test_neighbours_of_dense_arrays_are_in_rows_or_in_bands():
    assert lies_in_bands((4, 5, 6), (1,))
    assert lies_in_bands((4, 5, 1), (0,))
    assert not lies_in_bands((4, 5, 1), (1,))
    assert not lies_in_bands((1, 1), (0,))


def _assembly(text, processor):
    """What LLVM makes of a module for another x86-64 processor."""
    import llvmlite.binding as llvm

    jit._compiler()  # LLVM has begun
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=processor, opt=3)
    module = llvm.parse_assembly(text, llvm.create_context())
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_assembly(module)


@pytest.mark.skipif(not elf_loader.available(), reason="another machine")
@pytest.mark.parametrize("w", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("shape", [(40, 300), (300, 20)])
def test_extremes_of_bands_are_not_stored_by_masks(shape, kind, w):
    """Some processors take 20 cycles for such a store."""
    fold = Stage(program((w,), lambda x: x), program((w, w), lambda top, n: top), (kind,))
    after = program((w, w), lambda x, top: x - top)
    axes = (0,) if shape[1] > 30 else (1,)
    op = FusedRows(axes, program((w,), lambda x: x), (fold,), after)
    operands = [("x0", w, shape), ("y0", w, shape)]
    plan = _planned(op, shape, operands, w, w)[0]
    text = _assembly(row_stages_ir(plan), "haswell")
    assert "vmaxp" in text or "vminp" in text
    assert "vmaskmovp" not in text  # of floats; tiles have some of integers at their ends


def _turned(shape, axes=(1,), dtype="float32"):
    op = softmax_rows(Softmax(axes[0]), dtype)
    operands = [("x0", dtype, shape), ("y0", dtype, shape)]
    return _planned(op, shape, operands, dtype, dtype)[0].turned


def test_short_rows_are_turned():
    assert _turned((100, 30)) == ("x0", "y0")
    assert _turned((100, 64)) == ()  # they fill vectors
    assert _turned((100, 30), dtype="float64") == ()
    assert _turned((60, 30)) == ()  # fewer than lanes
    assert _turned((100, 30), axes=(0,)) == ()  # they are adjacent


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(64, 2), (131, 7), (200, 20), (5, 70, 17)])
def test_softmax_of_turned_rows(rng, shape, dtype):
    op = Softmax(len(shape) - 1)
    x = rng.normal(size=shape).astype(numpy_dtype(dtype))
    x.flat[:3] = np.inf, np.nan, -np.inf
    work = dtype if dtype == "float64" else "float32"
    rows = softmax_rows(op, dtype)
    found = [_drawn(rows, [x], work, work, k, "x0 y0")[0] for k in (1, 3)]
    assert found[0].tobytes() == found[1].tobytes()
    with np.errstate(all="ignore"):
        (wanted,) = rows.reference(x)
    bound = {"float64": 1e-14, "float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}[dtype]
    a, b = found[0].astype("float64"), wanted.astype("float64")
    np.testing.assert_allclose(a, b, rtol=bound, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(3, 7), (5, 300), (9, 130), (2, LINE), (2, LINE + 1), (4, 9, 33)]
)
def test_exponentials_of_narrow_rows_are_kept_apart(rng, dtype, shape):
    """In float32: the bits are those of exponentials that are computed twice."""
    axes = tuple(range(1, len(shape)))
    op = softmax_rows(Softmax(1), dtype)
    op = replace(op, axes=axes)
    x = (rng.normal(size=shape) * 5).astype(numpy_dtype(dtype))
    x[0, 1], x[-1, :1] = np.inf, -np.inf
    operands = [("x0", dtype, shape), ("y0", dtype, shape)]
    assert _planned(op, shape, operands, "float32", "float64")[0].apart == (x[0].size <= LINE)
    (found,) = _drawn(op, [x], "float32", "float64", 2, "x0 y0")
    with np.errstate(all="ignore"):
        e = np.exp(x.astype("float64") - x.max(axes, keepdims=True).astype("float64"))
        wanted = (e / e.sum(axes, keepdims=True)).astype("float32")
    step = 2**-10 if dtype == "float16" else 2**-7
    np.testing.assert_allclose(found.astype("float32"), wanted, rtol=step, atol=2**-24)
    with pytest.MonkeyPatch.context() as m:
        m.setattr("symdnn.cpu.nest.row_stages.LINE", 0)
        (twice,) = _drawn(op, [x], "float32", "float64", 1, "x0 y0")
    np.testing.assert_array_equal(found.view("int16"), twice.view("int16"))
