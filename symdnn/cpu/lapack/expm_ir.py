"""The exponential of a small matrix as LLVM IR around BLAS's products: a step of
:mod:`symdnn.cpu.lapack.sequence_ir`.

As :mod:`symdnn.ops.matrix.expm_of_stacks`, with a degree for each matrix. BLAS sees each matrix
transposed, and so is the exponential of that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.graph.typing import Array
from symdnn.ops.matrix.expm_of_stacks import BOUNDS, coefficients

#: How many matrices of scratch memory a step has.
MATRICES = 7
#: Coefficients of a degree: of the odd powers (as even ones times the matrix) and of the even ones,
#: from 0 to 8; then, for degree 13, of both as factors of the sixth power.
_OF_DEGREE = 16
_SIZES = {"double": 8, "float": 4}


def table(dtype: str) -> Array:
    """The coefficients of all degrees of a dtype, a row for each."""
    bounds = BOUNDS[np.dtype(dtype).itemsize]
    found = np.zeros((len(bounds), _OF_DEGREE), dtype)
    for row, degree in zip(found, bounds, strict=True):
        c = coefficients(degree)
        low = 7 if degree == 13 else degree
        half = (low + 1) // 2
        row[:half], row[5 : 5 + half] = c[1 : low + 1 : 2], c[0:low:2]
        if degree == 13:
            row[10:13], row[13:16] = c[9:14:2], c[8:13:2]
    return found


def exponential(
    s: FunctionBuilder, k: int, dtype: str, places: Sequence[str], words: Sequence[str]
) -> None:
    """Write the exponential of the matrix at the first place to the second one.

    Further places: scratch for :data:`MATRICES`, :func:`table`, then the letter N, the number of
    rows, 1 and 0, pivots and a status, as LAPACK reads them. Words: the rows, their square, and the
    addresses of ``gemm`` and ``gesv``. What is not finite gives NaN.
    """
    _Exponential(s, k, dtype, places, words).write()


class _Exponential:
    def __init__(
        self, s: FunctionBuilder, k: int, dtype: str, places: Sequence[str], words: Sequence[str]
    ) -> None:
        self.s, self.k, self.t, self.size = s, k, dtype, _SIZES[dtype]
        self.source, self.to, *rest = places
        self.scratch, (self.table, self.letter, self.n, *rest) = rest[:MATRICES], rest[MATRICES:]
        self.one, self.zero, self.pivots, self.info = rest
        self.rows, self.count = words[:2]
        self.gemm, self.gesv = (s.new(f"inttoptr i64 {w} to ptr") for w in words[2:])

    # -- parts ------------------------------------------------------------------------------------

    def at(self, place: str, index: str | int) -> str:
        """The address of an element."""
        return self.s.bytes_at(place, (index, self.size))

    def load(self, place: str, index: str | int) -> str:
        """An element."""
        return self.s.new(f"load {self.t}, ptr {self.at(place, index)}")

    def put(self, value: str, place: str, index: str | int) -> None:
        """Store an element."""
        self.s.put(f"store {self.t} {value}, ptr {self.at(place, index)}")

    def wide(self, x: str) -> str:
        """A number as a float64."""
        return x if self.t == "double" else self.s.new(f"fpext float {x} to double")

    def each(self, name: str, count: str = "") -> AbstractContextManager[str]:
        """A loop over the elements' numbers, or those below ``count``."""
        return self.s.each(f"expm_{name}{self.k}", 0, count or self.count)

    def product(self, a: str, b: str, to: str, more: bool = False) -> None:
        """``to = a b``, or with ``more`` added to what is there."""
        n, beta = self.n, self.one if more else self.zero
        given = [self.letter, self.letter, n, n, n, self.one, a, n, b, n, beta, to, n]
        self.s.put(f"call void {self.gemm}({', '.join(f'ptr {p}' for p in given)})")

    def combined(self, coefficients: Sequence[str], powers: Sequence[str], i: str) -> str:
        """The sum of these multiples of elements."""
        total = ""
        for c, power in zip(coefficients, powers, strict=True):
            term = self.s.new(f"fmul {self.t} {c}, {self.load(power, i)}")
            total = self.s.new(f"fadd {self.t} {total}, {term}") if total else term
        return total

    def when(self, name: str, condition: str) -> AbstractContextManager[None]:
        """What is written in this context runs where the integer condition holds."""
        return self.s.when(f"expm_{name}{self.k}", self.s.new(f"icmp {condition}"))

    # -- the whole --------------------------------------------------------------------------------

    def write(self) -> None:
        """The matrix's exponential, or NaN."""
        largest, unknown = self.norm()
        found = self.s.new(f"fcmp ord double {unknown}, {unknown}")
        void = "0x7FF8000000000000"

        def branch(finite: bool, _: str) -> None:
            if finite:
                self.of_finite(largest)
            else:
                with self.each("void") as i:
                    self.put(void, self.to, i)

        self.s.choose(f"expm{self.k}", found, branch)

    def norm(self) -> tuple[str, str]:
        """The largest sum of a row's moduli, and a number that is NaN if one is not finite."""
        s = self.s

        def row(i: str, carried: list[str]) -> list[str]:
            first = s.times(i, self.rows)

            def one(j: str, total: list[str]) -> list[str]:
                x = self.wide(self.load(self.source, s.plus(first, j)))
                below = s.new(f"fcmp olt double {x}, 0.0")
                size = s.new(f"select i1 {below}, double {s.new(f'fneg double {x}')}, double {x}")
                return [s.new(f"fadd double {total[0]}, {size}")]

            (total,) = s.counted(f"expm_sum{self.k}", 0, self.rows, one, ["0.0"], "double")
            more = s.new(f"fcmp ogt double {total}, {carried[0]}")
            largest = s.new(f"select i1 {more}, double {total}, double {carried[0]}")
            nothing = s.new(f"fmul double {total}, 0.0")
            return [largest, s.new(f"fadd double {carried[1]}, {nothing}")]

        largest, unknown = s.counted(
            f"expm_norm{self.k}", 0, self.rows, row, ["0.0", "0.0"], "double"
        )
        return largest, unknown

    def of_finite(self, norm: str) -> None:
        """Scaled by a power of 2, by the approximation, and squared."""
        s, bounds = self.s, list(BOUNDS[self.size].values())
        degree = "0"
        for bound in bounds[:-1]:
            above = s.new(f"fcmp ogt double {norm}, {_hex(bound)}")
            degree = s.new(f"add i64 {degree}, {s.new(f'zext i1 {above} to i64')}")
        ratio = s.new(f"fdiv double {norm}, {_hex(bounds[-1])}")
        exponent = s.new(f"lshr i64 {s.new(f'bitcast double {ratio} to i64')}, 52")
        times = s.most(s.minus(exponent, 1022), 0)
        bits = s.new(f"shl i64 {s.new(f'sub i64 1023, {times}')}, 52")
        scale = s.new(f"bitcast i64 {bits} to double")
        x = self.approximation(scale, degree)
        with self.when("large", f"sgt i64 {times}, 0"), self.each("square", times):
            self.product(x, x, self.scratch[1])
            self.copy(x, self.scratch[1])
        self.copy(self.to, x)

    def copy(self, to: str, source: str) -> None:
        """Copy a matrix."""
        nbytes = self.s.times(self.count, self.size)
        self.s.put(
            f"call void @llvm.memmove.p0.p0.i64(ptr {to}, ptr {source}, i64 {nbytes}, i1 false)"
        )

    def approximation(self, scale: str, degree: str) -> str:
        """Where the approximation at the scaled matrix is: ``(v - u)^-1 (v + u)``."""
        s, (a, p2, p4, p6, p8, w, v) = self.s, self.scratch
        highest = len(BOUNDS[self.size]) - 1
        with self.each("scaled") as i:
            x = s.new(f"fmul double {self.wide(self.load(self.source, i))}, {scale}")
            self.put(x if self.t == "double" else s.new(f"fptrunc double {x} to float"), a, i)
        self.product(a, a, p2)
        with self.when("fourth", f"sge i64 {degree}, 1"):
            self.product(p2, p2, p4)
        with self.when("sixth", f"sge i64 {degree}, 2"):
            self.product(p4, p2, p6)
        if highest > 3:
            with self.when("eighth", f"eq i64 {degree}, 3"):
                self.product(p6, p2, p8)
        row = s.bytes_at(self.table, (degree, _OF_DEGREE * self.size))
        c = [self.load(row, j) for j in range(_OF_DEGREE)]
        powers = (p2, p4, p6, p8)
        with self.each("parts") as i:
            self.put(self.combined(c[1:5], powers, i), w, i)
            self.put(self.combined(c[6:10], powers, i), v, i)
        with self.each("diagonal", self.rows) as i:
            j = s.new(f"mul i64 {i}, {s.new(f'add i64 {self.rows}, 1')}")
            for number, place in ((c[0], w), (c[5], v)):
                self.put(s.new(f"fadd {self.t} {number}, {self.load(place, j)}"), place, j)
        if highest > 3:
            with self.when("highest", f"eq i64 {degree}, {highest}"):
                with self.each("odd") as i:
                    self.put(self.combined(c[10:13], powers[:3], i), p8, i)
                self.product(p6, p8, w, more=True)
                with self.each("even") as i:
                    self.put(self.combined(c[13:16], powers[:3], i), p8, i)
                self.product(p6, p8, v, more=True)
        self.product(a, w, p8)
        return self.quotient(p8, v, w)

    def quotient(self, u: str, v: str, to: str) -> str:
        """``(v - u)^-1 (v + u)``, at ``to``."""
        s = self.s
        with self.each("sides") as i:
            x, y = self.load(u, i), self.load(v, i)
            self.put(s.new(f"fadd {self.t} {y}, {x}"), to, i)
            self.put(s.new(f"fsub {self.t} {y}, {x}"), v, i)
        given = [self.n, self.n, v, self.n, self.pivots, to, self.n, self.info]
        s.put(f"call void {self.gesv}({', '.join(f'ptr {p}' for p in given)})")
        return to


def _hex(x: float) -> str:
    """A float64 as LLVM reads it."""
    return f"0x{struct.pack('>d', x).hex().upper()}"
