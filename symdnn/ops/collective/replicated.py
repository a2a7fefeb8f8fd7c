"""A value that all ranks have alike: what its gradient is."""

from __future__ import annotations

from dataclasses import dataclass

from symdnn.errors import OptionError
from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.collective.functions import group_of
from symdnn.ops.collective.reductions import AllReduce
from symdnn.ops.core.gradient_control import Identity
from symdnn.world.group import Group


@dataclass(frozen=True)
class Replicated(Identity):
    """``x``, which all ranks of ``group`` have alike; gradients of their copies are reduced."""

    group: Group
    op: str = "sum"

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return list(AllReduce(self.group, self.op)(cotangents[0]))


def replicated(x: TensorLike, op: str = "sum", group: Group | None = None) -> Variable:
    """``x``, of which each rank of ``group`` (all) has an equal copy; the gradient with respect to
    it is the sum over the ranks of those of their copies, or with ``"mean"`` the average.

    The sum is the gradient of the sum of costs, such as that of an input of a layer whose columns
    are shared out; the mean is that of data parallel training.

    >>> import symdnn.tensor as T
    >>> x = T.scalar("x")
    >>> float(T.grad(replicated(x) ** 2, x).eval({x: 3.0}))
    6.0
    """
    if op not in ("sum", "mean"):
        raise OptionError(f"replicated: op={op!r}; wanted sum or mean")
    return Replicated(group_of(group), op)(x)
