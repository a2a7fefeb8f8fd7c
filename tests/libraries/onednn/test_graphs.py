"""Graphs for a CPU with oneDNN: lowered ops, layouts, fusion; values."""

from itertools import pairwise

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.onednn import library
from symdnn.graph.target import Target
from symdnn.ops.nn.channels_last import Reorder
from symdnn.ops.nn.conv import Conv
from symdnn.ops.vendor.conv_moments import OneDnnConvMoments
from symdnn.ops.vendor.onednn import OneDnnBase, OneDnnConv, OneDnnConvolution, OneDnnMatmul
from tests.seeded import new_rng

pytestmark = pytest.mark.cpu
ONEDNN = Target("cpu", onednn=(3, 2, 0), isa="AVX-512", threads=2)
needs_onednn = pytest.mark.skipif(bool(library.problem()), reason="oneDNN is not installed")


def compiled(inputs, outputs, target=ONEDNN, **words):
    mode = symdnn.Mode(target=target, **words.pop("mode", {}))
    return symdnn.function(inputs, outputs, mode=mode, **words)


def ops_of(f, kind=OneDnnBase):
    return [n.op for n in f.fgraph.toposort() if isinstance(n.op, kind)]


def net(rng, channels=(3, 8, 5), batch_norm=True):
    """(x, t, loss, parameters): two convolutions with pooling and batch norm between them."""
    x, t = T.ftensor4("x"), T.ivector("t")
    ps = []
    h = x
    for a, b in pairwise(channels):
        w = symdnn.shared((rng.normal(size=(b, a, 3, 3)) * 0.3).astype("f"), name=f"w{b}")
        c = symdnn.shared(rng.normal(size=b).astype("f"), name=f"b{b}")
        ps += [w, c]
        h = T.nnet.conv2d(h, w) + c.dimshuffle("x", 0, "x", "x")
        if batch_norm:
            g, k = (symdnn.shared(rng.uniform(0.5, 1, size=b).astype("f")) for _ in range(2))
            ps += [g, k]
            h = T.nnet.batch_normalization_train(h, g, k, axes="spatial")[0]
        h = T.tanh(T.signal.pool.pool_2d(h, (2, 2), ignore_border=True))
    v = symdnn.shared((rng.normal(size=(channels[-1] * 4, 10)) * 0.3).astype("f"), name="v")
    p = T.nnet.softmax(T.dot(h.flatten(2), v))
    return x, t, T.nnet.categorical_crossentropy(p, t).mean(), [*ps, v]


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_net_works_on_images_with_channels_last(batch_norm):
    x, t, loss, ps = net(new_rng(), batch_norm=batch_norm)
    f = compiled([x, t], T.grad(loss, ps))
    with_moments = [o.conv for o in ops_of(f, OneDnnConvMoments)]
    assert len(with_moments) == 2 * batch_norm
    images = [o for o in ops_of(f) if not isinstance(o, OneDnnMatmul)] + with_moments
    assert len(ops_of(f, OneDnnConvolution)) + len(with_moments) == 5  # none for inputs
    assert all(o.layout == "NHWC" for o in images)
    assert len(ops_of(f, Reorder)) <= 3  # the images, and both ways at the dense layer


def alike(a, b):
    return np.allclose(a, b, rtol=1e-3, atol=2e-4 * max(np.abs(b).max(), 0.01))


@needs_onednn
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("channels", [(3, 8, 5), (1, 16, 32)])
def test_gradients_are_those_without_onednn(rng, batch_norm, channels):
    x, t, loss, ps = net(rng, channels, batch_norm)
    fast, plain = (compiled([x, t], [loss, *T.grad(loss, [*ps, x])], target)
                   for target in ("cpu", Target("cpu")))  # fmt: skip
    for _ in range(20):
        images = rng.normal(size=(6, channels[0], 14, 14)).astype("f")
        labels = np.arange(6, dtype="int32")
        want = plain(images, labels)
        noise = [rng.normal(size=images.shape) * e for e in (1e-7, 3e-7, 3e-7, 1e-6, 1e-6)]
        moved = [plain((images + n).astype("f"), labels) for n in noise]
        if all(all(map(alike, m, want)) for m in moved):  # else rounding decides on a maximum
            assert all(map(alike, fast(images, labels), want))
            return
    raise AssertionError("no images without ties among 20")


def test_it_can_be_switched_off():
    x = T.ftensor4("x")
    y = T.nnet.conv2d(x, np.ones((2, 3, 3, 3), "float32"))
    f = symdnn.function([x], y, mode=symdnn.Mode(target=ONEDNN).excluding("onednn"))
    assert not ops_of(f)
    assert len(ops_of(f, Conv)) == 1
    assert not ops_of(compiled([x], y, Target("cpu")))


def test_double_precision_stays_with_numpy():
    x = T.dtensor4("x")
    assert not ops_of(compiled([x], T.nnet.conv2d(x, np.ones((2, 3, 3, 3)))))


def test_debugprint_names_onednn():
    x = T.ftensor4("x")
    f = compiled([x], T.nnet.conv2d(x, np.ones((2, 3, 3, 3), "float32")))
    assert "OneDnnConv{" in symdnn.printing.debugprint(f, file="str")


def test_a_bias_and_an_activation_are_taken_in():
    x, w, b = T.ftensor4("x"), T.ftensor4("w"), T.fvector("b")
    y = T.nnet.relu(T.nnet.conv2d(x, w) + b.dimshuffle("x", 0, "x", "x"))
    (op,) = ops_of(compiled([x, w, b], y), OneDnnConv)
    assert (op.bias, op.activation, op.residual) == (True, "relu", False)
    x, w = T.fmatrix("x"), T.fmatrix("w")
    (op,) = ops_of(compiled([x, w, b], T.tanh(T.dot(x, w) + b)), OneDnnMatmul)
    assert (op.bias, op.activation) == (True, "tanh")


def test_a_residual_is_taken_in():
    x, w, z = T.ftensor4("x"), T.ftensor4("w"), T.ftensor4("z")
    y = T.nnet.relu(T.nnet.conv2d(x, w) + T.nnet.conv2d(x, z))
    plain, op = ops_of(compiled([x, w, z], y), OneDnnConv)
    assert plain.is_plain
    assert (op.bias, op.activation, op.residual) == (False, "relu", True)


def test_what_is_read_again_is_not_taken_in():
    x, w = T.fmatrix("x"), T.fmatrix("w")
    h = T.dot(x, w)
    (op,) = ops_of(compiled([x, w], [T.tanh(h), h.sum()]), OneDnnMatmul)
    assert op.is_plain


@needs_onednn
def test_epilogues_have_the_same_values(rng):
    x, w, z, b = T.ftensor4("x"), T.ftensor4("w"), T.ftensor4("z"), T.fvector("b")
    y = T.nnet.sigmoid(T.nnet.conv2d(x, w) + b.dimshuffle("x", 0, "x", "x") + z)
    given = [rng.normal(size=s).astype("f") for s in ((2, 3, 6, 6), (5, 3, 3, 3), (2, 5, 4, 4), 5)]
    fast, plain = (compiled([x, w, z, b], y, target)(*given) for target in ("cpu", Target("cpu")))
    np.testing.assert_allclose(fast, plain, atol=1e-5)
