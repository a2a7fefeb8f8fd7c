"""A frontend of cuDNN without a cuDNN: its heuristics are a list that a test writes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import SimpleNamespace
from weakref import WeakValueDictionary

import pytest

from symdnn.gpu.binding import frontend
from symdnn.gpu.cudnn import graph

Mode = enum.Enum("Mode", ["A", "B", "FALLBACK"])
Knob = enum.Enum("Knob", ["TILE_SIZE", "STAGES"])
Note = enum.Enum(
    "Note",
    ["TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC"],
)
Behavior = enum.Enum("Behavior", ["NOT_SET", "RUNTIME_COMPILATION"])


class NotSupported(Exception):
    """As the frontend has it: no RuntimeError."""


@dataclass(frozen=True)
class Engine:
    """What the heuristics of one mode give: an engine with knobs, and its properties."""

    number: int
    mode: Mode = Mode.A
    knobs: tuple[tuple[Knob, int], ...] = ((Knob.TILE_SIZE, 2),)
    workspace: int = 0
    notes: tuple[Note, ...] = ()
    works: bool = True
    tag: str = ""

    @property
    def name(self) -> str:
        return self.tag or f"eng{self.number}_" + "_".join(f"{k.name}={v}" for k, v in self.knobs)


class Graph:
    """A graph of the frontend that knows nothing of convolutions."""

    engines: tuple[Engine, ...] = ()
    made: list[Graph] = []

    def __init__(self) -> None:
        self.listed: list[Engine] = []
        self.barred: set[int] = set()
        self.built: list[int] = []
        self.asked: list[Mode] = []
        self.ran: list[tuple] = []
        Graph.made.append(self)

    def create_execution_plans(self, modes):
        self.asked += modes
        given = [e for e in self.engines if e.mode in modes]
        if not given:
            raise NotSupported("No valid engine configs")
        self.listed += given

    def create_execution_plan(self, number, knobs):
        known = [e for e in self.engines if e.number == number and dict(e.knobs) == knobs]
        if not known:
            raise RuntimeError(f"no engine {number}")
        self.listed.append(known[-1])

    def get_execution_plan_count(self):
        return len(self.listed)

    def get_plan_name_at_index(self, index):
        return self.listed[index].name

    def get_engine_and_knobs_at_index(self, index):
        return self.listed[index].number, dict(self.listed[index].knobs)

    def get_workspace_size_plan_at_index(self, index):
        return self.listed[index].workspace if index in self.built else 0

    def get_behavior_notes_for_plan_at_index(self, index):
        return [Behavior.NOT_SET, Behavior.RUNTIME_COMPILATION]

    def deselect_numeric_notes(self, notes):
        self.barred |= {i for i, e in enumerate(self.listed) if set(e.notes) & set(notes)}

    def build_plan_at_index(self, index):
        if index in self.barred or not self.listed[index].works:
            raise RuntimeError(f"[cudnn_frontend] Error: {self.listed[index].name} refused\nmore")
        self.built.append(index)

    def _execute_plan_at_index(self, pack, workspace, index, handle):
        self.ran.append((pack, workspace, self.listed[index].name, handle))


@pytest.fixture
def fake_frontend(monkeypatch):
    """``Graph``, as the graph of any form; its ``engines`` are the test's to set."""
    module = SimpleNamespace(
        cudnnGraphNotSupportedError=NotSupported, heur_mode=Mode, knob_type=Knob,
        numerical_note=Note,
    )  # fmt: skip
    monkeypatch.setattr(frontend, "unavailable", lambda: "")
    monkeypatch.setattr(frontend, "compiled", lambda: module)
    monkeypatch.setattr(graph, "new_graph", lambda *args: Graph())
    monkeypatch.setattr(graph, "_recent", {})
    monkeypatch.setattr(graph, "_launches", WeakValueDictionary())
    monkeypatch.setattr(Graph, "engines", ())
    monkeypatch.setattr(Graph, "made", [])
    return Graph
