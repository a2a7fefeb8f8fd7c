"""Normalisations of rows with what is elementwise before and behind them, as one op.

A kernel reads a row once: it keeps the row's values while it computes their sums. Layer norm, RMS
norm and their gradients have this form. ``opt/fuse/row_rules.py`` makes the op, and kernels of
layer norm are made from it. It has no gradient, which is taken before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.dims import Shape
from symdnn.graph.op import Host, MultiOp, Shapes, Types, Vars
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import Array
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.scalar import RESULT, Builder, Scalar, ScalarProgram
from symdnn.ops.elemwise import broadcast_dims, broadcast_static
from symdnn.ops.lowered.fused import chosen
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad

_REDUCED: dict[str, Callable[..., Any]] = {
    "sum": lambda x, axes: x.sum(axes, keepdims=True),
    "max": lambda x, axes: x.max(axes, keepdims=True, initial=-np.inf),
    "min": lambda x, axes: x.min(axes, keepdims=True, initial=np.inf),
}


@dataclass(frozen=True)
class Stage:
    """Sums or extremes over each row, and what follows from them.

    ``terms`` of (values, row values so far, late inputs) are reduced: summed, or as the words
    ``max`` and ``min`` in ``kinds`` say. ``rows`` of (row values so far, these results, the number
    of elements of a row) are further row values.
    """

    terms: ScalarProgram
    rows: ScalarProgram
    kinds: tuple[str, ...] = ()

    def kind(self, term: int) -> str:
        """How a term is reduced: ``sum``, ``max`` or ``min``."""
        return self.kinds[term] if self.kinds else "sum"


@dataclass(frozen=True)
class FusedRows(MultiOp):
    """Elementwise programs before, between and behind sums over ``axes``: the rows.

    The results of ``before``, of the first inputs, are values that are kept for a whole row; the
    other inputs are late ones. Outputs are the results of ``after``, of (values, row values, late
    inputs); then those row values whose numbers are ``kept``, of size 1 on ``axes``; then the
    results of ``sums``, of the same, added over all other axes, which have size 1. All inputs have
    one ndim and broadcast by static 1s. ``extremes`` are ops among these that need elements.
    """

    never_fails: ClassVar[bool] = True

    axes: tuple[int, ...]
    before: ScalarProgram
    stages: tuple[Stage, ...]
    after: ScalarProgram
    kept: tuple[int, ...] = ()
    sums: ScalarProgram | None = None
    extremes: tuple[Reduce, ...] = field(default=(), repr=False)

    @property
    def work(self) -> str:
        """The dtype of sums and row values."""
        first = self.stages[0].rows if self.stages else self.sums
        assert first is not None, "rows without stages have sums"
        return first.output_dtypes[0]

    @property
    def early(self) -> int:
        """The number of inputs that are no late ones."""
        return len(self.before.inputs)

    @property
    def row_values(self) -> int:
        """The number of values of each row."""
        return sum(len(s.rows.outputs) for s in self.stages)

    @property
    def input_dtypes(self) -> tuple[str, ...]:
        """The dtypes of all inputs."""
        given = len(self.before.outputs) + self.row_values
        return (*self.before.inputs, *self.after.inputs[given:])

    def infer(self, *inputs: TensorType) -> Any:
        self._check_programs()
        tensors = all(isinstance(t, TensorType) for t in inputs)
        if not tensors or tuple(t.dtype for t in inputs) != self.input_dtypes:
            raise TypeMismatch(self, f"tensors of {', '.join(self.input_dtypes)}", list(inputs))
        if (
            len({t.ndim for t in inputs}) != 1
            or not 0 <= min(self.axes) <= max(self.axes) < inputs[0].ndim
        ):
            raise TypeMismatch(self, "tensors of equal ndim", list(inputs))
        whole = broadcast_static(self, inputs)
        dtypes = [*self.after.output_dtypes, *[self.work] * (len(self.kept) + self._column_sums)]
        return tuple(TensorType(d, s) for d, s in zip(dtypes, self._shapes(whole), strict=True))

    def _check_programs(self) -> None:
        """Raise :class:`TypeMismatch` unless each program takes what those before it give."""
        first = self.stages[0].rows if self.stages else self.sums
        if first is None or not first.outputs:
            raise TypeMismatch(self, "a stage with row values, or sums", str(self.stages))
        work = self.work
        known = self.before.output_dtypes
        late = self.after.inputs[len(known) + self.row_values :]
        rows: tuple[str, ...] = ()
        for stage in self.stages:
            sums = (work,) * len(stage.terms.outputs)
            takes = stage.terms.inputs == known + rows + late and stage.terms.output_dtypes == sums
            takes &= len(stage.kinds) in (0, len(sums)) and set(stage.kinds) <= _REDUCED.keys()
            rows += (work,) * len(stage.rows.outputs)
            if not takes or stage.rows.inputs + stage.rows.output_dtypes != (
                *rows[: len(rows) - len(stage.rows.outputs)], *sums, work,
                *rows[len(rows) - len(stage.rows.outputs) :],
            ):  # fmt: skip
                raise TypeMismatch(self, "stages that follow from each other", str(stage))
        columns = self.after if self.sums is None else self.sums
        if self.after.inputs != known + rows + late or columns.inputs != self.after.inputs:
            raise TypeMismatch(self, "programs of the same values", str(self.after))
        if self.sums is not None and set(self.sums.output_dtypes) - {work}:
            raise TypeMismatch(self, f"sums in {work}", str(self.sums))
        if any(not 0 <= i < len(rows) for i in self.kept):
            raise TypeMismatch(self, f"numbers of {len(rows)} row values", list(self.kept))

    @property
    def _column_sums(self) -> int:
        return 0 if self.sums is None else len(self.sums.outputs)

    def _shapes(self, whole: Sequence[Any]) -> list[Any]:
        row = tuple(1 if i in self.axes else n for i, n in enumerate(whole))
        column = tuple(n if i in self.axes else 1 for i, n in enumerate(whole))
        results = [tuple(whole)] * len(self.after.outputs)
        return [*results, *[row] * len(self.kept), *[column] * self._column_sums]

    def chosen_from(self, inputs: Vars, output: int) -> Vars:
        if output >= len(self.after.outputs):
            return ()
        first, late = ([[v] for v in part] for part in (inputs[: self.early], inputs[self.early :]))
        values = [chosen(self.before, k, first) for k in range(len(self.before.outputs))]
        return chosen(self.after, output, [*values, *[()] * self.row_values, *late])

    def reference(self, *inputs: Array) -> Any:
        shape = np.broadcast_shapes(*(a.shape for a in inputs))
        self._check_elements(shape)
        work = numpy_dtype(self.work)
        count = work.type(np.prod([shape[a] for a in self.axes], dtype=np.int64))
        values = self.before.evaluate(*inputs[: self.early])
        late = inputs[self.early :]
        rows: list[Any] = []
        for stage in self.stages:
            terms = stage.terms.evaluate(*values, *rows, *late)
            sums = [
                np.asarray(_REDUCED[stage.kind(i)](np.broadcast_to(t, shape), self.axes))
                for i, t in enumerate(terms)
            ]
            with np.errstate(all="ignore"):
                rows += stage.rows.evaluate(*rows, *sums, np.asarray(count))
        results = self.after.evaluate(*values, *rows, *late)
        columns = [] if self.sums is None else self.sums.evaluate(*values, *rows, *late)
        others = tuple(i for i in range(len(shape)) if i not in self.axes)
        own = self._shapes(shape)[len(results) :][: len(self.kept)]
        return (
            *(np.asarray(np.broadcast_to(r, shape), order="C") for r in results),
            *(np.asarray(np.broadcast_to(rows[i], s), order="C") for i, s in zip(self.kept, own)),
            *(np.broadcast_to(c, shape).sum(others, keepdims=True) for c in columns),
        )

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        whole = broadcast_dims(self, types, shapes)
        self._check_elements(whole)
        return self._shapes(whole)

    def _check_elements(self, shape: Shape) -> None:
        for op in self.extremes:
            op.check_elements(shape)

    @property
    def may_overwrite(self) -> Mapping[int, tuple[int, ...]]:
        """Each element of a result is made last of all that reads those beside it in the inputs."""
        return dict.fromkeys(range(len(self.after.outputs)), tuple(range(len(self.input_dtypes))))

    def __str__(self) -> str:
        folds = "; ".join(
            f"{', '.join(s.kinds) or 'sums'} of {s.terms} -> {s.rows}" for s in self.stages
        )
        if self.sums is not None and not self.stages:
            folds = f"columns of {self.sums}"
        return f"FusedRows{{over {self.axes} of {self.before}; {folds}; {self.after}}}"


# -- layer norm -----------------------------------------------------------------------------------


def program(dtypes: Sequence[str], compute: Callable[..., Any], *out: str) -> ScalarProgram:
    """The program of ``compute`` on values of these dtypes, results rounded to ``out``."""
    builder = Builder(dtypes)
    results: Any = compute(*(builder.input(i) for i in range(len(dtypes))))
    found = results if isinstance(results, tuple) else (results,)
    rounded = [r.cast(d, RESULT) for r, d in zip(found, out, strict=True)] if out else found
    return builder.program(rounded)


@lru_cache(maxsize=256)
def layer_norm_rows(op: LayerNorm, dtype: str) -> FusedRows:
    """:class:`LayerNorm` of (x, gamma, beta): (y, mean, invstd)."""
    w = work_dtype(dtype)

    def squares(x: Scalar, mean: Scalar, *late: Scalar) -> Scalar:
        return (x - mean) * (x - mean)

    def invstd(mean: Scalar, total: Scalar, count: Scalar) -> Scalar:
        return 1 / (total / count + op.epsilon).call("sqrt")

    def result(x: Scalar, mean: Scalar, r: Scalar, gamma: Scalar, beta: Scalar) -> Scalar:
        return (x - mean) * (r * gamma) + beta

    first = Stage(program((w,) * 3, lambda x, *late: x), program((w, w), lambda s, n: s / n))
    second = Stage(program((w,) * 4, squares), program((w,) * 3, invstd))
    values = program((dtype,), lambda x: x.cast(w))
    return FusedRows(op.axes, values, (first, second), program((w,) * 5, result, dtype), (0, 1))


@lru_cache(maxsize=256)
def layer_norm_grad_rows(op: LayerNormGrad, dtype: str, sums: bool) -> FusedRows:
    """:class:`LayerNormGrad` of (x, dy, mean, gamma, invstd): (dx, dgamma, dbeta).

    Without ``sums`` only dx.
    """
    w = work_dtype(dtype)

    def values(x: Scalar, dy: Scalar, mean: Scalar) -> tuple[Scalar, ...]:
        return x.cast(w) - mean, dy.cast(w)

    def terms(c: Scalar, dy: Scalar, gamma: Scalar, r: Scalar) -> tuple[Scalar, ...]:
        return dy * gamma, dy * gamma * (c * r)

    def means(a: Scalar, b: Scalar, count: Scalar) -> tuple[Scalar, ...]:
        return a / count, b / count

    def dx(c: Scalar, dy: Scalar, a: Scalar, b: Scalar, gamma: Scalar, r: Scalar) -> Scalar:
        return r * (dy * gamma - a - c * r * b)

    def parameters(c: Scalar, dy: Scalar, a: Scalar, b: Scalar, g: Scalar, r: Scalar) -> Any:
        return dy * (c * r), dy

    stage = Stage(program((w,) * 4, terms), program((w,) * 3, means))
    given = program((dtype, dtype, w), values)
    columns = program((w,) * 6, parameters) if sums else None
    return FusedRows(op.axes, given, (stage,), program((w,) * 6, dx, dtype), (), columns)


# -- softmax --------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def softmax_rows(op: Softmax | LogSoftmax, dtype: str) -> FusedRows:
    """:class:`Softmax` or :class:`LogSoftmax` of x along ``op.axis``."""
    w = work_dtype(dtype)
    logarithm = isinstance(op, LogSoftmax)

    def result(x: Scalar, top: Scalar, r: Scalar) -> Scalar:
        return x - top - r if logarithm else (x - top).call("exp") * r

    def rest(top: Scalar, total: Scalar, count: Scalar) -> Scalar:
        return total.call("log") if logarithm else 1 / total

    largest = Stage(program((w,), lambda x: x), program((w, w), lambda top, n: top), ("max",))
    powers = program((w, w), lambda x, top: (x - top).call("exp"))
    after = program((w,) * 3, result, dtype)
    stages = (largest, Stage(powers, program((w,) * 3, rest)))
    return FusedRows((op.axis,), program((dtype,), lambda x: x.cast(w)), stages, after)


@lru_cache(maxsize=256)
def softmax_grad_rows(op: SoftmaxGrad | LogSoftmaxGrad, dtype: str) -> FusedRows:
    """:class:`SoftmaxGrad` or :class:`LogSoftmaxGrad` of (y, dy) along ``op.axis``."""
    w = work_dtype(dtype)
    logarithm = isinstance(op, LogSoftmaxGrad)

    def term(y: Scalar, dy: Scalar) -> Scalar:
        return dy if logarithm else y * dy

    def result(y: Scalar, dy: Scalar, total: Scalar) -> Scalar:
        return dy - y.call("exp") * total if logarithm else y * (dy - total)

    stage = Stage(program((w, w), term), program((w, w), lambda total, n: total))
    before = program((dtype, dtype), lambda y, dy: (y.cast(w), dy.cast(w)))
    return FusedRows((op.axis,), before, (stage,), program((w,) * 3, result, dtype))
