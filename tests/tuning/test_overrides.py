"""Algorithms by the names of layers."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config
from symdnn.errors import ConfigError, InputError, OptionError
from symdnn.gpu.conv.launch import signature
from symdnn.ops.vendor.gpudnn_conv import DnnConvolution
from symdnn.tuning import override
from symdnn.tuning.overrides import Override, algorithm_for, names_of, parse

GPU = symdnn.Mode(target="cuda:sm_90")


def trained():
    net = nn.Sequential(
        nn.SpatialConvolution(3, 8, 3, 3), nn.ReLU(), nn.SpatialConvolution(8, 4, 3, 3)
    )
    x = T.tensor4("x")
    loss = net(x).sum()
    updates = nn.optim.sgd(loss, net, 0.1)
    return symdnn.function([x], loss, updates=updates, mode=GPU)


def convolutions(f):
    return [n for n in f.fgraph.nodes if isinstance(n.op, DnnConvolution)]


@pytest.fixture(scope="module")
def f():
    return trained()


def test_layers_have_names_in_all_directions(f):
    found = {(names_of(n)[-1], n.op.direction) for n in convolutions(f)}
    assert found == {
        ("0", "fwd"), ("2", "fwd"), ("2", "bwd_data"), ("0", "bwd_filter"), ("2", "bwd_filter"),
    }  # fmt: skip
    assert all(f"{names_of(n)[-1]}.weight" in names_of(n) for n in convolutions(f))


def test_names_of_variables_and_hints():
    x, w = T.tensor4("x"), symdnn.shared(np.zeros((2, 3, 3, 3), "float32"), name="head.w")
    y = T.nnet.conv2d(x, w.astype("float64").astype("float32"), hints=symdnn.Hints(name="mine"))
    y.name = "result"
    g = symdnn.function([x], y, mode=GPU)
    (node,) = convolutions(g)
    assert {"head", "head.w", "mine"} <= set(names_of(node))


def test_the_flag_goes_before_the_others(f):
    words = "*=small; 2=large;2:bwd_filter=winograd_non_fused"
    with config.change_flags({"dnn.conv.overrides": words, "dnn.conv.algo_fwd": "none"}):
        found = {(names_of(n)[-1], n.op.direction): wanted(n) for n in convolutions(f)}
    assert found == {
        ("0", "fwd"): "small", ("2", "fwd"): "large", ("2", "bwd_data"): "large",
        ("0", "bwd_filter"): "small", ("2", "bwd_filter"): "winograd_non_fused",
    }  # fmt: skip


def wanted(node):
    return algorithm_for(node, node.op.direction)


def test_a_signature_has_it(f):
    (first,) = [n for n in convolutions(f) if n.op.direction == "bwd_filter"][:1]
    shapes = [(2, 8, 10, 10), (2, 4, 8, 8), (4, 8, 3, 3)]
    from symdnn.graph.kernel import Call

    types = [T.TensorType("float32", s) for s in shapes]
    call = Call(first.op, tuple(types[:2]), (types[2],), first.hints, first)
    with config.change_flags({"dnn.conv.overrides": "*:bwd_filter=deterministic"}):
        assert (signature(call).wanted, signature(call).named) == ("deterministic", True)
    assert signature(call).wanted != "deterministic"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("", ()),
        ("a=small", (Override("a", "small"),)),
        (" a.b* : bwd_data = fft ;; c=1\nd=none", (
            Override("a.b*", "fft", "bwd_data"), Override("c", 1), Override("d", "none"),
        )),
    ],
)  # fmt: skip
def test_texts(text, parsed):
    assert parse(text) == parsed


@pytest.mark.parametrize("text", ["a", "=small", "a=", "a:forward=small", ":fwd=small"])
def test_wrong_texts(text):
    with pytest.raises(ConfigError, match="dnn.conv.overrides.*wanted PATTERN=ALGORITHM"):
        parse(text)


def test_wrong_algorithms():
    with pytest.raises(OptionError, match="wanted one of"):
        parse("a=smal")
    with pytest.raises(OptionError, match="'deterministic' of fwd: wanted one of small"):
        parse("a:fwd=deterministic")
    assert parse("a=deterministic")  # the gradients have it


def test_override_of_one_function():
    f, other = trained(), trained()
    assert override(f, "2", algo="winograd_non_fused", direction="bwd_data") == ["2 bwd_data"]
    assert sorted(override(f, "0*", algo="fft")) == ["0 bwd_filter", "0 fwd"]
    assert {wanted(n) for n in convolutions(f)} == {None, "winograd_non_fused", "fft"}
    with config.change_flags({"dnn.conv.overrides": "*=small"}):
        assert {wanted(n) for n in convolutions(f)} == {"small", "winograd_non_fused", "fft"}
        assert {wanted(n) for n in convolutions(other)} == {"small"}
    assert override(f, "*", algo="deterministic") == [
        f"{names_of(n)[-1]} {n.op.direction}" for n in convolutions(f) if n.op.direction != "fwd"
    ]


def test_a_way_of_a_program_may_be_named(f):
    with config.change_flags({"dnn.conv.overrides": "0=least_once"}):
        assert {wanted(n) for n in convolutions(f)} == {"least_once", None}
    g = trained()
    assert override(g, "0", algo="least_once") == ["0 fwd", "0 bwd_filter"]
    with pytest.raises(OptionError, match="wanted one of"):
        override(g, "0", algo="tiem_once")


def test_override_says_what_is_wrong(f):
    with pytest.raises(InputError, match=r"fits 'conv9'.*names are 0, 0.weight, 2, 2.weight"):
        override(f, "conv9", algo="small")
    with pytest.raises(InputError, match="direction='back'"):
        override(f, "2", algo="small", direction="back")
    with pytest.raises(OptionError, match="wanted one of"):
        override(f, "2", algo="smal")
    x = T.tensor4("x")
    g = symdnn.function([x], x + 1)
    with pytest.raises(InputError, match="their names are none"):
        override(g, "*", algo="small")
