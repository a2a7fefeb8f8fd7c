"""CUDA C of reductions: the results of a scalar program are reduced without being stored.

A block computes several outputs at a time, each by several threads, whose partial results are
merged as a tree: by shuffles in a warp, or in shared memory. If there are few outputs of many
elements, these are split into chunks, and the last block to finish merges the chunks' partial
results. The order of all additions depends on shapes, strides and where in 16 bytes memory begins,
so results are reproducible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from symdnn.gpu.codegen.cuda_source import CTYPES, library, scalar_function
from symdnn.gpu.codegen.device_source import index_lines, text_of
from symdnn.gpu.codegen.loop_source import moved_by
from symdnn.gpu.codegen.monoid_source import monoid_struct
from symdnn.gpu.codegen.reduce_form import (
    BLOCK_THREADS,
    WITH_BEGIN,
    Finish,
    Reducer,
    Source,
    Sweep,
    counts_elements,
)
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram

__all__ = ["reduction_source", "takes_bytes"]

#: Reducers of which a loop that reads one vector at a time is unrolled further.
_FEW_REDUCERS = 4
#: Kinds with the method ``take_all``, which takes several elements at a time.
_WITH_ALL = frozenset({"LogSumExp"})
#: Kinds whose method ``take_bytes`` takes all bytes of some words, and ``of_bytes`` those at each
#: place of a word, and the dtypes of these bytes.
_WITH_BYTES = frozenset({"Sum", "AnyTrue", "AllTrue"})
_BYTES = frozenset({"bool", "int8", "uint8"})


def reduction_source(
    program: ScalarProgram, reducers: Sequence[Reducer], sweep: Sweep, finish: Finish | None = None
) -> str:
    """A kernel ``reduce``."""
    finish = finish or _default_finish(reducers)
    element = _vectors(program, reducers, sweep) if sweep.sources else (
        _element(program, reducers, sweep)
    )  # fmt: skip
    return "\n".join(
        [
            library(program, *(p for r in reducers if r.monoid for p in r.monoid.programs))
            + text_of("reduce.cuh")
            + (text_of("selected.cuh") if sweep.moves else "")
            + scalar_function(program, "scalar"),
            f"typedef {'u64' if sweep.wide else 'u32'} Count;",
            f"typedef {'i64' if sweep.wide else 'i32'} Offset;",
            f"#define ROWS {int(sweep.rows)}",
            f"#define STATES {sweep.width if sweep.across else 1}",
            f"#define BATCH {sweep.batch}",
            f"#define UNROLL {4 if len(reducers) <= _FEW_REDUCERS else 2}",
            f"#define BEGINS {int(counts_elements(reducers))}",
            f"#define TAKEN {1 if sweep.across else sweep.width}",
            f"#define RESIDENT {sweep.resident}",
            f"#define LOOSE {int(sweep.loose)}",
            f"#define EDGES {int(sweep.edges)}",
            f"#define TAKES_ALL {int(_takes_all(program, reducers, sweep))}",
            f"#define WARPS {int(sweep.warps)}",
            f"#define TAIL {sweep.tail}",
            f"#define THREADS {BLOCK_THREADS}",
            *_state(reducers),
            *_parameters(finish, sweep, _whole(program, reducers)),
            *_finish(finish),
            *element,
            text_of("reduction.cu"),
        ]
    )


def _default_finish(reducers: Sequence[Reducer]) -> Finish:
    """A finish that writes each state's result to an output."""
    lines = [
        f"p.y{i}[at] = convert<{CTYPES[r.out]}>(s.s{i}.result());" for i, r in enumerate(reducers)
    ]
    return Finish(tuple(lines), (), 0, tuple(r.out for r in reducers))


def _state(reducers: Sequence[Reducer]) -> list[str]:
    """The struct ``State`` with the states of all reductions."""
    parts = range(len(reducers))
    printed = [monoid_struct(r.monoid, f"Fold{i}") for i, r in enumerate(reducers) if r.monoid]
    fields = [
        f"  {f'Fold{i}' if r.monoid else f'{r.kind}<{CTYPES[r.work]}>'} s{i};"
        for i, r in enumerate(reducers)
    ]
    start = " ".join(f"s{i}.start();" for i in parts)
    merge = " ".join(f"s{i}.merge(other.s{i});" for i in parts)
    settle = " ".join(f"s{i}.settle();" for i in parts if reducers[i].kind in WITH_BEGIN)
    return [
        *printed,
        "struct State {",
        *fields,
        f"  __device__ void start() {{ {start} }}",
        f"  __device__ void merge(const State& other) {{ {merge} }}",
        f"  __device__ void settle() {{ {settle} }}",
        "};",
    ]


def _parameters(finish: Finish, sweep: Sweep, whole: Sequence[str]) -> list[str]:
    fields = [f"const {CTYPES[d]}* x{i};" for i, d in enumerate(sweep.inputs)]
    fields += [f"{CTYPES[d]}* y{i};" for i, d in enumerate(finish.output_dtypes)]
    fields += ["State* partial;", "u32* come;", "i64 outputs;", "i64 elements;", "i64 chunks;"]
    fields += ["i64 run;"] * sweep.loose
    fields += [f"i64 k{d};" for d in range(1, sweep.kept)]
    fields += [f"i64 r{d};" for d in range(1, sweep.reduced)]
    for i in range(len(sweep.inputs)):
        fields += [f"i64 x{i}_k{d};" for d in range(sweep.kept)]
        fields += [f"i64 x{i}_r{d};" for d in range(sweep.reduced)]
    for i, own in enumerate(sweep.moves):
        fields += [f"i64 x{i}_l{n}; i64 x{i}_j{n};" for n in range(len(own))]
    fields += ["i32* error_word;", "i64 node;"] if sweep.moves else []
    for i, d in enumerate(finish.input_dtypes):
        fields += [f"const {CTYPES[d]}* z{i};", f"i64 z{i}_s;"]
    fields += [f"double c{i};" for i in range(finish.numbers)]
    fields += [f"{field};" for field in whole]
    return ["struct Parameters {", *(f"  {f}" for f in fields), "};"]


def _whole(program: ScalarProgram, reducers: Sequence[Reducer]) -> list[str]:
    """Pointers to the arrays that get the results which are not reduced."""
    rest = program.output_dtypes[len(reducers) :]
    return [f"{CTYPES[d]}* whole{i}" for i, d in enumerate(rest)]


def _finish(finish: Finish) -> list[str]:
    begin = "INLINE void finish(const Parameters& p, const State& s, i64 at) {"
    return [begin, *(f"  {line}" for line in finish.lines), "}"]


def takes_bytes(program: ScalarProgram, reducers: Sequence[Reducer]) -> bool:
    """Whether elements are bytes, of one operand, that need not be looked at one by one.

    Casts of them keep the numbers: ``uint8`` of an ``int8`` is another one.
    """
    casts = [step for step in program.body if step.name == "cast" and step.args == (0,)]
    return (
        len(program.inputs) == 1
        and program.inputs[0] in _BYTES
        and len(casts) == len(program.body)
        and all(np.can_cast(numpy_dtype(program.inputs[0]), numpy_dtype(s.dtype)) for s in casts)
        and all(r.kind in _WITH_BYTES for r in reducers)
    )


def _takes_all(program: ScalarProgram, reducers: Sequence[Reducer], sweep: Sweep) -> bool:
    """Whether all elements that a thread has read are taken together."""
    alike = all(r.kind in _WITH_ALL for r in reducers) or (
        takes_bytes(program, reducers) and sweep.width % 4 == 0 and sweep.sources[0].dense
    )
    return bool(sweep.sources) and sweep.batch > 1 and sweep.written < 0 and alike


def _moved(i: int, prefix: str, count: int) -> str:
    terms = [f"(Offset){prefix}{d} * (Offset)p.x{i}_{prefix}{d}" for d in range(count)]
    return " + ".join(terms)


def _selected(sweep: Sweep, i: int, some: Iterable[int], before: str, at: str) -> list[str]:
    """Statements that move ``at`` by some index arrays of an operand.

    ``before`` is where an array's own offset begins.
    """
    found = []
    for n in some:
        array, move = sweep.move(i, n)
        place = f"{before}x{array}" + (f" + {_moved(array, 'r', sweep.reduced)}" if before else "")
        found.append(f"  {moved_by(move, f'x{i}', n, f'p.x{array}[{place}]', at)};")
    return found


def _element(program: ScalarProgram, reducers: Sequence[Reducer], sweep: Sweep) -> list[str]:
    """``Base``, the offsets of an output, and ``take``, which reduces one of its elements."""
    count = range(len(sweep.inputs))
    places = [f"b.x{i} + {_moved(i, 'r', sweep.reduced)}" for i in sweep.operands]
    moves = list[str]()
    for i, own in enumerate(sweep.moves):
        if own:
            moves.append(f"  Offset m{i} = {places[i]};")
            moves += _selected(sweep, i, range(len(own)), "b.", f"m{i}")
            places[i] = f"m{i}"
    given = [f"p.x{i}[{place}]" for i, place in enumerate(places)]
    given += [f"v{i}" for i in range(len(program.outputs))]
    return [
        f"struct Base {{ {' '.join(f'Offset x{i};' for i in count)} }};",
        "INLINE Base base_of(const Parameters& p, Count output) {",
        *index_lines("output", sweep.kept, "k"),
        f"  return {{{', '.join(_moved(i, 'k', sweep.kept) for i in count)}}};",
        "}",
        "INLINE void take(const Parameters& p, const Base& b, Count element, State* s) {",
        *index_lines("element", sweep.reduced, "r"),
        *moves,
        *_results(program),
        f"  scalar({', '.join(given)});",
        *(f"  s->s{i}.take(v{i}, (i64)element);" for i in range(len(reducers))),
        "}",
        "INLINE void begin(const Parameters& p, const Base& b, Count element, u32 n, State* s) {",
        *index_lines("element", sweep.reduced, "r"),
        *moves,
        *_results(program),
        f"  scalar({', '.join(given)});",
        *_begun(reducers, "s"),
        "}",
    ]


def _begun(reducers: Sequence[Reducer], state: str) -> list[str]:
    begins = (i for i, r in enumerate(reducers) if r.kind in WITH_BEGIN)
    return [f"  {state}->s{i}.begin(v{i}, n);" for i in begins]


def _results(program: ScalarProgram) -> list[str]:
    return [f"  {CTYPES[d]} v{i};" for i, d in enumerate(program.output_dtypes)]


# -- in vectors -----------------------------------------------------------------------------------


def _vectors(program: ScalarProgram, reducers: Sequence[Reducer], sweep: Sweep) -> list[str]:
    """``_element`` for sweeps in vectors, where elements and outputs are counted in vectors."""
    every = list(enumerate(zip(sweep.inputs, sweep.sources)))
    inputs = every[: len(sweep.operands)]
    late = [(i, pair) for i, pair in every[len(inputs) :] if not pair[1].fixed]
    whole = _whole(program, reducers)
    vector = f"Vec<{{}}, {sweep.width}>"
    kinds = {i: (vector if a.dense else "{}").format(CTYPES[d]) for i, (d, a) in inputs}
    own = [*inputs, *late]
    fields = [f"{kinds[i]} f{i};" if a.fixed else f"Offset x{i};" for i, (_, a) in own]
    fields += ["Count last;"] if sweep.tail else []
    fields += ["Count skip, run, last;"] if sweep.edges else []
    fields += [f"{field};" for field in whole]
    moving = [i for i, (_, a) in inputs if not a.fixed]
    base = [f"  Offset x{i} = {_moved(i, 'k', sweep.kept)};" for i, _ in every]
    for i, of in enumerate(sweep.moves):
        early = [n for n in range(len(of)) if n not in sweep.moved_late(i)]
        base += _selected(sweep, i, early, "", f"x{i}")
    begun = [_read(i, a, f"x{i}", sweep) if a.fixed else f"x{i}" for i, (_, a) in own]
    begun += ["(Count)p.elements - 1"] if sweep.tail else []
    if sweep.edges:
        base, begun = _edges(sweep, base, begun)
    begun += [f"p.whole{i}" for i in range(len(whole))]
    moves, places = list[str](), dict[int, str]()
    for i in moving:
        places[i] = f"b.x{i} + {_moved(i, 'r', sweep.reduced)}"
        if sweep.moved_late(i):
            moves.append(f"  Offset m{i} = {places[i]};")
            moves += _selected(sweep, i, sweep.moved_late(i), "b.", f"m{i}")
            places[i] = f"m{i}"
    reads = [_read(i, sweep.sources[i], places[i], sweep) for i in moving]
    loaded = [f"{kinds[i]} a{i};" for i in moving]
    if sweep.written >= 0:
        reads.append(f"b.x{sweep.written} + {_moved(sweep.written, 'r', sweep.reduced)}")
        loaded.append("Offset at;")
    return [
        f"struct Base {{ {' '.join(fields)} }};",
        "INLINE Base base_of(const Parameters& p, Count output) {",
        *index_lines("output", sweep.kept, "k"),
        *base,
        f"  return {{{', '.join(begun)}}};",
        "}",
        f"struct Loaded {{ {' '.join(loaded)} }};",
        "INLINE Loaded fetch(const Parameters& p, const Base& b, Count element) {",
        *index_lines("element", sweep.reduced, "r"),
        *moves,
        f"  return {{{', '.join(reads)}}};",
        "}",
        *_uses(program, reducers, sweep),
    ]


def _uses(program: ScalarProgram, reducers: Sequence[Reducer], sweep: Sweep) -> list[str]:
    """``use``, which reduces a vector, ``take``, which reads it, too, and ``begin``.

    For the ends of rows that begin anywhere there is ``use_edge``.
    """
    values = [
        f"{'b.f' if a.fixed else 'l.a'}{i}{'.v[k]' if a.dense else ''}"
        for i, a in enumerate(sweep.sources[: len(sweep.operands)])
    ]
    values += [f"v{i}" for i in range(len(program.outputs))]
    outside = f"k >= {sweep.tail} && element == b.last" if sweep.tail else ""
    own = f"element * {sweep.width} + k - b.skip"
    state = "s[k]" if sweep.across else "s[0]"
    return [
        *_use("use", program, reducers, sweep, values, outside),
        *(_use("use_edge", program, reducers, sweep, values, f"{own} >= b.run")
          if sweep.edges else []),
        "INLINE void take(const Parameters& p, const Base& b, Count element, State* s) {",
        "  use(b, fetch(p, b, element), element, s);",
        "}",
        *(_uses_all(program, reducers, sweep, values)
          if _takes_all(program, reducers, sweep) else []),
        "INLINE void begin(const Base& b, const Loaded& l, u32 n, State* s) {",
        "#pragma unroll",
        f"  for (int k = 0; k < {sweep.width if sweep.across else 1}; k++) {{",
        *(f"  {line}" for line in _results(program)),
        f"    scalar({', '.join(values)});",
        *(f"  {line}" for line in _begun(reducers, f"(&{state})")),
        "  }",
        "}",
        "INLINE void begin(const Parameters& p, const Base& b, Count element, u32 n, State* s) {",
        "  begin(b, fetch(p, b, element), n, s);",
        "}",
    ]  # fmt: skip


def _use(
    name: str, program: ScalarProgram, reducers: Sequence[Reducer], sweep: Sweep,
    values: Sequence[str], outside: str,
) -> list[str]:  # fmt: skip
    """A function that reduces a vector but for what is ``outside`` of the row."""
    together = not sweep.across and all(r.kind in _WITH_ALL for r in reducers)
    state = "s[k]" if sweep.across else "s[0]"
    number = "element" if sweep.across else f"element * {sweep.width} + k"
    number += " - b.skip" if sweep.edges else ""
    rest = program.output_dtypes[len(reducers) :]
    before = [f"  Vec<{CTYPES[d]}, {sweep.width}> whole{i};" for i, d in enumerate(rest)]
    each, after = [], [_stored(i, sweep) for i in range(len(rest))]
    if together:
        for i, r in enumerate(reducers):
            kind = CTYPES[r.work]
            before.append(f"  {kind} all{i}[{sweep.width}];")
            found = f"convert<{kind}>(v{i})"
            each.append(f"    all{i}[k] = {_unless(outside, kind, found)};")
            after.append(f"  s[0].s{i}.take_all(all{i});")
        outside = ""
    else:
        each = [
            f"    {state}.s{i}.take(v{i}, (i64)({number}));" for i in range(len(reducers))
        ]  # fmt: skip
    if name == "use_edge" and counts_elements(reducers):
        before.append("  bool none = true;")
        inside = f"element == 0 ? {sweep.width} - b.skip : b.skip + b.run - element * {sweep.width}"
        each = [
            f"    if (none) {{ const u32 n = {inside};",
            *(f"    {line}" for line in _begun(reducers, "s")),
            "    } none = false;",
            *each,
        ]
    each += [f"    whole{i}.v[k] = v{len(reducers) + i};" for i in range(len(rest))]
    return [
        f"INLINE void {name}(const Base& b, const Loaded& l, Count element, State* s) {{",
        *before,
        "#pragma unroll",
        f"  for (int k = 0; k < {sweep.width}; k++) {{",
        *([f"    if ({outside}) continue;"] if outside else []),
        *(f"  {line}" for line in _results(program)),
        f"    scalar({', '.join(values)});",
        *each,
        "  }",
        *after,
        "}",
    ]


def _stored(i: int, sweep: Sweep) -> str:
    """Store a vector; of a row's last one what is inside."""
    part = f"for (int k = 0; k < {sweep.tail}; k++) b.whole{i}[l.at + k] = whole{i}.v[k];"
    last = f"if (element == b.last) {{ {part} }} else " if sweep.tail else ""
    return f"  {last}store<{sweep.width}>(b.whole{i} + l.at, whole{i});"


def _unless(outside: str, kind: str, value: str) -> str:
    """What is no element of the row is minus infinity, which adds nothing."""
    return f"{outside} ? -({kind})INF_f : {value}" if outside else value


def _uses_all(
    program: ScalarProgram, reducers: Sequence[Reducer], sweep: Sweep, values: Sequence[str]
) -> list[str]:
    """``use_all``, which takes all elements that a thread has read, in the dtype of the states."""
    begin = "INLINE void use_all(const Base& b, const Loaded (&l)[BATCH], State* s) {"
    if takes_bytes(program, reducers):
        return [begin, *_all_bytes(program.inputs[0], reducers, sweep), "}"]
    given = [v.replace("l.a", "l[i].a") for v in values[: len(sweep.operands)]]
    at = "i" if sweep.across else f"i * {sweep.width} + k"
    count = sweep.batch * (1 if sweep.across else sweep.width)
    state = "s[k]" if sweep.across else "s[0]"
    kinds = [CTYPES[r.work] for r in reducers]
    held = [f"  {kind} all{i}[{count}];" for i, kind in enumerate(kinds)]
    taken = [f"  {state}.s{i}.take_all(all{i});" for i in range(len(reducers))]
    vectors = ["#pragma unroll", f"  for (int k = 0; k < {sweep.width}; k++) {{"]
    batch = ["#pragma unroll", f"  for (int i = 0; i < {sweep.batch}; i++) {{"]
    results = [f"v{i}" for i in range(len(program.outputs))]
    scalar = [*_results(program), f"    scalar({', '.join([*given, *results])});"]
    scalar += [f"    all{i}[{at}] = convert<{kind}>(v{i});" for i, kind in enumerate(kinds)]
    if sweep.across:
        body = [*vectors, *held, *batch, *scalar, "  }", *taken, "  }"]
    else:
        body = [*held, *vectors, *batch, *scalar, "  }", "  }", *taken]
    return [begin, *body, "}"]


def _all_bytes(dtype: str, reducers: Sequence[Reducer], sweep: Sweep) -> list[str]:
    """The body of ``use_all`` for bytes: those of all words, or at each place of words."""
    words, kind = sweep.width // 4, CTYPES[dtype]
    batch, vector = f"i < {sweep.batch}; i++", f"j < {words}; j++"
    read = "((const u32*)&l[i].a0)[j]"
    if not sweep.across:
        return [
            f"  u32 words[{sweep.batch * words}];",
            "#pragma unroll",
            f"  for (int i = 0; {batch})",
            "#pragma unroll",
            f"    for (int j = 0; {vector}) words[i * {words} + j] = {read};",
            *(f"  s[0].s{i}.template take_bytes<{kind}>(words);" for i in range(len(reducers))),
        ]
    taken = []
    for i in range(len(reducers)):
        taken += [
            f"    s->s{i}.template of_bytes<{kind}>(words, bytes);",
            "#pragma unroll",
            f"    for (int k = 0; k < 4; k++) s[4 * j + k].s{i}.take(bytes[k], 0);",
        ]
    return [
        "#pragma unroll",
        f"  for (int j = 0; {vector}) {{",
        f"    u32 words[{sweep.batch}];",
        "    i32 bytes[4];",
        "#pragma unroll",
        f"    for (int i = 0; {batch}) words[i] = {read};",
        *taken,
        "  }",
    ]


def _read(i: int, source: Source, at: str, sweep: Sweep) -> str:
    how = "load_any" if sweep.loose and sweep.across else "load"
    return f"{how}<{sweep.width}>(p.x{i} + {at})" if source.dense else f"p.x{i}[{at}]"


def _edges(sweep: Sweep, base: list[str], begun: list[str]) -> tuple[list[str], list[str]]:
    """``base_of`` for rows that begin anywhere: from the vector on in which their start is."""
    dense = [i for i, a in enumerate(sweep.sources) if a.dense]
    at = f"(u64)(p.x{dense[0]} + x{dense[0]}) / sizeof(*p.x{dense[0]})"
    base = [*base, f"  const Count skip = (Count)({at} % {sweep.width}), run = (Count)p.run;"]
    places = [f"x{i} - (Offset)skip" if i in dense else b for i, b in enumerate(begun)]
    return base, [*places, "skip", "run", f"(skip + run - 1) / {sweep.width}"]
