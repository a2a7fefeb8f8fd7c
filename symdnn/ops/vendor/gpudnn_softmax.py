"""cuDNN's softmax, reductions and activation functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.dims import product
from symdnn.graph.op import Grads, Op, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable, constant
from symdnn.ops.array.argreduce import ArgMax, ArgMin
from symdnn.ops.array.reduce import Max, Min, Prod, Reduce, Sum
from symdnn.ops.core.composed import Composed
from symdnn.ops.core.shape import dims_of, reshape, specify_type
from symdnn.ops.elementwise.activations import Elu, Relu, Sigmoid, clipped_relu
from symdnn.ops.elementwise.arithmetic import Abs, cast, sqr, sqrt
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.nn.channels_last import moved_axis
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.ops.vendor.gpudnn_base import Choices, DnnBase

__all__ = [
    "GpuDnnActivation", "GpuDnnReduction", "GpuDnnSoftmax", "GpuDnnSoftmaxBase",
    "GpuDnnSoftmaxGrad",
]  # fmt: skip


@dataclass(frozen=True)
class GpuDnnSoftmaxBase(Composed, DnnBase):
    """Base of softmax and its gradient.

    ``algo`` is ``'fast'`` (does not subtract the maximum: may overflow), ``'accurate'`` or
    ``'log'`` (log-softmax). ``mode`` is ``'channel'`` (along ``axis``) or ``'instance'`` (over all
    dimensions but the first).
    """

    never_fails: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = (*DnnBase.dtypes, "bfloat16")
    overwrites: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (0,)}
    choices: ClassVar[Choices] = {
        "algo": ("fast", "accurate", "log"), "mode": ("instance", "channel"),
    }  # fmt: skip
    algo: str = "accurate"
    mode: str = "channel"
    axis: int = field(default=1, kw_only=True)

    def _in_rows(self, v: Variable) -> Variable:
        """An input of the neutral op: in the mode ``instance`` with one row for each instance."""
        if self.mode == "channel":
            return v
        first, *rest = dims_of(v)
        return reshape(v, (first, product(rest)), ndim=2)

    def _restored(self, y: Variable, like: Variable) -> Variable:
        if self.mode == "channel":
            return y
        return specify_type(reshape(y, dims_of(like), ndim=like.type.ndim), like.type)

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        own = [self._in_rows(v) for v in self.neutral_inputs(inputs)]
        return [self._restored(self.neutral()(*own), inputs[0])]

    def along(self, axis: int) -> Self | None:
        return replace(self, axis=axis) if self.mode == "channel" else None

    def channels_last(self, ndim: int) -> Self | None:
        return self.along(moved_axis(self.axis, ndim))


class GpuDnnSoftmax(GpuDnnSoftmaxBase):
    """Softmax of ``x``. (``cudnnSoftmaxForward``)"""

    @property
    def neutral_type(self) -> type[Op]:  # type: ignore[override]
        return LogSoftmax if self.algo == "log" else Softmax

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        # Not the expression's: this one reads the result.
        (dy,) = cotangents
        assert dy is not None
        return GpuDnnSoftmaxGrad.of(self).expanded(dy, outputs[0]) or []


class GpuDnnSoftmaxGrad(GpuDnnSoftmaxBase):
    """The gradient of softmax, of (dy, its result). (``cudnnSoftmaxBackward``)"""

    @property
    def neutral_type(self) -> type[Op]:  # type: ignore[override]
        return LogSoftmaxGrad if self.algo == "log" else SoftmaxGrad

    def neutral_inputs(self, inputs: Vars) -> Vars:
        return inputs[::-1]


# -- reductions -----------------------------------------------------------------------------------

_Expression = Callable[["GpuDnnReduction", Variable], Variable]


def _sum(op: GpuDnnReduction, x: Variable) -> Variable:
    return Sum(op.axis, False, op.dtype, op.acc_dtype)(x)


def _mean(op: GpuDnnReduction, x: Variable) -> Variable:
    count = product(dims_of(x)[a] for a in op.axis)
    return cast(_sum(op, x) / cast(count, op.dtype), op.dtype)


#: Theano's word -> the reduction in neutral ops. cuDNN: ``CUDNN_REDUCE_TENSOR_*``.
_REDUCTIONS: dict[str, _Expression] = {
    "add": _sum,
    "mul": lambda op, x: Prod(op.axis, False, op.dtype, op.acc_dtype)(x),
    "maximum": lambda op, x: cast(Max(op.axis)(x), op.dtype),
    "minimum": lambda op, x: cast(Min(op.axis)(x), op.dtype),
    "absmax": lambda op, x: cast(Max(op.axis)(Abs()(x)), op.dtype),
    "avg": _mean,
    "norm1": lambda op, x: _sum(op, Abs()(x)),
    "norm2": lambda op, x: sqrt(_sum(op, sqr(x))),
}


@dataclass(frozen=True)
class GpuDnnReduction(Composed, DnnBase):
    """Reduction of ``x`` over ``axis``, which is removed. (``cudnnReduceTensor``)

    ``red_op`` is one of add, mul, maximum, minimum, absmax, avg, norm1, norm2. With
    ``return_indices`` (maximum and minimum) the second output is the index in the reduced
    dimensions, in C order, as uint32.
    """

    never_fails: ClassVar[bool] = True
    choices: ClassVar[Choices] = {"red_op": tuple(_REDUCTIONS)}
    red_op: str
    axis: tuple[int, ...]
    acc_dtype: str
    dtype: str
    return_indices: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.return_indices and self.red_op not in ("maximum", "minimum"):
            raise OptionError(f"red_op={self.red_op!r}: only maximum and minimum have indices")
        object.__setattr__(self, "axis", tuple(sorted(int(a) for a in self.axis)))

    @property
    def unlowered(self) -> Op:
        plain = self.red_op in ("add", "mul", "maximum", "minimum") and not self.return_indices
        return self.neutral() if plain else self

    @property
    def reduced_axes(self) -> tuple[int, ...] | None:
        return None if self.return_indices else self.axis

    def over(self, axes: Sequence[int]) -> GpuDnnReduction:
        return replace(self, axis=tuple(axes))

    def neutral(self) -> Op:
        """The reduction alone, without the square, root or absolute value around it."""
        kinds = {"mul": Prod, "maximum": Max, "minimum": Min, "absmax": Max}
        kind: Any = kinds.get(self.red_op, Sum)
        accumulates = (self.dtype, self.acc_dtype) if kind in (Sum, Prod) else ()
        made: Op = kind(self.axis, False, *accumulates)
        return made

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        (x,) = inputs
        found = [_REDUCTIONS[self.red_op](self, x)]
        if self.return_indices:
            kind = ArgMax if self.red_op == "maximum" else ArgMin
            found.append(cast(kind(self.axis)(x), "uint32"))
        return found

    def infer(self, *inputs: TensorType) -> Any:
        (x,) = inputs
        if not isinstance(x, TensorType) or not x.is_float or x.ndim > 8:
            raise TypeMismatch(self, "a float tensor of at most 8 dimensions", x)
        return super().infer(x)

    def results(self, node: Apply) -> Any:
        return node.outputs if self.return_indices else node.outputs[0]


def reduction_word(op: Reduce) -> str | None:
    """The ``red_op`` of a neutral reduction; None if cuDNN has none for it."""
    words: dict[type[Any], str] = {Sum: "add", Prod: "mul", Max: "maximum", Min: "minimum"}
    return words.get(type(op))


# -- activation functions -------------------------------------------------------------------------

#: cuDNN's word -> the neutral op.
ACTIVATIONS: dict[str, type[Op]] = {
    "relu": Relu, "sigmoid": Sigmoid, "tanh": Tanh, "elu": Elu, "clipped_relu": Relu,
}  # fmt: skip


@dataclass(frozen=True)
class GpuDnnActivation(Composed, DnnBase):
    """relu, sigmoid, tanh, elu (``coef`` is alpha) or clipped_relu (``coef`` is the ceiling).

    Ops are lowered to it only with ``optimizer_including=local_dnn_activation``: generated kernels
    fuse activation functions with their neighbours. (``cudnnActivationForward``)
    """

    dtypes: ClassVar[tuple[str, ...]] = (*DnnBase.dtypes, "bfloat16")
    overwrites: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (0,)}
    choices: ClassVar[Choices] = {"mode": tuple(ACTIVATIONS)}
    mode: str = "relu"
    coef: float = 1.0

    def channels_last(self, ndim: int) -> Self | None:
        return self  # element by element

    @property
    def neutral_type(self) -> type[Op]:  # type: ignore[override]
        return ACTIVATIONS[self.mode]

    def infer(self, *inputs: TensorType) -> Any:
        (x,) = inputs
        if not isinstance(x, TensorType) or not x.is_float:
            raise TypeMismatch(self, "a float tensor", x)
        return x

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        (x,) = inputs
        coef = constant(np.full((1,) * x.type.ndim, self.coef, x.type.numpy))
        if self.mode == "clipped_relu":
            return [clipped_relu(x, coef)]
        own = [x, coef] if self.mode == "elu" else [x]
        return [self.neutral()(*own)]
