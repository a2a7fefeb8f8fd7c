"""The beginning of a step: small kernels that read nothing but parameters, many in one launch.

Training in 16 bits rounds each parameter once. One by one, the launches of a hundred such kernels
take longer than their work; the schedule puts them first, and equal ones run together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from symdnn.gpu.codegen.batch import Form, batched, form_of
from symdnn.gpu.execution.batched_updates import enqueue
from symdnn.graph.variable import Apply, Variable

if TYPE_CHECKING:
    from symdnn.gpu.execution.plan import CudaPlan

__all__ = ["beginning", "leading", "together"]


def beginning(plan: CudaPlan, nodes: Sequence[Apply]) -> Iterator[tuple[Apply, Any]]:
    """Nodes with what runs them; for groups among the first of them, the last one runs all."""
    groups = leading(plan.spec, plan.memory, nodes)
    at = {n: i for i, n in enumerate(nodes)}
    last = {max(g, key=at.__getitem__): (form, g) for form, g in groups}
    grouped = {n for _, g in groups for n in g}
    for n in nodes:
        if n in last:
            yield n, together(plan, *last[n], guarded=False)
        elif n not in grouped:
            yield n, plan.steps[n]


def together(plan: CudaPlan, form: Form, group: Sequence[Apply], guarded: bool = True) -> Any:
    """One launch for all nodes of a group; ``guarded``: not once the error word is set."""
    env = plan.rt.env()
    plan.envs.append(env)

    def run(node: Apply, values: dict[Variable, Any]) -> None:
        items = [
            [
                *(plan.operand(n, i, v, values) for i, v in enumerate(n.inputs)),
                *(values[v] for v in n.outputs),
            ]
            for n in group
        ]
        enqueue(env, batched(form, items, guarded))

    return run


def leading(spec: Any, memory: Any, nodes: Sequence[Apply]) -> list[tuple[Form, list[Apply]]]:
    """Groups among the first of ``nodes`` that may be launched together, behind the others."""
    groups: dict[Form, list[Apply]] = {}
    for node in nodes:
        if node in memory.aliases:
            continue
        if not all(_is_of_leaf(v, memory) for v in node.inputs):
            break
        form = _form(node, spec, memory)
        if form is not None:  # else it reads with gaps, and runs by itself
            groups.setdefault(form, []).append(node)
    return [(form, g) for form, g in groups.items() if len(g) > 1 and _lie_apart(g, memory)]


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
    """Whether nothing in the plan makes it: an entry, or a view of one."""
    while v.owner is not None and v.owner in memory.aliases:
        v = v.owner.inputs[0]
    return v.owner is None


def _lie_apart(group: Sequence[Apply], memory: Any) -> bool:
    """Whether no two of the group write the same memory."""
    spans = sorted(
        (b.offset, b.offset + b.nbytes) if b.kind == "arena" else (-1, -1)
        for b in (memory.views[v].buffer for n in group for v in n.outputs)
    )
    return spans[0][0] >= 0 and all(a[1] <= b[0] for a, b in pairwise(spans))
