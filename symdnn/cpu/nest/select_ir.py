"""LLVM IR of selections: elements at some places of a line's order, without sorting the line.

A *window* of the order is between two numbers of a sorted sample of the line. One pass over the
line counts what is below it and copies what is inside, which is sorted. So it has the elements at
all places near the one that is looked for. Where it has not, as in a line whose sample deceives,
the whole line is sorted: the sample decides about time alone.

A partition has the elements before the chosen one, those equal to it, and those behind it, each in
the order of the line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from symdnn.cpu.ir import chosen_ir
from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.nest.sort_ir import SortBuilder, SortPlan, sort_words
from symdnn.graph.type import TensorType, numpy_dtype

#: Elements that are counted, then copied, while they are in the first cache.
_BLOCK = 2048
#: An odd factor that makes the places of a sample irregular.
_MIX = 0x9E3779B1
#: Bytes of a window: elements below its low number, and up to it; those between its numbers, which
#: are in the buffer; elements up to its high number; the places that it has end here; the numbers.
_WINDOW = ("less", "first", "kept", "behind", "end", "low", "high")


@dataclass(frozen=True)
class SelectPlan(SortPlan):
    """A plan of sorts, where ``how`` is ``elements``, ``parted`` or ``places`` of a partition.

    ``vectors``: elements that are chosen are moved together in vectors.
    """

    vectors: bool = False

    @property
    def in_result(self) -> bool:
        """Never: the line is read once more when the window is known."""
        return False

    @property
    def splits_vectors(self) -> bool:
        """Whether a partition splits whole vectors of a line."""
        same = self.how == "places" or self.work == self.dtype
        return self.dense[1] and same and self.vectors

    @property
    def copies(self) -> bool:
        """Whether a line is copied to scratch before."""
        return not self.dense[0] or self.work != self.dtype


def select_words(plan: SelectPlan) -> list[str]:
    """The words of a sort, and those of selections.

    ``places`` is the address of ``count`` int64 places, ``to`` of the places in the result where
    they belong. A sample has ``sample`` elements, 0 where whole lines are sorted, and a window
    ``reach`` of them on both sides.
    """
    return [*sort_words(plan), "places", "to", "count", "sample", "reach"]


def select_ir(plan: SelectPlan) -> str:
    """The module of ``kernel``."""
    s = _SelectBuilder(plan, select_words(plan))
    s.loops()
    move = "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)"
    functions = [*_window(plan.work, plan.vectors), *_places(plan.work, plan.how == "elements")]
    return s.whole_module([move, *(chosen_ir.CHOSEN if plan.vectors else ()), *functions])


class _SelectBuilder(SortBuilder):
    """Builds the function of tasks: a line, or a band of lines that are turned."""

    plan: SelectPlan
    entry = (f"%windows = alloca [{len(_WINDOW)} x i64], align 64",)

    def _line(self, x: str, y: str) -> None:
        line = x
        if self.plan.copies:
            line = "%mine"
            bits = 8 * int(numpy_dtype(self.plan.work).itemsize)
            with self.over_line() as i:
                self.store(self.plan.work, self.element(x, i), self.slot(bits, line, i))
        window = self.new("getelementptr i64, ptr %windows, i64 0")
        # Nothing is in it yet.
        self.put(f"store i64 %n, ptr {window}")
        if self.plan.how == "elements":
            self._elements(line, y, window)
        else:
            self._parted(line, y, window)

    def _elements(self, line: str, y: str, window: str) -> None:
        tag = self.tag()
        with self.each(f"place{tag}", 0, "%count") as k:
            place, to = (self.new(f"load i64, ptr {self._word(w, k)}") for w in ("places", "to"))
            found = self._found(line, place, window)
            self.store(self.plan.dtype, self.cast(found, self.plan.work, self.plan.dtype),
                       self.place(1, y, to))  # fmt: skip

    def _word(self, name: str, k: str) -> str:
        base = self.new(f"inttoptr i64 %{name} to ptr")
        return self.new(f"getelementptr i64, ptr {base}, i64 {k}")

    def _found(self, line: str, place: str, window: str) -> str:
        """The element at a place of the order."""
        t = VALUES[self.plan.work]
        given = (
            f"ptr {line}, i64 %n, i64 {place}, ptr %other, ptr {window}, ptr %sorted_by, "
            "i64 %sample, i64 %reach"
        )
        return self.new(f"call {t} @at_place({given})")

    def _split_vectors(self, tag: str, line: str, y: str, value: str) -> tuple[str, list[str]]:
        """Append the loop over a line's vectors; returns where it ends, and the counts so far.

        Lanes behind those that belong to a side are written as well, and over again.
        """
        work, places = self.plan.work, self.plan.how == "places"
        t, bits = VALUES[work], 8 * int(numpy_dtype(work).itemsize)
        lanes = chosen_ir.LANES if places else chosen_ir.lanes_of(bits)
        own, wide = (64 if places else bits), f"<{lanes} x {t}>"
        order = _Order(self, work, lanes)
        every, is_nan = order.splat(value), order.splat_bool(_Order(self, work).is_nan(value))

        def split(i: str, counts: list[str]) -> list[str]:
            less, equal, more = counts
            x = self.new(f"load {wide}, ptr {self.slot(bits, line, i)}, align {bits // 8}")
            before, same = order.before(x, every, is_nan), order.same(x, every, is_nan)
            chosen = [chosen_ir.chosen_bits(self, mask, lanes) for mask in (before, same)]
            both = self.new(f"or i64 {chosen[0]}, {chosen[1]}")
            behind = self.new(f"xor i64 {both}, {(1 << lanes) - 1}")
            for some, base, at in ((chosen[0], y, less), (behind, "%other", more)):
                if places:
                    kind, found = "<8 x i64>", chosen_ir.chosen_numbers(self, i, some)
                else:
                    kind, found = wide, chosen_ir.chosen_first(self, x, wide, some)
                self.put(f"store {kind} {found}, ptr {self.slot(own, base, at)}, align {own // 8}")
            found = chosen_ir.count_of(self, chosen[1])
            with self.when(f"some{tag}", self.new(f"icmp ne i64 {found}, 0")):
                self._keep_equal(tag, line, i, chosen[1], equal, found)
            return [self.plus(less, chosen_ir.count_of(self, chosen[0])), self.plus(equal, found),
                    self.plus(more, chosen_ir.count_of(self, behind))]  # fmt: skip

        return self.carried(f"vectors{tag}", 0, "%n", split, ["0"] * 3, "i64", step=lanes)

    def _keep_equal(self, tag: str, line: str, i: str, chosen: str, equal: str, count: str) -> None:
        """Append the loop over the lanes of a vector that are equal to the value."""
        word = f"i{8 * int(numpy_dtype(self.plan.work).itemsize)}"

        def keep(k: str, left: list[str]) -> list[str]:
            lane = self.new(f"call i64 @llvm.cttz.i64(i64 {left[0]}, i1 false)")
            at, shown = self.plus(i, lane), ""
            to = self.minus(self.minus(self.minus("%n", 1), equal), k)
            if self.plan.how == "places":
                shown, kind = at, "i64"
            else:
                kind = word
                shown = self.new(f"load {word}, ptr {self.slot(int(word[1:]), line, at)}")
            self.put(f"store {kind} {shown}, ptr {self.slot(int(kind[1:]), '%other', to)}")
            return [self.new(f"and i64 {left[0]}, {self.minus(left[0], 1)}")]

        self.declared.add("declare i64 @llvm.cttz.i64(i64, i1)")
        self.counted(f"equal{tag}", 0, count, keep, [chosen], "i64")

    def _parted(self, line: str, y: str, window: str) -> None:
        """Append the loop over a line that writes the elements before the chosen one, and keeps
        the others: those behind it from the beginning of a buffer on, equal ones from its end on.
        """
        work, ours = self.plan.work, "int64" if self.plan.how == "places" else self.plan.work
        t, bits = VALUES[work], 8 * int(numpy_dtype(work).itemsize)
        place = self.new(f"load i64, ptr {self._word('places', '0')}")
        value = self._found(line, place, window)
        order, kept = _Order(self, work), 8 * int(numpy_dtype(ours).itemsize)
        is_nan = order.is_nan(value)

        def leave(shown: str, to: str) -> None:
            dtype = "int64" if ours == "int64" else self.plan.dtype
            self.store(dtype, self.cast(shown, ours, dtype), self.place(1, y, to))

        def split(i: str, counts: list[str]) -> list[str]:
            less, equal, more = counts
            x = self.new(f"load {t}, ptr {self.slot(bits, line, i)}")
            before, same = order.before(x, value, is_nan), order.same(x, value, is_nan)
            shown = i if self.plan.how == "places" else x
            # Each place is written again unless the element belongs there.
            leave(shown, less)
            for to in (more, self.minus(self.new("sub i64 %n, 1"), equal)):
                self.store(ours, shown, self.slot(kept, "%other", to))
            after = self.new(f"xor i1 {self.new(f'or i1 {before}, {same}')}, true")
            return [self.new(f"add i64 {a}, {self.new(f'zext i1 {b} to i64')}")
                    for a, b in zip(counts, (before, same, after), strict=True)]  # fmt: skip

        tag = self.tag()
        begin, counts = "0", ["0"] * 3
        if self.plan.splits_vectors:
            begin, counts = self._split_vectors(tag, line, y, value)
        _, (less, equal, more) = self.carried(f"split{tag}", begin, "%n", split, counts, "i64")
        behind = self.plus(less, equal)

        def rest(name: str, count: str, source: Callable[[str], str], first: str) -> None:
            some = self.new(f"icmp sgt i64 {count}, 0")
            with (
                self.when(f"{name}s{tag}", some),
                self.each(f"{name}{tag}", 0, count, parallel=True) as i,
            ):
                found = self.value(ours, self.slot(kept, "%other", source(i)), ACCESS)
                leave(found, self.plus(first, i))

        end = self.minus("%n", 1)
        rest("same", equal, lambda i: self.minus(end, i), less)
        rest("more", more, lambda i: i, behind)


class _Order:
    """Comparisons of numbers of a dtype, or vectors of them, with NaN behind all others."""

    def __init__(self, b: FunctionBuilder, dtype: str, lanes: int = 1) -> None:
        self._b, self._lanes, self._element = b, lanes, VALUES[dtype]
        self._t, self._bool = (
            (f"<{lanes} x {t}>" if lanes > 1 else t) for t in (self._element, "i1")
        )
        self.is_float = TensorType(dtype).is_float
        self._sign = "u" if dtype.startswith("u") else "s"

    def less(self, a: str, b: str) -> str:
        """Whether ``a < b``; False of NaN."""
        how = "fcmp olt" if self.is_float else f"icmp {self._sign}lt"
        return self._b.new(f"{how} {self._t} {a}, {b}")

    def up_to(self, a: str, b: str) -> str:
        """Whether ``a <= b``; False of NaN."""
        how = "fcmp ole" if self.is_float else f"icmp {self._sign}le"
        return self._b.new(f"{how} {self._t} {a}, {b}")

    def is_nan(self, a: str) -> str:
        return self._b.new(f"fcmp uno {self._t} {a}, {a}") if self.is_float else "false"

    def splat(self, value: str) -> str:
        """A number in all lanes."""
        return self._every(self._t, f"{self._element} {value}")

    def splat_bool(self, value: str) -> str:
        """A boolean in all lanes."""
        return self._every(self._bool, f"i1 {value}")

    def _every(self, kind: str, value: str) -> str:
        begun = self._b.new(f"insertelement {kind} poison, {value}, i64 0")
        return self._b.shuffled(kind, begun, "poison", [0] * self._lanes)

    def before(self, x: str, value: str, last: str) -> str:
        """Whether ``x`` comes before ``value``, which ``last`` says to be NaN."""
        less = self.less(x, value)
        if not self.is_float:
            return less
        number = self._b.new(f"fcmp ord {self._t} {x}, {x}")
        numbers = self.both(number, last)
        return self._b.new(f"or {self._bool} {less}, {numbers}")

    def same(self, x: str, value: str, last: str) -> str:
        """Whether ``x`` is at the same place as ``value``."""
        if not self.is_float:
            return self._b.new(f"icmp eq {self._t} {x}, {value}")
        equal = self._b.new(f"fcmp oeq {self._t} {x}, {value}")
        return self._b.new(f"or {self._bool} {equal}, {self.both(self.is_nan(x), last)}")

    def both(self, a: str, b: str) -> str:
        """Whether both hold."""
        return self._b.new(f"and {self._bool} {a}, {b}")


def _word_at(b: FunctionBuilder, name: str) -> str:
    return b.new(f"getelementptr i64, ptr %found, i64 {_WINDOW.index(name)}")


def _limits(dtype: str) -> tuple[str, str]:
    """The lowest and the highest number of a dtype."""
    if not TensorType(dtype).is_float:
        info = np.iinfo(dtype)
        bits = 8 * np.dtype(dtype).itemsize
        return tuple(str(n - (1 << bits) * (n >= 1 << bits - 1)) for n in (info.min, info.max))  # type: ignore[return-value]
    return "0xFFF0000000000000", "0x7FF0000000000000"


def _window(dtype: str, vectors: bool) -> list[str]:
    """The function ``window``, which makes a window around a place of a line."""
    b, t = FunctionBuilder(), VALUES[dtype]
    order = _Order(b, dtype)
    b.put(
        "define internal void @window(ptr %line, i64 %n, i64 %place, ptr %buffer, ptr %found, "
        "ptr %sorted_by, i64 %sample, i64 %reach) noinline #0 {", "entry:",
    )  # fmt: skip
    (low, _), (high, closed) = _bounds(b, dtype)
    bits = 8 * int(numpy_dtype(dtype).itemsize)
    lanes = chosen_ir.lanes_of(bits)
    several, wide = _Order(b, dtype, lanes), f"<{lanes} x {t}>"
    lows, highs = (several.splat(limit) if vectors else "" for limit in (low, high))

    def block(start: str, sofar: list[str]) -> list[str]:
        stop = b.least(b.plus(start, _BLOCK), "%n")

        def count(i: str, own: list[str]) -> list[str]:
            x = b.new(f"load {t}, ptr {_slot(b, t, '%line', i)}{ACCESS}")
            found = order.less(x, low), order.up_to(x, low), order.up_to(x, high)
            return [
                b.new(f"add i32 {a}, {b.new(f'zext i1 {c} to i32')}")
                for a, c in zip(own, found, strict=True)
            ]

        def keep_vector(i: str, at: list[str]) -> list[str]:
            x = b.new(f"load {wide}, ptr {_slot(b, t, '%line', i)}, align {bits // 8}")
            inside = several.both(several.less(lows, x), several.less(x, highs))
            chosen = chosen_ir.chosen_bits(b, inside, lanes)
            kept = chosen_ir.chosen_first(b, x, wide, chosen)
            b.put(f"store {wide} {kept}, ptr {_slot(b, t, '%buffer', at[0])}, align {bits // 8}")
            return [b.plus(at[0], chosen_ir.count_of(b, chosen))]

        def keep(i: str, at: list[str]) -> list[str]:
            x = b.new(f"load {t}, ptr {_slot(b, t, '%line', i)}")
            b.put(f"store {t} {x}, ptr {_slot(b, t, '%buffer', at[0])}")
            inside = b.new(f"and i1 {order.less(low, x)}, {order.less(x, high)}")
            return [b.new(f"add i64 {at[0]}, {b.new(f'zext i1 {inside} to i64')}")]

        counts = b.counted("count", start, stop, count, ["0"] * 3, "i32", parallel=True)
        more = [
            b.new(f"add i64 {a}, {b.new(f'zext i32 {c} to i64')}")
            for a, c in zip(sofar, counts, strict=False)
        ]
        begin, at = start, sofar[3:]
        if vectors:
            begin, at = b.carried("vectors", start, stop, keep_vector, at, "i64", step=lanes)
        return [*more, *b.carried("keep", begin, stop, keep, at, "i64")[1]]

    less, first, behind, kept = b.counted(
        "block", 0, "%n", block, ["0"] * 4, "i64", step=_BLOCK
    )  # fmt: skip
    end = b.new(f"select i1 {closed}, i64 {behind}, i64 %n")
    for name, value in zip(_WINDOW, (less, first, kept, behind, end), strict=False):
        b.put(f"store i64 {value}, ptr {_word_at(b, name)}")
    for name, value in (("low", low), ("high", high)):
        b.put(f"store {t} {value}, ptr {_word_at(b, name)}")
    b.put(f"call i32 %sorted_by(ptr %buffer, i64 {kept}, ptr null)", "ret void", "}")
    return b.lines


def _slot(b: FunctionBuilder, t: str, base: str, i: str) -> str:
    return b.new(f"getelementptr {t}, ptr {base}, i64 {i}")


def _bounds(b: FunctionBuilder, dtype: str) -> list[tuple[str, str]]:
    """The low and the high number of a window, and whether each is of the sample: a number at an
    end of all or of those that are not NaN is not.
    """
    order, limits, t = _Order(b, dtype), _limits(dtype), VALUES[dtype]
    each = b.new("udiv i64 %n, %sample")
    with b.each("draw", 0, "%sample") as i:
        mixed = b.new(f"lshr i64 {b.new(f'and i64 {b.affine(i, _MIX)}, {(1 << 32) - 1}')}, 8")
        near = b.new(f"lshr i64 {b.times(mixed, each)}, 24")  # below ``each``, without a division
        at = b.plus(b.times(i, each), near)
        x = b.new(f"load {t}, ptr {_slot(b, t, '%line', at)}")
        b.put(f"store {t} {x}, ptr {_slot(b, t, '%buffer', i)}")
    b.put("call i32 %sorted_by(ptr %buffer, i64 %sample, ptr null)")
    centre = b.new(f"udiv i64 {b.new('mul i64 %place, %sample')}, %n")
    found = []
    for sign, limit in zip(("sub", "add"), limits, strict=True):
        at = b.new(f"{sign} i64 {centre}, %reach")
        inside = b.new(f"icmp ult i64 {at}, %sample")  # as unsigned, numbers below 0 are large
        near = b.new(f"select i1 {inside}, i64 {at}, i64 0")
        x = b.new(f"load {t}, ptr {_slot(b, t, '%buffer', near)}")
        number = b.new(f"xor i1 {order.is_nan(x)}, true")
        known = b.new(f"and i1 {inside}, {number}")
        found.append((b.new(f"select i1 {known}, {t} {x}, {t} {limit}"), known))
    return found


def _largest(dtype: str) -> list[str]:
    """The function ``largest`` of a line, which is NaN if one is there."""
    b, t, kind = FunctionBuilder(), VALUES[dtype], TensorType(dtype)
    name = "maximum" if kind.is_float else "umax" if dtype.startswith(("u", "b")) else "smax"
    of = f"@llvm.{name}.{ {'float': 'f32', 'double': 'f64'}.get(t, t) }"
    b.put(f"define internal {t} @largest(ptr %line, i64 %n) noinline #0 {{", "entry:")

    def larger(i: str, sofar: list[str]) -> list[str]:
        x = b.new(f"load {t}, ptr {_slot(b, t, '%line', i)}")
        return [b.new(f"call {t} {of}({t} {sofar[0]}, {t} {x})")]

    first = b.new(f"load {t}, ptr %line")
    (found,) = b.counted("each", 0, "%n", larger, [first], t)
    b.put(f"ret {t} {found}", "}")
    return [f"declare {t} {of}({t}, {t})", *b.lines]


def _places(dtype: str, finds_last: bool) -> list[str]:
    """The function ``at_place``: the element at a place, of the window or of a new one.

    If it ``finds_last``, the last one of a long line is its largest, without a window.
    """
    b, t = FunctionBuilder(), VALUES[dtype]
    nan = "0x7FF8000000000000" if TensorType(dtype).is_float else "0"
    given = "ptr %line, i64 %n, i64 %place, ptr %buffer, ptr %found, ptr %sorted_by, i64 %sample"

    def known(name: str, kind: str = "i64") -> str:
        return b.new(f"load {kind}, ptr {_word_at(b, name)}")

    def holds() -> str:
        begun = b.new(f"icmp sge i64 %place, {known('less')}")
        before = b.new(f"icmp slt i64 %place, {known('end')}")
        return b.new(f"and i1 {begun}, {before}")

    b.put(f"define internal {t} @at_place({given}, i64 %reach) noinline #0 {{", "entry:")
    b.put(f"br i1 {holds()}, label %take, label %make", "make:")
    b.put("%some = icmp sgt i64 %sample, 0", "br i1 %some, label %near, label %all", "near:")
    largest = _largest(dtype) if finds_last else []
    if finds_last:
        is_last = b.new(f"icmp eq i64 %place, {b.new('sub i64 %n, 1')}")
        b.put(f"br i1 {is_last}, label %last, label %other", "last:")
        b.put(f"ret {t} {b.new(f'call {t} @largest(ptr %line, i64 %n)')}", "other:")
    b.put(f"call void @window({given}, i64 %reach)")
    b.put(f"br i1 {holds()}, label %take, label %all", "all:")
    size = np.dtype(dtype).itemsize
    b.put(f"%bytes = mul i64 %n, {size}",
          "call void @llvm.memmove.p0.p0.i64(ptr %buffer, ptr %line, i64 %bytes, i1 false)",
          "call i32 %sorted_by(ptr %buffer, i64 %n, ptr null)")  # fmt: skip
    for name, value in zip(_WINDOW, ("0", "0", "%n", "%n", "%n"), strict=False):
        b.put(f"store i64 {value}, ptr {_word_at(b, name)}")
    b.put("br label %take", "take:")
    first, kept = known("first"), known("kept")
    at = b.minus("%place", first)
    inside = b.new(f"icmp ult i64 {at}, {kept}")
    near = b.new(f"select i1 {inside}, i64 {at}, i64 0")
    x = b.new(f"load {t}, ptr {b.new(f'getelementptr {t}, ptr %buffer, i64 {near}')}")
    number = b.new(f"icmp slt i64 %place, {known('behind')}")
    other = b.new(f"select i1 {number}, {t} {known('high', t)}, {t} {nan}")
    found = b.new(f"select i1 {inside}, {t} {x}, {t} {other}")
    low = b.new(f"icmp slt i64 %place, {first}")
    found = b.new(f"select i1 {low}, {t} {known('low', t)}, {t} {found}")
    b.put(f"ret {t} {found}", "}")
    return [*largest, *b.lines]
