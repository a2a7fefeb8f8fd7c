"""L-BFGS against PyTorch's, step by step."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch

torch = pytest.importorskip("torch")


def nets():
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    ours = nn.Sequential(
        nn.Linear(4, 6, dtype="float64"), nn.Tanh(), nn.Linear(6, 1, dtype="float64")
    )
    nn.load_torch(ours, theirs.double().state_dict())
    return ours, theirs


@pytest.mark.parametrize("history", [100, 2])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_every_step_is_pytorchs(rng, search, history):
    ours, theirs = nets()
    options = {
        "lr": 1.0 if search else 0.5, "max_iter": 7, "history_size": history,
        "line_search_fn": search,
    }  # fmt: skip
    x = rng.normal(size=(20, 4))
    y = np.sin(x[:, :1])
    vs = [T.dmatrix("x"), T.dmatrix("y")]
    optimiser = nn.optim.LBFGS(((ours(vs[0]) - vs[1]) ** 2).mean(), ours, vs, **options)
    other = torch.optim.LBFGS(theirs.parameters(), **options)

    def closure():
        other.zero_grad()
        loss = ((theirs(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        assert np.isclose(optimiser.step(x, y), float(other.step(closure).detach()), rtol=1e-9)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.get_value(), q.detach().numpy(), 1e-7, 1e-9)


def test_a_valley_is_followed_and_a_state_goes_on():
    def valley():
        w = symdnn.shared(np.array([-1.5, 2.0]), name="w")
        loss = (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2
        return w, nn.optim.LBFGS(loss, [w], max_iter=5, line_search_fn="strong_wolfe")

    w, optimiser = valley()
    optimiser.step()
    other, resumed = valley()
    other.set_value(w.get_value())
    resumed.load_state_dict(optimiser.state_dict())
    for _ in range(16):
        assert optimiser.step() == resumed.step()
    np.testing.assert_array_equal(w.get_value(), other.get_value())
    np.testing.assert_allclose(w.get_value(), [1, 1], 1e-5)
    with pytest.raises(InputError, match="wanted the state of an LBFGS of 2 parameters"):
        resumed.load_state_dict({"before": np.zeros(3)})


def test_what_does_not_fit():
    w = symdnn.shared(np.zeros(2))
    with pytest.raises(TypeMismatch, match="a float scalar"):
        nn.optim.LBFGS(w, [w])
    with pytest.raises(InputError, match="wanted None or 'strong_wolfe'"):
        nn.optim.LBFGS(w.sum(), [w], line_search_fn="armijo")
    with pytest.raises(InputError, match="lr=-1"):
        nn.optim.LBFGS(w.sum(), [w], lr=-1)
