"""Tiles of a product as LLVM IR: rows times vectors of columns, kept in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["GIVEN", "Shape", "Source", "Tile"]

#: Terms that are multiplied in one round of the loop.
_UNROLL = 4
#: How many terms before it is read a row is fetched that lies in a matrix.
_AHEAD = 8


@dataclass(frozen=True)
class Shape:
    """A tile of results: ``rows`` times ``vectors`` of ``width`` float32, all in registers."""

    width: int
    rows: int
    vectors: int

    @property
    def columns(self) -> int:
        """Columns of a tile, and of a panel."""
        return self.width * self.vectors

    @property
    def heights(self) -> tuple[int, ...]:
        """Rows of the tiles that there is code for, falling; a rest is made of several."""
        found = [self.rows]
        while found[-1] > 1:
            found.append(found[-1] // 2)
        return tuple(found)


class Source:
    """Lines of a function on vectors."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.width, self.lines = shape, shape.width, list[str]()
        self.vector, self.mask = f"<{self.width} x float>", f"<{self.width} x i1>"
        self._count = 0

    def put(self, *lines: str) -> None:
        self.lines += lines

    def new(self, text: str) -> str:
        """A register with this value."""
        self._count += 1
        self.put(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def at(self, pointer: str, *offsets: str | int) -> str:
        """The address some bytes behind another."""
        for o in offsets:
            pointer = self.new(f"getelementptr i8, ptr {pointer}, i64 {o}") if o else pointer
        return pointer

    def load(self, pointer: str, mask: str = "") -> str:
        """A vector; 0 in lanes that the mask has not."""
        if not mask:
            return self.new(f"load {self.vector}, ptr {pointer}, align 4")
        given = f"ptr {pointer}, i32 4, {self.mask} {mask}, {self.vector} zeroinitializer"
        return self.new(f"call {self.vector} @llvm.masked.load.v{self.width}f32.p0({given})")

    def store(self, value: str, pointer: str, mask: str = "") -> None:
        if not mask:
            self.put(f"store {self.vector} {value}, ptr {pointer}, align 4")
            return
        given = f"{self.vector} {value}, ptr {pointer}, i32 4, {self.mask} {mask}"
        self.put(f"call void @llvm.masked.store.v{self.width}f32.p0({given})")

    def spread(self, number: str) -> str:
        """A float in every lane."""
        one = self.new(f"insertelement {self.vector} poison, float {number}, i64 0")
        zeros = f"<{self.width} x i32> zeroinitializer"
        return self.new(f"shufflevector {self.vector} {one}, {self.vector} poison, {zeros}")

    def lanes_below(self, count: str, first: int = 0) -> str:
        """The mask of lanes whose number, counted from ``first``, is below ``count``."""
        lanes, zeros = f"<{self.width} x i64>", f"<{self.width} x i32> zeroinitializer"
        one = self.new(f"insertelement {lanes} poison, i64 {count}, i64 0")
        every = self.new(f"shufflevector {lanes} {one}, {lanes} poison, {zeros}")
        numbers = ", ".join(f"i64 {first + i}" for i in range(self.width))
        return self.new(f"icmp slt {lanes} <{numbers}>, {every}")

    def merge(self, name: str, arms: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
        """Begin a block with the vectors that come from each block before it."""
        self.put(f"{name}:")
        found = []
        for i in range(len(arms[0][1])):
            values = ", ".join(f"[{given[i]}, %{block}]" for block, given in arms)
            found.append(self.new(f"phi {self.vector} {values}"))
        return found


# -- a tile ---------------------------------------------------------------------------------------

GIVEN = (
    "ptr %a, i64 %a_row, i64 %a_term, ptr %b, i64 %b_term, ptr %c, i64 %c_row, ptr %from, "
    "i64 %from_row, i64 %cols, i64 %k, i64 %relu"
)


class Tile(Source):
    """The function of one tile: of its columns ``%cols`` are there.

    One that ``keeps`` also writes what it reads of ``b`` to a panel at ``%keep``.
    """

    def __init__(self, shape: Shape, rows: int, vectors: int, keeps: bool = False) -> None:
        super().__init__(shape)
        self.rows, self.vectors, self.keeps = rows, vectors, keeps

    @property
    def name(self) -> str:
        """What the function is called."""
        return f"gemm_{'keep' if self.keeps else 'tile'}_{self.rows}x{self.vectors}"

    def source(self) -> list[str]:
        """All lines."""
        given = f"{GIVEN}, ptr %keep" if self.keeps else GIVEN
        self.put(f"define internal void @{self.name}({given}) #0 {{", "entry:")
        if self.keeps:
            self.put(f"%b_ahead = mul i64 %b_term, {_AHEAD}")
        self.masks = [""] * (self.vectors - 1)
        self.masks.append(self.lanes_below("%cols", (self.vectors - 1) * self.width))
        self._steps()
        self._fetch()
        sums = self._after(self._sums())
        self._store(sums)
        self.put("ret void", "}")
        return self.lines

    def _steps(self) -> None:
        """How far the second and third of three rows are from the first."""
        for name in ("a", "c", "from"):
            for times in (2, 3):
                step = self._hidden(self.new(f"mul i64 %{name}_row, {times}"), "i64")
                self.put(f"%{name}_row{times} = add i64 {step}, 0")

    def _fetch(self) -> None:
        """Fetch what is added meanwhile: sums so far may be far away."""
        self.put("%adds = icmp ne ptr %from, null", "br i1 %adds, label %fetch, label %begin")
        self.put("fetch:")
        for i in range(self.rows):
            row = self._row("from", "%from", i)
            for j in range(self.vectors):
                place = self.at(row, 4 * self.width * j)
                self.put(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 3, i32 1)")
        self.put("br label %begin", "begin:")

    def _hidden(self, x: str, kind: str = "ptr") -> str:
        """A number of which LLVM does not know where it comes from.

        It would make each address from the one before it, or keep many in memory.
        """
        return self.new(f'call {kind} asm "", "=r,0"({kind} {x})')

    def _row(self, name: str, base: str, i: int) -> str:
        """Where row ``i`` begins: behind one of every third row, for which there are registers."""
        for _ in range(i // 3):
            base = self.at(base, f"%{name}_row3")
        return self.at(base, (0, f"%{name}_row", f"%{name}_row2")[i % 3])

    def _sums(self) -> list[str]:
        """The loops over terms: rounds of several, then one by one."""
        zeros = ["zeroinitializer"] * (self.rows * self.vectors)
        self.put(f"%rounds = sdiv i64 %k, {_UNROLL}", f"%left = srem i64 %k, {_UNROLL}")
        first = {"b": "%b", **({"keep": "%keep"} if self.keeps else {})}
        first |= {f"a{i}": self._row("a", "%a", i) for i in range(0, self.rows, 3)}
        self.put("%any_round = icmp sgt i64 %rounds, 0")
        self.put("br i1 %any_round, label %round, label %between")
        sums, places = self._loop("round", "begin", zeros, "%rounds", first, _UNROLL)
        sums = self.merge("between", [("begin", zeros), ("round_end", sums)])
        for n, at in places.items():
            places[n] = self.new(f"phi ptr [{first[n]}, %begin], [{at}, %round_end]")
        self.put("%any_left = icmp sgt i64 %left, 0")
        self.put("br i1 %any_left, label %one, label %summed")
        more, _ = self._loop("one", "between", sums, "%left", places, 1)
        return self.merge("summed", [("between", sums), ("one_end", more)])

    def _loop(
        self, name: str, before: str, sums: Sequence[str], count: str, first: Mapping[str, str],
        terms: int,
    ) -> tuple[list[str], dict[str, str]]:  # fmt: skip
        """``count`` rounds of so many terms; the sums, and the ``places`` behind them.

        Places are the row of ``b``, every third row of ``a``, and where the row of ``b`` is kept.
        """
        steps = {"b": "%b_term", "keep": str(4 * self.shape.columns)}
        self.put(f"{name}:")
        at = len(self.lines)
        self.put(*[""] * (1 + len(first) + len(sums)))
        now = held = [f"%{name}_sum{i}" for i in range(len(sums))]
        places = {n: f"%{name}_{n}" for n in first}
        for i in range(terms):
            if i and i % 2 == 0:  # hidden again, or there would be more addresses than registers
                places = {n: self._hidden(x) for n, x in places.items()}
            now = self._term(now, places)
            places = {n: self.at(x, steps.get(n, "%a_term")) for n, x in places.items()}
        less = self.new(f"sub i64 %{name}_count, 1")
        more = self.new(f"icmp sgt i64 {less}, 0")
        self.put(f"br i1 {more}, label %{name}, label %{name}_end", f"{name}_end:")
        self.put(f"br label %{'between' if name == 'round' else 'summed'}")
        arms = [(f"%{name}_count", "i64", count, less)]
        arms += [(f"%{name}_{n}", "ptr", first[n], places[n]) for n in first]
        arms += [(h, self.vector, x, y) for h, x, y in zip(held, sums, now, strict=True)]
        for n, (register, kind, enters, returns) in enumerate(arms):
            values = f"[{enters}, %{before}], [{returns}, %{name}]"
            self.lines[at + n] = f"{register} = phi {kind} {values}"
        return now, places

    def _term(self, sums: Sequence[str], places: Mapping[str, str]) -> list[str]:
        """One term: a row of ``b`` times a number of each row of ``a``."""
        b, vectors = places["b"], list[str]()
        for j, mask in enumerate(self.masks):
            step = 4 * self.width * j
            vectors.append(self.load(self.at(b, step), mask))
            if self.keeps:
                ahead = self.at(b, "%b_ahead", step)
                self.put(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 3, i32 1)")
                self.store(vectors[-1], self.at(places["keep"], step))
        made = []
        for i in range(self.rows):
            place = self._row("a", places[f"a{i - i % 3}"], i % 3)
            number = self.new(f"load float, ptr {place}, align 4")
            every = self.spread(number)
            for j, x in enumerate(vectors):
                given = ", ".join(
                    f"{self.vector} {v}" for v in (every, x, sums[i * self.vectors + j])
                )
                name = f"@llvm.fmuladd.v{self.width}f32"
                made.append(self.new(f"call {self.vector} {name}({given})"))
        return made

    def _after(self, sums: Sequence[str]) -> list[str]:
        """What is added, and the activation."""
        self.put("br i1 %adds, label %add, label %whole", "add:")
        added = []
        for i in range(self.rows):
            row = self._row("from", "%from", i)
            for j, mask in enumerate(self.masks):
                x = self.load(self.at(row, 4 * self.width * j), mask)
                added.append(self.new(f"fadd {self.vector} {sums[i * self.vectors + j]}, {x}"))
        self.put("br label %whole")
        sums = self.merge("whole", [("summed", sums), ("add", added)])
        self.put("%cuts = icmp ne i64 %relu, 0", "br i1 %cuts, label %cut, label %end", "cut:")
        kept = []
        for x in sums:  # NaN stays
            low = self.new(f"fcmp olt {self.vector} {x}, zeroinitializer")
            choice = f"{self.mask} {low}, {self.vector} zeroinitializer, {self.vector} {x}"
            kept.append(self.new(f"select {choice}"))
        self.put("br label %end")
        return self.merge("end", [("whole", sums), ("cut", kept)])

    def _store(self, sums: Sequence[str]) -> None:
        for i in range(self.rows):
            row = self._row("c", "%c", i)
            for j, mask in enumerate(self.masks):
                self.store(sums[i * self.vectors + j], self.at(row, 4 * self.width * j), mask)
