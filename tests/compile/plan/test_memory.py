"""Whose memory is whose: results are fresh, arguments and shared variables stay as they are."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.plan.packing import Buffer, assign_offsets
from symdnn.compile.plan.views import View
from symdnn.graph.op import Op
from symdnn.graph.values.strides import reshaped
from symdnn.ops.core.gradient_control import Print, assert_

MODES = pytest.mark.parametrize("optimizer", ["None", "fast_run"])


def disjoint(*arrays):
    return all(not np.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2))


def compiled(inputs, outputs, optimizer, **options):
    return symdnn.function(inputs, outputs, mode=symdnn.Mode(optimizer=optimizer), **options)


@MODES
def test_results_share_memory_with_nothing(optimizer):
    x = T.fmatrix("x")
    w = symdnn.shared(np.arange(6, dtype="float32").reshape(2, 3))
    c = T.constant(np.ones((2, 3), "float32"))
    y = x * 2
    outputs = [x, w, c, x.T, w[::-1], c[0], y, y, y[0], y.T, x.reshape((6,)), w + 0, x[:, ::-1]]
    f = compiled([x], outputs, optimizer)
    a = np.arange(6, dtype="float32").reshape(2, 3)
    results = f(a)
    assert disjoint(a, w.get_value(borrow=True), c.data, *results)
    again = f(a + 1)
    assert disjoint(*results, *again)
    wanted = [a, a, c.data, a.T, a[::-1], c.data[0], 2 * a, 2 * a, 2 * a[0], 2 * a.T, a.ravel(), a,
              a[:, ::-1]]  # fmt: skip
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.flags.writeable
        assert type(got) is np.ndarray


def test_values_of_the_host_program_are_copied():
    v = T.lvector("v")
    s = symdnn.shared(np.array([3, 1, 2]))
    f = symdnn.function([v], [v[::-1], T.zeros((v[0],)), v, s[::-1], T.zeros((s[2], v[1])), s])
    a = np.array([2, 3])
    results = f(a)
    assert disjoint(a, s.get_value(borrow=True), *results)
    assert [r.shape for r in results] == [(2,), (2,), (2,), (3,), (2, 3), (3,)]


def test_two_shared_variables_are_swapped():
    a, b = symdnn.shared(np.zeros(3)), symdnn.shared(np.ones(3))
    f = symdnn.function([], [a, b], updates=[(a, b), (b, a)])
    before = f()
    np.testing.assert_array_equal(before, [np.zeros(3), np.ones(3)])
    np.testing.assert_array_equal(a.get_value(), np.ones(3))
    np.testing.assert_array_equal(b.get_value(), np.zeros(3))


@MODES
def test_an_update_by_a_view_of_another_updated_variable(optimizer):
    a, b = symdnn.shared(np.arange(4.0)), symdnn.shared(np.ones(4))
    f = compiled([], None, optimizer, updates=[(a, a * 10), (b, a[::-1])])
    assert f() == []
    np.testing.assert_array_equal(a.get_value(), [0, 10, 20, 30])
    np.testing.assert_array_equal(b.get_value(), [3, 2, 1, 0])


def test_integer_vectors_updated_by_views_of_each_other():
    a, b = symdnn.shared(np.array([2, 3])), symdnn.shared(np.array([5, 7]))
    f = symdnn.function([], T.zeros((a[0], b[0])).shape, updates=[(a, b[::-1]), (b, a[::-1])])
    np.testing.assert_array_equal(f(), [2, 5])
    np.testing.assert_array_equal(a.get_value(), [7, 5])
    np.testing.assert_array_equal(b.get_value(), [3, 2])


@pytest.mark.cpu
def test_an_update_keeps_the_buffer_and_a_new_shape_changes_it():
    a = symdnn.shared(np.zeros(3))
    held = a.get_value(borrow=True)
    n = T.lscalar("n")
    f = symdnn.function([n], [], updates=[(a, T.ones((n,), dtype="float64"))])
    f(3)
    assert held.tolist() == [1, 1, 1]
    assert a.get_value(borrow=True) is held
    f(4)
    assert a.get_value().shape == (4,)


@MODES
@pytest.mark.parametrize(
    "lay",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a[::-1][::-1],
        lambda a: np.ascontiguousarray(a[::-1])[::-1],
        lambda a: np.broadcast_to(a[:1], a.shape),
    ],
)
def test_arguments_of_any_strides(optimizer, lay):
    x = T.dmatrix("x")
    f = compiled([x], [x.T.reshape((12,)), x[::-1, 1:].sum(), x.dot(x.T)], optimizer)
    a = lay(np.arange(12.0).reshape(3, 4))
    before = a.copy()
    flat, total, product = f(a)
    np.testing.assert_array_equal(flat, a.T.reshape(12))
    np.testing.assert_allclose(total, a[::-1, 1:].sum())
    np.testing.assert_allclose(product, a @ a.T)
    np.testing.assert_array_equal(a, before)


@MODES
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_zero_sizes(optimizer, shape):
    x = T.dmatrix("x")
    outputs = [x * 2 + 1, x.T[::-1], x.sum(), x.sum(axis=0), x.reshape((-1,)), x.dot(x.T), x[:0]]
    a = np.zeros(shape)
    results = compiled([x], outputs, optimizer)(a)
    wanted = [a, a.T, 0.0, a.sum(0), a.ravel(), a @ a.T, a[:0]]
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.shape == np.shape(want)


@MODES
def test_scalars_are_arrays_without_dimensions(optimizer):
    x, y = T.fscalar("x"), T.fscalar("y")
    f = compiled([x, y], [x, x + y, x * 2, (x + y).astype("int32")], optimizer)
    for result in f(1.5, 2):
        assert type(result) is np.ndarray
        assert result.shape == ()


@MODES
def test_views_whose_bounds_are_read_at_each_call(optimizer):
    x, i, k = T.dmatrix("x"), T.lscalar("i"), T.lscalar("k")
    y = x * 2
    part = y[i : i + 2, ::-1]
    outputs = [part + 1, part.T, y[i], y[k:][0] * 3, y[::-1][k], part[1:] - part[:1]]
    f = compiled([x, i, k], outputs, optimizer)
    a = np.arange(20.0).reshape(5, 4)
    for i_, k_ in [(0, 1), (1, -1), (3, 2), (2, 0)]:
        b = 2 * a
        p = b[i_ : i_ + 2, ::-1]
        wanted = [p + 1, p.T, b[i_], b[k_:][0] * 3, b[::-1][k_], p[1:] - p[:1]]
        for got, want in zip(f(a, i_, k_), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_in_place_over_a_view_with_a_run_time_offset():
    x, i = T.dvector("x"), T.lscalar("i")
    y = x * 2
    z = T.exp(y[i : i + 3]) + 1
    f = symdnn.function([x, i], [z * 2, y[-1] * 1.0])
    a = np.linspace(0, 1, 7)
    for i_ in (0, 2, 4):
        got, last = f(a, i_)
        np.testing.assert_allclose(got, 2 * (np.exp(2 * a[i_ : i_ + 3]) + 1))
        assert last == 2


def test_in_place_is_taken_and_right():
    x = T.dmatrix("x")
    f = symdnn.function([x], T.exp(T.sin(x) + 1) * 2)
    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(f(a), np.exp(np.sin(a) + 1) * 2)
    (plan,) = f.plans()
    assert plan.memory.arena_bytes <= 2 * 64


def early(inputs, outputs, *arrays):
    """How many values are made in the memory of outputs; every run has results of its own."""
    f = symdnn.function(inputs, outputs, mode=symdnn.Mode(target="cpu"))
    before = [r.copy() for r in f(*arrays)]
    kept = f(*arrays)
    for _ in range(3):
        later = f(*arrays)
        assert disjoint(*later, *kept, *arrays)
        for got, want in zip(later, before, strict=True):
            np.testing.assert_array_equal(got, want)
    (plan,) = f.plans()
    return len(plan.memory.early)


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("n", [5, 300])
def test_what_an_output_overwrites_is_made_in_its_memory(always, n):
    x, i, d = T.matrix("x", dtype="float64"), T.lvector("i"), T.matrix("d", dtype="float64")
    arrays = np.zeros((n, 70)), np.arange(0, n, 2), np.ones((len(range(0, n, 2)), 70))
    gradient = symdnn.Lop(x[i], x, d)
    with symdnn.config.change_flags(**{"cpu.compile": "always" if always else "auto"}):
        assert early([x, i, d], [gradient], *arrays) == 1
        (found,) = gradient.eval({x: arrays[0], i: arrays[1], d: arrays[2]})[:1]
        np.testing.assert_array_equal(found, np.ones(70))
        twice = T.inc_subtensor(gradient[:2], 3.0)
        assert early([x, i, d], [twice], *arrays) == 2
        assert early([x, i, d], [gradient, T.inc_subtensor(gradient[:2], 3.0)], *arrays) == 1


def test_a_reshaped_value_is_made_in_the_memory_of_what_overwrites_it():
    """As the product of a loop's states of all steps, to which another one is added."""
    x, w, b = T.tensor3("x", dtype="float64"), T.dmatrix("w"), T.tensor3("b", dtype="float64")
    arrays = np.ones((9, 30, 40)), np.full((40, 70), 0.5), np.ones((9, 30, 70))
    product = T.dot(x.reshape((-1, 40)), w)
    added = product.reshape((x.shape[0], x.shape[1], -1)) + b
    assert early([x, w, b], [added], *arrays) == 2
    np.testing.assert_array_equal(
        symdnn.function([x, w, b], added)(*arrays), np.full((9, 30, 70), 21.0)
    )
    assert early([x, w, b], [added, product], *arrays) == 0


def test_what_is_read_later_or_in_part_has_memory_of_its_own():
    x, i, d = T.matrix("x", dtype="float64"), T.lvector("i"), T.matrix("d", dtype="float64")
    arrays = np.ones((300, 70)), np.arange(9), np.ones((9, 70))
    y = T.cumsum(x, 1)
    added = T.inc_subtensor(y[i], d)
    assert early([x, i, d], [added], *arrays) == 1
    assert early([x, i, d], [added, T.cumsum(y, 0)], *arrays) == 0
    assert early([x, i, d], [T.inc_subtensor(y.reshape((-1,))[i], d[:, 0])], *arrays) == 2
    assert early([x, i, d], [T.inc_subtensor(y[1:][i], d)], *arrays) == 0


@MODES
def test_a_value_still_needed_is_not_overwritten(optimizer):
    x = T.dmatrix("x")
    y = x + 1
    view = y.T[::-1]
    f = compiled([x], [(T.exp(y) * 2).sum() + (view * view).sum(), y * y - y], optimizer)
    a = np.arange(6.0).reshape(2, 3) / 6
    b = a + 1
    total, poly = f(a)
    np.testing.assert_allclose(total, (np.exp(b) * 2).sum() + (b * b).sum())
    np.testing.assert_allclose(poly, b * b - b)


@MODES
def test_split_join_and_many_outputs(optimizer):
    x = T.dmatrix("x")
    a, b = T.split(x * 1.5, [1, 2], 2, axis=0)
    f = compiled([x], [a, b, T.join(0, b, a), T.max_and_argmax(x, axis=1)[1]], optimizer)
    v = np.arange(12.0).reshape(3, 4)
    first, second, joined, where = f(v)
    assert disjoint(v, first, second, joined)
    np.testing.assert_array_equal(joined, np.concatenate([second, first]))
    np.testing.assert_array_equal(where, [3, 3, 3])


@MODES
def test_checks_run_although_their_result_is_a_view(optimizer):
    x = T.dvector("x")
    f = compiled([x], assert_(x * 2, T.lt(x.sum(), 4), message="too much").sum(), optimizer)
    assert f(np.ones(3)) == 6
    with pytest.raises(symdnn.errors.AssertionFailed, match="too much"):
        f(np.ones(5))


def test_print_runs_once_a_call_on_real_data(capsys):
    x = T.dvector("x")
    f = symdnn.function([x], Print("seen")(x * 2).sum())
    f(np.ones(2))
    assert capsys.readouterr().out == "seen __str__ = [2. 2.]\n"
    f(np.zeros(2))
    assert capsys.readouterr().out == "seen __str__ = [0. 0.]\n"


@dataclass(frozen=True)
class Second(Op):
    """A view of its second input, as a user might write it."""

    def infer(self, n, x):
        return x.with_shape([None])

    def reference(self, n, x):
        return x[::-1]

    def shapes(self, types, shapes, host):
        return [shapes[1]]

    @property
    def views(self):
        return {0: 1}


@MODES
def test_a_view_of_the_second_input(optimizer):
    n, x = T.dvector("n"), T.dvector("x")
    f = compiled([n, x], [Second()(n * 2, x * 3) + 1, Second()(n, x)], optimizer)
    one, two = f(np.zeros(1), np.arange(3.0))
    np.testing.assert_array_equal(one, [7, 4, 1])
    np.testing.assert_array_equal(two, [2, 1, 0])


@dataclass(frozen=True)
class Same(Op):
    """Hands its input on without saying so, in a shape that only the data decides."""

    def infer(self, x):
        return x.with_shape([None])

    def reference(self, x):
        return x

    def shapes(self, types, shapes, host):
        return None


def test_an_undeclared_view_is_copied():
    x = T.dvector("x")
    f = symdnn.function([x], Same()(x))
    a = np.arange(3.0)
    assert not np.shares_memory(f(a), a)


def test_few_and_many_buffers_get_the_same_offsets(monkeypatch):
    """Few are placed without arrays."""
    rng = np.random.default_rng(0)
    for count in (2, 30, 150):
        rows = [(int(rng.integers(50)), int(rng.integers(20)), int(rng.choice([0, 1, 64, 5000])))
                for _ in range(count)]  # fmt: skip
        found = []
        for few in (0, 40, 1000):
            monkeypatch.setattr("symdnn.compile.plan.packing._FEW_BUFFERS", few)
            made = [Buffer(None, "arena", n, first, first + more) for first, more, n in rows]
            found.append((assign_offsets(made[3:], made[:3]), [b.offset for b in made]))
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("seed", range(20))
def test_buffers_alive_together_do_not_meet(seed):
    rng = np.random.default_rng(seed)
    buffers = []
    for _ in range(40):
        first = int(rng.integers(0, 30))
        life = int(rng.integers(0, 10))
        buffers.append(Buffer(None, "arena", int(rng.integers(0, 1000)), first, first + life))
    total = assign_offsets(buffers)
    for a, b in itertools.combinations(buffers, 2):
        together = a.first <= b.last and b.first <= a.last
        apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
        assert not together or apart
    assert all(b.offset % 64 == 0 and b.offset + b.nbytes <= total for b in buffers)


@pytest.mark.parametrize("dtype", ["bool", "float32", "complex128"])
def test_what_lies_without_gaps(dtype, rng):
    """As NumPy says of arrays: gaps of one size, and a negative stride, are gaps."""
    whole = np.zeros((7, 9), dtype)
    root = T.TensorType(dtype, (7, 9))()
    parts = [slice(None), slice(None, None, 2), slice(None, None, -1), slice(2, 3), slice(1, 8)]
    for rows in parts:
        for columns in parts:
            for a in (
                whole[rows, columns],
                whole[rows, columns].T,
                whole[rows, 3],
                whole[2, columns],
            ):
                view = View(Buffer(root, "arena", whole.nbytes), a.shape, a.strides)
                assert view.contiguous == a.flags.c_contiguous, (a.shape, a.strides)
                flat = reshaped(a.shape, a.strides, (a.size,))
                assert (flat is not None) == np.shares_memory(a.reshape(-1), whole)
