"""How far a convolution's result is from a trusted one, on the call's own operands.

A trusted result is by another algorithm of the legacy API, in float32 (float64 for float64) and
NCHW, from the same values. It is computed for a part of the batch at a time, so that it takes
little memory, and so that faults of large arrays do not reach it.

Where the terms of a sum cancel, each algorithm's rounding is large relative to the result. So if
the error is over the limit, it is compared with the sum of the terms without their signs, too. A
result is wrong only if it agrees with neither of two trusted ones.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import inf, isfinite, prod, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import DIRECTIONS, ConvSignature, Epilogue
from symdnn.gpu.cudnn.kernel import pieces
from symdnn.gpu.device.array import RawArray
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.dtype import wide_float

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

#: Bytes of the wide operands and results of one part of the batch.
_PART_BYTES = 256 << 20
#: An error relative to the sum without signs counts this many times: that sum is larger than the
#: error of a right algorithm by far more.
_CANCELLED_RATIO = 10.0
_THREADS, _MAX_BLOCKS = 256, 2048
#: The largest error may be this many times the tolerance. Beyond that, single elements are wrong.
_OUTLIER_RATIO = 20
#: Algorithms that are trusted, in order.
_TRUSTED = ("none", "deterministic", "small", "large")

Arrays = Mapping[str, RawArray]


class Undecided(Exception):
    """Nothing can be compared: the text says why."""


def result_error(
    env: LaunchEnv, s: ConvSignature, arrays: Arrays, candidate: Candidate, limit: float
) -> float:
    """The relative error in the 2-norm of a candidate's result; infinite if elements are far off.

    ``arrays`` are the operands and the result, by role. Waits for the device. Raises
    :class:`Undecided` if the trusted result is not finite, or there is none.
    """
    count = prod(getattr(s, DIRECTIONS[s.direction].roles[2]))
    found = inf
    for other in _trusted(env, s, candidate):
        error, scale, largest = _sums(env, s, arrays, other, 1)
        if not isfinite(scale):
            raise Undecided("the trusted result has NaN, or values that are too large")
        found = min(found, relative_error(error, scale, largest, count, limit))
        if found > limit and isfinite(largest):
            _, scale, _ = _sums(env, s, arrays, other, 2)
            part = limit / _CANCELLED_RATIO
            again = relative_error(error, scale, largest, count, part)
            found = min(found, _CANCELLED_RATIO * again)
        if found <= limit:
            break
    return found


def difference(
    env: LaunchEnv, s: ConvSignature, got: RawArray, wanted: RawArray, limit: float
) -> float:
    """The relative difference of two results of a forward convolution with an epilogue.

    Waits for the device. Raises :class:`Undecided` if ``wanted`` is not finite.
    """
    whole = plain(s, s.x[0])
    wide: RawArray = env.empty(whole.y, whole.dtype)
    sums: RawArray = env.empty((3,), "float64")
    env.zero(sums.ptr, sums.nbytes)
    shape = s.in_memory("y")
    with_wide(
        env, s.layout, RawArray(wanted.ptr, shape, s.dtype, owner=wanted), wide, "take", TAKE=1
    )
    with_wide(
        env, s.layout, RawArray(got.ptr, shape, s.dtype, owner=got), wide, "difference", sums.ptr
    )
    error, scale, largest = (float(v) for v in env.download(sums))
    if not isfinite(scale):
        raise Undecided("the result of two kernels has NaN, or values that are too large")
    return relative_error(error, scale, largest, wide.size, limit)


def relative_error(error: float, scale: float, largest: float, count: int, limit: float) -> float:
    """The 2-norm of an error relative to the reference's, from sums of squares.

    It is infinite for NaN, and if a single element is off by far more than the rest: a few wrong
    elements among many right ones hardly change a norm.
    """
    norm = sqrt(scale) or 1.0
    found = sqrt(error) / norm if isfinite(error) else inf
    typical = norm / sqrt(max(count, 1))
    return found if isfinite(largest) and largest <= _OUTLIER_RATIO * limit * typical else inf


def spoil(env: LaunchEnv, array: RawArray) -> None:
    """Enqueue filling an array with NaN, so that elements that are not written show."""
    source = specialised("measure.cu", T=CTYPES[array.dtype], WIDE="float", TAKE=1)
    _enqueue(env, source, "spoil", array.size, (array.ptr, np.int64(array.size)))


def workspace(env: LaunchEnv, nbytes: int) -> RawArray:
    """New memory for a workspace."""
    return env.empty((max(nbytes, 1),), "uint8")


def at_workspace(env: LaunchEnv, memory: RawArray) -> Any:
    """The environment with another workspace, which the caller keeps alive."""
    own = copy.copy(env)
    own.workspace = memory.ptr
    return own


def _sums(
    env: LaunchEnv, s: ConvSignature, arrays: Arrays, other: Candidate, take: int
) -> tuple[float, float, float]:
    """(sum of squared errors, sum of squares, largest error) relative to the trusted result.

    ``other`` is the trusted algorithm. ``take`` is 1 for the operands as they are, 2 for their
    absolute values.
    """
    result = DIRECTIONS[s.direction].roles[2]
    sums: RawArray = env.empty((3,), "float64")
    env.zero(sums.ptr, sums.nbytes)
    wide: dict[str, RawArray] = {}
    for start, count in pieces(s.x[0], _samples(s)):
        part = plain(s, count)
        wide = {r: _room(env, part, r, wide.get(r)) for r in ("x", "w", "y")}
        seen = {r: _rows(s, arrays[r], r, start, count) for r in ("x", "w", "y")}
        for role in ("x", "w", "y"):
            if role != result:
                with_wide(env, s.layout, seen[role], wide[role], "take", TAKE=take)
        _run_trusted(env, part, other, s.x[0], wide, 1.0 if start and result == "w" else 0.0)
        if result != "w" or start + count == s.x[0]:
            with_wide(env, s.layout, seen[result], wide[result], "difference", sums.ptr)
    a, b, c = (float(v) for v in env.download(sums))
    return a, b, c


def _samples(s: ConvSignature) -> int:
    """How many samples of the batch are a part."""
    width = 8 if s.dtype == "float64" else 4
    return max(1, min(s.x[0], _PART_BYTES // (width * (prod(s.x[1:]) + prod(s.y[1:])))))


def plain(s: ConvSignature, count: int) -> ConvSignature:
    """The signature of the trusted result for ``count`` samples."""
    wide = wide_float(s.dtype)
    return replace(
        s, dtype=wide, compute=wide, allow_tf32=False, layout="NCHW", workspace_limit=0,
        legacy_only=True, deterministic=False, wanted="none", named=True,
        x=(count, *s.x[1:]), y=(count, *s.y[1:]), epilogue=Epilogue(),
    )  # fmt: skip


def _room(env: LaunchEnv, part: ConvSignature, role: str, known: RawArray | None) -> RawArray:
    """A wide array for a role, in the memory of the part before where it fits."""
    shape = getattr(part, role)
    if known is not None and known.size >= prod(shape):
        return replace(known, shape=shape, strides=())
    return env.empty(shape, part.dtype)


def _rows(s: ConvSignature, array: RawArray, role: str, start: int, count: int) -> RawArray:
    """The samples of a part in the call's array; the filters as a whole."""
    shape = s.in_memory(role)
    if role == "w":
        return RawArray(array.ptr, shape, s.dtype, owner=array)
    step = prod(shape[1:]) * int(numpy_dtype(s.dtype).itemsize)
    return RawArray(array.ptr + start * step, (count, *shape[1:]), s.dtype, owner=array)


def with_wide(
    env: Any,
    layout: str,
    array: RawArray,
    wide: RawArray,
    name: str,
    *more: Any,
    **macros: int,
) -> None:
    """Enqueue a kernel of ``measure.cu`` over an array and its wide counterpart."""
    source = specialised("measure.cu", T=CTYPES[array.dtype], WIDE=CTYPES[wide.dtype], **macros)
    shape = wide.shape
    sizes = (wide.size, shape[1], prod(shape[2:]), int(layout == "NHWC"))
    args = (array.ptr, wide.ptr, *map(np.int64, sizes), *more)
    _enqueue(env, source, name, wide.size, args)


def _enqueue(env: Any, source: str, name: str, count: int, args: tuple[Any, ...]) -> None:
    blocks = max(1, min(_MAX_BLOCKS, -(-count // _THREADS)))
    env.launch(env.module(source, name), (blocks,), (_THREADS,), 0, args)


def _run_trusted(
    env: LaunchEnv, part: ConvSignature, found: Candidate, batch: int, wide: Arrays, beta: float
) -> None:
    """Enqueue what was ``found`` for the whole batch; with ``beta=1`` it adds to the result."""
    if part.x[0] != batch:
        word, again = found.name, Search(part, env.cudnn).named(found.number)
        if again is None:
            raise Undecided(f"cuDNN does not take {word}, to compare with, for a part of the batch")
        found = again
    memory = workspace(env, found.total_bytes(part))
    found.prepared(part, env.cudnn)(at_workspace(env, memory), wide, 1.0, beta)


def _trusted(env: LaunchEnv, s: ConvSignature, candidate: Candidate) -> Iterator[Candidate]:
    """Two trusted algorithms, the second sought when it is asked for: one alone could be wrong.

    They are neither the candidate itself, where it works in the same way, nor on the block list.
    Raises :class:`Undecided` if there is none.
    """
    wide = plain(s, s.x[0])
    same = candidate.api == "legacy" and (s.dtype, s.layout) == (wide.dtype, wide.layout)
    others = trusted(Search(wide, env.cudnn))
    usable = (c for c in others if not (same and c.number == candidate.number))
    first = next(usable, None)
    if first is None:
        raise Undecided("cuDNN has no other algorithm to compare with")
    yield first
    yield from islice(usable, 1)


def trusted(search: Search) -> Iterator[Candidate]:
    """The trusted algorithms that cuDNN has for a signature, in order."""
    numbers = search.direction.algorithms
    found = (search.named(numbers[word]) for word in _TRUSTED if word in numbers)
    return (c for c in found if c is not None)
