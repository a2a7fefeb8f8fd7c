"""All kernels that are generated and compiled, entered into the table."""

from __future__ import annotations

from symdnn.cpu import (
    bands,
    batch_norm,
    conv_moments,
    depthwise,
    draw,
    elementwise,
    lrn,
    moves,
    plain,
    pool,
    pool_last,
    recurrent,
    reduce,
    rows,
    scatter,
    winograd,
    winograd_grad,
)

__all__ = ["register"]


def register() -> None:
    """Enter the kernels, after oneDNN's and before NumPy's: order is preference."""
    elementwise.register()
    pool.register()
    reduce.register()
    batch_norm.register()
    rows.register()
    bands.register()
    scatter.register()
    draw.register()
    moves.register()
    plain.register()
    pool_last.register()
    winograd.register()
    winograd_grad.register()
    recurrent.register()
    depthwise.register()
    lrn.register()
    conv_moments.register()
