"""Tiles of a GEMM as LLVM IR: rows times vectors of columns, with all sums in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.builder import Builder

#: Panels that a tile of one row reads at once: the sums of one take longer than reading it does.
ROW_PANELS = 4

#: Terms of one iteration of the unrolled loop.
_UNROLL_TERMS = 4
#: How many terms ahead a row of an unpacked matrix is prefetched.
_PREFETCH_TERMS = 8
#: The vectors of AVX-512, whose masked stores take no longer than others. Those of AVX2 take some
#: 20 instructions inside of a processor (Zen 3), so whole vectors are stored without a mask.
WIDTH_WITH_MASKS = 16


@dataclass(frozen=True)
class TileShape:
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
        """Rows of the tiles that there is code for, in decreasing order; a rest takes several."""
        found = [self.rows]
        while found[-1] > 1:
            found.append(found[-1] // 2)
        return tuple(found)


class TileBuilder(Builder):
    """A builder of lines of a function on vectors of the shape's width."""

    def __init__(self, shape: TileShape) -> None:
        super().__init__(shape.width)
        self.shape = shape

    def lanes_from(self, count: str, first: int = 0) -> str:
        """The mask of lanes i with ``first + i < count``."""
        lanes, zeros = f"<{self.width} x i64>", f"<{self.width} x i32> zeroinitializer"
        one = self.new(f"insertelement {lanes} poison, i64 {count}, i64 0")
        every = self.new(f"shufflevector {lanes} {one}, {lanes} poison, {zeros}")
        numbers = ", ".join(f"i64 {first + i}" for i in range(self.width))
        return self.new(f"icmp slt {lanes} <{numbers}>, {every}")

    def merge(self, name: str, arms: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
        """Begin a basic block with phis of the vectors from each of its predecessors."""
        self.put(f"{name}:")
        found = []
        for i in range(len(arms[0][1])):
            values = ", ".join(f"[{given[i]}, %{block}]" for block, given in arms)
            found.append(self.new(f"phi {self.vector} {values}"))
        return found


# -- a tile ---------------------------------------------------------------------------------------

TILE_PARAMETERS = (
    "ptr %a, i64 %a_row, i64 %a_term, ptr %b, i64 %b_term, ptr %c, i64 %c_row, ptr %from, "
    "i64 %from_row, i64 %cols, i64 %k, i64 %relu"
)


class Tile(TileBuilder):
    """The function of one tile, of whose columns the first ``%cols`` exist.

    With ``keeps`` it also packs the rows of ``b`` into a panel at ``%keep``. One with more vectors
    than a panel has, ``gemm_row``, reads whole panels that are ``%b_panel`` bytes apart.
    """

    def __init__(self, shape: TileShape, rows: int, vectors: int, keeps: bool = False) -> None:
        super().__init__(shape)
        self.rows, self.vectors, self.keeps = rows, vectors, keeps
        self.of_panels = vectors > shape.vectors

    @property
    def name(self) -> str:
        """The function's name."""
        if self.of_panels:
            return "gemm_row"
        return f"gemm_{'keep' if self.keeps else 'tile'}_{self.rows}x{self.vectors}"

    def source(self) -> list[str]:
        """The lines of the function."""
        more = ", ptr %keep" if self.keeps else ", i64 %b_panel" if self.of_panels else ""
        parameters = TILE_PARAMETERS + more
        self.put(f"define internal void @{self.name}({parameters}) #0 {{", "entry:")
        if self.keeps:
            self.put(f"%b_ahead = mul i64 %b_term, {_PREFETCH_TERMS}")
        self.masks = [""] * self.vectors
        if self.of_panels:
            for n in range(self.vectors // self.shape.vectors):
                self.put(f"%b_panel{n} = mul i64 %b_panel, {n}")
        else:
            self.masks[-1] = self.lanes_from("%cols", (self.vectors - 1) * self.width)
        self._steps()
        self._fetch()
        sums = self._after(self._sums())
        if self.width < WIDTH_WITH_MASKS and not self.of_panels:
            self.put(f"%full = icmp sge i64 %cols, {self.vectors * self.width}")
            self.put("br i1 %full, label %whole_row, label %part_row", "whole_row:")
            self._store(sums, [""] * self.vectors)
            self.put("ret void", "part_row:")
        self._store(sums, self.masks)
        self.put("ret void", "}")
        return self.lines

    def _steps(self) -> None:
        """Append the offsets of two and of three rows."""
        for name in ("a", "c", "from"):
            for times in (2, 3):
                step = self._hidden(self.times(f"%{name}_row", times), "i64")
                self.put(f"%{name}_row{times} = add i64 {step}, 0")

    def _fetch(self) -> None:
        """Append prefetches of the addend, which may be outside of the caches."""
        self.put("%adds = icmp ne ptr %from, null", "br i1 %adds, label %fetch, label %begin")
        self.put("fetch:")
        for i in range(self.rows):
            row = self._row("from", "%from", i)
            for j in range(self.vectors):
                place = self.bytes_at(row, 4 * self.width * j)
                self.put(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 3, i32 1)")
        self.put("br label %begin", "begin:")

    def _hidden(self, x: str, kind: str = "ptr") -> str:
        """A copy of a value whose origin is hidden from LLVM by an empty ``asm``.

        Otherwise LLVM would compute each address from the one before it, or spill many.
        """
        return self.new(f'call {kind} asm "", "=r,0"({kind} {x})')

    def _row(self, name: str, base: str, i: int) -> str:
        """The address of row ``i``, relative to every third row: one register for three rows."""
        for _ in range(i // 3):
            base = self.bytes_at(base, f"%{name}_row3")
        return self.bytes_at(base, (0, f"%{name}_row", f"%{name}_row2")[i % 3])

    def _sums(self) -> list[str]:
        """Append the loops over terms: an unrolled one, and one for the rest."""
        zeros = ["zeroinitializer"] * (self.rows * self.vectors)
        self.put(f"%rounds = sdiv i64 %k, {_UNROLL_TERMS}", f"%left = srem i64 %k, {_UNROLL_TERMS}")
        first = {"b": "%b", **({"keep": "%keep"} if self.keeps else {})}
        first |= {f"a{i}": self._row("a", "%a", i) for i in range(0, self.rows, 3)}
        self.put("%any_round = icmp sgt i64 %rounds, 0")
        self.put("br i1 %any_round, label %round, label %between")
        sums, places = self._loop("round", "begin", zeros, "%rounds", first, _UNROLL_TERMS)
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
        """A loop of ``count`` iterations of ``terms`` terms; returns the sums and next addresses.

        Addresses are those of the row of ``b``, of every third row of ``a``, and of the panel that
        the row of ``b`` is packed into.
        """
        steps = {"b": "%b_term", "keep": str(4 * self.shape.columns)}
        self.put(f"{name}:")
        at = len(self.lines)
        self.put(*[""] * (1 + len(first) + len(sums)))
        now = held = [f"%{name}_sum{i}" for i in range(len(sums))]
        places = {n: f"%{name}_{n}" for n in first}
        for i in range(terms):
            if i and i % 2 == 0:  # hide them again: LLVM would need more address registers
                places = {n: self._hidden(x) for n, x in places.items()}
            now = self._term(now, places)
            places = {n: self.bytes_at(x, steps.get(n, "%a_term")) for n, x in places.items()}
        less = self.minus(f"%{name}_count", 1)
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
        """Append one term: a row of ``b`` times an element of each row of ``a``."""
        b, vectors = places["b"], list[str]()
        for j, mask in enumerate(self.masks):
            panel, within = divmod(j, self.shape.vectors)
            step = 4 * self.width * within
            begin = self.bytes_at(b, f"%b_panel{panel}") if panel else b
            vectors.append(self.load(self.bytes_at(begin, step), mask))
            if self.keeps:
                ahead = self.bytes_at(b, "%b_ahead", step)
                self.put(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 3, i32 1)")
                self.store(vectors[-1], self.bytes_at(places["keep"], step))
        made = []
        for i in range(self.rows):
            place = self._row("a", places[f"a{i - i % 3}"], i % 3)
            number = self.new(f"load float, ptr {place}, align 4")
            every = self.splat(number)
            for j, x in enumerate(vectors):
                arguments = ", ".join(
                    f"{self.vector} {v}" for v in (every, x, sums[i * self.vectors + j])
                )
                name = f"@llvm.fmuladd.v{self.width}f32"
                made.append(self.new(f"call {self.vector} {name}({arguments})"))
        return made

    def _after(self, sums: Sequence[str]) -> list[str]:
        """Append the epilogue: the addend, then ReLU."""
        self.put("br i1 %adds, label %add, label %whole", "add:")
        added = []
        for i in range(self.rows):
            row = self._row("from", "%from", i)
            for j, mask in enumerate(self.masks):
                x = self.load(self.bytes_at(row, 4 * self.width * j), mask)
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

    def _store(self, sums: Sequence[str], masks: Sequence[str]) -> None:
        for i in range(self.rows):
            row = self._row("c", "%c", i)
            for j, mask in enumerate(masks):
                self.store(sums[i * self.vectors + j], self.bytes_at(row, 4 * self.width * j), mask)
