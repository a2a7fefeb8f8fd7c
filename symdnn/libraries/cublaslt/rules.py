"""GEMMs to cuBLASLt's op, where it takes an epilogue.

A GEMM without an epilogue stays the neutral op, which cuBLASLt's kernel runs as well.
"""

from __future__ import annotations

from symdnn.config import config
from symdnn.graph.target import Target
from symdnn.graph.type import OpaqueType
from symdnn.graph.variable import Apply
from symdnn.libraries.cublaslt.bias_gradient import bias_gradients
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.vendor.gpublas import GpuGemm
from symdnn.opt.epilogue.epilogue import Chain, chain_at, fuse_epilogues
from symdnn.opt.lower.lowering import Backend, Library
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["CUBLASLT"]


def _problem(target: Target) -> str | None:
    if target.kind != "cuda":
        return f"the target is {target}"
    return "gpu.epilogue=off" if str(config.gpu.epilogue) == "off" else None


BACKEND = Backend("cublaslt", "cuda", _problem, (None, "cublaslt"))


def _gemm_at(node: Apply) -> Chain | None:
    """The chain that starts at a GEMM of dtypes that cuBLASLt has; None for other nodes."""
    out = node.outputs[0]
    if isinstance(out.type, OpaqueType):
        return None
    if isinstance(node.op, Dot | BatchedDot):
        known = (*GpuGemm.rules.dtypes, *GpuGemm.rules.linear_dtypes)
        fits = out.type.ndim and out.type.dtype in known
        return chain_at(GpuGemm(node.op), node) if fits else None
    return chain_at(node.op, node) if isinstance(node.op, GpuGemm) else None


@graph_rewrite("epilogue", tags=("epilogue",), name="gemm_epilogue")
def gemm_epilogue(context: Context) -> None:
    """GEMMs take scaling, addends, biases and activation functions where that saves traffic."""
    if _problem(context.target) is None:
        while fuse_epilogues(context, "gemm_epilogue", _gemm_at):
            pass


@graph_rewrite("epilogue", tags=("epilogue",), name="gemm_bias_gradient")
def gemm_bias_gradient(context: Context) -> None:
    """A GEMM and the sum of its right operand over the rows become one op."""
    if _problem(context.target) is None:
        bias_gradients(context, _gemm_at)


CUBLASLT = Library(BACKEND, own_rules=(gemm_epilogue, gemm_bias_gradient))
