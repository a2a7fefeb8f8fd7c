"""Pooling, padding, resizing and sampling, as functions."""

from __future__ import annotations

from typing import Any

from symdnn.errors import InputError, NdimMismatch, OptionError
from symdnn.graph.dims import dim_max, product
from symdnn.graph.names.torch_words import advises
from symdnn.graph.typing import PerAxis, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.nn.functional.by_size import adaptive_by_size, pool_by_size
from symdnn.nn.functional.of_layers import function_of
from symdnn.nn.layers import fractional, pool_places, torch_layers, torch_names, windows
from symdnn.nn.layers import upsample as resizing
from symdnn.ops.array.create import arange, meshgrid
from symdnn.ops.array.getitem import getitem
from symdnn.ops.array.join import stack
from symdnn.ops.array.pad import pad as numpy_pad
from symdnn.ops.array.view import of_sizes
from symdnn.ops.core.shape import dims_of, shape_entries
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import eq, switch
from symdnn.ops.elemwise import like
from symdnn.ops.linalg.dot import dot
from symdnn.ops.written_out.points import sampled
from symdnn.options import as_int, as_list

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "affine_grid", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "channel_shuffle", "fold", "fractional_max_pool2d",
    "fractional_max_pool3d", "grid_sample", "interpolate", "lp_pool1d",
    "lp_pool2d", "lp_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "max_unpool1d",
    "max_unpool2d", "max_unpool3d", "pad", "pixel_shuffle", "pixel_unshuffle", "unfold", "upsample",
]  # fmt: skip

adaptive_avg_pool1d = adaptive_by_size(
    function_of("adaptive_avg_pool1d", torch_names.AdaptiveAvgPool1d), 1
)
adaptive_avg_pool2d = adaptive_by_size(
    function_of("adaptive_avg_pool2d", torch_names.AdaptiveAvgPool2d), 2
)
adaptive_avg_pool3d = adaptive_by_size(
    function_of("adaptive_avg_pool3d", torch_names.AdaptiveAvgPool3d), 3
)
adaptive_max_pool1d = function_of("adaptive_max_pool1d", torch_names.AdaptiveMaxPool1d)
adaptive_max_pool2d = function_of("adaptive_max_pool2d", torch_names.AdaptiveMaxPool2d)
adaptive_max_pool3d = function_of("adaptive_max_pool3d", torch_names.AdaptiveMaxPool3d)
avg_pool1d = pool_by_size(function_of("avg_pool1d", torch_names.AvgPool1d), 1, True)
avg_pool2d = pool_by_size(function_of("avg_pool2d", torch_names.AvgPool2d), 2, True)
avg_pool3d = pool_by_size(function_of("avg_pool3d", torch_names.AvgPool3d), 3, True)
channel_shuffle = function_of("channel_shuffle", torch_layers.ChannelShuffle)
fractional_max_pool2d = function_of("fractional_max_pool2d", fractional.FractionalMaxPool2d)
fractional_max_pool3d = function_of("fractional_max_pool3d", fractional.FractionalMaxPool3d)
lp_pool1d = function_of("lp_pool1d", windows.LPPool1d)
lp_pool2d = function_of("lp_pool2d", windows.LPPool2d)
lp_pool3d = function_of("lp_pool3d", windows.LPPool3d)
pixel_shuffle = function_of("pixel_shuffle", torch_layers.PixelShuffle)
pixel_unshuffle = function_of("pixel_unshuffle", torch_layers.PixelUnshuffle)
unfold = function_of("unfold", windows.Unfold)
fold = function_of("fold", windows.Fold)
interpolate = function_of("interpolate", resizing.Upsample)
upsample = interpolate

_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
max_pool1d = pool_by_size(function_of("max_pool1d", torch_names.MaxPool1d, order=_POOL), 1, False)
max_pool2d = pool_by_size(function_of("max_pool2d", torch_names.MaxPool2d, order=_POOL), 2, False)
max_pool3d = pool_by_size(function_of("max_pool3d", torch_names.MaxPool3d, order=_POOL), 3, False)


def _unpooled(layer: Any, input: TensorLike, indices: TensorLike, output_size: PerAxis) -> Variable:
    made: Variable = layer(input, indices, output_size=output_size)
    return made


@advises()
def max_unpool1d(
    input: TensorLike, indices: TensorLike, kernel_size: PerAxis, stride: PerAxis | None = None,
    padding: PerAxis = 0, output_size: Any = None,
) -> Variable:  # fmt: skip
    """``nn.MaxUnpool1d`` as a function."""
    layer = pool_places.MaxUnpool1d(kernel_size, stride, padding)
    return _unpooled(layer, input, indices, output_size)


@advises()
def max_unpool2d(
    input: TensorLike, indices: TensorLike, kernel_size: PerAxis, stride: PerAxis | None = None,
    padding: PerAxis = 0, output_size: Any = None,
) -> Variable:  # fmt: skip
    """``nn.MaxUnpool2d`` as a function."""
    layer = pool_places.MaxUnpool2d(kernel_size, stride, padding)
    return _unpooled(layer, input, indices, output_size)


@advises()
def max_unpool3d(
    input: TensorLike, indices: TensorLike, kernel_size: PerAxis, stride: PerAxis | None = None,
    padding: PerAxis = 0, output_size: Any = None,
) -> Variable:  # fmt: skip
    """``nn.MaxUnpool3d`` as a function."""
    layer = pool_places.MaxUnpool3d(kernel_size, stride, padding)
    return _unpooled(layer, input, indices, output_size)


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@advises()
def pad(
    input: TensorLike, pad: Any, mode: str = "constant", value: float | None = None
) -> Variable:
    """``x`` with elements around it: ``pad`` is (left, right[, top, bottom[, front, back]]).

    The pairs begin at the last axis; negative entries crop. ``mode`` is "constant" (``value``, 0),
    "reflect", "replicate" or "circular".
    """
    v, widths = as_variable(input), as_list("pad: pad", pad, "sizes, (left, right, ...)")
    widths = [w if isinstance(w, Variable) else as_int("pad: a size", w) for w in widths]
    if mode not in _MODES:
        raise OptionError(f"pad: mode={mode!r}: wanted one of {', '.join(_MODES)}")
    if len(widths) % 2 or len(widths) > 2 * v.type.ndim:
        raise InputError(f"pad: wanted pairs for at most {v.type.ndim} axes, got {widths}")
    pairs = list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (v.type.ndim - len(pairs)) + pairs
    if any(isinstance(w, Variable) or w < 0 for pair in pairs for w in pair):
        v = getitem(v, tuple(_inside(n, *pair) for n, pair in zip(dims_of(v), pairs, strict=True)))
        pairs = [(dim_max(0, a), dim_max(0, b)) for a, b in pairs]
    if mode == "constant":
        return numpy_pad(v, pairs, constant_values=0 if value is None else value)
    return numpy_pad(v, pairs, mode=_MODES[mode])


def _inside(n: Any, before: Any, after: Any) -> slice:
    """What negative widths leave of ``n`` elements."""
    if not isinstance(before, Variable) and not isinstance(after, Variable):
        return slice(max(0, -before), after if after < 0 else None)
    return slice(dim_max(0, -1 * before), n - dim_max(0, -1 * after))


_SAMPLING = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}


@advises()
def affine_grid(theta: TensorLike, size: Any, align_corners: bool | None = None) -> Variable:
    """The points (N, H, W, 2) that matrices (N, 2, 3) map those of ``size`` (N, C, H, W) to.

    Also (N, D, H, W, 3) of (N, 3, 4). Coordinates are x first, from -1 to 1.
    """
    matrices, sizes = as_variable(theta), shape_entries(size)[2:]
    if matrices.type.ndim != 3 or len(sizes) not in (2, 3):
        raise NdimMismatch("affine_grid", "matrices (N, 2, 3) or (N, 3, 4)", matrices.type)
    lines = [_line(n, bool(align_corners)) for n in sizes]
    mesh = meshgrid(*lines, indexing="ij")[::-1]
    points = stack([*mesh, mesh[0].ones_like()], axis=-1).reshape((-1, len(sizes) + 1))
    flat = dot(cast(points, matrices.type.dtype), matrices.dimshuffle(0, 2, 1))
    return flat.dimshuffle(1, 0, 2).reshape((dims_of(matrices)[0], *sizes, len(sizes)))


def _line(n: int | Variable, align_corners: bool) -> Variable:
    """``n`` points from -1 to 1, which are the outer edges, or the first and last of them."""
    number = cast(arange(n), "float64")
    if not align_corners:
        return (2 * number + 1) / n - 1
    one = eq(n, 1)
    return switch(one, 0, 2 * number / switch(one, 1, as_variable(n) - 1) - 1)


@advises()
def grid_sample(
    input: TensorLike, grid: TensorLike, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Variable:  # fmt: skip
    """The images (N, C, H, W) at the points ``grid`` (N, H', W', 2), x first, from -1 to 1.

    ``mode`` is "bilinear", "nearest" or "bicubic"; ``padding_mode`` "zeros", "border" or
    "reflection". Without ``align_corners`` -1 and 1 are the outer edges of the image.
    """
    x, g = as_variable(input), as_variable(grid)
    n = x.type.ndim - 2
    if n not in (2, 3) or g.type.ndim != n + 2:
        wanted = "images (N, C, H, W) and points (N, H', W', 2), or volumes and (..., 3)"
        raise NdimMismatch("grid_sample", wanted, [x.type, g.type])
    if mode not in _SAMPLING:
        raise OptionError(f"grid_sample: mode={mode!r}: wanted one of {', '.join(_SAMPLING)}")
    g = of_sizes(g, [dims_of(x)[0], *dims_of(g)[1:-1], n], "grid_sample: the grid")
    batch, *out, _ = dims_of(g)
    points = g.reshape((batch, product(out), n))
    coordinates = []
    for i, size in enumerate(dims_of(x)[2:]):
        at = points[:, :, n - 1 - i]
        d = cast(size, at.type.dtype) if isinstance(size, Variable) else like(size, at)
        one, half = like(1, at), like(0.5, at)
        wide = (at + one) * half
        coordinates.append(wide * (d - one) if align_corners else ((at + one) * d - one) * half)
    y = sampled(x, coordinates, _SAMPLING[mode], padding_mode, bool(align_corners))
    return y.reshape((*dims_of(x)[:2], *out))
