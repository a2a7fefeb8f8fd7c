"""Attention as LLVM IR: tasks over blocks of queries, in each a loop over blocks of keys.

A product of a tile has the keys as its rows, and the queries, packed and turned once for all keys,
as its columns: so keys and values are read where they are, whatever their strides between rows. All
products are those of :mod:`symdnn.cpu.gemm.gemm_ir`; 16-bit rows are widened first.

Forward, a task is a block of queries of one head. Backward, it is one head of keys and values with
all queries that share it: their gradients are added up in the order of heads and queries. Where
there are few heads, a task has a part of the queries and sums of its own, which are added up in
order afterwards. Threads take the next task when they have finished one, which changes no result.
Blocks that a window, a causal mask or lengths hide whole are never visited.
"""

from __future__ import annotations

from dataclasses import dataclass

from symdnn.cpu.attention.plan import GRADIENT, RESULT, AttentionPlan, words
from symdnn.cpu.gemm.gemm_ir import shape_of
from symdnn.cpu.ir.builder import WIDTH, FunctionBuilder
from symdnn.cpu.ir.loops_ir import data_of, word

#: Bytes of a number, by dtype.
SIZE = {"float32": 4, "bfloat16": 2, "bool": 1, "int32": 4, "int64": 8}
_WORDS = words()
_SIZES = _WORDS[: _WORDS.index("at_qt")]
_FLOATS = ("scale", "cap")
#: Differences of positions beyond this are as good as infinite; an i32 holds twice as much.
_FAR = 1 << 30
#: Most keys of a tile of which a window hides a part: smaller tiles have less that is hidden.
_BANDED_KEYS = 32


@dataclass(frozen=True)
class Tile:
    """Registers of a tile: its queries from ``first`` of the block on, ``q0`` of all, and sizes.

    Row r is seen by its queries ``r + after`` to ``r + before``; ``hides``: not by all others.
    """

    first: str
    q0: str
    count: str
    rows: str
    after: str = "0"
    before: str = "0"
    hides: str = "0"


class TaskSource(FunctionBuilder):
    """What the tasks of both passes share: words, addresses, ranges of keys, products, masks."""

    def __init__(self, plan: AttentionPlan) -> None:
        super().__init__()
        self.plan, self.wide = plan, plan.dtype != "float32"
        self.columns = shape_of(plan.width).columns
        self.panel = 4 * self.columns

    # -- words ----------------------------------------------------------------------------------

    def begin(self, name: str = "task") -> None:
        """Append the head of the function and all words."""
        self.put(f"define internal void @{name}(ptr %w, ptr %mine, i64 %r) #0 {{", "entry:")
        for at, name in enumerate(_WORDS):
            if name in self.present():
                self.lines += data_of(f"%{name}", at)
            elif name.startswith("at_"):
                self.lines += word(f"%{name}", at)
                self.put(f"%b_{name[3:]} = getelementptr i8, ptr %mine, i64 %{name}")
            elif name in _FLOATS:
                self.lines += word(f"%{name}", at, "float")
            elif name in _SIZES or name.rpartition("_")[0] in self.present():
                self.lines += word(f"%{name}", at)

    def present(self) -> tuple[str, ...]:
        """The array objects that the task reads or writes."""
        plan = self.plan
        found = [n for n in (GRADIENT if plan.backward else RESULT) if n != "dlse" or plan.of_lse]
        given = {
            "mask": plan.mask, "key_lengths": plan.key_lengths,
            "query_lengths": plan.query_lengths, "state": plan.drops, "rate": plan.drops,
        }  # fmt: skip
        return (*found, *(n for n, there in given.items() if there))

    # -- arithmetic -----------------------------------------------------------------------------

    def within(self, x: str | int, high: str | int, low: str | int = 0) -> str:
        """``x`` between two numbers."""
        return self.most(self.least(x, high), low)

    # -- operands -------------------------------------------------------------------------------

    def head_of(self, name: str, batch: str, head: str) -> str:
        """The address of an operand's head."""
        return self.bytes_at(f"%{name}", (batch, f"%{name}_b"), (head, f"%{name}_h"))

    def row_of(self, name: str, base: str, row: str) -> str:
        """The address of a row of a head."""
        return self.bytes_at(base, (row, f"%{name}_t"))

    def per_query(self, name: str, batch: str, head: str, q0: str) -> str:
        """The address of a number of each query, from ``q0`` on."""
        at = self.plus(self.times(self.plus(self.times(batch, "%heads"), head), "%queries"), q0)
        return self.bytes_at(f"%{name}", (at, 4))

    def floats(
        self, name: str, at: str, rows: str, n: str, buffer: str = "%b_wide"
    ) -> tuple[str, str]:
        """(address, stride of rows) of rows in float32: where they are, or widened in a buffer."""
        if not self.wide:
            return at, f"%{name}_t"
        row = self.times(n, 4)
        given = f"ptr {at}, i64 %{name}_t, ptr {buffer}, i64 {row}, i64 {rows}, i64 {n}"
        self.call("widen_rows", given)
        return buffer, row

    def pack(self, rows: tuple[str, str], to: str, count: str, n: str) -> None:
        """Rows as the terms of a product, ``n`` columns of it in panels."""
        at, row = rows
        given = f"ptr {at}, i64 {row}, i64 4, ptr {to}, i64 {self.times(count, self.panel)}"
        self.call("gemm_pack", f"{given}, i64 {self.panel}, i64 {n}, i64 {count}")

    def pack_turned(self, rows: tuple[str, str], to: str, count: str, n: str) -> None:
        """Rows as the columns of a product, with ``n`` terms."""
        at, row = rows
        given = f"ptr {at}, i64 4, i64 {row}, ptr {to}, i64 {self.times(n, self.panel)}"
        self.call("gemm_pack", f"{given}, i64 {self.panel}, i64 {count}, i64 {n}")

    def scale_turned(self, count: str) -> None:
        """The factor of the scores, into the queries; a soft cap wants them as parts of it."""
        panels = self.new(f"udiv i64 {self.plus(count, self.columns - 1)}, {self.columns}")
        size = self.times(self.times(panels, "%features"), self.columns)
        factor = self.new("fdiv float %scale, %cap") if self.plan.capped else "%scale"
        self.call("scale_all", f"ptr %b_qt, i64 {size}, float {factor}")

    def multiply(
        self, a: tuple[str, str, str], panels: tuple[str, str], c: tuple[str, str],
        sizes: tuple[str, str, str], more: str = "null",
    ) -> None:  # fmt: skip
        """``c = a b + more`` for (address, stride of rows, of terms), (address, terms of panels),
        (address, stride of rows) and (m, n, k)."""
        m, n, k = sizes
        b = f"ptr {panels[0]}, i64 {self.times(panels[1], self.panel)}, i64 {self.panel}"
        given = f"ptr {a[0]}, i64 {a[1]}, i64 {a[2]}, {b}, ptr {c[0]}, i64 {c[1]}, ptr {more}"
        self.call("gemm_block", f"{given}, i64 {c[1]}, i64 {m}, i64 {n}, i64 {k}, i64 0")

    # -- what is seen ---------------------------------------------------------------------------

    def lengths(self, batch: str) -> None:
        """Append ``%ends``: numbers of queries and keys of this sequence, and the shift."""
        raw = []
        for name, size, dtype in (
            ("query_lengths", "%queries", self.plan.query_lengths),
            ("key_lengths", "%keys", self.plan.key_lengths),
        ):
            if not dtype:
                raw.append(size)
                continue
            kind, at = f"i{8 * SIZE[dtype]}", self.bytes_at(f"%{name}", (batch, SIZE[dtype]))
            found = self.new(f"load {kind}, ptr {at}")
            raw.append(found if kind == "i64" else self.new(f"sext {kind} {found} to i64"))
        self.end_q, self.end_k = (self.within(x, s) for x, s in zip(raw, ("%queries", "%keys")))
        self.shift = self.times(self.minus(raw[1], raw[0]), "%from_last")

    def span(self, q0: str) -> tuple[str, str, str, str]:
        """(queries of a block, those that may see a key, first key, end of keys)"""
        here = self.least("%block_q", self.minus("%queries", q0))
        count = self.within(self.minus(self.end_q, q0), here)
        low, high = "0", self.end_k
        if self.plan.banded:
            at = self.plus(q0, self.shift)
            low = self.most(self.minus(at, "%left"), 0)
            high = self.least(self.plus(self.plus(at, count), "%right"), self.end_k)
        some = self.new(f"icmp slt i64 {low}, {high}")
        return here, self.new(f"select i1 {some}, i64 {count}, i64 0"), low, high

    def tile(self, q0: str, count: str, j: str, high: str) -> Tile:
        """The tile of keys from ``j`` on, which ends at ``high`` or before."""
        rows = self.least("%block_k", self.minus(high, j))
        if not self.plan.banded:
            return Tile("0", q0, count, rows)
        at = self.minus(self.minus(j, self.shift), q0)
        ends = self.minus(at, "%right"), self.plus(at, "%left")
        after, before = (self.within(x, _FAR, -_FAR) for x in ends)
        some = self.least(rows, _BANDED_KEYS)
        hides = self._hides(after, before, rows, count)
        rows = self.new(f"select i1 {hides}, i64 {some}, i64 {rows}")
        skipped = self.new(f"udiv i64 {self.within(after, self.minus(count, 1))}, {self.columns}")
        first = self.times(skipped, self.columns)
        left = self.minus(self.least(count, self.plus(before, rows)), first)
        after, before = self.minus(after, first), self.minus(before, first)
        hides = self._hides(after, before, rows, left)
        short = [self.new(f"trunc i64 {x} to i32") for x in (after, before)]
        return Tile(first, self.plus(q0, first), left, rows, short[0], short[1], hides)

    def _hides(self, after: str, before: str, rows: str, count: str) -> str:
        """Whether a window hides some of a tile."""
        last = self.new(f"icmp sgt i64 {self.plus(after, rows)}, 1")
        first = self.new(f"icmp slt i64 {before}, {self.minus(count, 1)}")
        return self.new(f"or i1 {last}, {first}")

    def mask_tile(self, batch: str, head: str, tile: Tile, j: str) -> None:
        """Append the mask of a tile, turned: ``%b_mt``."""
        if not self.plan.mask:
            return
        q0, count, rows = tile.q0, tile.count, tile.rows
        at = self.bytes_at(
            self.head_of("mask", batch, head), (q0, "%mask_t"), (j, SIZE[self.plan.mask])
        )
        step = "%mask_t"
        if self.plan.mask != "float32":
            same = self.new("icmp eq i64 %mask_t, 0")
            each = self.new(f"select i1 {same}, i64 1, i64 {count}")
            whole = self.times("%block_k", 4)
            self.call("open_rows", f"ptr {at}, i64 %mask_t, ptr %b_raw, i64 {whole}",
                      f"i64 {each}, i64 {rows}")  # fmt: skip
            at, step = "%b_raw", self.new(f"select i1 {same}, i64 0, i64 {whole}")
        self.turned(at, step, "%b_mt", count, rows)

    def turned(self, at: str, step: str, to: str, count: str, rows: str) -> None:
        """Rows of queries, ``step`` bytes apart, as columns of a tile."""
        given = f"ptr {at}, i64 4, i64 {step}, ptr {to}, i64 {self.panel}, i64 %line"
        self.call("gemm_pack", f"{given}, i64 {count}, i64 {rows}")

    def keep_tile(self, batch: str, head: str, tile: Tile, j: str) -> None:
        """Append the factors of dropout of a tile, turned: ``%b_kt``."""
        if not self.plan.drops:
            return
        q0, count, rows = tile.q0, tile.count, tile.rows
        row = self.plus(self.times(self.plus(self.times(batch, "%heads"), head), "%queries"), q0)
        first, whole = self.plus(self.times(row, "%keys"), j), self.times("%block_k", 4)
        self.call("draw_rows", f"ptr %state, ptr %rate, i64 {first}, i64 %keys, ptr %b_drawn",
                  f"i64 {whole}, i64 {count}, i64 {rows}")  # fmt: skip
        self.turned("%b_drawn", whole, "%b_kt", count, rows)

    def touch(self, name: str, gives: str, tile: Tile, more: str) -> str:
        """Call a pass over the tile, or its twin where the window hides some of it."""
        vectors = self.new(f"udiv i64 {self.plus(tile.count, WIDTH - 1)}, {WIDTH}")
        sizes = f"ptr %b_st, i64 %line, i64 {tile.rows}, i64 {vectors}, ptr %b_mt, ptr %b_kt"
        line, stats = self.times("%block_q", 4), self.bytes_at("%b_stats", (tile.first, 4))
        ends = f"i32 {tile.after}, i32 {tile.before}"
        given = f"{sizes}, float %cap, {ends}, i64 {line}, ptr {stats}{more}"
        if not self.plan.banded:
            return self.call(name, given, gives=gives)
        answers = []

        def either(holds: bool, block: str) -> None:
            twin = f"{name}_banded" if holds else name
            answers.append(f"[{self.call(twin, given, gives=gives)}, %{block}]")

        self.choose(f"{name}_tile", tile.hides, either)
        return "" if gives == "void" else self.new(f"phi {gives} {', '.join(answers)}")
