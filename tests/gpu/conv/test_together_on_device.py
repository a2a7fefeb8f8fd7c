"""One budget for all convolutions of a function, on a card: results, parts of a batch, memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import OverBudget
from symdnn.gpu.conv import algorithm, launch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("card")]
GPU = symdnn.Mode(target="cuda")


@pytest.fixture(autouse=True)
def own_folder(tmp_path):
    algorithm.forget()
    with config.change_flags({"dnn.conv.tuning_cache": str(tmp_path / "tuning")}):
        yield
    algorithm.forget()


def step(rng, batch=12):
    """A convolution and both of its gradients as a function, with operands."""
    x, w, dy = (T.tensor4(name) for name in ("x", "w", "dy"))
    y = T.nnet.conv2d(x, w, border_mode=1, filter_flip=False)
    f = symdnn.function([x, w, dy], [y, *T.grad((y * dy).sum(), [x, w])], mode=GPU)
    shapes = (batch, 16, 28, 28), (32, 16, 3, 3), (batch, 32, 28, 28)
    return f, [rng.standard_normal(s).astype("float32") for s in shapes]


@pytest.mark.parametrize("most", [6, 4, 1])
def test_parts_of_a_batch_give_the_result_of_the_whole(rng, monkeypatch, most):
    """Forward, and both gradients; that of the filters is a sum over the parts."""
    f, given = step(rng)
    wanted = [np.asarray(r) for r in f(*given)]
    f.free()
    monkeypatch.setattr(launch, "max_rows", lambda *shapes: most)
    with config.change_flags({"dnn.workspace_budget": "512MB"}):
        found = [np.asarray(r) for r in f(*given)]
        report = f.dnn_report()
    assert len(report.rows) == 3
    assert all(" parts: " in row.use.why for row in report.rows), str(report)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-4 * np.abs(other).max())


@pytest.mark.parametrize("budget", ["1B", "1MB", "16MB", "1GB"])
def test_the_arena_grows_by_no_more_than_the_budget(rng, budget):
    f, given = step(rng)
    wanted = [np.asarray(r) for r in f(*given)]
    f.free()
    with config.change_flags({"dnn.workspace_budget": budget}):
        found = [np.asarray(r) for r in f(*given)]
        allowed = int(config.dnn.workspace_budget)
    plan = max(f.plans(), key=lambda p: len(p.specialised.choices))
    memory = plan.memory
    values = max((b.offset + b.nbytes for b in memory.arena_buffers()), default=0)
    assert memory.arena_bytes <= -(-values // 64) * 64 + allowed
    assert len(plan.specialised.budgeted) == 3
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-4 * np.abs(other).max())


def test_a_larger_budget_is_never_slower_by_the_tables(rng):
    f, given = step(rng, batch=32)
    times = []
    for budget in ("1B", "4MB", "64MB", "1GB"):
        f.free()
        with config.change_flags({"dnn.workspace_budget": budget}):
            f(*given)
            times.append(sum(row.use.ms for row in f.dnn_report().rows))
    # Parts are only measured where the fastest has no room: with noise they may seem faster.
    assert all(b <= 1.05 * a for a, b in pairwise(times)), times


def test_energy_is_an_objective(rng):
    f, given = step(rng)
    flags = {"dnn.workspace_budget": "64MB", "dnn.conv.objective": "0.5*time+0.5*energy"}
    with config.change_flags(flags):
        f(*given)
    assert all(row.use.why.startswith("chosen for") for row in f.dnn_report().rows)


def test_a_named_algorithm_without_room_is_an_error_that_says_what_would_do(rng):
    x, w = T.tensor4("x"), T.tensor4("w")
    f = symdnn.function([x, w], T.nnet.conv2d(x, w, border_mode=1), mode=GPU)  # no room elsewhere
    given = [rng.standard_normal(s).astype("float32") for s in ((12, 16, 28, 28), (32, 16, 3, 3))]
    flags = {"dnn.workspace_budget": "1B", "dnn.conv.algo_fwd": "fft"}
    with config.change_flags(flags), pytest.raises(OverBudget, match="would do") as e:
        f(*given)
    enough = int(str(e.value).split("dnn.workspace_budget=")[2].split()[0])
    with config.change_flags({**flags, "dnn.workspace_budget": enough}):
        f(*given)


def test_an_error_bound_holds_for_all_together(rng):
    f, given = step(rng)
    flags = {"dnn.workspace_budget": "1GB", "dnn.conv.error_bound": 1e-9}
    with config.change_flags(flags), pytest.raises(OverBudget, match="at least") as e:
        f(*given)
    least = float(str(e.value).split("at least ")[1].split()[0])
    with config.change_flags({**flags, "dnn.conv.error_bound": 1.01 * least}):
        f(*given)
