"""An activation function behind a primitive, in place, where oneDNN's own would lose NaN."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.elementwise import elementwise_launch
from symdnn.cpu.launch.contiguous_launch import compiler_refusal
from symdnn.cpu.launch.fastcall import FastCall, FastCallSeries
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.graph.kernel import Call
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.core.scalar import ScalarProgram

#: Activation functions of which oneDNN's have a number in place of NaN.
LOSES_NAN = ("clip", "hardsigmoid")
#: Bytes of a result that are still in the cache after the primitive.
_MAX_CACHED_BYTES = 4 << 20


def runs_apart(call: Call) -> bool:
    """Whether an activation function runs behind the primitive.

    A ReLU in bfloat16 always does: one that leaves NaN takes longer within the primitive (32 images
    through SqueezeNet 164 ms instead of 137). The two that lose NaN do where the result fits the
    cache; for larger ones operands are looked at.
    """
    activation, y = getattr(call.op, "activation", ""), call.outputs[0]
    assert isinstance(y, TensorType), "products are tensors"
    if activation not in LOSES_NAN:
        return (activation, y.dtype) == ("relu", "bfloat16")
    return call.has_sizes and prod(y.shape) * y.numpy.itemsize <= _MAX_CACHED_BYTES


class ActivatedLaunch(CpuLaunch):
    """``launch(inputs, outputs, workspace)``, then a program of each element of the result."""

    def __init__(self, launch: Any, program: ScalarProgram, shape: tuple[int, ...]) -> None:
        self._launch, self._program = launch, program
        compiles = compiler_refusal() is None
        self._after = elementwise_launch(program, shape) if compiles else None

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        """Run both parts."""
        self._launch(inputs, outputs, workspace)
        if self._after is not None:
            self._after(outputs, outputs)
            return
        with np.errstate(all="ignore"):
            np.copyto(outputs[0], self._program.evaluate(outputs[0])[0])

    def prepare(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        """Queue the compilation of the second part."""
        if self._after is not None:
            self._after.prepare(outputs, outputs)

    def native(
        self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None
    ) -> FastCallSeries | None:
        """Where the primitive has it."""
        given = (inputs, outputs) if workspace is None else (inputs, outputs, workspace)
        first: FastCall | None = self._launch.native(*given)
        if first is None or self._after is None:
            return None
        result = len(inputs)
        second = self._after.native(outputs, outputs)
        every = [*range(result + len(outputs) + (workspace is not None))]
        return FastCallSeries([(first, every), (second, [result, result])])
