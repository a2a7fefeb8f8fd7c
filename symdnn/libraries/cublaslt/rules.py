"""GEMMs to cuBLASLt's op, where it takes an epilogue.

A GEMM without an epilogue stays the neutral op, which cuBLASLt's kernel runs as well.
"""

from __future__ import annotations

from typing import Any

from symdnn.config import config
from symdnn.graph.target import Target
from symdnn.graph.type import OpaqueType
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cublaslt.bias_gradient import bias_gradients
from symdnn.libraries.cublaslt.factors import scale_parameters
from symdnn.libraries.cublaslt.joined import join_products
from symdnn.libraries.cublaslt.kept import keep_before_activations
from symdnn.ops.core.shape import Reshape, dimshuffle
from symdnn.ops.elementwise.arithmetic import Cast, cast
from symdnn.ops.elementwise.quantize import FLOAT8
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.quantized.product import QuantizedProduct
from symdnn.ops.vendor.gpublas import (
    FEWEST_SMALL_PRODUCTS,
    MOST_SMALL_SIDE,
    GpuGemm,
    GpuQuantizedGemm,
)
from symdnn.opt.epilogue.epilogue import Chain, chain_at, fuse_epilogues
from symdnn.opt.fuse.groups import widened
from symdnn.opt.lower.lowering import Backend, Library
from symdnn.opt.lower.quantized import codes_of_operands, product_of_codes, why_no_product
from symdnn.rewriting.facts import all_ones
from symdnn.rewriting.rewrite import Context, graph_rewrite, node_rewrite, reads


def _problem(target: Target) -> str | None:
    if target.kind != "cuda":
        return f"the target is {target}"
    return "gpu.epilogue=off" if str(config.gpu.epilogue) == "off" else None


_WIDE = ("float32", "float64")
BACKEND = Backend("cublaslt", "cuda", _problem, (None, "cublaslt"))


def _gemm_at(node: Apply) -> Chain | None:
    """The chain that starts at a GEMM of dtypes that cuBLASLt has; None for other nodes."""
    out = node.outputs[0]
    if isinstance(out.type, OpaqueType) or _is_small(node):
        return None
    if isinstance(node.op, Dot | BatchedDot):
        known = (*GpuGemm.rules.dtypes, *GpuGemm.rules.linear_dtypes)
        fits = out.type.ndim and out.type.dtype in known
        return chain_at(GpuGemm(node.op), node) if fits else None
    return chain_at(node.op, node) if isinstance(node.op, GpuGemm) else None


def _is_small(node: Apply) -> bool:
    """Whether an elementwise kernel computes a product, of many matrices of a few elements.

    A stack of an unknown size has many of them.
    """
    out = node.outputs[0].type
    if not isinstance(node.op, Dot | BatchedDot) or out.ndim < 2 or out.dtype not in _WIDE:
        return False
    many, *sizes = *out.shape, node.inputs[0].type.shape[-1]
    if isinstance(node.op, Dot):
        many = 0 if many is None else many // MOST_SMALL_SIDE
    few = all(n is not None and n <= MOST_SMALL_SIDE for n in sizes)
    return few and (many is None or many >= FEWEST_SMALL_PRODUCTS)


@graph_rewrite("lower", tags=("epilogue",), name="scaled_products")
def scaled_products(context: Context) -> None:
    """Factors of a product's columns are multiplied into its parameters."""
    if _problem(context.target) is None:
        scale_parameters(context, "scaled_products")


@node_rewrite(Cast, phase="layout", tags=("epilogue",), admits=reads(Reshape, at=0))
def widened_before_reshape(node: Apply, context: Context) -> Variable | None:
    """cast(reshape(product)) -> reshape(cast(product)), in which the product is made in float32."""
    if _problem(context.target) is not None or (narrow := widened(node.outputs[0])) is None:
        return None
    view = context.sole_maker(narrow)
    product = None if view is None else context.sole_maker(view.inputs[0])
    if view is None or product is None or not isinstance(product.op, Dot | BatchedDot):
        return None
    return view.op(node.op(view.inputs[0]), *view.inputs[1:])


@graph_rewrite("epilogue", tags=("epilogue",), name="gemm_epilogue")
def gemm_epilogue(context: Context) -> None:
    """GEMMs take scaling, addends, biases and activation functions where that saves traffic."""
    if _problem(context.target) is None:
        while fuse_epilogues(context, "gemm_epilogue", _gemm_at):
            pass


@graph_rewrite("epilogue", tags=("epilogue",), name="gemm_and_activation")
def gemm_and_activation(context: Context) -> None:
    """A GEMM and the activation function of its result, which is read elsewhere too, are one op."""
    if _problem(context.target) is None:
        keep_before_activations(context, _gemm_at, "gemm_and_activation")


@graph_rewrite("epilogue", tags=("epilogue",), name="gemm_bias_gradient")
def gemm_bias_gradient(context: Context) -> None:
    """A GEMM and the sum of its right operand over the rows become one op."""
    if _problem(context.target) is None:
        bias_gradients(context, _gemm_at)


@graph_rewrite("epilogue", tags=("epilogue",), name="joined_products")
def joined_products(context: Context) -> None:
    """GEMMs that differ only in parameters become one GEMM of the joined parameters.

    It is behind :func:`gemm_epilogue`, so that those with equal epilogues are joined with them.
    """
    if _problem(context.target) is None:
        join_products(context, "joined_products")


def product_refuses(node: Apply, context: Context) -> str | None:
    """A product of dequantised int8 or float8 matrices, whose sizes tensor cores take."""
    if (reason := why_no_product(node)) is not None:
        return reason
    x, w = codes_of_operands(node)
    if x.codes.type.ndim < 2 or w.codes.type.ndim != x.codes.type.ndim:
        return "a product with a vector is bound by memory"
    sizes = w.codes.type.shape[-2:]
    if any(d is None or d % 16 for d in sizes):
        return f"tensor cores take known multiples of 16 in 8 bits, not {sizes}"
    capability = context.target.compute_capability or (0, 0)
    if x.kind not in FLOAT8:
        dtypes = {c.codes.type.dtype for c in (x, w)}
        known = dtypes == {"int8"} and capability >= (8, 0)
        return None if known else f"tensor cores multiply int8, not {', '.join(sorted(dtypes))}"
    if not (all_ones(x.scale) and all_ones(w.scale)):
        return "float8 has one scale for each operand"
    if capability < (8, 9):
        return f"sm_{capability[0]}{capability[1]} has no tensor cores for float8"
    return "cuBLASLt has no product of two e5m2" if x.kind == w.kind == "float8_e5m2" else None


@BACKEND.lowering("product_to_8_bits", None, Dot, BatchedDot, refuses=product_refuses)
def product_to_8_bits(node: Apply, context: Context) -> Variable:
    """A product of dequantised values becomes one of their 8-bit codes."""
    made = product_of_codes(node).owner
    assert made is not None, "it is a product"
    op: Any = made.op
    x, w = made.inputs[:2]
    given = dict(zip(op.terms, made.inputs[2:], strict=True))
    *lead, row, column = range(w.type.ndim)
    across = dimshuffle(w, (*lead, column, row))
    if op.is_float8:
        return GpuQuantizedGemm(op)(x, across, given["x_scale"], given["w_scale"])
    sums = GpuQuantizedGemm(QuantizedProduct(node.op))(x, across)
    if "x_zero" in given:
        # The sums of w depend on parameters alone, and are kept.
        of_w = cast(w, "int32").sum(w.type.ndim - 2, keepdims=True, dtype="int32")
        sums = sums - given["x_zero"] * of_w
    real = cast(sums, "float32") * (given["x_scale"] * given["w_scale"])
    return cast(real, op.out)


CUBLASLT = Library(
    BACKEND,
    own_rules=(
        scaled_products,
        widened_before_reshape,
        gemm_epilogue,
        gemm_and_activation,
        gemm_bias_gradient,
        joined_products,
        product_to_8_bits.rewrite(),
    ),
)
