"""The plans of a cuDNN graph: listed in the order of its heuristics, and built one by one.

A plan is an engine with the values of its knobs. Records (:class:`GraphPlan`) have these, because
an index into the heuristics' list means something else with the next version of cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.errors import CudnnError
from symdnn.gpu.binding import frontend
from symdnn.gpu.cudnn.version import with_version

#: The modes of the heuristics in the order of queries.
MODES = ("A", "B", "FALLBACK")


@dataclass(frozen=True)
class GraphPlan:
    """A plan as a record for disk. Another process with the same GPU and cuDNN can rebuild it.

    ``knobs`` are sorted pairs of cuDNN's name and value. ``notes`` are cuDNN's behaviour notes,
    and ``NONDETERMINISTIC``. ``name`` is cuDNN's name for engine and knobs.
    """

    engine: int
    knobs: tuple[tuple[str, int], ...]
    name: str
    workspace_bytes: int
    deterministic: bool
    notes: tuple[str, ...] = ()

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> GraphPlan:
        """The plan of its fields in JSON's types."""
        knobs = tuple((str(k), int(v)) for k, v in record["knobs"])
        return cls(**{**record, "knobs": knobs, "notes": tuple(map(str, record["notes"]))})

    def __str__(self) -> str:
        fixed = "deterministic" if self.deterministic else "not deterministic"
        return f"{self.name} (workspace {self.workspace_bytes} bytes, {fixed})"


@dataclass(frozen=True)
class Limits:
    """Limits for plans: numerical notes to exclude, determinism."""

    unwanted: tuple[str, ...] = ()
    deterministic: bool = False


@dataclass(frozen=True)
class BuiltPlan:
    """A plan that is ready to run: its index in a graph of the frontend."""

    record: GraphPlan
    graph: Any
    index: int


class Planning:
    """Finds plans of a graph lazily: it builds no more than a caller asks for.

    ``new_graph`` makes a graph with its operations. Two graphs are planned in the same way, one of
    them without nondeterministic engines: the frontend can filter engines by their numerical notes
    but cannot list the notes.
    """

    def __init__(self, new_graph: Callable[[], Any], limits: Limits) -> None:
        self.refused: list[str] = []
        self.found: list[BuiltPlan] = []
        self._graphs = [_ListedPlans(new_graph(), limits, ("NONDETERMINISTIC",))]
        if not limits.deterministic:
            self._graphs.append(_ListedPlans(new_graph(), limits, ()))
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
        """The plan that was built for this record, or None."""
        return next((p for p in self.found if p.record == record), None)

    def why_none(self) -> str:
        """Why no plan was found."""
        reasons = "; ".join(dict.fromkeys(self.refused))
        if not self._known:
            return f"cuDNN's heuristics give no engine: {reasons[:500]}"
        return f"all {len(self._known)} plans of cuDNN's heuristics are refused: {reasons[:500]}"

    def _search(self) -> Iterator[BuiltPlan]:
        for mode in MODES:
            given = [listed.list_more(mode, self.refused) for listed in self._graphs]
            for index in given[-1]:
                yield from self._build(index)

    def _build(self, index: int) -> Iterator[BuiltPlan]:
        """The plan at an index, from the graph of deterministic engines if that has it."""
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


class _ListedPlans:
    """A graph of the frontend with the plans that its heuristics have listed so far."""

    def __init__(self, graph: Any, limits: Limits, also_unwanted: Sequence[str]) -> None:
        self.graph = graph
        self._unwanted = (*limits.unwanted, *also_unwanted)

    def list_more(self, mode: str, refused: list[str]) -> range:
        """Indices of the filtered plans of one more mode of the heuristics."""
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
        notes = [getattr(module.numerical_note, n) for n in self._unwanted]
        if notes:
            self.graph.deselect_numeric_notes(notes)

    def key(self, index: int) -> tuple[Any, ...]:
        """Engine, knobs and name."""
        engine, knobs = self.graph.get_engine_and_knobs_at_index(index)
        return int(engine), sorted_knobs(knobs), self.graph.get_plan_name_at_index(index)

    def has(self, index: int, key: tuple[Any, ...]) -> bool:
        """Whether this graph has the same plan at the same index."""
        return index < self._count() and self.key(index) == key

    def build(self, index: int) -> str:
        """Build a plan. Returns why cuDNN, or a filter, refuses it; ``""`` if it is built."""
        try:
            self.graph.build_plan_at_index(index)
        except errors() as error:
            return one_line(error)
        return ""

    def record(self, index: int, deterministic: bool) -> GraphPlan:
        """The record of a plan that was built."""
        engine, knobs, name = self.key(index)
        # With the index: without one the frontend returns the size of the last plan that was built.
        nbytes = int(self.graph.get_workspace_size_plan_at_index(index))
        notes = [n.name for n in self.graph.get_behavior_notes_for_plan_at_index(index)]
        notes = [n for n in notes if n != "NOT_SET"] + ["NONDETERMINISTIC"] * (not deterministic)
        return GraphPlan(engine, knobs, name, nbytes, deterministic, tuple(notes))


def rebuild(new_graph: Callable[[], Any], record: GraphPlan) -> BuiltPlan:
    """The plan of a record, built again. Raises :class:`CudnnError` if this cuDNN lacks it.

    The engine is requested directly. If it or a knob has changed, the heuristics' plan of the same
    name is used.
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
    gone = CudnnError(
        f"plan {record.name} of cuDNN's graph API can't be built again: {'; '.join(refused)}. "
        "Choose anew: it was chosen with another version of cuDNN, or for another GPU"
    )
    raise with_version(gone)


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
    listed = _ListedPlans(graph, Limits(), ())
    for mode in MODES:
        for index in listed.list_more(mode, refused):
            if graph.get_plan_name_at_index(index) == record.name:
                graph.build_plan_at_index(index)
                return _checked(graph, index, record)
    refused.append("no plan of its name among the heuristics'")
    return None


def _checked(graph: Any, index: int, record: GraphPlan) -> BuiltPlan:
    """The built plan. Raises if it needs more workspace than the record's, which is allocated."""
    nbytes = int(graph.get_workspace_size_plan_at_index(index))
    if nbytes > record.workspace_bytes:
        raise CudnnError(f"it wants {nbytes} bytes of workspace now, not {record.workspace_bytes}")
    return BuiltPlan(record, graph, index)


def sorted_knobs(knobs: Any) -> tuple[tuple[str, int], ...]:
    """Knobs sorted by name; those without a name in the frontend differ by value."""
    return tuple(sorted((knob.name, int(value)) for knob, value in knobs.items()))


def errors() -> tuple[type[Exception], ...]:
    """The exceptions of the frontend when cuDNN, or one of its own rules, refuses something."""
    return frontend.compiled().cudnnGraphNotSupportedError, RuntimeError, ValueError


def one_line(error: Exception) -> str:
    """The first line of an error's text, without the frontend's prefix."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].removeprefix("[cudnn_frontend] Error: ")[:200]
