"""GEMMs cut at multiples of a vector: the parts together are the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.gemm import pieces as cuts
from symdnn.gpu.gemm.pieces import Piece, pieces
from symdnn.ops.linalg.dot import Dot
from tests.gpu.gemm.test_launch import launched, lt

__all__ = ["lt"]
SEED = 5
BASE = 1 << 20


class Memory:
    """Matrices at addresses far apart, with padding behind each row or column."""

    def __init__(self) -> None:
        self.at: dict[int, Any] = {}

    def put(self, values: Any, padding: int, turned: bool) -> RawArray:
        rows, columns = values.shape[::-1] if turned else values.shape
        whole = np.full((rows, columns + padding), np.nan, np.float32)
        whole[:, :columns] = values.T if turned else values
        ptr = BASE * (1 + len(self.at))
        self.at[ptr] = whole
        row, one = whole.strides
        strides = (0, one, row) if turned else (0, row, one)
        return RawArray(ptr, (1, *values.shape), "float32", strides)

    def view(self, a: RawArray) -> Any:
        base = a.ptr // BASE * BASE
        whole = self.at[base]
        start = (a.ptr - base) // 4
        return np.lib.stride_tricks.as_strided(
            whole.reshape(-1)[start:], a.shape[1:], a.strides[1:]
        )


def padding(n: int) -> int:
    return -n % 4


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "_LEAST_MULTIPLICATIONS", 0)
    monkeypatch.setattr(cuts, "_LEAST_VECTORS", 1)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("turned", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize("sizes", [(8, 8, 8), (9, 8, 11), (8, 10, 8), (13, 7, 15), (5, 6, 5)])
def test_the_parts_make_the_whole(sizes: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    m, k, n = sizes
    rng, memory = np.random.default_rng(SEED), Memory()
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    x = memory.put(a, padding(m if turned[0] else k), turned[0])
    y = memory.put(b, padding(k if turned[1] else n), turned[1])
    out = memory.put(np.full((m, n), np.nan), padding(n), False)
    found = pieces(x, y, out)
    for part in found:
        product = memory.view(part.x) @ memory.view(part.y)
        target = memory.view(part.out)
        target[...] = product + target if part.adds else product
        assert part.column == (part.out.ptr % BASE // 4) % (n + padding(n))
        steps = [s for s in part.out.strides[1:] if s != 4]
        assert all(s % 16 == 0 for s in steps)
    assert sum(p.ends for p in found) * (1 + any(p.adds for p in found)) == len(found)
    np.testing.assert_allclose(memory.view(out), a @ b, rtol=1e-5, atol=1e-5)
    fast = max(found, key=lambda p: p.x.size * p.y.size)
    assert fast.x.shape[1] % 4 == 0 or not turned[0]
    assert fast.y.shape[2] % 4 == 0
    assert fast.x.shape[2] % 4 == 0 or (turned[0] and not turned[1])


@pytest.mark.usefixtures("always")
def test_rows_that_are_not_aligned_stay_whole() -> None:
    memory = Memory()
    x, y, out = (memory.put(np.zeros((9, 9)), 0, False) for _ in range(3))
    assert pieces(x, y, out) == [Piece(x, y, out)]


def test_small_gemms_stay_whole() -> None:
    memory = Memory()
    x, y, out = (memory.put(np.zeros((9, 9)), 3, False) for _ in range(3))
    assert pieces(x, y, out) == [Piece(x, y, out)]


@pytest.mark.usefixtures("always")
def test_the_few_terms_come_first_and_the_bias_last(lt: Any) -> None:
    rows, terms, columns, item = 16, 9, 8, 2
    x = RawArray(0x100000, (rows, terms), "bfloat16", (16 * item, item))
    launched(Dot(), (rows, terms), (terms, columns), dtype="bfloat16", arrays={0: x})
    few, many = lt.runs
    assert few["pointers"][:2] == [0x200000 + 8 * columns * item, 0x100000 + 8 * item]
    assert many["pointers"] == [0x200000, 0x100000, 0x300000, 0x300000]
