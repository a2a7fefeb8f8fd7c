"""Ten steps of optimisers and options against PyTorch's, in float64."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError
from tests.seeded import new_rng

DECAY = {"weight_decay": 0.1}


@pytest.fixture
def torch():
    """PyTorch with a default of float64, in which ASGD keeps its rate."""
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(before)


CASES = [
    ("SGD", {"lr": 0.1, "maximize": True, **DECAY}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, **DECAY}),
    ("Adam", {"lr": 0.1, "maximize": True, **DECAY}),
    ("AdamW", {"lr": 0.1, "maximize": True, **DECAY}),
    ("NAdam", {"lr": 0.1, "decoupled_weight_decay": True, **DECAY}),
    ("RAdam", {}),
    ("RAdam", {"lr": 0.1, "betas": (0.8, 0.9), **DECAY}),
    ("RAdam", {"lr": 0.1, "decoupled_weight_decay": True, "maximize": True, **DECAY}),
    ("Rprop", {}),
    ("Rprop", {"lr": 0.3, "etas": (0.4, 1.5), "step_sizes": (0.01, 0.4), "maximize": True}),
    ("ASGD", {}),
    ("ASGD", {"lr": 0.3, "lambd": 0.1, "alpha": 0.6, "t0": 3, **DECAY}),
]  # fmt: skip


def both(torch, name, options, rng, steps=10):
    """Our and PyTorch's parameter after each step, our updates, and PyTorch's optimiser."""
    start, centre = rng.normal(size=(3, 4)), rng.normal(size=(steps, 3, 4))
    theirs = torch.tensor(start, requires_grad=True)
    optimiser = getattr(torch.optim, name)([theirs], **options)
    p, x = symdnn.shared(start, name="p"), T.dmatrix("x")
    updates = getattr(nn.optim, name.lower())((T.cos(p - x) + (p - x) ** 2).sum(), [p], **options)
    step, pairs = symdnn.function([x], [], updates=updates), []
    for c in centre:
        d = theirs - torch.tensor(c)
        optimiser.zero_grad()
        (torch.cos(d) + d**2).sum().backward()
        optimiser.step()
        step(c)
        pairs.append((p.get_value(), theirs.detach().numpy().copy()))
    return pairs, updates, optimiser.state[theirs]


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: str(v)[:70])
def test_ten_steps_are_pytorchs(torch, name, options):
    for found, wanted in both(torch, name, options, new_rng())[0]:
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_the_average_of_asgd_is_pytorchs(torch):
    _, updates, state = both(torch, "ASGD", {"lr": 0.1, "t0": 3}, new_rng())
    average = next(v for k, v in updates.state_dict().items() if k.endswith("average"))
    np.testing.assert_allclose(average, state["ax"].numpy(), rtol=1e-9, atol=1e-9)


def test_rprop_begins_at_a_symbolic_rate(rng):
    p, lr = symdnn.shared(rng.normal(size=3), name="p"), T.dscalar("lr")
    before = p.get_value()
    symdnn.function([lr], [], updates=nn.optim.rprop((p**2).sum(), [p], lr))(0.125)
    np.testing.assert_allclose(before - p.get_value(), 0.125 * np.sign(before), rtol=1e-12)


def test_dampening_with_nesterov_and_wrong_kinds_are_refused():
    p = symdnn.shared(np.zeros(3), name="p")
    loss = (p**2).sum()
    with pytest.raises(InputError, match="momentum above 0 and no dampening"):
        nn.optim.sgd(loss, [p], momentum=0.9, dampening=0.1, nesterov=True)
    with pytest.raises(InputError, match="maximize='yes'; wanted True or False"):
        nn.optim.adam(loss, [p], maximize="yes")
