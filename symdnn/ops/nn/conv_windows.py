"""Convolutions as products of copied windows: filters of each position, filters of each lane.

An unshared (locally connected) convolution has filters for each position of the output, in
Theano's layout: (out channels, output positions..., channels / groups, spatial...).

Lanes with filters of their own are groups of one convolution where their number is known. The
number of groups is a part of an op, so for others the windows of the images are copied, and
multiplied with the filters as a stack of matrices (Chellapilla et al. 2006). The gradients are
those of this product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from symdnn.errors import NdimMismatch, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.type import TensorType
from symdnn.graph.typing import BorderMode, PerAxis, StaticShape, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange, zeros
from symdnn.ops.array.getitem import getitem
from symdnn.ops.array.pad import pad
from symdnn.ops.array.take import take
from symdnn.ops.core.composed import vjp_of_expression
from symdnn.ops.core.dtype import upcast
from symdnn.ops.core.lanes import sizes_of
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.linalg.einsum import einsum
from symdnn.ops.nn.conv import Conv, resolved_padding
from symdnn.ops.nn.conv_words import border_padding, settled_padding, static_ints, with_sizes
from symdnn.options import as_int


class Options:
    """The options of a convolution over ``ndim`` dimensions, in numbers."""

    def __init__(
        self, name: str, ndim: int, border_mode: BorderMode, subsample: PerAxis, filter_flip: bool,
        filter_dilation: PerAxis, num_groups: int,
    ) -> None:  # fmt: skip
        self.name, self.ndim, self.flip = name, ndim, filter_flip
        self.groups = as_int(f"{name}: num_groups", num_groups)
        self.padding = border_padding(border_mode, ndim)
        self.stride = static_ints(f"{name}: subsample", subsample, ndim)
        self.dilation = static_ints(f"{name}: filter_dilation", filter_dilation, ndim)

    def conv(self, kernel: Sequence[Dim | None]) -> Conv:
        """The op with filters of these sizes, which all positions share."""
        padding = settled_padding(self.padding, kernel, self.dilation)
        return Conv(padding, self.stride, self.dilation, self.groups, bool(self.flip))

    def operand(self, value: TensorLike, ndim: int, what: str) -> Variable:
        """``value`` as a float variable of ``ndim`` dimensions."""
        v = as_variable(value)
        if not isinstance(v.type, TensorType) or v.type.ndim != ndim:
            raise NdimMismatch(self.name, f"{what}, of {ndim} dimensions", v.type)
        if not v.type.is_float:
            raise TypeMismatch(self.name, "float tensors", v.type, "Cast: x.astype('float32')")
        return v

    def images(self, value: TensorLike) -> Variable:
        """(batch, channels, positions...)."""
        return self.operand(value, self.ndim + 2, "images (batch, channels, spatial)")

    def filters(self, value: TensorLike) -> Variable:
        """(out, output positions..., channels / groups, spatial...)."""
        what = "unshared filters (out, output positions, channels / groups, spatial)"
        return self.operand(value, 2 * self.ndim + 2, what)

    def build(self, x: Variable, w: Variable) -> Variable:
        """The convolution of images with filters of one dtype."""
        return self._product(windows_of(self, x, dims_of(w)[-self.ndim :]), w)

    def _product(self, windows: Variable, w: Variable) -> Variable:
        """Sum over channels and offsets, group by group."""
        n, channels, *spatial = dims_of(windows)
        out, *rest = dims_of(w)
        g = self.groups
        apart = windows.reshape((n, g, channels // g, *spatial), ndim=windows.type.ndim + 1)
        wide = w.reshape((g, out // g, *rest), ndim=w.type.ndim + 1)
        places, offsets = "pqr"[: self.ndim], "klm"[: self.ndim]
        pairs = "".join(p + k for p, k in zip(places, offsets))
        y = einsum(f"ngc{pairs},go{places}c{offsets}->ngo{places}", apart, wide)
        return y.reshape((n, out, *dims_of(y)[3:]), ndim=self.ndim + 2)


def windows_of(options: Any, x: Variable, kernel: Sequence[Any]) -> Variable:
    """The windows of images: each spatial dimension becomes two, position and offset.

    ``options`` has the padding, stride, dilation and flip of a convolution.
    """
    sides = zip(options.padding, kernel, options.dilation)
    x = pad(x, [(0, 0), (0, 0), *(resolved_padding(m, k, d) for m, k, d in sides)])
    for i, k in enumerate(kernel):
        axis, step, apart = 2 + 2 * i, options.stride[i], options.dilation[i]
        count = (dims_of(x)[axis] - (k - 1) * apart - 1) // step + 1
        offsets = arange(k)[::-1] if options.flip else arange(k)
        where = (arange(count) * step).dimshuffle(0, "x") + (offsets * apart).dimshuffle("x", 0)
        x = take(x, where, axis=axis)
    return x


def _one_dtype(*values: Variable) -> list[Variable]:
    common = upcast(*(v.type.dtype for v in values))
    return [cast(v, common) for v in values]


def unshared_conv(
    options: Options,
    input: TensorLike,
    filters: TensorLike,
    input_shape: StaticShape = None,
    filter_shape: StaticShape = None,
) -> Variable:
    """The convolution of ``input`` (batch, channels, ...) with unshared ``filters``."""
    x, w = _one_dtype(options.images(input), options.filters(filters))
    x = with_sizes(f"{options.name}: input_shape", x, input_shape)
    return options.build(x, with_sizes(f"{options.name}: filter_shape", w, filter_shape))


def unshared_grad_inputs(
    options: Options,
    output_grad: TensorLike,
    filters: TensorLike,
    input_shape: StaticShape,
    filter_shape: StaticShape = None,
) -> Variable:
    """The gradient in the input, whose spatial sizes ``input_shape`` ends with."""
    dy, w = _one_dtype(options.images(output_grad), options.filters(filters))
    w = with_sizes(f"{options.name}: filter_shape", w, filter_shape)
    sizes = _last(options, "input_shape", input_shape)
    shape = [dims_of(dy)[0], dims_of(w)[1 + options.ndim] * options.groups, *sizes]
    (dx,) = vjp_of_expression(lambda x: options.build(x, w), [zeros(shape, w.type.dtype)], dy)
    assert dx is not None
    return dx


def unshared_grad_weights(
    options: Options,
    input: TensorLike,
    output_grad: TensorLike,
    filter_shape: StaticShape,
    input_shape: StaticShape = None,
) -> Variable:
    """The gradient in the filters, whose spatial sizes ``filter_shape`` ends with."""
    x, dy = _one_dtype(options.images(input), options.images(output_grad))
    x = with_sizes(f"{options.name}: input_shape", x, input_shape)
    kernel = _last(options, "filter_shape", filter_shape)
    _, out, *places = dims_of(dy)
    shape = [out, *places, dims_of(x)[1] // options.groups, *kernel]
    (dw,) = vjp_of_expression(lambda w: options.build(x, w), [zeros(shape, x.type.dtype)], dy)
    assert dw is not None
    return dw


def _last(options: Options, what: str, shape: Any) -> Sequence[Variable]:
    if isinstance(shape, Variable):
        return [getitem(shape, i - options.ndim) for i in range(options.ndim)]
    entries = [] if shape is None else list(shape)[-options.ndim :]
    if len(entries) != options.ndim or any(d is None for d in entries):
        raise NdimMismatch(options.name, f"the {options.ndim} spatial sizes in {what}", repr(shape))
    return entries


# -- lanes -------------------------------------------------------------------------------------


def conv_of_lanes(op: Any, x: Variable, w: Variable) -> Variable:
    """(lanes, images, out, ...) of (lanes, images, channels, ...) and of filters for each lane."""
    lanes, images, channels, *space = sizes_of(x)
    _, out, inside, *kernel = sizes_of(w)
    g = op.groups
    windows = windows_of(op, x.reshape((lanes * images, channels, *space)), kernel)
    cut = sizes_of(windows)[2:]
    apart = windows.reshape((lanes, images, g, inside, *cut), ndim=4 + len(cut))
    filters = w.reshape((lanes, g, out // g, inside, *kernel), ndim=4 + len(kernel))
    places, offsets = "pqr"[: op.ndim], "klm"[: op.ndim]
    pairs = "".join(p + k for p, k in zip(places, offsets))
    y = einsum(f"zngc{pairs},zgoc{offsets}->zngo{places}", apart, filters)
    return y.reshape((lanes, images, out, *sizes_of(y)[4:]), ndim=3 + op.ndim)


def grad_input_of_lanes(op: Any, w: Variable, dy: Variable, spatial: Sequence[Dim]) -> Variable:
    """The gradient of :func:`conv_of_lanes` in ``x``, of these spatial sizes."""
    lanes, images = sizes_of(dy)[:2]
    start = zeros([lanes, images, sizes_of(w)[2] * op.groups, *spatial], w.type.dtype)
    (dx,) = vjp_of_expression(lambda x: conv_of_lanes(op, x, w), [start], dy)
    assert dx is not None
    return dx


def grad_weight_of_lanes(op: Any, x: Variable, dy: Variable, kernel: Sequence[Dim]) -> Variable:
    """The gradient of :func:`conv_of_lanes` in ``w``, of these spatial sizes."""
    lanes, _, out = sizes_of(dy)[:3]
    start = zeros([lanes, out, sizes_of(x)[2] // op.groups, *kernel], x.type.dtype)
    (dw,) = vjp_of_expression(partial(conv_of_lanes, op, x), [start], dy)
    assert dw is not None
    return dw
