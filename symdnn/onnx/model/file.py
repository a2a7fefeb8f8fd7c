"""Reading a model, and the checks before anything is built from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import defs

from symdnn.errors import ModelError
from symdnn.onnx.model.order import graphs_of, is_ordered, put_in_order

#: Graphs within graphs.
_DEEPEST = 32


def read(source: Any) -> tuple[Any, str | None]:
    """A ``ModelProto`` from a path, bytes or a proto, and the folder of its external data.

    Raises :class:`ModelError` for a file that is damaged or no model, ``OSError`` for none.
    """
    folder = None
    if isinstance(source, onnx.ModelProto):
        if not is_ordered(source):
            given, source = source, onnx.ModelProto()
            source.CopyFrom(given)
            put_in_order(source)
        return checked(source), None
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        folder = str(path.resolve().parent)
        content = path.read_bytes()
    elif isinstance(source, bytes | bytearray):
        content = bytes(source)
    else:
        what = "a path, bytes or an onnx.ModelProto"
        raise ModelError(f"onnx.load: wanted {what}, got {type(source).__name__}")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except (DecodeError, RecursionError, ValueError) as error:
        raise ModelError(f"this is no ONNX model, or it is cut off: {error}") from error
    put_in_order(model)
    return checked(model), folder


def checked(model: Any) -> Any:
    """``model``, if its structure is sound; raises :class:`ModelError`."""
    _check_text(model)
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError("this is no ONNX model: it has no graph")
    if not model.opset_import:
        raise ModelError("the model does not say which opset it is of")
    for o in model.opset_import:
        domain = "" if o.domain == "ai.onnx" else o.domain
        if domain == "" and not 1 <= o.version <= defs.onnx_opset_version():
            newest = defs.onnx_opset_version()
            raise ModelError(
                f"the model is of opset {o.version}; the installed onnx {onnx.__version__} knows "
                f"those up to {newest}"
            )
    _check_graph(model.graph, set(), 0)
    functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
    for f in functions.values():
        _check_order(f.node, set(f.input), f"the function {f.name!r}", 0)
    _check_recursion(functions)
    return model


def _check_text(message: Any) -> None:
    """Protobuf reads a string that is no UTF-8 as bytes."""
    for field, value in message.ListFields():
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        values = [value] if isinstance(value, str | bytes | Message) else value
        for v in values:
            if isinstance(v, Message):
                _check_text(v)
            elif not isinstance(v, str):
                raise ModelError(f"this model is damaged: {field.full_name} is no text: {v!r:.60}")


def _check_graph(graph: Any, outer: set[str], depth: int) -> None:
    if depth > _DEEPEST:
        raise ModelError(f"more than {_DEEPEST} graphs within one another")
    known = outer | {v.name for v in graph.input} | {t.name for t in graph.initializer}
    known |= {t.values.name for t in graph.sparse_initializer}
    names = [v.name for v in graph.input]
    if len(set(names)) < len(names):
        raise ModelError(f"the graph {graph.name!r} has two inputs of one name")
    made = _check_order(graph.node, known, f"the graph {graph.name!r}", depth)
    for o in graph.output:
        if o.name not in made:
            raise ModelError(f"the output {o.name!r} of {graph.name!r} is made by no node")


def _check_order(nodes: Any, known: set[str], where: str, depth: int) -> set[str]:
    """All names after ``nodes``. A node may read only names that exist before it."""
    known = set(known)
    made: set[str] = set()
    for node in nodes:
        what = f"node {node.name or next(iter(node.output), '')!r} ({node.op_type}) of {where}"
        for name in node.input:
            if name and name not in known:
                raise ModelError(f"{what} reads {name!r}, which no node makes, or only in a cycle")
        for graph in graphs_of(node):
            _check_graph(graph, known, depth + 1)
        for name in node.output:
            if name and name in made:
                raise ModelError(f"{what} makes {name!r}, which another node makes too")
            made.add(name)
            known.add(name)
    return known


def _check_recursion(functions: dict[tuple[str, str, str], Any]) -> None:
    """Functions may call each other, but not themselves."""
    state: dict[tuple[str, str, str], int] = {}
    for start in functions:
        stack = [(start, iter(_calls(functions[start], functions)))]
        if state.get(start):
            continue
        state[start] = 1
        while stack:
            key, calls = stack[-1]
            for called in calls:
                if state.get(called) == 1:
                    raise ModelError(f"the function {called[1]!r} calls itself")
                if not state.get(called):
                    state[called] = 1
                    stack.append((called, iter(_calls(functions[called], functions))))
                    break
            else:
                state[key] = 2
                stack.pop()


def _calls(function: Any, functions: Any) -> list[tuple[str, str, str]]:
    found, nodes = [], list(function.node)
    while nodes:
        node = nodes.pop()
        key = (node.domain, node.op_type, getattr(node, "overload", ""))
        if key in functions:
            found.append(key)
        for graph in graphs_of(node):
            nodes += graph.node
    return found
