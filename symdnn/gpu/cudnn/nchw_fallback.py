"""The fallback for NHWC ops of which no kernel takes that layout.

The operands are reordered to NCHW in the workspace, a kernel for NCHW runs, and the results are
reordered back. This is slow, but needed: layouts are chosen from types, and kernels may refuse
sizes later, when a plan is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from symdnn.gpu.cudnn.kernel import CUDNN, aligned, copy
from symdnn.gpu.device.array import RawArray
from symdnn.graph.kernel import Call, Kernel, sized
from symdnn.graph.substitute import Substitute
from symdnn.graph.type import numpy_dtype
from symdnn.ops.nn.channels_last import first_order, first_shape, is_image

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv


class _Reordered(Substitute):
    """A :class:`Substitute` whose operands are reordered to NCHW and back."""

    def refuses(self, call: Call) -> str | None:
        """Calls that all kernels refuse in NCHW, and calls that are in NCHW already."""
        op: Any = call.op
        last = None if op.layout != "NCHW" else "the channels are not last"
        return super().refuses(call) or last

    def workspace_bytes(self, call: Call) -> int:
        """The kernel's workspace, and room for the operands in NCHW."""
        _, total = _workspace_offsets(call, aligned(super().workspace_bytes(call)))
        return total

    def bind(self, call: Call) -> Any:
        """Copies, the kernel's launch, copies back."""
        inner = super().bind(call)
        places, _ = _workspace_offsets(call, aligned(super().workspace_bytes(call)))
        count = len(call.inputs)

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            seen = [_nchw_view(v) for v in (*inputs, *outputs)]
            dense = [_contiguous(env, v, at) for v, at in zip(seen, places, strict=True)]
            for v, d in zip(seen[:count], dense[:count]):
                if d is not v:
                    copy(env, v, d)
            inner(env, dense[:count], dense[count:])
            for v, d in zip(seen[count:], dense[count:]):
                if d is not v:
                    copy(env, d, v)

        return launch


def reordered(*kernels: Kernel) -> Substitute:
    """The first of ``kernels`` that takes the call in NCHW."""
    return _Reordered(in_nchw, "cuda", kernels, "cudnn.reordered", CUDNN, contiguous_inputs=True)


def in_nchw(call: Call) -> Call:
    """The same call in NCHW."""
    op: Any = call.op
    inputs, outputs = (
        sized(*[t.with_shape(first_shape(t.shape)) if is_image(t) else t for t in types])
        for types in (call.inputs, call.outputs)
    )
    return replace(call, op=replace(op, layout="NCHW"), inputs=inputs, outputs=outputs)


def _workspace_offsets(call: Call, start: int) -> tuple[list[int | None], int]:
    """Each operand's offset in the workspace (None for operands without a layout), and the end."""
    places: list[int | None] = []
    for t in (*call.inputs, *call.outputs):
        places.append(start if is_image(t) else None)
        if is_image(t):
            start += aligned(prod(t.shape) * numpy_dtype(t.dtype).itemsize)
    return places, start


def _nchw_view(v: object) -> Any:
    """The NCHW view of an array in NHWC; anything else as it is."""
    if not isinstance(v, RawArray) or len(v.shape) < 4:
        return v
    order = first_order(len(v.shape))
    shape, strides = (tuple(x[i] for i in order) for x in (v.shape, v.strides))
    return RawArray(v.ptr, shape, v.dtype, strides, v.owner)


def _contiguous(env: LaunchEnv, v: Any, at: int | None) -> Any:
    """``v`` if it is contiguous or without a layout, else an array at ``at`` in the workspace."""
    if at is None or v.contiguous:
        return v
    return RawArray(env.workspace + at, v.shape, v.dtype)
