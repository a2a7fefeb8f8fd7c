"""Depthwise convolutions of images with channels first, in front of oneDNN's.

oneDNN convolves them with channels last alone, and changing the order there and back takes several
times as long as the convolution. Measured on two cores with AVX-512, forward and both gradients, by
kernels of 3x3: 16 images of 64x56x56 take 0.5 ms each (oneDNN 2.2, 1.5 and 1.4), of 1024x7x7 0.14,
0.14 and 0.22 (0.58, 0.46 and 0.38). What lies with channels last stays oneDNN's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.cpu import jit, threads
from symdnn.cpu.depthwise_grad_ir import depthwise_sums_ir
from symdnn.cpu.depthwise_ir import DepthwisePlan, depthwise_ir
from symdnn.cpu.in_order import InOrder
from symdnn.graph.kernel import Call, Launch, register_kernel
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.type import TensorType
from symdnn.ops.conv import resolved_padding
from symdnn.ops.onednn import OneDnnConv, OneDnnConvGradI, OneDnnConvGradW

__all__ = ["DepthwiseKernel", "register"]

#: Kernels of more weights, and gradients of more results for a channel, are oneDNN's: their code
#: would be long. (oneDNN has products of matrices alone for the gradient in such kernels.)
_MOST_WEIGHTS, _MOST_MULTIPLIER = {"forward": 121, "images": 121, "kernels": 441}, 4
#: Products below which compiling gains nothing, and for which another thread is worth waking.
_LEAST_WORK, _WORK_OF_A_THREAD = 1 << 10, 1 << 17
_KINDS = {OneDnnConv: "forward", OneDnnConvGradI: "images", OneDnnConvGradW: "kernels"}
#: Where x, w and y are among inputs and outputs.
_OPERANDS = {"forward": (0, 1, -1), "images": (-1, 0, 1), "kernels": (0, -1, 1)}


class DepthwiseKernel:
    """Forward, with bias, addend and relu, and both gradients, over one or two dimensions."""

    name = "llvm.depthwise"

    def refuses(self, call: Call) -> str | None:
        """Takes float32 with as many groups as channels, channels first."""
        op: Any = call.op
        if op.layout != "NCHW" and op.ndim > 1:
            return "it is for the layout NCHW"
        if op.ndim > 2 or op.op.groups < 2:
            return "it is for one or two sizes, and as many groups as channels"
        if getattr(op, "activation", "") not in ("", "relu"):
            return f"it has no {op.activation}"
        wish = str(config.cpu.compile)
        if wish == "never":
            return "cpu.compile=never"
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        host = op.host_inputs
        if any(t.dtype != "float32" for i, t in enumerate(types) if i not in host):
            return "it computes in float32"
        if all(t.is_static for t in types) and (reason := _unfit(call, wish)):
            return reason
        return jit.problem() or threads.problem() or None

    def workspace_bytes(self, call: Call) -> int:
        """None."""
        return 0

    def library_use(self, call: Call) -> LibraryUse:
        """The row of ``f.dnn_report()``."""
        return LibraryUse(
            str(config.cpu.compile), "depthwise", "symdnn", "llvm", 0, True, "float32",
            why="planes are convolved as they lie, where oneDNN would change the order",
        )  # fmt: skip

    def bind(self, call: Call) -> Launch:
        """Compiled for these sizes."""
        plan = _plan(call)
        x, w, y = _shapes(call)
        make = depthwise_sums_ir if plan.kind == "kernels" else depthwise_ir
        count = threads.threads(prod(y) * prod(w[2:]), _WORK_OF_A_THREAD)
        head = [count, plan.tasks(x[0]), 1]
        return InOrder(threads.kernel(make, plan), head, len(plan.operands) - 1, tail=[x[0]])


def _shapes(call: Call) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(x, w, y)"""
    types: Any = (*call.inputs, *call.outputs)
    x, w, y = (tuple(types[i].shape) for i in _OPERANDS[_KINDS[type(call.op)]])
    return x, w, y


def _unfit(call: Call, wish: str) -> str | None:
    """Reasons that need sizes."""
    x, w, y = _shapes(call)
    if 0 in (*x, *w, *y):
        return "it is empty"
    if w[1] != 1:
        return "it is for as many groups as channels"
    most = _MOST_WEIGHTS[_KINDS[type(call.op)]]
    if prod(w[2:]) > most:
        return f"it is for kernels of at most {most} weights"
    if isinstance(call.op, OneDnnConvGradI) and y[1] > _MOST_MULTIPLIER * x[1]:
        return f"it is for at most {_MOST_MULTIPLIER} results of a channel"
    if wish == "auto" and prod(y) * prod(w[2:]) < _LEAST_WORK:
        return "it is too little to compile for"
    return None


def _plan(call: Call) -> DepthwisePlan:
    op: Any = call.op
    conv = op.op
    x, w, y = _shapes(call)

    def pair(values: Sequence[Any], other: int) -> tuple[int, int]:
        rows, columns = (other, *values)[-2:]
        return int(rows), int(columns)

    settings = zip(conv.padding, w[2:], conv.dilation)
    pad = [int(resolved_padding(p, k, d)[0]) for p, k, d in settings]
    return DepthwisePlan(
        _KINDS[type(op)], pair(x[2:], 1), pair(y[2:], 1), pair(w[2:], 1), pair(conv.stride, 1),
        pair(conv.dilation, 1), pair(pad, 0), x[1], y[1] // x[1], bool(conv.flip),
        getattr(op, "bias", False), getattr(op, "residual", False),
        getattr(op, "activation", "") == "relu",
    )  # fmt: skip


def register() -> None:
    """Enter the kernel into the table, in front of oneDNN's."""
    for op in (OneDnnConv, OneDnnConvGradI, OneDnnConvGradW):
        register_kernel(op, "cpu", DepthwiseKernel(), first=True)
