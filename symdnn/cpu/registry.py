"""All kernels that are generated and compiled, entered into the table."""

from __future__ import annotations

from symdnn.cpu import prefer_generated
from symdnn.cpu.conv import conv_moments, depthwise, winograd, winograd_grad
from symdnn.cpu.elementwise import copies, elementwise, random_draws, scatter
from symdnn.cpu.pool import lrn, pool, pool_nhwc
from symdnn.cpu.reduce import batch_norm, reduce, softmax_inner_axis, softmax_last_axis
from symdnn.cpu.rnn import recurrent

__all__ = ["register"]


def register() -> None:
    """Enter the kernels, after oneDNN's and before NumPy's: order is preference."""
    elementwise.register()
    pool.register()
    reduce.register()
    batch_norm.register()
    softmax_last_axis.register()
    softmax_inner_axis.register()
    scatter.register()
    random_draws.register()
    copies.register()
    prefer_generated.register()
    pool_nhwc.register()
    winograd.register()
    winograd_grad.register()
    recurrent.register()
    depthwise.register()
    lrn.register()
    conv_moments.register()
