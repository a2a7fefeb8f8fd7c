"""``function``: from an expression to a callable. It reads top to bottom as the steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.compile.arguments import Arguments, In, Out, as_in, as_out, check_distinct
from symdnn.compile.executor import Executor
from symdnn.compile.mode import Mode, get_mode
from symdnn.compile.program import Program
from symdnn.compile.schedule import schedule
from symdnn.compile.shared import shared
from symdnn.compile.specialise import TableOracle
from symdnn.compile.targets import load_runtime, resolve_target
from symdnn.compile.updates import apply_givens, collect_updates, respecify, unused
from symdnn.config import config
from symdnn.errors import SymdnnError, UnusedInputError
from symdnn.graph.check import check_graph
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.runtime import Watcher
from symdnn.graph.target import Target
from symdnn.graph.variable import Constant, Shared, Variable
from symdnn.opt.engine import RewriteProfile
from symdnn.opt.optimise import optimise

__all__ = ["Function", "Stages", "function"]


def function(
    inputs: Sequence[Any] | Variable = (),
    outputs: Any = None,
    mode: Mode | str | None = None,
    updates: Any = None,
    givens: Any = None,
    no_default_updates: Any = False,
    accept_inplace: bool = False,
    name: str | None = None,
    rebuild_strict: bool = True,
    allow_input_downcast: bool | None = None,
    profile: Any = None,
    on_unused_input: str | None = None,
) -> Function:
    """Compile an expression into a callable (Theano's ``function``).

    ``inputs`` are variables or :class:`In`; ``outputs`` a variable, a list, a dict by name, or
    None. ``updates`` maps shared variables to their next values: all expressions see the old
    values, all are applied together after everything else succeeded. ``givens`` puts expressions
    in the place of variables. ``mode`` says how to compile, ``allow_input_downcast`` whether
    arguments may lose precision, ``on_unused_input`` what to do about an input that nothing
    reads (``raise``, ``warn``, ``ignore``).
    """
    declared = _declare(inputs)
    wanted, rebuild = _outputs(outputs)
    states = {d.variable: shared(d.value) for d in declared if _keeps_state(d)}
    chosen = get_mode(mode)
    target = resolve_target(chosen.target)

    results, pairs = _expressions(declared, wanted, updates, givens, no_default_updates, states)
    _check_used(declared, [*results, *(new for _, new in pairs)], on_unused_input)
    fgraph = FunctionGraph([d.variable for d in declared], [*results, *(n for _, n in pairs)])
    check_graph(fgraph)
    rewrites = optimise(fgraph, target, chosen.selection)
    check_graph(fgraph)
    program = schedule(fgraph.outputs)

    stages = Stages(chosen, target, fgraph, program, rewrites)
    label = name or "function"
    arguments = Arguments(label, declared, fgraph.inputs, states, allow_input_downcast)
    borrow = [o.borrow for o in wanted]
    return Function(label, stages, arguments, [s for s, _ in pairs], borrow, rebuild)


@dataclass(frozen=True)
class Stages:
    """What each step of compiling made; all of it prints."""

    mode: Mode
    target: Target
    fgraph: FunctionGraph
    program: Program
    rewrites: RewriteProfile


class Function:
    """A compiled function. Call it with values by position or by keyword.

    ``f.stages`` has the rewritten graph and the program, ``f.plans()`` the plans made so far.
    """

    def __init__(
        self,
        name: str,
        stages: Stages,
        arguments: Arguments,
        updated: Sequence[Shared],
        borrow: Sequence[bool],
        rebuild: Any,
    ) -> None:
        self.name, self.stages, self.arguments = name, stages, arguments
        self.updated, self.trust_input = list(updated), False
        self._rebuild = rebuild
        self._count = len(stages.fgraph.outputs) - len(self.updated)
        self._shared = stages.fgraph.shared()
        self._copied = _must_copy(stages.fgraph.outputs)
        self._borrow = borrow
        self._executor: Executor | None = None

    @property
    def executor(self) -> Executor:
        """What runs the program; made on first use, when the device is first needed."""
        if self._executor is None:
            runtime = load_runtime(self.stages.target)
            oracle = TableOracle(self.stages.target.kind)
            self._executor = Executor(self.stages.program, oracle, runtime)
        return self._executor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it. Shared variables change only if all of it succeeds."""
        return self._rebuild(self.run(args, kwargs))

    def run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], watcher: Watcher | None = None
    ) -> list[Any]:
        """Outputs as a list; ``watcher`` is told of each node."""
        values = self.arguments.bind(args, kwargs)
        runtime = self.executor.runtime
        with runtime.exclusive(), np.errstate(all="ignore"):
            for v in self._shared:
                values[v] = v.storage.on(runtime.memory)
            results = self.executor.run(values, watcher)
            for i in self._copied:
                results[i] = runtime.fresh(results[i])
            self._update(results[self._count :])
        return [runtime.to_host(r) for r in results[: self._count]]

    def _update(self, new_values: Sequence[Any]) -> None:
        runtime = self.executor.runtime
        for variable, new in zip(self.updated, new_values):
            storage = variable.storage
            if new.shape == storage.shape and runtime.memory.device == "cpu":
                np.copyto(storage.host(), new)
                storage.written("cpu")
            else:
                variable.type.check_value_shape(new.shape, f"update of {variable}")
                storage.set(runtime.to_host(new))

    def plans(self) -> list[Any]:
        """The plans made so far, over all segments."""
        return [] if self._executor is None else self._executor.plans()

    @property
    def maker(self) -> Function:
        """Theano programs read ``f.maker.fgraph``."""
        return self

    @property
    def fgraph(self) -> FunctionGraph:
        """The rewritten graph."""
        return self.stages.fgraph

    def get_shared(self) -> list[Shared]:
        """Shared variables that it reads or updates."""
        return list(dict.fromkeys([*self._shared, *self.updated]))

    def __repr__(self) -> str:
        return f"<symdnn function {self.name}({self.arguments.signature()})>"


def _declare(inputs: Any) -> list[In]:
    if isinstance(inputs, Variable) or not isinstance(inputs, list | tuple):
        raise SymdnnError(f"function: inputs must be a list of variables, got {inputs!r}")
    declared = [as_in(i) for i in inputs]
    check_distinct(declared)
    return declared


def _outputs(outputs: Any) -> tuple[list[Out], Any]:
    """The outputs as a list, and what gives a call's results the user's structure back."""
    if outputs is None:
        return [], list
    if isinstance(outputs, Mapping):
        keys = list(outputs)
        return [as_out(outputs[k]) for k in keys], lambda results: dict(zip(keys, results))
    if isinstance(outputs, list | tuple):
        return [as_out(o) for o in outputs], list
    return [as_out(outputs)], lambda results: results[0]


def _keeps_state(declared: In) -> bool:
    return declared.value is not None


def _expressions(
    declared: Sequence[In],
    wanted: Sequence[Out],
    updates: Any,
    givens: Any,
    no_default_updates: Any,
    states: Mapping[Variable, Shared],
) -> tuple[list[Variable], list[tuple[Shared, Variable]]]:
    """Outputs, and updated variables with their new values, givens put in."""
    results = [o.variable for o in wanted]
    pairs = collect_updates(results, updates, True)
    given = apply_givens([*results, *(new for _, new in pairs)], givens)
    results, news = given[: len(results)], given[len(results) :]
    pairs = [(old, new) for (old, _), new in zip(pairs, news)]
    pairs += [(states[d.variable], d.update) for d in declared if d.update is not None]
    left_alone = no_default_updates
    if left_alone is not True:
        left_alone = [*(left_alone or ()), *(old for old, _ in pairs)]
    pairs += collect_updates([*results, *(n for _, n in pairs)], None, left_alone)
    return results, [(old, respecify(new, old)) for old, new in pairs]  # type: ignore[misc]


def _check_used(declared: Sequence[In], outputs: Sequence[Variable], action: str | None) -> None:
    action = action or str(config.on_unused_input)
    if action not in ("raise", "warn", "ignore"):
        raise ValueError(f"on_unused_input={action!r}: wanted raise, warn or ignore")
    if action == "ignore":
        return
    for v in unused([d.variable for d in declared], outputs):
        message = (
            f"function: no output or update depends on the input {v} of type {v.type}; "
            "pass on_unused_input='ignore' if that is meant"
        )
        if action == "raise":
            raise UnusedInputError(message)
        warnings.warn(message, stacklevel=4)


def _must_copy(outputs: Sequence[Variable]) -> list[int]:
    """Results that are not a fresh array of their own: leaves, and what is returned twice."""
    seen: set[Variable] = set()
    copied = []
    for i, v in enumerate(outputs):
        if v.owner is None or isinstance(v, Constant) or v in seen:
            copied.append(i)
        seen.add(v)
    return copied
