"""LLVM IR of sorts: a leaf of nests, whose lines NumPy's sort of contiguous numbers sorts.

That sort is vectorised for each processor, but not stable. An argsort is stable all the same: it
sorts places in the order, unsigned integers that are equal for equal elements, and looks over a
line's places first. Where they span up to 32 bits, the line is copied to 64-bit integers that have
a place above and the index below, and these are all different. Others are sorted by NumPy's
argsort, then the indices of each run of equal elements among themselves.

Long lines are counted instead, by digits of 16 bits of the places, the lowest first: as many as the
places span, of bits that they do not share. A line that is in order is not sorted. Integers of 8
and 16 bits have NumPy's stable sorts, which count. Values of 32 and 64 bits in long lines are
sorted by digits as well (:mod:`symdnn.cpu.nest.radix_ir`), as the places, of which the values are
computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import ACCESS
from symdnn.cpu.ir.scalar_ir import VALUES, store_as
from symdnn.cpu.ir.turn_ir import turn_functions
from symdnn.cpu.nest.lines_ir import LineBuilder, line_words
from symdnn.cpu.nest.radix_ir import radix_function
from symdnn.graph.type import TensorType, numpy_dtype

_OPERANDS = ("x0", "y0")
#: Ways whose results are indices.
_OF_INDICES = ("indices", "stable", "places")


@dataclass(frozen=True)
class SortPlan:
    """What the text depends on: how it sorts, dtypes, axes besides the line's.

    ``how``: ``values``, or ``radix`` for those by digits of 8 bits; ``indices``, or ``stable`` for
    those of NumPy's stable sort. ``work`` is the dtype that is sorted, ``dense`` are the operands
    whose lines are contiguous. ``band``: so many lines that are neighbours in memory are turned
    into contiguous ones, sorted, and back.
    ``digits``: ``argsort`` is of numbers of 16 bits and stable, and lines are sorted by digits.
    """

    how: str
    dtype: str
    work: str
    kept: int
    dense: tuple[bool, bool]
    band: int = 0
    digits: bool = False

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of an element of the operand and of the result."""
        own = int(numpy_dtype(self.dtype).itemsize)
        return own, 8 if self.how in _OF_INDICES else own

    @property
    def in_result(self) -> bool:
        """Whether the line of the result is where it is sorted, so that no scratch is needed."""
        return self.dense[1] and (self.how != "values" or self.work == self.dtype)

    @property
    def uses_scratch(self) -> bool:
        """Whether a line is copied to scratch."""
        copied = self.digits or self.how == "radix"
        copied |= self.how in ("indices", "stable") and not self.dense[0]
        return copied or not self.in_result


@dataclass(frozen=True)
class _Places:
    """The least of a line's places in the order, the bits that all share below, and the span above.

    The span is 0 where the line is in order.
    """

    low: str
    shift: str
    span: str


def sort_words(plan: SortPlan) -> list[str]:
    """Names of the words of the block.

    ``sort`` is the address of NumPy's function for what is sorted, ``argsort`` that for indices.
    A line whose places span up to ``counted`` is sorted by digits, or is in order if that is 0.
    ``scratch`` has for each thread two lines of 8 bytes an element (by digits, of one of its own),
    of ``part`` bytes each, and two for each line of a band. There are ``m`` lines in ``JB`` bands.
    """
    words = ("sort", "argsort", "counted", "scratch", "part", "m", "JB")
    return line_words(words, _OPERANDS, plan.kept)


def sort_ir(plan: SortPlan) -> str:
    """The module of ``kernel``."""
    s = SortBuilder(plan, sort_words(plan))
    s.loops()
    return s.whole_module()


class SortBuilder(LineBuilder):
    """Builds the function of tasks: a line, or a band of lines that are turned."""

    def __init__(self, plan: SortPlan, words: list[str]) -> None:
        super().__init__()
        self.plan, self.words = plan, words

    def whole_module(self, functions: Sequence[str] = ()) -> str:
        """The module of ``kernel``, with these functions and those that turn bands."""
        lines, sizes = list(functions), self.plan.sizes
        if self.plan.how == "radix":
            lines += radix_function(8 * int(numpy_dtype(self.plan.work).itemsize))
        if self.plan.band:
            declared, turns = turn_functions([(sizes[0], True), (sizes[1], False)])
            self.declared |= declared
            lines += turns
        self.declared |= {line for line in lines if line.startswith("declare")}
        return self.module([line for line in lines if not line.startswith("declare")])

    #: Lines before the loop over tasks.
    entry: tuple[str, ...] = ()

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        x, y = self.begin(
            self.words, _OPERANDS, self.plan.kept, *self.entry,
            "%thread32 = call i32 @omp_get_thread_num()", "%thread = zext i32 %thread32 to i64",
            "%slot = mul i64 %thread, %part", f"%slots = mul i64 %slot, {2 + 2 * self.plan.band}",
            "%memory = inttoptr i64 %scratch to ptr",
            "%mine = getelementptr i8, ptr %memory, i64 %slots",
            "%other = getelementptr i8, ptr %mine, i64 %part",
            "%sorted_by = inttoptr i64 %sort to ptr", "%found_by = inttoptr i64 %argsort to ptr",
        )  # fmt: skip
        if self.plan.band:
            self._band(x, y)
        else:
            self._line(x, y)

    def _line(self, x: str, y: str) -> None:
        getattr(self, f"_{self.plan.how}")(x, y, y if self.plan.in_result else "%mine")

    def _band(self, x: str, y: str) -> None:
        """Append what turns a band of lines, sorts each, and turns the results."""
        band = self.plan.band
        first = self.times(self.new("urem i64 %r, %JB"), band)
        count = self.least(self.minus("%m", first), str(band))
        own, made = (self.bytes_at("%mine", ("%part", k)) for k in (2, 2 + band))
        bits = [8 * size for size in self.plan.sizes]
        given = f"ptr {x}, i64 %x0.i, ptr {own}, i64 %part, i64 %n, i64 {count}"
        self.put(f"call void @tile{bits[0]}({given})")

        whole = self.plan.dense[1]
        with self.each("line", 0, count) as k:
            at = self.times(k, "%part")
            result = self.times(k, self.plan.sizes[1])
            end = self.bytes_at(made, at) if whole else self.bytes_at(y, result)
            self._line(self.bytes_at(own, at), end)
        if not whole:
            return
        given = f"ptr {made}, i64 %part, ptr {y}, i64 %y0.i, i64 {count}, i64 %n"
        self.put(f"call void @turn{bits[1]}({given})")

    # -- loops over a line ------------------------------------------------------------------------

    def place(self, k: int, base: str, i: str) -> str:
        """The address of element ``i`` of an operand's line."""
        if not self.plan.dense[k]:
            return self.bytes_at(base, (i, f"%{_OPERANDS[k]}.i"))
        return self.new(f"getelementptr i{8 * self.plan.sizes[k]}, ptr {base}, i64 {i}")

    def over_line(self) -> AbstractContextManager[str]:
        """A loop over the line, whose iterations are independent."""
        self._tags += 1
        return self.each(f"each{self._tags}", 0, "%n", parallel=True)

    def element(self, base: str, i: str) -> str:
        """Element ``i`` of the operand's line, in the dtype of comparisons."""
        found = self.value(self.plan.dtype, self.place(0, base, i), ACCESS)
        return self.cast(found, self.plan.dtype, self.plan.work)

    def store(self, dtype: str, value: str, pointer: str) -> None:
        self.put(*store_as(dtype, value, self.bytes_at(pointer, "0"), ACCESS))

    def slot(self, bits: int, line: str, i: str) -> str:
        return self.new(f"getelementptr i{bits}, ptr {line}, i64 {i}")

    # -- the three ways ----------------------------------------------------------------------------

    def _values(self, x: str, y: str, line: str) -> None:
        dtype, work = self.plan.dtype, self.plan.work
        bits = 8 * int(numpy_dtype(work).itemsize)
        with self.over_line() as i:
            self.store(work, self.element(x, i), self.slot(bits, line, i))
        self.put(f"call i32 %sorted_by(ptr {line}, i64 %n, ptr null)")
        if line == y:
            return

        with self.over_line() as i:
            found = self.value(work, self.slot(bits, line, i), ACCESS)
            self.store(dtype, self.cast(found, work, dtype), self.place(1, y, i))

    def _radix(self, x: str, y: str, line: str) -> None:
        """Sort the places in the order, and compute numbers of them, which are all that counts."""
        places = self._places(x)
        bits = 8 * int(numpy_dtype(self.plan.work).itemsize)
        zeros = self.new(f"call i64 @llvm.ctlz.i64(i64 {places.span}, i1 false)")
        digits = self.new(f"lshr i64 {self.new(f'sub i64 71, {zeros}')}, 3")
        with self.over_line() as i:
            above = self._above(x, i, places, places.shift)
            own = above if bits == 64 else self.new(f"trunc i64 {above} to i{bits}")
            self.put(f"store i{bits} {own}, ptr {self.slot(bits, '%mine', i)}{ACCESS}")
        given = f"ptr %mine, ptr %other, i64 %n, i64 {digits}"
        found = self.new(f"call ptr @radix{bits}({given})")
        with self.over_line() as i:
            own = self.new(f"load i{bits}, ptr {self.slot(bits, found, i)}{ACCESS}")
            wide = own if bits == 64 else self.new(f"zext i{bits} {own} to i64")
            place = self.new(f"add i64 {self.new(f'shl i64 {wide}, {places.shift}')}, {places.low}")
            self._store_number(place, bits, self.place(1, y, i))

    def _store_number(self, place: str, bits: int, pointer: str) -> None:
        """Store the number that has this place in the order."""
        word, sign = f"i{bits}", -1 << (bits - 1)
        own = place if bits == 64 else self.new(f"trunc i64 {place} to {word}")
        if TensorType(self.plan.work).is_float:
            positive = self.new(f"ashr {word} {own}, {bits - 1}")
            changed = self.new(f"or {word} {self.new(f'xor {word} {positive}, -1')}, {sign}")
            own = self.new(f"xor {word} {own}, {changed}")
        elif self.plan.work.startswith("int"):
            own = self.new(f"xor {word} {own}, {sign}")
        self.put(f"store {word} {own}, ptr {pointer}, align 1{ACCESS}")

    def _indices(self, x: str, y: str, line: str) -> None:
        places, wide = self._places(x), numpy_dtype(self.plan.work).itemsize > 4
        packed = self.new(f"icmp ult i64 {places.span}, {1 << 32}")
        counted = self.new(f"icmp ule i64 {places.span}, %counted")
        if wide and self.plan.digits:
            counted = self.new(f"or i1 {counted}, {self.new(f'xor i1 {packed}, true')}")

        with self.when("counted", counted):
            with self.over_line() as i:
                self.store("int64", i, self.slot(64, line, i))
            if self.plan.digits:
                self._sort_digits(x, line, places)
        with self.when("rest", self.new(f"xor i1 {counted}, true")):
            with self.when("packed", packed):
                self._pack(x, line, places)
            if wide and not self.plan.digits:
                wider = self.new(f"xor i1 {packed}, true")
                with self.when("wider", wider):
                    self._order_runs(self._argsorted(x, line), line)
        self._leave_indices(y, line)

    def _stable(self, x: str, y: str, line: str) -> None:
        self._argsorted(x, line)
        self._leave_indices(y, line)

    def _leave_indices(self, y: str, line: str) -> None:
        """Write a line of indices to the result, where it is not there yet."""

        if line != y:
            with self.over_line() as i:
                found = self.value("int64", self.slot(64, line, i), ACCESS)
                self.store("int64", found, self.place(1, y, i))

    def _pack(self, x: str, line: str, places: _Places) -> None:
        with self.over_line() as i:
            high = self.new(f"shl i64 {self._above(x, i, places, places.shift)}, 32")
            self.store("int64", self.new(f"or i64 {high}, {i}"), self.slot(64, line, i))
        self.put(f"call i32 %sorted_by(ptr {line}, i64 %n, ptr null)")
        with self.over_line() as i:
            found = self.value("int64", self.slot(64, line, i), ACCESS)
            low = self.new(f"and i64 {found}, {(1 << 32) - 1}")
            self.store("int64", low, self.slot(64, line, i))

    def _above(self, x: str, i: str, places: _Places, shift: str) -> str:
        """How far above the least one the place of an element is, without the lowest bits."""
        above = self.minus(self._key(self.element(x, i)), places.low)
        return self.new(f"lshr i64 {above}, {shift}")

    def _sort_digits(self, x: str, line: str, places: _Places) -> None:
        """Sort indices by each digit in turn; each sort leaves equal digits in their order."""
        zeros = self.new(f"call i64 @llvm.ctlz.i64(i64 {places.span}, i1 false)")
        digits = self.new(f"lshr i64 {self.new(f'sub i64 79, {zeros}')}, 4")
        with (
            self.when("some", self.new(f"icmp ne i64 {digits}, 0")),
            self.each("digit", 0, digits) as k,
        ):
            shift = self.new(f"add i64 {places.shift}, {self.new(f'shl i64 {k}, 4')}")
            with self.over_line() as i:
                own = self.new(f"trunc i64 {self._above(x, i, places, shift)} to i16")
                self.store("uint16", own, self.slot(16, "%other", i))
            self.put(f"call i32 %found_by(ptr %other, ptr {line}, i64 %n, ptr null)")

    def _argsorted(self, x: str, line: str) -> str:
        """Find the line's order by NumPy's argsort of a contiguous line, which is returned."""
        given = x
        if not self.plan.dense[0]:
            given, work = "%other", self.plan.work
            bits = 8 * int(numpy_dtype(work).itemsize)
            with self.over_line() as i:
                self.store(work, self.element(x, i), self.slot(bits, given, i))
        with self.over_line() as i:
            self.store("int64", i, self.slot(64, line, i))
        self.put(f"call i32 %found_by(ptr {given}, ptr {line}, i64 %n, ptr null)")
        return given

    def _key(self, value: str) -> str:
        """The place of a number in the order, as an unsigned integer; equal numbers have one."""
        bits = 8 * int(numpy_dtype(self.plan.work).itemsize)
        word, sign = f"i{bits}", -1 << (bits - 1)
        if TensorType(self.plan.work).is_float:
            t = VALUES[self.plan.work]
            same = self.plan.how == "radix"  # else -0 becomes 0
            zero = value if same else self.new(f"fadd {t} {value}, 0.0")
            own = self.new(f"bitcast {t} {zero} to {word}")
            negative = self.new(f"ashr {word} {own}, {bits - 1}")
            key = self.new(f"xor {word} {own}, {self.new(f'or {word} {negative}, {sign}')}")
            nan = self.new(f"fcmp uno {t} {value}, {value}")
            above = -1 << (bits - 16)  # above infinity, with as few bits
            value = self.new(f"select i1 {nan}, {word} {above}, {word} {key}")
        elif self.plan.work.startswith("int"):
            value = self.new(f"xor {word} {value}, {sign}")
        return value if bits == 64 else self.new(f"zext {word} {value} to i64")

    def _places(self, x: str) -> _Places:
        """Look over the line once."""
        first = self._key(self.element(x, "0"))

        def one(i: str, found: list[str]) -> list[str]:
            low, high, differing, before, falls = found
            key = self._key(self.element(x, i))
            fell = self.new(f"icmp ult i64 {key}, {before}")
            return [
                self.new(f"call i64 @llvm.umin.i64(i64 {low}, i64 {key})"),
                self.new(f"call i64 @llvm.umax.i64(i64 {high}, i64 {key})"),
                self.new(f"or i64 {differing}, {self.new(f'xor i64 {key}, {first}')}"),
                key,
                self.new(f"or i1 {falls}, {fell}"),
            ]

        self.declared |= {f"declare i64 @llvm.{f}.i64(i64, i64)" for f in ("umin", "umax")}
        self.declared |= {f"declare i64 @llvm.{f}.i64(i64, i1)" for f in ("cttz", "ctlz")}
        carried, kinds = [first, first, "0", first, "false"], ["i64"] * 4 + ["i1"]
        low, high, differing, _, falls = self.counted("places", 0, "%n", one, carried, kinds)
        shift = self.new(f"call i64 @llvm.cttz.i64(i64 {differing}, i1 false)")
        shift = self.least(shift, "63")
        span = self.new(f"lshr i64 {self.new(f'sub i64 {high}, {low}')}, {shift}")
        return _Places(low, shift, self.new(f"select i1 {falls}, i64 {span}, i64 0"))

    def _order_runs(self, given: str, line: str) -> None:
        """Sort the indices of each run of equal elements."""
        t = VALUES[self.plan.work]

        def element(k: str) -> str:
            at = self.new(f"load i64, ptr {self.slot(64, line, k)}")
            return self.new(
                f"load {t}, ptr {self.new(f'getelementptr {t}, ptr {given}, i64 {at}')}"
            )

        def one(i: str, run: list[str]) -> list[str]:
            begun, before = run
            ends = self.new(f"icmp eq i64 {i}, %n")
            now = element(self.least(i, self.minus("%n", 1)))
            differs = self.new(f"or i1 {ends}, {self._differ(before, now)}")
            length = self.minus(i, begun)
            several = self.new(f"icmp sgt i64 {length}, 1")
            with self.when("run", self.new(f"and i1 {differs}, {several}")):
                first = self.slot(64, line, begun)
                self.put(f"call i32 %sorted_by(ptr {first}, i64 {length}, ptr null)")
            return [self.new(f"select i1 {differs}, i64 {i}, i64 {begun}"), now]

        end = self.plus("%n", 1)
        self.counted("runs", 1, end, one, ["0", element("0")], ["i64", t])

    def _differ(self, a: str, b: str) -> str:
        t = VALUES[self.plan.work]
        if not TensorType(self.plan.work).is_float:
            return self.new(f"icmp ne {t} {a}, {b}")
        numbers = self.new(f"fcmp une {t} {a}, {b}")
        nans = [self.new(f"fcmp uno {t} {v}, {v}") for v in (a, b)]
        both = self.new(f"and i1 {nans[0]}, {nans[1]}")
        return self.new(f"and i1 {numbers}, {self.new(f'xor i1 {both}, true')}")
