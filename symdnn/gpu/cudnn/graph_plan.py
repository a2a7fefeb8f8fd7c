"""The plans of one of cuDNN's graphs: listed in the order of its heuristics, and built one by one.

A plan is an engine with the values of its knobs. That is what is kept (:class:`GraphPlan`); an
index into a list of heuristics means something else with the next version of cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.errors import CudnnError
from symdnn.gpu.binding import frontend

__all__ = ["BuiltPlan", "GraphPlan", "Limits", "Planning", "replay"]

#: Heuristics in the order in which they are asked.
MODES = ("A", "B", "FALLBACK")


@dataclass(frozen=True)
class GraphPlan:
    """A plan as a record that can be stored, and made into the same kernels again by another
    process with the same GPU and cuDNN.

    ``knobs`` are pairs of cuDNN's name and value, sorted. ``notes`` are cuDNN's behaviour notes,
    and ``NONDETERMINISTIC``. ``name`` is cuDNN's own, of engine and knobs.
    """

    engine: int
    knobs: tuple[tuple[str, int], ...]
    name: str
    workspace_bytes: int
    deterministic: bool
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        fixed = "deterministic" if self.deterministic else "not deterministic"
        return f"{self.name} (workspace {self.workspace_bytes} bytes, {fixed})"


@dataclass(frozen=True)
class Limits:
    """Which plans are wanted: without these numerical notes, and with no more workspace."""

    unwanted: tuple[str, ...] = ()
    workspace_bytes: int = 0  # 0 is no limit
    deterministic: bool = False


@dataclass(frozen=True)
class BuiltPlan:
    """A plan ready to run, by its place in a graph of the frontend."""

    record: GraphPlan
    graph: Any
    index: int


class Planning:
    """Finds plans of a graph, asking cuDNN for no more than a caller wants to see.

    ``new_graph`` makes the graph anew, its operations described. Two of them are planned alike:
    one without the engines that are not deterministic, since the frontend filters by the numerical
    notes of an engine but does not tell them.
    """

    def __init__(self, new_graph: Callable[[], Any], limits: Limits) -> None:
        self.refused: list[str] = []
        self.found: list[BuiltPlan] = []
        self._graphs = [_Listed(new_graph(), limits, ("NONDETERMINISTIC",))]
        if not limits.deterministic:
            self._graphs.append(_Listed(new_graph(), limits, ()))
        self._known: set[tuple[Any, ...]] = set()
        self._plans = self._search()

    def first(self, most: int) -> list[BuiltPlan]:
        """Up to ``most`` plans that cuDNN can build, in its order of preference."""
        while len(self.found) < most:
            plan = next(self._plans, None)
            if plan is None:
                break
            self.found.append(plan)
        return self.found[:most]

    def find(self, record: GraphPlan) -> BuiltPlan | None:
        """The plan that was built for this record, if one was."""
        return next((p for p in self.found if p.record == record), None)

    def why_none(self) -> str:
        """Why no plan was found."""
        reasons = "; ".join(dict.fromkeys(self.refused))
        if not self._known:
            return f"cuDNN's heuristics give no engine: {reasons[:500]}"
        return f"all {len(self._known)} plans of cuDNN's heuristics are refused: {reasons[:500]}"

    def _search(self) -> Iterator[BuiltPlan]:
        for mode in MODES:
            given = [listed.ask(mode, self.refused) for listed in self._graphs]
            for index in given[-1]:
                yield from self._build(index)

    def _build(self, index: int) -> Iterator[BuiltPlan]:
        """The plan at an index, from the graph of deterministic engines where it is one."""
        key = self._graphs[-1].key(index)
        if key in self._known:
            return
        self._known.add(key)
        failure = ""
        for listed in self._graphs:
            if not listed.has(index, key):
                continue
            failure = listed.build(index)
            if not failure:
                deterministic = listed is self._graphs[0]
                yield BuiltPlan(listed.record(index, deterministic), listed.graph, index)
                return
        self.refused.append(failure)


class _Listed:
    """A graph of the frontend and the plans that its heuristics gave so far."""

    def __init__(self, graph: Any, limits: Limits, also_unwanted: Sequence[str]) -> None:
        self.graph = graph
        self._limits = limits
        self._unwanted = (*limits.unwanted, *also_unwanted)

    def ask(self, mode: str, refused: list[str]) -> range:
        """Indices of what the heuristics of one more mode give, filtered."""
        module = frontend.compiled()
        before = self._count()
        try:
            self.graph.create_execution_plans([getattr(module.heur_mode, mode)])
        except errors() as error:
            refused.append(f"heuristics {mode}: {one_line(error)}")
            return range(before, before)
        self._filter(module)
        return range(before, self._count())

    def _count(self) -> int:
        return int(self.graph.get_execution_plan_count())

    def _filter(self, module: Any) -> None:
        if self._limits.workspace_bytes:
            self.graph.deselect_workspace_greater_than(self._limits.workspace_bytes)
        notes = [getattr(module.numerical_note, n) for n in self._unwanted]
        if notes:
            self.graph.deselect_numeric_notes(notes)

    def key(self, index: int) -> tuple[Any, ...]:
        """Engine and knobs."""
        engine, knobs = self.graph.get_engine_and_knobs_at_index(index)
        return int(engine), sorted_knobs(knobs), self.graph.get_plan_name_at_index(index)

    def has(self, index: int, key: tuple[Any, ...]) -> bool:
        """Whether this graph has the same plan in the same place."""
        return index < self._count() and self.key(index) == key

    def build(self, index: int) -> str:
        """Build a plan; why cuDNN, or a filter, refuses it."""
        try:
            self.graph.build_plan_at_index(index)
        except errors() as error:
            return one_line(error)
        return ""

    def record(self, index: int, deterministic: bool) -> GraphPlan:
        """What is kept of a plan that was built."""
        engine, knobs, name = self.key(index)
        # The size of this plan. Without an index the frontend tells that of the last one built.
        nbytes = int(self.graph.get_workspace_size_plan_at_index(index))
        notes = [n.name for n in self.graph.get_behavior_notes_for_plan_at_index(index)]
        notes = [n for n in notes if n != "NOT_SET"] + ["NONDETERMINISTIC"] * (not deterministic)
        return GraphPlan(engine, knobs, name, nbytes, deterministic, tuple(notes))


def replay(new_graph: Callable[[], Any], record: GraphPlan) -> BuiltPlan:
    """The plan of a record, built again; :class:`CudnnError` where this cuDNN has it no more.

    The engine is asked for directly; where it, or a knob, is not the same any more, the plan of
    the same name among those of the heuristics is taken.
    """
    refused: list[str] = []
    for way in (_by_engine, _by_name):
        try:
            built = way(new_graph(), record, refused)
        except errors() as error:
            refused.append(one_line(error))
            continue
        if built is not None:
            return built
    raise CudnnError(
        f"plan {record.name} of cuDNN's graph API can't be built again: {'; '.join(refused)}. "
        "Choose anew: it was chosen with another version of cuDNN, or for another GPU"
    )


def _by_engine(graph: Any, record: GraphPlan, refused: list[str]) -> BuiltPlan | None:
    types = frontend.compiled().knob_type
    if any(not hasattr(types, name) for name, _ in record.knobs):
        refused.append("it has knobs that the frontend does not know")
        return None
    graph.create_execution_plan(record.engine, {getattr(types, n): v for n, v in record.knobs})
    index = int(graph.get_execution_plan_count()) - 1
    name = graph.get_plan_name_at_index(index)
    if name != record.name:
        refused.append(f"engine {record.engine} is now {name}")
        return None
    graph.build_plan_at_index(index)
    return _checked(graph, index, record)


def _by_name(graph: Any, record: GraphPlan, refused: list[str]) -> BuiltPlan | None:
    listed = _Listed(graph, Limits(), ())
    for mode in MODES:
        for index in listed.ask(mode, refused):
            if graph.get_plan_name_at_index(index) == record.name:
                graph.build_plan_at_index(index)
                return _checked(graph, index, record)
    refused.append("no plan of its name among the heuristics'")
    return None


def _checked(graph: Any, index: int, record: GraphPlan) -> BuiltPlan:
    """The workspace was sized for the record: a plan that wants more would write beyond it."""
    nbytes = int(graph.get_workspace_size_plan_at_index(index))
    if nbytes > record.workspace_bytes:
        raise CudnnError(f"it wants {nbytes} bytes of workspace now, not {record.workspace_bytes}")
    return BuiltPlan(record, graph, index)


def sorted_knobs(knobs: Any) -> tuple[tuple[str, int], ...]:
    """Knobs by name; two that the frontend has no name for stay apart by their values."""
    return tuple(sorted((knob.name, int(value)) for knob, value in knobs.items()))


def errors() -> tuple[type[Exception], ...]:
    """What the frontend raises where cuDNN, or a rule of its own, refuses something."""
    return frontend.compiled().cudnnGraphNotSupportedError, RuntimeError, ValueError


def one_line(error: Exception) -> str:
    """The first line of an error's text, its brackets of origin left out."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].removeprefix("[cudnn_frontend] Error: ")[:200]
