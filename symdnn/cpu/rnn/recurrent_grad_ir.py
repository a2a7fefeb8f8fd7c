"""The gradient of a recurrent layer as LLVM IR; see :mod:`symdnn.cpu.rnn.recurrent_ir`.

Steps run from the last to the first. In each step a thread computes the gradients of its units'
gates. After a barrier it multiplies the gradients of all units' gates by its columns of the
recurrent matrix, which gives the gradient of the state before. The GEMM for the gradient of the
input may run while other threads are at the next step. The gradients of the gates are saved. At the
end their GEMMs with inputs and states, some steps at a time, give the gradients of the matrices:
of all sequences, or of each lane, which is some sequences of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.builder import VECTOR, WIDTH
from symdnn.cpu.ir.vector_activations_ir import one_less
from symdnn.cpu.rnn.recurrent_ir import SAVED_VECTORS, RecurrentSource, module

#: Words of the block. ``dh`` and ``dc`` are the gradients of the last states at the beginning and
#: of the first states at the end. ``dbw`` and ``dbr`` are 0 at the beginning; ``dbr`` is written
#: for a GRU only (elsewhere it equals ``dbw``). ``block`` is the number of steps of a GEMM at the
#: end. A lane has ``examples`` sequences; the parameters' gradients of the next one are ``dw_lane``
#: bytes away.
BACKWARD_WORDS = (
    "threads", "counter", "looks", "steps", "batch", "columns", "hidden", "w", "r", "x", "x_step",
    "hx",
    "y", "y_step", "y_row", "cells", "cells_step", "kept", "kept_step", "dy", "dy_step", "dh", "dc",
    "dx", "dx_adds", "dw", "dr", "dbw", "dbr", "packed_w", "packed_r", "deltas", "slots",
    "packed_x", "packed_h", "block", "lanes", "examples", "dw_lane",
)  # fmt: skip
#: Vectors of gradients of a group of units, and the gate of each: in the GEMM with the input, and
#: in that with the state. A GRU's new gate has two, that of the input first, so that the vectors of
#: either matrix are contiguous.
GATE_SLOTS = {
    "lstm": (4, (0, 1, 2, 3), (0, 1, 2, 3)),
    "gru": (4, (2, 0, 1), (0, 1, 2)),
    "rnn_tanh": (1, (0,), (0,)),
    "rnn_relu": (1, (0,), (0,)),
}
#: Steps whose gradients of the gates are in memory at once: other threads may still read one step.
_GRADIENT_STEPS = 3


def backward_ir(mode: str, width: int) -> str:
    """The module of ``kernel`` for vectors of ``width``; its block is :data:`BACKWARD_WORDS`."""
    return module(width, _Backward(mode, width).source())


class _Backward(RecurrentSource):
    """The gradient of one layer in one direction."""

    def __init__(self, mode: str, width: int) -> None:
        super().__init__(mode, width, BACKWARD_WORDS)
        self.slots, self.of_x, self.of_h = GATE_SLOTS[mode]
        #: The first slot of the GEMM with the recurrent matrix.
        self.first_h = self.slots - len(self.of_h)
        self.x_row, self.h_row = self.times("%columns", 4), self.times("%hidden", 4)

    def source(self) -> list[str]:
        """The lines of the function."""
        self.own = own = self.share()
        self.terms = self.times("%hidden", self.gates)
        self.lane_terms = self.times("%steps", "%examples")
        #: Bytes of a row of all gates' gradients, a cache line longer; bytes of a step.
        self.row = self.times(self.plus(self.times("%hidden", self.slots), WIDTH), 4)
        self.step_bytes = self.times("%batch", self.row)
        self.slot_row = 4 * WIDTH * self.slots
        self.my_r, self.r_panel = self.begin_panels(own, "%packed_r", own.first, self.terms)
        groups = self.new(f"udiv i64 {self.plus('%columns', WIDTH - 1)}, {WIDTH}")
        begin = self.part(groups, own.thread, own.active)
        end = self.times(self.part(groups, self.plus(own.thread, 1), own.active), WIDTH)
        self.my_w, self.w_panel = self.begin_panels(own, "%packed_w", begin, self.terms)
        self.column = self.times(begin, WIDTH)
        self.my_columns = self.minus(self.least(end, "%columns"), self.column)
        self._pack()
        with self.each("step", 0, "%steps") as i:
            self._step(i)
        self._input(self.minus("%steps", 1))
        self._matrices()
        return self.end()

    def _pack(self) -> None:
        """Append the packing of both matrices' columns, with rows in the order of the slots."""
        for slots, matrix, row, mine, size, first, count in (
            (self.of_x, "%w", self.x_row, self.my_w, self.w_panel, self.column, self.my_columns),
            (self.of_h, "%r", self.h_row, self.my_r, self.r_panel, self.own.unit, self.own.units),
        ):
            for at, gate in enumerate(slots):
                rows = self.times("%hidden", gate)
                source = self.bytes_at(matrix, (rows, row), (first, 4))
                to = self.bytes_at(mine, (self.times("%hidden", at), self.term))
                self.pack(source, row, 4, to, size, count, "%hidden")

    # -- steps ----------------------------------------------------------------------------------

    def _step(self, i: str) -> None:
        self.s = self.minus(self.minus("%steps", 1), i)
        self.deltas = self._deltas_of(i)
        with self.each("sequence", 0, "%batch") as b:
            self._sequence(b)
        self.call("arrive", "ptr %counter")
        later = self.new(f"icmp sgt i64 {i}, 0")
        self.lines.append(f"br i1 {later}, label %later, label %now")
        self.label("later")
        self._input(self.minus(i, 1))
        self.lines.append("br label %now")
        self.label("now")
        self.wait(self.times(self.plus(i, 1), self.own.active))
        a = self.bytes_at(self.deltas, (self.times("%hidden", self.first_h), 4))
        state = self.bytes_at("%dh", (self.own.unit, 4)), self.h_row
        start = state if self.mode == "gru" else ("null", "0")
        self.multiply((a, self.row), (self.my_r, self.r_panel), state, start,
                      ("%batch", self.own.units, self.terms))  # fmt: skip

    def _deltas_of(self, i: str) -> str:
        return self.bytes_at(
            "%deltas", (self.new(f"urem i64 {i}, {_GRADIENT_STEPS}"), self.step_bytes)
        )

    def _input(self, i: str) -> None:
        """Append the gradient of the input of step ``i`` from the end."""
        s = self.minus(self.minus("%steps", 1), i)
        dx = self.bytes_at("%dx", (s, "%x_step"), (self.column, 4))
        adds = self.new("icmp ne i64 %dx_adds, 0")
        start = self.new(f"select i1 {adds}, ptr {dx}, ptr null")
        self.multiply((self._deltas_of(i), self.row), (self.my_w, self.w_panel), (dx, self.x_row),
                      (start, self.x_row), ("%batch", self.my_columns, self.terms))  # fmt: skip

    def _sequence(self, b: str) -> None:
        """Append the addresses of a sequence in each array, and the loop over its units."""
        s, first = self.s, self.times(self.own.unit, 4)
        row = self.times(b, self.h_row)
        self.in_dy = self.bytes_at("%dy", (s, "%dy_step"), (b, "%y_row"), first)
        self.in_dh, self.in_dc = (self.bytes_at(p, row, first) for p in ("%dh", "%dc"))
        self.in_cells = self.bytes_at("%cells", (s, "%cells_step"), row, first)
        self.in_y = self.bytes_at("%y", (s, "%y_step"), (b, "%y_row"), first)
        last = self.bytes_at(self.in_y, self.minus(0, "%y_step"))
        self.in_h = self.choose_first(s, self.bytes_at("%hx", row, first), last)
        group = self.plus(self.times(b, self.own.groups), self.own.first)
        size = 4 * WIDTH * SAVED_VECTORS[self.mode]
        self.in_kept = self.bytes_at("%kept", (s, "%kept_step"), (group, size))
        self.in_deltas = self.bytes_at(self.deltas, (b, self.row), first)
        count = self.times("%steps", "%batch")
        lane, example = (self.new(f"{part} i64 {b}, %examples") for part in ("udiv", "urem"))
        step = self.plus(self.times(s, "%examples"), example)
        at = self.plus(self.times(self.own.first, count), self.plus(
            self.times(lane, self.lane_terms), step,
        ))  # fmt: skip
        self.in_slots = self.bytes_at("%slots", (at, self.slot_row))
        self.slots_step = self.times(count, self.slot_row)
        with self.each("group", 0, self.own.count) as j:
            self._group(j)

    def _group(self, j: str) -> None:
        self.units = self.times(j, 4 * WIDTH)
        self.inside = self.lanes_below(self.times(j, WIDTH), self.own.units)
        kept = self.bytes_at(self.in_kept, (j, 4 * WIDTH * SAVED_VECTORS[self.mode]))
        gates = [
            self.load(self.bytes_at(kept, 4 * WIDTH * i)) for i in range(SAVED_VECTORS[self.mode])
        ]
        dh = self.add(self._of(self.in_dy), self._of(self.in_dh))
        if self.mode == "lstm":
            made = self._lstm(dh, gates)
        elif self.mode == "gru":
            made = self._gru(dh, gates)
        else:
            made = [self._plain(dh)]
        self._store(j, made)

    def _store(self, j: str, made: Sequence[str]) -> None:
        """Append the stores of the gates' gradients, for this step's GEMM and for the last ones."""
        to = self.bytes_at(self.in_deltas, self.units)
        slots = self.bytes_at(self.in_slots, (j, self.slots_step))
        for i, value in enumerate(made):
            self.store(value, self.bytes_at(to, (self.h_row, i)), self.inside)
            self.store(value, self.bytes_at(slots, 4 * WIDTH * i))

    def _of(self, base: str) -> str:
        """Load a vector of the units."""
        return self.load(self.bytes_at(base, self.units), self.inside)

    # -- gradients of the gates -----------------------------------------------------------------

    def _times(self, *values: str) -> str:
        """The elementwise product of vectors."""
        found, *rest = values
        for v in rest:
            found = self.new(f"fmul {VECTOR} {found}, {v}")
        return found

    def _lstm(self, dh: str, gates: Sequence[str]) -> list[str]:
        i, f, g, o = gates
        cell = self.tanh(self._of(self.bytes_at(self.in_cells, "%cells_step")))
        place = self.bytes_at(self.in_dc, self.units)
        slope = one_less(self, self._times(cell, cell))
        dc = self.multiply_add(self._times(dh, o), slope, self.load(place, self.inside))
        self.store(self._times(dc, f), place, self.inside)
        return [
            self._times(dc, g, i, one_less(self, i)),
            self._times(dc, self._of(self.in_cells), f, one_less(self, f)),
            self._times(dc, i, one_less(self, self._times(g, g))),
            self._times(dh, cell, o, one_less(self, o)),
        ]

    def _gru(self, dh: str, gates: Sequence[str]) -> list[str]:
        r, z, n, recurrent = gates
        self.store(self._times(dh, z), self.bytes_at(self.in_dh, self.units), self.inside)
        new = self._times(dh, one_less(self, z), one_less(self, self._times(n, n)))
        return [
            new,
            self._times(new, recurrent, r, one_less(self, r)),
            self._times(dh, self.sub(self._of(self.in_h), n), z, one_less(self, z)),
            self._times(new, r),
        ]

    def _plain(self, dh: str) -> str:
        y = self._of(self.in_y)
        if self.mode == "rnn_tanh":
            return self._times(dh, one_less(self, self._times(y, y)))
        on = self.new(f"fcmp ogt {VECTOR} {y}, zeroinitializer")
        return self.new(f"select <{WIDTH} x i1> {on}, {VECTOR} {dh}, {VECTOR} zeroinitializer")

    # -- matrices -------------------------------------------------------------------------------

    def _matrices(self) -> None:
        """Append the gradients of the matrices: loops over lanes and blocks of steps."""
        more = self.plus("%steps", self.minus("%block", 1))
        blocks = self.new(f"sdiv i64 {more}, %block")
        #: Bytes of a panel of a whole block.
        self.panel_bytes = self.times(self.times("%block", "%examples"), self.term)
        inputs = self._wide("%columns")
        states = self._wide("%hidden")
        self.my_x = self.bytes_at(
            "%packed_x", (self.own.thread, self.times(inputs, self.panel_bytes))
        )
        self.my_h = self.bytes_at(
            "%packed_h", (self.own.thread, self.times(states, self.panel_bytes))
        )
        with self.each("lane", 0, "%lanes") as lane:
            self._lane(lane, blocks)

    def _lane(self, lane: str, blocks: str) -> None:
        first = self.times(lane, "%examples")
        self.lane_x = self.bytes_at("%x", (first, self.x_row))
        self.lane_hx = self.bytes_at("%hx", (first, self.h_row))
        self.lane_y = self.bytes_at("%y", (first, "%y_row"))
        self.lane_first = self.times(lane, self.lane_terms)
        made = self.times(lane, "%dw_lane")
        self.made = {n: self.bytes_at(f"%{n}", made) for n in ("dw", "dr", "dbw", "dbr")}
        with self.each("blocks", 0, blocks) as k:
            self._block(k)

    def _wide(self, columns: str) -> str:
        """The number of panels of so many columns."""
        each = WIDTH * self.panel
        return self.new(f"udiv i64 {self.plus(columns, each - 1)}, {each}")

    def _block(self, k: str) -> None:
        self.first = self.times(k, "%block")
        steps = self.least("%block", self.minus("%steps", self.first))
        self.block_terms = self.times(steps, "%examples")
        #: Whether the GEMMs accumulate: not in the first block.
        self.adds = self.new(f"icmp ne i64 {k}, 0")
        with self.each("copy", 0, steps) as i:
            self._copy(i)
        with self.each("sum", 0, self.own.count) as j:
            self._sum(j)

    def _copy(self, i: str) -> None:
        """Append the packing of a step's inputs and states into panels."""
        s, to = self.plus(self.first, i), self.times(self.times(i, "%examples"), self.term)
        x = self.bytes_at(self.lane_x, (s, "%x_step"))
        self.pack(x, self.x_row, 4, self.bytes_at(self.my_x, to), self.panel_bytes, "%columns",
                  "%examples")  # fmt: skip
        last = self.bytes_at(self.lane_y, (self.minus(s, 1), "%y_step"))
        row = self.choose_first(s, self.h_row, "%y_row", "i64")
        self.pack(self.choose_first(s, self.lane_hx, last), row, 4, self.bytes_at(self.my_h, to),
                  self.panel_bytes, "%hidden", "%examples")  # fmt: skip

    def _sum(self, j: str) -> None:
        """Append the rows of both matrices' gradients that belong to a group of units."""
        group = self.plus(self.own.first, j)
        unit = self.times(group, WIDTH)
        units = self.least(self.minus("%hidden", unit), WIDTH)
        before = self.times(group, self.times("%steps", "%batch"))
        first = self.plus(self.lane_first, self.times(self.first, "%examples"))
        slots = self.bytes_at("%slots", (self.plus(before, first), self.slot_row))
        self._biases(slots, unit)
        for gates, begin, panels, matrix, row, columns in (
            (self.of_x, 0, self.my_x, self.made["dw"], self.x_row, "%columns"),
            (self.of_h, self.first_h, self.my_h, self.made["dr"], self.h_row, "%hidden"),
        ):
            for i, gate in enumerate(gates):
                a = self.bytes_at(slots, 4 * WIDTH * (begin + i))
                to = self.bytes_at(matrix, (self.plus(self.times("%hidden", gate), unit), row))
                start = self.new(f"select i1 {self.adds}, ptr {to}, ptr null")
                self.call(
                    "gemm_block", f"ptr {a}", "i64 4", f"i64 {self.slot_row}", f"ptr {panels}",
                    f"i64 {self.panel_bytes}", f"i64 {self.term}", f"ptr {to}", f"i64 {row}",
                    f"ptr {start}", f"i64 {row}", f"i64 {units}", f"i64 {columns}",
                    f"i64 {self.block_terms}", "i64 0",
                )  # fmt: skip

    def _biases(self, slots: str, unit: str) -> None:
        """Append a block's part of the biases' gradients.

        It also loads the rows that the GEMM reads next into the cache.
        """

        def term(i: str, sums: list[str]) -> list[str]:
            row = self.bytes_at(slots, (i, self.slot_row))
            return [
                self.add(x, self.load(self.bytes_at(row, 4 * WIDTH * k)))
                for k, x in enumerate(sums)
            ]

        sums = self.loop("term", self.block_terms, term, ["zeroinitializer"] * self.slots)
        mask = self.lanes_below(unit, "%hidden")
        biases = [(self.made["dbw"], 0, self.of_x)]
        if self.mode == "gru":
            biases.append((self.made["dbr"], self.first_h, self.of_h))
        for bias, begin, gates in biases:
            for i, gate in enumerate(gates):
                place = self.bytes_at(bias, (self.h_row, gate), (unit, 4))
                self.store(self.add(self.load(place, mask), sums[begin + i]), place, mask)
