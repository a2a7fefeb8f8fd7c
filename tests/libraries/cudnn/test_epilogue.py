"""What convolutions take in, what they leave alone, and normalisation folded into their kernels."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu import registry
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.vendor.gpudnn import GpuDnnBatchNormInference, GpuDnnConv
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation
from symdnn.opt.phases import Selection
from tests.opt.lowering import assert_same_values, rewritten, variables

RNG = np.random.default_rng(23)
SELECTION = Selection(frozenset({"fast_run", "fast_compile"}))
registry.load()


def normal(*shape):
    return RNG.standard_normal(shape).astype("float32")


X, W, B, Z = normal(2, 3, 6, 5), normal(4, 3, 3, 2), normal(4), normal(2, 4, 4, 4)
V = normal(2, 4, 3, 3)
STATS = (normal(1, 4, 1, 1), normal(1, 4, 1, 1), normal(1, 4, 1, 1), abs(normal(1, 4, 1, 1)) + 1)


def conv(x, w):
    return T.nnet.conv2d(x, w, filter_flip=False)


def channels(b):
    return b.dimshuffle("x", 0, "x", "x")


def made(build, arrays, layout="nchw", rtol=1e-4):
    """The rewritten graph of ``build``; its values are those of the plain one."""
    vs = variables(arrays)
    out = build(*vs)
    outputs = list(out) if isinstance(out, list | tuple) else [out]
    with config.change_flags(**{"gpu.layout": layout}):
        fgraph = rewritten(vs, outputs, selection=SELECTION)
    assert_same_values(fgraph, vs, outputs, arrays, rtol)
    return fgraph


def convolutions(fgraph):
    return [n.op for n in fgraph.toposort() if isinstance(n.op, GpuDnnConv)]


def followed(build):
    """With another convolution behind it, so that there is a layout to keep."""
    return lambda v, *rest: conv(build(*rest), v)


#: What it is, and (residual, bias, activation) of the one convolution.
TAKEN = {
    "bias": (lambda x, w, b: conv(x, w) + channels(b), (X, W, B), (0, True, "")),
    "bias_relu": (lambda x, w, b: T.nnet.relu(channels(b) + conv(x, w)), (X, W, B),
                  (0, True, "relu")),
    "relu": (lambda x, w: T.nnet.relu(conv(x, w)), (X, W), (0, False, "relu")),
    "relu6": (lambda x, w, b: T.minimum(T.nnet.relu(conv(x, w) + channels(b)), 6), (X, W, B),
              (0, True, "relu6")),
    "relu6 by clip": (lambda x, w, b: T.clip(conv(x, w) + channels(b), 0, 6), (X, W, B),
                      (0, True, "relu6")),
    "relu6 by extremes": (lambda x, w: T.maximum(T.minimum(6, conv(x, w)), 0), (X, W),
                          (0, False, "relu6")),
    "tanh": (lambda x, w, b: T.tanh(conv(x, w) + channels(b)), (X, W, B), (0, True, "tanh")),
    "residual": (lambda x, w, z, b: T.nnet.relu(conv(x, w) + channels(b) + z), (X, W, Z, B),
                 (1, True, "relu")),
    "difference": (lambda x, w, z: T.nnet.relu(conv(x, w) - z), (X, W, Z), (-1, False, "relu")),
    "scaled": (lambda x, w, z: T.nnet.relu(conv(x, w) + np.float32(0.5) * z), (X, W, Z),
               (0.5, False, "relu")),
}  # fmt: skip


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("case", TAKEN)
def test_taken_in(case, layout):
    build, arrays, wanted = TAKEN[case]
    op, _ = convolutions(made(followed(build), (V, *arrays), layout))
    assert isinstance(op, GpuDnnConvBiasActivation)
    assert (op.residual, op.bias, op.activation) == wanted
    assert op.layout == layout.upper()


def elementwise(fgraph):
    kinds = Elemwise | FusedElemwise
    return [n.op for n in fgraph.toposort() if isinstance(n.op, kinds) and n.outputs[0].ndim]


#: Of two convolutions' result, whether there are elementwise nodes behind it, and the epilogue.
AT_THE_END = {
    "bias": (lambda y, b: y + channels(b), (0, True, "")),
    "relu": (lambda y, b: T.nnet.relu(y + channels(b)), (0, True, "relu")),
    "flattened": (lambda y, b: (y + channels(b)).reshape((2, 4, -1)), (0, True, "")),
    "columns": (lambda y, b: y + channels(b).dimshuffle(0, 2, 1, 3), None),
    "unknown": (lambda y, b: T.exp(y + channels(b)), None),
}


@pytest.mark.parametrize("case", AT_THE_END)
def test_behind_the_view_as_nchw(case):
    """The result of the last of some convolutions in NHWC is read in NCHW."""
    build, wanted = AT_THE_END[case]
    b = normal(3 if case == "columns" else 4)
    arrays = (X, W, normal(4, 4, 2, 2), b)
    fgraph = made(lambda x, w, v, b: build(conv(conv(x, w), v), b), arrays, "nhwc")
    op = convolutions(fgraph)[-1]
    assert op.layout == "NHWC"
    assert isinstance(op, GpuDnnConvBiasActivation) == (wanted is not None)
    assert bool(elementwise(fgraph)) == (wanted is None)
    if wanted is not None:
        assert (op.residual, op.bias, op.activation) == wanted


def test_a_residual_in_another_layout_stays():
    fgraph = made(lambda x, w, v, z: conv(conv(x, w), v) + z,
                  (X, W, normal(4, 4, 1, 1), Z), "nhwc")  # fmt: skip
    assert [type(op) for op in convolutions(fgraph)] == [GpuDnnConv] * 2


def test_keys_of_attention_by_a_convolution_are_views_of_its_result():
    def build(x, w, v, b):
        y = conv(T.nnet.relu(conv(x, w)), v) + channels(b)
        heads = y.reshape((2, 3, 2, 8, -1)).dimshuffle(1, 0, 2, 4, 3)
        return T.nnet.scaled_dot_product_attention(*(heads[i] for i in range(3)))

    arrays = (X, W, normal(48, 4, 1, 1), normal(48))
    fgraph = made(build, arrays, "nhwc")
    assert isinstance(convolutions(fgraph)[1], GpuDnnConvBiasActivation)
    assert elementwise(fgraph) == []


@pytest.mark.parametrize("case", TAKEN)
def test_switched_off(case):
    build, arrays, _ = TAKEN[case]
    with config.change_flags(**{"gpu.epilogue": "off"}):
        by_flag = made(build, arrays)
    vs = variables(arrays)
    by_tag = rewritten(vs, [build(*vs)], selection=SELECTION.excluding("epilogue"))
    for fgraph in (by_flag, by_tag):
        assert [type(op) for op in convolutions(fgraph)] == [GpuDnnConv]


LEFT = {
    "an elementwise reader does it for nothing":
        (lambda x, w, b: T.nnet.relu(conv(x, w) + channels(b)) ** 2, (X, W, B)),
    "the convolution is wanted itself":
        (lambda x, w, b: (conv(x, w), conv(x, w) + channels(b)), (X, W, B)),
    "a bias of columns": (lambda x, w, b: conv(x, w) + b, (X, W, normal(1, 1, 1, 4))),
    "a bias that is subtracted": (lambda x, w, b: conv(x, w) - channels(b), (X, W, B)),
    "a bias of images": (lambda x, w, b: conv(x, w) + b, (X, W, normal(2, 1, 1, 1))),
    "other activations": (lambda x, w: T.exp(conv(x, w)), (X, W)),
    "another bound": (lambda x, w: T.clip(conv(x, w), 0, 5), (X, W)),
    "a lower bound": (lambda x, w: T.clip(conv(x, w), -1, 6), (X, W)),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_left_alone(case):
    build, arrays = LEFT[case]
    assert [type(op) for op in convolutions(made(build, arrays))] == [GpuDnnConv]


def test_volumes():
    x, w, b = normal(2, 2, 4, 4, 4), normal(3, 2, 2, 2, 2), normal(1, 3, 1, 1, 1)
    fgraph = made(lambda x, w, b: T.nnet.relu(T.nnet.conv3d(x, w) + b), (x, w, b))
    assert isinstance(convolutions(fgraph)[0], GpuDnnConvBiasActivation)


def test_a_chain_of_blocks():
    def build(x, w, v, z):
        h = T.nnet.relu(conv(x, w) + z)
        return T.nnet.relu(conv(h, v) + h[:, :, 1:3, 1:3])

    fgraph = made(build, (X, W, normal(4, 4, 3, 3), Z))
    assert [op.residual for op in convolutions(fgraph)] == [1.0, 1.0]


def test_training_keeps_what_goes_into_relu_unless_told():
    def build(x, w, b):
        cost = (T.nnet.relu(conv(x, w) + channels(b)) ** 2).sum()
        return T.grad(cost, [w, b])

    exact = made(build, (X, W, B))
    assert not any(isinstance(op, GpuDnnConvBiasActivation) for op in convolutions(exact))


# -- batch normalisation --------------------------------------------------------------------------


def normalised(x, w, *stats):
    return T.nnet.bn.batch_normalization_test(conv(x, w), *stats, axes="spatial")


def kinds(fgraph):
    return {type(n.op) for n in fgraph.toposort()}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_normalisation_is_folded(layout):
    build = followed(lambda *v: T.nnet.relu(normalised(*v)))
    fgraph = made(build, (V, X, W, *STATS), layout)
    op, _ = convolutions(fgraph)
    assert (op.bias, op.activation) == (True, "relu")
    assert GpuDnnBatchNormInference not in kinds(fgraph)


def test_folding_is_switched_off():
    with config.change_flags(**{"gpu.fold_batch_norm": "off"}):
        by_flag = made(normalised, (X, W, *STATS))
    vs = variables((X, W, *STATS))
    by_tag = rewritten(vs, [normalised(*vs)], selection=SELECTION.excluding("fold_batch_norm"))
    for fgraph in (by_flag, by_tag):
        assert GpuDnnBatchNormInference in kinds(fgraph)


def test_a_convolution_that_is_read_elsewhere_is_not_folded():
    fgraph = made(lambda *v: (normalised(*v), conv(*v[:2])), (X, W, *STATS))
    assert GpuDnnBatchNormInference in kinds(fgraph)


def test_normalisation_of_each_place_is_not_folded():
    stats = [np.broadcast_to(s, (1, 4, 4, 4)).copy() for s in STATS]

    def build(x, w, *stats):
        return T.nnet.bn.batch_normalization_test(conv(x, w), *stats, axes="per-activation")

    assert GpuDnnBatchNormInference in kinds(made(build, (X, W, *stats)))


def test_a_whole_residual_block():
    def build(x, w, z, *stats):
        return T.nnet.relu(normalised(x, w, *stats) + z)

    (op,) = convolutions(made(build, (X, W, Z, *STATS)))
    assert (op.residual, op.bias, op.activation) == (1.0, True, "relu")
