"""cuDNN's softmax, reductions and activation functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.dims import Shape, product
from symdnn.graph.evaluate import evaluate
from symdnn.graph.op import Grads, Host, Op, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Variable, constant
from symdnn.ops.array.argreduce import ArgMax, ArgMin
from symdnn.ops.array.reduce import Max, Min, Prod, Reduce, Sum
from symdnn.ops.core.composed import vjp_of_expression
from symdnn.ops.core.shape import dims_of, reshape, specify_type
from symdnn.ops.elementwise.activations import Elu, Relu, Sigmoid, clipped_relu
from symdnn.ops.elementwise.arithmetic import Abs, cast, sqr, sqrt
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.nn.channels_last import moved_axis
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.ops.vendor.gpudnn_base import DnnBase

__all__ = [
    "GpuDnnActivation", "GpuDnnReduction", "GpuDnnSoftmax", "GpuDnnSoftmaxBase",
    "GpuDnnSoftmaxGrad",
]  # fmt: skip


@dataclass(frozen=True)
class GpuDnnSoftmaxBase(DnnBase):
    """Base of softmax and its gradient.

    ``algo`` is ``'fast'`` (does not subtract the maximum: may overflow), ``'accurate'`` or
    ``'log'`` (log-softmax). ``mode`` is ``'channel'`` (along ``axis``) or ``'instance'`` (over all
    dimensions but the first).
    """

    abstract: ClassVar[bool] = True
    dtypes: ClassVar[tuple[str, ...]] = (*DnnBase.dtypes, "bfloat16")
    algo: str = "accurate"
    mode: str = "channel"
    axis: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if self.algo not in ("fast", "accurate", "log"):
            raise OptionError(f"algo={self.algo!r}: wanted 'fast', 'accurate' or 'log'")
        if self.mode not in ("instance", "channel"):
            raise OptionError(f"mode={self.mode!r}: wanted 'instance' or 'channel'")

    @property
    def kinds(self) -> tuple[type[Any], type[Any]]:
        """The neutral op and its gradient."""
        return (LogSoftmax, LogSoftmaxGrad) if self.algo == "log" else (Softmax, SoftmaxGrad)

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {0: (0,)}

    def _rows(self, array: Any) -> Any:
        """An array for the neutral op: in the mode ``instance`` with one row for each instance."""
        return array.reshape(array.shape[0], -1) if self.mode == "instance" else array

    def _in_rows(self, v: Variable) -> Variable:
        if self.mode == "channel":
            return v
        first, *rest = dims_of(v)
        return reshape(v, (first, product(rest)), ndim=2)

    def _restored(self, y: Variable, like: Variable) -> Variable:
        if self.mode == "channel":
            return y
        return specify_type(reshape(y, dims_of(like), ndim=like.type.ndim), like.type)

    def reference(self, *inputs: Array) -> Any:
        own = [self._rows(a) for a in self._ordered(inputs)]
        return self.neutral().compute(*own)[0].reshape(inputs[0].shape)

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        own = [self._in_rows(v) for v in self._ordered(inputs)]
        return [self._restored(self.neutral()(*own), inputs[0])]

    def _ordered(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return inputs

    def along(self, axis: int) -> Self | None:
        return replace(self, axis=axis) if self.mode == "channel" else None

    def channels_last(self, ndim: int) -> Self | None:
        return self.along(moved_axis(self.axis, ndim))

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return None


@dataclass(frozen=True)
class GpuDnnSoftmax(GpuDnnSoftmaxBase):
    """Softmax of ``x``. (``cudnnSoftmaxForward``)"""

    @property
    def unlowered(self) -> Op:
        return self.kinds[0](self.axis)  # type: ignore[no-any-return]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        rows = [self._in_rows(v) for v in (outputs[0], cotangents[0])]
        return [self._restored(self.kinds[1](self.axis)(*rows), inputs[0])]


@dataclass(frozen=True)
class GpuDnnSoftmaxGrad(GpuDnnSoftmaxBase):
    """The gradient of softmax, of (dy, its result). (``cudnnSoftmaxBackward``)"""

    @property
    def unlowered(self) -> Op:
        return self.kinds[1](self.axis)  # type: ignore[no-any-return]

    def _ordered(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return inputs[::-1]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return vjp_of_expression(lambda *v: _only(self.expanded(*v)), inputs, cotangents[0])


def _only(found: list[Variable] | None) -> Variable:
    assert found is not None
    return found[0]


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
class GpuDnnReduction(DnnBase):
    """Reduction of ``x`` over ``axis``, which is removed. (``cudnnReduceTensor``)

    ``red_op`` is one of add, mul, maximum, minimum, absmax, avg, norm1, norm2. With
    ``return_indices`` (maximum and minimum) the second output is the index in the reduced
    dimensions, in C order, as uint32.
    """

    red_op: str
    axis: tuple[int, ...]
    acc_dtype: str
    dtype: str
    return_indices: bool = False

    def __post_init__(self) -> None:
        if self.red_op not in _REDUCTIONS:
            raise OptionError(f"red_op={self.red_op!r}: wanted one of {', '.join(_REDUCTIONS)}")
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
        return kind(self.axis, False, *accumulates)  # type: ignore[no-any-return]

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
        (reduced,) = self.neutral().output_types(inputs)
        assert isinstance(reduced, TensorType)
        kinds = [self.dtype, *["uint32"] * self.return_indices]
        return tuple(reduced.with_dtype(d) for d in kinds)

    def shapes(
        self, types: Sequence[TensorType], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        found = self.neutral().shapes(types, shapes, host)
        return None if found is None else list(found) * (1 + self.return_indices)

    def reference(self, *inputs: Array) -> Any:
        x = Variable(TensorType(inputs[0].dtype.name, inputs[0].shape))
        return tuple(evaluate(self.expanded(x) or [], {x: inputs[0]}))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        if cotangents[0] is None:
            return [None]
        return vjp_of_expression(lambda x: _only(self.expanded(x)), inputs, cotangents[0])

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return None

    def results(self, node: Apply) -> Any:
        return node.outputs if self.return_indices else node.outputs[0]


def reduction_word(op: Reduce) -> str | None:
    """The ``red_op`` of a neutral reduction; None if cuDNN has none for it."""
    words: dict[type[Any], str] = {Sum: "add", Prod: "mul", Max: "maximum", Min: "minimum"}
    return words.get(type(op))


# -- activation functions -------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuDnnActivation(DnnBase):
    """relu, sigmoid, tanh, elu (``coef`` is alpha) or clipped_relu (``coef`` is the ceiling).

    Ops are lowered to it only with ``optimizer_including=local_dnn_activation``: generated kernels
    fuse activation functions with their neighbours. (``cudnnActivationForward``)
    """

    dtypes: ClassVar[tuple[str, ...]] = (*DnnBase.dtypes, "bfloat16")
    mode: str = "relu"
    coef: float = 1.0

    def channels_last(self, ndim: int) -> Self | None:
        return self  # element by element

    def __post_init__(self) -> None:
        if self.mode not in ACTIVATIONS:
            raise OptionError(f"mode={self.mode!r}: wanted one of {', '.join(ACTIVATIONS)}")

    @property
    def unlowered(self) -> Op:
        kind: Any = ACTIVATIONS[self.mode]
        return kind()  # type: ignore[no-any-return]

    def infer(self, *inputs: TensorType) -> Any:
        (x,) = inputs
        if not isinstance(x, TensorType) or not x.is_float:
            raise TypeMismatch(self, "a float tensor", x)
        return x

    def shapes(
        self, types: Sequence[TensorType], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        return [tuple(shapes[0])]

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {0: (0,)}

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        (x,) = inputs
        coef = constant(np.full((1,) * x.type.ndim, self.coef, x.type.numpy))
        if self.mode == "clipped_relu":
            return [clipped_relu(x, coef)]
        own = [x, coef] if self.mode == "elu" else [x]
        return [self.neutral()(*own)]

    def reference(self, *inputs: Array) -> Any:
        x = Variable(TensorType(inputs[0].dtype.name, inputs[0].shape))
        return evaluate(self.expanded(x) or [], {x: inputs[0]})[0]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return vjp_of_expression(lambda x: _only(self.expanded(x)), inputs, cotangents[0])

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return None


#: cuDNN's word -> the neutral op.
ACTIVATIONS: dict[str, type[Op]] = {
    "relu": Relu, "sigmoid": Sigmoid, "tanh": Tanh, "elu": Elu, "clipped_relu": Relu,
}  # fmt: skip
