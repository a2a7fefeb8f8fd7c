"""A reduction in two halves, between which other nodes run; and the agreement before updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.graph.inner import InnerGraphOp
from symdnn.graph.op import Axes, Batched, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.graph.variable import Apply
from symdnn.ops.collective.base import Collective
from symdnn.world import process
from symdnn.world.communicator import Communicator, Pending


class Started:
    """A reduction that has begun: where its results will be, and how to wait for it."""

    def __init__(self, comm: Communicator, inputs: Arrays, op: str) -> None:
        self._comm, self._outs = comm, list[Array]()
        self._pending = comm.all_reduce(inputs, self._outs, op)

    def into(self, outputs: Arrays) -> None:
        """Wait, and write the results."""
        self._outs += outputs
        self._comm.wait(self._pending)


@dataclass(frozen=True)
class AllReduceStart(Collective):
    """The first half of an :class:`~symdnn.ops.collective.reductions.AllReduce`.

    Engines read the inputs before it returns.
    """

    op: str = "sum"

    def infer(self, *inputs: TensorType) -> OpaqueType:
        return OpaqueType("all_reduce")

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [()]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return self.make_node(*inputs).outputs, [None]

    def reference(self, *inputs: Array) -> Any:
        return self.begin(inputs)

    def compute(self, *inputs: Any) -> tuple[Any, ...]:
        return (self.begin(inputs),)

    def begin(self, inputs: Arrays) -> Started:
        """Start it by the communicator of the present world."""
        return Started(process.current().communicator(self.group), inputs, self.op)


@dataclass(frozen=True)
class AllReduceWait(MultiOp):
    """The second half: what was started, and its operands, of which sizes alone are read."""

    folds: ClassVar[bool] = False

    count: int

    def infer(self, started: OpaqueType, *inputs: TensorType) -> tuple[TensorType, ...]:
        return inputs

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return list(shapes[1:])

    def reference(self, started: Started, *inputs: Array) -> tuple[Array, ...]:
        outs = [np.empty_like(x) for x in inputs]
        started.into(outs)
        return tuple(outs)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return self.make_node(*inputs).outputs, list(axes[1:])

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {i: (i + 1,) for i in range(self.count)}


@dataclass(frozen=True)
class MoveStart(Collective, MultiOp):
    """The first half of a collective with one result: where it will be, which nothing but
    :class:`MoveWait` may read, and what was started."""

    in_flight: ClassVar[bool] = True

    of: Collective

    def infer(self, *inputs: TensorType) -> tuple[Any, ...]:
        (result,) = self.of.output_types(list(inputs))
        return result, OpaqueType("move")

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        found = self.of.shapes(types, shapes, host)
        return None if found is None else [*found, ()]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return None

    def reference(self, *inputs: Array) -> Any:
        types = [TensorType(a.dtype.name, a.shape) for a in inputs]
        (result,) = self.of.output_types(types)
        out = np.empty(result.shape, result.numpy)  # type: ignore[attr-defined]
        return out, self.begin(inputs, out)

    def compute(self, *inputs: Any) -> tuple[Any, ...]:
        return tuple(self.reference(*inputs))

    def begin(self, inputs: Arrays, out: Array) -> Moving:
        """Start it by the communicator of the present world, into ``out``."""
        comm = process.current().communicator(self.group)
        return Moving(comm, self.of.launch(comm, inputs, [out]), out)

    def text(self, types: Sequence[TensorType]) -> str:
        return self.of.text(types)


class Moving:
    """A collective that has begun, and where its result will be."""

    def __init__(self, comm: Communicator, pending: Pending, out: Array) -> None:
        self._comm, self._pending, self._out = comm, pending, out

    def into(self, out: Array) -> None:
        """Wait; the result is in ``out`` then."""
        self._comm.wait(self._pending)
        if out is not self._out and not (
            out.ctypes.data == self._out.ctypes.data and out.strides == self._out.strides
        ):
            np.copyto(out, self._out)


@dataclass(frozen=True)
class MoveWait(Op):
    """The second half: the result, in the place that the start gave."""

    shaped_as: ClassVar[int | None] = 0
    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (0,)}
    folds: ClassVar[bool] = False

    def infer(self, place: TensorType, moving: OpaqueType) -> TensorType:
        return place

    def reference(self, place: Array, moving: Moving) -> Array:
        moving.into(place)
        return place


@dataclass(frozen=True)
class StreamStart(Collective, MultiOp):
    """The first half of a collective on a GPU, on a stream of its own: the places of its results,
    which nothing but :class:`StreamWait` may read."""

    in_flight: ClassVar[bool] = True
    never_fails: ClassVar[bool] = True

    of: Collective

    def infer(self, *inputs: TensorType) -> tuple[Any, ...]:
        return tuple(self.of.output_types(list(inputs)))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return self.of.shapes(types, shapes, host)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return None

    def reference(self, *inputs: Array) -> Any:
        return tuple(self.of.compute(*inputs))

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        return self.of.launch(comm, inputs, outputs)

    def text(self, types: Sequence[TensorType]) -> str:
        return self.of.text(types)


@dataclass(frozen=True)
class StreamWait(MultiOp):
    """The second half: the results in their ``count`` places. It has the operands of the start as
    further inputs, so that their memory is kept until the other stream has read it."""

    never_fails: ClassVar[bool] = True
    folds: ClassVar[bool] = False
    unmergeable: ClassVar[bool] = True

    count: int

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return inputs[: self.count]

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return list(shapes[: self.count])

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return inputs[: self.count]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return None

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        return {i: (i,) for i in range(self.count)}


class AllSucceeded(Collective):
    """``x`` once every rank has come so far; before that no shared variable changes.

    The program puts it behind all nodes that can fail and before the updates. A rank on which one
    failed does not come: the others raise :class:`~symdnn.errors.PeerFailed`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return x

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return list(shapes)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return self.make_node(*inputs).outputs, list(axes)

    def across(self, values: Sequence[Arrays]) -> list[list[Array]]:
        return [[x] for (x,) in values]

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        return comm.all_reduce(inputs, outputs, "max")


def is_agreement(node: Apply) -> bool:
    """Whether a node is an :class:`AllSucceeded`, or its first half on a GPU."""
    return isinstance(node.op.of if isinstance(node.op, StreamStart) else node.op, AllSucceeded)


def has_collectives(nodes: Iterable[Apply]) -> bool:
    """Whether one of the nodes, or a node inside of one, is run by several ranks together."""
    return any(
        isinstance(n.op, Collective)
        or (isinstance(n.op, InnerGraphOp) and has_collectives(n.op.inner.nodes))
        for n in nodes
    )
