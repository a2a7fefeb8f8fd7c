"""What attention does with its scores: which are seen, and settings that all its ops share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, Shape, same_dim
from symdnn.graph.op import Shapes, Types
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array

#: The operands after query, key and value, in this order, each with what is wanted of it.
EXTRAS: Mapping[str, str] = {
    "mask": "a bool or float mask of 4 dimensions that broadcasts over the scores",
    "key_lengths": "an integer vector, an entry for each sequence",
    "query_lengths": "an integer vector, an entry for each sequence",
    "state": "a random state",
    "rate": "a float32 scalar",
}


@dataclass(frozen=True)
class Scores:
    """Settings of the scores ``scale * query . key``.

    ``scale=None`` stands for ``1 / sqrt(features)``. ``softcap=c`` bounds them as ``c tanh(s / c)``
    before a mask is added; 0 leaves them. Query ``i`` sees key ``j`` where
    ``i + shift - left <= j <= i + shift + right``; None is no bound, so a causal mask is
    ``right=0``. ``shift`` is 0, or with ``bottom_right`` the number of keys less that of queries,
    so that the last query is beside the last key. ``extras`` names the operands after query, key
    and value, in the order of :data:`EXTRAS`.
    """

    scale: float | None = None
    softcap: float = 0.0
    left: int | None = None
    right: int | None = None
    bottom_right: bool = False
    extras: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.softcap < 0 or any(b is not None and b < 0 for b in (self.left, self.right)):
            raise OptionError(f"attention: wanted a softcap and a window of at least 0, got {self}")
        if self.extras != tuple(e for e in EXTRAS if e in self.extras):
            raise OptionError(f"attention: extras={self.extras}; wanted some of {(*EXTRAS,)}")

    def __str__(self) -> str:
        ends = (
            "" if self.left is None and self.right is None else f"window {self.left}..{self.right}"
        )
        last = "from the last key" if self.bottom_right else ""
        scale = "" if self.scale is None else f"scale {self.scale:g}"
        cap = f"softcap {self.softcap:g}" if self.softcap else ""
        return ", ".join(filter(None, [ends, last, scale, cap, *self.extras])) or "all scores"

    @property
    def banded(self) -> bool:
        """Whether a window or a causal mask hides scores."""
        return self.left is not None or self.right is not None

    def named(self, extras: Sequence[Any]) -> dict[str, Any]:
        """The operands after query, key and value by name."""
        return dict(zip(self.extras, extras, strict=True))

    def check(self, op: Any, types: Sequence[TensorType]) -> tuple[Any, ...]:
        """(batch, heads, queries, keys) of the scores; raises unless all operands fit."""
        q, k, v = types[:3]
        extras = self.named(types[3:])
        if any(t.ndim != 4 or not t.is_float or t.dtype != q.dtype for t in (q, k, v)):
            raise TypeMismatch(
                op, "query, key and value (batch, heads, time, features) of one float dtype",
                [q, k, v],
            )  # fmt: skip
        batch = _agreed(op, "batch", q.shape[0], k.shape[0], v.shape[0])
        groups = _agreed(op, "heads of keys and values", k.shape[1], v.shape[1])
        keys = _agreed(op, "number of keys and of values", k.shape[2], v.shape[2])
        _agreed(op, "features of queries and keys", q.shape[3], k.shape[3])
        heads, queries = q.shape[1:3]
        if heads is not None and groups is not None and not _shares(heads, groups):
            raise ShapeMismatch(
                op, "heads of the query that are a multiple of those of key and value",
                f"{heads} and {groups}",
            )  # fmt: skip
        wanted = batch, heads, queries, keys
        for name, t in extras.items():
            if not _fits(name, t, wanted):
                raise TypeMismatch(op, EXTRAS[name], t)
        return wanted

    def check_sizes(self, op: Any, types: Types, shapes: Shapes) -> Shape:
        """The sizes of the scores; raises :class:`ShapeMismatch` unless the operands agree."""
        q, k, v = shapes[:3]

        def same(what: str, *dims: Dim) -> Dim:
            return same_dim(op, dims, f"an equal {what}", [tuple(s) for s in shapes[:3]])

        batch, keys = same("batch", q[0], k[0], v[0]), same("number of keys", k[2], v[2])
        same("number of features", q[3], k[3])
        groups = same("number of heads of keys and values", k[1], v[1])
        if isinstance(groups, int) and isinstance(q[1], int) and not _shares(q[1], groups):
            raise ShapeMismatch(
                op, "heads of the query that are a multiple of those of key and value",
                f"{q[1]} and {groups}",
            )  # fmt: skip
        scores = batch, q[1], q[2], keys
        for name, t, s in zip(self.extras, types[3:], shapes[3:], strict=True):
            if name == "mask":
                for m, dim, size in zip(t.shape, s, scores, strict=True):
                    if m != 1:
                        same_dim(
                            op,
                            (dim, size),
                            "a mask of the scores' shape (only static 1s broadcast)",
                            [tuple(s), scores],
                        )
            elif name in ("key_lengths", "query_lengths"):
                same_dim(op, (s[0], batch), "a length for each sequence", [tuple(s), scores])
        return scores


def _shares(heads: int, groups: int) -> bool:
    """Whether equal numbers of query heads share each head of keys and values."""
    return heads == groups or (bool(groups) and heads % groups == 0)


def _agreed(op: Any, what: str, *sizes: int | None) -> int | None:
    known = {s for s in sizes if s is not None}
    if len(known) > 1:
        raise ShapeMismatch(op, f"an equal {what}", ", ".join(map(str, sizes)))
    return known.pop() if known else None


def _fits(name: str, t: TensorType, scores: Sequence[int | None]) -> bool:
    if name == "mask":
        agree = t.ndim == 4 and all(
            m is None or s is None or m in (1, s) for m, s in zip(t.shape, scores)
        )
        return agree and (t.dtype == "bool" or t.is_float)
    if name == "state":
        return t.dtype == "uint64" and t.ndim == 1
    if name == "rate":
        return t.dtype == "float32" and t.ndim == 0
    return t.ndim == 1 and t.dtype in ("int32", "int64")


def visible(how: Scores, sizes: tuple[Any, Any], extras: Mapping[str, Any], lib: Any) -> Any:
    """Where a query sees a key, to broadcast over the scores; None where all do.

    ``lib`` has ``arange`` of int32 and ``axis(v, *dims)``, which puts a vector's dimension where
    ``dims`` has a 0: the same rule makes arrays of NumPy and expressions. ``sizes`` are the numbers
    of queries and keys. A float mask hides where it is -inf.
    """
    queries, keys = sizes
    found = []
    i, j = lib.axis(lib.arange(queries), "x", "x", 0, "x"), lib.axis(lib.arange(keys), 0)
    ends = {
        n: lib.axis(lib.int32(extras[n]), 0, "x", "x", "x")
        for n in ("query_lengths", "key_lengths") if n in extras
    }  # fmt: skip
    if how.banded:
        last = (
            ends.get("key_lengths", lib.int32(keys)),
            ends.get("query_lengths", lib.int32(queries)),
        )
        at = i + (last[0] - last[1]) if how.bottom_right else i
        if how.right is not None:
            found.append(j <= at + np.int32(how.right))
        if how.left is not None:
            found.append(j >= at - np.int32(how.left))
    if "key_lengths" in ends:
        found.append(j < ends["key_lengths"])
    if "query_lengths" in ends:
        found.append(i < ends["query_lengths"])
    mask = extras.get("mask")
    if mask is not None:
        found.append(mask if lib.is_bool(mask) else mask > lib.lowest(mask))
    out = None
    for each in found:
        out = each if out is None else out & each
    return out


def hides_rows(how: Scores, same_length: bool) -> bool:
    """Whether a query may see no key at all, or not be known to see one."""
    causal_only = set(how.extras) <= {"state", "rate"} and (same_length or not how.bottom_right)
    return not causal_only or how.left is not None


class OfNumpy:
    """Arrays for :func:`visible`."""

    @staticmethod
    def arange(n: int) -> Array:
        """0 to n - 1."""
        return np.arange(n, dtype=np.int32)

    @staticmethod
    def int32(v: Any) -> Any:
        """As int32."""
        return np.asarray(v).astype(np.int32)

    @staticmethod
    def axis(v: Array, *dims: Any) -> Array:
        """The vector along the dimension that is 0."""
        return v.reshape([-1 if d == 0 else 1 for d in dims])

    @staticmethod
    def is_bool(v: Array) -> bool:
        """Whether it is a bool mask."""
        return v.dtype == bool

    @staticmethod
    def lowest(v: Array) -> Any:
        """-inf."""
        return -np.inf
