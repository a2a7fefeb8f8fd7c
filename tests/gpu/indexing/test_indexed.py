"""Kernels whose operands index arrays select, compared with NumPy on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from symdnn.gpu.indexing.gathered import IndexedKernel
from symdnn.gpu.indexing.index import GatherKernel
from symdnn.gpu.kernels import elementwise as elementwise_kernels
from symdnn.gpu.kernels import reduce as reduce_kernels
from symdnn.graph.type import TensorType
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.argreduce import ArgMax
from symdnn.ops.array.reduce import AnyTrue, LogSumExp, Max, Prod, Reduce, Sum
from symdnn.ops.array.slices import FULL
from symdnn.ops.core.dtype import is_narrow_float, wide_float
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.gathered import FusedIndexed, Selection
from tests.gpu import emulator
from tests.gpu.codegen.test_kernels import compare, dense, draws, faulty, rng
from tests.gpu.emulator import HostEnv, on_device
from tests.gpu.table import concrete

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="needs g++")

KERNEL = IndexedKernel()
ROWS = ("a", FULL)
ADDED = ("float32", "float64", "int32", "uint32", "int64", "uint64")
INDICES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def rows_of(index: Sequence[Any] = ROWS, ndim: int = 2) -> Selection:
    return Selection(AdvancedSubtensor(tuple(index)), tuple(range(ndim)))


def product(*dtypes: str) -> ScalarProgram:
    """The product of all operands, in the dtype of the first one."""
    b, work = Builder(dtypes), wide_float(dtypes[0]) if is_narrow_float(dtypes[0]) else dtypes[0]
    found = b.input(0).cast(work)
    for i in range(1, len(dtypes)):
        found = found * b.input(i).cast(work)
    return b.program([found.cast(dtypes[0])])


def places(size: int, *shape: int, dtype: str = "int64") -> Any:
    """Indices of an axis of this size, also from its end."""
    low = 0 if dtype.startswith("u") else -size
    return dense(rng.integers(low, size, shape).astype(dtype))


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("width", [64, 8, 6, 5, 1])
def test_rows_times_others(width, index):
    table, other, i = draws(9, width), dense(draws(41, width)), places(9, 41, dtype=index)
    op = FusedIndexed(product("float32", "float32"), (rows_of(), None))
    compare(KERNEL, op, table, other, i)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "int64", "uint8"])
@pytest.mark.parametrize("length", [1, 5, 1003])
def test_numbers_of_all_dtypes(dtype, length):
    x, y = draws(9, dtype=dtype), draws(7, dtype=dtype)
    op = FusedIndexed(product(dtype, dtype), (rows_of(["a"], 1),) * 2)
    compare(KERNEL, op, x, y, places(9, length), places(7, length, dtype="int16"))


@pytest.mark.parametrize(
    "dtype", ["float32", "uint8", "bfloat16", "bool", "complex64", "complex128"]
)
def test_what_is_selected_is_copied(dtype):
    images = draws(4, 3, 6, 8, dtype=dtype)
    n, i, j = (
        dense(np.arange(4)[:, None, None]),
        places(6, 4, 5, 1),
        places(8, 4, 1, 7, dtype="int8"),
    )
    compare(GatherKernel(), AdvancedSubtensor(("a", FULL, "a", "a")), images, n, i, j)
    for width in (32, 3, 1):
        table = draws(9, width, dtype=dtype)
        compare(GatherKernel(), AdvancedSubtensor(ROWS), table, places(9, 41))
        compare(GatherKernel(), AdvancedSubtensor((FULL, "a")), table, places(width, 5))


def test_a_thread_has_short_rows_and_the_bytes_of_vectors():
    def text(index: Sequence[Any], *arrays: Any) -> str:
        (found,) = GatherKernel().sources(concrete(AdvancedSubtensor(tuple(index)), list(arrays)))
        return found

    assert "struct Held { Vec<u32, 3> x0;" in text(ROWS, draws(9, 3), places(9, 1 << 20))
    assert "Vec<u8, 16> y0" in text(ROWS, draws(9, 32, dtype="uint8"), places(9, 41))


def test_booleans():
    b = Builder(("bool", "float32"))
    chosen = b.program([b.select(b.input(0), b.input(1), b.const(0, "float32"))])
    mask = dense(draws(9, 6) > 0)
    op = FusedIndexed(chosen, (rows_of(), None))
    compare(KERNEL, op, mask, dense(draws(20, 6)), places(9, 20))


@pytest.mark.parametrize("dtype", ADDED)
@pytest.mark.parametrize("width", [8, 6, 5, 1])
def test_what_is_gathered_adds_up(dtype, width):
    x, source = (dense((draws(n, width) * 3).astype(dtype)) for n in (6, 9))
    op = FusedIndexed(product(dtype), (rows_of(),), (), (AdvancedIncSubtensor(ROWS),))
    compare(KERNEL, op, x, source, places(9, 40, dtype="int16"), places(6, 40))


@pytest.mark.parametrize(
    ("get", "add", "shapes"),
    [
        (("a", FULL), (FULL, "a"), [(3, 6), (9, 6), (3,), (6,)]),
        (("a", "a", FULL), ("a", FULL), [(6, 8), (4, 5, 8), (7,), (7,), (7,)]),
        (("a", FULL), ("a", "a", FULL), [(4, 5, 8), (6, 8), (7,), (7,), (7,)]),
        ((FULL, "a"), (FULL, "a"), [(3, 6), (3, 9), (2, 4), (2, 4)]),
        (("a", (1, 7, 2)), ("a", FULL), [(6, 3), (9, 8), (7,), (7,)]),
        (("a", FULL), ("a", FULL), [(6, 4), (9, 4), (0,), (0,)]),
        (("a", FULL), ("a", FULL), [(6, 0), (9, 0), (7,), (7,)]),
        (("a",), ("a",), [(6,), (9,), (1037,), (1037,)]),
        (("a", "a"), ("a",), [(6,), (9, 4), (1037,), (1037,), (1037,)]),
    ],
)
def test_what_is_gathered_by_any_index_adds_up(get, add, shapes):
    """With what else is computed: here the square."""
    x, source, *indices = shapes
    ndim = len(indices[0]) + sum(e != "a" for e in get)
    b = Builder(("float32",))
    op = FusedIndexed(
        b.program([b.input(0) * b.input(0)]),
        (rows_of(get, ndim),),
        (),
        (AdvancedIncSubtensor(add),),
    )
    least = min(n for n in (*x, *source) if n) if len(indices) > 2 else min(x[0], 3)
    wide = [places(least, *s) for s in indices]
    compare(KERNEL, op, dense(draws(*x)), dense(draws(*source)), *wide, rtol=1e-4)


def test_what_is_computed_adds_up():
    """Of operands that are broadcast, where no rows are selected."""
    op = FusedIndexed(
        product("float32", "float32"), (None, None), (), (AdvancedIncSubtensor(("a", FULL)),)
    )
    x, a, b, i = dense(draws(6, 8)), dense(draws(7, 1, 8)), dense(draws(7, 5, 1)), places(6, 7, 5)
    compare(KERNEL, op, x, a, b, i, rtol=1e-4)


def _several(*values: Any) -> ScalarProgram:
    b = Builder(("float32", "float32"))
    return b.program([f(b.input(0), b.input(1)) for f in values])


@pytest.mark.parametrize("width", [128, 8, 5, 1])
def test_additions_in_several_places(width):
    """Each by its own index arrays, some of which are the same; one of a gather."""
    adds = (AdvancedIncSubtensor(("a", "a", FULL)), AdvancedIncSubtensor(("a", "a", FULL)))
    program = _several(lambda a, b: a * b, lambda a, b: a - b)
    op = FusedIndexed(program, (None, rows_of()), (), adds)
    x, y, table = dense(draws(6, 4, width)), dense(draws(40, width)), dense(draws(9, width))
    i, j, k, n = places(6, 40), places(4, 40), places(4, 40, dtype="int32"), places(9, 40)
    compare(KERNEL, op, x, y, table, n, i, j, i, k, rtol=1e-3)
    for at, size in ((5, 4), (7, 4), (3, 9)):
        arrays = [x, y, table, n, i, j, i.copy(), k]
        seen = _bad(op, arrays, at, 77)
        assert seen == [1, 7, 77, size]


def test_additions_along_different_axes():
    """Of one shape, for which both patterns select parts of the array."""
    adds = (AdvancedIncSubtensor(("a", FULL)), AdvancedIncSubtensor((FULL, "a")))
    program = _several(lambda a, b: a * b, lambda a, b: a - b)
    op = FusedIndexed(program, (None, None), (), adds)
    x, y, row = dense(draws(6, 8)), dense(draws(6, 8)), dense(draws(1, 8))
    compare(KERNEL, op, x, y, row, places(6, 6), places(8, 8), rtol=1e-4)


REDUCTIONS: list[Reduce] = [Sum((1,)), Max((1,)), Prod((1,)), LogSumExp((1,)), ArgMax((1,))]


@pytest.mark.parametrize("reduce", REDUCTIONS, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("width", [128, 8, 5, 1])
@pytest.mark.parametrize("bag", [3, 20])
def test_bags(bag, width, reduce):
    """Each thread has some neighbours of a row, and goes through the bag."""
    table, i = dense(draws(9, width) / 10), places(9, 7, bag)
    if isinstance(reduce, ArgMax):
        op = FusedIndexed(product("float32"), (rows_of(ndim=3),), (reduce,))
        compare(KERNEL, op, table, i)
        return
    op = FusedIndexed(product("float32", "float32"), (rows_of(ndim=3), None), (reduce,))
    compare(KERNEL, op, table, dense(draws(7, bag, 1) / 10), i, rtol=1e-3)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("width", [32, 6, 5, 1])
@pytest.mark.parametrize("index", ["int64", "uint8"])
def test_sums_of_products_of_two_gathers(index, width, axes):
    x, y = dense(draws(9, width)), dense(draws(11, width))
    i, j = places(9, 700, dtype=index), places(11, 700)
    op = FusedIndexed(product("float32", "float32"), (rows_of(),) * 2, (Sum(axes), Max(axes))[:1])
    compare(KERNEL, op, x, y, i, j, rtol=2e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool", "float64"])
def test_sums_of_all_dtypes(dtype):
    reduce = AnyTrue((1,)) if dtype == "bool" else Sum((1,))
    table = draws(9, 16, dtype="float32")
    op = FusedIndexed(product(dtype), (rows_of(ndim=3),), (reduce,))
    compare(KERNEL, op, dense(table.astype(TensorType(dtype, (1,)).numpy)), places(9, 7, 20))


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0)])
def test_empty_bags(shape):
    op = FusedIndexed(product("float32"), (rows_of(ndim=3),), (Sum((1,)),))
    compare(KERNEL, op, dense(draws(9, 8)), places(9, *shape))


def test_sums_over_long_vectors_of_picked_numbers():
    """No vectors, several numbers ahead; two axes that move by different arrays."""
    op = FusedIndexed(product("float32", "float32"), (rows_of(["a"], 1),) * 2, (Sum((0,)),))
    x = dense(draws(9))
    compare(KERNEL, op, x, x, places(9, 5003), places(9, 5003), rtol=1e-3)
    grid = Selection(AdvancedSubtensor(("a", "a")), (0, 1))
    op = FusedIndexed(product("float32"), (grid,), (Sum((1,)),))
    compare(KERNEL, op, dense(draws(6, 9)), places(6, 7, 1), places(9, 1, 600), rtol=1e-3)


def test_strided_operands():
    """Rows with gaps, every second column, indices with a stride; more axes."""
    table, other = draws(9, 24)[:, 4:20:2], draws(14, 8)[::2]
    i = dense(rng.integers(-9, 9, 14))[::2]
    op = FusedIndexed(product("float32", "float32"), (rows_of(), None))
    compare(KERNEL, op, table, other, i)
    op = FusedIndexed(product("float32", "float32"), (rows_of(), None), (Sum((1,)),))
    compare(KERNEL, op, table, other, i, rtol=1e-3)
    wider = Selection(AdvancedSubtensor(ROWS), (0, "x", 1))
    op = FusedIndexed(product("float32", "float32"), (wider, None))
    compare(KERNEL, op, table, draws(7, 3, 8), i)


def test_wide_counters(monkeypatch):
    for module in (elementwise_kernels, reduce_kernels):
        monkeypatch.setattr(module, "_max_index", lambda *a: 2**40)
    test_bags(20, 8, Sum((1,)))
    test_rows_times_others(8, "int32")
    test_what_is_gathered_adds_up("float32", 8)


def _bad(op: FusedIndexed, arrays: Sequence[Any], at: int, k: int) -> Sequence[int]:
    bad = [*arrays]
    bad[at] = dense(np.full_like(arrays[at], k))
    return faulty(KERNEL, op, bad, list(arrays))


def test_an_index_out_of_range_is_reported():
    x, table, good = dense(draws(6, 4)), dense(draws(9, 4)), dense(np.array([1, 5]))
    stored = FusedIndexed(product("float32"), (rows_of(),))
    summed = FusedIndexed(product("float32"), (rows_of(),), (Sum((0,)),))
    added = FusedIndexed(product("float32"), (rows_of(),), (), (AdvancedIncSubtensor(ROWS),))
    for k in (9, -10, 2**40, -(2**40)):
        seen = max(min(k, 2**31 - 1), -(2**31) + 1)
        assert _bad(stored, [table, good], 1, k) == [1, 7, seen, 9]
        assert _bad(summed, [table, good], 1, k) == [1, 7, seen, 9]
        assert _bad(added, [x, table, good, good], 2, k) == [1, 7, seen, 9]
    for k in (6, -7):
        assert _bad(added, [x, table, good, good], 3, k) == [1, 7, k, 6]
    nothing = dense(draws(0, 4))
    assert faulty(KERNEL, stored, [nothing, good], [table, good])[:2] == [1, 7]
    assert faulty(KERNEL, summed, [nothing, good], [table, good])[:2] == [1, 7]
    assert faulty(KERNEL, added, [x, nothing, good, good], [x, table, good, good])[:2] == [1, 7]


def test_indices_in_bounds_write_updates_and_are_not_reported():
    add = AdvancedIncSubtensor(ROWS, in_bounds=True)
    x, y, i = dense(draws(6, 4)), dense(draws(5, 4)), places(6, 5)
    op = FusedIndexed(product("float32"), (None,), (), (add,))
    call = concrete(op, [x, y, i])
    assert KERNEL.writes_updates(call)
    for failed in (0, 1):
        env = HostEnv(KERNEL.workspace_bytes(call))
        env._word[0] = failed
        before, (want,) = x.copy(), op.compute(x, y, i)
        inputs = [on_device(a) for a in (x, y, i)]
        KERNEL.bind_guarded(call)(env, inputs, [inputs[0]])
        np.testing.assert_allclose(x, before if failed else want, rtol=1e-5)


VALUES = ("float32", "float32", "float64", "bfloat16", "float16", "int8", "uint8", "int64")


def _random_get(ndim: int) -> tuple[Any, ...]:
    """An index pattern of an array: arrays, whole axes and parts of them, new axes."""
    entries: list[Any] = [
        [FULL, "a", (1, None, None), (None, None, -2)][k] for k in rng.integers(0, 4, ndim)
    ]
    entries[int(rng.integers(0, ndim))] = "a"
    if rng.random() < 0.3:
        entries.insert(int(rng.integers(0, ndim + 1)), "x")
    return tuple(entries)


def _random_read(dtype: str) -> tuple[AdvancedSubtensor, list[Any]]:
    """A gather, with an array and index arrays that broadcast, of any integers."""
    shape = tuple(int(n) for n in rng.choice([2, 3, 4, 8, 9, 16], int(rng.integers(1, 4))))
    get = AdvancedSubtensor(_random_get(len(shape)))
    sizes = [n for n, e in zip(shape, [e for e in get.index if e != "x"]) if e == "a"]
    common = [int(n) for n in rng.choice([0, 1, 4, 7, 33], int(rng.integers(1, 3)), p=_OFTEN)]
    arrays = []
    for size in sizes:
        own = [1 if rng.random() < 0.2 else n for n in common]
        arrays.append(places(size, *own, dtype=str(rng.choice(INDICES))))
    return get, [draws(*shape, dtype=dtype), *arrays]


_OFTEN = (0.05, 0.15, 0.3, 0.3, 0.2)


@pytest.mark.parametrize("seed", range(24))
def test_random_loops(seed):
    """Any pattern of indices, ranks, dtypes, sizes of 0 and 1; beside one that broadcasts."""
    rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    dtype = VALUES[seed % len(VALUES)]
    get, (x, *arrays) = _random_read(dtype)
    read = get.reference(x, *arrays)
    other = draws(*(1 if rng.random() < 0.3 else n for n in read.shape), dtype="float32")
    pattern = tuple(range(read.ndim))
    selection = Selection(get, pattern)
    stored = FusedIndexed(product(dtype, "float32"), (selection, None))
    compare(KERNEL, stored, x, other, *arrays)
    axes = tuple(d for d in pattern if rng.random() < 0.5) or (int(rng.integers(0, read.ndim)),)
    kinds: list[Reduce] = [Sum(axes)] if 0 in read.shape else [Sum(axes), Max(axes)]
    b = Builder((dtype, "float32"))
    values = [b.input(0).cast("float64") * b.input(1).cast("float64")] * len(kinds)
    reduced = FusedIndexed(b.program(values), (selection, None), tuple(kinds))
    compare(KERNEL, reduced, x, other, *arrays, rtol=1e-4)
    b = Builder((dtype, "float32"))
    value = b.program([b.input(0).cast("float32") * b.input(1)])
    add = AdvancedIncSubtensor(get.index)
    into = dense(draws(*x.shape))
    compare(
        KERNEL, FusedIndexed(value, (selection, None), (), (add,)),
        into, x, other, *arrays, *arrays, rtol=1e-3,
    )  # fmt: skip
