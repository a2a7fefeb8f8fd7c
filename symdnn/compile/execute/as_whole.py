"""A function with loops of unknown length as one kernel: what is around the loops, too.

The host reads the condition before such a loop and the number of its steps behind it, and so waits
twice for the device. A kernel of all of it is waited for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from symdnn.compile.execute.joined import is_enqueued
from symdnn.compile.program.program import Loop, Program, Segment
from symdnn.graph.place import HOST
from symdnn.graph.runtime import Runtime
from symdnn.graph.traverse import leaves
from symdnn.graph.variable import Constant, Variable

Values = dict[Variable, Any]


class Runner(Protocol):
    """What runs a region."""

    def is_whole(self) -> bool:
        """Whether its last run, if it is that of a loop, was one kernel."""


class AsWhole:
    """Runs a program as one kernel, once its loops are kernels: they are small then."""

    def __init__(self, program: Program, runners: Sequence[Runner], runtime: Runtime) -> None:
        self.runners = runners
        self._inputs = [v for v in leaves(program.outputs) if not isinstance(v, Constant)]
        self._function = runtime.whole_function(self._inputs, program.outputs)
        #: Which outputs are on the host; empty before the first run.
        self._on_host: list[bool] = []

    @staticmethod
    def may_run(program: Program, runtime: Runtime) -> bool:
        """Whether there is a loop on a device, and the host waits for results in between."""
        regions = program.regions
        if runtime.memory.place == HOST or is_enqueued(program):
            return False
        plain = all(_is_plain(r) for r in regions if not isinstance(r, Loop))
        return plain and any(isinstance(r, Loop) for r in regions)

    def run(self, values: Values) -> list[Any] | None:
        """The program's outputs, where :meth:`learn` saw them; None if there is no kernel."""
        if not self._on_host or not all(r.is_whole() for r in self.runners):
            return None
        inputs = [values[v] for v in self._inputs]
        found: list[Any] | None = self._function.outputs(inputs, self._on_host)
        return found

    def learn(self, outputs: Sequence[Any]) -> None:
        """See the outputs of a run by regions."""
        self._on_host = [isinstance(v, np.ndarray | np.generic) for v in outputs]

    @property
    def state(self) -> str:
        """How the loops run, for reports; empty where they run by themselves."""
        made: str = self._function.made_state
        return made


def _is_plain(region: object) -> bool:
    """Whether a region computes its outputs at each call, and does nothing else."""
    if not isinstance(region, Segment):
        return False
    return not region.kept and not region.updates and region.guard is None
