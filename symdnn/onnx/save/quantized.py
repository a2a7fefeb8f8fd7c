"""Quantised values as ``QuantizeLinear``, ``DequantizeLinear`` and products of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Variable
from symdnn.onnx.model.kinds import code_of
from symdnn.onnx.save.writer import Writer
from symdnn.ops.elementwise.quantize import FLOAT8, is_zero

Emitter = Callable[[Writer, Apply], Any]
#: Storage types of floats -> the opset from which on there is a cast to them.
_STORED = {
    "float8_e4m3fn": 19, "float8_e4m3fnuz": 19, "float8_e5m2": 19, "float8_e5m2fnuz": 19,
    "float4_e2m1fn": 23, "float8_e8m0fnu": 24,
}  # fmt: skip
#: From this opset on a type of fewer than 8 or of 16 bits may be written.
_MORE_KINDS = 21


def _of_blocks(w: Writer, node: Apply) -> tuple[list[str], dict[str, Any]]:
    """Inputs and attributes where scales vary along several axes: blocks of one element."""
    op: Any = node.op
    x, scale, zero = node.inputs
    if w.opset < _MORE_KINDS:
        raise w.refuse(node, f"scales that vary along several axes need opset {_MORE_KINDS}")
    x_name = w.name(x)
    point = w.name(zero) if zero.type.dtype == op.kind else w.cast(w.name(zero), op.kind)
    wide = [w.add("Expand", n, w.shape(x_name)) for n in (w.name(scale), point)]
    return [x_name, *wide], {"axis": x.ndim - 1, "block_size": 1}


def _axis(node: Apply) -> int | None:
    """The axis along which scales vary; None for one scale."""
    scale = node.inputs[1].type
    axes = [i for i, one in enumerate(scale.broadcastable) if not one]
    return axes[0] if axes else None


def _parameter(w: Writer, v: Variable, vector: bool) -> str:
    return w.reshaped(w.name(v), [-1] if vector else [])


def _inputs(w: Writer, node: Apply) -> tuple[list[str], dict[str, Any]]:
    """Names of the value, its scale and its zero point, and attributes: the axis of the scale."""
    op: Any = node.op
    x, scale, zero = node.inputs
    if op.kind in FLOAT8:
        raise w.refuse(node, "float8 is held as its bits, which ONNX has no op for")
    if w.opset < _MORE_KINDS and op.kind not in ("int8", "uint8", "int32"):
        raise w.refuse(node, f"{op.kind} needs opset {_MORE_KINDS}")
    if sum(not one for one in scale.type.broadcastable) > 1:
        return _of_blocks(w, node)
    axis = _axis(node)
    names = [w.name(x), _parameter(w, scale, axis is not None)]
    if all(zero.type.broadcastable) and axis is not None:
        if not is_zero(zero):
            raise w.refuse(node, "it has one zero point and several scales")
        nothing = w.add("Mul", names[1], w.like(scale, 0))
        names.append(w.cast(nothing, op.kind))
    elif all(zero.type.broadcastable) or axis is not None:
        point = _parameter(w, zero, axis is not None)
        names.append(point if zero.type.dtype == op.kind else w.cast(point, op.kind))
    else:
        raise w.refuse(node, "it has several zero points and one scale")
    return names, {"axis": axis}


def _quantize(w: Writer, node: Apply) -> Any:
    names, attributes = _inputs(w, node)
    op: Any = node.op
    made: str = w.add("QuantizeLinear", *names, **attributes)
    return made if op.kind == node.outputs[0].type.dtype else w.cast(made, op.out_dtype())


def _dequantize(w: Writer, node: Apply) -> Any:
    names, attributes = _inputs(w, node)
    op: Any = node.op
    x, scale, zero = node.inputs
    if x.type.dtype != op.kind:
        names[0] = w.cast(names[0], op.kind)
    if op.kind == "int32" and is_zero(zero):
        names.pop()
    made: str = w.add("DequantizeLinear", *names, **attributes)
    wanted = node.outputs[0].type.dtype
    return made if wanted == scale.type.dtype else w.cast(made, wanted)


def _product(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    if op.out != "int32" or (op.is_conv and op.op.flip):
        raise w.refuse(node)
    names = [w.name(v) for v in node.inputs[:2]]
    for term, of in zip(("x_zero", "w_zero"), node.inputs[:2], strict=True):
        at = op.index(term)
        zero = w.constant(np.zeros((), of.type.dtype)) if at is None else w.name(node.inputs[at])
        names.append(zero if at is None else w.cast(zero, of.type.dtype))
    if not op.is_conv:
        return w.add("MatMulInteger", *names)
    conv = op.op
    if any(isinstance(p, str) for p in conv.padding):
        raise w.refuse(node, "its padding follows from the size of the filters")
    return w.add(
        "ConvInteger", *names, strides=list(conv.stride), dilations=list(conv.dilation),
        group=conv.groups, pads=[p[i] for i in (0, 1) for p in conv.padding],
    )  # fmt: skip


def _narrow(w: Writer, node: Apply) -> Any:
    """A cast to the storage type and back."""
    op: Any = node.op
    (x,) = node.inputs
    if op.kind not in _STORED or w.opset < _STORED[op.kind]:
        wanted = f"needs opset {_STORED[op.kind]}" if op.kind in _STORED else "has no cast"
        raise w.refuse(node, f"{op.kind} {wanted}")
    powers = op.kind == "float8_e8m0fnu"
    stored = w.add(
        "Cast", w.name(x), to=code_of(op.kind), saturate=int(op.saturate),
        round_mode=op.power if powers else None,
    )  # fmt: skip
    return w.cast(stored, "float32")


EMITTERS: dict[str, Emitter] = {
    "Quantize": _quantize, "Dequantize": _dequantize, "QuantizedProduct": _product,
    "Narrow": _narrow,
}  # fmt: skip
