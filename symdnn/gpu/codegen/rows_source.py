"""CUDA C of :class:`FusedRows`: operands, scalar programs and sums around ``fused_rows.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.gpu.codegen.cuda_source import library, scalar_function
from symdnn.gpu.codegen.device_source import CTYPES, index_lines, numbered, text_of
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.lowered.fused_rows import FusedRows, Stage
from symdnn.ops.nest.kept_terms import hoisted, kept_term
from symdnn.ops.nest.monoid import reads_of


@dataclass(frozen=True)
class RowOperand:
    """The access pattern of an operand.

    ``kind`` is ``fixed`` for one element per row; else that along a vector: ``dense`` for stride 1,
    ``one`` for stride 0, ``strided`` (only where vectors have one element) for others. Vectors of
    ``any`` begin anywhere: all rows have the same elements. ``tiled`` rows are copied through
    shared memory.
    """

    dtype: str
    kind: str


@dataclass(frozen=True)
class Rows:
    """The structure of a kernel.

    ``kept`` and ``reduced`` are the numbers of dimensions after merging. Vectors of ``width``
    elements lie along the last reduced one. ``lanes`` threads have a row, ``per`` vectors each; 0
    if it does not fit into registers. A ``full`` kernel has no vectors beyond the arrays' ends.
    ``columns`` says where a block adds the sums over its rows (see ``fused_rows.cu``). A row that
    does not fit into registers may be ``staged`` in shared memory. ``loose`` rows begin anywhere
    in memory: their vectors are aligned, and the elements before the first and behind the last one
    are read one by one. Rows of ``tiled`` elements are copied through shared memory. With
    ``ahead`` an early block has so many rows, and copies its next one there while it computes one.
    The blocks of a ``cluster`` share a staged row.
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
    staged: bool = False
    loose: bool = False
    tiled: int = 0
    ahead: int = 0
    cluster: int = 1


#: What is done with a vector, and with an element at the ends of a loose row.
_VISIT = """
#define VISIT_OF(N, ...) [&](i32 i, i32 at, Values<N>& v, bool counts) { __VA_ARGS__; }
#if LOOSE
#define VISIT(...) VISIT_OF(V, __VA_ARGS__), VISIT_OF(1, __VA_ARGS__)
#else
#define VISIT(...) VISIT_OF(V, __VA_ARGS__), 0
#endif"""
_SHARED = """
#ifdef SYMDNN_HOST
static bytes16 dynamic_shared[256 * 1024 / 16];
#else
extern __shared__ bytes16 dynamic_shared[];
#endif"""


def rows_source(op: FusedRows, rows: Rows) -> str:
    """A kernel ``fused_rows``."""
    programs = [op.before, op.after, *(p for s in op.stages for p in (s.terms, s.rows))]
    programs += [op.sums] if op.sums else []
    printed = _Printed(op, rows)
    macros = {
        "W": CTYPES[op.work], "V": rows.width, "LANES": rows.lanes, "PER": rows.per,
        "BLOCK": rows.block, "RESIDENT": rows.resident, "FULL": int(rows.full),
        "SUMS": len(op.sums.outputs) if op.sums else 0, "COLUMNS": rows.columns,
        "STAGED": int(rows.staged), "LOOSE": int(rows.loose),
        "TILED": rows.tiled, "AHEAD": rows.ahead, "CLUSTER": rows.cluster,
    }  # fmt: skip
    return "\n".join(
        [
            library(*programs),
            f"typedef {'u64' if rows.wide else 'u32'} Count;",
            f"typedef {'i64' if rows.wide else 'i32'} Offset;",
            *(f"#define {name} {value}" for name, value in macros.items()),
            text_of("cluster.cu") if rows.cluster > 1 else "#define IN_CLUSTER",
            *([text_of("copies.cuh")] if rows.staged or rows.ahead or rows.tiled else []),
            _VISIT,
            *([_SHARED] if rows.staged or rows.ahead or rows.tiled or rows.columns == 1 else []),
            *_parameters(op, rows),
            *_access(op, rows),
            *(_tiles(op, rows) if rows.tiled else []),
            *printed.programs(),
            *printed.stages(),
            text_of("fused_rows.cu"),
        ]
    )


def _parameters(op: FusedRows, rows: Rows) -> list[str]:
    """The struct of parameters: pointers, sizes, strides."""
    fields = [f"const {CTYPES[a.dtype]}* x{i};" for i, a in enumerate(rows.inputs)]
    fields += [f"{CTYPES[a.dtype]}* y{i};" for i, a in enumerate(rows.outputs)]
    fields += [f"W* kept{i};" for i in range(len(op.kept))]
    fields += ["W* partial;", "double elements;", "i64 rows;", "i64 vectors;", "i64 run;"]
    fields += ["i64 early;"] * (rows.ahead > 0)
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
    if rows.loose:
        return "0" if a.kind == "one" else "at"
    terms = [f"(Offset)r{d} * (Offset)p.{name}_r{d}" for d in _steps_along(a, rows.reduced)]
    if a.kind in ("dense", "tiled"):
        terms.append(f"(Offset)r{rows.reduced - 1} * V")
    return " + ".join(terms) or "0"


#: Kinds of operands of which a vector is read.
_VECTORS = ("dense", "strided", "any", "tiled")


def _held(a: RowOperand) -> str:
    ctype = CTYPES[a.dtype]
    return f"Vec<{ctype}, N>" if a.kind in _VECTORS else ctype


def _read(name: str, a: RowOperand, rows: Rows) -> str:
    at = _place(name, a, rows)
    if a.kind == "strided":
        return f"{{b.{name}[{at}]}}"
    if a.kind == "one":
        return f"b.{name}[{at}]"
    return f"{'load_anywhere' if a.kind == 'any' else 'load'}<N>(b.{name} + {at})"


def _access(op: FusedRows, rows: Rows) -> list[str]:
    """``Base``, ``early`` and ``late``, which read a vector of inputs, and ``write``."""
    names = numbered(rows.inputs, rows.outputs)
    count = len(rows.inputs)
    fields = [
        f"{CTYPES[a.dtype]} {n};" if a.kind == "fixed"
        else f"{'const ' if n[0] == 'x' else ''}{CTYPES[a.dtype]}* {n};"
        for n, a in names
    ]  # fmt: skip
    starts, head = [], "0"
    for n, a in names:
        terms = " + ".join(f"(i64)k{d} * p.{n}_k{d}" for d in range(rows.kept))
        starts.append(f"{'*' if a.kind == 'fixed' else ''}(p.{n} + ({terms}))")
        if rows.loose and a.kind == "dense":
            head = f"(i32)(-({terms}) & (V - 1))"
    lines = [
        "// ``head`` elements of a row are before its first aligned vector.",
        f"struct Base {{ {' '.join(fields)} i32 head; }};",
        "INLINE Base base_of(const Parameters& p, Count row) {",
        *index_lines("row", rows.kept, "k"),
        f"  return {{{', '.join([*starts, head])}}};",
        "}",
    ]
    for struct, own in (("Early", names[: op.early]), ("Late", names[op.early : count])):
        moving = [(n, a) for n, a in own if a.kind != "fixed"]
        lines += [
            "template <i32 N>",
            f"struct {struct} {{ {' '.join(f'{_held(a)} {n};' for n, a in moving)} }};",
            f"template <i32 N> INLINE {struct}<N> {struct.lower()}"
            "(const Parameters& p, const Base& b, i32 at) {",
            *index_lines("(Count)at", rows.reduced, "r"),
            f"  return {{{', '.join(_read(n, a, rows) for n, a in moving)}}};",
            "}",
        ]
    if rows.staged or rows.ahead:
        moving = [(n, a) for n, a in names[: op.early] if a.kind != "fixed"]
        lines += [
            "INLINE void stage(const Parameters& p, const Base& b, i32 at, Early<V>* to) {",
            *index_lines("(Count)at", rows.reduced, "r"),
            *(f"  copy_kept(&to->{n}, b.{n} + {_place(n, a, rows)});" for n, a in moving),
            "}",
        ]
    return [*lines, *_written(names[count:], rows)]


_COPY = """
// Copies neighbours from memory, or to it, in vectors; the copies from memory may be late.
template <bool FROM> INLINE void copied(void* to, const void* from, i32 nbytes) {
  const i32 whole = nbytes / 16, me = threadIdx.x;
  for (i32 i = me; i < whole; i += BLOCK)
    if (FROM)
      copy_kept((Vec<u32, 4>*)to + i, (const u32*)from + i * 4);
    else
      ((bytes16*)to)[i] = ((const bytes16*)from)[i];
  for (i32 i = whole * 16 + me; i < nbytes; i += BLOCK) ((u8*)to)[i] = ((const u8*)from)[i];
}"""


def tile_places(
    inputs: Sequence[RowOperand], outputs: Sequence[RowOperand], early: int, nbytes: int
) -> tuple[dict[str, int], int]:
    """Where in shared memory the tiled operands are, ``nbytes`` for each byte of an element, and
    the size of all: a result takes the place of an operand that registers keep by then.
    """
    places: dict[str, int] = {}
    free: list[tuple[int, int]] = []
    size = 0
    for i, (n, a) in enumerate(numbered(inputs, outputs)):
        if a.kind != "tiled":
            continue
        itemsize = numpy_dtype(a.dtype).itemsize
        again = next((f for f in free if f[1] == itemsize), None) if n[0] == "y" else None
        if again:
            free.remove(again)
            places[n] = again[0]
            continue
        places[n] = size
        free += [(size, itemsize)] * (i < early)
        size += nbytes * itemsize
    return places, size


def _tiles(op: FusedRows, rows: Rows) -> list[str]:
    """``fill`` and ``drain``, which copy rows to and from shared memory, and ``in_tile``."""
    places, fills, drains = [], [], []
    nbytes = rows.block // rows.lanes * rows.tiled
    found, _ = tile_places(rows.inputs, rows.outputs, op.early, nbytes)
    for n, a in numbered(rows.inputs, rows.outputs):
        if a.kind != "tiled":
            continue
        tile = f"(u8*)dynamic_shared + {found[n]}"
        size = f"rows * TILED * (i32)sizeof({CTYPES[a.dtype]})"
        places.append(f"  b.{n} = ({CTYPES[a.dtype]}*)({tile}) + row * TILED;")
        if n[0] == "x":
            fills.append(f"  copied<true>({tile}, p.{n} + tile * TILED, {size});")
        else:
            drains.append(f"  copied<false>(p.{n} + tile * TILED, {tile}, {size});")
    return [
        _COPY,
        "INLINE void in_tile(Base& b, i32 row) {",
        *places,
        "}",
        "INLINE void fill(const Parameters& p, i64 tile, i32 rows) {",
        *fills,
        "}",
        "INLINE void drain(const Parameters& p, i64 tile, i32 rows) {",
        *drains,
        "}",
    ]


def _written(results: list[tuple[str, RowOperand]], rows: Rows) -> list[str]:
    """``Results`` and ``write``."""
    lines = [
        "template <i32 N>",
        f"struct Results {{ {' '.join(f'{_held(a)} {n};' for n, a in results)} }};",
        "template <i32 N> INLINE void write"
        "(const Parameters& p, const Base& b, i32 at, const Results<N>& y) {",
        *index_lines("(Count)at", rows.reduced, "r"),
    ]
    for n, a in results:
        at = f"b.{n} + {_place(n, a, rows)}"
        one = f"*({at}) = y.{n}.v[0];"
        lines.append(f"  {one if a.kind == 'strided' else f'store({at}, y.{n});'}")
    return [*lines, "}"]


class _Printed:
    """Prints the scalar programs, and functions that call them on structs of operands.

    A term that the results need again, as a softmax its exponentials, is kept with the values.
    What follows from values of the row alone is in ``hoisted``, by the number of the stage that
    needs it; the results have that behind the last one.
    """

    def __init__(self, op: FusedRows, rows: Rows) -> None:
        self.op, self.rows = op, rows
        self.names = numbered(rows.inputs, rows.outputs)[: len(rows.inputs)]
        self.values = [f"v{i}" for i in range(len(op.before.outputs))]
        self.row = [f"r{i}" for i in range(op.row_values)]
        narrow = all(is_narrow_float(d) for d in op.after.output_dtypes)
        self.rounded = narrow and bool(op.after.outputs) and not op.kept and op.sums is None
        self.kept = kept_term(op, op.work, apart=True) if rows.per else None
        if self.kept and not _stays(op, *self.kept):
            self.kept = None
        self.hoisted: list[list[ScalarProgram]] = []
        self.terms: list[ScalarProgram] = []
        first = len(op.before.outputs)
        known = 0
        for stage in op.stages:
            self._hoist(stage.terms, range(first, first + known))
            known += len(stage.rows.outputs)
        self._hoist(self.kept[2] if self.kept else op.after, range(first, first + known))

    def _hoist(self, program: ScalarProgram, rows: range) -> None:
        found, rest = hoisted(program, rows)
        self.hoisted.append(found)
        self.terms.append(rest)

    def _once(self, number: int) -> list[str]:
        """What ``hoisted`` says of a stage."""
        return [f"r.h{number}_{i}" for i in range(len(self.hoisted[number]))]

    def _function(self, program: ScalarProgram, name: str) -> str:
        return scalar_function(program, name, self.rounded)

    def _element(self, struct: str, n: str, a: RowOperand) -> str:
        at = ".v[k]" if a.kind in _VECTORS else ""
        return f"b.{n}" if a.kind == "fixed" else f"{struct}.{n}{at}"

    def _arguments(self, known: int, out: Sequence[str], more: Sequence[str] = ()) -> str:
        """Values, values of the row, late operands, further ones and results."""
        late = [self._element("l", n, a) for n, a in self.names[self.op.early :]]
        before = [*(f"v.{v}[k]" for v in self.values), *(f"r.{r}" for r in self.row[:known])]
        return ", ".join([*before, *late, *more, *out])

    def programs(self) -> list[str]:
        """Functions of one element, and of a vector's."""
        op, values = self.op, self.values
        early = self.names[: op.early]
        given = [self._element("e", n, a) for n, a in early] + [f"v.{v}[k]" for v in values]
        fields = [f"{CTYPES[d]} {v}[N];" for v, d in zip(values, op.before.output_dtypes)]
        fields += ["W again[N];"] if self.kept else []
        taken = "const Base& b, const Values<N>& v, const Row& r, const Late<N>& l, int k"
        more = [*(["v.again[k]"] if self.kept else []), *self._once(len(op.stages))]
        row = [f"W {r};" for r in self.row]
        for s, programs in enumerate(self.hoisted):
            row += [f"{CTYPES[p.output_dtypes[0]]} h{s}_{i};" for i, p in enumerate(programs)]
        out = [f"y.y{i}.v[k]" for i in range(len(self.rows.outputs))]
        lines = [
            self._function(op.before, "values"),
            self._function(self.terms[-1], "results"),
            *([self._function(op.sums, "column_terms")] if op.sums else []),
            f"template <i32 N> struct Values {{ {' '.join(fields)} }};",
            f"struct Row {{ {' '.join(row)} }};",
            "template <i32 N> INLINE Values<N> values_of(const Base& b, const Early<N>& e) {",
            "  Values<N> v;",
            "#pragma unroll",
            f"  for (int k = 0; k < N; k++) values({', '.join(given)});",
            "  return v;",
            "}",
            f"template <i32 N> INLINE void result_of({taken}, Results<N>& y) {{",
            f"  results({self._arguments(len(self.row), out, more)});",
            "}",
            "INLINE void keep(const Parameters& p, const Row& r, i64 row) {",
            *(f"  p.kept{i}[row] = r.r{n};" for i, n in enumerate(op.kept)),
            "}",
        ]
        if op.sums:
            out = [f"terms[{i}]" for i in range(len(op.sums.outputs))]
            lines += [
                f"template <i32 N> INLINE void columns_of({taken}, W* terms) {{",
                f"  column_terms({self._arguments(len(self.row), out)});",
                "}",
            ]
        return lines

    def stages(self) -> list[str]:
        """``staged``: the sums of each stage, and the row values that follow."""
        lines, calls, known = ["template <class HOW, int N> INLINE void meet(W (&sums)[N]);"], [], 0
        for i, stage in enumerate(self.op.stages):
            lines += [*_combination(i, stage), *self._terms(i, stage, known)]
            calls += _stage(self.rows, i, stage, known)
            known += len(stage.rows.outputs)
            given = ", ".join(f"r.{r}" for r in self.row[:known])
            for n, program in enumerate(self.hoisted[i + 1]):
                lines.append(self._function(program, f"once{i + 1}_{n}"))
                calls.append(f"  once{i + 1}_{n}({given}, r.h{i + 1}_{n});")
        return [
            *lines,
            "template <class M> INLINE Row staged(const Parameters& p, M& mine) {",
            "  Row r;",
            *calls,
            "  return r;",
            "}",
        ]

    def _terms(self, number: int, stage: Stage, known: int) -> list[str]:
        """The program of a stage's row values, and a function that takes in a vector's terms."""
        terms, kept = len(stage.terms.outputs), self.kept
        partial = _partial(self.rows, terms)
        out = [f"terms[{t}]" for t in range(terms)]
        again = f"v.again[k] = terms[{kept[1]}];" if kept and kept[0] == number else ""
        late = len(stage.terms.inputs) - (len(self.rows.inputs) - self.op.early)
        reads = any(i >= late for i in reads_of(stage.terms, stage.terms.outputs))
        program, once = self.terms[number], self._once(number)
        return [
            self._function(program, f"terms{number}"),
            self._function(stage.rows, f"rows{number}"),
            f"template <i32 N> INLINE void take{number}(const Parameters& p, const Base& b,"
            " const Row& r, i32 i, i32 at, Values<N>& v, bool counts,"
            f" W (&sums)[{partial}][{terms}]) {{",
            f"  const Late<N> l = {'late<N>(p, b, at)' if reads else '{}'};",
            "#pragma unroll",
            "  for (int k = 0; k < N; k++) {",
            f"    W terms[{terms}];",
            f"    terms{number}({self._arguments(known, out, once)});",
            f"    {again}",
            "#pragma unroll",
            f"    for (int t = 0; t < {terms}; t++)",
            f"      if (counts) sums[(u32)(i * N + k) % {partial}][t] ="
            f" How{number}::of(t, sums[(u32)(i * N + k) % {partial}][t], terms[t]);",
            "  }",
            "}",
        ]


def _stays(op: FusedRows, stage: int, term: int, after: ScalarProgram) -> bool:
    """Whether a kept term of the last stage takes the place of the values."""
    values = set(range(len(op.before.outputs)))
    return stage == len(op.stages) - 1 and not values & reads_of(after, after.outputs)


def _partial(rows: Rows, terms: int) -> int:
    """Partial results of each term, so that an addition need not wait for the one before."""
    return max(1, min(4, 4 if rows.per else rows.width) // terms)


#: What no elements give, and how two values are combined.
_NEUTRAL = {"sum": "(W)0", "max": "-(W)INF_f", "min": "(W)INF_f"}
_COMBINED = {"sum": "a + b", "max": "s_max(a, b)", "min": "s_min(a, b)"}


def _combination(number: int, stage: Stage) -> list[str]:
    """``How<number>``: how terms are combined, by their numbers, and what none give."""
    kinds = [stage.kind(t) for t in range(len(stage.terms.outputs))]
    found, none = _COMBINED[kinds[-1]], _NEUTRAL[kinds[-1]]
    for t, kind in reversed(list(enumerate(kinds[:-1]))):
        if kind != kinds[-1]:
            found = f"t == {t} ? {_COMBINED[kind]} : {found}"
            none = f"t == {t} ? {_NEUTRAL[kind]} : {none}"
    begin = "static __device__ __forceinline__ W"
    of = f"{begin} of(int t, W a, W b) {{ return {found}; }}"
    return [f"struct How{number} {{ {of} {begin} none(int t) {{ return {none}; }} }};"]


def _stage(rows: Rows, number: int, stage: Stage, known: int) -> list[str]:
    terms = len(stage.terms.outputs)
    given = [f"r.r{i}" for i in range(known)]
    given += [f"sums[0][{t}]" for t in range(terms)] + ["(W)p.elements"]
    given += [f"r.r{known + i}" for i in range(len(stage.rows.outputs))]
    start = ", ".join(_NEUTRAL[stage.kind(t)] for t in range(terms))
    partial = _partial(rows, terms)
    return [
        "  {",
        f"    W sums[{partial}][{terms}] = {{{', '.join([f'{{{start}}}'] * partial)}}};",
        f"    mine.each(p, VISIT(take{number}(p, mine.base, r, i, at, v, counts, sums)));",
        "#pragma unroll",
        f"    for (int i = 1; i < {partial}; i++)",
        "#pragma unroll",
        f"      for (int t = 0; t < {terms}; t++)",
        f"        sums[0][t] = How{number}::of(t, sums[0][t], sums[i][t]);",
        f"    meet<How{number}>(sums[0]);",
        f"    rows{number}({', '.join(given)});",
        "  }",
    ]
