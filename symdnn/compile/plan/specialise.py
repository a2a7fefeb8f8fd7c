"""Specialises a segment: concrete shapes, and a kernel for each node.

The argument ``oracle`` answers questions about the device: which kernel takes a call, and how much
workspace it needs. So a described device serves as well as a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np

from symdnn.compile.program.program import Segment
from symdnn.config import config
from symdnn.errors import NotEvaluable
from symdnn.graph.evaluate import Uncomputed, note_failure
from symdnn.graph.kernel import Call, Kernel, Launch, Versions, kernels_for, sized
from symdnn.graph.type import OpaqueType, TensorType, Type
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.tuning.allowance import postponed

Shape = tuple[int, ...]


class Oracle(Protocol):
    """Chooses kernels for a device."""

    def choose(self, call: Call) -> Choice:
        """The kernel for a call; raises :class:`NotEvaluable` if none takes it."""


@dataclass(frozen=True)
class Choice:
    """The kernel chosen for a call, its workspace in bytes, and why others were refused.

    It ``lasts`` if it depends on the call and on flags alone: an equal call gets the same one.
    """

    kernel: Kernel
    workspace_bytes: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    lasts: bool = False


@dataclass(frozen=True)
class TableOracle:
    """Chooses the first kernel of the table that does not refuse."""

    target_kind: str

    def choose(self, call: Call) -> Choice:
        """The first kernel in order of preference; hints may name one by ``backend``.

        Other kernels are chosen if that backend has none for the call: gradients and reorders
        inherit hints, and a program with hints for cuDNN also runs on a CPU. ``"nn"`` excludes
        vendors' kernels. Raises :class:`~symdnn.errors.NotEvaluable` if no kernel takes the call.
        """
        kernels = kernels_for(type(call.op), self.target_kind)
        refused = _against_hints(call, kernels) if call.hints.backend is not None else []
        names = {name for name, _ in refused}
        tried: list[tuple[str, str]] = []
        lasts = True
        for kernel in sorted(kernels, key=lambda k: k.name in names) if names else kernels:
            found, lasts = kernel.chosen(call), lasts and not kernel.has_choices
            if not isinstance(found, str):
                said = tuple((name, why) for name, why in refused if name != kernel.name)
                return Choice(found, found.workspace_bytes(call), (*said, *tried), lasts)
            tried.append((kernel.name, found))
        text = "; ".join(f"{name}: {why}" for name, why in tried) or "there is none"
        raise NotEvaluable(f"no kernel on {self.target_kind} for {call} ({text})")


def _against_hints(call: Call, kernels: Sequence[Kernel]) -> list[tuple[str, str]]:
    """Kernels that do not follow the hints, each with the reason."""
    known = {k.traits.backend for k in kernels}
    return [(k.name, why) for k in kernels if (why := _backend_reason(call, k, known)) is not None]


def _backend_reason(call: Call, kernel: Kernel, known: Container[str]) -> str | None:
    """Why a kernel does not follow the hint; ``known`` are the backends that have kernels."""
    wanted = call.hints.backend
    if wanted == "nn":
        return "the hint asks for no vendor's kernels" if kernel.traits.vendor else None
    if wanted not in known or kernel.traits.backend == wanted:
        return None
    return f"the hint asks for backend {wanted}"


@dataclass(frozen=True)
class Answer:
    """What was found for a node whose inputs have these ``shapes``, and host values ``read``."""

    shapes: tuple[Shape | None, ...]
    read: Mapping[int, int]
    results: Sequence[Shape | None]
    call: Call
    choice: Choice


class Answers:
    """The last answer for each node of a segment, of those that last.

    A plan for new shapes asks nothing about nodes whose own shapes are as before, such as those of
    parameters. It must ask again with other flags.
    """

    def __init__(self) -> None:
        self._known: dict[Apply, Answer] = {}
        self._flags: tuple[object, ...] = ()

    def known(self) -> dict[Apply, Answer]:
        """The answers with the flags of now; new ones are put into it."""
        flags = config.state()
        if flags != self._flags:
            self._known, self._flags = {}, flags
        return self._known


@dataclass(frozen=True)
class Specialised:
    """A segment at concrete shapes. A shape is None if it depends on data.

    ``sizes`` are values of the integers that depend only on shapes: constants of the plan.
    ``versions`` has the versions of inputs from the parameter cache.
    """

    segment: Segment
    shapes: Mapping[Variable, Shape | None]
    choices: Mapping[Apply, Choice]
    sizes: Mapping[Variable, Any]
    versions: Versions = field(default_factory=dict)
    #: The calls of kernels, one for each node.
    calls: Mapping[Apply, Call] = field(default_factory=dict, repr=False)
    #: Nodes whose kernels were chosen together (:mod:`symdnn.compile.plan.budget`).
    budgeted: frozenset[Apply] = frozenset()
    #: What is computed again for a bound on memory (:mod:`symdnn.compile.plan.recompute`).
    recomputed: Any = None

    def type_of(self, v: Variable) -> Type:
        """The type of ``v`` with its concrete shape."""
        return concrete_type(v, self.shapes)

    def launch(self, node: Apply) -> Launch[Any]:
        """The chosen kernel, bound to the node's call."""
        found: Launch[Any] = self.choices[node].kernel.bind(self.call(node))
        return found

    def call(self, node: Apply) -> Call:
        """The node with concrete types, as its kernel gets it."""
        found = self.calls.get(node)
        return make_call(node, self.shapes, self.versions) if found is None else found


def specialise(
    segment: Segment,
    shapes: Mapping[Variable, Shape],
    host_values: Mapping[Variable, Any],
    oracle: Oracle,
    sizes: Mapping[Variable, Any] | None = None,
    versions: Versions | None = None,
    begin: Callable[[Call, Kernel], None] | None = None,
    answers: Answers | None = None,
) -> Specialised:
    """Find the shapes of all values and a kernel for each node.

    ``shapes`` are the shapes of the segment's inputs, ``host_values`` the integers read on the
    host; ``versions`` tell whether values of the parameter cache have changed. ``begin`` is called
    with each choice, before the next, which may take long. ``answers`` are those of the segment's
    last plan. Raises :class:`~symdnn.errors.ShapeMismatch` with the user's line.
    """
    known: dict[Variable, Shape | None] = dict(shapes)
    known.update((v, tuple(np.shape(value))) for v, value in (sizes or {}).items())
    choices: dict[Apply, Choice] = {}
    calls: dict[Apply, Call] = {}
    asked = {} if answers is None else answers.known()
    for node in segment.nodes:
        try:
            given = tuple([known.get(v) for v in node.inputs])
            read = {i: _host_value(node.inputs[i], host_values) for i in node.op.host_inputs}
            found = asked.get(node)
            if found is None or found.shapes != given or found.read != read:
                results = _node_shapes(node, known, read)
                known.update(zip(node.outputs, results))
                call = make_call(node, known, versions or {})
                found = Answer(given, read, results, call, oracle.choose(call))
                if found.choice.lasts and not postponed():
                    asked[node] = found
            else:
                known.update(zip(node.outputs, found.results))
            calls[node], choices[node] = found.call, found.choice
            if begin is not None:
                begin(found.call, found.choice.kernel)
        except Exception as error:
            note_failure(error, node, [_shown(v, known) for v in node.inputs])
            raise
    return Specialised(segment, known, choices, sizes or {}, versions or {}, calls)


def make_call(
    node: Apply, shapes: Mapping[Variable, Shape | None], versions: Versions | None = None
) -> Call:
    """The node as a :class:`Call`, with concrete types."""
    return Call(
        node.op,
        sized(*[concrete_type(v, shapes) for v in node.inputs]),
        sized(*[concrete_type(v, shapes) for v in node.outputs]),
        node.hints,
        node,
        versions or {},
    )


def concrete_type(v: Variable, shapes: Mapping[Variable, Shape | None]) -> Type:
    """The type of ``v`` at these shapes."""
    shape = shapes.get(v)
    if not isinstance(v.type, TensorType) or isinstance(v, Constant) or shape is None:
        return v.type
    return v.type.with_shape(shape)


def _node_shapes(
    node: Apply, known: Mapping[Variable, Shape | None], read: Mapping[int, int]
) -> Sequence[Shape | None]:
    given = [_shape(v, known) for v in node.inputs]
    found = node.op.shapes([v.type for v in node.inputs], given, read)
    if found is None:
        return [cast(Shape, v.type.shape) if _static(v) else None for v in node.outputs]
    return [
        _checked(v, tuple(int(d) for d in s)) if isinstance(v.type, TensorType) else ()
        for v, s in zip(node.outputs, found, strict=True)
    ]


def _checked(v: Variable, shape: Shape) -> Shape:
    if not v.type.takes_shape(shape):  # the text of an op may be long
        v.type.check_value_shape(shape, f"output {v.index} of {v.owner.op}" if v.owner else str(v))
    return shape


def _static(v: Variable) -> bool:
    return isinstance(v.type, TensorType) and v.type.is_static


def _shape(v: Variable, known: Mapping[Variable, Shape | None]) -> Shape:
    return tuple(v.data.shape) if isinstance(v, Constant) else known.get(v) or ()


def _host_value(v: Variable, host: Mapping[Variable, Any]) -> int:
    return int(v.data) if isinstance(v, Constant) else int(host[v])


def _shown(v: Variable, known: Mapping[Variable, Shape | None]) -> Any:
    if isinstance(v.type, OpaqueType):
        return v.type
    if isinstance(v, Constant):
        return v.data
    return Uncomputed(v.type.numpy, _shape(v, known))
