"""Bilinear upsampling, as a transposed convolution with a triangular kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.operators import operator
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.conv_builders import conv2d_grad_wrt_inputs
from symdnn.ops.conv_words import float_operands, with_sizes
from symdnn.ops.shape import dims_of

__all__ = ["bilinear_kernel_1D", "bilinear_kernel_2D", "bilinear_upsampling"]


def _triangle(ratio: int, normalize: bool) -> Any:
    rising = np.arange(1, ratio + 1, dtype=np.float64)
    kernel = np.concatenate([rising, rising[-2::-1]])
    return kernel / ratio if normalize else kernel


def bilinear_kernel_1D(ratio: int, normalize: bool = True) -> Variable:
    """The triangle 1, 2, ..., ratio, ..., 2, 1 (divided by ``ratio``), as a ``floatX`` vector."""
    return operator("cast")(as_variable(_triangle(ratio, normalize)), "floatX")  # type: ignore[no-any-return]


def bilinear_kernel_2D(ratio: int, normalize: bool = True) -> Variable:
    """The outer product of two of :func:`bilinear_kernel_1D`, as a ``floatX`` matrix."""
    side = _triangle(ratio, normalize)
    return operator("cast")(as_variable(np.outer(side, side)), "floatX")  # type: ignore[no-any-return]


def bilinear_upsampling(
    input: Any, ratio: int | None = None, frac_ratio: Any = None, batch_size: int | None = None,
    num_input_channels: int | None = None, use_1D_kernel: bool = True,
) -> Variable:  # fmt: skip
    """Images (batch, channels, rows, columns) made ``ratio`` times larger by linear interpolation.

    The pixel ``i`` of the result is at ``(i - (ratio - 1) // 2) / ratio`` of the input's, whose
    edges are continued. ``use_1D_kernel`` interpolates rows and columns one after the other (the
    same values, less work). Theano's ``frac_ratio`` is refused.
    """
    if frac_ratio is not None or not isinstance(ratio, int | np.integer) or ratio < 1:
        raise TypeMismatch(
            "bilinear_upsampling",
            "a whole ratio >= 1",
            f"ratio={ratio!r}, frac_ratio={frac_ratio!r}",
        )
    (x,) = float_operands("bilinear_upsampling", 2, input)
    x = with_sizes("bilinear_upsampling", x, (batch_size, num_input_channels, None, None))
    if ratio == 1:
        return x
    n, c, rows, cols = dims_of(x)
    out = rows * ratio, cols * ratio
    planes = _continued(x.reshape([n * c, 1, rows, cols]))
    side = _triangle(int(ratio), True).astype(x.type.numpy)
    if use_1D_kernel:
        planes = _stretch(planes, side[:, None], (out[0], cols + 2), (int(ratio), 1))
        planes = _stretch(planes, side[None, :], out, (1, int(ratio)))
    else:
        planes = _stretch(planes, np.outer(side, side), out, (int(ratio), int(ratio)))
    return planes.reshape([n, c, *out])


def _continued(planes: Variable) -> Variable:
    """Planes with their outermost rows and columns doubled."""
    join = operator("join")
    planes = join(2, planes[:, :, :1], planes, planes[:, :, -1:])
    return join(3, planes[:, :, :, :1], planes, planes[:, :, :, -1:])  # type: ignore[no-any-return]


def _stretch(
    planes: Variable, kernel: Any, out: tuple[Dim, Dim], ratio: tuple[int, int]
) -> Variable:
    """Transposed convolution that drops what lies before the first and after the last pixel."""
    pads = [0 if r == 1 else 2 * r - (r - 1) // 2 - 1 for r in ratio]
    return conv2d_grad_wrt_inputs(
        planes, kernel[None, None], (None, 1, *out), border_mode=pads, subsample=ratio
    )
