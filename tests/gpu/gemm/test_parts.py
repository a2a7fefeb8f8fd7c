"""GEMMs in parts of their sums: whole products in an emulator, and where they are tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from symdnn.gpu.binding import libcublaslt
from symdnn.gpu.binding.libcublaslt import CublasError
from symdnn.gpu.gemm import choice as gemm_choice
from symdnn.gpu.gemm.choice import choose
from symdnn.gpu.gemm.parts import PartsGemm, parts_ways
from symdnn.gpu.gemm.plan import GemmPlan, Pointers
from tests.gpu.emulator import AVAILABLE
from tests.gpu.gemm.computing_cublaslt import ComputingCublasLt, GemmHostEnv
from tests.gpu.gemm.test_split import signature

needs_gpp = pytest.mark.skipif(not AVAILABLE, reason="needs g++")


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = ComputingCublasLt()
    monkeypatch.setattr(libcublaslt, "library", lambda: made)
    gemm_choice.forget()
    yield made
    gemm_choice.forget()


def drawn(rows: int, terms: int, columns: int, rng: Any) -> tuple[Any, Any]:
    a = rng.standard_normal((1, rows, terms)).astype("f4")
    return a, rng.standard_normal((1, terms, columns)).astype("f4")


@needs_gpp
@pytest.mark.parametrize("turned", [(t, u) for t in (False, True) for u in (False, True)])
@pytest.mark.parametrize(("terms", "count"), [(1024, 4), (1100, 4), (999, 3), (64, 2)])
@pytest.mark.parametrize("factors", [(1.0, 0.0), (0.5, 2.0)])
def test_numbers_of_all_layouts(
    lt: Any, rng: Any, turned: Any, terms: int, count: int, factors: Any
) -> None:
    a, b = drawn(7, terms, 5, rng)
    s = replace(signature(a, b, turned), workspace_limit=1 << 16)
    way = PartsGemm(s, count)
    left = np.ascontiguousarray(a if turned[0] else np.swapaxes(a, 1, 2))
    right = np.ascontiguousarray(b if turned[1] else np.swapaxes(b, 1, 2))
    d = rng.standard_normal((1, 5, 7)).astype("f4")
    want = factors[0] * (a.astype("f8") @ b) + factors[1] * np.swapaxes(d, 1, 2)
    env = GemmHostEnv(way.workspace_bytes + 256)
    way.enqueue(env, Pointers(left.ctypes.data, right.ctypes.data, d.ctypes.data), factors)
    np.testing.assert_allclose(np.swapaxes(d, 1, 2), want, 1e-5, 1e-5)
    assert len(lt.runs) == 1 + (terms % (count * 32) > 0)


def ways(rows: int, terms: int, columns: int, rng: Any, **more: Any) -> list[PartsGemm]:
    s = replace(signature(*drawn(rows, 1, columns, rng)), **more)
    s = replace(s, a=replace(s.a, columns=terms), b=replace(s.b, rows=terms, ld=terms))
    return parts_ways(GemmPlan(7, s))


def test_few_results_of_long_sums_are_tried(lt: Any, rng: Any) -> None:
    assert {w.count for w in ways(64, 1 << 18, 32, rng)} == {132, 264, 528}
    assert {w.count for w in ways(256, 1 << 18, 256, rng)} == {33, 66}
    assert {w.count for w in ways(64, 132 * 256, 32, rng)} == {132}
    assert not ways(64, 4096, 32, rng)
    assert not ways(1024, 1 << 18, 1024, rng)
    assert not ways(64, 1 << 18, 32, rng, epilogue="relu")
    assert not ways(64, 1 << 18, 32, rng, dtype="bfloat16")
    assert not ways(64, 1 << 18, 32, rng, compute="float64", dtype="float64")


def test_results_that_do_not_fit_are_not_tried(lt: Any, rng: Any) -> None:
    assert not ways(64, 1 << 18, 32, rng, workspace_limit=1 << 20)
    with pytest.raises(CublasError, match="parts take"):
        PartsGemm(replace(signature(*drawn(64, 512, 64, rng)), workspace_limit=999), 2)


def test_a_choice_is_found_again(lt: Any, rng: Any) -> None:
    """By its words, as other processes read them."""
    for way in ways(64, 1 << 18, 32, rng):
        (same,) = [w for w in ways(64, 1 << 18, 32, rng) if w.words == way.words]
        assert str(same) == str(way)
        assert f"{way.parts} parts" in str(way)


@needs_gpp
def test_a_guess_is_the_first_algorithm(lt: Any, rng: Any) -> None:
    """Without a measurement cuBLASLt's heuristics decide."""
    a, b = drawn(8, 1 << 16, 8, rng)
    plan = GemmPlan(7, signature(a, b))
    env = GemmHostEnv(1 << 20)
    found = choose(plan, "guess", env, Pointers(0, 0, 0), (1.0, 0.0))
    assert not isinstance(found.algorithm, PartsGemm)
