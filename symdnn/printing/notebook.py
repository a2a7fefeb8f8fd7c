"""HTML of variables, functions, graphs and modules for notebooks (IPython's hooks)."""

from __future__ import annotations

from symdnn.compile.function import Function
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.operators import install_operators
from symdnn.graph.variable import Variable
from symdnn.printing.formula import pprint
from symdnn.printing.graph_page import framed_page

#: The most lines of a text that are shown: the tree of a graph may have thousands.
_MAX_LINES = 200


def repr_html(obj: object) -> str:
    """HTML of a variable, a compiled function or a graph; for other objects their text.

    A variable is shown as its formula and type. A function is shown as its signature and its
    rewritten graph, as an interactive page (:func:`symdnn.printing.graph_page`).

    >>> import symdnn.tensor as T
    >>> x = T.fvector("x")
    >>> repr_html(T.exp(x) + 1)
    '<code>exp(x) + 1</code> : <code>float32(?,)</code>'
    """
    if isinstance(obj, Variable):
        return f"{_code(pprint(obj))} : {_code(obj.type)}"
    if isinstance(obj, Function):
        return f"{_code(_signature(obj))}{framed_page(obj)}"
    if isinstance(obj, FunctionGraph):
        return f"{_code(f'graph of {len(obj.nodes)} nodes')}{framed_page(obj)}"
    return _text(str(obj))


def _signature(f: Function) -> str:
    graph = f.stages.fgraph
    inputs = ", ".join(f"{v}: {v.type}" for v in graph.inputs[: len(f.arguments.slots)])
    return f"{f.name}({inputs}), {len(graph.nodes)} nodes on {f.stages.target.kind}"


def _code(text: object) -> str:
    from html import escape

    return f"<code>{escape(str(text))}</code>"


def _text(text: str) -> str:
    from html import escape

    lines = text.splitlines()
    if len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], f"... {len(lines) - _MAX_LINES} more lines: symdnn.dprint"]
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


install_operators({"repr_html": repr_html})
