"""What happens to a tile of scores between its products, as LLVM IR.

A tile has a row for each key and a column for each query: the lanes of a vector are 16 queries, and
the sums and maxima of a softmax go down the rows, lane by lane. ``columns`` is a number of vectors.

``soften`` makes ``exp(score - maximum)`` of scores, with the running maximum and sum of each query
(Milakov and Gimelshein 2018), and says whether a maximum has changed. ``slope`` makes probabilities
of the scores, and the gradients of the scores from those of the probabilities (Dao et al. 2022).
Each has a twin for tiles of which a window or a causal mask hides a part: query i sees the key of
row r where ``r + after <= i <= r + before``.
"""

from __future__ import annotations

from collections.abc import Callable

from symdnn.cpu.attention.plan import AttentionPlan
from symdnn.cpu.ir.builder import MASK, VECTOR, WIDTH, Builder, splat
from symdnn.cpu.ir.vector_activations_ir import exponential, tanh

_INTS = f"<{WIDTH} x i32>"
_LOWEST = splat(float("-inf"))
_VECTOR_BYTES = 4 * WIDTH


def passes(plan: AttentionPlan) -> tuple[list[str], set[str]]:
    """The functions of a plan, and the declarations that they need."""
    lines, declared = list[str](), set[str]()
    for banded in (False, True)[: 1 + plan.banded]:
        builder = _Slope(plan, banded) if plan.backward else _Soften(plan, banded)
        lines += builder.source()
        declared |= builder.declared
    return lines, declared


class _Pass(Builder):
    """A function of a tile, a loop over vectors of columns and in it one over rows."""

    name, result, more = "", "void", ""

    def __init__(self, plan: AttentionPlan, banded: bool) -> None:
        super().__init__()
        self.plan, self.banded = plan, banded

    def source(self) -> list[str]:
        """The lines of the function."""
        name = f"{self.name}_banded" if self.banded else self.name
        tile = "ptr %tile, i64 %line, i64 %rows, i64 %columns, ptr %mask, ptr %keeps, float %cap"
        given = f"{tile}, i32 %after, i32 %before, i64 %stats_line, ptr %stats{self.more}"
        self.put(f"define internal {self.result} @{name}({given}) #0 {{", "entry:")
        if self.plan.capped:
            self.put(f"%caps = {self._splatted('%cap')}")
        self.body()
        self.put("}")
        return self.lines

    def body(self) -> None:
        """Append the loops and the return."""
        raise NotImplementedError

    def _splatted(self, number: str) -> str:
        """Text of a splat, for a register with a name of its own."""
        begun = self.new(f"insertelement {VECTOR} poison, float {number}, i64 0")
        return f"shufflevector {VECTOR} {begun}, {VECTOR} poison, <{WIDTH} x i32> zeroinitializer"

    def splat_int(self, number: str) -> str:
        """An i32 in all lanes."""
        return self._everywhere(_INTS, "i32", number)

    def column(self, c: str) -> str:
        """The offset of a vector of columns, in bytes; also its lanes' numbers if banded."""
        if self.banded:
            first = self.new(f"mul i32 {self.new(f'trunc i64 {c} to i32')}, {WIDTH}")
            steps = ", ".join(f"i32 {i}" for i in range(WIDTH))
            self.lanes = self.new(f"add {_INTS} {self.splat_int(first)}, <{steps}>")
        return self.times(c, _VECTOR_BYTES)

    def cell(self, row: str, column: str) -> str:
        """The offset of a vector of the tile."""
        return self.new(f"add i64 {self.new(f'mul i64 {row}, %line')}, {column}")

    def statistic(self, index: int, column: str) -> str:
        """The address of a vector of statistics of the queries."""
        return self.bytes_at("%stats", ("%stats_line", index), column)

    def rows(
        self, name: str, body: Callable[[str, list[str]], list[str]], carried: tuple[str, ...]
    ) -> list[str]:
        """A loop over rows."""
        return self.counted(name, 0, "%rows", body, carried, VECTOR)

    def seen(self, score: str, row: str, cell: str) -> tuple[str, str]:
        """(score with -inf where it is hidden, the slope of the soft cap or "")"""
        slope = ""
        if self.plan.capped:
            bounded = tanh(self, score, self.plan.width)
            score = self.new(f"fmul {VECTOR} {bounded}, %caps")
            if self.plan.backward:
                square = self.new(f"fmul {VECTOR} {bounded}, {bounded}")
                slope = self.sub(splat(1.0), square)
        if self.plan.mask:
            added = self.load(self.bytes_at("%mask", cell))
            hidden = f"fcmp oeq {VECTOR} {added}, {_LOWEST}"
            score = self.pick(hidden, _LOWEST, self.add(score, added))
        if self.banded:
            number = self.new(f"trunc i64 {row} to i32")
            for compare, end in (("slt", "%after"), ("sgt", "%before")):
                last = self.splat_int(self.new(f"add i32 {number}, {end}"))
                score = self.pick(f"icmp {compare} {_INTS} {self.lanes}, {last}", _LOWEST, score)
        return score, slope

    def pick(self, condition: str, yes: str, no: str) -> str:
        """Lanes of one vector where the condition holds, else of the other."""
        return self.new(f"select {MASK} {self.new(condition)}, {VECTOR} {yes}, {VECTOR} {no}")

    @property
    def changes(self) -> bool:
        """Whether scores are more than products."""
        return self.banded or self.plan.capped or bool(self.plan.mask)


class _Soften(_Pass):
    """``stats`` are maxima, sums and the factors by which earlier results shrink."""

    name, result = "soften", "i1"

    def body(self) -> None:
        """The maximum of each column, then its exponentials and their sum."""
        low = f"<{', '.join(['i1 0'] * WIDTH)}>"
        (changed,) = self.counted("column", 0, "%columns", self._column, (low,), MASK)
        bits = self.new(f"bitcast {MASK} {changed} to i{WIDTH}")
        self.put(f"%any = icmp ne i{WIDTH} {bits}, 0", "ret i1 %any")

    def _column(self, c: str, values: list[str]) -> list[str]:
        column = self.column(c)
        (top,) = self.rows("look", lambda r, held: [self._look(r, column, held[0])], (_LOWEST,))
        at = [self.statistic(i, column) for i in range(3)]
        before = self.load(at[0])
        higher = self.new(f"fcmp ogt {VECTOR} {top}, {before}")
        now = self.new(f"select {MASK} {higher}, {VECTOR} {top}, {VECTOR} {before}")
        # Without a score yet: differences of infinities would be NaN.
        base = self.pick(f"fcmp oeq {VECTOR} {now}, {_LOWEST}", splat(0.0), now)
        shrink = exponential(self, self.sub(before, base), positive=False)
        (total,) = self.rows("raise", lambda r, held: [self._raise(r, column, base, held[0])],
                             (splat(0.0),))  # fmt: skip
        total = self.multiply_add(self.load(at[1]), shrink, total)
        for value, place in zip((now, total, shrink), at):
            self.store(value, place)
        return [self.new(f"or {MASK} {values[0]}, {higher}")]

    def _look(self, row: str, column: str, top: str) -> str:
        cell = self.cell(row, column)
        place = self.bytes_at("%tile", cell)
        score, _ = self.seen(self.load(place), row, cell)
        if self.changes:
            self.store(score, place)
        return self.pick(f"fcmp ogt {VECTOR} {score}, {top}", score, top)

    def _raise(self, row: str, column: str, base: str, total: str) -> str:
        cell = self.cell(row, column)
        place = self.bytes_at("%tile", cell)
        p = exponential(self, self.sub(self.load(place), base), positive=False)
        kept = p
        if self.plan.drops:
            kept = self.new(f"fmul {VECTOR} {p}, {self.load(self.bytes_at('%keeps', cell))}")
        self.store(kept, place)
        return self.add(total, p)


class _Slope(_Pass):
    """``stats`` are log-sum-exps and sums of result times cotangent; ``grads`` another tile."""

    name, more = "slope", ", ptr %grads, float %scale"

    def body(self) -> None:
        """Probabilities and gradients of each column."""
        self.put(f"%scales = {self._splatted('%scale')}")
        with self.each("column", 0, "%columns") as c:
            column = self.column(c)
            lse, total = (self.load(self.statistic(i, column)) for i in range(2))
            with self.each("row", 0, "%rows") as r:
                self._row(r, column, lse, total)
        self.put("ret void")

    def _row(self, row: str, column: str, lse: str, total: str) -> None:
        cell = self.cell(row, column)
        place, to = self.bytes_at("%tile", cell), self.bytes_at("%grads", cell)
        score, slope = self.seen(self.load(place), row, cell)
        p, grad, kept = exponential(self, self.sub(score, lse)), self.load(to), ""
        if self.plan.drops:
            kept = self.load(self.bytes_at("%keeps", cell))
            grad = self.new(f"fmul {VECTOR} {grad}, {kept}")
        found = self.new(f"fmul {VECTOR} {p}, {self.sub(grad, total)}")
        if slope:
            found = self.new(f"fmul {VECTOR} {found}, {slope}")
        self.store(self.new(f"fmul {VECTOR} {found}, %scales"), to)
        self.store(self.new(f"fmul {VECTOR} {p}, {kept}") if kept else p, place)
