"""Reports of a compiled function: the kernel of each node, and the bytes of its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.compile.plan.loop_budget import LoopWithin
from symdnn.compile.plan.plan import Plan
from symdnn.compile.plan.recompute import Recomputed
from symdnn.compile.plan.result_block import made_bytes
from symdnn.compile.plan.stages import Stages
from symdnn.compile.program.capabilities import places_of
from symdnn.compile.program.program import Program, Segment
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.inner import InnerGraph
from symdnn.graph.variable import Apply, Constant, Shared
from symdnn.ops.control.scan import Scan
from symdnn.opt.layout.layout import layout_text
from symdnn.opt.precision.amp import precision_text


@dataclass(frozen=True)
class LoweringRow:
    """One node in one plan: ``how`` is a kernel's name, ``view``, ``host`` or ``not planned``.

    ``why`` is the reason why no library runs it or why it is on the host, or says that it is not
    computed in each call.
    """

    node: Apply
    plan: int | None
    how: str
    target: str
    refused: tuple[tuple[str, str], ...] = ()
    why: str = ""

    @property
    def op(self) -> str:
        """The op as printed."""
        return str(self.node.op)

    @property
    def line(self) -> str:
        """The user's line."""
        return str(self.node.origin)

    def __str__(self) -> str:
        return self.text(len(self.target), len(self.how))

    def text(self, target_width: int, how_width: int) -> str:
        """The row with columns of these widths, and a line for each reason."""
        plan = "-" if self.plan is None else str(self.plan)
        device, how = self.target.ljust(target_width), self.how.ljust(how_width)
        text = f"{plan:>4}  {device}  {how}  {self.op}  {self.line}"
        lines = [text, *(f"        not {name}: {why}" for name, why in self.refused)]
        return "\n".join([*lines, f"        {self.why}"] if self.why else lines)


@dataclass(frozen=True)
class LoweringReport:
    """A row for each node of each plan made so far; nodes without a plan are listed once.

    ``captures`` says for each plan on a GPU whether it is a CUDA graph, or why not. ``notes`` has
    the precision of GEMMs and convolutions, and the layouts. ``loops`` are those of the rewritten
    graph, also loops in loops, each with the user's line, and
    whether they have run as one function, or why not. ``written_out`` are the fused ops that
    stand in the graph as loops or simpler ops, because a derivative of theirs was taken.
    """

    rows: tuple[LoweringRow, ...]
    captures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    written_out: tuple[str, ...] = ()

    def kernels(self) -> dict[str, int]:
        """The number of nodes that each kernel runs."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.how] = counts.get(row.how, 0) + 1
        return counts

    def __str__(self) -> str:
        target = max(len("target"), *(len(r.target) for r in self.rows), 0)
        how = max(len("by"), *(len(r.how) for r in self.rows), 0)
        return "\n".join(
            [
                f"plan  {'target'.ljust(target)}  {'by'.ljust(how)}  op, user's line",
                *(r.text(target, how) for r in self.rows),
                *self.captures,
                *self.notes,
                *([f"loops left: {len(self.loops)}", *self.loops] if self.loops else []),
                *self.written_out,
            ]
        )


def lowering_report(
    stages: Stages, plans: Sequence[Plan], ran: Mapping[Apply, str] | None = None
) -> LoweringReport:
    """The report on the nodes of a function, plan by plan; ``ran`` says how its loops have run."""
    why = _reasons(stages)
    rows: list[LoweringRow] = []
    planned: set[Apply] = set()
    for number, plan in enumerate(plans):
        segment = plan.specialised.segment
        target = _device(stages, segment)
        for node in segment.nodes:
            planned.add(node)
            said = [*([_CACHE_NOTE] if segment.kept else []), *([why[node]] if node in why else [])]
            rows.append(_row(plan, number, node, target, "; ".join(said)))
    for node in _host_nodes(stages.program):
        if node not in planned:
            planned.add(node)
            rows.append(LoweringRow(node, None, "host", "host"))
    for segment in stages.program.segments():
        missing = [n for n in segment.nodes if n not in planned]
        target = _device(stages, segment)
        rows += [LoweringRow(n, None, "not planned", target, why=why.get(n, "")) for n in missing]
    captures = tuple(
        f"plan {i}: {state}" for i, p in enumerate(plans) if (state := _capture_state(p))
    )
    order = stages.fgraph.toposort()
    loops = tuple(_loops(order, ran or {}))
    notes = dict.fromkeys(_written_out(order))
    return LoweringReport(tuple(rows), captures, _notes(stages), loops, tuple(notes))


def _written_out(nodes: Iterable[Apply]) -> Iterator[str]:
    """The notes on origins of nodes, with the user's lines."""
    for node in nodes:
        parts = [origin for _, origin in node.origin.parts] or [node.origin]
        yield from (f"{o.note}  {o}" for o in parts if o.note)
        inner = getattr(node.op, "inner", None)
        if isinstance(inner, InnerGraph):
            yield from _written_out(inner.nodes)


def _loops(nodes: Iterable[Apply], ran: Mapping[Apply, str], depth: int = 0) -> Iterator[str]:
    """A line for each loop; loops inside of it follow, indented."""
    for node in nodes:
        inner = getattr(node.op, "inner", None)
        if isinstance(node.op, Scan):
            how = f"  ({ran[node]})" if ran.get(node) else ""
            yield f"  {'  ' * depth}{node.op}  {node.origin}{how}"
        if isinstance(inner, InnerGraph):
            yield from _loops(inner.nodes, ran, depth + 1)


#: The note on nodes of the parameter cache.
_CACHE_NOTE = "computed when a parameter has changed"


def _capture_state(plan: Plan) -> str:
    """Whether a plan on a GPU is a CUDA graph, or why not; empty for a CPU."""
    state = plan.bound.capture_state
    return f"{state} (runs when a parameter has changed)" if _is_kept(plan) and state else state


def _is_kept(plan: Plan) -> bool:
    segment: Segment = plan.specialised.segment
    return segment.kept


def _notes(stages: Stages) -> tuple[str, ...]:
    """Notes on precision and layout for a GPU, and on flags without effect."""
    vain = stages.rewrites.notes
    if stages.target.kind == "cpu":
        return vain
    fgraph = stages.fgraph
    return (*filter(None, (precision_text(fgraph), layout_text(fgraph))), *vain)


def _device(stages: Stages, segment: Segment) -> str:
    target = stages.target
    return str(target if segment.place == target.place else segment.place)


def _reasons(stages: Stages) -> dict[Apply, str]:
    """The reasons why nodes were not lowered to a library, and why nodes are on the host."""
    if stages.target.kind == "cpu":
        return {}
    from symdnn.libraries.table import not_lowered

    found = not_lowered(stages.fgraph, stages.target, stages.mode.selection.takes)
    why = {n: f"not by cuDNN: {reason}" for n, reason in found.items()}
    for n, reason in places_of(stages.fgraph, stages.target).without_kernel().items():
        why[n] = "; ".join([*([why[n]] if n in why else []), f"on the host: {reason}"])
    return why


def _row(plan: Plan, number: int, node: Apply, target: str, why: str) -> LoweringRow:
    choice = plan.specialised.choices[node]
    if node in plan.memory.aliases:
        return LoweringRow(node, number, "view", target)
    return LoweringRow(node, number, choice.kernel.name, target, choice.refused, why)


def _host_nodes(program: Program) -> Iterator[Apply]:
    for segment in program.segments():
        yield from segment.host
        yield from segment.sizes


@dataclass(frozen=True)
class MemoryReport:
    """The memory of a function, in bytes.

    All functions of a device share one arena; ``arena`` is what the largest plan needs.
    ``largest_live`` is the least that any placement would need. ``peak`` is the need of a call
    besides arguments, shared variables and constants: arena and results. ``kept`` is the size of
    the parameter cache (flag ``keep_prepared``). ``device`` is the use of a GPU by all functions,
    with the peak so far (:class:`symdnn.gpu.device.budget.MemoryUse`); None on a CPU and before the
    first call. ``recomputed`` says for each plan what it computes again for a ``memory_budget``
    (:class:`symdnn.compile.plan.recompute.Recomputed`), and ``loops`` which loops run in segments
    for it, at the sizes of the last call (:class:`symdnn.compile.plan.loop_budget.LoopWithin`).
    """

    plans: int
    arena: int
    largest_live: int
    made_per_call: int
    workspaces: int
    shared: int
    constants: int
    peak: int = 0
    device: Any = None
    kept: int = 0
    recomputed: tuple[Recomputed, ...] = ()
    loops: tuple[LoopWithin, ...] = ()

    def __str__(self) -> str:
        lines: list[str] = []
        if self.device is not None:
            lines = [
                f"on {self.device.place!s:<5} now               {self.device}",
                f"  most so far               {self.device.peak} bytes",
            ]
        of_plans = [
            f"plans                       {self.plans}",
            f"arena of the largest plan   {self.arena} bytes",
            f"  largest live set          {self.largest_live} bytes",
            f"  workspaces                {self.workspaces} bytes",
            f"results made at each call   {self.made_per_call} bytes",
            f"peak of a call              {self.peak} bytes",
        ]
        return "\n".join(
            [
                *(of_plans if self.plans else [f"{of_plans[0]}, made at first calls"]),
                f"shared variables            {self.shared} bytes",
                f"  kept of what they give    {self.kept} bytes",
                f"constants                   {self.constants} bytes",
                *lines,
                *map(str, self.recomputed),
                *map(str, self.loops),
            ]
        )


def memory_report(
    plans: Sequence[Plan], fgraph: FunctionGraph, shared: Iterable[Shared], device: object,
    peak: int = 0, loops: tuple[LoopWithin, ...] = (),
) -> MemoryReport:  # fmt: skip
    """The memory report of a function, over the plans made so far.

    ``shared`` are its shared variables, ``device`` is the memory used on its GPU, or None. ``peak``
    is that of the last call of a function with loops, ``loops`` what they do within a budget.
    """
    memories = [p.memory for p in plans]
    storages = {id(v.storage): v.storage for v in shared}
    constants = {v for n in fgraph.nodes for v in n.inputs if isinstance(v, Constant)}
    return MemoryReport(
        plans=len(plans),
        arena=max((m.arena_bytes for m in memories), default=0),
        largest_live=max((m.live_bytes for m in memories), default=0),
        made_per_call=max((_made(p) for p in plans if not _is_kept(p)), default=0),
        workspaces=max((sum(b.nbytes for b in m.workspaces.values()) for m in memories), default=0),
        shared=sum(_nbytes(s.shape, s.dtype) for s in storages.values()),
        constants=sum(v.data.nbytes for v in constants),
        peak=max((peak, *(p.memory.arena_bytes + (0 if _is_kept(p) else _made(p)) for p in plans))),
        device=device,
        kept=sum(_made(p) for p in plans if _is_kept(p)),
        recomputed=tuple(
            p.specialised.recomputed for p in plans if p.specialised.recomputed is not None
        ),
        loops=loops,
    )


def _made(plan: Plan) -> int:
    """Bytes of results, without new values that are written to shared variables directly."""
    return made_bytes(plan.specialised, plan.memory.views, plan.memory.block)


def _nbytes(shape: Any, dtype: Any) -> int:
    count = 1
    for n in shape:
        count *= n
    return int(count * dtype.itemsize)
