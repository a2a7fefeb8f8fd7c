"""Items made ahead in a thread, and brought to an (emulated) device."""

import gc
import threading
import time

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError
from symdnn.gpu import DeviceArray
from tests.forked import forked
from tests.gpu.fake_device import fake_device

__all__ = ["fake_device"]


def wait_for(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within 5 s")


def threads():
    return [t for t in threading.enumerate() if t.name == "symdnn prefetch"]


def test_items_come_in_order_and_the_thread_ends():
    assert list(nn.prefetch(range(20), 3, target="cpu")) == list(range(20))
    wait_for(lambda: not threads())


def test_it_runs_ahead_by_n_and_no_more():
    made = []

    def source():
        for i in range(10):
            made.append(i)
            yield i

    with nn.prefetch(source(), 2, target="cpu") as ahead:
        wait_for(lambda: len(made) == 3)
        assert next(ahead) == 0
        time.sleep(0.05)
        assert made == [0, 1, 2]
        assert next(ahead) == 1
        wait_for(lambda: len(made) == 4)
    assert not threads()
    assert len(made) == 4
    with pytest.raises(StopIteration):
        next(ahead)


def test_errors_come_in_their_place():
    def source():
        yield 1
        raise KeyError("lost")

    ahead = nn.prefetch(source(), 2, target="cpu")
    assert next(ahead) == 1
    with pytest.raises(KeyError, match="lost"):
        next(ahead)
    with pytest.raises(StopIteration):
        next(ahead)


def test_a_dropped_iterator_stops_its_thread_and_closes_the_source():
    closed = []

    def source():
        try:
            while True:
                yield 0
        finally:
            closed.append(True)

    ahead = nn.prefetch(source(), 1, target="cpu")
    next(ahead)
    del ahead
    gc.collect()
    wait_for(lambda: not threads())
    assert closed == [True]


def test_a_process_ends_while_a_thread_runs():
    code = (
        "import itertools, time\n"
        "from symdnn import nn\n"
        "def slow():\n"
        "    for i in itertools.count():\n"
        "        time.sleep(0.05)\n"
        "        yield i\n"
        "ahead = nn.prefetch(slow(), 2, target='cpu')\n"
        "print(next(ahead))\n"
    )
    done = forked(code, seconds=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_n_is_checked():
    with pytest.raises(InputError, match="n=0"):
        nn.prefetch([], 0)


def test_arrays_go_to_the_device_in_places_that_come_again(rng, fake_device):
    x = rng.normal(size=(22, 3)).astype("float32")
    t = rng.integers(0, 5, 22).astype("int32")
    data = nn.batches({"x": x, "t": t}, 4, shuffle=True, seed=1)
    vx, vt = T.matrix("x"), T.ivector("t")
    f = symdnn.function(
        [vx, vt], [(vx * 2).sum(axis=1), vt + 1], mode=symdnn.Mode(target="cuda:sm_90")
    )
    addresses, results = set(), []
    for epoch in range(3):
        for batch in nn.prefetch(data.at(epoch), 2, target="cuda:sm_90"):
            assert isinstance(batch["x"], DeviceArray)
            assert batch["x"].shape in ((4, 3), (2, 3))
            assert batch["t"].dtype == "int32"
            if epoch == 0:
                addresses.add(batch["x"].ptr)
            results.append([np.array(r) for r in f(batch["x"], batch["t"])])
    assert len(addresses) == 3
    wanted = [b for epoch in range(3) for b in data.at(epoch)]
    assert len(results) == len(wanted)
    for (sums, after), batch in zip(results, wanted):
        np.testing.assert_allclose(sums, (2 * batch["x"]).sum(axis=1), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(after, batch["t"] + 1)


def test_what_is_no_array_stays_and_sizes_may_grow(fake_device):
    items = [([np.arange(n, dtype="int64")], f"item {n}", None) for n in (3, 0, 7, 1)]
    for n, item in zip((3, 0, 7, 1), nn.prefetch(items, 1, target="cuda:sm_90")):
        (array,), name, nothing = item
        assert (name, nothing) == (f"item {n}", None)
        np.testing.assert_array_equal(fake_device.to_host(array), np.arange(n))
