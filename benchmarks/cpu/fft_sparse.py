"""Rows of :mod:`benchmarks.cpu.nest`: Fourier transforms and sparse products beside their peers.

    python -m benchmarks.cpu.nest --only '^(fft|sparse)' --peers ../peers/bin/python --threads 2

The column of NumPy is SciPy's here, with as many workers as there are threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from benchmarks.cpu.nest import LazyModule, Nest, T, drawn, jnp, torch

__all__ = ["rows"]

S, scipy_fft, scipy_sparse = map(LazyModule, ("symdnn.sparse", "scipy.fft", "scipy.sparse"))
jax_sparse = LazyModule("jax.experimental.sparse")

#: Shape, and the axes of a transform.
_TRANSFORMS = [
    ((128,), (0,)), ((1000, 64), (1,)), ((256, 4096), (1,)), ((4096, 256), (0,)),
    ((1 << 20,), (0,)), ((64, 1009), (1,)), ((16, 256, 256), (1, 2)), ((64, 64, 64), (0, 1, 2)),
]  # fmt: skip
#: Rows, columns, elements in a row, columns of the dense matrix.
_PRODUCTS = [
    (1000, 1000, 10, 1), (100_000, 100_000, 10, 1), (100_000, 100_000, 10, 16),
    (20_000, 20_000, 50, 64), (2000, 2000, 200, 128),
]  # fmt: skip


def rows() -> Iterator[Nest]:
    """All rows."""
    yield from _transforms()
    yield from _products()


def _workers() -> int:
    return len(os.sched_getaffinity(0))


def _complex(*shape: int) -> Any:
    return lambda: drawn(*shape)() + 1j * drawn(*shape, seed=1)()


def _transforms() -> Iterator[Nest]:
    for shape, axes in _TRANSFORMS:
        mark = f"{'x'.join(map(str, shape))} axes {','.join(map(str, axes))}"
        size = [shape[a] for a in axes]
        half = tuple(n // 2 + 1 if i == axes[-1] else n for i, n in enumerate(shape))
        yield Nest(
            f"fft complex64 {mark}", (_complex(*shape),), lambda z, a=axes: T.fft.fftn(z, axes=a),
            lambda z, a=axes: torch.fft.fftn(z, dim=a), lambda z, a=axes: jnp.fft.fftn(z, axes=a),
            lambda z, a=axes: scipy_fft.fftn(z, axes=a, workers=_workers()),
        )  # fmt: skip
        yield Nest(
            f"fft real float32 {mark}", (drawn(*shape),), lambda x, a=axes: T.fft.rfftn(x, axes=a),
            lambda x, a=axes: torch.fft.rfftn(x, dim=a), lambda x, a=axes: jnp.fft.rfftn(x, axes=a),
            lambda x, a=axes: scipy_fft.rfftn(x, axes=a, workers=_workers()),
        )  # fmt: skip
        yield Nest(
            f"fft back to real float32 {mark}", (_complex(*half),),
            lambda z, a=axes, s=size: T.fft.irfftn(z, s, a),
            lambda z, a=axes, s=size: torch.fft.irfftn(z, s, a),
            lambda z, a=axes, s=size: jnp.fft.irfftn(z, s, a),
            lambda z, a=axes, s=size: scipy_fft.irfftn(z, s, a, workers=_workers()),
        )  # fmt: skip


@cache
def _pattern(rows: int, columns: int, each: int) -> tuple[Any, Any]:
    """Indices and indptr of a matrix with about so many elements in each row."""
    rng = np.random.default_rng(7)
    drawn_ = rng.integers(0, columns, rows * each)
    keys = np.unique(np.repeat(np.arange(rows), each) * columns + drawn_)
    ends = np.searchsorted(keys, np.arange(rows + 1) * columns)
    return (keys % columns).astype("int32"), ends.astype("int32")


def _products() -> Iterator[Nest]:
    for m, n, each, width in _PRODUCTS:
        x = drawn(n, width)

        def data(m: int = m, n: int = n, each: int = each) -> Any:
            return drawn(len(_pattern(m, n, each)[0]))()

        def ours(data: Any, x: Any, m: int = m, n: int = n, each: int = each) -> Any:
            return S.CSR(data, *_pattern(m, n, each), (m, n))

        def scipys(data: Any, m: int = m, n: int = n, each: int = each) -> Any:
            return scipy_sparse.csr_array((data, *_pattern(m, n, each)), shape=(m, n))

        def torchs(data: Any, m: int = m, n: int = n, each: int = each) -> Any:
            indices, ends = map(torch.from_numpy, _pattern(m, n, each))
            return torch.sparse_csr_tensor(ends, indices, data, (m, n))

        def jaxs(data: Any, m: int = m, n: int = n, each: int = each) -> Any:
            indices, ends = _pattern(m, n, each)
            return jax_sparse.BCSR((data, indices, ends), shape=(m, n))

        mark = f"float32 {m}x{n}, {each} in a row, {width} wide"
        yield Nest(
            f"sparse dot {mark}", (data, x), lambda d, x, f=ours: S.dot(f(d, x), x),
            lambda d, x, f=torchs: f(d) @ x, lambda d, x, f=jaxs: f(d) @ x,
            lambda d, x, f=scipys: f(d) @ x,
        )  # fmt: skip
        yield Nest(
            f"sparse transposed dot {mark}", (data, drawn(m, width)),
            lambda d, x, f=ours: S.dot(f(d, x).T, x), None, None, lambda d, x, f=scipys: f(d).T @ x,
        )  # fmt: skip
