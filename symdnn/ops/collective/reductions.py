"""Reductions over ranks, their adjoints, and copies from one rank to all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import ShapeMismatch
from symdnn.graph.dims import known
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.graph.variable import Variable
from symdnn.ops.collective.base import Collective, Reducing, at_least_1d, lanes_second
from symdnn.ops.elemwise import like
from symdnn.world.communicator import Communicator, Pending

__all__ = ["AllGather", "AllReduce", "Broadcast", "Reduce", "ReduceScatter"]


@dataclass(frozen=True)
class AllReduce(Reducing, MultiOp):
    """The reduction of each input over the ranks, on all of them (``ncclAllReduce``,
    ``MPI_Allreduce``). Several inputs are one transfer, a bucket.

    The adjoint of sum is sum, that of mean is mean. Of max and min each tie gets the full
    gradient, as in :class:`~symdnn.ops.array.reduce.Max`. With ``as_rounded`` a value that mixed
    precision has in bfloat16 is reduced in bfloat16.
    """

    as_rounded: bool = False

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return tuple(self.checked(x) for x in inputs)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return list(shapes)

    def across(self, values: Sequence[Arrays]) -> list[list[Array]]:
        found = [self.reduced(same) for same in zip(*values, strict=True)]
        return [list(found) for _ in values]

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        return comm.all_reduce(inputs, outputs, self.op)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        given = [g for g in cotangents if g is not None]
        back = replace(self, op="mean" if self.op == "mean" else "sum")
        totals = iter(back.make_node(*given).outputs)
        found: list[Variable | None] = []
        for x, y, g in zip(inputs, outputs, cotangents):
            found.append(None if g is None else self._slope(x, y, g, next(totals)))
        return found

    def _slope(self, x: Variable, y: Variable, g: Variable, total: Variable) -> Any:
        if self.linear:
            return total
        if self.op in ("max", "min"):
            return _of_ties(x, y, total)
        return _of_factors(self, x, g, "sum")

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        if not self.linear:
            return None
        sums = iter(self.make_node(*[t for t in tangents if t is not None]).outputs)
        return [None if t is None else next(sums) for t in tangents]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return self.make_node(*inputs).outputs, list(axes)


@dataclass(frozen=True)
class Reduce(Reducing):
    """The reduction over the ranks, on number ``root`` of the group; zeros elsewhere
    (``ncclReduce``, ``MPI_Reduce``). The adjoint of sum is :class:`Broadcast`."""

    root: int = 0

    def infer(self, x: TensorType) -> TensorType:
        return self.checked(x)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return list(shapes)

    def across(self, values: Sequence[Arrays]) -> list[list[Array]]:
        total = self.reduced([x for (x,) in values])
        return [[total if i == self.root else np.zeros_like(total)] for i in range(len(values))]

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        return comm.reduce(inputs[0], outputs[0], self.op, self.root)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        of_root = Broadcast(self.group, self.root)
        g = of_root(cotangents[0])
        if self.linear:
            return [g * like(1 / self.group.size, g) if self.op == "mean" else g]
        if self.op in ("max", "min"):
            return [_of_ties(inputs[0], of_root(outputs[0]), g)]
        return [_of_factors(self, inputs[0], g, "mean")]  # all ranks have that of the root

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        if not self.linear:
            return None
        return [None if t is None else self(t) for t in tangents]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return self.make_node(*inputs).outputs, list(axes)


def _of_ties(x: Variable, y: Variable, g: Variable) -> Variable:
    """The gradient of a largest or smallest ``y``: ``g`` where ``x`` is as large."""
    made: Variable = operator("switch")(operator("eq")(x, y), g, like(0, g))
    return made


def _of_factors(op: Reducing, x: Variable, g: Variable, total: str) -> Variable:
    """The gradient of a product: the reduction of ``g`` times the factors of the other ranks."""
    row = operator("dimshuffle")(x, ["x", *range(x.type.ndim)])
    others = operator("product_of_others")(AllGather(op.group)(row), (0,))
    parts = ReduceScatter(op.group, total)(g * operator("conj")(others))
    made: Variable = operator("dimshuffle")(parts, list(range(1, x.type.ndim + 1)))
    return made


@dataclass(frozen=True)
class Broadcast(Collective):
    """The value of number ``root`` of the group, on all ranks (``ncclBroadcast``, ``MPI_Bcast``).

    All ranks give an array of its shape. Its adjoint is :class:`Reduce`.
    """

    linear_in_first: ClassVar[bool] = True
    root: int = 0

    def infer(self, x: TensorType) -> TensorType:
        return x

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return list(shapes)

    def across(self, values: Sequence[Arrays]) -> list[list[Array]]:
        return [[values[self.root][0]] for _ in values]

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        return comm.broadcast(inputs[0], outputs[0], self.root)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [Reduce(self.group, "sum", self.root)(cotangents[0])]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return self.make_node(*inputs).outputs, list(axes)


class AllGather(Collective):
    """The arrays of all ranks, of equal shapes, joined along the first axis (``ncclAllGather``,
    ``MPI_Allgather``). Its adjoint is :class:`ReduceScatter`."""

    linear_in_first: ClassVar[bool] = True

    def infer(self, x: TensorType) -> TensorType:
        first, *rest = at_least_1d(self, x).shape
        return x.with_shape((None if first is None else first * self.group.size, *rest))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        first, *rest = shapes[0]
        return [(first * self.group.size, *rest)]

    def across(self, values: Sequence[Arrays]) -> list[list[Array]]:
        return [[np.concatenate([x for (x,) in values])] for _ in values]

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        return comm.all_gather(inputs[0], outputs[0])

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [ReduceScatter(self.group)(cotangents[0])]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return [lanes_second(self, inputs[0])], [0]


@dataclass(frozen=True)
class ReduceScatter(Reducing):
    """The sum or mean over the ranks, of which number i gets part i of as many equal ones along
    the first axis (``ncclReduceScatter``, ``MPI_Reduce_scatter_block``). Its adjoint is
    :class:`AllGather`. ``as_rounded`` is that of :class:`AllReduce`."""

    linear_in_first: ClassVar[bool] = True
    as_rounded: bool = False

    def infer(self, x: TensorType) -> TensorType:
        first, *rest = self.checked(at_least_1d(self, x)).shape
        return x.with_shape((None if first is None else part_of(self, first), *rest))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        first, *rest = shapes[0]
        return [(part_of(self, first), *rest)]

    def across(self, values: Sequence[Arrays]) -> list[list[Array]]:
        total = self.reduced([x for (x,) in values])
        return [[part] for part in np.split(total, len(values))]

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        return comm.reduce_scatter(inputs[0], outputs[0], self.op)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        g = AllGather(self.group)(cotangents[0])
        return [g * like(1 / self.group.size, g) if self.op == "mean" else g]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return [lanes_second(self, inputs[0])], [0]


def part_of(op: Collective, size: Any) -> Any:
    """A size divided by the number of ranks; raises ``ShapeMismatch`` if it can't be."""
    number, ranks = known(size), op.group.size
    if number is not None and number % ranks:
        raise ShapeMismatch(
            op, f"a first dimension that {ranks} ranks divide", number,
            "Pad it with zeros to a multiple",
        )  # fmt: skip
    return size // ranks
