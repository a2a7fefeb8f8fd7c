"""PyTorch's AdaptiveLogSoftmaxWithLoss: many classes, the rare ones in clusters of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable, as_variable
from symdnn.nn.layers.containers import Sequential
from symdnn.nn.layers.linear import Linear
from symdnn.nn.modules.arguments import as_batch, positive
from symdnn.nn.modules.lists import ModuleList
from symdnn.nn.modules.module import Module
from symdnn.ops.array.argreduce import argmax
from symdnn.ops.array.getitem import inc_subtensor, nonzero
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.moments import mean
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.nn.crossentropy import softmax_crossentropy
from symdnn.ops.nn.softmax import logsoftmax
from symdnn.options import is_int

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class _Found(NamedTuple):
    """What :class:`AdaptiveLogSoftmaxWithLoss` returns."""

    output: Variable
    loss: Variable


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-probabilities of labels, and the mean of their negatives (Grave et al. 2017).

    ``layer(x, target)`` of (N, in_features) and integers (N) is ``(output, loss)``: (N) and a
    scalar; also (in_features) and (). Labels below ``cutoffs[0]`` are classes of ``head``, as are
    the clusters of those from one cutoff to the next. Cluster i, from 1, is of
    ``in_features // div_value ** i`` features, in ``tail``; it is computed for its labels alone.
    Frequent classes have low numbers. (PyTorch's.)

    >>> AdaptiveLogSoftmaxWithLoss(64, 1000, [20, 200]).tail[1][0]
    nn.Linear(64 -> 4) without bias
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
        head_bias: bool = False, *, dtype: str | None = None,
    ) -> None:  # fmt: skip
        positive("AdaptiveLogSoftmaxWithLoss: in_features, n_classes", in_features, n_classes)
        ends = [*cutoffs, n_classes]
        if len(ends) < 2 or not all(map(is_int, ends)) or ends[0] < 1 or sorted(set(ends)) != ends:
            raise OptionError(
                f"AdaptiveLogSoftmaxWithLoss: cutoffs={cutoffs!r:.60}; wanted a list of ints that "
                f"rise, from 1 to {n_classes - 1}"
            )
        if not div_value > 0:
            raise OptionError(
                f"AdaptiveLogSoftmaxWithLoss: div_value={div_value!r}; wanted more than 0"
            )
        self.in_features, self.n_classes = int(in_features), int(n_classes)
        self.cutoffs, self.div_value = [int(c) for c in ends], div_value
        widths = [int(in_features // div_value ** (i + 1)) for i in range(len(ends) - 1)]
        if widths[-1] < 1:
            raise OptionError(
                f"AdaptiveLogSoftmaxWithLoss: div_value={div_value!r} leaves the clusters {widths} "
                f"of {in_features} features; wanted 1 or more"
            )
        self.head = Linear(in_features, ends[0] + len(widths), bool(head_bias), dtype=dtype)
        self.tail = ModuleList([
            Sequential(
                Linear(in_features, width, False, dtype=dtype),
                Linear(width, end - begin, False, dtype=dtype),
            )
            for width, begin, end in zip(widths, self.cutoffs, self.cutoffs[1:], strict=False)
        ])  # fmt: skip

    def forward(self, x: Variable, target: Any) -> _Found:
        rows, restored = as_batch(self, x, 2, f"(N, {self.in_features}), or one without N")
        t = as_variable(target)
        if not isinstance(t.type, TensorType) or not t.type.is_integer:
            raise TypeMismatch("AdaptiveLogSoftmaxWithLoss", "a target of integers", t.type)
        if t.type.ndim != x.type.ndim - 1:
            wanted = f"a target of {x.type.ndim - 1} dimension(s)"
            raise TypeMismatch("AdaptiveLogSoftmaxWithLoss", wanted, t.type)
        labels = t.dimshuffle("x") if t.type.ndim == 0 else t
        first, chosen = self.cutoffs[0], labels
        losses: list[tuple[Variable, Variable]] = []
        for i, cluster in enumerate(self.tail):
            begin, inside = self.cutoffs[i], labels >= self.cutoffs[i]
            if i + 1 < len(self.tail):  # the last one refuses what is no class
                inside = inside & (labels < self.cutoffs[i + 1])
            chosen = switch(inside, first + i, chosen)
            (places,) = nonzero(inside)
            found = softmax_crossentropy(cluster(rows[places]), labels[places] - begin, axis=1)
            losses.append((places, found))
        total = softmax_crossentropy(self.head(rows), chosen, axis=1)
        for places, found in losses:
            total = inc_subtensor(total[places], found)
        return _Found(restored(-total), mean(total))

    def log_prob(self, x: Variable) -> Variable:
        """The log-probabilities of all classes, (N, n_classes)."""
        first, head = self.cutoffs[0], logsoftmax(self.head(x), axis=-1)
        parts = [head[..., :first]]
        for i, cluster in enumerate(self.tail):
            parts.append(logsoftmax(cluster(x), axis=-1) + head[..., first + i : first + i + 1])
        return concatenate(parts, axis=-1)

    def predict(self, x: Variable) -> Variable:
        """The most probable class of each row, (N)."""
        return argmax(self.log_prob(x), axis=-1)

    def describe(self) -> str:
        return f"({self.in_features} -> {self.n_classes}, cutoffs={self.cutoffs[:-1]})"
