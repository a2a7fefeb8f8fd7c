"""Attention of ``com.microsoft``: of one, of several heads, of groups, with caches of keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.attention import heads_apart, heads_joined
from symdnn.onnx.ops.elementwise import number
from symdnn.onnx.ops.microsoft.known import known
from symdnn.onnx.ops.norms import rms_norm
from symdnn.onnx.ops.quantize import dequantized, dequantized_columns
from symdnn.ops.core.shape import dims_of


def _padding_mask(node: Node, i: int, keys: Any, q: Variable) -> Variable | None:
    """What is added to scores of keys that are masked out: a mask, or ends, of each example.

    A vector of as many entries as the batch has ends; one of twice as many has ends and starts;
    another one has ends first.
    """
    if not node.has(i):
        return None
    mask = node.x(i)
    value = number(q, node.attribute("mask_filter_value", -10000.0))
    if mask.ndim == 1:
        at = T.arange(keys, dtype="int64").dimshuffle("x", 0)
        ends, *starts = (v.astype("int64").dimshuffle(0, "x") for v in _bounds(node, mask, q))
        keep = at < ends
        keep = keep & (at >= starts[0]) if starts else keep
    else:
        keep = T.neq(mask, 0)
    patterns: dict[int, list[Any]] = {2: [0, "x", "x", 1], 3: [0, "x", 1, 2]}
    if keep.ndim not in patterns:
        raise node.error(f"a mask of {keep.ndim} dimensions: wanted 1 to 3")
    return T.switch(keep.dimshuffle(*patterns[keep.ndim]), number(q, 0), value)


def _bounds(node: Node, mask: Variable, q: Variable) -> Iterator[Variable]:
    """The ends of each example, and the starts if there are some."""
    (names, given), (of_batch, batch) = (
        ((t.names or (None,))[0], t.shape[0]) for t in (mask.type, q.type)
    )
    if (given is None or batch is None) and (names is None or names != of_batch):
        what = "the length of the mask"
        given, batch = (int(node.settled(dims_of(v)[0], what)) for v in (mask, q))
    if given == batch:
        yield mask
        return
    assert batch is not None, "its size is settled"
    yield mask[:batch]
    if given == 2 * batch:
        yield mask[batch:]


def _both(bias: Variable | None, more: Variable | None) -> Variable | None:
    return bias if more is None else more if bias is None else bias + more


def _attention(node: Node) -> list[Variable | None]:
    bias = node.optional(2)
    y = T.dot(node.x(), node.x(1))
    return _projected(node, y if bias is None else y + bias, node.x(1), (3, 4, 5))


def _quantised_attention(node: Node) -> list[Variable | None]:
    """Of a product of codes."""
    x = dequantized(node.x(), node.x(3), node.optional(6), None)
    w = dequantized_columns(node.x(1), node.x(4), node.optional(7))
    return _projected(node, T.dot(x, w) + node.x(2), w, (5, 8, 9))


def _projected(node: Node, y: Variable, w: Variable, places: tuple[int, int, int]) -> list[Any]:
    """Attention of queries, keys and values side by side; inputs mask, past and bias by place."""
    mask, past_place, bias_place = places
    heads = int(node.required("num_heads"))
    given: Any = node.attribute("qkv_hidden_sizes")
    total = w.type.shape[1]
    if total is None:
        total = int(node.settled(dims_of(w)[1], "the number of features"))
    sizes: list[int] = given or [total // 3] * 3
    ends = np.cumsum([0, *sizes])
    q, k, v = (heads_apart(y[:, :, int(a) : int(b)], heads) for a, b in pairwise(ends))
    causal = "bottom_right" if node.attribute("unidirectional", 0) else None
    if node.has(past_place):
        past = node.x(past_place)
        k, v = (T.concatenate([past[i], t], axis=2) for i, t in enumerate((k, v)))
    present = T.stack([k, v]) if len(node.wanted) > 1 else None
    bias = _both(_padding_mask(node, mask, dims_of(k)[2], q), node.optional(bias_place))
    return [_attend(node, q, k, v, bias, causal=causal), present]


def _attend(node: Node, q: Variable, k: Variable, v: Variable, *args: Any, **options: Any) -> Any:
    scale = node.attribute("scale") or None
    y = T.nnet.scaled_dot_product_attention(q, k, v, *args, scale=scale, **options)
    return heads_joined(y)


def _multi_head(node: Node) -> list[Variable | None]:
    heads = int(node.required("num_heads"))
    q, k, v = _separate(node, heads)
    causal = ("bottom_right" if node.has(6) else "top_left") if _is_causal(node) else None
    if node.has(8):
        k, v, present = _in_buffers(node, k, v)
    else:
        if node.has(6):
            k, v = T.concatenate([node.x(6), k], axis=2), T.concatenate([node.x(7), v], axis=2)
        present = [k, v]
    bias = _both(_padding_mask(node, 4, dims_of(k)[2], q), node.optional(5))
    return [_attend(node, q, k, v, bias, causal=causal), *present]


def _decoder_attention(node: Node) -> list[Variable | None]:
    """``MultiHeadAttention`` of one new token, with its inputs in another order.

    Keys of four dimensions are those of an encoder, which no call changes.
    """
    given = [node.inputs[i] if node.has(i) else None for i in (0, 1, 2, 10, 3, 4, 5, 6, 7)]
    if not node.attribute("past_present_share_buffer", 0):
        given[8] = None
    y, *present = _multi_head(replace(node, inputs=given))
    of_encoder = node.has(1) and node.x(1).ndim == 4
    return [y, *([None, None] if of_encoder else present)]


def _is_causal(node: Node) -> bool:
    return bool(node.attribute("unidirectional", 0))


def _separate(node: Node, heads: int) -> list[Variable]:
    """(batch, heads, length, features) of queries, keys and values, with their bias."""
    q = node.x()
    if q.ndim == 5 or (node.has(1) and node.x(1).ndim == 5):
        if node.has(3):
            raise node.error("a bias of packed queries, keys and values is not known")
        packed = q if q.ndim == 5 else node.x(1)  # (batch, length, heads, 2 or 3, features)
        parts = [packed[:, :, :, i].transpose((0, 2, 1, 3)) for i in range(3 if q.ndim == 5 else 2)]
        return parts if q.ndim == 5 else [heads_apart(q, heads), *parts]
    k, v = node.x(1), node.x(2)
    if node.has(3):
        shift, n = node.x(3), dims_of(q)[2]
        m = dims_of(k)[2] if k.ndim == 3 else n
        q = q + shift[:n]
        if k.ndim == 3:
            k, v = k + shift[n : n + m], v + shift[n + m :]
    return [heads_apart(t, heads) if t.ndim == 3 else t for t in (q, k, v)]


def _in_buffers(node: Node, k: Variable, v: Variable) -> tuple[Variable, Variable, list[Variable]]:
    """New keys and values behind those of buffers: what there is of them now, and the buffers."""
    start = node.x(8).astype("int64").reshape(())
    end = start + dims_of(k)[2]
    present = [T.set_subtensor(node.x(i)[:, :, start:end], t) for i, t in ((6, k), (7, v))]
    found_k, found_v = (t[:, :, :end] for t in present)
    return found_k, found_v, present


# -- groups of heads that share keys --------------------------------------------------------------


def _grouped(node: Node) -> list[Variable | None]:
    """Attention whose heads share keys, with a cache of keys and values.

    ``seqlens_k`` are the lengths of examples less one, this call's tokens included. In a prompt
    (as many tokens as there are in all) the tokens of a shorter example end with padding;
    otherwise new keys follow those of the example.
    """
    if node.has(12) or node.has(13):
        raise node.error("a cache of quantised keys and values is not known")
    heads, groups = int(node.required("num_heads")), int(node.required("kv_num_heads"))
    q, k, v = _group_heads(node, heads, groups)
    new = dims_of(q)[2]
    total = node.number(6)
    total = total.astype("int64") if isinstance(total, Variable) else T.constant(total, ndim=0)
    lengths = node.x(5).astype("int64").flatten() + 1
    zeros = T.zeros_like(lengths)
    past = T.switch(T.eq(total, new), zeros, lengths - new) if node.has(3) else zeros
    places = past.dimshuffle(0, "x") + T.arange(new, dtype="int64").dimshuffle("x", 0)
    if node.attribute("do_rotary", 0):
        interleaved = bool(node.attribute("rotary_interleaved", 0))
        turns = places
        if node.has(9):  # of a prompt, the first entry is where all examples start
            given = node.x(9).astype("int64")
            turns = T.switch(T.eq(total, new), given.flatten()[0] + places, given)
        q, k = (_rotated(t, node.x(7), node.x(8), turns, interleaved) for t in (q, k))
    present = [_cached(node.x(i), t, places, total) if node.has(3) else t
               for i, t in ((3, k), (4, v))]  # fmt: skip
    k, v = (t[:, :, :total] for t in present) if node.has(3) else present
    seen = _seen(node, places, dims_of(k)[2], past + new)
    mask = node.optional(10)
    if mask is not None and seen is not None:
        mask = T.switch(seen, mask, number(mask, -np.inf))
    scale = node.attribute("scale") or None
    y, lse = T.nnet.scaled_dot_product_attention(
        q, k, v, seen if mask is None else mask, scale=scale, enable_gqa=True, return_lse=True,
        softcap=node.attribute("softcap", 0.0),
    )  # fmt: skip
    if node.has(11) or node.attribute("smooth_softmax", -1) > 0:  # one more term of the sum
        sink = node.x(11).dimshuffle("x", 0, "x") if node.has(11) else number(lse, 0)
        kept = T.nnet.sigmoid(lse - sink.astype(lse.type.dtype))
        y = y * kept.dimshuffle(0, 1, 2, "x").astype(y.type.dtype)
    return [heads_joined(y), *present]


def _group_heads(node: Node, heads: int, groups: int) -> list[Variable]:
    q = node.x()
    if node.has(1):
        parts = [q, node.x(1), node.x(2)]
    else:
        size = dims_of(q)[2] // (heads + 2 * groups)
        a, b = heads * size, (heads + groups) * size
        parts = [q[:, :, :a], q[:, :, a:b], q[:, :, b:]]
    found = [heads_apart(t, n) for t, n in zip(parts, (heads, groups, groups))]
    for i, name in ((0, "q"), (1, "k")):
        if node.has(14 + i):
            epsilon = node.attribute(f"{name}_norm_epsilon", node.attribute("qk_norm_epsilon"))
            found[i] = rms_norm(found[i], node.x(14 + i), 3, 1e-6 if epsilon is None else epsilon)
    return found


def _cached(buffer: Variable, new: Variable, places: Variable, total: Variable) -> Variable:
    """A buffer with new keys at the places of each example; it is at least ``total`` long."""
    batch, groups, length, size = dims_of(buffer)
    more = T.maximum(total - length, np.int64(0))
    rows = T.concatenate([buffer, T.zeros((batch, groups, more, size), buffer.type.dtype)], axis=2)
    rows = rows.transpose((0, 2, 1, 3))
    example = T.arange(batch, dtype="int64").dimshuffle(0, "x")
    filled = T.set_subtensor(rows[example, places], new.transpose((0, 2, 1, 3)))
    return filled.transpose((0, 2, 1, 3))


def _seen(node: Node, places: Variable, keys: Any, ends: Variable) -> Variable | None:
    """Which keys each query sees, (batch, 1, queries, keys)."""
    key = T.arange(keys, dtype="int64").dimshuffle("x", "x", "x", 0)
    at = places.dimshuffle(0, "x", 1, "x")
    if not node.attribute("causal", 1):
        return key < ends.dimshuffle(0, "x", "x", "x")
    seen = key <= at
    window = int(node.attribute("local_window_size", -1))
    return seen if window <= 0 else seen & (key > at - window)


# -- turns of features ----------------------------------------------------------------------------


def _rotated(
    x: Variable, cos: Variable, sin: Variable, places: Variable, interleaved: bool
) -> Variable:
    """(batch, heads, length, features) with pairs of features turned by their place's angle."""
    half = dims_of(cos)[1]
    c, s = (T.take(t, places, axis=0).dimshuffle(0, "x", 1, 2) for t in (cos, sin))
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = T.stack([a * c - b * s, a * s + b * c], axis=x.ndim)
        y = pairs.reshape(dims_of(turned))
    else:
        a, b = turned[..., :half], turned[..., half:]
        y = T.concatenate([a * c - b * s, a * s + b * c], axis=3)
    return T.concatenate([y, rest], axis=3)


def _rotary(node: Node) -> Variable:
    x, places = node.x(), node.x(1).astype("int64")
    cos, sin = node.x(2), node.x(3)
    heads = int(node.attribute("num_heads", 0))
    flat = x.ndim == 3
    if flat:
        size = (heads and dims_of(x)[2] // heads) or 2 * dims_of(cos)[1]
        b, n, d = dims_of(x)
        x = x.reshape((b, n, d // size, size)).transpose((0, 2, 1, 3))
    if places.ndim == 1:
        steps = T.arange(dims_of(x)[2], dtype="int64")
        places = (places + steps).dimshuffle("x", 0)
    y = _rotated(x, cos, sin, places, bool(node.attribute("interleaved", 0)))
    return heads_joined(y) if flat else y


_COMMON = "num_heads scale unidirectional mask_filter_value"

OPS: dict[str, Any] = {
    "Attention": known(_attention, 6, f"{_COMMON} qkv_hidden_sizes"),
    "QAttention": known(_quantised_attention, 9, _COMMON),
    "MultiHeadAttention": known(_multi_head, 9, _COMMON),
    "DecoderMaskedMultiHeadAttention": known(
        _decoder_attention, 11, f"{_COMMON} past_present_share_buffer"
    ),
    "GroupQueryAttention": known(
        _grouped, 16,
        "num_heads kv_num_heads scale do_rotary rotary_interleaved causal local_window_size "
        "softcap smooth_softmax qk_norm_epsilon q_norm_epsilon k_norm_epsilon",
    ),
    "RotaryEmbedding": known(
        _rotary, 4, "interleaved num_heads rotary_embedding_dim scale is_packed_batching"
    ),
}  # fmt: skip
