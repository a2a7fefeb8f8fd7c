"""Images that programs keep as (N, sizes, C): pooling and batch norm work on them as they lie."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu import libdnnl
from symdnn.graph.target import Target
from symdnn.ops.channels_last import Reorder
from symdnn.ops.onednn import OneDnnBatchNorm, OneDnnBatchNormGrad, OneDnnPool, OneDnnPoolGrad

ONEDNN = Target("cpu", onednn=(3, 2, 0), isa="AVX-512", threads=2)
needs_onednn = pytest.mark.skipif(bool(libdnnl.problem()), reason="oneDNN is not installed")
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
def test_both_orders_have_the_same_values(make):
    rng = np.random.default_rng()
    x = rng.normal(size=(3, 5, 6, 8)).astype("f")
    dy = rng.normal(size=(3, 5, 3, 4) if make is pooled else x.shape).astype("f")
    first = forward_and_back(make, False, Target("cpu"))(x, dy)
    last = forward_and_back(make, True, "cpu")(x.transpose(LAST), dy.transpose(LAST))
    for a, b in zip(first, last, strict=True):
        np.testing.assert_allclose(b.transpose(0, 3, 1, 2), a, rtol=1e-4, atol=1e-5)
