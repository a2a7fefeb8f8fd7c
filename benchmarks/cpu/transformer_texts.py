"""Transformers of many kinds as users write them, each one text in PyTorch's names for both sides.

python -m benchmarks.cpu.programs --texts benchmarks.cpu.transformer_texts --peers eager
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.program_draws import Draw, Program, Size, layer_norm, linear, of

__all__ = ["PROGRAMS"]

#: Results of a mixer of tokens: of (names L, F), parameters, data and the normalised states.
_Mixer = Callable[[Any, Any, Any, Any, Any], Any]


class _Sizes:
    """Batch, tokens, width and heads."""

    def __init__(self, size: Size) -> None:
        self.n, self.t, self.w, self.h = of(size, (2, 8, 16, 2), (4, 64, 128, 4), (16, 512, 512, 8))
        self.f = self.w // self.h

    def heads(self, x: Any, count: int = 0) -> Any:
        """(batch, heads, tokens, features) of (batch, tokens, width)."""
        return x.reshape(self.n, -1, count or self.h, self.f).transpose(1, 2)

    def joined(self, x: Any) -> Any:
        """The reverse."""
        return x.transpose(1, 2).reshape(self.n, -1, self.w)


def _projections(draw: Draw, s: _Sizes, groups: int = 0) -> None:
    for name, width in (("q", s.w), ("k", (groups or s.h) * s.f), ("v", (groups or s.h) * s.f)):
        draw.linear(name, s.w, width)
    draw.linear("o", s.w, s.w)


def _block(draw: Draw, s: _Sizes, mix: _Mixer, data: dict[str, Any] | None = None) -> Program:
    """A block of a mixer and a perceptron, each behind a norm and beside its input."""
    draw.norm("n1", s.w)
    draw.norm("n2", s.w)
    draw.linear("up", s.w, 4 * s.w)
    draw.linear("down", 4 * s.w, s.w)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["x"]
        x = x + linear(F, p, "o", mix(L, F, p, d, layer_norm(F, p, "n1", x, s.w)))
        h = F.gelu(linear(F, p, "up", layer_norm(F, p, "n2", x, s.w)))
        return F.mse_loss(x + linear(F, p, "down", h), d["y"])

    given = {"x": draw.normal(s.n, s.t, s.w), "y": draw.normal(s.n, s.t, s.w)}
    return Program(draw.made, given | (data or {}), loss)


def _qkv(F: Any, p: Any, x: Any) -> list[Any]:
    return [linear(F, p, name, x) for name in "qkv"]


def _attend(L: Any, F: Any, q: Any, k: Any, v: Any, change: Any = None) -> Any:
    scores = L.matmul(q, k.transpose(-2, -1)) / q.shape[-1] ** 0.5
    return L.matmul(F.softmax(change(scores) if change else scores, dim=-1), v)


def post_norm(size: Size) -> Program:
    """The first transformer's block: norms behind the sums, relu."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)
    for name in ("n1", "n2"):
        draw.norm(name, s.w)
    draw.linear("up", s.w, 4 * s.w)
    draw.linear("down", 4 * s.w, s.w)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["x"]
        y = _attend(L, F, *(s.heads(v) for v in _qkv(F, p, x)))
        x = layer_norm(F, p, "n1", x + linear(F, p, "o", s.joined(y)), s.w)
        y = linear(F, p, "down", F.relu(linear(F, p, "up", x)))
        return F.mse_loss(layer_norm(F, p, "n2", x + y, s.w), d["y"])

    data = {"x": draw.normal(s.n, s.t, s.w), "y": draw.normal(s.n, s.t, s.w)}
    return Program(draw.made, data, loss)


def _angles(s: _Sizes) -> np.ndarray:
    return np.outer(np.arange(s.t), 1e4 ** (-np.arange(0, s.f, 2) / s.f)).astype(np.float32)


def llama_block(size: Size) -> Program:
    """RMSNorm by hand, rotary halves, groups of heads by repeats, SwiGLU, causal."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s, s.h // 2)
    for name in ("n1", "n2"):
        draw.made[name] = np.ones(s.w, np.float32)
    for name, a, b in (("gate", s.w, 2 * s.w), ("up", s.w, 2 * s.w), ("down", 2 * s.w, s.w)):
        draw.weight(name, b, a)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        def norm(x: Any, name: str) -> Any:
            return x * L.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * p[name]

        def turned(x: Any) -> Any:
            a, b = x[..., : s.f // 2], x[..., s.f // 2 :]
            return x * d["cos"] + L.cat([-b, a], dim=-1) * d["sin"]

        x = d["x"]
        q, k, v = _qkv(F, p, norm(x, "n1"))
        q, k, v = s.heads(q), s.heads(k, s.h // 2), s.heads(v, s.h // 2)
        k, v = (L.repeat_interleave(y, 2, dim=1) for y in (turned(k), v))
        y = _attend(L, F, turned(q), k, v, lambda a: a.masked_fill(d["hidden"], float("-inf")))
        x = x + linear(F, p, "o", s.joined(y))
        h = norm(x, "n2")
        h = F.silu(F.linear(h, p["gate"])) * F.linear(h, p["up"])
        return F.mse_loss(x + F.linear(h, p["down"]), d["y"])

    both = np.concatenate([_angles(s)] * 2, 1)
    data = {
        "x": draw.normal(s.n, s.t, s.w), "y": draw.normal(s.n, s.t, s.w),
        "cos": np.cos(both), "sin": np.sin(both), "hidden": _later(s),
    }  # fmt: skip
    return Program(draw.made, data, loss)


def _later(s: _Sizes) -> np.ndarray:
    return np.triu(np.ones((s.t, s.t), bool), 1)


def rotary_complex(size: Size) -> Program:
    """Rotary positions as products of complex numbers."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        turn = L.complex(d["cos"], d["sin"])

        def turned(y: Any) -> Any:
            pairs = s.heads(y).reshape(s.n, s.h, s.t, s.f // 2, 2)
            z = L.complex(pairs[..., 0], pairs[..., 1]) * turn
            return L.stack([z.real, z.imag], dim=-1).reshape(s.n, s.h, s.t, s.f)

        q, k, v = _qkv(F, p, x)
        return s.joined(_attend(L, F, turned(q), turned(k), s.heads(v)))

    return _block(draw, s, mix, {"cos": np.cos(_angles(s)), "sin": np.sin(_angles(s))})


def alibi(size: Size) -> Program:
    """Biases that fall with the distance, causal by a large negative number."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)
    at = np.arange(s.t)
    slopes = 2.0 ** (-8.0 * (np.arange(s.h) + 1) / s.h)
    bias = (slopes[:, None, None] * -np.abs(at[:, None] - at)).astype(np.float32)
    causal = np.where(_later(s), np.float32(-1e9), np.float32(0))

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        q, k, v = (s.heads(y) for y in _qkv(F, p, x))
        return s.joined(_attend(L, F, q, k, v, lambda a: a + d["bias"] + d["causal"]))

    return _block(draw, s, mix, {"bias": bias, "causal": causal})


def t5_bias(size: Size) -> Program:
    """A learned bias by buckets of distances, no scale."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)
    draw.weight("table", 32, s.h)
    at = np.arange(s.t)
    buckets = np.clip(at[:, None] - at + 16, 0, 31)

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        q, k, v = (s.heads(y) for y in _qkv(F, p, x))
        bias = F.embedding(d["buckets"], p["table"]).permute(2, 0, 1).unsqueeze(0)
        scores = L.einsum("bhqd,bhkd->bhqk", q * 0.2, k) + bias
        return s.joined(L.einsum("bhqk,bhkd->bhqd", F.softmax(scores, dim=-1), v))

    return _block(draw, s, mix, {"buckets": buckets})


def cross_attention(size: Size) -> Program:
    """To padded states of an encoder, which are hidden by a boolean mask."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)
    hidden = np.arange(2 * s.t) >= np.arange(s.t + 1, s.t + 1 + s.n)[:, None]

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        q = s.heads(linear(F, p, "q", x))
        k, v = (s.heads(linear(F, p, name, d["memory"])) for name in "kv")
        low = float("-inf")
        return s.joined(
            _attend(L, F, q, k, v, lambda a: a.masked_fill(d["hidden"][:, None, None, :], low))
        )

    return _block(draw, s, mix, {"memory": draw.normal(s.n, 2 * s.t, s.w), "hidden": hidden})


def perceiver(size: Size) -> Program:
    """A few learned queries read all tokens, and tokens read them."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)
    draw.weight("latents", 8, s.w, fan=1)

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        q, k, v = (s.heads(y) for y in _qkv(F, p, x))
        z = p["latents"].reshape(1, 8, s.h, s.f).transpose(1, 2).expand(s.n, s.h, 8, s.f)
        read = _attend(L, F, z, k, v)
        return s.joined(_attend(L, F, q, read, read))

    return _block(draw, s, mix)


def linear_attention(size: Size) -> Program:
    """Products of positive features, without a softmax (Katharopoulos et al. 2020)."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        q, k, v = (s.heads(y) for y in _qkv(F, p, x))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = L.einsum("bhkd,bhke->bhde", k, v)
        total = L.einsum("bhqd,bhd->bhq", q, k.sum(dim=2))
        return s.joined(L.einsum("bhqd,bhde->bhqe", q, kv) / total.unsqueeze(-1))

    return _block(draw, s, mix)


def gated_attention(size: Size) -> Program:
    """One head with squared relu in place of softmax, times a gate (Hua et al. 2022)."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)
    draw.linear("g", s.w, s.w)

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        q, k, v = _qkv(F, p, x)
        weights = F.relu(L.matmul(q, k.transpose(1, 2)) / s.t) ** 2
        return F.silu(linear(F, p, "g", x)) * L.matmul(weights, v)

    return _block(draw, s, mix)


def one_key_head(size: Size) -> Program:
    """All heads of queries share one of keys and values (Shazeer 2019)."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s, 1)

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        q, k, v = _qkv(F, p, x)
        q = s.heads(q)
        scores = L.einsum("bhqd,bkd->bhqk", q, k) * s.f**-0.5
        return s.joined(L.einsum("bhqk,bkd->bhqd", F.softmax(scores, dim=-1), v))

    return _block(draw, s, mix)


def sliding_window(size: Size) -> Program:
    """A causal window by a comparison of positions."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        at = L.arange(s.t)
        away = at[:, None] - at[None, :]
        seen = (away >= 0) & (away < s.t // 4)
        q, k, v = (s.heads(y) for y in _qkv(F, p, x))
        return s.joined(_attend(L, F, q, k, v, lambda a: L.where(seen, a, float("-inf"))))

    return _block(draw, s, mix)


def talking_heads(size: Size) -> Program:
    """Heads are mixed before and behind the softmax (Shazeer et al. 2020)."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)
    draw.weight("before", s.h, s.h)
    draw.weight("behind", s.h, s.h)

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        q, k, v = (s.heads(y) for y in _qkv(F, p, x))
        scores = L.matmul(q, k.transpose(2, 3)) * s.f**-0.5
        scores = L.einsum("bhqk,hg->bgqk", scores, p["before"])
        weights = L.einsum("bhqk,hg->bgqk", F.softmax(scores, dim=-1), p["behind"])
        return s.joined(L.matmul(weights, v))

    return _block(draw, s, mix)


def normed_queries(size: Size) -> Program:
    """Queries and keys of length 1, with a learned scale of each head."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)
    draw.made["scale"] = np.full((s.h, 1, 1), 2.0, np.float32)

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        q, k, v = (s.heads(y) for y in _qkv(F, p, x))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        scores = L.matmul(q, k.transpose(2, 3)) * L.exp(p["scale"].clamp(max=4.6))
        return s.joined(L.matmul(F.softmax(scores, dim=-1), v))

    return _block(draw, s, mix)


def differential(size: Size) -> Program:
    """The difference of two softmaxes weighs the values (Ye et al. 2024)."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)
    draw.made["lambda"] = np.full(1, 0.5, np.float32)

    def mix(L: Any, F: Any, p: Any, d: Any, x: Any) -> Any:
        q, k, v = (s.heads(y) for y in _qkv(F, p, x))
        half, maps = s.f // 2, []
        for part in (slice(0, half), slice(half, s.f)):
            scores = L.matmul(q[..., part], k[..., part].transpose(2, 3)) * half**-0.5
            maps.append(F.softmax(scores, dim=-1))
        return s.joined(L.matmul(maps[0] - p["lambda"] * maps[1], v))

    return _block(draw, s, mix)


def parallel_block(size: Size) -> Program:
    """One projection makes queries, keys, values and what the perceptron holds."""
    s, draw = _Sizes(size), Draw()
    draw.norm("n", s.w)
    draw.linear("in", s.w, 7 * s.w)
    draw.linear("out", 5 * s.w, s.w)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        whole = linear(F, p, "in", layer_norm(F, p, "n", d["x"], s.w))
        q, k, v, h = L.split(whole, [s.w, s.w, s.w, 4 * s.w], dim=-1)
        y = s.joined(_attend(L, F, *(s.heads(z) for z in (q, k, v))))
        y = linear(F, p, "out", L.cat([y, F.gelu(h, approximate="tanh")], dim=-1))
        return F.mse_loss(d["x"] + y, d["y"])

    data = {"x": draw.normal(s.n, s.t, s.w), "y": draw.normal(s.n, s.t, s.w)}
    return Program(draw.made, data, loss)


def sparse_experts(size: Size) -> Program:
    """The two best of several perceptrons for each token, all of them computed."""
    s, draw = _Sizes(size), Draw()
    count = 4
    draw.linear("gate", s.w, count)
    draw.weight("up", count, s.w, 2 * s.w, fan=s.w)
    draw.weight("down", count, 2 * s.w, s.w, fan=2 * s.w)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["x"].reshape(-1, s.w)
        best, which = L.topk(linear(F, p, "gate", x), 2, dim=-1)
        weights = (F.softmax(best, dim=-1).unsqueeze(-1) * F.one_hot(which, count)).sum(dim=1)
        h = F.gelu(L.einsum("td,edh->teh", x, p["up"]))
        y = L.einsum("teh,ehd,te->td", h, p["down"], weights)
        return F.mse_loss(x + y, d["y"].reshape(-1, s.w))

    data = {"x": draw.normal(s.n, s.t, s.w), "y": draw.normal(s.n, s.t, s.w)}
    return Program(draw.made, data, loss)


def class_token(size: Size) -> Program:
    """Patches by a convolution, a learned first token, learned positions."""
    s, draw = _Sizes(size), Draw()
    side = int(s.t**0.5) if s.t >= 16 else 2
    _projections(draw, s)
    draw.weight("patch", s.w, 3, 4, 4)
    draw.made["first"] = draw.normal(1, 1, s.w, scale=0.02)
    draw.made["at"] = draw.normal(1, side * side + 1, s.w, scale=0.02)
    draw.norm("n", s.w)
    draw.linear("head", s.w, 10)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = F.conv2d(d["x"], p["patch"], stride=4).reshape(s.n, s.w, -1).transpose(1, 2)
        x = L.cat([p["first"].expand(s.n, 1, s.w), x], dim=1) + p["at"]
        y = _attend(L, F, *(s.heads(v) for v in _qkv(F, p, layer_norm(F, p, "n", x, s.w))))
        x = x + linear(F, p, "o", s.joined(y))
        return F.cross_entropy(linear(F, p, "head", x[:, 0]), d["y"])

    data = {"x": draw.normal(s.n, 3, 4 * side, 4 * side), "y": draw.below(10, s.n)}
    return Program(draw.made, data, loss)


def axial(size: Size) -> Program:
    """Attention along the rows of an image, then along its columns."""
    s, draw = _Sizes(size), Draw()
    side = int(s.t**0.5)
    for name in ("a", "b"):
        draw.linear(name + "qkv", s.w, 3 * s.w)
        draw.linear(name + "o", s.w, s.w)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["x"]
        for name, order in (("a", (0, 1, 2, 3)), ("b", (0, 2, 1, 3))):
            y = linear(F, p, name + "qkv", x.permute(*order))
            y = y.reshape(s.n, side, side, 3, s.h, s.f).permute(3, 0, 1, 4, 2, 5)
            y = _attend(L, F, y[0], y[1], y[2]).transpose(2, 3).reshape(s.n, side, side, s.w)
            x = x + linear(F, p, name + "o", y).permute(*order)
        return F.mse_loss(x, d["y"])

    data = {"x": draw.normal(s.n, side, side, s.w), "y": draw.normal(s.n, side, side, s.w)}
    return Program(draw.made, data, loss)


def selective_state(size: Size) -> Program:
    """A recurrence whose decay follows the input (Gu and Dao 2023), step by step."""
    s, draw = _Sizes(size), Draw()
    states, steps = 4, min(s.t, 16)
    for name, a, b in (("in", s.w, 2 * s.w), ("dt", s.w, s.w), ("bc", s.w, 2 * states)):
        draw.linear(name, a, b)
    draw.linear("o", s.w, s.w)
    draw.made["a"] = np.log(np.tile(np.arange(1, states + 1, dtype=np.float32), (s.w, 1)))

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        both = linear(F, p, "in", d["x"])
        x, gate = F.silu(both[..., : s.w]), both[..., s.w :]
        dt = F.softplus(linear(F, p, "dt", x))
        bc = linear(F, p, "bc", x)
        decay = L.exp(-dt.unsqueeze(-1) * L.exp(p["a"]))
        given = (dt * x).unsqueeze(-1) * bc[:, :, None, :states]
        h, found = given[:, 0], []
        for i in range(steps):
            h = decay[:, i] * h + given[:, i] if i else h
            found.append((h * bc[:, i, None, states:]).sum(dim=-1))
        y = L.stack(found, dim=1) * F.silu(gate)
        return F.mse_loss(linear(F, p, "o", y), d["y"])

    data = {"x": draw.normal(s.n, steps, s.w), "y": draw.normal(s.n, steps, s.w)}
    return Program(draw.made, data, loss)


def growing_cache(size: Size) -> Program:
    """Tokens one after the other, whose keys and values are joined to those before."""
    s, draw = _Sizes(size), Draw()
    _projections(draw, s)
    steps = 8

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x, keys, values, found = d["x"][:, :1], None, None, []
        for _ in range(steps):
            q, k, v = (s.heads(y) for y in _qkv(F, p, x))
            keys = k if keys is None else L.cat([keys, k], dim=2)
            values = v if values is None else L.cat([values, v], dim=2)
            x = x + linear(F, p, "o", s.joined(_attend(L, F, q, keys, values)))
            found.append(x)
        return F.mse_loss(L.cat(found, dim=1), d["y"])

    data = {"x": draw.normal(s.n, steps, s.w), "y": draw.normal(s.n, steps, s.w)}
    return Program(draw.made, data, loss)


PROGRAMS: dict[str, Callable[[Size], Program]] = {
    f.__name__: f
    for f in (
        post_norm, llama_block, rotary_complex, alibi, t5_bias, cross_attention, perceiver,
        linear_attention, gated_attention, one_key_head, sliding_window, talking_heads,
        normed_queries, differential, parallel_block, sparse_experts, class_token, axial,
        selective_state, growing_cache,
    )
}  # fmt: skip
