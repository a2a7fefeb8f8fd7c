"""Calls that fail on an emulated device change nothing, there or on the host; calls that meet."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.modes.monitor import MonitorMode
from symdnn.errors import IndexOutOfRange
from symdnn.gpu.device.array import RawArray
from symdnn.tensor.random import RandomStream

CUDA = symdnn.Mode(target="cuda:sm_90")
ONES = np.ones((3, 2), "float32")
GOOD, BAD = np.array([0, 1]), np.array([0, 9])


def counted():
    """Rows are summed on the device, calls are counted on the host: (function, sum, count)."""
    x, i = T.fmatrix("x"), T.lvector("i")
    w, count = symdnn.shared(np.zeros(2, "float32")), symdnn.shared(np.int64(0))
    updates = [(w, w + x[i].sum(0)), (count, count + 1)]
    return symdnn.function([x, i], [], updates=updates, mode=CUDA), w, count


@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_counter_on_the_host_does_not_count_a_call_that_fails(fake_device, calls):
    f, w, count = counted()
    for _ in range(calls):
        f(ONES, GOOD)
    with pytest.raises(IndexOutOfRange):
        f(ONES, BAD)
    assert (count.get_value(), w.get_value().tolist()) == (calls, [2.0 * calls] * 2)
    f(ONES, GOOD)
    assert (count.get_value(), w.get_value().tolist()) == (calls + 1, [2.0 * calls + 2] * 2)


def test_calls_that_cannot_fail_do_not_wait_for_a_counter(fake_device):
    x = T.fvector("x")
    w, count = symdnn.shared(np.zeros(2, "float32")), symdnn.shared(np.int64(0))
    f = symdnn.function([x], [], updates=[(w, w + x), (count, count + 1)], mode=CUDA)
    for _ in range(5):
        fake_device.take_log()
        f(np.ones(2, "float32"))
    assert "wait" not in fake_device.take_log()
    assert (count.get_value(), w.get_value().tolist()) == (5, [5, 5])


def test_random_numbers_of_a_call_that_fails_come_again(fake_device):
    stream = RandomStream(3)
    x, i = T.fmatrix("x"), T.lvector("i")
    w = symdnn.shared(np.zeros(2, "float32"))
    new = w + x[i].sum(0) + stream.uniform((2,), dtype="float32")
    f = symdnn.function([x, i], [], updates=[(w, new)], mode=CUDA)
    for _ in range(3):
        f(ONES, GOOD)
    state = stream.state_updates[0][0]
    before, sums = state.get_value(), w.get_value()
    f(ONES, BAD)
    with pytest.raises(IndexOutOfRange):
        w.get_value()
    np.testing.assert_array_equal(state.get_value(), before)
    np.testing.assert_array_equal(w.get_value(), sums)


def test_a_lent_result_is_not_the_variable_that_gets_its_value(fake_device):
    p, x = symdnn.shared(np.ones(6, "float32")), T.fvector("x")
    f = symdnn.function([x], symdnn.Out(p + x, borrow=True), updates=[(p, p + x)], mode=CUDA)
    value = np.ones(6, "float32")
    for n in range(5):
        lent = f(np.full(6, n, "float32"))
        value += n
        np.testing.assert_array_equal(fake_device.to_host(lent), value)
        fake_device.memory.upload(np.zeros(6, "float32"), lent)
        np.testing.assert_array_equal(p.get_value(), value)


def test_two_functions_write_what_both_read(fake_device):
    p, q = (symdnn.shared(np.ones(6, "float32")) for _ in range(2))
    x = T.fvector("x")
    f = symdnn.function([x], [], updates=[(p, p + x), (q, q * 2 + p)], mode=CUDA)
    g = symdnn.function([x], (p * q).sum(), updates=[(q, q - x)], mode=CUDA)
    a = b = np.ones(6)
    for n in range(8):
        value = np.full(6, n, "float32")
        f(value)
        a, b = a + n, b * 2 + a
        np.testing.assert_allclose(g(value), (a * b).sum(), rtol=1e-5)
        b = b - n
        np.testing.assert_allclose(q.get_value(), b, rtol=1e-5)


def test_what_runs_on_the_host_alone_is_a_call_of_the_device_too(fake_device):
    """An op without a kernel on the GPU: later calls take the long way as well."""
    x = T.fvector("x")
    f = symdnn.function([x], symdnn.tensor.nonzero(x)[0], mode=CUDA)
    for n in range(4):
        np.testing.assert_array_equal(f(np.array([0, 1, 0, 1 + n], "float32")), [1, 3])


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("start", [0, 64])
def test_an_argument_that_is_a_part_of_what_is_updated(fake_device, calls, start):
    """It is read as it was before, in whichever order updates are written."""
    x = T.fvector("x")
    w, q = symdnn.shared(np.arange(640, dtype="float32")), symdnn.shared(np.zeros(576, "float32"))
    updates = [(w, w * 2 + 1), (q, q + T.sqrt(x))]
    f = symdnn.function([x], [], updates=updates, mode=CUDA)
    a, b = np.arange(640.0), np.zeros(576)
    for _ in range(calls):
        f(np.ones(576, "float32"))
        a, b = a * 2 + 1, b + 1
    for _ in range(4):
        whole = w.storage.on(fake_device.memory)
        f(RawArray(whole.ptr + 4 * start, (576,), "float32", (4,), whole))
        a, b = a * 2 + 1, b + np.sqrt(a[start : start + 576])
        np.testing.assert_allclose(w.get_value(), a, rtol=1e-5)
        np.testing.assert_allclose(q.get_value(), b, rtol=1e-5)


def test_a_function_called_by_a_watcher_leaves_the_plan_alone(fake_device):
    x = T.fmatrix("x")
    inner = symdnn.function([x], T.tanh(x) * 3 + T.exp(x).sum(0), mode=CUDA)
    ones = np.ones((64, 64), "float32")
    wanted = np.tanh(ones) * 3 + np.exp(ones).sum(0)
    wrong = []

    def look(i, node, thunk):
        if not np.allclose(inner(ones), wanted, rtol=1e-5):
            wrong.append(node)

    columns, rows = T.exp(x).sum(0), T.sqrt(x).sum(1)
    watching = MonitorMode(post_func=look, target="cuda:sm_90")
    f = symdnn.function([x], [(columns * rows).sum(), columns, rows], mode=watching)
    for seed in range(3):
        value = np.random.default_rng(seed).random((64, 64)).astype("float32")
        a, b = np.exp(value).sum(0), np.sqrt(value).sum(1)
        for got, want in zip(f(value), ((a * b).sum(), a, b), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4)
    assert not wrong


def test_what_kernels_found_in_a_call_that_fails_on_the_host_is_not_the_next_calls(fake_device):
    """Of the indices a kernel tells the error; that there are no classes is known before one."""
    x, scores, i, labels = T.fmatrix("x"), T.fmatrix("scores"), T.lvector("i"), T.lvector("labels")
    picked = T.nnet.softmax_crossentropy(scores, labels)
    f = symdnn.function([x, i, scores, labels], [x[i].sum(), picked], mode=CUDA)
    g = symdnn.function([x], (x * 2).sum(), mode=CUDA)
    with pytest.raises(IndexOutOfRange, match="0 classes") as raised:
        f(ONES, BAD, np.ones((2, 0), "float32"), GOOD)
    assert "index 9" in "".join(raised.value.__notes__)
    assert g(ONES) == 12
    assert f(ONES, GOOD, np.ones((2, 2), "float32"), GOOD)[0] == 4
