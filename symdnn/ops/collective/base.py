"""The base of collectives: their effects, their reference, and what all ranks must agree on.

All ranks of a group run the same collectives in the same order; the op is ``ordered``, so the graph
keeps the order in which they were written, and no rewrite merges or hoists one. The cost whose
gradient a program takes is the sum over ranks of each rank's cost: a gradient with respect to a
rank's own variable has the parts that come through the other ranks, by the adjoint collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NdimMismatch, TypeMismatch
from symdnn.graph.op import MultiOp, Op
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.graph.variable import Variable
from symdnn.world import process
from symdnn.world.communicator import Communicator, Pending
from symdnn.world.group import Group

#: Fields that are the same on all ranks, or seen in the dtypes.
_UNSAID = ("group", "as_rounded")
REDUCTIONS = ("sum", "mean", "prod", "max", "min")


@dataclass(frozen=True)
class Collective(Op):
    """Base of collectives; ``group`` has the ranks."""

    abstract: ClassVar[bool] = True
    folds: ClassVar[bool] = False
    unmergeable: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    #: Whether all ranks of the group run it, as its list for the comparison of ranks has it.
    by_all: ClassVar[bool] = True

    group: Group

    def across(self, values: Sequence[Arrays]) -> list[list[Array]]:
        """The outputs of all ranks by NumPy, from the inputs of all ranks: the truth."""
        raise NotImplementedError(f"{type(self).__name__}.across")

    def launch(self, comm: Communicator, inputs: Arrays, outputs: Arrays) -> Pending:
        """Start it by the communicator of the group."""
        raise NotImplementedError(f"{type(self).__name__}.launch")

    def reference(self, *inputs: Array) -> Any:
        """What this rank gets, by the communicator of the present world."""
        comm = process.current().communicator(self.group)
        types = [TensorType(a.dtype.name, a.shape) for a in inputs]
        outs = [np.empty(t.shape, t.numpy) for t in self.output_types(types)]  # type: ignore[attr-defined]
        comm.wait(self.launch(comm, inputs, outs))
        return tuple(outs) if isinstance(self, MultiOp) else outs[0]

    def text(self, types: Sequence[TensorType]) -> str:
        """It and its operands, as ranks compare them."""
        sizes = ", ".join(f"{t.dtype} {list(t.shape)}" for t in types[:4])
        more = f", ... {len(types)} in all, {_elements(types)} elements" if len(types) > 4 else ""
        fields = [f"{n}={v}" for n, v in sorted(vars(self).items()) if n not in _UNSAID]
        return f"{type(self).__name__}({', '.join([*fields, sizes])}{more})"


def _elements(types: Sequence[TensorType]) -> int:
    return sum(int(np.prod([d or 0 for d in t.shape])) for t in types)


@dataclass(frozen=True)
class Reducing(Collective):
    """Base of those that reduce by ``op``: sum, mean, prod, max or min."""

    abstract: ClassVar[bool] = True

    op: str = "sum"

    def checked(self, x: TensorType) -> TensorType:
        """``x``, if its dtype can be reduced so."""
        if not isinstance(x, TensorType):
            raise TypeMismatch(self, "a tensor", x)
        wrong = (
            (self.op in ("sum", "prod", "mean") and x.dtype == "bool")
            or (self.op == "mean" and x.is_discrete)
            or (self.op in ("max", "min") and x.is_complex)
        )
        if wrong:
            raise TypeMismatch(self, f"a dtype that has a {self.op}", x, "Cast it first")
        return x

    def reduced(self, arrays: Arrays) -> Array:
        """The reduction of one array from each rank, by NumPy."""
        x = np.stack(arrays)
        wide = x.astype(np.float32) if x.dtype.name in ("float16", "bfloat16") else x
        with np.errstate(all="ignore"):
            found = getattr(np, self.op)(wide, axis=0)
        return np.asarray(found).astype(x.dtype)

    @property
    def linear(self) -> bool:
        """Whether it is its own derivative."""
        return self.op in ("sum", "mean")


def at_least_1d(op: Op, x: TensorType) -> TensorType:
    """``x``; raises ``NdimMismatch`` for a scalar."""
    if not isinstance(x, TensorType):
        raise TypeMismatch(op, "a tensor", x)
    if x.ndim < 1:
        raise NdimMismatch(op, "a tensor of at least 1 dimension", x)
    return x


def lanes_second(op: Op, x: Variable) -> Variable:
    """``op``, which works along the first axis, on each lane of a stacked ``x``."""
    axes = [1, 0, *range(2, x.type.ndim)]
    moved = operator("dimshuffle")(x, axes)
    return operator("dimshuffle")(op.make_node(moved).outputs[0], axes)
