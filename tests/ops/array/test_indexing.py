"""Indexing by NumPy's rules; its errors; set_subtensor and inc_subtensor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import grad
from symdnn.errors import AxisError, IndexOutOfRange, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant
from symdnn.ops.array.advanced_index import AdvancedSubtensor, scatter_add
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.take import BincountLength, OneHot
from symdnn.ops.core.shape import ShapeI
from symdnn.ops.lowered.of_values import Counted


def value(out, given=None):
    return evaluate([out], given or {})[0]


X = np.arange(60.0).reshape(3, 4, 5)


@given(hnp.basic_indices((3, 4, 5), min_dims=0, max_dims=5, allow_newaxis=True))
@settings(max_examples=300, deadline=None)
def test_basic_indexing_is_numpy_s(index):
    for shape in [(None, None, None), (3, 4, 5)]:
        x = TensorType("float64", shape)()
        out = x[index]
        got = value(out, {x: X})
        np.testing.assert_array_equal(got, X[index])
        if None not in shape:
            assert out.type.shape == X[index].shape


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_advanced_indexing_is_numpy_s(data):
    common = data.draw(hnp.array_shapes(max_dims=2, max_side=3))
    entries = []
    for n in X.shape:
        kind = data.draw(st.sampled_from(["array", "int", "slice", "full", "list"]))
        if kind == "array":
            shape = data.draw(st.sampled_from([common, common[-1:], (1,)]))
            entries.append(data.draw(hnp.arrays(np.int64, shape, elements=st.integers(-n, n - 1))))
        elif kind == "list":
            entries.append([data.draw(st.integers(-n, n - 1))])
        elif kind == "int":
            entries.append(data.draw(st.integers(-n, n - 1)))
        else:
            entries.append(slice(None) if kind == "full" else data.draw(st.slices(n)))
    for _ in range(data.draw(st.integers(0, 2))):
        entries.insert(data.draw(st.integers(0, len(entries))), None)
    index = tuple(entries)
    assume(any(isinstance(e, np.ndarray | list) for e in index))
    wanted = X[index]
    x = TensorType("float64", (None,) * 3)()
    arrays = {}

    def symbol(entry):
        if not isinstance(entry, np.ndarray):
            return entry
        v = TensorType("int64", tuple(1 if d == 1 else None for d in entry.shape))()
        arrays[v] = entry
        return v

    out = x[tuple(symbol(e) for e in index)]
    np.testing.assert_array_equal(value(out, {x: X, **arrays}), wanted)
    more = X.copy()
    np.add.at(more, index, 2.0)
    np.testing.assert_array_equal(value(T.inc_subtensor(out, 2.0), {x: X, **arrays}), more)


@given(st.integers(1, 6), st.integers(0, 40), st.integers(0, 3), st.randoms())
@settings(max_examples=100, deadline=None)
def test_scatter_add_accumulates(n, m, width, random):
    rng = np.random.default_rng(random.randrange(1000))
    rows, index = rng.normal(size=(n, width)), rng.integers(-n, n, m)
    values = rng.normal(size=(m, width))
    wanted = rows.copy()
    np.add.at(wanted, index, values)
    scatter_add(rows, [index], values)
    np.testing.assert_allclose(rows, wanted, atol=1e-12)


def test_entries_of_a_shape_need_no_vector():
    x = T.tensor4("x")
    assert isinstance(x.shape[1].owner.op, ShapeI)
    assert x.shape[-1].owner.op == ShapeI(3)
    n, _, h, w = x.shape
    assert n.owner.op == ShapeI(0)
    assert w.owner.op == ShapeI(3)
    assert h.type.dtype == "int64"
    a = np.zeros((2, 3, 4, 5), np.float32)
    assert value(x.shape[2:], {x: a}).tolist() == [4, 5]
    static = TensorType("float32", (None, 7))()
    assert isinstance(static.shape[1], Constant)
    assert static.reshape(static.shape[::-1]).type.shape == (7, None)
    with pytest.raises(AxisError, match="got 4"):
        x.shape[4]
    assert value(T.as_tensor_variable([x.shape[0], 5]), {x: a}).tolist() == [2, 5]


def test_newaxis_and_ellipsis():
    x = T.matrix("x")
    assert x[None].type.broadcastable == (True, False, False)
    assert x[:, None].type.broadcastable == (False, True, False)
    assert x[..., None].ndim == 3
    with pytest.raises(IndexOutOfRange, match="one Ellipsis"):
        x[..., 0, ...]
    with pytest.raises(IndexOutOfRange, match="3 indices"):
        x[0, 0, 0]


def test_an_index_out_of_range_is_named():
    x, i = T.dmatrix("x"), T.lscalar("i")
    a = np.zeros((3, 4))
    with pytest.raises(IndexOutOfRange, match="index 3 is out of range for axis 0 of size 3"):
        value(x[i], {x: a, i: np.int64(3)})
    with pytest.raises(IndexOutOfRange, match="index -5 .*axis 1 of size 4"):
        value(x[:, [0, -5]], {x: a})
    with pytest.raises(IndexError, match="index 7"):  # at once where the size is static
        TensorType("float32", (3,))()[7]
    node = x[i].owner
    types = [v.type for v in node.inputs]
    with pytest.raises(IndexOutOfRange, match="index 9"):  # when a plan is made
        node.op.shapes(types, [(3, 4), ()], {1: 9})


@pytest.mark.parametrize("index", [1.5, T.dscalar("d"), T.dvector("d"), "name"])
def test_what_is_no_index(index):
    with pytest.raises((TypeMismatch, TypeError)):
        T.matrix("x")[index]


def test_slice_bounds_must_be_integer_scalars():
    x = T.vector("x")
    with pytest.raises(TypeMismatch, match="integer scalar"):
        x[: T.fscalar("n")]
    with pytest.raises(IndexOutOfRange, match="step"):
        x[::0]
    out = x[: T.bscalar("n")]
    assert out.owner.inputs[1].type.dtype == "int64"
    assert x[: T.constant(3)].owner.op == x[:3].owner.op == x[0:3:1].owner.op


def test_a_mask_must_have_the_shape():
    x, m = T.dmatrix("x"), TensorType("bool", (None,))("m")
    with pytest.raises(ShapeMismatch):
        value(x[m], {x: np.zeros((3, 4)), m: np.ones(2, bool)})
    with pytest.raises(ShapeMismatch):
        TensorType("float32", (3,))()[np.array([True, False])]
    keep = np.array([True, False, True])
    assert value(x[keep], {x: np.zeros((3, 4))}).shape == (2, 4)


def test_uint8_arrays_are_indices_not_masks():
    x = T.dvector("x")
    got = value(x[np.array([1, 1, 0], np.uint8)], {x: np.array([5.0, 6.0])})
    assert got.tolist() == [6, 6, 5]


def test_set_subtensor_wants_an_indexed_tensor():
    x = T.dvector("x")
    for part in [x, x * 2, x.dimshuffle(0, "x"), T.exp(x[1:])]:
        with pytest.raises(TypeMismatch, match=r"T.set_subtensor\(x\[index\], y\)"):
            T.set_subtensor(part, 1.0)


def test_set_subtensor_values():
    x, f = T.ivector("x"), T.fvector("f")
    with pytest.raises(TypeMismatch, match="the kind of int32"):
        T.set_subtensor(x[1:], 0.5)
    with pytest.raises(TypeMismatch, match=r"astype\('float32'\)"):
        T.set_subtensor(f[1:], T.zscalar("z"))
    assert T.set_subtensor(f[1:], T.dscalar("d")).type.dtype == "float32"
    assert T.set_subtensor(f[1:], 0.1).type.dtype == "float32"
    assert T.inc_subtensor(f[1:], x[0].astype("int8")).type.dtype == "float32"
    with pytest.raises(TypeMismatch, match="at most 1 dimension"):
        T.set_subtensor(f[1:], T.fmatrix("m"))
    with pytest.raises(ShapeMismatch, match="indexed part"):
        T.set_subtensor(TensorType("float32", (5,))()[1:], np.zeros(3, np.float32))
    whole = T.set_subtensor(f[:], 0.0)
    assert value(whole, {f: np.ones(3, np.float32)}).tolist() == [0, 0, 0]


def test_unknown_size_one_does_not_broadcast_into_a_part():
    x, y = T.dmatrix("x"), T.dmatrix("y")
    node = T.set_subtensor(x[1:], y).owner
    types = [v.type for v in node.inputs]
    with pytest.raises(ShapeMismatch, match="statically 1"):
        node.op.shapes(types, [(3, 4), (1, 4)], {})
    assert node.op.shapes(types, [(3, 4), (2, 4)], {}) == [(3, 4)]


@pytest.mark.parametrize("entries", ["ij", "i:j", ":ij", "ki", "ikj"])
def test_index_arrays_broadcast_by_the_lengths_of_a_call(entries, rng):
    x, i, j = T.dtensor3("x"), T.lvector("i"), T.lvector("j")
    names = {"i": i, "j": j, "k": T.lmatrix("k"), ":": slice(None)}
    part = x[tuple(names[e] for e in entries)]
    y = T.tensor("float64", (None,) * part.type.ndim)
    outputs = [part, part.shape, grad((part**2).sum(), x), T.inc_subtensor(part, y)]
    inputs = [x, i, j, names["k"], y]
    f = symdnn.function(inputs, [*outputs, T.set_subtensor(part, 7)], on_unused_input="ignore")
    for n, m, lead in [(1, 3, 2), (3, 1, 1), (3, 3, 2), (1, 1, 2), (1, 0, 1), (0, 1, 1)]:
        drawn = {"i": rng.integers(4, size=n), "j": rng.integers(4, size=m), ":": slice(None)}
        drawn["k"] = rng.integers(4, size=(lead, n))
        value, index = rng.normal(size=(4, 4, 4)), tuple(drawn[e] for e in entries)
        wanted = value[index]
        more = rng.normal(size=wanted.shape)
        slope, added, assigned = np.zeros_like(value), value.copy(), value.copy()
        np.add.at(slope, index, 2 * wanted)
        np.add.at(added, index, more)
        assigned[index] = 7
        found = f(value, drawn["i"], drawn["j"], drawn["k"], more)
        for a, b in zip(found, [wanted, wanted.shape, slope, added, assigned], strict=True):
            np.testing.assert_allclose(a, b)
    if entries != "ki":
        with pytest.raises(ShapeMismatch, match="broadcast together"):
            f(value, [0, 1], [0, 1, 2], [[0, 1]], np.zeros((1,) * part.type.ndim))


def test_gradient_of_a_lookup_accumulates():
    w, i = T.dmatrix("w"), T.lvector("i")
    g = grad(w[i].sum(), w)
    got = value(g, {w: np.zeros((4, 2)), i: np.array([1, 1, -3, 0])})
    assert got.tolist() == [[1, 1], [3, 3], [0, 0], [0, 0]]


def test_basic_indexing_is_a_view_and_prints_as_written():
    x, i = T.matrix("x"), T.lscalar("i")
    out = x[i:, ::-1]
    assert out.owner.op.views == {0: 0}
    assert str(out.owner.op) == "Subtensor{?:, ::-1}"
    assert isinstance(out.owner.op, Subtensor)
    op = x[[0, 1], None, 1:].owner.op
    assert isinstance(op, AdvancedSubtensor)
    assert str(op) == "AdvancedSubtensor{a, None, 1:}"
    assert str(T.inc_subtensor(x[2], 1.0).owner.op) == "IncSubtensor{inc 2, :}"


def test_labels_are_checked():
    y = T.ivector("y")
    with pytest.raises(IndexOutOfRange, match=r"label 10 at position \(2,\).*10 classes"):
        value(T.to_one_hot(y, 10), {y: np.array([0, 9, 10], np.int32)})
    with pytest.raises(IndexOutOfRange, match="label -1"):
        value(T.to_one_hot(y, 10), {y: np.array([-1], np.int32)})
    assert T.to_one_hot(y, 10).type.shape == (None, 10)


def test_take_modes():
    x = T.dvector("x")
    with pytest.raises(ValueError, match="'raise', 'wrap' or 'clip'"):
        T.take(x, [0], mode="mirror")
    with pytest.raises(TypeMismatch, match="integer"):
        T.take(x, [0.5])
    with pytest.raises(IndexOutOfRange):
        value(T.take(x, [5]), {x: np.zeros(3)})
    assert T.take(x, []).type.shape == (0,)


def test_topk_of_too_many():
    x = TensorType("float64", (3,))()
    for k in (4, -4):
        with pytest.raises(ShapeMismatch, match="at most 3"):
            T.topk(x, k)
    assert T.topk(x, 2).type.shape == (2,)
    nan = np.array([1.0, np.nan, 3.0])
    assert value(T.argtopk(x, 2), {x: nan}).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_summed_in_float32(dtype):
    x = TensorType(dtype, (None,))()
    out = T.inc_subtensor(x[np.zeros(3000, np.int64)], 1)
    got = value(out, {x: np.zeros(2, x.type.numpy)})
    assert float(got[0]) == pytest.approx(3000, rel=4e-3)
    assert out.type.dtype == dtype


# An Ellipsis that stands for no dimension parts index arrays, and their dimensions go first.
PARTED = [
    ("x[:, i, ..., 0]", 3), ("x[:, i, ..., j]", 3), ("x[:, i, ...]", 2), ("x[..., i, 0]", 2),
    ("x[0, ..., i]", 2), ("x[i, ..., j]", 2), ("x[:, :, i, ..., j]", 4), ("x[:, m, ..., 0]", 3),
    ("x[:, i, None, ..., 0]", 3), ("x[:, i, ..., None, 0]", 3), ("x[:, None, i, ..., k]", 3),
]  # fmt: skip


@pytest.mark.parametrize(("text", "ndim"), PARTED)
def test_an_ellipsis_for_no_dimension_parts_arrays(text, ndim, rng):
    arrays = {
        "x": rng.standard_normal((3, 4, 3, 4)[:ndim]), "i": np.array([0, 2, -1]),
        "j": np.array([1, 0, 2]), "m": rng.permutation([True, False, True, True]),
        "k": np.array([[0], [1]]),
    }  # fmt: skip
    vs = {n: T.TensorType(a.dtype.name, (None, 1) if n == "k" else (None,) * a.ndim)(n)
          for n, a in arrays.items()}  # fmt: skip
    given = list(vs.values()), list(arrays.values())
    part, want = eval(text, {}, vs), eval(text, {}, arrays)
    y = T.constant(rng.standard_normal(want.shape))
    changed = arrays["x"].copy()
    index = text[2:-1]
    exec(f"x[{index}] = y", {}, {**arrays, "x": changed, "y": y.data})
    summed = np.zeros_like(arrays["x"])
    exec(f"np.add.at(x, np.s_[{index}], y)", {"np": np}, {**arrays, "x": summed, "y": y.data})
    outs = [part, T.set_subtensor(part, y), T.grad((part * y).sum(), vs["x"])]
    got = symdnn.function(given[0], outs, on_unused_input="ignore")(*given[1])
    for a, b in zip(got, [want, changed, summed]):
        np.testing.assert_array_equal(a, b)


def test_a_constant_mask_has_the_size_of_its_axis():
    """Also where the size is that of a call."""
    x, mask = T.matrix(), np.array([True, False, True])
    taken, put = x[:, mask], T.set_subtensor(x[:, mask], 0)
    f = symdnn.function([x], [taken, put])
    given = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(f(given)[0], given[:, mask])
    np.testing.assert_array_equal(f(given)[1], np.where(mask, 0, given))
    for n in (1, 2, 4):
        with pytest.raises(symdnn.errors.ShapeMismatch, match=r"\(None, 3\), got \(2, "):
            f(np.ones((2, n), "float32"))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]
)
def test_counts_of_every_dtype(dtype, target):
    x, least = T.TensorType(dtype, (None,))("x"), T.lscalar()
    weights = T.dvector()
    made = [T.bincount(x, minlength=least), T.bincount(x, weights)]
    f = symdnn.function([x, least, weights], made, mode=symdnn.Mode(target=target))
    ops = {type(n.op) for n in f.fgraph.apply_nodes}
    assert BincountLength not in ops
    assert (Counted in ops) == (target == "cpu")

    def run(*given):
        if target == "cpu":
            return f(*given)
        return evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, given, strict=True)))

    rng = np.random.default_rng(5)
    for size, high in ((0, 1), (1, 1), (50, 2), (5000, 120)):
        a = rng.integers(0, min(high, 2 if dtype == "bool" else high), 2 * size).astype(dtype)
        for some in (a[:size], a[::2], a[::-2]):
            w = rng.normal(size=size)
            counts, sums = run(some, np.int64(3), w)
            whole = some.astype("int64")
            np.testing.assert_array_equal(counts, np.bincount(whole, minlength=3))
            np.testing.assert_allclose(sums, np.bincount(whole, w), atol=1e-12)
            if dtype.startswith("i") and size > 1:
                some[size // 2] = -1
                with pytest.raises(AssertionError, match="integers of 0 or more"):
                    run(some, np.int64(3), w)
                some[size // 2] = 0


@pytest.mark.cpu
@pytest.mark.parametrize("labels", ["int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("dtype", ["bool", "float16", "bfloat16", "float64", "int8"])
def test_one_hot_of_every_dtype(labels, dtype):
    x, m, n = (TensorType(labels, (None,) * ndim)() for ndim in (2, 1, 0))
    count = T.lscalar()
    made = [T.to_one_hot(v, count, dtype) for v in (x, m, n)]
    f = symdnn.function([x, m, n, count], made)
    rng = np.random.default_rng(3)
    for size, classes in ((0, 3), (1, 1), (40, 100), (300, 120)):
        a = rng.integers(0, classes, (2 * size, 3)).astype(labels)
        given = (a[::-2].T, a[::2, 1], np.array(classes - 1, labels))
        for found, of in zip(f(*given, np.int64(classes)), given, strict=True):
            np.testing.assert_array_equal(found, of[..., None] == np.arange(classes))
    for wrong in (7, -1) if labels.startswith("i") else (7,):
        some = np.array([[0, 1], [wrong, 2]], labels)
        with pytest.raises(IndexOutOfRange, match=rf"label {wrong} at position \(1, 0\)"):
            f(some, some[0], some[0, 0], np.int64(7))


def test_a_written_one_hot_may_have_any_strides():
    labels = np.array([[2, 0], [1, 1]])
    out = np.full((3, 2, 2), 7.0).transpose(1, 2, 0)
    OneHot("float64").write(out, labels)
    np.testing.assert_array_equal(out, labels[..., None] == np.arange(3))


def test_a_negative_number_has_no_bin():
    x = T.lvector()
    count = symdnn.function([x], T.bincount(x, minlength=2))
    assert count(np.array([3, 1, 3])).tolist() == [0, 1, 0, 2]
    assert count(np.array([], "int64")).tolist() == [0, 0]
    with pytest.raises(AssertionError, match="integers of 0 or more"):
        count(np.array([3, -1]))


def test_of_values_assigned_to_one_place_the_last_one_stays():
    """In C order, however the arrays lie in memory: NumPy's order is that of memory."""
    x, i, y = T.dvector("x"), T.lmatrix("i"), T.dmatrix("y")
    made = T.set_subtensor(x[i], y)
    f = symdnn.function([x, i, y], made)
    places = np.broadcast_to(np.zeros((1, 2), "int64"), (3, 2))
    for at in (places, places.copy(), np.asfortranarray(places), places[::-1, ::-1]):
        for values in (np.arange(6.0).reshape(3, 2)[::-1], np.arange(6.0).reshape(2, 3).T):
            for found in (f([7], at, values), *evaluate([made], {x: np.ones(1), i: at, y: values})):
                np.testing.assert_array_equal(found, [values[-1, -1]])


@pytest.mark.parametrize("size", [7, None])
def test_values_at_known_places_are_listed_if_their_size_is_known(size):
    """A kernel of lists reads elements by numbers: it can't tell that a call has fewer."""
    x, y = T.tensor("float32", (6,)), T.tensor("float32", (size,))
    z = T.inc_subtensor(x[np.array([0, 1, 1, 2, 3, 4, 5])], y)
    f = symdnn.function([x, y], z, mode=symdnn.Mode(target="cuda:sm_90"))
    ops = [type(n.op).__name__ for n in f.fgraph.toposort()]
    assert ("ListedSums" in ops) == (size is not None)


@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("count", [2, 3])
def test_equal_index_arrays_that_count_are_a_diagonal(rng, length, count):
    """Each of them selects: that one counts along a dimension says nothing of the other."""
    x = rng.normal(size=(length,) * count + (2,))
    column = np.arange(length)[:, None]
    symbolic = T.arange(length)[:, None]
    v = T.TensorType("float64", x.shape)("v")
    changed = x.copy()
    changed[(column,) * count] += 1
    for i in (column, symbolic):
        read = v[(i,) * count]
        f = symdnn.function([v], [read, T.inc_subtensor(read, 1.0)])
        got, new = f(x)
        np.testing.assert_array_equal(got, x[(column,) * count])
        np.testing.assert_array_equal(new, changed)
