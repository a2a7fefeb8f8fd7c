"""The ``GpuDnn*`` ops: calls of cuDNN as plain data, which need no driver.

Each has ``unlowered``, the neutral op that computes the same, from which types, shapes, reference
and gradient come (:mod:`symdnn.ops.lowered.lowered`). :mod:`symdnn.libraries.cudnn` makes them,
:mod:`symdnn.gpu` launches them. Users may apply them too, with Theano's constructors and arguments;
on a CPU they are replaced by the neutral ops.
"""

from __future__ import annotations

from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.vendor.gpudnn_base import DnnBase
from symdnn.ops.vendor.gpudnn_conv import (
    DnnConvolution,
    GpuDnnConv,
    GpuDnnConvDesc,
    GpuDnnConvGradI,
    GpuDnnConvGradW,
    compute_precision,
)
from symdnn.ops.vendor.gpudnn_norm import (
    MIN_EPSILON,
    GpuDnnBatchNorm,
    GpuDnnBatchNormBase,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    GpuDnnLRN,
    GpuDnnLRNGrad,
)
from symdnn.ops.vendor.gpudnn_pool import (
    POOL_MODES,
    GpuDnnPool,
    GpuDnnPoolBase,
    GpuDnnPoolDesc,
    GpuDnnPoolGrad,
)
from symdnn.ops.vendor.gpudnn_rnn import (
    DROPOUT_RESERVE,
    GRADIENT_RESERVE,
    GpuDnnCTCLoss,
    GpuDnnDropoutGrad,
    GpuDnnDropoutOp,
    GpuDnnRNNBase,
    GpuDnnRNNGradInputs,
    GpuDnnRNNGradWeights,
    GpuDnnRNNOp,
)
from symdnn.ops.vendor.gpudnn_softmax import (
    GpuDnnActivation,
    GpuDnnReduction,
    GpuDnnSoftmax,
    GpuDnnSoftmaxBase,
    GpuDnnSoftmaxGrad,
)
from symdnn.ops.vendor.gpudnn_spatial_transformer import (
    GpuDnnTransformerGradI,
    GpuDnnTransformerGradT,
    GpuDnnTransformerGrid,
    GpuDnnTransformerSampler,
)

__all__ = [
    "DROPOUT_RESERVE", "GRADIENT_RESERVE", "MIN_EPSILON", "POOL_MODES", "DnnBase", "DnnConvolution",
    "GpuDnnActivation", "GpuDnnBatchNorm", "GpuDnnBatchNormBase", "GpuDnnBatchNormGrad",
    "GpuDnnBatchNormInference", "GpuDnnCTCLoss", "GpuDnnConv", "GpuDnnConvDesc",
    "GpuDnnConvGradI", "GpuDnnConvGradW", "GpuDnnDropoutGrad", "GpuDnnDropoutOp", "GpuDnnLRN",
    "GpuDnnLRNGrad", "GpuDnnPool", "GpuDnnPoolBase", "GpuDnnPoolDesc", "GpuDnnPoolGrad",
    "GpuDnnRNNBase", "GpuDnnRNNGradInputs", "GpuDnnRNNGradWeights", "GpuDnnRNNOp",
    "GpuDnnReduction", "GpuDnnSoftmax", "GpuDnnSoftmaxBase", "GpuDnnSoftmaxGrad",
    "GpuDnnTransformerGradI", "GpuDnnTransformerGradT", "GpuDnnTransformerGrid",
    "GpuDnnTransformerSampler", "Lowered", "compute_precision",
]  # fmt: skip
