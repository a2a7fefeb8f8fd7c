"""Nests over every second, third or fourth number: they are packed into the first cache."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.nest.kernels import block_of, reduction_block
from symdnn.cpu.nest.schedule import scheduled
from symdnn.ops.array.argreduce import ArgMin
from symdnn.ops.array.cumulative import CumSum, LinearRecurrence
from symdnn.ops.array.reduce import LogSumExp, Max, Sum
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.nest.of_ops import reduction_fold, reduction_nest, scan_fold, scan_nest
from tests.cpu.harness import compiled

pytestmark = compiled

SHAPES = [
    ((5, 3000), (1,)), ((300, 700), (0,)), ((37, 513), (0,)), ((60, 200), (1,)),
    ((40, 9, 130), (0, 2)), ((70, 1100), (0, 1)), ((1, 20_000), (1,)), ((700, 10), (1,)),
]  # fmt: skip


def described(arrays):
    return [(a.dtype.name, a.strides) for a in arrays]


def apart(rng, shape, step, dtype):
    """Numbers with gaps; there is no memory behind the last one."""
    length = step * (shape[-1] - 1) + 1
    x = rng.integers(-9, 9, (*shape[:-1], length)).astype(dtype)
    return x[..., ::step]


def agree(op, arrays):
    """The results are those of the op, and the same bits for any number of threads."""
    shape, axes = arrays[0].shape, op.reductions[0].axes
    wanted, bits = op.compute(*arrays), set()
    fold = reduction_fold(op, op.program.inputs, "int32", True)
    for count in (1, 3):
        outs = [np.full_like(np.asarray(v), 7) for v in wanted]
        with config.change_flags(**{"openmp.threads": count}):
            reduction_block(fold, shape, axes, arrays, outs).run([*arrays, *outs])
        bits.add(b"".join(o.tobytes() for o in outs))
        for found, result in zip(outs, wanted, strict=True):
            np.testing.assert_allclose(found, result, 1e-5)
    assert len(bits) == 1
    nest = reduction_nest(fold, shape, axes, described(arrays), described(outs))
    return scheduled(nest.merged(), 1)[0]


@pytest.mark.parametrize(
    ("dtype", "step"),
    [("float32", 2), ("float64", 3), ("float16", 2), ("int8", 4), ("int64", 2)],
)
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_reductions(rng, shape, axes, dtype, step):
    work = "float32" if dtype == "float16" else dtype
    acc = "int64" if dtype.startswith("int") else work
    x, y = apart(rng, shape, step, dtype), apart(rng, shape, 2, dtype)
    y = np.ascontiguousarray(y.T).T if len(shape) == 2 else y  # it lies across
    b = Builder([dtype, dtype])
    value = b.cast(b.input(0), work) + b.cast(b.input(1), work)
    for second in (y, np.broadcast_to(y[..., :1], shape)):
        for reductions in ((Sum(axes, False, acc, acc), Max(axes)), (ArgMin(axes), Max(axes))):
            op = FusedReduce(b.program([value] * len(reductions)), reductions)
            agree(op, [x, second])
    b = Builder([dtype])
    op = FusedReduce(b.program([b.input(0)]), (Max(axes),))
    schedule = agree(op, [x])
    if shape[-1] > 10 and schedule.shape != "lines":
        assert schedule.reads[0].inner == f"packed every {step}"


def test_a_fold_of_several_states(rng):
    x = apart(rng, (30, 2000), 2, "float64") / 9
    b = Builder(["float64"])
    for axes in ((0,), (1,), (0, 1)):
        agree(FusedReduce(b.program([b.input(0)]), (LogSumExp(axes),)), [x])


@pytest.mark.parametrize("columns", [2, 5, 30, 48])
@pytest.mark.parametrize("step", [2, 3])
def test_columns_that_are_part_of_a_line_with_gaps(rng, columns, step):
    x, b = rng.normal(size=(3, 700, columns, step))[..., 0], Builder(["float64"])
    for reductions in ((LogSumExp((1,)),), (ArgMin((1,)), Sum((1,), False, "float64", "float64"))):
        op = FusedReduce(b.program([b.input(0)] * len(reductions)), reductions)
        schedule = agree(op, [x])
        assert schedule.beside == columns
        assert schedule.reads[0].inner == f"packed every {step}"


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "complex64", "complex128"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_arguments_of_functions(rng, axis, dtype):
    whole = rng.integers(0, 9, (300, 801)).astype(dtype)
    x = T.TensorType(dtype, (None, None))()
    sums = symdnn.function([x], [x.sum(axis)])
    others = [] if dtype[0] == "c" else [x.max(axis), x.argmax(axis), (x * x).sum(axis)]
    for given in (whole[:, ::2], whole[:, 1::3], whole.T[::2], whole[::2, ::4]):
        sums(np.ascontiguousarray(given))
        for _ in range(3):
            np.testing.assert_array_equal(sums(given)[0], given.sum(axis))
        for wanted, v in zip((given.max(axis), given.argmax(axis)), others, strict=False):
            f = symdnn.function([x], v)
            f(np.ascontiguousarray(given))
            np.testing.assert_array_equal(f(given), wanted)


@pytest.mark.parametrize("axis", [0, 1])
def test_scans_read_their_operands_where_they_are(rng, axis):
    """Whether they have gaps, or lie across each other."""
    x = apart(rng, (300, 500), 2, "float64") / 9
    dense, row = x.copy(), np.broadcast_to(apart(rng, (900, 500), 1, "float64").T[:, 3], x.shape)
    cases = [(CumSum(axis), [x]), (CumSum(axis), [dense.T.copy().T])]
    cases += [(LinearRecurrence(axis), [a / 9, row]) for a in (x, dense, np.asfortranarray(dense))]
    cases += [(LinearRecurrence(axis), [a / 9, b]) for a, b in ((x, dense), (x, x.T.copy().T))]
    for op, arrays in cases:
        (wanted,) = op.compute(*arrays)
        y = np.full(x.shape, 7.0)
        fold = scan_fold(op, "float64", True).stepwise()
        nest = scan_nest(op, fold, x.shape, described(arrays), described([y]))
        block_of(nest).run([*arrays, y])
        np.testing.assert_allclose(y, wanted, 1e-9, 1e-9)


@pytest.mark.parametrize("count", [5, 16, 17, 50, 65])
@pytest.mark.parametrize("axes", [(1, 4), (0, 2, 4), (0, 1, 4), (4,)])
def test_lanes_that_are_no_whole_vectors(rng, axes, count):
    """Those of tiles are computed in whole vectors; those along short lines meet."""
    x = rng.normal(size=(3, 9, 5, 2, count))
    x[1, 2, 3, 1, 4] = np.nan
    b = Builder(["float64"])
    for reductions in ((LogSumExp(axes), ArgMin(axes)), (Sum(axes, False, "float64", "float64"),)):
        op = FusedReduce(b.program([b.input(0)] * len(reductions)), reductions)
        schedule = agree(op, [x])
    op = FusedReduce(b.program([b.input(0)]), (LogSumExp(axes),))
    schedule = agree(op, [x])
    if axes == (0, 2, 4) and count >= 16:
        assert (schedule.shape, schedule.meet) == ("columns", True)
        assert count <= schedule.lanes < 2 * count
