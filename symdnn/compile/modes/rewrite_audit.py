"""Checks rewrites: each replacement is evaluated and compared with the replaced value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.compile.modes.noise import SAMPLES, rounded
from symdnn.compile.modes.tolerance import difference
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.compile.program.mode import Audit
from symdnn.errors import DebugModeError, NotEvaluable
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.target import Target
from symdnn.graph.traverse import toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.control.control import IfElse
from symdnn.opt.engine import Observer
from symdnn.opt.optimise import optimise
from symdnn.opt.phases import Selection


@dataclass(frozen=True)
class Step:
    """A node with its inputs at the time of the record; rewrites may change them later."""

    node: Apply
    inputs: tuple[Variable, ...]


@dataclass(frozen=True)
class Replacement:
    """``old`` was replaced by ``new``, which ``steps`` compute from values known before."""

    rule: str
    old: Variable
    new: Variable
    steps: tuple[Step, ...]


class RewriteAudit(Audit):
    """The graph as it was before the rewriting, and all replacements in order.

    A replacement's new nodes are recorded at once. In the order of the record each needs only
    values of the unrewritten graph or of earlier replacements.
    """

    def __init__(
        self, fgraph: FunctionGraph, target: Target, selection: Selection, patience: int
    ) -> None:
        self.fgraph = fgraph
        self.outputs = list(fgraph.outputs)
        self.first = tuple(Step(n, n.inputs) for n in fgraph.toposort())
        self.replacements: list[Replacement] = []
        self.target, self.selection, self.patience = target, selection, patience
        self.known: dict[Variable, Any] = {}
        #: The values of runs with random rounding.
        self.noisy: list[dict[Variable, Any]] = []
        self._rng = np.random.default_rng(0)
        self._seen = {*fgraph.variables}
        self._before = fgraph.clone()[0] if patience > 1 else None

    @property
    def observer(self) -> Observer | None:
        """Records each replacement before it happens."""
        return self._record

    def _record(self, rule: Any, node: Apply, news: Sequence[Variable | None]) -> None:
        if node not in self.fgraph.nodes:
            return  # inside of a loop's body: the loop as a whole is checked
        for old, new in zip(node.outputs, news):
            if new is not None and new is not old:
                steps = self._new_steps(old, new)
                self.replacements.append(Replacement(rule.name, old, new, steps))

    def _new_steps(self, *variables: Variable) -> tuple[Step, ...]:
        nodes = toposort(variables, blockers=self._seen)
        self._seen.update(o for n in nodes for o in n.outputs)
        return tuple(Step(n, n.inputs) for n in nodes)

    def finish(self, fgraph: FunctionGraph) -> None:
        """Repeat the rewriting: it must give the same graph each time."""
        if self._before is None:
            return
        wanted = _shape_of_graph(fgraph)
        for _ in range(self.patience - 1):
            again = self._before.clone()[0]
            optimise(again, self.target, self.selection, all_capabilities())
            if _shape_of_graph(again) != wanted:
                raise DebugModeError("DebugMode: rewriting the same graph again gave another graph")

    # -- at a call ----------------------------------------------------------------------------

    def replay(self, values: Mapping[Variable, Any]) -> None:
        """Evaluate the unrewritten graph on a call's inputs, then each replacement in order."""
        self.known = dict(values)
        self.noisy = [{v: rounded(a, self._rng) for v, a in values.items()} for _ in range(SAMPLES)]
        self._run(self.first)
        for r in self.replacements:
            self._run(r.steps)
            self._compare(r)

    def _run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if not all(o in self.known for o in step.node.outputs):
                results = _compute(step.node, [self._value(v) for v in step.inputs])
                self.known.update(zip(step.node.outputs, results, strict=True))
                for sample in self.noisy:
                    self._run_rounded(step, sample)

    def _run_rounded(self, step: Step, sample: dict[Variable, Any]) -> None:
        """One step of a run with random rounding."""
        found = _compute(step.node, [sample.get(v, self._value(v)) for v in step.inputs])
        if not step.node.op.views:
            found = [rounded(a, self._rng) for a in found]
        sample.update(zip(step.node.outputs, found, strict=True))

    def _samples(self, v: Variable) -> list[Any]:
        return [s[v] for s in self.noisy if v in s]

    def _value(self, v: Variable) -> Any:
        if isinstance(v, Constant):
            return v.data
        if v not in self.known and isinstance(v, Shared):
            return v.get_value(borrow=True)
        return self.known[v]

    def _compare(self, r: Replacement) -> None:
        old, new = self._value(r.old), self._value(r.new)
        if not isinstance(r.old.type, TensorType) or isinstance(old, _Failed):
            return
        why = (
            new.text()
            if isinstance(new, _Failed)
            else difference(old, new, samples=self._samples(r.old))
        )
        if why:
            owner = r.old.owner
            error = DebugModeError(
                f"DebugMode: rewrite {r.rule} replaced {r.old} by {r.new}, of another value: {why}"
            )
            if owner is not None:
                error.add_note(f"{owner.op} was made here:\n{owner.origin.text()}")
            raise error

    def check_results(self, results: Sequence[Any], compiled: FunctionGraph) -> None:
        """Compare a call's results with the unrewritten graph's."""
        for i, (v, ran, got) in enumerate(zip(self.outputs, compiled.outputs, results)):
            wanted = self._value(v)
            if not isinstance(v.type, TensorType) or isinstance(wanted, _Failed):
                continue
            if any(node.op.private_draws for node in toposort([ran])):
                continue
            if v.owner is not None and type(v.owner.op).comparable is not Op.comparable:
                continue  # the node's results were compared up to what it leaves open
            if why := difference(wanted, got, samples=self._samples(v)):
                raise DebugModeError(
                    f"DebugMode: result {i} is not that of the graph as given: {why}"
                )
        self.known, self.noisy = {}, []


@dataclass(frozen=True)
class _Failed:
    """Replaces the value of a node that raised, or that has an effect and so runs only in the call.

    An exception is harmless in the branch that is not taken.
    """

    error: Exception

    def text(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


def _compute(node: Apply, inputs: Sequence[Any]) -> Sequence[Any]:
    if isinstance(node.op, IfElse) and not isinstance(inputs[0], _Failed):
        count = node.op.count
        return inputs[1 : 1 + count] if inputs[0] else inputs[1 + count :]
    failed = next((i for i in inputs if isinstance(i, _Failed)), None)
    if failed is not None:
        return [failed] * len(node.outputs)
    if node.op.unmergeable:
        unknown = _Failed(NotEvaluable(f"{node.op} runs in the call alone"))
        views = node.op.views
        return [inputs[views[i]] if i in views else unknown for i in range(len(node.outputs))]
    try:
        with np.errstate(all="ignore"):
            return node.op.compute(*map(_copy, inputs))
    except Exception as error:  # the call itself raises it, with the user's line
        return [_Failed(error)] * len(node.outputs)


def _copy(value: object) -> Any:
    return np.array(value, copy=True) if isinstance(value, np.ndarray) else value


def _shape_of_graph(fgraph: FunctionGraph) -> list[Any]:
    """Ops and connections in order: equal for equal graphs."""
    number: dict[Variable, int] = {v: i for i, v in enumerate(fgraph.inputs)}

    def name(v: Variable) -> Any:
        if isinstance(v, Constant):
            return v.key()
        return number.setdefault(v, len(number)) if v.owner is None else number[v]

    nodes: list[Any] = []
    for node in fgraph.toposort():
        nodes.append((node.op, tuple(name(v) for v in node.inputs)))
        for v in node.outputs:
            number[v] = len(number)
    return [*nodes, tuple(name(v) for v in fgraph.outputs)]
