"""The gradient of a convolution in its images by Winograd's algorithm turned round, as LLVM IR.

It can be had as a convolution of the result's gradient with padding all around, most of whose tiles
hold zeros where kernels are large and images small. Here each tile of that gradient is taken once:
transformed, multiplied, and its 6 x 6 results are added to the images, where those of neighbours
overlap. A block is a number of whole images, so no two threads add to one.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.loops_ir import data_of, next_task, word
from symdnn.cpu.vector_ir import ROWS, VectorSource, vector_module
from symdnn.cpu.winograd_grad_ir import GradientTiles
from symdnn.cpu.winograd_ir import POINTS, TAPS, TILE, Window, WinogradPlan

__all__ = ["adjoint_ir"]


def adjoint_ir(plan: WinogradPlan, kernel_step: int) -> str:
    """The module of ``kernel``; ``plan`` is that of the convolution whose gradient it is.

    Its block: threads, blocks of tiles, 1, tiles, the addresses of kernels (as they are transformed
    for that convolution, channels and outputs exchanged; ``kernel_step`` floats apart) and of
    scratch memory, the arrays of the result's gradient and of the images'.
    """
    return vector_module(_Adjoint(plan, kernel_step).source())


class _Adjoint(GradientTiles):
    """The function ``rows``: a block of images after the other."""

    def __init__(self, plan: WinogradPlan, kernel_step: int) -> None:
        super().__init__(plan)
        self._kernel_step = kernel_step

    def source(self) -> VectorSource:
        """All lines."""
        s, plan = self.s, self.plan
        of_image = plan.tiles[0] * plan.tiles[1]
        nbytes = 4 * plan.size[0] * plan.size[1] * plan.channels
        s.lines += [
            ROWS, "entry:", *word("%tiles", 3), *word("%kernels", 4, "ptr"),
            *word("%scratch", 5, "ptr"), *data_of("%gradient", 6), *data_of("%images", 7),
            "%thread32 = call i32 @omp_get_thread_num()", "%thread = zext i32 %thread32 to i64",
            f"%own = mul i64 %thread, {plan.thread_floats}",
            "%before = getelementptr float, ptr %scratch, i64 %own",
            f"%after = getelementptr float, ptr %before, i64 {TAPS * plan.tile_steps[0]}",
            "br label %task", "task:", "%r = phi i64 [%r0, %entry], [%r_next, %task_end]",
            f"%first = mul i64 %r, {plan.block}",
            "%left = sub i64 %tiles, %first",
            f"%full = icmp sgt i64 %left, {plan.block}",
            f"%count = select i1 %full, i64 {plan.block}, i64 %left",
            f"%begin = udiv i64 %first, {of_image}", f"%many = udiv i64 %count, {of_image}",
            f"%begin_at = mul i64 %begin, {nbytes}", f"%many_bytes = mul i64 %many, {nbytes}",
            "%own_images = getelementptr i8, ptr %images, i64 %begin_at",
            "call void @llvm.memset.p0.i64(ptr %own_images, i8 0, i64 %many_bytes, i1 false)",
        ]  # fmt: skip
        s.block = "task"
        s.loop("grad", "%count", self.read_gradient)
        s.loop("multiply", str(TAPS), self._multiply)
        s.loop("add", "%count", self._add)
        s.lines += next_task("task")
        return s

    def _multiply(self, tap: str, _: list[str]) -> list[str]:
        plan = self.plan
        steps = plan.tile_steps
        source, target = ("%after", steps[1], plan.outputs), ("%before", steps[0], plan.channels)
        self.multiply(tap, source, target, self._kernel_step)
        return []

    # -- results are added ----------------------------------------------------------------------

    def _add(self, t: str, _: list[str]) -> list[str]:
        plan = self.plan
        return self.windowed(
            t, "added", Window("%images", TILE, plan.pad, plan.size, plan.channels), "%before",
            self.never_outside(), self._add_vector,
        )  # fmt: skip

    def _add_vector(
        self, base: str, source: str, lanes: str, masks: Sequence[Sequence[str]]
    ) -> None:
        """What a tile gives to some channels of its 36 pixels."""
        s, plan = self.s, self.plan
        columns = []
        for j in range(TILE):
            products = [
                s.load(s.at(source, (i * TILE + j) * plan.tile_steps[0])) for i in range(TILE)
            ]
            columns.append(_to_pixels(s, products))
        for i in range(TILE):
            for j, value in enumerate(_to_pixels(s, [c[i] for c in columns])):
                place = s.at(base, (i * plan.size[1] + j) * plan.channels)
                mask = masks[i][j] if masks else lanes
                s.store(s.add(value, s.load(place, mask)), place, mask)


def _to_pixels(s: VectorSource, t: Sequence[str]) -> list[str]:
    """What 6 values give to 6 pixels: the transposed way of pixels there."""
    (a, _), (b, _) = POINTS
    sums = s.add(t[1], t[2]), s.add(t[3], t[4])
    differences = s.sub(t[1], t[2]), s.sub(t[3], t[4])
    first = s.fma(-2.0 * a, differences[0], s.fma(-0.5 * b, differences[1], t[5]))
    second = s.fma(-2.5, t[0], s.fma(-2.0, sums[0], s.scaled(sums[1], -0.5)))
    third = s.fma(a, differences[0], s.fma(b, differences[1], s.scaled(t[5], -2.5)))
    return [t[0], first, second, third, s.add(t[0], s.add(*sums)), t[5]]
