"""GEMM of float32 matrices by generated code, in front of oneDNN's.

This kernel refuses bfloat16, stacks of stacks, and many rows of few terms; oneDNN runs those. For
all others oneDNN took as long or longer on two cores with AVX-512, called from compiled code: 0.43
us for 16 by 16 matrices (here 0.08), 1.9 for 32 by 32 (0.37), 3.1 for 64 by 64 (2.6), 4.3 for
64 x 500 x 10 (3.8), 20 for 1 x 512 x 512 (8.4), 141 for 64 x 800 x 500 (136), 0.72 ms for
512 x 512 x 512 (0.70), 52 for 2048 by 2048 (47). It is faster, by 3 %, only if the first matrix is
transposed and has more than 256 terms. An activation function other than ReLU is a second pass:
a call with tanh takes 1.1 us for 32 x 16 x 16 (oneDNN 4.1), 7.8 for 64 x 64 x 64 (10.6), 9.3 for
256 x 32 x 32 (12.5).

Here a *term* is a value of k: an element of the result is a sum over k terms.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any

from symdnn.cpu.compiler import jit
from symdnn.cpu.gemm.gemm_direct import direct_product
from symdnn.cpu.gemm.gemm_gram import GramLaunch, is_gram
from symdnn.cpu.gemm.gemm_ir import TileShape, max_block_terms, shape_of
from symdnn.cpu.gemm.gemm_kept import kept_panels
from symdnn.cpu.gemm.gemm_loops_ir import WORDS, gemm_ir
from symdnn.cpu.launch.contiguous_launch import compiler_refusal
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.scratch import GrowingScratch, as_contiguous
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.onednn.activated import ActivatedLaunch
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.lowered.activation import program_of
from symdnn.ops.vendor.onednn import ACTIVATIONS, OneDnnMatmul

#: Least number of multiplications of a thread; incomplete vectors count as whole ones.
_MULTIPLICATIONS_PER_THREAD = 1 << 17
#: Time to begin and end a tile, in terms.
_TILE_OVERHEAD_TERMS = 8
#: oneDNN runs matrices with at least so many rows and at most so many terms: 4000 x 16 x 16 takes
#: it 8.5 us (here 10.2), but 2000 x 30 x 30 takes 12.7 (12.1) and 1000 x 4 x 4 2.1 (1.8).
_ONEDNN_MIN_ROWS, _ONEDNN_MAX_TERMS = 2048, 16
#: Rows of a part from which on its second operand is packed into panels. 32 rows of 512 columns and
#: terms take 49 us packed and 54 unpacked, 16 rows 28 and 29, 8 rows of 500 and 800 27 and 22.
_MIN_ROWS_TO_PACK = 24
#: Terms of a block up to which a transposed first operand is read by its strides, though each term
#: is in another cache line. 512 x 128 x 512 takes 0.193 ms unpacked and 0.197 packed, but
#: 1024 x 1024 x 1024 takes 8.7 ms unpacked and 5.9 packed.
_MAX_UNPACKED_TERMS = 256
#: Columns of a part up to which it is never packed, since it is not read often.
_MAX_UNPACKED_COLUMNS = 192
#: Rows of a part for each panel of a block; a block has at least two panels. With few panels a
#: matrix outside of the L2 cache is fetched while sums are computed: 128 x 784 x 512 takes 0.292 ms
#: with two panels, 0.319 with six. With many rows, few panels would read them too often: 2048 rows
#: take 47.4 ms with two panels and 44.6 with this number.
_ROWS_PER_PANEL = 192
#: Extra cycles of a row that several threads write, since they share cache lines at the ends of
#: their parts. 64 x 64 x 64 takes 5.1 us divided by columns and 2.8 divided by rows.
_SHARED_ROW_CYCLES = 30
#: Each thread's scratch memory is aligned to pages.
_PAGE_BYTES = 4096
_Words = ctypes.c_int64


@cache
def _panel_bytes() -> int:
    """Bytes of panels: half of a core's L2 cache, or 512 KiB if its size is not known."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text("ascii").strip()
        return max(1 << 17, int(text.removesuffix("K")) * 1024 // 2)
    except (OSError, ValueError):
        return 1 << 19


class GemmKernel(Kernel[OneDnnMatmul]):
    """GEMM of float32 matrices, and of stacks of them."""

    name = "llvm.gemm"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[OneDnnMatmul]) -> str | None:
        """Needs float32, and a bias or another addend."""
        op = call.op
        types = (*call.inputs, *call.outputs)
        if op.residual and op.bias:
            return "it adds a bias or another addend, not both"
        if any(t.dtype != "float32" for t in types):
            return "it computes in float32"
        if why := compiler_refusal():
            return why
        if all(t.is_static for t in types):
            if 0 in types[-1].shape:
                return "it is empty"
            if not 2 <= types[0].ndim == types[1].ndim <= 3:
                return "it is for matrices, or stacks of them"
            if types[0].shape[-2] >= _ONEDNN_MIN_ROWS and types[0].shape[-1] <= _ONEDNN_MAX_TERMS:
                return "oneDNN is faster for so many rows of so few terms"
        return None

    def workspace_bytes(self, call: Call[OneDnnMatmul]) -> int:
        """Panels of every thread. The launch allocates memory for rows that must be packed too."""
        if is_gram(call):
            return 0  # its parts have their own
        found = _partition_of(call)
        return found.thread_bytes(False, shape_of(jit.vector_width()).columns) * found.threads

    def bind(self, call: Call[OneDnnMatmul]) -> Any:
        """A launch for operands with any strides."""
        if is_gram(call):
            return GramLaunch(call, shape_of(jit.vector_width()).columns, _GemmLaunch)
        return _activated(_GemmLaunch(call), call)

    def begin(self, call: Call[OneDnnMatmul]) -> None:
        """Queue the compilation of the module, which is the same for all sizes."""
        threads.kernel(gemm_ir, jit.vector_width())

    def details(self, call: Call[OneDnnMatmul]) -> str:
        """The number of threads and the size of a part."""
        found = _partition_of(call)
        return f"{found.threads} threads, parts of {found.part_m} x {found.part_n}"


# -- partitions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GemmPartition:
    """The division of a GEMM into parts (tasks of threads), and of parts into blocks.

    The fields are words of the kernel's block.
    """

    threads: int
    tasks: int
    part_m: int
    part_n: int
    parts_m: int
    parts_n: int
    block_k: int
    block_n: int
    packs: bool

    def thread_bytes(self, copies: bool, columns: int) -> int:
        """Scratch memory of a thread: panels, and with ``copies`` the packed rows of ``a``."""
        rows = -(-self.part_m // columns) * columns if copies else 0
        return -(-4 * self.block_k * (self.block_n + rows) // _PAGE_BYTES) * _PAGE_BYTES


def _partition_of(call: Call) -> GemmPartition:
    a, out = (tuple(t.shape) for t in (call.inputs[0], call.outputs[0]))
    width = jit.vector_width()
    work = prod(out[:-1]) * (a[-1] + _TILE_OVERHEAD_TERMS) * (-(-out[-1] // width) * width)
    count = threads.threads(work, _MULTIPLICATIONS_PER_THREAD)
    return partition(prod(out[:-2]), a[-2], out[-1], a[-1], count, width)


@lru_cache(maxsize=4096)
def partition(stack: int, m: int, n: int, k: int, count: int, width: int) -> GemmPartition:
    """The partition of ``stack`` GEMMs of m rows, n columns and k terms for ``count`` threads."""
    shape = shape_of(width)
    found = min(_parts(m, n, count, shape), key=lambda p: _cost(p, (stack, m, n, k), count, shape))
    part_m, part_n = found
    parts = -(-m // part_m), -(-n // part_n)
    block_k = _even_block(k, max_block_terms(width))
    panels = -(-part_n // shape.columns)
    most = min(max(2, part_m // _ROWS_PER_PANEL), _panel_bytes() // (4 * block_k * shape.columns))
    block_n = _even_block(panels, max(1, most)) * shape.columns
    tasks = stack * parts[0] * parts[1]
    packs = part_m >= _MIN_ROWS_TO_PACK
    return GemmPartition(min(count, tasks), tasks, *found, *parts, block_k, block_n, packs)


def _even_block(count: int, most: int) -> int:
    """The size of blocks of ``count`` items: at most ``most``, and about the same in all blocks."""
    blocks = max(1, -(-count // most))
    return max(1, -(-count // blocks))


def _parts(m: int, n: int, count: int, shape: TileShape) -> Iterator[tuple[int, int]]:
    """(rows, columns) of a part, for all divisions into at most one part for each thread."""
    for rows in range(1, count + 1):
        for columns in range(1, count // rows + 1):
            yield (
                -(-m // (rows * shape.rows)) * shape.rows,
                -(-n // (columns * shape.width)) * shape.width,
            )


def _cost(
    part: tuple[int, int], sizes: tuple[int, int, int, int], count: int, shape: TileShape
) -> float:
    """An estimate of the cycles of the thread with most work."""
    stack, m, n, k = sizes
    rows, columns = min(part[0], m), min(part[1], n)
    tasks = stack * -(-m // part[0]) * -(-n // part[1])
    tiles = sum(max(0.35, h / shape.rows) for h in _tile_sizes(rows, shape.rows))
    vectors = _tile_sizes(-(-columns // shape.width), shape.vectors)
    term = sum(max(v * shape.rows / 2, (v + shape.rows) / 2) for v in vectors)
    tiles = tiles + 0.4 if rows >= _MIN_ROWS_TO_PACK else 1.15 * tiles
    shared = _SHARED_ROW_CYCLES * rows if part[1] < n else 0
    return -(-tasks // count) * (k * tiles * term + shared)


def _tile_sizes(count: int, most: int) -> list[int]:
    whole, rest = divmod(count, most)
    return [most] * whole + ([rest] if rest else [])


# -- launches -------------------------------------------------------------------------------------


class _GemmLaunch(CpuLaunch):
    """``launch(inputs, outputs, workspace)`` with a cache of blocks by the operands' strides."""

    def __init__(self, call: Call) -> None:
        op: Any = call.op
        self._partition, self._relu = _partition_of(call), int(op.activation == "relu")
        names = ["a", "b", *(["more"] if op.residual else []), *(["bias"] if op.bias else []), "c"]
        self._at = [WORDS.index(n) for n in names]
        self._names = names
        self._run = threads.kernel(gemm_ir, jit.vector_width())
        self._blocks: dict[Any, Any] = {}
        self._memory = GrowingScratch()
        part = self._partition.part_n, self._partition.parts_n
        self._direct = direct_product(call, self._partition.block_k)
        columns = shape_of(jit.vector_width()).columns
        self._kept = self._direct or kept_panels(call, part, columns)

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        """Multiply; add what is added, and bound by 0 for a ReLU."""
        arrays = [*inputs[:2], *map(as_contiguous, inputs[2:]), *outputs]
        panels = None if self._kept is None else self._kept.of(arrays[1])
        if self._direct is not None and panels is not None:
            self._direct.run([as_contiguous(arrays[0]), *arrays[1:]], panels)
        else:
            self._multiply(arrays, panels, workspace)

    def _multiply(self, arrays: list[Array], panels: Array | None, workspace: Array | None) -> None:
        words = self._words(arrays, panels is not None)
        if panels is not None:
            arrays[1] = panels
        for at, array in zip(self._at, arrays):
            words[at] = id(array)
        words[_SCRATCH_WORD] = id(self._scratch(words, workspace))
        self._run(words)

    def native(
        self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None
    ) -> FastCall | None:
        """For operands with these strides."""
        if self._kept is not None:
            return None  # each call asks whether the parameter has changed
        if not all(x.flags.c_contiguous for x in (*inputs[2:], *outputs)):
            return None
        words = self._words([*inputs, *outputs])
        scratch = self._scratch(words, workspace)
        at = [] if workspace is None else [-1 if scratch is not workspace else _SCRATCH_WORD]
        words[_SCRATCH_WORD] = id(scratch)
        return FastCall.of(self._run, words, [*self._at, *at], keep=scratch)

    def _scratch(self, words: Any, workspace: Array | None) -> Any:
        return self._memory.of(workspace, words[_OWN_WORD] * words[0])

    def _words(self, arrays: Arrays, kept: bool = False) -> Any:
        """The block for operands of these strides; ``kept``: the second is in panels."""
        key = (kept, *[x.strides for x in arrays])
        if key not in self._blocks:
            self._blocks[key] = self._block(dict(zip(self._names, arrays)), kept)
        return self._blocks[key]

    def _block(self, arrays: dict[str, Any], kept: bool) -> Any:
        found, a, b, c = self._partition, arrays["a"], arrays["b"], arrays["c"]
        dense = b.shape[-1] == 1 or b.strides[-1] == 4
        once = found.block_k <= _MAX_UNPACKED_TERMS or found.part_n <= _MAX_UNPACKED_COLUMNS
        copies = a.shape[-1] > 1 and a.strides[-1] != 4 and not (a.strides[-2] == 4 and once)
        values: dict[str, int] = {
            **vars(found), "one": 1,
            "own": found.thread_bytes(copies, shape_of(jit.vector_width()).columns),
            "m": a.shape[-2], "n": b.shape[-1], "k": a.shape[-1], "relu": self._relu,
            "packs": int(found.packs or not dense), "copies": int(copies),
            "a_row": a.strides[-2], "a_term": a.strides[-1],
            "b_term": b.strides[-2], "b_column": b.strides[-1], "c_row": c.strides[-2],
        }  # fmt: skip
        values["b_panel_kept"] = 4 * shape_of(jit.vector_width()).columns
        if kept and self._kept is not None:
            values |= self._kept.words
        if "more" in arrays:
            values["more_row"] = arrays["more"].strides[-2]
        if c.ndim == 3:
            stacks = ((n, arrays[n]) for n in ("a", "b", "c", "more") if n in arrays)
            # One matrix may serve the whole stack.
            values |= {f"{n}_stack": x.strides[0] if len(x) > 1 else 0 for n, x in stacks}
        return (_Words * len(WORDS))(*(values.get(n, 0) for n in WORDS))


def _activated(launch: _GemmLaunch, call: Call) -> Any:
    """With an activation function that tiles do not compute behind it, if there is one."""
    op: Any = call.op
    name = op.activation
    if name in ("", "relu"):
        return launch
    program = program_of(ACTIVATIONS[name], "float32")
    assert program is not None, f"{name} has no scalar program"
    return ActivatedLaunch(launch, program, tuple(call.outputs[0].shape))


_SCRATCH_WORD, _OWN_WORD = WORDS.index("scratch"), WORDS.index("own")


KERNELS: tuple[Row, ...] = (((OneDnnMatmul,), (GemmKernel(),)),)
