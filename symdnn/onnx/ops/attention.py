"""Attention of opset 23 and later as :func:`~symdnn.tensor.nnet.scaled_dot_product_attention`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.elementwise import number
from symdnn.ops.core.shape import dims_of


def heads_apart(x: Variable, count: int) -> Variable:
    """(batch, length, features) as (batch, heads, length, features of a head)."""
    b, s, d = dims_of(x)
    return x.reshape((b, s, count, d // count)).transpose((0, 2, 1, 3))


def heads_joined(y: Variable) -> Variable:
    """(batch, heads, length, features of a head) as (batch, length, features)."""
    b, h, s, d = dims_of(y)
    return y.transpose((0, 2, 1, 3)).reshape((b, s, h * d))


@dataclass(frozen=True)
class _Band:
    """Query ``i`` sees keys from ``i + offset - left`` to ``i + offset + right``; None: all.

    ``offset`` is 0, or a count of keys before the queries: a scalar, or one for each example.
    ``at_end`` says that it is the number of keys less that of queries.
    """

    left: int | None
    right: int | None
    offset: Any = 0
    at_end: bool = False

    @property
    def hides(self) -> bool:
        return self.left is not None or self.right is not None

    @property
    def is_plain(self) -> bool:
        """Whether the op of attention has it as a setting."""
        return not self.hides or self.at_end or (isinstance(self.offset, int) and self.offset == 0)

    def mask(self, queries: Any, keys: Any) -> Variable:
        """Where a query sees a key, (batch or 1, 1, queries, keys)."""
        start = T.as_tensor_variable(self.offset).astype("int64")
        start = start.reshape((1,)) if start.ndim == 0 else start
        at = start.dimshuffle(0, "x", "x", "x") + T.arange(queries, dtype="int64").dimshuffle(
            "x", "x", 0, "x")  # fmt: skip
        key = T.arange(keys, dtype="int64").dimshuffle("x", "x", "x", 0)
        kept = [] if self.right is None else [key <= at + self.right]
        kept += [] if self.left is None else [key >= at - self.left]
        return kept[0] if len(kept) == 1 else kept[0] & kept[1]


def _attention(node: Node) -> Any:
    """By the op of attention, or NotImplemented where only the definition says what is wanted."""
    q, k, v = node.x(0), node.x(1), node.x(2)
    scores_wanted = len(node.wanted) > 3 and node.wanted[3]
    precision = node.kind_attribute("softmax_precision")
    if scores_wanted or (precision == "float64" and q.type.dtype != "float64"):
        return NotImplemented
    flat, dtype = q.ndim == 3, q.type.dtype
    if flat:
        groups = int(node.required("kv_num_heads"))
        q = heads_apart(q, int(node.required("q_num_heads")))
        k, v = heads_apart(k, groups), heads_apart(v, groups)
    band = _band(node, q, k)
    if node.has(4):
        k, v = T.concatenate([node.x(4), k], axis=2), T.concatenate([node.x(5), v], axis=2)
    mask, lengths = _padded(node, k), node.optional(6)
    window, causal = None, None
    if band.hides and band.is_plain:
        causal = "bottom_right" if band.at_end else "top_left" if band.right == 0 else None
        window = (band.left, band.right)
    elif band.hides:
        mask = _both(mask, band.mask(dims_of(q)[2], dims_of(k)[2]))
    y = T.nnet.scaled_dot_product_attention(
        q, k, v, mask, scale=node.attribute("scale") or None, causal=causal, window=window,
        softcap=node.attribute("softcap", 0.0), enable_gqa=True,
        key_lengths=None if lengths is None else lengths.astype("int64"),
    ).astype(dtype)  # fmt: skip
    return [heads_joined(y) if flat else y, k, v]


def _band(node: Node, q: Variable, k: Variable) -> _Band:
    """What ``is_causal`` and the window hide; ``k`` has the keys of this call."""
    left, right = (node.attribute(f"{side}_window_size", -1) for side in ("left", "right"))
    right = 0 if node.attribute("is_causal", 0) else right
    ends = (None if left < 0 else left, None if right < 0 else right)
    queries = dims_of(q)[2]
    if node.has(4):
        same = q.type.shape[2] is not None and q.type.shape[2] == k.type.shape[2]
        return _Band(*ends, dims_of(node.x(4))[2], at_end=same and ends[1] == 0)
    if node.has(6):
        return _Band(*ends, node.x(6).astype("int64") - queries)
    return _Band(*ends)


def _padded(node: Node, k: Variable) -> Variable | None:
    """The mask, with keys beyond its end hidden (from opset 24 on it may be shorter)."""
    if not node.has(3):
        return None
    mask, sizes = node.x(3), (node.x(3).type.shape[-1], k.type.shape[2])
    if node.version < 24 or (None not in sizes and sizes[0] == sizes[1]):
        return mask
    lead = dims_of(mask)[:-1]
    fill = np.asarray(False) if mask.type.dtype == "bool" else number(mask, -np.inf)
    more = T.alloc(fill, *lead, dims_of(k)[2] - dims_of(mask)[-1])
    return T.concatenate([mask, more], axis=mask.ndim - 1)


def _both(mask: Variable | None, seen: Variable) -> Variable:
    """A mask that hides what either of two hides."""
    if mask is None:
        return seen
    whole = mask.dimshuffle(*("x",) * (4 - mask.ndim), *range(mask.ndim))
    if mask.type.dtype == "bool":
        return whole & seen
    return T.switch(seen, whole, number(whole, -np.inf))


OPS: dict[str, Any] = {"Attention": _attention}
