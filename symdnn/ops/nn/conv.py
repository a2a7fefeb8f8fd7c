"""Convolution in one, two or three dimensions, and its two gradients.

The ops are :class:`Conv`, :class:`ConvGradInput` and :class:`ConvGradWeight`. Each is bilinear, and
its derivatives are the other two, so these ops have gradients of any order.

Layouts are ``x`` (batch, channels, \\*spatial), ``w`` (out channels, channels / groups, \\*filter),
``y`` (batch, out channels, \\*out). cuDNN calls the three forward, backward data and backward
filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, SizeT, known, same_dim
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.origin import Hints
from symdnn.graph.pattern import holds_pattern
from symdnn.graph.traverse import parameter_name
from symdnn.graph.type import TensorType, elements
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.core.dtype import widened, work_dtype
from symdnn.ops.core.lanes import fold, lanes_of, sizes_of, unfold
from symdnn.ops.core.shape import as_dim, dims_of, static_dim
from symdnn.ops.nn import conv_reference
from symdnn.ops.nn.conv_reference import Geometry

__all__ = ["Conv", "ConvGradInput", "ConvGradWeight", "conv_size", "resolved_padding"]

Pad = tuple[int, int] | str
#: The dimension of an operand that takes the lanes, and whether it holds all groups; the same of
#: the output.
LanePlace = tuple[int, bool, int, bool]


# -- the geometry of one dimension --------------------------------------------------------------


def resolved_padding(mode: Pad, k: SizeT, dilation: int) -> tuple[SizeT, SizeT]:
    """Padding before and after, in numbers; for ``'half'`` and ``'full'`` by the filter's size."""
    if not isinstance(mode, str):
        return mode
    reach = (k - 1) * dilation if dilation != 1 else k - 1
    side = (reach + 1) // 2 if mode == "half" else reach
    return side, side


def conv_size(n: SizeT, k: SizeT, mode: Pad, stride: int, dilation: int) -> SizeT:
    """Size of the output: ``(n + before + after - span) // stride + 1``."""
    reach = (k - 1) * dilation if dilation != 1 else k - 1
    if isinstance(mode, str):  # twice (reach + 1) // 2, or twice reach, less reach
        growth = reach % 2 if mode == "half" else reach
    else:
        growth = sum(mode) - reach
    if stride != 1:
        return (n + (growth - 1)) // stride + 1
    return n if known(growth) == 0 else n + growth


def _text(shape: Sequence[Dim | None]) -> str:
    return f"({', '.join('?' if d is None else str(d) for d in shape)})"


# -- the base of the three ----------------------------------------------------------------------


@dataclass(frozen=True)
class _ConvFamily(Op):
    """Fields of the three ops; the number of spatial dimensions is the length of ``stride``.

    ``padding`` has a pair ``(before, after)`` for each dimension, or ``'half'`` / ``'full'`` if the
    filter's size is not known when the graph is built. With ``flip`` the filter is mirrored
    (Theano's ``filter_flip=True``, a convolution proper), without it this is cross-correlation.
    """

    abstract: ClassVar[bool] = True
    padding: tuple[Pad, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    flip: bool = False
    #: The places of lanes that only the first operand has, and of those that only the second has.
    lane_places: ClassVar[tuple[LanePlace, LanePlace]]
    #: Lanes of both operands become groups, in these dimensions of the operands and of the output.
    lane_groups: ClassVar[tuple[int, int, int]]

    def __post_init__(self) -> None:
        if holds_pattern(self):
            return
        if not len(self.padding) == len(self.stride) == len(self.dilation) > 0:
            raise OptionError(f"{self}: padding, stride and dilation must have the same length")
        if min(*self.stride, *self.dilation, self.groups) < 1:
            raise OptionError(f"{self}: stride, dilation and groups must be at least 1")
        for mode in self.padding:
            if mode not in ("half", "full") and (isinstance(mode, str) or min(mode) < 0):
                raise OptionError(
                    f"{self}: padding {mode!r} is not 'half', 'full' or two ints >= 0"
                )

    @property
    def ndim(self) -> int:
        """Number of spatial dimensions."""
        return len(self.stride)

    @property
    def settings(self) -> tuple[tuple[Pad, ...], tuple[int, ...], tuple[int, ...], int, bool]:
        """The fields that all three share, in order."""
        return self.padding, self.stride, self.dilation, self.groups, self.flip

    def _check_types(self, names: str, types: Sequence[TensorType]) -> None:
        pair = list(types[:2])
        rank = self.ndim + 2
        wanted = f"{names}: two float tensors of {rank} dimensions and one dtype"
        if len(pair) != 2 or any(not isinstance(t, TensorType) or t.ndim != rank for t in pair):
            raise TypeMismatch(self, wanted, pair)
        if pair[0].dtype != pair[1].dtype or not pair[0].is_float:
            raise TypeMismatch(self, wanted, pair, "Cast them to one float dtype")

    def _shown(self, x: Sequence[Dim | None], w: Sequence[Dim | None]) -> str:
        pads = ", ".join(str(p) for p in self.padding)
        return f"x {_text(x)}, w {_text(w)}, padding ({pads}), dilation {self.dilation}"

    def _check_channels(self, x: Sequence[Dim | None], w: Sequence[Dim | None]) -> None:
        outs, per_group, channels = known_or_none(w[0]), known_or_none(w[1]), known_or_none(x[1])
        for count, what in ((outs, "output"), (channels, "input")):
            if count is not None and count % self.groups:
                raise ShapeMismatch(
                    self, f"{what} channels divisible by groups={self.groups}", self._shown(x, w)
                )  # fmt: skip
        if channels is None or per_group is None or channels == per_group * self.groups:
            return
        raise ShapeMismatch(
            self, f"w with {channels // self.groups} input channels ({channels} in {self.groups} "
            "group(s))", self._shown(x, w),
        )  # fmt: skip

    def out_sizes(self, x: Sequence[Dim | None], w: Sequence[Dim | None]) -> list[Any]:
        """Spatial sizes of ``y`` from the shapes of ``x`` and ``w``; None for unknown ones."""
        sizes: list[Dim | None] = []
        for i in range(self.ndim):
            n, k = x[2 + i], w[2 + i]
            if n is None or k is None:
                sizes.append(None)
                continue
            m, span = known(n), known(k)
            if m is not None and span is not None:
                self._check_fits(i, m, span, x, w)
            sizes.append(conv_size(n, k, self.padding[i], self.stride[i], self.dilation[i]))
        return sizes

    def _check_fits(
        self, i: int, n: int, k: int, x: Sequence[Dim | None], w: Sequence[Dim | None]
    ) -> None:
        before, after = resolved_padding(self.padding[i], k, self.dilation[i])
        span = (k - 1) * self.dilation[i] + 1
        if k < 1 or n + before + after < span:
            raise ShapeMismatch(
                self, f"a filter of at least 1 and, dilated, at most the padded input in spatial "
                f"dimension {i} (span {span}, input {n} + {before} + {after})",
                self._shown(x, w), "Pad more (border_mode) or use a smaller filter",
            )  # fmt: skip

    def _check_output(
        self, x: Sequence[Dim | None], w: Sequence[Dim | None], dy: Sequence[Dim | None]
    ) -> None:
        """Raise unless the gradient has the shape of the output of ``x`` and ``w``."""
        self._check_channels(x, w)
        # Only numbers can be compared, so symbolic sizes are not computed.
        numbers = [[known_or_none(d) for d in shape] for shape in (x, w)]
        wanted = [numbers[0][0], numbers[1][0], *self.out_sizes(*numbers)]
        for a, b in zip(wanted, map(known_or_none, dy), strict=True):
            if a != b and a is not None and b is not None:
                same_dim(
                    self, (a, b), f"an output gradient of shape {_text(wanted)}",
                    f"dy {_text(dy)} for {self._shown(x, w)}",
                )  # fmt: skip

    def _geometry(self, kernel: Sequence[int]) -> Geometry:
        pads = (
            resolved_padding(p, k, d)
            for p, k, d in zip(self.padding, kernel, self.dilation, strict=True)
        )
        return Geometry(
            tuple((int(a), int(b)) for a, b in pads), self.stride, self.dilation, self.groups
        )

    def _mirrored(self, w: Array) -> Array:
        """``w`` for cross-correlation: mirrored with ``flip``."""
        return (
            w[(slice(None), slice(None), *[slice(None, None, -1)] * self.ndim)]
            if (self.flip)
            else w
        )

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        (a, b, *dims), (da, db) = inputs, tangents[:2]
        terms = [self(da, b, *dims)] if da is not None else []
        terms += [self(a, db, *dims)] if db is not None else []
        if not terms:
            return [None]
        return [terms[0] if len(terms) == 1 else terms[0] + terms[1]]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        """Lanes become more images or more output channels; if both operands have lanes, groups.

        If their number is not known, it is a product of windows (:mod:`.conv_windows`).
        """
        dims, lanes = inputs[2:], lanes_of(inputs, axes)
        if any(a is not None for a in axes[2:]):
            return None
        if axes[0] is None or axes[1] is None:
            return [self._one_differs(inputs, int(axes[0] is None), lanes)], [0]
        if not isinstance(lanes, int) or lanes == 0:
            dtype = inputs[0].type.dtype
            wide = work_dtype(dtype)  # sums of more than 16 bits
            given = [operator("cast")(v, wide) for v in inputs[:2]]
            return [operator("cast")(self.of_lanes([*given, *dims]), dtype)], [0]
        a, b, out = self.lane_groups
        op = replace(self, groups=lanes * self.groups)
        y = op(fold(inputs[0], a), fold(inputs[1], b), *dims)
        return [unfold(y, out, lanes, sizes_of(y)[out] // lanes)], [0]

    def multiplications(self, inputs: Types, outputs: Types) -> float:
        images, filters = self.factors((*inputs[:2], *outputs))
        return elements(images) * elements(filters) / max(filters.shape[0] or 1, 1)

    def factors(self, types: Types) -> Types:
        """Of two inputs and the result the smaller images, and the filters (K, C, \\*sizes)."""
        raise NotImplementedError(f"{type(self).__name__}.factors")

    def of_lanes(self, inputs: Vars) -> Variable:
        """The op on stacked operands."""
        raise NotImplementedError(f"{type(self).__name__}.of_lanes")

    def _one_differs(self, inputs: Vars, which: int, lanes: Dim) -> Variable:
        at, whole, out, out_whole = self.lane_places[which]
        size = sizes_of(inputs[which])[at + 1]
        given = list(inputs)
        given[which] = fold(inputs[which], at, self.groups if whole else 1)
        of_group = size // self.groups if whole else size
        parts = self.groups if out_whole else 1
        return unfold(self(*given), out, lanes, of_group * parts, parts)


def known_or_none(d: Dim | None) -> int | None:
    """The size if it is a number, else None."""
    return None if d is None else known(d)


# -- the ops --------------------------------------------------------------------------------------


class Conv(_ConvFamily):
    """Convolution of ``x`` with the filters ``w``. (cudnnConvolutionForward; AbstractConv.)"""

    lane_places: ClassVar[Any] = ((0, False, 0, False), (0, True, 1, True))
    lane_groups: ClassVar[Any] = (1, 0, 1)

    def of_lanes(self, inputs: Vars) -> Variable:
        from symdnn.ops.nn import conv_windows  # it is built by this module

        return conv_windows.conv_of_lanes(self, inputs[0], inputs[1])

    def factors(self, types: Types) -> Types:
        return types[2], types[1]

    def infer(self, *types: TensorType) -> TensorType:
        self._check_types("x, w", types)
        x, w = types
        self._check_channels(x.shape, w.shape)
        return x.with_shape((x.shape[0], w.shape[0], *self.out_sizes(x.shape, w.shape)))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        x, w = shapes
        self._check_channels(x, w)
        return [(x[0], w[0], *self.out_sizes(x, w))]

    def reference(self, x: Array, w: Array) -> Array:
        self.shapes([], [x.shape, w.shape], {})
        wide, kernels = widened(x, self._mirrored(w))
        y = conv_reference.conv(wide, kernels, self._geometry(w.shape[2:]))
        return y.astype(x.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, w), (dy,) = inputs, cotangents
        dw = grad_weight(self, x, dy, dims_of(w)[2:])
        if (name := parameter_name(w)) and dw.name is None:
            dw.name = f"{name}.grad"  # by this name reports and overrides find the layer
        return [grad_input(self, w, dy, dims_of(x)[2:]), dw]


@dataclass(frozen=True)
class _ConvGrad(_ConvFamily):
    """Base of the gradients, whose inputs from the third on are the spatial sizes of the result.

    ``static`` has the sizes that are known when the graph is built.
    """

    abstract: ClassVar[bool] = True
    static: tuple[int | None, ...] = ()

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(range(2, 2 + self.ndim))


class ConvGradInput(_ConvGrad):
    """Gradient of :class:`Conv` in ``x`` from ``w``, ``dy`` and the spatial sizes of ``x``.

    It is also the transposed convolution. Raises :class:`~symdnn.errors.ShapeMismatch` if ``x`` of
    these sizes would not give ``dy``. (cudnnConvolutionBackwardData; AbstractConv_gradInputs.)
    """

    lane_places: ClassVar[Any] = ((1, False, 1, True), (0, False, 0, False))
    lane_groups: ClassVar[Any] = (0, 1, 1)

    def of_lanes(self, inputs: Vars) -> Variable:
        from symdnn.ops.nn import conv_windows  # it is built by this module

        return conv_windows.grad_input_of_lanes(self, inputs[0], inputs[1], inputs[2:])

    def factors(self, types: Types) -> Types:
        return types[1], types[0]

    def infer(self, *types: TensorType) -> TensorType:
        self._check_types("w, dy", types)
        w, dy = types[0].shape, types[1].shape
        channels = None if w[1] is None else w[1] * self.groups
        x = (dy[0], channels, *self.static)
        self._check_output(x, w, dy)
        return types[1].with_shape(x)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        w, dy = shapes[:2]
        x = (dy[0], w[1] * self.groups, *(host[i] for i in self.host_inputs))
        self._check_output(x, w, dy)
        return [x]

    def reference(self, w: Array, dy: Array, *dims: Array) -> Array:
        spatial = [int(d) for d in dims]
        self.shapes([], [w.shape, dy.shape], dict(zip(self.host_inputs, spatial, strict=True)))
        kernels, wide = widened(self._mirrored(w), dy)
        g = self._geometry(w.shape[2:])
        return conv_reference.conv_grad_input(kernels, wide, spatial, g).astype(
            dy.dtype, copy=False
        )

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (w, dy, *_), (c,) = inputs, cotangents
        dw = grad_weight(self, c, dy, dims_of(w)[2:])
        return [dw, Conv(*self.settings)(c, w), *[None] * self.ndim]


class ConvGradWeight(_ConvGrad):
    """Gradient of :class:`Conv` in ``w`` from ``x``, ``dy`` and the filter's spatial sizes.

    (cudnnConvolutionBackwardFilter; AbstractConv_gradWeights.)
    """

    lane_places: ClassVar[Any] = ((1, True, 1, False), (1, True, 0, True))
    lane_groups: ClassVar[Any] = (1, 1, 0)

    def of_lanes(self, inputs: Vars) -> Variable:
        from symdnn.ops.nn import conv_windows  # it is built by this module

        return conv_windows.grad_weight_of_lanes(self, inputs[0], inputs[1], inputs[2:])

    def factors(self, types: Types) -> Types:
        return types[1], types[2]

    def infer(self, *types: TensorType) -> TensorType:
        self._check_types("x, dy", types)
        x, dy = types[0].shape, types[1].shape
        per_group = None if x[1] is None else x[1] // self.groups
        w = (dy[1], per_group, *self.static)
        self._check_output(x, w, dy)
        return types[1].with_shape(w)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        x, dy = shapes[:2]
        per_group = x[1] if self.groups == 1 else x[1] // self.groups
        w = (dy[1], per_group, *(host[i] for i in self.host_inputs))
        self._check_output(x, w, dy)
        return [w]

    def reference(self, x: Array, dy: Array, *dims: Array) -> Array:
        kernel = [int(d) for d in dims]
        self.shapes([], [x.shape, dy.shape], dict(zip(self.host_inputs, kernel, strict=True)))
        wide, dy_wide = widened(x, dy)
        dw = conv_reference.conv_grad_weight(wide, dy_wide, kernel, self._geometry(kernel))
        return np.ascontiguousarray(self._mirrored(dw)).astype(x.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, dy, *_), (c,) = inputs, cotangents
        dx = grad_input(self, c, dy, dims_of(x)[2:])
        return [dx, Conv(*self.settings)(x, c), *[None] * self.ndim]


def grad_input(
    op: _ConvFamily, w: Variable, dy: Variable, spatial: Sequence[Dim], hints: Hints | None = None
) -> Variable:
    """:class:`ConvGradInput` with the settings of ``op`` for an input of these spatial sizes."""
    dims = [as_dim(d) for d in spatial]
    static = tuple(static_dim(d) for d in dims)
    return ConvGradInput(*op.settings, static)(w, dy, *dims, hints=hints)


def grad_weight(
    op: _ConvFamily, x: Variable, dy: Variable, kernel: Sequence[Dim], hints: Hints | None = None
) -> Variable:
    """:class:`ConvGradWeight` with the settings of ``op`` for a filter of these sizes."""
    dims = [as_dim(d) for d in kernel]
    static = tuple(static_dim(d) for d in dims)
    return ConvGradWeight(*op.settings, static)(x, dy, *dims, hints=hints)
