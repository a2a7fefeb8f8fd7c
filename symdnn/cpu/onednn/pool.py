"""Pooling by oneDNN, and the gradient of its mean.

The gradient of a maximum is computed here: every tie gets the whole cotangent, while oneDNN gives
it to the first. In NHWC there is one pass for each element of a window, over rows of channels. In
NCHW the neutral op's kernels run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.elementwise import ElementwiseKernel
from symdnn.cpu.launch.scratch import as_contiguous
from symdnn.cpu.launch.traits import LLVM, NUMPY
from symdnn.cpu.onednn.kernel import (
    OnednnKernel,
    PlannedPrimitive,
    PrimitiveOperand,
    activation_layout,
    of_maxima,
)
from symdnn.cpu.onednn.objects import ALG, PROP, Layout, primitive
from symdnn.graph.kernel import Call, Kernel, Row, sized
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Arrays
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.nn.pool import MaxPoolGrad
from symdnn.ops.vendor.onednn import OneDnnPool, OneDnnPoolGrad


def _settings(op: Any, x: Layout, y: Layout) -> tuple[Any, ...]:
    """Strides, windows, dilation (none), and the padding before and after that give y's sizes."""
    after = [
        max((m - 1) * s + w - n - p, 0) if not op.ignore_border else p
        for n, m, w, s, p in zip(x.shape[2:], y.shape[2:], op.ws, op.stride, op.pad)
    ]
    return op.stride, op.ws, [0] * op.ndim, op.pad, after


def _algorithm(op: Any) -> int:
    # A window that is cut off at the border has fewer elements; padding does not count.
    mode = op.mode if op.ignore_border or op.mode == "max" else "average_exc_pad"
    return ALG[mode]


class PoolKernel(OnednnKernel[OneDnnPool | OneDnnPoolGrad]):
    """Pooling, and the gradient of a mean (``dnnl_pooling_forward``, ``dnnl_pooling_backward``)."""

    name = "onednn.pool"

    takes_bfloat16 = True

    def refuses_types(self, call: Call[OneDnnPool | OneDnnPoolGrad]) -> str | None:
        """Refuses the gradient of a maximum, and ops that no rewrite lowers."""
        op: Any = call.op.op
        if op.mode == "sum" or not op.ndim + 2 == call.inputs[0].ndim <= 5:
            return "oneDNN pools (N, C) and 1 to 3 sizes, and has no sums"
        if isinstance(call.op.op, MaxPoolGrad):
            return "oneDNN gives the gradient of a maximum to one of several ties"
        return super().refuses_types(call)

    def planned(self, call: Call[OneDnnPool | OneDnnPoolGrad]) -> PlannedPrimitive:
        """The forward or backward primitive."""
        op = call.op
        small = activation_layout(call.outputs[0], op.layout)
        large = activation_layout(call.inputs[0], op.layout)
        if isinstance(op, OneDnnPoolGrad):
            small, large = large, small
        words = (_algorithm(op.op), large, small, *_settings(op.op, large, small))
        forward = primitive("pooling_forward", PROP["inference"], *words)
        if isinstance(op, OneDnnPool):
            return PlannedPrimitive(
                forward,
                [PrimitiveOperand("src", large, 0), PrimitiveOperand("dst", small, 0, True)],
            )
        made = primitive(
            "pooling_backward", *words, primitive("pooling_forward", PROP["training"], *words)
        )
        return PlannedPrimitive(
            made,
            [PrimitiveOperand("diff_dst", small, 0), PrimitiveOperand("diff_src", large, 0, True)],
        )

    def bind(self, call: Call[OneDnnPool | OneDnnPoolGrad]) -> Any:
        """A launch; the reference computes maxima of NaN and -inf, which oneDNN does not have."""
        launch = super().bind(call)
        op: Any = call.op
        return launch if op.op.mode != "max" else of_maxima(launch, op)


class MaxPoolGradTiles(Kernel[OneDnnPoolGrad]):
    """The gradient of a maximum in NHWC if windows tile the plane: one compiled elementwise loop.

    The elements of windows are dimensions of their own in a view of x, along which y and dy
    broadcast.
    """

    name = "llvm.pool_grad"
    traits = LLVM

    def refuses(self, call: Call[OneDnnPoolGrad]) -> str | None:
        """Refuses windows that overlap, leave gaps or are cut off."""
        op = call.op
        if op.layout == "NCHW" or not isinstance(op.op, MaxPoolGrad):
            return "it is for maxima of images with channels last"
        x, y, _ = call.inputs
        if op.op.stride != op.op.ws or any(op.op.pad):
            return "its windows do not tile the image"
        if not x.is_static:
            return None
        sizes = zip(x.shape[1:-1], y.shape[1:-1], op.op.ws)
        if any(n != m * w for n, m, w in sizes):
            return "its windows do not tile the image"
        return ElementwiseKernel().refuses(_as_elementwise(call))

    def bind(self, call: Call[OneDnnPoolGrad]) -> Any:
        """The elementwise kernel's launch on views."""
        inner = _as_elementwise(call)
        run = ElementwiseKernel().bind(inner)
        shapes = [t.shape for t in (*inner.inputs, *inner.outputs)]

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            x, y, dy, dx = (
                as_contiguous(a).reshape(s) for a, s in zip((*inputs, *outputs), shapes)
            )
            run([x, y, dy], [dx])

        return launch


def _as_elementwise(call: Call) -> Call[FusedElemwise]:
    """``where(x == y, dy, 0)`` on (N, count, window, ..., C); y and dy have 1 for a window."""
    x, y, _ = call.inputs
    dtype: str = x.dtype
    ws = call.op.op.ws  # type: ignore[attr-defined]
    n, *counts, c = y.shape
    wide = (n, *itertools.chain(*zip(counts, ws)), c)
    narrow = (n, *itertools.chain(*zip(counts, [1] * len(ws))), c)
    large, small = TensorType(dtype, wide), TensorType(dtype, narrow)
    op = FusedElemwise(_where_equal(dtype))
    return Call(op, sized(large, small, small), sized(large), call.hints)


def _where_equal(dtype: str) -> ScalarProgram:
    b = Builder((dtype,) * 3)
    return b.program(
        [b.select(b.call("eq", b.input(0), b.input(1)), b.input(2), b.const(0, dtype))]
    )


class MaxPoolGradNhwc(Kernel[OneDnnPoolGrad]):
    """The gradient of a maximum in NHWC, by NumPy."""

    name = "numpy.pool_grad"
    traits = NUMPY

    def refuses(self, call: Call[OneDnnPoolGrad]) -> str | None:
        """Refuses NCHW, and means."""
        op = call.op
        if op.layout == "NCHW" or not isinstance(op.op, MaxPoolGrad):
            return "it is for maxima of images with channels last"
        return None

    def bind(self, call: Call[OneDnnPoolGrad]) -> Any:
        """A launch with one pass over the output for each element of a window."""
        op: Any = call.op.op
        sizes = [int(d) for d in call.inputs[0].shape[1:-1]]
        counts = [int(d) for d in call.inputs[1].shape[1:-1]]
        found = (_places(o, sizes, counts, op) for o in itertools.product(*map(range, op.ws)))
        places = [place for place in found if place is not None]
        alone = all(s >= w for s, w in zip(op.stride, op.ws))

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            x, y, dy = inputs
            dx = outputs[0]
            dx.fill(0)
            for large, small in places:
                hit = x[large] == y[small]
                if alone:
                    np.multiply(dy[small], hit, out=dx[large])
                else:
                    dx[large] += dy[small] * hit

        return launch


def _places(offset: Sequence[int], sizes: Any, counts: Any, op: Any) -> tuple[Any, Any] | None:
    """Slices of x with the elements at this offset of all windows, and of y with these windows."""
    large: list[Any] = [slice(None)]
    small: list[Any] = [slice(None)]
    for o, n, m, s, p in zip(offset, sizes, counts, op.stride, op.pad):
        first = max(0, -(-(p - o) // s))  # the first window whose element is not padding
        last = min(m - 1, (n - 1 + p - o) // s)
        if last < first:
            return None
        begin = first * s + o - p
        large.append(slice(begin, (last - first) * s + begin + 1, s))
        small.append(slice(first, last + 1))
    return tuple(large), tuple(small)


KERNELS: tuple[Row, ...] = (
    ((OneDnnPool,), (PoolKernel(),)),
    ((OneDnnPoolGrad,), (PoolKernel(), MaxPoolGradTiles(), MaxPoolGradNhwc())),
)
