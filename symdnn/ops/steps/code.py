"""What the lowering of one loop shares: its memory, and values by variable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from symdnn.graph.type import dtype_name, numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram, text_of_number
from symdnn.ops.steps.complex_numbers import part_dtypes, parts
from symdnn.ops.steps.statements import Map, Statement, View, dense

#: Bytes of all buffers of a loop at most: they should stay in the first caches.
MAX_BYTES = 1 << 20


class NotLowered(Exception):
    """A loop has no statements; the reason is the text."""


@dataclass(frozen=True)
class Role:
    """What an array of the caller is: ``kind`` and the number among those.

    Kinds: ``input`` of the scan; ``now``, the last values of a state, read before the steps and
    written after them; ``history`` of a state; ``collected`` values; ``constant``.
    """

    kind: str
    number: int
    value: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class Given:
    """An integer scalar whose value is read only where a size depends on it."""

    view: View
    value: int
    number: int


class Code:
    """Arrays, buffers and names of one program, whose buffers have ``most_bytes``."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._most_bytes = most_bytes
        self.roles: list[Role] = []
        self.buffers: list[int] = []
        #: Statements that run once, before the steps.
        self.before: list[Statement] = []
        #: Numbers of the scan's inputs whose values the program depends on, with the values.
        self.values: dict[int, int] = {}
        self._names = 0
        self._copies: dict[View, View] = {}

    def name(self, kind: str) -> str:
        """A name that is used once."""
        self._names += 1
        return f"{kind}{self._names}"

    def array(self, kind: str, number: int, dtype: str, shape: Sequence[int],
              steps: Sequence[int], value: Any = None) -> View:  # fmt: skip
        """An array of the caller."""
        self.roles.append(Role(kind, number, value))
        return View(f"a{len(self.roles) - 1}", dtype, tuple(shape), tuple(steps))

    def constant(self, value: Any) -> View:
        """A constant: a literal if all its elements are one number."""
        data = np.ascontiguousarray(value).reshape(np.shape(value))
        dtype = dtype_name(data.dtype)
        if data.dtype.kind != "c" and data.tobytes() == data.reshape(-1)[:1].tobytes() * data.size:
            text = text_of_number(data.reshape(-1)[0], dtype)
            return View("", dtype, data.shape, (0,) * data.ndim, literal=text)
        return self.array("constant", len(self.roles), dtype, data.shape, data.strides, data)

    def buffer(self, dtype: str, shape: Sequence[int]) -> View:
        """New memory of the program, in C order."""
        size = int(numpy_dtype(dtype).itemsize)
        self.buffers.append(size * prod(shape))
        if sum(self.buffers) > self._most_bytes:
            raise NotLowered(f"its values have more than {self._most_bytes} bytes")
        at = len(self.buffers) - 1
        return View(f"b{at}", dtype, tuple(shape), dense(shape, size))

    def before_all(self, view: View, order: Sequence[int]) -> View:
        """A copy, made before the steps, whose memory has the dimensions in this order."""
        if view not in self._copies:
            there = self.buffer(view.dtype, [view.shape[d] for d in order])
            back = sorted(range(len(order)), key=lambda d: order[d])
            self._copies[view] = there.order(back)
            self.before += same(self._copies[view], view)
        return self._copies[view]


def same(target: View, source: View) -> list[Statement]:
    """The statements that copy ``source``, which broadcasts, to ``target``."""
    if target == source or 0 in target.shape:
        return []
    dtypes = part_dtypes(source.dtype)
    program = ScalarProgram(dtypes, (), tuple(range(len(dtypes))))
    return [Map(program, target.shape, parts([source.spread(target.shape)]), parts([target]))]
