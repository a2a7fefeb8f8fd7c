"""LLVM IR of weighted sums of pixels, and of their gradients.

A task has an example and some points, or some channels. Where pixels are in a plane and what they
count follows from the places of each axis, once for all channels: it is kept on the stack for a
block of points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, data_of, word
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.graph.type import numpy_dtype

#: Points of a block.
BLOCK = 256
#: The words after threads, tasks and 1, before the arrays: parts of an example's work, points,
#: channels, channels of a task, elements of a plane; then come the sizes of the axes.
HEAD = ("%parts", "%P", "%C", "%G", "%S")


@dataclass(frozen=True)
class PixelPlan:
    """What the text depends on. ``kind``: ``sums``, ``image`` or ``weights``, gradients of those.

    Arrays are: the image (``sums`` and ``weights``), places, weights, the results' gradient
    (``image`` and ``weights``), and the results.
    """

    kind: str
    taps: tuple[int, ...]
    weighted: bool
    dtype: str

    @property
    def terms(self) -> list[tuple[int, ...]]:
        """The numbers of the places of each term."""
        first = [sum(self.taps[:i]) for i in range(len(self.taps))]
        return [*product(*(range(f, f + n) for f, n in zip(first, self.taps)))]

    @property
    def arrays(self) -> list[str]:
        """Names of the arrays in their order."""
        count = range(sum(self.taps))
        names = ["%x"] if self.kind != "image" else []
        names += [f"%at{k}" for k in count]
        names += [f"%w{k}" for k in count] if self.weighted else []
        names += ["%dy"] if self.kind != "sums" else []
        return names + ([f"%dw{k}" for k in count] if self.kind == "weights" else ["%y"])


def pixels_ir(plan: PixelPlan) -> str:
    """The module of ``kernel``."""
    s = _Pixels(plan)
    s.whole()
    return s.task_module(_MEMSET, *_FMA)


_MEMSET = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"
_FMA = [
    "declare float @llvm.fma.f32(float, float, float)",
    "declare double @llvm.fma.f64(double, double, double)",
]


class _Pixels(FunctionBuilder):
    """Builds the function of tasks."""

    def __init__(self, plan: PixelPlan) -> None:
        super().__init__()
        self.plan, self.kind = plan, VALUES[plan.dtype]
        self.size = int(numpy_dtype(plan.dtype).itemsize)
        self.count = len(plan.terms)

    def whole(self) -> None:
        """Append the function ``rows`` but its end."""
        plan, axes = self.plan, len(self.plan.taps)
        names = [*HEAD, *(f"%n{i}" for i in range(axes))]
        entry = [line for i, name in enumerate(names, 3) for line in word(name, i)]
        for i, name in enumerate(plan.arrays, 3 + len(names)):
            entry += data_of(name, i)
        entry += [f"%size{i} = trunc i64 %n{i} to i32" for i in range(axes)]
        room = self.count * BLOCK
        entry += [f"%places = alloca [{room} x i32], align 64"]
        entry += [f"%shares = alloca [{room} x {self.kind}], align 64"]
        self.tasks(entry, "task")
        n, part = self.new("udiv i64 %r, %parts"), self.new("urem i64 %r, %parts")
        if plan.kind == "image":
            self._of_channels(n, part)
            return
        first = self.times(part, BLOCK)
        self._block(n, first)

    def _of_channels(self, n: str, part: str) -> None:
        """Planes of a task's channels, to which all points add."""
        low = self.times(part, "%G")
        high = self.least(self.plus(low, "%G"), "%C")
        channels = self.minus(high, low)
        planes = self._plane("%y", n, low, "%S")
        nbytes = self.affine(self.times(channels, "%S"), self.size)
        self.put(f"call void @llvm.memset.p0.i64(ptr {planes}, i8 0, i64 {nbytes}, i1 false)")

        blocks = self.new(f"udiv i64 {self.affine('%P', 1, BLOCK - 1)}, {BLOCK}")
        with self.each("block", 0, blocks) as b:
            first = self.affine(b, BLOCK)
            count = self._points(n, first, self.plan.weighted)
            with self.each("channel", low, high) as c:
                plane, dy = self._plane("%y", n, c, "%S"), self._plane("%dy", n, c, "%P")
                with self.each("point", 0, count) as p:
                    self._scattered(p, plane, self._element(dy, first))

    def _scattered(self, p: str, plane: str, dy: str) -> None:
        value = self.new(f"load {self.kind}, ptr {self._element(dy, p)}, align {self.size}")
        for k in range(self.count):
            at = self._kept("%places", "i32", k, p, "")
            there, term = self.new(f"icmp sge i32 {at}, 0"), value
            if self.plan.weighted:
                share = self._kept("%shares", self.kind, k, p, "")
                term = self.new(f"fmul {self.kind} {value}, {share}")

            with self.when(f"there{k}", there):
                place = self._element(plane, self.new(f"zext i32 {at} to i64"))
                old = self.new(f"load {self.kind}, ptr {place}, align {self.size}")
                new = self.new(f"fadd {self.kind} {old}, {term}")
                self.put(f"store {self.kind} {new}, ptr {place}, align {self.size}")

    def _block(self, n: str, first: str) -> None:
        """A block of points, of all channels: sums, or gradients of weights."""
        sums = self.plan.kind == "sums"
        count = self._points(n, first, self.plan.weighted and sums)
        if not sums:
            room = self.count * BLOCK * self.size
            self.put(f"call void @llvm.memset.p0.i64(ptr %shares, i8 0, i64 {room}, i1 false)")

        with self.each("channel", 0, "%C") as c:
            plane = self._plane("%x", n, c, "%S")
            other = self._element(self._plane("%y" if sums else "%dy", n, c, "%P"), first)
            body = self._summed if sums else self._multiplied
            with self.each("point", 0, count, parallel=True) as p:
                body(p, plane, other)
        if not sums:
            with self.each("last", 0, count, parallel=True) as p:
                self._parted(n, first, p)

    def _summed(self, p: str, plane: str, y: str) -> None:
        total = ""
        for k in range(self.count):
            value, _ = self._pixel(plane, k, p)
            if self.plan.weighted:
                share = self._kept("%shares", self.kind, k, p)
                total = self._multiply_add(value, share, total)
            else:
                total = self.new(f"fadd {self.kind} {total}, {value}") if total else value
        self.put(f"store {self.kind} {total}, ptr {self._element(y, p)}, align {self.size}{ACCESS}")

    def _multiplied(self, p: str, plane: str, dy: str) -> None:
        """A channel's part of what each share's gradient is."""
        slope = self._load(self.kind, self._element(dy, p))
        for k in range(self.count):
            place = self._element("%shares", self.affine(p, 1, k * BLOCK))
            value, there = self._pixel(plane, k, p)
            own = self.new(f"select i1 {there}, {self.kind} {slope}, {self.kind} 0.0")
            new = self._multiply_add(value, own, self._load(self.kind, place))
            self.put(f"store {self.kind} {new}, ptr {place}, align {self.size}{ACCESS}")

    def _parted(self, n: str, first: str, p: str) -> None:
        """Gradients of weights, from those of their products."""
        terms = self.plan.terms
        every = range(sum(self.plan.taps))
        weights = [self._given(f"%w{k}", self.kind, n, first, p) for k in every]
        shares = [self._kept("%shares", self.kind, k, p) for k in range(self.count)]
        for k in range(len(weights)):
            total = ""
            for term, share in zip(terms, shares):
                if k in term:
                    others = [weights[j] for j in term if j != k]
                    if others:
                        total = self._multiply_add(share, self._product(others), total)
                    else:
                        total = share
            to = self._element(self._element(self._plane(f"%dw{k}", n, "0", "%P", "1"), first), p)
            self.put(f"store {self.kind} {total}, ptr {to}, align {self.size}{ACCESS}")

    def _points(self, n: str, first: str, shares: bool) -> str:
        """Keep places in a plane (-1: none) and shares of a block's points; how many there are."""
        count = self.least(str(BLOCK), self.minus("%P", first))
        axes = range(len(self.plan.taps))
        with self.each("place", 0, count, parallel=True) as p:
            at = [self._given(f"%at{k}", "i32", n, first, p) for k in range(sum(self.plan.taps))]
            axis = [i for i in axes for _ in range(self.plan.taps[i])]
            inside = [self.new(f"icmp ult i32 {v}, %size{axis[k]}") for k, v in enumerate(at)]
            read = range(len(at) if shares else 0)
            weights = [self._given(f"%w{k}", self.kind, n, first, p) for k in read]
            for number, term in enumerate(self.plan.terms):
                place, there = at[term[0]], inside[term[0]]
                for k in term[1:]:
                    place = self.new(f"mul i32 {place}, %size{axis[k]}")
                    place = self.new(f"add i32 {place}, {at[k]}")
                    there = self.new(f"and i1 {there}, {inside[k]}")
                found = self.new(f"select i1 {there}, i32 {place}, i32 -1")
                self._keep("%places", "i32", number, p, found)
                if shares:
                    share = self._product([weights[k] for k in term])
                    share = self.new(f"select i1 {there}, {self.kind} {share}, {self.kind} 0.0")
                    self._keep("%shares", self.kind, number, p, share)
        return count

    # -- pieces -----------------------------------------------------------------------------------

    def _pixel(self, plane: str, k: int, p: str) -> tuple[str, str]:
        """The pixel of a term, 0 where there is none; and whether there is one."""
        at = self._kept("%places", "i32", k, p)
        there = self.new(f"icmp sge i32 {at}, 0")
        safe = self.new(f"select i1 {there}, i32 {at}, i32 0")
        place = self.new(f"getelementptr {self.kind}, ptr {plane}, i32 {safe}")
        value = self._load(self.kind, place)
        return self.new(f"select i1 {there}, {self.kind} {value}, {self.kind} 0.0"), there

    def _product(self, factors: Sequence[str]) -> str:
        found = factors[0]
        for f in factors[1:]:
            found = self.new(f"fmul {self.kind} {found}, {f}")
        return found

    def _multiply_add(self, a: str, b: str, c: str) -> str:
        if not c:
            return self.new(f"fmul {self.kind} {a}, {b}")
        given = ", ".join(f"{self.kind} {v}" for v in (a, b, c))
        return self.new(f"call {self.kind} @llvm.fma.f{8 * self.size}({given})")

    def _element(self, base: str, i: str, kind: str = "") -> str:
        return self.new(f"getelementptr {kind or self.kind}, ptr {base}, i64 {i}")

    def _load(self, kind: str, at: str, access: str = ACCESS) -> str:
        nbytes = 4 if kind == "i32" else self.size
        return self.new(f"load {kind}, ptr {at}, align {nbytes}{access}")

    def _plane(self, array: str, n: str, c: str, length: str, channels: str = "%C") -> str:
        row = self.new(f"add i64 {self.new(f'mul i64 {n}, {channels}')}, {c}")
        return self._element(array, self.times(row, length))

    def _given(self, array: str, kind: str, n: str, first: str, p: str) -> str:
        """An element of an array (N, P)."""
        row = self.new(f"add i64 {self.new(f'mul i64 {n}, %P')}, {first}")
        return self._load(kind, self._element(self._element(array, row, kind), p, kind))

    def _kept(self, array: str, kind: str, k: int, p: str, access: str = ACCESS) -> str:
        return self._load(kind, self._element(array, self.affine(p, 1, k * BLOCK), kind), access)

    def _keep(self, array: str, kind: str, k: int, p: str, value: str) -> None:
        nbytes = 4 if kind == "i32" else self.size
        at = self._element(array, self.affine(p, 1, k * BLOCK), kind)
        self.put(f"store {kind} {value}, ptr {at}, align {nbytes}{ACCESS}")
