"""The gradient of a convolution's input by the adjoint of Winograd's algorithm, as LLVM IR.

The gradient can also be computed as a convolution of dy with padding all around. With large filters
and small planes most of its tiles are mostly zeros. Here each tile of dy is transformed and
multiplied once, and its 6 x 6 results are added to dx, where those of neighbours overlap. A block
is a number of whole samples, so that no two threads add to the same sample.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.conv.winograd_plan import TAPS, TILE, WinogradPlan
from symdnn.cpu.conv.winograd_tiles_ir import Tiles
from symdnn.cpu.conv.winograd_transforms_ir import both_directions, pixel_gradient
from symdnn.cpu.ir.builder import Builder, vector_module
from symdnn.cpu.ir.loops_ir import next_task


def adjoint_ir(plan: WinogradPlan, filter_step: int) -> str:
    """The module of ``kernel``; ``plan`` is that of the convolution whose gradient it is.

    Words of its block: threads, blocks of tiles, 1, tiles, the address of the filters (transformed
    for that convolution, channels and outputs exchanged; matrices are ``filter_step`` floats
    apart), the address of scratch memory, the array objects of dy and of dx.
    """
    return vector_module(_Adjoint(plan, filter_step).source())


class _Adjoint(Tiles):
    """Builds the function ``rows``, a task of which is a block of samples."""

    def __init__(self, plan: WinogradPlan, filter_step: int) -> None:
        super().__init__(plan)
        self._kernel_step = filter_step

    def source(self) -> Builder:
        """The lines of the function."""
        s, plan = self.s, self.plan
        of_image = plan.tiles[0] * plan.tiles[1]
        nbytes = 4 * plan.size[0] * plan.size[1] * plan.channels
        self.begin("%kernels", {"%gradient": 6, "%images": 7})
        s.lines += [
            f"%begin = udiv i64 %first, {of_image}", f"%many = udiv i64 %count, {of_image}",
            f"%begin_at = mul i64 %begin, {nbytes}", f"%many_bytes = mul i64 %many, {nbytes}",
            "%own_images = getelementptr i8, ptr %images, i64 %begin_at",
            "call void @llvm.memset.p0.i64(ptr %own_images, i8 0, i64 %many_bytes, i1 false)",
        ]  # fmt: skip
        with s.each("grad", 0, "%count") as i:
            self.read_gradient(i)
        with s.each("multiply", 0, str(TAPS)) as tap:
            self._multiply(tap)
        with s.each("add", 0, "%count") as t:
            self._add(t)
        s.lines += next_task("task")
        return s

    def _multiply(self, tap: str) -> None:
        plan = self.plan
        steps = plan.tile_steps
        source, target = ("%after", steps[1], plan.outputs), ("%before", steps[0], plan.channels)
        self.multiply(tap, source, target, self._kernel_step)

    def _add(self, t: str) -> None:
        whole = self.never_outside()
        self.windowed(t, "added", self.input_window, "%before", whole, self._add_vector)

    def _add_vector(
        self, base: str, source: str, lanes: str, there: Sequence[Sequence[str]]
    ) -> None:
        """Append the addition of a tile's results to some channels of its 36 pixels."""
        s, plan = self.s, self.plan

        def product(i: int, j: int) -> str:
            return s.load(s.at(source, (i * TILE + j) * plan.tile_steps[0]))

        for i, j, value in both_directions(TILE, lambda t: pixel_gradient(s, t), product):
            place = s.at(base, (i * plan.size[1] + j) * plan.channels)
            place = self.place(place, there[i][j] if there else "", "%nowhere")
            s.store(s.add(value, s.load(place, lanes)), place, lanes)
