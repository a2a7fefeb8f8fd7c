"""The base of modules, by a small layer of its own."""

import copy
import pickle

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch
from tests.seeded import new_rng


class Scale(nn.Module):
    """y = x * weight, with a running sum of x as its statistic."""

    def __init__(self, size, backend="auto"):
        self.parameter("weight", (size,), nn.init.normal(1.0))
        self.buffer("total", np.zeros(size, "float32"))
        self.backend = backend

    def forward(self, x):
        y = x * self.weight
        if self.training:
            y.tag.state_updates = [(self.total, self.total + x.sum(axis=0))]
        return y

    def describe(self):
        return f"({self.weight.get_value().size})"


def test_names_of_parameters_and_buffers():
    net = nn.Sequential(Scale(3), nn.Sequential(Scale(3)))
    assert list(net.named_parameters().keys()) == ["0.weight", "1.0.weight"]
    assert list(net.named_buffers().keys()) == ["0.total", "1.0.total"]
    assert len(net.parameters()) == 2


def test_a_module_used_twice_has_its_parameters_once():
    one = Scale(3)
    assert list(nn.Sequential(one, one).named_parameters().keys()) == ["0.weight"]


class Stack(nn.Module):
    """Modules in a list and a tuple, and one by name."""

    def __init__(self):
        self.layers = [Scale(3), Scale(4)]
        self.pair = (Scale(5),)
        self.last = Scale(6)


def test_modules_in_lists_are_children():
    net = Stack()
    named = ["layers.0.weight", "layers.1.weight", "pair.0.weight", "last.weight"]
    assert list(net.named_parameters().keys()) == named
    assert not net.evaluate().layers[1].training
    assert "(layers.1): nn.Scale(4)" in repr(net)


def test_state_updates_of_an_expression():
    net, x = nn.Sequential(Scale(3), Scale(3)), T.matrix("x")
    loss = net(x).sum()
    f = symdnn.function([x], loss, updates=nn.state_updates(loss))
    value = new_rng().normal(size=(4, 3)).astype("float32")
    f(value)
    np.testing.assert_allclose(net[0].total.get_value(), value.sum(axis=0), rtol=1e-5, atol=1e-6)
    assert nn.state_updates(net.evaluate()(x)) == []
    assert nn.state_updates(net.train()(x))


def test_state_dict_goes_round_and_a_wrong_one_changes_nothing():
    net, other = nn.Sequential(Scale(3)), nn.Sequential(Scale(3))
    other.load_state_dict(net.state_dict())
    np.testing.assert_array_equal(other[0].weight.get_value(), net[0].weight.get_value())
    before = other.state_dict()
    wrong = {"0.weight": np.ones(4), "0.totl": np.ones(3)}
    with pytest.raises(InputError, match=r"0.total is missing; 0.totl is unknown; .*shape \(4,\)"):
        other.load_state_dict(wrong)
    for name, value in other.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_backends_and_hints_reach_the_nodes():
    x = T.matrix("x")
    net = nn.Sequential(Scale(3, "cudnn"), Scale(3))
    y = net(x)
    assert not y.owner.hints
    assert y.owner.inputs[0].owner.hints.backend == "cudnn"
    assert "test_module.py" in str(y.owner.origin)


def test_the_printed_tree():
    net = nn.Sequential(Scale(3), nn.Sequential(Scale(4, "cudnn")))
    assert repr(net) == (
        "nn.Sequential {\n"
        "  [input -> (0) -> (1) -> output]\n"
        "  (0): nn.Scale(3)\n"
        "  (1): nn.Sequential {\n"
        "    [input -> (0) -> output]\n"
        "    (0): cudnn.Scale(4)\n"
        "  }\n"
        "}"
    )


def test_what_is_no_module_or_no_tensor_is_refused():
    with pytest.raises(InputError, match="wanted a module"):
        nn.Sequential(3)
    with pytest.raises(TypeMismatch, match="Scale: wanted a symbolic variable"):
        Scale(3)(object())


def test_a_seed_gives_the_same_parameters():
    values = []
    for _ in range(2):
        nn.init.seed(7)
        values.append(Scale(5).weight.get_value())
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (6, 2, 3, 3)])
def test_orthogonal_rows_or_columns(shape):
    w = nn.init.orthogonal(2.0)(shape, new_rng()).reshape(shape[0], -1)
    square = w @ w.T if w.shape[0] < w.shape[1] else w.T @ w
    np.testing.assert_allclose(square, 4 * np.eye(len(square)), atol=1e-12)


@pytest.mark.parametrize(
    ("initial", "variance"),
    [
        (nn.init.he_normal, 2 / 90), (nn.init.he_uniform, 2 / 90),
        (nn.init.glorot_normal, 2 / 990), (nn.init.glorot_uniform, 2 / 990),
        (nn.init.torch_uniform, 1 / 270), (nn.init.normal(0.3), 0.09),
    ],
)  # fmt: skip
def test_variances(initial, variance):
    values = initial((100, 10, 3, 3), np.random.default_rng(0))
    assert values.var() == pytest.approx(variance, rel=0.1)
    assert abs(values.mean()) < 5 * np.sqrt(variance / values.size)


class Masked(nn.Module):
    """x where a mask is True, or its negative."""

    def forward(self, x, mask=None, negative=False):
        assert negative is True or negative is False  # an option stays what it is
        y = x if mask is None else T.switch(mask, x, 0)
        return -y if negative else y


def test_calls_take_keywords(rng):
    x, value = T.fvector(), rng.normal(size=3).astype("float32")
    mask, module = np.array([True, False, True]), Masked()
    for y in (module(x, mask=mask, negative=True), module(x, mask, True)):
        np.testing.assert_array_equal(symdnn.function([x], y)(value), -(value * mask))
    given = T.vector("mask", dtype="bool")
    f = symdnn.function([x, given], module(x, mask=given))
    np.testing.assert_array_equal(f(value, ~mask), value * ~mask)
    with pytest.raises(InputError, match="no_such"):
        module(x, no_such=mask)


class Block(nn.Module):
    """A module of one's own, with PyTorch's ways of holding others."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.rest = nn.ModuleList([nn.Linear(2, 2), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())])


@pytest.mark.parametrize("build", [
    Block, lambda: nn.Sequential(Block(), nn.ReLU()), lambda: nn.Linear(2, 3),
    lambda: nn.ModuleList([nn.ReLU(), Block()]), lambda: nn.ModuleDict({"a": Block()}),
    lambda: nn.Sequential({"a": nn.ReLU(), "b": nn.Sequential(Block())}),
    lambda: nn.ConcatTable(nn.Identity(), Block()),
])  # fmt: skip
def test_modules_are_walked_as_in_pytorch(build):
    net = build()
    assert [*net.modules()] == [m for _, m in net.named_modules()]
    assert next(iter(net.modules())) is net
    assert [*net.children()] == [m for _, m in net.named_children()]
    for name, child in net.named_children():
        assert net.children()[name] is child
        assert name in net.children()
    paths = {name for name, _ in net.named_modules()}
    assert {name for name, _ in net.named_children()} <= paths
    assert [*reversed(net.children())] == [*net.children()][::-1]
    for listed, named in ((net.parameters(), net.named_parameters()),
                          (net.buffers(), net.named_buffers())):  # fmt: skip
        assert [v for _, v in named] == [*listed] == [*named.values()]
        assert [n for n, _ in reversed(named)] == [*named.keys()][::-1]
        assert dict(named) == {**named}
        assert all(n in named for n, _ in named)
    seen = []
    assert net.apply(seen.append) is net
    assert {*map(id, seen)} == {*map(id, net.modules())}
    assert seen[-1] is net


def test_the_list_of_a_sequential_is_also_pytorchs_method():
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU()))
    for each in (net, copy.copy(net), copy.deepcopy(net), net.clone(), net[:],
                 pickle.loads(pickle.dumps(net))):  # fmt: skip
        assert [type(m).__name__ for m in each.modules()] == [
            "Sequential",
            "Linear",
            "Sequential",
            "ReLU",
        ]
        assert next(each.modules()) is each
        assert isinstance(each.modules, list)
        assert len(each.modules) == 2
    net.modules[0] = nn.Linear(2, 5)
    net.modules.append(nn.Tanh())
    assert net[0].weight.type.shape == (5, 2)
    assert [*net.children()] == net.modules
    with pytest.raises(AttributeError, match="modules"):
        nn.Sequential.__new__(nn.Sequential).modules  # noqa: B018
