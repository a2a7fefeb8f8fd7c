"""Values of modules: files, clones, other dtypes, pickles."""

import copy
import pickle
from collections import OrderedDict

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import FileFormatError, InputError, TypeMismatch


def network():
    return nn.Sequential(
        nn.SpatialConvolution(2, 3, 3, 3), nn.SpatialBatchNormalization(3), nn.PReLU(3),
        nn.Dropout(0.1), nn.SpatialAdaptiveAveragePooling(2, 2), nn.Flatten(), nn.Linear(12, 4),
        nn.LogSoftMax(),
    )  # fmt: skip


X = np.random.default_rng(0).normal(size=(2, 2, 6, 6)).astype("float32")


def value(net, dtype="float32"):
    x = T.TensorType(dtype, (None, 2, None, None))("x")
    return symdnn.function([x], net.evaluate()(x))(X.astype(dtype))


def same(a, b):
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_files_go_round(tmp_path, suffix):
    net, other, path = network(), network(), tmp_path / f"net{suffix}"
    assert net.save(path, {"epoch": 3}) is net
    assert other.load(path) is other
    same(net.state_dict(), other.state_dict())
    np.testing.assert_array_equal(value(net), value(other))
    assert symdnn.io.load_parameters(path).metadata == {"epoch": 3}


def test_a_file_that_does_not_fit_changes_nothing(tmp_path):
    net = network()
    before = net.state_dict()
    nn.Sequential(nn.Linear(12, 4)).save(tmp_path / "other.npz")
    with pytest.raises(InputError, match=r"0.weight has shape \(4, 12\).*Nothing was changed"):
        net.load(tmp_path / "other.npz")
    with pytest.raises(FileFormatError, match="suffix"):
        net.save(tmp_path / "net.pt")
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    with pytest.raises(FileFormatError):
        net.load(tmp_path / "broken.npz")
    same(net.state_dict(), before)


def test_some_names_may_be_missing_when_not_strict():
    net = network()
    weight = np.full((4, 12), 7)
    net.load_state_dict({"6.weight": weight, "unknown": weight}, strict=False)
    np.testing.assert_array_equal(net[6].weight.get_value(), weight)


@pytest.mark.parametrize("copied", [lambda n: n.clone(), copy.deepcopy,
                                    lambda n: pickle.loads(pickle.dumps(n))])  # fmt: skip
def test_copies_have_variables_of_their_own(copied):
    net = network()
    x = T.ftensor4("x")
    net(x)  # what was built before is not copied along
    other = copied(net)
    assert repr(other) == repr(net)
    assert not set(other.parameters()) & set(net.parameters())
    np.testing.assert_array_equal(value(net), value(other))
    net[0].weight.set_value(net[0].weight.get_value() + 1)
    assert (value(net) != value(other)).any()


def test_a_module_that_occurs_twice_does_so_in_a_copy():
    one = nn.Linear(3, 3)
    net = nn.Sequential(one, nn.ReLU(), one).clone()
    assert net[0] is net[2]
    assert len(net.parameters()) == 2


def test_clones_may_share_what_is_named():
    net = network()
    other = net.clone("weight", "bias")
    assert other.parameters() == net.parameters()
    assert not set(other.named_buffers().values()) & set(net.named_buffers().values())
    assert other[0] is not net[0]


def test_other_dtypes():
    net = network()
    single = value(net)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert net.double() is net
    assert {v.dtype.name for v in net.state_dict().values()} == {"float64"}
    assert value(net, "float64").dtype == "float64"
    np.testing.assert_allclose(value(net, "float64"), single, rtol=1e-4, atol=1e-6)
    assert value(net.float()).dtype == "float32"
    assert tied.double()[1].weight is tied[0].weight
    assert net[0].weight.type.shape == (3, 2, 3, 3)
    kept = net[0].weight
    assert net.float()[0].weight is kept
    with pytest.raises(InputError, match="wanted a float dtype, got 'int32'"):
        net.astype("int32")
    assert {v.type.dtype for v in nn.Sequential(nn.Linear(2, 2)).half().parameters()} == {"float16"}


def test_all_layers_of_a_trained_function_can_be_pickled_with_it():
    net, x = network(), T.ftensor4("x")
    loss = -net(x)[:, 0].mean()
    updates = [(p, p - 0.1 * g) for p, g in zip(net.parameters(), T.grad(loss, net.parameters()))]
    f = symdnn.function([x], loss, updates=[*updates, *nn.state_updates(loss)])
    before = net.state_dict()
    f(X)
    changed = {n for n, v in net.state_dict().items() if (before[n] != v).any()}
    # A bias in front of a batch norm has no gradient but that of rounding.
    assert changed >= set(before) - {"0.bias"}
    again = pickle.loads(pickle.dumps(net))
    same(again.state_dict(), net.state_dict())


def test_pytorchs_own_names_are_named():
    with pytest.raises(InputError, match=r"is missing.*nn\.load_torch\(net, state\) takes PyTorch"):
        nn.LSTM(2, 3).load_state_dict({"weight_ih_l0": np.zeros((12, 2))})
    norm = nn.BatchNorm2d(4)
    with pytest.raises(InputError, match=r"num_batches_tracked is unknown.*nn\.load_torch\(net"):
        norm.load_state_dict({**norm.state_dict(), "num_batches_tracked": np.int64(3)})


class Recorded:
    """Refuses to be an array, as a tensor of PyTorch does that records gradients."""

    def __array__(self, *args, **options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


@pytest.mark.parametrize(
    "value", ["a", None, [[1], [2, 3]], Recorded(), np.ones((4, 12), "complex64")]
)
def test_a_value_that_is_no_array_of_numbers_is_named(value):
    net = nn.Sequential(nn.Linear(12, 4))
    before = net.state_dict()
    with pytest.raises(InputError, match=r"0.weight is .*wanted an array of float32. Nothing was"):
        net.load_state_dict({**before, "0.weight": value})
    np.testing.assert_array_equal(net.state_dict()["0.weight"], before["0.weight"])


def test_a_state_is_a_dict():
    with pytest.raises(InputError, match="wanted a dict of arrays by name, got 5"):
        nn.Linear(2, 3).load_state_dict(5)


@pytest.mark.parametrize("change", [
    lambda net: net.half(), lambda net: net.bfloat16(), lambda net: net.double(),
    lambda net: net.float(), lambda net: net.astype("float64"), lambda net: net.half().float(),
    copy.copy, copy.deepcopy, lambda net: net.clone(), lambda net: net.clone("weight"),
    lambda net: pickle.loads(pickle.dumps(net)), lambda net: net.load_state_dict(net.state_dict()),
    lambda net: nn.convert(net, "nn"), lambda net: net.evaluate(),
])  # fmt: skip
def test_frozen_parameters_stay_frozen(change):
    net = network()
    assert all(v.requires_grad for v in net.parameters())
    assert net[0].requires_grad_(False) is net[0]
    net[2].weight.requires_grad = False
    assert net[6].bias.requires_grad_(False) is net[6].bias
    frozen = {"0.weight", "0.bias", "2.weight", "6.bias"}
    made = change(net)
    named = made.named_parameters()
    assert {name for name, v in named if not v.requires_grad} == frozen
    assert [*named.keys()] == [*net.named_parameters().keys()]
    made.requires_grad_()
    assert all(v.requires_grad for v in made.parameters())


def test_a_fixed_parameter_says_so_and_an_expression_cannot_be_frozen():
    assert nn.Parameter([1.0]).requires_grad
    assert not nn.Parameter([1.0], requires_grad=False).requires_grad
    x = T.fvector("x")
    assert x.requires_grad_() is x
    with pytest.raises(TypeMismatch, match="wanted a parameter"):
        (x + 1).requires_grad_(False)
    old = symdnn.shared(1.0)
    old.__setstate__((None, None))  # a pickle before there was the attribute
    assert old.requires_grad


def test_a_variable_of_two_modules_may_be_named_by_each():
    """As PyTorch's state dicts of tied weights do."""

    class Tied(nn.Module):
        def __init__(self):
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    net, value = Tied(), np.arange(15, dtype="float32").reshape(5, 3)
    for names in (["embed.weight", "head.weight"], ["embed.weight"], ["head.weight"]):
        net.embed.weight.set_value(0 * value)
        net.load_state_dict(dict.fromkeys(names, value))
        np.testing.assert_array_equal(net.head.weight.get_value(), value)
    with pytest.raises(InputError, match=r"head\.bias is unknown"):
        net.load_state_dict({"embed.weight": value, "head.bias": value})
    for other in (value + 1, value[:2]):
        with pytest.raises(InputError, match=r"embed\.weight and head\.weight are one variable"):
            net.load_state_dict({"embed.weight": value, "head.weight": other})
    net.head = net.embed  # a module in two places
    net.load_state_dict(dict.fromkeys(["embed.weight", "head.weight"], value + 2))
    np.testing.assert_array_equal(net.embed.weight.get_value(), value + 2)


@pytest.mark.parametrize("make", [
    lambda parts: nn.ModuleDict(parts), lambda parts: nn.Sequential(OrderedDict(parts)),
])  # fmt: skip
def test_parts_may_have_names_of_the_modules_own_attributes(make):
    part = nn.Linear(2, 3)
    net = make({"training": part, "backend": nn.ReLU()}).eval()
    net.backend = "nn"
    assert (net.training, net.backend, part.training) == (False, "nn", False)
    assert list(net.state_dict()) == ["training.weight", "training.bias"]
    assert part in net.children().values()
