"""Depthwise convolutions by our own kernel, computed here: all forms, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from symdnn.config import config
from symdnn.gpu import registry
from symdnn.gpu.conv.depthwise import DepthwiseKernel
from symdnn.graph.kernel import Call, kernels_for
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType
from symdnn.ops.vendor.gpudnn import GpuDnnConv, GpuDnnConvGradI
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
registry.load()
KERNEL = DepthwiseKernel()


def fields(channels: int, **changed: Any) -> dict[str, Any]:
    return {
        "padding": ((1, 1), (1, 1)), "stride": (1, 1), "dilation": (1, 1), "conv_mode": "cross",
        "precision": "float32", "layout": "NHWC", "num_groups": channels, **changed,
    }  # fmt: skip


def drawn(dtype: str, *shape: int) -> np.ndarray:
    return new_rng().standard_normal(shape).astype(TensorType(dtype).numpy)


def same(op: Any, *arrays: np.ndarray) -> None:
    call = concrete(op, list(arrays))
    assert KERNEL.refuses(call) is None
    assert kernels_for(type(op), "cuda")[0].name == "cuda.depthwise"
    (found,), env = emulator.run(KERNEL, call, list(arrays))
    wide = [a.astype("float32") if a.dtype.kind in "fV" else a for a in arrays]
    wanted = op.compute(*wide)[0]
    tolerance = 1e-4 if found.dtype == np.float32 else 3e-2
    np.testing.assert_allclose(found.astype("float32"), wanted, rtol=tolerance, atol=tolerance)
    assert env.launched == ["depthwise"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("taps", [(3, 3), (5, 7), (1, 2)])
def test_forward(dtype, taps):
    for channels, stride, mode in (
        (6, (1, 1), "cross"),
        (20, (2, 2), "conv"),
        (6, (1, 2), "cross"),
    ):
        x, w = drawn(dtype, 2, 9, 11, channels), drawn(dtype, channels, *taps, 1)
        pads = tuple((k // 2, k // 2) for k in taps)
        same(GpuDnnConv(**fields(channels, padding=pads, stride=stride, conv_mode=mode)), x, w)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_images_at_any_address(dtype):
    x, w = drawn(dtype, 2, 9, 11, 6), drawn(dtype, 6, 3, 3, 1)
    _, memory = emulator.device_copy(np.zeros(x.size + 1, x.dtype))
    shifted = memory[1:].reshape(x.shape)
    shifted[...] = x
    same(GpuDnnConv(**fields(6)), shifted, w)


@pytest.mark.parametrize("word", ["time_once", "kept_on_shape_change", "own_once", "winograd"])
def test_ways_to_choose_name_no_algorithm(word):
    op = GpuDnnConv(**fields(6), algo=word)
    call = concrete(op, [drawn("float32", 2, 9, 11, 6), drawn("float32", 6, 3, 3, 1)])
    named = "an algorithm of cuDNN is named"
    assert KERNEL.refuses(call) == (named if word == "winograd" else None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pad", [0, 1, 3])
def test_the_gradient_of_the_input(dtype, pad):
    for mode in ("cross", "conv"):
        x, w = drawn(dtype, 2, 9, 7, 6), drawn(dtype, 6, 5, 5, 1)
        forward = GpuDnnConv(**fields(6, padding=((pad, pad),) * 2, conv_mode=mode))
        dy = drawn(dtype, *forward.compute(*(a.astype("float32") for a in (x, w)))[0].shape)
        op = GpuDnnConvGradI(
            **fields(6, padding=((pad, pad),) * 2, conv_mode=mode, static=(None, None))
        )
        same(op, w, dy, np.int64(9), np.int64(7))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", ["", "relu", "swish"])
def test_what_follows_is_in_the_kernel(dtype, activation):
    x, w, b = drawn(dtype, 2, 9, 8, 6), drawn(dtype, 6, 3, 3, 1), drawn(dtype, 1, 1, 1, 6)
    plain = GpuDnnConvBiasActivation(**fields(6))
    same(plain.ending(dtype, bias=True, activation=activation), x, w, b)
    z = drawn(dtype, 2, 9, 8, 6)
    same(plain.ending(dtype, bias=True, residual=1.0, activation=activation), x, w, z, b)


def test_it_refuses_other_convolutions():
    def why(
        dtype: str = "float32", channels: int = 6, w: Any = (6, 3, 3, 1), **changed: Any
    ) -> Any:
        op = GpuDnnConv(**fields(channels, **changed))
        shape = (2, 9, 8, channels) if op.layout == "NHWC" else (2, channels, 9, 8)
        call = concrete(op, [drawn(dtype, *shape), drawn(dtype, *w)])
        return KERNEL.refuses(call)

    assert why() is None
    assert "algorithm" in why(algo="winograd")
    assert "filter a channel" in why(w=(12, 3, 3, 1))
    assert "even" in why(channels=5, w=(5, 3, 3, 1))
    assert "dilated" in why(dilation=(2, 1))
    assert "up to 7" in why(w=(6, 9, 3, 1), padding=((4, 4), (1, 1)))
    assert "stride" in why(stride=(3, 3))
    large = GpuDnnConv(**fields(96))
    types = [TensorType("bfloat16", s) for s in ((64, 56, 56, 96), (96, 3, 3, 1))]
    call = Call(large, tuple(types), (types[0],), NO_HINTS)
    assert "16 bits" in KERNEL.refuses(call)
    half = types[0].with_shape((32, 56, 56, 96))
    assert KERNEL.refuses(replace(call, inputs=(half, types[1]), outputs=(half,))) is None
    assert "channels last" in why(layout="NCHW", w=(6, 1, 3, 3))
    assert "no code for float64" in why("float64", precision="float64")
    assert "in float32" in why(precision="float64")
    with config.change_flags({"dnn.conv.algo_fwd": "time_once"}):
        assert why() is None
    with config.change_flags({"gpu.prefer": "cudnn"}):
        assert why() == "gpu.prefer=cudnn"
    known = concrete(GpuDnnConv(**fields(6)), [np.ones((2, 9, 8, 6)), np.ones((6, 3, 3, 1))])
    unknown = replace(known, inputs=(TensorType("float32", (None,) * 4),) * 2)
    assert "sizes" in KERNEL.refuses(unknown)
