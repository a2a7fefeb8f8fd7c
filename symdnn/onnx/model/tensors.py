"""Tensors and attributes of a file as arrays and plain Python values."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import AttributeProto, external_data_helper, numpy_helper

from symdnn.errors import ModelError
from symdnn.onnx.model.external import external_array
from symdnn.onnx.model.kinds import kind_of
from symdnn.onnx.model.values import Value

_MOST_BYTES = 1 << 40


def array_of(tensor: Any, folder: str | None) -> Value:
    """A ``TensorProto`` as a value; raises :class:`ModelError` if it is damaged."""
    what = f"the tensor {tensor.name!r}"
    kind = kind_of(tensor.data_type, what)
    dims = tuple(int(d) for d in tensor.dims)
    if any(d < 0 for d in dims):
        raise ModelError(f"{what}: a negative size in its shape {dims}")
    try:
        if external_data_helper.uses_external_data(tensor):
            return Value.of(external_array(tensor, kind, dims, folder), kind)
        array = numpy_helper.to_array(tensor)
    except ModelError:
        raise
    except Exception as error:  # whatever protobuf, NumPy and onnx find wrong
        raise ModelError(f"{what} of shape {dims} is damaged: {error}") from error
    if array.shape != dims:
        raise ModelError(f"{what} has the shape {array.shape} and declares {dims}")
    return Value.of(array, kind)


def sparse_array(tensor: Any, folder: str | None) -> Value:
    """A ``SparseTensorProto`` as a dense value."""
    values, indices = array_of(tensor.values, folder), array_of(tensor.indices, folder)
    dims = tuple(int(d) for d in tensor.dims)
    what = f"the sparse tensor {tensor.values.name!r}"
    data, places = values.array, indices.array
    assert data is not None, "a tensor of a file"
    assert places is not None, "a tensor of a file"
    if int(np.prod(dims, dtype=object)) * data.itemsize > _MOST_BYTES:
        raise ModelError(f"{what}: its shape {dims} is too large to be stored densely")
    dense = np.zeros(dims, data.dtype)
    try:
        if places.ndim == 2:
            dense[tuple(places.T)] = data
        else:
            dense.ravel()[places] = data
    except (IndexError, ValueError) as error:
        raise ModelError(f"{what} is damaged: {error}") from error
    return Value.of(dense, values.kind)


def attribute_value(proto: Any, folder: str | None) -> Any:
    """An attribute as a number, string, list, :class:`Value` or graph."""
    kind = proto.type
    if kind == AttributeProto.FLOAT:
        return float(proto.f)
    if kind == AttributeProto.INT:
        return int(proto.i)
    if kind == AttributeProto.STRING:
        return proto.s.decode("utf-8", "replace")
    if kind == AttributeProto.FLOATS:
        return list(proto.floats)
    if kind == AttributeProto.INTS:
        return list(proto.ints)
    if kind == AttributeProto.STRINGS:
        return [s.decode("utf-8", "replace") for s in proto.strings]
    if kind == AttributeProto.GRAPH:
        return proto.g
    if kind == AttributeProto.TENSOR:
        return array_of(proto.t, folder)
    if kind == AttributeProto.SPARSE_TENSOR:
        return sparse_array(proto.sparse_tensor, folder)
    if kind == AttributeProto.TYPE_PROTO:
        return proto.tp
    if kind == AttributeProto.GRAPHS:
        return list(proto.graphs)
    raise ModelError(f"the attribute {proto.name!r} has the unknown type {kind}")
