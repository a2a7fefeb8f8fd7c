"""cuDNN's batch normalisation and local response normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.dims import Shape
from symdnn.graph.op import Grads, Host, Op, Vars
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.nn.batchnorm import (
    BatchNormGrad,
    BatchNormInference,
    BatchNormTrain,
    parameter_dtype,
)
from symdnn.ops.nn.lrn import LRN, LRNGrad
from symdnn.ops.nn.normalization import norm_axes
from symdnn.ops.vendor.gpudnn_base import DnnBase, constant_number

__all__ = [
    "MIN_EPSILON", "GpuDnnBatchNorm", "GpuDnnBatchNormBase", "GpuDnnBatchNormGrad",
    "GpuDnnBatchNormInference", "GpuDnnLRN", "GpuDnnLRNGrad",
]  # fmt: skip

#: The smallest epsilon of batch normalisation, as in Theano (once cuDNN's limit).
MIN_EPSILON = 1e-5


@dataclass(frozen=True)
class GpuDnnBatchNormBase(DnnBase):
    """Base of batch normalisation: inputs of 4 or 5 dimensions, parameters of as many.

    ``mode`` is ``'per-activation'`` (statistics over the batch) or ``'spatial'`` (over all but the
    channels). With ``layout="NHWC"`` activations and parameters are (N, \\*sizes, C). Raises
    :class:`~symdnn.errors.OptionError` for an epsilon below 1e-5.
    """

    abstract: ClassVar[bool] = True
    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")
    dtypes: ClassVar[tuple[str, ...]] = (*DnnBase.dtypes, "bfloat16")
    mode: str = "per-activation"
    epsilon: float = field(default=1e-4, kw_only=True)
    ndim: int = field(default=4, kw_only=True)
    layout: str = field(default="NCHW", kw_only=True)

    def __post_init__(self) -> None:
        norm_axes(self.mode, self.ndim, type(self).__name__)
        if self.epsilon < MIN_EPSILON:
            raise OptionError(f"epsilon={self.epsilon}: wanted at least {MIN_EPSILON}")

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of the statistics, in (N, C, \\*sizes)."""
        return norm_axes(self.mode, self.ndim, type(self).__name__)

    def infer(self, *inputs: TensorType) -> Any:
        x = inputs[0]
        if not isinstance(x, TensorType) or x.ndim != self.ndim or x.ndim not in (4, 5):
            raise TypeMismatch(self, "a tensor of 4 or 5 dimensions", x)
        return super().infer(*inputs)

    def described(self, x: Variable, epsilon: Any) -> Any:
        """This op for the ndim of ``x``, with an epsilon known when the graph is built."""
        name = f"{type(self).__name__}: epsilon"
        return replace(self, ndim=x.type.ndim, epsilon=constant_number(name, epsilon))


@dataclass(frozen=True)
class GpuDnnBatchNorm(GpuDnnBatchNormBase):
    """(out, mean, invstd[, new running mean, new running var]) of (x, scale, bias[, two running]).

    As in Theano: ``GpuDnnBatchNorm(mode, running_averages)(x, scale, bias, epsilon,
    running_average_factor, running_mean, running_var)``. The ``inplace_*`` fields say which results
    overwrite an input. (``cudnnBatchNormalizationForwardTraining``)
    """

    running_averages: bool = False
    inplace_running_mean: bool = False
    inplace_running_var: bool = False
    inplace_output: bool = False
    running_average_factor: float = field(default=0.1, kw_only=True)

    @property
    def unlowered(self) -> Op:
        return BatchNormTrain(self.axes, self.epsilon, self.running_averages)

    def _full(self, inputs: Sequence[Any], factor: Any) -> list[Any]:
        """The neutral op's inputs, with the factor."""
        return [*inputs[:3], *([factor] if self.running_averages else []), *inputs[3:]]

    def infer(self, *inputs: TensorType) -> Any:
        x = inputs[0]
        if not isinstance(x, TensorType) or x.ndim != self.ndim or x.ndim not in (4, 5):
            raise TypeMismatch(self, "a tensor of 4 or 5 dimensions", x)
        full = self._full(inputs, TensorType(parameter_dtype(x.dtype), ()))
        return self.neutral().output_types(full)

    def shapes(
        self, types: Sequence[TensorType], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        scalar = TensorType(parameter_dtype(types[0].dtype), ())
        return self.neutral().shapes(self._full(types, scalar), self._full(shapes, ()), host)

    def reference(self, *inputs: Array) -> Any:
        factor = np.asarray(self.running_average_factor, inputs[1].dtype)
        return self.neutral().compute(*self._full(inputs, factor))

    def neutral_inputs(self, inputs: Sequence[Variable]) -> Sequence[Variable]:
        if not self.running_averages:
            return inputs
        dtype = inputs[1].type.dtype
        return self._full(inputs, constant(self.running_average_factor, dtype=dtype))

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        return list(self.neutral()(*self.neutral_inputs(inputs)))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        grads = list(self.neutral().vjp(self.neutral_inputs(inputs), outputs, cotangents))
        return [*grads[:3], *grads[4:]] if self.running_averages else grads

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return None

    def __call__(
        self, *inputs: Any, hints: Hints | None = None, name: str | None = None, **words: Any
    ) -> Any:
        """Apply to (x, scale, bias[, running_mean, running_var]), or as in Theano."""
        names = ("epsilon", "running_average_factor", "running_mean", "running_var")
        if not words and len(inputs) in (3, 5) and all(_is_tensor(v) for v in inputs):
            return super().__call__(*inputs, hints=hints, name=name)
        words = dict(zip(names, inputs[3:]), **words)
        own = [as_variable(v) for v in inputs[:3]]
        op = self.described(own[0], words.get("epsilon", 1e-4))
        factor = words.get("running_average_factor", 0.1)
        op = replace(op, running_average_factor=constant_number(f"{type(self).__name__}: "
                     "running_average_factor", factor))  # fmt: skip
        if self.running_averages:
            own += [as_variable(words["running_mean"]), as_variable(words["running_var"])]
        return DnnBase.__call__(op, *own, hints=hints, name=name)


def _is_tensor(v: object) -> bool:
    return isinstance(v, Variable) and isinstance(v.type, TensorType) and v.type.ndim > 0


@dataclass(frozen=True)
class GpuDnnBatchNormInference(GpuDnnBatchNormBase):
    """Normalisation of (x, scale, bias, mean, variance); in Theano epsilon is the sixth input.

    (``cudnnBatchNormalizationForwardInference``)
    """

    inplace: bool = False

    @property
    def unlowered(self) -> Op:
        return BatchNormInference(self.axes, self.epsilon)

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {0: (0,)}

    def __call__(
        self, *inputs: Any, hints: Hints | None = None, name: str | None = None, **words: Any
    ) -> Any:
        """Apply to (x, scale, bias, mean, var), or as in Theano with an epsilon."""
        return _with_epsilon(self, 5, inputs, hints, name, words)


@dataclass(frozen=True)
class GpuDnnBatchNormGrad(GpuDnnBatchNormBase):
    """(dx, dscale, dbias) of (x, dy, scale, mean, invstd); in Theano epsilon is the sixth input.

    (``cudnnBatchNormalizationBackward``)
    """

    @property
    def unlowered(self) -> Op:
        return BatchNormGrad(self.axes, self.epsilon)

    def __call__(
        self, *inputs: Any, hints: Hints | None = None, name: str | None = None, **words: Any
    ) -> Any:
        """Apply to (x, dy, scale, mean, invstd), or as in Theano with an epsilon."""
        return _with_epsilon(self, 5, inputs, hints, name, words)


def _with_epsilon(
    op: GpuDnnBatchNormBase, count: int, inputs: Sequence[Any], hints: Hints | None,
    name: str | None, words: Mapping[str, Any],
) -> Any:  # fmt: skip
    own = [as_variable(v) for v in inputs[:count]]
    if len(inputs) > count or words:
        epsilon = inputs[count] if len(inputs) > count else words["epsilon"]
        op = op.described(own[0], epsilon)
    return DnnBase.__call__(op, *own, hints=hints, name=name)


@dataclass(frozen=True)
class _LRNFields(DnnBase):
    abstract: ClassVar[bool] = True
    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")
    n: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    layout: str = field(default="NCHW", kw_only=True)


@dataclass(frozen=True)
class GpuDnnLRN(_LRNFields):
    """Normalisation across channels of x (N, C, ...). (``cudnnLRNCrossChannelForward``)"""

    @property
    def unlowered(self) -> Op:
        return LRN(self.n, self.alpha, self.beta, self.k)


@dataclass(frozen=True)
class GpuDnnLRNGrad(_LRNFields):
    """The gradient of x, of (x, y, dy). (``cudnnLRNCrossChannelBackward``)"""

    @property
    def unlowered(self) -> Op:
        return LRNGrad(self.n, self.alpha, self.beta, self.k)
