"""The CTC loss as LLVM IR: sums over alignments in log space, a task for each sequence.

All numbers are float64. States of a frame are independent of each other, so they are lanes of
vectors, in whole blocks of :data:`LANES`. A state that cannot be reached has the logarithm minus
infinity, and so have the states and classes that fill the last block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, data_of, exponential_module, next_task, word
from symdnn.cpu.ir.scalar_ir import VALUES

#: States or classes of a block.
LANES = 8

#: Scratch memory of a thread: the class of each state, whether it is reached from two before, the
#: forward variables of all frames, two rows of backward variables, the largest score of each frame
#: and the logarithm of its sum; the scores of a frame and its gradients; a block that is added up.
PARTS = ("class", "skip", "alpha", "beta", "next", "high", "log", "score", "gradient", "lanes")
#: Words before those of the arrays: threads, sequences, 1, and these. Parts are offsets.
HEAD = (
    "threads", "batch", "one", "flag", "steps", "classes", "width", "states", "scratch", "slot",
    *PARTS,
)  # fmt: skip
FLAG = HEAD.index("flag")
_NEVER = "0xFFF0000000000000"  # minus infinity


@dataclass(frozen=True)
class CtcPlan:
    """What is compiled: dtypes of scores, labels and lengths, and whether gradients are wanted."""

    scores: str
    labels: str
    lengths: str
    gradients: bool


def ctc_ir(plan: CtcPlan) -> str:
    """The module of a plan."""
    return exponential_module(_Writer(plan).written())


class _Writer(FunctionBuilder):
    """The function ``rows``."""

    def __init__(self, plan: CtcPlan) -> None:
        super().__init__()
        self._plan, self._float = plan, VALUES[plan.scores]

    def written(self) -> list[str]:
        """Its lines."""
        names = ("x", "labels", "lengths", "costs", "gradients")[: 4 + self._plan.gradients]
        self.tasks([
            *(line for name in HEAD[4:] for line in word(f"%{name}", HEAD.index(name))),
            *word("%batch", 1),
            *(line for i, n in enumerate(names) for line in data_of(f"%d_{n}", len(HEAD) + i)),
            "%thread32 = call i32 @omp_get_thread_num()", "%thread = zext i32 %thread32 to i64",
            "%mine = mul i64 %thread, %slot", "%first = add i64 %scratch, %mine",
            "%room = inttoptr i64 %first to ptr",
            *(f"%p_{p} = getelementptr i8, ptr %room, i64 %{p}" for p in PARTS),
            # Beside the states of a row there are two more, which are never reached.
            "%alpha_width = add i64 %states, 2",
        ], "task")  # fmt: skip
        length = self._integer("lengths", "%r")
        last, wrong = self._states()
        outside = self.new(f"icmp ugt i64 {length}, %steps")
        self.choose(
            "wrong", self.new(f"or i1 {wrong}, {outside}"),
            lambda holds, _: self._report() if holds else self._sequence(length, last),
        )  # fmt: skip
        return [*self.lines, *next_task("task")]

    def _report(self) -> None:
        flag = self.new(f"getelementptr i64, ptr %w, i64 {FLAG}")
        self.put(f"store atomic i64 1, ptr {flag} monotonic, align 8")

    # -- numbers --------------------------------------------------------------------------------

    def _at(self, base: str, i: str | int, kind: str = "double") -> str:
        return self.new(f"getelementptr {kind}, ptr {base}, i64 {i}")

    def _load(self, base: str, i: str | int, kind: str = "double") -> str:
        return self.new(f"load {kind}, ptr {self._at(base, i, kind)}{ACCESS}")

    def _store(self, value: str | int, base: str, i: str | int, kind: str = "double") -> None:
        self.put(f"store {kind} {value}, ptr {self._at(base, i, kind)}{ACCESS}")

    def _integer(self, name: str, i: str) -> str:
        dtype = self._plan.labels if name == "labels" else self._plan.lengths
        kind = VALUES[dtype]
        value = self._load(f"%d_{name}", i, kind)
        extend = "zext" if dtype.startswith("u") else "sext"
        return value if kind == "i64" else self.new(f"{extend} {kind} {value} to i64")

    def _score(self, scores: str, i: str) -> str:
        value = self._load(scores, i, self._float)
        return value if self._float == "double" else self.new(f"fpext float {value} to double")

    def _narrow(self, value: str) -> str:
        return value if self._float == "double" else self.new(f"fptrunc double {value} to float")

    def _less(self, a: str, *others: str) -> str:
        for b in others:
            a = self.new(f"fsub double {a}, {b}")
        return a

    def _called(self, name: str, x: str) -> str:
        return self.new(f"call double @f_{name}(double {x})")

    def _in_order(self, a: str, b: str) -> tuple[str, str]:
        """The larger and the smaller of two numbers, of which one may be NaN."""
        more = self.new(f"fcmp ogt double {a}, {b}")
        pairs = ((a, b), (b, a))
        large, small = (self.new(f"select i1 {more}, double {x}, double {y}") for x, y in pairs)
        return large, small

    def _log_sum(self, a: str, b: str, c: str) -> str:
        """log(exp(a) + exp(b) + exp(c))"""
        large, least = self._in_order(a, b)
        high, middle = self._in_order(large, c)
        never = self.new(f"fcmp oeq double {high}, {_NEVER}")
        base = self.new(f"select i1 {never}, double 0.0, double {high}")
        total = "1.0"
        for x in (middle, least):
            total = self.new(f"fadd double {total}, {self._called('exp', self._less(x, base))}")
        return self.new(f"fadd double {high}, {self._called('log', total)}")

    def _reached(self, row: str, s: str, steps: tuple[int, int], skip: str) -> str:
        """The sum of a state, its neighbour, and the one after it where that may be skipped."""
        own = self._load(row, s)
        near, far = (self._load(row, self.new(f"add nsw i64 {s}, {k}")) for k in steps)
        jumps = self.new(f"icmp ne i64 {skip}, 0")
        jump = self.new(f"select i1 {jumps}, double {far}, double {_NEVER}")
        return self._log_sum(own, near, jump)

    # -- a sequence -----------------------------------------------------------------------------

    def _states(self) -> tuple[str, str]:
        """Write the states without padding; returns the last one, and whether a label is wrong."""
        with self.each("none", 0, "%alpha_width", parallel=True) as s:
            for part in ("%p_class", "%p_skip"):
                self._store(0, part, s, "i64")
        with self._lanes("filled", "%classes") as c:
            self._store(_NEVER, "%p_score", c)
        base = self.times("%r", "%width")

        def label(i: str, values: list[str]) -> list[str]:
            at, before, wrong = values
            value = self._integer("labels", self.plus(base, i))
            unsigned = self._plan.labels == "uint64"
            kept = "true" if unsigned else self.new(f"icmp sge i64 {value}, 0")
            order = "uge" if unsigned else "sge"
            high = self.new(f"icmp {order} i64 {value}, %classes")
            bad = self.new(f"or i1 {high}, {self.new(f'icmp eq i64 {value}, 0')}")
            more = [self.plus(at, k) for k in (1, 2)]
            later = self.new(f"icmp sgt i64 {at}, 0")
            other = self.new(f"icmp ne i64 {value}, {before}")
            skips = self.new(f"zext i1 {self.new(f'and i1 {later}, {other}')} to i64")
            for part, first in (("%p_class", value), ("%p_skip", skips)):
                self._store(first, part, more[0], "i64")
                self._store(0, part, more[1], "i64")
            return [
                self.new(f"select i1 {kept}, i64 {more[1]}, i64 {at}"),
                self.new(f"select i1 {kept}, i64 {value}, i64 {before}"),
                self.new(f"or i1 {wrong}, {bad}"),
            ]

        before = self.block
        some = self.new("icmp sgt i64 %width, 0")
        self.put(f"br i1 {some}, label %labels_yes, label %labels_done")
        self.label("labels_yes")
        kinds = ("i64", "i64", "i1")
        found = self.counted("label", 0, "%width", label, ("0", "0", "false"), kinds)
        left = self.block
        self.put("br label %labels_done")
        self.label("labels_done")
        last, wrong = (
            self.new(f"phi {k} [{v}, %{left}], [{empty}, %{before}]")
            for k, v, empty in (("i64", found[0], "0"), ("i1", found[2], "false"))
        )
        for part in ("%p_class", "%p_skip"):  # of padding
            self._store(0, part, self.plus(last, 1), "i64")
        return last, wrong

    def _sequence(self, length: str, last: str) -> None:
        count = self.plus(last, 1)
        some = self.new(f"icmp sgt i64 {length}, 0")
        self._begin_row("%p_alpha", 2)
        with self.when("forward", some):
            self._forward(length, count)
        at = self.times(length, "%alpha_width")
        end = self._at(self._at("%p_alpha", at), last)
        blank, label = self._load(end, 2), self._load(end, 1)
        total = self._log_sum(blank, label, _NEVER)
        self._store(self._narrow(self.new(f"fneg double {total}")), "%d_costs", "%r", self._float)
        if not self._plan.gradients:
            return
        size = self.new(f"call double @llvm.fabs.f64(double {total})")
        possible = self.new(f"fcmp olt double {size}, 0x7FF0000000000000")
        with self.when("backward", self.new(f"and i1 {some}, {possible}")):
            self._backward(length, last, count, total)
        first = self.new(f"select i1 {possible}, i64 {length}, i64 0")
        more = self.new(f"icmp slt i64 {first}, %steps")
        with self.when("rest", more), self.each("clear", first, "%steps") as t:
            row = self._row("%d_gradients", t)
            with self.each("zero", 0, "%classes", parallel=True) as c:
                self._store("0.0", row, c, self._float)

    def _begin_row(self, row: str, at: str | int) -> None:
        """A row in which only one state is reached."""
        with self.each(f"row{len(self.lines)}", 0, "%alpha_width", parallel=True) as s:
            self._store(_NEVER, row, s)
        self._store("0.0", row, at)

    @contextmanager
    def _lanes(self, name: str, count: str) -> Iterator[str]:
        """A loop over whole blocks of independent iterations, in this context."""
        with (
            self.each(name, 0, count, step=LANES) as first,
            self.each(f"{name}_lane", 0, str(LANES), parallel=True) as i,
        ):
            yield self.new(f"add nuw nsw i64 {first}, {i}")

    def _row(self, base: str, t: str) -> str:
        """The scores or gradients of a frame."""
        example = self.new(f"add i64 {self.new(f'mul i64 {t}, %batch')}, %r")
        return self._at(base, self.times(example, "%classes"), self._float)

    def _forward(self, length: str, count: str) -> None:
        """Forward variables of each frame from those of the one before."""
        with self.each("frame", 0, length) as t:
            self._read(t)
            high, log = self._normalise()
            self._store(high, "%p_high", t)
            self._store(log, "%p_log", t)
            before = self._at("%p_alpha", self.times(t, "%alpha_width"))
            row = self._at(before, "%alpha_width")
            for i in (0, 1):
                self._store(_NEVER, row, i)
            before, row = self._at(before, 2), self._at(row, 2)
            with self._lanes("state", count) as s:
                found = self._reached(before, s, (-1, -2), self._load("%p_skip", s, "i64"))
                seen = self._emitted(s, high, log)
                self._store(self.new(f"fadd double {found}, {seen}"), row, s)

    def _read(self, t: str) -> None:
        """The scores of a frame."""
        scores = self._row("%d_x", t)
        with self.each(f"read{len(self.lines)}", 0, "%classes", parallel=True) as c:
            self._store(self._score(scores, c), "%p_score", c)

    def _normalise(self) -> tuple[str, str]:
        """The largest score of a frame, and the logarithm of the sum of exponentials."""

        def larger(lane: str, c: str) -> str:
            x = self._load("%p_score", c)
            return self.new(f"call double @llvm.maximum.f64(double {lane}, double {x})")

        def more(lane: str, c: str) -> str:
            x = self._called("exp", self._less(self._load("%p_score", c), high))
            return self.new(f"fadd double {lane}, {x}")

        def both(a: str, b: str) -> str:
            return self.new(f"call double @llvm.maximum.f64(double {a}, double {b})")

        high = self._folded("largest", _NEVER, larger, both)
        total = self._folded("summed", "0.0", more, lambda a, b: self.new(f"fadd double {a}, {b}"))
        return high, self._called("log", total)

    def _folded(
        self, name: str, start: str, step: Callable[[str, str], str],
        both: Callable[[str, str], str],
    ) -> str:  # fmt: skip
        """A fold over the classes, lane by lane and then over the lanes in pairs."""
        first = ", ".join([f"double {start}"] * LANES)
        self.put(f"store <{LANES} x double> <{first}>, ptr %p_lanes")
        with (
            self.each(name, 0, "%classes", step=LANES) as c,
            self.each(f"{name}_lane", 0, str(LANES), parallel=True) as i,
        ):
            at = self.new(f"add nuw nsw i64 {c}, {i}")
            self._store(step(self._load("%p_lanes", i), at), "%p_lanes", i)
        values = [self.new(f"load double, ptr {self._at('%p_lanes', i)}") for i in range(LANES)]
        while len(values) > 1:
            values = [both(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    def _emitted(self, s: str, high: str, log: str) -> str:
        """The log probability of a state's class."""
        return self._less(self._load("%p_score", self._load("%p_class", s, "i64")), high, log)

    def _backward(self, length: str, last: str, count: str, total: str) -> None:
        """Backward variables from the last frame on, and the gradients that follow."""
        self._begin_row("%p_next", 0)
        self._begin_row("%p_beta", last)

        def frame(i: str, rows: list[str]) -> list[str]:
            after, made = rows
            t = self.new(f"sub i64 {self.new(f'sub i64 {length}, 1')}, {i}")
            self._read(t)
            high, log = self._load("%p_high", t), self._load("%p_log", t)
            at = self.new(f"mul i64 {self.new(f'add i64 {t}, 1')}, %alpha_width")
            alpha = self._at(self._at("%p_alpha", at), 2)
            with self._lanes("turned", count) as s:
                skip = self._load("%p_skip", self.new(f"add nsw i64 {s}, 2"), "i64")
                beta = self._reached(after, s, (1, 2), skip)
                seen = self._emitted(s, high, log)
                self._store(self.new(f"fadd double {beta}, {seen}"), made, s)
                both = self.new(f"fadd double {self._load(alpha, s)}, {beta}")
                self._store(self._called("exp", self._less(both, total)), alpha, s)
            self._gradients(high, log, alpha, count, self._row("%d_gradients", t))
            return [made, after]

        self.counted("back", 0, length, frame, ["%p_beta", "%p_next"], "ptr")

    def _gradients(self, high: str, log: str, occupied: str, count: str, out: str) -> None:
        """Probabilities of classes less those of the states that show them."""
        with self._lanes("probable", "%classes") as c:
            x = self._less(self._load("%p_score", c), high, log)
            self._store(self._called("exp", x), "%p_gradient", c)
        with self.each("used", 0, count) as s:
            where = self._load("%p_class", s, "i64")
            left = self._less(self._load("%p_gradient", where), self._load(occupied, s))
            self._store(left, "%p_gradient", where)
        with self.each("put", 0, "%classes", parallel=True) as c:
            self._store(self._narrow(self._load("%p_gradient", c)), out, c, self._float)
