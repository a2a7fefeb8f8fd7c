"""Functions with loops as one graph, on the emulated device: right results, and one launch."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.errors import IndexOutOfRange
from tests.seeded import new_rng

CUDA = symdnn.Mode(target="cuda:sm_90").excluding("cudnn")
CPU = symdnn.Mode(target="cpu")
STATE = "captured with the function's loops"


def floats(*shape):
    return new_rng().standard_normal(shape).astype("float32")


def compiled(inputs, outputs, mode):
    """A function whose results stay where they are."""
    return symdnn.function(inputs, [symdnn.Out(v, borrow=True) for v in outputs], mode=mode)


def turned(x, y):
    """The product of two complex numbers."""
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def prefixes(mode):
    a, b = T.fmatrix("a"), T.fmatrix("b")
    found = control.associative_scan(turned, (a, b))
    cost = (found[0] ** 2).sum() + found[1].sum()
    return compiled([a, b], [*found, *symdnn.grad(cost, [a, b])], mode)


class Calls:
    """A function on the emulated device beside the same on the CPU."""

    def __init__(self, device, build):
        self.device, self.ours, self.theirs = device, build(CUDA), build(CPU)

    def __call__(self, *args):
        """Compare the results; the work that the call enqueued."""
        given = [self.device.array(a) if isinstance(a, np.ndarray) else a for a in args]
        self.device.take_log()
        found = self.ours(*given)
        log = self.device.take_log()
        for a, b in zip(found, self.theirs(*args), strict=True):
            np.testing.assert_allclose(np.asarray(a.get()), b, rtol=2e-4, atol=1e-5)
        return log


@pytest.mark.parametrize("whole", ["never", "always"])
def test_prefixes_of_unknown_length_are_one_graph(fake_device, whole):
    with symdnn.config.change_flags(**{"gpu.whole_loops": whole}):
        calls = Calls(fake_device, prefixes)
        logs = [calls(floats(70, 3) / 2, floats(70, 3) / 2) for _ in range(12)]
        print(logs[-1], [len(v) for v in logs])
        print(calls.ours.executor._joined.graphs.signatures.popitem()[1].__dict__, [p.bound.capture_state for p in calls.ours.plans()])
    assert logs[-1] == ["graph"]
