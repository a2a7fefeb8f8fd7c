"""Keys and values of earlier positions, kept in buffers that one compiled step extends in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.compile.shared import shared
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.dims import known
from symdnn.graph.traverse import ancestors
from symdnn.graph.typing import Array
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.nn.modules.arguments import positive
from symdnn.nn.modules.module import Module
from symdnn.ops.array.create import arange
from symdnn.ops.array.getitem import set_subtensor
from symdnn.ops.attention.attention import scaled_dot_product_attention
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.core.shape import alloc, dims_of
from symdnn.ops.elementwise.arithmetic import cast, maximum
from symdnn.ops.elementwise.math import exp

__all__ = ["KeyValueCache"]


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of a module: its buffers, what it adds to them, and where."""

    buffers: tuple[Shared, Shared]
    rows: tuple[Variable, Variable]
    length: Variable
    count: Any


class KeyValueCache:
    """Keys and values of ``max_length`` positions of ``batch`` sequences, for decoding.

    Attention modules take it as ``cache=``, and put their keys and values into it. A call attends
    to the positions that are held and, causally, to its own, which :meth:`updates` add. All shapes
    are fixed, so one compiled function makes every step, and the new rows are written into the
    shared buffers in place.

    >>> import symdnn
    >>> import symdnn.tensor as T
    >>> from symdnn import nn
    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True).evaluate()
    >>> cache, x = nn.KeyValueCache(1, 16), T.tensor("float32", (1, 1, 8))
    >>> y = attention(x, x, x, cache=cache)[0]
    >>> step = symdnn.function([x], y, updates=cache.updates(y))
    >>> for position in range(3):
    ...     _ = step(np.ones((1, 1, 8), "float32"))
    >>> cache.length
    3

    A call that would exceed ``max_length`` changes nothing and is an AssertionError, on a GPU up to
    two calls later where nothing is returned to the host.
    """

    def __init__(self, batch: int, max_length: int) -> None:
        positive("KeyValueCache: batch, max_length", batch, max_length)
        self.batch, self.max_length = int(batch), int(max_length)
        #: The number of positions that are held, int64 (1,): a vector lives on a GPU with the
        #: buffers, so that a step needs nothing of the host.
        self.counter: Shared = shared(np.zeros(1, "int64"), "cache.length", shape=(1,))
        self._buffers: dict[Module, tuple[Shared, Shared]] = {}
        self._calls: list[_Call] = []

    def __repr__(self) -> str:
        kept = f"{len(self._buffers)} modules, {self.nbytes:,} bytes"
        return f"KeyValueCache(batch {self.batch}, at most {self.max_length} positions, {kept})"

    @property
    def length(self) -> int:
        """How many positions are held."""
        return int(self.counter.get_value()[0])

    @property
    def nbytes(self) -> int:
        """The memory of all buffers."""
        pairs = (v for pair in self._buffers.values() for v in pair)
        return sum(v.get_value(borrow=True).nbytes for v in pairs)

    def positions(self, count: Any) -> Variable:
        """The positions of the next ``count`` rows, int64 (count,)."""
        return self.counter + arange(count, dtype="int64")

    def reset(self, length: int = 0) -> KeyValueCache:
        """Forget all positions from ``length`` on; returns the cache.

        Raises :class:`~symdnn.errors.InputError` for more positions than are held.
        """
        held = self.length
        if not 0 <= length <= held:
            raise InputError(f"KeyValueCache.reset: length={length}; {held} positions are held")
        self.counter.set_value(np.array([length], "int64"))
        return self

    def held(self, owner: Module) -> tuple[Array, Array]:
        """Copies of the keys and values of a module, (batch, heads, length, features).

        Raises KeyError for a module that was never called with this cache.
        """
        n = self.length
        key, value = self._buffers[owner]
        return key.get_value()[:, :, :n], value.get_value()[:, :, :n]

    def attend(
        self, owner: Module, query: Variable, key: Variable, value: Variable, *,
        scale: float | None = None, softcap: float = 0.0, window: int | None = None,
        dropout_p: float = 0.0, stream: Any = None,
    ) -> Variable:  # fmt: skip
        """Causal attention to the positions that are held and the new ones after them.

        ``query`` is (batch, heads, new positions, features), ``key`` and ``value`` have its heads
        or a divisor of them. ``owner`` is the module whose buffers are meant; a call for a new one
        makes them. ``window=w`` lets a query see its own position and ``w`` before it. The result
        is that of :func:`~symdnn.tensor.nnet.scaled_dot_product_attention` of the whole prefix.

        Raises :class:`~symdnn.errors.TypeMismatch` for other shapes than the buffers'.
        """
        keys, values = self._of(owner, key, value)
        n, count = self._checked(dims_of(key)[2]), dims_of(key)[2]
        options: Any = {
            "scale": scale, "softcap": softcap, "enable_gqa": True, "return_lse": True,
            "dropout_p": dropout_p,
        }  # fmt: skip
        mask = None if window is None else self._in_window(n, dims_of(query)[2], window)
        held = cast(n, "int32")
        parts = [
            scaled_dot_product_attention(
                query, keys, values, mask, key_lengths=alloc(held, self.batch), stream=stream,
                **options,
            ),
            scaled_dot_product_attention(
                query, key, value, causal="top_left", stream=stream,
                window=None if window is None else (window, 0), **options,
            ),
        ]  # fmt: skip
        self._calls.append(_Call((keys, values), (key, value), n, count))
        return _merged(parts)

    def updates(self, *outputs: Variable) -> list[tuple[Shared, Variable]]:
        """The updates of the buffers that these expressions read, for ``function(updates=...)``.

        Raises :class:`~symdnn.errors.InputError` if none was made with this cache, and if a module
        was called twice with it, or with several numbers of positions.
        """
        read = set(ancestors(list(outputs)))
        calls = [c for c in self._calls if all(row in read for row in c.rows)]
        found: dict[Shared, Variable] = {}
        for call in calls:
            for buffer, row in zip(call.buffers, call.rows, strict=True):
                if buffer in found:
                    raise InputError("KeyValueCache.updates: a module was called twice with it")
                found[buffer] = _with_rows(buffer, row, call.length)
        counts = {known(c.count) for c in calls}
        if len(counts) != 1:
            why = "no output was made with this cache"
            if calls:
                why = "calls have several numbers of new positions"
            raise InputError(f"KeyValueCache.updates: {why}")
        found[self.counter] = calls[0].length + calls[0].count
        return list(found.items())

    def _of(self, owner: Module, key: Variable, value: Variable) -> tuple[Shared, Shared]:
        shapes = []
        for what, v in (("key", key), ("value", value)):
            batch, heads, _, features = v.type.shape
            if heads is None or features is None or batch not in (None, self.batch):
                wanted = f"a {what} ({self.batch}, heads, new positions, features) of known sizes"
                raise TypeMismatch("KeyValueCache", wanted, v.type)
            shapes.append((self.batch, heads, self.max_length, features))
        if owner not in self._buffers:
            made = [shared(np.zeros(s, key.type.numpy), shape=s) for s in shapes]
            self._buffers[owner] = (made[0], made[1])
        found = self._buffers[owner]
        for v, s in zip(found, shapes, strict=True):
            if v.type.shape != s or v.type.dtype != key.type.dtype:
                raise TypeMismatch("KeyValueCache", f"keys and values of {v.type}", key.type)
        return found

    def _checked(self, count: Any) -> Variable:
        """The number of positions that are held, if there is room for ``count`` more."""
        fits = (self.counter + count <= self.max_length).all()
        what = f"KeyValueCache: no room for the new positions, at most {self.max_length} are held"
        return Assert(what)(self.counter, fits)

    def _in_window(self, n: Variable, queries: Any, window: int) -> Variable:
        """True for held positions that a query sees, (1, 1, queries, max_length)."""
        at = n + arange(queries, dtype="int64")
        j = as_variable(np.arange(self.max_length, dtype="int64"))
        return j.dimshuffle("x", "x", "x", 0) >= at.dimshuffle("x", "x", 0, "x") - window


def _with_rows(buffer: Shared, rows: Variable, begin: Variable) -> Variable:
    """The buffer with these rows from position ``begin`` on, written to its own memory.

    The positions are an array, so that no value of ``begin`` is needed on the host.
    """
    count = dims_of(rows)[2]
    at = begin if rows.type.shape[2] == 1 else begin + arange(count, dtype="int64")
    return set_subtensor(buffer[:, :, at], rows)


def _merged(parts: list[tuple[Variable, Variable]]) -> Variable:
    """Attention to all keys of results and log-sum-exps of attention to parts of them."""
    (a, la), (b, lb) = parts
    dtype = la.type.dtype
    top = maximum(la, lb)
    wa, wb = exp(la - top), exp(lb - top)
    share = (wa / (wa + wb)).dimshuffle(0, 1, 2, "x")
    wide = cast(b, dtype) + share * (cast(a, dtype) - cast(b, dtype))
    return cast(wide, a.type.dtype)
