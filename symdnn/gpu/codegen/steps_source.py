"""CUDA C of a loop of small steps: one block runs all of it, with barriers between statements.

A kernel's parameters are the first step and the end of the stretch, the address of three words that
it writes (steps done in all, whether the condition ended the loop, whether a check failed), that of
the larger buffers, and those of the arrays; of a number on the host the number itself. Smaller
buffers are in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import prod

from symdnn.gpu.codegen.cuda_source import constant_text, library, scalar_function
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.monoid_source import monoid_struct
from symdnn.graph.values.strides import merged
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.nest.monoid import Monoid, total
from symdnn.ops.nest.nest import Fold
from symdnn.ops.steps.statements import (
    Branch,
    Check,
    Folding,
    Index,
    LoopProgram,
    Map,
    Product,
    Repeat,
    Statement,
    View,
    programs_of,
)

#: Bytes of buffers in shared memory at most; other buffers are in device memory.
_SHARED_BYTES = 36 << 10
_WARP = 32
_MOST_THREADS, _LEAST_THREADS, _LINE = 512, _WARP, 16
#: What a state is in the lane whose number differs in a bit; all threads of a warp come to it.
_OF_LANE = """
template<class S> INLINE S of_lane(const S& state, int bit) {
  union { S state; u32 words[(sizeof(S) + 3) / 4]; } u;
  u.state = state;
#pragma unroll
  for (int i = 0; i < (int)sizeof(u) / 4; i++)
    u.words[i] = __shfl_xor_sync(0xffffffffu, u.words[i], bit);
  return u.state;
}"""
#: Elements of a fold that a thread takes at least, where several share one.
_LEAST_OF_A_LANE = 4
#: Bytes of shared memory for partial states of folds, 16 for each warp.
_PARTIAL = 16


def scratch_places(program: LoopProgram) -> dict[int, int]:
    """The offset of each buffer in device memory; the size of all is at -1.

    The smallest buffers are in shared memory.
    """
    found, at, shared = {}, 0, 0
    for i, size in sorted(enumerate(program.buffers), key=lambda pair: pair[1]):
        size = -(-size // _LINE) * _LINE
        if shared + size <= _SHARED_BYTES:
            shared += size
        else:
            found[i] = at
            at += size
    return {**found, -1: at}


def threads_of(program: LoopProgram) -> int:
    """The number of threads of the block: as many as the largest statement can use."""
    most = 1
    for s in program.statements():
        if isinstance(s, Map):
            most = max(most, prod(s.shape))
        elif isinstance(s, Folding):
            most = max(most, prod(s.sizes) // _LEAST_OF_A_LANE)
        elif isinstance(s, Product):
            most = max(most, prod(s.x.shape) * s.y.shape[2] // _LEAST_OF_A_LANE)
    threads = _LEAST_THREADS
    while threads < min(most, _MOST_THREADS):
        threads *= 2
    return threads


def steps_source(program: LoopProgram, numbers: Collection[int] = ()) -> str:
    """The source of the kernel ``steps``; ``numbers`` are the arrays given as numbers."""
    b = _Source(program)
    b.fresh(program.before)  # the barrier after it is for both of the following branches
    b.put("if (p.first == 0) {")
    b.fresh(program.begin)
    b.put("} else {")
    b.fresh(program.resume)
    b.put("}")
    b.own_loop(program.loop)
    b.fresh(program.after)
    arrays = [f"{'i64' if i in numbers else 'char*'} a{i};" for i in range(program.arrays)]
    programs = list(dict.fromkeys((*programs_of(program), *b.functions)))
    return "\n".join([
        library(*programs), *b.structs,
        *(scalar_function(f, name) for f, name in b.functions.items()),
        "template<class T> INLINE T& at(char* base, i64 offset) { return *(T*)(base + offset); }",
        _OF_LANE,
        "struct Parameters { i64 first, end; i64* out; char* scratch;", *arrays, "};",
        f'extern "C" __global__ void __launch_bounds__({b.threads})'
        " steps(const __grid_constant__ Parameters p) {",
        "const int thread = threadIdx.x;",
        "if (thread == 0) p.out[2] = 0;",
        *b.memory(numbers), *b.lines, "}\n",
    ])  # fmt: skip


class _Source:
    """Writes the lines of the kernel, and the functions that it calls."""

    def __init__(self, program: LoopProgram) -> None:
        self.program, self.threads = program, threads_of(program)
        self.lines: list[str] = []
        self.functions: dict[ScalarProgram, str] = {}
        self.structs: list[str] = []
        self._monoids: dict[Monoid, str] = {}
        self._read: set[str] = set()
        self._written: set[str] = set()
        self._names = 0

    def put(self, *lines: str) -> None:
        """Append lines."""
        self.lines += lines

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}_{self._names}"

    def memory(self, numbers: Collection[int]) -> list[str]:
        """Lines that name arrays and buffers."""
        places, lines, at = scratch_places(self.program), [], 0
        for i, size in enumerate(self.program.buffers):
            if i in places:
                lines.append(f"char* const b{i} = p.scratch + {places[i]};")
            else:
                lines.append(f"char* const b{i} = shared + {at};")
                at += -(-size // _LINE) * _LINE
        arrays = [
            f"char* const a{i} = {f'(char*)&p.a{i}' if i in numbers else f'p.a{i}'};"
            for i in range(self.program.arrays)
        ]
        words, partial = max(at, _LINE) // 8, _PARTIAL * self.threads // _WARP // 8
        return [
            f"__shared__ i64 buffers[{words}], partial[{partial}];",
            "char* const shared = (char*)buffers;", *arrays, *lines,
        ]  # fmt: skip

    # -- barriers -------------------------------------------------------------------------------

    def meet(self) -> None:
        """Wait for all threads."""
        if self._read or self._written:
            self.put("__syncthreads();")
        self._read, self._written = set(), set()

    def touches(self, reads: Iterable[View], writes: Iterable[View] = ()) -> None:
        """Have a statement see what others wrote, and not write what others still read."""
        r, w = ({v.base for v in group if v.base} for group in (reads, writes))
        if r & self._written or w & (self._written | self._read):
            self.meet()
        self._read |= r
        self._written |= w

    # -- places ---------------------------------------------------------------------------------

    def offset(self, view: View) -> str:
        """Where a view's first element is, in bytes."""
        return " + ".join([f"{view.offset}ll", *(f"{n} * {f}ll" for n, f in view.moves)])

    def element(self, view: View, place: str) -> str:
        """An element of a view, ``place`` bytes behind its first one."""
        if not view.base:
            return constant_text(view.literal, view.dtype)
        return f"at<{CTYPES[view.dtype]}>({view.base}, {self.offset(view)}{place})"

    def function(self, program: ScalarProgram) -> str:
        """The name of a program's function."""
        return self.functions.setdefault(program, f"program{len(self.functions)}")

    def monoid(self, m: Monoid) -> str:
        """The name of a monoid's struct."""
        if m not in self._monoids:
            self._monoids[m] = f"Fold{len(self._monoids)}"
            self.structs.append(monoid_struct(m, self._monoids[m]))
        return self._monoids[m]

    def indices(self, number: str, sizes: Sequence[int], name: str) -> list[str]:
        """Define the indices along ``sizes`` of an element's number in C order."""
        names, rest = [f"{name}{d}" for d in range(len(sizes))], number
        for d in reversed(range(len(sizes))):
            last = d == 0
            self.put(f"const int {names[d]} = {rest if last else f'{rest} % {sizes[d]}'};")
            rest = f"({rest}) / {sizes[d]}"
        return names

    # -- statements -----------------------------------------------------------------------------

    def block_of(self, block: Sequence[Statement]) -> None:
        """Write statements one after the other."""
        for s in block:
            _WRITERS[type(s)](self, s)

    def fresh(self, block: Sequence[Statement]) -> None:
        """Write statements between barriers."""
        self.meet()
        self.block_of(block)
        self.meet()

    def map(self, s: Map) -> None:
        """Write an elementwise loop."""
        self.touches(s.reads, s.writes)
        views, name = (*s.reads, *s.writes), self._name("e")
        sizes, steps = merged(s.shape, [v.steps for v in views])
        self.put(f"for (int {name} = thread; {name} < {prod(sizes)}; {name} += {self.threads}) {{")
        places = _places(self.indices(name, sizes, f"{name}_"), steps)
        given = [self.element(v, place) for v, place in zip(s.reads, places)]
        results = [f"{name}_r{i}" for i in range(len(s.writes))]
        for v, r in zip(s.writes, results, strict=True):
            self.put(f"{CTYPES[v.dtype]} {r};")
        self.put(f"{self.function(s.program)}({', '.join([*given, *results])});")
        for v, r, place in zip(s.writes, results, places[len(s.reads) :], strict=True):
            self.put(f"{self.element(v, place)} = {r};")
        self.put("}")

    def folding(self, s: Folding) -> None:
        """Write a fold. Several threads share one that has few results."""
        self.touches(s.reads, s.writes)
        kept = [d for d in range(len(s.sizes)) if d not in s.along]
        outputs = prod(s.sizes[d] for d in kept)
        lanes = self._lanes(s, outputs, prod(s.sizes[d] for d in s.along))
        own, o, first = self.threads // lanes, self._name("o"), self._name("first")
        # All threads go through the loop alike, since they may meet inside.
        self.put(f"for (int {first} = 0; {first} < {outputs}; {first} += {own}) {{")
        self.put(f"const int {o} = {first} + thread / {lanes}, lane = thread % {lanes};")
        places = _places(
            self.indices(o, [s.sizes[d] for d in kept], f"{o}_"),
            [[v.steps[d] for d in kept] for v in (*s.reads, *s.writes)],
        )
        states = [self._name("s") for _ in s.fold.monoids]
        for m, state in zip(s.fold.monoids, states, strict=True):
            self.put(f"{self.monoid(m)} {state}; {state}.start();")
        self.put(f"if ({o} < {outputs}) {{")
        self._along(s, states, places, lanes)
        self.put("}")
        for m, state in zip(s.fold.monoids, states, strict=True):
            self._merged(self.monoid(m), state, lanes)
        if not s.fold.scan:
            self.put(f"if (lane == 0 && {o} < {outputs}) {{")
            self._write(s, states, places[len(s.reads) :])
            self.put("}")
        self.put("}")

    def _lanes(self, s: Folding, outputs: int, elements: int) -> int:
        """How many threads share a fold."""
        if s.fold.scan or any(_state_bytes(m) > _PARTIAL or m.ordered for m in s.fold.monoids):
            return 1
        lanes = 1
        while 2 * lanes * outputs <= self.threads and 2 * lanes * _LEAST_OF_A_LANE <= elements:
            lanes *= 2
        return lanes

    def _merged(self, kind: str, state: str, lanes: int) -> None:
        """Have the first of the lanes take in the states of the others, its neighbours."""
        half = min(lanes, _WARP) // 2
        while half:
            self.put(f"{state}.merge(of_lane({state}, {half}));")
            half //= 2
        if lanes > _WARP:
            warps, parts = lanes // _WARP, f"(({kind}*)partial)"
            self.put(
                "__syncthreads();",
                f"if (thread % {_WARP} == 0) {parts}[thread / {_WARP}] = {state};",
                "__syncthreads();",
                "if (lane == 0)",
                f"for (int w = 1; w < {warps}; w++) {state}.merge({parts}[thread / {_WARP} + w]);",
            )

    def _along(self, s: Folding, states: Sequence[str], places: Sequence[str], lanes: int) -> None:
        """The loop over a fold's elements."""
        k, n = self._name("k"), len(s.reads)
        elements = prod(s.sizes[d] for d in s.along)
        first = "lane" if lanes > 1 else "0"
        self.put(f"for (int {k} = {first}; {k} < {elements}; {k} += {lanes}) {{")
        inner = self.indices(k, [s.sizes[d] for d in s.along], f"{k}_")
        views = (*s.reads, *s.writes)
        more = _places(inner, [[v.steps[d] for d in s.along] for v in views])
        there = [a + b for a, b in zip(places, more, strict=True)]
        given = [self.element(v, a) for v, a in zip(s.reads, there)]
        dtypes = s.fold.program.output_dtypes
        values = [f"{k}_v{i}" for i in range(len(dtypes))]
        self.put(*(f"{CTYPES[d]} {v};" for d, v in zip(dtypes, values)))
        self.put(f"{self.function(s.fold.program)}({', '.join([*given, *values])});")
        if s.fold.scan == "exclusive":
            self._write(s, states, there[n:])
        for m, state, taken in zip(s.fold.monoids, states, s.fold.element_numbers(), strict=True):
            told = [*(values[i] for i in taken), f"({CTYPES[m.number]}){k}"]
            self.put(f"{state}.take({', '.join(told)});")
        if s.fold.scan == "inclusive":
            self._write(s, states, there[n:])
        self.put("}")

    def _write(self, s: Folding, states: Sequence[str], places: Sequence[str]) -> None:
        """Write the results of states."""
        at = 0
        for m, state in zip(s.fold.monoids, states, strict=True):
            dtypes = m.leave.output_dtypes
            results = [self._name("r") for _ in dtypes]
            self.put(*(f"{CTYPES[d]} {r};" for d, r in zip(dtypes, results)))
            self.put(f"{state}.leave({', '.join(results)});")
            for r in results:
                self.put(f"{self.element(s.writes[at], places[at])} = {r};")
                at += 1

    def product(self, s: Product) -> None:
        """Write products of matrices, as sums along their common axis."""
        x, y, out = s.x, s.y, s.out
        (stack, m, k), n = x.shape, y.shape[2]
        b = Builder([x.dtype, x.dtype])
        fold = Fold(b.program([b.input(0) * b.input(1)]), (total("add", *[x.dtype] * 3),))
        sizes = (stack, m, n, k)
        steps = [(x.steps[0], x.steps[1], 0, x.steps[2]), (y.steps[0], 0, y.steps[2], y.steps[1]),
                 (*out.steps, 0)]  # fmt: skip
        views = [replace(v, shape=sizes, steps=k) for v, k in zip((x, y, out), steps, strict=True)]
        self.folding(Folding(fold, sizes, (3,), (views[0], views[1]), (views[2],)))

    def index(self, s: Index) -> None:
        """Define an index; all threads end where it is out of range."""
        self.touches([s.view])
        name = self._name("given")
        self.put(f"const i64 {name} = (i64){self.element(s.view, '')};",
                 f"const i64 {s.name} = {name} < 0 ? {name} + {s.size} : {name};")  # fmt: skip
        if s.checked:
            self._unless(f"{s.name} >= 0 && {s.name} < {s.size}")

    def check(self, s: Check) -> None:
        """Have all threads end where a condition is false."""
        self.touches([s.view])
        self._unless(_holds(self.element(s.view, "")))

    def _unless(self, fine: str) -> None:
        self.put(f"if (!({fine})) {{ if (thread == 0) p.out[2] = 1; return; }}")

    def branch(self, s: Branch) -> None:
        """Write a choice."""
        self.touches([s.condition])
        chosen = self._name("chosen")
        self.put(f"const bool {chosen} = {_holds(self.element(s.condition, ''))};")
        self.meet()
        self.put(f"if ({chosen}) {{")
        self.fresh(s.yes)
        self.put("} else {")
        self.fresh(s.no)
        self.put("}")

    # -- loops ----------------------------------------------------------------------------------

    def own_loop(self, s: Repeat) -> None:
        """Write the program's loop, over the stretch that the caller gives."""
        self.put("i64 done = p.first; bool ended = false;")
        self._steps(s, "p.first", "p.end", "done", "ended")
        self.put("if (thread == 0) { p.out[0] = done; p.out[1] = ended; }")

    def repeat(self, s: Repeat) -> None:
        """Write a loop inside of a step."""
        assert s.count is not None
        done, ended, count = self._name("done"), self._name("ended"), str(s.count)
        if isinstance(s.count, View):
            self.touches([s.count])
            count = self._name("count")
            self.put(f"const i64 {count} = (i64){self.element(s.count, '')};")
        self.put(f"i64 {done} = 0; bool {ended} = false;")
        few = count if s.most is None else f"({count} < {s.most} ? {count} : {s.most})"
        self._steps(s, "0", few, done, ended)
        if s.most is not None:
            self._unless(f"{ended} || {count} <= {s.most}")
        if s.done is not None:
            self.touches([], [s.done])
            self.put(f"if (thread == 0) {self.element(s.done, '')} = {done};")

    def _steps(self, s: Repeat, low: str, high: str, done: str, ended: str) -> None:
        self.meet()
        self.put(f"for (i64 {s.name} = {low}; {s.name} < {high} && !{ended}; {s.name} += 1) {{")
        self.block_of(s.body)
        self.block_of(s.after)
        if s.until is not None:
            self.touches([s.until])
            self.put(f"{ended} = {_holds(self.element(s.until, ''))};")
        self.put(f"{done} = {s.name} + 1;")
        self.meet()
        self.put("}")


def _places(indices: Sequence[str], steps: Sequence[Sequence[int]]) -> list[str]:
    """For each operand the text that adds its place, in bytes."""
    return [
        "".join(f" + {i} * {s}ll" for i, s in zip(indices, own, strict=True) if s) for own in steps
    ]


def _state_bytes(m: Monoid) -> int:
    return 8 * len(m.state)


def _holds(number: str) -> str:
    """Whether a number is not zero."""
    return f"convert<bool>({number})"


_WRITERS: dict[type, Callable[..., None]] = {
    Map: _Source.map, Folding: _Source.folding, Product: _Source.product, Index: _Source.index,
    Check: _Source.check, Branch: _Source.branch, Repeat: _Source.repeat,
}  # fmt: skip
