"""The structure of a generated reduction: what is reduced, and how operands are swept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.gpu.codegen.loop_source import Move
from symdnn.ops.nest.monoid import Monoid

__all__ = [
    "BLOCK_THREADS", "WITH_BEGIN", "Finish", "Reducer", "Source", "Sweep", "counts_elements",
]  # fmt: skip

BLOCK_THREADS = 256
#: Kinds with the methods ``begin``, which takes a thread's first element and the number of its
#: elements, and ``settle``, which runs after the last one.
WITH_BEGIN = frozenset({"Moments"})


@dataclass(frozen=True)
class Reducer:
    """A kind of reduction, the dtypes of its state and its result.

    The kind is a struct of ``reduce.cuh``, or the name of a monoid, whose struct is printed.
    """

    kind: str
    work: str
    out: str
    monoid: Monoid | None = None


def counts_elements(reducers: Sequence[Reducer]) -> bool:
    """Whether threads have to know how many elements they take, so that vectors are whole."""
    return any(r.kind in WITH_BEGIN for r in reducers)


@dataclass(frozen=True)
class Source:
    """The access pattern of an input in a vectorised sweep.

    ``dense``: its stride along the vector is 1, else 0, one element for the whole vector.
    ``fixed``: it does not move along reduced dimensions, so it is read once per output.
    """

    dense: bool
    fixed: bool


@dataclass(frozen=True)
class Sweep:
    """The structure of a reduction.

    ``kept`` and ``reduced`` are the numbers of dimensions after merging. With ``rows`` neighbouring
    threads read neighbouring elements of one output, else the same element of neighbouring outputs.
    ``wide`` counts in 64 bits. With ``sources`` a thread reads vectors of ``width`` elements: along
    the last reduced dimension, or with ``across`` along the last kept one. ``resident`` is the
    number of blocks that should fit on a multiprocessor. ``tail`` is the number of elements of a
    row's last vector, 0 if it is whole; then there is one reduced dimension. ``written`` is the
    input whose strides arrays have that get results which are not reduced; -1: there are none. Of
    narrow vectors a thread reads ``ahead`` times as many at a time. ``loose`` lines begin anywhere
    in memory. Vectors of kept elements do, too, and the last one ends with its line: it has some of
    the one before. Those of a row are aligned, and the first and last one have elements of others.
    With ``warps`` the lanes of a row are in one warp, and rows are not cut. ``moves`` are those of
    each operand by index arrays, which are the last ``inputs``.
    """

    inputs: tuple[str, ...]
    kept: int
    reduced: int
    rows: bool
    wide: bool
    width: int = 1
    across: bool = False
    sources: tuple[Source, ...] = ()
    resident: int = 1
    tail: int = 0
    written: int = -1
    ahead: int = 1
    loose: bool = False
    warps: bool = False
    moves: tuple[tuple[Move, ...], ...] = ()

    @property
    def operands(self) -> range:
        """The numbers of the inputs that are no index arrays."""
        return range(len(self.moves) or len(self.inputs))

    def move(self, i: int, n: int) -> tuple[int, Move]:
        """The input that is index array ``n`` of an operand, and the move by it."""
        return len(self.moves) + self.moves[i][n].array, self.moves[i][n]

    def moved_late(self, i: int) -> list[int]:
        """The index arrays of an operand that move it along reduced dimensions."""
        count = len(self.moves[i]) if self.moves else 0
        return [n for n in range(count) if not self.sources[self.move(i, n)[0]].fixed]

    @property
    def edges(self) -> bool:
        """Whether the first and the last vector of a row have elements of others."""
        return self.loose and not self.across

    @property
    def batch(self) -> int:
        """Vectors that a thread reads before it uses them, to keep enough loads in flight."""
        moving = sum(not self.sources[i].fixed for i in self.operands if self.sources)
        some = {0: 1, 1: 4, 2: 2, 3: 2}.get(moving, 1) * (2 if self.across and moving else 1)
        return some * self.ahead // (2 if self.loose and self.across and moving else 1)


@dataclass(frozen=True)
class Finish:
    """The last computation of each output from a reduction's state, if it is not only its result.

    ``lines`` are statements in CUDA C. They have the state ``s``, the output's index ``at``,
    pointers ``p.z0``, ... to further inputs (index ``at * p.z0_s``), numbers ``p.c0``, ... and
    pointers ``p.y0``, ... to outputs.
    """

    lines: tuple[str, ...]
    input_dtypes: tuple[str, ...]
    numbers: int
    output_dtypes: tuple[str, ...]
