"""Parts of reduction loops: parameters, addresses, the combination of two values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import LoopOperand, data_of, read, word
from symdnn.cpu.ir.scalar_ir import VALUES, Printer, literal, store_as
from symdnn.ops.core.scalar import ScalarProgram

__all__ = [
    "Combined", "ReduceShape", "ReduceSource", "compensated", "identity", "part_range", "task_end",
    "word_names",
]  # fmt: skip


@dataclass(frozen=True)
class Combined:
    """One reduction: ``kind`` is add, mul, max, min, or, and.

    Elements are combined in ``dtype`` and totals in the dtype ``total``; the program ``finish``
    computes the result from a total.
    """

    kind: str
    dtype: str
    total: str
    finish: ScalarProgram


@dataclass(frozen=True)
class ReduceShape:
    """What the text depends on: whether the innermost dimension is kept, how many others are."""

    columns: bool
    kept: int
    reduced: int


def word_names(shape: ReduceShape, reads: int, writes: int) -> list[str]:
    """Names of the words of the block of parameters, in order.

    ``threads``, ``tasks``, ``one``: the head of every kernel's block. A reduction has ``QT`` parts
    in ``C`` chunks of ``Q``. A row of ``n`` elements is ``S`` parts of ``seg`` elements. There are
    ``m`` columns in ``JB`` blocks, and ``outputs`` results.
    """
    names = ["threads", "tasks", "one", "C", "Q", "QT", "S", "seg", "n", "m", "JB", "outputs"]
    names += [f"kn{d}" for d in range(1, shape.kept)] + [f"rn{d}" for d in range(1, shape.reduced)]
    for i in range(reads):
        names += [f"x{i}", f"x{i}.i"]
        names += [f"x{i}.k{d}" for d in range(shape.kept)]
        names += [f"x{i}.r{d}" for d in range(shape.reduced)]
    for i in range(writes):
        names += [f"y{i}", f"y{i}.i", *(f"y{i}.k{d}" for d in range(shape.kept)), f"p{i}"]
    return names


_IDENTITY = {"add": "0", "mul": "1", "or": "0", "and": "1"}
_WORDS = {"add": ("fadd", "add"), "mul": ("fmul", "mul"), "or": ("", "or"), "and": ("", "and")}
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def identity(c: Combined, dtype: str) -> str:
    """The identity element of a reduction."""
    if c.kind in _IDENTITY:
        number = float(_IDENTITY[c.kind]).hex() if dtype in _FLOATS else _IDENTITY[c.kind]
        if (c.kind, dtype in _FLOATS) == ("add", True):
            number = "-0x0.0p+0"  # so that a sum of negative zeros is a negative zero
        return literal(number, dtype)
    if dtype in _FLOATS:
        infinity = literal("inf", dtype)
        return infinity if c.kind == "min" else f"0xFFF{infinity[5:]}"
    if dtype == "bool":
        return "true" if c.kind == "min" else "false"
    bits, signed = int(VALUES[dtype][1:]), dtype.startswith("i")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return str(high if c.kind == "min" else low)


class ReduceSource:
    """Builds the lines of a reduction; ``%w`` is the block of parameters."""

    def __init__(
        self,
        program: ScalarProgram,
        combined: Sequence[Combined],
        shape: ReduceShape,
        reads: Sequence[LoopOperand],
        dense: bool,
    ) -> None:
        self.program, self.combined, self.shape = program, combined, shape
        self.reads, self.dense = reads, dense
        names = word_names(shape, len(reads), len(combined))
        self.at = {name: i for i, name in enumerate(names)}
        self.declared: set[str] = set()
        self.helpers: set[str] = set()

    # -- pieces -----------------------------------------------------------------------------------

    def load(self, *names: str) -> list[str]:
        """Lines that load words into registers of the same names."""
        return [line for n in names for line in word(f"%{n}", self.at[n])]

    def sizes(self) -> list[str]:
        """Lines that load all words except those of operands."""
        lines = self.load("C", "Q", "QT", "S", "seg", "n", "m", "JB")
        lines += self.load(*(f"kn{d}" for d in range(1, self.shape.kept)))
        return lines + self.load(*(f"rn{d}" for d in range(1, self.shape.reduced)))

    def operands(self) -> list[str]:
        """Lines that load data pointers and strides of the inputs."""
        lines = []
        for i, o in enumerate(self.reads):
            lines += data_of(f"%x{i}_data", self.at[f"x{i}"])
            if o.inner == "strided":
                lines += word(f"%s_x{i}", self.at[f"x{i}.i"])
            names = [f"x{i}.k{d}" for d in range(self.shape.kept)]
            names += [f"x{i}.r{d}" for d in range(self.shape.reduced)]
            lines += self.load(*names)
        return lines

    def results(self) -> list[str]:
        """Lines that load data pointers and strides of the outputs and of partial results."""
        lines = []
        for r in range(len(self.combined)):
            lines += data_of(f"%y{r}_data", self.at[f"y{r}"])
            lines += self.load(f"y{r}.i", *(f"y{r}.k{d}" for d in range(self.shape.kept)))
            lines += word(f"%p{r}", self.at[f"p{r}"], "ptr")
        return lines

    def split(self, index: str, kind: str, count: int, tag: str) -> tuple[list[str], list[str]]:
        """(lines, indices in ``count`` dimensions) that split up a linear index."""
        lines, rest, found = [], index, []
        for d in reversed(range(1, count)):
            lines += [
                f"%{tag}{d} = urem i64 {rest}, %{kind}n{d}",
                f"%{tag}rest{d} = udiv i64 {rest}, %{kind}n{d}",
            ]
            found.append(f"%{tag}{d}")
            rest = f"%{tag}rest{d}"
        return lines, ([rest] if count else []) + found[::-1]

    def moved(self, base: str, name: str, kind: str, indices: Sequence[str], tag: str) -> list[str]:
        """Lines for ``%{tag}``: the address ``base`` plus indices times strides of a kind."""
        lines, at = [], base
        for d, index in enumerate(indices):
            lines += [
                f"%{tag}_o{d} = mul i64 {index}, %{name}.{kind}{d}",
                f"%{tag}_b{d} = getelementptr i8, ptr {at}, i64 %{tag}_o{d}",
            ]
            at = f"%{tag}_b{d}"
        return [*lines, f"%{tag} = getelementptr i8, ptr {at}, i64 0"]

    def values(self, tag: str) -> tuple[list[str], list[str]]:
        """(lines, results) of the program at element ``%i`` of the bases ``%base_{tag}x0``, ..."""
        lines = []
        for i, o in enumerate(self.reads):
            name = f"{tag}x{i}"
            if o.inner == "strided":
                lines += [
                    f"%k_{name} = mul i64 %i, %s_x{i}",
                    f"%p_{name} = getelementptr i8, ptr %base_{name}, i64 %k_{name}",
                    *read(name, o)[2:],
                ]
            else:
                lines += read(name, o)
        # LLVM 20 makes masked loads of AVX-512 of a select, with which loops of reductions take
        # three times as long on Zen 4 (elementwise loops do not).
        printer = Printer(self.program, f"{tag}v", whole_loads=True)
        results = printer.emit([f"%{tag}x{i}" for i in range(len(self.reads))])
        self.declared |= printer.declared
        self.helpers |= printer.helpers
        return [*lines, *printer.lines], results

    def combine(self, c: Combined, dtype: str, out: str, a: str, b: str, free: bool) -> list[str]:
        """Lines for ``out``, two values combined; if ``free``, LLVM may reorder the additions."""
        t, real = VALUES[dtype], dtype in _FLOATS
        if c.kind in _WORDS and not (dtype == "bool" and c.kind in ("add", "mul")):
            flag = " reassoc" if real and free else ""
            return [f"{out} = {_WORDS[c.kind][not real]}{flag} {t} {a}, {b}"]
        if real:
            name = f"llvm.{c.kind}imum.{'f32' if t == 'float' else 'f64'}"
            self.declared.add(f"declare {t} @{name}({t}, {t})")
            return [f"{out} = call nsz {t} @{name}({t} {a}, {t} {b})"]
        if dtype == "bool":
            return [f"{out} = {'or' if c.kind == 'max' else 'and'} i1 {a}, {b}"]
        sign = "s" if dtype.startswith("i") else "u"
        return [
            f"{out}_c = icmp {sign}{'gt' if c.kind == 'max' else 'lt'} {t} {a}, {b}",
            f"{out} = select i1 {out}_c, {t} {a}, {t} {b}",
        ]

    def widened(self, c: Combined, out: str, value: str) -> list[str]:
        """Lines for ``out``: a value converted to the total's dtype."""
        a, b = VALUES[c.dtype], VALUES[c.total]
        word_ = "fpext" if a != b else "bitcast"
        return [f"{out} = {word_} {a} {value} to {b}"]

    def stored(self, r: int, total: str, pointer: str, access: str = "") -> list[str]:
        """Lines that compute the result from a total and store it."""
        c = self.combined[r]
        printer = Printer(c.finish, f"f{r}_")
        (value,) = printer.emit([total])
        self.declared |= printer.declared
        self.helpers |= printer.helpers
        out = c.finish.output_dtypes[0]
        return [*printer.lines, *store_as(out, value, pointer, access)]


def compensated(c: Combined) -> bool:
    """Whether the rounding errors of a total are summed too (compensated summation)."""
    return c.kind == "add" and c.total == "float64"


def part_range(name: str, index: str, size: str, end: str) -> list[str]:
    """Lines for the range ``%{name}_from`` to ``%{name}_to`` of part ``index`` of this size."""
    return [
        f"%{name}_from = mul i64 {index}, {size}",
        f"%{name}_whole = add i64 %{name}_from, {size}",
        f"%{name}_cut = icmp slt i64 %{name}_whole, {end}",
        f"%{name}_to = select i1 %{name}_cut, i64 %{name}_whole, i64 {end}",
    ]


def task_end() -> list[str]:
    """Lines that end the loop over tasks and its function."""
    return [
        "task_end:",
        "%t_next = add i64 %t, 1",
        "%t_more = icmp slt i64 %t_next, %r1",
        "br i1 %t_more, label %task, label %done",
        "done:", "ret void", "}",
    ]  # fmt: skip
