"""``NanGuardMode``: stops at the first node with a NaN, an infinity or a very large result."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symdnn.compile.program.mode import Mode, Watch
from symdnn.config import config
from symdnn.errors import NanDetected
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.opt.phases import Selection

__all__ = ["BIG_MAGNITUDE", "NanGuardMode"]

#: The magnitude above which a value counts as big.
BIG_MAGNITUDE = 1e10


@dataclass(unsafe_hash=True)
class NanGuardMode(Mode):
    """Checks the inputs of a call and the results of all nodes.

    ``nan_is_error``, ``inf_is_error`` and ``big_is_error`` (a magnitude above 1e10) default to
    the flags ``NanGuardMode.*``; the flag ``NanGuardMode.action`` says what happens: ``raise`` a
    :class:`~symdnn.errors.NanDetected` that names the node, the user's line and the range of its
    inputs, ``warn``, or ``pdb``. No shared variable changes in a call that raises. Unless a
    ``selection`` is given nothing is fused, so that the node is one that the user wrote.
    """

    selection: Selection = field(default_factory=lambda: Mode().selection.excluding("fusion"))
    nan_is_error: bool | None = None
    inf_is_error: bool | None = None
    big_is_error: bool | None = None

    def watch(self, stages: Any, values: Mapping[Variable, Any]) -> Watch | None:
        guard = _Guard(
            _flag(self.nan_is_error, "nan_is_error"),
            _flag(self.inf_is_error, "inf_is_error"),
            _flag(self.big_is_error, "big_is_error"),
        )
        guard.check_entering(values)
        return guard


def _flag(given: bool | None, name: str) -> bool:
    return bool(config.get(f"NanGuardMode.{name}")) if given is None else given


class _Guard(Watch):
    def __init__(self, nan: bool, inf: bool, big: bool) -> None:
        self.nan, self.inf, self.big = nan, inf, big
        self.before = ""

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
        for v, value in zip(node.outputs, outputs):
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
        a = np.asarray(value)
        if not v.type.is_complex:
            a = a.astype(np.float64)
        with np.errstate(all="ignore"):
            if self.nan and (count := int(np.isnan(a).sum())):
                return f"NaN in {count} of {a.size} elements"
            if self.inf and (count := int(np.isinf(a).sum())):
                return f"an infinity in {count} of {a.size} elements"
            big = np.isfinite(a) & (np.abs(a) > BIG_MAGNITUDE)
            if self.big and (count := int(big.sum())):
                return f"values above {BIG_MAGNITUDE:g} in {count} of {a.size} elements"
        return ""

    def report(self, message: str, made: str = "") -> None:
        """Act as the flag says. The engine adds the user's line to an error raised at a node."""
        action = config.NanGuardMode.action
        if action == "warn":
            warnings.warn(message + made, RuntimeWarning, stacklevel=6)
        elif action == "pdb":
            print(message + made)
            breakpoint()
        else:
            raise NanDetected(message)


def span(value: Any) -> str:
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
