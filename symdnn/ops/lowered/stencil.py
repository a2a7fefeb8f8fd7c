"""Elementwise programs whose operands are shifted, padded or rolled: stencils, one after another.

A step of a differential equation reads neighbours; an edge filter reads what a padded image is made
of; a morphological opening has four windows in turn. As arrays each of these would be stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Host, MultiOp, Shapes, Types
from symdnn.graph.type import TensorType, numpy_dtype, tensor_type
from symdnn.graph.typing import Array
from symdnn.ops.core.scalar import ScalarProgram, number_of_text

__all__ = [
    "BORDERS", "FusedStencil", "Need", "Shifted", "StencilResult", "StencilStage", "needs_of",
    "within",
]  # fmt: skip


#: What is read beyond the border of an array: the other side, the last element, or the mirror
#: image, without or with the last element.
BORDERS = ("wrap", "edge", "reflect", "symmetric")


def within(at: Array, n: int, border: str) -> Array:
    """The places along an axis of size ``n`` that are read for places at most ``n`` outside; of
    ``reflect`` one fewer, beyond which there is no mirror image."""
    if border == "wrap":
        return at % n
    if border == "edge":
        return at.clip(0, n - 1)
    both = border == "symmetric"
    return np.where(at < 0, -at - both, np.where(at >= n, 2 * n - 2 + both - at, at))


@dataclass(frozen=True)
class Shifted:
    """How an operand of a stage is read: its element ``i`` is that at ``i + begin`` of an array.

    The ``array`` is an input of the op or, counted after these, a value of an earlier stage. Along
    axes with a ``border`` (:data:`BORDERS`) places outside of it are others inside. Along the axes
    of ``inside`` places out of these ranges read the number ``fill``.
    """

    array: int
    begin: tuple[int, ...]
    border: tuple[str, ...]
    inside: tuple[tuple[int, int] | None, ...]
    fill: str = ""

    def of(self, x: Array, shape: Sequence[int]) -> Array:
        """What a stage of this shape reads of ``x``, by NumPy. Axes of size 1 repeat."""
        inside: Any = np.ones([1] * x.ndim, bool)
        for axis, (n, begin) in enumerate(zip(shape, self.begin, strict=True)):
            along = [-1 if d == axis else 1 for d in range(x.ndim)]
            at = np.arange(n) + begin
            if self.border[axis]:
                at = within(at, x.shape[axis], self.border[axis])
            elif (there := self.inside[axis]) is not None:
                inside = inside & ((at >= there[0]) & (at < there[1])).reshape(along)
            x = x.take(at.clip(0, x.shape[axis] - 1), axis)
        if not self.fill:
            return x
        return np.where(inside, x, number_of_text(self.fill, x.dtype.name)).astype(x.dtype)


@dataclass(frozen=True)
class StencilStage:
    """A program for each element of an array of ``shape``; its operands are read by ``reads``."""

    program: ScalarProgram
    reads: tuple[Shifted, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StencilResult:
    """A value of a stage that is stored, rolled by ``shift``."""

    value: int
    shift: tuple[int, ...]


@dataclass(frozen=True)
class FusedStencil(MultiOp):
    """Stages of scalar programs, each of what is near it in the inputs and in earlier stages.

    Only values of ``stored`` are results. Values are numbered after the ``count`` inputs, in the
    order of the stages and their programs' results. All arrays have one number of axes, and known
    sizes.
    ``opt/fuse/stencils.py`` makes it if a target has a kernel for it, after gradients were taken.
    """

    never_fails: ClassVar[bool] = True

    count: int
    stages: tuple[StencilStage, ...]
    stored: tuple[StencilResult, ...]

    @property
    def values(self) -> list[tuple[int, int]]:
        """The stage of each value, and its number in the stage."""
        return [
            (k, i) for k, stage in enumerate(self.stages) for i in range(len(stage.program.outputs))
        ]

    def dtype_of(self, value: int) -> str:
        """The dtype of a value, whose number is not that of an input."""
        k, i = self.values[value - self.count]
        return self.stages[k].program.output_dtypes[i]

    def infer(self, *inputs: TensorType) -> Any:
        given = [t.dtype for t in inputs if isinstance(t, TensorType)]
        wanted = {
            r.array: dtype
            for stage in self.stages
            for r, dtype in zip(stage.reads, stage.program.inputs, strict=True)
        }
        if len(inputs) != self.count or [wanted[i] for i in range(self.count)] != given:
            raise TypeMismatch(self, f"{self.count} tensors of the programs' dtypes", list(inputs))
        shapes = [self.stages[self.values[r.value - self.count][0]].shape for r in self.stored]
        return tuple(
            tensor_type(self.dtype_of(r.value), shape)
            for r, shape in zip(self.stored, shapes, strict=True)
        )

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [self.stages[self.values[r.value - self.count][0]].shape for r in self.stored]

    def reference(self, *inputs: Array) -> Any:
        arrays: list[Any] = list(inputs)
        for stage in self.stages:
            read = [r.of(arrays[r.array], stage.shape) for r in stage.reads]
            for v, dtype in zip(stage.program.evaluate(*read), stage.program.output_dtypes):
                arrays.append(np.broadcast_to(v, stage.shape).astype(numpy_dtype(dtype)))
        axes = tuple(range(len(self.stages[0].shape)))
        return tuple(np.roll(arrays[r.value], r.shift, axes) for r in self.stored)

    def __str__(self) -> str:
        return f"FusedStencil{{{'; '.join(str(stage.program) for stage in self.stages)}}}"


@dataclass(frozen=True)
class Need:
    """Of a stage: how far beyond a tile it is computed, as (before, behind) for each axis, and the
    axes along which its places wrap around."""

    reach: tuple[tuple[int, int], ...]
    wrap: tuple[bool, ...]

    def sizes(self, tile: Sequence[int]) -> tuple[int, ...]:
        """The sizes of what is computed for a tile."""
        return tuple(n - low + high for n, (low, high) in zip(tile, self.reach, strict=True))


@cache
def needs_of(op: FusedStencil) -> tuple[Need, ...] | None:
    """What each stage computes; None where a stage would wrap around whose operands do not."""
    axes = range(len(op.stages[0].shape))
    reach: list[dict[int, tuple[int, int]]] = [{} for _ in op.stages]
    wrap = [[False] * len(axes) for _ in op.stages]
    for result in op.stored:
        reach[op.values[result.value - op.count][0]] = dict.fromkeys(axes, (0, 0))
    for k in reversed(range(len(op.stages))):
        for r in op.stages[k].reads:
            if r.array < op.count:
                continue
            j, _ = op.values[r.array - op.count]
            for d in axes:
                n, own = op.stages[j].shape[d], op.stages[k].shape[d]
                moves = r.border[d] != "wrap" and (r.begin[d] or r.inside[d] or r.border[d])
                if wrap[k][d] and (n != own or moves):
                    return None
                low, high = (at + r.begin[d] for at in reach[k][d])
                if r.border[d] not in ("", "wrap"):  # what is mirrored is as near on the other side
                    low -= 2 * max(0, own - 1 + r.begin[d] - (n - 1))
                    high += 2 * max(0, -r.begin[d])
                old = reach[j].get(d, (low, high))
                reach[j][d] = min(old[0], low), max(old[1], high)
                wrap[j][d] |= r.border[d] == "wrap" or wrap[k][d]
    return tuple(
        Need(tuple(own[d] for d in axes), tuple(w)) for own, w in zip(reach, wrap, strict=True)
    )
