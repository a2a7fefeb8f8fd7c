"""The parameter cache on a GPU: right whoever changes a parameter, and computed only after a
change.
"""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.vendor.gpudnn import GpuDnnConv
from tests.seeded import new_rng

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


def floats(*shape):
    return new_rng().standard_normal(shape).astype("float32")


class Net:
    """Convolution and normalisation with fixed statistics, on a GPU and on the CPU.

    The parameters are shared by both functions and by one that updates some of them on the GPU.
    """

    def __init__(self, amp="off"):
        self.w = symdnn.shared(floats(8, 4, 3, 3) / 4, name="w")
        sizes = {"gamma": 1.0, "beta": 0.0, "mean": 0.0, "var": 2.0}
        self.p = {
            n: symdnn.shared((floats(8) / 8 + m).astype("float32"), name=n)
            for n, m in sizes.items()
        }
        x = T.ftensor4("x")
        h = T.nnet.conv2d(x, self.w, border_mode="half", filter_flip=False)
        y = T.nnet.bn.batch_normalization_test(h, *self.p.values(), "spatial", 1e-3)
        with symdnn.config.change_flags(device="cuda", amp=amp):
            self.gpu = symdnn.function([x], T.nnet.relu(y))
        with symdnn.config.change_flags(device="cuda"):
            news = [(v, v * np.float32(0.9) + np.float32(0.1)) for v in (self.w, self.p["var"])]
            self.step = symdnn.function([], [], updates=news)
        with symdnn.config.change_flags(device="cpu", keep_prepared=False):
            self.cpu = symdnn.function([x], T.nnet.relu(y))
        self.limit = 1e-4 if amp == "off" else 4e-2

    def check(self, n=3):
        x = floats(n, 4, 9, 7)
        got, want = self.gpu(x), self.cpu(x)
        assert np.abs(got - want).max() <= self.limit * np.abs(want).max()

    @property
    def version(self):
        (kept,) = self.gpu.executor._kept
        return kept.state.version


def test_kernels_are_scaled_once_for_all_calls(cuda):
    net = Net()
    for n in (3, 3, 3, 1, 1, 1, 3):
        net.check(n)
    version = net.version
    net.check()
    assert net.version == version
    main = net.gpu.plans()[0]
    (conv,) = [n for n in main.specialised.segment.nodes if isinstance(n.op, GpuDnnConv)]
    assert conv.inputs[1] in set(net.gpu.executor.cached_variables)
    assert main.bound.not_captured == ""


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_every_way_to_change_a_parameter_shows(cuda, amp):
    net = Net(amp)
    for _ in range(3):
        net.check()
    replay = net.gpu.plans()[0].bound.replay

    changes = [
        net.step,
        lambda: net.p["gamma"].set_value(floats(8)),
        lambda: net.w.set_value(floats(8, 4, 3, 3), borrow=False),
        net.step,
        lambda: net.p["mean"].container.__setattr__("data", floats(8)),
    ]
    for change in changes * 2:
        change()
        net.check()
        version = net.version
        net.check()
        assert net.version == version
    assert net.gpu.plans()[0].bound.replay is replay


def test_memory_of_a_parameter_that_a_user_has_is_read_at_each_call(cuda):
    net = Net()
    for _ in range(3):
        net.check()
    mine = net.p["beta"].get_value(borrow=True, return_internal_type=True)
    from symdnn.gpu.device.interop import device_array

    for _ in range(3):
        with cuda.context.current():
            cuda.memory.copy_in(floats(8), device_array(mine, cuda.context, "beta"))
        net.check()


def test_what_is_kept_counts_as_memory(cuda):
    net = Net()
    net.check()
    report = net.gpu.memory_report()
    assert report.kept >= 4 * (net.w.get_value().size + 8)
    with symdnn.config.change_flags(keep_prepared=False):
        off = Net()
    off.check()
    assert off.gpu.memory_report().kept == 0
