"""The launch of compiled loops over strided operands: a block of words for each set of strides."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.graph.typing import Arrays


class StridedBlock:
    """A compiled function and its block of words, for operands with certain strides.

    ``at`` are the indices of the words for the array objects of (\\*inputs, \\*outputs). ``keep``
    holds objects that must stay alive. ``status`` is the index of the word that the function sets
    to report an error; -1 if it never does.
    """

    def __init__(
        self, function: Any, words: Sequence[int], at: Sequence[int], keep: Any = None,
        status: int = -1,
    ) -> None:  # fmt: skip
        self._function, self._at, self._keep, self._status = function, at, keep, status
        self._words = (ctypes.c_int64 * len(words))(*words)

    def run(self, arrays: Arrays) -> bool:
        """Put the arrays into the block and run the function; whether it reports an error."""
        words = self._words
        for at, a in zip(self._at, arrays):
            words[at] = id(a)
        self._function(words)
        wrong = self._status >= 0 and words[self._status] != 0
        if wrong:
            words[self._status] = 0
        return wrong

    def put(self, at: int, word: int) -> None:
        """Set a word for the next runs."""
        self._words[at] = word

    def native(self, reads: int, unread: int) -> FastCall:
        """The call without Python, where ``unread`` inputs come after the first ``reads``."""
        at = (*self._at[:reads], *[-1] * unread, *self._at[reads:])
        return FastCall.of(self._function, self._words, at, status=self._status, keep=self._keep)


class StridedLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` with a cache of blocks by the operands' strides.

    ``make(inputs, outputs)`` makes the block for operands with the strides of these. Of the inputs
    only the first ``reads`` are given to it, all if it is None. ``failed(inputs)`` raises the error
    that a block reports.
    """

    def __init__(
        self,
        make: Callable[[Arrays, Arrays], StridedBlock],
        reads: int | None = None,
        failed: Callable[[Arrays], None] | None = None,
    ) -> None:
        self._make, self._reads, self._failed = make, reads, failed
        self._blocks: dict[Any, StridedBlock] = {}

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Compute every output."""
        if self.reports(inputs, outputs) and self._failed is not None:
            self._failed(inputs)

    def reports(self, inputs: Arrays, outputs: Arrays = ()) -> bool:
        """Compute every output; whether the block reports an error."""
        return self._block(inputs, outputs).run([*inputs[: self._reads], *outputs])

    def prepare(self, inputs: Arrays, outputs: Arrays) -> None:
        """Queue the compilation of the code for operands with these strides."""
        self._block(inputs, outputs)

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCall:
        """For operands with these strides."""
        reads = len(inputs[: self._reads])
        return self._block(inputs, outputs).native(reads, len(inputs) - reads)

    def _block(self, inputs: Arrays, outputs: Arrays) -> StridedBlock:
        inputs = inputs[: self._reads]
        key = tuple([a.strides for a in (*inputs, *outputs)])
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = self._make(inputs, outputs)
        return block
