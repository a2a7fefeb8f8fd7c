"""The reductions of batch normalisation and of softmax, separate from their elementwise parts.

``opt/fuse/norm_rules.py`` and ``log_sum_rules.py`` make these ops where the elementwise part is
fused with its neighbours. They have no gradients, which are taken before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Host, MultiOp, Shapes, Types
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.core.dtype import widened, work_dtype
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.elemwise import broadcast_dims, broadcast_static
from symdnn.ops.lowered.fused import check_inputs
from symdnn.ops.nn import norm_numpy
from symdnn.ops.nn.batchnorm import parameter_dtype
from symdnn.ops.nn.channels_last import last_order
from symdnn.ops.nn.softmax import check_axis


def axes_of(op: Any) -> tuple[int, ...]:
    """The axes of a batch normalisation, in the layout of its operands."""
    axes: tuple[int, ...] = op.axes
    if getattr(op, "layout", "NCHW") == "NCHW":
        return axes
    order = last_order(op.ndim)
    return tuple(sorted(order.index(a) for a in axes))


def kept(shape: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """The shape of a statistic over ``axes``, which have size 1."""
    return tuple(1 if i in axes else d for i, d in enumerate(shape))


@dataclass(frozen=True)
class BatchMoments(MultiOp):
    """(mean, invstd) of x over ``axes``, which have size 1 in the results.

    With ``running`` the inputs are (x, factor, running mean, running variance), and the results
    also have the new running mean and variance, as in :class:`BatchNormTrain`.
    """

    never_fails: ClassVar[bool] = True

    axes: tuple[int, ...]
    epsilon: float
    running: bool = False

    def infer(self, *inputs: TensorType) -> Any:
        x = inputs[0]
        if len(inputs) != 1 + 3 * self.running or not isinstance(x, TensorType) or not x.is_float:
            raise TypeMismatch(self, "a float input and what the running values need", list(inputs))
        statistic = TensorType(parameter_dtype(x.dtype), kept(x.shape, self.axes))
        return (statistic,) * (4 if self.running else 2)

    def reference(self, *inputs: Array) -> Any:
        (v,) = widened(inputs[0])
        mean, var, invstd = norm_numpy.moments(v, self.axes, self.epsilon)
        if not self.running:
            return mean, invstd
        factor, old_mean, old_var = inputs[1:]
        m = norm_numpy.count(v.shape, self.axes)
        unbiased = var * v.dtype.type(m / max(m - 1, 1))
        keep = 1 - factor
        return mean, invstd, old_mean * keep + mean * factor, old_var * keep + unbiased * factor

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [kept(shapes[0], self.axes)] * (4 if self.running else 2)


@dataclass(frozen=True)
class BatchSums(MultiOp):
    """Two sums and two means over ``axes``, of size 1 in the results, of a program's two results.

    The gradient of batch normalisation uses it for g and g * xhat. The sums are the gradients of
    shift and scale; the means are subtracted in the gradient of the input. With ``written`` the
    program has a third result, which is the last one here, too, as large as the inputs.
    """

    never_fails: ClassVar[bool] = True

    program: ScalarProgram
    axes: tuple[int, ...]
    written: bool = False

    def infer(self, *inputs: TensorType) -> Any:
        check_inputs(self, self.program, inputs)
        dtypes = self.program.output_dtypes
        if len(dtypes) != 2 + self.written or len(set(dtypes[:2])) != 1:
            raise TypeMismatch(self, "a program with two results of one dtype", str(self.program))
        whole = broadcast_static(self, inputs)
        sums = (TensorType(dtypes[0], kept(whole, self.axes)),) * 4
        return (*sums, TensorType(dtypes[2], whole)) if self.written else sums

    def reference(self, *inputs: Array) -> Any:
        shape = np.broadcast_shapes(*(a.shape for a in inputs))
        results = self.program.evaluate(*inputs)
        sums = [np.broadcast_to(r, shape).sum(self.axes, keepdims=True) for r in results[:2]]
        m = sums[0].dtype.type(norm_numpy.count(shape, self.axes))
        whole = [np.array(np.broadcast_to(r, shape), order="C") for r in results[2:]]
        return (*sums, *(s / m for s in sums), *whole)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        whole = broadcast_dims(self, types, shapes)
        return [kept(whole, self.axes)] * 4 + [whole] * self.written

    @property
    def may_overwrite(self) -> dict[int, tuple[int, ...]]:
        return {4: tuple(range(len(self.program.inputs)))} if self.written else {}

    def __str__(self) -> str:
        written = ", written" if self.written else ""
        return f"BatchSums{{over {self.axes} of {self.program}{written}}}"


@dataclass(frozen=True)
class SoftmaxParts(MultiOp):
    """(top, rest): their sum is the log-sum-exp of x along ``axis``, which has size 1 in both.

    ``x - top - rest`` is the log-softmax, exact also where all of x is far from 0: ``top`` is about
    the largest element.
    """

    never_fails: ClassVar[bool] = True

    axis: int

    def infer(self, x: TensorType) -> Any:
        check_axis(self, x, self.axis)
        return (TensorType(work_dtype(x.dtype), kept(x.shape, (self.axis,))),) * 2

    def reference(self, x: Array) -> Any:
        (v,) = widened(x)
        top = v.max(self.axis, keepdims=True, initial=-np.inf)
        return top, np.log(np.exp(v - top).sum(self.axis, keepdims=True))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [kept(shapes[0], (self.axis,))] * 2
