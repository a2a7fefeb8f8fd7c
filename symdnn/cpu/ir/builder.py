"""The builder of LLVM IR: it appends instructions to a function and names their registers.

A builder has vectors of ``width`` elements of a dtype. LLVM splits vectors that are wider than the
processor's, so one text serves AVX2 and AVX-512.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from symdnn.cpu.compiler.jit import SKIP_PASSES
from symdnn.cpu.ir.loops_ir import METADATA, THREADS, next_task
from symdnn.graph.type import numpy_dtype

#: First line of the function ``rows``, which runs a thread's range of tasks.
ROWS = "define internal void @rows(ptr %w, i64 %r0, i64 %r1, i64 %i0, i64 %i1) #0 {"

#: Lanes of a builder's vectors unless it says otherwise; the types of such a vector and of a mask.
WIDTH = 16
VECTOR = f"<{WIDTH} x float>"
MASK = f"<{WIDTH} x i1>"

#: The metadata of parallel loops.
PARALLEL = "!1"

#: The type of an element, and its name in intrinsics.
_KINDS = {
    "float32": ("float", "f32"), "float64": ("double", "f64"),
    **{f"int{bits}": (f"i{bits}", f"i{bits}") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def _number(value: float) -> str:
    (narrow,) = struct.unpack("<f", struct.pack("<f", value))
    (bits,) = struct.unpack("<Q", struct.pack("<d", narrow))
    return f"0x{bits:016X}"


def splat(value: float, width: int = WIDTH) -> str:
    """A constant vector of float32 with this number in all lanes."""
    return f"<{', '.join([f'float {_number(value)}'] * width)}>"


def first_lanes(count: int, width: int = WIDTH) -> str:
    """A constant mask of the first ``count`` lanes."""
    return f"<{', '.join(f'i1 {int(i < count)}' for i in range(width))}>"


class FunctionBuilder:
    """A builder of a function's lines; :attr:`block` names the current basic block."""

    def __init__(self, block: str = "entry") -> None:
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.block = block
        self._count = 0

    # -- lines ----------------------------------------------------------------------------------

    def put(self, *lines: str) -> None:
        """Append lines."""
        self.lines += lines

    def new(self, text: str) -> str:
        """Append an instruction; returns its register."""
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def call(self, name: str, *given: str, gives: str = "void") -> str:
        """Append a call of a function, by its name or a register with its address.

        Arguments include their types; returns the result.
        """
        function = name if name.startswith("%") else f"@{name}"
        text = f"call {gives} {function}({', '.join(given)})"
        if gives != "void":
            return self.new(text)
        self.put(text)
        return ""

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{name}:")
        self.block = name

    # -- control --------------------------------------------------------------------------------

    def tasks(self, entry: Iterable[str], name: str = "task") -> None:
        """Begin the function ``rows`` and its loop over tasks ``%r``, the basic block ``name``.

        The lines ``entry`` come before the loop; :func:`~symdnn.cpu.ir.loops_ir.next_task` ends it.
        Threads share the tasks (:data:`~symdnn.cpu.ir.loops_ir.THREADS`).
        """
        self.put(ROWS, "entry:", *entry, f"br label %{name}")
        self.label(name)
        self.put(f"%r = phi i64 [%r0, %entry], [%r_next, %{name}_end]")

    @contextmanager
    def function(self, name: str, parameters: str, more: str = "#0") -> Iterator[None]:
        """What is written in this context is the body of a function without a result."""
        self.put(f"define internal void @{name}({parameters}) {more} {{")
        self.label("entry")
        yield
        self.put("ret void", "}")

    @contextmanager
    def each(
        self, name: str, low: int | str, high: str, *, step: int | str = 1,
        parallel: bool | str = False,
    ) -> Iterator[str]:  # fmt: skip
        """What is written in this context is a loop over the index that it gives.

        The index goes from ``low`` to below ``high``; the loop runs at least once. Iterations of a
        ``parallel`` loop touch each other's memory only where loads and stores say so; it may name
        metadata of its own.
        """
        before, i = self.block, f"%i_{name}"
        self.put(f"br label %{name}")
        self.label(name)
        at = len(self.lines)
        self.put("")
        yield i
        following = self.new(f"add nuw nsw i64 {i}, {step}")
        more = self.new(f"icmp slt i64 {following}, {high}")
        self.lines[at] = f"{i} = phi i64 [{low}, %{before}], [{following}, %{self.block}]"
        loop = f", !llvm.loop {PARALLEL if parallel is True else parallel}" if parallel else ""
        self.put(f"br i1 {more}, label %{name}, label %{name}_end{loop}")
        self.label(f"{name}_end")

    def counted(
        self, name: str, low: int | str, high: str, body: Callable[[str, list[str]], list[str]],
        carried: Sequence[str], kind: str | Sequence[str], *, step: int = 1,
        parallel: bool | str = False,
    ) -> list[str]:  # fmt: skip
        """A loop as :meth:`each`, with loop-carried values.

        ``body(i, values)`` writes one iteration. It takes the values, of type ``kind`` (or each of
        its own), and returns those of the next iteration. ``carried`` are the initial values; the
        final ones are returned.
        """
        before = self.block
        kinds = [kind] * len(carried) if isinstance(kind, str) else list(kind)
        phis = [f"%c{n}_{name}" for n in range(len(carried))]
        with self.each(name, low, high, step=step, parallel=parallel) as i:
            at = len(self.lines)
            self.lines += [""] * len(carried)
            after = body(i, phis)
            self.lines[at : at + len(carried)] = [
                f"{phi} = phi {kind} [{first}, %{before}], [{last}, %{self.block}]"
                for phi, kind, first, last in zip(phis, kinds, carried, after, strict=True)
            ]
        return after

    def task_module(self, *more: str) -> str:
        """The module of ``kernel`` around the function of :meth:`tasks`, which ends here.

        ``more`` are further declarations and functions.
        """
        lines = [*sorted(self.declared), *more, *THREADS, *self.lines, *next_task("task")]
        return "\n".join([*lines, *METADATA]) + "\n"

    def upto(self, name: str, low: str | int, high: str, body: Callable[[str], str | int]) -> None:
        """A loop from ``low`` to below ``high``, which may be none; ``body`` returns the step."""
        before, i = self.block, f"%i_{name}"
        self.put(f"br label %{name}")
        self.label(name)
        at = len(self.lines)
        self.put("", f"%more_{name} = icmp slt i64 {i}, {high}")
        self.put(f"br i1 %more_{name}, label %{name}_do, label %{name}_over")
        self.label(f"{name}_do")
        following = self.plus(i, body(i))
        self.lines[at] = f"{i} = phi i64 [{low}, %{before}], [{following}, %{self.block}]"
        self.put(f"br label %{name}")
        self.label(f"{name}_over")

    def carried(
        self, name: str, low: int | str, high: str, body: Callable[[str, list[str]], list[str]],
        values: Sequence[str], kind: str, *, step: int = 1,
    ) -> tuple[str, list[str]]:  # fmt: skip
        """A loop from ``low`` while ``step`` numbers are left up to ``high``, which may be none.

        ``body(i, values)`` as of :meth:`counted`. Returns where it ends, and the final values.
        """
        before, i = self.block, f"%i_{name}"
        self.put(f"br label %{name}")
        self.label(name)
        at, phis = len(self.lines), [f"%c{n}_{name}" for n in range(len(values))]
        self.lines += [""] * (1 + len(values))
        following = self.plus(i, step)
        fits = self.new(f"icmp sle i64 {following}, {high}")
        self.put(f"br i1 {fits}, label %{name}_do, label %{name}_over")
        self.label(f"{name}_do")
        after = body(i, phis)
        kinds = ["i64", *[kind] * len(values)]
        self.lines[at : at + len(kinds)] = [
            f"{phi} = phi {k} [{first}, %{before}], [{last}, %{self.block}]"
            for phi, k, first, last in zip(
                [i, *phis], kinds, [str(low), *values], [following, *after], strict=True
            )
        ]
        self.put(f"br label %{name}")
        self.label(f"{name}_over")
        return i, phis

    def choose(self, name: str, condition: str, body: Callable[[bool, str], None]) -> None:
        """A branch: ``body(True, name)`` where the condition holds, else ``body(False, name)``."""
        self.lines.append(f"br i1 {condition}, label %{name}_yes, label %{name}_no")
        for word_, holds in (("yes", True), ("no", False)):
            self.label(f"{name}_{word_}")
            body(holds, f"{name}_{word_}")
            self.lines.append(f"br label %{name}_done")
        self.label(f"{name}_done")

    @contextmanager
    def when(self, name: str, condition: str) -> Iterator[None]:
        """What is written in this context runs where the condition holds."""
        self.put(f"br i1 {condition}, label %{name}_yes, label %{name}_done")
        self.label(f"{name}_yes")
        yield
        self.put(f"br label %{name}_done")
        self.label(f"{name}_done")

    # -- numbers and addresses ------------------------------------------------------------------

    def times(self, a: str | int, b: str | int) -> str:
        """a * b"""
        return self.new(f"mul i64 {a}, {b}")

    def plus(self, a: str | int, b: str | int) -> str:
        """a + b"""
        return self.new(f"add i64 {a}, {b}")

    def minus(self, a: str | int, b: str | int) -> str:
        """a - b"""
        return self.new(f"sub i64 {a}, {b}")

    def affine(self, i: str, factor: int, offset: int = 0) -> str:
        """``factor * i + offset``"""
        if factor != 1:
            i = self.new(f"mul nsw i64 {i}, {factor}")
        return self.new(f"add nsw i64 {i}, {offset}") if offset else i

    def least(self, a: str | int, b: str | int) -> str:
        """The smaller of two signed numbers of 64 bits."""
        return self.new(f"select i1 {self.new(f'icmp slt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def most(self, a: str | int, b: str | int) -> str:
        """The larger of two signed numbers of 64 bits."""
        return self.new(f"select i1 {self.new(f'icmp sgt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def unravelled(self, index: str, sizes: Sequence[str | int]) -> list[str]:
        """The indices along axes of these sizes, of which the first is not read."""
        found = []
        for n in reversed(sizes[1:]):
            found.append(self.new(f"urem i64 {index}, {n}"))
            index = self.new(f"udiv i64 {index}, {n}")
        return [*([index] if sizes else []), *found[::-1]]

    def bytes_at(self, base: str, *offsets: str | int | tuple[str | int, str | int]) -> str:
        """The address ``base`` plus these offsets, in bytes; a pair is a product."""
        for offset in offsets:
            if isinstance(offset, tuple):
                offset = self.times(*offset)
            if offset:
                base = self.new(f"getelementptr i8, ptr {base}, i64 {offset}")
        return base

    def shuffled(self, vector: str, a: str, b: str, places: Sequence[int]) -> str:
        """Elements of two vectors in this order; those of the second follow those of the first."""
        numbers = ", ".join(f"i32 {k}" for k in places)
        pair = f"{vector} {a}, {vector} {b}"
        return self.new(f"shufflevector {pair}, <{len(places)} x i32> <{numbers}>")

    def transposed(self, vector: str, square: Sequence[str]) -> list[str]:
        """The columns of as many vectors as each has elements, a power of two.

        Halves of pairs are exchanged: the second ones of the one with the first ones of the other.
        """
        found, side = list(square), len(square)
        half = side // 2
        while half:
            low = [side + k - half if k & half else k for k in range(side)]
            high = [side + k if k & half else k + half for k in range(side)]
            for i in (i for i in range(side) if not i & half):
                a, b = found[i], found[i + half]
                found[i] = self.shuffled(vector, a, b, low)
                found[i + half] = self.shuffled(vector, a, b, high)
            half //= 2
        return found


class Builder(FunctionBuilder):
    """A builder with vectors; ``vector``, ``mask`` and ``element`` are their types."""

    def __init__(self, width: int = WIDTH, dtype: str = "float32", block: str = "entry") -> None:
        super().__init__(block)
        self.width = width
        self.element, self._suffix = _KINDS[dtype]
        self._align = int(numpy_dtype(dtype).itemsize)
        self.vector, self.mask = f"<{width} x {self.element}>", f"<{width} x i1>"

    def loop(
        self, name: str, high: str, body: Callable[[str, list[str]], list[str]],
        carried: Sequence[str],
    ) -> list[str]:  # fmt: skip
        """A loop over ``i`` from 0 to below ``high``, at least 1, with loop-carried vectors.

        See :meth:`counted`.
        """
        return self.counted(name, 0, high, body, carried, self.vector)

    def at(self, base: str, *offsets: str | int) -> str:
        """The address ``base`` plus these offsets, in elements."""
        for offset in offsets:
            if offset:
                base = self.new(f"getelementptr {self.element}, ptr {base}, i64 {offset}")
        return base

    # -- vectors --------------------------------------------------------------------------------

    def load(self, pointer: str, mask: str = "") -> str:
        """Load a vector; lanes outside of the mask are 0."""
        if not mask:
            return self.new(f"load {self.vector}, ptr {pointer}, align {self._align}")
        kinds = f"ptr, i32, {self.mask}, {self.vector}"
        given = f"ptr {pointer}, i32 {self._align}, {self.mask} {mask}, "
        return self.new(
            self._called("masked.load", ".p0", self.vector, kinds)
            + f"({given}{self.vector} zeroinitializer)"
        )

    def store(self, value: str, pointer: str, mask: str = "") -> None:
        """Store a vector, or its lanes in the mask."""
        if not mask:
            self.put(f"store {self.vector} {value}, ptr {pointer}, align {self._align}")
            return
        kinds = f"{self.vector}, ptr, i32, {self.mask}"
        given = f"{self.vector} {value}, ptr {pointer}, i32 {self._align}, {self.mask} {mask}"
        self.put(f"{self._called('masked.store', '.p0', 'void', kinds)}({given})")

    def _called(self, name: str, more: str, result: str, kinds: str) -> str:
        """The call of an intrinsic on vectors, without its operands; it is declared."""
        function = f"@llvm.{name}.v{self.width}{self._suffix}{more}"
        self.declared.add(f"declare {result} {function}({kinds})")
        return f"call {result} {function}"

    def lanes_below(self, first: str, high: int | str) -> str:
        """The mask of the elements below ``high`` in a vector whose first element is ``first``."""
        left = self.new(f"trunc i64 {self.new(f'sub i64 {high}, {first}')} to i32")
        kind = f"<{self.width} x i32>"
        steps = ", ".join(f"i32 {i}" for i in range(self.width))
        return self.new(f"icmp slt {kind} <{steps}>, {self._everywhere(kind, 'i32', left)}")

    def _everywhere(self, vector: str, kind: str, value: str) -> str:
        begun = self.new(f"insertelement {vector} poison, {kind} {value}, i64 0")
        zeros = f"<{self.width} x i32> zeroinitializer"
        return self.new(f"shufflevector {vector} {begun}, {vector} poison, {zeros}")

    def splat(self, number: str) -> str:
        """A number in a register, in all lanes."""
        return self._everywhere(self.vector, self.element, number)

    def broadcast(self, pointer: str) -> str:
        """Load a number and broadcast it to all lanes."""
        return self.splat(self.new(f"load {self.element}, ptr {pointer}, align {self._align}"))

    def add(self, a: str, b: str) -> str:
        """a + b"""
        return self.new(f"fadd {self.vector} {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        """a - b"""
        return self.new(f"fsub {self.vector} {a}, {b}")

    def scaled(self, a: str, factor: float) -> str:
        """factor * a, of float32"""
        return (
            a if factor == 1 else self.new(f"fmul {self.vector} {a}, {splat(factor, self.width)}")
        )

    def scale_add(self, factor: float, a: str, b: str) -> str:
        """factor * a + b, of float32"""
        return self.multiply_add(splat(factor, self.width), a, b)

    def multiply_add(self, a: str, b: str, c: str) -> str:
        """a * b + c, rounded once"""
        given = ", ".join(f"{self.vector} {x}" for x in (a, b, c))
        return self.new(
            f"{self._called('fma', '', self.vector, ', '.join([self.vector] * 3))}({given})"
        )

    def reduce_add(self, a: str) -> str:
        """The sum of the lanes of floats, which LLVM may pair as it likes."""
        function = f"@llvm.vector.reduce.fadd.v{self.width}{self._suffix}"
        self.declared.add(f"declare {self.element} {function}({self.element}, {self.vector})")
        given = f"{self.element} 0.0, {self.vector} {a}"
        return self.new(f"call reassoc {self.element} {function}({given})")


#: Declarations of intrinsics on :data:`VECTOR` that modules call by hand.
DECLARED = [
    f"declare {VECTOR} @llvm.fma.v16f32({VECTOR}, {VECTOR}, {VECTOR})",
    "declare <8 x double> @llvm.fma.v8f64(<8 x double>, <8 x double>, <8 x double>)",
    f"declare {VECTOR} @llvm.masked.load.v16f32.p0(ptr, i32, {MASK}, {VECTOR})",
    f"declare void @llvm.masked.store.v16f32.p0({VECTOR}, ptr, i32, {MASK})",
    f"declare {VECTOR} @llvm.masked.gather.v16f32.v16p0(<{WIDTH} x ptr>, i32, {MASK}, {VECTOR})",
    f"declare void @llvm.masked.scatter.v16f32.v16p0({VECTOR}, <{WIDTH} x ptr>, i32, {MASK})",
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
]


def vector_module(source: Builder) -> str:
    """The module of ``kernel`` around this function ``rows``, which is optimised no further."""
    declared = [*DECLARED, *sorted(source.declared - set(DECLARED))]
    return SKIP_PASSES + "\n".join([*declared, *THREADS, *source.lines, *METADATA]) + "\n"
