"""The softmax loss from logits, and its gradient, without the log-softmax.

``opt/fuse/loss_rules.py`` makes these ops on a GPU: the log-softmax is never stored, and logits in
16 bits are read as they are. They have no gradient, which is taken before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Host, MultiOp, Shapes, Types
from symdnn.graph.type import TensorType, Type, numpy_dtype
from symdnn.graph.typing import Array
from symdnn.ops.core.dtype import widened, work_dtype
from symdnn.ops.nn.crossentropy import LabelOp


@dataclass(frozen=True)
class LabelLossGrad(LabelOp):
    """``d[i] * (exp(x - total[i]) - onehot(label[i]))`` in ``dtype``.

    Inputs: the loss's cotangent ``d`` and ``total``, the log-sum-exp of the logits ``x``, one value
    for each label, then ``x`` and the labels.
    """

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (2,)}
    dtype: str

    def infer(
        self, d: TensorType, total: TensorType, x: TensorType, labels: TensorType
    ) -> TensorType:
        self.check_types(x, labels)
        if (d.ndim, total.ndim) != (labels.ndim, labels.ndim):
            raise TypeMismatch(self, "one value for each label", [d, total])
        return TensorType(self.dtype, x.shape)

    def reference(self, d: Array, total: Array, x: Array, labels: Array) -> Array:
        self.rows(x.shape, d.shape, total.shape, labels.shape)
        scale, high, scores = widened(d, total, x)
        found = np.exp(scores - np.expand_dims(high, self.axis)) * np.expand_dims(scale, self.axis)
        found -= self.place(scale, labels, x.shape)
        return np.asarray(found.astype(numpy_dtype(self.dtype)))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        self.rows(shapes[2], shapes[0], shapes[1], shapes[3])
        return [tuple(shapes[2])]


@dataclass(frozen=True)
class LabelLoss(LabelOp, MultiOp):
    """(the softmax loss of each row, its gradient with respect to the logits) in one pass.

    ``total - x[label]`` with the log-sum-exp ``total`` of the logits ``x``, and
    :class:`LabelLossGrad` in ``dtype``. Inputs: the loss's cotangent ``d``, one value for each
    label or of size 1 along any dimension; ``x``; the labels. Losses of logits in 16 bits are
    float32.
    """

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {1: (1,)}
    dtype: str

    def infer(self, d: TensorType, x: TensorType, labels: TensorType) -> tuple[Type, ...]:
        self.check_types(x, labels)
        if d.ndim != labels.ndim:
            raise TypeMismatch(self, f"a cotangent of {labels.ndim} dimensions", d)
        losses = self.row_type(x, labels)
        work = work_dtype(x.dtype)
        return losses.with_dtype(work), TensorType(self.dtype, x.shape)

    def reference(self, d: Array, x: Array, labels: Array) -> tuple[Array, ...]:
        self.rows(x.shape, labels.shape)
        (scores,) = widened(x)
        top = scores.max(self.axis, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0).astype(scores.dtype, copy=False)
        total = top + np.log(np.exp(scores - top).sum(self.axis, keepdims=True))
        total = total.squeeze(self.axis)
        each = np.broadcast_to(d, labels.shape)
        (gradient,) = LabelLossGrad(self.axis, self.dtype).compute(each, total, x, labels)
        return np.asarray(total - self.pick(scores, labels)), gradient

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        d, x, labels = shapes
        rows = self.rows(x, labels)
        ones = types[0].broadcastable
        self.rows(x, tuple(n if one else a for a, n, one in zip(d, rows, ones, strict=True)))
        return [rows, tuple(x)]
