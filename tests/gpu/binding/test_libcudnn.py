"""The binding against the real library: descriptors are made, set and read back. Needs no GPU."""

import ctypes
import inspect
import pickle
import re

import ml_dtypes
import numpy as np
import pytest

from symdnn.errors import CudnnArgumentError, CudnnError, SymdnnError
from symdnn.gpu import libcudnn
from symdnn.gpu.binding import libcudnn_table
from symdnn.gpu.binding.cudnn_types import Size
from symdnn.gpu.binding.libcuda import driver
from tests.gpu.with_cudnn import real_cudnn  # noqa: F401

FLOAT, DOUBLE = "CUDNN_DATA_FLOAT", "CUDNN_DATA_DOUBLE"
NCHW, NHWC = "CUDNN_TENSOR_NCHW", "CUDNN_TENSOR_NHWC"
PROPAGATE = "CUDNN_PROPAGATE_NAN"

pytestmark = pytest.mark.usefixtures("real_cudnn")


@pytest.fixture
def make():
    """Descriptors by kind, destroyed after the test."""
    made = []

    def create(kind, *args):
        desc = getattr(libcudnn, f"cudnnCreate{kind}Descriptor")(*args)
        made.append((kind, desc))
        return desc

    yield create
    for kind, desc in made:
        getattr(libcudnn, f"cudnnDestroy{kind}Descriptor")(desc)


def tensor(make, shape, data_type=FLOAT, layout=NCHW):
    desc = make("Tensor")
    libcudnn.cudnnSetTensor4dDescriptor(desc, layout, data_type, *shape)
    return desc


def filter_(make, shape, data_type=FLOAT):
    desc = make("Filter")
    libcudnn.cudnnSetFilter4dDescriptor(desc, data_type, NCHW, *shape)
    return desc


def names(values):
    """Members by name, for a comparison that reads like the call that set them."""
    return [getattr(v, "name", v) for v in values]


# --- every descriptor: set, get -------------------------------------------------------------------


def test_tensor_descriptor(make):
    desc = tensor(make, (2, 3, 4, 5))
    assert names(libcudnn.cudnnGetTensor4dDescriptor(desc)) == [FLOAT, 2, 3, 4, 5, 60, 20, 5, 1]
    assert libcudnn.cudnnGetTensorSizeInBytes(desc).value == 2 * 3 * 4 * 5 * 4


def test_tensor_descriptor_with_strides(make):
    desc = make("Tensor")
    libcudnn.cudnnSetTensor4dDescriptorEx(desc, DOUBLE, 2, 3, 4, 5, 120, 40, 10, 2)
    assert names(libcudnn.cudnnGetTensor4dDescriptor(desc)) == [DOUBLE, 2, 3, 4, 5, 120, 40, 10, 2]


def test_tensor_descriptor_of_many_dimensions(make):
    desc = make("Tensor")
    shape, strides = (2, 3, 4, 5, 6), [360, 120, 30, 6, 1]
    libcudnn.cudnnSetTensorNdDescriptor(desc, FLOAT, 5, shape, np.array(strides))
    read = libcudnn.cudnnGetTensorNdDescriptor(desc, libcudnn.CUDNN_DIM_MAX)
    assert names(read) == [FLOAT, 5, shape, tuple(strides)]
    few = libcudnn.cudnnGetTensorNdDescriptor(desc, 3)
    assert names(few) == [FLOAT, 5, (2, 3, 4), (360, 120, 30)]


def test_tensor_descriptor_in_nhwc(make):
    desc = make("Tensor")
    libcudnn.cudnnSetTensorNdDescriptorEx(desc, NHWC, "CUDNN_DATA_HALF", 4, [2, 3, 4, 5])
    *_, strides = libcudnn.cudnnGetTensorNdDescriptor(desc, 4)
    assert strides == (60, 1, 15, 3)


def test_filter_descriptor(make):
    desc = filter_(make, (8, 3, 5, 7))
    assert names(libcudnn.cudnnGetFilter4dDescriptor(desc)) == [FLOAT, NCHW, 8, 3, 5, 7]
    assert libcudnn.cudnnGetFilterSizeInBytes(desc).value == 8 * 3 * 5 * 7 * 4
    libcudnn.cudnnSetFilterNdDescriptor(desc, DOUBLE, NHWC, 5, [8, 3, 2, 2, 2])
    assert names(libcudnn.cudnnGetFilterNdDescriptor(desc, 8)) == [
        DOUBLE, NHWC, 5, (8, 3, 2, 2, 2),
    ]  # fmt: skip


def convolution(make, pad=1, stride=1, dilation=1):
    desc = make("Convolution")
    libcudnn.cudnnSetConvolution2dDescriptor(
        desc, pad, pad, stride, stride, dilation, dilation, "CUDNN_CROSS_CORRELATION", FLOAT
    )
    return desc


def test_convolution_descriptor(make):
    desc = convolution(make, pad=3, stride=2, dilation=4)
    cross = "CUDNN_CROSS_CORRELATION"
    assert names(libcudnn.cudnnGetConvolution2dDescriptor(desc)) == [3, 3, 2, 2, 4, 4, cross, FLOAT]
    read = libcudnn.cudnnGetConvolutionNdDescriptor(desc, 5)
    assert names(read) == [2, (3, 3), (2, 2), (4, 4), cross, FLOAT]


def test_convolution_descriptor_of_three_dimensions(make):
    desc = make("Convolution")
    libcudnn.cudnnSetConvolutionNdDescriptor(
        desc, 3, [1, 2, 3], [1, 1, 2], [1, 1, 1], "CUDNN_CONVOLUTION", FLOAT
    )
    read = libcudnn.cudnnGetConvolutionNdDescriptor(desc, 3)
    assert names(read) == [3, (1, 2, 3), (1, 1, 2), (1, 1, 1), "CUDNN_CONVOLUTION", FLOAT]


def test_convolution_attributes(make):
    desc = convolution(make)
    libcudnn.cudnnSetConvolutionGroupCount(desc, 3)
    libcudnn.cudnnSetConvolutionMathType(desc, "CUDNN_FMA_MATH")
    assert libcudnn.cudnnGetConvolutionGroupCount(desc) == 3
    assert libcudnn.cudnnGetConvolutionMathType(desc).name == "CUDNN_FMA_MATH"


def test_pooling_descriptor(make):
    desc = make("Pooling")
    mode = "CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING"
    libcudnn.cudnnSetPooling2dDescriptor(desc, mode, PROPAGATE, 3, 2, 1, 0, 2, 1)
    assert names(libcudnn.cudnnGetPooling2dDescriptor(desc)) == [mode, PROPAGATE, 3, 2, 1, 0, 2, 1]
    read = libcudnn.cudnnGetPoolingNdDescriptor(desc, 3)
    assert names(read) == [mode, PROPAGATE, 2, (3, 2), (1, 0), (2, 1)]
    x = tensor(make, (2, 3, 7, 8))
    assert libcudnn.cudnnGetPooling2dForwardOutputDim(desc, x) == (2, 3, 4, 7)
    assert libcudnn.cudnnGetPoolingNdForwardOutputDim(desc, x, 4) == (2, 3, 4, 7)


def test_activation_descriptor(make):
    desc = make("Activation")
    mode = "CUDNN_ACTIVATION_CLIPPED_RELU"
    libcudnn.cudnnSetActivationDescriptor(desc, mode, PROPAGATE, 6)
    assert names(libcudnn.cudnnGetActivationDescriptor(desc)) == [mode, PROPAGATE, 6.0]
    libcudnn.cudnnSetActivationDescriptorSwishBeta(desc, 0.5)
    assert libcudnn.cudnnGetActivationDescriptorSwishBeta(desc) == 0.5


def test_lrn_descriptor(make):
    desc = make("LRN")
    libcudnn.cudnnSetLRNDescriptor(desc, 5, 1e-4, np.float32(0.75), 2)
    assert libcudnn.cudnnGetLRNDescriptor(desc) == (5, 1e-4, 0.75, 2.0)


def test_dropout_descriptor_wants_a_handle(make):
    desc = make("Dropout")
    with pytest.raises(libcudnn.CudnnBadParam, match=r"handle=0.*seed=4242"):
        libcudnn.cudnnSetDropoutDescriptor(desc, 0, 0.5, 0, 0, 4242)
    reserve = libcudnn.cudnnDropoutGetReserveSpaceSize(tensor(make, (1, 1, 1, 100)))
    assert reserve.value >= 100 // 8


def test_rnn_descriptor(make):
    desc, dropout = make("RNN"), make("Dropout")
    words = (
        "CUDNN_RNN_ALGO_STANDARD", "CUDNN_LSTM", "CUDNN_RNN_DOUBLE_BIAS", "CUDNN_BIDIRECTIONAL",
        "CUDNN_LINEAR_INPUT", FLOAT, FLOAT, "CUDNN_DEFAULT_MATH",
    )  # fmt: skip
    padded = libcudnn.CUDNN_RNN_PADDED_IO_ENABLED
    libcudnn.cudnnSetRNNDescriptor_v8(desc, *words, 10, 20, 20, 2, dropout, padded)
    read = libcudnn.cudnnGetRNNDescriptor_v8(desc)
    assert names(read) == [*words, 10, 20, 20, 2, dropout, padded]
    libcudnn.cudnnRNNSetClip_v9(desc, "CUDNN_RNN_CLIP_MINMAX", -2, 3.5)
    assert names(libcudnn.cudnnRNNGetClip_v9(desc)) == ["CUDNN_RNN_CLIP_MINMAX", -2.0, 3.5]


@pytest.mark.parametrize(
    ("data_type", "dtype"),
    [(FLOAT, "f4"), (DOUBLE, "f8"), ("CUDNN_DATA_BFLOAT16", ml_dtypes.bfloat16)],
)
def test_rnn_data_descriptor(make, real_cudnn, data_type, dtype):  # noqa: F811
    if dtype is ml_dtypes.bfloat16 and real_cudnn.version < (9, 14):
        pytest.skip("RNNs of cuDNN 9.0 and 9.1 refuse bfloat16; known to work since 9.14")
    desc, layout = make("RNNData"), "CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED"
    libcudnn.cudnnSetRNNDataDescriptor(desc, data_type, layout, 7, 3, 10, [7, 5, 2], -1.5)
    fill = np.zeros(1, dtype)
    read = libcudnn.cudnnGetRNNDataDescriptor(desc, 3, fill.ctypes.data)
    assert names(read) == [data_type, layout, 7, 3, 10, (7, 5, 2)]
    assert fill == -1.5  # the number went in as an element of that type


def test_sequence_descriptor(make):
    desc, axes = make("SeqData"), list(libcudnn.cudnnSeqDataAxis_t)
    libcudnn.cudnnSetSeqDataDescriptor(desc, FLOAT, 4, [5, 2, 1, 8], axes, 2, [5, 3], None)
    read = libcudnn.cudnnGetSeqDataDescriptor(desc, 4, 2, None)
    assert names(read) == [FLOAT, 4, (5, 2, 1, 8), tuple(axes), 2, (5, 3)]


def test_ctc_loss_descriptor(make):
    desc = make("CTCLoss")
    words = (FLOAT, "CUDNN_LOSS_NORMALIZATION_SOFTMAX", "CUDNN_CTC_SKIP_OOB_GRADIENTS")
    libcudnn.cudnnSetCTCLossDescriptor_v9(desc, *words, 100)
    assert names(libcudnn.cudnnGetCTCLossDescriptor_v9(desc)) == [*words, 100]


def test_spatial_transformer_descriptor(make):
    desc = make("SpatialTransformer")  # cuDNN has no function that reads one back
    bilinear = "CUDNN_SAMPLER_BILINEAR"
    libcudnn.cudnnSetSpatialTransformerNdDescriptor(desc, bilinear, FLOAT, 4, [1, 2, 3, 4])
    with pytest.raises(libcudnn.CudnnBadParam):
        libcudnn.cudnnSetSpatialTransformerNdDescriptor(None, bilinear, FLOAT, 4, [1, 2, 3, 4])


def test_op_tensor_descriptor(make):
    desc = make("OpTensor")
    libcudnn.cudnnSetOpTensorDescriptor(desc, "CUDNN_OP_TENSOR_MUL", FLOAT, PROPAGATE)
    read = libcudnn.cudnnGetOpTensorDescriptor(desc)
    assert names(read) == ["CUDNN_OP_TENSOR_MUL", FLOAT, PROPAGATE]


def test_reduce_tensor_descriptor(make):
    desc = make("ReduceTensor")
    words = (
        "CUDNN_REDUCE_TENSOR_AMAX", FLOAT, PROPAGATE, "CUDNN_REDUCE_TENSOR_FLATTENED_INDICES",
        "CUDNN_32BIT_INDICES",
    )  # fmt: skip
    libcudnn.cudnnSetReduceTensorDescriptor(desc, *words)
    assert names(libcudnn.cudnnGetReduceTensorDescriptor(desc)) == list(words)


def test_batch_norm_descriptor(make):
    x, derived = tensor(make, (2, 3, 4, 5)), make("Tensor")
    libcudnn.cudnnDeriveBNTensorDescriptor(derived, x, "CUDNN_BATCHNORM_SPATIAL")
    assert libcudnn.cudnnGetTensor4dDescriptor(derived)[1:5] == (1, 3, 1, 1)


def test_backend_descriptor():
    desc = libcudnn.cudnnBackendCreateDescriptor("CUDNN_BACKEND_TENSOR_DESCRIPTOR")
    number = (ctypes.c_int64 * 1)(7)
    args = (desc, "CUDNN_ATTR_TENSOR_UNIQUE_ID", "CUDNN_TYPE_INT64", 1, number)
    libcudnn.cudnnBackendSetAttribute(*args)
    with pytest.raises(libcudnn.CudnnNotInitialized):  # it is not finalised
        libcudnn.cudnnBackendGetAttribute(*args)
    libcudnn.cudnnBackendDestroyDescriptor(desc)


# --- output shapes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pad", "stride", "dilation"), [(0, 1, 1), (3, 1, 1), (2, 2, 1), (0, 1, 2)]
)
def test_output_shape_of_a_convolution(make, pad, stride, dilation):
    x, w = tensor(make, (2, 3, 32, 40)), filter_(make, (8, 3, 5, 7))
    desc = convolution(make, pad, stride, dilation)
    height, width = (
        (size + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for size, k in ((32, 5), (40, 7))
    )
    assert libcudnn.cudnnGetConvolution2dForwardOutputDim(desc, x, w) == (2, 8, height, width)
    assert libcudnn.cudnnGetConvolutionNdForwardOutputDim(desc, x, w, 4) == (2, 8, height, width)


def test_the_document_s_example_up_to_the_gpu(make):
    """cudnn-python-wrappers' example, until it needs a context."""
    tensor_format = libcudnn.cudnnTensorFormat["CUDNN_TENSOR_NCHW"]
    data_type = libcudnn.cudnnDataType["CUDNN_DATA_FLOAT"]
    convolution_mode = libcudnn.cudnnConvolutionMode["CUDNN_CROSS_CORRELATION"]
    preference = libcudnn.cudnnConvolutionFwdPreference["CUDNN_CONVOLUTION_FWD_PREFER_FASTEST"]
    assert preference == 1

    x_desc, filters_desc = make("Tensor"), make("Filter")
    libcudnn.cudnnSetTensor4dDescriptor(x_desc, tensor_format, data_type, 64, 128, 112, 112)
    libcudnn.cudnnSetFilter4dDescriptor(filters_desc, data_type, tensor_format, 128, 128, 7, 7)
    conv_desc = make("Convolution")
    libcudnn.cudnnSetConvolution2dDescriptor(
        conv_desc, 3, 3, 1, 1, 1, 1, convolution_mode, data_type
    )
    _, _, height, width = libcudnn.cudnnGetConvolution2dForwardOutputDim(
        conv_desc, x_desc, filters_desc
    )
    assert (height, width) == (112, 112)


# --- arguments ------------------------------------------------------------------------------------


def test_numbers_addresses_and_ctypes_are_taken(make):
    desc = make("Tensor")
    for handle in (desc, int(desc), ctypes.c_void_p(int(desc))):
        libcudnn.cudnnSetTensor4dDescriptor(
            handle, 0, ctypes.c_int(0), np.int64(2), ctypes.c_int(3), True, 5
        )
        assert libcudnn.cudnnGetTensor4dDescriptor(handle)[1:5] == (2, 3, 1, 5)


def test_arrays_may_be_sequences_or_addresses(make):
    desc = make("Tensor")
    shape = (ctypes.c_int * 4)(2, 3, 4, 5)
    for given in (shape, ctypes.addressof(shape), ctypes.byref(shape), [2, 3, 4, 5]):
        libcudnn.cudnnSetTensorNdDescriptorEx(desc, NCHW, FLOAT, 4, given)
        assert libcudnn.cudnnGetTensorNdDescriptor(desc, 4)[2] == (2, 3, 4, 5)


def test_keywords_have_c_s_names(make):
    desc = make("Tensor")
    libcudnn.cudnnSetTensor4dDescriptor(desc, NCHW, FLOAT, w=5, h=4, c=3, n=2)
    assert libcudnn.cudnnGetTensor4dDescriptor(tensorDesc=desc)[1:5] == (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((FLOAT, NCHW, 1, 1, 1, 1), "format: cudnnTensorFormat_t has no 'CUDNN_DATA_FLOAT'"),
        ((libcudnn.CUDNN_DATA_HALF, 0, 1, 1, 1, 1), "format: wanted a cudnnTensorFormat_t, got"),
        ((0, 0, 1, 1, 1, 2**31), "w: 2147483648 does not fit a C int"),
        ((0, 0, 1, 1, 1, 1.5), "w: 'float' object cannot be interpreted as an integer"),
        ((0, 0, 1, 1, 1), "missing a required argument: 'w'; it takes tensorDesc, format"),
        ((0, 0, 1, 1, 1, 1, 1), "too many positional arguments"),
    ],
)
def test_wrong_arguments_are_refused_before_the_call(make, args, message):
    with pytest.raises(CudnnArgumentError, match=re.escape(message)) as caught:
        libcudnn.cudnnSetTensor4dDescriptor(make("Tensor"), *args)
    assert str(caught.value).startswith("cudnnSetTensor4dDescriptor: ")
    assert isinstance(caught.value, TypeError)


def test_a_handle_of_another_kind_is_refused(make):
    with pytest.raises(CudnnArgumentError, match="wanted a cudnnTensorDescriptor_t, got a cudnnF"):
        libcudnn.cudnnGetTensorSizeInBytes(filter_(make, (1, 1, 1, 1)))


def test_an_array_of_another_length_is_refused(make):
    with pytest.raises(CudnnArgumentError, match="dimA: nbDims is 4, but it has 3 values"):
        libcudnn.cudnnSetTensorNdDescriptor(make("Tensor"), FLOAT, 4, [1, 2, 3], [1, 2, 3, 4])


@pytest.mark.parametrize("address", ["x", b"x", 1.5, [1], object()])
def test_what_is_no_address_is_refused(make, address):
    x = tensor(make, (1, 1, 1, 1))
    with pytest.raises(CudnnArgumentError, match="x: wanted an address"):
        libcudnn.cudnnSoftmaxForward(0, 0, 0, 1.0, x, address, 0.0, x, 0)


# --- scaling factors ------------------------------------------------------------------------------


def held(function, parameter, **values):
    """What C gets for one parameter."""
    return function.parameters[parameter].hold(parameter, values)


@pytest.mark.parametrize(
    ("data_type", "kind"),
    [
        (FLOAT, ctypes.c_float),
        (DOUBLE, ctypes.c_double),
        ("CUDNN_DATA_HALF", ctypes.c_float),
        ("CUDNN_DATA_INT8", ctypes.c_float),
    ],
)
@pytest.mark.parametrize("alpha", [0.5, np.float32(0.5), ctypes.c_double(0.5)])
def test_alpha_and_beta_follow_the_data_type(make, data_type, kind, alpha):
    desc = tensor(make, (1, 2, 3, 4), data_type)
    for function in (libcudnn.cudnnConvolutionForward, libcudnn.cudnnSoftmaxForward):
        passed = held(function, "alpha", alpha=alpha, xDesc=desc)._obj
        assert type(passed) is kind
        assert passed.value == 0.5


def test_scaling_factors_of_filters_follow_the_filter(make):
    desc = filter_(make, (1, 2, 3, 4), DOUBLE)
    passed = held(libcudnn.cudnnTransformFilter, "beta", beta=0, srcDesc=desc)._obj
    assert isinstance(passed, ctypes.c_double)
    assert passed.value == 0


def test_scaling_factors_may_be_addresses(make):
    one = ctypes.c_float(1)
    address = ctypes.addressof(one)
    desc = tensor(make, (1, 2, 3, 4))
    for given in (address, ctypes.byref(one), ctypes.c_void_p(address), None):
        alpha = held(libcudnn.cudnnConvolutionForward, "alpha", alpha=given, xDesc=desc)
        assert alpha is given


@pytest.mark.parametrize(
    ("data_type", "kind"),
    [(FLOAT, ctypes.c_float), (DOUBLE, ctypes.c_double), ("CUDNN_DATA_HALF", ctypes.c_float)],
)
def test_a_value_to_fill_with_is_like_a_scaling_factor(make, data_type, kind):
    desc = tensor(make, (1, 4, 4, 4), data_type)
    passed = held(libcudnn.cudnnSetTensor, "valuePtr", valuePtr=3, yDesc=desc)._obj
    assert type(passed) is kind
    assert passed.value == 3


@pytest.mark.parametrize(
    ("data_type", "dtype"),
    [(FLOAT, "f4"), (DOUBLE, "f8"), ("CUDNN_DATA_HALF", "f2"), ("CUDNN_DATA_INT8", "i1"),
     ("CUDNN_DATA_INT32", "i4"), ("CUDNN_DATA_BFLOAT16", ml_dtypes.bfloat16)],
)  # fmt: skip
def test_a_value_for_padding_is_an_element(data_type, dtype):
    set_data = libcudnn.cudnnSetRNNDataDescriptor
    passed = held(set_data, "paddingFill", paddingFill=3, dataType=data_type)
    assert passed.raw == np.array(3).astype(dtype).tobytes()
    with pytest.raises(TypeError, match="give the address"):
        held(set_data, "paddingFill", paddingFill=3, dataType="CUDNN_DATA_INT8x4")


# --- results --------------------------------------------------------------------------------------


def test_sizes_are_ctypes_and_integers(make):
    size = libcudnn.cudnnGetTensorSizeInBytes(tensor(make, (1, 2, 3, 4)))
    assert isinstance(size, ctypes.c_size_t)
    assert size.value == 96 == size == int(size)
    assert size > 0
    assert not size < 0
    assert bytearray(size) == bytearray(96)
    assert len({size, Size(96)}) == 1
    assert not Size(0)


def test_handles_know_their_kind(make):
    one, other = make("Tensor"), make("Tensor")
    assert isinstance(one, libcudnn.cudnnTensorDescriptor_t)
    assert one != other
    assert one == libcudnn.cudnnTensorDescriptor_t(int(one)) == int(one)
    assert repr(one) == f"cudnnTensorDescriptor_t({int(one):#x})"


def test_versions_and_texts(real_cudnn):  # noqa: F811
    number = libcudnn.cudnnGetVersion()
    parts = [libcudnn.cudnnGetProperty(each) for each in libcudnn.libraryPropertyType]
    assert tuple(parts) == real_cudnn.version
    assert number == parts[0] * 10000 + parts[1] * 100 + parts[2]
    assert libcudnn.cudnnGetErrorString(3000) == "CUDNN_STATUS_NOT_SUPPORTED"
    assert isinstance(libcudnn.cudnnGetLastErrorString(100), str)


# --- errors ---------------------------------------------------------------------------------------


def test_a_status_becomes_its_exception(make, real_cudnn):  # noqa: F811
    with pytest.raises(libcudnn.CudnnBadParam) as caught:
        libcudnn.cudnnSetTensor4dDescriptor(make("Tensor"), NCHW, FLOAT, -1, 2, 3, 4)
    error = caught.value
    assert isinstance(error, SymdnnError)
    assert isinstance(error, RuntimeError)
    assert isinstance(error, ValueError)
    assert error.function == "cudnnSetTensor4dDescriptor"
    assert (error.status, error.status_name) == (2000, "CUDNN_STATUS_BAD_PARAM")
    assert "n <= 0" in error.details
    assert error.arguments["n"] == "-1"
    for part in (error.function, error.status_name, error.details, "n=-1", real_cudnn.path):
        assert part in str(error)


def test_an_exception_survives_pickling(make):
    with pytest.raises(CudnnError) as caught:
        libcudnn.cudnnSetTensor4dDescriptor(make("Tensor"), NCHW, FLOAT, -1, 2, 3, 4)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert str(copy) == str(caught.value)


def test_every_status_has_a_class():
    for member in libcudnn.cudnnStatus_t:
        if member:
            kind = libcudnn.CudnnStatusError.class_of(member)
            assert kind is not libcudnn.CudnnStatusError, member
    shape = libcudnn.CudnnStatusError.class_of(3002)
    assert shape is libcudnn.CudnnNotSupportedShape
    assert issubclass(shape, libcudnn.CudnnNotSupported)
    assert issubclass(shape, NotImplementedError)
    assert libcudnn.CudnnStatusError.class_of(3999) is libcudnn.CudnnNotSupported
    assert libcudnn.CudnnStatusError.class_of(9999) is libcudnn.CudnnStatusError


@pytest.mark.skipif(not driver().problem, reason="there is a GPU")
def test_a_context_without_a_gpu_says_why():
    with pytest.raises(libcudnn.CudnnNotInitialized) as caught:
        libcudnn.cudnnCreate()
    assert caught.value.__notes__ == [f"  The GPU: {driver().problem}"]


# --- enums ----------------------------------------------------------------------------------------


def test_enums_are_dicts_and_int_enums():
    for kind in libcudnn.ENUMS:
        as_dict = getattr(libcudnn, kind.__name__.removesuffix("_t"))
        assert as_dict == kind.__members__
        assert all(type(member) is kind for member in as_dict.values())
    half = libcudnn.cudnnDataType["CUDNN_DATA_HALF"]
    assert half is libcudnn.cudnnDataType_t.CUDNN_DATA_HALF is libcudnn.CUDNN_DATA_HALF
    assert half == half.value == 2
    assert f"algorithm = {half.value:d} {half:d}" == "algorithm = 2 2"


def test_an_old_name_of_a_value_is_still_there():
    assert libcudnn.CUDNN_STATUS_ALLOC_FAILED == 4003
    assert libcudnn.cudnnStatus["CUDNN_STATUS_ARCH_MISMATCH"] == 3007


def test_a_value_that_the_table_lacks_comes_as_a_number():
    assert libcudnn.cudnnDataType_t.read(ctypes.c_int(977)) == 977


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no 'cudnnSetRNNPaddingMode'"):
        libcudnn.cudnnSetRNNPaddingMode  # noqa: B018
    assert "CUDNN_DATA_FLOAT" in dir(libcudnn)
    assert "cudnnCreate" in dir(libcudnn)


# --- callbacks, structures ------------------------------------------------------------------------


def test_a_callback_is_called(make):
    seen = []

    @libcudnn.cudnnCallback_t
    def log(severity, _, debug, message):
        seen.append((severity, debug.contents.cudnnStatus, message.decode()))

    libcudnn.cudnnSetCallback(libcudnn.CUDNN_SEV_ERROR_EN, None, log)
    try:
        mask, data, _ = libcudnn.cudnnGetCallback()
        with pytest.raises(CudnnError):
            libcudnn.cudnnSetTensor4dDescriptor(make("Tensor"), NCHW, FLOAT, -1, 2, 3, 4)
    finally:
        libcudnn.cudnnSetCallback(0, None, None)
    assert (mask, data) == (libcudnn.CUDNN_SEV_ERROR_EN, 0)
    assert any("cudnnSetTensor4dDescriptor" in message for _, _, message in seen)
    with pytest.raises(CudnnArgumentError, match="fptr: wanted cudnnCallback_t"):
        libcudnn.cudnnSetCallback(0, None, print)


def test_structures_print_their_fields():
    found = libcudnn.cudnnConvolutionFwdAlgoPerf_t(memory=5, time=0.5)
    found.algo = "CUDNN_CONVOLUTION_FWD_ALGO_FFT"
    assert found.algo is libcudnn.cudnnConvolutionFwdAlgo_t.CUDNN_CONVOLUTION_FWD_ALGO_FFT
    assert "memory=5" in repr(found)
    assert "CUDNN_CONVOLUTION_FWD_ALGO_FFT" in repr(found)


# --- what Python's tools see ----------------------------------------------------------------------


def test_functions_describe_themselves():
    f = libcudnn.cudnnGetTensorNdDescriptor
    assert list(inspect.signature(f).parameters) == ["tensorDesc", "nbDimsRequested"]
    assert f.__doc__.startswith(
        "cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t tensorDesc, "
        "int nbDimsRequested, cudnnDataType_t *dataType, int *nbDims, int dimA[], int strideA[])"
    )
    assert "Returns dataType, nbDims, dimA, strideA." in f.__doc__
    assert "Deprecated" in libcudnn.cudnnConvolutionForward.__doc__
    assert "Deprecated" not in libcudnn.cudnnRNNForward.__doc__
    assert repr(f) == "<cuDNN function cudnnGetTensorNdDescriptor>"


def test_a_function_that_the_library_lacks_names_the_versions(real_cudnn):  # noqa: F811
    gone = libcudnn_table.function("cudnnRNNForwardTraining")
    assert not gone.present
    with pytest.raises(libcudnn.CudnnMissingFunction) as caught:
        gone()
    assert str(real_cudnn) in str(caught.value)
    assert ".".join(map(str, libcudnn.VERSION)) in str(caught.value)
