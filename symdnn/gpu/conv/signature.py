"""The signature of a convolution, on which the choice of an algorithm depends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Any

from symdnn.errors import CudnnArgumentError
from symdnn.flag_types import way_of
from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.descriptor import (
    ConvolutionDescription,
    Description,
    Descriptor,
    FilterDescription,
    TensorDescription,
    descriptor,
    packed,
)
from symdnn.graph.type import numpy_dtype
from symdnn.ops.vendor.gpudnn_conv import NONDETERMINISTIC_ALGORITHMS
from symdnn.tuning.question import plain
from symdnn.tuning.replay import Recorded


@dataclass(frozen=True)
class Direction:
    """One of the three convolutions: cuDNN's functions, and its algorithms by the flags' words.

    ``algorithms`` is in order of preference. ``roles`` are the first operand, the second operand
    and the result of cuDNN's functions. ``random`` are the nondeterministic algorithms.
    """

    stem: str
    roles: tuple[str, str, str]
    algorithms: Mapping[str, int]
    random: frozenset[str]
    default: str
    enum: str

    @property
    def run(self) -> Any:
        """``cudnnConvolution...``"""
        return getattr(libcudnn, f"cudnnConvolution{self.stem}")

    @property
    def workspace(self) -> Any:
        """``cudnnGetConvolution...WorkspaceSize``"""
        return getattr(libcudnn, f"cudnnGetConvolution{self.stem}WorkspaceSize")

    @property
    def heuristics(self) -> Any:
        """``cudnnGetConvolution...Algorithm_v7``"""
        return getattr(libcudnn, f"cudnnGetConvolution{self.stem}Algorithm_v7")

    def word(self, number: int) -> str:
        """The flags' word for an algorithm; the number as text if there is none."""
        return next((w for w, n in self.algorithms.items() if n == number), str(number))


#: By the flags' suffix. The numbers are those of ``cudnnConvolution*Algo_t``.
DIRECTIONS = {
    "fwd": Direction(
        "Forward", ("x", "w", "y"),
        {"small": 1, "none": 0, "large": 2, "fft": 4, "fft_tiling": 5, "winograd": 6,
         "winograd_non_fused": 7, "direct": 3},
        frozenset(NONDETERMINISTIC_ALGORITHMS["fwd"]), "small", "cudnnConvolutionFwdAlgo_t",
    ),
    "bwd_data": Direction(
        "BackwardData", ("w", "y", "x"),
        {"deterministic": 1, "none": 0, "fft": 2, "fft_tiling": 3, "winograd": 4,
         "winograd_non_fused": 5},
        frozenset(NONDETERMINISTIC_ALGORITHMS["bwd_data"]), "none", "cudnnConvolutionBwdDataAlgo_t",
    ),
    "bwd_filter": Direction(
        "BackwardFilter", ("x", "y", "w"),
        {"deterministic": 1, "none": 0, "small": 3, "fft": 2, "fft_tiling": 6,
         "winograd_non_fused": 5},
        frozenset(NONDETERMINISTIC_ALGORITHMS["bwd_filter"]), "none",
        "cudnnConvolutionBwdFilterAlgo_t",
    ),
}  # fmt: skip


#: Activation functions by symdnn's names -> the frontend's methods.
ACTIVATIONS = {
    "relu": "relu", "relu6": "relu", "leaky_relu": "leaky_relu", "sigmoid": "sigmoid",
    "tanh": "tanh", "elu": "elu", "softplus": "softplus", "gelu": "gelu",
    "gelu_tanh": "gelu_approx_tanh", "swish": "swish",
}  # fmt: skip


@dataclass(frozen=True)
class Epilogue:
    """The epilogue of a forward convolution: ``activation(alpha * conv + beta * residual + bias)``.

    ``bias`` has the shape (1, K, 1, 1) and the signature's dtype, ``residual`` the shape, dtype and
    layout of the result. Intermediate values are float32 (float64 for float64). ``slope`` is that
    of ``leaky_relu`` below 0. Only one of ``alpha`` and ``beta`` may differ from 1.

    On an H200 (cuDNN 9.19) cuDNN has precompiled kernels for a bias, with or without a residual,
    and ``relu`` or no activation. They take as long as the convolution alone and a read of the
    residual. It compiles other epilogues when a plan is built, 0.3 s each, and for NHWC only.

    >>> str(Epilogue(bias=True, residual=True, activation="relu"))
    'relu(conv + residual + bias)'
    """

    bias: bool = False
    residual: bool = False
    activation: str = ""
    alpha: float = 1.0
    beta: float = 1.0
    slope: float = 0.0

    def __post_init__(self) -> None:
        if self.activation and self.activation not in ACTIVATIONS:
            raise CudnnArgumentError(
                f"activation of a convolution: wanted one of {', '.join(ACTIVATIONS)}, "
                f"got {self.activation!r}"
            )

    @property
    def roles(self) -> tuple[str, ...]:
        """The arguments: keys of a launch's pointers in addition to those of the convolution."""
        return ("bias",) * self.bias + ("residual",) * self.residual

    @property
    def is_empty(self) -> bool:
        """Whether there is no epilogue."""
        return not self.roles and not self.activation and self.alpha == 1

    def __str__(self) -> str:
        conv = "conv" if self.alpha == 1 else f"{self.alpha:g} * conv"
        residual = "residual" if self.beta == 1 else f"{self.beta:g} * residual"
        inside = " + ".join([conv] + [residual] * self.residual + ["bias"] * self.bias)
        return f"{self.activation}({inside})" if self.activation else inside


#: Fields of a signature on which the choice depends, but no result.
_FIELDS_OF_THE_CHOICE = (
    "wanted", "workspace_limit", "deterministic", "on_unsupported", "legacy_only", "named",
)  # fmt: skip


@dataclass(frozen=True)
class ConvSignature:
    """The key of a choice. Shapes have four or five dimensions.

    The shapes ``x``, ``w`` and ``y`` are always (N, C, sizes), (K, C, sizes) for ``w``. ``layout``
    is that of all three in memory, ``NCHW`` or ``NHWC``. ``legacy_only`` excludes the graph API:
    the result is scaled or added to the output, or has an address that plans do not take.
    ``named`` says that the user named the algorithm ``wanted``; else it is only a flag's default.
    Only the graph API computes an ``epilogue``.
    """

    direction: str
    dtype: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    flip: bool
    compute: str
    allow_tf32: bool
    wanted: str | int | Recorded
    workspace_limit: int
    deterministic: bool
    on_unsupported: str
    layout: str = "NCHW"
    legacy_only: bool = False
    named: bool = True
    epilogue: Epilogue = Epilogue()

    @property
    def math(self) -> str:
        """``cudnnMathType_t`` without its prefix. ``FMA_MATH`` excludes TF32; without
        ``TENSOR_OP_MATH`` cuDNN uses no tensor cores for 16-bit types."""
        if self.is_narrow:
            return "TENSOR_OP_MATH"
        exact = self.dtype == "float32" and not self.allow_tf32
        return "FMA_MATH" if exact else "DEFAULT_MATH"

    def fields(self, *without: str) -> dict[str, Any]:
        """The fields as JSON values, less those of these names; an epilogue only if it is any."""
        names = (f.name for f in dataclasses.fields(self) if f.name not in without)
        found = {n: plain(getattr(self, n)) for n in names if n != "epilogue"}
        shown = not self.epilogue.is_empty and "epilogue" not in without
        return {**found, "epilogue": plain(asdict(self.epilogue))} if shown else found

    @property
    def question(self) -> dict[str, Any]:
        """The fields on which a result depends, as JSON values."""
        found = self.fields(*_FIELDS_OF_THE_CHOICE)
        return found if self.epilogue.is_empty else {**found, "epilogue": str(self.epilogue)}

    @property
    def names_one(self) -> bool:
        """Whether the user named one algorithm."""
        return self.named and not self.way

    @property
    def way(self) -> str:
        """The way to choose that the user wants; ``""`` for an algorithm or a report's row."""
        return way_of(self.wanted) if isinstance(self.wanted, str) else ""

    @property
    def is_narrow(self) -> bool:
        """Whether elements have 16 bits."""
        return bool(numpy_dtype(self.dtype).itemsize == 2)

    @property
    def rounds_sums(self) -> bool:
        """Whether algorithm ``none`` rounds partial sums to 16 bits."""
        return self.direction == "bwd_filter" and self.is_narrow

    def in_memory(self, role: str) -> tuple[int, ...]:
        """The shape of ``x``, ``w`` or ``y`` in the layout's order of dimensions."""
        shape: tuple[int, ...] = getattr(self, role)
        return shape if self.layout == "NCHW" else (shape[0], *shape[2:], shape[1])

    def nbytes(self, role: str) -> int:
        """Bytes of ``x``, ``w`` or ``y``."""
        return prod(getattr(self, role)) * int(numpy_dtype(self.dtype).itemsize)

    def describe(self, role: str) -> Description:
        """The description of ``x``, ``w``, ``y`` or the ``convolution``."""
        if role == "w":
            return FilterDescription(self.dtype, self.w, self.layout)
        if role == "convolution":
            return ConvolutionDescription(
                self.padding, self.stride, self.dilation, self.groups, self.flip, self.compute,
                self.math,
            )  # fmt: skip
        return TensorDescription(self.dtype, getattr(self, role), self._strides(role))

    def _strides(self, role: str) -> tuple[int, ...]:
        """Strides in elements of the dimensions N, C, sizes."""
        strides = packed(self.in_memory(role))
        return strides if self.layout == "NCHW" else (strides[0], strides[-1], *strides[1:-1])

    @cached_property
    def descriptors(self) -> tuple[Descriptor, Descriptor, Descriptor, Descriptor]:
        """The descriptors of first and second operand, convolution and result."""
        first, second, result = DIRECTIONS[self.direction].roles
        roles = (first, second, "convolution", result)
        a, b, c, d = (descriptor(self.describe(r)) for r in roles)
        return a, b, c, d

    def __str__(self) -> str:
        roles = ("x", "w", "y", "convolution")
        shown = ", ".join(f"{r}: {self.describe(r)}" for r in roles)
        return f"cudnnConvolution{DIRECTIONS[self.direction].stem} of {shown}"
