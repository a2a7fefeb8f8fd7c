"""Scans as statements: the loop of a program, and loops inside of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.errors import SymdnnError
from symdnn.graph.type import TensorType, dtype_name, numpy_dtype
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.scan import Carry, Scan
from symdnn.ops.steps.block import Block, Rules
from symdnn.ops.steps.code import Code, Given, NotLowered, same
from symdnn.ops.steps.statements import LoopProgram, Repeat, Statement, View, dense

__all__ = ["lowered_loop", "scan_statements"]

#: The index of the program's own loop.
_STEP = "t0"


class _Step:
    """A scan's step: where its inner inputs are, and where its inner outputs go.

    ``entries`` are the sequences' entries, ``others`` the values that all steps read, ``histories``
    and ``collected`` the places of step 0 with what moves them; None for a state without history.
    """

    def __init__(
        self, code: Code, rules: Rules, op: Scan, index: str, entries: Sequence[View],
        states: Sequence[View], histories: Sequence[View | None], others: Sequence[Any],
    ) -> None:  # fmt: skip
        self.code, self.op, self.index = code, op, index
        self.states, self.histories = states, histories
        inside = op.split_inner(op.inner.inputs)
        env: dict[Variable, Any] = dict(zip(inside.sequences, entries, strict=True))
        for k, (carry, taps) in enumerate(zip(op.states, inside.initials, strict=True)):
            env.update(zip(taps, [self._tap(k, carry, tap) for tap in carry.taps], strict=True))
        env.update(zip(inside.others, others, strict=True))
        self.targets: dict[Variable, View] = {}
        owned = {s.base for s, c in zip(states, op.states, strict=True) if c.depth == 1}
        self.block = Block(
            code, rules, env, op.inner.nodes, op.inner.outputs, self.targets, owned
        )
        for k, h in enumerate(histories):
            if h is not None:
                self._wants(k, h)

    def _tap(self, k: int, carry: Carry, tap: int) -> View:
        state, h = self.states[k], self.histories[k]
        if h is None:
            return _entry(state, carry.depth + tap)
        return replace(h, offset=h.offset + tap * dict(h.moves)[self.index])

    def _wants(self, output: int, view: View) -> None:
        """Have an inner output made in ``view``, if it is made by a node."""
        v = self.op.inner.outputs[output]
        if v.owner is not None and v not in self.targets:
            self.targets[v] = view

    def collect(self, places: Sequence[View]) -> None:
        """Where the collected values go."""
        for k, place in enumerate(places):
            self._wants(len(self.op.states) + k, place)
        self.collected = places

    def statements(self) -> tuple[list[Statement], list[Statement], View | None]:
        """(the statements of a step, those that move states on, the condition that ends it)"""
        op, block = self.op, self.block
        body = block.lowered()
        values = [block.view(v) for v in op.inner.outputs]
        moving = {s.base for s in self.states}
        after: list[Statement] = []
        for k, (carry, state, h) in enumerate(
            zip(op.states, self.states, self.histories, strict=True)
        ):
            shape = state.shape[1:] if h is None else h.shape
            if values[k].shape != shape:
                raise NotLowered("a state changes its shape")
            if h is not None:
                body += same(h, values[k])
                continue
            new = self._safe(values[k], _entry(state, carry.depth - 1), moving, body)
            for d in range(carry.depth - 1):
                after += same(_entry(state, d), _entry(state, d + 1))
            after += same(_entry(state, carry.depth - 1), new)
        for place, value in zip(self.collected, values[len(op.states) :], strict=False):
            body += same(place, value)
        until = self._safe(values[-1], None, moving, body) if op.until else None
        return body, after, until

    def _safe(
        self, value: View, own: View | None, moving: set[str], body: list[Statement]
    ) -> View:
        """A value that moving the states on does not change: a copy if it lies in one of them."""
        if value == own or value.base not in moving:
            return value
        made = self.code.buffer(value.dtype, value.shape)
        body += same(made, value)
        return made


def _entry(view: View, k: int) -> View:
    """Entry ``k`` along the first dimension."""
    return replace(
        view, shape=view.shape[1:], steps=view.steps[1:], offset=view.offset + k * view.steps[0]
    )


def _collected_shapes(op: Scan, shapes: Sequence[Any], values: Mapping[int, int]) -> list[Any]:
    found = op._collected_shapes(op.split(shapes), values)
    if any(s is None or any(not isinstance(n, int | np.integer) for n in s) for s in found):
        raise NotLowered("the shape of a collected value is not known")
    return [tuple(int(n) for n in s) for s in found]


# -- the program ----------------------------------------------------------------------------------


def lowered_loop(op: Scan, inputs: Sequence[Any], rules: Rules) -> tuple[LoopProgram, Code]:
    """The program of a scan of these arrays; raises :class:`NotLowered` where there is none.

    It is for all arrays of these shapes and strides, and for the values in ``Code.values``.
    """
    try:
        return _lowered(op, inputs, rules)
    except SymdnnError as error:  # the loop itself raises it again
        raise NotLowered(str(error)) from error


def _lowered(op: Scan, inputs: Sequence[Any], rules: Rules) -> tuple[LoopProgram, Code]:
    if op.inner.unmergeable or op.inner.host_callback or op.inner.ordered:
        raise NotLowered("a step has effects")
    if any(not isinstance(t, TensorType) for t in (*op.inner.input_types, *op.inner.output_types)):
        raise NotLowered("a step has values that are no tensors")
    code, given = Code(), op.split(inputs)
    if any(0 in a.shape for a in inputs):
        raise NotLowered("an array has no elements")
    views = [
        code.array("input", i, dtype_name(a.dtype), a.shape, a.strides)
        for i, a in enumerate(inputs)
    ]
    places = op.split(views)
    entries = [_entry(v, 0).moved(_STEP, v.steps[0]) for v in places.sequences]
    first_other = len(inputs) - len(given.others)
    others: list[Any] = [
        Given(v, int(a), first_other + i) if not a.shape and a.dtype.kind in "iu" else v
        for i, (v, a) in enumerate(zip(places.others, given.others, strict=True))
    ]
    states, histories = [], []
    before: list[Statement] = []
    after: list[Statement] = []
    for k, (carry, v) in enumerate(zip(op.states, places.initials, strict=True)):
        if carry.history:
            h = code.array("history", k, v.dtype, v.shape[1:], dense(v.shape[1:], v.itemsize))
            row = _bytes(v.dtype, v.shape[1:])
            h = replace(h, offset=carry.depth * row).moved(_STEP, row)
            histories.append(h)
            states.append(h)
            continue
        now = code.array("now", k, v.dtype, v.shape, dense(v.shape, v.itemsize))
        state = code.buffer(v.dtype, v.shape)
        before += same(state, now)
        after += same(now, state)
        states.append(state)
        histories.append(None)
    step = _Step(code, rules, op, _STEP, entries, states, histories, others)
    host = {i: int(inputs[i]) for i in op.host_inputs}
    code.values.update({i: v for i, v in host.items() if i})
    collected = []
    types = op.inner.output_types[len(op.states) :]
    shapes = _collected_shapes(op, [a.shape for a in inputs], host)
    for k, (shape, t) in enumerate(zip(shapes, types, strict=False)):
        assert isinstance(t, TensorType)
        size = int(numpy_dtype(t.dtype).itemsize)
        view = code.array("collected", k, t.dtype, shape, dense(shape, size))
        code.roles[-1] = replace(code.roles[-1], value=view)
        collected.append(view.moved(_STEP, _bytes(t.dtype, shape)))
    step.collect(collected)
    body, moves, until = step.statements()
    loop = Repeat(_STEP, None, tuple(body), tuple(moves), until)
    program = LoopProgram(
        len(code.roles), tuple(code.buffers), (*code.before, *before), loop, tuple(after)
    )
    return program, code


def _bytes(dtype: str, shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * int(numpy_dtype(dtype).itemsize)


# -- loops inside of a step -----------------------------------------------------------------------


def scan_statements(block: Block, node: Apply) -> list[Statement] | None:
    """A scan inside of a step. Values of all its steps need a known number of steps."""
    op: Any = node.op
    code, given = block.code, op.split(node.inputs)
    steps = block.known(given.steps) if block.is_known(given.steps) else None
    places, first = op.places(), op.first_collected
    keeps = [h for h, _ in places if h is not None] + list(range(first, first + op.collected))
    if steps is None and (op.sequences or any(block.reads(node.outputs[i]) for i in keeps)):
        steps = block.known(given.steps)
    read = any(block.reads(node.outputs[i]) for i in keeps)
    if steps is None and (read or op.sequences or op.least or keeps):
        raise NotLowered(f"the number of steps of {op} is not known")
    if op.until and read:
        raise NotLowered(f"the number of steps of {op} is not known")
    if steps is not None:
        op.check_lengths(int(steps), op.split([block.shape(v) for v in node.inputs]))
        if int(steps) == 0:
            raise NotLowered("a loop has no steps")
    name = code.name("t")
    entries = []
    for v in given.sequences:
        view = block.view(v)
        entries.append(_entry(view, 0).moved(name, view.steps[0]))
    found: list[Statement] = []
    states, histories = [], []
    for carry, v, (h, _) in zip(op.states, given.initials, places, strict=True):
        view = block.view(v)
        if carry.history:
            whole = code.buffer(view.dtype, (int(steps) + carry.depth, *view.shape[1:]))
            found += same(replace(whole, shape=view.shape), view)
            row = whole.steps[0]
            histories.append(_entry(whole, carry.depth).moved(name, row))
            states.append(histories[-1])
            if not op.until:
                block.set(node.outputs[h], whole)
            continue
        state = code.buffer(view.dtype, view.shape)
        found += same(state, view)
        states.append(state)
        histories.append(None)
    others = [block.env_value(v) for v in given.others]
    step = _Step(code, block.rules, op, name, entries, states, histories, others)
    host = {}
    for i in op.host_inputs:
        if i and (number := block.known(node.inputs[i])) is not None:
            host[i] = int(number)
    shapes = [block.shape(v) for v in node.inputs]
    collected = []
    if op.collected:
        for k, shape in enumerate(_collected_shapes(op, shapes, host)):
            dtype = op.inner.output_types[len(op.states) + k].dtype
            whole = code.buffer(dtype, (int(steps), *shape))
            collected.append(_entry(whole, 0).moved(name, whole.steps[0]))
            if not op.until:
                block.set(node.outputs[first + k], whole)
    step.collect(collected)
    body, moves, until = step.statements()
    done = code.buffer("int64", ()) if op.until else None
    count = int(steps) if steps is not None else block.view(given.steps)
    found.append(Repeat(name, count, tuple(body), tuple(moves), until, done))
    for carry, state, h, (_, last) in zip(op.states, states, histories, places, strict=True):
        view = _entry(state, carry.depth - 1) if h is None else _last(h, int(steps), op)
        block.set(node.outputs[last], view)
        block.owned.add(view.base)
    if done is not None:
        block.set(node.outputs[-1], done)
    return found


def _last(history: View, steps: int, op: Scan) -> View:
    """The last value of a state with all values, after so many steps."""
    if op.until:
        raise NotLowered(f"the number of steps of {op} is not known")
    (_, row) = history.moves[-1]
    return replace(history, moves=history.moves[:-1], offset=history.offset + (steps - 1) * row)
