"""A :class:`FusedRows` in the making: its programs grow as it takes in other nodes.

Each method gives new parts and leaves the old ones as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.reduce import Max, Min, Reduce, Sum
from symdnn.ops.core.dtype import is_narrow_float, work_dtype
from symdnn.ops.core.scalar import RESULT, Builder, Scalar, ScalarProgram
from symdnn.ops.core.shape import DimShuffle, dimshuffle
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.ops.lowered.fused_rows import (
    FusedRows,
    Stage,
    layer_norm_grad_rows,
    layer_norm_rows,
    softmax_grad_rows,
    softmax_rows,
)
from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.opt.fuse.groups import number_in

#: The words of :class:`Stage` for reductions, and those of a library's that are understood.
_KINDS: dict[type[Reduce], str] = {Sum: "sum", Max: "max", Min: "min"}
_PLAIN_WORDS = ("add", "norm2", "maximum", "minimum")


@dataclass(frozen=True)
class Fold:
    """Reductions over ``axes`` of the results of ``program``; with ``root`` the roots of sums.

    The results have ``dtypes``: that of ``work``, or one of 16 bits. ``extremes`` are those that
    need elements.
    """

    program: ScalarProgram
    axes: tuple[int, ...]
    work: str
    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]
    root: bool = False
    extremes: tuple[Reduce, ...] = ()

    @property
    def adds(self) -> bool:
        """Whether all of them are plain sums."""
        return not self.root and set(self.kinds) == {"sum"}


def fold_of(node: Apply, narrow: bool = False) -> Fold | None:
    """The reductions that a node computes; None if it is another one.

    With ``narrow`` also sums in float32 whose result is rounded to 16 bits, and extremes of these.
    """
    op, root = node.op, False
    if isinstance(op, FusedReduce):
        program, parts = op.program, op.reductions
    elif len(node.outputs) == 1:
        word = getattr(op, "red_op", "add")  # a library's reduction may have a map around it
        neutral: Any = op.neutral() if isinstance(op, Lowered) else op
        if not isinstance(neutral, Reduce) or word not in _PLAIN_WORDS:
            return None
        parts, root = (neutral,), word == "norm2"
        builder = Builder((node.inputs[0].type.dtype,))
        x = builder.input(0)
        x = x.cast(getattr(neutral, "acc_dtype", x.dtype)) if root else x
        program = builder.program([x * x if root else x])
    else:
        return None
    kinds = tuple(_KINDS.get(type(r), "") for r in parts)
    works = {
        r.acc_dtype if isinstance(r, Sum) else work_dtype(d) if narrow else d
        for r, d in zip(parts, program.output_dtypes, strict=True)
    }
    (work,) = works if len(works) == 1 else ("",)
    dtypes = tuple(v.type.dtype for v in node.outputs)
    rounds = narrow and work == "float32"
    plain = all(d == work or (rounds and is_narrow_float(d)) for d in dtypes)
    if "" in kinds or work not in ("float32", "float64") or not plain:
        return None
    wide = Builder(program.inputs)
    terms = wide.inline(program, [wide.input(i) for i in range(len(program.inputs))])
    program = wide.program([t.cast(work) for t in terms])
    extremes = tuple(r for r in parts if r.needs_elements)
    return Fold(program, parts[0].axes, work, kinds, dtypes, root, extremes)


def softmax_of(node: Apply) -> tuple[Any, Sequence[Variable]] | None:
    """The softmax along the last axis, or the gradient of one, that a node is; and its inputs."""
    op: Any = node.op
    given: Sequence[Variable] = node.inputs
    if isinstance(op, Lowered):
        if getattr(op, "mode", "channel") != "channel":
            return None
        op, given = op.neutral(), op.neutral_inputs(given)
    known = isinstance(op, Softmax | LogSoftmax | SoftmaxGrad | LogSoftmaxGrad)
    return (op, given) if known and op.axis == given[0].type.ndim - 1 else None


@dataclass
class RowNodes:
    """Elementwise nodes between row values and a node behind them.

    ``padded`` are their other operands with the ndim of whole arrays.
    """

    programs: dict[Apply, ScalarProgram] = field(default_factory=dict)
    padded: dict[Variable, Variable] = field(default_factory=dict)


@dataclass
class RowParts:
    """An op, its early and late inputs, and the variables of its outputs.

    ``held`` are variables that are values, by their numbers; ``rows`` those that are row values,
    with or without the axes of the rows.
    """

    op: FusedRows
    early: list[Variable]
    late: list[Variable]
    outputs: list[Variable]
    held: dict[Variable, int]
    rows: dict[Variable, int]

    @property
    def results(self) -> list[Variable]:
        """The variables of the results, which are the first outputs."""
        return self.outputs[: len(self.op.after.outputs)]

    @property
    def rest(self) -> list[Variable]:
        """The variables of row values and sums."""
        return self.outputs[len(self.op.after.outputs) :]

    def row_behind(self, v: Variable) -> Variable:
        """The variable without the axes of the rows that ``v`` is a view of; or ``v``."""
        if v.owner is None or not isinstance(v.owner.op, DimShuffle):
            return v
        x, pattern = v.owner.inputs[0], v.owner.op.pattern
        lacks = v.type.ndim - x.type.ndim
        same = pattern == (*range(x.type.ndim), *["x"] * lacks)
        return x if same and lacks == len(self.op.axes) else v

    def knows(self, v: Variable) -> bool:
        """Whether ``v`` is a value, a row value, a result, or a number."""
        row = self.row_behind(v) in self.rows
        return row or v in self.held or v in self.results or number_in(v) is not None

    # -- new parts ----------------------------------------------------------------------------

    def with_maker(
        self, maker: Apply, program: ScalarProgram, stored: Sequence[Variable]
    ) -> RowParts:
        """With ``program`` before the values; ``stored`` results of it are results, too."""
        op = self.op
        early = [w for w in self.early if w.owner is not maker]
        early += [w for w in dict.fromkeys(maker.inputs) if w not in early and number_in(w) is None]
        builder = Builder([w.type.dtype for w in early])
        given = [
            builder.input(early.index(w)) if number_in(w) is None else constant(builder, w)
            for w in maker.inputs
        ]
        made = dict(zip(maker.outputs, builder.inline(program, given), strict=True))
        values = builder.inline(
            op.before, [made[w] if w in made else builder.input(early.index(w)) for w in self.early]
        )
        count, held = len(values), dict(self.held)
        for w in stored:
            wide = made[w].cast(op.work)
            numbers = [x.number for x in values]
            if wide.number not in numbers:
                values.append(wide)
            held[w] = numbers.index(wide.number) if wide.number in numbers else len(numbers)
        at, more = len(op.before.outputs), [x.dtype for x in values[count:]]
        wider = _wider(op, lambda p: _with_inputs(p, at, more))
        grown = replace(self, op=wider, early=early, held=held)
        after = _Elements(grown)
        program = after.program([*after.before, *map(after.value, stored)])
        fused = replace(wider, before=builder.program(values), after=program)
        return replace(grown, op=fused, outputs=[*self.results, *stored, *self.rest])

    def with_number(self, v: Variable, number: Variable) -> RowParts:
        """With a constant's number in place of the input ``v``."""
        early = [w for w in self.early if w is not v]
        builder = Builder([w.type.dtype for w in early])
        given = [
            constant(builder, number) if w is v else builder.input(early.index(w))
            for w in self.early
        ]
        before = builder.program(builder.inline(self.op.before, given))
        held = {w: i for w, i in self.held.items() if w is not v}
        return replace(self, op=replace(self.op, before=before), early=early, held=held)

    def with_user(
        self, user: Apply, program: ScalarProgram, late: Sequence[Variable], between: RowNodes
    ) -> RowParts:
        """With ``program`` behind the results, and further operands ``late``."""
        more = dict.fromkeys([*late, *between.padded.values()])
        whole = [*self.late, *(v for v in more if v not in self.late)]
        dtypes = [v.type.dtype for v in whole[len(self.late) :]]
        wider = _wider(self.op, lambda p: _with_inputs(p, len(p.inputs), dtypes))
        grown = replace(self, op=wider, late=whole)
        after = _Elements(grown, between)
        found = after.builder.inline(program, [after.value(w) for w in user.inputs])
        fused = replace(wider, after=after.program([*after.before, *found]))
        return replace(grown, op=fused, outputs=[*self.results, *user.outputs, *self.rest])

    def with_fold(self, node: Apply, fold: Fold) -> RowParts:
        """With a stage for the sums of ``node``, whose operands are known."""
        elements = _Elements(self)
        found = elements.builder.inline(fold.program, [elements.value(w) for w in node.inputs])
        first = self.op.row_values
        stage = Stage(elements.program(found), _totals(fold, first), fold.kinds)
        staged = replace(
            _with_rows(self.op, [fold.work] * len(fold.kinds)), stages=(*self.op.stages, stage),
            extremes=(*self.op.extremes, *fold.extremes),
        )  # fmt: skip
        return self._with_row_outputs(staged, node, first)

    def with_gradient(self, node: Apply, op: Any, inputs: Sequence[Variable]) -> RowParts:
        """With the gradient ``op`` of a softmax whose operands are known, as a further result."""
        rows, first = softmax_grad_rows(op, node.outputs[0].type.dtype), self.op.row_values
        elements, work = _Elements(self), self.op.work
        (stage,) = rows.stages
        values = elements.builder.inline(rows.before, [elements.value(v) for v in inputs])
        terms = elements.program(elements.builder.inline(stage.terms, values))
        totals = Builder([work] * (first + 2))
        whole = Stage(terms, totals.program([totals.input(first)]))
        staged = replace(_with_rows(self.op, [work]), stages=(*self.op.stages, whole))
        grown = replace(self, op=staged)
        after = _Elements(grown)
        values = after.builder.inline(rows.before, [after.value(v) for v in inputs])
        values.append(after.builder.input(after.first_row + first))
        found = after.builder.inline(rows.after, values)
        fused = replace(staged, after=after.program([*after.before, *found]))
        return replace(grown, op=fused, outputs=[*self.results, *node.outputs, *self.rest])

    def with_row_node(self, node: Apply, program: ScalarProgram) -> RowParts:
        """With row values that ``node`` makes from row values and numbers alone."""
        op, last = self.op, self.op.stages[-1]
        builder = Builder(last.rows.inputs)
        inputs = [builder.input(i) for i in range(len(last.rows.inputs))]
        made = builder.inline(last.rows, inputs)
        known = [*inputs[: op.row_values - len(made)], *made]
        given = [
            known[self.rows[w]].cast(w.type.dtype, RESULT) if w in self.rows
            else constant(builder, w)
            for w in node.inputs
        ]  # fmt: skip
        rows = builder.program([*made, *builder.inline(program, given)])
        wider = _with_rows(op, [op.work] * len(node.outputs))
        stages = (*op.stages[:-1], replace(last, rows=rows))
        return self._with_row_outputs(replace(wider, stages=stages), node, op.row_values)

    def _with_row_outputs(self, op: FusedRows, node: Apply, first: int) -> RowParts:
        """With the outputs of ``node`` as row values from number ``first`` on."""
        numbers = {v: first + i for i, v in enumerate(node.outputs)}
        at = len(self.results) + len(op.kept)
        outputs = [*self.outputs[:at], *node.outputs, *self.outputs[at:]]
        fused = replace(op, kept=(*op.kept, *numbers.values()))
        return replace(self, op=fused, outputs=outputs, rows={**self.rows, **numbers})

    def with_column_sums(self, node: Apply, fold: Fold) -> RowParts:
        """With the sums of ``node`` over all axes but those of the rows."""
        elements = _Elements(self)
        sums = [] if self.op.sums is None else elements.inlined(self.op.sums)
        more = elements.builder.inline(fold.program, [elements.value(w) for w in node.inputs])
        fused = replace(self.op, sums=elements.program([*sums, *more]))
        return replace(self, op=fused, outputs=[*self.outputs, *node.outputs])

    def only(self, read: Callable[[Variable], bool]) -> RowParts:
        """Without results and row values that nobody reads."""
        op, cut = self.op, len(self.results)
        sums = cut + len(op.kept)
        kept = [i for i in range(sums) if read(self.outputs[i])]
        numbers = tuple(op.kept[i - cut] for i in kept if i >= cut)
        outputs = tuple(op.after.outputs[i] for i in kept if i < cut)
        after = _with_inputs(replace(op.after, outputs=outputs), 0, ())
        found = [*(self.outputs[i] for i in kept), *self.outputs[sums:]]
        return replace(self, op=replace(op, after=after, kept=numbers), outputs=found)

    def made(self) -> list[tuple[Variable, Variable]]:
        """The variables of the outputs beside those of a new node."""
        found = self.op(*self.early, *self.late)
        return [(v, self._like(w, v)) for v, w in zip(self.outputs, found, strict=True)]

    def _like(self, new: Variable, old: Variable) -> Variable:
        """A sum without the axes that ``old`` lacks, in its dtype."""
        if new.type.dtype != old.type.dtype:
            new = cast(new, old.type.dtype)
        if new.type.ndim == old.type.ndim or old.owner is None:
            return new
        fold = fold_of(old.owner, narrow=True)
        gone = self.op.axes if fold is None else fold.axes
        return dimshuffle(new, tuple(i for i in range(new.type.ndim) if i not in gone))


class _Elements:
    """Builds programs of (values, row values, late inputs); ``before`` are the results so far."""

    def __init__(self, parts: RowParts, between: RowNodes | None = None) -> None:
        self.parts, self.between = parts, between or RowNodes()
        self.builder = Builder(parts.op.after.inputs)
        self.before = self.inlined(parts.op.after)
        self.first_row = len(parts.op.before.outputs)
        self.first_late = self.first_row + parts.op.row_values
        self._row_nodes: dict[Variable, Scalar] = {}

    def inlined(self, program: ScalarProgram) -> list[Scalar]:
        """The results of a program of the same inputs."""
        inputs = [self.builder.input(i) for i in range(len(self.builder.inputs))]
        return self.builder.inline(program, inputs)

    def program(self, outputs: Sequence[Scalar]) -> ScalarProgram:
        """The finished program."""
        return self.builder.program(outputs)

    def value(self, v: Variable) -> Scalar:
        """The value of a variable."""
        parts = self.parts
        row = parts.row_behind(v)
        if v in parts.held:
            return self.builder.input(parts.held[v]).cast(v.type.dtype, RESULT)
        if v in parts.results:
            return self.before[parts.results.index(v)]
        if row in parts.rows:
            known = self.builder.input(self.first_row + parts.rows[row])
            return known.cast(v.type.dtype, RESULT)
        if row.owner in self.between.programs:
            return self._row_node(row)
        if number_in(v) is not None:
            return constant(self.builder, v)
        late = self.between.padded.get(v, v)
        return self.builder.input(self.first_late + parts.late.index(late))

    def _row_node(self, v: Variable) -> Scalar:
        if v not in self._row_nodes:
            node = v.owner
            assert node is not None
            given = [self.value(w) for w in node.inputs]
            made = self.builder.inline(self.between.programs[node], given)
            self._row_nodes.update(zip(node.outputs, made, strict=True))
        return self._row_nodes[v]


# -- first parts ----------------------------------------------------------------------------------


def of_norm(node: Apply) -> RowParts:
    """The parts of a layer norm, or of its gradient."""
    op, outputs = node.op, list(node.outputs)
    if isinstance(op, LayerNorm):
        x, gamma, beta = node.inputs
        rows = {v: i for i, v in enumerate(node.outputs[1:])}
        fused = layer_norm_rows(op, x.type.dtype)
        return RowParts(fused, [x], [gamma, beta], outputs, {x: 0}, rows)
    assert isinstance(op, LayerNormGrad)
    x, dy, gamma, mean, invstd = node.inputs
    fused = layer_norm_grad_rows(op, x.type.dtype, True)
    return RowParts(fused, [x, dy, mean], [gamma, invstd], outputs, {dy: 1}, {})


def of_softmax(node: Apply, op: Any, inputs: Sequence[Variable]) -> RowParts:
    """The parts of a softmax, or of its gradient."""
    make = softmax_rows if len(inputs) == 1 else softmax_grad_rows
    held = {v: i for i, v in enumerate(inputs)}
    fused = make(op, inputs[0].type.dtype)
    return RowParts(fused, list(inputs), [], list(node.outputs), held, {})


def of_fold(node: Apply, fold: Fold, full: Callable[[Variable], bool]) -> RowParts:
    """The parts of sums over rows; operands that are ``full`` are read for values."""
    early = list(dict.fromkeys(w for w in node.inputs if full(w)))
    late = [w for w in dict.fromkeys(node.inputs) if w not in early and number_in(w) is None]
    w = fold.work
    reads = Builder([v.type.dtype for v in early])
    before = reads.program([reads.input(i).cast(w) for i in range(len(early))])
    empty = Builder([*before.output_dtypes, *(v.type.dtype for v in late)]).program([])
    op = FusedRows(fold.axes, before, (), empty)
    return RowParts(op, early, late, [], {v: i for i, v in enumerate(early)}, {}).with_fold(
        node, fold
    )


def of_elementwise(
    node: Apply, program: ScalarProgram, axes: tuple[int, ...], early: Sequence[Variable]
) -> RowParts:
    """The parts of an elementwise node, still without sums over all axes but ``axes``.

    The inputs ``early`` are read for values.
    """
    late = [w for w in dict.fromkeys(node.inputs) if w not in early and number_in(w) is None]
    reads = Builder([v.type.dtype for v in early])
    before = reads.program([reads.input(i) for i in range(len(early))])
    whole = [*early, *late]
    builder = Builder([v.type.dtype for v in whole])
    given = [
        builder.input(whole.index(w)) if number_in(w) is None else constant(builder, w)
        for w in node.inputs
    ]
    op = FusedRows(axes, before, (), builder.program(builder.inline(program, given)))
    held = {v: i for i, v in enumerate(early)}
    return RowParts(op, list(early), late, list(node.outputs), held, {})


# -- programs -------------------------------------------------------------------------------------


def constant(builder: Builder, v: Variable) -> Scalar:
    """The number of a constant, not rounded to 16 bits first."""
    exact = v.exact  # type: ignore[attr-defined]
    if exact is None:
        return builder.const(number_in(v), v.type.dtype)
    return builder.const(exact, "float32").cast(v.type.dtype, RESULT)


def _totals(fold: Fold, known: int) -> ScalarProgram:
    """A stage's row values: its sums, or their roots, rounded as the fold's results are.

    ``known`` are the row values before.
    """
    count = len(fold.kinds)
    builder = Builder([fold.work] * (known + count + 1))
    sums = [builder.input(known + i) for i in range(count)]
    found = [s.call("sqrt") if fold.root else s for s in sums]
    rounded = [s.cast(d, RESULT).cast(fold.work) for s, d in zip(found, fold.dtypes, strict=True)]
    return builder.program(rounded)


def _with_inputs(program: ScalarProgram, at: int, dtypes: Sequence[str]) -> ScalarProgram:
    """The program with further inputs, which it does not read, before number ``at``."""
    builder = Builder([*program.inputs[:at], *dtypes, *program.inputs[at:]])
    numbers = [*range(at), *range(at + len(dtypes), len(builder.inputs))]
    return builder.program(builder.inline(program, [builder.input(i) for i in numbers]))


def _wider(op: FusedRows, wider: Callable[[ScalarProgram], ScalarProgram]) -> FusedRows:
    """The op with more inputs of each program of elements behind ``before``."""
    stages = tuple(replace(s, terms=wider(s.terms)) for s in op.stages)
    sums = None if op.sums is None else wider(op.sums)
    return replace(op, stages=stages, after=wider(op.after), sums=sums)


def _with_rows(op: FusedRows, dtypes: Sequence[str]) -> FusedRows:
    """The op whose last programs take further row values of these dtypes."""
    at = len(op.before.outputs) + op.row_values
    sums = None if op.sums is None else _with_inputs(op.sums, at, dtypes)
    return replace(op, after=_with_inputs(op.after, at, dtypes), sums=sums)
