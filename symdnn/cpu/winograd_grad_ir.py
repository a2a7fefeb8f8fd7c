"""The gradient of a convolution in its kernels by Winograd's algorithm, as LLVM IR.

It is the other one turned round (:mod:`symdnn.cpu.winograd_ir`): tiles of the images are
transformed as there, those of the result's gradient by the transposed transformation, and their
products are summed over all tiles. The 36 matrices of sums, each thread's own, are added up and
transformed back to kernels once, in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.loops_ir import data_of, next_task, word
from symdnn.cpu.vector_ir import (
    MASK,
    ROWS,
    VECTOR,
    WIDTH,
    VectorSource,
    first_lanes,
    vector_module,
)
from symdnn.cpu.winograd_ir import (
    POINTS,
    TAPS,
    TILE,
    Tiles,
    Window,
    WinogradPlan,
    by_vectors,
    padded,
)  # fmt: skip

__all__ = ["FIRST_USED", "GradientTiles", "SumPlan", "kernel_sums_ir", "sums_ir"]

#: The word of the block that thread 0 sets when it has summed up anything; others' follow.
FIRST_USED = 8
#: Channels that are summed up at once, by how many vectors of outputs.
_CHANNELS = {1: 16, 2: 8, 3: 8, 4: 4}
#: Floats between matrices, as in the other direction.
_APART = 16


@dataclass(frozen=True)
class SumPlan:
    """How sums of so many threads become kernels (outputs, channels, r, r)."""

    channels: int
    outputs: int
    r: int
    threads: int
    mirrored: bool

    @property
    def step(self) -> int:
        """Floats from one matrix of sums to the next."""
        return padded(self.channels) * padded(self.outputs) + _APART


def sums_ir(plan: WinogradPlan) -> str:
    """The module of ``kernel``, which sums up products of tiles.

    Its block: threads, blocks of tiles, 1, tiles, the addresses of sums and of scratch memory, the
    arrays of images and of the gradient, a word for each thread.
    """
    return vector_module(_Sums(plan).source())


def kernel_sums_ir(plan: SumPlan) -> str:
    """The module of ``kernel``, which makes kernels of the sums of all threads.

    Its block: threads, channels, 1, the address of the sums, the array of kernels, and where in the
    other block threads have said that there are sums.
    """
    return vector_module(_kernels_of_sums(plan))


class GradientTiles(Tiles):
    """Reads tiles of the result's gradient, ``%gradient``, to ``%after``."""

    def read_gradient(self, t: str, _: list[str]) -> list[str]:
        plan = self.plan
        return self.windowed(
            t, "within", Window("%gradient", plan.m, (0, 0), plan.out, plan.outputs), "%after",
            self.all_whole(), self._gradient_vector,
        )  # fmt: skip

    def _gradient_vector(
        self, base: str, target: str, lanes: str, masks: Sequence[Sequence[str]]
    ) -> None:
        """The 36 transformed values of some outputs of a tile."""
        s, plan = self.s, self.plan
        columns = []
        for j in range(plan.m):
            pixels = [
                s.load(s.at(base, (i * plan.out[1] + j) * plan.outputs),
                       masks[i][j] if masks else lanes)
                for i in range(plan.m)
            ]  # fmt: skip
            columns.append(_of_results(s, pixels))
        for i in range(TILE):
            for j, value in enumerate(_of_results(s, [c[i] for c in columns])):
                s.store(value, s.at(target, (i * TILE + j) * plan.tile_steps[1]))


class _Sums(GradientTiles):
    """The function ``rows``: a block of tiles after the other."""

    @property
    def step(self) -> int:
        """Floats from one matrix of sums to the next."""
        plan = self.plan
        return padded(plan.channels) * padded(plan.outputs) + _APART

    def source(self) -> VectorSource:
        """All lines."""
        s, plan = self.s, self.plan
        s.lines += [
            ROWS, "entry:", *word("%tiles", 3), *word("%all_sums", 4, "ptr"),
            *word("%scratch", 5, "ptr"), *data_of("%images", 6), *data_of("%gradient", 7),
            "%thread32 = call i32 @omp_get_thread_num()", "%thread = zext i32 %thread32 to i64",
            f"%own = mul i64 %thread, {plan.thread_floats}",
            "%before = getelementptr float, ptr %scratch, i64 %own",
            f"%after = getelementptr float, ptr %before, i64 {TAPS * plan.tile_steps[0]}",
            f"%own_sums = mul i64 %thread, {TAPS * self.step}",
            "%sums = getelementptr float, ptr %all_sums, i64 %own_sums",
            f"%used_at = add i64 %thread, {FIRST_USED}",
            "%used = getelementptr i64, ptr %w, i64 %used_at",
            "store i64 1, ptr %used",
            f"call void @llvm.memset.p0.i64(ptr %sums, i8 0, i64 {4 * TAPS * self.step}, i1 false)",
            "br label %task", "task:", "%r = phi i64 [%r0, %entry], [%r_next, %task_end]",
            f"%first = mul i64 %r, {plan.block}",
            "%left = sub i64 %tiles, %first",
            f"%full = icmp sgt i64 %left, {plan.block}",
            f"%count = select i1 %full, i64 {plan.block}, i64 %left",
        ]  # fmt: skip
        s.block = "task"
        s.loop("read", "%count", self.read)
        s.loop("grad", "%count", self.read_gradient)
        s.loop("multiply", str(TAPS), self._multiply)
        s.lines += next_task("task")
        return s

    # -- products -------------------------------------------------------------------------------

    def _multiply(self, tap: str, _: list[str]) -> list[str]:
        """One of the 36 products of matrices, added to its sums."""
        s, plan = self.s, self.plan
        before = s.at("%before", s.affine(tap, plan.tile_steps[0]))
        after = s.at("%after", s.affine(tap, plan.tile_steps[1]))
        sums = s.at("%sums", s.affine(tap, self.step))
        vectors = padded(plan.outputs) // WIDTH
        for first in range(0, vectors, max(_CHANNELS)):
            width = min(vectors - first, max(_CHANNELS))
            height = _CHANNELS[width]

            def rows(
                b: str, _: list[str], first: int = first, width: int = width, height: int = height
            ) -> list[str]:
                a = s.at(before, s.affine(b, height))
                y = s.at(sums, s.affine(b, height * padded(plan.outputs)), first * WIDTH)
                self._sum_up(f"t{first}", a, s.at(after, first * WIDTH), y, width, height)
                return []

            s.loop(f"rows{first}", str(-(-plan.channels // height)), rows)
        return []

    def _sum_up(self, name: str, a: str, b: str, y: str, width: int, height: int) -> None:
        """``height`` channels times ``width`` vectors of outputs, summed over tiles."""
        s, plan = self.s, self.plan
        places = [
            s.at(y, row * padded(plan.outputs) + w * WIDTH)
            for row in range(height) for w in range(width)
        ]  # fmt: skip

        def tile(t: str, sums: list[str]) -> list[str]:
            row_b = s.at(b, s.affine(t, padded(plan.outputs)))
            outputs = [s.load(s.at(row_b, w * WIDTH)) for w in range(width)]
            row_a = s.at(a, s.affine(t, padded(plan.channels)))
            made = []
            for row in range(height):
                every = s.spread(s.at(row_a, row))
                for w in range(width):
                    made.append(s.product(every, outputs[w], sums[row * width + w]))
            return made

        for value, place in zip(s.loop(name, "%count", tile, list(map(s.load, places))), places):
            s.store(value, place)


def _of_results(s: VectorSource, y: Sequence[str]) -> list[str]:
    """6 values of the gradients of m results: the transposed way back."""
    found = [y[0]]
    for point, _ in POINTS:
        halves = []
        for first in (0, 1):
            value = s.scaled(y[first], point**first)
            for i in range(first + 2, len(y), 2):
                value = s.fma(point**i, y[i], value)
            halves.append(value)
        found += [s.add(*halves), s.sub(*halves)]
    return [*found, y[-1]]


def _of_sums(s: VectorSource, q: Sequence[str], r: int) -> list[str]:
    """r weights of 6 sums: the transposed way of kernels there."""
    halves = [(s.add(q[i], q[i + 1]), s.sub(q[i], q[i + 1])) for i in (1, 3)]
    found = []
    for i in range(r):
        value = q[0] if i == 0 else ""
        for (point, norm), pair in zip(POINTS, halves, strict=True):
            factor = point**i / norm
            value = s.fma(factor, pair[i % 2], value) if value else s.scaled(pair[i % 2], factor)
        found.append(s.add(value, q[5]) if i == r - 1 else value)
    return found


def _kernels_of_sums(plan: SumPlan) -> VectorSource:
    s = VectorSource()
    area = plan.r * plan.r
    s.lines += [
        ROWS, "entry:", *word("%sums", 3, "ptr"), *data_of("%kernels", 4), *word("%used", 5, "ptr"),
        *(line for t in range(plan.threads) for line in _was_used(t)),
        "br label %task", "task:", "%r = phi i64 [%r0, %entry], [%r_next, %task_end]",
    ]  # fmt: skip
    s.block = "task"
    row = s.at("%sums", s.affine("%r", padded(plan.outputs)))
    base = s.at("%kernels", s.affine("%r", area))
    step = plan.channels * area

    def vector(first: str | int, lanes: str) -> None:
        columns = []
        for j in range(TILE):
            sums = [_total(s, plan, s.at(row, first), i * TILE + j) for i in range(TILE)]
            columns.append(_of_sums(s, sums, plan.r))
        begin = s.at(base, s.affine(first, step) if isinstance(first, str) else first * step)
        for i in range(plan.r):
            for j, value in enumerate(_of_sums(s, [c[i] for c in columns], plan.r)):
                _scatter(s, plan, value, begin, (i, j), lanes)

    by_vectors(s, "k", plan.outputs, vector)
    s.lines += next_task("task")
    return s


def _was_used(thread: int) -> list[str]:
    return [
        f"%at_used{thread} = getelementptr i64, ptr %used, i64 {thread}",
        f"%word_used{thread} = load i64, ptr %at_used{thread}",
        f"%used{thread} = icmp ne i64 %word_used{thread}, 0",
    ]


def _total(s: VectorSource, plan: SumPlan, base: str, tap: int) -> str:
    """The sum over those threads that have one, in their order."""
    total = "zeroinitializer"
    for thread in range(plan.threads):
        value = s.load(s.at(base, (thread * TAPS + tap) * plan.step))
        value = s.new(f"select i1 %used{thread}, {VECTOR} {value}, {VECTOR} zeroinitializer")
        total = s.add(total, value)
    return total


def _scatter(
    s: VectorSource, plan: SumPlan, value: str, base: str, place: tuple[int, int], lanes: str
) -> None:
    """Write one weight of several outputs."""
    i, j = (plan.r - 1 - n for n in place) if plan.mirrored else place
    step = plan.channels * plan.r * plan.r
    begin = s.at(base, i * plan.r + j)
    offsets = ", ".join(f"i64 {n * step}" for n in range(WIDTH))
    pointers = s.new(f"getelementptr float, ptr {begin}, <{WIDTH} x i64> <{offsets}>")
    s.lines.append(
        f"call void @llvm.masked.scatter.v16f32.v16p0({VECTOR} {value}, <{WIDTH} x ptr> {pointers},"
        f" i32 4, {MASK} {lanes or first_lanes(WIDTH)})"
    )
