"""The sum of all elements of many arrays: a launch for each program, and one that adds up.

The norm of all gradients of a network reads a hundred arrays, most of them small. Blocks find their
array in a table, as in :mod:`symdnn.gpu.codegen.batch`. Their results are added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

from symdnn.gpu.codegen.batch import MAX_PARAMETER_BYTES, find_entry
from symdnn.gpu.codegen.cuda_source import library, print_problem, scalar_function
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, Views, scratch
from symdnn.gpu.device.array import RawArray
from symdnn.graph.kernel import Call, Row
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.lowered.totals import Totals

__all__ = ["KERNELS", "TotalsKernel"]

_THREADS, _MERGING_THREADS = 256, 1024
#: Elements of one array per block.
CHUNK_ELEMENTS = _THREADS * 64
_MAX_ARRAYS = (MAX_PARAMETER_BYTES - 16) // 24


class TotalsKernel(CudaKernel[Totals]):
    """Partial sums of blocks in the workspace, as float64."""

    name = "cuda.totals"
    dtypes = frozenset(CTYPES)

    def refuses(self, call: Call[Totals]) -> str | None:
        """Programs that cannot be printed as CUDA C."""
        found = (print_problem(p) for p in call.op.programs)
        return super().refuses(call) or next((f for f in found if f), None)

    def accepts(self, index: int, array: RawArray) -> bool:
        """Whether the elements fill their memory, in any order."""
        return _is_dense(array.shape, array.strides, array.itemsize)

    def workspace_bytes(self, call: Call[Totals]) -> int:
        """A number for each block."""
        return 8 * sum(_blocks(prod(t.shape)) for t in call.inputs)

    def launches(
        self, call: Call[Totals], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """The tables, then the sum over all blocks."""
        groups: dict[tuple[ScalarProgram, int], list[View]] = {}
        for program, x in zip(call.op.programs, inputs, strict=True):
            if x.size:
                groups.setdefault((program, _width(x)), []).append(x)
        found: list[KernelLaunch] = []
        done = 0
        for (program, width), views in groups.items():
            source = _source(program, width)
            for start in range(0, len(views), _MAX_ARRAYS):
                part = views[start : start + _MAX_ARRAYS]
                entries: list[Any] = []
                blocks = 0
                for x in part:
                    entries += [x.pointer, x.size, blocks]
                    blocks += _blocks(x.size)
                room = scratch(8 * done, "float64", (blocks,))
                padding = [0] * (3 * (_MAX_ARRAYS - len(part)))
                given = (room.pointer, len(part), *entries, *padding)
                found.append(KernelLaunch(source, "totals", (blocks,), (_THREADS,), given))
                done += blocks
        return [*found, merge(done, outputs)]


def merge(blocks: int, outputs: Views) -> KernelLaunch:
    """The launch that adds up the sums of all blocks, float64 at the start of the workspace.

    They are followed by those of the next result, of the same dtype.
    """
    room = scratch(0, "float64", (blocks * len(outputs),))
    given = (room.pointer, blocks, *(y.pointer for y in outputs))
    source = _merging_source(outputs[0].dtype, len(outputs))
    return KernelLaunch(source, "merge", (len(outputs),), (_MERGING_THREADS,), given)


def _blocks(size: int) -> int:
    return -(-size // CHUNK_ELEMENTS)


def _is_dense(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    step = itemsize
    for stride, n in sorted((s, n) for s, n in zip(strides, shape) if n != 1):
        if stride != step:
            return 0 in shape
        step *= n
    return True


def _width(x: View) -> int:
    """Elements of a vector of up to 16 bytes."""
    width = max(1, 16 // x.itemsize)
    while width > 1 and not x.aligned_to(width * x.itemsize):
        width //= 2
    return width


@cache
def _source(program: ScalarProgram, width: int) -> str:
    """A kernel ``totals``: each block adds a part of one array, in double precision at its end."""
    x, y = CTYPES[program.inputs[0]], CTYPES[program.output_dtypes[0]]
    lines = [
        f"struct Entry {{ const {x}* x; i64 size; i64 first; }};",
        f"struct Parameters {{ double* sums; i64 count; Entry entries[{_MAX_ARRAYS}]; }};",
        f'extern "C" __global__ void __launch_bounds__({_THREADS})',
        "totals(const __grid_constant__ Parameters p) {",
        *find_entry(),
        f"  const i64 start = (block - e.first) * {CHUNK_ELEMENTS};",
        f"  const i64 rest = e.size - start, own = rest < {CHUNK_ELEMENTS} ? "
        f"rest : {CHUNK_ELEMENTS};",
        f"  const i64 whole = own - own % {width};",
        f"  {y} total = 0, one;",
        f"  for (i64 i = (i64)threadIdx.x * {width}; i < whole; i += {_THREADS * width}) {{",
        f"    const Vec<{x}, {width}> v = load<{width}>(e.x + start + i);",
        "#pragma unroll",
        f"    for (int k = 0; k < {width}; k++) {{ scalar(v.v[k], one); total += one; }}",
        "  }",
        "  if (whole + (i64)threadIdx.x < own) {",
        "    scalar(e.x[start + whole + (i64)threadIdx.x], one);",
        "    total += one;",
        "  }",
        *_block_sum(_THREADS, "total"),
        "  if (threadIdx.x == 0) p.sums[block] = part[0];",
        "}",
    ]
    return library(program) + scalar_function(program, "scalar") + "\n".join(lines) + "\n"


@cache
def _merging_source(dtype: str, results: int) -> str:
    """A kernel ``merge`` of a block for each result: the sum of all blocks' sums."""
    y = CTYPES[dtype]
    lines = [
        f"struct Parameters {{ const double* sums; i64 count; {y}* y[{results}]; }};",
        f'extern "C" __global__ void __launch_bounds__({_MERGING_THREADS})',
        "merge(const __grid_constant__ Parameters p) {",
        "  double total = 0;",
        f"  for (i64 i = threadIdx.x; i < p.count; i += {_MERGING_THREADS})",
        "    total += p.sums[blockIdx.x * p.count + i];",
        *_block_sum(_MERGING_THREADS, "total"),
        f"  if (threadIdx.x == 0) *p.y[blockIdx.x] = ({y})part[0];",
        "}",
    ]
    return library() + "\n".join(lines) + "\n"


def _block_sum(threads: int, value: str) -> list[str]:
    """Lines that leave the sum of a block's values in ``part[0]``, in one order."""
    return [
        f"  __shared__ double part[{threads}];",
        f"  part[threadIdx.x] = (double){value};",
        "  __syncthreads();",
        f"  for (int half = {threads // 2}; half > 0; half /= 2) {{",
        "    if ((int)threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];",
        "    __syncthreads();",
        "  }",
    ]


KERNELS: tuple[Row, ...] = (((Totals,), (TotalsKernel(),)),)
