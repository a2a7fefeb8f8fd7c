"""Networks in 8 bits after training: accuracy, memory, files, fine-tuning, errors."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, OptionError
from symdnn.graph.target import Target
from symdnn.nn.quantization.ranges import Observer, parameters
from tests.opt.lowering import rewritten

X = T.tensor("float32", ("batch", 1, 8, 8), name="x")


def draw(n, seed):
    """Images of bars: their label is the row or column of the bar."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 16, n).astype("int32")
    images = rng.standard_normal((n, 1, 8, 8)).astype("float32") * 0.4
    for image, label in zip(images, labels):
        if label < 8:
            image[0, label] += 1
        else:
            image[0, :, label - 8] += 1
    return images, labels


TEST, WANTED = draw(500, 1)


@cache
def trained():
    """A small network with batch normalisation, trained on bars."""
    net = nn.Sequential(
        nn.SpatialConvolution(1, 8, 3, 3, 1, 1, 1, 1),
        nn.SpatialBatchNormalization(8),
        nn.ReLU(),
        nn.SpatialConvolution(8, 16, 3, 3, 2, 2, 1, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 16),
    )
    labels = T.ivector("labels")
    loss = T.nnet.softmax_crossentropy(net.train()(X), labels).mean()
    params = net.parameters()
    step = symdnn.function([X, labels], loss, updates=nn.optim.adam(loss, params, 3e-3))
    for k in range(60):
        step(*draw(64, 100 + k))
    return net, symdnn.function([X], net.evaluate()(X))


def accuracy(f):
    return float((np.asarray(f(TEST)).argmax(1) == WANTED).mean())


def data():
    return [draw(100, 7 + k)[0] for k in range(2)]


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_accuracy_is_that_of_floats(method):
    net, plain = trained()
    q = nn.quantize(net, data(), inputs=[X], method=method)
    assert accuracy(plain) > 0.9
    assert accuracy(q.function()) >= accuracy(plain) - 0.01


def test_accuracy_of_float8():
    net, plain = trained()
    f = nn.quantize(net, data(), inputs=[X], kind="float8_e4m3fn").function()
    assert accuracy(f) >= accuracy(plain) - 0.01


def test_layers_and_what_is_left_out():
    net, _ = trained()
    q = nn.quantize(net, data(), inputs=[X])
    assert [layer.op for layer in q.layers] == ["Conv", "Conv", "Dot"]
    assert [layer.weights.shape for layer in q.layers] == [(8,), (16,), (16,)]
    some = nn.quantize(net, data(), inputs=[X], skip=["6.*"], per_channel=False)
    assert [layer.weights.shape for layer in some.layers] == [(), ()]


def test_batch_norm_is_folded_and_weights_take_8_bits():
    net, _ = trained()
    f = nn.quantize(net, data(), inputs=[X]).function()
    names = {type(n.op).__name__ for n in f.fgraph.nodes}
    assert "BatchNormInference" not in names
    assert "OneDnnBatchNormInference" not in names
    stored = [v.get_value() for v in f.get_shared() if v.name.endswith(".codes")]
    assert [v.dtype for v in stored] == [np.dtype("int8")] * 3


def test_it_is_saved_as_a_function_and_as_onnx(tmp_path):
    pytest.importorskip("onnx")
    import symdnn.onnx

    net, _ = trained()
    q = nn.quantize(net, data(), inputs=[X])
    want = q.function()(TEST)
    symdnn.save(q.function(), tmp_path / "q.symdnn")
    assert np.array_equal(symdnn.load(tmp_path / "q.symdnn")(TEST), want)
    model = symdnn.onnx.save({"scores": q(X)}, tmp_path / "q.onnx")
    ops = [n.op_type for n in model.graph.node]
    assert ops.count("DequantizeLinear") == 6
    again = symdnn.onnx.compile(tmp_path / "q.onnx")(x=TEST)["scores"]
    assert np.abs(again - want).max() < 0.05


def test_fine_tuning_changes_the_stored_weights():
    net, _ = trained()
    q = nn.quantize(net, data(), inputs=[X], method="minmax")
    labels = T.ivector("labels")
    loss = T.nnet.softmax_crossentropy(q.training(X), labels).mean()
    params = [p for p in net.parameters() if p in q.parameters]
    values = [p.get_value() for p in params]
    step = symdnn.function([X, labels], loss, updates=nn.optim.sgd(loss, params, 0.02))
    batch = draw(64, 3)
    losses = [float(step(*batch)) for _ in range(8)]
    assert losses[-1] < losses[0]
    before = q.function()(TEST)
    q.store()
    assert np.abs(q.function()(TEST) - before).max() > 0
    for p, value in zip(params, values):
        p.set_value(value)


def test_an_expression_of_two_inputs():
    a, b = T.fmatrices("a", "b")
    q = nn.quantize(T.dot(a, b), [(np.ones((2, 3), "f4"), np.ones((3, 4), "f4"))], inputs=[a, b])
    got = q.function()(np.ones((2, 3), "float32"), np.ones((3, 4), "float32"))
    assert np.abs(got - 3).max() < 0.05


def test_errors_say_what_is_wanted():
    net, _ = trained()
    with pytest.raises(InputError, match="no batch"):
        nn.quantize(net, [], inputs=[X])
    with pytest.raises(InputError, match="inputs="):
        nn.quantize(net, data())
    with pytest.raises(OptionError, match="minmax"):
        nn.quantize(net, data(), inputs=[X], method="mean")
    with pytest.raises(OptionError, match="int8"):
        nn.quantize(net, data(), inputs=[X], kind="int5")
    with pytest.raises(InputError, match="no convolution"):
        nn.quantize(X * 2, data(), inputs=[X])


def test_zero_is_exact_and_ranges_include_it():
    seen = Observer()
    seen.see(np.linspace(0.5, 3, 100))
    scale, zero = parameters(seen, "int8", "minmax", 99, symmetric=False)
    assert zero == -128
    assert scale == pytest.approx(3 / 255)
    scale, zero = parameters(seen, "int8", "minmax", 99, symmetric=True)
    assert (zero, scale) == (0, pytest.approx(3 / 127))


def test_an_outlier_stretches_the_range_of_minmax_alone():
    seen = Observer()
    seen.see(np.append(np.random.default_rng(0).standard_normal(9999), 1000.0))
    found = {m: parameters(seen, "int8", m, 99.9, True)[0] for m in ("minmax", "percentile")}
    assert found["percentile"] * 100 < found["minmax"]
    assert parameters(seen, "int8", "entropy", 99.9, True)[0] < found["minmax"]


def test_residual_blocks_pass_codes_alone():
    def block(v, stride):
        layers = [nn.SpatialConvolution(16, 16, 3, 3, s, s, 1, 1) for s in (stride, 1)]
        norms = [nn.SpatialBatchNormalization(16).evaluate() for _ in layers]
        h = T.nnet.relu(norms[0](layers[0](v)))
        side = v if stride == 1 else nn.SpatialConvolution(16, 16, 1, 1, 2, 2)(v)
        return T.nnet.relu(norms[1](layers[1](h)) + side)

    x = T.tensor("float32", ("batch", 16, 8, 8), name="x")
    y = block(block(block(x, 1), 2), 1)
    value = np.random.default_rng(0).standard_normal((2, 16, 8, 8)).astype("float32")
    q = nn.quantize(y, [value], inputs=[x])
    vnni = Target("cpu", onednn=(3, 2), isa="AVX-512 VNNI")
    ops = [n.op for n in rewritten([x], [q(x)], vnni).toposort()]
    products = [op.op for op in ops if type(op).__name__ == "OneDnnQuantized"]
    assert len(products) == 7
    assert [p.out for p in products].count("float32") == 1  # the result
    assert sum("z" in p.terms for p in products) == 2
    want = symdnn.function([x], y)(value)
    assert np.abs(q.function()(value) - want).max() < 0.05 * np.abs(want).max()
