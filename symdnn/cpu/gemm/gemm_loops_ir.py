"""The GEMM kernel for any sizes and threads, around the blocks of :mod:`symdnn.cpu.gemm.gemm_ir`.

The result is divided into parts: matrices of the stack, rows and columns. A task is one part. It is
divided into blocks of terms and of columns whose panels stay in the L2 cache. The division of terms
is the same in every task and for any number of threads, so results depend on neither.
"""

from __future__ import annotations

from symdnn.cpu.compiler.jit import SKIP_PASSES
from symdnn.cpu.gemm.gemm_ir import TileShape, attributes, declared, functions, shape_of
from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import THREADS, data_if_any, data_of, next_task, word

#: The words of the kernel's block: the numbers of threads and tasks, 1; array objects of operands,
#: bias and addend (0: none) and scratch memory, of which each thread has ``own`` bytes; numbers of
#: rows, columns and terms; rows and columns of a part, and numbers of parts along both; terms and
#: columns (whole panels) of a block; strides in bytes; whether ``b`` is packed, whether rows of
#: ``a`` are packed, whether the epilogue is a ReLU; bytes from one panel of ``b`` to the next where
#: it is not packed here (it may be in panels already, see :mod:`symdnn.cpu.gemm.gemm_kept`).
WORDS = (
    "threads", "tasks", "one", "a", "b", "bias", "more", "c", "scratch", "own", "m", "n", "k",
    "part_m", "part_n", "parts_m", "parts_n", "block_k", "block_n", "a_stack", "a_row", "a_term",
    "b_stack", "b_term", "b_column", "c_stack", "c_row", "more_stack", "more_row", "packs",
    "copies", "relu", "b_panel_kept",
)  # fmt: skip
#: The words that are array objects.
ARRAY_WORDS = ("a", "b", "bias", "more", "c", "scratch")


def gemm_ir(width: int) -> str:
    """The module of ``kernel`` with vectors of ``width`` float32."""
    shape = shape_of(width)
    lines = [
        *declared(shape),
        *functions(shape, keeps=True),
        *THREADS,
        *_Parts(shape).source(),
        attributes(shape),
        "",
    ]
    return SKIP_PASSES + "\n".join(lines)


class _Parts(FunctionBuilder):
    """Builds the function ``rows``, a task of which is one part."""

    def __init__(self, shape: TileShape) -> None:
        super().__init__()
        self.shape, self.panel = shape, 4 * shape.columns

    def source(self) -> list[str]:
        """The lines of the function."""
        entry = list[str]()
        for at, name in enumerate(WORDS):
            if name in ("bias", "more"):
                entry += data_if_any(f"%{name}", at)
            else:
                entry += (data_of if name in ARRAY_WORDS else word)(f"%{name}", at)
        entry += [
            "%of_matrix = mul i64 %parts_m, %parts_n", "%copied = icmp ne i64 %copies, 0",
            "%packs_is = icmp ne i64 %packs, 0", "%b_dense = icmp eq i64 %b_column, 4",
            "%may_keep = and i1 %packs_is, %b_dense", "%turns = xor i1 %may_keep, %packs_is",
        ]  # fmt: skip
        self.tasks(entry)
        self._scratch()
        self._part(*self._position())
        return [*self.lines, *next_task("task")]

    def _select(self, condition: str, kind: str, a: str | int, b: str | int) -> str:
        return self.new(f"select i1 {condition}, {kind} {a}, {kind} {b}")

    def _scratch(self) -> None:
        """Note the thread's scratch memory: panels of ``b``, then packed rows of ``a``."""
        before = self.block
        with self.when("numbered", self.new("icmp ne i64 %threads, 1")):
            here = self.new(f"zext i32 {self.new('call i32 @omp_get_thread_num()')} to i64")
        thread = self.new(f"phi i64 [0, %{before}], [{here}, %numbered_yes]")
        self.panels = self.bytes_at("%scratch", (thread, "%own"))
        self.copy = self.bytes_at(self.panels, (self.times("%block_n", "%block_k"), 4))

    def _position(self) -> list[str]:
        """The numbers of a part: of the matrix, along rows and along columns."""
        before = self.block
        with self.when("several", self.new("icmp ne i64 %tasks, 1")):
            matrix = self.new("udiv i64 %r, %of_matrix")
            rest = self.new("urem i64 %r, %of_matrix")
            found = [matrix, *(self.new(f"{op} i64 {rest}, %parts_n") for op in ("udiv", "urem"))]
        return [self.new(f"phi i64 [0, %{before}], [{v}, %several_yes]") for v in found]

    def _part(self, s: str, p_m: str, p_n: str) -> None:
        """Append a part: a loop over blocks of terms."""
        m_0, n_0 = self.times(p_m, "%part_m"), self.times(p_n, "%part_n")
        self.m = self.least(self.minus("%m", m_0), "%part_m")
        self.n = self.least(self.minus("%n", n_0), "%part_n")
        self.a = self.bytes_at("%a", (s, "%a_stack"), (m_0, "%a_row"))
        self.b = self.bytes_at("%b", (s, "%b_stack"), (n_0, "%b_column"))
        self.c = self.bytes_at("%c", (s, "%c_stack"), (m_0, "%c_row"), (n_0, 4))
        more = self.bytes_at("%more", (s, "%more_stack"), (m_0, "%more_row"), (n_0, 4))
        # What the first block of terms adds to.
        self.begun = self._select("%bias_any", "ptr", self.bytes_at("%bias", (n_0, 4)), more)
        self.begun_row = self._select("%bias_any", "i64", 0, "%more_row")
        self.adds = self.new("or i1 %bias_any, %more_any")
        tiles = self.new(f"icmp sge i64 {self.m}, {self.shape.rows}")
        #: Whether the first rows also pack ``b``; whether ``b`` is in panels of scratch memory.
        self.keeps = self.new(f"and i1 %may_keep, {tiles}")
        self.packed = self.new(f"or i1 {self.keeps}, %turns")
        some_m, some_n = (self.new(f"icmp sgt i64 {x}, 0") for x in (self.m, self.n))
        some = self.new(f"and i1 {some_m}, {some_n}")
        with self.when("some", some), self.each("terms", 0, "%k", step="%block_k") as t:
            self._terms(t)

    def _terms(self, t: str) -> None:
        """Append a block of terms: a loop over blocks of columns."""
        self.k = self.least(self.minus("%k", t), "%block_k")
        self.first = self.new(f"icmp eq i64 {t}, 0")
        more = self.new(f"icmp slt i64 {self.plus(t, '%block_k')}, %k")
        self.cut_off = self._select(more, "i64", 0, "%relu")
        self.panel_bytes = self.times(self.k, self.panel)
        a, b = self.bytes_at(self.a, (t, "%a_term")), self.bytes_at(self.b, (t, "%b_term"))
        with self.when("copies", "%copied"):
            self._pack(f"ptr {a}, i64 %a_term, i64 %a_row, ptr {self.copy}", self.m)
        with self.each("columns", 0, self.n, step="%block_n") as j:
            self._columns(a, b, j)

    def _pack(self, source_and_target: str, n: str) -> None:
        self.call("gemm_pack", source_and_target, f"i64 {self.panel_bytes}", f"i64 {self.panel}",
                  f"i64 {n}", f"i64 {self.k}")  # fmt: skip

    def _columns(self, a: str, b: str, j: str) -> None:
        """Append a block of columns: as a whole, or some rows at a time."""
        n = self.least(self.minus(self.n, j), "%block_n")
        b, c = self.bytes_at(b, (j, "%b_column")), self.bytes_at(self.c, (j, 4))
        begun = self._select(self.adds, "ptr", self.bytes_at(self.begun, (j, 4)), "null")
        start = self._select(self.first, "ptr", begun, c)
        start_row = self._select(self.first, "i64", self.begun_row, "%c_row")
        with self.when("turned", "%turns"):
            self._pack(f"ptr {b}, i64 %b_term, i64 %b_column, ptr {self.panels}", n)
        panels = self._select(self.packed, "ptr", self.panels, b)
        panel = self._select(self.packed, "i64", self.panel_bytes, "%b_panel_kept")
        step = self._select(self.packed, "i64", self.panel, "%b_term")
        packed = f"ptr {panels}, i64 {panel}, i64 {step}"

        def block(by_rows: bool, _: str) -> None:
            if by_rows:
                self.upto("rows", 0, self.m, lambda i: self._rows(
                    i, a, (b, packed), c, (start, start_row), n))  # fmt: skip
                return
            given = f"ptr {a}, i64 %a_row, i64 %a_term, {packed}, ptr {c}, i64 %c_row"
            self._multiply("gemm_block", given, f"ptr {start}, i64 {start_row}", self.m, n)

        self.choose("by_rows", self.new(f"or i1 %copied, {self.keeps}"), block)

    def _multiply(self, name: str, operands: str, start: str, m: str, n: str, *more: str) -> None:
        sizes = f"i64 {m}, i64 {n}, i64 {self.k}, i64 {self.cut_off}"
        self.call(name, operands, start, sizes, *more)

    def _rows(
        self, i: str, a: str, b: tuple[str, str], c: str, start: tuple[str, str], n: str
    ) -> str:
        """Append some rows, which may pack ``b`` or be packed themselves; returns their number."""
        left, columns = self.minus(self.m, i), self.shape.columns
        within = self.new(f"urem i64 {i}, {columns}")
        of_panel = self.least(left, self.minus(columns, within))
        count = self._select("%copied", "i64", of_panel, left)
        keeps = self.new(f"and i1 {self.new(f'icmp eq i64 {i}, 0')}, {self.keeps}")
        count = self._select(keeps, "i64", self.shape.rows, count)
        panel = self.new(f"udiv i64 {i}, {columns}")
        copy = self.bytes_at(self.copy, (panel, self.panel_bytes), (within, 4))
        a = self._select("%copied", "ptr", copy, self.bytes_at(a, (i, "%a_row")))
        row = self._select("%copied", "i64", 4, "%a_row")
        term = self._select("%copied", "i64", self.panel, "%a_term")
        c = self.bytes_at(c, (i, "%c_row"))
        adds = self.new(f"icmp ne ptr {start[0]}, null")
        from_ = self._select(adds, "ptr", self.bytes_at(start[0], (i, start[1])), "null")
        operand, result = f"ptr {a}, i64 {row}, i64 {term}", f"ptr {c}, i64 %c_row"
        begin = f"ptr {from_}, i64 {start[1]}"

        def rows(packs: bool, _: str) -> None:
            if packs:
                given = f"{operand}, ptr {b[0]}, i64 {self.panel}, i64 %b_term, {result}"
                self._multiply("gemm_keep", given, begin, count, n, f"ptr {self.panels}",
                               f"i64 {self.panel_bytes}")  # fmt: skip
            else:
                given = f"{operand}, {b[1]}, {result}"
                self._multiply("gemm_block", given, begin, count, n)

        self.choose("keep", keeps, rows)
        return count
