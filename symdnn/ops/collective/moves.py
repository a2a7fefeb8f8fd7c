"""Moves between ranks: parts to all, and from one rank to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NotEvaluable, OptionError, TypeMismatch
from symdnn.graph.op import Axes, Batched, Grads, Host, Shapes, Types, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.graph.variable import Variable, constant
from symdnn.ops.collective.base import Collective, at_least_1d, lanes_second
from symdnn.ops.collective.reductions import part_of
from symdnn.ops.core.shape import dims_of
from symdnn.options import as_int, as_list
from symdnn.world import process
from symdnn.world.communicator import Communicator, Pending


class AllToAll(Collective):
    """Part i of as many equal ones along the first axis goes to number i; the parts that come from
    all ranks are joined in their order (``ncclAlltoAll``, ``MPI_Alltoall``). Its own adjoint."""

    linear_in_first: ClassVar[bool] = True

    def infer(self, x: TensorType) -> TensorType:
        first = at_least_1d(self, x).shape[0]
        if first is not None:
            part_of(self, first)
        return x

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        part_of(self, shapes[0][0])
        return list(shapes)

    def across(self, values: Sequence[Arrays]) -> list[list[Array]]:
        parts = [np.split(x, len(values)) for (x,) in values]
        return [[np.concatenate([p[i] for p in parts])] for i in range(len(values))]

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        return comm.all_to_all(inputs[0], outputs[0])

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [self(cotangents[0])]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return [lanes_second(self, inputs[0])], [0]


def _pair(given: object) -> tuple[int, int]:
    numbers = [
        as_int("permute: a number", n) for n in as_list("permute: a pair", given, "two ints")
    ]
    if len(numbers) != 2:
        raise OptionError(f"permute: a pair={given!r:.60}; wanted (source, destination)")
    return numbers[0], numbers[1]


@dataclass(frozen=True)
class Permute(Collective):
    """The value of ``source`` on ``to``, for each pair ``(source, to)`` of numbers of the group;
    zeros on ranks to which nothing goes (JAX's ``ppermute``).

    Its adjoint is the permutation back.
    """

    linear_in_first: ClassVar[bool] = True
    pairs: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        pairs = tuple(map(_pair, self.pairs))
        object.__setattr__(self, "pairs", pairs)
        for numbers in ([a for a, _ in pairs], [b for _, b in pairs]):
            inside = all(0 <= n < self.group.size for n in numbers)
            if not inside or len(set(numbers)) != len(numbers):
                raise OptionError(
                    f"permute: pairs={pairs} in {self.group}; wanted numbers below its size, each "
                    "at most once as a source and once as a destination"
                )

    def infer(self, x: TensorType) -> TensorType:
        return x

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return list(shapes)

    def across(self, values: Sequence[Arrays]) -> list[list[Array]]:
        outs = [[np.zeros_like(x)] for (x,) in values]
        for source, to in self.pairs:
            outs[to] = [values[source][0]]
        return outs

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        to = dict(self.pairs).get(comm.index)
        source = {b: a for a, b in self.pairs}.get(comm.index)
        return comm.permute(inputs[0], outputs[0], to, source)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [Permute(self.group, tuple((b, a) for a, b in self.pairs))(cotangents[0])]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return self.make_node(*inputs).outputs, list(axes)


def no_elements(like: Variable) -> Variable:
    """A token that nothing has made, of the dtype of ``like``."""
    return constant(np.zeros(0, like.type.numpy))


@dataclass(frozen=True)
class PointToPoint(Collective):
    """Base of a send and a receipt: ``peer`` is a number of the group."""

    abstract: ClassVar[bool] = True
    by_all: ClassVar[bool] = False

    peer: int = 0
    tag: int = 0

    def across(self, values: Sequence[Arrays]) -> list[list[Array]]:
        raise NotEvaluable(f"{self} is not run by all ranks")


class Send(PointToPoint):
    """``x`` goes to ``peer`` (``ncclSend``, ``MPI_Isend``); the result, a token, has no elements.

    Inputs: ``x``, and a token of what must come before. A cotangent of the token is one that the
    peer sends back: the adjoint is :class:`Recv`.
    """

    def infer(self, x: TensorType, after: TensorType) -> TensorType:
        return TensorType(x.dtype, (0,))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [(0,)]

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        return comm.send(inputs[0], self.peer, self.tag)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        x = inputs[0]
        recv = Recv(self.group, self.peer, self.tag, x.type.shape)
        return [recv(cotangents[0], *dims_of(x)), None]


@dataclass(frozen=True)
class Recv(PointToPoint):
    """What ``peer`` sends (``ncclRecv``, ``MPI_Irecv``), of the token's dtype.

    Inputs: a token, and the sizes (integer scalars; ``static`` has those that are known). The
    adjoint with respect to the token is :class:`Send`.
    """

    run_time_inputs: ClassVar[tuple[int, ...]] = ()
    static: tuple[int | None, ...] = ()

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + len(self.static)))

    def infer(self, token: TensorType, *dims: TensorType) -> TensorType:
        if not isinstance(token, TensorType) or token.ndim != 1:
            raise TypeMismatch(self, "a token: a vector of the dtype that comes", token)
        return TensorType(token.dtype, self.static)

    def reference(self, *inputs: Array) -> Any:
        token, *dims = inputs
        comm = process.current().communicator(self.group)
        out = np.empty(tuple(int(d) for d in dims), token.dtype)
        comm.wait(self.launch(comm, [token], [out]))
        return out

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        known = [host[i] if s is None else s for i, s in zip(self.host_inputs, self.static)]
        return [tuple(known)]

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        return comm.recv(outputs[0], self.peer, self.tag)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        # Not after the token: what has sent it need not run for the gradient.
        token: Any = Send(self.group, self.peer, self.tag)(cotangents[0], no_elements(inputs[0]))
        return [token, *[None] * len(self.static)]
