"""Python's search for garbage while graphs are made."""

from __future__ import annotations

import gc
import os
import threading

import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph import gc_pause


def test_it_is_on_again_whatever_happens():
    def interrupted() -> None:
        with gc_pause.paused():
            assert not gc.isenabled()
            raise KeyboardInterrupt

    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert gc.isenabled()


def test_who_has_it_off_keeps_it_off():
    gc.disable()
    try:
        with gc_pause.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def is_on_in_a_child() -> bool:
    child = os.fork()
    if child == 0:
        os._exit(int(gc.isenabled()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_child_forked_by_another_thread_has_it_on():
    inside, leave = threading.Event(), threading.Event()

    def compiling() -> None:
        with gc_pause.paused():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=compiling)
    thread.start()
    inside.wait()
    try:
        assert not gc.isenabled()
        assert is_on_in_a_child()
    finally:
        leave.set()
        thread.join()
    assert gc.isenabled()


def test_a_child_whose_parent_has_it_off_has_it_off_too():
    gc.disable()
    try:
        with gc_pause.paused():
            assert not is_on_in_a_child()
    finally:
        gc.enable()


def test_gradients_are_built_without_it():
    x = T.vector("x")
    y = x
    for _ in range(1000):
        y = T.tanh(y * 1.01 + 0.1)
    cost = y.sum()
    started: list[str] = []
    gc.callbacks.append(lambda phase, info: started.append(phase))
    try:
        symdnn.grad(cost, x)
    finally:
        gc.callbacks.pop()
    assert started.count("start") <= 2
