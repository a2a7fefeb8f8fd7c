"""LLVM IR of sorts of short lines: a network of comparisons, with a line in each lane.

A line of few elements is a few comparisons, of which an exchange follows by two selects, in the
order of Batcher's merge of odd and even places. Loops over lines have no branch, so LLVM makes
vectors of them. A task is a stretch of lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import ACCESS, data_of, word
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.program_ir import LoopBuilder
from symdnn.cpu.ir.scalar_ir import store_as
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, ScalarProgram

__all__ = ["LINES", "MAX_IN_LINES", "MAX_IN_COLUMNS", "NETWORK_WORDS", "NetworkPlan", "network_ir"]

#: Lines of a task.
LINES = 1024
#: The longest lines, of elements that follow one another, and of neighbouring lines: LLVM makes
#: vectors of loads of every eighth element at most.
MAX_IN_LINES, MAX_IN_COLUMNS = 8, 16
NETWORK_WORDS = ["threads", "tasks", "one", "lines", "x0", "x0.i", "y0", "y0.i"]


@dataclass(frozen=True)
class NetworkPlan:
    """Lines of ``length`` elements; the bytes from a line to the next, of operand and result."""

    dtype: str
    length: int
    steps: tuple[int, int]


def _exchanges(n: int) -> Iterator[tuple[int, int]]:
    """Pairs of places, of which the later has the larger one then."""
    merged = 1
    while merged < n:
        apart = merged
        while apart:
            for first in range(apart % merged, n - apart, 2 * apart):
                for low in range(first, first + min(apart, n - apart - first)):
                    if low // (2 * merged) == (low + apart) // (2 * merged):
                        yield low, low + apart
            apart //= 2
        merged *= 2


def _program(dtype: str, n: int) -> ScalarProgram:
    """The sorted elements of a line; NaN last."""
    b = Builder([dtype] * n)
    work = "float32" if is_narrow_float(dtype) else dtype
    line = [b.cast(b.input(i), work) for i in range(n)]
    for low, high in _exchanges(n):
        one, other = line[low], line[high]
        exchanged = other < one
        if TensorType(work).is_float:
            exchanged = exchanged.call("or", one.call("isnan"))
        line[low], line[high] = exchanged.where(other, one), exchanged.where(one, other)
    return b.program([b.cast(v, dtype) for v in line])


def network_ir(plan: NetworkPlan) -> str:
    """The module of ``kernel``."""
    k, entry = LoopBuilder(), list[str]()
    for i, name in enumerate(NETWORK_WORDS):
        entry += data_of(f"%{name}.data", i) if name in ("x0", "y0") else word(f"%{name}", i)
    k.tasks(entry)
    low = k.times("%r", LINES)
    high = k.least(k.plus(low, LINES), "%lines")
    with k.each("line", low, high, parallel=True) as line:
        x, y = (_elements(k, plan, *operand, line) for operand in zip(("x0", "y0"), plan.steps))
        values = [k.value(plan.dtype, at, ACCESS) for at in x]
        for value, at in zip(k.program(_program(plan.dtype, plan.length), values), y, strict=True):
            k.put(*store_as(plan.dtype, value, at, ACCESS))
    return k.task_module(*definitions(k.helpers))


def _elements(k: LoopBuilder, plan: NetworkPlan, name: str, step: int, line: str) -> list[str]:
    """The addresses of a line's elements."""
    size, base = numpy_dtype(plan.dtype).itemsize, k.bytes_at(f"%{name}.data", (line, step))
    steps = f"%{name}.i" if step == size else size
    return [k.bytes_at(base, (i, steps)) for i in range(plan.length)]
