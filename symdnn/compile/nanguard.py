"""``NanGuardMode``: stops at the first node with a NaN, an infinity or a very large result.

The program runs as in other modes, with fused kernels and captured graphs, and a check after each
step: :class:`~symdnn.graph.values.guard.ValueGuard`. Where a check finds a fault, nothing has been
updated. The graph as it was given is then compiled without fusion, and run step by step on the same
values, to name the node.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.compile.execute.executor import Executor
from symdnn.compile.execute.targets import Devices
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.compile.program.mode import Audit, Mode, OnHost
from symdnn.compile.program.placing import program_of
from symdnn.compile.program.program import Program
from symdnn.config import config
from symdnn.errors import NanDetected
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.runtime import Watcher
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.graph.values.guard import BIG_MAGNITUDE, ValueGuard, of_constants
from symdnn.graph.variable import Apply, Shared, Variable
from symdnn.ops.lowered.transfer import Transfer
from symdnn.opt.optimise import optimise

__all__ = ["NanGuardMode"]


@dataclass(unsafe_hash=True)
class NanGuardMode(Mode):
    """Checks the inputs of a call and every result that a kernel writes.

    ``nan_is_error``, ``inf_is_error`` and ``big_is_error`` (a magnitude above 1e10) default to
    the flags ``NanGuardMode.*`` when a function is compiled; the flag ``NanGuardMode.action`` says
    what happens: ``raise`` a :class:`~symdnn.errors.NanDetected` that names the node, the user's
    line and the range of its inputs, ``warn``, or ``pdb``. No shared variable changes in a call
    that raises.

    A value inside of a fused kernel is not checked, only what the kernel writes. After a fault the
    call runs a second time, unfused, to find the first faulty node; ops with an effect (``Print``)
    then have it twice. A function that was copied or unpickled names the fused node instead.
    """

    #: These compute values of elements that the program leaves out, which may be no numbers.
    excluded: ClassVar[tuple[str, ...]] = ("before_mask",)

    nan_is_error: bool | None = None
    inf_is_error: bool | None = None
    big_is_error: bool | None = None

    @property
    def guard(self) -> ValueGuard | None:
        return ValueGuard(
            _flag(self.nan_is_error, "nan_is_error"),
            _flag(self.inf_is_error, "inf_is_error"),
            _flag(self.big_is_error, "big_is_error"),
        )

    def audit(self, fgraph: FunctionGraph, target: Target) -> Audit | None:
        return _SecondRun(fgraph.clone()[0], target, self)

    def run_again(
        self, stages: Any, devices: Devices, values: Mapping[Variable, Any], error: NanDetected
    ) -> list[Any]:
        """Run a call that failed with ``error`` again, step by step; the flags say what follows.

        Raises :class:`~symdnn.errors.NanDetected` for the first faulty node, or ``error`` itself
        where only the fused kernels have a fault.
        """
        second: _SecondRun | None = stages.audit
        if second is None:
            second = _SecondRun(stages.fgraph, stages.target, self, stages.program)
        on_host = OnHost(values, devices.main.to_host)
        guard = self.guard
        assert guard is not None
        watcher = _Guard(guard)
        watcher.check_entering(on_host)
        results = second.run(stages.fgraph, devices, values, watcher)
        if not watcher.found:
            _act(f"NanGuardMode: {error}", error)
        return results


def _flag(given: bool | None, name: str) -> bool:
    return bool(config.get(f"NanGuardMode.{name}")) if given is None else given


class _SecondRun(Audit):
    """The graph as it was given, compiled without fusion at its first run."""

    def __init__(
        self, fgraph: FunctionGraph, target: Target, mode: Mode, program: Program | None = None
    ) -> None:
        self.fgraph, self.target, self.mode, self.program = fgraph, target, mode, program
        self.executor: Executor | None = None

    def run(
        self,
        compiled: FunctionGraph,
        devices: Devices,
        values: Mapping[Variable, Any],
        watcher: Watcher,
    ) -> list[Any]:
        """The outputs for the values of a call of the ``compiled`` graph."""
        if self.executor is None:
            self.executor = Executor(self.program or self._unfused(), devices)
        own = dict(zip(compiled.inputs, self.fgraph.inputs, strict=True))
        given = {own.get(v, v): a for v, a in values.items()}
        for v in self.executor.program.inputs:  # what fusion or folding had made unnecessary
            if isinstance(v, Shared) and v not in given:
                given[v] = v.storage.on(devices.home(v).memory)
        runtime = devices.main
        return [runtime.fresh(r) for r in self.executor.run(given, watcher)]

    def _unfused(self) -> Program:
        with config.change_flags(compute_test_value="off"):
            selection = self.mode.selection.excluding("fusion")
            optimise(self.fgraph, self.target, selection, all_capabilities())
            return program_of(self.fgraph, self.target, Mode())


class _Guard(Watcher):
    """Looks at each node of a second run; counts the faults that it ``found``."""

    def __init__(self, guard: ValueGuard) -> None:
        self.guard, self.before, self.found = guard, "", 0

    def check_entering(self, values: Mapping[Variable, Any]) -> None:
        for v, value in values.items():
            if what := self.fault(v, value):
                self.report(f"NanGuardMode: the input {v} of type {v.type} contains {what}")

    def __call__(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        if outputs is None:
            # Before the node runs: its kernel may overwrite an input.
            shown = [
                f"  input {i} ({v}): {span(a)}" for i, (v, a) in enumerate(zip(node.inputs, inputs))
            ]
            self.before = "\n".join(shown)
            return
        told = of_constants(node) or isinstance(node.op, Transfer)  # of what was looked at before
        for v, value in zip([] if told else node.outputs, outputs):
            if what := self.fault(v, value):
                where = node.origin.text()
                made = f"\nIt was made here:\n{where}" if where else ""
                which = f"output {v.index} of " if len(node.outputs) > 1 else ""
                self.report(
                    f"NanGuardMode: {which}{node.op} contains {what}: {span(value)}\n{self.before}",
                    made,
                )

    def fault(self, v: Variable, value: Any) -> str:
        """The fault of a value, in words; empty if there is none."""
        if not isinstance(v.type, TensorType) or v.type.is_discrete or np.size(value) == 0:
            return ""
        a, guard = np.asarray(value), self.guard.of(v)
        if not v.type.is_complex:
            a = a.astype(np.float64)
        with np.errstate(all="ignore"):
            if guard.nan and (count := int(np.isnan(a).sum())):
                return f"NaN in {count} of {a.size} elements"
            if guard.inf and (count := int(np.isinf(a).sum())):
                return f"an infinity in {count} of {a.size} elements"
            big = np.isfinite(a) & (np.abs(a) > BIG_MAGNITUDE)
            if guard.big and (count := int(big.sum())):
                return f"values above {BIG_MAGNITUDE:g} in {count} of {a.size} elements"
        return ""

    def report(self, message: str, made: str = "") -> None:
        """Act as the flag says. The engine adds the user's line to an error raised at a node."""
        self.found += 1
        _act(message + made, NanDetected(message))


def _act(message: str, error: NanDetected) -> None:
    """Warn, stop in the debugger, or raise the error."""
    action = config.NanGuardMode.action
    if action == "warn":
        warnings.warn(message, RuntimeWarning, stacklevel=6)
    elif action == "pdb":
        print(message)
        breakpoint()
    else:
        raise error


def span(value: object) -> str:
    """A short description of a value: dtype, shape, minimum, maximum, number of NaN."""
    if not isinstance(value, np.ndarray | np.generic):
        return type(value).__name__
    text = f"{value.dtype}{tuple(value.shape)}"
    if value.size == 0 or value.dtype.kind in "bcO":
        return text
    wide = np.asarray(value).astype(np.float64)
    good = wide[~np.isnan(wide)]
    if good.size == 0:
        return f"{text}, all NaN"
    nans = f", {wide.size - good.size} NaN" if good.size < wide.size else ""
    return f"{text}, min {good.min():.6g}, max {good.max():.6g}{nans}"
