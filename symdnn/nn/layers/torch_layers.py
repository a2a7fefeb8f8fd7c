"""Layers that PyTorch has and Torch7 has not, under PyTorch's names and with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt as root
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import InputError, TypeMismatch, UnknownWord
from symdnn.graph.typing import PerAxis
from symdnn.graph.variable import Shared, Variable, constant
from symdnn.nn import init
from symdnn.nn.layers.shaping import padded
from symdnn.nn.layers.table import _two
from symdnn.nn.modules.arguments import positive, sizes, tensor_input
from symdnn.nn.modules.module import Module
from symdnn.ops.array.moments import mean
from symdnn.ops.array.view import of_sizes
from symdnn.ops.core.shape import alloc, dims_of, zeros_like
from symdnn.ops.elementwise.activations import elu, gelu, relu, sigmoid, silu
from symdnn.ops.elementwise.arithmetic import cast, sqr, sqrt
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.elementwise.math import tanh
from symdnn.ops.linalg.dot import dot
from symdnn.ops.nn.softmax import softmax
from symdnn.ops.torch_names.torch_distances import cosine_similarity, pairwise_distance

__all__ = [
    "CELU", "ChannelShuffle", "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d",
    "ConstantPad2d", "ConstantPad3d", "CosineSimilarity", "GEGLU", "GLU", "GRUCell", "LSTMCell",
    "PairwiseDistance", "PixelShuffle", "PixelUnshuffle", "RMSNorm", "RNNCell", "ReGLU",
    "ReflectionPad1d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad3d", "Softmax2d",
    "SwiGLU", "Unflatten", "ZeroPad1d", "ZeroPad3d",
]  # fmt: skip


# -- padding -------------------------------------------------------------------------------------


class _Pad(Module):
    """Base: ``padding`` is an int, or (left, right[, top, bottom[, front, back]]).

    Constant padding by a negative number cuts off.
    """

    mode: ClassVar[str] = "constant"
    ndim: ClassVar[int] = 1

    def __init__(self, padding: PerAxis) -> None:
        name, sides = type(self).__name__, 2 * self.ndim
        self.padding = sizes(f"{name}: padding", sides, [None] * sides, padding)
        if min(self.padding) < 0 and self.mode != "constant":
            raise InputError(f"{name}: padding={padding!r}; wanted 0 or more")

    def forward(self, x: Variable) -> Variable:
        n = self.ndim
        tensor_input(self, x, f"a float tensor (N, C, {n} sizes) or (C, {n} sizes)", n + 2, n + 1)
        pairs = list(zip(self.padding[::2], self.padding[1::2], strict=True))[::-1]
        options: dict[str, Any] = {"constant_values": self.value} if self.mode == "constant" else {}
        return padded(x, pairs, self.mode, **options)

    #: The value of the padding, if it is constant.
    value: float = 0.0

    def describe(self) -> str:
        return f"({', '.join(map(str, self.padding))})"


class ZeroPad1d(_Pad):
    """Zeros around (N, C, L); :class:`_Pad` has the argument."""


class ZeroPad3d(_Pad):
    """Zeros around (N, C, D, H, W)."""

    ndim = 3


class ConstantPad1d(_Pad):
    """A number around (N, C, L)."""

    def __init__(self, padding: PerAxis, value: float) -> None:
        super().__init__(padding)
        self.value = float(value)


class ConstantPad2d(ConstantPad1d):
    """A number around (N, C, H, W)."""

    ndim = 2


class ConstantPad3d(ConstantPad1d):
    """A number around (N, C, D, H, W)."""

    ndim = 3


class ReflectionPad1d(_Pad):
    """(N, C, L) continued by its mirror image, the border itself not repeated."""

    mode = "reflect"


class ReflectionPad3d(ReflectionPad1d):
    """(N, C, D, H, W) continued by its mirror image."""

    ndim = 3


class ReplicationPad1d(_Pad):
    """(N, C, L) continued by its border."""

    mode = "edge"


class ReplicationPad3d(ReplicationPad1d):
    """(N, C, D, H, W) continued by its border."""

    ndim = 3


class CircularPad1d(_Pad):
    """(N, C, L) continued by its other end."""

    mode = "wrap"


class CircularPad2d(CircularPad1d):
    """(N, C, H, W) continued by its other end."""

    ndim = 2


class CircularPad3d(CircularPad1d):
    """(N, C, D, H, W) continued by its other end."""

    ndim = 3


# -- places and channels -------------------------------------------------------------------------


def _images(module: Module, x: Any) -> None:
    tensor_input(module, x, "a float tensor (..., C, H, W)")
    if x.type.ndim < 3:
        raise TypeMismatch(type(module).__name__, "a float tensor (..., C, H, W)", x.type)


class PixelShuffle(Module):
    """(..., C r^2, H, W) to (..., C, H r, W r): channels become pixels (Shi et al. 2016)."""

    _shown = "{0.factor}"

    def __init__(self, upscale_factor: int) -> None:
        positive("PixelShuffle: upscale_factor", upscale_factor)
        self.factor = int(upscale_factor)

    def forward(self, x: Variable) -> Variable:
        _images(self, x)
        *lead, c, h, w = dims_of(x)
        r, k = self.factor, len(lead)
        if isinstance(c, int) and c % (r * r):
            raise TypeMismatch("PixelShuffle", f"channels that are a multiple of {r * r}", x.type)
        parts = x.reshape((*lead, c // (r * r), r, r, h, w))
        moved: Variable = parts.dimshuffle(*range(k + 1), k + 3, k + 1, k + 4, k + 2)
        return moved.reshape((*lead, c // (r * r), h * r, w * r))


class PixelUnshuffle(Module):
    """(..., C, H r, W r) to (..., C r^2, H, W): the inverse of :class:`PixelShuffle`."""

    _shown = "{0.factor}"

    def __init__(self, downscale_factor: int) -> None:
        positive("PixelUnshuffle: downscale_factor", downscale_factor)
        self.factor = int(downscale_factor)

    def forward(self, x: Variable) -> Variable:
        _images(self, x)
        *lead, c, h, w = dims_of(x)
        r, k = self.factor, len(lead)
        if any(isinstance(n, int) and n % r for n in (h, w)):
            raise TypeMismatch("PixelUnshuffle", f"H and W that are multiples of {r}", x.type)
        parts = x.reshape((*lead, c, h // r, r, w // r, r))
        moved: Variable = parts.dimshuffle(*range(k + 1), k + 2, k + 4, k + 1, k + 3)
        return moved.reshape((*lead, c * r * r, h // r, w // r))


class ChannelShuffle(Module):
    """Channels of ``groups`` groups taken in turn: (N, C, ...) (Zhang et al. 2018)."""

    _shown = "{0.groups}"

    def __init__(self, groups: int) -> None:
        positive("ChannelShuffle: groups", groups)
        self.groups = int(groups)

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a float tensor (N, C, ...)")
        n, c, *rest = dims_of(x)
        parts: Any = x.reshape((n, self.groups, c // self.groups, *rest))
        order = [0, 2, 1, *range(3, 3 + len(rest))]
        made: Variable = parts.dimshuffle(*order).reshape((n, c, *rest))
        return made


class Unflatten(Module):
    """The axis ``dim`` as several of sizes ``unflattened_size``, one of which may be -1."""

    _shown = "{0.dim}, {0.shape}"

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        self.dim, count = int(dim), len(unflattened_size)
        shape = sizes("Unflatten: unflattened_size", count, [None] * count, list(unflattened_size))
        if not shape or shape.count(-1) > 1 or any(n < 1 and n != -1 for n in shape):
            raise InputError(
                f"Unflatten: unflattened_size={unflattened_size!r}; wanted sizes, at most one -1"
            )
        self.shape = shape

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a tensor", any_dtype=True)
        if not -x.type.ndim <= self.dim < x.type.ndim:
            raise TypeMismatch("Unflatten", f"a tensor with an axis {self.dim}", x.type)
        dims, axis = dims_of(x), self.dim % x.type.ndim
        known = int(np.prod([n for n in self.shape if n != -1]))
        inner = [dims[axis] // known if n == -1 else n for n in self.shape]
        return x.reshape((*dims[:axis], *inner, *dims[axis + 1 :]))


# -- functions of each element, and of pairs -----------------------------------------------------


class CELU(Module):
    """``max(0, x) + min(0, alpha (exp(x / alpha) - 1))`` (Barron 2017)."""

    _shown = "{0.alpha:g}"

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        if not alpha > 0:
            raise InputError(f"CELU: alpha={alpha!r}; wanted more than 0")
        self.alpha = float(alpha)

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a float tensor")
        a = constant(self.alpha, dtype=x.type.dtype)
        return switch(x > 0, x, elu(x / a) * a)  # x / a * a is rounded, and may overflow


class GLU(Module):
    """The first half of the axis ``dim`` times the sigmoid of the second (Dauphin et al. 2017).

    The size of the axis is even.
    """

    #: The function of the second half, the gate.
    gate: ClassVar[Callable[..., Any]] = staticmethod(sigmoid)
    _shown = "{0.dim}"

    def __init__(self, dim: int = -1) -> None:
        self.dim = int(dim)

    def forward(self, x: Variable) -> Variable:
        name = type(self).__name__
        tensor_input(self, x, "a float tensor")
        if not -x.type.ndim <= self.dim < x.type.ndim:
            raise TypeMismatch(name, f"a tensor with an axis {self.dim}", x.type)
        axis = self.dim % x.type.ndim
        if (x.type.shape[axis] or 0) % 2:
            raise TypeMismatch(name, f"an even size of axis {self.dim}", x.type)
        half, lead = dims_of(x)[axis] // 2, (slice(None),) * axis
        gate: Variable = self.gate(x[(*lead, slice(half, None))])
        return x[(*lead, slice(None, half))] * gate


class ReGLU(GLU):
    """:class:`GLU` with relu in place of the sigmoid (Shazeer 2020)."""

    gate = staticmethod(relu)


class GEGLU(GLU):
    """:class:`GLU` with gelu in place of the sigmoid (Shazeer 2020)."""

    gate = staticmethod(gelu)


class SwiGLU(GLU):
    """:class:`GLU` with ``z sigmoid(z)`` in place of the sigmoid (Shazeer 2020).

    The gate is the second half. Where a program joins Llama's two matrices as (gate, up), exchange
    them.
    """

    gate = staticmethod(silu)


class Softmax2d(Module):
    """The softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a float tensor (N, C, H, W) or (C, H, W)", 3, 4)
        return softmax(x, axis=x.type.ndim - 3)


class CosineSimilarity(Module):
    """The cosines ``a . b / (|a| |b|)`` along the axis ``dim``; the norms are at least ``eps``."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim, self.eps = int(dim), float(eps)

    def forward(self, *pair: Any) -> Variable:
        a, b = _two(self, pair)
        return cosine_similarity(a, b, self.dim, self.eps)


class PairwiseDistance(Module):
    """``|a - b + eps|``, the p-norm over the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        if not p > 0:
            raise InputError(f"PairwiseDistance: p={p!r}; wanted more than 0")
        self.p, self.eps, self.keepdim = float(p), float(eps), bool(keepdim)

    def forward(self, *pair: Any) -> Variable:
        a, b = _two(self, pair)
        return pairwise_distance(a, b, self.p, self.eps, self.keepdim)


class RMSNorm(Module):
    """``x / sqrt(mean(x^2) + eps) weight`` over the last axes (Zhang and Sennrich 2019).

    ``normalized_shape`` is an int or a tuple; ``eps`` is the dtype's rounding unless given.
    """

    weight: Shared | None

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None,
        elementwise_affine: bool = True, *, dtype: str | None = None,
    ) -> None:  # fmt: skip
        one = np.ndim(normalized_shape) == 0
        given: list[Any] = [normalized_shape] if one else list(normalized_shape)  # type: ignore[arg-type]
        positive("RMSNorm: normalized_shape", *given)
        if not given:
            raise InputError("RMSNorm: normalized_shape is empty; wanted one axis or more")
        self.normalized_shape, self.eps = tuple(int(n) for n in given), eps
        self.weight = None
        if elementwise_affine:
            self.parameter("weight", self.normalized_shape, init.ones, dtype)

    def forward(self, x: Variable) -> Variable:
        n = len(self.normalized_shape)
        wanted = f"a float tensor (..., {', '.join(map(str, self.normalized_shape))})"
        tensor_input(self, x, wanted)
        pairs = zip(x.type.shape[-n:], self.normalized_shape, strict=False)
        if x.type.ndim < n or any(a not in (None, b) for a, b in pairs):
            raise TypeMismatch("RMSNorm", wanted, x.type)
        work = cast(x, "float32") if x.type.numpy.itemsize < 4 else x
        eps = float(np.finfo(work.type.numpy).eps) if self.eps is None else self.eps
        square = mean(sqr(work), axis=tuple(range(-n, 0)), keepdims=True)
        y = work / sqrt(square + constant(eps, dtype=work.type.dtype))
        y = y if self.weight is None else y * cast(self.weight, work.type.dtype)
        return cast(y, x.type.dtype)

    def describe(self) -> str:
        return f"({'x'.join(map(str, self.normalized_shape))})"


# -- one step of a recurrent network -------------------------------------------------------------


class _Cell(Module):
    """Base: ``weight_ih``, ``weight_hh``, ``bias_ih``, ``bias_hh`` in PyTorch's order of gates."""

    gates: ClassVar[int] = 1
    weight_ih: Shared
    weight_hh: Shared
    bias_ih: Shared | None
    bias_hh: Shared | None
    _shown = "{0.input_size} -> {0.hidden_size}"

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: str | None = None
    ) -> None:
        positive(f"{type(self).__name__}: input_size, hidden_size", input_size, hidden_size)
        self.input_size, self.hidden_size = int(input_size), int(hidden_size)
        around, rows = init.uniform(1 / root(hidden_size)), self.gates * self.hidden_size
        self.parameter("weight_ih", (rows, self.input_size), around, dtype)
        self.parameter("weight_hh", (rows, self.hidden_size), around, dtype)
        self.bias_ih = self.bias_hh = None
        if bias:
            self.parameter("bias_ih", (rows,), around, dtype)
            self.parameter("bias_hh", (rows,), around, dtype)

    def _sums(self, x: Variable, h: Variable | None) -> tuple[Any, Any, Any]:
        """The input's part of the gates, the state's, and the state (zeros where None)."""
        n = self.input_size
        tensor_input(self, x, f"a float tensor (N, {n}) or ({n})", 1, 2)
        if h is None:
            h = _zeros(x, self.hidden_size)
        tensor_input(self, h, f"a state of {x.type.ndim} dimension(s)", x.type.ndim)
        h = of_sizes(h, [*dims_of(x)[:-1], self.hidden_size], f"{type(self).__name__}: the state")
        left = dot(x, self.weight_ih.dimshuffle(1, 0))
        right = dot(h, self.weight_hh.dimshuffle(1, 0))
        if self.bias_ih is not None:
            left, right = left + self.bias_ih, right + self.bias_hh  # type: ignore[operator]
        return left, right, h

    def _parts(self, sums: Variable) -> list[Variable]:
        n = self.hidden_size
        return [sums[..., i * n : (i + 1) * n] for i in range(self.gates)]


def _zeros(x: Variable, size: int) -> Variable:
    return alloc(constant(0, dtype=x.type.dtype), *dims_of(x)[:-1], size)


class RNNCell(_Cell):
    """``h' = tanh(W x + b + R h + c)``, or relu: ``cell(x[, h])``, (N, input) and (N, hidden)."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", *,
        dtype: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, dtype=dtype)
        if nonlinearity not in ("tanh", "relu"):
            raise UnknownWord(f"RNNCell: nonlinearity={nonlinearity!r}; wanted 'tanh' or 'relu'")
        self.nonlinearity = nonlinearity

    def forward(self, x: Variable, h: Any = None) -> Variable:
        left, right, _ = self._sums(x, h)
        return (tanh if self.nonlinearity == "tanh" else relu)(left + right)


class GRUCell(_Cell):
    """A step of a GRU: ``cell(x[, h])`` is the new state (N, hidden)."""

    gates = 3

    def forward(self, x: Variable, h: Any = None) -> Variable:
        left, right, h = self._sums(x, h)
        (ri, zi, ni), (rh, zh, nh) = self._parts(left), self._parts(right)
        r, z = sigmoid(ri + rh), sigmoid(zi + zh)
        n = tanh(ni + r * nh)
        made: Variable = n + z * (h - n)
        return made


class LSTMCell(_Cell):
    """A step of an LSTM: ``cell(x[, (h, c)])`` is ``[h', c']``, both (N, hidden)."""

    gates = 4

    def forward(self, x: Any, states: Any = None) -> list[Variable]:
        if states is not None and (not isinstance(states, list | tuple) or len(states) != 2):
            raise TypeMismatch("LSTMCell", "states (h, c)", states)
        h, c = (None, None) if states is None else states
        left, right, h = self._sums(x, h)
        i, f, g, o = self._parts(left + right)
        kept = sigmoid(f) * (zeros_like(h) if c is None else c) + sigmoid(i) * tanh(g)
        return [sigmoid(o) * tanh(kept), kept]
