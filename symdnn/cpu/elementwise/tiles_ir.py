"""LLVM IR of elementwise loops over operands whose neighbours in memory lie along two axes.

The result of ``x + y.T`` has neighbours along the axis of lanes, ``y`` along another one. A loop
along either would read or write one number of a cache line at a time. So the loops go over tiles:
what lies across the lanes is *turned* into a dense buffer, or out of one, by transposing blocks of
8 by 8 numbers in registers, and the loop over a tile's elements is as any other. A copy is turned
without a buffer. An axis of a few numbers is not turned: one iteration has all of them, so that
LLVM sees loads and stores of interleaved vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from symdnn.cpu.ir.loops_ir import (
    ACCESS,
    METADATA,
    MIN_COST_TO_INTERLEAVE,
    THREADS,
    LoopOperand,
    address,
    data_of,
    inner,
    interleaved,
    next_task,
    read,
    word,
)
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.program_ir import LoopBuilder
from symdnn.cpu.ir.scalar_ir import dealt, load_as, part_names, store_as
from symdnn.cpu.ir.turn_ir import TURN_BLOCK, turn_functions
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram

#: A result's axis that is shorter is across the lanes, if the other one is longer.
_MIN_LANES = 16
#: An axis across the lanes of up to so many elements is part of the code.
_MAX_FEW = 4

#: Elements of a tile along the lanes, and of one whose rows are few. Others have a block of rows:
#: what lies along the lanes is read in long runs, and turned cache lines stay for the next tiles.
TILE_LANES, _LANES_OF_FEW, _ROW_BYTES = 512, 2048, 4096
#: Rows and lanes of a tile where an operand is the same in all rows.
_TILE_OF_REPEATED = 64
#: The kind of operands that are dense across the lanes from the last row to the first.
_BACK = "turned back"


@dataclass(frozen=True)
class TilePlan:
    """What the text depends on.

    ``outer`` is the number of axes around tiles. The kinds of operands are those of
    :class:`~symdnn.cpu.ir.loops_ir.LoopOperand` along the lanes, or ``turned``: dense across them,
    ``turned back``: so from the last row to the first, or ``repeated``: the same in each row,
    though with a stride along the lanes.
    ``few`` is the length of the axis across, where it is short and turned operands have no gaps.
    """

    program: ScalarProgram
    outer: int
    reads: tuple[LoopOperand, ...]
    writes: tuple[LoopOperand, ...]
    few: int = 0

    @property
    def named(self) -> list[tuple[str, LoopOperand]]:
        """Operands with their names."""
        found = [(f"x{i}", o) for i, o in enumerate(self.reads)]
        return found + [(f"y{i}", o) for i, o in enumerate(self.writes)]

    @property
    def turned(self) -> list[tuple[str, LoopOperand]]:
        """Operands that are turned."""
        return [(n, o) for n, o in self.named if o.inner in ("turned", _BACK)]

    @property
    def repeated(self) -> list[tuple[str, LoopOperand]]:
        """Operands of which a tile has one row."""
        return [(n, o) for n, o in self.named if o.inner == "repeated"]

    @property
    def is_copy(self) -> bool:
        """Whether one operand is copied, and nothing else happens."""
        kinds = sorted(o.inner for _, o in self.named)
        return not self.program.body and kinds in (["dense", "turned"], ["dense", _BACK])

    @property
    def lanes(self) -> int:
        """The most lanes of a tile; rows of the widest numbers fill the first cache, too."""
        size = max(o.bits // 8 for _, o in self.named)
        most = _TILE_OF_REPEATED if self.repeated else TILE_LANES
        return _LANES_OF_FEW if self.few else min(most, _ROW_BYTES // size)

    @property
    def rows(self) -> int:
        """The most rows of a tile."""
        return self.few or (_TILE_OF_REPEATED if self.repeated else TURN_BLOCK)


def tile_words(plan: TilePlan) -> list[str]:
    """Names of the words of the block.

    A tile has up to :attr:`TilePlan.rows` of ``M`` rows and up to :attr:`TilePlan.lanes` of ``L``
    lanes; there are ``MB`` and ``LB`` tiles along them.
    """
    names = ["threads", "tasks", "one", "L", "M", "LB", "MB"]
    names += [f"n{d}" for d in range(1, plan.outer)]
    for name, _ in plan.named:
        names += [name, f"{name}.l", f"{name}.m", *(f"{name}.o{d}" for d in range(plan.outer))]
    return names


def tiled(
    program: ScalarProgram, sizes: Sequence[int], operands: Sequence[tuple[str, Sequence[int]]]
) -> tuple[TilePlan, dict[str, int]] | None:
    """The plan and its words for operands (dtype, steps in bytes), the reads first; or None.

    There is one where the first result is dense along an axis and a read is dense along another.
    The words are those that depend neither on threads nor on addresses.
    """
    nbytes = [int(numpy_dtype(dtype).itemsize) for dtype, _ in operands]
    reads = _reads(program, [dtype for dtype, _ in operands])
    axes = _two_axes(sizes, operands, reads, nbytes)
    if axes is None:
        return None
    m, lanes = axes

    def kind(k: int) -> str:
        steps = operands[k][1]
        if steps[lanes] == 0 and k < reads:
            return "one"
        if steps[lanes] == nbytes[k]:
            return "dense"
        if steps[m] == 0 and k < reads:
            return "repeated"
        if steps[m] == -nbytes[k] and k < reads:
            return _BACK
        return "turned" if steps[m] == nbytes[k] else inner(steps[lanes], nbytes[k], k >= reads)

    found = [LoopOperand(dtype, kind(k)) for k, (dtype, _) in enumerate(operands)]
    outer = [d for d in range(len(sizes)) if d not in axes]
    packed = all(
        steps[lanes] == sizes[m] * size
        for o, size, (_, steps) in zip(found, nbytes, operands)
        if o.inner == "turned"
    )
    back = any(o.inner == _BACK for o in found)
    few = sizes[m] if packed and not back and sizes[m] <= _MAX_FEW else 0
    plan = TilePlan(program, len(outer), tuple(found[:reads]), tuple(found[reads:]), few)
    words = {"one": 1, "L": sizes[lanes], "M": sizes[m]}
    words |= {"LB": -(-sizes[lanes] // plan.lanes), "MB": -(-sizes[m] // plan.rows)}
    words["tasks"] = words["LB"] * words["MB"] * prod(sizes[d] for d in outer)
    words |= {f"n{i}": sizes[d] for i, d in enumerate(outer)}
    for (name, _), (_, steps) in zip(plan.named, operands, strict=True):
        words |= {f"{name}.l": steps[lanes], f"{name}.m": steps[m]}
        words |= {f"{name}.o{i}": steps[d] for i, d in enumerate(outer)}
    return plan, words


def _reads(program: ScalarProgram, dtypes: Sequence[str]) -> int:
    """How many of the operands are inputs; a complex one is two inputs of the program."""
    parts, reads = 0, 0
    while parts < len(program.inputs):
        parts += len(part_names(dtypes[reads], ""))
        reads += 1
    return reads


def _two_axes(
    sizes: Sequence[int], operands: Sequence[tuple[str, Sequence[int]]], reads: int,
    nbytes: Sequence[int],
) -> tuple[int, int] | None:  # fmt: skip
    """The axis across the lanes, and that of the lanes."""
    written = operands[reads][1]
    own = [d for d, step in enumerate(written) if step == nbytes[reads]]
    if not own:
        return None
    (row, *_) = own
    across = [0] * len(sizes)
    dense = [[abs(step) for step in steps] for _, steps in operands[:reads]]
    for steps, size in zip(dense, nbytes):
        if steps[row] == size or size not in steps:
            continue
        d = steps.index(size)
        # A read without the result's axis repeats its numbers, which is slow if that is short. Of
        # an axis that is not the next one in the result, a number lasts for many rows.
        next_row = sizes[row] * written[row]
        if steps[row] or (sizes[row] < _MIN_LANES and written[d] == next_row):
            across[d] += size
    if not any(across):
        return None
    other = across.index(max(across))
    if sizes[row] < min(sizes[other], _MIN_LANES):
        return row, other
    crossed = any(
        steps[other] == size and steps[row] not in (0, size) for steps, size in zip(dense, nbytes)
    )
    return (other, row) if crossed else None


def tiles_ir(plan: TilePlan) -> str:
    """The module of ``kernel``."""
    tiles = _TileBuilder(plan)
    tiles.loops()
    sizes = sorted({numpy_dtype(o.dtype).itemsize for _, o in plan.turned})
    declared, turns = turn_functions((size, False) for size in sizes if not plan.few)
    lines = [*sorted(declared | tiles.declared), *definitions(tiles.helpers), *turns]
    lines += [*THREADS, *tiles.lines]
    last = interleaved(4) if plan.program.cost >= MIN_COST_TO_INTERLEAVE else METADATA
    return "\n".join([*lines, *next_task("task"), *last]) + "\n"


class _TileBuilder(LoopBuilder):
    """Builds the function of tasks, a tile each; ``%w`` is the block of parameters."""

    def __init__(self, plan: TilePlan) -> None:
        super().__init__()
        self.plan = plan

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        plan, entry = self.plan, list[str]()
        operands = dict(plan.named)
        for i, name in enumerate(tile_words(plan)):
            entry += data_of(f"%{name}.data", i) if name in operands else word(f"%{name}", i)
        for name, o in [] if plan.few else plan.turned:
            count = plan.rows * plan.lanes
            entry.append(f"%buffer_{name} = alloca [{count} x i{o.bits}], align 64")
        for name, o in [] if plan.few else plan.repeated:
            entry.append(f"%buffer_{name} = alloca [{plan.lanes} x i{o.bits}], align 64")
        for name, o in plan.named:
            if o.inner == "strided":
                entry.append(f"%s_{name} = add i64 %{name}.l, 0")
        self.tasks(entry, "task")
        # Neighbouring tiles are neighbours along the rows.
        rest, row = self.new("udiv i64 %r, %MB"), self.new("urem i64 %r, %MB")
        outer, lane = self.new(f"udiv i64 {rest}, %LB"), self.new(f"urem i64 {rest}, %LB")
        m, lanes = self.affine(row, plan.rows), self.affine(lane, plan.lanes)
        high_m = self.least(self.minus("%M", m), str(plan.rows))
        high_l = self.least(self.minus("%L", lanes), str(plan.lanes))
        places = {"m": m, "l": lanes}
        places |= {f"o{d}": i for d, i in enumerate(self.split(outer, "", plan.outer))}
        begun = {name: self.stepped_to(f"%{name}.data", name, places) for name, _ in plan.named}
        if plan.few:
            self._few(begun, high_l)
        elif plan.is_copy:
            self._copy(begun, high_m, high_l)
        else:
            self._tile(begun, high_m, high_l)

    def _copy(self, begun: dict[str, str], high_m: str, high_l: str) -> None:
        (name, o), x, y = self.plan.turned[0], begun["x0"], begun["y0"]
        if name == "x0":
            self.turn(o, (x, "%x0.l"), (y, "%y0.m"), high_l, high_m)
        else:
            self.turn(o, (x, "%x0.m"), (y, "%y0.l"), high_m, high_l)

    def turn(
        self, o: LoopOperand, source: tuple[str, str], target: tuple[str, str], rows: str,
        columns: str,
    ) -> None:  # fmt: skip
        """Write the transpose of dense rows as dense rows; (address, bytes between rows) each."""
        if o.inner == _BACK:  # from the last column on, which is the first in memory
            last = self.minus(columns, 1)
            first = self.times(last, -o.bits // 8)
            source = self.bytes_at(source[0], first), source[1]
            end = self.bytes_at(target[0], (last, target[1]))
            target = end, self.minus(0, target[1])
        given = ", ".join(f"ptr {p}, i64 {step}" for p, step in (source, target))
        self.put(f"call void @turn{o.bits}({given}, i64 {rows}, i64 {columns})")

    def _tile(self, begun: dict[str, str], high_m: str, high_l: str) -> None:
        plan = self.plan
        for name, o in plan.turned:
            if name[0] == "x":
                buffer = f"%buffer_{name}", self._row_bytes(o)
                self.turn(o, (begun[name], f"%{name}.l"), buffer, high_l, high_m)

        for name, o in plan.repeated:
            self._gather(name, o, begun[name], high_l)

        with self.each("row", 0, high_m) as m:
            for name, o in plan.named:
                base, step = begun[name], f"%{name}.m"
                if o.inner == "repeated":
                    base, step = f"%buffer_{name}", "0"
                if o.inner in ("turned", _BACK):
                    base, step = f"%buffer_{name}", self._row_bytes(o)
                offset = self.times(m, step)
                self.put(f"%base_{name} = getelementptr i8, ptr {base}, i64 {offset}")
            self._row(high_l)
        for name, o in plan.turned:
            if name[0] == "y":
                buffer = f"%buffer_{name}", self._row_bytes(o)
                self.turn(o, buffer, (begun[name], f"%{name}.l"), high_m, high_l)

    def _gather(self, name: str, o: LoopOperand, base: str, high: str) -> None:
        """Append the loop that copies a row with a stride into its buffer."""
        with self.each(self.tag(), 0, high, parallel=True) as j:
            place = self.bytes_at(base, (j, f"%{name}.l"))
            value = self.new(f"load i{o.bits}, ptr {place}, align {min(o.bits // 8, 8)}{ACCESS}")
            to = self.new(f"getelementptr i{o.bits}, ptr %buffer_{name}, i64 {j}")
            self.put(f"store i{o.bits} {value}, ptr {to}, align {min(o.bits // 8, 8)}{ACCESS}")

    def _few(self, begun: dict[str, str], high: str) -> None:
        """Append the loop over lanes whose iterations have all rows."""
        plan = self.plan
        bases = {
            (name, m): self.bytes_at(base, (m, f"%{name}.m"))
            for m in range(plan.few)
            for name, base in begun.items()
        }

        def place(name: str, o: LoopOperand, m: int, i: str) -> str:
            if o.inner == "turned":
                at = self.affine(i, plan.few, m)
                return self.new(f"getelementptr i{o.bits}, ptr {begun[name]}, i64 {at}")
            if o.inner == "dense":
                return self.new(f"getelementptr i{o.bits}, ptr {bases[name, m]}, i64 {i}")
            step = self.times(i, f"%{name}.l")
            return self.new(f"getelementptr i8, ptr {bases[name, m]}, i64 {step}")

        with self.each("element", 0, high, parallel=True) as i:
            for m in range(plan.few):
                values = list[str]()
                for name, o in plan.named[: len(plan.reads)]:
                    values += part_names(o.dtype, f"%r{m}_{name}")
                    self.put(*load_as(o.dtype, f"%r{m}_{name}", place(name, o, m, i), ACCESS))
                results = self._results(values)
                for (name, o), value in zip(plan.named[len(plan.reads) :], results, strict=True):
                    self.put(*store_as(o.dtype, value, place(name, o, m, i), ACCESS))

    def _results(self, values: list[str]) -> list[list[str]]:
        """The results of the program: one value of each, or two of a complex one."""
        return dealt([o.dtype for o in self.plan.writes], self.program(self.plan.program, values))

    def _row_bytes(self, o: LoopOperand) -> str:
        """Bytes of a buffer's row."""
        return str(self.plan.lanes * o.bits // 8)

    def _row(self, high: str) -> None:
        """Append the loop over the lanes of a row."""
        plan = self.plan
        dense = [
            (n, LoopOperand(o.dtype, "dense") if o.inner in ("turned", _BACK, "repeated") else o)
            for n, o in plan.named
        ]
        reads, writes = dense[: len(plan.reads)], dense[len(plan.reads) :]
        for name, o in reads:
            if o.inner == "one":
                self.put(*load_as(o.dtype, f"%{name}", f"%base_{name}"))

        with self.each("element", 0, high, parallel=True) as i:
            self.put(f"%i = add nuw nsw i64 {i}, 0")
            for name, o in reads:
                if o.inner != "one":
                    self.put(*read(name, o))
            results = self._results([v for n, o in reads for v in part_names(o.dtype, f"%{n}")])
            for (name, o), value in zip(writes, results, strict=True):
                self.put(*address(name, o), *store_as(o.dtype, value, f"%p_{name}", ACCESS))
