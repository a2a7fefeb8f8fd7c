"""A launch of several launches in turn, on operands, views of them, or scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from symdnn.cpu.launch.fastcall import FastCall, FastCallSeries
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.scratch import address
from symdnn.graph.typing import Array, Arrays


class Viewed(NamedTuple):
    """A view of operand ``at`` of (\\*inputs, \\*outputs)."""

    at: int
    view: Callable[[Array], Array]


#: An operand of a part: an index into (\*inputs, \*outputs), a view of one, or an array of its own.
Operand = Any


class Part(NamedTuple):
    """One launch with its inputs and outputs."""

    launch: Any
    reads: Sequence[Operand]
    writes: Sequence[Operand]


class SeriesLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` of parts in turn."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Run every part."""
        for launch, reads, writes in self._resolved(inputs, outputs):
            launch(reads, writes)

    def prepare(self, inputs: Arrays, outputs: Arrays) -> None:
        """Queue the compilation of the code for operands with these strides."""
        for launch, reads, writes in self._resolved(inputs, outputs):
            if launch.prepare is not None:
                launch.prepare(reads, writes)

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCallSeries | None:
        """For operands with these strides, if every part offers it."""
        given, calls = (*inputs, *outputs), []
        for part, (launch, reads, writes) in zip(self._parts, self._resolved(inputs, outputs)):
            found: FastCall | None = launch.native(reads, writes)
            if found is None:
                return None
            skipped = {
                k: address(array) - address(given[operand.at])
                for k, (operand, array) in enumerate(
                    zip((*part.reads, *part.writes), (*reads, *writes), strict=True)
                )
                if isinstance(operand, Viewed)
            }
            where = [o.at if isinstance(o, Viewed) else o for o in (*part.reads, *part.writes)]
            calls.append((replace(found, skipped={**found.skipped, **skipped}), where))
        return FastCallSeries(calls)

    def _resolved(self, inputs: Arrays, outputs: Arrays) -> list[Part]:
        given = (*inputs, *outputs)

        def array(operand: Operand) -> Array:
            if isinstance(operand, int):
                return given[operand]
            return operand.view(given[operand.at]) if isinstance(operand, Viewed) else operand

        return [Part(p.launch, [*map(array, p.reads)], [*map(array, p.writes)])
                for p in self._parts]  # fmt: skip
