"""Attention of opset 23 and later as one op: which nodes, and their values in tight corners."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.onnx import compile
from symdnn.ops.attention.attention import Attention
from tests.onnx.models import model
from tests.onnx.ops.test_recurrent import ops_of

B, H, G, S, K, D = 2, 4, 2, 3, 5, 8


def arrays(past=0, keys=K, **more):
    rng = np.random.default_rng(0)
    found = {"q": rng.normal(size=(B, H, S, D)), "k": rng.normal(size=(B, G, keys, D)),
             "v": rng.normal(size=(B, G, keys, D))}  # fmt: skip
    found = {n: a.astype("float32") for n, a in found.items()}
    if past:
        for name in ("pk", "pv"):
            found[name] = rng.normal(size=(B, G, past, D)).astype("float32")
    return {**found, **more}


def compiled(given, attributes="", outs=1, opset=25):
    places = ["q", "k", "v", "mask", "pk", "pv", "lengths"]
    kinds = {"bool": "bool", "float32": "float", "int64": "int64"}
    heads = ", ".join(
        f"{kinds[a.dtype.name]}[{', '.join(map(str, a.shape))}] {n}" for n, a in given.items()
    )
    names = ["y", "a", "b", "scores"][:outs]
    results = ", ".join(f"float {n}" for n in names)
    operands = ", ".join(n if n in given else "" for n in places)
    options = f"<{attributes}>" if attributes else ""
    text = f"g ({heads}) => ({results}) {{ {', '.join(names)} = Attention {options} ({operands}) }}"
    return compile(model(text, opset=opset))


def attended(given, seen, bias=0.0):
    """By NumPy, in float64; ``seen`` and ``bias`` broadcast over (B, H, S, keys)."""
    k, v = (np.concatenate([given[p], given[n]], 2) if p in given else given[n]
            for p, n in (("pk", "k"), ("pv", "v")))  # fmt: skip
    k, v = (np.repeat(a.astype("float64"), H // G, 1) for a in (k, v))
    s = given["q"].astype("float64") @ k.swapaxes(2, 3) / np.sqrt(D) + bias
    s = np.where(np.broadcast_to(seen, s.shape), s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total > 0, total, 1) @ v


QUERY, KEY = np.arange(S)[:, None], np.arange(K)[None]
MASK = np.random.default_rng(1).random((B, 1, S, K)) < 0.6
LENGTHS = np.array([5, 2])
CASES = {
    "plain": (arrays(), "", True, 0.0),
    "causal": (arrays(), "is_causal=1", KEY <= QUERY, 0.0),
    "window": (arrays(), "left_window_size=1, right_window_size=2",
               (KEY >= QUERY - 1) & (KEY <= QUERY + 2), 0.0),
    "mask": (arrays(mask=MASK), "", MASK, 0.0),
    "a short mask": (arrays(mask=MASK[..., :3].copy()), "is_causal=1",
                     np.concatenate([MASK[..., :3], np.zeros((B, 1, S, 2), bool)], 3)
                     & (KEY <= QUERY), 0.0),
    "lengths": (arrays(lengths=LENGTHS), "", LENGTHS[:, None, None, None] > KEY, 0.0),
    "causal from lengths": (arrays(lengths=LENGTHS), "is_causal=1",
                            (LENGTHS[:, None, None, None] > KEY)
                            & (QUERY + LENGTHS[:, None, None, None] - S >= KEY), 0.0),
    "a cache": (arrays(past=2, keys=S), "is_causal=1", KEY <= QUERY + 2, 0.0),
    "a cache and other keys": (arrays(past=2, keys=3, mask=np.ones((S, 5), bool)),
                               "is_causal=1, left_window_size=1",
                               (KEY <= QUERY + 2) & (KEY >= QUERY + 1), 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    given, attributes, seen, bias = CASES[name]
    f = compiled(given, attributes)
    np.testing.assert_allclose(f(**given)["y"], attended(given, seen, bias), rtol=1e-4, atol=1e-5)
    assert any(isinstance(op, Attention) for op in ops_of(f.graph.expressions.values()))


def test_a_float_mask_that_hides_all_keys_of_a_query():
    """Its row is zero, as the standard says, and no NaN."""
    mask = np.zeros((S, K), "float32")
    mask[1] = -np.inf
    given = arrays(mask=mask)
    y = compiled(given)(**given)["y"]
    np.testing.assert_allclose(y, attended(given, True, mask), rtol=1e-4, atol=1e-5)
    assert not y[:, :, 1].any()


def test_what_only_the_definition_says_runs_by_it():
    given = arrays()
    f = compiled(given, "qk_matmul_output_mode=0", outs=4)
    assert not any(isinstance(op, Attention) for op in ops_of(f.graph.expressions.values()))
    assert f(**given)["scores"].shape == (B, H, S, K)
