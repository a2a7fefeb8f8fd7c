"""Functions with loops as one graph, on the emulated device: right results, and one launch."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.errors import IndexOutOfRange
from symdnn.tensor.random import RandomStream
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

    def __call__(self, *args, given=None):
        """Compare the results; the work that the call enqueued."""
        if given is None:
            given = [self.device.array(a) if isinstance(a, np.ndarray) else a for a in args]
        self.device.take_log()
        found = self.ours(*given)
        log = self.device.take_log()
        for a, b in zip(found, self.theirs(*args), strict=True):
            np.testing.assert_allclose(np.asarray(a.get()), b, rtol=2e-4, atol=1e-5)
        return log


def repeated(device, build, args, calls=12):
    """The work of the last of some calls with the same arrays; results are compared in each."""
    both = Calls(device, build)
    given = [device.array(a) if isinstance(a, np.ndarray) else a for a in args]
    for _ in range(calls):
        log = both(*args, given=given)
    return both.ours, log


@pytest.mark.parametrize("whole", ["never", "always"])
@pytest.mark.parametrize("length", [1, 5, 70])
def test_prefixes_of_unknown_length_are_one_graph(fake_device, whole, length):
    with symdnn.config.change_flags(**{"gpu.whole_loops": whole}):
        args = floats(length, 3) / 2, floats(length, 3) / 2
        _, log = repeated(fake_device, prefixes, args)
    assert log == ["graph"]


def recurrent(mode):
    """A small network by scan with its gradients; nothing is updated."""
    x, h0, w = T.ftensor3("x"), T.fmatrix("h0"), T.fvector("w")
    states, _ = symdnn.scan(lambda v, h, w: T.tanh(v + h * w), [x], [h0], non_sequences=[w])
    loss = (states**2).mean()
    return compiled([x, h0, w], [loss, states, T.grad(loss, w)], mode)


@pytest.mark.parametrize("whole", ["never", "always"])
def test_a_network_by_scan_and_its_gradient_are_one_graph(fake_device, whole):
    with symdnn.config.change_flags(**{"gpu.whole_loops": whole}):
        f, log = repeated(fake_device, recurrent, (floats(7, 3, 4), floats(3, 4), floats(4)))
    assert log == ["graph"]
    states = [p.bound.capture_state for p in f.plans()]
    assert STATE in states, states
    assert not any("not captured" in s for s in states), states


def test_lengths_that_alternate_have_a_graph_each(fake_device):
    calls = Calls(fake_device, recurrent)
    args = {n: (floats(n, 3, 4), floats(3, 4), floats(4)) for n in (7, 3)}
    given = {n: [fake_device.array(a) for a in arrays] for n, arrays in args.items()}
    with symdnn.config.change_flags(**{"gpu.whole_loops": "never"}):
        logs = [calls(*args[n], given=given[n]) for n in (7, 3) * 14]
    assert logs[-2:] == [["graph"], ["graph"]]


def test_arguments_may_be_elsewhere_in_each_call(fake_device):
    calls = Calls(fake_device, recurrent)
    with symdnn.config.change_flags(**{"gpu.whole_loops": "never"}):
        logs = [calls(floats(7, 3, 4), floats(3, 4), floats(4)) for _ in range(16)]
    assert logs[-1].count("graph") == 1  # besides it, copies of arguments
    assert len(logs[-1]) == 4


def test_arguments_and_numbers_of_the_host(fake_device):
    """An array of the host is copied in each call; a number is part of a graph."""
    x, n = T.fvector("x"), T.lscalar("n")

    def build(mode):
        y = control.fori_loop(0, n, lambda i, v: v * 0.5 + i, x)
        return compiled([x, n], [y + 1, x], mode)

    calls = Calls(fake_device, build)
    for k in (3, 3, 3, 3, 3, 2, 3, 2, 2, 2, 0, 0, 0, 0, 2, 3):
        args = floats(6), k
        calls(*args)
        calls(*args, given=args)


def test_errors_of_a_joined_function_are_raised_by_a_later_call(fake_device):
    x, i = T.fmatrix("x"), T.lmatrix("i")
    sums, _ = symdnn.scan(lambda rows, x: x[rows].sum(axis=0), [i], non_sequences=[x])
    f = compiled([x, i], [sums * 2, x[:1] + 1], CUDA)
    value, good = floats(6, 3), new_rng().integers(0, 6, (4, 2))
    bad = np.where(good == good[2, 1], 6, good)
    place, at = fake_device.array(value), fake_device.array(good)
    with symdnn.config.change_flags(**{"gpu.whole_loops": "never"}):
        for _ in range(12):
            found = np.asarray(f(place, at)[0].get())
            np.testing.assert_allclose(found, 2 * value[good].sum(1), rtol=1e-5, atol=1e-6)
        fake_device.take_log()
        f(place, at)
        assert fake_device.take_log().count("graph") == 1
        fake_device.memory.copy_in(bad, at)
        with pytest.raises(IndexOutOfRange):
            np.asarray(f(place, at)[0].get())
        fake_device.memory.copy_in(good, at)
        found = np.asarray(f(place, at)[0].get())
        np.testing.assert_allclose(found, 2 * value[good].sum(1), rtol=1e-5, atol=1e-6)


def test_a_parameter_set_from_outside_is_read_where_it_is_then(fake_device):
    w, x = symdnn.shared(floats(4)), T.fmatrix("x")
    states, _ = symdnn.scan(lambda v, h: T.tanh(v + h * w), [x], [x[0] * 0])
    f = compiled([x], [(states**2).sum(axis=0), states], CUDA)
    g = compiled([x], [(states**2).sum(axis=0), states], CPU)
    value = floats(5, 4)
    place = fake_device.array(value)
    with symdnn.config.change_flags(**{"gpu.whole_loops": "never"}):
        for call in range(30):
            if call in (12, 20):
                w.set_value(floats(4))
            if call == 25:
                w.set_value(floats(4), borrow=True)
            for a, b in zip(f(place), g(value), strict=True):
                np.testing.assert_allclose(np.asarray(a.get()), b, rtol=2e-4, atol=1e-6)


def test_random_numbers_go_on(fake_device):
    x = T.fmatrix("x")

    def build(mode):
        stream = RandomStream(5)
        rows, updates = symdnn.scan(lambda v: v + stream.uniform(size=(4,)), [x])
        return symdnn.function([x], symdnn.Out(rows * 2, borrow=True), updates=updates, mode=mode)

    f, g, value, seen = build(CUDA), build(CPU), floats(5, 4), set()
    place = fake_device.array(value)
    for _ in range(14):
        found = np.asarray(f(place).get())
        np.testing.assert_allclose(found, g(value), rtol=1e-5, atol=1e-6)
        seen.add(found.tobytes())
    assert len(seen) == 14


def test_results_of_jit_are_kept(fake_device):
    def step(i, v):
        return v * 0.5 + i

    with symdnn.config.change_flags(**{"gpu.whole_loops": "never"}):
        f = symdnn.jit(lambda x: (control.fori_loop(0, 3, step, x + 1) * 2, x.sum()), mode=CUDA)
        kept = []
        for k in range(12):
            value = np.full(5, k, "float32")
            kept.append((k, f(fake_device.lend(fake_device.array(value)))))
        for k, (found, total) in kept:
            wanted = np.full(5, k + 1, "float32")
            for i in range(3):
                wanted = wanted * 0.5 + i
            np.testing.assert_allclose(np.asarray(found.get()), wanted * 2, rtol=1e-6)
            np.testing.assert_allclose(np.asarray(total.get()), 5 * k, rtol=1e-6)
