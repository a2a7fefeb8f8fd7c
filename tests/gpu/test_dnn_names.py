"""Names that are private in Theano's ``dnn`` module; windows that are known in a call only."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.errors import TypeMismatch
from symdnn.gpu import dnn, libcudnn
from symdnn.ops.nn.pool import Pool
from tests.gpu.with_cudnn import real_cudnn  # noqa: F401

CPU = Mode(target="cpu")


def draw(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype("float32")


# -- convolutions that are added to something -----------------------------------------------------


def test_a_convolution_scaled_and_added():
    x, w, out = T.tensor4("x"), T.tensor4("w"), T.tensor4("out")
    y = dnn._dnn_conv(x, w, 0.5, -2.0, out, border_mode="half")
    f = symdnn.function([x, w, out], [y, dnn.dnn_conv(x, w, "half")], mode=CPU)
    add = draw(2, 4, 5, 6, seed=1)
    made, plain = f(draw(2, 3, 5, 6), draw(4, 3, 3, 3), add)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, 0.5 * plain - 2 * add, rtol=1e-4, atol=1e-4)


def test_its_gradients_scaled_and_added():
    x, w, dy = T.tensor4("x"), T.tensor4("w"), T.tensor4("dy")
    dw = dnn._dnn_gradweight(x, dy, w.shape, 2.0, 1.0, w)
    dx = dnn._dnn_gradinput(w, dy, x.shape, 3.0, -1.0, x)
    plain = dnn.dnn_gradweight(x, dy, w.shape), dnn.dnn_gradinput(w, dy, x.shape)
    f = symdnn.function([x, w, dy], [dw, dx, *plain], mode=CPU)
    a, b, c = draw(2, 3, 5, 6), draw(4, 3, 3, 3), draw(2, 4, 3, 4)
    got_w, got_x, plain_w, plain_x = f(a, b, c)
    np.testing.assert_allclose(got_w, 2 * plain_w + b, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got_x, 3 * plain_x - a, rtol=1e-4, atol=1e-4)


def test_one_call_of_cudnn_adds_it():
    x, w, out = T.tensor4("x"), T.tensor4("w"), T.tensor4("out")
    y = dnn._dnn_conv(x, w, 0.5, 1.0, out)
    f = symdnn.function([x, w, out], y, mode=Mode(target="cuda:sm_90"))
    (conv,) = (n.op for n in f.fgraph.nodes if isinstance(n.op, dnn.GpuDnnConv))
    assert (conv.alpha, conv.beta) == (0.5, 1.0)


def test_beta_needs_something_to_add():
    x, w = T.tensor4("x"), T.tensor4("w")
    with pytest.raises(ValueError, match="_dnn_conv: beta=1 needs out"):
        dnn._dnn_conv(x, w, 1, 1)
    assert dnn._dnn_conv(x, w).owner.op == dnn.dnn_conv(x, w).owner.op


# -- recurrent networks as descriptors ------------------------------------------------------------


@pytest.mark.parametrize("mode", ["rnn_relu", "lstm", "gru"])
@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
def test_a_descriptor_of_a_net(mode, direction):
    ddesc = dnn._DropoutDescriptor(None)(0.0, 42)
    desc = dnn._RNNDescriptor(None)(6, 2, ddesc, "linear", direction, mode, "float32")
    block = dnn.RNNBlock("float32", 6, 2, mode, direction_mode=direction)
    size = dnn._RNNParamSize(None)(desc, [3, 5])
    assert int(size.eval()) == block.get_param_size([3, 5])
    w = symdnn.shared(draw(block.get_param_size(5)))
    for layer in range(2 * (1 + (direction == "bidirectional"))):
        parts = dnn._RNNSplitParams(mode)(w, desc, layer, [3, 5])
        wanted = block.split_params(w, layer, [3, 5])
        for a, b in zip(symdnn.function([], parts, mode=CPU)(), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("mode", "direction"), [("lstm", "unidirectional"), ("gru", "bidirectional")]
)
def test_a_net_by_hand_of_a_descriptor(mode, direction):
    """Theano's order of results; the values and gradients are those of RNNBlock."""
    ddesc = dnn._DropoutDescriptor(None)(0.0, 42)
    desc = dnn._RNNDescriptor(None)(6, 2, ddesc, "linear", direction, mode, "float32")
    block = dnn.RNNBlock("float32", 6, 2, mode, direction_mode=direction)
    w, x, h = T.fvector("w"), T.ftensor3("x"), T.ftensor3("h")
    cells = [h * 2] if mode == "lstm" else []
    reserve, *ours = dnn.GpuDnnRNNOp(mode, direction)(desc, w, x, h, *cells)
    assert isinstance(ours[0].owner.op, dnn.GpuDnnRNNOp)
    assert reserve.owner is ours[0].owner
    results = []
    for outputs in (ours, block.apply(w, x, h, *cells)):
        loss = sum((o**2).sum() for o in outputs)
        results.append(symdnn.function([w, x, h], [*outputs, *T.grad(loss, [w, x, h])], mode=CPU))
    layers = 2 * (1 + (direction == "bidirectional"))
    args = draw(block.get_param_size(5)), draw(4, 3, 5), draw(layers, 3, 6)
    for a, b in zip(results[0](*args), results[1](*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="rnn_mode='rnn_tanh', but the descriptor's is"):
        dnn.GpuDnnRNNOp("rnn_tanh", direction)(desc, w, x, h)


def test_a_descriptor_of_no_net():
    ddesc = dnn._DropoutDescriptor(None)(0.0, 42)
    with pytest.raises(ValueError, match="rnn_mode"):
        dnn._RNNDescriptor(None)(6, 2, ddesc, "linear", "unidirectional", "elman", "float32")


# -- the library ----------------------------------------------------------------------------------


def test_words_of_the_enums():
    assert set(dnn.cudnn.cudnnPoolingMode_t.get_aliases()) >= {"max", "average_exc_pad"}
    for name in ("Pooling", "Convolution", "Softmax"):
        aliases = getattr(dnn.cudnn, f"cudnn{name}Mode_t")
        for word, member in aliases.words.items():
            assert int(getattr(aliases, member)) == int(getattr(libcudnn, aliases.enum)[member])
            assert word in aliases.get_aliases()
    with pytest.raises(AttributeError):
        dnn.cudnn.cudnnPoolingMode_t.other  # noqa: B018


def test_what_the_library_says(real_cudnn):  # noqa: F811
    headers, library = dnn.DnnVersion()()
    assert headers >= 90000
    assert library == dnn.version() == dnn.cudnn.version
    assert dnn._dnn_lib() is real_cudnn.cdll
    assert dnn._dnn_check_compile() == dnn._dnn_check_version() == (True, "")
    assert dnn.handle_type == dnn.CUDNNDataType("cudnnHandle_t", "cudnnDestroy")


# -- windows that are known in a call only --------------------------------------------------------

MODES = ["max", "average_inc_pad", "average_exc_pad", "sum"]


@pytest.mark.parametrize("mode", MODES)
def test_windows_change_between_calls(mode):
    x, ws, stride, pad = T.tensor4("x"), T.ivector("ws"), T.ivector("stride"), T.ivector("pad")
    y = dnn.dnn_pool(x, ws, stride, mode, pad)
    weight = T.tensor4("weight")
    dx = T.grad((y * weight).sum(), x)
    f = symdnn.function([x, ws, stride, pad], y, mode=CPU)
    g = symdnn.function([x, ws, stride, pad, weight], dx, mode=CPU)
    images = draw(2, 3, 9, 8)
    for how in [((2, 2), (2, 2), (0, 0)), ((3, 2), (2, 1), (1, 1)), ((1, 4), (3, 2), (0, 2))]:
        op = Pool(*how, mode, True)
        wanted = op.reference(images)
        np.testing.assert_allclose(f(images, *map(list, how)), wanted, rtol=1e-5, atol=1e-6)
        known = symdnn.function([x, weight], T.grad((op(x) * weight).sum(), x), mode=CPU)
        scale = draw(*wanted.shape, seed=1)
        np.testing.assert_allclose(
            g(images, *map(list, how), scale), known(images, scale), rtol=1e-4, atol=1e-5
        )


def test_some_sizes_are_known_and_others_are_not():
    x, k = T.tensor5("x"), T.iscalar("k")
    y = dnn.dnn_pool(x, (1, k, 2), (1, 1, k), "max")
    f = symdnn.function([x, k], y, mode=CPU)
    volumes = draw(2, 2, 3, 5, 6)
    for n in (1, 2, 3):
        wanted = Pool((1, n, 2), (1, 1, n), (0, 0, 0), "max", True).reference(volumes)
        np.testing.assert_array_equal(f(volumes, n), wanted)
    one = symdnn.function([x, k], dnn.dnn_pool(x, k), mode=CPU)
    np.testing.assert_array_equal(
        one(volumes, 2), Pool((2,) * 3, (1,) * 3, (0,) * 3, "max", True).reference(volumes)
    )


def test_nan_is_kept_and_narrow_floats_are_widened():
    x, k = T.tensor4("x", dtype="float16"), T.iscalar("k")
    images = np.full((1, 1, 40, 1), 1.001, "float16")
    images[0, 0, 39] = np.nan
    y = symdnn.function([x, k], dnn.dnn_pool(x, (k, 1), mode="sum"), mode=CPU)(images, 39)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y[0, 0, 0, 0], 39 * float(images[0, 0, 0, 0]), rtol=1e-3)
    assert np.isnan(y[0, 0, 1, 0])


def test_symbolic_windows_that_are_no_integers():
    x = T.tensor4("x")
    with pytest.raises(TypeMismatch, match="ws"):
        dnn.dnn_pool(x, T.vector("ws"))
    with pytest.raises(TypeMismatch, match="ws"):
        dnn.dnn_pool(x, [T.iscalar()] * 3)


def test_windows_of_a_call_run_on_the_gpu():
    x, k = T.tensor4("x"), T.iscalar("k")
    with symdnn.config.change_flags(assert_lowered="raise"):
        symdnn.function([x, k], dnn.dnn_pool(x, k), mode=Mode(target="cuda:sm_90"))
