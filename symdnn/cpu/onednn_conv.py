"""Convolution and its two gradients by oneDNN, in one, two or three dimensions.

Activations lie as the call has them. Where oneDNN's own layout is faster than plain NCHW, which it
is for channels in multiples of 16, they are reordered into it and back. Kernels always are: a
plain layout of theirs would lead to oneDNN's reference implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.cpu.dnnl import ALG, PROP, Layout, Primitive, primitive
from symdnn.cpu.onednn_kernel import OnednnKernel, Operand, Planned, contiguous
from symdnn.graph.kernel import Call, register_kernel
from symdnn.ops.conv import Conv, ConvGradInput, ConvGradWeight, resolved_padding

__all__ = ["ConvKernel", "register"]

#: For each op: the operands x, w, y by the primitive's names, and where they are in the call.
_ROLES: dict[type, dict[str, tuple[str, int, bool]]] = {
    Conv: {"x": ("src", 0, False), "w": ("weights", 1, False), "y": ("dst", 0, True)},
    ConvGradInput: {
        "x": ("diff_src", 0, True), "w": ("weights", 0, False), "y": ("diff_dst", 1, False),
    },
    ConvGradWeight: {
        "x": ("src", 0, False), "w": ("diff_weights", 0, True), "y": ("diff_dst", 1, False),
    },
}  # fmt: skip


class ConvKernel(OnednnKernel):
    """All three directions. (``dnnl_convolution_*``)"""

    name = "onednn.conv"

    def refuses_types(self, call: Call) -> str | None:
        """More than three dimensions."""
        op: Any = call.op
        return "more than three dimensions" if op.ndim > 3 else super().refuses_types(call)

    def planned(self, call: Call) -> Planned:
        """The primitive: plain activations, or oneDNN's layout where that is a gain."""
        layouts = _layouts(call)
        made = _primitive(call, layouts, any_layout=_blocks(layouts))
        operands = [
            Operand(name, layouts[role], index, written)
            for role, (name, index, written) in _ROLES[type(call.op)].items()
        ]
        return Planned(made, operands)

    def bind(self, call: Call) -> Any:
        """Mirrored kernels are copied: oneDNN correlates."""
        launch = super().bind(call)
        return _mirroring(call, launch) if call.op.flip else launch  # type: ignore[attr-defined]


def _layouts(call: Call) -> dict[str, Layout]:
    found = {}
    for role, (_, index, written) in _ROLES[type(call.op)].items():
        found[role] = contiguous((call.outputs if written else call.inputs)[index])
    groups = call.op.groups  # type: ignore[attr-defined]
    if groups > 1:
        w = found["w"]
        found["w"] = Layout((groups, w.shape[0] // groups, *w.shape[1:]), w.dtype)
    return found


def _blocks(layouts: dict[str, Layout]) -> bool:
    """Whether oneDNN's own layout of the activations is worth two reorders."""
    channels = layouts["x"].shape[1], layouts["y"].shape[1]
    return all(c % 16 == 0 for c in channels)


def _primitive(call: Call, layouts: dict[str, Layout], any_layout: bool) -> Primitive:
    op: Any = call.op
    x, w, y = (layouts[r] for r in ("x", "w", "y"))
    if any_layout:
        x, y = x.any, y.any
    kernel = layouts["w"].shape[-op.ndim :]
    pads = [resolved_padding(p, k, d) for p, k, d in zip(op.padding, kernel, op.dilation)]
    before, after = ([int(p[i]) for p in pads] for i in (0, 1))
    settings = (op.stride, [d - 1 for d in op.dilation], before, after)
    direct = ALG["direct"]
    forward = primitive(
        "convolution_forward", PROP["training"], direct, x, w.any, None, y, *settings
    )
    if isinstance(op, ConvGradInput):
        name = "convolution_backward_data"
        return primitive(name, direct, x, w.any, y, *settings, forward)
    if isinstance(op, ConvGradWeight):
        name = "convolution_backward_weights"
        return primitive(name, direct, x, w.any, None, y, *settings, forward)
    return forward


def _mirroring(call: Call, launch: Any) -> Any:
    """``launch`` for kernels that are mirrored."""
    reverse = (slice(None), slice(None), *[slice(None, None, -1)] * call.op.ndim)  # type: ignore[attr-defined]
    _, index, written = _ROLES[type(call.op)]["w"]

    def run(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None) -> None:
        if written:
            launch(inputs, outputs, workspace)
            outputs[index][...] = outputs[index][reverse].copy()
            return
        given = list(inputs)
        given[index] = np.ascontiguousarray(inputs[index][reverse])
        launch(given, outputs, workspace)

    return run


def register() -> None:
    """Enter the kernel into the table."""
    for op in _ROLES:
        register_kernel(op, "cpu", ConvKernel())
