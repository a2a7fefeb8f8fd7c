"""Which of sorted boxes stay."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View
from symdnn.graph.kernel import Call, Row
from symdnn.ops.array.boxes import KeptBoxes
from symdnn.ops.core.dtype import is_narrow_float

__all__ = ["KERNELS", "KeptBoxesKernel"]

#: Threads of a block; blocks that keep a large device busy.
_THREADS, _MAX_BLOCKS = 512, 1 << 16


class KeptBoxesKernel(CudaKernel[KeptBoxes]):
    """A block for each example, which takes one box after the other."""

    name = "cuda.kept_boxes"
    dtypes = frozenset(["bool", "float16", "bfloat16", "float32", "float64"])
    contiguous_inputs = True

    def launches(
        self, call: Call[KeptBoxes], inputs: Sequence[View], outputs: Sequence[View]
    ) -> list[KernelLaunch]:
        """One launch; none without boxes."""
        x, y = *inputs, *outputs
        if y.size == 0:
            return []
        boxes = y.shape[-1]
        examples = y.size // boxes
        work = "float32" if is_narrow_float(x.dtype) else x.dtype
        macros = {"X": CTYPES[x.dtype], "T": CTYPES[work], "THREADS": _THREADS}
        source = specialised("scalar.cuh", "boxes.cu", **macros)
        grid = (min(examples, _MAX_BLOCKS),)
        parameters = (x.pointer, y.pointer, examples, boxes, call.op.overlap)
        return [KernelLaunch(source, "kept_boxes", grid, (_THREADS,), parameters)]


KERNELS: tuple[Row, ...] = (((KeptBoxes,), (KeptBoxesKernel(),)),)
