"""The gradient of a depthwise convolution of planes (NCHW) of its filters as LLVM IR.

Each weight has a vector of sums, which stays in a register over all samples. Vectors of x, and of
several rows of dy, are loaded once for all products that they are part of.
"""

from __future__ import annotations

from itertools import product

from symdnn.cpu.conv.depthwise_ir import ColumnVectors, PlaneSource, mask_of, taps_of
from symdnn.cpu.conv.depthwise_plan import DepthwisePlan
from symdnn.cpu.ir.builder import WIDTH, vector_module

#: Limit of the sums that stay in registers.
_MAX_REGISTER_SUMS = 25


def depthwise_grad_ir(plan: DepthwisePlan) -> str:
    """The module of ``kernel``, of kind ``grad_filter``.

    Words of its block: threads, channels of the result, 1, the operands, the number of samples.
    """
    return vector_module(_FilterGrad(plan).text())


class _FilterGrad(PlaneSource):
    """A task is a channel of the result: sums over all samples and positions, in vectors."""

    def begin(self) -> None:
        at = 3 + len(self.plan.operands)
        self.s.lines += [
            f"%images_word = getelementptr i64, ptr %w, i64 {at}",
            "%images = load i64, ptr %images_word",
        ]

    def task(self) -> None:
        plan, s = self.plan, self.s
        high, wide = plan.kernel
        self.out = s.at("%out", s.affine("%r", high * wide))
        self.channel = "%r"
        if plan.multiplier > 1:
            self.channel = s.new(f"udiv i64 %r, {plan.multiplier}")
        together = max(1, _MAX_REGISTER_SUMS // wide)
        for first in range(0, high, together):
            taps = list(product(range(first, min(first + together, high)), range(wide)))
            self._group(f"from{first}", taps)

    def _group(self, name: str, taps: list[tuple[int, int]]) -> None:
        """Append some weights: their sums in vectors, reduced and stored."""
        s, plan = self.s, self.plan

        def image(n: str, sums: list[str]) -> list[str]:
            number = s.plus(s.affine(n, plan.channels), self.channel)
            x = s.at("%x", s.affine(number, plan.size[0] * plan.size[1]))
            number = s.plus(s.affine(n, plan.channels * plan.multiplier), "%r")
            dy = s.at("%dy", s.affine(number, plan.out[0] * plan.out[1]))
            return self._image(name, x, dy, taps, sums)

        for (ky, kx), total in zip(
            taps, s.loop(f"{name}_images", "%images", image, ["zeroinitializer"] * len(taps))
        ):
            value = s.reduce_add(total)
            s.lines.append(f"store float {value}, ptr {s.at(self.out, ky * plan.kernel[1] + kx)}")

    def _image(
        self, name: str, x: str, dy: str, taps: list[tuple[int, int]], sums: list[str]
    ) -> list[str]:
        """The sums with one sample added."""
        s, plan = self.s, self.plan
        whole, left = divmod(plan.out[0], plan.block)

        def block(i: str, held: list[str]) -> list[str]:
            return self._rows(f"{name}_whole", x, dy, i, plan.block, taps, held)

        if whole:
            sums = s.loop(f"{name}_blocks", str(whole), block, sums)
        return self._rows(f"{name}_left", x, dy, str(whole), left, taps, sums) if left else sums

    def _rows(
        self, name: str, x: str, dy: str, block: str, count: int, taps: list[tuple[int, int]],
        sums: list[str],
    ) -> list[str]:  # fmt: skip
        """The sums with some rows of dy added."""
        s, plan = self.s, self.plan
        wanted = {k for k, _ in taps}
        users: dict[int, list[tuple[int, int]]] = {}
        for i in range(count):
            for t in taps_of(plan, 0, i):
                if t.weight in wanted:
                    users.setdefault(t.offset, []).append((i, t.weight))
        rows = self.rows(x, s.affine(block, plan.block * plan.stride[0]), iter(users))
        base = s.at(dy, s.affine(block, plan.block * plan.out[1]))

        def vector(c: ColumnVectors, made: str, read: str, held: list[str]) -> list[str]:
            total = dict(zip(taps, held, strict=True))
            mask = mask_of([c.first + i < plan.out[1] for i in range(WIDTH)])
            given = []
            for i in range(count):
                begin = s.at(base, made or 0, i * plan.out[1] + c.first)
                given.append(s.load(begin, "" if c.count > 1 else mask))
            for tap in taps_of(plan, 1, 0):
                for offset in sorted(users):
                    value = self.loaded(rows[offset], c, read, tap.offset)
                    if value == "zeroinitializer":
                        continue
                    for i, k in users[offset]:
                        at = (k, tap.weight)
                        total[at] = s.multiply_add(given[i], value, total[at])
            return [total[t] for t in taps]

        return self.each(name, self.columns(moves=False), sums, vector)

    def masks(self, first: int, offset: int) -> list[str]:
        """Masks that also exclude lanes beyond dy's columns, whose memory may hold NaN."""
        begin, wide, step = self.source(first) + offset, self.plan.input_extent[1], self.step
        last = begin + step * (self.plan.out[1] - 1 - first)
        high = min(wide, last + 1)
        if step > 2:
            return [mask_of([0 <= begin + step * i < high for i in range(WIDTH)])]
        return [
            mask_of([0 <= begin + WIDTH * v + i < high for i in range(WIDTH)]) for v in range(step)
        ]
