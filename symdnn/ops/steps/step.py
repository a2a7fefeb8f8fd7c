"""A scan's step as statements: where its inner inputs are, where its inner outputs go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.variable import Variable
from symdnn.ops.control.scan import Carry, Scan
from symdnn.ops.steps.block import Block, Rules
from symdnn.ops.steps.code import Code, NotLowered, same
from symdnn.ops.steps.direct import without_copies
from symdnn.ops.steps.statements import Statement, View


class Step:
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
        own = {
            v: entry(s, 0)
            for v, s, c in zip(op.inner.outputs, states, op.states)
            if c.depth == 1 and not c.history
        }
        self.block = Block(
            code, rules, env, op.inner.nodes, op.inner.outputs, self.targets,
            {s.base for s in own.values()}, own,
        )  # fmt: skip
        for k, h in enumerate(histories):
            if h is not None:
                self._wants(k, h)

    def _tap(self, k: int, carry: Carry, tap: int) -> View:
        state, h = self.states[k], self.histories[k]
        if h is None:
            return entry(state, carry.depth + tap)
        return replace(h, offset=h.offset + tap * dict(h.moves)[self.index])

    def _wants(self, output: int, view: View) -> None:
        """Have an inner output made in ``view``, if it is made by a node."""
        v = self.op.inner.outputs[output]
        if v.owner is not None and v not in self.targets:
            self.targets[v] = view

    def statements(
        self, place: Callable[[int, tuple[int, ...]], View], shapes: Sequence[Any]
    ) -> tuple[list[Statement], list[Statement], View | None]:
        """(the statements of a step, those that move states on, the condition that ends it)

        ``place(k, shape)`` is where collected value ``k`` goes; ``shapes`` are those that are
        known.
        """
        op, block, first = self.op, self.block, len(self.op.states)
        places = {k: place(k, s) for k, s in enumerate(shapes) if s is not None}
        for k, view in places.items():
            self._wants(first + k, view)
        count = len(self.code.buffers)
        body = block.lowered()
        own = {f"b{i}" for i in range(count, len(self.code.buffers))}
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
            new = self._safe(values[k], entry(state, carry.depth - 1), moving, body)
            for d in range(carry.depth - 1):
                after += same(entry(state, d), entry(state, d + 1))
            after += same(entry(state, carry.depth - 1), new)
        for k, value in enumerate(values[first : first + op.collected]):
            body += same(places.get(k) or place(k, value.shape), value)
        until = self._safe(values[-1], None, moving, body) if op.until else None
        return *without_copies(body, after, own, until), until

    def _safe(self, value: View, own: View | None, moving: set[str], body: list[Statement]) -> View:
        """A value that moving the states on does not change: a copy if it lies in one of them."""
        if value == own or value.base not in moving:
            return value
        made = self.code.buffer(value.dtype, value.shape)
        body += same(made, value)
        return made


def entry(view: View, k: int) -> View:
    """Entry ``k`` along the first dimension."""
    return replace(
        view, shape=view.shape[1:], steps=view.steps[1:], offset=view.offset + k * view.steps[0]
    )


def collected_shapes(op: Scan, shapes: Sequence[Any], values: Mapping[int, int]) -> list[Any]:
    """The shape of an entry of each collected value; None where it is known in the end only."""
    known: list[Any] = []
    for s in op.collected_shapes(op.split(shapes), values):
        whole = s is not None and all(isinstance(n, int | np.integer) for n in s)
        known.append(tuple(int(n) for n in s) if whole and s is not None else None)
    return known


def dtype_of(op: Scan, k: int) -> str:
    """The dtype of collected value ``k``."""
    t = op.inner.output_types[len(op.states) + k]
    assert isinstance(t, TensorType)
    return t.dtype


def bytes_of(dtype: str, shape: Sequence[int]) -> int:
    """The bytes of an array."""
    return int(np.prod(shape, dtype=np.int64)) * int(numpy_dtype(dtype).itemsize)
