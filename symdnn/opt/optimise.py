"""All phases in order, on one graph."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from symdnn.config import config
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.inner import InnerGraph
from symdnn.graph.origin import inherit
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Variable
from symdnn.opt.engine import Observer, RewriteProfile, run_rewrites
from symdnn.opt.phases import RULES, Selection, rules_by_phase
from symdnn.opt.precision.amp import mixed_precision, precision_note
from symdnn.rewriting.failure import report_failure
from symdnn.rewriting.registry import outside
from symdnn.rewriting.rewrite import Capabilities, Context, GraphRewrite, Rewrite

__all__ = ["optimise"]

#: Graphs inside of ops, as copies that rewrites may change. Each phase goes on with those of the
#: last one, and with what is known of their variables.
Bodies = dict[InnerGraph, FunctionGraph]


def optimise(
    fgraph: FunctionGraph,
    target: Target,
    selection: Selection,
    capabilities: Capabilities,
    observer: Observer | None = None,
    after_phase: Callable[[str], None] | None = None,
) -> RewriteProfile:
    """Run all phases on ``fgraph`` for ``target`` and return counts and times of the rewrites.

    ``selection`` says which rewrites run, ``capabilities`` has the libraries' rules and answers
    what there are kernels for; registered rewrites run too. ``observer`` is called before each
    replacement of a node rewrite, ``after_phase`` with the name of each phase after it. Failures of
    rewrites follow the flag ``on_opt_error``.
    """
    from_outside = outside()
    rules = (*RULES, *capabilities.rules, *from_outside)
    profile = RewriteProfile(outside=tuple(r.name for r in from_outside if selection.takes(r)))
    if config.optimizer_verbose:
        observer = _also_printing(observer)
    context = Context(fgraph, target, config.deterministic == "more", capabilities=capabilities)
    bodies: Bodies = {}
    for phase, of_phase in rules_by_phase(selection, rules).items():
        start = time.perf_counter()
        _run_phase(of_phase, context, profile, observer, bodies, {})
        profile.phases[phase] = time.perf_counter() - start
        if after_phase is not None:
            after_phase(phase)
    note = precision_note(target, selection.takes(mixed_precision))
    profile.notes = (note,) if note else ()
    return profile


def _run_phase(
    rules: Sequence[Rewrite | GraphRewrite],
    context: Context,
    profile: RewriteProfile,
    observer: Observer | None,
    bodies: Bodies,
    done: dict[InnerGraph, InnerGraph],
) -> None:
    """Run one phase, first on graphs inside of ops (the body of a loop), then on ``fgraph``.

    ``done`` has what this phase made of the graphs inside.
    """
    fgraph = context.fgraph
    for node in fgraph.toposort():
        inner = getattr(node.op, "inner", None)
        if not isinstance(inner, InnerGraph):
            continue
        if inner not in done:
            body = bodies.pop(inner, None)
            if body is None:
                body = FunctionGraph(inner.inputs, inner.outputs)
            inside = replace(context, fgraph=body, inner=True)
            body.changed = False
            _run_phase(rules, inside, profile, observer, bodies, done)
            done[inner] = InnerGraph(body.inputs, body.outputs) if body.changed else inner
            bodies[done[inner]] = body
        if done[inner] != inner:
            _put_inside(fgraph, node, done[inner])
    run_rewrites(rules, context, profile, observer)


def _put_inside(fgraph: FunctionGraph, node: Apply, inner: InnerGraph) -> None:
    """Replace the inner graph of ``node``."""
    op: Any = node.op
    try:
        with inherit(node.origin, node.hints, node.written):
            new = op.with_inner(inner).make_node(*node.inputs)
        fgraph.replace_all(zip(node.outputs, new.outputs, strict=True), "rewritten inside")
    except Exception as error:
        report_failure(f"rewriting inside of {op} failed", error, "It stays as it was")


def _also_printing(observer: Observer | None) -> Observer:
    """An observer that calls ``observer`` and prints a line to stderr for each replacement."""

    def tell(rule: Rewrite, node: Apply, new: Sequence[Variable | None]) -> None:
        if observer is not None:
            observer(rule, node, new)
        made = ", ".join(str(v.owner or v) for v in new if v is not None)
        print(f"{rule.phase}: {rule.name}: {node} -> {made}", file=sys.stderr)

    return tell
