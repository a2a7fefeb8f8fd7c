"""Pooling over the last one, two or three dimensions, and its gradients of first and second order.

The gradient of :class:`Pool` is :class:`MaxPoolGrad`, which reads the maxima, or
:class:`AveragePoolGrad`, which needs no data of the forward pass. Both are linear in their
cotangent, so the gradients of second order are :class:`MaxPoolGradGrad` and :class:`Pool` again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from symdnn.errors import (
    ArgumentError,
    NdimMismatch,
    OptionError,
    PaddingError,
    ShapeMismatch,
    TypeMismatch,
)
from symdnn.graph.dims import Dim, ceil_div, dim_max, dim_min, same_dim
from symdnn.graph.names.torch_words import advises
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.origin import Hints
from symdnn.graph.pattern import holds_pattern
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, BorderMode, PerAxis, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.dtype import widened
from symdnn.ops.core.lanes import on_folded, on_lanes
from symdnn.ops.core.shape import as_dim, dims_of, static_dim
from symdnn.ops.nn import pool_reference
from symdnn.ops.nn.conv_words import static_ints
from symdnn.ops.nn.pool_by_size import is_symbolic, pool_by_size
from symdnn.ops.nn.pool_reference import Axis

__all__ = [
    "AveragePoolGrad", "MaxPoolGrad", "MaxPoolGradGrad", "Pool", "PoolGrad",
    "max_pool_2d_same_size", "pool_1d", "pool_2d", "pool_3d", "pool_nd", "pool_size",
]  # fmt: skip

MODES = ("max", "average_inc_pad", "average_exc_pad", "sum")
_OTHER_NAMES = {"max_deterministic": "max", "average": "average_inc_pad"}


def pool_size(n: Dim, ws: int, stride: int, pad: int, ignore_border: bool) -> Dim:
    """The number of windows in a dimension of size ``n``.

    With ``ignore_border`` only whole windows count; without it every element is in a window (if
    the stride leaves no gaps) and the last window may be cut off.
    """
    if ignore_border:
        if ws == stride and not pad:
            return n // stride
        return dim_max((n + (2 * pad - ws)) // stride + 1, 0)
    if stride >= ws:
        return ceil_div(n, stride)
    return dim_min(dim_max(ceil_div(n - ws, stride), 0) + 1, n)


# -- the base of the ops --------------------------------------------------------------------------


@dataclass(frozen=True)
class _PoolFamily(Op):
    """Fields of all pooling ops; the number of pooled dimensions is the length of ``ws``.

    ``pad`` is on both sides. ``mode`` is ``max``, ``sum``, ``average_inc_pad`` (padding counts
    as elements) or ``average_exc_pad`` (it does not).
    """

    abstract: ClassVar[bool] = True
    ws: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    mode: str = "max"
    ignore_border: bool = True

    def __post_init__(self) -> None:
        if holds_pattern(self):
            return
        if not len(self.ws) == len(self.stride) == len(self.pad) > 0:
            raise OptionError(f"{self}: ws, stride and pad must have the same length")
        if min(*self.ws, *self.stride) < 1 or min(self.pad) < 0:
            raise OptionError(f"{self}: ws and stride must be at least 1, pad at least 0")
        if self.mode not in MODES:
            raise OptionError(f"{self}: mode must be one of {', '.join(MODES)}")
        if any(self.pad) and not self.ignore_border:
            raise PaddingError(f"{self}: padding needs ignore_border=True")
        if any(p >= w for p, w in zip(self.pad, self.ws, strict=True)):
            raise PaddingError(f"{self}: pad must be smaller than ws, else a window is all padding")

    @property
    def ndim(self) -> int:
        """Number of pooled dimensions."""
        return len(self.ws)

    @property
    def settings(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str, bool]:
        """The fields that all pooling ops share, in order."""
        return self.ws, self.stride, self.pad, self.mode, self.ignore_border

    def out_shape(self, x: Sequence[Dim | None]) -> tuple[Any, ...]:
        """Shape of the pooled ``x``; unknown sizes stay None."""
        lead = len(x) - self.ndim
        rest = zip(x[lead:], self.ws, self.stride, self.pad, strict=True)
        return (
            *x[:lead],
            *(None if n is None else pool_size(n, w, s, p, self.ignore_border)
              for n, w, s, p in rest),
        )  # fmt: skip

    def _check_types(self, names: str, types: Types, count: int) -> None:
        floats = self.mode.startswith("average")
        wanted = f"{names}: {'float' if floats else 'real'} tensors of one dtype and ndim"
        tensors = list(types[:count])
        if len(tensors) != count or any(not isinstance(t, TensorType) for t in tensors):
            raise TypeMismatch(self, wanted, tensors)
        first = tensors[0]
        if first.ndim < self.ndim or {(t.ndim, t.dtype) for t in tensors} != {
            (first.ndim, first.dtype)
        }:
            raise NdimMismatch(self, f"{wanted}, at least {self.ndim} dimensions", tensors)
        if not (first.is_float or (first.is_integer and not floats)):
            raise TypeMismatch(self, wanted, tensors, "Cast: x.astype('float32')")

    def _same_shape(
        self, what: str, wanted: Sequence[Dim | None], got: Sequence[Dim | None]
    ) -> None:
        for a, b in zip(wanted, got, strict=True):
            if a is not None and b is not None:
                same_dim(self, (a, b), f"{what} of shape {tuple(wanted)}", tuple(got))

    def _axes(self, sizes: Sequence[int]) -> list[Axis]:
        return [
            Axis(int(n), int(pool_size(int(n), w, s, p, self.ignore_border)), w, s, p)
            for n, w, s, p in zip(sizes[-self.ndim :], self.ws, self.stride, self.pad, strict=True)
        ]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        first, operands = inputs[0].type.ndim - (axes[0] == 0), len(inputs) - len(self.host_inputs)
        if first == self.ndim:
            return on_lanes(self, inputs, axes)
        return on_folded(self, inputs, axes, [0] * operands + [None] * len(self.host_inputs), [0])


# -- the ops --------------------------------------------------------------------------------------


class Pool(_PoolFamily):
    """One number for each window of ``x``; any number of leading dimensions is kept.

    A NaN in a window gives NaN. (cudnnPoolingForward; Theano's ``Pool``.)
    """

    def infer(self, *types: TensorType) -> TensorType:
        self._check_types("x", types, 1)
        return types[0].with_shape(self.out_shape(types[0].shape))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [self.out_shape(shapes[0])]

    def reference(self, x: Array) -> Any:
        axes, (wide,) = self._axes(x.shape), widened(x)
        if self.mode == "max":
            return pool_reference.max_pool(wide, axes).astype(x.dtype, copy=False)
        total = pool_reference.sum_pool(wide, axes)
        if self.mode != "sum":
            weights = pool_reference.mean_weights(axes, self.mode == "average_inc_pad")
            total /= weights.astype(total.dtype)
        return total.astype(x.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (y,), (dy,) = inputs, outputs, cotangents
        if not x.type.is_differentiable:
            return [None]
        if self.mode == "max":
            return [MaxPoolGrad(*self.settings)(x, y, dy)]
        return [_average_pool_grad(self, dy, dims_of(x)[-self.ndim :])]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        if self.mode == "max":
            return [MaxPoolGradGrad(*self.settings)(inputs[0], outputs[0], tangents[0])]
        return [self(tangents[0])]


class PoolGrad(_PoolFamily):
    """Base of the gradients of :class:`Pool` in its input. (cudnnPoolingBackward.)"""

    abstract: ClassVar[bool] = True


class MaxPoolGrad(PoolGrad):
    """Gradient of max pooling from ``x``, ``y`` and ``dy``: every tie gets the whole ``dy``."""

    def infer(self, *types: TensorType) -> TensorType:
        self._check_types("x, y, dy", types, 3)
        x, y, dy = (t.shape for t in types)
        self._same_shape("y", self.out_shape(x), y)
        self._same_shape("dy", self.out_shape(x), dy)
        return types[0]

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        x, y, dy = shapes
        self._same_shape("y", self.out_shape(x), y)
        self._same_shape("dy", self.out_shape(x), dy)
        return [x]

    def reference(self, x: Array, y: Array, dy: Array) -> Array:
        self.shapes([], [x.shape, y.shape, dy.shape], {})
        wide = widened(x, y, dy)
        dx = pool_reference.max_scatter(wide[0], wide[1], wide[2], self._axes(x.shape))
        return dx.astype(x.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        x, y, _ = inputs
        return [None, None, MaxPoolGradGrad(*self.settings)(x, y, cotangents[0])]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        x, y, _ = inputs
        return [None if tangents[2] is None else self(x, y, tangents[2])]


class MaxPoolGradGrad(_PoolFamily):
    """The sum of ``v`` (of the shape of ``x``) over the elements of a window that equal ``y``.

    The transpose of :class:`MaxPoolGrad` in ``dy``, and the tangent of max pooling.
    """

    def infer(self, *types: TensorType) -> TensorType:
        self._check_types("x, y, v", types, 3)
        x, y, v = (t.shape for t in types)
        self._same_shape("y", self.out_shape(x), y)
        self._same_shape("v", x, v)
        return types[1]

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        x, y, v = shapes
        self._same_shape("y", self.out_shape(x), y)
        self._same_shape("v", x, v)
        return [y]

    def reference(self, x: Array, y: Array, v: Array) -> Array:
        self.shapes([], [x.shape, y.shape, v.shape], {})
        wide = widened(x, y, v)
        out = pool_reference.max_gather(wide[0], wide[1], wide[2], self._axes(x.shape))
        return out.astype(x.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        x, y, _ = inputs
        return [None, None, MaxPoolGrad(*self.settings)(x, y, cotangents[0])]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        x, y, _ = inputs
        return [None if tangents[2] is None else self(x, y, tangents[2])]


@dataclass(frozen=True)
class AveragePoolGrad(PoolGrad):
    """Gradient of average or sum pooling from ``dy`` and the sizes of ``x``'s pooled dimensions.

    ``static`` holds the sizes that are known when the graph is built.
    """

    linear_in_first: ClassVar[bool] = True
    static: tuple[int | None, ...] = ()

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + self.ndim))

    def infer(self, *types: TensorType) -> TensorType:
        self._check_types("dy", types, 1)
        dy = types[0].shape
        x = (*dy[: len(dy) - self.ndim], *self.static)
        self._same_shape("dy", self.out_shape(x), dy)
        return types[0].with_shape(x)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        dy = shapes[0]
        x = (*dy[: len(dy) - self.ndim], *(host[i] for i in self.host_inputs))
        self._same_shape("dy", self.out_shape(x), dy)
        return [x]

    def reference(self, dy: Array, *dims: Array) -> Array:
        sizes = [int(d) for d in dims]
        if any(n < 0 for n in sizes):
            raise ShapeMismatch(self, "sizes that are not negative", tuple(sizes))
        self.shapes([], [dy.shape], dict(zip(self.host_inputs, sizes, strict=True)))
        axes, (wide,) = self._axes(sizes), widened(dy)
        if self.mode != "sum":
            weights = pool_reference.mean_weights(axes, self.mode == "average_inc_pad")
            wide = wide / weights.astype(wide.dtype)
        return pool_reference.spread(wide, axes).astype(dy.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [Pool(*self.settings)(cotangents[0]), *[None] * self.ndim]


def _average_pool_grad(op: _PoolFamily, dy: Variable, sizes: Sequence[Dim]) -> Variable:
    dims = [as_dim(d) for d in sizes]
    return AveragePoolGrad(*op.settings, tuple(static_dim(d) for d in dims))(dy, *dims)


# -- builders -------------------------------------------------------------------------------------


def pool_nd(
    name: str, ndim: int, input: TensorLike, ws: Any, ignore_border: bool | None, stride: Any,
    pad: BorderMode,
    mode: str, ds: PerAxis | None = None, st: Any = None, padding: BorderMode | None = None,
    hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Pooling over the last ``ndim`` dimensions, for ``pool_1d``, ``pool_2d`` and ``pool_3d``."""
    ws = _one_of(name, "ws", ws, "ds", ds)
    if ws is None:
        raise ArgumentError(f"{name}: wanted the window's size, ws; got none")
    stride = _one_of(name, "stride", stride, "st", st)
    pad = padding if padding is not None else pad
    x = as_variable(input)
    if not isinstance(x.type, TensorType) or x.type.ndim < ndim:
        raise NdimMismatch(name, f"a tensor of at least {ndim} dimension(s)", x.type)
    kind = _OTHER_NAMES.get(mode, mode)
    if any(is_symbolic(v) for v in (ws, stride, pad)):
        if kind not in MODES:
            raise OptionError(f"{name}: mode must be one of {', '.join(MODES)}")
        words = ws, ws if stride is None else stride, 0 if pad is None else pad
        return pool_by_size(x, *words, kind, ndim, bool(ignore_border))
    size = static_ints(f"{name}: ws", ws, ndim)
    steps = size if stride is None else static_ints(f"{name}: stride", stride, ndim)
    around = static_ints(f"{name}: pad", 0 if pad is None else pad, ndim)
    op = Pool(size, steps, around, kind, bool(ignore_border))
    return op(x, hints=hints)


def _one_of(name: str, new: str, value: object, old: str, old_value: object) -> Any:
    if value is not None and old_value is not None:
        raise ArgumentError(f"{name}: {old} is the old name of {new}; give one of them")
    return value if old_value is None else old_value


#: Keywords of Lasagne, Keras and PyTorch, each with Theano's.
_WORDS = {
    **dict.fromkeys(("pool_size", "poolsize", "kernel_size", "window"), "ws"),
    **dict.fromkeys(("strides", "subsample"), "stride"),
    "ceil_mode": "ceil_mode=True is ignore_border=False here",
    "border_mode": "pad",
}


@advises(**_WORDS)
def pool_1d(
    input: TensorLike, ws: Any = None, ignore_border: bool | None = None, stride: Any = None,
    pad: Any = 0, mode: str = "max", *, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Pooling over the last dimension; as :func:`pool_2d`."""
    return pool_nd("pool_1d", 1, input, ws, ignore_border, stride, pad, mode, hints=hints)


@advises(**_WORDS)
def pool_2d(
    input: TensorLike, ws: Any = None, ignore_border: bool | None = None,
    stride: Any = None, pad: Any = (0, 0), mode: str = "max", ds: Any = None,
    st: Any = None, padding: Any = None, *, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Pooling of the last two dimensions of ``input`` in windows ``ws``, ``stride`` apart.

    ``stride`` defaults to ``ws``; an int is used for both dimensions. With ``ignore_border=True``
    incomplete windows at the end are dropped; otherwise (None means False) they are kept. ``mode``
    is ``'max'``, ``'sum'``, ``'average_inc_pad'`` or ``'average_exc_pad'``. ``pad`` is on both
    sides, needs ``ignore_border=True`` and must be smaller than ``ws``. Sizes may be symbolic
    (integer scalars, or vectors), which is slower, and wrong ones raise an error in a call. ``ds``,
    ``st`` and ``padding`` are Theano's old names. The gradient of a maximum goes to every tie.
    Raises ``ValueError`` for options that do not fit.

    >>> from symdnn.graph.type import TensorType
    >>> x = TensorType("float32", (None, 3, 7, 7))("x")
    >>> str(pool_2d(x, (2, 2)).type), str(pool_2d(x, (2, 2), ignore_border=True).type)
    ('float32(?, 3, 4, 4)', 'float32(?, 3, 3, 3)')
    """
    return pool_nd("pool_2d", 2, input, ws, ignore_border, stride, pad, mode, ds, st, padding,
                   hints)  # fmt: skip


@advises(**_WORDS)
def pool_3d(
    input: TensorLike, ws: Any = None, ignore_border: bool | None = None, stride: Any = None,
    pad: Any = (0, 0, 0), mode: str = "max", ds: Any = None, st: Any = None, padding: Any = None,
    *, hints: Hints | None = None,
) -> Variable:  # fmt: skip
    """Pooling over the last three dimensions; as :func:`pool_2d`."""
    return pool_nd("pool_3d", 3, input, ws, ignore_border, stride, pad, mode, ds, st, padding,
                   hints)  # fmt: skip


def max_pool_2d_same_size(
    input: TensorLike, patch_size: Sequence[int], *, hints: Hints | None = None
) -> Variable:  # fmt: skip
    """``input`` with every element set to zero that is not the largest of its patch.

    Patches do not overlap; elements of incomplete patches become zero, too.
    """
    x, size = as_variable(input), static_ints("max_pool_2d_same_size: patch_size", patch_size, 2)
    y = pool_2d(x, size, ignore_border=True, hints=hints)
    return MaxPoolGrad(size, size, (0, 0), "max", True)(x, y, y, hints=hints)
