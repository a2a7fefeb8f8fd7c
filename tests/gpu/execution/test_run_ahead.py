"""How far calls run ahead, with a stream that says what is enqueued, waited for and finished."""

import gc
from types import SimpleNamespace

import pytest

from symdnn.gpu.device.capture import Event
from symdnn.gpu.execution.run_ahead import InFlightCalls


class Stream:
    """Calls by number; ``done`` is how many the device has finished."""

    def __init__(self):
        self.enqueued, self.done, self.waits = 0, 0, 0

    def event(self):
        return Mark(self)


class Mark:
    def __init__(self, stream):
        self.stream, self.at = stream, None

    def record(self):
        self.at = self.stream.enqueued

    def wait(self):
        if self.at is not None:
            self.stream.waits += 1
            self.stream.done = max(self.stream.done, self.at)


class Array:
    """What a call reads: it must not go before the call is done."""

    def __init__(self, stream, number, gone):
        self.stream, self.number, self.gone = stream, number, gone

    def __del__(self):
        self.gone.append((self.number, self.stream.done))


@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize("alone", ["never", "always", "at times"])
def test_what_is_read_stays_until_the_call_is_done(most, alone):
    stream, gone, halves = Stream(), [], []
    ahead = InFlightCalls(stream, most)
    for number in range(1, 101):
        single = alone == "always" or (alone == "at times" and number % 7 in (0, 1, 4))
        ahead.begin(Array(stream, number, gone), single)
        if single:  # the other set of pinned memory, whose last reader is done
            assert all(n <= stream.done for n, half in halves if half == ahead.half)
            halves.append((number, ahead.half))
        stream.enqueued = number
        ahead.end()
        assert number - stream.done <= 2 * most
    assert all(number <= done for number, done in gone)
    assert len(gone) >= 100 - 2 * most
    if alone == "never":
        assert stream.waits == pytest.approx(100 / most, abs=3)
    ahead.finish()
    assert stream.done == 100


def test_a_half_that_was_left_early_is_waited_for():
    stream = Stream()
    ahead = InFlightCalls(stream, 4)
    for number, single in enumerate([False, True, False, True], 1):
        ahead.begin(number, single)
        stream.enqueued = number
        ahead.end()
    assert stream.done >= 2


class Driver:
    """CUDA's events: their handles, and what was done with them."""

    CUstream = int

    def __init__(self):
        self.there, self.log = set(), []

    def cuEventCreate(self, flags):
        self.there.add(len(self.log))
        self.log.append("created")
        return 0, len(self.log) - 1

    def cuEventDestroy(self, event):
        self.there.remove(event)

    def _use(self, event):
        assert event in self.there, "the event is destroyed"
        return (0,)

    def cuEventRecord(self, event, stream):
        return self._use(event)

    cuEventQuery = cuEventSynchronize = _use


class Replays:
    """As a captured plan, it waits for its calls in its end."""

    def __init__(self, ahead, ended):
        self.ahead, self.ended, self.own = ahead, ended, self

    def __del__(self):
        try:
            self.ahead.finish()
        except AssertionError as error:
            self.ended.append(str(error))
        else:
            self.ended.append("waited")


@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("events_first", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_a_cycle_with_events_may_end_in_any_order(polls, events_first, full):
    """A destroyed event is never asked: the driver's answer was a crash."""
    driver, ended, synchronized = Driver(), [], []
    context = SimpleNamespace(
        stream=1, poll=(lambda done: done()) if polls else None,
        synchronize=lambda: synchronized.append(True),
    )  # fmt: skip
    ahead = InFlightCalls(SimpleNamespace(event=lambda: Event(driver, context)), 2)
    for number in range(2 if full else 3):
        ahead.begin(number, False)
        ahead.end()
    plan = Replays(ahead, ended)
    if events_first:
        for event in ahead._events:
            event.__del__()
    del ahead, plan
    gc.collect()
    assert ended == ["waited"]
    assert synchronized or not events_first
    assert not driver.there
