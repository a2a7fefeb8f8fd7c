"""cuDNN's convolution in its three directions, with Theano's constructors and descriptor.

The result is ``alpha * convolution + beta * out``, an epilogue
(:mod:`symdnn.ops.lowered.epilogue`). ``out`` is the last input, present only if ``beta`` is not 0.
cuDNN's names of the directions, and the flags of their algorithms:

    GpuDnnConv       forward           dnn.conv.algo_fwd         Conv
    GpuDnnConvGradI  backward data     dnn.conv.algo_bwd_data    ConvGradInput
    GpuDnnConvGradW  backward filter   dnn.conv.algo_bwd_filter  ConvGradWeight
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast

from symdnn.config import config
from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.op import Grads, Op, Vars
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.composed import vjp_of_expressions
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.shape import as_dim, dims_of, static_dim
from symdnn.ops.lowered.epilogue import EpilogueOp, EpilogueRules, scaled
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight, Pad
from symdnn.ops.nn.conv_abstract import get_conv_output_shape
from symdnn.ops.nn.conv_words import border_padding
from symdnn.ops.vendor.gpudnn_base import DnnBase

__all__ = [
    "ALGORITHMS_ONLY_2D", "NONDETERMINISTIC_ALGORITHMS", "DnnConvolution", "GpuDnnConv",
    "GpuDnnConvDesc", "GpuDnnConvGradI", "GpuDnnConvGradW", "compute_precision",
]  # fmt: skip

#: Algorithms that cuDNN has only for two spatial dimensions, by direction.
ALGORITHMS_ONLY_2D = {
    "fwd": ("fft", "winograd", "winograd_non_fused"),
    "bwd_data": ("fft", "winograd", "winograd_non_fused"),
    "bwd_filter": ("fft", "fft_tiling", "winograd_non_fused"),
}

#: Algorithms that sum in any order, so that the last bits differ from run to run.
NONDETERMINISTIC_ALGORITHMS = {"fwd": (), "bwd_data": ("none",), "bwd_filter": ("none", "small")}


def compute_precision(precision: str, dtype: str) -> str:
    """The accumulator's dtype for a convolution of ``dtype``.

    ``precision`` is a value of the flag ``dnn.conv.precision``.
    """
    if precision in ("as_input_f32", "tf32"):
        return work_dtype(dtype)
    return dtype if precision == "as_input" else precision


@dataclass(frozen=True)
class GpuDnnConvDesc:
    """The settings of a convolution, for ops that users apply: ``GpuDnnConvDesc(...)(kern.shape)``.

    ``border_mode`` as in ``dnn_conv``; ``conv_mode`` is ``'conv'`` (filters are mirrored) or
    ``'cross'``; ``precision`` is the accumulator's dtype. Calling it with the filters' shape (to
    0.8: the images' and the filters'), as Theano's programs do, returns it unchanged.

    Raises :class:`~symdnn.errors.OptionError` for settings that do not fit.
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

    def __call__(self, *shapes: Any) -> GpuDnnConvDesc:
        return self


@dataclass(frozen=True)
class DnnConvolution(EpilogueOp, DnnBase):
    """Base of the three directions.

    ``stride`` is empty until the op is described, by a user with a :class:`GpuDnnConvDesc`.
    ``precision`` is the accumulator's dtype. With ``layout="NHWC"`` activations are
    (N, \\*sizes, C) and filters (K, \\*sizes, C).
    """

    never_fails: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    layouts: ClassVar[tuple[str, ...]] = ("NCHW", "NHWC")
    bias_axis: ClassVar[int] = 1
    dtypes: ClassVar[tuple[str, ...]] = (*DnnBase.dtypes, "bfloat16")
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

    # Fields of the subclasses, in Theano's order in each.
    @property
    def algo(self) -> str | int | None:
        """A value of this direction's flag, or the number of an algorithm of cuDNN."""
        raise NotImplementedError

    @property
    def inplace(self) -> bool:
        """Whether the result overwrites ``out`` (true without one)."""
        raise NotImplementedError

    @property
    def num_groups(self) -> int:
        """The number of groups of channels."""
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
        """Whether filters are mirrored."""
        return self.conv_mode == "conv"

    def channels_last(self, ndim: int) -> Self | None:
        """This op in NHWC, for 2 or 3 spatial dimensions; None otherwise."""
        return super().channels_last(ndim) if self.ndim in (2, 3) else None

    @property
    def beta(self) -> float:
        """The factor of ``out``; 0 without one."""
        return self.residual

    @property
    def output_index(self) -> int | None:
        """The index of the input ``out``; None without one."""
        return 2 + len(self.neutral().host_inputs) if self.residual else None

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {} if self.output_index is None else {0: (self.output_index,)}

    def infer(self, *inputs: TensorType) -> Any:
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
        return vjp_of_expressions(lambda *v: self.expanded(*v) or [], inputs, cotangents)

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return None if self.terms.is_linear else super().jvp(inputs, outputs, tangents)

    # -- applied by users ---------------------------------------------------------------------

    def __call__(
        self, *arguments: Any, hints: Hints | None = None, name: str | None = None, **words: Any
    ) -> Any:
        """Apply to the neutral op's inputs, or as in Theano to
        ``(img, kern, output, desc, alpha=None, beta=None)``."""
        given = dict(zip(("output", "desc", "alpha", "beta"), arguments[2:]), **words)
        if not isinstance(given.get("desc"), GpuDnnConvDesc):
            return super().__call__(*arguments, hints=hints, name=name)
        a, b = map(as_variable, arguments[:2])
        output, dtype = given.get("output"), a.type.dtype
        op, sizes = self.described(given["desc"], dtype)._sized(output)
        alpha, beta = _factor(given.get("alpha"), 1.0), _factor(given.get("beta"), 0.0)
        if isinstance(alpha, float) and isinstance(beta, float):
            out = [output] if beta else []
            op = op.ending(dtype, alpha=alpha, residual=beta)
            return DnnBase.__call__(op, a, b, *sizes, *out, hints=hints, name=name)
        # cuDNN reads the factors on the host, so computed factors stay outside of the op.
        y = DnnBase.__call__(op, a, b, *sizes, hints=hints) * alpha + as_variable(output) * beta
        y.name = name
        return y

    def described(self, desc: GpuDnnConvDesc, dtype: str) -> Any:
        """This op with the settings of ``desc``; without ``algo`` the flag's algorithm.

        Raises :class:`~symdnn.errors.OptionError` if the numbers of groups differ, or if cuDNN has
        no such algorithm for three dimensions.
        """
        groups = max(self.num_groups, desc.num_groups)
        if min(self.num_groups, desc.num_groups) not in (1, groups):
            raise OptionError(f"{self}: the descriptor has num_groups={desc.num_groups}")
        algo = self.algo
        if algo is None:
            algo = str(getattr(config.dnn.conv, f"algo_{self.direction}"))
        if len(desc.subsample) == 3 and algo in ALGORITHMS_ONLY_2D[self.direction]:
            raise OptionError(f"{type(self).__name__}: cuDNN has no algorithm {algo!r} in 3-D")
        return replace(
            cast(Any, self), algo=algo, num_groups=groups, padding=desc.padding(),
            stride=desc.subsample, dilation=desc.dilation, conv_mode=desc.conv_mode,
            precision=compute_precision(desc.precision, dtype),
        )  # fmt: skip

    def _sized(self, output: Any) -> tuple[Self, list[Variable]]:
        """The op, and its host inputs with the spatial sizes of the result."""
        return self, []


def _factor(value: Any, default: float) -> float | Variable:
    """alpha or beta: a float for a constant, else the variable."""
    v = as_variable(default if value is None else value)
    return float(v.data.reshape(())) if isinstance(v, Constant) else v


@dataclass(frozen=True)
class GpuDnnConv(DnnConvolution):
    """cuDNN's convolution of (img, kern[, out]).

    As in Theano: ``GpuDnnConv(algo=...)(img, kern, out, desc)``, where ``out`` is used only with a
    ``beta``. (``cudnnConvolutionForward``)
    """

    neutral_type: ClassVar[type[Op]] = Conv
    direction: ClassVar[str] = "fwd"
    algo: str | int | None = None
    inplace: bool = False
    num_groups: int = 1

    @staticmethod
    def get_out_shape(
        ishape: Any, kshape: Any, border_mode: Any, subsample: Sequence[int], dilation: Any = 1
    ) -> tuple[Any, ...]:
        """The shape of the result, from the shapes of images and filters: ints, symbolic integers,
        or a symbolic vector for a whole shape.

        >>> GpuDnnConv.get_out_shape((64, 3, 28, 28), (8, 3, 5, 5), "valid", (2, 2), (1, 1))
        (64, 8, 12, 12)
        """
        count = len(subsample) + 2
        shapes = [s if isinstance(s, list | tuple) else [s[i] for i in range(count)]
                  for s in (ishape, kshape)]  # fmt: skip
        return get_conv_output_shape(shapes[0], shapes[1], border_mode, subsample, dilation)


@dataclass(frozen=True)
class _SizedConvolution(DnnConvolution):
    """Base of the two gradients. The sizes of the result are host inputs after the operands."""

    abstract: ClassVar[bool] = True
    inplace: bool = False
    algo: str | int | None = None
    num_groups: int = 1
    static: tuple[int | None, ...] = field(default=(), kw_only=True)

    def _sized(self, output: Any) -> tuple[Self, list[Variable]]:
        v = as_variable(output)
        if not isinstance(v.type, TensorType) or v.type.ndim != self.ndim + 2:
            raise TypeMismatch(self, f"an output of {self.ndim + 2} dimensions", v.type)
        sizes = [as_dim(d) for d in dims_of(v)[2:]]
        return replace(self, static=tuple(map(static_dim, sizes))), sizes


class GpuDnnConvGradW(_SizedConvolution):
    """cuDNN's gradient of the filters, from (img, topgrad, \\*filter sizes[, out]).

    As in Theano: ``GpuDnnConvGradW()(img, topgrad, out, desc)``; ``out`` has the sizes.
    (``cudnnConvolutionBackwardFilter``)
    """

    neutral_type: ClassVar[type[Op]] = ConvGradWeight
    direction: ClassVar[str] = "bwd_filter"

    def op_may_fail_with_subsample(self, img: Any, desc: Any) -> bool:
        """False: Theano's question about a fault of cuDNN 5 and 6 with strides in 3-D."""
        return False

    def op_may_fail_with_beta(self, img: Any, beta: Any) -> bool:
        """False: Theano's question about a fault of cuDNN 5 and 6 with a ``beta`` in 3-D."""
        return False


class GpuDnnConvGradI(_SizedConvolution):
    """cuDNN's gradient of the input, from (kern, topgrad, \\*input sizes[, out]).

    As in Theano: ``GpuDnnConvGradI()(kern, topgrad, out, desc)``; ``out`` has the sizes.
    (``cudnnConvolutionBackwardData``)
    """

    neutral_type: ClassVar[type[Op]] = ConvGradInput
    direction: ClassVar[str] = "bwd_data"
