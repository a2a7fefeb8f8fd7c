"""``nn.utils``: reparameterised weights, parameters as a vector, advice for names that are not."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch

RNG = np.random.default_rng(4)
U = nn.utils
LAYERS = {
    "linear": (lambda: nn.Linear(5, 4, dtype="float64"), (3, 5), 0),
    "convolution": (lambda: nn.Conv2d(3, 4, 3, dtype="float64"), (2, 3, 6, 6), 0),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, 2, dtype="float64"), (2, 3, 4, 4), 1),
}
NORMS = {
    "spectral": lambda u, m: u.spectral_norm(m),
    "spectral, 3 times": lambda u, m: u.spectral_norm(m, n_power_iterations=3),
    "weight": lambda u, m: u.weight_norm(m),
    "weight, as a whole": lambda u, m: u.weight_norm(m, dim=None),
    "weight, of columns": lambda u, m: u.weight_norm(m, dim=1),
}


def unit(x):
    return x / np.linalg.norm(x)


@pytest.mark.parametrize("layer", LAYERS)
def test_spectral_norm_iterates_in_training(layer):
    make, shape, axis = LAYERS[layer]
    net, plain = U.spectral_norm(make()), make()
    before = net.state_dict()
    weight, u, v = (before[f"weight_{k}"] for k in ("orig", "u", "v"))
    matrix = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)
    x = RNG.standard_normal(shape)

    def wanted(u, v):
        state = {"weight": weight / (u @ matrix @ v), "bias": before["bias"]}
        return plain.load_state_dict(state)(x).eval()

    y = net(x)
    step = symdnn.function([], y, updates=nn.state_updates(y))
    for _ in range(2):
        v = unit(matrix.T @ u)
        u = unit(matrix @ v)
        np.testing.assert_allclose(step(), wanted(u, v), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(net.weight_u.get_value(), u)
    np.testing.assert_allclose(net.weight_v.get_value(), v)
    net.evaluate()
    assert not nn.state_updates(net(x))
    np.testing.assert_allclose(net(x).eval(), wanted(u, v), rtol=1e-9, atol=1e-12)
    assert U.remove_spectral_norm(net) is net
    assert sorted(net.state_dict()) == ["bias", "weight"]
    np.testing.assert_allclose(net(x).eval(), wanted(u, v), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_keeps_the_function_and_its_removal_too(dim):
    net = nn.Conv2d(3, 4, 3, dtype="float64")
    x, weight = RNG.standard_normal((2, 3, 6, 6)), net.weight.get_value()
    want = net(x).eval()
    U.weight_norm(net, dim=dim)
    np.testing.assert_allclose(net(x).eval(), want, rtol=1e-9, atol=1e-12)
    axes = tuple(a for a in range(4) if a != dim)
    norms = np.sqrt((weight**2).sum(axes, keepdims=dim is not None))
    np.testing.assert_allclose(net.weight_g.get_value(), norms)
    net.weight_v.set_value(3 * weight)  # its length is without effect
    net.weight_g.set_value(2 * norms)
    U.remove_weight_norm(net)
    assert list(net.named_parameters().keys()) == ["bias", "weight"]
    np.testing.assert_allclose(net.weight.get_value(), 2 * weight, rtol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_are_those_of_finite_differences(norm):
    """Singular vectors count as constants, as in PyTorch."""
    net = NORMS[norm](U, nn.Linear(5, 4, dtype="float64")).evaluate()
    x = RNG.standard_normal((3, 5))
    parameters = net.parameters()
    cost = (net(x) ** 3).sum()
    slopes = symdnn.function([], symdnn.grad(cost, parameters))()
    f = symdnn.function([], cost)
    for p, slope in zip(parameters, slopes, strict=True):
        at, direction = p.get_value(), RNG.standard_normal(p.get_value().shape)
        ends = []
        for h in (1e-6, -1e-6):
            p.set_value(at + h * direction)
            ends.append(f())
        p.set_value(at)
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-6, (slope * direction).sum(), 1e-6)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("norm", NORMS)
def test_training_is_pytorchs(layer, norm):
    torch = pytest.importorskip("torch")
    theirs = {
        "linear": lambda: torch.nn.Linear(5, 4),
        "convolution": lambda: torch.nn.Conv2d(3, 4, 3),
        "transposed": lambda: torch.nn.ConvTranspose2d(3, 4, 3, 2),
    }[layer]
    other = NORMS[norm](torch.nn.utils, theirs().double())
    make, shape, _ = LAYERS[layer]
    net = NORMS[norm](U, make())
    net.load_state_dict({k: v.numpy() for k, v in other.state_dict().items()})
    x = RNG.standard_normal(shape)
    loss = (net(x) ** 3).mean()
    step = symdnn.function([], loss, updates=nn.optim.sgd(loss, net, 0.1))
    optimiser = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(3):
        their_loss = (other(torch.tensor(x)) ** 3).mean()
        optimiser.zero_grad()
        their_loss.backward()
        optimiser.step()
        np.testing.assert_allclose(step(), their_loss.item(), rtol=1e-9, atol=1e-12)
    for name, value in other.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value.numpy(), rtol=1e-9, atol=1e-12)


def test_two_calls_iterate_twice_and_parts_of_networks_are_found():
    net = nn.Sequential(U.spectral_norm(nn.Linear(4, 4, dtype="float64")), nn.ReLU())
    assert sorted(net.state_dict()) == ["0.bias", "0.weight_orig", "0.weight_u", "0.weight_v"]
    weight, u = (net[0].state_dict()[f"weight_{k}"] for k in ("orig", "u"))
    y = net(net(RNG.standard_normal((2, 4))))
    symdnn.function([], y, updates=nn.state_updates(y))()
    for _ in range(2):
        u = unit(weight @ unit(weight.T @ u))
    np.testing.assert_allclose(net[0].weight_u.get_value(), u)


@pytest.mark.parametrize("norm", NORMS)
def test_copies_and_dtypes(norm):
    net = NORMS[norm](U, nn.Linear(4, 3, dtype="float64")).evaluate()
    x = RNG.standard_normal((2, 4))
    copy = net.clone()
    for p in net.parameters():
        p.set_value(2 * p.get_value())
    assert abs(copy(x).eval() - net(x).eval()).max() > 0.01
    narrow = copy.clone().astype("float32")(x.astype("float32"))
    assert narrow.type.dtype == "float32"
    np.testing.assert_allclose(narrow.eval(), copy(x).eval(), rtol=1e-4, atol=1e-5)


def test_parameters_as_a_vector_and_back():
    net, other = nn.Linear(4, 3), nn.Linear(4, 3)
    vector = U.parameters_to_vector(net.parameters())
    values = [p.get_value() for p in net.parameters()]
    np.testing.assert_array_equal(vector.eval(), np.concatenate([v.ravel() for v in values]))
    U.vector_to_parameters(vector, other.parameters())
    for p, value in zip(other.parameters(), values, strict=True):
        np.testing.assert_array_equal(p.get_value(), value)
    U.vector_to_parameters(np.arange(15), other.parameters())
    assert other.weight.get_value().dtype == "float32"
    np.testing.assert_array_equal(other.bias.get_value(), [12, 13, 14])
    with pytest.raises(InputError, match=r"wanted \(15,\)"):
        U.vector_to_parameters(np.zeros(16), other.parameters())
    with pytest.raises(TypeMismatch, match="shared variables"):
        U.vector_to_parameters(np.zeros(1), [T.dvector()])
    with pytest.raises(InputError, match="no parameters"):
        U.parameters_to_vector([])


def test_what_cannot_be_reparameterised_is_refused():
    with pytest.raises(InputError, match="no parameter 'kernel' of its own; it has weight, bias"):
        U.spectral_norm(nn.Linear(4, 3), "kernel")
    with pytest.raises(InputError, match="one of its axes"):
        U.weight_norm(nn.Linear(4, 3), dim=2)
    with pytest.raises(InputError, match="1 or more"):
        U.spectral_norm(nn.Linear(4, 3), n_power_iterations=0)
    with pytest.raises(InputError, match="it has bias, weight_orig"):
        U.weight_norm(U.spectral_norm(nn.Linear(4, 3)))
    with pytest.raises(InputError, match="has no weight_norm"):
        U.remove_weight_norm(U.spectral_norm(nn.Linear(4, 3)))
    with pytest.raises(InputError, match="no parameter 'running_mean'"):
        U.weight_norm(nn.BatchNorm1d(4), "running_mean")


@pytest.mark.parametrize(
    ("name", "advice"),
    [("clip_grad_norm_", "clip_norm=1.0"), ("rnn", "lengths"), ("pack_padded_sequence", "lengths")],
)
def test_names_that_are_not_there_have_advice(name, advice):
    with pytest.raises(AttributeError, match=advice):
        getattr(U, name)
