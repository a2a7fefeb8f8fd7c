"""Images that programs keep as (N, sizes, C): pooling and batch norm work on them as they lie."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.onednn import library
from symdnn.graph.target import Target
from symdnn.ops.nn.channels_last import Reorder
from symdnn.ops.vendor.onednn import (
    OneDnnBatchNorm,
    OneDnnBatchNormGrad,
    OneDnnConvolution,
    OneDnnPool,
    OneDnnPoolGrad,
)

ONEDNN = Target("cpu", onednn=(3, 2, 0), isa="AVX-512", threads=2)
needs_onednn = pytest.mark.skipif(bool(library.problem()), reason="oneDNN is not installed")
LAST = (0, 2, 3, 1)


def pooled(x):
    return T.signal.pool.pool_2d(T.nnet.relu(x), (2, 2), ignore_border=True)


def normalised(x):
    return T.nnet.bn.batch_normalization_train(
        T.tanh(x), np.ones(5, "float32"), np.zeros(5, "float32"), "spatial"
    )[0]


def forward_and_back(make, last, target, more=()):
    """A function of images and a cotangent, both with channels last or first: y and dx."""
    x, dy = T.ftensor4("x"), T.ftensor4("dy")
    a, b = ((v.dimshuffle(0, 3, 1, 2) if last else v) for v in (x, dy))
    y = make(a)
    dx = T.grad(None, a, known_grads={y: b})
    out = [v.dimshuffle(*LAST) if last else v for v in (y, dx)]
    mode = symdnn.Mode(target=target).excluding(*more)
    return symdnn.function([x, dy], out, mode=mode)


@pytest.mark.parametrize(
    ("make", "ops"),
    [(pooled, (OneDnnPool, OneDnnPoolGrad)), (normalised, (OneDnnBatchNorm, OneDnnBatchNormGrad))],
)
@pytest.mark.parametrize("last", [False, True])
def test_an_op_takes_the_order_of_its_images(make, ops, last):
    f = forward_and_back(make, last, ONEDNN, ("split_batch_norm",))
    found = [n.op for n in f.fgraph.nodes if isinstance(n.op, ops)]
    assert {type(o) for o in found} == set(ops)
    assert {o.layout for o in found} == {"NHWC" if last else "NCHW"}
    assert not any(isinstance(n.op, Reorder) for n in f.fgraph.nodes)


@needs_onednn
@pytest.mark.parametrize("make", [pooled, normalised])
def test_both_orders_have_the_same_values(rng, make):
    x = rng.normal(size=(3, 5, 6, 8)).astype("f")
    dy = rng.normal(size=(3, 5, 3, 4) if make is pooled else x.shape).astype("f")
    first = forward_and_back(make, False, Target("cpu"))(x, dy)
    last = forward_and_back(make, True, "cpu")(x.transpose(LAST), dy.transpose(LAST))
    for a, b in zip(first, last, strict=True):
        np.testing.assert_allclose(b.transpose(0, 3, 1, 2), a, rtol=1e-4, atol=1e-5)


def alone(way):
    """A function of one convolution in one direction, images in the program's order."""
    x, w, y = (T.ftensor4(n) for n in "xwy")
    grads = T.nnet.abstract_conv
    if way == "forward":
        out = T.nnet.conv2d(x, w, border_mode=1)
    elif way == "images":
        out = grads.conv2d_grad_wrt_inputs(y, w, (2, 16, 6, 6), border_mode=1)
    else:
        out = grads.conv2d_grad_wrt_weights(x, y, (16, 16, 3, 3), border_mode=1)
    return [x, w, y], out


@pytest.mark.parametrize("way", ["forward", "images", "kernels"])
def test_a_convolution_alone_changes_the_order_itself(way):
    words = {"mode": symdnn.Mode(target=ONEDNN), "on_unused_input": "ignore"}
    f = symdnn.function(*alone(way), **words)
    (op,) = [n.op for n in f.fgraph.nodes if isinstance(n.op, OneDnnConvolution)]
    assert op.layout == "NCHW"
    assert not any(isinstance(n.op, Reorder) for n in f.fgraph.nodes)
    x, w, _ = (T.ftensor4(n) for n in "xwy")
    two = T.nnet.conv2d(T.nnet.conv2d(x, w, border_mode=1), w, border_mode=1)
    f = symdnn.function([x, w], two, mode=symdnn.Mode(target=ONEDNN))
    assert {n.op.layout for n in f.fgraph.nodes if isinstance(n.op, OneDnnConvolution)} == {"NHWC"}


@needs_onednn
@pytest.mark.parametrize("way", ["forward", "images", "kernels"])
def test_a_convolution_alone_has_the_right_values(rng, way):
    given = [rng.normal(size=s).astype("f") for s in ((2, 16, 6, 6), (16, 16, 3, 3), (2, 16, 6, 6))]
    words = {"on_unused_input": "ignore"}
    fast, plain = (
        symdnn.function(*alone(way), mode=symdnn.Mode(target=t), **words)
        for t in ("cpu", Target("cpu"))
    )
    for _ in range(3):
        np.testing.assert_allclose(fast(*given), plain(*given), rtol=1e-4, atol=1e-4)
