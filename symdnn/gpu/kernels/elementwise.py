"""Generated elementwise kernels: single ops, fused groups, and strided copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

from symdnn.gpu.codegen.cuda_source import print_problem
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    BoundKernel,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    blocks_for,
)
from symdnn.gpu.codegen.loop_source import Access, Loop, elementwise_source
from symdnn.gpu.kernels.index_space import Selected, together
from symdnn.gpu.kernels.tiles import in_tiles
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.core.scalar import ScalarProgram, identity_program
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedElemwise

__all__ = ["ElementwiseKernel", "elementwise", "elementwise_selected", "KERNELS"]

_THREADS = 256
#: The column loop has fewer blocks, because a thread stays in its columns.
_MAX_VECTOR_ELEMENTS, _MAX_BLOCKS, _MAX_COLUMN_BLOCKS = 8, 1 << 20, 1056
#: Elements of a vector of which each is copied, and those that a thread has by the same indices.
_MAX_COPIED_ELEMENTS, _SHORT_ROW = 16, 8
#: Unroll factors, the vectors that a thread reads before it writes one, and the fewest vectors for
#: which loops are unrolled: of column loops, of flat loops by inputs that are not scalars, and of
#: loops that compute several indices, whose next reads would wait for that. Column loops read twice
#: as many vectors of so few bytes.
_NARROW_BYTES = 8
_COLUMN_BATCH, _COLUMN_BATCH_MIN_VECTORS = 4, 1 << 20
_FLAT_BATCH, _FLAT_BATCH_MIN_VECTORS = {1: 2}, 1 << 22
_INDEXED_BATCH, _INDEXED_BATCH_MIN_VECTORS = {1: 4, 2: 2, 3: 2}, 1 << 20
#: Indices from which on they are counted in 64 bits.
_FEWEST_WIDE = 2**31 - 2**22
_source = cache(elementwise_source)


def elementwise(
    program: ScalarProgram,
    inputs: Sequence[View | float],
    outputs: Views,
    guarded: bool = False,
    whole: bool = False,
) -> list[KernelLaunch]:
    """``program`` on every element. Inputs broadcast to the common shape of the outputs.

    A number as an input becomes a parameter of the kernel, not a part of its source. A ``guarded``
    kernel writes nothing once the error word is set. The outputs are ``whole`` arrays, not parts of
    others: what pads their rows may be written.
    """
    shape = outputs[0].shape
    if 0 in shape:
        return []
    read = [v.broadcast_to(shape) if isinstance(v, View) else v for v in inputs]
    views = [*read, *outputs]
    dtypes = (*program.inputs, *(v.dtype for v in outputs))
    sizes, steps = _merged(shape, views, outputs[0])
    tiled = in_tiles(program, dtypes, views, len(outputs), sizes, steps, guarded)
    if tiled is not None:
        return [tiled]
    padded = whole and _is_padded(sizes, steps[len(read) :])
    width = _width(sizes, steps, views, len(read), padded)
    sizes = (*sizes[:-1], -(-sizes[-1] // width) * width) if padded else sizes
    reach = _width_across(sizes, steps, views, len(read))
    across, width = reach > width, max(reach, width)
    accesses = [
        _access_across(dtype, v, s, sizes) if across else _access(dtype, v, s, i >= len(read))
        for i, (dtype, v, s) in enumerate(zip(dtypes, views, steps))
    ]
    wide = _max_index(sizes, steps) >= _FEWEST_WIDE
    reads, writes = tuple(accesses[: len(read)]), tuple(accesses[len(read) :])
    vectors, tail = divmod(prod(sizes), width)
    row = sizes[-1] if across else sizes[-1] // width
    blocks = _column_blocks(row, vectors) if len(sizes) == 2 else 0
    columns = blocks > 0 and any(a.same_in_rows for a in reads)
    columns = columns and not any(a.inner == "each" and 0 in a.axes for a in reads)
    batch = _batch(sizes, vectors, reads, columns, width)
    loop = Loop(len(sizes), width, wide, reads, writes, guarded, columns, batch, across)
    parameters: list[Any] = [v.pointer if isinstance(v, View) else v for v in views]
    parameters += [vectors, tail, *(n for n in sizes[1:-1])]
    if len(sizes) > 1:
        parameters.append(row)
    for (_, access), step in zip(loop.operands, steps):
        parameters += [step[d] for d in access.axes]
        if access.inner == "strided":
            parameters.append(step[-1])
    if guarded:
        parameters.append(Pointer(ERROR_WORD))
    grid = (
        blocks if columns else blocks_for(max(-(-vectors // batch), tail), _THREADS, _MAX_BLOCKS),
    )
    source = _source(program, loop)
    return [KernelLaunch(source, "elementwise", grid, (_THREADS,), tuple(parameters))]


def elementwise_selected(
    program: ScalarProgram,
    inputs: Sequence[View | Selected],
    outputs: Sequence[View | Selected],
    guarded: bool = False,
) -> list[KernelLaunch]:
    """:func:`elementwise` with operands that index arrays select; such results are added to."""
    shape = outputs[0].shape
    if 0 in shape:
        return []
    given = together([v.broadcast_to(shape) for v in (*inputs, *outputs)])
    views, count, reads = given.views, len(inputs) + len(outputs), len(inputs)
    sizes, steps = merged(shape, [v.steps for v in views])
    dtypes = (*program.inputs, *(v.dtype for v in views[reads:]))
    accesses = [_access(d, v, s, False) for d, v, s in zip(dtypes, views, steps)]
    index = tuple(accesses[count:])
    operands = [replace(a, moves=m) for a, m in zip(accesses, given.moves)]
    loop = Loop(
        len(sizes), 1, _max_index(sizes, steps) + given.reach >= _FEWEST_WIDE,
        tuple(operands[:reads]), tuple(operands[reads:]), guarded, index=index,
    )  # fmt: skip
    jumps = [
        j for a, own in zip(operands, given.jumps) for j in own
        if a.inner == "dense" and not loop.picks(a)
    ]  # fmt: skip
    order = [*range(reads), *range(count, len(views)), *range(reads, count)]
    copied = program == identity_program(program.inputs[0])
    width = _width(
        sizes, [steps[i] for i in order], [views[i] for i in order], reads + len(index),
        most=_MAX_COPIED_ELEMENTS if copied else _MAX_VECTOR_ELEMENTS,
    )  # fmt: skip
    while any(j % width for j in jumps):
        width //= 2
    if width == 1 < sizes[-1] <= _SHORT_ROW and all(a.inner == "one" for a in index):
        width = sizes[-1]
        reading, writing = ([_one_by_one(a) for a in s] for s in (loop.inputs, loop.outputs))
        loop = replace(loop, inputs=tuple(reading), outputs=tuple(writing))
    vectors, tail = divmod(prod(sizes), width)
    batch = _INDEXED_BATCH.get(sum(a.inner != "one" or bool(a.moves) for a in loop.inputs), 1)
    if vectors < _INDEXED_BATCH_MIN_VECTORS or any(a.moves for a in loop.outputs):
        batch = 1  # additions do not wait for one another
    loop = replace(loop, width=width, batch=batch)
    parameters: list[Any] = [v.pointer for v in views]
    parameters += [vectors, tail, *(n for n in sizes[1:-1])]
    parameters += [sizes[-1] // width] * (len(sizes) > 1)
    for (_, access), step in zip(loop.operands, steps):
        parameters += [step[d] for d in access.axes]
        parameters += [step[-1]] * (access.inner == "strided")
    parameters += given.parameters() if index else []
    parameters += [Pointer(ERROR_WORD)] * guarded
    grid = (blocks_for(max(-(-vectors // batch), tail), _THREADS, _MAX_BLOCKS),)
    return [
        KernelLaunch(_source(program, loop), "elementwise", grid, (_THREADS,), tuple(parameters))
    ]


def _one_by_one(access: Access) -> Access:
    """The access of neighbours without a vector, which would have to be aligned."""
    return replace(access, inner="strided") if access.inner == "dense" else access


def _merged(
    shape: tuple[int, ...], views: Sequence[View | float], output: View
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Sizes and steps of the dimensions, in the order in which ``output`` lies in memory."""
    order = sorted(range(len(shape)), key=lambda d: -abs(output.steps[d]))
    fixed = (0,) * len(shape)
    steps = [v.steps if isinstance(v, View) else fixed for v in views]
    return merged([shape[d] for d in order], [[s[d] for d in order] for s in steps])


def _inner(step: int, written: bool) -> str:
    """The access pattern (:class:`Access`) of an operand with this innermost stride."""
    return "dense" if step == 1 else "one" if step == 0 and not written else "strided"


def _is_padded(sizes: Sequence[int], outputs: Sequence[Sequence[int]]) -> bool:
    """Whether there is padding behind each row of all outputs."""
    return len(sizes) == 2 and all(row > sizes[-1] and step == 1 for row, step in outputs)


def _width(
    sizes: Sequence[int],
    steps: Sequence[Sequence[int]],
    views: Sequence[View | float],
    reads: int,
    padded: bool = False,
    most: int = _MAX_VECTOR_ELEMENTS,
) -> int:
    """Elements of a vector, at most so many: up to 16 bytes of the narrowest operand with innermost
    stride 1.

    A result has no more than 16 bytes: a wider one is written by halves of each sector, at 0.6 of
    the memory's rate. Halves that are read meet in the first cache.

    The last vector of a row may reach into its padding: rows of all operands are then as far apart
    as the vectors need.
    """
    dense = [(v, s) for v, s in zip(views, steps) if s[-1] == 1 and isinstance(v, View)]
    if not dense:
        return 1
    width = _widest([v for v, _ in dense], views[reads:], most)
    while width > 1 and not (
        (len(sizes) == 1 or padded or sizes[-1] % width == 0)
        and all(v.aligned_to(min(16, v.itemsize * width)) for v, _ in dense)
        and all(step % width == 0 for _, s in dense for step in s[:-1])
    ):
        width //= 2
    return width


def _widest(
    dense: Sequence[View], outputs: Sequence[View | float], most: int = _MAX_VECTOR_ELEMENTS
) -> int:
    """Elements of a vector by the sizes of those that are read and written in vectors."""
    widest = max((v.itemsize for v in outputs if isinstance(v, View)), default=1)
    return min(most, max(1, 16 // max(widest, min(v.itemsize for v in dense))))


def _width_across(
    sizes: Sequence[int],
    steps: Sequence[Sequence[int]],
    views: Sequence[View | float],
    reads: int,
) -> int:
    """Elements of a vector that reaches from a row into the next; 1 where none should.

    All outputs are contiguous, and all inputs are contiguous or broadcast.
    """
    arrays = [(v, s) for v, s in zip(views, steps) if isinstance(v, View)]
    flat = [v for v, s in arrays if _is_flat(s, sizes)]
    others = [s for _, s in arrays if not _is_flat(s, sizes)]
    written = all(_is_flat(s, sizes) for s in steps[reads:])
    if len(sizes) < 2 or not others or not written or not all(0 in s for s in others):
        return 1
    width = _widest(flat, views[reads:])
    while width > 1 and not all(v.aligned_to(min(16, v.itemsize * width)) for v in flat):
        width //= 2
    return width


def _is_flat(steps: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether an operand with these steps is contiguous."""
    return tuple(steps) == tuple(prod(sizes[d + 1 :]) for d in range(len(sizes)))


def _batch(
    sizes: Sequence[int], vectors: int, reads: Sequence[Access], columns: bool, width: int
) -> int:
    """The unroll factor: vectors that a thread reads before it writes one."""
    if columns:
        moving = [a for a in reads if a.inner != "number" and not a.same_in_rows]
        nbytes = width * sum(numpy_dtype(a.dtype).itemsize for a in moving)
        several = _COLUMN_BATCH * (2 if nbytes <= _NARROW_BYTES else 1)
        return several if vectors >= _COLUMN_BATCH_MIN_VECTORS else 1
    arrays = sum(a.inner in ("dense", "flat", "strided") for a in reads)
    if len(sizes) == 1:
        return _FLAT_BATCH.get(arrays, 1) if vectors >= _FLAT_BATCH_MIN_VECTORS else 1
    return _INDEXED_BATCH.get(arrays, 1) if vectors >= _INDEXED_BATCH_MIN_VECTORS else 1


def _column_blocks(row: int, vectors: int) -> int:
    """Blocks of a column loop over groups of ``row`` vectors; 0 if their number would not fit."""
    most = _MAX_COLUMN_BLOCKS * (2 if vectors >= _COLUMN_BATCH_MIN_VECTORS else 1)
    rows = min(most * _THREADS // row, -(-vectors // row))
    return -(-rows * row // _THREADS)


def _access(dtype: str, v: View | float, steps: Sequence[int], written: bool) -> Access:
    if not isinstance(v, View):
        return Access(dtype, "number", ())
    axes = tuple(d for d, s in enumerate(steps[:-1]) if s != 0)
    return Access(dtype, _inner(steps[-1], written), axes)


def _access_across(
    dtype: str, v: View | float, steps: Sequence[int], sizes: Sequence[int]
) -> Access:
    """That of an operand where vectors reach into the next row."""
    if not isinstance(v, View):
        return Access(dtype, "number", ())
    if _is_flat(steps, sizes):
        return Access(dtype, "flat", ())
    axes = tuple(d for d, s in enumerate(steps) if s != 0)
    return Access(dtype, "each" if axes else "one", axes)


def _max_index(sizes: Sequence[int], steps: Sequence[Sequence[int]]) -> int:
    """The largest value of an index or an offset."""
    reach = max(sum(abs(a) * (n - 1) for a, n in zip(s, sizes)) for s in steps)
    return max(reach, prod(sizes))


class ElementwiseKernel(CudaKernel[Elemwise | FusedElemwise]):
    """An elementwise op by its scalar program."""

    name = "cuda.elementwise"
    pads_rows = True
    writes_any_layout = True
    dtypes = frozenset(CTYPES)

    def refuses(self, call: Call[Elemwise | FusedElemwise]) -> str | None:
        """Ops without a scalar program, or with one that cannot be printed as CUDA C."""
        found = self.program(call)
        if found is None:
            return super().refuses(call) or f"{call.op} has no scalar program for these dtypes"
        if found.output_dtypes != tuple(t.dtype for t in call.outputs):
            return "flags that dtypes depend on have changed since the node was made"
        return super().refuses(call) or print_problem(found)

    def program(self, call: Call[Elemwise | FusedElemwise]) -> ScalarProgram | None:
        """The op's scalar program for the operands' dtypes."""
        if isinstance(call.op, FusedElemwise):
            return call.op.program
        return meaning(call.op, tuple(t.dtype for t in call.inputs))

    def launches(
        self, call: Call[Elemwise | FusedElemwise], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel over all elements."""
        program = self.program(call)
        assert program is not None
        return elementwise(program, inputs, outputs, whole=True)

    def writes_updates(self, call: Call[Elemwise | FusedElemwise]) -> bool:
        """True: it cannot report errors itself, so it may write new values of shared variables."""
        return True

    def bind_guarded(self, call: Call[Elemwise | FusedElemwise]) -> BoundKernel:
        """A launch that writes nothing once the error word is set."""
        return BoundKernel(_Within(self, guarded=True), call)

    def bind_beside(self, call: Call[Elemwise | FusedElemwise]) -> BoundKernel:
        """A launch that writes no padding."""
        return BoundKernel(_Within(self), call)


class _Within(CudaKernel[Elemwise | FusedElemwise]):
    """A kernel whose results are parts of others, or ``guarded``: new values of variables."""

    def __init__(self, kernel: ElementwiseKernel, guarded: bool = False) -> None:
        self.kernel, self.guarded, self.name = kernel, guarded, kernel.name

    def launches(
        self, call: Call[Elemwise | FusedElemwise], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel over all elements, and no others."""
        program = self.kernel.program(call)
        assert program is not None
        return elementwise(program, inputs, outputs, self.guarded)


KERNELS: tuple[Row, ...] = (((Elemwise, FusedElemwise), (ElementwiseKernel(),)),)
