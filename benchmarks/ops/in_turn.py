"""Rows that several processes prepare at once and measure one after the other.

Compiling keeps processors busy and the device awake, so no process measures while another one
prepares: the parent starts processes, ends those that are late, and then lets one at a time go on.
A waiting process does nothing.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["LATE_S", "children", "work"]

#: Seconds that a process may need longer than it was given to prepare a row.
LATE_S = 15.0
Child = subprocess.Popen[bytes]
_READY, _GO, _ROW = "in turn: ready", "in turn: go", "in turn: row "


def work(
    rows: Iterable[Any], prepare: Callable[[Any, float], Any], measure: Callable[[Any], Any],
    seconds: float,
) -> None:  # fmt: skip
    """In a process of its own: prepare rows for so long, and measure them when it is its turn.

    ``prepare(row, seconds)`` should take no longer than what is left.
    """
    until, ready = time.perf_counter() + seconds, []
    for row in rows:
        left = until - time.perf_counter()
        if left < 0:
            break
        ready.append(prepare(row, left + LATE_S / 3))
    print(_READY, len(ready), flush=True)
    _, until_text = sys.stdin.readline().rsplit(" ", 1)
    begin = time.perf_counter()
    for each in ready:
        if time.perf_counter() - begin > float(until_text):
            break
        print(_ROW + json.dumps(measure(each)), flush=True)


def children(
    commands: Sequence[Sequence[str]], prepare_s: float, measure_s: float
) -> tuple[list[Any], list[str]]:
    """Run the processes; what they measured, and lines on those that were late or failed."""
    pipe = subprocess.PIPE
    # Without buffers, since `select` does not see what is in one.
    started = [subprocess.Popen(c, stdin=pipe, stdout=pipe, bufsize=0) for c in commands]
    try:
        ready, notes = _prepared(started, time.perf_counter() + prepare_s + LATE_S)
        begin, found = time.perf_counter(), list[Any]()
        for i, child in enumerate(ready):
            left = measure_s - (time.perf_counter() - begin)
            found += _measured(child, max(left, 0.0) / (len(ready) - i))
        return found, notes
    finally:
        for child in started:
            child.kill()
            child.communicate()


def _prepared(started: Sequence[Child], until: float) -> tuple[list[Child], list[str]]:
    """The processes that are ready, when all are, or when time is over; the others are ended."""
    waiting = {child.stdout: (i, child) for i, child in enumerate(started)}
    ready, notes = [], list[str]()
    while waiting and (left := until - time.perf_counter()) > 0:
        for out in select.select(list(waiting), [], [], left)[0]:
            assert out is not None
            line = out.readline().decode()
            if line.startswith(_READY):
                ready.append(waiting.pop(out)[1])
            elif not line:
                notes.append(f"process {waiting.pop(out)[0]} failed")
            else:
                print(line, end="", flush=True)
    for i, child in waiting.values():
        child.kill()
        child.wait()
        notes.append(f"process {i} was late, and its rows are left out")
    return ready, notes


def _measured(child: Child, seconds: float) -> list[Any]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{_GO} {seconds}\n".encode())
    found = []
    for raw in child.stdout:
        line = raw.decode()
        if line.startswith(_ROW):
            found.append(json.loads(line.removeprefix(_ROW)))
        else:
            print(line, end="", flush=True)
    child.wait()
    return found
