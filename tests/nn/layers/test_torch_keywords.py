"""PyTorch's keywords of classes that have Torch7's names too: PyTorch's values and gradients."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError
from tests.seeded import new_rng

IMAGES = (2, 4, 5, 6)
CASES = [
    ("LeakyReLU", {"negative_slope": 0.2}, (3, 4)),
    ("Hardtanh", {"min_val": -0.5, "max_val": 0.7}, (3, 4)),
    ("Threshold", {"threshold": 0.3, "value": -2.0}, (3, 4)),
    ("Softplus", {"beta": 2.0, "threshold": 0.5}, (3, 4)),
    ("PReLU", {"num_parameters": 4, "init": 0.1}, IMAGES),
    ("PReLU", {"num_parameters": 1}, (3,)),
    ("Linear", {"in_features": 4, "out_features": 3, "bias": False}, (3, 4)),
    ("LayerNorm", {"normalized_shape": 4, "elementwise_affine": False}, (3, 4)),
    ("GroupNorm", {"num_groups": 2, "num_channels": 4, "bias": False}, IMAGES),
    ("BatchNorm2d", {"num_features": 4, "bias": False}, IMAGES),
    ("InstanceNorm2d", {"num_features": 4, "affine": True, "bias": False}, IMAGES),
    ("LSTM", {"input_size": 4, "hidden_size": 3, "batch_first": True}, (2, 5, 4)),
    ("GRU", {"input_size": 4, "hidden_size": 3, "num_layers": 2, "bidirectional": True}, (5, 2, 4)),
    ("RNN", {"input_size": 4, "hidden_size": 3, "nonlinearity": "relu"}, (5, 2, 4)),
    ("Dropout", {"p": 0.0, "inplace": False}, (3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "shape"), CASES, ids=lambda v: str(v)[:60])
def test_a_module_by_pytorch_keywords_is_pytorch_s(name, options, shape):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(**options).double()
    ours = getattr(nn, name)(**options).astype("float64")
    if ours.state_dict():
        nn.load_torch(ours, theirs.state_dict())
    for key in options:
        if hasattr(theirs, key) and hasattr(ours, key) and key not in ("init", "bias", "value"):
            assert getattr(ours, key) == getattr(theirs, key), key
    rng = new_rng()
    v = rng.normal(size=shape)
    x = T.TensorType("float64", (None,) * len(shape))("x")
    y = ours(x)
    weight = rng.normal(size=symdnn.function([x], y)(v).shape)
    given = torch.tensor(v, requires_grad=True)
    wanted = theirs(given)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    (wanted * torch.tensor(weight)).sum().backward()
    found = symdnn.function([x], [y, T.grad((y * weight).sum(), x)])(v)
    np.testing.assert_allclose(found[0], wanted.detach().numpy(), 1e-9, 1e-9)
    np.testing.assert_allclose(found[1], given.grad.numpy(), 1e-7, 1e-7)


def test_containers_take_pytorch_keywords():
    assert len(nn.ModuleList(modules=[nn.ReLU()])) == 1
    assert list(nn.ModuleDict(modules={"a": nn.ReLU()})) == ["a"]


def test_attributes_have_pytorch_names_in_subclasses_too():
    class Head(nn.Linear):
        def __init__(self):
            super().__init__(in_features=6, out_features=2)

    assert (Head().in_features, Head().out_features) == (6, 2)
    assert nn.BLSTM(3, 4, 2, True).batch_first
    layer = nn.LeakyReLU(0.5)
    layer.negative_slope = 0.25
    assert layer.negval == 0.25


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.Dropout(0.5, True), "write v1= or inplace="),
        (lambda: nn.Dropout2d(0.5, True), "write v1= or inplace="),
        (lambda: nn.GRU(5, 4, proj_size=2), "proj_size=2; wanted"),
        (lambda: nn.RNN(5, 4, nonlinearity="elu"), "nonlinearity='elu'; wanted"),
        (lambda: nn.Linear(in_features=2, inputSize=2, outputSize=3), "one argument"),
        (lambda: nn.Linear(in_features="2", out_features=3), "inputSize='2'; wanted an int"),
    ],
)
def test_what_is_ambiguous_or_missing_is_refused(make, text):
    with pytest.raises(InputError, match=text):
        make()
