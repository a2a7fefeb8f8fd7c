"""Rows added where an index array says, against the reference."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.elementwise.scatter import ScatterKernel
from symdnn.errors import IndexOutOfRange
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from tests.cpu.harness import compiled

pytestmark = compiled
ALL = (None, None, None)


def launch(op, arrays, out):
    types = tuple(TensorType(a.dtype.name, a.shape) for a in arrays)
    call = Call(op, types, (types[0],), NO_HINTS)
    kernel = ScatterKernel()
    assert kernel.refuses(call) is None
    kernel.bind(call)(list(arrays), [out])
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("index", ["int64", "int32", "uint8"])
@pytest.mark.parametrize(
    ("rows", "rest"), [(9, (5,)), (3, (300,)), (20, (4, 33)), (7, ()), (4, (0,))]
)
def test_rows_that_come_twice_are_added_twice(rng, rows, rest, index, dtype):
    low = 0 if index == "uint8" else -rows
    at = rng.integers(low, rows, (6, 4)).astype(index)
    x, y = (rng.normal(size=s).astype(dtype) for s in ((rows, *rest), (6, 4, *rest)))
    op = AdvancedIncSubtensor(("a", *[ALL] * len(rest)))
    wanted = op.reference(x.astype("float64"), y.astype("float64"), at)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(launch(op, (x, y, at), np.full_like(x, 7)), wanted, **close)
    turned = np.full(x.shape[::-1], 7, dtype).T
    np.testing.assert_allclose(launch(op, (x, y, at), turned), wanted, **close)
    np.testing.assert_allclose(launch(op, (x, y, at), x), wanted, **close)  # in place


@pytest.mark.parametrize("sets", [False, True])
@pytest.mark.parametrize("kind", ["int64", "int16", "uint8"])
@pytest.mark.parametrize(
    ("index", "shapes"),
    [
        (("a", "a"), [(20, 1), (20, 30)]), (("a", "a"), [(7, 30), (1, 30)]),
        ((ALL, "a"), [(900,)]), (("a", ALL, "a"), [(6, 1), (1, 9)]),
        ((ALL, "a", "a"), [(40,), (40,)]), (("a", "a", "a"), [(2, 3, 4)] * 3),
    ],
)  # fmt: skip
def test_elements_along_any_axes(rng, index, shapes, kind, sets):
    sizes, at, arrays = (20, 30, 17)[: len(index)], iter(shapes), []
    for n, entry in zip(sizes, index):
        if entry == "a":
            arrays.append(rng.integers(-n if kind[0] == "i" else 0, n, next(at)).astype(kind))
    op = AdvancedIncSubtensor(index, set_instead_of_inc=sets)
    for dtype in ("float32", "float64", *(["float16", "bool", "int8"] if sets else [])):
        x = (rng.normal(size=sizes) * 9).astype(dtype)
        part = op.getter().reference(x, *arrays).shape
        for y in (rng.normal(size=part) * 9, np.ones((1,) * len(part))):
            given, y = (x, y.astype(dtype), *arrays), y.astype(dtype)
            types = tuple(TensorType(a.dtype.name, a.shape) for a in given)
            call = Call(op, types, (types[0],), NO_HINTS)
            assert ScatterKernel().refuses(call) is None
            wanted = op.reference(*given)
            for out in (np.full_like(x, 1), np.full(x.shape[::-1], 1, dtype).T, x.copy()):
                first = out if out.flags.c_contiguous and (out == x).all() else x
                ScatterKernel().bind(call)([first, y, *arrays], [out])
                np.testing.assert_allclose(
                    out.astype("f8"), wanted.astype("f8"), rtol=1e-5, atol=1e-4
                )


@pytest.mark.parametrize("axis", [0, 1])
def test_the_gradient_of_elements_along_an_axis(rng, axis):
    x, i, w = T.dmatrix("x"), T.lmatrix("i"), T.dmatrix("w")
    slope = symdnn.grad((T.take_along_axis(x, i, axis) * w).sum(), x)
    f = symdnn.function([x, i, w], slope, mode=symdnn.Mode(target="cpu"), on_unused_input="ignore")
    data, weights = rng.normal(size=(2, 90, 80))
    at = rng.integers(0, 80, (90, 80))
    wanted = np.zeros_like(data)
    grid = list(np.indices(at.shape))
    grid[axis] = at
    np.add.at(wanted, tuple(grid), weights)
    for _ in range(3):
        np.testing.assert_allclose(f(data, at, weights), wanted, rtol=1e-12, atol=1e-12)
    assert "llvm.scatter" in str(f.lowering_report())
    at[5, 6] = -91
    with pytest.raises(IndexOutOfRange, match="-91"):
        f(data, at, weights)


def test_a_wrong_element_changes_nothing(rng):
    x = symdnn.shared(np.zeros((90, 80)))
    i = T.lmatrix("i")
    f = symdnn.function(
        [i], updates=[(x, T.inc_subtensor(T.take_along_axis(x, i, 1), 1.0))],
        mode=symdnn.Mode(target="cpu"),
    )  # fmt: skip
    at = rng.integers(0, 80, (90, 80))
    f(at)
    before = x.get_value()
    wrong = at.copy()
    wrong[89, 79] = 80
    with pytest.raises(IndexOutOfRange):
        f(wrong)
    np.testing.assert_array_equal(x.get_value(), before)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int64"])
@pytest.mark.parametrize("index", [("a", ALL), ("a", "a"), (ALL, "a"), ("a",)], ids=str)
def test_bits_do_not_depend_on_threads(rng, index, dtype):
    sizes = (50, 500)[: len(index)]
    x = np.zeros(sizes, dtype)
    arrays = [rng.integers(-n, n, (900, 60)) for n, e in zip(sizes, index) if e == "a"]
    op, found = AdvancedIncSubtensor(index), []
    part = op.getter().reference(x, *arrays).shape
    y = (rng.normal(size=part) * 9).astype(dtype)
    for count in (1, 2, 5):
        with config.change_flags(**{"openmp.threads": count}):
            found.append(launch(op, (x, y, *arrays), np.empty_like(x)))
    wide = x.astype("float64") if dtype == "float32" else x
    wanted = op.reference(wide, y.astype(wide.dtype), *arrays)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-3, atol=1e-2)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_an_index_out_of_range_is_an_error():
    x, y = np.zeros((4, 3), "float32"), np.zeros((2, 3), "float32")
    with pytest.raises(IndexOutOfRange, match="index 4"):
        launch(AdvancedIncSubtensor(("a", ALL)), (x, y, np.array([0, 4])), np.empty_like(x))


def test_the_gradient_of_an_embedding_runs_here(rng):
    w, at = T.fmatrix("w"), T.imatrix("at")
    f = symdnn.function([w, at], symdnn.grad((w[at] ** 2).sum(), w), mode=symdnn.Mode(target="cpu"))
    values, rows = rng.normal(size=(30, 8)).astype("float32"), rng.integers(0, 30, (5, 6), "int32")
    counts = np.bincount(rows.ravel(), minlength=30)[:, None]
    np.testing.assert_allclose(f(values, rows), 2 * counts * values, rtol=1e-5)
    assert "llvm.scatter" in f.lowering_report().kernels()


def test_what_it_does_not_add_is_refused_with_the_reason():
    def refusal(op, dtype="float32", more=()):
        x, y = TensorType(dtype, (4, 3)), TensorType(dtype, (2, 3))
        given = (x, y, TensorType("int64", (2,)), *more)
        return ScatterKernel().refuses(Call(op, given, (x,), NO_HINTS))

    assert "does not add float16" in refusal(AdvancedIncSubtensor(("a", ALL)), "float16")
    assert "does not add bool" in refusal(AdvancedIncSubtensor(("a", ALL)), "bool")
    bound = (TensorType("int64", ()),)
    assert "known bounds" in refusal(AdvancedIncSubtensor(("a", ("?", 2, None))), more=bound)


@pytest.mark.parametrize("seed", range(12))
def test_runs_of_indices_are_copied(seed):
    """Also indices from the end, slices with steps, and rows that are checked together."""
    rng = np.random.default_rng(seed)
    rows, n, m = (int(k) for k in rng.integers((1, 5, 1500), (90, 40, 5000)))
    dtype = rng.choice(["float32", "int8", "float16", "complex128", "bool"])
    x = rng.integers(0, 9, (rows, m)).astype(dtype)
    first, length = int(rng.integers(0, m // 2)), int(rng.integers(1, m // 2))
    run = np.arange(first, first + length)
    low = -m if seed % 3 == 0 else 0
    at = np.concatenate([rng.integers(low, m, n), run, rng.integers(0, m, seed % 5 * n)])
    given = x if seed % 4 else x[:, ::-1]
    for index in (at.astype("int32"), at[::-1]):
        a, i, j = T.tensor(dtype, (None, None)), T.tensor(index.dtype.name, (None,)), T.lvector()
        np.testing.assert_array_equal(
            symdnn.function([a, i], a[:, i])(given, index), given[:, index]
        )
        lines = rng.integers(0, rows, 2 * rows)
        f = symdnn.function([a, j, i], a[j.dimshuffle(0, "x"), i])
        np.testing.assert_array_equal(f(given, lines, index), given[lines[:, None], index])
        wrong = index.copy()
        wrong[len(at) // 2] = m
        with pytest.raises(IndexOutOfRange):
            f(given, lines, wrong)


@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect", "symmetric"])
def test_pads_of_neighbouring_axes_are_one_gather(rng, mode):
    for shape, widths in (
        ((70, 90), ((2, 3), (4, 0))), ((3, 40, 50), ((0, 0), (5, 1), (60, 70))),
        ((4, 30, 40), ((1, 1), (0, 0), (2, 3))), ((1, 300), ((3, 3), (2, 2))),
    ):  # fmt: skip
        x = rng.normal(size=shape).astype("float32")
        v = T.tensor("float32", (None,) * len(shape))
        f = symdnn.function([v], T.pad(v, widths, mode=mode))
        np.testing.assert_array_equal(f(x), np.pad(x, widths, mode=mode))
        kinds = [type(n.op) for n in f.stages.fgraph.toposort()]
        assert kinds.count(AdvancedSubtensor) == (2 if widths[1] == (0, 0) else 1)
