"""Nests as compiled loops: drawn ones, arg-reductions and what is fused to them, against NumPy."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.ir.loops_ir import BRIEF
from symdnn.cpu.ir.turn_ir import TURN_BLOCK
from symdnn.cpu.nest import kernels
from symdnn.cpu.nest.kernels import NestReduceKernel, block_of, reduction_block
from symdnn.cpu.nest.nest_ir import nest_ir
from symdnn.cpu.nest.schedule import scheduled
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.argreduce import ArgMax, ArgMin
from symdnn.ops.array.cumulative import CumMax, CumProd, CumSum
from symdnn.ops.array.reduce import AllTrue, AnyTrue, LogSumExp, Max, Sum
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.nest import monoid
from symdnn.ops.nest.nest import Fold
from symdnn.ops.nest.of_ops import reduction_fold, reduction_nest, scan_fold, scan_nest
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled

KERNEL = NestReduceKernel()
#: Columns, lanes, lines and chunks of each; axes that are apart; fewer elements than lanes.
SHAPES = [
    ((5,), (0,)), ((20_000,), (0,)), ((3, 9000), (1,)), ((9000, 3), (0,)), ((300, 70), (1,)),
    ((700, 130), (0,)), ((60, 10), (1,)), ((7, 300, 9), (0, 2)), ((4, 30, 9), (0, 1, 2)),
    ((2, 3, 2), (1,)), ((40, 30, 20), (0, 1)), ((1, 1), (0, 1)), ((40_000, 5), (0,)),
]  # fmt: skip
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int64", "uint64", "bool"]


def drawn(rng, shape, dtype):
    """Numbers with ties, NaN and infinities."""
    x = (rng.normal(size=shape) * 3).astype(numpy_dtype(dtype))
    if TensorType(dtype).is_float:
        x[rng.random(shape) < 1 / 300] = np.nan
        x[rng.random(shape) < 1 / 300] = -np.inf
    return x


def agree(op, *arrays):
    """The kernel gives what the op's reference gives, however operands lie and whatever threads."""
    types = [TensorType(a.dtype.name, a.shape) for a in arrays]
    wanted = op.compute(*arrays)
    call = call_of(op, arrays, *op.output_types(types))
    for count in (1, 2):
        with config.change_flags(**{"openmp.threads": count}):
            for found, result in zip(launched(KERNEL, call, arrays), wanted, strict=True):
                np.testing.assert_array_equal(found, result)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_where_extremes_are(rng, shape, axes, dtype):
    x = drawn(rng, shape, dtype)
    agree(ArgMax(axes), x)
    agree(ArgMin(axes, True), x[::-1])
    agree(ArgMax(axes), np.asfortranarray(x))


def test_all_of_the_lowest_value_and_all_nan():
    for value in (-np.inf, np.nan, np.inf):
        x = np.full((50, 300), value, "float32")
        for axes in ((0,), (1,), (0, 1)):
            agree(ArgMax(axes), x)
            agree(ArgMin(axes), x)
    x[:, 7:] = 1
    agree(ArgMin((1,)), x)


def test_an_elementwise_producer_and_other_reductions_beside_it(rng):
    b = Builder(["float32", "float16"])
    whole = b.input(0).call("exp") * b.cast(b.input(1), "float32")
    op = FusedReduce(
        b.program([whole, whole, whole]),
        (ArgMax((1,)), Max((1,)), ArgMin((1,))),
    )
    x = rng.normal(size=(60, 900)).astype("float32")
    y = rng.normal(size=(60, 1)).astype("float16")
    call = call_of(op, (x, y), *op.output_types([TensorType("float32", x.shape),
                                                 TensorType("float16", y.shape)]))  # fmt: skip
    found, wanted = launched(KERNEL, call, (x, y)), op.compute(x, y)
    for i in (0, 2):
        np.testing.assert_array_equal(found[i], wanted[i])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-6)


@pytest.mark.parametrize("sizes", [(1, 1), (7, 5), (100, 33), (300, 70), (64, 64), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64"])
def test_operands_that_lie_across_each_other(rng, sizes, dtype):
    """Values of NumPy, NaN and all, and the same bits for any number of threads."""
    if dtype.startswith("int"):
        x, y = (rng.integers(-9, 9, s).astype(dtype) for s in (sizes, sizes[::-1]))
    else:
        x, y = (rng.normal(size=s).astype(dtype) for s in (sizes, sizes[::-1]))
        x[rng.random(sizes) < 1 / 200] = np.nan
    b = Builder([dtype, dtype])
    work = "float32" if dtype == "float16" else dtype
    value = b.cast(b.input(0), work) + b.cast(b.input(1), work)
    acc = "int64" if dtype.startswith("int") else "float32" if dtype != "float64" else "float64"
    for axes in ((0,), (1,), (0, 1)):
        reductions = (Sum(axes, False, acc, acc), Max(axes), ArgMax(axes))
        if 0 in sizes:
            reductions = reductions[:1]
        op = FusedReduce(b.program([value] * len(reductions)), reductions)
        types = [TensorType(dtype, a.shape) for a in (x, y.T)]
        wanted = op.compute(x, y.T)
        fold = reduction_fold(op, (dtype, dtype), "int32", True)
        bits = set()
        for count in (1, 2, 5):
            outs = [np.full_like(np.asarray(v), 7) for v in wanted]
            with config.change_flags(**{"openmp.threads": count}):
                if 0 in sizes:
                    call = call_of(op, (x, y.T), *op.output_types(types))
                    assert KERNEL.refuses(call)
                    continue
                reduction_block(fold, sizes, axes, [x, y.T], outs).run([x, y.T, *outs])
            bits.add(b"".join(o.tobytes() for o in outs))
            for found, result in zip(outs, wanted, strict=True):
                np.testing.assert_allclose(found, result, rtol=1e-5, atol=1e-5)
        assert len(bits) <= 1


@pytest.mark.parametrize("columns", [2, 3, 7, 32, 48, 49])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_few_columns_are_part_of_a_line(rng, columns, dtype):
    """Their reductions along the rows, for any number of rows and threads."""
    b = Builder([dtype, dtype])
    work = "float32" if dtype == "float16" else dtype
    value = b.cast(b.input(0), work) + b.cast(b.input(1), work)
    acc = "int64" if dtype.startswith("int") else "float32"
    reductions = (Sum((1,), False, acc, acc), Max((1,)), ArgMin((1,)))
    op = FusedReduce(b.program([value] * 3), reductions)
    fold = reduction_fold(op, (dtype, dtype), "int32", True)
    for rows in (600, 1037, 40001):
        shape = (2, rows, columns)
        x = rng.integers(-9, 9, shape).astype(dtype)
        y = rng.integers(-9, 9, (2, 1, 1)).astype(dtype)
        wanted, bits = op.compute(x, y), set()
        for count in (1, 3):
            outs = [np.full_like(np.asarray(v), 7) for v in wanted]
            with config.change_flags(**{"openmp.threads": count}):
                reduction_block(fold, shape, (1,), [x, y], outs).run([x, y, *outs])
            bits.add(b"".join(o.tobytes() for o in outs))
            for found, result in zip(outs, wanted, strict=True):
                np.testing.assert_array_equal(found, result)
        assert len(bits) == 1
        whole = [np.broadcast_to(a, shape) for a in (x, y)]
        reads, writes = ([(a.dtype.name, a.strides) for a in g] for g in (whole, wanted))
        nest = reduction_nest(fold, shape, (1,), reads, writes).merged()
        assert (scheduled(nest, 1)[0].beside > 1) == (columns <= 48)


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_of_turned_operands_have_whole_blocks(rng, dtype, count):
    """Blocks at the end are stored whole: a tile has room for them, of any number of operands."""
    b = Builder([dtype] * count)
    value = b.input(0)
    for i in range(1, count):
        value = value + b.input(i)
    op = FusedReduce(b.program([value] * 2), (LogSumExp((1,)), Max((1,))))
    arrays = [rng.normal(size=(70, 22)).astype(dtype) for _ in range(count)]
    wanted = op.compute(*arrays)
    outs = [np.empty_like(np.asarray(v)) for v in wanted]
    fold = reduction_fold(op, (dtype,) * count, "int32", True)
    reads, writes = ([(a.dtype.name, a.strides) for a in g] for g in (arrays, outs))
    schedule = scheduled(reduction_nest(fold, (70, 22), (1,), reads, writes).merged(), 1)[0]
    assert {o.inner for o in schedule.reads} == {"turned"}
    assert schedule.rows % TURN_BLOCK == 0
    reduction_block(fold, (70, 22), (1,), arrays, outs).run([*arrays, *outs])
    for found, result in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(found, result, rtol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_drawn_nests(seed):
    """Several monoids at once over drawn axes of operands that lie anyhow, by any schedule."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.choice([1, 2, 7, 33], rng.integers(1, 4))]
    sizes[rng.integers(len(sizes))] = int(rng.choice([33, 300]))
    sizes = tuple(sizes)
    axes = tuple(d for d in range(len(sizes)) if rng.random() < 0.6) or (0,)
    dtype = str(rng.choice(["float32", "float64"]))
    made = [
        monoid.arg_extreme(True, dtype, dtype), monoid.moments(dtype, "float64", "float64"),
        monoid.log_sum_exp(dtype, "float64", "float64"), monoid.truth("or", dtype),
        monoid.extreme("min", dtype, dtype, dtype), monoid.total("add", dtype, "float64", dtype),
        monoid.recurrence(dtype, "float64", "float64"),
    ]  # fmt: skip
    chosen = [made[i] for i in sorted(rng.choice(len(made), 3, replace=False))]
    b = Builder([dtype, dtype])
    values = [b.input(0), b.input(1), b.input(0) * b.input(1)]
    taken = [values[int(i)] for m in chosen for i in rng.integers(0, 3, len(m.elements))]
    fold = Fold(b.program(taken), tuple(chosen))
    order = rng.permutation(len(sizes))
    x = (rng.normal(size=[sizes[d] for d in order]) / 2).astype(dtype).transpose(np.argsort(order))
    y = np.broadcast_to(rng.normal(size=sizes[-1:]).astype(dtype) / 2, sizes)
    nest = reduction_nest(fold, sizes, axes, described([x, y]), [])
    wanted = nest.evaluate(x, y)
    outs = [np.full_like(v, 7) for v in wanted]
    nest = reduction_nest(fold, sizes, axes, described([x, y]), described(outs))
    block_of(nest).run([x, y, *outs])
    for found, result in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(found, result, rtol=2e-5, atol=2e-5)


def described(arrays):
    return [(a.dtype.name, a.strides) for a in arrays]


def test_moments_of_numbers_far_from_zero(rng):
    x = (1e4 + rng.normal(size=(3, 5000))).astype("float32")
    fold = Fold(
        Builder(["float32"]).program([Builder(["float32"]).input(0)]),
        (monoid.moments("float32", "float32", "float32"),),
    )
    outs = [np.empty(3, "float32"), np.empty(3, "float32")]
    block_of(reduction_nest(fold, x.shape, (1,), described([x]), described(outs))).run([x, *outs])
    np.testing.assert_allclose(outs[0], x.mean(1, dtype="float64"), rtol=1e-7)
    np.testing.assert_allclose(outs[1], x.var(1, dtype="float64"), rtol=1e-3)


def test_far_offsets():
    """Element numbers and offsets beyond 2**31, in memory that is touched in one page in many."""
    n = (1 << 31) + 5
    x = np.zeros(n, "int8")
    x[n - 2] = 1
    out = np.zeros((), "int64")
    fold = reduction_fold(ArgMax((0,)), ("int8",), "int64", True)
    block_of(reduction_nest(fold, x.shape, (0,), described([x]), described([out]))).run([x, out])
    assert out == n - 2


def test_schedules():
    """Lanes are neighbours in memory; a few results are cut into chunks; short rows are turned."""

    def shape(sizes, axes, op=ArgMax, order="C"):
        x, out = np.empty(sizes, "float32", order), np.empty((1,) * len(sizes), "int64")
        op = Sum(axes, False, "float32", "float32") if op is Sum else op(axes)
        fold = reduction_fold(op, ("float32",), "int32", True)
        nest = reduction_nest(fold, sizes, axes, described([x]), described([out])).merged()
        schedule, words = scheduled(nest, 2)
        return schedule.shape, schedule.reads[0].inner, words["C"]

    assert shape((4096, 512), (0,))[:2] == ("columns", "dense")
    assert shape((4096, 512), (1,)) == ("rows", "dense", 1)
    assert shape((4096, 512), (1,), Sum) == ("bundles", "dense", 1)
    assert shape((4096, 512), (1,), Sum, "F")[:2] == ("columns", "dense")
    assert shape((4096, 10), (1,)) == ("columns", "turned", 1)
    assert shape((4096, 10), (1,), Sum) == ("bundles", "dense", 1)
    assert shape((4096, 7), (1,), Sum) == ("columns", "turned", 1)
    assert shape((8, 10), (1,)) == ("lines", "dense", 1)
    assert shape((1 << 20,), (0,)) == ("rows", "dense", 64)


def test_a_finish_has_vectors():
    """States of chunks are dense and combined by loops over lanes, in the order of the chunks."""
    fold = reduction_fold(Max((0,)), ("float32",), "int32", True)
    x, out = np.empty((4096, 512), "float32"), np.empty((1, 512), "float32")
    nest = reduction_nest(fold, x.shape, (0,), described([x]), described([out])).merged()
    schedule, words = scheduled(nest, 1)
    assert words["C"] > 1
    finish = nest_ir(nest.fold, schedule).partition("@finish(ptr %w) {")[2]
    assert "getelementptr float, ptr" in finish
    assert finish.partition("}")[0].count(f"!llvm.loop {BRIEF}") == 2


@pytest.mark.parametrize("shape", [(4096, 512), (20, 512), (30, 40, 250), (4, 40, 25)])
def test_only_folds_in_chunks_have_code_for_chunks(shape):
    """A text has either what ends a whole fold, or what keeps and combines states of chunks."""
    axes = (0, 2)[: len(shape) - 1]
    kept = tuple(n for d, n in enumerate(shape) if d not in axes)
    fold = reduction_fold(Max(axes), ("float32",), "int32", True)
    x, out = np.empty(shape, "float32"), np.empty(kept, "float32")
    nest = reduction_nest(fold, x.shape, axes, described([x]), described([out])).merged()
    schedule, words = scheduled(nest, 1)
    text = nest_ir(nest.fold, schedule)
    tasks = text.partition("define internal void @rows(")[2].partition("\n}")[0]
    assert schedule.chunked == (words["F"] > 1) == ("@finish" in text)
    assert schedule.chunked == ("getelementptr i64, ptr %partial" in tasks)


def test_lanes_meet_where_operands_cross_along_folded_axes():
    sizes, out = (300, 70), np.empty((), "float32")
    x, y = np.empty(sizes, "float32"), np.empty(sizes[::-1], "float32").T
    b = Builder(["float32", "float32"])
    op = FusedReduce(
        b.program([b.input(0) * b.input(1)]), (Sum((0, 1), False, "float32", "float32"),)
    )
    fold = reduction_fold(op, ("float32", "float32"), "int32", True)
    nest = reduction_nest(fold, sizes, (0, 1), described([x, y]), described([out])).merged()
    schedule, words = scheduled(nest, 2)
    assert schedule.meet
    assert [o.inner for o in schedule.reads] == ["dense", "turned"]
    assert words["F"] == words["C"] * words["JB"]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int8"])
def test_places_in_all_of_a_transposed_operand(rng, dtype):
    """Dense along the folded axis before the last: turned, and numbers are those of C order."""
    for shape in ((300, 70), (33, 16), (500, 130), (3, 90, 40)):
        x = rng.integers(-3, 4, shape).astype(numpy_dtype(dtype))
        axes = (len(shape) - 2, len(shape) - 1)
        across = np.ascontiguousarray(np.swapaxes(x, -1, -2))
        y = np.swapaxes(across, -1, -2)
        for op in (ArgMax(axes), ArgMin(axes)):
            fold, (out,) = reduction_fold(op, (dtype,), "int32", True), op.compute(x)
            nest = reduction_nest(fold, shape, axes, described([y]), described([out])).merged()
            schedule = scheduled(nest, 1)[0]
            assert (schedule.meet, schedule.reads[0].inner) == (True, "turned")
            agree(op, y)
            agree(op, y[..., ::-1, :])


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("shape", [(20, 7, 16), (33, 5, 70), (130, 40, 65), (2, 9, 3, 17)], ids=str)
def test_places_in_all_of_three_axes_backwards(rng, shape, dtype):
    """A chunk has one number of the axis between, so of equal elements the first one is found."""
    axes = tuple(range(len(shape) - 3, len(shape)))
    x = rng.integers(0, 3, shape).astype(numpy_dtype(dtype))
    across = np.ascontiguousarray(np.swapaxes(x, -1, -3))
    y = np.swapaxes(across, -1, -3)
    for op in (ArgMax(axes), ArgMin(axes)):
        fold, (out,) = reduction_fold(op, (dtype,), "int32", True), op.compute(x)
        nest = reduction_nest(fold, shape, axes, described([y]), described([out])).merged()
        schedule, words = scheduled(nest, 1)
        assert (schedule.meet, schedule.reads[0].inner) == (True, "turned")
        assert words["C"] == shape[-2]
        agree(op, y)
        agree(op, y[..., ::-1, :])


def test_a_function_runs_it_with_its_producer(rng):
    x = T.fmatrix("x")
    f = symdnn.function([x], T.argmax(T.tanh(x * 2), axis=1), mode=symdnn.Mode(target="cpu"))
    data = rng.normal(size=(40, 400)).astype("float32") / 9
    np.testing.assert_array_equal(f(data), np.argmax(np.tanh(data * 2), axis=1))
    assert "llvm.nest" in str(f.lowering_report())
    assert [type(n.op).__name__ for n in f.stages.fgraph.toposort()] == ["FusedReduce"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "bool"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 64), (1,)), ((4, 65), (1,)), ((3, 1000), (1,)), ((2, 4, 50), (1, 2)),
                        ((900,), (0,)), ((70, 6), (0,))],
)  # fmt: skip
def test_what_a_program_says_is_looked_for_up_to_the_first(rng, monkeypatch, shape, axes, dtype):
    used = []
    real = kernels.FirstPlan
    monkeypatch.setattr(kernels, "FirstPlan", lambda *a: used.append(a) or real(*a))
    b = Builder([dtype, dtype])
    wide = [b.cast(b.input(i), "int32" if dtype == "bool" else "float32") for i in (1, 0)]
    op_program = b.program([b.call("lt", *wide)])
    x = rng.integers(0, 2, shape).astype(dtype)
    edge = tuple(1 if d in axes else n for d, n in enumerate(shape))
    for y in (np.zeros(shape), np.ones(edge), rng.integers(0, 2, edge)):
        for reduction in (AnyTrue(axes), AllTrue(axes), ArgMax(axes), ArgMin(axes), Max(axes)):
            op = FusedReduce(op_program, (reduction,))
            arrays = (x, y.astype(dtype))
            types = [TensorType(dtype, a.shape) for a in arrays]
            call = call_of(op, arrays, *op.output_types(types))
            for count in (1, 3):
                with config.change_flags(**{"openmp.threads": count}):
                    (found,) = launched(KERNEL, call, arrays)
                np.testing.assert_array_equal(found, op.compute(*arrays)[0])
    assert bool(used) == (shape != (70, 6))


@pytest.mark.parametrize("length", [2, 3, 6, 7])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_one_iteration_has_all_of_a_short_axis(rng, length, dtype):
    x = rng.integers(-3, 3, (3, 50, 700, length)).astype(dtype)[:, ::2]
    for axes in ((3,), (1, 3)):
        reductions = (Max(axes), ArgMin(axes))
        op = FusedReduce(ScalarProgram((dtype,), (), (0, 0)), reductions)
        types = op.output_types([TensorType(dtype, x.shape)])
        (found, wanted) = launched(KERNEL, call_of(op, (x,), *types), (x,)), op.compute(x)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    for op in (CumSum(3), CumMax(3), CumSum(3, reverse=True), CumProd(3, exclusive=True)):
        (wanted,) = op.compute(x)
        y = np.full(wanted.shape, 7, wanted.dtype)
        nest = scan_nest(
            op, scan_fold(op, dtype, True).stepwise(), x.shape, [(dtype, x.strides)],
            [(y.dtype.name, y.strides)],
        )  # fmt: skip
        block_of(nest).run([x, y])
        np.testing.assert_array_equal(y, wanted)
        assert (scheduled(nest.merged(), 1)[0].length == length) == (length <= 6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int64"])
def test_large_rows_that_share_pages_are_read_in_turn(rng, monkeypatch, dtype):
    """Whatever is folded: some rows together would be several runs of addresses in each page."""

    def in_turn(op, shape, axes):
        fold = reduction_fold(op, (dtype,), "int64", True)
        x = np.broadcast_to(np.zeros((), numpy_dtype(dtype)), shape)
        dense = [int(np.prod(shape[d + 1 :])) * x.itemsize for d in range(len(shape))]
        out = op.output_types([TensorType(dtype, shape)])[0]
        kept = [n for d, n in enumerate(shape) if d not in axes]
        steps = [int(np.prod(kept[d + 1 :])) * 8 for d in range(len(kept))]
        nest = reduction_nest(fold, shape, axes, [(dtype, dense)], [(out.dtype, steps)])
        return scheduled(nest.merged(), 1)[0].in_turn

    large, wide, small = (112, 900, 200), (112, 16, 9000), (4, 64, 200)
    for op in (Max((1,)), ArgMax((1,)), Sum((1,))):
        fours = dtype == "bfloat16" and isinstance(op, Sum)  # four are added in float32 first
        assert in_turn(op, large, (1,)) is not fours
        assert not in_turn(op, wide, (1,))
        assert not in_turn(op, small, (1,))
    assert in_turn(ArgMax((0,)), (1 << 23, 4), (0,))  # columns that are part of a line
    assert not in_turn(Max((0,)), (1 << 23,), (0,))
    monkeypatch.setattr("symdnn.cpu.nest.schedule._UNCACHED_BYTES", 0)
    for shape, axes in (
        ((3, 70, 40), (1,)),
        ((3, 9000), (1,)),
        ((9000, 3), (0,)),
        ((4, 30, 9), (0, 1)),
    ):
        agree(ArgMax(axes), drawn(rng, shape, dtype))
        x = rng.integers(-9, 9, shape).astype(numpy_dtype(dtype))
        agree(Max(axes), x)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_places_of_extremes_are_looked_for_in_parts_of_lines(rng, dtype):
    """Ties within a part and between parts and chunks, NaN, zeros of both signs, short ends."""
    number = numpy_dtype(dtype)
    for shape in ((5, 64), (5, 65), (3, 8193), (2, 12289), (70_001,)):
        axes = (len(shape) - 1,)
        for x in (
            drawn(rng, shape, dtype),
            rng.integers(0, 3, shape).astype(number),
            np.zeros(shape, number),
            np.sort(rng.integers(0, 99, shape), -1).astype(number),
            np.full(shape, -np.inf if TensorType(dtype).is_float else 1).astype(number),
        ):
            y = x.copy()
            y[..., -1] = 100 if dtype != "bfloat16" else np.nan
            y[..., ::7] *= number.type(-1 if TensorType(dtype).is_float else 1)
            for each in (x, y):
                agree(ArgMax(axes), each)
                agree(ArgMin(axes), each)
    b = Builder([dtype])
    x = rng.integers(-9, 9, (3, 9000)).astype(number)
    agree(FusedReduce(b.program([b.input(0)] * 3), (Max((1,)), ArgMax((1,)), ArgMin((1,)))), x)
    fold = reduction_fold(ArgMax((1,)), (dtype,), "int32", True)
    for length in (63, 64, 128):
        reads = [(dtype, (length * number.itemsize, number.itemsize))]
        for lines in (7, 700):
            nest = reduction_nest(fold, (lines, length), (1,), reads, [("int64", (8,))])
            tiles = dtype in ("float16", "bfloat16") and lines == 700  # else converted twice
            rows = length >= (128 if tiles else 64)
            assert (scheduled(nest.merged(), 1)[0].shape == "rows") == rows
