"""cuDNN's convolution in its three directions, with Theano's constructors and descriptor.

The result is ``alpha * convolution + beta * out``, an epilogue
(:mod:`symdnn.ops.vendor.epilogue`); ``out`` is the last input and is there only where ``beta`` is
not 0. What cuDNN calls the directions, and which flag names their algorithm:

    GpuDnnConv       forward           dnn.conv.algo_fwd         Conv
    GpuDnnConvGradI  backward data     dnn.conv.algo_bwd_data    ConvGradInput
    GpuDnnConvGradW  backward filter   dnn.conv.algo_bwd_filter  ConvGradWeight
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np

from symdnn.config import config
from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.op import Grads, Op, Vars
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.lowered import DnnBase
from symdnn.ops.core.shape import as_dim, dims_of, static_dim
from symdnn.ops.nn.channels_last import in_layout
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight, Pad
from symdnn.ops.nn.conv_words import border_padding
from symdnn.ops.vendor.epilogue import EpilogueOp, EpilogueRules

__all__ = [
    "ONLY_2D", "RANDOM", "DnnConvolution", "GpuDnnConv", "GpuDnnConvDesc", "GpuDnnConvGradI",
    "GpuDnnConvGradW", "compute_precision",
]  # fmt: skip

#: Algorithms that cuDNN has for images only, by direction.
ONLY_2D = {
    "fwd": ("fft", "winograd", "winograd_non_fused"),
    "bwd_data": ("fft", "winograd", "winograd_non_fused"),
    "bwd_filter": ("fft", "fft_tiling", "winograd_non_fused"),
}

#: Algorithms that add up in any order, so that the last bits differ from run to run.
RANDOM = {"fwd": (), "bwd_data": ("none",), "bwd_filter": ("none", "small")}


def compute_precision(precision: str, dtype: str) -> str:
    """The dtype in which a convolution of ``dtype`` accumulates, for a value of the flag
    ``dnn.conv.precision``."""
    if precision == "as_input_f32":
        return "float32" if is_narrow_float(dtype) else dtype
    return dtype if precision == "as_input" else precision


@dataclass(frozen=True)
class GpuDnnConvDesc:
    """How to convolve, for ops applied by hand: ``GpuDnnConvDesc(...)(kern.shape)``.

    ``border_mode`` as in ``dnn_conv``; ``conv_mode`` is ``'conv'`` (kernels are mirrored) or
    ``'cross'``; ``precision`` is the accumulation dtype. Plain data: calling it with the kernel's
    shape, as Theano's programs do, gives it back.
    """

    border_mode: Any
    subsample: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    conv_mode: str = "conv"
    precision: str = "float32"
    num_groups: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "subsample", tuple(map(int, self.subsample)))
        dilation = tuple(map(int, self.dilation))
        if dilation == (1, 1) and len(self.subsample) == 3:
            dilation = (1, 1, 1)
        object.__setattr__(self, "dilation", dilation)
        if isinstance(self.border_mode, list):
            object.__setattr__(self, "border_mode", tuple(self.border_mode))
        if len(dilation) != len(self.subsample):
            raise OptionError(f"{self}: subsample and dilation must have the same length")
        if self.conv_mode not in ("conv", "cross"):
            raise OptionError(f"conv_mode={self.conv_mode!r}: wanted 'conv' or 'cross'")
        self.padding()

    def padding(self) -> tuple[Pad, ...]:
        """A pair of ints, ``'half'`` or ``'full'`` for each dimension."""
        return border_padding(self.border_mode, len(self.subsample))

    def __call__(self, kern_shape: Any = None) -> GpuDnnConvDesc:
        return self


@dataclass(frozen=True)
class DnnConvolution(EpilogueOp, DnnBase):
    """Base of the three directions; the fields without a place of their own are keywords.

    Until it is described (by hand: with a :class:`GpuDnnConvDesc`) ``stride`` is empty.
    ``precision`` is the accumulation dtype. With ``layout="NHWC"`` images and kernels have their
    channels last, as (N, \\*sizes, C) and (K, \\*sizes, C).
    """

    abstract: ClassVar[bool] = True
    rules: ClassVar[EpilogueRules] = EpilogueRules(
        linear_dtypes=("float16", "bfloat16", "float32", "float64"), scales=True,
        scales_residual=True,
    )  # fmt: skip
    #: cuDNN's direction, as the flags ``dnn.conv.algo_*`` spell it.
    direction: ClassVar[str] = ""

    padding: tuple[Pad, ...] = field(default=(), kw_only=True)
    stride: tuple[int, ...] = field(default=(), kw_only=True)
    dilation: tuple[int, ...] = field(default=(), kw_only=True)
    conv_mode: str = field(default="conv", kw_only=True)
    precision: str | None = field(default=None, kw_only=True)
    layout: str = field(default="NCHW", kw_only=True)

    # Fields of the subclasses, in each in Theano's order.
    @property
    def algo(self) -> str | int | None:
        """A value of the flag of this direction, or the number of one of cuDNN's algorithms."""
        raise NotImplementedError

    @property
    def inplace(self) -> bool:
        """Whether the result is written over ``out`` (true without one)."""
        raise NotImplementedError

    @property
    def num_groups(self) -> int:
        """In how many groups the channels are convolved."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Number of spatial dimensions."""
        return len(self.stride)

    @property
    def groups(self) -> int:
        """``num_groups``, by the neutral op's name."""
        return self.num_groups

    @property
    def flip(self) -> bool:
        """Whether kernels are mirrored."""
        return self.conv_mode == "conv"

    @property
    def settings(self) -> tuple[Any, ...]:
        """The fields that the neutral op has, in its order."""
        return self.padding, self.stride, self.dilation, self.num_groups, self.flip

    @property
    def beta(self) -> float:
        """The factor of ``out``; 0 without one."""
        return self.residual

    @property
    def output_index(self) -> int | None:
        """Which input is ``out``; None without one."""
        return 2 + len(self.neutral().host_inputs) if self.residual else None

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {} if self.output_index is None else {0: (self.output_index,)}

    def infer(self, *inputs: Any) -> Any:
        if not self.stride:
            do = "Give it: op(x, w, out, GpuDnnConvDesc(border_mode='valid')(w.shape))"
            raise TypeMismatch(self, "a descriptor", list(inputs), do)
        return super().infer(*inputs)

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        if not self.terms.is_linear:
            return super().expanded(*inputs)
        own, out = self.split(inputs)
        y: Any = scaled(self.neutral()(*own), self.alpha)
        return [y + scaled(out[0], self.beta) if out else y]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        if not self.terms.is_linear:
            return super().vjp(inputs, outputs, cotangents)
        (dy,) = cotangents
        own, out = self.split(inputs)
        grads = list(self.neutral().vjp(own, outputs, [scaled(dy, self.alpha)]))
        return [*grads, scaled(dy, self.beta)] if out else grads

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        if not self.terms.is_linear:
            return super().jvp(inputs, outputs, tangents)
        own, out = self.split(inputs)
        found = self.neutral().jvp(own, outputs, tangents[: len(own)])
        terms = [scaled(t, self.alpha) for t in found or () if t is not None]
        if out and tangents[-1] is not None:
            terms.append(scaled(tangents[-1], self.beta))
        return [sum(terms[1:], terms[0]) if terms else None]

    # -- applied by hand ----------------------------------------------------------------------

    def __call__(
        self, *inputs: Any, hints: Hints | None = None, name: str | None = None, **by_hand: Any
    ) -> Any:
        """Apply to the neutral op's inputs; or by hand as in Theano, with
        ``(img, kern, output, desc, alpha=None, beta=None)``."""
        words = dict(zip(("output", "desc", "alpha", "beta"), inputs[2:]), **by_hand)
        if not isinstance(words.get("desc"), GpuDnnConvDesc):
            return super().__call__(*inputs, hints=hints, name=name)
        out = self._by_hand(as_variable(inputs[0]), as_variable(inputs[1]), hints=hints, **words)
        out.name = name
        return out

    def _by_hand(
        self, a: Variable, b: Variable, output: Any, desc: GpuDnnConvDesc, alpha: Any = None,
        beta: Any = None, hints: Hints | None = None,
    ) -> Variable:  # fmt: skip
        op = self.described(desc, a.type.dtype)
        alpha, beta = _factor(1.0 if alpha is None else alpha), _factor(beta or 0.0)
        own = [a, b, *op._sizes(output)]
        op = op._with_static(own[2:])
        if isinstance(alpha, float) and isinstance(beta, float):
            if (alpha, beta) != (1, 0):
                op = op.ending(a.type.dtype, alpha=alpha, residual=beta)
            return DnnBase.__call__(op, *own, *([output] if beta else []), hints=hints)
        # Factors that are computed: cuDNN reads them on the host, so they stay outside.
        y = DnnBase.__call__(op, *own, hints=hints) * alpha
        return y + as_variable(output) * beta  # type: ignore[no-any-return]

    def described(self, desc: GpuDnnConvDesc, dtype: str) -> Any:
        """This op with the settings of ``desc``; the algorithm is the flag's unless given.

        Raises ``ValueError`` where cuDNN has no such algorithm for volumes.
        """
        groups = max(self.num_groups, desc.num_groups)
        if min(self.num_groups, desc.num_groups) not in (1, groups):
            raise OptionError(f"{self}: the descriptor has num_groups={desc.num_groups}")
        algo = self.algo
        if algo is None:
            algo = str(getattr(config.dnn.conv, f"algo_{self.direction}"))
        if len(desc.subsample) == 3 and algo in ONLY_2D[self.direction]:
            raise OptionError(f"{type(self).__name__}: cuDNN has no algorithm {algo!r} in 3-D")
        return replace(
            cast(Any, self), algo=algo, num_groups=groups, padding=desc.padding(),
            stride=desc.subsample, dilation=desc.dilation, conv_mode=desc.conv_mode,
            precision=compute_precision(desc.precision, dtype),
        )  # fmt: skip

    def _sizes(self, output: Any) -> list[Variable]:
        """Host inputs that say the spatial sizes of the result."""
        return []

    def _with_static(self, sizes: Sequence[Variable]) -> Any:
        return self


def scaled(v: Any, factor: float) -> Any:
    """``factor * v`` in the dtype of ``v``; ``v`` itself for 1."""
    return v if factor == 1 else v * np.asarray(factor, v.type.numpy)


def _factor(value: Any) -> float | Variable:
    """alpha or beta: a float where it is known, else the variable."""
    v = as_variable(value)
    return float(v.data.reshape(())) if isinstance(v, Constant) else v


@dataclass(frozen=True)
class GpuDnnConv(DnnConvolution):
    """cuDNN's convolution of (img, kern[, out]).

    By hand: ``GpuDnnConv(algo=...)(img, kern, out, desc)``, where ``out`` is used only with a
    ``beta``. (``cudnnConvolutionForward``)
    """

    direction: ClassVar[str] = "fwd"
    algo: str | int | None = None
    inplace: bool = False
    num_groups: int = 1

    def neutral(self) -> Op:
        return in_layout(Conv(*self.settings), self.layout)


@dataclass(frozen=True)
class _SizedConvolution(DnnConvolution):
    """Base of the two gradients: the sizes of the result are host inputs after the operands."""

    abstract: ClassVar[bool] = True
    static: tuple[int | None, ...] = field(default=(), kw_only=True)

    def _sizes(self, output: Any) -> list[Variable]:
        v = as_variable(output)
        if not isinstance(v.type, TensorType) or v.type.ndim != self.ndim + 2:
            raise TypeMismatch(self, f"an output of {self.ndim + 2} dimensions", v.type)
        return [as_dim(d) for d in dims_of(v)[2:]]

    def _with_static(self, sizes: Sequence[Variable]) -> Any:
        return replace(self, static=tuple(static_dim(d) for d in sizes))


@dataclass(frozen=True)
class GpuDnnConvGradW(_SizedConvolution):
    """cuDNN's gradient in the kernels of (img, topgrad, \\*kernel sizes[, out]).

    By hand: ``GpuDnnConvGradW()(img, topgrad, out, desc)``; ``out`` gives the sizes.
    (``cudnnConvolutionBackwardFilter``)
    """

    direction: ClassVar[str] = "bwd_filter"
    inplace: bool = False
    algo: str | int | None = None
    num_groups: int = 1

    def neutral(self) -> Op:
        return in_layout(ConvGradWeight(*(*self.settings, self.static)), self.layout)


@dataclass(frozen=True)
class GpuDnnConvGradI(_SizedConvolution):
    """cuDNN's gradient in the images of (kern, topgrad, \\*image sizes[, out]).

    By hand: ``GpuDnnConvGradI()(kern, topgrad, out, desc)``; ``out`` gives the sizes.
    (``cudnnConvolutionBackwardData``)
    """

    direction: ClassVar[str] = "bwd_data"
    inplace: bool = False
    algo: str | int | None = None
    num_groups: int = 1

    def neutral(self) -> Op:
        return in_layout(ConvGradInput(*(*self.settings, self.static)), self.layout)
