"""Copies by compiled loops and by NumPy: fills, joins, splits, changed parts, picked rows."""

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.elementwise import copies, padding
from symdnn.cpu.elementwise.gather import GatherKernel
from symdnn.errors import IndexOutOfRange
from symdnn.graph.kernel import Call
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.array.join import Join, Split
from symdnn.ops.array.pad import Pad
from symdnn.ops.core.shape import Alloc
from tests.seeded import new_rng

CPU = symdnn.Mode(target="cpu")
DTYPES = ["float32", "float64", "bool", "int8", "int64", "float16", ml_dtypes.bfloat16]
ALL = (None, None, None)


@pytest.fixture(autouse=True)
def _always():
    with config.change_flags(**{"cpu.compile": "always"}):
        yield


def values(dtype, *shape):
    return np.asarray(new_rng().normal(size=shape) * 5).astype(dtype)


def run(kernel, op, inputs, outputs):
    types = [TensorType(np.asarray(a).dtype.name, np.shape(a)) for a in (*inputs, *outputs)]
    call = Call(op, tuple(types[: len(inputs)]), tuple(types[len(inputs) :]), Hints())
    assert kernel.refuses(call) is None
    kernel.bind(call)(inputs, outputs)
    for found, wanted in zip(outputs, op.compute(*inputs), strict=True):
        np.testing.assert_array_equal(found.astype("f8"), wanted.astype("f8"))


def outs(dtype, shape):
    """Memory for a result: in C order, and a part of something larger."""
    yield np.empty(shape, dtype)
    larger = np.empty(tuple(n + 2 for n in shape), dtype)
    yield larger[tuple(slice(1, n + 1) for n in shape)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compiled", [True, False])
def test_fills(dtype, compiled):
    for shape in ((), (1,), (7,), (1, 5)):
        for out in outs(dtype, (3, 4, 7, 5)[: 4 - (shape == (7,))]):
            run(copies.FillKernel(compiled), Alloc((None,) * out.ndim),
                [values(dtype, *shape), *map(np.int64, out.shape)], [out])  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_joins_and_splits(dtype, compiled, axis):
    kernel, sizes = copies.CopyPiecesKernel(compiled), (3, 0, 5, 1)
    pieces = [values(dtype, *(n if d == axis else 4 for d in range(3))) for n in sizes]
    pieces[0] = np.asfortranarray(pieces[0])
    whole = np.concatenate(pieces, axis)
    for out in outs(dtype, whole.shape):
        run(kernel, Join(axis), pieces, [out])
    for k in range(2):
        made = [list(outs(dtype, p.shape))[k] for p in pieces]
        run(kernel, Split(axis, (None,) * 4), [whole, *map(np.int64, sizes)], made)
        turned = np.asfortranarray(whole)
        run(kernel, Split(axis, (None,) * 4), [turned, *map(np.int64, sizes)], made)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16", ml_dtypes.bfloat16])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("sets", [True, False])
def test_parts_that_change(dtype, compiled, sets):
    kernel, x = copies.CopyPiecesKernel(compiled), values(dtype, 9, 8)
    for index, shape in [
        (((1, 7, 2), ALL), (3, 8)), ((4, (None, None, -1)), (8,)), ((ALL, 2), (9,)),
        ((ALL, ALL), (1, 8)), (((5, 5, None), ALL), (0, 8)),
    ]:  # fmt: skip
        op = IncSubtensor(index, set_instead_of_inc=sets)
        for out in outs(dtype, x.shape):
            run(kernel, op, [x, values(dtype, *shape)], [out])
        mine, y = x.copy(), values(dtype, *shape)
        (wanted,) = op.compute(x, y)
        types = [TensorType(a.dtype.name, a.shape) for a in (x, y)]
        kernel.bind(Call(op, tuple(types), (types[0],), Hints()))([mine, y], [mine])
        np.testing.assert_array_equal(mine.astype("f8"), wanted.astype("f8"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(20,), (20, 3), (20, 4, 33), (20, 0)])
def test_rows_that_are_picked(dtype, kind, shape):
    op = AdvancedSubtensor(("a", *[ALL] * (len(shape) - 1)))
    x, kernel = values(dtype, *shape), GatherKernel()
    for index in (np.arange(-20, 20), np.zeros((3, 5)), new_rng().integers(0, 20, 9)):
        index = index.astype(kind)
        made = (*index.shape, *shape[1:])
        if 0 in made:
            continue
        for out in outs(dtype, made):
            run(kernel, op, [x, index], [out])
            run(kernel, op, [np.asfortranarray(x), index[::-1]], [out])


@pytest.mark.parametrize("kind", ["int8", "uint8", "uint16", "int64"])
@pytest.mark.parametrize(
    ("index", "shapes"),
    [
        (("a", "a"), [(20, 1), (20, 30)]), (("a", "a"), [(7, 30), (1, 30)]),
        ((ALL, "a"), [(5000,)]), ((ALL, "a"), [(3, 4)]), (("a", ALL, "a"), [(6, 1), (1, 9)]),
        ((ALL, "a", "a"), [(40,), (40,)]), (("a", "a", "a"), [(2, 3, 4)] * 3),
    ],
)  # fmt: skip
def test_elements_that_are_picked_along_any_axes(index, shapes, kind):
    rng, sizes = new_rng(), (20, 30, 17)[: len(index)]
    at = iter(shapes)
    arrays = []
    for n, entry in zip(sizes, index):
        if entry == "a":
            low = -n if kind[0] == "i" else 0
            arrays.append(rng.integers(low, n, next(at)).astype(kind))
    op = AdvancedSubtensor(index)
    for dtype in ("float32", "float64", "float16", "bool"):
        x = values(dtype, *sizes)
        made = op.reference(x, *arrays).shape
        for out in outs(dtype, made):
            run(GatherKernel(), op, [x, *arrays], [out])
            run(GatherKernel(), op, [np.asfortranarray(x), *arrays], [out])


@pytest.mark.parametrize("axis", [0, 1])
def test_elements_along_an_axis_and_wrong_ones(axis):
    x, i = T.dmatrix("x"), T.lmatrix("i")
    f = symdnn.function([x, i], T.take_along_axis(x, i, axis), mode=CPU)
    data = new_rng().normal(size=(90, 80))
    order = np.argsort(data, axis)
    for _ in range(3):
        np.testing.assert_array_equal(f(data, order), np.sort(data, axis))
    assert "llvm.gather" in str(f.lowering_report())
    wrong = order.copy()
    wrong[3, 4] = 90
    for _ in range(2):
        with pytest.raises(IndexOutOfRange, match="90"):
            f(data, wrong)
    np.testing.assert_array_equal(f(data, order), np.sort(data, axis))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("count", [1, 9, 301, 5000])
def test_rows_share_indices_that_count_from_the_end(rng, dtype, count):
    """Of one axis and of two, in the last and the middle place; the last one may be wrong."""
    x, i, j = T.tensor("float32", ALL), T.vector("i", dtype=dtype), T.vector("j", dtype="int64")
    f = symdnn.function([x, i, j], [x[:, :, i], x[:, i], x[:, i, j]], mode=CPU)
    a = values("float32", 70, 67, 67)
    at = rng.integers(0 if dtype == "uint8" else -67, 67, count).astype(dtype)
    other = rng.integers(-67, 67, count)
    for found, wanted in zip(f(a, at, other), (a[:, :, at], a[:, at], a[:, at, other])):
        np.testing.assert_array_equal(found, wanted)
    at[-1] = 67
    with pytest.raises(IndexOutOfRange, match="67 is out of range"):
        f(a, at, other)


@pytest.mark.parametrize("wrong", [20, -21, 1 << 40])
def test_a_number_out_of_range_is_an_error_at_every_call(wrong):
    x, i = T.fmatrix("x"), T.lvector("i")
    f = symdnn.function([x, i], x[i] * 2, mode=CPU)  # here
    a, good = values("f", 20, 70), np.arange(20)
    for _ in range(3):
        np.testing.assert_array_equal(f(a, good), a * 2)
    bad = good.copy()
    bad[7] = wrong
    for _ in range(2):
        with pytest.raises(IndexOutOfRange, match=str(wrong)) as caught:
            f(a, bad)
        assert "# here" in "".join(caught.value.__notes__)
    np.testing.assert_array_equal(f(a, good[::-1].copy()), a[::-1] * 2)


def test_an_index_out_of_range_changes_nothing():
    x, k = symdnn.shared(np.zeros(5, "f")), T.lscalar("k")
    f = symdnn.function([k], updates=[(x, T.inc_subtensor(x[k], 1))], mode=CPU)
    for n in range(3):
        f(n)
    with pytest.raises(IndexOutOfRange):
        f(5)
    assert x.get_value().tolist() == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_large_ones_by_threads(count):
    a, b = values("f", 300, 200), values("f", 300, 100)
    x, y, i = T.fmatrix("x"), T.fmatrix("y"), T.ivector("i")
    z = T.concatenate([x, y], axis=1)
    outputs = [z, z[i], T.set_subtensor(z[:, ::2], 3), T.zeros_like(z) + 1]
    f = symdnn.function([x, y, i], outputs, mode=CPU)
    index = new_rng().integers(-300, 300, 500, dtype="int32")
    with config.change_flags(**{"openmp.threads": count}):
        for _ in range(3):
            whole, picked, changed, ones = f(a, b, index)
            wanted = np.concatenate([a, b], 1)
            np.testing.assert_array_equal(whole, wanted)
            np.testing.assert_array_equal(picked, wanted[index])
            assert (changed[:, ::2] == 3).all()
            np.testing.assert_array_equal(changed[:, 1::2], wanted[:, 1::2])
            assert (ones == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_several_pieces_are_written_once(dtype, monkeypatch):
    """Pieces of constant and of other lengths, of two axes of rows, and by all ways of a run."""
    monkeypatch.setattr(copies._CopyLaunches, "copy", None)  # that of a piece
    for rows in ((50,), (7, 9)):
        arrays = [values(dtype, *rows, n) for n in (3, 40, 600)]
        inputs = [T.TensorType(a.dtype.name, (None,) * a.ndim)() for a in arrays]
        joined = T.concatenate(inputs, axis=-1)
        parts = T.split(joined, [600, 3, 40], 3, axis=-1)
        f = symdnn.function(inputs, [joined, *parts], mode=CPU)
        whole = np.concatenate(arrays, -1)
        for _ in range(4):
            found = f(*arrays)
            for got, want in zip(found, [whole, *np.split(whole, [600, 603], -1)], strict=True):
                np.testing.assert_array_equal(got.astype("f8"), want.astype("f8"))


@pytest.mark.parametrize("n", [33, 63, 64, 65, 127, 128, 129, 4159, 4160, 4161, 5000])
def test_rows_of_any_number_of_bytes_are_copied_whole(n, rng):
    """What is beside them stays, and rows are copied to where they are."""
    x = rng.integers(0, 256, (9, n), dtype="uint8")
    whole = np.zeros((9, n + 2), "uint8")
    copy = copies._CopyLaunches(True).copy
    copy(x, whole[:, 1:-1])
    np.testing.assert_array_equal(whole[:, 1:-1], x)
    assert not whole[:, :: n + 1].any()
    copy(whole[:, 1:-1], whole[:, 1:-1])
    np.testing.assert_array_equal(whole[:, 1:-1], x)


@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_short_rows_are_repeated_in_groups(dtype):
    x = T.TensorType(dtype, (None, None))("x")
    f = symdnn.function([x], [T.tile(x, (1, 3)), T.tile(x, (1, 9)), T.tile(x, (2, 2))], mode=CPU)
    for n in (1, 5, 32, 33):
        a = values(dtype, 40, n)
        for _ in range(3):
            for got, reps in zip(f(a), [(1, 3), (1, 9), (2, 2)], strict=True):
                np.testing.assert_array_equal(got, np.tile(a, reps))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ((7,), (2, 3)), ((40, 5), (1, 1, 2, 2)), ((3, 0), (0, 1, 2, 0)),
        ((1, 9, 33), (0, 0, 3, 1, 0, 7)), ((4, 3, 300), (0, 0, 1, 2, 70, 1)),
    ],
)  # fmt: skip
def test_pads(dtype, shape, widths):
    sizes = [n + low + high for n, low, high in zip(shape, widths[::2], widths[1::2])]
    for out in outs(dtype, sizes):
        inputs = [values(dtype, *shape), values(dtype), *map(np.int64, widths)]
        run(padding.PadKernel(), Pad((None,) * len(widths)), inputs, [out])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 31, 32, 33])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_short_rows_are_copied_and_repeated_whole(dtype, n):
    """Into the middle of rows, and a number for each row; what is beside them stays."""
    for rows in (1, 2, 77):
        x = values(dtype, rows, n)
        whole = np.zeros((rows, n + 2), dtype)
        for source in (x, x[:, :1], x[:1, :1], np.asfortranarray(x)):
            whole[...] = 0
            copies._CopyLaunches(True).copy(np.broadcast_to(source, x.shape), whole[:, 1:-1])
            np.testing.assert_array_equal(whole[:, 1:-1], np.broadcast_to(source, x.shape))
            assert not whole[:, ::n + 1].any()  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
def test_long_pieces_and_rolls_are_copied_in_native_steps(rng, axis):
    """Rows too long for one loop over their pieces; an empty piece; a shift by nothing."""
    x, y = (rng.normal(size=(6, 5000)) for _ in range(2))
    a, b = T.dmatrix("a"), T.dmatrix("b")
    joined = T.concatenate([a, b[:0] if axis == 0 else b[:, :0], b], axis)
    first, last = T.split(joined, [a.shape[axis], b.shape[axis]], 2, axis)
    outs = [joined, last - first, *(T.roll(a, s, axis) for s in (2, 0, -1, 13))]
    f = symdnn.function([a, b], outs)
    wanted = [np.concatenate([x, y], axis), y - x, *(np.roll(x, s, axis) for s in (2, 0, -1, 13))]
    for _ in range(3):
        for found, expected in zip(f(x, y), wanted, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("step", [-3, -2, -1, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [*DTYPES, "int16", "complex64", "complex128"])
def test_parts_with_steps_are_copied(dtype, step):
    """From such parts, into such parts, and single rows and numbers of them; the rest stays."""
    copy = copies._CopyLaunches(True).copy
    for shape in ((3, 1), (2, 37), (5, 700), (1, 2 * 16 + 1)):
        x = values(dtype, *shape)
        for part in (x[:, ::step], x[::-1, ::step], x[::2, ::step], x[:1, ::step]):
            whole = np.zeros((part.shape[0], part.shape[1] + 2), dtype)
            copy(part, whole[:, 1:-1])
            np.testing.assert_array_equal(whole[:, 1:-1], part)
            assert not whole[:, :: whole.shape[1] - 1].any()
            spaced = np.zeros((part.shape[0], 3 * part.shape[1]), dtype)
            copy(part, spaced[:, 1::3])
            np.testing.assert_array_equal(spaced[:, 1::3], part)
            assert not spaced[:, ::3].any()


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64", "bool"])
@pytest.mark.parametrize("lanes", [1, 20, 32, 33, 165, 512, 513])
def test_short_rows_along_an_axis_have_their_indices_joined(rng, lanes, dtype, kind):
    """Indices that count from the end, wrong ones, other strides, few and many rows."""
    op = AdvancedSubtensor(("a", "a"))
    for rows in (1, 2, 31, 100):
        x, numbers = values(dtype, rows, 90), np.arange(rows)[:, None]
        for low in (0, 0 if kind == "uint8" else -90):
            at = rng.integers(low, 90, (rows, lanes)).astype(kind)
            for index in (at, np.asfortranarray(at), np.repeat(at, 2, 1)[:, ::2]):
                run(GatherKernel(), op, [x, numbers, index], [np.empty((rows, lanes), dtype)])
        at[rows // 2, -1] = 90
        with pytest.raises(IndexOutOfRange, match="90"):
            run(GatherKernel(), op, [x, numbers, at], [np.empty((rows, lanes), dtype)])


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("dtype", ["bool", "float32", "float16"])
@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_short_rows_are_copied_along_the_last_axis_around_them(rng, lanes, dtype, kind):
    """Indices that count from the end, wrong ones, of other strides, and two side by side."""
    for n in (15, 16, 37, 300):
        x, low = values(dtype, 4, 50, lanes), 0 if kind == "uint8" else -50
        at = rng.integers(low, 50, n).astype(kind)
        fine = rng.integers(0, 50, n).astype(kind)
        for index in (at, fine, np.repeat(fine, 2)[::2], fine[::-1]):
            for count in (1, 3):
                with config.change_flags(**{"openmp.threads": count}):
                    op = AdvancedSubtensor((ALL, "a", ALL))
                    run(GatherKernel(), op, [x, index], [np.empty((4, n, lanes), dtype)])
                    op, own = AdvancedSubtensor(("a", ALL)), x.reshape(200, lanes)
                    run(GatherKernel(), op, [own, index], [np.empty((n, lanes), dtype)])
            op, rows = AdvancedSubtensor(("a", "a", ALL)), np.arange(4)[:, None]
            run(GatherKernel(), op, [x, rows, index], [np.empty((4, n, lanes), dtype)])
        at[n // 2] = 50
        op = AdvancedSubtensor((ALL, "a", ALL))
        with pytest.raises(IndexOutOfRange, match="50"):
            run(GatherKernel(), op, [x, at], [np.empty((4, n, lanes), dtype)])


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("index", [("a",), ("a", ALL), (ALL, "a"), ("a", "a")])
def test_complex_numbers_are_picked(rng, dtype, index):
    """Also where memory is aligned to their parts only."""
    op, shape = AdvancedSubtensor(index), (40, 90)[: len(index)]
    memory = np.zeros(np.prod(shape) + 1, dtype).view("u1")
    part = np.dtype(dtype).itemsize // 2
    for x in (np.empty(shape, dtype), memory[part:-part].view(dtype).reshape(shape)):
        x[...] = rng.normal(size=shape) + 1j * rng.normal(size=shape)
        arrays = [rng.integers(-n, n, (30, 50)) for n, e in zip(shape, index) if e == "a"]
        wanted = op.reference(x, *arrays)
        types = [TensorType(a.dtype.name, a.shape) for a in (x, *arrays, wanted)]
        call = Call(op, tuple(types[:-1]), (types[-1],), Hints())
        assert GatherKernel().refuses(call) is None
        out = np.empty_like(wanted)
        GatherKernel().bind(call)([x, *arrays], [out])
        np.testing.assert_array_equal(out, wanted)
