"""Adafactor and Muon: formulas by hand, PyTorch's steps, and what they refuse."""

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, UnknownWord
from tests.nn.optimizers.test_optim_as_torch import both
from tests.nn.optimizers.test_optim_as_torch import torch as torch
from tests.seeded import new_rng

SHAPES = [(), (4,), (3, 5), (2, 3, 4), (1, 1), (6, 1)]


def stepped(optimiser, start, grads, **options):
    """The parameter after each step with these gradients, and the updates."""
    p, g = symdnn.shared(start, name="p"), T.tensor(str(start.dtype), (None,) * start.ndim)
    updates = optimiser(None, [p], grads=[g], **options)
    step, found = symdnn.function([g], [], updates=updates), []
    for each in grads:
        step(each)
        found.append(p.get_value())
    return found, updates


def adafactor_by_hand(p, grads, lr, decay, least, floor, d, weight_decay):
    row = column = whole = 0.0
    for t, g in enumerate(grads, 1):
        new, square = t**decay, g * g
        if g.ndim > 1:
            row = row + new * (square.mean(-1, keepdims=True) - row)
            column = column + new * (square.mean(-2, keepdims=True) - column)
            v = row * column / np.maximum(row.mean(-2, keepdims=True), least)
        else:
            v = whole = whole + new * (square - whole)
        u = g / np.sqrt(np.maximum(v, least**2))
        u = u / max(1.0, np.sqrt(np.mean(u * u)) / d)
        rate = max(floor, np.sqrt(np.mean(p * p))) * min(lr, 1 / np.sqrt(t))
        p = p - lr * weight_decay * p - rate * u
        yield p


@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adafactor_is_the_papers(rng, shape, dtype, close):
    start, grads = (rng.normal(size=s).astype(dtype) for s in (shape, (6, *shape)))
    options = {"lr": 0.3, "beta2_decay": -0.6, "d": 1.2, "weight_decay": 0.1}
    found, updates = stepped(nn.optim.adafactor, start, grads, eps=(1e-5, 1e-2), **options)
    exact = [v.astype("float64") for v in (start, grads)]
    wanted = adafactor_by_hand(*exact, 0.3, -0.6, 1e-5, 1e-2, 1.2, 0.1)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=close, atol=close)
    if len(shape) > 1:
        kept = sum(v.get_value().size for v in updates.state.values()) - 1
        assert kept == np.prod(shape[:-2], dtype=int) * (shape[-2] + shape[-1])


def low(v):
    """Rounded to bfloat16."""
    return v.astype(ml_dtypes.bfloat16).astype("float32")


def muon_by_hand(p, grads, lr, decay, rate, nesterov):
    a, b, c = map(np.float32, (3.4445, -4.775, 2.0315))
    mean, turned = 0.0, p.shape[0] > p.shape[1]
    for g in grads:
        mean = rate * mean + (1 - rate) * g
        u = g + rate * (mean - g) if nesterov else mean
        x = low(u.T if turned else u)
        x = low(x / low(np.sqrt((x * x).sum())))
        for _ in range(5):
            gram = low(x @ x.T)
            x = low(a * x + low(low(b * gram + c * low(gram @ gram)) @ x))
        u = x.T if turned else x
        p = p - lr * decay * p - lr * np.sqrt(max(1, p.shape[0] / p.shape[1])) * u
        yield p


@pytest.mark.parametrize("shape", [(3, 5), (6, 2), (1, 1), (4, 4)], ids=str)
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_its_iteration_in_bfloat16(rng, shape, nesterov):
    start, grads = rng.normal(size=shape), rng.normal(size=(4, *shape))
    found, _ = stepped(nn.optim.muon, start, grads, lr=0.1, nesterov=nesterov)
    wanted = list(muon_by_hand(start, grads, 0.1, 0.1, 0.95, nesterov))
    for a, b, before in zip(found, wanted, [start, *wanted], strict=False):
        assert np.abs(a - b).max() < 0.03 * np.abs(b - before).max()


def test_muon_makes_singular_values_near_1(rng):
    start = rng.normal(size=(6, 4)) @ np.diag([10, 3, 1, 0.3])
    (found,), _ = stepped(
        nn.optim.muon, np.zeros((6, 4)), start[None], lr=1.0, weight_decay=0.0, nesterov=False
    )
    values = np.linalg.svd(found / np.sqrt(6 / 4), compute_uv=False)
    assert values.min() > 0.5
    assert values.max() < 1.3


CASES = [
    ("Adafactor", {}, 1e-9),
    ("Adafactor", {"lr": 0.3, "eps": (1e-4, 1e-2), "d": 1.5, "weight_decay": 0.1}, 1e-9),
    ("Adafactor", {"beta2_decay": -0.5, "maximize": True}, 1e-9),
    ("Muon", {}, 1e-3),
    ("Muon", {"lr": 0.02, "nesterov": False, "ns_steps": 3, "weight_decay": 0.0}, 2e-2),
    ("Muon", {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw"}, 2e-2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "close"), CASES, ids=lambda v: str(v)[:70])
def test_ten_steps_are_pytorchs(torch, name, options, close):
    for found, wanted in both(torch, name, options, new_rng())[0]:
        np.testing.assert_allclose(found, wanted, rtol=close, atol=close)


def network():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    x = T.matrix("x")
    return net, x, (net(x) ** 2).mean()


def test_two_optimisers_train_one_network(rng):
    net, x, loss = network()
    matrices = [p for p in net.parameters() if p.type.ndim == 2]
    others = [p for p in net.parameters() if p.type.ndim != 2]
    updates = nn.optim.muon(loss, matrices, lr=0.05) + nn.optim.adamw(loss, others, lr=0.05)
    step = symdnn.function([x], loss, updates=updates)
    data = rng.normal(size=(8, 3)).astype("float32")
    losses = [float(step(data)) for _ in range(15)]
    assert losses[-1] < 0.5 * losses[0]
    assert np.any(net[1].running_mean.get_value())


def test_parameters_and_options_that_do_not_fit_are_refused():
    net, _, loss = network()
    with pytest.raises(InputError, match=r"muon: 0\.bias: a parameter of 1 dim.*adamw"):
        nn.optim.muon(loss, net)
    matrix = [net[0].weight]
    with pytest.raises(UnknownWord, match="adjust_lr_fn='other'.*match_rms_adamw"):
        nn.optim.muon(loss, matrix, adjust_lr_fn="other")
    with pytest.raises(InputError, match="three numbers"):
        nn.optim.muon(loss, matrix, ns_coefficients=(1, 2))
    with pytest.raises(InputError, match="eps=0.1; wanted a pair"):
        nn.optim.adafactor(loss, matrix, eps=0.1)
