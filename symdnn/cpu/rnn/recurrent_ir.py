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
from symdnn.cpu.ir.builder import DECLARED, VECTOR, WIDTH, Builder
from symdnn.cpu.ir.loops_ir import kernel_entry
from symdnn.cpu.ir.vector_activations_ir import activation_declarations, sigmoid, tanh

__all__ = [
    "FORWARD_WORDS",
    "GATES",
    "SAVED_VECTORS",
    "ThreadShare",
    "RecurrentSource",
    "forward_ir",
    "module",
    "panels",
]

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
    "packed_r", "bias", "before", "before_h", "chunk", "before_rows", "packed_for",
)  # fmt: skip
_INTEGER_WORDS = {
    "threads", "looks", "steps", "batch", "columns", "hidden", "x_step", "y_step", "y_row",
    "cells_step", "kept_step", "dy_step", "dx_adds", "block", "chunk", "before_rows", "lanes",
    "examples", "dw_lane",
}  # fmt: skip

#: ``product`` adds up 512 terms in registers: rows of so many terms fit the L1 cache.
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
define internal void @product(ptr %a_0, i64 %a_row, ptr %b_0, i64 %b_panel, i64 %b_term, ptr %c,
  i64 %c_row, ptr %from_0, i64 %from_row_0, i64 %m, i64 %n, i64 %k) #0 {
entry:
br label %part
part:
%t = phi i64 [0, %entry], [%t_next, %part]
%from = phi ptr [%from_0, %entry], [%c, %part]
%from_row = phi i64 [%from_row_0, %entry], [%c_row, %part]
%left = sub i64 %k, %t
%over = icmp sgt i64 %left, 512
%terms = select i1 %over, i64 512, i64 %left
%a = getelementptr float, ptr %a_0, i64 %t
%b_at = mul i64 %t, %b_term
%b = getelementptr i8, ptr %b_0, i64 %b_at
call void @gemm_block(ptr %a, i64 %a_row, i64 4, ptr %b, i64 %b_panel, i64 %b_term, ptr %c,
  i64 %c_row, ptr %from, i64 %from_row, i64 %m, i64 %n, i64 %terms, i64 0)
%t_next = add i64 %t, %terms
%more = icmp slt i64 %t_next, %k
br i1 %more, label %part, label %done
done:
ret void
}
""".strip().splitlines(),
    *kernel_entry("call void @worker(ptr %w)"),
]


def module(width: int, worker: Sequence[str]) -> str:
    """The module of ``kernel``, which runs the function ``worker`` in each thread."""
    shape = gemm_ir.shape_of(width)
    declared = dict.fromkeys([*DECLARED, *activation_declarations(width), *gemm_ir.declared(shape)])
    lines = [*declared, *gemm_ir.functions(shape), *_TEXT, *worker, gemm_ir.attributes(shape)]
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

    def times(self, a: str | int, b: str | int) -> str:
        """a * b"""
        return self.new(f"mul nsw i64 {a}, {b}")

    def plus(self, a: str | int, b: str | int) -> str:
        """a + b"""
        return self.new(f"add nsw i64 {a}, {b}")

    def less(self, a: str | int, b: str | int) -> str:
        """a - b"""
        return self.new(f"sub nsw i64 {a}, {b}")

    def place(self, base: str, *terms: str | int | tuple[str | int, str | int]) -> str:
        """The address ``base`` plus offsets in bytes; a pair is a product."""
        for t in terms:
            at = self.times(*t) if isinstance(t, tuple) else t
            base = self.new(f"getelementptr i8, ptr {base}, i64 {at}")
        return base

    def part(self, count: str | int, thread: str, active: str) -> str:
        """The first of a thread's part of ``count`` items."""
        return self.new(f"udiv i64 {self.times(count, thread)}, {active}")

    def call(self, name: str, *given: str) -> None:
        """Append a call; arguments include their types."""
        self.lines.append(f"call void @{name}({', '.join(given)})")

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
        count = self.less(self.part(groups, self.plus(t, 1), active), first)
        unit = self.times(first, WIDTH)
        units = self.least(self.times(count, WIDTH), self.less("%hidden", unit))
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
        return self.place(packed, (self.plus(before, share.thread), size)), size

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


# -- forward --------------------------------------------------------------------------------------


def forward_ir(mode: str, width: int, keeps: bool) -> str:
    """The module of ``kernel`` for vectors of ``width``; its block is :data:`FORWARD_WORDS`."""
    return module(width, _Forward(mode, width, keeps).source())


class _Forward(RecurrentSource):
    """The forward pass of one layer in one direction."""

    def __init__(self, mode: str, width: int, keeps: bool) -> None:
        super().__init__(mode, width, FORWARD_WORDS)
        self.keeps = keeps and SAVED_VECTORS[mode] > 0
        self.x_row, self.h_row = self.times("%columns", 4), self.times("%hidden", 4)

    def source(self) -> list[str]:
        """The lines of the function."""
        self.own = own = self.share()
        groups = self.times(own.first, self.gates)
        self.my_w, self.w_panel = self.begin_panels(own, "%packed_w", groups, "%columns")
        self.my_r, self.r_panel = self.begin_panels(own, "%packed_r", groups, "%hidden")
        all_columns = self.times(own.groups, self.gates * WIDTH)
        #: Bytes of a row; a cache line longer, so that rows do not map to the same sets of the
        #: cache.
        self.row = self.times(self.plus(all_columns, WIDTH), 4)
        first = self.times(groups, 4 * WIDTH)
        self.my_bias = self.place("%bias", first)
        self.my_bias_h = self.place("%bias", (all_columns, 4), first)
        self.my_before = self.place("%before", (own.thread, self.times(self.row, "%before_rows")))
        self.my_before_h = self.place("%before_h", (own.thread, self.times(self.row, self.rows)))
        self.columns = self.times(own.count, self.gates * WIDTH)
        mine = self.place("%packed_for", (own.thread, 8))
        known = self.new(f"load i64, ptr {mine}, align 8")
        stale = self.new(f"icmp ne i64 {known}, {own.active}")
        self.when("stale", stale, lambda: self._pack_share(mine))
        #: Whether a chunk has several steps.
        self.together = self.new("icmp sgt i64 %chunk, 1")
        self.apart = self.new(f"xor i1 {self.together}, true")
        chunks = self.new(f"sdiv i64 {self.less(self.plus('%steps', '%chunk'), 1)}, %chunk")
        self.loop("chunk_of_steps", chunks, self._chunk)
        return self.end()

    def _chunk(self, i: str, _: list[str]) -> list[str]:
        """Append the steps of a chunk, after the product of all their inputs if they are several.

        Rows of the product are in the order of memory, which is that of the steps or the reverse.
        """
        self.begin = self.times(i, "%chunk")
        self.count = self.least("%chunk", self.less("%steps", self.begin))
        back = self.new("icmp slt i64 %x_step, 0")
        last = self.less(self.count, 1)
        self.lowest = self.new(f"select i1 {back}, i64 {last}, i64 0")
        step = self.times("%batch", self.row)
        step = self.new(f"select i1 {back}, i64 {self.less(0, step)}, i64 {step}")
        self.before_step = self.new(f"select i1 {self.together}, i64 {step}, i64 0")
        self.when("ahead", self.together, self._multiply_ahead)
        self.loop("step", self.count, self._step)
        return []

    def _multiply_ahead(self) -> None:
        """Append the product of the inputs of a whole chunk."""
        x = self.place("%x", (self.plus(self.begin, self.lowest), "%x_step"))
        self._multiply_inputs(x, self.my_before, self.times(self.count, "%batch"))

    def _multiply_inputs(self, x: str, to: str, rows: str) -> None:
        self.multiply((x, self.x_row), (self.my_w, self.w_panel), (to, self.row),
                      (self.my_bias, "0"), (rows, self.columns, "%columns"))  # fmt: skip

    def _pack_share(self, mine: str) -> None:
        """Append the packing of this thread's share. The first thread's invalidates the shares of
        threads that do not run now, which may have been where it packs."""
        own = self.own
        self.loop("pack", own.count, self._pack)
        self.put(f"store i64 {own.active}, ptr {mine}, align 8")
        is_first = self.new(f"icmp eq i64 {own.thread}, 0")
        others = self.new(f"icmp slt i64 {own.active}, %threads")
        self.when("clears", self.new(f"and i1 {is_first}, {others}"), self._forget_others)

    def _forget_others(self) -> None:
        def clear(t: str, _: list[str]) -> list[str]:
            self.put(f"store i64 0, ptr {self.place('%packed_for', (t, 8))}, align 8")
            return []

        self.counted("clear", self.own.active, "%threads", clear)

    def _pack(self, j: str, _: list[str]) -> list[str]:
        """Append the packing of a group's columns, gate after gate, and of their biases."""
        unit = self.times(self.plus(self.own.first, j), WIDTH)
        lanes = self.least(self.less("%hidden", unit), WIDTH)
        mask = self.lanes_below(unit, "%hidden")
        for gate in range(self.gates):
            group = self.affine(j, self.gates, gate)
            panel = self.new(f"udiv i64 {group}, {self.panel}")
            within = self.times(self.new(f"urem i64 {group}, {self.panel}"), 4 * WIDTH)
            row = self.plus(self.times("%hidden", gate), unit)
            for given, mine, size, step, terms in (
                ("%w", self.my_w, self.w_panel, self.x_row, "%columns"),
                ("%r", self.my_r, self.r_panel, self.h_row, "%hidden"),
            ):
                to = self.place(mine, (panel, size), within)
                source = self.place(given, (row, step))
                self.pack(source, 4, step, to, "0", lanes, terms)
            at = self.times(group, 4 * WIDTH)
            bw, br = (self.load(self.place(b, (row, 4)), mask) for b in ("%bw", "%br"))
            if self.mode == "gru":
                self.store(br, self.place(self.my_bias_h, at))
            else:
                bw = self.add(bw, br)
            self.store(bw, self.place(self.my_bias, at))
        return []

    def _step(self, c: str, _: list[str]) -> list[str]:
        """Append a step, for as many sequences at a time as a tile has rows: they fit L1."""
        s = self.plus(self.begin, c)
        self.s, self.ready = s, self.times(s, self.own.active)
        row = self.less(c, self.lowest)
        self.now = self.place(self.my_before, (row, self.before_step))
        last = self.place("%y", (self.less(s, 1), "%y_step"))
        self.h = self.choose_first(s, "%hx", last)
        self.h_step = self.choose_first(s, self.h_row, "%y_row", "i64")
        tiles = self.new(f"udiv i64 {self.plus('%batch', self.rows - 1)}, {self.rows}")
        self.loop("tile", tiles, self._tile)
        self.call("arrive", "ptr %counter")
        return []

    def _tile(self, i: str, _: list[str]) -> list[str]:
        self.sequence = self.times(i, self.rows)
        rows = self.least(self.less("%batch", self.sequence), self.rows)
        before, gru = (self.now, self.row), self.mode == "gru"
        x = self.place("%x", (self.s, "%x_step"), (self.sequence, self.x_row))
        self.when("inputs", self.apart, lambda: self._multiply_inputs(x, self.now, rows))
        self.wait(self.ready)
        h = self.place(self.h, (self.sequence, self.h_step))
        after = (self.my_before_h, self.row) if gru else before
        start = (self.my_bias_h, "0") if gru else before
        self.multiply((h, self.h_step), (self.my_r, self.r_panel), after, start,
                      (rows, self.columns, "%hidden"))  # fmt: skip
        self.loop("sequence", rows, self._sequence)
        return []

    # -- gates, cells and states ----------------------------------------------------------------

    def _sequence(self, i: str, _: list[str]) -> list[str]:
        """Append the addresses of a sequence in each array, and the loop over its units."""
        first, b = self.times(self.own.unit, 4), self.plus(self.sequence, i)
        row = self.times(i, self.row)
        self.in_before, self.in_before_h = (
            self.place(p, row) for p in (self.now, self.my_before_h)
        )
        self.in_y = self.place("%y", (self.s, "%y_step"), (b, "%y_row"), first)
        self.in_h = self.place(self.h, (b, self.h_step), first)
        self.in_cells = self.place("%cells", (self.s, "%cells_step"), (b, self.h_row), first)
        group = self.plus(self.times(b, self.own.groups), self.own.first)
        size = 4 * WIDTH * SAVED_VECTORS[self.mode]
        self.in_kept = self.place("%kept", (self.s, "%kept_step"), (group, size))
        self.loop("group", self.own.count, self._group)
        return []

    def _group(self, j: str, _: list[str]) -> list[str]:
        self.units = self.times(j, 4 * WIDTH)
        self.inside = self.lanes_below(self.times(j, WIDTH), self.own.units)
        self.gates_at = self.times(j, 4 * WIDTH * self.gates)
        given = self._vectors(self.in_before, self.gates_at, self.gates)
        if self.mode == "lstm":
            h, kept = self._lstm(given)
        elif self.mode == "gru":
            h, kept = self._gru(given)
        else:
            h, kept = self._plain(given[0]), []
        self.store(h, self.place(self.in_y, self.units), self.inside)
        if self.keeps:
            to = self.place(self.in_kept, (j, 4 * WIDTH * len(kept)))
            for i, value in enumerate(kept):
                self.store(value, self.place(to, 4 * WIDTH * i))
        return []

    def _vectors(self, base: str, at: str, count: int) -> list[str]:
        """Load neighbouring vectors."""
        first = self.place(base, at)
        return [self.load(self.place(first, 4 * WIDTH * g)) for g in range(count)]

    def _lstm(self, given: Sequence[str]) -> tuple[str, list[str]]:
        i, f, o = (self.sigmoid(given[k]) for k in (0, 1, 3))
        g = self.tanh(given[2])
        cells = self.place(self.in_cells, self.units)
        c = self.multiply_add(f, self.load(cells, self.inside), self.new(f"fmul {VECTOR} {i}, {g}"))
        self.store(c, self.place(cells, "%cells_step"), self.inside)
        return self.new(f"fmul {VECTOR} {o}, {self.tanh(c)}"), [i, f, g, o]

    def _gru(self, given: Sequence[str]) -> tuple[str, list[str]]:
        more = self._vectors(self.in_before_h, self.gates_at, 3)
        r, z = (self.sigmoid(self.add(given[k], more[k])) for k in (0, 1))
        n = self.tanh(self.multiply_add(r, more[2], given[2]))
        before = self.load(self.place(self.in_h, self.units), self.inside)
        return self.multiply_add(z, self.sub(before, n), n), [r, z, n, more[2]]

    def _plain(self, given: str) -> str:
        if self.mode == "rnn_tanh":
            return self.tanh(given)
        low = self.new(f"fcmp olt {VECTOR} {given}, zeroinitializer")  # NaN stays
        return self.new(f"select <{WIDTH} x i1> {low}, {VECTOR} zeroinitializer, {VECTOR} {given}")
