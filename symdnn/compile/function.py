"""``function``: compiles an expression to a callable. Its steps follow one another below."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from symdnn.compile.call.arguments import In, Out, as_in, as_out, check_distinct
from symdnn.compile.call.compiled_function import Function
from symdnn.compile.call.signature import FunctionSignature, Structure
from symdnn.compile.call.structured import (
    InputForms,
    flat_inputs,
    flat_pairs,
    parts_of_output,
)
from symdnn.compile.execute.targets import load_kernels, resolve_target
from symdnn.compile.modes.modes import get_mode
from symdnn.compile.plan.loop_budget import LoopBudget, source_of_loops
from symdnn.compile.plan.stages import Stages
from symdnn.compile.precompile import begin_kernels
from symdnn.compile.program.capabilities import all_capabilities, demanded
from symdnn.compile.program.mode import Audit, Mode
from symdnn.compile.program.placing import program_of
from symdnn.compile.program.program import Program, byte_size, with_budget
from symdnn.compile.report.profile import FunctionProfile
from symdnn.compile.updates import (
    apply_givens,
    collect_updates,
    default_updates,
    fitting,
    respecify,
    unused,
)
from symdnn.config import config
from symdnn.errors import InputError, OptionError, UnusedInputError
from symdnn.graph import gc_pause
from symdnn.graph.check import check_graph
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.names.torch_words import advises
from symdnn.graph.target import Target
from symdnn.graph.tracing import untraced
from symdnn.graph.traverse import leaves
from symdnn.graph.variable import Shared, Variable
from symdnn.libraries.words import check_required
from symdnn.opt.engine import RewriteProfile
from symdnn.opt.fuse.transfer import check_transfer_places
from symdnn.opt.optimise import optimise
from symdnn.sharding.gathered import with_gathers
from symdnn.sharding.propagate import with_parts
from symdnn.sharding.rules import RULES

__all__ = ["Function", "Stages", "function"]


@advises()
def function(
    inputs: Sequence[Any] | Variable = (),
    outputs: object = None,
    mode: Mode | str | None = None,
    updates: object = None,
    givens: object = None,
    no_default_updates: bool | Sequence[Variable] = False,
    accept_inplace: bool = False,
    name: str | None = None,
    rebuild_strict: bool = True,
    allow_input_downcast: bool | None = None,
    profile: object = None,
    on_unused_input: str | None = None,
    memory_budget: str | int | None = None,
) -> Function:
    """Compile an expression into a callable (Theano's ``function``).

    ``inputs`` are variables or :class:`In`; ``outputs`` a variable, a list, a dict by name, or
    None. ``updates`` maps shared variables to their next values: all expressions read the old
    values, and all updates are applied together when the rest of the call has succeeded. ``givens``
    maps variables to expressions that replace them. ``mode`` says how to compile,
    ``allow_input_downcast`` whether arguments may lose precision, ``on_unused_input`` what happens
    for an input that no output depends on (``raise``, ``warn``, ``ignore``). ``name`` is used in
    errors and reports, ``profile=True`` measures each step. ``no_default_updates`` is True, or a
    list of shared variables whose default updates are left out.

    ``memory_budget`` (bytes, or ``"512MiB"``) bounds what a call needs beside its arguments, shared
    variables and constants: plans compute values again; ``f.memory_report()`` says which.

    Raises :class:`~symdnn.errors.InputError` for wrong declarations,
    :class:`~symdnn.errors.TypeMismatch` for givens and updates of other types,
    :class:`~symdnn.errors.GraphError` for cyclic givens, and
    :class:`~symdnn.errors.UnusedInputError`; a call raises :class:`~symdnn.errors.OverBudget` where
    no order of its plan keeps to ``memory_budget``, with the least that was found.
    """
    inputs, forms = flat_inputs(inputs, name or "function")
    updates, givens = flat_pairs(updates, "updates"), flat_pairs(givens, "givens")
    declared, (wanted, structure) = _declare(inputs), _outputs(outputs)
    states = {d.variable: s for d in declared if (s := d.state()) is not None}
    chosen, budget = get_mode(mode), byte_size("memory_budget", memory_budget)

    with gc_pause.paused(), untraced(), config.change_flags(compute_test_value="off"):
        target = resolve_target(chosen.target, explain=demanded(chosen.selection.takes))
        given = _expressions(declared, wanted, updates, givens, no_default_updates, states)
        results, pairs = with_parts(*with_gathers(*given), RULES)
        _check_used(declared, [*results, *(new for _, new in pairs)], on_unused_input, forms)
        fgraph = FunctionGraph([d.variable for d in declared], [*results, *(n for _, n in pairs)])
        fgraph.lent = frozenset(i for i, o in enumerate(wanted) if o.borrow or o.stay)
        fgraph.updates = {len(results) + i: s for i, (s, _) in enumerate(pairs)}
        stages = _compile(fgraph, chosen, target, budget)

    label = name or "function"
    borrow, stay = tuple(o.borrow for o in wanted), tuple(o.stay for o in wanted)
    updated = tuple(s for s, _ in pairs)
    sources = (*results, *(new for _, new in pairs))
    signature = FunctionSignature(
        label, tuple(declared), states, structure, updated, allow_input_downcast, borrow, sources,
        forms, stay, budget,
    )  # fmt: skip
    return Function(signature, stages, FunctionProfile.of(profile, label, stages.rewrites))


def _compile(
    fgraph: FunctionGraph, mode: Mode, target: Target, budget: int | None = None
) -> Stages:
    """Rewrite the graph and schedule it as a program. Plans are made at calls."""
    load_kernels(target)
    check_graph(fgraph)
    check_transfer_places(fgraph, target)
    audit = mode.audit(fgraph, target)
    check_required(mode.selection)
    source = None if budget is None or _is_observed(mode) else source_of_loops(fgraph, target)
    rewrites = _rewritten(fgraph, mode, target, audit)
    program = program_of(fgraph, target, mode)
    if budget is None or source is None:
        return Stages(mode, target, fgraph, with_budget(program, budget), rewrites, audit)
    loops = LoopBudget(budget, source, program, target.place, _Compiled(mode, target))
    bounded, chosen = with_budget(program, budget), loops if loops.loops else None
    return Stages(mode, target, fgraph, bounded, rewrites, audit, chosen)


@dataclass(frozen=True)
class _Compiled:
    """Makes the program of a graph for a mode and a target."""

    mode: Mode
    target: Target

    def __call__(self, fgraph: FunctionGraph) -> Program:
        with gc_pause.paused(), untraced(), config.change_flags(compute_test_value="off"):
            _rewritten(fgraph, self.mode, self.target)
            return program_of(fgraph, self.target, self.mode)


def _is_observed(mode: Mode) -> bool:
    """Whether a mode looks at each value of the graph that it was given."""
    return type(mode).watch is not Mode.watch or mode.guard is not None


def _rewritten(
    fgraph: FunctionGraph, mode: Mode, target: Target, audit: Audit | None = None
) -> RewriteProfile:
    observer = audit.observer if audit else None
    begin = partial(begin_kernels, fgraph, target)
    rewrites = optimise(fgraph, target, mode.selection, all_capabilities(), observer, begin)
    if audit is not None:
        audit.finish(fgraph)
    check_graph(fgraph)
    return rewrites


def _declare(inputs: object) -> list[In]:
    if isinstance(inputs, Variable) or not isinstance(inputs, list | tuple):
        raise InputError(f"function: inputs must be a list of variables, got {inputs!r}")
    declared = [as_in(i) for i in inputs]
    check_distinct(declared)
    return declared


def _outputs(outputs: object) -> tuple[list[Out], Structure]:
    """The outputs as a list, with the structure in which a call returns them."""
    kind, keys = "list", ()
    if outputs is None:
        outputs = []
    elif isinstance(outputs, Mapping):
        kind, keys, outputs = "dict", tuple(outputs), list(outputs.values())
    elif not isinstance(outputs, list | tuple):
        kind, outputs = "one", [outputs]
    found = [parts_of_output(o) for o in outputs]
    forms = tuple(form for _, form in found) if any(form for _, form in found) else ()
    return [as_out(v) for parts, _ in found for v in parts], Structure(kind, keys, forms)


def _expressions(
    declared: Sequence[In],
    wanted: Sequence[Out],
    updates: object,
    givens: object,
    no_default_updates: bool | Sequence[Variable],
    states: Mapping[Variable, Shared],
) -> tuple[list[Variable], list[tuple[Shared, Variable]]]:
    """Outputs, and updated variables with their new values, after replacement of givens."""
    results = [o.variable for o in wanted]
    pairs = collect_updates(updates)
    pairs += [(states[d.variable], _update_of(d)) for d in declared if d.update is not None]
    given = apply_givens([*results, *(new for _, new in pairs)], givens)
    results, news = given[: len(results)], given[len(results) :]
    explicit = [(old, new) for (old, _), new in zip(pairs, news)]
    defaults = default_updates(
        [*results, *news],
        [old for old, _ in pairs],
        no_default_updates,
        [d.variable for d in declared],
    )
    news = apply_givens([new for _, new in defaults], givens)
    explicit += [(old, new) for (old, _), new in zip(defaults, news)]
    return results, [(old, respecify(new, old)) for old, new in explicit]


def _update_of(declared: In) -> Variable:
    return fitting(declared.variable, declared.update, "update")


def _check_used(
    declared: Sequence[In], outputs: Sequence[Variable], action: str | None,
    forms: InputForms | None = None,
) -> None:  # fmt: skip
    action = action or str(config.on_unused_input)
    if action not in ("raise", "warn", "ignore"):
        raise OptionError(f"on_unused_input={action!r}: wanted raise, warn or ignore")
    if action == "ignore":
        return
    found = unused([d.variable for d in declared], outputs)
    if forms is not None:
        # A structured input is unused where none of its parts is used.
        groups = [[declared[i].variable for i in group] for group in forms.groups()]
        found = [group[0] for group in groups if all(v in found for v in group)]
    for v in found:
        do = "pass on_unused_input='ignore' if that is meant"
        if v.name and any(other.name == v.name for other in leaves(outputs)):
            do = f"they depend on another variable {v.name}. Make one, and use it in both places"
        message = f"function: no output or update depends on the input {v} of type {v.type}; {do}"
        if action == "raise":
            raise UnusedInputError(message)
        warnings.warn(message, stacklevel=5)
