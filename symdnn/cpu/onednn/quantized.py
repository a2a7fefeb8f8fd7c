"""Products and convolutions of 8-bit integers by oneDNN, with its scales and zero points.

oneDNN adds the products exactly in int32, by VNNI or AMX, and scales, adds the bias and rounds in
registers. Weights are packed once. Its last step may differ by one from the reference, where a
result is within a rounding of float32 of half a step.
"""

from __future__ import annotations

from typing import Any

from symdnn.cpu.onednn import library
from symdnn.cpu.onednn.kernel import (
    OnednnKernel,
    PlannedPrimitive,
    PrimitiveOperand,
    activation_layout,
    contiguous,
    convolution_settings,
)
from symdnn.cpu.onednn.objects import ALG, PROP, Attributes, Layout, Primitive, primitive
from symdnn.graph.kernel import Call, Row
from symdnn.libraries.onednn.rules import inexact_int8_sums
from symdnn.ops.vendor.onednn import OneDnnQuantized

#: Terms of a product -> oneDNN's names.
_NAMES = {
    "x_zero": "src_zero", "x_scale": "src_scale", "w_scale": "weights_scale",
    "y_scale": "dst_scale", "y_zero": "dst_zero",
}  # fmt: skip


class QuantizedKernel(OnednnKernel):
    """A product of quantised numbers (``dnnl_convolution_forward``, ``dnnl_matmul``)."""

    name = "onednn.int8"
    more_dtypes = frozenset({"int8", "uint8", "int32"})
    keeps = (1,)

    def refuses_types(self, call: Call) -> str | None:
        """Also CPUs on which the sums would saturate."""
        isa = library.facts().get("isa", "")
        return super().refuses_types(call) or inexact_int8_sums(isa)

    def planned(self, call: Call) -> PlannedPrimitive:
        """The primitive; activations of a convolution have channels last inside."""
        made = _conv(call) if _product(call).is_conv else _matmul(call)
        return PlannedPrimitive(made, _operands(call))


def _product(call: Call) -> Any:
    """The neutral product that a call computes."""
    low: Any = call.op
    return low.op


def _filter(call: Call) -> Layout:
    op: Any = _product(call).op
    w = contiguous(call.inputs[1])
    if op.groups == 1:
        return w
    return Layout((op.groups, w.shape[0] // op.groups, *w.shape[1:]), w.dtype)


def _layouts(call: Call) -> tuple[Layout, Layout, Layout]:
    """The layouts of the arrays x, w, y."""
    x, w = call.inputs[:2]
    (y,) = call.outputs
    if not _product(call).is_conv:
        return contiguous(x), contiguous(w), contiguous(y)
    layout = getattr(call.op, "layout", "NCHW")
    return activation_layout(x, layout), _filter(call), activation_layout(y, layout)


def _bias(call: Call) -> Layout | None:
    product = _product(call)
    index = product.index("bias")
    if index is None:
        return None
    (count,) = call.inputs[index].shape
    if product.is_conv:
        return Layout((count,), "float32")
    return Layout((*[1] * (call.outputs[0].ndim - 1), count), "float32")


def _operands(call: Call) -> list[PrimitiveOperand]:
    product = _product(call)
    x, w, y = _layouts(call)
    mirrored = product.op.ndim if product.is_conv and product.op.flip else 0
    found = [PrimitiveOperand("src", x, 0), PrimitiveOperand("weights", w, 1, mirrored=mirrored)]
    for i, name in enumerate(product.terms, 2):
        layout = Layout((_count(call.inputs[i]),), call.inputs[i].dtype)
        if name == "bias":
            bias = _bias(call)
            assert bias is not None, "it is among the terms"
            found.append(PrimitiveOperand("bias", bias, i))
        elif name != "z":
            found.append(PrimitiveOperand(_NAMES[name], layout, i))
    adds = product.index("z")
    found.append(PrimitiveOperand("dst", y, 0, True, adds=-1 if adds is None else adds))
    return found


def _count(t: Any) -> int:
    return int(t.shape[0]) if t.shape else 1


def _attributes(call: Call) -> Attributes:
    product = _product(call)
    after: list[tuple[Any, ...]] = []
    if "z" in product.terms:
        after.append(("sum", product.z_scale, product.z_zero))
    if product.relu:
        after.append(("eltwise", "relu", 0.0, 0.0))
    given: dict[str, tuple[int, int]] = {}
    for i, name in enumerate(product.terms, 2):
        if name in _NAMES:
            count, mask = _count(call.inputs[i]), 0
            if name == "w_scale" and call.inputs[i].shape:
                mask = _channel_mask(product, call.inputs[1].ndim)
            given[_NAMES[name]] = (mask, count)
    return Attributes(*after, quantized=given)


def _channel_mask(product: Any, ndim: int) -> int:
    """The bits of the dimensions of the weights along which the scales vary."""
    if not product.is_conv:
        return 1 << (ndim - 1)
    return 1 if product.op.groups == 1 else 3


def _matmul(call: Call) -> Primitive:
    x, w, y = _layouts(call)
    w = w.any if len(w.shape) == 2 else w
    options = {"attributes": _attributes(call)}
    return primitive("matmul", x, w, _bias(call), y, options=options)


def _conv(call: Call) -> Primitive:
    conv = _product(call).op
    x, w, y = _layouts(call)
    settings = convolution_settings(conv, w)
    options = {"attributes": _attributes(call)}
    made = (PROP["inference"], ALG["direct"], x.channels_last(), w.any, _bias(call))
    return primitive("convolution_forward", *made, y.channels_last(), *settings, options=options)


KERNELS: tuple[Row, ...] = (((OneDnnQuantized,), (QuantizedKernel(),)),)
