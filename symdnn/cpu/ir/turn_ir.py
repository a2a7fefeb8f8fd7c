"""The LLVM IR function that transposes dense rows of numbers, by blocks of 8 by 8 in registers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from symdnn.cpu.ir.builder import Builder, FunctionBuilder

#: Rows and columns of a block that is transposed in registers; bytes of a register's lane, and of a
#: cache line.
TURN_BLOCK, _LANE_BYTES, _LINE_BYTES = 8, 16, 64
#: Bytes of the widest numbers that are transposed in registers.
_WIDEST = 8
PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"


_PARAMETERS = "ptr %from, i64 %from_step, ptr %to, i64 %to_step, i64 %rows, i64 %columns"


def turn_functions(kinds: Iterable[tuple[int, bool]]) -> tuple[set[str], list[str]]:
    """What functions of several sizes (and ``tile``) declare, each once, and the functions."""
    lines = [line for size, tile in kinds for line in _turn_function(size, tile)]
    declared = {line for line in lines if line.startswith("declare")}
    return declared, [line for line in lines if line not in declared]


def _turn_function(itemsize: int, tile: bool) -> list[str]:
    """The function ``turn``: ``to[j][i] = from[i][j]`` for i below ``%rows``, j below ``%columns``.

    A block at the end is loaded under masks; rows beyond the last are the last again. It is stored
    under masks too, which is slow on some processors, unless the target is a ``tile`` that has room
    for whole blocks; then the function's name is ``tile``.
    """
    if itemsize > _WIDEST:
        return _moved(itemsize, tile)
    b = _TurnBuilder(itemsize, tile)
    with b.function(_name(itemsize, tile), _PARAMETERS, "noinline #0"):
        b.blocks()
    return [*sorted(b.declared), *b.lines]


def _name(itemsize: int, tile: bool) -> str:
    return f"{'tile' if tile else 'turn'}{8 * itemsize}"


def _moved(itemsize: int, tile: bool) -> list[str]:
    """The function for numbers that fill a lane of a register: they are moved one by one, those of
    a cache line of the target together."""
    b, few, t = FunctionBuilder(), _LINE_BYTES // itemsize, f"<{itemsize // 4} x i32>"
    b.declared.add(PREFETCH)

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

    with b.function(_name(itemsize, tile), _PARAMETERS, "noinline #0"):
        whole = b.new(f"and i64 %rows, {-few}")
        some, rest = b.new(f"icmp sgt i64 {whole}, 0"), b.new(f"icmp slt i64 {whole}, %rows")
        with b.when("somes", some):
            blocks("some", 0, whole, few)
        with b.when("ones", rest):
            blocks("one", whole, "%rows", 1)
    return [*sorted(b.declared), *b.lines]


class _TurnBuilder(Builder):
    """Builds the function of blocks; a vector is a row of one."""

    def __init__(self, itemsize: int, tile: bool) -> None:
        super().__init__(TURN_BLOCK, f"int{8 * itemsize}")
        self.size, self.tile = itemsize, tile

    def blocks(self) -> None:
        """Append the loops over blocks."""
        self.put("%last_row = sub i64 %rows, 1")
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

    def _block(self, i: str, j: str, edge: bool) -> None:
        """Append the transposing of the block at row ``i`` and column ``j``."""
        there = self.lanes_below(j, "%columns") if edge else ""
        here = self.lanes_below(i, "%rows") if edge else ""
        loaded = []
        for k in range(TURN_BLOCK):
            row = self.affine(i, 1, k)
            row = self.least(row, "%last_row") if edge else row
            place = self.at(self.bytes_at("%from", (row, "%from_step")), j)
            loaded.append(self.load(place, there))
            if self.size * TURN_BLOCK >= _LINE_BYTES // 2:
                # The next tile's line: the processor does not see a stride of a row.
                self.declared.add(PREFETCH)
                ahead = f"ptr {self.bytes_at(place, _LINE_BYTES)}"
                self.call("llvm.prefetch.p0", ahead, "i32 0", "i32 3", "i32 1")
        for k, column in enumerate(self.columns(loaded)):
            row = self.affine(j, 1, k)
            place, mask = self.at(self.bytes_at("%to", (row, "%to_step")), i), ""
            if edge and not self.tile:  # a row beyond the last has no lanes
                inside = self.new(f"icmp slt i64 {row}, %columns")
                lanes = f"{self.mask} {here}, {self.mask} zeroinitializer"
                mask = self.new(f"select i1 {inside}, {lanes}")
            self.store(column, place, mask)

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
