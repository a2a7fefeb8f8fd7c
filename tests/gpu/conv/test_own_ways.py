"""Convolutions by our kernels and cuBLASLt, in an emulator: numbers of all directions, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding import libcublaslt, nvrtc
from symdnn.gpu.codegen.device_source import specialised
from symdnn.gpu.conv import fourier, pointwise
from symdnn.gpu.conv import search as searches
from symdnn.gpu.conv import tuning as conv_tuning
from symdnn.gpu.conv.candidate import OWN, OWN_API, Candidate
from symdnn.gpu.conv.search import Search
from symdnn.gpu.conv.signature import ConvSignature
from symdnn.gpu.conv.tuning import candidate_of, candidate_record
from symdnn.gpu.conv_table import conv
from symdnn.gpu.device.array import RawArray
from tests.gpu.emulator import AVAILABLE
from tests.gpu.gemm.computing_cublaslt import ComputingCublasLt, GemmHostEnv

needs_gpp = pytest.mark.skipif(not AVAILABLE, reason="needs g++")


@pytest.fixture(autouse=True)
def lt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = ComputingCublasLt()
    monkeypatch.setattr(libcublaslt, "library", lambda: made)
    fourier._plan.cache_clear()
    pointwise._way.cache_clear()
    yield made
    fourier._plan.cache_clear()
    pointwise._way.cache_clear()


def wanted(s: ConvSignature, given: dict[str, Any]) -> Any:
    """The result in float64, in NCHW."""
    x, w, y = (given[r].astype("f8") if r in given else np.zeros(getattr(s, r)) for r in "xwy")
    role = {"fwd": "y", "bwd_data": "x", "bwd_filter": "w"}[s.direction]
    pads = [(0, 0), (0, 0), *((p, p) for p in s.padding)]
    padded = np.pad(x, pads)
    height, width = s.y[2:]
    for i, j in product(range(s.w[2]), range(s.w[3])):
        a, b = (s.w[2] - 1 - i, s.w[3] - 1 - j) if s.flip else (i, j)
        part = padded[:, :, i : i + height, j : j + width]
        if role == "y":
            y += np.einsum("nchw,kc->nkhw", part, w[:, :, a, b])
        elif role == "x":
            part += np.einsum("nkhw,kc->nchw", y, w[:, :, a, b])
        else:
            w[:, :, a, b] = np.einsum("nchw,nkhw->kc", part, y)
    if role == "x":
        top, left = s.padding
        return padded[:, :, top : top + s.x[2], left : left + s.x[3]]
    return y if role == "y" else w


def computed(s: ConvSignature, given: dict[str, Any], number: int, **factors: float) -> Any:
    """The result of one of our ways, in NCHW; ``given`` has the result where it is added to."""
    candidate = Candidate.of_ours(s, number)
    order = (0, 1, 2, 3) if s.layout == "NCHW" else (0, 2, 3, 1)
    memory = {r: v.transpose(order).copy() for r, v in given.items()}
    role = {"fwd": "y", "bwd_data": "x", "bwd_filter": "w"}[s.direction]
    if role not in memory:
        shape = [getattr(s, role)[i] for i in order]
        memory[role] = np.full(shape, np.nan, "f4")
    env = GemmHostEnv(candidate.workspace_bytes)
    arrays = {r: RawArray(v.ctypes.data, v.shape, "float32") for r, v in memory.items()}
    run = candidate.prepared(s, None)
    run.load(env)
    run(env, arrays, **factors)
    env.check_workspace()
    return memory[role].transpose(np.argsort(order))


def drawn(s: ConvSignature, rng: Any) -> dict[str, Any]:
    role = {"fwd": "y", "bwd_data": "x", "bwd_filter": "w"}[s.direction]
    return {r: rng.standard_normal(getattr(s, r)).astype("f4") for r in "xwy" if r != role}


def agree(got: Any, want: Any) -> None:
    assert np.linalg.norm(got - want) < 1e-6 * np.linalg.norm(want)


@needs_gpp
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_filters_of_one_pixel(rng: Any, direction: str, layout: str) -> None:
    s = conv((3, 70, 6, 5), (64, 70, 1, 1), direction=direction, layout=layout, tf32=False)
    given = drawn(s, rng)
    agree(computed(s, given, 0), wanted(s, given))


@needs_gpp
@pytest.mark.parametrize(("direction", "role"), [("fwd", "y"), ("bwd_filter", "w")])
def test_results_are_scaled_and_added_to(rng: Any, direction: str, role: str) -> None:
    s = conv((2, 600, 5, 5), (64, 600, 1, 1), direction=direction, tf32=False)
    s, given = replace(s, legacy_only=True), drawn(s, rng)
    old = rng.standard_normal(getattr(s, role)).astype("f4")
    got = computed(s, {**given, role: old}, 0, alpha=0.5, beta=2.0)
    agree(got, 0.5 * wanted(s, given) + 2.0 * old)


@needs_gpp
@pytest.mark.parametrize(
    ("x", "kernels", "size", "pad", "flip"),
    [((3, 16, 27, 27), 16, (5, 5), 2, False), ((2, 16, 28, 30), 32, (3, 2), (1, 2), True)],
)
def test_gradients_of_filters_by_transforms(
    rng: Any, x: tuple[int, ...], kernels: int, size: Any, pad: Any, flip: bool
) -> None:
    s = conv(x, (kernels, x[1], *size), pad, direction="bwd_filter", flip=flip, tf32=False)
    given = drawn(s, rng)
    given["x"] *= 1e4
    given["y"] *= 1e-6
    agree(computed(s, given, 1), wanted(s, given))


@pytest.mark.parametrize("number", [0, 1])
def test_what_is_refused(number: int) -> None:
    one = conv((4, 64, 16, 16), (64, 64, 1, 1), direction="bwd_filter", tf32=False)
    own = OWN[number]
    assert own.refusal(one) == ""
    for changed in (
        {"dtype": "bfloat16"},
        {"groups": 2},
        {"stride": (2, 2)},
    ):
        assert own.refusal(replace(one, **changed))
    few = conv((4, 8, 16, 16), (64, 8, 1, 1), direction="bwd_filter", tf32=False)
    assert own.refusal(few)
    rounded = replace(one, allow_tf32=True)  # six products for one that rounds are too many
    assert bool(own.refusal(rounded)) is (own is pointwise)
    other = (
        conv((4, 64, 16, 16), (64, 64, 3, 3), 1, tf32=False),
        conv((4, 64, 32, 32), (64, 64, 3, 3), 1, direction="bwd_filter", tf32=False),
    )
    assert all(own.refusal(s) for s in other)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Searches for a gradient of filters by some way, where cuDNN has one algorithm."""
    monkeypatch.setattr(searches, "why_blocked", lambda s, candidate: "")
    monkeypatch.setattr(Search, "planned", lambda self: iter(()))
    monkeypatch.setattr(Search, "_heuristics", lambda self: iter((0, 1)))
    listed = [Candidate("legacy", str(n), 0, True, n) for n in range(2)]
    monkeypatch.setattr(Search, "named", lambda self, number: listed[number])
    s = conv((4, 64, 16, 16), (64, 64, 1, 1), direction="bwd_filter", tf32=False)
    return lambda wanted, **changed: Search(replace(s, wanted=wanted, **changed), 0)


def test_a_measurement_tries_them_after_the_first_guess(search: Any) -> None:
    found = [c.name for c in search("time_once").guesses()]
    assert found == ["0", pointwise.NAME, fourier.NAME, "1"]
    for wanted in ("guess_once", "kept_once", "none"):
        assert [c.name for c in search(wanted).guesses()] == ["0", "1"]


@pytest.mark.parametrize(
    ("limit", "fitting"), [(1 << 20, []), (34 << 20, [pointwise.NAME]), (1 << 30, None)]
)
def test_limits_of_workspace_hold_for_them(
    search: Any, limit: int, fitting: list[str] | None
) -> None:
    names = [pointwise.NAME, fourier.NAME]
    one = search("time_once", workspace_limit=limit)
    found = {c.name: c.workspace_bytes for c in one.guesses()}
    assert list(found) == ["0", *(names if fitting is None else fitting), "1"]
    assert max(found.values()) <= limit
    assert {n for n in names if n not in found} <= set(one.refused)


def test_their_records_are_found_again(search: Any) -> None:
    for number in range(len(OWN)):
        found = Candidate.of_ours(search("time_once").signature, number)
        assert found.key == (OWN_API, number, False)
        assert found.deterministic
        for wanted in ("time_once", "kept_once"):
            assert candidate_of(search(wanted), candidate_record(found)) == found
    changed = search("time_once", stride=(2, 2))
    assert candidate_of(changed, candidate_record(found)) is None


def test_a_record_without_them_is_not_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice that was kept before there was a way of ours is measured again."""
    monkeypatch.setattr(conv_tuning, "device_key", lambda **fields: fields)
    monkeypatch.setattr(conv_tuning, "queried_context", lambda: SimpleNamespace(index=0))
    taken = conv((4, 64, 16, 16), (64, 64, 1, 1), direction="bwd_filter", tf32=False)
    assert conv_tuning.key_of(taken, "time")["own"] == [pointwise.NAME, fourier.NAME]
    assert "own" not in conv_tuning.key_of(replace(taken, stride=(2, 2)), "time")


def test_the_kernels_compile() -> None:
    s = conv((4, 32, 27, 27), (64, 32, 5, 5), 2, direction="bwd_filter", tf32=False)
    for text in fourier.FourierLaunch(s).sources:
        nvrtc.compile_cubin(text, (9, 0))
    nvrtc.compile_cubin(specialised("split_floats.cu", RIGHT=1), (9, 0))
