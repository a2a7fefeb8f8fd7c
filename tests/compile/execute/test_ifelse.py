"""Lazy choice: only the branch taken runs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.op import Op

RAN: list[str] = []


@dataclass(frozen=True)
class Note(Op):
    """Its input; says that it ran, and raises when told to."""

    name: str
    fail: bool = False

    def infer(self, x):
        return x

    def reference(self, x):
        RAN.append(self.name)
        if self.fail:
            raise RuntimeError(f"{self.name} ran")
        return x + 1

    def shapes(self, types, shapes, host):
        return [shapes[0]]

    def vjp(self, inputs, outputs, cotangents):
        return [cotangents[0]]


@pytest.fixture(autouse=True)
def _fresh():
    RAN.clear()


@pytest.fixture(params=["None", "fast_run"])
def mode(request) -> Any:
    return symdnn.Mode(optimizer=request.param)


def test_the_other_branch_does_not_run(mode):
    c, x = T.lscalar("c"), T.dvector("x")
    f = symdnn.function(
        [c, x], symdnn.ifelse(c, Note("yes")(x * 2), Note("no", fail=True)(x * 3)), mode=mode
    )
    np.testing.assert_array_equal(f(1, np.ones(2)), [3, 3])
    assert RAN == ["yes"]
    with pytest.raises(RuntimeError, match="no ran"):
        f(0, np.ones(2))


def test_a_condition_computed_from_data(mode):
    x = T.dmatrix("x")
    f = symdnn.function(
        [x], symdnn.ifelse(T.gt((x * x).sum(), 10), Note("big")(x), Note("small")(x) * 0), mode=mode
    )
    assert f(np.ones((2, 2))).sum() == 0
    assert f(np.full((2, 2), 9.0)).sum() == 40
    assert RAN == ["small", "big"]


def test_nested(mode):
    a, b, x = T.lscalar("a"), T.lscalar("b"), T.dvector("x")
    inner = symdnn.ifelse(b, Note("ab")(x), Note("a")(x) * 10)
    out = symdnn.ifelse(a, inner * 2, Note("none")(x) * 100)
    f = symdnn.function([a, b, x], out, mode=mode)
    for given, wanted, ran in [
        ((1, 1), 4, ["ab"]), ((1, 0), 40, ["a"]), ((0, 1), 200, ["none"]), ((0, 0), 200, ["none"]),
    ]:  # fmt: skip
        RAN.clear()
        assert f(*given, np.ones(1)) == wanted
        assert ran == RAN


def test_work_shared_by_both_branches_runs_once(mode):
    c, x = T.lscalar("c"), T.dvector("x")
    h = Note("both")(x)
    f = symdnn.function([c, x], [symdnn.ifelse(c, h * 2, h * 3), h], mode=mode)
    assert f(0, np.ones(1))[0] == 6
    assert RAN == ["both"]


def test_gradient(mode):
    c, x = T.lscalar("c"), T.dvector("x")
    cost = symdnn.ifelse(c, (x**2).sum(), (x**3).sum())
    f = symdnn.function([c, x], T.grad(cost, x), mode=mode)
    a = np.array([1.0, 2.0])
    np.testing.assert_allclose(f(1, a), 2 * a)
    np.testing.assert_allclose(f(0, a), 3 * a**2)


def test_a_branch_that_passes_on_what_it_gets(mode):
    c, x = T.lscalar("c"), T.dvector("x")
    w = symdnn.shared(np.array([5.0, 6.0]))
    outs = symdnn.ifelse(c, [x, x, w], [w, T.constant(np.zeros(2)), w * 2])
    f = symdnn.function([c, x], outs, mode=mode)
    a = np.array([1.0, 2.0])
    for flag in (1, 0):
        results = f(flag, a)
        everything = [a, w.get_value(borrow=True), *results]
        for i, one in enumerate(everything):
            assert not any(np.shares_memory(one, other) for other in everything[:i])
    np.testing.assert_array_equal(f(1, a), [a, a, [5, 6]])
    np.testing.assert_array_equal(f(0, a), [[5, 6], [0, 0], [10, 12]])


def test_branches_of_different_shapes(mode):
    c, x = T.lscalar("c"), T.dvector("x")
    f = symdnn.function([c, x], symdnn.ifelse(c, x[1:], x[:1]) * 2, mode=mode)
    np.testing.assert_array_equal(f(1, np.arange(4.0)), [2, 4, 6])
    np.testing.assert_array_equal(f(0, np.arange(4.0)), [0])


def test_sizes_inside_of_a_branch_come_from_what_enters_it(mode):
    c, x, n = T.lscalar("c"), T.dvector("x"), T.lscalar("n")
    found = x[T.gt(x, 0).nonzero()[0]] + 1
    yes = found[1:n].sum() + T.zeros((found.shape[0],)).sum()
    f = symdnn.function([c, x, n], symdnn.ifelse(c, yes, x.sum()), mode=mode)
    a = np.array([1.0, -1.0, 2.0, 3.0])
    assert f(1, a, 2) == 3
    assert f(1, a, 9) == 7
    assert f(0, a, 2) == 5


def test_a_branch_that_reads_the_size_of_a_choice_alone(mode):
    c, x = T.dscalar("c"), T.dmatrix("x")
    chosen = symdnn.ifelse(T.gt(c, 0), T.dot(x, x.T), T.exp(x))
    n = chosen.shape[1]  # enters the branches below; the choice does not
    inner = symdnn.ifelse(T.gt(c, 2), T.alloc(c, n, 2), T.alloc(c, 2, n))
    f = symdnn.function([c, x], [chosen, symdnn.ifelse(T.gt(c, 1), inner, x)], mode=mode)
    shapes = [[r.shape for r in f(value, np.ones((3, 4)))] for value in (0.0, 0.5, 1.5, 3.0)]
    assert shapes == [[(3, 4)] * 2, [(3, 3), (3, 4)], [(3, 3), (2, 3)], [(3, 3), (3, 2)]]


def test_updates_choose_too(mode):
    c = T.lscalar("c")
    w = symdnn.shared(np.zeros(2))
    f = symdnn.function([c], None, updates=[(w, symdnn.ifelse(c, w + 1, w))], mode=mode)
    f(1)
    f(0)
    f(1)
    assert w.get_value().tolist() == [2, 2]


@pytest.mark.cpu
def test_each_branch_has_its_plans(mode):
    c, x = T.lscalar("c"), T.dvector("x")
    f = symdnn.function([c, x], symdnn.ifelse(c, T.exp(x), T.sin(x)), mode=mode)
    f(1, np.ones(2))
    assert len(f.plans()) == 1
    f(0, np.ones(2))
    assert len(f.plans()) == 2


SHAPES = [((2,), (3,)), ((0,), (4,)), ((2, 3), (5, 1)), ((1, 2, 2), (3, 0, 4))]


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize(("one", "other"), SHAPES, ids=str)
def test_gradient_of_branches_of_different_shapes(mode, one, other, taken):
    c = T.lscalar("c")
    a, b = (T.TensorType("float64", (None,) * len(one))(n) for n in "ab")
    cost = (symdnn.ifelse(c, a**2, b**3) ** 2).sum()
    f = symdnn.function([c, a, b], T.grad(cost, [a, b]), mode=mode)
    u, v = np.full(one, 2.0), np.full(other, 3.0)
    da, db = f(taken, u, v)
    np.testing.assert_array_equal(da, 4 * u**3 if taken else np.zeros(one))
    np.testing.assert_array_equal(db, np.zeros(other) if taken else 6 * v**5)


@pytest.mark.parametrize("taken", [0, 1])
def test_gradient_of_several_outputs_of_different_shapes(mode, taken):
    c, a, b, m = T.lscalar("c"), T.dvector("a"), T.dvector("b"), T.dmatrix("m")
    x, y, _ = symdnn.ifelse(c, [a * 2, m, a], [b * 3, m[1:], b])
    cost = (x**2).sum() + (y**3).sum()
    f = symdnn.function([c, a, b, m], T.grad(cost, [a, b, m]), mode=mode)
    u, v, w = np.arange(2.0), np.arange(3.0), np.arange(6.0).reshape(3, 2)
    got = f(taken, u, v, w)
    whole = 3 * w**2
    below = whole * np.array([[0], [1], [1]])
    wanted = [8 * u, 0 * v, whole] if taken else [0 * u, 18 * v, below]
    for g, want in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(g, want)


@pytest.mark.parametrize("flags", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gradients_of_nested_choices_of_different_shapes(mode, flags):
    c, d = T.lscalar("c"), T.lscalar("d")
    a, b, e = (T.dvector(n) for n in "abe")
    out = symdnn.ifelse(c, symdnn.ifelse(d, a**2, b**2) * 2, e**2)
    first = T.grad((out**2).sum(), [a, b, e])
    second = T.grad(sum((g**2).sum() for g in first), [a, b, e])
    f = symdnn.function([c, d, a, b, e], [*first, *second], mode=mode)
    values = [np.arange(1.0, n) for n in (3, 4, 6)]
    scale = [4.0 * (flags[0] and flags[1]), 4.0 * (flags[0] and not flags[1]), 1.0 - flags[0]]
    got = f(*flags, *values)
    for s, x, g1, g2 in zip(scale, values, got[:3], got[3:], strict=True):
        np.testing.assert_allclose(g1, 4 * s * x**3)
        np.testing.assert_allclose(g2, 96 * s**2 * x**5)


def test_gradient_inside_of_a_loop_of_branches_of_different_shapes(mode):
    n, a, b = T.lvector("n"), T.dvector("a"), T.dvector("b")
    sums, _ = symdnn.scan(
        lambda k, a, b: symdnn.ifelse(T.gt(k, 0), k * a, b**2).sum(),
        sequences=n,
        non_sequences=[a, b],
    )
    f = symdnn.function([n, a, b], T.grad((sums**2).sum(), [a, b]), mode=mode)
    u, v = np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    da, db = f([1, 0, 3, 0], u, v)
    np.testing.assert_allclose(da, np.full(2, 2 * u.sum() * (1 + 9)))
    np.testing.assert_allclose(db, 2 * 2 * (v**2).sum() * 2 * v)


@pytest.mark.parametrize("taken", [0, 1])
def test_forward_mode_of_branches_of_different_shapes(mode, taken):
    c, a, b = T.lscalar("c"), T.dvector("a"), T.dvector("b")
    out = symdnn.ifelse(c, a**2, b**3)
    f = symdnn.function([c, a, b], T.Rop(out, [a], [T.ones_like(a)]), mode=mode)
    u, v = np.arange(2.0), np.arange(3.0)
    np.testing.assert_array_equal(f(taken, u, v), 2 * u if taken else 0 * v)


def test_gradient_runs_no_branch_that_is_not_taken():
    c, a, b = T.lscalar("c"), T.dvector("a"), T.dvector("b")
    out = symdnn.ifelse(c, Note("yes")(a * 2), Note("no", fail=True)(b * 3))
    f = symdnn.function([c, a, b], T.grad((out**2).sum(), [a, b]))
    da, db = f(1, np.ones(2), np.ones(3))
    assert (da.tolist(), db.tolist()) == ([12, 12], [0, 0, 0])
    assert RAN == ["yes"]
