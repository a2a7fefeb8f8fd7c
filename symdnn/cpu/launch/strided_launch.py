"""The launch of compiled loops over strided operands: a block of words for each set of strides."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.graph.typing import Array

__all__ = ["StridedBlock", "StridedLaunch"]


class StridedBlock:
    """A compiled function and its block of words, for operands with certain strides.

    ``at`` are the indices of the words for the array objects of (\\*inputs, \\*outputs). ``keep``
    holds objects that must stay alive.
    """

    def __init__(
        self, function: Any, words: Sequence[int], at: Sequence[int], keep: Any = None
    ) -> None:
        self._function, self._at, self._keep = function, at, keep
        self._words = (ctypes.c_int64 * len(words))(*words)

    def run(self, arrays: Sequence[Array]) -> None:
        """Put the arrays into the block and run the function."""
        words = self._words
        for at, a in zip(self._at, arrays):
            words[at] = id(a)
        self._function(words)

    def native(self) -> FastCall:
        """The call without Python."""
        return FastCall.of(self._function, self._words, self._at, keep=self._keep)


class StridedLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` with a cache of blocks by the operands' strides.

    ``make(inputs, outputs)`` makes the block for operands with the strides of these.
    """

    def __init__(self, make: Callable[[Sequence[Any], Sequence[Any]], StridedBlock]) -> None:
        self._make = make
        self._blocks: dict[Any, StridedBlock] = {}

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute every output."""
        self._block(inputs, outputs).run([*inputs, *outputs])

    def prepare(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Queue the compilation of the code for operands with these strides."""
        self._block(inputs, outputs)

    def native(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> FastCall:
        """For operands with these strides."""
        return self._block(inputs, outputs).native()

    def _block(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> StridedBlock:
        key = tuple([a.strides for a in (*inputs, *outputs)])
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = self._make(inputs, outputs)
        return block
