"""CUDA C of stencils: a block computes a tile of the results, and what that needs of each stage.

Values that later stages read are in shared memory, with as many neighbours of the tile as those
need: these are computed by several blocks. Inputs are read where they are; places outside of what
was padded are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

from symdnn.gpu.codegen.cuda_source import constant_text, library, scalar_function
from symdnn.gpu.codegen.device_source import CTYPES, text_of
from symdnn.graph.type import numpy_dtype
from symdnn.ops.lowered.stencil import FusedStencil, Need, Shifted, StencilStage, needs_of

__all__ = ["THREADS", "Tiles", "covered", "stencil_source", "tile_of"]

THREADS = 256
#: Shared memory of a block, so that several run beside each other, and elements of a tile.
_SHARED_BYTES, _LEAST_ELEMENTS, _MOST_ELEMENTS = 40 << 10, 512, 4096
#: Blocks that keep a card busy, and the bytes that a read moves.
_FEW_BLOCKS, _SECTOR_BYTES = 528, 32


def _kept(op: FusedStencil) -> list[int]:
    """The values that later stages read."""
    return sorted({r.array for s in op.stages for r in s.reads if r.array >= op.count})


def covered(op: FusedStencil) -> tuple[int, ...]:
    """The sizes that tiles cover: those of the largest result along each axis."""
    shapes = [op.stages[op.values[r.value - op.count][0]].shape for r in op.stored]
    return tuple(map(max, zip(*shapes, strict=True)))


@cache
def tile_of(op: FusedStencil) -> tuple[int, ...] | None:
    """The tile with the least work; None if the stages of none fit into shared memory."""
    needs, whole = needs_of(op), covered(op)
    assert needs is not None
    costs = [s.program.cost / 8 + 2 * len(s.reads) + 1 for s in op.stages]
    kept = [(op.values[v - op.count][0], numpy_dtype(op.dtype_of(v)).itemsize) for v in _kept(op)]
    best, found = float("inf"), None
    for tile in _tiles(whole, needs):
        sizes = [need.sizes(tile) for need in needs]
        if sum(prod(sizes[k]) * nbytes for k, nbytes in kept) > _SHARED_BYTES:
            continue
        blocks = prod(-(-n // t) for n, t in zip(whole, tile, strict=True))
        rows = _SECTOR_BYTES // 4  # a row reads one more sector than it has
        work = sum(
            c * -(-prod(n) // THREADS) * THREADS * (1 + rows / (2 * n[-1]))
            for c, n in zip(costs, sizes, strict=True)
        )
        time = work * max(blocks, _FEW_BLOCKS)
        if time < best:
            best, found = time, tile
    return found


def _tiles(whole: Sequence[int], needs: Sequence[Need]) -> Iterator[tuple[int, ...]]:
    """Tiles to choose from: axes along which no neighbours are needed fill up small ones."""
    last = len(whole) - 1
    steps = [
        sorted({min(n, 1 << k) for k in range(9)})
        if d == last or any(need.reach[d] != (0, 0) for need in needs) or prod(whole[d + 1 :]) < 256
        else sorted({min(n, k) for k in (1, 4, 16)})
        for d, n in enumerate(whole)
    ]
    least = min(_LEAST_ELEMENTS, prod(s[-1] for s in steps))
    for tile in product(*steps):
        if least <= prod(tile) <= _MOST_ELEMENTS:
            yield tile


@dataclass(frozen=True)
class Tiles:
    """A stencil's tile, the sizes of its inputs, how far apart elements of its inputs and results
    are along each axis, and whether places are counted in 64 bits."""

    op: FusedStencil
    tile: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    wide: bool = False


@cache
def stencil_source(form: Tiles) -> str:
    """The kernel ``stencil``, with a block for each tile."""
    op, needs = form.op, needs_of(form.op)
    assert needs is not None
    axes, programs = range(len(form.tile)), [s.program for s in op.stages]
    dtypes = {r.array: d for s in op.stages for r, d in zip(s.reads, s.program.inputs)}
    lines = [
        f"typedef {'i64' if form.wide else 'i32'} Offset;",
        "struct Parameters {",
        *(f"  const {CTYPES[dtypes[i]]}* x{i};" for i in range(op.count)),
        *(f"  {CTYPES[op.dtype_of(r.value)]}* y{i};" for i, r in enumerate(op.stored)),
        "};",
        f'extern "C" __global__ void __launch_bounds__({THREADS})',
        "stencil(const __grid_constant__ Parameters p) {",
        "  u32 block = blockIdx.x;",
    ]
    for d in reversed(axes):
        count = -(-covered(op)[d] // form.tile[d])
        lines.append(f"  const i32 t{d} = (i32)(block % {count}u) * {form.tile[d]};")
        lines.append(f"  block /= {count}u;")
    for v in _kept(op):
        size = prod(needs[op.values[v - op.count][0]].sizes(form.tile))
        lines.append(f"  __shared__ {CTYPES[op.dtype_of(v)]} s{v}[{size}];")
    for k in range(len(op.stages)):
        lines += [*_stage(form, needs, k), "  __syncthreads();"]
    borders = text_of("borders.cuh")
    functions = [scalar_function(p, f"stage{k}") for k, p in enumerate(programs)]
    return "\n".join([library(*programs), borders, *functions, *lines[:-1], "}", ""])


def _stage(form: Tiles, needs: Sequence[Need], k: int) -> list[str]:
    """The loop over what a block computes of a stage."""
    op, need = form.op, needs[k]
    stage, sizes = op.stages[k], need.sizes(form.tile)
    first = op.count + op.values.index((k, 0))
    values = range(first, first + len(stage.program.outputs))
    kept, results = _kept(op), [(i, r) for i, r in enumerate(op.stored) if r.value in values]
    reads = [line for i, r in enumerate(stage.reads) for line in _read(form, needs, k, i, r)]
    given = [f"a{i}" for i in range(len(stage.reads))] + [f"v{v}" for v in values]
    body = [
        *reads,
        *(f"{CTYPES[op.dtype_of(v)]} v{v};" for v in values),
        f"stage{k}({', '.join(given)});",
        *(f"s{v}[e] = v{v};" for v in values if v in kept),
    ]
    if results:
        own = [*_within(stage, need, form.tile)]
        body += [f"if ({' && '.join(own)}) {{"] if own else ["{"]
        for i, r in results:
            place = [_rolled(f"i{d}", n, r.shift[d]) for d, n in enumerate(stage.shape)]
            body.append(f"  p.y{i}[{_sum(place, form.results[i])}] = v{r.value};")
        body.append("}")
    lines = [
        "#pragma unroll 4",
        f"for (u32 e = threadIdx.x; e < {prod(sizes)}u; e += {THREADS}u) {{",
        *(f"  {line}" for line in _indices(stage, need, sizes)),
        *(f"  {line}" for line in body),
        "}",
    ]
    return [f"  {line}" if line[0] != "#" else line for line in lines]


def _indices(stage: StencilStage, need: Need, sizes: Sequence[int]) -> list[str]:
    """Places ``c`` in what the block computes, ``i`` in the stage; those that are not are left."""
    lines, there = ["u32 rest = e;"], list[str]()
    for d in reversed(range(len(sizes))):
        n = stage.shape[d]
        lines += [f"const i32 c{d} = (i32)(rest % {sizes[d]}u);", f"rest /= {sizes[d]}u;"]
        place = f"t{d} + c{d} + {need.reach[d][0]}"
        if need.wrap[d]:
            place = f"(({place}) % {n} + {n}) % {n}"
        else:
            there += [f"i{d} >= 0"] * (need.reach[d][0] < 0) + [f"i{d} < {n}"]
        lines.append(f"const i32 i{d} = {place};")
    return [*lines, f"if (!({' && '.join(there)})) continue;"] if there else lines


def _within(stage: StencilStage, need: Need, tile: Sequence[int]) -> Iterator[str]:
    """Conditions under which an element is one of the block's tile."""
    for d, (low, high) in enumerate(need.reach):
        if low < 0:
            yield f"c{d} >= {-low}"
        if high > 0:
            yield f"c{d} < {tile[d] - low}"
        if need.wrap[d]:
            yield f"t{d} + c{d} + {low} < {stage.shape[d]}"


def _read(form: Tiles, needs: Sequence[Need], k: int, i: int, r: Shifted) -> list[str]:
    """Read operand ``i`` of a stage."""
    op, stage = form.op, form.op.stages[k]
    dtype, axes = stage.program.inputs[i], range(len(stage.shape))
    there = list[str]()
    for d in axes:
        if (inside := r.inside[d]) is not None:
            low, high = (n - r.begin[d] for n in inside)
            there += [f"i{d} >= {low}"] * (low > 0)
            there += [f"i{d} < {high}"] * (high < stage.shape[d])
    if r.array < op.count:
        steps = form.inputs[r.array]
        places = [
            _place(f"i{d}", n, r.begin[d], r.border[d], stage.shape[d])
            for d, n in enumerate(form.sizes[r.array])
        ]
        found = f"p.x{r.array}[{_sum(places, steps)}]"
    else:
        other = needs[op.values[r.array - op.count][0]]
        sizes = other.sizes(form.tile)
        made = op.stages[op.values[r.array - op.count][0]].shape
        places = []
        for d in axes:
            low = other.reach[d][0]
            if r.border[d] in ("", "wrap"):  # places do not wrap in shared memory
                places.append(f"(c{d} + {needs[k].reach[d][0] + r.begin[d] - low})")
            else:
                place = _place(f"i{d}", made[d], r.begin[d], r.border[d])
                places.append(f"({place} - t{d} - ({low}))")
        found = f"s{r.array}[{_sum(places, [prod(sizes[d + 1 :]) for d in axes], 'i32')}]"
    if there:
        found = f"{' && '.join(there)} ? {found} : {constant_text(r.fill, dtype)}"
    return [f"const {CTYPES[dtype]} a{i} = {found};"]


def _rolled(place: str, n: int, shift: int) -> str:
    return _place(place, n, shift, "wrap") if shift % n else place


def _place(place: str, n: int, begin: int, border: str, most: int = 0) -> str:
    """A place, of which there are ``most`` or ``n``, moved by ``begin``, within the size ``n``."""
    moved = f"({place} + {begin})"
    if not border:
        return moved
    if border == "wrap":
        up = begin % n
        if most > n:
            return f"(({place} + {up}) % {n})"
        return f"({place} < {n - up} ? {place} + {up} : {place} - {n - up})"
    return f"{border}_place({moved}, {n})"


def _sum(places: Sequence[str], steps: Sequence[int], kind: str = "Offset") -> str:
    terms = [f"({kind}){p} * {s}" for p, s in zip(places, steps, strict=True) if s]
    return " + ".join(terms) or "0"
