from __future__ import annotations

import numpy as np

from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.scores import Scores
from symdnn.ops.vendor.gpudnn_attention import GpuDnnAttention, GpuDnnAttentionGrad
from tests.op_table.record import OpCase, normal

QKV = (normal(2, 4, 5, 3), normal(2, 2, 6, 3), normal(2, 2, 6, 2))
STATE = np.array([17, 5], np.uint64)


def slow_attention(how, q, k, v, mask=None, keys=None, queries=None):
    """Loops over each query."""
    b, h, t, d = q.shape
    share, s = h // k.shape[1], k.shape[2]
    scale = d**-0.5 if how.scale is None else how.scale
    out, lse = np.zeros((b, h, t, v.shape[3])), np.full((b, h, t), -np.inf)
    for n, head, i in np.ndindex(b, h, t):
        m, last = (t if queries is None else queries[n]), (s if keys is None else keys[n])
        shift = last - m if how.bottom_right else 0
        terms = {}
        for j in range(last if i < m else 0):
            late = how.right is not None and j > i + shift + how.right
            early = how.left is not None and j < i + shift - how.left
            score = float(q[n, head, i] @ k[n, head // share, j]) * scale
            if how.softcap:
                score = how.softcap * np.tanh(score / how.softcap)
            if mask is not None:
                at = mask[
                    n % mask.shape[0], head % mask.shape[1], i % mask.shape[2], j % mask.shape[3]
                ]
                if mask.dtype == bool:
                    late |= not at
                else:
                    score += at
            if not late and not early and score > -np.inf:
                terms[j] = score
        if terms:
            lse[n, head, i] = np.logaddexp.reduce(list(terms.values()))
            for j, score in terms.items():
                out[n, head, i] += np.exp(score - lse[n, head, i]) * v[n, head // share, j]
    return out, lse


def mask_of(kind):
    def draw(rng):
        if kind == "bool":
            found = rng.random((1, 1, 5, 6)) > 0.4
            found[0, 0, 2] = False  # a query that sees nothing
            return found
        found = rng.standard_normal((1, 4, 5, 6))
        found[0, 1, 2, 3] = -np.inf
        return found

    return draw


def slow_gradient(q, k, v, out, lse, dout):
    """Of causal attention, with two query heads for each head of keys and values."""
    q, k, v, out, lse, dout = (a.astype("f8") for a in (q, k, v, out, lse, dout))
    k, v = np.repeat(k, 2, 1), np.repeat(v, 2, 1)
    seen = np.tril(np.ones((q.shape[2], k.shape[2]), bool))
    s = np.einsum("bhid,bhjd->bhij", q, k) / q.shape[3] ** 0.5
    p = np.where(seen, np.exp(s - lse[..., None]), 0)
    slope = (
        np.einsum("bhie,bhje->bhij", dout, v) - np.einsum("bhie,bhie->bhi", dout, out)[..., None]
    )
    ds = p * slope / q.shape[3] ** 0.5
    dk, dv = np.einsum("bhij,bhid->bhjd", ds, q), np.einsum("bhij,bhie->bhje", p, dout)
    shared = [g.reshape(g.shape[0], -1, 2, *g.shape[2:]).sum(2) for g in (dk, dv)]
    return np.einsum("bhij,bhjd->bhid", ds, k), *shared


def record(name, how, *more, only_result=False, **options):
    """A record of the result and, where every query sees a key, of the log-sum-exp."""

    def build(*vs):
        found = Attention(how)(*vs)
        return found[0] if only_result else tuple(found[:2])

    def expected(*arrays):
        extras = dict(zip(how.extras, arrays[3:], strict=True))
        given = {"mask": "mask", "key_lengths": "keys", "query_lengths": "queries"}
        out = slow_attention(how, *arrays[:3], **{given[k]: v for k, v in extras.items()})
        return out[0] if only_result else out

    return OpCase(
        f"attention_{name}", (Attention, AttentionGrad), build, (*QKV, *more), expected,
        static=((2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 2), *(None for _ in more)) if more else None,
        **options,
    )  # fmt: skip


CASES = [
    record("plain", Scores()),
    OpCase(
        "attention_no_keys", (Attention, AttentionGrad), lambda *vs: Attention(Scores())(*vs),
        (QKV[0], normal(2, 2, 0, 3), normal(2, 2, 0, 2)),
        lambda *a: slow_attention(Scores(), *a), grad=False,  # of differences of -inf
    ),
    record("scale", Scores(scale=0.3)),
    record("softcap", Scores(softcap=1.5)),
    record("causal", Scores(right=0)),
    record("window", Scores(left=2, right=1)),
    record("bottom_right", Scores(left=3, right=0, bottom_right=True)),
    record(
        "bool_mask", Scores(extras=("mask",)), mask_of("bool"), only_result=True,
    ),
    record("float_mask", Scores(extras=("mask",)), normal(1, 4, 5, 6)),
    record("hiding_mask", Scores(extras=("mask",)), mask_of("float"), grad=False),
    record(
        "lengths", Scores(right=0, bottom_right=True, extras=("key_lengths", "query_lengths")),
        lambda rng: np.array([4, 0]), lambda rng: np.array([2, 5]), only_result=True,
    ),
    OpCase(
        "attention_dropout", (Attention, AttentionGrad),
        lambda q, k, v: tuple(
            Attention(Scores(extras=("state", "rate")))(q, k, v, STATE, np.float32(0.4))[:2]
        ),
        QKV,
    ),
    *(
        OpCase(
            f"{name}_{dtype}", (op,), lambda *vs, op=op: op(Scores(right=0))(*vs)[0],
            tuple(normal(*s, dtype=dtype) for s in ((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8))),
            lambda *a: slow_attention(Scores(right=0), *(x.astype("f8") for x in a))[0],
            grad=False, rtol=rtol,
        )
        for dtype, rtol in (("float32", 1e-5), ("float16", 4e-3))
        for name, op in (("attention", Attention), ("gpudnn_attention", GpuDnnAttention))
    ),
    *(
        OpCase(
            f"{name}_{dtype}", (op,), lambda *vs, op=op: op(Scores(right=0))(*vs),
            (
                *(normal(*s, dtype=dtype) for s in ((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8))),
                normal(2, 4, 5, 8, dtype=dtype),
                lambda rng: (rng.random((2, 4, 5)) + 2).astype("float32"),
                normal(2, 4, 5, 8, dtype=dtype),
            ),
            slow_gradient, grad=False, rtol=rtol,
            static=(*((2, h, None, 8) for h in (4, 2, 2, 4)), None, None),
        )
        for dtype, rtol in (("float32", 1e-4), ("float16", 1e-2))
        for name, op in (
            ("attention_grad", AttentionGrad), ("gpudnn_attention_grad", GpuDnnAttentionGrad),
        )
    ),
]  # fmt: skip
