"""Layer, group and instance norm: rows in registers, or a reduction and an elementwise kernel.

The second form is for statistics over dimensions that are no neighbours in memory, and for few
rows that are too long for registers, or that leave multiprocessors without work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.gpu.codegen.launches import KernelLaunch, Views
from symdnn.gpu.kernels.fused_rows import (
    column_bytes,
    keeps_busy,
    keeps_sums,
    rows_launches,
    takes_rows,
)
from symdnn.gpu.norm.batchnorm import BatchNormKernel
from symdnn.gpu.norm.norm import NormGradKernel, parameter_gradients
from symdnn.graph.kernel import Call, Row
from symdnn.ops.lowered.fused_rows import layer_norm_grad_rows, layer_norm_rows
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad


class LayerNormKernel(BatchNormKernel):
    """(y, mean, invstd) of (x, gamma, beta)."""

    name = "cuda.layer_norm"

    def launches(
        self, call: Call[Any], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel where rows are neighbours in memory and share the device evenly, else two."""
        op, x = layer_norm_rows(call.op, inputs[0].dtype), inputs[0]
        if x.size and takes_rows(op, [x, outputs[0]]) and keeps_busy(op, x.shape):
            return rows_launches(op, inputs, outputs)
        return super().launches(call, inputs, outputs)


class LayerNormGradKernel(NormGradKernel):
    """(dx, dgamma, dbeta) of (x, dy, gamma, mean, invstd)."""

    name = "cuda.layer_norm_grad"

    def workspace_bytes(self, call: Call[Any]) -> int:
        """The sums of blocks, or what the kernels of other forms need."""
        shape = call.inputs[0].shape
        op = layer_norm_grad_rows(call.op, call.inputs[0].dtype, True)
        own = column_bytes(op, shape) if _has_columns(call) else 0
        return max(super().workspace_bytes(call), own)

    def launches(
        self, call: Call[Any], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel for dx, with sums over rows where each block can keep them."""
        x, dy, gamma, mean, invstd = inputs
        columns = _has_columns(call)
        op = layer_norm_grad_rows(call.op, x.dtype, columns)
        kept = takes_rows(op, [x, dy, outputs[0]]) and keeps_sums(op, x.shape)
        if not x.size or not kept:
            return super().launches(call, inputs, outputs)
        given = [x, dy, mean, gamma, invstd]
        if columns:
            return rows_launches(op, given, outputs)
        sums = parameter_gradients([x, dy, mean, invstd], outputs[1:])
        return [*rows_launches(op, given, outputs[:1]), *sums]


def _has_columns(call: Call[Any]) -> bool:
    """Whether the parameters have a number for each place in a row."""
    x, gamma = call.inputs[0].shape, call.inputs[2].shape
    return all(g == (n if i in call.op.axes else 1) for i, (n, g) in enumerate(zip(x, gamma)))


KERNELS: tuple[Row, ...] = (
    ((LayerNorm,), (LayerNormKernel(),)),
    ((LayerNormGrad,), (LayerNormGradKernel(),)),
)
