"""CUDA C of values that are added to parts of zeros: each element is written once.

A few neighbouring lanes have a piece of a row of the result. Which parts it meets along the other
axes, and where in their operands, is found once for the piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from symdnn.gpu.codegen.cuda_source import constant_text, library, scalar_function
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.elementwise.scalar_meaning import meaning

__all__ = ["THREADS", "Placed", "placed_source"]

THREADS = 256


@dataclass(frozen=True)
class Placed:
    """The structure of a kernel.

    For each part ``parts`` have its program and for each axis every how many-th element it has, or
    0 where it is whole. ``wide`` counts in 64 bits. ``each`` elements of a row belong to a lane.
    ``totals`` are the number of a part, a program whose results are added up over all of that, and
    the dtype in which a thread does so. Each block has a float64 of each of them.
    """

    dtype: str
    parts: tuple[tuple[ScalarProgram, tuple[int, ...]], ...]
    ndim: int
    lanes: int
    each: int
    wide: bool
    totals: tuple[tuple[int, ScalarProgram, str], ...] = ()


@cache
def placed_source(form: Placed) -> str:
    """The kernel ``placed``."""
    add = meaning(Add(), (form.dtype, form.dtype))
    assert add is not None
    programs = list(dict.fromkeys(program for program, _ in form.parts))
    functions = [scalar_function(p, f"program{n}") for n, p in enumerate(programs)]
    folds = [program for _, program, _ in form.totals]
    functions += [scalar_function(p, f"fold{m}") for m, p in enumerate(folds)]
    count, offset = ("u64", "i64") if form.wide else ("u32", "i32")
    last = form.ndim - 1
    lines = [
        f"typedef {count} Count;",
        f"typedef {offset} Offset;",
        f"typedef {CTYPES[form.dtype]} Number;",
        "struct Parameters {",
        *_fields(form),
        "};",
        f'extern "C" __global__ void __launch_bounds__({THREADS})',
        "placed(const __grid_constant__ Parameters p) {",
        f"  const Offset lane = (Offset)(global_thread() % {form.lanes});",
        f"  const Count step = (Count)(thread_count() / {form.lanes});",
        f"  Count task = (Count)(global_thread() / {form.lanes});",
        *(f"  {CTYPES[work]} total{m} = 0;" for m, (_, _, work) in enumerate(form.totals)),
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
        *(line for m in range(len(form.totals)) for line in _block_total(m)),
        "}",
    ]
    return library(add, *programs, *folds) + scalar_function(add, "add") + "".join(functions) + (
        "\n".join(lines) + "\n"
    )  # fmt: skip


def _fields(form: Placed) -> list[str]:
    n = form.ndim
    fields = ["  Number* y;", f"  i64 tasks, chunks, size[{n}], y_step[{n}];"]
    for k, (program, _) in enumerate(form.parts):
        fields.append(f"  i64 begin{k}[{n}], count{k}[{n}];")
        for j, dtype in enumerate(program.inputs):
            fields += [f"  const {CTYPES[dtype]}* x{k}_{j};", f"  i64 x{k}_{j}_step[{n}];"]
    return [*fields, *["  double* totals;"] * bool(form.totals)]


def _block_total(m: int) -> list[str]:
    """Store the sum of a block's threads, in one order."""
    return [
        "  {",
        f"    double own = (double)total{m};",
        "#pragma unroll",
        "    for (i32 half = 16; half > 0; half /= 2)",
        "      own += __shfl_xor_sync(0xffffffffu, own, half);",
        f"    __shared__ double warps[{THREADS // 32}];",
        "    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;",
        "    __syncthreads();",
        "    if (threadIdx.x == 0) {",
        f"      for (i32 i = 1; i < {THREADS // 32}; i++) own += warps[i];",
        f"      p.totals[{m} * (i64)gridDim.x + blockIdx.x] = own;",
        "    }",
        "    __syncthreads();",
        "  }",
    ]


def _place(k: int, d: int, step: int) -> list[str]:
    """The index ``j`` in a part along an axis, and whether the part ``has`` it."""
    if step == 0:
        return [f"const Offset j = i{d};"]
    lines = [f"Offset j = i{d} - (Offset)p.begin{k}[{d}];"]
    lines += [f"has = has && j % {step} == 0;", f"j /= {step};"] if step > 1 else []
    return [*lines, f"has = has && j >= 0 && j < (Offset)p.count{k}[{d}];"]


def _of_piece(form: Placed) -> list[str]:
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


def _of_element(form: Placed, programs: Sequence[ScalarProgram]) -> list[str]:
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
            *(line for m in range(len(form.totals)) for line in _added(form, m, k, given)),
            "  }",
            "}",
        ]
    return lines


def _added(form: Placed, m: int, k: int, given: Sequence[str]) -> list[str]:
    """Add what a total has of an element of part ``k``."""
    part, program, work = form.totals[m]
    if part != k:
        return []
    (dtype,) = program.output_dtypes
    return [
        f"    {CTYPES[dtype]} one{m};",
        f"    fold{m}({', '.join([*given, f'one{m}'])});",
        f"    total{m} += convert<{CTYPES[work]}>(one{m});",
    ]
