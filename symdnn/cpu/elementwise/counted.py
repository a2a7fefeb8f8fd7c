"""Counts of integers and sums of their weights, whose number follows from the largest integer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.compress import PlainKernel
from symdnn.cpu.ir.builder import Builder
from symdnn.cpu.ir.loops_ir import METADATA, word
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.scratch import address, as_contiguous
from symdnn.cpu.launch.traits import LLVM_QUIET
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.lowered.of_values import Counted

__all__ = ["KERNELS", "CountKernel", "counted_ir"]

#: With fewer integers NumPy is as fast. Few sums have several tables: an addition waits for the one
#: before to the same place.
_MIN_ELEMENTS, _TABLES, _MOST_IN_TABLES = 1 << 11, 4, 1 << 11
_WORDS = ("index", "weights", "tables", "n", "step")
_FLOATS = {"float32": "float", "float64": "double"}


def counted_ir(bits: int, weights: str) -> str:
    """The module of ``kernel``: to ``tables[k % 4 * step + index[k]]`` 1, or a float64 of weights.

    Integers of ``bits`` bits, none below 0, all in range; ``weights`` is a dtype, or empty.
    """
    s = Builder()
    entry = [line for k, name in enumerate(_WORDS) for line in word(
        f"%{name}", k, "ptr" if k < 3 else "i64")]  # fmt: skip
    s.put("define void @kernel(ptr %w) #0 {", "entry:", *entry)
    s.block = "entry"
    kind, add = ("double", "fadd") if weights else ("i64", "add")
    tables = ["%tables"]
    for _ in range(1, _TABLES):
        tables.append(s.new(f"getelementptr {kind}, ptr {tables[-1]}, i64 %step"))

    def one(i: str, table: str) -> None:
        at = s.new(f"load i{bits}, ptr {s.new(f'getelementptr i{bits}, ptr %index, i64 {i}')}")
        wide = at if bits == 64 else s.new(f"zext i{bits} {at} to i64")
        value = "1"
        if weights:
            t = _FLOATS[weights]
            value = s.new(f"load {t}, ptr {s.new(f'getelementptr {t}, ptr %weights, i64 {i}')}")
            value = value if t == kind else s.new(f"fpext {t} {value} to {kind}")
        place = s.new(f"getelementptr {kind}, ptr {table}, i64 {wide}")
        before = s.new(f"load {kind}, ptr {place}")
        s.put(f"store {kind} {s.new(f'{add} {kind} {before}, {value}')}, ptr {place}")

    def four(i: str, _: list[str]) -> list[str]:
        for k, table in enumerate(tables):
            one(s.affine(i, 1, k), table)
        return []

    def last(i: str, _: list[str]) -> list[str]:
        one(i, "%tables")
        return []

    def rest() -> None:
        s.counted("last", whole, "%n", last)

    whole = s.new(f"and i64 %n, {-_TABLES}")
    s.counted("four", 0, whole, four, step=_TABLES)
    s.when("rest", s.new(f"icmp ult i64 {whole}, %n"), rest)
    s.put("ret void", "}")
    return "\n".join([*s.lines, *METADATA]) + "\n"


class CountKernel(Kernel[Counted]):
    """Counts and sums of weights; few have four tables, which are added up in the end."""

    name = "llvm.counted"
    traits = LLVM_QUIET

    def refuses(self, call: Call[Counted]) -> str | None:
        """Needs enough integers, and weights of 32 or 64 bits."""
        x, _, *weights = call.inputs
        if x.dtype == "bool" or any(w.dtype not in _FLOATS for w in weights):
            return "there is no code for the dtypes"
        return compile_refusal((x,), lambda: prod(x.shape), _MIN_ELEMENTS)

    def bind(self, call: Call[Counted]) -> Launch[Array]:
        """A launch for any strides."""
        x, _, *weights = call.inputs
        plain: Any = PlainKernel().bind(call)
        if not isinstance(x, TensorType) or prod(x.shape) < _MIN_ELEMENTS:
            return plain
        dtype = weights[0].dtype if weights else ""
        made = np.dtype(np.float64 if weights else np.int64)
        run = threads.kernel(counted_ir, 8 * x.numpy.itemsize, dtype)
        unsigned, words = f"u{x.numpy.itemsize}", (ctypes.c_int64 * len(_WORDS))()

        def launch(inputs: Arrays, outputs: Sequence[Any]) -> Sequence[Array]:
            index, least, *given = inputs
            index = as_contiguous(index)
            # Read as unsigned numbers, negative ones are the largest.
            length = int(np.maximum.reduce(index.view(unsigned))) + 1
            wrong = index.dtype.kind == "i" and length > np.iinfo(index.dtype).max
            if wrong or (given and given[0].shape != index.shape):
                return [*plain(inputs, outputs)]
            length = max(length, int(least))
            several = length <= _MOST_IN_TABLES
            tables = np.zeros((_TABLES if several else 1, length), made)
            added = as_contiguous(given[0]) if given else index
            words[:] = [*map(address, (index, added, tables)), index.size, length * several]
            run(words)
            found = np.add.reduce(tables, 0) if several else tables[0]
            return [found.astype(dtype or made, copy=False)]

        return launch


KERNELS: tuple[Row, ...] = (((Counted,), (CountKernel(), PlainKernel())),)
