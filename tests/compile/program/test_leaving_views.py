"""Results that are views of a value as a whole: made in their place, not copied there."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from tests.seeded import new_rng

RNG = new_rng()


def plan_of(f, *args):
    """The memory plan of the one segment, after a call, and what the call gave."""
    got = f(*args)
    (plan,) = f.executor.only_cache.plans.values()
    return plan.memory, got


VIEWS = {
    "specified": lambda v: T.specify_shape(v, (4, 6)),
    "reshaped": lambda v: v.reshape((6, 4)),
    "flat": lambda v: v.flatten(),
    "wider": lambda v: v.dimshuffle("x", 0, 1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_of_all_is_not_copied(view):
    x = T.dmatrix("x")
    f = symdnn.function([x], view(T.exp(x)), mode=symdnn.Mode(target="cpu"))
    a, b = RNG.normal(size=(4, 6)), RNG.normal(size=(4, 6))
    memory, first = plan_of(f, a)
    assert any(out.owner in memory.aliases for out in memory.leaving)
    held = [first, f(b), f(a), f(b)]  # what a user holds is never written again
    for got, given in zip(held, (a, b, a, b), strict=True):
        np.testing.assert_array_equal(got.ravel(), np.exp(given).ravel())
    assert len({got.__array_interface__["data"][0] for got in held}) == 4


@pytest.mark.parametrize("part", [lambda v: v[1:], lambda v: v.T, lambda v: v[:, 2]])
def test_other_views_are_copied(part):
    x = T.dmatrix("x")
    f = symdnn.function([x], part(T.exp(x)), mode=symdnn.Mode(target="cpu"))
    a = RNG.normal(size=(4, 6))
    memory, got = plan_of(f, a)
    assert not any(out.owner in memory.aliases for out in memory.leaving)
    np.testing.assert_array_equal(got, part(np.exp(a)))
    assert got.flags.c_contiguous


def test_a_value_that_is_read_elsewhere_stays_what_it_is():
    x = T.dmatrix("x")
    y = T.exp(x)
    outputs = [y.reshape((6, 4)), y.flatten(), (y * 2).sum(), y + 1]
    f = symdnn.function([x], outputs, mode=symdnn.Mode(target="cpu"))
    for _ in range(3):
        a = RNG.normal(size=(4, 6))
        got = f(a)
        for g, w in zip(got, (np.exp(a), np.exp(a), 2 * np.exp(a).sum(), np.exp(a) + 1)):
            np.testing.assert_allclose(np.ravel(g), np.ravel(w))
        got[0][...] = 0  # a result is the user's
        np.testing.assert_allclose(got[1], np.exp(a).ravel())


def test_a_new_value_of_a_shared_variable_is_no_view_of_a_result():
    s = symdnn.shared(np.zeros((2, 3)))
    x = T.dmatrix("x")
    y = T.exp(x)
    f = symdnn.function([x], y.reshape((3, 2)), updates=[(s, y)], mode=symdnn.Mode(target="cpu"))
    for _ in range(3):
        a = RNG.normal(size=(2, 3))
        f(a)[...] = 7
        np.testing.assert_allclose(s.get_value(), np.exp(a))


@pytest.mark.cpu
def test_views_are_made_in_the_segment_that_reads_them():
    """After a loop over the same value; of what nothing else reads later, the view is copied."""
    x, w = T.dmatrix("x"), T.dmatrix("w")
    y, small = T.dot(x, w), T.exp(x)[:2]
    end = symdnn.scan(lambda e, h: T.tanh(e + h), y, T.zeros((3,), "float64"))[0][-1]
    f = symdnn.function([x, w], y[::-1] * end + small.sum() * end)
    views = [
        [str(n.op) for n in region.nodes if n.op.views and "Subtensor" in str(n.op)]
        for region in f.stages.program.regions
        if hasattr(region, "nodes")
    ]
    assert ["Subtensor{::-1, :}" in found for found in views] == [False, True]
    for _ in range(3):
        a, b = RNG.normal(size=(5, 4)), RNG.normal(size=(4, 3))
        h = np.zeros(3)
        for e in a @ b:
            h = np.tanh(e + h)
        np.testing.assert_allclose(f(a, b), (a @ b)[::-1] * h + np.exp(a)[:2].sum() * h)


@pytest.mark.cpu
@pytest.mark.parametrize(("part", "own"), [("turned", True), ("most", True), ("few", False)])
@pytest.mark.parametrize("is_result", [False, True])
def test_a_loop_makes_views_that_no_segment_reads(part, own, is_result):
    """A sequence that is turned round, or lacks some entries, is no copy; a small part is one."""
    index = {"turned": np.s_[::-1], "most": np.s_[:-1], "few": np.s_[2:4]}[part]
    x, h = T.dmatrix("x"), T.dvector("h")
    y = T.dot(x, x)[index]
    last = symdnn.scan(lambda e, s: T.tanh(T.dot(s, s) * e), y, h)[0][-1]
    f = symdnn.function([x, h], [last, y] if is_result else [last], mode=symdnn.Mode(target="cpu"))
    (loop,) = [region for region in f.stages.program.regions if hasattr(region, "body")]
    assert len(loop.views) == (own and not is_result)
    assert ("view " in f.stages.program.text()) == bool(loop.views)
    for _ in range(3):
        a, s = RNG.normal(size=(4, 4)) / 4, RNG.normal(size=4)
        last, *others = f(a, s)
        for e in (a @ a)[index]:
            s = np.tanh((s @ s) * e)
        np.testing.assert_allclose(last, s)
        for other in others:
            np.testing.assert_allclose(other, (a @ a)[index])
            other[...] = 0  # a result is the user's


@pytest.mark.cpu
def test_a_trained_loop_holds_no_turned_copies():
    """The values that the gradient's loop reads are those of the loop before, and of one pass."""
    steps, wide = 200, (32, 64)
    x, h, w = T.dtensor3("x"), T.dmatrix("h"), T.dmatrix("w")
    out = symdnn.scan(lambda e, s: T.tanh(T.dot(s, w) + e), x, h)[0]
    grads = symdnn.grad((out[-1] ** 2).sum(), [x, w])
    f = symdnn.function([x, h, w], grads, mode=symdnn.Mode(target="cpu"))
    values = [RNG.normal(size=(steps, *wide)), RNG.normal(size=wide), RNG.normal(size=(64, 64))]
    for _ in range(2):
        f(*values)
    sequence = values[0].nbytes
    assert f.memory_report().peak < 2.3 * sequence
