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
#: Bytes of tiles of a shifted loop that should fit on a multiprocessor.
_SHIFTED_BYTES = 64 << 10


@dataclass(frozen=True)
class TileOperand:
    """The strides of an operand in a tile.

    ``kind``: ``turned`` is dense along the rows, ``dense`` along the columns, ``row`` is one
    element for each row, ``strided`` is neither, ``number`` is among the parameters. ``vectors``:
    its lines allow aligned vectors, those of a dense one in a shifted loop where the results' are.
    """

    dtype: str
    kind: str
    vectors: bool = False


@dataclass(frozen=True)
class TileLoop:
    """The structure of a tiled kernel.

    Threads have blocks of ``side`` by ``side`` elements; a tile is ``down`` blocks by ``across``
    blocks, one for each thread. ``batch`` is the number of other dimensions. In a ``shifted`` loop
    vectors begin where those of the results, which are alike, are aligned. A ``guarded`` kernel
    does nothing once the error word is set.
    """

    side: int
    down: int
    across: int
    batch: int
    inputs: tuple[TileOperand, ...]
    outputs: tuple[TileOperand, ...]
    shifted: bool = False
    guarded: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.down * self.across

    @property
    def spread(self) -> bool:
        """Whether a thread's columns are apart, since some results have no aligned vectors."""
        return not self.shifted and not all(a.vectors for a in self.outputs)

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
    ahead = _registers(loop, itemsizes) <= _MAX_REGISTERS_AHEAD
    nbytes = (
        loop.threads * loop.side**2 * sum(itemsizes[a.dtype] for _, a in loop.of_kind("turned"))
    )
    resident = max(1, _SHIFTED_BYTES // nbytes) if loop.shifted else 1
    lines = [
        f"constexpr i32 V = {loop.side}, A = {loop.down}, B = {loop.across};",
        "constexpr i32 STEP = A;  // rows between those of a thread",
        "constexpr u32 BAND = 8;  // tiles that follow each other lie below each other",
        f"constexpr bool SPREAD = {int(loop.spread)}, SHIFTED = {int(loop.shifted)};",
        "constexpr i32 APART = SPREAD ? B : 1;  // columns between them",
        "struct Parameters {",
        *(f"  {field}" for field in _fields(loop)),
        "};",
        f'extern "C" __global__ void __launch_bounds__({loop.threads}, {resident})',
        "tiles(const __grid_constant__ Parameters p) {",
        *(f"  __shared__ {_held(a)} tile_{n}[V * A * B];" for n, a in loop.of_kind("turned")),
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
        "    const i64 own = down + first;",
        "    const i64 to = along + (SPREAD ? group : SHIFTED ? 0 : V * group);",
        "    const i32 high_left = p.rows - down < V * A ? (i32)(p.rows - down) : V * A;",
        *(f"    {line}" for line in _starts(loop)),
        *(_shifts(loop) if loop.shifted else []),
        *(f"    {line}" for line in _turned(loop)),
        *(f"    {line}" for line in _ahead(loop, dense if ahead else [])),
        "    __syncthreads();  // the tile before has been read",
        *(
            f"    tile_turn<{_kind(a)}, {int(_turns(loop, a))}, A, B>(tile_{n}, block_{n});"
            for n, a in loop.of_kind("turned")
        ),
        "    __syncthreads();",
        "#pragma unroll",
        "    for (i32 k = 0; k < V; k++) {",
        f"      if ({_none(loop)}) continue;",
        *(f"      {line}" for line in _computed(program, loop, ahead)),
        "    }",
        *(_ends(loop) if loop.shifted else []),
        "  }",
        "}",
    ]
    return _libraries(program, loop) + "\n".join(lines) + "\n"


def _libraries(program: ScalarProgram, loop: TileLoop) -> str:
    """What the kernel calls."""
    words = f"constexpr bool WORDS = {int(not loop.spread)};\n"
    texts = library(program) + text_of("lines.cuh") + words + text_of("tile.cuh")
    return texts + scalar_function(program, "scalar")


def _registers(loop: TileLoop, itemsizes: dict[str, int]) -> int:
    """How many registers of a thread hold its elements of the dense operands."""
    count = 0
    for _, a in loop.of_kind("dense"):
        apart = 2 if loop.shifted and not a.vectors else 1
        count += max(1, loop.side * itemsizes[a.dtype] // 4) * loop.side * apart
    return count


def _kind(a: TileOperand) -> str:
    return f"{CTYPES[a.dtype]}, V"


def _held(a: TileOperand) -> str:
    return f"Held<{_kind(a)}>"


def _held_dense(loop: TileLoop, a: TileOperand) -> str:
    """What is held of a dense operand's vector before it is used."""
    return _held(a) if a.vectors or not loop.shifted else f"AnyWords<sizeof({_held(a)}) / 4>"


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
        row, column = _corner(loop, a) if a.kind == "turned" else ("own", "to")
        terms = [f"p.{name} + place((u64)batch, p.size, p.{name}_batch)"]
        terms.append(f"{row} * p.{name}_row")
        if a.kind != "row":
            terms.append(f"{column} * p.{name}_column")
        lines.append(f"const auto at_{name} = {' + '.join(terms)};")
    return lines


def _turns(loop: TileLoop, a: TileOperand) -> bool:
    """Whether a thread turns a block of its own."""
    return a.vectors or loop.shifted


def _corner(loop: TileLoop, a: TileOperand) -> tuple[str, str]:
    """The first row and column of a thread's block of a turned operand, or of the tile."""
    return ("(down + V * a)", "(along + V * b)") if _turns(loop, a) else ("down", "along")


def _shifts(loop: TileLoop) -> list[str]:
    """The elements of the tile's rows, and ``head_of``: those before a row's first vector."""
    y = loop.operands[len(loop.inputs)][0]
    return [
        "    const i32 width = p.columns - along < V * B ? (i32)(p.columns - along) : V * B;",
        f"    const u32 place_y = (u32)((u64)at_{y} / sizeof(*at_{y})), step_y = (u32)p.{y}_row;",
        "    const auto head_of = [&](i32 r) { return (i32)(-(place_y + r * step_y) & (V - 1)); };",
        "    const auto column_of = [&](i32 k) { return head_of(k * STEP) + V * group; };",
    ]


def _none(loop: TileLoop) -> str:
    """Whether row ``k`` of this thread, or in a shifted loop its vector, does not exist."""
    beyond = "first + k * STEP >= high_left"
    return f"{beyond} || column_of(k) + V > width" if loop.shifted else beyond


def _turned(loop: TileLoop) -> list[str]:
    lines = []
    for name, a in loop.of_kind("turned"):
        row, column = _corner(loop, a)
        lines.append(f"{_held(a)} block_{name}[V];")
        lines.append(
            f"tile_fetch<V, {int(a.vectors)}, SHIFTED, A, B>(block_{name}, at_{name}, "
            f"p.{name}_column, p.rows - {row}, p.columns - {column});"
        )
    return lines


def _read(loop: TileLoop, name: str, a: TileOperand) -> str:
    """A dense operand's vector in row ``k`` of this thread."""
    line = f"at_{name} + k * STEP * p.{name}_row"
    if loop.shifted and a.vectors:
        return f"tile_load<V, true, 1>({line} + column_of(k), 1)"
    if loop.shifted:
        return f"any_words<V>({line} + column_of(k))"
    return f"tile_load<V, {int(a.vectors)}, APART>({line}, p.columns - to)"


def _ahead(loop: TileLoop, dense: list[tuple[str, TileOperand]]) -> list[str]:
    """Read what rows have one element of, and dense operands, of all rows."""
    single = loop.of_kind("row")
    if not dense and not single:
        return []
    return [
        *(f"{_held_dense(loop, a)} dense_{n}[V];" for n, a in dense),
        *(f"{CTYPES[a.dtype]} row_{n}[V];" for n, a in single),
        "#pragma unroll",
        "for (i32 k = 0; k < V; k++)",
        f"  if (!({_none(loop)})) {{",
        *(f"    row_{n}[k] = at_{n}[k * STEP * p.{n}_row];" for n, a in single),
        *(f"    dense_{n}[k] = {_read(loop, n, a)};" for n, a in dense),
        "  }",
    ]


def _vector(loop: TileLoop, name: str, a: TileOperand, ahead: bool) -> list[str]:
    """An input's elements of row ``k``, as ``held_`` and its name."""
    row = "first + k * STEP"
    if a.kind == "number":
        return [f"const {CTYPES[a.dtype]} {name} = convert<{CTYPES[a.dtype]}>(p.{name});"]
    if a.kind == "row":
        return [f"const {CTYPES[a.dtype]} {name} = row_{name}[k];"]
    vec = f"Vec<{_kind(a)}> {name}"
    if a.kind == "strided":
        at, inside = "e * APART", "to + e * APART < p.columns"
        if loop.shifted:
            at, inside = "(column + e)", "true"
        return [
            f"{vec};",
            "#pragma unroll",
            "for (i32 e = 0; e < V; e++)",
            f"  {name}.v[e] = {inside} ? at_{name}[k * STEP * p.{name}_row + "
            f"{at} * p.{name}_column] : convert<{CTYPES[a.dtype]}>(1.0f);",
        ]
    if a.kind == "turned":
        held = f"tile_read<{_kind(a)}, {int(a.vectors)}, SPREAD, B>(tile_{name}, {row}, group)"
        if loop.shifted:
            held = f"tile_read_any<{_kind(a)}, B>(tile_{name}, {row}, column)"
    else:
        held = f"dense_{name}[k]" if ahead else _read(loop, name, a)
        held += ".words()" if loop.shifted and not a.vectors else ""
    return [
        f"const {_held(a)} held_{name} = {held};",
        f"const {vec} = unpacked<{_kind(a)}>(held_{name});",
    ]


def _computed(program: ScalarProgram, loop: TileLoop, ahead: bool) -> list[str]:
    """Compute and write V elements of row ``k``; those of a copy stay words."""
    outputs = loop.operands[len(loop.inputs) :]
    lines = ["const i32 column = column_of(k);"] if loop.shifted else []
    for name, a in loop.operands[: len(loop.inputs)]:
        lines += _vector(loop, name, a, ahead)
    given = [name if a.kind in ("number", "row") else f"{name}.v[e]" for name, a in loop.operands]
    copied = not program.body and [a.kind for a in loop.inputs] == ["turned"]
    if not copied:
        lines += [f"Vec<{_kind(a)}> {name};" for name, a in outputs]
        lines += ["#pragma unroll", f"for (i32 e = 0; e < V; e++) scalar({', '.join(given)});"]
    for name, a in outputs:
        line = f"at_{name} + k * STEP * p.{name}_row"
        held = "held_x0" if copied else f"packed<{_kind(a)}>({name})"
        if loop.shifted:
            lines.append(f"store_whole({line} + column, {held});")
        else:
            lines.append(f"tile_store<V, {int(a.vectors)}, APART>({line}, {held}, p.columns - to);")
    return lines


def _ends(loop: TileLoop) -> list[str]:
    """Compute and write the elements of a shifted tile that are in no vector of their row."""
    given = []
    for name, a in loop.operands:
        at = f"at_{name}[by * p.{name}_row + column * p.{name}_column]"
        if a.kind == "number":
            at = f"convert<{CTYPES[a.dtype]}>(p.{name})"
        elif a.kind == "row":
            at = f"at_{name}[by * p.{name}_row]"
        elif a.kind == "turned":
            at = f"tile_one<{_kind(a)}, B, true>(tile_{name}, row, column)"
        given.append(at)
    return [
        "    const i32 most = width < V * B ? 2 * V : V;  // a row's",
        "    for (i32 from = 0; from < most; from += V)",
        "#pragma unroll",
        "      for (i32 k = 0; k < V * A; k += (A * B + V - 1) / V) {",
        "        const i32 row = threadIdx.x / V + k, by = row - first;",
        "        if (row >= high_left) continue;",
        "        const i32 e = threadIdx.x % V + from, head = head_of(by);",
        "        const i32 vectors = head < width ? (width - head) / V : 0;",
        "        const i32 column = e < head ? e : e + vectors * V;",
        "        if (column >= width) continue;",
        f"        scalar({', '.join(given)});",
        "      }",
    ]
