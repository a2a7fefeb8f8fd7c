"""Horizontal fusion at the start of a step: small kernels that read only parameters, in one launch.

Training in 16 bits casts each parameter once. The separate launches of a hundred such kernels take
longer than their work. The schedule puts them first, and those with the same program run together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from symdnn.gpu.codegen.batch import Form, batched, form_of
from symdnn.gpu.execution.batched_updates import enqueue
from symdnn.gpu.execution.operands import Operands, Step, Values
from symdnn.graph.variable import Apply, Variable


def with_batched_casts(
    operands: Operands, runs: Mapping[Apply, Any], nodes: Sequence[Apply]
) -> list[Step]:
    """The steps of ``nodes``; the last node of each group of casts has the launch of all."""
    groups = cast_groups(operands.spec, operands.memory, nodes)
    at = {n: i for i, n in enumerate(nodes)}
    last = {max(g, key=at.__getitem__): (form, g) for form, g in groups}
    grouped = {n for _, g in groups for n in g}
    return [
        Step(n, batched_run(operands, *last[n], guarded=False) if n in last else runs[n])
        for n in nodes
        if n in last or n not in grouped
    ]


def batched_run(
    operands: Operands, form: Form, group: Sequence[Apply], guarded: bool = True
) -> Any:
    """One launch for all nodes of a group; with ``guarded`` not once the error word is set."""
    env = operands.env()

    def run(node: Apply, values: Values) -> None:
        items = [
            [
                *(operands.operand(n, i, v, values) for i, v in enumerate(n.inputs)),
                *(values[v] for v in n.outputs),
            ]
            for n in group
        ]
        enqueue(env, batched(form, items, guarded))

    return run


def cast_groups(spec: Any, memory: Any, nodes: Sequence[Apply]) -> list[tuple[Form, list[Apply]]]:
    """Groups among the first of ``nodes`` that may be launched together, at their last node."""
    groups: dict[Form, list[Apply]] = {}
    for node in nodes:
        if node in memory.aliases:
            continue
        if not all(_is_of_leaf(v, memory) for v in node.inputs):
            break
        form = _form(node, spec, memory)
        if form is not None:  # else it is launched by itself
            groups.setdefault(form, []).append(node)
    return [(form, g) for form, g in groups.items() if len(g) > 1 and _is_disjoint(g, memory)]


def _form(node: Apply, spec: Any, memory: Any) -> Form | None:
    program_of = getattr(spec.choices[node].kernel, "program", None)
    if program_of is None or any(v in memory.stored for v in node.outputs):
        return None
    views = [memory.views[v] for v in (*node.inputs, *node.outputs)]
    program = program_of(spec.call(node))
    if program is None or any(v.buffer.kind == "made" for v in views):
        return None
    return form_of(program, views[: len(node.inputs)], views[len(node.inputs) :])


def _is_of_leaf(v: Variable, memory: Any) -> bool:
    """Whether no kernel of the plan computes it: it is an input, or a view of one."""
    while v.owner is not None and v.owner in memory.aliases:
        v = v.owner.inputs[0]
    return v.owner is None


def _is_disjoint(group: Sequence[Apply], memory: Any) -> bool:
    """Whether no two nodes of the group write the same memory."""
    spans = sorted(
        (b.offset, b.offset + b.nbytes) if b.kind == "arena" else (-1, -1)
        for b in (memory.views[v].buffer for n in group for v in n.outputs)
    )
    return spans[0][0] >= 0 and all(a[1] <= b[0] for a, b in pairwise(spans))
