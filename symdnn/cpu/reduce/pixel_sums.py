"""Weighted sums of pixels, which sample images between them, and their gradients."""

from __future__ import annotations

from math import prod
from typing import Any

from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.reduce.pixel_sums_ir import BLOCK, PixelPlan, pixels_ir
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array
from symdnn.ops.written_out.pixel_sums import (
    PixelSums,
    PixelSumsGradImage,
    PixelSumsGradWeights,
)

#: Terms below which nothing is compiled, and for which waking up another thread pays.
_MIN_TERMS, _TERMS_PER_THREAD = 1 << 10, 1 << 14
#: Elements of a plane whose places have 31 bits; terms of a point that are written out.
_MOST_ELEMENTS, _MOST_TERMS = 1 << 31, 64
_KINDS: dict[type, str] = {
    PixelSums: "sums", PixelSumsGradImage: "image", PixelSumsGradWeights: "weights",
}  # fmt: skip


class PixelSumsKernel(Kernel[Any]):
    """The sums and both gradients, of contiguous operands."""

    name = "llvm.pixel_sums"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[Any]) -> str | None:
        """Other dtypes, many places along an axis, and little work."""
        image, _ = _ends(call)
        if image.dtype not in ("float32", "float64"):
            return f"there is no code for {image.dtype}"
        if prod(call.op.taps) > _MOST_TERMS:
            return f"it takes {_MOST_TERMS} terms of a point"
        if all(t.is_static for t in call.inputs) and prod(image.shape[2:]) >= _MOST_ELEMENTS:
            return "a plane has too many elements"
        return compile_refusal(call.inputs, lambda: _terms(call), _MIN_TERMS)

    def bind(self, call: Call[Any]) -> Launch[Array]:
        """A launch of contiguous operands."""
        op, (image, places) = call.op, _ends(call)
        n, channels, *sizes = image.shape
        points, kind = places.shape[1], _KINDS[type(op)]
        count = threads.threads(_terms(call), _TERMS_PER_THREAD)
        each = max(1, -(-channels * n // count)) if kind == "image" else channels
        each = min(each, channels)
        parts = -(-channels // each) if kind == "image" else -(-points // BLOCK)
        head = [count, n * parts, 1, parts, points, channels, each, prod(sizes), *sizes]
        plan = PixelPlan(kind, op.taps, op.weighted, image.dtype)
        reads = len(call.inputs) - (kind == "image")
        run = threads.kernel(pixels_ir, plan)
        return ContiguousLaunch(run, head, reads, len(call.outputs))


def _ends(call: Call[Any]) -> tuple[Any, Any]:
    """The types of the image and of the first places."""
    inputs = call.inputs
    if isinstance(call.op, PixelSumsGradImage):
        return inputs[-1], inputs[0]
    return inputs[0], inputs[1]


def _terms(call: Call[Any]) -> int:
    image, places = _ends(call)
    empty = 0 in image.shape
    return 0 if empty else prod(places.shape) * image.shape[1] * prod(call.op.taps)


KERNELS: tuple[Row, ...] = (
    ((PixelSums, PixelSumsGradImage, PixelSumsGradWeights), (PixelSumsKernel(),)),
)
