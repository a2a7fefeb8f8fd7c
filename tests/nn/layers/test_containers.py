"""Containers and tables: what they compute, how they print, what they refuse."""

import pickle

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch


class Times(nn.Module):
    """The input times a number."""

    def __init__(self, factor):
        self.factor = factor

    def forward(self, x):
        return x * self.factor

    def describe(self):
        return f"({self.factor})"


X = np.arange(24.0).reshape(2, 3, 4)


def run(module, *values):
    """The output, or the table of outputs, for a table of arrays."""
    inputs = [T.TensorType("float64", v.shape)("x") for v in values]
    out = module(inputs[0] if len(inputs) == 1 else inputs)
    return symdnn.function(inputs, out, on_unused_input="ignore")(*values)


def test_one_after_the_other():
    net = nn.Sequential(Times(2), nn.Sequential(Times(3), Times(5)))
    np.testing.assert_array_equal(run(net, X), 30 * X)
    assert net.add(Times(7)) is net
    assert (len(net), net.size(), net.get(0), net[-1].factor) == (3, 3, net[0], 7)
    assert [type(m).__name__ for m in net] == ["Times", "Sequential", "Times"]
    np.testing.assert_array_equal(run(nn.Sequential(), X), X)


def test_side_by_side():
    net = nn.ConcatTable(Times(2), nn.Identity())
    a, b = run(net, X)
    np.testing.assert_array_equal(a, 2 * X)
    np.testing.assert_array_equal(b, X)
    np.testing.assert_array_equal(run(nn.Sequential(net, nn.CAddTable()), X), 3 * X)
    a, b = run(nn.ParallelTable(Times(2), Times(3)), X, X + 1)
    np.testing.assert_array_equal(a, 2 * X)
    np.testing.assert_array_equal(b, 3 * (X + 1))
    a, b = run(nn.MapTable(Times(2)), X, X + 1)
    np.testing.assert_array_equal(b, 2 * (X + 1))


def test_joined_along_an_axis_from_0():
    net = nn.Concat(1, Times(2), Times(3))
    np.testing.assert_array_equal(run(net, X), np.concatenate([2 * X, 3 * X], 1))
    net = nn.Parallel(1, 0, Times(1), Times(2), Times(3))
    wanted = np.concatenate([X[:, 0], 2 * X[:, 1], 3 * X[:, 2]], 0)
    np.testing.assert_array_equal(run(net, X), wanted)


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (nn.CAddTable(), X + X.T.T + 2 * X), (nn.CMulTable(True), X * X * 2 * X),
        (nn.CMaxTable(), 2 * X), (nn.CMinTable(), X),
        (nn.JoinTable(1), np.concatenate([X, X, 2 * X], 1)),
        (nn.JoinTable(-1), np.concatenate([X, X, 2 * X], -1)),
        (nn.JoinTable(0, 2), np.concatenate([X, X, 2 * X], 1)),
        (nn.JoinTable(-1, 2), np.concatenate([X, X, 2 * X], 2)),
        (nn.JoinTable(0, 3), np.concatenate([X, X, 2 * X], 0)),
        (nn.SelectTable(2), 2 * X), (nn.SelectTable(-3), X),
    ],
)  # fmt: skip
def test_tables_of_three(module, wanted):
    np.testing.assert_array_equal(run(module, X, X, 2 * X), wanted)


def test_tables_of_two():
    np.testing.assert_array_equal(run(nn.CSubTable(), X, 3 * X), -2 * X)
    np.testing.assert_allclose(run(nn.CDivTable(), X, X + 1), X / (X + 1))
    np.testing.assert_allclose(run(nn.MM(False, True), X, X), X @ X.transpose(0, 2, 1))
    np.testing.assert_allclose(run(nn.MM(True), X[0], X[1]), X[0].T @ X[1])
    bilinear = nn.Bilinear(4, 4, 5, dtype="float64")
    w, b = (p.get_value() for p in bilinear.parameters())
    wanted = np.einsum("ni,kij,nj->nk", X[0], w, X[1]) + b
    np.testing.assert_allclose(run(bilinear, X[0], X[1]), wanted)
    several = np.einsum("bni,kij,bnj->bnk", X, w, X[::-1]) + b
    np.testing.assert_allclose(run(bilinear, X, X[::-1]), several)


def test_parts_of_tables():
    parts = run(nn.SplitTable(1), X)
    np.testing.assert_array_equal(np.stack(parts, 1), X)
    parts = run(nn.SplitTable(0, 2), X)  # an example has two dimensions, so X is a batch
    np.testing.assert_array_equal(np.stack(parts, 1), X)
    _, b = run(nn.NarrowTable(1, 2), X, 2 * X, 3 * X)
    np.testing.assert_array_equal(b, 3 * X)
    nested = nn.Sequential(nn.ConcatTable(nn.ConcatTable(Times(1), Times(2)), Times(3)),
                           nn.FlattenTable())  # fmt: skip
    found = run(nested, X)
    assert [v[0, 0, 1] for v in found] == [1, 2, 3]


def test_arguments_may_be_a_table_too():
    x, y = T.dmatrix("x"), T.dmatrix("y")
    add = nn.CAddTable()
    a, b = symdnn.function([x, y], [add(x, y), add([x, y])])(X[0], X[1])
    np.testing.assert_array_equal(a, b)


def test_the_readme_of_cudnn_torch():
    net = nn.Sequential()
    net.add(nn.SpatialConvolution(3, 96, 11, 11, 3, 3))
    net.add(nn.ReLU())
    nn.convert(net, "cudnn")
    assert str(net) == (
        "nn.Sequential {\n"
        "  [input -> (0) -> (1) -> output]\n"
        "  (0): cudnn.SpatialConvolution(3 -> 96, 11x11, 3,3)\n"
        "  (1): cudnn.ReLU\n"
        "}"
    )


def test_forks_print_as_in_torch7():
    fork = nn.ConcatTable(
        nn.Sequential(nn.Linear(4, 2), nn.Tanh()), nn.Concat(1, nn.View(4), nn.Reshape(2, 2))
    )
    assert repr(nn.Sequential(fork, nn.CAddTable(True))) == (
        "nn.Sequential {\n"
        "  [input -> (0) -> (1) -> output]\n"
        "  (0): nn.ConcatTable {\n"
        "    input\n"
        "      |`-> (0): nn.Sequential {\n"
        "      |      [input -> (0) -> (1) -> output]\n"
        "      |      (0): nn.Linear(4 -> 2)\n"
        "      |      (1): nn.Tanh\n"
        "      |    }\n"
        "       `-> (1): nn.Concat {\n"
        "             input\n"
        "               |`-> (0): nn.View(4)\n"
        "                `-> (1): nn.Reshape(2x2)\n"
        "                ... -> output\n"
        "           }\n"
        "       ... -> output\n"
        "  }\n"
        "  (1): nn.CAddTable\n"
        "}"
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: nn.Concat("1", Times(2)), InputError, "Concat: dim=.1.; wanted an int"),
        (lambda x: nn.Concat(1)(x), InputError, "there are no modules"),
        (lambda x: nn.Sequential(3), InputError, "modules=3; wanted a module"),
        (lambda x: nn.ParallelTable(Times(2))([x, x]), TypeMismatch, "a table of 1, one for each"),
        (lambda x: nn.ParallelTable(Times(2))(x), TypeMismatch, "wanted a table"),
        (lambda x: nn.MapTable(Times(2), Times(3))([x]), InputError, "wanted one module"),
        (lambda x: nn.Parallel(5, 0, Times(2))(x), TypeMismatch, "a tensor with an axis 5"),
        (lambda x: nn.Parallel(1, 0, Times(2))(x), TypeMismatch, "1 slices, one for each module"),
        (lambda x: nn.CAddTable()(x), TypeMismatch, "CAddTable: wanted a table"),
        (lambda x: nn.CSubTable()([x, x, x]), TypeMismatch, "CSubTable: wanted a table of 2"),
        (lambda x: nn.MM()([x, x, x]), TypeMismatch, "MM: wanted a table of two"),
        (lambda x: nn.SelectTable(2)([x, x]), InputError, "the table has 2 entries"),
        (lambda x: nn.NarrowTable(1, 2)([x, x]), InputError, "the table has 2 entries"),
        (lambda x: nn.JoinTable(7)([x, x]), TypeMismatch, "tensors with an axis 7"),
        (lambda x: nn.SplitTable(0)(T.vector()), TypeMismatch, "size on axis 0 is known"),
        (lambda x: nn.Bilinear(3, 4, 5)([x]), TypeMismatch, "a table of two arrays"),
    ],
)
def test_what_does_not_fit(call, error, message):
    with pytest.raises(error, match=message):
        call(T.TensorType("float32", (2, 3, 4))("x"))


class Dense(nn.Sequential):
    """A layer as PyTorch's DenseNet writes it."""

    def __init__(self, features, growth):
        super().__init__()
        self.add_module("relu", nn.ReLU())
        self.add_module("fc", nn.Linear(features, growth))

    def forward(self, x):
        return T.cat([x, super().forward(x)], 1)


@pytest.mark.parametrize("way", ["dict", "add_module"])
def test_named_modules_are_run_in_their_order_and_saved_under_their_names(way):
    parts = {"fc": nn.Linear(4, 3), "dense": Dense(3, 2), "last": nn.Tanh()}
    net = nn.Sequential(parts if way == "dict" else {})
    for name, part in parts.items() if way != "dict" else ():
        net.add_module(name, part)
    x = T.dmatrix()
    plain = nn.Sequential(*parts.values())
    found, wanted = symdnn.function([x], [net(x), plain(x)])(np.ones((2, 4)))
    np.testing.assert_array_equal(found, wanted)
    assert found.shape == (2, 5)
    assert list(net.state_dict()) == ["fc.weight", "fc.bias", "dense.fc.weight", "dense.fc.bias"]
    assert list(net.children().keys()) == list(parts)
    assert net.dense.fc is parts["dense"][1]
    copied = pickle.loads(pickle.dumps(net))
    assert list(copied.state_dict()) == list(net.state_dict())
    assert copied.fc is copied[0]


def test_named_modules_are_replaced_moved_and_left_out():
    net = nn.Sequential({"a": nn.Linear(2, 3), "b": nn.ReLU()})
    net.add_module("a", nn.Linear(2, 4))
    assert net[0].weight.get_value().shape == (4, 2)
    assert len(net) == 2
    net.insert(0, nn.Identity())
    net.append(nn.Linear(4, 1))
    assert list(net.children().keys()) == ["0", "a", "b", "3"]
    assert list(net[1:3].children().keys()) == ["a", "b"]
    del net[1]
    assert list(net.children().keys()) == ["0", "b", "2"]
    assert not hasattr(net, "a")
    for name in ("", "a.b", "modules"):
        with pytest.raises(InputError, match="wanted a module's name"):
            net.add_module(name, nn.ReLU())
