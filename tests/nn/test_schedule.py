"""Schedules: the rates of PyTorch's, and how they compose."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError

s = nn.schedule

# The rates of PyTorch 2's StepLR, MultiStepLR, ... from 0.1 on, in the order of the steps.
STORED = {
    "step": (s.step(0.1, 3, 0.5), [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]),
    "multi_step": (
        s.multi_step(0.1, [5, 2], 0.5), [0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025],
    ),
    "exponential": (
        s.exponential(0.1, 0.8), [0.1, 0.08, 0.064, 0.0512, 0.04096, 0.032768],
    ),
    "cosine": (
        s.cosine(0.1, 6, 0.01),
        [0.1, 0.09397114317, 0.0775, 0.055, 0.0325, 0.01602885683, 0.01],
    ),
    "cosine_restarts": (
        s.cosine_restarts(0.1, 3, 2, 0.01),
        [0.1, 0.0775, 0.0325, 0.1, 0.09397114317, 0.0775, 0.055, 0.0325, 0.01602885683, 0.1,
         0.09846666218, 0.09397114317],
    ),
    "one_cycle": (
        s.one_cycle(0.1, 12),
        [0.004, 0.03497896542, 0.08792851591, 0.09944154355, 0.09330129698, 0.08117456539,
         0.06473789977, 0.04626371027, 0.02830609982, 0.01334775302, 0.003456698743, 4e-07],
    ),
}  # fmt: skip

MEASURES = [1.0, 0.9, 0.9, 0.95, 0.91, 0.8, 0.85, 0.8, 0.9, 0.79, 1, 1, 1, 1]
PLATEAU = [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.025, 0.02, 0.02]
PLATEAU_MAX = [
    0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125, 0.00625, 0.00625, 0.003125, 0.003125,
    0.0015625,
]  # fmt: skip


@pytest.mark.parametrize("name", list(STORED))
def test_rates_are_pytorchs(name):
    schedule, rates = STORED[name]
    np.testing.assert_allclose([schedule(i) for i in range(len(rates))], rates, rtol=1e-9)


@pytest.mark.parametrize("most", [False, True])
def test_plateau_is_pytorchs(most):
    options = {"maximise": True} if most else {"cooldown": 1, "least": 0.02}
    plateau, rates = s.Plateau(0.1, 0.5, 1, **options), []
    for i, measure in enumerate(MEASURES):
        rates.append(plateau(i))
        if i == 6:  # its state goes over to another one
            state = plateau.state_dict()
            plateau = s.Plateau(0.1, 0.5, 1, **options)
            plateau.load_state_dict(state)
        plateau.observe(measure)
    np.testing.assert_allclose(rates, PLATEAU_MAX if most else PLATEAU, rtol=1e-9)


def test_they_stay_at_their_end():
    assert s.cosine(0.1, 6, 0.01)(100) == pytest.approx(0.01)
    assert s.linear(0.1, 5, 0.2)(100) == 0.2
    assert s.constant(0.3)(7) == 0.3


def test_they_compose():
    rate = s.warm_up(s.cosine(0.1, 10), 4, start=0.02)
    np.testing.assert_allclose([rate(i) for i in range(5)], [0.02, 0.04, 0.06, 0.08, 0.1])
    assert rate(9) == s.cosine(0.1, 10)(5)
    joined = s.chain((0.5, 2), (lambda step: step, 3), 0.1)
    assert [joined(i) for i in range(7)] == [0.5, 0.5, 0, 1, 2, 0.1, 0.1]
    assert s.scaled(joined, 2)(4) == 4
    assert s.one_cycle(0.1, 2, 0.5)(0) == pytest.approx(0.1)


def test_a_shared_rate_is_set_only_where_it_changes():
    lr = symdnn.shared(np.float32(0.5), name="lr")
    f = symdnn.function([], lr * 2)
    version = symdnn.graph.values.storage.CHANGES[0]
    s.set_rate(lr, 0.5)
    assert symdnn.graph.values.storage.CHANGES[0] == version
    s.set_rate(lr, 0.25)
    assert f() == 0.5
    with pytest.raises(InputError, match="set_rate: wanted a shared scalar"):
        s.set_rate(T.scalar(), 0.1)


def test_bad_arguments():
    for make in (
        lambda: s.cosine(0.1, 0), lambda: s.step(0.1, 0), lambda: s.one_cycle(0.1, 1),
        lambda: s.one_cycle(0.1, 9, 1.5), lambda: s.cosine_restarts(0.1, 3, 0),
        lambda: s.Plateau(0.1, 1.0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="wanted"):
            make()
