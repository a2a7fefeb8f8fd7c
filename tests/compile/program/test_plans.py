"""Plans: one per shape signature; segments; what the host evaluates."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.plan import plan as plan_module
from symdnn.compile.program.program import Segment
from symdnn.config import config
from symdnn.tuning import allowance


def counts(f):
    caches = list(f.executor.plan_caches())
    return sum(c.misses for c in caches), sum(c.hits for c in caches)


def test_minibatches_stay_on_one_plan_and_a_smaller_last_one_makes_one_more():
    data = symdnn.shared(np.arange(22.0).reshape(11, 2), name="data")
    x, i = T.dmatrix("x"), T.lscalar("i")
    size = 4
    f = symdnn.function([i], (x * 2).sum(axis=1), givens={x: data[i * size : (i + 1) * size]})
    for epoch in range(3):
        for k in range(2):
            rows = data.get_value()[k * size : (k + 1) * size]
            np.testing.assert_array_equal(f(k), (rows * 2).sum(1))
        assert len(f.plans()) == (1 if epoch == 0 else 2)
        np.testing.assert_array_equal(f(2), (data.get_value()[8:] * 2).sum(1))
    assert len(f.plans()) == 2
    assert counts(f) == (2, 7)
    data.set_value(np.zeros((40, 2)))
    f(0)
    assert len(f.plans()) == 3


def test_one_plan_per_shape():
    x = T.dmatrix("x")
    f = symdnn.function([x], T.tanh(x).sum())
    for shape in [(2, 3), (3, 2), (2, 3), (2, 3), (3, 2)]:
        f(np.ones(shape))
    assert counts(f) == (2, 3)


def test_a_value_that_changes_no_shape_makes_no_plan():
    x, k = T.dvector("x"), T.lscalar("k")
    f = symdnn.function([x, k], x[k] * 2)
    for i in range(5):
        assert f(np.arange(5.0), i) == 2 * i
    assert len(f.plans()) == 1


def test_least_recently_used_plans_are_dropped():
    x = T.dvector("x")
    f = symdnn.function([x], x + 1)
    with config.change_flags(plan_cache_size=2):
        for n in (1, 2, 1, 3):
            f(np.zeros(n))
        assert [p.signature[0] for p in f.plans()] == [(1,), (3,)]
        f(np.zeros(1))
        assert counts(f) == (3, 2)
        f(np.zeros(2))
        assert counts(f) == (4, 2)


def test_of_shapes_that_were_met_once_only_the_last_few_have_plans():
    x = T.dvector("x")
    f = symdnn.function([x], x + 1)
    for n in (1, 1, 2, 1):  # one shape returns at once, one is used often
        f(np.zeros(n))
    for n in range(3, 60):
        f(np.zeros(n))
    kept = [p.signature[0][0] for p in f.plans()]
    assert kept == [1, *range(44, 60)]


def test_a_plan_that_was_dropped_too_early_is_dropped_once():
    x = T.dvector("x")
    f = symdnn.function([x], x + 1)
    for _ in range(3):
        for n in range(30):
            f(np.zeros(n))
    assert counts(f) == (45, 45)  # half of them are made twice; the third round makes none


def test_a_plan_with_a_measurement_put_off_is_made_again_when_its_shape_returns(monkeypatch):
    x = T.dvector("x")
    f = symdnn.function([x], x + 1)
    asked = []
    real = plan_module.make_plan

    def make(*given, **words):
        asked.append(allowance.may_measure())
        return real(*given, **words)

    monkeypatch.setattr(plan_module, "make_plan", make)
    for n in (1, 2, 2, 2, 3, 1, 3):
        f(np.zeros(n))
    assert asked == [True, False, True, False, True]  # of 1, 2, 2 again, 3, 3 again
    assert [p.postponed for p in f.plans()] == [False] * 3


@pytest.mark.cpu
def test_plans_are_bounded_in_bytes():
    x = T.dvector("x")
    f = symdnn.function([x], T.exp(x + 1) * 2)
    f(np.zeros(1))
    each = f.plans()[0].bound.nbytes
    assert each > 0
    with config.change_flags(plan_cache_bytes=int(2.5 * each)):
        for n in range(2, 6):
            f(np.zeros(n))
        assert [p.signature[0] for p in f.plans()] == [(4,), (5,)]
    with config.change_flags(plan_cache_bytes=1):
        f(np.zeros(9))
        assert len(f.plans()) == 1  # the newest always stays


def test_an_integer_shared_variable_feeds_shapes():
    n = symdnn.shared(np.int64(3), name="n")
    x = T.dscalar("x")
    f = symdnn.function([x], T.zeros((n, 2)) + x, updates=[(n, n + 1)])
    assert [f(1.0).shape for _ in range(3)] == [(3, 2), (4, 2), (5, 2)]
    assert n.get_value() == 6
    assert len(f.plans()) == 3
    n.set_value(np.int64(3))
    f(0.0)
    assert len(f.plans()) == 3


def test_no_recomputation_of_shapes_on_a_hit(monkeypatch):
    from symdnn.ops.linalg.dot import Dot

    x = T.dmatrix("x")
    f = symdnn.function([x], T.dot(x, x.T))
    f(np.ones((2, 3)))
    asked = []
    monkeypatch.setattr(Dot, "shapes", lambda *a: asked.append(a))
    monkeypatch.setattr(Dot, "infer", lambda *a: asked.append(a))
    f(np.ones((2, 3)))
    assert asked == []


def segments(f):
    return [r for r in f.stages.program.regions if isinstance(r, Segment) and r.nodes]


def test_without_values_read_on_the_host_there_is_one_segment():
    x, w = T.dmatrix("x"), symdnn.shared(np.ones((3, 3)))
    loss = T.tanh(T.dot(x, w)).reshape((x.shape[0] * 3,))[1:].mean()
    f = symdnn.function([x], loss, updates=[(w, w - T.grad(loss, w))])
    assert len(segments(f)) == 1
    f(np.ones((2, 3)))
    assert len(f.plans()) == 1


@pytest.mark.parametrize("optimizer", ["None", "fast_run"])
def test_nonzero_in_the_middle_ends_a_segment(optimizer):
    x = T.dvector("x")
    y = T.exp(x)
    kept = y[T.gt(y, 1).nonzero()[0]]
    f = symdnn.function(
        [x], [T.outer(kept, kept), kept.shape[0]], mode=symdnn.Mode(optimizer=optimizer)
    )
    assert len(segments(f)) >= 2
    for a in (np.array([-1.0, 1.0, 2.0]), np.array([-1.0]), np.zeros(0)):
        products, count = f(a)
        e = np.exp(a)
        np.testing.assert_allclose(products, np.outer(e[e > 1], e[e > 1]))
        assert count == (e > 1).sum()


def test_a_sum_of_elements_by_nonzero_is_one_segment():
    x = T.dvector("x")
    y = T.exp(x)
    kept = y[T.gt(y, 1).nonzero()[0]]
    f = symdnn.function([x], [(kept * 2).sum(), kept.shape[0]], mode=symdnn.Mode(target="cpu"))
    assert len(segments(f)) == 1
    for a in (np.array([-1.0, 1.0, 2.0]), np.array([-1.0]), np.zeros(0)):
        total, count = f(a)
        e = np.exp(a)
        np.testing.assert_allclose(total, 2 * e[e > 1].sum())
        assert count == (e > 1).sum()


def test_boolean_masks_one_after_the_other():
    x = T.dmatrix("x")
    first = (x * 2)[T.gt(x, 0).nonzero()]
    second = first[T.lt(first, 5).nonzero()]
    f = symdnn.function([x], second + 1)
    rng = np.random.default_rng(0)
    for shape in [(3, 4), (5, 2), (0, 3)]:
        a = rng.standard_normal(shape) * 4
        b = (a * 2)[a > 0]
        np.testing.assert_allclose(f(a), b[b < 5] + 1)


def test_a_size_that_only_data_knows_feeds_a_shape():
    x = T.dvector("x")
    n = T.gt(x, 0).sum()
    f = symdnn.function([x], [T.zeros((n, 2)), T.arange(n)])
    for a in (np.array([1.0, -1.0, 2.0]), np.array([-1.0])):
        zeros, counted = f(a)
        assert zeros.shape == ((a > 0).sum(), 2)
        assert counted.tolist() == list(range((a > 0).sum()))


def test_set_value_of_another_shape_makes_a_plan():
    w = symdnn.shared(np.ones((2, 3)))
    f = symdnn.function([], w.sum(axis=0))
    assert f().tolist() == [2, 2, 2]
    w.set_value(np.ones((5, 3)))
    assert f().tolist() == [5, 5, 5]
    assert len(f.plans()) == 2


def test_free_drops_the_plans():
    x = T.dvector("x")
    f = symdnn.function([x], x + 1)
    f(np.zeros(2))
    f.free()
    assert f.plans() == []
    assert f(np.zeros(2)).tolist() == [1, 1]


@pytest.mark.parametrize("optimizer", ["None", "fast_run"])
def test_a_vector_of_sizes_is_a_value_too(optimizer):
    x = T.dmatrix("x")
    sizes = T.stack([x.shape[0], x.shape[1]])
    outputs = [sizes * 2.5, T.zeros((sizes[0], 2)) + T.exp(sizes * 1.0), sizes[::-1] * x.sum()]
    f = symdnn.function([x], outputs, mode=symdnn.Mode(optimizer=optimizer))
    for shape in [(2, 3), (4, 1)]:
        n = np.array(shape)
        wanted = [n * 2.5, np.zeros((shape[0], 2)) + np.exp(n), n[::-1] * n.prod()]
        for got, want in zip(f(np.ones(shape)), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
