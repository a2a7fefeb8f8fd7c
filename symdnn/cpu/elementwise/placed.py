"""Parts that are added to zeros: compiled loops that write each element once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.copies import copy_of, copy_refusal, sum_program
from symdnn.cpu.elementwise.elementwise import elementwise_launch
from symdnn.cpu.elementwise.placed_ir import PlacedPart, PlacedPlan, placed_ir, placed_words
from symdnn.cpu.ir.loops_ir import inner
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch, Viewed
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import numpy_dtype
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.elementwise.complex_meaning import complex_copy, part_dtypes
from symdnn.ops.lowered.gathered import PlacedSums

#: Elements of a piece of a row, and bytes for which waking up another thread pays.
_PIECE, _BYTES_PER_THREAD = 4096, 1 << 18
#: Elements of a row for which its own overhead does not matter.
_MIN_ROW = 64


class PlacedSumsKernel(Kernel[PlacedSums]):
    """``PlacedSums``: rows of the result in turn."""

    name = "llvm.placed"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[PlacedSums]) -> str | None:
        """Refuses small results."""
        return copy_refusal(call.outputs)

    def bind(self, call: Call[PlacedSums]) -> Launch[Array]:
        """A launch for any strides: of rows, or a pass for each part where that takes less time."""
        places = call.op.places()
        out = call.outputs[0]
        shape = tuple(out.shape)
        scaled = [_scaled(out.dtype, factor) for factor in call.op.factors]
        if _in_one_pass(places, shape):
            return StridedLaunch(partial(_block, places, scaled), len(places))
        return SeriesLaunch([*_passes(places, call.op.factors, shape, out.dtype)])


def _in_one_pass(places: Sequence[tuple[slice, ...]], shape: tuple[int, ...]) -> bool:
    """Whether rows are long, have one step, and parts lie in most of the result."""
    spans = [
        [min(n, len(range(n)[s]) * (s.step or 1)) for s, n in zip(place, shape)] for place in places
    ]
    whole = all(place[-1] in (slice(None), slice(None, None, 1)) for place in places)
    row = prod(shape[-2:]) if whole else shape[-1]
    steps = {place[-1].step or 1 for place in places}
    covered = 0 not in shape and 2 * sum(map(prod, spans)) >= prod(shape)
    return row >= _MIN_ROW and len(steps) == 1 and covered


def _passes(
    places: Sequence[tuple[slice, ...]], factors: Sequence[float], shape: tuple[int, ...],
    dtype: str,
) -> Iterator[Part]:  # fmt: skip
    """Parts of a series: zeros, then each part."""
    result = len(places) + len(shape)
    yield Part(copy_of(dtype, shape), (np.zeros((), numpy_dtype(dtype)),), (result,))
    for k, (place, factor) in enumerate(zip(places, factors)):
        count = tuple(len(range(n)[s]) for s, n in zip(place, shape))
        there = Viewed(result, itemgetter(place))
        if not prod(count):
            continue
        if k:
            launch = elementwise_launch(_added(dtype, factor), count)
            yield Part(launch, (there, k), (there,))
        else:
            yield Part(elementwise_launch(_scaled(dtype, factor), count), (k,), (there,))


def _block(
    places: Sequence[tuple[slice, ...]], scaled: Sequence[ScalarProgram], inputs: Arrays,
    outputs: Arrays,
) -> StridedBlock:  # fmt: skip
    (out,) = outputs
    sizes, steps, parts = _joined(out, [*zip(places, inputs)])
    outer, row = len(sizes) - 1, sizes[-1]
    dtype, found = out.dtype.name, zip(parts, scaled, strict=True)
    each = tuple(_part(axes, program, out.itemsize, sizes) for axes, program in found)
    plan = PlacedPlan(dtype, each, sum_program(dtype), _zero(dtype))
    pieces = max(1, -(-row // _PIECE))
    tasks = prod(sizes[:-1]) * pieces
    words = {"tasks": tasks, "one": 1, "C": pieces, "W": _PIECE, "L": row}
    words["threads"] = threads.threads(out.nbytes, _BYTES_PER_THREAD)
    words |= {f"kn{d}": n for d, n in enumerate(sizes)}
    words |= {f"y.k{d}": step for d, step in enumerate(steps[:-1])}
    for k, axes in enumerate(parts):
        at, count, step, own = axes[-1]
        words |= {f"p{k}.g": at // step, f"p{k}.p": at, f"p{k}.n": count, f"p{k}.i": own}
        for d, (at, count, step, own) in enumerate(axes[:outer]):
            covered = (count - 1) * step + 1 if count else 0
            words |= {f"p{k}.k{d}": own, f"p{k}.at{d}": at, f"p{k}.n{d}": covered}
    names = placed_words(plan)
    arrays = [names.index(n) for n in (*(f"p{k}" for k in range(len(parts))), "y")]
    return StridedBlock(threads.kernel(placed_ir, plan), [words.get(n, 0) for n in names], arrays)


#: Where a part begins along an axis, how many elements it has, every how many-th, and their stride.
_Axis = tuple[int, int, int, int]


def _joined(
    out: Array, parts: Sequence[tuple[tuple[slice, ...], Any]]
) -> tuple[list[int], list[int], list[list[_Axis]]]:
    """Sizes and strides of the result, and the axes of its parts.

    An axis along which all parts are whole is one with that before it, where memory allows it.
    """
    sizes, steps = list[int](), list[int]()
    found: list[list[_Axis]] = [[] for _ in parts]
    for d, n in enumerate(out.shape):
        own = list[_Axis]()
        for place, y in parts:
            at, stop, step = place[d].indices(n)
            count = len(range(at, stop, step))
            own.append((at, count, step, y.strides[d] if y.shape[d] == count else 0))
        whole = all((at, count, step) == (0, n, 1) for at, count, step, _ in own)
        if sizes and whole and steps[-1] == n * out.strides[d] and all(
            f[-1][2] == 1 and f[-1][3] == n * o[3] for f, o in zip(found, own)
        ):  # fmt: skip
            sizes[-1], steps[-1] = sizes[-1] * n, out.strides[d]
            for f, o in zip(found, own):
                f[-1] = (f[-1][0] * n, f[-1][1] * n, 1, o[3])
            continue
        sizes.append(n)
        steps.append(out.strides[d])
        for f, o in zip(found, own):
            f.append(o)
    return sizes, steps, found


def _part(
    axes: Sequence[_Axis], scaled: ScalarProgram, itemsize: int, sizes: Sequence[int]
) -> PlacedPart:
    at, _, step, own = axes[-1]
    whole = tuple(axis[:3] == (0, n, 1) for axis, n in zip(axes[:-1], sizes))
    steps = tuple(a[2] for a in axes)
    return PlacedPart(steps, whole, inner(own, itemsize), at % step, scaled)


@cache
def _scaled(dtype: str, factor: float) -> ScalarProgram:
    """What is added for an element: the number times a factor, which complex numbers lack."""
    if factor == 1:
        return complex_copy(dtype)
    b = Builder([dtype])
    work = "float32" if is_narrow_float(dtype) else dtype
    return b.program([(b.input(0).cast(work) * b.const(factor, work)).cast(dtype)])


@cache
def _added(dtype: str, factor: float) -> ScalarProgram:
    """The sum of a number and another one times a factor."""
    if factor == 1:
        return sum_program(dtype)
    b = Builder([dtype, dtype])
    work = "float32" if is_narrow_float(dtype) else dtype
    old, new = (b.input(k).cast(work) for k in (0, 1))
    return b.program([(old + new * b.const(factor, work)).cast(dtype)])


@cache
def _zero(dtype: str) -> ScalarProgram:
    b = Builder(())
    return b.program([b.const(0, part) for part in part_dtypes(dtype)])


KERNELS: tuple[Row, ...] = (((PlacedSums,), (PlacedSumsKernel(),)),)
