"""The clock of measurements: its launches and their number, with a fake driver."""

from types import SimpleNamespace

import pytest

from symdnn.gpu.device import clock as module
from symdnn.gpu.device.capture import CaptureFailed, Graph
from symdnn.gpu.device.clock import Clock, ClockFailed


class Driver:
    """Time is counted in launches, each of which takes ``ms``."""

    def __init__(self, ms):
        self.ms, self.now, self.open, self.status = ms, 0.0, 0, 0

    def cuEventCreate(self, flags):
        self.open += 1
        return self.status, SimpleNamespace(at=None)

    def cuEventRecord(self, event, stream):
        event.at = self.now
        return (0,)

    def cuEventSynchronize(self, event):
        return (0,)

    def cuEventElapsedTime(self, start, end):
        return 0, end.at - start.at

    def cuEventDestroy(self, event):
        self.open -= 1
        return (0,)

    def work(self):
        self.now += self.ms


def clock_of(driver):
    clock = Clock.__new__(Clock)
    clock._driver, clock.context = driver, SimpleNamespace(stream=0)
    return clock


@pytest.fixture(params=["captured", "not captured"])
def graphs(request, monkeypatch):
    """``Graph`` as a replayable graph, or as one that can't be captured."""

    def graph(context, enqueue):
        if request.param == "not captured":
            raise CaptureFailed("a node needs the host")
        return SimpleNamespace(launch=enqueue)

    monkeypatch.setattr(module, "Graph", graph)


@pytest.mark.parametrize("ms", [0.001, 0.04, 0.3, 7.0])
def test_the_time_is_that_of_one_run(graphs, ms):
    driver = Driver(ms)
    assert clock_of(driver).time(driver.work) == pytest.approx(ms)
    assert driver.open == 0  # no event is left


def test_what_is_far_from_good_is_not_timed_well(graphs):
    driver = Driver(8.0)
    assert clock_of(driver).time(driver.work, good_ms=1.0) == pytest.approx(8.0)
    assert driver.now <= 3 * 8.0


def test_many_runs_are_timed_in_one_graph(graphs, monkeypatch):
    driver = Driver(0.5)
    monkeypatch.setattr(module, "Clock", lambda context: clock_of(driver))
    env = SimpleNamespace(context=None)
    assert module.replay_ms(env, driver.work) == pytest.approx(0.5)


def test_a_driver_that_fails_is_named(graphs):
    driver = Driver(1.0)
    driver.status = 719
    with pytest.raises(ClockFailed, match="719"):
        clock_of(driver).elapsed_ms(driver.work, 1)


@pytest.mark.parametrize(("ms", "good", "most"), [(0.3, 0.3, 5.0), (0.3, 0.2, 1.0), (9.0, 8.0, 60)])
def test_a_candidate_costs_little_before_the_race(graphs, ms, good, most):
    driver = Driver(ms)
    assert clock_of(driver).time(driver.work, good_ms=good) == pytest.approx(ms)
    assert driver.now <= most


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
def test_a_stream_is_not_left_captured_by_what_stops_the_capture(raised, monkeypatch):
    from cuda.bindings import driver

    calls = []

    def stub(name, *results):
        monkeypatch.setattr(driver, name, lambda *given: calls.append(name) or (0, *results))

    stub("cuStreamBeginCapture")
    stub("cuStreamEndCapture", "part")
    stub("cuGraphDestroy")

    def enqueue():
        raise raised

    with pytest.raises(CaptureFailed if raised is ValueError else raised):
        Graph(SimpleNamespace(stream=0, launched=0), enqueue)
    assert calls == ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphDestroy"]
