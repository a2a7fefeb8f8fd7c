"""Where a mask holds: counts of its parts, and the numbers of the elements in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.gpu.codegen.device_source import specialised
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, Views
from symdnn.graph.kernel import Call, Row
from symdnn.ops.lowered.of_values import PART, ChosenCounts, ChosenPlaces

__all__ = ["KERNELS", "ChosenKernel"]

_THREADS = 256


class ChosenKernel(CudaKernel[ChosenCounts | ChosenPlaces]):
    """A block for each part of the mask."""

    name = "cuda.chosen"
    contiguous_inputs = True

    def launches(
        self, call: Call[ChosenCounts | ChosenPlaces], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One launch; none without places."""
        (out,), counting = outputs, isinstance(call.op, ChosenCounts)
        if out.size == 0:
            return []
        mask = inputs[0]
        wide = int(mask.aligned_to(PART // _THREADS))
        source = specialised("chosen.cu", PART=PART, THREADS=_THREADS, WIDE=wide)
        counts, y = (out.pointer, 0) if counting else (inputs[1].pointer, out.pointer)
        parameters = (mask.pointer, counts, y, mask.size, out.size)
        grid = (max(-(-mask.size // PART), 1),)
        name = "counts" if counting else "places"
        return [KernelLaunch(source, name, grid, (_THREADS,), parameters)]


KERNELS: tuple[Row, ...] = (((ChosenCounts, ChosenPlaces), (ChosenKernel(),)),)
