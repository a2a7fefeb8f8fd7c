"""Packing of a matrix with any strides into panels, as LLVM IR (:mod:`symdnn.cpu.gemm.gemm_ir`)."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.gemm.gemm_tile_ir import WIDTH_WITH_MASKS, TileBuilder


class Pack(TileBuilder):
    """The function ``gemm_pack``: a loop over panels."""

    def source(self) -> list[str]:
        """The lines of the function."""
        parameters = "ptr %b_0, i64 %b_term, i64 %b_column, ptr %to_0, i64 %to_panel, i64 %to_term"
        with self.function("gemm_pack", f"{parameters}, i64 %n, i64 %k"):
            some = self.new(f"and i1 {self._positive('%n')}, {self._positive('%k')}")
            self.dense = self.new("icmp eq i64 %b_column, 4")
            turned, many = (
                self.new("icmp eq i64 %b_term, 4"), self.new(f"icmp sge i64 %k, {self.width}"),
            )  # fmt: skip
            self.turns = self.new(f"and i1 {many}, {turned}")
            self.last = self.minus("%k", self.width)
            with self.when("some", some), self.each("panel", 0, "%n", step=self.shape.columns) as j:
                self._panel(j)
        return self.lines

    def _positive(self, n: str) -> str:
        return self.new(f"icmp sgt i64 {n}, 0")

    def _panel(self, j: str) -> None:
        columns = self.shape.columns
        self.b = self.bytes_at("%b_0", (j, "%b_column"))
        self.to = self.bytes_at("%to_0", (self.new(f"udiv i64 {j}, {columns}"), "%to_panel"))
        left = self.minus("%n", j)
        self.columns = self.least(left, columns)
        full = self.new(f"icmp sge i64 {left}, {columns}")

        def copy(whole: bool, name: str) -> None:
            if whole:
                with self.each("whole_term", 0, "%k") as t:
                    self._whole_term(t)
            else:
                with self.each("group", 0, self.columns, step=self.width) as g:
                    self._vector(g)

        self.choose("dense_panel", self.new(f"and i1 {full}, {self.dense}"), copy)

    def _places(self, t: str) -> tuple[str, str]:
        """(source, target) addresses of a term of the panel."""
        source, target = self.times(t, "%b_term"), self.times(t, "%to_term")
        return self.bytes_at(self.b, source), self.bytes_at(self.to, target)

    def _whole_term(self, t: str) -> None:
        source, target = self._places(t)
        for j in range(self.shape.vectors):
            step = 4 * self.width * j
            self.store(self.load(self.bytes_at(source, step)), self.bytes_at(target, step))

    def _vector(self, g: str) -> None:
        """Append the copy of up to a vector of columns of a panel."""
        left = self.minus(self.columns, g)
        offsets, mask = (self.times(g, "%b_column"), self.times(g, 4)), self.lanes_from(left)

        def turned(turns: bool, _: str) -> None:
            if turns:
                self._squares(g, left, offsets[1], mask)
                return
            count = self.least(left, self.width)
            with self.each("single_term", 0, "%k") as t:
                self._numbers(t, offsets, count)

        def copied(dense: bool, _: str) -> None:
            if not dense:
                self.choose("turned", self.turns, turned)
                return
            with self.each("copy_term", 0, "%k") as t:
                source, target = (self.bytes_at(*p) for p in zip(self._places(t), offsets))
                self.store(self.load(source, mask), target, mask)

        self.choose("copied", self.dense, copied)

    def _numbers(self, t: str, offsets: Sequence[str], count: str) -> None:
        """Append the copy of a term's elements one by one."""
        source, target = (self.bytes_at(*p) for p in zip(self._places(t), offsets))
        with self.each("number", 0, count) as c:
            x = self.new(f"load float, ptr {self.bytes_at(source, (c, '%b_column'))}, align 4")
            self.put(f"store float {x}, ptr {self.at(target, c)}, align 4")

    # -- transposed matrices, in squares of the vector width --------------------------------------

    def _squares(self, g: str, left: str, offset: str, mask: str) -> None:
        """Append loops over squares of columns from ``g`` on; missing ones repeat the last one."""
        last, rows = self.minus(left, 1), []
        for i in range(self.width):
            column = self.plus(g, self.least(i, last))
            rows.append(self.bytes_at(self.b, (column, "%b_column")))

        def squares(whole: bool, name: str) -> None:
            with self.each(f"{name}_square", 0, "%k", step=self.width) as t:
                self._transposed_square(t, rows, offset, "" if whole else mask)

        if self.width < WIDTH_WITH_MASKS:
            self.choose("squares", self.new(f"icmp sge i64 {left}, {self.width}"), squares)
        else:
            squares(False, "masked")

    def _transposed_square(self, t: str, rows: Sequence[str], offset: str, mask: str) -> None:
        """Append the transposition of a square of terms from ``t`` on.

        The last square begins earlier and repeats some terms.
        """
        begin = self.least(t, self.last)
        step = self.times(begin, 4)
        square = [self.load(self.bytes_at(row, step)) for row in rows]
        place = self.bytes_at(self.to, (begin, "%to_term"), offset)
        for x in self.transposed(self.vector, square):
            self.store(x, place, mask)
            place = self.bytes_at(place, "%to_term")
