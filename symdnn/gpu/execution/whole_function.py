"""Functions with loops of small steps as one kernel: what is around the loops, too."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.execution.whole_loop import GpuLoopFunction, GpuWholeLoop, on_device
from symdnn.graph.inner import InnerGraph
from symdnn.graph.traverse import clone_graph
from symdnn.graph.type import numpy_dtype
from symdnn.graph.variable import Variable
from symdnn.ops.control.scan import Scan

#: Calls after the first one until a kernel is made: of loops that are kernels at once, of others.
_CALLS_AT_ONCE, _CALLS = 1, 50
#: Work of the loops of unknown length in a call (of :func:`~symdnn.ops.steps.statements.work_of`).
#: The host can't interrupt them, so they give up and run by themselves.
_MOST_WORK = 1 << 18
#: Calls that give up, or that report an error, after which there are no more.
_MOST_FAILURES = 4
#: The words of a kernel, rounded up, and those of each number for the host behind them.
_WORDS, _WORDS_OF_A_NUMBER = 4, 2
_ONE = np.ones((), np.int64)


class GpuWholeFunction(GpuWholeLoop):
    """The kernels of a graph, which is the only step of a loop."""

    made_as = "one kernel with all around it"

    def __init__(
        self, device: Any, inputs: Sequence[Variable], outputs: Sequence[Variable]
    ) -> None:
        own = {v: v.type() for v in inputs}
        memo = clone_graph(outputs, own)
        inner = InnerGraph(list(own.values()), [memo[v] for v in outputs])
        super().__init__(Scan(inner, 0, (), 1), device)
        self._failures = 0

    def hot(self) -> int:
        """Calls after which a kernel is made."""
        steps = super().hot()
        if steps < 0 or self._failures >= _MOST_FAILURES:
            return -1
        return _CALLS if steps else _CALLS_AT_ONCE

    def make(self, inputs: Sequence[Any]) -> _Kernel:
        """A kernel's function."""
        return _Kernel(self._device, self.op, on_device(self._device.memory, inputs), _MOST_WORK)

    def outputs(self, inputs: Sequence[Any], on_host: Sequence[bool]) -> list[Any] | None:
        """The graph's outputs, on the host or not; None where there is no kernel, or it fails."""
        hot = self.hot()
        if hot < 0:
            return None
        inputs = [_ONE, *inputs]
        functions = self._functions(inputs)
        functions.steps += 1
        if functions.refused or functions.steps < hot:
            return None
        kernel: Any = functions.of(self, inputs)
        if kernel is None:
            return None
        found: list[Any] | None = kernel.outputs(inputs, on_host)
        self._failures += found is None
        return found

    @property
    def made_state(self) -> str:
        """:attr:`state` where a kernel is used."""
        made = self._failures < _MOST_FAILURES and any(f.made for f in self.known.values())
        return f"runs as {self.made_as}" if made else ""


class _Kernel(GpuLoopFunction):
    """The kernel of a graph for arrays of certain sizes and strides."""

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Whether numbers are those that it was made for, and on the host as they were then."""
        here = all(not isinstance(inputs[self.roles[i].number], RawArray) for i in self._numbers)
        there = sum(not isinstance(a, RawArray) and not a.shape for a in inputs)
        return here and there == len(self._numbers) and super().fits(inputs)

    def outputs(self, inputs: Sequence[Any], on_host: Sequence[bool]) -> list[Any] | None:
        """See :meth:`GpuWholeFunction.outputs`."""
        memory = self.device.memory
        inputs = on_device(memory, inputs)
        numbers = [i for i, (s, _) in enumerate(self._entries) if on_host[i] and prod(s) == 1]
        words = memory.empty((_WORDS + _WORDS_OF_A_NUMBER * len(numbers),), "int64")
        arrays = memory.beside(self._entries)
        places = {i: _WORDS + _WORDS_OF_A_NUMBER * k for k, i in enumerate(numbers)}
        for i, at in places.items():
            arrays[i] = words[at, ...]
        scratch = memory.empty((max(self._scratch, 1),), "uint8")
        self._launch(
            0, 1, words, scratch, self._placed(inputs, {"collected": arrays}, self._constants())
        )
        if not self._reads and not any(on_host):
            return arrays
        told = memory.download(words)
        if told[2]:
            return None
        for i, (shape, dtype) in enumerate(self._entries):
            if i in places:
                raw = told[places[i] :][:_WORDS_OF_A_NUMBER].view(numpy_dtype(dtype))[:1]
                arrays[i] = np.array(raw.reshape(shape))
            elif on_host[i]:
                arrays[i] = memory.download(arrays[i])
        return arrays
