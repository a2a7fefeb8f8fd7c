"""Loops whose gradients read the values of all their steps: what may run in segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.slices import FULL
from symdnn.ops.control.scan import Scan
from symdnn.ops.core.shape import ShapeI

_REVERSED = (None, None, -1)


@dataclass(frozen=True)
class Reading:
    """How a gradient's sequence reads an output of the loop before: ``entries[start:stop][::-1]``.

    ``output`` is the output's index. Of collected values it reads all entries.
    """

    output: int
    start: int | None = None
    stop: int | None = None


@dataclass(frozen=True)
class Pair:
    """A loop, and the loop of its gradient.

    ``sequences`` has for each sequence of the gradient what it reads: an output of the loop that
    nothing else needs, or the sequence in the order of steps. ``stored`` are these outputs.
    """

    forward: Apply
    backward: Apply
    sequences: tuple[Reading | Variable, ...]

    @property
    def stored(self) -> list[int]:
        """Indices of the outputs of the loop that only its gradient reads, step by step."""
        return sorted({r.output for r in self.sequences if isinstance(r, Reading)})


def pairs_of(fgraph: FunctionGraph) -> tuple[list[Pair], dict[Apply, str]]:
    """The loops that may run in segments, and for other loops with a gradient the reason."""
    loops = [n for n in fgraph.toposort() if isinstance(n.op, Scan)]
    pairs: list[Pair] = []
    left: dict[Apply, str] = {}
    taken: set[Apply] = set()
    for node in loops:
        gradients = _gradients(node, fgraph)
        if not gradients:
            continue
        why = _reason(node, gradients, taken, fgraph)
        if why is None:
            pair = _pair(node, gradients[0], fgraph)
            pairs.append(pair)
            taken |= {node, pair.backward}
        else:
            left[node] = why
    return pairs, left


def _gradients(node: Apply, fgraph: FunctionGraph) -> list[Apply]:
    """The loops that read values of all steps in reverse order.

    The loop after this one reads them as a sequence, so its gradient does. The gradient of this one
    reads those that a step begins with, if any does.
    """
    found: dict[Apply, bool] = {}
    for v in _of_all_steps(node):
        stack = [(v, False, False)]
        while stack:
            part, turned, begins = stack.pop()
            for reader in fgraph.user_nodes(part):
                if isinstance(reader.op, Subtensor):
                    first = reader.op.index[0]
                    now = turned or (isinstance(first, tuple) and first[2] == -1)
                    early = begins or (isinstance(first, tuple) and _is_negative(first[1]))
                    stack.append((reader.outputs[0], now, early))
                elif isinstance(reader.op, Scan) and turned and part in _sequences(reader):
                    found[reader] = found.get(reader, False) or begins
    own = [n for n, begins in found.items() if begins]
    return own if len(own) == 1 else list(found)


def _is_negative(bound: object) -> bool:
    return isinstance(bound, int) and bound < 0


def _of_all_steps(node: Apply) -> list[Variable]:
    op: Any = node.op
    found = [node.outputs[h] for h, _ in op.places() if h is not None]
    return [*found, *node.outputs[op.first_collected : op.first_collected + op.collected]]


def _sequences(node: Apply) -> Sequence[Variable]:
    op: Any = node.op
    found: Sequence[Variable] = op.split(node.inputs).sequences
    return found


def _is_turned(node: Apply) -> bool:
    return (
        isinstance(node.op, Subtensor) and node.op.index[0] == _REVERSED
        and all(e == FULL for e in node.op.index[1:])
    )  # fmt: skip


def _is_part(node: Apply) -> bool:
    """Whether it is ``v[start:stop]`` of numbers."""
    if not isinstance(node.op, Subtensor) or any(e != FULL for e in node.op.index[1:]):
        return False
    first = node.op.index[0]
    ends = first[:2] if isinstance(first, tuple) and first[2] is None else ("no slice",)
    return all(e is None or isinstance(e, int) for e in ends)


def _reason(
    node: Apply, gradients: Sequence[Apply], taken: set[Apply], fgraph: FunctionGraph
) -> str | None:
    """Why a loop can't run in segments; None if it can."""
    op: Any = node.op
    gradient = gradients[0]
    back: Any = gradient.op
    if op.until or op.truncate >= 0 or back.until:
        return "the number of steps that its gradient takes is known only after the loop"
    if len(gradients) > 1:
        return "several gradients read its values"
    if node in taken or gradient in taken:
        return "it is a part of another gradient"
    if not _same_number(node.inputs[0], gradient.inputs[0]):
        return "its gradient takes another number of steps"
    if any(o.inner.unmergeable or o.inner.host_callback for o in (op, back)):
        return "its steps have effects"
    if any(n.op.private_draws for o in (op, back) for n in o.inner.nodes):
        return "a library draws random numbers in its steps"
    if not op.states or not back.states:
        return "its steps do not depend on one another"
    if any(fgraph.users(gradient.outputs[h]) for h, _ in back.places() if h is not None):
        return "a second derivative reads the values of its gradient"
    return None


def _same_number(a: Variable, b: Variable) -> bool:
    if isinstance(a, Constant) and isinstance(b, Constant):
        return int(a.data) == int(b.data)
    return a is b


def _pair(node: Apply, gradient: Apply, fgraph: FunctionGraph) -> Pair:
    outputs = {v: node.outputs.index(v) for v in _of_all_steps(node)}
    found: list[Reading | Variable] = []
    for x in _sequences(gradient):
        turned = x.owner
        if turned is None or not _is_turned(turned):
            found.append(x[::-1])
            continue
        y = turned.inputs[0]
        reading = _reading(y, outputs)
        found.append(y if reading is None else reading)
    first = node.op.first_collected  # type: ignore[attr-defined]
    alone = {i: _read_by(v, gradient, fgraph, i < first) for v, i in outputs.items()}
    for k, (r, x) in enumerate(zip(found, _sequences(gradient), strict=True)):
        if isinstance(r, Reading) and not alone[r.output]:
            assert x.owner is not None
            found[k] = x.owner.inputs[0]
    return Pair(node, gradient, tuple(found))


def _reading(y: Variable, outputs: Mapping[Variable, int]) -> Reading | None:
    if y in outputs:
        return Reading(outputs[y])
    node = y.owner
    if node is not None and _is_part(node) and node.inputs[0] in outputs:
        start, stop, _ = node.op.index[0]  # type: ignore[attr-defined]
        return Reading(outputs[node.inputs[0]], start, stop)
    return None


def _read_by(v: Variable, gradient: Apply, fgraph: FunctionGraph, history: bool) -> bool:
    """Whether nothing but the sequences of a gradient reads the elements of ``v``.

    The sizes of a ``history`` follow from those of the state, so they may be read.
    """
    for reader, _ in fgraph.users(v):
        if reader is None:
            return False
        out = reader.outputs[0]
        if isinstance(reader.op, ShapeI):
            only = history
        elif _is_turned(reader):
            only = all(
                n is gradient or (history and n is not None and isinstance(n.op, ShapeI))
                for n, _ in fgraph.users(out)
            )
        else:
            only = _is_part(reader) and _read_by(out, gradient, fgraph, history)
        if not only:
            return False
    return True
