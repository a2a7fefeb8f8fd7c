"""Builders of convolutions, with Theano's names and arguments.

The arguments are translated by :mod:`symdnn.ops.nn.conv_words`: ``border_mode`` to padding,
``subsample`` to stride, ``filter_dilation`` to dilation, ``num_groups`` to groups,
``filter_flip`` to flip.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import NdimMismatch, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.names.torch_words import advises
from symdnn.graph.origin import Hints
from symdnn.graph.typing import BorderMode, PerAxis, StaticShape, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.shape import dims_of
from symdnn.ops.nn.conv import Conv, grad_input, grad_weight, resolved_padding
from symdnn.ops.nn.conv_windows import (
    Options,
    unshared_conv,
    unshared_grad_inputs,
    unshared_grad_weights,
)
from symdnn.ops.nn.conv_words import (
    OF_PYTORCH,
    TRANSPOSED_WORDS,
    float_operands,
    input_shape_by_any_name,
    static_ints,
    static_size,
    with_sizes,
)

__all__ = [
    "causal_conv1d", "conv1d", "conv1d_grad_wrt_inputs", "conv1d_grad_wrt_weights",
    "conv1d_transpose", "conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights",
    "conv2d_transpose", "conv3d", "conv3d_grad_wrt_inputs", "conv3d_grad_wrt_weights",
    "conv3d_transpose", "conv_grad_wrt_inputs", "conv_grad_wrt_weights", "conv_nd", "old_conv2d",
    "separable_conv2d", "signal_conv2d",
]  # fmt: skip


# -- any number of dimensions --------------------------------------------------------------------


def conv_nd(
    options: Options, input: TensorLike, filters: TensorLike, input_shape: StaticShape = None,
    filter_shape: StaticShape = None, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Convolution over any number of dimensions, for ``conv1d``, ``conv2d`` and ``conv3d``."""
    name = options.name
    x, w = float_operands(name, options.ndim, input, filters)
    x = with_sizes(f"{name}: input_shape", x, input_shape)
    w = with_sizes(f"{name}: filter_shape", w, filter_shape)
    return options.conv(w.type.shape[2:])(x, w, hints=hints)


def conv_grad_wrt_inputs(
    options: Options, output_grad: TensorLike, filters: TensorLike, input_shape: StaticShape,
    filter_shape: StaticShape = None, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Gradient in the input; the last entries of ``input_shape`` are its spatial sizes (None: the
    smallest that fit).
    """
    name, ndim = options.name, options.ndim
    dy, w = float_operands(name, ndim, output_grad, filters)
    w = with_sizes(f"{name}: filter_shape", w, filter_shape)
    op = options.conv(w.type.shape[2:])
    entries = _shape_entries(input_shape, ndim)
    given = entries[-ndim:] if entries else [None] * ndim
    smallest = _smallest_input(op, dy, w)
    dx = grad_input(
        op, w, dy, [s if g is None else g for g, s in zip(given, smallest, strict=True)], hints
    )
    return with_sizes(f"{name}: input_shape", dx, entries if len(entries) == ndim + 2 else None)


def _smallest_input(op: Conv, dy: Variable, w: Variable) -> list[Dim]:
    """Spatial sizes of the smallest input whose output has the size of ``dy``."""
    sizes = []
    for i, (m, k) in enumerate(zip(dims_of(dy)[2:], dims_of(w)[2:], strict=True)):
        before, after = resolved_padding(op.padding[i], k, op.dilation[i])
        sizes.append((m - 1) * op.stride[i] + (k - 1) * op.dilation[i] + 1 - before - after)
    return sizes


def conv_grad_wrt_weights(
    options: Options, input: TensorLike, output_grad: TensorLike, filter_shape: StaticShape,
    input_shape: StaticShape = None, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Gradient in the filters; the last entries of ``filter_shape`` are their spatial sizes."""
    name, ndim = options.name, options.ndim
    x, dy = float_operands(name, ndim, input, output_grad)
    x = with_sizes(f"{name}: input_shape", x, input_shape)
    entries = _shape_entries(filter_shape, ndim)
    kernel = entries[-ndim:]
    if len(kernel) != ndim or any(k is None for k in kernel):
        raise NdimMismatch(name, "the filter's spatial sizes in filter_shape", repr(filter_shape))
    dw = grad_weight(options.conv([static_size(k) for k in kernel]), x, dy, kernel, hints)
    return with_sizes(f"{name}: filter_shape", dw, entries if len(entries) == ndim + 2 else None)


def _shape_entries(shape: Any, ndim: int) -> list[Any]:
    """Entries of a shape: a sequence, or a symbolic vector of ``ndim`` or ``ndim + 2`` ints."""
    if shape is None:
        return []
    if isinstance(shape, Variable):
        if isinstance(shape, Constant):
            return [int(d) for d in np.atleast_1d(shape.data)]
        length = shape.type.shape[0] if shape.type.ndim == 1 else None
        return [shape[i] for i in range(ndim if length is None else length)]
    return list(shape)


# -- one, two, three dimensions ------------------------------------------------------------------


@advises(**OF_PYTORCH)
def conv1d(
    input: TensorLike, filters: TensorLike, input_shape: StaticShape = None,
    filter_shape: StaticShape = None, border_mode: BorderMode = "valid", subsample: PerAxis = 1,
    filter_flip: bool = True, filter_dilation: PerAxis = 1, num_groups: int = 1, *,
    hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Convolution of ``input`` (batch, channels, length) with ``filters`` (out, channels, width).

    As :func:`conv2d`, over one dimension. ``border_mode=((left, right),)`` pads one side more.
    """
    options = Options("conv1d", 1, border_mode, subsample, filter_flip, filter_dilation, num_groups)
    return conv_nd(options, input, filters, input_shape, filter_shape, hints)


def conv2d(
    input: TensorLike, filters: TensorLike, input_shape: StaticShape = None,
    filter_shape: StaticShape = None, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1), filter_flip: bool = True, image_shape: StaticShape = None,
    filter_dilation: PerAxis = (1, 1), num_groups: int = 1, unshared: bool = False, *,
    hints: Hints | None = None, **kwargs: Any,
) -> Variable:  # fmt: skip
    """Convolution of images (batch, channels, rows, columns) with ``filters``.

    ``filters`` is (out channels, channels / num_groups, rows, columns); they are mirrored unless
    ``filter_flip=False`` (which gives cross-correlation). ``border_mode`` is ``'valid'`` (no
    padding), ``'half'`` (half the filter, so odd filters keep the size), ``'full'``, an int, or
    an int or a pair ``(before, after)`` per dimension; padding is with zeros. ``subsample`` is
    the stride. ``input_shape`` and ``filter_shape`` declare sizes (None for unknown ones), which
    are checked. ``hints`` are choices for this node (algorithm, precision) that do not change what
    it computes. The dtype is the upcast of both, which must be a float.

    Raises :class:`~symdnn.errors.TypeMismatch` for a wrong ndim or an int dtype,
    :class:`~symdnn.errors.ShapeMismatch` for channels or filters that do not fit.
    (Theano's ``nnet.conv2d``.)

    With ``unshared`` (locally connected) each position of the output has its own filters, and
    ``filters`` is (out channels, out rows, out columns, channels / num_groups, rows, columns).

    >>> from symdnn.graph.type import TensorType
    >>> x, w = TensorType("float32", (None, 3, 28, 28))("x"), TensorType("float32", (8, 3, 5, 5))()
    >>> str(conv2d(x, w, border_mode="half", subsample=(2, 2)).type)
    'float32(?, 8, 14, 14)'
    """
    input_shape = input_shape_by_any_name("conv2d", input_shape, image_shape, kwargs)
    options = Options("conv2d", 2, border_mode, subsample, filter_flip, filter_dilation, num_groups)
    if unshared:
        return unshared_conv(options, input, filters, input_shape, filter_shape)
    return conv_nd(options, input, filters, input_shape, filter_shape, hints)


@advises(**OF_PYTORCH)
def conv3d(
    input: TensorLike, filters: TensorLike, input_shape: StaticShape = None,
    filter_shape: StaticShape = None, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1, 1), filter_flip: bool = True, filter_dilation: PerAxis = (1, 1, 1),
    num_groups: int = 1, *, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Convolution of volumes (batch, channels, depth, rows, columns); as :func:`conv2d`."""
    options = Options("conv3d", 3, border_mode, subsample, filter_flip, filter_dilation, num_groups)
    return conv_nd(options, input, filters, input_shape, filter_shape, hints)


def conv1d_grad_wrt_inputs(
    output_grad: TensorLike, filters: TensorLike, input_shape: StaticShape,
    filter_shape: StaticShape = None, border_mode: BorderMode = "valid", subsample: PerAxis = 1,
    filter_flip: bool = True, filter_dilation: PerAxis = 1, num_groups: int = 1, *,
    hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Gradient of :func:`conv1d` in its input; as :func:`conv2d_grad_wrt_inputs`."""
    options = Options("conv1d_grad_wrt_inputs", 1, border_mode, subsample, filter_flip,
                      filter_dilation, num_groups)  # fmt: skip
    return conv_grad_wrt_inputs(options, output_grad, filters, input_shape, filter_shape, hints)


def conv2d_grad_wrt_inputs(
    output_grad: TensorLike, filters: TensorLike, input_shape: StaticShape,
    filter_shape: StaticShape = None, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1), filter_flip: bool = True, filter_dilation: PerAxis = (1, 1),
    num_groups: int = 1, unshared: bool = False, *, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Gradient of :func:`conv2d` in its input, given that of its output.

    The options are those of the convolution. ``input_shape`` has four entries (batch and channels
    may be None, rows and columns ints or integer scalars) or only the two spatial ones; a spatial
    None stands for the smallest size that fits. Raises
    :class:`~symdnn.errors.ShapeMismatch` when the convolution of such an input would not have
    the shape of ``output_grad``.
    """
    options = Options("conv2d_grad_wrt_inputs", 2, border_mode, subsample, filter_flip,
                      filter_dilation, num_groups)  # fmt: skip
    if unshared:
        return unshared_grad_inputs(options, output_grad, filters, input_shape, filter_shape)
    return conv_grad_wrt_inputs(options, output_grad, filters, input_shape, filter_shape, hints)


def conv3d_grad_wrt_inputs(
    output_grad: TensorLike, filters: TensorLike, input_shape: StaticShape,
    filter_shape: StaticShape = None, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1, 1), filter_flip: bool = True, filter_dilation: PerAxis = (1, 1, 1),
    num_groups: int = 1, *, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Gradient of :func:`conv3d` in its input; as :func:`conv2d_grad_wrt_inputs`."""
    options = Options("conv3d_grad_wrt_inputs", 3, border_mode, subsample, filter_flip,
                      filter_dilation, num_groups)  # fmt: skip
    return conv_grad_wrt_inputs(options, output_grad, filters, input_shape, filter_shape, hints)


def conv1d_grad_wrt_weights(
    input: TensorLike, output_grad: TensorLike, filter_shape: StaticShape,
    input_shape: StaticShape = None, border_mode: BorderMode = "valid", subsample: PerAxis = 1,
    filter_flip: bool = True, filter_dilation: PerAxis = 1, num_groups: int = 1, *,
    hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Gradient of :func:`conv1d` in its filters; as :func:`conv2d_grad_wrt_weights`."""
    options = Options("conv1d_grad_wrt_weights", 1, border_mode, subsample, filter_flip,
                      filter_dilation, num_groups)  # fmt: skip
    return conv_grad_wrt_weights(options, input, output_grad, filter_shape, input_shape, hints)


def conv2d_grad_wrt_weights(
    input: TensorLike, output_grad: TensorLike, filter_shape: StaticShape,
    input_shape: StaticShape = None, border_mode: BorderMode = "valid", subsample: PerAxis = (1, 1),
    filter_flip: bool = True, filter_dilation: PerAxis = (1, 1), num_groups: int = 1,
    unshared: bool = False, *, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Gradient of :func:`conv2d` in its filters, given that of its output.

    The options are those of the convolution. ``filter_shape`` has four entries (the first two may
    be None) or only the two spatial ones, ints or integer scalars.
    """
    options = Options("conv2d_grad_wrt_weights", 2, border_mode, subsample, filter_flip,
                      filter_dilation, num_groups)  # fmt: skip
    if unshared:
        return unshared_grad_weights(options, input, output_grad, filter_shape, input_shape)
    return conv_grad_wrt_weights(options, input, output_grad, filter_shape, input_shape, hints)


def conv3d_grad_wrt_weights(
    input: TensorLike, output_grad: TensorLike, filter_shape: StaticShape,
    input_shape: StaticShape = None, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1, 1), filter_flip: bool = True, filter_dilation: PerAxis = (1, 1, 1),
    num_groups: int = 1, *, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Gradient of :func:`conv3d` in its filters; as :func:`conv2d_grad_wrt_weights`."""
    options = Options("conv3d_grad_wrt_weights", 3, border_mode, subsample, filter_flip,
                      filter_dilation, num_groups)  # fmt: skip
    return conv_grad_wrt_weights(options, input, output_grad, filter_shape, input_shape, hints)


# -- composed of these ----------------------------------------------------------------------------


@advises(**TRANSPOSED_WORDS)
def conv1d_transpose(
    input: TensorLike, filters: TensorLike, output_shape: Any = None,
    filter_shape: StaticShape = None, border_mode: BorderMode = "valid",
    input_dilation: PerAxis = 1, filter_flip: bool = True, filter_dilation: PerAxis = 1,
    num_groups: int = 1, *, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Transposed convolution over one dimension; as :func:`conv2d_transpose`."""
    options = Options("conv1d_transpose", 1, border_mode, input_dilation, filter_flip,
                      filter_dilation, num_groups)  # fmt: skip
    return conv_grad_wrt_inputs(options, input, filters, output_shape, filter_shape, hints)


@advises(**TRANSPOSED_WORDS)
def conv2d_transpose(
    input: Variable, filters: Variable, output_shape: Any = None, filter_shape: StaticShape = None,
    border_mode: BorderMode = "valid", input_dilation: PerAxis = (1, 1), filter_flip: bool = True,
    filter_dilation: PerAxis = (1, 1), num_groups: int = 1, unshared: bool = False, *,
    hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Transposed convolution: the gradient of :func:`conv2d` in its input, as a layer.

    ``input`` (batch, in, rows, columns) and ``filters`` (in, out / num_groups, rows, columns) give
    (batch, out, \\*output_shape[2:]); ``input_dilation`` is the stride of the convolution that is
    transposed. Without ``output_shape`` it is the smallest that fits.
    """
    if unshared:
        return conv2d_grad_wrt_inputs(
            input, filters, output_shape, filter_shape, border_mode, input_dilation, filter_flip,
            filter_dilation, num_groups, unshared,
        )  # fmt: skip
    options = Options("conv2d_transpose", 2, border_mode, input_dilation, filter_flip,
                      filter_dilation, num_groups)  # fmt: skip
    return conv_grad_wrt_inputs(options, input, filters, output_shape, filter_shape, hints)


@advises(**TRANSPOSED_WORDS)
def conv3d_transpose(
    input: TensorLike, filters: TensorLike, output_shape: Any = None,
    filter_shape: StaticShape = None, border_mode: BorderMode = "valid",
    input_dilation: PerAxis = (1, 1, 1), filter_flip: bool = True,
    filter_dilation: PerAxis = (1, 1, 1), num_groups: int = 1, *, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Transposed convolution over three dimensions; as :func:`conv2d_transpose`."""
    options = Options("conv3d_transpose", 3, border_mode, input_dilation, filter_flip,
                      filter_dilation, num_groups)  # fmt: skip
    return conv_grad_wrt_inputs(options, input, filters, output_shape, filter_shape, hints)


def causal_conv1d(
    input: TensorLike, filters: TensorLike, filter_shape: StaticShape = None,
    input_shape: StaticShape = None, subsample: PerAxis = 1, filter_flip: bool = True,
    filter_dilation: PerAxis = 1, num_groups: int = 1, unshared: bool = False, *,
    hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Causal convolution: no output depends on later inputs, since all padding is on the left.

    ``filters`` (out, channels, width) must have a known width (``filter_shape`` may give it).
    """
    w = as_variable(filters)
    width = w.type.shape[-1] if w.type.ndim == (4 if unshared else 3) else None
    if filter_shape is not None:
        width = static_size(filter_shape[-1]) or width
    if width is None:
        raise TypeMismatch("causal_conv1d", "filters of known width", "an unknown one",
                           "Pass filter_shape=(None, None, width)")  # fmt: skip
    (dilation,) = static_ints("causal_conv1d: filter_dilation", filter_dilation, 1)
    pad = (((width - 1) * dilation, 0),)
    if unshared:
        options = Options("causal_conv1d", 1, pad, subsample, filter_flip, dilation, num_groups)
        return unshared_conv(options, input, filters, input_shape, filter_shape)
    return conv1d(input, filters, input_shape, filter_shape, pad, subsample, filter_flip,
                  dilation, num_groups, hints=hints)  # fmt: skip


@advises(**OF_PYTORCH)
def separable_conv2d(
    input: TensorLike, depthwise_filters: TensorLike, pointwise_filters: TensorLike,
    num_channels: int, input_shape: StaticShape = None, depthwise_filter_shape: Any = None,
    pointwise_filter_shape: Any = None, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1), filter_flip: bool = True, filter_dilation: PerAxis = (1, 1), *,
    hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """A depthwise convolution of ``num_channels`` channels, then a pointwise one."""
    deep = conv2d(input, depthwise_filters, input_shape, depthwise_filter_shape, border_mode,
                  subsample, filter_flip, None, filter_dilation, num_channels,
                  hints=hints)  # fmt: skip
    return conv2d(deep, pointwise_filters, None, pointwise_filter_shape, hints=hints)


def old_conv2d(
    input: TensorLike, filters: TensorLike, image_shape: StaticShape = None,
    filter_shape: StaticShape = None, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1), **kwargs: Any,
) -> Variable:  # fmt: skip
    """:func:`conv2d` with the arguments of ``theano.tensor.nnet.conv.conv2d``."""
    return conv2d(input, filters, image_shape, filter_shape, border_mode, subsample, **kwargs)


def signal_conv2d(
    input: TensorLike, filters: TensorLike, image_shape: StaticShape = None,
    filter_shape: StaticShape = None, border_mode: BorderMode = "valid",
    subsample: PerAxis = (1, 1), **kwargs: Any,
) -> Variable:  # fmt: skip
    """Each image convolved with each filter: ``theano.tensor.signal.conv.conv2d``.

    ``input`` is an image or a stack (n, rows, columns), ``filters`` a filter or a stack (k, rows,
    columns). The result has a dimension for each stack: (n, k, rows, columns).
    """
    x, w = as_variable(input), as_variable(filters)
    if x.type.ndim not in (2, 3) or w.type.ndim not in (2, 3):
        raise NdimMismatch("signal.conv.conv2d", "images and filters of 2 or 3 dimensions",
                           [x.type, w.type])  # fmt: skip
    stacks = x.type.ndim == 3, w.type.ndim == 3
    x4 = x.dimshuffle(0, "x", 1, 2) if stacks[0] else x.dimshuffle("x", "x", 0, 1)
    w4 = w.dimshuffle(0, "x", 1, 2) if stacks[1] else w.dimshuffle("x", "x", 0, 1)
    sizes = [_as_four(s) for s in (image_shape, filter_shape)]
    out = conv2d(x4, w4, sizes[0], sizes[1], border_mode, subsample, **kwargs)
    return out.dimshuffle([i for i in range(4) if i > 1 or stacks[i]])


def _as_four(shape: Any) -> tuple[int, ...] | None:
    """A shape of 2 or 3 entries as one of four, with one channel."""
    if shape is None:
        return None
    lead = (shape[0], 1) if len(shape) == 3 else (1, 1)
    return (*lead, *shape[-2:])
