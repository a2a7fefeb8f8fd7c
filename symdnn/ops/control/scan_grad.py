"""The gradient of a scan: another scan over the same steps in reverse order.

Its step ``t`` reads the inputs of the forward loop's step ``t`` and the cotangents of that step's
outputs. It carries, for each state, the cotangents from later steps of values that it has not
reached yet (as many as the deepest tap reaches back), and a sum for each non-sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from symdnn.graph.backprop import backprop
from symdnn.graph.operators import operator
from symdnn.graph.traverse import ancestors, leaves, toposort
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_parts import Built, Parts, State
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape
from symdnn.ops.elementwise.comparison import Eq, Neq

Maybe = Variable | None


def scan_vjp(
    op: Scan, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Maybe]
) -> list[Maybe]:
    """Gradients with respect to the inputs of a scan."""
    return _Backward(op, inputs, outputs, cotangents).gradients()


@dataclass
class _Incoming:
    """Cotangents of a state, and the inner variables by which a backward step reads them.

    ``initial`` is that of its initial values, ``entries`` those of the steps, ``last`` that of the
    last value alone. ``pending[k]`` is the sum from later steps for the value ``k`` steps before
    this one.
    """

    initial: Maybe
    entries: Maybe
    last: Maybe
    depth: int
    entry: Maybe = None
    pending: list[Variable] = field(default_factory=list)


def _compared(outputs: Sequence[Variable]) -> set[Variable]:
    """Variables that are compared for being equal, as the gradient of a maximum does.

    They are computed from the same numbers as what they are compared with: a product for all steps
    at once may round in another way than it did in the loop.
    """
    found = set()
    for node in toposort(outputs):
        if isinstance(node.op, Eq | Neq):
            for v in node.inputs:
                while v.owner is not None and isinstance(v.owner.op, DimShuffle | Reshape):
                    v = v.owner.inputs[0]
                found.add(v)
    return found


def _incoming(history: Maybe, last: Maybe, depth: int) -> _Incoming:
    """Cotangents of a state from those of its outputs; None if they are known to be zero."""
    if history is None:
        return _Incoming(None, None, last, depth)
    if (found := _of_last(history)) is not None:
        return _Incoming(None, None, found if last is None else last + found, depth)
    if (found := _of_steps(history, depth)) is not None:
        return _Incoming(None, found, last, depth)
    return _Incoming(history[:depth], history[depth:], last, depth)


def _of_last(v: Variable) -> Maybe:
    """``g`` if ``v`` is the gradient of ``history[k:][-1]``: zeros with ``g`` at the end."""
    node = v.owner
    while node is not None and isinstance(node.op, IncSubtensor) and _is_zero(node.inputs[0]):
        first, *rest = node.op.index
        if any(e != (None, None, None) for e in rest):
            return None
        if first == -1:
            return node.inputs[1]
        if not (isinstance(first, tuple) and first[1:] == (None, None)):
            return None
        node = node.inputs[1].owner
    return None


def _of_steps(v: Variable, depth: int) -> Maybe:
    """``g`` if ``v`` is the gradient of ``history[depth:]``: zeros for the initial values."""
    node = v.owner
    if node is None or not isinstance(node.op, IncSubtensor) or not _is_zero(node.inputs[0]):
        return None
    full = [(None, None, None)] * (v.type.ndim - 1)
    return node.inputs[1] if list(node.op.index) == [(depth, None, None), *full] else None


def _is_zero(v: Variable) -> bool:
    value = v.owner.inputs[0] if v.owner is not None and isinstance(v.owner.op, Alloc) else v
    while value.owner is not None and isinstance(value.owner.op, DimShuffle):
        value = value.owner.inputs[0]
    return isinstance(value, Constant) and not value.data.any()


class _Backward:
    def __init__(
        self,
        op: Scan,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        cotangents: Sequence[Maybe],
    ) -> None:
        self.op, self.inputs, self.outputs = op, inputs, outputs
        self.forward = Parts.of(op, inputs)
        self.done = outputs[-1] if op.until else inputs[0]
        self.partial = op.until or op.truncate >= 0
        self.steps = self.done
        if op.truncate >= 0:
            self.steps = operator("minimum")(self.done, op.truncate).astype("int64")
        self.states = [
            _incoming(None if h is None else cotangents[h], cotangents[last], c.depth)
            for c, (h, last) in zip(op.states, op.places(), strict=True)
        ]
        self.entries = self._entry_pairs(cotangents)
        self.reached = self._reach()
        self.sweep = self._sweep(self.reached)

    def _entry_pairs(self, cotangents: Sequence[Maybe]) -> list[tuple[Maybe, Maybe]]:
        """(inner variable, cotangent) of each collected output."""
        self.first = first = self.op.first_collected
        pairs: list[tuple[Maybe, Maybe]] = []
        for v, c in zip(self.forward.collected, cotangents[first:]):
            used = c is not None and v.type.is_differentiable
            pairs.append((v.type() if used else None, c if used else None))
        for s, state in zip(self.states, self.forward.states):
            if s.entries is not None:
                s.entry = state.next.type()
        return pairs

    # -- one step ------------------------------------------------------------------------------

    def _reach(self) -> set[int]:
        """States that the cost depends on, also through other states and steps."""
        reached = {
            i for i, s in enumerate(self.states) if s.entries is not None or s.last is not None
        }
        while True:
            sweep = self._sweep(reached)
            more = {
                i
                for i, s in enumerate(self.forward.states)
                if any(sweep[v] is not None for v in s.inside)
            }
            if more <= reached:
                return {i for i in reached if self._differentiable(i)}
            reached |= more

    def _differentiable(self, i: int) -> bool:
        return bool(self.inputs[1 + self.op.sequences + i].type.is_differentiable)

    def _sweep(self, reached: set[int]) -> dict[Variable, Maybe]:
        """Gradients of one forward step with respect to its inner inputs."""
        seeds: dict[Variable, Variable] = {}

        def seed(v: Variable, c: Variable) -> None:
            seeds[v] = seeds[v] + c if v in seeds else c

        for i in sorted(reached):
            state, forward = self.states[i], self.forward.states[i]
            if not self._differentiable(i):
                continue
            if not state.pending:
                state.pending = [forward.inside[0].type() for _ in range(state.depth)]
            total = state.pending[0] if state.entry is None else state.pending[0] + state.entry
            seed(forward.next, total)
        for v, (entry, _) in zip(self.forward.collected, self.entries):
            if entry is not None:
                seed(v, entry)
        wrt = [v for v, _ in (*self.forward.sequences, *self.forward.others)]
        wrt += [v for s in self.forward.states for v in s.inside]
        return dict(zip(wrt, backprop(seeds, wrt)))

    # -- the backward scan ---------------------------------------------------------------------

    def gradients(self) -> list[Maybe]:
        """Build the backward scan; returns the gradients."""
        parts = Parts(self.steps, name=f"grad_of_{self.op.name or 'scan'}")
        order = sorted(self.reached)
        for i in order:
            parts.states += self._pending_states(i)
        summed = [p for p in self.forward.others if self.sweep[p[0]] is not None]
        parts.states += [_sum_state(inner, outer, self._grad(inner)) for inner, outer in summed]
        passed = [p for p in self.forward.sequences if self.sweep[p[0]] is not None]
        parts.collected = [self._grad(inner) for inner, _ in passed]
        if not parts.states and not parts.collected:
            return [None] * len(self.inputs)
        known = self._known_results(parts)
        read = set(leaves(parts.inner_outputs()))
        parts.sequences = self._backward_sequences(read) + known
        parts.others = list(self.forward.others)
        return self._collect(parts.build(), order, summed, passed)

    def _known_results(self, parts: Parts) -> list[tuple[Variable, Variable]]:
        """Make sequences of results of forward steps that ``parts`` would compute again."""
        results = [(v, self.outputs[i]) for i, v in enumerate(self.forward.collected, self.first)]
        for c, (h, _), s in zip(self.op.states, self.op.places(), self.forward.states, strict=True):
            if h is not None:
                results.append((s.next, self.outputs[h][c.depth :]))
        computed = set(ancestors(parts.inner_outputs()))
        compared = _compared(parts.inner_outputs())
        replace: dict[Variable, Variable] = {}
        found = []
        for v, x in results:
            if v.owner is None or v in compared:
                continue
            if v in computed and v not in replace:
                replace[v] = v.type(v.name)
                found.append((replace[v], self._backwards(x)))
        parts.substitute(replace)
        read = set(leaves(parts.inner_outputs()))
        return [(v, x) for v, x in found if v in read]

    def _grad(self, inner: Variable) -> Variable:
        found = self.sweep[inner]
        assert found is not None
        return found

    def _pending_states(self, i: int) -> list[State]:
        """The carried cotangents of state ``i``, which each step shifts by one value."""
        incoming, forward = self.states[i], self.forward.states[i]
        zeros = operator("zeros_like")(forward.initial[:1])
        found = []
        for k, inside in enumerate(incoming.pending):
            initial = zeros
            if k == 0 and incoming.last is not None:
                initial = incoming.last.dimshuffle("x", *range(incoming.last.type.ndim))
            terms = [
                g
                for tap, v in zip(forward.taps, forward.inside)
                if tap == -(k + 1) and (g := self.sweep[v]) is not None
            ]
            if k + 1 < incoming.depth:
                terms.insert(0, incoming.pending[k + 1])
            new = sum(terms[1:], terms[0]) if terms else operator("zeros_like")(inside)
            # A second gradient needs its history, which is dropped if nothing reads it.
            found.append(
                State((-1,), [inside], initial, new, True, f"the gradient of {forward.label}")
            )
        return found

    def _backward_sequences(self, read: set[Variable]) -> list[tuple[Variable, Variable]]:
        """Inner variables that the steps read, each with its reversed sequence."""
        pairs = [(v, x) for v, x in self.forward.sequences if v in read]
        histories = None
        for i, s in enumerate(self.forward.states):
            depth = -min(s.taps)
            for tap, v in zip(s.taps, s.inside):
                if v in read:
                    histories = histories or self._histories()
                    pairs.append((v, histories[i][depth + tap : tap]))
        for incoming in self.states:
            if incoming.entry is not None and incoming.entries is not None:
                pairs.append((incoming.entry, incoming.entries))
        pairs += [(v, c) for v, c in self.entries if v is not None and c is not None]
        return [(v, self._backwards(x)) for v, x in pairs if v in read]

    def _histories(self) -> list[Variable]:
        """All values of each state; a scan without a history is applied again with one."""
        if all(c.history for c in self.op.states):
            outputs, places = self.outputs, self.op.places()
        else:
            states = tuple(replace(c, history=True) for c in self.op.states)
            keeping = replace(self.op, states=states)
            outputs, places = keeping.make_node(*self.inputs).outputs, keeping.places()
        return [outputs[h] for h, _ in places if h is not None]

    def _backwards(self, x: Variable) -> Variable:
        if not self.partial:
            return x[::-1]
        return x[self.done - self.steps : self.done][::-1]

    # -- its results ---------------------------------------------------------------------------

    def _collect(
        self,
        built: Built,
        order: Sequence[int],
        summed: Sequence[tuple[Variable, Variable]],
        passed: Sequence[tuple[Variable, Variable]],
    ) -> list[Maybe]:
        grads: dict[Any, Maybe] = {}
        last = list(built.last)
        for i in order:
            count = self.states[i].depth
            grads["state", i] = self._initial_grad(i, last[:count])
            del last[:count]
        for (inner, _), g in zip(summed, last, strict=True):
            grads[inner] = g
        for (inner, outer), g in zip(passed, built.collected, strict=True):
            grads[inner] = self._sequence_grad(outer, g)
        return [
            None,
            *(grads.get(v) for v, _ in self.forward.sequences),
            *(grads.get(("state", i)) for i in range(len(self.states))),
            *(grads.get(v) for v, _ in self.forward.others),
        ]

    def _initial_grad(self, i: int, pending: Sequence[Variable]) -> Variable:
        rows = [p.dimshuffle("x", *range(p.type.ndim)) for p in reversed(pending)]
        total = rows[0] if len(rows) == 1 else operator("join")(0, *rows)
        if self.op.truncate >= 0:
            # Earlier steps than the gradient goes back count as constant.
            whole = operator("eq")(self.steps, self.done)
            total = operator("switch")(whole, total, operator("zeros_like")(total))
        initial = self.states[i].initial
        return total if initial is None else total + initial

    def _sequence_grad(self, x: Variable, g: Variable) -> Variable:
        if not self.partial:
            return g[::-1]
        place = operator("zeros_like")(x)[self.done - self.steps : self.done]
        return operator("set_subtensor")(place, g[::-1])


def _sum_state(inner: Variable, outer: Variable, g: Variable) -> State:
    """The sum over the steps of the gradient with respect to a non-sequence."""
    total = inner.type()
    zeros = operator("zeros_like")(outer).dimshuffle("x", *range(outer.type.ndim))
    return State((-1,), [total], zeros, total + g, False, f"the gradient of {outer}")
