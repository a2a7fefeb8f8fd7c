"""Ops of libraries as declarations: what they take from their neutral op, and what they keep."""

import pickle

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.errors import OptionError
from symdnn.graph.evaluate import evaluate
from symdnn.ops.nn.batchnorm import BatchNormGrad
from symdnn.ops.nn.conv import ConvGradInput
from symdnn.ops.nn.lrn import LRN
from symdnn.ops.nn.pool import AveragePoolGrad
from symdnn.ops.nn.rnn import RNNForward
from symdnn.ops.vendor import gpudnn as G
from symdnn.ops.vendor.onednn import OneDnnBatchNormGrad, OneDnnConv

NEUTRAL = {
    G.GpuDnnLRN: LRN(3, 0.1, 0.5, 1.5),
    G.GpuDnnPoolGrad: AveragePoolGrad((2, 3), (1, 2), (0, 1), "average_exc_pad", True, (8, None)),
    G.GpuDnnRNNOp: RNNForward("lstm", 7, 2, "skip", "bidirectional", 0.5, True, False),
    OneDnnBatchNormGrad: BatchNormGrad((0, 2, 3), 1e-3),
}


@pytest.mark.parametrize("low", NEUTRAL, ids=lambda low: low.__name__)
def test_of_takes_the_fields_of_the_neutral_op(low):
    assert low.of(NEUTRAL[low]).unlowered == NEUTRAL[low]


def test_fields_with_other_names_are_settings_of_the_lowering():
    op = ConvGradInput(((1, 1), (0, 0)), (1, 2), (1, 1), 3, True, (8, 9))
    low = G.GpuDnnConvGradI.of(op, num_groups=3, conv_mode="conv", algo="none")
    assert (low.unlowered, low.algo) == (op, "none")
    norm = G.GpuDnnBatchNormGrad.of(BatchNormGrad((0, 2, 3), 1e-3), mode="spatial")
    assert norm.unlowered == BatchNormGrad((0, 2, 3), 1e-3)


def test_pickles_have_the_fields_alone():
    low = G.GpuDnnLRN(n=3)
    assert low.unlowered is low.unlowered
    again = pickle.loads(pickle.dumps(low))
    assert again == low
    assert vars(again).keys() == {"n", "alpha", "beta", "k", "layout"}


def test_a_word_that_cudnn_does_not_have_is_an_error():
    with pytest.raises(OptionError, match="mode='rows': wanted one of instance, channel"):
        G.GpuDnnSoftmax(mode="rows")


def test_a_filter_stays_as_it_is_in_nhwc(rng):
    x, w = rng.normal(size=(2, 3, 5, 6)), rng.normal(size=(4, 3, 3, 3))
    v, f = T.tensor4(dtype="float64"), T.tensor4(dtype="float64")
    op = OneDnnConv(T.nnet.conv2d(v, f).owner.op)
    last = op.channels_last(4)
    (plain,) = evaluate([op(v, f)], {v: x, f: w})
    (nhwc,) = evaluate([last(v, f)], {v: x.transpose(0, 2, 3, 1), f: w})
    np.testing.assert_allclose(nhwc.transpose(0, 3, 1, 2), plain)
    assert last.shapes([v.type, f.type], [(2, 5, 6, 3), (4, 3, 3, 3)], {}) == ((2, 3, 4, 4),)


@pytest.mark.parametrize("mode", ["channel", "instance"])
def test_what_is_derived_of_an_expression(mode, rng):
    op, x = G.GpuDnnSoftmax("log", mode), T.tensor4(dtype="float64")
    value = rng.normal(size=(2, 3, 4, 5))
    (got,) = op.compute(value)
    axes = (1,) if mode == "channel" else (1, 2, 3)
    want = value - np.log(np.exp(value).sum(axes, keepdims=True))
    np.testing.assert_allclose(got, want)
    assert op.output_types([x.type]) == (x.type,)
    assert list(op.shapes([x.type], [value.shape], {})) == [value.shape]


def test_shapes_of_an_expression_may_be_symbolic():
    x = T.matrix(dtype="float32")
    op = G.GpuDnnReduction("avg", (1,), "float32", "float32")
    ((rows,),) = op.shapes([x.type], [(x.shape[0], x.shape[1])], {})
    assert evaluate([rows], {x: np.zeros((3, 4), "float32")}) == [3]
