"""The gradient of a convolution's filters by Winograd's algorithm, as LLVM IR.

Tiles of x are transformed as in the forward pass (:mod:`symdnn.cpu.conv.winograd_ir`), tiles of dy
by the transposed transformation, and their products are added over all tiles. Each thread has 36
matrices of sums. They are added up and transformed to filters once, at the end
(:mod:`symdnn.cpu.conv.winograd_weights_ir`).
"""

from __future__ import annotations

from symdnn.cpu.conv.winograd_plan import TAPS, WinogradPlan, padded
from symdnn.cpu.conv.winograd_tiles_ir import Tiles, parts
from symdnn.cpu.ir.builder import Builder, vector_module
from symdnn.cpu.ir.loops_ir import next_task

#: Index of the word that thread 0 sets when it has any sums; those of other threads follow.
FIRST_USED_WORD = 8
#: Number of vectors of outputs -> channels whose sums are in registers at once.
_UNROLL_CHANNELS, _UNROLL_CHANNELS_HALF = {1: 16, 2: 8, 3: 8, 4: 4}, {2: 4}


def filter_sums_ir(plan: WinogradPlan) -> str:
    """The module of ``kernel``, which adds up products of tiles.

    Words of its block: threads, blocks of tiles, 1, tiles, the addresses of sums and of scratch
    memory, the array objects of x and of dy, a word for each thread.
    """
    return vector_module(_FilterGradTiles(plan).source())


class _FilterGradTiles(Tiles):
    """Builds the function ``rows``, a task of which is a block of tiles."""

    def source(self) -> Builder:
        """The lines of the function."""
        s, floats = self.s, TAPS * self.plan.sum_step
        own = [
            f"%own_sums = mul i64 %thread, {floats}",
            "%sums = getelementptr float, ptr %all_sums, i64 %own_sums",
            f"%used_at = add i64 %thread, {FIRST_USED_WORD}",
            "%used = getelementptr i64, ptr %w, i64 %used_at",
            "store i64 1, ptr %used",
            f"call void @llvm.memset.p0.i64(ptr %sums, i8 0, i64 {4 * floats}, i1 false)",
        ]
        self.begin("%all_sums", {"%images": 6, "%gradient": 7}, own)
        with s.each("read", 0, "%count") as i:
            self.read(i)
        with s.each("grad", 0, "%count") as i:
            self.read_gradient(i)
        with s.each("multiply", 0, str(TAPS)) as tap:
            self._multiply(tap)
        s.lines += next_task("task")
        return s

    def _multiply(self, tap: str) -> None:
        """Append one of the 36 matrix products, which is added to its sums."""
        s, plan = self.s, self.plan
        before = s.at("%before", s.affine(tap, plan.tile_steps[0]))
        after = s.at("%after", s.affine(tap, plan.tile_steps[1]))
        sums = s.at("%sums", s.affine(tap, plan.sum_step))
        heights = _UNROLL_CHANNELS_HALF if plan.half else _UNROLL_CHANNELS
        for first, width, height in parts(plan.outputs, heights, s.width):
            with s.each(f"rows{first}", 0, str(-(-plan.channels // height))) as b:
                a = s.at(before, s.affine(b, height))
                y = s.at(sums, s.affine(b, height * padded(plan.outputs)), first * s.width)
                self._sum_up(f"t{first}", a, s.at(after, first * s.width), y, width, height)

    def _sum_up(self, name: str, a: str, b: str, y: str, width: int, height: int) -> None:
        """Append sums of ``height`` channels times ``width`` vectors of outputs, over all tiles."""
        s, plan = self.s, self.plan
        places = [
            s.at(y, row * padded(plan.outputs) + w * s.width)
            for row in range(height) for w in range(width)
        ]  # fmt: skip

        def tile(t: str, sums: list[str]) -> list[str]:
            row_b = s.at(b, s.affine(t, padded(plan.outputs)))
            outputs = [s.load(s.at(row_b, w * s.width)) for w in range(width)]
            row_a = s.at(a, s.affine(t, padded(plan.channels)))
            made = []
            for row in range(height):
                every = s.broadcast(s.at(row_a, row))
                for w in range(width):
                    made.append(s.multiply_add(every, outputs[w], sums[row * width + w]))
            return made

        for value, place in zip(s.loop(name, "%count", tile, list(map(s.load, places))), places):
            s.store(value, place)
