"""Plans without a device: kernels and memory as an oracle describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from symdnn.compile.plan.budget import chosen_together
from symdnn.compile.plan.memory import MemoryPlan, plan_memory
from symdnn.compile.plan.memory_order import ordered_by_size
from symdnn.compile.plan.plan import evaluate_sizes
from symdnn.compile.plan.specialise import Choice, Oracle, Specialised, TableOracle, specialise
from symdnn.compile.program.program import If, Loop, Program, Segment
from symdnn.errors import DataDependentShape, InputError, NotEvaluable
from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.kernel import FOREIGN, Call, Kernel, Launch, Traits, kernels_for
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Shared, Variable
from symdnn.ops.core.shape import ShapeI


@dataclass(frozen=True)
class DescribedKernel(Kernel):
    """A kernel that is only a name: it can be chosen and planned for, but not run."""

    name: str
    traits: Traits = FOREIGN

    def bind(self, call: Call) -> Launch[Any]:
        """Raises :class:`~symdnn.errors.NotEvaluable`."""
        raise NotEvaluable(f"kernel {self.name} for {call} is described, not there")


@dataclass(frozen=True)
class DescribedOracle:
    """An oracle whose answers are functions of a :class:`~symdnn.graph.kernel.Call`.

    ``kernels`` names the candidates for a call in order of preference. ``refuses(name, call)`` is
    the reason why one does not take it, or None; ``workspace(name, call)`` is its workspace in
    bytes.
    """

    kernels: Callable[[Call], Sequence[str]] = lambda call: (f"described.{type(call.op).__name__}",)
    refuses: Callable[[str, Call], str | None] = lambda name, call: None
    workspace: Callable[[str, Call], int] = lambda name, call: 0

    def choose(self, call: Call) -> Choice:
        """The first candidate that is not refused."""
        refused: list[tuple[str, str]] = []
        for name in self.kernels(call):
            reason = self.refuses(name, call)
            if reason is None:
                return Choice(DescribedKernel(name), self.workspace(name, call), tuple(refused))
            refused.append((name, reason))
        tried = "; ".join(f"{name}: {why}" for name, why in refused)
        raise NotEvaluable(f"no described kernel takes {call} ({tried})")


@dataclass(frozen=True)
class _TableOrDescribed:
    """The kernels of the table where there are any, else a described one."""

    target_kind: str

    def choose(self, call: Call) -> Choice:
        if kernels_for(type(call.op), self.target_kind):
            return TableOracle(self.target_kind).choose(call)
        return DescribedOracle().choose(call)


@dataclass(frozen=True)
class SegmentPlan:
    """A segment at concrete shapes with its memory plan, not bound to any device."""

    specialised: Specialised
    memory: MemoryPlan

    def kernels(self) -> dict[str, str]:
        """Op -> kernel, views left out."""
        return {
            str(node.op): choice.kernel.name
            for node, choice in self.specialised.choices.items()
            if node not in self.memory.aliases
        }


def specialise_program(
    program: Program,
    inputs: Sequence[Variable],
    shapes: Mapping[Any, Sequence[int]],
    oracle: Oracle | None = None,
    host_values: Mapping[Any, int] | None = None,
) -> list[SegmentPlan]:
    """Plans of all segments of ``program``, also of both branches of an ``ifelse``.

    Bodies of loops are left out. Raises :class:`~symdnn.errors.DataDependentShape` if the shapes of
    a segment depend on data, :class:`~symdnn.errors.InputError` for an unknown input, and
    :class:`~symdnn.errors.DimensionMismatch` for a shape that its type does not take.
    """
    named = _by_variable(inputs, shapes)
    known = {v: tuple(int(n) for n in s) for v, s in named.items()}
    for v, shape in known.items():
        if isinstance(v.type, TensorType):
            v.type.check_value_shape(shape, f"specialise: the input {v}")
    values: dict[Variable, Any] = {
        v: np.asarray(n, v.type.numpy) for v, n in _by_variable(inputs, host_values or {}).items()
    }
    return list(_plans(program, oracle, known, values))


def _by_variable(inputs: Sequence[Variable], given: Mapping[Any, Any]) -> dict[Variable, Any]:
    found: dict[Variable, Any] = {}
    for key, value in given.items():
        matching = [v for v in inputs if v is key or (isinstance(key, str) and v.name == key)]
        if len(matching) != 1:
            known = ", ".join(map(str, inputs))
            raise InputError(f"specialise: {key!r} is none of the inputs {known}")
        found[matching[0]] = value
    return found


def _plans(
    program: Program,
    oracle: Oracle | None,
    shapes: dict[Variable, tuple[int, ...]],
    values: dict[Variable, Any],
) -> Iterator[SegmentPlan]:
    for region in program.regions:
        if isinstance(region, Segment):
            yield from segment_plan(region, oracle, shapes, values)
        elif isinstance(region, If):
            yield from _plans(region.then, oracle, shapes, values)
            yield from _plans(region.orelse, oracle, shapes, values)
            for result, a, b in zip(region.results, region.then_values, region.else_values):
                if shapes.get(a) == shapes.get(b) and a in shapes:
                    shapes[result] = shapes[a]
        else:
            add_shapes_of_loop(region, shapes, values)


def add_shapes_of_loop(
    loop: Loop, shapes: dict[Variable, tuple[int, ...]], values: Mapping[Variable, Any]
) -> None:
    """Add the shapes of a loop's outputs. Plans of its body are made when it runs."""
    node = loop.node
    add_shapes_of_views(loop, shapes, values)
    given = [
        v.data.shape if isinstance(v, Constant) else shapes.get(v) or _own_shape(v, values)
        for v in node.inputs
    ]
    host = {i: int(_value(node.inputs[i], values)) for i in node.op.host_inputs}
    found = node.op.shapes([v.type for v in node.inputs], given, host)
    if found is not None:
        shapes.update((v, tuple(s)) for v, s in zip(node.outputs, found))  # type: ignore[arg-type]


def add_shapes_of_views(
    loop: Loop, shapes: dict[Variable, tuple[int, ...]], values: Mapping[Variable, Any]
) -> None:
    """Add the shapes of the views that a loop makes."""
    for n in loop.views:
        (v,) = n.inputs
        found = n.op.shapes([v.type], [shapes.get(v) or _own_shape(v, values)], {})
        shapes[n.outputs[0]] = tuple(found[0])  # type: ignore[index,arg-type]


def segment_plan(
    segment: Segment,
    oracle: Oracle | None,
    shapes: dict[Variable, tuple[int, ...]],
    values: dict[Variable, Any],
) -> Iterator[SegmentPlan]:
    """The plan of a segment that has nodes. Shapes of its outputs and host values are added."""
    for v in (*segment.inputs, *segment.sources):
        if v not in shapes:
            shapes[v] = _own_shape(v, values)
    sizes = evaluate_sizes(segment, shapes)
    known = {**values, **sizes}
    for node in segment.host:
        (of, *_) = node.inputs or (None,)
        if isinstance(node.op, ShapeI) and of in shapes:
            known[node.outputs[0]] = np.asarray(shapes[of][node.op.axis], np.int64)
        elif all(isinstance(v, Constant | Shared) or v in known for v in node.inputs):
            results = evaluate_node(node, [_value(v, known) for v in node.inputs])
            known.update(zip(node.outputs, results))
    values.update(known)
    if not segment.nodes:
        return
    answers = oracle or _TableOrDescribed(segment.place.kind)
    found = specialise(segment, shapes, _Read(known), answers, sizes)
    specialised = chosen_together(ordered_by_size(found))
    for v in segment.outputs:
        shape = specialised.shapes[v]
        if shape is not None:
            shapes[v] = shape
    yield SegmentPlan(specialised, plan_memory(specialised))


class _Read(dict[Variable, Any]):
    """Host values. A missing one is read from its shared variable, or raises an error."""

    def __missing__(self, v: Variable) -> Any:
        if isinstance(v, Shared):
            return v.get_value(borrow=True)
        raise DataDependentShape(f"specialise: a shape depends on {v}; give it in host_values")


def _value(v: Variable, known: Mapping[Variable, Any]) -> Any:
    if isinstance(v, Constant):
        return v.data
    if v not in known and isinstance(v, Shared):
        return v.get_value(borrow=True)
    return known[v]


def _own_shape(v: Variable, values: Mapping[Variable, Any]) -> tuple[int, ...]:
    if isinstance(v, Shared):
        return tuple(v.storage.shape)
    if v in values:
        return tuple(np.shape(values[v]))
    if getattr(v.type, "is_static", False):
        return cast("tuple[int, ...]", v.type.shape)
    raise DataDependentShape(f"specialise: the shape of {v} of type {v.type} is not given")
