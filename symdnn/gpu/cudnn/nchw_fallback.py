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
from symdnn.gpu.device.array import DeviceArray
from symdnn.graph.kernel import Call, Kernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.nn.channels_last import first_order, first_shape, is_image

__all__ = ["ReorderedKernel"]


@dataclass(frozen=True)
class ReorderedKernel(Kernel):
    """The first of ``kernels`` that takes the call in the order (N, C, \\*sizes)."""

    kernels: tuple[Kernel, ...]
    name: str = "cudnn.reordered"
    traits = CUDNN
    contiguous_inputs = True

    def refuses(self, call: Call) -> str | None:
        """What all kernels refuse in that order; and the order itself, which needs no change."""
        plain = in_first_order(call)
        reasons = dict.fromkeys(kernel.refuses(plain) for kernel in self.kernels)
        if None not in reasons:
            return "; ".join(map(str, reasons))
        return "the channels are not last" if plain.op == call.op else None

    def settled(self, call: Call) -> ReorderedKernel:
        """With the one kernel that runs, its own choices made."""
        plain, kernel = self._taken(call)
        return replace(self, kernels=(kernel.settled(plain),))

    def capturable(self, call: Call) -> bool:
        """As the kernel that runs."""
        plain, kernel = self._taken(call)
        return kernel.capturable(plain)

    def workspace_bytes(self, call: Call) -> int:
        """What the kernel needs, and room for the operands in the other order."""
        plain, kernel = self._taken(call)
        _, total = _places(call, aligned(kernel.workspace_bytes(plain)))
        return total

    def bind(self, call: Call) -> Any:
        """Copies, the kernel's launch, copies back."""
        plain, kernel = self._taken(call)
        inner = kernel.bind(plain)
        places, _ = _places(call, aligned(kernel.workspace_bytes(plain)))
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

    def _taken(self, call: Call) -> tuple[Call, Kernel]:
        plain = in_first_order(call)
        return plain, next(k for k in self.kernels if k.refuses(plain) is None)


def in_first_order(call: Call) -> Call:
    """The same call on images of the order (N, C, \\*sizes)."""
    op: Any = call.op
    inputs, outputs = (
        tuple(t.with_shape(first_shape(t.shape)) if is_image(t) else t for t in types)  # type: ignore[attr-defined]
        for types in (call.inputs, call.outputs)
    )
    return replace(call, op=replace(op, layout="NCHW"), inputs=inputs, outputs=outputs)


def _places(call: Call, start: int) -> tuple[list[int | None], int]:
    """Where in the workspace each operand goes (None: it is no image), and where the last ends."""
    places: list[int | None] = []
    for t in (*call.inputs, *call.outputs):
        places.append(start if is_image(t) else None)
        if is_image(t):
            start += aligned(prod(t.shape) * numpy_dtype(t.dtype).itemsize)  # type: ignore[attr-defined]
    return places, start


def _as_first(v: Any) -> Any:
    """An image seen in the order (N, C, \\*sizes); anything else as it is."""
    if not isinstance(v, DeviceArray) or len(v.shape) < 4:
        return v
    order = first_order(len(v.shape))
    shape, strides = (tuple(x[i] for i in order) for x in (v.shape, v.strides))
    return DeviceArray(v.ptr, shape, v.dtype, strides, v.owner)


def _dense(env: Any, v: Any, at: int | None) -> Any:
    """Memory for ``v`` without gaps: its own where it has none."""
    if at is None or v.contiguous:
        return v
    return DeviceArray(env.workspace + at, v.shape, v.dtype)
