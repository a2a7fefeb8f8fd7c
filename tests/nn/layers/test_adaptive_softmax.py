"""AdaptiveLogSoftmaxWithLoss by its definition, and against PyTorch where it is installed."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import IndexOutOfRange, InputError, OptionError, TypeMismatch
from tests.seeded import new_rng

CUTOFFS = [5, 20]
LABELS = {
    "all": [0, 4, 5, 19, 20, 49, 3, 30], "the head": [0, 4, 1], "one cluster": [20, 49, 30, 20],
}  # fmt: skip


def made(bias=True):
    return nn.AdaptiveLogSoftmaxWithLoss(16, 50, CUTOFFS, 2.0, bias, dtype="float64")


def logsoftmax(x):
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def all_of(layer, x):
    """The log-probabilities of all classes."""
    w = layer.state_dict()
    head = logsoftmax(x @ w["head.weight"].T + w.get("head.bias", 0))
    tails = [logsoftmax(x @ w[f"tail.{i}.0.weight"].T @ w[f"tail.{i}.1.weight"].T) for i in (0, 1)]
    return np.concatenate(
        [head[:, :5], *(t + head[:, 5 + i : 6 + i] for i, t in enumerate(tails))], 1
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("which", LABELS)
def test_values_and_gradients(which, bias, rng):
    layer, labels = made(bias), np.array(LABELS[which])
    x = rng.normal(size=(len(labels), 16))
    v, t = T.dmatrix("v"), T.lvector("t")
    wrt = [v, *layer.parameters()]
    output, loss = layer(v, t)
    every = layer.log_prob(v)
    plain = -every[T.arange(len(labels)), t].mean()
    outputs = [output, loss, every, layer.predict(v), *T.grad(loss, wrt), *T.grad(plain, wrt)]
    found = symdnn.function([v, t], outputs)(x, labels)
    wanted = all_of(layer, x)
    picked = wanted[np.arange(len(labels)), labels]
    np.testing.assert_allclose(np.exp(wanted).sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(found[0], picked, rtol=1e-12)
    np.testing.assert_allclose(found[1], -picked.mean(), rtol=1e-12)
    np.testing.assert_allclose(found[2], wanted, rtol=1e-12)
    np.testing.assert_array_equal(found[3], wanted.argmax(1))
    gradients = found[4:]
    for ours, full in zip(gradients[: len(wrt)], gradients[len(wrt) :], strict=True):
        np.testing.assert_allclose(ours, full, rtol=1e-9, atol=1e-13)


def test_one_example_and_labels_that_are_no_classes(rng):
    layer, x = made(), rng.normal(size=16)
    v, t = T.dvector("v"), T.lscalar("t")
    output, loss = symdnn.function([v, t], [*layer(v, t)])(x, 30)
    assert output == pytest.approx(all_of(layer, x[None])[0, 30]) == -loss
    rows, labels = T.dmatrix("rows"), T.lvector("labels")
    f = symdnn.function([rows, labels], layer(rows, labels).loss)
    for wrong in (50, -1):
        with pytest.raises(IndexOutOfRange):
            f(x[None], [wrong])
    with pytest.raises(TypeMismatch, match="a target of integers"):
        layer(rows, T.dvector())
    with pytest.raises(TypeMismatch, match="a target of 1 dimension"):
        layer(rows, T.lmatrix())


@pytest.mark.parametrize("cutoffs", [[], [5, 5], [20, 5], [0, 5], [5, 50], [2.5], ["x"]], ids=str)
def test_cutoffs_that_are_refused(cutoffs):
    with pytest.raises(OptionError, match="wanted a list of ints that rise, from 1 to 49"):
        nn.AdaptiveLogSoftmaxWithLoss(16, 50, cutoffs)


def test_features_that_are_refused():
    with pytest.raises(OptionError, match="leaves the clusters"):
        nn.AdaptiveLogSoftmaxWithLoss(16, 50, [5, 10, 20])
    for wrong in ("x", None, 0, -1.0, float("nan")):
        with pytest.raises((InputError, OptionError), match="div_value"):
            nn.AdaptiveLogSoftmaxWithLoss(16, 50, [5], wrong)


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_pytorchs(bias):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 50, CUTOFFS, 2.0, bias, dtype=torch.float64)
    layer = made(bias)
    layer.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    x, labels = new_rng().normal(size=(8, 16)), np.array(LABELS["all"])
    v, t = T.dmatrix("v"), T.lvector("t")
    named = layer.named_parameters()
    output, loss = layer(v, t)
    f = symdnn.function([v, t], [output, loss, *T.grad(loss, list(named.values()))])
    other = theirs(torch.tensor(x), torch.tensor(labels))
    other.loss.backward()
    gradients = [p.grad for p in (dict(theirs.named_parameters())[n] for n, _ in named)]
    for ours, wanted in zip(f(x, labels), [*other, *gradients], strict=True):
        np.testing.assert_allclose(ours, wanted.detach().numpy(), rtol=1e-10, atol=1e-13)
