"""Batch and layer normalisation by oneDNN.

oneDNN's statistics are means and variances. Our ops keep ``1 / sqrt(variance + epsilon)`` instead
of the variance, so the statistics are converted: one number for each channel (layer normalisation:
for each row).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.onednn.kernel import (
    OnednnKernel,
    PlannedPrimitive,
    PrimitiveLaunch,
    PrimitiveOperand,
    activation_layout,
    contiguous,
)
from symdnn.cpu.onednn.objects import NORMALISATION, PROP, Layout, Primitive, primitive
from symdnn.graph.kernel import Call, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.vendor.onednn import (
    OneDnnBatchNorm,
    OneDnnBatchNormGrad,
    OneDnnBatchNormInference,
    OneDnnLayerNorm,
    OneDnnLayerNormGrad,
)

_SCALE_AND_SHIFT = NORMALISATION["scale"] | NORMALISATION["shift"]

# Forward: x, gamma, beta -> y, mean, variance. Inference reads the statistics too.
_FORWARD = ("src", "scale", "shift", "dst", "mean", "variance")
_INFERENCE = ("src", "scale", "shift", "mean", "variance", "dst")
# Backward: x, dy, gamma, mean, variance -> dx, dgamma, dbeta.
_BACKWARD = (
    "src", "diff_dst", "scale", "mean", "variance", "diff_src", "diff_scale", "diff_shift",
)  # fmt: skip
_WRITTEN = ("dst", "diff_src", "diff_scale", "diff_shift")


def _variance(invstd: Any, epsilon: float) -> Any:
    """The variance for which ``invstd`` is 1 / sqrt(variance + epsilon)."""
    r = invstd.astype(np.float64)
    with np.errstate(divide="ignore"):
        return (1 / (r * r) - epsilon).astype(np.float32)


def _invstd(variance: Array, epsilon: float) -> Any:
    return 1 / np.sqrt(variance + variance.dtype.type(epsilon))


class _NormKernel(OnednnKernel):
    """Base of normalisation kernels: training, inference and gradient."""

    #: Whether the gradient needs a shift operand, which it does not read.
    wants_shift = False

    def layouts(self, call: Call) -> tuple[Layout, Layout, Layout]:
        """Layouts of the activations, of a parameter, of a statistic."""
        raise NotImplementedError

    def forward(self, prop: str, call: Call, x: Layout, stat: Layout, flags: int) -> Primitive:
        """The forward primitive."""
        raise NotImplementedError

    def backward(self, call: Call, x: Layout, stat: Layout, forward: Primitive) -> Primitive:
        """The backward primitive."""
        raise NotImplementedError

    def statistics(self, ndim: int) -> tuple[int, ...]:
        """The axes that are normalised over."""
        raise NotImplementedError

    def features(self, call: Call) -> int | None:
        """The number of elements of each parameter; None while sizes are not known."""
        types = call.inputs
        return self.layouts(call)[1].shape[0] if all(t.is_static for t in types) else None

    def refuses_types(self, call: Call) -> str | None:
        """Refuses other axes, and parameters that broadcast."""
        op: Any = call.op.op  # type: ignore[attr-defined]
        types = call.inputs
        ndim, own = types[0].ndim, 2 if self.names(call) is _BACKWARD else 1
        if not 2 <= ndim <= 5 or tuple(op.axes) != self.statistics(ndim):
            return f"oneDNN does not normalise {ndim} dimensions over {op.axes}"
        features = self.features(call)
        if features is not None and prod(types[own].shape) != features:
            return "a parameter broadcasts"
        return super().refuses_types(call)

    def planned(self, call: Call) -> PlannedPrimitive:
        """The primitive; its operands are in the order of the call's inputs and outputs."""
        x, parameter, stat = self.layouts(call)
        names = self.names(call)
        if names is _INFERENCE:
            flags = _SCALE_AND_SHIFT | NORMALISATION["global_stats"]
            made = self.forward("inference", call, x, stat, flags)
        else:
            made = self.forward("training", call, x, stat, _SCALE_AND_SHIFT)
            if names is _BACKWARD:
                made = self.backward(call, x, stat, made)
        layouts = {"mean": stat, "variance": stat}
        for name in ("src", "dst", "diff_dst", "diff_src"):
            layouts[name] = x
        operands = [
            PrimitiveOperand(
                n, layouts.get(n, parameter), i, n in _WRITTEN or (names is _FORWARD and i > 2)
            )
            for i, n in enumerate(names)
        ]
        if names is _BACKWARD and self.wants_shift:
            operands.append(PrimitiveOperand("shift", parameter, 2))
        return PlannedPrimitive(made, operands)

    def names(self, call: Call) -> tuple[str, ...]:
        """oneDNN's names of the operands of this call's primitive."""
        if isinstance(call.op, OneDnnBatchNormInference):
            return _INFERENCE
        backward = isinstance(call.op, OneDnnBatchNormGrad | OneDnnLayerNormGrad)
        return _BACKWARD if backward else _FORWARD

    def bind(self, call: Call) -> Any:
        """A launch that also converts the statistics."""
        launcher = self.cached(call).launcher()
        names, op = self.names(call), call.op.op  # type: ignore[attr-defined]
        if names is _INFERENCE:
            return _inference(launcher)
        return (_backward if names is _BACKWARD else _forward)(launcher, op)


def _inference(launcher: PrimitiveLaunch) -> Any:
    def launch(inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        launcher.run([*inputs, outputs[0]], workspace)

    return launch


def _backward(launcher: PrimitiveLaunch, op: Any) -> Any:
    def launch(inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        x, dy, gamma, mean, invstd = inputs
        variance = _variance(invstd, op.epsilon)
        arrays = [x, dy, gamma, mean, variance, *outputs, gamma]
        launcher.run(arrays[: len(launcher.planned.operands)], workspace)

    return launch


def _forward(launcher: PrimitiveLaunch, op: Any) -> Any:
    epsilon, running = op.epsilon, getattr(op, "running", False)

    def launch(inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        x, gamma, beta, *old = inputs
        y, mean, invstd, *new = outputs
        launcher.run([x, gamma, beta, y, mean, invstd], workspace)
        variance = invstd.copy() if running else invstd
        np.copyto(invstd, _invstd(variance, epsilon))
        if running:
            factor, old_mean, old_variance = old
            m = x.size // max(mean.size, 1)
            unbiased = variance * np.float32(m / max(m - 1, 1))
            np.copyto(new[0], old_mean * (1 - factor) + mean * factor)
            np.copyto(new[1], old_variance * (1 - factor) + unbiased * factor)

    return launch


class BatchNormKernel(_NormKernel):
    """Batch normalisation, statistics for each channel (``dnnl_batch_normalization_*``)."""

    name = "onednn.batch_norm"

    takes_bfloat16 = True

    def statistics(self, ndim: int) -> tuple[int, ...]:
        return (0, *range(2, ndim))

    def layouts(self, call: Call) -> tuple[Layout, Layout, Layout]:
        x = activation_layout(call.inputs[0], call.op.layout)  # type: ignore[attr-defined]
        channels = Layout((x.shape[1],), "float32")
        return x, channels, channels

    def forward(self, prop: str, call: Call, x: Layout, stat: Layout, flags: int) -> Primitive:
        epsilon = float(call.op.op.epsilon)  # type: ignore[attr-defined]
        return primitive("batch_normalization_forward", PROP[prop], x, x, epsilon, flags)

    def backward(self, call: Call, x: Layout, stat: Layout, forward: Primitive) -> Primitive:
        epsilon = float(call.op.op.epsilon)  # type: ignore[attr-defined]
        return primitive(
            "batch_normalization_backward",
            PROP["backward"],
            x,
            x,
            x,
            epsilon,
            _SCALE_AND_SHIFT,
            forward,
        )


class LayerNormKernel(_NormKernel):
    """Normalisation over the last dimension (``dnnl_layer_normalization_*``)."""

    name = "onednn.layer_norm"
    wants_shift = True  # oneDNN 3.2 fails with "invalid arguments" without it

    def statistics(self, ndim: int) -> tuple[int, ...]:
        return (ndim - 1,)

    def layouts(self, call: Call) -> tuple[Layout, Layout, Layout]:
        x = contiguous(call.inputs[0])
        return x, Layout((x.shape[-1],), x.dtype), Layout(x.shape[:-1], x.dtype)

    def forward(self, prop: str, call: Call, x: Layout, stat: Layout, flags: int) -> Primitive:
        epsilon = float(call.op.op.epsilon)  # type: ignore[attr-defined]
        return primitive("layer_normalization_forward", PROP[prop], x, x, stat, epsilon, flags)

    def backward(self, call: Call, x: Layout, stat: Layout, forward: Primitive) -> Primitive:
        epsilon = float(call.op.op.epsilon)  # type: ignore[attr-defined]
        return primitive(
            "layer_normalization_backward", PROP["backward"], x, x, x, stat, epsilon,
            _SCALE_AND_SHIFT, forward,
        )  # fmt: skip


KERNELS: tuple[Row, ...] = (
    ((OneDnnBatchNorm, OneDnnBatchNormInference, OneDnnBatchNormGrad), (BatchNormKernel(),)),
    ((OneDnnLayerNorm, OneDnnLayerNormGrad), (LayerNormKernel(),)),
)
