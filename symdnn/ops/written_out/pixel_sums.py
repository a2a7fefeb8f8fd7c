"""Weighted sums of a few pixels for each point: what samples images between their pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import and_, mul
from typing import Any, ClassVar

from symdnn.graph.op import Axes, Batched, Grads, MultiOp, Vars
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import arange
from symdnn.ops.array.view import of_sizes
from symdnn.ops.core.composed import Composed, vjp_of_expression
from symdnn.ops.core.lanes import on_folded
from symdnn.ops.core.shape import dims_of, zeros_like
from symdnn.ops.elementwise.arithmetic import clip, maximum
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.elemwise import like


def pixels(x: Variable, examples: Variable, places: Sequence[Variable]) -> Variable:
    """Elements of (N, C, ...) at whole places, as (..., C): one place for each entry."""
    channels_last = x.transpose((0, *range(2, x.ndim), 1))
    return channels_last[(examples, *places)]


@dataclass(frozen=True)
class _Pixels(Composed):
    """Base of the sums and their gradients.

    ``taps`` has the number of places along each spatial axis. Places are int32 (N, P), those of the
    first axis first; so are the weights, of the image's dtype, if they are ``weighted``.
    """

    abstract: ClassVar[bool] = True

    taps: tuple[int, ...]
    weighted: bool = True

    @property
    def count(self) -> int:
        """The number of arrays of places and weights."""
        return sum(self.taps) * (1 + self.weighted)

    def combinations(self) -> Iterator[tuple[int, ...]]:
        """The arrays of places that each term has, by number; weights have the same numbers."""
        first = [sum(self.taps[:i]) for i in range(len(self.taps))]
        return product(*(range(f, f + n) for f, n in zip(first, self.taps)))

    def gradient_of(self, dy: Variable, x: Variable, place: Variable) -> Variable:
        """The gradient (N, C, P) of sums, of which no size broadcasts."""
        return of_sizes(dy, [*dims_of(x)[:2], dims_of(place)[1]], str(self))

    def sums(self, x: Variable, *given: Variable) -> Variable:
        """The expression of :class:`PixelSums`."""
        given = tuple(of_sizes(v, [dims_of(x)[0], dims_of(given[0])[1]], str(self)) for v in given)
        places, weights = given[: sum(self.taps)], given[sum(self.taps) :]
        sizes, examples = dims_of(x)[2:], arange(dims_of(x)[0], dtype="int64").dimshuffle(0, "x")
        total: Variable | None = None
        for term in self.combinations():
            own = [places[k] for k in term]
            inside = reduce(and_, ((p >= 0) & (p < n) for p, n in zip(own, sizes)))
            lasts = [maximum(n - 1, 0) if isinstance(n, Variable) else max(n - 1, 0) for n in sizes]
            found = pixels(x, examples, [clip(p, 0, n) for p, n in zip(own, lasts)])
            if weights:
                found = found * reduce(mul, [weights[k] for k in term]).dimshuffle(0, 1, "x")
            found = switch(inside.dimshuffle(0, 1, "x"), found, like(0, found))
            total = found if total is None else total + found
        assert total is not None, "each axis has a place"
        return total.transpose((0, 2, 1))


class PixelSums(_Pixels):
    """Sums of the elements of ``x`` (N, C, sizes) at places that are combinations of a few along
    each axis, times a weight for each of these; the result is (N, C, P).

    Inputs: ``x``, then the places, then the weights. A place outside of its axis counts as nothing.
    """

    def expanded(self, *inputs: Variable) -> list[Variable]:
        return [self.sums(*inputs)]

    def infer(self, *inputs: Any) -> Any:
        return super().infer(*inputs)[0]

    def reference(self, *inputs: Any) -> Any:
        return super().reference(*inputs)[0]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        (dy,), (x, *given) = cotangents, inputs
        assert dy is not None
        of_image = PixelSumsGradImage(self.taps, self.weighted)(*given, dy, x)
        none = [None] * sum(self.taps)
        if not self.weighted:
            return [of_image, *none]
        return [of_image, *none, *PixelSumsGradWeights(self.taps)(*inputs, dy)]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [0] * len(inputs), [0])


class PixelSumsGradImage(_Pixels):
    """The gradient of :class:`PixelSums` with respect to ``x``, of which only the shape is read.

    Inputs: the places, the weights, the result's gradient (N, C, P), ``x``.
    """

    @property
    def shape_inputs(self) -> tuple[int, ...]:
        return (self.count + 1,)

    def expanded(self, *inputs: Variable) -> list[Variable]:
        *given, dy, x = inputs
        dy = self.gradient_of(dy, x, given[0])
        found = vjp_of_expression(self.sums, [zeros_like(x), *given], dy)[0]
        assert found is not None
        return [found]

    def infer(self, *inputs: Any) -> Any:
        return super().infer(*inputs)[0]

    def reference(self, *inputs: Any) -> Any:
        return super().reference(*inputs)[0]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        (h,), (*given, dy, _) = cotangents, inputs
        assert h is not None
        none = [None] * sum(self.taps)
        weights = PixelSumsGradWeights(self.taps)(h, *given, dy) if self.weighted else ()
        return [*none, *weights, PixelSums(self.taps, self.weighted)(h, *given), None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [0] * len(inputs), [0])


class PixelSumsGradWeights(_Pixels, MultiOp):
    """The gradients of :class:`PixelSums` with respect to its weights.

    Inputs: ``x``, the places, the weights, the result's gradient.
    """

    def expanded(self, *inputs: Variable) -> list[Variable]:
        *given, dy = inputs
        dy = self.gradient_of(dy, *given[:2])
        found = vjp_of_expression(self.sums, given, dy)[1 + sum(self.taps) :]
        return [zeros_like(w) if g is None else g for w, g in zip(given[-sum(self.taps) :], found)]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_folded(self, inputs, axes, [0] * len(inputs), [0] * sum(self.taps))
