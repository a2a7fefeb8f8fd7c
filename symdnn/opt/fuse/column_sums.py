"""Elementwise nodes take sums of their results over all axes but the last ones.

The gradient of a bias, of a scale, or of a layer's scale is a column sum of an elementwise kernel's
result. That kernel computes the sum too: no array is read again, and an array that only the sum
reads is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.core.shape import DimShuffle
from symdnn.opt.fuse.apart import by_columns
from symdnn.opt.fuse.branches import branch_paths
from symdnn.opt.fuse.fuse import joined_origin
from symdnn.opt.fuse.groups import FUSABLE_BACKENDS, fusable_program, number_in
from symdnn.opt.fuse.row_parts import Fold, RowParts, fold_of, of_elementwise
from symdnn.opt.fuse.siblings import part_over
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.rewrite import Context, graph_rewrite

#: Limits of a kernel: operands read ahead, all operands, results, sums.
_MOST_EARLY, _MOST_INPUTS, _MOST_RESULTS, _MOST_SUMS = 4, 16, 6, 3


@graph_rewrite("fuse", tags=("fusion",), name="fuse_column_sums")
def fuse_column_sums(context: Context) -> None:
    """An elementwise node and sums of its results by columns become one node.

    Sums without other inputs can be fused wherever the node is, also before an effect.
    """
    if context.target.kind != "cuda":
        return
    order = context.fgraph.toposort()
    places = Places(context.fgraph, context.target, inner=context.inner)
    paths = branch_paths(context.fgraph, order)
    ours = [n for n in order if places(n) == context.target.place]
    found = {n: fold_of(n) for n in ours if n.hints.backend in FUSABLE_BACKENDS}
    folds = {n: fold for n, fold in found.items() if fold is not None and fold.adds}
    if not folds:
        return
    for node in ours:
        program = fusable_program(node) if node in context.fgraph.nodes else None
        if program is not None:
            users = dict.fromkeys(n for v in node.outputs for n in context.fgraph.user_nodes(v))
            beside = {n: folds[n] for n in users if n in folds and paths[n] == paths[node]}
            _Columns(context.fgraph, node, program).join(context, beside)


@dataclass
class _Columns:
    """An elementwise node whose results are summed."""

    fgraph: FunctionGraph
    node: Apply
    program: ScalarProgram

    def join(self, context: Context, folds: dict[Apply, Fold]) -> None:
        """Fuse it with its sums, if a kernel can add any of them."""
        parts: RowParts | None = None
        taken = [self.node]
        totals: dict[Apply, list[Variable]] = {}
        for user, fold in folds.items():
            axes = self._row_axes(fold)
            if axes is None:
                continue
            parts = parts or self._parts(axes)
            if parts is None or parts.op.axes != axes or not self._fits(parts, user, fold):
                continue
            parts = parts.with_column_sums(user, fold)
            taken.append(user)
        if parts is None or len(taken) == 1:
            return
        for user in [u for u in folds if u not in taken]:
            parts = self._with_total(parts, totals, user, folds[user])
        taken += totals
        parts = parts.only(lambda v: any(n not in taken for n, _ in self.fgraph.users(v)))
        fuses = context.capabilities.fuses(parts.op, context.target.kind)
        if not parts.results or not fuses:
            return
        for total, made in totals.items():
            context.replace(zip(total.outputs, made, strict=True), "fuse_column_sums")
        with inherit(joined_origin(taken), self.node.hints):
            context.replace(parts.made(), "fuse_column_sums")

    def _with_total(
        self, parts: RowParts, totals: dict[Apply, list[Variable]], user: Apply, fold: Fold
    ) -> RowParts:
        """With a sum over all axes as one of sums by columns, if there are such: in ``totals``."""
        long = [i for i, one in enumerate(self._pattern) if not one]
        by_columns = tuple(i for i in long if i not in parts.op.axes)
        if not set(long) <= set(fold.axes) or not self._fits(parts, user, fold):
            return parts
        part, made = part_over(user, by_columns) or (user, [])
        own = fold_of(part)
        if part is user or own is None:
            return parts
        totals[user] = made
        return parts.with_column_sums(part, own)

    @property
    def _pattern(self) -> tuple[bool, ...]:
        return self.node.outputs[0].type.broadcastable

    def _row_axes(self, fold: Fold) -> tuple[int, ...] | None:
        """The last axes, where a reduction is over all others of a size that is not 1."""
        if not by_columns(fold.axes, (*self.node.inputs, *self.node.outputs)):
            return None
        first = max(i for i in fold.axes if not self._pattern[i]) + 1
        return tuple(range(first, len(self._pattern)))

    def _parts(self, axes: tuple[int, ...]) -> RowParts | None:
        """The node without sums; None where a kernel of rows would not read it in its order."""
        inputs = [v for v in dict.fromkeys(self.node.inputs) if number_in(v) is None]
        if len({v.type.ndim for v in (*inputs, *self.node.outputs)}) > 1:
            return None
        full = [v for v in inputs if self._is_full(v)]
        if not full or any(map(_is_permuted, full)) or len(inputs) > _MOST_INPUTS:
            return None
        return of_elementwise(self.node, self.program, axes, full[:_MOST_EARLY])

    def _is_full(self, v: Variable) -> bool:
        return not isinstance(v, Constant) and v.type.broadcastable == self._pattern

    def _fits(self, parts: RowParts, user: Apply, fold: Fold) -> bool:
        """Whether a kernel can add these sums, too, and knows all that they read."""
        sums = 0 if parts.op.sums is None else len(parts.op.sums.outputs)
        known = all(parts.knows(w) for w in user.inputs)
        same = sums == 0 or fold.work == parts.op.work
        few = sums + len(fold.kinds) <= _MOST_SUMS and len(parts.results) <= _MOST_RESULTS
        return known and same and few


def _is_permuted(v: Variable) -> bool:
    """Whether it is a view in another order of the axes, which is not contiguous."""
    if v.owner is None or not isinstance(v.owner.op, DimShuffle):
        return False
    kept: Sequence[int] = [d for d in v.owner.op.pattern if isinstance(d, int)]
    return list(kept) != sorted(kept)


RULES = (fuse_column_sums,)
