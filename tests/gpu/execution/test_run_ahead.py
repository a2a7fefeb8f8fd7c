"""How far calls run ahead, with a stream that says what is enqueued, waited for and finished."""

import pytest

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
