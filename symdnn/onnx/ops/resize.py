"""Resizing along axes, one after the other, and samples at the points of a grid."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.dims import dim_max, dim_min, product
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import known_array
from symdnn.onnx.ops.elementwise import number
from symdnn.ops.core.shape import dims_of
from symdnn.ops.written_out.points import cubic_weight, sampled


class _Axis:
    """How one axis is resized: from ``n`` to ``m`` elements, by the factor ``scale``.

    ``length`` is ``m``, or what it was before rounding down where factors are given.
    """

    def __init__(
        self, n: Any, m: Any, scale: Any, length: Any, roi: tuple[float, float] | None
    ) -> None:
        self.n, self.m, self.scale, self.length, self.roi = n, m, scale, length, roi

    def is_identity(self) -> bool:
        """Whether nothing changes."""
        same = not isinstance(self.scale, Variable) and math.isclose(self.scale, 1.0)
        return same and self.roi in (None, (0.0, 1.0)) and (
            self.n is self.m or (not isinstance(self.n, Variable) and self.n == self.m)
        )  # fmt: skip


def _float(d: Any) -> Any:
    """``d`` in float32, as factors are in the file: ten elements times 0.7 are 7, not 6.9999999."""
    return d.astype("float32") if isinstance(d, Variable) else np.float32(d)


def _settings(node: Node, x: Variable) -> tuple[list[int], list[_Axis]]:
    """The axes that are resized, and how."""
    axes = node.attribute("axes")
    axes = list(range(x.ndim)) if axes is None else [node.normal(a, x.ndim) for a in axes]
    own = [dims_of(x)[a] for a in axes]
    roi = None
    if node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        roi = [float(v) for v in node.known(1, "the region").ravel()]
    scales, sizes = _wanted(node)
    if sizes is not None:
        if len(sizes) == x.ndim and len(axes) != x.ndim:
            sizes = [sizes[a] for a in axes]
        factors = [_float(m) / _float(n) for m, n in zip(sizes, own)]
        policy = node.attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = reduce(dim_min if policy == "not_larger" else dim_max, factors)
            factors = [factor] * len(own)
            sizes = [_rounded(_float(n) * factor) for n in own]
        lengths = [_float(m) for m in sizes]
    else:
        assert scales is not None, "scales or sizes"
        factors = scales
        sizes = [_scaled(n, f) for n, f in zip(own, factors)]
        lengths = [_float(n) * f for n, f in zip(own, factors)]
    regions = [None if roi is None else (roi[i], roi[len(axes) + i]) for i in range(len(axes))]
    return axes, [_Axis(*row) for row in zip(own, sizes, factors, lengths, regions)]


def _rounded(size: Any) -> Any:
    """The nearest whole size."""
    known = known_array(size) if isinstance(size, Variable) else size
    if known is not None:
        return int(float(known) + 0.5)
    return T.cast(T.floor(size + 0.5), "int64")


def _scaled(n: Any, factor: Any) -> Any:
    """The size of an axis of ``n`` elements; a whole factor keeps it a plain product."""
    if not isinstance(factor, Variable):
        if not isinstance(n, Variable):
            return int(_float(n) * factor)
        if float(factor).is_integer():
            return n * int(factor)
    return T.cast(T.floor(_float(n) * factor), "int64")


def _wanted(node: Node) -> tuple[list[Any] | None, list[Any] | None]:
    """The factors, or the sizes."""
    if node.op == "Upsample" and node.version < 9:
        return [_float(s) for s in node.required("scales")], None
    first = 1 if node.version < 11 else 2
    if node.has(first):
        value = node.value(first)
        if value.shape != (0,):
            return _scales(node, first), None
    if not node.has(3):
        raise node.error("it has neither scales nor sizes")
    return None, node.sizes(3, "the sizes")


def _scales(node: Node, i: int) -> list[Any]:
    value = node.value(i)
    if value.array is None and value.data is None and value.variable.type.shape[0] is None:
        return [_float(s) for s in node.known(i, "the scales").ravel()]
    if value.data is not None:
        entries = list(value.data.ravel())
    else:
        entries = [value.variable[k] for k in range(value.variable.type.shape[0] or 0)]
    return [_float(node.size(e, "the scales")) for e in entries]


def _coordinates(axis: _Axis, mode: str) -> Variable:
    """The place in the input of each element of the output, as float32."""
    at = T.arange(axis.m, dtype="int64").astype("float32")
    n, scale, length = _float(axis.n), axis.scale, axis.length
    if mode == "align_corners":
        return _over(at * (n - 1), length - 1)
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_crop_and_resize":
        assert axis.roi is not None, "the region is an input of this mode"
        first, last = axis.roi
        middle, place = (
            (last - first) * (n - 1) / 2,
            _over(at * (last - first) * (n - 1), length - 1),
        )
        if isinstance(length, Variable):
            return T.switch(T.eq(length, 1), middle, place) + first * (n - 1)
        return (at * 0 + middle if length == 1 else place) + first * (n - 1)
    place = (at + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        if isinstance(axis.m, Variable):
            return T.switch(T.eq(axis.m, 1), at * 0, place)
        return at * 0 if axis.m == 1 else place
    if mode == "half_pixel_symmetric":
        offset = n / 2 * (1 - _float(axis.m) / length)
        return offset + (at + 0.5) / scale - 0.5  # in this order, as places are rounded
    return place


def _over(above: Variable, below: Any) -> Variable:
    """A quotient that is 0 where the divisor is."""
    if isinstance(below, Variable):
        zero = T.eq(below, 0)
        return T.switch(zero, above * 0, above / T.switch(zero, 1.0, below))
    return above * 0 if below == 0 else above / below


def _nearest(place: Variable, mode: str) -> Variable:
    below = T.floor(place)
    if mode in ("round_prefer_floor", "round_prefer_ceil"):
        rest = place - below  # exact; a half added to the place would be rounded
        return below + (rest > 0.5 if mode == "round_prefer_floor" else rest >= 0.5)
    return below if mode == "floor" else T.ceil(place)


def _along(node: Node, x: Variable, d: int, axis: _Axis, mode: str, transform: str) -> Variable:
    """``x`` resized along dimension ``d``."""
    place = _coordinates(axis, transform)
    last = axis.n - 1
    if mode == "nearest":
        rounding = node.attribute("nearest_mode", "round_prefer_floor")
        if node.version < 11:
            rounding = "floor"
        index = T.clip(_nearest(place, rounding), 0, _float(last)).astype("int64")
        y = T.take(x, index, axis=d)
    else:
        y = _interpolated(node, x, d, axis, mode, place)
    if transform == "tf_crop_and_resize":
        outside = (place < 0) | (place > _float(last))
        mask = outside.dimshuffle(*[0 if i == d else "x" for i in range(x.ndim)])
        y = T.switch(mask, number(y, node.attribute("extrapolation_value", 0.0)), y)
    return y


def _interpolated(
    node: Node, x: Variable, d: int, axis: _Axis, mode: str, place: Variable
) -> Variable:
    """Weighted sums of neighbours along dimension ``d``."""
    a = node.attribute("cubic_coeff_a", -0.75)
    reach, width = (2 if mode == "cubic" else 1), 1.0
    if node.attribute("antialias", 0):
        scale = axis.scale
        if isinstance(scale, Variable):
            scale = float(node.settled(scale, "the scale").ravel()[0])
        width = min(scale, 1.0)
    first = math.floor(-reach / width) + 1
    taps = range(first, 2 - first if mode == "cubic" else first + 2 - 2 * first)
    base = T.floor(place)
    weights, places = [], []
    for k in taps:
        cell = base + k
        t = (cell - place) * width
        w = cubic_weight(t, a) if mode == "cubic" else T.clip(1 - T.abs_(t), 0.0, 1.0)
        if node.attribute("exclude_outside", 0):
            w = T.switch((cell < 0) | (cell > _float(axis.n - 1)), 0.0, w)
        weights.append(w)
        places.append(T.clip(cell, 0, _float(axis.n - 1)).astype("int64"))
    if width != 1.0 or node.attribute("exclude_outside", 0):
        whole = sum(weights[1:], weights[0])
        weights = [w / whole for w in weights]
    wide = x if x.type.is_float else x.astype("float32")
    total: Variable | None = None
    for w, index in zip(weights, places):
        along = w.astype(wide.type.dtype).dimshuffle(*[0 if i == d else "x" for i in range(x.ndim)])
        term = T.take(wide, index, axis=d) * along
        total = term if total is None else total + term
    assert total is not None, "there is at least one tap"
    if x.type.is_float:
        return total
    return total


def _resize(node: Node) -> Variable:
    x = node.x()
    axes, settings = _settings(node, x)
    mode = node.attribute("mode", "nearest")
    default = "half_pixel" if node.op == "Resize" and node.version >= 11 else "asymmetric"
    transform = node.attribute("coordinate_transformation_mode", default)
    if mode == "bilinear":
        mode = "linear"
    if mode not in ("nearest", "linear", "cubic"):
        raise node.error(f"mode {mode!r}: wanted nearest, linear or cubic")
    y = x
    for d, axis in zip(axes, settings):
        if not axis.is_identity():
            y = _along(node, y, d, axis, mode, transform)
    return y.astype(x.type.dtype)


def _grid_sample(node: Node) -> Variable:
    x, grid = node.x(), node.x(1)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        node.attribute("mode", "linear"), node.attribute("mode", "linear")
    )
    align = bool(node.attribute("align_corners", 0))
    sizes = dims_of(x)[2:]
    n, *out, rank = dims_of(grid)
    points = grid.reshape((n, product(out), rank))
    coordinates = []
    for i, size in enumerate(sizes):
        g = points[:, :, len(sizes) - 1 - i]
        d = size.astype(g.type.dtype) if isinstance(size, Variable) else number(g, size)
        one, half = number(g, 1), number(g, 0.5)
        coordinates.append((g + one) * half * (d - one) if align else ((g + one) * d - one) * half)
    y = sampled(x, coordinates, mode, node.attribute("padding_mode", "zeros"), align)
    return y.reshape((dims_of(x)[0], dims_of(x)[1], *out))


OPS: dict[str, Any] = {"Resize": _resize, "Upsample": _resize, "GridSample": _grid_sample}
