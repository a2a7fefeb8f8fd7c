"""float32 products by six of bfloat16 on a device: errors, infinities, reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu.gemm import choice as gemm_choice
from symdnn.gpu.gemm import matmul
from symdnn.gpu.gemm.choice import GemmChoice
from symdnn.gpu.gemm.split import Form, split_ways

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("card")]


@pytest.fixture(params=[Form.IN_TURN, Form.SIDE_BY_SIDE], ids=["in turn", "side by side"])
def split(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Products are of split operands, in one form where it has both; those that ran."""
    ran: list[Any] = []

    def choose(plan: Any, mode: str, env: Any, at: Any, factors: Any, room: int) -> GemmChoice:
        ways = split_ways(plan, room)
        if not ways:
            return GemmChoice(plan.signature, "guess", plan.algorithms(1)[0])
        way = next((w for w in ways if w.form is request.param), ways[0])
        ran.append(way)
        return GemmChoice(plan.signature, mode, way, (1.0,))

    monkeypatch.setattr(matmul, "choose", choose)
    with config.change_flags(device="cuda", **{"gpu.gemm.algo": "time"}):
        yield ran


def operands(rng: Any, kind: str, rows: int, terms: int, columns: int) -> tuple[Any, Any]:
    a, b = rng.standard_normal((rows, terms)), rng.standard_normal((terms, columns))
    if kind == "positive":
        a, b = abs(a), abs(b)
    if kind == "wide":
        a, b = (v * 10.0 ** rng.uniform(-6, 6, v.shape) for v in (a, b))
    if kind == "cancelling":
        half = terms // 2
        a[:, half : 2 * half], b[half : 2 * half] = a[:, :half], -b[:half] * (1 + 1e-4)
    return a.astype("f4"), b.astype("f4")


@pytest.mark.parametrize("kind", ["normal", "positive", "wide", "cancelling"])
@pytest.mark.parametrize("sizes", [(512, 4096, 384), (300, 1001, 1028), (192, 100000, 128)])
def test_errors_are_those_of_float32(
    split: list[Any], rng: Any, kind: str, sizes: tuple[int, int, int]
) -> None:
    """Beside the sum of the terms without signs."""
    a, b = operands(rng, kind, *sizes)
    x, y = T.fmatrix("x"), T.fmatrix("y")
    f = symdnn.function([x, y], T.dot(x, y))
    size = abs(a).astype("f8") @ abs(b)
    want = a.astype("f8") @ b
    for _ in range(3):
        got = f(a, b)
        assert (abs(got - want) / size).max() < 3e-6
    assert split
    row = next(r for r in f.dnn_report().rows if r.use.api == "cublaslt")
    assert row.use.engine == "bf16x6"
    assert "6 products of bfloat16" in row.use.precision


def test_what_is_not_finite(split: list[Any], rng: Any) -> None:
    a, b = operands(rng, "normal", 512, 1024, 512)
    a[3, 5], a[7, 9], a[9, 4], a[8, 4] = np.inf, np.nan, np.inf, 0
    b[4, 11], b[20, 30] = -np.inf, 3.4e38
    a[:, 20], b[20] = 0.25, 0
    b[20, 30] = 3.4e38
    a[30, 40], b[40, 50] = -1.7e38, 2.9e38
    x, y = T.fmatrix("x"), T.fmatrix("y")
    f = symdnn.function([x, y], T.dot(x, y))
    with np.errstate(all="ignore"):
        want = (a.astype("f8") @ b.astype("f8")).astype("f4")
    got = f(a, b)
    assert split
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_layouts_stacks_and_epilogues(
    split: list[Any], rng: Any, turned: tuple[bool, bool]
) -> None:
    a, b = operands(rng, "normal", 640, 768, 512)
    bias = rng.standard_normal(512).astype("f4")
    x, y, v = T.fmatrix("x"), T.fmatrix("y"), T.fvector("v")
    left, right = (m.T if t else m for m, t in zip((x, y), turned, strict=True))
    stack = T.TensorType("float32", (None, None, None))("stack")
    outputs = [T.nnet.relu(T.dot(left, right) + v), T.batched_dot(stack, stack.dimshuffle(0, 2, 1))]
    f = symdnn.function([x, y, v, stack], outputs)
    sent = [np.ascontiguousarray(m.T) if t else m for m, t in zip((a, b), turned, strict=True)]
    many = rng.standard_normal((3, 300, 600)).astype("f4")
    got = f(*sent, bias, many)
    wide = many.astype("f8")
    wanted = [np.maximum(a.astype("f8") @ b + bias, 0), wide @ wide.transpose(0, 2, 1)]
    for one, want in zip(got, wanted, strict=True):
        assert abs(one - want).max() < 3e-6 * abs(want).max()
    assert len(split) >= 2


def test_a_search_measures_them(rng: Any) -> None:
    a, b = operands(rng, "normal", 2048, 2048, 2048)
    x, y = T.fmatrix("x"), T.fmatrix("y")
    flags: dict[str, Any] = {"gpu.gemm.algo": "time", "dnn.conv.tuning_cache": "off"}
    with config.change_flags(device="cuda", **flags):
        f = symdnn.function([x, y], T.dot(x, y))
        gemm_choice.forget()
        got = f(a, b)
    (choice,) = gemm_choice.chosen()
    assert len(choice.ms) >= 4
    assert all(t is not None for t in choice.ms[:4])
    assert abs(got - a.astype("f8") @ b).max() < 1e-5 * abs(got).max()
