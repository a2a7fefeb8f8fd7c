"""CUDA C of elementwise loops over arrays, with a scalar program as their body.

Generated source depends only on structure (the program, the number of dimensions, which operands
are contiguous, which move by index arrays), not on sizes. One compiled kernel serves all shapes of
that structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from symdnn.gpu.codegen.cuda_source import CTYPES, library, scalar_function
from symdnn.gpu.codegen.device_source import numbered, text_of
from symdnn.ops.core.scalar import ScalarProgram

__all__ = ["Access", "Loop", "Move", "elementwise_source", "moved_by"]


class Move(NamedTuple):
    """An index array, by its number among a kernel's, that moves an operand along one axis.

    A ``checked`` index out of range is reported. None is used.
    """

    array: int
    checked: bool


def moved_by(move: Move, name: str, n: int, value: str, at: str) -> str:
    """An expression: whether ``value`` is in range; it moves ``at`` if it is."""
    word = "p.error_word" if move.checked else "(i32*)0"
    return f"selected({value}, p.{name}_l{n}, p.{name}_j{n}, {word}, p.node, {at})"


@dataclass(frozen=True)
class Access:
    """The access pattern of an operand.

    ``inner`` is that of the innermost dimension: ``dense`` for stride 1, read as a vector; ``one``
    for stride 0; ``strided`` for other strides; ``number`` for a scalar among the parameters.
    ``axes`` are the outer dimensions with a stride other than 0. Where vectors reach into the next
    row a contiguous operand is ``flat``, read as a vector; the elements of others are read one by
    one (``each``), and their ``axes`` may have the innermost dimension. ``moves`` are by index
    arrays: a result that has some is added to.
    """

    dtype: str
    inner: str
    axes: tuple[int, ...]
    moves: tuple[Move, ...] = ()

    @property
    def same_in_rows(self) -> bool:
        """Whether all rows of a matrix have the elements of one row in memory."""
        return self.inner not in ("number", "flat") and 0 not in self.axes


@dataclass(frozen=True)
class Loop:
    """The structure of an elementwise kernel.

    ``ndim`` is the number of dimensions after merging. Each thread computes vectors of ``width``
    elements of the innermost one. ``wide`` counts in 64 bits. ``inputs`` and ``outputs`` are the
    operands' access patterns. A ``guarded`` kernel does nothing once the error word is set.
    ``batch`` vectors are read before the first is written. With ``columns``, for two dimensions, a
    thread stays in its columns and reads operands that broadcast along the rows only once; there
    are threads for whole rows, the others do nothing. With ``across`` vectors are of the
    whole array, and reach from a row into the next. With both, a thread goes down by as many rows
    as a vector has elements, so that its vectors begin in the same column. ``index`` are the index
    arrays by which operands move.
    """

    ndim: int
    width: int
    wide: bool
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    guarded: bool = False
    columns: bool = False
    batch: int = 1
    across: bool = False
    index: tuple[Access, ...] = ()

    def read_once(self, access: Access) -> bool:
        """Whether an input is read before the loop over the rows."""
        return self.columns and access.same_in_rows

    @property
    def operands(self) -> list[tuple[str, Access]]:
        """Names and accesses: x0, x1, ... and y0, ..., then index arrays: at0, ..."""
        arrays = [(f"at{i}", a) for i, a in enumerate(self.index)]
        return numbered(self.inputs, self.outputs) + arrays

    @property
    def writes(self) -> list[tuple[str, Access]]:
        """Names and accesses of the results."""
        return numbered((), self.outputs)

    def picks(self, access: Access) -> bool:
        """Whether an operand moves by index arrays from one element of a vector to the next."""
        return any(self.index[m.array].inner != "one" for m in access.moves)

    def value(self, array: int, k: str) -> str:
        """The index in element ``k`` of a vector."""
        return f"at{array}" + ("" if self.index[array].inner == "one" else f".v[{k}]")

    def parameters(self) -> list[str]:
        """Fields of the parameter struct in order: pointers, sizes, strides."""
        fields = [f"{_field_type(name, a)} {name};" for name, a in self.operands]
        fields += ["i64 vectors;", "i64 tail;"] + [f"i64 n{d};" for d in range(1, self.ndim)]
        for name, a in self.operands:
            fields += [f"i64 {name}_s{d};" for d in a.axes]
            if a.inner == "strided":
                fields.append(f"i64 {name}_si;")
        for name, a in self.operands:
            fields += [f"i64 {name}_l{n}; i64 {name}_j{n};" for n in range(len(a.moves))]
        fields += ["i32* error_word;", "i64 node;"] if self.index else []
        return [*fields, "const i32* guard;"] if self.guarded else fields


def _field_type(name: str, access: Access) -> str:
    if access.inner == "number":
        return "double"
    return f"{'' if name[0] == 'y' else 'const '}{CTYPES[access.dtype]}*"


def elementwise_source(program: ScalarProgram, loop: Loop) -> str:
    """A kernel ``elementwise`` that applies ``program`` to every element."""
    count, offset = ("u64", "i64") if loop.wide else ("u32", "i32")
    lines = [
        f"typedef {count} Count;",
        f"typedef {offset} Offset;",
        "struct Parameters {",
        *(f"  {field}" for field in loop.parameters()),
        "};",
        'extern "C" __global__ void __launch_bounds__(256)',
        "elementwise(const __grid_constant__ Parameters p) {",
        *(["  if (*p.guard != 0) return;"] if loop.guarded else []),
        "  const Count first = (Count)global_thread(), step = (Count)thread_count();",
        "  const Count vectors = (Count)p.vectors;",
        *(_by_columns(loop) if loop.columns else _by_vectors(loop)),
        *(_tail(loop) if (loop.ndim == 1 or loop.across) and loop.width > 1 else []),
        "}",
    ]
    libraries = library(program) + (text_of("selected.cuh") if loop.index else "")
    return libraries + scalar_function(program, "scalar") + "\n".join(lines) + "\n"


def _by_vectors(loop: Loop) -> list[str]:
    """The grid-stride loop over all vectors."""
    fetched = [*_indices(loop), *_offsets(loop, loop.index), *_read(loop, loop.index)]
    fetched += [*_offsets(loop, (*loop.inputs, *loop.outputs)), *_read(loop, loop.inputs)]
    reads = [*loop.inputs, *loop.index] if any(map(loop.picks, loop.outputs)) else loop.inputs
    return _batches(loop, ("i", "first", "vectors", "step"), fetched, reads)


def _by_columns(loop: Loop) -> list[str]:
    """The loop down the rows, with the same columns for a thread."""
    once = [a for a in loop.inputs if loop.read_once(a)]
    rest = [a for a in loop.inputs if not loop.read_once(a)]
    fetched = [*_offsets(loop, [*rest, *loop.outputs]), *_read(loop, rest)]
    if loop.across:
        counting = ("i", "first", "vectors", "stride")
        columns = [
            f"  const Count row = (Count)p.n1, i0 = 0, i1 = first * {loop.width} % row;",
            "  const Count stride = step / row * row;",
            "  if (first >= stride) return;",
        ]
    else:
        counting = ("i0", "begin", "rows", "stride")
        columns = [
            "  const Count row = (Count)p.n1, rows = vectors / row, i1 = first % row;",
            "  const Count begin = first / row, stride = step / row;",
            "  if (begin >= stride) return;  // the last threads, fewer than a row has vectors",
        ]
    return [
        *columns,
        *(f"  {line}" for line in (*_offsets(loop, once), *_read(loop, once))),
        *_batches(loop, counting, fetched, rest),
    ]


def _batches(
    loop: Loop, counting: tuple[str, str, str, str], fetched: list[str], reads: Sequence[Access]
) -> list[str]:
    """The loop ``counting`` (counter, begin, end, step), unrolled by ``batch``."""
    i, begin, end, step = counting
    if loop.batch == 1:
        return [
            f"  for (Count {i} = {begin}; {i} < {end}; {i} += {step}) {{",
            *(f"    {line}" for line in (*fetched, *_write(loop))),
            "  }",
        ]
    held = [
        (n, _held_type(loop, a)) for n, a in loop.operands if any(a is b for b in reads)
    ]  # fmt: skip
    held += [(f"o_{n}", "Offset") for n, _ in loop.writes]
    held += [(f"in_{n}", "bool") for n, a in loop.writes if a.moves]
    return [
        f"  struct Held {{ {' '.join(f'{kind} {n};' for n, kind in held)} }};",
        f"  const auto fetch = [&](Count {i}) {{",
        *(f"    {line}" for line in fetched),
        f"    return Held{{{', '.join(n for n, _ in held)}}};",
        "  };",
        "  const auto apply = [&](const Held& held) {",
        *(f"    const auto& {n} = held.{n};" for n, _ in held),
        *(f"    {line}" for line in _write(loop)),
        "  };",
        f"  for (Count {i} = {begin}; {i} < {end}; {i} += {step} * {loop.batch}) {{",
        f"    Held held[{loop.batch}];",
        "#pragma unroll",
        f"    for (int b = 0; b < {loop.batch}; b++)",
        f"      held[b] = fetch({i} + b * {step} < {end} ? {i} + b * {step} : {i});",
        "#pragma unroll",
        f"    for (int b = 0; b < {loop.batch}; b++)",
        f"      if (b == 0 || {i} + b * {step} < {end}) apply(held[b]);",
        "  }",
    ]


def _held_type(loop: Loop, access: Access) -> str:
    ctype = CTYPES[access.dtype]
    alone = access.inner in ("one", "number") and not loop.picks(access)
    return ctype if alone else f"Vec<{ctype}, {loop.width}>"


def _indices(loop: Loop) -> list[str]:
    """The index in each dimension from the vector's linear index, innermost first."""
    return _indices_of(loop, f"i * {loop.width}" if loop.across else "i")


def _indices_of(loop: Loop, place: str) -> list[str]:
    """The index in each dimension from a linear index."""
    lines = [f"Count rest = {place};"] if loop.ndim > 1 else []
    for d in reversed(range(1, loop.ndim)):
        lines += [f"const Count i{d} = rest % (Count)p.n{d};", f"rest /= (Count)p.n{d};"]
    lines.append(f"const Count i0 = {'rest' if loop.ndim > 1 else place};")
    return lines


def _offsets(loop: Loop, some: Sequence[Access] | None = None) -> list[str]:
    """The offset of this vector in all or some operands, in elements."""
    inner = loop.ndim - 1
    lines = []
    for name, a in loop.operands:
        if a.inner in ("number", "each") or not (some is None or any(a is b for b in some)):
            continue
        terms = [f"(Offset)i{d} * (Offset)p.{name}_s{d}" for d in a.axes]
        if a.inner in ("dense", "flat"):
            terms.append(f"(Offset)({'i' if a.inner == 'flat' else f'i{inner}'} * {loop.width})")
        elif a.inner == "strided":
            terms.append(f"(Offset)(i{inner} * {loop.width}) * (Offset)p.{name}_si")
        kind = "Offset" if a.moves else "const Offset"
        lines.append(f"{kind} o_{name} = {' + '.join(terms) or '0'};")
        written = name[0] == "y" and bool(a.moves)
        lines += [f"bool in_{name} = true;"] * written
        for n, move in enumerate(() if loop.picks(a) else a.moves):
            moved = moved_by(move, name, n, loop.value(move.array, "0"), f"o_{name}")
            lines.append(f"in_{name} &= {moved};" if written else f"{moved};")
    return lines


def _picked(loop: Loop, name: str, access: Access) -> list[str]:
    """The offset ``at`` of element ``k``, and whether it is ``inside``."""
    lines = [f"Offset at = o_{name};", "bool inside = true;"]
    for n, move in enumerate(access.moves):
        moved = moved_by(move, name, n, loop.value(move.array, "k"), "at")
        lines.append(f"inside &= {moved};")
    return lines


def _read(loop: Loop, some: Sequence[Access]) -> list[str]:
    """Read one vector of some inputs."""
    lines = []
    width = loop.width
    for name, a in loop.operands:
        if name[0] == "y" or not any(a is b for b in some):
            continue
        ctype = CTYPES[a.dtype]
        if loop.picks(a):
            lines += [
                f"Vec<{ctype}, {width}> {name};",
                "#pragma unroll",
                f"for (int k = 0; k < {width}; k++) {{",
                *(f"  {line}" for line in _picked(loop, name, a)),
                f"  {name}.v[k] = p.{name}[at];",
                "}",
            ]
        elif a.inner == "each":
            lines.append(f"Vec<{ctype}, {width}> {name};")
        elif a.inner == "number":
            lines.append(f"const {ctype} {name} = convert<{ctype}>(p.{name});")
        elif a.inner == "one":
            lines.append(f"const {ctype} {name} = p.{name}[o_{name}];")
        elif a.inner in ("dense", "flat"):
            lines.append(
                f"const Vec<{ctype}, {width}> {name} = load<{width}>(p.{name} + o_{name});"
            )
        else:
            lines.append(f"Vec<{ctype}, {width}> {name};")
            at = f"p.{name}[o_{name} + k * (Offset)p.{name}_si]"
            lines.append(f"for (int k = 0; k < {width}; k++) {name}.v[k] = {at};")
    each = [(n, a) for n, a in loop.operands if a.inner == "each" and any(a is b for b in some)]
    return lines + _read_across(loop, each)


def _read_across(loop: Loop, some: Sequence[tuple[str, Access]]) -> list[str]:
    """Read the elements of a vector one by one where it may reach into the next rows.

    Indices are divided for its first element only.
    """
    if not some:
        return []
    carried = ""
    for d in range(loop.ndim):  # the innermost index is counted up, and the next after its end
        one_up = f"j{d} += 1;" if d == 0 else f"if ((j{d} += 1) == (Count)p.n{d}) {{ j{d} = 0; "
        carried = one_up if d == 0 else f"{one_up}{carried} }}"
    return [
        f"Count {', '.join(f'j{d} = i{d}' for d in range(loop.ndim))};",
        "#pragma unroll",
        f"for (int k = 0; k < {loop.width}; k++) {{",
        *(f"  {n}.v[k] = p.{n}[{_offset_of(n, a, 'j')}];" for n, a in some),
        f"  {carried}",
        "}",
    ]


def _offset_of(name: str, access: Access, index: str) -> str:
    """The offset of an element by its indices."""
    return " + ".join(f"(Offset){index}{d} * (Offset)p.{name}_s{d}" for d in access.axes) or "0"


def _write(loop: Loop) -> list[str]:
    """Compute one vector, and write it."""
    width, outputs = loop.width, loop.writes
    lines = [f"Vec<{CTYPES[a.dtype]}, {width}> {name};" for name, a in outputs]
    given = [
        name if name[0] == "x" and a.inner in ("one", "number") and not loop.picks(a)
        else f"{name}.v[k]"
        for name, a in numbered(loop.inputs, loop.outputs)
    ]  # fmt: skip
    lines.append("#pragma unroll")
    lines.append(f"for (int k = 0; k < {width}; k++) scalar({', '.join(given)});")
    for name, a in outputs:
        if a.moves:
            lines += _add(loop, name, a)
        elif a.inner in ("dense", "flat"):
            lines.append(f"store(p.{name} + o_{name}, {name});")
        else:
            at = f"p.{name}[o_{name} + k * (Offset)p.{name}_si]"
            lines.append(f"for (int k = 0; k < {width}; k++) {at} = {name}.v[k];")
    return lines


def _add(loop: Loop, name: str, access: Access) -> list[str]:
    """Add one vector where index arrays say, if they are in range."""
    if not loop.picks(access):
        if access.inner == "dense":
            return [f"if (in_{name}) added(p.{name} + o_{name}, {name});"]
        place = f"p.{name} + o_{name}" + (
            f" + k * (Offset)p.{name}_si" if access.inner == "strided" else ""
        )
        each = f"atomicAdd({place}, {name}.v[k]);"
        return [f"for (int k = 0; k < {loop.width}; k++) if (in_{name}) {each}"]
    return [
        "#pragma unroll",
        f"for (int k = 0; k < {loop.width}; k++) {{",
        *(f"  {line}" for line in _picked(loop, name, access)),
        f"  if (inside) atomicAdd(p.{name} + at, {name}.v[k]);",
        "}",
    ]


def _tail(loop: Loop) -> list[str]:
    """The last elements of an array, one per thread."""
    lines, given, after = list[str](), list[str](), list[str]()
    for name, a in (*loop.operands[len(loop.inputs) + len(loop.outputs) :],
                    *numbered(loop.inputs, loop.outputs)):  # fmt: skip
        if a.inner == "number":
            given.append(f"convert<{CTYPES[a.dtype]}>(p.{name})")
            continue
        strided = f"(Offset)j * (Offset)p.{name}_si"
        at = {"one": "0", "dense": "j", "flat": "j", "strided": strided}
        place = at.get(a.inner) or _offset_of(name, a, "i")
        if name[:2] == "at":
            lines.append(f"const {CTYPES[a.dtype]} {name} = p.{name}[{place}];")
            continue
        if a.moves:
            lines += [f"Offset o_{name} = (Offset)({place});", f"bool in_{name} = true;"]
            for n, m in enumerate(a.moves):
                lines.append(f"in_{name} &= {moved_by(m, name, n, f'at{m.array}', f'o_{name}')};")
            place = f"o_{name}"
        if a.moves and name[0] == "y":
            lines.append(f"{CTYPES[a.dtype]} {name};")
            after.append(f"if (in_{name}) atomicAdd(p.{name} + o_{name}, {name});")
            given.append(name)
        else:
            given.append(f"p.{name}[{place}]")
    return [
        "  if (first < (Count)p.tail) {",
        f"    const Count j = vectors * {loop.width} + first;",
        *(f"    {line}" for line in (_indices_of(loop, "j") if loop.across else ())),
        *(f"    {line}" for line in lines),
        f"    scalar({', '.join(given)});",
        *(f"    {line}" for line in after),
        "  }",
    ]
