"""Products with few results and long sums: whole ones in an emulator, and where they are taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from symdnn.gpu.gemm.long_sums import LongSums, long_sums_ways
from symdnn.gpu.gemm.plan import GemmSignature, Matrix, Pointers
from tests.gpu.emulator import AVAILABLE, HostEnv

needs_gpp = pytest.mark.skipif(not AVAILABLE, reason="needs g++")
SIDES = [(64, 64), (64, 32), (7, 5), (16, 33), (32, 16), (70, 130)]


def signature(
    rows: int, terms: int, columns: int, turned: Any = (False, False), dtype: str = "float32",
    stack: int = 1, **more: Any,
) -> GemmSignature:  # fmt: skip
    """``op(A) op(B)`` of column-major stacks."""
    left = Matrix(*((terms, rows) if turned[0] else (rows, terms)), terms if turned[0] else rows,
                  turned[0], rows * terms if stack > 1 else 0)  # fmt: skip
    right = Matrix(*((columns, terms) if turned[1] else (terms, columns)),
                   columns if turned[1] else terms, turned[1],
                   terms * columns if stack > 1 else 0)  # fmt: skip
    d = Matrix(rows, columns, rows, False, rows * columns)
    return GemmSignature(dtype, dtype, dtype, left, right, d, batch=stack, **more)


def agrees(
    rng: Any, s: GemmSignature, parts: int, factors: tuple[float, float] = (1.0, 0.0)
) -> None:
    a = rng.standard_normal((s.batch, s.d.rows, s.k)).astype("f4")
    b = rng.standard_normal((s.batch, s.k, s.d.columns)).astype("f4")
    left = np.ascontiguousarray(a if s.a.transposed else np.swapaxes(a, 1, 2))
    right = np.ascontiguousarray(b if s.b.transposed else np.swapaxes(b, 1, 2))
    start = rng.standard_normal((s.batch, s.d.columns, s.d.rows)).astype("f4")
    d = np.full_like(start, np.nan) if factors[1] == 0 else start.copy()
    way = LongSums(s, parts)
    env = HostEnv(way.workspace_bytes)
    way.enqueue(env, Pointers(left.ctypes.data, right.ctypes.data, d.ctypes.data), factors)
    want = factors[0] * (a.astype("f8") @ b) + factors[1] * np.swapaxes(start, 1, 2)
    np.testing.assert_allclose(np.swapaxes(d, 1, 2), want, 1e-5, 1e-5 * np.sqrt(s.k))


@needs_gpp
@pytest.mark.parametrize("turned", [(t, u) for t in (False, True) for u in (False, True)])
@pytest.mark.parametrize("sides", SIDES)
def test_numbers_of_all_layouts(rng: Any, turned: Any, sides: Any) -> None:
    agrees(rng, signature(sides[0], 515, sides[1], turned), 3)


@needs_gpp
@pytest.mark.parametrize("terms", [1, 64, 1000])
@pytest.mark.parametrize("factors", [(1.0, 0.0), (0.5, 2.0)])
@pytest.mark.parametrize("stack", [1, 3])
def test_factors_and_stacks(rng: Any, terms: int, factors: Any, stack: int) -> None:
    agrees(rng, signature(20, terms, 40, (True, False), stack=stack), 20, factors)


@needs_gpp
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("turned", [(False, False), (True, True)])
@pytest.mark.parametrize("summed", ["bgrada", "bgradb"])
def test_sums_over_an_operand(rng: Any, sides: Any, turned: Any, summed: str) -> None:
    s = signature(sides[0], 515, sides[1], turned, epilogue=summed)
    a = rng.standard_normal((sides[0], 515)).astype("f4")
    b = rng.standard_normal((515, sides[1])).astype("f4")
    left, right = np.array(a if turned[0] else a.T, order="C"), np.array(b if turned[1] else b.T)
    right = np.ascontiguousarray(right)
    d, bias = np.full(sides[::-1], np.nan, "f4"), np.full(max(sides), np.nan, "f4")
    way = LongSums(s, 3)
    env = HostEnv(way.workspace_bytes)
    at = Pointers(*(v.ctypes.data for v in (left, right, d)), bias=bias.ctypes.data)
    way.enqueue(env, at, (2.0, 0.0))
    np.testing.assert_allclose(d.T, 2 * (a.astype("f8") @ b), 1e-5, 1e-3)
    want = a.sum(1, dtype="f8") if summed == "bgrada" else b.sum(0, dtype="f8")
    np.testing.assert_allclose(bias[: want.size], want, 1e-5, 1e-4)
    assert np.isnan(bias[want.size :]).all()


@needs_gpp
def test_an_addend_of_its_own(rng: Any) -> None:
    s = signature(8, 300, 12)
    s = replace(s, c=replace(s.d, ld=10), d=replace(s.d, ld=9))
    a, b = rng.standard_normal((300, 8)).astype("f4"), rng.standard_normal((12, 300)).astype("f4")
    c, d = (rng.standard_normal((12, n)).astype("f4") for n in (10, 9))
    way, kept = LongSums(s, 2), d.copy()
    at = Pointers(*(x.ctypes.data for x in (a, b, d, c)))
    way.enqueue(HostEnv(way.workspace_bytes), at, (1.0, 3.0))
    np.testing.assert_allclose(d[:, :8], b @ a + 3 * c[:, :8], 1e-4, 1e-4)
    np.testing.assert_array_equal(d[:, 8:], kept[:, 8:])


@needs_gpp
def test_operands_that_are_not_aligned(rng: Any) -> None:
    """Rows of 17 numbers, from the second number on."""
    s = signature(16, 200, 20, (False, True))
    s = replace(s, a=replace(s.a, ld=17), alignment=(4, 256, 256, 256))
    memory = rng.standard_normal(17 * 200 + 1).astype("f4")
    a = memory[1:].reshape(200, 17)[:, :16]
    b = rng.standard_normal((200, 20)).astype("f4")
    d = np.full((20, 16), np.nan, "f4")
    way = LongSums(s, 2)
    at = Pointers(a.ctypes.data, b.ctypes.data, d.ctypes.data)
    way.enqueue(HostEnv(way.workspace_bytes), at, (1.0, 0.0))
    np.testing.assert_allclose(d, b.T @ a, 1e-4, 1e-4)


def test_few_results_of_long_sums() -> None:
    (way,) = long_sums_ways(signature(64, 1 << 18, 32))
    assert 200 <= way.parts * way.tiles <= 264
    assert "long sums" in str(way)
    assert way.words["algorithm"] == ["long_sums", 64, 32, way.parts]
    (exact,) = long_sums_ways(replace(signature(64, 1 << 16, 64), compute="tf32"))
    assert exact.arithmetic == "float32"
    for few, parts in (((64, 8192, 64), 128), ((16, 16384, 16), 64), ((128, 60000, 10), 132)):
        (shorter,) = long_sums_ways(signature(*few))
        assert 0.9 * parts <= shorter.parts <= parts
    (stack,) = long_sums_ways(signature(64, 16384, 64, stack=8))
    assert 200 <= stack.parts * 8 <= 264


@pytest.mark.parametrize(
    ("sizes", "more"),
    [
        ((64, 1024, 64), {}), ((64, 1 << 18, 64), {}), ((64, 100_000, 128), {}),
        ((256, 1 << 16, 256), {}), ((64, 1 << 16, 64), {"epilogue": "relu"}),
        ((64, 1 << 16, 64), {"workspace_limit": 1 << 20}), ((64, 1 << 16, 64), {"stack": 65}),
        ((64, 1 << 16, 64), {"dtype": "float16"}), ((64, 1 << 16, 64), {"dtype": "float64"}),
    ],
)  # fmt: skip
def test_other_products_are_the_library_s(sizes: Any, more: Any) -> None:
    assert not long_sums_ways(signature(*sizes, **more))


def test_the_kernels_compile() -> None:
    from symdnn.gpu.binding import nvrtc

    for sides in SIDES[:3]:
        way = LongSums(signature(sides[0], 1 << 16, sides[1], (True, False)))
        for source in (way.source, way.adding.source):
            nvrtc.compile_cubin(source, (9, 0))
