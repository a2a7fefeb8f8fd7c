"""Generates one Python function that runs the steps of a plan, a line for each launch.

For small kernels the overhead between two launches is longer than the kernels. So everything that
is the same in every run is bound beforehand: kernels, constants and views of the arena are names
of an enclosing function. Arguments, fresh outputs and other values are local variables. A span of
steps that need no Python is one line (:mod:`symdnn.cpu.execution.fastcall_groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any, Protocol

import numpy as np

from symdnn.graph.evaluate import note_failure
from symdnn.graph.variable import Apply

Run = Callable[[Sequence[Any]], list[Any]]


@dataclass(slots=True)
class PlanStep:
    """One launch of a plan, or a view; operands are indices into the plan's list of values.

    ``workspace`` is the index of its scratch memory; None for a kernel that needs none. A launch
    may offer ``direct``, which takes inputs and outputs one by one instead of in two lists.
    """

    node: Apply
    launch: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    by_view: bool
    workspace: int | None = None


class OutputMemory(Protocol):
    """Memory for the outputs of a run: (index of the value, shape, dtype) of each array."""

    places: list[tuple[int, tuple[int, ...], Any]]

    def large(self, k: int) -> bool:
        """Whether output ``k`` may be recycled, so that :meth:`make` must be called for it."""

    def make(self, k: int) -> Any:
        """Memory for output ``k``."""

    def make_as(self, k: int, shape: tuple[int, ...]) -> Any:
        """Memory for output ``k`` as an array of another shape."""

    def maker(self, k: int, order: Sequence[int]) -> tuple[Any, tuple[Any, ...]]:
        """What makes output ``k``, whose axes lie in this order: a function and its arguments."""


@dataclass(frozen=True)
class Frame:
    """Where the values of a plan come from, by their indices in its list of values.

    ``entering`` has pairs (index of an argument, index of its value). ``results`` allocates the
    values that are new in each run. ``stored`` has pairs of values in one memory: the new and the
    old one of a shared variable that is updated in place, a value and the output that overwrites
    it. ``fixed`` are bound before any run. ``leaving`` are returned. ``orders`` has the order of
    axes in memory of results where it is not C's. ``parts`` are values that a function makes of
    another one, in whose memory they are.
    """

    entering: Sequence[tuple[int, int]]
    results: OutputMemory
    stored: Sequence[tuple[int, int]]
    fixed: Collection[int]
    leaving: Sequence[int]
    orders: Mapping[int, Sequence[int]] = field(default_factory=dict)
    parts: Sequence[tuple[int, int, Any]] = ()


@dataclass(frozen=True)
class Span:
    """Steps ``first`` to ``last`` of a plan, of which ``steps`` run as one function.

    Its arguments are the values ``arguments``. Of the other steps, views, those in ``views`` are
    taken before it; the rest are not needed outside of the span.
    """

    first: int
    last: int
    steps: tuple[int, ...]
    views: tuple[int, ...]
    arguments: tuple[int, ...]


class Spans(Protocol):
    """The spans of a plan; ``checked`` are the values that must be contiguous."""

    @property
    def spans(self) -> Sequence[Span]:
        """The spans, in the order of their steps."""

    @property
    def checked(self) -> Sequence[int]:
        """Indices of values."""

    def check(self) -> Any:
        """A function of the values of :attr:`checked`: whether all are contiguous."""

    def bind(self, span: Span, values: Sequence[Any]) -> tuple[Any, Any]:
        """(a function that returns None on success; what to call with its arguments otherwise)"""


@lru_cache(maxsize=32)
def _code_of(text: str) -> CodeType:
    """The code of a text; plans of several shapes often have one text."""
    return compile(text, "<plan>", "exec")


class StepFunction:
    """Generates the function of a plan's steps; :meth:`bind` binds it to fixed arrays.

    With ``spans``, a run in which a checked value is not contiguous is left to ``fallback``.
    """

    def __init__(
        self,
        steps: Sequence[PlanStep],
        frame: Frame,
        spans: Spans | None = None,
        fallback: Run | None = None,
    ) -> None:
        self._steps, self._frame = steps, frame
        self._spans, self._fallback = spans, fallback
        self._functions: list[Any] = []
        #: How many steps run in spans, including views that need not be taken.
        self.native = sum(s.last + 1 - s.first - len(s.views) for s in spans.spans) if spans else 0
        inside = {k for s in (spans.spans if spans else ()) for k in range(s.first, s.last + 1)}
        #: The nodes of the others, except views that are taken.
        self.apart = [s.node for k, s in enumerate(steps) if k not in inside and not s.by_view]
        #: Index of each span's two functions in ``_functions``.
        self._bound_later: list[tuple[int, Span]] = []
        self._known = {i for _, i in frame.entering} | {i for i, _, _ in frame.results.places}
        self._known |= {i for i, *_ in (*frame.stored, *frame.parts)} | set(frame.fixed)
        #: Line of the text -> the step that it runs.
        self._step_at: dict[int, PlanStep] = {}
        text = self._text()
        scope: dict[str, Any] = {"empty": np.empty}
        # The text consists of numbers and the words below; nothing in it comes from the user.
        exec(_code_of(text), scope)
        self._make = scope["make"]
        self._code: CodeType | None = None

    def bind(self, values: Sequence[Any]) -> Run:
        """The function from arguments to outputs, bound to the fixed ones of ``values``."""
        for at, span in self._bound_later:
            assert self._spans is not None
            self._functions[at : at + 2] = self._spans.bind(span, values)
        run: Run = self._make(self._functions, values)
        self._code = run.__code__
        return run

    def explain(self, error: BaseException) -> None:
        """Add a note to an error of a run: the node it came from, and the user's line."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self._code:
            trace = trace.tb_next
        step = None if trace is None else self._step_at.get(trace.tb_lineno)
        if trace is not None and step is not None:
            names = trace.tb_frame.f_locals
            inputs = [names.get(f"v{i}") for i in step.inputs]
            note_failure(error, step.node, inputs)

    # -- the text -----------------------------------------------------------------------------

    def _text(self) -> str:
        frame = self._frame
        body = [f"  v{i} = e[{k}]" for k, i in frame.entering]
        body += self._checked()
        body += [f"  {self._made(k)}" for k in range(len(frame.results.places))]
        body += [f"  v{i} = {self._name(make)}(v{base})" for i, base, make in frame.parts]
        body += [f"  v{new} = v{old}" for new, old in frame.stored]
        lines = self._all_lines(len(body))
        steps = [*body, *lines, f"  return [{', '.join(f'v{i}' for i in frame.leaving)}]"]
        names = [f" f{k} = f[{k}]" for k in range(len(self._functions))]
        names += [f" v{i} = c[{i}]" for i in sorted(frame.fixed)]
        first = len(names) + 3  # lines count from 1, and two are ``def`` lines
        self._step_at = {first + at: step for at, step in self._step_at.items()}
        return "\n".join(["def make(f, c):", *names, " def run(e):", *steps, " return run", ""])

    def _all_lines(self, before: int) -> list[str]:
        """The lines of all steps; ``before`` is the number of lines in front of them."""
        dying = self._last_uses()
        lines: list[str] = []
        first = {s.first: s for s in self._spans.spans} if self._spans is not None else {}
        k = 0
        while k < len(self._steps):
            span = first.get(k, Span(k, k, (), (k,), ()))
            for v in span.views:
                lines += self._lines(self._steps[v], before + len(lines))
            if span.steps:
                lines.append(self._call_of(span))
            for at in range(k, span.last + 1):
                lines += [f"  v{i} = None" for i in dying.get(at, ())]
            k = span.last + 1
        return lines

    def _call_of(self, span: Span) -> str:
        arguments = ", ".join(f"v{i}" for i in span.arguments)
        self._bound_later.append((len(self._functions), span))
        run, failed = self._name(None), self._name(None)
        return f"  if {run}({arguments}) is not None: {failed}({arguments})"

    def _checked(self) -> list[str]:
        """The line that checks that arguments are contiguous."""
        if self._spans is None or not self._spans.checked:
            return []
        arguments = ", ".join(f"v{i}" for i in self._spans.checked)
        check, fallback = self._name(self._spans.check()), self._name(self._fallback)
        return [f"  if not {check}({arguments}): return {fallback}(e)"]

    def _made(self, k: int) -> str:
        i, shape, dtype = self._frame.results.places[k]
        if (order := self._frame.orders.get(i)) is not None:
            make, given = self._frame.results.maker(k, order)
            return f"v{i} = {self._name(make)}(*{self._name(given)})"
        if self._frame.results.large(k):
            return f"v{i} = {self._name(self._frame.results.make)}({k})"
        return f"v{i} = empty({shape!r}, {self._name(dtype)})"

    def _lines(self, step: PlanStep, at: int) -> list[str]:
        """The lines that run a step; ``at`` is the number of lines before them."""
        self._step_at[at] = self._step_at[at + 1] = step
        inputs = ", ".join(f"v{i}" for i in step.inputs)
        if step.by_view:
            return [f"  v{step.outputs[0]} = {self._name(step.launch)}({inputs})[0]"]
        made = [(k, o) for k, o in enumerate(step.outputs) if o not in self._known]
        direct = step.launch.direct
        if direct is not None and not made and step.workspace is None:
            operands = ", ".join(f"v{i}" for i in (*step.inputs, *step.outputs))
            return [f"  {self._name(direct)}({operands})"]
        outputs = ", ".join("None" if o not in self._known else f"v{o}" for o in step.outputs)
        workspace = "" if step.workspace is None else f", v{step.workspace}"
        call = f"{self._name(step.launch.function)}([{inputs}], [{outputs}]{workspace})"
        if not made:
            return [f"  {call}"]
        return [f"  r = {call}", f"  {'; '.join(f'v{o} = r[{k}]' for k, o in made)}; r = None"]

    def _name(self, thing: Any) -> str:
        self._functions.append(thing)
        return f"f{len(self._functions) - 1}"

    def _last_uses(self) -> dict[int, list[int]]:
        """Step -> values that are dropped after it, since no later step reads them."""
        last: dict[int, int] = {}
        for k, step in enumerate(self._steps):
            last.update(dict.fromkeys((*step.inputs, *step.outputs), k))
        found: dict[int, list[int]] = {}
        for i, k in last.items():
            if i not in self._known and i not in self._frame.leaving:
                found.setdefault(k, []).append(i)
        return found
