"""GEMMs of matrices with aligned rows whose sizes are no multiples of a vector, in two parts.

cuBLASLt has its fast kernels where rows begin at multiples of 16 bytes and the sizes along them are
multiples of 16 bytes as well. A size such as 50257 is cut: the few rows, columns or terms of the
sums that are too many are GEMMs of their own, which take next to no time.
"""

from __future__ import annotations

from typing import NamedTuple

from symdnn.gpu.device.array import RawArray

_VECTOR_BYTES = 16
#: GEMMs with fewer multiplications are not cut: a launch takes longer than what it would save.
_LEAST_MULTIPLICATIONS = 1 << 31
#: Sizes up to so many vectors stay whole.
_LEAST_VECTORS = 32


class Piece(NamedTuple):
    """``out = x y`` of parts of matrices, or with ``adds`` ``out += x y``.

    ``column`` is the first one of ``out``. Behind a piece that ``ends`` comes the epilogue.
    """

    x: RawArray
    y: RawArray
    out: RawArray
    column: int = 0
    adds: bool = False
    ends: bool = True


def pieces(x: RawArray, y: RawArray, out: RawArray) -> list[Piece]:
    """The parts of a GEMM of batches ``(b, m, k)`` and ``(b, k, n)``, in their order."""
    (batch, m, k), n = x.shape, y.shape[2]
    small = m * n * k < _LEAST_MULTIPLICATIONS
    if small or batch * y.shape[0] != 1 or not all(map(_is_aligned, (x, y, out))):
        return [Piece(x, y, out)]
    vector = _VECTOR_BYTES // x.itemsize
    rows = _cut(m, vector) if _runs_along(x, 1) else [(0, m)]
    columns = _cut(n, vector)  # the result runs along them
    sums = _cut(k, vector) if _runs_along(x, 2) or _runs_along(y, 1) else [(0, k)]
    # The few terms come first, so that the sum of the many is rounded once.
    return [
        Piece(
            _part(_part(x, 1, *r), 2, *s), _part(_part(y, 1, *s), 2, *c),
            _part(_part(out, 1, *r), 2, *c), c[0], s is sums[0] and len(sums) > 1, s is sums[0],
        )
        for r in rows for c in columns for s in reversed(sums)
    ]  # fmt: skip


def _cut(size: int, vector: int) -> list[tuple[int, int]]:
    """Ranges: the multiple of a vector's length, and the rest."""
    rest = size % vector
    if not rest or size < _LEAST_VECTORS * vector:
        return [(0, size)]
    return [(0, size - rest), (size - rest, size)]


def _runs_along(a: RawArray, axis: int) -> bool:
    return a.strides[axis] == a.itemsize


def _is_aligned(a: RawArray) -> bool:
    """Whether all rows (or columns) begin at a multiple of a vector."""
    steps = [s for s in a.strides[1:] if s != a.itemsize]
    return len(steps) == 1 and (steps[0] | a.ptr) % _VECTOR_BYTES == 0


def _part(a: RawArray, axis: int, start: int, stop: int) -> RawArray:
    shape = (*a.shape[:axis], stop - start, *a.shape[axis + 1 :])
    return RawArray(a.ptr + start * a.strides[axis], shape, a.dtype, a.strides, a.owner)
