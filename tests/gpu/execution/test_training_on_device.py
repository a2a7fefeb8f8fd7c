"""Optimisers and training on a GPU: PyTorch's stored numbers, one captured graph, going on."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from tests.nn.optimizers import test_optim as optimisers
from tests.nn.training import test_fit as fits
from tests.nn.training import test_metrics as measures

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


@pytest.fixture(autouse=True)
def on_the_device():
    with config.change_flags({"device": "cuda", "dnn.conv.tuning_cache": "off"}):
        yield


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", list(optimisers.CASES))
def test_numbers_are_pytorchs(name, dtype):
    optimisers.test_numbers_are_pytorchs(name, dtype)


@pytest.mark.parametrize("zero", [False, True])
def test_lamb(rng, zero):
    optimisers.test_lamb_is_the_papers(rng, "float32", 1e-5, zero)


def test_state_and_averages_and_accumulation():
    optimisers.test_state_is_saved_and_training_goes_on_bit_for_bit("adam_amsgrad")
    optimisers.test_averages_of_the_parameters()
    optimisers.test_accumulated_steps_are_those_of_one_large_batch()
    optimisers.test_an_infinite_gradient_leaves_the_step_out()


def test_a_step_is_one_graph_also_where_the_rate_is_set(cuda):
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, t = T.matrix("x"), T.ivector("t")
    loss = nn.CrossEntropyCriterion()(net(x), t)
    rate = symdnn.shared(np.float32(0.1), name="rate")
    f = symdnn.function([x, t], loss, updates=nn.optim.adam(loss, net, rate))
    losses = []
    for i in range(40):
        nn.schedule.set_rate(rate, 0.1 / (1 + i / 10))
        losses.append(float(f(fits.X[:64], fits.LABELS[:64])))
    assert losses[-1] < losses[0] / 2
    (plan,) = f.stages.program.segments()
    assert plan.place.kind == "cuda"
    assert "captured" in str(f.lowering_report())


@pytest.mark.parametrize(("kind", "after"), [("adam", None), ("adam", 7), ("scaled", 7)])
def test_a_training_goes_on_bit_for_bit(tmp_path, kind, after):
    with config.change_flags(deterministic="more"):
        fits.test_a_training_goes_on_bit_for_bit(tmp_path, kind, after)


def test_prefetch_brings_batches_to_the_device(cuda):
    data = nn.batches((fits.X, fits.LABELS), 16, shuffle=True, seed=1)
    x, t = T.matrix("x"), T.ivector("t")
    f = symdnn.function([x, t], [x * 2, t + 1])
    count = 0
    for epoch in range(6):
        wanted = data.at(epoch)
        for batch in nn.prefetch(data.at(epoch), 2):
            assert all(not isinstance(a, np.ndarray) for a in batch)
            there = next(wanted)
            for found, value in zip(f(*batch), (there[0] * 2, there[1] + 1), strict=True):
                np.testing.assert_array_equal(np.asarray(found), value)
            count += 1
    assert count == 36


def test_calls_that_do_not_wait_read_the_right_batches(rng, cuda):
    """Nothing returns to the host, so the thread refills places while steps are still running."""
    values = rng.integers(0, 100, (64, 1 << 14)).astype("float32")
    total, x = symdnn.shared(np.zeros(1 << 14, "float32"), name="total"), T.matrix("x")
    f = symdnn.function([x], updates=[(total, total + x.sum(axis=0))])
    for epoch in range(4):
        for batch in nn.prefetch(nn.batches(values, 4).at(epoch), 2):
            f(batch)
    np.testing.assert_array_equal(total.get_value(), 4 * values.sum(axis=0))


@pytest.mark.parametrize("ahead", [0, 2])
def test_fit(ahead):
    net = fits.make_net()
    metrics = {"accuracy": nn.metrics.accuracy(), "confusion": nn.metrics.confusion_matrix(3)}
    history = fits.fit(
        net, epochs=20, lr=0.02, validation=fits.test_data(), metrics=metrics, prefetch=ahead
    )
    assert history[-1]["loss"] < 0.9 * history[0]["loss"]
    assert history[0]["confusion"].sum() == 70
    on_cpu = nn.measure(
        net, nn.CrossEntropyCriterion(), fits.test_data(), mode=symdnn.Mode(target="cpu")
    )
    assert on_cpu["loss"] == pytest.approx(min(history["val_loss"]), rel=1e-4)


def test_metrics():
    measures.test_top_k(2, (3, 2))
    measures.test_top_k(1, ())
    measures.test_confusion_matrix((3,))
