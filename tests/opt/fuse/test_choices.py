"""Several lazy choices by one condition: what they share is computed only if it is needed."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import ifelse
from symdnn.ops.control.control import IfElse
from symdnn.printing import Print


def choices(f):
    return [n for n in f.fgraph.toposort() if isinstance(n.op, IfElse)]


def test_what_branches_share_is_lazy(rng):
    """An index out of range shows that a node was computed."""
    v, i, c = T.dvector("v"), T.lscalar("i"), T.lscalar("c")
    shared = T.exp(v[i])
    first, second = ifelse(c > 0, shared * 2, v[0]), ifelse(c > 0, v.sum(), T.sqrt(shared))
    third = ifelse(c > 0, T.tanh(shared), v[1])
    values = rng.uniform(1, 2, 3)
    f = symdnn.function([v, i, c], [first, third])
    assert [n.op.count for n in choices(f)] == [2]
    np.testing.assert_allclose(f(values, 9, 0), values[:2])
    np.testing.assert_allclose(f(values, 2, 1)[1], np.tanh(np.exp(values[2])))
    with pytest.raises(IndexError):
        f(values, 9, 1)
    both = symdnn.function([v, i, c], [first, second])  # it is needed either way
    with pytest.raises(IndexError):
        both(values, 9, 0)


def test_a_gradient_with_respect_to_several_is_lazy(rng):
    x, i, c = T.dmatrix("x"), T.lscalar("i"), T.lscalar("c")
    ws = [symdnn.shared(rng.normal(size=(3, 3))) for _ in range(3)]
    h = x[i]
    for w in ws:
        h = T.tanh(T.dot(h, w))
    cost = ifelse(c > 0, h.sum(), sum(w.sum() for w in ws) + x.sum())
    f = symdnn.function([x, i, c], [cost, *T.grad(cost, [x, *ws])])
    assert len(choices(f)) == 1
    found = f(rng.normal(size=(2, 3)), 7, 0)
    for got, size in zip(found[1:], [(2, 3)] + [(3, 3)] * 3, strict=True):
        np.testing.assert_array_equal(got, np.ones(size))
    values = rng.normal(size=(2, 3))
    plain = symdnn.function([x, i], [h.sum(), *T.grad(h.sum(), [x, *ws])])
    for got, want in zip(f(values, 1, 1), plain(values, 1), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_choice_within_a_branch_of_its_condition_is_decided():
    """However far inside, but not where the other branch reads it, too."""
    x, c = T.dvector("x"), T.lscalar("c")
    inner = ifelse(c > 0, T.exp(x), T.log(x))
    f = symdnn.function([x, c], ifelse(c > 0, T.tanh(inner + 1).sum(), x[0]))
    assert len(choices(f)) == 1
    assert "Log" not in str(f.fgraph.toposort())
    g = symdnn.function([x, c], [ifelse(c > 0, T.tanh(inner + 1).sum(), inner[0])])
    h = symdnn.function([x, c], [ifelse(c > 1, T.tanh(inner + 1).sum(), x[0])])
    values = np.array([0.5, 2.0])
    for k in (0, 1, 2):
        own = np.exp(values) if k > 0 else np.log(values)
        total = np.tanh(own + 1).sum()
        np.testing.assert_allclose(f(values, k), total if k > 0 else 0.5)
        np.testing.assert_allclose(g(values, k), [total if k > 0 else own[0]])
        np.testing.assert_allclose(h(values, k), [total if k > 1 else 0.5])


def test_choices_that_share_nothing_or_read_each_other_stay_apart():
    x, c = T.dvector("x"), T.lscalar("c")
    apart = [ifelse(c > 0, T.exp(x), x), ifelse(c > 0, T.tan(x), T.log(x))]
    assert len(choices(symdnn.function([x, c], apart))) == 2
    shared = T.exp(x)
    first = ifelse(c > 0, shared.sum(), x[0])
    second = ifelse(c > 0, shared * 2, x / first)
    f = symdnn.function([x, c], [first, second, first + second])
    values = np.array([0.5, 2.0])
    np.testing.assert_allclose(f(values, 0)[1], values / 0.5)
    np.testing.assert_allclose(f(values, 1)[1], 2 * np.exp(values))


def test_effects_happen_as_before(capsys):
    x, c = T.dvector("x"), T.lscalar("c")
    shared = Print("here")(T.exp(x))
    f = symdnn.function([x, c], [ifelse(c > 0, shared, x), ifelse(c > 0, shared * 2, x)])
    f(np.ones(2), 1)
    assert capsys.readouterr().out.count("here") == 1
