"""The gradient of a depthwise convolution in NHWC of its filters as LLVM IR.

A task is some neighbouring vectors of channels, over all samples, so that it reads contiguous
memory. Their sums are on the stack, and in registers while a tile of dy is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable

from symdnn.cpu.conv.depthwise_nhwc_ir import TileColumns, TileSource
from symdnn.cpu.conv.depthwise_plan import DepthwisePlan
from symdnn.cpu.ir.builder import MASK, VECTOR, WIDTH, Builder, first_lanes, vector_module
from symdnn.cpu.ir.loops_ir import next_task, word

#: Limit of the sums that stay in registers.
_MAX_REGISTER_SUMS = 25


def depthwise_nhwc_grad_ir(plan: DepthwisePlan, together: int) -> str:
    """The module of ``kernel``, of kind ``grad_filter`` with a multiplier of 1.

    Words of its block: threads, tasks of ``together`` vectors of channels, 1, the operands, the
    number of samples.
    """
    return vector_module(_NhwcFilterGrad(plan, together).text())


class _NhwcFilterGrad(TileSource):
    """Builds the function ``rows``."""

    def __init__(self, plan: DepthwisePlan, together: int) -> None:
        super().__init__(plan)
        self.together = together

    def text(self) -> Builder:
        """The lines of the function."""
        s, plan = self.s, self.plan
        floats = self.area * self.together * WIDTH
        self.begin(*word("%images", 3 + len(plan.operands)),
                   f"%sums = alloca [{floats} x float], align 64")  # fmt: skip
        self.tasks()
        s.lines.append(f"call void @llvm.memset.p0.i64(ptr %sums, i8 0, i64 {4 * floats}, i1 0)")
        first = s.affine("%r", self.together)
        left = s.minus(self.padded // WIDTH, first)
        fewer = s.new(f"icmp slt i64 {left}, {self.together}")
        self.count = s.new(f"select i1 {fewer}, i64 {left}, i64 {self.together}")
        self.first = s.affine(first, WIDTH)
        with (
            s.each("each_image", 0, "%images") as n,
            s.each("blocks", 0, str(-(-plan.block_extent[0] // self.high))) as b,
        ):
            self.row_of_tiles(n, b)
        self._vectors("written", self._write)
        s.lines += next_task("task")
        return s

    def _vectors(self, name: str, body: Callable[[str, str, str], None]) -> None:
        """A loop over the task's vectors: ``body(first channel, mask, address of its sums)``."""
        s, plan = self.s, self.plan
        with s.each(f"vectors_{name}", 0, self.count) as i:
            first = s.plus(self.first, s.affine(i, WIDTH))
            lanes = s.lanes_below(first, plan.channels) if plan.channels % WIDTH else ""
            body(first, lanes, s.at("%sums", s.affine(i, WIDTH * self.area)))

    def tile(
        self, name: str, c: TileColumns, count: int, rows: dict[int, tuple[str, str]], made: str,
        read: str,
    ) -> None:  # fmt: skip
        s, plan, users = self.s, self.plan, self.users(c, count)
        most = max(1, _MAX_REGISTER_SUMS // plan.kernel[1]) * plan.kernel[1]

        def vector(first: str, lanes: str, sums: str) -> None:
            masks = self.row_masks(rows, lanes)
            given = {}
            for i in range(count):
                for q in range(c.wide):
                    at = (i * plan.block_extent[1] + c.first + q) * plan.channels
                    given[i, q] = s.load(s.at("%dy", self.made, made, at, first), lanes)
            for low in range(0, self.area, most):
                part = range(low, min(low + most, self.area))
                needed = {t for found in users.values() for *_, t in found if t in part}
                total = {t: s.load(s.at(sums, t * WIDTH)) for t in sorted(needed)}
                for row, column in sorted(users):
                    products = [p for p in users[row, column] if p[2] in part]
                    if not products:
                        continue
                    at = (self.source(c) + column) * plan.channels
                    value = s.load(s.at(rows[row][0], read, at, first), masks[row])
                    for i, q, t in products:
                        total[t] = s.multiply_add(given[i, q], value, total[t])
                for t, value in total.items():
                    s.store(value, s.at(sums, t * WIDTH))

        self._vectors(name, vector)

    def _write(self, first: str, lanes: str, sums: str) -> None:
        """Append the scatter of the sums of a vector of channels to their filters."""
        s = self.s
        steps = ", ".join(f"i64 {i * self.area}" for i in range(WIDTH))
        begin = s.affine(first, self.area)
        for t in range(self.area):
            value, base = s.load(s.at(sums, t * WIDTH)), s.at("%out", begin, t)
            places = s.new(f"getelementptr float, ptr {base}, <{WIDTH} x i64> <{steps}>")
            s.lines.append(
                f"call void @llvm.masked.scatter.v16f32.v16p0({VECTOR} {value}, <{WIDTH} x ptr> "
                f"{places}, i32 4, {MASK} {lanes or first_lanes(WIDTH)})"
            )
