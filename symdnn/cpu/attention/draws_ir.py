"""The factors of dropout for rows of scores, as LLVM IR: Philox4x32-10 in vectors of blocks.

The words are those of :mod:`symdnn.ops.random.rng_philox`, one for each element.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.attention.plan import MAX_KEYS
from symdnn.cpu.attention.rows_ir import Rows
from symdnn.cpu.elementwise.random_draws_ir import philox_keys, philox_words
from symdnn.cpu.ir.builder import WIDTH
from symdnn.cpu.math.lanes_ir import Lane, Lanes, number

#: Philox blocks of a vector, and words of the buffer: the last vectors may be incomplete.
_BLOCKS = 8
_BUFFER_WORDS = MAX_KEYS + 4 * _BLOCKS + WIDTH


def draw_rows() -> list[str]:
    """``draw_rows(state, rate, first, step, to, to_row, rows, n)``

    Element i of row r is number ``first + r * step + i`` of the draw: 1 / (1 - rate) where it is
    kept, else 0. Up to 15 numbers are written beyond the end of a row.
    """
    b = _Draws()
    given = "ptr %state, ptr %rate, i64 %first, i64 %step, ptr %to, i64 %to_row, i64 %rows, i64 %n"
    with b.function("draw_rows", given):
        b.put(f"%buffer = alloca [{_BUFFER_WORDS} x i32], align 64")
        counter_at = b.bytes_at("%state", 8)
        key, counter = (b.new(f"load i64, ptr {at}") for at in ("%state", counter_at))
        blocks, (lasts, factors) = Lanes(_BLOCKS, "i64", append=b.new), b.limit()
        keys = [
            [blocks.everywhere(k.name, "i64") for k in pair]
            for pair in philox_keys(Lane(Lanes(append=b.new), key, "i64"))
        ]
        with b.each("row", 0, "%rows") as r:
            # The number of a Philox block is computed so that it does not wrap where an element's
            # does.
            element = b.plus("%first", b.times(r, "%step"))
            j = b.plus(b.one("and", counter, 3), element)
            skip = b.one("and", j, 3)
            block = b.plus(b.one("lshr", counter, 2), b.one("lshr", j, 2))
            with b.each("block", 0, b.plus(skip, "%n"), step=4 * _BLOCKS) as w:
                first = blocks.everywhere(b.plus(block, b.one("lshr", w, 2)), "i64")
                places = f"<{', '.join(f'i64 {i}' for i in range(_BLOCKS))}>"
                words = b.in_turn(philox_words(first + Lane(blocks, places, "i64"), keys))
                at = b.element("%buffer", w, 4)
                b.put(f"store <{4 * _BLOCKS} x i32> {words}, ptr {at}, align 4")
            to, source = b.bytes_at("%to", (r, "%to_row")), b.element("%buffer", skip, 4)
            with b.each("some", 0, "%n", step=WIDTH) as i:
                word = b.new(f"load {b.kind('i32')}, ptr {b.element(source, i, 4)}, align 4")
                kept = b.op("icmp ule", "i32", word, lasts)
                pair = f"{b.kind('float')} {factors}, {b.kind('float')} zeroinitializer"
                chosen = b.new(f"select {b.kind('i1')} {kept}, {pair}")
                b.write("float32", chosen, b.element(to, i, 4))
    return b.lines


class _Draws(Rows):
    """Builds the function."""

    def one(self, what: str, a: str, b: int) -> str:
        """An instruction of an integer and a constant."""
        return self.new(f"{what} i64 {a}, {b}")

    def limit(self) -> tuple[str, str]:
        """The last word that is kept, and the factor, in all lanes; 0 if none is kept."""
        rate = self.new("load float, ptr %rate")
        share = self.new(f"fsub double {number(1.0)}, {self.new(f'fpext float {rate} to double')}")
        limit = self.new(f"fmul double {share}, {number(2.0**32)}")
        floor = self.new(f"fptoui double {limit} to i64")
        exact = self.new(f"fcmp oeq double {self.new(f'uitofp i64 {floor} to double')}, {limit}")
        last = self.plus(floor, self.new(f"sext i1 {exact} to i64"))
        inverse = self.new(f"fdiv float 1.0, {self.new(f'fsub float 1.0, {rate}')}")
        none = self.new(f"icmp slt i64 {last}, 0")
        factor = self.new(f"select i1 {none}, float 0.0, float {inverse}")
        return self.splat(self.new(f"trunc i64 {last} to i32"), "i32"), self.splat(factor)

    def in_turn(self, words: Sequence[Lane]) -> str:
        """The words of the Philox blocks, one block after the other."""
        one, two = f"<{_BLOCKS} x i32>", f"<{2 * _BLOCKS} x i32>"
        both = range(2 * _BLOCKS)
        pairs = [self.shuffled(one, words[k].name, words[k + 1].name, both) for k in (0, 2)]
        turned = [_BLOCKS * w + b for b in range(_BLOCKS) for w in range(4)]
        return self.shuffled(two, pairs[0], pairs[1], turned)
