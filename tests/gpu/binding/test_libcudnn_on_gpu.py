"""The binding on a GPU: what only a context can show. Run with ``pytest -m gpu``."""

import ctypes

import numpy as np
import pytest

from symdnn.gpu import libcudnn
from symdnn.gpu.binding.libcuda import driver
from symdnn.gpu.detect import cuda_target, dnn_available, version
from symdnn.gpu.device.driver_api import bindings, checked

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("card")]

FLOAT, DOUBLE, HALF = "CUDNN_DATA_FLOAT", "CUDNN_DATA_DOUBLE", "CUDNN_DATA_HALF"
NCHW = "CUDNN_TENSOR_NCHW"
DTYPES = {FLOAT: np.float32, DOUBLE: np.float64, HALF: np.float16}


@pytest.fixture
def handle(arrays):
    made = libcudnn.cudnnCreate()
    yield made
    libcudnn.cudnnDestroy(made)


def tensor(shape, data_type=FLOAT):
    desc = libcudnn.cudnnCreateTensorDescriptor()
    libcudnn.cudnnSetTensor4dDescriptor(desc, NCHW, data_type, *shape)
    return desc


def test_the_machine_is_described(arrays):
    assert dnn_available(), dnn_available.msg
    target = cuda_target()
    assert target.compute_capability == driver().devices[0].compute_capability
    assert version() == libcudnn.cudnnGetVersion()


def test_a_stream_is_kept(handle):
    stream = int(checked(bindings().cuStreamCreate(0)))
    libcudnn.cudnnSetStream(handle, stream)
    assert libcudnn.cudnnGetStream(handle) == stream


@pytest.mark.parametrize("data_type", DTYPES)
@pytest.mark.parametrize("alpha", [1, 0.5])
def test_softmax_with_scaling_factors(arrays, handle, data_type, alpha):
    dtype = DTYPES[data_type]
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 4)).astype(dtype)
    before = np.full_like(x, 2)
    on_gpu, out = arrays.to_gpu(x), arrays.to_gpu(before)
    desc = tensor(x.shape, data_type)
    libcudnn.cudnnSoftmaxForward(
        handle, "CUDNN_SOFTMAX_ACCURATE", "CUDNN_SOFTMAX_MODE_CHANNEL",
        alpha, desc, on_gpu.gpudata, 0.25, desc, out.gpudata,
    )  # fmt: skip
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    wanted = alpha * e / e.sum(1, keepdims=True) + 0.25 * before
    tolerance = {np.float16: 2e-3, np.float32: 1e-6, np.float64: 1e-14}[dtype]
    np.testing.assert_allclose(out.get(), wanted, tolerance)


@pytest.mark.parametrize("data_type", DTYPES)
def test_a_tensor_is_filled(arrays, handle, data_type):
    out = arrays.to_gpu(np.zeros((1, 2, 3, 4), DTYPES[data_type]))
    libcudnn.cudnnSetTensor(handle, tensor(out.shape, data_type), out.gpudata, -1.5)
    assert (out.get() == -1.5).all()


class Convolution:
    """A small convolution with its descriptors, and the same by NumPy."""

    def __init__(self, arrays):
        rng = np.random.default_rng(0)
        self.host_x = rng.standard_normal((2, 3, 9, 8)).astype("f4")
        self.host_w = rng.standard_normal((4, 3, 3, 3)).astype("f4")
        self.x, self.w = arrays.to_gpu(self.host_x), arrays.to_gpu(self.host_w)
        self.x_desc, self.w_desc = tensor(self.x.shape), libcudnn.cudnnCreateFilterDescriptor()
        libcudnn.cudnnSetFilter4dDescriptor(self.w_desc, FLOAT, NCHW, *self.w.shape)
        self.desc = libcudnn.cudnnCreateConvolutionDescriptor()
        cross = "CUDNN_CROSS_CORRELATION"
        libcudnn.cudnnSetConvolution2dDescriptor(self.desc, 0, 0, 1, 1, 1, 1, cross, FLOAT)
        libcudnn.cudnnSetConvolutionMathType(self.desc, "CUDNN_FMA_MATH")
        shape = libcudnn.cudnnGetConvolution2dForwardOutputDim(self.desc, self.x_desc, self.w_desc)
        self.y, self.y_desc = arrays.to_gpu(np.zeros(shape, "f4")), tensor(shape)
        self.operands = (self.x_desc, self.w_desc, self.desc, self.y_desc)

    def wanted(self):
        windows = np.lib.stride_tricks.sliding_window_view(self.host_x, (3, 3), (2, 3))
        return np.einsum("nchwij,kcij->nkhw", windows.astype("f8"), self.host_w)


@pytest.mark.parametrize(
    ("preference", "limit"),
    [("PREFER_FASTEST", 0), ("NO_WORKSPACE", 0), ("SPECIFY_WORKSPACE_LIMIT", 1 << 20)],
)
def test_convolution_by_a_removed_preference(arrays, handle, preference, limit):
    conv = Convolution(arrays)
    word = f"CUDNN_CONVOLUTION_FWD_{preference}"
    algo = libcudnn.cudnnGetConvolutionForwardAlgorithm(
        handle, *conv.operands, libcudnn.cudnnConvolutionFwdPreference[word], limit
    )
    size = libcudnn.cudnnGetConvolutionForwardWorkspaceSize(handle, *conv.operands, algo)
    assert isinstance(size, ctypes.c_size_t)
    if preference != "PREFER_FASTEST":
        assert size.value <= limit
    space = arrays.empty(max(size.value, 1), "u1")
    libcudnn.cudnnConvolutionForward(
        handle, 1.0, conv.x_desc, conv.x.gpudata, conv.w_desc, conv.w.gpudata, conv.desc, algo,
        space.gpudata, size, 0.0, conv.y_desc, ctypes.c_void_p(int(conv.y.gpudata)),
    )  # fmt: skip
    np.testing.assert_allclose(conv.y.get(), conv.wanted(), 1e-4, 1e-5)


def test_lists_of_algorithms(arrays, handle):
    conv = Convolution(arrays)
    count = libcudnn.cudnnGetConvolutionForwardAlgorithmMaxCount(handle)
    found = libcudnn.cudnnGetConvolutionForwardAlgorithm_v7(handle, *conv.operands, count)
    assert 0 < len(found) <= count
    assert all(isinstance(f.algo, libcudnn.cudnnConvolutionFwdAlgo_t) for f in found)
    assert any(f.status == libcudnn.CUDNN_STATUS_SUCCESS for f in found)
    timed = libcudnn.cudnnFindConvolutionForwardAlgorithm(handle, *conv.operands, 2)
    assert len(timed) == 2
    assert timed[0].time > 0
    assert timed[0].status == libcudnn.CUDNN_STATUS_SUCCESS
    assert timed[0].determinism.name.endswith("DETERMINISTIC")


def test_dropout_keeps_its_seed(arrays, handle):
    size = libcudnn.cudnnDropoutGetStatesSize(handle)
    states = arrays.empty(size.value, "u1")
    desc = libcudnn.cudnnCreateDropoutDescriptor()
    libcudnn.cudnnSetDropoutDescriptor(desc, handle, 0.25, states.gpudata, size, 4242)
    rate, address, seed = libcudnn.cudnnGetDropoutDescriptor(desc, handle)
    assert (rate, address, seed) == (0.25, int(states.gpudata), 4242)


def test_the_weights_of_an_rnn_are_addressed(arrays, handle):
    desc = libcudnn.cudnnCreateRNNDescriptor()
    libcudnn.cudnnSetRNNDescriptor_v8(
        desc, 0, "CUDNN_LSTM", "CUDNN_RNN_DOUBLE_BIAS", "CUDNN_UNIDIRECTIONAL",
        "CUDNN_LINEAR_INPUT", FLOAT, FLOAT, "CUDNN_DEFAULT_MATH", 5, 7, 7, 1, None, 0,
    )  # fmt: skip
    size = libcudnn.cudnnGetRNNWeightSpaceSize(handle, desc)
    assert size.value == 4 * 4 * (5 * 7 + 7 * 7 + 2 * 7)
    weights = arrays.empty(size.value, "u1")
    matrix, bias = (libcudnn.cudnnCreateTensorDescriptor() for _ in range(2))
    start = int(weights.gpudata)
    found = libcudnn.cudnnGetRNNWeightParams(handle, desc, 0, size, start, 1, matrix, bias)
    assert found == (start + 4 * 5 * 7, start + 4 * 4 * (5 * 7 + 7 * 7) + 4 * 7)
    assert libcudnn.cudnnGetTensorNdDescriptor(matrix, 3)[2] == (1, 7, 5)


def test_what_cudnn_refuses_says_so(arrays, handle):
    conv = Convolution(arrays)
    with pytest.raises(libcudnn.CudnnNotSupported) as caught:
        libcudnn.cudnnConvolutionForward(
            handle, 1.0, conv.x_desc, conv.x.gpudata, conv.w_desc, conv.w.gpudata, conv.desc,
            "CUDNN_CONVOLUTION_FWD_ALGO_DIRECT", 0, 0, 0.0, conv.y_desc, conv.y.gpudata,
        )  # fmt: skip
    assert caught.value.arguments["algo"] == "'CUDNN_CONVOLUTION_FWD_ALGO_DIRECT'"
