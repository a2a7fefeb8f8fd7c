"""Convolutions with strides, folded into channels: numbers in an emulator, refusals, records."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from symdnn.gpu.binding import nvrtc
from symdnn.gpu.conv import folded
from symdnn.gpu.conv import search as searches
from symdnn.gpu.conv import tuning as conv_tuning
from symdnn.gpu.conv.candidate import Candidate
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.conv.tuning import candidate_of, candidate_record
from symdnn.gpu.conv_table import conv
from symdnn.gpu.cudnn.graph_plan import GraphPlan
from symdnn.gpu.device.array import RawArray
from tests.gpu.emulator import AVAILABLE, HostEnv

PLAN = GraphPlan(58, (), "eng58", 1000, True)
FIRST = ((2, 3, 23, 18), (5, 3, 7, 7))

needs_gpp = pytest.mark.skipif(not AVAILABLE, reason="needs g++")


def sums(s: ConvSignature, given: dict[str, Any]) -> Any:
    """The result in float64 of arrays in NHWC."""
    x, w, y = (given[r].astype("f8") if r in given else np.zeros(s.in_memory(r)) for r in "xwy")
    padded = np.pad(x, [(0, 0), *((p, p) for p in s.padding), (0, 0)])
    for i in range(s.w[2]):
        for j in range(s.w[3]):
            a, b = (s.w[2] - 1 - i, s.w[3] - 1 - j) if s.flip else (i, j)
            stop = (i + s.stride[0] * s.y[2], j + s.stride[1] * s.y[3])
            part = padded[:, i : stop[0] : s.stride[0], j : stop[1] : s.stride[1]]
            if s.direction == "fwd":
                y += np.einsum("nhwc,kc->nhwk", part, w[:, a, b])
            else:
                w[:, a, b] = np.einsum("nhwc,nhwk->kc", part, y)
    return y if s.direction == "fwd" else w


class Plan:
    """A launch of a plan that computes the convolution of its signature."""

    def __init__(self, s: ConvSignature) -> None:
        self.signature = s

    def __call__(self, handle: int, at: dict[str, int], workspace: int) -> None:
        s = self.signature
        seen = {r: memory(at[r], s.in_memory(r), s.dtype) for r in "xwy"}
        role = "y" if s.direction == "fwd" else "w"
        seen[role][...] = sums(s, {r: a for r, a in seen.items() if r != role})


def memory(pointer: int, shape: tuple[int, ...], dtype: str) -> Any:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    raw = (ctypes.c_char * (int(np.prod(shape)) * kind.itemsize)).from_address(pointer)
    return np.frombuffer(raw, kind).reshape(shape)


class Env(HostEnv):
    """The emulator's environment, with cuDNN's handle."""

    cudnn = 7


@needs_gpp
@pytest.mark.parametrize("whole", [0, 1, 2])
@pytest.mark.parametrize("direction", ["fwd", "bwd_filter"])
@pytest.mark.parametrize(
    ("shapes", "pad", "stride", "dtype", "flip"),
    [
        (FIRST, 3, 2, "bfloat16", False),
        (FIRST, 3, 2, "float32", True),
        (((2, 1, 20, 21), (4, 1, 5, 3)), (0, 1), (4, 3), "float16", True),
        (((1, 3, 32, 32), (8, 3, 4, 4)), 0, 4, "bfloat16", False),
        (((1, 5, 9, 12), (3, 5, 3, 3)), 1, (1, 2), "float16", False),
        (((1, 2, 9, 9), (3, 2, 1, 1)), 0, 2, "float16", False),
    ],
)
def test_numbers(
    monkeypatch: pytest.MonkeyPatch, rng: Any, direction: str, shapes: Any, pad: Any, stride: Any,
    dtype: str, flip: bool, whole: int,
) -> None:  # fmt: skip
    s = conv(
        *shapes, pad, stride, direction=direction, dtype=dtype, layout="NHWC", flip=flip, tf32=True
    )
    assert folded.refusal(s) == ""
    monkeypatch.setattr(folded.graph, "launch", lambda form, plan, handle: Plan(form.signature))
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    role = "y" if direction == "fwd" else "w"
    given = {
        r: rng.standard_normal(s.in_memory(r)).astype(kind) for r in "xwy" if r != role
    }  # fmt: skip
    given[role] = np.full(s.in_memory(role), np.nan, kind)
    candidate = Candidate.of_folded(s, whole, PLAN)
    env = Env(candidate.total_bytes(s))
    run = candidate.prepared(s, 7)
    run.load(env)
    run(env, {r: RawArray(a.ctypes.data, a.shape, dtype) for r, a in given.items()})
    want = sums(s, {r: a for r, a in given.items() if r != role})
    got = given[role].astype("f8")
    assert np.linalg.norm(got - want) < {2: 4e-3, 4: 1e-6}[kind.itemsize] * np.linalg.norm(want)


def first(**changed: Any) -> ConvSignature:
    """The first convolution of a residual network."""
    s = conv((64, 3, 224, 224), (64, 3, 7, 7), 3, 2, dtype="bfloat16", layout="NHWC")
    return replace(s, **changed)


@pytest.mark.parametrize(
    ("whole", "x", "w"),
    [
        (0, (64, 16, 115, 115), (64, 16, 4, 4)),
        (1, (64, 48, 115, 112), (64, 48, 4, 1)),
        (2, (64, 152, 112, 112), (64, 152, 1, 1)),
    ],
)
def test_the_convolution_that_is_left(whole: int, x: Any, w: Any) -> None:
    s = folded.inner(first(), whole)
    assert (s.x, s.w, s.y) == (x, w, first().y)
    assert (s.stride, s.padding) == ((1, 1), (0, 0))


def test_variants_are_different_and_not_too_large() -> None:
    assert folded.variants(first()) == [0, 1, 2]
    assert folded.variants(first(x=(512, 3, 224, 224), y=(512, 64, 112, 112))) == [0, 1]
    patches = conv((8, 3, 224, 224), (768, 3, 16, 16), 0, 16, dtype="bfloat16", layout="NHWC")
    assert folded.variants(patches) == [0]
    assert folded.inner(patches, 0).x == (8, 768, 14, 14)


@pytest.mark.parametrize(
    "changed",
    [
        {"stride": (1, 1)}, {"layout": "NCHW"}, {"groups": 3}, {"dilation": (2, 2)},
        {"dtype": "float64"}, {"dtype": "float32", "allow_tf32": False}, {"legacy_only": True},
        {"direction": "bwd_data"}, {"x": (64, 8, 224, 224)},
        {"x": (9000, 3, 224, 224), "y": (9000, 64, 112, 112)},
    ],
)  # fmt: skip
def test_what_is_refused(changed: dict[str, Any]) -> None:
    assert folded.refusal(first()) == ""
    assert folded.refusal(first(**changed))


def test_a_measurement_tries_it_and_finds_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "why_blocked", lambda s, candidate: "")
    monkeypatch.setattr(Search, "_heuristics", lambda self: iter(()))
    plain = [replace(PLAN, name="plain"), replace(PLAN, engine=3, name="later")]
    plans = {False: plain, True: [PLAN, replace(PLAN, engine=3)]}
    monkeypatch.setattr(
        searches, "graph_plans", lambda s, handle, most: (plans[s.stride == (1, 1)][:most], "")
    )
    monkeypatch.setattr(Candidate, "prepared", lambda self, s, handle: None)
    search = Search(first(wanted="time_once"), 7)
    found = list(search.guesses())
    names = [f"folded {n} eng58" for n in (0, 1, 2, 0, 1, 2)]
    assert [c.name for c in found] == ["plain", names[0], "later", *names[1:]]
    assert len({c.key for c in found}) == 8
    for c in (c for c in found if c.api == folded.NAME):
        assert search.again(c.key) == c
        assert candidate_of(search, candidate_record(c)) == c
    guesses = Search(first(wanted="guess_once"), 7).guesses()
    assert [c.name for c in guesses] == ["plain", "later"]
    small = Search(first(wanted="time_once", workspace_limit=1 << 20), 7)
    assert [c.name for c in small.guesses()] == ["plain", "later"]


def test_a_record_without_it_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_tuning, "device_key", lambda **fields: fields)
    monkeypatch.setattr(conv_tuning, "queried_context", lambda: SimpleNamespace(index=0))
    assert conv_tuning.key_of(first(), "time")["own"] == [folded.NAME]
    assert "own" not in conv_tuning.key_of(first(stride=(1, 1)), "time")


def test_the_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded.graph, "launch", lambda form, plan, handle: None)
    for flip in (0, 1):
        nvrtc.compile_cubin(folded.FoldedLaunch(first(), flip, PLAN, 7)._source(flip), (9, 0))
