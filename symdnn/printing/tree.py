"""``debugprint``: a graph as an indented tree, each node once."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from symdnn.compile.function import Function
from symdnn.compile.plan.plan import Plan
from symdnn.compile.program.program import Program
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.inner import InnerGraph
from symdnn.graph.op import Op
from symdnn.graph.variable import Apply, Shared, Variable
from symdnn.printing.facts import Facts, facts_of
from symdnn.printing.listing import plan_text, program_text
from symdnn.printing.names import Ids, leaf_text

#: Deeper levels are not indented but numbered: a chain of 20,000 nodes would be gigabytes of
#: spaces.
MAX_INDENTED_LEVELS = 200


def debugprint(
    obj: Any,
    depth: int = -1,
    print_type: bool = False,
    file: Any = None,
    ids: str = "CHAR",
    stop_on_name: bool = False,
    done: dict[Any, str] | None = None,
) -> Any:
    """Print a variable, a list of them, a compiled function, or any stage of compiling one.

    A compiled function is printed as its rewritten graph, each node with its place in the order
    and, once it has run, with the kernel chosen, and whether it is a view of an input or written
    in place of one. ``w <- ...`` is the next value of the shared variable ``w``. Graphs inside of
    ops (a scan's step) follow below. A program or a plan is printed as a list of steps.

    ``depth`` limits the tree, ``print_type`` adds types, ``file`` is where to write (default:
    standard output; ``"str"`` returns the text), ``ids`` is ``"CHAR"``, ``"int"``, ``"id"`` or
    ``""``, ``stop_on_name`` leaves out nodes below named variables, ``done`` holds the ids of
    nodes printed before, which are not printed again.

    >>> import symdnn.tensor as T
    >>> x = T.vector("x")
    >>> debugprint(T.exp(x) + x)
    Add [id A]
     |Exp [id B]
     | |x [id C]
     |x [id C]
    """
    text = _text(obj, _Tree(depth, print_type, Ids(ids, done), stop_on_name))
    if file == "str":
        return text
    out = sys.stdout if file is None else file
    out.write(text)
    if file is None:
        out.flush()
        return None
    return file


def _text(obj: object, tree: _Tree) -> str:
    if isinstance(obj, Program):
        return program_text(obj)
    if isinstance(obj, Plan):
        return plan_text(obj)
    for item in obj if isinstance(obj, list | tuple) else [obj]:
        _print_one(item, tree)
    tree.add_inner_graphs()
    return tree.out.getvalue()


def _print_one(obj: object, tree: _Tree) -> None:
    if isinstance(obj, Function):
        tree.facts = facts_of(obj)
        _print_graph(obj.fgraph, tree, obj.updated)
    elif isinstance(obj, FunctionGraph):
        tree.facts = Facts({node: i for i, node in enumerate(obj.toposort())})
        _print_graph(obj, tree, ())
    elif isinstance(obj, Apply):
        tree.add(obj.outputs[0], whole=True)
    elif isinstance(obj, Variable):
        tree.add(obj)
    elif isinstance(obj, Program | Plan):
        tree.out.write(_text(obj, tree))
    else:
        raise TypeError(
            "debugprint takes a variable, a node, a list of them, a compiled function, a "
            f"FunctionGraph, a Program or a Plan, got a {type(obj).__name__}"
        )


def _print_graph(fgraph: FunctionGraph, tree: _Tree, updated: Sequence[Shared]) -> None:
    count = len(fgraph.outputs) - len(updated)
    for v in fgraph.outputs[:count]:
        tree.add(v)
    for target, v in zip(updated, fgraph.outputs[count:]):
        tree.add(v, f"{target} <- ")


class _Tree:
    """Writes variables line by line, without recursion, so that graphs may be of any depth."""

    def __init__(self, depth: int, print_type: bool, ids: Ids, stop_on_name: bool) -> None:
        self.depth, self.print_type, self.stop_on_name = depth, print_type, stop_on_name
        self.ids = ids
        self.printed: set[Apply] = {n for n in ids.known if isinstance(n, Apply)}
        self.facts = Facts()
        self.out = io.StringIO()
        self.with_inner: list[tuple[Apply, InnerGraph]] = []

    def add(self, v: Variable, lead: str = "", whole: bool = False) -> None:
        """Write the tree of ``v``; with ``whole`` the node is named and not the output."""
        stack = [(v, lead, "", 0)]
        while stack:
            v, first, rest, level = stack.pop()
            node = v.owner
            if node is None:
                self._write(first, leaf_text(v), v, self.ids.text(v))
                continue
            again = node in self.printed
            self._write_node(first, v, node, again, whole and level == 0)
            if again or level + 1 == self.depth or (self.stop_on_name and v.name is not None):
                continue
            self.printed.add(node)
            self.with_inner += [(node, inner) for inner in _inner_graphs(node.op)]
            if level and level % MAX_INDENTED_LEVELS == 0:
                rest = f"[{level}]"
            children = [(child, f"{rest} |", f"{rest} |", level + 1) for child in node.inputs[:-1]]
            children += [(child, f"{rest} |", f"{rest}  ", level + 1) for child in node.inputs[-1:]]
            stack += reversed(children)

    def add_inner_graphs(self) -> None:
        """Write the inner graphs of ops (a scan's step), at any depth."""
        for node, inner in self.with_inner:  # grows on the way
            inputs = ", ".join(f"{leaf_text(v)}{self.ids.text(v)}" for v in inner.inputs)
            name = type(node.op).__name__
            self.out.write(
                f"\nInner graph of {name}{self.ids.text(node)} on {inputs or 'nothing'}\n"
            )
            for v in inner.outputs:
                self.add(v)

    def _write_node(self, first: str, v: Variable, node: Apply, again: bool, whole: bool) -> None:
        output = "" if len(node.outputs) == 1 or whole else f".{v.index}"
        self._write(
            first, f"{node.op}{output}", v, self.ids.text(node), self._remarks(v, node, again)
        )

    def _remarks(self, v: Variable, node: Apply, again: bool) -> str:
        said = [f"'{v.name}'"] if v.name is not None else []
        if node in self.facts.order:
            said.append(str(self.facts.order[node]))
        if again:
            return " ".join([*said, "..."] if node.inputs else said)
        if node.hints:
            said.append(f"hints({node.hints})")
        if words := self.facts.words(node):
            said.append(f"({', '.join(words)})")
        return " ".join(said)

    def _write(self, first: str, text: str, v: Variable, id_text: str, remarks: str = "") -> None:
        type_text = f" <{v.type}>" if self.print_type else ""
        line = f"{first}{text}{id_text}{type_text} {remarks}".rstrip()
        self.out.write(line + "\n")


def _inner_graphs(op: Op) -> list[InnerGraph]:
    names: list[str] = [f.name for f in fields(op)] if is_dataclass(op) else []
    return [value for n in names if isinstance(value := getattr(op, n), InnerGraph)]


def min_informative_str(obj: object, ids: Mapping[Any, str] | None = None) -> str:
    """A short tree that distinguishes graphs: letters for nodes, no names of the user's.

    Two graphs of equal structure give equal texts.

    >>> import symdnn.tensor as T
    >>> print(min_informative_str(T.exp(T.vector("a")) * T.vector("b")))
    A. Mul
     B. Exp
      C. <float32(?,)>
     D. <float32(?,)>
    """
    letters = Ids("CHAR", dict(ids or {}))
    lines: list[str] = []
    stack = [(v, 0) for v in reversed(obj if isinstance(obj, list | tuple) else [obj])]
    while stack:
        v, level = stack.pop()
        key = v.owner if v.owner is not None else v
        lead = " " * level if level <= MAX_INDENTED_LEVELS else f"[{level}] "
        output = f".{v.index}" if v.owner is not None and len(v.owner.outputs) > 1 else ""
        if key in letters.known:
            lines.append(f"{lead}<{letters.of(key)}{output}>")
            continue
        text = f"<{v.type}>" if v.owner is None and not hasattr(v, "data") else leaf_text(v)
        what = text if v.owner is None else f"{v.owner.op}{output}"
        lines.append(f"{lead}{letters.of(key)}. {what}")
        if v.owner is not None:
            stack += [(i, level + 1) for i in reversed(v.owner.inputs)]
    return "\n".join(lines)
