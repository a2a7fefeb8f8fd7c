"""Products with matrices of bfloat16 in a recurrent layer, as LLVM IR.

Two terms of a column are one word of 32 bits, so that a matrix takes half of the memory: a step of
one sequence takes the time in which the matrix of the state is read. A shift and a mask give both
terms in float32, and the state stays in float32. Inputs whose numbers are all of bfloat16 are
multiplied in pairs by the processor's instruction for it, and so are states of several sequences
that may be rounded for it.

The words of a group of 16 columns follow each other, term after term.
"""

from __future__ import annotations

from collections.abc import Callable

from symdnn.cpu.ir.builder import VECTOR, WIDTH, Builder

_WORDS = f"<{WIDTH} x i32>"
_PAIRS = f"<{2 * WIDTH} x bfloat>"
#: Bytes of the words of a group for two terms.
GROUP_TERM = 4 * WIDTH
#: Groups whose sums are in registers at once: the processor begins eight before one is ready.
_ROW_GROUPS = (8, 4, 1)
SPILLED = 2 * WIDTH
_TILE_ROWS, _TILE_GROUPS = (4, 1), (4, 1)
#: The instruction that adds products of two pairs, of a processor that has it.
_DOT = "@llvm.x86.avx512bf16.dpbf16ps.512"
_HALVES = f"<{WIDTH} x bfloat>"
_ROUND = "@llvm.x86.avx512bf16.cvtneps2bf16.512"
DOT_DECLARED = (
    f"declare {VECTOR} {_DOT}({VECTOR}, {_PAIRS}, {_PAIRS})",
    f"declare {_HALVES} {_ROUND}({VECTOR})",
    f"declare i32 @llvm.vector.reduce.or.v{WIDTH}i32({_WORDS})",
)


def functions(inputs: bool) -> list[str]:
    """``narrow_pack``, ``narrow_row`` and, of ``inputs``, ``narrow_pairs``, ``narrow_rounded`` and
    ``narrow_product``.

    ``narrow_pairs`` converts numbers, and says whether they are all of bfloat16; ``narrow_rounded``
    rounds them, and writes up to :data:`SPILLED` bytes behind the last.
    """
    made = [*_Pack().source(), *_Row().source()]
    if inputs:
        made += [*_Pairs().source(), *_Rounded().source(), *_Product().source()]
    return made


class _Narrow(Builder):
    """A builder with loops over parts of a count, and over words."""

    def in_parts(
        self, name: str, count: str, sizes: tuple[int, ...], body: Callable[[int, str], None]
    ) -> None:
        """Append ``body(size, first)`` for parts of each of these sizes, the last of which is 1."""
        done = "0"
        for size in sizes:
            left = self.minus(count, done)
            parts = self.new(f"sdiv i64 {left}, {size}")
            begin, label = done, f"{name}{size}"

            any_part = self.new(f"icmp sgt i64 {parts}, 0")
            with self.when(f"any_{label}", any_part), self.each(label, 0, parts) as i:
                at = self.new(f"add i64 {begin}, {self.new(f'mul i64 {i}, {size}')}")
                body(size, at)
            done = self.new(f"add i64 {begin}, {self.new(f'mul i64 {parts}, {size}')}")

    def words(self, pointer: str) -> str:
        """Load the words of a group for two terms."""
        return self.new(f"load {_WORDS}, ptr {pointer}, align 4")

    def floats(self, words: str) -> str:
        """The same bits as float32."""
        return self.new(f"bitcast {_WORDS} {words} to {VECTOR}")

    def everywhere(self, pointer: str) -> str:
        """Load a word, to all lanes."""
        return self._everywhere(_WORDS, "i32", self.new(f"load i32, ptr {pointer}, align 4"))


def _all(value: int) -> str:
    return f"<{', '.join([f'i32 {value}'] * WIDTH)}>"


class _Pack(_Narrow):
    """Two terms of some columns, whose rows are ``%row`` bytes apart, to words."""

    def source(self) -> list[str]:
        """The lines of the function."""
        given = "ptr %source, i64 %row, ptr %to, i64 %lanes, i64 %pairs"
        with self.function("narrow_pack", given), self.each("lane", 0, "%lanes") as i:
            line, mine = self.bytes_at("%source", (i, "%row")), self.bytes_at("%to", (i, 4))
            with self.each("pair", 0, "%pairs") as t:
                both = self.new(f"load i64, ptr {self.bytes_at(line, (t, 8))}, align 4")
                low, high = (
                    self.new(f"trunc i64 {self.new(f'lshr i64 {both}, {n}')} to i32")
                    for n in (16, 32)
                )
                low, high = self.new(f"and i32 {low}, 65535"), self.new(f"and i32 {high}, -65536")
                packed, to = self.new(f"or i32 {low}, {high}"), self.bytes_at(mine, (t, GROUP_TERM))
                self.put(f"store i32 {packed}, ptr {to}, align 4")
        return self.lines


class _Row(_Narrow):
    """A row of float32 times groups of columns, added to the row ``%from``."""

    def source(self) -> list[str]:
        """The lines of the function."""
        given = "ptr %h, ptr %b, ptr %c, ptr %from, i64 %groups, i64 %pairs"
        with self.function("narrow_row", given):
            self.panel = self.times("%pairs", GROUP_TERM)
            self.in_parts("row", "%groups", _ROW_GROUPS, self._groups)
        return self.lines

    def _groups(self, count: int, first: str) -> None:
        starts, before = list[str](), list[str]()
        for k in range(count):
            group = self.plus(first, k)
            starts.append(self.bytes_at("%b", (group, self.panel)))
            before.append(self.load(self.bytes_at("%from", (group, GROUP_TERM))))

        def term(t: str, sums: list[str]) -> list[str]:
            at = self.bytes_at("%h", (t, 8))
            low, high = (self.broadcast(self.bytes_at(at, n)) for n in (0, 4))
            step, made = self.times(t, GROUP_TERM), []
            for start, total in zip(starts, sums):
                words = self.words(self.bytes_at(start, step))
                first_ = self.floats(self.new(f"shl {_WORDS} {words}, {_all(16)}"))
                second = self.floats(self.new(f"and {_WORDS} {words}, {_all(-65536)}"))
                total = self.multiply_add(first_, low, total)
                made.append(self.multiply_add(second, high, total))
            return made

        for k, total in enumerate(self.loop(f"term{count}", "%pairs", term, before)):
            group = self.plus(first, k)
            self.store(total, self.bytes_at("%c", (group, GROUP_TERM)))


class _Pairs(_Narrow):
    """Numbers to pairs of bfloat16, cut off; the result says whether nothing was."""

    def source(self) -> list[str]:
        """The lines of the function."""
        self.put("define internal i1 @narrow_pairs(ptr %x, ptr %to, i64 %count) #0 {", "entry:")
        self.put(f"%seen = alloca {_WORDS}, align 64")
        self.put(f"store {_WORDS} zeroinitializer, ptr %seen, align 64")
        self.in_parts("numbers", "%count", (WIDTH, 1), self._numbers)
        every = self.new(f"load {_WORDS}, ptr %seen, align 64")
        bits = self.new(f"call i32 @llvm.vector.reduce.or.v{WIDTH}i32({_WORDS} {every})")
        self.put(f"ret i1 {self.new(f'icmp eq i32 {bits}, 0')}", "}")
        return self.lines

    def _numbers(self, count: int, first: str) -> None:
        kind, half = (_WORDS, f"<{WIDTH} x i16>") if count > 1 else ("i32", "i16")
        shift, low = (_all(16), _all(65535)) if count > 1 else ("16", "65535")
        bits = self.new(f"load {kind}, ptr {self.bytes_at('%x', (first, 4))}, align 4")
        cut = self.new(f"trunc {kind} {self.new(f'lshr {kind} {bits}, {shift}')} to {half}")
        self.put(f"store {half} {cut}, ptr {self.bytes_at('%to', (first, 2))}, align 2")
        seen = self.new(f"load {kind}, ptr %seen, align 4")
        lost = self.new(f"and {kind} {bits}, {low}")
        self.put(f"store {kind} {self.new(f'or {kind} {seen}, {lost}')}, ptr %seen, align 4")


class _Rounded(_Narrow):
    """Numbers to the nearest of bfloat16."""

    def source(self) -> list[str]:
        """The lines of the function."""
        with self.function("narrow_rounded", "ptr %x, ptr %to, i64 %count"):
            parts = self.new(f"sdiv i64 {self.plus('%count', WIDTH - 1)}, {WIDTH}")
            with self.each("part", 0, parts) as i:
                inside = self.lanes_below(self.times(i, WIDTH), "%count")
                x = self.load(self.bytes_at("%x", (i, 4 * WIDTH)), inside)
                halves = self.new(f"call {_HALVES} {_ROUND}({VECTOR} {x})")
                to = self.bytes_at("%to", (i, SPILLED))
                self.put(f"store {_HALVES} {halves}, ptr {to}, align 2")
        return self.lines


class _Product(_Narrow):
    """Rows of pairs times groups of columns, added to rows that begin ``%from_row`` bytes apart."""

    def source(self) -> list[str]:
        """The lines of the function."""
        given = ("ptr %x, ptr %b, ptr %c, i64 %c_row, ptr %from, i64 %from_row, "
                 "i64 %rows, i64 %groups, i64 %pairs")  # fmt: skip

        def groups(count: int, group: str) -> None:
            def rows(height: int, row: str) -> None:
                self._tile(height, row, count, group)

            self.in_parts(f"groups{count}_rows", "%rows", _TILE_ROWS, rows)

        with self.function("narrow_product", given):
            self.panel = self.times("%pairs", GROUP_TERM)
            self.x_row = self.times("%pairs", 4)
            self.in_parts("groups", "%groups", _TILE_GROUPS, groups)
        return self.lines

    def _tile(self, rows: int, row: str, groups: int, group: str) -> None:
        numbers = [self.plus(group, k) for k in range(groups)]
        starts = [self.bytes_at("%b", (n, self.panel)) for n in numbers]
        lines = [self.plus(row, i) for i in range(rows)]
        sources = [self.bytes_at("%x", (i, self.x_row)) for i in lines]
        rows_before = [self.bytes_at("%from", (i, "%from_row")) for i in lines]
        before = [
            self.load(self.bytes_at(r, (n, GROUP_TERM))) for r in rows_before for n in numbers
        ]

        def term(t: str, sums: list[str]) -> list[str]:
            step, at = (self.times(t, n) for n in (GROUP_TERM, 4))
            columns = [self._pair(self.words(self.bytes_at(s, step))) for s in starts]
            made = []
            for i, source in enumerate(sources):
                x = self._pair(self.everywhere(self.bytes_at(source, at)))
                for k, b in enumerate(columns):
                    given = f"{VECTOR} {sums[i * groups + k]}, {_PAIRS} {x}, {_PAIRS} {b}"
                    made.append(self.new(f"call {VECTOR} {_DOT}({given})"))
            return made

        found = self.loop(f"term{rows}x{groups}", "%pairs", term, before)
        for i, line in enumerate(lines):
            c = self.bytes_at("%c", (line, "%c_row"))
            for k, n in enumerate(numbers):
                self.store(found[i * groups + k], self.bytes_at(c, (n, GROUP_TERM)))

    def _pair(self, words: str) -> str:
        return self.new(f"bitcast {_WORDS} {words} to {_PAIRS}")
