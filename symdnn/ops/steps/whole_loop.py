"""Scans whose steps are small as one function each, by the sizes and strides of their arrays.

A device makes the functions (:meth:`WholeLoop.make`). Where there is none, or where it reports a
failure, the caller runs the loop step by step, which raises the error with the user's line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from symdnn.errors import KernelCompileError
from symdnn.ops.control.scan import Scan
from symdnn.ops.steps.code import Code, NotLowered

#: Sizes and strides of arrays for which a loop keeps functions, and functions for each.
_MOST_KEYS, _MOST_FUNCTIONS = 64, 4


class LoopFunction(Protocol):
    """A loop's function for arrays of certain sizes and strides."""

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Whether the numbers are those that the function was made for."""

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Outputs of the scan; None where it reports a failure."""


class WholeLoop:
    """A scan's functions on a device, by the sizes and strides of its arrays."""

    #: What its functions are, for reports.
    made_as = "one compiled function"

    def __init__(self, op: Scan) -> None:
        self.op = op
        self.known: dict[Any, Functions] = {}
        #: Whether the last run would run in the same way again: more steps make no function.
        self.is_decided = False

    def hot(self) -> int:
        """Steps after which a function is made; -1: never."""
        raise NotImplementedError

    def make(self, inputs: Sequence[Any]) -> LoopFunction:
        """A function for these arrays; raises :class:`NotLowered` where there is none."""
        raise NotImplementedError

    def after(self, inputs: Sequence[Any]) -> int:
        """After how many steps of a loop of unknown length its function should take over."""
        hot = self.hot()
        functions = self._functions(inputs) if hot >= 0 else None
        if functions is None or functions.refused:
            return 0
        return max(1, hot - functions.steps)

    def run(self, inputs: Sequence[Any], steps: int) -> list[Any] | None:
        """Outputs of the scan; None where the loop has to run step by step.

        ``steps`` are how many it will do, as far as that is known: few are not worth compiling.
        """
        hot = self.hot()
        self.is_decided = True
        if hot < 0:
            return None
        functions = self._functions(inputs)
        functions.steps += steps
        self.is_decided = bool(functions.refused) or functions.steps >= hot
        if functions.refused or functions.steps < hot:
            return None
        found = functions.of(self, inputs)
        return None if found is None else found.run(inputs)

    @property
    def state(self) -> str:
        """How the loop has run, for reports; empty while it is not known."""
        if any(f.made for f in self.known.values()):
            return f"runs as {self.made_as}"
        reasons = dict.fromkeys(f.refused for f in self.known.values() if f.refused)
        return f"runs step by step: {'; '.join(reasons)}" if reasons else ""

    def run_by_steps(self, inputs: Sequence[Any], steps: int) -> None:
        """Count the steps of a loop of unknown length that ran step by step."""
        if self.hot() >= 0:
            self._functions(inputs).steps += steps

    def _functions(self, inputs: Sequence[Any]) -> Functions:
        key = tuple([(a.shape, a.strides, a.dtype) for a in inputs])
        found = self.known.get(key)
        if found is None:
            if len(self.known) == _MOST_KEYS:
                self.known.pop(next(iter(self.known)))
            found = self.known[key] = Functions()
        return found


class Functions:
    """The functions for arrays of the same sizes and strides; numbers may differ."""

    def __init__(self) -> None:
        self.steps = 0
        #: Why there is none; empty while there may be one.
        self.refused = ""
        self.made: list[LoopFunction] = []

    def of(self, loop: WholeLoop, inputs: Sequence[Any]) -> LoopFunction | None:
        """The function for these arrays, made if need be."""
        for f in self.made:
            if f.fits(inputs):
                return f
        if len(self.made) == _MOST_FUNCTIONS:
            self.refused = "sizes inside of it change"
            return None
        try:
            self.made.append(loop.make(inputs))
        except (NotLowered, KernelCompileError) as error:
            self.refused = str(error)
            return None
        return self.made[-1]


def collected_entries(op: Scan, code: Code) -> list[tuple[tuple[int, ...], str]]:
    """The shape and dtype of an entry of each collected value."""
    shapes = {r.number: r.value for r in code.roles if r.kind == "collected"}
    types: Sequence[Any] = op.inner.output_types[len(op.states) :]
    return [(shapes[k], t.dtype) for k, t in enumerate(types[: op.collected])]
