"""Where epilogues of cuDNN's convolutions begin (:mod:`symdnn.opt.epilogue.epilogue`)."""

from __future__ import annotations

from dataclasses import replace

from symdnn.config import config
from symdnn.graph.variable import Apply
from symdnn.ops.vendor.gpudnn_conv import GpuDnnConv
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation
from symdnn.opt.epilogue.epilogue import Chain, chain_at, fuse_epilogues, without_factor
from symdnn.rewriting.rewrite import Context, graph_rewrite


def _convolution_at(node: Apply, context: Context) -> Chain | None:
    """The chain that starts at a convolution of cuDNN; it may add to a residual operand already."""
    op = node.op
    if type(op) is not GpuDnnConv or op.ndim not in (2, 3):
        return None
    if node.outputs[0].type.dtype not in GpuDnnConvBiasActivation.rules.dtypes:
        return None
    chain = chain_at(GpuDnnConvBiasActivation.of(op), node)
    if not chain.operands:
        return chain
    ((name, z),) = chain.operands
    z, factor = without_factor(z, context)
    made = op.ending(node.outputs[0].type.dtype, alpha=op.alpha, residual=op.beta * factor)
    assert made.epilogue is not None
    return replace(chain, epilogue=made.epilogue, operands=((name, z),))


@graph_rewrite("epilogue", tags=("epilogue", "cudnn", "conv_dnn"), name="conv_epilogue")
def conv_epilogue(context: Context) -> None:
    """Convolutions take addends, biases and activation functions where that saves a kernel."""
    if context.target.kind == "cuda" and str(config.gpu.epilogue) != "off":
        fuse_epilogues(context, "conv_epilogue", lambda node: _convolution_at(node, context))


RULES = (conv_epilogue,)
