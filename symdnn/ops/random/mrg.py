"""Uniform numbers of the generator MRG31k3p, in streams that are drawn in turn.

L'Ecuyer and Touzin, "Fast combined multiple recursive generators with multipliers of the form
a = +-2^q +-2^r", Winter Simulation Conference 2000: two recurrences of order three,

    x_n = 2^22 x_(n-2) + (2^7 + 1) x_(n-3)       modulo m1 = 2^31 - 1
    y_n = 2^15 y_(n-1) + (2^15 + 1) y_(n-3)      modulo m2 = 2^31 - 21069

and the numbers ``(x_n - y_n mod m1) / 2^31``, where a difference of 0 counts as m1. A state is an
int32 matrix with a row ``(x_n, x_(n-1), x_(n-2), y_n, y_(n-1), y_(n-2))`` for each stream; element
``i`` of a draw is the next number of stream ``i`` modulo the number of streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from symdnn.errors import DataError, NdimMismatch, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.op import Host, Shapes, Types
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.random.random import RandomOp, dims_and_static

M1, M2 = 2147483647, 2147462579
#: The matrices of one step of the recurrences.
_STEPS = (((0, 1 << 22, 129), (1, 0, 0), (0, 1, 0)), ((1 << 15, 0, 32769), (1, 0, 0), (0, 1, 0)))
_FOLD = 21069  # 2^31 modulo M2


@lru_cache
def _powers(log2: int) -> tuple[Array, Array]:
    """The two matrices of ``2**log2`` steps."""
    found = []
    for rows, m in zip(_STEPS, (M1, M2), strict=True):
        power = np.array(rows, object)
        for _ in range(log2):
            power = power @ power % m
        found.append(power.astype(np.int64))
    return found[0], found[1]


def jumped(states: Array, log2: int) -> Array:
    """The states ``2**log2`` steps later."""
    parts = []
    for power, m, at in zip(_powers(log2), (M1, M2), (0, 3), strict=True):
        now = states[..., at : at + 3].astype(np.int64)
        parts.append((now[..., None, :] * power % m).sum(-1) % m)
    return np.concatenate(parts, -1).astype(np.int32)


def spaced(state: Array, streams: int, log2: int) -> Array:
    """The states of ``streams`` streams, of which each begins ``2**log2`` steps after the last."""
    found = np.asarray(state, np.int32).reshape(1, 6)
    while len(found) < streams:
        found = np.concatenate([found, jumped(found, log2)])[:streams]
        log2 += 1
    return found


def step(rows: Sequence[Array]) -> list[Array]:
    """The six numbers of a state after one step; each is int64."""
    x1, x2, x3, y1, y2, y3 = rows
    x = (x2 << 22) + 129 * x3
    x = (x & M1) + (x >> 31)
    y = (y1 << 15) + 32769 * y3
    y = (y & M1) + _FOLD * (y >> 31)
    return [x - M1 * (x >= M1), x1, x2, y - M2 * (y >= M2), y1, y2]


def uniform_of(x: Array, y: Array, dtype: str) -> Array:
    """The numbers of the two recurrences' last values, as Theano rounds them to each dtype."""
    z = x - y + M1 * (x <= y)
    if dtype == "float16":
        found: Array = ((z & 0x7FFF) + 1) * np.float64(np.float16(3.0458e-05))
        return found.astype(np.float16)
    if dtype == "float32":  # below 1, even where z is rounded up to 2^31
        found = z.astype(np.float32) * np.nextafter(np.float32(2.0**-31), np.float32(0))
        return found
    found = z * 2.0**-31
    return found


class MrgUniform(RandomOp):
    """Uniform values of (0, 1), the next ones of each stream in turn."""

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        state, _, dims = self.split(inputs)
        if state.dtype != "int32" or state.ndim != 2 or state.shape[1] not in (None, 6):
            raise TypeMismatch(self, "a state, an int32 matrix of 6 columns", state)
        if len(dims) != len(self.static):
            raise NdimMismatch(self, f"{len(self.static)} dimensions", list(dims))
        return TensorType(self.dtype, self.static), state

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [tuple(host[i] for i in self.host_inputs), shapes[0]]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        state, _, dims = self.split(inputs)
        shape = tuple(int(d) for d in dims)
        if any(d < 0 for d in shape):
            raise DataError(f"{self}: a size cannot be negative, got {shape}")
        if not len(state):
            raise DataError(f"{self}: the state has no streams")
        size = int(np.prod(shape, dtype=np.int64))
        out = np.empty(size, TensorType(self.dtype).numpy)
        rounds, rest = divmod(size, len(state))
        rows = list(state.astype(np.int64).T)
        for values in np.split(out[: size - rest], rounds) if rounds else ():
            rows = step(rows)
            values[:] = uniform_of(rows[0], rows[3], self.dtype)
        if rest:
            further = step([row[:rest] for row in rows])
            out[size - rest :] = uniform_of(further[0], further[3], self.dtype)
            rows = [np.append(new, old[rest:]) for new, old in zip(further, rows, strict=True)]
        return out.reshape(shape), np.stack(rows, 1).astype(np.int32)


def mrg_uniform(state: TensorLike, size: Sequence[Dim], dtype: str) -> tuple[Variable, Variable]:
    """(uniform values of (0, 1), next state); float16, float32 or float64."""
    if dtype not in ("float16", "float32", "float64"):
        raise TypeMismatch("mrg_uniform", "float16, float32 or float64", dtype)
    dims, static = dims_and_static(size)
    return MrgUniform(dtype, static)(state, *dims)
