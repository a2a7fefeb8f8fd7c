"""The user's expression and the gradient's stable form of it are computed once."""

from collections import Counter

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.graph.traverse import toposort
from symdnn.ops.core.shape import ShapeI
from symdnn.stable import engine
from tests.seeded import new_rng


def ops_of(f):
    return Counter(type(node.op).__name__ for node in f.stages.fgraph.toposort())


def products(ops):
    return sum(count for name, count in ops.items() if "Dot" in name or "Gemm" in name)


def weights(rng, *shapes):
    return [symdnn.shared(rng.standard_normal(s) * 0.3) for s in shapes]


def attention(x, q, k, v, o):
    def heads(w):
        return T.dot(x, w).reshape((x.shape[0], x.shape[1], 2, 4)).dimshuffle(0, 2, 1, 3)

    s = T.matmul(heads(q), heads(k).dimshuffle(0, 1, 3, 2)) / 2.0
    i = T.arange(s.shape[2])
    s = T.where(i[:, None] >= i[None, :], s, -1e9)
    y = T.matmul(T.nnet.softmax(s, axis=-1), heads(v)).dimshuffle(0, 2, 1, 3)
    return T.dot(T.tanh(y.reshape(x.shape)), o)


FORMS = {
    "attention": attention,
    "softplus": lambda x, q, k, v, o: T.dot(T.log(1 + T.exp(T.dot(x, q))), o),
    "sigmoid": lambda x, q, k, v, o: T.dot(1 / (1 + T.exp(-T.dot(x, q))), o),
    "softmax": lambda x, q, k, v, o: T.dot(
        T.exp(T.dot(x, q)) / T.exp(T.dot(x, q)).sum(axis=2, keepdims=True), o
    ),
    "gelu": lambda x, q, k, v, o: (lambda u: T.dot(u * 0.5 * (1 + T.erf(u / np.sqrt(2))), o))(
        T.dot(x, q)
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_a_loss_and_its_gradient_share_every_product(form, target):
    rng = new_rng()
    x, parameters = T.dtensor3("x"), weights(rng, *[(8, 8)] * 4)
    y = FORMS[form](x, *parameters)
    loss = (T.dot(y, parameters[3]) ** 2).mean()
    used = parameters if form == "attention" else [parameters[0], parameters[3]]
    grads = symdnn.grad(loss, used)
    mode = Mode(target=target)
    both = ops_of(symdnn.function([x], [loss, *grads], mode=mode))
    alone = ops_of(symdnn.function([x], grads, mode=mode))
    # The loss is one elementwise step behind what the gradient reads.
    assert products(both) == products(alone)
    assert both["Attention"] == alone["Attention"]
    assert both["GpuDnnAttention"] == alone["GpuDnnAttention"]


@pytest.mark.parametrize("form", FORMS)
def test_values_are_those_without(form):
    rng = new_rng()
    x, parameters = T.dtensor3("x"), weights(rng, *[(8, 8)] * 4)
    y = FORMS[form](x, *parameters)
    loss = (y**2).mean()
    outputs = [y, loss, symdnn.grad(loss, parameters[0]), symdnn.grad(loss, x)]
    value = rng.standard_normal((2, 5, 8))
    plain = Mode(target="cpu").excluding("stable_twins")
    for got, want in zip(
        symdnn.function([x], outputs)(value), symdnn.function([x], outputs, mode=plain)(value)
    ):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_a_gradient_with_respect_to_one_of_two_equal_expressions():
    x = T.dvector("x")
    one, other = T.exp(x), T.exp(x)
    loss = (one / (one + 1)).sum() + (3 * T.log(1 + other)).sum()
    found = symdnn.function([x], symdnn.grad(loss, [one, other]))(np.array([0.5, -1.0]))
    e = np.exp([0.5, -1.0])
    np.testing.assert_allclose(found[0], 1 / (1 + e) ** 2)
    np.testing.assert_allclose(found[1], 3 / (1 + e))


def test_equal_expressions_are_one_pattern():
    x = T.dmatrix("x")
    y = T.exp(x - T.max(x, axis=1, keepdims=True))
    y = y / T.exp(x - T.max(x, axis=1, keepdims=True)).sum(axis=1, keepdims=True)
    f = symdnn.function([x], symdnn.grad((y**2).sum(), x))
    assert ops_of(f)["Softmax"] + ops_of(f)["FusedRows"] >= 1
    assert "Max" not in ops_of(f)
    value = np.array([[1e3, 0.0, 999.0]])
    assert np.isfinite(f(value)).all()


def test_gradients_read_sizes_of_the_user_s_variables(monkeypatch):
    """At once, so that no gradient is copied to replace the sizes of stable forms in it."""
    copied = []
    monkeypatch.setattr(engine, "substituted", lambda *given: copied.append(given))
    x = T.matrix("x")
    y = T.exp(x) / T.exp(x).sum(axis=1, keepdims=True)
    (g,) = symdnn.grad((y.reshape((-1,)) ** 2).sum(), [x])
    sizes = [n for n in toposort([g]) if isinstance(n.op, ShapeI)]
    assert sizes
    assert all(n.inputs[0].stable_form_of is None for n in sizes)
    assert not copied
