"""Which steps of a plan run natively (:mod:`symdnn.cpu.launch.fastcall`), in which groups.

A step does where its launch offers it and all its operands are arrays that stay, arguments and
results in C order, or views of those at places that are known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from symdnn.cpu.execution.step_codegen import Frame, Span, Step
from symdnn.cpu.launch.fastcall import Group, Native, Operand, available, check
from symdnn.errors import SymdnnError
from symdnn.graph.evaluate import describe_failure
from symdnn.graph.type import TensorType

__all__ = ["Grouping"]

#: (place among the values of the array that is looked into, view): see :class:`Grouping`.
Seen = tuple[int, Any]


class Grouping:
    """The native steps of a plan.

    ``views`` maps places of values that are views of what comes with a call to the place of that
    and the :class:`~symdnn.compile.plan.memory.View`; ``shapes`` places to (shape, dtype) of
    results.
    """

    def __init__(
        self, steps: Sequence[Step], frame: Frame, views: Mapping[int, Seen], values: Sequence[Any],
        entering: Sequence[Any],
    ) -> None:  # fmt: skip
        self._steps, self._views = steps, views
        self._alias = dict(frame.stored)
        #: Place of a value -> its dtype.
        self._dtypes = {
            i: v.type.numpy
            for s in steps
            for v, i in zip((*s.node.inputs, *s.node.outputs), (*s.inputs, *s.outputs))
            if isinstance(v.type, TensorType)
        }
        self._examples = {
            i: _like(a.dtype, a.shape)
            for k, i in frame.entering
            if type(a := entering[k]) is _ARRAY
        }
        for i, shape, dtype in frame.results.places:
            self._examples[i] = _like(dtype, shape)
        self._native = [k for k, s in enumerate(steps) if self._offer(s, values) is not None]
        self.spans = self._spans(frame)
        #: What has to be in C order: the arguments that native steps look into.
        results = {i for i, _, _ in frame.results.places}
        self.checked = sorted({a for s in self.spans for a in s.arguments} - results)
        self._at = {i: k for k, i in frame.entering}

    def check(self) -> Any:
        """What tells whether the arrays of :attr:`checked` are in C order."""
        return check(len(self.checked))

    def fits(self, entering: Sequence[Any]) -> bool:
        """Whether what enters is in C order where it has to be."""
        arrays = [entering[self._at[i]] for i in self.checked]
        return not arrays or bool(self.check()(*arrays))

    @classmethod
    def of(
        cls, steps: Sequence[Step], frame: Frame, views: Mapping[int, Seen], values: Sequence[Any],
        entering: Sequence[Any],
    ) -> Grouping | None:  # fmt: skip
        """None where nothing runs natively."""
        if not any(not s.by_view and s.launch.native is not None for s in steps) or not available():
            return None
        found = cls(steps, frame, views, values, entering)
        return found if found.spans else None

    # -- which -----------------------------------------------------------------------------------

    def _base(self, i: int) -> int:
        """The place of the array that comes with a call of which value ``i`` is a view; or -1."""
        if i < 0:
            return -1
        i = self._alias.get(i, i)
        if i in self._examples:
            return i
        return self._alias.get(self._views[i][0], self._views[i][0]) if i in self._views else -1

    def _array(self, i: int, values: Sequence[Any]) -> Any:
        """An array that lies as value ``i`` does; None where that is not known."""
        if isinstance(values[i], np.ndarray):
            return values[i]
        base = self._examples.get(self._base(i))
        if base is None or i not in self._views:
            return base
        view = self._views[i][1]
        return _like(self._dtypes[i], view.shape, view.strides)

    def _operands(self, step: Step) -> tuple[int, ...]:
        """Places of its arrays; -1 for numbers that are read on the host."""
        host = step.node.op.host_inputs
        read = (-1 if k in host else i for k, i in enumerate(step.inputs))
        extra = () if step.workspace is None else (step.workspace,)
        return (*read, *step.outputs, *extra)

    def _offer(self, step: Step, values: Sequence[Any]) -> Native | None:
        """The launch as a compiled function, where it and its operands are fit for that."""
        if step.by_view or step.launch.native is None:
            return None
        if any(self._alias.get(o, o) not in self._examples and values[o] is None
               for o in step.outputs):  # fmt: skip
            return None
        places = self._operands(step)
        arrays = [None if i < 0 else self._array(i, values) for i in places]
        if any(a is None and i >= 0 for a, i in zip(arrays, places)):
            return None
        n, m = len(step.inputs), len(step.inputs) + len(step.outputs)
        found: Native | None = step.launch.native(arrays[:n], arrays[n:m], *arrays[m:])
        return found

    def _spans(self, frame: Frame) -> list[Span]:
        """Runs of native steps, views between them included where native steps alone read them."""
        native = set(self._native)
        seen = {i for k, s in enumerate(self._steps) if k not in native for i in s.inputs}
        seen |= set(frame.leaving)
        spans: list[Span] = []
        now: list[int] = []
        for k, step in enumerate(self._steps):
            hidden = step.by_view and step.outputs[0] in self._views
            if k in native or (hidden and now):
                now.append(k)
            elif now:
                spans.append(self._span(now, seen, native))
                now = []
        if now:
            spans.append(self._span(now, seen, native))
        return spans

    def _span(self, among: Sequence[int], seen: set[int], native: set[int]) -> Span:
        run = [k for k in among if k in native]
        views = [k for k in among if k not in native and self._steps[k].outputs[0] in seen]
        used = (self._base(i) for k in run for i in self._operands(self._steps[k]))
        arguments = sorted({i for i in used if i >= 0})
        return Span(among[0], among[-1], tuple(run), tuple(views), tuple(arguments))

    # -- bound -----------------------------------------------------------------------------------

    def bind(self, span: Span, values: Sequence[Any]) -> tuple[Any, Any]:
        """(the function of a span's arguments, what to call where that gives not None)"""
        parts = []
        for k in span.steps:
            native = self._offer(self._steps[k], values)
            assert native is not None, "it was there when the plan was grouped"
            operands = [self._operand(i, span, values) for i in self._operands(self._steps[k])]
            parts.append((native, operands))
        group = Group(parts)

        def explain(*arguments: Any) -> None:
            at = group.failed
            if (status := parts[at][0].status) > 0:
                parts[at][0].words[status] = 0
            self._fail(self._steps[span.steps[at]], parts[at][1], arguments)

        return group.call, explain

    def _operand(self, i: int, span: Span, values: Sequence[Any]) -> Operand:
        if i < 0 or values[i] is not None:
            return Operand(None if i < 0 else values[i])
        offset = self._views[i][1].offset if i in self._views else 0
        return Operand(None, span.arguments.index(self._base(i)), offset)

    def _fail(self, step: Step, operands: Sequence[Operand], arguments: Sequence[Any]) -> None:
        """Run a step that failed once more in Python, which says what is wrong."""
        arrays = []
        for i, operand in zip(self._operands(step), operands):
            array = operand.fixed if operand.argument < 0 else arguments[operand.argument]
            if operand.argument >= 0 and i in self._views:
                array = _looked(array, self._views[i][1], self._dtypes[i])
            arrays.append(array)
        n, m = len(step.inputs), len(step.inputs) + len(step.outputs)
        try:
            step.launch(arrays[:n], arrays[n:m], *arrays[m:])
            raise SymdnnError(f"{step.node.op}: its kernel failed; run again, it did not")
        except Exception as error:
            error.add_note(describe_failure(step.node, arrays[:n]))
            raise


_ARRAY: Any = np.ndarray


def _like(dtype: Any, shape: tuple[int, ...], strides: Any = None) -> Any:
    """An array that lies so (in C order by default), of which only that may be looked at."""
    if strides is None:
        strides = [dtype.itemsize * prod(shape[d + 1 :]) for d in range(len(shape))]
    return as_strided(np.empty(1, dtype), shape, strides)


def _looked(base: Any, view: Any, dtype: Any) -> Any:
    return np.ndarray(view.shape, dtype, base, view.offset, view.strides)
