"""The parameter cache on an emulated device: captured plans continue to read it."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from tests.seeded import new_rng

CUDA = symdnn.Mode(target="cuda:sm_90").excluding("cudnn")


def floats(*shape):
    return new_rng().standard_normal(shape).astype("float32")


class Scaled:
    """``x * exp(w)[0] + row sums of tanh(w)``, with fresh parameters."""

    def __init__(self, n=5, **options):
        self.w, self.x = symdnn.shared(floats(n, n), name="w"), T.fmatrix("x")
        y = self.x * T.exp(self.w).sum(axis=0) + T.tanh(self.w).sum(axis=1)
        self.f = symdnn.function([self.x], symdnn.Out(y, **options), mode=CUDA)

    def check(self, rows=3):
        w = self.w.get_value().astype("float64")
        x = floats(rows, len(w))
        got = self.f(x)
        got = got if isinstance(got, np.ndarray) else got.get()
        want = x * np.exp(w).sum(0) + np.tanh(w).sum(1)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())

    @property
    def version(self):
        (kept,) = self.f.executor._kept
        return kept.state.version


def test_a_captured_call_is_one_graph_and_nothing_of_the_parameters(fake_device):
    net = Scaled()
    for _ in range(3):
        net.check()
    version = net.version
    fake_device.take_log()
    for _ in range(3):
        net.f(floats(3, 5))
        assert fake_device.take_log() == ["graph", "wait"]
    assert net.version == version
    assert [p.bound.not_captured for p in net.f.plans()] == ["", ""]


def test_values_set_and_updated_are_seen_by_the_graph_that_is_there(fake_device):
    net = Scaled()
    step = symdnn.function([], [], updates=[(net.w, net.w * np.float32(0.9))], mode=CUDA)
    for _ in range(3):
        net.check()
    main = net.f.plans()[0].bound
    replay = main.replay
    for i in range(8):
        (step if i % 2 else lambda: net.w.set_value(floats(5, 5)))()
        before = net.version
        net.check()
        assert net.version != before
        net.check()
    assert main.replay is replay


def test_steps_that_take_the_short_way_count_as_writes(fake_device):
    net = Scaled()
    x = T.fmatrix("x")
    step = symdnn.function([x], x.sum(), updates=[(net.w, net.w + x)], mode=CUDA)
    for _ in range(6):
        step(floats(5, 5))
        net.check()
    assert step._fast.entries


def test_memory_that_is_lent_is_read_at_each_call(fake_device):
    net = Scaled()
    for _ in range(3):
        net.check()
    mine = net.w.get_value(borrow=True, return_internal_type=True)
    for _ in range(3):
        before = net.version
        net.check()
        assert net.version != before
    assert mine is not None


def test_a_host_array_that_is_read_stops_nothing(fake_device):
    net = Scaled()
    net.check()
    mine = net.w.get_value(borrow=True)
    net.check()
    before = net.version
    net.check()
    assert net.version == before
    assert mine is not None


def test_other_shapes_and_dropped_plans(fake_device):
    with symdnn.config.change_flags(plan_cache_size=1):
        net = Scaled()
        for n in (5, 3, 5, 3):
            net.w.set_value(floats(n, n))
            for rows in (3, 3, 3, 2):
                net.check(rows)


def test_batches_of_all_sizes_share_what_is_kept(fake_device):
    net = Scaled()
    net.check(1)
    version = net.version
    for rows in (2, 3, 2, 3, 3, 1, 1):
        net.check(rows)
    assert net.version == version
    assert sum(a.nbytes for a in net.f.executor._kept[0].state.left) == 4 * (5 + 5)


def test_a_value_that_is_kept_and_lent_is_the_callers_own(fake_device):
    w, x = symdnn.shared(floats(4, 4)), T.fvector("x")
    scaled = T.exp(w).sum(axis=0)
    outs = [symdnn.Out(x * scaled, borrow=True), symdnn.Out(scaled, borrow=True)]
    f = symdnn.function([x], outs, mode=CUDA)
    f(floats(4))
    (kept,) = f.executor._kept
    inside = {a.ptr for a in kept.state.left}
    for _ in range(3):
        assert all(a.ptr not in inside for a in f(floats(4)))


def test_without_capture(fake_device):
    with symdnn.config.change_flags(**{"gpu.graph": "off"}):
        net = Scaled()
        for _ in range(3):
            net.check()
            net.w.set_value(floats(5, 5))


@pytest.mark.parametrize("off", [True, False])
def test_the_report_says_when_it_runs(fake_device, off):
    with symdnn.config.change_flags(keep_prepared=not off):
        net = Scaled()
    net.check()
    net.check()
    text = str(net.f.lowering_report())
    assert ("computed when a parameter has changed" in text) != off
    assert ("runs when a parameter has changed" in text) != off
