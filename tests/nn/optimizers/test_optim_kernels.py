"""Compiled updates of the optimisers: one pass on a CPU, few launches on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.gpu.execution.batched_updates import update_launches
from symdnn.ops.lowered.fused import FusedElemwise
from tests.gpu.fake_device import fake_device
from tests.seeded import sampled

__all__ = ["fake_device"]

CUDA, CPU = symdnn.Mode(target="cuda:sm_90"), symdnn.Mode(target="cpu")
LAYERS = 20
o = nn.optim

CASES = {
    "sgd": (o.sgd, {}),
    "momentum": (o.momentum, {"weight_decay": 1e-4}),
    "nesterov": (o.nesterov, {}),
    "adagrad": (o.adagrad, {}),
    "rmsprop": (o.rmsprop, {"centered": True, "momentum": 0.9}),
    "adadelta": (o.adadelta, {}),
    "adam": (o.adam, {}),
    "amsgrad": (o.adam, {"amsgrad": True}),
    "adamw": (o.adamw, {}),
    "adamax": (o.adamax, {}),
    "nadam": (o.nadam, {}),
    "clip_norm": (o.adam, {"clip_norm": 1.0}),
    "clip_value": (o.adam, {"clip_value": 1.0}),
    "accumulate": (o.adam, {"accumulate": 4}),
}


def plan_of(name, mode, layers=LAYERS):
    """The last plan of a step of a deep dense network, and how many variables it updates."""
    optimiser, options = CASES[name]
    x, t = T.matrix("x"), T.ivector("t")
    net = nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(9, 9), nn.Tanh())))
    loss = nn.CrossEntropyCriterion()(net(x), t)
    rate = symdnn.shared(np.float32(0.1), name="rate")
    updates = optimiser(loss, net, rate, **options)
    f = symdnn.function([x, t], loss, updates=updates, mode=mode)
    (plan,) = f.stages.specialise({"x": (4, 9), "t": (4,)})
    return plan, len(updates)


@pytest.mark.parametrize("name", sampled(list(CASES), every=4))
def test_on_a_gpu_all_parameters_are_one_launch(name):
    """Weights and biases alike: the table of a kernel's parameters has room for some 40 of them."""
    plan, updated = plan_of(name, CUDA)
    launches = update_launches(plan.specialised, plan.memory).launches
    assert all(form is not None for form, _ in launches)
    assert sum(len(nodes) for _, nodes in launches) == 2 * LAYERS
    assert len(launches) == 1
    # All but scalars, which are copied, are written where they are.
    scalars = [old for old in plan.memory.copied.values() if old.ndim == 0]
    assert len(plan.memory.copied) == len(scalars) <= 2
    assert len(plan.memory.stored) == updated - len(scalars)


@pytest.mark.parametrize("name", list(CASES))
def test_on_a_cpu_a_parameter_is_one_pass_in_place(name):
    plan, updated = plan_of(name, CPU, layers=2)
    makers: dict[object, int] = {}
    for v in (*plan.memory.stored, *plan.memory.copied):
        if v.type.ndim:
            makers[v.owner] = makers.get(v.owner, 0) + 1
    assert all(isinstance(n.op, FusedElemwise) for n in makers)
    assert len(makers) == 4  # each makes a parameter with all of its state
    assert len(set(makers.values())) == 1
    assert sum(old.ndim for old in plan.memory.copied.values()) == 0
    assert len(plan.memory.stored) + len(plan.memory.copied) == updated


def test_a_shared_rate_keeps_the_captured_graph(rng, fake_device):
    """Setting the rate writes to the memory that the graph reads: nothing is captured again."""
    start = rng.normal(size=(3, 4)).astype("float32")
    results = []
    for mode in (CUDA, CPU):
        w, x = symdnn.shared(start, name="w"), T.matrix("x")
        rate = symdnn.shared(np.float32(0.1), name="rate")
        loss = ((w * x) ** 2).sum()
        f = symdnn.function([x], loss, updates=o.adam(loss, [w], rate), mode=mode)
        values = np.random.default_rng(1).normal(size=(8, 3, 4)).astype("float32")
        f(values[0])
        f(values[1])
        fake_device.take_log()
        for i, value in enumerate(values[2:]):
            nn.schedule.set_rate(rate, 0.1 / (i + 1))
            f(value)
            if mode is CUDA:
                log = fake_device.take_log()
                assert [w for w in log if w not in ("copy in", "wait")] == ["graph"]
        results.append(w.get_value())
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)  # a weight may pass 0


@pytest.mark.parametrize("name", ["momentum", "amsgrad", "nadam", "rmsprop", "accumulate", "lamb"])
def test_the_kernels_of_a_gpu_give_the_numbers_of_a_cpu(rng, name, fake_device):
    optimiser, options = {**CASES, "lamb": (o.lamb, {})}[name]
    starts = [rng.normal(size=s).astype("float32") for s in ((3, 5), (7,), (2, 3, 3))]
    values = rng.uniform(0.5, 1.5, 5).astype("float32")
    results = []
    for mode in (CUDA, CPU):
        params = [symdnn.shared(v, shape=v.shape) for v in starts]
        x = T.scalar("x")
        losses = [(p**2 * x + p).sum() for p in params]
        loss = losses[0] + losses[1] + losses[2]
        updates = optimiser(loss, params, 0.05, **options)
        f = symdnn.function([x], loss, updates=updates, mode=mode)
        for v in values:
            f(v)
        results.append([v.get_value() for v in (*params, *updates.state.values())])
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


def test_the_correction_of_averages_is_known_not_to_overflow():
    """Adam's ``1 - rate ** t`` is computed once, and quotients by it are not rewritten."""
    w = symdnn.shared(np.ones((3, 2), "float32"), name="w")
    x = T.fmatrix("x")
    loss = (T.dot(x, w) ** 2).mean()
    f = symdnn.function([x], loss, updates=nn.optim.adam(loss, [w], 1e-3), profile=True)
    assert f.profile.rewrites.rewrites["quotient_of_exponentials"].fired == 0


@pytest.mark.parametrize("name", ["adam", "rmsprop", "adagrad"])
def test_steps_of_exponentials_take_their_gradients_once(name):
    """The divisor of a step is a state, in range; no second gradient by logarithms is computed."""
    optimiser, options = CASES[name]
    w = symdnn.shared(np.full((3, 2), 0.5, "float32"), name="w")
    x = T.fmatrix("x")
    loss = (x * T.exp(w)).sum() ** 2
    f = symdnn.function([x], loss, updates=optimiser(loss, [w], 0.01, **options), profile=True)
    assert f.profile.rewrites.rewrites["quotient_of_exponentials"].fired == 0
    f(np.ones((3, 2), "float32"))
    assert np.isfinite(w.get_value()).all()


def test_a_quotient_by_a_sum_of_exponentials_that_is_returned_stays_stable():
    """A state is a value that is added to, and that no exponential makes."""
    x, y = T.fvectors("x", "y")
    below = T.exp(x) * 2.0 + T.exp(y) * 3.0
    f = symdnn.function([x, y], [below, T.exp(x) / below])
    big = np.full(4, 100, "float32")
    np.testing.assert_allclose(f(big, big)[1], 0.2, rtol=1e-5)
