"""Parameters that the loss does not depend on."""

import functools
import warnings

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import DisconnectedInput, InputError, UnusedParameter
from tests.seeded import sampled

OPTIMISERS = [
    nn.optim.sgd, nn.optim.momentum, nn.optim.nesterov, nn.optim.adagrad, nn.optim.rmsprop,
    nn.optim.adadelta, nn.optim.adam, nn.optim.adamw, nn.optim.adamax, nn.optim.nadam,
    nn.optim.lamb,
]  # fmt: skip


class Net(nn.Module):
    """Of three layers and a dead end, some are used."""

    def __init__(self):
        self.a = nn.Linear(4, 4)
        self.blocks = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        aside = symdnn.gradient.disconnected_grad(self.blocks[1](x))
        return self.blocks[0](self.a(x)) + aside


UNUSED = ["blocks.1.weight", "blocks.1.bias", "unused.weight", "unused.bias"]


@pytest.mark.parametrize("optimiser", sampled(OPTIMISERS, every=3), ids=lambda o: o.__name__)
@pytest.mark.parametrize("more", [
    {}, {"loss_scale": True}, {"accumulate": 2}, {"clip_norm": 1.0}, {"weight_decay": 0.1},
], ids=str)  # fmt: skip
def test_they_stay_and_one_warning_names_them(optimiser, more):
    net, x = Net(), T.fmatrix("x")
    more = {k: symdnn.LossScale() if k == "loss_scale" else v for k, v in more.items()}
    loss = T.sqr(net(x)).mean()
    with pytest.warns(UnusedParameter) as told:
        updates = optimiser(loss, net, **more)
    assert [w.category for w in told] == [UnusedParameter]
    assert told[0].filename == __file__
    assert f"does not depend on {', '.join(UNUSED)}" in str(told[0].message)
    changed = {v for v, _ in updates}
    assert {n for n, p in net.named_parameters().items() if p not in changed} == set(UNUSED)
    assert not any(n in key for key in updates.state for n in UNUSED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = optimiser(loss, net, disconnected_inputs="ignore", **more)
    assert len(same) == len(updates)


def test_the_advice_works_and_mistakes_are_named():
    net, x = Net(), T.fmatrix("x")
    loss = T.sqr(net(x)).mean()
    with pytest.raises(DisconnectedInput, match=r"sgd: .*unused\.weight"):
        nn.optim.sgd(loss, net, disconnected_inputs="raise")
    with pytest.raises(InputError, match="disconnected_inputs='no'; wanted 'warn', 'ignore' or"):
        nn.optim.sgd(loss, net, disconnected_inputs="no")
    with pytest.raises(DisconnectedInput, match="there is nothing to train"):
        nn.optim.sgd(loss, net.unused)
    with pytest.warns(UnusedParameter, match=r"unused\.weight, which will stay as it is"):
        nn.optim.sgd(loss, [net.a.weight, net.unused.weight])
    with pytest.warns(UnusedParameter, match=r"unused\.weight"):
        nn.optim.sgd(None, [net.a.weight, net.unused.weight],
                     grads=[net.a.weight * 2, None])  # fmt: skip


@pytest.mark.parametrize("average", [None, 0.5])
def test_fit_trains_the_others(average, rng):
    net = Net()
    before = net.state_dict()
    data = nn.batches((rng.normal(size=(8, 4)).astype("float32"),) * 2, 4)
    options = {"average": average, "validation": data}
    with pytest.warns(UnusedParameter) as told:
        nn.fit(net, nn.MSECriterion(), nn.optim.adam, data, 2, lr=0.1, **options)
    assert [w.category for w in told] == [UnusedParameter]
    after = net.state_dict()
    assert {n for n in after if (after[n] == before[n]).all()} == set(UNUSED)
    quiet = functools.partial(nn.optim.adam, disconnected_inputs="ignore")
    nn.fit(net, nn.MSECriterion(), quiet, data, 1, lr=0.1, **options)


def test_averages_of_parameters_that_are_trained():
    net, x = Net(), T.fmatrix("x")
    loss = T.sqr(net(x)).mean()
    updates = nn.optim.sgd(loss, net, 0.1, disconnected_inputs="ignore")
    average = nn.optim.ema(updates, net, 0.5)
    f = symdnn.function([x], loss, updates=average.updates)
    f(np.ones((2, 4), "float32"))
    found, now = average.state_dict(), net.state_dict()
    assert {n for n in found if (found[n] == now[n]).all()} == set(UNUSED)
