"""Programs and plans as lists of steps."""

from __future__ import annotations

from collections.abc import Iterator

from symdnn.compile.plan.plan import Plan
from symdnn.compile.program.program import If, Loop, Program, Segment
from symdnn.graph.place import HOST
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.printing.facts import facts_of_plan
from symdnn.printing.names import ValueNames


def program_text(program: Program) -> str:
    """A program: its regions in order.

    ``host`` steps run on the host at each call, ``size`` steps once per plan; ``enter`` and
    ``leave`` are the values that cross the region's border; ``key`` has the parts of a plan's
    signature besides the shapes of inputs.
    """
    return "\n".join(_program(program, ValueNames(), "")) + "\n"


def _program(program: Program, names: ValueNames, pad: str) -> Iterator[str]:
    yield f"{pad}program({_list(program.inputs, names)})"
    for i, region in enumerate(program.regions):
        if isinstance(region, Segment):
            yield f"{pad}  {segment_title(region, i)}"
            yield from _segment(region, names, pad + "    ")
        elif isinstance(region, Loop):
            yield from _loop(region, names, pad + "  ")
        else:
            yield from _if(region, names, pad + "  ")
    yield f"{pad}  return {_list(program.outputs, names)}"


def segment_title(segment: Segment, number: int) -> str:
    """``segment 2``, with its device unless it is the CPU, and a note on cached results."""
    where = "" if segment.place == HOST else f" on {segment.place}"
    return f"segment {number}{where}{', kept' if segment.kept else ''}"


def _segment(segment: Segment, names: ValueNames, pad: str) -> Iterator[str]:
    for node in segment.host:
        yield f"{pad}host  {_step(node, names)}"
    for node in segment.sizes:
        yield f"{pad}size  {_step(node, names)}"
    if segment.inputs:
        yield f"{pad}enter {_list(segment.inputs, names)}"
    if key := (*segment.sources, *segment.dims):
        yield f"{pad}key   {_list(key, names)}"
    for node in segment.nodes:
        yield f"{pad}{_step(node, names)}"
    if segment.outputs:
        yield f"{pad}leave {_list(segment.outputs, names)}"


def _if(region: If, names: ValueNames, pad: str) -> Iterator[str]:
    yield f"{pad}{_list(region.results, names)} = if {names.of(region.condition)}"
    yield f"{pad}  then"
    yield from _program(region.then, names, pad + "    ")
    yield f"{pad}  else"
    yield from _program(region.orelse, names, pad + "    ")


def _loop(region: Loop, names: ValueNames, pad: str) -> Iterator[str]:
    for node in region.views:
        yield f"{pad}view {_step(node, names)}"
    yield f"{pad}loop {_step(region.node, names)}"
    yield from _program(region.body, names, pad + "  ")


def _step(node: Apply, names: ValueNames) -> str:
    results = ", ".join(f"{names.of(v)}: {v.type}" for v in node.outputs)
    hints = f" hints({node.hints})" if node.hints else ""
    return f"{results} = {node.op}({_list(node.inputs, names)}){hints}"


def _list(variables: tuple[Variable, ...], names: ValueNames) -> str:
    return ", ".join(names.of(v) for v in variables)


def plan_text(plan: Plan) -> str:
    """A plan: its steps with shapes, kernels and memory, and why other kernels were refused."""
    names = ValueNames()
    lines = [f"plan for {plan.signature}"]
    for v in plan.specialised.segment.inputs:
        lines.append(f"  enter {names.of(v)}: {plan.specialised.type_of(v)}")
    for v, value in plan.specialised.sizes.items():
        lines.append(f"  size  {names.of(v)} = {int(value)}")
    facts = facts_of_plan(plan)
    for i, (node, choice) in enumerate(plan.specialised.choices.items()):
        lines.append(f"  {i}  {_planned_step(plan, node, names)}")
        lines.append(f"       {', '.join([*facts.words(node), *_places(plan, node)])}")
        lines += [f"       not {name}: {why}" for name, why in choice.refused]
    lines.append(f"  leave {_list(plan.specialised.segment.outputs, names)}")
    memory = plan.memory
    lines.append(f"  arena {memory.arena_bytes} bytes, largest live set {memory.live_bytes}")
    return "\n".join(lines) + "\n"


def _planned_step(plan: Plan, node: Apply, names: ValueNames) -> str:
    results = ", ".join(f"{names.of(v)}: {plan.specialised.type_of(v)}" for v in node.outputs)
    return f"{results} = {node.op}({_list(node.inputs, names)})"


def _places(plan: Plan, node: Apply) -> list[str]:
    """The memory of a node's outputs and of its workspace."""
    said = []
    for v in node.outputs:
        if isinstance(v, Constant) or v not in plan.memory.views:
            continue
        buffer = plan.memory.views[v].buffer
        at = f" at {buffer.offset}" if buffer.kind in ("arena", "registered") else ""
        said.append(f"{buffer.kind}{at}, {buffer.nbytes} bytes")
    if node in plan.memory.workspaces:
        scratch = plan.memory.workspaces[node]
        said.append(f"workspace at {scratch.offset}, {scratch.nbytes} bytes")
    return said
