"""Softmax ops as LLVM IR: a few passes over lines, which stay in the cache.

There are two or three passes: for the maximum, for the sum of exponentials, for the results. Their
formulas stand once, for two shapes of loops:

- rows, along the last axis: a task is a line, whose maximum and sum are in registers. The length
  of short rows is a constant of the code, so that LLVM vectorises them; that of long rows is read
  from the block.
- bands, along another axis of operands of shape (outer, n, inner): a task has up to
  :data:`BAND_COLUMNS` contiguous columns of an outer index, whose maxima and sums are on the stack.
  The innermost loop is over columns, so that LLVM vectorises it.

Everything is computed in float32, or in float64 for operands of that; 16-bit numbers are widened
when loaded, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, data_of, exponential_module, next_task, renamed, word
from symdnn.cpu.ir.narrow_ir import NARROW, narrowed, narrowing, widened, widening
from symdnn.cpu.ir.scalar_ir import VALUES

__all__ = ["BAND_COLUMNS", "FLAG", "KINDS", "SOFTMAX", "SoftmaxPlan", "softmax_ir"]

#: Columns of a band, so that with some rows it stays in the first cache.
BAND_COLUMNS = 256
#: Index of the word that is set if a label is out of range. Then come the length of lines, for
#: bands also the length of a row and the bands of an outer index, and the operands.
FLAG = 3
#: Operands and results of softmax ops: ``m`` a matrix, ``v`` one value for each line.
SOFTMAX = {
    "softmax": ("m", "m"),
    "log_softmax": ("m", "m"),
    "softmax_grad": ("mm", "m"),
    "log_softmax_grad": ("mm", "m"),
    "log_softmax_grad_of_logits": ("mm", "m"),
    "logsumexp": ("m", "v"),
}
#: Operands and results of all kinds; ``l`` labels, of rows only.
KINDS = {
    **SOFTMAX,
    "crossentropy": ("ml", "vm"),
    "crossentropy_grad": ("vml", "m"),
}
_ZERO, _ONE, _LEAST = "0.0", "1.0", "0xFFF0000000000000"

#: Lines of an element, from the registers of values of its line.
_Body: TypeAlias = Callable[..., Sequence[str]]


@dataclass(frozen=True)
class SoftmaxPlan:
    """One kernel: the constant ``length`` of rows or 0, the dtypes of labels and of values."""

    kind: str
    length: int = 0
    label: str = "int64"
    dtype: str = "float32"
    bands: bool = False


def softmax_ir(plan: SoftmaxPlan) -> str:
    """The module of ``kernel``.

    Words of its block: threads, tasks, 1, flag, lengths, operands, results.
    """
    narrow = {widening(plan.dtype), narrowing(plan.dtype)} if plan.dtype in NARROW else set()
    source = (_Bands if plan.bands else _Rows)(plan)
    return exponential_module(source.text(), narrow, plan.dtype == "float64")


class _Lines(FunctionBuilder):
    """Builds the function ``rows``; subclasses have the loops.

    A value of a line is a register of rows, an array of bands.
    """

    def __init__(self, plan: SoftmaxPlan) -> None:
        super().__init__()
        self.plan, self.kind = plan, VALUES[plan.dtype]
        wide = plan.dtype == "float64"
        #: The type that is computed in, its name in intrinsics, and that of exp and log here.
        self.t, self.suffix, self.own = ("double", "f64", "f") if wide else ("float", "f32", "s")
        self.at: list[str] = []

    def text(self) -> list[str]:
        """The lines of the function."""
        reads, writes = KINDS[self.plan.kind]
        self.begin([*reads, *writes])
        {
            "softmax": self._softmax, "log_softmax": self._log_softmax,
            "logsumexp": self._logsumexp, "softmax_grad": self._softmax_grad,
            "log_softmax_grad": self._log_softmax_grad,
            "log_softmax_grad_of_logits": self._log_softmax_grad_of_logits,
            "crossentropy": self._crossentropy, "crossentropy_grad": self._crossentropy_grad,
        }[self.plan.kind]()  # fmt: skip
        return [*self.lines, *next_task("task")]

    # -- loops ------------------------------------------------------------------------------------

    def begin(self, roles: Sequence[str]) -> None:
        """Begin the function, with the addresses of operands of these roles."""
        raise NotImplementedError

    def fold(self, name: str, first: str, body: _Body, *values: str) -> str:
        """The value of each line that ``%acc_next`` ends with; ``%acc`` begins as ``first``."""
        raise NotImplementedError

    def each(self, name: str, body: _Body, *values: str) -> None:
        """A loop over all elements."""
        raise NotImplementedError

    def once(self, name: str, body: _Body, *values: str) -> str:
        """The value of each line that is left in ``%out``, of other values of it."""
        raise NotImplementedError

    def place(self, operand: int, out: str) -> list[str]:
        """Lines for ``{out}_p``, the address of this element of an operand."""
        raise NotImplementedError

    def put_value(self, operand: int, value: str) -> None:
        """Store a value of each line as a result."""
        raise NotImplementedError

    def load(self, operand: int, out: str) -> list[str]:
        """Lines that load this element of an operand."""
        return [*self.place(operand, out), *self.loaded(out)]

    def loaded(self, out: str, more: str = ACCESS) -> list[str]:
        """Lines that load what is at ``{out}_p``."""
        if self.plan.dtype not in NARROW:
            return [f"{out} = load {self.kind}, ptr {out}_p{more}"]
        return [
            f"{out}_narrow = load {self.kind}, ptr {out}_p{more}",
            f"{out} = {widened(self.plan.dtype, f'{out}_narrow')}",
        ]

    def store(self, operand: int, value: str) -> list[str]:
        """Lines that store this element of a result."""
        name = f"%out{operand}"
        return [*self.place(operand, name), *self.stored(value, name)]

    def stored(self, value: str, name: str, more: str = ACCESS) -> list[str]:
        """Lines that store a number at ``{name}_p``."""
        if self.plan.dtype not in NARROW:
            return [f"store {self.kind} {value}, ptr {name}_p{more}"]
        return [
            f"{name}_narrow = {narrowed(self.plan.dtype, value)}",
            f"store {self.kind} {name}_narrow, ptr {name}_p{more}",
        ]

    # -- kinds ------------------------------------------------------------------------------------

    def call(self, function: str, x: str) -> str:
        """The call of exp or log."""
        return f"call {self.t} @{self.own}_{function}({self.t} {x})"

    def maximum(self) -> str:
        """The maximum of a line of operand 0; NaN if an element is NaN."""
        call = f"call nsz {self.t} @llvm.maximum.{self.suffix}({self.t} %acc, {self.t} %x)"
        return self.fold("top", _LEAST, lambda: [*self.load(0, "%x"), f"%acc_next = {call}"])

    def exponential(self, top: str) -> list[str]:
        """Lines for ``%e``: exp of an element of operand 0 minus ``top``."""
        return [
            *self.load(0, "%x"), f"%d = fsub {self.t} %x, {top}", f"%e = {self.call('exp', '%d')}",
        ]  # fmt: skip

    def sum_of_exponentials(self, top: str, store: Sequence[str] = ()) -> str:
        """The sum of a line's exponentials; the lines ``store`` may store each ``%e``."""
        add = f"%acc_next = fadd reassoc {self.t} %acc, %e"
        return self.fold("sum", _ZERO, lambda m: [*self.exponential(m), *store, add], top)

    def log(self, total: str) -> str:
        """The logarithm of a value."""
        return self.once("log", lambda s: [f"%out = {self.call('log', s)}"], total)

    def _of_exponentials(
        self, operand: int, factor: Callable[[str], str], rest: Sequence[str]
    ) -> None:
        """Results of exponentials ``%e`` by a ``factor``, made from their sum, and then ``rest``.

        They are kept in the result meanwhile. In 16 bits they would be rounded: they are computed
        twice.
        """
        top, narrow = self.maximum(), self.plan.dtype in NARROW
        total = self.sum_of_exponentials(top, () if narrow else self.store(operand, "%e"))

        def scale(q: str, m: str = "") -> list[str]:
            again = self.exponential(m) if narrow else self.load(operand, "%e")
            scaled = f"%p = fmul {self.t} %e, {q}"
            return [*again, scaled, *rest, *self.store(operand, "%p" if not rest else "%y")]

        self.each("scale", scale, factor(total), *([top] if narrow else []))

    def _softmax(self) -> None:
        invert = f"%out = fdiv {self.t} {_ONE},"
        self._of_exponentials(
            1, lambda total: self.once("invert", lambda s: [f"{invert} {s}"], total), ()
        )

    def _log_softmax(self, out: int = 1) -> None:
        top, t = self.maximum(), self.t
        log = self.log(self.sum_of_exponentials(top))
        self.each(
            "shift",
            lambda m, s: [
                *self.load(0, "%x"), f"%d = fsub {t} %x, {m}", f"%y = fsub {t} %d, {s}",
                *self.store(out, "%y"),
            ], top, log,
        )  # fmt: skip

    def _logsumexp(self) -> None:
        t = self.t
        # An infinite maximum: differences of infinities would be NaN.
        top = self.once(
            "tame",
            lambda m: [
                f"%size = call {t} @llvm.fabs.{self.suffix}({t} {m})",
                f"%fine = fcmp olt {t} %size, 0x7FF0000000000000",
                f"%out = select i1 %fine, {t} {m}, {t} {_ZERO}",
            ], self.maximum(),
        )  # fmt: skip
        log = self.log(self.sum_of_exponentials(top))
        self.put_value(1, self.once("add", lambda s, m: [f"%out = fadd {t} {s}, {m}"], log, top))

    def _softmax_grad(self) -> None:
        t, both = self.t, [*self.load(0, "%y"), *self.load(1, "%dy")]
        step = [f"%p = fmul {t} %y, %dy", f"%acc_next = fadd reassoc {t} %acc, %p"]
        dot = self.fold("dot", _ZERO, lambda: [*both, *step])
        self.each(
            "scale",
            lambda s: [
                *both, f"%d = fsub {t} %dy, {s}", f"%p = fmul {t} %y, %d", *self.store(2, "%p"),
            ], dot,
        )  # fmt: skip

    def _sum_of_gradients(self) -> str:
        add = f"%acc_next = fadd reassoc {self.t} %acc, %dy"
        return self.fold("all", _ZERO, lambda: [*self.load(1, "%dy"), add])

    def _log_softmax_grad_of_logits(self) -> None:
        def share(total: str) -> str:
            divided = f"%out = fdiv {self.t}"
            return self.once(
                "share", lambda s, a: [f"{divided} {a}, {s}"], total, self._sum_of_gradients()
            )

        self._of_exponentials(2, share, [*self.load(1, "%dy"), f"%y = fsub {self.t} %dy, %p"])

    def _log_softmax_grad(self) -> None:
        t, total = self.t, self._sum_of_gradients()
        self.each(
            "scale",
            lambda s: [
                *self.load(0, "%y"), *self.load(1, "%dy"), f"%e = {self.call('exp', '%y')}",
                f"%p = fmul {t} %e, {s}", f"%d = fsub {t} %dy, %p", *self.store(2, "%d"),
            ], total,
        )  # fmt: skip

    def _crossentropy(self) -> None:
        raise NotImplementedError

    def _crossentropy_grad(self) -> None:
        raise NotImplementedError


class _Rows(_Lines):
    """Lines along the last axis: a task is one of them."""

    def begin(self, roles: Sequence[str]) -> None:
        self.n = str(self.plan.length) if self.plan.length else "%n"
        operands = [line for i in range(len(roles)) for line in data_of(f"%a{i}", FLAG + 2 + i)]
        self.tasks([*word("%n", FLAG + 1), *operands], "task")
        self.lines.append(f"%start = mul i64 %r, {self.n}")
        for i, role in enumerate(roles):
            kind = VALUES[self.plan.label] if role == "l" else self.kind
            start = "%start" if role == "m" else "%r"
            self.at.append(self.new(f"getelementptr {kind}, ptr %a{i}, i64 {start}"))

    def _loop(self, name: str, first: str | None, step: Sequence[str]) -> str:
        self.lines += [f"br label %{name}", f"{name}:"]
        body = [f"%i = phi i64 [0, %{self.block}], [%i_next, %{name}]"]
        if first is not None:
            body.append(f"%acc = phi {self.t} [{first}, %{self.block}], [%acc_next, %{name}]")
        body += [
            *step,
            "%i_next = add nuw nsw i64 %i, 1",
            f"%more = icmp slt i64 %i_next, {self.n}",
            f"br i1 %more, label %{name}, label %{name}_end, !llvm.loop !1",
        ]
        self.lines += renamed(body, name)
        self.label(f"{name}_end")
        return f"%acc_next.{name}"

    def fold(self, name: str, first: str, body: _Body, *values: str) -> str:
        return self._loop(name, first, body(*values))

    def each(self, name: str, body: _Body, *values: str) -> None:
        self._loop(name, None, body(*values))

    def once(self, name: str, body: _Body, *values: str) -> str:
        self.lines += renamed(body(*values), name)
        return f"%out.{name}"

    def place(self, operand: int, out: str, index: str = "%i") -> list[str]:
        return [f"{out}_p = getelementptr {self.kind}, ptr {self.at[operand]}, i64 {index}"]

    def put_value(self, operand: int, value: str) -> None:
        self.lines += [*self.place(operand, "%result", "0"), *self.stored(value, "%result", "")]

    def _one(self, operand: int, out: str, index: str) -> list[str]:
        """Lines that load one element of the row."""
        return [*self.place(operand, out, index), *self.loaded(out, "")]

    def _crossentropy(self) -> None:
        self._log_softmax(out=3)
        self.lines += self._one(3, "%chosen", self._label(1))
        self.put_value(2, self.new(f"fneg {self.t} %chosen"))

    def _crossentropy_grad(self) -> None:
        self.lines += self._one(0, "%weight", "0")
        scaled = [f"%e = {self.call('exp', '%y')}", f"%d = fmul {self.t} %e, %weight"]
        self.each("scale", lambda: [*self.load(1, "%y"), *scaled, *self.store(3, "%d")])
        label = self._label(2)
        self.lines += [
            *self._one(1, "%y", label), *scaled, f"%less = fsub {self.t} %d, %weight",
            *self.place(3, "%result", label), *self.stored("%less", "%result", ""),
        ]  # fmt: skip

    def _label(self, operand: int) -> str:
        """The row's label as an index; a label out of range sets the flag and becomes 0."""
        kind = VALUES[self.plan.label]
        label = self.new(f"load {kind}, ptr {self.at[operand]}")
        if kind != "i64":
            extend = "sext" if self.plan.label.startswith("int") else "zext"
            label = self.new(f"{extend} {kind} {label} to i64")
        fine = self.new(f"icmp ult i64 {label}, {self.n}")
        flag = self.new(f"getelementptr i64, ptr %w, i64 {FLAG}")
        bad = self.new(f"xor i1 {fine}, true")
        self.when(
            "bad", bad, lambda: self.put(f"store atomic i64 1, ptr {flag} monotonic, align 8")
        )
        return self.new(f"select i1 {fine}, i64 {label}, i64 0")


class _Bands(_Lines):
    """Lines along an axis before the last: a task is a band of neighbouring ones."""

    #: Arrays of values that a kind has at most.
    _VALUES = 3

    def begin(self, roles: Sequence[str]) -> None:
        sizes = enumerate(("%n", "%inner", "%bands"))
        self._made = 0
        self.tasks(
            [
                *(x for i, n in sizes for x in word(n, FLAG + 1 + i)),
                *(x for i in range(len(roles)) for x in data_of(f"%a{i}", FLAG + 4 + i)),
                *(f"%line{i} = alloca [{BAND_COLUMNS} x {self.t}], align 64"
                  for i in range(self._VALUES)),
                "%whole = mul i64 %n, %inner",
            ],
            "task",
        )  # fmt: skip
        outer, which = self.new("udiv i64 %r, %bands"), self.new("urem i64 %r, %bands")
        first = self.affine(which, BAND_COLUMNS)
        self._columns = self.least(self.new(f"sub i64 %inner, {first}"), BAND_COLUMNS)
        for i, role in enumerate(roles):
            lines = self.new(f"mul i64 {outer}, {'%whole' if role == 'm' else '%inner'}")
            index = self.new(f"add i64 {lines}, {first}")
            self.at.append(self.new(f"getelementptr {self.kind}, ptr %a{i}, i64 {index}"))

    def _across(self, name: str, body: Sequence[str]) -> None:
        """A loop over the columns ``%j`` of the band, in one row at offset ``%row``."""
        lines = [
            f"%j = phi i64 [0, %{self.block}], [%j_next, %{name}]",
            *body,
            "%j_next = add nuw nsw i64 %j, 1",
            f"%j_more = icmp slt i64 %j_next, {self._columns}",
            f"br i1 %j_more, label %{name}, label %{name}_end, !llvm.loop !1",
        ]
        self.lines += [f"br label %{name}", f"{name}:", *renamed(lines, name)]
        self.label(f"{name}_end")

    def _down(self, name: str, body: Sequence[str]) -> None:
        """A loop over the rows of the band, and in it over the columns."""

        def row(k: str, _: list[str]) -> list[str]:
            offset = self.new(f"mul i64 {k}, %inner")
            self._across(name, [_in_row(line, offset) for line in body])
            return []

        self.counted(f"{name}_rows", 0, "%n", row)

    def _value(self, array: str, name: str) -> list[str]:
        return [
            f"{name}_p = getelementptr {self.t}, ptr {array}, i64 %j",
            f"{name} = load {self.t}, ptr {name}_p{ACCESS}",
        ]

    def _keep(self, array: str, value: str) -> list[str]:
        return [
            f"%kept_p = getelementptr {self.t}, ptr {array}, i64 %j",
            f"store {self.t} {value}, ptr %kept_p{ACCESS}",
        ]

    def _given(self, body: _Body, values: Sequence[str]) -> list[str]:
        """The lines of a body, after those that load values of lines."""
        names = [f"%given{i}" for i in range(len(values))]
        loads = [x for v, name in zip(values, names, strict=True) for x in self._value(v, name)]
        return [*loads, *body(*names)]

    def _new_value(self) -> str:
        self._made += 1
        return f"%line{self._made - 1}"

    def fold(self, name: str, first: str, body: _Body, *values: str) -> str:
        array = self._new_value()
        self._across(f"{name}_clear", self._keep(array, first))
        step = self._given(body, values)
        self._down(name, [*self._value(array, "%acc"), *step, *self._keep(array, "%acc_next")])
        return array

    def each(self, name: str, body: _Body, *values: str) -> None:
        self._down(name, self._given(body, values))

    def once(self, name: str, body: _Body, *values: str) -> str:
        """The value replaces the first of the others."""
        self._across(name, [*self._given(body, values), *self._keep(values[0], "%out")])
        return values[0]

    def place(self, operand: int, out: str) -> list[str]:
        return [
            f"{out}_i = add i64 %row, %j",
            f"{out}_p = getelementptr {self.kind}, ptr {self.at[operand]}, i64 {out}_i",
        ]

    def put_value(self, operand: int, value: str) -> None:
        at = f"%result_p = getelementptr {self.kind}, ptr {self.at[operand]}, i64 %j"
        self._across("leave", [*self._value(value, "%v"), at, *self.stored("%v", "%result")])


def _in_row(line: str, offset: str) -> str:
    """A line with the offset of a row in the place of ``%row``."""
    return line.replace("%row,", f"{offset},")
