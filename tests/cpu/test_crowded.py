"""What meets often runs by one thread where others want the processors."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.cpu import recurrent, threads


@pytest.fixture
def machine(monkeypatch):
    """A machine of two processors on which so many threads are ready to run."""
    ready = [1]
    monkeypatch.setattr(threads, "_runnable", lambda: ready[0])
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(threads, "_looked", [float("-inf"), False])
    return ready


def test_it_is_looked_up_once_in_a_while(machine):
    assert not threads.crowded()
    machine[0] = 3
    assert not threads.crowded()  # the last answer holds
    threads._looked[0] -= 1
    assert threads.crowded()
    threads._looked[0] -= 1
    machine[0] = 2
    assert not threads.crowded()


def test_what_cannot_be_read_is_no_crowd(monkeypatch):
    def refuse(*_, **__):
        raise OSError

    monkeypatch.setattr("builtins.open", refuse)
    assert threads._runnable() == 0


def test_a_recurrent_layer_takes_one_thread_in_a_crowd(machine, monkeypatch, rng):
    counts = []
    run = recurrent._Net._run

    def watched(self, layer, function, workspace, **words):
        def noted(block):
            counts.append(block[self._order.index("threads")])
            function(block)

        run(self, layer, noted, workspace, **words)

    monkeypatch.setattr(recurrent._Net, "_run", watched)
    monkeypatch.setattr(threads, "allowed", lambda: 2)
    x = T.tensor3("x")
    out = nn.LSTM(64, 128, 1)(x)
    f = symdnn.function([x], out[0] if isinstance(out, tuple | list) else out)
    value = rng.standard_normal((32, 16, 64)).astype("float32")
    alone = f(value)
    if not counts:
        pytest.skip("another kernel runs it here")
    assert counts[-1] == 2
    machine[0] = 9
    threads._looked[0] -= 1
    np.testing.assert_array_equal(f(value), alone)
    assert counts[-1] == 1
