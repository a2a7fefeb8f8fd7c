"""Training programs of many fields, each written once in PyTorch's names, for both libraries.

They are in the sizes of :mod:`benchmarks.gpu.program_draws`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.gpu import program_texts_later
from benchmarks.gpu.program_draws import (
    Draw,
    Program,
    Size,
    batch_norm,
    layer_norm,
    linear,
    of,
)  # fmt: skip

__all__ = ["PROGRAMS", "Program", "Size"]


def dcgan(size: Size) -> Program:
    """The generator's step of a DCGAN, through the discriminator."""
    n, w = of(size, (4, 8), (16, 16), (128, 64))
    draw = Draw()
    widths = [100, 8 * w, 4 * w, 2 * w, w, 3]
    for i, (a, b) in enumerate(pairwise(widths)):
        draw.weight(f"g{i}", a, b, 4, 4, fan=4 * a)
        draw.norm(f"gn{i}", b)
    down = [3, w, 2 * w, 4 * w, 8 * w]
    for i, (a, b) in enumerate(pairwise(down)):
        draw.weight(f"d{i}", b, a, 4, 4)
        draw.norm(f"dn{i}", b)
    draw.weight("d4", 1, 8 * w, 4, 4)
    for name in ("gn4.w", "gn4.b", "dn0.w", "dn0.b"):  # there is no norm
        del draw.made[name]

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["noise"]
        for i in range(5):
            x = F.conv_transpose2d(x, p[f"g{i}"], stride=1 if i == 0 else 2, padding=int(i > 0))
            x = F.relu(batch_norm(F, p, f"gn{i}", x)) if i < 4 else L.tanh(x)
        for i in range(4):
            x = F.conv2d(x, p[f"d{i}"], stride=2, padding=1)
            x = F.leaky_relu(batch_norm(F, p, f"dn{i}", x) if i else x, 0.2)
        score = F.conv2d(x, p["d4"]).reshape(-1)
        return F.softplus(-score).mean()

    return Program(draw.made, {"noise": draw.normal(n, 100, 1, 1)}, loss)


def wavenet(size: Size) -> Program:
    """Gated, dilated, causal convolutions of sequences with skip connections."""
    n, w, t, layers = of(size, (2, 8, 64, 3), (4, 32, 1024, 6), (16, 64, 8192, 10))
    draw = Draw()
    draw.weight("in", w, 1, 1)
    for i in range(layers):
        draw.weight(f"{i}.gate", 2 * w, w, 2)
        draw.weight(f"{i}.out", 2 * w, w, 1)
    draw.weight("end", 1, w, 1)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x, skips = F.conv1d(d["x"], p["in"]), 0.0
        for i in range(layers):
            both = F.conv1d(F.pad(x, (2**i, 0)), p[f"{i}.gate"], dilation=2**i)
            h = L.tanh(both[:, :w]) * L.sigmoid(both[:, w:])
            out = F.conv1d(h, p[f"{i}.out"])
            x, skips = x + out[:, :w], skips + out[:, w:]
        y = F.conv1d(F.relu(skips), p["end"])
        return F.mse_loss(y[:, :, :-1], d["x"][:, :, 1:])

    return Program(draw.made, {"x": draw.normal(n, 1, t)}, loss)


def dlrm(size: Size) -> Program:
    """Recommendation: embeddings of categories, their products, two multilayer perceptrons."""
    n, rows, w, tables = of(size, (8, 50, 4, 3), (256, 2000, 32, 6), (8192, 100_000, 64, 8))
    draw = Draw()
    for i in range(tables):
        draw.weight(f"table{i}", rows, w)
    for name, a, b in (("a", 13, 256), ("b", 256, w), ("d", 256, 256), ("e", 256, 1)):
        draw.linear(name, a, b)
    draw.linear("c", w + (tables + 1) ** 2, 256)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        dense = F.relu(linear(F, p, "b", F.relu(linear(F, p, "a", d["dense"]))))
        seen = [dense] + [F.embedding(d["rows"][:, i], p[f"table{i}"]) for i in range(tables)]
        z = L.stack(seen, dim=1)
        pairs = L.matmul(z, z.transpose(1, 2)).reshape(n, -1)
        h = F.relu(linear(F, p, "c", L.cat([dense, pairs], dim=1)))
        score = linear(F, p, "e", F.relu(linear(F, p, "d", h))).reshape(-1)
        return F.binary_cross_entropy_with_logits(score, d["clicked"])

    clicked = draw.below(2, n).astype(np.float32)
    data = {"dense": draw.normal(n, 13), "rows": draw.below(rows, n, tables), "clicked": clicked}
    return Program(draw.made, data, loss)


def graph_network(size: Size) -> Program:
    """Messages along the edges of a graph, summed where they arrive."""
    nodes, edges, w = of(size, (20, 60, 8), (2000, 16_000, 32), (50_000, 400_000, 64))
    draw = Draw()
    for i in range(3):
        draw.linear(f"{i}.message", w, w)
        draw.linear(f"{i}.self", w, w)
    draw.linear("out", w, 16)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        h = d["x"]
        for i in range(3):
            sent = linear(F, p, f"{i}.message", h)[d["source"]]
            got = L.zeros_like(h).index_add(0, d["target"], sent)
            h = F.relu(linear(F, p, f"{i}.self", h) + got / 8.0)
        return F.cross_entropy(linear(F, p, "out", h), d["labels"])

    data = {
        "x": draw.normal(nodes, w), "source": draw.below(nodes, edges),
        "target": draw.below(nodes, edges), "labels": draw.below(16, nodes),
    }  # fmt: skip
    return Program(draw.made, data, loss)


def point_net(size: Size) -> Program:
    """Points of a cloud through shared layers with batch norm, and their maximum."""
    n, points, widths = of(
        size, (2, 16, [3, 8, 16]), (8, 256, [3, 64, 128, 256]), (32, 1024, [3, 64, 128, 1024])
    )
    draw = Draw()
    for i, (a, b) in enumerate(pairwise(widths)):
        draw.weight(f"{i}", b, a, 1)
        draw.norm(f"{i}.norm", b)
    draw.linear("out", widths[-1], 40)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["x"]
        for i in range(len(widths) - 1):
            x = F.relu(batch_norm(F, p, f"{i}.norm", F.conv1d(x, p[f"{i}"])))
        return F.cross_entropy(linear(F, p, "out", x.amax(dim=2)), d["labels"])

    return Program(draw.made, {"x": draw.normal(n, 3, points), "labels": draw.below(40, n)}, loss)


def radiance(size: Size) -> Program:
    """A radiance field: encoded points through a perceptron, colours summed along rays."""
    rays, samples, w, depth, bands = of(
        size, (8, 4, 16, 3, 2), (128, 32, 64, 4, 6), (4096, 64, 256, 6, 10)
    )
    draw = Draw()
    for i in range(depth):
        draw.linear(f"{i}", 6 * bands if i == 0 else w, w)
    draw.linear("out", w, 4)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        angles = (d["points"].unsqueeze(-1) * d["bands"]).reshape(rays, samples, -1)
        h = L.cat([L.sin(angles), L.cos(angles)], dim=-1)
        for i in range(depth):
            h = F.relu(linear(F, p, f"{i}", h))
        out = linear(F, p, "out", h)
        alpha = 1.0 - L.exp(-F.relu(out[:, :, 3]) * d["steps"])
        ones = L.ones_like(alpha[:, :1])
        through = L.cumprod(L.cat([ones, 1.0 - alpha[:, :-1] + 1e-6], dim=1), dim=1)
        colours = ((alpha * through).unsqueeze(-1) * L.sigmoid(out[:, :, :3])).sum(dim=1)
        return F.mse_loss(colours, d["colours"])

    data = {
        "points": draw.normal(rays, samples, 3), "bands": 2.0 ** np.arange(bands, dtype=np.float32),
        "steps": np.abs(draw.normal(rays, samples)), "colours": draw.normal(rays, 3),
    }  # fmt: skip
    return Program(draw.made, data, loss)


def gru_by_hand(size: Size) -> Program:
    """A gated recurrent unit written out, 32 steps, and the loss of each step's word."""
    n, t, w, words = of(size, (2, 4, 8, 20), (16, 16, 128, 1000), (64, 32, 256, 5000))
    draw = Draw()
    draw.weight("words", words, w)
    for name in ("zr", "h"):
        draw.linear(name, 2 * w, 2 * w if name == "zr" else w)
    draw.linear("out", w, words)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = F.embedding(d["text"], p["words"])
        h, states = L.zeros_like(x[:, 0]), []
        for i in range(t):
            zr = L.sigmoid(linear(F, p, "zr", L.cat([x[:, i], h], dim=1)))
            z, r = zr[:, :w], zr[:, w:]
            new = L.tanh(linear(F, p, "h", L.cat([x[:, i], r * h], dim=1)))
            h = (1.0 - z) * h + z * new
            states.append(h)
        y = linear(F, p, "out", L.stack(states, dim=1)[:, :-1]).reshape(-1, words)
        return F.cross_entropy(y, d["text"][:, 1:].reshape(-1))

    return Program(draw.made, {"text": draw.below(words, n, t)}, loss)


def windows(size: Size) -> Program:
    """Attention within windows that are shifted every other block (Liu et al., 2021)."""
    n, side, w, win, heads = of(size, (1, 8, 16, 4, 2), (2, 28, 64, 7, 2), (32, 56, 96, 7, 3))
    blocks, tokens, grid = 2, win * win, side // win
    draw = Draw()
    for i in range(blocks):
        for name, a, b in (("qkv", w, 3 * w), ("out", w, w), ("up", w, 4 * w), ("down", 4 * w, w)):
            draw.linear(f"{i}.{name}", a, b)
        draw.norm(f"{i}.n1", w)
        draw.norm(f"{i}.n2", w)
        draw.made[f"{i}.bias"] = draw.normal(heads, tokens, tokens, scale=0.02)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["x"]
        for i in range(blocks):
            h = layer_norm(F, p, f"{i}.n1", x, w)
            h = L.roll(h, (-(win // 2), -(win // 2)), (1, 2)) if i % 2 else h
            h = h.reshape(n, grid, win, grid, win, w).permute(0, 1, 3, 2, 4, 5)
            qkv = linear(F, p, f"{i}.qkv", h.reshape(n * grid * grid, tokens, w))
            qkv = qkv.reshape(n * grid * grid, tokens, 3, heads, w // heads).permute(2, 0, 3, 1, 4)
            scores = L.matmul(qkv[0] * (w // heads) ** -0.5, qkv[1].transpose(2, 3))
            mixed = L.matmul(F.softmax(scores + p[f"{i}.bias"], dim=-1), qkv[2])
            h = linear(F, p, f"{i}.out", mixed.permute(0, 2, 1, 3).reshape(-1, tokens, w))
            h = h.reshape(n, grid, grid, win, win, w).permute(0, 1, 3, 2, 4, 5)
            h = h.reshape(n, side, side, w)
            x = x + (L.roll(h, (win // 2, win // 2), (1, 2)) if i % 2 else h)
            up = F.gelu(linear(F, p, f"{i}.up", layer_norm(F, p, f"{i}.n2", x, w)))
            x = x + linear(F, p, f"{i}.down", up)
        return (x * x).mean()

    return Program(draw.made, {"x": draw.normal(n, side, side, w)}, loss)


def experts(size: Size) -> Program:
    """A mixture of experts: each token's outputs weighted by a gate."""
    n, w, hidden, count = of(size, (16, 8, 16, 3), (256, 128, 256, 4), (4096, 512, 1024, 8))
    draw = Draw()
    draw.linear("gate", w, count)
    draw.weight("up", count, w, hidden, fan=w)
    draw.weight("down", count, hidden, w, fan=hidden)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        gate = F.softmax(linear(F, p, "gate", d["x"]), dim=-1)
        h = F.silu(L.einsum("td,edh->eth", d["x"], p["up"]))
        y = L.einsum("eth,ehd,te->td", h, p["down"], gate)
        balance = (gate.mean(dim=0) ** 2).sum()
        return F.mse_loss(y, d["y"]) + 0.01 * balance

    return Program(draw.made, {"x": draw.normal(n, w), "y": draw.normal(n, w)}, loss)


def dense_net(size: Size) -> Program:
    """A block of convolutions that each see all results before (Huang et al., 2017)."""
    n, side, w, grow, layers = of(size, (2, 8, 8, 4, 3), (4, 28, 32, 16, 4), (64, 56, 64, 32, 6))
    draw = Draw()
    for i in range(layers):
        draw.norm(f"{i}.n1", w + i * grow)
        draw.weight(f"{i}.c1", 4 * grow, w + i * grow, 1, 1)
        draw.norm(f"{i}.n2", 4 * grow)
        draw.weight(f"{i}.c2", grow, 4 * grow, 3, 3)
    draw.linear("out", w + layers * grow, 10)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["x"]
        for i in range(layers):
            h = F.conv2d(F.relu(batch_norm(F, p, f"{i}.n1", x)), p[f"{i}.c1"])
            h = F.conv2d(F.relu(batch_norm(F, p, f"{i}.n2", h)), p[f"{i}.c2"], padding=1)
            x = L.cat([x, h], dim=1)
        return F.cross_entropy(linear(F, p, "out", x.mean(dim=(2, 3))), d["labels"])

    return Program(
        draw.made, {"x": draw.normal(n, w, side, side), "labels": draw.below(10, n)}, loss
    )


def contrastive(size: Size) -> Program:
    """Two views of each image, told apart from all others by a temperature (Chen et al., 2020)."""
    n, side, w = of(size, (8, 8, 8), (16, 32, 16), (1024, 32, 64))
    draw = Draw()
    for i, (a, b) in enumerate(((3, w), (w, 2 * w), (2 * w, 4 * w))):
        draw.weight(f"{i}", b, a, 3, 3)
        draw.norm(f"{i}.norm", b)
    draw.linear("out", 4 * w, 128)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["views"]
        for i in range(3):
            x = F.conv2d(x, p[f"{i}"], stride=2, padding=1)
            x = F.relu(batch_norm(F, p, f"{i}.norm", x))
        z = F.normalize(linear(F, p, "out", x.mean(dim=(2, 3))), dim=1)
        scores = L.matmul(z, z.T) / 0.1
        return F.cross_entropy(scores.masked_fill(d["self"], -1e9), d["partner"])

    eye = np.eye(2 * n, dtype=bool)
    partner = (np.arange(2 * n) + n) % (2 * n)
    data = {"views": draw.normal(2 * n, 3, side, side), "self": eye, "partner": partner}
    return Program(draw.made, data, loss)


def volumes(size: Size) -> Program:
    """A U-Net of volumes with group norm."""
    n, side, w = of(size, (1, 8, 4), (1, 24, 8), (4, 64, 16))
    draw = Draw()
    for name, a, b in (("a", 1, w), ("b", w, 2 * w), ("c", 2 * w, 4 * w), ("d", 6 * w, 2 * w),
                       ("e", 3 * w, w)):  # fmt: skip
        draw.weight(name, b, a, 3, 3, 3)
        draw.norm(name + ".norm", b)
    draw.weight("out", 1, w, 1, 1, 1)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        def block(name: str, x: Any) -> Any:
            y = F.conv3d(x, p[name], padding=1)
            return F.relu(F.group_norm(y, 4, p[name + ".norm.w"], p[name + ".norm.b"]))

        one = block("a", d["x"])
        two = block("b", F.max_pool3d(one, 2))
        three = block("c", F.max_pool3d(two, 2))
        up = F.interpolate(three, scale_factor=2, mode="nearest")
        up = block("d", L.cat([up, two], dim=1))
        up = F.interpolate(up, scale_factor=2, mode="nearest")
        score = F.conv3d(block("e", L.cat([up, one], dim=1)), p["out"])
        chance = L.sigmoid(score)
        overlap = 2.0 * (chance * d["mask"]).sum() / (chance.sum() + d["mask"].sum() + 1.0)
        return F.binary_cross_entropy_with_logits(score, d["mask"]) + 1.0 - overlap

    mask = draw.below(2, n, 1, side, side, side).astype(np.float32)
    return Program(draw.made, {"x": draw.normal(n, 1, side, side, side), "mask": mask}, loss)


def squeezed(size: Size) -> Program:
    """Inverted bottlenecks with depthwise convolutions and squeezed channels (Tan & Le, 2019)."""
    n, side, w, blocks = of(size, (2, 8, 8, 2), (4, 28, 16, 3), (64, 56, 32, 4))
    draw = Draw()
    for i in range(blocks):
        for name, shape in (("up", (4 * w, w, 1, 1)), ("deep", (4 * w, 1, 5, 5)),
                            ("down", (w, 4 * w, 1, 1))):  # fmt: skip
            draw.weight(f"{i}.{name}", *shape)
            draw.norm(f"{i}.{name}.norm", shape[0])
        draw.linear(f"{i}.s1", 4 * w, w // 4)
        draw.linear(f"{i}.s2", w // 4, 4 * w)
    draw.linear("out", w, 10)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x = d["x"]
        for i in range(blocks):
            h = F.silu(batch_norm(F, p, f"{i}.up.norm", F.conv2d(x, p[f"{i}.up"])))
            h = F.conv2d(h, p[f"{i}.deep"], padding=2, groups=4 * w)
            h = F.silu(batch_norm(F, p, f"{i}.deep.norm", h))
            s = linear(F, p, f"{i}.s2", F.silu(linear(F, p, f"{i}.s1", h.mean(dim=(2, 3)))))
            h = h * L.sigmoid(s).reshape(n, 4 * w, 1, 1)
            x = x + batch_norm(F, p, f"{i}.down.norm", F.conv2d(h, p[f"{i}.down"]))
        return F.cross_entropy(linear(F, p, "out", x.mean(dim=(2, 3))), d["labels"])

    return Program(
        draw.made, {"x": draw.normal(n, w, side, side), "labels": draw.below(10, n)}, loss
    )


def differential(size: Size) -> Program:
    """A perceptron as the slope of a differential equation, by Runge and Kutta's method."""
    n, w, hidden, steps = of(size, (4, 4, 8, 2), (128, 32, 64, 8), (1024, 64, 256, 16))
    draw = Draw()
    draw.linear("a", w, hidden)
    draw.linear("b", hidden, w)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        def slope(y: Any) -> Any:
            return linear(F, p, "b", L.tanh(linear(F, p, "a", y)))

        y, h = d["x"], 1.0 / steps
        for _ in range(steps):
            a = slope(y)
            b = slope(y + 0.5 * h * a)
            c = slope(y + 0.5 * h * b)
            y = y + h / 6.0 * (a + 2.0 * b + 2.0 * c + slope(y + h * c))
        return F.mse_loss(y, d["y"])

    return Program(draw.made, {"x": draw.normal(n, w), "y": draw.normal(n, w)}, loss)


def sets(size: Size) -> Program:
    """Attention among the members of padded sets, with a mask."""
    n, t, w, heads = of(size, (2, 6, 16, 2), (8, 64, 64, 4), (64, 256, 256, 8))
    draw = Draw()
    for i in range(2):
        for name, a, b in (("qkv", w, 3 * w), ("out", w, w), ("up", w, 4 * w), ("down", 4 * w, w)):
            draw.linear(f"{i}.{name}", a, b)
        draw.norm(f"{i}.n1", w)
        draw.norm(f"{i}.n2", w)

    def loss(L: Any, F: Any, p: Any, d: Any) -> Any:
        x, seen = d["x"], d["seen"]
        for i in range(2):
            h = layer_norm(F, p, f"{i}.n1", x, w)
            q, k, v = linear(F, p, f"{i}.qkv", h).reshape(n, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :])
            x = x + linear(F, p, f"{i}.out", mixed.transpose(1, 2).reshape(n, t, w))
            up = F.gelu(linear(F, p, f"{i}.up", layer_norm(F, p, f"{i}.n2", x, w)))
            x = x + linear(F, p, f"{i}.down", up)
        x = x.masked_fill(~seen[:, :, None], 0.0)
        mean = x.sum(dim=1) / seen.sum(dim=1, keepdim=True)
        return F.mse_loss(mean, d["y"])

    seen = np.arange(t) < draw.rng.integers(1, t + 1, (n, 1))
    data = {"x": draw.normal(n, t, w), "seen": seen, "y": draw.normal(n, w)}
    return Program(draw.made, data, loss)


#: All programs by name.
PROGRAMS: dict[str, Callable[[Size], Program]] = {
    f.__name__: f
    for f in (
        dcgan, wavenet, dlrm, graph_network, point_net, radiance, gru_by_hand, windows, experts,
        dense_net, contrastive, volumes, squeezed, differential, sets,
    )
} | program_texts_later.PROGRAMS  # fmt: skip
