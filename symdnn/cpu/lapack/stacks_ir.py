"""Small matrices in the lanes of vectors, as LLVM IR: each instruction works on several of a stack.

A task has as many neighbouring matrices as a vector has lanes. Their elements are in an array of
vectors on the stack, which for matrices of up to :data:`UNROLLED` rows are registers. Pivots differ
from lane to lane, so rows are exchanged by choices. What a lane computes does not depend on the
others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import data_of, word
from symdnn.cpu.ir.math_ir import declarations, definitions
from symdnn.cpu.ir.program_ir import LoopBuilder
from symdnn.cpu.lapack.sequence_ir import FAULT, FIRST_ARRAY, determinant_steps, leave_determinant

#: Matrices of a task, by the dtype in which they are computed.
LANES = {"float": 16, "double": 8}
#: Matrices of up to so many rows have no loops but straight code.
UNROLLED = 3
_BYTES = {"float": 4, "double": 8}
_NAN = "0x7FF8000000000000"


@dataclass(frozen=True)
class StackPlan:
    """``what`` is done to matrices of ``rows``: ``det``, ``slogdet``, ``inverse``, ``factor`` or
    ``solve``, the last by factors, for ``columns`` right sides.

    ``stored`` is the dtype of the operands (LLVM's). The factors are those of the transposes where
    ``turned``; ``transposed``: of the systems. ``raises``: a singular matrix is a fault, else NaN.
    """

    what: str
    rows: int
    stored: str
    columns: int = 0
    turned: bool = False
    transposed: bool = False
    raises: bool = False

    @property
    def work(self) -> str:
        """The dtype of the computation: determinants are of float64."""
        return "double" if self.what in ("det", "slogdet") else self.stored

    @property
    def arrays(self) -> int:
        """The number of operands."""
        return {"det": 2, "inverse": 2, "slogdet": 3, "factor": 3, "solve": 4}[self.what]


def stack_ir(plan: StackPlan) -> str:
    """The module of ``kernel``; the words of its block are those of a sequence without places."""
    s = _StackBuilder(plan)
    s.loops()
    others = list[str]()
    if plan.what == "slogdet":
        others = [*sorted(declarations({"f_log"})), *definitions({"f_log"})]
    return s.task_module(*others)


class _StackBuilder(LoopBuilder):
    """Builds the function of tasks."""

    def __init__(self, plan: StackPlan) -> None:
        super().__init__()
        self.plan, self.n, self.lanes = plan, plan.rows, LANES[plan.work]
        self.more = {"inverse": plan.rows, "solve": plan.columns}.get(plan.what, 0)
        self.wide = self.n + self.more
        self.vector = f"<{self.lanes} x {plan.work}>"
        self.numbers, self.mask = f"<{self.lanes} x i32>", f"<{self.lanes} x i1>"

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        entry = word("%count", 3)
        for k in range(self.plan.arrays):
            entry += data_of(f"%array{k}", FIRST_ARRAY + k)
        entry += [
            f"%tile = alloca [{self.n * self.wide} x {self.vector}], align 64",
            f"%exchanged = alloca [{self.n} x {self.numbers}], align 64",
            f"%held = alloca {self.vector}, align 64", f"%row = alloca {self.numbers}, align 64",
            f"%bad = alloca {self.mask}, align 64",
            f"%fault = getelementptr i64, ptr %w, i64 {FAULT}",
        ]  # fmt: skip
        self.tasks(entry, "task")
        # The last task begins early enough to have as many: some are computed twice.
        first = self.least(self.times("%r", self.lanes), self.minus("%count", self.lanes))
        self.put(f"store {self.mask} zeroinitializer, ptr %bad")
        self._read(0, first, self.n, 0, self.plan.turned)
        getattr(self, f"_{self.plan.what}")(first)

    # -- loops and elements -----------------------------------------------------------------------

    def repeat(self, low: int | str, high: int | str, body: Callable[[int | str], None]) -> None:
        """A loop, or straight code for small matrices."""
        known = isinstance(low, int) and isinstance(high, int)
        if known and self.n <= UNROLLED:
            for i in range(int(low), int(high)):
                body(i)
            return

        if known and int(low) >= int(high):
            return
        with contextlib.ExitStack() as stack:
            if not known:
                stack.enter_context(self.when(self.tag(), self.new(f"icmp slt i64 {low}, {high}")))
            body(stack.enter_context(self.each(self.tag(), low, str(high))))

    def later(self, i: int | str, by: int) -> int | str:
        return i + by if isinstance(i, int) else self.plus(i, by)

    def left(self, whole: int, i: int | str) -> int | str:
        return whole - i if isinstance(i, int) else self.minus(whole, i)

    def element(self, i: int | str, j: int | str) -> str:
        """The address of an element of all lanes."""
        if isinstance(i, int) and isinstance(j, int):
            index = str(i * self.wide + j)
        else:
            row = str(i * self.wide) if isinstance(i, int) else self.affine(i, self.wide)
            index = self.plus(row, j)
        return self.new(f"getelementptr {self.vector}, ptr %tile, i64 {index}")

    def get(self, i: int | str, j: int | str) -> str:
        return self.new(f"load {self.vector}, ptr {self.element(i, j)}, align 64")

    def set(self, i: int | str, j: int | str, value: str) -> None:
        self.put(f"store {self.vector} {value}, ptr {self.element(i, j)}, align 64")

    def all(self, kind: str, value: int | str | float) -> str:
        """A number in all lanes."""
        vector = f"<{self.lanes} x {kind}>"
        if not isinstance(value, str):
            return f"<{', '.join(f'{kind} {value}' for _ in range(self.lanes))}>"
        begun = self.new(f"insertelement {vector} poison, {kind} {value}, i64 0")
        return self.new(f"shufflevector {vector} {begun}, {vector} poison, {self.numbers} "
                        "zeroinitializer")  # fmt: skip

    def number(self, i: int | str) -> str:
        """A row's number in all lanes."""
        return self.all("i32", i if isinstance(i, int) else self.new(f"trunc i64 {i} to i32"))

    def choose_lanes(self, mask: str, kind: str, a: str, b: str) -> str:
        return self.new(f"select {self.mask} {mask}, {kind} {a}, {kind} {b}")

    def less_product(self, c: str, a: str, b: str) -> str:
        """c - a * b"""
        f = f"@llvm.fmuladd.v{self.lanes}{'f64' if self.plan.work == 'double' else 'f32'}"
        v = self.vector
        self.declared.add(f"declare {v} {f}({v}, {v}, {v})")
        return self.new(f"call {v} {f}({v} {self.new(f'fneg {v} {a}')}, {v} {b}, {v} {c})")

    # -- operands ---------------------------------------------------------------------------------

    def _lane(self, k: int, first: str, size: int, lane: int, index: int | str, of: int) -> str:
        """The address of an element of a lane's matrix of ``size`` elements of ``of`` bytes."""
        begun = self.times(first, size * of)
        base = self.bytes_at(f"%array{k}", begun, lane * size * of)
        return self.bytes_at(base, self.affine(str(index), of))

    def _places(
        self, columns: int, at: int, turned: bool, body: Callable[[str, str], None]
    ) -> None:
        """``body(address in the tile, index in memory)`` for each element."""

        def row(i: int | str) -> None:
            def one(j: int | str) -> None:
                a, b = (j, i) if turned else (i, j)
                if isinstance(a, int) and isinstance(b, int):
                    index = str(a * columns + b)
                else:
                    begun = str(a * columns) if isinstance(a, int) else self.affine(a, columns)
                    index = self.plus(begun, b)
                body(self.element(i, self.later(j, at)), index)

            self.repeat(0, columns, one)

        self.repeat(0, self.n, row)

    def _read(self, k: int, first: str, columns: int, at: int, turned: bool = False) -> None:
        """Read an operand's matrices into the tile's columns from ``at``."""
        stored, work = self.plan.stored, self.plan.work

        def one(place: str, index: str) -> None:
            kind = f"<{self.lanes} x {stored}>"
            found = "poison"
            for lane in range(self.lanes):
                where = self._lane(k, first, self.n * columns, lane, index, _BYTES[stored])
                x = self.new(f"load {stored}, ptr {where}")
                found = self.new(f"insertelement {kind} {found}, {stored} {x}, i64 {lane}")
            if stored != work:
                found = self.new(f"fpext {kind} {found} to {self.vector}")
            self.put(f"store {self.vector} {found}, ptr {place}, align 64")

        self._places(columns, at, turned, one)

    def _write(self, k: int, first: str, columns: int, at: int, turned: bool = False) -> None:
        """Write the tile's columns from ``at``; NaN for lanes that have no result."""
        bad = self.new(f"load {self.mask}, ptr %bad")
        nan = self.all(self.plan.work, _NAN)  # a register for each element would be as good

        def one(place: str, index: str) -> None:
            x = self.new(f"load {self.vector}, ptr {place}, align 64")
            if self.plan.what != "factor":
                x = self.choose_lanes(bad, self.vector, nan, x)
            for lane in range(self.lanes):
                size = _BYTES[self.plan.stored]
                where = self._lane(k, first, self.n * columns, lane, index, size)
                value = self.new(f"extractelement {self.vector} {x}, i64 {lane}")
                self.put(f"store {self.plan.stored} {value}, ptr {where}")

        self._places(columns, at, turned, one)

    def _exchange_numbers(self, k: int, first: str, write: bool) -> None:
        """Read or write int32 numbers of the rows that are exchanged."""

        def one(i: int | str) -> None:
            place = self.new(f"getelementptr {self.numbers}, ptr %exchanged, i64 {i}")
            found = self.new(f"load {self.numbers}, ptr {place}, align 64") if write else "poison"
            for lane in range(self.lanes):
                where = self._lane(k, first, self.n, lane, i, 4)
                if write:
                    value = self.new(f"extractelement {self.numbers} {found}, i64 {lane}")
                    self.put(f"store i32 {value}, ptr {where}")
                else:
                    value = self.new(f"load i32, ptr {where}")
                    found = self.new(f"insertelement {self.numbers} {found}, i32 {value}, "
                                     f"i64 {lane}")  # fmt: skip
            if not write:
                self.put(f"store {self.numbers} {found}, ptr {place}, align 64")

        self.repeat(0, self.n, one)

    def _note(self, zero: str) -> None:
        """Remember the lanes that are singular."""
        bad = self.new(f"load {self.mask}, ptr %bad")
        self.put(f"store {self.mask} {self.new(f'or {self.mask} {bad}, {zero}')}, ptr %bad")

    def _report(self) -> None:
        """A singular matrix is a fault, where it raises."""
        if not self.plan.raises:
            return
        bad = self.new(f"load {self.mask}, ptr %bad")
        bits = self.new(f"bitcast {self.mask} {bad} to i{self.lanes}")
        some = self.new(f"icmp ne i{self.lanes} {bits}, 0")
        store = "store atomic i64 1, ptr %fault monotonic, align 8"
        with self.when(self.tag(), some):
            self.put(store)

    # -- elimination ------------------------------------------------------------------------------

    def _swap(self, k: int | str, low: int | str, high: int) -> None:
        """Exchange row ``k`` and each lane's row ``%row``, in columns from ``low``."""
        row = self.new(f"load {self.numbers}, ptr %row")

        def column(j: int | str) -> None:
            top = self.get(k, j)
            self.put(f"store {self.vector} {top}, ptr %held")

            def other(i: int | str) -> None:
                it = self.new(f"icmp eq {self.numbers} {row}, {self.number(i)}")
                below = self.get(i, j)
                held = self.new(f"load {self.vector}, ptr %held")
                found = self.choose_lanes(it, self.vector, below, held)
                self.put(f"store {self.vector} {found}, ptr %held")
                self.set(i, j, self.choose_lanes(it, self.vector, top, below))

            self.repeat(self.later(k, 1), self.n, other)
            self.set(k, j, self.new(f"load {self.vector}, ptr %held"))

        self.repeat(low, high, column)

    def _find_pivot(self, k: int | str) -> None:
        """Put the row of the largest element of a column, from row ``k``, into ``%row``."""
        v = self.vector
        f = f"@llvm.fabs.v{self.lanes}{'f64' if self.plan.work == 'double' else 'f32'}"
        self.declared.add(f"declare {v} {f}({v})")
        self.put(f"store {v} {self.new(f'call {v} {f}({v} {self.get(k, k)})')}, ptr %held")
        self.put(f"store {self.numbers} {self.number(k)}, ptr %row")

        def below(i: int | str) -> None:
            size = self.new(f"call {v} {f}({v} {self.get(i, k)})")
            best, row = self.new(f"load {v}, ptr %held"), self.new(f"load {self.numbers}, ptr %row")
            more = self.new(f"fcmp ogt {v} {size}, {best}")
            self.put(f"store {v} {self.choose_lanes(more, v, size, best)}, ptr %held")
            found = self.choose_lanes(more, self.numbers, self.number(i), row)
            self.put(f"store {self.numbers} {found}, ptr %row")

        self.repeat(self.later(k, 1), self.n, below)
        place = self.new(f"getelementptr {self.numbers}, ptr %exchanged, i64 {k}")
        row = self.new(f"load {self.numbers}, ptr %row")
        self.put(f"store {self.numbers} {row}, ptr {place}, align 64")

    def _eliminate(self) -> None:
        """LU factors with the largest pivots; the columns behind the matrix are carried along."""
        whole = self.plan.what == "factor"

        def step(k: int | str) -> None:
            self._find_pivot(k)
            self._swap(k, 0 if whole else k, self.wide)
            pivot = self.get(k, k)
            zero = self.new(f"fcmp oeq {self.vector} {pivot}, zeroinitializer")
            self._note(zero)
            ones = self.all(self.plan.work, 1.0)
            pivot = self.choose_lanes(zero, self.vector, ones, pivot)

            def below(i: int | str) -> None:
                part = self.new(f"fdiv {self.vector} {self.get(i, k)}, {pivot}")
                self.set(i, k, part)

                def column(j: int | str) -> None:
                    self.set(i, j, self.less_product(self.get(i, j), part, self.get(k, j)))

                self.repeat(self.later(k, 1), self.wide, column)

            self.repeat(self.later(k, 1), self.n, below)

        self.repeat(0, self.n, step)

    def _substitute(self, back: bool, lower: bool) -> None:
        """Solve by a triangle of the matrix, or its transpose: backwards, or from the first row.

        The lower one has ones on its diagonal.
        """
        by_rows = back != lower  # its rows are those of the matrix, not of the transpose

        def row(q: int | str) -> None:
            i = self.left(self.n - 1, q) if back else q

            def column(c: int | str) -> None:
                self.put(f"store {self.vector} {self.get(i, c)}, ptr %held")

                def known(j: int | str) -> None:
                    factor = self.get(i, j) if by_rows else self.get(j, i)
                    held = self.new(f"load {self.vector}, ptr %held")
                    found = self.less_product(held, factor, self.get(j, c))
                    self.put(f"store {self.vector} {found}, ptr %held")

                if back:
                    self.repeat(self.later(i, 1), self.n, known)
                else:
                    self.repeat(0, i, known)
                x = self.new(f"load {self.vector}, ptr %held")
                if not lower:
                    x = self.new(f"fdiv {self.vector} {x}, {self.get(i, i)}")
                self.set(i, c, x)

            self.repeat(self.n, self.wide, column)

        self.repeat(0, self.n, row)

    # -- ops --------------------------------------------------------------------------------------

    def _factor(self, first: str) -> None:
        self._eliminate()
        self._write(1, first, self.n, 0, self.plan.turned)
        self._exchange_numbers(2, first, write=True)

    def _inverse(self, first: str) -> None:
        zero, one = self.all(self.plan.work, 0.0), self.all(self.plan.work, 1.0)

        def row(i: int | str) -> None:
            self.repeat(0, self.n, lambda j: self.set(i, self.later(j, self.n), zero))
            self.set(i, self.later(i, self.n), one)

        self.repeat(0, self.n, row)
        self._eliminate()
        self._substitute(back=True, lower=False)
        self._report()
        self._write(1, first, self.n, self.n)

    def _solve(self, first: str) -> None:
        self._exchange_numbers(1, first, write=False)
        self._read(2, first, self.plan.columns, self.n)

        def exchange(k: int | str) -> None:
            place = self.new(f"getelementptr {self.numbers}, ptr %exchanged, i64 {k}")
            row = self.new(f"load {self.numbers}, ptr {place}, align 64")
            self.put(f"store {self.numbers} {row}, ptr %row")
            self._swap(k, self.n, self.wide)

        def check(k: int | str) -> None:
            self._note(self.new(f"fcmp oeq {self.vector} {self.get(k, k)}, zeroinitializer"))

        self.repeat(0, self.n, check)
        if self.plan.transposed:
            self._substitute(back=False, lower=False)
            self._substitute(back=True, lower=True)
            self.repeat(0, self.n, lambda q: exchange(self.left(self.n - 1, q)))
        else:
            self.repeat(0, self.n, exchange)
            self._substitute(back=False, lower=True)
            self._substitute(back=True, lower=False)
        self._report()
        self._write(3, first, self.plan.columns, self.n)

    def _det(self, first: str) -> None:
        self._eliminate()
        product = self.new(f"alloca {self.vector}, align 64")
        powers = f"<{self.lanes} x i64>"
        power = self.new(f"alloca {powers}, align 64")
        self.put(f"store {self.vector} {self.all('double', 1.0)}, ptr {product}")
        self.put(f"store {powers} zeroinitializer, ptr {power}")

        def one(k: int | str) -> None:
            place = self.new(f"getelementptr {self.numbers}, ptr %exchanged, i64 {k}")
            row = self.new(f"load {self.numbers}, ptr {place}, align 64")
            turned = self.new(f"icmp ne {self.numbers} {row}, {self.number(k)}")
            before = self.new(f"load {self.vector}, ptr {product}")
            at = self.new(f"load {powers}, ptr {power}")
            after, at = determinant_steps(self, self.get(k, k), turned, before, at, self.lanes)
            self.put(f"store {self.vector} {after}, ptr {product}")
            self.put(f"store {powers} {at}, ptr {power}")

        self.repeat(0, self.n, one)
        bad = self.new(f"load {self.mask}, ptr %bad")
        whole = self.new(f"load {self.vector}, ptr {product}")
        whole = self.choose_lanes(bad, self.vector, self.all("double", 0.0), whole)
        self.put(f"store {self.vector} {whole}, ptr {product}")
        with self.each(self.tag(), 0, str(self.lanes)) as j:
            x = self.new(f"load double, ptr {self.bytes_at(product, self.affine(j, 8))}")
            p = self.new(f"load i64, ptr {self.bytes_at(power, self.affine(j, 8))}")
            at = self.affine(self.plus(first, j), _BYTES[self.plan.stored])
            results = [self.bytes_at(f"%array{k}", at) for k in range(1, self.plan.arrays)]
            leave_determinant(self, x, p, results, self.plan.stored)

    _slogdet = _det
