"""CUDA C of elementwise loops over transposed operands: tiles go through shared memory.

The loop has ``rows`` and ``columns``, along which the outputs are dense, and any number of batch
dimensions. Operands that are dense along the rows are transposed (``src/tile.cuh``); the others are
read where they are used, in vectors if they are dense along the columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from symdnn.gpu.codegen.cuda_source import CTYPES, library, scalar_function
from symdnn.gpu.codegen.device_source import numbered, text_of
from symdnn.ops.core.scalar import ScalarProgram

#: 32-bit registers for dense operands that are read before the barrier, as those of a row are.
_MAX_REGISTERS_AHEAD = 64


@dataclass(frozen=True)
class TileOperand:
    """The strides of an operand in a tile.

    ``kind``: ``turned`` is dense along the rows, ``dense`` along the columns, ``row`` is one
    element for each row, ``strided`` is neither, ``number`` is among the parameters. ``vectors``:
    its lines allow aligned vectors.
    """

    dtype: str
    kind: str
    vectors: bool = False


@dataclass(frozen=True)
class TileLoop:
    """The structure of a tiled kernel.

    Threads have blocks of ``side`` by ``side`` elements; a tile is ``down`` blocks by ``across``
    blocks, one for each thread. ``batch`` is the number of other dimensions. A ``guarded`` kernel
    does nothing once the error word is set.
    """

    side: int
    down: int
    across: int
    batch: int
    inputs: tuple[TileOperand, ...]
    outputs: tuple[TileOperand, ...]
    guarded: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.down * self.across

    @property
    def spread(self) -> bool:
        """Whether a thread's columns are apart, since some results have no aligned vectors."""
        return not all(a.vectors for a in self.outputs)

    @property
    def operands(self) -> list[tuple[str, TileOperand]]:
        """Names and operands: x0, x1, ... and y0, ..."""
        return numbered(self.inputs, self.outputs)

    def of_kind(self, *kinds: str) -> list[tuple[str, TileOperand]]:
        """The inputs of these kinds."""
        named = self.operands[: len(self.inputs)]
        return [(name, a) for name, a in named if a.kind in kinds]


def tile_source(program: ScalarProgram, loop: TileLoop, itemsizes: dict[str, int]) -> str:
    """A kernel ``tiles`` that applies ``program`` to every element."""
    dense = loop.of_kind("dense")
    held = sum(max(1, loop.side * itemsizes[a.dtype] // 4) * loop.side for _, a in dense)
    ahead = held <= _MAX_REGISTERS_AHEAD
    lines = [
        f"constexpr i32 V = {loop.side}, A = {loop.down}, B = {loop.across};",
        "constexpr i32 STEP = A;  // rows between those of a thread",
        "constexpr u32 BAND = 8;  // tiles that follow each other lie below each other",
        f"constexpr bool SPREAD = {int(loop.spread)};",
        "constexpr i32 APART = SPREAD ? B : 1;  // columns between them",
        "struct Parameters {",
        *(f"  {field}" for field in _fields(loop)),
        "};",
        f'extern "C" __global__ void __launch_bounds__({loop.threads})',
        "tiles(const __grid_constant__ Parameters p) {",
        *(f"  __shared__ {_vec(a)} tile_{n}[V * A * B];" for n, a in loop.of_kind("turned")),
        *(["  if (*p.guard != 0) return;"] if loop.guarded else []),
        "  const u32 wide = (u32)((p.columns + V * B - 1) / (V * B));",
        "  const u32 high = (u32)((p.rows + V * A - 1) / (V * A));",
        "  const u32 all = wide * high * (u32)p.batches;  // no memory holds 2^32 tiles",
        "  const i32 a = threadIdx.x % A, b = threadIdx.x / A;  // a block of vectors to turn",
        "  const i32 group = threadIdx.x % B, first = threadIdx.x / B;  // what is computed",
        "  for (u32 n = blockIdx.x; n < all; n += gridDim.x) {",
        "    const u32 batch = n / (wide * high), inside = n - batch * (wide * high);",
        "    const u32 band = inside / (wide * BAND), rest = inside - band * (wide * BAND);",
        "    const u32 tall = high - band * BAND < BAND ? high - band * BAND : BAND;",
        "    const i64 along = (i64)(rest / tall) * (V * B);",
        "    const i64 down = (i64)(band * BAND + rest % tall) * (V * A);",
        "    const i64 own = down + first, to = along + (SPREAD ? group : V * group);",
        *(f"    {line}" for line in _starts(loop)),
        *(f"    {line}" for line in _turned(loop)),
        *(f"    {line}" for line in _ahead(loop, dense if ahead else [])),
        "    __syncthreads();  // the tile before has been read",
        *(
            f"    tile_turn<{int(a.vectors)}, A, B>(tile_{n}, block_{n});"
            for n, a in loop.of_kind("turned")
        ),
        "    __syncthreads();",
        "#pragma unroll",
        "    for (i32 k = 0; k < V; k++) {",
        "      if (own + k * STEP >= p.rows) continue;",
        *(f"      {line}" for line in _computed(loop, ahead)),
        "    }",
        "  }",
        "}",
    ]
    libraries = library(program) + text_of("lines.cuh") + text_of("tile.cuh")
    return libraries + scalar_function(program, "scalar") + "\n".join(lines) + "\n"


def _vec(a: TileOperand) -> str:
    return f"Vec<{CTYPES[a.dtype]}, V>"


def _fields(loop: TileLoop) -> list[str]:
    """Fields of the parameter struct in order: pointers and numbers, sizes, strides."""
    fields = []
    for name, a in loop.operands:
        const = "const " if name[0] == "x" else ""
        kind = "double" if a.kind == "number" else f"{const}{CTYPES[a.dtype]}*"
        fields.append(f"{kind} {name};")
    fields.append(f"i64 rows, columns, batches, size[{loop.batch}];")
    for name, a in loop.operands:
        if a.kind != "number":
            fields.append(f"i64 {name}_row, {name}_column, {name}_batch[{loop.batch}];")
    return [*fields, "const i32* guard;"] if loop.guarded else fields


def _starts(loop: TileLoop) -> list[str]:
    """Where each operand's part of a tile begins, for this thread."""
    lines = []
    for name, a in loop.operands:
        if a.kind == "number":
            continue
        row, column = _corner(a) if a.kind == "turned" else ("own", "to")
        terms = [f"p.{name} + place((u64)batch, p.size, p.{name}_batch)"]
        terms.append(f"{row} * p.{name}_row")
        if a.kind != "row":
            terms.append(f"{column} * p.{name}_column")
        lines.append(f"const auto at_{name} = {' + '.join(terms)};")
    return lines


def _corner(a: TileOperand) -> tuple[str, str]:
    """The first row and column of a thread's block of a turned operand, or of the tile."""
    return ("(down + V * a)", "(along + V * b)") if a.vectors else ("down", "along")


def _turned(loop: TileLoop) -> list[str]:
    lines = []
    for name, a in loop.of_kind("turned"):
        row, column = _corner(a)
        lines.append(f"{_vec(a)} block_{name}[V];")
        lines.append(
            f"tile_fetch<{int(a.vectors)}, A, B>(block_{name}, at_{name}, p.{name}_column, "
            f"p.rows - {row}, p.columns - {column});"
        )
    return lines


def _read(name: str, a: TileOperand, target: str) -> str:
    """Read a dense operand's vector in row ``k`` of this thread."""
    line = f"at_{name} + k * STEP * p.{name}_row"
    return f"tile_load<{int(a.vectors)}, APART>({target}, {line}, p.columns - to);"


def _ahead(loop: TileLoop, dense: list[tuple[str, TileOperand]]) -> list[str]:
    """Read what rows have one element of, and dense operands, of all rows."""
    single = loop.of_kind("row")
    if not dense and not single:
        return []
    return [
        *(f"{_vec(a)} dense_{n}[V];" for n, a in dense),
        *(f"{CTYPES[a.dtype]} row_{n}[V];" for n, a in single),
        "#pragma unroll",
        "for (i32 k = 0; k < V; k++)",
        "  if (own + k * STEP < p.rows) {",
        *(f"    row_{n}[k] = at_{n}[k * STEP * p.{n}_row];" for n, a in single),
        *(f"    {_read(n, a, f'dense_{n}[k]')}" for n, a in dense),
        "  }",
    ]


def _computed(loop: TileLoop, ahead: bool) -> list[str]:
    """Compute and write V elements of row ``k``."""
    lines, given = [], []
    for name, a in loop.operands[: len(loop.inputs)]:
        ctype = CTYPES[a.dtype]
        given.append(f"{name}.v[e]")
        if a.kind == "number":
            lines.append(f"const {ctype} {name} = convert<{ctype}>(p.{name});")
            given[-1] = name
        elif a.kind == "row":
            lines.append(f"const {ctype} {name} = row_{name}[k];")
            given[-1] = name
        elif a.kind == "turned":
            read = f"tile_read<{int(a.vectors)}, SPREAD, B>(tile_{name}, first + k * STEP, group)"
            lines.append(f"const {_vec(a)} {name} = {read};")
        elif a.kind == "dense" and ahead:
            lines.append(f"const {_vec(a)} {name} = dense_{name}[k];")
        elif a.kind == "dense":
            lines += [f"{_vec(a)} {name};", _read(name, a, name)]
        else:
            lines += [
                f"{_vec(a)} {name};",
                "#pragma unroll",
                "for (i32 e = 0; e < V; e++)",
                f"  {name}.v[e] = to + e * APART < p.columns ? at_{name}[k * STEP * p.{name}_row + "
                f"e * APART * p.{name}_column] : convert<{CTYPES[a.dtype]}>(1.0f);",
            ]
    outputs = loop.operands[len(loop.inputs) :]
    lines += [f"{_vec(a)} {name};" for name, a in outputs]
    given += [f"{name}.v[e]" for name, _ in outputs]
    lines += ["#pragma unroll", f"for (i32 e = 0; e < V; e++) scalar({', '.join(given)});"]
    for name, a in outputs:
        line = f"at_{name} + k * STEP * p.{name}_row"
        lines.append(f"tile_store<{int(a.vectors)}, APART>({line}, {name}, p.columns - to);")
    return lines
