"""Fourier transforms along axes of short lines by compiled loops, one pass for each axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from symdnn.cpu.compiler import jit
from symdnn.cpu.fourier.butterflies_ir import factors_of
from symdnn.cpu.fourier.lines_ir import WORDS, Lines, lines_ir
from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.fourier.transform import (
    COMPLEX_OF,
    FFT,
    REAL_OF,
    InverseRealFFT,
    RealFFT,
    Transform,
)

#: Numbers of the longest line, whose tiles are on the stack; those from which on a band of lanes
#: takes longer than a line or two by pocketfft.
_LONGEST, _LONG = 4096, 256
_LEAST_OF_LONG = 3
#: Lines that are neighbours; with fewer most lanes have no work.
_LEAST_ACROSS = 4
#: Multiplications for which waking up another thread pays, and below which compiling gains nothing.
_WORK_PER_THREAD, _MIN_WORK = 1 << 17, 1 << 8


class ShortLinesKernel(Kernel[Transform]):
    """Transforms whose axes are short, and have no large prime factors."""

    name = "llvm.fourier"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[Transform]) -> str | None:
        """Needs short lines along each axis, several of them, and what compiled loops need."""
        if not call.has_sizes:
            return None
        x, y = call.inputs[0], call.outputs[0]
        numbers = x.shape if isinstance(call.op, RealFFT) else y.shape
        for axis in call.op.axes:
            n, behind = numbers[axis], prod(numbers[axis + 1 :])
            if n > _LONGEST or factors_of(n) is None:
                return f"it is for lines of up to {_LONGEST} numbers without large prime factors"
            few = n > _LONG and prod(numbers) < _LEAST_OF_LONG * n
            if few or 1 < behind < _LEAST_ACROSS:
                return "there are too few lines side by side"
        return compile_refusal((x, y), lambda: prod(numbers), _MIN_WORK)

    def bind(self, call: Call[Transform]) -> Any:
        """A series of launches, one for each axis."""
        op, x, y = call.op, call.inputs[0], call.outputs[0]
        kinds = _kinds(op, x.dtype)
        whole = prod((x if isinstance(op, RealFFT) else y).shape[a] for a in op.axes)
        scale = {"none": 1.0, "ortho": 1 / sqrt(whole), "full": 1 / whole}[op.norm]
        source, result = 0, len(call.inputs)
        between: Any = result
        if isinstance(op, InverseRealFFT) and len(kinds) > 1:
            between = np.empty(x.shape, x.numpy)
        parts, shape = [], x.shape
        for kind, axis in kinds:
            last = (kind, axis) == kinds[-1]
            after = y.shape if last or between is result else x.shape
            factor = scale if last else 1.0
            launch = _launch(kind, axis, (shape, after), y.dtype, _sign(op), factor)
            parts.append(Part(launch, [source], [result if last else between]))
            source, shape = between, after
        return SeriesLaunch(parts)


def _sign(op: Transform) -> int:
    """The sign of the exponent."""
    backwards = op.inverse if isinstance(op, FFT) else isinstance(op, InverseRealFFT)
    return 1 if backwards else -1


def _kinds(op: Transform, dtype: str) -> list[tuple[str, int]]:
    """The passes in order: what is read and written (:class:`Lines`), and along which axis."""
    *inner, last = op.axes
    others = [("complex", a) for a in inner]
    if isinstance(op, InverseRealFFT):
        return [*others, ("real", last)]
    if isinstance(op, RealFFT):
        return [("halved", last), *others]
    return [("widened" if dtype in COMPLEX_OF else "complex", last), *others]


def _launch(
    kind: str, axis: int, shapes: tuple[Sequence[int], Sequence[int]], dtype: str, sign: int,
    scale: float,
) -> ContiguousLaunch:  # fmt: skip
    """The pass along one axis, from an array of the first shape to one of the second."""
    part = REAL_OF.get(dtype, dtype)
    item = numpy_dtype(part).itemsize
    lengths = [shape[axis] for shape in shapes]
    size = lengths[0] if kind == "halved" else lengths[1]
    neighbours = prod(shapes[0][axis + 1 :])
    dense, lines = neighbours == 1, prod(shapes[0]) // lengths[0]
    lanes = jit.vector_width() * 4 // item
    count = lines if dense else neighbours
    groups, bands = lines // count, -(-count // lanes)
    words = {"tasks": groups * bands, "one": 1, "count": count, "bands": bands}
    for name, length, of_reals in zip(
        "xy", lengths, (kind in ("halved", "widened"), kind == "real"), strict=True
    ):
        number = item * (1 if of_reals else 2)
        words[f"{name}_group"] = length * neighbours * number
        words[f"{name}_step"] = (length if dense else neighbours) * number
    work = lines * size * size.bit_length()
    words["threads"] = min(groups * bands, threads.threads(work, _WORK_PER_THREAD))
    plan = Lines(kind, size, sign, dense, part, scale, lanes)
    given, first = [words.get(name, 0) for name in WORDS], WORDS.index("x")
    run = threads.kernel(lines_ir, plan)
    return ContiguousLaunch(run, given[:first], 1, tail=given[first + 2 :])
