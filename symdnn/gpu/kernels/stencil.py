"""Stages of elementwise programs that read neighbours, in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.gpu.codegen.cuda_source import print_problem
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, Views
from symdnn.gpu.codegen.stencil_source import THREADS, Tiles, covered, stencil_source, tile_of
from symdnn.graph.kernel import Call, Row
from symdnn.ops.lowered.stencil import FusedStencil, needs_of

__all__ = ["KERNELS", "StencilKernel"]

#: Twice a place along an axis has 32 bits, for mirror images.
_LONGEST = 2**30


class StencilKernel(CudaKernel[FusedStencil]):
    """A block for each tile of the results.

    It may not write where it reads: other blocks read neighbours.
    """

    name = "cuda.stencil"
    dtypes = frozenset(CTYPES)
    writes_any_layout = True

    def refuses(self, call: Call[FusedStencil]) -> str | None:
        """Unprintable programs, stages that no block can compute for itself, and long axes."""
        op = call.op
        problems = filter(None, (print_problem(s.program) for s in op.stages))
        if needs_of(op) is None:
            return "a stage would wrap around whose operands do not"
        sizes = [
            n for s in (*(t.shape for t in call.inputs), *(s.shape for s in op.stages)) for n in s
        ]
        if max(sizes) >= _LONGEST:
            return f"an axis of {max(sizes)} elements, where places are counted in 32 bits"
        if tile_of(op) is None:
            return "its stages do not fit into shared memory"
        return super().refuses(call) or next(problems, None)

    def launches(
        self, call: Call[FusedStencil], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        op, tile = call.op, tile_of(call.op)
        assert tile is not None
        steps = [tuple(s if n > 1 else 0 for n, s in zip(v.shape, v.steps)) for v in inputs]
        wide = max(map(_reach, (*inputs, *outputs))) >= 2**31
        sizes = tuple(v.shape for v in inputs)
        form = Tiles(op, tile, sizes, tuple(steps), tuple(v.steps for v in outputs), wide)
        blocks = prod(-(-n // t) for n, t in zip(covered(op), tile, strict=True))
        parameters = [*(v.pointer for v in (*inputs, *outputs))]
        source = stencil_source(form)
        return [KernelLaunch(source, "stencil", (blocks,), (THREADS,), tuple(parameters))]


def _reach(v: View) -> int:
    """How far its last element is from the first."""
    return sum(abs(s) * (n - 1) for n, s in zip(v.shape, v.steps)) + 1


KERNELS: tuple[Row, ...] = (((FusedStencil,), (StencilKernel(),)),)
