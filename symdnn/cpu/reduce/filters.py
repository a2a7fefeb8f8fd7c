"""Recursive filters along an axis: compiled loops, a task for each line, history in registers."""

from __future__ import annotations

from math import prod

from symdnn.cpu.ir.builder import Builder
from symdnn.cpu.ir.loops_ir import data_of, word
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array
from symdnn.ops.array.filters import LinearFilter

#: Elements below which SciPy is as fast as compiling; and for a thread more.
_MIN_ELEMENTS_TO_COMPILE, _ELEMENTS_PER_THREAD = 1 << 12, 1 << 14
#: The most coefficients that stay in registers.
_MAX_COEFFICIENTS = 12


def filter_ir(forward: int, backward: int, dtype: str) -> str:
    """Words: threads, lines, 1, distance of neighbours in memory, length, step along the line,
    its first element, x, b, a, y. There are ``forward`` numbers in b and ``backward`` in a.
    """
    s, kind = Builder(), VALUES[dtype]
    names = ("%apart", "%length", "%step", "%first")
    operands = [line for i, v in enumerate("xbay", 7) for line in data_of(f"%{v}", i)]
    s.tasks([line for i, v in enumerate(names, 3) for line in word(v, i)] + operands, "task")

    def at(array: str, place: str) -> str:
        return s.new(f"getelementptr {kind}, ptr {array}, i64 {place}")

    def number(array: str, place: str) -> str:
        found = s.new(f"load {kind}, ptr {at(array, place)}, align 1")
        return found if dtype == "float64" else s.new(f"fpext {kind} {found} to double")

    b, a = ([number(v, str(i)) for i in range(n)] for v, n in (("%b", forward), ("%a", backward)))
    line, inner = s.new("udiv i64 %r, %apart"), s.new("urem i64 %r, %apart")
    lines = s.new(f"mul i64 {s.new(f'mul i64 {line}, %length')}, %apart")
    start = s.new(f"add i64 {s.new(f'add i64 {lines}, {inner}')}, %first")

    def element(k: str, before: list[str]) -> list[str]:
        place = s.new(f"add i64 {start}, {s.new(f'mul i64 {k}, %step')}")
        xs, ys = [number("%x", place), *before[: forward - 1]], before[forward - 1 :]
        terms = [("fadd", *pair) for pair in zip(b, xs)]
        # The newest result comes last: the next one waits for one product and one sum alone.
        terms += reversed([("fsub", *pair) for pair in zip(a, ys)])
        total = "-0.0"
        for sign, factor, v in terms:
            part = s.new(f"fmul contract double {factor}, {v}")
            total = s.new(f"{sign} contract double {total}, {part}")
        out = total if dtype == "float64" else s.new(f"fptrunc double {total} to {kind}")
        s.put(f"store {kind} {out}, ptr {at('%y', place)}, align 1")
        return [*xs[: forward - 1], *[total, *ys][:backward]]

    s.counted("k", 0, "%length", element, ["0.0"] * (forward - 1 + backward), "double")
    return s.task_module()


class LinearFilterKernel(Kernel[LinearFilter]):
    """Filters of few coefficients."""

    name = "llvm.linear_filter"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[LinearFilter]) -> str | None:
        """Other dtypes, many coefficients, and few elements."""
        x, *coefficients = call.inputs
        if x.dtype not in ("float32", "float64"):
            return f"there is no code for {x.dtype}"
        sizes = [v.shape[0] for v in coefficients]
        if sum(n or 0 for n in sizes) > _MAX_COEFFICIENTS:
            return f"it takes {_MAX_COEFFICIENTS} coefficients"
        if sizes[0] == 0:
            return "there is no coefficient of x"
        return compile_refusal([x], lambda: prod(x.shape), _MIN_ELEMENTS_TO_COMPILE)

    def bind(self, call: Call[LinearFilter]) -> Launch[Array]:
        """A launch of contiguous operands."""
        op, (x, b, a) = call.op, call.inputs
        length, apart = x.shape[op.axis], prod(x.shape[op.axis + 1 :])
        lines = prod(x.shape) // length
        step, first = (-apart, (length - 1) * apart) if op.reverse else (apart, 0)
        count = min(threads.threads(prod(x.shape), _ELEMENTS_PER_THREAD), lines)
        run = threads.kernel(filter_ir, b.shape[0], a.shape[0], x.dtype)
        return ContiguousLaunch(run, [count, lines, 1, apart, length, step, first], reads=3)


KERNELS: tuple[Row, ...] = (((LinearFilter,), (LinearFilterKernel(),)),)
