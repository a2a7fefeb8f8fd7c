"""Arrays in another order of their dimensions by oneDNN: what a change of the layout costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from symdnn.cpu import libdnnl, pools
from symdnn.cpu.dnnl import Bound, Layout, Primitive, describe, packed, reorder
from symdnn.cpu.onednn_kernel import address, lies_densely
from symdnn.graph.kernel import Call, register_kernel
from symdnn.ops.channels_last import Reorder

__all__ = ["ReorderKernel", "register"]

_MOST_DIMS = 6


class ReorderKernel:
    """``dnnl_reorder``"""

    name = "onednn.reorder"

    def refuses(self, call: Call) -> str | None:
        """float32 and bfloat16 of a few dimensions, not empty."""
        x: Any = call.inputs[0]
        if x.dtype not in ("float32", "bfloat16") or x.ndim > _MOST_DIMS:
            return f"it is for float32 and bfloat16 of at most {_MOST_DIMS} dimensions"
        if x.is_static and 0 in x.shape:
            return "it is empty"
        return libdnnl.problem().partition("\n")[0] or None

    def workspace_bytes(self, call: Call) -> int:
        """None."""
        return 0

    def bind(self, call: Call) -> Any:
        """A launch passes two pointers."""
        op: Any = call.op
        x: Any = call.inputs[0]
        bound = Bound(_reorder(tuple(x.shape), x.dtype, op.order, pools.settle()), ("src", "dst"))

        def launch(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            source = lies_densely(inputs[0])
            bound(address(source), address(outputs[0]))

        return launch


@lru_cache(maxsize=1024)
def _reorder(shape: tuple[int, ...], dtype: str, order: tuple[int, ...], threads: int) -> Primitive:
    """From C order into the array of which dimension ``i`` is dimension ``order[i]`` of ours."""
    steps = packed([shape[d] for d in order])
    strides = tuple(steps[order.index(d)] for d in range(len(shape)))
    target = Layout(shape, dtype, strides)
    return reorder(describe(Layout(shape, dtype)), describe(target))


def register() -> None:
    """Enter the kernel into the table."""
    register_kernel(Reorder, "cpu", ReorderKernel())
