"""Loops inside of the step of a loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symdnn.graph.variable import Apply
from symdnn.ops.control.scan import Scan
from symdnn.ops.steps.block import Block
from symdnn.ops.steps.code import NotLowered, same
from symdnn.ops.steps.statements import Repeat, Statement, View
from symdnn.ops.steps.step import Step, collected_shapes, dtype_of, entry


def scan_statements(block: Block, node: Apply) -> list[Statement] | None:
    """A scan inside of a step. Values of all its steps need a known number of steps."""
    op: Any = node.op
    code, given = block.code, op.split(node.inputs)
    steps, name = _known_steps(block, node), block.code.name("step")
    places, first = op.places(), op.first_collected
    entries = []
    for v in given.sequences:
        view = block.view(v)
        entries.append(entry(view, 0).moved(name, view.steps[0]))
    found: list[Statement] = []
    states: list[View] = []
    histories: list[View | None] = []
    for carry, v, (h, _) in zip(op.states, given.initials, places, strict=True):
        view = block.view(v)
        length = steps + carry.depth if carry.history else carry.depth
        memory = code.buffer(view.dtype, (length, *view.shape[1:]))
        found += same(replace(memory, shape=view.shape), view)
        here = entry(memory, carry.depth).moved(name, memory.steps[0]) if carry.history else None
        histories.append(here)
        states.append(here or memory)
        if h is not None and not op.until:
            block.set(node.outputs[h], memory)

    def collected(k: int, shape: tuple[int, ...]) -> View:
        whole = code.buffer(dtype_of(op, k), (steps, *shape))
        if not op.until:
            block.set(node.outputs[first + k], whole)
        return entry(whole, 0).moved(name, whole.steps[0])

    others = [block.env_value(v) for v in given.others]
    step = Step(code, block.rules, op, name, entries, states, histories, others)
    body, moves, until = step.statements(collected, _shapes(block, node))
    done = code.buffer("int64", ()) if op.until else None
    count = steps or block.view(given.steps)
    found.append(Repeat(name, count, tuple(body), tuple(moves), until, done))
    for carry, state, here, (_, last) in zip(op.states, states, histories, places, strict=True):
        view = entry(state, carry.depth - 1) if here is None else _last(here, steps, op)
        block.set(node.outputs[last], view)
        block.owned.add(view.base)
    if done is not None:
        block.set(node.outputs[-1], done)
    return found


def _known_steps(block: Block, node: Apply) -> int:
    """The number of steps, of ``until`` at most; 0 where it is not known and need not be."""
    op: Any = node.op
    keeps = [h for h, _ in op.places() if h is not None]
    keeps += range(op.first_collected, op.first_collected + op.collected)
    read = any(block.reads(node.outputs[i]) for i in keeps)
    given = op.split(node.inputs)
    needed = op.sequences or (keeps and not op.until)
    number = block.known(given.steps) if block.is_known(given.steps) or needed else None
    if op.until and read:
        raise NotLowered(f"the number of steps of {op} is not known")
    if number is None:
        if keeps or op.sequences or op.least:
            raise NotLowered(f"the number of steps of {op} is not known")
        return 0
    op.check_lengths(int(number), op.split([block.shape(v) for v in node.inputs]))
    if int(number) <= 0:
        raise NotLowered("a loop has no steps")
    return int(number)


def _shapes(block: Block, node: Apply) -> list[Any]:
    """The shapes of the collected values, where they are known before."""
    op: Any = node.op
    if not op.collected:
        return []
    host = {
        i: int(n) for i in op.host_inputs if i and (n := block.known(node.inputs[i])) is not None
    }
    return collected_shapes(op, [block.shape(v) for v in node.inputs], host)


def _last(history: View, steps: int, op: Scan) -> View:
    """The last value of a state with all values, after so many steps."""
    if op.until:
        raise NotLowered(f"the number of steps of {op} is not known")
    (_, row) = history.moves[-1]
    return replace(history, moves=history.moves[:-1], offset=history.offset + (steps - 1) * row)
