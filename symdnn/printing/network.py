"""Any stage as a drawing (boxes, arrows, and regions around boxes) or as a networkx graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from symdnn.compile.function import Function
from symdnn.compile.plan.plan import Plan
from symdnn.compile.program.program import If, Loop, Program, Region, Segment
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.inner import InnerGraphOp
from symdnn.graph.traverse import toposort
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.printing.facts import Facts, facts_of, facts_of_plan
from symdnn.printing.listing import segment_title
from symdnn.printing.names import leaf_text


@dataclass
class Box:
    """One node or leaf. ``kind`` is op, input, shared, constant or output."""

    key: str
    kind: str
    label: str
    attributes: dict[str, str | int] = field(default_factory=dict)
    node: Apply | None = None


@dataclass
class Group:
    """A region of boxes and regions. With ``beside`` inner regions are side by side, else below."""

    title: str
    boxes: list[str] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    beside: bool = False

    def all_boxes(self) -> Iterator[str]:
        """The keys of its boxes, also in inner regions."""
        yield from self.boxes
        for g in self.groups:
            yield from g.all_boxes()


@dataclass
class Drawing:
    """Boxes by key, arrows ``(from, to) -> (labels, type)``, and the outermost region."""

    boxes: dict[str, Box] = field(default_factory=dict)
    arrows: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    root: Group = field(default_factory=lambda: Group(""))


def to_networkx(obj: object) -> Any:
    """A ``networkx.DiGraph`` of an expression, a compiled function, or a stage of compiling one.

    Nodes are strings (``n0``, ``v0``, ``o0``: ops, leaves, outputs, in topological order) with
    string and integer attributes, so that it can be written as GraphML: ``kind``, ``label``,
    ``op``, ``type``, ``name``, ``origin``, ``region``, ``remarks`` (kernel, in-place, view).
    Edges have ``inputs`` (which operands), ``outputs`` (which results) and ``type``.

    >>> import symdnn.tensor as T
    >>> graph = to_networkx(T.exp(T.vector("x")))
    >>> graph.nodes["n0"]["op"], list(graph.edges)
    ('Exp', [('v0', 'n0')])
    """
    import networkx

    drawing = drawing_of(obj)
    graph = networkx.DiGraph()
    for box in drawing.boxes.values():
        graph.add_node(box.key, kind=box.kind, label=box.label, **box.attributes)
    for (a, b), attributes in drawing.arrows.items():
        graph.add_edge(a, b, **attributes)
    for path, group in _groups(drawing.root, ""):
        for key in group.boxes:
            graph.nodes[key]["region"] = path
    return graph


def _groups(group: Group, path: str) -> Iterator[tuple[str, Group]]:
    yield path, group
    for inner in group.groups:
        yield from _groups(inner, f"{path} / {inner.title}" if path else inner.title)


def drawing_of(obj: Any, sizes: bool = True, inside: bool = False) -> Drawing:
    """The drawing of an expression (variable, node, list of them) or of any stage.

    Without ``sizes`` nodes that only compute sizes are left out. With ``inside`` the graphs of
    loops and of ``OpFromGraph`` are drawn as well: as modules, whose results the node reads.
    """
    if isinstance(obj, Function):
        program = obj.stages.program
        hidden = frozenset() if sizes else _only_sizes(program)
        draughtsman = _Draughtsman(facts_of(obj), hidden=hidden, inside=inside)
        return draughtsman.program(program, obj.updated)
    if isinstance(obj, Program):
        hidden = frozenset() if sizes else _only_sizes(obj)
        return _Draughtsman(Facts(), hidden=hidden, inside=inside).program(obj, ())
    if isinstance(obj, Plan):
        draughtsman = _Draughtsman(facts_of_plan(obj), obj, inside=inside)
        return draughtsman.segment(obj.specialised.segment)
    if isinstance(obj, FunctionGraph):
        draughtsman = _Draughtsman(Facts(), inside=inside)
        return draughtsman.graph(obj.toposort(), obj.outputs, obj.inputs)
    items = obj if isinstance(obj, list | tuple) else [obj]
    outputs = [v for i in items for v in (i.outputs if isinstance(i, Apply) else [i])]
    for v in outputs:
        if not isinstance(v, Variable):
            raise TypeError(f"cannot draw a {type(v).__name__}: wanted a variable, or a stage")
    return _Draughtsman(Facts(), inside=inside).graph(toposort(outputs), (), outputs)


class _Draughtsman:
    """Makes the boxes, once each and in a fixed order."""

    def __init__(
        self,
        facts: Facts,
        plan: Plan | None = None,
        hidden: frozenset[Apply] = frozenset(),
        inside: bool = False,
    ) -> None:
        self.facts, self.plan, self.hidden, self.inside = facts, plan, hidden, inside
        self.drawing = Drawing()
        self.keys: dict[Any, str] = {}
        self.drawn: set[Apply] = set()
        self.later: list[tuple[Variable, str, str, Group]] = []
        self.numbers = {letter: count() for letter in "nvo"}
        #: While a graph inside of a node is drawn: the node's module, and the path shown for it.
        self.around = ("", "")
        self.titles: Counter[str] = Counter()

    def graph(
        self, nodes: Sequence[Apply], outputs: Sequence[Variable], leaves: Iterable[Variable]
    ) -> Drawing:
        """Draw nodes, and those of ``leaves`` that none of them reads."""
        group, self.drawn = self.drawing.root, set(nodes)
        self._nodes(nodes, group)
        for v in leaves:
            if v.owner is None:
                self._leaf(v, group)
        return self._finished(outputs, ())

    def segment(self, segment: Segment) -> Drawing:
        """Draw one segment with its inputs and outputs."""
        self.drawn = set(segment.nodes)
        self._nodes(segment.nodes, self.drawing.root)
        return self._finished(segment.outputs, ())

    def program(self, program: Program, updated: Sequence[Shared]) -> Drawing:
        """Regions as groups; a program of one segment without any."""
        self.drawn = _all_nodes(program)
        if len(program.regions) > 1:
            entering = Group("")
            self.drawing.root.groups.append(entering)
            for v in program.inputs:
                self._leaf(v, entering)
        self._regions(program.regions, self.drawing.root)
        return self._finished(program.outputs, updated)

    def _regions(self, regions: Sequence[Region], into: Group) -> None:
        for i, region in enumerate(regions):
            if isinstance(region, If):
                self._if(region, into)
            elif isinstance(region, Loop):
                self._nodes(region.views, into)
                self._loop(region, into)
            elif len(regions) == 1:
                self._nodes([*region.sizes, *region.host, *region.nodes], into)
            else:
                into.groups.append(Group(segment_title(region, i)))
                inside = [*region.sizes, *region.host, *region.nodes]
                self._nodes(inside, into.groups[-1])

    def _if(self, region: If, into: Group) -> None:
        branches, choice = Group("", beside=True), Group("")
        for title, inner in (("then", region.then), ("else", region.orelse)):
            branch = Group(title)
            self._regions(inner.regions, branch)
            branches.groups.append(branch)
        self._nodes([region.node], choice)
        into.groups.append(Group(f"if {leaf_text(region.condition)}", groups=[branches, choice]))

    def _loop(self, region: Loop, into: Group) -> None:
        step, whole = Group("each step"), Group("")
        self._regions(region.body.regions, step)
        self._node(region.node, whole, inside=False)
        if self.inside:
            made = [v for v in region.body.outputs if v.owner in self.keys]
            self._results(made, self.keys[region.node], step)
        into.groups.append(Group("loop", groups=[step, whole]))

    def _nodes(self, nodes: Sequence[Apply], group: Group) -> None:
        for node in nodes:
            if node in self.hidden:
                continue
            for v in node.inputs:
                if v.owner not in self.drawn:
                    self._leaf(v, group)
            if node not in self.keys:
                self._node(node, group, self.inside)

    def _node(self, node: Apply, group: Group, inside: bool) -> None:
        key = self._new_key("n")
        self.keys[node] = key
        words = self.facts.words(node)
        names = [v.name for v in node.outputs if v.name is not None]
        label = "\n".join([str(node.op), *([", ".join(words)] if words else [])])
        attributes: dict[str, str | int] = {
            "op": type(node.op).__name__,
            "type": ", ".join(self._type(v) for v in node.outputs),
            "name": ", ".join(names),
            "origin": str(node.origin),
            "module": self._module(node, inside),
            "hints": str(node.hints),
            "remarks": ", ".join(words),
        }
        if node in self.facts.order:
            attributes["step"] = self.facts.order[node]
        self._box(Box(key, "op", label, attributes, node), group)
        for i, v in enumerate(node.inputs):
            if v.owner not in self.hidden:
                self.later.append((v, key, str(i), group))
        if inside and isinstance(node.op, InnerGraphOp):
            self._inside(node, node.op, key, str(attributes["module"]), group)

    def _module(self, node: Apply, inside: bool) -> str:
        """The path of a node's module; a node whose graph is drawn is a module itself."""
        outer, shown = self.around
        own = node.origin.module
        if shown:
            own = own.removeprefix(outer).removeprefix(".")
        title = ""
        if inside and isinstance(node.op, InnerGraphOp):
            name = str(getattr(node.op, "name", None) or type(node.op).__name__).replace(".", "_")
            place = f"{shown}.{own}.{name}"
            self.titles[place] += 1
            title = name if self.titles[place] == 1 else f"{name} ({self.titles[place]})"
        return ".".join(filter(None, (shown, own, title)))

    def _inside(self, node: Apply, op: InnerGraphOp, key: str, module: str, group: Group) -> None:
        """The graph inside of a node. Its boxes are new: other nodes may have the same graph."""
        kept = self.keys, self.drawn, self.later, self.around
        self.keys, self.drawn, self.later = {}, set(op.inner.nodes), []
        self.around = (node.origin.module, module)
        self._nodes(op.inner.nodes, group)
        self._results([v for v in op.inner.outputs if v.owner in self.keys], key, group)
        for later in self.later:
            self._arrow(*later)
        self.keys, self.drawn, self.later, self.around = kept

    def _results(self, made: Sequence[Variable], key: str, group: Group) -> None:
        """Arrows from what a step or an inner graph makes to its node."""
        self.later += [(v, key, f"result {i}", group) for i, v in enumerate(made)]

    def _leaf(self, v: Variable, group: Group) -> None:
        if v in self.keys or isinstance(v, Constant):
            return  # constants get a box for each reader, to avoid long arrows
        kind = "shared" if isinstance(v, Shared) else "input"
        self.keys[v] = self._new_key("v")
        attributes: dict[str, str | int] = {"type": self._type(v), "name": v.name or ""}
        self._box(Box(self.keys[v], kind, f"{leaf_text(v)}\n{self._type(v)}", attributes), group)

    def _outputs(
        self, outputs: Sequence[Variable], updated: Sequence[Shared], group: Group
    ) -> None:
        results = len(outputs) - len(updated)
        target = Group("") if group.groups else group
        for i, v in enumerate(outputs):
            label = f"output {i}" if i < results else f"new {updated[i - results]}"
            if v.owner not in self.drawn:
                self._leaf(v, target)
            key = self._new_key("o")
            self._box(Box(key, "output", label, {"type": self._type(v)}), target)
            self.later.append((v, key, "0", target))
        if target is not group and target.boxes:
            group.groups.append(target)

    def _finished(self, outputs: Sequence[Variable], updated: Sequence[Shared]) -> Drawing:
        self._outputs(outputs, updated, self.drawing.root)
        for v, to, operand, group in self.later:
            self._arrow(v, to, operand, group)
        return self.drawing

    def _arrow(self, v: Variable, to: str, operand: str, group: Group) -> None:
        if isinstance(v, Constant):
            source = self._new_key("v")
            self._box(Box(source, "constant", leaf_text(v), {"type": self._type(v)}), group)
        else:
            source = self.keys[v.owner if v.owner in self.keys else v]
        arrow = self.drawing.arrows.setdefault((source, to), {"type": self._type(v)})
        for name, value in (("inputs", operand), ("outputs", str(v.index or 0))):
            arrow[name] = f"{arrow[name]},{value}" if name in arrow else value

    def _type(self, v: Variable) -> str:
        return str(v.type if self.plan is None else self.plan.specialised.type_of(v))

    def _new_key(self, letter: str) -> str:
        return f"{letter}{next(self.numbers[letter])}"

    def _box(self, box: Box, group: Group) -> None:
        self.drawing.boxes[box.key] = box
        group.boxes.append(box.key)


def _only_sizes(program: Program) -> frozenset[Apply]:
    """Nodes whose values are only read as sizes and bounds, by ops or by such nodes."""
    hidden = {n for s in _segments(program) for n in s.sizes}
    nodes = [n for n in _all_nodes(program) if n not in hidden]
    read = [v for n in nodes for i, v in enumerate(n.inputs) if i not in n.op.host_inputs]
    shown = [v.owner for v in (*read, *program.outputs)]
    while shown:
        node = shown.pop()
        if node is not None and node in hidden:
            hidden.remove(node)
            shown += [v.owner for v in node.inputs]
    return frozenset(hidden)


def _segments(program: Program) -> Iterator[Segment]:
    for region in program.regions:
        if isinstance(region, Segment):
            yield region
        elif isinstance(region, Loop):
            yield from _segments(region.body)
        else:
            yield from _segments(region.then)
            yield from _segments(region.orelse)


def _all_nodes(program: Program) -> set[Apply]:
    found: set[Apply] = set()
    for region in program.regions:
        if isinstance(region, Segment):
            found.update((*region.sizes, *region.host, *region.nodes))
        elif isinstance(region, Loop):
            found |= {region.node, *region.views} | _all_nodes(region.body)
        else:
            found |= {region.node} | _all_nodes(region.then) | _all_nodes(region.orelse)
    return found
