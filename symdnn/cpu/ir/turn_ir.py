"""The LLVM IR function that transposes dense rows of numbers, by blocks of 8 by 8 in registers."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.builder import FunctionBuilder

__all__ = ["TURN_BLOCK", "turn_function"]

#: Rows and columns of a block that is transposed in registers; bytes of a register's lane, and of a
#: cache line.
TURN_BLOCK, _LANE_BYTES, _LINE_BYTES = 8, 16, 64
#: Bytes of the widest numbers that are transposed in registers.
_WIDEST = 8
PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"


def turn_function(itemsize: int, tile: bool = False) -> list[str]:
    """The function ``turn``: ``to[j][i] = from[i][j]`` for i below ``%rows``, j below ``%columns``.

    A block at the end is loaded under masks; rows beyond the last are the last again. It is stored
    under masks too, which is slow on some processors, unless the target is a ``tile`` that has room
    for whole blocks; then the function's name is ``tile``.
    """
    if itemsize > _WIDEST:
        return _moved(itemsize, tile)
    b = _TurnBuilder(itemsize, tile)
    b.function()
    return [*sorted(b.declared), *b.lines]


def _moved(itemsize: int, tile: bool) -> list[str]:
    """The function for numbers that fill a lane of a register: they are moved one by one, those of
    a cache line of the target together."""
    b, few = FunctionBuilder(), _LINE_BYTES // itemsize
    name, t = f"{'tile' if tile else 'turn'}{8 * itemsize}", f"<{itemsize // 4} x i32>"
    b.declared.add(PREFETCH)
    b.put(
        f"define internal void @{name}(ptr %from, i64 %from_step, ptr %to, "
        "i64 %to_step, i64 %rows, i64 %columns) noinline #0 {",
        "entry:",
    )

    def move(lines: Sequence[str], i: str, j: str) -> None:
        """Column ``j`` of these rows, the first of which is ``i``."""
        places = [b.new(f"getelementptr {t}, ptr {line}, i64 {j}") for line in lines]
        values = [b.new(f"load {t}, ptr {place}, align 8") for place in places]
        line = b.bytes_at("%to", (j, "%to_step"))
        for k, value in enumerate(values):
            target = b.new(f"getelementptr {t}, ptr {line}, i64 {b.affine(i, 1, k)}")
            b.put(f"store {t} {value}, ptr {target}, align 8")

    def rows(i: str, count: int) -> None:
        steps = [b.times(b.affine(i, 1, k), "%from_step") for k in range(count)]
        lines = [b.bytes_at("%from", step) for step in steps]
        for line in lines:  # the next tile's
            place = b.new(f"getelementptr {t}, ptr {line}, i64 %columns")
            b.put(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 3, i32 1)")

        with b.each(f"column{count}", 0, "%columns") as j:
            move(lines, i, j)

    def blocks(name: str, low: int | str, high: str, count: int) -> None:
        with b.each(name, low, high, step=count) as i:
            rows(i, count)

    b.put(f"%whole = and i64 %rows, {-few}")
    whole, rest = b.new("icmp sgt i64 %whole, 0"), b.new("icmp slt i64 %whole, %rows")
    with b.when("somes", whole):
        blocks("some", 0, "%whole", few)
    with b.when("ones", rest):
        blocks("one", "%whole", "%rows", 1)
    b.put("ret void", "}")
    return [*sorted(b.declared), *b.lines]


class _TurnBuilder(FunctionBuilder):
    def __init__(self, itemsize: int, tile: bool) -> None:
        super().__init__()
        self.size, self.bits, self.tile = itemsize, 8 * itemsize, tile
        self.vector, self.mask = f"<{TURN_BLOCK} x i{self.bits}>", f"<{TURN_BLOCK} x i1>"

    def function(self) -> None:
        """Append the function."""
        name = f"{'tile' if self.tile else 'turn'}{self.bits}"
        self.put(
            f"define internal void @{name}(ptr %from, i64 %from_step, ptr %to, "
            "i64 %to_step, i64 %rows, i64 %columns) noinline #0 {",
            "entry:",
            "%last_row = sub i64 %rows, 1",
        )
        with (
            self.each("j", 0, "%columns", step=TURN_BLOCK) as j,
            self.each("i", 0, "%rows", step=TURN_BLOCK) as i,
        ):
            ends = [self.plus(k, TURN_BLOCK) for k in (i, j)]
            inside = [
                self.new(f"icmp sle i64 {end}, {high}")
                for end, high in zip(ends, ("%rows", "%columns"))
            ]
            whole = self.new(f"and i1 {inside[0]}, {inside[1]}")
            self.choose("whole", whole, lambda holds, _: self._block(i, j, not holds))
        self.put("ret void", "}")

    def _block(self, i: str, j: str, edge: bool) -> None:
        """Append the transposing of the block at row ``i`` and column ``j``."""
        there = self._below(j, "%columns") if edge else ""
        here = self._below(i, "%rows") if edge else ""
        loaded = []
        for k in range(TURN_BLOCK):
            row = self.affine(i, 1, k)
            row = self.least(row, "%last_row") if edge else row
            place = self._place("%from", row, "%from_step", j)
            loaded.append(self._load(place, there))
            if self.size * TURN_BLOCK >= _LINE_BYTES // 2:
                self._prefetch(self.bytes_at(place, _LINE_BYTES))
        for k, column in enumerate(self.columns(loaded)):
            row = self.affine(j, 1, k)
            place = self._place("%to", row, "%to_step", i)
            if self.tile or not edge:
                self.put(f"store {self.vector} {column}, ptr {place}, align {self.size}")
                continue
            # A row beyond the last has no lanes.
            inside = self.new(f"icmp slt i64 {row}, %columns")
            mask = self.new(f"select i1 {inside}, {self.mask} {here}, {self.mask} zeroinitializer")
            kinds = f"{self.vector}, ptr, i32, {self.mask}"
            name = f"@llvm.masked.store.v{TURN_BLOCK}i{self.bits}.p0"
            self.declared.add(f"declare void {name}({kinds})")
            self.put(
                f"call void {name}({self.vector} {column}, ptr {place}, i32 {self.size}, "
                f"{self.mask} {mask})"
            )

    def _prefetch(self, place: str) -> None:
        """Fetch a line of the next tile: the processor does not see a stride of a row."""
        self.declared.add(PREFETCH)
        self.put(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 3, i32 1)")

    def _place(self, base: str, row: str, step: str, column: str) -> str:
        line = self.bytes_at(base, (row, step))
        return self.new(f"getelementptr i{self.bits}, ptr {line}, i64 {column}")

    def _below(self, first: str, high: str) -> str:
        """The mask of the elements below ``high`` of those from ``first``."""
        left = self.new(f"trunc i64 {self.new(f'sub i64 {high}, {first}')} to i32")
        kind = f"<{TURN_BLOCK} x i32>"
        begun = self.new(f"insertelement {kind} poison, i32 {left}, i64 0")
        whole = self.new(f"shufflevector {kind} {begun}, {kind} poison, {kind} zeroinitializer")
        steps = ", ".join(f"i32 {k}" for k in range(TURN_BLOCK))
        return self.new(f"icmp slt {kind} <{steps}>, {whole}")

    def _load(self, place: str, mask: str) -> str:
        if not mask:
            return self.new(f"load {self.vector}, ptr {place}, align {self.size}")
        name = f"@llvm.masked.load.v{TURN_BLOCK}i{self.bits}.p0"
        self.declared.add(f"declare {self.vector} {name}(ptr, i32, {self.mask}, {self.vector})")
        return self.new(
            f"call {self.vector} {name}(ptr {place}, i32 {self.size}, {self.mask} {mask}, "
            f"{self.vector} zeroinitializer)"
        )

    def columns(self, rows: Sequence[str]) -> list[str]:
        """The columns of a block: first within lanes of 16 bytes of registers, then lanes."""
        e = min(TURN_BLOCK, _LANE_BYTES // self.size)
        lanes = range(TURN_BLOCK // e)
        groups = [list(rows[q * e : (q + 1) * e]) for q in lanes]
        low = [n for q in lanes for t in range(e // 2) for n in (q * e + t, TURN_BLOCK + q * e + t)]
        high = [n + e // 2 for n in low]
        for g, group in enumerate(groups):
            for _ in range(e.bit_length() - 1):
                pairs = [(group[i], group[i + e // 2]) for i in range(e // 2)]
                group = [
                    self.shuffled(self.vector, a, b, order)
                    for a, b in pairs
                    for order in (low, high)
                ]
            groups[g] = group
        h = 1
        while h < len(lanes):
            for q in (q for q in lanes if not q & h):
                for c in range(e):
                    a, b = groups[q][c], groups[q + h][c]
                    first = [n if not n & h else n - h + len(lanes) for n in lanes]
                    second = [n + h if not n & h else n + len(lanes) for n in lanes]
                    groups[q][c] = self.shuffled(self.vector, a, b, _elements(first, e))
                    groups[q + h][c] = self.shuffled(self.vector, a, b, _elements(second, e))
            h *= 2
        return [v for group in groups for v in group]


def _elements(blocks: Sequence[int], size: int) -> list[int]:
    return [block * size + t for block in blocks for t in range(size)]
