"""Elementwise kernels and reductions of what index arrays select, and additions where they say."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from symdnn.gpu.codegen.cuda_source import CTYPES, print_problem
from symdnn.gpu.codegen.launches import GuardableKernel, KernelLaunch, View, Views
from symdnn.gpu.codegen.reduce_plan import scratch_bytes
from symdnn.gpu.indexing.index import check_bounds
from symdnn.gpu.kernels.copy import copies
from symdnn.gpu.kernels.elementwise import elementwise_selected
from symdnn.gpu.kernels.index_space import Selected, selected, space_of
from symdnn.gpu.kernels.reduce import reduction
from symdnn.graph.kernel import Call, Row
from symdnn.ops.lowered.gathered import FusedIndexed

__all__ = ["KERNELS", "IndexedKernel"]


class IndexedKernel(GuardableKernel[FusedIndexed]):
    """One kernel of a program, whose operands move by index arrays.

    Sums come in any order, of dtypes that a GPU adds as they are; ``opt/fuse/gathers.py`` sees to
    that.
    """

    name = "cuda.indexed"
    dtypes = frozenset(CTYPES)

    def refuses(self, call: Call[FusedIndexed]) -> str | None:
        """Programs that cannot be printed as CUDA C."""
        return super().refuses(call) or print_problem(call.op.program)

    def workspace_bytes(self, call: Call[FusedIndexed]) -> int:
        """Partial results of the chunks of reductions."""
        op = call.op
        if not op.reductions:
            return 0
        outputs = prod(call.outputs[0].shape)
        elements = prod(self._shape(call)) // max(outputs, 1)
        return scratch_bytes(outputs, elements, len(op.reductions))

    def _shape(self, call: Call[FusedIndexed]) -> tuple[int, ...]:
        """The shape of the loop."""
        _, shapes = call.op.read(call.inputs, [t.shape for t in call.inputs])
        return np.broadcast_shapes(*shapes)

    def launches(
        self, call: Call[FusedIndexed], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel; a copy before it where it adds to an array that stays."""
        op, guarded, out = call.op, self.guarded, outputs[0]
        x, operands, places = op.apart(inputs)
        stays = bool(op.adds) and out.alias_of != x.slot
        before = [*copies(x, out, guarded)] if stays else []
        given, checks = list[View | Selected](), list[KernelLaunch]()
        for read, own in zip(op.reads, operands, strict=True):
            if read is None:
                given.append(own[0])
                continue
            given.append(selected(read.get, own[0], own[1:]).permuted(read.pattern))
            if own[0].size == 0 and not read.get.in_bounds:
                checks += check_bounds(space_of(read.get, own[0], own[1:]))
        adds = list(zip(op.adds, places, strict=True))
        for add, arrays in adds:
            if out.size == 0 and not add.in_bounds:
                checks += check_bounds(space_of(add.getter(), out, arrays))
        if checks or (op.adds and out.size == 0):
            return [*before, *checks]  # any index is out of range
        if op.reductions:
            return reduction(op.program, op.reductions, given, outputs, self._shape(call))
        if not op.adds:
            return elementwise_selected(op.program, given, outputs)
        targets = [selected(add.getter(), out, arrays) for add, arrays in adds]
        return [*before, *elementwise_selected(op.program, given, targets, guarded)]

    def writes_updates(self, call: Call[FusedIndexed]) -> bool:
        """Whether the indices are known to be in range, so that nothing can fail."""
        return bool(call.op.adds) and call.op.never_fails


KERNELS: tuple[Row, ...] = (((FusedIndexed,), (IndexedKernel(),)),)
