"""Kernels of integer labels: PickLabel, PlaceLabel, losses of labels, one-hot vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from symdnn.errors import IndexOutOfRange
from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    NODE,
    WORKSPACE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    blocks_for,
)
from symdnn.gpu.device.context import most_shared_bytes
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.gpu.kernels.rows import without_axis
from symdnn.gpu.kernels.scan import count_type, lines_of
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.take import OneHot
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.label_loss import LabelLoss, LabelLossGrad
from symdnn.ops.nn.crossentropy import (
    CrossentropyCategorical1Hot,
    CrossentropyCategorical1HotGrad,
    PickLabel,
    PlaceLabel,
    SoftmaxCrossentropyGrad,
)

_THREADS = 256
#: Op -> (kind in labels.cu, input indices of scores, of one value per row, and of labels).
_KINDS: dict[type, tuple[int, int | None, int | None, int]] = {
    PickLabel: (0, 0, None, 1),
    CrossentropyCategorical1Hot: (1, 0, None, 1),
    PlaceLabel: (2, None, 0, 1),
    CrossentropyCategorical1HotGrad: (3, 1, 0, 2),
    SoftmaxCrossentropyGrad: (4, 1, 0, 2),
}
_ONE_HOT_KIND = 5


class LabelKernel(CudaKernel):
    """One thread per row to read, or per element to write."""

    name = "cuda.labels"
    dtypes = frozenset(CTYPES)

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel."""
        op: Any = call.op
        kind, *places = _KINDS[type(op)]
        scores, values, labels = (None if i is None else inputs[i] for i in places)
        (y,) = outputs
        picks = kind < 2
        if picks:
            y = without_axis(y, op.axis)
        per_row = [without_axis(v, op.axis) if v is not None else None for v in (values, labels)]
        return labelled(kind, op.axis, scores, per_row[0], per_row[1], y)


class OneHotKernel(CudaKernel):
    """A 1 at the label, along a new last axis."""

    name = "cuda.labels"
    dtypes = frozenset(CTYPES)

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel."""
        (y,) = outputs
        axis = len(y.shape) - 1
        return labelled(_ONE_HOT_KIND, axis, None, None, without_axis(inputs[0], axis), y)


def labelled(
    kind: int, axis: int, scores: View | None, values: View | None, labels: Any, y: View
) -> list[KernelLaunch]:
    """The kernel of one kind. All views have the class axis, of size 1 for values per row."""
    wide = scores if scores is not None and kind != _ONE_HOT_KIND else y
    classes = wide.shape[axis]
    picks = kind < 2
    if y.size == 0 and (picks or labels.size == 0 or classes > 0):
        return []
    if classes == 0:
        raise IndexOutOfRange("labels are given, and there are 0 classes")
    shown = [v if v is not None else labels for v in (scores, values)]
    sizes, steps = lines_of([labels, *shown, y], axis)
    label_row, score_row, value_row, y_row = steps
    rows = prod(sizes)
    source = specialised(
        "scalar.cuh", "lines.cuh", "labels.cu", T=CTYPES[y.dtype], L=CTYPES[labels.dtype],
        W=CTYPES[work_dtype(y.dtype)], KIND=kind, D=len(sizes),
        COUNT=count_type([wide]),
    )  # fmt: skip
    parameters = (
        shown[0].pointer, shown[1].pointer, labels.pointer, y.pointer, rows, classes,
        shown[0].steps[axis], y.steps[axis], Pointer(ERROR_WORD), Pointer(NODE),
        *sizes, *score_row, *value_row, *label_row, *y_row,
    )  # fmt: skip
    threads = rows if picks else rows * classes
    name, grid = "pick" if picks else "spread", (blocks_for(threads, _THREADS),)
    return [KernelLaunch(source, name, grid, (_THREADS,), parameters)]


class LossGradKernel(CudaKernel[LabelLossGrad]):
    """All elements as if they were at no label, then those at labels.

    Where the result overwrites the logits, elements at labels are computed before the others.
    """

    name = "cuda.labels"
    pads_rows = True
    dtypes = frozenset(CTYPES)

    def workspace_bytes(self, call: Call[LabelLossGrad]) -> int:
        """The elements at labels."""
        return prod(call.inputs[3].shape) * numpy_dtype(call.outputs[0].dtype).itemsize

    def launches(
        self, call: Call[LabelLossGrad], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """An elementwise kernel, and one or two with a thread for each label."""
        axis, (y,) = call.op.axis, outputs
        d, total, labels = (without_axis(inputs[i], axis) for i in (0, 1, 3))
        x = inputs[2]
        if labels.size and not y.size:
            raise IndexOutOfRange("labels are given, and there are 0 classes")
        if not y.size:
            return []
        program = _away_from_labels(d.dtype, total.dtype, x.dtype, y.dtype)
        sizes, steps = lines_of([x, d, total, labels, y], axis)
        x_row, d_row, total_row, label_row, y_row = steps
        source = specialised(
            "scalar.cuh", "lines.cuh", "label_loss.cu", G=CTYPES[d.dtype], T=CTYPES[x.dtype],
            Y=CTYPES[y.dtype], W=CTYPES[total.dtype], L=CTYPES[labels.dtype], D=len(sizes),
            COUNT=count_type([x]),
        )  # fmt: skip
        parameters = (
            d.pointer, total.pointer, x.pointer, labels.pointer, y.pointer, Pointer(WORKSPACE),
            prod(sizes), x.shape[axis], x.steps[axis], y.steps[axis], Pointer(ERROR_WORD),
            Pointer(NODE),
            *sizes, *d_row, *total_row, *x_row, *label_row, *y_row,
        )  # fmt: skip
        grid = (blocks_for(prod(sizes), _THREADS),)
        in_place = y.alias_of == x.slot
        before, after = (["keep_labels"], "put_labels") if in_place else ([], "at_labels")
        return [
            *(KernelLaunch(source, name, grid, (_THREADS,), parameters) for name in before),
            *elementwise(program, [d, total, x], [y], whole=True),
            KernelLaunch(source, after, grid, (_THREADS,), parameters),
        ]


def _away_from_labels(d: str, total: str, x: str, out: str) -> ScalarProgram:
    """``exp(x - total) * d``."""
    builder = Builder((d, total, x))
    scale, high, scores = (builder.input(i).cast(total) for i in range(3))
    return builder.program([((scores - high).call("exp") * scale).cast(out)])


# -- a loss and its gradient in one pass ----------------------------------------------------------

#: Threads of a long row of which two are on a multiprocessor, or one; the least of a block.
_LONG_ROW_THREADS, _MOST_THREADS, _LEAST_BLOCK = 512, 1024, 128
#: Vectors of a thread, at least, where a row has more than a warp.
_LEAST_VECTORS = 4
#: Shared memory of the kernel itself.
_MEETING_BYTES = 4 << 10


@dataclass(frozen=True)
class _Share:
    """``lanes`` threads of a row, those of a ``block``, and its shared memory: 0 to read twice."""

    lanes: int
    block: int
    resident: int
    shared_bytes: int


def _share(vectors: int, vector_bytes: int) -> _Share:
    """The division of rows of so many vectors."""
    lanes = 1
    while lanes < 32 and lanes < vectors:
        lanes *= 2
    while lanes < _LONG_ROW_THREADS and lanes * _LEAST_VECTORS < vectors:
        lanes *= 2
    for resident in (2, 1):
        if resident == 1 and lanes == _LONG_ROW_THREADS:
            lanes = _MOST_THREADS
        block = max(lanes, _LEAST_BLOCK)
        nbytes = -(-vectors // lanes) * block * vector_bytes
        if nbytes + _MEETING_BYTES <= most_shared_bytes() // resident:
            return _Share(lanes, block, resident, nbytes)
    return _Share(lanes, max(lanes, _LEAST_BLOCK), 1, 0)


def _vector_width(x: View, y: View, axis: int) -> int:
    """Elements of a vector of logits: 1 where rows of ``x`` and ``y`` begin apart in a vector."""
    width = max(1, 16 // x.itemsize)
    aligned = x.aligned_to(16) and y.aligned_to(min(16, width * y.itemsize))
    beside = all(
        a == b == 1 if d == axis else n == 1 or (a - b) % width == 0
        for d, (n, a, b) in enumerate(zip(x.shape, x.steps, y.steps))
    )
    return width if aligned and beside else 1


class LossKernel(CudaKernel[LabelLoss]):
    """A row is read once, if it fits into shared memory."""

    name = "cuda.label_loss"
    pads_rows = True
    dtypes = frozenset(CTYPES)

    def launches(
        self, call: Call[LabelLoss], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        axis, x, y = call.op.axis, inputs[1], outputs[1]
        d, labels, loss = (without_axis(v, axis) for v in (inputs[0], inputs[2], outputs[0]))
        if labels.size and not y.size:
            raise IndexOutOfRange("labels are given, and there are 0 classes")
        if not y.size:
            return []
        width = _vector_width(x, y, axis)
        share = _share(-(-x.shape[axis] // width), width * x.itemsize)
        sizes, steps = lines_of([x, d.broadcast_to(labels.shape), labels, loss, y], axis)
        x_row, d_row, label_row, loss_row, y_row = steps
        source = specialised(
            "scalar.cuh", "lines.cuh", "lanes.cuh", "label_loss_rows.cu", G=CTYPES[d.dtype],
            T=CTYPES[x.dtype], Y=CTYPES[y.dtype], W=CTYPES[loss.dtype], L=CTYPES[labels.dtype],
            D=len(sizes), COUNT=count_type([x]), V=width, LANES=share.lanes, BLOCK=share.block,
            RESIDENT=share.resident, STAGED=int(share.shared_bytes > 0),
        )  # fmt: skip
        rows = prod(sizes)
        parameters = (
            d.pointer, x.pointer, labels.pointer, loss.pointer, y.pointer, rows, x.shape[axis],
            x.steps[axis], y.steps[axis], Pointer(ERROR_WORD), Pointer(NODE),
            *sizes, *d_row, *x_row, *label_row, *loss_row, *y_row,
        )  # fmt: skip
        grid = (blocks_for(rows, share.block // share.lanes, 1 << 20),)
        return [
            KernelLaunch(
                source, "label_loss_rows", grid, (share.block,), parameters, share.shared_bytes
            )
        ]


KERNELS: tuple[Row, ...] = (
    (tuple(_KINDS), (LabelKernel(),)),
    ((LabelLossGrad,), (LossGradKernel(),)),
    ((LabelLoss,), (LossKernel(),)),
    ((OneHot,), (OneHotKernel(),)),
)
