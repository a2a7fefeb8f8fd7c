"""A convolution that also returns the statistics of its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.graph.op import MultiOp
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.core.composed import Composed
from symdnn.ops.lowered.norm_parts import BatchMoments
from symdnn.ops.vendor.onednn import OneDnnConv


@dataclass(frozen=True)
class OneDnnConvMoments(Composed, MultiOp):
    """(y, mean, invstd) or (y, mean, invstd, running mean, running variance).

    The inputs are those of ``conv``, then (factor, running mean, running variance) with
    ``moments.running``. y is the convolution's result, and the other results are the moments of y.
    A kernel that sums results in registers need not read them again.
    ``libraries/onednn/conv_moments.py`` makes it, after gradients are taken.
    """

    conv: OneDnnConv
    moments: BatchMoments

    def operands(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """(inputs of the convolution, inputs of the moments besides y)"""
        count = len(inputs) - 3 * self.moments.running
        return inputs[:count], inputs[count:]

    def expanded(self, *inputs: Variable) -> list[Variable] | None:
        given, more = self.operands(inputs)
        y = self.conv(*given)
        return [y, *self.moments(y, *more)]

    def reference(self, *inputs: Array) -> Any:
        given, more = self.operands(inputs)
        (y,) = self.conv.compute(*given)
        return (y, *self.moments.compute(y, *more))

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return self.conv.host_inputs

    def __str__(self) -> str:
        return f"OneDnnConvMoments{{{self.conv}, epsilon={self.moments.epsilon}}}"
