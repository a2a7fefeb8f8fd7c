"""Spatial transformer: a sampling grid from affine matrices, and bilinear sampling.

Jaderberg et al. 2015, with cuDNN's meaning (``cudnnSpatialTfGridGeneratorForward``,
``cudnnSpatialTfSamplerForward``): coordinates run from -1 to 1 between the centres of the first
and the last pixel, x first, and the image is 0 outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.backprop import backprop, forward_sweep, zeros_for
from symdnn.graph.dims import Dim, Shape, ceil_div, same_dim
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array, DtypeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.composed import vjp_of_expressions, written_out
from symdnn.ops.core.dtype import widened
from symdnn.ops.core.lanes import on_folded
from symdnn.ops.core.shape import as_dim, dims_of, static_dim
from symdnn.ops.written_out.sampler import sampled
from symdnn.options import as_list


def pixel_coordinates(size: int, dtype: DtypeLike) -> Array:
    """``size`` points from -1 to 1; the centre, 0, for a single one."""
    return np.linspace(-1, 1, size, dtype=dtype) if size > 1 else np.zeros(size, dtype)


def homogeneous(height: int, width: int, dtype: DtypeLike) -> Array:
    """The target points (x, y, 1): an array (H, W, 3)."""
    x, y = pixel_coordinates(width, dtype), pixel_coordinates(height, dtype)
    out = np.ones((height, width, 3), dtype)
    out[..., 0], out[..., 1] = x[None, :], y[:, None]
    return out


def need(op: Op | str, t: TensorType, ndim: int, what: str, last: Sequence[int] = ()) -> None:
    """Raise :class:`TypeMismatch` unless ``t`` is a float tensor with these last sizes."""
    ok = isinstance(t, TensorType) and t.is_float and t.ndim == ndim
    sizes = t.shape[ndim - len(last) :] if ok else ()
    if not ok or any(d not in (None, n) for d, n in zip(sizes, last, strict=True)):
        raise TypeMismatch(op, what, t)


@dataclass(frozen=True)
class TransformerGrid(Op):
    """The grid (N, H, W, 2) of source points (x, y) for matrices theta (N, 2, 3).

    Inputs: theta, H, W (int64 scalars, read on the host).
    ``grid[n, i, j] = theta[n] (x_j, y_i, 1)``.
    """

    host_inputs: ClassVar[tuple[int, ...]] = (1, 2)
    linear_in_first: ClassVar[bool] = True
    static: tuple[int | None, int | None]

    def infer(self, theta: TensorType, height: TensorType, width: TensorType) -> TensorType:
        need(self, theta, 3, "matrices theta of shape (N, 2, 3)", (2, 3))
        return theta.with_shape((theta.shape[0], *self.static, 2))

    def reference(self, theta: Array, height: Array, width: Array) -> Array:
        (t,) = widened(theta)
        points = homogeneous(int(height), int(width), t.dtype)
        grid = np.tensordot(t, points, axes=(2, 2))  # (N, 2, H, W)
        return np.moveaxis(grid, 1, 3).astype(theta.dtype)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        n, rows, columns = shapes[0]
        for got, size in ((rows, 2), (columns, 3)):
            same_dim(self, (size, got), "matrices theta of shape (N, 2, 3)", tuple(shapes[0]))
        return [(n, host[1], host[2], 2)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [TransformerGridGrad()(cotangents[0]), None, None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [0, None, None], [0])


@dataclass(frozen=True)
class TransformerGridGrad(Op):
    """The gradient of theta (N, 2, 3) from that of the grid (N, H, W, 2)."""

    def infer(self, dgrid: TensorType) -> TensorType:
        need(self, dgrid, 4, "the gradient of a grid, (N, H, W, 2)", (2,))
        return dgrid.with_shape((dgrid.shape[0], 2, 3))

    def reference(self, dgrid: Array) -> Array:
        (d,) = widened(dgrid)
        points = homogeneous(d.shape[1], d.shape[2], d.dtype)
        return np.tensordot(d, points, axes=((1, 2), (0, 1))).astype(dgrid.dtype)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [(shapes[0][0], 2, 3)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        _, height, width, _ = dims_of(inputs[0])
        return [transformer_grid(cotangents[0], (height, width))]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [0], [0])


class Corners:
    """The four pixels around each grid point, and its position between them."""

    def __init__(self, image: Array, grid: Array) -> None:
        self.image = image
        height, width = image.shape[2:]
        self.scale = np.array([(width - 1) / 2, (height - 1) / 2], grid.dtype)
        self.place = (grid + 1) * self.scale
        self.floor = np.floor(self.place)
        self.part = self.place - self.floor
        self.batch = np.arange(image.shape[0])[:, None, None]

    def each(self) -> Any:
        """(right?, below?, rows, columns, inside) of each corner."""
        height, width = self.image.shape[2:]
        limit = float(max(height, width) + 2)
        for below in (0, 1):
            for right in (0, 1):
                # A huge or NaN coordinate must not overflow when it is cast to an integer.
                spot = np.nan_to_num(np.clip(self.floor, -limit, limit), nan=-limit)
                column = spot[..., 0].astype(np.int64) + right
                row = spot[..., 1].astype(np.int64) + below
                inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
                yield right, below, np.where(inside, row, 0), np.where(inside, column, 0), inside

    def weights(self, right: int, below: int) -> tuple[Array, ...]:
        """Horizontal and vertical weight of a corner."""
        x, y = self.part[..., 0], self.part[..., 1]
        return (x if right else 1 - x), (y if below else 1 - y)

    def pixel(self, row: Array, column: Array, inside: Array) -> Array:
        """Pixels (N, H, W, C), 0 outside of the image."""
        found = self.image[self.batch, :, row, column]
        return np.where(inside[..., None], found, self.image.dtype.type(0))


@dataclass(frozen=True)
class TransformerSampler(Op):
    """The image (N, C, H, W) sampled at a grid (N, H', W', 2), bilinearly: (N, C, H', W')."""

    def infer(self, image: TensorType, grid: TensorType) -> TensorType:
        check_sampler(self, image, grid)
        n = image.shape[0] if image.shape[0] is not None else grid.shape[0]
        return image.with_shape((n, image.shape[1], grid.shape[1], grid.shape[2]))

    def reference(self, image: Array, grid: Array) -> Array:
        v, g = widened(image, grid)
        corners = Corners(v, g)
        out = np.zeros((*g.shape[:3], v.shape[1]), v.dtype)
        for right, below, row, column, inside in corners.each():
            a, b = corners.weights(right, below)
            out += corners.pixel(row, column, inside) * np.where(inside, a * b, 0)[..., None]
        return np.moveaxis(out, 3, 1).astype(image.dtype)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [sampled_shape(self, shapes[0], shapes[1])]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return list(TransformerSamplerGrad()(*inputs, cotangents[0]))

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        image, grid = inputs
        dimage, dgrid = zeros_for(inputs, tangents)
        return [self(dimage, grid) + TransformerSamplerTangent()(image, grid, dgrid)]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [0, 0], [0])


def check_sampler(op: Op, image: TensorType, grid: TensorType) -> None:
    """Raise unless these are an image (N, C, H, W) and a grid (N, H', W', 2) of one dtype."""
    need(op, image, 4, "an image (N, C, H, W)")
    need(op, grid, 4, "a grid (N, H, W, 2)", (2,))
    if image.dtype != grid.dtype:
        raise TypeMismatch(op, "an image and a grid of one dtype", [image, grid])


def sampled_shape(op: Op, image: Shape, grid: Shape) -> Shape:
    """The shape of the sampled image."""
    n = same_dim(op, (image[0], grid[0]), "one grid for each image", [tuple(image), tuple(grid)])
    return (n, image[1], grid[1], grid[2])


@dataclass(frozen=True)
class TransformerSamplerGrad(MultiOp):
    """(dimage, dgrid) of a sampler from image, grid and dy (``cudnnSpatialTfSamplerBackward``)."""

    def infer(self, image: TensorType, grid: TensorType, dy: TensorType) -> tuple[Type, ...]:
        check_sampler(self, image, grid)
        need(self, dy, 4, "a cotangent (N, C, H, W)")
        return image, grid

    def reference(self, image: Array, grid: Array, dy: Array) -> tuple[Array, ...]:
        v, g, d = widened(image, grid, np.moveaxis(dy, 1, 3))
        corners = Corners(v, g)
        dimage = np.zeros((v.shape[0], *v.shape[2:], v.shape[1]), v.dtype)
        dplace = np.zeros_like(g)
        for right, below, row, column, inside in corners.each():
            a, b = corners.weights(right, below)
            weight = np.where(inside, a * b, 0)[..., None]
            np.add.at(dimage, (corners.batch, row, column), d * weight)
            along = (corners.pixel(row, column, inside) * d).sum(3)
            dplace[..., 0] += along * b * (1 if right else -1)
            dplace[..., 1] += along * a * (1 if below else -1)
        dgrid = dplace * corners.scale
        return np.moveaxis(dimage, 3, 1).astype(image.dtype), dgrid.astype(grid.dtype)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        image, grid, dy = shapes
        for d, n in zip(sampled_shape(self, image, grid), dy, strict=True):
            same_dim(self, (d, n), "a cotangent of the sampled image", [tuple(s) for s in shapes])
        return [tuple(image), tuple(grid)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        with written_out(self, "gathers"):
            return vjp_of_expressions(_gradients, inputs, cotangents)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [0, 0, 0], [0, 0])


@dataclass(frozen=True)
class TransformerSamplerTangent(Op):
    """The tangent of the sampled image for a tangent of the grid (forward mode)."""

    def infer(self, image: TensorType, grid: TensorType, dgrid: TensorType) -> TensorType:
        check_sampler(self, image, dgrid)
        return TransformerSampler().infer(image, grid)

    def reference(self, image: Array, grid: Array, dgrid: Array) -> Array:
        v, g, d = widened(image, grid, dgrid)
        corners = Corners(v, g)
        moved = d * corners.scale
        out = np.zeros((*g.shape[:3], v.shape[1]), v.dtype)
        for right, below, row, column, inside in corners.each():
            a, b = corners.weights(right, below)
            slope = moved[..., 0] * b * (1 if right else -1) + moved[..., 1] * a * (
                1 if below else -1
            )
            out += corners.pixel(row, column, inside) * slope[..., None]
        return np.moveaxis(out, 3, 1).astype(image.dtype)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [sampled_shape(self, shapes[0], shapes[1])]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        with written_out(self, "gathers"):
            return vjp_of_expressions(_tangents, inputs, cotangents)

    def written_out(self, image: Variable, grid: Variable, dgrid: Variable) -> Variable:
        """This op as an expression in simpler ops."""
        return _tangents(image, grid, dgrid)[0]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [0, 0, 0], [0])


def _gradients(image: Variable, grid: Variable, dy: Variable) -> list[Variable]:
    """Both outputs of :class:`TransformerSamplerGrad`."""
    found = backprop({sampled(image, grid): dy}, [image, grid])
    return [v.zeros_like() if g is None else g for v, g in zip((image, grid), found)]


def _tangents(image: Variable, grid: Variable, dgrid: Variable) -> list[Variable]:
    """The output of :class:`TransformerSamplerTangent`."""
    y = sampled(image, grid)
    (found,) = forward_sweep({grid: dgrid}, [y])
    return [y.zeros_like() if found is None else found]


def transformer_grid(theta: TensorLike, size: Sequence[Dim]) -> Variable:
    """The sampling grid (N, H, W, 2) of matrices theta (N, 2, 3) for an output of ``size``."""
    sizes = as_list("transformer_grid: size", size, "a height and a width")
    if len(sizes) != 2:
        raise OptionError(f"transformer_grid: size={size!r:.60}; wanted a height and a width")
    height, width = map(as_dim, sizes)
    op = TransformerGrid((static_dim(height), static_dim(width)))
    return op(theta, height, width)


def transformer_sampler(image: TensorLike, grid: TensorLike) -> Variable:
    """The image (N, C, H, W) sampled bilinearly at a grid (N, H', W', 2)."""
    return TransformerSampler()(image, grid)


def spatial_transformer(
    img: TensorLike, theta: TensorLike, scale_width: float = 1, scale_height: float = 1
) -> Variable:
    """``img`` (N, C, H, W) transformed by affine matrices ``theta`` (N, 2, 3).

    The output has ``ceil(H * scale_height)`` rows and ``ceil(W * scale_width)`` columns.
    Differentiable with respect to both.
    """
    image = as_variable(img)
    need("spatial_transformer", image.type, 4, "an image (N, C, H, W)")
    _, _, height, width = dims_of(image)
    size = (_scaled(height, scale_height), _scaled(width, scale_width))
    return transformer_sampler(image, transformer_grid(theta, size))


def _scaled(size: Dim, scale: float) -> Dim:
    # An exact fraction: 30 * 0.1 rows are 3, although 0.1 is rounded.
    from fractions import Fraction

    part = Fraction(scale).limit_denominator(10**6)
    if part <= 0:
        raise OptionError(f"spatial_transformer: wanted a positive scale, got {scale}")
    return ceil_div(size * part.numerator, part.denominator)


OPERATORS: dict[str, Any] = {}
