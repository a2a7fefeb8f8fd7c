"""Statements on small arrays in memory: what a loop of small steps does, for any printer.

All sizes are numbers. A :class:`View` says where the elements of an array are; a statement reads
and writes views. The views that one statement writes overlap with those that it reads in no
element, or they are the same elements at the same places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.nest.nest import Fold


def dense(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The steps of an array whose elements are in C order, in bytes."""
    return tuple(itemsize * prod(shape[d + 1 :]) for d in range(len(shape)))


@dataclass(frozen=True)
class View:
    """Elements of a memory: ``steps`` are bytes from one element to the next along each dimension.

    ``base`` names the memory: ``a0`` an array of the caller, ``b0`` a buffer of the program; empty
    for one number, ``literal``, that is in no memory. Element 0 is ``offset`` bytes from its
    beginning, and so many more for each of ``moves``, pairs of an index's name and a factor.
    """

    base: str
    dtype: str
    shape: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    offset: int = 0
    moves: tuple[tuple[str, int], ...] = ()
    literal: str = ""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(numpy_dtype(self.dtype).itemsize)

    @property
    def is_dense(self) -> bool:
        """Whether the elements are in C order without gaps."""
        wanted = dense(self.shape, self.itemsize)
        return bool(self.base) and all(
            n == 1 or a == b for n, a, b in zip(self.shape, self.steps, wanted, strict=True)
        )

    def moved(self, name: str, factor: int) -> View:
        """So many bytes further for each unit of an index."""
        return replace(self, moves=(*self.moves, (name, factor))) if factor else self

    def spread(self, shape: Sequence[int]) -> View:
        """Broadcast to a shape of as many dimensions or more."""
        lead = len(shape) - len(self.shape)
        own = zip(self.shape, self.steps, shape[lead:], strict=True)
        steps = (*[0] * lead, *(s if n == m else 0 for n, s, m in own))
        return replace(self, shape=tuple(shape), steps=steps)

    def order(self, axes: Sequence[int]) -> View:
        """With these dimensions, in this order."""
        return replace(
            self,
            shape=tuple(self.shape[d] for d in axes),
            steps=tuple(self.steps[d] for d in axes),
        )


@dataclass(frozen=True)
class Map:
    """A scalar program for each element; all views have ``shape``."""

    program: ScalarProgram
    shape: tuple[int, ...]
    reads: tuple[View, ...]
    writes: tuple[View, ...]


@dataclass(frozen=True)
class Folding:
    """A fold over the axes ``along`` of ``sizes``: :class:`~symdnn.ops.nest.nest.Nest` on views.

    All views have the shape ``sizes``, with steps of 0 along axes that they lack.
    """

    fold: Fold
    sizes: tuple[int, ...]
    along: tuple[int, ...]
    reads: tuple[View, ...]
    writes: tuple[View, ...]


@dataclass(frozen=True)
class Product:
    """Products of two stacks of matrices (s, m, k) (s, k, n), ``y`` dense along n."""

    x: View
    y: View
    out: View


@dataclass(frozen=True)
class Index:
    """Defines the index ``name``: the integer in ``view``, counted from the end if it is negative.

    Out of ``size`` entries it fails, unless it is known to be one of them (not ``checked``).
    """

    name: str
    view: View
    size: int
    checked: bool = True


@dataclass(frozen=True)
class Check:
    """Fails where the number in ``view`` is zero."""

    view: View


@dataclass(frozen=True)
class Branch:
    """One of two blocks, by whether the number in ``condition`` is not zero."""

    condition: View
    yes: tuple[Statement, ...]
    no: tuple[Statement, ...]


@dataclass(frozen=True)
class Repeat:
    """``body`` for each value of the index ``name``: from 0 to below ``count``.

    After ``body`` the block ``after`` moves states on, and the loop ends where the number in
    ``until`` is not zero. The number of steps goes to ``done``. Without ``count`` the caller gives
    the first index and the last. It fails after ``most`` steps, if there are more.
    """

    name: str
    count: int | View | None
    body: tuple[Statement, ...]
    after: tuple[Statement, ...]
    until: View | None = None
    done: View | None = None
    most: int | None = None


Statement = Map | Folding | Product | Index | Check | Branch | Repeat


@dataclass(frozen=True)
class LoopProgram:
    """A loop, of which a stretch of steps runs at a time. ``buffers`` are sizes in bytes.

    ``before`` and ``after`` run around each stretch, and between ``before`` and the steps
    ``begin`` for the first stretch, ``resume`` for others.
    """

    arrays: int
    buffers: tuple[int, ...]
    before: tuple[Statement, ...]
    begin: tuple[Statement, ...]
    resume: tuple[Statement, ...]
    loop: Repeat
    after: tuple[Statement, ...]

    def statements(self) -> Iterator[Statement]:
        """All statements, also those inside of others."""
        around = (*self.before, *self.begin, *self.resume)
        yield from _within((*around, self.loop, *self.after))

    @property
    def may_fail(self) -> bool:
        """Whether a check or an index may fail, or a loop may have too many steps."""
        return any(map(_may_fail, self.statements()))


def _may_fail(s: Statement) -> bool:
    if isinstance(s, Repeat):
        return s.most is not None
    return isinstance(s, Check) or (isinstance(s, Index) and s.checked)


def _within(block: Sequence[Statement]) -> Iterator[Statement]:
    for s in block:
        yield s
        if isinstance(s, Branch):
            yield from _within((*s.yes, *s.no))
        elif isinstance(s, Repeat):
            yield from _within((*s.body, *s.after))


def programs_of(program: LoopProgram) -> Iterator[ScalarProgram]:
    """All scalar programs, for a printer that must have code for each instruction."""
    for s in program.statements():
        if isinstance(s, Map):
            yield s.program
        elif isinstance(s, Folding):
            yield from s.fold.programs


def bounded(block: Sequence[Statement], work: int) -> tuple[Statement, ...]:
    """The statements, with a bound on the steps of loops of unknown length, by their work."""
    found: list[Statement] = []
    for s in block:
        if isinstance(s, Branch):
            s = replace(s, yes=bounded(s.yes, work), no=bounded(s.no, work))
        elif isinstance(s, Repeat):
            own = max(1, work_of((*s.body, *s.after)))
            if not isinstance(s.count, int):
                s = replace(s, most=max(_FEWEST_STEPS, work // own))
            times = s.count if isinstance(s.count, int) else _FEWEST_STEPS
            s = replace(s, body=bounded(s.body, max(1, work // max(1, times))))
        found.append(s)
    return tuple(found)


#: Steps of a loop of unknown length that may be done at once, whatever their work.
_FEWEST_STEPS = 64
#: Numbers that a vector has, about: work is counted in additions of vectors.
_LANES = 8


def work_of(block: Sequence[Statement]) -> int:
    """The work of statements, in additions of vectors; of a loop of unknown length, of one step."""
    return sum(map(_work, block))


def _work(s: Statement) -> int:
    if isinstance(s, Map):
        return 1 + (1 + s.program.cost) * prod(s.shape) // _LANES
    if isinstance(s, Folding):
        each = 1 + sum(p.cost for p in s.fold.programs)
        return 1 + each * prod(s.sizes) // 2
    if isinstance(s, Product):
        return 1 + prod(s.x.shape) * s.y.shape[2] // _LANES
    if isinstance(s, Branch):
        return 1 + max(work_of(s.yes), work_of(s.no))
    if isinstance(s, Repeat):
        times = s.count if isinstance(s.count, int) else 1
        return 1 + times * work_of((*s.body, *s.after))
    return 1
