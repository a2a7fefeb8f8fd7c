"""A call within a plan with collectives: registered memory and transfers under way stay."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.distributed as dist
import symdnn.gpu.execution.runtime as runtimes
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu.device import side_stream
from symdnn.gpu.device.array import RawArray
from tests.gpu.fake_device import FakeRuntime
from tests.gpu.reference_device import TARGET, ReferenceRuntime

FLAGS = {"distributed.registered": True, "distributed.single_rank": "nccl"}


@pytest.mark.parametrize("nbytes", [0, 64])
def test_registered_memory_is_saved_and_restored(nbytes):
    rt, block = FakeRuntime(), np.arange(256, dtype=np.uint8)
    span = RawArray(block.ctypes.data, (256,), "uint8")
    rt.arena.memory[:64] = 7

    def inside():
        assert not rt.is_watched
        block[:] = 0
        rt.arena.memory[:nbytes] = 0
        return ["done"]

    with rt.watched(nbytes, [span]):
        assert rt.is_watched
        assert rt.run_nested(inside) == ["done"]
        assert rt.is_watched
    assert not rt.is_watched
    np.testing.assert_array_equal(block, np.arange(256))
    assert set(rt.arena.memory[:64]) == {7}


def test_a_call_of_the_same_plan_leaves_the_values_of_the_outer_one(monkeypatch):
    """Before each of its steps."""
    monkeypatch.setattr(runtimes, "_runtimes", {0: ReferenceRuntime()})
    size, inside, seen = 40_000, [], []  # enough to be registered

    def look(i, node, fn):
        if not inside:
            inside.append(True)
            seen.append(f(np.full(size, 5, "float32")))
            inside.clear()

    with config.change_flags(FLAGS):
        x = T.fvector("x")
        y = dist.all_reduce(x * 2, "sum")
        mode = symdnn.MonitorMode(pre_func=look, target=TARGET)
        f = symdnn.function([x], T.tanh(y * 0.1) + y, mode=mode)
        found = f(np.ones(size, "float32"))
    assert any(p.memory.slots for p in f.plans())
    assert len(seen) >= 3
    for value, at in ((found, 2.0), *((one, 10.0) for one in seen)):
        np.testing.assert_allclose(value, np.full(size, np.tanh(at * 0.1) + at), rtol=1e-5)


class Driver:
    """Events and streams by number; what was asked."""

    def __init__(self):
        self.asked, self.events = [], 0

    def cuCtxGetStreamPriorityRange(self):
        return 0, 0, -5

    def cuStreamCreateWithPriority(self, flags, priority):
        return 0, 7

    def cuEventCreate(self, flags):
        self.events += 1
        return 0, self.events

    def cuEventRecord(self, event, stream):
        self.asked.append(("record", event, stream))
        return (0,)

    def cuStreamWaitEvent(self, stream, event, flags):
        self.asked.append(("wait", event, stream))
        return (0,)


def test_transfers_under_way_are_waited_for_before_a_call_within(monkeypatch):
    """Else what is saved, and restored later, would lack what came meanwhile. Keys are addresses,
    which the call's own transfers may have, too."""
    driver = Driver()
    monkeypatch.setattr(side_stream, "bindings", lambda: driver)
    side = side_stream.SideStream(5)
    side.enter()
    side.leave(4096, ["kept"])
    side.came(8192)
    left = driver.asked[-1][1]
    with side.apart():
        assert driver.asked[-1] == ("wait", left, 5)
        side.enter()
        side.leave(4096)
        side.arrive(4096)
        before = len(driver.asked)
    side.arrive(4096)
    side.arrive(8192)
    assert len(driver.asked) == before  # the first stream has waited already
