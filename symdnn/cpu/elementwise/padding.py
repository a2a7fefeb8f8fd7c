"""Arrays that are mostly one number: a pad around a copy, a diagonal of a matrix of zeros."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.copies import copy_of, copy_refusal
from symdnn.cpu.elementwise.moves import Piece, moves_block
from symdnn.cpu.launch.fastcall import FastCallSeries
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch, Viewed
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.array.create import AllocDiag
from symdnn.ops.array.pad import Pad


class PadKernel(Kernel[Pad]):
    """``Pad``: strips of the value around a copy."""

    name = "llvm.pad"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[Pad]) -> str | None:
        """Refuses small results."""
        return copy_refusal(call.outputs)

    def bind(self, call: Call[Pad]) -> Launch[Array]:
        """A launch that writes every element once."""
        return _PadLaunch()


class _PadLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` of ``Pad``."""

    def __init__(self) -> None:
        self._series: dict[Any, SeriesLaunch] = {}

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Fill what is before and after along each dimension; copy what is between."""
        (x, value, *widths), (out,) = inputs, outputs
        self._padded(x, widths, out)([x, np.asarray(value)], outputs)

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCallSeries | None:
        """For operands with these strides, and widths that are the same in every run."""
        (x, value, *widths), (out,) = inputs, outputs
        if any(w is None for w in widths) or not out.size:
            return None
        found = self._padded(x, widths, out).native([x, value], outputs)
        if found is None:
            return None
        return FastCallSeries([(c, [o if o < 2 else o + len(widths) for o in own])
                               for c, own in found.calls])  # fmt: skip

    def _padded(self, x: Array, widths: Sequence[Any], out: Array) -> SeriesLaunch:
        low = tuple(int(w) for w in widths[::2])
        key = low, x.strides, out.strides
        if key not in self._series:
            self._series[key] = SeriesLaunch([*self._parts(x, low, out)])
        return self._series[key]

    def _parts(self, x: Array, low: Sequence[int], out: Array) -> Iterator[Part]:
        """Parts of (x, value, out)."""
        dtype, inside = x.dtype.name, [slice(None)] * x.ndim
        for d, n in enumerate(x.shape):
            if d == x.ndim - 1 and (block := _pad_rows(x, low[d], out[tuple(inside)])) is not None:
                yield Part(StridedLaunch(lambda *_, block=block: block), (0, 1), (_at(inside),))
                return
            for part in (slice(low[d]), slice(low[d] + n, None)):
                strip = _at([*inside[:d], part, *inside[d + 1 :]])
                shape = strip.view(out).shape
                if prod(shape):
                    yield Part(copy_of(dtype, shape), (1,), (strip,))
            inside[d] = slice(low[d], low[d] + n)
        if x.size:
            yield Part(copy_of(dtype, x.shape), (0,), (_at(inside),))


def _at(index: Sequence[slice]) -> Viewed:
    """A part of the result of a pad."""
    where = tuple(index)
    return Viewed(2, lambda out: out[where])


def _pad_rows(x: Array, low: int, out: Array) -> StridedBlock | None:
    """The block of (x, value, out) that writes whole rows, if that can be done."""
    n, size = x.shape[-1], x.itemsize
    pieces: list[Piece] = [
        (1, 2, low, 0, 0, True), (0, 2, n, 0, low * size, False),
        (1, 2, out.shape[-1] - low - n, 0, (low + n) * size, True),
    ]  # fmt: skip
    if any(a.shape[-1] > 1 and a.strides[-1] != size for a in (x, out)):
        return None
    steps = [x.strides[:-1], (0,) * (x.ndim - 1), out.strides[:-1]]
    return moves_block(x.shape[:-1], steps, size, pieces) if x.size else None


class DiagonalKernel(Kernel[AllocDiag]):
    """``AllocDiag``: zeros, then the diagonals."""

    name = "llvm.diagonal"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[AllocDiag]) -> str | None:
        """Refuses small results."""
        return copy_refusal(call.outputs)

    def bind(self, call: Call[AllocDiag]) -> Launch[Array]:
        """A launch that writes the zeros, then the diagonals."""
        x, y = call.inputs[0], call.outputs[0]
        offset, shape, result = call.op.offset, tuple(x.shape), len(call.inputs)

        def diagonals(out: Array) -> Array:
            begun = out[..., max(-offset, 0) :, max(offset, 0) :]
            *lead, down, right = begun.strides
            return np.lib.stride_tricks.as_strided(begun, shape, (*lead, down + right))

        zeros = Part(copy_of(y.dtype, tuple(y.shape)), (np.zeros((), y.dtype),), (result,))
        diagonal = Part(copy_of(y.dtype, shape), (0,), (Viewed(result, diagonals),))
        return SeriesLaunch([zeros, diagonal] if prod(shape) else [zeros])


KERNELS: tuple[Row, ...] = (((Pad,), (PadKernel(),)), ((AllocDiag,), (DiagonalKernel(),)))
