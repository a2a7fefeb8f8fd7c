"""Boxes of detected objects: suppression of those that overlap a better one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, same_dim
from symdnn.graph.op import Axes, Batched, Host, Op, Shapes, Types, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.getitem import nonzero
from symdnn.ops.array.sort import argsort
from symdnn.ops.array.view import specify_shape
from symdnn.ops.core.dtype import widened
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.shape import dims_of

__all__ = ["KeptBoxes", "NonMaxSuppression", "nms", "non_max_suppression"]


@dataclass(frozen=True)
class NonMaxSuppression(Op):
    """Places (example, class, box) of the boxes that are kept, best first in each class.

    Inputs: boxes (N, B, 4), scores (N, C, B), and scalars: how many boxes of a class are kept, the
    overlap (intersection over union) above which a box is dropped, the least score. ``centred``
    boxes are (x, y, width, height), others two opposite corners (y, x, y, x).
    """

    no_gradients: ClassVar[bool] = True
    folds: ClassVar[bool] = False

    centred: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        boxes, scores, *limits = inputs
        floats = boxes.is_float and scores.is_float and boxes.ndim == scores.ndim == 3
        if not floats or boxes.shape[2] not in (4, None) or any(t.ndim for t in limits):
            wanted = "float boxes (N, B, 4), float scores (N, C, B), and three scalars"
            raise TypeMismatch(self, wanted, list(inputs))
        self._same_counts(boxes.shape, scores.shape)
        return TensorType("int64", (None, 3))

    def _same_counts(self, boxes: Sequence[Dim | None], scores: Sequence[Dim | None]) -> None:
        for a, b in ((boxes[0], scores[0]), (boxes[1], scores[2])):
            if isinstance(a, int) and isinstance(b, int) and a != b:
                wanted = "boxes (N, B, 4) and scores (N, C, B) of the same N and B"
                raise ShapeMismatch(self, wanted, [tuple(boxes), tuple(scores)])

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return None

    def reference(self, *inputs: Array) -> Array:
        boxes, scores, most, overlap, least = inputs
        self._same_counts(boxes.shape, scores.shape)
        corners = _corners(boxes.astype(np.float64), self.centred)
        found = [
            (n, c, b)
            for n in range(scores.shape[0])
            for c in range(scores.shape[1])
            for b in _kept(corners[n], scores[n, c], int(most), float(overlap), float(least))
        ]
        return np.array(found, dtype=np.int64).reshape(-1, 3)


@dataclass(frozen=True)
class KeptBoxes(Op):
    """Whether each of boxes in falling order stays, if those that overlap an earlier one go.

    Boxes are (..., B, 4): two opposite corners each. The result is bool, of shape (..., B). An
    overlap is intersection over union, in the dtype of the boxes (16-bit floats in float32); NaN
    is none. A box that went drops no other.
    """

    no_gradients: ClassVar[bool] = True
    overlap: float = 0.5

    def infer(self, *inputs: TensorType) -> TensorType:
        (boxes,) = inputs
        if not boxes.is_float or boxes.ndim < 2 or boxes.shape[-1] not in (4, None):
            raise TypeMismatch(self, "float boxes (..., B, 4)", list(inputs))
        return TensorType("bool", boxes.shape[:-1])

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        same_dim(self, [shapes[0][-1], 4], "four numbers for each box", shapes)
        return [tuple(shapes[0][:-1])]

    def reference(self, *inputs: Array) -> Array:
        (boxes,) = inputs
        (boxes,) = widened(boxes)
        corners = _corners(boxes, False)
        low, high = corners[..., :2], corners[..., 2:]
        area = (high[..., 0] - low[..., 0]) * (high[..., 1] - low[..., 1])
        kept = np.ones(boxes.shape[:-1], np.bool_)
        for k in range(boxes.shape[-2] - 1):
            this, rest = np.s_[..., k : k + 1], np.s_[..., k + 1 :]
            each, others = np.s_[..., k : k + 1, :], np.s_[..., k + 1 :, :]
            sides = np.minimum(high[each], high[others]) - np.maximum(low[each], low[others])
            common = np.maximum(sides[..., 0], 0) * np.maximum(sides[..., 1], 0)
            limit = boxes.dtype.type(self.overlap) * (area[this] + area[rest] - common)
            kept[rest] &= ~(kept[this] & (common > limit))
        return kept

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes)


def _corners(boxes: Array, centred: bool) -> Array:
    """Boxes as (least y, least x, greatest y, greatest x)."""
    if centred:
        x, y, w, h = np.moveaxis(boxes, -1, 0)
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=-1)
    a, b = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], axis=-1)


def _kept(boxes: Array, scores: Array, most: int, overlap: float, least: float) -> list[int]:
    """Greedily the best boxes, each without those that overlap it."""
    order = np.argsort(-scores.astype(np.float64), kind="stable")
    order = order[scores[order] > least]
    areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    kept: list[int] = []
    while len(order) and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(boxes[best, :2], boxes[order, :2])
        high = np.minimum(boxes[best, 2:], boxes[order, 2:])
        common = np.prod(np.maximum(high - low, 0), axis=1)
        union = areas[best] + areas[order] - common
        with np.errstate(all="ignore"):
            drop = (
                (common > 0) & (areas[best] > 0) & (areas[order] > 0) & (common / union > overlap)
            )
        order = order[~drop]
    return kept


def non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output: TensorLike = 0,
    iou_threshold: TensorLike = 0.0,
    score_threshold: TensorLike | None = None,
    centred: bool = False,
) -> Variable:
    """The boxes that are kept, as int64 rows (example, class, box); their number depends on data.

    ``boxes`` are (N, B, 4), ``scores`` (N, C, B). For each class of each example, boxes are taken
    by falling score (only those above ``score_threshold``), at most ``max_output``; one whose
    intersection over union with a taken one is above ``iou_threshold`` is dropped. Boxes are two
    opposite corners (y, x, y, x), or with ``centred`` (x, y, width, height). It has no gradient.
    (ONNX's ``NonMaxSuppression``.) Raises :class:`~symdnn.errors.TypeMismatch` for other types,
    :class:`~symdnn.errors.ShapeMismatch` for other numbers of examples or boxes in the scores.

    >>> boxes = [[[0.0, 0, 1, 1], [0, 0, 1, 0.9], [0, 2, 1, 3]]]
    >>> non_max_suppression(np.array(boxes), np.array([[[0.5, 0.9, 0.7]]]), 3, 0.5).eval()
    array([[0, 0, 1],
           [0, 0, 2]])
    """
    least: Any = -np.inf if score_threshold is None else score_threshold
    limits = [as_variable(v) for v in (max_output, iou_threshold, least)]
    return NonMaxSuppression(centred)(as_variable(boxes), as_variable(scores), *limits)


def nms(boxes: TensorLike, scores: TensorLike, iou_threshold: float) -> Variable:
    """Indices of the boxes that are kept, best first, as int64. (``torchvision.ops.nms``)

    ``boxes`` are (B, 4), two opposite corners each, ``scores`` (B,). Boxes are taken by falling
    score. One whose intersection over union with a taken one is above ``iou_threshold`` (a number)
    is dropped. It has no gradient. Raises :class:`~symdnn.errors.TypeMismatch` for other types,
    :class:`~symdnn.errors.ShapeMismatch` for another number of scores than of boxes.

    >>> boxes = [[0.0, 0, 1, 1], [0, 0, 1, 0.9], [0, 2, 1, 3]]
    >>> nms(np.array(boxes), np.array([0.5, 0.9, 0.7]), 0.5).eval()
    array([1, 2])
    """
    given, rank = as_variable(boxes), as_variable(scores)
    if given.type.ndim != 2 or rank.type.ndim != 1 or not rank.type.is_float:
        wanted = "float boxes (B, 4) and float scores (B,)"
        raise TypeMismatch("nms", wanted, [given.type, rank.type])
    rank = specify_shape(rank, (dims_of(given)[0],))
    order = argsort(-rank, kind="stable")
    kept = KeptBoxes(float(iou_threshold))(given[order])
    return order[nonzero(kept)[0]]
