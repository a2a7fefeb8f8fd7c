"""Values that are added to parts of zeros: one kernel, which writes each element once.

A few neighbouring lanes have a piece of a row of the result. Which parts it meets along the other
axes, and where in their operands, is found once for the piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from symdnn.gpu.codegen.cuda_source import constant_text, library, print_problem, scalar_function
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, Views, blocks_for
from symdnn.graph.kernel import Call, Row
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.lowered.gathered import FusedPlacedSums, PlacedSums

__all__ = ["KERNELS", "PlacedKernel"]

_THREADS, _MAX_BLOCKS = 256, 1 << 20
#: Lanes of a long row's piece, and the elements of each of them.
_LANES, _EACH = 32, 4

_Sums = PlacedSums | FusedPlacedSums


@dataclass
class _Axis:
    """An axis of the result: its size and stride in elements.

    ``places`` are where each part begins, how many elements it has, and every how many-th;
    ``steps`` the strides of its operands.
    """

    size: int
    step: int
    places: list[tuple[int, int, int]]
    steps: list[list[int]]

    def is_whole(self) -> bool:
        """Whether all parts have all of it."""
        return all(place == (0, self.size, 1) for place in self.places)

    def joins(self, inner: _Axis) -> bool:
        """Whether it and the next one are one axis."""
        pairs = [
            (a, b) for own, other in zip(self.steps, inner.steps) for a, b in zip(own, other)
        ]  # fmt: skip
        dense = all(a == inner.size * b for a, b in [(self.step, inner.step), *pairs])
        return dense and inner.is_whole() and all(step == 1 for _, _, step in self.places)

    def joined(self, inner: _Axis) -> _Axis:
        """Both as one."""
        n = inner.size
        places = [(at * n, count * n, 1) for at, count, _ in self.places]
        return _Axis(self.size * n, inner.step, places, inner.steps)


@dataclass(frozen=True)
class _Form:
    """The structure of a kernel.

    For each part ``parts`` have its program and for each axis every how many-th element it has, or
    0 where it is whole. ``wide`` counts in 64 bits. ``each`` elements of a row belong to a lane.
    """

    dtype: str
    parts: tuple[tuple[ScalarProgram, tuple[int, ...]], ...]
    ndim: int
    lanes: int
    each: int
    wide: bool


class PlacedKernel(CudaKernel[_Sums]):
    """``PlacedSums`` and ``FusedPlacedSums``: each element finds the parts that it is in."""

    name = "cuda.placed"
    dtypes = frozenset(CTYPES)
    writes_any_layout = True

    def refuses(self, call: Call[_Sums]) -> str | None:
        """Programs that cannot be printed as CUDA C."""
        problems = map(print_problem, _programs(call))
        return super().refuses(call) or next(filter(None, problems), None)

    def launches(
        self, call: Call[_Sums], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        (out,), op = outputs, call.op
        if out.size == 0:
            return []
        if isinstance(op, FusedPlacedSums):
            sums, operands = op.sums(), op.apart(inputs)[:-1]
        else:
            sums, operands = op, [[y] for y in inputs[: len(op.parts)]]
        found = [
            (program, *placed)
            for program, place, own in zip(_programs(call), sums.places(), operands, strict=True)
            if (placed := _placed(place, own, out.shape)) is not None
        ]
        return [_launch(out, found)]


def _programs(call: Call[_Sums]) -> Sequence[ScalarProgram]:
    op = call.op
    return op.programs if isinstance(op, FusedPlacedSums) else op.programs(call.outputs[0].dtype)


_Places = list[tuple[int, int, int]]


def _placed(
    place: Sequence[slice], operands: Views, shape: Sequence[int]
) -> tuple[_Places, list[View]] | None:
    """Where a part begins along each axis, its size and step, upwards; None if it is empty."""
    places, turns = _Places(), list[slice]()
    for part, n in zip(place, shape):
        numbers = range(n)[part]
        down = numbers.step < 0
        numbers = numbers[::-1] if down else numbers
        places.append((numbers.start, len(numbers), numbers.step if len(numbers) > 1 else 1))
        turns.append(slice(None, None, -1 if down else None))
    counts = [count for _, count, _ in places]
    if 0 in counts:
        return None
    return places, [v.broadcast_to(counts)[tuple(turns)] for v in operands]


def _launch(out: View, found: Sequence[tuple[ScalarProgram, _Places, list[View]]]) -> KernelLaunch:
    axes = list[_Axis]()
    for d in sorted(range(len(out.shape)), key=lambda d: -abs(out.steps[d])):
        places = [part[d] for _, part, _ in found]
        steps = [[v.steps[d] for v in views] for _, _, views in found]
        axis = _Axis(out.shape[d], out.steps[d], places, steps)
        if axis.size == 1:
            continue
        if axes and axes[-1].joins(axis):
            axes[-1] = axes[-1].joined(axis)
        else:
            axes.append(axis)
    if not axes:
        axes = [_Axis(1, 1, [(0, 1, 1) for _ in found], [[0 for _ in v] for _, _, v in found])]
    row = axes[-1].size
    lanes = min(_LANES, 1 << (row - 1).bit_length())
    each = min(_EACH, -(-row // lanes))
    chunks = -(-row // (lanes * each))
    tasks = out.size // row * chunks
    reach = [sum(a.size * abs(a.step) for a in axes), tasks * lanes * each]
    reach += [
        sum(a.size * abs(a.steps[k][j]) for a in axes)
        for k, (_, _, views) in enumerate(found) for j in range(len(views))
    ]  # fmt: skip
    parts = tuple(
        (program, tuple(0 if a.places[k] == (0, a.size, 1) else a.places[k][2] for a in axes))
        for k, (program, _, _) in enumerate(found)
    )
    wide = max(reach) >= 2**31 - 2**24
    source = _source(_Form(out.dtype, parts, len(axes), lanes, each, wide))
    parameters: list[Any] = [out.pointer, tasks, chunks]
    parameters += [a.size for a in axes] + [a.step for a in axes]
    for k, (_, _, views) in enumerate(found):
        parameters += [a.places[k][0] for a in axes] + [a.places[k][1] for a in axes]
        for j, view in enumerate(views):
            parameters += [view.pointer, *(a.steps[k][j] for a in axes)]
    grid = (blocks_for(tasks * lanes, _THREADS, _MAX_BLOCKS),)
    return KernelLaunch(source, "placed", grid, (_THREADS,), tuple(parameters))


@cache
def _source(form: _Form) -> str:
    """The kernel ``placed``."""
    add = meaning(Add(), (form.dtype, form.dtype))
    assert add is not None
    programs = list(dict.fromkeys(program for program, _ in form.parts))
    functions = [scalar_function(p, f"program{n}") for n, p in enumerate(programs)]
    count, offset = ("u64", "i64") if form.wide else ("u32", "i32")
    last = form.ndim - 1
    lines = [
        f"typedef {count} Count;",
        f"typedef {offset} Offset;",
        f"typedef {CTYPES[form.dtype]} Number;",
        "struct Parameters {",
        *_fields(form),
        "};",
        'extern "C" __global__ void __launch_bounds__(256)',
        "placed(const __grid_constant__ Parameters p) {",
        f"  const Offset lane = (Offset)(global_thread() % {form.lanes});",
        f"  const Count step = (Count)(thread_count() / {form.lanes});",
        f"  Count task = (Count)(global_thread() / {form.lanes});",
        "  for (; task < (Count)p.tasks; task += step) {",
        *(f"    {line}" for line in _of_piece(form)),
        "#pragma unroll",
        f"    for (int e = 0; e < {form.each}; e++) {{",
        f"      const Offset i{last} = first + e * {form.lanes};",
        f"      if (i{last} < (Offset)p.size[{last}]) {{",
        f"        Number sum = {constant_text('0', form.dtype)};",
        *(f"        {line}" for line in _of_element(form, programs)),
        f"        p.y[at_y + i{last} * (Offset)p.y_step[{last}]] = sum;",
        "      }",
        "    }",
        "  }",
        "}",
    ]
    return library(add, *programs) + scalar_function(add, "add") + "".join(functions) + (
        "\n".join(lines) + "\n"
    )  # fmt: skip


def _fields(form: _Form) -> list[str]:
    n = form.ndim
    fields = ["  Number* y;", f"  i64 tasks, chunks, size[{n}], y_step[{n}];"]
    for k, (program, _) in enumerate(form.parts):
        fields.append(f"  i64 begin{k}[{n}], count{k}[{n}];")
        for j, dtype in enumerate(program.inputs):
            fields += [f"  const {CTYPES[dtype]}* x{k}_{j};", f"  i64 x{k}_{j}_step[{n}];"]
    return fields


def _place(k: int, d: int, step: int) -> list[str]:
    """The index ``j`` in a part along an axis, and whether the part ``has`` it."""
    if step == 0:
        return [f"const Offset j = i{d};"]
    lines = [f"Offset j = i{d} - (Offset)p.begin{k}[{d}];"]
    lines += [f"has = has && j % {step} == 0;", f"j /= {step};"] if step > 1 else []
    return [*lines, f"has = has && j >= 0 && j < (Offset)p.count{k}[{d}];"]


def _of_piece(form: _Form) -> list[str]:
    """What all elements of a piece of a row have in common."""
    outer = range(form.ndim - 1)
    span = form.lanes * form.each
    lines = [
        "Count rest = task / (Count)p.chunks;",
        f"const Offset first = (Offset)(task - rest * (Count)p.chunks) * {span} + lane;",
    ]
    for d in reversed(outer):
        if d:
            lines.append(f"const Offset i{d} = (Offset)(rest % (Count)p.size[{d}]);")
            lines.append(f"rest /= (Count)p.size[{d}];")
        else:
            lines.append("const Offset i0 = (Offset)rest;")
    at = " + ".join(f"i{d} * (Offset)p.y_step[{d}]" for d in outer)
    lines.append(f"const Offset at_y = {at or '0'};")
    for k, (program, steps) in enumerate(form.parts):
        names = [f"{k}_{j}" for j in range(len(program.inputs))]
        lines.append(f"bool has{k} = true;")
        lines += [f"Offset at{n} = 0;" for n in names]
        for d in outer:
            moves = [f"at{n} += j * (Offset)p.x{n}_step[{d}];" for n in names]
            inside = [f"bool& has = has{k};"] if steps[d] else []
            lines.append(" ".join(["{", *inside, *_place(k, d, steps[d]), *moves, "}"]))
    return lines


def _of_element(form: _Form, programs: Sequence[ScalarProgram]) -> list[str]:
    """Add what each part has for an element."""
    last = form.ndim - 1
    lines = list[str]()
    for k, (program, steps) in enumerate(form.parts):
        names = [f"{k}_{j}" for j in range(len(program.inputs))]
        given = [f"p.x{n}[at{n} + j * (Offset)p.x{n}_step[{last}]]" for n in names]
        lines += [
            "{",
            f"  bool has = has{k};",
            *(f"  {line}" for line in _place(k, last, steps[last])),
            "  if (has) {",
            "    Number value;",
            f"    program{programs.index(program)}({', '.join([*given, 'value'])});",
            "    add(sum, value, sum);",
            "  }",
            "}",
        ]
    return lines


KERNELS: tuple[Row, ...] = (((PlacedSums, FusedPlacedSums), (PlacedKernel(),)),)
