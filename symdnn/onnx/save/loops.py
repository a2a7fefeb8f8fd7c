"""Choices and loops as nodes with graphs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from onnx import helper

from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.onnx.model.kinds import code_of
from symdnn.onnx.save.writer import Writer

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
    return w.add_several(
        "If", count, c, then_branch=_branch(w, rest[:count], emit, "then"),
        else_branch=_branch(w, rest[count:], emit, "else"),
    )  # fmt: skip


def scan(w: Writer, node: Apply, emit: Emit) -> Any:
    """A loop over steps, whose states are its last values: as many as a step looks back."""
    op: Any = node.op
    given = op.split(node.inputs)
    inner = op.split_inner(op.inner.inputs)
    steps = w.as_int64(given.steps)
    body = Writer(w.opset, w)
    i, go = body.fresh("i"), body.fresh("go")
    declared = [helper.make_tensor_value_info(i, code_of("int64"), ()),
                helper.make_tensor_value_info(go, code_of("bool"), ())]  # fmt: skip
    for v, outer in zip(inner.sequences, given.sequences):
        body.names[v] = body.add("Gather", w.name(outer), i, axis=0)
    earlier: list[list[str]] = []  # of each state, the oldest first
    for c, taps in zip(op.states, inner.initials):
        names = [body.fresh("state") for _ in range(c.depth)]
        declared += [info(n, taps[0]) for n in names]
        body.names |= {v: names[tap] for tap, v in zip(c.taps, taps)}
        earlier.append(names)
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
    wanted = [(n, v) for v, names in zip(states, earlier) for n in (*names[1:], body.name(v))]
    wanted += [(body.name(v), v) for v in (*kept, *collected)]
    made = [helper.make_tensor_value_info(go_on, code_of("bool"), ())]
    made += [info(body.add("Identity", n), v) for n, v in wanted]
    graph = helper.make_graph(body.nodes, "step", declared, made)
    first = [w.add("Gather", w.name(v), w.constant(k, np.int64), axis=0)
             for v, c in zip(given.initials, op.states) for k in range(c.depth)]  # fmt: skip
    found = w.add_several("Loop", len(wanted), steps, w.constant(True), *first, body=graph)
    ends = list(accumulate(c.depth for c in op.states))
    last, rest = [found[k - 1] for k in ends], found[len(first) :]
    histories, rest = rest[: len(kept)], rest[len(kept) :]
    return _in_order(w, op, given.initials, last, histories, rest)


def _extreme(sign: int) -> Callable[[np.dtype[Any]], Any]:
    """The number of a dtype that is the least (-1) or the largest of all."""

    def found(dtype: np.dtype[Any]) -> Any:
        if np.issubdtype(dtype, np.integer):
            limits = np.iinfo(dtype)
            return limits.max if sign > 0 else limits.min
        return sign * np.inf

    return found


#: Ops along an axis: the state before the first step, by dtype, and a step.
_ALONG: dict[str, tuple[Callable[[np.dtype[Any]], Any], Callable[..., str]]] = {
    "CumProd": (lambda _: 1, lambda w, before, x: w.add("Mul", before, x)),
    "CumMax": (_extreme(-1), lambda w, before, x: w.add("Max", before, x)),
    "CumMin": (_extreme(1), lambda w, before, x: w.add("Min", before, x)),
    "LinearRecurrence": (
        lambda _: 0, lambda w, before, a, b: w.add("Add", w.add("Mul", a, before), b)
    ),
    "Shift": (lambda _: 0, lambda w, before, x: w.add("Identity", x)),
    "ForwardFill": (
        lambda _: np.nan, lambda w, before, x: w.add("Where", w.add("IsNaN", x), before, x)
    ),
}  # fmt: skip
#: Those of truths, which have no order in ONNX.
_ALONG_TRUTHS = {
    **_ALONG,
    "CumMax": (lambda _: False, lambda w, before, x: w.add("Or", before, x)),
    "CumMin": (lambda _: True, lambda w, before, x: w.add("And", before, x)),
}


def along_axis(w: Writer, node: Apply) -> Any:
    """A scan along the axis, which comes first, whose state is the result so far."""
    op: Any = node.op
    out = node.outputs[0]
    start, step = (_ALONG_TRUTHS if out.type.dtype == "bool" else _ALONG)[type(op).__name__]
    order = [op.axis, *(d for d in range(out.ndim) if d != op.axis)]
    names = (
        w.name(x) if x.type.dtype == out.type.dtype else w.cast(w.name(x), out.type.dtype)
        for x in node.inputs
    )
    first = [_directed(w, w.add("Transpose", name, perm=order), op.reverse) for name in names]
    value = w.like(out, start(out.type.numpy))
    initial = w.add("Expand", value, w.add("Shape", first[0], start=1))
    body = Writer(w.opset, w)
    before, elements = body.fresh("before"), [body.fresh("element") for _ in first]
    after = step(body, before, *elements)
    shifted = getattr(op, "exclusive", type(op).__name__ == "Shift")
    result = body.add("Identity", before if shifted else after)
    sizes = [out.type.shape[d] for d in order[1:]]
    given, made = (
        [helper.make_tensor_value_info(n, code_of(out.type.dtype), sizes) for n in names]
        for names in ((before, *elements), (after, result))
    )
    graph = helper.make_graph(body.nodes, "step", given, made)
    found = w.add_several("Scan", 2, initial, *first, body=graph, num_scan_inputs=len(first))
    results = _directed(w, found[1], op.reverse)
    return w.add("Transpose", results, perm=[order.index(d) for d in range(out.ndim)])


def _directed(w: Writer, name: str, reverse: bool) -> str:
    """A value, or with ``reverse`` its entries from the last to the first."""
    limits = ([-1], [np.iinfo(np.int64).min], [0], [-1])
    return w.add("Slice", name, *(w.constant(n, np.int64) for n in limits)) if reverse else name


EMITTERS = dict.fromkeys(_ALONG, along_axis)


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
