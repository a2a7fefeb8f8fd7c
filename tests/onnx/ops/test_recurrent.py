"""Recurrent nodes: which become one op, and that they compute what loops over steps compute."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.target import Target
from symdnn.onnx import load
from symdnn.onnx.ops import recurrent
from symdnn.ops.array.join import Join
from symdnn.ops.nn.rnn import RNNForward
from symdnn.ops.vendor.gpudnn_rnn import GpuDnnRNNOp
from tests.compile.program.test_parameter_cache import kept_of
from tests.onnx.models import model

STEPS, BATCH, FEATURES, HIDDEN = 5, 3, 4, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def network(op, attributes="", lengths=None, layout=0, states=False, dtype=None):
    """A graph with one recurrent node of random weights, and an array for its input."""
    rng = np.random.default_rng(0)
    d = 2 if "bidirectional" in attributes else 1
    g = GATES[op]

    def made(*shape):
        return rng.normal(size=shape).astype("float32") * 0.4

    arrays = {"w": made(d, g * HIDDEN, FEATURES), "r": made(d, g * HIDDEN, HIDDEN),
              "b": made(d, 2 * g * HIDDEN)}  # fmt: skip
    names = ["x", "w", "r", "b"]
    names.append("n" if lengths is not None else "")
    if lengths is not None:
        arrays["n"] = np.array(lengths, "int32")
    outs = ["y", "h"] + ["c"] * (op == "LSTM")
    if states:
        for name in ["h0", "c0"][: len(outs) - 1]:
            arrays[name] = made(*((BATCH, d, HIDDEN) if layout else (d, BATCH, HIDDEN)))
            names.append(name)
    sizes = f"{BATCH}, steps" if layout else f"steps, {BATCH}"
    options = ", ".join(filter(None, [f"hidden_size={HIDDEN}", f"layout={layout}", attributes]))
    text = (f"g (float[{sizes}, {FEATURES}] x) => ({', '.join('float ' + o for o in outs)}) "
            f"{{ {', '.join(outs)} = {op} <{options}> ({', '.join(names)}) }}")  # fmt: skip
    x = made(*((BATCH, STEPS) if layout else (STEPS, BATCH)), FEATURES)
    return load(model(text, **arrays), dtype=dtype), x


def ops_of(outputs):
    found, waiting = set(), list(outputs)
    while waiting:
        v = waiting.pop()
        if v.owner is not None and v.owner not in found:
            found.add(v.owner)
            waiting += v.owner.inputs
    return [n.op for n in found]


def is_whole(graph):
    return any(isinstance(op, RNNForward) for op in ops_of(graph.expressions.values()))


def values_and_gradient(graph, x):
    v = graph.variables["x"]
    outs = list(graph.expressions.values())
    cost = sum((T.sqr(o) * (i + 1)).sum() for i, o in enumerate(outs))
    params = [v, *graph.trainable]
    f = symdnn.function([v], [*outs, *symdnn.grad(cost, params)], mode="FAST_COMPILE")
    return f(x)


VARIANTS = [
    ("LSTM", {}),
    ("LSTM", {"attributes": 'direction="bidirectional"', "states": True}),
    ("LSTM", {"attributes": 'direction="reverse"', "layout": 1, "states": True}),
    ("LSTM", {"attributes": 'direction="bidirectional"', "lengths": [5, 0, 2]}),
    ("GRU", {"attributes": "linear_before_reset=1", "states": True}),
    ("GRU", {"attributes": 'linear_before_reset=1, direction="bidirectional"', "layout": 1}),
    ("RNN", {"lengths": [1, 5, 3], "states": True}),
    ("RNN", {"attributes": 'activations=["Relu", "Relu"], direction="bidirectional"'}),
]


def test_one_op_has_the_values_and_gradients_of_loops(monkeypatch):
    for op, options in VARIANTS:
        graph, x = network(op, **options)
        assert is_whole(graph), (op, options)
        found = values_and_gradient(graph, x)
        with monkeypatch.context() as patch:
            patch.setattr(recurrent, "by_whole_network", lambda *args: None)
            loops, _ = network(op, **options)
            assert not is_whole(loops)
            wanted = values_and_gradient(loops, x)
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=f"{op} {options}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_one_op_in_16_bits_computes_in_float32(dtype):
    """Its sums and states are those of float32. What goes in and out is rounded, and in bfloat16 a
    state where it is multiplied."""
    for op, options in VARIANTS:
        wide, x = network(op, **options)
        graph, _ = network(op, **options, dtype=dtype)
        assert is_whole(graph), (op, options)
        v = graph.variables["x"]
        f = symdnn.function([v], list(graph.expressions.values()))
        wanted = symdnn.function([wide.variables["x"]], list(wide.expressions.values()))(x)
        for a, b in zip(f(x.astype(v.type.numpy)), wanted):
            assert a.dtype == v.type.numpy
            np.testing.assert_allclose(a.astype("float32"), b, atol=2e-2, err_msg=f"{op} {options}")


def test_a_network_in_16_bits_has_kernels_on_the_cpu():
    graph, x = network("LSTM", dtype="bfloat16")
    f = symdnn.function([graph.variables["x"]], list(graph.expressions.values()))
    f(x.astype("bfloat16"))
    kinds = {type(n.op): n.op for n in f.fgraph.nodes}
    assert kinds[RNNForward].rounds_states
    assert "llvm.recurrent" in f.lowering_report().kernels()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_network_in_16_bits_is_cudnns_on_a_gpu(dtype):
    """In bfloat16, which cuDNN has for recurrent networks since 9.13, with casts before."""
    graph, _ = network("LSTM", dtype=dtype)
    for cudnn in ((9, 0), (9, 13)):
        mode = symdnn.Mode(target=Target("cuda", 0, (9, 0), cudnn=cudnn))
        f = symdnn.function([graph.variables["x"]], list(graph.expressions.values()), mode=mode)
        (node,) = [n for n in f.fgraph.nodes if "RNN" in type(n.op).__name__]
        assert isinstance(node.op, GpuDnnRNNOp)
        wide = dtype == "bfloat16" and cudnn < (9, 13)
        assert node.inputs[1].type.dtype == ("float32" if wide else dtype)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("LSTM", "input_forget=1"),
        ("LSTM", "clip=0.5"),
        ("LSTM", 'activations=["HardSigmoid", "Tanh", "Tanh"]'),
        ("GRU", ""),
        ("RNN", 'activations=["Tanh", "Relu"], direction="bidirectional"'),
    ],
)
def test_other_cells_stay_loops(op, attributes):
    graph, _ = network(op, attributes)
    assert not is_whole(graph)


def test_a_reversed_network_with_lengths_stays_a_loop():
    """Its sequences begin at their own last steps, which RNNForward has for two directions only."""
    graph, _ = network("LSTM", 'direction="reverse"', lengths=[5, 0, 2])
    assert not is_whole(graph)


def test_a_wrong_number_of_activations_is_named():
    from symdnn.errors import ModelError

    graph, _ = network("LSTM", 'activations=["Sigmoid", "Tanh"]')
    with pytest.raises(ModelError, match="2 activations: wanted 3"):
        assert graph.expressions


def test_weights_are_packed_once():
    """The vector of parameters is computed when they change, not at each call."""
    graph, x = network("GRU", "linear_before_reset=1")
    f = symdnn.function([graph.variables["x"]], list(graph.expressions.values()))
    first = f(x)[0]
    assert any(isinstance(n.op, Join) for n in kept_of(f))
    w = graph.parameters["w"]
    w.set_value(w.get_value() * 2)
    assert not np.allclose(f(x)[0], first)
