"""A plan for arguments with certain strides: its steps read them where they are, or copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from symdnn.cpu.elementwise.copies import copy_of
from symdnn.cpu.execution.fastcall_groups import BaseAndView, example
from symdnn.cpu.execution.output_buffers import memory_order, order_follows, view_of_base
from symdnn.cpu.execution.plan import CpuPlan
from symdnn.cpu.execution.step_codegen import PlanStep
from symdnn.cpu.ir.scalar_ir import has_code
from symdnn.cpu.launch.contiguous_launch import compiler_refusal
from symdnn.cpu.launch.scratch import address, aligned
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Roll, Split
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.array.view import Copy
from symdnn.ops.core.shape import DimShuffle, Reshape
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.products import BatchedDot, Dot
from symdnn.ops.lowered.fused import FusedComplex, FusedElemwise, FusedReduce
from symdnn.ops.lowered.lowered import neutral_of

#: Ops whose kernels read any strides as fast as a copy does, and views that they look through.
_LOOPS = Elemwise | FusedElemwise | FusedComplex | FusedReduce | Reduce
_MOVES = DimShuffle | Reshape | Subtensor | Copy | Join | Split | IncSubtensor | Roll
_SEEN = DimShuffle | Subtensor
#: Of arrays with fewer elements any strides are read where they are.
_MIN_ELEMENTS = 1 << 14
#: Strides of which compiled loops read whole vectors, in elements. A copy turns blocks of others.
_STEPS_OF_LOOPS = frozenset({0, 1, 2, 3, 4})


def in_layout(plan: CpuPlan, arrays: Sequence[Any]) -> LaidOutPlan | None:
    """``plan`` for arrays with the strides of these; None where it has to get contiguous ones."""
    strided = {k: a for k, a in enumerate(arrays) if not a.flags.c_contiguous}
    entering = dict(plan.entering)
    values = {entering[k] for k in strided if k in entering}
    if compiler_refusal() or not all(
        has_code(a.dtype.name) and a.size and k in entering for k, a in strided.items()
    ):
        return None
    if not values.isdisjoint((*plan.leaving, *(i for pair in plan.stored for i in pair))):
        return None
    return LaidOutPlan(plan, {k: example(a.dtype, a.shape, a.strides) for k, a in strided.items()})


class LaidOutPlan(CpuPlan):
    """A plan like ``full`` for arguments with the strides of ``strided``, by their numbers.

    An argument is read where it is if that takes its readers no longer than a copy would. Others
    are copied to the arena by the plan's first steps.
    """

    strided_arguments = True

    def __init__(self, full: CpuPlan, strided: dict[int, Any], fewer: bool = False) -> None:
        self._strided = strided
        #: Copied arguments, by the index of the value: (example, index of the argument, where in
        #: the arena).
        self._copies: dict[int, tuple[Any, int, int]] = {}
        #: Views of copied arguments, which are bound with them.
        self._fixed: dict[int, BaseAndView] = {}
        #: Views of arguments that are read where they are: steps in order, by the argument's value.
        self._seen: dict[int, list[PlanStep]] = {}
        super().__init__(full.runtime, full.spec, full.memory, full)
        if not fewer:
            self.may_yield, self.calls = full.may_yield, 0
            self.tier_up_kernels = dict(full.tier_up_kernels)
            self.yields = self._yields()

    def _with_fewer(self) -> CpuPlan:
        return LaidOutPlan(self, self._strided, fewer=True)

    def _bind_steps(self) -> None:
        super()._bind_steps()
        self.detach()
        first = len(self.index) + len(self.memory.workspaces)
        del self.template[first:]
        self.template += [None] * len(self._strided)
        index = {v: i for v, i in self.index.items() if v in set(self.spec.segment.inputs)}
        numbers, values = {i: k for k, i in self.plain_entering()}, {i: v for v, i in index.items()}
        self._copies, self._fixed, self._seen, copies = {}, {}, {}, []
        end = aligned(self.memory.arena_bytes)
        for place, (k, array) in enumerate(self._strided.items(), first):
            (i,) = (i for i, number in numbers.items() if number == k)
            if self._reads_in_place(i, array):
                continue
            self._copies[i] = array, place, end
            end += aligned(array.nbytes)
            copies.append(self._copy(values[i], array, place, i))
        self.arena_bytes = end
        self.entering = [
            (k, self._copies[i][1] if i in self._copies else i) for k, i in self.plain_entering()
        ]
        self._find_fixed()
        self.steps = [*copies, *(s for s in self.steps if s.outputs[0] not in self._fixed)]
        self.orders = self._orders()

    def _copy(self, v: Variable, array: Any, place: int, i: int) -> PlanStep:
        node = Copy()(v).owner
        assert node is not None
        return PlanStep(node, copy_of(array.dtype.name, array.shape), (place,), (i,), False)

    def _reads_in_place(self, i: int, array: Any) -> bool:
        """Whether the readers of an argument read it where it is."""
        reached, readers, seen = {i}, list[PlanStep](), list[PlanStep]()
        for step in self.steps:
            if reached.isdisjoint(step.inputs):
                continue
            numbers = [self.template[j] for j in step.inputs[1:]]
            plain = isinstance(step.node.op, _SEEN) and all(n is not None for n in numbers)
            if step.by_view and plain:
                reached.update(step.outputs)
                seen.append(step)
            else:
                readers.append(step)
        if not reached.isdisjoint(self.leaving) or any(s.by_view for s in readers):
            return False
        if not all(_reads_strides(s, array) for s in readers):
            return False
        rows = array.strides[-1] == array.itemsize
        if array.size >= _MIN_ELEMENTS and not rows and len(readers) > 1:
            return False
        self._seen[i] = seen
        return True

    def _find_fixed(self) -> None:
        """Views of copied arguments that are the same in each run."""
        for j, (i, view) in super()._views_outside().items():
            if i in self._copies and j not in self.leaving:
                self._fixed[j] = i, view

    def _views_outside(self) -> dict[int, BaseAndView]:
        found = super()._views_outside()
        bases = {i: self._strided[k] for k, i in self.plain_entering() if i in self._seen}
        shapes = {i: (shape, dtype) for i, shape, dtype in self.results.places}
        for i, order in self.orders.items():
            shape, dtype = shapes[i]
            bases[i] = example(dtype, shape, order=order)
        for i, base in bases.items():
            known = {i: base}
            for step in self._seen.get(i, self.steps):
                if not (step.by_view and step.inputs[0] in known):
                    continue
                array, *numbers = (known.get(j, self.template[j]) for j in step.inputs)
                known[step.outputs[0]] = made = step.launch(array, *numbers)[0]
                view = self.memory.views[step.node.outputs[0]]
                offset = address(made) - address(base)
                placed = replace(view, offset=offset, strides=made.strides, placed=True)
                found[step.outputs[0]] = i, placed
        return found

    def _orders(self) -> dict[int, tuple[int, ...]]:
        """Results of elementwise ops have the order of the arguments of their shape, as in NumPy.

        So a loop over transposed arguments transposes nothing.
        """
        numbers, found = {i: k for k, i in self.plain_entering()}, {}
        for result, like in order_follows(self.spec.segment, self.memory, self.index).items():
            arrays = [None if i in self._copies else self._strided.get(numbers[i]) for i in like]
            orders = {None if a is None else memory_order(a) for a in arrays}
            order = orders.pop() if len(orders) == 1 else None
            if order is not None and order != tuple(range(len(order))):
                found[result] = order
        return found

    def _place(self, arena: Array) -> None:
        super()._place(arena)
        for i, (array, _, start) in self._copies.items():
            nbytes = prod(array.shape) * array.itemsize
            self.template[i] = arena[start : start + nbytes].view(array.dtype).reshape(array.shape)
        for j, (i, view) in self._fixed.items():
            self.template[j] = view_of_base(self.template[i], view, self.template[i].dtype)

    def detach(self) -> None:
        """Drop all views of the arena; the next run binds to the arena that there is then."""
        super().detach()
        for i in (*self._copies, *self._fixed):
            self.template[i] = None


def _reads_strides(step: PlanStep, array: Any) -> bool:
    """Whether a step reads an array, or views of it, with such strides as fast as a copy."""
    op = neutral_of(step.node.op)
    if isinstance(op, Dot | BatchedDot):
        return array.itemsize in array.strides[-2:]
    if not isinstance(op, _LOOPS | _MOVES):
        return False
    if array.size < _MIN_ELEMENTS:
        return True
    return not _STEPS_OF_LOOPS.isdisjoint(s / array.itemsize for s in array.strides)
