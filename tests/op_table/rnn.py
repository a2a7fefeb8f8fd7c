from __future__ import annotations

import numpy as np

from symdnn.ops.nn import rnn as N
from symdnn.ops.nn.rnn_params import GATES, RNNShape
from tests.op_table.record import OpCase, normal

T, B, X, H = 4, 3, 2, 3


def sig(v):
    return 1 / (1 + np.exp(-v))


def named(w, s, features):
    """The documented layout, read with nothing but counters."""
    at, out = 0, {}
    keys = [(layer, d) for layer in range(s.num_layers) for d in range(s.directions)]
    for layer, d in keys:
        width = s.output_size if layer else (0 if s.input_mode == "skip" else features)
        for kind, columns in (("W", width), ("R", s.hidden_size)):
            for gate in GATES[s.rnn_mode]:
                n = columns * s.hidden_size
                out[layer, d, kind, gate] = w[at : at + n].reshape(s.hidden_size, columns)
                at += n
    for layer, d in keys:
        for kind in ("bW", "bR"):
            for gate in GATES[s.rnn_mode]:
                out[layer, d, kind, gate] = w[at : at + s.hidden_size]
                at += s.hidden_size
    assert at == len(w)
    return out


def slow_step(mode, part, x, h, c):
    """One step of one sequence, gate by gate."""

    def inp(g):
        m = part("W", g)
        return (m @ x if m.shape[1] else x) + part("bW", g)

    def rec(g):
        return part("R", g) @ h + part("bR", g)

    if mode == "lstm":
        i, f, o = (sig(inp(g) + rec(g)) for g in "ifo")
        c = f * c + i * np.tanh(inp("g") + rec("g"))
        return o * np.tanh(c), c
    if mode == "gru":
        r, z = sig(inp("r") + rec("r")), sig(inp("z") + rec("z"))
        return (1 - z) * np.tanh(inp("n") + r * rec("n")) + z * h, c
    a = inp("h") + rec("h")
    return (np.tanh(a) if mode == "rnn_tanh" else np.where(a > 0, a, 0)), c


def slow_rnn(s, w, x, hx, cx=None, lengths=None):
    """Each sequence alone, cut to its length."""
    parts = named(w, s, x.shape[2])
    y = np.zeros((*x.shape[:2], s.output_size))
    hy, cy = np.array(hx), None if cx is None else np.array(cx)
    for b in range(x.shape[1]):
        n = x.shape[0] if lengths is None else int(lengths[b])
        seq = [x[t, b] for t in range(n)]
        for layer in range(s.num_layers):
            outs = []
            for d in range(s.directions):
                k = layer * s.directions + d
                h, c = hx[k, b], None if cx is None else cx[k, b]
                steps = []
                for v in reversed(seq) if d else seq:
                    h, c = slow_step(
                        s.rnn_mode, lambda a, g, k=(layer, d): parts[(*k, a, g)], v, h, c
                    )
                    steps.append(h)
                hy[k, b] = h
                if cy is not None:
                    cy[k, b] = c
                outs.append(steps[::-1] if d else steps)
            seq = [np.concatenate(v) for v in zip(*outs, strict=True)]
        for t in range(n):
            y[t, b] = seq[t]
    return (y, hy) if cy is None else (y, hy, cy)


def block(s):
    return N.RNNBlock(
        "float64", s.hidden_size, s.num_layers, s.rnn_mode, s.input_mode, s.direction_mode
    )


def lengths_draw(rng):
    return np.array([2, 4, 1], "int32")


def case(mode, layers=1, bi=False, skip=False, lengths=False, dtype="float64"):
    s = RNNShape(
        mode, H, layers, "skip" if skip else "linear", "bidirectional" if bi else "unidirectional"
    )
    features = H if skip else X
    depth = layers * s.directions
    cell = mode == "lstm"
    draws = [normal(s.size(features), dtype=dtype), normal(T, B, features, dtype=dtype)]
    draws += [normal(depth, B, H, dtype=dtype)] * (1 + cell)
    draws += [lengths_draw] * lengths

    def split(args):
        cx = args[3] if cell else None
        return args[:3], cx, args[-1] if lengths else None

    def build(*args):
        (w, x, hx), cx, n = split(args)
        return tuple(block(s).apply(w, x, hx, cx, lengths=n))

    def expected(*args):
        (w, x, hx), cx, n = split([a.astype("f8") if a.dtype.kind == "f" else a for a in args])
        return slow_rnn(s, w, x, hx, cx, n)

    name = f"rnn_{mode}_{layers}" + "_bi" * bi + "_skip" * skip + "_lengths" * lengths
    return OpCase(
        f"{name}_{dtype}",
        (N.RNNForward, N.RNNGrad),
        build,
        tuple(draws),
        expected,
        rtol={"float64": 1e-6, "float32": 1e-5, "float16": 1e-2}[dtype],
    )


CASES = [
    case(mode, layers, bi, skip, lengths)
    for mode in GATES
    for layers, bi, skip, lengths in (
        (1, False, False, False),
        (2, False, False, False),
        (1, True, False, False),
        (2, True, False, True),
        (2, False, True, False),
        (3, True, True, True),
    )
] + [
    case("lstm", 2, dtype="float32"),
    case("gru", 2, lengths=True, dtype="float32"),
    case("lstm", dtype="float16"),
]
