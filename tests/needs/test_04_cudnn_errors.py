"""Need 4: an unsupported convolution raises one error that says which layer, and what would work.

The op's name, the user's file and line, shapes, dtypes, layout, cuDNN's version, the plans tried
with each refusal; and it falls back or stops as the flag says.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest

from symdnn.config import config
from symdnn.errors import CudnnError
from symdnn.gpu import dnn, libcudnn
from symdnn.gpu.conv.algorithm import UnsupportedAlgorithm
from symdnn.graph.type import TensorType
from tests.gpu.fake_cudnn import unsupported
from tests.gpu.with_cudnn import real_cudnn
from tests.needs.fake_card import compiled

__all__ = ["real_cudnn"]


def text_of(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def raised(dtype="float32", algo="fft", layout="NCHW", x=(2, 3, 8, 8), w=(4, 3, 3, 3)):
    """The error of a layer ``head`` in a call, as text."""
    image, kernel = TensorType(dtype, x)("x"), TensorType(dtype, w)("w")
    y = dnn.dnn_conv(image, kernel, border_mode=1, algo=algo)  # the user's line
    y.name = "head"
    flag = {"gpu.layout": layout.lower()}
    with config.change_flags(flag):
        f = compiled([image, kernel], y)
        with pytest.raises(UnsupportedAlgorithm) as caught:
            f(*(np.ones(s, image.type.numpy) for s in (x, w)))
    return text_of(caught.value)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ({}, ["float32(2, 3, 8, 8)", "NCHW"]),
        ({"dtype": "float64"}, ["float64(2, 3, 8, 8)", "NCHW"]),
        ({"dtype": "float16", "layout": "NHWC"}, ["float16", "layout NHWC"]),
        ({"x": (7, 3, 300, 5)}, ["float32(7, 3, 300, 5)"]),
    ],
)
def test_one_error_says_all(fake_card, words, parts):
    fake_card.refused = {4, 5}
    text = raised(**words)
    assert "algorithm 'fft' can't be used" in text
    assert "GpuDnnConv" in text
    assert 'test_04_cudnn_errors.py", line ' in text
    assert "the user's line" in text
    assert "cuDNN 9.19.0" in text
    for word in ("fft", "fft_tiling"):  # each that was refused, and each that works
        assert f"    {word}: cudnnGetConvolutionWorkspaceSize" in text
    for word in ("small", "none", "large", "winograd"):
        assert f"    {word}: works, 0 bytes of workspace" in text
    assert "    graph API: " in text
    for part in parts:
        assert part in text


def test_it_falls_back_where_the_flag_says_so(fake_card, caplog):
    fake_card.refused = {4}
    x, w = TensorType("float32", (2, 3, 8, 8))("x"), TensorType("float32", (4, 3, 3, 3))("w")
    y = dnn.dnn_conv(x, w, border_mode=1, algo="fft")
    y.name = "head"
    f = compiled([x, w], y)
    with (
        caplog.at_level(logging.WARNING, "symdnn.dnn"),
        config.change_flags({"dnn.conv.on_unsupported": "fallback"}),
    ):
        f(np.ones(x.type.shape, "float32"), np.ones(w.type.shape, "float32"))
    (row,) = f.dnn_report().rows
    assert (row.use.requested, row.use.used) == ("fft", "small")
    assert (row.use.fallback.asked, row.use.fallback.got) == ("fft", "small")
    (line,) = caplog.messages
    assert line.startswith("head fwd (")
    assert "test_04_cudnn_errors.py" in line
    assert "asked for fft, got small: cudnnGetConvolutionWorkspaceSize" in line
    assert line.split(": ", 1)[1] in str(f.dnn_report())


def test_a_failing_launch_has_the_version(fake):
    from tests.gpu.fake_cudnn import conv, run

    def fail(*args):
        raise unsupported("cudnnConvolutionForward")

    fake.answers["cudnnConvolutionForward"] = fail
    with pytest.raises(CudnnError) as caught:
        run(fake, conv())
    assert "cuDNN 9.19.0" in text_of(caught.value)


def test_the_real_library_names_itself(real_cudnn):
    made = libcudnn.cudnnCreateTensorDescriptor()
    with pytest.raises(CudnnError) as caught:
        libcudnn.cudnnSetTensor4dDescriptor(made, 0, 0, -1, 1, 1, 1)
    assert "cuDNN " + ".".join(map(str, real_cudnn.version)) in text_of(caught.value)


@pytest.mark.gpu
def test_on_a_card(card):
    """Hopper has no ``winograd``."""
    x, w = TensorType("float32", (2, 3, 8, 8))("x"), TensorType("float32", (4, 3, 3, 3))("w")
    f = compiled([x, w], dnn.dnn_conv(x, w, border_mode=1, algo="fft", subsample=(2, 2)))
    with pytest.raises(UnsupportedAlgorithm) as caught:
        f(np.ones(x.type.shape, "float32"), np.ones(w.type.shape, "float32"))
    text = text_of(caught.value)
    number = int(libcudnn.cudnnGetVersion())
    assert f"cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}" in text
    parts = "GpuDnnConv", "test_04_cudnn_errors.py", "float32(2, 3, 8, 8)", "    fft: ", "works"
    for part in parts:
        assert part in text
