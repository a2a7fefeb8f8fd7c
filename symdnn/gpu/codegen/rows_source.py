"""CUDA C of :class:`FusedRows`: operands, scalar programs and sums around ``fused_rows.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.gpu.codegen.cuda_source import library, scalar_function
from symdnn.gpu.codegen.device_source import CTYPES, index_lines, numbered, text_of
from symdnn.ops.lowered.fused_rows import FusedRows, Stage

__all__ = ["RowOperand", "Rows", "rows_source"]


@dataclass(frozen=True)
class RowOperand:
    """The access pattern of an operand.

    ``kind`` is ``fixed`` for one element per row; else that along a vector: ``dense`` for stride 1,
    ``one`` for stride 0, ``strided`` (only where vectors have one element) for others. ``each``
    is read one by one: all rows have the same elements, and their vectors begin elsewhere.
    """

    dtype: str
    kind: str


@dataclass(frozen=True)
class Rows:
    """The structure of a kernel.

    ``kept`` and ``reduced`` are the numbers of dimensions after merging. Vectors of ``width``
    elements lie along the last reduced one. ``lanes`` threads have a row, ``per`` vectors each; 0
    if it does not fit into registers. A ``full`` kernel has no vectors beyond the arrays' ends.
    ``columns`` says where a block adds the sums over its rows (see ``fused_rows.cu``). With
    ``staged``, a row that does not fit into registers is kept in shared memory, and read so many
    vectors at a time. ``loose`` rows begin anywhere in memory: their vectors are aligned, and the
    first and the last one have elements of other rows.
    """

    inputs: tuple[RowOperand, ...]
    outputs: tuple[RowOperand, ...]
    kept: int
    reduced: int
    width: int
    lanes: int
    per: int
    block: int
    resident: int
    full: bool
    wide: bool
    columns: int = 0
    staged: int = 0
    loose: bool = False


def rows_source(op: FusedRows, rows: Rows) -> str:
    """A kernel ``fused_rows``."""
    programs = [op.before, op.after, *(p for s in op.stages for p in (s.terms, s.rows))]
    programs += [op.sums] if op.sums else []
    macros = {
        "W": CTYPES[op.work], "V": rows.width, "LANES": rows.lanes, "PER": rows.per,
        "BLOCK": rows.block, "RESIDENT": rows.resident, "FULL": int(rows.full),
        "SUMS": len(op.sums.outputs) if op.sums else 0, "COLUMNS": rows.columns,
        "STAGED": rows.staged, "LOOSE": int(rows.loose),
    }  # fmt: skip
    return "\n".join(
        [
            library(*programs),
            f"typedef {'u64' if rows.wide else 'u32'} Count;",
            f"typedef {'i64' if rows.wide else 'i32'} Offset;",
            *(f"#define {name} {value}" for name, value in macros.items()),
            *_parameters(op, rows),
            *_access(op, rows),
            *_programs(op, rows),
            *_stages(op),
            text_of("fused_rows.cu"),
        ]
    )


def _parameters(op: FusedRows, rows: Rows) -> list[str]:
    """The struct of parameters: pointers, sizes, strides."""
    fields = [f"const {CTYPES[a.dtype]}* x{i};" for i, a in enumerate(rows.inputs)]
    fields += [f"{CTYPES[a.dtype]}* y{i};" for i, a in enumerate(rows.outputs)]
    fields += [f"W* kept{i};" for i in range(len(op.kept))]
    fields += ["W* partial;", "double elements;", "i64 rows;", "i64 vectors;", "i64 run;"]
    fields += [f"i64 k{d};" for d in range(1, rows.kept)]
    fields += [f"i64 r{d};" for d in range(1, rows.reduced)]
    for name, a in numbered(rows.inputs, rows.outputs):
        fields += [f"i64 {name}_k{d};" for d in range(rows.kept)]
        fields += [f"i64 {name}_r{d};" for d in _steps_along(a, rows.reduced)]
    return ["struct Parameters {", *(f"  {f}" for f in fields), "};"]


def _steps_along(a: RowOperand, reduced: int) -> range:
    """The reduced dimensions whose strides are parameters."""
    return range({"fixed": 0, "strided": reduced}.get(a.kind, reduced - 1))


def _place(name: str, a: RowOperand, rows: Rows) -> str:
    """The place of a vector in its row, in elements."""
    terms = [f"(Offset)r{d} * (Offset)p.{name}_r{d}" for d in _steps_along(a, rows.reduced)]
    if a.kind == "dense":
        terms.append(f"(Offset)r{rows.reduced - 1} * V")
    return " + ".join(terms) or "0"


#: Kinds of operands of which a vector is read.
_VECTORS = ("dense", "strided", "each")


def _held(a: RowOperand) -> str:
    ctype = CTYPES[a.dtype]
    return f"Vec<{ctype}, V>" if a.kind in _VECTORS else ctype


def _read(name: str, a: RowOperand, rows: Rows) -> str:
    at = _place(name, a, rows)
    if a.kind == "strided":
        return f"{{b.{name}[{at}]}}"
    if a.kind == "each":
        return f"each_of<V>(b.{name}, at * V - b.skip, b.run)"
    return f"load<V>(b.{name} + {at})" if a.kind == "dense" else f"b.{name}[{at}]"


def _access(op: FusedRows, rows: Rows) -> list[str]:
    """``Base``, ``early`` and ``late``, which read a vector of inputs, and ``write``."""
    names = numbered(rows.inputs, rows.outputs)
    count = len(rows.inputs)
    fields = [
        f"{CTYPES[a.dtype]} {n};" if a.kind == "fixed"
        else f"{'const ' if n[0] == 'x' else ''}{CTYPES[a.dtype]}* {n};"
        for n, a in names
    ]  # fmt: skip
    starts, skip = [], "0"
    for n, a in names:
        terms = " + ".join(f"(i64)k{d} * p.{n}_k{d}" for d in range(rows.kept))
        starts.append(f"{'*' if a.kind == 'fixed' else ''}(p.{n} + ({terms}))")
        if rows.loose and a.kind == "dense":
            skip = f"(i32)(({terms}) % V)"
            starts[-1] = f"p.{n} + ({terms}) - skip"
    lines = [
        f"struct Base {{ {' '.join(fields)} i32 skip, run; }};",
        "INLINE Base base_of(const Parameters& p, Count row) {",
        *index_lines("row", rows.kept, "k"),
        f"  const i32 skip = {skip};",
        f"  return {{{', '.join([*starts, 'skip', '(i32)p.run'])}}};",
        "}",
        "// Whether an element of a vector is one of the row.",
        "INLINE bool inside(const Base& b, i32 at, i32 k) {",
        "  return !LOOSE || (u32)(at * V + k - b.skip) < (u32)b.run;",
        "}",
        "template <int N, class T> INLINE Vec<T, N> each_of(const T* row, i32 at, i32 run) {",
        "  Vec<T, N> found;",
        "#pragma unroll",
        "  for (i32 k = 0; k < N; k++)",
        "    found.v[k] = (u32)(at + k) < (u32)run ? row[at + k] : convert<T>(1.0f);",
        "  return found;",
        "}",
    ]
    for struct, own in (("Early", names[: op.early]), ("Late", names[op.early : count])):
        moving = [(n, a) for n, a in own if a.kind != "fixed"]
        lines += [
            f"struct {struct} {{ {' '.join(f'{_held(a)} {n};' for n, a in moving)} }};",
            f"INLINE {struct} {struct.lower()}(const Parameters& p, const Base& b, i32 at) {{",
            *index_lines("(Count)at", rows.reduced, "r"),
            f"  return {{{', '.join(_read(n, a, rows) for n, a in moving)}}};",
            "}",
        ]
    return [*lines, *_written(names[count:], rows)]


def _written(results: list[tuple[str, RowOperand]], rows: Rows) -> list[str]:
    """``Results`` and ``write``; of a vector at the ends of a loose row only what is inside."""
    lines = [
        f"struct Results {{ {' '.join(f'{_held(a)} {n};' for n, a in results)} }};",
        "INLINE void write(const Parameters& p, const Base& b, i32 at, const Results& y) {",
        *index_lines("(Count)at", rows.reduced, "r"),
    ]
    places = [f"b.{n} + {_place(n, a, rows)}" for n, a in results]
    if rows.loose:
        each = [f"({at})[k] = y.{n}.v[k];" for at, (n, _) in zip(places, results)]
        lines += [
            "  if (!inside(b, at, 0) || !inside(b, at, V - 1)) {",
            "#pragma unroll",
            f"    for (i32 k = 0; k < V; k++) if (inside(b, at, k)) {{ {' '.join(each)} }}",
            "    return;",
            "  }",
        ]
    for at, (n, a) in zip(places, results):
        one = f"*({at}) = y.{n}.v[0];"
        all_of = f"{'store_whole' if rows.loose else 'store'}({at}, y.{n});"
        lines.append(f"  {one if a.kind == 'strided' else all_of}")
    return [*lines, "}"]


def _programs(op: FusedRows, rows: Rows) -> list[str]:
    """The scalar programs, and functions that call them on structs of operands."""
    names = numbered(rows.inputs, rows.outputs)[: len(rows.inputs)]

    def element(struct: str, n: str, a: RowOperand) -> str:
        at = ".v[k]" if a.kind in _VECTORS else ""
        return f"b.{n}" if a.kind == "fixed" else f"{struct}.{n}{at}"

    values = [f"v{i}" for i in range(len(op.before.outputs))]
    row = [f"r{i}" for i in range(op.row_values)]
    late = [element("l", n, a) for n, a in names[op.early :]]
    given = [element("e", n, a) for n, a in names[: op.early]] + [f"v.{v}[k]" for v in values]

    def arguments(known: int, out: Sequence[str]) -> str:
        before = [*(f"v.{v}[k]" for v in values), *(f"r.{r}" for r in row[:known])]
        return ", ".join([*before, *late, *out])

    fields = [f"{CTYPES[d]} {v}[V];" for v, d in zip(values, op.before.output_dtypes)]
    taken = "const Base& b, const Values& v, const Row& r, const Late& l, int k"
    lines = [
        scalar_function(op.before, "values"),
        scalar_function(op.after, "results"),
        *([scalar_function(op.sums, "column_terms")] if op.sums else []),
        f"struct Values {{ {' '.join(fields)} }};",
        f"struct Row {{ {' '.join(f'W {r};' for r in row)} }};",
        "INLINE Values values_of(const Base& b, const Early& e) {",
        "  Values v;",
        "#pragma unroll",
        f"  for (int k = 0; k < V; k++) values({', '.join(given)});",
        "  return v;",
        "}",
        f"INLINE void result_of({taken}, Results& y) {{",
        f"  results({arguments(len(row), [f'y.y{i}.v[k]' for i in range(len(rows.outputs))])});",
        "}",
        "INLINE void keep(const Parameters& p, const Row& r, i64 row) {",
        *(f"  p.kept{i}[row] = r.r{n};" for i, n in enumerate(op.kept)),
        "}",
    ]
    if op.sums:
        out = [f"terms[{i}]" for i in range(len(op.sums.outputs))]
        lines += [
            f"INLINE void columns_of({taken}, W* terms) {{",
            f"  column_terms({arguments(len(row), out)});",
            "}",
        ]
    known = 0
    for i, stage in enumerate(op.stages):
        out = [f"terms[{t}]" for t in range(len(stage.terms.outputs))]
        lines += [
            scalar_function(stage.terms, f"terms{i}"),
            scalar_function(stage.rows, f"rows{i}"),
            f"INLINE void terms_of{i}({taken}, W* terms) {{",
            f"  terms{i}({arguments(known, out)});",
            "}",
        ]
        known += len(stage.rows.outputs)
    return lines


def _stages(op: FusedRows) -> list[str]:
    """``staged``: the sums of each stage, and the row values that follow."""
    lines = [
        *(line for i, stage in enumerate(op.stages) for line in _combination(i, stage)),
        "template <class HOW, int N> INLINE void meet(W (&sums)[N]);",
        "template <class M> INLINE Row staged(const Parameters& p, M& mine) {",
        "  Row r;",
    ]
    known = 0
    for i, stage in enumerate(op.stages):
        lines += _stage(i, stage, known)
        known += len(stage.rows.outputs)
    return [*lines, "  return r;", "}"]


#: What no elements give, and how two values are combined.
_NEUTRAL = {"sum": "(W)0", "max": "-(W)INF_f", "min": "(W)INF_f"}
_COMBINED = {"sum": "a + b", "max": "s_max(a, b)", "min": "s_min(a, b)"}


def _combination(number: int, stage: Stage) -> list[str]:
    """``How<number>``: how terms are combined, by their numbers."""
    kinds = [stage.kind(t) for t in range(len(stage.terms.outputs))]
    found = _COMBINED[kinds[-1]]
    for t, kind in reversed(list(enumerate(kinds[:-1]))):
        if kind != kinds[-1]:
            found = f"t == {t} ? {_COMBINED[kind]} : {found}"
    of = f"static __device__ __forceinline__ W of(int t, W a, W b) {{ return {found}; }}"
    return [f"struct How{number} {{ {of} }};"]


def _stage(number: int, stage: Stage, known: int) -> list[str]:
    terms = len(stage.terms.outputs)
    given = [f"r.r{i}" for i in range(known)]
    given += [f"sums[{t}]" for t in range(terms)] + ["(W)p.elements"]
    given += [f"r.r{known + i}" for i in range(len(stage.rows.outputs))]
    return [
        "  {",
        f"    W sums[{terms}] = {{{', '.join(_NEUTRAL[stage.kind(t)] for t in range(terms))}}};",
        "    mine.each(p, [&](i32, i32 at, const Values& v) {",
        "      const Late l = late(p, mine.base, at);",
        "#pragma unroll",
        "      for (int k = 0; k < V; k++) {",
        "        if (!inside(mine.base, at, k)) continue;",
        f"        W terms[{terms}];",
        f"        terms_of{number}(mine.base, v, r, l, k, terms);",
        "#pragma unroll",
        f"        for (int t = 0; t < {terms}; t++)",
        f"          sums[t] = How{number}::of(t, sums[t], terms[t]);",
        "      }",
        "    });",
        f"    meet<How{number}>(sums);",
        f"    rows{number}({', '.join(given)});",
        "  }",
    ]
