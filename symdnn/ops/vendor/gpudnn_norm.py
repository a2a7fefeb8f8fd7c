"""cuDNN's batch normalisation and local response normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.op import Grads, Op, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.core.composed import Composed
from symdnn.ops.nn.batchnorm import (
    BatchNormGrad,
    BatchNormInference,
    BatchNormTrain,
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
class GpuDnnBatchNormBase(Composed, DnnBase):
    """Base of batch normalisation: inputs of 4 or 5 dimensions, parameters of as many.

    ``mode`` is ``'per-activation'`` (statistics over the batch) or ``'spatial'`` (over all but the
    channels). With ``layout="NHWC"`` activations and parameters are (N, \\*sizes, C). Raises
    :class:`~symdnn.errors.OptionError` for an epsilon below 1e-5.
    """

    never_fails: ClassVar[bool] = True
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

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        # Not the expression's: the neutral op's gradient reads the statistics in the outputs.
        return self.neutral().vjp(self.neutral_inputs(inputs), outputs, cotangents)  # type: ignore[arg-type]

    def with_arguments(self, *arguments: Any, epsilon: Any = None) -> tuple[Any, Sequence[Any]]:
        """The five inputs, and in Theano the epsilon."""
        inputs, (given, *_) = arguments[:5], (*arguments[5:], epsilon)
        return (self if given is None else self.described(inputs[0], given)), inputs

    def described(self, x: TensorLike, epsilon: Any) -> Self:
        """This op for the ndim of ``x``, with an epsilon known when the graph is built."""
        name = f"{type(self).__name__}: epsilon"
        ndim = as_variable(x).type.ndim
        return replace(self, ndim=ndim, epsilon=constant_number(name, epsilon))


@dataclass(frozen=True)
class GpuDnnBatchNorm(GpuDnnBatchNormBase):
    """(out, mean, invstd[, new running mean, new running var]) of (x, scale, bias[, two running]).

    As in Theano: ``GpuDnnBatchNorm(mode, running_averages)(x, scale, bias, epsilon,
    running_average_factor, running_mean, running_var)``. The ``inplace_*`` fields say which results
    overwrite an input. (``cudnnBatchNormalizationForwardTraining``)
    """

    neutral_type: ClassVar[type[Op]] = BatchNormTrain
    running_averages: bool = False
    inplace_running_mean: bool = False
    inplace_running_var: bool = False
    inplace_output: bool = False
    running_average_factor: float = field(default=0.1, kw_only=True)

    @property
    def running(self) -> bool:
        """``running_averages``, by the neutral op's name."""
        return self.running_averages

    def neutral_inputs(self, inputs: Vars) -> Vars:
        if not self.running_averages:
            return inputs
        factor = constant(self.running_average_factor, dtype=inputs[1].type.dtype)
        return [*inputs[:3], factor, *inputs[3:]]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        grads = super().vjp(inputs, outputs, cotangents)
        return [*grads[:3], *grads[4:]] if self.running_averages else grads

    def with_arguments(self, *arguments: Any, **words: Any) -> tuple[Any, Sequence[Any]]:
        if not words and len(arguments) in (3, 5) and all(map(_is_tensor, arguments)):
            return self, arguments
        names = ("epsilon", "running_average_factor", "running_mean", "running_var")
        words = dict(zip(names, arguments[3:]), **words)
        what = f"{type(self).__name__}: running_average_factor"
        factor = constant_number(what, words.get("running_average_factor", 0.1))
        op = replace(
            self.described(arguments[0], words.get("epsilon", 1e-4)), running_average_factor=factor
        )
        running = [words["running_mean"], words["running_var"]] if self.running_averages else []
        return op, [*arguments[:3], *running]


def _is_tensor(v: object) -> bool:
    return isinstance(v, Variable) and isinstance(v.type, TensorType) and v.type.ndim > 0


@dataclass(frozen=True)
class GpuDnnBatchNormInference(GpuDnnBatchNormBase):
    """Normalisation of (x, scale, bias, mean, variance); in Theano epsilon is the sixth input.

    (``cudnnBatchNormalizationForwardInference``)
    """

    neutral_type: ClassVar[type[Op]] = BatchNormInference
    overwrites: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (0,)}
    inplace: bool = False


class GpuDnnBatchNormGrad(GpuDnnBatchNormBase):
    """(dx, dscale, dbias) of (x, dy, scale, mean, invstd); in Theano epsilon is the sixth input.

    (``cudnnBatchNormalizationBackward``)
    """

    neutral_type: ClassVar[type[Op]] = BatchNormGrad


@dataclass(frozen=True)
class _LRNFields(DnnBase):
    abstract: ClassVar[bool] = True
    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")
    n: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    layout: str = field(default="NCHW", kw_only=True)


class GpuDnnLRN(_LRNFields):
    """Normalisation across channels of x (N, C, ...). (``cudnnLRNCrossChannelForward``)"""

    neutral_type: ClassVar[type[Op]] = LRN


class GpuDnnLRNGrad(_LRNFields):
    """The gradient of x, of (x, y, dy). (``cudnnLRNCrossChannelBackward``)"""

    neutral_type: ClassVar[type[Op]] = LRNGrad
