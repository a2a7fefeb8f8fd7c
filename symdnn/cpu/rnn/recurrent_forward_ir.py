"""The forward pass of a recurrent layer as LLVM IR (:mod:`symdnn.cpu.rnn.recurrent_ir`)."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.gemm.gemm_tile_ir import ROW_PANELS
from symdnn.cpu.ir.builder import VECTOR, WIDTH
from symdnn.cpu.rnn.recurrent_ir import FORWARD_WORDS, SAVED_VECTORS, RecurrentSource, module
from symdnn.cpu.rnn.recurrent_narrow_ir import DOT_DECLARED, GROUP_TERM, SPILLED, functions


def forward_ir(
    mode: str, width: int, keeps: bool, one: bool = False, pairs: bool = False, states: bool = False
) -> str:
    """The module of ``kernel`` for vectors of ``width``; its block is :data:`FORWARD_WORDS`.

    With ``one``, for one sequence, the matrix of the state is of bfloat16; with ``pairs`` that of
    the inputs is, and inputs that are too are multiplied so; with ``states`` that of the state is,
    which is rounded where it is multiplied (:mod:`~.recurrent_narrow_ir`).
    """
    dots = pairs or states
    more = [*DOT_DECLARED * dots, *(functions(dots) if one or dots else [])]
    return module(width, _Forward(mode, width, keeps, one, pairs, states).source(), more)


class _Forward(RecurrentSource):
    """The forward pass of one layer in one direction."""

    def __init__(
        self, mode: str, width: int, keeps: bool, one: bool, pairs: bool, states: bool
    ) -> None:
        super().__init__(mode, width, FORWARD_WORDS)
        self.keeps, self.one, self.pairs = keeps and SAVED_VECTORS[mode] > 0, one, pairs
        self.states = states
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
        self.my_bias = self.bytes_at("%bias", first)
        self.my_bias_h = self.bytes_at("%bias", (all_columns, 4), first)
        self.my_before = self.bytes_at(
            "%before", (own.thread, self.times(self.row, "%before_rows"))
        )
        self.my_before_h = self.bytes_at(
            "%before_h", (own.thread, self.times(self.row, "%tile_rows"))
        )
        self.columns = self.times(own.count, self.gates * WIDTH)
        if self.one or self.pairs or self.states:
            self._begin_narrow(groups)
        mine = self.bytes_at("%packed_for", (own.thread, 8))
        known = self.new(f"load i64, ptr {mine}, align 8")
        stale = self.new(f"icmp ne i64 {known}, {own.active}")
        with self.when("stale", stale):
            self._pack_share(mine)
        #: Whether a chunk has several steps.
        self.together = self.new("icmp sgt i64 %chunk, 1")
        self.apart = self.new(f"xor i1 {self.together}, true")
        chunks = self.new(f"sdiv i64 {self.minus(self.plus('%steps', '%chunk'), 1)}, %chunk")
        with self.each("chunk_of_steps", 0, chunks) as i:
            self._chunk(i)
        return self.end()

    def _begin_narrow(self, groups: str) -> None:
        """Append the places of this thread's matrices of bfloat16, after ``groups`` of others."""
        self.my_groups = self.times(self.own.count, self.gates)
        self.x_pairs, self.h_pairs = (self.new(f"sdiv i64 {n}, 2") for n in ("%columns", "%hidden"))
        self.x_panel, self.h_panel = (
            self.times(n, GROUP_TERM) for n in (self.x_pairs, self.h_pairs)
        )
        if self.one or self.states:
            self.my_r = self.bytes_at("%packed_r", (groups, self.h_panel))
        of_x = self.times(self.x_pairs, self.times("%before_rows", 4)) if self.pairs else "0"
        own = self.plus(of_x, SPILLED)
        if self.states:
            own = self.plus(own, self.times(self.h_pairs, self.times("%tile_rows", 4)))
        if self.pairs:
            self.my_pairs = self.bytes_at("%packed_pairs", (groups, self.x_panel))
        self.my_x = self.bytes_at("%pairs", (self.own.thread, own))
        self.my_h = self.bytes_at(self.my_x, of_x)

    def _chunk(self, i: str) -> None:
        """Append the steps of a chunk, after the product of all their inputs if they are several.

        Rows of the product are in the order of memory, which is that of the steps or the reverse.
        """
        self.begin = self.times(i, "%chunk")
        self.count = self.least("%chunk", self.minus("%steps", self.begin))
        back = self.new("icmp slt i64 %x_step, 0")
        last = self.minus(self.count, 1)
        self.lowest = self.new(f"select i1 {back}, i64 {last}, i64 0")
        step = self.times("%batch", self.row)
        step = self.new(f"select i1 {back}, i64 {self.minus(0, step)}, i64 {step}")
        self.before_step = self.new(f"select i1 {self.together}, i64 {step}, i64 0")
        with self.when("ahead", self.together):
            self._multiply_ahead()
        with self.each("step", 0, self.count) as c:
            self._step(c)

    def _multiply_ahead(self) -> None:
        """Append the product of the inputs of a whole chunk."""
        x = self.bytes_at("%x", (self.plus(self.begin, self.lowest), "%x_step"))
        self._multiply_inputs(x, self.my_before, self.times(self.count, "%batch"))

    def _multiply_inputs(self, x: str, to: str, rows: str) -> None:
        def widely() -> None:
            self.multiply((x, self.x_row), (self.my_w, self.w_panel), (to, self.row),
                          (self.my_bias, "0"), (rows, self.columns, "%columns"))  # fmt: skip

        def in_pairs(holds: bool, _: str) -> None:
            if not holds:
                widely()
                return
            self._multiply_pairs((self.my_x, self.my_pairs, to), (self.my_bias, "0"), rows,
                                 self.x_pairs)  # fmt: skip

        if not self.pairs:
            widely()
            return
        count = self.times(rows, "%columns")
        exact = f"call i1 @narrow_pairs(ptr {x}, ptr {self.my_x}, i64 {count})"
        self.choose(f"pairs{len(self.lines)}", self.new(exact), in_pairs)

    def _multiply_pairs(
        self, operands: tuple[str, str, str], start: tuple[str, str], rows: str, pairs: str
    ) -> None:
        """Append a call of ``narrow_product`` of (rows, columns, result)."""
        a, b, c = operands
        self.call("narrow_product", f"ptr {a}", f"ptr {b}", f"ptr {c}", f"i64 {self.row}",
                  f"ptr {start[0]}", f"i64 {start[1]}", f"i64 {rows}", f"i64 {self.my_groups}",
                  f"i64 {pairs}")  # fmt: skip

    def _round_states(self, h: str, rows: str) -> None:
        """Append the rounding of the states of some sequences."""
        with self.each("rounded", 0, rows) as i:
            x = self.bytes_at(h, (i, self.h_step))
            to = self.bytes_at(self.my_h, (i, self.times(self.h_pairs, 4)))
            self.call("narrow_rounded", f"ptr {x}", f"ptr {to}", "i64 %hidden")

    def _pack_share(self, mine: str) -> None:
        """Append the packing of this thread's share. The first thread's invalidates the shares of
        threads that do not run now, which may have been where it packs."""
        own = self.own
        with self.each("pack", 0, own.count) as j:
            self._pack(j)
        self.put(f"store i64 {own.active}, ptr {mine}, align 8")
        is_first = self.new(f"icmp eq i64 {own.thread}, 0")
        others = self.new(f"icmp slt i64 {own.active}, %threads")
        with self.when("clears", self.new(f"and i1 {is_first}, {others}")):
            self._forget_others()

    def _forget_others(self) -> None:
        with self.each("clear", self.own.active, "%threads") as t:
            self.put(f"store i64 0, ptr {self.bytes_at('%packed_for', (t, 8))}, align 8")

    def _pack(self, j: str) -> None:
        """Append the packing of a group's columns, gate after gate, and of their biases."""
        unit = self.times(self.plus(self.own.first, j), WIDTH)
        lanes = self.least(self.minus("%hidden", unit), WIDTH)
        mask = self.lanes_below(unit, "%hidden")
        for gate in range(self.gates):
            group = self.affine(j, self.gates, gate)
            panel = self.new(f"udiv i64 {group}, {self.panel}")
            within = self.times(self.new(f"urem i64 {group}, {self.panel}"), 4 * WIDTH)
            row = self.plus(self.times("%hidden", gate), unit)
            w, r = self.bytes_at("%w", (row, self.x_row)), self.bytes_at("%r", (row, self.h_row))
            to = self.bytes_at(self.my_w, (panel, self.w_panel), within)
            self.pack(w, 4, self.x_row, to, "0", lanes, "%columns")
            if self.pairs:
                to = self.bytes_at(self.my_pairs, (group, self.x_panel))
                self._pack_pairs(w, self.x_row, to, lanes, self.x_pairs)
            if self.one or self.states:
                to = self.bytes_at(self.my_r, (group, self.h_panel))
                self._pack_pairs(r, self.h_row, to, lanes, self.h_pairs)
            else:
                to = self.bytes_at(self.my_r, (panel, self.r_panel), within)
                self.pack(r, 4, self.h_row, to, "0", lanes, "%hidden")
            at = self.times(group, 4 * WIDTH)
            bw, br = (self.load(self.bytes_at(b, (row, 4)), mask) for b in ("%bw", "%br"))
            if self.mode == "gru":
                self.store(br, self.bytes_at(self.my_bias_h, at))
            else:
                bw = self.add(bw, br)
            self.store(bw, self.bytes_at(self.my_bias, at))

    def _pack_pairs(self, source: str, row: str, to: str, lanes: str, pairs: str) -> None:
        self.call("narrow_pack", f"ptr {source}", f"i64 {row}", f"ptr {to}", f"i64 {lanes}",
                  f"i64 {pairs}")  # fmt: skip

    def _step(self, c: str) -> None:
        """Append a step, for ``tile_rows`` sequences at a time."""
        s = self.plus(self.begin, c)
        self.s, self.ready = s, self.times(s, self.own.active)
        row = self.minus(c, self.lowest)
        self.now = self.bytes_at(self.my_before, (row, self.before_step))
        last = self.bytes_at("%y", (self.minus(s, 1), "%y_step"))
        self.h = self.choose_first(s, "%hx", last)
        self.h_step = self.choose_first(s, self.h_row, "%y_row", "i64")
        up = self.minus(self.plus("%batch", "%tile_rows"), 1)
        self.tiles = self.new(f"udiv i64 {up}, %tile_rows")
        with self.each("tile", 0, self.tiles) as i:
            self._tile(i)
        self.call("arrive", "ptr %counter")

    def _tile(self, i: str) -> None:
        self.sequence = self.times(i, "%tile_rows")
        rows = self.least(self.minus("%batch", self.sequence), "%tile_rows")
        before, gru = (self.now, self.row), self.mode == "gru"
        x = self.bytes_at("%x", (self.s, "%x_step"), (self.sequence, self.x_row))
        with self.when("inputs", self.apart):
            self._multiply_inputs(x, self.now, rows)
        self.wait(self.ready)
        h = self.bytes_at(self.h, (self.sequence, self.h_step))
        after = (self.my_before_h, self.row) if gru else before
        start = (self.my_bias_h, "0") if gru else before
        if self.one:
            given = f"ptr {h}", f"ptr {self.my_r}", f"ptr {after[0]}", f"ptr {start[0]}"
            self.call("narrow_row", *given, f"i64 {self.my_groups}", f"i64 {self.h_pairs}")
        elif self.states:
            self._round_states(h, rows)
            self._multiply_pairs((self.my_h, self.my_r, after[0]), start, rows, self.h_pairs)
        else:
            self._multiply_states((h, self.h_step), after, start, rows, i)
        with self.each("sequence", 0, rows) as i:
            self._sequence(i)

    def _multiply_states(
        self, h: tuple[str, str], after: tuple[str, str], start: tuple[str, str], rows: str, i: str
    ) -> None:
        """Append the product of some states, a few panels at a time; every second time from the
        last ones to the first. What the cache still has of the matrix is then read first.
        """
        wide = ROW_PANELS * self.panel * WIDTH
        parts = self.new(f"udiv i64 {self.plus(self.columns, wide - 1)}, {wide}")
        time = self.plus(self.times(self.s, self.tiles), i)
        back = self.new(f"trunc i64 {time} to i1")
        with self.each("part", 0, parts) as p:
            from_last = self.minus(self.minus(parts, 1), p)
            q = self.new(f"select i1 {back}, i64 {from_last}, i64 {p}")
            first = self.times(q, wide)
            columns = self.least(self.minus(self.columns, first), wide)
            c, begin = (self.bytes_at(m[0], (first, 4)) for m in (after, start))
            b = self.bytes_at(self.my_r, (self.times(q, ROW_PANELS), self.r_panel))
            self.multiply(h, (b, self.r_panel), (c, after[1]), (begin, start[1]),
                          (rows, columns, "%hidden"))  # fmt: skip

    # -- gates, cells and states ----------------------------------------------------------------

    def _sequence(self, i: str) -> None:
        """Append the addresses of a sequence in each array, and the loop over its units."""
        first, b = self.times(self.own.unit, 4), self.plus(self.sequence, i)
        row = self.times(i, self.row)
        self.in_before, self.in_before_h = (
            self.bytes_at(p, row) for p in (self.now, self.my_before_h)
        )
        self.in_y = self.bytes_at("%y", (self.s, "%y_step"), (b, "%y_row"), first)
        self.in_h = self.bytes_at(self.h, (b, self.h_step), first)
        self.in_cells = self.bytes_at("%cells", (self.s, "%cells_step"), (b, self.h_row), first)
        group = self.plus(self.times(b, self.own.groups), self.own.first)
        size = 4 * WIDTH * SAVED_VECTORS[self.mode]
        self.in_kept = self.bytes_at("%kept", (self.s, "%kept_step"), (group, size))
        with self.each("group", 0, self.own.count) as j:
            self._group(j)

    def _group(self, j: str) -> None:
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
        self.store(h, self.bytes_at(self.in_y, self.units), self.inside)
        if self.keeps:
            to = self.bytes_at(self.in_kept, (j, 4 * WIDTH * len(kept)))
            for i, value in enumerate(kept):
                self.store(value, self.bytes_at(to, 4 * WIDTH * i))

    def _vectors(self, base: str, at: str, count: int) -> list[str]:
        """Load neighbouring vectors."""
        first = self.bytes_at(base, at)
        return [self.load(self.bytes_at(first, 4 * WIDTH * g)) for g in range(count)]

    def _lstm(self, given: Sequence[str]) -> tuple[str, list[str]]:
        i, f, o = (self.sigmoid(given[k]) for k in (0, 1, 3))
        g = self.tanh(given[2])
        cells = self.bytes_at(self.in_cells, self.units)
        c = self.multiply_add(f, self.load(cells, self.inside), self.new(f"fmul {VECTOR} {i}, {g}"))
        self.store(c, self.bytes_at(cells, "%cells_step"), self.inside)
        return self.new(f"fmul {VECTOR} {o}, {self.tanh(c)}"), [i, f, g, o]

    def _gru(self, given: Sequence[str]) -> tuple[str, list[str]]:
        more = self._vectors(self.in_before_h, self.gates_at, 3)
        r, z = (self.sigmoid(self.add(given[k], more[k])) for k in (0, 1))
        n = self.tanh(self.multiply_add(r, more[2], given[2]))
        before = self.load(self.bytes_at(self.in_h, self.units), self.inside)
        return self.multiply_add(z, self.sub(before, n), n), [r, z, n, more[2]]

    def _plain(self, given: str) -> str:
        if self.mode == "rnn_tanh":
            return self.tanh(given)
        low = self.new(f"fcmp olt {VECTOR} {given}, zeroinitializer")  # NaN stays
        return self.new(f"select <{WIDTH} x i1> {low}, {VECTOR} zeroinitializer, {VECTOR} {given}")
