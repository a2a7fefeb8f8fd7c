"""Convolutions by Winograd's algorithm as LLVM IR, in NHWC.

With filters of r x r, a tile of 6 x 6 pixels gives 7 - r results in each direction. It takes 36
multiplications for each pair of channels instead of r * r for each result (Lavin and Gray 2016).
Tiles are processed in blocks: transformed to 36 matrices (tiles x channels), multiplied by the 36
matrices of the transformed filters, and transformed back. A block stays in a thread's L2 cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.conv.winograd_batch_stats_ir import ResultSums
from symdnn.cpu.conv.winograd_plan import TAPS, TILE, WinogradPlan, padded
from symdnn.cpu.conv.winograd_tiles_ir import Tiles, by_vectors
from symdnn.cpu.conv.winograd_transforms_ir import both_directions, inverse_transform
from symdnn.cpu.ir.builder import Builder, vector_module
from symdnn.cpu.ir.loops_ir import next_task, word

#: Indices of the words of arrays; bias and addend may be missing.
_ARRAY_WORDS = {"images": 6, "out": 7, "bias": 8, "more": 9}
_SUMS_WORD = 10


def winograd_ir(plan: WinogradPlan) -> str:
    """The module of ``kernel``.

    Words of its block: threads, blocks of tiles, 1, tiles, the addresses of transformed filters and
    of scratch memory, the array objects of x, y, bias and addend (the last two may be missing), the
    address of the threads' sums if ``plan.sums``.
    """
    return vector_module(_Convolution(plan).source())


class _Convolution(Tiles):
    """Builds the function ``rows``, a task of which is a block of tiles."""

    def source(self) -> Builder:
        """The lines of the function."""
        s, plan = self.s, self.plan
        left_out = {"bias": not plan.bias, "more": not plan.residual}
        arrays = {f"%{name}": at for name, at in _ARRAY_WORDS.items() if not left_out.get(name)}
        self.begin("%kernels", arrays, self._own_sums())
        with s.each("read", 0, "%count") as i:
            self.read(i)
        with s.each("multiply", 0, str(TAPS)) as tap:
            self._multiply(tap)
        with s.each("write", 0, "%count") as t:
            self._write(t)
        s.lines += next_task("task")
        return s

    def _own_sums(self) -> list[str]:
        """Lines for ``%own_sums``, the address of this thread's sums."""
        if not self.plan.sums:
            return []
        return [
            *word("%sums", _SUMS_WORD, "ptr"),
            f"%sums_from = mul i64 %thread, {2 * padded(self.plan.outputs)}",
            "%own_sums = getelementptr double, ptr %sums, i64 %sums_from",
        ]

    def _multiply(self, tap: str) -> None:
        plan = self.plan
        steps = plan.tile_steps
        source, target = ("%before", steps[0], plan.channels), ("%after", steps[1], plan.outputs)
        self.multiply(tap, source, target, plan.filter_step)

    # -- results --------------------------------------------------------------------------------

    def _write(self, t: str) -> None:
        s, plan = self.s, self.plan
        image, row, column = self.tile(t)
        y, x = s.affine(row, plan.m), s.affine(column, plan.m)
        all_rows, rows = self.inside(y, plan.m, plan.out[0])
        all_columns, columns = self.inside(x, plan.m, plan.out[1])
        at = self.pixel(image, y, x, plan.out, plan.outputs)
        source = s.at("%after", s.affine(t, padded(plan.outputs)))

        def write(whole: bool, name: str) -> None:
            there = [] if whole else self.pixels(rows, columns)
            with by_vectors(s, name, plan.outputs) as (first, lanes):
                self._write_vector(s.at(source, first), at, first, lanes, there)

        self.choose("within", self.all_whole(), (all_rows, all_columns), write)

    def _write_vector(
        self, source: str, at: str, first: str | int, lanes: str, there: Sequence[Sequence[str]]
    ) -> None:
        """Append the results of a tile for a vector of channels."""
        s, plan = self.s, self.plan

        def product(i: int, j: int) -> str:
            return s.load(s.at(source, (i * TILE + j) * plan.tile_steps[1]))

        results = both_directions(TILE, lambda p: inverse_transform(s, p, plan.m), product)
        bias = s.load(s.at("%bias", first), lanes) if plan.bias else ""
        sums = ResultSums(s, "%own_sums", plan.outputs) if plan.sums else None
        if sums is not None:
            sums.begin(first)
        for i, j, value in results:
            step = (i * plan.out[1] + j) * plan.outputs
            exists = there[i][j] if there else ""
            value = self._store_result(value, (at, first, step), exists, lanes, bias)
            if sums is not None:
                sums.add(value, exists, lanes)
        if sums is not None:
            sums.end()

    def _store_result(
        self, value: str, at: tuple[str, str | int, int], exists: str, lanes: str, bias: str
    ) -> str:
        """Append the epilogue and the store of one vector of results; returns the vector."""
        s, plan = self.s, self.plan
        if plan.bias:
            value = s.add(value, bias)
        if plan.residual:
            more = self.place(s.at("%more", *at), exists, "%no_pixel")
            value = s.add(value, s.load(more, lanes))
        if plan.relu:  # NaN stays
            low = s.new(f"fcmp olt {s.vector} {value}, zeroinitializer")
            value = s.new(f"select {s.mask} {low}, {s.vector} zeroinitializer, {s.vector} {value}")
        s.store(value, self.place(s.at("%out", *at), exists, "%nowhere"), lanes)
        return value
