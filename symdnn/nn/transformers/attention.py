"""PyTorch's MultiheadAttention over the attention op, with grouped heads and a cache."""

from __future__ import annotations

from typing import Any

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.variable import Shared, Variable
from symdnn.nn import init
from symdnn.nn.layers.linear import Linear
from symdnn.nn.modules.arguments import positive, tensor_input
from symdnn.nn.modules.module import Module
from symdnn.nn.transformers.cache import KeyValueCache
from symdnn.nn.transformers.masks import (
    causal_mask,
    combined,
    over_heads,
    over_keys,
    with_more_keys,
)
from symdnn.nn.transformers.rotary import RotaryEmbedding
from symdnn.ops.array.create import zeros
from symdnn.ops.array.join import concatenate
from symdnn.ops.attention.attention import attention_weights, scaled_dot_product_attention
from symdnn.ops.core.shape import alloc, dims_of
from symdnn.ops.linalg.dot import dot
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attention in ``num_heads`` heads of embed_dim / num_heads features (Vaswani et al. 2017).

    The arguments, names and shapes of weights are PyTorch's. ``module(query, key, value)`` is
    ``[result, weights]``; query is (queries, batch, embed_dim), key (keys, batch, kdim), value
    (keys, batch, vdim), with ``batch_first`` the batch comes first, and a single example has none.
    The result has the form of the query.

    - ``key_padding_mask``, (batch, keys), and ``attn_mask``, (queries, keys) or
      (batch x num_heads, queries, keys): where one is bool, True is *left out*, a float one is
      added. (For :func:`symdnn.tensor.nnet.scaled_dot_product_attention` True takes part.)
    - ``is_causal`` hides keys after the query of equal index. It says that ``attn_mask``, if any,
      hides just these, and that mask is not read.
    - ``need_weights=False`` gives ``[result, None]``. Weights are (batch, queries, keys), with
      ``average_attn_weights=False`` (batch, num_heads, queries, keys); they are those before
      dropout. What a function does not return is not computed.
    - ``add_bias_kv`` appends a learnt key and value, ``add_zero_attn`` zeros; no mask hides them.
    - ``num_kv_heads`` (not PyTorch's): so many heads of keys and values, each for an equal group
      of the query's. ``rotary`` turns queries and keys by their positions.
    - ``cache``: a :class:`KeyValueCache`. Keys and values of earlier calls are seen, too, and those
      of this call are causal. It takes no masks.

    A query that sees no key has the result ``out_proj.bias`` and weights 0, where PyTorch has nan.
    ``dropout`` is that of the weights in training, drawn from ``seed``. Raises
    :class:`~symdnn.errors.InputError` and :class:`~symdnn.errors.TypeMismatch`.

    >>> MultiheadAttention(64, 8)
    nn.MultiheadAttention(64, 8 heads) {
      (out_proj): nn.Linear(64 -> 64)
    }
    """

    in_proj_weight: Shared | None
    q_proj_weight: Shared | None
    k_proj_weight: Shared | None
    v_proj_weight: Shared | None
    in_proj_bias: Shared | None
    bias_k: Shared | None
    bias_v: Shared | None

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False, *, num_kv_heads: int | None = None,
        rotary: RotaryEmbedding | None = None, seed: int | None = None, dtype: str | None = None,
    ) -> None:  # fmt: skip
        groups = num_heads if num_kv_heads is None else num_kv_heads
        given = [n for n in (embed_dim, num_heads, groups, kdim, vdim) if n is not None]
        positive("MultiheadAttention: sizes", *given)
        if embed_dim % num_heads or num_heads % groups:
            raise InputError(
                f"MultiheadAttention: embed_dim={embed_dim}, num_heads={num_heads}, "
                f"num_kv_heads={groups}; wanted multiples, each of the next"
            )
        if not 0 <= dropout <= 1:
            raise InputError(f"MultiheadAttention: dropout={dropout}; wanted 0 to 1")
        if rotary is not None and not isinstance(rotary, RotaryEmbedding):
            raise InputError(
                f"MultiheadAttention: rotary={rotary!r:.60}; wanted a RotaryEmbedding or None"
            )
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, groups
        self.head_dim, self.dropout = embed_dim // num_heads, float(dropout)
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.batch_first, self.add_zero_attn = bool(batch_first), bool(add_zero_attn)
        self.rotary = rotary
        self.seed = int(init.generator().integers(2**62)) if seed is None else int(seed)
        self.calls = 0
        self._projections(bias, dtype)
        self.bias_k = self.bias_v = None
        if add_bias_kv:
            row = (1, 1, self._kv_dim)
            self.parameter("bias_k", row, init.glorot_normal, dtype)
            self.parameter("bias_v", row, init.glorot_normal, dtype)

    @property
    def _kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim

    def _projections(self, bias: bool, dtype: str | None) -> None:
        e, kv = self.embed_dim, self._kv_dim
        self.in_proj_weight = self.q_proj_weight = self.k_proj_weight = self.v_proj_weight = None
        if self.kdim == self.vdim == e:
            self.parameter("in_proj_weight", (e + 2 * kv, e), init.glorot_uniform, dtype)
        else:
            self.parameter("q_proj_weight", (e, e), init.glorot_uniform, dtype)
            self.parameter("k_proj_weight", (kv, self.kdim), init.glorot_uniform, dtype)
            self.parameter("v_proj_weight", (kv, self.vdim), init.glorot_uniform, dtype)
        self.in_proj_bias = None
        if bias:
            self.parameter("in_proj_bias", (e + 2 * kv,), init.zeros, dtype)
        self.out_proj = Linear(e, e, bias, bias_init=init.zeros, dtype=dtype)

    # -- the expression ---------------------------------------------------------------------------

    def forward(
        self, query: Variable, key: Any, value: Any, key_padding_mask: Any = None,
        need_weights: bool = True, attn_mask: Any = None, average_attn_weights: bool = True,
        is_causal: bool = False, cache: KeyValueCache | None = None,
    ) -> list[Variable | None]:  # fmt: skip
        self._check(query, key, value)
        batched = query.type.ndim == 3
        q, k, v = self._projected(query, key, value)
        q, k, v = (self._heads(x, batched) for x in (q, k, v))
        if cache is not None:
            if key_padding_mask is not None or attn_mask is not None or self._more_keys:
                raise InputError(
                    "MultiheadAttention: a cache, which is causal, excludes masks, add_bias_kv and "
                    "add_zero_attn"
                )
            q, k = self._turned(q, cache), self._turned(k, cache)
            y = cache.attend(self, q, k, v, dropout_p=self._rate, stream=self._stream())
            return [self._joined(y, batched), None]
        q, k = self._turned(q, None), self._turned(k, None)
        masks = [] if attn_mask is None or is_causal else [attn_mask]
        masks = [over_heads(self._name, m, dims_of(q)[0], self.num_heads) for m in masks]
        if key_padding_mask is not None:
            masks.append(over_keys(self._name, key_padding_mask, batched))
        k, v, masks, is_causal = self._appended(q, k, v, masks, is_causal)
        mask = combined(masks, q.type.dtype)
        options: Any = {"causal": "top_left" if is_causal else None, "enable_gqa": True}
        y = scaled_dot_product_attention(
            q, k, v, mask, self._rate, stream=self._stream(), **options
        )
        weights = attention_weights(q, k, mask, causal=is_causal) if need_weights else None
        if weights is not None:
            weights = weights.mean(axis=1) if average_attn_weights else weights
            weights = weights if batched else weights[0]
        return [self._joined(y, batched), weights]

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _rate(self) -> float:
        return self.dropout if self.training else 0.0

    @property
    def _more_keys(self) -> int:
        return int(self.bias_k is not None) + int(self.add_zero_attn)

    def _stream(self) -> RandomStream | None:
        if not self._rate:
            return None
        self.calls += 1
        return RandomStream((self.seed, self.calls - 1))

    def _check(self, *inputs: Any) -> None:
        order = "batch, time" if self.batch_first else "time, batch"
        given = zip(inputs, (self.embed_dim, self.kdim, self.vdim), strict=True)
        for x, size in given:
            wanted = f"query, key and value ({order}, features) or (time, features), here {size}"
            tensor_input(self, x, wanted, 2, 3)
            if x.type.ndim != inputs[0].type.ndim or x.type.shape[-1] not in (None, size):
                raise TypeMismatch(self._name, wanted, x.type)

    def _projected(self, query: Variable, key: Variable, value: Variable) -> list[Variable]:
        """Query, key and value after their projections; inputs that are one have one product."""
        e, kv = self.embed_dim, self._kv_dim
        ends = [(0, e), (e, e + kv), (e + kv, e + 2 * kv)]
        inputs = [query, key, value]
        if self.in_proj_weight is None:
            own: list[Any] = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
            pairs = zip(inputs, own, ends, strict=True)
            return [self._with_bias(dot(x, w.dimshuffle(1, 0)), *at) for x, w, at in pairs]
        found: list[Variable] = []
        while len(found) < 3:
            first = len(found)
            count = next(
                (
                    n
                    for n in (3, 2)
                    if inputs[first:].count(inputs[first]) >= n
                    and all(x is inputs[first] for x in inputs[first : first + n])
                ),
                1,
            )
            begin, end = ends[first][0], ends[first + count - 1][1]
            weight = self.in_proj_weight[begin:end] if count < 3 else self.in_proj_weight
            y = self._with_bias(dot(inputs[first], weight.dimshuffle(1, 0)), begin, end)
            each = ends[first : first + count]
            found += [y] if count == 1 else [y[..., a - begin : b - begin] for a, b in each]
        return found

    def _with_bias(self, y: Variable, begin: int, end: int) -> Variable:
        if self.in_proj_bias is None:
            return y
        whole = (begin, end) == (0, self.in_proj_bias.type.shape[0])
        return y + (self.in_proj_bias if whole else self.in_proj_bias[begin:end])

    def _heads(self, x: Variable, batched: bool) -> Variable:
        """(batch, heads, time, features of a head) of a projection."""
        *lead, size = dims_of(x)
        parts: Any = x.reshape((*lead, size // self.head_dim, self.head_dim))
        order: tuple[Any, ...] = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        if not batched:
            order = ("x", 1, 0, 2)
        made: Variable = parts.dimshuffle(*order)
        return made

    def _joined(self, y: Variable, batched: bool) -> Variable:
        """The result of all heads, in the form of the query, after the last projection."""
        batch, _, time, _ = dims_of(y)
        if batched and not self.batch_first:
            whole = y.dimshuffle(2, 0, 1, 3).reshape((time, batch, self.embed_dim))
        else:
            whole = y.dimshuffle(0, 2, 1, 3).reshape((batch, time, self.embed_dim))
        made: Variable = self.out_proj(whole if batched else whole.dimshuffle(1, 2))
        return made

    def _turned(self, x: Variable, cache: KeyValueCache | None) -> Variable:
        if self.rotary is None:
            return x
        positions = [] if cache is None else [cache.positions(dims_of(x)[2])]
        made: Variable = self.rotary(x, *positions)
        return made

    def _appended(
        self, q: Variable, k: Variable, v: Variable, masks: list[Variable], causal: bool
    ) -> tuple[Variable, Variable, list[Variable], bool]:
        """Keys and values with those of the module itself behind them, and masks that show them."""
        if not self._more_keys:
            return k, v, masks, causal
        batch, groups, keys, size = dims_of(k)
        if causal:
            masks = [*masks, causal_mask(dims_of(q)[2], keys)]
        masks = [with_more_keys(m, self._more_keys) for m in masks]
        rows: list[list[Variable]] = [[k], [v]]
        if self.bias_k is not None:
            for row, own in zip(rows, (self.bias_k, self.bias_v), strict=True):
                part = own.reshape((1, groups, 1, size))  # type: ignore[union-attr]
                row.append(alloc(part, batch, groups, 1, size))
        if self.add_zero_attn:
            for row in rows:
                row.append(zeros((batch, groups, 1, size), k.type.dtype))
        return (*(concatenate(row, axis=2) for row in rows), masks, False)  # type: ignore[return-value]

    def describe(self) -> str:
        groups = "" if self.num_kv_heads == self.num_heads else f" in {self.num_kv_heads} groups"
        return f"({self.embed_dim}, {self.num_heads} heads{groups})"
