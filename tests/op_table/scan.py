"""Loops: every role of an input, taps, truncation, ``until``, nesting; graphs as ops."""

from __future__ import annotations

import numpy as np

from symdnn.graph.operators import operator
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_binomial import BinomialCheckpoint, BinomialSchedule
from symdnn.ops.control.scan_builder import scan, until
from symdnn.ops.control.scan_checkpoints import scan_checkpoints
from tests.op_table.record import OpCase, integers, normal, uniform


def rnn(x, h0, w, u):
    return scan(lambda xt, h: operator("tanh")(xt.dot(u) + h.dot(w)), x, h0)[0]


def rnn_numpy(x, h0, w, u):
    h, out = h0, []
    for xt in x:
        h = np.tanh(xt @ u + h @ w)
        out.append(h)
    return np.array(out)


def binomial(x, h0, w, u):
    def step(xt, h):
        return operator("tanh")(xt.dot(u) + h.dot(w)), xt * w.sum()

    return scan_checkpoints(step, x, [h0, None], save_every_N=1, snapshots=8)[0]


def two_taps(x, init, a):
    def step(xt, last, before, a):
        return xt + a * before - 0.5 * last, xt * last

    return scan(step, x, [{"initial": init, "taps": [-1, -3]}, None], a)[0]


def two_taps_numpy(x, init, a):
    values, products = list(init), []
    for xt in x:
        products.append(xt * values[-1])
        values.append(xt + a * values[-3] - 0.5 * values[-1])
    return np.array(values[3:]), np.array(products)


def sequence_taps(x, y):
    return scan(lambda a, b, y: a * y + b * b, [{"input": x, "taps": [-2, 1]}, y])[0]


def sequence_taps_numpy(x, y):
    n = min(len(x) - 3, len(y))
    return np.array([x[t] * y[t] + x[t + 3] ** 2 for t in range(n)])


def powers(a):
    return scan(lambda p, a: p * a, None, a.ones_like(), a, n_steps=4)[0]


def last_of(x, s0):
    return scan(lambda xt, s: operator("sin")(s) * xt, x, s0, go_backwards=True)[0][-1]


def last_of_numpy(x, s0):
    for xt in x[::-1]:
        s0 = np.sin(s0) * xt
    return s0


def stops(x, s0):
    def step(xt, s):
        new = s + xt * xt
        return [new, new * xt], until(new > 3.0)

    return scan(step, x, [s0, None])[0]


def stops_numpy(x, s0):
    sums, products = [], []
    for xt in x:
        s0 = s0 + xt * xt
        sums.append(s0)
        products.append(s0 * xt)
        if s0 > 3.0:
            break
    return np.array(sums), np.array(products)


def nested(x, w):
    def row(r, w):
        return scan(lambda e, s: s * w + e, r, w * 0)[0]

    return scan(row, x, non_sequences=w)[0]


def nested_numpy(x, w):
    out = np.zeros_like(x)
    for i, r in enumerate(x):
        s = 0.0
        for j, e in enumerate(r):
            s = s * w + e
            out[i, j] = s
    return out


def counted(x, n):
    def step(k, s, x):
        return k + 1, s + x * k.astype("float64")

    return scan(step, None, [np.int64(0), x.zeros_like()], x, n_steps=n)[0][1]


def counted_numpy(x, n):
    return np.array([x * sum(range(t + 1)) for t in range(int(n))]).reshape(int(n), *x.shape)


CASES = [
    OpCase(
        "scan_rnn",
        (Scan,),
        rnn,
        (normal(4, 3), normal(2), normal(2, 2), normal(3, 2)),
        rnn_numpy,
    ),
    OpCase(
        "scan_two_taps",
        (Scan,),
        two_taps,
        (normal(5, 2), normal(3, 2), normal(2)),
        two_taps_numpy,
    ),
    OpCase(
        "scan_sequence_taps", (Scan,), sequence_taps, (normal(7), normal(5)), sequence_taps_numpy
    ),
    OpCase(
        "scan_powers",
        (Scan,),
        powers,
        (normal(3),),
        lambda a: np.array([a, a**2, a**3, a**4]),
    ),
    OpCase("scan_last", (Scan,), last_of, (normal(4), normal()), last_of_numpy),
    OpCase("scan_until", (Scan,), stops, (uniform(0.9, 1.3, 6), normal(scale=0.1)), stops_numpy),
    OpCase("scan_nested", (Scan,), nested, (normal(2, 3), normal()), nested_numpy),
    OpCase(
        "scan_integers",
        (Scan,),
        counted,
        (normal(2), integers(3, 4)),
        counted_numpy,
        options={"single": False},
    ),
    OpCase(
        "scan_no_step",
        (Scan,),
        counted,
        (normal(2), integers(0, 1)),
        counted_numpy,
        grad=False,
        options={"single": False},
    ),
    OpCase(
        "binomial_schedule",
        (BinomialSchedule,),
        lambda n: BinomialSchedule(2)(n),
        (integers(6, 7),),
        lambda n: [[0, 3, 6], [0, 2, 3, 3, 5, 5, 5], [1, 1, 1, 0, 1, 0], [2, 2, 2, 1, 2]],
        grad=False,
    ),
    OpCase(
        "scan_binomial",
        (BinomialCheckpoint,),
        binomial,
        (normal(5, 3), normal(2, 3), normal(3, 3), normal(3, 3)),
        lambda *a: (rnn_numpy(*a)[-1:], a[0][-1:] * a[2].sum()),
    ),
]
