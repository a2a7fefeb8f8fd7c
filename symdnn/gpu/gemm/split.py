"""float32 GEMM on tensor cores: operands split into bfloat16 numbers, six products for one.

Hopper multiplies float32 matrices without tensor cores, at a fifteenth of the rate of bfloat16.
A float32 number is the sum of three bfloat16 numbers, so six products of these make one of
float32's accuracy (``split_floats.cu``). Kernels write the six factors side by side along the
sums, and cuBLASLt multiplies them in one GEMM.

Tensor cores cut off the digits of long sums instead of rounding them. On an H200 the error of sums
of 4096 positive terms was 1.4e-5, that of float32 1.3e-7. So sums are divided into chunks of at
most 512 terms, with an error of 9e-7, which are added in float32: by each GEMM to the result of the
last one, or, where a result has too few blocks for a card, all side by side and then together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any

from symdnn.gpu.binding.libcublaslt import CublasError
from symdnn.gpu.codegen.device_source import specialised
from symdnn.gpu.codegen.launches import MOST_BLOCKS_BESIDE
from symdnn.gpu.gemm.parts import Adding, launched
from symdnn.gpu.gemm.plan import (
    ALIGNMENT_BYTES,
    WORKSPACE_BYTES,
    GemmAlgorithm,
    GemmPlan,
    GemmSignature,
    Matrix,
    Pointers,
    aligned,
)

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

__all__ = [
    "OTHER_BYTES", "Chunks", "Form", "SplitGemm", "chunks_of", "room_bytes", "split_ways",
]  # fmt: skip

#: Products that stand for one, and bytes of their factors.
_PRODUCTS, _FACTOR_BYTES = 6, 2
#: Terms of a chunk, and what their number is a multiple of.
_MOST_TERMS, _LEAST_TERMS = 512, 16
#: Terms and rows of a block of the kernel, and its threads along rows.
_BLOCK_TERMS, _BLOCK_ROWS, _LINES = 64, 32, 8
#: The workspace for factors, unless a single chunk needs more; and the most that it may need.
_USUAL_BYTES, _MOST_BYTES = 128 << 20, 512 << 20
#: GEMMs with fewer multiplications, or shorter sides, are not worth a kernel before them.
_LEAST_MULTIPLICATIONS, _LEAST_SIDE = 1 << 27, 64
#: Results of up to so many elements leave multiprocessors of a large card idle.
_FEW_ELEMENTS = 1 << 22
#: Algorithms of cuBLASLt's heuristics that are measured.
_RANKS = 3
_VECTOR_BYTES = 16
#: The workspace beside the factors: cuBLASLt's, and what aligns the factors and the sums.
OTHER_BYTES = WORKSPACE_BYTES + 2 * ALIGNMENT_BYTES


@dataclass(frozen=True)
class Chunks:
    """Sums in ``count`` chunks of ``length`` terms, with zeros behind the terms of the last."""

    terms: int
    count: int
    length: int


def chunks_of(terms: int) -> Chunks:
    """The division of sums of ``terms`` terms into chunks of about the same length.

    >>> chunks_of(784)
    Chunks(terms=784, count=2, length=400)
    """
    length = _up(-(-terms // -(-terms // _MOST_TERMS)), _LEAST_TERMS)
    return Chunks(terms, -(-terms // length), length)


def room_bytes(rows: int, columns: int, terms: int, stack: int = 1) -> int:
    """The workspace of a GEMM's factors; 0 if it is not worth splitting them, or takes too much."""
    small = stack * rows * columns * terms < _LEAST_MULTIPLICATIONS
    if small or min(rows, columns, terms) < _LEAST_SIDE or stack > MOST_BLOCKS_BESIDE:
        return 0
    chunks = chunks_of(terms)
    one = _chunk_bytes(chunks, stack * (rows + columns))
    if stack == 1 and rows * columns <= _FEW_ELEMENTS:
        one += aligned(rows * columns * 4)
    return 0 if one > _MOST_BYTES else min(chunks.count * one, max(one, _USUAL_BYTES))


def _chunk_bytes(chunks: Chunks, lines: int) -> int:
    return _PRODUCTS * _FACTOR_BYTES * chunks.length * lines


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def split_ways(plan: GemmPlan, most_bytes: int) -> list[SplitGemm]:
    """The ways to split a GEMM's operands within a workspace."""
    s = plan.signature
    exact = s.dtype == s.result == s.compute == "float32"
    if not most_bytes or not exact or s.epilogue.startswith("bgrad"):
        return []
    if s.d.ld * 4 % _VECTOR_BYTES or s.alignment[3] < _VECTOR_BYTES:
        return []  # results whose columns are not aligned took three times as long
    few = s.batch == 1 and s.d.rows * s.d.columns <= _FEW_ELEMENTS and not s.epilogue
    beside = few and s.c is None and chunks_of(s.k).count > 1
    found = []
    for form in (Form.IN_TURN, *[Form.SIDE_BY_SIDE] * beside):
        for rank in range(_RANKS):
            try:
                way = SplitGemm(s, form, most_bytes, rank)
                way.prepare(plan.handle.value or 0)
            except CublasError:
                break
            found.append(way)
    return found


class Form(Enum):
    """How the parts of a sum are added.

    ``MERGED`` is for a stack of A with one B: it is one matrix of all rows, whose result a kernel
    brings into the order of the stack. ``STACK_SUM`` is for another operation: the results of a
    stack of GEMMs are added.
    """

    IN_TURN = "in turn"
    SIDE_BY_SIDE = "side by side"
    MERGED = "in turn, as one matrix"
    STACK_SUM = "summed over the stack"


class SplitGemm:
    """A way to run a GEMM of float32 matrices, as :class:`GemmAlgorithm` is one.

    A *unit* is a chunk of one matrix; units side by side are a stack of products, whose results a
    kernel adds. ``rank`` is the place of its algorithm in cuBLASLt's heuristics. Raises
    :class:`CublasError` where the factors of one unit take more than ``most_bytes``.
    """

    number = "bf16x6"
    arithmetic = "6 products of bfloat16 each"

    def __init__(self, s: GemmSignature, form: Form, most_bytes: int, rank: int = 0) -> None:
        self.signature, self.form, self.rank = s, form, rank
        self.chunks = chunks_of(s.k)
        self.sides = s.d.rows, s.d.columns
        summed = form is Form.STACK_SUM
        stacks = [s.batch if m.batch_offset and not summed else 1 for m in (s.a, s.b)]
        self.stacks = stacks[0], stacks[1]
        #: Matrices that are added, units of each in a row of factors, and those of one product.
        self.matrices = s.batch if summed else 1
        self.span = self._span() if summed else 1
        lines = sum(n * stack for n, stack in zip(self.sides, stacks, strict=True))
        unit = _PRODUCTS * _FACTOR_BYTES * self.chunks.length
        one = unit * lines * self.span
        result = aligned(prod(self.sides) * 4)
        whole = aligned(s.batch * prod(self.sides) * 4) * (form is Form.MERGED)
        if self.is_beside:
            one += result
        self.units = self.matrices * self.chunks.count
        #: Units of a group, which are split together.
        self.group = min(self.units, self._whole((most_bytes - whole) // one * self.span))
        if self.group <= 0:
            raise CublasError(f"a chunk's factors take {one + whole} bytes, {most_bytes} allowed")
        self.split_bytes = -(-self.group // self.span) * one + whole
        self.workspace_bytes = OTHER_BYTES + self.split_bytes
        self._plans: dict[int, dict[Any, tuple[GemmPlan, GemmAlgorithm]]] = {}

    @property
    def is_beside(self) -> bool:
        """Whether the products of units are a stack, whose results are added."""
        return self.form in (Form.SIDE_BY_SIDE, Form.STACK_SUM)

    def _span(self) -> int:
        """Matrices whose short sums are one product's: a divisor of their number."""
        most = _MOST_TERMS // self.chunks.length if self.chunks.count == 1 else 1
        return next(n for n in range(most, 0, -1) if self.matrices % n == 0)

    def _whole(self, units: int) -> int:
        """Units in whole matrices, where several of these are added."""
        return units - units % self.chunks.count if self.form is Form.STACK_SUM else units

    def __str__(self) -> str:
        """The division of sums."""
        divided = f", sums in {self.units} chunks {self.form.value}" if self.units > 1 else ""
        rank = f", algorithm {self.rank}" if self.rank else ""
        return f"cuBLASLt bf16x6{divided}{rank}, workspace {self.workspace_bytes} bytes"

    @property
    def words(self) -> dict[str, Any]:
        """JSON values that identify it, for records."""
        return {"name": self.number, "algorithm": [self.number, self.form.value, self.rank],
                "workspace_bytes": self.workspace_bytes}  # fmt: skip

    @property
    def _line(self) -> int:
        """Factors of a row of a group."""
        return self.group * _PRODUCTS * self.chunks.length

    def prepare(self, handle: int) -> dict[Any, tuple[GemmPlan, GemmAlgorithm]]:
        """Its GEMMs, by (first, last) chunk, or by the number of products side by side.

        Raises :class:`CublasError` where cuBLASLt has no (or no other) algorithm.
        """
        if handle not in self._plans:
            plans = {kind: GemmPlan(handle, self._inner(kind)) for kind in self._kinds()}
            found = {kind: plan.algorithms(self.rank + 1) for kind, plan in plans.items()}
            if all(len(listed) <= self.rank for listed in found.values()):
                raise CublasError(f"cuBLASLt has no {self.rank + 1} algorithms")
            self._plans[handle] = {k: (plans[k], found[k][-1]) for k in plans}
        return self._plans[handle]

    def _kinds(self) -> set[Any]:
        last = self.units - 1
        if self.is_beside:
            return {n // self.span for n in (self.group, self.units % self.group or self.group)}
        return {(i == 0, i == last) for i in {0, min(1, last), last}}

    def _inner(self, kind: Any) -> GemmSignature:
        """The GEMM of factors of one chunk, or of a stack of chunks."""
        s, line = self.signature, self._line
        terms = _PRODUCTS * self.chunks.length * self.span
        sides = zip(self.sides, self.stacks, (True, False), strict=True)
        a, b = [Matrix(terms, n, line, t, n * line if k > 1 else 0) for n, k, t in sides]
        same = GemmSignature(
            "bfloat16", "float32", "float32", a, b, s.d, batch=s.batch,
            alignment=(ALIGNMENT_BYTES, ALIGNMENT_BYTES, *s.alignment[2:]),
            workspace_limit=s.workspace_limit,
        )  # fmt: skip
        if self.form is Form.MERGED:
            rows = s.batch * s.d.rows
            a, d = replace(a, columns=rows, batch_offset=0), Matrix(rows, s.d.columns, rows)
            return replace(same, a=a, d=d, batch=1, alignment=(ALIGNMENT_BYTES,) * 4)
        if self.is_beside:
            d = Matrix(s.d.rows, s.d.columns, s.d.rows, False, prod(self.sides))
            a, b = (replace(m, batch_offset=terms) for m in (a, b))
            return replace(same, a=a, b=b, d=d, batch=kind, alignment=(ALIGNMENT_BYTES,) * 4)
        first, last = kind
        return replace(same, c=s.c if first else None, epilogue=s.epilogue if last else "")

    def load(self, env: LaunchEnv) -> None:
        """Compile and load its kernels, and choose its algorithms."""
        for side in (0, 1):
            env.module(_split_source(side), "split_floats")
        if self.form is not Form.IN_TURN:
            for parts in self._kinds() if self.is_beside else (1,):
                env.module(self._adding(parts).source, "add_parts")
        self.prepare(env.cublaslt)

    def enqueue(self, env: LaunchEnv, at: Pointers, factors: Sequence[float]) -> None:
        """Enqueue all kernels; the factors of operands lie behind cuBLASLt's workspace."""
        left = aligned(env.workspace) + WORKSPACE_BYTES
        size = _FACTOR_BYTES * self._line
        right = left + size * self.sides[0] * self.stacks[0]
        sums = aligned(right + size * self.sides[1] * self.stacks[1])
        for start in range(0, self.units, self.group):
            count = min(self.group, self.units - start)
            self._split(env, 0, at.a, left, start, count)
            self._split(env, 1, at.b, right, start, count)
            if self.is_beside:
                self._together(env, (left, right, sums), count, at, factors, start == 0)
            elif self.form is Form.MERGED:
                into = replace(at, d=sums, c=0)
                self._in_turn(env, (left, right), (start, count), into, (factors[0], 0.0))
            else:
                self._in_turn(env, (left, right), (start, count), at, factors)
        if self.form is Form.MERGED:
            self._add(env, sums, at.d, 1, float(factors[1]))

    def _split(
        self, env: LaunchEnv, side: int, source: int, to: int, start: int, count: int
    ) -> None:
        """Enqueue the kernel that writes the factors of an operand for some units."""
        m, rows = (self.signature.a, self.signature.b)[side], self.sides[side]
        along = m.transposed == (side == 0)  # the terms of a sum are neighbours
        steps = (m.ld, 1) if along else (1, m.ld)
        length, stack, stacked = self.chunks.length, self.stacks[side], rows * self._line
        first = start * length
        if self.form is Form.STACK_SUM:
            stack, stacked = count // self.chunks.count, _PRODUCTS * length * self.chunks.count
            source += 4 * m.batch_offset * (start // self.chunks.count)
            first, count = 0, self.chunks.count
        grid = (count * -(-length // _BLOCK_TERMS), -(-rows // _BLOCK_ROWS), stack)
        sizes = (rows, self.chunks.terms, first, m.batch_offset, *steps)
        parameters = (source, to, *sizes, self._line, stacked, length)
        launched(env, _split_source(side), "split_floats", grid, (_BLOCK_ROWS, _LINES), parameters)

    def _in_turn(
        self, env: LaunchEnv, operands: tuple[int, int], part: tuple[int, int], at: Pointers,
        factors: Sequence[float],
    ) -> None:  # fmt: skip
        """Enqueue a GEMM for each chunk, which adds to the result of those before."""
        start, count = part
        for i in range(count):
            first, last = start + i == 0, start + i == self.units - 1
            plan, algorithm = self.prepare(env.cublaslt)[first, last]
            offset = i * _PRODUCTS * self.chunks.length * _FACTOR_BYTES
            a, b = (p + offset for p in operands)
            inner = Pointers(a, b, at.d, at.c if first else 0, at.bias)
            both = factors if first else (factors[0], 1.0)
            plan.run(algorithm, inner, both, env.workspace, env.stream)

    def _together(
        self, env: LaunchEnv, places: tuple[int, int, int], count: int, at: Pointers,
        factors: Sequence[float], first: bool,
    ) -> None:  # fmt: skip
        """Enqueue one GEMM for a group of units, and the kernel that adds their results."""
        a, b, sums = places
        products = count // self.span
        plan, algorithm = self.prepare(env.cublaslt)[products]
        inner = Pointers(a, b, sums)
        plan.run(algorithm, inner, (factors[0], 0.0), env.workspace, env.stream)
        self._add(env, sums, at.d, products, float(factors[1]) if first else 1.0)

    def _add(self, env: LaunchEnv, sums: int, to: int, parts: int, beta: float) -> None:
        """Enqueue the kernel that adds results, in the order of the stack."""
        self._adding(parts).enqueue(env, (sums, to, to), (1.0, beta))

    def _adding(self, parts: int) -> Adding:
        d, stack = self.signature.d, self.signature.batch if self.form is Form.MERGED else 1
        return Adding(parts, stack, d, d)


def _split_source(side: int) -> str:
    return specialised("split_floats.cu", RIGHT=side)
