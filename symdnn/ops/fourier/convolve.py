"""Convolutions of long signals by Fourier transforms: at once, or block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NdimMismatch, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, ceil_div, dim_max, dim_min
from symdnn.graph.op import Host, Op, Shapes, Types
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.join import join
from symdnn.ops.array.reduce import normal_axes
from symdnn.ops.core.python_numbers import alike
from symdnn.ops.core.shape import as_dim, dims_of, static_dim
from symdnn.ops.elementwise.complexes import real
from symdnn.ops.fourier.functions import fftn, ifftn, irfftn, operand, resized, rfftn

__all__ = ["BlockSize", "NextFastLen", "fftconvolve", "next_fast_len", "oaconvolve"]


class Size(Op):
    """Base of sizes that are computed on the host."""

    no_gradients: ClassVar[bool] = True
    abstract: ClassVar[bool] = True

    def infer(self, *sizes: TensorType) -> TensorType:
        if not all(isinstance(t, TensorType) and t.is_integer_scalar for t in sizes):
            raise TypeMismatch(self, "integer scalars", list(sizes))
        return TensorType("int64", ())

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [()]


@dataclass(frozen=True)
class NextFastLen(Size):
    """The next size from ``n`` on whose prime factors are small. (``scipy.fft.next_fast_len``)"""

    real: bool = False

    def reference(self, n: Array) -> Any:
        import scipy.fft

        return np.int64(scipy.fft.next_fast_len(max(int(n), 1), real=self.real))


@dataclass(frozen=True)
class BlockSize(Size):
    """The size of the transforms by which a signal of one size is convolved with a shorter one of
    another size in blocks: of twice the shorter one or more, that with the least work."""

    def reference(self, long: Array, short: Array) -> Any:
        import scipy.fft

        signal, filter_ = max(int(long), 1), max(int(short), 1)
        most = signal + filter_ - 1
        sizes = {most} | {min(filter_ * 2**k, most) for k in range(1, 12)}
        sizes = {s for s in sizes if s >= 2 * filter_ - 1} or {2 * filter_ - 1}

        def work(size: int) -> float:
            return -(-signal // (size - filter_ + 1)) * size * float(np.log2(size + 1))

        return np.int64(min((scipy.fft.next_fast_len(s, real=True) for s in sizes), key=work))


def next_fast_len(target: Any, real: bool = False) -> Dim:
    """The next size from ``target`` on that is fast to transform: an int, or an integer scalar.

    (``scipy.fft.next_fast_len``)

    >>> import symdnn.tensor as T
    >>> T.fft.next_fast_len(1021, real=True)
    1024
    """
    return _size(NextFastLen(real), target)


def _size(op: Size, *sizes: Any) -> Dim:
    dims = [as_dim(d) for d in sizes]
    known = [static_dim(d) for d in dims]
    if None not in known:
        return int(op.reference(*known))
    return op(*dims)


def _signals(
    name: str, in1: TensorLike, in2: TensorLike, mode: str, axes: Any
) -> tuple[Variable, Variable, tuple[int, ...]]:
    if mode not in ("full", "same", "valid"):
        raise OptionError(f"{name}: mode={mode!r}: wanted 'full', 'same' or 'valid'")
    x, y = alike([operand(name, in1), operand(name, in2)])
    if x.type.ndim != y.type.ndim:
        raise NdimMismatch(name, "signals of equally many dimensions", [x.type, y.type])
    return x, y, normal_axes(axes, x.type.ndim, name)


def _part(name: str, full: Variable, x: Variable, y: Variable, mode: str, axes: Any) -> Variable:
    """The part of the full convolution that ``mode`` says."""
    if mode == "full":
        return full
    index: list[slice] = [slice(None)] * full.type.ndim
    for a in axes:
        n, m = dims_of(x)[a], dims_of(y)[a]
        if mode == "same":
            first, size = (m - 1) // 2, n
        else:
            first = dim_min(n, m) - 1
            size = dim_max(n, m) - first
        index[a] = slice(first, first + size)
    if mode == "valid":
        _check_contained(name, x, y, axes)
    return full[tuple(index)]


def _check_contained(name: str, x: Variable, y: Variable, axes: Any) -> None:
    known = [(x.type.shape[a], y.type.shape[a]) for a in axes]
    pairs = [(n, m) for n, m in known if n is not None and m is not None]
    if any(n < m for n, m in pairs) and any(n > m for n, m in pairs):
        raise ShapeMismatch(
            name, "one signal that is at least as long along each axis", f"{x.type} and {y.type}"
        )


def fftconvolve(in1: TensorLike, in2: TensorLike, mode: str = "full", axes: Any = None) -> Variable:
    """The convolution along ``axes`` (all by default) by Fourier transforms.

    ``mode`` is ``"full"``, ``"same"`` (the middle, of the size of ``in1``) or ``"valid"`` (without
    padding). Other axes have equal sizes, or broadcast where they are statically 1. The result is
    floating, and its error is relative to its largest elements: small elements beside large ones
    have fewer digits than those of a direct convolution. (``scipy.signal.fftconvolve``)

    >>> import numpy as np, symdnn.tensor as T
    >>> y = T.signal.fftconvolve(np.float64([1, 2, 3]), np.float64([1, 1, 0.5]))
    >>> np.round(y.eval(), 6).tolist()
    [1.0, 3.0, 5.5, 4.0, 1.5]
    """
    x, y, where = _signals("fftconvolve", in1, in2, mode, axes)
    sizes = [dims_of(x)[a] + dims_of(y)[a] - 1 for a in where]
    full = _product(x, y, [next_fast_len(n, real=True) for n in sizes], where)
    return _part("fftconvolve", _cropped(full, where, sizes), x, y, mode, where)


def _product(x: Variable, y: Variable, sizes: Sequence[Dim], axes: Sequence[int]) -> Variable:
    """The cyclic convolution of these sizes."""
    if x.type.is_complex:
        return ifftn(fftn(x, sizes, axes) * fftn(y, sizes, axes), axes=axes)
    return irfftn(rfftn(x, sizes, axes) * rfftn(y, sizes, axes), sizes, axes)


def _cropped(x: Variable, axes: Sequence[int], sizes: Sequence[Dim]) -> Variable:
    index = [slice(None)] * x.type.ndim
    for a, n in zip(axes, sizes, strict=True):
        index[a] = slice(0, n)
    return x[tuple(index)]


def oaconvolve(in1: TensorLike, in2: TensorLike, mode: str = "full", axes: Any = None) -> Variable:
    """:func:`fftconvolve` of a long signal ``in1`` with a much shorter one, by blocks of ``in1``
    whose results overlap and add up: its work grows with the length of ``in1`` alone, and its
    transforms stay in caches. (``scipy.signal.oaconvolve``)
    """
    x, y, where = _signals("oaconvolve", in1, in2, mode, axes)
    blocks, filters = x, y
    sizes: list[Dim] = []
    # From the last axis on, so that the axes before it keep their numbers.
    for a in reversed(where):
        n, m = dims_of(x)[a], dims_of(y)[a]
        size = _size(BlockSize(), n, m)
        step = size - m + 1
        sizes.insert(0, size)
        blocks = _split(blocks, a, ceil_div(n, step), step)
        dims = list(dims_of(filters))
        filters = filters.reshape([*dims[:a], 1, *dims[a:]])
    inner = [a + 1 + i for i, a in enumerate(where)]
    made = _product(blocks, filters, sizes, inner)
    for i, a in reversed(list(enumerate(where))):
        made = _added(made, a + i, sizes[i], dims_of(y)[a])
    full = _cropped(made, where, [dims_of(x)[a] + dims_of(y)[a] - 1 for a in where])
    return _part("oaconvolve", full if x.type.is_complex else real(full), x, y, mode, where)


def _split(x: Variable, axis: int, count: Dim, step: Dim) -> Variable:
    """``x`` with an axis as (blocks, step), the last block filled up with zeros."""
    x = resized(x, axis, count * step, "oaconvolve")
    dims = list(dims_of(x))
    return x.reshape([*dims[:axis], count, step, *dims[axis + 1 :]])


def _added(made: Variable, axis: int, size: Dim, overlap: Dim) -> Variable:
    """Blocks (count, size) along ``axis``, of which each overlaps with the next one, added up."""
    step = size - overlap + 1
    before = (slice(None),) * (axis + 1)
    main = made[(*before, slice(0, step))]
    tail = resized(made[(*before, slice(step, None))], axis + 1, step, "oaconvolve")
    none = main[(*before[:-1], slice(0, 1))].zeros_like()
    total = join(axis, main, none) + join(axis, none, tail)
    dims = list(dims_of(total))
    return total.reshape([*dims[:axis], dims[axis] * dims[axis + 1], *dims[axis + 2 :]])
