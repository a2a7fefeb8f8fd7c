"""Regions of images: pooling in boxes, suppression of boxes, deformable convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.conv import window_of, with_bias
from symdnn.onnx.ops.elementwise import number
from symdnn.ops.array.boxes import non_max_suppression
from symdnn.ops.core.shape import dims_of
from symdnn.ops.written_out.pixel_sums import pixels
from symdnn.ops.written_out.points import sampled


def _suppression(node: Node) -> Variable:
    boxes, scores = node.x(), node.x(1)

    def scalar(i: int, default: Any) -> Any:
        return node.x(i).reshape(()) if node.has(i) else default

    most = scalar(2, np.int64(0))
    centred = bool(node.attribute("center_point_box", 0))
    least = scalar(4, None)
    return non_max_suppression(boxes, scores, most, scalar(3, np.float32(0)), least, centred)


def _roi_align(node: Node) -> Variable:
    x, rois, examples = node.x(), node.x(1), node.x(2).astype("int64")
    height = int(node.attribute("output_height", 1))
    width = int(node.attribute("output_width", 1))
    default = "half_pixel" if node.version >= 16 else "output_half_pixel"
    half = node.attribute("coordinate_transformation_mode", default) == "half_pixel"
    scale, ratio = node.attribute("spatial_scale", 1.0), int(node.attribute("sampling_ratio", 0))
    box = rois * number(rois, scale) - number(rois, 0.5 if half else 0.0)
    lines = [
        _line(box[:, 1 - k], box[:, 3 - k], out, ratio, half)
        for k, out in enumerate((height, width))
    ]
    (y, y_inside, ny), (x_at, x_inside, nx) = lines
    corners = _corners(x, examples, y, x_at)
    # Samples of a bin: (boxes, rows, rows of samples, columns, columns of samples, channels).
    inside = y_inside.dimshuffle(0, 1, 2, "x", "x", "x") & x_inside.dimshuffle(
        0, "x", "x", 1, 2, "x"
    )
    if node.attribute("mode", "avg").lower() == "avg":
        total = corners[0]
        for corner in corners[1:]:
            total = total + corner
        sums = T.sum(T.switch(inside, total, number(total, 0)), axis=(2, 4))
        count = T.maximum(ny * nx, number(ny, 1))
        return (sums / count.dimshuffle(0, "x", "x", "x")).transpose((0, 3, 1, 2))
    best = corners[0]
    for corner in corners[1:]:
        best = T.maximum(best, corner)
    best = T.switch(inside, best, number(best, -np.inf))
    return T.max(best, axis=(2, 4)).transpose((0, 3, 1, 2))


def _line(
    start: Variable, end: Variable, out: int, ratio: int, half: bool
) -> tuple[Variable, Variable, Variable]:
    """Samples of each bin along one side of boxes: places, which of them count, their number."""
    length = end - start
    length = length if half else T.maximum(length, number(length, 1))
    size = length / number(length, out)
    if ratio > 0:
        counts = T.ones_like(size) * number(size, ratio)
        steps = T.arange(ratio, dtype="int64")
    else:
        counts = T.ceil(size)
        most = T.maximum(T.max(T.concatenate([counts, T.ones((1,), dtype=size.type.dtype)])),
                         number(size, 1))  # fmt: skip
        steps = T.arange(most.astype("int64"), dtype="int64")
    bins = T.arange(out, dtype="int64").astype(size.type.dtype).dimshuffle("x", 0, "x")
    at = steps.astype(size.type.dtype).dimshuffle("x", "x", 0)
    each = size.dimshuffle(0, "x", "x")
    number_of = counts.dimshuffle(0, "x", "x")
    safe = T.maximum(number_of, number(size, 1))
    places = start.dimshuffle(0, "x", "x") + bins * each + (at + number(size, 0.5)) * each / safe
    inside = (at < number_of) & T.eq(bins, bins)
    return places, inside, counts


def _corners(x: Variable, examples: Variable, y: Variable, x_at: Variable) -> list[Variable]:
    """The four weighted pixels around each sample; 0 for samples beyond the image."""
    height, width = dims_of(x)[2:]
    rows, columns = _neighbours(y, height), _neighbours(x_at, width)
    found = []
    wide = examples.dimshuffle(0, "x", "x", "x", "x")
    for row, row_weight in rows:
        for column, column_weight in columns:
            i, j = row.dimshuffle(0, 1, 2, "x", "x"), column.dimshuffle(0, "x", "x", 1, 2)
            weight = row_weight.dimshuffle(0, 1, 2, "x", "x") * column_weight.dimshuffle(
                0, "x", "x", 1, 2
            )
            values = pixels(x, wide, (i, j))
            found.append(values * T.shape_padright(weight).astype(x.type.dtype))
    return found


def _neighbours(at: Variable, size: Any) -> list[tuple[Variable, Variable]]:
    """The two pixels beside a place along a side, and their weights."""
    n = size.astype(at.type.dtype) if isinstance(size, Variable) else number(at, size)
    there = ((at >= number(at, -1)) & (at <= n)).astype(at.type.dtype)
    bounded = T.clip(at, number(at, 0), n - number(at, 1))
    low = T.floor(bounded)
    rest = bounded - low
    first = low.astype("int64")
    last = size - 1
    second = T.minimum(first + 1, last)
    return [(first, (number(at, 1) - rest) * there), (second, rest * there)]


def _max_roi_pool(node: Node) -> Variable:
    """The largest pixel of each bin, with bounds that are rounded to whole pixels."""
    x, rois = node.x(), node.x(1)
    height, width = (int(n) for n in node.required("pooled_shape"))
    scale = number(rois, node.attribute("spatial_scale", 1.0))
    examples = rois[:, 0].astype("int64")
    half = number(rois, 0.5)
    box = T.floor(rois[:, 1:] * scale + half)
    masks = []
    for k, (out, size) in enumerate(zip((height, width), dims_of(x)[2:])):
        start, end = box[:, 1 - k].dimshuffle(0, "x"), box[:, 3 - k].dimshuffle(0, "x")
        length = T.maximum(end - start + number(rois, 1), number(rois, 1)) / number(rois, out)
        bins = T.arange(out, dtype="int64").astype(rois.type.dtype).dimshuffle("x", 0)
        low = T.floor(bins * length) + start
        high = T.ceil((bins + number(rois, 1)) * length) + start
        at = T.arange(size, dtype="int64").astype(rois.type.dtype).dimshuffle("x", "x", 0)
        masks.append((at >= T.shape_padright(low)) & (at < T.shape_padright(high)))
    rows, columns = masks
    image = x[examples]  # (boxes, channels, height, width)
    least = number(x, -np.inf)
    # Rows first, then columns: a maximum over a rectangle is one over each side.
    by_row = T.switch(rows.dimshuffle(0, "x", 1, 2, "x"), image.dimshuffle(0, 1, "x", 2, 3), least)
    lines = T.max(by_row, axis=3)
    by_column = T.switch(
        columns.dimshuffle(0, "x", "x", 1, 2), lines.dimshuffle(0, 1, 2, "x", 3), least
    )
    y = T.max(by_column, axis=4)
    return T.switch(T.eq(y, least), number(x, 0), y)


def _deform_conv(node: Node) -> Variable:
    """A convolution whose window's places are moved, each by an offset of its own.

    (Dai et al. 2017; with a mask, Zhu et al. 2019.)
    """
    x, w, offset = node.x(), node.x(1), node.x(2)
    sizes: Any = node.attribute("kernel_shape") or w.type.shape[2:]
    kernel = [int(k) for k in sizes]
    window = window_of(node, kernel, dims_of(x)[2:])
    groups, of_groups = int(node.attribute("group", 1)), int(node.attribute("offset_group", 1))
    n, channels = dims_of(x)[:2]
    out = dims_of(offset)[2:]
    places = list(np.ndindex(*kernel))
    rank = len(kernel)
    moved = offset.reshape((n, of_groups, len(places), rank, *out))
    mask = node.x(4).reshape((n, of_groups, len(places), *out)) if node.has(4) else None
    each = channels // of_groups
    per_place = []
    total = 1
    for d in out:
        total = total * d
    for p, place in enumerate(places):
        parts = []
        for g in range(of_groups):
            coordinates = []
            for i in range(rank):
                start = place[i] * window.dilations[i] - window.pads[i][0]
                base = T.arange(out[i], dtype="int64") * window.strides[i] + start
                shape: list[Any] = ["x"] * (1 + rank)
                shape[1 + i] = 0
                at = base.astype(offset.type.dtype).dimshuffle(*shape) + moved[:, g, p, i]
                coordinates.append(at.reshape((n, total)))
            values = sampled(x[:, g * each : (g + 1) * each], coordinates, "linear")
            if mask is not None:
                values = values * mask[:, g, p].reshape((n, 1, total))
            parts.append(values)
        per_place.append(T.concatenate(parts, axis=1) if len(parts) > 1 else parts[0])
    columns = T.stack(per_place, axis=2)  # (n, channels, places, total)
    inner = channels // groups
    filters = w.reshape((groups, dims_of(w)[0] // groups, inner * len(places)))
    columns = columns.reshape((n, groups, inner * len(places), total))
    y = T.matmul(T.shape_padleft(filters), columns)
    return with_bias(y.reshape((n, dims_of(w)[0], *out)), node.optional(3))


OPS: dict[str, Any] = {
    "NonMaxSuppression": _suppression, "RoiAlign": _roi_align, "MaxRoiPool": _max_roi_pool,
    "DeformConv": _deform_conv,
}  # fmt: skip
