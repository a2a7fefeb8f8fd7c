"""Descriptors as values, made by the real libcudnn and read back. Needs no GPU."""

import gc
import itertools

import numpy as np
import pytest

from symdnn.errors import CudnnError
from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.descriptor import (
    ActivationDescription,
    ConvolutionDescription,
    CTCLossDescription,
    FilterDescription,
    LRNDescription,
    PoolingDescription,
    ReduceTensorDescription,
    RNNDataDescription,
    RNNDescription,
    SpatialTransformerDescription,
    TensorDescription,
    descriptor,
    free_all,
)
from symdnn.ops.nn.conv import Conv
from symdnn.ops.nn.pool import Pool
from tests.gpu.with_cudnn import real_cudnn  # noqa: F401

pytestmark = pytest.mark.usefixtures("real_cudnn")


def names(values):
    """Members by name, numbers as they are."""
    return [getattr(v, "name", v) for v in values]


def test_tensor_with_any_strides():
    d = descriptor(TensorDescription("bfloat16", (2, 3, 4, 5), (120, 1, 30, 6)))
    read = libcudnn.cudnnGetTensorNdDescriptor(d.handle, 8)
    assert names(read) == ["CUDNN_DATA_BFLOAT16", 4, (2, 3, 4, 5), (120, 1, 30, 6)]


@pytest.mark.parametrize("shape", [(3, 2, 5), (2, 3, 4, 5), (2, 3, 4, 5, 6), (1,) * 7 + (9,)])
def test_tensor_is_contiguous_unless_said_otherwise(shape):
    d = descriptor(TensorDescription("float64", shape))
    kind, ndim, dims, strides = libcudnn.cudnnGetTensorNdDescriptor(d.handle, 8)
    assert (kind.name, ndim, dims) == ("CUDNN_DATA_DOUBLE", len(shape), shape)
    assert strides[-1] == 1
    assert strides[0] * shape[0] == libcudnn.cudnnGetTensorSizeInBytes(d.handle).value / 8


def test_filter():
    d = descriptor(FilterDescription("float16", (8, 3, 2, 5, 7)))
    read = libcudnn.cudnnGetFilterNdDescriptor(d.handle, 8)
    assert names(read) == ["CUDNN_DATA_HALF", "CUDNN_TENSOR_NCHW", 5, (8, 3, 2, 5, 7)]


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("math", ["FMA_MATH", "DEFAULT_MATH"])
def test_convolution(flip, math):
    what = ConvolutionDescription((1, 0), (2, 1), (1, 3), 4, flip, "float32", math)
    d = descriptor(what)
    mode = "CUDNN_CONVOLUTION" if flip else "CUDNN_CROSS_CORRELATION"
    read = libcudnn.cudnnGetConvolutionNdDescriptor(d.handle, 5)
    assert names(read) == [2, (1, 0), (2, 1), (1, 3), mode, "CUDNN_DATA_FLOAT"]
    assert libcudnn.cudnnGetConvolutionGroupCount(d.handle) == 4
    assert libcudnn.cudnnGetConvolutionMathType(d.handle).name == f"CUDNN_{math}"


def test_pooling_propagates_nan():
    d = descriptor(PoolingDescription("MAX_DETERMINISTIC", (3, 2, 2), (1, 0, 1), (2, 1, 1)))
    read = names(libcudnn.cudnnGetPoolingNdDescriptor(d.handle, 5))
    assert read[:2] == ["CUDNN_POOLING_MAX_DETERMINISTIC", "CUDNN_PROPAGATE_NAN"]
    assert read[2:] == [3, (3, 2, 2), (1, 0, 1), (2, 1, 1)]


def test_activation():
    d = descriptor(ActivationDescription("CLIPPED_RELU", 6.0))
    read = names(libcudnn.cudnnGetActivationDescriptor(d.handle))
    assert read == ["CUDNN_ACTIVATION_CLIPPED_RELU", "CUDNN_PROPAGATE_NAN", 6.0]


def test_lrn():
    d = descriptor(LRNDescription(5, 1e-4, 0.75, 2.0))
    assert list(libcudnn.cudnnGetLRNDescriptor(d.handle)) == [5, 1e-4, 0.75, 2.0]


@pytest.mark.parametrize("indices", [True, False])
def test_reduction(indices):
    d = descriptor(ReduceTensorDescription("MAX", "float32", indices))
    read = names(libcudnn.cudnnGetReduceTensorDescriptor(d.handle))
    which = "FLATTENED" if indices else "NO"
    assert read == [
        "CUDNN_REDUCE_TENSOR_MAX", "CUDNN_DATA_FLOAT", "CUDNN_PROPAGATE_NAN",
        f"CUDNN_REDUCE_TENSOR_{which}_INDICES", "CUDNN_32BIT_INDICES",
    ]  # fmt: skip


def test_ctc():
    d = descriptor(CTCLossDescription("float32", 17))
    read = names(libcudnn.cudnnGetCTCLossDescriptor_v9(d.handle))
    assert read == [
        "CUDNN_DATA_FLOAT", "CUDNN_LOSS_NORMALIZATION_SOFTMAX", "CUDNN_CTC_ZERO_OOB_GRADIENTS", 17,
    ]  # fmt: skip


def test_spatial_transformer_is_accepted():
    first = descriptor(SpatialTransformerDescription("float32", (2, 1, 4, 5)))
    assert int(first.handle) != 0


def test_rnn_data_keeps_its_lengths():
    d = descriptor(RNNDataDescription("float32", 6, 3, 4, (6, 0, 2)))
    fill = np.ones(1, np.float32)
    read = names(libcudnn.cudnnGetRNNDataDescriptor(d.handle, 3, fill.ctypes.data))
    assert read[:2] == ["CUDNN_DATA_FLOAT", "CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED"]
    assert read[2:6] == [6, 3, 4, (6, 0, 2)]
    assert fill == 0


RNN_MODES = ["rnn_relu", "rnn_tanh", "lstm", "gru"]


@pytest.mark.parametrize("mode", RNN_MODES)
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_rnn(mode, skip, both):
    what = RNNDescription(
        algo="STANDARD", mode=mode, direction="bidirectional" if both else "unidirectional",
        input_mode="skip" if skip else "linear", dtype="float64", compute="float64",
        math="DEFAULT_MATH", input_size=5 if not skip else 7, hidden_size=7, layers=3,
    )  # fmt: skip
    read = names(libcudnn.cudnnGetRNNDescriptor_v8(descriptor(what).handle))
    cell = "CUDNN_" + mode.upper()
    assert read[:5] == [
        "CUDNN_RNN_ALGO_STANDARD", cell, "CUDNN_RNN_DOUBLE_BIAS",
        "CUDNN_BIDIRECTIONAL" if both else "CUDNN_UNIDIRECTIONAL",
        "CUDNN_SKIP_INPUT" if skip else "CUDNN_LINEAR_INPUT",
    ]  # fmt: skip
    assert read[5:7] == ["CUDNN_DATA_DOUBLE"] * 2
    assert read[8:12] == [5 if not skip else 7, 7, 7, 3]
    assert read[-1] == 1  # padded sequences are allowed


# -- what the ops say and what cuDNN says ---------------------------------------------------------

CONVS = [
    case
    for case in itertools.product([1, 5, 8], [1, 3, 4], [0, 2], [1, 2, 3], [1, 2], [1, 2])
    if case[0] + 2 * case[2] >= (case[1] - 1) * case[4] + 1
]


def test_sizes_of_convolutions_agree_with_the_op():
    for n, k, pad, stride, dilation, groups in CONVS:
        op = Conv(((pad, pad), (1, 1)), (stride, 1), (dilation, 1), groups)
        x, w = (2, 4, n, 6), (6, 4 // groups, k, 3)
        (wanted,) = op.shapes([], [x, w], {})
        how = ConvolutionDescription(
            (pad, 1), (stride, 1), (dilation, 1), groups, False, "float32", "FMA_MATH"
        )
        made = [descriptor(d) for d in (how, TensorDescription("float32", x))]
        kernels = descriptor(FilterDescription("float32", w))
        got = libcudnn.cudnnGetConvolutionNdForwardOutputDim(
            made[0].handle, made[1].handle, kernels.handle, 4
        )
        assert tuple(got) == tuple(wanted), (op, x, w)


def test_sizes_of_volumes_agree_with_the_op():
    op = Conv(((1, 1), (0, 0), (2, 2)), (2, 1, 3), (1, 2, 1))
    x, w = (2, 3, 7, 8, 9), (5, 3, 3, 2, 4)
    how = ConvolutionDescription((1, 0, 2), (2, 1, 3), (1, 2, 1), 1, True, "float64", "FMA_MATH")
    made = [
        descriptor(d)
        for d in (how, TensorDescription("float64", x), FilterDescription("float64", w))
    ]
    got = libcudnn.cudnnGetConvolutionNdForwardOutputDim(*(d.handle for d in made), 5)
    assert [tuple(got)] == [tuple(s) for s in op.shapes([], [x, w], {})]


@pytest.mark.parametrize("mode", ["max", "average_exc_pad"])
def test_sizes_of_pooling_agree_with_the_op(mode):
    word = {"max": "MAX", "average_exc_pad": "AVERAGE_COUNT_EXCLUDE_PADDING"}[mode]
    for n, w, s, p in itertools.product([4, 5, 9], [1, 2, 3], [1, 2, 4], [0, 1]):
        if p >= w:
            continue
        op = Pool((w, 2), (s, 1), (p, 0), mode, True)
        (wanted,) = op.shapes([], [(2, 3, n, 6)], {})
        d = descriptor(PoolingDescription(word, (w, 2), (p, 0), (s, 1)))
        x = descriptor(TensorDescription("float32", (2, 3, n, 6)))
        got = libcudnn.cudnnGetPoolingNdForwardOutputDim(d.handle, x.handle, 4)
        assert tuple(got) == tuple(wanted), (op, n)


# -- the cache ------------------------------------------------------------------------------------


def test_equal_descriptions_share_a_descriptor():
    a = descriptor(TensorDescription("float32", (2, 3, 4, 5)))
    b = descriptor(TensorDescription("float32", (2, 3, 4, 5), (60, 20, 5, 1)))
    c = descriptor(TensorDescription("float16", (2, 3, 4, 5)))
    assert a is b
    assert a is not c
    assert a.handle != c.handle


def test_a_dropped_descriptor_is_destroyed(monkeypatch):
    gone = []
    real = libcudnn.cudnnDestroyLRNDescriptor
    monkeypatch.setattr(
        libcudnn, "cudnnDestroyLRNDescriptor", lambda h: (gone.append(int(h)), real(h))
    )
    what = LRNDescription(7, 1e-4, 0.75, 1.0)
    kept = descriptor(what)
    handle = int(kept.handle)
    del kept
    for n in range(64):
        assert not gone
        descriptor(LRNDescription(5, 1e-4 * (n + 2), 0.75, 1.0))
    gc.collect()
    assert gone == [handle]
    assert descriptor(what) is descriptor(what)


def test_free_all_destroys_what_is_cached(monkeypatch):
    gone = []
    real = libcudnn.cudnnDestroyLRNDescriptor
    monkeypatch.setattr(
        libcudnn, "cudnnDestroyLRNDescriptor", lambda h: (gone.append(int(h)), real(h))
    )
    kept = descriptor(LRNDescription(9, 1e-4, 0.75, 1.0))
    free_all()
    free_all()
    assert gone == [int(kept.handle)]


def test_an_error_names_the_descriptor():
    with pytest.raises(CudnnError) as caught:
        descriptor(PoolingDescription("MAX", (2, 2), (0, 0), (0, 0)))
    notes = "\n".join(caught.value.__notes__)
    assert "window=(2, 2)" in notes
    assert "stride=(0, 0)" in notes


def test_descriptions_in_words():
    how = ConvolutionDescription((1, 1), (2, 2), (1, 1), 2, True, "float32", "FMA_MATH")
    assert str(how) == (
        "convolution, padding (1, 1), stride (2, 2), dilation (1, 1), groups 2, in float32, "
        "FMA_MATH"
    )
    assert str(TensorDescription("float16", (2, 3, 4))) == "tensor float16(2, 3, 4)"
