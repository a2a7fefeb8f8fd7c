"""CUDA C of scalar programs: the body of an inner loop, and loops over arrays around it.

Generated source depends only on structure (the program, the number of dimensions, which operands
are contiguous), not on sizes. One compiled kernel serves all shapes of that structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.gpu.codegen.device_source import CTYPES as REAL_CTYPES
from symdnn.gpu.codegen.device_source import numbered, text_of
from symdnn.graph.type import TensorType
from symdnn.ops.core.scalar import REFERENCE_ONLY, Instruction, ScalarProgram, number_of_text

__all__ = [
    "CTYPES", "Access", "Loop", "elementwise_source", "iterates", "print_problem",
    "scalar_function",
]  # fmt: skip

#: The C type of each dtype that elementwise kernels compute with.
CTYPES = {**REAL_CTYPES, "complex64": "c64", "complex128": "c128"}

#: Instructions that are in special.cuh, and in incomplete.cuh, which needs it (as bessel.cuh does).
_SPECIAL = frozenset(
    {"digamma", "trigamma", "polygamma", "gammainc", "gammaincc", "zeta", "i0e", "i1e"}
)
_INCOMPLETE = frozenset(
    {"gamma_draw_slope", "betaln", "betainc", "betaincc", "betainc_slope_a", "betainc_slope_b",
     "owens_t", "von_mises_draw_slope"}
)  # fmt: skip
#: Those that are in bessel.cuh, for real orders.
_BESSEL = frozenset({"jv", "iv"})


def print_problem(program: ScalarProgram) -> str | None:
    """Why a program cannot be printed as CUDA C; None if it can."""
    if missing := program.names & REFERENCE_ONLY:
        return "CUDA has no " + ", ".join(sorted(missing))
    return None


def iterates(program: ScalarProgram) -> bool:
    """Whether it calls functions that iterate: they take longer than its operands' bytes."""
    return not program.names.isdisjoint(_SPECIAL | _INCOMPLETE | _BESSEL)


def library(*programs: ScalarProgram) -> str:
    """The library sources (``.cuh``) that these programs need."""
    incomplete = any(p.names & _INCOMPLETE for p in programs)
    bessel = any(p.names & _BESSEL for p in programs)
    special = incomplete or bessel or any(p.names & _SPECIAL for p in programs)
    dtypes = {d for p in programs for d in (*p.inputs, *p.output_dtypes)}
    files = ["common.cuh", "scalar.cuh"] + ["special.cuh"] * special
    files += ["incomplete.cuh"] * incomplete + ["bessel.cuh"] * bessel
    files += ["complex.cuh"] * bool(dtypes - REAL_CTYPES.keys())
    return "".join(map(text_of, files))


def scalar_function(program: ScalarProgram, name: str, rounded: bool = False) -> str:
    """A device function ``name(inputs..., results by reference...)``.

    What is ``rounded`` to 16 bits in the end has exponentials of a few instructions.
    """
    given = [f"{CTYPES[d]} v{i}" for i, d in enumerate(program.inputs)]
    results = [f"{CTYPES[d]}& r{i}" for i, d in enumerate(program.output_dtypes)]
    lines = [f"INLINE void {name}({', '.join(given + results)}) {{"]
    for i, step in enumerate(program.body, len(program.inputs)):
        name_of = "share" if _is_logistic_division(program, step) else step.name
        if rounded and (name_of, step.dtype) == ("exp", "float32"):
            name_of = "short_exp"
        lines.append(f"  const {CTYPES[step.dtype]} v{i} = {_expression(step, name_of)};")
    lines += [f"  r{i} = v{v};" for i, v in enumerate(program.outputs)]
    return "\n".join([*lines, "}\n"])


def _is_logistic_division(program: ScalarProgram, step: Instruction) -> bool:
    """Whether ``step`` is the division of a logistic function.

    Its denominator is e + 1 with e = exp(-|x|), and its numerator is e or 1, or a select of them.
    """
    if step.name != "div" or step.dtype not in ("float32", "float64"):
        return False

    def at(number: int) -> Instruction | None:
        k = number - len(program.inputs)
        return program.body[k] if k >= 0 else None

    def is_one(number: int) -> bool:
        s = at(number)
        return s is not None and s.name == "const" and number_of_text(s.value, s.dtype) == 1

    def is_exp_neg_abs(number: int) -> bool:
        """Whether it is ``exp(-abs(x))``."""
        chain: list[str] = []
        s = at(number)
        while s is not None and len(chain) < 3:
            chain.append(s.name)
            s = at(s.args[0]) if s.args else None
        return chain == ["exp", "neg", "abs"]

    above, below = (at(a) for a in step.args)
    if below is None or below.name != "add" or above is None:
        return False
    parts = [a for a in below.args if not is_one(a)]
    if len(parts) != 1 or not is_exp_neg_abs(parts[0]):
        return False
    choices = above.args[1:] if above.name == "select" else (step.args[0],)
    return all(c == parts[0] or is_one(c) for c in choices)


def _expression(step: Instruction, name: str) -> str:
    if step.name == "const":
        return constant_text(step.value, step.dtype)
    args = ", ".join(f"v{a}" for a in step.args)
    if step.name == "cast":
        return f"convert<{CTYPES[step.dtype]}>({args})"
    if step.name == "bitcast":
        return f"{'__float_as_int' if step.dtype == 'int32' else '__int_as_float'}({args})"
    return f"s_{name}({args})"


def constant_text(text: str, dtype: str) -> str:
    """A constant as a C literal, exactly."""
    if TensorType(dtype).is_discrete:
        return _integer_text(int(text), dtype)
    number = float(number_of_text(text, dtype))
    wide = dtype == "float64"
    if number != number:
        literal = "NAN_d" if wide else "NAN_f"
    elif number in (float("inf"), float("-inf")):
        literal = ("-" if number < 0 else "") + ("INF_d" if wide else "INF_f")
    else:
        literal = number.hex() + ("" if wide else "f")
    return f"convert<{CTYPES[dtype]}>({literal})" if dtype in ("float16", "bfloat16") else literal


def _integer_text(number: int, dtype: str) -> str:
    if dtype == "bool":
        return "true" if number else "false"
    if dtype == "uint64":
        return f"{number}ull"
    if number == -(2**63):
        return "(-9223372036854775807ll - 1)"
    return f"({CTYPES[dtype]}){number}ll"


# -- loops over arrays ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """The access pattern of an operand.

    ``inner`` is that of the innermost dimension: ``dense`` for stride 1, read as a vector; ``one``
    for stride 0; ``strided`` for other strides; ``number`` for a scalar among the parameters.
    ``axes`` are the outer dimensions with a stride other than 0. Where vectors reach into the next
    row a contiguous operand is ``flat``, read as a vector; the elements of others are read one by
    one (``each``), and their ``axes`` may have the innermost dimension.
    """

    dtype: str
    inner: str
    axes: tuple[int, ...]

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
    as a vector has elements, so that its vectors begin in the same column.
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

    def read_once(self, access: Access) -> bool:
        """Whether an input is read before the loop over the rows."""
        return self.columns and access.same_in_rows

    @property
    def operands(self) -> list[tuple[str, Access]]:
        """Names and accesses: x0, x1, ... and y0, ..."""
        return numbered(self.inputs, self.outputs)

    def parameters(self) -> list[str]:
        """Fields of the parameter struct in order: pointers, sizes, strides."""
        fields = [f"{_field_type(name, a)} {name};" for name, a in self.operands]
        fields += ["i64 vectors;", "i64 tail;"] + [f"i64 n{d};" for d in range(1, self.ndim)]
        for name, a in self.operands:
            fields += [f"i64 {name}_s{d};" for d in a.axes]
            if a.inner == "strided":
                fields.append(f"i64 {name}_si;")
        return [*fields, "const i32* guard;"] if self.guarded else fields


def _field_type(name: str, access: Access) -> str:
    if access.inner == "number":
        return "double"
    return f"{'const ' if name[0] == 'x' else ''}{CTYPES[access.dtype]}*"


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
    return library(program) + scalar_function(program, "scalar") + "\n".join(lines) + "\n"


def _by_vectors(loop: Loop) -> list[str]:
    """The grid-stride loop over all vectors."""
    fetched = [*_indices(loop), *_offsets(loop), *_read(loop, loop.inputs)]
    return _batches(loop, ("i", "first", "vectors", "step"), fetched, loop.inputs)


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
    held += [(f"o_{n}", "Offset") for n, _ in loop.operands[len(loop.inputs) :]]
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
    return ctype if access.inner in ("one", "number") else f"Vec<{ctype}, {loop.width}>"


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
        lines.append(f"const Offset o_{name} = {' + '.join(terms) or '0'};")
    return lines


def _read(loop: Loop, some: Sequence[Access]) -> list[str]:
    """Read one vector of some inputs."""
    lines = []
    width = loop.width
    for name, a in loop.operands[: len(loop.inputs)]:
        if not any(a is b for b in some):
            continue
        ctype = CTYPES[a.dtype]
        if a.inner == "each":
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
    width = loop.width
    outputs = loop.operands[len(loop.inputs) :]
    lines = [f"Vec<{CTYPES[a.dtype]}, {width}> {name};" for name, a in outputs]
    given = [name if a.inner in ("one", "number") else f"{name}.v[k]" for name, a in loop.operands]
    lines.append("#pragma unroll")
    lines.append(f"for (int k = 0; k < {width}; k++) scalar({', '.join(given)});")
    for name, a in outputs:
        if a.inner in ("dense", "flat"):
            lines.append(f"store(p.{name} + o_{name}, {name});")
        else:
            at = f"p.{name}[o_{name} + k * (Offset)p.{name}_si]"
            lines.append(f"for (int k = 0; k < {width}; k++) {at} = {name}.v[k];")
    return lines


def _tail(loop: Loop) -> list[str]:
    """The last elements of an array, one per thread."""
    given = []
    for name, a in loop.operands:
        if a.inner == "number":
            given.append(f"convert<{CTYPES[a.dtype]}>(p.{name})")
            continue
        strided = f"(Offset)j * (Offset)p.{name}_si"
        at = {"one": "0", "dense": "j", "flat": "j", "strided": strided}
        given.append(f"p.{name}[{at.get(a.inner) or _offset_of(name, a, 'i')}]")
    return [
        "  if (first < (Count)p.tail) {",
        f"    const Count j = vectors * {loop.width} + first;",
        *(f"    {line}" for line in (_indices_of(loop, "j") if loop.across else ())),
        f"    scalar({', '.join(given)});",
        "  }",
    ]
