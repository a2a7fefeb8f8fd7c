"""Packing of a matrix with any strides into panels, as LLVM IR (:mod:`symdnn.cpu.gemm.gemm_ir`)."""

from __future__ import annotations

from collections.abc import Callable

from symdnn.cpu.gemm.gemm_tile_ir import WIDTH_WITH_MASKS, TileBuilder

__all__ = ["Pack"]

_PACK_HEAD = """
define internal void @gemm_pack(ptr %b_0, i64 %b_term, i64 %b_column, ptr %to_0, i64 %to_panel,
  i64 %to_term, i64 %n, i64 %k) #0 {
entry:
%any_n = icmp sgt i64 %n, 0
%any_k = icmp sgt i64 %k, 0
%any = and i1 %any_n, %any_k
%dense = icmp eq i64 %b_column, 4
%turned_so = icmp eq i64 %b_term, 4
br i1 %any, label %panel, label %done
panel:
%j = phi i64 [0, %entry], [%j_next, %panel_end]
%to = phi ptr [%to_0, %entry], [%to_next, %panel_end]
%left = sub i64 %n, %j
%b_j = mul i64 %j, %b_column
%b = getelementptr i8, ptr %b_0, i64 %b_j
""".strip().splitlines()


class Pack(TileBuilder):
    """The function ``gemm_pack``: a loop over panels."""

    def source(self) -> list[str]:
        """The lines of the function."""
        columns = self.shape.columns
        self.put(*_PACK_HEAD, f"%full = icmp sge i64 %left, {columns}")
        self.put(f"%cols = select i1 %full, i64 {columns}, i64 %left")
        self.put("%full_dense = and i1 %full, %dense")
        self.put("br i1 %full_dense, label %whole, label %part", "whole:")
        self._counted("whole_term", "%k", "whole", self._whole_term)
        self.put("br label %panel_end", "part:")
        self._counted("group", "%cols", "part", self._vector, self.width)
        self.put("br label %panel_end", "panel_end:", f"%j_next = add i64 %j, {columns}")
        self.put("%to_next = getelementptr i8, ptr %to, i64 %to_panel")
        self.put("%j_more = icmp slt i64 %j_next, %n")
        self.put("br i1 %j_more, label %panel, label %done", "done:", "ret void", "}")
        return self.lines

    def _counted(
        self, name: str, high: str, before: str, body: Callable[[str], None], step: int = 1
    ) -> None:
        """A loop over i from 0 to below ``high``, at least 1, with this step."""
        i, following = f"%{name}_i", f"%{name}_next"
        self.put(f"br label %{name}", f"{name}:")
        self.put(f"{i} = phi i64 [0, %{before}], [{following}, %{name}_end]")
        body(i)
        self.put(f"br label %{name}_end", f"{name}_end:", f"{following} = add i64 {i}, {step}")
        self.put(f"%{name}_more = icmp slt i64 {following}, {high}")
        self.put(f"br i1 %{name}_more, label %{name}, label %{name}_done", f"{name}_done:")

    def _places(self, t: str) -> tuple[str, str]:
        """(source, target) addresses of a term of the panel."""
        source, target = self.times(t, "%b_term"), self.times(t, "%to_term")
        return self.bytes_at("%b", source), self.bytes_at("%to", target)

    def _whole_term(self, t: str) -> None:
        source, target = self._places(t)
        for j in range(self.shape.vectors):
            step = 4 * self.width * j
            self.store(self.load(self.bytes_at(source, step)), self.bytes_at(target, step))

    def _vector(self, g: str) -> None:
        """Append the copy of up to a vector of columns of a panel."""
        self.put(f"%g_left = sub i64 %cols, {g}")
        self.put(f"%g_b = mul i64 {g}, %b_column", f"%g_to = mul i64 {g}, 4")
        mask = self.lanes_from("%g_left")
        self.put("br i1 %dense, label %copy, label %other", "copy:")
        self._counted("copy_term", "%k", "copy", lambda t: self._copied(t, mask))
        self.put("br label %group_end", "other:", f"%many = icmp sge i64 %k, {self.width}")
        self.put("%turn = and i1 %many, %turned_so", "br i1 %turn, label %turned, label %single")
        self.put("turned:", f"%t_last = sub i64 %k, {self.width}")
        self._column_addresses(g)
        before = "turned"
        if self.width < WIDTH_WITH_MASKS:
            self.put(f"%g_whole = icmp sge i64 %g_left, {self.width}")
            self.put("br i1 %g_whole, label %squares, label %part_squares", "squares:")
            self._squares("whole_square", "squares", "")
            self.put("br label %group_end", "part_squares:")
            before = "part_squares"
        self._squares("square", before, mask)
        self.put("br label %group_end", "single:")
        self.put(f"%g_over = icmp sgt i64 %g_left, {self.width}")
        self.put(f"%g_cols = select i1 %g_over, i64 {self.width}, i64 %g_left")
        self._counted("single_term", "%k", "single", self._numbers)

    def _squares(self, name: str, before: str, mask: str) -> None:
        """Append a loop over squares."""
        self._counted(name, "%k", before, lambda t: self._transposed_square(t, mask), self.width)

    def _copied(self, t: str, mask: str) -> None:
        source, target = self._places(t)
        self.store(
            self.load(self.bytes_at(source, "%g_b"), mask), self.bytes_at(target, "%g_to"), mask
        )

    def _numbers(self, t: str) -> None:
        """Append the copy of a term's elements one by one."""
        source, target = (self.bytes_at(p, x) for p, x in zip(self._places(t), ("%g_b", "%g_to")))

        def one(c: str) -> None:
            step = self.times(c, "%b_column")
            x = self.new(f"load float, ptr {self.bytes_at(source, step)}, align 4")
            place = self.new(f"getelementptr float, ptr {target}, i64 {c}")
            self.put(f"store float {x}, ptr {place}, align 4")

        self._counted("number", "%g_cols", "single_term", one)

    # -- transposed matrices, in squares of the vector width --------------------------------------

    def _column_addresses(self, g: str) -> None:
        """Append the address of each column; missing columns get that of the last one."""
        self.put("%g_last = sub i64 %g_left, 1")
        for i in range(self.width):
            self.put(
                f"%g_in{i} = icmp slt i64 {i}, %g_left",
                f"%g_i{i} = select i1 %g_in{i}, i64 {i}, i64 %g_last",
                f"%g_sum{i} = add i64 {g}, %g_i{i}",
                f"%g_at{i} = mul i64 %g_sum{i}, %b_column",
                f"%g_row{i} = getelementptr i8, ptr %b, i64 %g_at{i}",
            )

    def _transposed_square(self, t: str, mask: str) -> None:
        """Append the transposition of a square of terms from ``t`` on.

        The last square begins earlier and repeats some terms.
        """
        over = self.new(f"icmp sgt i64 {t}, %t_last")
        begin = self.new(f"select i1 {over}, i64 %t_last, i64 {t}")
        step = self.times(begin, 4)
        square = [self.load(self.bytes_at(f"%g_row{i}", step)) for i in range(self.width)]
        place = self.bytes_at("%to", (begin, "%to_term"), "%g_to")
        for x in self.transposed(self.vector, square):
            self.store(x, place, mask)
            place = self.bytes_at(place, "%to_term")
