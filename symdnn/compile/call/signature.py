"""What a compiled function was declared to take and to return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symdnn.compile.call.arguments import In
from symdnn.compile.call.structured import InputForms, packed
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.values.structured import Form
from symdnn.graph.variable import Shared, Variable


@dataclass(frozen=True)
class Structure:
    """The structure in which a call returns outputs: ``list``, ``one`` or ``dict`` (``keys``)."""

    kind: str
    keys: tuple[Any, ...] = ()
    #: The forms of outputs, of which one at least is structured (a sparse matrix).
    forms: tuple[Form | None, ...] = ()

    def pack(self, results: list[Any]) -> Any:
        """A call's results in that structure."""
        if self.forms:
            results = packed(results, self.forms)
        if self.kind == "one":
            return results[0]
        return dict(zip(self.keys, results)) if self.kind == "dict" else results


@dataclass(frozen=True)
class FunctionSignature:
    """The declaration of a function: inputs, values stored for them, outputs, updated variables.

    ``sources`` are the user's expressions of the outputs, then of the new values: what a file of
    the function has.
    """

    name: str
    declared: tuple[In, ...]
    states: Mapping[Variable, Shared]
    structure: Structure
    updated: tuple[Shared, ...]
    allow_downcast: bool | None
    borrow: tuple[bool, ...]
    sources: tuple[Variable, ...]
    #: The inputs as users give them, if one at least is structured.
    forms: InputForms | None = None
    #: Which outputs are arrays on the device in memory of their own.
    stay: tuple[bool, ...] = ()
    #: The most bytes of a call, beside its arguments and shared variables; None without a bound.
    memory_budget: int | None = None

    def mark_updates(self, fgraph: FunctionGraph) -> None:
        """Mark its last outputs as the new values of the updated variables, in their order."""
        first = len(fgraph.outputs) - len(self.updated)
        fgraph.updates = {first + i: s for i, s in enumerate(self.updated)}
