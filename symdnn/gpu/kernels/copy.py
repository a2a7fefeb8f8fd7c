"""Copies: reorders of layouts, views in memory of their own, fills, and guarded copies.

A copy moves bytes, so it works for every dtype, complex ones too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from symdnn.gpu.codegen.batch import CHUNK_ELEMENTS, MAX_PARAMETER_BYTES, find_entry
from symdnn.gpu.codegen.device_source import CTYPES, text_of
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, Views, view_of
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.env import LaunchEnv
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.array.create import Diagonal
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.join import Split
from symdnn.ops.array.slices import as_python, fill_in
from symdnn.ops.array.view import Copy, ForgetShape, SpecifyShape
from symdnn.ops.control.checkpoint import After
from symdnn.ops.core.gradient_control import (
    DisconnectedGrad,
    GradClip,
    GradScale,
    GradWhere,
    UndefinedGrad,
    ZeroGrad,
)
from symdnn.ops.core.scalar import Builder, ScalarProgram, identity_program
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, SpecifyType
from symdnn.ops.elementwise.storage import BitCast
from symdnn.ops.linalg.dot import MatchSizes
from symdnn.ops.nn.channels_last import Reorder

_BITS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def bits_of(v: View) -> View:
    """The view as unsigned integers of the elements' size; complex128 as pairs of uint64."""
    if v.itemsize == 16:
        shape, strides = (*v.shape, 2), (*v.strides, 8)
        return View(v.slot, "uint64", shape, strides, v.offset, v.alignment)
    return v.as_dtype(_BITS[v.itemsize])


def copies(source: View, target: View, guarded: bool = False) -> list[KernelLaunch]:
    """Copy ``source``, broadcast to the shape of ``target``; both have the same dtype."""
    source = bits_of(source.broadcast_to(target.shape))
    target = bits_of(target)
    return elementwise(identity_program(source.dtype), [source], [target], guarded)


class _Rows(NamedTuple):
    """A copy of rows whose elements are neighbours on both sides; steps are in elements."""

    source: View
    target: View
    inner: int
    source_step: int
    target_step: int


def _as_rows(source: View, target: View) -> _Rows | None:
    """The copy between views of equal shapes as one of rows, if it is one and not empty."""
    if not target.size:
        return None
    source, target = bits_of(source), bits_of(target)
    sizes, (a, b) = merged(target.shape, [source.steps, target.steps])
    if (a[-1], b[-1]) != (1, 1):  # rows of one element
        sizes, a, b = (*sizes, 1), (*a, 1), (*b, 1)
    return _Rows(source, target, sizes[-1], a[0], b[0]) if len(sizes) < 3 else None


#: So many copies are made by one kernel.
_FEW_COPIES = 3
_THREADS = 256
#: Bytes of an entry of the kernel's table: two addresses and five numbers.
_ENTRY_BYTES = 56
_MAX_ENTRIES = (MAX_PARAMETER_BYTES - 8) // _ENTRY_BYTES


def copies_together(pairs: Iterable[tuple[View, View]]) -> list[KernelLaunch]:
    """Copies (source, target) between views of equal shapes and dtypes, by few kernels.

    A launch takes longer than the copy of a small piece of a join. Rows of neighbours are copied
    together for each size of elements; other layouts have a launch each.
    """
    found: list[KernelLaunch] = []
    forms: dict[str, list[_Rows]] = {}
    for source, target in pairs:
        rows = _as_rows(source, target)
        if rows is None:
            found += copies(source, target)
        else:
            forms.setdefault(rows.target.dtype, []).append(rows)
    for dtype, same in forms.items():
        if len(same) < _FEW_COPIES:
            found += [k for r in same for k in copies(r.source, r.target)]
        else:
            found += _rows_together(same, _rows_source(dtype))
    return found


def _rows_together(all_rows: Sequence[_Rows], source: str) -> Iterator[KernelLaunch]:
    """Launches over the copies, each with a table of as many as fit into its parameters."""
    for start in range(0, len(all_rows), _MAX_ENTRIES):
        part = all_rows[start : start + _MAX_ENTRIES]
        entries: list[Any] = []
        blocks = 0
        for r in part:
            size = r.target.size
            entries += [r.source.pointer, r.target.pointer, size, blocks, *r[2:]]
            blocks += -(-size // CHUNK_ELEMENTS)
        padding = [0] * ((_MAX_ENTRIES - len(part)) * _ENTRY_BYTES // 8)
        parameters = (len(part), *entries, *padding)
        yield KernelLaunch(source, "copy_rows", (blocks,), (_THREADS,), parameters)


@cache
def _rows_source(dtype: str) -> str:
    """A kernel ``copy_rows``: vectors of 16 bytes where an entry's addresses and steps allow it."""
    t = CTYPES[dtype]
    width = 16 // numpy_dtype(dtype).itemsize
    return f"""{text_of("common.cuh")}
struct Entry {{
  const {t}* x; {t}* y;
  i64 size; i64 first; i64 inner; i64 x_step; i64 y_step;
}};
struct Parameters {{ i64 count; Entry entries[{_MAX_ENTRIES}]; }};

template <int N> static __device__ __forceinline__ void copy_elements(
    const Entry& e, const i64 start, const i64 stop) {{
  for (i64 j = start + (i64)threadIdx.x * N; j < stop; j += {_THREADS} * N) {{
    const i64 row = e.inner == e.size ? 0
        : e.size < 4294967296LL ? (i64)((u32)j / (u32)e.inner) : j / e.inner;
    const i64 column = j - row * e.inner;
    store(e.y + row * e.y_step + column, load<N>(e.x + row * e.x_step + column));
  }}
}}

extern "C" __global__ void __launch_bounds__({_THREADS})
copy_rows(const __grid_constant__ Parameters p) {{
{chr(10).join(find_entry())}
  const i64 start = (block - e.first) * {CHUNK_ELEMENTS};
  const i64 stop = e.size - start < {CHUNK_ELEMENTS} ? e.size : start + {CHUNK_ELEMENTS};
  const i64 steps = e.inner == e.size ? 0 : e.inner | e.x_step | e.y_step;
  if ((((u64)e.x | (u64)e.y) % 16 | (u64)steps % {width}) == 0) {{
    const i64 whole = stop - (stop - start) % {width};
    copy_elements<{width}>(e, start, whole);
    copy_elements<1>(e, whole, stop);
  }} else {{
    copy_elements<1>(e, start, stop);
  }}
}}
"""


def fill(target: View, value: Any) -> list[KernelLaunch]:
    """Set every element of ``target`` to a number."""
    if value == 0:
        target = bits_of(target)  # works for complex dtypes, too
    return elementwise(_constant(value, target.dtype), [], [target])


def _constant(value: Any, dtype: str) -> ScalarProgram:
    builder = Builder(())
    return builder.program([builder.const(value, dtype)])


# -- for the runtime ------------------------------------------------------------------------------


def strided_copy(env: LaunchEnv, source: RawArray, target: RawArray) -> None:
    """Enqueue a copy between arrays of the same shape and dtype with any strides."""
    _enqueue(env, source, target, False)


def guarded_copy(env: LaunchEnv, source: RawArray, target: RawArray) -> None:
    """:func:`strided_copy` that writes nothing once the error word is set."""
    _enqueue(env, source, target, True)


def _enqueue(env: LaunchEnv, source: RawArray, target: RawArray, guarded: bool) -> None:
    if (source.shape, source.dtype) != (target.shape, target.dtype):
        raise ValueError(f"copy of {source.dtype}{source.shape} to {target.dtype}{target.shape}")
    addresses = np.array([source.ptr, target.ptr, env.node, env.error_word, 0], np.int64)
    for k in _cached_copies(view_of(0, source), view_of(1, target), guarded):
        k.enqueue(env, addresses)


def strided_zero(env: LaunchEnv, target: RawArray) -> None:
    """Enqueue zeros in an array with any strides."""
    for k in _cached_zeros(view_of(0, target)):
        k.enqueue(env, np.array([target.ptr, env.node, env.error_word, 0], np.int64))


@lru_cache(maxsize=256)
def _cached_zeros(target: View) -> list[KernelLaunch]:
    return fill(target, 0)


@lru_cache(maxsize=256)
def _cached_copies(source: View, target: View, guarded: bool) -> list[KernelLaunch]:
    return copies(source, target, guarded)


# -- ops ------------------------------------------------------------------------------------------


def view_by_op(op: object, x: View, shape: tuple[int, ...], bounds: Sequence[int]) -> View | None:
    """The result of a view op on ``x``, which has ``shape``; None if it is not a view of ``x``."""
    if isinstance(op, Reorder):
        return x.transposed(op.order)
    if isinstance(op, DimShuffle):
        kept = [d for d in op.pattern if d != "x"]
        moved = x.transposed([int(d) for d in kept])
        sizes = iter(zip(moved.shape, moved.strides))
        pairs = [(1, 0) if d == "x" else next(sizes) for d in op.pattern]
        return View(
            x.slot, x.dtype, tuple(n for n, _ in pairs), tuple(s for _, s in pairs), x.offset,
            x.alignment,
        )  # fmt: skip
    if isinstance(op, Subtensor):
        return x[as_python(fill_in(op.index, bounds))]
    if isinstance(op, Diagonal):
        down, right = max(-op.offset, 0), max(op.offset, 0)
        lead = (slice(None),) * (len(x.shape) - 2)
        start = x[(*lead, slice(down, None), slice(right, None))]
        strides = (*start.strides[:-2], start.strides[-2] + start.strides[-1])
        return View(x.slot, x.dtype, shape, strides, start.offset, x.alignment)
    if isinstance(op, Reshape):
        return x.reshaped(shape) if x.contiguous else None
    return x


class CopyKernel(CudaKernel):
    """The result of a view op, a copy or an alloc, in memory of its own."""

    name = "cuda.copy"

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One strided copy; none for an empty result."""
        (out,) = outputs
        if 0 in out.shape:
            return []
        seen = view_by_op(call.op, inputs[0], out.shape, inputs[1:])
        if seen is None:  # a reshape of a strided array: reshape the contiguous result instead
            return copies(inputs[0], out.reshaped(inputs[0].shape))
        return copies(seen, out)


def axis_slice(axis: int, start: int | None, stop: int | None) -> tuple[slice, ...]:
    """The index of a range of one dimension."""
    return (*[slice(None)] * axis, slice(start, stop))


def split_views(whole: View, pieces: Views, axis: int) -> Iterator[View]:
    """Views of ``whole`` for consecutive pieces of these sizes along ``axis``."""
    start = 0
    for piece in pieces:
        stop = start + piece.shape[axis]
        yield whole[axis_slice(axis, start, stop)]
        start = stop


class SplitKernel(CudaKernel[Split]):
    """The pieces of a split in memory of their own."""

    name = "cuda.copy"

    def launches(
        self, call: Call[Split], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """A strided copy for each piece."""
        return copies_together(zip(split_views(inputs[0], outputs, call.op.axis), outputs))


KERNELS: tuple[Row, ...] = (
    (
        (
            After, Alloc, BitCast, Copy, DimShuffle, Diagonal, DisconnectedGrad, ForgetShape,
            GradClip, GradScale, GradWhere, MatchSizes, Reorder, Reshape, SpecifyShape, SpecifyType,
            Subtensor, UndefinedGrad, ZeroGrad,
        ),
        (CopyKernel(),),
    ),
    ((Split,), (SplitKernel(),)),
)  # fmt: skip
