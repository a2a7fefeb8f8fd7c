"""Further training programs, as :mod:`benchmarks.gpu.program_texts` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.program_draws import (
    Draw,
    Program,
    Size,
    batch_norm,
    layer_norm,
    linear,
    of,
)  # fmt: skip

__all__ = ["PROGRAMS"]


def super_resolution(size: Size) -> Program:
    """Residual blocks at the low resolution, then pixels from channels (Lim et al., 2017)."""
    n, side, w, blocks = of(size, (1, 8, 8, 2), (1, 32, 32, 4), (16, 64, 64, 8))
    draw = Draw()
    for name, a, b in (("in", 3, w), ("up", w, 4 * w), ("out", w, 3)):
        draw.weight(name, b, a, 3, 3)
    for i in range(blocks):
        draw.weight(f"{i}.a", w, w, 3, 3)
        draw.weight(f"{i}.b", w, w, 3, 3)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = first = F.conv2d(d["x"], p["in"], padding=1)
        for i in range(blocks):
            h = F.relu(F.conv2d(x, p[f"{i}.a"], padding=1))
            x = x + 0.1 * F.conv2d(h, p[f"{i}.b"], padding=1)
        h = F.pixel_shuffle(F.conv2d(x + first, p["up"], padding=1), 2)
        return F.l1_loss(F.conv2d(h, p["out"], padding=1), d["y"])

    data = {"x": draw.normal(n, 3, side, side), "y": draw.normal(n, 3, 2 * side, 2 * side)}
    return Program(draw.made, data, loss)


def causal(size: Size) -> Program:
    """Dilated causal convolutions with normalised weights in residual blocks (Bai et al., 2018)."""
    n, w, t, levels = of(size, (2, 8, 32, 2), (4, 64, 256, 4), (32, 128, 1024, 6))
    draw = Draw()
    draw.weight("in", w, 2, 1)
    for i in range(levels):
        for j in "ab":
            draw.weight(f"{i}.{j}", w, w, 3)
            draw.made[f"{i}.{j}.size"] = np.ones((w, 1, 1), np.float32)
            draw.made[f"{i}.{j}.bias"] = np.zeros(w, np.float32)
    draw.linear("out", w, 1)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = F.conv1d(d["x"], p["in"])
        for i in range(levels):
            h = x
            for j in "ab":
                v = p[f"{i}.{j}"]
                v = v * (p[f"{i}.{j}.size"] / L.sqrt((v * v).sum(dim=(1, 2), keepdim=True)))
                h = F.pad(h, (2 * 2**i, 0))
                h = F.relu(F.conv1d(h, v, p[f"{i}.{j}.bias"], dilation=2**i))
            x = F.relu(x + h)
        return F.mse_loss(linear(F, p, "out", x[:, :, -1]).reshape(-1), d["y"])

    return Program(draw.made, {"x": draw.normal(n, 2, t), "y": draw.normal(n)}, loss)


def joint(size: Size) -> Program:
    """The joint network of a transducer: every frame with every word so far (Graves, 2012)."""
    n, t, u, w, words = of(size, (2, 5, 3, 8, 11), (2, 40, 10, 64, 128), (16, 128, 32, 256, 512))
    draw = Draw()
    draw.weight("words", words, w)
    for name, a, b in (("frame", 80, w), ("text", w, w), ("out", w, words)):
        draw.linear(name, a, b)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        heard = linear(F, p, "frame", d["frames"])
        said = linear(F, p, "text", F.embedding(d["text"], p["words"]))
        both = L.tanh(heard.unsqueeze(2) + said.unsqueeze(1))
        scores = F.log_softmax(linear(F, p, "out", both), dim=-1)
        blank = scores[:, :, :, 0]
        index = d["text"].unsqueeze(1).unsqueeze(-1) + d["zeros"]
        word = L.gather(scores, -1, index)[:, :, :, 0]
        return -(blank.mean() + word.mean())

    data = {
        "frames": draw.normal(n, t, 80), "text": draw.below(words, n, u),
        "zeros": np.zeros((n, t, u, 1), np.int64),
    }  # fmt: skip
    return Program(draw.made, data, loss)


def graph_attention(size: Size) -> Program:
    """Attention along the edges of padded graphs (Velickovic et al., 2018)."""
    n, nodes, w, heads = of(size, (2, 6, 8, 2), (8, 32, 32, 4), (128, 128, 128, 4))
    draw = Draw()
    for i in range(3):
        draw.weight(f"{i}.w", w, w)
        draw.weight(f"{i}.to", heads, w // heads)
        draw.weight(f"{i}.from", heads, w // heads)
    draw.linear("out", w, 10)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["x"]
        for i in range(3):
            h = F.linear(x, p[f"{i}.w"]).reshape(n, nodes, heads, w // heads)
            to, sent = (h * p[f"{i}.to"]).sum(dim=-1), (h * p[f"{i}.from"]).sum(dim=-1)
            scores = F.leaky_relu(to.unsqueeze(2) + sent.unsqueeze(1), 0.2)
            scores = scores.masked_fill(~d["edges"].unsqueeze(-1), -1e9)
            mixed = L.einsum("bijh,bjhc->bihc", F.softmax(scores, dim=2), h)
            x = F.elu(mixed.reshape(n, nodes, w)) + x
        x = (x * d["there"].unsqueeze(-1)).sum(dim=1) / d["there"].sum(dim=1, keepdim=True)
        return F.cross_entropy(linear(F, p, "out", x), d["labels"])

    there = np.arange(nodes) < draw.rng.integers(nodes // 2, nodes + 1, (n, 1))
    edges = draw.rng.random((n, nodes, nodes)) < 0.1
    edges = (edges | np.eye(nodes, dtype=bool)) & there[:, None, :]
    data = {
        "x": draw.normal(n, nodes, w), "edges": edges, "there": there.astype(np.float32),
        "labels": draw.below(10, n),
    }  # fmt: skip
    return Program(draw.made, data, loss)


def conformer(size: Size) -> Program:
    """The convolution module and the two halves of perceptrons of a Conformer (Gulati, 2020)."""
    n, t, w, taps = of(size, (2, 9, 8, 3), (2, 128, 64, 15), (32, 512, 256, 31))
    draw = Draw()
    for i in range(2):
        for part in ("first", "last"):
            draw.norm(f"{i}.{part}.norm", w)
            draw.linear(f"{i}.{part}.up", w, 4 * w)
            draw.linear(f"{i}.{part}.down", 4 * w, w)
        for name in ("norm", "deep.norm", "end"):
            draw.norm(f"{i}.{name}", w)
        draw.weight(f"{i}.gate", 2 * w, w, 1)
        draw.weight(f"{i}.deep", w, 1, taps)
        draw.weight(f"{i}.mix", w, w, 1)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        def half(name: str, x: Any) -> Any:
            h = F.silu(linear(F, p, name + ".up", layer_norm(F, p, name + ".norm", x, w)))
            return x + 0.5 * linear(F, p, name + ".down", h)

        x = d["x"]
        for i in range(2):
            x = half(f"{i}.first", x)
            h = layer_norm(F, p, f"{i}.norm", x, w).transpose(1, 2)
            h = F.glu(F.conv1d(h, p[f"{i}.gate"]), dim=1)
            h = F.conv1d(h, p[f"{i}.deep"], padding=taps // 2, groups=w)
            h = F.silu(batch_norm(F, p, f"{i}.deep.norm", h))
            x = x + F.conv1d(h, p[f"{i}.mix"]).transpose(1, 2)
            x = layer_norm(F, p, f"{i}.end", half(f"{i}.last", x), w)
        return F.mse_loss(x, d["y"])

    return Program(draw.made, {"x": draw.normal(n, t, w), "y": draw.normal(n, t, w)}, loss)


def codebook(size: Size) -> Program:
    """Images through the nearest of a table's codes, whose gradient is passed straight through."""
    n, side, w, codes = of(size, (2, 8, 8, 6), (4, 32, 32, 64), (64, 64, 128, 512))
    draw = Draw()
    for name, a, b, k in (("a", 3, w, 4), ("b", w, w, 4), ("c", w, w, 3)):
        draw.weight(name, b, a, k, k)
    draw.weight("codes", codes, w)
    draw.weight("d", w, w, 3, 3)
    draw.weight("e", w, w, 4, 4, fan=4 * w)
    draw.weight("f", w, 3, 4, 4, fan=4 * w)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        h = F.relu(F.conv2d(d["x"], p["a"], stride=2, padding=1))
        h = F.relu(F.conv2d(h, p["b"], stride=2, padding=1))
        z = F.conv2d(h, p["c"], padding=1).permute(0, 2, 3, 1)
        flat, table = z.reshape(-1, w), p["codes"]
        far = (flat**2).sum(1, keepdim=True) - 2 * flat @ table.T + (table**2).sum(1)
        near = F.embedding(L.argmin(far, dim=1), table).reshape(z.shape)
        cost = ((near.detach() - z) ** 2).mean() * 0.25 + ((near - z.detach()) ** 2).mean()
        q = (z + (near - z).detach()).permute(0, 3, 1, 2)
        h = F.relu(F.conv2d(q, p["d"], padding=1))
        h = F.relu(F.conv_transpose2d(h, p["e"], stride=2, padding=1))
        return F.mse_loss(F.conv_transpose2d(h, p["f"], stride=2, padding=1), d["x"]) + cost

    return Program(draw.made, {"x": draw.normal(n, 3, side, side)}, loss)


def modulated(size: Size) -> Program:
    """Convolutions whose filters differ from example to example (Karras et al., 2020)."""
    n, side, w = of(size, (2, 4, 8), (2, 16, 32), (16, 32, 128))
    draw = Draw()
    for i in range(3):
        draw.linear(f"{i}.style", 64, w)
        draw.weight(f"{i}.w", w, w, 3, 3)
        draw.made[f"{i}.noise"] = np.full(1, 0.1, np.float32)
    draw.weight("rgb", 3, w, 1, 1)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["x"]
        for i in range(3):
            style = linear(F, p, f"{i}.style", d["z"]) + 1.0
            v = p[f"{i}.w"].unsqueeze(0) * style.reshape(n, 1, w, 1, 1)
            v = v * L.rsqrt((v * v).sum(dim=(2, 3, 4), keepdim=True) + 1e-8)
            if i == 1:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
            high = 2 * side if i else side
            x = F.conv2d(x.reshape(1, n * w, high, high), v.reshape(n * w, w, 3, 3), padding=1,
                         groups=n).reshape(n, w, high, high)  # fmt: skip
            x = F.leaky_relu(x + p[f"{i}.noise"] * d["low" if i == 0 else "high"], 0.2)
        return F.mse_loss(F.conv2d(x, p["rgb"]), d["y"])

    data = {
        "x": draw.normal(n, w, side, side), "z": draw.normal(n, 64),
        "low": draw.normal(n, 1, side, side), "high": draw.normal(n, 1, 2 * side, 2 * side),
        "y": draw.normal(n, 3, 2 * side, 2 * side),
    }  # fmt: skip
    return Program(draw.made, data, loss)


def conv_lstm(size: Size) -> Program:
    """A recurrent network of images, whose gates are convolutions (Shi et al., 2015)."""
    n, t, side, w = of(size, (2, 3, 6, 4), (2, 4, 16, 16), (16, 8, 64, 64))
    draw = Draw()
    draw.weight("gates", 4 * w, 1 + w, 3, 3)
    draw.made["bias"] = np.zeros(4 * w, np.float32)
    draw.weight("out", 1, w, 1, 1)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        h = L.zeros_like(d["state"])
        c, cost = L.zeros_like(h), 0.0
        for i in range(t - 1):
            both = L.cat([d["x"][:, i : i + 1], h], dim=1)
            gates = F.conv2d(both, p["gates"], p["bias"], padding=1)
            keep, new = L.sigmoid(gates[:, :w]), L.sigmoid(gates[:, w : 2 * w])
            c = keep * c + new * L.tanh(gates[:, 2 * w : 3 * w])
            h = L.sigmoid(gates[:, 3 * w :]) * L.tanh(c)
            cost = cost + F.mse_loss(F.conv2d(h, p["out"]), d["x"][:, i + 1 : i + 2])
        return cost / (t - 1.0)

    state = np.zeros((n, w, side, side), np.float32)
    return Program(draw.made, {"x": draw.normal(n, t, side, side), "state": state}, loss)


#: All programs by name.
PROGRAMS: dict[str, Callable[[Size], Program]] = {
    f.__name__: f
    for f in (
        super_resolution, causal, joint, graph_attention, conformer, codebook, modulated, conv_lstm,
    )
}  # fmt: skip
