"""``MonitorMode``: the user's functions are called around each node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.compile.program.mode import Mode, Watch
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable


@dataclass(frozen=True)
class Moment:
    """The values of a node before or after it runs, in lists of one element as in Theano.

    ``moment.inputs[0][0]`` is the first input's array, ``moment.outputs[0][0]`` the first output's
    (None before the node ran). An opaque value, such as the reserve of a recurrent layer, is an
    empty array.
    """

    inputs: list[list[Any]]
    outputs: list[list[Any]]


Monitor = Callable[[int, Apply, Moment], None]


@dataclass(unsafe_hash=True)
class MonitorMode(Mode):
    """Calls ``pre_func(i, node, fn)`` before and ``post_func(i, node, fn)`` after each node.

    ``i`` counts the nodes of the call, ``fn.inputs`` and ``fn.outputs`` are lists of one-element
    lists that hold the arrays. Views that run no kernel are not reported.
    """

    pre_func: Monitor | None = None
    post_func: Monitor | None = None

    def watch(self, stages: object, values: Mapping[Variable, Any]) -> Watch | None:
        return _Monitor(self.pre_func, self.post_func)


def _cells(variables: Sequence[Variable], values: Sequence[Any]) -> list[list[Any]]:
    return [
        [a if isinstance(v.type, TensorType) else np.empty(0, np.uint8)]
        for v, a in zip(variables, values, strict=True)
    ]


class _Monitor(Watch):
    def __init__(self, before: Monitor | None, after: Monitor | None) -> None:
        self.before, self.after, self.count = before, after, 0

    def __call__(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[Any] | None) -> None:
        cells = _cells(node.inputs, inputs)
        if outputs is None:
            if self.before is not None:
                self.before(self.count, node, Moment(cells, [[None] for _ in node.outputs]))
            return
        if self.after is not None:
            self.after(self.count, node, Moment(cells, _cells(node.outputs, outputs)))
        self.count += 1
