"""Group and instance norm as one op of activations, so that they may have channels last.

A program's group norm is a layer norm of (batch, groups, channels of a group, positions), between
two reshapes that no layout but NCHW can have. As :class:`GroupNorm` it follows the convolutions
around it. Where all of it stays in NCHW it becomes a layer norm again, which reads rows once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.graph.origin import inherit
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import DimShuffle, Reshape
from symdnn.ops.lowered.group_norm import GroupNorm, GroupNormGrad
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from symdnn.ops.nn.channels_last import is_image
from symdnn.rewriting.rewrite import Context


class GatheredNorms:
    """The group norms of a graph, each with its gradients, while layouts are chosen."""

    def __init__(self, context: Context) -> None:
        self.context, self.fgraph = context, context.fgraph

    def gather(self) -> None:
        """Make one op of each group or instance norm, and of each gradient."""
        for node in self.fgraph.toposort():
            if isinstance(node.op, LayerNorm) and node in self.fgraph.nodes:
                with inherit(node.origin, node.hints, node.written):
                    self._gather(node)

    def _gather(self, node: Apply) -> None:
        x, gamma, beta = node.inputs
        image, groups = self._image_of(node)
        scales = [] if image is None else [_per_channel(p, image, x) for p in (gamma, beta)]
        gradients = self._gradients(node)
        if image is None or gradients is None or None in scales:
            return
        op: Any = node.op
        y, mean, invstd = GroupNorm(groups, op.epsilon)(image, *scales)
        pairs = self._results(node.outputs[0], y, x)
        for other in gradients:
            dy = self._unshaped(other.inputs[1], image)
            with inherit(other.origin, other.hints, other.written):
                grad = GroupNormGrad(groups, op.epsilon)
                dx, dgamma, dbeta = grad(image, dy, scales[0], mean, invstd)
                pairs += self._results(other.outputs[0], dx, x)
                pairs += [
                    (v, _shaped(new, v))
                    for v, new in zip(other.outputs[1:], (dgamma, dbeta))
                    if self.fgraph.users(v)
                ]
        self.fgraph.replace_all([(a, b) for a, b in pairs if a in self.fgraph.variables], _NAME)

    def _image_of(self, node: Apply) -> tuple[Variable | None, int]:
        """The activations that a layer norm normalises in groups, and the number of groups."""
        op: Any = node.op
        x = node.inputs[0]
        if op.axes != tuple(range(2, x.type.ndim)) or x.type.shape[1] is None:
            return None, 0
        image = _before_reshape(x)
        if image is not None and is_image(image.type) and self._splits_channels(x, image):
            return image, x.type.shape[1]
        return (x if is_image(x.type) else None), x.type.shape[1]

    def _splits_channels(self, x: Variable, image: Variable) -> bool:
        old, same = image.type.shape[1], self.context.shapes.same
        groups, size = x.type.shape[1:3]
        if x.type.ndim != image.type.ndim + 1 or groups is None or size is None:
            return False
        a, b = self.context.shapes.dims(image), self.context.shapes.dims(x)
        rest = all(same(p, q) for p, q in zip((a[0], *a[2:]), (b[0], *b[3:])))
        return rest and old == groups * size

    def _gradients(self, node: Apply) -> list[Apply] | None:
        """The gradients that read a norm's statistics; None where something else does."""
        x, gamma, _ = node.inputs
        found: dict[Apply, None] = {}
        for i, v in enumerate(node.outputs[1:]):
            for reader, _ in self.fgraph.users(v):
                if reader is None or not isinstance(reader.op, LayerNormGrad):
                    return None
                given = reader.inputs
                same = reader.op.axes == node.op.axes and given[3 + i] is v  # type: ignore[attr-defined]
                if not same or given[0] is not x or given[2] is not gamma:
                    return None
                found[reader] = None
        whole = all(n.inputs[3:] == node.outputs[1:] for n in found)
        return list(found) if whole else None

    def _results(self, old: Variable, new: Variable, x: Variable) -> list[Any]:
        """Pairs that put the activations ``new`` in the place of ``old``, and of its reshapes."""
        pairs = []
        for reader, _ in self.fgraph.users(old):
            back = None if reader is None else reader.outputs[0]
            same = back is not None and self.context.shapes.same_shape(back, new)
            if back is not None and same and _before_reshape(back) is old:
                pairs.append((back, new))
        if x.type.ndim == new.type.ndim:
            return [*pairs, (old, new)]
        made: Any = x.owner
        return [*pairs, (old, made.op(new, *made.inputs[1:]))]

    def _unshaped(self, v: Variable, image: Variable) -> Variable:
        """A cotangent in the shape of the activations."""
        if v.type.ndim == image.type.ndim:
            return v
        source = _before_reshape(v)
        if source is not None and self.context.shapes.same_shape(source, image):
            return source
        return v.reshape(tuple(image.shape), ndim=image.type.ndim)

    # -- back -------------------------------------------------------------------------------------

    def write_back(self) -> None:
        """Make layer norms of those that have NCHW forward and backward."""
        for node in self.fgraph.toposort():
            if isinstance(node.op, GroupNorm) and self._is_nchw(node):
                with inherit(node.origin, node.hints, node.written):
                    self._write_back(node)

    def _is_nchw(self, node: Apply) -> bool:
        gradients = {n for v in node.outputs[1:] for n, _ in self.fgraph.users(v)}
        nodes = (node, *gradients)
        return all(
            isinstance(n, Apply)
            and isinstance(n.op, GroupNorm | GroupNormGrad)
            and n.op.channels == 1
            for n in nodes
        )

    def _write_back(self, node: Apply) -> None:
        op: Any = node.op
        x, gamma, beta = node.inputs
        rows = _in_groups(x, op.groups)
        scales = [_in_groups(p, op.groups) for p in (gamma, beta)]
        axes = tuple(range(2, rows.type.ndim))
        y, mean, invstd = LayerNorm(axes, op.epsilon)(rows, *scales)
        pairs = [(node.outputs[0], _shaped(y, node.outputs[0], x))]
        for other in {n: None for v in node.outputs[1:] for n, _ in self.fgraph.users(v)}:
            assert other is not None
            dy = _in_groups(other.inputs[1], op.groups)
            grad = LayerNormGrad(axes, op.epsilon)
            for old, new in zip(other.outputs, grad(rows, dy, scales[0], mean, invstd)):
                if self.fgraph.users(old):
                    pairs.append((old, _shaped(new, old, x)))
        self.fgraph.replace_all(pairs, _NAME)


_NAME = "gather_group_norms"


def _before_reshape(v: Variable) -> Variable | None:
    """What ``v`` is a reshape of, which may add or drop dimensions of size 1; or None."""
    made = v.owner
    if made is None or not isinstance(made.op, Reshape | DimShuffle):
        return None
    kept = [d for d in getattr(made.op, "pattern", ()) if d != "x"]
    return made.inputs[0] if kept == sorted(kept) else None


def _per_channel(p: Variable, image: Variable, x: Variable) -> Variable | None:
    """A parameter of a norm of ``x`` as (1, channels, 1, ...); None where it has another form."""
    channels, ndim = image.type.shape[1], image.type.ndim
    shape = (1, channels, *(1 for _ in range(ndim - 2)))
    if isinstance(p, Constant) and all(p.type.broadcastable):
        return Constant(np.full(shape, p.data.reshape(()), p.data.dtype))
    grouped = x.type.ndim > ndim
    own = p.type.shape[1 : 2 + grouped]
    others = (p.type.shape[0], *p.type.shape[2 + grouped :])
    if math.prod(n or 0 for n in own) != channels or any(n != 1 for n in others):
        return None
    return Reshape(shape)(p, *map(_number, shape)) if grouped else p


def _shaped(new: Variable, old: Variable, like: Variable | None = None) -> Variable:
    """``new`` in the shape of ``old``, whose unknown sizes are those of ``like``."""
    if new.type.ndim == old.type.ndim and new.type.shape == old.type.shape:
        return new
    sizes: Sequence[Any] = old.type.shape
    if None in sizes:
        assert like is not None
        sizes = [n if n is not None else like.shape[i] for i, n in enumerate(sizes)]
    return new.reshape(tuple(sizes), ndim=old.type.ndim)


def _in_groups(v: Variable, groups: int) -> Variable:
    """(batch, channels, ...) as (batch, groups, channels of a group, ...)."""
    n, c, *rest = (n if n is not None else v.shape[i] for i, n in enumerate(v.type.shape))
    assert isinstance(v.type, TensorType)
    return v.reshape((n, groups, c // groups, *rest), ndim=v.type.ndim + 1)


def _number(n: Any) -> Variable:
    return Constant(np.asarray(n, np.int64))
