"""Fourier transforms of short lines in the lanes of vectors, as LLVM IR: the arithmetic.

A tile is an array of vectors, two for each complex number of the lines: real parts, imaginary
parts. A transform of n = r m numbers is a pass from one tile to another for each factor r
(Stockham's order, so results need no reordering): transforms of r numbers in straight code, whose
results are turned by roots of unity. Those are by Cooley and Tukey's splits, and of primes sums
over pairs of numbers. A pass reads numbers that are n / r apart. Where these are whole pages or
parts of them, which share few lines of the first cache, the tile has a gap of one number between
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from symdnn.cpu.ir.builder import Builder
from symdnn.cpu.math.lanes_ir import literal

#: The largest factor of a pass, and the largest prime.
_MOST, MOST_PRIME = 10, 13
#: A line of up to so many numbers is one pass.
_STRAIGHT = 16

#: Numbers so far apart, or a multiple, share few lines of the first cache.
_ALIASED = 16

#: The registers of real and imaginary parts.
Pair = tuple[str, str]


class Tile(NamedTuple):
    """The address of a tile, which has a gap of a number behind each ``period`` of them."""

    address: str
    period: int = 0

    def place(self, j: int) -> int:
        """The place of a part of a number."""
        return j + (2 * (j // (2 * self.period)) if self.period else 0)


def root(k: int, n: int) -> tuple[float, float]:
    """``exp(2 pi i k / n)``, of exact symmetry."""
    turn = Fraction(k % n, n)
    quarter = round(4 * turn)
    angle = 2 * math.pi * float(turn - Fraction(quarter, 4))
    c, s = math.cos(angle), math.sin(angle)
    return ((c, s), (-s, c), (-c, -s), (s, -c))[quarter % 4]


@cache
def factors_of(n: int) -> tuple[int, ...] | None:
    """The factors of the passes for ``n`` numbers: as few as there can be; None without any."""
    if n <= _STRAIGHT and all(p <= MOST_PRIME for p in _primes(n)):
        return (n,) if n > 1 else ()
    best: tuple[int, ...] | None = None
    for r in (*range(_MOST, 1, -1), 11, 13):
        if n % r == 0 and (rest := factors_of(n // r) if n > r else ()) is not None:
            found = tuple(sorted((r, *(rest if n // r > 1 else ()))))
            if max(found) <= MOST_PRIME and (
                best is None or (len(found), sum(found)) < (len(best), sum(best))
            ):
                best = found
    return best


def _primes(n: int) -> list[int]:
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return found


class Butterflies(Builder):
    """Builds transforms from tile to tile; ``sign`` is that of the exponent."""

    def __init__(self, lanes: int, dtype: str, sign: int) -> None:
        super().__init__(lanes, dtype)
        self.sign = sign
        #: Definitions of tables.
        self.tables: list[str] = []
        self._tags = 0

    # -- numbers --------------------------------------------------------------------------------

    def tag(self) -> str:
        """A name that is made once."""
        self._tags += 1
        return f"t{self._tags}"

    def digits(self, value: float) -> str:
        """A constant."""
        return literal(value, self.element)

    def everywhere(self, value: float) -> str:
        """A constant in all lanes."""
        return f"<{', '.join([f'{self.element} {self.digits(value)}'] * self.width)}>"

    def table(self, values: Sequence[float]) -> str:
        """The name of a constant table."""
        name = f"@table{len(self.tables)}"
        words = ", ".join(f"{self.element} {self.digits(v)}" for v in values)
        self.tables.append(f"{name} = internal constant [{len(values)} x {self.element}] [{words}]")
        return name

    def times_number(self, a: str, b: str) -> str:
        """a * b"""
        return self.new(f"fmul {self.vector} {a}, {b}")

    def minus_of(self, a: str) -> str:
        """-a"""
        return self.new(f"fneg {self.vector} {a}")

    def number_at(self, tile: Tile, k: str | int) -> str:
        """The address of a complex number of all lanes."""
        return self.real_at(tile, 2 * k if isinstance(k, int) else self.times(k, 2))

    def real_at(self, tile: Tile, j: str | int) -> str:
        """The address of a part of a number of all lanes."""
        if isinstance(j, int):
            return self.at(tile.address, self.width * tile.place(j))
        if tile.period:
            gaps = self.new(f"udiv i64 {j}, {2 * tile.period}")
            j = self.plus(j, self.times(gaps, 2))
        return self.at(tile.address, self.times(j, self.width))

    def pair(self, at: str) -> Pair:
        """Load a complex number of all lanes."""
        return self.load(at), self.load(self.at(at, self.width))

    def put_pair(self, at: str, value: Pair) -> None:
        """Store a complex number of all lanes."""
        self.store(value[0], at)
        self.store(value[1], self.at(at, self.width))

    def sum_of(self, a: Pair, b: Pair) -> Pair:
        """a + b"""
        return self.add(a[0], b[0]), self.add(a[1], b[1])

    def difference(self, a: Pair, b: Pair) -> Pair:
        """a - b"""
        return self.sub(a[0], b[0]), self.sub(a[1], b[1])

    def product(self, a: Pair, w: Pair) -> Pair:
        """a * w"""
        low = self.minus_of(self.times_number(a[1], w[1]))
        high = self.times_number(a[1], w[0])
        return self.multiply_add(a[0], w[0], low), self.multiply_add(a[0], w[1], high)

    def turned(self, a: Pair, k: int, n: int) -> Pair:
        """``a`` times the root of unity ``exp(sign 2 pi i k / n)``."""
        k = self.sign * k % n
        if k * 4 % n == 0:
            re, im = a
            for _ in range(k * 4 // n % 4 % 2):
                re, im = self.minus_of(im), re
            return (self.minus_of(re), self.minus_of(im)) if k * 4 // n >= 2 else (re, im)
        c, s = root(k, n)
        if k * 8 % n == 0:
            half, (re, im) = self.everywhere(abs(c)), a
            if s < 0:
                re, im = self.add(re, im), self.sub(im, re)
            else:
                re, im = self.sub(re, im), self.add(re, im)
            if c < 0:
                re, im = (im, self.minus_of(re)) if s < 0 else (self.minus_of(im), re)
            return self.times_number(re, half), self.times_number(im, half)
        return self.product(a, (self.everywhere(c), self.everywhere(s)))

    # -- transforms -----------------------------------------------------------------------------

    def transform(self, values: Sequence[Pair]) -> list[Pair]:
        """The transform of so many numbers, in straight code."""
        n = len(values)
        if n == 1:
            return list(values)
        first = 4 if n % 4 == 0 and n > 4 else _primes(n)[0]
        if n == 2:
            a, b = values
            return [self.sum_of(a, b), self.difference(a, b)]
        if first == n:
            return self._of_prime(values)
        rest = n // first
        parts = [self.transform(values[i::first]) for i in range(first)]
        found: list[Pair] = [("", "")] * n
        for k in range(rest):
            row = [self.turned(part[k], i * k, n) if i * k else part[k]
                   for i, part in enumerate(parts)]  # fmt: skip
            for j, value in enumerate(self.transform(row)):
                found[k + j * rest] = value
        return found

    def _of_prime(self, values: Sequence[Pair]) -> list[Pair]:
        """By the sums and the differences of numbers with opposite roots."""
        n, first = len(values), values[0]
        half = range(1, (n + 1) // 2)
        sums = [self.sum_of(values[j], values[n - j]) for j in half]
        apart = [self.difference(values[j], values[n - j]) for j in half]
        total = first
        for s in sums:
            total = self.sum_of(total, s)
        found: list[Pair] = [total, *[("", "")] * (n - 1)]
        for k in half:
            even, odd = first, ("", "")
            for j, s, d in zip(half, sums, apart, strict=True):
                c, sine = (self.everywhere(v) for v in root(self.sign * j * k, n))
                even = (self.multiply_add(s[0], c, even[0]), self.multiply_add(s[1], c, even[1]))
                if j == 1:
                    odd = self.times_number(d[0], sine), self.times_number(d[1], sine)
                else:
                    odd = (self.multiply_add(d[0], sine, odd[0]),
                           self.multiply_add(d[1], sine, odd[1]))  # fmt: skip
            found[k] = self.sub(even[0], odd[1]), self.add(even[1], odd[0])
            found[n - k] = self.add(even[0], odd[1]), self.sub(even[1], odd[0])
        return found

    def gap(self, n: int) -> int:
        """The period of gaps in a tile for the passes of ``n`` numbers; 0 where it has none."""
        factors = factors_of(n) or (n,)
        return _period(n, factors[0]) if factors else 0

    def passes(self, n: int, source: Tile, other: str) -> tuple[Tile, str]:
        """The transform of the first tile; returns the tile of the result, and the other one."""
        factors = factors_of(n)
        assert factors is not None, f"no passes for {n} numbers"
        left, done = n, 1
        for i, r in enumerate(factors):
            left //= r
            target = Tile(other, _period(n, factors[i + 1]) if left > 1 else 0)
            self._pass(source, target, r, left, done)
            source, other, done = target, source.address, done * r
        return source, other

    def _pass(self, source: Tile, target: Tile, r: int, m: int, s: int) -> None:
        """Transforms of ``r`` numbers that are ``s m`` apart, for ``m`` turns and ``s`` places."""
        step = 2 * self.width  # elements of a complex number of all lanes
        apart = (s * m + (1 if source.period else 0)) * step

        def one(a: str, b: str, roots: Sequence[Pair]) -> None:
            found = self.transform([self.pair(self.at(a, k * apart)) for k in range(r)])
            for k, value in enumerate(found):
                value = self.product(value, roots[k - 1]) if k and roots else value
                self.put_pair(self.at(b, k * s * step), value)

        def places(a: str, b: str, roots: Sequence[Pair]) -> None:
            if s == 1:
                one(a, b, roots)
                return
            with self.each(self.tag(), 0, str(s)) as q:
                offset = self.times(q, step)
                one(self.at(a, offset), self.at(b, offset), roots)

        if m == 1:
            places(source.address, target.address, ())
            return
        roots = [root(self.sign * p * k, r * m) for p in range(m) for k in range(1, r)]
        turns = self.table([part for pair in roots for part in pair])
        with self.each(self.tag(), 0, str(m)) as p:
            at = self.at(turns, self.times(p, 2 * (r - 1)))
            numbers = [self.broadcast(self.at(at, k)) for k in range(2 * (r - 1))]
            places(
                self.at(source.address, self.times(p, step * s)),
                self.number_at(target, self.times(p, s * r)),
                list(zip(numbers[::2], numbers[1::2], strict=True)),
            )


def _period(n: int, r: int) -> int:
    """Of the gaps in a tile from which ``n / r`` numbers apart are read."""
    return n // r if n // r % _ALIASED == 0 else 0
