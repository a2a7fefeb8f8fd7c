"""Sequences that lie one behind the other, and the same ones padded to the longest."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast, maximum, minimum
from symdnn.ops.elementwise.comparison import ge, switch


class Packed:
    """The places of sequences, of which number ``i`` is from ``ends[i]`` to ``ends[i + 1]``.

    ``longest`` is the size to which they are padded: a number, or None for that of the longest.
    """

    def __init__(self, what: str, ends: TensorLike, longest: Any = None) -> None:
        v = as_variable(ends)
        if v.type.ndim != 1 or v.type.dtype not in ("int32", "int64"):
            raise TypeMismatch(
                what, "ends of packed sequences as a vector of int32 or int64", v.type
            )
        self.ends = cast(v, "int64")
        self.lengths = self.ends[1:] - self.ends[:-1]
        self.longest = self.lengths.max() if longest is None else longest

    def padded(self, x: Variable) -> Variable:
        """(heads, positions, features) as (sequences, heads, time, features)."""
        steps = arange(self.longest)
        places = self.ends[:-1].dimshuffle(0, "x") + cast(steps, "int64").dimshuffle("x", 0)
        last = maximum(cast(as_variable(dims_of(x)[1]), "int64") - 1, 0)
        return x[:, minimum(places, last)].dimshuffle(1, 0, 2, 3)

    def packed(self, x: Variable, positions: Any, filler: float = 0.0) -> Variable:
        """(sequences, heads, time, ...) as (heads, positions, ...); ``filler`` behind the last."""
        at = cast(arange(positions), "int64")
        behind = ge(at.dimshuffle(0, "x"), self.ends[1:].dimshuffle("x", 0))
        which = minimum(
            behind.sum(axis=1), cast(as_variable(dims_of(self.lengths)[0]), "int64") - 1
        )
        step = minimum(at - self.ends[which], cast(as_variable(dims_of(x)[2]), "int64") - 1)
        rest = range(3, x.type.ndim)
        found = x.dimshuffle(1, 0, 2, *rest)[:, which, step]
        inside = (at < self.ends[-1]).dimshuffle("x", 0, *("x" for _ in rest))
        return switch(inside, found, np.asarray(filler, x.type.numpy))
