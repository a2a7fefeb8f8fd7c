"""Theano's cuDNN modules: 1.0's ``gpuarray.dnn``, ``cudnn_defs``, 0.9's ``sandbox.cuda.dnn``."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("path", ["gpuarray", "sandbox.gpuarray", "sandbox.cuda"])
def test_availability_and_shapes(theano, path):
    import importlib

    dnn = importlib.import_module(f"theano.{path}.dnn")
    assert isinstance(dnn.dnn_present(), bool)
    assert isinstance(dnn.dnn_present.msg, str)
    assert isinstance(dnn.dnn_available(None), bool)
    assert isinstance(dnn.dnn_available.msg, str)
    assert dnn.version(raises=False) >= -1
    assert dnn.GpuDnnConv.get_out_shape((2, 3, 9, 9), (4, 3, 3, 3), "half", (2, 2), (1, 1)) == (
        2, 4, 5, 5,
    )  # fmt: skip
    if path == "sandbox.cuda":
        assert dnn.GpuDnnConv3d is dnn.GpuDnnConv
        assert dnn.GpuDnnConv3dGradI is dnn.GpuDnnConvGradI
        assert dnn.GpuDnnConv3dGradW is dnn.GpuDnnConvGradW
        assert issubclass(dnn.GpuDnnBatchNorm, dnn.GpuDnnBatchNormBase)
        assert float(dnn.ensure_float(None, 1.0, "alpha").data) == 1.0
        with pytest.raises(RuntimeError, match="cuDNN"):
            dnn.raise_no_cudnn()


def test_shapes_of_results_may_be_symbolic(theano, T):
    from theano.gpuarray import dnn

    x, w = T.tensor4(), T.tensor4()
    shape = dnn.GpuDnnConv.get_out_shape(x.shape, w.shape, (1, 0), (1, 2), (1, 1))
    f = theano.function([x, w], list(shape), on_unused_input="ignore")
    assert [int(v) for v in f(np.ones((2, 3, 7, 8)), np.ones((5, 3, 3, 3)))] == [2, 5, 7, 3]


def test_definitions(theano):
    from theano.configdefaults import config
    from theano.gpuarray import cudnn_defs, dnn

    for version, kind in ((5105, 5), (6021, 6), (7605, 7), (92800, 7), (None, 7)):
        assert cudnn_defs.get_definitions(version).version == kind
    d5, d7 = cudnn_defs.get_definitions(5105), cudnn_defs.get_definitions(7605)
    assert d7.cudnnPoolingMode_t.get_aliases() == (
        "max", "average_inc_pad", "average_exc_pad", "max_deterministic",
    )  # fmt: skip
    assert "max_deterministic" not in d5.cudnnPoolingMode_t.get_aliases()
    assert d7.cudnnConvolutionFwdAlgo_t.fromalias("winograd_non_fused") == 7
    assert d7.cudnnConvolutionFwdAlgo_t.CUDNN_CONVOLUTION_FWD_ALGO_FFT == 4
    assert d7.cudnnReduceTensorOp_t.has_alias("norm2")
    assert not d5.cudnnReduceTensorOp_t
    with pytest.raises(AttributeError):
        getattr(d7.cudnnDataType_t, "CUDNN_DATA_NO_SUCH")  # noqa: B009
    with pytest.raises(KeyError):
        d7.fwd_algo_supports_dtype_config("no such", "float32", "float32", 2)
    runtime = set(dnn.SUPPORTED_DNN_CONV_ALGO_RUNTIME)
    for direction, enum, listed in (
        ("fwd", "Fwd", dnn.SUPPORTED_DNN_CONV_ALGO_FWD),
        ("bwd_data", "BwdData", dnn.SUPPORTED_DNN_CONV_ALGO_BWD_DATA),
        ("bwd_filter", "BwdFilter", dnn.SUPPORTED_DNN_CONV_ALGO_BWD_FILTER),
    ):
        words = getattr(d7, f"cudnnConvolution{enum}Algo_t").get_aliases()
        assert set(listed) == set(words) | runtime
        takes = getattr(d7, f"{direction}_algo_supports_dtype_config")
        assert all(takes(w, *cudnn_defs.FLOAT_CONFIG, 2) for w in words)
        assert {w for w in words if takes(w, *cudnn_defs.FLOAT_CONFIG, 3)} >= set(
            getattr(d7, f"conv3d_{direction}_algorithms")) - {"fft_tiling"}  # fmt: skip
        assert not any(takes(w, *cudnn_defs.TRUE_HALF_CONFIG, 2) for w in words
                       if direction != "fwd")  # fmt: skip
    assert len(d7.get_supported_dtype_configs()) == 4
    assert len(d7.get_supported_dtype_configs(lambda *_: False)) == 3
    assert config.dnn.conv.precision in dnn.SUPPORTED_DNN_CONV_PRECISION


def test_ops_by_hand_with_theanos_arguments(theano, T):
    from theano.gpuarray import dnn

    x, w = np.random.rand(2, 3, 7, 6), np.random.rand(4, 3, 3, 2)
    X, W, out = T.dtensor4(), T.dtensor4(), T.dtensor4()
    desc = dnn.GpuDnnConvDesc(border_mode=(1, 0), subsample=(1, 2), dilation=(1, 1),
                              conv_mode="cross", precision="float64")(W.shape)  # fmt: skip
    y = dnn.GpuDnnConv(algo="none")(X, W, out, desc, 0.5, 2.0)
    plain = T.nnet.conv2d(X, W, border_mode=(1, 0), subsample=(1, 2), filter_flip=False)
    f = theano.function([X, W, out], [y, 0.5 * plain + 2 * out])
    o = np.random.rand(2, 4, 7, 3)
    np.testing.assert_allclose(*f(x, w, o), rtol=1e-6)
    pooled = dnn.GpuDnnPool(mode="average_exc_pad")(X, (3, 2), (2, 2), (1, 0))
    wanted = dnn.dnn_pool(X, (3, 2), (2, 2), "average_exc_pad", (1, 0))
    np.testing.assert_allclose(*theano.function([X], [pooled, wanted])(x))
    assert dnn.GpuDnnPoolDesc(ws=(2, 2, 2), stride=(1, 1, 1), pad=(0, 0, 0))().get_ndim() == 3
    with pytest.raises(ValueError):
        dnn.dnn_batch_normalization_train(X, X, X, running_mean=X)
    with pytest.raises(ValueError):
        dnn.dnn_batch_normalization_train(X, X, X, epsilon=1e-6)
