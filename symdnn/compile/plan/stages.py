"""``f.stages``: what each step of compiling a function made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.compile.plan.offline_plan import SegmentPlan, specialise_program
from symdnn.compile.plan.specialise import Oracle
from symdnn.compile.program.mode import Audit, Mode
from symdnn.compile.program.program import Program
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.opt.engine import RewriteProfile

__all__ = ["Stages"]


@dataclass(frozen=True)
class Stages:
    """What each step of compiling made; all of it prints."""

    mode: Mode
    target: Target
    fgraph: FunctionGraph
    program: Program
    rewrites: RewriteProfile
    audit: Audit | None = None

    def specialise(
        self,
        shapes: Mapping[Any, Sequence[int]],
        oracle: Oracle | None = None,
        host_values: Mapping[Any, int] | None = None,
    ) -> list[SegmentPlan]:
        """Stage 4 short of binding: kernels and memory at these shapes, without the device.

        ``shapes`` are those of the function's inputs, by name or variable of ``fgraph``; shared
        variables have theirs. ``oracle`` describes the device (default: any kernel of the
        target's table, else one that takes everything and needs no workspace);
        ``host_values`` are the integers that feed shapes.
        """
        return specialise_program(self.program, self.fgraph.inputs, shapes, oracle, host_values)
