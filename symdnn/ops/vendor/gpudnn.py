"""The ``GpuDnn*`` ops: plain data that says what cuDNN is to run. No driver is needed for them.

Each carries ``unlowered``, the device-neutral op of the same meaning, from which types, shapes,
reference and gradient come (:mod:`symdnn.ops.lowered.lowered`). :mod:`symdnn.libraries.cudnn`
builds them, :mod:`symdnn.gpu` launches them. They may also be applied by hand with Theano's
constructors and arguments; on a CPU target they are then replaced by the neutral ops.
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
