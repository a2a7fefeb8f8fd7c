"""A loop nest: axes, the strides of operands along them, a scalar program, folds over axes.

It says what is computed, not how. ``cpu/nest`` and ``gpu/kernels/nest*`` have the schedules, and
print nests as LLVM IR and as CUDA C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.nest.monoid import Monoid


@dataclass(frozen=True)
class Access:
    """The strides of an operand: bytes between elements along each axis of a nest.

    0 along an axis that it does not have. ``offset`` is where element 0 of all axes is, in bytes.
    """

    dtype: str
    steps: tuple[int, ...]
    offset: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(numpy_dtype(self.dtype).itemsize)


@dataclass(frozen=True)
class Fold:
    """The fold of a nest: ``program`` computes each element's values, and the monoids combine them
    in order.

    With ``scan`` every state is a result (``"inclusive"``), or the state before each element
    (``"exclusive"``); without it the last one.
    """

    program: ScalarProgram
    monoids: tuple[Monoid, ...]
    scan: str = ""

    @property
    def result_dtypes(self) -> tuple[str, ...]:
        """The dtypes of all results."""
        return tuple(d for m in self.monoids for d in m.leave.output_dtypes)

    @property
    def programs(self) -> tuple[ScalarProgram, ...]:
        """All programs, for a printer that must have code for each instruction."""
        return (self.program, *(p for m in self.monoids for p in m.programs))

    def stepwise(self) -> Fold:
        """The fold without numbers that only combining two stretches needs."""
        return replace(self, monoids=tuple(m.stepwise() for m in self.monoids))

    def element_numbers(self) -> list[range]:
        """For each monoid the numbers of the program's results that it takes."""
        found, at = [], 0
        for m in self.monoids:
            found.append(range(at, at + len(m.elements)))
            at += len(m.elements)
        return found


@dataclass(frozen=True)
class Nest:
    """A fold over the axes ``along`` of ``sizes``, numbered in C order; the other axes are kept.

    Results of a scan have all axes, others only the kept ones.
    """

    sizes: tuple[int, ...]
    along: tuple[int, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    fold: Fold

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes that are not folded."""
        return tuple(d for d in range(len(self.sizes)) if d not in self.along)

    @property
    def outputs(self) -> int:
        """The number of folds."""
        return prod(self.sizes[d] for d in self.kept)

    @property
    def elements(self) -> int:
        """The number of elements of each fold."""
        return prod(self.sizes[d] for d in self.along)

    def reversed(self) -> Nest:
        """The nest that runs along its axes from the end."""

        def turned(a: Access) -> Access:
            far = sum(a.steps[d] * (self.sizes[d] - 1) for d in self.along)
            steps = tuple(-s if d in self.along else s for d, s in enumerate(a.steps))
            return replace(a, steps=steps, offset=a.offset + far)

        return replace(
            self, reads=tuple(map(turned, self.reads)), writes=tuple(map(turned, self.writes))
        )

    def merged(self) -> Nest:
        """The same nest with fewer axes: kept axes by decreasing step, then folded ones.

        Neighbours that all operands step over alike become one axis; one of each kind stays. The
        order of the folded axes stays, since elements are numbered.
        """
        operands = (*self.reads, *self.writes)
        weight = [sum(abs(a.steps[d]) for a in self.reads) for d in range(len(self.sizes))]
        kept = sorted(self.kept, key=lambda d: -weight[d])

        def joined(axes: Sequence[int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
            return merged(
                [self.sizes[d] for d in axes], [[a.steps[d] for d in axes] for a in operands]
            )

        (outer, outer_steps), (inner, inner_steps) = joined(kept), joined(self.along)
        accesses = [
            replace(a, steps=(*o, *i)) for a, o, i in zip(operands, outer_steps, inner_steps)
        ]
        count = len(self.reads)
        return Nest(
            (*outer, *inner),
            tuple(range(len(outer), len(outer) + len(inner))),
            tuple(accesses[:count]),
            tuple(accesses[count:]),
            self.fold,
        )

    def evaluate(self, *arrays: Any) -> list[Any]:
        """The results by NumPy, of arrays that broadcast to ``sizes``; a step at a time.

        Results of a reduction have the kept axes, those of a scan all. Strides do not matter.
        """
        whole = [
            np.broadcast_to(v, self.sizes)
            for v in self.fold.program.evaluate(*(np.asarray(a) for a in arrays))
        ]
        order = (*self.along, *self.kept)
        lines = [v.transpose(order).reshape(self.elements, self.outputs) for v in whole]
        found: list[Any] = []
        for m, taken in zip(self.fold.monoids, self.fold.element_numbers(), strict=True):
            found += self._folded(m, [lines[i] for i in taken])
        return [np.ascontiguousarray(v) for v in found]

    def _folded(self, m: Monoid, lines: Sequence[Any]) -> list[Any]:
        state = [np.repeat(v, self.outputs) for v in m.start.evaluate()]
        states = []
        for k in range(self.elements):
            states.append(state)
            number = np.full(self.outputs, k, numpy_dtype(m.number))
            state = m.step.evaluate(*state, *(v[k] for v in lines), number)
        kept = [self.sizes[d] for d in self.kept]
        if not self.fold.scan:
            return [v.reshape(kept) for v in m.leave.evaluate(*state)]
        states = [*states[1:], state] if self.fold.scan == "inclusive" else states
        whole = [m.leave.evaluate(*s) for s in states]
        shape = [*(self.sizes[d] for d in self.along), *kept]
        back = np.argsort((*self.along, *self.kept))
        results = [np.array([v[i] for v in whole]) for i in range(len(m.leave.outputs))]
        return [v.reshape(shape).transpose(back) for v in results]
