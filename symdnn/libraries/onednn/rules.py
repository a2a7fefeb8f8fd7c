"""The rewrites for oneDNN: its lowerings with their conditions, and its epilogues.

The tag ``onednn`` switches all of it off (``optimizer_excluding=onednn``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.graph.op import Op
from symdnn.graph.origin import inherit
from symdnn.graph.target import Libraries, Target
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.onednn.conv_moments import moments_of_convolutions
from symdnn.libraries.onednn.narrow import Widening
from symdnn.ops.array.reduce import sum as sum_
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elementwise.arithmetic import cast, mul, sub
from symdnn.ops.elementwise.quantize import FLOAT8
from symdnn.ops.elemwise import pad_left
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.lowered.epilogue import EpilogueOp
from symdnn.ops.nn.batchnorm import (
    BatchNormGrad,
    BatchNormInference,
    BatchNormTrain,
    LayerNorm,
    LayerNormGrad,
)
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, Pool
from symdnn.ops.quantized.product import QuantizedProduct
from symdnn.ops.vendor import onednn
from symdnn.opt.epilogue.epilogue import Chain, chain_at, fuse_epilogues
from symdnn.opt.lower.lowering import Backend, Library, Reasons
from symdnn.opt.lower.quantized import (
    codes_of,
    longer_product,
    product_of_codes,
    why_no_product,
)
from symdnn.rewriting.facts import broadcast_axis
from symdnn.rewriting.rewrite import Context, graph_rewrite

#: The CPUs that add products of 8 bits in 32: without, oneDNN's int16 sums saturate.
_INT8_ISA_SUFFIXES = ("VNNI", "BF16", "FP16", "AMX")
_BF16_ISA_SUFFIXES = ("BF16", "FP16", "AMX")


def onednn_reason(target: Target) -> str | None:
    """The reason why oneDNN is not used at all; None where it is."""
    if target.kind != "cpu":
        return f"the target is {target}"
    if not target.has("onednn"):
        return "\n".join(["oneDNN can't be used", *target.notes])
    return None


def _without_bfloat16(target: Target) -> str | None:
    isa = target.isa or ""
    has_it = isa.endswith(_BF16_ISA_SUFFIXES)
    return None if has_it else f"the CPU ({isa}) does not compute in bfloat16"


#: A hint for cuDNN has no effect on a CPU.
BACKEND = Backend("onednn", "cpu", onednn_reason, (None, "onednn", "cudnn"), _without_bfloat16)


# -- reasons against lowering ----------------------------------------------------------------------


def conv_refuses(node: Apply, context: Context) -> str | None:
    """One to three dimensions, of operands that are not quantised."""
    op: Any = node.op
    if isinstance(op, Conv) and product_refuses(node, context) is None:
        return "its operands are quantised, and it is computed in 8 bits"
    return f"oneDNN convolves over at most 3 dimensions, not {op.ndim}" if op.ndim > 3 else None


def pool_refuses(node: Apply, context: Context) -> str | None:
    """(N, C) and one to three pooled dimensions, no sums."""
    op: Any = node.op
    ndim = node.inputs[0].type.ndim
    if op.ndim > 3 or ndim != op.ndim + 2:
        return f"oneDNN pools (N, C) and 1 to 3 sizes, not {op.ndim} of {ndim} dimensions"
    return "oneDNN has no sum pooling" if op.mode == "sum" else None


def gemm_refuses(node: Apply, context: Context) -> str | None:
    """Only matrices: a matrix-vector product is bound by memory. Not of quantised operands."""
    if product_refuses(node, context) is None:
        return "its operands are quantised, and it is computed in 8 bits"
    vector = any(v.type.ndim < 2 for v in node.inputs)
    return "a product with a vector is bound by memory" if vector else None


def batch_norm_refuses(node: Apply, context: Context) -> str | None:
    """Only statistics over all axes but 1, with parameters of the size of axis 1."""
    op: Any = node.op
    x = node.inputs[0]
    ndim = x.type.ndim
    if not 2 <= ndim <= 5 or tuple(op.axes) != (0, *range(2, ndim)):
        return f"oneDNN normalises 2 to 5 dimensions over all but axis 1, not over {op.axes}"
    skip = {0, 1, 3} if isinstance(op, BatchNormTrain) else {0, 1}
    if not isinstance(op, BatchNormGrad):
        skip -= {1}
    for i, p in enumerate(node.inputs):
        if i not in skip and (axis := broadcast_axis(p, x, op.axes)) is not None:
            return f"a parameter of type {p.type} broadcasts over axis {axis}"
    return None


def layer_norm_refuses(node: Apply, context: Context) -> str | None:
    """Only statistics over the last axis, with parameters that have only this axis."""
    op: Any = node.op
    x = node.inputs[0]
    ndim = x.type.ndim
    if not 2 <= ndim <= 5 or tuple(op.axes) != (ndim - 1,):
        return f"oneDNN normalises 2 to 5 dimensions over the last, not over {op.axes}"
    first = 2 if isinstance(op, LayerNormGrad) else 1
    for p in node.inputs[first : first + (1 if first == 2 else 2)]:
        if not all(p.type.broadcastable[:-1]) or broadcast_axis(p, x, range(ndim - 1)) is not None:
            return f"a parameter of type {p.type} is not one value for each feature"
    return None


@graph_rewrite("lower", tags=("onednn",), name="narrow_products_in_float32")
def narrow_products_in_float32(context: Context) -> None:
    """Products of 16 bits without instructions in float32, and what follows them."""
    if onednn_reason(context.target) is None:
        for dtype in ("float16", "bfloat16"):
            if dtype == "float16" or _without_bfloat16(context.target) is not None:
                Widening(context.fgraph, dtype).replace("narrow_products_in_float32")


# -- quantised ------------------------------------------------------------------------------------


def inexact_int8_sums(isa: str) -> str | None:
    """Why oneDNN's sums of 8-bit products are not exact on a CPU; None where they are.

    Without VNNI it adds pairs of products in int16, which saturates.
    """
    if isa.endswith(_INT8_ISA_SUFFIXES):
        return None
    return f"the CPU ({isa}) has no exact sums of 8-bit products (VNNI)"


def _int8_reason(context: Context, op: Op, dtypes: Sequence[str]) -> str | None:
    """Why oneDNN does not multiply these 8-bit integers; None where it does."""
    if (inexact := inexact_int8_sums(context.target.isa or "")) is not None:
        return inexact
    if isinstance(op, Conv) and op.ndim > 3:
        return f"oneDNN convolves over at most 3 dimensions, not {op.ndim}"
    if dtypes[1] != "int8":
        return f"oneDNN takes weights of int8, not of {dtypes[1]}"
    return None


def product_refuses(node: Apply, context: Context) -> str | None:
    """A float32 product of dequantised integers, of matrices or images."""
    if (reason := why_no_product(node)) is not None:
        return reason
    codes = [c for v in node.inputs[:2] if (c := codes_of(v)) is not None]
    if codes[0].kind in FLOAT8 or node.outputs[0].type.dtype != "float32":
        return "oneDNN has it for 8-bit integers, with float32 results"
    if any(v.type.ndim < 2 for v in node.inputs):
        return "a product with a vector is bound by memory"
    return _int8_reason(context, node.op, [c.codes.type.dtype for c in codes])


def quantized_refuses(node: Apply, context: Context) -> str | None:
    """8-bit integers, no zero point of the weights."""
    op: Any = node.op
    if op.is_float8 or "w_zero" in op.terms or any(v.type.ndim < 2 for v in node.inputs[:2]):
        return "oneDNN has it for matrices of 8-bit integers without a zero point of the weights"
    if _rounds_sums(node):
        return "with a zero point oneDNN's sums pass through float32, and these may be too large"
    return _int8_reason(context, op.op, [v.type.dtype for v in node.inputs[:2]])


#: Products of 8-bit integers whose sums are integers of float32 in any case.
_MOST_FLOAT32_TERMS = 2**24 // (255 * 128)


def _rounds_sums(node: Apply) -> bool:
    """Whether int32 sums of a product with a zero point may be rounded to float32.

    Those of a convolution are not, unless its filters are single pixels: then it is a product.
    """
    op: Any = node.op
    shape = node.inputs[1].type.shape
    if op.is_conv and any(n is not None and n > 1 for n in shape[2:]):
        return False
    terms = shape[1 if op.is_conv else -2]
    few = terms is not None and terms <= _MOST_FLOAT32_TERMS
    return op.out == "int32" and "x_zero" in op.terms and not few


def zero_apart_refuses(node: Apply, context: Context) -> str | None:
    """Sums that oneDNN rounds; where there is padding, the zero point is not alike everywhere."""
    op: Any = node.op
    if op.is_float8 or op.terms != ("x_zero",) or not _rounds_sums(node):
        return "its sums are not rounded"
    if op.is_conv and any(p != (0, 0) for p in op.op.padding):
        return "a convolution with padding"
    return _int8_reason(context, op.op, [v.type.dtype for v in node.inputs[:2]])


@BACKEND.lowering("zero_point_apart", None, QuantizedProduct, refuses=zero_apart_refuses)
def zero_point_apart(node: Apply, context: Context) -> Variable:
    """``(x - zero) w`` as ``x w - zero sum(w)``, whose sums are exact."""
    op: Any = node.op
    x, w, zero = node.inputs
    wide = cast(w, "int32")
    if op.is_conv:
        spatial = op.op.ndim
        sums = sum_(wide, axis=tuple(range(1, 2 + spatial)), acc_dtype="int32", dtype="int32")
        sums = dimshuffle(sums, ("x", 0, *("x",) * spatial))
    else:
        sums = sum_(wide, axis=-2, keepdims=True, acc_dtype="int32", dtype="int32")
        sums = pad_left(sums, node.outputs[0].type.ndim)
    return sub(replace(op, terms=())(x, w), mul(cast(zero, "int32"), sums))


@BACKEND.lowering("product_to_int8", None, Conv, Dot, BatchedDot, refuses=product_refuses)
def product_to_int8(node: Apply, context: Context) -> Variable:
    """A product of dequantised values becomes one of their 8-bit integers."""
    return product_of_codes(node)


@graph_rewrite("epilogue", tags=("epilogue", "onednn"), name="onednn_quantized_epilogue")
def onednn_quantized_epilogue(context: Context) -> None:
    """Quantised products take a bias, relu and the quantisation of their result."""
    if onednn_reason(context.target) is not None:
        return
    waiting = [n for n in context.fgraph.toposort() if isinstance(n.op, onednn.OneDnnQuantized)]
    while waiting:
        node = waiting.pop()
        low: Any = node.op
        found = longer_product(node, context, low.layout)
        if found is None:
            continue
        new = found[1]
        with inherit(node.origin, node.hints):
            if context.replace([found], "onednn_quantized_epilogue"):
                made = new.owner
                if made is not None and not isinstance(made.op, onednn.OneDnnQuantized):
                    made = made.inputs[0].owner
                waiting += [made] if made in context.fgraph.nodes else []


#: (name of the rewrite, oneDNN's op, neutral ops that are lowered to it, reasons against it)
ROWS: tuple[tuple[str, type[Any], tuple[type[Op], ...], Reasons], ...] = (
    ("conv_to_onednn", onednn.OneDnnConv, (Conv,), conv_refuses),
    ("conv_grad_input_to_onednn", onednn.OneDnnConvGradI, (ConvGradInput,), conv_refuses),
    ("conv_grad_weight_to_onednn", onednn.OneDnnConvGradW, (ConvGradWeight,), conv_refuses),
    ("pool_to_onednn", onednn.OneDnnPool, (Pool,), pool_refuses),
    ("pool_grad_to_onednn", onednn.OneDnnPoolGrad, (AveragePoolGrad, MaxPoolGrad),
           pool_refuses),
    ("dot_to_onednn", onednn.OneDnnMatmul, (Dot, BatchedDot), gemm_refuses),
    ("batch_norm_to_onednn", onednn.OneDnnBatchNorm, (BatchNormTrain,), batch_norm_refuses),
    ("batch_norm_inference_to_onednn", onednn.OneDnnBatchNormInference,
           (BatchNormInference,), batch_norm_refuses),
    ("batch_norm_grad_to_onednn", onednn.OneDnnBatchNormGrad, (BatchNormGrad,),
           batch_norm_refuses),
    ("layer_norm_to_onednn", onednn.OneDnnLayerNorm, (LayerNorm,), layer_norm_refuses),
    ("layer_norm_grad_to_onednn", onednn.OneDnnLayerNormGrad, (LayerNormGrad,),
           layer_norm_refuses),
    ("quantized_to_onednn", onednn.OneDnnQuantized, (QuantizedProduct,), quantized_refuses),
)  # fmt: skip
LOWERINGS = tuple(BACKEND.row(name, low, *ops, refuses=refuses) for name, low, ops, refuses in ROWS)

_notes_printed: set[str] = set()


@graph_rewrite("lower", tags=("onednn", "fast_compile"), name="tell_without_onednn")
def tell_without_onednn(context: Context) -> None:
    """Print once to stderr that NumPy's kernels run nodes that oneDNN would have run."""
    target = context.target
    note = next((n for n in target.notes if n.startswith("oneDNN")), "").partition("\n")[0]
    if target.kind != "cpu" or not note or note in _notes_printed:
        return
    known = {**target.libraries, "onednn": (3, 0, 0)}
    there = replace(context, target=replace(target, libraries=Libraries(known)))
    table = {op: low for low in LOWERINGS for op in low.ops}
    for node in context.fgraph.nodes:
        low = table.get(type(node.op))
        if low is not None and low.reason(node, there) is None:
            _notes_printed.add(note)
            print(f"symdnn: {note}. NumPy's kernels are used, which are slower", file=sys.stderr)
            return


def _plain_op_at(node: Apply) -> Chain | None:
    """The chain at a convolution or GEMM of oneDNN without an epilogue, in float32, or None."""
    op, dtype = node.op, node.outputs[0].type
    if not isinstance(op, EpilogueOp) or not op.is_plain:
        return None
    assert isinstance(dtype, TensorType)
    return chain_at(op, node) if dtype.dtype in op.rules.dtypes else None


@graph_rewrite("epilogue", tags=("epilogue", "onednn"), name="onednn_epilogue")
def onednn_epilogue(context: Context) -> None:
    """Convolutions and GEMMs take addends, biases and activations where that saves a kernel."""
    if onednn_reason(context.target) is None:
        fuse_epilogues(context, "onednn_epilogue", _plain_op_at)


ONEDNN = Library(
    BACKEND, LOWERINGS, (tell_without_onednn, moments_of_convolutions, onednn_epilogue,
     narrow_products_in_float32, onednn_quantized_epilogue,
     product_to_int8.rewrite(), zero_point_apart.rewrite()),
    detected_by="symdnn.cpu.onednn.library",
)  # fmt: skip
