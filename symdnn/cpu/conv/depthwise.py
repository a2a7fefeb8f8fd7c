"""Depthwise convolutions by compiled loops, preferred to oneDNN's.

oneDNN has none in NCHW, and reorders there and back take several times as long as the convolution.
Measured on two cores with AVX-512, 16 samples, forward, gradient of the input, gradient of the
filters, 3x3 filters. NCHW: 64x56x56 takes 0.5 ms each (oneDNN 2.2, 1.5 and 1.4), 1024x7x7 0.14,
0.14 and 0.22 (0.58, 0.46 and 0.38). NHWC: 56x56x64 takes 0.5 and 0.46 ms (0.57 and 0.62), 7x7x1024
0.13, 0.17 and 0.14 (0.18, 0.23 and 0.30). With 7x7 filters 56x56x96 takes 2 ms each (3.8, 4.1, 24).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.conv.depthwise_grad_ir import depthwise_grad_ir
from symdnn.cpu.conv.depthwise_ir import ACTIVATIONS, depthwise_ir
from symdnn.cpu.conv.depthwise_nhwc_grad_ir import depthwise_nhwc_grad_ir
from symdnn.cpu.conv.depthwise_nhwc_ir import depthwise_nhwc_ir, nhwc_tasks
from symdnn.cpu.conv.depthwise_plan import Depth, DepthwisePlan
from symdnn.cpu.ir.builder import WIDTH
from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.nn.channels_last import first_shape
from symdnn.ops.nn.conv import resolved_padding
from symdnn.ops.vendor.onednn import OneDnnConv, OneDnnConvGradI, OneDnnConvGradW

#: In NHWC: limits of all weights, of which each thread has a reordered copy, and of the strides'
#: product.
_MAX_NHWC_WEIGHTS, _MAX_NHWC_STRIDES = 1 << 16, 16
#: For the gradient of small filters in NHWC: vectors of channels for each thread. With fewer,
#: memory is read at half the speed.
_MIN_VECTORS_PER_THREAD = 4
#: Limits of the weights of a filter and of results for a channel: the code would be too long. (For
#: the gradient of larger filters oneDNN has only GEMM.)
_MAX_FILTER_WEIGHTS, _MAX_MULTIPLIER = {"forward": 125, "grad_input": 125, "grad_filter": 441}, 4
#: With fewer multiplications compiling gains nothing; multiplications for which waking up another
#: thread pays.
_MIN_MULTIPLICATIONS_TO_COMPILE, _MULTIPLICATIONS_PER_THREAD = 1 << 10, 1 << 17
_KINDS = {OneDnnConv: "forward", OneDnnConvGradI: "grad_input", OneDnnConvGradW: "grad_filter"}
#: Indices of x, w and y in (*inputs, output).
_OPERANDS = {"forward": (0, 1, -1), "grad_input": (-1, 0, 1), "grad_filter": (0, -1, 1)}


class DepthwiseKernel(Kernel[OneDnnConv | OneDnnConvGradI | OneDnnConvGradW]):
    """Forward, with an epilogue, and both gradients; that of filters over one or two dimensions."""

    name = "llvm.depthwise"
    traits = LLVM

    def refuses(self, call: Call[OneDnnConv | OneDnnConvGradI | OneDnnConvGradW]) -> str | None:
        """Needs float32, as many groups as channels, and enough work."""
        op: Any = call.op
        volumes = op.ndim == 3 and op.layout == "NCHW" and not isinstance(op, OneDnnConvGradW)
        if not (op.op.groups > 1 or _is_of_planes(call)):
            return "it is for as many groups as channels"
        if op.ndim > 2 and not volumes:
            return "of volumes it computes results and gradients of images in NCHW alone"
        if getattr(op, "activation", "") not in ("", *ACTIVATIONS):
            return f"it has no {op.activation}"
        mode = str(config.cpu.compile)
        if mode == "never":
            return "cpu.compile=never"
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        host = op.host_inputs
        if any(t.dtype != "float32" for i, t in enumerate(types) if i not in host):
            return "it computes in float32"
        if all(t.is_static for t in types) and (reason := _static_refusal(call, mode)):
            return reason
        return jit.problem() or threads.problem() or None

    def library_use(self, call: Call[OneDnnConv | OneDnnConvGradI | OneDnnConvGradW]) -> LibraryUse:
        """The row of ``f.dnn_report()``."""
        return LibraryUse(
            str(config.cpu.compile), "depthwise", "symdnn", "llvm", 0, True, "float32",
            why="vectors of channels, more of them in registers than oneDNN's" if _is_nhwc(call.op)
            else "planes are convolved in NCHW, which oneDNN would reorder",
        )  # fmt: skip

    def bind(self, call: Call[OneDnnConv | OneDnnConvGradI | OneDnnConvGradW]) -> Launch[Array]:
        """A launch whose code is for these sizes."""
        plan = _plan(call)
        x, w, y = _shapes(call)
        make = depthwise_grad_ir if plan.kind == "grad_filter" else depthwise_ir
        count, tasks = (
            threads.threads(prod(y) * prod(w[2:]), _MULTIPLICATIONS_PER_THREAD),
            plan.tasks(x[0]),
        )
        if not _is_nhwc(call.op):
            run = threads.kernel(make, plan)
        elif plan.kind == "grad_filter":
            vectors = -(-x[1] // WIDTH)
            together = -(-vectors // count)
            tasks, run = (
                -(-vectors // together),
                threads.kernel(depthwise_nhwc_grad_ir, plan, together),
            )
        else:
            tasks, run = nhwc_tasks(plan, x[0]), threads.kernel(depthwise_nhwc_ir, plan)
        return ContiguousLaunch(run, [count, tasks, 1], len(plan.operands) - 1, tail=[x[0]])


def _shapes(call: Call) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shapes of (x, w, y); activations as (N, C, \\*sizes)."""
    types = (*call.inputs, *call.outputs)
    x, w, y = (tuple(types[i].shape) for i in _OPERANDS[_KINDS[type(call.op)]])
    return (first_shape(x), w, first_shape(y)) if _is_nhwc(call.op) else (x, w, y)


def _is_of_planes(call: Call) -> bool:
    """Whether there is one channel in and out, as of a convolution of signals."""
    op: Any = call.op
    types = (*call.inputs, *call.outputs)
    x, _, y = (types[i].shape for i in _OPERANDS[_KINDS[type(op)]])
    return bool(op.layout == "NCHW" and x[1] == y[1] == 1)


def _is_nhwc(op: Any) -> bool:
    """Whether activations are in NHWC."""
    return bool(op.layout != "NCHW" and op.ndim > 1)


def _static_refusal(call: Call, mode: str) -> str | None:
    """Reasons that need sizes."""
    x, w, y = _shapes(call)
    if 0 in (*x, *w, *y):
        return "it is empty"
    if w[1] != 1:
        return "it is for as many groups as channels"
    most = _MAX_FILTER_WEIGHTS[_KINDS[type(call.op)]]
    if prod(w[2:]) > most:
        return f"it is for filters of at most {most} weights"
    if _is_nhwc(call.op) and (reason := _nhwc_refusal(call, x, w, y)):
        return reason
    if isinstance(call.op, OneDnnConvGradI) and y[1] > _MAX_MULTIPLIER * x[1]:
        return f"it is for at most {_MAX_MULTIPLIER} output channels of a group"
    if mode == "auto" and prod(y) * prod(w[2:]) < _MIN_MULTIPLICATIONS_TO_COMPILE:
        return "there is too little work to compile for"
    return None


def _nhwc_refusal(call: Call, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> str | None:
    """Reasons in NHWC."""
    op: Any = call.op
    if x[1] != y[1]:
        return "with channels last it is for one result of each channel"
    vectors = x[1] // WIDTH // threads.allowed()
    if isinstance(op, OneDnnConvGradW) and prod(w[2:]) <= 9 and vectors < _MIN_VECTORS_PER_THREAD:
        return "oneDNN is as fast for few contiguous channels"
    if prod(w) > _MAX_NHWC_WEIGHTS or prod(op.op.stride) > _MAX_NHWC_STRIDES:
        return "in NHWC it is for fewer weights or smaller strides"
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
    depth = None
    if op.ndim == 3:
        depth = Depth(x[2], y[2], w[2], conv.stride[0], conv.dilation[0], pad[0])
    return DepthwisePlan(
        _KINDS[type(op)], pair(x[2:], 1), pair(y[2:], 1), pair(w[2:], 1), pair(conv.stride, 1),
        pair(conv.dilation, 1), pair(pad, 0), x[1], y[1] // x[1], bool(conv.flip),
        getattr(op, "bias", False), bool(getattr(op, "residual", 0)),
        getattr(op, "activation", ""), jit.vector_width() < WIDTH, depth,
    )  # fmt: skip


KERNELS: tuple[Row, ...] = (((OneDnnConv, OneDnnConvGradI, OneDnnConvGradW), (DepthwiseKernel(),)),)
