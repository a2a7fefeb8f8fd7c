"""Declarations of ops by the package onnx: versions, types of outputs, bodies of functions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import onnx
from onnx import TensorProto, TypeProto, defs, helper

from symdnn.onnx.model.kinds import CODES, KINDS
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Sequence as Tensors
from symdnn.onnx.model.values import Value

_TYPE_NAMES = {
    f"tensor({TensorProto.DataType.Name(code).lower()})": kind for code, kind in KINDS.items()
}  # fmt: skip


class Schema:
    """The declaration of an op in one of its versions."""

    def __init__(self, schema: Any) -> None:
        self.schema, self.version = schema, int(schema.since_version)
        self.has_body = bool(schema.has_function or schema.has_context_dependent_function)
        self.defaults = {
            name: helper.get_attribute_value(a.default_value)
            for name, a in schema.attributes.items()
            if a.default_value.name
        }
        self._inputs = [i.type_str if i.is_homogeneous else "" for i in schema.inputs]
        self._outputs = [o.type_str if o.is_homogeneous else "" for o in schema.outputs]

    def output_kind(self, i: int, inputs: Sequence[Any]) -> str | None:
        """The kind of output ``i`` if it follows from those of the inputs, else None."""
        if not self._outputs:
            return None
        wanted = self._outputs[min(i, len(self._outputs) - 1)]
        if wanted in _TYPE_NAMES:
            return _TYPE_NAMES[wanted]
        for k, value in enumerate(inputs):
            name = self._inputs[min(k, len(self._inputs) - 1)] if self._inputs else ""
            if isinstance(value, Value) and wanted and name == wanted:
                return value.kind
        return None


@cache
def schema_of(op: str, domain: str, opset: int) -> Schema | None:
    """The declaration of an op in an opset, None if there is none."""
    try:
        return Schema(defs.get_schema(op, opset, domain))
    except defs.SchemaError:
        return None


def function_of(schema: Schema, node: Node, opset: int, proto: Any) -> Any:
    """The body of an op that is a function of others, for these inputs; None if it has none."""
    found = schema.schema
    if not schema.has_body:
        return None
    if found.has_function:
        body = found.get_function_with_opset_version(_version(found.function_opset_versions, opset))
        return _parsed(body)
    types = [_type_of(v).SerializeToString() for v in node.inputs]
    version = _version(found.context_dependent_function_opset_versions, opset)
    given = _plain(node, proto).SerializeToString()
    return _parsed(found.get_context_dependent_function_with_opset_version(version, given, types))


def _version(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def _parsed(body: Any) -> Any:
    if isinstance(body, bytes):
        function = onnx.FunctionProto()
        function.ParseFromString(body)
        return function
    return body


def _plain(node: Node, proto: Any) -> Any:
    """The node as a proto, with the values of attributes that it takes from a function."""
    if proto is not None and not any(a.ref_attr_name for a in proto.attribute):
        return proto
    made = onnx.NodeProto()
    if proto is not None:
        made.CopyFrom(proto)
        del made.attribute[:]
    else:
        made.op_type, made.domain = node.op, node.domain
        made.input.extend(f"i{k}" if v is not None else "" for k, v in enumerate(node.inputs))
        made.output.extend(f"o{k}" if w else "" for k, w in enumerate(node.wanted))
    plain = {k: v for k, v in node.attributes.items() if not isinstance(v, Value)}
    made.attribute.extend(helper.make_attribute(k, v) for k, v in plain.items())
    return made


def _type_of(value: Any) -> Any:
    if value is None:
        return TypeProto()
    if isinstance(value, Tensors):
        return helper.make_sequence_type_proto(_tensor_type(value.kind or "float32", None))
    return _tensor_type(value.kind, value.shape)


def _tensor_type(kind: str, shape: Any) -> Any:
    return helper.make_tensor_type_proto(CODES[kind], shape)
