"""Functions on rows of numbers as LLVM IR: conversions, products with a factor for each row, sums.

They work in vectors of 16, and one by one at the end of a row. The columns of all operands are
contiguous, strides of rows are in bytes. A 16-bit number is widened and rounded on its bits, as in
:mod:`symdnn.cpu.ir.narrow_ir`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from symdnn.cpu.ir.builder import WIDTH, FunctionBuilder

_KINDS = {"float32": ("float", 4), "bfloat16": ("i16", 2), "bool": ("i8", 1)}
_MINUS_INFINITY, _INFINITY = "0xFFF0000000000000", "0x7FF0000000000000"


class Rows(FunctionBuilder):
    """Builds a function of rows; ``width`` is that of the vectors that are written now."""

    width = WIDTH

    def kind(self, element: str) -> str:
        """The type of a vector."""
        return f"<{self.width} x {element}>"

    def every(self, element: str, number: str | int) -> str:
        """A constant vector."""
        return f"<{', '.join([f'{element} {number}'] * self.width)}>"

    def cast(self, how: str, value: str, source: str, target: str) -> str:
        """A conversion of vectors."""
        return self.new(f"{how} {self.kind(source)} {value} to {self.kind(target)}")

    def op(self, what: str, element: str, a: str, b: str) -> str:
        """An instruction of two vectors."""
        return self.new(f"{what} {self.kind(element)} {a}, {b}")

    def splat(self, number: str, element: str = "float") -> str:
        """A number in all lanes."""
        kind = self.kind(element)
        one = self.new(f"insertelement {kind} poison, {element} {number}, i64 0")
        zeros = f"<{self.width} x i32> zeroinitializer"
        return self.new(f"shufflevector {kind} {one}, {kind} poison, {zeros}")

    def read(self, dtype: str, pointer: str) -> str:
        """A vector of float32 of numbers of a dtype; a bool is 0 or, where False, -inf."""
        element, size = _KINDS[dtype]
        x = self.new(f"load {self.kind(element)}, ptr {pointer}, align {size}")
        if dtype == "float32":
            return x
        if dtype == "bool":
            seen = self.op("icmp ne", "i8", x, "zeroinitializer")
            hidden = self.every("float", _MINUS_INFINITY)
            choice = f"{self.kind('float')} zeroinitializer, {self.kind('float')} {hidden}"
            return self.new(f"select {self.kind('i1')} {seen}, {choice}")
        wide = self.op("shl", "i32", self.cast("zext", x, "i16", "i32"), self.every("i32", 16))
        return self.cast("bitcast", wide, "i32", "float")

    def write(self, dtype: str, value: str, pointer: str) -> None:
        """Store a vector of float32 as numbers of a dtype, rounded to nearest even."""
        element, size = _KINDS[dtype]
        if dtype == "bfloat16":
            value = self._rounded(value)
        self.put(f"store {self.kind(element)} {value}, ptr {pointer}, align {size}")

    def _rounded(self, value: str) -> str:
        bits = self.cast("bitcast", value, "float", "i32")
        odd = self.op("lshr", "i32", bits, self.every("i32", 16))
        odd = self.op("and", "i32", odd, self.every("i32", 1))
        near = self.op("add", "i32", odd, self.every("i32", 32767))
        near = self.op("add", "i32", bits, near)
        quiet = self.op("or", "i32", bits, self.every("i32", 4194304))
        none = self.op("fcmp uno", "float", value, value)
        pair = f"{self.kind('i32')} {quiet}, {self.kind('i32')} {near}"
        chosen = self.new(f"select {self.kind('i1')} {none}, {pair}")
        high = self.op("lshr", "i32", chosen, self.every("i32", 16))
        return self.cast("trunc", high, "i32", "i16")

    @contextmanager
    def over(self, name: str, high: str, step: int = 1) -> Iterator[str]:
        """A loop from 0 to below ``high``, which may be 0."""
        with (
            self.when(f"some_{name}", self.new(f"icmp sgt i64 {high}, 0")),
            self.each(name, 0, high, step=step) as i,
        ):
            yield i

    def elements(self) -> Iterator[str]:
        """The indices of the first of the vectors of ``%n`` elements, and then of the rest.

        What is written for each is a loop.
        """
        self.put(f"%whole = and i64 %n, -{WIDTH}", "%rest = sub i64 %n, %whole")
        with self.over("vector", "%whole", WIDTH) as i:
            yield i
        self.width = 1
        with self.over("number", "%rest") as i:
            yield self.plus("%whole", i)
        self.width = WIDTH

    def element(self, base: str, i: str, size: int) -> str:
        """The address of an element."""
        return self.bytes_at(base, (i, size))

    def two(self, r: str) -> tuple[str, str]:
        """The addresses of row ``r`` of ``%x`` and ``%y``."""
        return self.bytes_at("%x", (r, "%x_row")), self.bytes_at("%y", (r, "%y_row"))


_TWO = "ptr %x, i64 %x_row, ptr %y, i64 %y_row, i64 %rows, i64 %n"


def convert(name: str, source: str, target: str) -> list[str]:
    """``name(x, x_row, y, y_row, rows, n)``: a copy from one dtype to another."""
    return _copy(name, _TWO, source, target, scaled=False)


def put_rows(name: str, target: str) -> list[str]:
    """``name(x, x_row, y, y_row, rows, n, factors)``: rows of float32 times their factors."""
    return _copy(name, f"{_TWO}, ptr %factors", "float32", target, scaled=True)


def _copy(name: str, parameters: str, source: str, target: str, scaled: bool) -> list[str]:
    b = Rows()
    sizes = _KINDS[source][1], _KINDS[target][1]
    with b.function(name, parameters), b.over("row", "%rows") as r:
        x, y = b.two(r)
        if scaled:
            factor = b.new(f"load float, ptr {b.element('%factors', r, 4)}, align 4")
        for i in b.elements():
            value = b.read(source, b.element(x, i, sizes[0]))
            if scaled:
                value = b.op("fmul", "float", value, b.splat(factor))
            b.write(target, value, b.element(y, i, sizes[1]))
    return b.lines


def add_rows() -> list[str]:
    """``add_rows(x, x_row, y, y_row, rows, n)``: y += x, of float32."""
    b = Rows()
    with b.function("add_rows", _TWO), b.over("row", "%rows") as r:
        x, y = b.two(r)
        for i in b.elements():
            to = b.element(y, i, 4)
            pair = b.read("float32", to), b.read("float32", b.element(x, i, 4))
            b.write("float32", b.op("fadd", "float", *pair), to)
    return b.lines


def zero_rows() -> list[str]:
    """``zero_rows(y, y_row, rows, bytes)``"""
    b, given = Rows(), "ptr %y, i64 %y_row, i64 %rows, i64 %bytes"
    with b.function("zero_rows", given), b.over("row", "%rows") as r:
        y = b.bytes_at("%y", (r, "%y_row"))
        b.put(f"call void @llvm.memset.p0.i64(ptr {y}, i8 0, i64 %bytes, i1 false)")
    return b.lines


def scale_all() -> list[str]:
    """``scale_all(x, n, factor)``: in place; ``n`` is a multiple of 16."""
    b = Rows()
    with b.function("scale_all", "ptr %x, i64 %n, float %factor"):
        factor = b.splat("%factor")
        with b.over("vector", "%n", WIDTH) as i:
            at = b.element("%x", i, 4)
            b.write("float32", b.op("fmul", "float", b.read("float32", at), factor), at)
    return b.lines


def dot_rows() -> list[str]:
    """``dot_rows(x, x_row, y, y_row, to, rows, n)``: the inner product of each row of float32."""
    b, given = Rows(), "ptr %x, i64 %x_row, ptr %y, i64 %y_row, ptr %to, i64 %rows, i64 %n"
    total = f"@llvm.vector.reduce.fadd.v{WIDTH}f32"
    b.put(f"declare float {total}(float, <{WIDTH} x float>)")
    with b.function("dot_rows", given):
        b.put(f"%sums = alloca {b.kind('float')}, align 64")
        with b.over("row", "%rows") as r:
            x, y = b.two(r)
            b.put(f"store {b.kind('float')} zeroinitializer, ptr %sums, align 64")
            for i in b.elements():
                pair = [b.read("float32", b.element(p, i, 4)) for p in (x, y)]
                so_far = b.read("float32", "%sums")
                product = b.op("fmul", "float", *pair)
                b.write("float32", b.op("fadd", "float", so_far, product), "%sums")
            sums = b.read("float32", "%sums")
            found = b.new(f"call reassoc float {total}(float 0.0, {b.kind('float')} {sums})")
            b.put(f"store float {found}, ptr {b.element('%to', r, 4)}, align 4")
    return b.lines


# -- statistics of queries ------------------------------------------------------------------------


def forward_stats() -> list[str]:
    """Two functions of statistics, a line of maxima and one of sums.

    ``open_stats(stats, line, queries)``: maxima of -inf and sums of 0. ``close_stats(stats, line,
    lse, count, all)``: log-sum-exps, and in place of the sums their reciprocals. Queries from
    ``count`` on see nothing, like those whose sum is 0.
    """
    b = Rows()
    with b.function("open_stats", "ptr %stats, i64 %line, i64 %n"), b.each("one", 0, "%n") as i:
        top_at = b.element("%stats", i, 4)
        b.put(f"store float {_MINUS_INFINITY}, ptr {top_at}")
        b.put(f"store float 0.0, ptr {b.bytes_at(top_at, '%line')}")
    given = "ptr %stats, i64 %line, ptr %lse, i64 %count, i64 %n"
    with b.function("close_stats", given), b.each("one", 0, "%n") as i:
        to, top_at = (b.element(base, i, 4) for base in ("%lse", "%stats"))
        sum_at = b.bytes_at(top_at, "%line")
        total = b.new(f"load float, ptr {sum_at}")
        some = b.new(f"fcmp une float {total}, 0.0")

        def close(sees: bool, name: str) -> None:
            found, inverse = _MINUS_INFINITY, "0.0"
            if sees:
                log = b.call("s_log", f"float {total}", gives="float")
                found = b.new(f"fadd float {log}, {b.new(f'load float, ptr {top_at}')}")
                inverse = b.new(f"fdiv float 1.0, {total}")
            b.put(f"store float {found}, ptr {to}", f"store float {inverse}, ptr {sum_at}")

        is_one = b.new(f"icmp slt i64 {i}, %count")
        b.choose("some", b.new(f"and i1 {is_one}, {some}"), close)
    return b.lines


def backward_stats() -> list[str]:
    """``begin_slopes(lse, dlse, stats, totals, count)``: log-sum-exps, inf for rows that see
    nothing, and the cotangents of log-sum-exps (null: none) subtracted from the totals.
    """
    b, given = Rows(), "ptr %lse, ptr %dlse, ptr %stats, ptr %totals, i64 %n"
    with b.function("begin_slopes", given):
        has = b.new("icmp ne ptr %dlse, null")
        with b.each("one", 0, "%n") as i:
            x = b.new(f"load float, ptr {b.element('%lse', i, 4)}")
            nothing = b.new(f"fcmp oeq float {x}, {_MINUS_INFINITY}")
            y = b.new(f"select i1 {nothing}, float {_INFINITY}, float {x}")
            b.put(f"store float {y}, ptr {b.element('%stats', i, 4)}")
            with b.when("less", has):
                total_at = b.element("%totals", i, 4)
                pair = (total_at, b.element("%dlse", i, 4))
                total, d = (b.new(f"load float, ptr {at}") for at in pair)
                b.put(f"store float {b.new(f'fsub float {total}, {d}')}, ptr {total_at}")
    return b.lines
