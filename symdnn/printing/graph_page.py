"""A graph as an HTML page: groups that fold, zoom, search, and all about each node."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from symdnn.compile.function import Function
from symdnn.compile.plan.plan import Plan
from symdnn.compile.program.program import Program
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.variable import Apply
from symdnn.printing.facts import facts_of
from symdnn.printing.network import Box, Drawing, Group, drawing_of

#: Graphs of more boxes get groups for nodes outside of modules: one for each line of the program.
_MAX_LOOSE_BOXES = 60
_FACTS = {
    "origin": "made at", "module": "module", "name": "name", "remarks": "run by", "hints": "hints",
    "step": "step",
}  # fmt: skip


def graph_page(obj: object, path: str | os.PathLike[str] | None = None) -> str:
    """An interactive HTML page of an expression, a compiled function, or any stage of one.

    Nodes are in collapsible groups: modules by their paths in the network (nodes of gradients in
    groups of their own), loops, branches. Each node shows op, type, kernel, and with
    ``function(..., profile=True)`` its time. A click shows the user's line, hints, inputs and
    readers. The page is one self-contained file. It is returned, and written to ``path`` if there
    is one. (Theano's ``d3viz``.)

    Raises TypeError for an object that is no graph, and ``OSError``.

    >>> import symdnn.tensor as T
    >>> page = graph_page(T.exp(T.vector("x")))
    >>> page.startswith("<!doctype html>")
    True
    """
    text = json.dumps(page_data(obj), separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files(__package__) / "src" / "graph_page.html"
    page = template.read_text(encoding="utf-8").replace("__DATA__", text)
    if path is not None:
        Path(path).write_text(page, encoding="utf-8")
    return page


def framed_page(obj: object, height_px: int = 480) -> str:
    """:func:`graph_page` as an element of another page, such as a notebook."""
    style = f"width: 100%; height: {height_px}px; border: 1px solid #8886; border-radius: 6px"
    from html import escape

    page = escape(graph_page(obj))
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def page_data(obj: object) -> dict[str, Any]:
    """The nodes with their groups, and the edges, as JSON values. Constants are facts of nodes."""
    drawing = drawing_of(obj, sizes=False, inside=True)
    regions = dict(_regions(drawing.root, ()))
    boxes = [b for b in drawing.boxes.values() if b.kind != "constant"]
    constants: dict[str, list[str]] = {}
    edges = []
    for (a, b), facts in drawing.arrows.items():
        if drawing.boxes[a].kind == "constant":
            constants.setdefault(b, []).append(drawing.boxes[a].label)
        else:
            edges.append((a, b, facts["type"]))
    paths = _paths(drawing, boxes, regions, len(boxes) > _MAX_LOOSE_BOXES)
    times, algorithms = _times(obj), _algorithms(obj)
    nodes = [
        _node(box, paths[box.key], constants.get(box.key, ()))
        | {"us": times.get(box.node), "algorithm": algorithms.get(box.node, "")}
        for box in boxes
    ]
    if isinstance(obj, Function):
        _add_devices(obj, boxes, nodes)
    return {"title": _title(obj), "about": _about(obj, nodes), "nodes": nodes, "edges": edges}


def _node(box: Box, path: Sequence[str], constants: Iterable[str]) -> dict[str, Any]:
    label, *rest = box.label.split("\n")
    facts = {title: str(box.attributes.get(key, "")) for key, title in _FACTS.items()}
    facts["constants"] = "\n".join(constants)
    return {
        "id": box.key, "kind": box.kind, "label": label, "path": list(path),
        "type": str(box.attributes.get("type", "")), "kernel": " ".join(rest) if box.kind == "op"
        else "", "origin": facts["made at"],
        "facts": {k: v for k, v in facts.items() if v},
    }  # fmt: skip


def _title(obj: object) -> str:
    if isinstance(obj, Function):
        return str(obj.name)
    return {Program: "program", FunctionGraph: "graph"}.get(type(obj), "expression")


def _about(obj: object, nodes: Sequence[Any]) -> str:
    count = sum(n["kind"] == "op" for n in nodes)
    where = f" on {obj.stages.target}" if isinstance(obj, Function) else ""
    return f"{count} node{'' if count == 1 else 's'}{where}"


def _algorithms(obj: object) -> dict[Apply | None, str]:
    """The choice of a library for each node of a plan of ``obj``."""
    plans = obj.plans() if isinstance(obj, Function) else [obj] if isinstance(obj, Plan) else []
    found: dict[Apply | None, dict[str, None]] = {}
    for plan in plans:
        for node, choice in plan.specialised.choices.items():
            use = choice.kernel.library_use(plan.specialised.call(node))
            if use is not None:
                found.setdefault(node, {})[use.used] = None
    return {node: " | ".join(used) for node, used in found.items()}


def _add_devices(f: Function, boxes: Iterable[Box], nodes: Iterable[dict[str, Any]]) -> None:
    """The device of each op: the host runs sizes and ops without a kernel."""
    facts, target = facts_of(f), f.stages.target
    for box, node in zip(boxes, nodes):
        if box.node is not None:
            on_host = box.node in facts.host or box.node in facts.sizes
            node["facts"]["device"] = "cpu" if on_host else str(target)


def _times(obj: object) -> dict[Apply | None, float]:
    """Microseconds a call of each node that a profile knows."""
    profile = obj.profile if isinstance(obj, Function) else None
    if not profile or not profile.calls:
        return {}
    return {node: n.seconds / profile.calls * 1e6 for node, n in profile.nodes.items()}


# -- groups ----------------------------------------------------------------------------------------


def _regions(group: Group, path: tuple[str, ...]) -> Iterable[tuple[str, tuple[str, ...]]]:
    for key in group.boxes:
        yield key, path
    for number, inner in enumerate(group.groups):
        title = (inner.title,) if inner.title else ()
        same = sum(g.title == inner.title for g in group.groups[:number])
        if title and same:
            title = (f"{inner.title} ({same + 1})",)
        yield from _regions(inner, path + title)


def _paths(
    drawing: Drawing,
    boxes: Sequence[Box],
    regions: dict[str, tuple[str, ...]],
    by_line: bool,
) -> dict[str, tuple[str, ...]]:
    """The group of each box: its region, then its module.

    Leaves are beside their first readers, new values of shared variables beside the nodes that make
    them.

    A module that reads and is read by the same outside nodes is shown in several parts, so that
    arrows between groups have no cycles: the gradients come after the loss.
    """
    parts = _Parts()
    found: dict[str, tuple[str, ...]] = {}
    sources: dict[str, list[str]] = {}
    readers: dict[str, list[str]] = {}
    for a, b in drawing.arrows:
        sources.setdefault(b, []).append(a)
        readers.setdefault(a, []).append(b)
    for box in boxes:
        if box.kind != "op":
            continue
        module = _module_path(box, by_line)
        whole = regions[box.key] + module
        before = [found[k] for k in sources.get(box.key, ()) if k in found]
        found[box.key] = parts.place(whole, before)
    for box in boxes:
        if box.kind != "op":
            beside = readers if box.kind in ("shared", "input") else sources
            own = [found[k] for k in beside.get(box.key, ()) if k in found]
            update = box.kind == "output" and box.label.startswith("new ")
            small = own and (update or box.kind in ("shared", "input"))
            found[box.key] = own[0] if small else regions[box.key]
    return found


def _module_path(box: Box, by_line: bool) -> tuple[str, ...]:
    module = str(box.attributes.get("module", ""))
    if module:
        return tuple(module.split("."))
    origin = str(box.attributes.get("origin", ""))
    return (os.path.basename(origin),) if by_line and ":" in origin else ()


class _Parts:
    """Divides groups into parts so that arrows between groups, at each depth, have no circle."""

    def __init__(self) -> None:
        #: For each part of a group those that it reads, at any distance.
        self._reads: dict[tuple[str, ...], set[tuple[str, ...]]] = {}

    def place(self, path: tuple[str, ...], before: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """The path for a node that reads nodes of the paths ``before``."""
        found: tuple[str, ...] = ()
        for name in path:
            number = 1
            while self._closes_a_circle(new := (*found, _numbered(name, number)), before):
                number += 1
            found = new
        for depth in range(1, len(found) + 1):
            self._note(found[:depth], before)
        return found

    def _closes_a_circle(self, part: tuple[str, ...], before: Sequence[tuple[str, ...]]) -> bool:
        """Whether a group beside ``part`` that is read here reads ``part``."""
        return any(part in self._reads.get(other, ()) for other in self._beside(part, before))

    @staticmethod
    def _beside(part: tuple[str, ...], before: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
        depth = len(part)
        others = {p[:depth] for p in before if len(p) >= depth and p[: depth - 1] == part[:-1]}
        return others - {part}

    def _note(self, part: tuple[str, ...], before: Sequence[tuple[str, ...]]) -> None:
        new = set(self._beside(part, before))
        for other in tuple(new):
            new |= self._reads.get(other, set())
        known = self._reads.setdefault(part, set())
        if new <= known:
            return
        known |= new
        for other, reads in self._reads.items():  # readers of this part read the rest as well
            if part in reads and other is not part:
                reads |= known


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name} · after" if number == 2 else f"{name} · {number}"
