"""Softmax, logsumexp, cross-entropy and their gradients along an axis: rows that are read once.

Sums are added in float32, or in float64 for operands of that, in the lanes of vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.copies import copy_of
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch, Viewed
from symdnn.cpu.launch.traits import LLVM, LLVM_ASKS_THREADS
from symdnn.cpu.nest import log_sums
from symdnn.cpu.nest.row_stages import RowLaunch, RowOperand
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Scalar
from symdnn.ops.lowered.fused_rows import (
    FusedRows,
    Stage,
    program,
    softmax_grad_rows,
    softmax_rows,
)
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy, SoftmaxCrossentropyGrad, check_labels
from symdnn.ops.nn.softmax import (
    LogSoftmax,
    LogSoftmaxGrad,
    LogSoftmaxGradOfLogits,
    Softmax,
    SoftmaxGrad,
)

#: With fewer elements NumPy is faster than compiling: rows, bands.
_MIN_ELEMENTS_OF_ROWS, _MIN_ELEMENTS_OF_BANDS = 1 << 9, 1 << 12
#: Dtypes of lines; all operands but labels have the same one.
_DTYPES = frozenset({"float32", "float64", "bfloat16", "float16"})
#: Turned operands of at most so many elements have memory of their own.
_MAX_KEPT_ELEMENTS = 1 << 16
#: Fewer columns fill less than half a vector: turning them into rows takes half the time.
_MIN_COLUMNS = 9


# -- as stages of rows ----------------------------------------------------------------------------


def _work(dtype: str) -> str:
    return "float32" if is_narrow_float(dtype) else dtype


def _power(x: Scalar, top: Scalar, *late: Scalar) -> Scalar:
    return (x - top).call("exp")


def _largest(work: str, values: int = 1, tame: bool = False) -> Stage:
    """The maximum of the first value; with ``tame`` 0 for one that is infinite or NaN."""

    def row(top: Scalar, count: Scalar) -> Scalar:
        return (top.call("abs") < float("inf")).where(top, 0.0) if tame else top

    terms = program((work,) * values, lambda x, *others: x)
    return Stage(terms, program((work,) * 2, row), ("max",))


@lru_cache(maxsize=256)
def _gradient_of_logits(axis: int, dtype: str) -> FusedRows:
    """:class:`LogSoftmaxGradOfLogits` of (x, dy)."""
    w = _work(dtype)
    before = program((dtype, dtype), lambda x, dy: (x.cast(w), dy.cast(w)))
    terms = program((w,) * 3, lambda x, dy, top: (_power(x, top), dy))
    share = Stage(terms, program((w,) * 4, lambda top, powers, dy, count: dy / powers))
    after = program((w,) * 4, lambda x, dy, top, share: dy - _power(x, top) * share, dtype)
    return FusedRows((axis,), before, (_largest(w, 2), share), after)


@lru_cache(maxsize=256)
def _log_sum_exp(axis: int, dtype: str) -> FusedRows:
    """:class:`LogSumExp` of x: row value 1. An infinite maximum is not subtracted."""
    w = _work(dtype)
    total = program((w,) * 3, lambda top, powers, count: powers.call("log") + top)
    stages = (_largest(w, tame=True), Stage(program((w, w), _power), total))
    before, after = program((dtype,), lambda x: x.cast(w)), program((w,) * 3, lambda *_: ())
    return FusedRows((axis,), before, stages, after, (1,))


@lru_cache(maxsize=256)
def _weighted_powers(axis: int, dtype: str) -> FusedRows:
    """exp(logp) weight of (logp, weight), which is a row value."""
    w = _work(dtype)
    after = program((w, dtype), lambda y, weight: y.call("exp") * weight.cast(w), dtype)
    return FusedRows((axis,), program((dtype,), lambda y: y.cast(w)), (), after)


def _rows_of(op: Any, dtype: str) -> tuple[FusedRows, str]:
    """The stages of an op, and the names of its operands (:class:`RowPlan`)."""
    if isinstance(op, FusedRows):
        late = "".join(f" x{i}" for i in range(1, len(op.input_dtypes)))
        return op, " ".join([f"x0{late} y0", *(f"r{i}" for i in range(len(op.kept)))])
    if isinstance(op, LogSumExp):
        return _log_sum_exp(op.axes[0], dtype), "x0 r0"
    if isinstance(op, SoftmaxCrossentropy):
        return softmax_rows(LogSoftmax(op.axis), dtype), "x0 label loss y0"
    if isinstance(op, SoftmaxCrossentropyGrad):
        return _weighted_powers(op.axis, dtype), "x1 x0 label y0"
    if isinstance(op, LogSoftmaxGradOfLogits):
        return _gradient_of_logits(op.axis, dtype), "x0 x1 y0"
    if isinstance(op, Softmax | LogSoftmax):
        return softmax_rows(op, dtype), "x0 y0"
    return softmax_grad_rows(op, dtype), "x0 x1 y0"


# -- kernels --------------------------------------------------------------------------------------

_ALONG_ANY: tuple[type, ...] = (
    Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad, LogSumExp, LogSoftmaxGradOfLogits, FusedRows,
)  # fmt: skip


def _axes(op: Any) -> tuple[int, ...]:
    return op.axes if isinstance(op, LogSumExp | FusedRows) else (op.axis,)


def _whole(call: Call) -> Any:
    """The type of an operand or result that has the full shape."""
    return call.inputs[0] if isinstance(call.op, LogSumExp | FusedRows) else call.outputs[-1]


def _refuses_rows(op: FusedRows, call: Call) -> str | None:
    """Needs one value and one result of an element, and other operands that are of rows."""
    if op.early != 1 or len(op.after.outputs) != 1:
        return "it takes one operand of whole rows, and gives one result"
    if op.sums is not None:
        return "it gives no sums"
    if any(t.is_static and t.shape[a] != 1 for t in call.inputs[1:] for a in op.axes):
        return "an operand is not of rows"
    # A term is kept where the result is, which may be where such an operand was.
    whole = call.inputs[0]
    alike = whole.is_static and any(t.shape == whole.shape for t in call.inputs[1:])
    return "rows have one element" if alike else None


class _RowsKernel(Kernel):
    """Softmax ops along one axis; ``least`` elements are worth compiling for."""

    least = _MIN_ELEMENTS_OF_ROWS

    def refuses(self, call: Call) -> str | None:
        """Needs floats of one dtype, and one axis at the right place."""
        whole, types = _whole(call), (*call.inputs, *call.outputs)
        if isinstance(call.op, FusedRows):
            types = types[: len(call.inputs) + 1]  # values of rows are in the dtype of sums
            reason = _refuses_rows(call.op, call)
            if reason is not None:
                return reason
        if whole.dtype not in _DTYPES or any(t.dtype != whole.dtype for t in types if t.is_float):
            return "it takes floats of one dtype"
        reason = self.refuses_axes(whole, _axes(call.op))
        return reason or compile_refusal(types, lambda: prod(whole.shape), self.least)

    def refuses_axes(self, whole: Any, axes: tuple[int, ...]) -> str | None:
        """Why it does not work along these axes."""
        raise NotImplementedError

    def bind(self, call: Call) -> Launch[Array]:
        """A launch whose code serves short rows of this length, or all long rows."""
        return _rows_launch(call, call.op, range(_whole(call).ndim))


def _rows_launch(call: Call, of: Any, order: Sequence[int]) -> RowLaunch:
    """The launch of a call with this op, whose operands' axes are in this order."""
    whole, axis = _whole(call), _axes(of)[0]
    op, names = _rows_of(of, whole.dtype)
    shape = tuple(whole.shape[d] for d in order)
    row = tuple(1 if d == axis else n for d, n in enumerate(shape))
    types = (*call.inputs, *call.outputs)

    def own(t: Any) -> tuple[int, ...]:
        return tuple(t.shape[d] for d in order) if t.ndim == len(order) else row

    operands: list[RowOperand] = [
        (name, t.dtype, own(t)) for name, t in zip(names.split(), types, strict=True)
    ]
    failed: Callable[[Any], None] | None = None
    if "label" in names:
        at = names.split().index("label")

        def failed(inputs: Any) -> None:
            check_labels(of, inputs[at], shape[-1])

    work = _work(whole.dtype)
    return RowLaunch(op, shape, operands, len(call.inputs), work, work, failed)


class LastAxisKernel(_RowsKernel):
    """Softmax ops along the last axis, a row at a time."""

    name = "llvm.rows"
    traits = LLVM_ASKS_THREADS

    def refuses_axes(self, whole: Any, axes: tuple[int, ...]) -> str | None:
        """Needs the last axis."""
        return None if axes == (whole.ndim - 1,) else "it works along the last axis"


class _BeforeLastKernel(_RowsKernel):
    """Softmax ops along one axis that is not the last."""

    traits = LLVM
    least = _MIN_ELEMENTS_OF_BANDS

    def refuses_axes(self, whole: Any, axes: tuple[int, ...]) -> str | None:
        """Needs one axis before the last, and as many columns behind it as the kernel is for."""
        if len(axes) != 1 or axes[0] == whole.ndim - 1:
            return "it works along one axis that is not the last"
        columns = prod(whole.shape[axes[0] + 1 :]) if whole.is_static else None
        return self.refuses_columns(columns)

    def refuses_columns(self, columns: int | None) -> str | None:
        """Why it does not run before so many columns; None: their number is not known."""
        raise NotImplementedError


class InnerAxisKernel(_BeforeLastKernel):
    """Softmax ops along an axis that is not the last, a band of columns at a time."""

    name = "llvm.bands"

    def refuses_columns(self, columns: int | None) -> str | None:
        """Few columns."""
        few = columns is not None and 0 < columns < _MIN_COLUMNS
        return f"there are fewer than {_MIN_COLUMNS} columns" if few else None


class NarrowAxisKernel(_BeforeLastKernel):
    """Softmax ops along an axis before a few columns, which are turned into rows."""

    name = "llvm.turned_rows"

    def refuses_columns(self, columns: int | None) -> str | None:
        """Many columns, or an unknown number."""
        few = columns is not None and columns < _MIN_COLUMNS
        return None if few else f"there are {_MIN_COLUMNS} columns or more"

    def bind(self, call: Call) -> Launch[Array]:
        """The launch of rows, of copies of the operands, since these are not dense."""
        whole, (axis,) = _whole(call), _axes(call.op)
        order = [*(d for d in range(whole.ndim) if d != axis), axis]
        last = whole.ndim - 1
        op: Any = call.op
        along = replace(op, **({"axes": (last,)} if hasattr(op, "axes") else {"axis": last}))
        rows = _rows_launch(call, along, order)

        def turned(array: Array) -> Array:
            return array.transpose(order) if array.ndim == len(order) else array

        types = (*call.inputs, *call.outputs)
        if prod(whole.shape) > _MAX_KEPT_ELEMENTS:
            return lambda inputs, outputs: rows([*map(turned, inputs)], [*map(turned, outputs)])
        own: list[Any] = [
            np.empty([t.shape[d] for d in order], t.numpy) if t.ndim == len(order) else k
            for k, t in enumerate(types)
        ]
        copies = [
            (copy_of(t.dtype, own[k].shape), (Viewed(k, turned),), (own[k],))
            for k, t in enumerate(types)
            if not isinstance(own[k], int)
        ]
        n = len(call.inputs)
        before = [Part(*c) for c in copies if c[1][0].at < n]
        after = [Part(copy, dense, seen) for copy, seen, dense in copies if seen[0].at >= n]
        return SeriesLaunch([*before, Part(rows, own[:n], own[n:]), *after])


KERNELS: tuple[Row, ...] = (
    ((*_ALONG_ANY, SoftmaxCrossentropy, SoftmaxCrossentropyGrad), (LastAxisKernel(),)),
    (_ALONG_ANY, (InnerAxisKernel(), NarrowAxisKernel())),
    *log_sums.KERNELS,
)
