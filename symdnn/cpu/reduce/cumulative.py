"""Running sums, products, maxima, minima and linear recurrences along an axis, by compiled loops.

A line is the elements along the axis. Neighbouring lines are the lanes of a vector: columns if the
axis is not the last, rows if it is. So no result depends on the number of lanes or threads, and
sums are added in NumPy's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from symdnn.cpu.ir.builder import Builder
from symdnn.cpu.ir.loops_ir import METADATA, THREADS, data_of, next_task, word
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.array.cumulative import CumMax, CumMin, CumProd, CumSum, LinearRecurrence

__all__ = ["KERNELS", "CumulativeKernel", "CumulativePlan", "cumulative_ir"]

#: With fewer elements NumPy is as fast; elements for which waking up another thread pays.
_MIN_ELEMENTS_TO_COMPILE, _ELEMENTS_PER_THREAD = 1 << 12, 1 << 14
#: Lanes of a vector of columns, and of a vector gathered from rows.
_COLUMN_LANES, _ROW_LANES = 16, 4
#: How each op combines elements, and the value that a line begins with.
_KINDS = {CumSum: "sum", CumProd: "prod", CumMax: "max", CumMin: "min", LinearRecurrence: "line"}
_FIRST = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf"), "line": 0.0}


@dataclass(frozen=True)
class CumulativePlan:
    """What the text depends on; sizes are words of the block."""

    kind: str
    dtype: str
    lanes: int
    gathered: bool  # lanes are rows
    reverse: bool
    exclusive: bool


class CumulativeKernel(Kernel[CumSum | CumProd | CumMax | CumMin | LinearRecurrence]):
    """Cumulative ops along one axis of float32 (added in float64) or float64."""

    name = "llvm.cumulative"
    traits = LLVM

    def refuses(
        self, call: Call[CumSum | CumProd | CumMax | CumMin | LinearRecurrence]
    ) -> str | None:
        """Needs float32 or float64."""
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        if any(t.dtype not in ("float32", "float64") for t in types):
            return "it computes in float32 and float64"
        return compile_refusal(types, lambda: prod(types[0].shape), _MIN_ELEMENTS_TO_COMPILE)

    def bind(
        self, call: Call[CumSum | CumProd | CumMax | CumMin | LinearRecurrence]
    ) -> Launch[Array]:
        """A launch whose code serves all sizes; the division into tasks is in the block."""
        op = call.op
        shape = call.inputs[0].shape
        length, inner = shape[op.axis], prod(shape[op.axis + 1 :])
        outer = prod(shape) // (length * inner)
        # Lanes are taken from a panel: all rows, or the columns of one outer index.
        panels, lines, gap, step = (1, outer, length, 1) if inner == 1 else (outer, inner, 1, inner)
        full = _ROW_LANES if inner == 1 else _COLUMN_LANES
        lanes = full if lines >= full else 1
        tasks = -(-lines // lanes)
        plan = CumulativePlan(
            _KINDS[type(op)], call.inputs[0].dtype, lanes, inner == 1, op.reverse,
            getattr(op, "exclusive", False),
        )  # fmt: skip
        count = threads.threads(prod(shape), _ELEMENTS_PER_THREAD)
        head = [count, panels * tasks, 1, tasks, lines, lines * length, gap, step, length]
        return ContiguousLaunch(threads.kernel(cumulative_ir, plan), head, len(call.inputs))


#: Names of the words behind the first three: see ``head`` in :meth:`CumulativeKernel.bind`.
_WORDS = ("%tasks", "%lines", "%panel_size", "%gap", "%step", "%length")


def cumulative_ir(plan: CumulativePlan) -> str:
    """The module of ``kernel``. A task is one vector of whole lines."""
    names = ["%x", "%b", "%y"] if plan.kind == "line" else ["%x", "%y"]
    entry = [line for i, name in enumerate(_WORDS, 3) for line in word(name, i)]
    entry += [line for i, name in enumerate(names, 9) for line in data_of(name, i)]
    s = Builder()
    s.tasks(entry, "task")
    panel, number = s.new("udiv i64 %r, %tasks"), s.new("urem i64 %r, %tasks")
    # The last vector begins early enough to be full: its first lines are computed twice.
    early = s.new(f"sub i64 %lines, {plan.lanes}")
    wanted = s.new(f"mul i64 {number}, {plan.lanes}")
    line = s.new(f"call i64 @llvm.smin.i64(i64 {wanted}, i64 {early})")
    begin = s.new(f"mul i64 {line}, %gap")
    start = s.new(f"add i64 {begin}, {s.new(f'mul i64 {panel}, %panel_size')}")

    def element(i: str, sofar: list[str]) -> list[str]:
        k = s.new(f"sub i64 {s.new('sub i64 %length, 1')}, {i}") if plan.reverse else i
        at = s.new(f"add i64 {start}, {s.new(f'mul i64 {k}, %step')}")
        values = [_load(s, plan, name, at) for name in names[:-1]]
        after = _next(s, plan, sofar[0], values)
        _store(s, plan, sofar[0] if plan.exclusive else after, at)
        return [after]

    s.counted("k", 0, "%length", element, [_first(plan)], _work(plan))
    lines = [*THREADS, "declare i64 @llvm.smin.i64(i64, i64)", *_declared(plan)]
    return "\n".join([*lines, *s.lines, *next_task("task"), *METADATA]) + "\n"


def _work(plan: CumulativePlan) -> str:
    """The type of the loop-carried vector: sums and products of float32 are float64."""
    exact = plan.kind in ("max", "min") and plan.dtype == "float32"
    return f"<{plan.lanes} x {'float' if exact else 'double'}>"


def _stored(plan: CumulativePlan) -> str:
    return f"<{plan.lanes} x {VALUES[plan.dtype]}>"


def _first(plan: CumulativePlan) -> str:
    """The constant vector that a line begins with; IR writes infinities by their bits as double."""
    first, kind = _FIRST[plan.kind], _work(plan).split(" x ")[1].rstrip(">")
    infinite = "0x7FF0000000000000" if first > 0 else "0xFFF0000000000000"
    text = infinite if plan.kind in ("max", "min") else str(first)
    return f"<{', '.join([f'{kind} {text}'] * plan.lanes)}>"


def _extreme(plan: CumulativePlan) -> str:
    name = "maximum" if plan.kind == "max" else "minimum"
    return f"@llvm.{name}.v{plan.lanes}f{'32' if 'float' in _work(plan) else '64'}"


def _declared(plan: CumulativePlan) -> list[str]:
    kind = _work(plan)
    extreme = plan.kind in ("max", "min")
    return [f"declare {kind} {_extreme(plan)}({kind}, {kind})"] if extreme else []


def _next(s: Builder, plan: CumulativePlan, sofar: str, values: list[str]) -> str:
    kind, value = _work(plan), values[-1]
    if plan.kind == "line":
        product = s.new(f"fmul {kind} {values[0]}, {sofar}")
        return s.new(f"fadd {kind} {product}, {value}")
    if plan.kind in ("sum", "prod"):
        return s.new(f"{'fadd' if plan.kind == 'sum' else 'fmul'} {kind} {sofar}, {value}")
    return s.new(f"call {kind} {_extreme(plan)}({kind} {sofar}, {kind} {value})")


def _pointers(s: Builder, plan: CumulativePlan, name: str, at: str) -> list[str]:
    """The address of each lane; of contiguous columns only that of the first."""
    pointers = [s.new(f"getelementptr {VALUES[plan.dtype]}, ptr {name}, i64 {at}")]
    for _ in range(1, plan.lanes if plan.gathered else 1):
        pointers.append(s.new(f"getelementptr {VALUES[plan.dtype]}, ptr {pointers[-1]}, i64 %gap"))
    return pointers


def _load(s: Builder, plan: CumulativePlan, name: str, at: str) -> str:
    whole, one = _stored(plan), VALUES[plan.dtype]
    pointers = _pointers(s, plan, name, at)
    if plan.gathered:
        vector = "undef"
        for lane, pointer in enumerate(pointers):
            value = s.new(f"load {one}, ptr {pointer}, align 1")
            vector = s.new(f"insertelement {whole} {vector}, {one} {value}, i32 {lane}")
    else:
        vector = s.new(f"load {whole}, ptr {pointers[0]}, align 1")
    return vector if whole == _work(plan) else s.new(f"fpext {whole} {vector} to {_work(plan)}")


def _store(s: Builder, plan: CumulativePlan, value: str, at: str) -> None:
    whole, one = _stored(plan), VALUES[plan.dtype]
    if whole != _work(plan):
        value = s.new(f"fptrunc {_work(plan)} {value} to {whole}")
    pointers = _pointers(s, plan, "%y", at)
    if not plan.gathered:
        s.lines.append(f"store {whole} {value}, ptr {pointers[0]}, align 1")
        return
    for lane, pointer in enumerate(pointers):
        part = s.new(f"extractelement {whole} {value}, i32 {lane}")
        s.lines.append(f"store {one} {part}, ptr {pointer}, align 1")


KERNELS: tuple[Row, ...] = ((tuple(_KINDS), (CumulativeKernel(),)),)
