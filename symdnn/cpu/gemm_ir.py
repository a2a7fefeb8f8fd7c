"""Products of float32 matrices as LLVM IR: functions that other modules of IR call.

``c = a b + from``, a has m rows and k terms, b k terms and n columns. A generator puts the lines of
:func:`declared` and :func:`functions` into its module, once, and calls these two (addresses and
strides are in bytes, counts in elements; none of them needs to be aligned beyond a float)::

    @gemm_block(ptr a, i64 a_row, i64 a_term, ptr b, i64 b_panel, i64 b_term, ptr c, i64 c_row,
                ptr from, i64 from_row, i64 m, i64 n, i64 k, i64 relu)
    @gemm_pack(ptr b, i64 b_term, i64 b_column, ptr to, i64 to_panel, i64 to_term, i64 n, i64 k)

``a`` may lie in any way: the number of row i and term t is at ``a + i * a_row + t * a_term``. The
columns of ``b``, ``c`` and ``from`` are dense. ``from`` is added (null: nothing is; a stride of 0
makes it a bias; it may be ``c`` itself, so that sums go on). ``relu`` is 1 where the result's
negative numbers become 0. No term (k = 0) gives what is added.

``b`` is read in panels of :attr:`Shape.columns` columns: term t of panel p is at ``b + p * b_panel
+ t * b_term``. A matrix in C order is read as it lies with ``b_panel = 4 * columns``; where more
than some 30 rows are multiplied it pays to copy it before (``gemm_pack``), so that its terms follow
one another: ``b_term = 4 * columns``, ``b_panel = b_term * k``, :func:`packed_floats` in all.
``gemm_pack`` takes columns that are ``b_column`` bytes apart, so it also turns a transposed matrix.

The first cache keeps a few rows of ``a``, the second the panels: for both, k is best at most
:data:`BEST_TERMS`, and n times k so that the panels take at most half of the second cache. The sum
of an element is made in the order of the terms, whatever the sizes: results do not depend on how
a product is cut into blocks of rows and columns. Attribute group ``#0`` is the module's to define
(:func:`attributes`), or that of :data:`~symdnn.cpu.loops_ir.METADATA`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = [
    "BEST_TERMS",
    "Shape",
    "attributes",
    "declared",
    "functions",
    "packed_floats",
    "shape_of",
]

#: Terms of a block: rows of the first operand by so many stay in the first cache.
BEST_TERMS = 512
#: Terms that are multiplied in one round of the loop.
_UNROLL = 2


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
        """Rows of the tiles that there are code for, falling; a rest takes the next higher one."""
        found = [self.rows]
        while found[-1] > 1:
            found.append(found[-1] // 2)
        return tuple(found)


def shape_of(width: int) -> Shape:
    """The tile for vectors of so many float32 (:func:`~symdnn.cpu.jit.vector_width`).

    With 32 registers of AVX-512 24 sums, 3 vectors and a spread number; with 16 12, 2 and 1.
    """
    return {16: Shape(16, 8, 3), 8: Shape(8, 6, 2)}.get(width) or Shape(width, 4, 2)


def packed_floats(shape: Shape, n: int, k: int) -> int:
    """Floats of panels for k terms of n columns."""
    return -(-n // shape.columns) * shape.columns * k


def declared(shape: Shape) -> list[str]:
    """Declarations of what the functions call."""
    w, v, m = shape.width, f"<{shape.width} x float>", f"<{shape.width} x i1>"
    return [
        f"declare {v} @llvm.masked.load.v{w}f32.p0(ptr, i32, {m}, {v})",
        f"declare void @llvm.masked.store.v{w}f32.p0({v}, ptr, i32, {m})",
        f"declare {v} @llvm.fmuladd.v{w}f32({v}, {v}, {v})",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
    ]


def attributes(shape: Shape) -> str:
    """The group ``#0``: vectors as wide as they are written."""
    bits = 32 * shape.width
    return f'attributes #0 = {{ "prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}" }}'


def functions(shape: Shape) -> list[str]:
    """``gemm_block``, ``gemm_pack``, and the tiles that they call."""
    sizes = [(h, v) for h in shape.heights for v in range(1, shape.vectors + 1)]
    tiles = [line for h, v in sizes for line in _Tile(shape, h, v).source()]
    return [*tiles, *_block(shape), *_Pack(shape).source()]


class _Source:
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

_GIVEN = (
    "ptr %a, i64 %a_row, i64 %a_term, ptr %b, i64 %b_term, ptr %c, i64 %c_row, ptr %from, "
    "i64 %from_row, i64 %rows, i64 %cols, i64 %k, i64 %relu"
)


class _Tile(_Source):
    """The function of one tile: of its rows and columns ``%rows`` and ``%cols`` are there."""

    def __init__(self, shape: Shape, rows: int, vectors: int) -> None:
        super().__init__(shape)
        self.rows, self.vectors = rows, vectors

    def source(self) -> list[str]:
        """All lines."""
        self.put(f"define internal void @gemm_tile_{self.rows}x{self.vectors}({_GIVEN}) #0 {{")
        self.put("entry:")
        self.masks = [""] * (self.vectors - 1)
        self.masks.append(self.lanes_below("%cols", (self.vectors - 1) * self.width))
        self._rows()
        sums = self._after(self._sums())
        self._store(sums)
        self.put("ret void", "}")
        return self.lines

    def _rows(self) -> None:
        """Where each row begins; rows that are not there are the last one again."""
        self.put("%last = sub i64 %rows, 1")
        for i in range(self.rows):
            self.put(
                f"%in{i} = icmp slt i64 {i}, %rows",
                f"%i{i} = select i1 %in{i}, i64 {i}, i64 %last",
                f"%a_at{i} = mul i64 %i{i}, %a_row",
                f"%a{i} = getelementptr i8, ptr %a, i64 %a_at{i}",
                f"%c_at{i} = mul i64 %i{i}, %c_row",
                f"%c{i} = getelementptr i8, ptr %c, i64 %c_at{i}",
            )
            for j in range(self.vectors):
                place = self.at(f"%c{i}", 4 * self.width * j)
                self.put(f"call void @llvm.prefetch.p0(ptr {place}, i32 1, i32 3, i32 1)")

    def _sums(self) -> list[str]:
        """The loops over terms: rounds of several, then one by one."""
        zeros = ["zeroinitializer"] * (self.rows * self.vectors)
        self.put(f"%rounds = sdiv i64 %k, {_UNROLL}", f"%left = srem i64 %k, {_UNROLL}")
        self.put("%any_round = icmp sgt i64 %rounds, 0")
        self.put("br i1 %any_round, label %round, label %between")
        sums, b, t = self._loop("round", "entry", zeros, "%rounds", ("%b", "0"), _UNROLL)
        sums = self.merge("between", [("entry", zeros), ("round_end", sums)])
        b = self.new(f"phi ptr [%b, %entry], [{b}, %round_end]")
        t = self.new(f"phi i64 [0, %entry], [{t}, %round_end]")
        self.put("%any_left = icmp sgt i64 %left, 0")
        self.put("br i1 %any_left, label %one, label %summed")
        more, _, _ = self._loop("one", "between", sums, "%left", (b, t), 1)
        return self.merge("summed", [("between", sums), ("one_end", more)])

    def _loop(
        self, name: str, before: str, sums: Sequence[str], count: str, first: tuple[str, str],
        terms: int,
    ) -> tuple[list[str], str, str]:  # fmt: skip
        """``count`` rounds of so many terms; (sums, place in b, bytes of terms in a) behind it."""
        self.put(f"{name}:")
        at = len(self.lines)
        self.put(*[""] * (3 + len(sums)))
        now = held = [f"%{name}_sum{i}" for i in range(len(sums))]
        b, t = f"%{name}_b", f"%{name}_t"
        for _ in range(terms):
            now = self._term(now, b, t)
            b, t = self.at(b, "%b_term"), self.new(f"add i64 {t}, %a_term")
        less = self.new(f"sub i64 %{name}_count, 1")
        more = self.new(f"icmp sgt i64 {less}, 0")
        self.put(f"br i1 {more}, label %{name}, label %{name}_end", f"{name}_end:")
        self.put(f"br label %{'between' if name == 'round' else 'summed'}")
        arms = [(f"%{name}_count", "i64", count, less), (f"%{name}_b", "ptr", first[0], b),
                (f"%{name}_t", "i64", first[1], t)]  # fmt: skip
        arms += [(h, self.vector, x, y) for h, x, y in zip(held, sums, now, strict=True)]
        for n, (register, kind, enters, returns) in enumerate(arms):
            values = f"[{enters}, %{before}], [{returns}, %{name}]"
            self.lines[at + n] = f"{register} = phi {kind} {values}"
        return now, b, t

    def _term(self, sums: Sequence[str], b: str, t: str) -> list[str]:
        """One term: a row of ``b`` times a number of each row of ``a``."""
        vectors = [self.load(self.at(b, 4 * self.width * j), m) for j, m in enumerate(self.masks)]
        made = []
        for i in range(self.rows):
            number = self.new(f"load float, ptr {self.at(f'%a{i}', t)}, align 4")
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
        self.put("%adds = icmp ne ptr %from, null", "br i1 %adds, label %add, label %whole", "add:")
        added = []
        for i in range(self.rows):
            row = self.at("%from", self.new(f"mul i64 %i{i}, %from_row"))
            for j, mask in enumerate(self.masks):
                x = self.load(self.at(row, 4 * self.width * j), mask)
                added.append(self.new(f"fadd {self.vector} {sums[i * self.vectors + j]}, {x}"))
        self.put("br label %whole")
        sums = self.merge("whole", [("summed", sums), ("add", added)])
        self.put("%cuts = icmp ne i64 %relu, 0", "br i1 %cuts, label %cut, label %store0", "cut:")
        kept = []
        for x in sums:  # NaN stays
            low = self.new(f"fcmp olt {self.vector} {x}, zeroinitializer")
            choice = f"{self.mask} {low}, {self.vector} zeroinitializer, {self.vector} {x}"
            kept.append(self.new(f"select {choice}"))
        self.put("br label %store0")
        return self.merge("store0", [("whole", sums), ("cut", kept)])

    def _store(self, sums: Sequence[str]) -> None:
        for i in range(self.rows):
            for j, mask in enumerate(self.masks):
                place = self.at(f"%c{i}", 4 * self.width * j)
                self.store(sums[i * self.vectors + j], place, mask)
            if i + 1 < self.rows:
                self.put(f"br i1 %in{i + 1}, label %store{i + 1}, label %done", f"store{i + 1}:")
        self.put("br label %done", "done:")


# -- a block --------------------------------------------------------------------------------------

_BLOCK = """
define internal void @gemm_block(ptr %a_0, i64 %a_row, i64 %a_term, ptr %b_0, i64 %b_panel,
  i64 %b_term, ptr %c_0, i64 %c_row, ptr %from_0, i64 %from_row, i64 %m, i64 %n, i64 %k,
  i64 %relu) #0 {
entry:
%adds = icmp ne ptr %from_0, null
%any_m = icmp sgt i64 %m, 0
%any_n = icmp sgt i64 %n, 0
%any = and i1 %any_m, %any_n
br i1 %any, label %row, label %done
row:
%i = phi i64 [0, %entry], [%i_next, %row_end]
%rows = sub i64 %m, %i
%a_i = mul i64 %i, %a_row
%a = getelementptr i8, ptr %a_0, i64 %a_i
%c_i = mul i64 %i, %c_row
%c_1 = getelementptr i8, ptr %c_0, i64 %c_i
%from_i = mul i64 %i, %from_row
%from_1 = getelementptr i8, ptr %from_0, i64 %from_i
br label %panel
panel:
%j = phi i64 [0, %row], [%j_next, %panel_end]
%b = phi ptr [%b_0, %row], [%b_next, %panel_end]
%cols = sub i64 %n, %j
%c = getelementptr float, ptr %c_1, i64 %j
%from_2 = getelementptr float, ptr %from_1, i64 %j
%from = select i1 %adds, ptr %from_2, ptr null
""".strip().splitlines()


def _block(shape: Shape) -> list[str]:
    """Rows of tiles, and in each all panels."""
    given = _GIVEN
    lines = [*_BLOCK, *_chosen(shape, lambda h, v: f"call void @gemm_tile_{h}x{v}({given})")]
    return [
        *lines,
        "panel_end:",
        f"%j_next = add i64 %j, {shape.columns}",
        "%b_next = getelementptr i8, ptr %b, i64 %b_panel",
        "%j_more = icmp slt i64 %j_next, %n",
        "br i1 %j_more, label %panel, label %row_end",
        "row_end:",
        f"%i_next = add i64 %i, {shape.rows}",
        "%i_more = icmp slt i64 %i_next, %m",
        "br i1 %i_more, label %row, label %done",
        "done:",
        "ret void",
        "}",
    ]


def _chosen(shape: Shape, line: Callable[[int, int], str]) -> list[str]:
    """Lines that run the one of the smallest tile that has all of ``%rows`` and ``%cols``."""
    heights, lines = shape.heights, [f"br label %wide{shape.vectors}"]
    for v in range(shape.vectors, 0, -1):
        lines.append(f"wide{v}:")
        if v > 1:
            lines.append(f"%is_wide{v} = icmp sgt i64 %cols, {(v - 1) * shape.width}")
            following = f"label %high{heights[0]}x{v}, label %wide{v - 1}"
            lines.append(f"br i1 %is_wide{v}, {following}")
        else:
            lines.append(f"br label %high{heights[0]}x1")
        for h, lower in zip(heights, (*heights[1:], 0), strict=True):
            lines.append(f"high{h}x{v}:")
            if lower:
                lines.append(f"%is_high{h}x{v} = icmp sgt i64 %rows, {lower}")
                following = f"label %do{h}x{v}, label %high{lower}x{v}"
                lines.append(f"br i1 %is_high{h}x{v}, {following}")
            else:
                lines.append(f"br label %do{h}x{v}")
            lines += [f"do{h}x{v}:", line(h, v), "br label %panel_end"]
    return lines


# -- copies into panels ---------------------------------------------------------------------------

_PACK = """
define internal void @gemm_pack(ptr %b_0, i64 %b_term, i64 %b_column, ptr %to_0, i64 %to_panel,
  i64 %to_term, i64 %n, i64 %k) #0 {
entry:
%any_n = icmp sgt i64 %n, 0
%any_k = icmp sgt i64 %k, 0
%any = and i1 %any_n, %any_k
%dense = icmp eq i64 %b_column, 4
%turned_so = icmp eq i64 %b_term, 4
br i1 %any, label %panel, label %done
panel:
%j = phi i64 [0, %entry], [%j_next, %panel_end]
%to = phi ptr [%to_0, %entry], [%to_next, %panel_end]
%left = sub i64 %n, %j
%b_j = mul i64 %j, %b_column
%b = getelementptr i8, ptr %b_0, i64 %b_j
""".strip().splitlines()


class _Pack(_Source):
    """The function ``gemm_pack``: a panel after the other."""

    def source(self) -> list[str]:
        """All lines."""
        columns = self.shape.columns
        self.put(*_PACK, f"%full = icmp sge i64 %left, {columns}")
        self.put(f"%cols = select i1 %full, i64 {columns}, i64 %left")
        self.put("%full_dense = and i1 %full, %dense")
        self.put("br i1 %full_dense, label %whole, label %part", "whole:")
        self._counted("whole_term", "%k", "whole", self._whole_term)
        self.put("br label %panel_end", "part:")
        self._counted("group", "%cols", "part", self._vector, self.width)
        self.put("br label %panel_end", "panel_end:", f"%j_next = add i64 %j, {columns}")
        self.put("%to_next = getelementptr i8, ptr %to, i64 %to_panel")
        self.put("%j_more = icmp slt i64 %j_next, %n")
        self.put("br i1 %j_more, label %panel, label %done", "done:", "ret void", "}")
        return self.lines

    def _counted(
        self, name: str, high: str, before: str, body: Callable[[str], None], step: int = 1
    ) -> None:
        """``body(i)`` for each i below ``high``, which is not 0."""
        i, following = f"%{name}_i", f"%{name}_next"
        self.put(f"br label %{name}", f"{name}:")
        self.put(f"{i} = phi i64 [0, %{before}], [{following}, %{name}_end]")
        body(i)
        self.put(f"br label %{name}_end", f"{name}_end:", f"{following} = add i64 {i}, {step}")
        self.put(f"%{name}_more = icmp slt i64 {following}, {high}")
        self.put(f"br i1 %{name}_more, label %{name}, label %{name}_done", f"{name}_done:")

    def _places(self, t: str) -> tuple[str, str]:
        """Where a term of the panel is, and is to be."""
        source, target = self.new(f"mul i64 {t}, %b_term"), self.new(f"mul i64 {t}, %to_term")
        return self.at("%b", source), self.at("%to", target)

    def _whole_term(self, t: str) -> None:
        source, target = self._places(t)
        for j in range(self.shape.vectors):
            step = 4 * self.width * j
            self.store(self.load(self.at(source, step)), self.at(target, step))

    def _vector(self, g: str) -> None:
        """Some columns of a panel, a vector of them at most."""
        self.put(f"%g_left = sub i64 %cols, {g}")
        self.put(f"%g_b = mul i64 {g}, %b_column", f"%g_to = mul i64 {g}, 4")
        mask = self.lanes_below("%g_left")
        self.put("br i1 %dense, label %copy, label %other", "copy:")
        self._counted("copy_term", "%k", "copy", lambda t: self._copied(t, mask))
        self.put("br label %group_end", "other:", f"%many = icmp sge i64 %k, {self.width}")
        self.put("%turn = and i1 %many, %turned_so", "br i1 %turn, label %turned, label %single")
        self.put("turned:", f"%t_last = sub i64 %k, {self.width}")
        self._turned_rows(g)
        self._counted("square", "%k", "turned", lambda t: self._turned(t, mask), self.width)
        self.put("br label %group_end", "single:")
        self.put(f"%g_over = icmp sgt i64 %g_left, {self.width}")
        self.put(f"%g_cols = select i1 %g_over, i64 {self.width}, i64 %g_left")
        self._counted("single_term", "%k", "single", self._numbers)

    def _copied(self, t: str, mask: str) -> None:
        source, target = self._places(t)
        self.store(self.load(self.at(source, "%g_b"), mask), self.at(target, "%g_to"), mask)

    def _numbers(self, t: str) -> None:
        """A term's numbers one by one."""
        source, target = (self.at(p, x) for p, x in zip(self._places(t), ("%g_b", "%g_to")))

        def one(c: str) -> None:
            step = self.new(f"mul i64 {c}, %b_column")
            x = self.new(f"load float, ptr {self.at(source, step)}, align 4")
            place = self.new(f"getelementptr float, ptr {target}, i64 {c}")
            self.put(f"store float {x}, ptr {place}, align 4")

        self._counted("number", "%g_cols", "single_term", one)

    # -- transposed, squares of as many numbers as a vector has -----------------------------------

    def _turned_rows(self, g: str) -> None:
        """Where each column begins; columns that are not there are the last one again."""
        self.put("%g_last = sub i64 %g_left, 1")
        for i in range(self.width):
            self.put(
                f"%g_in{i} = icmp slt i64 {i}, %g_left",
                f"%g_i{i} = select i1 %g_in{i}, i64 {i}, i64 %g_last",
                f"%g_sum{i} = add i64 {g}, %g_i{i}",
                f"%g_at{i} = mul i64 %g_sum{i}, %b_column",
                f"%g_row{i} = getelementptr i8, ptr %b, i64 %g_at{i}",
            )

    def _turned(self, t: str, mask: str) -> None:
        """Terms from ``t`` on; at the end some that are there already, once more."""
        over = self.new(f"icmp sgt i64 {t}, %t_last")
        begin = self.new(f"select i1 {over}, i64 %t_last, i64 {t}")
        step = self.new(f"mul i64 {begin}, 4")
        square = [self.load(self.at(f"%g_row{i}", step)) for i in range(self.width)]
        half = self.width // 2
        while half:
            for i in range(self.width):
                if not i & half:
                    square[i], square[i + half] = self._exchanged(square[i], square[i + half], half)
            half //= 2
        place = self.at("%to", self.new(f"mul i64 {begin}, %to_term"), "%g_to")
        for x in square:
            self.store(x, place, mask)
            place = self.at(place, "%to_term")

    def _exchanged(self, a: str, b: str, half: int) -> tuple[str, str]:
        """The second of each pair of ``half`` numbers of a for the first of b's."""
        w, pair = self.width, f"{self.vector} {a}, {self.vector} {b}"
        low = [w + i - half if i & half else i for i in range(w)]
        high = [w + i if i & half else i + half for i in range(w)]
        made = []
        for chosen in (low, high):
            numbers = ", ".join(f"i32 {i}" for i in chosen)
            made.append(self.new(f"shufflevector {pair}, <{w} x i32> <{numbers}>"))
        return made[0], made[1]
