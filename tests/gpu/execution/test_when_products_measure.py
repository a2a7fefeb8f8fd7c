"""When products measure their algorithms: in a plan's first run, or when new shapes return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.tuning import allowance
from tests.gpu.fake_device import FakeContext
from tests.gpu.reference_device import ReferenceRuntime

GPU = symdnn.Mode(target="cuda:sm_90")
SEED = 3


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    import symdnn.gpu.execution.runtime as runtimes

    monkeypatch.setattr(runtimes, "_runtimes", {0: ReferenceRuntime()})


def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """For each product that is enqueued: whether it may measure, and whether it is captured."""
    found: list[tuple[bool, bool]] = []
    enqueue = FakeContext.enqueue

    def noted(self: FakeContext, what: str, work: Any) -> None:
        if what == "cublaslt.matmul":
            captured = self.recording is not None
            found.append((not captured and allowance.may_measure(), captured))
        enqueue(self, what, work)

    monkeypatch.setattr(FakeContext, "enqueue", noted)
    return found


def test_products_of_new_shapes_are_measured_when_the_shapes_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A measurement takes longer than hundreds of calls, and most sizes come once."""
    found = asked(monkeypatch)
    a = np.random.default_rng(SEED).standard_normal((40, 40)).astype("float32")
    x, n, w = T.fmatrix("x"), T.lscalar("n"), symdnn.shared(a)
    f = symdnn.function([x, n], T.dot(T.dot(x[:n], w), w), mode=GPU)
    runs, counts = [], [20, 21, 22, 22, 22, 22, 21, 20, 20, 20]
    for k in counts:
        found.clear()
        np.testing.assert_allclose(f(a, k), a[:k] @ a @ a, rtol=1e-3, atol=1e-3)
        runs.append(set(found))
    first, guessed, measured, captured = (
        {(True, False)},
        {(False, False)},
        {(True, False)},
        (False, True),
    )
    assert runs[:4] == [first, guessed, guessed, measured]
    assert captured in runs[4]
    assert runs[5] == set()
    assert runs[6] == measured
    assert captured in runs[7]
    assert runs[8:] == [set()] * 2
    assert all(p.bound.capture_state.startswith("captured") for p in f.plans()[:1])


def test_products_that_a_loop_repeats_are_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(monkeypatch)
    a = np.random.default_rng(SEED).standard_normal((40, 40)).astype("float32")
    x, w = T.fmatrix("x"), symdnn.shared(a / 40)
    steps, _ = symdnn.scan(lambda h: T.tanh(T.dot(h, w)), outputs_info=[x], n_steps=3)
    f = symdnn.function([x], steps[-1], mode=GPU)
    for k in (20, 21):
        found.clear()
        f(a[:k])
        assert set(found) == {(True, False)}
