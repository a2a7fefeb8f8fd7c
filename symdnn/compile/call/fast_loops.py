"""The fast path of functions with loops on a CPU: all of a function as one compiled function.

Around a short loop, the nodes before and after it and the loop itself are as many calls from
Python, which take longer than the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.compile.call.accepting import accepting
from symdnn.compile.call.fast import Calls, CallSite
from symdnn.compile.program.program import If, Loop, Program
from symdnn.config import config
from symdnn.graph.place import HOST
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.scan import Scan

#: The most failed calls.
_MAX_FAILURES = 8
#: Calls in turn by compiled functions after which plans give memory back, which those do not use.
_CALLS_IN_TURN = 64


class LoopCalls(Calls):
    """The fast path of a function with loops on a CPU. Entries are lists of compiled functions.

    Those of an entry are for other values of integers that sizes depend on.
    """

    def __init__(self, function: CallSite) -> None:
        super().__init__(function)
        fgraph = function.stages.fgraph
        self.count = len(fgraph.outputs) - len(function.updated)
        self.shared = fgraph.shared()
        self._accept = accepting(self)
        self._whole: Any = None
        self._loops = [n for n in fgraph.apply_nodes if isinstance(n.op, Scan)]
        self._failures = self._in_turn = 0

    @staticmethod
    def may_run(function: CallSite) -> bool:
        """Whether a function has loops, and all of it is computed on the CPU at each call."""
        stages = function.stages
        if stages.target.place != HOST or stages.mode.guard is not None:
            return False
        nodes = stages.fgraph.apply_nodes
        if any(n.op.host_callback or n.op.unmergeable or n.op.ordered for n in nodes):
            return False
        program = stages.program
        return _has_loop(program) and not any(s.kept for s in program.segments())

    def attempt(self, function: CallSite, args: Sequence[Any]) -> list[Any] | None:
        """See :class:`~symdnn.compile.call.fast.Calls`."""
        executor = function.executor_or_none
        if not self.entries or executor is None:
            return None
        runtime: Any = executor.runtime
        bound = self._accept(args, False, runtime.dense)  # trusted ones may have any strides
        if bound is None:
            return None
        key, arrays = bound
        with runtime.lock:
            if self.shared:
                key, arrays = self._with_shared(key, arrays)
            for whole in self.entries.get(key, ()):
                if whole.fits_arrays(arrays):
                    break
            else:
                return None
            self._in_turn += 1
            if self._in_turn == _CALLS_IN_TURN:
                given_back = self._whole.release([p.bound for p in executor.plans()])
                if not given_back:  # in a nested call; later calls try it again
                    self._in_turn = 0
            outputs: list[Any] | None = whole.of_arrays(arrays)
            if outputs is None:  # the loops themselves raise the error
                self._failures += 1
                if self._failures == _MAX_FAILURES:
                    self.entries.clear()
            elif function.updated:
                function.update(outputs[self.count :])
                del outputs[self.count :]
            return outputs

    def _with_shared(self, key: Any, arrays: list[Any]) -> tuple[Any, list[Any]]:
        own = [v.storage.host() for v in self.shared]
        return (key, *[(a.shape, a.strides) for a in own]), [*arrays, *own]

    def at_first(self, function: CallSite, values: dict[Variable, Any]) -> list[Any] | None:
        """With ``cpu.compile=always`` the first call runs the compiled function that later ones do:
        by parts it would round otherwise.
        """
        if str(config.cpu.compile) != "always":
            return None
        found = self._learn(function, values, dense=True)
        return None if found is None else found[0].of_arrays(found[1])

    def learn(self, function: CallSite, values: dict[Variable, Any]) -> None:
        """Remember the compiled function for arguments like these, once there is one."""
        self._learn(function, values)

    def _learn(
        self, function: CallSite, values: dict[Variable, Any], dense: bool = False
    ) -> tuple[Any, list[Any]] | None:
        """The compiled function, if there is one, and the arrays that it reads."""
        if self._failures >= _MAX_FAILURES or any(v not in values for v in self.arguments):
            return None
        self._in_turn = 0
        arrays = [values[v] for v in self.arguments]
        if dense:
            arrays = [np.asarray(a, order="C") for a in arrays]
        if not all(a.flags.c_contiguous for a in arrays):
            return None
        shapes = [a.shape for a in arrays]
        key: Any = shapes[0] if len(shapes) == 1 else tuple(shapes)
        if self.shared:
            key, arrays = self._with_shared(key, arrays)
        if self._whole is None:
            fgraph = function.stages.fgraph
            inputs = [*self.arguments, *self.shared]
            self._whole = function.executor.runtime.whole_function(inputs, fgraph.outputs)
        made = self._whole.learn(arrays)
        if made is None:
            return None
        known = self.entries.get(key, [])
        if made not in known:
            self.remember(key, [*known, made])
        return made, arrays

    @property
    def loop_states(self) -> dict[Apply, str]:
        """How its loops run, for reports."""
        state = f"runs as {self._whole.made_as}" if self.entries else ""
        return dict.fromkeys(self._loops, state) if state else {}


def _has_loop(program: Program) -> bool:
    """Whether there is a loop, also in a branch."""
    return any(
        isinstance(r, Loop) or (isinstance(r, If) and (_has_loop(r.then) or _has_loop(r.orelse)))
        for r in program.regions
    )
