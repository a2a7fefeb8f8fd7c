"""Collectives on the CPU: MPI moves the plan's own buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.graph.kernel import Call, Kernel, Launch, Row, Traits
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import AllReduceStart, AllReduceWait, MoveStart, MoveWait
from symdnn.world import process

_TRAITS = Traits("mpi")


class CollectiveKernel(Kernel[Collective]):
    """A collective that is done when its launch returns."""

    name = "mpi"
    traits = _TRAITS

    def bind(self, call: Call[Collective]) -> Launch[Array]:
        """By the communicator of the group, which is made now."""
        op = call.op
        comm = process.current().communicator(op.group)

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            comm.wait(op.launch(comm, inputs, outputs))

        return launch


class StartKernel(Kernel[AllReduceStart]):
    """The start of a reduction, during which later steps run."""

    name = "mpi.start"
    traits = _TRAITS

    def bind(self, call: Call[AllReduceStart]) -> Launch[Any]:
        """Returns what :class:`WaitKernel` waits for."""
        op = call.op
        process.current().communicator(op.group)
        return lambda inputs, outputs: [op.begin(inputs)]


class WaitKernel(Kernel[AllReduceWait]):
    """The end of a reduction."""

    name = "mpi.wait"
    traits = _TRAITS

    def bind(self, call: Call[AllReduceWait]) -> Launch[Any]:
        """Waits, and writes the results."""

        def launch(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
            # Outputs that are updates of borrowed variables have no buffer.
            outs = [np.empty_like(x) if o is None else o for o, x in zip(outputs, inputs[1:])]
            inputs[0].into(outs)
            return outs

        return launch


class MoveStartKernel(Kernel[MoveStart]):
    """The start of a move, into the plan's own buffer, during which later steps run."""

    name = "mpi.start"
    traits = _TRAITS

    def bind(self, call: Call[MoveStart]) -> Launch[Any]:
        """Returns what :class:`MoveWaitKernel` waits for, and the buffer."""
        op, result = call.op, call.outputs[0]
        process.current().communicator(op.group)

        def launch(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
            out = outputs[0]
            if out is None:
                out = np.empty(result.shape, result.numpy)
            return [out, op.begin(inputs, out)]

        return launch


class MoveWaitKernel(Kernel[MoveWait]):
    """The end of a move."""

    name = "mpi.wait"
    traits = _TRAITS

    def bind(self, call: Call[MoveWait]) -> Launch[Any]:
        """Waits; the result is in the start's buffer, unless the plan wants it elsewhere."""

        def launch(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
            out = inputs[0] if outputs[0] is None else outputs[0]
            inputs[1].into(out)
            return [out]

        return launch


KERNELS: tuple[Row, ...] = (
    ((AllReduceStart,), (StartKernel(),)),
    ((AllReduceWait,), (WaitKernel(),)),
    ((MoveStart,), (MoveStartKernel(),)),
    ((MoveWait,), (MoveWaitKernel(),)),
    ((Collective,), (CollectiveKernel(),)),
)
