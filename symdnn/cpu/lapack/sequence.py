"""Launches of several steps for each small matrix, as one compiled call.

A routine of LAPACK takes less time for a small matrix than calling it from Python. So its copies,
routines and checks are one function, which a plan calls among its other native steps
(:mod:`symdnn.cpu.launch.fastcall`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.cpu.lapack.expm_ir import MATRICES, table
from symdnn.cpu.lapack.library import Shared, prefix, routine
from symdnn.cpu.lapack.sequence_ir import FAULT, FIRST_ARRAY, Step, sequence_ir
from symdnn.cpu.lapack.stacks_ir import LANES, StackPlan, stack_ir
from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch
from symdnn.cpu.launch.scratch import address
from symdnn.cpu.threads import threads
from symdnn.graph.typing import Arrays

_NAMES = {"float32": "float", "float64": "double"}
#: Multiplications in vectors for which waking up another thread pays.
_WORK_PER_THREAD = 1 << 19


class Sequenced:
    """The steps of a launch, as they are written down, for ``count`` matrices of a dtype.

    Places are numbers: :meth:`array` and :meth:`memory` make them.
    """

    def __init__(self, dtype: str, count: int, arrays: int) -> None:
        self.letter, self.dtype, self.count = prefix(dtype), np.dtype(dtype), count
        self._name, self._arrays = _NAMES[dtype], arrays
        self._owners: list[int] = []
        self._places: list[tuple[int, int]] = []
        self._steps: list[Step] = []
        self._words: list[int] = []
        #: Memory that must stay as long as the launch.
        self.keep: list[Any] = []

    # -- places ---------------------------------------------------------------------------------

    def array(self, index: int, step: int, offset: int = 0) -> int:
        """A place in an operand, the inputs before the outputs: so many elements behind its start,
        and so many from one matrix to the next."""
        size = self.dtype.itemsize
        return self._place(index, offset * size, step * size)

    def pivots(self, index: int, step: int) -> int:
        """A place in an operand of int32 numbers."""
        return self._place(index, 0, step * 4)

    def memory(self, nbytes: int) -> int:
        """Scratch memory that all matrices share."""
        return self._own(np.zeros(nbytes, np.uint8))

    def elements(self, count: int) -> int:
        """Scratch memory for so many numbers of the matrices' dtype."""
        return self.memory(count * self.dtype.itemsize)

    def beside(self, place: int, offset: int) -> int:
        """A place in :meth:`elements`, so many of them further."""
        base, step = self._places[place]
        return self._place(self._owners[place], base + offset * self.dtype.itemsize, step)

    def _own(self, made: Any) -> int:
        self.keep.append(made)
        return self._place(-1, address(made), 0)

    def _place(self, owner: int, base: int, step: int) -> int:
        self._owners.append(owner)
        self._places.append((base, step))
        return len(self._owners) - 1

    # -- steps ----------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        *arguments: int | str | float | None,
        at: Sequence[int],
        sound: bool = False,
    ) -> None:
        """Call the routine of this name, without its first letter; if ``sound``, not after a fault.

        Arguments are letters, sizes, factors (floats), or None for the next of the places ``at``.
        """
        places, left = [], list(at)
        for a in arguments:
            if a is None:
                places.append(left.pop(0))
                continue
            shared = Shared(a, self.dtype.name if isinstance(a, float) else "int32")
            places.append(self._own(shared.made()))
        assert not left, "a place of the call was not used"
        self._step("try" if sound else "call", places, routine(self.letter + name))

    def copy(self, to: int, source: int, count: int) -> None:
        """Copy so many elements."""
        self._step("copy", [to, source], count * self.dtype.itemsize)

    def turn(self, to: int, source: int, rows: int, columns: int) -> None:
        """Write the transpose of a matrix."""
        self._step("turn", [to, source], rows, columns)

    def add(self, to: int, source: int, count: int, number: int) -> None:
        """Add a number to int32 numbers."""
        self._steps.append(Step("add", (to, source), number=number))
        self._words.append(count)

    def info(self, place: int) -> None:
        """A status that is not 0 is a fault."""
        self._step("info", [place])

    def nan(self, place: int) -> None:
        """A NaN is a fault."""
        self._step("nan", [place])

    def diagonal(self, place: int, n: int) -> None:
        """A 0 on the diagonal of a matrix of ``n`` rows is a fault."""
        self._step("diagonal", [place], n, (n + 1) * self.dtype.itemsize)

    def finite(self, place: int, rows: int, columns: int, triangle: str = "") -> None:
        """A number that is not finite is a fault, in the triangle ``L`` or ``U`` or anywhere."""
        number = ("", "L", "U").index(triangle)
        self._steps.append(Step("finite", (place,), self._name, number))
        self._words += [rows, columns]

    def determinant(self, factors: Sequence[int], results: Sequence[int], n: int) -> None:
        """The determinant, or its sign and the logarithm of its size.

        ``factors`` are what ``getrf`` gave: LU factors, pivots, and the status.
        """
        self._step("determinant", [*factors, *results], n)

    def expm(self, source: int, to: int, n: int) -> None:
        """The exponential of a matrix; NaN if that is not finite."""
        places = [source, to, *(self.elements(n * n) for _ in range(MATRICES))]
        name = self.dtype.name
        for made in (table(name), *(Shared(v).made() for v in ("N", n)),
                     Shared(1.0, name).made(), Shared(0.0, name).made()):  # fmt: skip
            places.append(self._own(made))
        places += [self.memory(4 * n), self.memory(4)]
        self._step("expm", places, n, n * n, routine(self.letter + "gemm"),
                   routine(self.letter + "gesv"))  # fmt: skip

    def void(self, *results: tuple[int, int]) -> None:
        """After a fault of a matrix, NaN for its results: places and their numbers of elements."""
        for i, (place, count) in enumerate(results, 1):
            self._steps.append(Step("void", (place,), self._name, int(i < len(results))))
            self._words.append(count)

    def in_lanes(self, plan: StackPlan, reads: int, slow: Any) -> SequenceLaunch:
        """The launch that has the matrices in the lanes of vectors, instead of steps."""
        tasks = -(-self.count // LANES[plan.work])
        count = min(tasks, threads.threads(self.count * plan.rows**3, _WORK_PER_THREAD))
        run = threads.kernel(stack_ir, plan)
        return SequenceLaunch(self, run, reads, (), slow, (count, tasks))

    def _step(self, kind: str, places: Sequence[int], *words: int) -> None:
        self._steps.append(Step(kind, tuple(places), self._name))
        self._words += words

    # -- the launch -----------------------------------------------------------------------------

    def launch(self, reads: int, slow: Any, native: bool = True) -> SequenceLaunch:
        """The launch, whose first ``reads`` operands are inputs.

        ``slow(inputs, outputs)`` runs where there was a fault: it names the matrix, or finds a
        result in another way, which it does only where ``native`` is false.
        """
        tail = [w for place in self._places for w in place] + self._words
        run = threads.kernel(sequence_ir, self._arrays, tuple(self._owners), tuple(self._steps))
        kind = SequenceLaunch if native else _WithAnotherWay
        return kind(self, run, reads, tail, slow)


class SequenceLaunch(ContiguousLaunch):
    """One compiled call; on a fault, ``slow``."""

    native: Any = ContiguousLaunch.native

    def __init__(
        self, made: Sequenced, run: Any, reads: int, tail: Sequence[int], slow: Any,
        tasks: tuple[int, int] = (1, 1),
    ) -> None:  # fmt: skip
        head = [*tasks, 1, made.count, 0]
        assert len(head) == FIRST_ARRAY
        super().__init__(run, head, reads, made._arrays - reads, FAULT, tail)
        self._keep, self._slow = made.keep, slow

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        """Compute every result."""
        if not all(a.flags.c_contiguous for a in (*inputs, *outputs)):
            self._slow(inputs, outputs)
            return
        words = self._words
        for i, a in enumerate((*inputs[: self._reads], *outputs), self._first):
            words[i] = id(a)
        self._run(words)
        if words[FAULT]:
            words[FAULT] = 0
            self._slow(inputs, outputs)


class _WithAnotherWay(SequenceLaunch):
    """A launch that finds a result after a fault, so that a plan must call it from Python."""

    native = None
