"""What runs an op on images with channels last where no kernel takes that layout.

The operands are brought into the order (N, C, \\*sizes) in scratch memory, a kernel for that order
runs, and the results are brought back. Slow, and right: the layout of a graph is settled from
types, and what a kernel does not take is seen only when a plan is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from symdnn.gpu.cudnn.kernel import CUDNN, aligned, copy
from symdnn.gpu.device.array import RawArray
from symdnn.graph.kernel import Call, Kernel, sized
from symdnn.graph.substitute import Substitute
from symdnn.graph.type import numpy_dtype
from symdnn.ops.nn.channels_last import first_order, first_shape, is_image

__all__ = ["reordered"]


@dataclass(frozen=True)
class _Reordered(Substitute):
    """A :class:`Substitute` whose operands are copied into the order (N, C, \\*sizes) and back."""

    def refuses(self, call: Call) -> str | None:
        """What all kernels refuse in that order; and the order itself, which needs no change."""
        op: Any = call.op
        last = None if op.layout != "NCHW" else "the channels are not last"
        return super().refuses(call) or last

    def workspace_bytes(self, call: Call) -> int:
        """What the kernel needs, and room for the operands in the other order."""
        _, total = _places(call, aligned(super().workspace_bytes(call)))
        return total

    def bind(self, call: Call) -> Any:
        """Copies, the kernel's launch, copies back."""
        inner = super().bind(call)
        places, _ = _places(call, aligned(super().workspace_bytes(call)))
        count = len(call.inputs)

        def launch(env: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            seen = [_as_first(v) for v in (*inputs, *outputs)]
            dense = [_dense(env, v, at) for v, at in zip(seen, places, strict=True)]
            for v, d in zip(seen[:count], dense[:count]):
                if d is not v:
                    copy(env, v, d)
            inner(env, dense[:count], dense[count:])
            for v, d in zip(seen[count:], dense[count:]):
                if d is not v:
                    copy(env, d, v)

        return launch


def reordered(*kernels: Kernel) -> Substitute:
    """The first of ``kernels`` that takes the call in the order (N, C, \\*sizes)."""
    return _Reordered(
        in_first_order, "cuda", kernels, "cudnn.reordered", CUDNN, contiguous_inputs=True
    )


def in_first_order(call: Call) -> Call:
    """The same call on images of the order (N, C, \\*sizes)."""
    op: Any = call.op
    inputs, outputs = (
        sized(*[t.with_shape(first_shape(t.shape)) if is_image(t) else t for t in types])
        for types in (call.inputs, call.outputs)
    )
    return replace(call, op=replace(op, layout="NCHW"), inputs=inputs, outputs=outputs)


def _places(call: Call, start: int) -> tuple[list[int | None], int]:
    """Where in the workspace each operand goes (None: it is no image), and where the last ends."""
    places: list[int | None] = []
    for t in (*call.inputs, *call.outputs):
        places.append(start if is_image(t) else None)
        if is_image(t):
            start += aligned(prod(t.shape) * numpy_dtype(t.dtype).itemsize)
    return places, start


def _as_first(v: Any) -> Any:
    """An image seen in the order (N, C, \\*sizes); anything else as it is."""
    if not isinstance(v, RawArray) or len(v.shape) < 4:
        return v
    order = first_order(len(v.shape))
    shape, strides = (tuple(x[i] for i in order) for x in (v.shape, v.strides))
    return RawArray(v.ptr, shape, v.dtype, strides, v.owner)


def _dense(env: Any, v: Any, at: int | None) -> Any:
    """Memory for ``v`` without gaps: its own where it has none."""
    if at is None or v.contiguous:
        return v
    return RawArray(env.workspace + at, v.shape, v.dtype)
