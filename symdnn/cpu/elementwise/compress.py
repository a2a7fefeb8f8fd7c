"""Elements by a mask, the numbers of those that are not zero, and counts: the values decide how
long the result is, so these launches make it themselves.

A loop over a mask writes every element to the place of the next one that is chosen, and goes on by
one place if it is. So it has no branch but for its end, which is where the last one was written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.ir import chosen_ir
from symdnn.cpu.ir.builder import Builder
from symdnn.cpu.ir.loops_ir import COPY_ROW, METADATA, word
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.scratch import address, as_contiguous
from symdnn.cpu.launch.traits import LLVM_QUIET, NUMPY_QUIET
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.array.getitem import Nonzero
from symdnn.ops.array.sort import Unique
from symdnn.ops.lowered.of_values import Compressed

#: With fewer elements NumPy is as fast; bytes of an element that is copied whether or not it is
#: chosen.
_MIN_ELEMENTS, _MOST_COPIED = 1 << 10, 32
Copy = Callable[[str, str], None]
_WORDS = ("chosen", "x", "y", "count", "lines", "size", "bytes")


def compress_ir(by: str, nbytes: int, vectors: bool) -> str:
    """The module of ``kernel``: for each of ``lines`` lines of ``size`` elements, ``count`` to y.

    ``by`` a ``mask``, or the ``indices`` that are chosen; elements of ``nbytes`` bytes, of
    ``bytes`` if it is 0. ``numbers``: the indices that a mask chooses. Those that a mask chooses
    of eight may be moved in ``vectors``.
    """
    s = Builder()
    entry = [line for k, name in enumerate(_WORDS) for line in word(
        f"%{name}", k, "ptr" if k < 3 else "i64")]  # fmt: skip
    s.put("define void @kernel(ptr %w) #0 {", "entry:", *entry)
    s.block = "entry"
    step = str(nbytes) if nbytes else "%bytes"

    def moved(base: str, number: str) -> str:
        return s.new(f"getelementptr i8, ptr {base}, i64 {s.new(f'mul i64 {number}, {step}')}")

    def copy(x: str, i: str, y: str, k: str) -> None:
        if by == "numbers":
            s.put(f"store i64 {i}, ptr {moved(y, k)}, align 8")
        elif nbytes:
            value = s.new(f"load i{8 * nbytes}, ptr {moved(x, i)}, align 1")
            s.put(f"store i{8 * nbytes} {value}, ptr {moved(y, k)}, align 1")
        else:
            s.put(f"call void @copy_row(ptr {moved(y, k)}, ptr {moved(x, i)}, i64 %bytes)")

    with s.each("line", 0, "%lines") as number:
        x = moved("%x", s.times(number, "%size"))
        y = moved("%y", s.times(number, "%count"))
        if by == "indices":
            with s.each("element", 0, "%count") as k:
                chosen = s.new(f"getelementptr i64, ptr %chosen, i64 {k}")
                copy(x, s.new(f"load i64, ptr {chosen}, align 8"), y, k)
        else:
            bits = 32 if by == "numbers" else 8 * nbytes
            of_eight = _Vectors(s, by, x, y, bits) if vectors else None
            _until_the_last(s, lambda i, k: copy(x, i, y, k), bool(nbytes), of_eight)
    s.put("ret void", "}")
    return (
        "\n".join([*COPY_ROW, *(chosen_ir.CHOSEN if vectors else ()), *s.lines, *METADATA]) + "\n"
    )


@dataclass(frozen=True)
class _Vectors:
    """Eight elements of ``bits`` bits, or their numbers, of which the chosen are moved at once."""

    s: Builder
    by: str
    x: str
    y: str
    bits: int

    def copy(self, i: str, k: str) -> str:
        """Append what writes the chosen of eight from element ``i`` on; where the next one goes."""
        s = self.s
        flags = s.new(f"load <8 x i8>, ptr {s.bytes_at('%chosen', i)}, align 1")
        mask = s.new(f"icmp ne <8 x i8> {flags}, zeroinitializer")
        chosen = chosen_ir.chosen_bits(s, mask, 8)
        if self.by == "numbers":
            numbers = chosen_ir.chosen_numbers(s, i, chosen)
            s.put(f"store <8 x i64> {numbers}, ptr {s.bytes_at(self.y, (k, 8))}, align 8")
            return s.plus(k, chosen_ir.count_of(s, chosen))
        lanes = chosen_ir.lanes_of(self.bits)
        kind = f"<{lanes} x i{self.bits}>"
        for first in range(0, 8, lanes):
            some = s.new(f"and i64 {s.new(f'lshr i64 {chosen}, {first}')}, {(1 << lanes) - 1}")
            x = s.bytes_at(self.x, (s.plus(i, first), self.bits // 8))
            own = s.new(f"load {kind}, ptr {x}, align 1")
            found = chosen_ir.chosen_first(s, own, kind, some)
            s.put(f"store {kind} {found}, ptr {s.bytes_at(self.y, (k, self.bits // 8))}, align 1")
            k = s.plus(k, chosen_ir.count_of(s, some))
        return k


def _until_the_last(s: Builder, copy: Copy, always: bool, vectors: _Vectors | None) -> None:
    """The loop over a mask up to its last chosen element, of which there is one at least."""
    i, k = _by_eight(s, copy, vectors) if always else ("0", "0")
    before = s.block
    s.put(f"%some_left = icmp ult i64 {k}, %count", "br i1 %some_left, label %each, label %whole")
    s.label("each")
    s.put(f"%i = phi i64 [{i}, %{before}], [%i_next, %each_end]")
    s.put(f"%k = phi i64 [{k}, %{before}], [%k_next, %each_end]")
    is_chosen = _is_chosen(s, "%i")
    if always:
        copy("%i", "%k")
    else:
        with s.when("copied", is_chosen):
            copy("%i", "%k")
    s.put(f"%k_next = add i64 %k, {s.new(f'zext i1 {is_chosen} to i64')}", "br label %each_end")
    s.label("each_end")
    s.put("%i_next = add i64 %i, 1", "%k_more = icmp ult i64 %k_next, %count")
    s.put("br i1 %k_more, label %each, label %whole")
    s.label("whole")


def _by_eight(s: Builder, copy: Copy, vectors: _Vectors | None) -> tuple[str, str]:
    """Eight elements at a time, while as many are left and places for them; where that ends."""
    before = s.block
    s.put("br label %eight")
    s.label("eight")
    s.put(f"%i8 = phi i64 [0, %{before}], [%i8_next, %eight_body]")
    s.put(f"%k8 = phi i64 [0, %{before}], [%k8_next, %eight_body]")
    ends = [s.plus(v, 8) for v in ("%i8", "%k8")]
    fit = [s.new(f"icmp ule i64 {e}, {n}") for e, n in zip(ends, ("%size", "%count"))]
    s.put(f"br i1 {s.new(f'and i1 {fit[0]}, {fit[1]}')}, label %eight_body, label %eight_done")
    s.label("eight_body")
    k = "%k8"
    if vectors:
        k = vectors.copy("%i8", k)
    for u in range(0 if vectors else 8):
        i = s.plus("%i8", u)
        copy(i, k)
        k = s.new(f"add i64 {k}, {s.new(f'zext i1 {_is_chosen(s, i)} to i64')}")
    s.put(f"%i8_next = add i64 {ends[0]}, 0", f"%k8_next = add i64 {k}, 0", "br label %eight")
    s.label("eight_done")
    return "%i8", "%k8"


def _is_chosen(s: Builder, i: str) -> str:
    flag = s.new(f"load i8, ptr {s.new(f'getelementptr i8, ptr %chosen, i64 {i}')}, align 1")
    return s.new(f"icmp ne i8 {flag}, 0")


class MaskLoop:
    """A kernel of :func:`compress_ir`, and its block of words."""

    def __init__(self, by: str, nbytes: int) -> None:
        bits = 32 if by == "numbers" else 8 * nbytes
        vectors = by != "indices" and chosen_ir.in_vectors(bits)
        self._run = threads.kernel(compress_ir, by, nbytes, vectors)
        self._words = (ctypes.c_int64 * len(_WORDS))()

    def __call__(self, chosen: Array, x: Array, y: Array, *numbers: int) -> None:
        """Run it on contiguous arrays, of which some elements are chosen."""
        self._words[:] = [address(chosen), address(x), address(y), *numbers]
        self._run(self._words)

    def compressed(self, mask: Array, x: Array) -> Array:
        """The elements of a vector where a mask holds."""
        y = np.empty(int(np.count_nonzero(mask)), x.dtype)
        if y.size:
            self(mask, x, y, y.size, 1, mask.size, x.itemsize)
        return y


class CompressKernel(Kernel[Compressed]):
    """``x[mask]`` along any axis."""

    name = "llvm.compress"
    traits = LLVM_QUIET

    def refuses(self, call: Call[Compressed]) -> str | None:
        """Needs enough elements."""
        x, mask = call.inputs
        return compile_refusal((x, mask), lambda: prod(x.shape), _MIN_ELEMENTS)

    def bind(self, call: Call[Compressed]) -> Launch[Array]:
        """A launch for any strides."""
        op, shape, dtype = call.op, call.inputs[0].shape, call.inputs[0].numpy
        (size,), lines = call.inputs[1].shape, prod(shape[: op.axis])
        before, after = tuple(shape[: op.axis]), tuple(shape[op.axis + 1 :])
        if prod(shape) < _MIN_ELEMENTS or shape[op.axis] != size:
            return PlainKernel().bind(call)
        nbytes = prod(after) * dtype.itemsize
        by = "indices" if lines > 1 else "mask"
        run = MaskLoop(by, nbytes if nbytes <= _MOST_COPIED else 0)

        def launch(inputs: Arrays, outputs: Sequence[Any]) -> list[Array]:
            x, mask = map(as_contiguous, inputs)
            count = int(np.count_nonzero(mask))
            y = np.empty((*before, count, *after), dtype)
            if count:
                chosen = mask if lines == 1 else np.flatnonzero(mask)
                run(chosen, x, y, count, lines, size, nbytes)
            return [y]

        return launch


class NonzeroKernel(Kernel[Nonzero]):
    """The numbers of a vector's elements that hold, as int64."""

    name = "llvm.compress"
    traits = LLVM_QUIET

    def refuses(self, call: Call[Nonzero]) -> str | None:
        """Needs a vector of bools with enough elements."""
        (x,) = call.inputs
        if x.dtype != "bool" or x.ndim != 1:
            return "it takes a vector of bools"
        return compile_refusal((x,), lambda: prod(x.shape), _MIN_ELEMENTS)

    def bind(self, call: Call[Nonzero]) -> Launch[Array]:
        """A launch for any strides."""
        (size,) = call.inputs[0].shape
        if size < _MIN_ELEMENTS:
            return PlainKernel().bind(call)
        run = MaskLoop("numbers", 8)

        def launch(inputs: Arrays, outputs: Sequence[Any]) -> list[Array]:
            mask = as_contiguous(inputs[0])
            y = np.empty(np.count_nonzero(mask), np.int64)
            if y.size:
                run(mask, mask, y, y.size, 1, size, 8)
            return [y]

        return launch


class PlainKernel(Kernel):
    """NumPy's functions, of a few elements."""

    name = "numpy.of_values"
    traits = NUMPY_QUIET

    def bind(self, call: Call[Any]) -> Launch[Array]:
        """The op's reference, whose results are in memory of their own."""
        compute = call.op.compute
        return lambda inputs, outputs: compute(*inputs)


KERNELS: tuple[Row, ...] = (
    ((Compressed,), (CompressKernel(), PlainKernel())),
    ((Nonzero,), (NonzeroKernel(), PlainKernel())),
    ((Unique,), (PlainKernel(),)),
)
