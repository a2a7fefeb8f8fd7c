"""Products of float32 matrices by compiled code of our own.

oneDNN's kernel takes what this one refuses: bfloat16, activations but relu, stacks of stacks, and
many rows of few terms. For the rest it took longer, or as long, on two cores with AVX-512, called
from compiled code: of 16 by 16 matrices 0.43 us (here 0.08), of 32 by 32 1.9 (0.37), of 64 by 64
3.1 (2.6), 64 x 500 x 10 4.3 (3.8), 1 x 512 x 512 20 (8.4), 64 x 800 x 500 141 (136), 512 x 512 x
512 0.72 ms (0.70), 2048 by 2048 52 (47). Only where the first of two matrices is transposed and
has more than 256 terms is it faster, by 3 in 100.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.cpu.compiler import jit
from symdnn.cpu.gemm.gemm_ir import BEST_TERMS, Shape, shape_of
from symdnn.cpu.gemm.gemm_loops_ir import WORDS, gemm_ir
from symdnn.cpu.launch.contiguous_launch import without_compiler
from symdnn.cpu.launch.fastcall import Native
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.traits import LLVM_ASKING
from symdnn.cpu.onednn.kernel import address, lies_densely
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.ops.vendor.onednn import OneDnnMatmul

__all__ = ["Cut", "GemmKernel", "cut_of", "KERNELS"]

#: Multiplications of whole vectors that a thread does at least.
_LEAST_WORK = 1 << 17
#: As many terms a tile takes to begin and end.
_BEGIN_TERMS = 8
#: So many rows of so few terms are oneDNN's: 4000 x 16 x 16 takes it 8.5 us, tiles that begin and
#: end so often 10.2; but 2000 x 30 x 30 12.7 and 12.1, 1000 x 4 x 4 2.1 and 1.8.
_MANY_ROWS, _FEW_TERMS = 2048, 16
#: Where a part has so many rows, its second operand is copied into panels: 32 rows of 512 columns
#: and terms take 49 us so and 54 without, 16 rows 28 and 29, 8 rows of 500 and 800 27 and 22.
_PACKED_ROWS = 24
#: Terms of a block up to which a transposed first operand is read as it lies, though each term is
#: in another line of the cache: 512 x 128 x 512 takes 0.193 ms so, and 0.197 where it is copied to
#: panels; but 1024 x 1024 x 1024 8.7 ms, and 5.9.
_DIRECT_TERMS = 256
#: Columns of a part up to which it always is, since it is not read often.
_DIRECT_COLUMNS = 192
#: A block has a panel for so many rows of a part, and at least two. Few, so that a matrix that lay
#: outside of the second cache is fetched beside the sums: 128 x 784 x 512 takes 0.292 ms by two
#: panels, 0.319 by six; many rows should not be read again too often (2048: 47.4 ms by two, 44.6).
_ROWS_A_PANEL = 192
#: Cycles that a row takes longer of which threads write parts: they share lines of its ends. By
#: columns 64 x 64 x 64 takes 5.1 us, by rows 2.8.
_SHARED = 30
#: Scratch memory of a thread is in pages of its own.
_PAGE = 4096
_Words = ctypes.c_int64


@cache
def _panels() -> int:
    """Bytes of panels: half of a core's second cache, 512 KiB where its size is not known."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text("ascii").strip()
        return max(1 << 17, int(text.removesuffix("K")) * 1024 // 2)
    except (OSError, ValueError):
        return 1 << 19


class GemmKernel(Kernel):
    """Products of float32 matrices, and of stacks of them."""

    name = "llvm.gemm"
    traits = LLVM_ASKING

    def refuses(self, call: Call) -> str | None:
        """Takes float32; a bias or an addend can follow, and what cuts negative numbers off."""
        op: Any = call.op
        types: Any = (*call.inputs, *call.outputs)
        if op.activation not in ("", "relu") or (op.residual and op.bias):
            return "nothing but a bias or an addend, and relu, can follow it"
        if any(t.dtype != "float32" for t in types):
            return "it computes in float32"
        if why := without_compiler():
            return why
        if all(t.is_static for t in types):
            if 0 in types[-1].shape:
                return "it is empty"
            if not 2 <= types[0].ndim == types[1].ndim <= 3:
                return "it multiplies matrices, or stacks of them"
            if types[0].shape[-2] >= _MANY_ROWS and types[0].shape[-1] <= _FEW_TERMS:
                return "oneDNN is faster for so many rows of so few terms"
        return None

    def workspace_bytes(self, call: Call) -> int:
        """Panels of every thread; rows that have to be copied find memory elsewhere."""
        cut = _cut(call)
        return cut.own(False, shape_of(jit.vector_width()).columns) * cut.threads

    def bind(self, call: Call) -> Any:
        """A launch for any way in which operands lie."""
        return _Launcher(call)

    def begin(self, call: Call) -> None:
        """Have the module compiled that all products run."""
        threads.kernel(gemm_ir, jit.vector_width())

    def details(self, call: Call) -> str:
        """How it is cut."""
        cut = _cut(call)
        return f"{cut.threads} threads, parts of {cut.part_m} x {cut.part_n}"


# -- how a product is cut -------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """The parts of a product, of which each thread does several or one, and their blocks."""

    threads: int
    tasks: int
    part_m: int
    part_n: int
    parts_m: int
    parts_n: int
    block_k: int
    block_n: int
    packs: bool

    def own(self, copies: bool, columns: int) -> int:
        """Bytes of scratch memory of a thread: panels, and rows that are copied into such."""
        rows = -(-self.part_m // columns) * columns if copies else 0
        return -(-4 * self.block_k * (self.block_n + rows) // _PAGE) * _PAGE


def _cut(call: Call) -> Cut:
    a, out = (tuple(t.shape) for t in (call.inputs[0], call.outputs[0]))
    width = jit.vector_width()
    work = prod(out[:-1]) * (a[-1] + _BEGIN_TERMS) * (-(-out[-1] // width) * width)
    count = threads.threads(work, _LEAST_WORK)
    return cut_of(prod(out[:-2]), a[-2], out[-1], a[-1], count, width)


@lru_cache(maxsize=4096)
def cut_of(stack: int, m: int, n: int, k: int, count: int, width: int) -> Cut:
    """How ``stack`` products of m rows, n columns and k terms are cut for ``count`` threads."""
    shape = shape_of(width)
    found = min(_parts(m, n, count, shape), key=lambda p: _cost(p, (stack, m, n, k), count, shape))
    part_m, part_n = found
    parts = -(-m // part_m), -(-n // part_n)
    block_k = _alike(k, BEST_TERMS)
    panels = -(-part_n // shape.columns)
    most = min(max(2, part_m // _ROWS_A_PANEL), _panels() // (4 * block_k * shape.columns))
    block_n = _alike(panels, max(1, most)) * shape.columns
    tasks = stack * parts[0] * parts[1]
    packs = part_m >= _PACKED_ROWS
    return Cut(min(count, tasks), tasks, *found, *parts, block_k, block_n, packs)


def _alike(count: int, most: int) -> int:
    """How many of ``count`` are in a block: at most so many, in all blocks about as many."""
    blocks = max(1, -(-count // most))
    return max(1, -(-count // blocks))


def _parts(m: int, n: int, count: int, shape: Shape) -> Iterator[tuple[int, int]]:
    """Rows and columns of a part, for all ways to have at most a part for each thread."""
    for rows in range(1, count + 1):
        for columns in range(1, count // rows + 1):
            yield (
                -(-m // (rows * shape.rows)) * shape.rows,
                -(-n // (columns * shape.width)) * shape.width,
            )


def _cost(
    part: tuple[int, int], sizes: tuple[int, int, int, int], count: int, shape: Shape
) -> float:
    """About how many cycles the thread takes that has most to do."""
    stack, m, n, k = sizes
    rows, columns = min(part[0], m), min(part[1], n)
    tasks = stack * -(-m // part[0]) * -(-n // part[1])
    tiles = sum(max(0.35, h / shape.rows) for h in _cuts(rows, shape.rows))
    vectors = _cuts(-(-columns // shape.width), shape.vectors)
    term = sum(max(v * shape.rows / 2, (v + shape.rows) / 2) for v in vectors)
    tiles = tiles + 0.4 if rows >= _PACKED_ROWS else 1.15 * tiles
    shared = _SHARED * rows if part[1] < n else 0
    return -(-tasks // count) * (k * tiles * term + shared)


def _cuts(count: int, most: int) -> list[int]:
    whole, rest = divmod(count, most)
    return [most] * whole + ([rest] if rest else [])


# -- launches -------------------------------------------------------------------------------------


class _Launcher(CpuLaunch):
    """``launch(inputs, outputs, workspace)``: blocks of words are kept by the operands' strides."""

    def __init__(self, call: Call) -> None:
        op: Any = call.op
        self._cut, self._relu = _cut(call), int(op.activation == "relu")
        names = ["a", "b", *(["more"] if op.residual else []), *(["bias"] if op.bias else []), "c"]
        self._at = [WORDS.index(n) for n in names]
        self._names = names
        self._run = threads.kernel(gemm_ir, jit.vector_width())
        self._blocks: dict[Any, Any] = {}
        self._own = np.empty(0, np.uint8)

    def __call__(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> None:
        """Multiply, then add and cut."""
        arrays = [*inputs[:2], *map(lies_densely, inputs[2:]), *outputs]
        words = self._words(arrays)
        for at, array in zip(self._at, arrays):
            words[at] = id(array)
        words[_SCRATCH] = id(self._scratch(words, workspace))
        self._run(words)

    def native(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> Native | None:
        """For operands that lie as these do."""
        if not all(x.flags.c_contiguous for x in (*inputs[2:], *outputs)):
            return None
        words = self._words([*inputs, *outputs])
        scratch = self._scratch(words, workspace)
        given = [] if workspace is None else [-1 if scratch is not workspace else _SCRATCH]
        words[_SCRATCH] = id(scratch)
        return Native.of(self._run, words, [*self._at, *given], keep=scratch)

    def _scratch(self, words: Any, workspace: Any) -> Any:
        """Scratch memory; of its own where the plan has too little."""
        wanted = words[_OWN] * words[0]
        if workspace is not None and workspace.nbytes >= wanted:
            return workspace
        if self._own.nbytes < wanted:
            raw = np.empty(wanted + 64, np.uint8)
            self._own = raw[-address(raw) % 64 :]
        return self._own

    def _words(self, arrays: Sequence[Any]) -> Any:
        """The block for operands of these strides."""
        key = tuple([x.strides for x in arrays])
        if key not in self._blocks:
            self._blocks[key] = self._block(dict(zip(self._names, arrays)))
        return self._blocks[key]

    def _block(self, arrays: dict[str, Any]) -> Any:
        cut, a, b, c = self._cut, arrays["a"], arrays["b"], arrays["c"]
        dense = b.shape[-1] == 1 or b.strides[-1] == 4
        once = cut.block_k <= _DIRECT_TERMS or cut.part_n <= _DIRECT_COLUMNS
        copies = a.shape[-1] > 1 and a.strides[-1] != 4 and not (a.strides[-2] == 4 and once)
        values: dict[str, int] = {
            **vars(cut), "own": cut.own(copies, shape_of(jit.vector_width()).columns), "one": 1,
            "m": a.shape[-2], "n": b.shape[-1], "k": a.shape[-1], "relu": self._relu,
            "packs": int(cut.packs or not dense), "copies": int(copies),
            "a_row": a.strides[-2], "a_term": a.strides[-1],
            "b_term": b.strides[-2], "b_column": b.strides[-1], "c_row": c.strides[-2],
        }  # fmt: skip
        if "more" in arrays:
            values["more_row"] = arrays["more"].strides[-2]
        if c.ndim == 3:
            stacks = ((n, arrays[n]) for n in ("a", "b", "c", "more") if n in arrays)
            # One matrix may serve the whole stack.
            values |= {f"{n}_stack": x.strides[0] if len(x) > 1 else 0 for n, x in stacks}
        return (_Words * len(WORDS))(*(values.get(n, 0) for n in WORDS))


_SCRATCH, _OWN = WORDS.index("scratch"), WORDS.index("own")


KERNELS: tuple[Row, ...] = (((OneDnnMatmul,), (GemmKernel(),)),)
