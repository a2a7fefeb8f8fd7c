"""All phases in order, on one graph."""

from __future__ import annotations

import time

from symdnn.config import config
from symdnn.errors import RewriteError
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.opt.engine import Observer, RewriteProfile, run_rewrites
from symdnn.opt.phases import PHASES, RULES, Selection, rules_of_phase
from symdnn.opt.rewrite import Context

__all__ = ["optimise"]


def optimise(
    fgraph: FunctionGraph,
    target: Target,
    selection: Selection,
    observer: Observer | None = None,
) -> RewriteProfile:
    """Rewrite ``fgraph`` for ``target``; counts and times of what was done."""
    _check_required(selection)
    profile = RewriteProfile()
    context = Context(fgraph, target, deterministic=config.deterministic == "more")
    for phase in PHASES:
        start = time.perf_counter()
        run_rewrites(rules_of_phase(phase, selection), context, profile, observer)
        profile.phases[phase] = time.perf_counter() - start
    return profile


def _check_required(selection: Selection) -> None:
    known = {name for r in RULES for name in (r.name, r.phase, *r.tags)}
    if missing := selection.require - known:
        raise RewriteError(f"optimizer_requiring: no rewrite or tag {', '.join(sorted(missing))}")
