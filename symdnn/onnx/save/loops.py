"""Choices and loops as nodes with graphs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper

from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.onnx.model.kinds import code_of
from symdnn.onnx.save.writer import Writer

__all__ = ["if_else", "scan"]

Emit = Callable[[Writer, Sequence[Variable]], None]


def info(name: str, v: Variable) -> Any:
    """The declaration of a value: its type, with its static sizes."""
    t = v.type
    assert isinstance(t, TensorType), "a tensor"
    return helper.make_tensor_value_info(name, code_of(t.dtype), t.shape)


def _branch(w: Writer, values: Sequence[Variable], emit: Emit, label: str) -> Any:
    inner = Writer(w.opset, w)
    emit(inner, values)
    outputs = []
    for v in values:
        name = inner.add("Identity", inner.name(v))
        outputs.append(info(name, v))
    return helper.make_graph(inner.nodes, label, [], outputs)


def if_else(w: Writer, node: Apply, emit: Emit) -> Any:
    """A lazy choice: what only a branch needs is in its graph."""
    count = node.op.count  # type: ignore[attr-defined]
    condition, rest = node.inputs[0], node.inputs[1:]
    emit(w, [condition])
    c = w.name(condition)
    c = c if condition.type.dtype == "bool" else w.cast(c, "bool")
    found = w.add(
        "If", c, outputs=count, then_branch=_branch(w, rest[:count], emit, "then"),
        else_branch=_branch(w, rest[count:], emit, "else"),
    )  # fmt: skip
    return [found] if count == 1 else found


def scan(w: Writer, node: Apply, emit: Emit) -> Any:
    """A loop over steps, whose states are its last values."""
    op: Any = node.op
    if any(c.taps != (-1,) for c in op.states):
        raise w.refuse(node, "a step reads more than the last value of a state")
    given = op.split(node.inputs)
    inner = op.split_inner(op.inner.inputs)
    steps = w.as_int64(given.steps)
    body = Writer(w.opset, w)
    i, go = body.fresh("i"), body.fresh("go")
    declared = [helper.make_tensor_value_info(i, code_of("int64"), ()),
                helper.make_tensor_value_info(go, code_of("bool"), ())]  # fmt: skip
    for v, outer in zip(inner.sequences, given.sequences):
        body.names[v] = body.add("Gather", w.name(outer), i, axis=0)
    for taps in inner.initials:
        (v,) = taps
        body.names[v] = body.fresh("state")
        declared.append(info(body.names[v], v))
    for v, outer in zip(inner.others, given.others):
        body.names[v] = w.name(outer)
    outputs = list(op.inner.outputs)
    emit(body, outputs)
    results = outputs[: len(op.states)], outputs[len(op.states) :]
    states, collected = results
    end = collected.pop() if op.until else None
    go_on = (
        body.add("Identity", go) if end is None
        else body.add("Not", body.name(end) if end.type.dtype == "bool"
                      else body.cast(body.name(end), "bool"))
    )  # fmt: skip
    kept = [v for v, c in zip(states, op.states) if c.history]
    wanted = [*states, *kept, *collected]
    made = [helper.make_tensor_value_info(go_on, code_of("bool"), ())]
    made += [info(body.add("Identity", body.name(v)), v) for v in wanted]
    graph = helper.make_graph(body.nodes, "step", declared, made)
    first = [w.add("Gather", w.name(v), w.constant(0, np.int64), axis=0) for v in given.initials]
    found = w.add("Loop", steps, w.constant(True), *first, outputs=len(wanted), body=graph)
    found = [found] if len(wanted) == 1 else found
    last, rest = found[: len(states)], found[len(states) :]
    histories, rest = rest[: len(kept)], rest[len(kept) :]
    return _in_order(w, op, given.initials, last, histories, rest)


def _in_order(
    w: Writer, op: Any, initials: Any, last: list[str], histories: list[str], rest: list[str]
) -> list[str]:
    """The outputs as the op has them: of each state its history, with the first value, and last."""
    found, h = [], iter(histories)
    for c, initial, final in zip(op.states, initials, last):
        if c.history:
            found.append(w.add("Concat", w.name(initial), next(h), axis=0))
        found.append(final)
    return [*found, *rest]
