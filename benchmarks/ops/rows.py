"""Which rows there are: op table records times dtype, memory order, size and direction."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests import op_table
from tests.op_table.record import OpCase

__all__ = [
    "FIXED_COUNT",
    "Row",
    "all_rows",
    "fixed_rows",
    "huge_rows",
    "large_rows",
    "rotated_rows",
    "row_named",
]

#: Rows of the fixed selection, which every record has.
FIXED_COUNT = 600

#: Records of what lowering makes, which no user writes: the neutral ops are timed instead.
LOWERED = (
    "gpudnn", "onednn", "gpublas", "fused", "transfer", "norm_parts", "conv_moments", "of_values",
)  # fmt: skip

#: Modules of ops whose formulas take long, or draw other numbers; they have other benchmarks.
_LONG = ("matrix.", "collective.", "control.", "random.", "nn.rnn", "nn.ctc", "nn.conv")
#: Modules of ops whose time should be that of their bytes.
_STREAMING = (
    "elementwise.arithmetic", "elementwise.comparison", "elementwise.math", "elementwise.rounding",
    "elementwise.activations", "array.reduce", "array.cumulative", "array.join", "nn.softmax",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float64")
ORDERS = ("contiguous", "transposed")
#: Elements of the largest operand, about.
SIZES = {"small": 1 << 10, "middle": 1 << 16, "large": 1 << 22, "huge": 1 << 26}
_DRAWN_SIZES = ("small", "middle", "large")
DIRECTIONS = ("forward", "gradient")
#: What only :mod:`benchmarks.ops.peers` has: records of floats with other numbers, and every second
#: column of an array.
OTHER_DTYPES = ("float16", "complex64", "int32", "int64", "uint8", "bool")
OTHER_ORDERS = ("strided",)


@dataclass(frozen=True)
class Row:
    """One program: an op table record with a dtype, memory order, size and direction."""

    case: OpCase
    dtype: str
    order: str
    size: str
    direction: str

    @property
    def id(self) -> str:
        """Its name in records."""
        return "/".join((self.case.id, self.dtype, self.order, self.size, self.direction))

    @property
    def op(self) -> str:
        """The op class that the record is of."""
        ops = self.case.ops
        return ops[0].__name__ if ops else self.case.id.partition("_")[0]

    def rank(self, seed: int) -> str:
        """Its place in an order that a seed shuffles, the same in every process."""
        return hashlib.sha256(f"{seed} {self.id}".encode()).hexdigest()


def all_rows() -> list[Row]:
    """All rows, in the order of the op table."""
    return [row for case in op_table.load() if _is_a_users(case) for row in _rows_of(case)]


def _is_a_users(case: OpCase) -> bool:
    modules = {op.__module__.rpartition(".")[2] for op in case.ops}
    return not any(m.startswith(LOWERED) for m in modules)


def _rows_of(case: OpCase, others: bool = False) -> Iterator[Row]:
    floats = any(_draws_floats(case))
    dtypes = (DTYPES + OTHER_DTYPES * others) if floats else ("as drawn",)
    directions = DIRECTIONS if case.grad and floats else DIRECTIONS[:1]
    orders = ORDERS + OTHER_ORDERS * others
    for choice in itertools.product(dtypes, orders, _DRAWN_SIZES, directions):
        if choice[0] not in OTHER_DTYPES[1:] or choice[3] == "forward":
            yield Row(case, *choice)


def _draws_floats(case: OpCase) -> Iterator[bool]:
    for array in drawn(case):
        yield array.dtype.kind == "f" and array.ndim > 0


def drawn(case: OpCase) -> list[Any]:
    """The record's own arrays."""
    rng = np.random.default_rng(zlib.crc32(case.id.encode()))
    return [np.asarray(draw(rng)) for draw in case.draws]


def fixed_rows() -> list[Row]:
    """The fixed selection: of each op class in turn another row, until there are 600."""
    return _in_turn(all_rows(), seed=0, count=FIXED_COUNT)


def rotated_rows(seed: int, count: int) -> list[Row]:
    """``count`` rows that are not in the fixed selection, others for each seed."""
    fixed = {row.id for row in fixed_rows()}
    return _in_turn([r for r in all_rows() if r.id not in fixed], seed, count)


def large_rows(
    seed: int, count: int, dtypes: Sequence[str] = ("float32",),
    orders: Sequence[str] = ORDERS, size: str = "large",
) -> list[Row]:  # fmt: skip
    """``count`` rows of one size with a formula, in these dtypes or as a record has them."""
    cases = [c for c in op_table.load() if _is_a_users(c) and c.expected and not c.stateful]
    rows = [r for c in cases for r in _rows_of(c, others=True)]
    wanted = [r for r in rows if r.size == size and r.dtype in (*dtypes, "as drawn")]
    wanted = [r for r in wanted if r.order in orders]
    found = [r for r in wanted if not any(m.startswith(_LONG) for m in _modules(r))]
    return _in_turn(found, seed, count)


def huge_rows(seed: int, count: int) -> list[Row]:
    """``count`` rows of 256 MB in float32, of ops that read and write each number once or so."""
    found = [r for r in large_rows(seed, 1 << 30) if r.dtype == "float32" and _streams(r)]
    return [replace(r, size="huge") for r in _in_turn(found, seed, count)]


def _streams(row: Row) -> bool:
    modules = _modules(row)
    return bool(modules) and all(m.startswith(_STREAMING) for m in modules)


def _modules(row: Row) -> set[str]:
    return {op.__module__.partition("symdnn.ops.")[2] for op in row.case.ops}


def row_named(name: str) -> Row:
    """The row with this id; KeyError where there is none."""
    return {row.id: row for row in all_rows()}[name]


def _in_turn(rows: list[Row], seed: int, count: int) -> list[Row]:
    by_op: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda r: r.rank(seed)):
        by_op[row.op].append(row)
    rounds = itertools.zip_longest(*by_op.values())
    return [row for turn in rounds for row in turn if row is not None][:count]
