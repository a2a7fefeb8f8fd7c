"""Need 21: mixed precision and TF32 are the user's choice, and visible in the report."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from tests.gpu.fake_cudnn import F32, conv
from tests.gpu.fake_cudnn import run as launch
from tests.needs.on_each_device import device  # noqa: F401

EXACT, ROUNDED = 1e-5, 5e-3  # relative errors: of float32, and of TF32's 10 bits


@pytest.mark.parametrize(
    ("dtype", "flags", "compute", "math"),
    [
        (F32, {}, "float32", "FMA_MATH"),
        (F32, {"dnn.conv.precision": "tf32"}, "float32", "DEFAULT_MATH"),
        (F32, {"dnn.conv.allow_tf32": True}, "float32", "DEFAULT_MATH"),
        ("float16", {}, "float32", "TENSOR_OP_MATH"),
        ("float16", {"dnn.conv.precision": "float16"}, "float16", "TENSOR_OP_MATH"),
        ("bfloat16", {}, "float32", "TENSOR_OP_MATH"),
    ],
)
def test_what_cudnn_is_asked_for(fake, dtype, flags, compute, math):
    with config.change_flags(flags):
        launch(fake, conv(dtype=dtype))
    how = fake.only("cudnnConvolutionForward")[6]
    assert (how.compute, how.math) == (compute, math)


def product_error(flags):
    """The relative error of a convolution with its gradients, and the report of its layers."""
    rng = np.random.default_rng(0)
    image, kernel = (rng.normal(size=s).astype("float32") for s in ((4, 32, 9, 9), (64, 32, 3, 3)))

    def results(dtype, mode):
        x, w = (T.TensorType(dtype, (None,) * 4)(n) for n in "xw")
        y = T.nnet.conv2d(x, w, border_mode="half")
        outputs = [y, *symdnn.grad((y * y).sum(), [x, w])]
        f = symdnn.function([x, w], outputs, mode=mode)
        return [np.asarray(v) for v in f(image.astype(dtype), kernel.astype(dtype))], f

    want, _ = results("float64", symdnn.Mode(target="cpu", optimizer="None"))
    with config.change_flags(flags):
        got, f = results("float32", None)
    errors = [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, want)]
    return max(errors), str(f.dnn_report())


@pytest.mark.cpu
def test_float32_is_float32_on_a_processor():
    assert product_error({"device": "cpu"})[0] < EXACT


@pytest.mark.gpu
def test_float32_is_float32_on_a_card_unless_allowed(cuda):
    exact, report = product_error({"device": "cuda"})
    assert exact < EXACT
    assert "tf32" not in report
    for flag in ({"dnn.conv.precision": "tf32"}, {"dnn.conv.allow_tf32": True}):
        rounded, report = product_error({"device": "cuda", **flag})
        assert EXACT < rounded < ROUNDED
        assert "tf32" in report


@pytest.mark.gpu
def test_gradients_of_16_bits_are_summed_in_32(cuda):
    """4096 terms of 1: a sum in float16 would stop at 2048."""
    x, w = (T.TensorType("float16", (None,) * 4)(n) for n in "xw")
    slope = symdnn.grad(T.nnet.conv2d(x, w).sum(dtype="float32"), w)
    with config.change_flags(device="cuda"):
        f = symdnn.function([x, w], slope)
    got = f(np.ones((1, 8, 64, 64), "float16"), np.ones((8, 8, 1, 1), "float16"))
    np.testing.assert_array_equal(np.asarray(got, "float32"), 4096)
