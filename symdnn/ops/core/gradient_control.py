"""Identities that change the gradient, check the value or print it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from symdnn import errors
from symdnn.errors import InputError, NonDifferentiable, OptionError, TypeMismatch
from symdnn.graph.op import Axes, Batched, Grads, Op, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.lanes import on_lanes


@dataclass(frozen=True)
class Identity(Op):
    """Base of ops that pass their first input on, as a view of it.

    Once gradients have been taken, rewriting puts the input in the place of those that are
    ``gradient_only``: of all that check no data, and have no effect or place of their own.
    """

    shaped_as: ClassVar[int | None] = 0
    abstract: ClassVar[bool] = True
    gradient_only: ClassVar[bool] = True

    def infer(self, *inputs: TensorType) -> TensorType:
        return inputs[0]

    def reference(self, *inputs: Array) -> Array:
        return inputs[0]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [cotangents[0], *[None] * (len(inputs) - 1)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [tangents[0]]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return self.make_node(*inputs).outputs, [axes[0]]

    @property
    def views(self) -> Mapping[int, int]:
        return {0: 0}


class Opaque(Identity):
    """``x`` itself; rewrites that run before gradients are taken do not look through it."""


class DisconnectedGrad(Identity):
    """``x`` as a constant for gradients (Theano's ``disconnected_grad``)."""

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [None]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [None]


class ZeroGrad(Identity):
    """``x`` with a gradient of zero (Theano's ``zero_grad``)."""

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [cotangents[0].zeros_like()]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [None if t is None else t.zeros_like() for t in tangents]


class UndefinedGrad(Identity):
    """``x`` whose gradient raises an error when it is taken (Theano's ``undefined_grad``)."""

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        raise NonDifferentiable(f"the gradient through {inputs[0]} was declared undefined")

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        raise NonDifferentiable(f"the gradient through {inputs[0]} was declared undefined")


@dataclass(frozen=True)
class GradClip(Identity):
    """``x`` whose gradient is clipped to ``[lower, upper]`` (Theano's ``grad_clip``)."""

    lower: float
    upper: float

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [cotangents[0].clip(self.lower, self.upper)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        raise NonDifferentiable("grad_clip has no forward mode (Rop); use grad")


class GradWhere(Identity):
    """``x`` of (x, mask) whose gradient is 0, also in place of NaN, where the bool mask is false.

    The mask has the first dimensions of ``x``.
    """

    def infer(self, *inputs: TensorType) -> TensorType:
        x, mask = inputs
        if mask.dtype != "bool" or mask.ndim > x.ndim:
            raise TypeMismatch(self, "a bool mask of the first dimensions of x", [x, mask])
        return x

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        g, mask = cotangents[0], inputs[1]
        wide = mask.dimshuffle(*range(mask.type.ndim), *["x"] * (g.type.ndim - mask.type.ndim))
        return [operator("switch")(wide, g, np.zeros((), g.type.numpy)), None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes)


class StraightThrough(Identity):
    """The first of two tensors, with the derivatives of the second one: ``straight_through``."""

    def infer(self, *inputs: TensorType) -> TensorType:
        value, like = inputs
        if not (value.is_float and like.is_float and value.dtype == like.dtype):
            raise TypeMismatch(self, "two float tensors of one dtype", list(inputs))
        if value.ndim != like.ndim:
            raise TypeMismatch(self, "two tensors of equal ndim", list(inputs))
        return value

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [None, cotangents[0]]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [tangents[1]]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return (self.make_node(*inputs).outputs, [0]) if axes[0] == axes[1] else None


@dataclass(frozen=True)
class GradScale(Identity):
    """``x`` whose gradient is multiplied by ``multiplier`` (Theano's ``grad_scale``)."""

    multiplier: float

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [cotangents[0] * np.asarray(self.multiplier, inputs[0].type.numpy)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [tangents[0] * np.asarray(self.multiplier, inputs[0].type.numpy)]


@dataclass(frozen=True)
class Assert(Identity):
    """The first input; raises :class:`AssertionFailed` if one of the others, conditions, is false.

    Theano's ``tensor.opt.Assert`` and ``raise_op.Assert``.

    >>> import symdnn.tensor as T
    >>> x = T.vector("x")
    >>> y = Assert("x must be positive")(x, x > 0)
    >>> y.eval({x: [1.0]}).tolist()
    [1.0]
    """

    gradient_only: ClassVar[bool] = False

    message: str = "Assert failed"
    #: The name of the exception: where a rewrite checks operands, that of the op it stands for.
    error: str = "AssertionFailed"

    def failure(self, condition: int) -> errors.SymdnnError:
        """The exception of a condition that is false, by its number."""
        found: errors.SymdnnError = getattr(errors, self.error)(
            f"{self.message} (condition {condition})"
        )
        return found

    def infer(self, *inputs: TensorType) -> TensorType:
        for condition in inputs[1:]:
            if not isinstance(condition, TensorType):
                raise TypeMismatch(self, "conditions that are tensors", list(inputs))
        return inputs[0]

    def reference(self, *inputs: Array) -> Array:
        for i, condition in enumerate(inputs[1:]):
            if not np.all(condition):
                raise self.failure(i)
        return inputs[0]


#: What a file may have of an array printed: these change nothing, and take no memory.
_PORTABLE_ATTRS = {
    "__str__", "__repr__", "dtype", "max", "mean", "min", "nbytes", "ndim", "shape", "size", "std",
    "strides", "sum", "var",
}  # fmt: skip


@dataclass(frozen=True)
class Print(Identity):
    """``x``; each run prints ``message`` and ``attrs`` of the value (Theano's ``Print``).

    ``attrs`` are names of attributes or methods of the array (``"shape"``, ``"__str__"``,
    ``"mean"``); ``function(op, array)`` replaces the printing.
    """

    gradient_only: ClassVar[bool] = False
    host_callback: ClassVar[bool] = True
    unmergeable: ClassVar[bool] = True
    ordered: ClassVar[bool] = True

    message: str = ""
    attrs: tuple[str, ...] = ("__str__",)
    function: Callable[[Any, Any], None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", tuple(self.attrs))

    def portable(self) -> Print:
        if strange := sorted(set(self.attrs) - _PORTABLE_ATTRS):
            wanted = ", ".join(sorted(_PORTABLE_ATTRS))
            raise InputError(f"Print of {', '.join(strange)}: in a file, wanted of {wanted}")
        return self

    def reference(self, *inputs: Array) -> Array:
        (self.function or _print)(self, inputs[0])
        return inputs[0]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [cotangents[0]]


def _print(op: Print, value: Array) -> None:
    for name in op.attrs:
        found = getattr(value, name)
        shown = found() if callable(found) else found
        sys.stdout.write(f"{op.message} {name} = {shown}\n")


def disconnected_grad(x: TensorLike) -> Variable:
    """``x`` as a constant for gradients: they do not pass it on to what ``x`` depends on."""
    return DisconnectedGrad()(x)


def zero_grad(x: TensorLike) -> Variable:
    """``x`` whose gradient is zero."""
    return ZeroGrad()(x)


consider_constant = zero_grad


def straight_through(value: TensorLike, like: TensorLike) -> Variable:
    """``value``, with the gradient of ``like``: both of one shape, and of one float dtype.

    For values whose own derivative is 0 or does not exist, such as rounded ones: the
    straight-through estimator (Bengio, Leonard, Courville 2013). ``like`` is not computed unless a
    gradient needs it. Raises :class:`~symdnn.errors.TypeMismatch` for other types.

    >>> import symdnn.tensor as T
    >>> x = T.dvector("x")
    >>> T.grad(straight_through(T.round(x), x).sum(), x).eval({x: [0.2, 1.7]})
    array([1., 1.])
    """
    return StraightThrough()(as_variable(value), as_variable(like))


def undefined_grad(x: TensorLike) -> Variable:
    """``x`` whose gradient raises."""
    return UndefinedGrad()(x)


def grad_clip(x: TensorLike, lower_bound: float, upper_bound: float) -> Variable:
    """``x`` whose gradient is clipped elementwise to the bounds."""
    if not lower_bound <= upper_bound:
        raise OptionError(f"grad_clip: lower_bound {lower_bound} is above {upper_bound}")
    return GradClip(float(lower_bound), float(upper_bound))(x)


def grad_scale(x: TensorLike, multiplier: float) -> Variable:
    """``x`` whose gradient is multiplied by ``multiplier`` (-1: gradient reversal)."""
    return GradScale(float(multiplier))(x)


def assert_(value: TensorLike, *conditions: TensorLike, message: str = "Assert failed") -> Variable:
    """``value``, checked when it runs: every element of every condition must be true."""
    tests = [as_variable(c) for c in conditions]
    if not tests:
        return as_variable(value)
    return Assert(message)(as_variable(value), *tests)


OPERATORS = {"disconnected_grad": disconnected_grad, "assert_": assert_}
