"""Convolutions that take in what follows them: an addend, a bias of the channels, an activation.

cuDNN does it before it writes the result. As with products
(:mod:`symdnn.opt.epilogue.epilogue_gemm`), it is worth it where the elementwise kernel that would
do it goes away. Which kernel then runs it, and whether that is one or two, is chosen when the
shapes are known.

What mixed precision computes in float32 behind a convolution of 16 bits and rounds once, cuDNN does
too; a bias is rounded to 16 bits for it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.elementwise.arithmetic import Add, Cast, Sub, cast
from symdnn.ops.vendor.gpudnn_conv import GpuDnnConv
from symdnn.ops.vendor.gpudnn_epilogue import CONV_ACTIVATIONS, GpuDnnConvBiasActivation
from symdnn.opt.epilogue.epilogue_chain import Chain, is_channel_bias, take_in, with_activation
from symdnn.opt.epilogue.epilogue_gemm import behind_factor, epilogues_wanted, same_type
from symdnn.opt.fuse.fuse import widened
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES"]

_DTYPES = ("float16", "bfloat16", "float32")


def _start(node: Apply, context: Context) -> Chain | None:
    """A convolution as it is; one that adds to an operand already keeps that."""
    op, out = node.op, node.outputs[0]
    if type(op) is not GpuDnnConv or op.ndim not in (2, 3) or out.type.dtype not in _DTYPES:
        return None
    given = {f.name: getattr(op, f.name) for f in fields(op)}
    made = GpuDnnConvBiasActivation(**{**given, "beta": 0.0})
    start = Chain(made, (node.inputs[0], node.inputs[1]), out)
    if op.output_index is None:
        return start
    z, factor = behind_factor(node.inputs[op.output_index], context)
    return replace(start, op=replace(made, residual=op.beta * factor), z=z)


def _taken(chain: Chain, user: Apply, context: Context) -> Chain | None:
    """The chain with its one reader taken in; None where that can't be."""
    out = user.outputs[0]
    if isinstance(user.op, Cast):
        return _cast(chain, out)
    if chain.op.activation or not same_type(out, chain.value):
        return None
    if isinstance(user.op, Add | Sub):
        return _added(chain, user, context)
    return with_activation(chain, user, CONV_ACTIVATIONS)


def _cast(chain: Chain, out: Variable) -> Chain | None:
    """What follows is computed in float32 and rounded at the end: so does cuDNN by itself."""
    own, now, then = chain.op_dtype, chain.value.type.dtype, out.type.dtype
    wide = now == own and is_narrow_float(own) and then == "float32"
    return replace(chain, value=out) if wide or (now == "float32" and then == own) else None


def _added(chain: Chain, user: Apply, context: Context) -> Chain | None:
    a, b = user.inputs
    out = user.outputs[0]
    if a is b or (isinstance(user.op, Sub) and a is not chain.value):
        return None
    other = b if a is chain.value else a
    if is_channel_bias(other, chain.op.channel_axis, out):
        if chain.bias is not None or isinstance(user.op, Sub):
            return None
        bias = cast(other, chain.op_dtype) if widened(other) is None else widened(other)
        return replace(chain, op=replace(chain.op, bias=True), bias=bias, value=out)
    if chain.z is not None or isinstance(other, Constant) or not same_type(other, out):
        return None
    narrow = other if out.type.dtype == chain.op_dtype else widened(other)
    if narrow is None:
        return None
    z, factor = behind_factor(narrow, context)
    factor = -factor if isinstance(user.op, Sub) else factor
    return replace(chain, op=replace(chain.op, residual=factor), z=z, value=out)


@graph_rewrite("epilogue", tags=("epilogue", "cudnn", "conv_dnn"), name="conv_epilogue")
def conv_epilogue(context: Context) -> None:
    """Convolutions take in addends, biases and activations where that saves a kernel."""
    if not epilogues_wanted(context):
        return
    take_in(
        context,
        "conv_epilogue",
        lambda node: _start(node, context),
        lambda chain, user: _taken(chain, user, context),
    )


RULES: tuple[Any, ...] = (conv_epilogue,)
