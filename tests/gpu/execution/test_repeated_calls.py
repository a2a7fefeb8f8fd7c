"""Calls of captured plans: each with other values, which come in at the same places."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
from symdnn.compile.call.fast import SegmentCalls
from symdnn.compile.execute.executor import Executor
from symdnn.errors import NotEvaluable
from symdnn.gpu.execution.operands import Operands
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from tests.compile.call.test_files_of_a_call import steady_files
from tests.gpu import reference_device
from tests.gpu.reference_device import ReferenceRuntime
from tests.op_table import load, of_each
from tests.op_table.record import OpCase
from tests.test_op_table import draw, outputs, variables

CASES = [c for c in load() if not c.id.startswith(("gpu", "onednn", "from_", "transfer"))]
CALLS = 4  # as it is, captured, and replayed twice


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    import symdnn.gpu.execution.runtime as runtimes

    monkeypatch.setattr(runtimes, "_runtimes", {0: ReferenceRuntime()})


@of_each(CASES, every=9)
def test_an_op_between_arguments(case: OpCase) -> None:
    """What is read before the op, and behind it, is this call's: memory is used again only later.

    Bounds and counts may be numbers of the host that each call has of its own.
    """
    arrays = draw(case)
    before = variables(case, arrays)
    found = [v for v in outputs(case, before) if _is_tensor(v)]
    behind = [TensorType(v.type.dtype, (None,) * v.type.ndim)() for v in found]
    results = [symdnn.tensor.switch(symdnn.tensor.eq(v, b), b, v) for v, b in zip(found, behind)]
    try:
        f = symdnn.function(
            [*before, *behind], results, mode=symdnn.Mode(target="cuda:sm_90"),
            on_unused_input="ignore",
        )  # fmt: skip
    except NotEvaluable as error:
        pytest.skip(str(error))
    for call in range(CALLS):
        given = draw(case, call)
        known = dict(zip(before, given))
        values = evaluate(found, known)
        more = [np.asarray(np.roll(v, 1), v.dtype) for v in values]
        wanted = evaluate(results, known | dict(zip(behind, more)))
        for got, want in zip(f(*given, *more), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_calls_of_a_plan_without_a_graph_look_nothing_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bounds that a call gives keep it from a capture; its results and their views are known."""
    x, n = symdnn.tensor.matrix("x"), symdnn.tensor.lscalar("n")
    made = symdnn.tensor.pad(symdnn.tensor.exp(x), ((n, 0), (0, 1)))
    f = symdnn.function([x, n], [made, made.T], mode=symdnn.Mode(target="cuda:sm_90"))
    a = np.arange(12.0, dtype=x.type.dtype).reshape(4, 3)
    for start in (1, 2, 1, 2, 1):
        f(a, start)
    assert not any(p.bound.capture_state.startswith("captured") for p in f.plans())

    def again(*_: object) -> None:
        raise AssertionError("it was looked up again")

    monkeypatch.setattr(Operands, "sharing", again)
    monkeypatch.setattr(SegmentCalls, "_learnable", again)
    monkeypatch.setattr(Executor, "run", again)
    for start in (1, 2):
        for got in f(a, start)[:1]:
            wanted = np.pad(np.exp(a), ((start, 0), (0, 1)))
            np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_what_runs_before_a_graph_reads_its_arguments() -> None:
    """Also in the call that captures: a bound of the host puts the first scatter before the graph.

    Its indices are where a later argument was in the call before, and that is out of range.
    """
    x, start = TensorType("float64", (1, 1, 1))("x"), TensorType("int64", ())("start")
    at, later = TensorType("int32", (None, None))("at"), TensorType("int64", (1, None))("later")
    y, z = TensorType("float64", (None,) * 3)("y"), TensorType("float64", (1, None, 1))("z")
    zeros, first = np.zeros((3, 3), int).tolist(), [[-1, -1, -1]]
    found = symdnn.tensor.inc_subtensor(x[zeros, start::3, at], y)
    found = symdnn.tensor.set_subtensor(found[first, later], z)
    inputs = [x, start, at, y, later, z]
    f = symdnn.function(inputs, found, mode=symdnn.Mode(target="cuda:sm_90"))
    given = (
        np.full((1, 1, 1), -0.2), np.array(1), np.array([[-1, 0, -1]] * 3, "int32"),
        np.zeros((3, 3, 0)), np.zeros((1, 3), "int64"), np.array([[[-0.5], [0.0], [-0.2]]]),
    )  # fmt: skip
    for _ in range(CALLS):
        np.testing.assert_array_equal(f(*given), np.full((1, 1, 1), -0.2))
    assert f.plans()[0].bound.capture_state.startswith("captured")


def _is_tensor(v: Variable) -> bool:
    return isinstance(v.type, TensorType)


def test_a_call_runs_through_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels compute nothing here, and arena and graphs are the tests': a card adds those."""
    monkeypatch.setattr(reference_device, "_compute", lambda call, inputs, results: None)
    found = steady_files(symdnn.Mode(target="cuda:sm_90"))
    assert "gpu/execution/replay.py" in found
    assert len(found) <= 6, sorted(found)
