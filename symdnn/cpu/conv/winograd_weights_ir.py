"""Winograd's transformation of filters to 36 matrices, and of sums of matrices back, as LLVM IR."""

from __future__ import annotations

from symdnn.cpu.conv.winograd_plan import TAPS, TILE, FilterGradPlan, FilterPlan, padded
from symdnn.cpu.conv.winograd_tiles_ir import by_vectors
from symdnn.cpu.conv.winograd_transforms_ir import (
    both_directions,
    filter_gradient,
    transform_filter,
)
from symdnn.cpu.ir.builder import MASK, VECTOR, WIDTH, Builder, first_lanes, vector_module
from symdnn.cpu.ir.loops_ir import data_of, next_task, word


def filter_transform_ir(plan: FilterPlan) -> str:
    """The module of ``kernel``.

    Words of its block: threads, channels, 1, the filters, the address of the result.
    """
    s = Builder()
    area = plan.r * plan.r
    step = (area, plan.outputs * area) if plan.swapped else (plan.channels * area, area)
    s.tasks([*data_of("%kernels", 3), *word("%made", 4, "ptr")])
    base = s.at("%kernels", s.affine("%r", step[1]))
    row = s.at("%made", s.affine("%r", WIDTH if plan.panels else padded(plan.outputs)))
    places = range(plan.r)

    def gathered(begin: str, place: tuple[int, int], lanes: str) -> str:
        given = f"{_pointers(s, plan, begin, step[0], place)}, i32 4, {_mask(lanes)}"
        zeros = f"{VECTOR} zeroinitializer"
        return s.new(f"call {VECTOR} @llvm.masked.gather.v16f32.v16p0({given}, {zeros})")

    with by_vectors(s, "k", plan.outputs) as (first, lanes):
        begin = s.at(base, _times(s, first, step[0]))
        weights = [[gathered(begin, (i, j), lanes) for j in places] for i in places]
        made = both_directions(plan.r, lambda g: transform_filter(s, g), lambda i, j: weights[i][j])
        place = _times(s, first, plan.channels) if plan.panels else first
        for i, j, value in made:
            s.store(value, s.at(row, (i * TILE + j) * plan.step, place))
    s.lines += next_task("task")
    return vector_module(s)


def filter_grad_ir(plan: FilterGradPlan) -> str:
    """The module of ``kernel``, which transforms the sums of all threads to filters.

    Words of its block: threads, channels, 1, the address of the sums, the array object of filters,
    and the address of the words in which threads note that they have sums
    (:func:`~symdnn.cpu.conv.winograd_grad_ir.filter_sums_ir`).
    """
    s = Builder()
    area = plan.r * plan.r
    entry = [*word("%sums", 3, "ptr"), *data_of("%kernels", 4), *word("%used", 5, "ptr")]
    s.tasks([*entry, *(line for t in range(plan.threads) for line in _was_used(t))])
    row = s.at("%sums", s.affine("%r", padded(plan.outputs)))
    base = s.at("%kernels", s.affine("%r", area))
    step = plan.channels * area
    with by_vectors(s, "k", plan.outputs) as (first, lanes):

        def total(i: int, j: int) -> str:
            return _total(s, plan, s.at(row, first), i * TILE + j)

        weights = both_directions(TILE, lambda q: filter_gradient(s, q, plan.r), total)
        begin = s.at(base, _times(s, first, step))
        for i, j, value in weights:
            given = f"{_pointers(s, plan, begin, step, (i, j))}, i32 4, {_mask(lanes)}"
            s.lines.append(
                f"call void @llvm.masked.scatter.v16f32.v16p0({VECTOR} {value}, {given})"
            )
    s.lines += next_task("task")
    return vector_module(s)


def _times(s: Builder, first: str | int, step: int) -> str | int:
    return s.affine(first, step) if isinstance(first, str) else first * step


def _mask(lanes: str) -> str:
    return f"{MASK} {lanes or first_lanes(WIDTH)}"


def _pointers(
    s: Builder, plan: FilterPlan | FilterGradPlan, base: str, step: int, place: tuple[int, int]
) -> str:
    """The addresses of one weight of several outputs, ``step`` floats apart, as an argument."""
    i, j = (plan.r - 1 - n for n in place) if plan.mirrored else place
    begin = s.at(base, i * plan.r + j)
    steps = ", ".join(f"i64 {n * step}" for n in range(WIDTH))
    pointers = s.new(f"getelementptr float, ptr {begin}, <{WIDTH} x i64> <{steps}>")
    return f"<{WIDTH} x ptr> {pointers}"


def _was_used(thread: int) -> list[str]:
    return [
        f"%at_used{thread} = getelementptr i64, ptr %used, i64 {thread}",
        f"%word_used{thread} = load i64, ptr %at_used{thread}",
        f"%used{thread} = icmp ne i64 %word_used{thread}, 0",
    ]


def _total(s: Builder, plan: FilterGradPlan, base: str, tap: int) -> str:
    """The sum over the threads that have one, in their order."""
    total = "zeroinitializer"
    for thread in range(plan.threads):
        value = s.load(s.at(base, (thread * TAPS + tap) * plan.step))
        value = s.new(f"select i1 %used{thread}, {VECTOR} {value}, {VECTOR} zeroinitializer")
        total = s.add(total, value)
    return total
