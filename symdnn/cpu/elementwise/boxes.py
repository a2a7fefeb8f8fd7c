"""Which of sorted boxes stay: compiled loops, a task for each example."""

from __future__ import annotations

from math import prod

from symdnn.cpu.ir.builder import Builder
from symdnn.cpu.ir.loops_ir import data_of, word
from symdnn.cpu.ir.scalar_ir import literal
from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array
from symdnn.ops.array.boxes import KeptBoxes

#: Pairs of boxes below which NumPy's loop is as fast as compiling; and for a thread more.
_MIN_PAIRS_TO_COMPILE, _PAIRS_PER_THREAD = 1 << 10, 1 << 15


def kept_boxes_ir(overlap: float) -> str:
    """Words: threads, examples, 1, boxes of an example, boxes, result. Dtype: float32."""
    s = Builder()
    most = literal(overlap.hex(), "float32")
    s.tasks([*word("%boxes", 3), *data_of("%x", 4), *data_of("%y", 5)], "task")
    first = s.times("%r", "%boxes")
    kept = s.new(f"getelementptr i8, ptr %y, i64 {first}")
    s.put(f"call void @llvm.memset.p0.i64(ptr {kept}, i8 1, i64 %boxes, i1 false)")

    def both(name: str, a: str, b: str) -> str:
        return s.new(f"call float @llvm.{name}.f32(float {a}, float {b})")

    def corners(k: str) -> tuple[list[str], list[str], str]:
        """The low corner, the high one and the area of a box."""
        number = s.plus(first, k)
        at = s.new(f"getelementptr [4 x float], ptr %x, i64 {number}")
        row = s.new(f"load <4 x float>, ptr {at}, align 1")
        a, b, c, d = (s.new(f"extractelement <4 x float> {row}, i64 {i}") for i in range(4))
        low, high = ([both(n, a, c), both(n, b, d)] for n in ("minimum", "maximum"))
        sides = [s.new(f"fsub float {h}, {w}") for w, h in zip(low, high)]
        return low, high, s.new(f"fmul float {sides[0]}, {sides[1]}")

    def drop_others(k: str, after: str) -> None:
        low, high, area = corners(k)
        with s.each("other", after, "%boxes") as j:
            other_low, other_high, other_area = corners(j)
            sides = []
            for d in range(2):
                top = both("minimum", high[d], other_high[d])
                base = both("maximum", low[d], other_low[d])
                sides.append(both("maximum", s.new(f"fsub float {top}, {base}"), "0.0"))
            common = s.new(f"fmul float {sides[0]}, {sides[1]}")
            union = s.new(f"fsub float {s.new(f'fadd float {area}, {other_area}')}, {common}")
            limit = s.new(f"fmul float {union}, {most}")
            stays = s.new(f"zext i1 {s.new(f'fcmp ule float {common}, {limit}')} to i8")
            at = s.new(f"getelementptr i8, ptr {kept}, i64 {j}")
            flag = s.new(f"and i8 {s.new(f'load i8, ptr {at}, align 1')}, {stays}")
            s.put(f"store i8 {flag}, ptr {at}, align 1")

    with s.each("box", 0, "%boxes") as k:
        flag = s.new(f"load i8, ptr {s.new(f'getelementptr i8, ptr {kept}, i64 {k}')}, align 1")
        after = s.plus(k, 1)
        stays = s.new(f"icmp ne i8 {flag}, 0")
        drops = s.new(f"and i1 {stays}, {s.new(f'icmp slt i64 {after}, %boxes')}")
        with s.when("drops", drops):
            drop_others(k, after)
    declared = [
        "declare float @llvm.minimum.f32(float, float)",
        "declare float @llvm.maximum.f32(float, float)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    ]
    return s.task_module(*declared)


class KeptBoxesKernel(Kernel[KeptBoxes]):
    """Boxes of float32; each that stays is compared with all later ones."""

    name = "llvm.kept_boxes"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[KeptBoxes]) -> str | None:
        """Other dtypes, and few boxes."""
        (x,) = call.inputs
        if x.dtype != "float32":
            return f"there is no code for {x.dtype}"
        return compile_refusal([x], lambda: _pairs(call), _MIN_PAIRS_TO_COMPILE)

    def bind(self, call: Call[KeptBoxes]) -> Launch[Array]:
        """A launch of contiguous operands."""
        *examples, boxes, _ = call.inputs[0].shape
        tasks = prod(examples)
        count = min(threads.threads(_pairs(call), _PAIRS_PER_THREAD), tasks)
        run = threads.kernel(kept_boxes_ir, call.op.overlap)
        return ContiguousLaunch(run, [count, tasks, 1, boxes], reads=1)


def _pairs(call: Call[KeptBoxes]) -> int:
    *examples, boxes, _ = call.inputs[0].shape
    return prod(examples) * boxes * boxes


KERNELS: tuple[Row, ...] = (((KeptBoxes,), (KeptBoxesKernel(),)),)
