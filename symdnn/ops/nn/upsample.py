"""Upsampling: bilinear as a transposed convolution, and others by weighted elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import OptionError
from symdnn.graph.dims import Dim
from symdnn.graph.operators import operator
from symdnn.graph.typing import Array
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.shape import ShapeI, as_dim, dims_of, static_dim
from symdnn.ops.nn.conv_builders import conv2d_grad_wrt_inputs
from symdnn.ops.nn.conv_words import float_operands, with_sizes
from symdnn.ops.nn.pool import AveragePoolGrad

__all__ = [
    "bilinear_kernel_1D", "bilinear_kernel_2D", "bilinear_upsampling", "interpolate",
    "is_multiple", "smoothed",
]  # fmt: skip


_PARTS = ("numerator", "denominator")


def _triangle(ratio: int, normalize: bool) -> Array:
    rising = np.arange(1, ratio + 1, dtype=np.float64)
    kernel = np.concatenate([rising, rising[-2::-1]])
    return kernel / ratio if normalize else kernel


def bilinear_kernel_1D(ratio: int, normalize: bool = True) -> Variable:
    """The triangle 1, 2, ..., ratio, ..., 2, 1 (divided by ``ratio``), as a ``floatX`` vector."""
    return operator("cast")(as_variable(_triangle(ratio, normalize)), "floatX")


def bilinear_kernel_2D(ratio: int, normalize: bool = True) -> Variable:
    """The outer product of two of :func:`bilinear_kernel_1D`, as a ``floatX`` matrix."""
    side = _triangle(ratio, normalize)
    return operator("cast")(as_variable(np.outer(side, side)), "floatX")


def bilinear_upsampling(
    input: Any, ratio: int | None = None, frac_ratio: Any = None, batch_size: int | None = None,
    num_input_channels: int | None = None, use_1D_kernel: bool = True,
) -> Variable:  # fmt: skip
    """Images (batch, channels, rows, columns) made ``ratio`` times larger by linear interpolation.

    Pixel ``i`` of the result is at position ``(i - (ratio - 1) // 2) / ratio`` of the input, whose
    edges are repeated. ``use_1D_kernel`` interpolates rows and columns one after the other (the
    same values, less work). ``frac_ratio=(p, q)``, or a pair of these for rows and columns, makes
    images ``p / q`` times larger: it takes every ``q``-th pixel of images that are ``p`` times
    larger.
    """
    up, down = _ratios(ratio, frac_ratio)
    (x,) = float_operands("bilinear_upsampling", 2, input)
    x = with_sizes("bilinear_upsampling", x, (batch_size, num_input_channels, None, None))
    n, c, rows, cols = dims_of(x)
    if up == (1, 1):
        return x[:, :, :: down[0], :: down[1]]
    out = rows * up[0], cols * up[1]
    planes = x.reshape([n * c, 1, rows, cols])
    a, b = (_triangle(r, True).astype(x.type.numpy) for r in up)
    if use_1D_kernel or 1 in up:
        if up[0] > 1:
            planes = _stretch(_continued(planes, 2), a[:, None], (out[0], cols), (up[0], 1))
        if up[1] > 1:
            planes = _stretch(_continued(planes, 3), b[None, :], out, (1, up[1]))
    else:
        planes = _stretch(_continued(_continued(planes, 2), 3), np.outer(a, b), out, up)
    larger: Variable = planes.reshape([n, c, *out])
    return larger if down == (1, 1) else larger[:, :, :: down[0], :: down[1]]


def _ratios(ratio: Any, frac_ratio: object) -> tuple[tuple[int, int], tuple[int, int]]:
    """The factors by which rows and columns are stretched, and the steps of kept pixels."""
    pairs = (ratio, 1) if frac_ratio is None else frac_ratio
    if (
        isinstance(pairs, list | tuple)
        and len(pairs) == 2
        and (ratio is None) != (frac_ratio is None)
    ):
        both = [tuple(p) if isinstance(p, list | tuple) else tuple(pairs) for p in pairs]
        whole = all(isinstance(n, int | np.integer) and n >= 1 for p in both for n in p)
        if whole and all(len(p) == 2 for p in both):
            from fractions import Fraction

            least = [Fraction(int(p[0]), int(p[1])) for p in both]
            up, down = ([getattr(f, part) for f in least] for part in _PARTS)
            return (up[0], up[1]), (down[0], down[1])
    raise OptionError(
        "bilinear_upsampling: wanted a whole ratio >= 1, or frac_ratio=(p, q) of two of them, or a "
        f"pair of such pairs; got ratio={ratio!r}, frac_ratio={frac_ratio!r}"
    )


def _continued(planes: Variable, axis: int) -> Variable:
    """Planes with their outermost rows (``axis`` 2) or columns (3) repeated once."""
    first, last = ((slice(None),) * axis + (s,) for s in (slice(0, 1), slice(-1, None)))
    return operator("join")(axis, planes[first], planes, planes[last])


def _stretch(
    planes: Variable, kernel: Array, out: tuple[Dim, Dim], ratio: tuple[int, int]
) -> Variable:
    """Transposed convolution, without the results before the first and after the last pixel."""
    pads = [0 if r == 1 else 2 * r - (r - 1) // 2 - 1 for r in ratio]
    return conv2d_grad_wrt_inputs(
        planes, kernel[None, None], (None, 1, *out), border_mode=pads, subsample=ratio
    )


# -- other sizes, as PyTorch's interpolate has them ------------------------------------------------

#: For each mode the positions that a result is made of, relative to the one before it.
_TAPS = {"nearest": (0,), "nearest-exact": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}


def interpolate(
    x: Variable, sizes: Sequence[Dim], ratios: Sequence[float | None], mode: str, corners: bool
) -> Variable:
    """(N, C, positions...) with these ``sizes`` of the positions, one axis after the other.

    ``mode`` is "nearest", "nearest-exact", "linear" or "cubic" (Keys 1981 with a = -0.75);
    ``corners`` puts the first and last element of both above each other, else their outer edges.
    ``ratios`` are the steps in the input for a step in the result, None: the quotient of the sizes;
    where a size stays the same the step of "linear" is 1.
    Computed in float32 at least; the edges are repeated. The result has the dtype of ``x``.
    """
    factors = _factors(dims_of(x)[2:], sizes, ratios) if "nearest" in mode else None
    if factors is not None and x.type.is_float:
        return _spread(x, factors, sizes)
    wide = "float32" if x.type.numpy.itemsize < 4 else x.type.dtype
    y = operator("cast")(x, wide) if "nearest" not in mode else x
    for axis, (size, ratio) in enumerate(zip(sizes, ratios, strict=True), 2):
        y = _resampled(y, axis, size, ratio, mode, corners)
    return operator("cast")(y, x.type.dtype)


#: The largest factor for which float32 positions, as PyTorch has them, are exact quotients.
_MAX_FACTOR = 16


def _factors(
    old: Sequence[Dim], new: Sequence[Dim], ratios: Sequence[float | None]
) -> tuple[int, ...] | None:
    """How often each element of each axis is repeated; None where that is not the same for all."""
    found = [_factor(*one) for one in zip(old, new, ratios, strict=True)]
    return None if None in found else tuple(k for k in found if k is not None)


def _factor(n: Dim, size: Dim, ratio: float | None) -> int | None:
    if isinstance(n, int) and isinstance(size, int):
        k = size // n if n and size % n == 0 else 0
    else:
        k = _times(n, size)
    fits = 1 <= k <= _MAX_FACTOR and (ratio is None or ratio == 1 / k)
    return k if fits else None


def is_multiple(n: Dim, size: Dim, factor: int) -> bool:
    """Whether ``size`` is surely ``factor`` times ``n``."""
    return _factor(n, size, None) == factor


def _times(n: Dim, size: Dim) -> int:
    """The factor of ``size``, a product of ``n`` and a constant; 0 where it is something else."""
    made = size.owner if isinstance(size, Variable) else None
    if made is None or not isinstance(n, Variable) or type(made.op).__name__ != "Mul":
        return 0
    constants = [v for v in made.inputs if isinstance(v, Constant)]
    others = [v for v in made.inputs if not isinstance(v, Constant)]
    same = len(constants) == len(others) == 1 and (
        others[0] is n or (others[0].owner is not None and _same_size(others[0], n))
    )
    return int(constants[0].data) if same else 0


def _same_size(a: Variable, b: Variable) -> bool:
    first, second = a.owner, b.owner
    if first is None or second is None:
        return False
    return isinstance(first.op, ShapeI) and (first.op, first.inputs) == (second.op, second.inputs)


def _spread(x: Variable, factors: tuple[int, ...], sizes: Sequence[Dim]) -> Variable:
    """Each element repeated: the gradient of the sum over windows, which is its own gradient's.

    So it is an op of activations that libraries have, in each layout, forward and backward.
    """
    if all(k == 1 for k in factors):
        return x
    dims = [as_dim(d) for d in sizes]
    static = tuple(static_dim(d) for d in dims)
    pads = (0,) * len(factors)
    return AveragePoolGrad(factors, factors, pads, "sum", True, static)(x, *dims)


def _resampled(
    x: Variable, axis: int, size: Dim, ratio: float | None, mode: str, corners: bool
) -> Variable:
    n = dims_of(x)[axis]
    # The nearest element is that of float32 positions for all dtypes, as PyTorch has them.
    wide = x.type.dtype == "float64" and "nearest" not in mode
    at = _positions(n, size, ratio, mode, corners, "float64" if wide else "float32")
    first = operator("floor")(at)
    share = operator("cast")(at - first, x.type.dtype) if len(_TAPS[mode]) > 1 else None
    pattern = ["x"] * axis + [0] + ["x"] * (x.type.ndim - axis - 1)
    total: Any = None
    for tap in _TAPS[mode]:
        index = operator("cast")(operator("clip")(first + tap, 0, n - 1), "int64")
        part = operator("take")(x, index, axis)
        if share is not None:
            part = part * _weight(mode, tap, share).dimshuffle(*pattern)
        total = part if total is None else total + part
    return total  # type: ignore[no-any-return]


def smoothed(
    x: Variable, sizes: Sequence[Dim], ratios: Sequence[float | None], mode: str, corners: bool
) -> Variable:
    """:func:`interpolate` by filters as wide as a step of the result, "linear" or "cubic".

    Where the result has fewer elements each is an average of all that lie around it, so that there
    are no aliases. The cubic curve is that of a = -0.5, as in Pillow and PyTorch; weights that
    would lie outside of the input are left out, and the others add up to 1.
    """
    wide = "float32" if x.type.numpy.itemsize < 4 else x.type.dtype
    y = operator("cast")(x, wide)
    last = x.type.ndim - 1
    for axis, (size, ratio) in enumerate(zip(sizes, ratios, strict=True), 2):
        weights = operator("cast")(_filters(dims_of(x)[axis], size, ratio, mode, corners), wide)
        order = [i for i in range(last + 1) if i != axis]
        y = operator("tensordot")(y, weights, [[axis], [1]])
        y = y.dimshuffle(*(last if i == axis else order.index(i) for i in range(last + 1)))
    return operator("cast")(y, x.type.dtype)


def _filters(n: Dim, size: Dim, ratio: float | None, mode: str, corners: bool) -> Variable:
    """What each element of the input (n) counts for each of the result (size), in float64."""
    step = _step(n, size, ratio, corners, "float64")
    places, results = (
        operator("cast")(operator("arange")(d, dtype="int64"), "float64") + 0.5 for d in (n, size)
    )
    away = places.dimshuffle("x", 0) - (results * step).dimshuffle(0, "x")
    d = abs(away / operator("maximum")(step, 1.0))
    if mode == "linear":
        weights = operator("maximum")(1 - d, 0.0)
    else:
        near, far = _cubic(d, -0.5)
        weights = operator("switch")(d < 1, near, operator("switch")(d < 2, far, 0.0))
    found: Variable = weights / weights.sum(axis=1, keepdims=True)
    return found


def _step(n: Dim, size: Dim, ratio: float | None, corners: bool, dtype: str) -> Variable:
    """How far apart in the input two results are that are beside each other."""
    if ratio is not None and not corners:
        return as_variable(np.asarray(ratio, dtype))
    old, new = (operator("cast")(as_variable(d), dtype) for d in (n, size))
    if not corners:
        return old / new
    one = np.asarray(1, dtype)
    step: Variable = (old - one) / operator("maximum")(new - one, one)
    return operator("switch")(new > one, step, np.asarray(0, dtype))


def _positions(
    n: Dim, size: Dim, ratio: float | None, mode: str, corners: bool, dtype: str
) -> Variable:
    """Where the results are in the input, (size,) of ``dtype``."""
    i = operator("cast")(operator("arange")(size, dtype="int64"), dtype)
    zero, half = (np.asarray(v, dtype) for v in (0, 0.5))
    step = _step(n, size, ratio, corners, dtype)
    if mode == "linear" and ratio is not None:  # an axis that keeps its size keeps its elements
        step = operator("switch")(operator("eq")(n, size), np.asarray(1, dtype), step)
    if corners or mode == "nearest":
        return i * step
    middle = (i + half) * step
    if mode == "nearest-exact":
        return middle
    middle = middle - half
    return operator("maximum")(middle, zero) if mode == "linear" else middle


def _weight(mode: str, tap: int, t: Variable) -> Any:
    """What a tap counts, for a result ``t`` behind tap 0."""
    if mode == "linear":
        return t if tap else 1 - t
    d = {-1: t + 1, 0: t, 1: 1 - t, 2: 2 - t}[tap]
    return _cubic(d, -0.75)[0 if tap in (0, 1) else 1]


def _cubic(d: Any, a: float) -> tuple[Any, Any]:
    """The cubic curve (Keys 1981) at a distance ``d`` up to 1, and from 1 to 2."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    return near, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
