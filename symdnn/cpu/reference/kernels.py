"""NumPy kernels: ufuncs that write into the plan's buffers, and references of all other ops."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.launch.traits import MATMUL, NUMPY, PYTHON
from symdnn.errors import KernelCompileError
from symdnn.graph.kernel import (
    Call,
    Kernel,
    Launch,
    Row,
    kernels_for,
)
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.array.create import Diagonal
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.reduce import Accumulate, AllTrue, AnyTrue, Max, Min, Prod, Reduce, Sum
from symdnn.ops.array.view import ForgetShape, SpecifyShape
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import DimShuffle, Reshape, SpecifyType
from symdnn.ops.elemwise import Elemwise, FloatElemwise
from symdnn.ops.linalg.products import BatchedDot, Dot


@dataclass(frozen=True)
class ReferenceKernel(Kernel):
    """Runs an op by its NumPy reference and copies the result into its buffer."""

    name: str = "numpy.reference"
    traits = PYTHON

    def bind(self, call: Call) -> Launch:
        """Compute, then copy; a result without a buffer is returned as it is."""
        compute = call.op.compute

        def launch(inputs: Arrays, outputs: Arrays) -> list[Any]:
            results = compute(*inputs)
            if len(results) != len(outputs):
                raise ValueError(f"the op gave {len(results)} results, {len(outputs)} are due")
            return [_copy_to_output(r, out, inputs) for r, out in zip(results, outputs)]

        return launch


def uncompiled_launch(call: Call, error: KernelCompileError) -> Launch:
    """The launch of NumPy's kernel, after LLVM failed to compile the chosen one; with a warning."""
    numpys = [k for k in kernels_for(type(call.op), "cpu") if k.traits.backend == "numpy"]
    kernel = next(k for k in numpys if k.refuses(call) is None and not k.workspace_bytes(call))
    words = f"LLVM refused a kernel: {error.log.partition(chr(10))[0]}"
    warnings.warn(
        f"{words}: {call} is computed by {kernel.name}, which is slower", RuntimeWarning,
        stacklevel=2,
    )  # fmt: skip
    return kernel.bind(call)


def _copy_to_output(result: Any, out: Any, inputs: Sequence[Any]) -> Any:
    if out is None:
        return _owned(result, inputs)
    if result.shape != out.shape:
        raise ValueError(f"the result has shape {result.shape}, the plan says {out.shape}")
    if result.dtype != out.dtype:
        raise TypeError(f"the result has dtype {result.dtype}, the type rule says {out.dtype}")
    np.copyto(out, result)
    return out


def _owned(result: Array, inputs: Arrays) -> Any:
    """A result in memory of its own: copied if it is a view of an input."""
    arrays = [a for a in inputs if isinstance(a, np.ndarray)]
    if isinstance(result, np.ndarray) and any(np.may_share_memory(result, a) for a in arrays):
        return result.copy()
    return result


@dataclass(frozen=True)
class ViewKernel(ReferenceKernel):
    """Copies a view of NumPy's into its buffer, where the result must not be a view."""

    traits = NUMPY


@dataclass(frozen=True)
class UfuncKernel(Kernel):
    """Runs an elementwise op by its ufunc, which writes into the buffer."""

    name: str = "numpy.ufunc"
    traits = NUMPY

    def refuses(self, call: Call) -> str | None:
        """Needs a ufunc with a loop for these dtypes."""
        function = type(call.op).function  # type: ignore[attr-defined]
        if not isinstance(function, np.ufunc):
            return "the op is not a ufunc"
        if type(call.op).reference not in (Elemwise.reference, FloatElemwise.reference):
            return "the op's reference does more than its ufunc"
        types = (*call.inputs, *call.outputs)
        if any(isinstance(t, TensorType) and is_narrow_float(t.dtype) for t in types):
            return "a 16-bit float is computed in float32"
        dtypes = [t.numpy for t in types if isinstance(t, TensorType)]
        if not _has_loop(function, dtypes[: len(call.inputs)], dtypes[-1]):
            return "the ufunc has no loop of the result's dtype"
        return None

    def writes_updates(self, call: Call) -> bool:
        """Whether it can write a shared variable: on floats it never fails (integer powers do)."""
        return all(isinstance(t, TensorType) and t.is_float for t in (*call.inputs, *call.outputs))

    def bind(self, call: Call) -> Launch:
        """The ufunc with ``out=``."""
        function: Any = type(call.op).function  # type: ignore[attr-defined]
        out_dtype = call.outputs[0].numpy
        dtypes = [t.numpy for t in call.inputs]
        if function in _BY_KEYWORD:
            return _UfuncLaunch(_BY_KEYWORD[function])
        if _computes_in(function, dtypes, out_dtype):
            return _UfuncLaunch(function)
        return _UfuncLaunch(partial(function, dtype=out_dtype, casting="unsafe"))


def _maximum(a: Any, b: Any, out: Array) -> None:
    np.maximum(a, b, out=out, dtype=out.dtype, casting="unsafe")


def _minimum(a: Any, b: Any, out: Array) -> None:
    np.minimum(a, b, out=out, dtype=out.dtype, casting="unsafe")


#: NumPy warns if the output of these two is passed by position.
_BY_KEYWORD: dict[Any, Any] = {np.maximum: _maximum, np.minimum: _minimum}


class _UfuncLaunch(CpuLaunch):
    """``launch(inputs, outputs)``; ``direct`` takes the operands one by one."""

    __slots__ = ("direct",)

    def __init__(self, function: Any) -> None:
        self.direct: Any = function

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        self.direct(*inputs, outputs[0])


def _has_loop(function: np.ufunc, dtypes: Sequence[Any], out: Any) -> bool:
    """Whether the ufunc can give dtype ``out``; NumPy's square of a bool cannot."""
    if function in _BY_KEYWORD or _computes_in(function, dtypes, out):
        return True
    return _computes_in(function, [out] * len(dtypes), out)


def _computes_in(function: np.ufunc, dtypes: Sequence[Any], out: object) -> bool:
    """Whether the ufunc gives dtype ``out`` for these dtypes without casts."""
    try:
        return bool(function.resolve_dtypes((*dtypes, *[None] * function.nout))[-1] == out)
    except TypeError:
        return False


@dataclass(frozen=True)
class MatmulKernel(Kernel[Dot | BatchedDot]):
    """Runs a matrix product by BLAS, through NumPy, which writes into the buffer."""

    name: str = "numpy.matmul"
    traits = MATMUL

    def refuses(self, call: Call[Dot | BatchedDot]) -> str | None:
        """Needs a dtype that NumPy multiplies in itself, and a result that is an array."""
        out = call.outputs[0]
        if is_narrow_float(out.dtype) or out.dtype == "bool":
            return "its products are summed in another dtype"
        return "the result is a number" if out.ndim == 0 else None

    def bind(self, call: Call[Dot | BatchedDot]) -> Launch:
        """``numpy.matmul`` with ``out=``."""
        return _UfuncLaunch(np.matmul)


_REDUCTIONS: dict[type, Any] = {
    Sum: np.add, Prod: np.multiply, Max: np.maximum, Min: np.minimum,
    AnyTrue: np.logical_or, AllTrue: np.logical_and,
}  # fmt: skip


@dataclass(frozen=True)
class UfuncReduceKernel(Kernel[Reduce]):
    """Runs a reduction by its ufunc, which writes into the buffer; for small arrays.

    Results equal the reference's bit for bit; for ten numbers it takes a fifth of the time.
    """

    name: str = "numpy.reduce"
    traits = NUMPY

    def refuses(self, call: Call[Reduce]) -> str | None:
        """Needs elements, and a result of the accumulator's dtype."""
        (x,), (y,), op = call.inputs, call.outputs, call.op
        if type(op) not in _REDUCTIONS:
            return "the op is no reduction by a ufunc"
        if isinstance(x, OpaqueType) or isinstance(y, OpaqueType):
            return "it is for tensors"
        if is_narrow_float(x.dtype) or is_narrow_float(y.dtype):
            return "a 16-bit float is computed in float32"
        if getattr(op, "acc_dtype", y.dtype) != y.dtype:
            return "the result is not of the dtype that is accumulated in"
        if x.is_static and 0 in x.shape:
            return "there are no elements"
        return None

    def bind(self, call: Call[Reduce]) -> Launch:
        """The ufunc's ``reduce`` with ``out=``."""
        op = call.op
        return _UfuncReduceLaunch(_REDUCTIONS[type(op)].reduce, op, call.outputs[0])


class _UfuncReduceLaunch(CpuLaunch):
    """``launch(inputs, outputs)``; ``direct`` takes the operands one by one."""

    __slots__ = ("direct",)

    def __init__(self, reduce: Any, op: Any, y: Any) -> None:
        axes, dtype, keepdims = op.axes, y.numpy, op.keepdims
        if isinstance(op, Accumulate):
            dtype = op.added_in

        def direct(x: Any, out: Array) -> None:
            reduce(x, axes, dtype, out, keepdims)

        def in_wider_dtype(x: Any, out: Array) -> None:
            # With a narrower ``out`` NumPy would round to it every 8192 elements.
            out[...] = reduce(x, axes, dtype, None, keepdims)

        self.direct: Any = direct if dtype == y.numpy else in_wider_dtype

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        self.direct(inputs[0], outputs[0])


KERNELS: tuple[Row, ...] = (
    ((Elemwise,), (UfuncKernel(),)),
    ((Reduce,), (UfuncReduceKernel(),)),
    ((Dot, BatchedDot), (MatmulKernel(),)),
    (
        (DimShuffle, Reshape, SpecifyType, ForgetShape, SpecifyShape, Subtensor, Diagonal),
        (ViewKernel(),),
    ),
)
