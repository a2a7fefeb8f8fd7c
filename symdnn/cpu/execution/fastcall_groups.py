"""Groups the steps of a plan that run without Python (:mod:`symdnn.cpu.launch.fastcall`).

A step does if its launch offers it and each operand is a fixed array, a contiguous argument or
output, or a view of one at an offset that is known beforehand.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from symdnn.cpu.execution.output_buffers import view_of_base
from symdnn.cpu.execution.step_codegen import Frame, PlanStep, Span
from symdnn.cpu.launch.fastcall import (
    FastCall,
    FastCallGroup,
    FastCallOperand,
    FastCallSeries,
    available,
    check,
    keep,
    whole_call,
)
from symdnn.errors import SymdnnError
from symdnn.graph.evaluate import note_failure
from symdnn.graph.type import TensorType

#: (index of the value that is the base of a view, the view).
BaseAndView = tuple[int, Any]


class FastCallGroups:
    """The steps of a plan that run without Python, in spans.

    ``views`` maps the indices of values that are views of arguments or outputs to the index of
    their base and the :class:`~symdnn.compile.plan.memory.View`.
    """

    def __init__(
        self, steps: Sequence[PlanStep], frame: Frame, views: Mapping[int, BaseAndView],
        values: Sequence[Any], entering: Sequence[Any], strided: bool = False,
    ) -> None:  # fmt: skip
        self._steps, self._views = steps, views
        self._alias = dict(frame.stored)
        #: Index of a value -> its dtype.
        self._dtypes = {
            i: v.type.numpy
            for s in steps
            for v, i in zip((*s.node.inputs, *s.node.outputs), (*s.inputs, *s.outputs))
            if isinstance(v.type, TensorType)
        }
        self._examples = {
            i: example(a.dtype, a.shape, a.strides if strided else None)
            for k, i in frame.entering
            if type(a := entering[k]) is _ARRAY
        }
        #: Examples of views: equal ones are one object, by which a launch sees that it is in place.
        self._viewed: dict[Any, Any] = {}
        for i, shape, dtype in frame.results.places:
            self._examples[i] = example(dtype, shape, order=frame.orders.get(i))
        self._native = [k for k, s in enumerate(steps) if self._offer(s, values) is not None]
        self.spans = self._spans(frame)
        #: Values that must be contiguous: the arguments that native steps read.
        results = {i for i, _, _ in frame.results.places}
        read = {a for s in self.spans for a in s.arguments} - results
        self.checked = sorted(a for a in read if self._examples[a].flags.c_contiguous)
        self._at = {i: k for k, i in frame.entering}
        self._frame = frame
        #: The function that was bound last.
        self.bound: FastCallGroup | None = None

    def check(self) -> Any:
        """A function of the arrays of :attr:`checked`: whether all are contiguous."""
        return check(len(self.checked))

    def fits(self, entering: Sequence[Any]) -> bool:
        """Whether the arguments are contiguous where they have to be."""
        arrays = [entering[self._at[i]] for i in self.checked]
        return not arrays or bool(self.check()(*arrays))

    def repeatable(self) -> list[tuple[bool, int]] | None:
        """Of the only span's arguments, whether each is an output, and which one (or which
        argument of the plan); None if there is more than one span, or an output is made elsewhere.
        """
        if len(self.spans) != 1:
            return None
        places = {i for i, _, _ in self._frame.results.places}
        leaving = {self._whole_base(i): k for k, i in enumerate(self._frame.leaving)}
        span = self.spans[0]
        if any(self._steps[k].outputs[0] not in self._frame.leaving for k in span.views):
            return None
        arguments = span.arguments
        if (
            len(leaving) != len(self._frame.leaving)
            or {*leaving} != places
            or places - {*arguments}
        ):
            return None
        if any(i not in places and i not in self._at for i in arguments):
            return None
        return [(True, leaving[i]) if i in places else (False, self._at[i]) for i in arguments]

    def _whole_base(self, i: int) -> int:
        """The value whose memory value ``i`` is, all of it and in its order; else ``i`` itself."""
        if i in self._examples or i not in self._views:
            return i
        base, view = self._views[i]
        whole = self._examples.get(base)
        dense = example(self._dtypes[i], view.shape)
        if whole is None or view.offset or tuple(view.strides) != dense.strides:
            return i
        return base if dense.nbytes == whole.nbytes else i

    def repeat(
        self, times: int, entering: Sequence[tuple[Any, bool]], outputs: Sequence[Any]
    ) -> int:
        """Run the only span so often; see :meth:`symdnn.graph.runtime.BoundPlan.repeat`."""
        where, group = self.repeatable(), self.bound
        if where is None or group is None:
            return 0
        arrays, strides = [], []
        for is_output, k in where:
            array, moves = (outputs[k], True) if is_output else entering[k]
            one = array[0, ...] if moves else array
            if not one.flags.c_contiguous:
                return 0
            arrays.append(one)
            strides.append(array.strides[0] if moves else 0)
        return group.repeat(times, arrays, strides)

    def whole(
        self, arguments: Sequence[Any], same_flags: bool, runtime: Any, read: Sequence[int],
        places: Sequence[int], otherwise: Any,
    ) -> Any:  # fmt: skip
        """A call of the plan as one function (:func:`whole_call`); None where it is more.

        ``read`` has the argument that each of the plan's inputs is, or -1 for one that
        :meth:`keep` gives, ``places`` the plan's output that each result is.
        """
        where, results = self.repeatable(), self._frame.results
        if where is None or self.bound is None:
            return None
        if sorted(places) != [*range(len(self._frame.leaving))]:
            return None
        number = {i: k for k, (i, _, _) in enumerate(results.places)}
        outputs = [self._made(self._frame.leaving[k], number) for k in places]
        order = [
            len(arguments) + places.index(k) if is_output else read[k] for is_output, k in where
        ]
        return whole_call(self.bound, arguments, outputs, order, otherwise, same_flags, runtime)

    def keep(self, function: Any, entering: Sequence[Any], read: Sequence[int]) -> None:
        """Give a function of :meth:`whole` the plan's inputs that are no arguments."""
        where = self.repeatable() or ()
        keep(function, [None if out or read[k] >= 0 else entering[k] for out, k in where])

    def _made(self, i: int, number: Mapping[int, int]) -> tuple[Any, tuple[Any, ...]]:
        """What makes the result ``i``: a function and its arguments."""
        results = self._frame.results
        k = number[self._whole_base(i)]
        _, own, dtype = results.places[k]
        if (order := self._frame.orders.get(i)) is not None:
            return results.maker(k, order)
        shape = own if i in number else tuple(self._views[i][1].shape)
        if not results.large(k):
            return np.empty, (shape, dtype)
        return (results.make, (k,)) if i in number else (results.make_as, (k, shape))

    @classmethod
    def of(
        cls, steps: Sequence[PlanStep], frame: Frame, views: Mapping[int, BaseAndView],
        values: Sequence[Any], entering: Sequence[Any], strided: bool = False,
    ) -> FastCallGroups | None:  # fmt: skip
        """The groups of a plan; None if no step runs without Python.

        With ``strided`` they are for arguments with the strides of those ``entering``.
        """
        if not any(not s.by_view and s.launch.native is not None for s in steps) or not available():
            return None
        found = cls(steps, frame, views, values, entering, strided)
        return found if any(s.steps for s in found.spans) else None

    # -- which steps -----------------------------------------------------------------------------

    def _base(self, i: int) -> int:
        """The index of the argument or output that value ``i`` is, or is a view of; else -1."""
        if i < 0:
            return -1
        i = self._alias.get(i, i)
        if i in self._examples:
            return i
        return self._alias.get(self._views[i][0], self._views[i][0]) if i in self._views else -1

    def _array(self, i: int, values: Sequence[Any]) -> Any:
        """An array with the shape and strides of value ``i``; None where they are not known."""
        if isinstance(values[i], np.ndarray):
            return values[i]
        base = self._examples.get(self._base(i))
        if base is None or i not in self._views:
            return base
        view, dtype = self._views[i][1], self._dtypes[i]
        key = self._base(i), view.offset, view.shape, view.strides, dtype
        if key not in self._viewed:
            self._viewed[key] = example(dtype, view.shape, view.strides)
        return self._viewed[key]

    def _operands(self, step: PlanStep) -> tuple[int, ...]:
        """Indices of its arrays; -1 for numbers that are read on the host."""
        host = step.node.op.host_inputs
        read = (-1 if k in host else i for k, i in enumerate(step.inputs))
        extra = () if step.workspace is None else (step.workspace,)
        return (*read, *step.outputs, *extra)

    def _offer(self, step: PlanStep, values: Sequence[Any]) -> FastCall | FastCallSeries | None:
        """The call without Python, if the launch offers it for these operands."""
        if step.by_view or step.launch.native is None:
            return None
        if any(self._base(o) < 0 and values[o] is None for o in step.outputs):
            return None
        places = self._operands(step)
        arrays = [None if i < 0 else self._array(i, values) for i in places]
        if any(a is None and i >= 0 for a, i in zip(arrays, places)):
            return None
        for k in step.node.op.host_inputs:
            arrays[k] = values[step.inputs[k]]
        n, m = len(step.inputs), len(step.inputs) + len(step.outputs)
        return step.launch.native(arrays[:n], arrays[n:m], *arrays[m:])

    def _spans(self, frame: Frame) -> list[Span]:
        """Runs of successive native steps, and the views between and before them.

        A view is taken from Python only if another step reads it. A run of views alone has no
        steps: its views, too, are not taken where nothing reads them from Python.
        """
        native = set(self._native)
        read = self._read_from_python(frame, native)
        spans: list[Span] = []
        now: list[int] = []
        for k, step in enumerate(self._steps):
            if k in native or self._is_hidden(step):
                now.append(k)
            elif now:
                spans.append(self._span(now, read, native))
                now = []
        if now:
            spans.append(self._span(now, read, native))
        return spans

    def _is_hidden(self, step: PlanStep) -> bool:
        """Whether it is a view that native steps read without it."""
        return step.by_view and step.outputs[0] in self._views

    def _read_from_python(self, frame: Frame, native: Container[int]) -> set[int]:
        """The values that results or steps in Python are, or read, also through views."""
        read = set(frame.leaving)
        for k, step in reversed([*enumerate(self._steps)]):
            if k not in native and (not self._is_hidden(step) or step.outputs[0] in read):
                read.update(step.inputs)
        return read

    def _span(self, among: Sequence[int], read: Container[int], native: Container[int]) -> Span:
        run = [k for k in among if k in native]
        skipped = (k for k in among if k not in native)
        views = [k for k in skipped if self._steps[k].outputs[0] in read]
        used = (self._base(i) for k in run for i in self._operands(self._steps[k]))
        arguments = sorted({i for i in used if i >= 0})
        return Span(among[0], among[-1], tuple(run), tuple(views), tuple(arguments))

    # -- bound -----------------------------------------------------------------------------------

    def bind(self, span: Span, values: Sequence[Any]) -> tuple[Any, Any]:
        """(the function of a span's arguments, what to call if it does not return None)"""
        parts: list[tuple[FastCall, Sequence[FastCallOperand]]] = []
        steps: list[tuple[PlanStep, Sequence[FastCallOperand]]] = []
        for k in span.steps:
            native = self._offer(self._steps[k], values)
            assert native is not None, "it was there when the plan was grouped"
            operands = [self._operand(i, span, values) for i in self._operands(self._steps[k])]
            own = _parts_of(native, operands)
            parts += own
            steps += [(self._steps[k], operands)] * len(own)
        group = FastCallGroup(parts)
        self.bound = group

        def explain(*arguments: Any) -> None:
            at = group.failed
            if (status := parts[at][0].status) > 0:
                parts[at][0].words[status] = 0
            self._fail(*steps[at], arguments)

        return group.call, explain

    def _operand(self, i: int, span: Span, values: Sequence[Any]) -> FastCallOperand:
        if i < 0 or values[i] is not None:
            return FastCallOperand(None if i < 0 else values[i])
        offset = self._views[i][1].offset if i in self._views else 0
        return FastCallOperand(None, span.arguments.index(self._base(i)), offset)

    def _fail(
        self, step: PlanStep, operands: Sequence[FastCallOperand], arguments: Sequence[Any]
    ) -> None:
        """Run a failed step once more in Python, which raises the error."""
        arrays = []
        for i, operand in zip(self._operands(step), operands):
            array = operand.fixed if operand.argument < 0 else arguments[operand.argument]
            if operand.argument >= 0 and i in self._views:
                array = view_of_base(array, self._views[i][1], self._dtypes[i])
            arrays.append(array)
        n, m = len(step.inputs), len(step.inputs) + len(step.outputs)
        try:
            step.launch(arrays[:n], arrays[n:m], *arrays[m:])
            raise SymdnnError(f"{step.node.op}: its kernel failed; run again, it did not")
        except Exception as error:
            note_failure(error, step.node, arrays[:n])
            raise


def _parts_of(
    native: FastCall | FastCallSeries, operands: Sequence[FastCallOperand]
) -> list[tuple[FastCall, Sequence[FastCallOperand]]]:
    """The functions of a step, each with its operands."""
    if isinstance(native, FastCall):
        return [(native, operands)]
    return [
        (call, [operands[o] if isinstance(o, int) else FastCallOperand(o) for o in own])
        for call, own in native.calls
    ]


_ARRAY: Any = np.ndarray


def example(
    dtype: Any, shape: tuple[int, ...], strides: Any = None, order: Sequence[int] | None = None
) -> Any:
    """An array with this shape and these strides (default: dense in this order of axes, C's if it
    is None) but without its memory.

    Its elements must not be read.
    """
    if strides is None:
        axes = [*range(len(shape))] if order is None else [*order]
        behind = [[shape[e] for e in axes[axes.index(d) + 1 :]] for d in range(len(shape))]
        strides = [dtype.itemsize * prod(sizes) for sizes in behind]
    return as_strided(np.empty(1, dtype), shape, strides)
