"""``f.stages``: the results of the steps of compiling a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.compile.plan.loop_budget import LoopBudget
from symdnn.compile.plan.offline_plan import SegmentPlan, specialise_program
from symdnn.compile.plan.specialise import Oracle
from symdnn.compile.program.mode import Audit, Mode
from symdnn.compile.program.program import Loop, Program
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.opt.engine import RewriteProfile


@dataclass(frozen=True)
class Stages:
    """The results of the steps of compiling, each of which prints as text."""

    mode: Mode
    target: Target
    fgraph: FunctionGraph
    program: Program
    rewrites: RewriteProfile
    audit: Audit | None = None
    #: Which loops run in segments for a memory budget, at the sizes of a call.
    loops: LoopBudget | None = None

    @property
    def has_plain_loops(self) -> bool:
        """Whether there are loops that run in one way at all sizes."""
        return self.loops is None and any(isinstance(r, Loop) for r in self.program.regions)

    def specialise(
        self,
        shapes: Mapping[Any, Sequence[int]],
        oracle: Oracle | None = None,
        host_values: Mapping[Any, int] | None = None,
    ) -> list[SegmentPlan]:
        """Plan for these shapes without the device: kernels and memory, not bound.

        ``shapes`` are those of the function's inputs, by name or variable of ``fgraph``; shared
        variables have their own. ``oracle`` describes the device (default: the target's kernel
        table, with a described kernel for ops without one); ``host_values`` are the integers that
        feed shapes. Raises :class:`~symdnn.errors.DataDependentShape` if shapes depend on data.
        """
        return specialise_program(self.program, self.fgraph.inputs, shapes, oracle, host_values)
