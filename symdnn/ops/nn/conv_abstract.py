"""Theano's abstract convolutions: objects with the options, which are called with variables.

They are no ops: a call makes the op of :mod:`symdnn.ops.nn.conv`. This module has Theano's
functions on the shapes of convolutions, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from symdnn.errors import NdimMismatch, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.origin import Hints
from symdnn.graph.typing import BorderMode, PerAxis, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.nn.conv import conv_size, resolved_padding
from symdnn.ops.nn.conv_builders import conv_grad_wrt_inputs, conv_grad_wrt_weights, conv_nd
from symdnn.ops.nn.conv_windows import (
    Options,
    unshared_conv,
    unshared_grad_inputs,
    unshared_grad_weights,
)
from symdnn.ops.nn.conv_words import border_padding, static_ints

__all__ = [
    "AbstractConv2d", "AbstractConv2d_gradInputs", "AbstractConv2d_gradWeights", "AbstractConv3d",
    "AbstractConv3d_gradInputs", "AbstractConv3d_gradWeights", "check_conv_gradinputs_shape",
    "get_conv_gradinputs_shape", "get_conv_gradweights_shape", "get_conv_output_shape",
    "get_conv_shape_1axis",
]  # fmt: skip


@dataclass(frozen=True)
class _Abstract:
    """The options, in Theano's order. ``imshp`` and ``kshp`` are shapes (None where unknown)."""

    convdim: ClassVar[int] = 2
    imshp: Any = None
    kshp: Any = None
    border_mode: Any = "valid"
    subsample: Any = 1
    filter_flip: bool = True
    filter_dilation: Any = 1
    num_groups: int = 1
    unshared: bool = False

    def _options(self) -> Options:
        return Options(
            type(self).__name__, self.convdim, self.border_mode, self.subsample,
            self.filter_flip, self.filter_dilation, self.num_groups,
        )  # fmt: skip


class _Forward(_Abstract):
    def __call__(
        self, img: TensorLike, kern: TensorLike, *, hints: Hints | None = None
    ) -> Variable:
        """The convolution of ``img`` with ``kern``."""
        if self.unshared:
            return unshared_conv(self._options(), img, kern, self.imshp, self.kshp)
        return conv_nd(self._options(), img, kern, self.imshp, self.kshp, hints)


class _GradInputs(_Abstract):
    def __call__(
        self, kern: TensorLike, topgrad: TensorLike, shape: Any,
        add_assert_shape: bool = True, *, hints: Hints | None = None,
    ) -> Variable:  # fmt: skip
        """The gradient in an input of the spatial sizes ``shape``, always checked."""
        if self.unshared:
            return unshared_grad_inputs(self._options(), topgrad, kern, shape, self.kshp)
        whole = _joined(self.imshp, shape, self)
        return conv_grad_wrt_inputs(self._options(), topgrad, kern, whole, self.kshp, hints)


class _GradWeights(_Abstract):
    def __call__(
        self, img: TensorLike, topgrad: TensorLike, shape: Any, add_assert_shape: bool = True,
        *, hints: Hints | None = None,
    ) -> Variable:  # fmt: skip
        """The gradient in filters of the spatial sizes ``shape``, always checked."""
        if self.unshared:
            return unshared_grad_weights(self._options(), img, topgrad, shape, self.imshp)
        whole = _joined(self.kshp, shape, self)
        return conv_grad_wrt_weights(self._options(), img, topgrad, whole, self.imshp, hints)


def _joined(known: Any, shape: Any, op: _Abstract) -> Any:
    """A whole shape from the known one and the spatial sizes of the call."""
    if known is None or shape is None:
        return shape if shape is not None else known
    ndim = op.convdim
    spatial = [shape[i] for i in range(ndim)] if isinstance(shape, Variable) else list(shape)
    if len(known) != ndim + 2:
        raise NdimMismatch(op, f"a known shape of {ndim + 2} entries", repr(known))
    pairs = zip(known[2:], spatial[-ndim:], strict=True)
    return [*known[:2], *(said if size is None else size for size, said in pairs)]


class AbstractConv2d(_Forward):
    """``AbstractConv2d(options)(img, kern)``: see :func:`~symdnn.ops.nn.conv_builders.conv2d`."""


class AbstractConv2d_gradInputs(_GradInputs):
    """``AbstractConv2d_gradInputs(options...)(kern, topgrad, shape)``."""


class AbstractConv2d_gradWeights(_GradWeights):
    """``AbstractConv2d_gradWeights(options...)(img, topgrad, shape)``."""


class AbstractConv3d(_Forward):
    """``AbstractConv3d(options...)(img, kern)``."""

    convdim = 3


class AbstractConv3d_gradInputs(_GradInputs):
    """``AbstractConv3d_gradInputs(options...)(kern, topgrad, shape)``."""

    convdim = 3


class AbstractConv3d_gradWeights(_GradWeights):
    """``AbstractConv3d_gradWeights(options...)(img, topgrad, shape)``."""

    convdim = 3


# -- shapes ---------------------------------------------------------------------------------------


def get_conv_shape_1axis(
    image_shape: Dim | None,
    kernel_shape: Dim | None,
    border_mode: Any,
    subsample: int,
    dilation: int = 1,
) -> Dim | None:
    """Size of one dimension of the output; None if an argument is None."""
    if image_shape is None or kernel_shape is None:
        return None
    (mode,) = border_padding(border_mode if isinstance(border_mode, str) else [border_mode], 1)
    return conv_size(image_shape, kernel_shape, mode, subsample, dilation)


def get_conv_output_shape(
    image_shape: Sequence[Dim | None], kernel_shape: Sequence[Dim | None], border_mode: BorderMode,
    subsample: PerAxis,
    filter_dilation: PerAxis = 1,
) -> tuple[Dim | None, ...]:  # fmt: skip
    """Shape of the output of a convolution, with None for each unknown size.

    >>> get_conv_output_shape((None, 3, 28, 28), (8, 3, 5, 5), "valid", (2, 2))
    (None, 8, 12, 12)
    """
    ndim = len(image_shape) - 2
    options = zip(
        border_padding(border_mode, ndim), static_ints("subsample", subsample, ndim),
        static_ints("filter_dilation", filter_dilation, ndim), strict=True,
    )  # fmt: skip
    sizes = [
        None if n is None or k is None else conv_size(n, k, mode, stride, dilation)
        for n, k, (mode, stride, dilation) in zip(
            image_shape[2:], kernel_shape[2:], options, strict=True
        )
    ]
    return (image_shape[0], kernel_shape[0], *sizes)


def _whole_strides(
    name: str, outer: Sequence[Dim | None], top: Sequence[Dim | None], subsample: PerAxis
) -> tuple[int, tuple[int, ...]]:
    ndim = len(top) - 2
    if len(outer) != len(top):
        raise TypeMismatch(name, "shapes of one length", f"{tuple(outer)} and {tuple(top)}")
    return ndim, static_ints(f"{name}: subsample", subsample, ndim)


def get_conv_gradinputs_shape(
    kernel_shape: Sequence[Dim | None], top_shape: Sequence[Dim | None], border_mode: BorderMode,
    subsample: PerAxis,
    filter_dilation: PerAxis = 1, num_groups: int = 1,
) -> tuple[Dim | None, ...]:  # fmt: skip
    """Shape of the input of a convolution; None for a size that is ambiguous (a stride above 1)."""
    name = "get_conv_gradinputs_shape"
    ndim, strides = _whole_strides(name, kernel_shape, top_shape, subsample)
    modes = border_padding(border_mode, ndim)
    dilations = static_ints(f"{name}: filter_dilation", filter_dilation, ndim)
    sizes: list[Dim | None] = []
    for i, (k, m) in enumerate(zip(kernel_shape[2:], top_shape[2:], strict=True)):
        if k is None or m is None or strides[i] != 1:
            sizes.append(None)
            continue
        before, after = resolved_padding(modes[i], k, dilations[i])
        sizes.append(m - 1 + (k - 1) * dilations[i] + 1 - before - after)
    channels = kernel_shape[1]
    return (top_shape[0], None if channels is None else channels * num_groups, *sizes)


def get_conv_gradweights_shape(
    image_shape: Sequence[Dim | None], top_shape: Sequence[Dim | None], border_mode: BorderMode,
    subsample: PerAxis,
    filter_dilation: PerAxis = 1, num_groups: int = 1,
) -> tuple[Dim | None, ...]:  # fmt: skip
    """Shape of the filters of a convolution; None for an ambiguous size (a stride above 1)."""
    name = "get_conv_gradweights_shape"
    ndim, strides = _whole_strides(name, image_shape, top_shape, subsample)
    modes = border_padding(border_mode, ndim)
    dilations = static_ints(f"{name}: filter_dilation", filter_dilation, ndim)
    sizes: list[Dim | None] = []
    for i, (n, m) in enumerate(zip(image_shape[2:], top_shape[2:], strict=True)):
        mode = modes[i]
        if n is None or m is None or strides[i] != 1 or mode == "half":
            sizes.append(None)
            continue
        if isinstance(mode, str):  # full: m = n + reach
            reach = m - n
        else:
            reach = n + mode[0] + mode[1] - m
        sizes.append(reach // dilations[i] + 1)
    channels = image_shape[1]
    return (top_shape[1], None if channels is None else channels // num_groups, *sizes)


def check_conv_gradinputs_shape(
    image_shape: Sequence[int], kernel_shape: Sequence[int], output_shape: Sequence[int | None],
    border_mode: BorderMode, subsample: PerAxis, filter_dilation: PerAxis = 1,
) -> bool:  # fmt: skip
    """Whether a convolution of these shapes may give ``output_shape``; None fits any size."""
    found = get_conv_output_shape(
        image_shape, kernel_shape, border_mode, subsample, filter_dilation
    )
    return all(a is None or b is None or a == b for a, b in zip(found, output_shape, strict=True))
