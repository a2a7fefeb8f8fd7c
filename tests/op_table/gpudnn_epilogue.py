from __future__ import annotations

import numpy as np

from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation
from tests.op_table.conv import loop_conv
from tests.op_table.record import OpCase, ending, normal

PAD = ((1, 1), (0, 0))
LOOP = {"pad": PAD, "stride": (2, 1), "dilation": (1, 1), "groups": 1, "flip": False}
X, W, Y = (2, 4, 6, 5), (3, 4, 3, 2), (2, 3, 3, 4)


def op(layout="NCHW", **terms):
    conv = GpuDnnConvBiasActivation(
        "none", padding=PAD, stride=(2, 1), dilation=(1, 1), conv_mode="cross", layout=layout
    )
    return ending(conv, **terms)


def last(draw):
    return lambda rng: np.ascontiguousarray(draw(rng).transpose(0, 2, 3, 1))


def first(a):
    return a.transpose(0, 3, 1, 2)


CASES = [
    OpCase("conv_bias_relu", (GpuDnnConvBiasActivation,), op(bias=True, activation="relu"),
           (normal(*X), normal(*W), normal(1, 3, 1, 1)),
           lambda x, w, b: np.maximum(loop_conv(x, w, **LOOP) + b, 0), grad=False),
    OpCase("conv_residual", (GpuDnnConvBiasActivation,), op(residual=-2.0, alpha=0.5),
           (normal(*X), normal(*W), normal(*Y)),
           lambda x, w, z: 0.5 * loop_conv(x, w, **LOOP) - 2 * z, grad=False),
    OpCase("conv_residual_bias_tanh", (GpuDnnConvBiasActivation,),
           op(residual=1.0, bias=True, activation="tanh"),
           (normal(*X), normal(*W), normal(*Y), normal(1, 3, 1, 1)),
           lambda x, w, z, b: np.tanh(loop_conv(x, w, **LOOP) + z + b), grad=False),
    OpCase("conv_bias_channels_last", (GpuDnnConvBiasActivation,),
           op(bias=True, residual=1.0, layout="NHWC"),
           (last(normal(*X)), last(normal(*W)), last(normal(*Y)), normal(1, 1, 1, 3)),
           lambda x, w, z, b: loop_conv(first(x), first(w), **LOOP).transpose(0, 2, 3, 1) + z + b,
           grad=False),
]  # fmt: skip
