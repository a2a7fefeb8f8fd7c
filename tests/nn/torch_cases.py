"""Layers beside PyTorch's: the cases, which ``make_torch_layers.py`` computes with PyTorch.

Each case is (layer of symdnn.nn, layer of PyTorch, shape of the input). Inputs, parameters and the
weights of the loss are numbers that both sides make themselves; values are stored.
"""

import math
from typing import NamedTuple

import numpy as np


class Case(NamedTuple):
    ours: str
    theirs: str
    shape: tuple[int, ...]
    training: bool = True
    integers: int = 0  # the input is integers below this

    @property
    def key(self):
        """The name under which the values are stored."""
        return f"{self.ours}|{'x'.join(map(str, self.shape))}|{self.training}"


def numbers(shape, salt, scale=1.0):
    """Numbers between -scale and scale, the same everywhere, no two alike in a small array."""
    i = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(salt * 7919 + 1)
    for shift in (np.uint64(16), np.uint64(15)):
        i = ((i ^ (i >> shift)) * np.uint64(0x45D9F3B)) & np.uint64(0xFFFFFFFF)
    return ((i / 2.0**31 - 1.0) * scale).reshape(shape)


def inputs(case):
    """The input of a case."""
    if case.integers:
        return (np.abs(numbers(case.shape, 5)) * case.integers).astype(np.int64)
    return numbers(case.shape, 1, 2.0)


def parameter(name, shape, index):
    """The value of a parameter or a statistic."""
    value = numbers(shape, 10 + index, 0.7)
    return np.abs(value) + 0.5 if name.endswith("running_var") else value


def loss_weights(shape):
    """What the output is multiplied with before it is summed up."""
    return numbers(shape, 3)


CONVOLUTIONS = [
    Case("SpatialConvolution(3, 4, 3, 2)", "Conv2d(3, 4, (2, 3))", (2, 3, 5, 6)),
    Case(
        "SpatialConvolution(3, 4, 3, 2, 2, 1, 1, 0)",
        "Conv2d(3, 4, (2, 3), (1, 2), (0, 1))", (2, 3, 5, 6),
    ),
    Case("SpatialConvolution(4, 6, 3, 3, 1, 1, 1, 1, 2)", "Conv2d(4, 6, 3, 1, 1, groups=2)",
         (2, 4, 4, 5)),
    Case("SpatialConvolution(4, 4, 3, 3, 2, 2, 1, 1, 4)", "Conv2d(4, 4, 3, 2, 1, groups=4)",
         (1, 4, 6, 5)),
    Case(
        "SpatialConvolution(2, 3, kernel_size=(3, 2), stride=(2, 1), padding=(1, 0), "
        "dilation=(1, 2), bias=False)",
        "Conv2d(2, 3, (3, 2), (2, 1), (1, 0), (1, 2), bias=False)", (2, 2, 6, 7),
    ),
    Case("SpatialConvolution(2, 3, 4, 3, padding='same')", "Conv2d(2, 3, (3, 4), padding='same')",
         (2, 2, 5, 6)),
    Case("SpatialConvolution(3, 4, 3, 3)", "Conv2d(3, 4, 3)", (3, 5, 6)),
    Case("SpatialDilatedConvolution(2, 3, 3, 3, 1, 1, 2, 1, 2, 1)",
         "Conv2d(2, 3, 3, 1, (1, 2), (1, 2))", (2, 2, 5, 6)),
    Case("VolumetricConvolution(2, 3, 2, 3, 1)", "Conv3d(2, 3, (2, 1, 3))", (2, 2, 3, 4, 5)),
    Case(
        "VolumetricConvolution(2, 4, 2, 3, 3, 1, 2, 1, 1, 0, 1, 2)",
        "Conv3d(2, 4, (2, 3, 3), (1, 1, 2), (1, 1, 0), groups=2)", (1, 2, 3, 4, 5),
    ),
    Case("VolumetricConvolution(2, 3, 2, 2, 2)", "Conv3d(2, 3, 2)", (2, 3, 3, 4)),
    Case("TemporalConvolution(3, 4, 2, 2)", "Turned(Conv1d(3, 4, 2, 2))", (2, 5, 3)),
    Case("TemporalConvolution(3, 4, 3)", "Turned(Conv1d(3, 4, 3))", (5, 3)),
    Case(
        "TemporalConvolution(4, 6, 3, padding=2, dilation=2, groups=2, channels_first=True)",
        "Conv1d(4, 6, 3, padding=2, dilation=2, groups=2)", (2, 4, 6),
    ),
    Case("TemporalFullConvolution(4, 2, 3, 2, padding=1, output_padding=1)",
         "Turned(ConvTranspose1d(4, 2, 3, 2, 1, 1))", (2, 4, 4)),
    Case("SpatialFullConvolution(3, 4, 3, 2, 2, 1, 1, 0)",
         "ConvTranspose2d(3, 4, (2, 3), (1, 2), (0, 1))", (2, 3, 3, 4)),
    Case("SpatialFullConvolution(3, 4, 3, 3, 2, 2, 1, 1, 1, 0)",
         "ConvTranspose2d(3, 4, 3, 2, 1, (0, 1))", (2, 3, 3, 4)),
    Case("SpatialFullConvolution(4, 6, 2, 2, 2, 2, groups=2, bias=False)",
         "ConvTranspose2d(4, 6, 2, 2, groups=2, bias=False)", (1, 4, 3, 3)),
    Case("SpatialFullConvolution(2, 3, 3, 3, dilation=2)",
         "ConvTranspose2d(2, 3, 3, dilation=2)", (2, 3, 4)),
    Case("VolumetricFullConvolution(2, 3, 2, 3, 2, 2, 1, 2, 0, 1, 0, 1, 0, 0)",
         "ConvTranspose3d(2, 3, (2, 2, 3), (2, 2, 1), (0, 0, 1), (1, 0, 0))", (1, 2, 2, 3, 3)),
]  # fmt: skip

POOLING = [
    Case("SpatialMaxPooling(2, 2)", "MaxPool2d(2)", (2, 3, 5, 6)),
    Case("SpatialMaxPooling(3, 2, 2, 1)", "MaxPool2d((2, 3), (1, 2))", (2, 3, 5, 6)),
    Case("SpatialMaxPooling(3, 3, 2, 2, 1, 1)", "MaxPool2d(3, 2, 1)", (2, 3, 5, 6)),
    Case("SpatialMaxPooling(3, 3, 2, 2).ceil()", "MaxPool2d(3, 2, ceil_mode=True)", (2, 3, 6, 6)),
    Case("SpatialMaxPooling(3, 3, 2, 2, 1, 1).ceil()", "MaxPool2d(3, 2, 1, ceil_mode=True)",
         (2, 3, 6, 5)),
    Case("SpatialMaxPooling(2, 2, 3, 3, ceil_mode=True)", "MaxPool2d(2, 3, ceil_mode=True)",
         (1, 3, 7, 6)),
    Case("SpatialMaxPooling(2, 2, 3, 3, 1, 1, ceil_mode=True)",
         "MaxPool2d(2, 3, 1, ceil_mode=True)", (1, 3, 7, 6)),
    Case("SpatialMaxPooling(2, 2)", "MaxPool2d(2)", (3, 4, 4)),
    Case("SpatialAveragePooling(3, 2, 2, 1, 1, 1)", "AvgPool2d((2, 3), (1, 2), 1)", (2, 3, 5, 6)),
    Case("SpatialAveragePooling(3, 3, 2, 2, 1, 1).setCountExcludePad()",
         "AvgPool2d(3, 2, 1, count_include_pad=False)", (2, 3, 5, 6)),
    Case("SpatialAveragePooling(3, 3, 2, 2).ceil()", "AvgPool2d(3, 2, ceil_mode=True)",
         (2, 3, 6, 6)),
    Case("SpatialAveragePooling(3, 3, 2, 2, 1, 1, ceil_mode=True)",
         "AvgPool2d(3, 2, 1, ceil_mode=True)", (2, 3, 6, 5)),
    Case("SpatialAveragePooling(3, 3, 2, 2, 1, 1, ceil_mode=True, count_include_pad=False)",
         "AvgPool2d(3, 2, 1, True, False)", (2, 3, 6, 5)),
    Case("VolumetricMaxPooling(2, 3, 2, 1, 2, 2, 0, 1, 1)",
         "MaxPool3d((2, 2, 3), (1, 2, 2), (0, 1, 1))", (1, 2, 3, 4, 5)),
    Case("VolumetricMaxPooling(2, 2, 2).ceil()", "MaxPool3d(2, ceil_mode=True)", (2, 3, 4, 5)),
    Case("VolumetricAveragePooling(2, 2, 2, 2, 2, 2, 1, 1, 0)",
         "AvgPool3d(2, 2, (1, 0, 1))", (1, 2, 3, 4, 5)),
    Case("VolumetricAveragePooling(2, 2, 2, 2, 2, 2, 1, 1, 1, ceil_mode=True)",
         "AvgPool3d(2, 2, 1, True)", (1, 2, 4, 3, 5)),
    Case("TemporalMaxPooling(2, 1)", "Turned(MaxPool1d(2, 1))", (2, 5, 3)),
    Case("TemporalAveragePooling(3, channels_first=True)", "AvgPool1d(3)", (2, 3, 7)),
    Case("SpatialAdaptiveAveragePooling(2, 3)", "AdaptiveAvgPool2d((3, 2))", (2, 3, 6, 4)),
    Case("SpatialAdaptiveAveragePooling(3, 4)", "AdaptiveAvgPool2d((4, 3))", (2, 3, 7, 5)),
    Case("SpatialAdaptiveAveragePooling(5, 1)", "AdaptiveAvgPool2d((1, 5))", (2, 3, 3)),
    Case("SpatialAdaptiveMaxPooling(3, 4)", "AdaptiveMaxPool2d((4, 3))", (2, 3, 7, 5)),
    Case("SpatialAdaptiveMaxPooling(output_size=(None, 2))", "AdaptiveMaxPool2d((None, 2))",
         (1, 3, 3, 5)),
    Case("VolumetricAdaptiveMaxPooling(1, 2, 3)", "AdaptiveMaxPool3d((1, 3, 2))", (1, 2, 3, 4, 5)),
    Case("VolumetricAdaptiveAveragePooling(2, 2, 3)", "AdaptiveAvgPool3d((2, 3, 2))",
         (2, 3, 4, 5)),
    Case("TemporalAdaptiveAveragePooling(3)", "Turned(AdaptiveAvgPool1d(3))", (2, 5, 3)),
    Case("GlobalAveragePooling()", "Seq(AdaptiveAvgPool2d(1), Flatten())", (2, 3, 4, 5)),
    Case("GlobalMaxPooling()", "Seq(AdaptiveMaxPool3d(1), Flatten())", (2, 3, 2, 4, 3)),
]  # fmt: skip

ACTIVATIONS = [
    *(
        Case(f"{ours}", theirs, (3, 4, 5))
        for ours, theirs in [
            ("ReLU(True)", "ReLU()"), ("ClippedReLU(1.2)", "Hardtanh(0, 1.2)"),
            ("ReLU6()", "ReLU6()"), ("Tanh()", "Tanh()"), ("Sigmoid()", "Sigmoid()"),
            ("ELU(0.7)", "ELU(0.7)"), ("LeakyReLU(0.2)", "LeakyReLU(0.2)"),
            ("GELU()", "GELU()"), ("GELU('tanh')", "GELU('tanh')"), ("SiLU()", "SiLU()"),
            ("Mish()", "Mish()"), ("SELU()", "SELU()"), ("SoftPlus()", "Softplus()"),
            ("Softplus(2)", "Softplus(2)"), ("SoftSign()", "Softsign()"),
            ("LogSigmoid()", "LogSigmoid()"), ("HardSigmoid()", "Hardsigmoid()"),
            ("HardSwish()", "Hardswish()"), ("HardTanh(-0.5, 0.8)", "Hardtanh(-0.5, 0.8)"),
            ("Threshold(0.3, -1)", "Threshold(0.3, -1)"), ("HardShrink(0.4)", "Hardshrink(0.4)"),
            ("SoftShrink(0.4)", "Softshrink(0.4)"), ("TanhShrink()", "Tanhshrink()"),
            ("PReLU()", "PReLU()"), ("PReLU(4)", "PReLU(4)"),
        ]
    ),
    Case("SoftMax()", "Softmax(1)", (3, 5)),
    Case("SoftMax(True)", "Softmax(0)", (5,)),
    Case("SoftMax()", "OverImages(Softmax(1))", (2, 3, 4, 2)),
    Case("SoftMax()", "Alone(OverImages(Softmax(1)))", (3, 4, 2)),
    Case("SoftMax(dim=-2)", "Softmax(-2)", (2, 3, 4)),
    Case("SoftMin()", "Softmin(1)", (3, 5)),
    Case("LogSoftMax()", "LogSoftmax(1)", (3, 5)),
    Case("LogSoftMax()", "OverImages(LogSoftmax(1))", (2, 3, 4, 2)),
    Case("SpatialSoftMax()", "Softmax(1)", (2, 3, 4, 2)),
    Case("SpatialSoftMax(True)", "Softmax(0)", (3, 4, 2)),
    Case("SpatialLogSoftMax()", "LogSoftmax(1)", (2, 3, 4, 2)),
    Case("VolumetricSoftMax()", "Softmax(1)", (2, 3, 2, 3, 2)),
    Case("VolumetricLogSoftMax()", "LogSoftmax(0)", (3, 2, 3, 2)),
]  # fmt: skip

NORMS = [
    *(
        Case(ours, theirs, shape, training)
        for training in (True, False)
        for ours, theirs, shape in [
            ("BatchNormalization(4)", "BatchNorm1d(4)", (5, 4)),
            ("BatchNormalization(3, 1e-3, 0.3)", "BatchNorm1d(3, 1e-3, 0.3)", (2, 3, 5)),
            ("BatchNormalization(4, affine=False)", "BatchNorm1d(4, affine=False)", (5, 4)),
            ("SpatialBatchNormalization(3)", "BatchNorm2d(3)", (2, 3, 3, 4)),
            ("SpatialBatchNormalization(3)", "Alone(BatchNorm2d(3))", (3, 3, 4)),
            ("SpatialBatchNormalization(3, momentum=None)",
             "BatchNorm2d(3, track_running_stats=False)", (2, 3, 3, 4)),
            ("VolumetricBatchNormalization(2, 1e-3, 0.2)", "BatchNorm3d(2, 1e-3, 0.2)",
             (2, 2, 2, 3, 2)),
        ]
    ),
    Case("LayerNorm(5)", "LayerNorm(5)", (3, 4, 5)),
    Case("LayerNorm((4, 5), 1e-3)", "LayerNorm((4, 5), 1e-3)", (3, 4, 5)),
    Case("LayerNorm(5, affine=False)", "LayerNorm(5, elementwise_affine=False)", (4, 5)),
    Case("GroupNorm(2, 4)", "GroupNorm(2, 4)", (2, 4, 3, 3)),
    Case("GroupNorm(4, 4, affine=False)", "GroupNorm(4, 4, affine=False)", (2, 4, 3)),
    Case("InstanceNorm(3)", "InstanceNorm2d(3)", (2, 3, 3, 4)),
    Case("InstanceNorm(3, affine=True)", "InstanceNorm1d(3, affine=True)", (2, 3, 6)),
    Case("SpatialCrossMapLRN(3, 0.1, 0.6, 1.5)", "LocalResponseNorm(3, 0.1, 0.6, 1.5)",
         (2, 5, 2, 3)),
    Case("LRN(5, 0.2)", "Alone(LocalResponseNorm(5, 0.2))", (4, 2, 3)),
]  # fmt: skip

DENSE = [
    Case("Linear(4, 3)", "Linear(4, 3)", (5, 4)),
    Case("Linear(4, 3, bias=False)", "Linear(4, 3, bias=False)", (2, 5, 4)),
    Case("Linear(4, 3)", "Linear(4, 3)", (4,)),
    Case("LookupTable(7, 3)", "Embedding(7, 3)", (2, 5), integers=7),
    Case("LookupTable(7, 3, 2)", "Embedding(7, 3, padding_idx=2)", (12,), integers=7),
    Case("Dropout(0.5)", "Dropout(0.5)", (3, 4), training=False),
    Case("SpatialUpSamplingNearest(2)", "Upsample(scale_factor=2)", (2, 3, 3, 2)),
    Case("SpatialReflectionPadding(1, 2, 0, 1)", "ReflectionPad2d((1, 2, 0, 1))", (2, 3, 3, 4)),
    Case("SpatialReplicationPadding(1, 2, 0, 1)", "ReplicationPad2d((1, 2, 0, 1))", (3, 3, 4)),
    Case("SpatialZeroPadding(1, -1, 2, 0)", "ZeroPad2d((1, -1, 2, 0))", (2, 3, 3, 4)),
    Case(
        "Sequential(SpatialConvolution(3, 4, 3, 3, 1, 1, 1, 1), SpatialBatchNormalization(4), "
        "ReLU(), SpatialMaxPooling(2, 2), Flatten(), Linear(24, 5), LogSoftMax())",
        "Seq(Conv2d(3, 4, 3, 1, 1), BatchNorm2d(4), ReLU(), MaxPool2d(2), Flatten(), "
        "Linear(24, 5), LogSoftmax(1))", (2, 3, 4, 6),
    ),
]  # fmt: skip

#: The same text makes ours and PyTorch's.
TODAY = [
    Case(text, text, shape)
    for text, shape in [
        ("Conv1d(4, 6, 3, 2, 1, 1, 2)", (2, 4, 6)),
        ("Conv2d(3, 4, (2, 3), (1, 2), (0, 1), (1, 2), 1, False)", (2, 3, 5, 7)),
        ("Conv2d(2, 3, 3, padding='same')", (2, 4, 5)),
        ("Conv3d(2, 3, (2, 1, 3), padding=(1, 0, 1))", (1, 2, 3, 3, 4)),
        ("ConvTranspose1d(4, 6, 3, 2, 1, 1, 2)", (2, 4, 5)),
        ("ConvTranspose2d(3, 4, (2, 3), (1, 2), (0, 1), (0, 1))", (2, 3, 3, 4)),
        ("ConvTranspose3d(2, 3, 2, 2, dilation=2)", (1, 2, 2, 2, 3)),
        ("MaxPool1d(3, 2, 1)", (2, 3, 7)),
        ("MaxPool2d((2, 3), (1, 2), (1, 1), ceil_mode=True)", (2, 3, 4, 6)),
        ("MaxPool3d(2)", (1, 2, 4, 4, 5)),
        ("AvgPool1d(3, 2, 1)", (2, 3, 7)),
        ("AvgPool2d((2, 3), 2, (1, 0), False, False)", (2, 3, 4, 6)),
        ("AvgPool3d(2, 1)", (1, 2, 3, 3, 3)),
        ("AdaptiveAvgPool1d(3)", (2, 3, 7)),
        ("AdaptiveAvgPool2d((2, None))", (2, 3, 5, 3)),
        ("AdaptiveAvgPool3d(2)", (1, 2, 3, 4, 5)),
        ("AdaptiveMaxPool1d(3)", (2, 3, 7)),
        ("AdaptiveMaxPool2d((2, 3))", (2, 3, 5, 4)),
        ("AdaptiveMaxPool3d(2)", (1, 2, 3, 4, 5)),
        ("BatchNorm1d(3, 1e-3, 0.2)", (4, 3)),
        ("BatchNorm2d(3, affine=False, track_running_stats=False)", (2, 3, 2, 3)),
        ("BatchNorm3d(2)", (2, 2, 2, 3, 2)),
        ("InstanceNorm2d(3, affine=True)", (2, 3, 4, 3)),
        ("LocalResponseNorm(3, 0.2)", (2, 4, 2, 3)),
        ("Softmax(1)", (2, 3, 4)), ("LogSoftmax(-1)", (2, 3, 4)), ("Softmin(0)", (2, 3)),
        ("Hardtanh(-1, 0.5)", (3, 4)), ("Hardswish()", (3, 4)), ("Softshrink(0.3)", (3, 4)),
        ("ZeroPad2d((1, 0, 2, 1))", (1, 2, 3, 3)), ("ReflectionPad2d(1)", (1, 2, 3, 3)),
        ("ReplicationPad2d((1, 0, 2, 1))", (1, 2, 3, 3)),
    ]
] + [Case("Embedding(6, 3, 1)", "Embedding(6, 3, 1)", (2, 4), integers=6)]  # fmt: skip

CASES = [*CONVOLUTIONS, *POOLING, *ACTIVATIONS, *NORMS, *DENSE, *TODAY]
