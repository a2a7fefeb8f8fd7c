"""The gradient of the softmax loss from logits and their log-sum-exp.

``opt/fuse/loss_rules.py`` makes it on a GPU: the log-softmax is never stored, and logits in 16 bits
are read as they are. It has no gradient, which is taken before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.dims import Shape
from symdnn.graph.op import Host
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import Array
from symdnn.ops.nn.crossentropy import LabelOp
from symdnn.ops.nn.softmax import wide

__all__ = ["LabelLossGrad"]


@dataclass(frozen=True)
class LabelLossGrad(LabelOp):
    """``d[i] * (exp(x - total[i]) - onehot(label[i]))`` in ``dtype``.

    Inputs: the loss's cotangent ``d`` and ``total``, the log-sum-exp of the logits ``x``, one value
    for each label, then ``x`` and the labels.
    """

    dtype: str

    def infer(
        self, d: TensorType, total: TensorType, x: TensorType, labels: TensorType
    ) -> TensorType:
        self.check_types(x, labels)
        if (d.ndim, total.ndim) != (labels.ndim, labels.ndim):
            raise TypeMismatch(self, "one value for each label", [d, total])
        return TensorType(self.dtype, x.shape)

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {0: (2,)}

    def reference(self, d: Array, total: Array, x: Array, labels: Array) -> Array:
        self.rows(x.shape, d.shape, total.shape, labels.shape)
        scale, high, scores = wide(d, total, x)
        found = np.exp(scores - np.expand_dims(high, self.axis)) * np.expand_dims(scale, self.axis)
        found -= self.place(scale, labels, x.shape)
        return np.asarray(found.astype(numpy_dtype(self.dtype)))

    def shapes(
        self, types: Sequence[TensorType], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        self.rows(shapes[2], shapes[0], shapes[1], shapes[3])
        return [tuple(shapes[2])]
