"""The list of phases, and the list of all rewrites that belong to no library.

Deleting a line here removes the behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from symdnn.opt.canonicalize import (
    algebra,
    alloc_rules,
    concat_rules,
    counted_index,
    counts,
    dead_code,
    dimshuffle_rules,
    dot_transpose,
    elementwise,
    fold,
    from_graph_rules,
    index_array_rules,
    indexing_rules,
    matrix_rules,
    part_rules,
    reduce_rules,
    shape_rules,
)
from symdnn.opt.epilogue import fold_batch_norm, pool_rules
from symdnn.opt.fuse import (
    apart,
    choices,
    column_sums,
    fuse,
    gathers,
    group_norm,
    log_sum_rules,
    loss_rules,
    norm_rules,
    placed,
    row_rules,
    short_sums,
    siblings,
    stencils,
    transfer,
    views,
    whole_sums,
)
from symdnn.opt.layout import absorb_nhwc_views, layout
from symdnn.opt.lower import (
    checked_updates,
    collectives,
    data_sizes,
    increments,
    many_best,
    masked,
    of_values,
    one_per_row,
    rolls,
    sparse,
    totals,
    without_kernels,
    write_out,
)
from symdnn.opt.lower import matrix_rules as matrix_lowering
from symdnn.opt.precision import amp
from symdnn.opt.precision import loops as loop_precision
from symdnn.opt.scan import scan_contained, scan_push, scan_rules
from symdnn.rewriting.rewrite import GraphRewrite, Rewrite
from symdnn.stable import rules as stable
from symdnn.stable import shared_weights, twins

__all__ = ["PHASES", "RULES", "Selection", "rules_by_phase"]

#: Each phase runs to a fixed point before the next one starts.
PHASES = (
    "canonicalize",
    "stabilize",
    "lower",
    "precision",
    "layout",
    "epilogue",
    "fuse",
    "transfer",
)

#: For a phase, the earlier phases whose rules run again in it, on the nodes that it makes. Rules
#: tagged ``cleanup`` run in every phase.
RERUN_PHASES = {"stabilize": frozenset({"canonicalize"})}

#: All rewrites but the libraries' (:mod:`symdnn.libraries.table`). The order of this list carries
#: no meaning; the phase of a rule does.
RULES: tuple[Rewrite | GraphRewrite, ...] = (
    *fold.RULES,
    *from_graph_rules.RULES,
    *shape_rules.RULES,
    *dead_code.RULES,
    *choices.RULES,
    *algebra.RULES,
    *elementwise.RULES,
    *dimshuffle_rules.RULES,
    *dot_transpose.RULES,
    *alloc_rules.RULES,
    *reduce_rules.RULES,
    *scan_rules.RULES,
    *scan_contained.RULES,
    *indexing_rules.RULES,
    *part_rules.RULES,
    *index_array_rules.RULES,
    *counted_index.RULES,
    *counts.RULES,
    *scan_push.RULES,
    *concat_rules.RULES,
    *matrix_rules.RULES,
    *stable.RULES,
    *twins.RULES,
    *shared_weights.RULES,
    *matrix_lowering.RULES,
    *write_out.RULES,
    *data_sizes.RULES,
    *checked_updates.RULES,
    *increments.RULES,
    *one_per_row.RULES,
    *rolls.RULES,
    *many_best.RULES,
    *of_values.RULES,
    *masked.RULES,
    *sparse.RULES,
    *collectives.RULES,
    *totals.RULES,
    *without_kernels.RULES,
    *amp.RULES,
    *loop_precision.RULES,
    *layout.RULES,
    *absorb_nhwc_views.RULES,
    *fold_batch_norm.RULES,
    *pool_rules.RULES,
    *norm_rules.RULES,
    *group_norm.RULES,
    *loss_rules.RULES,
    *log_sum_rules.RULES,
    *short_sums.RULES,
    *views.RULES,
    *fuse.RULES,
    *views.GROUP_RULES,
    *apart.RULES,
    *placed.RULES,
    *stencils.RULES,
    *siblings.RULES,
    *gathers.RULES,
    *row_rules.RULES,
    *column_sums.RULES,
    *whole_sums.RULES,
    *transfer.RULES,
)

#: Tags that switch on rules tagged ``optional``. Their phase and their other tags do not.
OPT_IN_TAGS = frozenset({"unsafe", "cudnn"})


@dataclass(frozen=True)
class Selection:
    """Which rewrites run, by tag or name (Theano's ``including`` and ``excluding``).

    A rule runs when its tags, its phase or its name meet ``include``, and none of them is in
    ``exclude``. ``require`` must be included or compiling fails. A rule tagged ``optional`` is
    included only by its name or by a tag of :data:`OPT_IN_TAGS`.
    """

    include: frozenset[str] = frozenset({"fast_run"})
    exclude: frozenset[str] = frozenset()
    require: frozenset[str] = frozenset()

    def takes(self, rule: Rewrite | GraphRewrite) -> bool:
        """Whether ``rule`` runs."""
        if "always" in rule.tags:
            return True
        names = rule.tags | {rule.name, rule.phase}
        if names & self.exclude:
            return False
        optional = "optional" in rule.tags
        wanted = {rule.name} | (rule.tags & OPT_IN_TAGS) if optional else names | {"fast_run"}
        return bool(wanted & (self.include | self.require))

    def including(self, *tags: str) -> Selection:
        """This selection with these tags or names included, and no longer excluded."""
        given = frozenset(tags)
        return Selection(self.include | given, self.exclude - given, self.require)

    def excluding(self, *tags: str) -> Selection:
        """This selection without rewrites that have one of these tags or names."""
        return Selection(self.include, self.exclude | frozenset(tags), self.require)

    def requiring(self, *tags: str) -> Selection:
        """This selection with these tags or names, each of which must exist."""
        return Selection(self.include, self.exclude, self.require | frozenset(tags))


@lru_cache(maxsize=64)
def rules_by_phase(
    selection: Selection, rules: tuple[Rewrite | GraphRewrite, ...] = RULES
) -> Mapping[str, tuple[Rewrite | GraphRewrite, ...]]:
    """The selected rules of each phase, with those of earlier phases that run again in it."""
    selected = [r for r in rules if selection.takes(r)]
    again = {phase: {phase, *RERUN_PHASES.get(phase, ())} for phase in PHASES}
    return {
        phase: tuple(r for r in selected if r.phase in again[phase] or "cleanup" in r.tags)
        for phase in PHASES
    }
