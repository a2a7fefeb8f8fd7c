"""Modules and parameters at any depth of lists, tuples and dicts; their lists and dicts; names."""

import copy
import gc
import io
import pickle
from collections import OrderedDict, deque, namedtuple

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError

Pair = namedtuple("Pair", "first second")


class Heads(nn.Module):
    """What ``held`` holds, each applied to the input and summed."""

    def __init__(self, held, used):
        self.held, self.used = held, used

    def forward(self, x):
        return sum(m(x) for m in self.used)


def layer():
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))


NESTINGS = {
    "list": lambda m: [m],
    "tuple": lambda m: (m,),
    "dict": lambda m: {"a": m},
    "ordered dict": lambda m: OrderedDict(a=m),
    "deque": lambda m: deque([m]),
    "named tuple": lambda m: Pair(1, m),
    "list of lists": lambda m: [[], [[m]]],
    "dict of dicts": lambda m: {"a": {"b": m}},
    "list of dicts of tuples": lambda m: [{"a": (None, 3, "x", m)}],
    "dict of lists": lambda m: {1: [m], "n": 4.5},
    "ModuleList": lambda m: nn.ModuleList([m]),
    "ModuleDict": lambda m: nn.ModuleDict({"a": m}),
    "ModuleDict of ModuleLists": lambda m: nn.ModuleDict({"a": nn.ModuleList([m])}),
    "list of ModuleLists": lambda m: [nn.ModuleList([m])],
}
PATHS = [
    "0", "0", "a", "a", "0", "1", "1.0.0", "a.b", "0.a.3", "1.0", "0", "a", "a.0", "0.0",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path"), list(zip(NESTINGS, PATHS, strict=True)))
def test_a_nested_module_is_a_part_of_the_network(kind, path, rng, tmp_path):
    inner = layer()
    net = Heads(NESTINGS[kind](inner), [])
    net.used = (inner,)  # the same module again, under a later name
    own = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert list(net.named_parameters().keys()) == [f"held.{path}.{n}" for n in own]
    assert [p.name for p in net.parameters()] == list(net.named_parameters().keys())
    x = rng.normal(size=(8, 3)).astype("float32")
    before = net.state_dict()
    nn.fit(net, nn.MSECriterion(), nn.optim.adam, nn.batches((x, x), 4), 1, lr=0.1)
    same = [n for n, v in net.state_dict().items() if (v == before[n]).all()]
    assert set(same) <= {f"held.{path}.0.bias"}  # before a batch norm: rounding alone moves it
    net.evaluate()
    assert not inner[2].training
    v = T.fmatrix("x")
    f = symdnn.function([v], net(v))
    np.testing.assert_array_equal(f(x), f(x))
    net.save(tmp_path / "net.npz")
    other = Heads(NESTINGS[kind](fresh := layer()), [fresh]).load(tmp_path / "net.npz").evaluate()
    np.testing.assert_array_equal(symdnn.function([v], other(v))(x), f(x))
    assert {p.type.dtype for p in net.double().parameters()} == {"float64"}
    assert inner[0].weight.type.dtype == "float64"
    assert f"held.{path}".rpartition(".")[2] in repr(net)
    assert any(row.parameters == 18 for row in nn.summary(net, (2, 3)).rows)


def test_what_is_appended_later_is_found_and_named(rng):
    net = Heads([nn.Linear(3, 3)], [])
    net.held.append({"late": nn.Linear(3, 3)})
    net.used = [net.held[0], net.held[1]["late"]]
    assert [p.name for p in net.parameters()][2] == "held.1.late.weight"
    net.held.insert(0, nn.Linear(3, 3))
    net(T.fmatrix("x"))
    assert net.held[2]["late"].weight.name == "held.2.late.weight"
    assert net.held[1].weight.name == "held.1.weight"


def test_lists_of_variables_are_parameters():
    net = Heads([], [])
    net.scales = [symdnn.shared(np.ones(3, "float32")), {"b": symdnn.shared(np.zeros(3))}]
    assert list(net.named_parameters().keys()) == ["scales.0", "scales.1.b"]
    assert [p.name for p in net.parameters()] == ["scales.0", "scales.1.b"]
    net.astype("float64")
    assert net.scales[0].type.dtype == "float64"
    assert net.clone("scales").scales[1]["b"] is net.scales[1]["b"]
    assert net.clone().scales[1]["b"] is not net.scales[1]["b"]


def test_cycles_and_what_is_there_twice():
    one = nn.Linear(3, 3)
    net = Heads([one, {"again": one}], [one])
    net.held.append(net.held)
    net.held.append(net)
    one.parent = net
    assert list(net.named_parameters().keys()) == ["held.0.weight", "held.0.bias"]
    assert len(list(net.named_modules())) == 2
    assert not net.evaluate().held[0].training
    copied = net.clone()
    assert copied.held[0] is copied.held[1]["again"] is copied.used[0]
    assert copied.held[0].parent is copied


def test_a_deep_chain_of_modules():
    net = first = nn.Module()
    for _ in range(3000):
        net.next = nn.Module()
        net = net.next
    assert sum(1 for _ in first.named_modules()) == 3001


def test_sets_and_names_that_clash_are_refused():
    with pytest.raises(InputError, match=r"Heads\.held has a set of modules.*list or a dict"):
        Heads({nn.ReLU(), nn.Tanh()}, [])
    with pytest.raises(InputError, match=r"two modules are named 'held\.1'"):
        Heads({1: nn.ReLU(), "1": nn.Tanh()}, []).children()
    assert Heads({1, 2}, []).children() == {}


def test_a_container_with_attributes_of_its_own():
    class Residual(nn.Sequential):
        def __init__(self, *modules):
            super().__init__(*modules)
            self.shortcut = nn.Linear(3, 3)

    net = Residual(nn.Linear(3, 3))
    assert list(net.children().keys()) == ["0", "shortcut"]


# -- ModuleList and its kin ----------------------------------------------------------------------


def test_module_list():
    a, b, c = nn.ReLU(), nn.Tanh(), nn.Sigmoid()
    found = nn.ModuleList([a])
    assert found.append(b) is found
    found.extend([c])
    assert (len(found), found[1], list(found), found[-1]) == (3, b, [a, b, c], c)
    assert isinstance(found[:2], nn.ModuleList)
    assert list(found[:2]) == [a, b]
    assert b in found
    assert found.pop() is c
    found += [c]
    assert list(found + [a]) == [a, b, c, a]
    found.insert(0, c)
    found[1] = b
    del found[0]
    assert list(found) == [b, b, c]
    assert list(found.children().keys()) == ["0", "1", "2"]
    assert not nn.ModuleList()
    for wrong in (lambda: found.append(3), lambda: nn.ModuleList([a, "b"]),
                  lambda: nn.ModuleList(3), lambda: found(T.fmatrix())):  # fmt: skip
        with pytest.raises(InputError, match="ModuleList"):
            wrong()


def test_module_dict():
    a, b = nn.ReLU(), nn.Tanh()
    found = nn.ModuleDict({"a": a})
    found["b"] = b
    assert (list(found), list(found.values()), len(found)) == (["a", "b"], [a, b], 2)
    assert dict(found.items()) == {"a": a, "b": b}
    assert "a" in found
    assert found.get("c") is None
    assert found.pop("a") is a
    found.update([("c", a)])
    del found["b"]
    assert list(found.keys()) == ["c"]
    assert repr(found) == "nn.ModuleDict {\n  (c): nn.ReLU\n}"
    found.clear()
    assert not found
    for wrong in (lambda: found.update({"a.b": a}), lambda: found.update({3: a}),
                  lambda: found.update({"a": 3}), lambda: nn.ModuleDict([1]),
                  lambda: found.update({"": a}), lambda: found(T.fmatrix())):  # fmt: skip
        with pytest.raises(InputError, match="ModuleDict"):
            wrong()
    with pytest.raises(KeyError):
        found["x"]


def test_entries_are_attributes():
    """As in PyTorch: read, replaced and added under their names."""
    parts = nn.ModuleDict({"embed": nn.Linear(3, 2), "head": nn.Linear(2, 4)})
    assert parts.head is parts["head"]
    parts.head = nn.Linear(2, 5)
    parts.last = nn.Linear(5, 1)
    assert list(parts) == ["embed", "head", "last"]
    assert parts["head"].weight.type.shape == (5, 2)
    assert [p.name for p in parts.parameters()][2:] == [
        "head.weight", "head.bias", "last.weight", "last.bias",
    ]  # fmt: skip
    values = nn.ParameterDict({"w": np.ones(3, "float32")})
    values.w = np.zeros(2, "float32")
    assert values.w is values["w"]
    assert values.w.type.shape == (2,)
    with pytest.raises(InputError, match="ModuleDict: wanted a module"):
        parts.head = 3
    with pytest.raises(AttributeError, match="no attribute 'tail'"):
        parts.tail  # noqa: B018


def test_a_named_layer_is_replaced_by_an_assignment(rng):
    net = nn.Sequential({"body": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
    net.head = nn.Linear(4, 7)
    assert net[1] is net.head
    assert list(net.named_parameters()["head.weight"].type.shape) == [7, 4]
    assert net(T.constant(rng.normal(size=(2, 3)).astype("f"))).type.shape == (2, 7)
    with pytest.raises(InputError, match="wanted a module"):
        net.head = 3


def test_parameter_list_and_dict(rng):
    class Net(nn.Module):
        def __init__(self):
            self.rows = nn.ParameterList([np.ones((3, 2), "float32"), symdnn.shared(np.zeros(2))])
            self.named = nn.ParameterDict({"w": np.ones((2, 2), "float32")})

        def forward(self, x):
            return T.dot(T.dot(x, self.rows[0]) + self.rows[1], self.named["w"])

    net = Net()
    assert [p.name for p in net.parameters()] == ["rows.0", "rows.1", "named.w"]
    assert net.rows[0].type.shape == (3, 2)
    net.named["v"] = net.named.setdefault("w", None)
    assert len(net.parameters()) == 3
    net.float()
    assert net.rows[1].type.dtype == "float32"
    assert nn.summary(net, (1, 3)).parameters == 12
    for wrong in ("x", nn.ReLU(), None):
        with pytest.raises(InputError, match="ParameterList: wanted a shared variable"):
            net.rows.append(wrong)


# -- names ---------------------------------------------------------------------------------------


def network():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LSTM(8, 3, 1))


def names(net):
    return [v.name for v in (*net.parameters(), *net.named_buffers().values())]


def test_variables_have_the_names_of_files():
    net = network()
    assert names(net) == list(net.state_dict())
    assert names(net)[-1] == "1.running_var"
    buffer = io.StringIO()
    symdnn.dprint(net[0](T.ftensor4("x")), file=buffer)
    assert "0.weight" in buffer.getvalue()


def test_a_part_alone_changes_no_name():
    net = network()
    net[0](T.ftensor4("x"))
    assert net[0].weight.name == "0.weight"
    assert list(net[0].named_parameters().keys()) == ["weight", "bias"]
    assert net[0].weight.name == "0.weight"


def test_the_largest_network_names():
    block = nn.Sequential(nn.Linear(2, 2))
    assert block[0].weight.name == "0.weight"
    net = nn.Sequential(nn.ReLU(), block)
    assert block[0].weight.name == "1.0.weight"
    other = nn.Sequential(block)
    assert block[0].weight.name == "1.0.weight"  # the first one has it
    del net
    gc.collect()
    other.parameters()
    assert block[0].weight.name == "0.0.weight"


def test_names_that_the_user_gave_stay():
    net = Heads([], [])
    net.mine = symdnn.shared(np.ones(2), name="gamma")
    net.other = symdnn.shared(np.ones(2))
    outer = nn.Sequential(net)
    net.other.name = "renamed"
    outer.parameters()
    assert [v.name for v in (net.mine, net.other)] == ["gamma", "renamed"]
    assert list(outer.named_parameters().keys()) == ["0.mine", "0.other"]


@pytest.mark.parametrize("copied", [lambda n: n.clone(), copy.deepcopy,
                                    lambda n: pickle.loads(pickle.dumps(n))])  # fmt: skip
def test_names_of_copies(copied):
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    other = copied(net)
    other[0](T.fmatrix())
    assert other[0][0].weight.name == "0.0.weight"
    grown = nn.Sequential(nn.ReLU(), nn.ReLU(), other)
    assert other[0][0].weight.name == "2.0.0.weight"
    assert [p.name for p in grown.parameters()] == ["2.0.0.weight", "2.0.0.bias"]


def test_names_of_gradients_and_errors():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    loss = net[0](T.fmatrix("x")).sum()
    with pytest.raises(symdnn.errors.DisconnectedInput, match=r"depend on 1\.weight"):
        T.grad(loss, net.parameters())


def test_optimisers_state_keeps_its_names_for_lists_of_variables():
    net = nn.Sequential(nn.Linear(2, 2))
    loss = net(T.fmatrix("x")).sum()
    state = nn.optim.sgd(loss, net.parameters(), momentum=0.9).state
    assert list(state) == ["sgd.0.weight.velocity", "sgd.1.bias.velocity"]
    state = nn.optim.sgd(loss, net, momentum=0.9).state
    assert list(state) == ["sgd.0.weight.velocity", "sgd.0.bias.velocity"]


def test_files_of_lists_of_variables_keep_their_keys(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2))
    symdnn.io.save_parameters(tmp_path / "a.npz", net.parameters())
    assert list(symdnn.io.load_parameters(tmp_path / "a.npz")) == ["weight", "bias"]
    into = {p.name: p for p in net.parameters()}
    before = net.state_dict()
    for p in net.parameters():
        p.zero()
    symdnn.io.load_parameters(tmp_path / "a.npz", into)
    np.testing.assert_array_equal(net[0].weight.get_value(), before["0.weight"])
    both = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    symdnn.io.save_parameters(tmp_path / "b.npz", both.parameters())
    assert list(symdnn.io.load_parameters(tmp_path / "b.npz")) == list(both.state_dict())


def test_rows_of_a_summary_have_names_relative_to_the_row_around_them():
    class Block(nn.Module):
        def __init__(self):
            self.convs = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)])
            self.norms = {"a": nn.BatchNorm2d(4)}

        def forward(self, x):
            for conv in self.convs:
                x = self.norms["a"](conv(x))
            return x

    table = nn.summary(nn.Sequential(Block()), (1, 3, 8, 8)).table()
    for name in ("(0) nn.Block", "(convs.0) nn.Spatial", "(convs.1)", "(norms.a)"):
        assert name in table
