"""Threads that compile and call in parallel, with forks meanwhile: all values are right."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np

import symdnn
from tests.fuzz.areas import Area, Context, Failure
from tests.fuzz.catalogue import grow
from tests.fuzz.expressions import judge, outputs_of
from tests.fuzz.growth import Growth, RawError, Term
from tests.fuzz.program import Input
from tests.fuzz.values import SIZES

THREADS = 4
LONGEST = 120.0


class Job:
    """A program to compile, with its expected result."""

    def __init__(self, g: Growth) -> None:
        self.outs: list[Term] = outputs_of(g)
        self.inputs = [g.symbols[k] for k, i in enumerate(g.items) if isinstance(i, Input)]
        self.arrays = [i.array() for i in g.items if isinstance(i, Input)]

    def compiled(self) -> Any:
        return symdnn.function(self.inputs, [t.v for t in self.outs], on_unused_input="ignore")

    def wrong(self, f: Any, calls: int = 3) -> str:
        """The faults of some calls of ``f``, or ``""``."""
        for _ in range(calls):
            for t, got in zip(self.outs, f(*self.arrays)):
                a = np.asarray(got)
                said = judge(t, a, a, a)
                if said:
                    return said
        return ""


def jobs(rng: np.random.Generator, count: int) -> list[Job]:
    """Some programs."""
    found: list[Job] = []
    while len(found) < count:
        g = Growth(rng, SIZES)
        try:
            grow(g, int(rng.integers(2, 7)))
        except RawError:
            continue
        if g.sinks():
            found.append(Job(g))
    return found


def check(ctx: Context) -> list[Failure]:
    """Each thread compiles programs of its own and calls those that all share; one forks."""
    rng = ctx.rng
    shared = [(j, j.compiled()) for j in jobs(rng, 3)]
    own = [jobs(rng, 2) for _ in range(THREADS)]
    said: list[str] = []
    ready = threading.Barrier(THREADS)

    def work(k: int) -> None:
        try:
            ready.wait()
            for j in own[k]:
                said.append(j.wrong(j.compiled()))
                said.extend(s.wrong(f) for s, f in shared)
        except Exception as error:
            said.append(f"raises {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(THREADS)]
    for t in threads:
        t.start()
    time.sleep(float(rng.random() * 0.2))
    said.append(_forked(shared, jobs(rng, 1)[0]))
    deadline = time.monotonic() + LONGEST
    for t in threads:
        t.join(max(0.0, deadline - time.monotonic()))
    if any(t.is_alive() for t in threads):
        said.append(f"threads go on after {LONGEST:.0f} s")
    ctx.count("threads", THREADS)
    return [ctx.fail(s) for s in dict.fromkeys(said) if s]


def _forked(shared: list[Any], fresh: Job) -> str:
    """A child made while other threads compile: it calls, and it compiles."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(LONGEST))  # a hanging child is killed by it
        status = 1
        try:
            wrong = [s.wrong(f) for s, f in shared] + [fresh.wrong(fresh.compiled())]
            status = 2 if any(wrong) else 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"the child of a fork died by {signal.Signals(os.WTERMSIG(status)).name}"
    code = os.WEXITSTATUS(status)
    return {0: "", 2: "the child of a fork has wrong values"}.get(code, "the child of a fork fails")


AREA = Area("threads", "threads", check, in_tests=8)
