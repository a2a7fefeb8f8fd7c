"""Horizontal fusion: one launch of the same scalar program over many arrays of any sizes.

An optimiser does the same small computation for each parameter of a model. A hundred separate
launches take longer to start than to run. Here the kernel's parameters have a table of addresses,
and each block finds its array in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from symdnn.gpu.codegen.cuda_source import library, scalar_function
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.launches import ERROR_WORD, KernelLaunch, Pointer
from symdnn.gpu.device.array import RawArray
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram

_THREADS = 256
#: Elements of one array per block.
CHUNK_ELEMENTS = _THREADS * 16
#: The limit of a kernel's parameters before CUDA 12.1, which is enough for a table.
MAX_PARAMETER_BYTES = 4096


@dataclass(frozen=True)
class Form:
    """The common structure of the arrays of one launch.

    ``numbers`` says which inputs have one element that is used for all elements of the outputs.
    """

    program: ScalarProgram
    numbers: tuple[bool, ...]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of inputs, then outputs."""
        return (*self.program.inputs, *self.program.output_dtypes)

    @property
    def max_arrays(self) -> int:
        """The most items of one launch."""
        return (MAX_PARAMETER_BYTES - 16) // (8 * (len(self.dtypes) + 2))


#: Operands of one member: inputs, then outputs, all contiguous.
Item = Sequence[RawArray]


def form_of(program: ScalarProgram, inputs: Sequence[Any], outputs: Sequence[Any]) -> Form | None:
    """The form of a member by its operands' shapes; None if it can't be in a batch.

    Operands need ``shape`` and ``contiguous``. Each input has the shape of the outputs, or one
    element.
    """
    shape = outputs[0].shape
    ones = []
    for x in inputs:
        one = all(n == 1 for n in x.shape)
        if not one and (x.shape != shape or not x.contiguous):
            return None
        ones.append(one and x.shape != shape)
    if 0 in shape or not all(y.contiguous for y in outputs):
        return None
    return Form(program, tuple(ones))


def batched(form: Form, items: Sequence[Item], error_word: bool = True) -> list[KernelLaunch]:
    """Launches over all ``items``. With ``error_word`` they write nothing once that is set."""
    width = _width(form, items)
    source = batched_source(form, width)
    found = []
    for start in range(0, len(items), form.max_arrays):
        part = items[start : start + form.max_arrays]
        entries: list[Any] = []
        blocks = 0
        for item in part:
            size = item[-1].size
            entries += [a.ptr for a in item] + [size, blocks]
            blocks += -(-size // CHUNK_ELEMENTS)
        padding = [0] * ((form.max_arrays - len(part)) * (len(form.dtypes) + 2))
        guard = Pointer(ERROR_WORD) if error_word else 0
        parameters = (guard, len(part), *entries, *padding)
        found.append(KernelLaunch(source, "batched", (blocks,), (_THREADS,), parameters))
    return found


def _width(form: Form, items: Sequence[Item]) -> int:
    """Elements of a vector: up to 16 bytes of the widest dtype, as alignments allow."""
    ones = (*form.numbers, *[False] * len(form.program.outputs))
    sizes = [numpy_dtype(d).itemsize for d, one in zip(form.dtypes, ones) if not one]
    width = max(1, 16 // max(sizes))
    pairs = [(a, one) for item in items for a, one in zip(item, ones)]
    while width > 1 and any(not one and a.ptr % (a.itemsize * width) for a, one in pairs):
        width //= 2
    return width


def find_entry() -> list[str]:
    """Lines that find the entry ``e`` of a block among the sorted ``p.entries``."""
    return [
        "  const i64 block = (i64)blockIdx.x;",
        "  int low = 0, high = (int)p.count - 1;",
        "  while (low < high) {",
        "    const int middle = (low + high + 1) / 2;",
        "    if (p.entries[middle].first <= block) low = middle; else high = middle - 1;",
        "  }",
        "  const Entry& e = p.entries[low];",
    ]


@cache
def batched_source(form: Form, width: int) -> str:
    """A kernel ``batched`` with vectors of ``width`` elements, and a scalar loop for the rest."""
    count = len(form.program.inputs)
    types = [CTYPES[d] for d in form.dtypes]
    names = [f"x{i}" for i in range(count)] + [f"y{i}" for i in range(len(types) - count)]
    fields = [f"{'const ' if n[0] == 'x' else ''}{t}* {n};" for n, t in zip(names, types)]
    ones = [n for n, one in zip(names, form.numbers) if one]
    dense = [(n, t) for n, t in zip(names, types) if n not in ones]
    vector = [
        f"const Vec<{t}, {width}> {n} = load<{width}>(e.{n} + j);" if n[0] == "x"
        else f"Vec<{t}, {width}> {n};"
        for n, t in dense
    ]  # fmt: skip
    of_vector = ", ".join(n if n in ones else f"{n}.v[k]" for n in names)
    of_one = ", ".join(n if n in ones else f"e.{n}[j]" for n in names)
    lines = [
        "struct Entry {", *(f"  {f}" for f in fields), "  i64 size;", "  i64 first;", "};",
        f"struct Parameters {{ const i32* guard; i64 count; Entry entries[{form.max_arrays}]; }};",
        f'extern "C" __global__ void __launch_bounds__({_THREADS})',
        "batched(const __grid_constant__ Parameters p) {",
        "  if (p.guard != 0 && *p.guard != 0) return;",
        *find_entry(),
        f"  const i64 start = (block - e.first) * {CHUNK_ELEMENTS};",
        f"  const i64 rest = e.size - start, own = rest < {CHUNK_ELEMENTS} ? "
        f"rest : {CHUNK_ELEMENTS};",
        f"  const i64 whole = own - own % {width};",
        *(f"  const {t} {n} = e.{n}[0];" for n, t in zip(names, types) if n in ones),
        f"  for (i64 i = (i64)threadIdx.x * {width}; i < whole; i += {_THREADS * width}) {{",
        "    const i64 j = start + i;",
        *(f"    {line}" for line in vector),
        "#pragma unroll",
        f"    for (int k = 0; k < {width}; k++) scalar({of_vector});",
        *(f"    store(e.{n} + j, {n});" for n in names[count:]),
        "  }",
        "  if (whole + (i64)threadIdx.x < own) {",
        "    const i64 j = start + whole + (i64)threadIdx.x;",
        f"    scalar({of_one});",
        "  }",
        "}",
    ]  # fmt: skip
    return library(form.program) + scalar_function(form.program, "scalar") + "\n".join(lines) + "\n"
