"""``save``: a function, outputs or a module as a file in ONNX's format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import checker, helper

from symdnn.compile.call.compiled_function import Function
from symdnn.disk.atomic import write_atomically
from symdnn.errors import ModelError
from symdnn.graph.inner import InnerGraph
from symdnn.graph.traverse import clone, graph_inputs, toposort
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.onnx.model.external import with_data_in, write_data
from symdnn.onnx.model.kinds import code_of
from symdnn.onnx.save import arrays, boxes, elementwise, loops, networks, quantized, recurrent
from symdnn.onnx.save.complexes import emitter_of
from symdnn.onnx.save.expressions import EXPRESSIONS
from symdnn.onnx.save.newest import OLDEST_OPSET, default_opset
from symdnn.onnx.save.writer import Writer, dtype_of
from symdnn.ops.core.composed import Composed

if TYPE_CHECKING:
    from symdnn.nn.modules.module import Module

#: Files of protobuf hold less than this; parameters beyond are in a file of their own.
_MOST_BYTES = 1_800_000_000

_EMITTERS = {
    **elementwise.EMITTERS, **arrays.EMITTERS, **networks.EMITTERS, **quantized.EMITTERS,
    **recurrent.EMITTERS, **boxes.EMITTERS, **loops.EMITTERS,
}  # fmt: skip


def save(
    what: Any,
    path: str | os.PathLike[str],
    opset: int | None = None,
    inputs: Sequence[Variable] | None = None,
    external: bool | None = None,
) -> Any:
    """Write a function, expressions or a module in ONNX's format; the ``onnx.ModelProto``.

    ``what`` is a compiled function (its updates are left out), a variable, a list or dict of them,
    or a module of ``symdnn.nn``, which is evaluated at ``inputs``. Inputs and outputs have the
    names of the variables (or of the dict), parameters are initialisers by name, and named sizes
    stay names. ``opset`` is from 18 to the newest of the installed ``onnx``; by default the newest
    that the installed ONNX Runtime runs, or 21 without it. Parameters are in a file of their own,
    beside ``path``, if ``external``, or if there are too many for one file.

    Raises :class:`~symdnn.errors.ModelError`, which names the op, for what ONNX can't express.
    """
    model = to_model(what, opset, inputs)
    target = Path(path)
    size = sum(t.ByteSize() for t in model.graph.initializer)
    if external or (external is None and size > _MOST_BYTES):
        data = target.with_name(f"{target.name}.data")
        outside = with_data_in(data.name, model)
        write_atomically(data, lambda out: write_data(out, model))
        write_atomically(target, outside.SerializeToString())
        checker.check_model(str(target))
        return model
    checker.check_model(model)
    write_atomically(target, model.SerializeToString())
    return model


def to_model(what: Any, opset: int | None = None, inputs: Sequence[Variable] | None = None) -> Any:
    """What :func:`save` writes, as an ``onnx.ModelProto``."""
    newest = onnx.defs.onnx_opset_version()
    opset = default_opset() if opset is None else opset
    if not OLDEST_OPSET <= opset <= newest:
        raise ModelError(f"onnx.save: opset {opset}, wanted one from {OLDEST_OPSET} to {newest}")
    named, given = _expressions(what, inputs)
    writer = Writer(opset)
    ports = []
    for k, v in enumerate(given):
        name = writer.fresh(v.name or f"input_{k}")
        writer.names[v] = name
        _real(v)
        ports.append(helper.make_tensor_value_info(name, code_of(dtype_of(v)), _sizes(v, name)))
    named = dict(zip(named, _with_sizes(writer, list(named.values()))))
    emit(writer, list(named.values()))
    outputs = []
    for wanted, v in named.items():
        _real(v)
        name = writer.fresh(wanted)
        writer.nodes.append(helper.make_node("Identity", [writer.name(v)], [name]))
        outputs.append(helper.make_tensor_value_info(name, code_of(dtype_of(v)), _sizes(v, name)))
    graph = helper.make_graph(
        writer.nodes, "symdnn", ports, outputs, list(writer.initializers.values())
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(
        graph, opset_imports=opsets, producer_name="symdnn",
        ir_version=helper.find_min_ir_version_for(opsets),
    )  # fmt: skip


def _real(v: Variable) -> None:
    """Inner values are complex as pairs of parts; no op of ONNX takes a complex tensor."""
    if v.type.is_complex:
        raise ModelError(
            f"onnx.save: {v} is complex; give its real and imaginary part as two real tensors"
        )


def _with_sizes(w: Writer, outputs: list[Variable]) -> list[Variable]:
    """``outputs`` with the sizes that the values of parameters have now."""
    found = [v for v in graph_inputs(outputs) if isinstance(v, Shared)]
    for v in found:
        shape = np.shape(v.get_value(borrow=True))
        w.stand_ins[TensorType(v.type.dtype, shape)(v.name)] = v
    stand_in = {v: s for s, v in w.stand_ins.items()}
    return list(clone(outputs, replace=stand_in))


def _sizes(v: Variable, name: str) -> list[int | str]:
    """Sizes with names: those of the type, else one that says which size it is."""
    t = v.type
    names = t.names or (None,) * t.ndim
    return [
        d if d is not None else (n.names[0] if n is not None else f"{name}_{i}")
        for i, (d, n) in enumerate(zip(t.shape, names))
    ]


def _expressions(
    what: Any, inputs: Sequence[Variable] | None
) -> tuple[dict[str, Variable], list[Variable]]:
    """Outputs by name, and the inputs."""
    if isinstance(what, Function):
        signature = what.signature
        count = len(signature.sources) - len(signature.updated)
        named = _named(list(signature.sources[:count]), signature.structure.keys)
        return named, [d.variable for d in signature.declared if d.variable not in signature.states]
    from symdnn.nn.modules.module import Module  # all layers: who loads a file needs none

    if isinstance(what, Module):
        if inputs is None:
            raise ModelError("onnx.save: a module wants inputs=[a variable for each argument]")
        found = _evaluated(what, inputs)
        named = _named(list(found) if isinstance(found, list | tuple) else [found], ())
        return named, list(inputs)
    if isinstance(what, Mapping):
        named = {str(k): v for k, v in what.items()}
    else:
        named = _named(list(what) if isinstance(what, list | tuple) else [what], ())
    if not named or not all(isinstance(v, Variable) for v in named.values()):
        raise ModelError(f"onnx.save: wanted a function, variables or a module, got {what!r:.80}")
    if inputs is None:
        free = graph_inputs(list(named.values()))
        inputs = [v for v in reversed(free) if not isinstance(v, Constant | Shared)]
    return named, list(dict.fromkeys(inputs))


def _evaluated(module: Module, inputs: Sequence[Variable]) -> Any:
    """The module's expression for evaluation; its modes stay as they are."""
    modes = [(m, m.training) for _, m in module.named_modules()]
    try:
        return module.evaluate()(*inputs)
    finally:
        for m, mode in modes:
            m.training = mode


def _named(values: Sequence[Variable], keys: Sequence[Any]) -> dict[str, Variable]:
    names = [str(k) for k in keys] or [
        v.name or ("output" if len(values) == 1 else f"output_{i}") for i, v in enumerate(values)
    ]
    found: dict[str, Variable] = {}
    for name, v in zip(names, values):
        found[name if name not in found else f"{name}_{len(found)}"] = v
    return found


# -- nodes ----------------------------------------------------------------------------------------


def emit(w: Writer, outputs: Sequence[Variable]) -> None:
    """Write all nodes that ``outputs`` need and that are not written yet.

    What only a branch of a choice needs is written in this branch.
    """
    written = _written(w)
    always = _always(outputs, written)
    for node in toposort(list(outputs), blockers=written):
        if node in always and node.outputs[0] not in w.names:
            _emit_node(w, node)


def _always(outputs: Sequence[Variable], written: Sequence[Variable]) -> set[Apply]:
    """The nodes that ``outputs`` need whatever the conditions of choices are."""
    found: set[Apply] = set()
    seen, waiting = set(written), list(outputs)
    while waiting:
        v = waiting.pop()
        node = v.owner
        if v in seen or node is None:
            continue
        seen.add(v)
        found.add(node)
        waiting += node.inputs[:1] if type(node.op).__name__ == "IfElse" else node.inputs
    return found


def _written(w: Writer) -> list[Variable]:
    found: list[Variable] = []
    writer: Writer | None = w
    while writer is not None:
        found += writer.names
        writer = writer.parent
    return found


def _emit_node(w: Writer, node: Apply) -> None:
    op: Any = node.op
    name = type(op).__name__
    names: Any
    if name in ("Checkpoint", "After"):  # their outputs are their first inputs
        names = [w.name(v) for v in node.inputs[: len(node.outputs)]]
    elif isinstance(getattr(op, "inner", None), InnerGraph) and name != "Scan":
        names = _inlined(w, node)
    elif name == "IfElse":
        names = loops.if_else(w, node, emit)
    elif name == "Scan":
        names = loops.scan(w, node, emit)
    elif (of_complex := emitter_of(node)) is not None:
        names = of_complex(w, node)
    elif name in _EMITTERS and type(op).__module__.startswith("symdnn.ops."):
        names = _EMITTERS[name](w, node)
    else:
        names = _by_parts(w, node)
    listed = [names] if isinstance(names, str) else names
    for v, n in zip(node.outputs, listed):
        w.names[v] = n


def _inlined(w: Writer, node: Apply) -> list[str]:
    """The nodes of an inner graph, once for each call of it."""
    inner = node.op.inner  # type: ignore[attr-defined]
    body = Writer(w.opset, w)
    body.nodes = w.nodes
    for v, outer in zip(inner.inputs, node.inputs, strict=True):
        body.names[v] = w.name(outer)
    emit(body, inner.outputs)
    return [body.name(v) for v in inner.outputs]


def _by_parts(w: Writer, node: Apply) -> list[str]:
    """An op without a counterpart as a function of others, where it knows one."""
    op: Any = node.op
    found: Any
    name = type(op).__name__
    if name in EXPRESSIONS and type(op).__module__.startswith("symdnn.ops."):
        found = EXPRESSIONS[name](op, *node.inputs)
    elif hasattr(op, "parts"):
        found = op.parts(node.inputs)
    else:
        found = op.expanded(*node.inputs) if isinstance(op, Composed) else None
    if found is None:
        raise w.refuse(node)
    values = list(found) if isinstance(found, list | tuple) else [found]
    tensors = [v for v in values if isinstance(v.type, TensorType)]
    emit(w, tensors)
    return [w.name(v) if isinstance(v.type, TensorType) else "" for v in values]
