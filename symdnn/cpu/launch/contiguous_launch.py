"""What kernels share whose compiled loops go over operands in C order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.launch.fastcall import Native
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.threads import threads

__all__ = ["InOrder", "uncompiled", "without_compiler"]


def without_compiler() -> str | None:
    """Why nothing at all is compiled here; None where it is."""
    if str(config.cpu.compile) == "never":
        return "cpu.compile=never"
    return jit.problem() or threads.problem() or None


def uncompiled(types: Iterable[Any], work: Callable[[], int], least: int) -> str | None:
    """Why no loops are compiled for a call; None where they are.

    Where all ``types`` are static there has to be some ``work``, and at least so much of it that
    compiling is worth while (unless the flag ``cpu.compile`` is ``always``).
    """
    wish = str(config.cpu.compile)
    if wish == "never":
        return "cpu.compile=never"
    if all(t.is_static for t in types):
        amount = work()
        if amount == 0:
            return "there are no elements"
        if wish == "auto" and amount < least:
            return "it is too little to compile for"
    return jit.problem() or threads.problem() or None


class InOrder(CpuLaunch):
    """``launch(inputs, outputs)``; operands that do not lie in C order are copied.

    ``head`` and ``tail`` are the words of the block around the operands: the first ``reads``
    inputs, and the results. ``status`` is the word that the loops set where they find a fault; -1:
    they do not.
    """

    def __init__(
        self, run: Any, head: Sequence[int], reads: int, writes: int = 1, status: int = -1,
        tail: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._run, self._reads, self._status = run, reads, status
        self._first = len(head)
        words = [*head, *[0] * (reads + writes), *tail]
        self._words = (ctypes.c_int64 * len(words))(*words)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute every result; a fault is an error then."""
        read = inputs[: self._reads]
        given = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in read]
        made = [o if o.flags.c_contiguous else np.empty(o.shape, o.dtype) for o in outputs]
        words = self._words
        for i, a in enumerate((*given, *made), self._first):
            words[i] = id(a)
        self._run(words)
        if self._status >= 0 and words[self._status]:
            words[self._status] = 0
            self.failed(inputs)
        for whole, out in zip(made, outputs):
            if whole is not out:
                np.copyto(out, whole)

    def failed(self, inputs: Sequence[Any]) -> None:
        """Raise the error for what the loops found wrong."""
        raise NotImplementedError

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native | None:
        """For operands in C order; a fault stops it."""
        if not all(a.flags.c_contiguous for a in (*inputs[: self._reads], *outputs)):
            return None
        results = self._first + self._reads
        unread = [-1] * (len(inputs) - self._reads)
        at = (*range(self._first, results), *unread, *range(results, results + len(outputs)))
        return Native.of(self._run, self._words, at, status=self._status)
