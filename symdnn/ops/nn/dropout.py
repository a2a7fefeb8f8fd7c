"""Dropout: elements (or whole feature maps) set to 0 at random, the rest scaled up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import AxisError, OptionError, TypeMismatch
from symdnn.graph.dims import DimT
from symdnn.graph.names.torch_words import advises
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.array.reduce import normal_axes
from symdnn.ops.core.dtype import widened, work_dtype
from symdnn.ops.core.lanes import lanes_of, same_for_all, sizes_of, stacked
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.random import rng_philox as philox
from symdnn.ops.random.random import (
    STATE_TYPE,
    check_state,
    next_state,
    random_bernoulli,
)
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["Dropout", "DropoutGrad", "dropout", "scaled_program", "spatial_dropout"]


def scaled_where(mask: Array, x: Array, rate: Any, scale: bool) -> Array:
    """``x / (1 - rate)`` (or ``x``) where the mask is true, else 0, in the dtype of ``x``."""
    (v,) = widened(x)
    keep = v.dtype.type(1) - v.dtype.type(rate)
    kept = v / keep if scale and keep else v
    return np.asarray(np.where(mask, kept, v.dtype.type(0)), x.dtype)


def scaled_program(dtype: str, scale: bool) -> ScalarProgram:
    """:func:`scaled_where` of (x, mask, rate). With a rate of 1 it does not divide."""
    b = Builder((dtype, "bool", "float32"))
    stored, mask, rate = (b.input(i) for i in range(3))
    x = stored.cast(work_dtype(dtype))
    keep = 1 - rate.cast(x.dtype)
    kept = x / keep.call("eq", 0).where(1, keep) if scale else x
    return b.program([mask.where(kept, 0).cast(dtype)])


@dataclass(frozen=True)
class Dropout(MultiOp):
    """(y, mask, next state) of (state, x, rate).

    ``mask`` is bool and has size 1 on the axes in ``shared``, where it broadcasts over ``x``; its
    element ``e`` is whether word ``counter + e`` of the stream is less than
    ``(1 - rate) * 2**32``, as in :class:`~symdnn.ops.random.random.RandomBernoulli`. ``y`` is x
    where the mask is true, times ``1 / (1 - rate)`` with ``scale``, and 0 elsewhere. A rate of 0
    keeps all elements, a rate of 1 none. Srivastava et al. 2014.
    """

    folds: ClassVar[bool] = False
    random_state: ClassVar[int] = 0

    shared: tuple[int, ...] = ()
    scale: bool = True

    def infer(self, state: TensorType, x: TensorType, rate: TensorType) -> tuple[Type, ...]:
        check_state(self, state)
        if not x.is_float or any(a >= x.ndim for a in self.shared):
            raise AxisError(self, f"a float tensor with the axes {self.shared}", x)
        if rate.ndim != 0 or rate.dtype != "float32":
            raise TypeMismatch(self, "a float32 scalar as rate", rate)
        return x, TensorType("bool", self.mask_shape(x.shape)), STATE_TYPE

    def mask_shape(self, shape: Sequence[DimT]) -> tuple[DimT | int, ...]:
        """The shape of the mask for this shape of ``x``."""
        return tuple(1 if i in self.shared else d for i, d in enumerate(shape))

    def reference(self, state: Array, x: Array, rate: Array) -> tuple[Array, ...]:
        shape = self.mask_shape(x.shape)
        size = int(np.prod(shape, dtype=np.int64))
        threshold = (1.0 - float(rate)) * 2.0**32
        mask = (philox.words(state, size, 1)[:, 0] < threshold).reshape(shape)
        return scaled_where(mask, x, rate, self.scale), mask, next_state(state, size)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [tuple(shapes[1]), self.mask_shape(shapes[1]), (2,)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (_, _, rate), (_, mask, _), dy = inputs, outputs, cotangents[0]
        return [None, None if dy is None else DropoutGrad(self.scale)(dy, mask, rate), None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        """A lane draws the numbers that follow those of the lanes before it."""
        state, x, rate = inputs
        if axes[0] is not None:
            return None
        whole = stacked(x, axes[1], lanes_of(inputs, axes))
        if axes[2] is None:
            op = Dropout(tuple(a + 1 for a in self.shared), self.scale)
            return op.make_node(state, whole, rate).outputs, [0, 0, None]
        each = _of_lane(rate, whole)
        shape = (sizes_of(rate)[0], *self.mask_shape(sizes_of(whole)[1:]))
        mask, new = random_bernoulli(state, 1 - each.astype("float64"), shape, "bool")
        return [_scaled_where(mask, whole, each, self.scale), mask, new], [0, 0, None]


@dataclass(frozen=True)
class DropoutGrad(Op):
    """``dy`` where the mask is true, times ``1 / (1 - rate)`` with ``scale``, else 0."""

    shaped_as: ClassVar[int | None] = 0
    linear_in_first: ClassVar[bool] = True
    scale: bool = True

    def infer(self, dy: TensorType, mask: TensorType, rate: TensorType) -> TensorType:
        if mask.dtype != "bool" or mask.ndim != dy.ndim or rate.dtype != "float32":
            raise TypeMismatch(self, "a cotangent, its mask and rate", [dy, mask, rate])
        return dy

    def reference(self, dy: Array, mask: Array, rate: Array) -> Array:
        return scaled_where(mask, dy, rate, self.scale)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [self(cotangents[0], *inputs[1:]), None, None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        dy, mask, rate = inputs
        whole = stacked(dy, axes[0], lanes_of(inputs, axes))
        held = same_for_all(mask) if axes[1] is None else mask
        if axes[2] is None:
            return [self(whole, held, rate)], [0]
        return [_scaled_where(held, whole, _of_lane(rate, whole), self.scale)], [0]


def _of_lane(rate: Variable, x: Variable) -> Variable:
    """A rate for each lane, to broadcast over ``x``."""
    return rate.dimshuffle(0, *["x"] * (x.type.ndim - 1))


def _scaled_where(mask: Variable, x: Variable, rate: Variable, scale: bool) -> Variable:
    """:func:`scaled_where` as an expression, for a rate that is no scalar."""
    wide = work_dtype(x.type.dtype)
    keep = np.ones((), wide) - cast(rate, wide)
    by = switch(keep > 0, keep, np.ones((), wide)) if scale else np.ones((), wide)
    return cast(switch(mask, cast(x, wide) / by, np.zeros((), wide)), x.type.dtype)


@advises(training="train")
def dropout(
    x: TensorLike,
    p: TensorLike = 0.5,
    stream: Any = None,
    *,
    train: Any = True,
    scale: bool = True,
    shared: Sequence[int] = (),
    return_mask: bool = False,
) -> Any:
    """``x`` with elements set to 0 with probability ``p``, the others divided by ``1 - p``.

    (Srivastava et al., 2014.) ``stream`` is a :class:`RandomStream`, or a seed for a new one.
    ``p`` and ``train`` may be symbolic scalars; if ``train`` is false, the result is ``x``.
    ``scale=False`` omits the scaling. ``shared`` are axes along which all elements share one
    decision. With ``return_mask`` the result is ``(y, mask)``, where the mask is bool and has size
    1 on ``shared``.
    """
    v = as_variable(x)
    source = stream if isinstance(stream, RandomStream) else RandomStream(stream)
    rate = as_variable(np.float32(p)) if isinstance(p, int | float) else cast(p, "float32")
    number = float(rate.data) if isinstance(rate, Constant) else 0.5
    if not 0 <= number <= 1:
        raise OptionError(f"dropout: p={p}; wanted a probability, 0 to 1")
    if isinstance(train, Variable):
        rate = switch(train, rate, np.float32(0))
    elif not train:
        rate = as_variable(np.float32(0))
        if not return_mask:
            return v
    axes = tuple(sorted(normal_axes(tuple(shared), v.type.ndim, "dropout")))
    state = source.new_state()
    y, mask, new = Dropout(axes, scale)(state, v, rate)
    source.register(state, new)
    return (y, mask) if return_mask else y


def spatial_dropout(
    x: TensorLike, p: TensorLike = 0.5, stream: Any = None, *, train: Any = True
) -> Variable:
    """:func:`dropout` of whole feature maps of (N, C, ...)."""
    v = as_variable(x)
    made: Variable = dropout(v, p, stream, train=train, shared=range(2, v.type.ndim))
    return made


OPERATORS: dict[str, Any] = {}
