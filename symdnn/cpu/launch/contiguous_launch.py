"""The launch of compiled loops over contiguous operands, and why a call is not compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.launch.fastcall import FastCall
from symdnn.cpu.launch.launch import CpuLaunch
from symdnn.cpu.threads import threads
from symdnn.graph.typing import Array, Arrays


def compiler_refusal() -> str | None:
    """Why no kernel can be compiled here; None where kernels can be."""
    if str(config.cpu.compile) == "never":
        return "cpu.compile=never"
    return jit.problem() or threads.problem() or None


def compile_refusal(types: Iterable[Any], work: Callable[[], int], min_work: int) -> str | None:
    """Why no loops are compiled for a call; None where they are.

    If all ``types`` are static, ``work()`` must not be 0, and must be at least ``min_work`` unless
    the flag ``cpu.compile`` is ``always``.
    """
    mode = str(config.cpu.compile)
    if mode == "never":
        return "cpu.compile=never"
    if all(t.is_static for t in types):
        amount = work()
        if amount == 0:
            return "there are no elements"
        if mode == "auto" and amount < min_work:
            return "there is too little work to compile for"
    return jit.problem() or threads.problem() or None


class ContiguousLaunch(CpuLaunch):
    """``launch(inputs, outputs)`` of a kernel for contiguous operands; others are copied.

    The kernel's block of words is ``head``, the array objects of the first ``reads`` inputs and of
    the outputs, and ``tail``. ``status`` is the index of the word that the kernel sets to report an
    error; -1 if it never does.
    """

    def __init__(
        self, run: Any, head: Sequence[int], reads: int, writes: int = 1, status: int = -1,
        tail: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._run, self._reads, self._status = run, reads, status
        self._first = len(head)
        words = [*head, *[0] * (reads + writes), *tail]
        self._words = (ctypes.c_int64 * len(words))(*words)

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Compute every result; raises the error that the kernel reports."""
        read = inputs[: self._reads]
        dense = [a if a.flags.c_contiguous else self.dense(a) for a in read]
        made = [o if o.flags.c_contiguous else np.empty(o.shape, o.dtype) for o in outputs]
        words = self._words
        for i, a in enumerate((*dense, *made), self._first):
            words[i] = id(a)
        self._run(words)
        if self._status >= 0 and words[self._status]:
            words[self._status] = 0
            self.failed(inputs)
        for whole, out in zip(made, outputs):
            if whole is not out:
                self.put(whole, out)

    def dense(self, operand: Array) -> Array:
        """A contiguous copy of an operand."""
        return np.ascontiguousarray(operand)

    def put(self, whole: Array, out: Array) -> None:
        """Copy a contiguous result to where it is wanted."""
        np.copyto(out, whole)

    def failed(self, inputs: Arrays) -> None:
        """Raise the error that the kernel has reported; for subclasses with a ``status``."""
        raise NotImplementedError

    def native(self, inputs: Arrays, outputs: Arrays) -> FastCall | None:
        """The call without Python, for contiguous operands; a reported error stops it."""
        if not all(a.flags.c_contiguous for a in (*inputs[: self._reads], *outputs)):
            return None
        results = self._first + self._reads
        unread = [-1] * (len(inputs) - self._reads)
        at = (*range(self._first, results), *unread, *range(results, results + len(outputs)))
        return FastCall.of(self._run, self._words, at, status=self._status)
