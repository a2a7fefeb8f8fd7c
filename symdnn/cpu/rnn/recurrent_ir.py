"""A recurrent layer as LLVM IR: all steps in one parallel region, with a barrier after each step.

Hidden units are in groups of 16, and each thread has some groups with all their gates. It packs its
columns of both matrices into panels (:mod:`symdnn.cpu.gemm.gemm_ir`), which stay in its L2 cache
for all steps. A step has two GEMMs and a loop over the thread's units (gates, cell, state). The
GEMM of the input may run while other threads are still at the step before; that of the state runs
after the barrier. A GEMM of few sequences takes the time in which its matrix is read. So for fewer
sequences than a tile has rows, the inputs of a *chunk* of steps are multiplied at once.

Each element is computed by one thread, in an order that does not depend on the number of threads.
So results are the same bits for any number of threads.

Saved for the gradient, step by step: for each sequence and group the vectors of
:data:`SAVED_VECTORS`, and an LSTM's cells (steps + 1, batch, hidden).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.compiler.jit import SKIP_PASSES
from symdnn.cpu.gemm import gemm_ir
from symdnn.cpu.gemm.gemm_tile_ir import ROW_PANELS
from symdnn.cpu.ir.builder import DECLARED, WIDTH, Builder, FunctionBuilder
from symdnn.cpu.ir.loops_ir import kernel_entry
from symdnn.cpu.ir.vector_activations_ir import activation_declarations, sigmoid, tanh

#: Number of gates.
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
#: Vectors saved for the gradient: i, f, g, o; r, z, n and the recurrent part of n; none of others.
SAVED_VECTORS = {"lstm": 4, "gru": 4, "rnn_tanh": 0, "rnn_relu": 0}

#: Words of the block of the forward pass. Strides from one step to the next are in bytes and may be
#: negative; words that begin with ``y`` are of one direction. ``counter``, of barriers, is 0 at the
#: beginning; a waiting thread reads it ``looks`` times before it yields its processor.
#: ``packed_for`` has a word for each thread: how many threads there were when it packed its share
#: of the matrices, 0 if these have changed.
FORWARD_WORDS = (
    "threads", "counter", "looks", "steps", "batch", "columns", "hidden", "w", "r", "bw", "br", "x",
    "x_step", "hx", "y", "y_step", "y_row", "cells", "cells_step", "kept", "kept_step", "packed_w",
    "packed_r", "bias", "before", "before_h", "chunk", "before_rows", "tile_rows", "packed_for",
    "packed_pairs", "pairs",
)  # fmt: skip
_INTEGER_WORDS = {
    "threads", "looks", "steps", "batch", "columns", "hidden", "x_step", "y_step", "y_row",
    "cells_step", "kept_step", "dy_step", "dx_adds", "block", "chunk", "before_rows", "tile_rows",
    "lanes", "examples", "dw_lane",
}  # fmt: skip

_TEXT = [
    *"""
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare i32 @sched_yield()
declare void @llvm.x86.sse2.pause()
define internal void @arrive(ptr %counter) #0 {
%before = atomicrmw add ptr %counter, i64 1 acq_rel
ret void
}
define internal void @wait(ptr %counter, i64 %wanted, i64 %looks) #0 {
entry:
br label %look
look:
%i = phi i64 [0, %entry], [%next, %again], [0, %rest]
%now = load atomic i64, ptr %counter acquire, align 8
%there = icmp sge i64 %now, %wanted
br i1 %there, label %done, label %not_yet
not_yet:
%next = add i64 %i, 1
%long = icmp sgt i64 %next, %looks
br i1 %long, label %rest, label %again
again:
call void @llvm.x86.sse2.pause()
br label %look
rest:
%ignored = call i32 @sched_yield()
br label %look
done:
ret void
}
""".strip().splitlines(),
    *kernel_entry("call void @worker(ptr %w)"),
]


def _product(shape: gemm_ir.TileShape) -> list[str]:
    """``product``, which adds up 512 terms in registers: rows of so many terms fit the L1 cache.

    The panels of so many terms that are read for all rows of several tiles fit the L2 cache.
    """
    s = FunctionBuilder()
    given = ("ptr %a_0, i64 %a_row, ptr %b_0, i64 %b_panel, i64 %b_term, ptr %c_0, i64 %c_row, "
             "ptr %from, i64 %from_row, i64 %m, i64 %n, i64 %k")  # fmt: skip

    def part(t: str, start: list[str]) -> list[str]:
        terms = s.least(s.minus("%k", t), 512)
        a, b = s.bytes_at("%a_0", (t, 4)), s.bytes_at("%b_0", (t, "%b_term"))
        with s.each("columns", 0, "%n", step=block) as j:
            panel = s.new(f"udiv i64 {j}, {shape.columns}")
            of_panel = s.bytes_at(b, (panel, "%b_panel"))
            c, begun = (s.bytes_at(x, (j, 4)) for x in ("%c_0", start[0]))
            none = s.new(f"icmp eq ptr {start[0]}, null")
            begun = s.new(f"select i1 {none}, ptr null, ptr {begun}")
            s.call(
                "gemm_block", f"ptr {a}", "i64 %a_row", "i64 4", f"ptr {of_panel}",
                "i64 %b_panel", "i64 %b_term", f"ptr {c}", "i64 %c_row", f"ptr {begun}",
                f"i64 {start[1]}", "i64 %m", f"i64 {s.least(s.minus('%n', j), block)}",
                f"i64 {terms}", "i64 0",
            )  # fmt: skip
        return ["%c_0", "%c_row"]

    with s.function("product", given):
        several = s.new(f"icmp sgt i64 %m, {shape.rows}")
        block = s.new(f"select i1 {several}, i64 {ROW_PANELS * shape.columns}, i64 %n")
        s.counted("part", 0, "%k", part, ["%from", "%from_row"], ["ptr", "i64"], step=512)
    return s.lines


def module(width: int, worker: Sequence[str], more: Sequence[str] = ()) -> str:
    """The module of ``kernel``, which runs the function ``worker`` in each thread.

    ``more`` are declarations and functions that it calls.
    """
    shape = gemm_ir.shape_of(width)
    begin = [*DECLARED, *activation_declarations(width), *gemm_ir.declared(shape)]
    declared = dict.fromkeys(begin)
    lines = [*declared, *more, *gemm_ir.functions(shape), *_TEXT, *_product(shape), *worker]
    lines.append(gemm_ir.attributes(shape))
    return SKIP_PASSES + "\n".join(lines) + "\n"


def panels(width: int, columns: int, threads: int) -> int:
    """Panels for so many columns, if each thread begins a panel of its own."""
    return columns // gemm_ir.shape_of(width).columns + threads


@dataclass(frozen=True)
class ThreadShare:
    """Registers with a thread's share: ``count`` groups of units from ``first`` on."""

    thread: str
    active: str
    groups: str
    first: str
    count: str
    #: The first unit, the number of units, the number of those that exist.
    unit: str
    units: str


class RecurrentSource(Builder):
    """Builds the function ``worker``: words of the block, addresses, loops over units."""

    def __init__(self, mode: str, width: int, words: Sequence[str]) -> None:
        super().__init__()
        self.mode, self.gates, self.native_width = mode, GATES[mode], width
        #: Columns of a panel in groups of 16.
        self.panel = gemm_ir.shape_of(width).columns // WIDTH
        self.term = 4 * WIDTH * self.panel
        self.rows = gemm_ir.shape_of(width).rows
        self.lines += ["define internal void @worker(ptr %words) #0 {", "entry:"]
        for name in words:
            kind = "i64" if name in _INTEGER_WORDS else "ptr"
            self.lines.append(
                f"%at_{name} = getelementptr i64, ptr %words, i64 {words.index(name)}"
            )
            self.lines.append(f"%{name} = load {kind}, ptr %at_{name}")

    def sigmoid(self, x: str) -> str:
        """1 / (1 + exp(-x))"""
        return sigmoid(self, x, self.native_width)

    def tanh(self, x: str) -> str:
        """The hyperbolic tangent."""
        return tanh(self, x, self.native_width)

    # -- integers and addresses -----------------------------------------------------------------

    def part(self, count: str | int, thread: str, active: str) -> str:
        """The first of a thread's part of ``count`` items."""
        return self.new(f"udiv i64 {self.times(count, thread)}, {active}")

    def wait(self, arrivals: str) -> None:
        """Wait until the counter has so many arrivals of all threads."""
        self.call("wait", "ptr %counter", f"i64 {arrivals}", "i64 %looks")

    def share(self) -> ThreadShare:
        """The share of this thread; a thread without any returns."""
        t = self.new(f"zext i32 {self.new('call i32 @omp_get_thread_num()')} to i64")
        c = self.new(f"zext i32 {self.new('call i32 @omp_get_num_threads()')} to i64")
        groups = self.new(f"udiv i64 {self.plus('%hidden', WIDTH - 1)}, {WIDTH}")
        active = self.least(c, groups)
        has = self.new(f"icmp slt i64 {t}, {active}")
        self.lines.append(f"br i1 {has}, label %has, label %done")
        self.label("has")
        first = self.part(groups, t, active)
        count = self.minus(self.part(groups, self.plus(t, 1), active), first)
        unit = self.times(first, WIDTH)
        units = self.least(self.times(count, WIDTH), self.minus("%hidden", unit))
        return ThreadShare(t, active, groups, first, count, unit, units)

    def end(self) -> list[str]:
        """The lines of the function."""
        self.lines += ["br label %done", "done:", "ret void", "}"]
        return self.lines

    def choose_first(self, i: str, first: str, other: str, kind: str = "ptr") -> str:
        """``first`` if i is 0, else ``other``."""
        return self.new(
            f"select i1 {self.new(f'icmp eq i64 {i}, 0')}, {kind} {first}, {kind} {other}"
        )

    # -- GEMM -----------------------------------------------------------------------------------

    def begin_panels(
        self, share: ThreadShare, packed: str, columns: str | int, terms: str
    ) -> tuple[str, str]:
        """(address of the thread's panels, bytes of a panel) after ``columns`` groups of others."""
        size = self.times(terms, self.term)
        before = self.new(f"udiv i64 {columns}, {self.panel}")
        return self.bytes_at(packed, (self.plus(before, share.thread), size)), size

    def pack(
        self, b: str, b_term: str | int, b_column: str | int, to: str, to_panel: str, n: str, k: str
    ) -> None:
        """Append a call of ``gemm_pack``."""
        self.call("gemm_pack", f"ptr {b}", f"i64 {b_term}", f"i64 {b_column}", f"ptr {to}",
                  f"i64 {to_panel}", f"i64 {self.term}", f"i64 {n}", f"i64 {k}")  # fmt: skip

    def multiply(
        self, a: tuple[str, str], b: tuple[str, str], c: tuple[str, str], start: tuple[str, str],
        sizes: tuple[str, str, str],
    ) -> None:  # fmt: skip
        """Append a call of ``product``.

        Operands are (address, bytes to the next row or panel); sizes are rows, columns and terms.
        """
        self.call(
            "product", f"ptr {a[0]}", f"i64 {a[1]}", f"ptr {b[0]}", f"i64 {b[1]}",
            f"i64 {self.term}", f"ptr {c[0]}", f"i64 {c[1]}", f"ptr {start[0]}", f"i64 {start[1]}",
            *(f"i64 {n}" for n in sizes),
        )  # fmt: skip
