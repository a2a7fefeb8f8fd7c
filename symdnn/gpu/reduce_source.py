"""CUDA C of reductions: a scalar program's results, reduced without being stored.

A block works on several outputs at a time and gives each of them several threads, which meet in a
tree in shared memory. Few outputs of many elements are cut into chunks, whose partial results a
second kernel merges. The order of all additions depends on shapes alone: results are reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.gpu.cuda_source import library, scalar_function
from symdnn.gpu.source import CTYPES, text_of
from symdnn.ops.scalar import ScalarProgram

__all__ = ["Reducer", "Sweep", "reduction_source"]


@dataclass(frozen=True)
class Reducer:
    """A kind (a struct of ``reduce.cuh``), the dtype it works in, and that of the result."""

    kind: str
    work: str
    out: str


@dataclass(frozen=True)
class Sweep:
    """The structure of a reduction.

    ``kept`` and ``reduced`` count dimensions after merging. With ``rows`` neighbouring threads
    take neighbouring elements of one output, else the same element of neighbouring outputs.
    """

    inputs: tuple[str, ...]
    kept: int
    reduced: int
    rows: bool
    wide: bool


def reduction_source(program: ScalarProgram, reducers: Sequence[Reducer], sweep: Sweep) -> str:
    """Kernels ``reduce`` (into the outputs or into partial results) and ``combine``."""
    return "\n".join(
        [
            library(program) + text_of("reduce.cuh") + scalar_function(program, "scalar"),
            f"typedef {'u64' if sweep.wide else 'u32'} Count;",
            f"typedef {'i64' if sweep.wide else 'i32'} Offset;",
            f"#define ROWS {int(sweep.rows)}",
            *_state(reducers),
            *_parameters(reducers, sweep),
            *_finish(reducers),
            *_element(program, reducers, sweep),
            text_of("reduction.cu"),
        ]
    )


def _state(reducers: Sequence[Reducer]) -> list[str]:
    """The struct of all reductions, its parts working one after the other."""
    parts = range(len(reducers))
    fields = [f"  {r.kind}<{CTYPES[r.work]}> s{i};" for i, r in enumerate(reducers)]
    start = " ".join(f"s{i}.start();" for i in parts)
    merge = " ".join(f"s{i}.merge(other.s{i});" for i in parts)
    return [
        "struct State {",
        *fields,
        f"  __device__ void start() {{ {start} }}",
        f"  __device__ void merge(const State& other) {{ {merge} }}",
        "};",
    ]


def _parameters(reducers: Sequence[Reducer], sweep: Sweep) -> list[str]:
    fields = [f"const {CTYPES[d]}* x{i};" for i, d in enumerate(sweep.inputs)]
    fields += [f"{CTYPES[r.out]}* y{i};" for i, r in enumerate(reducers)]
    fields += ["State* partial;", "i64 outputs;", "i64 elements;", "i64 chunks;"]
    fields += [f"i64 k{d};" for d in range(1, sweep.kept)]
    fields += [f"i64 r{d};" for d in range(1, sweep.reduced)]
    for i in range(len(sweep.inputs)):
        fields += [f"i64 x{i}_k{d};" for d in range(sweep.kept)]
        fields += [f"i64 x{i}_r{d};" for d in range(sweep.reduced)]
    return ["struct Parameters {", *(f"  {f}" for f in fields), "};"]


def _finish(reducers: Sequence[Reducer]) -> list[str]:
    lines = [
        f"  p.y{i}[at] = convert<{CTYPES[r.out]}>(s.s{i}.result());" for i, r in enumerate(reducers)
    ]
    return ["INLINE void finish(const Parameters& p, const State& s, i64 at) {", *lines, "}"]


def _index(name: str, count: int, prefix: str) -> list[str]:
    """The indices ``<prefix>0``, ... of a linear number."""
    lines = [f"  Count left_{prefix} = {name};"] if count > 1 else []
    for d in reversed(range(1, count)):
        lines.append(f"  const Count {prefix}{d} = left_{prefix} % (Count)p.{prefix}{d};")
        lines.append(f"  left_{prefix} /= (Count)p.{prefix}{d};")
    return [*lines, f"  const Count {prefix}0 = {f'left_{prefix}' if count > 1 else name};"]


def _moved(i: int, prefix: str, count: int) -> str:
    terms = [f"(Offset){prefix}{d} * (Offset)p.x{i}_{prefix}{d}" for d in range(count)]
    return " + ".join(terms)


def _element(program: ScalarProgram, reducers: Sequence[Reducer], sweep: Sweep) -> list[str]:
    """``struct Base``: where an output's elements begin; ``take``: one of them, seen."""
    count = range(len(sweep.inputs))
    results = [f"  {CTYPES[d]} v{i};" for i, d in enumerate(program.output_dtypes)]
    given = [f"p.x{i}[b.x{i} + {_moved(i, 'r', sweep.reduced)}]" for i in count]
    given += [f"v{i}" for i in range(len(program.outputs))]
    return [
        f"struct Base {{ {' '.join(f'Offset x{i};' for i in count)} }};",
        "INLINE Base base_of(const Parameters& p, Count output) {",
        *_index("output", sweep.kept, "k"),
        f"  return {{{', '.join(_moved(i, 'k', sweep.kept) for i in count)}}};",
        "}",
        "INLINE void take(const Parameters& p, const Base& b, Count element, State& s) {",
        *_index("element", sweep.reduced, "r"),
        *results,
        f"  scalar({', '.join(given)});",
        *(f"  s.s{i}.take(v{i}, (i64)element);" for i in range(len(reducers))),
        "}",
    ]
